/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* qp/qp_rd.h - what qp_rd.c, the sending side of RD queue pairs, does for qp_rd_serve.c. */
#ifndef SIW_QP_RD_H
#define SIW_QP_RD_H

#include "qp/qp_impl.h"

/* All with send_lock held. The flow of a stream; it is stored with the stream. */
struct siw_flow *siw_qp_rd_flow_of(struct siw_rdmap_stream *stream);
/* The flow has something to begin or to continue. */
void siw_qp_rd_ready(struct siw_rd_qp *rd, struct siw_flow *flow);
/* Every flow with requests may have something to begin. */
void siw_qp_rd_resume(struct siw_wq *wq);
/* Completes, in order, requests that the peer has accepted or that are done. */
void siw_qp_rd_reap(struct siw_rd_qp *rd, struct siw_flow *flow);

/* As struct siw_qp_class has them. */
int siw_qp_rd_post(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait);
int64_t siw_qp_rd_check(struct siw_wq *wq, const struct siw_send_wr *wr);
enum siw_run siw_qp_rd_run(struct siw_wq *wq);
int siw_qp_rd_begin(struct siw_wq *wq, struct siw_flow *flow, struct siw_wqe *wqe);
void siw_qp_rd_failed(struct siw_wq *wq, struct siw_flow *flow, int status);
int siw_qp_rd_flush(struct siw_wq *wq, struct siw_flow *flow);
/* Ends what is in progress with peers. progress held, too. */
void siw_qp_rd_abandon(struct siw_wq *wq);

/* ---- qp_rd_close.c; progress held ------------------------------------------------------------ */

/* Closes an endpoint without a queue pair, once what was sent before has reached the peers. */
void siw_qp_rd_part(struct siw_context *ctx, struct siw_rd *endpoint);
/* Closes at once such an endpoint that has this address's port. false: there is none. */
bool siw_qp_rd_yield(struct siw_context *ctx, const struct siw_addr *addr);

#endif
