/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/faults_queue.h - packets, or pieces of a stream, that a plan of faults holds back: in order
 * of release, but for the ones that others overtake. Bounded in number and octets. No locks inside.
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

#define SIW_FAULT_HELD_MAX    65536	 /* packets */
#define SIW_FAULT_HELD_OCTETS (32 << 20) /* ... and octets that one queue holds at most */
#define SIW_FAULT_ASIDE_NS    50000000	 /* how long one that is to be overtaken waits for that */

struct siw_fault_held {
	struct siw_link link;
	uint64_t depart_ns, release_ns;
	struct siw_addr peer;
	uint8_t passes;
	bool end;	    /* of a stream: nothing comes behind it */
	size_t length;	    /* octets at hand */
	size_t true_length; /* of a datagram that was cut */
	size_t taken;	    /* of a stream's piece */
	uint8_t octets[];
};

struct siw_fault_queue {
	struct siw_link order; /* by release */
	struct siw_link aside; /* those that wait to be overtaken */
	size_t n, octets;
	/* Those at the end of `order` that still wait for the rate begin here. */
	struct siw_link *waiting;
	uint64_t n_waiting, octets_waiting;
};

void siw_fault_queue_init(struct siw_fault_queue *q);
void siw_fault_queue_free(struct siw_fault_queue *q);
static inline bool siw_fault_queue_empty(const struct siw_fault_queue *q)
{
	return q->n == 0;
}
/* Moves on what waits for the rate: n_waiting and octets_waiting are true as of now. */
void siw_fault_queue_clock(struct siw_fault_queue *q, uint64_t now_ns);
/*
 * Holds a copy of `length` octets, those behind the first `skip` of iov, which may be a program's
 * memory. 0; -ENOBUFS: there is no room, or no memory; -EFAULT. peer, true_length and end are the
 * caller's to set.
 */
int siw_fault_queue_add(struct siw_fault_queue *q, const struct iovec *iov, size_t skip,
			size_t length, const struct siw_fault_fate *fate,
			struct siw_fault_held **out);
/* The octets behind the first `skip` of iov. 0 or -EFAULT. */
int siw_fault_gather(uint8_t *out, const struct iovec *iov, size_t skip, size_t length);
/* The one that is to go now, NULL if none is. It stays until siw_fault_queue_drop(). */
struct siw_fault_held *siw_fault_queue_due(struct siw_fault_queue *q, uint64_t now_ns);
void siw_fault_queue_drop(struct siw_fault_queue *q, struct siw_fault_held *held);
/* One has gone by: those that wait to be overtaken notice. */
void siw_fault_queue_passed(struct siw_fault_queue *q);
/* All of them are to go now. */
void siw_fault_queue_hurry(struct siw_fault_queue *q, uint64_t now_ns);
/* When siw_fault_queue_due() will give one; UINT64_MAX: never. */
uint64_t siw_fault_queue_next(const struct siw_fault_queue *q);

#endif
