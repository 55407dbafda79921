/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/abi_mr.c - protection domains and memory regions. */
#include <sys/mman.h>
#include <unistd.h>

#include "abi/abi.h"

/* What the engine takes; and what this library does, ABI_ACCESS_IGNORED. */
#define ENGINE                                                             \
	((unsigned int)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | \
			IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND))

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct abi_pd *pd;
	int why;

	if (!abi_live(ABI_CONTEXT, context))
		return NULL;
	pd = abi_alloc(ABI_PD);
	if (!pd)
		return NULL;
	pd->siw = siw_alloc_pd(abi_context_of(context)->siw);
	why = errno;
	if (pd->siw) {
		static atomic_uint handles;

		pd->ibv.context = context;
		pd->ibv.handle = atomic_fetch_add(&handles, 1) + 1;
		if (abi_add(ABI_PD, pd, context))
			return &pd->ibv;
		why = ENOMEM;
		siw_dealloc_pd(pd->siw);
	}
	abi_free(ABI_PD, pd);
	return abi_null(why);
}

static void parent_gone(struct abi_pd *pd)
{
	atomic_fetch_sub(&pd->parent_of->users, 1);
	if (pd->td)
		atomic_fetch_sub(&pd->td->users, 1);
}

int ibv_dealloc_pd(struct ibv_pd *ibv)
{
	struct abi_pd *pd = (struct abi_pd *)ibv;
	int r;

	if (!abi_live(ABI_PD, ibv))
		return EINVAL;
	if (pd->users)
		return abi_fail(EBUSY);
	/* A parent domain is a name of the domain that it stands for. */
	if (!pd->parent_of) {
		r = siw_dealloc_pd(pd->siw);
		if (r < 0)
			return abi_result(r);
	} else {
		parent_gone(pd);
	}
	abi_end(ABI_PD, pd);
	return 0;
}

struct ibv_td *abi_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	struct abi_td *td;

	if (!abi_live(ABI_CONTEXT, context))
		return NULL;
	if (!attr || attr->comp_mask)
		return abi_null(EINVAL);
	td = abi_alloc(ABI_TD);
	if (!td)
		return NULL;
	td->ibv.context = context;
	if (abi_add(ABI_TD, td, context))
		return &td->ibv;
	abi_free(ABI_TD, td);
	return abi_null(ENOMEM);
}

int abi_dealloc_td(struct ibv_td *td)
{
	if (!abi_live(ABI_TD, td))
		return EINVAL;
	if (((struct abi_td *)td)->users)
		return abi_fail(EBUSY);
	abi_end(ABI_TD, td);
	return 0;
}

struct ibv_pd *abi_alloc_parent_domain(struct ibv_context *context,
				       struct ibv_parent_domain_init_attr *attr)
{
	struct abi_pd *pd;

	if (!abi_live(ABI_CONTEXT, context))
		return NULL;
	if (!attr || !abi_live(ABI_PD, attr->pd) || attr->pd->context != context ||
	    (attr->td && !abi_live(ABI_TD, attr->td)) || ((struct abi_pd *)attr->pd)->parent_of)
		return abi_null(EINVAL);
	/* Memory for queues is the engine's, so a program's allocators would never be called. */
	if (attr->comp_mask & ~(uint32_t)IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)
		return abi_null(EOPNOTSUPP);
	pd = abi_alloc(ABI_PD);
	if (!pd)
		return NULL;
	pd->ibv = *attr->pd;
	pd->parent_of = (struct abi_pd *)attr->pd;
	pd->siw = pd->parent_of->siw;
	pd->td = (struct abi_td *)attr->td;
	atomic_fetch_add(&pd->parent_of->users, 1);
	if (pd->td)
		atomic_fetch_add(&pd->td->users, 1);
	if (abi_add(ABI_PD, pd, context))
		return &pd->ibv;
	parent_gone(pd);
	abi_free(ABI_PD, pd);
	return abi_null(ENOMEM);
}

static bool has_pd_handle(void *handle, const void *wanted)
{
	const struct ibv_pd *pd = handle, *looked_for = wanted;

	return pd->context == looked_for->context && pd->handle == looked_for->handle;
}

struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t pd_handle)
{
	struct ibv_pd wanted = { context, pd_handle }, *pd;

	if (!abi_live(ABI_CONTEXT, context))
		return NULL;
	pd = abi_find(ABI_PD, has_pd_handle, &wanted);
	return pd ? pd : abi_null(EINVAL);
}

void ibv_unimport_pd(struct ibv_pd *pd)
{
	(void)pd; /* an import is the object itself */
}

/* Copies what a program sees of the region. */
static void show(struct abi_mr *mr, struct ibv_pd *pd)
{
	mr->ibv.context = pd->context;
	mr->ibv.pd = pd;
	mr->ibv.addr = mr->siw->addr;
	mr->ibv.length = mr->siw->length;
	mr->ibv.handle = mr->siw->handle;
	mr->ibv.lkey = mr->siw->lkey;
	mr->ibv.rkey = mr->siw->rkey;
}

static int check_access(unsigned int access)
{
	access &= ~ABI_ACCESS_IGNORED;
	return access & ~(ENGINE | IBV_ACCESS_ZERO_BASED) ? EINVAL : 0;
}

static struct abi_mr *reg(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			  unsigned int access)
{
	struct abi_mr *mr;
	int why;

	if (!abi_live(ABI_PD, pd))
		return NULL;
	why = check_access(access);
	if (why)
		return abi_null(why);
	if (access & IBV_ACCESS_ZERO_BASED)
		iova = 0;
	mr = abi_alloc(ABI_MR);
	if (!mr)
		return NULL;
	mr->siw = siw_reg_mr_iova(((struct abi_pd *)pd)->siw, addr, length, iova,
				  (int)(access & ENGINE));
	why = errno;
	if (mr->siw) {
		show(mr, pd);
		if (abi_add(ABI_MR, mr, pd->context))
			return mr;
		why = ENOMEM;
		siw_dereg_mr(mr->siw);
	}
	abi_free(ABI_MR, mr);
	return abi_null(why);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return (struct ibv_mr *)reg(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			       int access)
{
	return (struct ibv_mr *)reg(pd, addr, length, iova, (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				unsigned int access)
{
	return (struct ibv_mr *)reg(pd, addr, length, iova, access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
				 int fd, int access)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), before = offset % page;
	int protection = PROT_READ | (access & IBV_ACCESS_LOCAL_WRITE ? PROT_WRITE : 0);
	struct abi_mr *mr;
	void *mapped;
	int why;

	if (!abi_live(ABI_PD, pd))
		return NULL;
	if (!length || length > SIZE_MAX - before)
		return abi_null(EINVAL);
	mapped = mmap(NULL, before + length, protection, MAP_SHARED, fd, (off_t)(offset - before));
	/* Memory that the CPU cannot map, as most of a graphics card's, is out of reach. */
	if (mapped == MAP_FAILED)
		return abi_null(errno == EBADF || errno == EINVAL ? errno : EOPNOTSUPP);
	mr = reg(pd, (char *)mapped + before, length, iova, (unsigned int)access);
	if (!mr) {
		why = errno;
		munmap(mapped, before + length);
		return abi_null(why);
	}
	mr->mapped = mapped;
	mr->mapped_size = before + length;
	return &mr->ibv;
}

int ibv_rereg_mr(struct ibv_mr *ibv, int flags, struct ibv_pd *pd, void *addr, size_t length,
		 int access)
{
	struct abi_mr *mr = (struct abi_mr *)ibv;
	bool new_pd = flags & IBV_REREG_MR_CHANGE_PD;
	int r;

	errno = EINVAL;
	if (!abi_live(ABI_MR, ibv) || (new_pd && !abi_live(ABI_PD, pd)) || mr->mapped)
		return IBV_REREG_MR_ERR_INPUT;
	if (flags & IBV_REREG_MR_CHANGE_ACCESS) {
		r = check_access((unsigned int)access);
		if (r || (access & IBV_ACCESS_ZERO_BASED)) {
			errno = r ? r : EINVAL;
			return IBV_REREG_MR_ERR_INPUT;
		}
	}
	r = siw_rereg_mr(mr->siw, flags, new_pd ? ((struct abi_pd *)pd)->siw : NULL, addr, length,
			 access & (int)ENGINE);
	if (r == 0)
		show(mr, new_pd ? pd : ibv->pd);
	return r;
}

int ibv_dereg_mr(struct ibv_mr *ibv)
{
	struct abi_mr *mr = (struct abi_mr *)ibv;
	void *mapped;
	size_t size;
	int r;

	if (!abi_live(ABI_MR, ibv))
		return EINVAL;
	r = siw_dereg_mr(mr->siw);
	if (r < 0)
		return abi_result(r);
	mapped = mr->mapped;
	size = mr->mapped_size;
	abi_end(ABI_MR, mr);
	if (mapped)
		munmap(mapped, size);
	return 0;
}

static bool has_mr_handle(void *handle, const void *wanted)
{
	const struct ibv_mr *mr = handle, *looked_for = wanted;

	return mr->pd == looked_for->pd && mr->handle == looked_for->handle;
}

struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t mr_handle)
{
	struct ibv_mr wanted = { .pd = pd, .handle = mr_handle }, *mr;

	if (!abi_live(ABI_PD, pd))
		return NULL;
	mr = abi_find(ABI_MR, has_mr_handle, &wanted);
	return mr ? mr : abi_null(EINVAL);
}

void ibv_unimport_mr(struct ibv_mr *mr)
{
	(void)mr; /* an import is the object itself */
}

int abi_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
		  struct ibv_sge *sg_list, uint32_t num_sge)
{
	if (!abi_live(ABI_PD, pd) || (!sg_list && num_sge) ||
	    flags & ~(uint32_t)IBV_ADVISE_MR_FLAG_FLUSH)
		return abi_fail(EINVAL);
	if ((unsigned int)advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return abi_fail(EOPNOTSUPP);
	return 0; /* the kernel brings pages as they are touched */
}

struct ibv_mr *abi_alloc_null_mr(struct ibv_pd *pd)
{
	return abi_live(ABI_PD, pd) ? abi_null(EOPNOTSUPP) : NULL;
}
