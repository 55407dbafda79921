/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tests every operation of an RC queue pair or, with the argument uc, of a UC queue pair. */
#include "common.h"

static struct side a, b;

static struct ibv_send_wr make_send_request(enum ibv_wr_opcode opcode, struct ibv_sge *sge)
{
	return (struct ibv_send_wr){
		.wr_id = 100 + opcode,
		.opcode = opcode,
		.sg_list = sge,
		.num_sge = sge ? 1 : 0,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = 0x12345678,
		.wr.rdma = { (uintptr_t)b.buf + 512, b.mr->rkey },
	};
}

static void post_send(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	CHECK(ibv_post_send(a.qp, wr, &bad) == 0);
}

static void check_sends(void)
{
	struct ibv_sge sge = sge_of_side(&a, 0, 100);
	struct ibv_send_wr wr = make_send_request(IBV_WR_SEND, &sge);
	struct ibv_wc wc;

	memset(a.buf, 'x', 100);
	post_recv(&b, 7, 0, 200);
	post_send(&wr);
	wc = wait_success(b.cq);
	CHECK(wc.wr_id == 7 && wc.opcode == IBV_WC_RECV && wc.byte_len == 100);
	CHECK(wc.qp_num == b.qp->qp_num && !(wc.wc_flags & IBV_WC_WITH_IMM));
	CHECK(memcmp(b.buf, a.buf, 100) == 0);
	wc = wait_success(a.cq);
	CHECK(wc.wr_id == 100 + IBV_WR_SEND && wc.opcode == IBV_WC_SEND);

	/*
	 * The buffer of an inline request may be changed right after the post, and the lkey is
	 * ignored.
	 */
	sge.lkey = 0;
	sge.length = 64;
	wr.opcode = IBV_WR_SEND_WITH_IMM;
	wr.send_flags |= IBV_SEND_INLINE;
	post_recv(&b, 8, 0, 200);
	memset(a.buf, 'y', 64);
	post_send(&wr);
	memset(a.buf, 'z', 64);
	wc = wait_success(b.cq);
	CHECK(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == 0x12345678 && wc.byte_len == 64);
	CHECK(b.buf[0] == 'y' && b.buf[63] == 'y');
	wait_success(a.cq);
}

static void check_send_list(void)
{
	struct ibv_sge sge = sge_of_side(&a, 0, 10);
	struct ibv_send_wr wr[4], *bad;

	for (int i = 0; i < 4; i++) {
		wr[i] = make_send_request(IBV_WR_SEND, &sge);
		wr[i].wr_id = (uint64_t)i;
		wr[i].send_flags = i == 3 ? IBV_SEND_SIGNALED : 0;
		wr[i].next = i < 3 ? &wr[i + 1] : NULL;
		post_recv(&b, (uint64_t)i, 0, 10);
	}
	post_send(wr);
	for (int i = 0; i < 4; i++)
		CHECK(wait_success(b.cq).wr_id == (uint64_t)i);
	CHECK(wait_success(a.cq).wr_id == 3);
	/* An invalid request ends the processing of the list and is returned in bad_wr. */
	wr[2].opcode = (enum ibv_wr_opcode)99;
	for (int i = 0; i < 4; i++)
		post_recv(&b, (uint64_t)i, 0, 10);
	CHECK(ibv_post_send(a.qp, wr, &bad) == EINVAL && bad == &wr[2]);
	wr[2] = make_send_request(IBV_WR_SEND, &sge);
	wr[2].next = &wr[3];
	CHECK(ibv_post_send(a.qp, &wr[2], &bad) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(wait_success(b.cq).wr_id == (uint64_t)i);
	CHECK(wait_success(a.cq).wr_id == 100 + IBV_WR_SEND);
	CHECK(wait_success(a.cq).wr_id == 3);
}

static void check_writes(void)
{
	struct ibv_sge sge = sge_of_side(&a, 0, 256);
	struct ibv_send_wr wr = make_send_request(IBV_WR_RDMA_WRITE, &sge);
	struct ibv_wc wc;

	memset(a.buf, 'w', 256);
	post_send(&wr);
	CHECK(wait_success(a.cq).opcode == IBV_WC_RDMA_WRITE);
	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	post_recv(&b, 9, 0, 0);
	post_send(&wr);
	wc = wait_success(b.cq);
	CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == 256);
	CHECK(wc.imm_data == 0x12345678 && memcmp(b.buf + 512, a.buf, 256) == 0);
	wait_success(a.cq);
}

static void check_reads_and_atomics(void)
{
	struct ibv_sge sge = sge_of_side(&a, 1024, 256);
	struct ibv_send_wr wr = make_send_request(IBV_WR_RDMA_READ, &sge);
	uint64_t *result = (uint64_t *)(a.buf + 1024), *target = (uint64_t *)(b.buf + 512);

	memset(b.buf + 512, 'r', 256);
	post_send(&wr);
	CHECK(wait_success(a.cq).opcode == IBV_WC_RDMA_READ);
	CHECK(memcmp(a.buf + 1024, b.buf + 512, 256) == 0);

	*target = 40;
	sge.length = 8;
	wr = make_send_request(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge);
	wr.wr.atomic.rkey = b.mr->rkey;
	wr.wr.atomic.compare_add = 2;
	post_send(&wr);
	CHECK(wait_success(a.cq).opcode == IBV_WC_FETCH_ADD && *result == 40 && *target == 42);
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr.wr.atomic.compare_add = 42;
	wr.wr.atomic.swap = 99;
	post_send(&wr);
	CHECK(wait_success(a.cq).opcode == IBV_WC_COMP_SWAP && *result == 42 && *target == 99);
}

/* Checks that the peer can write through a memory window of either type. */
static void check_memory_windows(void)
{
	struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1),
		      *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	/* Local access rights in a bind are ignored without an error. */
	struct ibv_mw_bind_info info = { b.mr, (uintptr_t)b.buf, 64,
					 IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE };
	struct ibv_mw_bind bind = { 5, IBV_SEND_SIGNALED, info };
	struct ibv_sge sge = sge_of_side(&a, 0, 64), byte = sge_of_side(&b, 3072, 1);
	struct ibv_send_wr wr = make_send_request(IBV_WR_RDMA_WRITE, &sge), binds[2], *bad;

	CHECK(one && two);
	CHECK(ibv_bind_mw(b.qp, one, &bind) == 0);
	CHECK(wait_success(b.cq).opcode == IBV_WC_BIND_MW);
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
	wr.wr.rdma.rkey = one->rkey;
	memset(a.buf, '1', 64);
	post_send(&wr);
	wait_success(a.cq);

	/* A request binds a type 2 memory window, and a Send follows in the same list. */
	memset(binds, 0, sizeof(binds));
	binds[0] = (struct ibv_send_wr){ .wr_id = 1,
					 .opcode = IBV_WR_BIND_MW,
					 .next = &binds[1],
					 .send_flags = IBV_SEND_SIGNALED };
	binds[0].bind_mw.mw = two;
	binds[0].bind_mw.rkey = two->rkey = ibv_inc_rkey(two->rkey);
	binds[0].bind_mw.bind_info = info;
	binds[1] = (struct ibv_send_wr){ .wr_id = 2,
					 .opcode = IBV_WR_SEND,
					 .sg_list = &byte,
					 .num_sge = 1,
					 .send_flags = IBV_SEND_SIGNALED };
	post_recv(&a, 3, 2048, 16);
	CHECK(ibv_post_send(b.qp, binds, &bad) == 0);
	CHECK(wait_success(b.cq).opcode == IBV_WC_BIND_MW);
	CHECK(wait_success(b.cq).wr_id == 2);
	CHECK(wait_success(a.cq).wr_id == 3);
	wr.wr.rdma.rkey = two->rkey;
	memset(a.buf, '2', 64);
	post_send(&wr);
	wait_success(a.cq);
	/*
	 * A Send with Invalidate invalidates the window's rkey, which the receive completion
	 * reports.
	 */
	wr = make_send_request(IBV_WR_SEND_WITH_INV, &sge);
	wr.invalidate_rkey = two->rkey;
	post_recv(&b, 4, 2048, 64);
	post_send(&wr);
	sge.lkey = 0;
	{
		struct ibv_wc wc = wait_success(b.cq);

		CHECK(wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == two->rkey);
	}
	CHECK(b.buf[0] == '2' && b.buf[63] == '2');
	wait_success(a.cq);
	CHECK(ibv_dealloc_mw(one) == 0 && ibv_dealloc_mw(two) == 0);
}

static void check_queried_qp_attributes(int uc)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK(ibv_query_qp(a.qp, &attr, ~0, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.cur_qp_state == IBV_QPS_RTS);
	CHECK(attr.path_mtu == IBV_MTU_1024 && attr.dest_qp_num == b.qp->qp_num);
	CHECK(attr.port_num == PORT && attr.ah_attr.is_global);
	CHECK(memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof(gid)) == 0);
	CHECK(uc || (attr.max_rd_atomic == 4 && attr.max_dest_rd_atomic == 4));
	CHECK(uc || (attr.timeout == 14 && attr.retry_cnt == 7 && attr.min_rnr_timer == 12));
	CHECK(init.send_cq == a.cq && init.qp_type == a.qp->qp_type);
	CHECK(init.cap.max_send_wr >= 32 && init.cap.max_inline_data >= 64);
}

/* Checks that ERR flushes posted requests, and that RESET clears the attributes. */
static void check_flush_and_reset(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;

	post_recv(&a, 77, 0, 10);
	CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
	CHECK(wait_completion(a.cq).status == IBV_WC_WR_FLUSH_ERR);
	attr.qp_state = IBV_QPS_RESET;
	CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
	CHECK(ibv_query_qp(a.qp, &attr, ~0, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RESET && attr.dest_qp_num == 0);
}

int main(int argc, char **argv)
{
	int uc = argc > 1 && strcmp(argv[1], "uc") == 0;

	open_loopback_device();
	create_side(&a, uc ? IBV_QPT_UC : IBV_QPT_RC, NULL);
	create_side(&b, uc ? IBV_QPT_UC : IBV_QPT_RC, NULL);
	connect_sides(&a, &b);
	check_queried_qp_attributes(uc);
	check_sends();
	check_send_list();
	check_writes();
	if (!uc) {
		check_reads_and_atomics();
		check_memory_windows();
	}
	check_flush_and_reset();
	destroy_side(&a);
	destroy_side(&b);
	close_loopback_device();
	return 0;
}
