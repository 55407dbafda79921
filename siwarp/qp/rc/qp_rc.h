/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/rc/qp_rc.h - functions on the streams of RC queue pairs, which the code that connects queue
 * pairs calls. All functions are called with the lock of the lane of the stream and its queue pair
 * held, and with the send lock not held.
 */
#ifndef SIW_QP_RC_H
#define SIW_QP_RC_H

#include "qp/qp_impl.h"

/*
 * Passes the MPA stream to the queue pair, which starts DDP and RDMAP on the stream and, with a
 * connection manager, moves to RTS. The caller sets the connection of struct siw_rc_qp next.
 * Returns 0, or -errno if nothing was changed.
 */
int siw_qp_rc_start_stream(struct siw_rc_qp *rc, struct siw_mpa_stream *mpa,
			   const struct siw_rc_start *start);
/*
 * Sends a Terminate as the only message of a stream of this lane that no queue pair owns, and
 * waits, independently of the caller, until the peer closes the stream. Returns 0 if the function
 * now owns the stream; -EPIPE if no Terminate could be sent; -ENOMEM.
 */
int siw_qp_rc_refuse_with_terminate(struct siw_lane *lane, struct siw_mpa_stream *mpa,
				    const struct siw_wire_err *err);
/*
 * Sends delayed requests, and receives messages that have arrived, up to a limit. Called before
 * this end closes the connection.
 */
void siw_qp_rc_receive_arrived_messages(struct siw_base_qp *base);
/*
 * Ends the stream: moves the QP to ERR according to the state table, finishes sending the requests
 * whose transmission has begun (and, with SIW_TERMINATING, a Terminate), then flushes all requests
 * and closes the stream. status and err: the cause that on_ended reports, unless an earlier cause
 * was set.
 */
void siw_qp_rc_fail(struct siw_rc_qp *rc, enum siw_teardown how, int status,
		    const struct siw_wire_err *err);
/*
 * Handles the end of the stream, or the time-out of posted requests that have waited for a stream.
 * With a connection manager, the effect is that of siw_qp_rc_fail(). Without a connection manager,
 * the QP keeps its state if the stream ended; after a time-out the oldest request completes with
 * RETRY_EXC_ERR, and the QP is moved to ERR.
 */
void siw_qp_rc_handle_lost_stream(struct siw_rc_qp *rc, int status);

#endif
