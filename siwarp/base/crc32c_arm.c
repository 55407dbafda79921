/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/crc32c_arm.c - CRC32C with the CRC instructions of ARMv8, if the compiler targets a CPU that
 * has them.
 */
#include <string.h>

#include "base/crc32c_impl.h"

#if SIW_CRC32C_ARM
#include <arm_acle.h>

static inline __attribute__((always_inline)) uint32_t armv8_run(uint32_t crc, uint8_t *restrict dst,
								const uint8_t *restrict src,
								size_t len, const bool copy)
{
	uint64_t v;

	for (; len >= 8; src += 8, len -= 8) {
		memcpy(&v, src, 8);
		if (copy) {
			memcpy(dst, &v, 8);
			dst += 8;
		}
		crc = __crc32cd(crc, v);
	}
	for (; len; src++, len--) {
		if (copy)
			*dst++ = *src;
		crc = __crc32cb(crc, *src);
	}
	return crc;
}

static uint32_t armv8_crc32c(uint32_t crc, const uint8_t *src, size_t len)
{
	return armv8_run(crc, NULL, src, len, false);
}

static uint32_t armv8_copy_with_crc32c(uint32_t crc, uint8_t *restrict dst,
				       const uint8_t *restrict src, size_t len)
{
	return armv8_run(crc, dst, src, len, true);
}

static bool armv8_usable(void)
{
	return true;
}

const struct siw_crc32c_ops siw_crc32c_armv8 = {
	"armv8", armv8_usable, armv8_crc32c, armv8_copy_with_crc32c, siw_crc32c_multiply_by_table,
};
#endif
