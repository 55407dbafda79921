/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* verbs/verbs_rd.h - what the two files of RD queue pairs share. */
#ifndef SIW_VERBS_RD_H
#define SIW_VERBS_RD_H

#include "verbs/verbs_impl.h"

/* The requests to one peer, which lies with its stream. All under the send lock. */
struct siw_rd_flow {
	struct siw_rdmap_stream *stream; /* NULL: it was never used */
	struct siw_link busy;		 /* in rd_busy, while it has requests */
	struct siw_link ready;		 /* in rd_ready */
	uint32_t n;
	uint32_t first, last; /* slots of the oldest and the newest, if there are any */
	uint32_t next;	      /* of the next to begin, or NONE */
	uint32_t reads_out;
	bool torn; /* siw_rdmap_rd_is_torn, and the request that broke off says so */
};

/* send_lock held, for all of these. */
struct siw_rd_flow *siw_verbs_rd_flow(struct siw_rdmap_stream *stream);
/* It has something to begin or to go on with. */
void siw_verbs_rd_ready(struct siw_qp *qp, struct siw_rd_flow *flow);
/* Completes, in order, what the peer has and what was read there. */
void siw_verbs_rd_reap(struct siw_qp *qp, struct siw_rd_flow *flow);
/* Every request to a peer is over; the first of them for that reason, the rest flushed. */
void siw_verbs_rd_finish_all(struct siw_qp *qp, struct siw_rd_flow *flow, int first);

/* Flushes the requests that a flow had, whose stream is gone. */
void siw_verbs_rd_flush_slots(struct siw_qp *qp, const struct siw_rd_flow *flow,
			      const struct siw_addr *peer);

/* verbs_rd_serve.c */
int siw_verbs_rd_serve(struct siw_pollee *self);

#endif
