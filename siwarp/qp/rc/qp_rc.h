/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/rc/qp_rc.h - internal interface between the files of RC queue pairs. A file calls only functions
 * of sections above its own.
 */
#ifndef SIW_QP_RC_H
#define SIW_QP_RC_H

#include "qp/qp_impl.h"

/* ---- qp_rc_tx.c: as struct siw_qp_class has them; send_lock held ----------------------------- */
enum siw_run siw_qp_rc_run(struct siw_wq *wq);
int siw_qp_rc_begin(struct siw_wq *wq, struct siw_flow *flow, struct siw_wqe *wqe);
void siw_qp_rc_failed(struct siw_wq *wq, struct siw_flow *flow, int status);
int siw_qp_rc_flush(struct siw_wq *wq, struct siw_flow *flow);
void siw_qp_rc_did_local(struct siw_wq *wq, struct siw_wqe *wqe);

/* ---- qp_rc_counts.c -------------------------------------------------------------------------- */
/*
 * Called when a stream starts. agreed: the peer is siwarp, and both ends offer delivery counts.
 * rnr_retry: as in struct siw_connect_attach. Both locks held.
 */
void siw_qp_rc_counts_start(struct siw_rc *rc, bool agreed, int rnr_retry);
/* Handles a delivery count of the peer. Returns whether the count is plausible. send_lock held. */
bool siw_qp_rc_delivered(struct siw_rc *rc, const struct siw_rdmap_event *ev);
/*
 * Called after a receiving turn with n segments of octets in total: sends the peer a count, now or
 * in a later turn, if the peer requested counts. Progress lock held, as for the functions below.
 */
void siw_qp_rc_counts_received(struct siw_rc *rc, int n, uint32_t octets);
/*
 * Called in a sending turn: sends the peer a count, if one is due. Returns whether another turn is
 * needed.
 */
bool siw_qp_rc_counts_turn(struct siw_rc *rc);
/* Sends the peer a count now, before this end closes. */
void siw_qp_rc_counts_send(struct siw_rc *rc);

/* ---- qp_rc_rnr.c; progress lock held --------------------------------------------------------- */
/* A Send found no receive: starts the receiver-not-ready time. */
void siw_qp_rnr_begin(struct siw_rc *rc);
/* No Send waits for a receive any more. */
void siw_qp_rnr_end(struct siw_rc *rc);
/*
 * Called after waiting Sends were served: whether one of them has waited too long; if so, RDMAP
 * delivers an ERROR event.
 */
bool siw_qp_rnr_has_expired(struct siw_rc *rc, uint64_t now_ns);

/* ---- qp_rc_close.c; all with the progress lock held and send_lock not ------------------------ */
/* Sets the cause that on_ended reports. Only the first call counts. */
void siw_qp_rc_cause(struct siw_rc *rc, int status, const struct siw_wire_err *err);
/*
 * The stream ended because of an error or by the peer: moves the QP to ERR according to the table,
 * then as siw_qp_rc_close().
 */
void siw_qp_rc_fail(struct siw_rc *rc, enum siw_teardown how, int status,
		    const struct siw_wire_err *err);
/*
 * The stream has ended, or posted requests have waited for a stream until their time-out. With a
 * connection manager: as siw_qp_rc_fail(). Without: if the stream ended, the QP keeps its state;
 * after a time-out the oldest request ends with RETRY_EXC_ERR, and the QP goes to ERR.
 */
void siw_qp_rc_stream_lost(struct siw_rc *rc, int status);
/* As take_recv of struct siw_qp_class. */
int siw_qp_rc_take_recv(struct siw_wq *wq, uint64_t *wr_id);
/*
 * The QP is in ERR: sends the requests that have begun (and a Terminate), then flushes and gives up
 * the stream.
 */
void siw_qp_rc_close(struct siw_rc *rc, enum siw_teardown how);
/* Continue a close: when the socket is ready, and at the timer. */
void siw_qp_rc_close_step(struct siw_rc *rc);
void siw_qp_rc_close_tick(struct siw_rc *rc, uint64_t now_ns);
/*
 * Waits, independently of any QP, for the peer's end of a stream whose sending side is shut down. 0
 * or -ENOMEM.
 */
int siw_qp_linger(struct siw_context *ctx, struct siw_mpa_stream *mpa);
/* Resets the connection, for data that TCP has not accepted and that must not be sent any more. */
void siw_qp_rc_abort(struct siw_rc *rc);
/* Gives up the stream at once; data that TCP has accepted still reaches the peer. */
void siw_qp_rc_release(struct siw_rc *rc);

/* ---- qp_rc.c; progress lock held ------------------------------------------------------------- */
/*
 * Called before this end closes: sends delayed requests, and receives messages that have arrived,
 * up to a limit.
 */
void siw_qp_rc_settle(struct siw_wq *wq);

/*
 * Whether the response to this Read or atomic shows that the peer has received the earlier Sends.
 */
static inline bool siw_qp_rc_confirms_sends(const struct siw_wqe *wqe)
{
	return wqe->opcode != SIW_WR_RDMA_READ || !wqe->length;
}

#endif
