/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_sidr.h - how UD queue pairs are resolved: who knows an address and a port asks there for the
 * QPN and Q_Key of a service (service id resolution, spec/cm-udp.md). Events go to the reporter's
 * queue: SIW_CONN_ASKED, SIW_CONN_ANSWERED, SIW_CONN_REJECTED, SIW_CONN_FAILED.
 *
 * What it does NOT do: touch queue pairs. cm says what the answer is.
 */
#ifndef SIW_QP_SIDR_H
#define SIW_QP_SIDR_H

#include "qp/qp.h"

/* One question of this end, until it is answered or given up. */
struct siw_sidr_ask;
/* A UDP port at which questions come, or one at each address of the device. */
struct siw_sidr_port;
/* A question that came. */
struct siw_sidr_request;

/* Of a refusal: numbers as the status of InfiniBand's SIDR response has them. */
enum siw_sidr_status {
	SIW_SIDR_NO_SERVICE = 1, /* the listener is closed */
	SIW_SIDR_REJECTED = 2,	 /* the program rejected, or destroyed the id */
};

/* What a program says in a question or its answer. */
struct siw_sidr_say {
	uint32_t qpn, qkey;   /* of an answer */
	struct siw_addr addr; /* of an answer: where the queue pair receives */
	const void *data;
	uint8_t data_len; /* octets: 180 of a question, else 136 */
};

/*
 * Asks at dest, from source (family 0: the device's first of that family); *from: where from. 0 or
 * -errno.
 */
int siw_sidr_ask(struct siw_qp_reporter *reporter, const struct siw_addr *dest,
		 const struct siw_addr *source, const struct siw_sidr_say *say, int timeout_ms,
		 struct siw_sidr_ask **out, struct siw_addr *from);
void siw_sidr_ask_end(struct siw_sidr_ask *ask);

/* Listens at addr; family 0: at every address of the device, on one port. 0 or -errno. */
int siw_sidr_listen(struct siw_qp_reporter *reporter, const struct siw_addr *addr,
		    struct siw_sidr_port **out);
struct siw_addr siw_sidr_port_addr(const struct siw_sidr_port *port);
/* Refuses what nobody has taken; requests that were taken stay until they are ended. */
void siw_sidr_port_close(struct siw_sidr_port *port);

/* Both addresses of a request that was taken from the queue. */
void siw_sidr_request_addrs(const struct siw_sidr_request *request, struct siw_addr *local,
			    struct siw_addr *peer);
/* Answers, or with a status refuses, and ends the request. */
void siw_sidr_answer(struct siw_sidr_request *request, const struct siw_sidr_say *say, int status);

#endif
