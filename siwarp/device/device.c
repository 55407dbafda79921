/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Devices, one for each network interface that has an address. Opening a device turns it into an
 * RNIC.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/capture.h"
#include "base/faults.h"
#include "base/guard.h"
#include "base/clock.h"
#include "base/os.h"
#include "device/device_impl.h"

static void device_fill_from_interface(struct siw_device *dev,
				       const struct siw_llp_interface *netif)
{
	struct siw_device_info *info = &dev->info;

	memset(info, 0, sizeof(*info));
	snprintf(info->name, sizeof(info->name), "siw_%.15s", netif->name);
	memcpy(info->netdev, netif->name, sizeof(info->netdev));
	info->mtu = netif->mtu;
	info->up = netif->up;
	info->n_addrs = netif->n_addrs;
	memcpy(info->addrs, netif->addrs, sizeof(info->addrs));
}

struct siw_device **siw_get_device_list(int *num_devices)
{
	struct siw_llp_interface *netifs;
	struct siw_device **list = NULL;
	struct siw_device *devices;
	int n = siw_device_list_host_interfaces(&netifs);

	siw_reason_begin();
	if (n < 0)
		goto out;
	/* The list is one allocation: the array of pointers, followed by the devices. */
	list = calloc(1, (size_t)(n + 1) * sizeof(*list) + (size_t)n * sizeof(*devices));
	if (!list) {
		n = -ENOMEM;
		goto out;
	}
	devices = (struct siw_device *)(list + n + 1);
	for (int i = 0; i < n; i++) {
		device_fill_from_interface(&devices[i], &netifs[i]);
		list[i] = &devices[i];
	}
out:
	free(netifs);
	if (n < 0)
		return siw_refuse_and_return_null(n);
	if (num_devices)
		*num_devices = n;
	return list;
}

void siw_free_device_list(struct siw_device **list)
{
	free(list);
}

const struct siw_device_info *siw_device_info(struct siw_device *device)
{
	return device ? &device->info : NULL;
}

static void fill_device_limits(struct siw_device_attr *attr)
{
	*attr = (struct siw_device_attr){
		.max_mr_size = UINT64_MAX >> 1,
		.max_qp = SIW_MAX_QP,
		.max_qp_wr = SIW_MAX_QP_WR,
		.max_sge = SIW_MEM_MAX_SGE,
		.max_inline_data = SIW_MAX_INLINE,
		.max_cq = SIW_MAX_CQ,
		.max_cqe = SIW_MAX_CQE,
		.max_mr = SIW_MAX_MR,
		.max_pd = SIW_MAX_PD,
		.max_ah = SIW_MAX_AH,
		.max_srq = SIW_MAX_SRQ,
		.max_srq_wr = SIW_MAX_SRQ_WR,
		.max_srq_sge = SIW_MEM_MAX_SGE,
		.max_qp_rd_atom = SIW_MAX_READS,
		.atomic_cap = SIW_ATOMIC_GLOB,
		.max_qp_init_rd_atom = SIW_MAX_READS,
		.max_ud_msg = 65507 - 18 - 4,
		.max_rc_msg = SIW_MAX_RC_MSG,
		.max_mw = SIW_MAX_MW,
	};
}

/*
 * Frees what opening the device has allocated for all lanes. watch: the watch of the interface, or
 * NULL.
 */
static void close_lanes(struct siw_context *ctx, struct siw_llp_watch *watch)
{
	siw_device_lanes_close(ctx, watch);
	free(ctx->err_limit);
	ctx->err_limit = NULL;
	siw_mem_stag_table_free(ctx->mem);
}

/*
 * Resets the state that is left in a closed context from its previous use, before the context is
 * reused.
 */
static void context_reset_state(struct siw_context *ctx)
{
	ctx->has_thread = ctx->async_fd_set = false;
	atomic_store(&ctx->stop, false);
	atomic_store(&ctx->spin_skip, 0);
	atomic_store(&ctx->spin_left, 0);
	atomic_store(&ctx->next_pd, 0);
	atomic_store(&ctx->next_srq, 0);
}

/* Returns a context that can be opened: a new context or a closed one. */
static struct siw_context *alloc_or_reuse_context(void)
{
	struct siw_context *ctx = siw_device_take_context_for_reuse();

	if (ctx) {
		context_reset_state(ctx);
		return ctx;
	}
	ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		return NULL;
	siw_device_lane_init(&ctx->lane0, ctx, 0);
	ctx->lanes[0] = &ctx->lane0;
	siw_lock_init(&ctx->lanes_lock);
	siw_lock_init(&ctx->mw_lock);
	siw_lock_init(&ctx->refs_lock);
	siw_lock_init(&ctx->numbers_lock);
	siw_lock_init(&ctx->port_lock);
	siw_lock_init(&ctx->err_lock);
	siw_link_init(&ctx->qps);
	siw_lock_init(&ctx->revocations_lock);
	siw_link_init(&ctx->revocations);
	siw_link_init(&ctx->open);
	siw_lock_init(&ctx->children_lock);
	for (int i = 0; i < SIW_CHILD_RANKS; i++)
		siw_link_init(&ctx->children[i]);
	siw_device_freelist_init(&ctx->free_cqs);
	siw_device_freelist_init(&ctx->free_srqs);
	siw_device_freelist_init(&ctx->free_ahs);
	siw_device_freelist_init(&ctx->free_regions);
	siw_device_freelist_init(&ctx->free_windows);
	return ctx;
}

/* Returns the number of lanes for a device that is being opened. */
static uint32_t lane_count_for_new_device(void)
{
	uint32_t lanes = (uint32_t)siw_settings()->lanes;

	if (!lanes)
		lanes = siw_cpu_count();
	return lanes < SIW_MAX_LANES ? lanes : SIW_MAX_LANES;
}

static int context_open_lane0(struct siw_context *ctx)
{
	int err = siw_mem_stag_table_create(&ctx->mem);

	if (err)
		return err;
	ctx->n_lanes = lane_count_for_new_device();
	err = siw_device_lane0_open(ctx);
	if (err)
		siw_mem_stag_table_free(ctx->mem);
	return err;
}

struct siw_context *siw_open_device(struct siw_device *device)
{
	struct siw_context *ctx = device ? alloc_or_reuse_context() : NULL;
	int err;

	siw_reason_begin();
	if (!ctx)
		return siw_refuse_and_return_null(device ? -ENOMEM : siw_refuse_null("device"));
	siw_counters_init();
	siw_capture_init();
	siw_guard_install_handlers();
	err = siw_faults_init();
	if (err == -EINVAL)
		siw_refuse(FAULTS_SETTING, siw_reason_text(siw_faults_error_text()));
	if (err)
		goto fail;
	ctx->info = device->info;
	fill_device_limits(&ctx->attr);
	ctx->next_rc_qpn = SIW_FIRST_RC_QPN;
	ctx->rc_qpns_recur = false;
	err = context_open_lane0(ctx);
	if (err)
		goto fail;
	err = siw_device_open_async_event_queue(ctx);
	if (err)
		goto close_lanes;
	err = siw_device_watch_interface(ctx);
	if (err)
		goto close_async;
	err = siw_device_register_exit_handler();
	if (!err)
		err = siw_device_register_for_fork(ctx);
	if (err)
		goto close_port_watch;
	err = siw_device_thread_start(ctx);
	if (!err)
		return ctx;
	siw_device_unregister_for_fork(ctx);
close_port_watch:
	siw_llp_interface_watch_close(ctx->watch.watch);
close_async:
	siw_device_close_async_event_queue(ctx);
close_lanes:
	close_lanes(ctx, NULL);
fail:
	siw_guard_remove_handlers();
	siw_device_keep_context_for_reuse(ctx);
	return siw_refuse_and_return_null(err);
}

static bool addr_is_any(const struct siw_addr *addr)
{
	static const uint8_t zero[16];

	return addr->family == AF_INET ? !memcmp(addr->v4, zero, 4) : !memcmp(addr->v6, zero, 16);
}

static bool device_has_addr(const struct siw_device_info *info, const struct siw_addr *addr)
{
	struct siw_addr a = *addr;

	a.port_be = 0;
	for (uint32_t i = 0; i < info->n_addrs; i++) {
		if (siw_addr_same(&info->addrs[i], &a))
			return true;
		/* All of 127.0.0.0/8 belongs to the loopback interface. */
		if (a.family == AF_INET && info->addrs[i].family == AF_INET && a.v4[0] == 127 &&
		    info->addrs[i].v4[0] == 127)
			return true;
	}
	return false;
}

struct siw_context *siw_open_device_by_addr(const struct siw_addr *addr)
{
	struct siw_device **list, **d;
	struct siw_context *ctx;
	struct siw_addr wanted;
	int err;

	siw_reason_begin();
	if (!addr)
		return siw_refuse_and_return_null(siw_refuse_null("addr"));
	list = siw_get_device_list(NULL);
	if (!list)
		return NULL;
	wanted = *addr;
	if (addr_is_any(addr))
		siw_addr_parse(addr->family == AF_INET ? "127.0.0.1" : "::1", 0, &wanted);
	d = list;
	while (*d && !device_has_addr(&(*d)->info, &wanted))
		d++;
	ctx = *d ? siw_open_device(*d) : siw_refuse_and_return_null(siw_refuse(NO_DEVICE));
	err = errno;
	siw_free_device_list(list);
	errno = err;
	return ctx;
}

/*
 * Runs the timers of all lanes until none is left. Streams wait up to linger_ms for the peer's end
 * of stream.
 */
static void run_timers_until_none_left(struct siw_context *ctx)
{
	struct siw_llp_waitset sets[SIW_MAX_LANES];
	int n;

	do {
		n = 0;
		SIW_EACH_LANE(lane, ctx)
		{
			if (!atomic_load(&lane->n_timed))
				continue;
			siw_lock(&lane->lock);
			siw_device_progress_once(lane);
			siw_llp_waitset_fill(lane->poller, &sets[n++]);
			siw_unlock(&lane->lock);
		}
		if (n)
			siw_llp_wait_any(sets, n, -1, 5000);
	} while (n);
}

static void drain_and_close_device(struct siw_context *ctx)
{
	run_timers_until_none_left(ctx);
	siw_device_unregister_for_fork(ctx);
	close_lanes(ctx, ctx->watch.watch);
	siw_device_close_async_event_queue(ctx);
	siw_guard_remove_handlers();
}

int siw_close_device(struct siw_context *ctx)
{
	int err = siw_device_check_usable(ctx, "context");

	if (err)
		return err;
	if (atomic_load(&ctx->n_pd) || atomic_load(&ctx->n_cq) || atomic_load(&ctx->n_channel) ||
	    atomic_load(&ctx->n_evq))
		return siw_refuse(CONTEXT_BUSY, atomic_load(&ctx->n_pd), atomic_load(&ctx->n_cq),
				  atomic_load(&ctx->n_channel), atomic_load(&ctx->n_evq));
	siw_device_thread_stop(ctx);
	drain_and_close_device(ctx);
	siw_device_free_freelist_memory(ctx);
	siw_device_keep_context_for_reuse(ctx);
	return 0;
}

int siw_query_device(struct siw_context *ctx, struct siw_device_attr *attr)
{
	int err = siw_device_check_usable(ctx, "context");

	if (err)
		return err;
	if (!attr)
		return siw_refuse_null("attr");
	*attr = ctx->attr;
	return 0;
}

const struct siw_device_info *siw_context_info(struct siw_context *ctx)
{
	return ctx ? &ctx->info : NULL;
}

int siw_num_comp_vectors(struct siw_context *ctx)
{
	int err = siw_device_check_usable(ctx, "context");

	return err ? err : (int)ctx->n_lanes;
}

int siw_capture_start(const char *path)
{
	int err;

	siw_reason_begin();
	if (!path)
		return siw_refuse_null("path");
	err = siw_capture_open(path);
	if (err == -EBUSY)
		return siw_refuse(CAPTURE_ON);
	return err == -ESPIPE ? siw_refuse(CAPTURE_FILE) : siw_refused(err);
}

void siw_capture_stop(void)
{
	siw_capture_close();
}

int siw_faults_set(const char *plan)
{
	int err;

	siw_reason_begin();
	if (!plan)
		return siw_refuse_null("plan");
	err = siw_faults_install_plan(plan);
	return err == -EINVAL ? siw_refuse(FAULTS_PLAN, siw_reason_text(siw_faults_error_text()))
			      : siw_refused(err);
}

void siw_faults_clear(void)
{
	siw_faults_install_plan(NULL);
}

const char *siw_faults_error(void)
{
	return siw_faults_error_text();
}

size_t siw_faults_get(char *plan, size_t size)
{
	return siw_faults_format_current_plan(plan, size);
}

const char *siw_version(void)
{
	return SIW_VERSION;
}

/* ---- closing by force ------------------------------------------------------------------------ */

/*
 * Closing a device that still has children. Each child is ended as if the program had destroyed it,
 * and its descriptors and large buffers are freed. The small structs that the program's handles
 * point to are kept, with the context, so that a late call finds that its device is closed.
 */

#define MS_NS 1000000
/* maximum time in ns to wait for waiting threads to return; running threads return sooner */
#define WAITERS_LEAVE_NS 5000000000ull

/*
 * Ends all children that have this rank (enum siw_child_rank). The structs of the children stay in
 * a list and are never freed.
 */
static void end_child_objects_of_close_rank(struct siw_context *ctx, enum siw_child_rank rank)
{
	struct siw_link *list = &ctx->children[rank];

	while (!siw_link_empty(list)) {
		struct siw_child *child = siw_container(list->next, struct siw_child, link);

		siw_device_remove_child(ctx, child);
		child->end(child);
		siw_device_add_child(ctx, child, SIW_CHILD_PASSIVE, NULL, -1);
	}
}

static void wake_all_waiters(struct siw_context *ctx)
{
	SIW_EACH_LANE(lane, ctx)
	siw_llp_poller_wake(lane->poller);
	siw_llp_event_fd_set(ctx->async_fd);
	siw_lock(&ctx->children_lock);
	for (int rank = 0; rank < SIW_CHILD_RANKS; rank++)
		for (struct siw_link *l = ctx->children[rank].next; l != &ctx->children[rank];
		     l = l->next) {
			const struct siw_child *child = siw_container(l, struct siw_child, link);

			if (child->fd >= 0)
				siw_llp_event_fd_set(child->fd);
		}
	siw_unlock(&ctx->children_lock);
}

/*
 * Wakes the threads that wait on the device, until none does or WAITERS_LEAVE_NS have passed. The
 * time is limited, because a debugger or a signal handler may stop a waiting thread for long.
 */
static void wake_waiters_until_none_is_left(struct siw_context *ctx)
{
	uint64_t until = siw_now_ns() + WAITERS_LEAVE_NS;

	while ((siw_device_has_waiters(ctx) || atomic_load(&ctx->fd_waiters)) &&
	       siw_now_ns() < until) {
		wake_all_waiters(ctx);
		siw_sleep_ns(MS_NS);
	}
}

int siw_close_device_forced(struct siw_context *ctx)
{
	siw_reason_begin();
	if (!ctx)
		return siw_refuse_null("context");
	/* From this point on every call on the device and its children is refused. */
	if (atomic_exchange(&ctx->inherited, true))
		return siw_refuse(STALE);
	siw_device_await_opening_of_lanes(ctx);
	wake_waiters_until_none_is_left(ctx);
	siw_device_thread_stop(ctx);
	siw_device_shutdown_connections(ctx, siw_now_ns() +
						     (uint64_t)siw_settings()->linger_ms * 1000000);
	for (int rank = 0; rank < SIW_CHILD_PASSIVE; rank++)
		end_child_objects_of_close_rank(ctx, rank);
	drain_and_close_device(ctx);
	siw_device_keep_force_closed_context(ctx);
	return 0;
}
