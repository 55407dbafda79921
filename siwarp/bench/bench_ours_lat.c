/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Latency through the verbs. Send: messages in both directions, half a round trip. Write: both
 * sides write a number into the last octet of the other's slot and watch their own memory while
 * they poll; half a round trip. Read: a complete round trip, request and data.
 */
#include <stdlib.h>

#include "bench/bench_ours.h"

#define RECVS	16
#define NO_SLOT UINT64_MAX

/* Receives are posted again after the send, while the message is in transit. */
void siw_bench_lat_send(struct siw_bench_side *e, uint32_t n, uint64_t *ns)
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
		slot = siw_bench_await_slot(e, &length);
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

static void lat_wait_octet(struct siw_bench_side *e, const volatile char *octet, char value)
{
	struct siw_wc wc[4];

	siw_bench_poll(e, wc, 4);
	while (siw_bench_read_octet(octet) != value)
		if (!siw_bench_poll(e, wc, 4) && siw_bench_idle(&e->guard))
			siw_bench_die(SIW_BENCH_EXIT_LOST, "a Write did not arrive");
	siw_bench_reset_idle(&e->guard);
}

static void lat_run_write(struct siw_bench_side *e, uint32_t n, uint64_t *ns)
{
	uint64_t size = e->o->size;
	volatile char *seen = siw_bench_slot(&e->buf, 0) + size - 1;
	uint64_t there = e->peer.addr + e->buf.stride;

	siw_bench_clear_octet(seen);
	siw_bench_exchange(e->o->ctl, 0);
	for (uint32_t i = 0; i < n; i++) {
		char value = (char)(i % 100 + 1);
		uint64_t start = siw_bench_now();

		if (e->o->server)
			lat_wait_octet(e, seen, value);
		e->buf.base[size - 1] = value;
		siw_bench_post_rdma(e, SIW_WR_RDMA_WRITE, size, e->buf.base, there);
		if (!e->o->server)
			lat_wait_octet(e, seen, value);
		if (ns)
			ns[i] = siw_bench_now() - start;
	}
}

/* The server makes progress by polling until the client reports that it has finished. */
static void lat_run_read(struct siw_bench_side *e, uint32_t n, uint64_t *ns)
{
	struct siw_wc wc;
	uint32_t length;

	if (e->o->server) {
		siw_bench_post_recv(e, siw_bench_await_slot(e, &length));
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		uint64_t start = siw_bench_now();

		siw_bench_post_rdma(e, SIW_WR_RDMA_READ, e->o->size, siw_bench_slot(&e->buf, 0),
				    e->peer.addr);
		do
			if (!siw_bench_wait(e, &wc, 1))
				siw_bench_die(SIW_BENCH_EXIT_LOST, "a Read did not complete");
		while (wc.opcode != SIW_WC_RDMA_READ);
		if (ns)
			ns[i] = siw_bench_now() - start;
	}
	siw_bench_buf_check(siw_bench_slot(&e->buf, 0), e->o->size);
	siw_bench_post_send(e, 0);
}

void siw_bench_time(struct siw_bench_side *e, siw_bench_lat_fn *run, double parts,
		    struct siw_bench_result *result)
{
	const struct siw_bench_opts *o = e->o;
	uint64_t *ns = siw_bench_check_object(calloc(o->iters, sizeof(*ns)), "the samples");

	siw_bench_exchange(o->ctl, 0);
	run(e, o->warmup, NULL);
	siw_bench_exchange(o->ctl, 0);
	run(e, o->iters, ns);
	siw_bench_exchange(o->ctl, 0);
	siw_bench_write_samples(o, ns);
	siw_bench_summarize_samples(ns, o->iters, parts, result);
	free(ns);
}

void siw_bench_ours_lat(const struct siw_bench_opts *o, struct siw_bench_result *result)
{
	static siw_bench_lat_fn *const by[] = {
		[SIW_BENCH_SEND] = siw_bench_lat_send,
		[SIW_BENCH_WRITE] = lat_run_write,
		[SIW_BENCH_READ] = lat_run_read,
	};
	struct siw_bench_side e;

	if (o->op != SIW_BENCH_SEND && !o->size)
		siw_bench_die(SIW_BENCH_EXIT_USAGE, "a Write or Read has at least one octet");
	siw_bench_end_open(&e, o, RECVS);
	siw_bench_time(&e, by[o->op], o->op == SIW_BENCH_READ ? 1 : 2, result);
	siw_bench_end_close(&e);
}
