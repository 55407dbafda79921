/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_impl.h - internal interface between the files of qp/. The sections are in call order: a
 * file calls only functions of earlier sections; functions of one QP type are called only through
 * struct siw_qp_class.
 */
#ifndef SIW_QP_IMPL_H
#define SIW_QP_IMPL_H

#include "base/clock.h"
#include "qp/qp_objects.h"
#include "rdmap/rdmap_record.h"

/* ---- qp_op.c --------------------------------------------------------------------------------- */
enum siw_op_flags {
	SIW_OP_KNOWN = 1,
	/* the request consumes a receive of the peer, and its message has an MSN of queue 0 */
	SIW_OP_SENDS = 2,
	SIW_OP_AWAITS_RESPONSE = 4, /* counts towards ORD; a response completes the request */
	SIW_OP_ATOMIC = 8,
	/*
	 * the request writes into the peer's memory, and a Terminate may quote its STag and offset
	 */
	SIW_OP_WRITES = 16,
	SIW_OP_IMM = 32,
	SIW_OP_PRIVATE = 64, /* the request is sent as a siwarp-private message */
	SIW_OP_RECORD = 128, /* the request is a Write-Record, on UD or RD */
};
/*
 * Returns the flags (set of enum siw_op_flags) of an opcode (enum siw_wr_opcode); 0 if the opcode
 * is unknown.
 */
uint8_t siw_qp_flags_of_opcode(int wr_opcode);
/* Whether the request is completed by a response of the peer (Reads and atomics). */
static inline bool siw_qp_awaits_response(const struct siw_wqe *wqe)
{
	const uint32_t await = 1u << SIW_WR_RDMA_READ | 1u << SIW_WR_ATOMIC_CMP_AND_SWP |
			       1u << SIW_WR_ATOMIC_FETCH_AND_ADD |
			       1u << SIW_WR_MASKED_ATOMIC_CMP_AND_SWP |
			       1u << SIW_WR_MASKED_ATOMIC_FETCH_AND_ADD;

	/* RDMA_WRITE_RECORD is 32 more than RDMA_WRITE, and has no response either */
	return await >> (wqe->opcode & 31) & 1;
}
/* Returns the completion opcode (enum siw_wc_opcode) of a known request opcode. */
int siw_qp_wc_opcode_of_wr_opcode(int wr_opcode);
/*
 * Refusals shared by several QP types; each function records a reason for the thread and returns
 * -errno. In order: an opcode that the QP type does not support; a state that does not allow
 * sending; a full send queue; a call that only other QP types support. types: the names of the QP
 * types that support the call, for example "UD or RD".
 */
int siw_qp_refuse_opcode(const struct siw_base_qp *base, int opcode);
int siw_qp_refuse_send_in_state(const struct siw_base_qp *base, int state);
int siw_qp_refuse_full_sq(const struct siw_base_qp *base);
int siw_qp_refuse_type(const struct siw_base_qp *base, const char *types);
static inline uint64_t siw_qp_octets(const struct siw_send_wr *wr)
{
	uint64_t length = 0;

	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	return length;
}
/*
 * Returns the length of a message in octets, or -EINVAL if it is too long for a message or for
 * inline data.
 */
int64_t siw_qp_check_length(const struct siw_base_qp *base, const struct siw_send_wr *wr,
			    uint64_t length);
/*
 * Checks a request to be posted, except its list of SGEs. Returns the request's length in octets,
 * or -EINVAL.
 */
int64_t siw_qp_op_check(const struct siw_base_qp *base, const struct siw_send_wr *wr);
/*
 * Fills in the RDMAP operation of a WQE returned by siw_qp_sq_append(), for a checked request. The
 * operation's user_data is the WQE.
 */
void siw_qp_op_store_in_wqe(struct siw_wqe *wqe, const struct siw_send_wr *wr);

/* Returns the completion status of a request for which the peer has reported the error *err. */
enum siw_wc_status siw_qp_wc_status_of_peer_error(const struct siw_wire_err *err);
/* Whether the header quoted in the peer's error report belongs to the request. */
bool siw_qp_is_request_quoted(const struct siw_wqe *wqe, const struct siw_rdmap_event *ev);

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
 * Allocates the slots of the send queue. Returns 0 or -ENOMEM. With lazy_slots, the function is
 * called when the first request that needs a slot is posted.
 */
int siw_qp_sq_alloc(struct siw_base_qp *base);
/*
 * Copies a checked request into a slot and appends the WQE to the flow. Returns the WQE, or NULL if
 * no slot is free.
 */
struct siw_wqe *siw_qp_sq_append(struct siw_base_qp *base, struct siw_flow *flow,
				 const struct siw_send_wr *wr, uint64_t length);
/*
 * Completes a checked request immediately, without a slot of the send queue. Queues a completion
 * unless the request is unsignaled and successful.
 */
void siw_qp_sq_complete_without_slot(struct siw_base_qp *base, const struct siw_send_wr *wr,
				     uint64_t length, int status, const struct siw_addr *peer);
/* Returns the completion status of a request that could not be sent because of the -errno err. */
enum siw_wc_status siw_qp_wc_status_of_send_error(const struct siw_base_qp *base, int err);
/*
 * Marks the next request of a flow as BEGUN, or as DONE if the request failed before it began.
 * Returns the WQE of the request.
 */
struct siw_wqe *siw_qp_flow_finish_current_request(struct siw_base_qp *base, struct siw_flow *flow,
						   int state, int status);
/*
 * Completes the oldest request of a flow: queues a completion unless the request is unsignaled and
 * successful, and frees the request's slot.
 */
void siw_qp_flow_complete_oldest_request(struct siw_base_qp *base, struct siw_flow *flow,
					 int status);
/*
 * Completes all requests of a flow. first: the status of the oldest request whose outcome is
 * unknown; later requests get WR_FLUSH_ERR.
 */
void siw_qp_flow_flush_requests(struct siw_base_qp *base, struct siw_flow *flow, int first);
/*
 * Flushes a request that was posted in SQE or ERR on a QP type with one flow, unless older requests
 * are still to be flushed.
 */
void siw_qp_flush_late_send(struct siw_base_qp *base);
/*
 * Ends all requests of the send queue: flushes them if report is true, or drops them without
 * completions.
 */
void siw_qp_sq_flush_or_drop_requests(struct siw_base_qp *base, bool report);
/*
 * The type of a function that returns whether a request, posted or in progress, uses a given
 * object.
 */
typedef bool siw_qp_wqe_uses_fn(const struct siw_flow *flow, const struct siw_wqe *wqe,
				const void *what);
bool siw_qp_sq_uses_object(const struct siw_base_qp *base, siw_qp_wqe_uses_fn *uses,
			   const void *what);
/*
 * A siw_qp_wqe_uses_fn that returns whether the request uses memory with a given lkey. what:
 * pointer to the lkey, a uint32_t.
 */
siw_qp_wqe_uses_fn siw_qp_wqe_uses_lkey;
/*
 * Maximum total octets of posts that are delayed for a batch: the octets that one system call sends
 * on a datagram socket, and on a stream socket.
 */
#define SIW_DELAY_OCTETS_DGRAM	(60u << 10)
#define SIW_DELAY_OCTETS_STREAM (256u << 10)
/*
 * Minimum length, in octets, of a Read that may wait for further Reads although it is posted alone:
 * the responses to earlier Reads take longer than a poll.
 */
#define SIW_LONG_READ (16u << 10)
/* Returns a counter that changes when a poll ends the current round of posts. */
static inline uint32_t siw_qp_poll_round(const struct siw_lane *lane)
{
	return atomic_load_explicit(&lane->polls, memory_order_relaxed) +
	       atomic_load_explicit(&lane->polls_without_round, memory_order_relaxed) /
		       SIW_POLLS_PER_BURST;
}

/*
 * Whether the requests of a list, which are posted with one call, may be delayed to be sent in a
 * batch with later ones. Two conditions must hold. First, the send queue will be processed soon, by
 * a poll or by the progress thread after its current sleep. Second, either posts have been dense
 * for some rounds of posts, and the list is not a single request that is the first since the last
 * poll; or the list is a long Read that replaces one that has completed, while others are
 * outstanding. The function also counts the requests.
 */
bool siw_qp_may_delay_posts(struct siw_base_qp *base, const struct siw_send_wr *wr);

/* ---- qp_recv.c: Progress lock held ----------------------------------------------------------- */
/*
 * Sets the number of messages to receive in the QP's next turn, after n messages arrived in the
 * current turn. A receive that finds the socket empty costs a system call, which would add to the
 * latency of a single message; so the first turn makes one receive, and the number doubles while
 * messages keep arriving. If a turn ends before the socket is empty, the socket is serviced again,
 * since a poller that has received a message does not sleep. Long messages end a turn earlier
 * (SIW_TURN_OCTETS, about 10 microseconds of copying), because other queue pairs wait. Datagrams
 * that arrived with one receive call are all handled in the same turn
 * (siw_llp_poller_has_more_datagrams), and so are messages of a stream, up to the setting budget.
 */
#define SIW_TURN_OCTETS 65536

static inline void siw_qp_set_next_burst(struct siw_base_qp *base, int n)
{
	int max = (int)siw_settings()->budget;

	if (n < base->burst)
		base->burst = 1;
	else
		base->burst = base->burst * 2 < max ? base->burst * 2 : max;
}
/* Ends a receiving turn in which n messages with a total length of octets arrived. */
static inline void siw_qp_receive_turn_done(struct siw_base_qp *base, int n, uint32_t octets)
{
	siw_qp_set_next_burst(base, octets < SIW_TURN_OCTETS ? n : base->burst);
	if (base->qp.srq) {
		siw_device_srq_raise_limit_event_if_low(base->qp.srq);
		siw_device_srq_offer_returned_receives(base->qp.srq);
	}
}
/* maximum length, in octets, of a message whose latency matters more than its bandwidth */
#define SIW_LONGEST_SINGLE 65536
/*
 * Counts a complete Write or Read of a peer, if the transfer is short enough that a program may be
 * polling its memory for the data. For longer transfers bandwidth matters more, and waking the
 * watchdog threads would reduce the bandwidth. Progress lock held.
 */
static inline void siw_qp_count_one_sided(struct siw_base_qp *base, uint32_t length)
{
	base->qp.lane->one_sided += length && length <= SIW_LONGEST_SINGLE;
}
/*
 * Returns the status (enum siw_wc_status) of a receive that is completed by event RECV or BAD_RECV.
 */
int siw_qp_wc_status_of_recv_event(const struct siw_rdmap_event *ev);
/*
 * Completes the receive that an event of rdmap reports. source: the sender's address, NULL on a
 * connection. instance: on RD, the sender's instance number, otherwise 0. send_lock not held.
 */
void siw_qp_add_recv_completion(struct siw_base_qp *base, const struct siw_rdmap_event *ev,
				int status, uint32_t src_qp, const struct siw_addr *source,
				uint64_t instance);
/* Queues the completion of a received Write-Record, which consumes no receive and no slot. */
void siw_qp_write_record_add_completion(struct siw_base_qp *base,
					const struct siw_rdmap_record *rec, uint64_t instance);
/* Completes one receive with WR_FLUSH_ERR. */
void siw_qp_add_flushed_recv_completion(struct siw_base_qp *base, uint64_t wr_id);
/*
 * Sets whether received Sends wait for receives. If so, posting a receive wakes the thread that
 * makes progress.
 */
void siw_qp_set_messages_waiting(struct siw_base_qp *base, bool any);

/* ---- qp_step.c ------------------------------------------------------------------------------- */
/*
 * Moves the QP to the next state according to the state table, without carrying out the table's
 * action. Returns the action, or -EINVAL. Progress lock held.
 */
int siw_qp_apply_state_event(struct siw_base_qp *base, int event);
/*
 * Moves the QP to SQE after a request failed because of a local error, if the QP type has that
 * transition. Returns whether the type has the transition. send_lock held.
 */
bool siw_qp_move_to_sqe(struct siw_base_qp *base);
/*
 * Raises the event SQ_DRAINED once in state SQD, when all requests that had begun are complete.
 * send_lock held.
 */
void siw_qp_raise_event_if_drained(struct siw_base_qp *base);
/* Returns the asynchronous event for an error that a peer caused. */
int siw_qp_async_event_of_error(const struct siw_wire_err *err);
/* Marks the QP as having unsent requests, and wakes a sleeping thread to send them. */
void siw_qp_schedule_sending_turn(struct siw_base_qp *base);
/*
 * Sends as many requests as possible, and marks the QP as having unsent requests if requests are
 * left. send_lock not held.
 */
void siw_qp_run_sq_and_mark_unsent(struct siw_base_qp *base);
/*
 * Sends the requests that were delayed for a batch, as far as the socket accepts them now.
 * send_lock not held.
 */
void siw_qp_send_delayed_requests(struct siw_base_qp *base);
/*
 * Calls the member prepare of the QP type (struct siw_qp_class), and then sends the requests that
 * were delayed for a batch.
 */
int siw_qp_prepare_transition(struct siw_base_qp *base, int event, const struct siw_qp_attr *attr,
			      int mask);

/* ---- qp_mw.c: binds and local invalidations as requests -------------------------------------- */
/*
 * Whether a request is local and sends no message to the peer: BIND_MW or LOCAL_INV, which are
 * adjacent in enum siw_wr_opcode.
 */
static inline bool siw_qp_is_local(int opcode)
{
	return (unsigned int)opcode - SIW_WR_LOCAL_INV <= SIW_WR_BIND_MW - SIW_WR_LOCAL_INV;
}
/* Checks whether the local request may be queued. Returns 0 or -EINVAL. */
int siw_qp_mw_check_request(const struct siw_base_qp *base, const struct siw_send_wr *wr);
/*
 * Queues a local request. type: the type of the memory windows that the request may bind. send_lock
 * held, as for siw_qp_mw_execute_request() and siw_qp_mark_local_request_done().
 */
int siw_qp_mw_post_request(struct siw_base_qp *base, const struct siw_send_wr *wr, int type);
/*
 * Executes a local request. Returns 0 if the request is done; -EINPROGRESS if the request completes
 * only after siw_qp_mw_end_replaced_binding(), or if the QP is being reset (SIW_RESETTING);
 * otherwise an enum siw_wc_status.
 */
int siw_qp_mw_execute_request(struct siw_base_qp *base, struct siw_wqe *wqe);
/* Marks the next request of the QP's flow, which is a local request, as done. */
void siw_qp_mark_local_request_done(struct siw_base_qp *base);
/*
 * Ends the old binding of a memory window in base->revoke, if a binding is waiting to be ended.
 * last: the QP's own stream has ended. Progress lock held, send_lock not held.
 */
void siw_qp_mw_end_replaced_binding(struct siw_base_qp *base, bool last);

/* ---- qp_flow.c: sending, of all types but UD; send_lock held --------------------------------- */
/* The members post and check of struct siw_qp_class for QP types with one flow. */
int siw_qp_post_send_request(struct siw_base_qp *base, const struct siw_send_wr *wr, bool wait);
int64_t siw_qp_check_send_request(struct siw_base_qp *base, const struct siw_send_wr *wr);
/*
 * Begins the requests of the flow that may begin, and passes them to the lower layer. Returns the
 * same values as siw_rdmap_flush_tx().
 */
int siw_qp_flow_send_requests(struct siw_base_qp *base, struct siw_flow *flow);
/*
 * Completes the flow's requests, in order, up to the first that is not finished. A request is
 * finished when the lower layer has accepted all of it (flow->accepted) and no response is awaited,
 * or when its state is DONE.
 */
void siw_qp_reap_finished_requests(struct siw_base_qp *base, struct siw_flow *flow);
/*
 * Returns the result of a sending turn (enum siw_run) after siw_qp_flow_send_requests(), which
 * returned r, and siw_qp_reap_finished_requests(). blocked: whether the flow waits for room in
 * the socket if r is 0.
 */
enum siw_run siw_qp_flow_finish_sending_turn(struct siw_base_qp *base, int r, bool blocked);
/* Returns the request in progress whose header is quoted in the peer's error report, or NULL. */
struct siw_wqe *siw_qp_flow_find_quoted_request(const struct siw_flow *flow,
						const struct siw_rdmap_event *ev);

/* ---- qp_flush.c: Progress lock held ---------------------------------------------------------- */
/* Completes every posted send and receive of the QP with WR_FLUSH_ERR. */
void siw_qp_flush(struct siw_base_qp *base);
/* Drops all posted sends and receives of the QP without completions. */
void siw_qp_drop_requests_for_reset(struct siw_base_qp *base);
/*
 * Carries out the action of the state table after a state transition. notify: raise SQ_DRAINED when
 * the send queue has drained.
 */
void siw_qp_carry_out_transition_action(struct siw_base_qp *base, int action, bool notify);
/*
 * Moves the QP to ERR according to the state table, and raises an asynchronous event. type: enum
 * siw_event_type.
 */
void siw_qp_move_to_err(struct siw_base_qp *base, int type);

/*
 * Converts the result of the member run to an enum siw_turn. progressed: whether a request
 * completed.
 */
enum siw_turn siw_qp_run_result_to_turn_result(enum siw_run left, bool progressed);
/*
 * Members of struct siw_qp_ops shared by several QP types: make a sending turn; return whether
 * requests use a memory key; return whether there are no requests.
 */
enum siw_turn siw_qp_make_sending_turn(struct siw_qp *qp, uint64_t round);
bool siw_qp_uses_lkey(struct siw_qp *qp, uint32_t lkey);
bool siw_qp_has_empty_sq(const struct siw_qp *qp);
/*
 * Whether requests of the QP use a given object, after the requests that were delayed for a batch
 * have been sent.
 */
bool siw_qp_still_uses_object(struct siw_base_qp *base, siw_qp_wqe_uses_fn *uses, const void *what);
/*
 * Members of struct siw_qp_ops shared by the datagram QP types. The member fail moves the QP to
 * ERR. The member leave, called when the process exits, sends the requests that were delayed for a
 * batch.
 */
void siw_qp_fail(struct siw_qp *qp, int status);
void siw_qp_dgram_send_delayed_at_exit(struct siw_qp *qp);

/* ---- qp_ud_mcast.c; progress lock held ------------------------------------------------------- */
/* Ends all multicast memberships of the QP. */
void siw_qp_leave_mcast_groups(struct siw_ud_qp *ud);

/* ---- qp_errq.c; progress lock held ----------------------------------------------------------- */
/*
 * Handles an invalid message from a peer: queues an error entry, and moves the QP to ERR if the
 * QP's error policy requires it.
 */
void siw_qp_err_handle_invalid_message(struct siw_base_qp *base,
				       const struct siw_rdmap_event *event);
/*
 * Handles an access of a peer to memory without the right to access it (BAD_ACCESS): queues an
 * error entry, whatever the error policy is.
 */
void siw_qp_errq_add_access_error(struct siw_base_qp *base, const struct siw_rdmap_event *event);
/*
 * Handles a peer's report of an error in a request that is already complete: queues an error entry.
 * wr_id: the wr_id of the request, 0 if not known.
 */
void siw_qp_errq_add_error_reported_by_peer(struct siw_base_qp *base,
					    const struct siw_rdmap_event *event, uint64_t wr_id);
/*
 * Recomputes errs_fatal, whether errors move the QP to ERR. Must be called when the QP is created,
 * gets another Q_Key, joins its first multicast group, or leaves its last group.
 */
void siw_qp_err_update_policy(struct siw_base_qp *base, bool in_group);

/* ---- qp_number.c; the lock of the QP's lane held, except for siw_qp_check_usable ------------- */
/*
 * Begins a public call on a queue pair: every public function calls siw_qp_check_usable() first.
 * Returns 0, or -errno if qp is NULL or was inherited over fork().
 */
int siw_qp_check_usable(const struct siw_qp *qp);
/*
 * Opens a UDP socket whose events the queue pair handles: a socket bound to addr, or the user's
 * descriptor fd.
 */
int siw_qp_open_udp_socket(struct siw_base_qp *base, const struct siw_addr *addr, int fd,
			   struct siw_llp_sock **out);
/* Gives the next free QPN of the RC QPs with connection manager to the QP. */
void siw_qp_reserve_next_rc_qpn(struct siw_base_qp *base);
/*
 * Gives the number qpn to the QP, unless another QP of the device has it. Returns whether the QP
 * has it now. For an RC QP, the caller has already incremented ctx->n_rc.
 */
bool siw_qp_reserve_qpn(struct siw_base_qp *base, uint32_t qpn);
/* Lists a QP whose type has set the QPN itself, so that no RC QP gets the same number. */
void siw_qp_enter_qpn_in_list(struct siw_base_qp *base);
/* Whether the number of the QP is listed: the QP is not destroyed. Any lock may be held. */
bool siw_qp_is_qpn_in_list(struct siw_base_qp *base);
/* Makes the number of the QP free again. May be called twice; any lock may be held. */
void siw_qp_release_qpn(struct siw_base_qp *base);
/*
 * Stores in *addr the wanted address or, if no address is wanted, the device's first address.
 * Returns 0 or -EADDRNOTAVAIL.
 */
int siw_qp_addr_or_first_of_device(const struct siw_base_qp *base, const struct siw_addr *wanted,
				   struct siw_addr *addr);

/* ---- queue pair types ------------------------------------------------------------------------ */
extern const struct siw_qp_class siw_qp_rc_class, siw_qp_ud_class, siw_qp_uc_class, siw_qp_rd_class;

/* ---- qp_uc.c: the circuit breaker; progress lock held ---------------------------------------- */
/* Resets the circuit breaker of a UC QP. psn: PSN of the first datagram sent. send_lock held. */
void siw_qp_circuit_breaker_init(struct siw_uc_qp *uc, uint32_t psn);
/*
 * Applies the rate limit of a UC QP after the user or the circuit breaker has changed the limit.
 * send_lock held.
 */
void siw_qp_circuit_breaker_apply_rate(struct siw_uc_qp *uc);
/*
 * Notifies a paused circuit breaker that a request is about to be sent. send_lock held; the
 * progress lock need not be held.
 */
static inline void siw_qp_circuit_breaker_note_send(struct siw_uc_qp *uc)
{
	if (__builtin_expect(uc->breaker.paused && !uc->breaker.resumed, 0)) {
		uc->breaker.resumed = true;
		siw_llp_sock_set_timer(uc->sock, siw_now_ns());
	}
}
/*
 * Sends a report to the peer if a report is due, and evaluates the peer's report. Called after a
 * datagram was received, or when traffic has resumed after a pause.
 */
void siw_qp_circuit_breaker_exchange_reports(struct siw_uc_qp *uc);
/* Called when the circuit breaker's timer expires (the member tick of struct siw_timed). */
void siw_qp_circuit_breaker_handle_timer(struct siw_timed *timed, uint64_t now_ns);

/* ---- qp_record.c: UD's Write-Records --------------------------------------------------------- */
/* Returns the RDMAP operation for the WQE of a Write-Record. */
struct siw_rdmap_record_op siw_qp_write_record_make_op(const struct siw_wqe *wqe);
/*
 * Queues completions of complete Write-Records, and sets the timer for the unfinished
 * Write-Records. Progress lock held.
 */
void siw_qp_write_record_report_completed(struct siw_ud_qp *ud, uint64_t now_ns);
void siw_qp_write_record_handle_timer(struct siw_timed *timed, uint64_t now_ns);
/* Records that the program polled the completion of a Write-Record, on UD or RD. */
void siw_qp_write_record_note_polled_completion(struct siw_base_qp *base,
						struct siw_records *records);
/* Drops the unfinished Write-Records that a UD QP is receiving. Progress lock held. */
void siw_qp_write_record_abandon_all(struct siw_ud_qp *ud);

/* ---- qp_ud.c --------------------------------------------------------------------------------- */
/*
 * Completes the receive of a UD QP that a RECV or BAD_RECV event reports; see
 * siw_qp_add_recv_completion().
 */
void siw_qp_ud_add_recv_completion(struct siw_ud_qp *ud, const struct siw_rdmap_event *ev);

#endif
