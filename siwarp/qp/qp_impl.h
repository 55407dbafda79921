/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_impl.h - what the files of this folder share. The sections are in call order: a file calls
 * only those above its own section here; code of one type is called only through struct
 * siw_qp_class.
 */
#ifndef SIW_QP_IMPL_H
#define SIW_QP_IMPL_H

#include "base/clock.h"
#include "qp/qp_objects.h"
#include "rdmap/rdmap_record.h"

/* ---- qp_op.c --------------------------------------------------------------------------------- */
enum siw_op_flags {
	SIW_OP_KNOWN = 1,
	SIW_OP_SENDS = 2,	    /* consumes a receive of the peer: has an MSN of queue 0 */
	SIW_OP_AWAITS_RESPONSE = 4, /* counts towards ORD; its response completes it */
	SIW_OP_ATOMIC = 8,
	SIW_OP_WRITES = 16, /* into the peer's memory: a Terminate may quote its STag and offset */
	SIW_OP_IMM = 32,
	SIW_OP_PRIVATE = 64, /* uses a siwarp-private message */
	SIW_OP_RECORD = 128, /* a Write-Record, on UD and RD */
};
/* Set of enum siw_op_flags of an opcode (enum siw_wr_opcode); 0: no such opcode. */
uint8_t siw_qp_op_flags(int wr_opcode);
/* Whether a response of the peer completes it. */
static inline bool siw_qp_awaits_response(const struct siw_wqe *wqe)
{
	const uint32_t await = 1u << SIW_WR_RDMA_READ | 1u << SIW_WR_ATOMIC_CMP_AND_SWP |
			       1u << SIW_WR_ATOMIC_FETCH_AND_ADD |
			       1u << SIW_WR_MASKED_ATOMIC_CMP_AND_SWP |
			       1u << SIW_WR_MASKED_ATOMIC_FETCH_AND_ADD;

	/* & 31 makes RDMA_WRITE_RECORD count as RDMA_WRITE */
	return await >> (wqe->opcode & 31) & 1;
}
/* enum siw_wc_opcode of a known opcode. */
int siw_qp_op_wc(int wr_opcode);
/*
 * Refusals that several types share; each returns -errno and records its reason: an opcode that the
 * type does not have, the QP's state, a full send queue, a call for other types. types: such as "UD
 * or RD".
 */
int siw_qp_refuse_opcode(const struct siw_wq *wq, int opcode);
int siw_qp_refuse_send_state(const struct siw_wq *wq, int state);
int siw_qp_refuse_slot(const struct siw_wq *wq);
int siw_qp_not_of(const struct siw_wq *wq, const char *types);
static inline uint64_t siw_qp_octets(const struct siw_send_wr *wr)
{
	uint64_t length = 0;

	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	return length;
}
/* The octets of a message, or -EINVAL: too long for a message, or for inline data. */
int64_t siw_qp_check_length(const struct siw_wq *wq, const struct siw_send_wr *wr, uint64_t length);
/* Checks a request to be posted, except its list of SGEs: its octets, or -EINVAL. */
int64_t siw_qp_op_check(const struct siw_wq *wq, const struct siw_send_wr *wr);
/* Copies what a checked request says about the peer's memory into its WQE. */
void siw_qp_op_put(struct siw_wqe *wqe, const struct siw_send_wr *wr);
/* Makes RDMAP's operation from the WQE of a Write-Record. */
void siw_qp_op_record(struct siw_wqe *wqe, struct siw_rdmap_op *op);
/* Makes RDMAP's operation from any other WQE; its user_data is the WQE. */
void siw_qp_op_make(struct siw_wqe *wqe, struct siw_rdmap_op *op);

/* The completion status of the request that a peer's error is about. */
enum siw_wc_status siw_qp_status_of(const struct siw_wire_err *err);
/* Whether the header quoted in the peer's error belongs to this request. */
bool siw_qp_is_quoted(const struct siw_wqe *wqe, const struct siw_rdmap_event *ev);

/* ---- qp_sq.c: slots and flows; send_lock held ------------------------------------------------ */
/* Whether every slot of the send queue is in use; a slot is free once its completion was polled. */
static inline bool siw_qp_sq_full(struct siw_wq *wq)
{
	return wq->sq_tail - atomic_load_explicit(&wq->qp.sq_freed, memory_order_relaxed) >
	       wq->sq_mask;
}
/*
 * Allocates the slots: 0 or -ENOMEM. With lazy_slots, called for the first request that needs one.
 */
int siw_qp_sq_make(struct siw_wq *wq);
/* Copies a checked request into a slot, as the newest of its flow. NULL: no slot is free. */
struct siw_wqe *siw_qp_sq_put(struct siw_wq *wq, struct siw_flow *flow,
			      const struct siw_send_wr *wr, uint64_t length);
/*
 * Completes a checked request at once, without a slot; queues a completion unless it is unsignaled
 * and successful.
 */
void siw_qp_sq_bypass(struct siw_wq *wq, const struct siw_send_wr *wr, uint64_t length, int status,
		      const struct siw_addr *peer);
/* The completion status of a request that could not be sent. */
enum siw_wc_status siw_qp_sq_status(const struct siw_wq *wq, int err);
/* Marks the next request of a flow as begun, or as done without having begun. Returns its WQE. */
struct siw_wqe *siw_qp_flow_advance(struct siw_wq *wq, struct siw_flow *flow, int state,
				    int status);
/*
 * Completes the oldest request of a flow: queues its completion, if one is due, and frees its slot.
 */
void siw_qp_flow_finish(struct siw_wq *wq, struct siw_flow *flow, int status);
/*
 * Completes all requests of a flow. The first one whose outcome is unknown gets that status, the
 * others WR_FLUSH_ERR.
 */
void siw_qp_flow_finish_all(struct siw_wq *wq, struct siw_flow *flow, int first);
/*
 * A request was posted in SQE or ERR, on a type with one flow: flushes it, unless a flush of older
 * requests is still to come.
 */
void siw_qp_flush_late_send(struct siw_wq *wq);
/* Ends all requests: flushes them, or (report: false) drops them without completions. */
void siw_qp_sq_end(struct siw_wq *wq, bool report);
/* Whether a request, posted or in progress, uses something. */
typedef bool siw_qp_wqe_uses_fn(const struct siw_flow *flow, const struct siw_wqe *wqe,
				const void *what);
bool siw_qp_sq_uses(const struct siw_wq *wq, siw_qp_wqe_uses_fn *uses, const void *what);
/* Uses memory with that lkey, a uint32_t. */
siw_qp_wqe_uses_fn siw_qp_wqe_uses_key;
/* What may wait at most: what one system call takes, of datagrams and of a stream. */
#define SIW_WAIT_OCTETS_DGRAM  (60u << 10)
#define SIW_WAIT_OCTETS_STREAM (256u << 10)
/* Changes where a round of posts ends. */
static inline uint32_t siw_qp_polls(struct siw_context *ctx)
{
	return atomic_load_explicit(&ctx->polls, memory_order_relaxed) +
	       atomic_load_explicit(&ctx->takes, memory_order_relaxed) / SIW_TAKES;
}

/*
 * Whether a post may be delayed to be sent in a batch: traffic has been dense for some rounds, the
 * post is not the first since the last poll, and the queue will be run soon, by a poll or by the
 * progress thread after its current nap. Counts the post.
 */
bool siw_qp_may_wait(struct siw_wq *wq, const struct siw_send_wr *wr);

/* ---- qp_recv.c: progress held ---------------------------------------------------------------- */
/*
 * How many messages to receive at a QP's next turn, after n came. One receive that finds the socket
 * empty costs a system call, which a lone message's latency would show; so a turn begins with one
 * receive, and doubles while messages keep coming. If a turn ends before the socket is empty, the
 * socket is served again: a poller that received something does not sleep. Long messages end a turn
 * earlier (SIW_TURN_OCTETS, some 10 microseconds of copying), since other queue pairs wait. What
 * came with one receive is taken in one turn (siw_llp_port_more).
 */
#define SIW_TURN_OCTETS 65536

static inline void siw_qp_next_burst(struct siw_wq *wq, int n)
{
	int max = (int)siw_settings()->budget;

	if (n < wq->burst)
		wq->burst = 1;
	else
		wq->burst = wq->burst * 2 < max ? wq->burst * 2 : max;
}
/* After a turn of receiving: n messages with so many octets. */
static inline void siw_qp_served(struct siw_wq *wq, int n, uint32_t octets)
{
	siw_qp_next_burst(wq, octets < SIW_TURN_OCTETS ? n : wq->burst);
	if (wq->qp.srq)
		siw_verbs_srq_taken(wq->qp.srq);
}
#define SIW_LONGEST_SINGLE 65536 /* octets of a message whose time counts more than its bandwidth */
/*
 * Counts a peer's whole Write or Read, if it is a message that a program may wait for by looking at
 * its memory. What is longer is a matter of bandwidth, which waking deputies would cost. progress
 * held.
 */
static inline void siw_qp_one_sided(struct siw_wq *wq, uint32_t length)
{
	wq->qp.ctx->one_sided += length && length <= SIW_LONGEST_SINGLE;
}
/* The status (enum siw_wc_status) of a receive that a RECV or BAD_RECV completes. */
int siw_qp_recv_status(const struct siw_rdmap_event *ev);
/*
 * Completes the receive. source: NULL on a connection. instance: RD, the source's, or 0. send_lock
 * not held.
 */
void siw_qp_received(struct siw_wq *wq, const struct siw_rdmap_event *ev, int status,
		     uint32_t src_qp, const struct siw_addr *source, uint64_t instance);
/* Queues the completion of a received Write-Record, which uses no receive and no slot. */
void siw_qp_record_received(struct siw_wq *wq, const struct siw_rdmap_record *rec,
			    uint64_t instance);
/* Completes one receive with WR_FLUSH_ERR. */
void siw_qp_flush_recv(struct siw_wq *wq, uint64_t wr_id);
/* Notes whether Sends wait for receives: if so, posting a receive wakes whoever makes progress. */
void siw_qp_set_unexpected(struct siw_wq *wq, bool any);

/* ---- qp_step.c ------------------------------------------------------------------------------- */
/* Moves the QP by the table, without the action. Returns the action, or -EINVAL. progress held. */
int siw_qp_step(struct siw_wq *wq, int event);
/*
 * A request failed by this end's mistake: moves the QP to SQE if the table has such a step. Returns
 * whether it does. send_lock held.
 */
bool siw_qp_send_failed(struct siw_wq *wq);
/* In SQD: raises SQ_DRAINED, once, when everything begun is complete. send_lock held. */
void siw_qp_drained(struct siw_wq *wq);
/* The asynchronous event for an error that a peer caused. */
int siw_qp_event_of(const struct siw_wire_err *err);
/* Marks the QP as unsent, and wakes a sleeping thread to send. */
void siw_qp_wake(struct siw_wq *wq);
/* Sends what can be sent, and marks the QP as unsent if something is left. send_lock not held. */
void siw_qp_run_and_mark(struct siw_wq *wq);
/* Sends what was delayed for a batch, as far as the socket accepts it now. send_lock not held. */
void siw_qp_finish(struct siw_wq *wq);
/* What struct siw_qp_class's prepare does; then sends what was delayed for a batch. */
int siw_qp_prepare(struct siw_wq *wq, int event, const struct siw_qp_attr *attr, int mask);

/* ---- qp_mw.c: binds and local invalidations as requests -------------------------------------- */
/*
 * Whether a request happens at this end alone: BIND_MW or LOCAL_INV, which are neighbours in enum
 * siw_wr_opcode.
 */
static inline bool siw_qp_is_local(int opcode)
{
	return (unsigned int)opcode - SIW_WR_LOCAL_INV <= SIW_WR_BIND_MW - SIW_WR_LOCAL_INV;
}
/* Whether it may be queued: 0 or -EINVAL. */
int siw_qp_mw_check(const struct siw_wq *wq, const struct siw_send_wr *wr);
/*
 * Queues such a request. type: of the windows that may be bound. send_lock held, as for the two
 * below.
 */
int siw_qp_mw_post(struct siw_wq *wq, const struct siw_send_wr *wr, int type);
/*
 * Carries it out. 0; -EINPROGRESS: it is done, but completes only after siw_qp_mw_settle, or the QP
 * is CUT; or an enum siw_wc_status.
 */
int siw_qp_mw_begin(struct siw_wq *wq, struct siw_wqe *wqe);
/* The next request, a local one, is done: marks it. */
void siw_qp_did_local(struct siw_wq *wq);
/*
 * Ends the old binding in wq->revoke, if one is due. last: the QP's own stream has ended. progress
 * held, send_lock not.
 */
void siw_qp_mw_settle(struct siw_wq *wq, bool last);

/* ---- qp_flow.c: sending, of all types but UD; send_lock held --------------------------------- */
/* struct siw_qp_class's post and check for types with one flow. */
int siw_qp_flow_post(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait);
int64_t siw_qp_flow_check(struct siw_wq *wq, const struct siw_send_wr *wr);
/*
 * Begins the requests that may begin and gives them to the layer below. Returns as siw_rdmap_flush.
 */
int siw_qp_flow_send(struct siw_wq *wq, struct siw_flow *flow);
/* Completes, in order, requests that were accepted or are done. */
void siw_qp_flow_reap(struct siw_wq *wq, struct siw_flow *flow);
/*
 * What siw_qp_flow_send (which returned r) and siw_qp_flow_reap left. blocked: if r is 0, it waits
 * for the socket.
 */
enum siw_run siw_qp_flow_left(struct siw_wq *wq, int r, bool blocked);
/* The request in progress that a peer's error quotes, or NULL. */
struct siw_wqe *siw_qp_flow_quoted(const struct siw_flow *flow, const struct siw_rdmap_event *ev);

/* ---- qp_end.c: progress held ----------------------------------------------------------------- */
/* Completes every posted send and receive with WR_FLUSH_ERR. */
void siw_qp_flush(struct siw_wq *wq);
/* Drops them without completions. */
void siw_qp_forget(struct siw_wq *wq);
/* Carries out the table's action after a step. notify: SQ_DRAINED is to be raised. */
void siw_qp_act(struct siw_wq *wq, int action, bool notify);
/* Moves the QP to ERR by the table, and raises this event (enum siw_event_type). */
void siw_qp_abort(struct siw_wq *wq, int type);

/* Converts what run left. progressed: some request completed. */
enum siw_turn siw_qp_turn_of(enum siw_run left, bool progressed);
/* Ops that types share: a turn of sending; what requests use, and whether there are any. */
enum siw_turn siw_qp_turn(struct siw_qp *qp, uint64_t round);
bool siw_qp_uses_key(struct siw_qp *qp, uint32_t lkey);
bool siw_qp_is_quiet(const struct siw_qp *qp);
/* Whether requests use something, after sending what was only delayed for a batch. */
bool siw_qp_still_uses(struct siw_wq *wq, siw_qp_wqe_uses_fn *uses, const void *what);
/* Ops that the types on datagrams share: to ERR; sends what was delayed for a batch. */
void siw_qp_fail(struct siw_qp *qp, int status);
void siw_qp_leave(struct siw_qp *qp);

/* ---- qp_mcast.c; progress held --------------------------------------------------------------- */
/* Ends all its memberships. */
void siw_qp_leave_groups(struct siw_ud *ud);

/* ---- qp_errq.c; progress held ---------------------------------------------------------------- */
/* A wrong message came: queues an error entry, and moves the QP to ERR if its policy says so. */
void siw_qp_err_found(struct siw_wq *wq, const struct siw_rdmap_event *event);
/*
 * A peer tried to access memory without the right (BAD_ACCESS): queues an error entry; the policy
 * does not matter.
 */
void siw_qp_err_access(struct siw_wq *wq, const struct siw_rdmap_event *event);
/*
 * A peer reports an error in a request that is complete: queues an error entry. wr_id: 0 if not
 * known.
 */
void siw_qp_err_reported(struct siw_wq *wq, const struct siw_rdmap_event *event, uint64_t wr_id);
/*
 * Works out errs_fatal: the QP is new, has another Q_Key, joined its first group, or left its last.
 */
void siw_qp_err_policy(struct siw_wq *wq, bool in_group);

/* ---- qp_err_limit.c; progress held ----------------------------------------------------------- */
/* Whether one more error message may be sent to this address; if so, counts it. */
bool siw_qp_err_limit_admit(struct siw_context *ctx, const struct siw_addr *to);

/* ---- qp_device.c; progress held, but for the first ------------------------------------------- */
/*
 * To be called first in every call of the program on a queue pair: 0, or -errno: qp is NULL, or was
 * inherited over fork.
 */
int siw_qp_enter(const struct siw_qp *qp);
/* Opens a UDP socket served by the queue pair: bound to addr, or the user's fd. */
int siw_qp_open_udp(struct siw_wq *wq, const struct siw_addr *addr, int fd,
		    struct siw_llp_sock **out);
/* Whether a QP of the device has this number. */
bool siw_qp_qpn_taken(const struct siw_context *ctx, uint32_t qpn);
/* A QP number for a new RC QP. */
uint32_t siw_qp_rc_number(struct siw_context *ctx);
/* The wanted address, or, if it is unset, the device's first one: 0 or -EADDRNOTAVAIL. */
int siw_qp_first_addr(const struct siw_wq *wq, const struct siw_addr *wanted,
		      struct siw_addr *addr);

/* ---- by type --------------------------------------------------------------------------------- */
extern const struct siw_qp_class siw_qp_rc_class, siw_qp_ud_class, siw_qp_uc_class, siw_qp_rd_class;

/* ---- qp_uc_breaker.c; progress held ---------------------------------------------------------- */
/* The first datagram has this PSN. send_lock held. */
void siw_qp_breaker_begin(struct siw_uc *uc, uint32_t psn);
/* The rate that its user or the breaker allows has changed. send_lock held. */
void siw_qp_breaker_pace(struct siw_uc *uc);
/* Something is to be sent. send_lock held; progress need not be. */
static inline void siw_qp_breaker_sends(struct siw_uc *uc)
{
	if (__builtin_expect(uc->breaker.rests && !uc->breaker.sends, 0)) {
		uc->breaker.sends = true;
		siw_llp_sock_due(uc->sock, siw_now_ns());
	}
}
/* Something was received, or is sent after a rest: tells the peer, and judges what the peer told. */
void siw_qp_breaker_look(struct siw_uc *uc);
/* A timer's. */
void siw_qp_breaker_tick(struct siw_timed *timed, uint64_t now_ns);

/* ---- qp_record.c: UD's Write-Records --------------------------------------------------------- */
/* The RDMAP operation of a Write-Record's WQE. */
struct siw_rdmap_record_op siw_qp_record_op(const struct siw_wqe *wqe);
/* Reports complete Write-Records, and sets the timer for the others. progress held. */
void siw_qp_record_look(struct siw_ud *ud, uint64_t now_ns);
void siw_qp_record_tick(struct siw_timed *timed, uint64_t now_ns);
/* The program polled the completion of a Write-Record; for UD and RD. */
void siw_qp_record_polled(struct siw_wq *wq, struct siw_records *records);
/* Drops the unfinished ones. progress held. */
void siw_qp_record_clear(struct siw_ud *ud);

/* ---- qp_ud_err.c; progress held -------------------------------------------------------------- */
/*
 * A wrong message came (BAD_MSG, or BAD_RECV of one too long): sends its sender an error message,
 * within the rate limits, then as siw_qp_err_found.
 */
void siw_qp_ud_err_found(struct siw_ud *ud, const struct siw_rdmap_event *event);
/* A peer's error message came: queues an error entry if it quotes something that was sent. */
void siw_qp_ud_err_reported(struct siw_ud *ud, const struct siw_rdmap_event *event);

/* ---- qp_ud_tx.c: as struct siw_qp_class and struct siw_qp_ops have them ---------------------- */
int siw_qp_ud_post(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait);
int64_t siw_qp_ud_check(struct siw_wq *wq, const struct siw_send_wr *wr);
enum siw_run siw_qp_ud_run(struct siw_wq *wq);
enum siw_turn siw_qp_ud_turn(struct siw_qp *qp, uint64_t round);
bool siw_qp_ud_uses_ah(struct siw_qp *qp, const struct siw_ah *ah);

/* ---- qp_ud.c --------------------------------------------------------------------------------- */
/* Completes a receive for a RECV; as siw_qp_received. */
void siw_qp_ud_received(struct siw_ud *ud, const struct siw_rdmap_event *ev);

/* ---- qp_pair.c; progress held ---------------------------------------------------------------- */
/*
 * From here on it connects by GID and QPN: 0, -EADDRINUSE, -EADDRNOTAVAIL, -EMFILE, -ENOMEM or
 * another -errno.
 */
int siw_qp_pair_open(struct siw_rc *rc);

#endif
