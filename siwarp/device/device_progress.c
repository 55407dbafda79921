/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Progress: which thread runs the device's traffic. A thread that polls makes progress rounds of a
 * lane under the lane's progress lock. A thread that waits for an event makes rounds and then
 * sleeps on the sockets (device_wait.c). If no thread polls or waits, the device's progress thread
 * makes the rounds (device_thread.c).
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
	struct siw_lane *lane = qp->lane;

	siw_lock(&lane->unsent_lock);
	if (!qp->on_unsent) {
		qp->on_unsent = true;
		siw_link_add(&lane->unsent, &qp->unsent);
		atomic_fetch_add(&lane->n_unsent, 1);
	}
	siw_unlock(&lane->unsent_lock);
}

/* Returns whether a thread may be sleeping on the sockets. */
static bool lane_may_have_sleeping_thread(struct siw_lane *lane)
{
	return siw_llp_poller_is_armed(lane->poller) || atomic_load(&lane->waiters);
}

void siw_device_wake_sleeping_thread(struct siw_lane *lane)
{
	if (lane->poller && lane_may_have_sleeping_thread(lane))
		siw_llp_poller_wake(lane->poller);
}

void siw_device_remove_unsent_qp(struct siw_qp *qp)
{
	struct siw_lane *lane = qp->lane;

	siw_lock(&lane->unsent_lock);
	if (qp->on_unsent) {
		qp->on_unsent = false;
		siw_link_del(&qp->unsent);
		atomic_fetch_sub(&lane->n_unsent, 1);
	}
	siw_unlock(&lane->unsent_lock);
}

static struct siw_qp *pop_unsent_qp(struct siw_lane *lane)
{
	struct siw_qp *qp = NULL;

	siw_lock(&lane->unsent_lock);
	if (!siw_link_empty(&lane->unsent)) {
		qp = siw_container(lane->unsent.next, struct siw_qp, unsent);
		qp->on_unsent = false;
		siw_link_del(&qp->unsent);
		atomic_fetch_sub(&lane->n_unsent, 1);
	}
	siw_unlock(&lane->unsent_lock);
	return qp;
}

/* Moves n QPs from the head of the unsent list to its end. */
static void rotate_list_of_unsent_qps(struct siw_lane *lane, uint32_t n)
{
	siw_lock(&lane->unsent_lock);
	for (; n && !siw_link_empty(&lane->unsent); n--) {
		struct siw_link *first = lane->unsent.next;

		siw_link_del(first);
		siw_link_add(&lane->unsent, first);
	}
	siw_unlock(&lane->unsent_lock);
}

/*
 * Gives a turn to each QP of the unsent list. A QP is removed from the list before its turn, so
 * that a post during the turn can add it again. Several QPs may share a full socket; the first QP
 * that found no space at all is the first in the next round.
 */
int siw_device_send_unsent_qps(struct siw_lane *lane)
{
	uint32_t ahead = 0; /* number of QPs in the list before the first QP that found no room */
	bool starved = false;
	int moved = 0;

	/*
	 * Pairs with the store in siw_post_send(): a thread that reads true also sees the queue
	 * pair.
	 */
	if (atomic_load_explicit(&lane->posts_delayed, memory_order_acquire))
		atomic_store(&lane->posts_delayed, false);
	lane->unsent_rounds++;
	lane->more_to_send = false;
	for (uint32_t n = atomic_load(&lane->n_unsent); n; n--) {
		struct siw_qp *qp = pop_unsent_qp(lane);
		enum siw_turn turn;

		if (!qp)
			break;
		turn = qp->ops->turn(qp, lane->unsent_rounds);
		if (turn != SIW_TURN_DONE) {
			siw_device_add_unsent_qp(qp);
			starved |= turn == SIW_TURN_STARVED;
			lane->more_to_send |= turn == SIW_TURN_MORE;
			ahead += !starved;
		}
		moved += turn <= SIW_TURN_MORE;
	}
	if (starved && ahead)
		rotate_list_of_unsent_qps(lane, ahead);
	return moved;
}

/*
 * Called after a round of a thread that may make no further round. The round has consumed
 * edge-triggered epoll reports, so a thread sleeping on the sockets would miss them. Wakes such a
 * thread if there is more work.
 */
static void wake_sleeper_if_work_is_left(struct siw_lane *lane)
{
	if (lane_may_have_sleeping_thread(lane))
		siw_llp_poller_wake_if_work_left(
			lane->poller,
			lane->more_to_send &&
				atomic_load_explicit(&lane->n_unsent, memory_order_relaxed));
}

/*
 * Acquires the progress lock for a poll. A poll normally does not wait for a round of another
 * thread. But a poll must send the posts that are delayed for a batch, and the other thread's round
 * may already be past its sending step.
 */
static bool acquire_progress_lock_for_poll(struct siw_lane *lane)
{
	if (siw_trylock(&lane->lock))
		return true;
	if (!atomic_load_explicit(&lane->posts_delayed, memory_order_relaxed))
		return false;
	siw_lock(&lane->lock);
	return true;
}

void siw_device_send_delayed_posts(struct siw_lane *lane, bool polls)
{
	if (!atomic_load_explicit(&lane->n_unsent, memory_order_relaxed))
		return;
	if (!polls)
		siw_lock(&lane->lock);
	else if (!acquire_progress_lock_for_poll(lane))
		return;
	if (lane->poller) {
		siw_device_send_unsent_qps(lane);
		wake_sleeper_if_work_is_left(lane);
	}
	siw_unlock(&lane->lock);
}

void siw_device_send_delayed_posts_of_all_lanes(struct siw_context *ctx)
{
	SIW_EACH_LANE(lane, ctx)
	siw_device_send_delayed_posts(lane, false);
}

/* ---- timers ---------------------------------------------------------------------------------- */

static void timer_schedule(struct siw_lane *lane, struct siw_timed *timed, uint64_t due_ns)
{
	bool first = siw_link_empty(&lane->timed), earlier;

	timed->due_ns = timed->by_ns && timed->by_ns < due_ns ? timed->by_ns : due_ns;
	earlier = first ||
		  timed->due_ns < atomic_load_explicit(&lane->next_tick_ns, memory_order_relaxed);
	if (earlier)
		atomic_store_explicit(&lane->next_tick_ns, timed->due_ns, memory_order_relaxed);
	if (siw_link_empty(&timed->link)) {
		siw_link_add(&lane->timed, &timed->link);
		atomic_fetch_add(&lane->n_timed, 1);
	}
	/* The sleeping threads chose their time-outs without this timer, which is due first now. */
	if (earlier)
		siw_llp_poller_wake(lane->poller);
}

void siw_device_timer_start_periodic(struct siw_lane *lane, struct siw_timed *timed, uint64_t by_ns)
{
	timed->by_ns = by_ns;
	timed->step_ns = TICK_NS;
	timer_schedule(lane, timed, siw_now_ns() + TICK_NS);
}

void siw_device_timer_start_at(struct siw_lane *lane, struct siw_timed *timed, uint64_t by_ns)
{
	timed->by_ns = by_ns;
	timed->step_ns = LONGEST_TICK_NS;
	timer_schedule(lane, timed, by_ns);
}

void siw_device_timer_cancel(struct siw_lane *lane, struct siw_timed *timed)
{
	if (siw_link_empty(&timed->link))
		return;
	siw_link_del(&timed->link);
	atomic_fetch_sub(&lane->n_timed, 1);
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

static void run_due_timers(struct siw_lane *lane)
{
	uint64_t now = siw_llp_poller_recent_time_ns(lane->poller), next = UINT64_MAX;
	struct siw_link turn;

	if (now < atomic_load_explicit(&lane->next_tick_ns, memory_order_relaxed))
		return;
	/* Run each timer once, whatever timers the callbacks remove or add. */
	siw_link_init(&turn);
	while (!siw_link_empty(&lane->timed)) {
		struct siw_link *l = lane->timed.next;

		siw_link_del(l);
		siw_link_add(&turn, l);
	}
	while (!siw_link_empty(&turn)) {
		struct siw_link *l = turn.next;
		struct siw_timed *t = siw_container(l, struct siw_timed, link);

		siw_link_del(l);
		siw_link_add(&lane->timed, l);
		if (now < t->due_ns)
			continue;
		/* tick() may set another time, or free the timer. */
		set_next_due_time(t, now);
		t->tick(t, now);
	}
	for (struct siw_link *l = lane->timed.next; l != &lane->timed; l = l->next) {
		uint64_t due = siw_container(l, struct siw_timed, link)->due_ns;

		next = due < next ? due : next;
	}
	atomic_store_explicit(&lane->next_tick_ns, next, memory_order_relaxed);
}

int64_t siw_device_sleep_duration_us(struct siw_lane *lane, uint64_t now, uint64_t deadline)
{
	int64_t us = siw_device_us_until_deadline(now, deadline);
	uint64_t tick = atomic_load_explicit(&lane->next_tick_ns, memory_order_relaxed);
	int64_t tick_us;

	if (!atomic_load(&lane->n_timed))
		return us;
	/* A timer that is added later wakes the sleeping threads. */
	tick_us = tick > now ? (int64_t)((tick - now) / 1000) + 1 : 0;
	return us < 0 || us > tick_us ? tick_us : us;
}

/* ---- one round ------------------------------------------------------------------------------- */

/* Moves the QPs of an overflowed CQ to ERR. */
static void fail_qps_of_overrun_cqs(struct siw_lane *lane)
{
	struct siw_link *l, *next;

	if (!atomic_exchange(&lane->cq_overrun, false))
		return;
	for (l = lane->qps.next; l != &lane->qps; l = next) {
		struct siw_qp *qp = siw_container(l, struct siw_qp, in_lane);

		next = l->next;
		if (qp->state != SIW_QPS_ERR &&
		    (atomic_load(&qp->send_cq->overrun) || atomic_load(&qp->recv_cq->overrun)))
			qp->ops->fail(qp, -EOVERFLOW);
	}
}

/* Does what rounds of other lanes have left for this lane. */
static __attribute__((cold, noinline)) void do_work_of_other_lanes(struct siw_lane *lane)
{
	uint32_t work = atomic_exchange(&lane->work_of_others, 0);

	if (work & SIW_LANE_NOTIFY_FOLLOWERS)
		siw_device_notify_objects_of_addr_change(lane);
	if (work & SIW_LANE_REVOKE_BINDINGS)
		siw_device_mw_revoke_replaced_bindings(lane);
	if (work & SIW_LANE_CONTINUE_BINDS)
		siw_device_mw_continue_binds(lane);
}

static void count_round_with_work(struct siw_lane *lane)
{
	uint32_t count = atomic_load_explicit(&moves, memory_order_relaxed) + 1;

	/*
	 * The counter is not incremented atomically: a lost increment does no harm, because readers
	 * only check for a change.
	 */
	atomic_store_explicit(&moves, count, memory_order_relaxed);
	lane->idle_polls = (struct siw_idle_polls){ 0 };
}

int siw_device_progress_once(struct siw_lane *lane)
{
	struct siw_io_handler *ready[POLL_BATCH];
	int n = siw_llp_poller_poll(lane->poller, ready, POLL_BATCH);
	int moved = 0;

	atomic_store_explicit(&lane->rounds,
			      atomic_load_explicit(&lane->rounds, memory_order_relaxed) + 1,
			      memory_order_relaxed);
	for (int i = 0; i < n; i++)
		moved += ready[i]->serve(ready[i]);
	/* Before requests are sent, because a bind that is completed lets later requests begin. */
	if (__builtin_expect(atomic_load_explicit(&lane->work_of_others, memory_order_relaxed), 0))
		do_work_of_other_lanes(lane);
	if (atomic_load_explicit(&lane->n_unsent, memory_order_relaxed))
		moved += siw_device_send_unsent_qps(lane);
	if (atomic_load_explicit(&lane->n_timed, memory_order_relaxed))
		run_due_timers(lane);
	if (__builtin_expect(atomic_load_explicit(&lane->cq_overrun, memory_order_relaxed), 0))
		fail_qps_of_overrun_cqs(lane);
	if (moved)
		count_round_with_work(lane);
	return moved;
}

void siw_device_progress_once_and_wake(struct siw_lane *lane)
{
	siw_device_progress_once(lane);
	wake_sleeper_if_work_is_left(lane);
}

static void count_poll(struct siw_lane *lane)
{
	/*
	 * The counter is not incremented atomically: readers only check for a change, and the next
	 * poll makes up for a lost increment.
	 */
	uint32_t polls = atomic_load_explicit(&lane->polls, memory_order_relaxed);

	atomic_store_explicit(&lane->polls, polls + 1, memory_order_relaxed);
}

/*
 * Makes a progress round at the end of a burst of posts, for a program with dense posts. A program
 * with dense posts whose requests complete immediately, such as RC Writes, never polls an empty CQ,
 * and only polls of an empty CQ make progress. The round services the sockets. The round also wakes
 * the progress thread, which then takes short sleeps (naps) instead of sleeping on the sockets:
 * posts may be delayed for a batch only while the progress thread naps.
 */
static void make_progress_round_for_dense_posts(struct siw_lane *lane)
{
	count_poll(lane);
	if (!acquire_progress_lock_for_poll(lane))
		return;
	if (lane->poller) {
		siw_device_progress_once_and_wake(lane);
		if (siw_llp_poller_is_armed(lane->poller))
			siw_llp_poller_wake(lane->poller);
	}
	siw_unlock(&lane->lock);
}

static bool burst_of_posts_has_ended(const struct siw_lane *lane, uint32_t polls)
{
	return polls % SIW_POLLS_PER_BURST == 0 ||
	       atomic_load_explicit(&lane->posted_octets, memory_order_relaxed) >=
		       SIW_OCTETS_PER_BURST;
}

void siw_device_note_poll_without_progress(struct siw_lane *lane, bool all)
{
	/* The counter is not incremented atomically, for the reasons in count_poll(). */
	uint32_t takes = atomic_load_explicit(&lane->polls_without_round, memory_order_relaxed) + 1;

	atomic_store_explicit(&lane->polls_without_round, takes, memory_order_relaxed);
	if (burst_of_posts_has_ended(lane, takes) &&
	    atomic_load_explicit(&lane->posts_dense, memory_order_relaxed)) {
		atomic_store_explicit(&lane->posts_dense, false, memory_order_relaxed);
		atomic_store_explicit(&lane->posted_octets, 0, memory_order_relaxed);
		make_progress_round_for_dense_posts(lane);
	} else if (!all) { /* the CQ is empty, so the program may not poll again soon */
		siw_device_send_delayed_posts(lane, true);
	}
}

/*
 * Returns whether to skip the round of a poll of an idle device while the program also polls a busy
 * device. Rare rounds are enough for the idle device.
 */
static bool can_skip_round_of_idle_device(struct siw_idle_polls *idle_polls)
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
static bool is_progress_round_needed_for_poll(struct siw_lane *lane, const struct siw_cq *cq)
{
	struct siw_idle_polls *idle_polls = &lane->idle_polls;
	bool other = cq && idle_polls->last_cq && idle_polls->last_cq != cq;

	if (atomic_load_explicit(&lane->n_unsent, memory_order_relaxed))
		return true;
	if (other && idle_polls->skipped < MAX_SKIPPED_POLLS) {
		idle_polls->skipped++;
		return false;
	}
	idle_polls->last_cq = cq;
	idle_polls->skipped = 0;
	return !idle_polls->idle || !can_skip_round_of_idle_device(idle_polls);
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

void siw_device_count_poll_for_taken_event(struct siw_lane *lane)
{
	uint32_t polls = atomic_load_explicit(&lane->polls, memory_order_relaxed);

	if (polls % SIW_POLLS_PER_BURST)
		count_poll(lane);
	else
		siw_device_poll(lane, NULL);
}

/* ---- rounds of a poll on other lanes --------------------------------------------------------- */

/*
 * A poll also makes rounds on other lanes, so that the one-sided traffic of their queue pairs goes
 * on although nobody polls them. If no thread has made a round on a lane for UNSERVED_NS, the lane
 * that is polled adopts it: each poll without work makes a round on an adopted lane, until another
 * thread does.
 */
#define UNSERVED_NS  20000
#define BUSY_POLLS   64 /* one in this many polls with work checks another lane */
#define LOOK_POLLS   8	/* one in this many checks is of any other lane, the rest of adopted ones */
#define FAILED_POLLS 16 /* of this many polls in a row that found the lock held, one yields */

/*
 * Called after a poll that found the lock held. If there are fewer CPUs than polling threads, the
 * holder may have been preempted, and cannot run while the others poll in a loop.
 */
static void yield_after_failed_polls(struct siw_lane *lane)
{
	uint32_t failed = atomic_load_explicit(&lane->failed_polls, memory_order_relaxed) + 1;

	atomic_store_explicit(&lane->failed_polls, failed, memory_order_relaxed);
	if (failed % FAILED_POLLS == 0)
		siw_yield();
}

/*
 * Returns the lanes, other than `lane`, that a poll may have to serve, as a bit mask: those whose
 * sockets may have data. Without a progress thread these are all lanes, because a lane that has no
 * queue pairs any longer may have streams and endpoints that wait for their peers to close.
 */
static uint32_t other_lanes_to_serve(const struct siw_lane *lane)
{
	const struct siw_context *ctx = lane->ctx;
	uint32_t others = atomic_load_explicit(&ctx->open_lanes, memory_order_acquire) &
			  ~(1u << lane->index);

	if (__builtin_expect(others, 0) && ctx->has_thread)
		others &= atomic_load_explicit(&ctx->lanes_with_qps, memory_order_relaxed) | 1;
	return others;
}

/* Returns whether no thread has made a round on the lane for UNSERVED_NS. */
static bool lane_is_unserved(struct siw_lane *lane, bool adopted)
{
	uint64_t rounds = atomic_load_explicit(&lane->rounds, memory_order_relaxed), since, now;

	if (rounds != atomic_load_explicit(&lane->seen_rounds, memory_order_relaxed)) {
		atomic_store_explicit(&lane->seen_rounds, rounds, memory_order_relaxed);
		atomic_store_explicit(&lane->unserved_since_ns, 0, memory_order_relaxed);
		return false;
	}
	if (adopted)
		return true;
	now = siw_now_ns();
	since = atomic_load_explicit(&lane->unserved_since_ns, memory_order_relaxed);
	if (!since)
		atomic_store_explicit(&lane->unserved_since_ns, now, memory_order_relaxed);
	return since && now - since >= UNSERVED_NS;
}

/* Makes a progress round for a poll of another lane, unless a thread is making one. */
static void make_round_for_other_lane(struct siw_lane *lane)
{
	if (!siw_trylock(&lane->lock))
		return;
	if (lane->poller) {
		siw_device_progress_once_and_wake(lane);
		atomic_store_explicit(&lane->seen_rounds,
				      atomic_load_explicit(&lane->rounds, memory_order_relaxed),
				      memory_order_relaxed);
		atomic_store_explicit(&lane->unserved_since_ns, 0, memory_order_relaxed);
	}
	siw_unlock(&lane->lock);
	/* Counts as a poll of the lane, so that the progress thread leaves the lane to polls. */
	count_poll(lane);
}

/* Returns the member of a non-empty set of lanes that follows lane number `last`, in turn. */
static unsigned int next_lane_of_set(uint32_t set, unsigned int last)
{
	uint32_t later = set & ~(uint32_t)0 << (last + 1);

	return (unsigned int)__builtin_ctz(later ? later : set);
}

/*
 * Called after a poll of a lane, with no lock held. others: the other lanes to serve, not empty.
 * Without a progress thread every poll makes a round on each of them.
 */
static __attribute__((noinline)) void poll_other_lanes(struct siw_lane *lane, uint32_t others)
{
	uint32_t adopted = atomic_load_explicit(&lane->adopted, memory_order_relaxed) & others;
	uint32_t looks = atomic_load_explicit(&lane->looks, memory_order_relaxed) + 1;
	struct siw_context *ctx = lane->ctx;
	unsigned int next;
	bool unserved;

	if (!ctx->has_thread) {
		for (; others; others &= others - 1)
			make_round_for_other_lane(ctx->lanes[__builtin_ctz(others)]);
		return;
	}
	atomic_store_explicit(&lane->looks, looks, memory_order_relaxed);
	if (looks % LOOK_POLLS)
		others = adopted;
	if (!others)
		return;
	next = next_lane_of_set(others,
				atomic_load_explicit(&lane->last_look, memory_order_relaxed));
	atomic_store_explicit(&lane->last_look, next, memory_order_relaxed);
	unserved = lane_is_unserved(ctx->lanes[next], adopted >> next & 1);
	adopted = unserved ? adopted | 1u << next : adopted & ~(1u << next);
	atomic_store_explicit(&lane->adopted, adopted, memory_order_relaxed);
	if (unserved)
		make_round_for_other_lane(ctx->lanes[next]);
}

void siw_device_poll(struct siw_lane *lane, const struct siw_cq *cq)
{
	uint32_t others = other_lanes_to_serve(lane);
	bool offer = false;

	count_poll(lane);
	if (!acquire_progress_lock_for_poll(lane)) {
		yield_after_failed_polls(lane);
		return;
	}
	if (atomic_load_explicit(&lane->failed_polls, memory_order_relaxed))
		atomic_store_explicit(&lane->failed_polls, 0, memory_order_relaxed);
	if (__builtin_expect(lane->poller != NULL, 1) &&
	    is_progress_round_needed_for_poll(lane, cq)) {
		bool moved;

		lane->round_of_poll = true;
		moved = siw_device_progress_once(lane);
		lane->round_of_poll = false;
		if (moved) {
			if (++lane->polls_with_work % BUSY_POLLS)
				others = 0;
		} else {
			offer = count_idle_round(&lane->idle_polls);
		}
		wake_sleeper_if_work_is_left(lane);
	}
	siw_unlock(&lane->lock);
	if (__builtin_expect(others, 0))
		poll_other_lanes(lane, others);
	if (__builtin_expect(offer, 0))
		siw_yield();
}

/* ---- event loops of the program -------------------------------------------------------------- */

#define LOOP_ROUNDS 8 /* maximum number of rounds in one turn of an event loop */

/* Returns the time of the lane's next timer, of whichever layer; 0: none. Lane locked. */
static uint64_t lane_next_timer_due_ns(struct siw_lane *lane)
{
	uint64_t due = siw_llp_poller_next_due_ns(lane->poller), tick;

	if (!atomic_load(&lane->n_timed))
		return due;
	tick = atomic_load_explicit(&lane->next_tick_ns, memory_order_relaxed);
	return !due || tick < due ? tick : due;
}

int siw_device_make_rounds_for_event_loop(struct siw_lane *lane, const struct siw_cq *cq, int max,
					  uint64_t *due_ns)
{
	uint32_t others = other_lanes_to_serve(lane);
	bool left = true;
	int err = 0;

	count_poll(lane);
	siw_lock(&lane->lock);
	for (int i = 0; !err && left && i < LOOP_ROUNDS; i++) {
		uint32_t head = atomic_load_explicit(&cq->head, memory_order_relaxed);

		if (!lane->poller) {
			err = siw_refuse(STALE);
			break;
		}
		siw_device_progress_once(lane);
		*due_ns = lane_next_timer_due_ns(lane);
		left = *due_ns == SIW_LLP_DUE_NOW ||
		       (lane->more_to_send &&
			atomic_load_explicit(&lane->n_unsent, memory_order_relaxed));
		err = siw_llp_poller_arm_for_sleep(lane->poller);
		if (err)
			siw_refuse_with_errno(err);
		if (atomic_load_explicit(&cq->tail, memory_order_acquire) - head >= (uint32_t)max)
			break;
	}
	/* The rounds have consumed edge-triggered epoll reports, so wake the event loop. */
	if (!err && left)
		siw_llp_poller_wake(lane->poller);
	siw_unlock(&lane->lock);
	if (__builtin_expect(others && !lane->ctx->has_thread, 0))
		poll_other_lanes(lane, others);
	return err;
}
