/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Client or server on the public interface: set-up, and the steps that all runs share. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "bench/bench_ours.h"

#define OWN_QKEY   0x80000000u
#define CM_WAIT_MS 5000

/* ---- posting and waiting --------------------------------------------------------------------- */

void siw_bench_post_recv(struct siw_bench_side *e, uint64_t slot)
{
	struct siw_sge sge = { .addr = (uintptr_t)siw_bench_slot(&e->buf, (uint32_t)slot),
			       .length = (uint32_t)e->buf.stride,
			       .lkey = e->mr->lkey };
	struct siw_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	siw_bench_check(siw_post_recv(e->qp, &wr, &bad), "posting a receive");
}

static void bench_post_send(struct siw_bench_side *e, struct siw_send_wr *wr)
{
	struct siw_send_wr *bad;

	if (++e->posted % SIW_BENCH_SIGNAL_EVERY == 0)
		wr->send_flags |= SIW_SEND_SIGNALED;
	siw_bench_check(siw_post_send(e->qp, wr, &bad), "posting a send");
}

void siw_bench_address(const struct siw_bench_side *e, struct siw_send_wr *wr)
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

	siw_bench_address(e, &wr);
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
		siw_bench_address(e, &wr);
	bench_post_send(e, &wr);
}

int siw_bench_poll(struct siw_bench_side *e, struct siw_wc *wc, int max)
{
	int n = siw_poll_cq(e->cq, max, wc);

	siw_bench_check(n, "polling");
	for (int i = 0; i < n; i++)
		if (wc[i].status != SIW_WC_SUCCESS)
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "a request failed: %s (0x%06x)",
				      siw_wc_status_str(wc[i].status), wc[i].vendor_err);
	if (n)
		siw_bench_reset_idle(&e->guard);
	return n;
}

/* Arm the queue, poll once more, and then sleep. Return false after a time-out without event. */
static bool bench_sleep_on_channel(struct siw_bench_side *e, struct siw_wc *wc, int max, int *n)
{
	struct siw_cq *cq;
	int r;

	siw_bench_check(siw_req_notify_cq(e->cq, 0), "arming the queue");
	*n = siw_bench_poll(e, wc, max);
	if (*n)
		return true;
	do
		r = siw_get_cq_event(e->channel, &cq, NULL, SIW_BENCH_SLEEP_MS);
	while (r == -EINTR);
	if (r == -EAGAIN)
		return false;
	siw_bench_check(r, "waiting for an event");
	siw_ack_cq_events(cq, 1);
	return true;
}

/*
 * Called after a time-out. With UD and UC a message was lost. RC and RD complete in error if the
 * peer is gone; otherwise the peer is slow, or has ended, which is detected on ctl.
 */
static bool bench_wait_timed_out(const struct siw_bench_side *e)
{
	if (!e->o->rc && !e->o->rd)
		return true;
	siw_bench_check_peer(e->o->ctl);
	return false;
}

int siw_bench_wait(struct siw_bench_side *e, struct siw_wc *wc, int max)
{
	for (;;) {
		int n = siw_bench_poll(e, wc, max);

		if (n)
			return n;
		if (!e->channel) {
			if (siw_bench_idle(&e->guard) && bench_wait_timed_out(e))
				return 0;
			continue;
		}
		if (!bench_sleep_on_channel(e, wc, max, &n) && bench_wait_timed_out(e))
			return 0;
		if (n)
			return n;
	}
}

uint64_t siw_bench_await_slot(struct siw_bench_side *e, uint32_t *length)
{
	struct siw_wc wc;

	do
		if (!siw_bench_wait(e, &wc, 1))
			siw_bench_die(SIW_BENCH_EXIT_LOST, "a message did not arrive");
	while (wc.opcode != SIW_WC_RECV);
	*length = wc.byte_len;
	return wc.wr_id;
}

uint32_t siw_bench_await_recv(struct siw_bench_side *e)
{
	uint32_t length;

	siw_bench_post_recv(e, siw_bench_await_slot(e, &length));
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
		.private_messages = e->o->rc, /* the peer is this program too */
	};

	if (!e->o->rc)
		init.addr = *loopback;
	e->qp = siw_bench_check_object(siw_create_qp(e->pd, &init), "a queue pair");
}

static void bench_post_all_recvs(struct siw_bench_side *e)
{
	for (uint32_t i = 0; i < e->buf.slots; i++)
		siw_bench_post_recv(e, i);
}

static void bench_peer_addr(const struct siw_bench_side *e, struct siw_addr *a)
{
	siw_bench_check(siw_addr_parse(e->o->remote, e->peer.port, a), "the peer's address");
}

/* Set-up of UD and RD, whose peers need only an address. */
static void bench_open_ud(struct siw_bench_side *e, struct siw_bench_hello *mine,
			  struct siw_addr *a)
{
	bench_create_qp(e, a);
	for (int s = SIW_QPS_INIT; s <= SIW_QPS_RTS; s++) {
		struct siw_qp_attr attr = { .qp_state = s };

		siw_bench_check(siw_modify_qp(e->qp, &attr, SIW_QP_STATE),
				"changing the state of the queue pair");
	}
	bench_post_all_recvs(e);
	siw_bench_check(siw_qp_addr(e->qp, a, NULL), "the queue pair's address");
	mine->port = ntohs(a->port_be);
	siw_bench_exchange_hello(e->o->ctl, mine, &e->peer);
	bench_peer_addr(e, a);
	e->ah = siw_bench_check_object(siw_create_ah(e->pd, a), "an address handle");
}

/*
 * Like UD, but the change to RTR sets the peer's address; no side sends before both have done so.
 */
static void bench_open_uc(struct siw_bench_side *e, struct siw_bench_hello *mine,
			  struct siw_addr *a)
{
	struct siw_qp_attr attr = { .qp_state = SIW_QPS_INIT };

	bench_create_qp(e, a);
	siw_bench_check(siw_modify_qp(e->qp, &attr, SIW_QP_STATE),
			"changing the state of the queue pair");
	bench_post_all_recvs(e);
	siw_bench_check(siw_qp_addr(e->qp, a, NULL), "the queue pair's address");
	mine->port = ntohs(a->port_be);
	siw_bench_exchange_hello(e->o->ctl, mine, &e->peer);
	bench_peer_addr(e, &attr.ah_addr);
	attr.qp_state = SIW_QPS_RTR;
	siw_bench_check(siw_modify_qp(e->qp, &attr, SIW_QP_STATE | SIW_QP_AV),
			"connecting the queue pair");
	attr.qp_state = SIW_QPS_RTS;
	siw_bench_check(siw_modify_qp(e->qp, &attr, SIW_QP_STATE),
			"changing the state of the queue pair");
	siw_bench_exchange(e->o->ctl, 0);
}

static void bench_expect_cm_event(struct siw_bench_side *e, struct siw_cm_event *event, int type)
{
	siw_bench_check(siw_cm_get_event(e->cm, event, CM_WAIT_MS), "waiting for the connection");
	if (event->event != type)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "connecting: %s (%s)",
			      siw_cm_event_str(event->event), strerror(-event->status));
}

static void bench_open_rc_server(struct siw_bench_side *e, struct siw_bench_hello *mine,
				 struct siw_addr *a)
{
	struct siw_cm_event event;

	e->listener = siw_bench_check_object(siw_cm_create_id(e->cm, NULL), "a CM id");
	siw_bench_check(siw_cm_listen(e->listener, a, 1), "listening");
	siw_bench_check(siw_cm_addr(e->listener, a, NULL), "the listener's address");
	mine->port = ntohs(a->port_be);
	siw_bench_exchange_hello(e->o->ctl, mine, &e->peer);
	bench_expect_cm_event(e, &event, SIW_CM_CONNECT_REQUEST);
	e->id = event.id;
	bench_create_qp(e, a);
	siw_bench_check(siw_cm_bind_qp(e->id, e->qp), "binding the queue pair");
	bench_post_all_recvs(e);
	siw_bench_check(siw_cm_accept(e->id, NULL), "accepting");
	bench_expect_cm_event(e, &event, SIW_CM_ESTABLISHED);
}

static void bench_open_rc_client(struct siw_bench_side *e, struct siw_bench_hello *mine,
				 struct siw_addr *a)
{
	struct siw_cm_param param = { 0 };
	struct siw_cm_event event;

	siw_bench_exchange_hello(e->o->ctl, mine, &e->peer);
	e->id = siw_bench_check_object(siw_cm_create_id(e->cm, NULL), "a CM id");
	bench_create_qp(e, a);
	siw_bench_check(siw_cm_bind_qp(e->id, e->qp), "binding the queue pair");
	bench_post_all_recvs(e);
	bench_peer_addr(e, a);
	siw_bench_check(siw_cm_connect(e->id, a, NULL, &param), "connecting");
	bench_expect_cm_event(e, &event, SIW_CM_ESTABLISHED);
}

void siw_bench_end_open(struct siw_bench_side *e, const struct siw_bench_opts *o, uint32_t slots)
{
	int access = SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_READ;
	struct siw_bench_hello mine = { 0 };
	struct siw_addr a;

	memset(e, 0, sizeof(*e));
	e->o = o;
	siw_bench_check(siw_addr_parse(o->local, 0, &a), "the address");
	siw_bench_buf_make(&e->buf, o->size, slots);
	e->context = siw_bench_check_object(siw_open_device_by_addr(&a), "opening the device");
	e->pd = siw_bench_check_object(siw_alloc_pd(e->context), "a protection domain");
	if (o->event)
		e->channel = siw_bench_check_object(siw_create_comp_channel(e->context),
						    "a completion channel");
	e->cq = siw_bench_check_object(siw_create_cq(e->context,
						     (int)(2 * slots + 2 * o->depth + 128), NULL,
						     e->channel, 0),
				       "a completion queue");
	e->mr = siw_bench_check_object(siw_reg_mr(e->pd, e->buf.base, e->buf.length, access),
				       "registering");
	mine.rkey = e->mr->rkey;
	mine.addr = (uintptr_t)e->buf.base;
	mine.length = e->buf.length;
	if (o->rc) {
		e->cm = siw_bench_check_object(siw_cm_create_channel(e->context), "a CM channel");
		if (o->server)
			bench_open_rc_server(e, &mine, &a);
		else
			bench_open_rc_client(e, &mine, &a);
	} else if (o->uc) {
		bench_open_uc(e, &mine, &a);
	} else {
		bench_open_ud(e, &mine, &a);
	}
	siw_bench_pin(o->cpu);
}

void siw_bench_end_close(struct siw_bench_side *e)
{
	if (e->o->rc) {
		siw_cm_disconnect(e->id);
		siw_bench_check(siw_cm_destroy_id(e->id), "destroying the CM id");
		if (e->listener)
			siw_bench_check(siw_cm_destroy_id(e->listener), "destroying the listener");
	} else if (e->ah) {
		siw_bench_check(siw_destroy_ah(e->ah), "destroying the address handle");
	}
	siw_bench_check(siw_destroy_qp(e->qp), "destroying the queue pair");
	siw_bench_check(siw_dereg_mr(e->mr), "deregistering");
	siw_bench_check(siw_destroy_cq(e->cq), "destroying the completion queue");
	if (e->channel)
		siw_bench_check(siw_destroy_comp_channel(e->channel), "destroying the channel");
	if (e->cm)
		siw_bench_check(siw_cm_destroy_channel(e->cm), "destroying the CM channel");
	siw_bench_check(siw_dealloc_pd(e->pd), "freeing the protection domain");
	siw_bench_check(siw_close_device(e->context), "closing the device");
	siw_bench_buf_free(&e->buf);
}
