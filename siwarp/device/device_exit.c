/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Exit of a process that has not closed its devices. Completed requests must reach the peer, but
 * the kernel resets a connection that is closed with unread input, and drops the data it has not
 * sent yet. So exit() closes connections as siw_close_device() does, within linger_ms. For a
 * process that is killed or calls _exit(), the kernel's behaviour remains.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/os.h"
#include "base/clock.h"
#include "device/device_impl.h"

/*
 * Number of attempts to acquire the lock of a lane. The thread that called exit() may hold the lock
 * itself, in a call interrupted by a signal.
 */
#define LOCK_TRIES 100
#define MS_NS	   1000000

static bool trylock_for_100ms(siw_lock_t *lock)
{
	for (int i = 0; i < LOCK_TRIES; i++) {
		if (siw_trylock(lock))
			return true;
		siw_sleep_ns(MS_NS);
	}
	return false;
}

static void context_begin_connection_shutdown(struct siw_context *ctx, uint64_t deadline_ns)
{
	(void)deadline_ns;
	SIW_EACH_LANE(lane, ctx)
	{
		if (!trylock_for_100ms(&lane->lock))
			continue;
		for (struct siw_link *l = lane->qps.next; l != &lane->qps; l = l->next) {
			struct siw_qp *qp = siw_container(l, struct siw_qp, in_lane);

			qp->ops->leave(qp);
		}
		siw_unlock(&lane->lock);
	}
}

/* Returns whether a connection is still being shut down. Called with the lock of the lane held. */
static bool lane_has_closing_connection(const struct siw_lane *lane)
{
	if (atomic_load(&lane->ctx->n_linger))
		return true;
	for (struct siw_link *l = lane->qps.next; l != &lane->qps; l = l->next) {
		const struct siw_qp *qp = siw_container(l, struct siw_qp, in_lane);

		if (qp->ops->is_leaving && qp->ops->is_leaving(qp))
			return true;
	}
	return false;
}

static void context_wait_for_connection_shutdown(struct siw_context *ctx, uint64_t deadline_ns)
{
	struct siw_llp_waitset sets[SIW_MAX_LANES];
	uint32_t locked = 0; /* bit mask of the lanes whose locks could not be acquired */
	bool busy = true;

	while (busy && siw_now_ns() < deadline_ns) {
		int n = 0;

		busy = false;
		SIW_EACH_LANE(lane, ctx)
		{
			/* The other lanes must not wait again for a lock that is not released. */
			if (locked >> lane->index & 1 || !trylock_for_100ms(&lane->lock)) {
				locked |= 1u << lane->index;
				continue;
			}
			siw_device_progress_once(lane);
			busy |= lane_has_closing_connection(lane);
			siw_llp_waitset_fill(lane->poller, &sets[n++]);
			siw_unlock(&lane->lock);
		}
		if (busy)
			siw_llp_wait_any(sets, n, -1, 5000);
	}
}

void siw_device_shutdown_connections(struct siw_context *ctx, uint64_t deadline_ns)
{
	context_begin_connection_shutdown(ctx, deadline_ns);
	context_wait_for_connection_shutdown(ctx, deadline_ns);
}

static void shutdown_connections_at_exit(void)
{
	uint64_t deadline = siw_now_ns() + (uint64_t)siw_settings()->linger_ms * 1000000;

	siw_device_for_each_open_context(context_begin_connection_shutdown, deadline);
	siw_device_for_each_open_context(context_wait_for_connection_shutdown, deadline);
}

static bool watching;

static void register_at_exit(void)
{
	watching = atexit(shutdown_connections_at_exit) == 0;
}

int siw_device_register_exit_handler(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, register_at_exit);
	return watching ? 0 : -ENOMEM;
}
