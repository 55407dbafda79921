/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests the limits of ibv_query_device. A call with the value of the limit succeeds; a call with a
 * value one above the limit fails with EINVAL, or with ENOMEM for a limit on the number of objects.
 */
#include "common.h"

static struct ibv_device_attr limits;

static struct ibv_cq *cq;

/* Creates and destroys a queue pair with the given capacities. Returns 0 or the errno value. */
static int try_creating_qp(enum ibv_qp_type type, struct ibv_qp_cap cap)
{
	struct ibv_qp_init_attr init = default_qp_attr(cq, type);
	struct ibv_qp *qp;

	init.cap = cap;
	errno = 0;
	qp = ibv_create_qp(pd, &init);
	if (!qp)
		return errno;
	CHECK(init.cap.max_send_wr >= cap.max_send_wr && init.cap.max_recv_wr >= cap.max_recv_wr);
	CHECK(init.cap.max_send_sge >= cap.max_send_sge);
	CHECK(init.cap.max_recv_sge >= cap.max_recv_sge);
	CHECK(ibv_destroy_qp(qp) == 0);
	return 0;
}

static void check_qp_limits(enum ibv_qp_type type)
{
	uint32_t wr = (uint32_t)limits.max_qp_wr, sge = (uint32_t)limits.max_sge;

	CHECK(try_creating_qp(type, (struct ibv_qp_cap){ wr, wr, sge, sge, 0 }) == 0);
	CHECK(try_creating_qp(type, (struct ibv_qp_cap){ wr + 1, 1, 1, 1, 0 }) == EINVAL);
	CHECK(try_creating_qp(type, (struct ibv_qp_cap){ 1, wr + 1, 1, 1, 0 }) == EINVAL);
	CHECK(try_creating_qp(type, (struct ibv_qp_cap){ 1, 1, sge + 1, 1, 0 }) == EINVAL);
	CHECK(try_creating_qp(type, (struct ibv_qp_cap){ 1, 1, 1, sge + 1, 0 }) == EINVAL);
}

/*
 * Checks that a message with the maximum number of scatter/gather elements arrives in as many
 * elements, and that one more element is refused.
 */
static void check_sge_limits(void)
{
	struct ibv_sge out[64], in[64];
	int n = limits.max_sge;
	struct ibv_send_wr wr = { .sg_list = out, .num_sge = n, .opcode = IBV_WR_SEND };
	struct ibv_recv_wr recv = { .sg_list = in, .num_sge = n };
	struct ibv_send_wr *bad;
	struct ibv_recv_wr *bad_recv;
	struct side a, b;
	struct ibv_qp_init_attr init;

	CHECK(n < 64);
	create_side(&a, IBV_QPT_RC, NULL);
	create_side(&b, IBV_QPT_RC, NULL);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	init = default_qp_attr(a.cq, IBV_QPT_RC);
	init.cap.max_send_sge = init.cap.max_recv_sge = (uint32_t)n;
	a.qp = ibv_create_qp(pd, &init);
	init.send_cq = init.recv_cq = b.cq;
	b.qp = ibv_create_qp(pd, &init);
	CHECK(a.qp && b.qp);
	move_qp_to_init(a.qp);
	move_qp_to_init(b.qp);
	connect_sides(&a, &b);
	for (int i = 0; i <= n; i++) {
		memset(a.buf + 16 * i, 'a' + i, 8);
		out[i] = sge_of_side(&a, 16u * (uint32_t)i, 8);
		in[i] = sge_of_side(&b, 32u * (uint32_t)i, 8);
	}
	CHECK(ibv_post_recv(b.qp, &recv, &bad_recv) == 0);
	wr.send_flags = IBV_SEND_SIGNALED;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	CHECK(wait_success(b.cq).byte_len == 8u * (uint32_t)n);
	wait_success(a.cq);
	for (int i = 0; i < n; i++)
		CHECK(b.buf[32 * i] == 'a' + i && b.buf[32 * i + 7] == 'a' + i);
	wr.num_sge = recv.num_sge = n + 1;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == EINVAL && bad == &wr);
	CHECK(ibv_post_recv(b.qp, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	destroy_side(&a);
	destroy_side(&b);
}

static int try_creating_srq(uint32_t wr, uint32_t sge)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = wr, .max_sge = sge } };
	struct ibv_srq *srq;

	errno = 0;
	srq = ibv_create_srq(pd, &init);
	if (!srq)
		return errno;
	CHECK(init.attr.max_wr >= wr && init.attr.max_sge >= sge);
	CHECK(ibv_destroy_srq(srq) == 0);
	return 0;
}

static void check_srq_limits(void)
{
	uint32_t wr = (uint32_t)limits.max_srq_wr, sge = (uint32_t)limits.max_srq_sge;

	CHECK(try_creating_srq(wr, sge) == 0);
	CHECK(try_creating_srq(wr + 1, 1) == EINVAL);
	CHECK(try_creating_srq(1, sge + 1) == EINVAL);
}

static void check_cq_limits(void)
{
	struct ibv_cq *deep = ibv_create_cq(ctx, limits.max_cqe, NULL, NULL, 0);

	CHECK(deep && deep->cqe >= limits.max_cqe);
	CHECK(ibv_destroy_cq(deep) == 0);
	CHECK(!ibv_create_cq(ctx, limits.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL);
}

static void check_pd_limit(void)
{
	struct ibv_pd **all = calloc((size_t)limits.max_pd, sizeof(struct ibv_pd *));
	int n = 1; /* the protection domain `pd` exists already */

	CHECK(all);
	while (n < limits.max_pd) {
		all[n] = ibv_alloc_pd(ctx);
		CHECK(all[n]);
		n++;
	}
	CHECK(!ibv_alloc_pd(ctx) && errno == ENOMEM);
	while (--n > 0)
		CHECK(ibv_dealloc_pd(all[n]) == 0);
	free(all);
}

/* Checks the limits of the outstanding Reads of a queue pair as responder and initiator. */
static void check_read_limits(void)
{
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024 };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS };
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	struct side a;

	create_side(&a, IBV_QPT_RC, NULL);
	rtr.dest_qp_num = a.qp->qp_num ^ 1;
	rtr.ah_attr = loopback_ah_attr();
	rtr.max_dest_rd_atomic = (uint8_t)(limits.max_qp_rd_atom + 1);
	CHECK(ibv_modify_qp(a.qp, &rtr, mask) == EINVAL);
	rtr.max_dest_rd_atomic = (uint8_t)limits.max_qp_rd_atom;
	CHECK(ibv_modify_qp(a.qp, &rtr, mask) == 0);
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
	       IBV_QP_MAX_QP_RD_ATOMIC;
	rts.max_rd_atomic = (uint8_t)(limits.max_qp_init_rd_atom + 1);
	CHECK(ibv_modify_qp(a.qp, &rts, mask) == EINVAL);
	rts.max_rd_atomic = (uint8_t)limits.max_qp_init_rd_atom;
	CHECK(ibv_modify_qp(a.qp, &rts, mask) == 0);
	destroy_side(&a);
}

/* Checks that the port's tables have the reported lengths, and that there is no second port. */
static void check_port_limits(void)
{
	struct ibv_port_attr attr;
	union ibv_gid one;
	__be16 pkey;

	CHECK(ibv_query_port(ctx, limits.phys_port_cnt, &attr) == 0);
	CHECK(ibv_query_port(ctx, limits.phys_port_cnt + 1, &attr) == EINVAL);
	CHECK(attr.pkey_tbl_len == limits.max_pkeys);
	CHECK(ibv_query_pkey(ctx, PORT, attr.pkey_tbl_len - 1, &pkey) == 0);
	CHECK(ibv_query_pkey(ctx, PORT, attr.pkey_tbl_len, &pkey) == -1);
	CHECK(ibv_query_gid(ctx, PORT, attr.gid_tbl_len - 1, &one) == 0);
	CHECK(ibv_query_gid(ctx, PORT, attr.gid_tbl_len, &one) == -1);
}

int main(void)
{
	open_loopback_device();
	CHECK(ibv_query_device(ctx, &limits) == 0);
	cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	CHECK(cq);
	check_qp_limits(IBV_QPT_RC);
	check_qp_limits(IBV_QPT_UC);
	check_qp_limits(IBV_QPT_UD);
	check_sge_limits();
	check_srq_limits();
	check_cq_limits();
	check_pd_limit();
	check_read_limits();
	check_port_limits();
	CHECK(ibv_destroy_cq(cq) == 0);
	close_loopback_device();
	return 0;
}
