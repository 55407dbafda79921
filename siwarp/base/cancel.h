/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/cancel.h - pthread_cancel(3) in a thread that is inside a call of siwarp.
 *
 * A thread must not end with a lock held, with a count raised or with half of an object made. So
 * the calls of siwarp are no cancellation points, but for those that wait for an event: they look
 * at their beginning and in each of their sleeps, with no lock held and nothing taken, and take
 * their counts back (siw_verbs_wait, siw_llp_wait_cancel).
 *
 * The C library's functions for system calls are cancellation points. The calls of the data path
 * are made without them (llp_sock.h), which costs nothing; the rest run with cancellation put off.
 * tests/unit/base/test_base_cancel.py looks at what the library imports.
 *
 * A thread whose type is PTHREAD_CANCEL_ASYNCHRONOUS may call nothing of siwarp, as POSIX has it.
 */
#ifndef SIW_BASE_CANCEL_H
#define SIW_BASE_CANCEL_H

#include <pthread.h>
#include <unistd.h>

/* Puts cancellation of this thread off, until siw_cancel_back() with the value returned. */
static inline int siw_cancel_off(void)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void siw_cancel_back(int before)
{
	pthread_setcancelstate(before, NULL);
}

static inline void siw_close_fd(int fd)
{
	int before = siw_cancel_off();

	close(fd);
	siw_cancel_back(before);
}

#endif
