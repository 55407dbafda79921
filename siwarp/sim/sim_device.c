/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sim/sim_device.c - devices without threads, whose progress rounds the scheduler makes instead of
 * a progress thread (device_thread.c), and polls, which are scheduling points. The linker's --wrap
 * replaces functions of device/ by the __wrap_ functions below.
 */
#include "base/settings.h"
#include "sim/sim_impl.h"
#include "device/device.h"

int __wrap_siw_device_thread_start(struct siw_context *ctx);
void __wrap_siw_device_thread_stop(struct siw_context *ctx);
void __wrap_siw_device_poll(struct siw_context *ctx, const struct siw_cq *cq);
void __real_siw_device_poll(struct siw_context *ctx, const struct siw_cq *cq);

int __wrap_siw_device_thread_start(struct siw_context *ctx)
{
	ctx->sleep_fd = -1;
	ctx->lane.port->context = ctx;
	if (!siw_settings()->progress_thread)
		return 0;
	ctx->has_thread = true;
	ctx->lane.port->served = true;
	return 0;
}

void __wrap_siw_device_thread_stop(struct siw_context *ctx)
{
	ctx->has_thread = false;
	ctx->lane.port->served = false;
	/* After a crash of the host, the task that uses the device closes the context. */
	ctx->lane.port->context = NULL;
}

void __wrap_siw_device_poll(struct siw_context *ctx, const struct siw_cq *cq)
{
	uint64_t handed = sim.handed;

	sim.in_poll = true;
	__real_siw_device_poll(ctx, cq);
	sim.in_poll = false;
	if (!sim.open)
		return;
	if (sim.handed != handed) {
		sim_current_task()->pause = 0;
		return;
	}
	if (ctx->lane.port && !ctx->lane.port->n_ring)
		sim_add_current_task_to_waiters(&ctx->lane.port->waiters);
	sim_back_off_after_empty_poll();
}

bool sim_device_make_progress_round(struct siw_llp_port *port)
{
	struct siw_context *ctx = port->context;
	int moved;

	if (!ctx) /* the progress thread of the device was stopped */
		return false;
	/*
	 * If the progress lock is held, its holder is a task that waits for another lock, and makes
	 * the progress round after its wait.
	 */
	if (!siw_trylock(&ctx->lane.lock))
		return false;
	moved = siw_device_progress_once(ctx);
	siw_unlock(&ctx->lane.lock);
	return moved > 0;
}

uint64_t sim_device_next_tick_ns(const struct siw_llp_port *port)
{
	const struct siw_context *ctx = port->context;

	return atomic_load(&ctx->lane.n_timed) ? atomic_load(&ctx->lane.next_tick_ns) : SIM_NEVER;
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

	for (struct siw_link *l = sim.ports.next; l != &sim.ports; l = next) {
		struct siw_llp_port *port = siw_container(l, struct siw_llp_port, all);

		next = l->next;
		if (port->host == host && port->context) {
			close_device_without_linger(port->context);
			/* other tasks have run during the close and may have changed the list */
			next = sim.ports.next;
		}
	}
}
