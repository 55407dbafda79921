/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The memory of destroyed objects. The object that was destroyed first is reused first, because
 * late calls on it are least likely.
 */
#include "device/device_impl.h"

void siw_device_freelist_init(struct siw_freelist *list)
{
	siw_lock_init(&list->lock);
	siw_link_init(&list->objects);
}

struct siw_link *siw_device_freelist_take(struct siw_freelist *list)
{
	struct siw_link *link = NULL;

	siw_lock(&list->lock);
	if (!siw_link_empty(&list->objects)) {
		link = list->objects.next;
		siw_link_del(link);
	}
	siw_unlock(&list->lock);
	return link;
}

void siw_device_freelist_give(struct siw_freelist *list, struct siw_link *link)
{
	siw_lock(&list->lock);
	siw_link_add(&list->objects, link);
	siw_unlock(&list->lock);
}
