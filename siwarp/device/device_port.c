/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The port of an open device: the state of its network interface, and the events that report
 * changes.
 */
#include <errno.h>
#include <stdlib.h>

#include "device/device_impl.h"

#define FIRST_INTERFACES 32
#define MAX_NEWS	 64 /* maximum number of interface changes handled in one call */

int siw_device_list_host_interfaces(struct siw_llp_interface **out)
{
	int room = FIRST_INTERFACES, n;

	*out = NULL;
	do { /* if the array is full, interfaces may be missing from it */
		room *= 2;
		free(*out);
		*out = calloc((size_t)room, sizeof(**out));
		n = *out ? siw_llp_list_interfaces(*out, room) : -ENOMEM;
	} while (n == room);
	if (n < 0) {
		free(*out);
		*out = NULL;
	}
	return n;
}

/* ---- the state of the interface -------------------------------------------------------------- */

void siw_device_get_current_info(struct siw_context *ctx, struct siw_device_info *info)
{
	siw_lock(&ctx->port_lock);
	*info = ctx->port.now;
	siw_unlock(&ctx->port_lock);
}

void siw_device_get_info_shown_to_program(struct siw_context *ctx, struct siw_device_info *info)
{
	siw_lock(&ctx->port_lock);
	*info = ctx->port.shown;
	siw_unlock(&ctx->port_lock);
}

/*
 * Reads the state of the device's interface again. *info is the previous state, and becomes the new
 * state. Returns whether the addresses have changed; or -errno, with *info unchanged.
 */
static int reread_interface_state(struct siw_device_info *info)
{
	const struct siw_device_info before = *info;
	struct siw_llp_interface *netifs, *own = NULL;
	int n = siw_device_list_host_interfaces(&netifs);

	if (n < 0)
		return n;
	for (int i = 0; i < n; i++)
		if (!strncmp(netifs[i].name, info->netdev, sizeof(info->netdev)))
			own = &netifs[i];
	memset(info->addrs, 0, sizeof(info->addrs));
	info->n_addrs = own ? own->n_addrs : 0;
	if (own) {
		memcpy(info->addrs, own->addrs, own->n_addrs * sizeof(info->addrs[0]));
		info->mtu = own->mtu;
		info->up = own->up;
	}
	free(netifs);
	return info->n_addrs != before.n_addrs ||
	       memcmp(info->addrs, before.addrs, sizeof(info->addrs)) != 0;
}

/* ---- followers ------------------------------------------------------------------------------- */

/* Returns the number of the last change. */
static uint32_t last_port_change_number(struct siw_context *ctx)
{
	uint32_t changes;

	siw_lock(&ctx->port_lock);
	changes = ctx->port.changes;
	siw_unlock(&ctx->port_lock);
	return changes;
}

/*
 * Called when the lane's followers have handled the change with this number. The last lane shows
 * the change to the program; the events follow, so that a program that has read an event also reads
 * the new state.
 */
static void note_port_change_handled_by_lane(struct siw_lane *lane, uint32_t change)
{
	struct siw_context *ctx = lane->ctx;
	struct siw_port_state *port = &ctx->port;
	int events[SIW_PORT_EVENTS], n = 0;

	siw_lock(&ctx->port_lock);
	if (port->changes == change) {
		port->lanes &= ~(1u << lane->index);
		if (!port->lanes) {
			port->shown = port->now;
			n = port->n_events;
			memcpy(events, port->events, (size_t)n * sizeof(events[0]));
			port->n_events = 0;
		}
	}
	siw_unlock(&ctx->port_lock);
	for (int i = 0; i < n; i++)
		siw_device_raise_async_event(&ctx->async, events[i]);
}

void siw_device_notify_objects_of_addr_change(struct siw_lane *lane)
{
	uint32_t change = last_port_change_number(lane->ctx);

	for (struct siw_link *l = lane->addr_followers.next; l != &lane->addr_followers;
	     l = l->next) {
		struct siw_addr_follower *follower =
			siw_container(l, struct siw_addr_follower, link);

		follower->update(follower);
	}
	note_port_change_handled_by_lane(lane, change);
}

/*
 * Called in a round of lane 0, after a change of the interface was stored. The other lanes notify
 * their followers in rounds of their own.
 */
static void notify_objects_of_addr_change_in_all_lanes(struct siw_context *ctx)
{
	siw_device_notify_objects_of_addr_change(&ctx->lane0);
	for (struct siw_lane *lane = siw_device_next_lane(&ctx->lane0); lane;
	     lane = siw_device_next_lane(lane))
		siw_device_leave_work_for_lane(lane, SIW_LANE_NOTIFY_FOLLOWERS);
}

/* ---- changes --------------------------------------------------------------------------------- */

/* Adds an event; a pending event of the same type moves to the end. Called with port_lock held. */
static void port_add_event(struct siw_port_state *port, int type)
{
	int n = 0;

	for (int i = 0; i < port->n_events; i++)
		if (port->events[i] != type)
			port->events[n++] = port->events[i];
	port->events[n++] = type;
	port->n_events = n;
}

static void port_add_link_event(struct siw_port_state *port, uint32_t before)
{
	if (before != port->now.up)
		port_add_event(port, port->now.up ? SIW_EVENT_PORT_ACTIVE : SIW_EVENT_PORT_ERR);
}

/*
 * Handles one report of the interface watch: stores the new state and the events to raise. Called
 * with the lock of lane 0 held. No object misses a change: it reads the addresses and becomes a
 * follower under the lock of its lane, so it either reads the new state, or is a follower when its
 * lane handles the change; and a lane that is opened meanwhile is either in the set of lanes that
 * have to handle the change, or its objects read the new state.
 */
static void handle_interface_report(struct siw_context *ctx, int news)
{
	bool of_link = news == SIW_LLP_WATCH_UP || news == SIW_LLP_WATCH_DOWN;
	struct siw_port_state *port = &ctx->port;
	struct siw_device_info info;
	uint32_t before;
	int changed;

	siw_device_get_current_info(ctx, &info);
	before = info.up;
	/*
	 * A report about the link may be a change of the MTU, which the address reports do not
	 * cover. If reading the state failed for lack of memory, the addresses may have changed.
	 */
	changed = reread_interface_state(&info);
	if (of_link)
		info.up = news == SIW_LLP_WATCH_UP;
	else if (news != SIW_LLP_WATCH_LOST) /* the kernel reports changes of the link separately */
		info.up = before;
	siw_lock(&ctx->port_lock);
	port->now = info;
	port->changes++;
	port->lanes = atomic_load(&ctx->open_lanes);
	if (of_link)
		port_add_link_event(port, before);
	if (changed)
		port_add_event(port, SIW_EVENT_GID_CHANGE);
	if (news == SIW_LLP_WATCH_LOST)
		port_add_link_event(port, before);
	siw_unlock(&ctx->port_lock);
}

/* Handles the pending interface changes. Called with the lock of lane 0 held. */
static int handle_interface_changes(struct siw_io_handler *self)
{
	struct siw_port_watch *watch = siw_container(self, struct siw_port_watch, handler);
	int n, news;

	for (n = 0; n < MAX_NEWS && (news = siw_llp_interface_watch_read(watch->watch)); n++)
		handle_interface_report(watch->ctx, news);
	/*
	 * Followers are notified even if no address changed: an address that can be bound only now
	 * may have been listed before.
	 */
	if (n)
		notify_objects_of_addr_change_in_all_lanes(watch->ctx);
	return n;
}

static int open_watch_and_read_state(struct siw_context *ctx)
{
	struct siw_device_info info = ctx->info;
	int err = siw_llp_interface_watch_open(ctx->lane0.poller, info.netdev, &ctx->watch.handler,
					       &ctx->watch.watch);

	if (err)
		return err;
	/* The device list from which the program chose may be outdated, so read the state again. */
	err = reread_interface_state(&info);
	if (err < 0) {
		siw_llp_interface_watch_close(ctx->watch.watch);
		return err;
	}
	siw_lock(&ctx->port_lock);
	ctx->port = (struct siw_port_state){ .now = info, .shown = info };
	siw_unlock(&ctx->port_lock);
	return 0;
}

int siw_device_watch_interface(struct siw_context *ctx)
{
	int err;

	ctx->watch.handler.serve = handle_interface_changes;
	ctx->watch.ctx = ctx;
	/*
	 * The lock is needed because the context may be a reused one: a call on its former device
	 * that began before that device was closed may still make a progress round.
	 */
	siw_lock(&ctx->lane0.lock);
	err = open_watch_and_read_state(ctx);
	siw_unlock(&ctx->lane0.lock);
	return err;
}

int siw_query_device_info(struct siw_context *ctx, struct siw_device_info *info)
{
	int err = siw_device_check_usable(ctx, "context");

	if (err)
		return err;
	if (!info)
		return siw_refuse_null("info");
	siw_device_get_info_shown_to_program(ctx, info);
	return 0;
}

int siw_source_address(const struct siw_addr *dest, struct siw_addr *source)
{
	int err;

	if (!dest || !source)
		return siw_refuse_null(dest ? "source" : "dest");
	err = siw_llp_source_addr_for_dest(dest, source);
	return err ? siw_refused(err) : 0;
}
