/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Write-Record on UD: posted with an address handle and a key of the target's; there, a completion that uses
 * no receive tells who wrote what where, and which octets of it came.
 */
#include <errno.h>

#include "base/addr.h"
#include "base/clock.h"
#include "rdmap/rdmap_record.h"
#include "verbs/verbs_impl.h"

_Static_assert(sizeof(struct siw_record_range) == sizeof(struct siw_rdmap_range),
	       "the same values");

/* ---- sending --------------------------------------------------------------------------------- */

int siw_verbs_record_send(struct siw_qp *qp, struct siw_wqe *wqe)
{
	struct siw_rdmap_record_op op = {
		.cookie = wqe->wr_id,
		.dest = &wqe->dest,
		.dest_index = (uint8_t)wqe->remote,
		.qkey = wqe->rkey,
		.solicited = wqe->flags & SIW_SEND_SOLICITED,
		.internal = wqe->flags & SIW_SEND_INLINE,
		.stag = wqe->record.rkey,
		.to = wqe->record.addr,
		.sgl = wqe->sge,
		.nsge = wqe->nsge,
		.length = wqe->length,
	};

	return siw_rdmap_record_send(qp->dgram, &op, &wqe->seq);
}

/* How often one looks whether somebody polled who had let completions lie. */
#define UNPOLLED_NS 10000000ull

/* ---- the target ------------------------------------------------------------------------------ */

static void complete(struct siw_qp *qp, const struct siw_rdmap_record *rec)
{
	struct siw_wc wc = {
		.wr_id = rec->number,
		.opcode = SIW_WC_RECV_WRITE_RECORD,
		.byte_len = rec->length,
		.qp_num = atomic_load_explicit(&qp->qpn, memory_order_relaxed),
		.src_qp = rec->src_qpn,
	};

	qp->records_told++;
	qp->rq_done--; /* it used none, and what counts it knows of no other */
	siw_verbs_complete(qp, qp->recv_cq, &wc, &rec->source, rec->solicited);
	siw_verbs_heard(qp);
}

void siw_verbs_record_came(struct siw_qp *qp, uint64_t number)
{
	complete(qp, siw_rdmap_rd_record_find(qp->rd, number));
}

void siw_verbs_record_polled(struct siw_qp *qp)
{
	atomic_fetch_add(&qp->records_polled, 1);
	/* Pairs with who holds a peer: it looks at the number behind the store of this. */
	if (atomic_load(&qp->records_wait)) {
		siw_verbs_mark_unsent(qp);
		siw_verbs_nudge(qp->ctx);
	}
}

/* Tells of those that are over: when to look again, 0 if there is nothing to look for. */
static uint64_t tell(struct siw_qp *qp, uint64_t now_ns)
{
	const struct siw_rdmap_record *rec;
	uint64_t due;

	/* Who does not poll is told no more: neither their queue nor what is kept here overflows. */
	while (qp->records_told - atomic_load_explicit(&qp->records_polled, memory_order_relaxed) <
	       siw_rdmap_record_kept(qp->max_records)) {
		rec = siw_rdmap_record_next(qp->dgram, now_ns, &due);
		if (!rec)
			return due;
		complete(qp, rec);
	}
	return now_ns + UNPOLLED_NS;
}

void siw_verbs_record_look(struct siw_qp *qp, uint64_t now_ns)
{
	uint64_t due = tell(qp, now_ns);

	/* Setting a timer wakes whoever sleeps: one that is on and goes off before will do. */
	if (due && (siw_link_alone(&qp->timed.link) || due < qp->timed.due_ns))
		siw_verbs_timed_at(qp->ctx, &qp->timed, due);
}

void siw_verbs_record_tick(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_qp *qp = siw_container(timed, struct siw_qp, timed);
	uint64_t due = qp->dgram ? tell(qp, now_ns) : 0;

	if (due)
		siw_verbs_timed_at(qp->ctx, &qp->timed, due);
	else
		siw_verbs_timed_del(qp->ctx, &qp->timed);
}

void siw_verbs_record_clear(struct siw_qp *qp)
{
	if (!qp->max_records || !qp->dgram)
		return;
	siw_rdmap_record_clear(qp->dgram);
	siw_verbs_timed_del(qp->ctx, &qp->timed);
}

static int query(const struct siw_qp *qp, uint64_t wr_id, struct siw_record *record,
		 struct siw_record_range *ranges, int max)
{
	const struct siw_rdmap_record *rec = qp->dgram ? siw_rdmap_record_find(qp->dgram, wr_id)
					     : qp->rd  ? siw_rdmap_rd_record_find(qp->rd, wr_id)
						       : NULL;

	if (!rec)
		return -ENOENT;
	if (record)
		*record = (struct siw_record){
			.source = rec->source,
			.src_qp = rec->src_qpn,
			.id = rec->id,
			.addr = rec->to,
			.rkey = rec->stag,
			.length = rec->length,
			.valid = rec->valid,
		};
	for (uint32_t i = 0; i < rec->n && (int)i < max; i++)
		ranges[i] = (struct siw_record_range){ rec->ranges[i].start, rec->ranges[i].end };
	return (int)rec->n;
}

int siw_query_record(struct siw_qp *qp, uint64_t wr_id, struct siw_record *record,
		     struct siw_record_range *ranges, int max)
{
	int n;

	if (!qp)
		return -EINVAL;
	if (siw_verbs_inherited(qp->ctx))
		return -ESTALE;
	if ((qp->type != SIW_QPT_UD && qp->type != SIW_QPT_RD) || !wr_id || (max > 0 && !ranges))
		return -EINVAL;
	siw_lock(&qp->ctx->progress);
	n = query(qp, wr_id, record, ranges, max);
	siw_unlock(&qp->ctx->progress);
	return n;
}
