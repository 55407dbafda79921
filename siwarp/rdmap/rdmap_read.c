/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_read.c - RDMA Read (RFC 5040 section 5.2), requester and responder. Atomics
 * (rdmap_atomic.c) use the same rings.
 *
 * Outstanding requests of both directions are stored in rings shared by the sending and the
 * receiving side. Responses arrive in the order of the requests (RFC5040-5.2.2-06), so rings
 * suffice.
 */
#include <errno.h>

#include "base/counters.h"
#include "rdmap/rdmap_impl.h"

/* ---- requester ------------------------------------------------------------------------------- */

/*
 * Creates an STag for placing one Read Response, valid on one stream only. The STag is freed when
 * the response is complete.
 */
static int alloc_stag_for_read_response(struct siw_rdmap_stream *stream,
					const struct siw_rdmap_op *op, uint32_t *stag)
{
	struct siw_mem_region region = {
		.length = op->length,
		.sgl = op->sgl,
		.nsge = op->nsge,
		.rights = SIW_MEM_READ_SINK,
		.pd = stream->pd,
		.stream = siw_ddp_stream_get_stag_identity(stream->ddp),
	};
	struct iovec iov[SIW_MEM_MAX_SGE];
	int n = siw_mem_sgl_resolve(stream->mem, op->sgl, op->nsge, false, stream->pd, true, 0,
				    op->length, iov, SIW_MEM_MAX_SGE);

	if (n < 0)
		return n;
	return siw_mem_stag_alloc(stream->mem, &region, stag);
}

void siw_rdmap_free_read_sink(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read)
{
	if (read->stag)
		siw_mem_stag_free(stream->mem, read->stag);
	read->stag = 0;
}

static struct siw_rdmap_read *next_read_slot_within_limit(struct siw_rdmap_stream *stream,
							  uint32_t limit)
{
	uint32_t begun = atomic_load_explicit(&stream->reads_begun, memory_order_relaxed);
	/*
	 * Memory ordering: pairs with the store in siw_rdmap_pop_oldest_read(), after which the
	 * slot is free.
	 */
	uint32_t done = atomic_load_explicit(&stream->reads_done, memory_order_acquire);

	if (begun - done >= limit) /* RFC5040-6.1-04 */
		return NULL;
	return &stream->reads[begun & stream->read_mask];
}

struct siw_rdmap_read *siw_rdmap_next_read_slot(struct siw_rdmap_stream *stream)
{
	return next_read_slot_within_limit(stream, stream->ord);
}

void siw_rdmap_store_begun_read_count(struct siw_rdmap_stream *stream)
{
	/* Memory ordering: pairs with the load in siw_rdmap_oldest_outstanding_read(). */
	atomic_store_explicit(&stream->reads_begun, siw_rdmap_begun_read_count(stream) + 1,
			      memory_order_release);
}

int siw_rdmap_send_read_or_atomic_request(struct siw_rdmap_stream *stream,
					  struct siw_rdmap_read *read, struct siw_rdmap_op *op,
					  uint32_t length)
{
	struct siw_ddp_msg *msg = siw_ddp_tx_get_msg_to_fill(stream->ddp, false);

	if (!msg)
		return -EBUSY;
	read->wire_sge = (struct siw_sge){ (uintptr_t)&read->wire, length, 0 };
	*msg = (struct siw_ddp_msg){
		.internal = true,
		.ulp_octet = siw_rdmap_ctrl(op->opcode),
		.qn = SIW_RDMAP_QN_READ,
		.sgl = &read->wire_sge,
		.nsge = 1,
		.length = length,
		.end = read->silent ? NULL : &op->stamp.end,
	};
	return stream->type->request_send(stream, read, msg);
}

int siw_rdmap_begin_read(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op,
			 enum siw_rdmap_read_kind kind)
{
	/* A Read that is an RTR is the first message, and is allowed even if ORD is 0. */
	struct siw_rdmap_read *read = next_read_slot_within_limit(
		stream, kind == SIW_RDMAP_READ_RTR ? UINT32_MAX : stream->ord);
	uint32_t stag = 0;
	int r;

	if (!read)
		return -EAGAIN;
	if (op->length > UINT32_MAX)
		return -EMSGSIZE;
	if (op->length) {
		r = alloc_stag_for_read_response(stream, op, &stag);
		if (r)
			return r;
	}
	read->user_data = op->user_data;
	read->stag = stag;
	read->length = (uint32_t)op->length;
	read->placed = 0;
	read->refused = false;
	read->silent = kind != SIW_RDMAP_READ_USERS;
	read->confirm = kind == SIW_RDMAP_READ_CONFIRM;
	read->atomic = false;
	read->wire.read = (struct siw_rdmap_wire_read){
		/* The sink STag of an empty Read is unused, but some peers reject 0. */
		.sink_stag = htobe32(stag ? stag : 1),
		.rdmardsz = htobe32(read->length),
		.src_stag = htobe32(op->rkey),
		.src_to = htobe64(op->remote_to),
	};
	return siw_rdmap_send_read_or_atomic_request(stream, read, op, SIW_RDMAP_READ_LEN);
}

struct siw_rdmap_read *siw_rdmap_oldest_outstanding_read(struct siw_rdmap_stream *stream)
{
	uint32_t done = atomic_load_explicit(&stream->reads_done, memory_order_relaxed);

	if (!stream->reads ||
	    done == atomic_load_explicit(&stream->reads_begun, memory_order_acquire))
		return NULL;
	return &stream->reads[done & stream->read_mask];
}

void siw_rdmap_pop_oldest_read(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read)
{
	uint32_t done = atomic_load_explicit(&stream->reads_done, memory_order_relaxed);

	siw_rdmap_free_read_sink(stream, read);
	atomic_store_explicit(&stream->reads_done, done + 1, memory_order_release);
	stream->type->response_received(stream);
	read = siw_rdmap_oldest_outstanding_read(stream);
	/*
	 * On reliable datagrams, an error message may already have answered the next request, out
	 * of order.
	 */
	if (__builtin_expect(read && read->refused, 0))
		siw_rdmap_pop_oldest_read(stream, read);
}

void siw_rdmap_mark_read_refused(struct siw_rdmap_stream *stream, uint32_t msn)
{
	uint32_t done = atomic_load_explicit(&stream->reads_done, memory_order_relaxed);
	struct siw_rdmap_read *oldest = siw_rdmap_oldest_outstanding_read(stream);

	/* The position of a request in the ring is its MSN less 1. */
	if (msn - 1 - done >=
	    atomic_load_explicit(&stream->reads_begun, memory_order_acquire) - done)
		return;
	stream->reads[(msn - 1) & stream->read_mask].refused = true;
	if (oldest->refused)
		siw_rdmap_pop_oldest_read(stream, oldest);
}

bool siw_rdmap_abandon_oldest_read(struct siw_rdmap_stream *stream, uint64_t *user_data)
{
	struct siw_rdmap_read *read = siw_rdmap_oldest_outstanding_read(stream);

	if (!read)
		return false;
	*user_data = read->user_data;
	siw_rdmap_pop_oldest_read(stream, read);
	return true;
}

/*
 * Checks a segment of a Read Response. Only the oldest Read can get a response, without a gap,
 * since the segments arrive in order. The error code for a wrong STag depends on whether the STag
 * is valid at all (RFC5040-5.2.2-07).
 */
bool siw_rdmap_check_read_response(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
				   struct siw_wire_err *err)
{
	struct siw_rdmap_read *read = siw_rdmap_oldest_outstanding_read(stream);
	uint64_t end;

	if (!read || read->atomic) {
		*err = (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION,
					      SIW_RDMAP_OPCODE };
		return false;
	}
	/*
	 * Linux siw answers an empty Read with as many octets as its own last request asked for.
	 * The octets are discarded; the response still confirms delivery.
	 */
	stream->rx.discard = read->confirm && seg->payload;
	if (stream->rx.discard && seg->stag == be32toh(read->wire.read.sink_stag))
		return true;
	if (seg->payload && seg->stag != read->stag) {
		if (siw_mem_stag_acquire(stream->mem, seg->stag, stream->pd,
					 siw_ddp_stream_get_stag_identity(stream->ddp),
					 SIW_MEM_READ_SINK, seg->to, seg->payload, NULL, 0,
					 err) < 0)
			return false;
		siw_mem_stag_release(stream->mem, seg->stag);
		*err = (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_TAGGED_BUFFER,
					      SIW_DDP_INVALID_STAG };
		return false;
	}
	end = (uint64_t)read->placed + seg->payload;
	if (seg->payload && (seg->to != read->placed || end > read->length)) {
		bool wrap = seg->to + seg->payload < seg->to;

		*err = (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_TAGGED_BUFFER,
					      wrap ? SIW_DDP_TO_WRAP : SIW_DDP_BOUNDS };
		return false;
	}
	/* RFC 5040 has no error code for a response that is shorter than requested */
	if (seg->last && end != read->length) {
		*err = (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION,
					      SIW_RDMAP_UNSPECIFIED };
		return false;
	}
	return true;
}

void siw_rdmap_complete_read(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read,
			     struct siw_rdmap_event *event)
{
	event->user_data = read->user_data;
	if (!read->silent) {
		event->kind = SIW_RDMAP_READ_DONE;
		event->length = read->length;
		siw_rdmap_traffic_count(&stream->traffic.received, 0, read->length);
	} else if (read->confirm) {
		event->kind = SIW_RDMAP_CONFIRMED;
	}
	siw_rdmap_pop_oldest_read(stream, read);
}

void siw_rdmap_count_read_octets(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
				 struct siw_rdmap_event *event)
{
	struct siw_rdmap_read *read = siw_rdmap_oldest_outstanding_read(stream);

	read->placed += seg->payload;
	event->kind = SIW_RDMAP_PROGRESS;
	if (seg->last)
		siw_rdmap_complete_read(stream, read, event);
}

void siw_rdmap_free_all_reads(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_read *read;

	while ((read = siw_rdmap_oldest_outstanding_read(stream)))
		siw_rdmap_pop_oldest_read(stream, read);
}

/* ---- responder ------------------------------------------------------------------------------- */

struct siw_wire_err siw_rdmap_map_ddp_to_rdmap_error(struct siw_wire_err err)
{
	static const uint8_t codes[] = {
		[SIW_DDP_INVALID_STAG] = SIW_RDMAP_INVALID_STAG,
		[SIW_DDP_BOUNDS] = SIW_RDMAP_BOUNDS,
		[SIW_DDP_STAG_NOT_OF_STREAM] = SIW_RDMAP_STAG_NOT_OF_STREAM,
		[SIW_DDP_TO_WRAP] = SIW_RDMAP_TO_WRAP,
	};

	if (err.layer != SIW_LAYER_DDP)
		return err;
	if (err.type != SIW_DDP_TAGGED_BUFFER || err.code >= sizeof(codes))
		return (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_LOCAL_CATASTROPHIC, 0 };
	return (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_PROTECTION,
				      codes[err.code] };
}

/*
 * Whether the source memory of a Read may be read (RFC5040-7.2-09 to -13). The source of an empty
 * Read is always valid (RFC5040-5.2.1-16).
 */
static bool request_source_is_readable(struct siw_rdmap_stream *stream,
				       const struct siw_rdmap_wire_read *wire,
				       struct siw_wire_err *err)
{
	uint32_t stag = be32toh(wire->src_stag), size = be32toh(wire->rdmardsz);
	int r;

	if (size && stream->denied & SIW_MEM_REMOTE_READ) {
		*err = (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_PROTECTION,
					      SIW_RDMAP_ACCESS };
		return false;
	}
	r = siw_mem_stag_acquire(stream->mem, stag, stream->pd,
				 siw_ddp_stream_get_stag_identity(stream->ddp), SIW_MEM_REMOTE_READ,
				 be64toh(wire->src_to), size, NULL, 0, err);
	if (r > 0)
		siw_mem_stag_release(stream->mem, stag);
	return r >= 0;
}

/*
 * Returns the RDMAP header of the request that a Terminate quotes, or NULL for an atomic (RFC 7306
 * section 8.1).
 */
static const struct siw_rdmap_wire_read *
request_quoted_header(const struct siw_rdmap_request *request)
{
	return request->atomic ? NULL : &request->wire.read;
}

bool siw_rdmap_store_request(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
			     const struct siw_ddp_delivery *delivery)
{
	struct siw_rdmap_rx *rx = &stream->rx;
	struct siw_rdmap_request *request =
		&stream->requests[rx->requests_in & stream->request_mask];
	struct siw_wire_err err = { SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION,
				    SIW_RDMAP_UNSPECIFIED };
	bool atomic = siw_rdmap_opcode_of(seg) == SIW_RDMAP_ATOMIC_REQUEST;

	request->wire = stream->read_bufs[delivery->user_data];
	request->atomic = atomic;
	request->carried_out = false;
	request->seg = *seg;
	request->buffer = delivery->user_data;
	request->refused = false;
	/* RFC 5040 and RFC 7306 define no error code for a request of a wrong length. */
	if (delivery->length != (atomic ? SIW_RDMAP_ATOMIC_LEN : SIW_RDMAP_READ_LEN))
		return stream->type->request_failed(stream, request, err, NULL);
	if (atomic ? !siw_rdmap_atomic_is_allowed(stream, &request->wire.atomic, &err)
		   : !request_source_is_readable(stream, &request->wire.read, &err))
		return stream->type->request_failed(stream, request,
						    siw_rdmap_map_ddp_to_rdmap_error(err),
						    request_quoted_header(request));
	/*
	 * RFC 7306 section 7: an atomic is answered only after earlier messages have been received.
	 */
	if (!atomic)
		siw_rdmap_handle_delivery_counts_request(stream, &request->wire.read);
	request->held = rx->unexpected && (atomic || !request->wire.read.rdmardsz);
	if (request->held)
		request->behind = siw_ddp_newest_arrived_msn(stream->ddp);
	rx->requests_in++;
	return true;
}

bool siw_rdmap_release_waiting_responses(struct siw_rdmap_stream *stream)
{
	uint32_t released = atomic_load_explicit(&stream->requests_released, memory_order_relaxed);
	uint32_t before = released, delivered = siw_ddp_last_delivered_msn(stream->ddp);

	for (; released != stream->rx.requests_in; released++) {
		const struct siw_rdmap_request *r =
			&stream->requests[released & stream->request_mask];

		/* Responses are sent in order, so later responses wait, too. */
		if (r->held && (int32_t)(delivered - r->behind) < 0)
			break;
	}
	if (released == before)
		return false;
	/* Memory ordering: pairs with the load in siw_rdmap_has_responses_to_send(). */
	atomic_store_explicit(&stream->requests_released, released, memory_order_release);
	return true;
}

bool siw_rdmap_has_responses_to_send(const struct siw_rdmap_stream *stream)
{
	return atomic_load_explicit(&stream->requests_released, memory_order_acquire) !=
	       atomic_load_explicit(&stream->requests_done, memory_order_relaxed);
}

struct siw_rdmap_request *siw_rdmap_oldest_request(struct siw_rdmap_stream *stream)
{
	uint32_t done = atomic_load_explicit(&stream->requests_done, memory_order_relaxed);

	return &stream->requests[done & stream->request_mask];
}

static uint32_t response_octets(const struct siw_rdmap_request *request)
{
	return request->atomic ? sizeof(request->response.original)
			       : be32toh(request->wire.read.rdmardsz);
}

uint32_t siw_rdmap_oldest_response_octets(struct siw_rdmap_stream *stream)
{
	return response_octets(siw_rdmap_oldest_request(stream));
}

static int begin_read_response(struct siw_rdmap_stream *stream,
			       const struct siw_rdmap_wire_read *wire, struct siw_wire_err *err)
{
	struct siw_ddp_msg *msg = siw_ddp_tx_get_msg_to_fill(stream->ddp, true);

	if (!msg)
		return -EBUSY;
	*msg = (struct siw_ddp_msg){
		.tagged = true,
		.ulp_octet = siw_rdmap_ctrl(SIW_RDMAP_READ_RESPONSE),
		.stag = be32toh(wire->sink_stag), /* RFC5040-4.4-02 */
		.to = be64toh(wire->sink_to),
		.length = be32toh(wire->rdmardsz),
		/*
		 * The source is checked again for each segment, since the region may have been
		 * deregistered.
		 */
		.from_stag = true,
		.src_stag = be32toh(wire->src_stag),
		.src_to = be64toh(wire->src_to),
	};
	return siw_ddp_tx(stream->ddp, msg, err);
}

int siw_rdmap_begin_oldest_response(struct siw_rdmap_stream *stream, struct siw_wire_err *err)
{
	struct siw_rdmap_request *request = siw_rdmap_oldest_request(stream);

	if (__builtin_expect(request->refused, 0))
		return siw_rdmap_rd_report_refused_request(stream, request, err);
	return request->atomic ? siw_rdmap_execute_atomic_and_respond(stream, request, err)
			       : begin_read_response(stream, &request->wire.read, err);
}

void siw_rdmap_finish_oldest_response(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_request *request = siw_rdmap_oldest_request(stream);
	uint64_t buffer = request->buffer;
	struct siw_sge sge = { (uintptr_t)&stream->read_bufs[buffer], sizeof(*stream->read_bufs),
			       0 };
	uint32_t done = atomic_load_explicit(&stream->requests_done, memory_order_relaxed);

	siw_rdmap_traffic_count_sent(&stream->traffic, 0, response_octets(request));
	atomic_store_explicit(&stream->requests_done, done + 1, memory_order_release);
	/*
	 * The buffer is posted last, because after the post the peer's next request may use the
	 * slot just freed. The ring is as large as the queue, so there is room. The post pairs with
	 * siw_mem_buffer_queue_peek().
	 */
	siw_mem_buffer_queue_post(stream->q_read, buffer, &sge, 1);
}

void siw_rdmap_advance_read_request(struct siw_rdmap_wire_read *wire, uint64_t octets)
{
	wire->sink_to = htobe64(be64toh(wire->sink_to) + octets);
	wire->src_to = htobe64(be64toh(wire->src_to) + octets);
	wire->rdmardsz = htobe32(be32toh(wire->rdmardsz) - (uint32_t)octets);
}
