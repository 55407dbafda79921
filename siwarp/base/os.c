/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/os.c - see os.h. */
#include "base/os.h"

#include <sched.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"

void siw_sleep_ns(long ns)
{
	const struct timespec t = { .tv_nsec = ns };
	int before = siw_cancel_disable();

	nanosleep(&t, NULL);
	siw_cancel_restore(before);
}

void siw_sleep_real_ns(long ns)
{
	const struct timespec t = { .tv_nsec = ns };
	int before = siw_cancel_disable();

	/* a real sleep in a simulated process, too: the simulator replaces only nanosleep() */
	clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
	siw_cancel_restore(before);
}

void siw_yield(void)
{
	sched_yield();
}

unsigned int siw_cpu_count(void)
{
	cpu_set_t cpus;
	long online;

	if (!sched_getaffinity(0, sizeof(cpus), &cpus))
		return (unsigned int)CPU_COUNT(&cpus);
	/* sched_getaffinity() fails if the kernel supports more CPUs than the set has bits. */
	online = sysconf(_SC_NPROCESSORS_ONLN);
	return online > 0 ? (unsigned int)online : 1;
}

ssize_t siw_getrandom(void *to, size_t n, unsigned int flags)
{
	int before = siw_cancel_disable();
	ssize_t got = getrandom(to, n, flags);

	siw_cancel_restore(before);
	return got;
}

unsigned int siw_random(void)
{
	unsigned int number;

	if (siw_getrandom(&number, sizeof(number), GRND_NONBLOCK) != (ssize_t)sizeof(number))
		number = (unsigned int)siw_now_ns();
	return number;
}

uint32_t siw_initial_sequence(uint32_t usual)
{
	return usual;
}

int siw_thread_start(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	return pthread_create(thread, attr, run, arg);
}
