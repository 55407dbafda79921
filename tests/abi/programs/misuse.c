/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests misused objects: objects of other devices and of closed devices, request lists of destroyed
 * queue pairs, and requests that a queue pair does not support. No call may crash.
 */
#include "bad.h"

/* Checks the inline functions of verbs.h with a closed context. */
static void check_closed_context(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *c = ibv_open_device(list[0]);
	struct ibv_cq_init_attr_ex cq = { .cqe = 1 };
	struct ibv_qp_init_attr_ex qp = { .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd };
	struct ibv_srq_init_attr_ex srq = { .comp_mask = IBV_SRQ_INIT_ATTR_TYPE,
					    .srq_type = IBV_SRQT_XRC };
	struct ibv_td_init_attr td = { 0 };
	struct ibv_parent_domain_init_attr parent = { .pd = pd };
	struct ibv_values_ex values = { .comp_mask = 1 };
	struct ibv_device_attr_ex device;
	struct ibv_port_attr port;
	struct ibv_xrcd_init_attr xrcd = { 0 };

	CHECK(c && ibv_close_device(c) == 0);
	which = "a closed context, inline";
	ERRNO(EINVAL, ___ibv_query_port(c, 1, &port));
	ERRNO(EINVAL, ibv_query_device_ex(c, NULL, &device));
	ERRNO(EINVAL, ibv_query_rt_values_ex(c, &values));
	NONE(EINVAL, ibv_create_cq_ex(c, &cq));
	NONE(EINVAL, ibv_create_qp_ex(c, &qp));
	NONE(EINVAL, ibv_create_srq_ex(c, &srq));
	NONE(EINVAL, ibv_alloc_td(c, &td));
	NONE(EINVAL, ibv_alloc_parent_domain(c, &parent));
	NONE(EOPNOTSUPP, ibv_open_xrcd(c, &xrcd));
	ibv_free_device_list(list);
}

/* Checks calls on one device with objects of another device. */
static void check_objects_of_other_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *c = ibv_open_device(list[0]);
	struct ibv_pd *p = ibv_alloc_pd(c);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(c);
	struct ibv_cq *cq = ibv_create_cq(c, 1, NULL, channel, 0);
	struct ibv_srq_init_attr srq_init = { .attr = { 8, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(p, &srq_init);
	struct ibv_td_init_attr none = { 0 };
	struct ibv_td *td = ibv_alloc_td(c, &none);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, 0);
	struct ibv_qp_init_attr init = default_qp_attr(cq, IBV_QPT_RC);
	struct ibv_qp_init_attr_ex ex = { .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = p };
	struct ibv_cq_init_attr_ex cqx = { .cqe = 1,
					   .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
					   .parent_domain = p };
	struct ibv_parent_domain_init_attr parent = { .pd = p };
	struct ibv_cq *mine = ibv_create_cq(ctx, 1, NULL, NULL, 0);

	CHECK(c && p && channel && cq && srq && td && mr && mine);
	which = "an object of another device";
	NONE(EINVAL, ibv_create_cq(ctx, 1, NULL, channel, 0));
	NONE(EINVAL, ibv_create_cq_ex(ctx, &cqx));
	NONE(EINVAL, ibv_create_qp(pd, &init));
	NONE(EINVAL, ibv_create_qp_ex(ctx, &ex));
	init = default_qp_attr(mine, IBV_QPT_RC);
	init.srq = srq;
	NONE(EINVAL, ibv_create_qp(pd, &init));
	NONE(EINVAL, ibv_alloc_parent_domain(ctx, &parent));
	parent.pd = pd;
	parent.td = td;
	NONE(EINVAL, ibv_alloc_parent_domain(ctx, &parent));
	ERRNO(IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, p, NULL, 0, 0));
	NONE(EINVAL, ibv_import_mr(p, mr->handle));
	NONE(EINVAL, ibv_import_pd(c, pd->handle));
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(mine) == 0);
	CHECK(ibv_close_device(c) == 0); /* closing a device releases all objects of the device */
	which = "an object of a closed device";
	ERRNO(EINVAL, ibv_dealloc_pd(p));
	ERRNO(EINVAL, ibv_destroy_cq(cq));
	ERRNO(EINVAL, ibv_destroy_srq(srq));
	ERRNO(EINVAL, ibv_destroy_comp_channel(channel));
	ERRNO(EINVAL, ibv_dealloc_td(td));
	ibv_free_device_list(list);
}

#define LIST(wanted, call)                           \
	do {                                         \
		ibv_wr_start(qpx);                   \
		call;                                \
		ERRNO(wanted, ibv_wr_complete(qpx)); \
	} while (0)

static void check_invalid_request_lists(struct ibv_qp_ex *qpx)
{
	struct ibv_sge sge = { 0 };
	struct ibv_mw_bind_info bind = { 0 };

	which = "what no list may have";
	LIST(EINVAL, ibv_wr_send(qpx)); /* ibv_wr_send is invalid in state RESET */
	LIST(EINVAL, ibv_wr_bind_mw(qpx, (struct ibv_mw *)memory, 1, &bind));
	LIST(EINVAL, ibv_wr_bind_mw(qpx, NULL, 1, NULL));
	LIST(EINVAL, ibv_wr_set_sge(qpx, 0, 0, 0));
	LIST(EINVAL, ibv_wr_set_sge_list(qpx, 1, NULL));
	LIST(EINVAL, ibv_wr_set_ud_addr(qpx, NULL, 0, 0));
	LIST(EINVAL, ibv_wr_set_inline_data(qpx, memory, 1));
	LIST(EINVAL, (ibv_wr_send(qpx), ibv_wr_set_inline_data(qpx, NULL, 8)));
	LIST(EOPNOTSUPP, ibv_wr_set_xrc_srqn(qpx, 1));
	LIST(EOPNOTSUPP, ibv_wr_send_tso(qpx, memory, 1, 1));
	LIST(EOPNOTSUPP, ibv_wr_atomic_write(qpx, 0, 0, memory));
	LIST(EINVAL, (ibv_wr_send(qpx), ibv_wr_set_sge_list(qpx, 1000, &sge)));
}

static void check_request_lists_of_destroyed_qp(struct ibv_qp_ex *qpx)
{
	struct ibv_mw_bind_info bind = { 0 };
	struct ibv_data_buf buf = { memory, 8 };

	which = "an extended queue pair that was destroyed";
	LIST(0, ibv_wr_send(qpx));
	LIST(0, ibv_wr_send_imm(qpx, 1));
	LIST(0, ibv_wr_send_inv(qpx, 1));
	LIST(0, ibv_wr_rdma_read(qpx, 0, 0));
	LIST(0, ibv_wr_rdma_write(qpx, 0, 0));
	LIST(0, ibv_wr_rdma_write_imm(qpx, 0, 0, 0));
	LIST(0, ibv_wr_atomic_cmp_swp(qpx, 0, 0, 0, 0));
	LIST(0, ibv_wr_atomic_fetch_add(qpx, 0, 0, 0));
	LIST(0, ibv_wr_bind_mw(qpx, NULL, 1, &bind));
	LIST(0, ibv_wr_local_inv(qpx, 1));
	LIST(0, ibv_wr_send_tso(qpx, memory, 1, 1));
	LIST(0, (ibv_wr_send(qpx), ibv_wr_set_inline_data_list(qpx, 1, &buf)));
	LIST(0, (ibv_wr_send(qpx), ibv_wr_set_sge(qpx, 0, 0, 0)));
	ibv_wr_start(qpx);
	ibv_wr_abort(qpx);
}
#undef LIST

/* Checks request lists of a destroyed queue pair, and polls of a destroyed completion queue. */
static void check_destroyed_extended_objects(void)
{
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 1, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cqx = ibv_create_cq_ex(ctx, &cq_init);
	struct ibv_qp_init_attr base = default_qp_attr(ibv_cq_ex_to_cq(cqx), IBV_QPT_RC);
	struct ibv_qp_init_attr_ex init = { 0 };
	struct ibv_qp_ex *qpx;
	struct ibv_wc_tm_info tm;
	struct ibv_qp *qp;

	memcpy(&init, &base, sizeof(base));
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.send_ops_flags = IBV_QP_EX_WITH_SEND;
	init.pd = pd;
	qp = ibv_create_qp_ex(ctx, &init);
	CHECK(cqx && qp);
	qpx = ibv_qp_to_qp_ex(qp);
	check_invalid_request_lists(qpx);
	CHECK(ibv_destroy_qp(qp) == 0);
	check_request_lists_of_destroyed_qp(qpx);
	NONE(EINVAL, ibv_qp_to_qp_ex(qp));
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cqx)) == 0);
	which = "an extended queue that was destroyed";
	ERRNO(EINVAL, ibv_start_poll(cqx, NULL));
	ERRNO(EINVAL, ibv_next_poll(cqx));
	ibv_end_poll(cqx);
	ibv_wc_read_tm_info(cqx, &tm);
	(void)ibv_wc_read_opcode(cqx);
}

/* Checks invalid receives, empty lists, and polls. A receive may have at most two elements. */
static void check_bad_receives_and_polls(const struct side *a, struct ibv_sge *sges)
{
	struct ibv_recv_wr rr = { .num_sge = 3, .sg_list = sges }, *bad_rr;
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	ERRNO(EINVAL, ibv_post_recv(a->qp, &rr, &bad_rr));
	ERRNO(EINVAL, ibv_post_recv(a->qp, &rr, NULL));
	rr.num_sge = 1;
	rr.sg_list = NULL;
	ERRNO(EINVAL, ibv_post_recv(a->qp, &rr, &bad_rr));
	ERRNO(0, ibv_post_recv(a->qp, NULL, &bad_rr));
	ERRNO(0, ibv_post_send(a->qp, NULL, &bad));
	ERRNO(0, ibv_poll_cq(a->cq, 0, &wc));
	ERRNO(1, ibv_poll_cq(a->cq, -1, &wc) <= 0);
	ERRNO(1, ibv_poll_cq(a->cq, 1, NULL) < 0);
	ERRNO(0, ibv_poll_cq(a->cq, 0, NULL));
	ERRNO(0, ibv_poll_cq(a->cq, 1, &wc)); /* no invalid request was accepted */
}

/* Checks invalid requests on a queue pair in RTS. */
static void check_bad_requests(enum ibv_qp_type type)
{
	struct ibv_pd *p = ibv_alloc_pd(ctx);
	struct ibv_ah_attr path = loopback_ah_attr();
	struct ibv_ah *foreign = ibv_create_ah(p, &path), *gone = ibv_create_ah(pd, &path);
	struct ibv_sge sges[3];
	struct ibv_send_wr good, wr, *bad;
	struct side a;

	CHECK(p && foreign && gone && ibv_destroy_ah(gone) == 0);
	create_side(&a, type, NULL);
	move_qp_to_rts(a.qp, a.qp->qp_num);
	for (int i = 0; i < 3; i++)
		sges[i] = sge_of_side(&a, 0, 8);
	good = (struct ibv_send_wr){ .sg_list = sges, .num_sge = 1, .opcode = IBV_WR_SEND };
	which = type == IBV_QPT_UD   ? "a wrong request, UD"
		: type == IBV_QPT_UC ? "a wrong request, UC"
				     : "a wrong request, RC";
#define WITH(member, value)                                    \
	do {                                                   \
		wr = good;                                     \
		wr.member = value;                             \
		bad = NULL;                                    \
		ERRNO(EINVAL, ibv_post_send(a.qp, &wr, &bad)); \
		ERRNO(1, bad == &wr);                          \
		ERRNO(EINVAL, ibv_post_send(a.qp, &wr, NULL)); \
	} while (0)
	if (type == IBV_QPT_UD) {
		WITH(wr.ud.ah, NULL);
		WITH(wr.ud.ah, foreign);
		WITH(wr.ud.ah, gone);
		good.wr.ud.ah = ibv_create_ah(pd, &path);
		good.wr.ud.remote_qpn = a.qp->qp_num;
		WITH(opcode, IBV_WR_RDMA_WRITE);
		WITH(opcode, IBV_WR_BIND_MW);
	}
	if (type != IBV_QPT_RC) {
		WITH(opcode, IBV_WR_RDMA_READ);
		WITH(opcode, IBV_WR_ATOMIC_FETCH_AND_ADD);
	}
	WITH(opcode, IBV_WR_TSO);
	WITH(opcode, IBV_WR_DRIVER1);
	WITH(opcode, (enum ibv_wr_opcode)200);
	WITH(opcode, (enum ibv_wr_opcode) - 1);
	WITH(num_sge, 3); /* a request may have at most two elements */
	WITH(num_sge, -1);
	WITH(sg_list, NULL);
	for (int bit = 4; bit < 32; bit++)
		/* IBV_SEND_IP_CSUM and the higher bits are not supported */
		WITH(send_flags, 1u << bit);
	if (type == IBV_QPT_RC) {
		good.opcode = IBV_WR_RDMA_READ;
		WITH(send_flags, IBV_SEND_INLINE);
		good.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		sges[0].length = 4;
		WITH(num_sge, 1);
		good.opcode = IBV_WR_BIND_MW;
		WITH(bind_mw.mw, (struct ibv_mw *)memory);
	}
	sges[0].length = 1u << 20;
	good.opcode = IBV_WR_SEND;
	WITH(send_flags, IBV_SEND_INLINE);
#undef WITH
	check_bad_receives_and_polls(&a, sges);
	CHECK(!good.wr.ud.ah || type != IBV_QPT_UD || ibv_destroy_ah(good.wr.ud.ah) == 0);
	CHECK(ibv_destroy_ah(foreign) == 0 && ibv_dealloc_pd(p) == 0);
	destroy_side(&a);
}

/* Checks invalid binds of memory windows through the inline functions. */
static void check_bad_memory_window_binds(void)
{
	struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1),
		      *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_MW_BIND);
	struct ibv_mw_bind bind = { .bind_info = { mr, (uintptr_t)memory, 8, 0 } };
	struct side a;

	CHECK(one && two && mr);
	create_side(&a, IBV_QPT_RC, NULL);
	which = "a window in a wrong bind";
	/* binding a window is invalid in state INIT */
	ERRNO(EINVAL, ibv_bind_mw(a.qp, one, &bind));
	move_qp_to_rts(a.qp, a.qp->qp_num);
	ERRNO(EINVAL, ibv_bind_mw(a.qp, two, &bind));
	bind.bind_info.mw_access_flags = 1 << 30;
	ERRNO(EINVAL, ibv_bind_mw(a.qp, one, &bind));
	bind.bind_info.mw_access_flags = 0;
	CHECK(ibv_dealloc_mw(one) == 0);
	ERRNO(EINVAL, ibv_bind_mw(a.qp, one, &bind));
	CHECK(ibv_dealloc_mw(two) == 0 && ibv_dereg_mr(mr) == 0);
	destroy_side(&a);
}

/* Checks that a queue accepts only as many requests of a circular list as the queue holds. */
static void check_circular_request_lists(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_MW_BIND);
	struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, bind = { .opcode = IBV_WR_BIND_MW };
	struct ibv_send_wr *bad = NULL;
	struct ibv_recv_wr recv = { .next = &recv }, *bad_recv = NULL;
	struct side a;

	CHECK(mr && window);
	send.next = &send;
	bind.next = &send;
	bind.bind_mw.mw = window;
	bind.bind_mw.rkey = window->rkey;
	bind.bind_mw.bind_info =
		(struct ibv_mw_bind_info){ mr, (uintptr_t)memory, 8, IBV_ACCESS_REMOTE_WRITE };
	which = "a list that never ends";
	create_side(&a, IBV_QPT_RC, NULL);
	move_qp_to_rts(a.qp, a.qp->qp_num);
	ERRNO(ENOMEM, ibv_post_recv(a.qp, &recv, &bad_recv));
	ERRNO(ENOMEM, ibv_post_send(a.qp, &send, &bad));
	ERRNO(1, bad == &send);
	destroy_side(&a);
	create_side(&a, IBV_QPT_RC, NULL);
	move_qp_to_rts(a.qp, a.qp->qp_num);
	ERRNO(ENOMEM, ibv_post_send(a.qp, &bind, &bad));
	ERRNO(1, bad == &send);
	destroy_side(&a);
	CHECK(ibv_dealloc_mw(window) == 0 && ibv_dereg_mr(mr) == 0);
}

int main(void)
{
	open_loopback_device();
	check_closed_context();
	check_objects_of_other_device();
	check_destroyed_extended_objects();
	check_bad_requests(IBV_QPT_RC);
	check_bad_requests(IBV_QPT_UC);
	check_bad_requests(IBV_QPT_UD);
	check_bad_memory_window_binds();
	check_circular_request_lists();
	close_loopback_device();
	return exit_code_of_refusals(400);
}
