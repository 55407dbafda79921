/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sim/sim_device.c - devices without threads, and polls, which are scheduling points. The scheduler
 * makes the progress rounds of a device's lanes, each for itself, instead of a progress thread
 * (device_thread.c). The linker's --wrap replaces functions of device/ by the __wrap_ functions
 * below.
 */
#include "base/settings.h"
#include "sim/sim_impl.h"
#include "device/device.h"

int __wrap_siw_device_thread_start(struct siw_context *ctx);
void __wrap_siw_device_thread_stop(struct siw_context *ctx);
int __wrap_siw_device_cq_lane_choose(struct siw_context *ctx, unsigned int comp_vector,
				     struct siw_lane **out);
int __real_siw_device_cq_lane_choose(struct siw_context *ctx, unsigned int comp_vector,
				     struct siw_lane **out);
void __wrap_siw_device_poll(struct siw_lane *lane, const struct siw_cq *cq);
void __real_siw_device_poll(struct siw_lane *lane, const struct siw_cq *cq);

/*
 * Connects a lane with its poller when the lane has been opened. The scheduler then makes the
 * lane's progress rounds, if the device would have a progress thread.
 */
static void lane_connect_with_poller(struct siw_lane *lane)
{
	struct siw_llp_poller *poller = lane->poller;

	poller->lane = lane;
	poller->served = lane->ctx->has_thread;
}

int __wrap_siw_device_thread_start(struct siw_context *ctx)
{
	ctx->sleep_fd = -1;
	ctx->has_thread = siw_settings()->progress_thread;
	SIW_EACH_LANE(lane, ctx)
	lane_connect_with_poller(lane);
	return 0;
}

void __wrap_siw_device_thread_stop(struct siw_context *ctx)
{
	ctx->has_thread = false;
	SIW_EACH_LANE(lane, ctx)
	{
		struct siw_llp_poller *poller = lane->poller;

		poller->served = false;
		/* After a crash of the host, the task that uses the device closes the context. */
		poller->lane = NULL;
	}
}

/*
 * Chooses the lane of a new CQ, and opens the lane with its first CQ. Whether this allocates memory
 * depends on earlier worlds, because a closed device keeps the structs of its lanes. So that the
 * same seed produces the same run in any process, the allocation never fails and uses no random
 * number.
 */
int __wrap_siw_device_cq_lane_choose(struct siw_context *ctx, unsigned int comp_vector,
				     struct siw_lane **out)
{
	uint32_t before = sim.memory_fails;
	int err;

	sim.memory_fails = 0;
	err = __real_siw_device_cq_lane_choose(ctx, comp_vector, out);
	sim.memory_fails = before;
	if (!err)
		lane_connect_with_poller(*out);
	return err;
}

/*
 * Pauses the task after a poll of the lane that found no work. An event of any lane of the device
 * ends the pause, because a poll may make rounds on other lanes too, and a wait polls several
 * lanes. If another lane has work, the pause is 1 us, because the task may poll that lane next.
 */
static void back_off_after_empty_poll_of_lane(const struct siw_lane *polled)
{
	SIW_EACH_LANE(lane, polled->ctx)
	{
		struct siw_llp_poller *poller = lane->poller;

		if (poller && !poller->n_ring)
			sim_add_current_task_to_waiters(&poller->waiters);
		else if (lane != polled)
			sim_current_task()->pause = 0;
	}
	sim_back_off_after_empty_poll();
}

void __wrap_siw_device_poll(struct siw_lane *lane, const struct siw_cq *cq)
{
	/* A poll that sends posts that were delayed for a batch has found work, too. */
	uint32_t unsent = atomic_load(&lane->n_unsent);
	uint64_t handed = sim.handed;

	sim.in_poll = true;
	__real_siw_device_poll(lane, cq);
	sim.in_poll = false;
	if (!sim.open)
		return;
	if (sim.handed != handed || atomic_load(&lane->n_unsent) < unsent)
		sim_current_task()->pause = 0;
	else
		back_off_after_empty_poll_of_lane(lane);
}

bool sim_device_make_progress_round(struct siw_llp_poller *poller)
{
	struct siw_lane *lane = poller->lane;
	int moved;

	if (!lane) /* the progress thread of the device was stopped */
		return false;
	/*
	 * If the lock of the lane is held, its holder is a task that waits for another lock, and
	 * makes the progress round after its wait.
	 */
	if (!siw_trylock(&lane->lock))
		return false;
	moved = siw_device_progress_once(lane);
	siw_unlock(&lane->lock);
	return moved > 0;
}

uint64_t sim_device_next_tick_ns(const struct siw_llp_poller *poller)
{
	const struct siw_lane *lane = poller->lane;

	return atomic_load(&lane->n_timed) ? atomic_load(&lane->next_tick_ns) : SIM_NEVER;
}

/* Closes a device of a crashed host without waiting for the linger time. */
static void close_device_without_linger(struct siw_context *ctx)
{
	int64_t linger = siw_settings()->linger_ms;

	siw_setting_set("linger_ms", 0);
	siw_close_device_forced(ctx);
	siw_setting_set("linger_ms", linger);
}

void sim_host_close_devices(const struct sim_host *host)
{
	struct siw_link *next;

	for (struct siw_link *l = sim.pollers.next; l != &sim.pollers; l = next) {
		struct siw_llp_poller *poller = siw_container(l, struct siw_llp_poller, all);

		next = l->next;
		/* A device that a task is closing by force already is left to that task. */
		if (poller->host == host && poller->lane &&
		    !siw_device_inherited(poller->lane->ctx)) {
			close_device_without_linger(poller->lane->ctx);
			/* other tasks have run during the close and may have changed the list */
			next = sim.pollers.next;
		}
	}
}
