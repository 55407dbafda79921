/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/siphash.h - SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed hash of short inputs. Who does
 * not know the key cannot make a value, nor inputs that collide: for tables that strangers fill, and
 * cookies.
 */
#ifndef SIW_BASE_SIPHASH_H
#define SIW_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

/* cffi: begin */

struct siw_sipkey {
	uint64_t k[2];
};

/* A fresh secret: from the kernel, or, where it has none yet, what a clock and addresses give. */
void siw_siphash_key(struct siw_sipkey *key);
uint64_t siw_siphash(const struct siw_sipkey *key, const void *data, size_t len);

/* cffi: end */

#endif
