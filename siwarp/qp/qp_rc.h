/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_rc.h - what the files of RC queue pairs do for each other; a file calls those above it
 * here.
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

/* ---- qp_rnr.c; progress held ----------------------------------------------------------------- */
/* A Send found no receive. */
void siw_qp_rnr_begin(struct siw_rc *rc);
/* Nobody waits any more. */
void siw_qp_rnr_end(struct siw_rc *rc);
/* What waited was served: whether it waited too long, and the ERROR is there to be taken. */
bool siw_qp_rnr_has_expired(struct siw_rc *rc, uint64_t now_ns);

/* ---- qp_rc_close.c; all with progress held and send_lock not --------------------------------- */
/* Why the stream ends: on_end says it. The first counts. */
void siw_qp_rc_cause(struct siw_rc *rc, int status, const struct siw_wire_err *err);
/* An error or the peer ended the stream: to ERR by the table, then as siw_qp_rc_close. */
void siw_qp_rc_fail(struct siw_rc *rc, enum siw_teardown how, int status,
		    const struct siw_wire_err *err);
/*
 * The QP is in ERR: gets what was begun (and a Terminate) out, then flushes and lets go of the
 * stream.
 */
void siw_qp_rc_close(struct siw_rc *rc, enum siw_teardown how);
/* Goes on with it; and at its time. */
void siw_qp_rc_close_step(struct siw_rc *rc);
void siw_qp_rc_close_tick(struct siw_rc *rc, uint64_t now_ns);
/* Awaits the peer's end of a stream that was shut, with nobody's help. 0, -ENOMEM. */
int siw_qp_linger(struct siw_context *ctx, struct siw_mpa_stream *mpa);
/* Ends the stream with a reset: what TCP has not taken must not be sent any more. */
void siw_qp_rc_abort(struct siw_rc *rc);
/* Lets go of the stream at once; what TCP has taken still reaches the peer. */
void siw_qp_rc_release(struct siw_rc *rc);

/* ---- qp_rc.c; progress held ------------------------------------------------------------------ */
/* Before this end closes: takes in what has come already, within bounds. */
void siw_qp_rc_settle(struct siw_wq *wq);

#endif
