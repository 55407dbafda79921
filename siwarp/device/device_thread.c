/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The device's progress thread: makes progress when no other thread polls or waits. */
#include <errno.h>
#include <sched.h>
#include <signal.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/os.h"
#include "base/trim.h"
#include "device/device_impl.h"

/* after this many naps in a row without a poll, while a thread waits, the next sleep is long */
#define NAPS_TO_LONG_SLEEP 100
#define SHORT_NAPS	   3  /* number of first naps, which take 1/8, 1/4 and 1/2 of nap_us */
#define STEADY_NAPS	   16 /* after this many steady naps in a row, naps are longer */
#define STEADY_FACTOR	   4  /* length of the naps during steady polling, in units of nap_us */
#define CPU_SHARE_NS	   32000000 /* interval at which the process's share of a CPU is examined */
#define LONG_SLEEP_US	   250000
/* after the thread had to send delayed posts, no posts are delayed for this time in ns */
#define MIN_NO_DELAY_NS 10000000ull
#define MAX_NO_DELAY_NS 10000000000ull
#define MOST_SKIPPED	255 /* maximum number of wake-ups without a spin */
/* a wake-up that at least this many rounds with messages follow serves a stream of messages */
#define STREAM 2
/* a wake-up that handled one or a few short messages had at most this many rounds with messages */
#define FEW 16

/* Returns whether the program posts so densely that posts may be delayed for a batch. */
static bool posts_are_dense(const struct siw_context *ctx)
{
	for (const struct siw_lane *lane = &ctx->lane0; lane; lane = siw_device_next_lane(lane))
		if (atomic_load_explicit(&lane->posts_dense, memory_order_relaxed))
			return true;
	return false;
}

/* Successive short sleeps (naps) of the progress thread, while others make progress. */
struct naps {
	unsigned int in_a_row; /* naps since the progress thread last serviced a lane */
	unsigned int waits;    /* naps in a row without a poll, while a thread waited */
	unsigned int steady;   /* naps in a row during which a thread polled */
	bool had_cpu;	       /* the process used most of a CPU in the interval before began_ns */
	uint64_t began_ns;     /* when the process's CPU time was last examined */
	uint64_t began_cpu_ns; /* the process's CPU time at began_ns */
};

/*
 * Finds out, once in CPU_SHARE_NS, whether the process used at least three quarters of a CPU since
 * the last time. A thread that polls uses a whole CPU, unless other processes keep it off its CPU.
 * The kernel adds the time of a running thread to the process's at timer ticks, so the interval is
 * several ticks long.
 */
static void examine_cpu_share(struct naps *naps)
{
	uint64_t now = siw_now_ns(), wall = now - naps->began_ns, cpu;

	if (wall < CPU_SHARE_NS)
		return;
	cpu = siw_process_cpu_ns();
	naps->had_cpu = cpu - naps->began_cpu_ns >= wall - wall / 4;
	naps->began_ns = now;
	naps->began_cpu_ns = cpu;
}

/*
 * Returns the duration of the next nap. The first naps after the progress thread has serviced a
 * lane are shorter, so that a program that pauses polling for a moment need not wait for a long nap
 * to end. Each wake-up delays a message of the polling program by tens of microseconds, so naps are
 * longer while the program polls steadily, except that posts that wait for a batch are sent after
 * nap_us at most. If other programs use the CPUs, too, a polling thread often has to wait for a
 * CPU, and the progress thread, whose time slice is short, makes progress meanwhile.
 */
static int64_t nap_duration_us(const struct siw_context *ctx, const struct naps *naps)
{
	int64_t us = siw_settings()->nap_us;

	if (naps->in_a_row <= SHORT_NAPS)
		return us >> (SHORT_NAPS + 1 - naps->in_a_row);
	return naps->steady < STEADY_NAPS || !naps->had_cpu || posts_are_dense(ctx)
		       ? us
		       : STEADY_FACTOR * us;
}

/* Lanes that polls or waits serve, and lanes that the progress thread has to serve. */
struct lanes_served {
	/* each lane's `polls` and `polls_without_round` at the last check */
	struct {
		uint32_t polls, without_round;
	} seen[SIW_MAX_LANES];
	uint32_t by_others; /* bit mask of the lanes that polls or waits serve */
	/*
	 * lanes whose event is left to an event loop of the program (siw_cq_wait_fd) during the
	 * next nap
	 */
	uint32_t left_to_loops;
	bool polled;  /* a lane was polled between the last two checks */
	bool waiting; /* a thread waits on a lane */
	bool left;    /* a lane is left to an event loop */
};

/*
 * Checks whether a lane was polled since the previous check. A poll that finds completions makes no
 * round, but a program that waits for no event will soon poll again. If this thread served the lane
 * until a poll finds no completion, it could serve the lane for ever: it would receive everything
 * before the program polls. Posts would then never be delayed for a batch, because this thread
 * sleeps on the sockets, and the program, slowed down by a system call for each post, would never
 * find an empty CQ.
 */
static bool lane_was_polled(struct siw_lane *lane, struct lanes_served *served)
{
	uint32_t polls = atomic_load_explicit(&lane->polls, memory_order_relaxed);
	uint32_t without_round =
		atomic_load_explicit(&lane->polls_without_round, memory_order_relaxed);
	bool polled = polls != served->seen[lane->index].polls ||
		      (without_round != served->seen[lane->index].without_round &&
		       !atomic_load_explicit(&lane->ctx->n_armed, memory_order_relaxed));

	served->seen[lane->index].polls = polls;
	served->seen[lane->index].without_round = without_round;
	return polled;
}

/* Checks which lanes were polled since the previous check, or are waited on. */
static void find_polled_and_waiting_lanes(struct siw_context *ctx, struct lanes_served *served)
{
	served->by_others = 0;
	served->polled = served->waiting = false;
	served->left = served->left_to_loops != 0;
	SIW_EACH_LANE(lane, ctx)
	{
		bool polled = lane_was_polled(lane, served);
		bool waiting = atomic_load(&lane->waiters) != 0;
		bool left = served->left_to_loops >> lane->index & 1;

		served->polled |= polled;
		served->waiting |= waiting;
		if (polled || waiting || left)
			served->by_others |= 1u << lane->index;
	}
	served->left_to_loops = 0;
}

/* Returns whether a thread waits on each lane of the set. */
static bool all_lanes_have_waiters(const struct siw_context *ctx, uint32_t lanes)
{
	for (; lanes; lanes &= lanes - 1)
		if (!atomic_load(&ctx->lanes[__builtin_ctz(lanes)]->waiters))
			return false;
	return true;
}

/*
 * Returns the longest time in microseconds for which the progress thread may sleep while others
 * serve the lanes of the set `others`.
 */
static int64_t announce_nap_and_choose_us(struct siw_context *ctx, uint32_t others,
					  struct naps *naps)
{
	int64_t us = nap_duration_us(ctx, naps);

	if (naps->waits > NAPS_TO_LONG_SLEEP && all_lanes_have_waiters(ctx, others)) {
		/*
		 * A long sleep is possible: the waiters sleep on the sockets, and a waiter that
		 * stops waiting on a lane wakes this thread.
		 */
		atomic_store(&ctx->asleep, true);
		if (all_lanes_have_waiters(ctx, others))
			us = LONG_SLEEP_US;
	}
	/*
	 * A waiter may make sleep_fd readable only after the nap; the next nap then ends
	 * immediately and clears the descriptor.
	 */
	atomic_store(&ctx->naps, true);
	return us;
}

static void end_nap(struct siw_context *ctx, struct naps *naps)
{
	atomic_store(&ctx->naps, false);
	atomic_store(&ctx->asleep, false);
	examine_cpu_share(naps);
}

/* Makes the progress thread take one short sleep (nap), while others serve all lanes. */
static void progress_thread_nap(struct siw_context *ctx, uint32_t others, struct naps *naps)
{
	static const struct siw_llp_waitset nothing;

	if (siw_llp_wait(&nothing, ctx->sleep_fd, announce_nap_and_choose_us(ctx, others, naps)) >
	    0)
		siw_llp_event_fd_clear(ctx->sleep_fd);
	end_nap(ctx, naps);
}

/*
 * Called by the progress thread before it sends posts of a lane, with the lane's lock held. If
 * posts are delayed for a batch, the program has not polled soon enough, and no posts are delayed
 * for a time: 10 ms, doubled up to 10 s if this happens again soon after that time.
 */
static void stop_delaying_posts_after_late_poll(struct siw_lane *lane)
{
	uint64_t until, unit = (uint64_t)siw_settings()->pauses, now;

	/* posts_delayed remains set after a post has sent the delayed posts, so check n_unsent, too */
	if (!atomic_load_explicit(&lane->posts_delayed, memory_order_relaxed) ||
	    !atomic_load_explicit(&lane->n_unsent, memory_order_relaxed))
		return;
	until = atomic_load_explicit(&lane->no_delay_until_ns, memory_order_relaxed);
	now = siw_now_ns();
	if (!lane->no_delay_ns || now > until + lane->no_delay_ns)
		lane->no_delay_ns = MIN_NO_DELAY_NS * unit;
	else if (lane->no_delay_ns < MAX_NO_DELAY_NS * unit / 2)
		lane->no_delay_ns *= 2;
	else
		lane->no_delay_ns = MAX_NO_DELAY_NS * unit;
	atomic_store_explicit(&lane->no_delay_until_ns, now + lane->no_delay_ns,
			      memory_order_relaxed);
}

/*
 * Prepares a sleep on the sockets of a lane. Returns whether requests were sent, so that the thread
 * must not sleep. *us: the longest sleep in microseconds (-1: no limit), which may be reduced.
 */
static bool arm_lane_for_sleep(struct siw_lane *lane, struct siw_llp_waitset *set, int64_t *us)
{
	int64_t own;
	int moved;

	siw_lock(&lane->lock);
	siw_llp_poller_arm_for_sleep(lane->poller);
	/*
	 * Data that arrived after the last round ends the wait by itself; posted requests do not,
	 * so they are sent before the wait. Pairs with siw_device_add_unsent_qp(), whose caller
	 * marks the QP and then checks whether the socket poller is armed.
	 */
	stop_delaying_posts_after_late_poll(lane);
	moved = atomic_load(&lane->n_unsent) ? siw_device_send_unsent_qps(lane) : 0;
	siw_llp_waitset_fill(lane->poller, set);
	own = siw_device_sleep_duration_us(lane, siw_now_ns(), UINT64_MAX);
	siw_unlock(&lane->lock);
	if (own >= 0 && (*us < 0 || own < *us))
		*us = own;
	return moved;
}

/*
 * Sleeps on the sockets of the lanes that nobody else serves. us: longest sleep in microseconds,
 * -1: no limit. Returns false if the thread did not sleep, because there were requests to send or
 * the thread has to stop. An event of a lane on which an event loop of the program sleeps, too, is
 * left to the loop for one nap: if both threads served it, they would wait for each other.
 */
static bool sleep_on_sockets(struct siw_context *ctx, struct lanes_served *served, int64_t us)
{
	struct siw_llp_waitset sets[SIW_MAX_LANES];
	uint32_t with_loops = 0;
	bool moved = false;
	int n = 0;

	SIW_EACH_LANE(lane, ctx)
	{
		if (served->by_others >> lane->index & 1)
			continue;
		moved |= arm_lane_for_sleep(lane, &sets[n++], &us);
		if (atomic_load(&lane->loops))
			with_loops |= 1u << lane->index;
	}
	if (moved)
		return false;
	siw_trim_free_memory();
	if (atomic_load(&ctx->stop))
		return false;
	if (siw_llp_wait_any(sets, n, ctx->sleep_fd, us) > 0)
		served->left_to_loops = with_loops;
	return true;
}

/* Disarms lanes that others serve. The event loops of a program sleep on armed lanes. */
static void disarm_lanes_served_by_others(struct siw_context *ctx, uint32_t lanes)
{
	SIW_EACH_LANE(lane, ctx)
	{
		if (!(lanes >> lane->index & 1) || !siw_llp_poller_is_armed(lane->poller) ||
		    atomic_load(&lane->loops))
			continue;
		siw_lock(&lane->lock);
		siw_llp_poller_disarm(lane->poller);
		siw_unlock(&lane->lock);
	}
}

/*
 * State of the spin after a round that moved messages.
 *
 * A stream of one-sided traffic has gaps of a few microseconds, and epoll reports a socket writable
 * only when much room is free; sleeping in each gap would halve the bandwidth. So the thread spins
 * for a moment after a round that moved messages. Between single messages on a machine whose CPUs
 * are all busy, a spin has two disadvantages: it keeps the program that has to respond off its CPU,
 * and it uses up the CPU time that the scheduler would grant this thread at its next wake-up. So
 * after a spin that found no work following a single message, some of the next wake-ups for single
 * messages do not spin: one, then about twice as many each time.
 */
struct spin {
	uint64_t until_ns;  /* when the spin ends; 0: no spin since the last wake-up */
	unsigned int moved; /* number of rounds that moved messages, since the wake-up */
	unsigned int skip;  /* number of wake-ups without a spin after an unsuccessful spin */
	unsigned int left;  /* number of wake-ups without a spin still to come */
	/* paused: a round since the wake-up moved no message; resumed: a later round did */
	bool paused, resumed;
	/* a round since the wake-up handled one-sided traffic, which no CQ reports */
	bool one_sided;
};

/*
 * Called after each round of the progress thread. Returns whether to make another round before the
 * thread sleeps.
 */
static bool spin_must_continue_before_sleep(struct spin *spin, bool moved)
{
	uint64_t ns = (uint64_t)siw_settings()->spin_us * 1000, now;

	if (!moved && !spin->until_ns)
		return false;
	spin->moved += moved;
	spin->resumed |= moved && spin->paused;
	spin->paused |= !moved;
	if (spin->left && spin->moved < STREAM)
		return moved;
	now = siw_now_ns();
	if (moved)
		spin->until_ns = now + (spin->skip && spin->moved < STREAM ? ns / 4 : ns);
	return now < spin->until_ns;
}

static void spin_reset_after_wake_up(struct spin *spin)
{
	bool spun = spin->until_ns != 0;

	if (spin->left)
		spin->left--;
	if (spun && spin->resumed) {
		spin->skip = spin->left = 0;
	} else if (spun && spin->moved < STREAM) {
		spin->skip = spin->skip < MOST_SKIPPED ? 2 * spin->skip + 1 : MOST_SKIPPED;
		spin->left = spin->skip;
	}
	spin->until_ns = 0;
	spin->moved = 0;
	spin->paused = spin->resumed = spin->one_sided = false;
}

/* Makes a round on each lane that nobody else serves. */
static int progress_thread_round(struct siw_context *ctx, uint32_t others, struct spin *spin)
{
	int moved = 0;

	SIW_EACH_LANE(lane, ctx)
	{
		uint32_t before;

		if (others >> lane->index & 1)
			continue;
		siw_lock(&lane->lock);
		before = lane->one_sided;
		stop_delaying_posts_after_late_poll(lane);
		moved += siw_device_progress_once(lane);
		spin->one_sided |= lane->one_sided != before;
		siw_unlock(&lane->lock);
	}
	return moved;
}

/* Sleeps on the lanes that nobody else serves; if others serve some lanes, for a nap at most. */
static bool sleep_until_work(struct siw_context *ctx, struct lanes_served *served,
			     struct naps *naps)
{
	int64_t us;
	bool slept;

	/*
	 * After a wake-up that came too late for the last sleep, the descriptor is still readable.
	 * It must be cleared before this thread reads the state that determines how long it sleeps:
	 * the set of open lanes, and, in announce_nap_and_choose_us(), the waiters. A later change of that state
	 * makes the descriptor readable again.
	 */
	siw_llp_event_fd_clear(ctx->sleep_fd);
	if (!served->by_others)
		return sleep_on_sockets(ctx, served, -1);
	us = announce_nap_and_choose_us(ctx, served->by_others, naps);
	slept = sleep_on_sockets(ctx, served, us);
	end_nap(ctx, naps);
	return slept;
}

/* Updates the counts of naps. Called after find_polled_and_waiting_lanes(), before a nap. */
static void count_naps(struct naps *naps, const struct lanes_served *served)
{
	naps->in_a_row = served->by_others ? naps->in_a_row + 1 : 0;
	if (served->left && naps->in_a_row <= SHORT_NAPS)
		naps->in_a_row = SHORT_NAPS + 1;
	naps->waits = served->waiting && !served->polled ? naps->waits + 1 : 0;
	naps->steady = served->polled ? naps->steady + 1 : 0;
}

static void *progress_thread(void *arg)
{
	struct siw_context *ctx = arg;
	struct lanes_served served = { 0 };
	struct spin spin = { 0 };
	struct naps naps = { 0 };

	find_polled_and_waiting_lanes(ctx, &served);
	siw_device_request_short_time_slice();
	while (!atomic_load(&ctx->stop)) {
		find_polled_and_waiting_lanes(ctx, &served);
		count_naps(&naps, &served);
		disarm_lanes_served_by_others(ctx, served.by_others);
		if (served.by_others == atomic_load(&ctx->open_lanes)) {
			progress_thread_nap(ctx, served.by_others, &naps);
			continue;
		}
		if (!spin_must_continue_before_sleep(
			    &spin, progress_thread_round(ctx, served.by_others, &spin)) &&
		    sleep_until_work(ctx, &served, &naps)) {
			if (spin.one_sided && spin.moved <= FEW)
				siw_device_watchdogs_note_one_sided_messages(ctx);
			spin_reset_after_wake_up(&spin);
		}
	}
	return NULL;
}

/*
 * Starts the thread one priority level above the caller if the caller has a real-time policy. Under
 * such a policy threads of equal priority are not time-sliced: a thread that polls endlessly would
 * keep the progress thread off its CPU forever, even while the progress thread holds a lock.
 */
static int start_thread_with_higher_priority(pthread_t *thread, void *arg)
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
		err = siw_thread_start(thread, &attr, progress_thread, arg);
	pthread_attr_destroy(&attr);
	return err;
}

int siw_device_thread_start(struct siw_context *ctx)
{
	sigset_t all, before;
	int err;

	ctx->sleep_fd = siw_llp_event_fd_open();
	if (ctx->sleep_fd < 0)
		return ctx->sleep_fd;
	if (!siw_settings()->progress_thread)
		return 0;
	/*
	 * Signals sent to the process are for the program's own threads. SIGSEGV and SIGBUS are not
	 * blocked, because a blocked fault kills the process; guard.h describes which faults this
	 * thread survives.
	 */
	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = start_thread_with_higher_priority(&ctx->thread, ctx);
	if (err) /* no real-time policy, or no permission: start with the default priority */
		err = siw_thread_start(&ctx->thread, NULL, progress_thread, ctx);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (err) {
		siw_llp_event_fd_close(ctx->sleep_fd);
		return -err;
	}
	ctx->has_thread = true;
	return 0;
}

void siw_device_thread_stop(struct siw_context *ctx)
{
	int cancel;

	if (ctx->has_thread) {
		atomic_store(&ctx->stop, true);
		siw_llp_event_fd_set(ctx->sleep_fd);
		cancel = siw_cancel_disable();
		pthread_join(ctx->thread, NULL);
		siw_device_watchdogs_stop(ctx);
		siw_cancel_restore(cancel);
	}
	siw_llp_event_fd_close(ctx->sleep_fd);
}
