/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/faults_queue.c - see faults_queue.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "base/faults_queue.h"

#define HELD_OF(l) siw_container(l, struct siw_fault_held, link)

void siw_fault_queue_init(struct siw_fault_queue *q)
{
	memset(q, 0, sizeof(*q));
	siw_link_init(&q->order);
	siw_link_init(&q->aside);
	q->waiting = &q->order;
}

static void faults_queue_free_list(struct siw_link *list)
{
	while (!siw_link_empty(list)) {
		struct siw_link *l = list->next;

		siw_link_del(l);
		free(HELD_OF(l));
	}
}

void siw_fault_queue_free(struct siw_fault_queue *q)
{
	faults_queue_free_list(&q->order);
	faults_queue_free_list(&q->aside);
	siw_fault_queue_init(q);
}

void siw_fault_queue_clock(struct siw_fault_queue *q, uint64_t now)
{
	while (q->waiting != &q->order && HELD_OF(q->waiting)->depart_ns <= now) {
		q->n_waiting--;
		q->octets_waiting -= HELD_OF(q->waiting)->length;
		q->waiting = q->waiting->next;
	}
}

int siw_fault_gather(uint8_t *out, const struct iovec *iov, size_t skip, size_t length)
{
	for (; length; iov++) {
		size_t n;

		if (skip >= iov->iov_len) {
			skip -= iov->iov_len;
			continue;
		}
		n = iov->iov_len - skip < length ? iov->iov_len - skip : length;
		if (siw_guard_read(out, (const uint8_t *)iov->iov_base + skip, n))
			return -EFAULT;
		out += n;
		length -= n;
		skip = 0;
	}
	return 0;
}

static void faults_queue_append(struct siw_fault_queue *q, struct siw_fault_held *held)
{
	siw_link_add(&q->order, &held->link);
	if (q->waiting == &q->order)
		q->waiting = &held->link;
	q->n_waiting++;
	q->octets_waiting += held->length;
}

int siw_fault_queue_add(struct siw_fault_queue *q, const struct iovec *iov, size_t skip,
			size_t length, const struct siw_fault_decision *fate,
			struct siw_fault_held **out)
{
	struct siw_fault_held *held;

	if (q->n >= SIW_FAULT_HELD_MAX || q->octets + length > SIW_FAULT_HELD_OCTETS)
		return -ENOBUFS;
	held = malloc(sizeof(*held) + length);
	if (!held)
		return -ENOBUFS;
	memset(held, 0, sizeof(*held));
	if (siw_fault_gather(held->octets, iov, skip, length)) {
		free(held);
		return -EFAULT;
	}
	held->length = held->true_length = length;
	held->depart_ns = fate->depart_ns;
	held->release_ns = fate->release_ns;
	held->passes = fate->passes;
	if (fate->corrupt)
		siw_fault_flip(held->octets, length, fate->flip);
	q->n++;
	q->octets += length;
	if (held->passes) {
		held->release_ns += SIW_FAULT_ASIDE_NS;
		siw_link_add(&q->aside, &held->link);
	} else {
		faults_queue_append(q, held);
	}
	*out = held;
	return 0;
}

struct siw_fault_held *siw_fault_queue_due(struct siw_fault_queue *q, uint64_t now)
{
	struct siw_link *l;

	for (l = q->aside.next; l != &q->aside; l = l->next)
		if (!HELD_OF(l)->passes || HELD_OF(l)->release_ns <= now)
			return HELD_OF(l);
	if (siw_link_empty(&q->order) || HELD_OF(q->order.next)->release_ns > now)
		return NULL;
	return HELD_OF(q->order.next);
}

void siw_fault_queue_drop(struct siw_fault_queue *q, struct siw_fault_held *held)
{
	/*
	 * A packet is never released before it has passed the rate limit, so this packet no longer
	 * waits for the rate.
	 */
	if (q->waiting == &held->link) {
		q->waiting = held->link.next;
		q->n_waiting--;
		q->octets_waiting -= held->length;
	}
	siw_link_del(&held->link);
	q->n--;
	q->octets -= held->length;
	free(held);
}

void siw_fault_queue_passed(struct siw_fault_queue *q)
{
	for (struct siw_link *l = q->aside.next; l != &q->aside; l = l->next)
		if (HELD_OF(l)->passes)
			HELD_OF(l)->passes--;
}

void siw_fault_queue_release_all(struct siw_fault_queue *q, uint64_t now)
{
	struct siw_link *l;

	for (l = q->order.next; l != &q->order; l = l->next) {
		HELD_OF(l)->depart_ns = now;
		HELD_OF(l)->release_ns = now;
	}
	for (l = q->aside.next; l != &q->aside; l = l->next)
		HELD_OF(l)->passes = 0;
	siw_fault_queue_clock(q, now);
}

uint64_t siw_fault_queue_next(const struct siw_fault_queue *q)
{
	uint64_t next = siw_link_empty(&q->order) ? UINT64_MAX : HELD_OF(q->order.next)->release_ns;
	const struct siw_link *l;

	for (l = q->aside.next; l != &q->aside; l = l->next) {
		if (!HELD_OF(l)->passes)
			return 0;
		if (HELD_OF(l)->release_ns < next)
			next = HELD_OF(l)->release_ns;
	}
	return next;
}
