/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/source.c - see source.h. */
#include "base/source.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/random.h>

#include "base/os.h"

#define SECOND 1000000000u

uint64_t siw_source_make_hash_key(void)
{
	uint64_t key;

	/*
	 * A predictable key is harmless: the limits for all sources together do not depend on it.
	 */
	if (siw_getrandom(&key, sizeof(key), GRND_NONBLOCK) < 0)
		key = (uintptr_t)&key;
	return key | 1;
}

uint32_t siw_source_table_index(uint64_t key, const struct siw_addr *addr)
{
	uint64_t who = 0;

	if (addr->family == AF_INET)
		memcpy(&who, addr->v4, sizeof(addr->v4));
	else
		memcpy(&who, addr->v6, sizeof(who));
	who = (who ^ who >> 32) * key;
	who = (who ^ who >> 29) * key;
	return (uint32_t)(who >> (64 - SIW_SOURCE_BITS));
}

/* Returns the value of bucket->at after one more token was consumed; 0: no token is available. */
static uint64_t token_bucket_time_after_consuming(const struct siw_bucket *bucket,
						  const struct siw_rate *ration, uint64_t now)
{
	uint64_t each = ration->rate ? SECOND / ration->rate : 0, at = bucket->at;

	if (!each)
		return 0;
	if (at + each * ration->burst < now)
		at = now - each * ration->burst;
	return at + each > now ? 0 : at + each;
}

bool siw_token_bucket_consume(struct siw_bucket *bucket, const struct siw_rate *ration,
			      uint64_t now)
{
	uint64_t at = token_bucket_time_after_consuming(bucket, ration, now);

	if (at)
		bucket->at = at;
	return at;
}

bool siw_source_consume_token(struct siw_source_buckets *buckets, uint32_t place,
			      const struct siw_rate *all, const struct siw_rate *one, uint64_t now)
{
	uint64_t at = token_bucket_time_after_consuming(&buckets->one[place], one, now);

	if (!at || !siw_token_bucket_consume(&buckets->all, all, now))
		return false;
	buckets->one[place].at = at;
	return true;
}
