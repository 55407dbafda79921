/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Client or server that uses siwarp's public interface: set-up, the steps that all runs share, and
 * the runs of latency, bandwidth and message rate.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_siwarp.h"

#define OWN_QKEY      0x80000000u
#define CM_WAIT_MS    5000
#define LAT_RECVS     16
#define CREDIT_OCTETS 4
#define NO_SLOT	      UINT64_MAX

/* ---- posting and waiting --------------------------------------------------------------------- */

void siw_bench_post_recv(struct siw_bench_side *e, uint64_t slot)
{
	struct siw_sge sge = { .addr = (uintptr_t)siw_bench_slot(&e->buf, (uint32_t)slot),
			       .length = (uint32_t)e->buf.stride,
			       .lkey = e->mr->lkey };
	struct siw_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	siw_bench_exit_on_error(siw_post_recv(e->qp, &wr, &bad), "posting a receive");
}

static void bench_post_send(struct siw_bench_side *e, struct siw_send_wr *wr)
{
	struct siw_send_wr *bad;

	if (++e->posted % SIW_BENCH_SIGNAL_EVERY == 0)
		wr->send_flags |= SIW_SEND_SIGNALED;
	siw_bench_exit_on_error(siw_post_send(e->qp, wr, &bad), "posting a send");
}

/* Set the peer's address in a request, which every UD and RD request needs. */
static void bench_set_dest_address(const struct siw_bench_side *e, struct siw_send_wr *wr)
{
	if (e->o->rd) {
		wr->rd.ah = e->ah;
	} else if (e->ah) {
		wr->wr.ud.ah = e->ah;
		wr->wr.ud.remote_qkey = OWN_QKEY;
	}
}

void siw_bench_post_send(struct siw_bench_side *e, uint32_t size)
{
	struct siw_sge sge = { .addr = (uintptr_t)e->buf.base,
			       .length = size,
			       .lkey = e->mr->lkey };
	struct siw_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = SIW_WR_SEND };

	bench_set_dest_address(e, &wr);
	bench_post_send(e, &wr);
}

void siw_bench_post_rdma(struct siw_bench_side *e, int opcode, uint64_t size, char *local,
			 uint64_t remote)
{
	struct siw_sge sge = { .addr = (uintptr_t)local,
			       .length = (uint32_t)size,
			       .lkey = e->mr->lkey };
	struct siw_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = opcode,
				  .send_flags = SIW_SEND_SIGNALED,
				  .wr.rdma = { .remote_addr = remote, .rkey = e->peer.rkey } };

	if (e->o->rd)
		bench_set_dest_address(e, &wr);
	bench_post_send(e, &wr);
}

int siw_bench_poll(struct siw_bench_side *e, struct siw_wc *wc, int max)
{
	int n = siw_poll_cq(e->cq, max, wc);

	siw_bench_exit_on_error(n, "polling");
	for (int i = 0; i < n; i++)
		if (wc[i].status != SIW_WC_SUCCESS)
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "a request failed: %s (0x%06x)",
				      siw_wc_status_str(wc[i].status), wc[i].vendor_err);
	if (n)
		siw_bench_reset_idle(&e->guard);
	return n;
}

/*
 * Arm the completion queue, poll once more, and then sleep. Return false after a time-out without
 * an event.
 */
static bool bench_sleep_on_channel(struct siw_bench_side *e, struct siw_wc *wc, int max, int *n)
{
	struct siw_cq *cq;
	int r;

	siw_bench_exit_on_error(siw_req_notify_cq(e->cq, 0), "arming the queue");
	*n = siw_bench_poll(e, wc, max);
	if (*n)
		return true;
	do
		r = siw_get_cq_event(e->channel, &cq, NULL, SIW_BENCH_SLEEP_MS);
	while (r == -EINTR);
	if (r == -EAGAIN)
		return false;
	siw_bench_exit_on_error(r, "waiting for an event");
	siw_ack_cq_events(cq, 1);
	return true;
}

/*
 * Return whether a time-out ends the wait. A time-out of UD and UC means that a message was lost.
 * RC and RD requests complete in error if the peer is gone; otherwise the peer is slow, and the
 * wait goes on, or its process has ended, and this process exits with an error.
 */
static bool stop_waiting_after_timeout(const struct siw_bench_side *e)
{
	if (!e->o->rc && !e->o->rd)
		return true;
	siw_bench_check_peer_alive(e->o->ctl);
	return false;
}

int siw_bench_wait_for_completions(struct siw_bench_side *e, struct siw_wc *wc, int max)
{
	for (;;) {
		int n = siw_bench_poll(e, wc, max);

		if (n)
			return n;
		if (!e->channel) {
			if (siw_bench_idle(&e->guard) && stop_waiting_after_timeout(e))
				return 0;
			continue;
		}
		if (!bench_sleep_on_channel(e, wc, max, &n) && stop_waiting_after_timeout(e))
			return 0;
		if (n)
			return n;
	}
}

uint64_t siw_bench_await_recv_slot(struct siw_bench_side *e, uint32_t *length)
{
	struct siw_wc wc;

	do
		if (!siw_bench_wait_for_completions(e, &wc, 1))
			siw_bench_die(SIW_BENCH_EXIT_LOST, "a message did not arrive");
	while (wc.opcode != SIW_WC_RECV);
	*length = wc.byte_len;
	return wc.wr_id;
}

uint32_t siw_bench_await_recv_and_repost(struct siw_bench_side *e)
{
	uint32_t length;

	siw_bench_post_recv(e, siw_bench_await_recv_slot(e, &length));
	return length;
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static void bench_create_qp(struct siw_bench_side *e, const struct siw_addr *loopback)
{
	uint32_t sends = 2 * e->o->depth + 64;
	struct siw_qp_init_attr init = {
		.send_cq = e->cq,
		.recv_cq = e->cq,
		.qp_type = e->o->rc   ? SIW_QPT_RC
			   : e->o->uc ? SIW_QPT_UC
			   : e->o->rd ? SIW_QPT_RD
				      : SIW_QPT_UD,
		.cap = { .max_send_wr = sends,
			 .max_recv_wr = e->buf.slots,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.private_messages = e->o->rc, /* the peer, also siwarp-bench, understands them */
	};

	if (!e->o->rc)
		init.addr = *loopback;
	e->qp = siw_bench_require_object(siw_create_qp(e->pd, &init), "a queue pair");
}

static void bench_post_all_recvs(struct siw_bench_side *e)
{
	for (uint32_t i = 0; i < e->buf.slots; i++)
		siw_bench_post_recv(e, i);
}

static void bench_peer_addr(const struct siw_bench_side *e, struct siw_addr *a)
{
	siw_bench_exit_on_error(siw_addr_parse(e->o->remote, e->peer.port, a),
				"the peer's address");
}

static void bench_modify_qp_state(const struct siw_bench_side *e, int state)
{
	struct siw_qp_attr attr = { .qp_state = state };

	siw_bench_exit_on_error(siw_modify_qp(e->qp, &attr, SIW_QP_STATE),
				"changing the state of the queue pair");
}

/*
 * Post the receives, send the peer the hello with the port of the queue pair, and set peer to the
 * address of the peer's queue pair.
 */
static void bench_exchange_qp_addrs(struct siw_bench_side *e, struct siw_bench_hello *mine,
				    struct siw_addr *peer)
{
	struct siw_addr own;

	bench_post_all_recvs(e);
	siw_bench_exit_on_error(siw_qp_addr(e->qp, &own, NULL), "the queue pair's address");
	mine->port = ntohs(own.port_be);
	siw_bench_exchange_hello(e->o->ctl, mine, &e->peer);
	bench_peer_addr(e, peer);
}

/* Set up a UD or RD queue pair, whose peers need only an address. */
static void bench_open_ud(struct siw_bench_side *e, struct siw_bench_hello *mine,
			  struct siw_addr *a)
{
	bench_create_qp(e, a);
	for (int s = SIW_QPS_INIT; s <= SIW_QPS_RTS; s++)
		bench_modify_qp_state(e, s);
	bench_exchange_qp_addrs(e, mine, a);
	e->ah = siw_bench_require_object(siw_create_ah(e->pd, a), "an address handle");
}

/*
 * Set up a UC queue pair: the change to RTR sets the peer's address, and no side sends before both
 * sides are in RTR.
 */
static void bench_open_uc(struct siw_bench_side *e, struct siw_bench_hello *mine,
			  struct siw_addr *a)
{
	struct siw_qp_attr attr = { .qp_state = SIW_QPS_RTR };

	bench_create_qp(e, a);
	bench_modify_qp_state(e, SIW_QPS_INIT);
	bench_exchange_qp_addrs(e, mine, &attr.ah_addr);
	siw_bench_exit_on_error(siw_modify_qp(e->qp, &attr, SIW_QP_STATE | SIW_QP_AV),
				"connecting the queue pair");
	bench_modify_qp_state(e, SIW_QPS_RTS);
	siw_bench_exchange_number(e->o->ctl, 0);
}

static void bench_expect_cm_event(struct siw_bench_side *e, struct siw_cm_event *event, int type)
{
	siw_bench_exit_on_error(siw_cm_get_event(e->cm, event, CM_WAIT_MS),
				"waiting for the connection");
	if (event->event != type)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "connecting: %s (%s)",
			      siw_cm_event_str(event->event), strerror(-event->status));
}

static void bench_open_rc_server(struct siw_bench_side *e, struct siw_bench_hello *mine,
				 struct siw_addr *a)
{
	struct siw_cm_event event;

	e->listener = siw_bench_require_object(siw_cm_create_id(e->cm, NULL), "a CM id");
	siw_bench_exit_on_error(siw_cm_listen(e->listener, a, 1), "listening");
	siw_bench_exit_on_error(siw_cm_addr(e->listener, a, NULL), "the listener's address");
	mine->port = ntohs(a->port_be);
	siw_bench_exchange_hello(e->o->ctl, mine, &e->peer);
	bench_expect_cm_event(e, &event, SIW_CM_CONNECT_REQUEST);
	e->id = event.id;
	bench_create_qp(e, a);
	siw_bench_exit_on_error(siw_cm_bind_qp(e->id, e->qp), "binding the queue pair");
	bench_post_all_recvs(e);
	siw_bench_exit_on_error(siw_cm_accept(e->id, NULL), "accepting");
	bench_expect_cm_event(e, &event, SIW_CM_ESTABLISHED);
}

static void bench_open_rc_client(struct siw_bench_side *e, struct siw_bench_hello *mine,
				 struct siw_addr *a)
{
	struct siw_cm_param param = { 0 };
	struct siw_cm_event event;

	siw_bench_exchange_hello(e->o->ctl, mine, &e->peer);
	e->id = siw_bench_require_object(siw_cm_create_id(e->cm, NULL), "a CM id");
	bench_create_qp(e, a);
	siw_bench_exit_on_error(siw_cm_bind_qp(e->id, e->qp), "binding the queue pair");
	bench_post_all_recvs(e);
	bench_peer_addr(e, a);
	siw_bench_exit_on_error(siw_cm_connect(e->id, a, NULL, &param), "connecting");
	bench_expect_cm_event(e, &event, SIW_CM_ESTABLISHED);
}

void siw_bench_open_client_or_server(struct siw_bench_side *e, const struct siw_bench_opts *o,
				     uint32_t slots)
{
	int access = SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_READ;
	struct siw_bench_hello mine = { 0 };
	struct siw_addr a;

	memset(e, 0, sizeof(*e));
	e->o = o;
	siw_bench_exit_on_error(siw_addr_parse(o->local, 0, &a), "the address");
	siw_bench_buf_make(&e->buf, o->size, slots);
	e->context = siw_bench_require_object(siw_open_device_by_addr(&a), "opening the device");
	e->pd = siw_bench_require_object(siw_alloc_pd(e->context), "a protection domain");
	if (o->event)
		e->channel = siw_bench_require_object(siw_create_comp_channel(e->context),
						      "a completion channel");
	e->cq = siw_bench_require_object(siw_create_cq(e->context,
						       (int)(2 * slots + 2 * o->depth + 128), NULL,
						       e->channel, 0),
					 "a completion queue");
	e->mr = siw_bench_require_object(siw_reg_mr(e->pd, e->buf.base, e->buf.length, access),
					 "registering");
	mine.rkey = e->mr->rkey;
	mine.addr = (uintptr_t)e->buf.base;
	mine.length = e->buf.length;
	if (o->rc) {
		e->cm = siw_bench_require_object(siw_cm_create_channel(e->context), "a CM channel");
		if (o->server)
			bench_open_rc_server(e, &mine, &a);
		else
			bench_open_rc_client(e, &mine, &a);
	} else if (o->uc) {
		bench_open_uc(e, &mine, &a);
	} else {
		bench_open_ud(e, &mine, &a);
	}
	siw_bench_pin_thread(o->cpu);
}

void siw_bench_close_client_or_server(struct siw_bench_side *e)
{
	if (e->o->rc) {
		siw_cm_disconnect(e->id);
		siw_bench_exit_on_error(siw_cm_destroy_id(e->id), "destroying the CM id");
		if (e->listener)
			siw_bench_exit_on_error(siw_cm_destroy_id(e->listener),
						"destroying the listener");
	} else if (e->ah) {
		siw_bench_exit_on_error(siw_destroy_ah(e->ah), "destroying the address handle");
	}
	siw_bench_exit_on_error(siw_destroy_qp(e->qp), "destroying the queue pair");
	siw_bench_exit_on_error(siw_dereg_mr(e->mr), "deregistering");
	siw_bench_exit_on_error(siw_destroy_cq(e->cq), "destroying the completion queue");
	if (e->channel)
		siw_bench_exit_on_error(siw_destroy_comp_channel(e->channel),
					"destroying the channel");
	if (e->cm)
		siw_bench_exit_on_error(siw_cm_destroy_channel(e->cm), "destroying the CM channel");
	siw_bench_exit_on_error(siw_dealloc_pd(e->pd), "freeing the protection domain");
	siw_bench_exit_on_error(siw_close_device(e->context), "closing the device");
	siw_bench_buf_free(&e->buf);
}

/* ---- latency --------------------------------------------------------------------------------- */

/*
 * Latency of Send: half a round trip of messages in both directions. Latency of Write: half a round
 * trip in which both sides write a number into the last octet of the other side's slot and watch
 * their own memory while they poll. Latency of Read: a complete round trip of request and data.
 */

/* Each receive is posted again after the send, while the message is in transit. */
void siw_bench_run_send_latency(struct siw_bench_side *e, uint32_t n, uint64_t *ns)
{
	uint32_t size = (uint32_t)e->o->size, length;
	uint64_t slot = NO_SLOT;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t start = siw_bench_now();

		if (!e->o->server) {
			siw_bench_post_send(e, size);
			if (slot != NO_SLOT)
				siw_bench_post_recv(e, slot);
		}
		slot = siw_bench_await_recv_slot(e, &length);
		if (length != size)
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "a message has the wrong length");
		if (e->o->server) {
			siw_bench_post_send(e, size);
			siw_bench_post_recv(e, slot);
		}
		if (ns)
			ns[i] = siw_bench_now() - start;
	}
	if (!e->o->server && slot != NO_SLOT)
		siw_bench_post_recv(e, slot);
}

static void latency_wait_for_octet(struct siw_bench_side *e, const volatile char *octet, char value)
{
	struct siw_wc wc[4];

	siw_bench_poll(e, wc, 4);
	while (siw_bench_read_octet(octet) != value)
		if (!siw_bench_poll(e, wc, 4) && siw_bench_idle(&e->guard))
			siw_bench_die(SIW_BENCH_EXIT_LOST, "a Write did not arrive");
	siw_bench_reset_idle(&e->guard);
}

static void run_write_latency(struct siw_bench_side *e, uint32_t n, uint64_t *ns)
{
	uint64_t size = e->o->size;
	volatile char *seen = siw_bench_slot(&e->buf, 0) + size - 1;
	uint64_t there = e->peer.addr + e->buf.stride;

	siw_bench_clear_octet(seen);
	siw_bench_exchange_number(e->o->ctl, 0);
	for (uint32_t i = 0; i < n; i++) {
		char value = (char)(i % 100 + 1);
		uint64_t start = siw_bench_now();

		if (e->o->server)
			latency_wait_for_octet(e, seen, value);
		e->buf.base[size - 1] = value;
		siw_bench_post_rdma(e, SIW_WR_RDMA_WRITE, size, e->buf.base, there);
		if (!e->o->server)
			latency_wait_for_octet(e, seen, value);
		if (ns)
			ns[i] = siw_bench_now() - start;
	}
}

/* The server makes progress by polling until the client reports that it has finished. */
static void run_read_latency(struct siw_bench_side *e, uint32_t n, uint64_t *ns)
{
	struct siw_wc wc;
	uint32_t length;

	if (e->o->server) {
		siw_bench_post_recv(e, siw_bench_await_recv_slot(e, &length));
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		uint64_t start = siw_bench_now();

		siw_bench_post_rdma(e, SIW_WR_RDMA_READ, e->o->size, siw_bench_slot(&e->buf, 0),
				    e->peer.addr);
		do
			if (!siw_bench_wait_for_completions(e, &wc, 1))
				siw_bench_die(SIW_BENCH_EXIT_LOST, "a Read did not complete");
		while (wc.opcode != SIW_WC_RDMA_READ);
		if (ns)
			ns[i] = siw_bench_now() - start;
	}
	siw_bench_buf_check(siw_bench_slot(&e->buf, 0), e->o->size);
	siw_bench_post_send(e, 0);
}

void siw_bench_measure_latency(struct siw_bench_side *e, siw_bench_lat_fn *run, double parts,
			       struct siw_bench_result *result)
{
	const struct siw_bench_opts *o = e->o;
	uint64_t *ns = siw_bench_require_object(calloc(o->iters, sizeof(*ns)), "the samples");

	siw_bench_exchange_number(o->ctl, 0);
	run(e, o->warmup, NULL);
	siw_bench_exchange_number(o->ctl, 0);
	run(e, o->iters, ns);
	siw_bench_exchange_number(o->ctl, 0);
	siw_bench_write_samples(o, ns);
	siw_bench_summarize_samples(ns, o->iters, parts, result);
	free(ns);
}

void siw_bench_measure_siwarp_latency(const struct siw_bench_opts *o,
				      struct siw_bench_result *result)
{
	static siw_bench_lat_fn *const by[] = {
		[SIW_BENCH_SEND] = siw_bench_run_send_latency,
		[SIW_BENCH_WRITE] = run_write_latency,
		[SIW_BENCH_READ] = run_read_latency,
	};
	struct siw_bench_side e;

	if (o->op != SIW_BENCH_SEND && !o->size)
		siw_bench_die(SIW_BENCH_EXIT_USAGE, "a Write or Read has at least one octet");
	siw_bench_open_client_or_server(&e, o, LAT_RECVS);
	siw_bench_measure_latency(&e, by[o->op], o->op == SIW_BENCH_READ ? 1 : 2, result);
	siw_bench_close_client_or_server(&e);
}

/* ---- bandwidth and message rate -------------------------------------------------------------- */

/*
 * Streams of Sends are windowed: the receiver sends a credit, a small message, per half window,
 * because neither UD nor iWARP's RC has flow control. RD has flow control, whose window is the
 * number of messages that the peer has not acknowledged. Writes are counted when the receiver has
 * answered the Send after the Writes, and Reads when their data has arrived.
 */

struct list {
	struct siw_sge sge;
	struct siw_send_wr wr[SIW_BENCH_BATCH];
};

static void bench_wr_list_init(struct siw_bench_side *e, struct list *l)
{
	memset(l, 0, sizeof(*l));
	l->sge = (struct siw_sge){ .addr = (uintptr_t)e->buf.base,
				   .length = (uint32_t)e->o->size,
				   .lkey = e->mr->lkey };
	for (int i = 0; i < SIW_BENCH_BATCH; i++) {
		l->wr[i].sg_list = &l->sge;
		l->wr[i].num_sge = 1;
		l->wr[i].opcode = SIW_WR_SEND;
		bench_set_dest_address(e, &l->wr[i]);
	}
}

/* Prepare a list of Writes to, or Reads from, the peer's memory. */
static void bench_wr_list_init_rdma(struct siw_bench_side *e, struct list *l,
				    enum siw_wr_opcode opcode)
{
	bool reads = opcode == SIW_WR_RDMA_READ;

	bench_wr_list_init(e, l);
	if (reads)
		l->sge.addr = (uintptr_t)siw_bench_slot(&e->buf, 0);
	for (int i = 0; i < SIW_BENCH_BATCH; i++) {
		l->wr[i].opcode = opcode;
		l->wr[i].wr.rdma.remote_addr = e->peer.addr + (reads ? 0 : e->buf.stride);
		l->wr[i].wr.rdma.rkey = e->peer.rkey;
	}
}

/*
 * Post a list of requests, whose last request is signalled at intervals, to detect errors and to
 * free slots.
 */
static void bench_wr_list_post(struct siw_bench_side *e, struct list *l, uint32_t k, bool report)
{
	struct siw_send_wr *bad;
	int r;

	for (uint32_t i = 0; i < k; i++)
		l->wr[i].next = i + 1 < k ? &l->wr[i + 1] : NULL;
	l->wr[k - 1].send_flags = report ? SIW_SEND_SIGNALED : 0;
	r = siw_post_send(e->qp, l->wr, &bad);
	if (r)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "posting a send: %s", strerror(-r));
	l->wr[k - 1].send_flags = 0;
	e->posted += k;
}

static uint32_t bench_min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Send n messages; return the number sent, less than n if a credit did not arrive. */
static uint32_t bench_stream_send(struct siw_bench_side *e, uint32_t n)
{
	uint32_t sent = 0, credited = 0, half = siw_bench_credit_size(e->o);
	struct siw_wc wc[SIW_BENCH_BATCH];
	struct list list;
	int got;

	if (e->o->op == SIW_BENCH_WRITE) /* Writes with Immediate, which the peer can count */
		bench_wr_list_init_rdma(e, &list, SIW_WR_RDMA_WRITE_WITH_IMM);
	else
		bench_wr_list_init(e, &list);
	while (credited < n) {
		uint32_t room = bench_min_u32(e->o->depth - (sent - credited), n - sent);

		if (room) {
			uint32_t k = bench_min_u32(room, e->o->batch);

			bench_wr_list_post(e, &list, k,
					   e->posted / SIW_BENCH_SIGNAL_EVERY !=
						   (e->posted + k) / SIW_BENCH_SIGNAL_EVERY);
			sent += k;
			continue;
		}
		got = siw_bench_wait_for_completions(e, wc, SIW_BENCH_BATCH);
		if (!got)
			break;
		for (int i = 0; i < got; i++) {
			if (wc[i].opcode != SIW_WC_RECV)
				continue;
			siw_bench_post_recv(e, wc[i].wr_id);
			credited += half;
		}
	}
	return sent;
}

static bool bench_wc_is_message(const struct siw_wc *wc)
{
	return wc->opcode == SIW_WC_RECV || wc->opcode == SIW_WC_RECV_RDMA_WITH_IMM;
}

static uint32_t bench_stream_receive(struct siw_bench_side *e, uint32_t n)
{
	uint32_t seen = 0, credited = 0, half = e->o->rd ? n : siw_bench_credit_size(e->o);
	struct siw_wc wc[SIW_BENCH_BATCH];

	while (seen < n) {
		int got = siw_bench_wait_for_completions(e, wc, SIW_BENCH_BATCH);

		if (!got)
			break;
		for (int i = 0; i < got; i++) {
			if (!bench_wc_is_message(&wc[i]))
				continue;
			if (wc[i].byte_len != e->o->size)
				siw_bench_die(SIW_BENCH_EXIT_ERROR,
					      "a message has %u octets, the wrong length",
					      wc[i].byte_len);
			/* Do not check memory that later Writes may be overwriting. */
			if (seen++ == 0 && wc[i].opcode == SIW_WC_RECV)
				siw_bench_buf_check(siw_bench_slot(&e->buf, (uint32_t)wc[i].wr_id),
						    e->o->size);
			siw_bench_post_recv(e, wc[i].wr_id);
		}
		for (; seen - credited >= half; credited += half)
			siw_bench_post_send(e, CREDIT_OCTETS);
	}
	return seen;
}

/*
 * Send n messages on RD, on which the completion of the last request of each half window is the
 * credit; wr_id is the number of requests that have completed with that request. At the end the
 * peer sends one message after it has received all messages.
 */
static uint32_t bench_stream_send_rd(struct siw_bench_side *e, uint32_t n)
{
	uint32_t sent = 0, done = 0, half = siw_bench_credit_size(e->o);
	struct siw_wc wc[SIW_BENCH_BATCH];
	bool answered = false;
	struct list list;

	bench_wr_list_init(e, &list);
	while (!answered || done < n) {
		uint32_t room = bench_min_u32(e->o->depth - (sent - done), n - sent);
		int got;

		if (room) {
			uint32_t k = bench_min_u32(room, e->o->batch);

			list.wr[k - 1].wr_id = sent + k;
			bench_wr_list_post(e, &list, k,
					   sent / half != (sent + k) / half || sent + k == n);
			sent += k;
			continue;
		}
		got = siw_bench_wait_for_completions(e, wc, SIW_BENCH_BATCH);
		if (!got)
			break;
		for (int i = 0; i < got; i++) {
			if (wc[i].opcode == SIW_WC_RECV) {
				siw_bench_post_recv(e, wc[i].wr_id);
				answered = true;
			} else {
				done = (uint32_t)wc[i].wr_id;
			}
		}
	}
	return done;
}

static uint64_t bench_stream_time_sends(struct siw_bench_side *e, uint32_t n)
{
	uint64_t start = siw_bench_now(), ns;
	uint32_t done = e->o->server ? bench_stream_receive(e, n)
			: e->o->rd   ? bench_stream_send_rd(e, n)
				     : bench_stream_send(e, n);

	ns = siw_bench_now() - start;
	siw_bench_check_message_counts(e->o, done, n);
	return ns;
}

/*
 * Keep depth requests outstanding until n requests have completed. The last request of each list is
 * signalled.
 */
static void bench_run_rdma_stream(struct siw_bench_side *e, enum siw_wr_opcode opcode, uint32_t n)
{
	int wanted = opcode == SIW_WR_RDMA_READ ? SIW_WC_RDMA_READ : SIW_WC_RDMA_WRITE;
	struct siw_wc wc[SIW_BENCH_BATCH];
	uint32_t posted = 0, done = 0;
	struct list list;

	bench_wr_list_init_rdma(e, &list, opcode);
	while (done < n) {
		uint32_t room = bench_min_u32(e->o->depth - (posted - done), n - posted);
		int got;

		if (room) {
			uint32_t k = bench_min_u32(room, e->o->batch);

			posted += k;
			list.wr[k - 1].wr_id = posted;
			bench_wr_list_post(e, &list, k, true);
			continue;
		}
		got = siw_bench_wait_for_completions(e, wc, SIW_BENCH_BATCH);
		if (!got)
			siw_bench_die(SIW_BENCH_EXIT_LOST, "%u of %u requests completed", done, n);
		for (int i = 0; i < got; i++)
			if (wc[i].opcode == wanted)
				done = (uint32_t)wc[i].wr_id;
	}
}

static uint64_t bench_stream_run_write(struct siw_bench_side *e, uint32_t n)
{
	uint64_t start = siw_bench_now(), ns, slot;
	uint32_t length;

	if (e->o->server) {
		slot = siw_bench_await_recv_slot(e, &length);
		siw_bench_post_send(e, 0);
		siw_bench_buf_check(siw_bench_slot(&e->buf, 0), e->o->size);
		memset(siw_bench_slot(&e->buf, 0), 0, e->o->size);
		/*
		 * The receive is posted last, because it allows the peer to write the memory again.
		 */
		siw_bench_post_recv(e, slot);
		return 1;
	}
	bench_run_rdma_stream(e, SIW_WR_RDMA_WRITE, n);
	siw_bench_post_send(e, 0);
	siw_bench_await_recv_and_repost(e);
	ns = siw_bench_now() - start;
	return ns;
}

static uint64_t bench_stream_run_read(struct siw_bench_side *e, uint32_t n)
{
	uint64_t start = siw_bench_now(), ns;
	uint32_t length;

	if (e->o->server) {
		siw_bench_post_recv(e, siw_bench_await_recv_slot(e, &length));
		return 1;
	}
	bench_run_rdma_stream(e, SIW_WR_RDMA_READ, n);
	ns = siw_bench_now() - start;
	siw_bench_buf_check(siw_bench_slot(&e->buf, 0), e->o->size);
	memset(siw_bench_slot(&e->buf, 0), 0, e->o->size);
	siw_bench_post_send(e, 0);
	return ns;
}

void siw_bench_measure_siwarp_stream(const struct siw_bench_opts *o,
				     struct siw_bench_result *result)
{
	static uint64_t (*const by[])(struct siw_bench_side *, uint32_t) = {
		[SIW_BENCH_SEND] = bench_stream_time_sends,
		[SIW_BENCH_WRITE] = bench_stream_run_write,
		[SIW_BENCH_READ] = bench_stream_run_read,
	};
	/* Neither Sends nor UC Writes have flow control, so the receiver sends credits for them. */
	bool windowed = o->op == SIW_BENCH_SEND || o->uc;
	uint32_t parts[] = { o->warmup, o->iters };
	struct siw_bench_side e;

	if (o->depth > 4096)
		siw_bench_die(SIW_BENCH_EXIT_USAGE, "the depth is more than 4096");
	siw_bench_open_client_or_server(&e, o, windowed ? 2 * o->depth + 2 : 4);
	for (int i = 0; i < 2; i++) {
		uint64_t ns;

		siw_bench_exchange_number(o->ctl, 0);
		ns = (windowed ? bench_stream_time_sends : by[o->op])(&e, parts[i]);
		siw_bench_store_rate_result(o, parts[i], ns, result);
	}
	siw_bench_exchange_number(o->ctl, 0);
	siw_bench_close_client_or_server(&e);
}
