/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * bench/bench.h - one end of one measured run: raw sockets, or ours through <siwarp/siw.h>.
 *
 * `siwarp bench` starts the program siwarp-bench twice for each run, as server and as client, with
 * a socket pair between the two ("ctl") over which they tell each other ports and keys and agree on
 * when to start. Between hosts the two are started one on each, and ctl is relayed (hosts_wire.py).
 * The client prints what it measured as one line of JSON. Rounds, medians and ratios are
 * computed in Python (runner.py).
 *
 * Every loop is bounded: by its iterations, by siw_bench_patience_ms without news from the peer,
 * and by alarm(2). Who spins counts its own CPU time for that: on a busy machine the peer may have
 * to wait for a CPU. RC and RD lose nothing: their ends wait until the peer is done or gone.
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
#define SIW_BENCH_EXIT_LOST  3 /* messages were lost: the figure would mean nothing */

#define SIW_BENCH_SLEEP_MS 10000 /* without news; for who spins: siw_bench_patience_ms */
#define SIW_BENCH_BATCH	   32 /* messages of one sendmmsg or recvmmsg, and the most of one list */

enum siw_bench_op { SIW_BENCH_SEND, SIW_BENCH_WRITE, SIW_BENCH_READ };

struct siw_bench_opts {
	const char *kind; /* lat, bw, rate, reg, onesided, done, answer, watched */
	const char *run;  /* ours, or a floor's name */
	enum siw_bench_op op;
	bool server, rc, uc, rd, event; /* none of rc, uc and rd: UD */
	uint64_t size;			/* octets of a message; reg: of the region */
	uint32_t iters; /* messages of the measured part; a multiple of the credit */
	uint32_t warmup;
	uint32_t depth; /* messages outstanding; sends: the window */
	uint32_t batch; /* requests posted as one list */
	uint32_t idle;	/* QPs that are there and do nothing */
	int cpu;	/* to pin the measuring thread to; -1: none */
	int ctl;
	const char *local, *remote; /* addresses of the two ends, numeric */
	const char *samples;	    /* file for what each message took; NULL: none */
	unsigned int limit_s;
};

/* What one end tells the other before they start: 24 octets, as end.py packs them. */
struct siw_bench_hello {
	uint16_t port; /* host order, as all of it: hosts of another order are refused before */
	uint16_t side_port;
	uint32_t rkey;
	uint64_t addr;
	uint64_t length;
};
_Static_assert(sizeof(struct siw_bench_hello) == 24, "end.py packs 24 octets");

struct siw_bench_result {
	double value; /* lat, onesided, reg: us; bw: GB/s (10^9 octets); rate: messages a second */
	double p99;   /* of single samples, us; 0 where there are none */
	uint64_t n;   /* measured samples or messages */
};

/* Memory as both floors and ours use it: what is sent, and slots to receive into. */
struct siw_bench_buf {
	char *base;
	size_t length, stride;
	uint32_t slots;
};

/* ---- bench_util.c */
_Noreturn void siw_bench_die(int code, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/*
 * Die, saying what failed, on a negative errno value and on NULL (errno says why): else that
 * object.
 */
void siw_bench_check(int r, const char *what);
void *siw_bench_made(void *object, const char *what);
uint64_t siw_bench_now(void); /* ns */
void siw_bench_pin(int cpu);
/*
 * Raises the soft limit of descriptors to the hard one, and dies if that is too low for n sockets.
 */
void siw_bench_need_fds(uint32_t n);
void siw_bench_buf_make(struct siw_bench_buf *buf, uint64_t size, uint32_t slots);
void siw_bench_buf_free(struct siw_bench_buf *buf);
static inline char *siw_bench_slot(const struct siw_bench_buf *buf, uint32_t i)
{
	return buf->base + buf->stride * (1 + i % buf->slots);
}
/* Dies if the buffer does not begin with size octets of what siw_bench_buf_make puts there. */
void siw_bench_buf_check(const char *data, uint64_t size);

/* Each gives its own and takes the other's; dies when the other is gone or silent. */
void siw_bench_swap_hello(int ctl, const struct siw_bench_hello *mine,
			  struct siw_bench_hello *theirs);
uint64_t siw_bench_swap(int ctl, uint64_t mine);
/* Dies when the other end is gone. */
void siw_bench_look_after(int ctl);

/* How long nothing has come: siw_bench_idle in a spin loop, siw_bench_busy when something came. */
struct siw_bench_guard {
	uint64_t since; /* ns of this thread's CPU time */
	uint32_t spins;
};
static inline void siw_bench_busy(struct siw_bench_guard *guard)
{
	guard->spins = 0;
}
/* One CPU is allowed: the peer may need it, so who spins yields at once. */
extern bool siw_bench_yields;
/* CPU time that who spins spends without news; --patience. */
extern unsigned int siw_bench_patience_ms;
bool siw_bench_idle_slow(struct siw_bench_guard *guard);
/* True when there was no news for that long; looks at its clock once in 4096 calls. */
static inline bool siw_bench_idle(struct siw_bench_guard *guard)
{
	if (siw_bench_yields)
		sched_yield();
	return (++guard->spins & 4095) == 0 && siw_bench_idle_slow(guard);
}

/* With --samples: writes them to that file, in ns and in the order in which they were taken. */
void siw_bench_keep_samples(const struct siw_bench_opts *o, const uint64_t *ns);
/* The median and the 99th percentile of n samples in ns, as us divided by parts; sorts them. */
void siw_bench_samples(uint64_t *ns, uint32_t n, double parts, struct siw_bench_result *result);
/* Octets or messages a second, as kind has it. */
void siw_bench_volume(const struct siw_bench_opts *o, uint32_t n, uint64_t ns,
		      struct siw_bench_result *result);
/*
 * The end of a windowed run of expected messages: each end says how many it has sent or seen, and
 * both die with EXIT_LOST if the numbers differ.
 */
void siw_bench_account(const struct siw_bench_opts *o, uint64_t done, uint64_t expected);
static inline uint32_t siw_bench_half(const struct siw_bench_opts *o)
{
	return o->depth > 1 ? o->depth / 2 : 1; /* messages that one credit is worth */
}

/* ---- the runs: each dies on failure; the client's fills in the result */
typedef void siw_bench_fn(const struct siw_bench_opts *o, struct siw_bench_result *result);

siw_bench_fn siw_bench_raw_udp;	    /* bench_raw_udp.c */
siw_bench_fn siw_bench_raw_tcp;	    /* bench_raw_tcp.c */
siw_bench_fn siw_bench_ours_lat;    /* bench_ours_lat.c */
siw_bench_fn siw_bench_ours_stream; /* bench_ours_stream.c */
siw_bench_fn siw_bench_onesided;    /* bench_onesided.c */
siw_bench_fn siw_bench_fair;	    /* bench_fair.c */
siw_bench_fn siw_bench_crowd;	    /* bench_crowd.c */
siw_bench_fn siw_bench_reg;	    /* bench_reg.c */

#endif
