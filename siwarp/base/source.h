/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/source.h - rate limits on what unknown peers cause, per source: an IPv4 address or an IPv6
 * /64. The tables have a fixed size and are indexed by a keyed hash: sources with the same entry
 * share one limit, and an attacker cannot find out which sources do.
 *
 * The functions do no locking: each object is protected by a lock of its owner.
 */
#ifndef SIW_BASE_SOURCE_H
#define SIW_BASE_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include <siwarp/types.h>

#define SIW_SOURCE_BITS 10
#define SIW_SOURCES	(1u << SIW_SOURCE_BITS)

/*
 * Returns an odd, secret key for siw_source_table_index; not secret early at boot, before the
 * kernel has random numbers.
 */
uint64_t siw_source_make_hash_key(void);
/* Returns the index of a source in a table of SIW_SOURCES entries. */
uint32_t siw_source_table_index(uint64_t key, const struct siw_addr *addr);

/*
 * A token bucket. Its value is the time in ns at which the last consumed token would have been due
 * at a steady rate.
 */
struct siw_bucket {
	uint64_t at;
};

/*
 * A rate limit: rate in tokens per second, and burst, the number of tokens that may be consumed
 * immediately. A rate of 0 allows nothing.
 */
struct siw_rate {
	uint64_t rate, burst;
};

/* Consumes a token of the bucket; false: no token is available at present. */
bool siw_token_bucket_consume(struct siw_bucket *bucket, const struct siw_rate *ration,
			      uint64_t now);

/* A bucket for all sources together, and one for each table entry. Zeroed buckets are full. */
struct siw_source_buckets {
	struct siw_bucket all, one[SIW_SOURCES];
};

/*
 * Consumes a token of the common bucket and of the source's bucket. Returns false, and consumes
 * none, if either is empty.
 */
bool siw_source_consume_token(struct siw_source_buckets *buckets, uint32_t place,
			      const struct siw_rate *all, const struct siw_rate *one, uint64_t now);

#endif
