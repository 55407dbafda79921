/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/abi_until.h - stand-ins for calls that the engine gets. */
#ifndef SIWARP_ABI_UNTIL_H
#define SIWARP_ABI_UNTIL_H
static inline struct siw_mr *siw_reg_mr_iova(struct siw_pd *pd, void *addr, size_t length,
					     uint64_t iova, int access)
{
	if (iova != (uintptr_t)addr) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return siw_reg_mr(pd, addr, length, access);
}

static inline uint32_t siw_srq_num(struct siw_srq *srq)
{
	(void)srq;
	return 0;
}

static inline int siw_close_device_forced(struct siw_context *ctx)
{
	return siw_close_device(ctx);
}
#endif
