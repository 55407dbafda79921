/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/crc32c_x86.c - CRC32C on x86-64 with crc32q, which has a latency of 3 cycles and a
 * throughput of 1 per cycle. Three streams are therefore computed in parallel over three adjacent
 * blocks, and two carry-less products shift the first two results into position. Short input, and
 * a short remainder, are processed as one stream.
 */
#include "base/crc32c_impl.h"

#if SIW_CRC32C_X86
#include "base/crc32c_x86.h"

/*
 * Computes three CRC streams of n octets each. far and near are the constants that shift a CRC by
 * 2n and n octets. The shifted values are added to the last 8 octets of the third stream, so they
 * need no separate reduction.
 */
INLINE SSE42 uint32_t crc_by_three_instruction_streams(uint32_t crc, uint8_t *dst,
						       const uint8_t *src, const size_t n,
						       uint64_t far, uint64_t near)
{
	uint64_t a = crc, b = 0, c = 0;
	uint64_t last;
	size_t i;

	for (i = 0; i < n - 8; i += 8) {
		a = _mm_crc32_u64(a, take64(dst, src, i));
		b = _mm_crc32_u64(b, take64(dst, src, n + i));
		c = _mm_crc32_u64(c, take64(dst, src, 2 * n + i));
	}
	a = _mm_crc32_u64(a, take64(dst, src, i));
	b = _mm_crc32_u64(b, take64(dst, src, n + i));
	last = take64(dst, src, 2 * n + i);
	last ^= clmul32((uint32_t)a, far) ^ clmul32((uint32_t)b, near);
	return (uint32_t)_mm_crc32_u64(c, last);
}

/*
 * Block lengths are 2048 octets for long input, 336 so that 1 KiB is one group of three blocks, and
 * 64 for the remainder.
 */
INLINE SSE42 uint32_t sse42_crc_of_blocks(uint32_t crc, uint8_t *dst, const uint8_t *src,
					  size_t len)
{
	size_t i = 0;

	for (; len - i >= 3 * 2048; i += 3 * 2048)
		crc = crc_by_three_instruction_streams(crc, advance_copy_dest(dst, i), src + i,
						       2048, RX32_32735, RX32_16351);
	for (; len - i >= 3 * 336; i += 3 * 336)
		crc = crc_by_three_instruction_streams(crc, advance_copy_dest(dst, i), src + i, 336,
						       RX32_5343, RX32_2655);
	for (; len - i >= 3 * 64; i += 3 * 64)
		crc = crc_by_three_instruction_streams(crc, advance_copy_dest(dst, i), src + i, 64,
						       RX32_991, RX32_479);
	return crc_by_one_instruction_stream(crc, advance_copy_dest(dst, i), src + i, len - i);
}

static SSE42 uint32_t sse42_crc32c(uint32_t crc, const uint8_t *src, size_t len)
{
	return sse42_crc_of_blocks(crc, NULL, src, len);
}

static SSE42 NOT_NULL uint32_t sse42_copy_with_crc32c(uint32_t crc, uint8_t *restrict dst,
						      const uint8_t *restrict src, size_t len)
{
	return sse42_crc_of_blocks(crc, dst, src, len);
}

SSE42 uint32_t siw_crc32c_sse42_multiply(uint32_t a, uint32_t b)
{
	return (uint32_t)_mm_crc32_u64(0, clmul32(a, b));
}

bool siw_crc32c_sse42_usable(void)
{
	return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

const struct siw_crc32c_ops siw_crc32c_sse42 = {
	"sse42",
	siw_crc32c_sse42_usable,
	sse42_crc32c,
	sse42_copy_with_crc32c,
	siw_crc32c_sse42_multiply,
};
#endif
