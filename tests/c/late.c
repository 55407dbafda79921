/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests waits whose time-out expires before the thread sleeps, as on a machine with overloaded
 * CPUs: each reading of the clock advances the clock by one step. Each wait must return EAGAIN
 * immediately.
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "rig.h"

#define STEP_NS 50000000
#define WAIT_MS 20

static _Atomic uint64_t ahead_ns, step_ns;

/* Replaces the C library's clock_gettime() for siwarp. */
int clock_gettime(clockid_t clock, struct timespec *t)
{
	uint64_t ns;
	int r = (int)syscall(SYS_clock_gettime, clock, t);

	if (r || clock != CLOCK_MONOTONIC)
		return r;
	ns = atomic_fetch_add(&ahead_ns, atomic_load(&step_ns)) + (uint64_t)t->tv_nsec;
	t->tv_sec += (time_t)(ns / 1000000000);
	t->tv_nsec = (long)(ns % 1000000000);
	return 0;
}

static void check_wait_timed_out(int r, const char *what)
{
	if (r != -EAGAIN)
		die("%s: %d", what, r);
}

int main(void)
{
	struct siw_comp_channel *channel;
	struct siw_async_event async;
	struct siw_cm_event event;
	struct siw_cq *cq;
	struct rig rig;
	void *user;

	alarm(20); /* kills the test if a wait does not end */
	rig_open(&rig);
	channel = siw_create_comp_channel(rig.ctx);
	must(channel);
	step_ns = STEP_NS;
	for (int i = 0; i < 20; i++) {
		check_wait_timed_out(siw_get_async_event(rig.ctx, &async, WAIT_MS),
				     "asynchronous event");
		check_wait_timed_out(siw_cm_get_event(rig.cm, &event, WAIT_MS), "connection event");
		check_wait_timed_out(siw_get_cq_event(channel, &cq, &user, WAIT_MS),
				     "completion event");
	}
	/* proves that the library has read this file's clock */
	must(ahead_ns >= 100 * (uint64_t)STEP_NS);
	step_ns = 0;
	check(siw_destroy_comp_channel(channel));
	rig_close(&rig);
	return 0;
}
