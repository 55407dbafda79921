/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/crc32c_x86_avx.c - CRC32C on x86-64 CPUs with AVX but without VPCLMULQDQ. */
#include "base/crc32c_impl.h"

#if SIW_CRC32C_X86
#include "base/crc32c_x86.h"

/* AVX is used for its instructions with three operands; the registers have 128 bits. */
#define WIDE	      __attribute__((target("sse4.2,crc32,pclmul,avx")))
#define K2(low, high) _mm_set_epi64x((long long)(high), (long long)(low))

typedef struct {
	__m128i first, second;
} wide_t;
typedef __m128i factor_t;

INLINE WIDE __m128i load_and_copy_128_bits(uint8_t *dst, const uint8_t *src, size_t i)
{
	__m128i v = _mm_loadu_si128((const __m128i_u *)(src + i));

	if (dst)
		_mm_storeu_si128((__m128i_u *)(dst + i), v);
	return v;
}

INLINE WIDE wide_t load_and_copy(uint8_t *dst, const uint8_t *src, size_t i)
{
	wide_t v;

	v.first = load_and_copy_128_bits(dst, src, i);
	v.second = load_and_copy_128_bits(dst, src, i + 16);
	return v;
}

INLINE WIDE wide_t xor_crc_into_vector(wide_t v, uint32_t crc)
{
	v.first = _mm_xor_si128(v.first, _mm_cvtsi32_si128((int)crc));
	return v;
}

INLINE WIDE __m128i shift_and_add_128(__m128i acc, factor_t k, __m128i data)
{
	data = _mm_xor_si128(data, _mm_clmulepi64_si128(acc, k, 0x00));
	return _mm_xor_si128(data, _mm_clmulepi64_si128(acc, k, 0x11));
}

INLINE WIDE wide_t shift_accumulator_and_add(wide_t acc, factor_t k, wide_t data)
{
	data.first = shift_and_add_128(acc.first, k, data.first);
	data.second = shift_and_add_128(acc.second, k, data.second);
	return data;
}

INLINE WIDE uint32_t reduce_lanes_to_crc(wide_t v)
{
	__m128i x = shift_and_add_128(v.first, K2(RX64_191, RX64_127), v.second);
	uint64_t c = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(x));

	return (uint32_t)_mm_crc32_u64(c, (uint64_t)_mm_extract_epi64(x, 1));
}

#define WIDE_OCTETS 32
#include "base/crc32c_x86_wide.h"

static bool avx_usable(void)
{
	return siw_crc32c_sse42_usable() && __builtin_cpu_supports("avx");
}

const struct siw_crc32c_ops siw_crc32c_avx = {
	"avx", avx_usable, wide_crc32c, wide_copy_with_crc32c, siw_crc32c_sse42_multiply,
};
#endif
