/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * connect/connect.h - establishes connections of queue pairs for the connection manager: listeners,
 * connection start-up, and the event queues that connections report to.
 *
 * What this layer does NOT do: decide which connections are accepted, and with which parameters:
 * the connection manager (cm) decides. This layer passes the contents of start-up frames between
 * the peer and cm, and transfers a started stream to a QP. Queue pairs that connect by GID and QPN
 * (connect_pair.c) need no connection manager.
 *
 * Lock order: as in qp/qp.h.
 */
#ifndef SIW_CONNECT_H
#define SIW_CONNECT_H

#include <stdbool.h>

#include "base/err.h"
#include "mpa/mpa_params.h"
#include "qp/qp.h"

struct siw_rc_qp;
/* A queue of connection events with a descriptor to wait on. */
struct siw_evq;
/* The link between one user's connections on one device and the event queue that they report to. */
struct siw_reporter;
/* A listener, or one end of a connection in start-up or in use. */
struct siw_conn;
/* A query that arrived at a UDP port (connect_sidr.h). */
struct siw_sidr_request;

/* cffi: begin */
enum siw_conn_kind {
	/* a Request arrived at a listener: conn is a new object that stands for the peer's
	 * connection, params holds the Request */
	SIW_CONN_REQUEST = 1,
	/* the peer accepted: params holds its Reply; the user calls siw_connect_attach_qp() next */
	SIW_CONN_REPLY,
	SIW_CONN_REJECTED,    /* the peer's Reply has R=1 */
	SIW_CONN_FAILED,      /* start-up failed; status gives the reason */
	SIW_CONN_ESTABLISHED, /* the attached QP may send */
	/* the attached QP's stream has ended; status and err give the reason */
	SIW_CONN_DISCONNECTED,
	SIW_CONN_NOTIFIED, /* queued by siw_evq_add_notification(), with the caller's number */
	/*
	 * UD (connect_sidr.h): a query arrived: sidr_request is new, params holds its private data
	 */
	SIW_CONN_ASKED,
	/* UD: the peer answered this end's query: qpn, qkey, addr; params holds private data */
	SIW_CONN_ANSWERED,
};
/* cffi: end */

struct siw_conn_event {
	int kind; /* enum siw_conn_kind */
	int status;
	int number; /* notification: its number; refused UD query: enum siw_sidr_status */
	struct siw_sidr_request *sidr_request;
	/* called when the event of the query is read; lock of lane 0 held */
	void (*on_taken)(struct siw_sidr_request *asked);
	uint32_t qpn, qkey;
	struct siw_addr addr; /* address, without port, at which the queue pair qpn receives */
	struct siw_conn *conn;
	/* listener at which the Request arrived; only in a REQUEST event */
	struct siw_conn *listener;
	struct siw_context *ctx; /* device of the connection conn */
	/* user_data of conn's reporter; in a REQUEST, of listener's reporter */
	void *user_data;
	struct siw_wire_err err;
	struct siw_mpa_params params;
};

/* Opens an event queue. context NULL: the queue accepts events of connections on any device. */
int siw_evq_open(struct siw_context *context, struct siw_evq **out);
/*
 * Closes an event queue, whose reporters must all have been closed. A late siw_evq_wait() may still
 * use the queue until it is freed.
 */
void siw_evq_close(struct siw_evq *evq);
void siw_evq_free(struct siw_evq *evq);
int siw_evq_fd(struct siw_evq *evq);
/*
 * Waits until there is an event, as siw_get_async_event() does, but does not remove the event from
 * the queue. A queue without a device leaves progress to the devices' threads.
 */
int siw_evq_wait(struct siw_evq *evq, int timeout_ms);
/*
 * Removes and returns the oldest event of the queue: 1; 0: there is no event, or the oldest event
 * has been dropped meanwhile. Waits for a progress round of lane 0 only if the event is a REQUEST
 * or ASKED; the other events may be read before the round that raised them has ended. No reporter
 * of the queue may be closed or moved at the same time.
 */
int siw_evq_pop_event(struct siw_evq *evq, struct siw_conn_event *event);
/* Queues an event of kind SIW_CONN_NOTIFIED with a number. Returns 0 or -ENOMEM. */
int siw_evq_add_notification(struct siw_evq *evq, int number, int status, void *user_data);
/* Drops the events of the queue that have this user_data. */
void siw_evq_drop_events_with_user_data(struct siw_evq *evq, const void *user_data);

/*
 * Opens a reporter: connections of user_data on that device report to the queue evq. 0 or -ENOMEM.
 */
int siw_reporter_open(struct siw_context *context, struct siw_evq *evq, void *user_data,
		      struct siw_reporter **out);
/*
 * Queues an event with the reporter's device and user_data. Returns 0 or -ENOMEM. Called with the
 * lock of the lane of the event's object held, so that the object cannot end before the event is
 * queued.
 */
int siw_reporter_queue_event(struct siw_reporter *reporter, const struct siw_conn_event *event);
/*
 * Drops the event of a query that ends before its event was read. Called with the lock of lane 0
 * held.
 */
void siw_reporter_drop_sidr_events(struct siw_reporter *reporter,
				   const struct siw_sidr_request *asked);
/* Closes a reporter, whose connections must all have been destroyed. */
void siw_reporter_close(struct siw_reporter *reporter);
/*
 * Moves the events of user_data to another queue, and makes reporter, unless it is NULL, report to
 * that queue.
 */
void siw_evq_move_events_with_user_data(struct siw_evq *from, struct siw_evq *to,
					const void *user_data, struct siw_reporter *reporter);
/* Assigns the connection of a REQUEST event to a reporter. */
void siw_conn_set_reporter(struct siw_conn *conn, struct siw_reporter *reporter);

/*
 * An address that is reserved for a listener or a connection by a socket that is bound and does not
 * listen.
 */
struct siw_reserved_addr {
	int fd;		      /* -1: none */
	struct siw_addr addr; /* the reserved address, including the port */
};
/*
 * Reserves an address of TCP or UDP. Port 0: any free port. An IPv6 wildcard address also reserves
 * the port for IPv4, unless v6_only is set. 0 or -errno.
 */
int siw_connect_reserve_addr(struct siw_reserved_addr *place, const struct siw_addr *addr, bool udp,
			     bool v6_only);
void siw_connect_release_addr(struct siw_reserved_addr *place);

/*
 * Listens at addr, or, if its family is 0, at every address of the device on one port; *out then
 * represents all of these listeners.
 */
int siw_connect_listen(struct siw_reporter *reporter, const struct siw_addr *addr, int backlog,
		       struct siw_conn **out);
/*
 * refused_ms: for this long, a connect that is refused because nothing listens at dest is retried.
 */
int siw_connect_with_retries(struct siw_reporter *reporter, const struct siw_addr *dest,
			     const struct siw_addr *source, const struct siw_mpa_params *params,
			     int timeout_ms, int refused_ms, struct siw_conn **out);
/* Sends the responder's Reply. */
int siw_connect_reply(struct siw_conn *conn, const struct siw_mpa_params *params);
/*
 * Sets the IP type of service, 0 to 255, of everything that the connection sends, before and after
 * a QP owns the stream.
 */
void siw_conn_set_tos(struct siw_conn *conn, int tos);
/*
 * Returns whether CRCs are in use. For a connection with an attached QP, the result is also valid
 * after the end of the connection.
 */
int siw_conn_uses_crc(struct siw_conn *conn);
int siw_conn_addrs(struct siw_conn *conn, struct siw_addr *local, struct siw_addr *peer);

/*
 * Transfers the started stream to the QP that hold refers to: INIT -> RTR -> RTS. An ESTABLISHED
 * event follows. The connection moves to the lane of the QP, so no lock of a lane may be held.
 * Returns 0 or -errno; after an error the caller ends the connection.
 */
int siw_connect_attach_qp(struct siw_conn *conn, const struct siw_qp_hold *hold,
			  const struct siw_rc_start *start);
/*
 * Called instead of siw_connect_attach_qp: sends a Terminate with the error, if possible, and
 * closes the connection.
 */
void siw_connect_refuse_with_terminate(struct siw_conn *conn, const struct siw_wire_err *err);
/*
 * Moves the attached QP to ERR; completed requests still reach the peer. -ENOTCONN: no QP is
 * attached.
 */
int siw_connect_disconnect(struct siw_conn *conn);
/* Ends the connection in any state and drops its events. */
void siw_conn_destroy(struct siw_conn *conn);

/*
 * Makes the RC QP connect by GID and QPN, without a connection manager: 0, -EADDRINUSE (no port is
 * free), -EADDRNOTAVAIL, -EMFILE, -ENOMEM or another -errno. The lock of the QP's lane is held.
 */
int siw_pairing_create_for_qp(struct siw_rc_qp *rc);

#endif
