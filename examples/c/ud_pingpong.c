/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ud_pingpong: round trips of datagrams through two UD queue pairs.
 *
 *   cc ud_pingpong.c $(siwarp config --cflags --libs) -o ud_pingpong
 *   ./ud_pingpong                        prints its port and answers
 *   ./ud_pingpong 127.0.0.1 PORT [COUNT]
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <siwarp/siw_ext.h>

enum { SIZE = 64, SLOTS = 8 };

static char memory[SLOTS + 1][SIZE]; /* the last slot is the send buffer */
static struct siw_mr *mr;
static struct siw_qp *qp;
static struct siw_cq *sends, *receives;

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

/* Polls until a completion arrives; source may be NULL. */
static struct siw_wc wait_for_completion(struct siw_cq *cq, struct siw_addr *source)
{
	struct siw_wc wc;
	int n;

	do
		n = siw_poll_cq_from(cq, 1, &wc, source);
	while (n == 0);
	exit_on_error(n, "siw_poll_cq_from");
	if (wc.status) {
		fprintf(stderr, "completion: %s\n", siw_wc_status_str(wc.status));
		exit(1);
	}
	return wc;
}

static void post_recv(uint64_t slot)
{
	struct siw_sge sge = { (uintptr_t)memory[slot], SIZE, mr->lkey };
	struct siw_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	exit_on_error(siw_post_recv(qp, &wr, &bad), "siw_post_recv");
}

/* qpn 0: the port of the address handle identifies the queue pair. */
static void post_send(struct siw_ah *ah, uint32_t qpn)
{
	struct siw_sge sge = { (uintptr_t)memory[SLOTS], SIZE, mr->lkey };
	struct siw_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = SIW_WR_SEND,
		.send_flags = SIW_SEND_SIGNALED,
		/* the top bit selects this queue pair's own Q_Key */
		.wr.ud = { .ah = ah, .remote_qpn = qpn, .remote_qkey = 0x80000000 },
	};
	struct siw_send_wr *bad;

	exit_on_error(siw_post_send(qp, &wr, &bad), "siw_post_send");
	/*
	 * Until its completion is polled, the send occupies its buffer and the send queue's only
	 * slot. In a CQ for sends and receives, that completion could come after the answer's.
	 */
	wait_for_completion(sends, NULL);
}

static void echo_messages(struct siw_pd *pd)
{
	struct siw_addr source;

	for (;;) {
		struct siw_wc wc = wait_for_completion(receives, &source);
		struct siw_ah *ah = siw_create_ah(pd, &source);

		exit_unless(ah != NULL, "siw_create_ah");
		memcpy(memory[SLOTS], memory[wc.wr_id], SIZE);
		post_recv(wc.wr_id);
		/* Name the sender's queue pair, because several queue pairs may share a socket. */
		post_send(ah, wc.src_qp);
		siw_destroy_ah(ah);
		if (!strncmp(memory[SLOTS], "bye", 3))
			return;
	}
}

static void run_client(struct siw_pd *pd, const struct siw_addr *dest, int count)
{
	struct siw_ah *ah = siw_create_ah(pd, dest);
	struct siw_addr source;
	struct timespec begin, end;

	exit_unless(ah != NULL, "siw_create_ah");
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (int i = 1; i <= count; i++) {
		uint64_t slot;

		snprintf(memory[SLOTS], SIZE, i < count ? "ping %d" : "bye %d", i);
		post_send(ah, 0);
		slot = wait_for_completion(receives, &source).wr_id;
		if (memcmp(memory[slot], memory[SLOTS], SIZE)) {
			fprintf(stderr, "message %d came back with other contents\n", i);
			exit(1);
		}
		post_recv(slot);
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("%d round trips, %.2f us each\n", count,
	       ((double)(end.tv_sec - begin.tv_sec) * 1e6 +
		(double)(end.tv_nsec - begin.tv_nsec) / 1e3) /
		       count);
	siw_destroy_ah(ah);
}

int main(int argc, char **argv)
{
	struct siw_qp_init_attr init = {
		.qp_type = SIW_QPT_UD,
		.cap = { .max_send_wr = 1,
			 .max_recv_wr = SLOTS,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct siw_addr dest, self;
	struct siw_context *context;
	struct siw_pd *pd;
	char text[64];

	if (argc == 2 || argc > 4) {
		fprintf(stderr, "usage: %s [ADDRESS PORT [COUNT]]\n", argv[0]);
		return 2;
	}
	exit_on_error(siw_addr_parse("127.0.0.1", 0, &init.addr), "siw_addr_parse");
	if (argc > 2)
		exit_on_error(siw_addr_parse(argv[1], (uint16_t)atoi(argv[2]), &dest), argv[1]);
	exit_unless((context = siw_open_device_by_addr(&init.addr)) != NULL,
		    "siw_open_device_by_addr");
	exit_unless((pd = siw_alloc_pd(context)) != NULL, "siw_alloc_pd");
	exit_unless((mr = siw_reg_mr(pd, memory, sizeof(memory), SIW_ACCESS_LOCAL_WRITE)) != NULL,
		    "siw_reg_mr");
	exit_unless((sends = siw_create_cq(context, 1, NULL, NULL, 0)) != NULL, "siw_create_cq");
	exit_unless((receives = siw_create_cq(context, SLOTS, NULL, NULL, 0)) != NULL,
		    "siw_create_cq");
	init.send_cq = sends;
	init.recv_cq = receives;
	exit_unless((qp = siw_create_qp(pd, &init)) != NULL, "siw_create_qp");
	for (int state = SIW_QPS_INIT; state <= SIW_QPS_RTS; state++)
		exit_on_error(siw_modify_qp(qp, &(struct siw_qp_attr){ .qp_state = state },
					    SIW_QP_STATE),
			      "siw_modify_qp");
	for (uint64_t slot = 0; slot < SLOTS; slot++)
		post_recv(slot);

	if (argc > 2) {
		run_client(pd, &dest, argc > 3 ? atoi(argv[3]) : 1000);
	} else {
		exit_on_error(siw_qp_addr(qp, &self, NULL), "siw_qp_addr");
		printf("%s\n", siw_addr_format(&self, text, sizeof(text)));
		fflush(stdout);
		echo_messages(pd);
	}
	siw_destroy_qp(qp);
	siw_destroy_cq(sends);
	siw_destroy_cq(receives);
	siw_dereg_mr(mr);
	siw_dealloc_pd(pd);
	exit_on_error(siw_close_device(context), "siw_close_device");
	return 0;
}
