/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_impl.h - what the files of this folder do for each other; private to it. In the order of
 * who may call whom: a file calls those above it here, and types through struct siw_qp_class alone.
 */
#ifndef SIW_QP_IMPL_H
#define SIW_QP_IMPL_H

#include "qp/qp_objects.h"
#include "rdmap/rdmap_record.h"

/* ---- qp_op.c --------------------------------------------------------------------------------- */
enum siw_op_flags {
	SIW_OP_KNOWN = 1,
	SIW_OP_SENDS = 2,	    /* it takes a receive of the peer's: an MSN of queue 0 */
	SIW_OP_AWAITS_RESPONSE = 4, /* it is one of the ORD and complete with its response */
	SIW_OP_ATOMIC = 8,
	SIW_OP_WRITES = 16, /* to the peer's memory: a Terminate may quote STag and offset */
	SIW_OP_IMM = 32,
	SIW_OP_PRIVATE = 64, /* a message of siwarp's own */
	SIW_OP_RECORD = 128, /* Write-Record, of UD and RD */
};
/* Of an opcode (enum siw_wr_opcode): set of enum siw_op_flags, 0: there is no such. */
uint8_t siw_qp_op_flags(int wr_opcode);
/* Whether it is complete when something came back, and not before. */
static inline bool siw_qp_awaits_response(const struct siw_wqe *wqe)
{
	const uint32_t await = 1u << SIW_WR_RDMA_READ | 1u << SIW_WR_ATOMIC_CMP_AND_SWP |
			       1u << SIW_WR_ATOMIC_FETCH_AND_ADD |
			       1u << SIW_WR_MASKED_ATOMIC_CMP_AND_SWP |
			       1u << SIW_WR_MASKED_ATOMIC_FETCH_AND_ADD;

	return await >> (wqe->opcode & 31) & 1; /* RDMA_WRITE_RECORD counts as RDMA_WRITE */
}
/* enum siw_wc_opcode of a known one. */
int siw_qp_op_wc(int wr_opcode);
/*
 * Refusals that several types share, each -errno with its reason: an opcode that this type of QP
 * has not, its state, a full send queue, a call for other types. types: as "UD or RD".
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
/* The octets of a message, or -EINVAL: too many of them for a message, or inline. */
int64_t siw_qp_check_length(const struct siw_wq *wq, const struct siw_send_wr *wr, uint64_t length);
/* The checks at posting, all but those of its list of elements: octets, or -EINVAL. */
int64_t siw_qp_op_check(const struct siw_wq *wq, const struct siw_send_wr *wr);
/* What a checked request says of the peer's memory, into its WQE. */
void siw_qp_op_put(struct siw_wqe *wqe, const struct siw_send_wr *wr);
/* The WQE of a Write-Record as RDMAP's operation. */
void siw_qp_op_record(struct siw_wqe *wqe, struct siw_rdmap_op *op);
/* Any other; its user_data is the WQE. */
void siw_qp_op_make(struct siw_wqe *wqe, struct siw_rdmap_op *op);

/* How the request behind an error of the peer's completes. */
enum siw_wc_status siw_qp_status_of(const struct siw_wire_err *err);
/* Whether the header that the peer's error quotes is of this request. */
bool siw_qp_is_quoted(const struct siw_wqe *wqe, const struct siw_rdmap_event *ev);

/* ---- qp_sq.c: slots and flows; send_lock held ------------------------------------------------ */
/* Whether every slot of the send queue waits for a completion to be polled. */
static inline bool siw_qp_sq_full(struct siw_wq *wq)
{
	return wq->sq_tail - atomic_load_explicit(&wq->qp.sq_freed, memory_order_relaxed) >
	       wq->sq_mask;
}
/* Makes the slots: 0 or -ENOMEM. Lazy ones: with the first request that needs one. */
int siw_qp_sq_make(struct siw_wq *wq);
/*
 * Copies a checked request into a slot, the newest of its flow: the WQE, or NULL when there is no
 * room.
 */
struct siw_wqe *siw_qp_sq_put(struct siw_wq *wq, struct siw_flow *flow,
			      const struct siw_send_wr *wr, uint64_t length);
/*
 * A checked request is over as soon as it is posted, and needs no slot: its completion, if one is
 * due.
 */
void siw_qp_sq_bypass(struct siw_wq *wq, const struct siw_send_wr *wr, uint64_t length, int status,
		      const struct siw_addr *peer);
/* How a request completes that could not be sent. */
enum siw_wc_status siw_qp_sq_status(const struct siw_wq *wq, int err);
/* The next request of a flow is begun, or over without that: its WQE. */
struct siw_wqe *siw_qp_flow_advance(struct siw_wq *wq, struct siw_flow *flow, int state,
				    int status);
/* The oldest request of a flow is over: its completion, if one is due, and its slot is free. */
void siw_qp_flow_finish(struct siw_wq *wq, struct siw_flow *flow, int status);
/*
 * All requests of a flow are over. Of those of which nobody knows how they ended, the first ends
 * with that status, the rest are flushed.
 */
void siw_qp_flow_finish_all(struct siw_wq *wq, struct siw_flow *flow, int first);
/*
 * A request was posted in SQE or ERR, and there is one flow: completes it, unless a flush of older
 * ones is due.
 */
void siw_qp_flush_late_send(struct siw_wq *wq);
/* All requests are over: flushed, or (report: false) dropped without a word. */
void siw_qp_sq_end(struct siw_wq *wq, bool report);
/* Whether a request has to do with something: one that is posted, or on its way. */
typedef bool siw_qp_wqe_uses_fn(const struct siw_flow *flow, const struct siw_wqe *wqe,
				const void *what);
bool siw_qp_sq_uses(const struct siw_wq *wq, siw_qp_wqe_uses_fn *uses, const void *what);
/* With memory of that lkey, a uint32_t. */
siw_qp_wqe_uses_fn siw_qp_wqe_uses_key;
/*
 * Whether a post may wait for others: it is not the first since the last poll, and somebody looks
 * soon: whoever polls, or the progress thread at its next nap's end.
 */
bool siw_qp_may_wait(struct siw_wq *wq);

/* ---- qp_recv.c: progress held ---------------------------------------------------------------- */
/*
 * How many messages to ask a QP's socket for at its next turn, after n came. Asking once more than
 * there are costs a system call that a lone message's latency would feel, so a turn begins with one
 * and doubles while they keep coming. Who stops before the socket is empty is handed out again: a
 * poller that moved something does not sleep. Long messages end a turn sooner (SIW_TURN_OCTETS,
 * some 10 microseconds of copying): other queue pairs wait.
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
/* A turn at receiving is over: n messages, so many octets. */
static inline void siw_qp_served(struct siw_wq *wq, int n, uint32_t octets)
{
	siw_qp_next_burst(wq, octets < SIW_TURN_OCTETS ? n : wq->burst);
	if (wq->qp.srq)
		siw_verbs_srq_taken(wq->qp.srq);
}
/* How a RECV or BAD_RECV completes its receive (enum siw_wc_status). */
int siw_qp_recv_status(const struct siw_rdmap_event *ev);
/* Completes it. source: NULL on a connection. send_lock not held. */
void siw_qp_received(struct siw_wq *wq, const struct siw_rdmap_event *ev, int status,
		     uint32_t src_qp, const struct siw_addr *source);
/* A Write-Record came: a completion that uses no receive and no slot. */
void siw_qp_record_received(struct siw_wq *wq, const struct siw_rdmap_record *rec);
/* One receive with WR_FLUSH_ERR. */
void siw_qp_flush_recv(struct siw_wq *wq, uint64_t wr_id);
/* Sends wait for receives: posting one is news from now on, or not any more. */
void siw_qp_set_unexpected(struct siw_wq *wq, bool any);

/* ---- qp_step.c ------------------------------------------------------------------------------- */
/* Does an event's step by the table, actions aside: the action, or -EINVAL. progress held. */
int siw_qp_step(struct siw_wq *wq, int event);
/*
 * A request failed by this end's own mistake: to SQE, if the table has it so, and whether.
 * send_lock held.
 */
bool siw_qp_send_failed(struct siw_wq *wq);
/* In SQD: reports, once, that everything begun is complete. send_lock held. */
void siw_qp_drained(struct siw_wq *wq);
/* Which event says that a peer caused this error. */
int siw_qp_event_of(const struct siw_wire_err *err);
/* Marks it unsent, and wakes who sleeps. */
void siw_qp_wake(struct siw_wq *wq);
/*
 * Sends what there is to send; what is left is for the next rounds of progress. send_lock not held.
 */
void siw_qp_run_and_mark(struct siw_wq *wq);
/* Gets out what waits for company, as far as the socket takes it at once. send_lock not held. */
void siw_qp_finish(struct siw_wq *wq);
/*
 * What must be done before an event's step, as struct siw_qp_class has it; and what waits for
 * company goes out.
 */
int siw_qp_prepare(struct siw_wq *wq, int event, const struct siw_qp_attr *attr, int mask);

/* ---- qp_mw.c: binds and local invalidations as requests -------------------------------------- */
/*
 * Whether a request happens at this end alone: BIND_MW or LOCAL_INV. Both stand side by side in
 * enum siw_wr_opcode.
 */
static inline bool siw_qp_is_local(int opcode)
{
	return (unsigned int)opcode - SIW_WR_LOCAL_INV <= SIW_WR_BIND_MW - SIW_WR_LOCAL_INV;
}
/*
 * Puts one into the send queue; type: the windows that may be bound. send_lock held, as for the two
 * below.
 */
int siw_qp_mw_post(struct siw_wq *wq, const struct siw_send_wr *wr, int type);
/*
 * Does what it says: 0; -EINPROGRESS: it has happened, but before it completes siw_qp_mw_settle is
 * due, or the QP is CUT; or an enum siw_wc_status.
 */
int siw_qp_mw_begin(struct siw_wq *wq, struct siw_wqe *wqe);
/* The next request has happened at this end alone. */
void siw_qp_did_local(struct siw_wq *wq);
/*
 * Ends what wq->revoke says, if it is due. last: the QP's own stream is over. progress held, and
 * send_lock not.
 */
void siw_qp_mw_settle(struct siw_wq *wq, bool last);

/* ---- qp_flow.c: sending, of all types but UD; send_lock held --------------------------------- */
/* Posts a request where there is one flow, as struct siw_qp_class has it. */
int siw_qp_flow_post(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait);
/* Begins what may begin and gives it to the layer below: as siw_rdmap_flush. */
int siw_qp_flow_send(struct siw_wq *wq, struct siw_flow *flow);
/* Completes, in order, what is accepted, and what was read or failed. */
void siw_qp_flow_reap(struct siw_wq *wq, struct siw_flow *flow);
/* What siw_qp_flow_send (r) and reaping left behind. blocked: after 0, it waits for the socket. */
enum siw_run siw_qp_flow_left(struct siw_wq *wq, int r, bool blocked);
/* The request that a peer's error quotes, if it is still on its way, or NULL. */
struct siw_wqe *siw_qp_flow_quoted(const struct siw_flow *flow, const struct siw_rdmap_event *ev);

/* ---- qp_end.c: progress held ----------------------------------------------------------------- */
/* Completes every send and receive with WR_FLUSH_ERR. */
void siw_qp_flush(struct siw_wq *wq);
/* Drops them without a word. */
void siw_qp_forget(struct siw_wq *wq);
/* Does an action of the state table after a step. notify: SQ_DRAINED is to be raised. */
void siw_qp_act(struct siw_wq *wq, int action, bool notify);
/* Something ends it, and this event (enum siw_event_type) says so: to ERR by the table. */
void siw_qp_abort(struct siw_wq *wq, int type);

/* What run left, in verbs' words. progressed: some request completed. */
enum siw_turn siw_qp_turn_of(enum siw_run left, bool progressed);
/*
 * What struct siw_qp_ops has, for every type: a turn at sending; and whether requests use that
 * memory.
 */
enum siw_turn siw_qp_turn(struct siw_qp *qp, uint64_t round);
bool siw_qp_uses_key(struct siw_qp *qp, uint32_t lkey);
/*
 * Whether requests use something, once what only waits for company or for somebody to look is out.
 */
bool siw_qp_still_uses(struct siw_wq *wq, siw_qp_wqe_uses_fn *uses, const void *what);
/* And for those on datagrams: to ERR; what waits goes out. */
void siw_qp_fail(struct siw_qp *qp, int status);
void siw_qp_leave(struct siw_qp *qp);

/* ---- qp_errq.c; progress held ---------------------------------------------------------------- */
/* A message that came is wrong: notes it, and ends the QP if its policy has it so. */
void siw_qp_err_found(struct siw_wq *wq, const struct siw_rdmap_event *event);
/*
 * A peer reached for memory that it may not (BAD_ACCESS): notes it, whatever the policy, and
 * nothing else.
 */
void siw_qp_err_access(struct siw_wq *wq, const struct siw_rdmap_event *event);
/*
 * A peer reports an error in a request that is complete: notes it. wr_id: 0 where it is not known.
 */
void siw_qp_err_reported(struct siw_wq *wq, const struct siw_rdmap_event *event, uint64_t wr_id);
/* What the policy comes to: the QP is new, or joined its first group or left the last. */
void siw_qp_err_policy(struct siw_wq *wq, bool in_group);

/* ---- qp_err_limit.c; progress held ----------------------------------------------------------- */
/* Whether one more error message may go to this address; counted as sent if so. */
bool siw_qp_err_limit_admit(struct siw_context *ctx, const struct siw_addr *to);

/* ---- qp_device.c; progress held, but for the first ------------------------------------------- */
/*
 * A call of the program's on a queue pair begins: 0; or -errno, it is NULL or inherited over fork.
 */
int siw_qp_enter(const struct siw_qp *qp);
/* A UDP socket that the queue pair serves: bound to addr, or the user's. */
int siw_qp_open_udp(struct siw_wq *wq, const struct siw_addr *addr, int fd,
		    struct siw_llp_sock **out);
/* Whether a QP of the device has this number. */
bool siw_qp_qpn_taken(const struct siw_context *ctx, uint32_t qpn);
/* The next one of RC. */
uint32_t siw_qp_rc_number(struct siw_context *ctx);
/* The one that the user wants, or, where none is said, the device's first: 0 or -EADDRNOTAVAIL. */
int siw_qp_first_addr(const struct siw_wq *wq, const struct siw_addr *wanted,
		      struct siw_addr *addr);

/* ---- by type --------------------------------------------------------------------------------- */
extern const struct siw_qp_class siw_qp_rc_class, siw_qp_ud_class, siw_qp_uc_class, siw_qp_rd_class;

/* ---- qp_record.c: UD's Write-Records --------------------------------------------------------- */
/* What a request for a Write-Record asks. */
struct siw_rdmap_record_op siw_qp_record_op(const struct siw_wqe *wqe);
/*
 * Reports those that are over, and sees to it that the others are looked at in time. progress held.
 */
void siw_qp_record_look(struct siw_ud *ud, uint64_t now_ns);
void siw_qp_record_tick(struct siw_timed *timed, uint64_t now_ns);
/* A completion of one was polled: of UD and RD. */
void siw_qp_record_polled(struct siw_wq *wq, struct siw_records *records);
/* Forgets those in process. progress held. */
void siw_qp_record_clear(struct siw_ud *ud);

/* ---- qp_ud_err.c; progress held -------------------------------------------------------------- */
/*
 * A message that came is wrong (BAD_MSG, or BAD_RECV of one too long): reports it to the sender
 * within the limits, and goes on as siw_qp_err_found.
 */
void siw_qp_ud_err_found(struct siw_ud *ud, const struct siw_rdmap_event *event);
/* A peer's error message came: notes it, if it is about something sent. */
void siw_qp_ud_err_reported(struct siw_ud *ud, const struct siw_rdmap_event *event);

/* ---- qp_ud_tx.c: as struct siw_qp_class and struct siw_qp_ops have them ---------------------- */
int siw_qp_ud_post(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait);
enum siw_run siw_qp_ud_run(struct siw_wq *wq);
enum siw_turn siw_qp_ud_turn(struct siw_qp *qp, uint64_t round);
bool siw_qp_ud_uses_ah(struct siw_qp *qp, const struct siw_ah *ah);

/* ---- qp_ud.c --------------------------------------------------------------------------------- */
/* A RECV: as siw_qp_received. */
void siw_qp_ud_received(struct siw_ud *ud, const struct siw_rdmap_event *ev);

#endif
