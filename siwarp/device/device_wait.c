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

static void end_wait_spin(struct siw_context *ctx, bool in_vain)
{
	uint32_t skip = atomic_load_explicit(&ctx->spin_skip, memory_order_relaxed);

	skip = !in_vain ? 0 : skip < MOST_SKIPPED ? 2 * skip + 1 : MOST_SKIPPED;
	atomic_store_explicit(&ctx->spin_skip, skip, memory_order_relaxed);
	atomic_store_explicit(&ctx->spin_left, skip, memory_order_relaxed);
}

static int wait_loop(struct siw_context *ctx, int (*ready)(void *arg), void *arg, int fd,
		     uint64_t deadline)
{
	uint64_t spin_until = begin_wait_spin(ctx);
	struct siw_llp_waitset set;
	uint64_t now;
	int moved, r;

	for (;;) {
		siw_device_poll(ctx, NULL);
		r = ready(arg);
		if (r) {
			if (spin_until)
				end_wait_spin(ctx, false);
			return r;
		}
		if (siw_device_inherited(ctx))
			return siw_refuse(STALE);
		now = siw_now_ns();
		if (now >= deadline)
			return siw_refuse(TIME_OVER);
		/* Under continuous traffic this loop may never reach its cancellable sleep. */
		pthread_testcancel();
		if (now < spin_until)
			continue;
		if (spin_until)
			end_wait_spin(ctx, true);
		spin_until = 0;
		siw_lock(&ctx->lane.lock);
		if (!ctx->lane.port) { /* the device was closed by force meanwhile */
			siw_unlock(&ctx->lane.lock);
			return siw_refuse(STALE);
		}
		moved = siw_device_progress_once(ctx);
		siw_llp_waitset_fill(ctx->lane.port, &set);
		siw_unlock(&ctx->lane.lock);
		r = ready(arg);
		if (r)
			return r;
		if (!moved)
			siw_trim_free_memory();
		/* Only a round that moved no message has found every socket empty. */
		if (!moved &&
		    siw_llp_wait_cancellable(
			    &set, fd, siw_device_sleep_duration_us(ctx, now, deadline)) == -EINTR)
			return siw_refuse(INTERRUPTED);
	}
}

/*
 * Sends the posted requests, then returns ready()'s value. *deadline: when the wait ends; 0: do not
 * wait. A descriptor that the program has made non-blocking is not waited on.
 */
static int begin_wait(struct siw_context *ctx, int (*ready)(void *arg), void *arg, int fd,
		      int timeout_ms, uint64_t *deadline)
{
	int r;

	if (timeout_ms)
		pthread_testcancel();
	siw_device_send_posted(ctx, false);
	r = ready(arg);
	if (r)
		return r;
	if (timeout_ms < 0 && siw_llp_event_is_nonblocking(fd))
		timeout_ms = 0;
	if (timeout_ms < 0)
		*deadline = UINT64_MAX;
	else
		*deadline = timeout_ms ? siw_now_ns() + (uint64_t)timeout_ms * 1000000 : 0;
	return 0;
}

static void undo_waiter_count(void *arg)
{
	struct siw_context *ctx = arg;

	atomic_fetch_sub(&ctx->waiters, 1);
	if (atomic_load(&ctx->asleep))
		siw_llp_event_set(ctx->sleep_fd);
}

static int wait_with_progress(struct siw_context *ctx, int (*ready)(void *arg), void *arg, int fd,
			      uint64_t deadline)
{
	int r;

	atomic_fetch_add(&ctx->waiters, 1);
	pthread_cleanup_push(undo_waiter_count, ctx);
	r = wait_loop(ctx, ready, arg, fd, deadline);
	pthread_cleanup_pop(1);
	return r;
}

int siw_device_wait(struct siw_context *ctx, int (*ready)(void *arg), void *arg, int fd,
		    int timeout_ms)
{
	uint64_t deadline;
	int r = begin_wait(ctx, ready, arg, fd, timeout_ms, &deadline);

	return r ? r : wait_with_progress(ctx, ready, arg, fd, deadline);
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

int siw_device_wait_on_fd(struct siw_context *ctx, int (*ready)(void *arg), void *arg, int fd,
			  int timeout_ms)
{
	uint64_t deadline;
	int r = begin_wait(ctx, ready, arg, fd, timeout_ms, &deadline);

	if (r)
		return r;
	if (!ctx->has_thread || !deadline)
		return wait_with_progress(ctx, ready, arg, fd, deadline);
	/*
	 * This thread may have been the only thread that polled so far, so the progress thread must
	 * make progress from now on.
	 */
	if (atomic_load(&ctx->naps))
		siw_llp_event_set(ctx->sleep_fd);
	atomic_fetch_add(&ctx->fd_waiters, 1);
	pthread_cleanup_push(undo_fd_waiter_count, ctx);
	r = wait_on_descriptor(ctx, ready, arg, fd, deadline);
	pthread_cleanup_pop(1);
	return r;
}
