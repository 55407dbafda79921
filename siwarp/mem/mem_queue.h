/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mem/mem_queue.h - part of mem/mem.h: a queue of receive buffers, for the code that fills them.
 *
 * A queue of one queue pair has one thread at a time that removes buffers. A shared queue has
 * several, so a buffer that one thread has looked at may be removed by another thread, and its slot
 * may be written again. Therefore a buffer of a shared queue is copied and removed in one step,
 * siw_mem_buffer_queue_take; peek and pop are for queues that are not shared. Take, peek and pop
 * are inline, because every message needs them.
 */
#ifndef SIW_MEM_QUEUE_H
#define SIW_MEM_QUEUE_H

#include <stdatomic.h>
#include <string.h>

#include "base/lock.h"
#include "mem/mem.h"

struct siw_mem_buffer {
	uint64_t user_data;
	uint64_t length; /* total octets of the elements */
	int nsge;
	struct siw_sge sgl[]; /* up to max_sge elements */
};

/* A copy of a buffer that was removed from its queue. */
struct siw_mem_taken {
	uint64_t user_data;
	uint64_t length; /* total octets of the elements */
	int nsge;
	struct siw_sge sgl[SIW_MEM_MAX_SGE];
};

/* A buffer that was removed and put back by siw_mem_buffer_queue_put_back. */
struct siw_mem_returned {
	struct siw_mem_returned *next;
	struct siw_mem_buffer buf;
};

struct siw_mem_buffer_queue {
	uint32_t mask;
	uint32_t max_sge;
	uint32_t pd;
	uint32_t stride; /* octets from one buffer to the next */
	bool internal;
	bool shared; /* buffers are removed and put back under take_lock */
	/* memory of the buffers; directly after the struct until siw_mem_buffer_queue_resize */
	uint8_t *ring;
	_Alignas(64) _Atomic uint32_t tail; /* buffers posted; stored with release order */
	/*
	 * The members below are written by the thread that removes buffers: under take_lock if the
	 * queue is shared, otherwise under the progress lock. head: the number of buffers removed,
	 * stored with release order.
	 */
	_Alignas(64) _Atomic uint32_t head;
	_Atomic uint32_t n_returned; /* length of the list `returned` */
	/* list of returned buffers, filled before those of the ring */
	struct siw_mem_returned *returned;
	siw_lock_t take_lock; /* while it is held, no other lock is acquired */
	_Alignas(64) uint8_t first_ring[];
};

/*
 * Returns the next receive buffer to fill, or NULL; the buffer is valid until it is popped. Not for
 * a shared queue. Call under the progress lock.
 */
static inline const struct siw_mem_buffer *
siw_mem_buffer_queue_peek(const struct siw_mem_buffer_queue *queue)
{
	uint32_t head = atomic_load_explicit(&queue->head, memory_order_relaxed);

	if (__builtin_expect(queue->returned != NULL, 0))
		return &queue->returned->buf;
	/* Pairs with the store of tail in siw_mem_buffer_queue_post: a buffer found is complete. */
	if (head == atomic_load_explicit(&queue->tail, memory_order_acquire))
		return NULL;
	return (const void *)(queue->ring + (size_t)(head & queue->mask) * queue->stride);
}

void siw_mem_queue_pop_returned(struct siw_mem_buffer_queue *queue);

/*
 * Removes the receive buffer that siw_mem_buffer_queue_peek returns. Not for a shared queue. Call
 * under the progress lock.
 */
static inline void siw_mem_queue_pop(struct siw_mem_buffer_queue *queue)
{
	uint32_t head = atomic_load_explicit(&queue->head, memory_order_relaxed);

	if (__builtin_expect(queue->returned != NULL, 0)) {
		siw_mem_queue_pop_returned(queue);
		return;
	}
	/*
	 * Pairs with the load of head in siw_mem_buffer_queue_post: this thread does not read the
	 * slot any more, so it may be reused.
	 */
	atomic_store_explicit(&queue->head, head + 1, memory_order_release);
}

/* Takes a buffer as siw_mem_buffer_queue_take does, from a shared queue. */
bool siw_mem_buffer_queue_take_shared(struct siw_mem_buffer_queue *queue,
				      struct siw_mem_taken *out);

static inline void siw_mem_buffer_copy(struct siw_mem_taken *out, const struct siw_mem_buffer *buf)
{
	out->user_data = buf->user_data;
	out->length = buf->length;
	out->nsge = buf->nsge;
	memcpy(out->sgl, buf->sgl, (size_t)buf->nsge * sizeof(buf->sgl[0]));
}

/* Removes the next receive buffer and copies it to *out; returns false if the queue is empty. */
static inline bool siw_mem_buffer_queue_take(struct siw_mem_buffer_queue *queue,
					     struct siw_mem_taken *out)
{
	const struct siw_mem_buffer *buf;

	if (__builtin_expect(queue->shared, 0))
		return siw_mem_buffer_queue_take_shared(queue, out);
	buf = siw_mem_buffer_queue_peek(queue);
	if (!buf)
		return false;
	siw_mem_buffer_copy(out, buf);
	siw_mem_queue_pop(queue);
	return true;
}

/*
 * Returns whether the queue has no buffer. Of a shared queue, the last buffer may be removed by
 * another thread directly after the call.
 */
static inline bool siw_mem_queue_is_empty(const struct siw_mem_buffer_queue *queue)
{
	uint32_t head = atomic_load_explicit(&queue->head, memory_order_acquire);

	return head == atomic_load_explicit(&queue->tail, memory_order_acquire) &&
	       !atomic_load_explicit(&queue->n_returned, memory_order_relaxed);
}

/*
 * Orders memory accesses: whatever the program wrote before it posted a buffer that this thread can
 * find happens before the accesses that follow this call. Pairs with the store of tail in
 * siw_mem_buffer_queue_post.
 */
static inline void siw_mem_queue_sync_with_posts(const struct siw_mem_buffer_queue *queue)
{
	(void)atomic_load_explicit(&queue->tail, memory_order_acquire);
}

/* Puts a removed buffer back at the head of the queue. Returns 0 or -ENOMEM. */
int siw_mem_buffer_queue_put_back(struct siw_mem_buffer_queue *queue,
				  const struct siw_mem_taken *taken);

#endif
