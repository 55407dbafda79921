/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * bench/bench_siwarp.h - client or server on the public interface: a QP in RTS, with a memory region
 * over the run's buffer.
 */
#ifndef SIW_BENCH_SIWARP_H
#define SIW_BENCH_SIWARP_H

#include <siwarp/cm.h>
#include <siwarp/siw_ext.h>

#include "bench/bench.h"

#define SIW_BENCH_SIGNAL_EVERY 16

struct siw_bench_side {
	const struct siw_bench_opts *o;
	struct siw_context *context;
	struct siw_pd *pd;
	struct siw_comp_channel *channel; /* NULL if completions are polled */
	struct siw_cq *cq;
	struct siw_qp *qp;
	struct siw_mr *mr;
	struct siw_ah *ah;		 /* used by UD and RD */
	struct siw_cm_channel *cm;	 /* used by RC */
	struct siw_cm_id *listener, *id; /* used by RC */
	struct siw_bench_buf buf;
	struct siw_bench_hello peer;
	struct siw_bench_guard guard;
	uint32_t posted; /* sends posted, to signal one in SIW_BENCH_SIGNAL_EVERY */
};

/*
 * Read memory that the peer may be writing. Reading memory into which an RNIC places data is not
 * ordered with the placement, on any RNIC, so ThreadSanitizer is disabled here and nowhere else.
 */
static inline __attribute__((no_sanitize("thread"))) char
siw_bench_read_octet(const volatile char *at)
{
	return *at;
}

/*
 * Clear an octet before the peer is allowed to write it. The peer is another process, whose order
 * ThreadSanitizer cannot see.
 */
static inline __attribute__((no_sanitize("thread"))) void siw_bench_clear_octet(volatile char *at)
{
	*at = 0;
}

/* Posts receives for all slots before the peer can send. */
void siw_bench_end_open(struct siw_bench_side *e, const struct siw_bench_opts *o, uint32_t slots);
void siw_bench_end_close(struct siw_bench_side *e);
/* Post the receive of this slot (again); wr_id is the slot. */
void siw_bench_post_recv(struct siw_bench_side *e, uint64_t slot);
/* Send size octets from the buffer's start. */
void siw_bench_post_send(struct siw_bench_side *e, uint32_t size);
/* Post an RDMA Write or Read of size octets; a Write takes the first octets of the buffer. */
void siw_bench_post_rdma(struct siw_bench_side *e, int opcode, uint64_t size, char *local,
			 uint64_t remote);
/*
 * Return 1 to max completions, polling or, with --wait event, sleeping on the channel; die on a
 * completion in error. Return 0 after siw_bench_patience_ms, or asleep after SIW_BENCH_SLEEP_MS,
 * without a completion; with RC and RD, which lose no messages, only a completion or the exit of
 * the other process ends the wait.
 */
int siw_bench_wait(struct siw_bench_side *e, struct siw_wc *wc, int max);
/* Like siw_bench_wait, but return at once, with 0 if there is no completion. */
int siw_bench_poll(struct siw_bench_side *e, struct siw_wc *wc, int max);
/* Wait for one receive, skipping other completions; return its slot, which is not posted again. */
uint64_t siw_bench_await_slot(struct siw_bench_side *e, uint32_t *length);
/* Like siw_bench_await_slot, but post the receive again; return the number of octets. */
uint32_t siw_bench_await_recv(struct siw_bench_side *e);

/* Exchange n messages; store the time of each in ns[], if ns is not NULL. */
typedef void siw_bench_lat_fn(struct siw_bench_side *e, uint32_t n, uint64_t *ns);
/* Exchange Sends in both directions. */
siw_bench_lat_fn siw_bench_lat_send;
/* Run the warm-up and the measured messages; the result is their times divided by parts. */
void siw_bench_time(struct siw_bench_side *e, siw_bench_lat_fn *run, double parts,
		    struct siw_bench_result *result);

#endif
