/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/crc32c_x86_wide.h - CRC32C with carry-less products in vector registers, beside crc32q.
 * crc32c_x86_avx512.c, crc32c_x86_avx2.c and crc32c_x86_avx.c each compile this file with their own
 * instructions.
 *
 * Four accumulators: a step shifts each by the octets of four accumulators and adds the next octets
 * of the input. At the end the four are combined into one, which crc32q reduces. The CPU can
 * execute crc32q beside the products, so long input is divided into blocks of which a part is
 * computed in the accumulators, and the rest at the same time in three streams of crc32q. With
 * AVX-512 this takes a third less time than the accumulators alone. Input that is also copied is
 * not divided, because crc32q would need a store for each 8 octets. Short input, and the octets that
 * remain after the last whole step, are processed as one stream of crc32q.
 *
 * The including file defines WIDE, the target attribute of its functions; wide_t, an accumulator in
 * one or more registers; WIDE_OCTETS, the size of wide_t in octets, 64 or 32; and factor_t and
 * K2(low, high), two factors for each 128-bit lane, where low applies to the word with the higher
 * powers and has the larger exponent. It also defines:
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
 * SHIFT_n: the factors that shift an accumulator by the octets of n accumulators. STREAM_STEP: the
 * octets of each stream of crc32q that are computed while four accumulators are shifted.
 * LONG_STEPS, SHORT_STEPS: the number of steps of the blocks; LONG_SHIFTS, SHORT_SHIFTS: the
 * constants that shift a CRC by the octets of three streams of a block, of two, and of one.
 */
#if WIDE_OCTETS == 64
#define SHIFT_1	     K2(RX64_575, RX64_511)
#define SHIFT_2	     K2(RX64_1087, RX64_1023)
#define SHIFT_3	     K2(RX64_1599, RX64_1535)
#define SHIFT_4	     K2(RX64_2111, RX64_2047)
#define STREAM_STEP  40
#define LONG_STEPS   32
#define LONG_SHIFTS  RX32_30687, RX32_20447, RX32_10207
#define SHORT_STEPS  8
#define SHORT_SHIFTS RX32_7647, RX32_5087, RX32_2527
#else
#define SHIFT_1	     K2(RX64_319, RX64_255)
#define SHIFT_2	     K2(RX64_575, RX64_511)
#define SHIFT_3	     K2(RX64_831, RX64_767)
#define SHIFT_4	     K2(RX64_1087, RX64_1023)
#define STREAM_STEP  48
#define LONG_STEPS   32
#define LONG_SHIFTS  RX32_36831, RX32_24543, RX32_12255
#define SHORT_STEPS  4
#define SHORT_SHIFTS RX32_4575, RX32_3039, RX32_1503
#endif

/*
 * Four separate members instead of an array: gcc 12 at -O2 keeps array elements in memory, which
 * reduces the speed by a quarter.
 */
struct wide4 {
	wide_t z0, z1, z2, z3;
};

#define ONE  WIDE_OCTETS /* octets of an accumulator */
#define FOUR ((size_t)4 * WIDE_OCTETS)

INLINE WIDE struct wide4 load_and_copy_4(uint8_t *dst, const uint8_t *src, size_t i)
{
	struct wide4 a;

	a.z0 = load_and_copy(dst, src, i);
	a.z1 = load_and_copy(dst, src, i + ONE);
	a.z2 = load_and_copy(dst, src, i + 2 * ONE);
	a.z3 = load_and_copy(dst, src, i + 3 * ONE);
	return a;
}

/* Shifts the accumulators by the octets of all four and adds d. */
INLINE WIDE void shift_4_and_add(struct wide4 *acc, struct wide4 d)
{
	const factor_t k = SHIFT_4;

	acc->z0 = shift_accumulator_and_add(acc->z0, k, d.z0);
	acc->z1 = shift_accumulator_and_add(acc->z1, k, d.z1);
	acc->z2 = shift_accumulator_and_add(acc->z2, k, d.z2);
	acc->z3 = shift_accumulator_and_add(acc->z3, k, d.z3);
}

/* Combines four accumulators of consecutive octets into one. */
INLINE WIDE wide_t fold_four_accumulators(struct wide4 a)
{
	wide_t r = shift_accumulator_and_add(a.z0, SHIFT_3, a.z3);

	r = shift_accumulator_and_add(a.z1, SHIFT_2, r);
	return shift_accumulator_and_add(a.z2, SHIFT_1, r);
}

/*
 * A mixed block: its first FOUR * steps octets are computed in the accumulators, the others in
 * three streams of crc32q, STREAM_STEP octets of each in a step. Two sizes, as for the blocks of
 * crc32q.
 */
#define MIXED_OCTETS(steps) ((size_t)(steps) * (FOUR + 3 * STREAM_STEP))

/* Continues three streams, n octets apart, over the next octets of each, up to `octets`. */
#define CONTINUE_STREAMS(octets)                                         \
	_Pragma("GCC unroll 6") for (size_t j = 0; j < (octets); j += 8) \
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
	const size_t n = steps * STREAM_STEP;
	const uint8_t *stream = src + FOUR * steps;
	struct wide4 acc = load_and_copy_4(NULL, src, 0);
	uint64_t a = 0, b = 0, c = 0, last;

	acc.z0 = xor_crc_into_vector(acc.z0, crc);
	for (size_t i = FOUR; i < FOUR * steps; i += FOUR, stream += STREAM_STEP) {
		shift_4_and_add(&acc, load_and_copy_4(NULL, src, i));
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

/* Computes the CRC of at least ONE octets in the accumulators alone. */
INLINE WIDE uint32_t wide_crc_in_accumulators(uint32_t crc, uint8_t *dst, const uint8_t *src,
					      size_t len)
{
	wide_t acc;
	size_t i;

	if (len >= FOUR) {
		struct wide4 a = load_and_copy_4(dst, src, 0);

		a.z0 = xor_crc_into_vector(a.z0, crc);
		for (i = FOUR; len - i >= FOUR; i += FOUR)
			shift_4_and_add(&a, load_and_copy_4(dst, src, i));
		acc = fold_four_accumulators(a);
	} else {
		acc = xor_crc_into_vector(load_and_copy(dst, src, 0), crc);
		i = ONE;
	}
	for (; len - i >= ONE; i += ONE)
		acc = shift_accumulator_and_add(acc, SHIFT_1, load_and_copy(dst, src, i));
	return crc_by_one_instruction_stream(reduce_lanes_to_crc(acc), advance_copy_dest(dst, i),
					     src + i, len - i);
}

/* Separate functions, so that short input does not incur the saving of wide registers. */
static WIDE __attribute__((noinline)) uint32_t wide_sum_long(uint32_t crc, const uint8_t *src,
							     size_t len)
{
	size_t i = 0;

	for (; len - i >= MIXED_OCTETS(LONG_STEPS); i += MIXED_OCTETS(LONG_STEPS))
		crc = wide_crc_of_mixed_block(crc, src + i, LONG_STEPS, LONG_SHIFTS);
	for (; len - i >= MIXED_OCTETS(SHORT_STEPS); i += MIXED_OCTETS(SHORT_STEPS))
		crc = wide_crc_of_mixed_block(crc, src + i, SHORT_STEPS, SHORT_SHIFTS);
	if (len - i < FOLD_MIN)
		return crc_by_one_instruction_stream(crc, NULL, src + i, len - i);
	return wide_crc_in_accumulators(crc, NULL, src + i, len - i);
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
	return wide_crc_in_accumulators(crc, dst, src, len);
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
