/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/crc32c_x86_wide.h - CRC32C with VPCLMULQDQ. crc32c_x86_avx512.c and crc32c_x86_avx2.c each
 * compile this file with their own instructions.
 *
 * Four accumulators of 64 octets each: a step multiplies them by x^2048 and adds the next 256
 * octets. At the end the four are combined into one, which crc32q reduces. The CPU can execute
 * crc32q beside the wide products, so long input is divided into blocks of which a part is computed
 * in the accumulators, and the rest at the same time in three streams of crc32q. With AVX-512 this
 * takes a third less time than the accumulators alone. Input that is also copied is not divided,
 * because crc32q would need a store for each 8 octets. Short input, and the octets that remain
 * after the last whole step, are processed as one stream of crc32q.
 *
 * The including file defines WIDE, the target of its functions; wide_t, 64 octets in registers; and
 * factor_t, K2(low, high): two factors for each 128-bit lane, where low applies to the word with
 * the higher powers and has the larger exponent. It also defines:
 *
 *	wide_t load_and_copy(uint8_t *dst, const uint8_t *src, size_t i)
 *		loads from src + i and, unless dst is NULL, stores at dst + i
 *	wide_t xor_crc_into_vector(wide_t v, uint32_t crc)
 *		adds the CRC of the preceding octets to the first octets
 *	wide_t shift_accumulator_and_add(wide_t acc, factor_t k, wide_t data)
 *		returns the accumulator, shifted by the distance that k encodes, plus data
 *	uint32_t reduce_lanes_to_crc(wide_t v)
 */
/*
 * Four separate members instead of an array: gcc 12 at -O2 keeps array elements in memory, which
 * reduces the speed by a quarter.
 */
struct wide4 {
	wide_t z0, z1, z2, z3;
};

INLINE WIDE struct wide4 load_and_copy_4(uint8_t *dst, const uint8_t *src, size_t i)
{
	struct wide4 a;

	a.z0 = load_and_copy(dst, src, i);
	a.z1 = load_and_copy(dst, src, i + 64);
	a.z2 = load_and_copy(dst, src, i + 128);
	a.z3 = load_and_copy(dst, src, i + 192);
	return a;
}

/* Combines the accumulators of four consecutive 64-octet groups into one. */
INLINE WIDE wide_t fold_four_accumulators(struct wide4 a)
{
	wide_t r = shift_accumulator_and_add(a.z0, K2(RX64_1599, RX64_1535), a.z3);

	r = shift_accumulator_and_add(a.z1, K2(RX64_1087, RX64_1023), r);
	return shift_accumulator_and_add(a.z2, K2(RX64_575, RX64_511), r);
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
INLINE WIDE uint32_t wide_crc_of_mixed_block(uint32_t crc, const uint8_t *src, const size_t steps,
					     uint64_t far, uint64_t middle, uint64_t near)
{
	const factor_t k256 = K2(RX64_2111, RX64_2047);
	const size_t n = steps * STREAM_STEP;
	const uint8_t *stream = src + 256 * steps;
	struct wide4 acc = load_and_copy_4(NULL, src, 0);
	uint64_t a = 0, b = 0, c = 0, last;

	acc.z0 = xor_crc_into_vector(acc.z0, crc);
	for (size_t i = 256; i < 256 * steps; i += 256, stream += STREAM_STEP) {
		struct wide4 d = load_and_copy_4(NULL, src, i);

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
INLINE WIDE uint32_t wide_crc_of_long_input(uint32_t crc, uint8_t *dst, const uint8_t *src,
					    size_t len)
{
	const factor_t k64 = K2(RX64_575, RX64_511);
	wide_t acc;
	size_t i;

	if (len >= 256) {
		const factor_t k256 = K2(RX64_2111, RX64_2047);
		struct wide4 a = load_and_copy_4(dst, src, 0);

		a.z0 = xor_crc_into_vector(a.z0, crc);
		for (i = 256; len - i >= 256; i += 256) {
			struct wide4 d = load_and_copy_4(dst, src, i);

			a.z0 = shift_accumulator_and_add(a.z0, k256, d.z0);
			a.z1 = shift_accumulator_and_add(a.z1, k256, d.z1);
			a.z2 = shift_accumulator_and_add(a.z2, k256, d.z2);
			a.z3 = shift_accumulator_and_add(a.z3, k256, d.z3);
		}
		acc = fold_four_accumulators(a);
	} else {
		acc = xor_crc_into_vector(load_and_copy(dst, src, 0), crc);
		i = 64;
	}
	for (; len - i >= 64; i += 64)
		acc = shift_accumulator_and_add(acc, k64, load_and_copy(dst, src, i));
	return crc_by_one_instruction_stream(reduce_lanes_to_crc(acc), advance_copy_dest(dst, i),
					     src + i, len - i);
}

/* Separate functions, so that short input does not incur the saving of wide registers. */
static WIDE __attribute__((noinline)) uint32_t wide_sum_long(uint32_t crc, const uint8_t *src,
							     size_t len)
{
	size_t i = 0;

	for (; len - i >= MIXED_OCTETS(LONG_STEPS); i += MIXED_OCTETS(LONG_STEPS))
		crc = wide_crc_of_mixed_block(crc, src + i, LONG_STEPS, RX32_30687, RX32_20447,
					      RX32_10207);
	for (; len - i >= MIXED_OCTETS(SHORT_STEPS); i += MIXED_OCTETS(SHORT_STEPS))
		crc = wide_crc_of_mixed_block(crc, src + i, SHORT_STEPS, RX32_7647, RX32_5087,
					      RX32_2527);
	if (len - i < FOLD_MIN)
		return crc_by_one_instruction_stream(crc, NULL, src + i, len - i);
	return wide_crc_of_long_input(crc, NULL, src + i, len - i);
}

static WIDE NOT_NULL __attribute__((noinline)) uint32_t
wide_copy_long(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t len)
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
	return wide_crc_of_long_input(crc, dst, src, len);
}

static SSE42 uint32_t wide_crc32c(uint32_t crc, const uint8_t *src, size_t len)
{
	if (len >= FOLD_MIN)
		return wide_sum_long(crc, src, len);
	return crc_by_one_instruction_stream(crc, NULL, src, len);
}

static SSE42 NOT_NULL uint32_t wide_copy_with_crc32c(uint32_t crc, uint8_t *restrict dst,
						     const uint8_t *restrict src, size_t len)
{
	if (len >= FOLD_MIN)
		return wide_copy_long(crc, dst, src, len);
	return crc_by_one_instruction_stream(crc, dst, src, len);
}
