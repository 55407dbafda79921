/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests the tables of ibv_modify_qp(3): each transition must fail without each required attribute,
 * and with each attribute that does not exist for the queue pair type, and must then leave the
 * state unchanged. ibv_query_qp must return the values that were set.
 */
#include "common.h"

static const struct {
	enum ibv_qp_type type;
	/* attributes that the transitions to INIT, RTR and RTS require */
	int to_init, to_rtr, to_rts;
	/* attributes of other queue pair types, which every transition refuses */
	int foreign;
} tables[] = {
	{
		IBV_QPT_UD,
		IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
		0,
		IBV_QP_SQ_PSN,
		IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_TIMEOUT |
			IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_ACCESS_FLAGS,
	},
	{
		IBV_QPT_UC,
		IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
		IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
		IBV_QP_SQ_PSN,
		IBV_QP_QKEY | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	},
	{
		IBV_QPT_RC,
		IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
		IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_TIMEOUT,
		IBV_QP_QKEY,
	},
};

static struct ibv_qp_attr attr_values_for_state(enum ibv_qp_state to)
{
	struct ibv_qp_attr attr = {
		.qp_state = to,
		.path_mtu = IBV_MTU_2048,
		.qkey = QKEY,
		.rq_psn = 0x123456,
		.sq_psn = 0x654321,
		.dest_qp_num = 0x010203,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_LOCAL_WRITE |
				   IBV_ACCESS_MW_BIND,
		.ah_attr = loopback_ah_attr(),
		.max_rd_atomic = 3,
		.max_dest_rd_atomic = 5,
		/*
		 * Like adapters, siwarp uses only five bits of a time-out and three bits of a retry
		 * count.
		 */
		.min_rnr_timer = 12 | 0x20,
		.port_num = PORT,
		.timeout = 14 | 0xe0,
		.retry_cnt = 6 | 0x08,
		.rnr_retry = 5 | 0xf8,
	};

	attr.ah_attr.grh.hop_limit = 64;
	attr.ah_attr.grh.traffic_class = 8;
	attr.ah_attr.grh.flow_label = 77;
	attr.ah_attr.sl = 3;
	return attr;
}

static enum ibv_qp_state query_qp_state(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == qp->state);
	return attr.qp_state;
}

/* Checks that all invalid variants of a state transition fail, then makes the transition. */
static void check_and_make_qp_transition(struct ibv_qp *qp, enum ibv_qp_state to, int required,
					 int foreign)
{
	enum ibv_qp_state from = query_qp_state(qp);
	struct ibv_qp_attr attr = attr_values_for_state(to);

	for (int bit = 0; bit < 21; bit++) {
		int mask = IBV_QP_STATE | required;

		if (required & 1 << bit)
			mask &= ~(1 << bit);
		else if (foreign & 1 << bit)
			mask |= 1 << bit;
		else
			continue;
		CHECK(ibv_modify_qp(qp, &attr, mask) == EINVAL && query_qp_state(qp) == from);
	}
	/* Undefined attributes, and attributes of unsupported features, are refused. */
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | required | 1 << 28) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | required | IBV_QP_CAP) == EOPNOTSUPP);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | required | IBV_QP_ALT_PATH) == EOPNOTSUPP);
	/* A current state (cur_qp_state) that differs from the actual state is refused. */
	attr.cur_qp_state = IBV_QPS_SQD;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | required | IBV_QP_CUR_STATE) == EINVAL);
	CHECK(query_qp_state(qp) == from);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | required) == 0 && query_qp_state(qp) == to);
}

static void check_queried_qp_values(struct ibv_qp *qp, const struct ibv_qp_init_attr *made)
{
	struct ibv_qp_attr attr, set = attr_values_for_state(IBV_QPS_RTS);
	struct ibv_qp_init_attr init;

	CHECK(ibv_query_qp(qp, &attr, ~0, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.sq_psn == set.sq_psn && attr.port_num == PORT);
	CHECK(attr.pkey_index == 0 && attr.path_mig_state == IBV_MIG_MIGRATED && !attr.sq_draining);
	CHECK(attr.cap.max_send_wr == made->cap.max_send_wr);
	if (qp->qp_type == IBV_QPT_UD) {
		CHECK(attr.qkey == QKEY);
	} else {
		CHECK(attr.path_mtu == set.path_mtu && attr.rq_psn == set.rq_psn);
		CHECK(attr.dest_qp_num == set.dest_qp_num);
		CHECK(attr.qp_access_flags & IBV_ACCESS_REMOTE_READ);
		CHECK(!(attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE));
		CHECK(memcmp(&attr.ah_attr, &set.ah_attr, sizeof(set.ah_attr)) == 0);
	}
	if (qp->qp_type == IBV_QPT_RC) {
		CHECK(attr.timeout == 14 && attr.retry_cnt == 6);
		CHECK(attr.rnr_retry == 5 && attr.min_rnr_timer == 12);
		CHECK(attr.max_rd_atomic == set.max_rd_atomic);
		CHECK(attr.max_dest_rd_atomic == set.max_dest_rd_atomic);
	}
	CHECK(init.qp_context == made->qp_context && init.send_cq == made->send_cq);
	CHECK(init.recv_cq == made->recv_cq && init.srq == made->srq);
	CHECK(init.qp_type == made->qp_type && init.sq_sig_all == made->sq_sig_all);
	CHECK(memcmp(&init.cap, &made->cap, sizeof(init.cap)) == 0);
}

static void check_all_transitions(size_t row)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 10, NULL, NULL, 0);
	struct ibv_qp_init_attr init = default_qp_attr(cq, tables[row].type);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_qp *qp;

	init.qp_context = &init;
	init.sq_sig_all = 1;
	qp = ibv_create_qp(pd, &init);
	CHECK(cq && qp && query_qp_state(qp) == IBV_QPS_RESET);
	for (int round = 0; round < 2; round++) {
		check_and_make_qp_transition(qp, IBV_QPS_INIT, tables[row].to_init,
					     tables[row].foreign);
		check_and_make_qp_transition(qp, IBV_QPS_RTR, tables[row].to_rtr,
					     tables[row].foreign);
		check_and_make_qp_transition(qp, IBV_QPS_RTS, tables[row].to_rts,
					     tables[row].foreign);
		check_queried_qp_values(qp, &init);
		/*
		 * Transitions to ERR and RESET accept only IBV_QP_STATE in the mask.
		 */
		attr.qp_state = IBV_QPS_ERR;
		CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == EINVAL);
		CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0 &&
		      query_qp_state(qp) == IBV_QPS_ERR);
		attr.qp_state = IBV_QPS_RTS;
		CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
		attr.qp_state = IBV_QPS_RESET;
		CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0 &&
		      query_qp_state(qp) == IBV_QPS_RESET);
	}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

/* Checks that a shared receive queue overrides the receive capacities, and that UC refuses one. */
static void check_qp_with_srq(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 10, NULL, NULL, 0);
	struct ibv_srq_init_attr srq_init = { .attr = { 8, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_qp_init_attr init = default_qp_attr(cq, IBV_QPT_RC);
	struct ibv_qp *qp;

	CHECK(cq && srq && srq_init.attr.max_wr >= 8 && srq_init.attr.max_sge >= 1);
	init.srq = srq;
	init.cap.max_recv_wr = init.cap.max_recv_sge = UINT32_MAX;
	qp = ibv_create_qp(pd, &init);
	CHECK(qp && ibv_destroy_srq(srq) == EBUSY && ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0);
	init.qp_type = IBV_QPT_UC;
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(void)
{
	open_loopback_device();
	for (size_t row = 0; row < sizeof(tables) / sizeof(tables[0]); row++)
		check_all_transitions(row);
	check_qp_with_srq();
	close_loopback_device();
	return 0;
}
