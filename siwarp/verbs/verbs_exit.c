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
#include "verbs/verbs_impl.h"

/*
 * Number of attempts. The thread that called exit() may hold the lock itself, in a call interrupted
 * by a signal.
 */
#define LOCK_TRIES 100
#define MS_NS	   1000000

static bool try_long(siw_lock_t *lock)
{
	for (int i = 0; i < LOCK_TRIES; i++) {
		if (siw_trylock(lock))
			return true;
		siw_sleep_ns(MS_NS);
	}
	return false;
}

static void say_goodbye(struct siw_context *ctx, uint64_t deadline_ns)
{
	struct siw_link *l;

	(void)deadline_ns;
	if (!try_long(&ctx->progress))
		return;
	for (l = ctx->qps.next; l != &ctx->qps; l = l->next) {
		struct siw_qp *qp = siw_container(l, struct siw_qp, in_ctx);

		qp->ops->leave(qp);
	}
	siw_unlock(&ctx->progress);
}

/* Whether a connection is still being shut down. Progress lock held. */
static bool is_busy(const struct siw_context *ctx)
{
	struct siw_link *l;

	if (atomic_load(&ctx->n_linger))
		return true;
	for (l = ctx->qps.next; l != &ctx->qps; l = l->next) {
		const struct siw_qp *qp = siw_container(l, struct siw_qp, in_ctx);

		if (qp->ops->is_leaving && qp->ops->is_leaving(qp))
			return true;
	}
	return false;
}

static void wait_for_peers(struct siw_context *ctx, uint64_t deadline_ns)
{
	struct siw_llp_waitset set;
	bool busy;

	while (siw_now_ns() < deadline_ns && try_long(&ctx->progress)) {
		siw_verbs_progress_once(ctx);
		busy = is_busy(ctx);
		siw_llp_waitset_fill(ctx->port, &set);
		siw_unlock(&ctx->progress);
		if (!busy)
			return;
		siw_llp_wait(&set, -1, 5000);
	}
}

void siw_verbs_say_goodbye(struct siw_context *ctx, uint64_t deadline_ns)
{
	say_goodbye(ctx, deadline_ns);
	wait_for_peers(ctx, deadline_ns);
}

static void leave(void)
{
	uint64_t deadline = siw_now_ns() + (uint64_t)siw_settings()->linger_ms * 1000000;

	siw_verbs_context_each(say_goodbye, deadline);
	siw_verbs_context_each(wait_for_peers, deadline);
}

static bool watching;

static void watch(void)
{
	watching = atexit(leave) == 0;
}

int siw_verbs_exit_watch(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch);
	return watching ? 0 : -ENOMEM;
}
