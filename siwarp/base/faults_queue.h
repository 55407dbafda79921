/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/faults_queue.h - packets, or pieces of a stream, that a plan of faults holds back. They are
 * in order of release, except those that wait to be overtaken. Bounded in number and octets. Has no
 * lock.
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

#define SIW_FAULT_HELD_MAX    65536	 /* the most packets of a queue */
#define SIW_FAULT_HELD_OCTETS (32 << 20) /* the most octets of a queue */
#define SIW_FAULT_ASIDE_NS    50000000	 /* the longest that a packet waits to be overtaken */

struct siw_fault_held {
	struct siw_link link;
	uint64_t depart_ns, release_ns;
	struct siw_addr peer;
	uint8_t passes;
	bool end;	    /* the end of a stream */
	size_t length;	    /* octets stored here */
	size_t true_length; /* of a datagram that was truncated */
	size_t taken;	    /* octets of a stream's piece that are sent or delivered */
	uint8_t octets[];
};

struct siw_fault_queue {
	struct siw_link order; /* by release */
	struct siw_link aside; /* those that wait to be overtaken */
	size_t n, octets;
	/* The first packet in `order` that still waits for the rate; all behind it wait, too. */
	struct siw_link *waiting;
	uint64_t n_waiting, octets_waiting;
};

void siw_fault_queue_init(struct siw_fault_queue *q);
void siw_fault_queue_free(struct siw_fault_queue *q);
static inline bool siw_fault_queue_empty(const struct siw_fault_queue *q)
{
	return q->n == 0;
}
/* Makes n_waiting and octets_waiting valid for this time. */
void siw_fault_queue_clock(struct siw_fault_queue *q, uint64_t now_ns);
/*
 * Stores a copy of the `length` octets that follow the first `skip` of iov, which may be the
 * program's memory. 0; -ENOBUFS: there is no room, or no memory; -EFAULT. The caller sets peer,
 * true_length and end.
 */
int siw_fault_queue_add(struct siw_fault_queue *q, const struct iovec *iov, size_t skip,
			size_t length, const struct siw_fault_fate *fate,
			struct siw_fault_held **out);
/* Copies the `length` octets that follow the first `skip` of iov. 0 or -EFAULT. */
int siw_fault_gather(uint8_t *out, const struct iovec *iov, size_t skip, size_t length);
/* The packet that is due, or NULL. It stays in the queue until siw_fault_queue_drop(). */
struct siw_fault_held *siw_fault_queue_due(struct siw_fault_queue *q, uint64_t now_ns);
void siw_fault_queue_drop(struct siw_fault_queue *q, struct siw_fault_held *held);
/* Notes that a packet has passed those that wait to be overtaken. */
void siw_fault_queue_passed(struct siw_fault_queue *q);
/* Makes all packets due now. */
void siw_fault_queue_hurry(struct siw_fault_queue *q, uint64_t now_ns);
/* When the next packet is due; UINT64_MAX: never. */
uint64_t siw_fault_queue_next(const struct siw_fault_queue *q);

#endif
