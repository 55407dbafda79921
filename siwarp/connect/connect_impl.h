/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * connect/connect_impl.h - a connection and its event queue; private to this folder.
 */
#ifndef SIW_CONNECT_IMPL_H
#define SIW_CONNECT_IMPL_H

#include "connect/connect.h"
#include "connect/connect_admission.h"
#include "mpa/mpa.h"
#include "qp/rc/qp_rc.h"

enum siw_conn_stage {
	LISTENING,
	STARTING,  /* MPA start-up frames are exchanged */
	REQUESTED, /* responder: a Request has arrived; the user accepts or rejects it */
	/*
	 * start-up is complete and FPDUs may be sent; the user calls siw_connect_attach_qp() next
	 */
	STARTED,
	ATTACHED, /* a QP owns the stream */
	OVER,
};

/*
 * The receiver of connection events: an event queue for cm, or the queue pairs that connect by QPN.
 * Its functions are called with the lock of the connection's lane held.
 */
struct siw_conn_user {
	struct siw_context *ctx;
	/*
	 * Reports an event of conn; parameters as in struct siw_conn_event. For a REQUEST, a result
	 * other than 0 means that no user handles the Request and conn is to be freed; other
	 * results are ignored.
	 */
	int (*report)(struct siw_conn *conn, struct siw_conn *listener, int kind, int status,
		      const struct siw_mpa_params *params);
	/* Called when the connection conn is being freed. */
	void (*forget)(struct siw_conn *conn);
	/*
	 * Returns whether this end expects connections from peer, which are then not limited by the
	 * share of pending connections that a source may use.
	 */
	bool (*expects)(const struct siw_conn *listener, const struct siw_addr *peer);
};

struct siw_evq {
	struct siw_context *ctx; /* NULL: the queue accepts events of connections on any device */
	siw_lock_t lock;
	struct siw_link events; /* list of struct event_node; protected by lock */
	int fd;
	bool fd_set; /* the descriptor fd is readable; protected by lock */
};

struct siw_reporter {
	struct siw_conn_user user; /* must be the first member of the struct */
	void *user_data;
	/*
	 * Held while an event is added to evq, so that no event is added to a queue after the
	 * events of user_data were moved from it. The lock of the queue is taken with it held.
	 */
	siw_lock_t lock;
	struct siw_evq *evq; /* queue of the reported events; protected by lock */
};

/* The parameters of a connect that is retried. */
struct siw_conn_retry {
	struct siw_addr dest, source; /* source: family 0 if the user specified none */
	struct siw_mpa_params params;
	uint64_t until_ns, reset_until_ns;
	uint32_t wait_us; /* wait before the next attempt */
	int timeout_ms, tos;
};

struct siw_conn {
	struct siw_io_handler handler; /* must be the first member of the struct */
	const struct siw_conn_user *user;
	/*
	 * The lane of the connection's stream, timer and queue pair, whose lock protects the
	 * struct. A listener and its pending connections are in one lane: lane 0, or the lane of
	 * the queue pairs that connect by QPN. Written with the locks of the former and of the new
	 * lane held.
	 */
	struct siw_lane *_Atomic lane;
	struct siw_conn *listener;   /* NULL after the user has read the event of the Request */
	struct siw_link of_listener; /* link in the list `children` of the connection's listener */
	/*
	 * index of the source in the listener's admission table, and the count that includes this
	 * connection
	 */
	uint32_t source;
	enum siw_admission_place place;
	/* Only in a listener: the list of its connections, and what limits their number. */
	struct siw_link children;
	struct siw_admission *admission;
	enum siw_conn_stage stage;
	struct siw_llp_sock *lsock;
	struct siw_conn *next_addr; /* the listener at the device's next address, or NULL */
	/*
	 * in the first of a set of listeners at every address of the device: the set; otherwise
	 * NULL
	 */
	struct siw_conn_listeners *set;
	struct siw_mpa_stream *mpa; /* NULL once a QP owns the stream */
	struct siw_rc_qp *rc;	    /* the QP that owns the stream */
	void *user_data;
	struct siw_conn_retry *retry; /* NULL: the connect is not retried */
	bool initiator;
	bool established;
	bool crc; /* CRCs are in use on the stream that a QP owns or owned */
	uint64_t deadline_ns;
	uint64_t began_ns; /* responder: time at which the connection was accepted */
	struct siw_timed timed;
	int cause; /* reason why the connection ended, -errno */
	struct siw_wire_err err;
};

/* Returns the lane of the connection. The lane's lock is held, except in siw_conn_lock(). */
static inline struct siw_lane *siw_conn_lane(const struct siw_conn *conn)
{
	/*
	 * Relaxed order suffices, because the locks order the accesses: a value that was read
	 * without a lock is read again with the lock held.
	 */
	return atomic_load_explicit(&conn->lane, memory_order_relaxed);
}

/*
 * Locks the lane of a connection, and returns the lane, which the connection keeps until the lane
 * is unlocked. The connection must not be destroyed at the same time.
 */
static inline struct siw_lane *siw_conn_lock(const struct siw_conn *conn)
{
	for (;;) {
		struct siw_lane *lane = siw_conn_lane(conn);

		siw_lock(&lane->lock);
		if (siw_conn_lane(conn) == lane)
			return lane;
		siw_unlock(&lane->lock);
	}
}

/* ---- connect.c; the lock of the connection's lane held, as for all below --------------------- */

/*
 * siw_conn_listen() and siw_conn_start_connecting() do the same as siw_connect_listen() and
 * siw_connect_with_retries(), but in this lane, and report to user. dest NULL: connects source to
 * itself.
 */
int siw_conn_listen(const struct siw_conn_user *user, struct siw_lane *lane,
		    const struct siw_addr *addr, int backlog, void *user_data,
		    struct siw_conn **out);
int siw_conn_start_connecting(const struct siw_conn_user *user, struct siw_lane *lane,
			      const struct siw_addr *dest, const struct siw_addr *source,
			      const struct siw_mpa_params *params, int timeout_ms, void *user_data,
			      struct siw_conn **out);
int siw_conn_reply(struct siw_conn *conn, const struct siw_mpa_params *params);
/*
 * Transfers the started stream to the queue pair, which is in the connection's lane. Returns 0 or
 * -ENOMEM.
 */
int siw_conn_attach_qp(struct siw_conn *conn, struct siw_rc_qp *rc,
		       const struct siw_rc_start *start);
/* Limits how long a Request may wait for the user's answer. */
void siw_conn_start_user_timer(struct siw_conn *conn, int timeout_ms);
/*
 * Frees a connection that has no queue pair, or a listener with its pending connections and with
 * the listeners chained by next_addr.
 */
void siw_conn_free(struct siw_conn *conn);

/* ---- connect_events.c ------------------------------------------------------------------------ */
/*
 * Removes a connection from its listener, after the user read the event of the Request or the
 * connection ended.
 */
void siw_conn_leave_listener(struct siw_conn *conn);
/* Counts the connection in another stage of its listener's admission: start-up, or Request. */
void siw_conn_set_admission_stage(struct siw_conn *conn, enum siw_admission_place place);
#endif
