/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which thread makes progress. A thread that polls does, under the progress lock; a thread that
 * waits for an event does, and sleeps on the sockets (verbs_wait.c); without either, the device's
 * own thread does, until another thread polls.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "verbs/verbs_impl.h"

#define POLL_BATCH	   32
#define TICK_NS		   5000000ull
#define LONGEST_TICK_NS	   (64 * TICK_NS)
#define NAPS_TO_LONG_SLEEP 100 /* naps beside a sleeping waiter before the thread sleeps for long */
#define SHORT_NAPS	   3   /* an eighth, a quarter and a half of nap_us */
#define LONG_SLEEP_US	   250000
#define SLICE_NS	   100000 /* the least that the kernel takes */
#define MOST_SKIPPED	   255	  /* wake-ups without a spin */
#define STREAM		   2	  /* rounds that move something: more than a single message */

/* ---- unsent queue pairs ---------------------------------------------------------------------- */

void siw_verbs_mark_unsent(struct siw_qp *qp)
{
	struct siw_context *ctx = qp->ctx;

	siw_lock(&ctx->unsent_lock);
	if (!qp->on_unsent) {
		qp->on_unsent = true;
		siw_link_add(&ctx->unsent, &qp->unsent);
		atomic_fetch_add(&ctx->n_unsent, 1);
	}
	siw_unlock(&ctx->unsent_lock);
}

void siw_verbs_nudge(struct siw_context *ctx)
{
	struct siw_llp_port *port = ctx->port;

	if (port && (siw_llp_port_armed(port) || atomic_load(&ctx->waiters)))
		siw_llp_port_wake(port);
}

void siw_verbs_forget_unsent(struct siw_qp *qp)
{
	struct siw_context *ctx = qp->ctx;

	siw_lock(&ctx->unsent_lock);
	if (qp->on_unsent) {
		qp->on_unsent = false;
		siw_link_del(&qp->unsent);
		atomic_fetch_sub(&ctx->n_unsent, 1);
	}
	siw_unlock(&ctx->unsent_lock);
}

static struct siw_qp *next_unsent(struct siw_context *ctx)
{
	struct siw_qp *qp = NULL;

	siw_lock(&ctx->unsent_lock);
	if (!siw_link_alone(&ctx->unsent)) {
		qp = siw_container(ctx->unsent.next, struct siw_qp, unsent);
		qp->on_unsent = false;
		siw_link_del(&qp->unsent);
		atomic_fetch_sub(&ctx->n_unsent, 1);
	}
	siw_unlock(&ctx->unsent_lock);
	return qp;
}

/* Moves n QPs from the head of the list to its end. */
static void rotate_unsent(struct siw_context *ctx, uint32_t n)
{
	siw_lock(&ctx->unsent_lock);
	for (; n && !siw_link_alone(&ctx->unsent); n--) {
		struct siw_link *first = ctx->unsent.next;

		siw_link_del(first);
		siw_link_add(&ctx->unsent, first);
	}
	siw_unlock(&ctx->unsent_lock);
}

/*
 * A QP leaves the list before its turn, so that a post during the turn can add it again. Several
 * QPs may share a full socket: the first that found no room at all is the first in the next round.
 */
static int send_unsent(struct siw_context *ctx)
{
	uint32_t ahead = 0; /* number of QPs before the first that found no room */
	bool starved = false;
	int moved = 0;

	ctx->turns++;
	for (uint32_t n = atomic_load(&ctx->n_unsent); n; n--) {
		struct siw_qp *qp = next_unsent(ctx);
		enum siw_turn turn;

		if (!qp)
			break;
		turn = qp->ops->turn(qp, ctx->turns);
		if (turn != SIW_TURN_DONE) {
			siw_verbs_mark_unsent(qp);
			starved |= turn == SIW_TURN_STARVED;
			ahead += !starved;
		}
		moved += turn <= SIW_TURN_MORE;
	}
	if (starved && ahead)
		rotate_unsent(ctx, ahead);
	return moved;
}

void siw_verbs_send_posted(struct siw_context *ctx, bool polls)
{
	if (!atomic_load_explicit(&ctx->n_unsent, memory_order_relaxed))
		return;
	if (!polls)
		siw_lock(&ctx->progress);
	else if (!siw_trylock(&ctx->progress))
		return; /* the thread that holds it sends as well */
	if (ctx->port)
		send_unsent(ctx);
	siw_unlock(&ctx->progress);
}

/* ---- timers ---------------------------------------------------------------------------------- */

static void schedule(struct siw_context *ctx, struct siw_timed *timed, uint64_t due_ns)
{
	bool first = siw_link_alone(&ctx->timed);

	timed->due_ns = timed->by_ns && timed->by_ns < due_ns ? timed->by_ns : due_ns;
	if (first || timed->due_ns < atomic_load_explicit(&ctx->next_tick_ns, memory_order_relaxed))
		atomic_store_explicit(&ctx->next_tick_ns, timed->due_ns, memory_order_relaxed);
	if (siw_link_alone(&timed->link)) {
		siw_link_add(&ctx->timed, &timed->link);
		atomic_fetch_add(&ctx->n_timed, 1);
	}
	siw_llp_port_wake(ctx->port);
}

void siw_verbs_timed_add(struct siw_context *ctx, struct siw_timed *timed, uint64_t by_ns)
{
	timed->by_ns = by_ns;
	timed->step_ns = TICK_NS;
	schedule(ctx, timed, siw_now_ns() + TICK_NS);
}

void siw_verbs_timed_at(struct siw_context *ctx, struct siw_timed *timed, uint64_t by_ns)
{
	timed->by_ns = by_ns;
	timed->step_ns = LONGEST_TICK_NS;
	schedule(ctx, timed, by_ns);
}

void siw_verbs_timed_del(struct siw_context *ctx, struct siw_timed *timed)
{
	if (siw_link_alone(&timed->link))
		return;
	siw_link_del(&timed->link);
	atomic_fetch_sub(&ctx->n_timed, 1);
}

/*
 * The interval grows fourfold each time, up to a third of a second: what a tick checks is mostly
 * driven by its socket, and an idle device must sleep. All timers use one grid, so that many cause
 * no more wake-ups than one.
 */
static void plan(struct siw_timed *timed, uint64_t now)
{
	if (timed->step_ns < LONGEST_TICK_NS)
		timed->step_ns *= 4;
	timed->due_ns = (now / timed->step_ns + 1) * timed->step_ns;
	if (timed->by_ns > now && timed->by_ns < timed->due_ns)
		timed->due_ns = timed->by_ns;
}

static void tick(struct siw_context *ctx)
{
	uint64_t now = siw_llp_port_clock(ctx->port), next = UINT64_MAX;
	struct siw_link turn;

	if (now < atomic_load_explicit(&ctx->next_tick_ns, memory_order_relaxed))
		return;
	/* Each timer once, whatever ticks remove or add. */
	siw_link_init(&turn);
	while (!siw_link_alone(&ctx->timed)) {
		struct siw_link *l = ctx->timed.next;

		siw_link_del(l);
		siw_link_add(&turn, l);
	}
	while (!siw_link_alone(&turn)) {
		struct siw_link *l = turn.next;
		struct siw_timed *t = siw_container(l, struct siw_timed, link);

		siw_link_del(l);
		siw_link_add(&ctx->timed, l);
		if (now < t->due_ns)
			continue;
		plan(t, now); /* before tick, which may set another time or free the timer */
		t->tick(t, now);
	}
	for (struct siw_link *l = ctx->timed.next; l != &ctx->timed; l = l->next) {
		uint64_t due = siw_container(l, struct siw_timed, link)->due_ns;

		next = due < next ? due : next;
	}
	atomic_store_explicit(&ctx->next_tick_ns, next, memory_order_relaxed);
}

int64_t siw_verbs_sleep_us(struct siw_context *ctx, uint64_t now, uint64_t deadline)
{
	int64_t us = siw_verbs_left_us(now, deadline);
	uint64_t tick = atomic_load_explicit(&ctx->next_tick_ns, memory_order_relaxed);
	int64_t tick_us;

	if (!atomic_load(&ctx->n_timed))
		return us;
	/* A timer that is added later wakes sleeping threads. */
	tick_us = tick > now ? (int64_t)((tick - now) / 1000) + 1 : 0;
	return us < 0 || us > tick_us ? tick_us : us;
}

/* ---- one round ------------------------------------------------------------------------------- */

/* A CQ of the device overflowed: moves its QPs to ERR. */
static void fail_overrun(struct siw_context *ctx)
{
	struct siw_link *l, *next;

	if (!atomic_exchange(&ctx->cq_overrun, false))
		return;
	for (l = ctx->qps.next; l != &ctx->qps; l = next) {
		struct siw_qp *qp = siw_container(l, struct siw_qp, in_ctx);

		next = l->next;
		if (atomic_load(&qp->send_cq->overrun) || atomic_load(&qp->recv_cq->overrun))
			qp->ops->fail(qp, -EOVERFLOW);
	}
}

int siw_verbs_progress_once(struct siw_context *ctx)
{
	struct siw_io_handler *ready[POLL_BATCH];
	int n = siw_llp_port_poll(ctx->port, ready, POLL_BATCH);
	int moved = 0;

	for (int i = 0; i < n; i++)
		moved += ready[i]->serve(ready[i]);
	if (atomic_load_explicit(&ctx->n_unsent, memory_order_relaxed))
		moved += send_unsent(ctx);
	if (atomic_load_explicit(&ctx->n_timed, memory_order_relaxed))
		tick(ctx);
	if (__builtin_expect(atomic_load_explicit(&ctx->cq_overrun, memory_order_relaxed), 0))
		fail_overrun(ctx);
	return moved;
}

static void count_poll(struct siw_context *ctx)
{
	/* Not an atomic add: it only has to change, and the next poll makes up for a lost step. */
	uint32_t polls = atomic_load_explicit(&ctx->polls, memory_order_relaxed);

	atomic_store_explicit(&ctx->polls, polls + 1, memory_order_relaxed);
}

void siw_verbs_poll(struct siw_context *ctx)
{
	count_poll(ctx);
	if (!siw_trylock(&ctx->progress))
		return;
	if (__builtin_expect(ctx->port != NULL, 1))
		siw_verbs_progress_once(ctx);
	siw_unlock(&ctx->progress);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/*
 * The first naps after this thread has served the device are shorter: a program that pauses polling
 * for a moment should not wait for a long nap.
 */
static int64_t nap_us(unsigned int naps)
{
	return siw_settings()->nap_us >> (naps < SHORT_NAPS ? SHORT_NAPS - naps : 0);
}

/* naps: so far; waits: how many of them passed beside a sleeping waiter without a poll. */
static void nap(struct siw_context *ctx, unsigned int naps, unsigned int waits)
{
	static const struct siw_llp_waitset nothing;
	int64_t us = nap_us(naps);

	if (waits > NAPS_TO_LONG_SLEEP && atomic_load(&ctx->waiters)) {
		/* The waiter sleeps on the sockets, and wakes this thread when it stops. */
		atomic_store(&ctx->asleep, true);
		if (atomic_load(&ctx->waiters))
			us = LONG_SLEEP_US;
	}
	/*
	 * A waiter may wake this thread after the nap: then the next nap is short, and clears the
	 * descriptor.
	 */
	atomic_store(&ctx->naps, true);
	if (siw_llp_wait(&nothing, ctx->sleep_fd, us) > 0)
		siw_llp_event_clear(ctx->sleep_fd);
	atomic_store(&ctx->naps, false);
	atomic_store(&ctx->asleep, false);
}

/* False: there was something to send, or the thread is to stop; it did not sleep. */
static bool sleep_on_sockets(struct siw_context *ctx)
{
	struct siw_llp_waitset set;
	int64_t us;
	int moved;

	siw_lock(&ctx->progress);
	siw_llp_port_arm(ctx->port);
	/*
	 * What came after the last round ends the wait by itself, but for what was posted. Pairs
	 * with siw_verbs_mark_unsent(), which marks, then checks whether this is armed.
	 */
	moved = atomic_load(&ctx->n_unsent) ? send_unsent(ctx) : 0;
	siw_llp_waitset_fill(ctx->port, &set);
	us = siw_verbs_sleep_us(ctx, siw_now_ns(), UINT64_MAX);
	siw_unlock(&ctx->progress);
	if (moved)
		return false;
	/* A wake-up that came too late for nap() is still on the descriptor. */
	siw_llp_event_clear(ctx->sleep_fd);
	if (atomic_load(&ctx->stop))
		return false;
	siw_llp_wait(&set, ctx->sleep_fd, us);
	siw_count(SIW_COUNTER_progress_wakeups, 1);
	return true;
}

static void step_aside(struct siw_context *ctx)
{
	if (!siw_llp_port_armed(ctx->port))
		return;
	siw_lock(&ctx->progress);
	siw_llp_port_disarm(ctx->port);
	siw_unlock(&ctx->progress);
}

/*
 * A program that watches its memory and never polls keeps a CPU busy, perhaps every CPU. A thread
 * with a short slice comes to its turn there sooner when it wakes: kernels from 6.12 on give each
 * thread its own slice; others refuse, and nothing changes.
 */
static void ask_for_short_slice(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime_ns, deadline_ns, period_ns;
	} attr = { .size = sizeof(attr), .policy = SCHED_OTHER, .runtime_ns = SLICE_NS };

	if (sched_getscheduler(0) == SCHED_OTHER) {
		attr.nice = getpriority(PRIO_PROCESS, 0);
		syscall(SYS_sched_setattr, 0, &attr, 0);
	}
}

/*
 * A stream of one-sided traffic has gaps of some microseconds, and epoll reports a socket writable
 * only when much room is free: sleeping in each gap would halve the bandwidth. So this thread spins
 * for a moment after a round that moved something. But between single messages, where every CPU is
 * busy, that keeps the very program off its CPU that is to answer, and uses up the time that the
 * scheduler would give this thread when it wakes next. So after a single message whose spin was in
 * vain some wake-ups for single messages have none: one, then about twice as many each time.
 */
struct spin {
	uint64_t until_ns;  /* 0: has not begun since the last wake-up */
	unsigned int moved; /* rounds since the wake-up that moved something */
	unsigned int skip;  /* wake-ups without a spin after one in vain */
	unsigned int left;  /* of these, still to come */
	bool paused, paid;  /* since the wake-up a round moved nothing; one behind it did */
};

/* After each round: whether there is to be another one before this thread sleeps. */
static bool goes_on(struct spin *spin, bool moved)
{
	uint64_t ns = (uint64_t)siw_settings()->spin_us * 1000, now;

	if (!moved && !spin->until_ns)
		return false;
	spin->moved += moved;
	spin->paid |= moved && spin->paused;
	spin->paused |= !moved;
	if (spin->left && spin->moved < STREAM)
		return moved;
	now = siw_now_ns();
	if (moved)
		spin->until_ns = now + (spin->skip && spin->moved < STREAM ? ns / 4 : ns);
	return now < spin->until_ns;
}

static void begin_wake(struct spin *spin)
{
	bool spun = spin->until_ns != 0;

	if (spin->left)
		spin->left--;
	if (spun && spin->paid) {
		spin->skip = spin->left = 0;
	} else if (spun && spin->moved < STREAM) {
		spin->skip = spin->skip < MOST_SKIPPED ? 2 * spin->skip + 1 : MOST_SKIPPED;
		spin->left = spin->skip;
	}
	spin->until_ns = 0;
	spin->moved = 0;
	spin->paused = spin->paid = false;
}

static void *run(void *arg)
{
	struct siw_context *ctx = arg;
	uint32_t seen = atomic_load_explicit(&ctx->polls, memory_order_relaxed);
	struct spin spin = { 0 };
	unsigned int naps = 0, waits = 0;

	ask_for_short_slice();
	while (!atomic_load(&ctx->stop)) {
		uint32_t polls = atomic_load_explicit(&ctx->polls, memory_order_relaxed);
		int moved;

		if (polls != seen || atomic_load(&ctx->waiters)) {
			waits = polls == seen ? waits + 1 : 0;
			seen = polls;
			step_aside(ctx);
			nap(ctx, naps++, waits);
			continue;
		}
		naps = 0;
		siw_lock(&ctx->progress);
		moved = siw_verbs_progress_once(ctx);
		siw_unlock(&ctx->progress);
		if (!goes_on(&spin, moved) && sleep_on_sockets(ctx))
			begin_wake(&spin);
	}
	return NULL;
}

/*
 * Under a real-time policy threads of equal priority do not take turns: a thread that polls without
 * end would keep this one off its CPU for ever, also while this one holds a lock. So this one gets
 * the next higher priority.
 */
static int start_above(pthread_t *thread, void *arg)
{
	struct sched_param param;
	pthread_attr_t attr;
	int policy, err;

	if (pthread_getschedparam(pthread_self(), &policy, &param) ||
	    (policy != SCHED_FIFO && policy != SCHED_RR) ||
	    ++param.sched_priority > sched_get_priority_max(policy) || pthread_attr_init(&attr))
		return EINVAL;
	err = pthread_attr_setinheritsched(&attr, PTHREAD_EXPLICIT_SCHED);
	if (!err)
		err = pthread_attr_setschedpolicy(&attr, policy);
	if (!err)
		err = pthread_attr_setschedparam(&attr, &param);
	if (!err)
		err = pthread_create(thread, &attr, run, arg);
	pthread_attr_destroy(&attr);
	return err;
}

int siw_verbs_thread_start(struct siw_context *ctx)
{
	sigset_t all, before;
	int err;

	ctx->sleep_fd = siw_llp_event_open();
	if (ctx->sleep_fd < 0)
		return ctx->sleep_fd;
	if (!siw_settings()->progress)
		return 0;
	/*
	 * The program's signals are for the program's threads. Faults are not blocked: a blocked
	 * one kills the process; guard.h says which ones this thread survives.
	 */
	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = start_above(&ctx->thread, ctx);
	if (err) /* no such policy, or no permission: with the default priority */
		err = pthread_create(&ctx->thread, NULL, run, ctx);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (err) {
		siw_llp_event_close(ctx->sleep_fd);
		return -err;
	}
	ctx->has_thread = true;
	return 0;
}

void siw_verbs_thread_stop(struct siw_context *ctx)
{
	int cancel;

	if (ctx->has_thread) {
		atomic_store(&ctx->stop, true);
		siw_llp_event_set(ctx->sleep_fd);
		cancel = siw_cancel_off();
		pthread_join(ctx->thread, NULL);
		siw_cancel_back(cancel);
	}
	siw_llp_event_close(ctx->sleep_fd);
}
