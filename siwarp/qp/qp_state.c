/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include <errno.h>

#include <siwarp/siw.h>

#include "qp/qp_state.h"

#define STATES (SIW_QPS_ERR + 1)

/*
 * The attributes that each state transition accepts, as in the table of modifiers in the InfiniBand
 * specification.
 */
#define CUR    SIW_QP_CUR_STATE
#define QKEY   SIW_QP_QKEY
#define FD     SIW_QP_FD
#define NOTIFY SIW_QP_EN_SQD_ASYNC_NOTIFY
#define RATE   SIW_QP_RATE_LIMIT
#define ACCESS SIW_QP_ACCESS_FLAGS
/*
 * UC and RD have the peer's access rights and, unlike on InfiniBand, also a Q_Key, because their
 * datagrams carry a Q_Key.
 */
#define RIGHTS (QKEY | ACCESS)
/*
 * Attributes of the sending states. In siwarp, a rate limit applies to datagrams. RD has congestion
 * control instead.
 */
#define UD_RTS (QKEY | RATE)
#define UC_RTS (RIGHTS | RATE)
#define PATH   (SIW_QP_AV | SIW_QP_PATH_MTU | SIW_QP_DEST_QPN | SIW_QP_RQ_PSN)
/*
 * In siwarp, the connection manager moves an RC QP from RESET to RTS, so the Read depths to be
 * negotiated can already be set in RESET.
 */
#define DEPTHS (SIW_QP_MAX_QP_RD_ATOMIC | SIW_QP_MAX_DEST_RD_ATOMIC)
/*
 * In siwarp, rnr_retry may change whenever min_rnr_timer may change, since on RC both attributes
 * concern the receiving side.
 */
#define RNR    (SIW_QP_RNR_RETRY | SIW_QP_MIN_RNR_TIMER)
#define RC_SET (ACCESS | DEPTHS | RNR)
#define RD_SET (RIGHTS | RNR)
/* The ORD of an RC connection can be lowered in SQD. */
#define RC_SQD (ACCESS | RNR | SIW_QP_MAX_QP_RD_ATOMIC)
/*
 * The transition to RTS of an RC QP that connects by QPN also accepts the attributes for requests
 * of the QP.
 */
#define PSN    SIW_QP_SQ_PSN
#define RC_RTS (ACCESS | RNR | PSN | SIW_QP_MAX_QP_RD_ATOMIC | SIW_QP_TIMEOUT | SIW_QP_RETRY_CNT)

enum column { UD, UC, RD, RC, COLUMNS };

struct step {
	signed char next, action;
	/*
	 * The attributes that siw_modify_qp() may change, by QP type, plus bit STEP; 0: the QP type
	 * has no such transition.
	 */
	int attrs[COLUMNS];
};

#define STEP (1 << 29) /* a bit that no attribute mask contains */
#define GO(state, action, ud, uc, rd, rc)                                  \
	{                                                                  \
		SIW_QPS_##state, SIW_QPA_##action,                         \
		{                                                          \
			STEP | (ud), STEP | (uc), STEP | (rd), STEP | (rc) \
		}                                                          \
	}
/*
 * EACH: a transition of every QP type, without attributes. DATAGRAMS: a transition of all QP types
 * except RC, with attributes. CONNECTED: a transition of RC only, without attributes.
 */
#define EACH(state, action) GO(state, action, 0, 0, 0, 0)
#define DATAGRAMS(state, action, ud, uc, rd)                     \
	{                                                        \
		SIW_QPS_##state, SIW_QPA_##action,               \
		{                                                \
			STEP | (ud), STEP | (uc), STEP | (rd), 0 \
		}                                                \
	}
#define CONNECTED(state, action)                   \
	{                                          \
		SIW_QPS_##state, SIW_QPA_##action, \
		{                                  \
			0, 0, 0, STEP              \
		}                                  \
	}

/* clang-format off */
static const struct step steps[STATES][SIW_QPE_COUNT] = {
	/*              UD          UC                  RD                    RC */
	[SIW_QPS_RESET] = {
		[SIW_QPE_STAY] = GO(RESET, NONE,
			0,          0,                  0,                    RC_SET),
		[SIW_QPE_TO_RESET] = EACH(RESET, FORGET),
		[SIW_QPE_TO_INIT] = GO(INIT, BIND,
			QKEY | FD,  RIGHTS | FD,        RD_SET | FD | DEPTHS, RC_SET),
		[SIW_QPE_TO_ERR] = EACH(ERR, FLUSH),
	},
	[SIW_QPS_INIT] = {
		[SIW_QPE_STAY] = GO(INIT, NONE,
			QKEY,       RIGHTS,             RD_SET | DEPTHS,      RC_SET),
		[SIW_QPE_TO_RESET] = EACH(RESET, FORGET),
		[SIW_QPE_TO_INIT] = GO(INIT, BIND,
			QKEY | FD,  RIGHTS | FD,        RD_SET | FD | DEPTHS, RC_SET),
		[SIW_QPE_TO_RTR] = GO(RTR, RECEIVE,
			QKEY,       RIGHTS | PATH,      RD_SET,               RC_SET | PATH),
		[SIW_QPE_TO_ERR] = EACH(ERR, FLUSH),
		[SIW_QPE_ATTACHED] = CONNECTED(RTR, NONE),
		[SIW_QPE_FAILED] = EACH(ERR, FLUSH),
	},
	[SIW_QPS_RTR] = {
		[SIW_QPE_STAY] = EACH(RTR, NONE),
		[SIW_QPE_TO_RESET] = EACH(RESET, FORGET),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE,
			CUR | UD_RTS, CUR | UC_RTS | PSN, CUR | RD_SET,       CUR | RC_RTS),
		[SIW_QPE_TO_ERR] = EACH(ERR, FLUSH),
		[SIW_QPE_STARTED] = CONNECTED(RTS, NONE),
		[SIW_QPE_FAILED] = EACH(ERR, FLUSH),
	},
	[SIW_QPS_RTS] = {
		[SIW_QPE_STAY] = GO(RTS, NONE,
			CUR | UD_RTS, CUR | UC_RTS,     CUR | RD_SET,         CUR | ACCESS | RNR),
		[SIW_QPE_TO_RESET] = EACH(RESET, FORGET),
		[SIW_QPE_TO_RTS] = GO(RTS, NONE,
			CUR | UD_RTS, CUR | UC_RTS,     CUR | RD_SET,         CUR | ACCESS | RNR),
		[SIW_QPE_TO_SQD] = GO(SQD, DRAIN,
			NOTIFY,     NOTIFY,             NOTIFY,               NOTIFY),
		[SIW_QPE_TO_ERR] = EACH(ERR, FLUSH),
		[SIW_QPE_FAILED] = EACH(ERR, FLUSH),
		[SIW_QPE_SEND_FAILED] = DATAGRAMS(SQE, FLUSH_SENDS, 0, 0, 0),
	},
	[SIW_QPS_SQD] = {
		[SIW_QPE_STAY] = GO(SQD, NONE,
			UD_RTS,     UC_RTS,             RD_SET,               RC_SQD),
		[SIW_QPE_TO_RESET] = EACH(RESET, FORGET),
		[SIW_QPE_TO_RTS] = GO(RTS, RESUME,
			CUR | UD_RTS, CUR | UC_RTS,     CUR | RD_SET,         CUR | ACCESS | RNR),
		[SIW_QPE_TO_SQD] = GO(SQD, NONE,
			UD_RTS,     UC_RTS,             RD_SET,               RC_SQD),
		[SIW_QPE_TO_ERR] = EACH(ERR, FLUSH),
		[SIW_QPE_FAILED] = EACH(ERR, FLUSH),
		[SIW_QPE_SEND_FAILED] = DATAGRAMS(SQE, FLUSH_SENDS, 0, 0, 0),
	},
	[SIW_QPS_SQE] = {
		[SIW_QPE_STAY] = DATAGRAMS(SQE, NONE, 0, 0, 0),
		[SIW_QPE_TO_RESET] = DATAGRAMS(RESET, FORGET, 0, 0, 0),
		[SIW_QPE_TO_RTS] = DATAGRAMS(RTS, NONE,
			CUR | UD_RTS, CUR | UC_RTS,     CUR | RD_SET),
		[SIW_QPE_TO_ERR] = DATAGRAMS(ERR, FLUSH, 0, 0, 0),
		[SIW_QPE_FAILED] = DATAGRAMS(ERR, FLUSH, 0, 0, 0),
		[SIW_QPE_SEND_FAILED] = DATAGRAMS(SQE, NONE, 0, 0, 0),
	},
	[SIW_QPS_ERR] = {
		[SIW_QPE_STAY] = EACH(ERR, NONE),
		[SIW_QPE_TO_RESET] = EACH(RESET, FORGET),
		[SIW_QPE_TO_ERR] = EACH(ERR, NONE),
		[SIW_QPE_FAILED] = EACH(ERR, NONE),
	},
};
/* clang-format on */

static int state_table_column_of_qp_type(int type)
{
	switch (type) {
	case SIW_QPT_UD:
		return UD;
	case SIW_QPT_UC:
		return UC;
	case SIW_QPT_RD:
		return RD;
	case SIW_QPT_RC:
		return RC;
	default:
		return -EINVAL;
	}
}

/*
 * Returns the attributes of a state transition and sets *s to the transition, or returns -EINVAL if
 * there is no such transition.
 */
static int find_state_transition(int type, int state, int event, const struct step **s)
{
	int column = state_table_column_of_qp_type(type);

	if (column < 0 || state < 0 || state >= STATES || event < 0 || event >= SIW_QPE_COUNT)
		return -EINVAL;
	*s = &steps[state][event];
	return (*s)->attrs[column] ? (*s)->attrs[column] & ~STEP : -EINVAL;
}

int siw_qp_find_next_state(int type, int state, int event, int *action)
{
	const struct step *s;

	if (find_state_transition(type, state, event, &s) < 0)
		return -EINVAL;
	*action = s->action;
	return s->next;
}

int siw_qp_attrs_of_transition(int type, int state, int event)
{
	const struct step *s;

	return find_state_transition(type, state, event, &s);
}
