/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/crc32c_x86.h - what the crc32c_x86*.c files share: constants, one stream of crc32q, and the
 * multiplication of a CRC.
 *
 * Polynomials are bit-reflected: bit i of a w-bit word is the coefficient of x^(w-1-i), so the
 * first octet holds the highest powers. The carry-less product of two such words is the product of
 * the polynomials times x, which is why the exponents are odd. To shift an accumulator by D bits,
 * its low half (the higher powers) is multiplied by x^(D+64-1) and its high half by x^(D-1). To
 * shift a 32-bit CRC by n octets, it is multiplied by x^(8n-33), because the crc32q that reduces
 * the product adds another 32.
 */
#ifndef SIW_BASE_CRC32C_X86_H
#define SIW_BASE_CRC32C_X86_H

#include <immintrin.h>
#include <string.h>

#include "base/crc32c_impl.h"

/*
 * RXw_n is x^n mod P as a reflected word of w bits. A test recomputes each constant from its name.
 */
#define RX64_2111  0xe9a5d8be00000000ull
#define RX64_2047  0x1426a81500000000ull
#define RX64_1599  0x7ccbbbf200000000ull
#define RX64_1535  0x31c9460800000000ull
#define RX64_1087  0x6577b24500000000ull
#define RX64_1023  0x7417153f00000000ull
#define RX64_831   0xc92f998d00000000ull
#define RX64_767   0x3365346a00000000ull
#define RX64_575   0x1c19243b00000000ull
#define RX64_511   0x75bba45b00000000ull
#define RX64_447   0xa46ef4aa00000000ull
#define RX64_383   0x6051243f00000000ull
#define RX64_319   0x33ccbbbc00000000ull
#define RX64_255   0xa2158b3400000000ull
#define RX64_191   0x3743f7bd00000000ull
#define RX64_127   0x3171d43000000000ull
#define RX32_36831 0x005bb964ull
#define RX32_32735 0x82f89c77ull
#define RX32_30687 0x23d5e7e5ull
#define RX32_24543 0x359674f7ull
#define RX32_20447 0x22c3799full
#define RX32_16351 0xa51b6135ull
#define RX32_12255 0x9ef68d35ull
#define RX32_10207 0xdd66cbbbull
#define RX32_7647  0x3771e98full
#define RX32_5343  0xcec3662eull
#define RX32_5087  0x6b749fb2ull
#define RX32_4575  0x271d9844ull
#define RX32_3039  0xd270f1a2ull
#define RX32_2655  0xa60ce07bull
#define RX32_2527  0xbac2fd7bull
#define RX32_1503  0xab7aff2aull
#define RX32_991   0x0d3b6092ull
#define RX32_479   0x9e4addf8ull

#define SSE42  __attribute__((target("sse4.2,crc32,pclmul")))
#define INLINE static inline __attribute__((always_inline))

/*
 * Each function after this macro is compiled twice: with dst NULL it only computes the CRC;
 * otherwise it also copies src to dst. Inlining makes dst a constant NULL in one instance; in the
 * other, NOT_NULL tells the compiler that dst is not NULL.
 */
#define NOT_NULL __attribute__((nonnull))

/*
 * Defines a function that loads a value of type from src + i and, unless dst is NULL, stores it at
 * dst + i.
 */
#define DEFINE_TAKE(type, name)                                      \
	INLINE type name(uint8_t *dst, const uint8_t *src, size_t i) \
	{                                                            \
		type v;                                              \
                                                                     \
		memcpy(&v, src + i, sizeof(v));                      \
		if (dst)                                             \
			memcpy(dst + i, &v, sizeof(v));              \
		return v;                                            \
	}
DEFINE_TAKE(uint64_t, take64)
DEFINE_TAKE(uint32_t, take32)
DEFINE_TAKE(uint16_t, take16)
DEFINE_TAKE(uint8_t, take8)

INLINE uint8_t *advance_copy_dest(uint8_t *dst, size_t i)
{
	return dst ? dst + i : NULL;
}

/*
 * Computes the CRC with one stream of crc32q instructions, the fastest method for less than about
 * 100 octets.
 */
INLINE SSE42 uint32_t crc_by_one_instruction_stream(uint32_t crc, uint8_t *dst, const uint8_t *src,
						    size_t len)
{
	uint64_t c = crc;
	size_t i = 0;

	for (; i + 8 <= len; i += 8)
		c = _mm_crc32_u64(c, take64(dst, src, i));
	crc = (uint32_t)c;
	if (len & 4) {
		crc = _mm_crc32_u32(crc, take32(dst, src, i));
		i += 4;
	}
	if (len & 2) {
		crc = _mm_crc32_u16(crc, take16(dst, src, i));
		i += 2;
	}
	if (len & 1)
		crc = _mm_crc32_u8(crc, take8(dst, src, i));
	return crc;
}

INLINE SSE42 uint64_t clmul32(uint32_t crc, uint64_t k)
{
	__m128i r = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)crc),
					 _mm_cvtsi64_si128((long long)k), 0);

	return (uint64_t)_mm_cvtsi128_si64(r);
}

/*
 * siw_crc32c_sse42_usable() returns whether the CPU has the instructions that every implementation
 * for x86 needs. siw_crc32c_sse42_multiply() is the member multiply of struct siw_crc32c_ops of
 * every implementation for x86.
 */
bool siw_crc32c_sse42_usable(void);
uint32_t siw_crc32c_sse42_multiply(uint32_t a, uint32_t b);

#endif
