/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Closing a device that still has children. Each child is ended as if the program had destroyed it,
 * and its descriptors and large buffers are freed. The small structs that the program's handles
 * point to are kept, with the context, so that a late call finds that its device is closed.
 */

#include "base/os.h"
#include "base/clock.h"
#include "base/guard.h"
#include "device/device_impl.h"

#define MS_NS 1000000
/* maximum time to wait for waiters; a running waiter returns sooner */
#define WAITERS_LEAVE_NS 5000000000ull

/* Ends all children of this rank. The structs stay in a list and are never freed. */
static void children_end(struct siw_context *ctx, enum siw_child_rank rank)
{
	struct siw_link *list = &ctx->children[rank];

	while (!siw_link_empty(list)) {
		struct siw_child *child = siw_container(list->next, struct siw_child, link);

		siw_device_child_del(ctx, child);
		child->end(child);
		siw_device_child_add(ctx, child, SIW_CHILD_PASSIVE, NULL, -1);
	}
}

static void wake_all_waiters(struct siw_context *ctx)
{
	siw_llp_port_wake(ctx->port);
	siw_llp_event_set(ctx->async_fd);
	siw_lock(&ctx->children_lock);
	for (int rank = 0; rank < SIW_CHILD_RANKS; rank++)
		for (struct siw_link *l = ctx->children[rank].next; l != &ctx->children[rank];
		     l = l->next) {
			const struct siw_child *child = siw_container(l, struct siw_child, link);

			if (child->fd >= 0)
				siw_llp_event_set(child->fd);
		}
	siw_unlock(&ctx->children_lock);
}

/*
 * Waits until no thread waits on the device. The time is limited, because a debugger or a signal
 * handler may hold a waiter for long.
 */
static void end_waits(struct siw_context *ctx)
{
	uint64_t until = siw_now_ns() + WAITERS_LEAVE_NS;

	while ((atomic_load(&ctx->waiters) || atomic_load(&ctx->aside)) && siw_now_ns() < until) {
		wake_all_waiters(ctx);
		siw_sleep_ns(MS_NS);
	}
}

int siw_close_device_forced(struct siw_context *ctx)
{
	siw_reason_begin();
	if (!ctx)
		return siw_refuse_null("context");
	/* From here on every call on the device and its children is refused. */
	if (atomic_exchange(&ctx->inherited, true))
		return siw_refuse(STALE);
	end_waits(ctx);
	siw_device_thread_stop(ctx);
	siw_device_shutdown_connections(ctx, siw_now_ns() +
						     (uint64_t)siw_settings()->linger_ms * 1000000);
	for (int rank = 0; rank < SIW_CHILD_PASSIVE; rank++)
		children_end(ctx, rank);
	siw_device_close_rest(ctx);
	siw_device_context_retire(ctx);
	return 0;
}
