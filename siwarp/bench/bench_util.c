/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Functions that every run needs: time, memory, control messages, and statistics. */
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench.h"

void siw_bench_die(int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(code);
}

void siw_bench_check(int r, const char *what)
{
	if (r < 0)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "%s: %s", what, strerror(-r));
}

void *siw_bench_check_object(void *object, const char *what)
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

#define OTHER_FDS 100 /* descriptors of a process besides those of its QPs */

void siw_bench_need_fds(uint32_t n)
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

/* Pins only the calling thread; the device's thread is left to the scheduler. */
void siw_bench_pin(int cpu)
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

static void ctl_write(int ctl, const void *data, size_t length)
{
	if (send(ctl, data, length, MSG_NOSIGNAL) != (ssize_t)length)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "the peer process has ended");
}

static void ctl_read(int ctl, void *data, size_t length)
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
	ctl_write(ctl, mine, sizeof(*mine));
	ctl_read(ctl, theirs, sizeof(*theirs));
}

uint64_t siw_bench_exchange(int ctl, uint64_t mine)
{
	uint64_t theirs;

	ctl_write(ctl, &mine, sizeof(mine));
	ctl_read(ctl, &theirs, sizeof(theirs));
	return theirs;
}

void siw_bench_check_peer(int ctl)
{
	char octet;

	if (recv(ctl, &octet, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "the peer process has ended");
}

static uint64_t thread_cpu_time_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

unsigned int siw_bench_patience_ms = 3000;
bool siw_bench_spin_yields;

bool siw_bench_idle_slow(struct siw_bench_guard *guard)
{
	uint64_t now = thread_cpu_time_ns();

	if (guard->spins == 4096) {
		guard->since = now;
		return false;
	}
	if (guard->spins > (1u << 31))
		guard->spins = 8192;
	return now - guard->since > siw_bench_patience_ms * 1000000ull;
}

/* ---- statistics ------------------------------------------------------------------------------ */

static int compare_samples(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

void siw_bench_write_samples(const struct siw_bench_opts *o, const uint64_t *ns)
{
	FILE *file;

	if (!o->samples)
		return;
	file = siw_bench_check_object(fopen(o->samples, "wbe"), "the file of samples");
	if (fwrite(ns, sizeof(*ns), o->iters, file) != o->iters || fclose(file))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "writing the samples: %s", strerror(errno));
}

void siw_bench_summarize_samples(uint64_t *ns, uint32_t n, double parts,
				 struct siw_bench_result *result)
{
	qsort(ns, n, sizeof(*ns), compare_samples);
	result->value = (double)ns[n / 2] / parts / 1000;
	result->p99 = (double)ns[(uint64_t)n * 99 / 100] / parts / 1000;
	result->n = n;
}

void siw_bench_set_rate(const struct siw_bench_opts *o, uint32_t n, uint64_t ns,
			struct siw_bench_result *result)
{
	double per_ns = (double)n / (double)ns;

	result->value = strcmp(o->kind, "rate") ? per_ns * (double)o->size : per_ns * 1e9;
	result->n = n;
}

void siw_bench_check_counts(const struct siw_bench_opts *o, uint64_t done, uint64_t expected)
{
	uint64_t theirs = siw_bench_exchange(o->ctl, done);
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
