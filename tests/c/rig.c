/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rig.h"

#define OWN_QKEY   0x80000000u
#define ALL_ACCESS (SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_READ)

void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void rig_open(struct rig *rig)
{
	struct siw_addr lo;

	check(siw_addr_parse("127.0.0.1", 0, &lo));
	rig->ctx = siw_open_device_by_addr(&lo);
	must(rig->ctx);
	rig->pd = siw_alloc_pd(rig->ctx);
	must(rig->pd);
	rig->cm = siw_cm_create_channel(rig->ctx);
	must(rig->cm);
}

void rig_close(struct rig *rig)
{
	check(siw_cm_destroy_channel(rig->cm));
	check(siw_dealloc_pd(rig->pd));
	check(siw_close_device(rig->ctx));
}

static void rig_create_endpoint(struct end *end, struct rig *rig, unsigned int slots, int type)
{
	struct siw_qp_init_attr init = {
		.qp_type = type,
		.cap = { .max_send_wr = slots,
			 .max_recv_wr = slots,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};

	memset(end, 0, sizeof(*end));
	end->rig = rig;
	end->slots = slots;
	end->mem = calloc(slots, SLOT);
	must(end->mem);
	end->channel = siw_create_comp_channel(rig->ctx);
	must(end->channel);
	end->cq = siw_create_cq(rig->ctx, (int)(4 * slots), NULL, end->channel, 0);
	must(end->cq);
	end->mr = siw_reg_mr(rig->pd, end->mem, (size_t)slots * SLOT, ALL_ACCESS);
	must(end->mr);
	init.send_cq = init.recv_cq = end->cq;
	end->qp = siw_create_qp(rig->pd, &init);
	must(end->qp);
}

void open_ud_endpoint(struct end *end, struct rig *rig, unsigned int slots, const struct end *dest)
{
	struct siw_addr at;

	rig_create_endpoint(end, rig, slots, SIW_QPT_UD);
	for (int s = SIW_QPS_INIT; s <= SIW_QPS_RTS; s++) {
		struct siw_qp_attr attr = { .qp_state = s };

		check(siw_modify_qp(end->qp, &attr, SIW_QP_STATE));
	}
	check(siw_qp_addr(dest ? dest->qp : end->qp, &at, NULL));
	end->ah = siw_create_ah(rig->pd, &at);
	must(end->ah);
}

static struct siw_cm_id *rig_expect_cm_event(struct rig *rig, int type)
{
	long deadline = now_ms() + LIMIT_MS;
	struct siw_cm_event event;
	int r;

	/* The poll uses a time-out of zero, since a wait would be a cancellation point. */
	do {
		sched_yield();
		r = siw_cm_get_event(rig->cm, &event, 0);
	} while (r == -EAGAIN && now_ms() < deadline);
	check(r);
	if (event.event != type)
		die("connecting: %s", siw_cm_event_str(event.event));
	return event.id;
}

void connect_rc_endpoints(struct end *a, struct rig *of_a, struct end *b, struct rig *of_b,
			  unsigned int slots)
{
	struct siw_cm_param param = { .peer_to_peer = SIW_CM_RTR_WRITE, .timeout_ms = LIMIT_MS };
	struct siw_cm_id *listener = siw_cm_create_id(of_b->cm, NULL);
	struct siw_addr at;

	rig_create_endpoint(a, of_a, slots, SIW_QPT_RC);
	rig_create_endpoint(b, of_b, slots, SIW_QPT_RC);
	must(listener);
	check(siw_addr_parse("127.0.0.1", 0, &at));
	check(siw_cm_listen(listener, &at, 4));
	check(siw_cm_addr(listener, &at, NULL));
	a->id = siw_cm_create_id(of_a->cm, NULL);
	must(a->id);
	check(siw_cm_bind_qp(a->id, a->qp));
	check(siw_cm_connect(a->id, &at, NULL, &param));
	b->id = rig_expect_cm_event(of_b, SIW_CM_CONNECT_REQUEST);
	check(siw_cm_bind_qp(b->id, b->qp));
	check(siw_cm_accept(b->id, NULL));
	/* The events may arrive in either order, because both rigs may be the same. */
	rig_expect_cm_event(of_a, SIW_CM_ESTABLISHED);
	rig_expect_cm_event(of_b, SIW_CM_ESTABLISHED);
	check(siw_cm_destroy_id(listener));
}

void close_endpoint(struct end *end)
{
	if (end->id)
		check(siw_cm_destroy_id(end->id));
	if (end->ah)
		check(siw_destroy_ah(end->ah));
	check(siw_destroy_qp(end->qp));
	check(siw_dereg_mr(end->mr));
	check(siw_destroy_cq(end->cq));
	check(siw_destroy_comp_channel(end->channel));
	free(end->mem);
}

static struct siw_sge slot_sge(const struct end *end, unsigned int slot, unsigned int size)
{
	return (struct siw_sge){ .addr = (uintptr_t)end->mem + (uintptr_t)slot * SLOT,
				 .length = size,
				 .lkey = end->mr->lkey };
}

int post_recv(struct end *end, unsigned int slot)
{
	struct siw_sge sge = slot_sge(end, slot, SLOT);
	struct siw_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	return siw_post_recv(end->qp, &wr, &bad);
}

int post_send(struct end *end, unsigned int slot, unsigned int size, uint64_t wr_id)
{
	struct siw_sge sge = slot_sge(end, slot, size);
	struct siw_send_wr *bad, wr = { .wr_id = wr_id,
					.sg_list = &sge,
					.num_sge = 1,
					.opcode = SIW_WR_SEND,
					.send_flags = SIW_SEND_SIGNALED };

	if (end->ah) {
		wr.wr.ud.ah = end->ah;
		wr.wr.ud.remote_qkey = OWN_QKEY;
	}
	return siw_post_send(end->qp, &wr, &bad);
}

int post_write(struct end *end, unsigned int slot, unsigned int size, uint64_t wr_id,
	       const struct end *to, unsigned int to_slot)
{
	struct siw_sge sge = slot_sge(end, slot, size);
	struct siw_send_wr *bad, wr = { .wr_id = wr_id,
					.sg_list = &sge,
					.num_sge = 1,
					.opcode = SIW_WR_RDMA_WRITE,
					.send_flags = SIW_SEND_SIGNALED };

	wr.wr.rdma.remote_addr = (uintptr_t)to->mem + (uintptr_t)to_slot * SLOT;
	wr.wr.rdma.rkey = to->mr->rkey;
	return siw_post_send(end->qp, &wr, &bad);
}

void await_completions(struct end *end, struct siw_wc *wc, int n)
{
	long deadline = now_ms() + LIMIT_MS;
	int have = 0;

	while (have < n) {
		int got = siw_poll_cq(end->cq, n - have, wc + have);

		check(got);
		for (int i = have; i < have + got; i++)
			if (wc[i].status != SIW_WC_SUCCESS)
				die("a request failed: %s", siw_wc_status_str(wc[i].status));
		have += got;
		if (now_ms() > deadline)
			die("%d of %d completions came", have, n);
	}
}

void send_and_check_message(struct end *a, struct end *b, unsigned int size, char first)
{
	struct siw_wc wc[2];

	check(post_recv(b, 1));
	memset(a->mem, first, size);
	check(post_send(a, 0, size, 7));
	await_completions(a, wc, a == b ? 2 : 1);
	if (a != b)
		await_completions(b, wc, 1);
	must(b->mem[SLOT] == first && b->mem[SLOT + size - 1] == first);
}
