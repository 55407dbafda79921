/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* verbs/verbs_impl.h - what the files of this folder do for each other; private to it. */
#ifndef SIW_VERBS_IMPL_H
#define SIW_VERBS_IMPL_H

#include "verbs/verbs_objects.h"

/* ---- verbs_exit.c ---- */
/* From here on exit() ends connections before the process ends: 0 or -ENOMEM. */
int siw_verbs_exit_watch(void);

/* ---- verbs_fork.c ---- */
/* From here on a fork is noticed: 0 or -ENOMEM. */
int siw_verbs_fork_watch(struct siw_context *ctx);
void siw_verbs_fork_unwatch(struct siw_context *ctx);
/* Every open device; none is opened or closed meanwhile. */
void siw_verbs_context_each(void (*call)(struct siw_context *ctx, uint64_t arg), uint64_t arg);
/* A context that was closed, to be used again, or NULL; and one that is closed now. */
struct siw_context *siw_verbs_context_take(void);
void siw_verbs_context_keep(struct siw_context *ctx);

/* ---- verbs_progress.c ---- */
/* Serves, once, every socket that may have something: the number of messages moved. progress held. */
int siw_verbs_progress_once(struct siw_context *ctx);
/*
 * What was posted and waits for company or its turn is sent now, as the caller may do something else. polls: not if
 * another thread makes progress already.
 */
void siw_verbs_send_posted(struct siw_context *ctx, bool polls);
int siw_verbs_thread_start(struct siw_context *ctx);
void siw_verbs_thread_stop(struct siw_context *ctx);

/* ---- verbs_channel.c; the queue has a channel ---- */
/* Adds an event of the queue, which something came to while it was armed. */
void siw_verbs_channel_raise(struct siw_cq *cq);
/* Takes the queue out of its channel, once the user has acknowledged all events taken of it. */
void siw_verbs_channel_leave(struct siw_cq *cq);

/* ---- verbs_async.c ---- */
int siw_verbs_async_open(struct siw_context *ctx);
void siw_verbs_async_close(struct siw_context *ctx);

/* ---- verbs_port.c ---- */
int siw_verbs_port_open(struct siw_context *ctx);

/* ---- verbs_busy.c; no lock held ---- */
/* Whether a send request that is not out yet, or a Read without its response, uses this memory. */
bool siw_verbs_key_in_use(struct siw_context *ctx, uint32_t lkey);
/* Whether a send to it is not out yet. */
bool siw_verbs_ah_in_use(struct siw_ah *ah);

/*
 * The STag is dead already; streams whose answers to Reads still refer to its memory cannot go on. When
 * this returns, nobody else does, either. No lock held; _locked: progress held.
 */
void siw_verbs_revoke_stag(struct siw_context *ctx, uint32_t stag);
void siw_verbs_revoke_stag_locked(struct siw_context *ctx, uint32_t stag,
				  const struct siw_qp *except);

/* ---- verbs_limits.c ---- */
/* Takes one of max: whether there was one. */
bool siw_verbs_take_one(_Atomic uint32_t *count, uint32_t max);

/* ---- verbs_mr.c ---- */
/* What mem is to allow, of a set of enum siw_access_flags. */
static inline uint32_t siw_verbs_rights(int access)
{
	return (uint32_t)access &
	       (SIW_MEM_LOCAL_WRITE | SIW_MEM_REMOTE_WRITE | SIW_MEM_REMOTE_READ |
		SIW_MEM_REMOTE_ATOMIC | SIW_MEM_REMOTE_INVALIDATE);
}
/* The device is closed. */
void siw_verbs_free_freelist_memory(struct siw_context *ctx);

/* ---- verbs_mw.c ---- */
/* From here on windows may be bound to the region, if its access says so. */
void siw_verbs_mw_allow(struct siw_region *region);
/*
 * Before the region ends: 0, no window is bound to it any more or will be, and what was is over; -EBUSY.
 * No lock held.
 */
int siw_verbs_mw_forbid(struct siw_region *region);

/* ---- verbs_freelist.c ---- */
void siw_verbs_freelist_init(struct siw_freelist *list);

#endif
