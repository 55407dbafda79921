/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/crc32c_x86.c - CRC32C on x86-64.
 *
 *  sse42:  crc32q has a latency of 3 cycles and a throughput of 1 per cycle. Three streams are
 *          therefore computed in parallel over three adjacent blocks, and two carry-less products
 *          shift the first two results into position.
 *  avx512: four 64-octet accumulators. Each step multiplies them by x^2048 and adds the next
 *          256 octets. At the end the four are combined into one, which crc32q reduces. The CPU
 *          can execute crc32q beside the wide products, so long input is divided into blocks of
 *          which a part is computed in the accumulators, and the rest at the same time in three
 *          streams of crc32q. This takes a third less time than the accumulators alone, but not
 *          if the octets are also copied, because the stores of 8 octets take too long.
 * Both process short input, and a short remainder, as one stream of crc32q.
 *
 * Polynomials are bit-reflected: bit i of a w-bit word is the coefficient of x^(w-1-i), so the
 * first octet holds the highest powers. The carry-less product of two such words is the product of
 * the polynomials times x, which is why the exponents are odd. To shift an accumulator by D bits,
 * its low half (the higher powers) is multiplied by x^(D+64-1) and its high half by x^(D-1). To
 * shift a 32-bit CRC by n octets, it is multiplied by x^(8n-33), because the crc32q that reduces
 * the product adds another 32.
 */
#include <string.h>

#include "base/crc32c_impl.h"

#if SIW_CRC32C_X86
#include <immintrin.h>

/*
 * RXw_n is x^n mod P as a reflected word of w bits. A test recomputes each constant from its name.
 */
#define RX64_2111  0xe9a5d8be00000000ull
#define RX64_2047  0x1426a81500000000ull
#define RX64_1599  0x7ccbbbf200000000ull
#define RX64_1535  0x31c9460800000000ull
#define RX64_1087  0x6577b24500000000ull
#define RX64_1023  0x7417153f00000000ull
#define RX64_575   0x1c19243b00000000ull
#define RX64_511   0x75bba45b00000000ull
#define RX64_447   0xa46ef4aa00000000ull
#define RX64_383   0x6051243f00000000ull
#define RX64_319   0x33ccbbbc00000000ull
#define RX64_255   0xa2158b3400000000ull
#define RX64_191   0x3743f7bd00000000ull
#define RX64_127   0x3171d43000000000ull
#define RX32_32735 0x82f89c77ull
#define RX32_30687 0x23d5e7e5ull
#define RX32_20447 0x22c3799full
#define RX32_16351 0xa51b6135ull
#define RX32_10207 0xdd66cbbbull
#define RX32_7647  0x3771e98full
#define RX32_5343  0xcec3662eull
#define RX32_5087  0x6b749fb2ull
#define RX32_2655  0xa60ce07bull
#define RX32_2527  0xbac2fd7bull
#define RX32_991   0x0d3b6092ull
#define RX32_479   0x9e4addf8ull

#define SSE42  __attribute__((target("sse4.2,crc32,pclmul")))
#define AVX512 __attribute__((target("sse4.2,crc32,pclmul,avx512f,avx512vl,vpclmulqdq")))
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

static SSE42 uint32_t sse42_multiply(uint32_t a, uint32_t b)
{
	return (uint32_t)_mm_crc32_u64(0, clmul32(a, b));
}

static bool sse42_usable(void)
{
	return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

const struct siw_crc32c_ops siw_crc32c_sse42 = {
	"sse42", sse42_usable, sse42_crc32c, sse42_copy_with_crc32c, sse42_multiply,
};

INLINE AVX512 __m512i load_and_copy_512(uint8_t *dst, const uint8_t *src, size_t i)
{
	__m512i v = _mm512_loadu_si512(src + i);

	if (dst)
		_mm512_storeu_si512(dst + i, v);
	return v;
}

/*
 * Returns the accumulator acc, shifted by the distance that the constants in k encode, plus data.
 */
INLINE AVX512 __m512i shift_accumulator_and_add(__m512i acc, __m512i k, __m512i data)
{
	return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(acc, k, 0x00),
					 _mm512_clmulepi64_epi128(acc, k, 0x11), data, 0x96);
}

/*
 * In each 128-bit lane, low applies to the word with the higher powers and has the larger exponent.
 */
#define K2(low, high) _mm512_broadcast_i32x4(_mm_set_epi64x((long long)(high), (long long)(low)))

/*
 * Four separate members instead of an array: gcc 12 at -O2 keeps array elements in memory, which
 * reduces the speed by a quarter.
 */
struct zmm4 {
	__m512i z0, z1, z2, z3;
};

INLINE AVX512 struct zmm4 load_and_copy_4x512(uint8_t *dst, const uint8_t *src, size_t i)
{
	struct zmm4 a;

	a.z0 = load_and_copy_512(dst, src, i);
	a.z1 = load_and_copy_512(dst, src, i + 64);
	a.z2 = load_and_copy_512(dst, src, i + 128);
	a.z3 = load_and_copy_512(dst, src, i + 192);
	return a;
}

/* Combines the accumulators of four consecutive 64-octet groups into one. */
INLINE AVX512 __m512i fold_four_accumulators(struct zmm4 a)
{
	__m512i r = shift_accumulator_and_add(a.z0, K2(RX64_1599, RX64_1535), a.z3);

	r = shift_accumulator_and_add(a.z1, K2(RX64_1087, RX64_1023), r);
	return shift_accumulator_and_add(a.z2, K2(RX64_575, RX64_511), r);
}

/*
 * Reduces four 128-bit lanes to a 32-bit CRC: the first three lanes are shifted to the position of
 * the fourth.
 */
INLINE AVX512 uint32_t reduce_lanes_to_crc(__m512i z)
{
	const __m512i k = _mm512_set_epi64(0, 0, (long long)RX64_127, (long long)RX64_191,
					   (long long)RX64_255, (long long)RX64_319,
					   (long long)RX64_383, (long long)RX64_447);
	__m512i r = shift_accumulator_and_add(z, k, _mm512_maskz_mov_epi64(0xc0, z));
	__m256i h = _mm256_xor_si256(_mm512_castsi512_si256(r), _mm512_extracti64x4_epi64(r, 1));
	__m128i x = _mm_xor_si128(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
	uint64_t c = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(x));

	return (uint32_t)_mm_crc32_u64(c, (uint64_t)_mm_extract_epi64(x, 1));
}

/*
 * A mixed block: its first 256 * steps octets are computed in the accumulators, the others in three
 * streams of crc32q, 40 octets of each in a step. Two sizes, as for the blocks of crc32q.
 */
#define STREAM_STEP	    40
#define MIXED_OCTETS(steps) ((size_t)(steps) * (256 + 3 * STREAM_STEP))
#define LONG_STEPS	    32
#define SHORT_STEPS	    8

/* Continues three streams, n octets apart, over the next octets of each, up to `octets`. */
#define CONTINUE_STREAMS(octets)                                         \
	_Pragma("GCC unroll 5") for (size_t j = 0; j < (octets); j += 8) \
	{                                                                \
		a = _mm_crc32_u64(a, take64(NULL, stream, j));           \
		b = _mm_crc32_u64(b, take64(NULL, stream, n + j));       \
		c = _mm_crc32_u64(c, take64(NULL, stream, 2 * n + j));   \
	}

/*
 * Computes the CRC of a mixed block. far, middle and near are the constants that shift a CRC by the
 * octets of three streams, of two, and of one.
 */
INLINE AVX512 uint32_t avx512_crc_of_mixed_block(uint32_t crc, const uint8_t *src,
						 const size_t steps, uint64_t far, uint64_t middle,
						 uint64_t near)
{
	const __m512i k256 = K2(RX64_2111, RX64_2047);
	const size_t n = steps * STREAM_STEP;
	const uint8_t *stream = src + 256 * steps;
	struct zmm4 acc = load_and_copy_4x512(NULL, src, 0);
	uint64_t a = 0, b = 0, c = 0, last;

	acc.z0 = _mm512_xor_si512(acc.z0, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
	for (size_t i = 256; i < 256 * steps; i += 256, stream += STREAM_STEP) {
		struct zmm4 d = load_and_copy_4x512(NULL, src, i);

		acc.z0 = shift_accumulator_and_add(acc.z0, k256, d.z0);
		acc.z1 = shift_accumulator_and_add(acc.z1, k256, d.z1);
		acc.z2 = shift_accumulator_and_add(acc.z2, k256, d.z2);
		acc.z3 = shift_accumulator_and_add(acc.z3, k256, d.z3);
		CONTINUE_STREAMS(STREAM_STEP);
	}
	CONTINUE_STREAMS(STREAM_STEP - 8);
	a = _mm_crc32_u64(a, take64(NULL, stream, STREAM_STEP - 8));
	b = _mm_crc32_u64(b, take64(NULL, stream, n + STREAM_STEP - 8));
	last = take64(NULL, stream, 2 * n + STREAM_STEP - 8);
	last ^= clmul32(reduce_lanes_to_crc(fold_four_accumulators(acc)), far);
	last ^= clmul32((uint32_t)a, middle) ^ clmul32((uint32_t)b, near);
	return (uint32_t)_mm_crc32_u64(c, last);
}

/* Minimum length in octets at which folding is faster than one stream. */
#define FOLD_MIN 128

/*
 * Minimum length in octets at which aligned stores gain more than processing the unaligned head
 * separately costs.
 */
#define ALIGN_MIN 2048

/* Computes the CRC of len octets, at least 64, in the accumulators alone. */
INLINE AVX512 uint32_t avx512_crc_of_long_input(uint32_t crc, uint8_t *dst, const uint8_t *src,
						size_t len)
{
	const __m512i init = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc));
	const __m512i k64 = K2(RX64_575, RX64_511);
	__m512i acc;
	size_t i;

	if (len >= 256) {
		const __m512i k256 = K2(RX64_2111, RX64_2047);
		struct zmm4 a = load_and_copy_4x512(dst, src, 0);

		a.z0 = _mm512_xor_si512(a.z0, init);
		for (i = 256; len - i >= 256; i += 256) {
			struct zmm4 d = load_and_copy_4x512(dst, src, i);

			a.z0 = shift_accumulator_and_add(a.z0, k256, d.z0);
			a.z1 = shift_accumulator_and_add(a.z1, k256, d.z1);
			a.z2 = shift_accumulator_and_add(a.z2, k256, d.z2);
			a.z3 = shift_accumulator_and_add(a.z3, k256, d.z3);
		}
		acc = fold_four_accumulators(a);
	} else {
		acc = _mm512_xor_si512(load_and_copy_512(dst, src, 0), init);
		i = 64;
	}
	for (; len - i >= 64; i += 64)
		acc = shift_accumulator_and_add(acc, k64, load_and_copy_512(dst, src, i));
	return crc_by_one_instruction_stream(reduce_lanes_to_crc(acc), advance_copy_dest(dst, i),
					     src + i, len - i);
}

/* Separate functions, so that short input does not incur the saving of wide registers. */
static AVX512 __attribute__((noinline)) uint32_t avx512_sum_long(uint32_t crc, const uint8_t *src,
								 size_t len)
{
	size_t i = 0;

	for (; len - i >= MIXED_OCTETS(LONG_STEPS); i += MIXED_OCTETS(LONG_STEPS))
		crc = avx512_crc_of_mixed_block(crc, src + i, LONG_STEPS, RX32_30687, RX32_20447,
						RX32_10207);
	for (; len - i >= MIXED_OCTETS(SHORT_STEPS); i += MIXED_OCTETS(SHORT_STEPS))
		crc = avx512_crc_of_mixed_block(crc, src + i, SHORT_STEPS, RX32_7647, RX32_5087,
						RX32_2527);
	if (len - i < FOLD_MIN)
		return crc_by_one_instruction_stream(crc, NULL, src + i, len - i);
	return avx512_crc_of_long_input(crc, NULL, src + i, len - i);
}

static AVX512 NOT_NULL __attribute__((noinline)) uint32_t
avx512_copy_long(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t len)
{
	/*
	 * A store that crosses a cache line takes a quarter longer. Processing the octets before
	 * the first line boundary separately costs less.
	 */
	if (len >= ALIGN_MIN) {
		size_t head = -(uintptr_t)dst % 64;

		crc = crc_by_one_instruction_stream(crc, dst, src, head);
		dst += head;
		src += head;
		len -= head;
	}
	return avx512_crc_of_long_input(crc, dst, src, len);
}

static SSE42 uint32_t avx512_crc32c(uint32_t crc, const uint8_t *src, size_t len)
{
	if (len >= FOLD_MIN)
		return avx512_sum_long(crc, src, len);
	return crc_by_one_instruction_stream(crc, NULL, src, len);
}

static SSE42 NOT_NULL uint32_t avx512_copy_with_crc32c(uint32_t crc, uint8_t *restrict dst,
						       const uint8_t *restrict src, size_t len)
{
	if (len >= FOLD_MIN)
		return avx512_copy_long(crc, dst, src, len);
	return crc_by_one_instruction_stream(crc, dst, src, len);
}

static bool avx512_usable(void)
{
	return sse42_usable() && __builtin_cpu_supports("avx512f") &&
	       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vpclmulqdq");
}

const struct siw_crc32c_ops siw_crc32c_avx512 = {
	"avx512", avx512_usable, avx512_crc32c, avx512_copy_with_crc32c, sse42_multiply,
};
#endif
