/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/os.h - what the engine asks of the system besides sockets and memory: sleep, yield, threads,
 * randomness and where sequence numbers begin. The time is base/clock.h's. The layers above base and llp call nothing else for
 * these (tests/lint/c_symbols.py), so that a simulation can take their place.
 *
 * None of these is a cancellation point (base/cancel.h).
 */
#ifndef SIW_BASE_OS_H
#define SIW_BASE_OS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Sleeps, not beyond a signal. ns: less than a second. */
void siw_sleep_ns(long ns);

/* Offers the CPU to another thread, as sched_yield(2). */
void siw_yield(void);

/* As getrandom(2), with its flags. */
ssize_t siw_getrandom(void *to, size_t n, unsigned int flags);

/* A number that differs from run to run, also at early boot; for no secret. */
unsigned int siw_random(void);

/*
 * The first number of a sequence modulo 2^32, such as message sequence numbers: usual. A simulation
 * may return another one, so that the sequence wraps early: one number for all sequences that begin
 * with 1 (RFC 5041), and the same number for the same value of usual. It is not 0.
 */
uint32_t siw_first_number(uint32_t usual);

/* As pthread_create(3): 0 or a positive errno value. attr may be NULL. */
int siw_thread_start(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
		     void *arg);

#endif
