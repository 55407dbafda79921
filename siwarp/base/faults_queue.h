/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/faults_queue.h - what a fault plan holds back: the backlog of a rate, the packets that
 * reorder= lets others overtake, and a queue of packets or pieces of a stream by release time. llp
 * and wan hold octets in the queue. The simulator, whose packets have timers, uses the first two
 * parts only. The caller does the locking.
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

/* ---- the backlog of a rate ------------------------------------------------------------------- */

/* A packet, or a fragment of a packet, that waits for the rate limit of a fault plan. */
struct siw_fault_waiting {
	struct siw_link link;
	uint64_t depart_ns;
	size_t octets;
};

/*
 * The packets that wait for a rate limit, in the order of their departure. The rule limit= bounds
 * the backlog.
 */
struct siw_fault_backlog {
	struct siw_link waiting; /* list of struct siw_fault_waiting */
	uint64_t n, octets;
};

void siw_fault_backlog_init(struct siw_fault_backlog *backlog);
void siw_fault_backlog_add(struct siw_fault_backlog *backlog, struct siw_fault_waiting *waiting,
			   uint64_t depart_ns, size_t octets);
/* Removes an entry from the backlog; has no effect on an entry that is in no backlog. */
void siw_fault_backlog_remove(struct siw_fault_backlog *backlog, struct siw_fault_waiting *waiting);
/*
 * Removes and returns the next entry that has passed the rate limit at the time now_ns; NULL: no
 * further entry has passed it. The caller repeats the call until it returns NULL before each
 * decision.
 */
struct siw_fault_waiting *siw_fault_backlog_pop_departed(struct siw_fault_backlog *backlog,
							 uint64_t now_ns);

/* ---- packets to be overtaken ----------------------------------------------------------------- */

/*
 * A packet that the rule reorder= holds back. The packet is released as soon as `passes` later
 * packets have been released, and after SIW_FAULT_ASIDE_NS in any case.
 */
struct siw_fault_aside {
	struct siw_link link; /* link in a list of packets that still wait to be overtaken */
	uint8_t passes;
};

/* Records that one more packet overtakes each packet of the list. */
void siw_fault_note_overtaking_packet(struct siw_link *aside);
/*
 * Removes and returns the first packet of the list that enough packets have overtaken; that packet
 * may be released together with the last packet that overtook it. NULL: the list has no such
 * packet.
 */
struct siw_fault_aside *siw_fault_pop_overtaken_packet(struct siw_link *aside);

/* ---- the queue ------------------------------------------------------------------------------- */

struct siw_fault_held {
	struct siw_link link; /* link in the queue's list `order` */
	struct siw_fault_waiting waiting;
	struct siw_fault_aside aside;
	uint64_t release_ns;
	struct siw_addr peer;
	bool end; /* the entry marks the end of a stream */
	/* ECN code point of a received datagram; CE in a datagram to be sent: send it with CE */
	uint8_t ecn;
	size_t length;	    /* number of octets stored in the member octets */
	size_t true_length; /* original length of a datagram that was truncated */
	size_t octets_done; /* octets of a piece of a stream that are already sent or delivered */
	uint8_t octets[];
};

struct siw_fault_queue {
	struct siw_link order; /* list of all waiting packets, earliest release first */
	struct siw_link aside; /* list of packets to be released after others have overtaken them */
	size_t n, octets;
	struct siw_fault_backlog backlog;
};

void siw_fault_queue_init(struct siw_fault_queue *q);
void siw_fault_queue_free(struct siw_fault_queue *q);
static inline bool siw_fault_queue_empty(const struct siw_fault_queue *q)
{
	return q->n == 0;
}
/*
 * Applies the fault plan to the next datagram as siw_fault_decide_packet_fate() does, with the
 * packets in the queue as those that the rate limit delays. The caller then adds the datagram to
 * the queue or passes it on immediately.
 */
void siw_fault_queue_decide_packet_fate(struct siw_fault_queue *q, const struct siw_faults *plan,
					struct siw_fault_path *path, const struct siw_addr *peer,
					size_t length, uint64_t now_ns,
					struct siw_fault_decision *fate);
/*
 * Stores a copy of `length` octets of iov after the first `skip` octets. iov may refer to memory of
 * the program. 0; -ENOBUFS: the queue is full, or memory is exhausted; -EFAULT. The caller sets
 * peer, true_length and end.
 */
int siw_fault_queue_add(struct siw_fault_queue *q, const struct iovec *iov, size_t skip,
			size_t length, const struct siw_fault_decision *fate,
			struct siw_fault_held **out);
/* Copies `length` octets of iov after the first `skip` octets to out. 0 or -EFAULT. */
int siw_fault_copy_from_iov(uint8_t *out, const struct iovec *iov, size_t skip, size_t length);
/*
 * Returns the packet that is due, or NULL. The packet stays in the queue until
 * siw_fault_queue_remove().
 */
struct siw_fault_held *siw_fault_queue_first_due(struct siw_fault_queue *q, uint64_t now_ns);
void siw_fault_queue_remove(struct siw_fault_queue *q, struct siw_fault_held *held);
/*
 * Records that a packet that is not in the queue was passed on and has overtaken the packets in
 * `aside`.
 */
void siw_fault_queue_note_undelayed_packet(struct siw_fault_queue *q, uint64_t now_ns);
/* Makes all packets due immediately. */
void siw_fault_queue_make_all_due(struct siw_fault_queue *q, uint64_t now_ns);
/* Returns the time at which the next packet is due; UINT64_MAX: the queue is empty. */
uint64_t siw_fault_queue_next_due_time(const struct siw_fault_queue *q);

#endif
