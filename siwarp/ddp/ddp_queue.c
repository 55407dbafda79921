/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_queue.c - untagged buffers, in the order they were posted (RFC 5041 section 5.1.2).
 *
 * A ring with one writer (whoever posts; the caller sees to it that it is one at a time) and one
 * reader (whoever holds the progress lock).
 */
#include <errno.h>
#include <stdlib.h>

#include "ddp/ddp_impl.h"

int siw_ddp_queue_create(struct siw_ddp_port *port, const struct siw_ddp_queue_attr *attr,
			 struct siw_ddp_queue **out)
{
	uint32_t slots = 1;
	struct siw_ddp_queue *queue;
	size_t stride;

	(void)port;
	if (attr->depth > 1u << 20 || attr->max_sge > SIW_DDP_MAX_SGE)
		return -EINVAL;
	while (slots < attr->depth)
		slots *= 2;
	stride = sizeof(struct siw_ddp_buffer) + attr->max_sge * sizeof(struct siw_sge);
	if (posix_memalign((void **)&queue, 64, sizeof(*queue) + slots * stride))
		return -ENOMEM;
	*queue = (struct siw_ddp_queue){
		.mask = slots - 1,
		.max_sge = attr->max_sge,
		.pd = attr->pd,
		.stride = (uint32_t)stride,
		.internal = attr->internal,
	};
	*out = queue;
	return 0;
}

void siw_ddp_queue_destroy(struct siw_ddp_queue *queue)
{
	while (queue->returned)
		siw_ddp_queue_pop_returned(queue);
	free(queue);
}

int siw_ddp_queue_post(struct siw_ddp_queue *queue, uint64_t cookie, const struct siw_sge *sgl,
		       int nsge)
{
	uint32_t tail = atomic_load_explicit(&queue->tail, memory_order_relaxed);
	struct siw_ddp_buffer *buf;
	uint64_t length = 0;
	int i;

	if (nsge < 0 || (uint32_t)nsge > queue->max_sge)
		return -EINVAL;
	/* Pairs with the store of head in siw_ddp_queue_pop. */
	if (tail - atomic_load_explicit(&queue->head, memory_order_acquire) > queue->mask)
		return -ENOMEM;
	buf = (void *)(queue->ring + (size_t)(tail & queue->mask) * queue->stride);
	for (i = 0; i < nsge; i++) {
		buf->sgl[i] = sgl[i];
		length += sgl[i].length;
	}
	buf->cookie = cookie;
	buf->length = length;
	buf->nsge = nsge;
	/*
	 * Pairs with the load of tail in siw_ddp_queue_peek: the buffer is whole before it shows.
	 */
	atomic_store_explicit(&queue->tail, tail + 1, memory_order_release);
	return 0;
}

int siw_ddp_queue_return(struct siw_ddp_queue *queue, const struct siw_ddp_rxq *q)
{
	size_t sgl = (size_t)q->nsge * sizeof(q->sgl[0]);
	struct siw_ddp_returned *returned = malloc(sizeof(*returned) + sgl);

	if (!returned)
		return -ENOMEM;
	returned->next = queue->returned;
	returned->buf.cookie = q->cookie;
	returned->buf.length = q->length;
	returned->buf.nsge = q->nsge;
	memcpy(returned->buf.sgl, q->sgl, sgl);
	queue->returned = returned;
	atomic_fetch_add(&queue->n_returned, 1);
	return 0;
}

__attribute__((cold, noinline)) void siw_ddp_queue_pop_returned(struct siw_ddp_queue *queue)
{
	struct siw_ddp_returned *returned = queue->returned;

	queue->returned = returned->next;
	atomic_fetch_sub(&queue->n_returned, 1);
	free(returned);
}

uint32_t siw_ddp_queue_used(const struct siw_ddp_queue *queue)
{
	uint32_t head = atomic_load_explicit(&queue->head, memory_order_acquire);

	return atomic_load_explicit(&queue->tail, memory_order_acquire) - head +
	       atomic_load_explicit(&queue->n_returned, memory_order_relaxed);
}

int siw_ddp_queue_take(struct siw_ddp_queue *queue, uint64_t *cookie)
{
	const struct siw_ddp_buffer *buf = siw_ddp_queue_peek(queue);

	if (!buf)
		return 0;
	*cookie = buf->cookie;
	siw_ddp_queue_pop(queue);
	return 1;
}
