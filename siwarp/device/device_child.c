/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The children of a device, listed in the order in which closing the device by force ends them. */
#include "device/device_impl.h"

void siw_device_child_add(struct siw_context *ctx, struct siw_child *child,
			  enum siw_child_rank rank, void (*end)(struct siw_child *self), int fd)
{
	child->end = end;
	child->fd = fd;
	siw_lock(&ctx->children_lock);
	siw_link_add(&ctx->children[rank], &child->link);
	siw_unlock(&ctx->children_lock);
}

void siw_device_child_del(struct siw_context *ctx, struct siw_child *child)
{
	siw_lock(&ctx->children_lock);
	siw_link_del(&child->link);
	siw_unlock(&ctx->children_lock);
}
