/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Memory windows, and invalidation by this end's own requests. Whether a window is bound is what the STag
 * table says of its key: a peer may end it, and nobody looks for the window then. A region knows the
 * windows that were bound to it last.
 *
 * A bind is checked as to its form when it is posted, and as to rights when its turn comes: then both are
 * as they are. Until then it pins window and region.
 */
#include <errno.h>
#include <stdlib.h>

#include "verbs/verbs_impl.h"

#define OCTET 0xffu /* of a key of type 2: the program's */

static struct siw_window *window_of(struct siw_mw *mw)
{
	return siw_container(mw, struct siw_window, mw);
}

uint32_t siw_inc_rkey(uint32_t rkey)
{
	return (rkey & ~OCTET) | ((rkey + 1) & OCTET);
}

/* ---- regions, as windows see them ------------------------------------------------------------ */

void siw_verbs_mw_allow(struct siw_region *region)
{
	if (!(region->access & SIW_ACCESS_MW_BIND))
		return;
	siw_lock(&region->mr.context->mw_lock);
	atomic_store(&region->bindable, true);
	siw_unlock(&region->mr.context->mw_lock);
}

/* mw_lock held. */
static void leave_region(struct siw_window *w)
{
	if (!w->region)
		return;
	siw_link_del(&w->in_region);
	w->region = NULL;
}

static bool has_windows(struct siw_region *region)
{
	struct siw_rdmap_port *port = region->mr.context->port;

	for (struct siw_link *l = region->windows.next; l != &region->windows; l = l->next)
		if (siw_rdmap_stag_alive(port,
					 siw_container(l, struct siw_window, in_region)->stag))
			return true;
	return false;
}

/* What requests have ended without waiting for the streams that still send from there. */
static void settle_all(struct siw_context *ctx)
{
	struct siw_link *l, *next;

	siw_lock(&ctx->progress);
	for (l = ctx->qps.next; l != &ctx->qps; l = next) {
		struct siw_qp *qp = siw_container(l, struct siw_qp, in_ctx);
		bool cut;

		next = l->next;
		siw_lock(&qp->send_lock);
		cut = qp->cut && qp->stream;
		siw_unlock(&qp->send_lock);
		if (cut)
			siw_verbs_rc_abort(qp);
		else
			siw_verbs_mw_settle(qp, false);
	}
	siw_unlock(&ctx->progress);
}

int siw_verbs_mw_forbid(struct siw_region *region)
{
	struct siw_context *ctx = region->mr.context;
	bool ended = false;

	if (!atomic_load(&region->bindable))
		return 0;
	siw_lock(&ctx->mw_lock);
	if (region->pins || has_windows(region)) {
		siw_unlock(&ctx->mw_lock);
		return -EBUSY;
	}
	atomic_store(&region->bindable, false);
	while (!siw_link_alone(&region->windows)) {
		leave_region(siw_container(region->windows.next, struct siw_window, in_region));
		ended = true;
	}
	siw_unlock(&ctx->mw_lock);
	if (ended)
		settle_all(ctx);
	return 0;
}

/* ---- windows --------------------------------------------------------------------------------- */

static struct siw_window *new_window(struct siw_pd *pd, int type, uint32_t stag)
{
	struct siw_link *kept = siw_verbs_kept_take(&pd->ctx->kept_windows);
	struct siw_window *w = kept ? siw_container(kept, struct siw_window, kept)
				    : calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	if (!kept) {
		w->mw.context = pd->ctx;
		siw_link_init(&w->in_region);
		siw_link_init(&w->kept);
	}
	/* A post that comes too late may be looking. */
	siw_lock(&pd->ctx->mw_lock);
	w->mw.pd = pd;
	w->mw.rkey = w->mw.handle = w->stag = stag;
	w->mw.type = type;
	w->live = true;
	siw_unlock(&pd->ctx->mw_lock);
	return w;
}

struct siw_mw *siw_alloc_mw(struct siw_pd *pd, int type)
{
	struct siw_context *ctx = pd ? pd->ctx : NULL;
	struct siw_window *w;
	uint32_t stag;

	if (!pd || siw_verbs_inherited(ctx) || (type != SIW_MW_TYPE_1 && type != SIW_MW_TYPE_2)) {
		errno = pd && siw_verbs_inherited(ctx) ? ESTALE : EINVAL;
		return NULL;
	}
	errno = ENOMEM;
	if (!siw_verbs_take_one(&ctx->n_mw, ctx->attr.max_mw))
		return NULL;
	if (siw_rdmap_stag_reserve(ctx->port, type == SIW_MW_TYPE_2, &stag))
		goto give_back;
	w = new_window(pd, type, stag);
	if (w) {
		atomic_fetch_add(&pd->n_mw, 1);
		return &w->mw;
	}
	siw_rdmap_stag_free(ctx->port, stag);
give_back:
	atomic_fetch_sub(&ctx->n_mw, 1);
	errno = ENOMEM;
	return NULL;
}

/* Takes it from whoever may still use it: 0, -EBUSY, -EINVAL. *region: NULL, or pinned. */
static int end_window(struct siw_window *w, struct siw_region **region)
{
	struct siw_context *ctx = w->mw.context;
	int err = 0;

	siw_lock(&ctx->mw_lock);
	if (!w->live) {
		err = -EINVAL;
	} else if (w->pins) {
		err = -EBUSY;
	} else {
		w->live = false;
		*region = w->region;
		if (w->region)
			w->region->pins++;
		leave_region(w);
		siw_rdmap_stag_free(ctx->port, w->stag);
	}
	siw_unlock(&ctx->mw_lock);
	return err;
}

static void unpin_region(struct siw_context *ctx, struct siw_region *region)
{
	if (!region)
		return;
	siw_lock(&ctx->mw_lock);
	region->pins--;
	siw_unlock(&ctx->mw_lock);
}

int siw_dealloc_mw(struct siw_mw *mw)
{
	struct siw_region *region = NULL;
	struct siw_context *ctx;
	struct siw_window *w;
	struct siw_pd *pd;
	int err;

	if (!mw)
		return -EINVAL;
	w = window_of(mw);
	ctx = mw->context;
	if (siw_verbs_inherited(ctx))
		return -ESTALE;
	pd = mw->pd;
	err = end_window(w, &region);
	if (err)
		return err;
	if (region) {
		siw_verbs_revoke_stag(ctx, w->stag);
		unpin_region(ctx, region);
	}
	atomic_fetch_sub(&pd->n_mw, 1);
	atomic_fetch_sub(&ctx->n_mw, 1);
	siw_verbs_kept_give(&ctx->kept_windows, &w->kept);
	return 0;
}

/* ---- requests into the ring ------------------------------------------------------------------ */

static int check_bind(const struct siw_qp *qp, const struct siw_send_wr *wr)
{
	const unsigned int known = SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_READ |
				   SIW_ACCESS_REMOTE_ATOMIC | SIW_ACCESS_ZERO_BASED;
	const struct siw_mw_bind_info *info = &wr->bind_mw.bind_info;
	const struct siw_mw *mw = wr->bind_mw.mw;

	if (!mw || mw->context != qp->ctx || (info->mw_access_flags & ~known))
		return -EINVAL;
	if (info->mr ? info->mr->context != qp->ctx : info->length != 0)
		return -EINVAL;
	return 0;
}

static int pin(struct siw_qp *qp, struct siw_wqe *wqe, const struct siw_send_wr *wr, int type)
{
	const struct siw_mw_bind_info *info = &wr->bind_mw.bind_info;
	struct siw_window *w = window_of(wr->bind_mw.mw);
	struct siw_region *r =
		info->mr && info->length ? siw_container(info->mr, struct siw_region, mr) : NULL;
	int err = 0;

	siw_lock(&qp->ctx->mw_lock);
	if (r && !atomic_load(&r->bindable))
		r = NULL; /* its turn will say so */
	if (w->live && w->mw.type == type) {
		w->pins++;
		if (r)
			r->pins++;
		if (type == SIW_MW_TYPE_1)
			w->mw.rkey = wr->bind_mw.rkey;
	} else {
		err = -EINVAL;
	}
	siw_unlock(&qp->ctx->mw_lock);
	wqe->bind.window = w;
	wqe->bind.region = r;
	wqe->bind.length = info->length;
	wqe->bind.access = (int)info->mw_access_flags;
	wqe->remote = info->addr;
	wqe->rkey = wr->bind_mw.rkey;
	return err;
}

int siw_verbs_mw_post(struct siw_qp *qp, const struct siw_send_wr *wr, int type)
{
	const unsigned int known = SIW_SEND_FENCE | SIW_SEND_SIGNALED | SIW_SEND_SOLICITED;
	struct siw_send_wr plain = *wr;
	struct siw_wqe *wqe;
	int err = 0;

	if (wr->send_flags & ~known)
		return -EINVAL;
	if (wr->opcode == SIW_WR_BIND_MW)
		err = check_bind(qp, wr);
	if (err)
		return err;
	plain.num_sge = 0;
	wqe = siw_verbs_wqe_put(qp, &plain, 0);
	if (!wqe)
		return -ENOMEM;
	if (wr->opcode == SIW_WR_BIND_MW)
		err = pin(qp, wqe, wr, type);
	else
		wqe->rkey = wr->invalidate_rkey;
	if (err)
		qp->sq_tail--; /* as if it had not been */
	else if (qp->state == SIW_QPS_ERR)
		siw_verbs_flush_late_send(qp);
	return err;
}

static int bind_type_1(struct siw_qp *qp, const struct siw_send_wr *wr)
{
	enum siw_run run;
	int err;

	siw_lock(&qp->send_lock);
	if (qp->type == SIW_QPT_UD || qp->type == SIW_QPT_RD || qp->state < SIW_QPS_RTS) {
		siw_unlock(&qp->send_lock);
		return -EINVAL;
	}
	err = siw_verbs_mw_post(qp, wr, SIW_MW_TYPE_1);
	run = siw_verbs_run(qp);
	if (run != SIW_RUN_DONE) {
		siw_verbs_mark_unsent(qp);
		siw_verbs_nudge(qp->ctx);
	}
	siw_unlock(&qp->send_lock);
	return err;
}

int siw_bind_mw(struct siw_qp *qp, struct siw_mw *mw, struct siw_mw_bind *bind)
{
	struct siw_send_wr wr = { .opcode = SIW_WR_BIND_MW };
	int err;

	if (!qp || !mw || !bind)
		return -EINVAL;
	if (siw_verbs_inherited(qp->ctx))
		return -ESTALE;
	err = siw_rdmap_stag_reserve(qp->ctx->port, false, &wr.bind_mw.rkey);
	if (err)
		return err;
	wr.wr_id = bind->wr_id;
	wr.send_flags = bind->send_flags;
	wr.bind_mw.mw = mw;
	wr.bind_mw.bind_info = bind->bind_info;
	err = bind_type_1(qp, &wr);
	if (err)
		siw_rdmap_stag_free(qp->ctx->port, wr.bind_mw.rkey);
	return err;
}

void siw_verbs_mw_drop(struct siw_qp *qp, struct siw_wqe *wqe)
{
	struct siw_window *w = wqe->bind.window;
	bool own_key;

	if (!w)
		return;
	siw_lock(&qp->ctx->mw_lock);
	w->pins--;
	if (wqe->bind.region)
		wqe->bind.region->pins--;
	own_key = w->mw.type == SIW_MW_TYPE_1;
	siw_unlock(&qp->ctx->mw_lock);
	wqe->bind.window = NULL;
	if (own_key)
		siw_rdmap_stag_free(qp->ctx->port, wqe->rkey);
}

/* ---- their turn ------------------------------------------------------------------------------ */

static bool inside(const struct siw_mr *mr, uint64_t addr, uint64_t length)
{
	uint64_t start = (uintptr_t)mr->addr;

	return addr >= start && addr - start <= mr->length && length <= mr->length - (addr - start);
}

/* Whether the bind may be. mw_lock held, as for the two below. */
static bool may_bind(const struct siw_qp *qp, const struct siw_wqe *wqe)
{
	const struct siw_window *w = wqe->bind.window;
	const struct siw_region *r = wqe->bind.region;
	bool of_qp = w->mw.type == SIW_MW_TYPE_2;

	if (w->mw.pd != qp->pd)
		return false;
	if (of_qp &&
	    ((wqe->rkey ^ w->stag) & ~OCTET || siw_rdmap_stag_alive(qp->ctx->port, w->stag)))
		return false;
	if (!wqe->bind.length)
		return !of_qp;
	if (!r || r->mr.pd != qp->pd || !inside(&r->mr, wqe->remote, wqe->bind.length))
		return false;
	/* A region of one QP is not opened to others. */
	if (of_qp && r->owner && r->owner != siw_verbs_owner(qp))
		return false;
	return !(wqe->bind.access & (SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_ATOMIC)) ||
	       r->access & SIW_ACCESS_LOCAL_WRITE;
}

static int open_window(const struct siw_qp *qp, const struct siw_wqe *wqe)
{
	const struct siw_window *w = wqe->bind.window;
	bool of_qp = w->mw.type == SIW_MW_TYPE_2;
	struct siw_rdmap_region region = {
		.addr = (void *)(uintptr_t)wqe->remote,
		.length = wqe->bind.length,
		.rights = (uint32_t)wqe->bind.access,
		.pd = qp->pd->number,
		.window = true,
		.zero_based = wqe->bind.access & SIW_ACCESS_ZERO_BASED,
	};

	if (of_qp)
		region.rights |= SIW_ACCESS_REMOTE_INVALIDATE;
	region.owner = of_qp ? siw_verbs_owner(qp) : wqe->bind.region->owner;
	return siw_rdmap_stag_bind(qp->ctx->port, wqe->rkey, &region);
}

/* The binding before goes: whether streams may still be answering Reads from there. */
static bool close_window(struct siw_qp *qp, struct siw_window *w)
{
	struct siw_rdmap_port *port = qp->ctx->port;
	bool bound;

	if (w->mw.type == SIW_MW_TYPE_2) /* it was invalid */
		return false;
	bound = siw_rdmap_stag_alive(port, w->stag);
	siw_rdmap_stag_free(port, w->stag);
	if (!bound)
		return false;
	w->region->pins++;
	qp->revoke = (struct siw_revoke){ SIW_REVOKE_DUE, w->stag, qp->sq_next, w->region };
	qp->cut = qp->stream && siw_rdmap_revoke(qp->stream, w->stag) == 1;
	return true;
}

static int do_bind(struct siw_qp *qp, struct siw_wqe *wqe)
{
	struct siw_window *w = wqe->bind.window;
	struct siw_region *r = wqe->bind.region;
	int result = SIW_WC_MW_BIND_ERR;

	siw_lock(&qp->ctx->mw_lock);
	if (may_bind(qp, wqe) && (!wqe->bind.length || !open_window(qp, wqe))) {
		result = close_window(qp, w) ? -EINPROGRESS : 0;
		leave_region(w);
		w->stag = wqe->rkey;
		w->region = wqe->bind.length ? r : NULL;
		if (w->region)
			siw_link_add(&r->windows, &w->in_region);
		w->pins--;
		if (r)
			r->pins--;
		wqe->bind.window = NULL;
	}
	siw_unlock(&qp->ctx->mw_lock);
	if (result == SIW_WC_MW_BIND_ERR)
		siw_verbs_mw_drop(qp, wqe);
	return result;
}

int siw_verbs_mw_begin(struct siw_qp *qp, struct siw_wqe *wqe)
{
	if (wqe->opcode == SIW_WR_BIND_MW)
		return qp->revoke.due ? -EINPROGRESS : do_bind(qp, wqe);
	if (siw_rdmap_stag_invalidate(qp->ctx->port, wqe->rkey, siw_verbs_owner(qp)))
		return SIW_WC_LOC_PROT_ERR;
	/* Nobody else's peer could use it. */
	qp->cut = qp->stream && siw_rdmap_revoke(qp->stream, wqe->rkey) == 1;
	return qp->cut ? -EINPROGRESS : 0;
}

void siw_verbs_mw_settle(struct siw_qp *qp, bool last)
{
	struct siw_revoke revoke;

	siw_lock(&qp->send_lock);
	revoke = qp->revoke;
	if (revoke.due == SIW_REVOKE_DUE)
		qp->revoke.due = SIW_REVOKE_BEGUN;
	siw_unlock(&qp->send_lock);
	if (revoke.due != SIW_REVOKE_DUE)
		return;
	siw_verbs_revoke_stag_locked(qp->ctx, revoke.stag, last ? qp : NULL);
	unpin_region(qp->ctx, revoke.region);
	siw_lock(&qp->send_lock);
	/* Unless its requests were flushed meanwhile. */
	if (qp->revoke.due == SIW_REVOKE_BEGUN) {
		qp->revoke.due = SIW_REVOKE_NONE;
		if (qp->sq_next == revoke.index && qp->sq_next != qp->sq_tail)
			siw_verbs_rc_did_local(qp);
	}
	siw_unlock(&qp->send_lock);
	siw_verbs_mark_unsent(qp);
}
