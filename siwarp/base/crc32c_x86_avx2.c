/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/crc32c_x86_avx2.c - CRC32C on x86-64 CPUs with VPCLMULQDQ and AVX2. */
#include "base/crc32c_impl.h"

#if SIW_CRC32C_X86
#include "base/crc32c_x86.h"

#define WIDE __attribute__((target("sse4.2,crc32,pclmul,avx2,vpclmulqdq")))
#define K2(low, high) \
	_mm256_broadcastsi128_si256(_mm_set_epi64x((long long)(high), (long long)(low)))

/* 64 octets in two registers, so that all distances are those of AVX-512. */
typedef struct {
	__m256i first, second;
} wide_t;
typedef __m256i factor_t;

INLINE WIDE __m256i load_and_copy_256_bits(uint8_t *dst, const uint8_t *src, size_t i)
{
	__m256i v = _mm256_loadu_si256((const __m256i_u *)(src + i));

	if (dst)
		_mm256_storeu_si256((__m256i_u *)(dst + i), v);
	return v;
}

INLINE WIDE wide_t load_and_copy(uint8_t *dst, const uint8_t *src, size_t i)
{
	wide_t v;

	v.first = load_and_copy_256_bits(dst, src, i);
	v.second = load_and_copy_256_bits(dst, src, i + 32);
	return v;
}

INLINE WIDE wide_t xor_crc_into_vector(wide_t v, uint32_t crc)
{
	v.first = _mm256_xor_si256(v.first, _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)crc)));
	return v;
}

INLINE WIDE __m256i shift_and_add_256(__m256i acc, factor_t k, __m256i data)
{
	data = _mm256_xor_si256(data, _mm256_clmulepi64_epi128(acc, k, 0x00));
	return _mm256_xor_si256(data, _mm256_clmulepi64_epi128(acc, k, 0x11));
}

INLINE WIDE wide_t shift_accumulator_and_add(wide_t acc, factor_t k, wide_t data)
{
	data.first = shift_and_add_256(acc.first, k, data.first);
	data.second = shift_and_add_256(acc.second, k, data.second);
	return data;
}

/*
 * The first register is shifted to the position of the second and added to it; then the first lane
 * of the sum is shifted to the position of the last lane and added to it.
 */
INLINE WIDE uint32_t reduce_lanes_to_crc(wide_t v)
{
	__m256i r = shift_and_add_256(v.first, K2(RX64_319, RX64_255), v.second);
	__m128i first = _mm256_castsi256_si128(r),
		k = _mm256_castsi256_si128(K2(RX64_191, RX64_127));
	__m128i x = _mm_xor_si128(_mm_clmulepi64_si128(first, k, 0x00),
				  _mm_clmulepi64_si128(first, k, 0x11));
	uint64_t c;

	x = _mm_xor_si128(x, _mm256_extracti128_si256(r, 1));
	c = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(x));
	return (uint32_t)_mm_crc32_u64(c, (uint64_t)_mm_extract_epi64(x, 1));
}

#define WIDE_OCTETS 64
#include "base/crc32c_x86_wide.h"

static bool avx2_usable(void)
{
	return siw_crc32c_sse42_usable() && __builtin_cpu_supports("avx2") &&
	       __builtin_cpu_supports("vpclmulqdq");
}

const struct siw_crc32c_ops siw_crc32c_avx2 = {
	"avx2", avx2_usable, wide_crc32c, wide_copy_with_crc32c, siw_crc32c_sse42_multiply,
};
#endif
