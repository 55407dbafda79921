/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mem/mem_queue.h - part of mem/mem.h: a queue of receive buffers, for the code that fills them.
 * Peek and pop are inline, because every message needs both.
 */
#ifndef SIW_MEM_QUEUE_H
#define SIW_MEM_QUEUE_H

#include <stdatomic.h>

#include "mem/mem.h"

struct siw_mem_buffer {
	uint64_t user_data;
	uint64_t length; /* total octets of the elements */
	int nsge;
	struct siw_sge sgl[]; /* up to max_sge elements */
};

/* A buffer that was popped and put back by siw_mem_queue_put_back. */
struct siw_mem_returned {
	struct siw_mem_returned *next;
	struct siw_mem_buffer buf;
};

struct siw_mem_queue {
	uint32_t mask;
	uint32_t max_sge;
	uint32_t pd;
	uint32_t stride; /* octets from one buffer to the next */
	bool internal;
	/* memory of the buffers; directly after the struct until siw_mem_queue_resize */
	uint8_t *ring;
	_Alignas(64) _Atomic uint32_t tail; /* number of buffers posted; stored with release */
	/* number of buffers popped; stored with release; progress lock */
	_Alignas(64) _Atomic uint32_t head;
	/* length of the list `returned`; written under the progress lock */
	_Atomic uint32_t n_returned;
	/* list of returned buffers, filled before those of the ring; progress lock */
	struct siw_mem_returned *returned;
	_Alignas(64) uint8_t first_ring[];
};

/*
 * Returns the next receive buffer to fill, or NULL; the buffer is valid until it is popped. Call
 * under the progress lock.
 */
static inline const struct siw_mem_buffer *siw_mem_queue_peek(const struct siw_mem_queue *queue)
{
	uint32_t head = atomic_load_explicit(&queue->head, memory_order_relaxed);

	if (__builtin_expect(queue->returned != NULL, 0))
		return &queue->returned->buf;
	/* Pairs with the store of tail in siw_mem_queue_post. */
	if (head == atomic_load_explicit(&queue->tail, memory_order_acquire))
		return NULL;
	return (const void *)(queue->ring + (size_t)(head & queue->mask) * queue->stride);
}

void siw_mem_queue_pop_returned(struct siw_mem_queue *queue);

/* Removes the receive buffer that siw_mem_queue_peek returns. Call under the progress lock. */
static inline void siw_mem_queue_pop(struct siw_mem_queue *queue)
{
	uint32_t head = atomic_load_explicit(&queue->head, memory_order_relaxed);

	if (__builtin_expect(queue->returned != NULL, 0)) {
		siw_mem_queue_pop_returned(queue);
		return;
	}
	/* Pairs with the load of head in siw_mem_queue_post: the slot may be written again. */
	atomic_store_explicit(&queue->head, head + 1, memory_order_release);
}

/*
 * Puts a popped buffer with these elements back in front of all others. Returns 0 or -ENOMEM. Call
 * under the progress lock.
 */
int siw_mem_queue_put_back(struct siw_mem_queue *queue, uint64_t user_data,
			   const struct siw_sge *sgl, int nsge);

#endif
