/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_cancel.h - thread cancellation, pthread_cancel(3), inside functions of verbs and rdma_cm.
 * As in the engine, only waits for events are cancellation points; a thread cancelled elsewhere
 * would leave a lock, a descriptor or a partly initialized object behind.
 */
#ifndef SIW_ABI_CANCEL_H
#define SIW_ABI_CANCEL_H

#include <pthread.h>
#include <unistd.h>

/*
 * Disables cancellation of the calling thread until abi_cancel_restore() is called with the returned
 * value.
 */
static inline int abi_cancel_disable(void)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void abi_cancel_restore(int before)
{
	pthread_setcancelstate(before, NULL);
}

static inline void abi_close_fd(int fd)
{
	int before = abi_cancel_disable();

	close(fd);
	abi_cancel_restore(before);
}

#endif
