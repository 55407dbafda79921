/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * bench/bench_siwarp.h - client or server that uses siwarp's public interface: a QP in RTS, and a
 * memory region of the run's buffer.
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
	struct siw_comp_channel *channel; /* completion channel; NULL if completions are polled */
	struct siw_cq *cq;
	struct siw_qp *qp;
	struct siw_mr *mr;
	struct siw_ah *ah;		 /* address handle of the peer; only for UD and RD */
	struct siw_cm_channel *cm;	 /* channel for connection events; only for RC */
	struct siw_cm_id *listener, *id; /* connection ids; only for RC */
	struct siw_bench_buf buf;
	struct siw_bench_hello peer;
	struct siw_bench_guard guard;
	uint32_t posted; /* number of posted Sends; one in SIW_BENCH_SIGNAL_EVERY is signalled */
};

/*
 * Read memory that the peer may be writing. ThreadSanitizer is disabled, because on any RNIC
 * reading memory is not ordered with the placement of data.
 */
static inline __attribute__((no_sanitize("thread"))) char
siw_bench_read_octet(const volatile char *at)
{
	return *at;
}

/*
 * Clear an octet before the peer may write the octet. ThreadSanitizer is disabled, because it
 * cannot order accesses of another process.
 */
static inline __attribute__((no_sanitize("thread"))) void siw_bench_clear_octet(volatile char *at)
{
	*at = 0;
}

/* Open a side of a run; receives for all slots are posted before the peer can send. */
void siw_bench_open_client_or_server(struct siw_bench_side *e, const struct siw_bench_opts *o,
				     uint32_t slots);
void siw_bench_close_client_or_server(struct siw_bench_side *e);
/* Post the receive of a slot, whose wr_id is the slot number. */
void siw_bench_post_recv(struct siw_bench_side *e, uint64_t slot);
/* Post a Send of size octets from the start of the buffer. */
void siw_bench_post_send(struct siw_bench_side *e, uint32_t size);
/* Post an RDMA Write or Read of size octets; a Write sends the first octets of the buffer. */
void siw_bench_post_rdma(struct siw_bench_side *e, int opcode, uint64_t size, char *local,
			 uint64_t remote);
/*
 * Wait for 1 to max completions, polling or, with --wait event, sleeping on the channel, and return
 * their number; exit with an error on a completion in error. Return 0 after siw_bench_patience_ms,
 * or asleep after SIW_BENCH_SLEEP_MS, without a completion; with RC and RD, which lose no messages,
 * only a completion or the exit of the other process ends the wait.
 */
int siw_bench_wait_for_completions(struct siw_bench_side *e, struct siw_wc *wc, int max);
/*
 * Return up to max completions like siw_bench_wait_for_completions, but without waiting; return 0
 * if there is no completion.
 */
int siw_bench_poll(struct siw_bench_side *e, struct siw_wc *wc, int max);
/*
 * Wait for one receive completion, skipping other completions; return the slot, whose receive is
 * not posted again.
 */
uint64_t siw_bench_await_recv_slot(struct siw_bench_side *e, uint32_t *length);
/*
 * Wait for one receive completion like siw_bench_await_recv_slot, post the receive again, and
 * return the number of octets received.
 */
uint32_t siw_bench_await_recv_and_repost(struct siw_bench_side *e);

/* Exchange n messages; store the time of each message in ns[], if ns is not NULL. */
typedef void siw_bench_lat_fn(struct siw_bench_side *e, uint32_t n, uint64_t *ns);
/* Exchange Sends in both directions. */
siw_bench_lat_fn siw_bench_run_send_latency;
/*
 * Exchange the warm-up messages and the measured messages. *result: statistics of the time of a
 * message, divided by parts (2 to convert a round trip to a one-way latency).
 */
void siw_bench_measure_latency(struct siw_bench_side *e, siw_bench_lat_fn *run, double parts,
			       struct siw_bench_result *result);

#endif
