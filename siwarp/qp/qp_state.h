/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* qp/qp_state.h - the state table of queue pairs. */
#ifndef SIW_QP_STATE_H
#define SIW_QP_STATE_H

/* cffi: begin */

/* Events of a queue pair: calls of siw_modify_qp() (STAY, TO_*), or events of its traffic. */
enum siw_qp_event {
	SIW_QPE_STAY, /* attributes change, the state does not */
	SIW_QPE_TO_RESET,
	SIW_QPE_TO_INIT,
	SIW_QPE_TO_RTR,
	SIW_QPE_TO_RTS,
	SIW_QPE_TO_SQD,
	SIW_QPE_TO_ERR,
	SIW_QPE_ATTACHED,    /* RC: a started stream was handed to this QP */
	SIW_QPE_STARTED,     /* RC: RDMAP has started on the stream */
	SIW_QPE_FAILED,	     /* the stream ended, or an error must stop the QP */
	SIW_QPE_SEND_FAILED, /* UD, UC, RD: a send request failed because of a local error */
	SIW_QPE_COUNT
};

/* The action to carry out with a step. */
enum siw_qp_action {
	SIW_QPA_NONE,
	SIW_QPA_BIND,	 /* use the caller's socket, if one is given */
	SIW_QPA_RECEIVE, /* UD, UC, RD: receive from now on */
	/* begin no more requests; raise SQ_DRAINED when those begun are complete */
	SIW_QPA_DRAIN,
	SIW_QPA_RESUME,	     /* begin the requests posted meanwhile */
	SIW_QPA_FLUSH_SENDS, /* complete posted sends with WR_FLUSH_ERR */
	SIW_QPA_FLUSH,	     /* close the stream, complete everything with WR_FLUSH_ERR */
	SIW_QPA_FORGET,	     /* close the stream, drop everything without completions */
};

/*
 * The next state (enum siw_qp_state) and *action (enum siw_qp_action), or -EINVAL: the table has no
 * such step. type: enum siw_qp_type.
 */
int siw_qp_state_next(int type, int state, int event, int *action);
/*
 * The attributes that this step may change (set of enum siw_qp_attr_mask), or -EINVAL: no such
 * step.
 */
int siw_qp_state_attrs(int type, int state, int event);

/* cffi: end */

#endif
