/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/ibverbs/abi_mr.c - protection domains and memory regions. */
#include <sys/mman.h>

#include "abi/ibverbs/abi.h"

/* The access flags that have an effect. Those in ABI_ACCESS_IGNORED are accepted without effect. */
#define ENGINE                                                                                   \
	((unsigned int)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |                       \
			IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | \
			IBV_ACCESS_ZERO_BASED))

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct abi_pd *pd;
	int why;

	if (!abi_is_live_object(ABI_CONTEXT, context))
		return abi_fail_null(EINVAL);
	pd = abi_alloc_object(ABI_PD);
	if (!pd)
		return NULL;
	pd->siw = siw_alloc_pd(abi_context_of(context)->siw);
	why = errno;
	if (pd->siw) {
		static atomic_uint handles;

		pd->ibv.context = context;
		pd->ibv.handle = atomic_fetch_add(&handles, 1) + 1;
		if (abi_register_handle(ABI_PD, pd, context))
			return &pd->ibv;
		why = ENOMEM;
		siw_dealloc_pd(pd->siw);
	}
	abi_free_object(ABI_PD, pd);
	return abi_fail_null(why);
}

static void parent_domain_release(struct abi_pd *pd)
{
	atomic_fetch_sub(&pd->parent_of->users, 1);
	if (pd->td)
		atomic_fetch_sub(&pd->td->users, 1);
}

/* Returns whether an MR, MW or AH, whose second member is pd, belongs to the protection domain. */
static bool mr_mw_ah_has_pd(void *handle, const void *wanted)
{
	return ((struct ibv_mr *)handle)->pd == wanted;
}

/* Returns whether a QP or SRQ, whose third member is pd, belongs to the protection domain. */
static bool qp_or_srq_has_pd(void *handle, const void *wanted)
{
	return ((struct ibv_srq *)handle)->pd == wanted;
}

_Static_assert(offsetof(struct ibv_mw, pd) == offsetof(struct ibv_mr, pd), "ibv_mw");
_Static_assert(offsetof(struct ibv_ah, pd) == offsetof(struct ibv_mr, pd), "ibv_ah");
_Static_assert(offsetof(struct ibv_qp, pd) == offsetof(struct ibv_srq, pd), "ibv_qp");

/*
 * Returns whether objects exist that were created with a parent domain. The engine knows only the
 * protection domain to which the parent domain refers.
 */
static bool parent_domain_in_use(const struct abi_pd *parent)
{
	return abi_find_object(ABI_MR, mr_mw_ah_has_pd, parent) ||
	       abi_find_object(ABI_MW, mr_mw_ah_has_pd, parent) ||
	       abi_find_object(ABI_AH, mr_mw_ah_has_pd, parent) ||
	       abi_find_object(ABI_QP, qp_or_srq_has_pd, parent) ||
	       abi_find_object(ABI_SRQ, qp_or_srq_has_pd, parent);
}

int ibv_dealloc_pd(struct ibv_pd *ibv)
{
	struct abi_pd *pd = (struct abi_pd *)ibv;
	int r;

	if (!abi_is_live_object(ABI_PD, ibv))
		return abi_fail(EINVAL);
	if (pd->users || (pd->parent_of && parent_domain_in_use(pd)))
		return abi_fail(abi_refuse(EBUSY, "objects or parent domains that were created "
						  "with the PD exist: destroy them first"));
	/* A parent domain is only an alias of another protection domain. */
	if (!pd->parent_of) {
		r = siw_dealloc_pd(pd->siw);
		if (r < 0)
			return abi_errno_of_result(r);
	} else {
		parent_domain_release(pd);
	}
	abi_mark_object_dead(ABI_PD, pd);
	return 0;
}

struct ibv_td *abi_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	struct abi_td *td;

	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_given(attr, "init_attr"))
		return abi_fail_null(EINVAL);
	if (attr->comp_mask)
		return abi_fail_null(
			abi_refuse(EINVAL, "comp_mask is %#x: set it to 0", attr->comp_mask));
	td = abi_alloc_object(ABI_TD);
	if (!td)
		return NULL;
	td->ibv.context = context;
	if (abi_register_handle(ABI_TD, td, context))
		return &td->ibv;
	abi_free_object(ABI_TD, td);
	return abi_fail_null(ENOMEM);
}

int abi_dealloc_td(struct ibv_td *td)
{
	if (!abi_is_live_object(ABI_TD, td))
		return abi_fail(EINVAL);
	if (((struct abi_td *)td)->users)
		return abi_fail(abi_refuse(EBUSY, "a parent domain uses the thread domain: "
						  "deallocate it first"));
	abi_mark_object_dead(ABI_TD, td);
	return 0;
}

struct ibv_pd *abi_alloc_parent_domain(struct ibv_context *context,
				       struct ibv_parent_domain_init_attr *attr)
{
	struct abi_pd *pd;

	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_given(attr, "attr") ||
	    !abi_is_live_object(ABI_PD, attr->pd) ||
	    (attr->td && !abi_is_live_object(ABI_TD, attr->td)))
		return abi_fail_null(EINVAL);
	if (attr->pd->context != context || (attr->td && attr->td->context != context) ||
	    ((struct abi_pd *)attr->pd)->parent_of)
		return abi_fail_null(abi_refuse(EINVAL,
						"pd or td belongs to another device context, or pd "
						"is a parent domain itself"));
	/* The engine allocates all queue memory, so custom allocators would never be called. */
	if (attr->comp_mask & ~(uint32_t)IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)
		return abi_fail_null(abi_refuse(EOPNOTSUPP, "siwarp supports no allocators of the "
							    "program: omit them from comp_mask"));
	pd = abi_alloc_object(ABI_PD);
	if (!pd)
		return NULL;
	pd->ibv = *attr->pd;
	pd->parent_of = (struct abi_pd *)attr->pd;
	pd->siw = pd->parent_of->siw;
	pd->td = (struct abi_td *)attr->td;
	atomic_fetch_add(&pd->parent_of->users, 1);
	if (pd->td)
		atomic_fetch_add(&pd->td->users, 1);
	if (abi_register_handle(ABI_PD, pd, context))
		return &pd->ibv;
	parent_domain_release(pd);
	abi_free_object(ABI_PD, pd);
	return abi_fail_null(ENOMEM);
}

static bool has_pd_handle_number(void *handle, const void *wanted)
{
	const struct ibv_pd *pd = handle, *looked_for = wanted;

	return pd->context == looked_for->context && pd->handle == looked_for->handle;
}

struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t pd_handle)
{
	struct ibv_pd wanted = { context, pd_handle }, *pd;

	if (!abi_is_live_object(ABI_CONTEXT, context))
		return abi_fail_null(EINVAL);
	pd = abi_find_object(ABI_PD, has_pd_handle_number, &wanted);
	return pd ? pd
		  : abi_fail_null(
			    abi_refuse(EINVAL, "no PD of the context has handle %u", pd_handle));
}

void ibv_unimport_pd(struct ibv_pd *pd)
{
	(void)pd; /* ibv_import_pd returns the PD itself, so there is nothing to undo */
}

/* Copies the public members of a region from the engine's region. */
static void mr_copy_public_members(struct abi_mr *mr, struct ibv_pd *pd)
{
	mr->ibv.context = pd->context;
	mr->ibv.pd = pd;
	mr->ibv.addr = mr->siw->addr;
	mr->ibv.length = mr->siw->length;
	mr->ibv.handle = mr->siw->handle;
	mr->ibv.lkey = mr->siw->lkey;
	mr->ibv.rkey = mr->siw->rkey;
}

static int mr_check_access_flags(unsigned int access)
{
	access &= ~(ENGINE | ABI_ACCESS_IGNORED);
	return access ? abi_refuse(EINVAL,
				   "siwarp does not support access flags %#x: use a set of enum "
				   "ibv_access_flags",
				   access)
		      : 0;
}

static struct abi_mr *mr_register(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				  unsigned int access)
{
	struct abi_mr *mr;
	int why;

	if (!abi_is_live_object(ABI_PD, pd))
		return abi_fail_null(EINVAL);
	why = mr_check_access_flags(access);
	if (why)
		return abi_fail_null(why);
	if (access & IBV_ACCESS_ZERO_BASED)
		iova = 0;
	mr = abi_alloc_object(ABI_MR);
	if (!mr)
		return NULL;
	mr->siw = siw_reg_mr_iova(((struct abi_pd *)pd)->siw, addr, length, iova,
				  (int)(access & ENGINE));
	why = errno;
	if (mr->siw) {
		mr_copy_public_members(mr, pd);
		mr->iova = iova;
		mr->access = access;
		if (abi_register_handle(ABI_MR, mr, pd->context))
			return mr;
		why = ENOMEM;
		siw_dereg_mr(mr->siw);
	}
	abi_free_object(ABI_MR, mr);
	return abi_fail_null(why);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return (struct ibv_mr *)mr_register(pd, addr, length, (uintptr_t)addr,
					    (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			       int access)
{
	return (struct ibv_mr *)mr_register(pd, addr, length, iova, (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				unsigned int access)
{
	return (struct ibv_mr *)mr_register(pd, addr, length, iova, access);
}

/* Returns the address that corresponds to offset 0 of the engine's region after ibv_rereg_mr. */
static uint64_t mr_base_addr_after_rereg(const struct abi_mr *mr, int flags, unsigned int access)
{
	if (!(flags & IBV_REREG_MR_CHANGE_TRANSLATION) &&
	    !((access ^ mr->access) & IBV_ACCESS_ZERO_BASED))
		return mr->iova;
	return access & IBV_ACCESS_ZERO_BASED ? 0 : (uintptr_t)mr->ibv.addr;
}

int ibv_rereg_mr(struct ibv_mr *ibv, int flags, struct ibv_pd *pd, void *addr, size_t length,
		 int access)
{
	struct abi_mr *mr = (struct abi_mr *)ibv;
	bool new_pd = flags & IBV_REREG_MR_CHANGE_PD;
	unsigned int now;
	int r;

	if (!abi_is_live_object(ABI_MR, ibv) || (new_pd && !abi_is_live_object(ABI_PD, pd)) ||
	    (mr->mapping &&
	     abi_refuse(EINVAL, "a region of a DMA buffer cannot be registered again"))) {
		abi_fail(EINVAL);
		return IBV_REREG_MR_ERR_INPUT;
	}
	now = flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned int)access : mr->access;
	if (mr_check_access_flags(now)) {
		abi_fail(EINVAL);
		return IBV_REREG_MR_ERR_INPUT;
	}
	r = siw_rereg_mr(mr->siw, flags, new_pd ? ((struct abi_pd *)pd)->siw : NULL, addr, length,
			 access & (int)ENGINE);
	if (r)
		return r;
	mr_copy_public_members(mr, new_pd ? pd : ibv->pd);
	mr->iova = mr_base_addr_after_rereg(mr, flags, now);
	mr->access = now;
	return 0;
}

int ibv_dereg_mr(struct ibv_mr *ibv)
{
	struct abi_mr *mr = (struct abi_mr *)ibv;
	struct abi_mapping *mapping;
	struct abi_context *ctx;
	int r;

	if (!abi_is_live_object(ABI_MR, ibv))
		return abi_fail(EINVAL);
	r = siw_dereg_mr(mr->siw);
	if (r < 0)
		return abi_errno_of_result(r);
	mapping = mr->mapping;
	ctx = abi_context_of(ibv->context);
	abi_mark_object_dead(ABI_MR, mr);
	if (mapping)
		abi_unmap_dmabuf(ctx, mapping);
	return 0;
}

static bool is_mr_with_handle(void *handle, const void *wanted)
{
	const struct ibv_mr *mr = handle, *looked_for = wanted;

	return mr->context == looked_for->context && mr->handle == looked_for->handle;
}

struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t mr_handle)
{
	struct ibv_mr wanted = { .handle = mr_handle }, *mr;

	if (!abi_is_live_object(ABI_PD, pd))
		return abi_fail_null(EINVAL);
	wanted.context = pd->context;
	mr = abi_find_object(ABI_MR, is_mr_with_handle, &wanted);
	return mr ? mr
		  : abi_fail_null(
			    abi_refuse(EINVAL, "no MR of the context has handle %u", mr_handle));
}

void ibv_unimport_mr(struct ibv_mr *mr)
{
	(void)mr; /* ibv_import_mr returns the MR itself, so there is nothing to undo */
}

struct advice {
	const struct ibv_pd *pd;
	uint32_t lkey;
};

static bool mr_has_lkey(void *handle, const void *wanted)
{
	const struct advice *advice = wanted;
	const struct ibv_mr *mr = handle;

	return mr->context == advice->pd->context && mr->lkey == advice->lkey;
}

/* Checks one element of ibv_advise_mr. Returns 0 or an errno value. */
static int advise_mr_validate_sge(const struct ibv_pd *pd, bool writes, const struct ibv_sge *sge)
{
	const struct abi_mr *mr =
		abi_find_object(ABI_MR, mr_has_lkey, &(struct advice){ pd, sge->lkey });
	uint64_t base;

	if (!mr)
		return abi_refuse(EFAULT, "no region has lkey %#x", sge->lkey);
	if (((struct abi_pd *)mr->ibv.pd)->siw != ((const struct abi_pd *)pd)->siw ||
	    (writes && !(mr->access & IBV_ACCESS_LOCAL_WRITE)))
		return abi_refuse(EPERM,
				  "the region with lkey %#x belongs to another PD, or has no "
				  "IBV_ACCESS_LOCAL_WRITE",
				  sge->lkey);
	base = mr->iova;
	if (sge->addr < base || sge->addr - base > mr->ibv.length ||
	    mr->ibv.length - (sge->addr - base) < sge->length)
		return abi_refuse(EFAULT, "%u octets at %#llx are not in the region with lkey %#x",
				  sge->length, (unsigned long long)sge->addr, sge->lkey);
	return 0;
}

/* Advice is checked but has no effect, because the kernel loads pages on demand. */
int abi_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
		  struct ibv_sge *sg_list, uint32_t num_sge)
{
	bool writes = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	int r = 0;

	if (!abi_is_live_object(ABI_PD, pd) || (num_sge && !abi_is_given(sg_list, "sg_list")))
		return abi_fail(EINVAL);
	if (flags & ~(uint32_t)IBV_ADVISE_MR_FLAG_FLUSH)
		return abi_fail(abi_refuse(EINVAL, "flags %#x contains unknown bits", flags));
	if ((unsigned int)advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return abi_fail(abi_refuse(EOPNOTSUPP, "siwarp knows no advice %d", (int)advice));
	for (uint32_t i = 0; i < num_sge && !r; i++)
		r = advise_mr_validate_sge(pd, writes, &sg_list[i]);
	return r ? abi_fail(r) : 0;
}

struct ibv_mr *abi_refuse_null_mr(struct ibv_pd *pd)
{
	if (!abi_is_live_object(ABI_PD, pd))
		return abi_fail_null(EINVAL);
	return abi_fail_null(abi_refuse(EOPNOTSUPP, "siwarp has no null regions"));
}

/* ---- ibv_reg_mr_ex (IBVERBS_1.15) ------------------------------------------------------------ */

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

/* Returns whether the members that comp_mask selects may be combined. */
static bool mr_init_attr_valid(struct ibv_pd *pd, const struct abi_mr_init_attr *attr)
{
	const uint64_t mask = attr->comp_mask;

	if (!(mask & HAS_ADDR) == !(mask & HAS_FD) || (mask & HAS_FD_OFFSET && !(mask & HAS_FD)))
		return !abi_refuse(EINVAL,
				   "comp_mask %#llx must contain either ADDR or FD, and FD_OFFSET "
				   "only with FD",
				   (unsigned long long)mask);
	if (!(mask & HAS_BUF))
		return true;
	if (mask & HAS_ADDR && !abi_is_live_object(ABI_BUF, attr->buf))
		return false;
	return (mask & HAS_ADDR && abi_buf_contains(attr->buf, pd, attr->addr, attr->length)) ||
	       !abi_refuse(EINVAL, "the memory is not within buf, or buf has another PD");
}

ABI_EXPORT struct ibv_mr *abi_reg_mr_ex(struct ibv_pd *pd, const struct abi_mr_init_attr *attr);
ABI_VERSION(abi_reg_mr_ex, ibv_reg_mr_ex, 1.15);
struct ibv_mr *abi_reg_mr_ex(struct ibv_pd *pd, const struct abi_mr_init_attr *attr)
{
	uint64_t offset, iova;

	if (!abi_is_live_object(ABI_PD, pd) || !abi_is_given(attr, "mr_init_attr") ||
	    !mr_init_attr_valid(pd, attr))
		return abi_fail_null(EINVAL);
	if (attr->comp_mask & ~(uint64_t)(HAS_IOVA | HAS_ADDR | HAS_FD | HAS_FD_OFFSET | HAS_BUF))
		return abi_fail_null(abi_refuse(EOPNOTSUPP,
						"siwarp does not support all members of comp_mask "
						"%#llx",
						(unsigned long long)attr->comp_mask));
	if (attr->comp_mask & HAS_ADDR) {
		iova = attr->comp_mask & HAS_IOVA ? attr->iova : (uintptr_t)attr->addr;
		return ibv_reg_mr_iova2(pd, attr->addr, attr->length, iova,
					(unsigned int)attr->access);
	}
	offset = attr->comp_mask & HAS_FD_OFFSET ? attr->fd_offset : 0;
	iova = attr->comp_mask & HAS_IOVA ? attr->iova : offset;
	return ibv_reg_dmabuf_mr(pd, offset, attr->length, iova, attr->fd, attr->access);
}
