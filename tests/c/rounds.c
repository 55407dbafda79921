/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests that many posts between two polls count as dense traffic, which siwarp sends in batches,
 * however long the posts take together. The time between two polls decides whether traffic of two
 * posts per poll is dense or sparse. Sixty posts per poll must count as dense although, before
 * batching starts, their sixty system calls take longer than that. The program replaces the clock
 * of the posting thread (linker option --wrap) by one that only its posts advance, so that the load
 * of the machine does not matter.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rig.h"

#define POSTS	60
#define SLOTS	64
#define POST_NS 5000L

static struct rig rig;
static struct end end;

/*
 * Polls until no completion is left, because only a poll that reads the sockets ends a round of
 * posts.
 */
static void poll_all_completions(void)
{
	struct siw_wc wc[SLOTS];

	while (siw_poll_cq(end.cq, SLOTS, wc) > 0)
		;
}

static pthread_t poster;
static long posted_ns = 1000000000; /* time in ns shown by the posting thread's clock */

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
	if (!pthread_equal(pthread_self(), poster))
		return __real_clock_gettime(clock, now);
	*now = (struct timespec){ posted_ns / 1000000000, posted_ns % 1000000000 };
	return 0;
}

/*
 * Posts POSTS Sends, POST_NS ns apart, without polling. Returns whether some Sends are held back
 * for batching, as happens while the device's thread sleeps because the program polls.
 */
static bool are_posted_sends_held_back(void)
{
	for (unsigned int i = 0; i < POSTS; i++) {
		check(post_send(&end, i, 8, i));
		posted_ns += POST_NS;
	}
	return siw_cq_pending(end.cq) < POSTS;
}

int main(void)
{
	time_t until;

	setenv("SIWARP_NAP_US", "100000", 1);
	rig_open(&rig);
	open_ud_endpoint(&end, &rig, SLOTS, NULL);
	poster = pthread_self();
	until = time(NULL) + LIMIT_MS / 1000;
	while (!are_posted_sends_held_back()) {
		must(time(NULL) < until);
		poll_all_completions();
	}
	poll_all_completions();
	close_endpoint(&end);
	rig_close(&rig);
	return 0;
}
