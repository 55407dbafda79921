/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* qp/qp_conn.h - a connection and its event queue; only for qp_conn.c and qp_conn_events.c. */
#ifndef SIW_QP_CONN_H
#define SIW_QP_CONN_H

#include "mpa/mpa.h"
#include "qp/qp_admission.h"
#include "qp/qp_rc.h"

enum siw_conn_stage {
	LISTENING,
	STARTING,  /* MPA start-up frames are exchanged */
	REQUESTED, /* responder: a Request came; the user accepts or rejects it */
	STARTED,   /* FPDUs may flow; siw_qp_attach is to be called */
	ATTACHED,  /* a QP owns the stream */
	OVER,
};

/*
 * Who hears of connections: a queue of events for cm, or the queue pairs that connect by QPN.
 * progress held.
 */
struct siw_conn_user {
	struct siw_context *ctx;
	/*
	 * Something happened to conn: as struct siw_qp_conn_event has it. Not 0: a REQUEST has no
	 * taker, and conn is to be freed; any other result counts for nothing.
	 */
	int (*report)(struct siw_qp_conn *conn, struct siw_qp_conn *listener, int kind, int status,
		      const struct siw_mpa_params *params);
	/* conn is being freed. */
	void (*forget)(struct siw_qp_conn *conn);
	/* Whether this end waits for connections from there: its share does not bound them. */
	bool (*expects)(const struct siw_qp_conn *listener, const struct siw_addr *peer);
};

struct siw_qp_evq {
	struct siw_context *ctx; /* NULL: of no device */
	siw_lock_t lock;
	struct siw_link events; /* list of struct event_node; under lock */
	int fd;
	bool fd_set; /* under lock */
};

struct siw_qp_reporter {
	struct siw_conn_user user; /* first */
	struct siw_qp_evq *evq;	   /* progress to write */
	void *user_data;
};

/* What it takes to connect once more. */
struct siw_qp_again {
	struct siw_addr dest, source; /* source: family 0 if none was given */
	struct siw_mpa_params params;
	uint64_t until_ns, reset_until_ns;
	uint32_t wait_us; /* until the next try */
	int timeout_ms, tos;
};

struct siw_qp_conn {
	struct siw_io_handler handler; /* first */
	const struct siw_conn_user *user;
	struct siw_qp_conn *listener; /* NULL once the user has taken the request */
	struct siw_link of_listener;  /* link in its listener's children */
	/* its entry in the listener's admission, and the count it is in */
	uint32_t source;
	enum siw_admission_place place;
	struct siw_link children; /* for a listener, as is admission */
	struct siw_admission *admission;
	enum siw_conn_stage stage;
	struct siw_llp_sock *lsock;
	struct siw_qp_conn *also;   /* the listener at the device's next address, or NULL */
	struct siw_mpa_stream *mpa; /* NULL once a QP owns the stream */
	struct siw_rc *rc;	    /* the QP that owns the stream */
	void *user_data;
	struct siw_qp_again *again; /* NULL: if nobody listens there, it fails at once */
	bool initiator;
	bool established;
	bool crc; /* of a stream that a QP owns or owned */
	uint64_t deadline_ns;
	uint64_t began_ns; /* responder: when it was accepted */
	struct siw_timed timed;
	int cause; /* why it ended, -errno */
	struct siw_wire_err err;
};

/* ---- qp_conn.c; progress held, as for all below ---------------------------------------------- */
/* As siw_qp_listen and siw_qp_connect. dest NULL: source connects to itself. */
int siw_qp_conn_listen(const struct siw_conn_user *user, const struct siw_addr *addr, int backlog,
		       void *user_data, struct siw_qp_conn **out);
int siw_qp_conn_start(const struct siw_conn_user *user, const struct siw_addr *dest,
		      const struct siw_addr *source, const struct siw_mpa_params *params,
		      int timeout_ms, void *user_data, struct siw_qp_conn **out);
int siw_qp_conn_reply(struct siw_qp_conn *conn, const struct siw_mpa_params *params);
/* The started stream becomes the queue pair's: 0 or -ENOMEM. */
int siw_qp_conn_attach(struct siw_qp_conn *conn, struct siw_rc *rc, const struct siw_qp_attach *at);
/* A request that is thought over is given up after so long. */
void siw_qp_conn_hold(struct siw_qp_conn *conn, int timeout_ms);
/*
 * Frees a connection that has no queue pair, or a listener and what it has pending, and its also.
 */
void siw_qp_conn_free(struct siw_qp_conn *conn);

/* ---- qp_again.c ------------------------------------------------------------------------------ */
/* The connect, which was just begun, is tried again while it is refused: 0 or -ENOMEM. */
int siw_qp_again_wanted(struct siw_qp_conn *conn, const struct siw_addr *dest,
			const struct siw_addr *source, const struct siw_mpa_params *params,
			int timeout_ms, int refused_ms);
/* It failed: whether it is tried again later. */
bool siw_qp_again_later(struct siw_qp_conn *conn, int status);
/* Its time has come: 0, and its start-up's clock is to be set; or the -errno with which it fails. */
int siw_qp_again_now(struct siw_qp_conn *conn);

/* ---- qp_conn_events.c ------------------------------------------------------------------------ */
/* Removes a connection from its listener: the user took the request, or the connection ended. */
void siw_qp_conn_hand_over(struct siw_qp_conn *conn);
/* Counts the connection there in its listener's admission. */
void siw_qp_conn_place(struct siw_qp_conn *conn, enum siw_admission_place place);
#endif
