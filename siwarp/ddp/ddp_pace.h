/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_pace.h - part of ddp/ddp.h: the limit that a user sets on the rate of one endpoint's
 * datagrams. The limiter is a token bucket, represented by paid_ns, the time at which the rate has
 * produced the tokens for all octets sent so far: the bucket is full when paid_ns lies
 * SIW_DDP_BURST_NS in the past, and empty when paid_ns has reached the current time. A datagram may
 * be sent while the bucket is not empty, even if the datagram needs more tokens than the bucket
 * holds; later datagrams wait until the rate has produced the missing tokens.
 *
 * The rate counts octets of UDP payload, including the headers of DDP and upper layers, and the
 * CRC.
 *
 * What the limiter does NOT do: transmit or queue datagrams. A sender that exceeds the rate keeps
 * its request, as with a full socket. When the rate permits the next datagram, a timer of the
 * socket expires, and a poll returns the socket's handler.
 *
 * Locks: the QP's send lock; siw_ddp_pace_set_rate_limit also requires the progress lock.
 */
#ifndef SIW_DDP_PACE_H
#define SIW_DDP_PACE_H

#include <stdbool.h>
#include <stdint.h>

struct siw_llp_sock;

/* The capacity of the token bucket, expressed as transmission time at the rate, ns. */
#define SIW_DDP_BURST_NS 2000000ull

struct siw_ddp_pace {
	uint32_t kbits; /* kbit/s; 0: no limit */
	bool held;	/* the rate limit delayed the last send */
	uint64_t paid_ns;
	struct siw_llp_sock *timer;
};

/*
 * Sets the rate limit in kbit/s; 0: no limit. timer: the socket whose timer reports that sending
 * may continue; it must stay valid until another socket is set. If more octets were sent than the
 * old rate allowed, the sender waits for them at the new rate.
 */
void siw_ddp_pace_set_rate_limit(struct siw_ddp_pace *pace, uint32_t kbits,
				 struct siw_llp_sock *timer);
/* Returns the number of octets that may be sent now, at least 1; or 0 after setting the timer. */
uint64_t siw_ddp_pace_compute_allowance(struct siw_ddp_pace *pace);
void siw_ddp_pace_charge_octets(struct siw_ddp_pace *pace, uint64_t octets);

/*
 * Returns the number of octets that may be sent now; UINT64_MAX without a rate limit; or 0 after
 * setting the timer.
 */
static inline uint64_t siw_ddp_pace_allowance(struct siw_ddp_pace *pace)
{
	return __builtin_expect(pace->kbits, 0) ? siw_ddp_pace_compute_allowance(pace) : UINT64_MAX;
}

/* Charges sent octets to the rate limit. */
static inline void siw_ddp_pace_consume(struct siw_ddp_pace *pace, uint64_t octets)
{
	if (__builtin_expect(pace->kbits, 0))
		siw_ddp_pace_charge_octets(pace, octets);
}

#endif
