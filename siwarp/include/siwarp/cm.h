/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * <siwarp/cm.h> - connects RC queue pairs: the life of a connection as in librdmacm, over MPA's
 * start-up frames with their private data (RFC 5044 section 7.1, RFC 6581).
 *
 * active:  siw_cm_create_id, siw_create_qp, siw_cm_connect -> ESTABLISHED | REJECTED | UNREACHABLE
 * |          CONNECT_ERROR passive: siw_cm_create_id, siw_cm_listen -> CONNECT_REQUEST with a new
 * id; siw_create_qp and          siw_cm_accept -> ESTABLISHED, or siw_cm_reject both:
 * siw_cm_disconnect, or the peer's -> DISCONNECTED; the QP goes to ERR. cm moves the QP through
 * INIT, RTR and RTS itself; receives may be posted as soon as siw_cm_accept or siw_cm_connect is to
 * be called (siw_cm_bind_qp moves the QP to INIT for that).
 *
 * Conventions as in <siwarp/siw.h>. An id and what comes of it belong to one channel; an event's id
 * stays valid until the user destroys it.
 */
#ifndef SIWARP_CM_H
#define SIWARP_CM_H

#include <siwarp/siw.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* cffi: begin */

struct siw_cm_channel;
struct siw_cm_id;

enum siw_cm_event_type {
	SIW_CM_CONNECT_REQUEST = 4, /* numbers as in librdmacm */
	SIW_CM_CONNECT_ERROR = 6,
	SIW_CM_UNREACHABLE = 7,
	SIW_CM_REJECTED = 8,
	SIW_CM_ESTABLISHED = 9,
	SIW_CM_DISCONNECTED = 10,
};

enum siw_cm_rtr {
	SIW_CM_RTR_NONE = 0,
	SIW_CM_RTR_FPDU = 1,
	SIW_CM_RTR_WRITE = 2,
	SIW_CM_RTR_READ = 4,
};

/* Zeroed memory means the defaults. */
struct siw_cm_param {
	const void *private_data;
	uint32_t private_data_len; /* at most 508 octets in rev 2, 512 in rev 1 */
	int initiator_depth; /* ORD wanted; 0 = the device's limit, -1 = none (persona roce: one) */
	int responder_resources; /* IRD offered; the same */
	int rev;		 /* MPA revision of a connect: 2, or 1; 0 = 2 */
	int no_crc;		 /* 1 = CRC only if the peer wants it */
	int peer_to_peer;	 /* of a connect, rev 2: set of enum siw_cm_rtr that may open it */
	int markers;		 /* 1 = ask the peer for Markers; setting markers does, too */
	int timeout_ms;		 /* of start-up; 0 = the default (setting mpa_timeout_ms) */
};

struct siw_cm_event {
	struct siw_cm_id *id;	     /* CONNECT_REQUEST: the new one */
	struct siw_cm_id *listen_id; /* CONNECT_REQUEST only */
	void *context;		     /* of id (of listen_id in a CONNECT_REQUEST) */
	int event;		     /* enum siw_cm_event_type */
	int status;		     /* 0 or -errno: -ECONNREFUSED, -ETIMEDOUT, -EPROTO, ... */
	int rev, crc, peer_to_peer;  /* what the peer's frame said or what both agreed */
	int markers;		     /* 1 = the peer's frame asks for Markers in what it receives */
	int initiator_depth;	     /* ORD of this end after negotiation; request: at most this */
	int responder_resources;     /* IRD of this end; request: what the peer wants of it */
	int peer_ird, peer_ord;	     /* as the peer's frame has them, -1 where it has none */
	uint32_t wire_error; /* as siw_wc.vendor_err: of the Terminate that ended it, or 0 */
	uint32_t private_data_len;
	uint8_t private_data[512];
};

struct siw_cm_channel *siw_cm_create_channel(struct siw_context *context);
/* EBUSY while an id of it is alive. */
int siw_cm_destroy_channel(struct siw_cm_channel *channel);
/* Readable while an event waits; for poll(2) and its like. */
int siw_cm_channel_fd(struct siw_cm_channel *channel);
/* Waits as siw_get_cq_event does. 0, -EAGAIN when the time is over, -EINTR on a signal. */
int siw_cm_get_event(struct siw_cm_channel *channel, struct siw_cm_event *event, int timeout_ms);

struct siw_cm_id *siw_cm_create_id(struct siw_cm_channel *channel, void *context);
/* Ends what is going on with it; the QP, if any, goes to ERR and stays the user's to destroy. */
int siw_cm_destroy_id(struct siw_cm_id *id);
void siw_cm_set_context(struct siw_cm_id *id, void *context);
/* Addresses of a listener (peer: none) or a connection; either pointer may be NULL. */
int siw_cm_addr(struct siw_cm_id *id, struct siw_addr *local, struct siw_addr *peer);

/* Gives the id its QP (RC, of the same device) and moves the QP to INIT: receives may be posted. */
int siw_cm_bind_qp(struct siw_cm_id *id, struct siw_qp *qp);

/*
 * Listens on addr; port 0 takes a free one (siw_cm_addr tells). EADDRINUSE, EADDRNOTAVAIL, EACCES.
 */
int siw_cm_listen(struct siw_cm_id *id, const struct siw_addr *addr, int backlog);
/* Starts to connect the id's QP; the outcome comes as an event. source may be NULL. */
int siw_cm_connect(struct siw_cm_id *id, const struct siw_addr *dest, const struct siw_addr *source,
		   const struct siw_cm_param *param);
/*
 * Answers a CONNECT_REQUEST with the id's QP; ESTABLISHED follows as an event. param may be NULL.
 */
int siw_cm_accept(struct siw_cm_id *id, const struct siw_cm_param *param);
/* Answers a CONNECT_REQUEST with R=1 and private data; the id is then only good for destroying. */
int siw_cm_reject(struct siw_cm_id *id, const void *private_data, uint32_t private_data_len);
/* Ends the connection: what was posted and completed still reaches the peer; both QPs go to ERR. */
int siw_cm_disconnect(struct siw_cm_id *id);
const char *siw_cm_event_str(int event);

/* cffi: end */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
