/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Protection domains, memory regions and address handles. */
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/addr.h"
#include "device/device_impl.h"

struct siw_pd *siw_alloc_pd(struct siw_context *ctx)
{
	struct siw_pd *pd;
	int err = siw_device_check_usable(ctx, "context");

	if (err)
		return siw_refuse_and_return_null(err);
	if (!siw_device_increment_count_if_below_max(&ctx->n_pd, ctx->attr.max_pd))
		return siw_refuse_and_return_null(
			siw_device_refuse_limit_reached("max_pd", ctx->attr.max_pd));
	pd = calloc(1, sizeof(*pd));
	if (!pd) {
		atomic_fetch_sub(&ctx->n_pd, 1);
		return siw_refuse_and_return_null(-ENOMEM);
	}
	pd->ctx = ctx;
	pd->number = atomic_fetch_add(&ctx->next_pd, 1) + 1;
	siw_device_add_child(ctx, &pd->child, SIW_CHILD_PASSIVE, NULL, -1);
	return pd;
}

int siw_dealloc_pd(struct siw_pd *pd)
{
	int err = siw_device_check_usable(pd ? pd->ctx : NULL, "pd");

	if (err)
		return err;
	if (atomic_load(&pd->n_mr) || atomic_load(&pd->n_qp) || atomic_load(&pd->n_ah) ||
	    atomic_load(&pd->n_srq) || atomic_load(&pd->n_mw))
		return siw_refuse(PD_BUSY, atomic_load(&pd->n_mr), atomic_load(&pd->n_mw),
				  atomic_load(&pd->n_qp) + atomic_load(&pd->n_srq),
				  atomic_load(&pd->n_ah));
	atomic_fetch_sub(&pd->ctx->n_pd, 1);
	siw_device_remove_child(pd->ctx, &pd->child);
	free(pd);
	return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/*
 * Returns whether the octet at addr is mapped and readable. The kernel copies the 8 octets around
 * addr before it checks the (invalid) first argument: EFAULT means not readable, EINVAL readable.
 * No signal mask is changed.
 */
static bool is_octet_readable(uintptr_t addr)
{
	long r;

	/* With a NULL pointer the system call would copy nothing. */
	if (addr < 8)
		return false;
	r = syscall(SYS_rt_sigprocmask, ~0, addr & ~(uintptr_t)7, NULL, 8);
	return !(r < 0 && errno == EFAULT);
}

/*
 * Returns whether the octet at addr is writable. FUTEX_WAKE_OP atomically adds 0 to the word around
 * addr and fails with EFAULT if the page is not mapped or not writable.
 */
static bool is_octet_writable(uintptr_t addr)
{
	uint32_t nobody = 0;
	long r = syscall(SYS_futex, &nobody, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, 0,
			 addr & ~(uintptr_t)3, FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0));

	return !(r < 0 && errno == EFAULT);
}

static int probe_memory_access(const void *addr, size_t length, int access)
{
	uintptr_t first = (uintptr_t)addr, last = first + length - 1;
	bool (*can)(uintptr_t) = access & SIW_ACCESS_LOCAL_WRITE ? is_octet_writable
								 : is_octet_readable;

	if (!length)
		return 0;
	if (last < first)
		return siw_refuse(MR_WRAPS, length);
	return can(first) && can(last) ? 0 : siw_refuse(MR_ABSENT);
}

/* The memory of a region, with the tagged offset of the region's first octet. */
struct span {
	void *addr;
	size_t length;
	uint64_t iova;
	int access;
};

static int check_access_flags(int access, bool bound)
{
	const int writes = SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_ATOMIC;
	const int known = SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_REMOTE_READ | SIW_ACCESS_MW_BIND |
			  SIW_ACCESS_ZERO_BASED | writes;

	if (access & ~(known | SIW_ACCESS_REMOTE_INVALIDATE))
		return siw_refuse_flags("access", access, "siw_access_flags");
	/*
	 * RFC5040-7.2-05: a region of a complete PD has no single stream whose peer may invalidate
	 * it.
	 */
	if (!bound && (access & SIW_ACCESS_REMOTE_INVALIDATE))
		return siw_refuse(MR_INVALIDATE);
	if ((access & writes) && !(access & SIW_ACCESS_LOCAL_WRITE))
		return siw_refuse(MR_LOCAL_WRITE, (uint64_t)access);
	/*
	 * REMOTE_INVALIDATE and MW_BIND are not allowed together: memory windows would stay bound
	 * after a peer invalidated the region.
	 */
	if ((access & SIW_ACCESS_REMOTE_INVALIDATE) && (access & SIW_ACCESS_MW_BIND))
		return siw_refuse(MR_NO_WINDOWS);
	return 0;
}

static int check_span_to_register(const struct siw_pd *pd, const void *owner,
				  const struct span *span)
{
	int err = check_access_flags(span->access, owner);

	if (!err && span->length > pd->ctx->attr.max_mr_size)
		err = siw_refuse(MR_LENGTH, span->length, pd->ctx->attr.max_mr_size);
	if (!err && span->iova + span->length < span->iova)
		err = siw_refuse(MR_WRAPS, span->length);
	if (!err && span->access & SIW_ACCESS_ZERO_BASED && span->iova)
		err = siw_refuse(MR_ZERO_BASED, span->iova);
	return err ? err : probe_memory_access(span->addr, span->length, span->access);
}

/* Registers a span of memory under a new STag. Returns 0 and sets *stag, or returns -errno. */
static int region_alloc_stag(const struct siw_pd *pd, const void *owner, const struct span *span,
			     uint32_t *stag)
{
	struct siw_mem_region region = { .addr = span->addr,
					 .length = span->length,
					 .to_base = span->iova,
					 .rights = siw_device_mem_rights_of_access(span->access) |
						   SIW_MEM_LOCAL_READ,
					 .pd = pd->number,
					 .stream = owner };
	int err = check_span_to_register(pd, owner, span);

	if (err)
		return err;
	err = siw_mem_stag_alloc(pd->ctx->mem, &region, stag);
	return err == -ENOMEM ? siw_device_refuse_limit_reached("max_mr", SIW_MAX_MR) : err;
}

static void init_region_struct(struct siw_region *r, struct siw_pd *pd, const struct span *span,
			       uint32_t stag)
{
	struct siw_mr *mr = &r->mr;

	mr->pd = pd;
	mr->addr = span->addr;
	mr->length = span->length;
	mr->lkey = mr->rkey = mr->handle = stag;
	r->iova = span->iova;
	r->access = span->access;
}

/*
 * Returns a new or reused region. A late bind may still read a deregistered region, and then finds
 * that its member bindable is false.
 */
static struct siw_region *alloc_region(struct siw_context *ctx)
{
	struct siw_link *old = siw_device_freelist_take(&ctx->free_regions);
	struct siw_region *r;

	if (old)
		return siw_container(old, struct siw_region, in_freelist);
	r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	r->mr.context = ctx;
	siw_link_init(&r->windows);
	siw_link_init(&r->in_freelist);
	return r;
}

static struct siw_mr *register_memory(struct siw_pd *pd, const void *owner, const struct span *span)
{
	struct siw_region *r = NULL;
	uint32_t stag;
	int err = siw_device_refuse_if_stale(pd->ctx);

	if (!err) {
		r = alloc_region(pd->ctx);
		err = r ? region_alloc_stag(pd, owner, span, &stag) : -ENOMEM;
	}
	if (err) {
		if (r)
			siw_device_freelist_give(&pd->ctx->free_regions, &r->in_freelist);
		return siw_refuse_and_return_null(err);
	}
	r->owner = owner;
	init_region_struct(r, pd, span, stag);
	atomic_fetch_add(&pd->n_mr, 1);
	siw_device_add_child(pd->ctx, &r->child, SIW_CHILD_PASSIVE, NULL, -1);
	siw_device_region_allow_mw_binds(r);
	return &r->mr;
}

/* Returns the tagged offset of the region's first octet if the program specifies none. */
static uint64_t default_tagged_offset(const void *addr, int access)
{
	return access & SIW_ACCESS_ZERO_BASED ? 0 : (uintptr_t)addr;
}

struct siw_mr *siw_reg_mr(struct siw_pd *pd, void *addr, size_t length, int access)
{
	uint64_t base = default_tagged_offset(addr, access);

	siw_reason_begin();
	if (!pd)
		return siw_refuse_and_return_null(siw_refuse_null("pd"));
	return register_memory(pd, NULL, &(struct span){ addr, length, base, access });
}

struct siw_mr *siw_reg_mr_iova(struct siw_pd *pd, void *addr, size_t length, uint64_t iova,
			       int access)
{
	siw_reason_begin();
	if (!pd)
		return siw_refuse_and_return_null(siw_refuse_null("pd"));
	return register_memory(pd, NULL, &(struct span){ addr, length, iova, access });
}

struct siw_mr *siw_reg_mr_qp(struct siw_qp *qp, void *addr, size_t length, int access)
{
	uint64_t base = default_tagged_offset(addr, access);

	siw_reason_begin();
	if (!qp)
		return siw_refuse_and_return_null(siw_refuse_null("qp"));
	if (!qp->ops->owns_regions)
		return siw_refuse_and_return_null(siw_refuse(MR_QP_TYPE));
	return register_memory(qp->pd, siw_device_owner(qp),
			       &(struct span){ addr, length, base, access });
}

/* Invalidates and frees an STag. Afterwards no peer and no request uses the STag. */
static int invalidate_and_free_stag(struct siw_context *ctx, uint32_t stag)
{
	int err = siw_mem_stag_free(ctx->mem, stag);

	if (err)
		return err == -ENOENT ? siw_refuse(MR_GONE) : err;
	siw_device_reset_streams_using_stag(ctx, stag);
	return 0;
}

int siw_dereg_mr(struct siw_mr *mr)
{
	struct siw_region *r = siw_container(mr, struct siw_region, mr);
	struct siw_pd *pd;
	int err = siw_device_check_usable(mr ? mr->pd->ctx : NULL, "mr");

	if (err)
		return err;
	pd = mr->pd;
	if (siw_device_is_lkey_in_use(pd->ctx, mr->lkey))
		return siw_refuse(MR_BUSY);
	err = siw_device_region_forbid_mw_binds(r);
	if (!err)
		err = invalidate_and_free_stag(pd->ctx, mr->lkey);
	if (err)
		return siw_refused(err);
	atomic_fetch_sub(&pd->n_mr, 1);
	siw_device_remove_child(pd->ctx, &r->child);
	siw_device_freelist_give(&pd->ctx->free_regions, &r->in_freelist);
	return 0;
}

static int region_register_again(struct siw_region *r, struct siw_pd *pd, const struct span *span)
{
	struct siw_pd *old_pd = r->mr.pd;
	uint32_t stag;
	int err;

	if (siw_device_is_lkey_in_use(old_pd->ctx, r->mr.lkey))
		return siw_refuse(MR_BUSY);
	/* Allocate the new STag first: if that fails, the region stays unchanged. */
	err = region_alloc_stag(pd, r->owner, span, &stag);
	if (err)
		return err;
	err = siw_device_region_forbid_mw_binds(r);
	if (!err)
		err = invalidate_and_free_stag(old_pd->ctx, r->mr.lkey);
	if (err) { /* windows are bound to the region, or it was deregistered */
		siw_mem_stag_free(pd->ctx->mem, stag);
		return err;
	}
	init_region_struct(r, pd, span, stag);
	atomic_fetch_add(&pd->n_mr, 1);
	atomic_fetch_sub(&old_pd->n_mr, 1);
	siw_device_region_allow_mw_binds(r);
	return 0;
}

/* Changes only the access rights of a region; the keys stay valid. */
static int change_access_rights(struct siw_region *r, const struct span *span)
{
	struct siw_context *ctx = r->mr.pd->ctx;
	uint32_t lost = siw_device_mem_rights_of_access(r->access) &
			~siw_device_mem_rights_of_access(span->access);
	int err = siw_device_is_lkey_in_use(ctx, r->mr.lkey) ? siw_refuse(MR_BUSY) : 0;

	if (!err)
		err = check_span_to_register(r->mr.pd, r->owner, span);
	if (!err)
		err = siw_device_region_forbid_mw_binds(r);
	if (err)
		return err;
	err = siw_mem_stag_set_rights(ctx->mem, r->mr.lkey,
				      siw_device_mem_rights_of_access(span->access) |
					      SIW_MEM_LOCAL_READ);
	if (err)
		return siw_refuse(MR_GONE);
	if (lost & SIW_MEM_REMOTE_READ) {
		siw_device_reset_streams_using_stag(ctx, r->mr.lkey);
	} else if (lost) {
		/*
		 * Acquiring the lock of a lane waits for the end of a progress round that may have
		 * looked up the previous rights.
		 */
		SIW_EACH_LANE(lane, ctx)
		{
			siw_lock(&lane->lock);
			siw_unlock(&lane->lock);
		}
	}
	r->access = span->access;
	siw_device_region_allow_mw_binds(r);
	return 0;
}

/* Returns whether only access rights change, and no peer has invalidated the region's key. */
static bool reregistration_changes_only_access(const struct siw_region *r, int flags,
					       const struct span *span)
{
	return flags == SIW_REREG_MR_CHANGE_ACCESS && span->iova == r->iova &&
	       siw_mem_is_stag_valid(r->mr.pd->ctx->mem, r->mr.lkey);
}

int siw_rereg_mr(struct siw_mr *mr, int flags, struct siw_pd *pd, void *addr, size_t length,
		 int access)
{
	const int known = SIW_REREG_MR_CHANGE_TRANSLATION | SIW_REREG_MR_CHANGE_PD |
			  SIW_REREG_MR_CHANGE_ACCESS;
	struct siw_region *r = siw_container(mr, struct siw_region, mr);
	struct span span = { addr, length, 0, access };
	int err = 0;

	siw_reason_begin();
	if (!mr) {
		errno = -siw_refuse_null("mr");
		return SIW_REREG_MR_ERR_CMD;
	}
	if (!(flags & SIW_REREG_MR_CHANGE_PD))
		pd = mr->pd;
	else if (!pd || pd->ctx != mr->pd->ctx)
		err = siw_refuse(REREG_PD);
	else if (r->owner && pd != mr->pd)
		err = siw_refuse(REREG_OF_QP);
	if (!(flags & SIW_REREG_MR_CHANGE_ACCESS))
		span.access = r->access;
	span.iova = default_tagged_offset(addr, span.access);
	if (!(flags & SIW_REREG_MR_CHANGE_TRANSLATION)) {
		span.addr = mr->addr;
		span.length = mr->length;
		span.iova = r->iova;
		if ((span.access ^ r->access) & SIW_ACCESS_ZERO_BASED)
			span.iova = default_tagged_offset(mr->addr, span.access);
	}
	if (!flags || (flags & ~known))
		err = siw_refuse(REREG_FLAGS, (uint64_t)flags);
	if (siw_device_inherited(mr->pd->ctx))
		err = siw_refuse(STALE);
	if (!err && reregistration_changes_only_access(r, flags, &span))
		err = change_access_rights(r, &span);
	else if (!err)
		err = region_register_again(r, pd, &span);
	if (!siw_refused(err))
		return 0;
	errno = -err;
	return err == -ENOENT ? SIW_REREG_MR_ERR_CMD : SIW_REREG_MR_ERR_INPUT;
}

/* ---- address handles ------------------------------------------------------------------------- */

/*
 * Returns a new or reused address handle. A late send may still read a destroyed handle, and then
 * finds that its member pd is NULL.
 */
static struct siw_ah *alloc_address_handle(struct siw_pd *pd, const struct siw_addr *dest,
					   const struct siw_addr *source)
{
	struct siw_link *old = siw_device_freelist_take(&pd->ctx->free_ahs);
	struct siw_ah *ah = old ? siw_container(old, struct siw_ah, in_freelist)
				: malloc(sizeof(*ah));

	if (!ah)
		return NULL;
	siw_link_init(&ah->in_freelist);
	memset(ah->room, 0, sizeof(ah->room));
	ah->dest = *dest;
	ah->source = *source;
	ah->group = siw_addr_is_group(dest);
	if (ah->group)
		ah->dest.port_be = htons((uint16_t)siw_settings()->mcast_port);
	atomic_init(&ah->queued, false);
	/*
	 * An IPv6 address may hold a flow label in the field v4, which must not take part in
	 * comparisons.
	 */
	if (dest->family == AF_INET6)
		memset(ah->dest.v4, 0, sizeof(ah->dest.v4));
	atomic_store(&ah->pd, pd);
	return ah;
}

void siw_device_free_freelist_memory(struct siw_context *ctx)
{
	struct siw_link *old;

	/*
	 * Free all address handles: there may be a million, and no QP is left that could use one.
	 */
	while ((old = siw_device_freelist_take(&ctx->free_ahs)))
		free(siw_container(old, struct siw_ah, in_freelist));
	while ((old = siw_device_freelist_take(&ctx->free_regions)))
		free(siw_container(old, struct siw_region, in_freelist));
	while ((old = siw_device_freelist_take(&ctx->free_windows)))
		free(siw_container(old, struct siw_window, in_freelist));
}

static int check_ah_destination(const struct siw_pd *pd, const struct siw_addr *dest)
{
	if (!pd)
		return siw_refuse_null("pd");
	if (siw_device_inherited(pd->ctx))
		return siw_refuse(STALE);
	if (!dest)
		return siw_refuse_null("dest");
	return siw_addr_len(dest) ? 0 : siw_refuse(ADDRESS_FAMILY, dest->family);
}

/* Returns whether the device has this address. */
static bool context_has_addr(struct siw_context *ctx, const struct siw_addr *addr)
{
	struct siw_device_info shown;
	bool has = false;

	siw_device_get_info_shown_to_program(ctx, &shown);
	for (uint32_t i = 0; i < shown.n_addrs && !has; i++)
		has = siw_addr_same_host(&shown.addrs[i], addr);
	return has;
}

static int check_ah_source(struct siw_pd *pd, const struct siw_addr *dest,
			   const struct siw_addr *source)
{
	if (!source->family)
		return 0;
	return source->family == dest->family && context_has_addr(pd->ctx, source)
		       ? 0
		       : siw_refuse(HANDLE_SOURCE);
}

/*
 * Returns the device's interface index, which is the scope of a link-local destination address; 0:
 * unknown.
 */
static uint32_t device_interface_index(struct siw_context *ctx)
{
	struct siw_device_info shown;
	uint32_t scope = 0;

	siw_device_get_info_shown_to_program(ctx, &shown);
	for (uint32_t i = 0; i < shown.n_addrs && !scope; i++)
		scope = shown.addrs[i].family == AF_INET6 ? shown.addrs[i].scope : 0;
	return scope;
}

struct siw_ah *siw_create_ah(struct siw_pd *pd, const struct siw_addr *dest)
{
	static const struct siw_addr any;

	return siw_create_ah_from(pd, dest, &any);
}

struct siw_ah *siw_create_ah_from(struct siw_pd *pd, const struct siw_addr *dest,
				  const struct siw_addr *source)
{
	struct siw_ah *ah;
	int err;

	siw_reason_begin();
	err = check_ah_destination(pd, dest);
	if (!err)
		err = source ? check_ah_source(pd, dest, source) : siw_refuse_null("source");
	if (err)
		return siw_refuse_and_return_null(err);
	if (!siw_device_increment_count_if_below_max(&pd->ctx->n_ah, pd->ctx->attr.max_ah))
		return siw_refuse_and_return_null(
			siw_device_refuse_limit_reached("max_ah", pd->ctx->attr.max_ah));
	ah = alloc_address_handle(pd, dest, source);
	if (!ah) {
		atomic_fetch_sub(&pd->ctx->n_ah, 1);
		return siw_refuse_and_return_null(-ENOMEM);
	}
	if (siw_addr_is_link_local(dest) && !dest->scope)
		ah->dest.scope = device_interface_index(pd->ctx);
	atomic_fetch_add(&pd->n_ah, 1);
	siw_device_add_child(pd->ctx, &ah->child, SIW_CHILD_PASSIVE, NULL, -1);
	return ah;
}

/* Checks the address handle that is passed to a verb; see siw_device_check_usable(). */
static int check_address_handle(const struct siw_ah *ah)
{
	const struct siw_pd *pd = ah ? ah->pd : NULL;
	int err = siw_device_check_usable(pd ? pd->ctx : NULL, "ah");

	return ah && !pd ? siw_refuse(DESTROYED) : err;
}

int siw_destroy_ah(struct siw_ah *ah)
{
	struct siw_pd *pd;
	int err = check_address_handle(ah);

	if (err)
		return err;
	pd = ah->pd;
	if (siw_device_is_ah_in_use(ah))
		return siw_refuse(AH_BUSY);
	atomic_store(&ah->pd, NULL);
	siw_device_remove_child(pd->ctx, &ah->child);
	atomic_fetch_sub(&pd->n_ah, 1);
	atomic_fetch_sub(&pd->ctx->n_ah, 1);
	siw_device_freelist_give(&pd->ctx->free_ahs, &ah->in_freelist);
	return 0;
}

int siw_query_ah(struct siw_ah *ah, struct siw_addr *dest)
{
	int err = check_address_handle(ah);

	if (err)
		return err;
	if (!dest)
		return siw_refuse_null("dest");
	*dest = ah->dest;
	return 0;
}

void *siw_ah_room(struct siw_ah *ah)
{
	siw_reason_begin();
	return ah ? ah->room : siw_refuse_and_return_null(siw_refuse_null("ah"));
}
