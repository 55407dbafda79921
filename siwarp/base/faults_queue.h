/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/faults_queue.h - queue of packets, or pieces of a stream, that a fault plan holds back. They
 * are ordered by release time, except those that wait to be overtaken. The queue is bounded in
 * packets and octets. The caller does the locking.
 */
#ifndef SIW_BASE_FAULTS_QUEUE_H
#define SIW_BASE_FAULTS_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <siwarp/types.h>

#include "base/faults.h"
#include "base/list.h"

#define SIW_FAULT_HELD_MAX    65536	 /* maximum number of packets in a queue */
#define SIW_FAULT_HELD_OCTETS (32 << 20) /* maximum number of octets in a queue */
#define SIW_FAULT_ASIDE_NS    50000000 /* maximum time in ns that a packet waits to be overtaken */

struct siw_fault_held {
	struct siw_link link;
	uint64_t depart_ns, release_ns;
	struct siw_addr peer;
	uint8_t passes;
	bool end;	    /* marks the end of a stream */
	size_t length;	    /* octets stored in octets */
	size_t true_length; /* original length of a datagram that was truncated */
	size_t taken;	    /* octets of a piece of a stream that are already sent or delivered */
	uint8_t octets[];
};

struct siw_fault_queue {
	struct siw_link order; /* packets by release time */
	struct siw_link aside; /* packets that wait to be overtaken */
	size_t n, octets;
	/*
	 * The first packet in `order` that still waits for the rate; all packets behind it wait,
	 * too.
	 */
	struct siw_link *waiting;
	uint64_t n_waiting, octets_waiting;
};

void siw_fault_queue_init(struct siw_fault_queue *q);
void siw_fault_queue_free(struct siw_fault_queue *q);
static inline bool siw_fault_queue_empty(const struct siw_fault_queue *q)
{
	return q->n == 0;
}
/* Updates n_waiting and octets_waiting for the time now_ns. */
void siw_fault_queue_clock(struct siw_fault_queue *q, uint64_t now_ns);
/*
 * Stores a copy of `length` octets of iov after the first `skip` octets. iov may refer to memory of
 * the program. 0; -ENOBUFS: the queue is full, or memory is exhausted; -EFAULT. The caller sets
 * peer, true_length and end.
 */
int siw_fault_queue_add(struct siw_fault_queue *q, const struct iovec *iov, size_t skip,
			size_t length, const struct siw_fault_decision *fate,
			struct siw_fault_held **out);
/* Copies `length` octets of iov after the first `skip` octets to out. 0 or -EFAULT. */
int siw_fault_gather(uint8_t *out, const struct iovec *iov, size_t skip, size_t length);
/* Returns the packet that is due, or NULL. It stays in the queue until siw_fault_queue_drop(). */
struct siw_fault_held *siw_fault_queue_due(struct siw_fault_queue *q, uint64_t now_ns);
void siw_fault_queue_drop(struct siw_fault_queue *q, struct siw_fault_held *held);
/* Records that a packet has overtaken the packets in `aside`. */
void siw_fault_queue_passed(struct siw_fault_queue *q);
/* Makes all packets due immediately. */
void siw_fault_queue_release_all(struct siw_fault_queue *q, uint64_t now_ns);
/* Returns the time at which the next packet is due; UINT64_MAX: the queue is empty. */
uint64_t siw_fault_queue_next(const struct siw_fault_queue *q);

#endif
