/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * <siwarp/cm.h> - connects RC queue pairs, in the steps of librdmacm, by MPA's start-up frames with
 * their private data (RFC 5044 section 7.1, RFC 6581), and finds UD queue pairs.
 *
 * active    siw_cm_create_id, siw_create_qp, siw_cm_bind_qp, siw_cm_connect: then an event
 *           ESTABLISHED, REJECTED (by the peer's frame, or, with rev 0, since nobody listens
 *           there), UNREACHABLE or CONNECT_ERROR
 * passive   siw_cm_create_id, siw_cm_listen: then CONNECT_REQUEST events, each with a new id;
 *           with that id siw_create_qp, siw_cm_bind_qp, siw_cm_accept: then ESTABLISHED; or
 *           siw_cm_reject
 * both      siw_cm_disconnect here or at the peer: then DISCONNECTED, and the QP goes to ERR
 *
 * UD        with ids of siw_cm_create_ud_id the same calls ask a listener for the QPN and Q_Key of
 *           its UD queue pair (spec/cm-udp.md): ESTABLISHED has them, siw_cm_addr the address.
 *           There is no connection: the listener learns nothing but that it was asked, and nobody
 *           is told when the other one leaves.
 *
 * These functions move the QP through INIT, RTR and RTS. siw_cm_bind_qp moves it to INIT, so that
 * receives can be posted before the connection is made.
 *
 * Conventions as in <siwarp/siw.h>. The events of an id come on its channel. An id that an event
 * brings is valid until the user destroys it.
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
	SIW_CM_ADDR_RESOLVED = 0, /* numbers as in librdmacm; the first four by siw_cm_tell */
	SIW_CM_ADDR_ERROR = 1,
	SIW_CM_ROUTE_RESOLVED = 2,
	SIW_CM_ROUTE_ERROR = 3,
	SIW_CM_CONNECT_REQUEST = 4,
	SIW_CM_CONNECT_RESPONSE = 5,
	SIW_CM_CONNECT_ERROR = 6,
	SIW_CM_UNREACHABLE = 7,
	SIW_CM_REJECTED = 8,
	SIW_CM_ESTABLISHED = 9,
	SIW_CM_DISCONNECTED = 10,
	SIW_CM_MULTICAST_JOIN = 12, /* these two by siw_cm_tell alone, too */
	SIW_CM_MULTICAST_ERROR = 13,
};

enum siw_cm_rtr {
	SIW_CM_RTR_NONE = 0,
	SIW_CM_RTR_FPDU = 1,
	SIW_CM_RTR_WRITE = 2,
	SIW_CM_RTR_READ = 4,
};

/* The Q_Key of UD queue pairs of ids: RDMA_UDP_QKEY of librdmacm. */
enum siw_cm_qkey {
	SIW_CM_UD_QKEY = 0x01234567,
};

/*
 * Zeroed memory means the defaults. Of a UD id private data and timeout_ms count alone: 180 octets
 * in a connect, 136 in an answer; the default is setting sidr_timeout_ms.
 */
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
	int hold; /* of a connect: the peer's Reply is CONNECT_RESPONSE; siw_cm_establish */
	/*
	 * of a connect: so long it is tried again while nobody listens there; while it is reset, as
	 * by a listener that has too many from one source, until timeout_ms is over
	 */
	int refused_ms;
	int tos; /* type of service, or traffic class, of what is sent: to 255; 0 = none */
	/*
	 * persona roce: rnr_retry for Sends of the peer to this end, as rdma_cm's rnr_retry_count:
	 * 1 to 7, -1 = none; it takes precedence over what the peer says. 0 = as the peer says, or
	 * else the attribute of this queue pair (struct siw_qp_attr).
	 */
	int rnr_retry;
};

struct siw_cm_event {
	struct siw_cm_id *id;	     /* CONNECT_REQUEST: the new one */
	struct siw_cm_id *listen_id; /* CONNECT_REQUEST only */
	void *context;		     /* of id (of listen_id in a CONNECT_REQUEST) */
	int event;		     /* enum siw_cm_event_type */
	int status;		     /* 0 or -errno: -ECONNREFUSED, -ETIMEDOUT, -EPROTO, ... */
	int rev, crc, peer_to_peer;  /* of the peer's frame; ESTABLISHED: as both ends agreed */
	int markers;		     /* 1 = the peer's frame asks for Markers in what it receives */
	int initiator_depth;	     /* ORD of this end after negotiation; request: at most this */
	int responder_resources;     /* IRD of this end; request: the ORD that the peer wants */
	int peer_ird, peer_ord;	     /* of the peer's frame; -1: it has none */
	/*
	 * As siw_wc.vendor_err: of the Terminate that ended it, or 0. UD, REJECTED: 1 the listener
	 * is closed, 2 its program rejected.
	 */
	uint32_t wire_error;
	uint32_t qpn, qkey; /* UD, ESTABLISHED: of the queue pair that was asked for */
	uint32_t private_data_len;
	uint8_t private_data[512];
};

/*
 * context NULL: the channel belongs to no device. Its ids get theirs later, each by
 * siw_cm_set_device, and its events are those of ids of any device. Who waits for them leaves
 * progress to the devices' own threads, so without one (setting progress) nothing comes.
 */
struct siw_cm_channel *siw_cm_create_channel(struct siw_context *context);
/* EBUSY while an id of it is alive. */
int siw_cm_destroy_channel(struct siw_cm_channel *channel);
/* Readable while an event waits; for poll(2) and its like. */
int siw_cm_channel_fd(struct siw_cm_channel *channel);
/*
 * Waits as siw_get_async_event does, and writes the next event to *event: 0; -EAGAIN after
 * timeout_ms milliseconds; -EINTR after a signal.
 */
int siw_cm_get_event(struct siw_cm_channel *channel, struct siw_cm_event *event, int timeout_ms);

struct siw_cm_id *siw_cm_create_id(struct siw_cm_channel *channel, void *context);
/* An id for UD queue pairs: see above. */
struct siw_cm_id *siw_cm_create_ud_id(struct siw_cm_channel *channel, void *context);
/*
 * Destroys the id. Its listening, start-up or connection ends; its QP, if any, goes to ERR, and is
 * the user's to destroy.
 */
int siw_cm_destroy_id(struct siw_cm_id *id);
void siw_cm_set_context(struct siw_cm_id *id, void *context);
/*
 * Gives the id of a channel of no device its device, which cannot be closed before the id is
 * destroyed. -EINVAL: it has another.
 */
int siw_cm_set_device(struct siw_cm_id *id, struct siw_context *context);
/* The id's device; NULL: it has none. */
struct siw_context *siw_cm_device(struct siw_cm_id *id);
/*
 * From now on the id's events come on that channel, in their order, and so do those that nobody has
 * taken. The channel is one of no device, or of the id's.
 */
int siw_cm_migrate_id(struct siw_cm_id *id, struct siw_cm_channel *channel);
/*
 * Sets whether siw_cm_bind_addr to the IPv6 wildcard address leaves the port free for IPv4, as
 * RDMA_OPTION_ID_AFONLY of rdma_set_option(3) does. -EINVAL: the id is already bound or in use.
 */
int siw_cm_set_v6only(struct siw_cm_id *id, int on);
/*
 * Reserves a local address for the id, which later listens on it or connects from it. Port 0
 * selects a free port; siw_cm_addr returns the one that was selected. The IPv6 wildcard address
 * reserves the port for IPv4 as well, unless siw_cm_set_v6only was called. Needs no device.
 * -EADDRINUSE: another socket listens on the address. If the other socket is only bound so far,
 * this call succeeds and siw_cm_listen fails instead. The same holds for a UD id whose port is in
 * use by a UDP socket, since a program may have opened that socket itself.
 */
int siw_cm_bind_addr(struct siw_cm_id *id, const struct siw_addr *addr);
/*
 * Puts an event of the caller's on the id's channel, behind those that wait: for callers that
 * resolve addresses, or join groups, by themselves. event may be any number, status is passed on.
 */
int siw_cm_tell(struct siw_cm_id *id, int event, int status);
/*
 * The addresses of a listener, which has no peer, or of a connection. Either pointer may be NULL.
 */
int siw_cm_addr(struct siw_cm_id *id, struct siw_addr *local, struct siw_addr *peer);

/*
 * Gives the id its QP (RC, of the same device) and moves the QP to INIT: receives may be posted.
 * One that was made with by_qpn, and is in RESET or INIT, connects no longer by number.
 *
 * A UD id takes UD queue pairs: one in RESET goes to RTS with SIW_CM_UD_QKEY, others stay as they
 * are. Only who accepts needs one.
 */
int siw_cm_bind_qp(struct siw_cm_id *id, struct siw_qp *qp);

/*
 * Listens on addr; NULL: where siw_cm_bind_addr bound it. Port 0 takes a free one, which
 * siw_cm_addr returns. backlog as for listen(2).
 * -EADDRINUSE, -EADDRNOTAVAIL, -EACCES.
 *
 * Family 0: on every address that the device has now, on one port; a descriptor, a backlog and
 * bounds of what may be pending for each. siw_cm_addr of the id gives the first of them, and that
 * of an id of a CONNECT_REQUEST the one that it came to. An address that the device gets later is
 * not listened on.
 */
int siw_cm_listen(struct siw_cm_id *id, const struct siw_addr *addr, int backlog);
/*
 * The id, of a channel of no device, listens there, too, and may have no device itself. The id of a
 * CONNECT_REQUEST gets the device that it came in on. Any number of times; destroying the id ends
 * them all. Errors as siw_cm_listen.
 */
int siw_cm_listen_also(struct siw_cm_id *id, struct siw_context *context,
		       const struct siw_addr *addr, int backlog);
/* Starts to connect the id's QP; an event has the result. source and param may be NULL. */
int siw_cm_connect(struct siw_cm_id *id, const struct siw_addr *dest, const struct siw_addr *source,
		   const struct siw_cm_param *param);
/* Accepts a CONNECT_REQUEST with the id's QP; ESTABLISHED follows. param may be NULL. */
int siw_cm_accept(struct siw_cm_id *id, const struct siw_cm_param *param);
/*
 * Completes a connect with hold, after its CONNECT_RESPONSE; ESTABLISHED follows. Till then the
 * peer waits.
 */
int siw_cm_establish(struct siw_cm_id *id);
/*
 * Rejects a CONNECT_REQUEST (R=1), with private data. The id can then only be destroyed. 0, too, if
 * the peer has left.
 */
int siw_cm_reject(struct siw_cm_id *id, const void *private_data, uint32_t private_data_len);
/*
 * Ends the connection; both QPs go to ERR. Requests that completed with success before still reach
 * the peer.
 */
int siw_cm_disconnect(struct siw_cm_id *id);
const char *siw_cm_event_str(int event);

/* cffi: end */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
