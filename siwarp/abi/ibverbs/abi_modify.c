/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_modify.c - the attributes that ibv_modify_qp requires and accepts for each state
 * transition: the tables of ibv_modify_qp(3). Accepted attributes that the engine does not use are
 * stored for ibv_query_qp.
 */
#include <stdio.h>

#include "abi/ibverbs/abi.h"

#define STATES (IBV_QPS_ERR + 1)
#define TYPES  3 /* number of queue pair types: RC, UC, UD */

#define PORT	(IBV_QP_PKEY_INDEX | IBV_QP_PORT)
#define AV	(IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define ALT	(IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE)
#define ACCESS	IBV_QP_ACCESS_FLAGS
#define RNR	IBV_QP_MIN_RNR_TIMER
#define PSN	IBV_QP_SQ_PSN
#define CUR	IBV_QP_CUR_STATE
#define RATE	IBV_QP_RATE_LIMIT
#define SENDER	(IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)
#define DEST_RD IBV_QP_MAX_DEST_RD_ATOMIC
#define IDLE	(IBV_QP_PORT | IBV_QP_AV | IBV_QP_PKEY_INDEX | ALT | ACCESS)

struct step {
	bool exists;
	struct {
		int required, optional;
	} of[TYPES];
};

#define STEP(rc, rc_too, uc, uc_too, ud, ud_too)                \
	{                                                       \
		true,                                           \
		{                                               \
			{ (rc), (rc_too) }, { (uc), (uc_too) }, \
			{                                       \
				(ud), (ud_too)                  \
			}                                       \
		}                                               \
	}

/* clang-format off */
static const struct step steps[STATES][STATES] = {
	/*                        required, optional:   RC       UC                         UD */
	[IBV_QPS_RESET] = {
		[IBV_QPS_INIT] = STEP(PORT | ACCESS, 0,           PORT | ACCESS, 0,          PORT | IBV_QP_QKEY, 0),
	},
	[IBV_QPS_INIT] = {
		[IBV_QPS_INIT] = STEP(0, PORT | ACCESS,           0, PORT | ACCESS,          0, PORT | IBV_QP_QKEY),
		[IBV_QPS_RTR] = STEP(AV | DEST_RD | RNR, ALT | ACCESS | IBV_QP_PKEY_INDEX,
				     AV, ALT | ACCESS | IBV_QP_PKEY_INDEX,           0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
	},
	[IBV_QPS_RTR] = {
		[IBV_QPS_RTS] = STEP(SENDER | PSN, CUR | ALT | ACCESS | RNR,
				     PSN, CUR | ALT | ACCESS | RATE,                 PSN, CUR | IBV_QP_QKEY | RATE),
	},
	[IBV_QPS_RTS] = {
		[IBV_QPS_RTS] = STEP(0, CUR | ACCESS | ALT | RNR, 0, CUR | ACCESS | ALT | RATE, 0, CUR | IBV_QP_QKEY | RATE),
		[IBV_QPS_SQD] = STEP(0, IBV_QP_EN_SQD_ASYNC_NOTIFY, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY,
				     0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
	},
	[IBV_QPS_SQD] = {
		[IBV_QPS_RTS] = STEP(0, CUR | ALT | ACCESS | RNR, 0, CUR | ALT | ACCESS | RATE, 0, CUR | IBV_QP_QKEY | RATE),
		[IBV_QPS_SQD] = STEP(0, IDLE | SENDER | DEST_RD | RNR, 0, IDLE | RATE,       0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY | RATE),
	},
	[IBV_QPS_SQE] = {
		[IBV_QPS_RTS] = STEP(0, 0,                        0, CUR | ACCESS,           0, CUR | IBV_QP_QKEY),
	},
};
/* clang-format on */

static const char *const state_names[STATES] = {
	"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"
};

/*
 * Records that a state transition requires attributes that are missing in attr_mask, or does not
 * accept attributes in attr_mask. what: "requires" or "does not accept". Returns EINVAL.
 */
static int refuse_attributes_of_transition(const char *what, enum ibv_qp_state from,
					   enum ibv_qp_state to, int mask)
{
	static const struct {
		int bit;
		const char *name;
	} attributes[] = {
		{ IBV_QP_STATE, "STATE" },
		{ CUR, "CUR_STATE" },
		{ IBV_QP_EN_SQD_ASYNC_NOTIFY, "EN_SQD_ASYNC_NOTIFY" },
		{ ACCESS, "ACCESS_FLAGS" },
		{ IBV_QP_PKEY_INDEX, "PKEY_INDEX" },
		{ IBV_QP_PORT, "PORT" },
		{ IBV_QP_QKEY, "QKEY" },
		{ IBV_QP_AV, "AV" },
		{ IBV_QP_PATH_MTU, "PATH_MTU" },
		{ IBV_QP_TIMEOUT, "TIMEOUT" },
		{ IBV_QP_RETRY_CNT, "RETRY_CNT" },
		{ IBV_QP_RNR_RETRY, "RNR_RETRY" },
		{ IBV_QP_RQ_PSN, "RQ_PSN" },
		{ IBV_QP_MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC" },
		{ RNR, "MIN_RNR_TIMER" },
		{ PSN, "SQ_PSN" },
		{ DEST_RD, "MAX_DEST_RD_ATOMIC" },
		{ IBV_QP_DEST_QPN, "DEST_QPN" },
		{ RATE, "RATE_LIMIT" },
	};
	char names[256] = "";

	for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
		size_t n = strlen(names);

		if (mask & attributes[i].bit)
			snprintf(names + n, sizeof(names) - n, "%sIBV_QP_%s", n ? " | " : "",
				 attributes[i].name);
	}
	return abi_refuse(EINVAL, "the transition from %s to %s %s %s: change attr_mask",
			  state_names[from], state_names[to], what, names);
}

int abi_check_qp_transition(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to,
			    int mask)
{
	const struct step *step;
	/* RD queue pairs of <siwarp/ibv_ext.h> have the transitions of UD. */
	enum ibv_qp_type as = (int)type == SIW_QPT_RD ? IBV_QPT_UD : type;
	unsigned int column = (unsigned int)as - IBV_QPT_RC;

	mask &= ~IBV_QP_STATE;
	if ((unsigned int)from >= STATES || (unsigned int)to >= STATES || column >= TYPES)
		return abi_refuse(EINVAL,
				  "the states %d and %d must be values of enum ibv_qp_state",
				  (int)from, (int)to);
	/* Transitions to RESET and ERR are allowed from every state, without other attributes. */
	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) {
		mask &= ~CUR;
		return mask ? refuse_attributes_of_transition("does not accept", from, to, mask)
			    : 0;
	}
	step = &steps[from][to];
	if (!step->exists)
		return abi_refuse(EINVAL,
				  "there is no transition from %s to %s: see ibv_modify_qp(3)",
				  state_names[from], state_names[to]);
	if (step->of[column].required & ~mask)
		return refuse_attributes_of_transition("requires", from, to,
						       step->of[column].required & ~mask);
	mask &= ~(step->of[column].required | step->of[column].optional);
	return mask ? refuse_attributes_of_transition("does not accept", from, to, mask) : 0;
}
