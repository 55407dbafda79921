/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/os.h - operating system services other than sockets and memory: sleeping, yielding, threads,
 * random numbers and initial sequence numbers. The time is provided by base/clock.h. Layers above
 * base and llp obtain these services only from here (tests/lint/c_symbols.py), so that a simulation
 * can replace them.
 *
 * None of these functions is a cancellation point (base/cancel.h).
 */
#ifndef SIW_BASE_OS_H
#define SIW_BASE_OS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Sleeps for ns nanoseconds (less than a second), or until a signal arrives. */
void siw_sleep_ns(long ns);

/*
 * Sleeps as siw_sleep_ns does, but in real time even in a simulated process: for waits for another
 * process of the machine.
 */
void siw_sleep_real_ns(long ns);

/* Yields the CPU to another thread, as sched_yield(2). */
void siw_yield(void);

/*
 * Returns the number of CPUs on which the calling thread may run (sched_getaffinity(2)), at least 1.
 * A simulation returns 1, so that a run does not depend on the machine.
 */
unsigned int siw_cpu_count(void);

/* Returns random octets like getrandom(2), with the same flags. */
ssize_t siw_getrandom(void *to, size_t n, unsigned int flags);

/* Returns a number that differs from run to run, even early after boot. Not for secrets. */
unsigned int siw_random(void);

/*
 * Returns the first number of a sequence modulo 2^32, such as message sequence numbers; normally
 * this is `usual`. A simulation may return another number, so that the sequence wraps early. All
 * sequences that start with 1 (RFC 5041) then start with the same number, and the same value of
 * `usual` always gives the same result. The result is never 0.
 */
uint32_t siw_initial_sequence(uint32_t usual);

/* Starts a thread like pthread_create(3): returns 0 or a positive errno value. attr may be NULL. */
int siw_thread_start(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
		     void *arg);

#endif
