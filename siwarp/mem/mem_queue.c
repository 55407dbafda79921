/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mem/mem_queue.c - receive buffers, in the order in which they were posted (RFC 5041 section
 * 5.1.2).
 *
 * The queue is a ring with one reader, the holder of the progress lock, and one writer, the posting
 * thread. Callers ensure that only one thread posts at a time. A shared queue has several readers,
 * of which one at a time holds take_lock. Posting needs no lock in either case.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mem/mem_queue.h"

#define MAX_DEPTH (1u << 20)

static uint32_t queue_slots_for_depth(uint32_t depth)
{
	uint32_t slots = 1;

	while (slots < depth)
		slots *= 2;
	return slots;
}

int siw_mem_buffer_queue_create(const struct siw_mem_queue_attr *attr,
				struct siw_mem_buffer_queue **out)
{
	uint32_t slots = queue_slots_for_depth(attr->depth);
	struct siw_mem_buffer_queue *queue;
	size_t stride;

	if (attr->depth > MAX_DEPTH || attr->max_sge > SIW_MEM_MAX_SGE)
		return -EINVAL;
	stride = sizeof(struct siw_mem_buffer) + attr->max_sge * sizeof(struct siw_sge);
	if (posix_memalign((void **)&queue, 64, sizeof(*queue) + slots * stride))
		return -ENOMEM;
	*queue = (struct siw_mem_buffer_queue){
		.mask = slots - 1,
		.max_sge = attr->max_sge,
		.pd = attr->pd,
		.stride = (uint32_t)stride,
		.internal = attr->internal,
		.shared = attr->shared,
	};
	siw_lock_init(&queue->take_lock);
	queue->ring = queue->first_ring;
	*out = queue;
	return 0;
}

static void queue_ring_free(struct siw_mem_buffer_queue *queue)
{
	if (queue->ring != queue->first_ring)
		free(queue->ring);
}

void siw_mem_buffer_queue_destroy(struct siw_mem_buffer_queue *queue)
{
	while (queue->returned)
		siw_mem_queue_pop_returned(queue);
	queue_ring_free(queue);
	free(queue);
}

/* Excludes other threads that remove buffers, or put them back. */
static void buffer_queue_lock_takers(struct siw_mem_buffer_queue *queue)
{
	if (queue->shared)
		siw_lock(&queue->take_lock);
}

static void queue_unlock_taking_of_buffers(struct siw_mem_buffer_queue *queue)
{
	if (queue->shared)
		siw_unlock(&queue->take_lock);
}

int siw_mem_buffer_queue_resize(struct siw_mem_buffer_queue *queue, uint32_t depth)
{
	uint32_t tail = atomic_load_explicit(&queue->tail, memory_order_relaxed);
	uint32_t slots = queue_slots_for_depth(depth);
	uint8_t *ring, *old = NULL;
	uint32_t head;

	if (depth > MAX_DEPTH || siw_mem_buffer_queue_posted_count(queue) > depth)
		return -EINVAL;
	ring = malloc((size_t)slots * queue->stride);
	if (!ring)
		return -ENOMEM;
	/*
	 * The buffers of the ring fit into the new ring, because nobody posts, and a buffer that is
	 * put back does not return to the ring.
	 */
	buffer_queue_lock_takers(queue);
	head = atomic_load_explicit(&queue->head, memory_order_relaxed);
	for (; head != tail; head++)
		memcpy(ring + (size_t)(head & (slots - 1)) * queue->stride,
		       queue->ring + (size_t)(head & queue->mask) * queue->stride, queue->stride);
	if (queue->ring != queue->first_ring)
		old = queue->ring;
	queue->ring = ring;
	queue->mask = slots - 1;
	queue_unlock_taking_of_buffers(queue);
	free(old);
	return 0;
}

static void init_receive_buffer(struct siw_mem_buffer *buf, uint64_t user_data,
				const struct siw_sge *sgl, int nsge)
{
	buf->user_data = user_data;
	buf->length = 0;
	buf->nsge = nsge;
	for (int i = 0; i < nsge; i++) {
		buf->sgl[i] = sgl[i];
		buf->length += sgl[i].length;
	}
}

int siw_mem_buffer_queue_post(struct siw_mem_buffer_queue *queue, uint64_t user_data,
			      const struct siw_sge *sgl, int nsge)
{
	uint32_t tail = atomic_load_explicit(&queue->tail, memory_order_relaxed);

	if (nsge < 0 || (uint32_t)nsge > queue->max_sge)
		return -EINVAL;
	/* Pairs with the store of head in siw_mem_queue_pop: the slot is not read any more. */
	if (tail - atomic_load_explicit(&queue->head, memory_order_acquire) > queue->mask)
		return -ENOMEM;
	init_receive_buffer((void *)(queue->ring + (size_t)(tail & queue->mask) * queue->stride),
			    user_data, sgl, nsge);
	/*
	 * Pairs with the load of tail in siw_mem_buffer_queue_peek: the buffer is complete before
	 * it becomes visible.
	 */
	atomic_store_explicit(&queue->tail, tail + 1, memory_order_release);
	return 0;
}

int siw_mem_buffer_queue_put_back(struct siw_mem_buffer_queue *queue,
				  const struct siw_mem_taken *taken)
{
	size_t size = (size_t)taken->nsge * sizeof(taken->sgl[0]);
	struct siw_mem_returned *returned = malloc(sizeof(*returned) + size);

	if (!returned)
		return -ENOMEM;
	init_receive_buffer(&returned->buf, taken->user_data, taken->sgl, taken->nsge);
	buffer_queue_lock_takers(queue);
	returned->next = queue->returned;
	queue->returned = returned;
	atomic_fetch_add(&queue->n_returned, 1);
	queue_unlock_taking_of_buffers(queue);
	return 0;
}

__attribute__((cold, noinline)) void siw_mem_queue_pop_returned(struct siw_mem_buffer_queue *queue)
{
	struct siw_mem_returned *returned = queue->returned;

	queue->returned = returned->next;
	atomic_fetch_sub(&queue->n_returned, 1);
	free(returned);
}

uint32_t siw_mem_buffer_queue_posted_count(const struct siw_mem_buffer_queue *queue)
{
	uint32_t head = atomic_load_explicit(&queue->head, memory_order_acquire);

	return atomic_load_explicit(&queue->tail, memory_order_acquire) - head +
	       atomic_load_explicit(&queue->n_returned, memory_order_relaxed);
}

uint32_t siw_mem_buffer_queue_exact_count(struct siw_mem_buffer_queue *queue)
{
	uint32_t count;

	buffer_queue_lock_takers(queue);
	count = siw_mem_buffer_queue_posted_count(queue);
	queue_unlock_taking_of_buffers(queue);
	return count;
}

bool siw_mem_buffer_queue_has_returned_buffers(const struct siw_mem_buffer_queue *queue)
{
	return atomic_load_explicit(&queue->n_returned, memory_order_relaxed) != 0;
}

bool siw_mem_buffer_queue_take_shared(struct siw_mem_buffer_queue *queue, struct siw_mem_taken *out)
{
	const struct siw_mem_buffer *buf;

	siw_lock(&queue->take_lock);
	buf = siw_mem_buffer_queue_peek(queue);
	if (buf) {
		siw_mem_buffer_copy(out, buf);
		siw_mem_queue_pop(queue);
	}
	siw_unlock(&queue->take_lock);
	return buf != NULL;
}

int siw_mem_buffer_queue_pop_unfilled(struct siw_mem_buffer_queue *queue, uint64_t *user_data)
{
	const struct siw_mem_buffer *buf;

	buffer_queue_lock_takers(queue);
	buf = siw_mem_buffer_queue_peek(queue);
	if (buf) {
		*user_data = buf->user_data;
		siw_mem_queue_pop(queue);
	}
	queue_unlock_taking_of_buffers(queue);
	return buf != NULL;
}
