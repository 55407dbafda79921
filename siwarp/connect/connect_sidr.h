/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * connect/connect_sidr.h - resolution of UD queue pairs (service id resolution, spec/cm-udp.md): an
 * end that knows an address and a UDP port sends a query there for the QPN and Q_Key of a service.
 * Events go to the reporter's queue: SIW_CONN_ASKED, SIW_CONN_ANSWERED, SIW_CONN_REJECTED,
 * SIW_CONN_FAILED.
 *
 * What this layer does NOT do: touch queue pairs. cm supplies the contents of answers.
 */
#ifndef SIW_CONNECT_SIDR_H
#define SIW_CONNECT_SIDR_H

#include "connect/connect.h"

/* A query of this end, until it is answered or has failed. */
struct siw_sidr_query;
/* A UDP port at which queries arrive, or a chain of ports, one at each address of the device. */
struct siw_sidr_port;
/* A query that has arrived. */
struct siw_sidr_request;

/* Status of a refusal; numbers as in the status of InfiniBand's SIDR response. */
enum siw_sidr_status {
	SIW_SIDR_NO_SERVICE = 1, /* the listener is closed */
	/* the program rejected the query, or destroyed its connection id */
	SIW_SIDR_REJECTED = 2,
};

/* The data that a program supplies for a query or its answer. */
struct siw_sidr_data {
	uint32_t qpn, qkey;   /* in an answer: QPN and Q_Key of the queue pair */
	struct siw_addr addr; /* in an answer: address at which the queue pair receives */
	const void *data;
	uint8_t data_len; /* octets; at most 180 in a query, 136 in an answer */
};

/*
 * Starts a query to dest, from source (family 0: the device's first address of dest's family).
 * *from: the address and port of the query's socket. 0 or -errno.
 */
int siw_sidr_query(struct siw_reporter *reporter, const struct siw_addr *dest,
		   const struct siw_addr *source, const struct siw_sidr_data *say, int timeout_ms,
		   struct siw_sidr_query **out, struct siw_addr *from);
void siw_sidr_end_query(struct siw_sidr_query *ask);

/* Listens at addr; family 0: at every address of the device, on one port. 0 or -errno. */
int siw_sidr_listen(struct siw_reporter *reporter, const struct siw_addr *addr,
		    struct siw_sidr_port **out);
struct siw_addr siw_sidr_port_addr(const struct siw_sidr_port *port);
/*
 * Closes the port and refuses the queries whose event was not read yet; queries whose event was
 * read stay until they are answered.
 */
void siw_sidr_port_close(struct siw_sidr_port *port);

/* Returns the addresses of both ends of a query whose event was read from the event queue. */
void siw_sidr_request_addrs(const struct siw_sidr_request *request, struct siw_addr *local,
			    struct siw_addr *peer);
/* Answers the query, or refuses it if status is not 0, and frees the request struct. */
void siw_sidr_answer_or_refuse_request(struct siw_sidr_request *request,
				       const struct siw_sidr_data *say, int status);

#endif
