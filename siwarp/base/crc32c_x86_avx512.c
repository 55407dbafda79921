/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/crc32c_x86_avx512.c - CRC32C on x86-64 CPUs with VPCLMULQDQ and AVX-512. */
#include "base/crc32c_impl.h"

#if SIW_CRC32C_X86
#include "base/crc32c_x86.h"

#define WIDE	      __attribute__((target("sse4.2,crc32,pclmul,avx512f,avx512vl,vpclmulqdq")))
#define K2(low, high) _mm512_broadcast_i32x4(_mm_set_epi64x((long long)(high), (long long)(low)))

typedef __m512i wide_t;
typedef __m512i factor_t;

INLINE WIDE wide_t load_and_copy(uint8_t *dst, const uint8_t *src, size_t i)
{
	wide_t v = _mm512_loadu_si512(src + i);

	if (dst)
		_mm512_storeu_si512(dst + i, v);
	return v;
}

INLINE WIDE wide_t xor_crc_into_vector(wide_t v, uint32_t crc)
{
	return _mm512_xor_si512(v, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
}

INLINE WIDE wide_t shift_accumulator_and_add(wide_t acc, factor_t k, wide_t data)
{
	return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(acc, k, 0x00),
					 _mm512_clmulepi64_epi128(acc, k, 0x11), data, 0x96);
}

/* The first three 128-bit lanes are shifted to the position of the fourth. */
INLINE WIDE uint32_t reduce_lanes_to_crc(__m512i z)
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

#define WIDE_OCTETS 64
#include "base/crc32c_x86_wide.h"

static bool avx512_usable(void)
{
	return siw_crc32c_sse42_usable() && __builtin_cpu_supports("avx512f") &&
	       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vpclmulqdq");
}

const struct siw_crc32c_ops siw_crc32c_avx512 = {
	"avx512", avx512_usable, wide_crc32c, wide_copy_with_crc32c, siw_crc32c_sse42_multiply,
};
#endif
