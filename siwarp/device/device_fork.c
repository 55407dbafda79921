/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Open devices after fork(). The child process has copies of the devices' memory but not their
 * threads, and a lock may be held by a thread that does not exist in the child. So fork() marks the
 * devices inherited in the child: every call on them or their objects returns ESTALE before it
 * acquires a lock. The llp layer closes the child's copies of the descriptors. The parent process
 * is not affected.
 */
#include <errno.h>

#include "base/fork.h"
#include "device/device_impl.h"

static void mark_devices_inherited_in_child(void);

static struct siw_fork_lock fork_lock = { .lock = SIW_LOCK_INIT,
					  .in_child = mark_devices_inherited_in_child };
static struct siw_link contexts = { &contexts, &contexts }; /* open contexts; under fork_lock */
/* closed contexts, kept for reuse; under fork_lock */
static struct siw_link closed = { &closed, &closed };
/* contexts closed by force, never reused; under fork_lock */
static struct siw_link retired = { &retired, &retired };

static void mark_devices_inherited_in_child(void)
{
	while (!siw_link_empty(&contexts)) {
		struct siw_link *l = contexts.next;

		siw_link_del(l);
		siw_container(l, struct siw_context, open)->inherited = true;
	}
	/*
	 * Do not reuse closed contexts in the child: a late call in the parent may have held their
	 * locks at the time of the fork.
	 */
	siw_link_init(&closed);
}

int siw_device_register_for_fork(struct siw_context *ctx)
{
	int rv = siw_fork_lock_register(&fork_lock);

	if (rv)
		return rv;
	siw_lock(&fork_lock.lock);
	siw_link_add(&contexts, &ctx->open);
	siw_unlock(&fork_lock.lock);
	return 0;
}

void siw_device_unregister_for_fork(struct siw_context *ctx)
{
	siw_lock(&fork_lock.lock);
	siw_link_del(&ctx->open);
	siw_unlock(&fork_lock.lock);
}

void siw_device_for_each_open_context(void (*call)(struct siw_context *ctx, uint64_t arg),
				      uint64_t arg)
{
	siw_lock(&fork_lock.lock);
	for (struct siw_link *l = contexts.next; l != &contexts; l = l->next)
		call(siw_container(l, struct siw_context, open), arg);
	siw_unlock(&fork_lock.lock);
}

struct siw_context *siw_device_take_context_for_reuse(void)
{
	struct siw_context *ctx = NULL;

	siw_lock(&fork_lock.lock);
	if (!siw_link_empty(&closed)) {
		ctx = siw_container(closed.next, struct siw_context, open);
		siw_link_del(&ctx->open);
	}
	siw_unlock(&fork_lock.lock);
	return ctx;
}

void siw_device_keep_context_for_reuse(struct siw_context *ctx)
{
	siw_lock(&fork_lock.lock);
	siw_link_add(&closed, &ctx->open);
	siw_unlock(&fork_lock.lock);
}

void siw_device_keep_force_closed_context(struct siw_context *ctx)
{
	siw_lock(&fork_lock.lock);
	siw_link_add(&retired, &ctx->open);
	siw_unlock(&fork_lock.lock);
}

int siw_device_refuse_if_stale(const struct siw_context *ctx)
{
	return siw_device_inherited(ctx) ? siw_refuse(STALE) : 0;
}

int siw_device_check_usable(const struct siw_context *ctx, const char *name)
{
	siw_reason_begin();
	return ctx ? siw_device_refuse_if_stale(ctx) : siw_refuse_null(name);
}

int siw_device_check_create_args(const struct siw_pd *pd, const void *init)
{
	int err = siw_device_check_usable(pd ? pd->ctx : NULL, "pd");

	return err || init ? err : siw_refuse_null("init");
}
