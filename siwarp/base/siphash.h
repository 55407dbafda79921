/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/siphash.h - SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed hash of short inputs.
 * Without the key, hashes cannot be computed and colliding inputs cannot be found. Used for hash
 * tables that peers can fill, and for cookies.
 */
#ifndef SIW_BASE_SIPHASH_H
#define SIW_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

/* cffi: begin */

struct siw_sipkey {
	uint64_t k[2];
};

/*
 * Generates a random key: from the kernel, or from a clock and addresses if the kernel has no
 * entropy yet.
 */
void siw_siphash_make_key(struct siw_sipkey *key);
uint64_t siw_siphash(const struct siw_sipkey *key, const void *data, size_t len);

/* cffi: end */

#endif
