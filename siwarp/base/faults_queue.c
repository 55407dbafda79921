/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/faults_queue.c - see faults_queue.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "base/faults_queue.h"

#define HELD_OF(l) siw_container(l, struct siw_fault_held, link)

/* ---- the backlog of a rate ------------------------------------------------------------------- */

void siw_fault_backlog_init(struct siw_fault_backlog *backlog)
{
	siw_link_init(&backlog->waiting);
	backlog->n = backlog->octets = 0;
}

void siw_fault_backlog_add(struct siw_fault_backlog *backlog, struct siw_fault_waiting *waiting,
			   uint64_t depart_ns, size_t octets)
{
	struct siw_link *behind = &backlog->waiting;

	/* After a change of the plan a packet may depart before packets that wait already. */
	while (behind->prev != &backlog->waiting &&
	       siw_container(behind->prev, struct siw_fault_waiting, link)->depart_ns > depart_ns)
		behind = behind->prev;
	waiting->depart_ns = depart_ns;
	waiting->octets = octets;
	siw_link_add(behind, &waiting->link);
	backlog->n++;
	backlog->octets += octets;
}

void siw_fault_backlog_remove(struct siw_fault_backlog *backlog, struct siw_fault_waiting *waiting)
{
	if (siw_link_empty(&waiting->link))
		return;
	siw_link_del(&waiting->link);
	backlog->n--;
	backlog->octets -= waiting->octets;
}

struct siw_fault_waiting *siw_fault_backlog_pop_departed(struct siw_fault_backlog *backlog,
							 uint64_t now)
{
	struct siw_fault_waiting *first =
		siw_container(backlog->waiting.next, struct siw_fault_waiting, link);

	if (siw_link_empty(&backlog->waiting) || first->depart_ns > now)
		return NULL;
	siw_fault_backlog_remove(backlog, first);
	return first;
}

/* ---- packets to be overtaken ----------------------------------------------------------------- */

#define ASIDE_OF(l) siw_container(l, struct siw_fault_aside, link)

void siw_fault_note_overtaking_packet(struct siw_link *aside)
{
	for (struct siw_link *l = aside->next; l != aside; l = l->next)
		ASIDE_OF(l)->passes -= ASIDE_OF(l)->passes > 0;
}

struct siw_fault_aside *siw_fault_pop_overtaken_packet(struct siw_link *aside)
{
	for (struct siw_link *l = aside->next; l != aside; l = l->next)
		if (!ASIDE_OF(l)->passes) {
			siw_link_del(l);
			return ASIDE_OF(l);
		}
	return NULL;
}

/* ---- the queue ------------------------------------------------------------------------------- */

void siw_fault_queue_init(struct siw_fault_queue *q)
{
	memset(q, 0, sizeof(*q));
	siw_link_init(&q->order);
	siw_link_init(&q->aside);
	siw_fault_backlog_init(&q->backlog);
}

void siw_fault_queue_free(struct siw_fault_queue *q)
{
	while (!siw_link_empty(&q->order))
		siw_fault_queue_remove(q, HELD_OF(q->order.next));
}

void siw_fault_queue_decide_packet_fate(struct siw_fault_queue *q, const struct siw_faults *plan,
					struct siw_fault_path *path, const struct siw_addr *peer,
					size_t length, uint64_t now,
					struct siw_fault_decision *fate)
{
	while (siw_fault_backlog_pop_departed(&q->backlog, now))
		;
	siw_fault_decide_packet_fate(plan, path, peer, length, now, q->backlog.n, q->backlog.octets,
				     fate);
}

int siw_fault_copy_from_iov(uint8_t *out, const struct iovec *iov, size_t skip, size_t length)
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

/* Inserts a packet after all packets that are released at the same time or earlier. */
static void queue_insert_by_release_time(struct siw_fault_queue *q, struct siw_fault_held *held)
{
	struct siw_link *l = q->order.prev;

	while (l != &q->order && HELD_OF(l)->release_ns > held->release_ns)
		l = l->prev;
	siw_link_add(l->next, &held->link);
}

void siw_fault_queue_note_undelayed_packet(struct siw_fault_queue *q, uint64_t at)
{
	struct siw_fault_aside *aside;

	siw_fault_note_overtaking_packet(&q->aside);
	while ((aside = siw_fault_pop_overtaken_packet(&q->aside))) {
		struct siw_fault_held *held = siw_container(aside, struct siw_fault_held, aside);

		if (at < held->release_ns) {
			held->release_ns = at;
			siw_link_del(&held->link);
			queue_insert_by_release_time(q, held);
		}
		/* the packet overtakes all packets still in the list */
		siw_fault_note_overtaking_packet(&q->aside);
	}
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
	if (siw_fault_copy_from_iov(held->octets, iov, skip, length)) {
		free(held);
		return -EFAULT;
	}
	held->length = held->true_length = length;
	held->release_ns = fate->release_ns;
	siw_link_init(&held->waiting.link);
	siw_link_init(&held->aside.link);
	if (fate->corrupt)
		siw_fault_flip_bit(held->octets, length, fate->flip);
	q->n++;
	q->octets += length;
	if (fate->depart_ns)
		siw_fault_backlog_add(&q->backlog, &held->waiting, fate->depart_ns, length);
	if (fate->passes) {
		held->release_ns += SIW_FAULT_ASIDE_NS;
		held->aside.passes = fate->passes;
		siw_link_add(&q->aside, &held->aside.link);
	}
	queue_insert_by_release_time(q, held);
	if (!fate->passes)
		siw_fault_queue_note_undelayed_packet(q, held->release_ns);
	*out = held;
	return 0;
}

struct siw_fault_held *siw_fault_queue_first_due(struct siw_fault_queue *q, uint64_t now)
{
	return siw_fault_queue_next_due_time(q) <= now ? HELD_OF(q->order.next) : NULL;
}

void siw_fault_queue_remove(struct siw_fault_queue *q, struct siw_fault_held *held)
{
	siw_fault_backlog_remove(&q->backlog, &held->waiting);
	siw_link_del(&held->aside.link);
	siw_link_del(&held->link);
	q->n--;
	q->octets -= held->length;
	free(held);
}

void siw_fault_queue_make_all_due(struct siw_fault_queue *q, uint64_t now)
{
	for (struct siw_link *l = q->order.next; l != &q->order; l = l->next) {
		struct siw_fault_held *held = HELD_OF(l);

		siw_fault_backlog_remove(&q->backlog, &held->waiting);
		siw_link_del(&held->aside.link);
		held->release_ns = now;
	}
}

uint64_t siw_fault_queue_next_due_time(const struct siw_fault_queue *q)
{
	return siw_link_empty(&q->order) ? UINT64_MAX : HELD_OF(q->order.next)->release_ns;
}
