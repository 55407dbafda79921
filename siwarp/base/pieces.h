/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/pieces.h - copies octets from and to a list of iovecs. The memory belongs to the program and
 * may be unmapped at any time, so every access is guarded (guard.h). Functions return 0 or -EFAULT
 * unless stated otherwise.
 */
#ifndef SIW_BASE_PIECES_H
#define SIW_BASE_PIECES_H

#include "base/guard.h"

#include <sys/uio.h>

static inline size_t siw_iov_octets(const struct iovec *iov, int n)
{
	size_t sum = 0;

	for (int i = 0; i < n; i++)
		sum += iov[i].iov_len;
	return sum;
}

/* Continues the CRC32C *crc over the octets of the iovecs. */
static inline int siw_iov_crc(uint32_t *crc, const struct iovec *iov, int n)
{
	int r = 0;

	for (int i = 0; i < n && !r; i++)
		r = siw_guard_crc(crc, iov[i].iov_base, iov[i].iov_len);
	return r;
}

/*
 * Copies the pieces to contiguous memory at `to` and, unless crc is NULL, continues *crc over them.
 * Returns the end of the copy, or NULL if an access faults.
 */
static inline uint8_t *siw_iov_gather(uint8_t *to, uint32_t *crc, const struct iovec *iov, int n)
{
	for (int i = 0; i < n; to += iov[i++].iov_len)
		if (crc ? siw_guard_crc_read(crc, to, iov[i].iov_base, iov[i].iov_len)
			: siw_guard_read(to, iov[i].iov_base, iov[i].iov_len))
			return NULL;
	return to;
}

/* Copies contiguous memory at `from` into all pieces. */
static inline int siw_iov_scatter(const struct iovec *iov, int n, const uint8_t *from)
{
	int r = 0;

	for (int i = 0; i < n && !r; from += iov[i++].iov_len)
		r = siw_guard_write(iov[i].iov_base, from, iov[i].iov_len);
	return r;
}

#endif
