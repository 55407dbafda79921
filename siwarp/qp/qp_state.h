/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* qp/qp_state.h - the state table of queue pairs. */
#ifndef SIW_QP_STATE_H
#define SIW_QP_STATE_H

/* cffi: begin */

/* Events of a queue pair: calls of siw_modify_qp() (STAY, TO_*), or events of its traffic. */
enum siw_qp_event {
	SIW_QPE_STAY, /* attributes change, but the state stays */
	SIW_QPE_TO_RESET,
	SIW_QPE_TO_INIT,
	SIW_QPE_TO_RTR,
	SIW_QPE_TO_RTS,
	SIW_QPE_TO_SQD,
	SIW_QPE_TO_ERR,
	SIW_QPE_ATTACHED,    /* RC: the QP was given a started stream */
	SIW_QPE_STARTED,     /* RC: RDMAP has started on the stream */
	SIW_QPE_FAILED,	     /* the stream ended, or an error must stop the QP */
	SIW_QPE_SEND_FAILED, /* UD, UC, RD: a send request failed because of a local error */
	SIW_QPE_COUNT
};

/* The action to carry out with a state transition. */
enum siw_qp_action {
	SIW_QPA_NONE,
	SIW_QPA_BIND,	 /* use the caller's socket, if one is given */
	SIW_QPA_RECEIVE, /* UD, UC, RD: start to receive */
	/* begin no more requests; raise SQ_DRAINED when the begun requests are complete */
	SIW_QPA_DRAIN,
	SIW_QPA_RESUME,	     /* begin the requests posted in SQD */
	SIW_QPA_FLUSH_SENDS, /* complete posted sends with WR_FLUSH_ERR */
	SIW_QPA_FLUSH,	     /* close the stream, complete all requests with WR_FLUSH_ERR */
	SIW_QPA_FORGET,	     /* close the stream, drop all requests without completions */
};

/*
 * Returns the next state (enum siw_qp_state) and *action (enum siw_qp_action), or -EINVAL if the
 * state table has no such transition. type: enum siw_qp_type.
 */
int siw_qp_find_next_state(int type, int state, int event, int *action);
/*
 * Returns the attributes that a state transition may change (set of enum siw_qp_attr_mask), or
 * -EINVAL if there is no such transition.
 */
int siw_qp_attrs_of_transition(int type, int state, int event);

/* cffi: end */

#endif
