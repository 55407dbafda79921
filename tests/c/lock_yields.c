/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Counts the yields and sleeps of threads that wait for a lock (base/lock.c), with yields of a
 * duration that the test chooses. The lock is released in the first sleep, so each wait ends.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/lock.h"
#include "base/os.h"

#define EXPECT(what)                                                                 \
	do {                                                                         \
		if (!(what)) {                                                       \
			fprintf(stderr, "line %d: not true: %s\n", __LINE__, #what); \
			exit(1);                                                     \
		}                                                                    \
	} while (0)

static siw_lock_t lock = SIW_LOCK_INIT;
static unsigned int yields, sleeps;
static long now_ns, ns_of_yield;

int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
	(void)clock;
	*t = (struct timespec){ .tv_nsec = now_ns };
	return 0;
}

void siw_yield(void)
{
	yields++;
	now_ns += ns_of_yield;
}

void siw_sleep_ns(long ns)
{
	(void)ns;
	sleeps++;
	siw_unlock(&lock);
}

/* Waits for the lock, which is held. */
static void wait_once(void)
{
	yields = sleeps = 0;
	siw_lock(&lock);
	EXPECT(sleeps == 1);
}

int main(void)
{
	unsigned int most;

	EXPECT(siw_trylock(&lock));
	ns_of_yield = 1000;
	wait_once();
	most = yields;
	EXPECT(most > 1);

	/* The first long yield of a wait is its last, and the next waits only sleep. */
	ns_of_yield = 4000000;
	wait_once();
	EXPECT(yields == 1);
	for (int i = 0; i < 64; i++) {
		wait_once();
		EXPECT(!yields);
	}
	wait_once();
	EXPECT(yields == 1);

	/* Once yields are short again, waits yield as before. */
	ns_of_yield = 1000;
	for (int i = 0; i < 64; i++)
		wait_once();
	wait_once();
	EXPECT(yields == most);
	return 0;
}
