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

struct siw_qp_evq {
	struct siw_context *ctx;
	siw_lock_t lock;
	struct siw_link events; /* list of struct event_node; under lock */
	int fd;
	bool fd_set; /* under lock */
};

struct siw_qp_conn {
	struct siw_io_handler handler; /* first */
	struct siw_qp_evq *evq;
	struct siw_qp_conn *listener; /* NULL once the user has taken the request */
	struct siw_link of_listener;  /* link in its listener's children */
	/* its entry in the listener's admission, and the count it is in */
	uint32_t source;
	enum siw_admission_place place;
	struct siw_link children; /* for a listener, as is admission */
	struct siw_admission *admission;
	enum siw_conn_stage stage;
	struct siw_llp_sock *lsock;
	struct siw_mpa_stream *mpa; /* NULL once a QP owns the stream */
	struct siw_rc *rc;	    /* the QP that owns the stream */
	void *user_data;
	bool initiator;
	bool established;
	bool crc; /* of a stream that a QP owns or owned */
	uint64_t deadline_ns;
	struct siw_timed timed;
	int cause; /* why it ended, -errno */
	struct siw_wire_err err;
};

/* Queues an event: 0 or -ENOMEM. progress held, as for the two below. */
int siw_qp_evq_raise(struct siw_qp_conn *conn, struct siw_qp_conn *listener, int kind, int status,
		     const struct siw_mpa_params *params);
/* Removes a connection from its listener: the user took the request, or the connection ended. */
void siw_qp_conn_hand_over(struct siw_qp_conn *conn);
/* Counts the connection there in its listener's admission. */
void siw_qp_conn_place(struct siw_qp_conn *conn, enum siw_admission_place place);
/* Removes all events of the connection. */
void siw_qp_evq_drop(struct siw_qp_conn *conn);

#endif
