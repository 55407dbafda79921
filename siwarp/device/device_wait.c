/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Waiting for events, with or without making progress meanwhile. A waiter may be cancelled
 * (base/cancel.h) while it sleeps, when it holds no lock; cleanup handlers then undo its counts.
 */
#include <errno.h>
#include <pthread.h>

#include "base/clock.h"
#include "base/trim.h"
#include "device/device_impl.h"

#define MOST_SKIPPED 63 /* maximum number of waits without a spin */

static __thread bool asleep;

bool siw_device_wait_is_asleep(void)
{
	return asleep;
}

/* A wait for an event, during which the waiting thread makes progress on a set of lanes. */
struct wait {
	struct siw_context *ctx;
	/* the lanes as a bit mask, which may change meanwhile; NULL: all open lanes */
	const _Atomic uint32_t *lanes;
	uint32_t counted; /* the lanes whose counts of waiters include the thread */
	int (*ready)(void *arg);
	void *arg;
	int fd; /* becomes readable when another thread causes ready() to return non-zero */
	uint64_t deadline;
};

/* Returns the lanes that a wait has to serve now. Without a progress thread these are all lanes. */
static uint32_t mask_of_lanes_to_serve(const struct wait *wait)
{
	uint32_t open = atomic_load(&wait->ctx->open_lanes), lanes;

	lanes = wait->lanes && wait->ctx->has_thread ? atomic_load(wait->lanes) & open : open;
	return lanes ? lanes : 1;
}

/*
 * Starts a wait's spin of spin_us, which precedes the sleep. If a CPU is free, spinning shortens
 * the wait. If all CPUs are busy, the spin keeps the peer's thread off this CPU and uses up the CPU
 * time that the scheduler would grant this thread at its next wake-up. So after an unsuccessful
 * spin some waits do not spin: one, then about twice as many each time. Returns when the spin ends;
 * 0: no spin.
 */
static uint64_t begin_wait_spin(struct siw_context *ctx)
{
	uint32_t left = atomic_load_explicit(&ctx->spin_left, memory_order_relaxed);

	if (left) {
		atomic_store_explicit(&ctx->spin_left, left - 1, memory_order_relaxed);
		return 0;
	}
	return siw_now_ns() + (uint64_t)siw_settings()->spin_us * 1000;
}

static void end_wait_spin(struct siw_context *ctx, bool without_event)
{
	uint32_t skip = atomic_load_explicit(&ctx->spin_skip, memory_order_relaxed);

	skip = !without_event ? 0 : skip < MOST_SKIPPED ? 2 * skip + 1 : MOST_SKIPPED;
	atomic_store_explicit(&ctx->spin_skip, skip, memory_order_relaxed);
	atomic_store_explicit(&ctx->spin_left, skip, memory_order_relaxed);
}

/*
 * Changes the set of lanes whose counts of waiters include the thread. The progress thread has to
 * serve a lane that is removed, unless other threads do.
 */
static void update_waiter_counts_of_lanes(struct wait *wait, uint32_t lanes)
{
	uint32_t added = lanes & ~wait->counted, removed = wait->counted & ~lanes;

	for (uint32_t set = added; set; set &= set - 1)
		atomic_fetch_add(&wait->ctx->lanes[__builtin_ctz(set)]->waiters, 1);
	for (uint32_t set = removed; set; set &= set - 1)
		atomic_fetch_sub(&wait->ctx->lanes[__builtin_ctz(set)]->waiters, 1);
	wait->counted = lanes;
	if (removed && atomic_load(&wait->ctx->asleep))
		siw_llp_event_fd_set(wait->ctx->sleep_fd);
}

/* Sleeps until a socket of the sets, or fd, is readable. Returns 0 or -EINTR. */
static int sleep_on_sockets(const struct siw_llp_waitset *sets, const struct wait *wait,
			    int64_t timeout_us)
{
	int r;

	asleep = true;
	r = siw_llp_wait_any_cancellable(sets, __builtin_popcount(wait->counted), wait->fd,
					 timeout_us);
	asleep = false;
	return r;
}

/*
 * Makes a round on each lane of the set, and fills its wait set. Returns the number of messages
 * moved, or -ESTALE if the device was closed by force meanwhile. *timeout_us: the longest sleep in
 * microseconds until a timer of these lanes (-1: no limit).
 */
static int make_rounds_before_sleep(const struct wait *wait, struct siw_llp_waitset *sets,
				    uint64_t now, int64_t *timeout_us)
{
	int moved = 0, n = 0;

	*timeout_us = siw_device_us_until_deadline(now, wait->deadline);
	for (uint32_t left = wait->counted; left; left &= left - 1) {
		struct siw_lane *lane = wait->ctx->lanes[__builtin_ctz(left)];
		int64_t us;

		siw_lock(&lane->lock);
		if (!lane->poller) {
			siw_unlock(&lane->lock);
			return siw_refuse(STALE);
		}
		moved += siw_device_progress_once(lane);
		siw_llp_waitset_fill(lane->poller, &sets[n++]);
		siw_unlock(&lane->lock);
		us = siw_device_sleep_duration_us(lane, now, wait->deadline);
		if (us >= 0 && (*timeout_us < 0 || us < *timeout_us))
			*timeout_us = us;
	}
	return moved;
}

static int wait_loop(struct wait *wait)
{
	struct siw_context *ctx = wait->ctx;
	uint64_t spin_until = begin_wait_spin(ctx), now;
	/* A wait that does not spin makes its first round before the sleep. */
	bool poll = spin_until != 0;
	struct siw_llp_waitset sets[SIW_MAX_LANES];
	int64_t timeout_us;
	int moved, r;

	for (;;) {
		if (wait->counted != mask_of_lanes_to_serve(wait))
			update_waiter_counts_of_lanes(wait, mask_of_lanes_to_serve(wait));
		for (uint32_t left = wait->counted; poll && left; left &= left - 1)
			siw_device_poll(ctx->lanes[__builtin_ctz(left)], NULL);
		r = wait->ready(wait->arg);
		if (r) {
			if (spin_until)
				end_wait_spin(ctx, false);
			return r;
		}
		if (siw_device_inherited(ctx))
			return siw_refuse(STALE);
		now = siw_now_ns();
		if (now >= wait->deadline) {
			if (poll)
				return siw_refuse(TIME_OVER);
			poll = true;
			continue;
		}
		/* Under continuous traffic the thread may never sleep; it can be cancelled here. */
		pthread_testcancel();
		if (now < spin_until)
			continue;
		if (spin_until)
			end_wait_spin(ctx, true);
		spin_until = 0;
		poll = true;
		moved = make_rounds_before_sleep(wait, sets, now, &timeout_us);
		if (moved < 0)
			return moved;
		r = wait->ready(wait->arg);
		if (r)
			return r;
		if (moved)
			continue;
		siw_trim_free_memory();
		/*
		 * Only rounds that moved no message have found every socket empty. A lane that is
		 * added to the set from now on ends the sleep
		 * (siw_device_comp_channel_change_lanes).
		 */
		if (wait->counted == mask_of_lanes_to_serve(wait) &&
		    sleep_on_sockets(sets, wait, timeout_us) == -EINTR)
			return siw_refuse(INTERRUPTED);
	}
}

/*
 * Sends the posted requests, then returns ready()'s value. *deadline: when the wait ends; 0: do not
 * wait. A descriptor that the program has made non-blocking is not waited on.
 */
static int check_ready_before_wait(struct siw_context *ctx, int (*ready)(void *arg), void *arg,
				   int fd, int timeout_ms, uint64_t *deadline)
{
	int r;

	if (timeout_ms)
		pthread_testcancel();
	siw_device_send_delayed_posts_of_all_lanes(ctx);
	r = ready(arg);
	if (r)
		return r;
	if (timeout_ms < 0 && fd >= 0 && siw_llp_event_fd_is_nonblocking(fd))
		timeout_ms = 0;
	if (timeout_ms < 0)
		*deadline = UINT64_MAX;
	else
		*deadline = timeout_ms ? siw_now_ns() + (uint64_t)timeout_ms * 1000000 : 0;
	return 0;
}

static void undo_waiter_count(void *arg)
{
	struct wait *wait = arg;
	struct siw_context *ctx = wait->ctx;

	/*
	 * This thread may still wake the progress thread after it has left the counts of waiters;
	 * the device must not be closed by force before that (wake_waiters_until_none_is_left).
	 */
	atomic_fetch_add(&ctx->fd_waiters, 1);
	update_waiter_counts_of_lanes(wait, 0);
	atomic_fetch_sub(&ctx->fd_waiters, 1);
}

static int wait_with_progress(struct wait *wait)
{
	int r;

	update_waiter_counts_of_lanes(wait, mask_of_lanes_to_serve(wait));
	pthread_cleanup_push(undo_waiter_count, wait);
	r = wait_loop(wait);
	pthread_cleanup_pop(1);
	return r;
}

int siw_device_wait(struct siw_context *ctx, const _Atomic uint32_t *lanes, int (*ready)(void *arg),
		    void *arg, int fd, int timeout_ms)
{
	struct wait wait = { ctx, lanes, 0, ready, arg, fd, 0 };
	int r = check_ready_before_wait(ctx, ready, arg, fd, timeout_ms, &wait.deadline);

	return r ? r : wait_with_progress(&wait);
}

static int wait_on_descriptor(struct siw_context *ctx, int (*ready)(void *arg), void *arg, int fd,
			      uint64_t deadline)
{
	static const struct siw_llp_waitset nothing;

	for (;;) {
		uint64_t now = siw_now_ns();
		int r = ready(arg);

		if (r)
			return r;
		if (now >= deadline)
			return siw_refuse(TIME_OVER);
		/*
		 * Pairs with siw_close_device_forced(), which sets ctx->inherited and then wakes
		 * waiters repeatedly.
		 */
		if (siw_device_inherited(ctx))
			return siw_refuse(STALE);
		if (siw_llp_wait_cancellable(&nothing, fd,
					     siw_device_us_until_deadline(now, deadline)) == -EINTR)
			return siw_refuse(INTERRUPTED);
	}
}

static void undo_fd_waiter_count(void *arg)
{
	struct siw_context *ctx = arg;

	atomic_fetch_sub(&ctx->fd_waiters, 1);
}

/*
 * Waits with progress on lane 0, for at most us microseconds and at most until *deadline. Returns
 * ready()'s value, 0 after that time, or another -errno than -EAGAIN.
 */
static int wait_with_progress_on_lane0(const struct wait *what, uint32_t us)
{
	static const _Atomic uint32_t lane0 = 1;
	struct wait wait = *what;
	uint64_t until = siw_now_ns() + (uint64_t)us * 1000;
	int r;

	wait.lanes = &lane0;
	if (until < wait.deadline)
		wait.deadline = until;
	r = wait_with_progress(&wait);
	return r == -EAGAIN ? 0 : r;
}

int siw_device_wait_on_fd(struct siw_context *ctx, int (*ready)(void *arg), void *arg, int fd,
			  int timeout_ms, uint32_t progress_us)
{
	struct wait wait = { ctx, NULL, 0, ready, arg, fd, 0 };
	int r = check_ready_before_wait(ctx, ready, arg, fd, timeout_ms, &wait.deadline);

	if (r && timeout_ms && progress_us)
		siw_device_count_poll_for_taken_event(&ctx->lane0);
	if (r)
		return r;
	if (!ctx->has_thread || !wait.deadline)
		return wait_with_progress(&wait);
	if (progress_us)
		r = wait_with_progress_on_lane0(&wait, progress_us);
	if (r)
		return r;
	/*
	 * This thread may have been the only thread that polled so far, so the progress thread must
	 * make progress from now on.
	 */
	if (atomic_load(&ctx->naps))
		siw_llp_event_fd_set(ctx->sleep_fd);
	atomic_fetch_add(&ctx->fd_waiters, 1);
	pthread_cleanup_push(undo_fd_waiter_count, ctx);
	r = wait_on_descriptor(ctx, ready, arg, fd, wait.deadline);
	pthread_cleanup_pop(1);
	return r;
}

/* ---- asynchronous events --------------------------------------------------------------------- */

struct wanted_event {
	struct siw_context *ctx;
	struct siw_async_event *event;
};

static int take_wanted_async_event(void *arg)
{
	struct wanted_event *want = arg;

	return siw_device_take_async_event(want->ctx, want->event);
}

int siw_get_async_event(struct siw_context *ctx, struct siw_async_event *event, int timeout_ms)
{
	struct wanted_event want = { ctx, event };
	int r;
	int err = siw_device_check_usable(ctx, "context");

	if (err)
		return err;
	if (!event)
		return siw_refuse_null("event");
	r = siw_device_wait_on_fd(ctx, take_wanted_async_event, &want, ctx->async_fd, timeout_ms,
				  0);
	return siw_refused(r < 0 ? r : 0);
}
