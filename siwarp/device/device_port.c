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

int siw_device_list_interfaces(struct siw_llp_interface **out)
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

/* Reads the interface's state. Returns whether its addresses have changed, or -errno. */
static int reread_interface_state(struct siw_context *ctx)
{
	struct siw_llp_interface *netifs, *own = NULL;
	int n = siw_device_list_interfaces(&netifs);
	struct siw_device_info now = ctx->now;

	for (int i = 0; i < n; i++)
		if (!strncmp(netifs[i].name, now.netdev, sizeof(now.netdev)))
			own = &netifs[i];
	if (n >= 0) {
		memset(now.addrs, 0, sizeof(now.addrs));
		now.n_addrs = own ? own->n_addrs : 0;
		memcpy(now.addrs, own ? own->addrs : now.addrs, now.n_addrs * sizeof(now.addrs[0]));
		now.mtu = own ? own->mtu : now.mtu;
		now.up = own ? own->up : now.up;
	}
	free(netifs);
	if (n < 0)
		return n;
	n = now.n_addrs != ctx->now.n_addrs ||
	    memcmp(now.addrs, ctx->now.addrs, sizeof(now.addrs)) != 0;
	ctx->now = now;
	return n;
}

static void notify_followers_of_address_change(struct siw_context *ctx)
{
	for (struct siw_link *l = ctx->addr_followers.next; l != &ctx->addr_followers;
	     l = l->next) {
		struct siw_addr_follower *follower =
			siw_container(l, struct siw_addr_follower, link);

		follower->update(follower);
	}
}

static void set_port_state(struct siw_context *ctx, uint32_t before, uint32_t up)
{
	ctx->now.up = up;
	if (before != up)
		siw_device_async_raise(&ctx->async,
				       up ? SIW_EVENT_PORT_ACTIVE : SIW_EVENT_PORT_ERR);
}

/* Handles the pending interface changes. Called with the progress lock held. */
static int handle_interface_changes(struct siw_io_handler *self)
{
	struct siw_port_watch *watch = siw_container(self, struct siw_port_watch, handler);
	struct siw_context *ctx = watch->ctx;
	int n, news;

	for (n = 0; n < MAX_NEWS && (news = siw_llp_interface_watch_read(watch->watch)); n++) {
		uint32_t up = ctx->now.up;

		if (news == SIW_LLP_WATCH_UP || news == SIW_LLP_WATCH_DOWN) {
			set_port_state(ctx, up, news == SIW_LLP_WATCH_UP);
			up = ctx->now.up;
		}
		/*
		 * A report about the link may be a change of the MTU, which the address reports do
		 * not cover. If reading the state failed for lack of memory, the addresses may have
		 * changed.
		 */
		if (reread_interface_state(ctx))
			siw_device_async_raise(&ctx->async, SIW_EVENT_GID_CHANGE);
		if (news == SIW_LLP_WATCH_LOST)
			set_port_state(ctx, up, ctx->now.up);
		else
			/* a change of the link state is reported by a message of its own */
			ctx->now.up = up;
	}
	/*
	 * Followers are notified even if no address changed: an address that can be bound only now
	 * may have been listed before.
	 */
	if (n)
		notify_followers_of_address_change(ctx);
	return n;
}

int siw_device_watch_interface(struct siw_context *ctx)
{
	int err;

	ctx->watch.handler.serve = handle_interface_changes;
	ctx->watch.ctx = ctx;
	ctx->now = ctx->info;
	err = siw_llp_interface_watch_open(ctx->lane.port, ctx->info.netdev, &ctx->watch.handler,
					   &ctx->watch.watch);
	if (err)
		return err;
	/* The device list from which the program chose may be outdated, so read the state again. */
	err = reread_interface_state(ctx);
	if (err < 0)
		siw_llp_interface_watch_close(ctx->watch.watch);
	return err < 0 ? err : 0;
}

int siw_query_device_info(struct siw_context *ctx, struct siw_device_info *info)
{
	int err = siw_device_check_usable(ctx, "context");

	if (err)
		return err;
	if (!info)
		return siw_refuse_null("info");
	siw_lock(&ctx->lane.lock);
	*info = ctx->now;
	siw_unlock(&ctx->lane.lock);
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
