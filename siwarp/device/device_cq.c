/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Completion queues. Their events are raised in device_channel.c.
 *
 * siw_wait_cq waits for completions without an event. The thread sleeps on the sockets of the CQ's
 * lanes, and handles the message that ends its sleep itself. A thread that adds a completion for
 * another thread wakes that thread through the lanes.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/os.h"
#include "device/device_impl.h"

#define STEP_NS 200000 /* interval at which the destruction of a CQ wakes threads that wait */

static uint32_t round_up_cq_size(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p <<= 1;
	return p;
}

/*
 * Creates a CQ with an empty ring. If the memory belonged to a destroyed CQ, a late poll on that CQ
 * finds an empty queue.
 */
static struct siw_cq *cq_alloc(struct siw_context *ctx, uint32_t size)
{
	struct siw_cqe *ring = calloc(size, sizeof(*ring));
	struct siw_link *old = ring ? siw_device_freelist_take(&ctx->free_cqs) : NULL;
	struct siw_cq *cq;

	if (!ring)
		return NULL;
	if (old) {
		cq = siw_container(old, struct siw_cq, in_freelist);
	} else {
		cq = calloc(1, sizeof(*cq));
		if (!cq) {
			free(ring);
			return NULL;
		}
		cq->ctx = ctx;
		siw_lock_init(&cq->lock);
		siw_link_init(&cq->in_freelist);
	}
	siw_lock(&cq->lock);
	cq->ring = ring;
	cq->mask = size - 1;
	siw_unlock(&cq->lock);
	return cq;
}

/* The CQ for whose completions this thread waits. Its completions need not wake this thread. */
static __thread const struct siw_cq *awaited;

/*
 * Wakes the threads that wait for completions of the CQ. If the calling thread is the only one, it
 * needs no wake-up: it polls the CQ after its progress round. Called with the CQ's lock held.
 */
static void cq_wake_waiters(struct siw_cq *cq)
{
	/* Other threads may wait, too, but the calling thread counts as one of the waiters. */
	if (awaited == cq && !siw_device_wait_is_asleep() && atomic_load(&cq->waiters) == 1)
		return;
	SIW_EACH_LANE(lane, cq->ctx)
	siw_device_wake_sleeping_thread(lane);
}

/*
 * Called after the ring of the CQ was removed, without its lock: returns when no thread waits for
 * completions of the CQ.
 */
static void cq_await_end_of_waits(struct siw_cq *cq)
{
	/* After a forced close the struct is not reused, so a late waiter does no harm. */
	while (atomic_load(&cq->waiters) && !siw_device_inherited(cq->ctx)) {
		siw_lock(&cq->lock);
		cq_wake_waiters(cq);
		siw_unlock(&cq->lock);
		siw_sleep_ns(STEP_NS);
	}
}

/*
 * Determines the lanes that a CQ uses, after its queue pairs or its home lane have changed.
 * cq->lock held.
 */
static void cq_update_lanes(struct siw_cq *cq)
{
	uint32_t before = atomic_load(&cq->lanes), lanes = 0;

	for (unsigned int i = 0; i < SIW_MAX_LANES; i++)
		lanes |= cq->lane_qps[i] ? 1u << i : 0;
	if (!lanes)
		lanes = 1u << (cq->home ? cq->home->index : 0);
	atomic_store(&cq->lanes, lanes);
	atomic_store(&cq->sole_lane,
		     lanes & (lanes - 1) ? NULL : cq->ctx->lanes[__builtin_ctz(lanes)]);
	if (cq->channel && lanes != before)
		siw_device_comp_channel_change_lanes(cq->channel, before, lanes);
	/* the threads must wait on the lanes that were added */
	if (lanes & ~before && atomic_load(&cq->waiters))
		cq_wake_waiters(cq);
}

/*
 * Changes the number of CQs that are armed or waited on. Meanwhile the program may sleep, so posts
 * are not delayed for a batch until it has polled often again (siw_qp_may_delay_posts). by: -1, 0
 * (a CQ was armed again) or 1.
 */
static void cq_adjust_armed_count(struct siw_context *ctx, int by)
{
	if (by >= 0) {
		SIW_EACH_LANE(lane, ctx)
		atomic_store_explicit(&lane->armed_at,
				      atomic_load_explicit(&lane->polls, memory_order_relaxed),
				      memory_order_relaxed);
	}
	atomic_fetch_add_explicit(&ctx->n_armed, (uint32_t)by, memory_order_relaxed);
}

/* Sets the arming state of a CQ. Called with cq->lock held. */
static void cq_set_arming_state(struct siw_cq *cq, int how)
{
	int by = !!how - !!cq->armed;

	cq->armed = how;
	if (how || by)
		cq_adjust_armed_count(cq->ctx, by);
}

/* Ends a CQ. Late calls that poll or arm the CQ find no completion and no channel. */
static void cq_tear_down(struct siw_cq *cq)
{
	struct siw_cqe *ring = cq->ring;

	if (cq->home)
		siw_device_cq_lane_release(cq->home);
	siw_lock(&cq->lock);
	if (cq->loop)
		atomic_fetch_sub(&cq->home->loops, 1);
	siw_llp_event_loop_fd_close(cq->loop);
	cq->loop = NULL;
	cq->loop_armed = false;
	cq->home = NULL;
	atomic_store(&cq->head, atomic_load(&cq->tail));
	atomic_store(&cq->overrun, false);
	cq->ring = NULL;
	cq->channel = NULL;
	cq_set_arming_state(cq, 0);
	siw_unlock(&cq->lock);
	cq_await_end_of_waits(cq);
	free(ring);
	siw_device_freelist_give(&cq->ctx->free_cqs, &cq->in_freelist);
}

static void cq_destroy_by_force(struct siw_child *child)
{
	struct siw_cq *cq = siw_container(child, struct siw_cq, child);

	if (cq->channel) {
		siw_lock(&cq->channel->lock);
		cq->unacked = 0; /* do not wait for acknowledgements of events: none will arrive */
		siw_unlock(&cq->channel->lock);
		siw_device_comp_channel_detach_cq(cq);
	}
	siw_device_drop_object_events_unacked(&cq->async);
	cq_tear_down(cq);
}

static int cq_check_size(const struct siw_context *ctx, int cqe)
{
	if (cqe < 1 || (uint32_t)cqe > ctx->attr.max_cqe)
		return siw_refuse(CQ_SIZE, (uint64_t)cqe, ctx->attr.max_cqe);
	return 0;
}

static int cq_check_args(const struct siw_context *ctx, int cqe,
			 const struct siw_comp_channel *channel, int comp_vector)
{
	int err = cq_check_size(ctx, cqe);

	if (err)
		return err;
	if (comp_vector < 0 || (uint32_t)comp_vector >= ctx->n_lanes)
		return siw_refuse(CQ_VECTOR, (uint64_t)comp_vector, ctx->n_lanes - 1);
	return channel && channel->ctx != ctx ? siw_refuse(CQ_CHANNEL) : 0;
}

struct siw_cq *siw_create_cq(struct siw_context *ctx, int cqe, void *cq_context,
			     struct siw_comp_channel *channel, int comp_vector)
{
	struct siw_cq *cq = NULL;
	int err = siw_device_check_usable(ctx, "context");

	if (err)
		return siw_refuse_and_return_null(err);
	err = cq_check_args(ctx, cqe, channel, comp_vector);
	if (err)
		return siw_refuse_and_return_null(err);
	if (atomic_fetch_add(&ctx->n_cq, 1) >= ctx->attr.max_cq)
		err = siw_device_refuse_limit_reached("max_cq", ctx->attr.max_cq);
	else
		cq = cq_alloc(ctx, round_up_cq_size((uint32_t)cqe));
	if (!cq && !err)
		err = -ENOMEM;
	if (err) {
		atomic_fetch_sub(&ctx->n_cq, 1);
		return siw_refuse_and_return_null(err);
	}
	cq->user = cq_context;
	cq->comp_vector = (unsigned int)comp_vector;
	cq->channel = channel;
	siw_link_init(&cq->in_channel);
	siw_lock(&cq->lock);
	atomic_store(&cq->lanes, 0);
	cq_update_lanes(cq);
	siw_unlock(&cq->lock);
	siw_device_init_object_async(&cq->async, ctx, cq, cq_context);
	if (channel)
		atomic_fetch_add(&channel->n_cq, 1);
	siw_device_add_child(ctx, &cq->child, SIW_CHILD_CQ, cq_destroy_by_force, -1);
	return cq;
}

static bool cq_is_destroyed(struct siw_cq *cq)
{
	bool dead;

	siw_lock(&cq->lock);
	dead = !cq->ring;
	siw_unlock(&cq->lock);
	return dead;
}

int siw_destroy_cq(struct siw_cq *cq)
{
	int err = siw_device_check_usable(cq ? cq->ctx : NULL, "cq");

	if (err)
		return err;
	if (cq_is_destroyed(cq))
		return siw_refuse(DESTROYED);
	if (atomic_load(&cq->n_qp))
		return siw_refuse(CQ_BUSY, atomic_load(&cq->n_qp));
	if (cq->channel)
		siw_device_comp_channel_detach_cq(cq);
	siw_device_drop_async_events_then_wait(&cq->async);
	atomic_fetch_sub(&cq->ctx->n_cq, 1);
	siw_device_remove_child(cq->ctx, &cq->child);
	cq_tear_down(cq);
	return 0;
}

int siw_cq_capacity(struct siw_cq *cq)
{
	int capacity;

	if (!cq)
		return siw_refuse_null("cq");
	if (siw_device_inherited(cq->ctx))
		return siw_refuse(STALE);
	siw_lock(&cq->lock);
	capacity = (int)cq->mask + 1;
	siw_unlock(&cq->lock);
	return capacity;
}

int siw_cq_pending(struct siw_cq *cq)
{
	uint32_t head;

	if (!cq)
		return siw_refuse_null("cq");
	if (siw_device_inherited(cq->ctx))
		return siw_refuse(STALE);
	/* head is read before tail; tail is then never behind head. */
	head = atomic_load_explicit(&cq->head, memory_order_acquire);
	return (int)(atomic_load_explicit(&cq->tail, memory_order_acquire) - head);
}

/*
 * Copies the completions to a new ring and switches to it. Each completion keeps its number, so
 * readers of head and tail without the lock see no change.
 */
static int cq_move_to_ring(struct siw_cq *cq, struct siw_cqe *ring, uint32_t mask, uint32_t cqe)
{
	uint32_t head = atomic_load_explicit(&cq->head, memory_order_relaxed);
	uint32_t tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);

	if (cq->overrun)
		return siw_refuse(CQ_OVERFLOW);
	if (!cq->ring)
		return siw_refuse(DESTROYED);
	if (tail - head > cqe)
		return siw_refuse(CQ_HOLDS, cqe, tail - head);
	for (; head != tail; head++)
		ring[head & mask] = cq->ring[head & cq->mask];
	cq->ring = ring;
	cq->mask = mask;
	return 0;
}

int siw_resize_cq(struct siw_cq *cq, int cqe)
{
	struct siw_cqe *ring, *old;
	uint32_t mask;
	int err = siw_device_check_usable(cq ? cq->ctx : NULL, "cq");

	if (err)
		return err;
	err = cq_check_size(cq->ctx, cqe);
	if (err)
		return err;
	mask = round_up_cq_size((uint32_t)cqe) - 1;
	ring = calloc((size_t)mask + 1, sizeof(*ring));
	if (!ring)
		return siw_refused(-ENOMEM);
	/*
	 * The delayed posts are sent first: their completions count towards the number that the
	 * resized CQ has to hold.
	 */
	for (uint32_t left = atomic_load(&cq->lanes); left; left &= left - 1)
		siw_device_send_delayed_posts(cq->ctx->lanes[__builtin_ctz(left)], true);
	siw_lock(&cq->lock);
	old = cq->ring;
	err = cq_move_to_ring(cq, ring, mask, (uint32_t)cqe);
	siw_unlock(&cq->lock);
	free(err ? ring : old);
	return err;
}

bool siw_device_cq_is_on_device(const struct siw_cq *cq, const struct siw_context *ctx)
{
	return cq && cq->ctx == ctx;
}

bool siw_device_cq_is_overrun(const struct siw_cq *cq)
{
	return atomic_load(&cq->overrun);
}

/*
 * Sets the lane of the CQ, unless another thread has set it meanwhile. Returns the lane of the CQ.
 */
static struct siw_lane *cq_set_lane_if_unset(struct siw_cq *cq, struct siw_lane *lane)
{
	struct siw_lane *set;

	siw_lock(&cq->lock);
	set = cq->home;
	if (!set) {
		cq->home = lane;
		cq_update_lanes(cq);
	}
	siw_unlock(&cq->lock);
	if (!set)
		return lane;
	siw_device_cq_lane_release(lane);
	return set;
}

int siw_device_cq_get_or_choose_lane(struct siw_cq *cq, struct siw_lane **out)
{
	struct siw_lane *lane;
	int err;

	siw_lock(&cq->lock);
	*out = cq->home;
	siw_unlock(&cq->lock);
	if (*out)
		return 0;
	err = siw_device_cq_lane_choose(cq->ctx, cq->comp_vector, &lane);
	if (!err)
		*out = cq_set_lane_if_unset(cq, lane);
	return err;
}

void siw_device_cq_adjust_qp_count(struct siw_cq *cq, const struct siw_lane *lane, int by)
{
	siw_lock(&cq->lock);
	cq->lane_qps[lane->index] += (uint32_t)by;
	cq_update_lanes(cq);
	siw_unlock(&cq->lock);
	atomic_fetch_add(&cq->n_qp, (uint32_t)by);
}

/*
 * Called when a completion was lost, so the CQ is unusable. The next progress round moves the CQ's
 * QPs to ERR, because the caller may hold locks of any of them. Called with cq->lock held.
 */
static void __attribute__((cold, noinline)) handle_cq_overrun(struct siw_cq *cq)
{
	siw_count(SIW_COUNTER_cq_overflow, 1);
	if (!cq->overrun)
		siw_device_raise_async_event(&cq->async, SIW_EVENT_CQ_ERR);
	cq->overrun = true;
	/*
	 * The flag is set on every overflow, because a QP may have been reset since the previous
	 * overflow. Pairs with the exchange in fail_qps_of_overrun_cqs().
	 */
	for (uint32_t left = atomic_load(&cq->lanes); left; left &= left - 1) {
		struct siw_lane *lane = cq->ctx->lanes[__builtin_ctz(left)];

		atomic_store(&lane->cq_overrun, true);
		siw_device_wake_sleeping_thread(lane);
	}
}

static inline void cqe_set_addresses(struct siw_cqe *cqe, const struct siw_way *way)
{
	if (!way) {
		cqe->source.family = cqe->dest.family = 0;
		cqe->instance = 0;
		return;
	}
	cqe->instance = way->instance;
	cqe->source = *way->source;
	if (way->dest)
		cqe->dest = *way->dest;
	else
		cqe->dest.family = 0;
}

void siw_device_cq_add_completion(struct siw_qp *qp, struct siw_cq *cq, const struct siw_wc *wc,
				  const struct siw_way *way, uint32_t slot, bool solicited)
{
	uint32_t head, tail;
	bool announce = false;

	siw_lock(&cq->lock);
	head = atomic_load_explicit(&cq->head, memory_order_relaxed);
	tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);
	if (__builtin_expect(tail - head > cq->mask || cq->overrun, 0)) {
		handle_cq_overrun(cq);
	} else {
		struct siw_cqe *cqe = &cq->ring[tail & cq->mask];

		cqe->wc = *wc;
		cqe->owner = qp;
		cqe->slot = slot;
		cqe_set_addresses(cqe, way);
		/* Pairs with the read of tail in cq_poll_completions(), which holds no lock. */
		atomic_store_explicit(&cq->tail, tail + 1, memory_order_release);
	}
	if (cq->armed &&
	    (cq->armed == 1 || solicited || wc->status != SIW_WC_SUCCESS || cq->overrun)) {
		cq_set_arming_state(cq, 0);
		announce = true;
	}
	if (cq->loop_armed) {
		cq->loop_armed = false;
		siw_llp_event_loop_fd_signal(cq->loop);
	}
	if (__builtin_expect(atomic_load_explicit(&cq->waiters, memory_order_relaxed), 0))
		cq_wake_waiters(cq);
	siw_unlock(&cq->lock);
	if (announce)
		siw_device_comp_channel_raise_cq_event(cq);
}

/*
 * Frees the queue slots of a polled completion. Called under the CQ's lock, so that slots are freed
 * in order and the QP still exists.
 */
static void release_slots_of_completion(const struct siw_cqe *cqe)
{
	struct siw_qp *qp = cqe->owner;

	/*
	 * Pairs with the loads in the post functions. The value is only a count, so relaxed order
	 * suffices.
	 */
	atomic_store_explicit(cqe->wc.opcode & SIW_WC_RECV ? &qp->rq_freed : &qp->sq_freed,
			      cqe->slot, memory_order_relaxed);
	if (__builtin_expect(cqe->wc.opcode == SIW_WC_RECV_WRITE_RECORD, 0))
		qp->ops->record_polled(qp);
}

static inline int cq_poll_completions(struct siw_cq *cq, int max, struct siw_wc *wc,
				      struct siw_addr *sources, struct siw_addr *dests,
				      uint64_t *instances)
{
	uint32_t head, tail;
	int n = 0;

	if (atomic_load_explicit(&cq->tail, memory_order_acquire) ==
	    atomic_load_explicit(&cq->head, memory_order_relaxed))
		return 0;
	siw_lock(&cq->lock);
	head = atomic_load_explicit(&cq->head, memory_order_relaxed);
	tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);
	for (; n < max && head != tail; n++, head++) {
		const struct siw_cqe *cqe = &cq->ring[head & cq->mask];

		wc[n] = cqe->wc;
		if (sources)
			sources[n] = cqe->source;
		if (dests)
			dests[n] = cqe->dest;
		if (instances)
			instances[n] = cqe->instance;
		release_slots_of_completion(cqe);
	}
	atomic_store_explicit(&cq->head, head, memory_order_relaxed);
	siw_unlock(&cq->lock);
	return n;
}

int siw_device_cq_take_completions(struct siw_cq *cq, int max, struct siw_wc *wc,
				   struct siw_addr *sources, struct siw_addr *dests,
				   uint64_t *instances)
{
	return cq_poll_completions(cq, max, wc, sources, dests, instances);
}

static void note_polls_without_progress(struct siw_cq *cq, bool all)
{
	for (uint32_t left = atomic_load(&cq->lanes); left; left &= left - 1)
		siw_device_note_poll_without_progress(cq->ctx->lanes[__builtin_ctz(left)], all);
}

static void poll_several_lanes(struct siw_cq *cq)
{
	for (uint32_t left = atomic_load(&cq->lanes); left; left &= left - 1)
		siw_device_poll(cq->ctx->lanes[__builtin_ctz(left)], cq);
}

int siw_poll_cq_instances(struct siw_cq *cq, int num_entries, struct siw_wc *wc,
			  struct siw_addr *sources, struct siw_addr *dests, uint64_t *instances)
{
	struct siw_lane *lane;
	int n;

	if (__builtin_expect(!cq, 0))
		return siw_refuse_null("cq");
	if (__builtin_expect(num_entries < 0, 0))
		return siw_refuse(NEGATIVE, siw_reason_text("num_entries"), (uint64_t)num_entries);
	if (__builtin_expect(!wc && num_entries, 0))
		return siw_refuse_null("wc");
	if (siw_device_inherited(cq->ctx))
		return siw_refuse(STALE);
	n = cq_poll_completions(cq, num_entries, wc, sources, dests, instances);
	lane = atomic_load_explicit(&cq->sole_lane, memory_order_relaxed);
	if (n) {
		if (__builtin_expect(lane != NULL, 1))
			siw_device_note_poll_without_progress(lane, n == num_entries);
		else
			note_polls_without_progress(cq, n == num_entries);
		return n;
	}
	if (__builtin_expect(lane != NULL, 1))
		siw_device_poll(lane, cq);
	else
		poll_several_lanes(cq);
	n = cq_poll_completions(cq, num_entries, wc, sources, dests, instances);
	if (!n && num_entries && atomic_load_explicit(&cq->overrun, memory_order_relaxed))
		return siw_refuse(CQ_OVERFLOW);
	return n;
}

int siw_poll_cq_between(struct siw_cq *cq, int num_entries, struct siw_wc *wc,
			struct siw_addr *sources, struct siw_addr *dests)
{
	return siw_poll_cq_instances(cq, num_entries, wc, sources, dests, NULL);
}

int siw_poll_cq_from(struct siw_cq *cq, int num_entries, struct siw_wc *wc,
		     struct siw_addr *sources)
{
	return siw_poll_cq_instances(cq, num_entries, wc, sources, NULL, NULL);
}

int siw_poll_cq(struct siw_cq *cq, int num_entries, struct siw_wc *wc)
{
	return siw_poll_cq_instances(cq, num_entries, wc, NULL, NULL, NULL);
}

int siw_req_notify_cq(struct siw_cq *cq, int solicited_only)
{
	struct siw_context *ctx;
	int err = siw_device_check_usable(cq ? cq->ctx : NULL, "cq");

	if (err)
		return err;
	ctx = cq->ctx;
	siw_lock(&cq->lock); /* another thread may be destroying the CQ */
	if (!cq->channel)
		err = siw_refuse(CQ_NO_CHANNEL);
	else if (atomic_load(&cq->overrun))
		err = siw_refuse(CQ_OVERFLOW);
	/* Arming for solicited events does not narrow an earlier arming for all events. */
	else if (cq->armed != 1)
		cq_set_arming_state(cq, solicited_only ? 2 : 1);
	siw_unlock(&cq->lock);
	/*
	 * The delayed posts are sent after arming, so that their completions raise an event: the
	 * program may sleep on its own descriptor now.
	 */
	if (!err)
		siw_device_send_delayed_posts_of_all_lanes(ctx);
	return err;
}

/* The completions of other QPs keep their order. */
void siw_device_cq_remove_completions_of_qp(struct siw_cq *cq, struct siw_qp *qp)
{
	uint32_t head, tail, to;

	siw_lock(&cq->lock);
	head = atomic_load_explicit(&cq->head, memory_order_relaxed);
	tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);
	for (to = head; head != tail; head++) {
		const struct siw_cqe *cqe = &cq->ring[head & cq->mask];

		if (cqe->owner != qp)
			cq->ring[to++ & cq->mask] = *cqe;
		else if (cqe->wc.opcode == SIW_WC_RECV_WRITE_RECORD)
			qp->ops->record_polled(qp);
	}
	atomic_store_explicit(&cq->tail, to, memory_order_release);
	siw_unlock(&cq->lock);
}

const char *siw_wc_status_str(int status)
{
	static const char *const text[] = {
		"success",
		"local length error",
		"local QP operation error",
		"local EE context operation error",
		"local protection error",
		"work request flushed",
		"memory window bind error",
		"bad response",
		"local access error",
		"remote invalid request",
		"remote access error",
		"remote operation error",
		"transport retries exceeded",
		"receiver-not-ready retries exceeded",
		"local RDD violation",
		"remote invalid RD request",
		"aborted by the remote end",
		"invalid EE context number",
		"invalid EE context state",
		"fatal error",
		"response timed out",
		"general error",
	};

	if (status < 0 || status >= (int)(sizeof(text) / sizeof(text[0])))
		return "unknown status";
	return text[status];
}

/* ---- waiting without an event ---------------------------------------------------------------- */

/* Counts the calling thread as a waiter. Returns 0 or -errno. */
static int cq_wait_begin(struct siw_cq *cq)
{
	int err = 0;

	/*
	 * Under the lock: a thread that adds a completion afterwards wakes this thread, and this
	 * thread finds a completion that was added before.
	 */
	siw_lock(&cq->lock);
	if (cq->ring)
		atomic_fetch_add(&cq->waiters, 1);
	else
		err = siw_refuse(DESTROYED);
	siw_unlock(&cq->lock);
	if (err)
		return err;
	awaited = cq;
	cq_adjust_armed_count(cq->ctx, 1);
	return 0;
}

static void cq_wait_end(void *arg)
{
	struct siw_cq *cq = arg;

	cq_adjust_armed_count(cq->ctx, -1);
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
