/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* qp/rd/qp_rd.h - functions of qp_rd.c, the sending side of RD queue pairs, for qp_rd_serve.c. */
#ifndef SIW_QP_RD_H
#define SIW_QP_RD_H

#include "qp/qp_impl.h"

/*
 * The functions of this section are called with send_lock held. The flow of a stream, which is
 * stored with the stream.
 */
struct siw_flow *siw_qp_rd_flow_of(struct siw_rdmap_stream *stream);
/* Marks a flow as having requests to begin or to continue. */
void siw_qp_rd_ready(struct siw_rd_qp *rd, struct siw_flow *flow);
/* Marks every flow with requests as ready. */
void siw_qp_rd_resume(struct siw_wq *wq);
/* Completes, in order, the requests that the peer has accepted or that are DONE. */
void siw_qp_rd_reap(struct siw_rd_qp *rd, struct siw_flow *flow);

/* Members of struct siw_qp_class. */
int siw_qp_rd_post(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait);
int64_t siw_qp_rd_check(struct siw_wq *wq, const struct siw_send_wr *wr);
enum siw_run siw_qp_rd_run(struct siw_wq *wq);
int siw_qp_rd_begin(struct siw_wq *wq, struct siw_flow *flow, struct siw_wqe *wqe);
void siw_qp_rd_failed(struct siw_wq *wq, struct siw_flow *flow, int status);
int siw_qp_rd_flush(struct siw_wq *wq, struct siw_flow *flow);
/* Ends all work in progress with peers. Progress lock held, too. */
void siw_qp_rd_abandon(struct siw_wq *wq);

/* ---- qp_rd_close.c; progress lock held ------------------------------------------------------- */

/*
 * Closes an endpoint that no longer has a queue pair, after the peers have received everything sent
 * before.
 */
void siw_qp_rd_linger(struct siw_context *ctx, struct siw_rd *endpoint);
/*
 * Closes at once an endpoint without a queue pair that uses the port of addr. false: there is none.
 */
bool siw_qp_rd_free_port(struct siw_context *ctx, const struct siw_addr *addr);

#endif
