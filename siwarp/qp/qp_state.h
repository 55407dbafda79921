/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* qp/qp_state.h - the states of a queue pair, as a table and nothing else. */
#ifndef SIW_VERBS_STATE_H
#define SIW_VERBS_STATE_H

/* cffi: begin */

/* What can happen to a QP: the user's siw_modify_qp (STAY, TO_*), or its traffic. */
enum siw_qp_event {
	SIW_QPE_STAY, /* attributes alone */
	SIW_QPE_TO_RESET,
	SIW_QPE_TO_INIT,
	SIW_QPE_TO_RTR,
	SIW_QPE_TO_RTS,
	SIW_QPE_TO_SQD,
	SIW_QPE_TO_ERR,
	SIW_QPE_ATTACHED,    /* RC: a started stream became this QP's */
	SIW_QPE_STARTED,     /* RC: RDMAP runs on it */
	SIW_QPE_FAILED,	     /* the stream is over, or an error must stop the QP */
	SIW_QPE_SEND_FAILED, /* UD: a send request that this end got wrong */
	SIW_QPE_COUNT
};

/* What must be done on the way. */
enum siw_qp_action {
	SIW_QPA_NONE,
	SIW_QPA_BIND,	     /* take the caller's socket, if one came */
	SIW_QPA_RECEIVE,     /* UD: messages are matched to receives from now on */
	SIW_QPA_DRAIN,	     /* begin no more requests, and report when those begun are complete */
	SIW_QPA_RESUME,	     /* go on with what was posted meanwhile */
	SIW_QPA_FLUSH_SENDS, /* UD: complete posted sends with WR_FLUSH_ERR */
	SIW_QPA_FLUSH,	     /* close the stream, complete everything with WR_FLUSH_ERR */
	SIW_QPA_FORGET,	     /* close the stream, drop everything without completions */
};

/*
 * The next state (enum siw_qp_state) and *action (enum siw_qp_action), or -EINVAL where the
 * table has no step. type: enum siw_qp_type.
 */
int siw_qp_state_next(int type, int state, int event, int *action);
/* The attributes that this step may change (enum siw_qp_attr_mask), or -EINVAL likewise. */
int siw_qp_state_attrs(int type, int state, int event);

/* cffi: end */

#endif
