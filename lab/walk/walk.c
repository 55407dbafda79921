/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * walk TYPE FILE: two queue pairs of one process exchange messages of 64 octets, and the program
 * writes all calls of functions during the last message to FILE. A line is '>' and the address of a
 * function that is entered, '<' and the address of a function that returns, or "post" or "poll" in
 * front of each call of siw_post_send() or siw_poll_cq().
 *
 * lab/walk/__main__.py compiles the program with all layers and -finstrument-functions.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <siwarp/siw_ext.h>

#define PLAIN __attribute__((no_instrument_function))
enum { SIZE = 64, WARM_UP = 50, MOST_POLLS = 100000 };

struct end {
	struct siw_qp *qp;
	struct siw_cq *sends, *receives;
	struct siw_addr addr;
	char octets[2 * SIZE]; /* octets to send, then octets received */
	struct siw_mr *mr;
	struct siw_ah *ah; /* address handle of the other end */
};

static FILE *out;
static int recording;

void __cyg_profile_func_enter(void *function, void *site) PLAIN;
void __cyg_profile_func_exit(void *function, void *site) PLAIN;

void __cyg_profile_func_enter(void *function, void *site)
{
	(void)site;
	if (recording)
		fprintf(out, ">%p\n", function);
}

void __cyg_profile_func_exit(void *function, void *site)
{
	(void)site;
	if (recording)
		fprintf(out, "<%p\n", function);
}

PLAIN static void exit_unless(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "%s: %s: %s\n", what, strerror(errno), siw_reason());
	exit(1);
}

PLAIN static void exit_on_error(int result, const char *what)
{
	errno = -result;
	exit_unless(result >= 0, what);
}

PLAIN static void modify_qp_state(struct end *end, struct siw_qp_attr attr, int state, int mask)
{
	attr.qp_state = state;
	exit_on_error(siw_modify_qp(end->qp, &attr, SIW_QP_STATE | mask), "siw_modify_qp");
}

PLAIN static void open_endpoint(struct siw_context *context, struct siw_pd *pd, int type,
				const struct siw_addr *addr, struct end *end)
{
	struct siw_qp_init_attr init = { .qp_type = type, .by_qpn = type == SIW_QPT_RC };
	struct siw_qp_attr attr = { 0 };

	init.send_cq = end->sends = siw_create_cq(context, 64, NULL, NULL, 0);
	init.recv_cq = end->receives = siw_create_cq(context, 64, NULL, NULL, 0);
	exit_unless(end->sends && end->receives, "siw_create_cq");
	init.cap.max_send_wr = init.cap.max_recv_wr = 8;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	end->qp = siw_create_qp(pd, &init);
	exit_unless(end->qp != NULL, "siw_create_qp");
	end->mr = siw_reg_mr(pd, end->octets, sizeof(end->octets), SIW_ACCESS_LOCAL_WRITE);
	exit_unless(end->mr != NULL, "siw_reg_mr");
	modify_qp_state(end, attr, SIW_QPS_INIT, 0);
	end->addr = *addr;
	if (type != SIW_QPT_RC) /* an RC queue pair has no port before it is connected */
		exit_on_error(siw_qp_addr(end->qp, &end->addr, NULL), "siw_qp_addr");
}

PLAIN static void connect_endpoint(struct siw_pd *pd, int type, struct end *end,
				   const struct end *other)
{
	struct siw_qp_attr attr = { 0 };
	int mask = 0;

	if (type == SIW_QPT_RC) {
		attr.ah_addr = attr.ah_source = other->addr;
		attr.dest_qp_num = siw_qp_num(other->qp);
		mask = SIW_QP_AV | SIW_QP_DEST_QPN;
	}
	modify_qp_state(end, attr, SIW_QPS_RTR, mask);
	modify_qp_state(end, attr, SIW_QPS_RTS, 0);
	end->ah = siw_create_ah(pd, &other->addr);
	exit_unless(end->ah != NULL, "siw_create_ah");
}

PLAIN static void post_receive(struct end *end)
{
	struct siw_sge sge = { (uintptr_t)end->octets + SIZE, SIZE, end->mr->lkey };
	struct siw_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	exit_on_error(siw_post_recv(end->qp, &wr, &bad), "siw_post_recv");
}

PLAIN static void post_send(int type, struct end *end)
{
	struct siw_wc done[8];
	struct siw_sge sge = { (uintptr_t)end->octets, SIZE, end->mr->lkey };
	struct siw_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = SIW_WR_SEND }, *bad;

	wr.send_flags = SIW_SEND_SIGNALED;
	if (type == SIW_QPT_UD) {
		wr.wr.ud.ah = end->ah;
		wr.wr.ud.remote_qkey = 0x80000000;
	} else if (type == SIW_QPT_RD) {
		wr.rd.ah = end->ah;
	}
	if (recording)
		fputs("post\n", out);
	else
		exit_on_error(siw_poll_cq(end->sends, 8, done), "siw_poll_cq");
	exit_on_error(siw_post_send(end->qp, &wr, &bad), "siw_post_send");
}

PLAIN static void wait_for_message(struct end *end)
{
	struct siw_wc wc;
	int n = 0;

	for (int polls = 0; !n; polls++) {
		exit_unless(polls < MOST_POLLS, "no message arrived");
		if (recording)
			fputs("poll\n", out);
		n = siw_poll_cq(end->receives, 1, &wc);
		exit_on_error(n, "siw_poll_cq");
	}
	exit_unless(wc.status == SIW_WC_SUCCESS, siw_wc_status_str(wc.status));
	post_receive(end);
}

PLAIN int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int type;
	} types[] = { { "rc", SIW_QPT_RC }, { "ud", SIW_QPT_UD }, { "rd", SIW_QPT_RD } };
	struct siw_context *context;
	struct siw_addr addr;
	struct end a, b;
	struct siw_pd *pd;
	int type = -1;

	exit_unless(argc == 3, "usage: walk rc|ud|rd FILE");
	for (int i = 0; i < 3; i++)
		if (!strcmp(argv[1], types[i].name))
			type = types[i].type;
	out = fopen(argv[2], "w");
	exit_unless(type >= 0 && out && !siw_addr_parse("127.0.0.1", 0, &addr), argv[1]);
	setvbuf(out, NULL, _IOFBF, 1 << 20);
	context = siw_open_device_by_addr(&addr);
	exit_unless(context != NULL, "siw_open_device_by_addr");
	pd = siw_alloc_pd(context);
	exit_unless(pd != NULL, "siw_alloc_pd");
	open_endpoint(context, pd, type, &addr, &a);
	open_endpoint(context, pd, type, &addr, &b);
	connect_endpoint(pd, type, &a, &b);
	connect_endpoint(pd, type, &b, &a);
	post_receive(&a);
	post_receive(&b);
	for (int i = 0; i < WARM_UP; i++) {
		post_send(type, &a);
		wait_for_message(&b);
		post_send(type, &b);
		wait_for_message(&a);
	}
	recording = 1;
	post_send(type, &a);
	wait_for_message(&b);
	recording = 0;
	return fclose(out);
}
