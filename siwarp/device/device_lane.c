/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Lanes. A lane has a socket poller, a progress lock, and everything else that a progress round
 * needs (struct siw_lane). Threads that make progress on different lanes do not wait for each
 * other.
 */
#include <errno.h>
#include <stdlib.h>

#include "device/device_impl.h"

void siw_device_lane_init(struct siw_lane *lane, struct siw_context *ctx, unsigned int index)
{
	lane->ctx = ctx;
	lane->index = index;
	siw_lock_init(&lane->lock);
	siw_lock_init(&lane->unsent_lock);
	siw_lock_init(&lane->busy_lock);
	siw_link_init(&lane->unsent);
	siw_link_init(&lane->timed);
	siw_link_init(&lane->qps);
	siw_link_init(&lane->addr_followers);
	siw_link_init(&lane->groups);
	siw_link_init(&lane->pair_ports);
	siw_link_init(&lane->lingering_rds);
	siw_link_init(&lane->busy);
	for (int i = 0; i < SIW_QP_TYPES; i++)
		siw_device_freelist_init(&lane->free_qps[i]);
}

static void lane_reset(struct siw_lane *lane)
{
	atomic_store(&lane->cq_overrun, false);
	atomic_store(&lane->polls, 0);
	atomic_store(&lane->polls_without_round, 0);
	atomic_store(&lane->posts_dense, false);
	atomic_store(&lane->posted_octets, 0);
	atomic_store(&lane->no_delay_until_ns, 0);
	lane->no_delay_ns = 0;
	atomic_store(&lane->armed_at, 0);
	atomic_store(&lane->work_of_others, 0);
	lane->idle_polls = (struct siw_idle_polls){ 0 };
	atomic_store(&lane->rounds, 0);
	atomic_store(&lane->seen_rounds, 0);
	atomic_store(&lane->unserved_since_ns, 0);
	atomic_store(&lane->adopted, 0);
	atomic_store(&lane->failed_polls, 0);
	atomic_store(&lane->looks, 0);
	atomic_store(&lane->last_look, 0);
	lane->polls_with_work = 0;
	lane->unsent_rounds = 0;
	lane->more_to_send = false;
	lane->one_sided = 0;
}

/* Opens a lane's poller. Called with lanes_lock held. */
static int lane_open_poller(struct siw_lane *lane)
{
	struct siw_context *ctx = lane->ctx;
	const struct siw_llp_poller *sibling = lane->index ? ctx->lane0.poller : NULL;
	struct siw_llp_poller *poller;
	int err = siw_llp_poller_open(sibling, &poller);

	if (err)
		return err;
	lane_reset(lane);
	siw_lock(&lane->lock);
	lane->poller = poller;
	siw_unlock(&lane->lock);
	/* Release order pairs with siw_device_next_lane(). */
	atomic_fetch_or_explicit(&ctx->open_lanes, 1u << lane->index, memory_order_release);
	return 0;
}

/* Called with lanes_lock held. */
static int lane_alloc_and_open(struct siw_context *ctx, unsigned int index)
{
	struct siw_lane *lane = ctx->lanes[index];

	if (!lane) {
		if (posix_memalign((void **)&lane, 64, sizeof(*lane)))
			return -ENOMEM;
		memset(lane, 0, sizeof(*lane));
		siw_device_lane_init(lane, ctx, index);
		ctx->lanes[index] = lane;
	}
	return lane_open_poller(lane);
}

/* Opens a lane of the device, unless it is open. Called with lanes_lock held. */
static int lane_open(struct siw_context *ctx, unsigned int index)
{
	int err;

	if (atomic_load(&ctx->open_lanes) >> index & 1)
		return 0;
	/* Pairs with siw_device_await_opening_of_lanes(). */
	err = siw_device_inherited(ctx) ? siw_refuse(STALE) : lane_alloc_and_open(ctx, index);
	/* The thread that makes progress may be sleeping on the other lanes only: wake it. */
	if (!err && index && ctx->has_thread)
		siw_llp_event_fd_set(ctx->sleep_fd);
	else if (!err && index)
		siw_llp_poller_wake(ctx->lane0.poller);
	return err;
}

int siw_device_lane0_open(struct siw_context *ctx)
{
	int err;

	siw_lock(&ctx->lanes_lock);
	err = lane_open(ctx, 0);
	siw_unlock(&ctx->lanes_lock);
	return err;
}

void siw_device_await_opening_of_lanes(struct siw_context *ctx)
{
	siw_lock(&ctx->lanes_lock);
	siw_unlock(&ctx->lanes_lock);
}

bool siw_device_has_waiters(const struct siw_context *ctx)
{
	for (const struct siw_lane *lane = &ctx->lane0; lane; lane = siw_device_next_lane(lane))
		if (atomic_load(&lane->waiters))
			return true;
	return false;
}

void siw_device_lanes_close(struct siw_context *ctx, struct siw_llp_watch *watch)
{
	struct siw_llp_poller *pollers[SIW_MAX_LANES];
	int n = 0;

	SIW_EACH_LANE(lane, ctx)
	{
		pollers[n++] = lane->poller;
		siw_lock(&lane->lock);
		lane->poller = NULL;
		siw_unlock(&lane->lock);
	}
	atomic_store(&ctx->open_lanes, 0);
	if (watch)
		siw_llp_interface_watch_close(watch);
	while (n)
		siw_llp_poller_close(pollers[--n]);
}

void siw_device_leave_work_for_lane(struct siw_lane *lane, enum siw_lane_work work)
{
	struct siw_llp_poller *poller = lane->poller;

	atomic_fetch_or(&lane->work_of_others, (uint32_t)work);
	if (poller)
		siw_llp_poller_wake(poller);
}

static unsigned int lane_with_fewest_cqs(const struct siw_context *ctx)
{
	unsigned int best = 0;

	for (unsigned int i = 1; i < ctx->n_lanes; i++)
		if (ctx->lane_cqs[i] < ctx->lane_cqs[best])
			best = i;
	return best;
}

int siw_device_cq_lane_choose(struct siw_context *ctx, unsigned int comp_vector,
			      struct siw_lane **out)
{
	unsigned int index;
	int err;

	siw_lock(&ctx->lanes_lock);
	index = comp_vector ? comp_vector : lane_with_fewest_cqs(ctx);
	ctx->lane_cqs[index]++;
	err = lane_open(ctx, index);
	if (err)
		ctx->lane_cqs[index]--;
	siw_unlock(&ctx->lanes_lock);
	*out = err ? NULL : ctx->lanes[index];
	return err;
}

void siw_device_cq_lane_release(struct siw_lane *lane)
{
	siw_lock(&lane->ctx->lanes_lock);
	lane->ctx->lane_cqs[lane->index]--;
	siw_unlock(&lane->ctx->lanes_lock);
}
