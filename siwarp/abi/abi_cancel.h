/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/abi_cancel.h - pthread_cancel(3) in a thread that is inside a call of verbs or rdma_cm. As in
 * the engine, only waits for events are cancellation points: a thread that ends elsewhere would
 * leave a lock, a descriptor or half of an object behind.
 */
#ifndef SIW_ABI_CANCEL_H
#define SIW_ABI_CANCEL_H

#include <pthread.h>
#include <unistd.h>

/* Puts cancellation of this thread off, until abi_cancel_back() with the value returned. */
static inline int abi_cancel_off(void)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void abi_cancel_back(int before)
{
	pthread_setcancelstate(before, NULL);
}

static inline void abi_close_fd(int fd)
{
	int before = abi_cancel_off();

	close(fd);
	abi_cancel_back(before);
}

#endif
