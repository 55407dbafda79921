/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests the error queue through <siwarp/ibv_ext.h>: a message longer than its receive is reported
 * to the sender, whose queue pair has the per-message error policy and stays usable.
 */
#include <siwarp/ibv_ext.h>

#include "../common.h"

/* Waits for the next error of a queue pair, and returns the error. */
static struct siw_err_entry wait_for_reported_error(struct ibv_qp *qp)
{
	struct siw_err_entry entry;
	double end = now_seconds() + SECONDS;
	int n;

	do
		n = siw_poll_err(siw_ibv_qp(qp), 1, &entry);
	while (n == 0 && now_seconds() < end);
	CHECK(n == 1);
	return entry;
}

/* Replaces the queue pair of one of the two sides by one with the per-message error policy. */
static void recreate_qp_with_message_error_policy(struct side *side)
{
	struct ibv_qp_init_attr init = default_qp_attr(side->cq, IBV_QPT_UD);
	struct siw_qp_init_attr more = { .error_policy = SIW_ERROR_POLICY_MESSAGE };

	CHECK(ibv_destroy_qp(side->qp) == 0);
	side->qp = siw_ibv_create_qp(pd, &init, &more);
	CHECK(side->qp);
	move_qp_to_init(side->qp);
}

int main(void)
{
	struct ibv_ah_attr attr;
	struct siw_err_entry entry;
	struct ibv_send_wr wr = {
		.wr_id = 77, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED
	};
	struct ibv_send_wr *bad;
	struct ibv_sge sge;
	struct side a, b;

	open_loopback_device();
	create_side(&a, IBV_QPT_UD, NULL);
	create_side(&b, IBV_QPT_UD, NULL);
	recreate_qp_with_message_error_policy(&a);
	move_qp_to_rts(a.qp, 0);
	move_qp_to_rts(b.qp, 0);
	CHECK(siw_poll_err(siw_ibv_qp(a.qp), 1, &entry) == 0);
	attr = loopback_ah_attr();
	wr.wr.ud.ah = ibv_create_ah(pd, &attr);
	CHECK(wr.wr.ud.ah);
	wr.wr.ud.remote_qpn = b.qp->qp_num;
	wr.wr.ud.remote_qkey = QKEY;
	sge = sge_of_side(&a, 0, 64);
	wr.sg_list = &sge;
	post_recv(&b, 1, 0, 50); /* a receive of 50 octets, of which the GRH takes 40 */
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	wait_success(a.cq);
	CHECK(wait_completion(b.cq).status == IBV_WC_LOC_LEN_ERR);
	entry = wait_for_reported_error(a.qp);
	CHECK(entry.origin == SIW_ERR_REPORTED && entry.wr_id == 77);
	CHECK(entry.layer == 1 && entry.type == 2 && entry.code == 5);
	CHECK(entry.src_qpn == b.qp->qp_num);
	CHECK(siw_poll_err(siw_ibv_qp(a.qp), 1, &entry) == 0);
	/* Both queue pairs remain usable after the error. */
	post_recv(&b, 2, 0, 128);
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	wait_success(a.cq);
	CHECK(wait_success(b.cq).wr_id == 2);
	CHECK(ibv_destroy_ah(wr.wr.ud.ah) == 0);
	destroy_side(&a);
	destroy_side(&b);
	close_loopback_device();
	return 0;
}
