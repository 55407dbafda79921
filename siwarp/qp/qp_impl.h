/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_impl.h - internal interface between the files of this folder. The sections are in call
 * order: a file calls only functions of sections above its own; functions of one QP type are called
 * only through struct siw_qp_class.
 */
#ifndef SIW_QP_IMPL_H
#define SIW_QP_IMPL_H

#include "base/clock.h"
#include "qp/qp_objects.h"
#include "rdmap/rdmap_record.h"

/* ---- qp_op.c --------------------------------------------------------------------------------- */
enum siw_op_flags {
	SIW_OP_KNOWN = 1,
	/* consumes a receive of the peer; its message has an MSN of queue 0 */
	SIW_OP_SENDS = 2,
	SIW_OP_AWAITS_RESPONSE = 4, /* counts towards ORD; completed by its response */
	SIW_OP_ATOMIC = 8,
	/* writes into the peer's memory; a Terminate may quote its STag and offset */
	SIW_OP_WRITES = 16,
	SIW_OP_IMM = 32,
	SIW_OP_PRIVATE = 64, /* sent as a siwarp-private message */
	SIW_OP_RECORD = 128, /* a Write-Record, on UD and RD */
};
/* The flags (set of enum siw_op_flags) of an opcode (enum siw_wr_opcode); 0: no such opcode. */
uint8_t siw_qp_op_flags(int wr_opcode);
/* Whether the request is completed by a response of the peer (Reads and atomics). */
static inline bool siw_qp_awaits_response(const struct siw_wqe *wqe)
{
	const uint32_t await = 1u << SIW_WR_RDMA_READ | 1u << SIW_WR_ATOMIC_CMP_AND_SWP |
			       1u << SIW_WR_ATOMIC_FETCH_AND_ADD |
			       1u << SIW_WR_MASKED_ATOMIC_CMP_AND_SWP |
			       1u << SIW_WR_MASKED_ATOMIC_FETCH_AND_ADD;

	/* & 31 makes RDMA_WRITE_RECORD count as RDMA_WRITE */
	return await >> (wqe->opcode & 31) & 1;
}
/* The completion opcode (enum siw_wc_opcode) of a known request opcode. */
int siw_qp_op_wc(int wr_opcode);
/*
 * Refusals shared by several types; each records a reason for the thread and returns -errno. In
 * order: an opcode that the type does not support; a state that does not allow sending; a full send
 * queue; a call that other types support. types: their names, for example "UD or RD".
 */
int siw_qp_refuse_opcode(const struct siw_base_qp *base, int opcode);
int siw_qp_refuse_send_state(const struct siw_base_qp *base, int state);
int siw_qp_refuse_slot(const struct siw_base_qp *base);
int siw_qp_refuse_type(const struct siw_base_qp *base, const char *types);
static inline uint64_t siw_qp_octets(const struct siw_send_wr *wr)
{
	uint64_t length = 0;

	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	return length;
}
/* The length of a message in octets, or -EINVAL: too long for a message or for inline data. */
int64_t siw_qp_check_length(const struct siw_base_qp *base, const struct siw_send_wr *wr,
			    uint64_t length);
/*
 * Checks a request to be posted, except its list of SGEs. Returns its length in octets, or -EINVAL.
 */
int64_t siw_qp_op_check(const struct siw_base_qp *base, const struct siw_send_wr *wr);
/*
 * Completes the RDMAP operation of a WQE from siw_qp_sq_append(), for a checked request. Its
 * user_data is the WQE.
 */
void siw_qp_op_store(struct siw_wqe *wqe, const struct siw_send_wr *wr);

/* The completion status of a request for which the peer has reported this error. */
enum siw_wc_status siw_qp_status_of(const struct siw_wire_err *err);
/* Whether the header quoted in the peer's error belongs to this request. */
bool siw_qp_is_quoted(const struct siw_wqe *wqe, const struct siw_rdmap_event *ev);

/* ---- qp_sq.c: slots and flows; send_lock held ------------------------------------------------ */
/*
 * Whether every slot of the send queue is in use. A slot becomes free when its completion has been
 * polled.
 */
static inline bool siw_qp_sq_full(struct siw_base_qp *base)
{
	return base->sq_tail - atomic_load_explicit(&base->qp.sq_freed, memory_order_relaxed) >
	       base->sq_mask;
}
/*
 * Allocates the slots: 0 or -ENOMEM. With lazy_slots, called when the first request that needs a
 * slot is posted.
 */
int siw_qp_sq_alloc(struct siw_base_qp *base);
/* Copies a checked request into a slot and appends it to the flow. NULL: no slot is free. */
struct siw_wqe *siw_qp_sq_append(struct siw_base_qp *base, struct siw_flow *flow,
				 const struct siw_send_wr *wr, uint64_t length);
/*
 * Completes a checked request at once, without a slot. Queues a completion unless the request is
 * unsignaled and successful.
 */
void siw_qp_sq_bypass(struct siw_base_qp *base, const struct siw_send_wr *wr, uint64_t length,
		      int status, const struct siw_addr *peer);
/* The completion status of a request that could not be sent. */
enum siw_wc_status siw_qp_sq_status(const struct siw_base_qp *base, int err);
/*
 * Marks the next request of a flow as BEGUN, or as DONE if it failed before it began. Returns its
 * WQE.
 */
struct siw_wqe *siw_qp_flow_advance(struct siw_base_qp *base, struct siw_flow *flow, int state,
				    int status);
/*
 * Completes the oldest request of a flow: queues a completion unless the request is unsignaled and
 * successful, and frees its slot.
 */
void siw_qp_flow_finish(struct siw_base_qp *base, struct siw_flow *flow, int status);
/*
 * Completes all requests of a flow. The oldest request whose outcome is unknown gets status first,
 * later requests get WR_FLUSH_ERR.
 */
void siw_qp_flow_finish_all(struct siw_base_qp *base, struct siw_flow *flow, int first);
/*
 * Called after a request was posted in SQE or ERR on a type with one flow: flushes the request,
 * unless a flush of older requests is still to come.
 */
void siw_qp_flush_late_send(struct siw_base_qp *base);
/* Ends all requests: flushes them, or (report: false) drops them without completions. */
void siw_qp_sq_end(struct siw_base_qp *base, bool report);
/* Whether a request, posted or in progress, uses a given object. */
typedef bool siw_qp_wqe_uses_fn(const struct siw_flow *flow, const struct siw_wqe *wqe,
				const void *what);
bool siw_qp_sq_uses(const struct siw_base_qp *base, siw_qp_wqe_uses_fn *uses, const void *what);
/*
 * A siw_qp_wqe_uses_fn: whether the request uses memory with an lkey. what: pointer to the lkey, a
 * uint32_t.
 */
siw_qp_wqe_uses_fn siw_qp_wqe_uses_key;
/*
 * Maximum total octets of posts delayed for a batch: as much as one system call sends, on a
 * datagram socket and on a stream.
 */
#define SIW_DELAY_OCTETS_DGRAM	(60u << 10)
#define SIW_DELAY_OCTETS_STREAM (256u << 10)
/* A counter that changes when a poll ends the current round of posts. */
static inline uint32_t siw_qp_poll_round(struct siw_context *ctx)
{
	return atomic_load_explicit(&ctx->polls, memory_order_relaxed) +
	       atomic_load_explicit(&ctx->polls_without_round, memory_order_relaxed) /
		       SIW_POLLS_PER_BURST;
}

/*
 * Whether a post may be delayed to be sent in a batch. It may if posts have been dense for some
 * rounds, the post is not the first since the last poll, and the queue will be run soon, by a poll
 * or by the progress thread after its current nap. Counts the post.
 */
bool siw_qp_may_delay_post(struct siw_base_qp *base, const struct siw_send_wr *wr);

/* ---- qp_recv.c: Progress lock held ----------------------------------------------------------- */
/*
 * Sets how many messages to receive in the QP's next turn, after n arrived in this one. A receive
 * that finds the socket empty costs a system call, which would add to the latency of a single
 * message; so a turn starts with one receive, and the number doubles while messages keep arriving.
 * If a turn ends before the socket is empty, the socket is served again, since a poller that has
 * received something does not sleep. Long messages end a turn earlier (SIW_TURN_OCTETS, about 10
 * microseconds of copying), because other queue pairs wait. Datagrams that arrived with one receive
 * call are all handled in the same turn (siw_llp_port_more).
 */
#define SIW_TURN_OCTETS 65536

static inline void siw_qp_next_burst(struct siw_base_qp *base, int n)
{
	int max = (int)siw_settings()->budget;

	if (n < base->burst)
		base->burst = 1;
	else
		base->burst = base->burst * 2 < max ? base->burst * 2 : max;
}
/* Called after a receiving turn with n messages of octets in total. */
static inline void siw_qp_receive_turn_done(struct siw_base_qp *base, int n, uint32_t octets)
{
	siw_qp_next_burst(base, octets < SIW_TURN_OCTETS ? n : base->burst);
	if (base->qp.srq)
		siw_device_srq_taken(base->qp.srq);
}
/* up to this many octets, a message's latency matters more than its bandwidth */
#define SIW_LONGEST_SINGLE 65536
/*
 * Counts a complete Write or Read of a peer, if it is short enough that a program may be polling
 * its memory for it. For longer transfers bandwidth matters more, and waking the watchdog threads
 * would reduce it. Progress lock held.
 */
static inline void siw_qp_one_sided(struct siw_base_qp *base, uint32_t length)
{
	base->qp.ctx->one_sided += length && length <= SIW_LONGEST_SINGLE;
}
/* The status (enum siw_wc_status) of a receive completed by event RECV or BAD_RECV. */
int siw_qp_recv_status(const struct siw_rdmap_event *ev);
/*
 * Completes the receive of an event. source: the sender's address, NULL on a connection. instance:
 * RD: the sender's instance number, else 0. send_lock not held.
 */
void siw_qp_received(struct siw_base_qp *base, const struct siw_rdmap_event *ev, int status,
		     uint32_t src_qp, const struct siw_addr *source, uint64_t instance);
/* Queues the completion of a received Write-Record, which consumes no receive and no slot. */
void siw_qp_record_received(struct siw_base_qp *base, const struct siw_rdmap_record *rec,
			    uint64_t instance);
/* Completes one receive with WR_FLUSH_ERR. */
void siw_qp_flush_recv(struct siw_base_qp *base, uint64_t wr_id);
/*
 * Sets whether Sends wait for receives. If so, posting a receive wakes the thread that makes
 * progress.
 */
void siw_qp_set_unexpected(struct siw_base_qp *base, bool any);

/* ---- qp_step.c ------------------------------------------------------------------------------- */
/*
 * Moves the QP to the next state according to the table, without carrying out the table's action.
 * Returns the action, or -EINVAL. Progress lock held.
 */
int siw_qp_step(struct siw_base_qp *base, int event);
/*
 * A request failed because of a local error: moves the QP to SQE if its type has that step. Returns
 * whether it does. send_lock held.
 */
bool siw_qp_send_failed(struct siw_base_qp *base);
/*
 * In SQD: raises SQ_DRAINED, once, when all requests that had begun are complete. send_lock held.
 */
void siw_qp_drained(struct siw_base_qp *base);
/* The asynchronous event for an error that a peer caused. */
int siw_qp_event_of(const struct siw_wire_err *err);
/* Marks the QP as having unsent requests, and wakes a sleeping thread to send them. */
void siw_qp_wake(struct siw_base_qp *base);
/*
 * Sends as much as possible, and marks the QP as unsent if requests are left. send_lock not held.
 */
void siw_qp_run_and_mark(struct siw_base_qp *base);
/*
 * Sends requests that were delayed for a batch, as far as the socket accepts them now. send_lock
 * not held.
 */
void siw_qp_send_delayed(struct siw_base_qp *base);
/*
 * Calls the type's prepare (struct siw_qp_class); then sends requests that were delayed for a
 * batch.
 */
int siw_qp_prepare(struct siw_base_qp *base, int event, const struct siw_qp_attr *attr, int mask);

/* ---- qp_mw.c: binds and local invalidations as requests -------------------------------------- */
/*
 * Whether a request is local, without a message to the peer: BIND_MW or LOCAL_INV, which are
 * adjacent in enum siw_wr_opcode.
 */
static inline bool siw_qp_is_local(int opcode)
{
	return (unsigned int)opcode - SIW_WR_LOCAL_INV <= SIW_WR_BIND_MW - SIW_WR_LOCAL_INV;
}
/* Whether the local request may be queued: 0 or -EINVAL. */
int siw_qp_mw_check(const struct siw_base_qp *base, const struct siw_send_wr *wr);
/*
 * Queues a local request. type: the type of windows that it may bind. send_lock held, also for the
 * next two functions.
 */
int siw_qp_mw_post(struct siw_base_qp *base, const struct siw_send_wr *wr, int type);
/*
 * Executes a local request. 0: done. -EINPROGRESS: done, but it completes only after
 * siw_qp_mw_settle(), or the QP is CUT. Otherwise an enum siw_wc_status.
 */
int siw_qp_mw_begin(struct siw_base_qp *base, struct siw_wqe *wqe);
/* Marks the flow's next request, a local one, as done. */
void siw_qp_local_done(struct siw_base_qp *base);
/*
 * Ends the old binding in base->revoke, if one is waiting. last: the QP's own stream has ended.
 * Progress lock held, send_lock not held.
 */
void siw_qp_mw_settle(struct siw_base_qp *base, bool last);

/* ---- qp_flow.c: sending, of all types but UD; send_lock held --------------------------------- */
/* The post and check members of struct siw_qp_class for types with one flow. */
int siw_qp_flow_post(struct siw_base_qp *base, const struct siw_send_wr *wr, bool wait);
int64_t siw_qp_flow_check(struct siw_base_qp *base, const struct siw_send_wr *wr);
/*
 * Begins the requests that may begin, and passes them to the layer below. Returns as
 * siw_rdmap_flush().
 */
int siw_qp_flow_send(struct siw_base_qp *base, struct siw_flow *flow);
/* Completes, in order, the requests that were accepted or are DONE. */
void siw_qp_flow_reap(struct siw_base_qp *base, struct siw_flow *flow);
/*
 * The enum siw_run after siw_qp_flow_send(), which returned r, and siw_qp_flow_reap(). blocked: if
 * r is 0, the flow waits for room in the socket.
 */
enum siw_run siw_qp_flow_left(struct siw_base_qp *base, int r, bool blocked);
/* The request in progress whose header the peer's error quotes, or NULL. */
struct siw_wqe *siw_qp_flow_quoted(const struct siw_flow *flow, const struct siw_rdmap_event *ev);

/* ---- qp_flush.c: Progress lock held ---------------------------------------------------------- */
/* Completes every posted send and receive with WR_FLUSH_ERR. */
void siw_qp_flush(struct siw_base_qp *base);
/* Drops all posted sends and receives without completions. */
void siw_qp_drop_work(struct siw_base_qp *base);
/*
 * Carries out the state table's action after a step. notify: raise SQ_DRAINED when the send queue
 * has drained.
 */
void siw_qp_act(struct siw_base_qp *base, int action, bool notify);
/*
 * Moves the QP to ERR according to the table, and raises an asynchronous event. type: enum
 * siw_event_type.
 */
void siw_qp_abort(struct siw_base_qp *base, int type);

/* Converts the result of run to an enum siw_turn. progressed: some request completed. */
enum siw_turn siw_qp_turn_of(enum siw_run left, bool progressed);
/*
 * Members of struct siw_qp_ops shared by several types: a sending turn; whether requests use a
 * memory key; whether there are no requests.
 */
enum siw_turn siw_qp_turn(struct siw_qp *qp, uint64_t round);
bool siw_qp_uses_key(struct siw_qp *qp, uint32_t lkey);
bool siw_qp_is_quiet(const struct siw_qp *qp);
/*
 * Whether requests use a given object, after requests that were only delayed for a batch have been
 * sent.
 */
bool siw_qp_still_uses(struct siw_base_qp *base, siw_qp_wqe_uses_fn *uses, const void *what);
/*
 * Members of struct siw_qp_ops shared by the datagram types: fail moves the QP to ERR; leave sends
 * requests that were delayed for a batch.
 */
void siw_qp_fail(struct siw_qp *qp, int status);
void siw_qp_dgram_leave(struct siw_qp *qp);

/* ---- qp_ud_mcast.c; progress lock held ------------------------------------------------------- */
/* Ends all multicast memberships of the QP. */
void siw_qp_leave_groups(struct siw_ud_qp *ud);

/* ---- qp_errq.c; progress lock held ----------------------------------------------------------- */
/*
 * An erroneous message arrived: queues an error entry, and moves the QP to ERR if its error policy
 * says so.
 */
void siw_qp_err_found(struct siw_base_qp *base, const struct siw_rdmap_event *event);
/*
 * A peer tried to access memory without the right to (BAD_ACCESS): queues an error entry, whatever
 * the error policy is.
 */
void siw_qp_err_access(struct siw_base_qp *base, const struct siw_rdmap_event *event);
/*
 * A peer reported an error in a request that is already complete: queues an error entry. wr_id: of
 * that request, 0 if not known.
 */
void siw_qp_err_reported(struct siw_base_qp *base, const struct siw_rdmap_event *event,
			 uint64_t wr_id);
/*
 * Recomputes errs_fatal: called when the QP is new, gets another Q_Key, joins its first group, or
 * leaves its last.
 */
void siw_qp_err_policy(struct siw_base_qp *base, bool in_group);

/* ---- qp_number.c; progress lock held, except for siw_qp_enter -------------------------------- */
/*
 * Every public call on a queue pair starts with this. 0, or -errno: qp is NULL, or was inherited
 * over fork().
 */
int siw_qp_enter(const struct siw_qp *qp);
/* Opens a UDP socket served by the queue pair: bound to addr, or the user's descriptor fd. */
int siw_qp_open_udp(struct siw_base_qp *base, const struct siw_addr *addr, int fd,
		    struct siw_llp_sock **out);
/* Whether a QP of the device has this QPN. */
bool siw_qp_qpn_taken(const struct siw_context *ctx, uint32_t qpn);
/* A QPN for a new RC QP. */
uint32_t siw_qp_rc_number(struct siw_context *ctx);
/*
 * Returns the wanted address, or, if that is unset, the device's first address: 0 or
 * -EADDRNOTAVAIL.
 */
int siw_qp_first_addr(const struct siw_base_qp *base, const struct siw_addr *wanted,
		      struct siw_addr *addr);

/* ---- queue pair types ------------------------------------------------------------------------ */
extern const struct siw_qp_class siw_qp_rc_class, siw_qp_ud_class, siw_qp_uc_class, siw_qp_rd_class;

/* ---- qp_uc.c: the circuit breaker; progress lock held ---------------------------------------- */
/* Resets the breaker. psn: number of the first datagram sent. send_lock held. */
void siw_qp_breaker_begin(struct siw_uc_qp *uc, uint32_t psn);
/* Applies the rate limit after the user or the breaker has changed it. send_lock held. */
void siw_qp_breaker_pace(struct siw_uc_qp *uc);
/* A request is about to be sent. send_lock held; the progress lock need not be held. */
static inline void siw_qp_breaker_sends(struct siw_uc_qp *uc)
{
	if (__builtin_expect(uc->breaker.paused && !uc->breaker.resumed, 0)) {
		uc->breaker.resumed = true;
		siw_llp_sock_due(uc->sock, siw_now_ns());
	}
}
/*
 * Called after a datagram was received or traffic has resumed after a rest: sends a report to the
 * peer if one is due, and evaluates the peer's report.
 */
void siw_qp_breaker_check(struct siw_uc_qp *uc);
/* The tick function of the breaker's timer. */
void siw_qp_breaker_tick(struct siw_timed *timed, uint64_t now_ns);

/* ---- qp_record.c: UD's Write-Records --------------------------------------------------------- */
/* Builds the RDMAP operation for the WQE of a Write-Record. */
struct siw_rdmap_record_op siw_qp_record_op(const struct siw_wqe *wqe);
/*
 * Queues completions of complete Write-Records, and sets the timer for the unfinished ones.
 * Progress lock held.
 */
void siw_qp_record_report(struct siw_ud_qp *ud, uint64_t now_ns);
void siw_qp_record_tick(struct siw_timed *timed, uint64_t now_ns);
/* The program polled the completion of a Write-Record; for UD and RD. */
void siw_qp_record_polled(struct siw_base_qp *base, struct siw_records *records);
/* Drops the unfinished Write-Records. Progress lock held. */
void siw_qp_record_clear(struct siw_ud_qp *ud);

/* ---- qp_ud.c --------------------------------------------------------------------------------- */
/* Completes the receive of a RECV or BAD_RECV event; as siw_qp_received(). */
void siw_qp_ud_received(struct siw_ud_qp *ud, const struct siw_rdmap_event *ev);

#endif
