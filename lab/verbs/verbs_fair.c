/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Round trips on 200 quiet queue pairs, one after another, during a flood on another queue pair, on
 * which the client keeps a window of messages in flight. The run "quiet" is the same without the
 * flood. Client and server have one thread each and one CQ for all queue pairs. The figure is the
 * complete round trip on a quiet queue pair.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "lab/verbs/verbs.h"

#define QUIET	    200
#define QUIET_SIZE  64
#define QUIET_SLOTS 2
#define OWN_QKEY    0x80000000u
#define CM_WAIT_MS  5000
#define FLOOD	    QUIET /* index of the flooding QP */
#define FILL	    4	  /* messages posted between two polls of the CQ */

struct one {
	struct siw_qp *qp;
	struct siw_ah *ah;
	struct siw_cm_id *id;
	char *slots; /* memory for receives */
	uint32_t stride;
};

struct fairness_end {
	const struct siw_bench_opts *o;
	struct siw_context *context;
	struct siw_pd *pd;
	struct siw_cq *cq;
	struct siw_cm_channel *cm;
	struct siw_cm_id *listener;
	struct siw_mr *mr;
	struct siw_bench_buf buf;
	struct one all[QUIET + 1];
	struct siw_bench_guard guard;
	uint32_t sent,
		credited; /* client: flood messages sent, and those whose credit the server returned */
	uint32_t flooded,
		repaid;	 /* server: flood messages received, and those whose credit was returned */
	bool echoed;	 /* client: whether the answer on the quiet QP has arrived */
	uint32_t served; /* server: number of answered messages of quiet QPs */
};

/* ---- requests: wr_id is the QP's number, then the slot --------------------------------------- */

static void fairness_post_recv(struct fairness_end *c, uint32_t number, uint32_t slot)
{
	struct one *one = &c->all[number];
	struct siw_sge sge = { .addr = (uintptr_t)one->slots + (uint64_t)slot * one->stride,
			       .length = one->stride,
			       .lkey = c->mr->lkey };
	struct siw_recv_wr *bad,
		wr = { .wr_id = (uint64_t)number << 32 | slot, .sg_list = &sge, .num_sge = 1 };

	siw_bench_exit_on_error(siw_post_recv(one->qp, &wr, &bad), "posting a receive");
}

static void fairness_post_send(struct fairness_end *c, uint32_t number, uint32_t size,
			       bool signalled)
{
	struct one *one = &c->all[number];
	struct siw_sge sge = { .addr = (uintptr_t)c->buf.base,
			       .length = size,
			       .lkey = c->mr->lkey };
	struct siw_send_wr *bad, wr = { .sg_list = &sge,
					.num_sge = 1,
					.opcode = SIW_WR_SEND,
					.send_flags = signalled ? SIW_SEND_SIGNALED : 0 };

	if (one->ah) {
		wr.wr.ud.ah = one->ah;
		wr.wr.ud.remote_qkey = OWN_QKEY;
	}
	siw_bench_exit_on_error(siw_post_send(one->qp, &wr, &bad), "posting a send");
}

/* ---- sending the flood ----------------------------------------------------------------------- */

static uint32_t fairness_count_of_flood_slots(const struct siw_bench_opts *o)
{
	return 2 * o->depth + 2;
}

static void fairness_post_flood(struct fairness_end *c)
{
	for (int i = 0; i < FILL && c->sent - c->credited < c->o->depth; i++) {
		c->sent++;
		fairness_post_send(c, FLOOD, (uint32_t)c->o->size,
				   c->sent % SIW_BENCH_SIGNAL_EVERY == 0);
	}
}

static void fairness_post_credit_messages(struct fairness_end *c)
{
	uint32_t half = siw_bench_credit_size(c->o);

	for (; c->flooded - c->repaid >= half; c->repaid += half)
		fairness_post_send(c, FLOOD, 1, true);
}

/* ---- completions ----------------------------------------------------------------------------- */

static void fairness_handle_completion(struct fairness_end *c, const struct siw_wc *wc)
{
	uint32_t number = (uint32_t)(wc->wr_id >> 32);

	if (wc->status != SIW_WC_SUCCESS)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "a request failed: %s (0x%06x)",
			      siw_wc_status_str(wc->status), wc->vendor_err);
	if (wc->opcode != SIW_WC_RECV)
		return;
	fairness_post_recv(c, number, (uint32_t)wc->wr_id);
	if (number != FLOOD && c->o->server) {
		fairness_post_send(c, number, QUIET_SIZE, true);
		c->served++;
	} else if (number != FLOOD) {
		c->echoed = true;
	} else if (c->o->server) {
		c->flooded++;
		fairness_post_credit_messages(c);
	} else {
		c->credited += siw_bench_credit_size(c->o);
	}
}

static void fairness_poll_completions(struct fairness_end *c)
{
	struct siw_wc wc[SIW_BENCH_BATCH];
	int n = siw_poll_cq(c->cq, SIW_BENCH_BATCH, wc);

	siw_bench_exit_on_error(n, "polling");
	for (int i = 0; i < n; i++)
		fairness_handle_completion(c, &wc[i]);
	if (n)
		siw_bench_reset_idle(&c->guard);
	else if (siw_bench_idle(&c->guard))
		siw_bench_die(SIW_BENCH_EXIT_LOST, "a message did not arrive");
}

static void fairness_run_server(struct fairness_end *c, uint32_t n)
{
	for (uint32_t until = c->served + n; c->served < until;)
		fairness_poll_completions(c);
}

static void fairness_run_client(struct fairness_end *c, uint32_t n, uint64_t *ns)
{
	bool flood = strcmp(c->o->run, "quiet") != 0;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t start = siw_bench_now();

		c->echoed = false;
		fairness_post_send(c, i % QUIET, QUIET_SIZE, true);
		while (!c->echoed) {
			if (flood)
				fairness_post_flood(c);
			fairness_poll_completions(c);
		}
		if (ns)
			ns[i] = siw_bench_now() - start;
	}
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static void fairness_create_qp(struct fairness_end *c, uint32_t number)
{
	struct one *one = &c->all[number];
	uint32_t slots = number == FLOOD ? fairness_count_of_flood_slots(c->o) : QUIET_SLOTS;
	struct siw_qp_init_attr init = {
		.send_cq = c->cq,
		.recv_cq = c->cq,
		.qp_type = c->o->rc ? SIW_QPT_RC : SIW_QPT_UD,
		.cap = { .max_send_wr = number == FLOOD ? 2 * c->o->depth + 64 : 8,
			 .max_recv_wr = slots,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};

	one->stride = number == FLOOD ? (uint32_t)c->buf.stride : QUIET_SIZE;
	one->slots = number == FLOOD
			     ? siw_bench_slot(&c->buf, 0)
			     : siw_bench_slot(&c->buf, fairness_count_of_flood_slots(c->o)) +
				       (size_t)number * QUIET_SLOTS * QUIET_SIZE;
	if (!c->o->rc)
		siw_bench_exit_on_error(siw_addr_parse("127.0.0.1", 0, &init.addr), "the address");
	one->qp = siw_bench_require_object(siw_create_qp(c->pd, &init), "a queue pair");
}

static void fairness_post_all_recvs(struct fairness_end *c, uint32_t number)
{
	uint32_t slots = number == FLOOD ? fairness_count_of_flood_slots(c->o) : QUIET_SLOTS;

	for (uint32_t i = 0; i < slots; i++)
		fairness_post_recv(c, number, i);
}

static void fairness_open_ud_qp(struct fairness_end *c, uint32_t number)
{
	struct one *one = &c->all[number];
	struct siw_addr a;

	fairness_create_qp(c, number);
	for (int s = SIW_QPS_INIT; s <= SIW_QPS_RTS; s++) {
		struct siw_qp_attr attr = { .qp_state = s };

		siw_bench_exit_on_error(siw_modify_qp(one->qp, &attr, SIW_QP_STATE),
					"changing the state of the queue pair");
	}
	fairness_post_all_recvs(c, number);
	siw_bench_exit_on_error(siw_qp_addr(one->qp, &a, NULL), "the queue pair's address");
	a.port_be = htons((uint16_t)siw_bench_exchange_number(c->o->ctl, ntohs(a.port_be)));
	one->ah = siw_bench_require_object(siw_create_ah(c->pd, &a), "an address handle");
}

static struct siw_cm_id *fairness_expect_cm_event(struct fairness_end *c, int type)
{
	struct siw_cm_event event;

	siw_bench_exit_on_error(siw_cm_get_event(c->cm, &event, CM_WAIT_MS),
				"waiting for the connection");
	if (event.event != type)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "connecting: %s (%s)",
			      siw_cm_event_str(event.event), strerror(-event.status));
	return event.id;
}

static uint16_t fairness_listen_for_client(struct fairness_end *c)
{
	struct siw_addr a;

	siw_bench_exit_on_error(siw_addr_parse("127.0.0.1", 0, &a), "the address");
	c->listener = siw_bench_require_object(siw_cm_create_id(c->cm, NULL), "a CM id");
	siw_bench_exit_on_error(siw_cm_listen(c->listener, &a, 1), "listening");
	siw_bench_exit_on_error(siw_cm_addr(c->listener, &a, NULL), "the listener's address");
	return ntohs(a.port_be);
}

static void fairness_open_rc_qp(struct fairness_end *c, uint32_t number, uint16_t port)
{
	struct one *one = &c->all[number];
	struct siw_addr a;

	one->id = c->o->server ? fairness_expect_cm_event(c, SIW_CM_CONNECT_REQUEST)
			       : siw_bench_require_object(siw_cm_create_id(c->cm, NULL), "a CM id");
	fairness_create_qp(c, number);
	siw_bench_exit_on_error(siw_cm_bind_qp(one->id, one->qp), "binding the queue pair");
	fairness_post_all_recvs(c, number);
	siw_bench_exit_on_error(siw_addr_parse("127.0.0.1", port, &a), "the address");
	if (c->o->server)
		siw_bench_exit_on_error(siw_cm_accept(one->id, NULL), "accepting");
	else
		siw_bench_exit_on_error(siw_cm_connect(one->id, &a, NULL, NULL), "connecting");
	fairness_expect_cm_event(c, SIW_CM_ESTABLISHED);
	/*
	 * Both sides wait for each other, because the next connection request could otherwise
	 * arrive before the peer's ESTABLISHED event of this connection.
	 */
	siw_bench_exchange_number(c->o->ctl, 0);
}

static void fairness_open_all_qps(struct fairness_end *c)
{
	uint32_t slots = fairness_count_of_flood_slots(c->o);
	uint64_t quiet = (uint64_t)QUIET * QUIET_SLOTS * QUIET_SIZE / c->o->size + 1;
	struct siw_addr a;
	uint16_t port = 0;

	siw_bench_raise_fd_limit(QUIET + 1);
	siw_bench_buf_make(&c->buf, c->o->size, slots + (uint32_t)quiet);
	siw_bench_exit_on_error(siw_addr_parse("127.0.0.1", 0, &a), "the address");
	c->context = siw_bench_require_object(siw_open_device_by_addr(&a), "opening the device");
	c->pd = siw_bench_require_object(siw_alloc_pd(c->context), "a protection domain");
	c->cq = siw_bench_require_object(
		siw_create_cq(c->context, (int)(4 * slots + 16 * QUIET + 256), NULL, NULL, 0),
		"a completion queue");
	c->mr = siw_bench_require_object(siw_reg_mr(c->pd, c->buf.base, c->buf.length,
						    SIW_ACCESS_LOCAL_WRITE),
					 "registering");
	if (c->o->rc) {
		c->cm = siw_bench_require_object(siw_cm_create_channel(c->context), "a CM channel");
		port = (uint16_t)siw_bench_exchange_number(
			c->o->ctl, c->o->server ? fairness_listen_for_client(c) : 0);
	}
	for (uint32_t i = 0; i <= QUIET; i++) {
		if (c->o->rc)
			fairness_open_rc_qp(c, i, port);
		else
			fairness_open_ud_qp(c, i);
	}
	siw_bench_pin_thread(c->o->cpu);
}

static void fairness_close_all_qps(struct fairness_end *c)
{
	for (uint32_t i = 0; i <= QUIET; i++) {
		struct one *one = &c->all[i];

		if (one->id)
			siw_bench_exit_on_error(siw_cm_destroy_id(one->id), "destroying the CM id");
		if (one->ah)
			siw_bench_exit_on_error(siw_destroy_ah(one->ah),
						"destroying the address handle");
		siw_bench_exit_on_error(siw_destroy_qp(one->qp), "destroying the queue pair");
	}
	if (c->listener)
		siw_bench_exit_on_error(siw_cm_destroy_id(c->listener), "destroying the listener");
	if (c->cm)
		siw_bench_exit_on_error(siw_cm_destroy_channel(c->cm), "destroying the CM channel");
	siw_bench_exit_on_error(siw_dereg_mr(c->mr), "deregistering");
	siw_bench_exit_on_error(siw_destroy_cq(c->cq), "destroying the completion queue");
	siw_bench_exit_on_error(siw_dealloc_pd(c->pd), "freeing the protection domain");
	siw_bench_exit_on_error(siw_close_device(c->context), "closing the device");
	siw_bench_buf_free(&c->buf);
}

void siw_lab_measure_fairness(const struct siw_bench_opts *o, struct siw_bench_result *result)
{
	struct fairness_end *c = siw_bench_require_object(calloc(1, sizeof(*c)), "the queue pairs");
	uint64_t *ns = siw_bench_require_object(calloc(o->iters, sizeof(*ns)), "the samples");

	c->o = o;
	fairness_open_all_qps(c);
	siw_bench_exchange_number(o->ctl, 0);
	if (o->server) {
		fairness_run_server(c, o->warmup + o->iters);
	} else {
		fairness_run_client(c, o->warmup, NULL);
		fairness_run_client(c, o->iters, ns);
	}
	siw_bench_exchange_number(o->ctl, 0);
	siw_bench_summarize_samples(ns, o->iters, 1, result);
	fairness_close_all_qps(c);
	free(ns);
	free(c);
}
