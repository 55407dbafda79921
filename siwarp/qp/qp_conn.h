/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* qp/qp_conn.h - a connection and its event queue, for qp_conn.c and qp_conn_events.c alone. */
#ifndef SIW_VERBS_CONN_H
#define SIW_VERBS_CONN_H

#include "mpa/mpa.h"
#include "qp/qp_admission.h"
#include "qp/qp_rc.h"

enum siw_conn_stage {
	LISTENING,
	STARTING,  /* frames go back and forth */
	REQUESTED, /* responder: the user decides */
	STARTED,   /* FPDUs may flow: attach is due */
	ATTACHED,  /* a QP has the stream */
	OVER,
};

struct siw_qp_evq {
	struct siw_context *ctx;
	siw_lock_t lock;
	struct siw_link events; /* of event_node: lock */
	int fd;
	bool fd_set; /* lock */
};

struct siw_qp_conn {
	struct siw_io_handler handler; /* first */
	struct siw_qp_evq *evq;
	struct siw_qp_conn *listener; /* while the listener keeps it for the user */
	struct siw_link of_listener;  /* member of children, or free */
	uint32_t source;	      /* in the listener's admission, where it is counted as: */
	enum siw_admission_place place;
	struct siw_link children; /* of a listener, as the admission */
	struct siw_admission *admission;
	enum siw_conn_stage stage;
	struct siw_llp_sock *lsock;
	struct siw_mpa_stream *mpa; /* until a QP has it */
	struct siw_rc *rc;	    /* that has the stream */
	void *user_data;
	bool initiator;
	bool established;
	bool crc; /* of the stream that a QP has or had */
	uint64_t deadline_ns;
	struct siw_timed timed;
	int cause; /* why it ended */
	struct siw_wire_err err;
};

/* Queues an event: 0 or -ENOMEM. progress held, as for the two below. */
int siw_qp_evq_raise(struct siw_qp_conn *conn, struct siw_qp_conn *listener, int kind, int status,
		     const struct siw_mpa_params *params);
/* The listener lets go of a connection: the user took its request, or it is over. */
void siw_qp_conn_hand_over(struct siw_qp_conn *conn);
/* Where it counts with its listener from now on. */
void siw_qp_conn_place(struct siw_qp_conn *conn, enum siw_admission_place place);
/* Its events that nobody took are gone. */
void siw_qp_evq_drop(struct siw_qp_conn *conn);

#endif
