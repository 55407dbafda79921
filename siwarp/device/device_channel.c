/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Completion channels: a descriptor that is readable while completion queues have unread events. */
#include <errno.h>
#include <stdlib.h>

#include "base/os.h"
#include "device/device_impl.h"

#define STEP_NS 200000

/*
 * The channel for whose event this thread waits while it makes progress. The channel's events need
 * not set the descriptor, because this thread will find them.
 */
static __thread struct siw_comp_channel *collecting;

static void comp_channel_destroy_by_force(struct siw_child *child)
{
	struct siw_comp_channel *ch = siw_container(child, struct siw_comp_channel, child);

	siw_llp_event_fd_close(ch->fd);
	siw_lock_destroy(&ch->lock);
}

struct siw_comp_channel *siw_create_comp_channel(struct siw_context *ctx)
{
	struct siw_comp_channel *ch;
	int err = siw_device_check_usable(ctx, "context");

	if (err)
		return siw_refuse_and_return_null(err);
	err = -ENOMEM;
	if (atomic_fetch_add(&ctx->n_channel, 1) >= SIW_MAX_CHANNELS) {
		err = siw_device_refuse_limit_reached("channels", SIW_MAX_CHANNELS);
		goto fail;
	}
	ch = calloc(1, sizeof(*ch));
	if (!ch)
		goto fail;
	ch->fd = siw_llp_event_fd_open();
	if (ch->fd < 0) {
		err = ch->fd;
		free(ch);
		goto fail;
	}
	ch->ctx = ctx;
	siw_lock_init(&ch->lock);
	siw_link_init(&ch->cqs);
	siw_device_add_child(ctx, &ch->child, SIW_CHILD_CHANNEL, comp_channel_destroy_by_force,
			     ch->fd);
	return ch;
fail:
	atomic_fetch_sub(&ctx->n_channel, 1);
	return siw_refuse_and_return_null(err);
}

int siw_destroy_comp_channel(struct siw_comp_channel *ch)
{
	int err = siw_device_check_usable(ch ? ch->ctx : NULL, "channel");

	if (err)
		return err;
	if (atomic_load(&ch->n_cq))
		return siw_refuse(CHANNEL_BUSY, atomic_load(&ch->n_cq));
	atomic_fetch_sub(&ch->ctx->n_channel, 1);
	siw_device_remove_child(ch->ctx, &ch->child);
	comp_channel_destroy_by_force(&ch->child);
	free(ch);
	return 0;
}

int siw_comp_channel_fd(struct siw_comp_channel *ch)
{
	int err = siw_device_check_usable(ch ? ch->ctx : NULL, "channel");

	if (err)
		return err;
	return ch->fd;
}

void siw_device_comp_channel_raise_cq_event(struct siw_cq *cq)
{
	struct siw_comp_channel *ch = cq->channel;

	siw_lock(&ch->lock);
	if (!cq->events++)
		siw_link_add(&ch->cqs, &cq->in_channel);
	if (!ch->fd_set && (collecting != ch || siw_device_wait_is_asleep())) {
		ch->fd_set = true;
		siw_llp_event_fd_set(ch->fd);
	}
	siw_unlock(&ch->lock);
}

/*
 * Makes the descriptor readable if and only if there are unread events. Called with the channel's
 * lock held.
 */
static void comp_channel_update_fd(struct siw_comp_channel *ch)
{
	bool more = !siw_link_empty(&ch->cqs);

	if (more == ch->fd_set)
		return;
	if (more)
		siw_llp_event_fd_set(ch->fd);
	else
		siw_llp_event_fd_clear(ch->fd);
	ch->fd_set = more;
}

struct wanted_event {
	struct siw_comp_channel *ch;
	struct siw_cq *cq;
};

static int comp_channel_read_event(void *arg)
{
	struct wanted_event *want = arg;
	struct siw_comp_channel *ch = want->ch;

	siw_lock(&ch->lock);
	if (!siw_link_empty(&ch->cqs)) {
		struct siw_cq *cq = siw_container(ch->cqs.next, struct siw_cq, in_channel);

		siw_link_del(&cq->in_channel);
		if (--cq->events)
			siw_link_add(&ch->cqs, &cq->in_channel);
		cq->unacked++;
		want->cq = cq;
	}
	comp_channel_update_fd(ch);
	siw_unlock(&ch->lock);
	return want->cq != NULL;
}

int siw_get_cq_event(struct siw_comp_channel *ch, struct siw_cq **cq, void **cq_context,
		     int timeout_ms)
{
	struct wanted_event want = { .ch = ch };
	int r;
	int err = siw_device_check_usable(ch ? ch->ctx : NULL, "channel");

	if (err)
		return err;
	if (!cq)
		return siw_refuse_null("cq");
	collecting = ch;
	r = siw_device_wait(ch->ctx, &ch->lanes, comp_channel_read_event, &want, ch->fd,
			    timeout_ms);
	collecting = NULL;
	if (r < 0)
		return siw_refused(r);
	*cq = want.cq;
	if (cq_context)
		*cq_context = want.cq->user;
	return 0;
}

void siw_ack_cq_events(struct siw_cq *cq, unsigned int nevents)
{
	struct siw_comp_channel *ch = cq ? cq->channel : NULL;

	if (!ch || siw_device_inherited(cq->ctx))
		return;
	siw_lock(&ch->lock);
	cq->unacked -= nevents < cq->unacked ? nevents : cq->unacked;
	siw_unlock(&ch->lock);
}

/* Called with the channel's lock held. */
static void comp_channel_update_lanes(struct siw_comp_channel *ch, uint32_t before, uint32_t after)
{
	uint32_t lanes = 0;

	for (unsigned int i = 0; i < SIW_MAX_LANES; i++) {
		ch->lane_cqs[i] += (after >> i & 1) - (before >> i & 1);
		lanes |= ch->lane_cqs[i] ? 1u << i : 0;
	}
	atomic_store(&ch->lanes, lanes);
}

void siw_device_comp_channel_change_lanes(struct siw_comp_channel *ch, uint32_t before,
					  uint32_t after)
{
	uint32_t old;

	siw_lock(&ch->lock);
	old = atomic_load(&ch->lanes);
	comp_channel_update_lanes(ch, before, after);
	siw_unlock(&ch->lock);
	if (!old)
		old = 1; /* threads that wait on a channel without CQs wait on lane 0 */
	if (!(after & ~old))
		return;
	for (; old; old &= old - 1)
		siw_device_wake_sleeping_thread(ch->ctx->lanes[__builtin_ctz(old)]);
}

void siw_device_comp_channel_detach_cq(struct siw_cq *cq)
{
	struct siw_comp_channel *ch = cq->channel;

	siw_lock(&ch->lock);
	comp_channel_update_lanes(ch, atomic_load(&cq->lanes), 0);
	if (cq->events) {
		cq->events = 0;
		siw_link_del(&cq->in_channel);
		comp_channel_update_fd(ch);
	}
	while (cq->unacked) { /* rarely: wait until the program has acknowledged the events */
		siw_unlock(&ch->lock);
		siw_sleep_ns(STEP_NS);
		siw_lock(&ch->lock);
	}
	siw_unlock(&ch->lock);
	atomic_fetch_sub(&ch->n_cq, 1);
}
