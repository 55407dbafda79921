/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/crc32c.h - CRC32C (Castagnoli), the checksum of MPA (RFC 5044 section 4.4) and of siwarp's
 * datagrams.
 *
 * The functions have no knowledge of frames. Their first argument is the CRC of the preceding data,
 * 0 at the start: crc(a || b) == crc(crc(0, a), b).
 */
#ifndef SIW_BASE_CRC32C_H
#define SIW_BASE_CRC32C_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

/* cffi: begin */

uint32_t siw_crc32c(uint32_t crc, const void *buf, size_t len);

/*
 * Copies len octets from src to dst and returns the updated CRC, in one pass. The ranges must not
 * overlap.
 */
uint32_t siw_crc32c_copy(uint32_t crc, void *dst, const void *src, size_t len);

uint32_t siw_crc32c_iov(uint32_t crc, const struct iovec *iov, int n);

/*
 * siw_crc32c_combine returns crc(A || B), where a is crc(A), b is crc(B), and shift is the result of
 * siw_crc32c_shift_factor for the octets of B. siw_crc32c_shift_factor takes up to a microsecond.
 */
uint32_t siw_crc32c_shift_factor(size_t len);
uint32_t siw_crc32c_combine(uint32_t a, uint32_t b, uint32_t shift);

/* Returns the name of the implementation in use: the fastest that the CPU supports. */
const char *siw_crc32c_selected_impl_name(void);

/*
 * For tests: selects an implementation by name for the whole process. -ENOENT: this build has no
 * implementation of that name; -ENOSYS: the CPU does not support it.
 */
int siw_crc32c_select_impl_for_tests(const char *name);

/* For tests: returns the name of implementation i, fastest first; NULL beyond the last. */
const char *siw_crc32c_impl_name_for_tests(int i);

/* cffi: end */

#define SIW_CRC32C_OCTETS 4

/*
 * Stores a CRC in wire format, the same as for iSCSI digests: the polynomial's highest power is bit
 * 0 of the first octet (RFC5044-4.4-10). For the usual reflected register this means least
 * significant octet first.
 */
static inline void siw_crc32c_put(uint8_t *at, uint32_t crc)
{
	crc = htole32(crc);
	memcpy(at, &crc, sizeof(crc));
}

static inline uint32_t siw_crc32c_get(const uint8_t *at)
{
	uint32_t crc;

	memcpy(&crc, at, sizeof(crc));
	return le32toh(crc);
}

/* Returns whether the last four octets are the CRC32C of the preceding octets. */
static inline bool siw_crc32c_ends(const uint8_t *octets, size_t len)
{
	len -= SIW_CRC32C_OCTETS;
	return siw_crc32c(0, octets, len) == siw_crc32c_get(octets + len);
}

#endif
