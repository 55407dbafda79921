/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests extended queue pairs and completion queues with each ibv_wr_* and each ibv_wc_read_*
 * function.
 */
#include "common.h"

#define OPERATIONS                                                                        \
	(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE | \
	 IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |                  \
	 IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |        \
	 IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV)

static struct side a, b;
static struct ibv_qp_ex *qpx;
static struct ibv_cq_ex *cqx;

static void create_extended_endpoint(struct side *side)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 10,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct ibv_qp_init_attr_ex init = { 0 };
	struct ibv_qp_init_attr base;

	cqx = ibv_create_cq_ex(ctx, &attr);
	CHECK(cqx);
	side->cq = ibv_cq_ex_to_cq(cqx);
	base = default_qp_attr(side->cq, IBV_QPT_RC);
	memcpy(&init, &base, sizeof(base));
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.send_ops_flags = OPERATIONS;
	init.pd = pd;
	side->qp = ibv_create_qp_ex(ctx, &init);
	CHECK(side->qp);
	qpx = ibv_qp_to_qp_ex(side->qp);
	CHECK(qpx);
	register_side_memory(side);
	move_qp_to_init(side->qp);
}

/*
 * Starts polling at the next completion, and checks the wr_id and opcode of the completion. The
 * caller must call ibv_end_poll.
 */
static void start_poll_and_check_completion(uint64_t id, enum ibv_wc_opcode opcode)
{
	struct ibv_poll_cq_attr none = { 0 };
	double end = now_seconds() + SECONDS;
	int r;

	do
		r = ibv_start_poll(cqx, &none);
	while (r == ENOENT && now_seconds() < end);
	CHECK(r == 0 && cqx->status == IBV_WC_SUCCESS && cqx->wr_id == id);
	CHECK(ibv_wc_read_opcode(cqx) == opcode && ibv_wc_read_qp_num(cqx) == a.qp->qp_num);
	CHECK(ibv_wc_read_completion_ts(cqx) && ibv_wc_read_completion_wallclock_ns(cqx));
}

static void poll_single_completion(uint64_t id, enum ibv_wc_opcode opcode)
{
	start_poll_and_check_completion(id, opcode);
	CHECK(ibv_next_poll(cqx) == ENOENT);
	ibv_end_poll(cqx);
}

static void begin_work_request(uint64_t id)
{
	ibv_wr_start(qpx);
	qpx->wr_id = id;
	qpx->wr_flags = IBV_SEND_SIGNALED;
}

static void check_sends(void)
{
	struct ibv_sge two[2] = { sge_of_side(&a, 0, 10), sge_of_side(&a, 100, 20) };
	struct ibv_data_buf bufs[2] = { { a.buf, 10 }, { a.buf + 100, 20 } };
	struct ibv_wc wc;

	for (uint64_t i = 0; i < 4; i++)
		post_recv(&b, i, (size_t)i * 64, 64);
	memset(a.buf, 'p', 10);
	memset(a.buf + 100, 'q', 20);
	begin_work_request(1);
	ibv_wr_send(qpx);
	ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.buf, 10);
	qpx->wr_id = 2;
	ibv_wr_send_imm(qpx, 0xabcd);
	ibv_wr_set_sge_list(qpx, 2, two);
	qpx->wr_id = 3;
	ibv_wr_send(qpx);
	ibv_wr_set_inline_data(qpx, a.buf, 10);
	qpx->wr_id = 4;
	ibv_wr_send(qpx);
	ibv_wr_set_inline_data_list(qpx, 2, bufs);
	memset(a.buf, 'P', 10); /* building the request has copied the inline data */
	CHECK(ibv_wr_complete(qpx) == 0);
	CHECK(wait_success(b.cq).byte_len == 10);
	wc = wait_success(b.cq);
	CHECK(wc.byte_len == 30 && wc.imm_data == 0xabcd && wc.wc_flags & IBV_WC_WITH_IMM);
	CHECK(wait_success(b.cq).byte_len == 10 && b.buf[128] == 'p');
	CHECK(wait_success(b.cq).byte_len == 30 && b.buf[192] == 'p' && b.buf[221] == 'q');
	for (uint64_t id = 1; id <= 4; id++) {
		start_poll_and_check_completion(id, IBV_WC_SEND);
		ibv_end_poll(cqx);
	}
}

static void check_writes_reads_and_atomics(void)
{
	uint64_t remote = (uintptr_t)b.buf + 512;
	uint64_t *result = (uint64_t *)(a.buf + 1024), *target = (uint64_t *)(b.buf + 512);

	*target = 0;
	post_recv(&b, 5, 0, 0);
	begin_work_request(5);
	ibv_wr_rdma_write(qpx, b.mr->rkey, remote);
	ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.buf, 64);
	CHECK(ibv_wr_complete(qpx) == 0);
	poll_single_completion(5, IBV_WC_RDMA_WRITE);
	begin_work_request(6);
	ibv_wr_rdma_write_imm(qpx, b.mr->rkey, remote, 77);
	ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.buf, 64);
	CHECK(ibv_wr_complete(qpx) == 0);
	CHECK(wait_success(b.cq).imm_data == 77);
	poll_single_completion(6, IBV_WC_RDMA_WRITE);
	begin_work_request(7);
	ibv_wr_rdma_read(qpx, b.mr->rkey, remote);
	ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)result, 64);
	CHECK(ibv_wr_complete(qpx) == 0);
	poll_single_completion(7, IBV_WC_RDMA_READ);
	CHECK(memcmp(result, a.buf, 64) == 0);
	*target = 5;
	begin_work_request(8);
	ibv_wr_atomic_fetch_add(qpx, b.mr->rkey, remote, 3);
	ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)result, 8);
	CHECK(ibv_wr_complete(qpx) == 0);
	poll_single_completion(8, IBV_WC_FETCH_ADD);
	CHECK(*result == 5 && *target == 8);
	begin_work_request(9);
	ibv_wr_atomic_cmp_swp(qpx, b.mr->rkey, remote, 8, 13);
	ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)result, 8);
	CHECK(ibv_wr_complete(qpx) == 0);
	poll_single_completion(9, IBV_WC_COMP_SWAP);
	CHECK(*result == 8 && *target == 13);
}

static void check_memory_windows(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind_info info = { a.mr, (uintptr_t)a.buf, 64, IBV_ACCESS_REMOTE_READ };
	uint32_t key;

	CHECK(mw);
	key = ibv_inc_rkey(mw->rkey);
	begin_work_request(20);
	ibv_wr_bind_mw(qpx, mw, key, &info);
	qpx->wr_id = 21;
	ibv_wr_local_inv(qpx, key);
	CHECK(ibv_wr_complete(qpx) == 0);
	start_poll_and_check_completion(20, IBV_WC_BIND_MW);
	ibv_end_poll(cqx);
	poll_single_completion(21, IBV_WC_LOCAL_INV);
	CHECK(ibv_dealloc_mw(mw) == 0);
}

/* Checks that no request of a list with an invalid request is posted. */
static void check_refused_request_lists(void)
{
	begin_work_request(30);
	/* invalid: a scatter/gather list is set before a request was started */
	ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.buf, 1);
	CHECK(ibv_wr_complete(qpx) == EINVAL);
	begin_work_request(31);
	ibv_wr_send(qpx);
	ibv_wr_set_inline_data(qpx, a.buf, SIZE);
	CHECK(ibv_wr_complete(qpx) == ENOMEM);
	begin_work_request(32);
	ibv_wr_send_tso(qpx, a.buf, 10, 10);
	CHECK(ibv_wr_complete(qpx) == EOPNOTSUPP);
	begin_work_request(33);
	ibv_wr_send(qpx);
	ibv_wr_abort(qpx);
	begin_work_request(34);
	ibv_wr_send(qpx);
	ibv_wr_set_inline_data_list(qpx, 2, NULL);
	CHECK(ibv_wr_complete(qpx) == EINVAL);
	/*
	 * Inline data for a Read, in the last of three requests, is an error that only
	 * ibv_wr_complete finds.
	 */
	begin_work_request(35);
	for (int i = 0; i < 2; i++) {
		ibv_wr_rdma_write(qpx, b.mr->rkey, (uintptr_t)b.buf);
		ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.buf, 8);
	}
	ibv_wr_rdma_read(qpx, b.mr->rkey, (uintptr_t)b.buf);
	ibv_wr_set_inline_data(qpx, a.buf, 8);
	CHECK(ibv_wr_complete(qpx) == EINVAL);
	/* ibv_wr_complete fails without ibv_wr_start. */
	CHECK(ibv_wr_complete(qpx) == EINVAL);
	ibv_wr_abort(qpx);
	begin_work_request(36);
	begin_work_request(37);
	ibv_wr_send(qpx);
	CHECK(ibv_wr_complete(qpx) == EINVAL);
	CHECK(ibv_start_poll(cqx, NULL) == ENOENT);
}

/*
 * Checks that no request of a list is posted if the list has one request more than the queue has
 * space for, and that a list of the queue's size is posted.
 */
static void check_full_send_queue(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK(ibv_query_qp(a.qp, &attr, IBV_QP_CAP, &init) == 0);
	for (uint32_t too_many = 2; too_many-- > 0;) {
		begin_work_request(40);
		for (uint32_t i = 0; i < attr.cap.max_send_wr + too_many; i++) {
			qpx->wr_id = 40 + i;
			ibv_wr_rdma_write(qpx, b.mr->rkey, (uintptr_t)b.buf);
			ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.buf, 8);
		}
		CHECK(ibv_wr_complete(qpx) == (too_many ? ENOMEM : 0));
	}
	for (uint32_t i = 0; i < attr.cap.max_send_wr; i++) {
		start_poll_and_check_completion(40 + i, IBV_WC_RDMA_WRITE);
		ibv_end_poll(cqx);
	}
	CHECK(ibv_start_poll(cqx, NULL) == ENOENT);
}

/*
 * Checks batches of completions: ibv_next_poll succeeds or returns ENOENT, and a batch must end
 * before the next batch starts.
 */
static void check_poll_batches(void)
{
	ibv_end_poll(cqx); /* ibv_end_poll is harmless without ibv_start_poll */
	begin_work_request(200);
	for (int i = 0; i < 3; i++) {
		qpx->wr_id = 200 + (uint64_t)i;
		ibv_wr_rdma_write(qpx, b.mr->rkey, (uintptr_t)b.buf);
		ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.buf, 8);
	}
	CHECK(ibv_wr_complete(qpx) == 0);
	start_poll_and_check_completion(200, IBV_WC_RDMA_WRITE);
	CHECK(ibv_start_poll(cqx, NULL) == EINVAL);
	for (uint64_t id = 201; id < 203; id++) {
		double end = now_seconds() + SECONDS;
		int r;

		while ((r = ibv_next_poll(cqx)) == ENOENT && now_seconds() < end)
			;
		CHECK(r == 0 && cqx->wr_id == id && cqx->status == IBV_WC_SUCCESS);
	}
	CHECK(ibv_next_poll(cqx) == ENOENT);
	ibv_end_poll(cqx);
	ibv_end_poll(cqx);
	CHECK(ibv_start_poll(cqx, NULL) == ENOENT);
	/* VLAN and flow tags are always 0. */
	CHECK(ibv_wc_read_cvlan(cqx) == 0 && ibv_wc_read_flow_tag(cqx) == 0);
}

static void check_raw_clock(void)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };

	/*
	 * The raw clock is the clock of the completion time stamps. Bits of unknown values are
	 * cleared in the mask.
	 */
	values.comp_mask |= 8;
	CHECK(ibv_query_rt_values_ex(ctx, &values) == 0);
	CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK && values.raw_clock.tv_sec == 0);
	CHECK((double)values.raw_clock.tv_nsec / 1e9 > now_seconds() - SECONDS);
	values.comp_mask = 0;
	CHECK(ibv_query_rt_values_ex(ctx, &values) == 0 && values.comp_mask == 0);
	CHECK(!ibv_qp_to_qp_ex(b.qp));
}

int main(void)
{
	open_loopback_device();
	create_extended_endpoint(&a);
	create_side(&b, IBV_QPT_RC, NULL);
	connect_sides(&a, &b);
	check_sends();
	check_writes_reads_and_atomics();
	check_memory_windows();
	check_refused_request_lists();
	check_full_send_queue();
	check_poll_batches();
	check_raw_clock();
	destroy_side(&a);
	destroy_side(&b);
	close_loopback_device();
	return 0;
}
