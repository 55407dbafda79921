/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_rnr.h - the receiver-not-ready delays that InfiniBand's 5-bit codes stand for. Attribute
 * min_rnr_timer of queue pairs, and the RNR timer in RD datagrams, are such codes.
 */
#ifndef SIW_RD_RNR_H
#define SIW_RD_RNR_H

#include <stdint.h>

#define SIW_RNR_NO_LIMIT 7 /* value of rnr_retry that means no limit */
#define SIW_RNR_CODES	 32

/*
 * Returns the nanoseconds that a message may wait for a receive. retry must be below
 * SIW_RNR_NO_LIMIT.
 */
static inline uint64_t siw_rnr_timeout_ns(uint32_t retry, uint32_t code)
{
	/* delay of each code in units of 10 microseconds */
	static const uint32_t timer_of[SIW_RNR_CODES] = {
		65536, 1,    2,	   3,	 4,    6,     8,     12,    16,	   24,	  32,
		48,    64,   96,   128,	 192,  256,   384,   512,   768,   1024,  1536,
		2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
	};

	return (uint64_t)retry * timer_of[code % SIW_RNR_CODES] * 10000;
}

#endif
