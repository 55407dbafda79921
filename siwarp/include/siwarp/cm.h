/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * <siwarp/cm.h> - the connection manager: connects RC queue pairs in the same steps as librdmacm,
 * by MPA start-up frames with private data (RFC 5044 section 7.1, RFC 6581), and resolves addresses
 * to UD queue pairs.
 *
 * active    siw_cm_create_id, siw_create_qp, siw_cm_bind_qp, siw_cm_connect; the result is an
 *           event ESTABLISHED, REJECTED (by the peer's frame, or with rev 0 if no listener exists),
 *           UNREACHABLE or CONNECT_ERROR
 * passive   siw_cm_create_id, siw_cm_listen; then CONNECT_REQUEST events, each with a new id. For
 *           that id call either siw_create_qp, siw_cm_bind_qp and siw_cm_accept, which result in
 *           ESTABLISHED, or siw_cm_reject
 * both      siw_cm_disconnect at either end: the event is DISCONNECTED, and the QP goes to ERR
 *
 * UD        with ids of siw_cm_create_ud_id, the same calls query a listener for the QPN and Q_Key
 *           of its UD queue pair (spec/cm-udp.md). The event ESTABLISHED contains both, and
 *           siw_cm_addr returns the address. No connection exists: the listener is only notified of
 *           the query, and neither end is notified when the other end is destroyed.
 *
 * The connection manager moves the QP through INIT, RTR and RTS. siw_cm_bind_qp moves the QP to
 * INIT, so that receives can be posted before the connection is established.
 *
 * Conventions are those of <siwarp/siw.h>. Events of an id are queued on its channel. A new id that
 * an event delivers is owned by the program, which must destroy the id.
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
	/* numbers as in librdmacm; only siw_cm_tell raises the events 0 to 3 */
	SIW_CM_ADDR_RESOLVED = 0,
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
	SIW_CM_MULTICAST_JOIN = 12, /* only siw_cm_tell raises multicast events */
	SIW_CM_MULTICAST_ERROR = 13,
};

/* The ready-to-receive messages of peer-to-peer connections (RFC 6581 section 4.1), as a set. */
enum siw_cm_rtr {
	SIW_CM_RTR_NONE = 0,
	SIW_CM_RTR_FPDU = 1,
	SIW_CM_RTR_WRITE = 2,
	SIW_CM_RTR_READ = 4,
};

/* The Q_Key of UD queue pairs bound to ids: RDMA_UDP_QKEY of librdmacm. */
enum siw_cm_qkey {
	SIW_CM_UD_QKEY = 0x01234567,
};

/*
 * Parameters of siw_cm_connect and siw_cm_accept. A zeroed struct selects the defaults. For a UD id
 * only private_data, private_data_len and timeout_ms are used. The private data of a UD id is at
 * most 180 octets in a connect and 136 octets in a reply; its default timeout_ms is setting
 * sidr_timeout_ms.
 */
struct siw_cm_param {
	const void *private_data;
	uint32_t private_data_len; /* at most 508 octets in MPA revision 2, 512 in revision 1 */
	/* requested ORD; 0 = the device's limit, -1 = no Reads (persona roce: 1) */
	int initiator_depth;
	int responder_resources; /* offered IRD; 0 and -1 as for initiator_depth */
	int rev;		 /* connect: MPA revision, 1 or 2; 0 = 2 */
	int no_crc;		 /* 1 = use CRCs only if the peer requires them */
	int peer_to_peer;	 /* connect, revision 2: set of enum siw_cm_rtr that is offered */
	int markers;		 /* 1 = request Markers; 0 = only if setting markers is on */
	int timeout_ms;		 /* time limit of MPA start-up; 0 = setting mpa_timeout_ms */
	/* connect: 1 = report the peer's Reply by CONNECT_RESPONSE and wait for siw_cm_establish */
	int hold;
	/*
	 * connect: time in milliseconds for which a refused connect is retried because no listener
	 * exists. A connect that is reset, for example by a listener that has too many start-ups
	 * from one source, is retried until timeout_ms has elapsed.
	 */
	int refused_ms;
	int tos; /* type of service or traffic class of sent packets, at most 255; 0 = not set */
	/*
	 * persona roce: rnr_retry for the peer's Sends to this end, as rnr_retry_count of rdma_cm:
	 * 1 to 7, or -1 for no retry. A value other than 0 takes precedence over the value that the
	 * peer transmits. 0 = the value that the peer transmits, or else the attribute of the local
	 * queue pair (struct siw_qp_attr).
	 */
	int rnr_retry;
};

/* An event that siw_cm_get_event returns. A prefix names the events that set a member. */
struct siw_cm_event {
	struct siw_cm_id *id;	     /* CONNECT_REQUEST: the new id */
	struct siw_cm_id *listen_id; /* CONNECT_REQUEST: the listening id */
	void *context;		     /* context of id (CONNECT_REQUEST: of listen_id) */
	int event;		     /* enum siw_cm_event_type */
	int status;		     /* 0 or -errno: -ECONNREFUSED, -ETIMEDOUT, -EPROTO, ... */
	int rev, crc, peer_to_peer; /* values in the peer's frame; ESTABLISHED: negotiated values */
	int markers;	     /* 1 = the peer requests Markers in the stream that it receives */
	int initiator_depth; /* negotiated local ORD; CONNECT_REQUEST: its upper limit */
	/* negotiated local IRD; CONNECT_REQUEST: ORD that the peer requests */
	int responder_resources;
	int peer_ird, peer_ord; /* IRD and ORD in the peer's frame; -1: the frame has none */
	/*
	 * The Terminate that ended the connection, in the format of siw_wc.vendor_err, or 0. UD,
	 * REJECTED: 1 = the listener is closed, 2 = its program rejected the request.
	 */
	uint32_t wire_error;
	uint32_t qpn, qkey; /* UD, ESTABLISHED: QPN and Q_Key of the listener's queue pair */
	uint32_t private_data_len;
	uint8_t private_data[512];
};

/*
 * Creates an event channel for ids. With context NULL the channel belongs to no device: each of its
 * ids is assigned a device later by siw_cm_set_device, and the channel delivers the events of ids
 * of any device. A thread that waits on a channel without a device makes no progress itself, so the
 * devices' progress threads must be enabled (setting progress_thread), or no event arrives.
 */
struct siw_cm_channel *siw_cm_create_channel(struct siw_context *context);
/* Destroys the channel. -EBUSY: an id of the channel still exists. */
int siw_cm_destroy_channel(struct siw_cm_channel *channel);
/*
 * Returns a descriptor of the channel, for poll(2) and similar calls, that is readable while an
 * event is queued.
 */
int siw_cm_channel_fd(struct siw_cm_channel *channel);
/*
 * Removes the next event from the channel and writes it to *event, blocking as siw_get_async_event
 * does. Returns 0; -EAGAIN after timeout_ms milliseconds; -EINTR after a signal.
 */
int siw_cm_get_event(struct siw_cm_channel *channel, struct siw_cm_event *event, int timeout_ms);

/* Creates an id for RC queue pairs. Events of the id return context. Errors: ENOMEM. */
struct siw_cm_id *siw_cm_create_id(struct siw_cm_channel *channel, void *context);
/* Creates an id for UD queue pairs, as described under UD at the top of this header. */
struct siw_cm_id *siw_cm_create_ud_id(struct siw_cm_channel *channel, void *context);
/*
 * Destroys the id. The id's listener, start-up or connection ends. The id's QP, if any, goes to ERR
 * and must be destroyed by the program.
 */
int siw_cm_destroy_id(struct siw_cm_id *id);
/* Sets the context that later events of the id return. */
void siw_cm_set_context(struct siw_cm_id *id, void *context);
/*
 * Assigns a device to an id whose channel belongs to no device. The device cannot be closed before
 * the id is destroyed. -EINVAL: the id already has another device.
 */
int siw_cm_set_device(struct siw_cm_id *id, struct siw_context *context);
/* Returns the device of the id, or NULL if the id has none. */
struct siw_context *siw_cm_device(struct siw_cm_id *id);
/*
 * Moves the id to another channel, together with the events that are still queued for the id, in
 * order. The new channel must belong to no device or to the device of the id.
 */
int siw_cm_migrate_id(struct siw_cm_id *id, struct siw_cm_channel *channel);
/*
 * Sets whether siw_cm_bind_addr to the IPv6 wildcard address leaves the port free for IPv4, as
 * RDMA_OPTION_ID_AFONLY of rdma_set_option(3) does. -EINVAL: the id is already bound or in use.
 */
int siw_cm_set_v6only(struct siw_cm_id *id, int on);
/*
 * Reserves a local address for the id, which later listens on it or connects from it. Port 0
 * selects a free port, which siw_cm_addr returns. The IPv6 wildcard address reserves the port for
 * IPv4 as well, unless siw_cm_set_v6only was called. The id needs no device. -EADDRINUSE: another
 * socket listens on the address. If another socket is only bound to the address, this call succeeds
 * and siw_cm_listen fails instead. The same holds for a UD id whose port is in use by a UDP socket,
 * since a program may have opened that socket itself.
 */
int siw_cm_bind_addr(struct siw_cm_id *id, const struct siw_addr *addr);
/*
 * Queues an event chosen by the caller on the id's channel, after the queued events. Intended for
 * callers that resolve addresses or join groups themselves. event may be any number; status is
 * passed through unchanged.
 */
int siw_cm_tell(struct siw_cm_id *id, int event, int status);
/*
 * Returns the addresses of a connection, or the address of a listener, which has no peer. local and
 * peer may each be NULL.
 */
int siw_cm_addr(struct siw_cm_id *id, struct siw_addr *local, struct siw_addr *peer);

/*
 * Binds an RC QP of the same device to the id and moves the QP to INIT, so that receives can be
 * posted. A QP with by_qpn must be in RESET or INIT, and can then no longer be connected by QPN.
 *
 * A UD id accepts UD queue pairs. A UD QP in RESET is moved to RTS with Q_Key SIW_CM_UD_QKEY; in
 * any other state it is left unchanged. Only an id that accepts requests needs a UD QP.
 */
int siw_cm_bind_qp(struct siw_cm_id *id, struct siw_qp *qp);

/*
 * Listens on addr, or with addr NULL on the address bound by siw_cm_bind_addr. Port 0 selects a
 * free port, which siw_cm_addr returns. backlog is as for listen(2). -EADDRINUSE, -EADDRNOTAVAIL,
 * -EACCES.
 *
 * Family 0 listens on every address of the device, on one port. Each address has its own
 * descriptor, its own backlog and its own limits of pending connections (settings max_startups,
 * max_requests). siw_cm_addr returns the first address for the listening id, and for the id of a
 * CONNECT_REQUEST the address to which the request was sent. Addresses that the device gains later
 * are included, up to 16 during the life of the listener, unless another program uses the port
 * there (counter addrs_unbound).
 */
int siw_cm_listen(struct siw_cm_id *id, const struct siw_addr *addr, int backlog);
/*
 * Adds a listening address on another device. The channel of the id must belong to no device; the
 * id itself needs no device. The id of a CONNECT_REQUEST is assigned the device on which the
 * request arrived. The function may be called any number of times; destroying the id ends all its
 * listeners. Errors as for siw_cm_listen.
 */
int siw_cm_listen_also(struct siw_cm_id *id, struct siw_context *context,
		       const struct siw_addr *addr, int backlog);
/*
 * Starts to connect the id's QP to dest; an event reports the result. source and param may be NULL.
 */
int siw_cm_connect(struct siw_cm_id *id, const struct siw_addr *dest, const struct siw_addr *source,
		   const struct siw_cm_param *param);
/* Accepts a CONNECT_REQUEST with the id's QP. The event ESTABLISHED follows. param may be NULL. */
int siw_cm_accept(struct siw_cm_id *id, const struct siw_cm_param *param);
/*
 * Completes a connect that set hold in its parameters, after the event CONNECT_RESPONSE. The peer
 * waits until siw_cm_establish is called. The event ESTABLISHED follows.
 */
int siw_cm_establish(struct siw_cm_id *id);
/*
 * Rejects a CONNECT_REQUEST with an MPA Reply that has R=1 and the given private data. Afterwards
 * the id can only be destroyed. Returns 0 even if the peer has already closed the connection.
 */
int siw_cm_reject(struct siw_cm_id *id, const void *private_data, uint32_t private_data_len);
/*
 * Ends the connection and moves both QPs to ERR. Data of requests that completed with success still
 * reaches the peer.
 */
int siw_cm_disconnect(struct siw_cm_id *id);
/* Returns a static text that describes an event (enum siw_cm_event_type). */
const char *siw_cm_event_str(int event);

/* cffi: end */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
