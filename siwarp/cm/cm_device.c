/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * cm/cm_device.c - ids of channels that belong to no device. Such ids get their device later, can
 * move between channels, reserve an address, listen on several devices, and report events posted by
 * the user.
 */
#include <errno.h>

#include "base/addr.h"
#include "base/reason.h"
#include "cm/cm_impl.h"

int siw_cm_set_device(struct siw_cm_id *id, struct siw_context *context)
{
	int err = siw_cm_check_id_usable(id);

	if (!err)
		err = context ? siw_device_refuse_if_stale(context) : siw_refuse_null("context");
	if (err)
		return err;
	if (id->context == context)
		return 0;
	if (id->context || id->device_listeners)
		return siw_refuse(CM_HAS_DEVICE);
	return siw_refused(siw_cm_assign_device(id, context));
}

struct siw_context *siw_cm_device(struct siw_cm_id *id)
{
	siw_reason_begin();
	if (!id)
		return siw_refuse_and_return_null(siw_refuse_null("id"));
	return id->context;
}

int siw_cm_migrate_id(struct siw_cm_id *id, struct siw_cm_channel *to)
{
	struct siw_cm_channel *from, *first, *second;
	int err = siw_cm_check_id_usable(id);

	if (!err)
		err = siw_cm_check_channel_usable(to);
	if (err)
		return err;
	if (to->context && to->context != id->context)
		return siw_refuse(CM_CHANNEL_DEVICE);
	/*
	 * An event is read under its channel's lock. Of the locks of the two channels, the lock
	 * with the lower address is acquired first.
	 */
	for (;;) {
		from = siw_cm_channel_of(id);
		if (from == to)
			return 0;
		first = from < to ? from : to;
		second = from < to ? to : from;
		siw_lock(&first->lock);
		siw_lock(&second->lock);
		if (siw_cm_channel_of(id) == from)
			break;
		/* Another thread has moved the id to another channel meanwhile, so try again. */
		siw_unlock(&second->lock);
		siw_unlock(&first->lock);
	}
	for (struct siw_cm_id *one = id; one;
	     one = one == id ? id->device_listeners : one->next_listener) {
		siw_evq_move_events_with_user_data(from->evq, to->evq, one, one->reporter);
		atomic_store_explicit(&one->channel, to, memory_order_relaxed);
		atomic_fetch_add(&to->n_ids, 1);
		atomic_fetch_sub(&from->n_ids, 1);
	}
	siw_unlock(&second->lock);
	siw_unlock(&first->lock);
	return 0;
}

static bool id_is_bound(struct siw_cm_id *id)
{
	return siw_cm_is_busy(id) || id->device_listeners || id->reserved.fd >= 0 ||
	       id->ud_local.family;
}

int siw_cm_set_v6only(struct siw_cm_id *id, int on)
{
	int err = siw_cm_check_id_usable(id);

	if (err)
		return err;
	if (id_is_bound(id))
		return siw_refuse(CM_USED);
	id->v6_only = on != 0;
	return 0;
}

int siw_cm_bind_addr(struct siw_cm_id *id, const struct siw_addr *addr)
{
	int err = siw_cm_check_id_usable(id);

	if (err)
		return err;
	if (!addr)
		return siw_refuse_null("addr");
	if (id_is_bound(id))
		return siw_refuse(CM_USED);
	if (!siw_addr_len(addr))
		return siw_refuse(ADDRESS_FAMILY, addr->family);
	err = siw_connect_reserve_addr(&id->reserved, addr, id->ud, id->v6_only);
	if (err == -EADDRINUSE && id->ud) {
		id->ud_local = *addr;
		err = 0;
	}
	return siw_refused(err);
}

int siw_cm_listen_also(struct siw_cm_id *id, struct siw_context *context,
		       const struct siw_addr *addr, int backlog)
{
	struct siw_cm_id *door;
	int err = siw_cm_check_id_usable(id);

	if (!err)
		err = context ? siw_device_refuse_if_stale(context) : siw_refuse_null("context");
	if (err)
		return err;
	if (!addr)
		return siw_refuse_null("addr");
	if (id->channel->context)
		return siw_refuse(CM_CHANNEL_DEVICE);
	if (siw_cm_is_busy(id) && !id->listening)
		return siw_refuse(CM_USED);
	door = siw_cm_new_id(id->channel, context, NULL);
	if (!door)
		return siw_refused(-ENOMEM);
	door->listener = id;
	door->ud = id->ud;
	if (id->ud)
		siw_cm_ud_release_port(id);
	err = siw_cm_listen(door, addr, backlog);
	if (err) {
		siw_cm_free_id(door);
		return err;
	}
	door->next_listener = id->device_listeners;
	id->device_listeners = door;
	id->listening = true;
	return 0;
}

int siw_cm_tell(struct siw_cm_id *id, int event, int status)
{
	int err = siw_cm_check_id_usable(id);

	if (err)
		return err;
	return siw_refused(siw_evq_add_notification(id->channel->evq, event, status, id));
}
