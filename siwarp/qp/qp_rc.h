/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_rc.h - what the files of RC queue pairs share. A file calls only those above its own
 * section here.
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
 * A stream begins. agreed: the peer is siwarp, and delivery counts are offered by both. rnr_retry: as
 * in struct siw_qp_attach. Both locks.
 */
void siw_qp_rc_count_from(struct siw_rc *rc, bool agreed, int rnr_retry);
/* The peer says what it has: whether that can be. send_lock held. */
bool siw_qp_rc_delivered(struct siw_rc *rc, const struct siw_rdmap_event *ev);
/*
 * A turn of receiving took n segments with so many octets: tells the peer, now or in a later turn,
 * if it wants to know. progress held, as for what follows.
 */
void siw_qp_rc_count_served(struct siw_rc *rc, int n, uint32_t octets);
/* A turn of sending: tells the peer, if it is time. Whether another turn is needed. */
bool siw_qp_rc_count_turn(struct siw_rc *rc);
/* Tells the peer now, before this end closes. */
void siw_qp_rc_count_now(struct siw_rc *rc);

/* ---- qp_rnr.c; progress held ----------------------------------------------------------------- */
/* A Send found no receive: starts the receiver-not-ready time. */
void siw_qp_rnr_begin(struct siw_rc *rc);
/* No Send waits for a receive any more. */
void siw_qp_rnr_end(struct siw_rc *rc);
/* After waiting Sends were served: whether one has waited too long; if so, an ERROR is due. */
bool siw_qp_rnr_has_expired(struct siw_rc *rc, uint64_t now_ns);

/* ---- qp_rc_close.c; all with progress held and send_lock not --------------------------------- */
/* Sets the cause that on_end reports. Only the first call counts. */
void siw_qp_rc_cause(struct siw_rc *rc, int status, const struct siw_wire_err *err);
/*
 * The stream ended by an error or by the peer: moves the QP to ERR by the table, then as
 * siw_qp_rc_close.
 */
void siw_qp_rc_fail(struct siw_rc *rc, enum siw_teardown how, int status,
		    const struct siw_wire_err *err);
/*
 * The stream is over, or what is posted has waited for one in vain. With a connection manager as
 * siw_qp_rc_fail. Without, the QP stays as it is in the first case; in the second the oldest
 * request ends with RETRY_EXC_ERR, and the QP goes to ERR.
 */
void siw_qp_rc_lost(struct siw_rc *rc, int status);
/* As take_recv of struct siw_qp_class. */
int siw_qp_rc_take_recv(struct siw_wq *wq, uint64_t *wr_id);
/*
 * The QP is in ERR: sends what was begun (and a Terminate), then flushes and gives up the stream.
 */
void siw_qp_rc_close(struct siw_rc *rc, enum siw_teardown how);
/* Continues this; and at its deadline. */
void siw_qp_rc_close_step(struct siw_rc *rc);
void siw_qp_rc_close_tick(struct siw_rc *rc, uint64_t now_ns);
/*
 * Waits, independently of any QP, for the peer's end of a stream whose sending side is shut. 0,
 * -ENOMEM.
 */
int siw_qp_linger(struct siw_context *ctx, struct siw_mpa_stream *mpa);
/* Resets the connection: what TCP has not accepted must not be sent any more. */
void siw_qp_rc_abort(struct siw_rc *rc);
/* Gives up the stream at once; what TCP has accepted still reaches the peer. */
void siw_qp_rc_release(struct siw_rc *rc);

/* ---- qp_rc.c; progress held ------------------------------------------------------------------ */
/* Before this end closes: sends what waits, and receives what has arrived, within bounds. */
void siw_qp_rc_settle(struct siw_wq *wq);

/* Whether the response to this Read or atomic says that the peer has received the Sends before it. */
static inline bool siw_qp_rc_confirms_sends(const struct siw_wqe *wqe)
{
	return wqe->opcode != SIW_WR_RDMA_READ || !wqe->length;
}

#endif
