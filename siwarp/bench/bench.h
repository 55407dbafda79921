/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * bench/bench.h - client or server of a measured run: raw sockets, or siwarp through
 * <siwarp/siw.h>.
 *
 * `siwarp bench` starts the program siwarp-bench twice for each run, as server and as client, with
 * a socket pair ("ctl") between them, over which they exchange ports and keys and synchronize their
 * start. Between hosts, one process is started on each host, and ctl is relayed (hosts.py).
 * Each process prints its result as one line of JSON. runner.py computes rounds, medians and
 * ratios.
 *
 * Every loop is bounded: by its iterations, by siw_bench_patience_ms without a message from the
 * peer, and by alarm(2). A spinning process measures this patience in its own CPU time, because on
 * a busy machine the peer may have to wait for a CPU. RC and RD lose no messages, so processes of
 * RC and RD runs wait until the peer has finished or ended.
 */
#ifndef SIW_BENCH_BENCH_H
#define SIW_BENCH_BENCH_H

#include <netinet/in.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIW_BENCH_EXIT_ERROR 1
#define SIW_BENCH_EXIT_USAGE 2
#define SIW_BENCH_EXIT_LOST  3 /* exit status: messages were lost, so no figure is valid */

#define SIW_BENCH_SLEEP_MS \
	10000		   /* ms that a sleeping process waits for a message before it gives up */
#define SIW_BENCH_BATCH 32 /* messages per sendmmsg or recvmmsg; maximum length of a posted list */

enum siw_bench_op { SIW_BENCH_SEND, SIW_BENCH_WRITE, SIW_BENCH_READ };

struct siw_bench_opts {
	/* kind of measurement: lat, bw, rate, threads, or a kind that a program in lab/ defines */
	const char *kind;
	const char *run; /* "ours" for siwarp, or the name of a raw-socket program to compare */
	enum siw_bench_op op;
	bool server, rc, uc, rd, event; /* if neither rc nor uc nor rd is set, the QP is UD */
	uint64_t size;			/* message size in octets */
	uint32_t iters; /* number of measured messages, a multiple of the messages per credit */
	uint32_t warmup;
	uint32_t depth; /* maximum number of outstanding messages; for Sends, the window */
	uint32_t batch; /* number of requests that are posted as one list */
	int cpu;	/* CPU to which the measuring thread is pinned; -1: not pinned */
	int ctl;
	const char *local, *remote; /* numeric addresses of both sides */
	const char *samples;	    /* file for the time of each message; NULL: none */
	unsigned int limit_s;
	/* kind threads: number of threads, lanes of a device, and measured time in ms */
	uint32_t threads, lanes, time_ms;
};

/*
 * Message of 24 octets that both sides exchange before the run starts; packed in the same way by
 * end.py
 */
struct siw_bench_hello {
	uint16_t port; /* fields are in host byte order; hosts.py refuses a host with another */
	uint16_t zero;
	uint32_t rkey;
	uint64_t addr;
	uint64_t length;
};
_Static_assert(sizeof(struct siw_bench_hello) == 24, "end.py packs 24 octets");

struct siw_bench_result {
	double value; /* lat: us; bw: GB/s (10^9 octets); rate: messages/s */
	/* percentiles 99 and 99.9 of single samples, in us; 0 without samples */
	double p99, p999;
	uint64_t n; /* number of measured samples or messages */
	/*
	 * CPU time in ns, and cycles, of all threads of this process in the measured part. 0: not
	 * counted; they are counted only for streams of messages
	 */
	uint64_t cpu_ns, cycles;
};

/* Memory of a run: the octets to send, followed by slots for received messages */
struct siw_bench_buf {
	char *base;
	size_t length, stride;
	uint32_t slots;
};

/* ---- bench_util.c */
/* May be called by several threads: the first ends the program. */
_Noreturn void siw_bench_die(int code, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/*
 * siw_bench_exit_on_error ends the program with a message if r is a negative errno value.
 * siw_bench_require_object returns object; if object is NULL, it ends the program with a message
 * that names errno.
 */
void siw_bench_exit_on_error(int r, const char *what);
void *siw_bench_require_object(void *object, const char *what);
uint64_t siw_bench_now(void); /* monotonic time in ns */
void siw_bench_pin_thread(int cpu);
/*
 * Raise the soft limit of descriptors to the hard limit; exit with an error if the hard limit is
 * too low for n sockets.
 */
void siw_bench_raise_fd_limit(uint32_t n);
void siw_bench_buf_make(struct siw_bench_buf *buf, uint64_t size, uint32_t slots);
void siw_bench_buf_free(struct siw_bench_buf *buf);
static inline char *siw_bench_slot(const struct siw_bench_buf *buf, uint32_t i)
{
	return buf->base + buf->stride * (1 + i % buf->slots);
}
/* Exit with an error if data does not begin with the size octets that siw_bench_buf_make writes. */
void siw_bench_buf_check(const char *data, uint64_t size);

/*
 * Send a value to the other side and receive the other side's value; exit with an error if the
 * other side has ended or does not answer.
 */
void siw_bench_exchange_hello(int ctl, const struct siw_bench_hello *mine,
			      struct siw_bench_hello *theirs);
uint64_t siw_bench_exchange_number(int ctl, uint64_t mine);
/* End this process with an error if the other process of the run has ended. */
void siw_bench_check_peer_alive(int ctl);

/*
 * Measures the time without a message: a spin loop calls siw_bench_idle, and siw_bench_reset_idle
 * after each message.
 */
struct siw_bench_guard {
	uint64_t since; /* CPU time of this thread at the last reset, in ns */
	uint32_t spins;
};
static inline void siw_bench_reset_idle(struct siw_bench_guard *guard)
{
	guard->spins = 0;
}
/*
 * Whether a spinning process yields immediately because the process may use only one CPU, which the
 * peer may need
 */
extern bool siw_bench_spin_yields;
/* Limit of CPU time in ms for spinning without a message (option --patience) */
extern unsigned int siw_bench_patience_ms;
bool siw_bench_is_idle_time_over(struct siw_bench_guard *guard);
/* Return true after siw_bench_patience_ms without a message; every 4096th call checks the clock. */
static inline bool siw_bench_idle(struct siw_bench_guard *guard)
{
	if (siw_bench_spin_yields)
		sched_yield();
	return (++guard->spins & 4095) == 0 && siw_bench_is_idle_time_over(guard);
}

/* Write the samples in ns and in measured order to the file of the option --samples, if any. */
void siw_bench_write_samples(const struct siw_bench_opts *o, const uint64_t *ns);
/*
 * Store the median and the 99th percentile of n samples, divided by parts and converted from ns to
 * us. The samples are sorted.
 */
void siw_bench_summarize_samples(uint64_t *ns, uint32_t n, double parts,
				 struct siw_bench_result *result);
/*
 * Store the result of a run in GB/s or in messages per second, according to kind, and the CPU time
 * and the cycles of this process since the previous call, which was after the warm-up.
 */
void siw_bench_store_rate_result(const struct siw_bench_opts *o, uint32_t n, uint64_t ns,
				 struct siw_bench_result *result);
/*
 * At the end of a windowed run both sides exchange their numbers of sent and received messages, and
 * exit with EXIT_LOST if the numbers differ from each other or from expected.
 */
void siw_bench_check_message_counts(const struct siw_bench_opts *o, uint64_t done,
				    uint64_t expected);
static inline uint32_t siw_bench_credit_size(const struct siw_bench_opts *o)
{
	return o->depth > 1 ? o->depth / 2 : 1; /* number of messages per credit */
}

/*
 * ---- the runs: each dies on failure and fills in the result, of which the server only has the CPU
 * time and the cycles
 */
typedef void siw_bench_fn(const struct siw_bench_opts *o, struct siw_bench_result *result);

/*
 * The main function of each measuring program: parse the options, execute the run that select
 * returns, and print the result. Return the exit status.
 */
int siw_bench_main(int argc, char **argv, siw_bench_fn *(*select)(const struct siw_bench_opts *o));

siw_bench_fn siw_bench_measure_raw_udp;	       /* bench_raw_udp.c */
siw_bench_fn siw_bench_measure_raw_tcp;	       /* bench_raw_tcp.c */
siw_bench_fn siw_bench_measure_siwarp_latency; /* bench_siwarp.c */
siw_bench_fn siw_bench_measure_siwarp_stream;
/* measurements of threads (bench_threads.c): one process, which has the role of client */
siw_bench_fn siw_bench_measure_threads;

#endif
