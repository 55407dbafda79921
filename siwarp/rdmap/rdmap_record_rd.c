/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_record_rd.c - Write-Record on reliable datagrams, with the segment format of UD. The
 * segments arrive complete and in order, so a message has one range and is reported once, in order.
 */
#include <errno.h>

#include "rdmap/rdmap_impl.h"

int siw_rdmap_rd_write_record_enable_rx(struct siw_rdmap_rd *rd, uint32_t max)
{
	if (!max)
		return 0;
	rd->records = siw_rdmap_write_record_table_new(max);
	return rd->records ? 0 : -ENOMEM;
}

/* Makes the next Write-Record wait if too many Write-Records are reported and not polled. */
static void write_record_pause_if_table_full(struct siw_rdmap_rd *rd)
{
	bool full = rd->records &&
		    siw_rdmap_is_write_record_table_full(rd->records, rd->records_polled);

	siw_ddp_rd_set_pause_at_ulp_header(rd->ddp, full);
}

void siw_rdmap_rd_write_record_set_polled_count(struct siw_rdmap_rd *rd, uint32_t polled)
{
	rd->records_polled = polled;
	write_record_pause_if_table_full(rd);
}

bool siw_rdmap_rd_write_record_has_room(const struct siw_rdmap_rd *rd)
{
	return rd->records &&
	       !siw_rdmap_is_write_record_table_full(rd->records, rd->records_polled);
}

const struct siw_rdmap_record *siw_rdmap_rd_write_record_find_report(const struct siw_rdmap_rd *rd,
								     uint64_t number)
{
	return siw_rdmap_write_record_table_find(rd->records, number);
}

/* ---- sending --------------------------------------------------------------------------------- */

int siw_rdmap_rd_write_record_begin_send(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op)
{
	struct siw_rdmap_rd *rd = stream->of_rd.rd;
	struct siw_rdmap_record_head head = {
		.id = rd->record_id,
		.length = (uint32_t)op->length,
		.to = op->remote_to,
		.solicited = op->solicited,
	};
	struct siw_ddp_msg *msg = siw_ddp_tx_get_msg_to_fill(stream->ddp, false);
	struct siw_wire_err err;
	int r;

	if (!msg)
		return -EBUSY;
	siw_rdmap_write_record_put_header(&head, stream->of_rd.record_head);
	*msg = (struct siw_ddp_msg){
		.internal = op->internal,
		.tagged = true,
		.ulp_octet = siw_rdmap_ctrl(SIW_RDMAP_PRIVATE),
		.stag = op->rkey,
		.to = op->remote_to,
		.sgl = op->sgl,
		.nsge = op->nsge,
		.length = op->length,
		.head = stream->of_rd.record_head,
		.end = &op->stamp.end,
	};
	r = siw_ddp_tx(stream->ddp, msg, &err);
	/* A Write-Record that failed after its first segment has used up its id. */
	rd->record_id += r >= 0 || siw_ddp_has_tx_message_in_progress(stream->ddp);
	return r;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static bool write_record_fill_wire_error(struct siw_wire_err *err, uint8_t code)
{
	*err = (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION, code };
	return false;
}

/*
 * Whether a segment is the next segment of the current Write-Record, or the first segment of a new
 * one.
 */
static bool rd_write_record_is_next_segment(const struct siw_rdmap_recording *rec,
					    const struct siw_ddp_seg *seg,
					    const struct siw_rdmap_record_head *head)
{
	if (!rec->on)
		return seg->to == head->to;
	return seg->to == rec->next && seg->stag == rec->stag && head->id == rec->id &&
	       head->to == rec->to && head->length == rec->length;
}

bool siw_rdmap_rd_write_record_check_segment(struct siw_rdmap_stream *stream,
					     const struct siw_ddp_seg *seg,
					     struct siw_wire_err *err)
{
	struct siw_rdmap_recording *rec = &stream->of_rd.recording;
	struct siw_rdmap_record_head head;

	if (!stream->of_rd.rd->records || siw_ddp_rd_is_segment_in_response_space(stream->ddp) ||
	    !siw_rdmap_write_record_parse_header(siw_ddp_rd_segment_payload(stream->ddp),
						 seg->payload, &head))
		return write_record_fill_wire_error(err, SIW_RDMAP_OPCODE);
	if (!siw_rdmap_write_record_segment_fits(seg, &head) ||
	    !rd_write_record_is_next_segment(rec, seg, &head))
		return write_record_fill_wire_error(err, SIW_RDMAP_UNSPECIFIED);
	if (head.length && stream->denied & SIW_MEM_REMOTE_WRITE) {
		*err = (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_PROTECTION,
					      SIW_RDMAP_ACCESS };
		return false;
	}
	*rec = (struct siw_rdmap_recording){
		.on = true,
		.solicited = head.solicited,
		.id = head.id,
		.length = head.length,
		.stag = seg->stag,
		.to = head.to,
		.next = seg->to + seg->payload - SIW_DDP_ULP_TAGGED,
	};
	return true;
}

void siw_rdmap_rd_handle_placed_write_record(struct siw_rdmap_stream *stream, bool done,
					     struct siw_rdmap_event *event)
{
	struct siw_rdmap_recording *in = &stream->of_rd.recording;
	struct siw_rdmap_record rec = {
		.source = event->source,
		.src_qpn = event->src_qpn,
		.id = in->id,
		.stag = in->stag,
		.to = in->to,
		.length = in->length,
		.valid = in->length,
		.solicited = in->solicited,
		.n = in->length > 0,
		.ranges = { { 0, in->length } },
	};

	if (!done)
		return;
	in->on = false;
	event->kind = SIW_RDMAP_RECORD;
	event->user_data = siw_rdmap_write_record_table_add(stream->of_rd.rd->records, &rec);
	write_record_pause_if_table_full(stream->of_rd.rd);
	siw_rdmap_traffic_count(&stream->traffic.received, 1, in->length);
}
