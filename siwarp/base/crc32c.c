/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/crc32c.c - selects the CRC32C implementation; contains the portable implementation. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/crc32c_impl.h"

/* Slicing by 8: table[k][b] is the contribution of octet b followed by k octets. */
static uint32_t table[8][256];

#define POLY_REFLECTED 0x82f63b78u
#define ORDER_OF_X     0x7fffffffu /* the least n with x^n = 1 mod P */

static void crc_table_init(void)
{
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t c = b;

		for (int i = 0; i < 8; i++)
			c = (c >> 1) ^ (c & 1 ? POLY_REFLECTED : 0);
		table[0][b] = c;
	}
	for (int k = 1; k < 8; k++)
		for (int b = 0; b < 256; b++)
			table[k][b] = (table[k - 1][b] >> 8) ^ table[0][table[k - 1][b] & 0xff];
}

/* Loads 32 bits in little-endian order on every CPU. Compilers generate a single load. */
static inline uint32_t load32(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t crc_by_table(uint32_t crc, const uint8_t *p, size_t len)
{
	for (; len >= 8; p += 8, len -= 8) {
		uint32_t a = crc ^ load32(p);
		uint32_t b = load32(p + 4);

		crc = table[7][a & 0xff] ^ table[6][a >> 8 & 0xff] ^ table[5][a >> 16 & 0xff] ^
		      table[4][a >> 24] ^ table[3][b & 0xff] ^ table[2][b >> 8 & 0xff] ^
		      table[1][b >> 16 & 0xff] ^ table[0][b >> 24];
	}
	while (len--)
		crc = (crc >> 8) ^ table[0][(crc ^ *p++) & 0xff];
	return crc;
}

static uint32_t copy_with_crc_by_table(uint32_t crc, uint8_t *restrict dst,
				       const uint8_t *restrict src, size_t len)
{
	if (len) /* memcpy() must not be passed NULL, even for 0 octets */
		memcpy(dst, src, len);
	return crc_by_table(crc, src, len);
}

static bool crc_by_table_usable(void)
{
	return true;
}

/* Multiplies two polynomials mod P: bit i of a word is the coefficient of x^(31-i). */
static uint32_t multiply_polynomials_mod_p(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (int i = 0; i < 32; i++) {
		product ^= b & -(a >> 31);
		a <<= 1;
		b = (b >> 1) ^ (POLY_REFLECTED & -(b & 1));
	}
	return product;
}

/* power_of_x[k] is x^(2^k) mod P. */
static uint32_t power_of_x[31];

static void power_table_init(void)
{
	power_of_x[0] = 1u << 30;
	for (int k = 1; k < 31; k++)
		power_of_x[k] = multiply_polynomials_mod_p(power_of_x[k - 1], power_of_x[k - 1]);
}

/* Returns x^n mod P. */
static uint32_t x_to_power(uint64_t n)
{
	uint32_t product = 1u << 31;

	n %= ORDER_OF_X;
	for (int k = 0; n; n >>= 1, k++)
		if (n & 1)
			product = multiply_polynomials_mod_p(product, power_of_x[k]);
	return product;
}

uint32_t siw_crc32c_multiply_by_table(uint32_t a, uint32_t b)
{
	return multiply_polynomials_mod_p(multiply_polynomials_mod_p(a, b), x_to_power(33));
}

static const struct siw_crc32c_ops siw_crc32c_table = {
	"table",
	crc_by_table_usable,
	crc_by_table,
	copy_with_crc_by_table,
	siw_crc32c_multiply_by_table,
};

/* The implementations of CRC32C, the fastest first. */
static const struct siw_crc32c_ops *const all[] = {
#if SIW_CRC32C_X86
	&siw_crc32c_avx512, &siw_crc32c_avx2, &siw_crc32c_avx, &siw_crc32c_sse42,
#elif SIW_CRC32C_ARM
	&siw_crc32c_armv8,
#endif
	&siw_crc32c_table,
};
#define N_ALL ((int)(sizeof(all) / sizeof(all[0])))

/*
 * The implementation of CRC32C in use. Written when the library is loaded, before a second thread
 * exists, and by tests. Relaxed order suffices because the pointer refers to constants.
 */
static const struct siw_crc32c_ops *_Atomic chosen;

__attribute__((constructor(101))) static void choose(void)
{
	int i = 0;

#if SIW_CRC32C_X86
	__builtin_cpu_init();
#endif
	crc_table_init();
	power_table_init();
	while (!all[i]->usable())
		i++;
	atomic_store_explicit(&chosen, all[i], memory_order_relaxed);
}

static inline const struct siw_crc32c_ops *crc32c_ops(void)
{
	return atomic_load_explicit(&chosen, memory_order_relaxed);
}

uint32_t siw_crc32c(uint32_t crc, const void *buf, size_t len)
{
	return ~crc32c_ops()->sum(~crc, buf, len);
}

uint32_t siw_crc32c_copy(uint32_t crc, void *dst, const void *src, size_t len)
{
	return ~crc32c_ops()->copy(~crc, dst, src, len);
}

uint32_t siw_crc32c_iov(uint32_t crc, const struct iovec *iov, int n)
{
	const struct siw_crc32c_ops *o = crc32c_ops();

	crc = ~crc;
	for (int i = 0; i < n; i++)
		crc = o->sum(crc, iov[i].iov_base, iov[i].iov_len);
	return ~crc;
}

uint32_t siw_crc32c_shift_factor(size_t len)
{
	return x_to_power(8 * (uint64_t)len + ORDER_OF_X - 33);
}

uint32_t siw_crc32c_combine(uint32_t a, uint32_t b, uint32_t shift)
{
	return crc32c_ops()->multiply(a, shift) ^ b;
}

const char *siw_crc32c_selected_impl_name(void)
{
	return crc32c_ops()->name;
}

int siw_crc32c_select_impl_for_tests(const char *name)
{
	for (int i = 0; i < N_ALL; i++) {
		if (strcmp(all[i]->name, name) != 0)
			continue;
		if (!all[i]->usable())
			return -ENOSYS;
		atomic_store_explicit(&chosen, all[i], memory_order_relaxed);
		return 0;
	}
	return -ENOENT;
}

const char *siw_crc32c_impl_name_for_tests(int i)
{
	return i >= 0 && i < N_ALL ? all[i]->name : NULL;
}
