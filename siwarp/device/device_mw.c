/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Memory windows, and invalidation by local requests. Only the STag table records whether a window
 * is bound: when a peer invalidates a window's key, the window itself is not updated. Each region
 * lists the windows that were last bound to it.
 *
 * The form of a bind is checked when the bind is posted. Access rights may change until the bind is
 * carried out, so they are checked then. A posted bind pins its window and region meanwhile.
 */
#include <errno.h>
#include <stdlib.h>

#include "device/device_impl.h"

#define OCTET 0xffu /* the octet of a type 2 key that the program chooses */

static struct siw_window *private_struct_of_mw(struct siw_mw *mw)
{
	return siw_container(mw, struct siw_window, mw);
}

uint32_t siw_inc_rkey(uint32_t rkey)
{
	return (rkey & ~OCTET) | ((rkey + 1) & OCTET);
}

/* ---- regions with windows -------------------------------------------------------------------- */

void siw_device_region_allow_mw_binds(struct siw_region *region)
{
	if (!(region->access & SIW_ACCESS_MW_BIND))
		return;
	siw_lock(&region->mr.context->mw_lock);
	atomic_store(&region->bindable, true);
	siw_unlock(&region->mr.context->mw_lock);
}

/* Removes a window from its region's list. Called with mw_lock held. */
static void remove_memory_window_from_region(struct siw_window *w)
{
	if (!w->region)
		return;
	siw_link_del(&w->in_region);
	w->region = NULL;
}

static bool region_has_bound_memory_windows(struct siw_region *region)
{
	struct siw_mem *mem = region->mr.context->mem;

	for (struct siw_link *l = region->windows.next; l != &region->windows; l = l->next)
		if (siw_mem_is_stag_valid(mem,
					  siw_container(l, struct siw_window, in_region)->stag))
			return true;
	return false;
}

/* Makes every QP end the previous bindings that its binds have replaced. */
static void end_replaced_mw_bindings_of_qps(struct siw_context *ctx)
{
	SIW_EACH_LANE(lane, ctx)
	{
		siw_lock(&lane->lock);
		siw_device_mw_continue_binds(lane);
		siw_unlock(&lane->lock);
	}
}

/*
 * A bind that was flushed while its replaced binding was being ended leaves the region pinned until
 * each lane has made a round.
 */
static void end_revocations_of_flushed_binds(struct siw_context *ctx)
{
	if (ctx->n_lanes == 1)
		return;
	SIW_EACH_LANE(lane, ctx)
	{
		siw_lock(&lane->lock);
		siw_device_mw_revoke_replaced_bindings(lane);
		siw_unlock(&lane->lock);
	}
}

int siw_device_region_forbid_mw_binds(struct siw_region *region)
{
	struct siw_context *ctx = region->mr.context;
	bool ended = false;

	if (!atomic_load(&region->bindable))
		return 0;
	end_revocations_of_flushed_binds(ctx);
	siw_lock(&ctx->mw_lock);
	if (region->pins || region_has_bound_memory_windows(region)) {
		siw_unlock(&ctx->mw_lock);
		return siw_refuse(MR_WINDOWS);
	}
	atomic_store(&region->bindable, false);
	while (!siw_link_empty(&region->windows)) {
		remove_memory_window_from_region(
			siw_container(region->windows.next, struct siw_window, in_region));
		ended = true;
	}
	siw_unlock(&ctx->mw_lock);
	if (ended)
		end_replaced_mw_bindings_of_qps(ctx);
	return 0;
}

/* ---- windows --------------------------------------------------------------------------------- */

static struct siw_window *alloc_memory_window(struct siw_pd *pd, int type, uint32_t stag)
{
	struct siw_link *old = siw_device_freelist_take(&pd->ctx->free_windows);
	struct siw_window *w = old ? siw_container(old, struct siw_window, in_freelist)
				   : calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	if (!old) {
		w->mw.context = pd->ctx;
		siw_link_init(&w->in_region);
		siw_link_init(&w->in_freelist);
	}
	/* The lock is held because a late post may be reading the window. */
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
	int err = siw_device_check_usable(ctx, "pd");

	if (err)
		return siw_refuse_and_return_null(err);
	if (type != SIW_MW_TYPE_1 && type != SIW_MW_TYPE_2)
		return siw_refuse_and_return_null(siw_refuse_value("type", type, "siw_mw_type"));
	if (!siw_device_increment_count_if_below_max(&ctx->n_mw, ctx->attr.max_mw))
		return siw_refuse_and_return_null(
			siw_device_refuse_limit_reached("max_mw", ctx->attr.max_mw));
	if (siw_mem_stag_reserve(ctx->mem, type == SIW_MW_TYPE_2, &stag)) {
		siw_device_refuse_limit_reached("max_mr", SIW_MAX_MR);
		goto give_back;
	}
	w = alloc_memory_window(pd, type, stag);
	if (w) {
		atomic_fetch_add(&pd->n_mw, 1);
		siw_device_add_child(ctx, &w->child, SIW_CHILD_PASSIVE, NULL, -1);
		return &w->mw;
	}
	siw_mem_stag_free(ctx->mem, stag);
give_back:
	atomic_fetch_sub(&ctx->n_mw, 1);
	return siw_refuse_and_return_null(-ENOMEM);
}

/*
 * Makes a window unusable. Returns 0, -EBUSY or -EINVAL. *region: the window's region, pinned, or
 * NULL.
 */
static int invalidate_memory_window(struct siw_window *w, struct siw_region **region)
{
	struct siw_context *ctx = w->mw.context;
	int err = 0;

	siw_lock(&ctx->mw_lock);
	if (!w->live) {
		err = siw_refuse(DESTROYED);
	} else if (w->pins) {
		err = siw_refuse(MW_BUSY);
	} else {
		w->live = false;
		*region = w->region;
		if (w->region)
			w->region->pins++;
		remove_memory_window_from_region(w);
		siw_mem_stag_free(ctx->mem, w->stag);
	}
	siw_unlock(&ctx->mw_lock);
	return err;
}

static void decrement_region_pins(struct siw_context *ctx, struct siw_region *region)
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
	int err = siw_device_check_usable(mw ? mw->context : NULL, "mw");

	if (err)
		return err;
	w = private_struct_of_mw(mw);
	ctx = mw->context;
	pd = mw->pd;
	err = invalidate_memory_window(w, &region);
	if (err)
		return err;
	if (region) {
		siw_device_reset_streams_using_stag(ctx, w->stag);
		decrement_region_pins(ctx, region);
	}
	atomic_fetch_sub(&pd->n_mw, 1);
	atomic_fetch_sub(&ctx->n_mw, 1);
	siw_device_remove_child(ctx, &w->child);
	siw_device_freelist_give(&ctx->free_windows, &w->in_freelist);
	return 0;
}

/* ---- binds ----------------------------------------------------------------------------------- */

int siw_device_mw_pin_for_bind(struct siw_context *ctx, const struct siw_send_wr *wr, int type,
			       struct siw_bind *bind)
{
	const struct siw_mw_bind_info *info = &wr->bind_mw.bind_info;
	struct siw_window *w = private_struct_of_mw(wr->bind_mw.mw);
	struct siw_region *r =
		info->mr && info->length ? siw_container(info->mr, struct siw_region, mr) : NULL;
	struct siw_revocation *revocation = NULL;
	int err = 0;

	if (type == SIW_MW_TYPE_1 && ctx->n_lanes > 1) {
		revocation = calloc(1, sizeof(*revocation));
		if (!revocation)
			return -ENOMEM;
		/*
		 * The set of lanes must not become empty before
		 * siw_device_mw_end_replaced_binding() stores the lanes that have to end the
		 * binding: an empty set means that all lanes have ended it.
		 */
		revocation->lanes = ~(uint32_t)0;
	}
	siw_lock(&ctx->mw_lock);
	if (r && !atomic_load(&r->bindable))
		r = NULL; /* the bind will fail when it is carried out */
	if (!w->live) {
		err = siw_refuse(BIND_WINDOW);
	} else if (w->mw.type != type) {
		err = type == SIW_MW_TYPE_1 ? siw_refuse(BIND_TYPE_2) : siw_refuse(BIND_TYPE_1);
	} else {
		w->pins++;
		if (r)
			r->pins++;
		if (type == SIW_MW_TYPE_1)
			w->mw.rkey = wr->bind_mw.rkey;
	}
	siw_unlock(&ctx->mw_lock);
	*bind = (struct siw_bind){
		.window = w,
		.region = r,
		.addr = info->addr,
		.length = info->length,
		.rkey = wr->bind_mw.rkey,
		.access = (int)info->mw_access_flags,
		.revocation = revocation,
	};
	if (err) {
		free(revocation);
		bind->revocation = NULL;
	}
	return err;
}

void siw_device_mw_drop_bind(struct siw_context *ctx, struct siw_bind *bind)
{
	struct siw_window *w = bind->window;
	bool own_key;

	if (!w)
		return;
	siw_lock(&ctx->mw_lock);
	w->pins--;
	if (bind->region)
		bind->region->pins--;
	own_key = w->mw.type == SIW_MW_TYPE_1;
	siw_unlock(&ctx->mw_lock);
	bind->window = NULL;
	free(bind->revocation);
	if (own_key)
		siw_mem_stag_free(ctx->mem, bind->rkey);
}

static bool is_range_in_region(const struct siw_region *r, uint64_t addr, uint64_t length)
{
	uint64_t start = r->iova, size = r->mr.length;

	return addr >= start && addr - start <= size && length <= size - (addr - start);
}

/*
 * Returns whether the bind is allowed. is_mw_bind_allowed(), bind_memory_window() and
 * unbind_memory_window() are called with mw_lock held.
 */
static bool is_mw_bind_allowed(const struct siw_qp *qp, const struct siw_bind *bind)
{
	const struct siw_window *w = bind->window;
	const struct siw_region *r = bind->region;
	bool of_qp = w->mw.type == SIW_MW_TYPE_2;

	if (w->mw.pd != qp->pd)
		return false;
	if (of_qp &&
	    ((bind->rkey ^ w->stag) & ~OCTET || siw_mem_is_stag_valid(qp->ctx->mem, w->stag)))
		return false;
	if (!bind->length)
		return !of_qp;
	if (!r || r->mr.pd != qp->pd || !is_range_in_region(r, bind->addr, bind->length))
		return false;
	/* A region that belongs to one QP must not become accessible to others. */
	if (of_qp && r->owner && r->owner != siw_device_owner(qp))
		return false;
	return !(bind->access & (SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_ATOMIC)) ||
	       r->access & SIW_ACCESS_LOCAL_WRITE;
}

/* Creates the new binding of a window; a bind of length 0 creates none. */
static int bind_memory_window(const struct siw_qp *qp, const struct siw_bind *bind)
{
	const struct siw_window *w = bind->window;
	bool of_qp = w->mw.type == SIW_MW_TYPE_2;
	struct siw_mem_region region = {
		.length = bind->length,
		.to_base = bind->access & SIW_ACCESS_ZERO_BASED ? 0 : bind->addr,
		.rights = siw_device_mem_rights_of_access(bind->access),
		.pd = qp->pd->number,
	};

	if (!bind->length)
		return 0;
	region.addr = (uint8_t *)bind->region->mr.addr + (bind->addr - bind->region->iova);
	if (of_qp)
		region.rights |= SIW_MEM_REMOTE_INVALIDATE;
	region.stream = of_qp ? siw_device_owner(qp) : bind->region->owner;
	return siw_mem_stag_bind(qp->ctx->mem, bind->rkey, &region);
}

/*
 * Ends the previous binding of a window. Returns whether streams may still be sending Read
 * Responses from it.
 */
static bool unbind_memory_window(const struct siw_qp *qp, struct siw_window *w,
				 struct siw_bind_rest *rest)
{
	struct siw_mem *mem = qp->ctx->mem;
	bool bound;

	/* the window was not bound; otherwise is_mw_bind_allowed() would have failed */
	if (w->mw.type == SIW_MW_TYPE_2)
		return false;
	bound = siw_mem_is_stag_valid(mem, w->stag);
	siw_mem_stag_free(mem, w->stag);
	if (!bound)
		return false;
	w->region->pins++;
	*rest = (struct siw_bind_rest){ w->stag, w->region, NULL };
	return true;
}

/*
 * Keeps the struct that a bind has allocated for the revocation of the binding that it replaces.
 * waiter: the lane of the queue pair, which waits until the binding has ended. The waiter is stored
 * already now, because the queue pair may stop waiting before the revocation begins: the reset of
 * the lane's streams may also reset the stream of the queue pair.
 */
static void keep_revocation_until_binding_ends(struct siw_bind_rest *rest,
					       struct siw_revocation *revocation,
					       struct siw_lane *waiter)
{
	rest->revocation = revocation;
	if (revocation)
		revocation->waiter = waiter;
}

int siw_device_mw_bind(struct siw_qp *qp, struct siw_bind *bind, struct siw_bind_rest *rest)
{
	struct siw_window *w = bind->window;
	struct siw_region *r = bind->region;
	int result = SIW_WC_MW_BIND_ERR;

	siw_lock(&qp->ctx->mw_lock);
	if (is_mw_bind_allowed(qp, bind) && !bind_memory_window(qp, bind)) {
		result = unbind_memory_window(qp, w, rest) ? -EINPROGRESS : 0;
		if (result == -EINPROGRESS)
			keep_revocation_until_binding_ends(rest, bind->revocation, qp->lane);
		else
			free(bind->revocation);
		remove_memory_window_from_region(w);
		w->stag = bind->rkey;
		w->region = bind->length ? r : NULL;
		if (w->region)
			siw_link_add(&r->windows, &w->in_region);
		w->pins--;
		if (r)
			r->pins--;
		bind->window = NULL;
	}
	siw_unlock(&qp->ctx->mw_lock);
	if (result == SIW_WC_MW_BIND_ERR)
		siw_device_mw_drop_bind(qp->ctx, bind);
	return result;
}

/* Makes other lanes end a replaced binding. Returns false if no other lane can be using it. */
static bool begin_revocation(struct siw_lane *lane, const struct siw_bind_rest *rest)
{
	struct siw_revocation *revocation = rest->revocation;
	struct siw_context *ctx = lane->ctx;
	uint32_t others;

	if (!revocation)
		return false;
	/* A queue pair that is created from now on cannot use the STag, which is invalid. */
	others = atomic_load(&ctx->lanes_with_qps) & ~(1u << lane->index);
	siw_lock(&ctx->revocations_lock);
	revocation->stag = rest->stag;
	revocation->region = rest->region;
	revocation->lanes = others;
	if (others)
		siw_link_add(&ctx->revocations, &revocation->link);
	siw_unlock(&ctx->revocations_lock);
	for (uint32_t left = others; left; left &= left - 1)
		siw_device_leave_work_for_lane(ctx->lanes[__builtin_ctz(left)],
					       SIW_LANE_REVOKE_BINDINGS);
	return others;
}

bool siw_device_mw_end_replaced_binding(struct siw_lane *lane, const struct siw_bind_rest *rest,
					const struct siw_qp *except)
{
	siw_device_reset_streams_using_stag_in_lane(lane, rest->stag, except);
	if (begin_revocation(lane, rest))
		return false;
	decrement_region_pins(lane->ctx, rest->region);
	free(rest->revocation);
	return true;
}

bool siw_device_mw_replaced_binding_has_ended(struct siw_context *ctx,
					      const struct siw_bind_rest *rest)
{
	bool ended;

	if (!rest->revocation)
		return false;
	siw_lock(&ctx->revocations_lock);
	ended = !rest->revocation->lanes;
	siw_unlock(&ctx->revocations_lock);
	if (ended)
		free(rest->revocation);
	return ended;
}

void siw_device_mw_stop_waiting_for_binding_end(struct siw_context *ctx,
						const struct siw_bind_rest *rest)
{
	bool ended;

	if (!rest->revocation)
		return;
	siw_lock(&ctx->revocations_lock);
	ended = !rest->revocation->lanes;
	rest->revocation->waiter = NULL;
	siw_unlock(&ctx->revocations_lock);
	if (ended)
		free(rest->revocation);
}

/* Returns a revocation that the lane has not handled yet, or NULL. */
static struct siw_revocation *find_revocation_of_lane(struct siw_lane *lane)
{
	struct siw_revocation *found = NULL;
	struct siw_context *ctx = lane->ctx;

	siw_lock(&ctx->revocations_lock);
	for (struct siw_link *l = ctx->revocations.next; l != &ctx->revocations && !found;
	     l = l->next) {
		struct siw_revocation *revocation = siw_container(l, struct siw_revocation, link);

		if (revocation->lanes >> lane->index & 1)
			found = revocation;
	}
	siw_unlock(&ctx->revocations_lock);
	return found;
}

/* Records that the streams of the lane do not use the replaced binding any longer. */
static void end_revocation_in_lane(struct siw_lane *lane, struct siw_revocation *revocation)
{
	struct siw_context *ctx = lane->ctx;
	struct siw_region *region;
	struct siw_lane *waiter;
	bool ended;

	siw_lock(&ctx->revocations_lock);
	revocation->lanes &= ~(1u << lane->index);
	ended = !revocation->lanes;
	region = revocation->region;
	waiter = revocation->waiter;
	if (ended)
		siw_link_del(&revocation->link);
	siw_unlock(&ctx->revocations_lock);
	if (!ended)
		return;
	decrement_region_pins(ctx, region);
	if (waiter)
		siw_device_leave_work_for_lane(waiter, SIW_LANE_CONTINUE_BINDS);
	else
		free(revocation);
}

void siw_device_mw_revoke_replaced_bindings(struct siw_lane *lane)
{
	struct siw_revocation *revocation;

	while ((revocation = find_revocation_of_lane(lane))) {
		siw_device_reset_streams_using_stag_in_lane(lane, revocation->stag, NULL);
		end_revocation_in_lane(lane, revocation);
	}
}

void siw_device_mw_continue_binds(struct siw_lane *lane)
{
	struct siw_link *l, *next;

	for (l = lane->qps.next; l != &lane->qps; l = next) {
		struct siw_qp *qp = siw_container(l, struct siw_qp, in_lane);

		next = l->next;
		if (qp->ops->settle)
			qp->ops->settle(qp);
	}
}
