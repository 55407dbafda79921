/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/crc32c_impl.h - internal interface of the crc32c*.c files.
 *
 * Implementations work on the bare CRC register: crc32c.c performs the inversions before and after.
 */
#ifndef SIW_BASE_CRC32C_IMPL_H
#define SIW_BASE_CRC32C_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct siw_crc32c_ops {
	const char *name;
	bool (*usable)(void);
	uint32_t (*sum)(uint32_t crc, const uint8_t *src, size_t len);
	uint32_t (*copy)(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src,
			 size_t len);
	/* Returns a * b * x^33 mod P; the factor x^33 saves crc32q's users a step. */
	uint32_t (*multiply)(uint32_t a, uint32_t b);
};

uint32_t siw_crc32c_multiply_by_table(uint32_t a, uint32_t b);

#if defined(__x86_64__)
#define SIW_CRC32C_X86 1
extern const struct siw_crc32c_ops siw_crc32c_avx512;
extern const struct siw_crc32c_ops siw_crc32c_avx2;
extern const struct siw_crc32c_ops siw_crc32c_avx;
extern const struct siw_crc32c_ops siw_crc32c_sse42;
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#define SIW_CRC32C_ARM 1
extern const struct siw_crc32c_ops siw_crc32c_armv8;
#endif

#endif
