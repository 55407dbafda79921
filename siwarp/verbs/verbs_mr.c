/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Protection domains, memory regions, address handles: what is registered rather than moved. */
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/addr.h"
#include "verbs/verbs_impl.h"

bool siw_verbs_take_one(_Atomic uint32_t *count, uint32_t max)
{
	if (atomic_fetch_add(count, 1) < max)
		return true;
	atomic_fetch_sub(count, 1);
	return false;
}

struct siw_pd *siw_alloc_pd(struct siw_context *ctx)
{
	struct siw_pd *pd;

	if (!ctx || siw_verbs_inherited(ctx)) {
		errno = ctx ? ESTALE : EINVAL;
		return NULL;
	}
	if (!siw_verbs_take_one(&ctx->n_pd, ctx->attr.max_pd)) {
		errno = ENOMEM;
		return NULL;
	}
	pd = calloc(1, sizeof(*pd));
	if (!pd) {
		atomic_fetch_sub(&ctx->n_pd, 1);
		errno = ENOMEM;
		return NULL;
	}
	pd->ctx = ctx;
	pd->number = atomic_fetch_add(&ctx->next_pd, 1) + 1;
	return pd;
}

int siw_dealloc_pd(struct siw_pd *pd)
{
	if (!pd)
		return -EINVAL;
	if (siw_verbs_inherited(pd->ctx))
		return -ESTALE;
	if (atomic_load(&pd->n_mr) || atomic_load(&pd->n_qp) || atomic_load(&pd->n_ah) ||
	    atomic_load(&pd->n_srq) || atomic_load(&pd->n_mw))
		return -EBUSY;
	atomic_fetch_sub(&pd->ctx->n_pd, 1);
	free(pd);
	return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/*
 * Is the octet at addr there? The kernel copies the 8 octets around it before it looks at the
 * (impossible) first argument, so EFAULT means absent, EINVAL present; nothing changes.
 */
static bool can_read(uintptr_t addr)
{
	long r;

	/* NULL would mean that there is no argument. */
	if (addr < 8)
		return false;
	r = syscall(SYS_rt_sigprocmask, ~0, addr & ~(uintptr_t)7, NULL, 8);
	return !(r < 0 && errno == EFAULT);
}

/*
 * Atomically adds 0 to the word around addr: EFAULT where the page is not there or cannot be
 * written.
 */
static bool can_write(uintptr_t addr)
{
	uint32_t nobody = 0;
	long r = syscall(SYS_futex, &nobody, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, 0,
			 addr & ~(uintptr_t)3, FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0));

	return !(r < 0 && errno == EFAULT);
}

static int probe(const void *addr, size_t length, int access)
{
	uintptr_t first = (uintptr_t)addr, last = first + length - 1;
	bool (*can)(uintptr_t) = access & SIW_ACCESS_LOCAL_WRITE ? can_write : can_read;

	if (!length)
		return 0;
	if (last < first)
		return -EINVAL;
	return can(first) && can(last) ? 0 : -EFAULT;
}

static int check_access(int access, bool bound)
{
	const int writes = SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_ATOMIC;
	int known = SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_REMOTE_READ | SIW_ACCESS_MW_BIND | writes;

	if (bound) /* RFC5040-7.2-05: of a whole domain nobody's peer may end it */
		known |= SIW_ACCESS_REMOTE_INVALIDATE;
	if (access & ~known)
		return -EINVAL;
	if ((access & writes) && !(access & SIW_ACCESS_LOCAL_WRITE))
		return -EINVAL;
	/* Its windows would outlive it. */
	if ((access & SIW_ACCESS_REMOTE_INVALIDATE) && (access & SIW_ACCESS_MW_BIND))
		return -EINVAL;
	return 0;
}

/* A new STag for this memory: 0 and *stag, or -errno. */
static int make_stag(const struct siw_pd *pd, const void *owner, void *addr, size_t length,
		     int access, uint32_t *stag)
{
	struct siw_rdmap_region region = { .addr = addr,
					   .length = length,
					   .rights = (uint32_t)access,
					   .pd = pd->number,
					   .owner = owner };
	int err = check_access(access, owner);

	if (!err && length > pd->ctx->attr.max_mr_size)
		err = -EINVAL;
	if (!err)
		err = probe(addr, length, access);
	return err ? err : siw_rdmap_stag_alloc(pd->ctx->port, &region, stag);
}

static void describe(struct siw_mr *mr, struct siw_pd *pd, void *addr, size_t length, uint32_t stag)
{
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = mr->rkey = mr->handle = stag;
}

/* A bind that comes too late may still look at one that was deregistered: it takes none then. */
static struct siw_region *new_region(struct siw_context *ctx)
{
	struct siw_link *kept = siw_verbs_kept_take(&ctx->kept_regions);
	struct siw_region *r;

	if (kept)
		return siw_container(kept, struct siw_region, kept);
	r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	r->mr.context = ctx;
	siw_link_init(&r->windows);
	siw_link_init(&r->kept);
	return r;
}

static struct siw_mr *register_memory(struct siw_pd *pd, const void *owner, void *addr,
				      size_t length, int access)
{
	struct siw_region *r = NULL;
	uint32_t stag;
	int err = siw_verbs_inherited(pd->ctx) ? -ESTALE : 0;

	if (!err) {
		r = new_region(pd->ctx);
		err = r ? make_stag(pd, owner, addr, length, access, &stag) : -ENOMEM;
	}
	if (err) {
		if (r)
			siw_verbs_kept_give(&pd->ctx->kept_regions, &r->kept);
		errno = -err;
		return NULL;
	}
	r->access = access;
	r->owner = owner;
	describe(&r->mr, pd, addr, length, stag);
	atomic_fetch_add(&pd->n_mr, 1);
	siw_verbs_mw_allow(r);
	return &r->mr;
}

struct siw_mr *siw_reg_mr(struct siw_pd *pd, void *addr, size_t length, int access)
{
	if (!pd) {
		errno = EINVAL;
		return NULL;
	}
	return register_memory(pd, NULL, addr, length, access);
}

struct siw_mr *siw_reg_mr_qp(struct siw_qp *qp, void *addr, size_t length, int access)
{
	if (!qp || qp->type == SIW_QPT_UD) {
		errno = EINVAL;
		return NULL;
	}
	return register_memory(qp->pd, siw_verbs_owner(qp), addr, length, access);
}

/* Responses that TCP has not taken yet still refer to the memory. */
void siw_verbs_revoke_stag_locked(struct siw_context *ctx, uint32_t stag,
				  const struct siw_qp *except)
{
	for (struct siw_link *l = ctx->qps.next; atomic_load(&ctx->n_rc) && l != &ctx->qps;
	     l = l->next) {
		struct siw_qp *qp = siw_container(l, struct siw_qp, in_ctx);
		bool in_flight;

		if (qp == except || !qp->stream)
			continue;
		siw_lock(&qp->send_lock);
		in_flight = siw_rdmap_revoke(qp->stream, stag) == 1;
		siw_unlock(&qp->send_lock);
		if (in_flight)
			siw_verbs_rc_abort(qp);
	}
}

/* Taking the progress lock waits for a placement that resolved it before. */
void siw_verbs_revoke_stag(struct siw_context *ctx, uint32_t stag)
{
	siw_lock(&ctx->progress);
	siw_verbs_revoke_stag_locked(ctx, stag, NULL);
	siw_unlock(&ctx->progress);
}

/* No peer and no request uses the STag when this returns. */
static int end_stag(struct siw_context *ctx, uint32_t stag)
{
	int err = siw_rdmap_stag_free(ctx->port, stag);

	if (!err)
		siw_verbs_revoke_stag(ctx, stag);
	return err;
}

int siw_dereg_mr(struct siw_mr *mr)
{
	struct siw_region *r = siw_container(mr, struct siw_region, mr);
	struct siw_pd *pd;
	int err;

	if (!mr)
		return -EINVAL;
	pd = mr->pd;
	if (siw_verbs_inherited(pd->ctx))
		return -ESTALE;
	if (siw_verbs_key_in_use(pd->ctx, mr->lkey))
		return -EBUSY;
	err = siw_verbs_mw_forbid(r);
	if (!err)
		err = end_stag(pd->ctx, mr->lkey);
	if (err)
		return err;
	atomic_fetch_sub(&pd->n_mr, 1);
	siw_verbs_kept_give(&pd->ctx->kept_regions, &r->kept);
	return 0;
}

static int rereg(struct siw_region *r, struct siw_pd *pd, void *addr, size_t length, int access)
{
	struct siw_pd *old_pd = r->mr.pd;
	uint32_t stag;
	int err;

	if (siw_verbs_key_in_use(old_pd->ctx, r->mr.lkey))
		return -EBUSY;
	/* The new one first: what can fail leaves the old one as it was. */
	err = make_stag(pd, r->owner, addr, length, access, &stag);
	if (err)
		return err;
	err = siw_verbs_mw_forbid(r);
	if (!err)
		err = end_stag(old_pd->ctx, r->mr.lkey);
	if (err) { /* windows are bound to it; or dead already: not a region any more */
		siw_rdmap_stag_free(pd->ctx->port, stag);
		return err;
	}
	describe(&r->mr, pd, addr, length, stag);
	r->access = access;
	atomic_fetch_add(&pd->n_mr, 1);
	atomic_fetch_sub(&old_pd->n_mr, 1);
	siw_verbs_mw_allow(r);
	return 0;
}

int siw_rereg_mr(struct siw_mr *mr, int flags, struct siw_pd *pd, void *addr, size_t length,
		 int access)
{
	const int known = SIW_REREG_MR_CHANGE_TRANSLATION | SIW_REREG_MR_CHANGE_PD |
			  SIW_REREG_MR_CHANGE_ACCESS;
	struct siw_region *r = siw_container(mr, struct siw_region, mr);
	int err = 0;

	if (!mr) {
		errno = EINVAL;
		return SIW_REREG_MR_ERR_CMD;
	}
	if (!(flags & SIW_REREG_MR_CHANGE_PD))
		pd = mr->pd;
	else if (!pd || pd->ctx != mr->pd->ctx || (r->owner && pd != mr->pd))
		err = -EINVAL;
	if (!(flags & SIW_REREG_MR_CHANGE_TRANSLATION)) {
		addr = mr->addr;
		length = mr->length;
	}
	if (!(flags & SIW_REREG_MR_CHANGE_ACCESS))
		access = r->access;
	if (!flags || (flags & ~known))
		err = -EINVAL;
	if (siw_verbs_inherited(mr->pd->ctx))
		err = -ESTALE;
	if (!err)
		err = rereg(r, pd, addr, length, access);
	if (!err)
		return 0;
	errno = -err;
	return err == -ENOENT ? SIW_REREG_MR_ERR_CMD : SIW_REREG_MR_ERR_INPUT;
}

/* ---- address handles ------------------------------------------------------------------------- */

/* A send that comes too late may still look at one that was destroyed: it is of no PD then. */
static struct siw_ah *new_ah(struct siw_pd *pd, const struct siw_addr *dest)
{
	struct siw_link *kept = siw_verbs_kept_take(&pd->ctx->kept_ahs);
	struct siw_ah *ah = kept ? siw_container(kept, struct siw_ah, kept) : malloc(sizeof(*ah));

	if (!ah)
		return NULL;
	siw_link_init(&ah->kept);
	ah->dest = *dest;
	ah->group = siw_addr_is_group(dest);
	if (ah->group)
		ah->dest.port_be = htons((uint16_t)siw_settings()->mcast_port);
	atomic_init(&ah->queued, false);
	if (dest->family == AF_INET6)
		memset(ah->dest.v4, 0, sizeof(ah->dest.v4)); /* the flow label's place */
	atomic_store(&ah->pd, pd);
	return ah;
}

void siw_verbs_free_kept_memory(struct siw_context *ctx)
{
	struct siw_link *kept;

	/* There may be a million; and no QP is left that would look at one. */
	while ((kept = siw_verbs_kept_take(&ctx->kept_ahs)))
		free(siw_container(kept, struct siw_ah, kept));
	while ((kept = siw_verbs_kept_take(&ctx->kept_regions)))
		free(siw_container(kept, struct siw_region, kept));
	while ((kept = siw_verbs_kept_take(&ctx->kept_windows)))
		free(siw_container(kept, struct siw_window, kept));
}

struct siw_ah *siw_create_ah(struct siw_pd *pd, const struct siw_addr *dest)
{
	struct siw_ah *ah;

	if (pd && siw_verbs_inherited(pd->ctx)) {
		errno = ESTALE;
		return NULL;
	}
	if (!pd || !dest || !siw_addr_len(dest)) {
		errno = EINVAL;
		return NULL;
	}
	if (!siw_verbs_take_one(&pd->ctx->n_ah, pd->ctx->attr.max_ah)) {
		errno = ENOMEM;
		return NULL;
	}
	ah = new_ah(pd, dest);
	if (!ah) {
		atomic_fetch_sub(&pd->ctx->n_ah, 1);
		errno = ENOMEM;
		return NULL;
	}
	atomic_fetch_add(&pd->n_ah, 1);
	return ah;
}

int siw_destroy_ah(struct siw_ah *ah)
{
	struct siw_pd *pd = ah ? ah->pd : NULL;

	if (!pd)
		return -EINVAL;
	if (siw_verbs_inherited(pd->ctx))
		return -ESTALE;
	if (siw_verbs_ah_in_use(ah))
		return -EBUSY;
	atomic_store(&ah->pd, NULL);
	atomic_fetch_sub(&pd->n_ah, 1);
	atomic_fetch_sub(&pd->ctx->n_ah, 1);
	siw_verbs_kept_give(&pd->ctx->kept_ahs, &ah->kept);
	return 0;
}

int siw_query_ah(struct siw_ah *ah, struct siw_addr *dest)
{
	const struct siw_pd *pd = ah ? ah->pd : NULL;

	if (!pd)
		return -EINVAL;
	if (siw_verbs_inherited(pd->ctx))
		return -ESTALE;
	if (!dest)
		return -EINVAL;
	*dest = ah->dest;
	return 0;
}
