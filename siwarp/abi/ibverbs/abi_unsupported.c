/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_unsupported.c - functions of IBVERBS_1.15 to 1.18 that need hardware which a
 * software RNIC does not have. The functions exist so that programs can be linked, and fail with
 * EOPNOTSUPP.
 */
#include "abi/ibverbs/abi.h"

static int refuse_unsupported(void)
{
	return abi_refuse(EOPNOTSUPP, "siwarp has no completion counters, device memory and DMA "
				      "handles");
}

ABI_EXPORT int abi_fail_unsupported(void);
int abi_fail_unsupported(void)
{
	return abi_fail(refuse_unsupported());
}

ABI_EXPORT void *abi_fail_unsupported_null(void);
void *abi_fail_unsupported_null(void)
{
	return abi_fail_null(refuse_unsupported());
}

ABI_EXPORT int abi_fail_call_returning_fd(void);
int abi_fail_call_returning_fd(void)
{
	abi_fail(refuse_unsupported());
	return -1;
}

#define REFUSED(name, node, of)                                                              \
	ABI_EXPORT extern __typeof__(of) abi_unsupported_##name __attribute__((alias(#of))); \
	ABI_VERSION(abi_unsupported_##name, name, node)

REFUSED(ibv_alloc_dmah, 1.15, abi_fail_unsupported_null);
REFUSED(ibv_dealloc_dmah, 1.15, abi_fail_unsupported);
REFUSED(ibv_dm_export_dmabuf_fd, 1.16, abi_fail_call_returning_fd);
REFUSED(_ibv_query_comp_cntr_caps, 1.18, abi_fail_unsupported);
REFUSED(ibv_create_comp_cntr, 1.18, abi_fail_unsupported_null);
REFUSED(ibv_destroy_comp_cntr, 1.18, abi_fail_unsupported);
REFUSED(ibv_set_comp_cntr, 1.18, abi_fail_unsupported);
REFUSED(ibv_set_err_comp_cntr, 1.18, abi_fail_unsupported);
REFUSED(ibv_inc_comp_cntr, 1.18, abi_fail_unsupported);
REFUSED(ibv_inc_err_comp_cntr, 1.18, abi_fail_unsupported);
REFUSED(ibv_read_comp_cntr, 1.18, abi_fail_unsupported);
REFUSED(ibv_read_err_comp_cntr, 1.18, abi_fail_unsupported);
REFUSED(ibv_qp_attach_comp_cntr, 1.18, abi_fail_unsupported);
