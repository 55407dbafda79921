/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Progress: which thread runs the device's traffic. A thread that polls makes progress rounds under
 * the progress lock. A thread that waits for an event makes rounds and then sleeps on the sockets
 * (device_wait.c). If no thread polls or waits, the device's progress thread makes the rounds
 * (device_thread.c).
 */
#include <errno.h>

#include "base/clock.h"
#include "base/os.h"
#include "device/device_impl.h"

#define POLL_BATCH	32
#define TICK_NS		5000000ull
#define LONGEST_TICK_NS (64 * TICK_NS)
#define FEW		16 /* rounds without work between two clock reads */
/* after idle rounds for this time in ns the device counts as idle, and polls yield the CPU */
#define IDLE_NS 50000
/* maximum number of polls of other CQs that skip their round after an idle round of one CQ */
#define MAX_SKIPPED_POLLS 7
/* number of polls that make rounds of an idle device only rarely, after another device was busy */
#define RARE_POLLS    64
#define RARE_ROUND_NS 25000 /* minimum time between two rounds of an idle device */

static _Atomic uint32_t moves; /* number of rounds that moved messages, of all devices */

/* ---- unsent queue pairs ---------------------------------------------------------------------- */

void siw_device_add_unsent_qp(struct siw_qp *qp)
{
	struct siw_context *ctx = qp->ctx;

	siw_lock(&ctx->lane.unsent_lock);
	if (!qp->on_unsent) {
		qp->on_unsent = true;
		siw_link_add(&ctx->lane.unsent, &qp->unsent);
		atomic_fetch_add(&ctx->lane.n_unsent, 1);
	}
	siw_unlock(&ctx->lane.unsent_lock);
}

/* Returns whether a thread may be sleeping on the sockets. */
static bool may_have_sleeping_thread(struct siw_context *ctx)
{
	return siw_llp_port_armed(ctx->lane.port) || atomic_load(&ctx->waiters);
}

void siw_device_wake_sleeping_thread(struct siw_context *ctx)
{
	if (ctx->lane.port && may_have_sleeping_thread(ctx))
		siw_llp_port_wake(ctx->lane.port);
}

void siw_device_remove_unsent_qp(struct siw_qp *qp)
{
	struct siw_context *ctx = qp->ctx;

	siw_lock(&ctx->lane.unsent_lock);
	if (qp->on_unsent) {
		qp->on_unsent = false;
		siw_link_del(&qp->unsent);
		atomic_fetch_sub(&ctx->lane.n_unsent, 1);
	}
	siw_unlock(&ctx->lane.unsent_lock);
}

static struct siw_qp *pop_unsent_qp(struct siw_context *ctx)
{
	struct siw_qp *qp = NULL;

	siw_lock(&ctx->lane.unsent_lock);
	if (!siw_link_empty(&ctx->lane.unsent)) {
		qp = siw_container(ctx->lane.unsent.next, struct siw_qp, unsent);
		qp->on_unsent = false;
		siw_link_del(&qp->unsent);
		atomic_fetch_sub(&ctx->lane.n_unsent, 1);
	}
	siw_unlock(&ctx->lane.unsent_lock);
	return qp;
}

/* Moves n QPs from the head of the unsent list to its end. */
static void rotate_unsent_list(struct siw_context *ctx, uint32_t n)
{
	siw_lock(&ctx->lane.unsent_lock);
	for (; n && !siw_link_empty(&ctx->lane.unsent); n--) {
		struct siw_link *first = ctx->lane.unsent.next;

		siw_link_del(first);
		siw_link_add(&ctx->lane.unsent, first);
	}
	siw_unlock(&ctx->lane.unsent_lock);
}

/*
 * Gives a turn to each QP of the unsent list. A QP is removed from the list before its turn, so
 * that a post during the turn can add it again. Several QPs may share a full socket; the first QP
 * that found no space at all is the first in the next round.
 */
int siw_device_send_unsent_qps(struct siw_context *ctx)
{
	uint32_t ahead = 0; /* number of QPs in the list before the first QP that found no room */
	bool starved = false;
	int moved = 0;

	/*
	 * Pairs with the store in siw_post_send(): a thread that reads true also sees the queue
	 * pair.
	 */
	if (atomic_load_explicit(&ctx->lane.posts_delayed, memory_order_acquire))
		atomic_store(&ctx->lane.posts_delayed, false);
	ctx->lane.unsent_rounds++;
	ctx->lane.more_to_send = false;
	for (uint32_t n = atomic_load(&ctx->lane.n_unsent); n; n--) {
		struct siw_qp *qp = pop_unsent_qp(ctx);
		enum siw_turn turn;

		if (!qp)
			break;
		turn = qp->ops->turn(qp, ctx->lane.unsent_rounds);
		if (turn != SIW_TURN_DONE) {
			siw_device_add_unsent_qp(qp);
			starved |= turn == SIW_TURN_STARVED;
			ctx->lane.more_to_send |= turn == SIW_TURN_MORE;
			ahead += !starved;
		}
		moved += turn <= SIW_TURN_MORE;
	}
	if (starved && ahead)
		rotate_unsent_list(ctx, ahead);
	return moved;
}

/*
 * Called after a round of a thread that may make no further round. The round has consumed
 * edge-triggered epoll reports, so a thread sleeping on the sockets would miss them. Wakes such a
 * thread if there is more work.
 */
static void wake_sleeper_if_work_is_left(struct siw_context *ctx)
{
	if (may_have_sleeping_thread(ctx))
		siw_llp_port_wake_if_work_left(ctx->lane.port,
					       ctx->lane.more_to_send &&
						       atomic_load_explicit(&ctx->lane.n_unsent,
									    memory_order_relaxed));
}

/*
 * Acquires the progress lock for a poll. A poll normally does not wait for a round of another
 * thread. But a poll must send the posts that are delayed for a batch, and the other thread's round
 * may already be past its sending step.
 */
static bool acquire_progress_lock_for_poll(struct siw_context *ctx)
{
	if (siw_trylock(&ctx->lane.lock))
		return true;
	if (!atomic_load_explicit(&ctx->lane.posts_delayed, memory_order_relaxed))
		return false;
	siw_lock(&ctx->lane.lock);
	return true;
}

void siw_device_send_posted(struct siw_context *ctx, bool polls)
{
	if (!atomic_load_explicit(&ctx->lane.n_unsent, memory_order_relaxed))
		return;
	if (!polls)
		siw_lock(&ctx->lane.lock);
	else if (!acquire_progress_lock_for_poll(ctx))
		return;
	if (ctx->lane.port) {
		siw_device_send_unsent_qps(ctx);
		wake_sleeper_if_work_is_left(ctx);
	}
	siw_unlock(&ctx->lane.lock);
}

/* ---- timers ---------------------------------------------------------------------------------- */

static void timer_schedule(struct siw_context *ctx, struct siw_timed *timed, uint64_t due_ns)
{
	bool first = siw_link_empty(&ctx->lane.timed);

	timed->due_ns = timed->by_ns && timed->by_ns < due_ns ? timed->by_ns : due_ns;
	if (first ||
	    timed->due_ns < atomic_load_explicit(&ctx->lane.next_tick_ns, memory_order_relaxed))
		atomic_store_explicit(&ctx->lane.next_tick_ns, timed->due_ns, memory_order_relaxed);
	if (siw_link_empty(&timed->link)) {
		siw_link_add(&ctx->lane.timed, &timed->link);
		atomic_fetch_add(&ctx->lane.n_timed, 1);
	}
	siw_llp_port_wake(ctx->lane.port);
}

void siw_device_timer_start_periodic(struct siw_context *ctx, struct siw_timed *timed,
				     uint64_t by_ns)
{
	timed->by_ns = by_ns;
	timed->step_ns = TICK_NS;
	timer_schedule(ctx, timed, siw_now_ns() + TICK_NS);
}

void siw_device_timer_start_at(struct siw_context *ctx, struct siw_timed *timed, uint64_t by_ns)
{
	timed->by_ns = by_ns;
	timed->step_ns = LONGEST_TICK_NS;
	timer_schedule(ctx, timed, by_ns);
}

void siw_device_timer_cancel(struct siw_context *ctx, struct siw_timed *timed)
{
	if (siw_link_empty(&timed->link))
		return;
	siw_link_del(&timed->link);
	atomic_fetch_sub(&ctx->lane.n_timed, 1);
}

/*
 * Sets a timer's next due time. The interval grows fourfold each time, up to a third of a second,
 * because the checks in most ticks are also triggered by socket events, and an idle device must
 * sleep. All timers expire on one grid, so that many timers cause no more wake-ups than one.
 */
static void set_next_due_time(struct siw_timed *timed, uint64_t now)
{
	if (timed->step_ns < LONGEST_TICK_NS)
		timed->step_ns *= 4;
	timed->due_ns = (now / timed->step_ns + 1) * timed->step_ns;
	if (timed->by_ns > now && timed->by_ns < timed->due_ns)
		timed->due_ns = timed->by_ns;
}

static void run_due_timers(struct siw_context *ctx)
{
	uint64_t now = siw_llp_port_clock(ctx->lane.port), next = UINT64_MAX;
	struct siw_link turn;

	if (now < atomic_load_explicit(&ctx->lane.next_tick_ns, memory_order_relaxed))
		return;
	/* Run each timer once, whatever timers the callbacks remove or add. */
	siw_link_init(&turn);
	while (!siw_link_empty(&ctx->lane.timed)) {
		struct siw_link *l = ctx->lane.timed.next;

		siw_link_del(l);
		siw_link_add(&turn, l);
	}
	while (!siw_link_empty(&turn)) {
		struct siw_link *l = turn.next;
		struct siw_timed *t = siw_container(l, struct siw_timed, link);

		siw_link_del(l);
		siw_link_add(&ctx->lane.timed, l);
		if (now < t->due_ns)
			continue;
		/* tick() may set another time, or free the timer. */
		set_next_due_time(t, now);
		t->tick(t, now);
	}
	for (struct siw_link *l = ctx->lane.timed.next; l != &ctx->lane.timed; l = l->next) {
		uint64_t due = siw_container(l, struct siw_timed, link)->due_ns;

		next = due < next ? due : next;
	}
	atomic_store_explicit(&ctx->lane.next_tick_ns, next, memory_order_relaxed);
}

int64_t siw_device_sleep_duration_us(struct siw_context *ctx, uint64_t now, uint64_t deadline)
{
	int64_t us = siw_device_us_until_deadline(now, deadline);
	uint64_t tick = atomic_load_explicit(&ctx->lane.next_tick_ns, memory_order_relaxed);
	int64_t tick_us;

	if (!atomic_load(&ctx->lane.n_timed))
		return us;
	/* A timer that is added later wakes the sleeping threads. */
	tick_us = tick > now ? (int64_t)((tick - now) / 1000) + 1 : 0;
	return us < 0 || us > tick_us ? tick_us : us;
}

/* ---- one round ------------------------------------------------------------------------------- */

/* Moves the QPs of an overflowed CQ to ERR. */
static void fail_qps_of_overrun_cqs(struct siw_context *ctx)
{
	struct siw_link *l, *next;

	if (!atomic_exchange(&ctx->cq_overrun, false))
		return;
	for (l = ctx->qps.next; l != &ctx->qps; l = next) {
		struct siw_qp *qp = siw_container(l, struct siw_qp, in_ctx);

		next = l->next;
		if (qp->state != SIW_QPS_ERR &&
		    (atomic_load(&qp->send_cq->overrun) || atomic_load(&qp->recv_cq->overrun)))
			qp->ops->fail(qp, -EOVERFLOW);
	}
}

static void count_round_with_work(struct siw_context *ctx)
{
	uint32_t count = atomic_load_explicit(&moves, memory_order_relaxed) + 1;

	/*
	 * The counter is not incremented atomically: a lost increment does no harm, because readers
	 * only check for a change.
	 */
	atomic_store_explicit(&moves, count, memory_order_relaxed);
	ctx->idle_polls = (struct siw_idle_polls){ 0 };
}

int siw_device_progress_once(struct siw_context *ctx)
{
	struct siw_io_handler *ready[POLL_BATCH];
	int n = siw_llp_port_poll(ctx->lane.port, ready, POLL_BATCH);
	int moved = 0;

	ctx->lane.rounds++;
	for (int i = 0; i < n; i++)
		moved += ready[i]->serve(ready[i]);
	if (atomic_load_explicit(&ctx->lane.n_unsent, memory_order_relaxed))
		moved += siw_device_send_unsent_qps(ctx);
	if (atomic_load_explicit(&ctx->lane.n_timed, memory_order_relaxed))
		run_due_timers(ctx);
	if (__builtin_expect(atomic_load_explicit(&ctx->cq_overrun, memory_order_relaxed), 0))
		fail_qps_of_overrun_cqs(ctx);
	if (moved)
		count_round_with_work(ctx);
	return moved;
}

void siw_device_progress_once_and_wake(struct siw_context *ctx)
{
	siw_device_progress_once(ctx);
	wake_sleeper_if_work_is_left(ctx);
}

static void count_poll(struct siw_context *ctx)
{
	/*
	 * The counter is not incremented atomically: readers only check for a change, and the next
	 * poll makes up for a lost increment.
	 */
	uint32_t polls = atomic_load_explicit(&ctx->polls, memory_order_relaxed);

	atomic_store_explicit(&ctx->polls, polls + 1, memory_order_relaxed);
}

/*
 * Makes a progress round in one of eight polls for a program with dense posts. A program with dense
 * posts whose requests complete immediately, such as RC Writes, never polls an empty CQ, and only
 * polls of an empty CQ make progress. The round services the sockets. The round also wakes the
 * progress thread, which then takes short sleeps (naps) instead of sleeping on the sockets: posts
 * may be delayed for a batch only while the progress thread naps.
 */
static void make_progress_round_for_dense_posts(struct siw_context *ctx)
{
	count_poll(ctx);
	if (!acquire_progress_lock_for_poll(ctx))
		return;
	if (ctx->lane.port) {
		siw_device_progress_once_and_wake(ctx);
		if (siw_llp_port_armed(ctx->lane.port))
			siw_llp_port_wake(ctx->lane.port);
	}
	siw_unlock(&ctx->lane.lock);
}

void siw_device_note_poll_without_progress(struct siw_context *ctx, bool all)
{
	/* The counter is not incremented atomically, for the reasons in count_poll(). */
	uint32_t takes = atomic_load_explicit(&ctx->polls_without_round, memory_order_relaxed) + 1;

	atomic_store_explicit(&ctx->polls_without_round, takes, memory_order_relaxed);
	if (takes % SIW_POLLS_PER_BURST == 0 &&
	    atomic_load_explicit(&ctx->posts_dense, memory_order_relaxed)) {
		atomic_store_explicit(&ctx->posts_dense, false, memory_order_relaxed);
		make_progress_round_for_dense_posts(ctx);
	} else if (!all) { /* a poll that did not fill its array may be the last for a while */
		siw_device_send_posted(ctx, true);
	}
}

/*
 * Returns whether to skip the round of a poll of an idle device while the program also polls a busy
 * device. Rare rounds are enough for the idle device.
 */
static bool may_skip_round_of_idle_device(struct siw_idle_polls *idle_polls)
{
	uint32_t count = atomic_load_explicit(&moves, memory_order_relaxed);
	uint64_t now;

	if (idle_polls->work_count != count) {
		idle_polls->work_count = count;
		idle_polls->rare_left = RARE_POLLS;
	}
	if (!idle_polls->rare_left)
		return false;
	idle_polls->rare_left--;
	now = siw_now_ns();
	if (now - idle_polls->round_ns < RARE_ROUND_NS)
		return true;
	idle_polls->round_ns = now;
	return false;
}

/*
 * Returns whether a poll of cq has to make a round. Programs poll several CQs, and several devices,
 * in turn, most of them idle; a round that has just found no work is not repeated for each of them.
 */
static bool poll_must_make_progress_round(struct siw_context *ctx, const struct siw_cq *cq)
{
	struct siw_idle_polls *idle_polls = &ctx->idle_polls;
	bool other = cq && idle_polls->last_cq && idle_polls->last_cq != cq;

	if (atomic_load_explicit(&ctx->lane.n_unsent, memory_order_relaxed))
		return true;
	if (other && idle_polls->skipped < MAX_SKIPPED_POLLS) {
		idle_polls->skipped++;
		return false;
	}
	idle_polls->last_cq = cq;
	idle_polls->skipped = 0;
	return !idle_polls->idle || !may_skip_round_of_idle_device(idle_polls);
}

/*
 * Counts a poll's progress round that moved no message. Returns whether to yield the CPU to other
 * threads. If idle rounds continue, the peer's thread may be waiting for this CPU, because more
 * processes poll than there are CPUs.
 */
static bool count_idle_round(struct siw_idle_polls *idle_polls)
{
	bool lasts;
	uint64_t now;

	if (++idle_polls->rounds % FEW)
		return false;
	if (idle_polls->idle)
		return !idle_polls->rare_left;
	now = siw_now_ns();
	if (idle_polls->rounds == FEW)
		idle_polls->since_ns = now;
	lasts = now - idle_polls->since_ns >= IDLE_NS;
	if (lasts) {
		idle_polls->idle = true;
		idle_polls->work_count = atomic_load_explicit(&moves, memory_order_relaxed);
	}
	return lasts;
}

void siw_device_poll(struct siw_context *ctx, const struct siw_cq *cq)
{
	bool offer = false;

	count_poll(ctx);
	if (!acquire_progress_lock_for_poll(ctx))
		return;
	if (__builtin_expect(ctx->lane.port != NULL, 1) && poll_must_make_progress_round(ctx, cq)) {
		if (!siw_device_progress_once(ctx))
			offer = count_idle_round(&ctx->idle_polls);
		wake_sleeper_if_work_is_left(ctx);
	}
	siw_unlock(&ctx->lane.lock);
	if (__builtin_expect(offer, 0))
		siw_yield();
}
