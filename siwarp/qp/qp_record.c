/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Write-Records on UD. A Write-Record is posted with an address handle and an rkey of the target.
 * At the target, a completion that consumes no receive reports the sender, the memory written, and
 * which octets arrived.
 */
#include <errno.h>

#include "base/addr.h"
#include "base/clock.h"
#include "rdmap/rdmap_record.h"
#include "qp/qp_impl.h"

_Static_assert(sizeof(struct siw_record_range) == sizeof(struct siw_rdmap_range),
	       "both structs have the same size");

/* ---- sending --------------------------------------------------------------------------------- */

struct siw_rdmap_record_op siw_qp_write_record_make_op(const struct siw_wqe *wqe)
{
	return (struct siw_rdmap_record_op){
		.user_data = wqe->wr_id,
		.dest = &wqe->dest,
		.dest_index = (uint8_t)wqe->op.remote_to,
		.qkey = wqe->op.rkey,
		.solicited = wqe->flags & SIW_SEND_SOLICITED,
		.internal = wqe->flags & SIW_SEND_INLINE,
		.stag = wqe->record.rkey,
		.to = wqe->record.addr,
		.sgl = wqe->sge,
		.nsge = wqe->op.nsge,
		.length = wqe->op.length,
	};
}

/* Interval at which unreported Write-Records are checked while the program does not poll. */
#define UNPOLLED_NS 10000000ull

/* ---- the target ------------------------------------------------------------------------------ */

void siw_qp_write_record_note_polled_completion(struct siw_base_qp *base,
						struct siw_records *records)
{
	atomic_fetch_add(&records->polled, 1);
	/*
	 * Memory ordering: pairs with rd_handle_paused_record(), which stores waits and then reads
	 * polled.
	 */
	if (atomic_load(&records->waits))
		siw_qp_schedule_sending_turn(base);
}

/*
 * Queues completions of complete Write-Records. Returns the time at which to check again; 0 if no
 * Write-Record is left.
 */
static uint64_t write_record_queue_completions(struct siw_ud_qp *ud, uint64_t now_ns)
{
	const struct siw_rdmap_record *rec;
	uint64_t due;

	/*
	 * No further completions are queued for a program that does not poll, so that neither its
	 * CQ nor the table of Write-Records overflows.
	 */
	while (ud->records.reported -
		       atomic_load_explicit(&ud->records.polled, memory_order_relaxed) <
	       siw_rdmap_record_kept(ud->records.max)) {
		rec = siw_rdmap_write_record_next_report(ud->dgram, now_ns, &due);
		if (!rec)
			return due;
		ud->records.reported++;
		siw_qp_write_record_add_completion(&ud->base, rec, 0);
	}
	return now_ns + UNPOLLED_NS;
}

void siw_qp_write_record_report_completed(struct siw_ud_qp *ud, uint64_t now_ns)
{
	uint64_t due = write_record_queue_completions(ud, now_ns);

	/*
	 * Setting a timer wakes a sleeping thread, so a timer that is already set for an earlier
	 * time is kept.
	 */
	if (due && (siw_link_empty(&ud->base.timed.link) || due < ud->base.timed.due_ns))
		siw_device_timer_start_at(ud->base.qp.lane, &ud->base.timed, due);
}

void siw_qp_write_record_handle_timer(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_ud_qp *ud = siw_container(timed, struct siw_ud_qp, base.timed);
	uint64_t due = ud->dgram ? write_record_queue_completions(ud, now_ns) : 0;

	if (due)
		siw_device_timer_start_at(ud->base.qp.lane, &ud->base.timed, due);
	else
		siw_device_timer_cancel(ud->base.qp.lane, &ud->base.timed);
}

void siw_qp_write_record_abandon_all(struct siw_ud_qp *ud)
{
	if (!ud->records.max || !ud->dgram)
		return;
	siw_rdmap_write_record_drop_partly_received(ud->dgram);
	siw_device_timer_cancel(ud->base.qp.lane, &ud->base.timed);
}

static int write_record_query(struct siw_base_qp *base, uint64_t wr_id, struct siw_record *record,
			      struct siw_record_range *ranges, int max)
{
	const struct siw_rdmap_record *rec = siw_class_of(base)->find_record(base, wr_id);

	if (!rec)
		return siw_refuse(RECORD_GONE);
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
	int n = siw_qp_check_usable(qp);

	if (n)
		return n;
	if (!siw_class_of(siw_base_qp_of(qp))->has_records)
		return siw_qp_refuse_type(siw_base_qp_of(qp), "UD or RD");
	if (!wr_id)
		return siw_refuse(RECORD_ID);
	if (max > 0 && !ranges)
		return siw_refuse_null("ranges");
	siw_lock(&qp->lane->lock);
	n = write_record_query(siw_base_qp_of(qp), wr_id, record, ranges, max);
	siw_unlock(&qp->lane->lock);
	return n;
}
