/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * bench/bench_ours.h - an end that stands on the public interface: one QP that is ready to send and
 * to receive, with a memory region over the run's buffer.
 */
#ifndef SIW_BENCH_OURS_H
#define SIW_BENCH_OURS_H

#include <siwarp/cm.h>
#include <siwarp/siw_ext.h>

#include "bench/bench.h"

#define SIW_BENCH_SIGNAL_EVERY 16

struct siw_bench_end {
	const struct siw_bench_opts *o;
	struct siw_context *context;
	struct siw_pd *pd;
	struct siw_comp_channel *channel; /* NULL when polling */
	struct siw_cq *cq;
	struct siw_qp *qp;
	struct siw_mr *mr;
	struct siw_ah *ah;		 /* UD, RD */
	struct siw_cm_channel *cm;	 /* RC */
	struct siw_cm_id *listener, *id; /* RC */
	struct siw_bench_buf buf;
	struct siw_bench_hello peer;
	struct siw_bench_guard guard;
	struct siw_qp **idle;
	uint32_t posted;   /* sends, to signal one in SIW_BENCH_SIGNAL_EVERY */
	bool signals_each; /* ... or each */
};

/*
 * What lies in memory that the peer may be writing right now. A look at what an RNIC places has no
 * order with the placing, on any RNIC: ThreadSanitizer looks away, here and nowhere else.
 */
static inline __attribute__((no_sanitize("thread"))) char siw_bench_look(const volatile char *at)
{
	return *at;
}

/* Before the peer is told that it may write: another process, so the order is nothing TSan sees. */
static inline __attribute__((no_sanitize("thread"))) void siw_bench_clear(volatile char *at)
{
	*at = 0;
}

static inline __attribute__((no_sanitize("thread"))) uint64_t
siw_bench_look64(const volatile uint64_t *at)
{
	return *at;
}

/* bench_end.c. Receives are posted for slots first to slots last before the peer can send. */
void siw_bench_end_open(struct siw_bench_end *e, const struct siw_bench_opts *o, uint32_t slots,
			uint16_t side_port);
void siw_bench_end_close(struct siw_bench_end *e);
/* Posts the receive of this slot (again); its number comes back as wr_id. */
void siw_bench_post_recv(struct siw_bench_end *e, uint64_t slot);
/* Fills in the peer, which UD and RD want with every request; a Write has one on RD alone. */
void siw_bench_address(const struct siw_bench_end *e, struct siw_send_wr *wr);
/* Sends size octets from the buffer's start. */
void siw_bench_post_send(struct siw_bench_end *e, uint32_t size);
/* One RDMA Write or Read of size octets; of a Write they are the buffer's first. */
void siw_bench_post_rdma(struct siw_bench_end *e, int opcode, uint64_t size, char *local,
			 uint64_t remote);
/*
 * Takes 1 to max completions, polling or, with --wait event, sleeping on the channel; dies on one
 * in error. 0 when nothing came for siw_bench_patience_ms, or asleep for SIW_BENCH_SLEEP_MS; with RC
 * and RD, which lose nothing, only a completion or the other end's exit ends the wait.
 */
int siw_bench_wait(struct siw_bench_end *e, struct siw_wc *wc, int max);
/* The same without waiting. */
int siw_bench_poll(struct siw_bench_end *e, struct siw_wc *wc, int max);
/* Waits for one receive, passing over other completions: its slot, to be posted again. */
uint64_t siw_bench_await_slot(struct siw_bench_end *e, uint32_t *length);
/* The same, and posts it again: its octets. */
uint32_t siw_bench_await_recv(struct siw_bench_end *e);

#endif
