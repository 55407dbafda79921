/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Functions that every measuring program needs: time, memory, control messages, statistics and
 * options.
 */
#include <errno.h>
#include <getopt.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench.h"

void siw_bench_die(int code, const char *format, ...)
{
	static atomic_flag ended = ATOMIC_FLAG_INIT;
	va_list args;

	/*
	 * Two threads must not call exit() at the same time. Only the first thread prints its
	 * message, which is the most specific.
	 */
	while (atomic_flag_test_and_set(&ended))
		pause();
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(code);
}

void siw_bench_exit_on_error(int r, const char *what)
{
	if (r < 0)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "%s: %s", what, strerror(-r));
}

void *siw_bench_require_object(void *object, const char *what)
{
	if (!object)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "%s: %s", what, strerror(errno));
	return object;
}

uint64_t siw_bench_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#define OTHER_FDS 100 /* number of descriptors that a process needs besides those of its QPs */

void siw_bench_raise_fd_limit(uint32_t n)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "getrlimit: %s", strerror(errno));
	if (limit.rlim_max < n + OTHER_FDS)
		siw_bench_die(SIW_BENCH_EXIT_ERROR,
			      "%u descriptors are needed, but `ulimit -Hn` is %llu: raise the "
			      "limit",
			      n + OTHER_FDS, (unsigned long long)limit.rlim_max);
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "setrlimit: %s", strerror(errno));
}

/* Pins only the calling thread, so that the scheduler places the device's thread. */
void siw_bench_pin_thread(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "pinning to CPU %d: %s", cpu, strerror(errno));
}

/* ---- memory ---------------------------------------------------------------------------------- */

static char buf_pattern_octet(uint64_t i)
{
	return (char)(i * 31 + (i >> 8) + 7);
}

void siw_bench_buf_make(struct siw_bench_buf *buf, uint64_t size, uint32_t slots)
{
	buf->stride = (size + 63) & ~(size_t)63;
	if (!buf->stride)
		buf->stride = 64;
	buf->slots = slots;
	buf->length = buf->stride * (slots + 1);
	buf->base = mmap(NULL, buf->length, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (buf->base == MAP_FAILED)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "no memory for %zu octets", buf->length);
	for (uint64_t i = 0; i < size; i++)
		buf->base[i] = buf_pattern_octet(i);
}

void siw_bench_buf_free(struct siw_bench_buf *buf)
{
	munmap(buf->base, buf->length);
}

void siw_bench_buf_check(const char *data, uint64_t size)
{
	for (uint64_t i = 0; i < size; i++)
		if (data[i] != buf_pattern_octet(i))
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "octet %llu has a wrong value",
				      (unsigned long long)i);
}

/* ---- control messages ------------------------------------------------------------------------ */

static void control_socket_write(int ctl, const void *data, size_t length)
{
	if (send(ctl, data, length, MSG_NOSIGNAL) != (ssize_t)length)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "the peer process has ended");
}

static void control_socket_read(int ctl, void *data, size_t length)
{
	size_t have = 0;

	while (have < length) {
		ssize_t n = read(ctl, (char *)data + have, length - have);

		if (n <= 0)
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "the peer process has ended");
		have += (size_t)n;
	}
}

void siw_bench_exchange_hello(int ctl, const struct siw_bench_hello *mine,
			      struct siw_bench_hello *theirs)
{
	control_socket_write(ctl, mine, sizeof(*mine));
	control_socket_read(ctl, theirs, sizeof(*theirs));
}

uint64_t siw_bench_exchange_number(int ctl, uint64_t mine)
{
	uint64_t theirs;

	control_socket_write(ctl, &mine, sizeof(mine));
	control_socket_read(ctl, &theirs, sizeof(theirs));
	return theirs;
}

void siw_bench_check_peer_alive(int ctl)
{
	char octet;

	if (recv(ctl, &octet, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "the peer process has ended");
}

static uint64_t cpu_time_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

unsigned int siw_bench_patience_ms = 3000;
bool siw_bench_spin_yields;

bool siw_bench_is_idle_time_over(struct siw_bench_guard *guard)
{
	uint64_t now = cpu_time_ns(CLOCK_THREAD_CPUTIME_ID);

	if (guard->spins == 4096) {
		guard->since = now;
		return false;
	}
	if (guard->spins > (1u << 31))
		guard->spins = 8192;
	return now - guard->since > siw_bench_patience_ms * 1000000ull;
}

/* ---- statistics ------------------------------------------------------------------------------ */

static int compare_sample_values(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

void siw_bench_write_samples(const struct siw_bench_opts *o, const uint64_t *ns)
{
	FILE *file;

	if (!o->samples)
		return;
	file = siw_bench_require_object(fopen(o->samples, "wbe"), "the file of samples");
	if (fwrite(ns, sizeof(*ns), o->iters, file) != o->iters || fclose(file))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "writing the samples: %s", strerror(errno));
}

void siw_bench_summarize_samples(uint64_t *ns, uint32_t n, double parts,
				 struct siw_bench_result *result)
{
	qsort(ns, n, sizeof(*ns), compare_sample_values);
	result->value = (double)ns[n / 2] / parts / 1000;
	result->p99 = (double)ns[(uint64_t)n * 99 / 100] / parts / 1000;
	result->p999 = (double)ns[(uint64_t)n * 999 / 1000] / parts / 1000;
	result->n = n;
}

/* The event that counts the cycles of this process; -1: this machine does not count them */
static int cycles_fd = -1;

/*
 * Called before the process creates threads, because the event counts only threads created later.
 */
static void start_counting_cycles(void)
{
	struct perf_event_attr attr = { .type = PERF_TYPE_HARDWARE,
					.size = sizeof(attr),
					.config = PERF_COUNT_HW_CPU_CYCLES,
					.inherit = 1 };

	/*
	 * Fails if this user is not permitted to count cycles, or if the machine has no counter,
	 * like most virtual machines. Then only CPU time is reported.
	 */
	cycles_fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

static uint64_t cycles_so_far(void)
{
	uint64_t cycles;

	if (cycles_fd < 0 || read(cycles_fd, &cycles, sizeof(cycles)) != sizeof(cycles))
		return 0;
	return cycles;
}

void siw_bench_store_rate_result(const struct siw_bench_opts *o, uint32_t n, uint64_t ns,
				 struct siw_bench_result *result)
{
	static uint64_t cpu_ns_before, cycles_before;
	uint64_t cpu_ns = cpu_time_ns(CLOCK_PROCESS_CPUTIME_ID), cycles = cycles_so_far();
	double per_ns = (double)n / (double)ns;

	result->cpu_ns = cpu_ns - cpu_ns_before;
	result->cycles = cycles - cycles_before;
	cpu_ns_before = cpu_ns;
	cycles_before = cycles;
	result->value = strcmp(o->kind, "rate") ? per_ns * (double)o->size : per_ns * 1e9;
	result->n = n;
}

void siw_bench_check_message_counts(const struct siw_bench_opts *o, uint64_t done,
				    uint64_t expected)
{
	uint64_t theirs = siw_bench_exchange_number(o->ctl, done);
	uint64_t sent = o->server ? theirs : done, seen = o->server ? done : theirs;

	if (sent < seen)
		siw_bench_die(SIW_BENCH_EXIT_LOST,
			      "%llu messages arrived, and the sender gave up after %llu",
			      (unsigned long long)seen, (unsigned long long)sent);
	if (sent > seen)
		siw_bench_die(SIW_BENCH_EXIT_LOST, "lost %llu of %llu messages",
			      (unsigned long long)(sent - seen), (unsigned long long)sent);
	if (sent != expected)
		siw_bench_die(SIW_BENCH_EXIT_LOST, "a credit was lost after %llu of %llu messages",
			      (unsigned long long)sent, (unsigned long long)expected);
}

/* ---- the command line ------------------------------------------------------------------------ */

enum {
	OPT_KIND = 1,
	OPT_RUN,
	OPT_SIDE,
	OPT_QP,
	OPT_OP,
	OPT_WAIT,
	OPT_SIZE,
	OPT_ITERS,
	OPT_WARMUP,
	OPT_DEPTH,
	OPT_BATCH,
	OPT_CPU,
	OPT_CTL,
	OPT_LIMIT,
	OPT_LOCAL,
	OPT_REMOTE,
	OPT_SAMPLES,
	OPT_PATIENCE,
	OPT_THREADS,
	OPT_LANES,
	OPT_TIME,
};

static const struct option options[] = {
	{ "kind", required_argument, NULL, OPT_KIND },
	{ "run", required_argument, NULL, OPT_RUN },
	{ "side", required_argument, NULL, OPT_SIDE },
	{ "qp", required_argument, NULL, OPT_QP },
	{ "op", required_argument, NULL, OPT_OP },
	{ "wait", required_argument, NULL, OPT_WAIT },
	{ "size", required_argument, NULL, OPT_SIZE },
	{ "iters", required_argument, NULL, OPT_ITERS },
	{ "warmup", required_argument, NULL, OPT_WARMUP },
	{ "depth", required_argument, NULL, OPT_DEPTH },
	{ "batch", required_argument, NULL, OPT_BATCH },
	{ "cpu", required_argument, NULL, OPT_CPU },
	{ "ctl", required_argument, NULL, OPT_CTL },
	{ "limit", required_argument, NULL, OPT_LIMIT },
	{ "local", required_argument, NULL, OPT_LOCAL },
	{ "remote", required_argument, NULL, OPT_REMOTE },
	{ "samples", required_argument, NULL, OPT_SAMPLES },
	{ "patience", required_argument, NULL, OPT_PATIENCE },
	{ "threads", required_argument, NULL, OPT_THREADS },
	{ "lanes", required_argument, NULL, OPT_LANES },
	{ "time", required_argument, NULL, OPT_TIME },
	{ 0 },
};

static unsigned long long options_parse_number(const char *text, unsigned long long most)
{
	char *end;
	unsigned long long n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno || end == text || *end || n > most)
		siw_bench_die(SIW_BENCH_EXIT_USAGE, "not a number from 0 to %llu: %s", most, text);
	return n;
}

/* Return false if text is the first word, true if it is the second; exit if it is neither. */
static bool options_parse_one_of_two_words(const char *text, const char *first, const char *second)
{
	if (strcmp(text, first) && strcmp(text, second))
		siw_bench_die(SIW_BENCH_EXIT_USAGE, "neither %s nor %s: %s", first, second, text);
	return !strcmp(text, second);
}

static enum siw_bench_op options_parse_op(const char *text)
{
	static const char *const names[] = { "send", "write", "read" };

	for (int i = 0; i < 3; i++)
		if (!strcmp(text, names[i]))
			return (enum siw_bench_op)i;
	siw_bench_die(SIW_BENCH_EXIT_USAGE, "unknown operation: %s", text);
}

/* Store the value of a numeric option; return false if the option is not numeric. */
static bool options_set_numeric_option(struct siw_bench_opts *o, int option, const char *text)
{
	switch (option) {
	case OPT_SIZE:
		o->size = options_parse_number(text, 1ull << 40);
		break;
	case OPT_ITERS:
		o->iters = (uint32_t)options_parse_number(text, 100000000);
		break;
	case OPT_WARMUP:
		o->warmup = (uint32_t)options_parse_number(text, 100000000);
		break;
	case OPT_DEPTH:
		o->depth = (uint32_t)options_parse_number(text, 1 << 16);
		break;
	case OPT_BATCH:
		o->batch = (uint32_t)options_parse_number(text, SIW_BENCH_BATCH);
		break;
	case OPT_CPU:
		o->cpu = (int)options_parse_number(text, 1 << 16);
		break;
	case OPT_CTL:
		o->ctl = (int)options_parse_number(text, 1 << 20);
		break;
	case OPT_LIMIT:
		o->limit_s = (unsigned int)options_parse_number(text, 600);
		break;
	case OPT_PATIENCE:
		siw_bench_patience_ms = (unsigned int)options_parse_number(text, 60000);
		break;
	case OPT_THREADS:
		o->threads = (uint32_t)options_parse_number(text, 256);
		break;
	case OPT_LANES:
		o->lanes = (uint32_t)options_parse_number(text, 16);
		break;
	case OPT_TIME:
		o->time_ms = (uint32_t)options_parse_number(text, 60000);
		break;
	default:
		return false;
	}
	return true;
}

static void options_set_option(struct siw_bench_opts *o, int option, const char *text)
{
	if (options_set_numeric_option(o, option, text))
		return;
	switch (option) {
	case OPT_KIND:
		o->kind = text;
		break;
	case OPT_RUN:
		o->run = text;
		break;
	case OPT_SIDE:
		o->server = options_parse_one_of_two_words(text, "client", "server");
		break;
	case OPT_QP:
		o->uc = !strcmp(text, "uc");
		o->rd = !strcmp(text, "rd");
		o->rc = !o->uc && !o->rd && options_parse_one_of_two_words(text, "ud", "rc");
		break;
	case OPT_OP:
		o->op = options_parse_op(text);
		break;
	case OPT_WAIT:
		o->event = options_parse_one_of_two_words(text, "poll", "event");
		break;
	case OPT_LOCAL:
		o->local = text;
		break;
	case OPT_REMOTE:
		o->remote = text;
		break;
	case OPT_SAMPLES:
		o->samples = text;
		break;
	default:
		siw_bench_die(SIW_BENCH_EXIT_USAGE,
			      "siwarp-bench is started by `siwarp bench`: run that command");
	}
}

static bool has_one_cpu(void)
{
	cpu_set_t set;

	return !sched_getaffinity(0, sizeof(set), &set) && CPU_COUNT(&set) == 1;
}

int siw_bench_main(int argc, char **argv, siw_bench_fn *(*select)(const struct siw_bench_opts *o))
{
	struct siw_bench_opts o = { .kind = "",
				    .run = "ours",
				    .iters = 1000,
				    .depth = 1,
				    .batch = 1,
				    .cpu = -1,
				    .ctl = -1,
				    .local = "127.0.0.1",
				    .remote = "127.0.0.1",
				    .limit_s = 60 };
	struct siw_bench_result result = { 0 };
	pid_t parent = getppid();
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
		options_set_option(&o, option, optarg);
	if (optind != argc || !o.iters || !o.depth || !o.batch)
		siw_bench_die(SIW_BENCH_EXIT_USAGE,
			      "siwarp-bench is started by `siwarp bench`: run that command");
	/* The process ends with its parent, because no other process waits for the run. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		return SIW_BENCH_EXIT_ERROR;
	alarm(o.limit_s);
	siw_bench_spin_yields = has_one_cpu();
	start_counting_cycles();
	select (&o)(&o, &result);
	if (o.server) /* only the client's figure is reported */
		result = (struct siw_bench_result){ .cpu_ns = result.cpu_ns,
						    .cycles = result.cycles };
	printf("{\"value\": %.6g, \"p99\": %.6g, \"p99.9\": %.6g, \"n\": %llu, "
	       "\"cpu_ns\": %llu, \"cycles\": %llu}\n",
	       result.value, result.p99, result.p999, (unsigned long long)result.n,
	       (unsigned long long)result.cpu_ns, (unsigned long long)result.cycles);
	return 0;
}
