/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ud_errors: an error on a UD queue pair, read from its error queue, and the recovery from it.
 *
 *   cc ud_errors.c $(siwarp config --cflags --libs) -o ud_errors && ./ud_errors
 *
 * One queue pair sends another a message that the other does not accept. The queue pair that
 * detected the error goes to the Error state (policy ERROR) and reports the error to the sender.
 * Each of the two error queues then has an entry for the error. The queue pair in the Error state
 * is reset, and traffic continues.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <siwarp/siw_ext.h>

enum { PATIENCE_MS = 10000 };

static char memory[2][64];
static struct siw_context *context;
static struct siw_cq *cq;
static struct siw_mr *mr;
/* The Q_Key of both queue pairs. Policy ERROR requires a Q_Key that other hosts do not know. */
static uint32_t qkey;

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

static struct siw_wc wait_for_completion(void)
{
	struct siw_wc wc;
	int n;

	do
		n = siw_poll_cq(cq, 1, &wc);
	while (n == 0);
	exit_on_error(n, "siw_poll_cq");
	return wc;
}

/* Move a queue pair from RESET to RTS, and post a receive while it is in INIT. */
static void modify_reset_to_rts(struct siw_qp *qp)
{
	struct siw_sge sge = { (uintptr_t)memory[1], sizeof(memory[1]), mr->lkey };
	struct siw_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;

	for (int state = SIW_QPS_INIT; state <= SIW_QPS_RTS; state++) {
		struct siw_qp_attr attr = { .qp_state = state, .qkey = qkey };

		exit_on_error(siw_modify_qp(qp, &attr,
					    SIW_QP_STATE |
						    (state == SIW_QPS_INIT ? SIW_QP_QKEY : 0)),
			      "siw_modify_qp");
		if (state == SIW_QPS_INIT)
			exit_on_error(siw_post_recv(qp, &wr, &bad), "siw_post_recv");
	}
}

/* Reap the flushed receive first, because the reset would discard its completion. */
static void recover_from_error(struct siw_qp *qp)
{
	struct siw_wc wc = wait_for_completion();

	printf("receive %llu: %s\n", (unsigned long long)wc.wr_id, siw_wc_status_str(wc.status));
	exit_on_error(siw_modify_qp(qp, &(struct siw_qp_attr){ .qp_state = SIW_QPS_RESET },
				    SIW_QP_STATE),
		      "siw_modify_qp");
	modify_reset_to_rts(qp);
}

/* Wait for the next asynchronous event; return its queue pair. */
static struct siw_qp *wait_for_async_event(void)
{
	struct siw_async_event e;

	exit_on_error(siw_get_async_event(context, &e, PATIENCE_MS), "siw_get_async_event");
	printf("event: %s\n", siw_event_type_str(e.event_type));
	siw_ack_async_event(&e);
	return e.element.qp;
}

/* Read and print all entries of the error queue; one error may cause several entries. */
static void print_qp_error_queue(struct siw_qp *qp)
{
	struct siw_err_entry errors[4];
	int n;

	while ((n = siw_poll_err(qp, 4, errors)) > 0)
		for (int i = 0; i < n; i++) {
			if (errors[i].origin == SIW_ERR_REPORTED)
				printf("the peer refused request %llu",
				       (unsigned long long)errors[i].wr_id);
			else
				printf("refused a peer's message");
			printf(": layer %d, type %d, code %#x\n", errors[i].layer, errors[i].type,
			       errors[i].code);
		}
	exit_on_error(n, "siw_poll_err");
}

static void post_request(struct siw_qp *qp, struct siw_ah *to, int opcode, uint64_t wr_id)
{
	struct siw_sge sge = { (uintptr_t)memory[0], (uint32_t)strlen(memory[0]), mr->lkey };
	struct siw_send_wr wr = {
		.wr_id = wr_id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
	};
	struct siw_send_wr *bad;

	/* A Write-Record and a Send hold the peer's address in different fields. */
	if (opcode == SIW_WR_RDMA_WRITE_RECORD) {
		wr.rd.ah = to;
		wr.rd.remote_qkey = qkey;
	} else {
		wr.wr.ud.ah = to;
		wr.wr.ud.remote_qkey = qkey;
	}
	exit_on_error(siw_post_send(qp, &wr, &bad), "siw_post_send");
}

int main(void)
{
	struct siw_qp_init_attr init = {
		.qp_type = SIW_QPT_UD,
		.error_policy = SIW_ERROR_POLICY_ERROR,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct siw_qp *sender, *target;
	struct siw_addr at;
	struct siw_ah *to;
	struct siw_pd *pd;

	exit_unless(getrandom(&qkey, sizeof(qkey), 0) == sizeof(qkey), "getrandom");
	qkey = (qkey & 0x7fffffff) |
	       1; /* a Q_Key other than 0; its top bit would select the sender's own Q_Key */
	exit_on_error(siw_addr_parse("127.0.0.1", 0, &init.addr), "siw_addr_parse");
	exit_unless((context = siw_open_device_by_addr(&init.addr)) != NULL,
		    "siw_open_device_by_addr");
	exit_unless((pd = siw_alloc_pd(context)) != NULL, "siw_alloc_pd");
	exit_unless((mr = siw_reg_mr(pd, memory, sizeof(memory), SIW_ACCESS_LOCAL_WRITE)) != NULL,
		    "siw_reg_mr");
	exit_unless((cq = siw_create_cq(context, 16, NULL, NULL, 0)) != NULL, "siw_create_cq");
	init.send_cq = init.recv_cq = cq;
	exit_unless((sender = siw_create_qp(pd, &init)) != NULL, "siw_create_qp");
	exit_unless((target = siw_create_qp(pd, &init)) != NULL, "siw_create_qp");
	modify_reset_to_rts(sender);
	modify_reset_to_rts(target);
	exit_on_error(siw_qp_addr(target, &at, NULL), "siw_qp_addr");
	exit_unless((to = siw_create_ah(pd, &at)) != NULL, "siw_create_ah");

	/* The target was created without max_write_records, so it accepts no Write-Records. */
	strcpy(memory[0], "after the error");
	post_request(sender, to, SIW_WR_RDMA_WRITE_RECORD, 17);
	for (int i = 0; i < 2; i++) { /* one event for each queue pair, in either order */
		struct siw_qp *qp = wait_for_async_event();

		print_qp_error_queue(qp);
		if (qp == target)
			recover_from_error(target);
	}
	post_request(sender, to, SIW_WR_SEND, 18);
	exit_on_error(wait_for_completion().status ? -EIO : 0, "the message after the error");
	printf("received: %s\n", memory[1]);

	siw_destroy_ah(to);
	siw_destroy_qp(sender);
	siw_destroy_qp(target);
	siw_destroy_cq(cq);
	siw_dereg_mr(mr);
	siw_dealloc_pd(pd);
	siw_close_device(context);
	return 0;
}
