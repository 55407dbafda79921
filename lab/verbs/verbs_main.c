/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * siwarp-lab-verbs: client or server of a run of `make lab-verbs`, with the options of
 * siwarp-bench. This file contains the measurements done, answer, watched, lanes and reg.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lab/verbs/verbs.h"

#define RECVS 16

/* ---- done: from posting a Write to its completion -------------------------------------------- */

static void verbs_wait_for_completion(struct siw_bench_side *e, int opcode)
{
	struct siw_wc wc;

	do
		if (!siw_bench_wait_for_completions(e, &wc, 1))
			siw_bench_die(SIW_BENCH_EXIT_LOST, "a message did not arrive");
	while ((int)wc.opcode != opcode);
}

/* Times Writes of the client; the server polls until the client sends that it has finished. */
static void verbs_time_write_completions(struct siw_bench_side *e, uint32_t n, uint64_t *ns)
{
	if (e->o->server) {
		siw_bench_await_recv_and_repost(e);
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		uint64_t start = siw_bench_now();

		siw_bench_post_rdma(e, SIW_WR_RDMA_WRITE, e->o->size, e->buf.base,
				    e->peer.addr + e->buf.stride);
		verbs_wait_for_completion(e, SIW_WC_RDMA_WRITE);
		if (ns)
			ns[i] = siw_bench_now() - start;
	}
	siw_bench_post_send(e, 0);
}

/* ---- answer: half a round trip of Sends whose completions are awaited ------------------------ */

/*
 * A completion that arrived before the expected completion, and whether such an order is an error.
 */
struct turns {
	bool in_order, has_early;
	struct siw_wc early;
};

/* Wait for a completion with the given opcode; return the wr_id of the completion. */
static uint64_t verbs_wait_for_opcode(struct siw_bench_side *e, struct turns *t, int opcode)
{
	struct siw_wc wc;

	if (t->has_early && (int)t->early.opcode == opcode) {
		t->has_early = false;
		return t->early.wr_id;
	}
	for (;;) {
		if (!siw_bench_wait_for_completions(e, &wc, 1))
			siw_bench_die(SIW_BENCH_EXIT_LOST, "a message did not arrive");
		if ((int)wc.opcode == opcode)
			return wc.wr_id;
		if (t->in_order || t->has_early)
			siw_bench_die(SIW_BENCH_EXIT_ERROR,
				      "an answer arrived before a completion");
		t->early = wc;
		t->has_early = true;
	}
}

static void verbs_post_signalled_send(struct siw_bench_side *e)
{
	struct siw_sge sge = { .addr = (uintptr_t)e->buf.base,
			       .length = (uint32_t)e->o->size,
			       .lkey = e->mr->lkey };
	struct siw_send_wr *bad, wr = { .sg_list = &sge,
					.num_sge = 1,
					.opcode = SIW_WR_SEND,
					.send_flags = SIW_SEND_SIGNALED };

	siw_bench_exit_on_error(siw_post_send(e->qp, &wr, &bad), "posting a send");
}

/*
 * With persona roce the completion of a Send precedes the answer of the peer; with persona iwarp
 * the answer may arrive before the post of the Send has returned.
 */
static void verbs_time_answered_sends(struct siw_bench_side *e, uint32_t n, uint64_t *ns)
{
	struct siw_qp_init_attr init;
	struct siw_qp_attr attr;
	struct turns turns = { 0 };

	siw_bench_exit_on_error(siw_query_qp(e->qp, &attr, &init), "querying the persona");
	turns.in_order = init.persona == SIW_PERSONA_ROCE;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t start = siw_bench_now();

		if (e->o->server)
			siw_bench_post_recv(e, verbs_wait_for_opcode(e, &turns, SIW_WC_RECV));
		verbs_post_signalled_send(e);
		verbs_wait_for_opcode(e, &turns, SIW_WC_SEND);
		if (!e->o->server)
			siw_bench_post_recv(e, verbs_wait_for_opcode(e, &turns, SIW_WC_RECV));
		if (ns)
			ns[i] = siw_bench_now() - start;
	}
}

/* ---- watched: Writes into memory that is read instead of polling ----------------------------- */

static void verbs_wait_for_octet(struct siw_bench_side *e, const volatile char *octet, char value)
{
	struct siw_wc wc[4];

	siw_bench_poll(e, wc, 4);
	while (siw_bench_read_octet(octet) != value)
		if (siw_bench_idle(&e->guard))
			siw_bench_die(SIW_BENCH_EXIT_LOST, "a Write did not arrive");
	siw_bench_reset_idle(&e->guard);
}

/*
 * Each side writes a number into the memory of the other, and polls once per Write (ib_write_lat).
 */
static void verbs_time_writes_seen_in_memory(struct siw_bench_side *e, uint32_t n, uint64_t *ns)
{
	uint64_t size = e->o->size;
	volatile char *seen = siw_bench_slot(&e->buf, 0) + size - 1;

	siw_bench_clear_octet(seen);
	siw_bench_exchange_number(e->o->ctl, 0);
	for (uint32_t i = 0; i < n; i++) {
		char value = (char)(i % 100 + 1);
		uint64_t start = siw_bench_now();

		if (e->o->server)
			verbs_wait_for_octet(e, seen, value);
		e->buf.base[size - 1] = value;
		siw_bench_post_rdma(e, SIW_WR_RDMA_WRITE, size, e->buf.base,
				    e->peer.addr + e->buf.stride);
		if (!e->o->server)
			verbs_wait_for_octet(e, seen, value);
		if (ns)
			ns[i] = siw_bench_now() - start;
	}
}

static void verbs_measure_messages(const struct siw_bench_opts *o, struct siw_bench_result *result)
{
	bool done = !strcmp(o->kind, "done");
	siw_bench_lat_fn *run = done			     ? verbs_time_write_completions
				: !strcmp(o->kind, "answer") ? verbs_time_answered_sends
							     : verbs_time_writes_seen_in_memory;
	struct siw_bench_side e;

	siw_bench_open_client_or_server(&e, o, RECVS);
	siw_bench_measure_latency(&e, run, done ? 1 : 2, result);
	siw_bench_close_client_or_server(&e);
}

/* ---- lanes: one-sided traffic of a queue pair while another CQ is polled --------------------- */

/*
 * Polls the CQ of an idle queue pair, which is in another lane if the device has several, until the
 * client has written the last octet of the region.
 */
static void verbs_poll_cq_of_idle_qp(struct siw_bench_side *e)
{
	int vector = siw_num_comp_vectors(e->context) - 1;
	struct siw_cq *cq = siw_bench_require_object(
		siw_create_cq(e->context, RECVS, NULL, NULL, vector), "a completion queue");
	struct siw_qp *idle = siw_lab_open_unused_qp(e, SIW_QPT_UD, cq);
	volatile char *last = siw_bench_slot(&e->buf, 0) + e->o->size - 1;
	struct siw_wc wc;

	siw_bench_clear_octet(last);
	siw_bench_exchange_number(e->o->ctl, 0);
	while (!siw_bench_read_octet(last)) {
		siw_bench_exit_on_error(siw_poll_cq(cq, 1, &wc), "polling");
		if (siw_bench_idle(&e->guard))
			siw_bench_die(SIW_BENCH_EXIT_LOST, "the last Write did not arrive");
	}
	siw_bench_exit_on_error(siw_destroy_qp(idle), "destroying the idle queue pair");
	siw_bench_exit_on_error(siw_destroy_cq(cq), "destroying its completion queue");
}

/* Times a Write followed by a Read, whose completion shows that the Write was placed. */
static void verbs_time_writes_and_reads(struct siw_bench_side *e, uint32_t n, uint64_t *ns)
{
	uint64_t remote = e->peer.addr + e->buf.stride;

	if (e->o->server) {
		verbs_poll_cq_of_idle_qp(e);
		return;
	}
	e->buf.base[e->o->size - 1] = 0;
	siw_bench_exchange_number(e->o->ctl, 0);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t start = siw_bench_now();

		siw_bench_post_rdma(e, SIW_WR_RDMA_WRITE, e->o->size, e->buf.base, remote);
		siw_bench_post_rdma(e, SIW_WR_RDMA_READ, e->o->size, siw_bench_slot(&e->buf, 0),
				    remote);
		verbs_wait_for_completion(e, SIW_WC_RDMA_READ);
		if (ns)
			ns[i] = siw_bench_now() - start;
	}
	e->buf.base[e->o->size - 1] = 1;
	siw_bench_post_rdma(e, SIW_WR_RDMA_WRITE, e->o->size, e->buf.base, remote);
	verbs_wait_for_completion(e, SIW_WC_RDMA_WRITE);
}

static void verbs_measure_latency_across_lanes(const struct siw_bench_opts *o,
					       struct siw_bench_result *result)
{
	struct siw_bench_side e;

	siw_bench_open_client_or_server(&e, o, RECVS);
	siw_bench_measure_latency(&e, verbs_time_writes_and_reads, 1, result);
	siw_bench_close_client_or_server(&e);
}

/* ---- reg: register and deregister a large region, including the check of its pages ----------- */

static void verbs_time_registrations(struct siw_pd *pd, char *memory, size_t size, uint32_t n,
				     uint64_t *ns)
{
	int access = SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_READ;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t start = siw_bench_now();
		struct siw_mr *mr = siw_reg_mr(pd, memory, size, access);
		int r;

		if (!mr)
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "registering: %s", strerror(errno));
		r = siw_dereg_mr(mr);
		if (r)
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "deregistering: %s", strerror(-r));
		if (ns)
			ns[i] = siw_bench_now() - start;
	}
}

static void verbs_measure_registration(const struct siw_bench_opts *o,
				       struct siw_bench_result *result)
{
	uint64_t *ns = calloc(o->iters, sizeof(*ns));
	struct siw_context *context;
	struct siw_addr loopback;
	struct siw_pd *pd;
	char *memory;

	memory = mmap(NULL, o->size, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED || !ns)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "no memory for %llu octets",
			      (unsigned long long)o->size);
	memory[0] = memory[o->size - 1] = 1;
	siw_addr_parse("127.0.0.1", 0, &loopback);
	context = siw_open_device_by_addr(&loopback);
	pd = context ? siw_alloc_pd(context) : NULL;
	if (!pd)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "opening the device: %s", strerror(errno));
	siw_bench_pin_thread(o->cpu);
	verbs_time_registrations(pd, memory, o->size, o->warmup, NULL);
	verbs_time_registrations(pd, memory, o->size, o->iters, ns);
	siw_bench_summarize_samples(ns, o->iters, 1, result);
	siw_dealloc_pd(pd);
	siw_close_device(context);
	munmap(memory, o->size);
	free(ns);
}

static siw_bench_fn *verbs_select_measurement(const struct siw_bench_opts *o)
{
	static const struct {
		const char *kind;
		siw_bench_fn *run;
	} kinds[] = {
		{ "done", verbs_measure_messages },
		{ "answer", verbs_measure_messages },
		{ "watched", verbs_measure_messages },
		{ "connect", siw_lab_measure_connections },
		{ "crowd", siw_lab_measure_latency_among_idle_qps },
		{ "lanes", verbs_measure_latency_across_lanes },
		{ "reg", verbs_measure_registration },
		{ "fair", siw_lab_measure_fairness },
		{ "onesided", siw_lab_measure_onesided },
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strcmp(o->kind, kinds[i].kind))
			return kinds[i].run;
	siw_bench_die(SIW_BENCH_EXIT_USAGE, "unknown kind %s: run make lab-verbs", o->kind);
}

int main(int argc, char **argv)
{
	return siw_bench_main(argc, argv, verbs_select_measurement);
}
