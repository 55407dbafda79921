/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include <errno.h>

#include <siwarp/siw.h>

#include "verbs/verbs_state.h"

struct step {
	signed char next; /* state + 1, so that what is not written is no step */
	signed char action;
	int attrs; /* that siw_modify_qp may change on the way */
};

#define GO(state, action, attrs)                               \
	{                                                      \
		SIW_QPS_##state + 1, SIW_QPA_##action, (attrs) \
	}
#define STATES (SIW_QPS_ERR + 1)

/* Which attributes go with which step: as the InfiniBand specification's table of modifiers has it. */
#define CUR    SIW_QP_CUR_STATE
#define QKEY   SIW_QP_QKEY
#define NOTIFY SIW_QP_EN_SQD_ASYNC_NOTIFY
#define ACCESS SIW_QP_ACCESS_FLAGS
/* UC here: its datagrams carry a Q_Key, so it has one, besides what a peer may do. */
#define RIGHTS (QKEY | ACCESS)
#define PATH   (SIW_QP_AV | SIW_QP_PATH_MTU | SIW_QP_DEST_QPN | SIW_QP_RQ_PSN)
/* RC here: cm takes a QP from RESET to RTS, so what it shall agree on may be set before. */
#define DEPTHS (SIW_QP_MAX_QP_RD_ATOMIC | SIW_QP_MAX_DEST_RD_ATOMIC)
/* Both are of the receiving side here, and may change whenever min_rnr_timer may. */
#define RNR (SIW_QP_RNR_RETRY | SIW_QP_MIN_RNR_TIMER)

static const struct step ud_steps[STATES][SIW_QPE_COUNT] = {
	[SIW_QPS_RESET] = {
		[SIW_QPE_STAY] = GO(RESET, NONE, 0),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_INIT] = GO(INIT, BIND, QKEY | SIW_QP_FD),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
	},
	[SIW_QPS_INIT] = {
		[SIW_QPE_STAY] = GO(INIT, NONE, QKEY),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_INIT] = GO(INIT, BIND, QKEY | SIW_QP_FD),
		[SIW_QPE_TO_RTR] = GO(RTR, RECEIVE, QKEY),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
	},
	[SIW_QPS_RTR] = {
		[SIW_QPE_STAY] = GO(RTR, NONE, 0),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE, CUR | QKEY),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
	},
	[SIW_QPS_RTS] = {
		[SIW_QPE_STAY] = GO(RTS, NONE, CUR | QKEY),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE, CUR | QKEY),
		[SIW_QPE_TO_SQD] = GO(SQD, DRAIN, NOTIFY),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
		[SIW_QPE_SEND_FAILED] = GO(SQE, FLUSH_SENDS, 0),
	},
	[SIW_QPS_SQD] = {
		[SIW_QPE_STAY] = GO(SQD, NONE, QKEY),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_RTS] = GO(RTS, RESUME, CUR | QKEY),
		[SIW_QPE_TO_SQD] = GO(SQD, NONE, QKEY),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
		[SIW_QPE_SEND_FAILED] = GO(SQE, FLUSH_SENDS, 0),
	},
	[SIW_QPS_SQE] = {
		[SIW_QPE_STAY] = GO(SQE, NONE, 0),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE, CUR | QKEY),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
		[SIW_QPE_SEND_FAILED] = GO(SQE, NONE, 0),
	},
	[SIW_QPS_ERR] = {
		[SIW_QPE_STAY] = GO(ERR, NONE, 0),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_ERR] = GO(ERR, NONE, 0),
		[SIW_QPE_FAILED] = GO(ERR, NONE, 0),
	},
};

/* As UD; but one-sided requests have rights and depths, and SQD waits for what was begun. */
static const struct step rd_steps[STATES][SIW_QPE_COUNT] = {
	[SIW_QPS_RESET] = {
		[SIW_QPE_STAY] = GO(RESET, NONE, 0),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_INIT] = GO(INIT, BIND, QKEY | SIW_QP_FD | ACCESS | DEPTHS),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
	},
	[SIW_QPS_INIT] = {
		[SIW_QPE_STAY] = GO(INIT, NONE, QKEY | ACCESS | DEPTHS),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_INIT] = GO(INIT, BIND, QKEY | SIW_QP_FD | ACCESS | DEPTHS),
		[SIW_QPE_TO_RTR] = GO(RTR, RECEIVE, QKEY | ACCESS),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
	},
	[SIW_QPS_RTR] = {
		[SIW_QPE_STAY] = GO(RTR, NONE, 0),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE, CUR | QKEY | ACCESS),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
	},
	[SIW_QPS_RTS] = {
		[SIW_QPE_STAY] = GO(RTS, NONE, CUR | QKEY | ACCESS),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE, CUR | QKEY | ACCESS),
		[SIW_QPE_TO_SQD] = GO(SQD, DRAIN, NOTIFY),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
		[SIW_QPE_SEND_FAILED] = GO(SQE, FLUSH_SENDS, 0),
	},
	[SIW_QPS_SQD] = {
		[SIW_QPE_STAY] = GO(SQD, NONE, QKEY | ACCESS),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_RTS] = GO(RTS, RESUME, CUR | QKEY | ACCESS),
		[SIW_QPE_TO_SQD] = GO(SQD, NONE, QKEY | ACCESS),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
		[SIW_QPE_SEND_FAILED] = GO(SQE, FLUSH_SENDS, 0),
	},
	[SIW_QPS_SQE] = {
		[SIW_QPE_STAY] = GO(SQE, NONE, 0),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE, CUR | QKEY | ACCESS),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
		[SIW_QPE_SEND_FAILED] = GO(SQE, NONE, 0),
	},
	[SIW_QPS_ERR] = {
		[SIW_QPE_STAY] = GO(ERR, NONE, 0),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_ERR] = GO(ERR, NONE, 0),
		[SIW_QPE_FAILED] = GO(ERR, NONE, 0),
	},
};

static const struct step rc_steps[STATES][SIW_QPE_COUNT] = {
	[SIW_QPS_RESET] = {
		[SIW_QPE_STAY] = GO(RESET, NONE, ACCESS | DEPTHS | RNR),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_INIT] = GO(INIT, NONE, ACCESS | DEPTHS | RNR),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
	},
	[SIW_QPS_INIT] = {
		[SIW_QPE_STAY] = GO(INIT, NONE, ACCESS | DEPTHS | RNR),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_INIT] = GO(INIT, NONE, ACCESS | DEPTHS | RNR),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_ATTACHED] = GO(RTR, NONE, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
	},
	[SIW_QPS_RTR] = {
		[SIW_QPE_STAY] = GO(RTR, NONE, 0),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_STARTED] = GO(RTS, NONE, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
	},
	[SIW_QPS_RTS] = {
		[SIW_QPE_STAY] = GO(RTS, NONE, CUR | ACCESS | RNR),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE, CUR | ACCESS | RNR),
		[SIW_QPE_TO_SQD] = GO(SQD, DRAIN, NOTIFY),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
	},
	[SIW_QPS_SQD] = {
		[SIW_QPE_STAY] = GO(SQD, NONE, ACCESS | RNR | SIW_QP_MAX_QP_RD_ATOMIC),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_RTS] = GO(RTS, RESUME, CUR | ACCESS | RNR),
		[SIW_QPE_TO_SQD] = GO(SQD, NONE, ACCESS | RNR | SIW_QP_MAX_QP_RD_ATOMIC),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
	},
	[SIW_QPS_ERR] = {
		[SIW_QPE_STAY] = GO(ERR, NONE, 0),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_ERR] = GO(ERR, NONE, 0),
		[SIW_QPE_FAILED] = GO(ERR, NONE, 0),
	},
};

static const struct step uc_steps[STATES][SIW_QPE_COUNT] = {
	[SIW_QPS_RESET] = {
		[SIW_QPE_STAY] = GO(RESET, NONE, 0),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_INIT] = GO(INIT, BIND, RIGHTS | SIW_QP_FD),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
	},
	[SIW_QPS_INIT] = {
		[SIW_QPE_STAY] = GO(INIT, NONE, RIGHTS),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_INIT] = GO(INIT, BIND, RIGHTS | SIW_QP_FD),
		[SIW_QPE_TO_RTR] = GO(RTR, RECEIVE, RIGHTS | PATH),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
	},
	[SIW_QPS_RTR] = {
		[SIW_QPE_STAY] = GO(RTR, NONE, 0),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE, CUR | RIGHTS | SIW_QP_SQ_PSN),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
	},
	[SIW_QPS_RTS] = {
		[SIW_QPE_STAY] = GO(RTS, NONE, CUR | RIGHTS),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE, CUR | RIGHTS),
		[SIW_QPE_TO_SQD] = GO(SQD, DRAIN, NOTIFY),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
		[SIW_QPE_SEND_FAILED] = GO(SQE, FLUSH_SENDS, 0),
	},
	[SIW_QPS_SQD] = {
		[SIW_QPE_STAY] = GO(SQD, NONE, RIGHTS),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_RTS] = GO(RTS, RESUME, CUR | RIGHTS),
		[SIW_QPE_TO_SQD] = GO(SQD, NONE, RIGHTS),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
		[SIW_QPE_SEND_FAILED] = GO(SQE, FLUSH_SENDS, 0),
	},
	[SIW_QPS_SQE] = {
		[SIW_QPE_STAY] = GO(SQE, NONE, 0),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE, CUR | RIGHTS),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH, 0),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH, 0),
		[SIW_QPE_SEND_FAILED] = GO(SQE, NONE, 0),
	},
	[SIW_QPS_ERR] = {
		[SIW_QPE_STAY] = GO(ERR, NONE, 0),
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET, 0),
		[SIW_QPE_TO_ERR] = GO(ERR, NONE, 0),
		[SIW_QPE_FAILED] = GO(ERR, NONE, 0),
	},
};

static const struct step *step_of(int type, int state, int event)
{
	const struct step *s;

	if (state < 0 || state >= STATES || event < 0 || event >= SIW_QPE_COUNT)
		return NULL;
	if (type == SIW_QPT_UD)
		s = &ud_steps[state][event];
	else if (type == SIW_QPT_UC)
		s = &uc_steps[state][event];
	else if (type == SIW_QPT_RC)
		s = &rc_steps[state][event];
	else if (type == SIW_QPT_RD)
		s = &rd_steps[state][event];
	else
		return NULL;
	return s->next ? s : NULL;
}

int siw_verbs_state_next(int type, int state, int event, int *action)
{
	const struct step *s = step_of(type, state, event);

	if (!s)
		return -EINVAL;
	*action = s->action;
	return s->next - 1;
}

int siw_verbs_state_attrs(int type, int state, int event)
{
	const struct step *s = step_of(type, state, event);

	return s ? s->attrs : -EINVAL;
}
