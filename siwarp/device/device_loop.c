/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Completion queues of programs with an event loop of their own, for example asyncio's. The loop
 * sleeps on a descriptor that contains the sockets of the CQ's lane, and its thread makes the
 * progress rounds of the lane, so that a message needs one thread. The progress thread leaves the
 * lane to the loop as long as the loop keeps polling (device_thread.c).
 */
#include <errno.h>

#include "device/device_impl.h"

/*
 * Opens the CQ's descriptor for event loops, unless it is already open. Called with the locks of
 * the lane and of the CQ held. Returns 0 or -errno.
 */
static int cq_open_event_loop_fd(struct siw_cq *cq, struct siw_lane *lane)
{
	int err;

	if (!cq->ring || !lane->poller)
		return siw_refuse(DESTROYED);
	if (cq->loop)
		return 0;
	err = siw_llp_event_loop_fd_open(lane->poller, &cq->loop);
	if (!err)
		atomic_fetch_add(&lane->loops, 1);
	return err;
}

int siw_cq_wait_fd(struct siw_cq *cq)
{
	struct siw_lane *lane;
	int fd, err = siw_device_check_usable(cq ? cq->ctx : NULL, "cq");

	if (!err)
		err = siw_device_cq_get_or_choose_lane(cq, &lane);
	if (err)
		return siw_refused(err);
	siw_lock(&lane->lock); /* keeps the poller open */
	siw_lock(&cq->lock);
	err = cq_open_event_loop_fd(cq, lane);
	fd = err ? err : siw_llp_event_loop_fd_number(cq->loop);
	siw_unlock(&cq->lock);
	siw_unlock(&lane->lock);
	return siw_refused(fd);
}

/*
 * Begins a turn of an event loop: clears the CQ's descriptor. Returns the lane of the CQ, or NULL
 * if the CQ has no descriptor.
 */
static struct siw_lane *cq_begin_event_loop_turn(struct siw_cq *cq)
{
	struct siw_lane *lane = NULL;

	siw_lock(&cq->lock);
	if (cq->loop) {
		lane = cq->home;
		cq->loop_armed = false;
		siw_llp_event_loop_fd_clear(cq->loop);
	}
	siw_unlock(&cq->lock);
	return lane;
}

/* Arms the CQ if it is empty. Returns whether it is not empty. */
static bool cq_arm_for_event_loop_if_empty(struct siw_cq *cq, uint64_t due_ns)
{
	bool more;

	siw_lock(&cq->lock);
	more = atomic_load_explicit(&cq->tail, memory_order_relaxed) !=
	       atomic_load_explicit(&cq->head, memory_order_relaxed);
	if (!more && cq->loop) {
		cq->loop_armed = true;
		siw_llp_event_loop_fd_set_timer(cq->loop, due_ns);
	}
	siw_unlock(&cq->lock);
	return more;
}

int siw_poll_cq_and_arm(struct siw_cq *cq, int num_entries, struct siw_wc *wc,
			struct siw_addr *sources, struct siw_addr *dests, uint64_t *instances)
{
	struct siw_lane *lane;
	uint64_t due_ns = 0;
	int n = 0, err;

	if (!cq)
		return siw_refuse_null("cq");
	if (num_entries < 0)
		return siw_refuse(NEGATIVE, siw_reason_text("num_entries"), (uint64_t)num_entries);
	if (!wc && num_entries)
		return siw_refuse_null("wc");
	if (siw_device_inherited(cq->ctx))
		return siw_refuse(STALE);
	lane = cq_begin_event_loop_turn(cq);
	if (!lane)
		return siw_refuse(CQ_NO_WAIT_FD);
	err = siw_device_make_rounds_for_event_loop(lane, cq, num_entries, &due_ns);
	if (err)
		return err;
	do
		n += siw_device_cq_take_completions(cq, num_entries - n, wc + n,
						    sources ? sources + n : NULL,
						    dests ? dests + n : NULL,
						    instances ? instances + n : NULL);
	while (n < num_entries && cq_arm_for_event_loop_if_empty(cq, due_ns));
	if (!n && num_entries && siw_device_cq_is_overrun(cq))
		return siw_refuse(CQ_OVERFLOW);
	return n;
}
