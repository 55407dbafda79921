/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* qp/qp_rd.h - what qp_rd.c, the sending side of RD queue pairs, does for qp_rd_serve.c. */
#ifndef SIW_QP_RD_H
#define SIW_QP_RD_H

#include "qp/qp_impl.h"

/* The requests to one peer, which lies with its stream. All under the send lock. */
struct siw_qp_rd_flow {
	struct siw_rdmap_stream *stream; /* NULL: it was never used */
	struct siw_ddp_stream *ddp;	 /* what that stands on */
	struct siw_link busy;		 /* in rd_busy, while it has requests */
	struct siw_link ready;		 /* in rd_ready */
	uint32_t n;
	uint32_t first, last; /* slots of the oldest and the newest, if there are any */
	uint32_t next;	      /* of the next to begin, or NONE */
	uint32_t reads_out;
	bool torn; /* siw_rdmap_rd_is_torn, and the request that broke off says so */
};

/* send_lock held, for all of these. */
struct siw_qp_rd_flow *siw_qp_rd_flow_of(struct siw_rdmap_stream *stream);
/* It has something to begin or to go on with. */
void siw_qp_rd_ready(struct siw_rd_qp *rd, struct siw_qp_rd_flow *flow);
/* Completes, in order, what the peer has (segments accepted) and what was read there. */
void siw_qp_rd_reap(struct siw_rd_qp *rd, struct siw_qp_rd_flow *flow, uint64_t accepted);
/* Every request to a peer is over; the first of them for that reason, the rest flushed. */
void siw_qp_rd_finish_all(struct siw_rd_qp *rd, struct siw_qp_rd_flow *flow, int first);

/* Flushes the requests that a flow had, whose stream is gone. */
void siw_qp_rd_flush_slots(struct siw_rd_qp *rd, const struct siw_qp_rd_flow *flow,
			   const struct siw_addr *peer);
/* All slots of its ring are free: they are in no order here. */
void siw_qp_rd_slots(struct siw_rd_qp *rd);
int siw_qp_rd_post(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait);
enum siw_run siw_qp_rd_run(struct siw_wq *wq);
/* Whatever peers have requests, there may be something to begin. */
void siw_qp_rd_resume(struct siw_wq *wq);
/* Ends every request: with WR_FLUSH_ERR, or without a word; and what peers are at. progress held, too. */
void siw_qp_rd_abandon(struct siw_wq *wq, bool report);
bool siw_qp_rd_uses_key(struct siw_wq *wq, uint32_t lkey);

#endif
