/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_pace.h - part of ddp/ddp.h: the limit that a user sets on the rate of one endpoint's
 * datagrams. A bucket of tokens, kept as the time up to which what was sent is paid for: it is full
 * when that lies SIW_DDP_BURST_NS back, and empty when it has come to now. A datagram may go while
 * there is anything in the bucket, and may take more than there is, which later ones wait for.
 *
 * Octets are those of UDP's payload: headers of DDP and above, and the CRC, included.
 *
 * What this does NOT do: send, or keep what waits. A sender that is held back keeps its request, as
 * with a full socket; the timer of a socket then makes a poll return that socket's handler.
 *
 * Locks: the QP's send lock; siw_ddp_pace_set: the progress lock, too.
 */
#ifndef SIW_DDP_PACE_H
#define SIW_DDP_PACE_H

#include <stdbool.h>
#include <stdint.h>

struct siw_llp_sock;

/* What the bucket holds at the most, as time at the rate. */
#define SIW_DDP_BURST_NS 2000000ull

struct siw_ddp_pace {
	uint32_t kbits; /* kbit/s; 0: no limit */
	bool held;	/* who asked last has to wait */
	uint64_t paid_ns;
	struct siw_llp_sock *timer;
};

/*
 * Sets the limit; 0: none. timer: a socket that stays until another is set. What was sent and is not
 * paid for yet is paid for at the new rate.
 */
void siw_ddp_pace_set(struct siw_ddp_pace *pace, uint32_t kbits, struct siw_llp_sock *timer);
/* How many octets may go now, at least 1; 0: none, and the timer is set. */
uint64_t siw_ddp_pace_room_limited(struct siw_ddp_pace *pace);
void siw_ddp_pace_took_limited(struct siw_ddp_pace *pace, uint64_t octets);

/* The same; without a limit as many as one likes. */
static inline uint64_t siw_ddp_pace_room(struct siw_ddp_pace *pace)
{
	return __builtin_expect(pace->kbits, 0) ? siw_ddp_pace_room_limited(pace) : UINT64_MAX;
}

/* So many octets were sent. */
static inline void siw_ddp_pace_took(struct siw_ddp_pace *pace, uint64_t octets)
{
	if (__builtin_expect(pace->kbits, 0))
		siw_ddp_pace_took_limited(pace, octets);
}

#endif
