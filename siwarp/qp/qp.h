/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp.h - queue pairs and connection start-up: what the connection manager above needs. The
 * user's half is <siwarp/siw.h>.
 *
 * What this layer does NOT do: decide about cm's connections. It passes start-up frames up and down
 * as values and makes a started stream a QP's. RC by QPN (qp_pair.h) decides for itself.
 *
 * Lock order: context progress lock, QP send lock, QP receive lock, CQ lock, channel lock.
 */
#ifndef SIW_QP_H
#define SIW_QP_H

#include <stdbool.h>

#include <siwarp/siw_ext.h>

#include "base/err.h"
#include "base/list.h"
#include "base/mpa_params.h"

/* A queue of connection events with a descriptor to wait on. */
struct siw_qp_evq;
/* A device for the connections of one user, and the queue that has their events. */
struct siw_qp_reporter;
/* A listener, or one end of a connection in start-up or in use. */
struct siw_qp_conn;
/* A connection id's hold on its QP. */
struct siw_qp_hold;
/* A question that came to a UDP port (qp_sidr.h). */
struct siw_sidr_request;

/* cffi: begin */
enum siw_qp_conn_kind {
	/* a Request came to a listener: conn is new, params is the Request */
	SIW_CONN_REQUEST = 1,
	/* the peer accepted: params is its Reply; siw_qp_attach is to be called */
	SIW_CONN_REPLY,
	SIW_CONN_REJECTED,     /* the peer's Reply has R=1 */
	SIW_CONN_FAILED,       /* start-up failed: status */
	SIW_CONN_ESTABLISHED,  /* the attached QP may send */
	SIW_CONN_DISCONNECTED, /* the attached QP's stream has ended: status, err */
	SIW_CONN_TOLD,	       /* siw_qp_evq_tell: the teller's number is in told */
	/* UD (qp_sidr.h): a question came: asked is new, params has its private data */
	SIW_CONN_ASKED,
	SIW_CONN_ANSWERED, /* this end's question was answered: qpn, qkey, addr; params likewise */
};
/* cffi: end */

struct siw_qp_conn_event {
	int kind; /* enum siw_qp_conn_kind */
	int status;
	int told; /* of a refused question: enum siw_sidr_status */
	struct siw_sidr_request *asked;
	void (*taken)(struct siw_sidr_request *asked); /* its event is; progress held */
	uint32_t qpn, qkey;
	struct siw_addr addr; /* where that queue pair receives; no port */
	struct siw_qp_conn *conn;
	struct siw_qp_conn *listener; /* REQUEST */
	struct siw_context *ctx;      /* of conn */
	void *user_data;	      /* of conn's reporter; in a REQUEST, of listener's */
	struct siw_wire_err err;
	struct siw_mpa_params params;
};

/* context NULL: it takes events of connections on any device. */
int siw_qp_evq_open(struct siw_context *context, struct siw_qp_evq **out);
/* All its reporters must be closed before. A late siw_qp_evq_wait finds a queue until it is freed. */
void siw_qp_evq_close(struct siw_qp_evq *evq);
void siw_qp_evq_free(struct siw_qp_evq *evq);
int siw_qp_evq_fd(struct siw_qp_evq *evq);
/*
 * Waits until there is an event, as siw_get_async_event does. Does not take it. A queue of no device
 * leaves progress to the devices' threads.
 */
int siw_qp_evq_wait(struct siw_qp_evq *evq, int timeout_ms);
/*
 * Takes the oldest event: 1, or 0: there is none. None of its reporters may be closed or moved
 * meanwhile.
 */
int siw_qp_evq_take(struct siw_qp_evq *evq, struct siw_qp_conn_event *event);
/* Adds an event TOLD with that number: 0 or -ENOMEM. */
int siw_qp_evq_tell(struct siw_qp_evq *evq, int told, int status, void *user_data);
/* Drops the events that have this user_data. */
void siw_qp_evq_drop(struct siw_qp_evq *evq, const void *user_data);

/* The connections of user_data on that device report to that queue: 0 or -ENOMEM. */
int siw_qp_reporter_open(struct siw_context *context, struct siw_qp_evq *evq, void *user_data,
			 struct siw_qp_reporter **out);
/* Queues an event with the reporter's device and user_data: 0 or -ENOMEM. progress held. */
int siw_qp_report(struct siw_qp_reporter *reporter, const struct siw_qp_conn_event *event);
/* The request ends before anybody took its event. progress held. */
void siw_qp_report_forget(struct siw_qp_reporter *reporter, const struct siw_sidr_request *asked);
/* All its connections must be destroyed before. */
void siw_qp_reporter_close(struct siw_qp_reporter *reporter);
/* reporter, unless NULL, reports to another queue; the events of user_data go along. */
void siw_qp_evq_move(struct siw_qp_evq *from, struct siw_qp_evq *to, const void *user_data,
		     struct siw_qp_reporter *reporter);
/* A connection of a REQUEST becomes that reporter's. */
void siw_qp_conn_give(struct siw_qp_conn *conn, struct siw_qp_reporter *reporter);

/* An address that is kept for a listener or a connection: a socket that is bound, and listens not. */
struct siw_qp_place {
	int fd;		      /* -1: none */
	struct siw_addr addr; /* with its port */
};
/*
 * Of TCP, or of UDP. Port 0: a free one. A wildcard address of IPv6 keeps the port for IPv4, too,
 * unless v6_only. 0 or -errno.
 */
int siw_qp_place_keep(struct siw_qp_place *place, const struct siw_addr *addr, bool udp,
		      bool v6_only);
void siw_qp_place_leave(struct siw_qp_place *place);

/*
 * Listens at addr, or with family 0 at every address of the device, on one port; then *out stands
 * for all of these listeners.
 */
int siw_qp_listen(struct siw_qp_reporter *reporter, const struct siw_addr *addr, int backlog,
		  struct siw_qp_conn **out);
/* refused_ms: so long it is tried again while nobody listens there. */
int siw_qp_connect(struct siw_qp_reporter *reporter, const struct siw_addr *dest,
		   const struct siw_addr *source, const struct siw_mpa_params *params,
		   int timeout_ms, int refused_ms, struct siw_qp_conn **out);
/* The responder sends its Reply. */
int siw_qp_reply(struct siw_qp_conn *conn, const struct siw_mpa_params *params);
/* What is sent before a QP has the stream, and after, has that type of service: to 255. */
void siw_qp_conn_tos(struct siw_qp_conn *conn, int tos);
/* Whether CRCs are on. For a connection with an attached QP, also after its end. */
int siw_qp_conn_crc(struct siw_qp_conn *conn);
int siw_qp_conn_addrs(struct siw_qp_conn *conn, struct siw_addr *local, struct siw_addr *peer);

struct siw_qp_attach {
	uint16_t ird, ord;
	uint8_t rtr; /* set of enum siw_mpa_rtr: the one to send, or those to accept */
	bool initiator;
	bool ord_known; /* ord comes from the peer or the user, and is no default */
	bool siwarp;	/* the start-up said that the peer is siwarp */
	bool counts;	/* with siwarp: both ends offer delivery counts */
	int rnr_retry;	/* of the peer's Sends, as struct siw_cm_param has it */
};
/* Makes the started stream the held QP's: INIT -> RTR -> RTS. An ESTABLISHED event follows. */
int siw_qp_attach(struct siw_qp_conn *conn, const struct siw_qp_hold *hold,
		  const struct siw_qp_attach *attach);
/* Instead of siw_qp_attach: sends a Terminate with the error, if possible, and closes. */
void siw_qp_refuse(struct siw_qp_conn *conn, const struct siw_wire_err *err);
/*
 * Moves the attached QP to ERR; what has completed still reaches the peer. -ENOTCONN: no QP is
 * attached.
 */
int siw_qp_disconnect(struct siw_qp_conn *conn);
/* Ends the connection in any state and drops its events. */
void siw_qp_conn_destroy(struct siw_qp_conn *conn);

/*
 * A connection id's hold on its QP, which forgets the QP when that is destroyed. Zeroed: holds none.
 * Under progress, which the functions take.
 */
struct siw_qp_hold {
	struct siw_link link;
	struct siw_qp *qp;
};
/* What a QP that is held has been told, and its state. */
struct siw_qp_held {
	int state;    /* enum siw_qp_state */
	int ord, ird; /* as set by siw_modify_qp; -1: not set */
	bool roce;    /* its persona */
};
void siw_qp_hold(struct siw_qp_hold *hold, struct siw_qp *qp);
void siw_qp_hold_end(struct siw_context *context, struct siw_qp_hold *hold);
/* Whether it holds a QP; *held, unless NULL, says what of it. */
bool siw_qp_hold_look(struct siw_context *context, const struct siw_qp_hold *hold,
		      struct siw_qp_held *held);
struct siw_context *siw_qp_context(struct siw_qp *qp);
int siw_qp_type(struct siw_qp *qp);
/*
 * An RC one that connects by GID and QPN does so no longer: 0; -EINVAL: it has left INIT, and may
 * have begun to.
 */
int siw_qp_leave_pairing(struct siw_qp *qp);

#endif
