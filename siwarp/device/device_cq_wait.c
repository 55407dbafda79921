/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Waiting for completions without an event. The thread sleeps on the sockets of the CQ's lanes, and
 * handles the message that ends its sleep itself. A thread that adds a completion for another thread
 * wakes that thread through the lanes.
 */
#include <errno.h>
#include <pthread.h>

#include "base/os.h"
#include "device/device_impl.h"

#define STEP_NS 200000

/* The CQ for whose completions this thread waits. Its completions need not wake this thread. */
static __thread const struct siw_cq *awaited;

void siw_device_wake_cq_waiters(struct siw_cq *cq)
{
	/* Other threads may wait, too, but the calling thread counts as one of the waiters. */
	if (awaited == cq && !siw_device_wait_is_asleep() && atomic_load(&cq->waiters) == 1)
		return;
	SIW_EACH_LANE(lane, cq->ctx)
	siw_device_wake_sleeping_thread(lane);
}

void siw_device_await_end_of_cq_waits(struct siw_cq *cq)
{
	/* After a forced close the struct is not reused, so a late waiter does no harm. */
	while (atomic_load(&cq->waiters) && !siw_device_inherited(cq->ctx)) {
		siw_lock(&cq->lock);
		siw_device_wake_cq_waiters(cq);
		siw_unlock(&cq->lock);
		siw_sleep_ns(STEP_NS);
	}
}

/* Counts the calling thread as a waiter. Returns 0 or -errno. */
static int cq_wait_begin(struct siw_cq *cq)
{
	int err = 0;

	/* A thread that adds a completion under the lock later sees the waiter. */
	siw_lock(&cq->lock);
	if (cq->ring)
		atomic_fetch_add(&cq->waiters, 1);
	else
		err = siw_refuse(DESTROYED);
	siw_unlock(&cq->lock);
	if (err)
		return err;
	awaited = cq;
	siw_device_count_armed_cq(cq->ctx, 1);
	return 0;
}

static void cq_wait_end(void *arg)
{
	struct siw_cq *cq = arg;

	siw_device_count_armed_cq(cq->ctx, -1);
	awaited = NULL;
	atomic_fetch_sub(&cq->waiters, 1); /* the last access, because the CQ may be destroyed */
}

/* The arguments of siw_wait_cq. */
struct wanted_completions {
	struct siw_cq *cq;
	int max;
	struct siw_wc *wc;
	struct siw_addr *sources, *dests;
	uint64_t *instances;
};

/* Returns the number of completions that were taken from the CQ, or -errno if there will be none. */
static int cq_take_wanted_completions(void *arg)
{
	struct wanted_completions *want = arg;
	struct siw_cq *cq = want->cq;
	int n = siw_device_cq_take_completions(cq, want->max, want->wc, want->sources, want->dests,
					       want->instances);

	if (n)
		return n;
	siw_lock(&cq->lock);
	if (!cq->ring)
		n = siw_refuse(DESTROYED);
	else if (atomic_load(&cq->overrun))
		n = siw_refuse(CQ_OVERFLOW);
	siw_unlock(&cq->lock);
	return n;
}

int siw_wait_cq(struct siw_cq *cq, int num_entries, struct siw_wc *wc, struct siw_addr *sources,
		struct siw_addr *dests, uint64_t *instances, int timeout_ms)
{
	struct wanted_completions want = { cq, num_entries, wc, sources, dests, instances };
	int n;

	if (!cq)
		return siw_refuse_null("cq");
	/* A wait makes a round before it sleeps, so a poll of an empty CQ need not make one. */
	if (!wc || num_entries <= 0 || !timeout_ms || siw_cq_pending(cq)) {
		n = siw_poll_cq_instances(cq, num_entries, wc, sources, dests, instances);
		if (n || num_entries <= 0)
			return n;
		if (!timeout_ms)
			return siw_refused(siw_refuse(TIME_OVER));
	}
	n = cq_wait_begin(cq);
	if (n)
		return siw_refused(n);
	pthread_cleanup_push(cq_wait_end, cq);
	n = siw_device_wait(cq->ctx, &cq->lanes, cq_take_wanted_completions, &want, -1, timeout_ms);
	pthread_cleanup_pop(1);
	return siw_refused(n);
}
