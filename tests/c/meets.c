/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests that a poll flushes the sends that are held back for batching, even if another thread is
 * making progress at that moment and has already passed its own flush. A test thread acts as that
 * other thread: it holds the progress lock until the poll waits for the lock or has returned.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rig.h"
#include "device/device_impl.h"

#define TIMES 10
#define SLOTS 8

static struct rig rig;
static struct end end;
static _Atomic bool holds, polled;

static void *hold_progress_lock(void *unused)
{
	siw_lock_t *lock = &rig.ctx->lane0.lock;

	(void)unused;
	siw_lock(lock);
	holds = true;
	while (!atomic_load(&lock->wanted) && !polled)
		sched_yield();
	siw_unlock(lock);
	return NULL;
}

static void poll_all_completions(void)
{
	struct siw_wc wc[SLOTS];

	while (siw_poll_cq(end.cq, SLOTS, wc) > 0)
		;
}

/*
 * Posts pairs of Sends until the second of a pair is held back for batching, as happens while the
 * device's thread sleeps because the program polls.
 */
static void post_until_second_send_is_batched(void)
{
	const struct timespec ms = { .tv_nsec = 1000000 };

	for (long until = now_ms() + LIMIT_MS;; nanosleep(&ms, NULL)) {
		must(now_ms() < until);
		poll_all_completions();
		check(post_send(&end, 0, 8, 1));
		check(post_send(&end, 1, 8, 2));
		if (siw_cq_pending(end.cq) == 1)
			return;
	}
}

/*
 * Polls while another thread holds the progress lock. takes: the poll finds the completion of the
 * first Send; otherwise an earlier poll has taken it, and the poll finds nothing.
 */
static void poll_while_progress_lock_is_held(bool takes)
{
	struct siw_wc wc[SLOTS];
	pthread_t thread;
	int n, there;

	post_until_second_send_is_batched();
	if (!takes) /* a poll that fills its array transmits no held-back post */
		must(siw_poll_cq(end.cq, 1, wc) == 1);
	holds = polled = false;
	must(pthread_create(&thread, NULL, hold_progress_lock, NULL) == 0);
	while (!holds)
		sched_yield();
	n = siw_poll_cq(end.cq, SLOTS, wc);
	/* The second send has been transmitted: its completion was polled or is in the queue. */
	there = n + siw_cq_pending(end.cq);
	polled = true;
	must(pthread_join(thread, NULL) == 0);
	must(there == (takes ? 2 : 1));
}

int main(void)
{
	setenv("SIWARP_NAP_US", "100000", 1);
	setenv("SIWARP_BATCHING", "always", 1);
	rig_open(&rig);
	open_ud_endpoint(&end, &rig, SLOTS, NULL);
	for (int i = 0; i < TIMES; i++) {
		poll_while_progress_lock_is_held(true);
		poll_while_progress_lock_is_held(false);
	}
	poll_all_completions();
	close_endpoint(&end);
	rig_close(&rig);
	return 0;
}
