/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* device/device_impl.h - functions shared by the files of this folder; private to device/. */
#ifndef SIW_DEVICE_IMPL_H
#define SIW_DEVICE_IMPL_H

#include "device/device_objects.h"

/* ---- device_exit.c --------------------------------------------------------------------------- */
/*
 * Registers the exit handler through which exit() closes connections gracefully. Returns 0 or
 * -ENOMEM.
 */
int siw_device_register_exit_handler(void);

/* ---- device_fork.c --------------------------------------------------------------------------- */
/*
 * Registers the context, so that fork() marks the child's copy as inherited. Returns 0 or -ENOMEM.
 */
int siw_device_register_for_fork(struct siw_context *ctx);
void siw_device_unregister_for_fork(struct siw_context *ctx);
/* Calls `call` for every open device. No device is opened or closed meanwhile. */
void siw_device_for_each_open_context(void (*call)(struct siw_context *ctx, uint64_t arg),
				      uint64_t arg);
/*
 * siw_device_take_context_for_reuse() returns a closed context for reuse, or NULL.
 * siw_device_keep_context_for_reuse() stores a closed context for reuse.
 */
struct siw_context *siw_device_take_context_for_reuse(void);
void siw_device_keep_context_for_reuse(struct siw_context *ctx);
/*
 * Stores a context that was closed by force. The context and the structs of its children are never
 * reused.
 */
void siw_device_keep_force_closed_context(struct siw_context *ctx);

/* ---- device_progress.c ----------------------------------------------------------------------- */
/*
 * Makes one progress round for a thread that may make no further round. Wakes a sleeping thread if
 * the round left work.
 */
void siw_device_progress_once_and_wake(struct siw_lane *lane);
/*
 * Sends the posted requests that are delayed for a batch or wait for their turn. The next poll
 * would send them, but the program may not poll again soon. polls: the caller is a poll; it does
 * nothing if another thread is making progress and no posts are delayed for a batch.
 */
void siw_device_send_delayed_posts(struct siw_lane *lane, bool polls);
/*
 * Does what siw_device_send_delayed_posts() does, for all lanes of a device. The caller may sleep
 * next in a way of its own, such as its own epoll_wait().
 */
void siw_device_send_delayed_posts_of_all_lanes(struct siw_context *ctx);
/*
 * Records that a poll returned completions without a progress round. all: the poll filled its array
 * of completions, so the caller will poll again soon.
 */
void siw_device_note_poll_without_progress(struct siw_lane *lane, bool all);
/*
 * Counts a poll for a wait that found its event queued already, so that the progress thread leaves
 * the lane to the thread that takes the events. One in SIW_POLLS_PER_BURST calls makes a round.
 */
void siw_device_count_poll_for_taken_event(struct siw_lane *lane);
/*
 * Gives a turn to each QP that was marked unsent. Returns how many QPs sent something. Progress
 * lock held.
 */
int siw_device_send_unsent_qps(struct siw_lane *lane);

/*
 * Makes progress rounds on a lane for an event loop, until a round leaves nothing to do, the CQ
 * holds at least max completions, or a few rounds have been made. Arms the poller. Sets *due_ns to
 * the time of the lane's next timer, or to 0 if there is none. Returns 0, or -errno if the poller
 * cannot be armed or the device was closed by force.
 */
int siw_device_make_rounds_for_event_loop(struct siw_lane *lane, const struct siw_cq *cq, int max,
					  uint64_t *due_ns);

/* ---- device_cq.c ----------------------------------------------------------------------------- */
/*
 * Removes up to max completions from the CQ, as siw_poll_cq_instances() does, without a progress
 * round.
 */
int siw_device_cq_take_completions(struct siw_cq *cq, int max, struct siw_wc *wc,
				   struct siw_addr *sources, struct siw_addr *dests,
				   uint64_t *instances);

/* ---- device_lane.c --------------------------------------------------------------------------- */
/* Initializes a new, zeroed lane of the device. The lane has no poller yet. */
void siw_device_lane_init(struct siw_lane *lane, struct siw_context *ctx, unsigned int index);
/* Opens lane 0 when the device is opened. Returns 0, -ENOMEM or another -errno of the poller. */
int siw_device_lane0_open(struct siw_context *ctx);
/*
 * Called when the device is being closed by force: waits until a lane that is being opened is open.
 * No lane is opened afterwards.
 */
void siw_device_await_opening_of_lanes(struct siw_context *ctx);
/*
 * Closes all lanes, and the watch of the device's interface, which may be NULL. Another thread may
 * be making progress in a late poll; after this function such a poll finds no poller.
 */
void siw_device_lanes_close(struct siw_context *ctx, struct siw_llp_watch *watch);
/* Returns whether a thread waits on a lane of the device (siw_device_wait). */
bool siw_device_has_waiters(const struct siw_context *ctx);
/*
 * Chooses the lane of a CQ on which receives complete, and opens it if necessary. comp_vector: the
 * number of the lane, or 0 for the lane with the fewest such CQs. siw_device_cq_lane_release() is
 * called when the CQ is destroyed. Returns 0; -ESTALE if the device is being closed by force;
 * -ENOMEM or another -errno of the poller.
 */
int siw_device_cq_lane_choose(struct siw_context *ctx, unsigned int comp_vector,
			      struct siw_lane **out);
void siw_device_cq_lane_release(struct siw_lane *lane);

/* ---- device_thread.c ------------------------------------------------------------------------- */
int siw_device_thread_start(struct siw_context *ctx);
void siw_device_thread_stop(struct siw_context *ctx);

/* ---- device_watchdog.c ----------------------------------------------------------------------- */
/* Requests the shortest scheduler time slice that the kernel allows, for the calling thread. */
void siw_device_request_short_time_slice(void);
/* Called by the progress thread after a wake-up in which it handled short one-sided messages. */
void siw_device_watchdogs_note_one_sided_messages(struct siw_context *ctx);
/* Ends the watchdog threads. Called after the progress thread has ended. */
void siw_device_watchdogs_stop(struct siw_context *ctx);

/* ---- device_wait.c --------------------------------------------------------------------------- */
/*
 * Returns whether this thread sleeps inside siw_device_wait(). Never true in a real process. In a
 * simulated process, a task that sleeps makes the progress rounds of other devices; the events that
 * these rounds cause must wake the task, because it does not look for events before it wakes up.
 */
bool siw_device_wait_is_asleep(void);

/* ---- device_channel.c; all for a CQ that has a channel --------------------------------------- */
/* Queues a completion event: a completion was added to the CQ while the CQ was armed. */
void siw_device_comp_channel_raise_cq_event(struct siw_cq *cq);
/*
 * Adds or removes lanes of a CQ in its channel's set of lanes: the lanes of `before` become those
 * of `after` (bit masks). Wakes the threads that wait on the channel, which must wait on new lanes.
 */
void siw_device_comp_channel_change_lanes(struct siw_comp_channel *ch, uint32_t before,
					  uint32_t after);
/* Removes the CQ from its channel, after the user has acknowledged all its events. */
void siw_device_comp_channel_detach_cq(struct siw_cq *cq);

/* ---- device_exit.c --------------------------------------------------------------------------- */
/*
 * Closes the device's connections gracefully, so that completed requests reach the peers; returns
 * at deadline_ns at the latest.
 */
void siw_device_shutdown_connections(struct siw_context *ctx, uint64_t deadline_ns);

/* ---- device_async.c -------------------------------------------------------------------------- */
int siw_device_open_async_event_queue(struct siw_context *ctx);
void siw_device_close_async_event_queue(struct siw_context *ctx);
/* Reads the first unread event. Returns whether there was one. */
bool siw_device_take_async_event(struct siw_context *ctx, struct siw_async_event *event);

/* ---- device_port.c --------------------------------------------------------------------------- */
/*
 * Lists all interfaces that have an address. Returns their number and sets *out, which the caller
 * frees; or -errno.
 */
int siw_device_list_host_interfaces(struct siw_llp_interface **out);
int siw_device_watch_interface(struct siw_context *ctx);
/* Copies the state of the interface that the program sees. Any lock may be held. */
void siw_device_get_info_shown_to_program(struct siw_context *ctx, struct siw_device_info *info);
/*
 * Notifies the lane's address followers of a change. The last lane to do so shows the change to the
 * program. Called with the lock of the lane held.
 */
void siw_device_notify_objects_of_addr_change(struct siw_lane *lane);

/* ---- device_busy.c; called without locks ----------------------------------------------------- */
/*
 * Returns whether a send that the socket has not accepted, or a Read without a response, uses this
 * memory.
 */
bool siw_device_is_lkey_in_use(struct siw_context *ctx, uint32_t lkey);
/* Returns whether a send that the socket has not accepted uses this address handle. */
bool siw_device_is_ah_in_use(struct siw_ah *ah);

/*
 * Called after an STag was invalidated. Resets the streams that still have to send a Read Response
 * from the STag's memory. On return, no other thread uses that memory.
 */
void siw_device_reset_streams_using_stag(struct siw_context *ctx, uint32_t stag);
/*
 * Does what siw_device_reset_streams_using_stag() does, for the streams of one lane except that of
 * the QP `except`. Called with the lock of the lane held.
 */
void siw_device_reset_streams_using_stag_in_lane(struct siw_lane *lane, uint32_t stag,
						 const struct siw_qp *except);

/* ---- device_mr.c ----------------------------------------------------------------------------- */
/* Converts a set of enum siw_access_flags to one of enum siw_mem_right. */
static inline uint32_t siw_device_mem_rights_of_access(int access)
{
	return (uint32_t)access &
	       (SIW_MEM_LOCAL_WRITE | SIW_MEM_REMOTE_WRITE | SIW_MEM_REMOTE_READ |
		SIW_MEM_REMOTE_ATOMIC | SIW_MEM_REMOTE_INVALIDATE);
}
/* Frees the memory in all freelists when the device is closed. */
void siw_device_free_freelist_memory(struct siw_context *ctx);

/* ---- device_mw.c ----------------------------------------------------------------------------- */
/* Allows binding windows to the region if its access flags contain SIW_ACCESS_MW_BIND. */
void siw_device_region_allow_mw_binds(struct siw_region *region);
/*
 * Called before the region is destroyed. Returns 0: no window is or can be bound to the region, and
 * previous bindings are no longer used; -EBUSY: a window is bound. Called without locks.
 */
int siw_device_region_forbid_mw_binds(struct siw_region *region);

/*
 * Resets the streams of the lane that still use replaced bindings of windows. Called with the lock
 * of the lane held, when SIW_LANE_REVOKE_BINDINGS was left for the lane.
 */
void siw_device_mw_revoke_replaced_bindings(struct siw_lane *lane);
/*
 * Continues the binds of the lane's queue pairs: the work SIW_LANE_CONTINUE_BINDS. Called in a
 * progress round, with the lock of the lane held.
 */
void siw_device_mw_continue_binds(struct siw_lane *lane);

/* ---- device_progress.c ----------------------------------------------------------------------- */
/* Returns the microseconds from now until a later deadline; -1: no deadline. */
static inline int64_t siw_device_us_until_deadline(uint64_t now, uint64_t deadline)
{
	return deadline == UINT64_MAX ? -1 : (int64_t)((deadline - now + 999) / 1000);
}
/*
 * Returns the microseconds until the deadline or the next timer, whichever is earlier; -1: neither
 * exists.
 */
int64_t siw_device_sleep_duration_us(struct siw_lane *lane, uint64_t now, uint64_t deadline);

/* ---- device_child.c -------------------------------------------------------------------------- */
void siw_device_freelist_init(struct siw_freelist *list);

#endif
