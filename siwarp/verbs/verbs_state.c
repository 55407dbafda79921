/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include <errno.h>

#include <siwarp/siw.h>

#include "verbs/verbs_state.h"

struct step {
	signed char next; /* state + 1, so that what is not written is no step */
	signed char action;
};

#define GO(state, action)                             \
	{                                             \
		SIW_QPS_##state + 1, SIW_QPA_##action \
	}
#define STATES (SIW_QPS_ERR + 1)

static const struct step ud_steps[STATES][SIW_QPE_COUNT] = {
	[SIW_QPS_RESET] = {
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET),
		[SIW_QPE_TO_INIT] = GO(INIT, BIND),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH),
	},
	[SIW_QPS_INIT] = {
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET),
		[SIW_QPE_TO_INIT] = GO(INIT, BIND),
		[SIW_QPE_TO_RTR] = GO(RTR, RECEIVE),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH),
	},
	[SIW_QPS_RTR] = {
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH),
	},
	[SIW_QPS_RTS] = {
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH),
	},
	[SIW_QPS_ERR] = {
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET),
		[SIW_QPE_TO_ERR] = GO(ERR, NONE),
		[SIW_QPE_FAILED] = GO(ERR, NONE),
	},
};

static const struct step rc_steps[STATES][SIW_QPE_COUNT] = {
	[SIW_QPS_RESET] = {
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET),
		[SIW_QPE_TO_INIT] = GO(INIT, NONE),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH),
	},
	[SIW_QPS_INIT] = {
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET),
		[SIW_QPE_TO_INIT] = GO(INIT, NONE),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH),
		[SIW_QPE_ATTACHED] = GO(RTR, NONE),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH),
	},
	[SIW_QPS_RTR] = {
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH),
		[SIW_QPE_STARTED] = GO(RTS, NONE),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH),
	},
	[SIW_QPS_RTS] = {
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE),
		[SIW_QPE_TO_ERR] = GO(ERR, FLUSH),
		[SIW_QPE_FAILED] = GO(ERR, FLUSH),
	},
	[SIW_QPS_ERR] = {
		[SIW_QPE_TO_RESET] = GO(RESET, FORGET),
		[SIW_QPE_TO_ERR] = GO(ERR, NONE),
		[SIW_QPE_FAILED] = GO(ERR, NONE),
	},
};

int siw_verbs_state_next(int type, int state, int event, int *action)
{
	const struct step *s;

	if (state < 0 || state >= STATES || event < 0 || event >= SIW_QPE_COUNT)
		return -EINVAL;
	if (type == SIW_QPT_UD)
		s = &ud_steps[state][event];
	else if (type == SIW_QPT_RC)
		s = &rc_steps[state][event];
	else
		return -EINVAL;
	if (!s->next)
		return -EINVAL;
	*action = s->action;
	return s->next - 1;
}
