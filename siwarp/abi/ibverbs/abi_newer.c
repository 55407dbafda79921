/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_newer.c - functions that rdma-core introduced after release 44: IBVERBS_1.15 (release
 * 59), 1.16 (release 62) and 1.18 (release 65). Their structs are redeclared here according to
 * their known layout.
 */
#include "abi/ibverbs/abi.h"

/* The layout of struct ibv_mr_init_attr, and the values of enum ibv_mr_init_attr_mask. */
struct abi_mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	struct abi_buf *buf;
};
enum {
	HAS_IOVA = 1,
	HAS_ADDR = 2,
	HAS_FD = 4,
	HAS_FD_OFFSET = 8,
	HAS_DMAH = 16,
	HAS_BUF = 32,
};

_Static_assert(offsetof(struct abi_mr_init_attr, comp_mask) == 16, "ibv_mr_init_attr");
_Static_assert(offsetof(struct abi_mr_init_attr, fd_offset) == 48, "ibv_mr_init_attr");

/* Whether the members selected by comp_mask may be combined. */
static bool mr_init_attr_valid(struct ibv_pd *pd, const struct abi_mr_init_attr *attr)
{
	const uint64_t mask = attr->comp_mask;

	if (!(mask & HAS_ADDR) == !(mask & HAS_FD) || (mask & HAS_FD_OFFSET && !(mask & HAS_FD)))
		return false;
	if (!(mask & HAS_BUF))
		return true;
	return mask & HAS_ADDR && abi_live(ABI_BUF, attr->buf) &&
	       abi_buf_contains(attr->buf, pd, attr->addr, attr->length);
}

ABI_EXPORT struct ibv_mr *abi_reg_mr_ex(struct ibv_pd *pd, const struct abi_mr_init_attr *attr);
ABI_VERSION(abi_reg_mr_ex, ibv_reg_mr_ex, 1.15);
struct ibv_mr *abi_reg_mr_ex(struct ibv_pd *pd, const struct abi_mr_init_attr *attr)
{
	uint64_t offset, iova;

	if (!abi_live(ABI_PD, pd))
		return NULL;
	if (!attr || !mr_init_attr_valid(pd, attr))
		return abi_null(EINVAL);
	if (attr->comp_mask & ~(uint64_t)(HAS_IOVA | HAS_ADDR | HAS_FD | HAS_FD_OFFSET | HAS_BUF))
		return abi_null(EOPNOTSUPP);
	if (attr->comp_mask & HAS_ADDR) {
		iova = attr->comp_mask & HAS_IOVA ? attr->iova : (uintptr_t)attr->addr;
		return ibv_reg_mr_iova2(pd, attr->addr, attr->length, iova,
					(unsigned int)attr->access);
	}
	offset = attr->comp_mask & HAS_FD_OFFSET ? attr->fd_offset : 0;
	iova = attr->comp_mask & HAS_IOVA ? attr->iova : offset;
	return ibv_reg_dmabuf_mr(pd, offset, attr->length, iova, attr->fd, attr->access);
}

ABI_EXPORT int abi_query_port_speed(struct ibv_context *context, uint32_t port_num,
				    uint64_t *port_speed);
ABI_VERSION(abi_query_port_speed, ibv_query_port_speed, 1.16);
int abi_query_port_speed(struct ibv_context *context, uint32_t port_num, uint64_t *port_speed)
{
	const uint64_t mbps_per_unit = 100;

	if (!abi_live(ABI_CONTEXT, context) || port_num != ABI_PORT || !port_speed)
		return abi_fail(EINVAL);
	*port_speed =
		(uint64_t)abi_speed(abi_context_of(context)->device->info.netdev) / mbps_per_unit;
	return 0;
}

/* ---- functions that need special hardware ---------------------------------------------------- */

ABI_EXPORT int abi_refuse_newer(void);
int abi_refuse_newer(void)
{
	return abi_fail(EOPNOTSUPP);
}

ABI_EXPORT void *abi_make_no_newer(void);
void *abi_make_no_newer(void)
{
	return abi_null(EOPNOTSUPP);
}

ABI_EXPORT int abi_open_no_newer(void);
int abi_open_no_newer(void)
{
	errno = EOPNOTSUPP;
	return -1;
}

#define REFUSED(name, node, of)                                                        \
	ABI_EXPORT extern __typeof__(of) abi_newer_##name __attribute__((alias(#of))); \
	ABI_VERSION(abi_newer_##name, name, node)

REFUSED(ibv_alloc_dmah, 1.15, abi_make_no_newer);
REFUSED(ibv_dealloc_dmah, 1.15, abi_refuse_newer);
REFUSED(ibv_dm_export_dmabuf_fd, 1.16, abi_open_no_newer);
REFUSED(_ibv_query_comp_cntr_caps, 1.18, abi_refuse_newer);
REFUSED(ibv_create_comp_cntr, 1.18, abi_make_no_newer);
REFUSED(ibv_destroy_comp_cntr, 1.18, abi_refuse_newer);
REFUSED(ibv_set_comp_cntr, 1.18, abi_refuse_newer);
REFUSED(ibv_set_err_comp_cntr, 1.18, abi_refuse_newer);
REFUSED(ibv_inc_comp_cntr, 1.18, abi_refuse_newer);
REFUSED(ibv_inc_err_comp_cntr, 1.18, abi_refuse_newer);
REFUSED(ibv_read_comp_cntr, 1.18, abi_refuse_newer);
REFUSED(ibv_read_err_comp_cntr, 1.18, abi_refuse_newer);
REFUSED(ibv_qp_attach_comp_cntr, 1.18, abi_refuse_newer);
