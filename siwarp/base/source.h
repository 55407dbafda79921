/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/source.h - what strangers cause, counted by its source: an IPv4 address or an IPv6 /64.
 * Tables have a fixed size under a secret hash: two sources with the same entry share one limit,
 * and an attacker cannot find out which ones do.
 *
 * What it does NOT do: lock. Each object is used under one lock of its owner's.
 */
#ifndef SIW_BASE_SOURCE_H
#define SIW_BASE_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include <siwarp/types.h>

#define SIW_SOURCE_BITS 10
#define SIW_SOURCES	(1u << SIW_SOURCE_BITS)

/* A key for siw_source_place: odd and secret, but at early boot, when there are no random numbers. */
uint64_t siw_source_key(void);
/* The entry of a source in a table of SIW_SOURCES. */
uint32_t siw_source_place(uint64_t key, const struct siw_addr *addr);

/* A token bucket: when the last token would have been due at a steady rate, ns. */
struct siw_bucket {
	uint64_t at;
};

/* So many a second, and so many at once. A rate of 0 allows nothing. */
struct siw_ration {
	uint64_t rate, burst;
};

/* Takes a token; false: there is none now. */
bool siw_bucket_take(struct siw_bucket *bucket, const struct siw_ration *ration, uint64_t now);

/* A ration for all sources together, and one for each. Zeroed, it is full. */
struct siw_source_buckets {
	struct siw_bucket all, one[SIW_SOURCES];
};

/* Takes a token of both; false, and nothing taken: one of them has none. */
bool siw_source_take(struct siw_source_buckets *buckets, uint32_t place,
		     const struct siw_ration *all, const struct siw_ration *one, uint64_t now);

#endif
