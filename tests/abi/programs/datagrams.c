/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests UD queue pairs: a GRH before each message, replies through the GRH, immediate data, a
 * shared receive queue, a group, a rate limit. The argument is the index of the GID: 0 for IPv4, 1
 * for IPv6.
 */
#include "common.h"

#define GRH 40

static struct side a, b;
static struct ibv_ah *ah;
static int index_;

static void send_datagram(struct side *from, struct ibv_ah *to, uint32_t qpn,
			  enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = sge_of_side(from, 0, 32);
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = 0xfeed,
		.wr.ud = { to, qpn, QKEY },
	};
	struct ibv_send_wr *bad;

	CHECK(ibv_post_send(from->qp, &wr, &bad) == 0);
	CHECK(wait_success(from->cq).opcode == IBV_WC_SEND);
}

static void check_reply_to_ud_sender(void)
{
	struct ibv_ah_attr attr;
	struct ibv_wc wc;
	struct ibv_ah *back;

	post_recv(&b, 2, 0, GRH + 64);
	post_recv(&a, 3, 1024, GRH + 64);
	memset(a.buf, 'u', 32);
	send_datagram(&a, ah, b.qp->qp_num, IBV_WR_SEND_WITH_IMM);
	wc = wait_success(b.cq);
	CHECK(wc.byte_len == GRH + 32 && wc.wc_flags & IBV_WC_GRH && wc.imm_data == 0xfeed);
	CHECK(wc.src_qp == a.qp->qp_num && memcmp(b.buf + GRH, a.buf, 32) == 0);
	CHECK(ibv_init_ah_from_wc(ctx, PORT, &wc, (struct ibv_grh *)b.buf, &attr) == 0);
	CHECK(attr.is_global && attr.grh.sgid_index == index_);
	CHECK(memcmp(&attr.grh.dgid, &gid, sizeof(gid)) == 0);
	back = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)b.buf, PORT);
	CHECK(back && back->context == ctx && back->pd == pd);
	send_datagram(&b, back, wc.src_qp, IBV_WR_SEND);
	wc = wait_success(a.cq);
	CHECK(wc.src_qp == b.qp->qp_num && wc.byte_len == GRH + 32);
	CHECK(ibv_destroy_ah(back) == 0);
}

/* Checks an IPv4 group. Loopback has no route to IPv6 groups, which tests/namespaces covers. */
static void check_multicast_group(void)
{
	/* ff0e::ffff:239.1.2.3, the form of an IPv4 group address in RoCE */
	static const uint8_t raw[16] = { 0xff, 0x0e, 0,	   0,	 0,   0, 0, 0,
					 0,    0,    0xff, 0xff, 239, 1, 2, 3 };
	struct ibv_ah_attr attr = loopback_ah_attr();
	union ibv_gid mgid = gid;
	struct ibv_ah *to;

	memcpy(mgid.raw, raw, 16);
	attr.grh.dgid = mgid;
	CHECK(ibv_attach_mcast(b.qp, &mgid, 0) == 0);
	to = ibv_create_ah(pd, &attr);
	CHECK(to);
	post_recv(&b, 4, 0, GRH + 64);
	send_datagram(&a, to, 0xffffff, IBV_WR_SEND);
	CHECK(wait_success(b.cq).wr_id == 4);
	CHECK(ibv_detach_mcast(b.qp, &mgid, 0) == 0);
	CHECK(ibv_detach_mcast(b.qp, &mgid, 0) == EINVAL);
	CHECK(ibv_destroy_ah(to) == 0);
}

static void check_shared_receive_queue(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_recv_wr wr = { .wr_id = 50 }, *bad;
	struct ibv_srq_attr attr;
	struct ibv_sge sge;
	struct side c;

	CHECK(srq && init.attr.max_wr >= 4);
	create_side(&c, IBV_QPT_UD, srq);
	move_qp_to_rts(c.qp, 0);
	sge = sge_of_side(&c, 0, GRH + 64);
	wr.sg_list = &sge;
	wr.num_sge = 1;
	CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
	CHECK(ibv_post_recv(c.qp, &wr, &bad) == EINVAL && bad == &wr);
	send_datagram(&a, ah, c.qp->qp_num, IBV_WR_SEND);
	CHECK(wait_success(c.cq).wr_id == 50);
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr >= 4 && attr.srq_limit == 0);
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	destroy_side(&c);
	CHECK(ibv_destroy_srq(srq) == 0);
}

/*
 * Checks that removing a rate limit takes effect. At 1 kbit/s the first message, which is sent
 * immediately, delays the next message by half a second.
 */
static void check_rate_limit_removal(void)
{
	struct ibv_qp_rate_limit_attr slow = { .rate_limit = 1 }, burst = { .max_burst_sz = 1 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	struct ibv_qp_init_attr init;

	CHECK(ibv_modify_qp_rate_limit(a.qp, &slow) == 0);
	CHECK(ibv_query_qp(a.qp, &attr, IBV_QP_RATE_LIMIT, &init) == 0 && attr.rate_limit == 1);
	CHECK(ibv_modify_qp_rate_limit(a.qp, &burst) == EOPNOTSUPP);
	post_recv(&b, 2, 0, GRH + 64);
	send_datagram(&a, ah, b.qp->qp_num, IBV_WR_SEND);
	CHECK(wait_success(b.cq).byte_len == GRH + 32);
	attr.rate_limit = 0;
	CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_RATE_LIMIT) == 0);
	CHECK(ibv_query_qp(a.qp, &attr, IBV_QP_RATE_LIMIT, &init) == 0 && attr.rate_limit == 0);
	post_recv(&b, 2, 0, GRH + 64);
	send_datagram(&a, ah, b.qp->qp_num, IBV_WR_SEND);
	CHECK(wait_success(b.cq).byte_len == GRH + 32);
}

int main(int argc, char **argv)
{
	struct ibv_ah_attr attr;

	open_loopback_device();
	index_ = argc > 1 ? atoi(argv[1]) : 0;
	CHECK(ibv_query_gid(ctx, PORT, index_, &gid) == 0);
	create_side(&a, IBV_QPT_UD, NULL);
	create_side(&b, IBV_QPT_UD, NULL);
	connect_sides(&a, &b);
	attr = loopback_ah_attr();
	attr.grh.sgid_index = (uint8_t)index_;
	ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	check_reply_to_ud_sender();
	check_rate_limit_removal();
	if (index_ == 0)
		check_multicast_group();
	check_shared_receive_queue();
	CHECK(ibv_destroy_ah(ah) == 0);
	destroy_side(&a);
	destroy_side(&b);
	close_loopback_device();
	return 0;
}
