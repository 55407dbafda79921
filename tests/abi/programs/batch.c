/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Posts a list of 32 messages of 64 octets on a UD queue pair to a UDP port of loopback, which is
 * the argument of the program. Every octet of a message is the number of the message.
 */
#include "common.h"

#define COUNT 32
#define EACH  64

int main(int argc, char **argv)
{
	struct ibv_send_wr wr[COUNT] = { 0 }, *bad;
	struct ibv_sge sge[COUNT];
	struct ibv_ah_attr attr;
	struct ibv_ah *ah;
	struct side a;

	CHECK(argc == 2);
	open_loopback_device();
	create_side(&a, IBV_QPT_UD, NULL);
	move_qp_to_rts(a.qp, 0);
	attr = loopback_ah_attr();
	ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	for (int i = 0; i < COUNT; i++) {
		memset(a.buf + i * EACH, i, EACH);
		sge[i] = sge_of_side(&a, (size_t)i * EACH, EACH);
		wr[i] = (struct ibv_send_wr){
			.next = i + 1 < COUNT ? &wr[i + 1] : NULL,
			.sg_list = &sge[i],
			.num_sge = 1,
			.opcode = IBV_WR_SEND,
			.send_flags = i + 1 < COUNT ? 0 : IBV_SEND_SIGNALED,
			.wr.ud = { ah, (uint32_t)atoi(argv[1]), QKEY },
		};
	}
	CHECK(ibv_post_send(a.qp, wr, &bad) == 0);
	wait_success(a.cq);
	CHECK(ibv_destroy_ah(ah) == 0);
	destroy_side(&a);
	close_loopback_device();
	return 0;
}
