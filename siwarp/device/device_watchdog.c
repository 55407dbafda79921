/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Watchdog threads: two additional threads of a device, for programs that watch their memory for
 * one-sided Writes and do not poll.
 *
 * A message wakes the device's progress thread. If every CPU is busy, the scheduler compares the
 * woken thread with the program that spins on its CPU. The progress thread mostly gets the CPU
 * immediately, but not if the program's time slice ends earlier than the thread's own would. In
 * that case the scheduler does not compare again until the timer tick, 1 to 10 ms later. So while
 * such messages arrive, the watchdog threads are woken alternately by a timer. Each wake-up makes
 * the scheduler compare again, and a watchdog that runs serves the messages that still wait. Two
 * threads are needed because a single one that wakes just after the progress thread, on the same
 * CPU, ends up waiting behind it.
 *
 * The watchdogs are activated when such messages arrive in quick succession, and sleep without a
 * time-out when no message has arrived for a while. A device that is idle or polled therefore has
 * no wake-ups for watchdogs, and a device that never received such messages has no watchdog
 * threads.
 */
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/os.h"
#include "base/settings.h"
#include "device/device_impl.h"

#define SLICE_NS 100000 /* time slice in ns: the minimum that the kernel accepts */

/*
 * Requests a short time slice for the calling thread. A program that watches its memory and never
 * polls keeps a CPU busy, perhaps every CPU. On such a CPU a woken thread with a short time slice
 * is scheduled sooner. Kernels from 6.12 on support a slice per thread; older kernels refuse the
 * call, and nothing changes.
 */
void siw_device_request_short_time_slice(void)
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

#define PERIOD_NS 200000u /* time between the wake-ups of the two watchdogs, which alternate */
/*
 * The watchdogs start after this many messages in a row, each within GAP_NS of the preceding
 * message.
 */
#define BEGIN  16
#define GAP_NS 2000000u
/* watchdogs stop after this many wake-ups without a message: a tenth of a second */
#define END 250

/* Sleeps until this watchdog's next wake-up. The two watchdogs alternate, PERIOD_NS apart. */
static void watchdog_sleep(uint64_t which)
{
	uint64_t now = siw_now_ns(), turn = now / PERIOD_NS + 1;

	if (turn % SIW_WATCHDOGS != which)
		turn++;
	siw_sleep_ns((long)(turn * PERIOD_NS - now));
}

/*
 * Makes a progress round on each lane, unless a polling or waiting thread services the lane. polls:
 * the poll counts of the lanes at the previous wake-up.
 */
static void watchdog_make_rounds(struct siw_context *ctx, const uint32_t *polls)
{
	SIW_EACH_LANE(lane, ctx)
	{
		uint32_t before;
		bool served;

		if (atomic_load_explicit(&lane->polls, memory_order_relaxed) !=
			    polls[lane->index] ||
		    atomic_load(&lane->waiters) || !siw_trylock(&lane->lock))
			continue;
		before = lane->one_sided;
		siw_device_progress_once_and_wake(lane);
		served = lane->one_sided != before;
		siw_unlock(&lane->lock);
		if (served)
			atomic_fetch_add_explicit(&ctx->watchdogs.served, 1, memory_order_relaxed);
	}
}

static void watchdog_loop(struct siw_context *ctx, uint64_t which)
{
	struct siw_watchdogs *watchdogs = &ctx->watchdogs;
	uint32_t seen = atomic_load_explicit(&watchdogs->served, memory_order_relaxed);
	uint32_t polls[SIW_MAX_LANES] = { 0 };
	unsigned int quiet = 0;

	while (atomic_load(&watchdogs->active) && !atomic_load(&ctx->stop)) {
		uint32_t served;

		SIW_EACH_LANE(lane, ctx)
		polls[lane->index] = atomic_load_explicit(&lane->polls, memory_order_relaxed);
		watchdog_sleep(which);
		watchdog_make_rounds(ctx, polls);
		served = atomic_load_explicit(&watchdogs->served, memory_order_relaxed);
		quiet = served == seen ? quiet + 1 : 0;
		seen = served;
		if (which == 0 && quiet == END)
			atomic_store(&watchdogs->active, false);
	}
}

static void *progress_backup_thread(void *arg)
{
	struct siw_watchdog *self = arg;
	struct siw_context *ctx = self->ctx;

	siw_device_request_short_time_slice();
	while (!atomic_load(&ctx->stop)) {
		/* a spurious wake-up does no harm: the loop checks watchdogs->active */
		sem_wait(&self->wake);
		watchdog_loop(ctx, (uint64_t)(self - ctx->watchdogs.threads));
	}
	return NULL;
}

/*
 * Creates the watchdog threads. None are needed under a real-time policy. A failed creation is not
 * tried again.
 */
static bool watchdogs_create_threads(struct siw_context *ctx)
{
	struct siw_watchdogs *watchdogs = &ctx->watchdogs;
	int policy = sched_getscheduler(0);

	watchdogs->attempted = true;
	if (policy == SCHED_FIFO || policy == SCHED_RR)
		return false;
	for (; watchdogs->n < SIW_WATCHDOGS; watchdogs->n++) {
		struct siw_watchdog *watchdog = &watchdogs->threads[watchdogs->n];

		watchdog->ctx = ctx;
		sem_init(&watchdog->wake, 0, 0);
		if (siw_thread_start(&watchdog->thread, NULL, progress_backup_thread, watchdog)) {
			sem_destroy(&watchdog->wake);
			break;
		}
	}
	return watchdogs->n > 0;
}

static void watchdogs_wake(struct siw_watchdogs *watchdogs)
{
	for (unsigned int i = 0; i < watchdogs->n; i++)
		sem_post(&watchdogs->threads[i].wake);
}

void siw_device_watchdogs_note_one_sided_messages(struct siw_context *ctx)
{
	struct siw_watchdogs *watchdogs = &ctx->watchdogs;
	uint64_t now, gap_ns;

	if (watchdogs->attempted && !watchdogs->n)
		return;
	atomic_fetch_add_explicit(&watchdogs->served, 1, memory_order_relaxed);
	if (atomic_load(&watchdogs->active))
		return;
	now = siw_now_ns();
	gap_ns = GAP_NS * (uint64_t)siw_settings()->pauses;
	watchdogs->streak = now - watchdogs->last_ns < gap_ns ? watchdogs->streak + 1 : 0;
	watchdogs->last_ns = now;
	if (watchdogs->streak < BEGIN || (!watchdogs->attempted && !watchdogs_create_threads(ctx)))
		return;
	watchdogs->streak = 0;
	atomic_store(&watchdogs->active, true);
	watchdogs_wake(watchdogs);
}

void siw_device_watchdogs_stop(struct siw_context *ctx)
{
	struct siw_watchdogs *watchdogs = &ctx->watchdogs;
	int cancel = siw_cancel_disable();

	watchdogs_wake(watchdogs);
	for (unsigned int i = 0; i < watchdogs->n; i++) {
		pthread_join(watchdogs->threads[i].thread, NULL);
		sem_destroy(&watchdogs->threads[i].wake);
	}
	siw_cancel_restore(cancel);
	watchdogs->n = 0;
	watchdogs->attempted = false;
	atomic_store(&watchdogs->active, false);
}
