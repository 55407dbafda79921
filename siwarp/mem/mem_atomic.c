/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mem/mem_atomic.c - atomic operations on 64 bits of registered memory (RFC 7306 section 5.1), and
 * a function to write a small result, such as that of an atomic, to the user's scatter/gather list.
 */
#include <errno.h>

#include "base/pieces.h"
#include "mem/mem.h"

#define WORD 8

static int perform_atomic(uint64_t *word, const struct siw_mem_atomic *op, uint64_t *before)
{
	if (op->kind == SIW_MEM_FETCH_ADD)
		return siw_guard_fetch_add(before, word, op->data, op->mask);
	return siw_guard_cmp_swap(before, word, op->compare, op->compare_mask, op->data, op->mask);
}

int siw_mem_atomic(struct siw_mem *mem, uint32_t stag, uint32_t pd, const void *stream, uint64_t to,
		   const struct siw_mem_atomic *op, uint64_t *before, struct siw_wire_err *err)
{
	struct iovec iov;
	int r = siw_mem_stag_acquire(mem, stag, pd, stream, SIW_MEM_REMOTE_ATOMIC, to, WORD, &iov,
				     1, err);

	if (r < 0)
		return r;
	r = 0;
	if ((uintptr_t)iov.iov_base % WORD) { /* RFC7306-5.1.1-02, -5.1.2-03, -8.2-07 */
		*err = (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION,
					      SIW_RDMAP_CATASTROPHIC_STREAM };
		r = -EACCES;
	} else if (op && perform_atomic(iov.iov_base, op, before)) {
		*err = (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_LOCAL_CATASTROPHIC, 0 };
		r = -EACCES;
	}
	siw_mem_stag_release(mem, stag);
	return r;
}

int siw_mem_sgl_write(struct siw_mem *mem, const struct siw_sge *sgl, int nsge, uint32_t pd,
		      const void *octets, uint64_t len)
{
	struct iovec iov[SIW_MEM_MAX_SGE];
	int n = siw_mem_sgl_resolve(mem, sgl, nsge, false, pd, true, 0, len, iov, SIW_MEM_MAX_SGE);

	return n < 0 ? n : siw_iov_scatter(iov, n, octets);
}
