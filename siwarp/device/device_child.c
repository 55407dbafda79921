/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The children of a device, listed in the order in which closing the device by force ends them;
 * limits on their number; and the memory of destroyed ones.
 */
#include "device/device_impl.h"

void siw_device_add_child(struct siw_context *ctx, struct siw_child *child,
			  enum siw_child_rank rank, void (*end)(struct siw_child *self), int fd)
{
	child->end = end;
	child->fd = fd;
	siw_lock(&ctx->children_lock);
	siw_link_add(&ctx->children[rank], &child->link);
	siw_unlock(&ctx->children_lock);
}

void siw_device_remove_child(struct siw_context *ctx, struct siw_child *child)
{
	siw_lock(&ctx->children_lock);
	siw_link_del(&child->link);
	siw_unlock(&ctx->children_lock);
}

/* ---- limits ---------------------------------------------------------------------------------- */

bool siw_device_increment_count_if_below_max(_Atomic uint32_t *count, uint32_t max)
{
	if (atomic_fetch_add(count, 1) < max)
		return true;
	atomic_fetch_sub(count, 1);
	return false;
}

int siw_device_refuse_limit_reached(const char *limit, uint32_t max)
{
	return siw_refuse(DEVICE_FULL, siw_reason_text(limit), max);
}

/* ---- freelists ------------------------------------------------------------------------------- */

/*
 * The object that was destroyed first is reused first, because late calls on that object are least
 * likely.
 */

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
