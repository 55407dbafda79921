/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/rc/qp_rc.h - the streams of RC queue pairs, for the folder that connects queue pairs. All
 * functions are called with the progress lock held and the send lock not held.
 */
#ifndef SIW_QP_RC_H
#define SIW_QP_RC_H

#include "qp/qp_impl.h"

/*
 * Hands the MPA stream to the queue pair, which starts DDP and RDMAP on it and, with a connection
 * manager, moves to RTS. The caller sets the connection of struct siw_rc_qp next. 0, or -errno with
 * nothing changed.
 */
int siw_qp_rc_start(struct siw_rc_qp *rc, struct siw_mpa_stream *mpa,
		    const struct siw_rc_start *start);
/*
 * Sends a Terminate as the only message of a stream that no queue pair owns, and waits,
 * independently of the caller, for the peer's end of the stream. 0: the stream was taken over;
 * -EPIPE: no Terminate could be sent; -ENOMEM.
 */
int siw_qp_rc_refuse(struct siw_context *ctx, struct siw_mpa_stream *mpa,
		     const struct siw_wire_err *err);
/*
 * Called before this end closes: sends delayed requests, and receives messages that have arrived,
 * up to a limit.
 */
void siw_qp_rc_settle(struct siw_base_qp *base);
/*
 * Ends the stream: moves the QP to ERR according to the table, sends the requests that have begun
 * (and, with SIW_TERMINATING, a Terminate), then flushes and gives up the stream. status and err:
 * the cause that on_ended reports; the first cause counts.
 */
void siw_qp_rc_fail(struct siw_rc_qp *rc, enum siw_teardown how, int status,
		    const struct siw_wire_err *err);
/*
 * The stream has ended, or posted requests have waited for a stream until their time-out. With a
 * connection manager: as siw_qp_rc_fail(). Without: if the stream ended, the QP keeps its state;
 * after a time-out the oldest request ends with RETRY_EXC_ERR, and the QP goes to ERR.
 */
void siw_qp_rc_stream_lost(struct siw_rc_qp *rc, int status);

#endif
