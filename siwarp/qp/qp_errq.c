/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Error queues of datagram QPs. An error queue holds errors that this end found in messages of
 * peers, and errors that peers report. A found error may also move the QP to ERR; a reported error
 * is only queued.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/capture.h"
#include "qp/qp_impl.h"

/*
 * The error queue of a datagram QP. Entries of both origins (found by this end, reported by a peer)
 * are in one ring, so that they are polled in order; neither origin may fill more than half of the
 * ring.
 */
struct siw_errq {
	uint32_t size, head, n; /* head: index of the oldest entry */
	uint32_t waiting[2];	/* number of entries by origin, indexed by origin - 1 */
	struct siw_err_entry entry[];
};

static struct siw_errq *qp_errq_alloc(void)
{
	uint32_t size = (uint32_t)siw_settings()->err_queue;
	struct siw_errq *q = calloc(1, sizeof(*q) + size * sizeof(q->entry[0]));

	if (q)
		q->size = size;
	return q;
}

/*
 * Queues an error entry. A full queue drops new entries, because the first errors are mostly the
 * cause of later ones.
 */
static void qp_errq_append_entry(struct siw_base_qp *base, const struct siw_rdmap_event *event,
				 int origin, uint64_t wr_id)
{
	struct siw_errq *q = base->errq ? base->errq : (base->errq = qp_errq_alloc());
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

/*
 * Whether an error moves the QP to ERR under error policy AUTO. Members of a multicast group know
 * each other's Q_Key, and everybody knows Q_Key 0, so an error must not allow one of these peers to
 * stop the QP. An RD queue pair has many peers, and ERR would end the communication with all of
 * them.
 */
static bool is_qp_stopped_by_error(const struct siw_base_qp *base, bool in_group)
{
	return siw_class_of(base)->type != SIW_QPT_RD && !in_group && base->qkey;
}

void siw_qp_err_update_policy(struct siw_base_qp *base, bool in_group)
{
	base->errs_fatal = base->error_policy == SIW_ERROR_POLICY_ERROR ||
			   (base->error_policy == SIW_ERROR_POLICY_AUTO &&
			    is_qp_stopped_by_error(base, in_group));
}

void siw_qp_err_handle_invalid_message(struct siw_base_qp *base,
				       const struct siw_rdmap_event *event)
{
	qp_errq_append_entry(base, event, SIW_ERR_FOUND, 0);
	if (base->errs_fatal)
		siw_qp_move_to_err(base, siw_qp_async_event_of_error(&event->err));
	else
		siw_device_raise_async_event(&base->qp.async, SIW_EVENT_QP_ERR_QUEUED);
}

void siw_qp_errq_add_access_error(struct siw_base_qp *base, const struct siw_rdmap_event *event)
{
	siw_count(SIW_COUNTER_err_found, 1);
	qp_errq_append_entry(base, event, SIW_ERR_FOUND, 0);
	siw_device_raise_async_event(&base->qp.async, SIW_EVENT_QP_ERR_QUEUED);
}

void siw_qp_errq_add_error_reported_by_peer(struct siw_base_qp *base,
					    const struct siw_rdmap_event *event, uint64_t wr_id)
{
	siw_count(SIW_COUNTER_err_received, 1);
	qp_errq_append_entry(base, event, SIW_ERR_REPORTED, wr_id);
	siw_device_raise_async_event(&base->qp.async, SIW_EVENT_QP_ERR_QUEUED);
}

/* ---- the verb -------------------------------------------------------------------------------- */

static int qp_errq_pop_entries(struct siw_base_qp *base, int max, struct siw_err_entry *out)
{
	struct siw_errq *q = base->errq;
	int n;

	for (n = 0; q && n < max && q->n; n++) {
		out[n] = q->entry[q->head];
		q->head = (q->head + 1) % q->size;
		q->n--;
		q->waiting[out[n].origin - 1]--;
	}
	return n;
}

static int qp_errq_lock_and_pop_entries(struct siw_base_qp *base, int max,
					struct siw_err_entry *out)
{
	int n;

	siw_lock(&base->qp.lane->lock);
	if (siw_teardown_of(base) == SIW_DEAD)
		n = siw_refuse(DESTROYED);
	else if (siw_class_of(base)->has_errors)
		n = qp_errq_pop_entries(base, max, out);
	else
		n = siw_qp_refuse_type(base, "UD, UC or RD");
	siw_unlock(&base->qp.lane->lock);
	return n;
}

int siw_poll_err(struct siw_qp *qp, int num_entries, struct siw_err_entry *entries)
{
	int n = siw_qp_check_usable(qp);

	if (n)
		return n;
	if (num_entries < 0)
		return siw_refuse(NEGATIVE, siw_reason_text("num_entries"), (uint64_t)num_entries);
	if (num_entries && !entries)
		return siw_refuse_null("entries");
	n = qp_errq_lock_and_pop_entries(siw_base_qp_of(qp), num_entries, entries);
	if (n || !num_entries)
		return n;
	siw_device_poll(qp->lane, NULL);
	return qp_errq_lock_and_pop_entries(siw_base_qp_of(qp), num_entries, entries);
}
