/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* verbs/verbs_impl.h - functions that the files of this folder share; private to it. */
#ifndef SIW_VERBS_IMPL_H
#define SIW_VERBS_IMPL_H

#include "verbs/verbs_objects.h"

/* ---- verbs_exit.c ---------------------------------------------------------------------------- */
/* From now on exit() closes connections gracefully. 0 or -ENOMEM. */
int siw_verbs_exit_watch(void);

/* ---- verbs_fork.c ---------------------------------------------------------------------------- */
/* From now on fork marks the context as inherited in the child. 0 or -ENOMEM. */
int siw_verbs_fork_watch(struct siw_context *ctx);
void siw_verbs_fork_unwatch(struct siw_context *ctx);
/* Calls call for every open device; none is opened or closed meanwhile. */
void siw_verbs_context_each(void (*call)(struct siw_context *ctx, uint64_t arg), uint64_t arg);
/* _take returns a closed context to reuse, or NULL; _keep stores one that was closed. */
struct siw_context *siw_verbs_context_take(void);
void siw_verbs_context_keep(struct siw_context *ctx);
/* It was closed by force: it and the structs of its children are never used again. */
void siw_verbs_context_bury(struct siw_context *ctx);

/* ---- verbs_progress.c ------------------------------------------------------------------------ */
/* siw_verbs_progress_once for a thread that may make no other round: one that sleeps goes on with what is left. */
void siw_verbs_visit(struct siw_context *ctx);
/*
 * Sends what was posted and is delayed for a batch or waits for its turn, since the caller may not
 * poll soon. polls: skip this if another thread is making progress, and no posts wait for company.
 */
void siw_verbs_send_posted(struct siw_context *ctx, bool polls);
/*
 * A poll took completions without a round of progress. all: as many as it has room for, so its
 * caller will poll again soon.
 */
void siw_verbs_took(struct siw_context *ctx, bool all);
/* Gives each QP that was marked a turn. Returns how many moved something. progress held. */
int siw_verbs_send_unsent(struct siw_context *ctx);

/* ---- verbs_thread.c -------------------------------------------------------------------------- */
int siw_verbs_thread_start(struct siw_context *ctx);
void siw_verbs_thread_stop(struct siw_context *ctx);

/* ---- verbs_slice.c --------------------------------------------------------------------------- */
/* Asks for the least slice that the kernel gives, for the calling thread. */
void siw_verbs_short_slice(void);

/* ---- verbs_deputy.c -------------------------------------------------------------------------- */
/* The device's thread calls it: it woke and served single messages. */
void siw_verbs_deputies_note(struct siw_context *ctx);
/* The device's thread has ended. */
void siw_verbs_deputies_stop(struct siw_context *ctx);

/* ---- verbs_channel.c; the queue has a channel ------------------------------------------------ */
/* Queues an event: something came to the queue while it was armed. */
void siw_verbs_channel_raise(struct siw_cq *cq);
/* Removes the queue from its channel, once the user has acknowledged all its events. */
void siw_verbs_channel_leave(struct siw_cq *cq);

/* ---- verbs_device.c -------------------------------------------------------------------------- */
/* Closes what a device has without children. Its thread has ended. */
void siw_verbs_close_rest(struct siw_context *ctx);

/* ---- verbs_exit.c ---------------------------------------------------------------------------- */
/* Closes connections so that what completed reaches the peer, until then. */
void siw_verbs_say_goodbye(struct siw_context *ctx, uint64_t deadline_ns);

/* ---- verbs_async.c --------------------------------------------------------------------------- */
int siw_verbs_async_open(struct siw_context *ctx);
void siw_verbs_async_close(struct siw_context *ctx);

/* ---- verbs_port.c ---------------------------------------------------------------------------- */
/* All interfaces that have an address: their number, and *out, which the caller frees; or -errno. */
int siw_verbs_interfaces(struct siw_llp_interface **out);
int siw_verbs_port_open(struct siw_context *ctx);

/* ---- verbs_busy.c; no lock held -------------------------------------------------------------- */
/*
 * Whether a send that the socket has not accepted, or a Read without its response, uses this
 * memory.
 */
bool siw_verbs_key_in_use(struct siw_context *ctx, uint32_t lkey);
/* Whether the socket has not accepted a send to it. */
bool siw_verbs_ah_in_use(struct siw_ah *ah);

/*
 * The STag was invalidated before. Resets the streams, except except's, that still have to send a
 * Read Response from its memory; on return, no other thread uses that memory. No lock held;
 * _locked: progress held.
 */
void siw_verbs_revoke_stag(struct siw_context *ctx, uint32_t stag);
void siw_verbs_revoke_stag_locked(struct siw_context *ctx, uint32_t stag,
				  const struct siw_qp *except);

/* ---- verbs_limits.c -------------------------------------------------------------------------- */
/* Adds one to the count if it is below max. Returns whether it did. */
bool siw_verbs_take_one(_Atomic uint32_t *count, uint32_t max);

/* ---- verbs_mr.c ------------------------------------------------------------------------------ */
/* Converts a set of enum siw_access_flags to one of enum siw_mem_right. */
static inline uint32_t siw_verbs_rights(int access)
{
	return (uint32_t)access &
	       (SIW_MEM_LOCAL_WRITE | SIW_MEM_REMOTE_WRITE | SIW_MEM_REMOTE_READ |
		SIW_MEM_REMOTE_ATOMIC | SIW_MEM_REMOTE_INVALIDATE);
}
/* Frees the memory of all freelists, when the device is closed. */
void siw_verbs_free_freelist_memory(struct siw_context *ctx);

/* ---- verbs_mw.c ------------------------------------------------------------------------------ */
/* Allows binding windows to the region, if its access has SIW_ACCESS_MW_BIND. */
void siw_verbs_mw_allow(struct siw_region *region);
/*
 * Before the region ends. 0: no window is or can be bound to it, and old bindings are not in use
 * any more; -EBUSY: a window is bound. No lock held.
 */
int siw_verbs_mw_forbid(struct siw_region *region);

/* ---- verbs_progress.c ------------------------------------------------------------------------ */
/* Microseconds until a deadline that lies after now; -1: there is none. */
static inline int64_t siw_verbs_left_us(uint64_t now, uint64_t deadline)
{
	return deadline == UINT64_MAX ? -1 : (int64_t)((deadline - now + 999) / 1000);
}
/* The same, but not beyond the next timer. */
int64_t siw_verbs_sleep_us(struct siw_context *ctx, uint64_t now, uint64_t deadline);

/* ---- verbs_freelist.c ------------------------------------------------------------------------ */
void siw_verbs_freelist_init(struct siw_freelist *list);

#endif
