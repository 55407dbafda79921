/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/cancel.h - thread cancellation, pthread_cancel(3), inside functions of siwarp.
 *
 * A thread must not be cancelled while it holds a lock, has temporarily incremented a counter,
 * or has partially initialized an object. Therefore only the functions that wait for an event are
 * cancellation points. They test for cancellation at the start and in each sleep, when they hold no
 * lock and have removed no event, and a cleanup handler restores their counters (siw_device_wait,
 * siw_llp_wait_cancellable).
 *
 * The C library's wrappers of system calls are cancellation points. The data path makes its system
 * calls without these wrappers (llp_sock.h), at no cost; all other calls run with cancellation
 * disabled. tests/unit/base/test_base_cancel.py checks the functions that the library imports.
 *
 * As POSIX requires, a thread with PTHREAD_CANCEL_ASYNCHRONOUS must not call siwarp.
 */
#ifndef SIW_BASE_CANCEL_H
#define SIW_BASE_CANCEL_H

#include <pthread.h>
#include <unistd.h>

/*
 * Disables cancellation of the calling thread until siw_cancel_restore() is called with the returned
 * value.
 */
static inline int siw_cancel_disable(void)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void siw_cancel_restore(int before)
{
	pthread_setcancelstate(before, NULL);
}

static inline void siw_close_fd(int fd)
{
	int before = siw_cancel_disable();

	close(fd);
	siw_cancel_restore(before);
}

#endif
