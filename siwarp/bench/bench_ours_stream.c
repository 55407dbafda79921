/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Bandwidth and message rate through the verbs. Sends are windowed: the receiver sends a credit, a
 * small message, per half window, because neither UD nor iWARP's RC has flow control. RD has flow
 * control: its window is the number of messages that the peer has not acknowledged. Writes count
 * when the receiver has answered the Send after them, Reads when the data has arrived.
 */
#include <string.h>

#include "bench/bench_ours.h"

#define CREDIT_OCTETS 4

/* ---- windowed sends -------------------------------------------------------------------------- */

struct list {
	struct siw_sge sge;
	struct siw_send_wr wr[SIW_BENCH_BATCH];
};

static void bench_list_init(struct siw_bench_side *e, struct list *l)
{
	memset(l, 0, sizeof(*l));
	l->sge = (struct siw_sge){ .addr = (uintptr_t)e->buf.base,
				   .length = (uint32_t)e->o->size,
				   .lkey = e->mr->lkey };
	for (int i = 0; i < SIW_BENCH_BATCH; i++) {
		l->wr[i].sg_list = &l->sge;
		l->wr[i].num_sge = 1;
		l->wr[i].opcode = SIW_WR_SEND;
		siw_bench_address(e, &l->wr[i]);
	}
}

/* Prepare a list of Writes to the peer's memory, or of Reads from it. */
static void bench_list_init_rdma(struct siw_bench_side *e, struct list *l,
				 enum siw_wr_opcode opcode)
{
	bool reads = opcode == SIW_WR_RDMA_READ;

	bench_list_init(e, l);
	if (reads)
		l->sge.addr = (uintptr_t)siw_bench_slot(&e->buf, 0);
	for (int i = 0; i < SIW_BENCH_BATCH; i++) {
		l->wr[i].opcode = opcode;
		l->wr[i].wr.rdma.remote_addr = e->peer.addr + (reads ? 0 : e->buf.stride);
		l->wr[i].wr.rdma.rkey = e->peer.rkey;
	}
}

/* Post a list; its last request is signalled at intervals, to detect errors and to free slots. */
static void bench_list_post(struct siw_bench_side *e, struct list *l, uint32_t k, bool report)
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

	if (e->o->op == SIW_BENCH_WRITE) /* UC: credits count the completions of immediate data */
		bench_list_init_rdma(e, &list, SIW_WR_RDMA_WRITE_WITH_IMM);
	else
		bench_list_init(e, &list);
	while (credited < n) {
		uint32_t room = bench_min_u32(e->o->depth - (sent - credited), n - sent);

		if (room) {
			uint32_t k = bench_min_u32(room, e->o->batch);

			bench_list_post(e, &list, k,
					e->posted / SIW_BENCH_SIGNAL_EVERY !=
						(e->posted + k) / SIW_BENCH_SIGNAL_EVERY);
			sent += k;
			continue;
		}
		got = siw_bench_wait(e, wc, SIW_BENCH_BATCH);
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
		int got = siw_bench_wait(e, wc, SIW_BENCH_BATCH);

		if (!got)
			break;
		for (int i = 0; i < got; i++) {
			if (!bench_wc_is_message(&wc[i]))
				continue;
			if (wc[i].byte_len != e->o->size)
				siw_bench_die(SIW_BENCH_EXIT_ERROR,
					      "a message has %u octets, the wrong length",
					      wc[i].byte_len);
			/* Do not check memory that later Writes overwrite meanwhile. */
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
 * RD: the own completions of the last request of each half window are the credit; wr_id is the
 * number of requests completed with it. At the end the peer sends one message when it has received
 * all.
 */
static uint32_t bench_stream_send_rd(struct siw_bench_side *e, uint32_t n)
{
	uint32_t sent = 0, done = 0, half = siw_bench_credit_size(e->o);
	struct siw_wc wc[SIW_BENCH_BATCH];
	bool answered = false;
	struct list list;

	bench_list_init(e, &list);
	while (!answered || done < n) {
		uint32_t room = bench_min_u32(e->o->depth - (sent - done), n - sent);
		int got;

		if (room) {
			uint32_t k = bench_min_u32(room, e->o->batch);

			list.wr[k - 1].wr_id = sent + k;
			bench_list_post(e, &list, k,
					sent / half != (sent + k) / half || sent + k == n);
			sent += k;
			continue;
		}
		got = siw_bench_wait(e, wc, SIW_BENCH_BATCH);
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

static uint64_t bench_stream_run_send(struct siw_bench_side *e, uint32_t n)
{
	uint64_t start = siw_bench_now(), ns;
	uint32_t done = e->o->server ? bench_stream_receive(e, n)
			: e->o->rd   ? bench_stream_send_rd(e, n)
				     : bench_stream_send(e, n);

	ns = siw_bench_now() - start;
	siw_bench_check_counts(e->o, done, n);
	return ns;
}

/* ---- RDMA ------------------------------------------------------------------------------------ */

/* Keep depth requests outstanding until n have completed; the last one of a list is signalled. */
static void bench_stream_post_rdma(struct siw_bench_side *e, enum siw_wr_opcode opcode, uint32_t n)
{
	int wanted = opcode == SIW_WR_RDMA_READ ? SIW_WC_RDMA_READ : SIW_WC_RDMA_WRITE;
	struct siw_wc wc[SIW_BENCH_BATCH];
	uint32_t posted = 0, done = 0;
	struct list list;

	bench_list_init_rdma(e, &list, opcode);
	while (done < n) {
		uint32_t room = bench_min_u32(e->o->depth - (posted - done), n - posted);
		int got;

		if (room) {
			uint32_t k = bench_min_u32(room, e->o->batch);

			posted += k;
			list.wr[k - 1].wr_id = posted;
			bench_list_post(e, &list, k, true);
			continue;
		}
		got = siw_bench_wait(e, wc, SIW_BENCH_BATCH);
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
		slot = siw_bench_await_slot(e, &length);
		siw_bench_post_send(e, 0);
		siw_bench_buf_check(siw_bench_slot(&e->buf, 0), e->o->size);
		memset(siw_bench_slot(&e->buf, 0), 0, e->o->size);
		/* Last, because the receive allows the peer to write there again. */
		siw_bench_post_recv(e, slot);
		return 1;
	}
	bench_stream_post_rdma(e, SIW_WR_RDMA_WRITE, n);
	siw_bench_post_send(e, 0);
	siw_bench_await_recv(e);
	ns = siw_bench_now() - start;
	return ns;
}

static uint64_t bench_stream_run_read(struct siw_bench_side *e, uint32_t n)
{
	uint64_t start = siw_bench_now(), ns;
	uint32_t length;

	if (e->o->server) {
		siw_bench_post_recv(e, siw_bench_await_slot(e, &length));
		return 1;
	}
	bench_stream_post_rdma(e, SIW_WR_RDMA_READ, n);
	ns = siw_bench_now() - start;
	siw_bench_buf_check(siw_bench_slot(&e->buf, 0), e->o->size);
	memset(siw_bench_slot(&e->buf, 0), 0, e->o->size);
	siw_bench_post_send(e, 0);
	return ns;
}

void siw_bench_ours_stream(const struct siw_bench_opts *o, struct siw_bench_result *result)
{
	static uint64_t (*const by[])(struct siw_bench_side *, uint32_t) = {
		[SIW_BENCH_SEND] = bench_stream_run_send,
		[SIW_BENCH_WRITE] = bench_stream_run_write,
		[SIW_BENCH_READ] = bench_stream_run_read,
	};
	/* UC Writes have no flow control either. */
	bool windowed = o->op == SIW_BENCH_SEND || o->uc;
	uint32_t parts[] = { o->warmup, o->iters };
	struct siw_bench_side e;

	if (o->depth > 4096)
		siw_bench_die(SIW_BENCH_EXIT_USAGE, "the depth is more than 4096");
	siw_bench_end_open(&e, o, windowed ? 2 * o->depth + 2 : 4);
	for (int i = 0; i < 2; i++) {
		uint64_t ns;

		siw_bench_exchange(o->ctl, 0);
		ns = (windowed ? bench_stream_run_send : by[o->op])(&e, parts[i]);
		siw_bench_set_rate(o, parts[i], ns, result);
	}
	siw_bench_exchange(o->ctl, 0);
	siw_bench_end_close(&e);
}
