/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/siphash.c - see siphash.h. */
#include <endian.h>
#include <string.h>

#include "base/clock.h"
#include "base/os.h"
#include "base/siphash.h"

void siw_siphash_make_key(struct siw_sipkey *key)
{
	if (siw_getrandom(key->k, sizeof(key->k), 0) == (ssize_t)sizeof(key->k))
		return;
	key->k[0] = siw_now_ns() * 0x9e3779b97f4a7c15u;
	key->k[1] = (uintptr_t)key ^ (uintptr_t)&siw_siphash_make_key;
}

static inline uint64_t rotate_left(uint64_t x, int bits)
{
	return x << bits | x >> (64 - bits);
}

static inline void run_siphash_rounds(uint64_t v[4], int n)
{
	for (; n; n--) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = rotate_left(v[1], 13) ^ v[0];
		v[3] = rotate_left(v[3], 16) ^ v[2];
		v[0] = rotate_left(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = rotate_left(v[1], 17) ^ v[2];
		v[3] = rotate_left(v[3], 21) ^ v[0];
		v[2] = rotate_left(v[2], 32);
	}
}

static inline void siphash_absorb(uint64_t v[4], uint64_t word)
{
	v[3] ^= word;
	run_siphash_rounds(v, 2);
	v[0] ^= word;
}

uint64_t siw_siphash(const struct siw_sipkey *key, const void *data, size_t len)
{
	/* The four constants are "somepseudorandomlygeneratedbytes". */
	uint64_t v[4] = {
		key->k[0] ^ 0x736f6d6570736575u,
		key->k[1] ^ 0x646f72616e646f6du,
		key->k[0] ^ 0x6c7967656e657261u,
		key->k[1] ^ 0x7465646279746573u,
	};
	const uint8_t *at = data;
	uint64_t word, last = (uint64_t)len << 56;

	for (; len >= 8; len -= 8, at += 8) {
		memcpy(&word, at, 8);
		siphash_absorb(v, le64toh(word));
	}
	for (size_t i = 0; i < len; i++)
		last |= (uint64_t)at[i] << (8 * i);
	siphash_absorb(v, last);
	v[2] ^= 0xff;
	run_siphash_rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}
