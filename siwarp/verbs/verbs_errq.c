/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Errors of datagram queue pairs: what this end found in peers' messages, what peers report of ours,
 * and what becomes of the queue pair. What a peer reports only ever lies in the queue to be read.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/capture.h"
#include "verbs/verbs_impl.h"

/* Both origins in one ring, so that they come out in their order; neither may take more than half. */
struct siw_errq {
	uint32_t size, head, n; /* head: the oldest */
	uint32_t waiting[2];	/* by origin, less one */
	struct siw_err_entry entry[];
};

static struct siw_errq *make(void)
{
	uint32_t size = (uint32_t)siw_settings()->err_queue;
	struct siw_errq *q = calloc(1, sizeof(*q) + size * sizeof(q->entry[0]));

	if (q)
		q->size = size;
	return q;
}

/* The first ones stay: they are mostly the cause of the others. */
static void put(struct siw_qp *qp, const struct siw_rdmap_event *event, int origin, uint64_t wr_id)
{
	struct siw_errq *q = qp->errq ? qp->errq : (qp->errq = make());
	struct siw_err_entry *entry;

	if (!q || q->waiting[origin - 1] >= q->size / 2) {
		siw_count(SIW_COUNTER_err_lost, 1);
		return;
	}
	entry = &q->entry[(q->head + q->n++) % q->size];
	q->waiting[origin - 1]++;
	*entry = (struct siw_err_entry){
		.origin = origin,
		.src_qpn = event->src_qpn,
		.source = event->source,
		.wr_id = wr_id,
		.msn = event->quoted_msn,
		.seg_len = event->quoted_seg_len,
		.layer = event->err.layer,
		.type = event->err.type,
		.code = event->err.code,
		.header_len = event->quoted_head_len,
	};
	memcpy(entry->header, event->quoted_head, event->quoted_head_len);
}

static void tell(struct siw_qp *qp, const struct siw_rdmap_event *event)
{
	int err;

	if (!siw_verbs_errgate_pass(qp->ctx, &event->source)) {
		siw_count(SIW_COUNTER_err_limited, 1);
		return;
	}
	siw_lock(&qp->send_lock);
	err = siw_rdmap_dgram_answer(qp->dgram, event);
	siw_unlock(&qp->send_lock);
	siw_count(err ? SIW_COUNTER_err_unsent : SIW_COUNTER_err_sent, 1);
}

void siw_verbs_err_policy(struct siw_qp *qp)
{
	/* Members of a group know each other's Q_Key, and one of them must not end the others. */
	qp->errs_fatal = qp->error_policy == SIW_ERROR_POLICY_ERROR ||
			 (qp->error_policy == SIW_ERROR_POLICY_AUTO && !qp->n_groups);
}

static void take_in(struct siw_qp *qp, const struct siw_rdmap_event *event)
{
	put(qp, event, SIW_ERR_FOUND, 0);
	if (qp->errs_fatal)
		siw_verbs_qp_abort(qp, siw_verbs_async_kind(&event->err));
	else
		siw_verbs_async_qp(qp, SIW_EVENT_QP_ERR_QUEUED);
}

void siw_verbs_err_found(struct siw_qp *qp, const struct siw_rdmap_event *event)
{
	siw_count(SIW_COUNTER_err_found, 1);
	tell(qp, event);
	if (event->kind != SIW_RDMAP_BAD_MSG) /* its receive's completion tells */
		return;
	take_in(qp, event);
}

void siw_verbs_err_access(struct siw_qp *qp, const struct siw_rdmap_event *event)
{
	siw_count(SIW_COUNTER_err_found, 1);
	put(qp, event, SIW_ERR_FOUND, 0);
	siw_verbs_async_qp(qp, SIW_EVENT_QP_ERR_QUEUED);
}

void siw_verbs_err_told(struct siw_qp *qp, const struct siw_rdmap_event *event)
{
	uint64_t wr_id;
	bool ours;

	siw_lock(&qp->send_lock);
	ours = siw_rdmap_dgram_sent(qp->dgram, event, &wr_id);
	siw_unlock(&qp->send_lock);
	if (!ours) {
		siw_drop(SIW_COUNTER_err_stale);
		return;
	}
	siw_count(SIW_COUNTER_err_received, 1);
	put(qp, event, SIW_ERR_REPORTED, wr_id);
	siw_verbs_async_qp(qp, SIW_EVENT_QP_ERR_QUEUED);
}

void siw_verbs_err_refused(struct siw_qp *qp, const struct siw_rdmap_event *event)
{
	siw_count(SIW_COUNTER_err_found, 1);
	take_in(qp, event);
}

void siw_verbs_err_reported(struct siw_qp *qp, const struct siw_rdmap_event *event)
{
	siw_count(SIW_COUNTER_err_received, 1);
	put(qp, event, SIW_ERR_REPORTED, 0);
	siw_verbs_async_qp(qp, SIW_EVENT_QP_ERR_QUEUED);
}

/* ---- the verb -------------------------------------------------------------------------------- */

static int take(struct siw_qp *qp, int max, struct siw_err_entry *out)
{
	struct siw_errq *q = qp->errq;
	int n;

	for (n = 0; q && n < max && q->n; n++) {
		out[n] = q->entry[q->head];
		q->head = (q->head + 1) % q->size;
		q->n--;
		q->waiting[out[n].origin - 1]--;
	}
	return n;
}

static int take_locked(struct siw_qp *qp, int max, struct siw_err_entry *out)
{
	int n = -EINVAL;

	siw_lock(&qp->ctx->progress);
	if (!qp->dead && qp->type != SIW_QPT_RC)
		n = take(qp, max, out);
	siw_unlock(&qp->ctx->progress);
	return n;
}

int siw_poll_err(struct siw_qp *qp, int num_entries, struct siw_err_entry *entries)
{
	int n;

	if (!qp)
		return -EINVAL;
	if (siw_verbs_inherited(qp->ctx))
		return -ESTALE;
	if (num_entries < 0 || (num_entries && !entries))
		return -EINVAL;
	n = take_locked(qp, num_entries, entries);
	if (n || !num_entries)
		return n;
	siw_verbs_poll(qp->ctx);
	return take_locked(qp, num_entries, entries);
}
