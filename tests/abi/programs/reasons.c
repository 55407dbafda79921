/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Makes the mistakes that programs make with queue pairs, address handles and regions. Before each
 * refused call it writes a line "# NAME" to stderr, so that with SIWARP_LOG=warn the reason follows
 * its name.
 */
#include "common.h"

#define REFUSED(name, call)                      \
	do {                                     \
		fprintf(stderr, "# %s\n", name); \
		CHECK(call);                     \
	} while (0)

#define TO_RTR                                                                          \
	(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | \
	 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)

static struct ibv_qp_init_attr init;

static void check_refused_device_calls(void)
{
	struct ibv_port_attr port;
	union ibv_gid entry;
	char memory[64];

	REFUSED("port", ibv_query_port(ctx, 0, &port) == EINVAL);
	REFUSED("gid index", ibv_query_gid(ctx, 1, 99, &entry) == -1);
	REFUSED("access", !ibv_reg_mr(pd, memory, 64, 1 << 19));
	REFUSED("remote write", !ibv_reg_mr(pd, memory, 64, IBV_ACCESS_REMOTE_WRITE));
	REFUSED("comp_vector", !ibv_create_cq(ctx, 1, NULL, NULL, 1000));
	REFUSED("no attributes", !ibv_create_qp(pd, NULL));
	REFUSED("type", !ibv_create_qp(pd, &(struct ibv_qp_init_attr){ .qp_type = 77 }));
	REFUSED("raw packets",
		!ibv_create_qp(pd, &(struct ibv_qp_init_attr){ .qp_type = IBV_QPT_RAW_PACKET }));
	REFUSED("no CQ", !ibv_create_qp(pd, &(struct ibv_qp_init_attr){ .qp_type = IBV_QPT_UD }));
}

static void check_refused_addresses(void)
{
	struct ibv_ah_attr attr = loopback_ah_attr();

	attr.is_global = 0;
	attr.dlid = 1;
	REFUSED("is_global", !ibv_create_ah(pd, &attr));
	attr = loopback_ah_attr();
	attr.port_num = 2;
	REFUSED("ah port", !ibv_create_ah(pd, &attr));
	attr = loopback_ah_attr();
	attr.grh.sgid_index = 200;
	REFUSED("sgid_index", !ibv_create_ah(pd, &attr));
	attr = loopback_ah_attr();
	memset(&attr.grh.dgid, 0, sizeof(attr.grh.dgid));
	REFUSED("dgid", !ibv_create_ah(pd, &attr));
}

static void check_refused_transitions(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR,
				    .path_mtu = 1024,
				    .dest_qp_num = 1,
				    .ah_attr = loopback_ah_attr() };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;

	REFUSED("post in RESET", ibv_post_send(qp, &wr, &bad) == EINVAL);
	REFUSED("RESET to RTR", ibv_modify_qp(qp, &attr, TO_RTR & ~IBV_QP_PATH_MTU) == EINVAL);
	move_qp_to_init(qp);
	REFUSED("mtu in octets", ibv_modify_qp(qp, &attr, TO_RTR) == EINVAL);
	attr.path_mtu = IBV_MTU_1024;
	REFUSED("missing bits", ibv_modify_qp(qp, &attr, TO_RTR & ~IBV_QP_RQ_PSN) == EINVAL);
	REFUSED("more bits", ibv_modify_qp(qp, &attr, TO_RTR | IBV_QP_QKEY) == EINVAL);
	attr.dest_qp_num = 0x12345678;
	REFUSED("dest_qp_num", ibv_modify_qp(qp, &attr, TO_RTR) == EINVAL);
}

int main(void)
{
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	open_loopback_device();
	cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	init = (struct ibv_qp_init_attr){ .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC };
	init.cap.max_send_wr = init.cap.max_recv_wr = 4;
	qp = ibv_create_qp(pd, &init);
	CHECK(cq && qp);
	check_refused_device_calls();
	check_refused_addresses();
	check_refused_transitions(qp);
	REFUSED("busy CQ", ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0);
	REFUSED("destroyed", ibv_destroy_qp(qp) == EINVAL);
	CHECK(ibv_destroy_cq(cq) == 0);
	close_loopback_device();
	return 0;
}
