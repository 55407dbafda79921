/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A poll sends the posts that wait for company, also where another thread makes progress at that
 * moment and is past the point where it sends: here a thread of the test's own, which holds the
 * progress lock until the poll waits for it, or has returned.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rig.h"
#include "verbs/verbs_impl.h"

#define TIMES 10
#define SLOTS 8

static struct rig rig;
static struct end end;
static _Atomic bool holds, polled;

static void *hold(void *unused)
{
	siw_lock_t *lock = &rig.ctx->progress;

	(void)unused;
	siw_lock(lock);
	holds = true;
	while (!atomic_load(&lock->wanted) && !polled)
		sched_yield();
	siw_unlock(lock);
	return NULL;
}

static void poll_all(void)
{
	struct siw_wc wc[SLOTS];

	while (siw_poll_cq(end.cq, SLOTS, wc) > 0)
		;
}

/* Posts until a second post waits for company, as it does while the device's thread naps. */
static void post_two(void)
{
	const struct timespec ms = { .tv_nsec = 1000000 };

	for (long until = now_ms() + LIMIT_MS;; nanosleep(&ms, NULL)) {
		must(now_ms() < until);
		poll_all();
		check(post_send(&end, 0, 8, 1));
		check(post_send(&end, 1, 8, 2));
		if (siw_cq_pending(end.cq) == 1)
			return;
	}
}

/* takes: the poll finds the first post's completion; else it finds nothing. */
static void poll_beside(bool takes)
{
	struct siw_wc wc[SLOTS];
	pthread_t thread;
	int n, there;

	post_two();
	if (!takes) /* a poll that is filled sends nothing */
		must(siw_poll_cq(end.cq, 1, wc) == 1);
	holds = polled = false;
	must(pthread_create(&thread, NULL, hold, NULL) == 0);
	while (!holds)
		sched_yield();
	n = siw_poll_cq(end.cq, SLOTS, wc);
	/* The second post has left: its completion was polled, or is there. */
	there = n + siw_cq_pending(end.cq);
	polled = true;
	must(pthread_join(thread, NULL) == 0);
	must(there == (takes ? 2 : 1));
}

int main(void)
{
	setenv("SIWARP_NAP_US", "100000", 1);
	setenv("SIWARP_COMPANY", "always", 1);
	rig_open(&rig);
	ud_open(&end, &rig, SLOTS, NULL);
	for (int i = 0; i < TIMES; i++) {
		poll_beside(true);
		poll_beside(false);
	}
	poll_all();
	end_close(&end);
	rig_close(&rig);
	return 0;
}
