/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* verbs/verbs_conn.h - a connection and its event queue, for verbs_conn.c and verbs_evq.c alone. */
#ifndef SIW_VERBS_CONN_H
#define SIW_VERBS_CONN_H

#include "verbs/verbs_gate.h"
#include "verbs/verbs_impl.h"

enum siw_conn_stage {
	LISTENING,
	STARTING,  /* frames go back and forth */
	REQUESTED, /* responder: the user decides */
	STARTED,   /* FPDUs may flow: attach is due */
	ATTACHED,  /* a QP has the stream */
	OVER,
};

struct siw_verbs_evq {
	struct siw_context *ctx;
	siw_lock_t lock;
	struct siw_link events; /* of event_node: lock */
	int fd;
	bool fd_set; /* lock */
};

struct siw_verbs_conn {
	struct siw_pollee pollee; /* first */
	struct siw_verbs_evq *evq;
	struct siw_verbs_conn *listener; /* while the listener keeps it for the user */
	struct siw_link of_listener;	 /* member of children, or free */
	uint32_t source;		 /* in the listener's gate, where it is counted as: */
	enum siw_gate_place place;
	struct siw_link children; /* of a listener, as the gate */
	struct siw_gate *gate;
	enum siw_conn_stage stage;
	struct siw_rdmap_listener *lsock;
	struct siw_rdmap_stream *stream; /* until a QP has it */
	struct siw_qp *qp;
	void *cookie;
	bool initiator;
	bool established;
	bool crc; /* of the stream that a QP has or had */
	bool has_cause;
	uint64_t deadline_ns;
	struct siw_timed timed;
	int cause; /* why it ended */
	struct siw_wire_err err;
};

/* Queues an event: 0 or -ENOMEM. progress held, as for the two below. */
int siw_verbs_evq_raise(struct siw_verbs_conn *conn, struct siw_verbs_conn *listener, int kind,
			int status, const struct siw_mpa_params *params);
/* The listener lets go of a connection: the user took its request, or it is over. */
void siw_verbs_conn_hand_over(struct siw_verbs_conn *conn);
/* Where it counts with its listener from now on. */
void siw_verbs_conn_place(struct siw_verbs_conn *conn, enum siw_gate_place place);
/* Its events that nobody took are gone. */
void siw_verbs_evq_drop(struct siw_verbs_conn *conn);

#endif
