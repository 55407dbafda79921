/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What fork does to open devices. The child has their memory, but not the threads that move their
 * traffic, and perhaps locks that a thread which is not here never gives back. So in the child they are
 * inherited: every call on them or on what was made from them says ESTALE before it takes a lock. Their
 * descriptors are closed by llp. The parent notices nothing.
 */
#include <errno.h>

#include "verbs/verbs_impl.h"

static siw_lock_t lock = SIW_LOCK_INIT;
static struct siw_link contexts = { &contexts, &contexts }; /* lock */
static struct siw_link closed = { &closed, &closed };	    /* lock */
static bool watching;

static void before_fork(void)
{
	siw_lock(&lock);
}

static void in_parent(void)
{
	siw_unlock(&lock);
}

static void in_child(void)
{
	while (!siw_link_alone(&contexts)) {
		struct siw_link *l = contexts.next;

		siw_link_del(l);
		siw_container(l, struct siw_context, open)->inherited = true;
	}
	/* A call that came too late, in a thread that is not here, may hold a lock of theirs. */
	siw_link_init(&closed);
	/* Anew: threads that are not here may have waited for it. */
	siw_lock_init(&lock);
}

static void watch(void)
{
	watching = pthread_atfork(before_fork, in_parent, in_child) == 0;
}

int siw_verbs_fork_watch(struct siw_context *ctx)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch);
	if (!watching)
		return -ENOMEM;
	siw_lock(&lock);
	siw_link_add(&contexts, &ctx->open);
	siw_unlock(&lock);
	return 0;
}

void siw_verbs_fork_unwatch(struct siw_context *ctx)
{
	siw_lock(&lock);
	siw_link_del(&ctx->open);
	siw_unlock(&lock);
}

void siw_verbs_context_each(void (*call)(struct siw_context *ctx, uint64_t arg), uint64_t arg)
{
	siw_lock(&lock);
	for (struct siw_link *l = contexts.next; l != &contexts; l = l->next)
		call(siw_container(l, struct siw_context, open), arg);
	siw_unlock(&lock);
}

struct siw_context *siw_verbs_context_take(void)
{
	struct siw_context *ctx = NULL;

	siw_lock(&lock);
	if (!siw_link_alone(&closed)) {
		ctx = siw_container(closed.next, struct siw_context, open);
		siw_link_del(&ctx->open);
	}
	siw_unlock(&lock);
	return ctx;
}

void siw_verbs_context_keep(struct siw_context *ctx)
{
	siw_lock(&lock);
	siw_link_add(&closed, &ctx->open);
	siw_unlock(&lock);
}

int siw_verbs_stale(const struct siw_context *ctx)
{
	return siw_verbs_inherited(ctx) ? -ESTALE : 0;
}
