/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_rd_err.c - errors on reliable datagrams, which end a message and not the stream. The
 * peer gets a Terminate Message (RFC 5040 section 4.8) on queue 2 as an error message, which ends
 * only the message that it quotes.
 */
#include <errno.h>
#include <stdlib.h>

#include "rdmap/rdmap_impl.h"

/*
 * Maximum number of error messages queued for a peer; further error messages are dropped. Error
 * messages for refused requests are not counted.
 */
#define MAX_REPORTS 8

static bool rd_is_response(const struct siw_ddp_seg *seg)
{
	uint8_t opcode = seg->ulp_octet & SIW_RDMAP_OP_MASK;

	return opcode == SIW_RDMAP_READ_RESPONSE || opcode == SIW_RDMAP_ATOMIC_RESPONSE;
}

void siw_rdmap_rd_queue_error(struct siw_rdmap_stream *stream, struct siw_wire_err err,
			      const struct siw_ddp_seg *seg)
{
	struct siw_rdmap_of_rd *of = &stream->of_rd;
	struct siw_rdmap_error_report *report = NULL;

	siw_lock(&of->rd->lock);
	if (atomic_load_explicit(&of->n_reports, memory_order_relaxed) < MAX_REPORTS)
		report = calloc(1, sizeof(*report));
	if (report) {
		report->fault.err = err;
		report->fault.of_rd = true;
		report->fault.has_seg = seg && seg->head_len;
		if (report->fault.has_seg)
			report->fault.seg = *seg;
		siw_link_add(&of->reports, &report->link);
		atomic_fetch_add(&of->n_reports, 1);
	}
	siw_unlock(&of->rd->lock);
}

/*
 * Sends the error message for a fault. The octets of the error message are copied from the stream's
 * buffer when the message is framed, so the buffer can be reused.
 */
static int rd_send_error(struct siw_rdmap_stream *stream, const struct siw_rdmap_fault *fault,
			 struct siw_wire_err *err)
{
	struct siw_ddp_msg *msg = siw_ddp_tx_get_msg_to_fill(stream->ddp, true);

	if (!msg)
		return -EBUSY;
	siw_rdmap_terminate_build_msg(stream, fault, msg);
	siw_count(SIW_COUNTER_terminate_tx, 1);
	return siw_ddp_tx(stream->ddp, msg, err);
}

static struct siw_rdmap_error_report *rd_pop_error_report(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_of_rd *of = &stream->of_rd;
	struct siw_rdmap_error_report *report;

	siw_lock(&of->rd->lock);
	report = siw_container(of->reports.next, struct siw_rdmap_error_report, link);
	siw_link_del(&report->link);
	atomic_fetch_sub(&of->n_reports, 1);
	siw_unlock(&of->rd->lock);
	return report;
}

/*
 * Begins the queued error messages. Returns 1 if no error message is left, or another value of
 * siw_ddp_tx().
 */
static int rd_send_error_reports(struct siw_rdmap_stream *stream)
{
	struct siw_wire_err err;
	int r = 1;

	while (r == 1 && atomic_load_explicit(&stream->of_rd.n_reports, memory_order_relaxed)) {
		struct siw_rdmap_error_report *report = rd_pop_error_report(stream);

		r = rd_send_error(stream, &report->fault, &err);
		free(report);
		stream->of_rd.responding = r == 0;
		stream->of_rd.response = false;
	}
	return r;
}

int siw_rdmap_rd_report_refused_request(struct siw_rdmap_stream *stream,
					const struct siw_rdmap_request *request,
					struct siw_wire_err *err)
{
	struct siw_rdmap_fault fault = {
		.err = request->err,
		.of_rd = true,
		.has_seg = true,
		.has_read = !request->atomic,
		.seg = request->seg,
		.wire = request->wire.read,
	};

	return rd_send_error(stream, &fault, err);
}

/* ---- responses ------------------------------------------------------------------------------- */

/* Number of octets of responses after which siw_rdmap_flush_tx() begins no more responses. */
#define TURN (1u << 20)

/*
 * Replaces the response to the oldest request, which cannot be finished, by an error message.
 * Returns 1.
 */
static int rd_replace_response_by_error(struct siw_rdmap_stream *stream, struct siw_wire_err err)
{
	struct siw_rdmap_request *request = siw_rdmap_oldest_request(stream);
	uint64_t sent = siw_ddp_rd_abandon_response(stream->ddp);

	request->err = siw_rdmap_map_ddp_to_rdmap_error(err);
	request->refused = true;
	/*
	 * RFC 5040 section 4.8: quote the request as if it had requested only the rest of the data.
	 */
	if (!request->atomic)
		siw_rdmap_advance_read_request(&request->wire.read, sent);
	return 1;
}

/*
 * Continues the response or error message that is partially framed. Returns the same values as
 * siw_ddp_tx().
 */
static int rd_continue_response(struct siw_rdmap_stream *stream)
{
	struct siw_wire_err err;
	int r = siw_ddp_rd_continue_response(stream->ddp, &err);

	if (r == 0 || (r < 0 && r != -EACCES && r != -EMSGSIZE))
		return r;
	stream->of_rd.responding = false;
	if (!stream->of_rd.response)
		return r;
	if (r < 0)
		return rd_replace_response_by_error(stream, err);
	siw_rdmap_finish_oldest_response(stream);
	return 1;
}

static int rd_begin_response(struct siw_rdmap_stream *stream)
{
	struct siw_wire_err err;
	int r = siw_rdmap_begin_oldest_response(stream, &err);

	if (r == -EACCES)
		return rd_replace_response_by_error(stream, err);
	stream->of_rd.response = true;
	stream->of_rd.responding = r == 0;
	if (r == 1)
		siw_rdmap_finish_oldest_response(stream);
	return r;
}

/* Frames error messages and responses. Returns 1 if all are framed; 0 if some are left; -errno. */
static int rd_frame_responses(struct siw_rdmap_stream *stream)
{
	uint64_t turn = 0;

	for (;;) {
		int r = stream->of_rd.responding ? rd_continue_response(stream) : 1;

		if (r == 1)
			r = rd_send_error_reports(stream);
		if (r != 1)
			return r;
		if (!siw_rdmap_has_responses_to_send(stream) ||
		    atomic_load_explicit(&stream->closing, memory_order_relaxed))
			return 1;
		if (turn >= TURN)
			return 0;
		turn += siw_rdmap_oldest_response_octets(stream);
		r = rd_begin_response(stream);
		if (r != 1)
			return r;
	}
}

int siw_rdmap_rd_frame_messages(struct siw_rdmap_stream *stream)
{
	/*
	 * Responses and the user's operations do not take turns, since responses have their own PSN
	 * space; responses that are left do not affect the result.
	 */
	int r = rd_frame_responses(stream);

	return r < 0 ? r : stream->tx.active ? siw_rdmap_tx_continue(stream) : 1;
}

bool siw_rdmap_rd_has_more_to_send(const struct siw_rdmap_stream *stream)
{
	bool responses = stream->of_rd.responding || siw_rdmap_has_responses_to_send(stream) ||
			 atomic_load_explicit(&stream->of_rd.n_reports, memory_order_relaxed);

	return siw_ddp_rd_has_tx_room(stream->ddp, stream->tx.active, responses);
}

static int rd_fill_refused_event(struct siw_rdmap_event *event, struct siw_wire_err err,
				 const struct siw_ddp_seg *seg)
{
	event->kind = SIW_RDMAP_REFUSED;
	event->err = err;
	event->of_response = event->receive_consumed = false;
	event->quoted = seg && seg->head_len;
	event->quoted_msn = event->quoted_head_len = event->quoted_seg_len = 0;
	if (event->quoted)
		siw_rdmap_copy_quoted_header_to_event(event, seg);
	return 1;
}

void siw_rdmap_rd_fill_refused_request_event(struct siw_rdmap_stream *stream,
					     struct siw_rdmap_event *event)
{
	const struct siw_rdmap_request *request =
		&stream->requests[(stream->rx.requests_in - 1) & stream->request_mask];

	if (request->refused)
		rd_fill_refused_event(event, request->err, &request->seg);
}

void siw_rdmap_rd_handle_failed_delivery(struct siw_rdmap_stream *stream,
					 struct siw_rdmap_event *event, struct siw_wire_err err,
					 const struct siw_ddp_seg *seg)
{
	rd_fill_refused_event(event, err, seg);
	event->kind = SIW_RDMAP_BAD_RECV;
	siw_rdmap_rd_queue_error(stream, err, seg);
}

/*
 * Records a refused segment, and returns whether it belongs to an operation that was refused
 * before. A Write with Immediate is one operation: if the Write is refused, its Immediate Data is
 * refused, too.
 */
static bool rd_note_refused_segment(struct siw_rdmap_rx *rx, const struct siw_ddp_seg *seg)
{
	bool write_refused = rx->write_refused;

	if (!seg || !seg->head_len)
		return false;
	if (seg->tagged && siw_rdmap_opcode_of(seg) == SIW_RDMAP_WRITE) {
		rx->write_refused = true;
		rx->writing = false;
	} else if (!seg->tagged && !seg->qn) {
		siw_rdmap_forget_write(rx);
	}
	return !seg->tagged && siw_rdmap_is_immediate(siw_rdmap_opcode_of(seg)) && write_refused;
}

static bool error_is_wrong_msn(const struct siw_wire_err *err)
{
	return err->layer == SIW_LAYER_DDP && err->type == SIW_DDP_UNTAGGED_BUFFER &&
	       err->code == SIW_DDP_MSN_RANGE;
}

int siw_rdmap_rd_handle_refused_segment(struct siw_rdmap_stream *stream,
					struct siw_rdmap_event *event, struct siw_wire_err err,
					const struct siw_ddp_seg *seg)
{
	if (seg && seg->tagged && siw_rdmap_opcode_of(seg) == SIW_RDMAP_PRIVATE)
		stream->of_rd.recording.on = false;
	if (rd_note_refused_segment(
		    &stream->rx,
		    /* the error message about the Write also covers its Immediate Data */
		    seg)) {
		event->kind = SIW_RDMAP_PROGRESS;
		return 1;
	}
	rd_fill_refused_event(event, err, seg);
	event->with_imm = event->of_write = false;
	/* a wrong MSN ends the stream, so no error message is sent */
	if (error_is_wrong_msn(&err)) {
		event->kind = SIW_RDMAP_SEQUENCE;
		return 1;
	}
	if (seg && seg->head_len && rd_is_response(seg)) {
		/*
		 * No error message is sent about a response, because the response shows that the
		 * peer has processed the request.
		 */
		event->of_response = siw_rdmap_abandon_oldest_read(stream, &event->user_data);
		return 1;
	}
	event->receive_consumed =
		siw_ddp_rd_buffer_of_refused_message(stream->ddp, &event->user_data) == 1;
	/* No error messages are sent about error messages. */
	if (!seg || !seg->head_len || seg->tagged || seg->qn != SIW_RDMAP_QN_TERMINATE)
		siw_rdmap_rd_queue_error(stream, err, seg);
	return 1;
}

bool siw_rdmap_rd_handle_failed_request(struct siw_rdmap_stream *stream,
					struct siw_rdmap_request *request, struct siw_wire_err err,
					const struct siw_rdmap_wire_read *wire)
{
	(void)wire; /* siw_rdmap_rd_report_refused_request() quotes the request */
	request->refused = true;
	request->held = false;
	request->err = err;
	stream->rx.requests_in++;
	return true;
}

int siw_rdmap_rd_handle_peer_error(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event)
{
	struct siw_sge sge = { (uintptr_t)stream->term_in, sizeof(stream->term_in), 0 };

	event->quoted_head_len = 0;
	event->quoted_seg_len = 0;
	if (event->quoted) { /* term_in contains at least the octets of the quoted header */
		const struct siw_rdmap_wire_terminate *wire = (const void *)stream->term_in;
		const uint8_t *len = stream->term_in + sizeof(*wire), *head = len + 2;

		event->quoted_seg_len = (uint16_t)(len[0] << 8 | len[1]);
		event->quoted_head_len = event->quoted_tagged ? 14 : SIW_DDP_MAX_HEAD;
		memcpy(event->quoted_head, head, event->quoted_head_len);
	}
	/* The error message has been parsed, so the only buffer of queue 2 can be posted again. */
	siw_mem_buffer_queue_post(stream->q_term, 0, &sge, 1);
	if (event->quoted && !event->quoted_tagged && event->quoted_qn == SIW_RDMAP_QN_READ)
		siw_rdmap_mark_read_refused(stream, event->quoted_msn);
	return 1;
}
