/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rc_by_qpn: two connected queue pairs without a connection manager, as in programs for InfiniBand:
 * each side sends its address and QPN to the other by other means, here by manual input.
 *
 *   cc rc_by_qpn.c $(siwarp config --cflags --libs) -o rc_by_qpn
 *   ./rc_by_qpn 127.0.0.1       in two terminals: enter in each the line of the other process
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <siwarp/siw_ext.h>

enum { SIZE = 64 };

static char in[SIZE], out[SIZE];

static void exit_unless(int good, const char *what)
{
	if (good)
		return;
	/* siw_reason() names the rule that a call violated, and the remedy. */
	fprintf(stderr, "%s: %s: %s\n", what, strerror(errno), siw_reason());
	exit(1);
}

/* Check the result of a function that returns a negative errno value on failure. */
static void exit_on_error(int result, const char *what)
{
	errno = -result;
	exit_unless(result >= 0, what);
}

static void modify_qp_state(struct siw_qp *qp, struct siw_qp_attr *attr, int state, int mask)
{
	attr->qp_state = state;
	exit_on_error(siw_modify_qp(qp, attr, SIW_QP_STATE | mask), "siw_modify_qp");
}

/* Either side may start first: posted requests wait for the other side, at least three seconds. */
static void connect_qp(struct siw_qp *qp, const struct siw_addr *own, const struct siw_addr *peer,
		       uint32_t qpn)
{
	struct siw_qp_attr attr = { .ah_addr = *peer, .ah_source = *own, .dest_qp_num = qpn };

	attr.timeout = 20; /* posted requests wait for the peer, for 8 x 4.3 s */
	attr.retry_cnt = 7;
	modify_qp_state(qp, &attr, SIW_QPS_RTR, SIW_QP_AV | SIW_QP_DEST_QPN);
	modify_qp_state(qp, &attr, SIW_QPS_RTS, SIW_QP_TIMEOUT | SIW_QP_RETRY_CNT);
}

static void exchange_greetings(struct siw_qp *qp, struct siw_cq *cq, struct siw_mr *mr)
{
	struct siw_sge sge = { (uintptr_t)out, SIZE, mr->lkey };
	struct siw_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct siw_wc wc;
	int n, left = 2;

	wr.opcode = SIW_WR_SEND;
	wr.send_flags = SIW_SEND_SIGNALED;
	exit_on_error(siw_post_send(qp, &wr, &bad), "siw_post_send");
	while (left) {
		n = siw_poll_cq(cq, 1, &wc);
		exit_on_error(n, "siw_poll_cq");
		if (!n)
			continue;
		if (wc.status) {
			fprintf(stderr, "completion: %s\n", siw_wc_status_str(wc.status));
			exit(1);
		}
		left--;
	}
	printf("the peer says: %s\n", in);
}

int main(int argc, char **argv)
{
	struct siw_qp_init_attr init = { .qp_type = SIW_QPT_RC, .by_qpn = 1 };
	struct siw_qp_attr attr = { 0 };
	struct siw_addr own, peer;
	struct siw_context *context;
	struct siw_mr *in_mr, *out_mr;
	struct siw_recv_wr wr = { .wr_id = 1, .num_sge = 1 }, *bad;
	struct siw_sge sge;
	struct siw_pd *pd;
	struct siw_qp *qp;
	char host[64];
	unsigned int qpn;

	exit_unless(argc == 2 && !siw_addr_parse(argv[1], 0, &own), "usage: rc_by_qpn ADDRESS");
	context = siw_open_device_by_addr(&own);
	exit_unless(context != NULL, "siw_open_device_by_addr");
	pd = siw_alloc_pd(context);
	exit_unless(pd != NULL, "siw_alloc_pd");
	init.send_cq = init.recv_cq = siw_create_cq(context, 16, NULL, NULL, 0);
	exit_unless(init.send_cq != NULL, "siw_create_cq");
	in_mr = siw_reg_mr(pd, in, SIZE, SIW_ACCESS_LOCAL_WRITE);
	out_mr = siw_reg_mr(pd, out, SIZE, 0);
	exit_unless(in_mr && out_mr, "siw_reg_mr");
	init.cap.max_send_wr = init.cap.max_recv_wr = 4;
	qp = siw_create_qp(pd, &init);
	exit_unless(qp != NULL, "siw_create_qp");
	modify_qp_state(qp, &attr, SIW_QPS_INIT, 0);
	sge = (struct siw_sge){ (uintptr_t)in, SIZE, in_mr->lkey };
	wr.sg_list = &sge;
	exit_on_error(siw_post_recv(qp, &wr, &bad), "siw_post_recv");

	printf("%s %u\n", argv[1], siw_qp_num(qp));
	fflush(stdout);
	exit_unless(scanf("%63s %u", host, &qpn) == 2 && !siw_addr_parse(host, 0, &peer),
		    "enter the line of the other process: its ADDRESS and QPN");
	snprintf(out, SIZE, "hello from QPN %u", siw_qp_num(qp));
	connect_qp(qp, &own, &peer, qpn);
	exchange_greetings(qp, init.send_cq, out_mr);

	siw_destroy_qp(qp);
	siw_destroy_cq(init.send_cq);
	siw_dereg_mr(in_mr);
	siw_dereg_mr(out_mr);
	siw_dealloc_pd(pd);
	return siw_close_device(context) != 0;
}
