/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A verbs program that uses siwarp's extensions: a reliable datagram and a Write-Record between two
 * queue pairs. siw_poll_err, for the error queue of UD, is called with siw_ibv_qp in the same way.
 *
 *   cc ibv_rd.c $(siwarp config --cflags --libs) -libverbs -o ibv_rd && siwarp run -- ./ibv_rd
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <siwarp/ibv_ext.h>

#define QKEY 0x1234u

static void exit_unless(int ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	exit(1);
}

/* Create a reliable datagram queue pair that accepts up to 16 Write-Records, in state RTS. */
static struct ibv_qp *create_rd_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq,
					 .recv_cq = cq,
					 .cap = { 16, 16, 1, 1, 0 },
					 .qp_type = (enum ibv_qp_type)SIW_QPT_RD };
	struct siw_qp_init_attr more = { .max_write_records = 16 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct ibv_qp *qp = siw_ibv_create_qp(pd, &init, &more);

	exit_unless(qp != NULL, "siw_ibv_create_qp");
	exit_unless(!ibv_modify_qp(qp, &attr,
				   IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
		    "INIT");
	attr.qp_state = IBV_QPS_RTR;
	exit_unless(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	exit_unless(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
	return qp;
}

/* Return the next completion with this opcode; completions with other opcodes are ignored. */
static struct ibv_wc wait_for_completion(struct ibv_cq *cq, int opcode)
{
	time_t end = time(NULL) + 20;
	struct ibv_wc wc;
	int n;

	do {
		n = ibv_poll_cq(cq, 1, &wc);
		exit_unless(n >= 0 && (n == 0 || wc.status == IBV_WC_SUCCESS), "a completion");
		if (n && (int)wc.opcode == opcode)
			return wc;
	} while (time(NULL) < end);
	fprintf(stderr, "no completion within 20 s\n");
	exit(1);
}

static void post_request(struct ibv_qp *qp, struct siw_send_wr *wr, struct ibv_mr *from,
			 const char *text)
{
	static struct siw_sge sge;
	struct siw_send_wr *bad;

	sge = (struct siw_sge){ (uintptr_t)from->addr, (uint32_t)strlen(text) + 1, from->lkey };
	memcpy(from->addr, text, sge.length);
	wr->sg_list = &sge;
	wr->num_sge = 1;
	wr->send_flags = SIW_SEND_SIGNALED;
	exit_unless(!siw_post_send(siw_ibv_qp(qp), wr, &bad), "siw_post_send");
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	static char from[64], to[64], at[64];
	struct siw_record_range range;
	struct siw_send_wr wr = { .opcode = SIW_WR_SEND };
	struct ibv_ah_attr path = { .is_global = 1, .port_num = 1 };
	struct ibv_context *ctx;
	struct ibv_mr *sent, *received, *target;
	struct ibv_recv_wr recv = { .num_sge = 1 }, *bad;
	struct siw_record record;
	struct ibv_qp *a, *b;
	struct ibv_sge room;
	struct ibv_cq *cq;
	struct ibv_pd *pd;
	struct ibv_wc wc;

	if (!siw_ibv_qp) {
		fprintf(stderr,
			"this libibverbs.so.1 is not siwarp's: start the program with siwarp run\n");
		return 1;
	}
	exit_unless(list && list[0], "ibv_get_device_list");
	ctx = ibv_open_device(list[0]);
	exit_unless(ctx != NULL, "ibv_open_device");
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	exit_unless(pd && cq, "pd and cq");
	a = create_rd_qp(pd, cq);
	b = create_rd_qp(pd, cq);
	sent = ibv_reg_mr(pd, from, sizeof(from), 0);
	received = ibv_reg_mr(pd, to, sizeof(to), IBV_ACCESS_LOCAL_WRITE);
	target = ibv_reg_mr(pd, at, sizeof(at), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	exit_unless(sent && received && target, "ibv_reg_mr");
	exit_unless(!ibv_query_gid(ctx, 1, 0, &path.grh.dgid), "ibv_query_gid");
	wr.rd.ah = siw_ibv_ah(ibv_create_ah(pd, &path));
	wr.rd.remote_qpn = b->qp_num;
	wr.rd.remote_qkey = QKEY;
	exit_unless(wr.rd.ah != NULL, "ibv_create_ah");

	room = (struct ibv_sge){ (uintptr_t)to, sizeof(to), received->lkey };
	recv.sg_list = &room;
	exit_unless(!ibv_post_recv(b, &recv, &bad), "ibv_post_recv");
	post_request(a, &wr, sent, "a reliable datagram");
	wait_for_completion(cq, IBV_WC_RECV);
	printf("received: %s\n", to);

	wr.opcode = SIW_WR_RDMA_WRITE_RECORD;
	wr.wr.rdma.remote_addr = (uintptr_t)at;
	wr.wr.rdma.rkey = target->rkey;
	post_request(a, &wr, sent, "a Write-Record");
	wc = wait_for_completion(cq, SIW_WC_RECV_WRITE_RECORD);
	exit_unless(siw_query_record(siw_ibv_qp(b), wc.wr_id, &record, &range, 1) == 1,
		    "siw_query_record");
	printf("written: %s, octets %u to %u of %u\n", at, range.start, range.end, record.length);
	return 0;
}
