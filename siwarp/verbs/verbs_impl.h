/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* verbs/verbs_impl.h - what the files of this folder do for each other; private to it. */
#ifndef SIW_VERBS_IMPL_H
#define SIW_VERBS_IMPL_H

#include "verbs/verbs_objects.h"

/*
 * How many messages to ask a QP's socket for at its next turn, after n came. Asking once more than
 * there are costs a system call that a lone message's latency would feel, so a turn begins with one
 * and doubles while they keep coming. Who stops before the socket is empty is handed out again: a
 * poller that moved something does not sleep. Long messages end a turn sooner (SIW_TURN_OCTETS, some 10
 * microseconds of copying): other queue pairs wait.
 */
#define SIW_TURN_OCTETS 65536

static inline void siw_verbs_next_burst(struct siw_qp *qp, int n)
{
	int max = (int)siw_settings()->budget;

	if (n < qp->burst)
		qp->burst = 1;
	else
		qp->burst = qp->burst * 2 < max ? qp->burst * 2 : max;
}

/* ---- verbs_exit.c ---- */
/* From here on exit() ends connections before the process ends: 0 or -ENOMEM. */
int siw_verbs_exit_watch(void);

/* ---- verbs_fork.c ---- */
/* In a forked child, for what its parent had opened: calls say ESTALE, before they take a lock. */
static inline bool siw_verbs_inherited(const struct siw_context *ctx)
{
	return __builtin_expect(ctx->inherited, 0);
}
/* From here on a fork is noticed: 0 or -ENOMEM. */
int siw_verbs_fork_watch(struct siw_context *ctx);
void siw_verbs_fork_unwatch(struct siw_context *ctx);
/* Every open device; none is opened or closed meanwhile. */
void siw_verbs_context_each(void (*call)(struct siw_context *ctx, uint64_t arg), uint64_t arg);
/* A context that was closed, to be used again, or NULL; and one that is closed now. */
struct siw_context *siw_verbs_context_take(void);
void siw_verbs_context_keep(struct siw_context *ctx);

/* What a region is bound to for this QP alone: odd, so that it is no object's address. */
static inline const void *siw_verbs_owner(const struct siw_qp *qp)
{
	return (const void *)(uintptr_t)(qp->serial << 1 | 1);
}

/* ---- verbs_progress.c ---- */
/* One turn of the crank: the number of messages moved. progress held. */
int siw_verbs_pass(struct siw_context *ctx);
/* Counts as polling, and turns the crank if nobody else does. */
void siw_verbs_poll(struct siw_context *ctx);
/*
 * Until ready(arg) gives non-zero: that; -EAGAIN at the time's end; -EINTR. The caller's thread
 * moves the traffic. fd becomes readable when another thread made it ready.
 */
int siw_verbs_wait(struct siw_context *ctx, int (*ready)(void *arg), void *arg, int fd,
		   int timeout_ms);
int siw_verbs_thread_start(struct siw_context *ctx);
void siw_verbs_thread_stop(struct siw_context *ctx);
/* Something is left to send: the next passes go on with it. */
void siw_verbs_mark_unsent(struct siw_qp *qp);
/* From outside a pass: whoever sleeps must make one. */
void siw_verbs_nudge(struct siw_context *ctx);
void siw_verbs_forget_unsent(struct siw_qp *qp);
/*
 * Puts it on the list of what is ticked: after 5 ms, then a quarter as often each time, and at by_ns if that is
 * not 0. Again: from 5 ms on anew. _at: at by_ns alone. _del takes it off. All may be said twice. progress
 * held.
 */
void siw_verbs_timed_add(struct siw_context *ctx, struct siw_timed *timed, uint64_t by_ns);
void siw_verbs_timed_at(struct siw_context *ctx, struct siw_timed *timed, uint64_t by_ns);
void siw_verbs_timed_del(struct siw_context *ctx, struct siw_timed *timed);

/* ---- verbs_async.c ---- */
int siw_verbs_async_open(struct siw_context *ctx);
void siw_verbs_async_close(struct siw_context *ctx);
void siw_verbs_async_init(struct siw_async *async, struct siw_context *ctx, void *object);
/*
 * Raises an event (enum siw_event_type). It cannot fail, takes only a leaf lock, and may be called
 * with any lock held. Raised again before anybody took it, it stays one.
 */
void siw_verbs_async_raise(struct siw_async *async, int type);
void siw_verbs_async_qp(struct siw_qp *qp, int type);
/* Which event (enum siw_event_type) tells that a peer caused this error. */
int siw_verbs_async_kind(const struct siw_wire_err *err);
/* A QP went to ERR by itself: raises what no completion tells, if there is something. */
void siw_verbs_async_failure(struct siw_qp *qp, enum siw_closing how, int status,
			     const struct siw_wire_err *err);
/*
 * The object goes: drops its events that nobody took and waits until those taken are acknowledged.
 * Nobody may raise one any more; no lock held.
 */
void siw_verbs_async_leave(struct siw_async *async);

/* A message came: in RTR, the first one is news. progress held. */
static inline void siw_verbs_heard(struct siw_qp *qp)
{
	if (__builtin_expect(atomic_load_explicit(&qp->state, memory_order_relaxed) == SIW_QPS_RTR,
			     0) &&
	    !qp->heard) {
		qp->heard = true;
		siw_verbs_async_qp(qp, SIW_EVENT_COMM_EST);
	}
}

/* ---- verbs_port.c ---- */
int siw_verbs_port_open(struct siw_context *ctx);
void siw_verbs_port_close(struct siw_context *ctx);

/* ---- verbs_cq.c ---- */
/* A completion of the QP's oldest send (send_lock held) or of any receive (progress held). */
void siw_verbs_complete(struct siw_qp *qp, struct siw_cq *cq, const struct siw_wc *wc,
			const struct siw_addr *source, bool solicited);
void siw_verbs_cq_purge(struct siw_cq *cq, const struct siw_qp *qp);
/* The QP's slots are all free: what is in the queue of it frees none any more. */
void siw_verbs_cq_rebase(struct siw_cq *cq, const struct siw_qp *qp);
/* A queue of the device's was overrun: its QPs go to ERR. progress held. */
void siw_verbs_cq_fail_qps(struct siw_context *ctx);

/* ---- verbs_busy.c; no lock held ---- */
/* Whether a send request that is not out yet, or a Read without its response, uses this memory. */
bool siw_verbs_key_in_use(struct siw_context *ctx, uint32_t lkey);
/* Whether a send to it is not out yet. */
bool siw_verbs_ah_in_use(struct siw_ah *ah);

/* ---- verbs_srq.c ---- */
/* Receives of it may have been taken: raises SRQ_LIMIT_REACHED when too few are left. progress. */
void siw_verbs_srq_taken(struct siw_srq *srq);

/* ---- verbs_ud.c ---- */
int siw_verbs_ud_open(struct siw_qp *qp, const struct siw_addr *addr, int fd);
/* On the socket of another one: -EINVAL it has none, or another CRC, -ENOSPC it is full. progress held. */
int siw_verbs_ud_share(struct siw_qp *qp, const struct siw_qp *with);
void siw_verbs_ud_receive(struct siw_qp *qp);
/* wait: into the ring, for siw_verbs_ud_run. send_lock held, as for all below. */
int siw_verbs_ud_post(struct siw_qp *qp, const struct siw_send_wr *wr, bool wait);
/*
 * Whether a post may wait for others: it is not the first since the last poll, and somebody looks
 * soon: whoever polls, or the progress thread at its next nap's end.
 */
bool siw_verbs_ud_may_wait(struct siw_qp *qp);
/* Gets out what waits for company, as far as the socket takes it at once. send_lock not held. */
void siw_verbs_ud_finish(struct siw_qp *qp);
/* Whether some of the oldest request's datagrams are out and some are not. send_lock held. */
bool siw_verbs_ud_half_out(struct siw_qp *qp);
/* Sends what is queued. send_lock held; so for rc and rd. */
enum siw_run siw_verbs_ud_run(struct siw_qp *qp);
/*
 * The same in a pass, of that number. Where others share the socket: not all of it, and nothing behind
 * one that found no room in this pass; or room would be whosever it is when it comes. progress held, too.
 */
enum siw_run siw_verbs_ud_turn(struct siw_qp *qp, uint64_t turn);

/* ---- verbs_errq.c; progress held ---- */
/*
 * A message that came is wrong (BAD_MSG, or BAD_RECV of one too long): notes it, tells the sender within
 * the limits, and ends the QP if its policy has it so.
 */
void siw_verbs_err_found(struct siw_qp *qp, const struct siw_rdmap_event *event);
/* A peer reached for memory that it may not (BAD_ACCESS): notes it, whatever the policy, and nothing else. */
void siw_verbs_err_access(struct siw_qp *qp, const struct siw_rdmap_event *event);
/* What the policy comes to may have changed: the QP is new, or the first or last group's member. */
void siw_verbs_err_policy(struct siw_qp *qp);
/* A peer's error message came: notes it, if it is about something sent. */
void siw_verbs_err_told(struct siw_qp *qp, const struct siw_rdmap_event *event);

/* RD, where the sender is told by its stream: notes it, and ends the QP if its policy has it so. */
void siw_verbs_err_refused(struct siw_qp *qp, const struct siw_rdmap_event *event);
/* RD: a peer refused a request that is complete. */
void siw_verbs_err_reported(struct siw_qp *qp, const struct siw_rdmap_event *event);

/* ---- verbs_errgate.c; progress held ---- */
/* Whether one more error message may go to this address; counted as sent if so. */
bool siw_verbs_errgate_pass(struct siw_context *ctx, const struct siw_addr *to);
/* ---- verbs_record.c ---- */
/* Sends on with a Write-Record: as siw_rdmap_record_send. send_lock held. */
int siw_verbs_record_send(struct siw_qp *qp, struct siw_wqe *wqe);
/* Tells of those that are over, and sees to it that the others are looked at in time. progress held. */
void siw_verbs_record_look(struct siw_qp *qp, uint64_t now_ns);
void siw_verbs_record_tick(struct siw_timed *timed, uint64_t now_ns);
/* RD: one came, of that number. progress held. */
void siw_verbs_record_came(struct siw_qp *qp, uint64_t number);
/* A completion of one was polled. */
void siw_verbs_record_polled(struct siw_qp *qp);
/* Forgets those in process. progress held. */
void siw_verbs_record_clear(struct siw_qp *qp);

/* ---- verbs_uc.c ---- */
int siw_verbs_uc_open(struct siw_qp *qp, const struct siw_addr *addr, int fd);
void siw_verbs_uc_close(struct siw_qp *qp);
bool siw_verbs_uc_mtu_valid(int path_mtu);
/*
 * What must be done before the step of this event: to RTR, the peer's address is taken. 0; -EINVAL it is
 * not given; -errno there is no way to it. progress held.
 */
int siw_verbs_uc_prepare(struct siw_qp *qp, int event, const struct siw_qp_attr *attr, int mask);
void siw_verbs_uc_receive(struct siw_qp *qp);
void siw_verbs_uc_query(const struct siw_qp *qp, struct siw_qp_attr *attr);
/* send_lock held. */
int siw_verbs_uc_post(struct siw_qp *qp, const struct siw_send_wr *wr);
enum siw_run siw_verbs_uc_run(struct siw_qp *qp);

/* A RECV or BAD_RECV: completes its receive. progress held, not send_lock. */
void siw_verbs_ud_received(struct siw_qp *qp, const struct siw_rdmap_event *ev);

/* ---- verbs_mcast.c ---- */
/* A send to a group was posted: 0 or -errno. send_lock held. */
int siw_verbs_mcast_sender(struct siw_qp *qp);
/* ---- verbs_rd.c ---- */
/* Opens or, with fd, replaces its endpoint: as siw_verbs_ud_open. progress held. */
int siw_verbs_rd_open(struct siw_qp *qp, const struct siw_addr *addr, int fd);
/* What its state has it do with what comes. progress held. */
void siw_verbs_rd_receive(struct siw_qp *qp);
void siw_verbs_rd_close(struct siw_qp *qp);
/* The process ends: to ERR without a word, and closed. */
void siw_verbs_rd_leave(struct siw_qp *qp);
/* All slots of its ring are free: they are in no order here. */
void siw_verbs_rd_slots(struct siw_qp *qp);
/* send_lock held, for these. */
int siw_verbs_rd_post(struct siw_qp *qp, const struct siw_send_wr *wr);
enum siw_run siw_verbs_rd_run(struct siw_qp *qp);
/* Whatever peers have requests, there may be something to begin. */
void siw_verbs_rd_resume(struct siw_qp *qp);
/* Ends every request: with WR_FLUSH_ERR, or without a word; and what peers are at. progress held, too. */
void siw_verbs_rd_flush(struct siw_qp *qp, bool tell);
/* A receive was posted that some message waits for. progress held. */
void siw_verbs_rd_look(struct siw_qp *qp);
/* A message of this end's broke off in its middle: its peer is told, and both begin anew. progress held. */
void siw_verbs_rd_broken(struct siw_qp *qp);
bool siw_verbs_rd_uses_key(struct siw_qp *qp, uint32_t lkey);

/* ---- verbs_rc.c ---- */
/* How the request behind an error of the peer's completes. */
enum siw_wc_status siw_verbs_status_of(const struct siw_wire_err *err);
/* Whether the header that the peer's error quotes is of this request. */
bool siw_verbs_is_quoted(const struct siw_wqe *wqe, const struct siw_rdmap_event *ev);
int siw_verbs_rc_post(struct siw_qp *qp, const struct siw_send_wr *wr);
enum siw_run siw_verbs_rc_run(struct siw_qp *qp);
/* The request at sq_next has happened at this end alone. send_lock held. */
void siw_verbs_rc_did_local(struct siw_qp *qp);
/* In SQD: sees to it that what was begun completes. send_lock held. */
void siw_verbs_rc_drain(struct siw_qp *qp);
int siw_verbs_rc_serve(struct siw_pollee *self);
/* Sends what is queued, whatever the type. send_lock held. */
static inline enum siw_run siw_verbs_run(struct siw_qp *qp)
{
	if (qp->type == SIW_QPT_UD)
		return siw_verbs_ud_run(qp);
	if (__builtin_expect(qp->type == SIW_QPT_RC, 1))
		return siw_verbs_rc_run(qp);
	return qp->type == SIW_QPT_UC ? siw_verbs_uc_run(qp) : siw_verbs_rd_run(qp);
}
/* Binds a socket for the type, or takes the caller's. progress held. */
static inline int siw_verbs_open_socket(struct siw_qp *qp, const struct siw_addr *addr, int fd)
{
	return qp->type == SIW_QPT_UC	? siw_verbs_uc_open(qp, addr, fd)
	       : qp->type == SIW_QPT_RD ? siw_verbs_rd_open(qp, addr, fd)
					: siw_verbs_ud_open(qp, addr, fd);
}

/* ---- verbs_rc_close.c; all with progress held and send_lock not ---- */
/* An error or the peer ended the stream: to ERR by the table, then as siw_verbs_rc_close. */
void siw_verbs_rc_fail(struct siw_qp *qp, enum siw_closing how, int status,
		       const struct siw_wire_err *err);
/*
 * The QP is in ERR: gets what was begun (and a Terminate) out, then flushes and lets go of the
 * stream.
 */
void siw_verbs_rc_close(struct siw_qp *qp, enum siw_closing how);
/* A request or a response of this end's own could not be sent. */
void siw_verbs_rc_broken(struct siw_qp *qp);
/* Goes on with it. */
void siw_verbs_rc_close_step(struct siw_qp *qp);
void siw_verbs_rc_tick(struct siw_timed *timed, uint64_t now_ns);
/* Awaits the peer's end of a stream that was shut, with nobody's help. progress held. 0, -ENOMEM. */
int siw_verbs_linger(struct siw_context *ctx, struct siw_rdmap_stream *stream);
/*
 * Before this end closes: takes in what has come already, within bounds. The peer may be asking
 * whether its last message is here.
 */
void siw_verbs_rc_settle(struct siw_qp *qp);
/* Ends the stream with a reset: what TCP has not taken must not be sent any more. */
void siw_verbs_rc_abort(struct siw_qp *qp);
/* Lets go of the stream at once; what TCP has taken still reaches the peer. */
void siw_verbs_rc_release(struct siw_qp *qp);

/* ---- verbs_mr.c ---- */
/* Takes one of max: whether there was one. */
bool siw_verbs_take_one(_Atomic uint32_t *count, uint32_t max);
/*
 * The STag is dead already; streams whose answers to Reads still refer to its memory cannot go on. When
 * this returns, nobody else does, either. No lock held; _locked: progress held.
 */
void siw_verbs_revoke_stag(struct siw_context *ctx, uint32_t stag);
void siw_verbs_revoke_stag_locked(struct siw_context *ctx, uint32_t stag,
				  const struct siw_qp *except);
/* The device is closed. */
void siw_verbs_free_kept_memory(struct siw_context *ctx);

/* ---- verbs_mw.c ---- */
/* From here on windows may be bound to the region, if its access says so. */
void siw_verbs_mw_allow(struct siw_region *region);
/*
 * Before the region ends: 0, no window is bound to it any more or will be, and what was is over; -EBUSY.
 * No lock held.
 */
int siw_verbs_mw_forbid(struct siw_region *region);
/*
 * Whether a request happens at this end alone: BIND_MW or LOCAL_INV. Both stand side by side in enum
 * siw_wr_opcode.
 */
static inline bool siw_verbs_is_local(int opcode)
{
	return (unsigned int)opcode - SIW_WR_LOCAL_INV <= SIW_WR_BIND_MW - SIW_WR_LOCAL_INV;
}
/* Puts one into the send ring; type: the windows that may be bound. send_lock held, for all below. */
int siw_verbs_mw_post(struct siw_qp *qp, const struct siw_send_wr *wr, int type);
/*
 * Does what it says: 0; -EINPROGRESS: it has happened, but before it completes siw_verbs_mw_settle is due, or
 * the stream must be reset (qp->cut); or an enum siw_wc_status.
 */
int siw_verbs_mw_begin(struct siw_qp *qp, struct siw_wqe *wqe);
/* A posted bind will not happen. */
void siw_verbs_mw_drop(struct siw_qp *qp, struct siw_wqe *wqe);
/*
 * Ends what qp->revoke says, if it is due. last: the QP's own stream is over. progress held, and send_lock
 * not.
 */
void siw_verbs_mw_settle(struct siw_qp *qp, bool last);

/* ---- verbs_kept.c ---- */
void siw_verbs_kept_init(struct siw_kept *kept);
/* The link of the object that was destroyed first, or NULL. */
struct siw_link *siw_verbs_kept_take(struct siw_kept *kept);
void siw_verbs_kept_give(struct siw_kept *kept, struct siw_link *link);
/* ---- verbs_rnr.c; progress held ---- */
/* Posting a receive is news from now on, or not any more. */
void siw_verbs_rnr_parked(struct siw_qp *qp, bool parked);
/* A Send found no receive. */
void siw_verbs_rnr_begin(struct siw_qp *qp);
/* Nobody waits any more. */
void siw_verbs_rnr_end(struct siw_qp *qp);
/* What waits may have got its receive, or waited long enough. */
void siw_verbs_rnr_look(struct siw_qp *qp, uint64_t now_ns);

/* ---- verbs_post.c ---- */
struct siw_wqe *siw_verbs_wqe(struct siw_qp *qp, uint32_t index);
/* Whether every slot of the send queue waits for a completion to be polled. */
static inline bool siw_verbs_sq_full(struct siw_qp *qp)
{
	return qp->sq_tail - atomic_load_explicit(&qp->sq_freed, memory_order_relaxed) >
	       qp->sq_mask;
}
/* Makes the ring: 0 or -ENOMEM. UD: with the first request that goes there. */
int siw_verbs_sq_make(struct siw_qp *qp);
/* Copies a checked request into the ring: the WQE, or NULL when it is full. */
struct siw_wqe *siw_verbs_wqe_put(struct siw_qp *qp, const struct siw_send_wr *wr, uint64_t length);
/* As it, but the WQE is given, and RD's slots are not in order. */
void siw_verbs_wqe_fill(struct siw_qp *qp, struct siw_wqe *wqe, const struct siw_send_wr *wr,
			uint64_t length);
/* Completes a WQE (if it is signalled or failed); peer may be NULL. */
void siw_verbs_wqe_complete(struct siw_qp *qp, struct siw_wqe *wqe, int status, uint32_t vendor_err,
			    const struct siw_addr *peer);
/* Completes the oldest WQE (if it is signalled or failed) and frees its slot. */
void siw_verbs_wqe_finish(struct siw_qp *qp, struct siw_wqe *wqe, int status, uint32_t vendor_err);
/*
 * A send was put into the ring of a QP in ERR: completes it, unless a flush of older ones is due.
 * send_lock held.
 */
void siw_verbs_flush_late_send(struct siw_qp *qp);
/* Completes every send and receive with WR_FLUSH_ERR. progress held. */
void siw_verbs_flush(struct siw_qp *qp);
/* One receive with WR_FLUSH_ERR. */
void siw_verbs_flush_recv(struct siw_qp *qp, uint64_t cookie);
/* Drops them without a word. progress held. */
void siw_verbs_forget(struct siw_qp *qp);

/* ---- verbs_op.c ---- */
enum siw_op_flags {
	SIW_OP_KNOWN = 1,
	SIW_OP_SENDS = 2, /* it takes a receive of the peer's: an MSN of queue 0 */
	SIW_OP_ASKS = 4,  /* it is one of the ORD and complete with its response */
	SIW_OP_ATOMIC = 8,
	SIW_OP_WRITES = 16, /* to the peer's memory: a Terminate may quote STag and offset */
	SIW_OP_IMM = 32,
	SIW_OP_PRIVATE = 64, /* a message of siwarp's own */
	SIW_OP_RECORD = 128, /* Write-Record, of UD and RD */
};
/* Of an opcode (enum siw_wr_opcode): set of enum siw_op_flags, 0: there is no such. */
uint8_t siw_verbs_op_flags(int wr_opcode);
/* Whether it is complete when something came back, and not before. */
static inline bool siw_verbs_asks(const struct siw_wqe *wqe)
{
	const uint32_t asks = 1u << SIW_WR_RDMA_READ | 1u << SIW_WR_ATOMIC_CMP_AND_SWP |
			      1u << SIW_WR_ATOMIC_FETCH_AND_ADD |
			      1u << SIW_WR_MASKED_ATOMIC_CMP_AND_SWP |
			      1u << SIW_WR_MASKED_ATOMIC_FETCH_AND_ADD;

	return asks >> (wqe->opcode & 31) & 1; /* RDMA_WRITE_RECORD counts as RDMA_WRITE */
}
/* enum siw_wc_opcode of a known one. */
int siw_verbs_op_wc(int wr_opcode);
/* The checks at posting, all but those of its list of elements: octets, or -EINVAL. */
int64_t siw_verbs_op_check(const struct siw_qp *qp, const struct siw_send_wr *wr);
/* What a checked request says of the peer's memory, into its WQE. */
void siw_verbs_op_put(struct siw_wqe *wqe, const struct siw_send_wr *wr);
/* The WQE of a Write-Record as RDMAP's operation. */
void siw_verbs_op_record(struct siw_wqe *wqe, struct siw_rdmap_op *op);
/* Any other; index is its cookie. */
void siw_verbs_op_make(struct siw_wqe *wqe, uint32_t index, struct siw_rdmap_op *op);

/* ---- verbs_qp.c ---- */
/* Whether a QP of the device has this number. progress held. */
bool siw_verbs_qpn_taken(const struct siw_context *ctx, uint32_t qpn);
/* Does an event's step by the table, actions aside: the action, or -EINVAL. progress held. */
int siw_verbs_qp_step(struct siw_qp *qp, int event);
/* UD: a request failed by this end's own mistake: to SQE by the table. send_lock held. */
void siw_verbs_qp_send_failed(struct siw_qp *qp);
/* In SQD: tells, once, when everything begun is complete. send_lock held. */
void siw_verbs_qp_drained(struct siw_qp *qp);
/* Something that is not the peer's ends the QP: to ERR by the table. progress held. */
void siw_verbs_qp_fail(struct siw_qp *qp, int status);
/* UD: something ends it, and this event (enum siw_event_type) tells. Likewise. */
void siw_verbs_qp_abort(struct siw_qp *qp, int type);

/* ---- verbs_conn.c ---- */
void siw_verbs_conn_established(struct siw_verbs_conn *conn);
/* Why the stream ends; conn_over tells it. */
void siw_verbs_conn_cause(struct siw_verbs_conn *conn, int status, const struct siw_wire_err *err);
/* The QP has let go of the stream: DISCONNECTED. */
void siw_verbs_conn_over(struct siw_verbs_conn *conn);

#endif
