/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_rx.c - receiving on streams: each segment is parsed, checked (RFC 5041 section 7.1) and
 * placed. A message is delivered with its last segment (section 5.4). TCP and rd keep the order, so
 * no segment is placed before a missing one has arrived.
 *
 * A refused segment is first received completely, and only then reported, because its CRC may not
 * have been checked yet, and a header that was corrupted in transit is not a protocol error of the
 * peer.
 */
#include <errno.h>

#include "ddp/ddp_lower.h"

const struct siw_wire_err siw_ddp_local_catastrophic = { SIW_LAYER_DDP, SIW_DDP_LOCAL_CATASTROPHIC,
							 0 };

int siw_ddp_handle_lower_layer_result(struct siw_ddp_stream *stream, int r)
{
	return r < 0 ? stream->lower->failed(stream, r) : r;
}

int siw_ddp_rx_refuse_segment(struct siw_ddp_stream *stream, int why, struct siw_wire_err err)
{
	struct siw_ddp_rx *rx = &stream->rx;

	rx->have = rx->refusing = true;
	rx->why = why;
	rx->why_err = err;
	return stream->lower->refuse(stream);
}

int siw_ddp_rx_refuse_for_upper_layer(struct siw_ddp_stream *stream, struct siw_wire_err err)
{
	struct siw_ddp_rx *rx = &stream->rx;

	if (rx->dead)
		return rx->dead;
	if (rx->have)
		return siw_ddp_rx_refuse_segment(stream, -EPROTO, err);
	/* The segment was placed already, so its CRC has been checked and the refusal is final. */
	rx->err = err;
	return rx->dead = -EPROTO;
}

bool siw_ddp_parse_quoted_header(const uint8_t *head, size_t len, struct siw_ddp_seg *seg)
{
	if (!len || len < siw_ddp_head_len(head[0]))
		return false;
	siw_ddp_parse(head, (uint32_t)len, seg);
	return true;
}

int siw_ddp_rx_refuse_untagged(struct siw_ddp_stream *stream, uint8_t code)
{
	return siw_ddp_rx_refuse_segment(stream, -EPROTO,
					 (struct siw_wire_err){ SIW_LAYER_DDP,
								SIW_DDP_UNTAGGED_BUFFER, code });
}

/*
 * Whether the segment is an empty first message that uses no buffer: see
 * siw_ddp_stream_set_accept_empty_rtr.
 */
static bool is_empty_rtr(const struct siw_ddp_rxq *q, const struct siw_ddp_seg *seg)
{
	return __builtin_expect(q->accept_empty_rtr, 0) && !q->begun && seg->last && !seg->payload;
}

uint8_t siw_ddp_rx_check_untagged(const struct siw_ddp_rx *rx, const struct siw_ddp_seg *seg)
{
	const struct siw_ddp_rxq *q;
	const struct siw_mem_buffer *buf;
	uint64_t length;

	if (seg->qn >= SIW_DDP_QUEUES || !rx->q[seg->qn].queue)
		return SIW_DDP_INVALID_QN;
	q = &rx->q[seg->qn];
	if (__builtin_expect(rx->any_unexpected, 0) && !seg->qn)
		return siw_ddp_check_unexpected_segment(rx, seg);
	if (seg->msn != q->msn) /* messages arrive in order, so only one MSN is valid */
		return SIW_DDP_MSN_RANGE;
	if (q->begun) {
		length = q->buf.length;
	} else if (is_empty_rtr(q, seg)) {
		length = 0;
	} else if (__builtin_expect(q->queue->shared, 0)) {
		/*
		 * Another stream may take the buffer that is the next one now, so the length is
		 * checked when this stream has taken a buffer.
		 */
		if (siw_mem_queue_is_empty(q->queue) && (seg->qn || !rx->unexpected.limit))
			return SIW_DDP_NO_BUFFER;
		length = UINT64_MAX;
	} else {
		buf = siw_mem_buffer_queue_peek(q->queue);
		if (!buf && (seg->qn || !rx->unexpected.limit))
			return SIW_DDP_NO_BUFFER;
		/* if no buffer is posted, ddp_unexpected.c checks the length later */
		length = buf ? buf->length : UINT64_MAX;
	}
	if (seg->mo != (q->begun ? q->placed : 0))
		return SIW_DDP_INVALID_MO;
	if (siw_ddp_octets_to(rx, seg) > length)
		return SIW_DDP_TOO_LONG;
	return 0;
}

/*
 * The error for a segment that is shorter than its header. RFC 5041 has no code for a short
 * segment, and the Terminate quotes no header.
 */
static const struct siw_wire_err TOO_SHORT = { SIW_LAYER_DDP, SIW_DDP_LOCAL_CATASTROPHIC, 0 };

int siw_ddp_rx_parse(struct siw_ddp_stream *stream, const uint8_t *head, size_t seg_len)
{
	struct siw_ddp_rx *rx = &stream->rx;

	rx->seg.head_len = 0;
	if (seg_len < siw_ddp_head_len(head[0]))
		return siw_ddp_rx_refuse_segment(stream, -EPROTO, TOO_SHORT);
	siw_ddp_parse(head, (uint32_t)seg_len, &rx->seg);
	return 1;
}

int siw_ddp_rx_check_version(struct siw_ddp_stream *stream)
{
	const struct siw_ddp_seg *seg = &stream->rx.seg;

	if (__builtin_expect((seg->head[0] & SIW_DDP_DV_MASK) == SIW_DDP_DV, 1))
		return 1;
	if (!seg->tagged)
		return siw_ddp_rx_refuse_untagged(stream, SIW_DDP_UNTAGGED_VERSION);
	return siw_ddp_rx_refuse_segment(stream, -EPROTO,
					 (struct siw_wire_err){ SIW_LAYER_DDP,
								SIW_DDP_TAGGED_BUFFER,
								SIW_DDP_TAGGED_VERSION });
}

/* Removes a message's buffer from the queue when the first segment of the message arrives. */
bool siw_ddp_rxq_take_buffer(struct siw_ddp_rxq *q)
{
	if (!siw_mem_buffer_queue_take(q->queue, &q->buf))
		return false;
	q->begun = true;
	q->placed = 0;
	return true;
}

int siw_ddp_account_for_placed_segment(struct siw_ddp_stream *stream, const struct siw_ddp_seg *seg,
				       struct siw_ddp_delivery *delivery)
{
	struct siw_ddp_rxq *q = &stream->rx.q[seg->qn];
	uint32_t head;

	q->placed += seg->payload;
	if (!seg->last)
		return 2;
	delivery->user_data = q->buf.user_data;
	delivery->length = q->placed; /* RFC5041-5.4-02 */
	head = siw_ddp_head_octets(&stream->rx, seg);
	if (__builtin_expect(head, 0)) {
		delivery->head = q->placed >= head ? q->head : NULL;
		delivery->length -= delivery->head ? head : q->placed;
	}
	q->begun = false;
	q->msn++;
	return 1;
}

/*
 * Resolves the destination of a segment whose message begins with octets for the upper layer: the
 * octets for the upper layer are placed into q->head, the other octets into the buffer.
 */
static __attribute__((cold, noinline)) int resolve_headed_segment(struct siw_ddp_stream *stream,
								  const struct siw_ddp_seg *seg,
								  struct iovec *iov)
{
	struct siw_ddp_rxq *q = &stream->rx.q[seg->qn];
	uint64_t at = seg->mo, end = at + seg->payload;
	int n = 0, r;

	if (at < SIW_DDP_ULP_HEAD && at < end) {
		uint64_t len = (end < SIW_DDP_ULP_HEAD ? end : SIW_DDP_ULP_HEAD) - at;

		iov[n++] = (struct iovec){ q->head + at, len };
		at += len;
	}
	if (at == end)
		return n;
	r = siw_mem_sgl_resolve(stream->mem, q->buf.sgl, q->buf.nsge, q->queue->internal,
				q->queue->pd, true, at - SIW_DDP_ULP_HEAD, end - at, iov + n,
				SIW_MEM_MAX_SGE);
	return r < 0 ? r : n + r;
}

int siw_ddp_resolve_untagged_segment(struct siw_ddp_stream *stream, const struct siw_ddp_seg *seg,
				     struct iovec *iov)
{
	const struct siw_ddp_rxq *q = &stream->rx.q[seg->qn];

	if (__builtin_expect(siw_ddp_head_octets(&stream->rx, seg), 0))
		return resolve_headed_segment(stream, seg, iov);
	return siw_mem_sgl_resolve(stream->mem, q->buf.sgl, q->buf.nsge, q->queue->internal,
				   q->queue->pd, true, seg->mo, seg->payload, iov, SIW_MEM_MAX_SGE);
}

static int place_empty_rtr(struct siw_ddp_stream *stream, struct siw_ddp_rxq *q,
			   struct siw_ddp_delivery *delivery)
{
	int r = stream->lower->payload(stream, stream->rx.seg.head_len, NULL, 0);

	if (r != 1)
		return siw_ddp_handle_lower_layer_result(stream, r);
	stream->rx.have = false;
	q->accept_empty_rtr = false;
	q->msn++;
	*delivery = (struct siw_ddp_delivery){ 0 };
	return 1;
}

static int place_untagged(struct siw_ddp_stream *stream, struct siw_ddp_delivery *delivery)
{
	struct siw_ddp_rx *rx = &stream->rx;
	const struct siw_ddp_seg *seg = &rx->seg;
	struct siw_ddp_rxq *q = &rx->q[seg->qn];
	struct iovec iov[SIW_MEM_MAX_SGE + 1];
	int n, r;

	if (is_empty_rtr(q, seg))
		return place_empty_rtr(stream, q, delivery);
	if (__builtin_expect(rx->any_unexpected, 0) && !seg->qn)
		return siw_ddp_store_unexpected_segment(stream);
	/*
	 * Another stream that shares the receive queue may have used the last buffer since
	 * siw_ddp_rx_peek_segment.
	 */
	if (!q->begun && !siw_ddp_rxq_take_buffer(q)) {
		if (!seg->qn && rx->unexpected.limit)
			return siw_ddp_store_unexpected_segment(stream);
		return siw_ddp_rx_refuse_untagged(stream, SIW_DDP_NO_BUFFER);
	}
	if (siw_ddp_octets_to(rx, seg) > q->buf.length)
		return siw_ddp_rx_refuse_untagged(stream, SIW_DDP_TOO_LONG);
	n = siw_ddp_resolve_untagged_segment(stream, seg, iov);
	if (n < 0)
		return siw_ddp_rx_refuse_segment(stream, -EACCES, siw_ddp_local_catastrophic);
	r = stream->lower->payload(stream, seg->head_len, n ? iov : NULL, n);
	if (r != 1)
		return siw_ddp_handle_lower_layer_result(stream, r);
	rx->have = false;
	return siw_ddp_account_for_placed_segment(stream, seg, delivery);
}

static int place_tagged(struct siw_ddp_stream *stream, uint32_t right,
			struct siw_ddp_delivery *delivery)
{
	struct siw_ddp_rx *rx = &stream->rx;
	const struct siw_ddp_seg *seg = &rx->seg;
	uint32_t head = siw_ddp_tagged_octets(&stream->rd_rx, seg);
	struct siw_wire_err err;
	struct iovec iov[SIW_MEM_MAX_SGE];
	int n, r;

	/*
	 * What the program wrote to its memory before it posted a receive must happen before the
	 * peer's data is written there.
	 */
	if (rx->q[0].queue)
		siw_mem_queue_sync_with_posts(rx->q[0].queue);
	n = 0;
	if (right)
		n = siw_mem_stag_acquire(stream->mem, seg->stag, stream->pd, stream->identity,
					 right, seg->to, seg->payload - head, iov, SIW_MEM_MAX_SGE,
					 &err);
	if (n < 0)
		return siw_ddp_rx_refuse_segment(stream, -EACCES, err);
	r = stream->lower->payload(stream, seg->head_len + head, n ? iov : NULL, n);
	/*
	 * The reference to the STag is held only while octets are placed. The peer may stay silent
	 * between two calls, and a thread that deregisters the STag must not wait for the peer.
	 */
	if (n)
		siw_mem_stag_release(stream->mem, seg->stag);
	if (r != 1)
		return siw_ddp_handle_lower_layer_result(stream, r);
	rx->have = false;
	if (!seg->last)
		return 2;
	delivery->user_data = 0;
	delivery->length = seg->payload - head;
	return 1;
}

int siw_ddp_rx_place(struct siw_ddp_stream *stream, const struct siw_ddp_seg *seg, uint32_t right,
		     struct siw_ddp_delivery *delivery)
{
	struct siw_ddp_rx *rx = &stream->rx;

	if (rx->dead)
		return rx->dead;
	if (rx->refusing)
		return stream->lower->refuse(stream);
	if (!rx->have)
		return -EINVAL;
	if (__builtin_expect(rx->unexpected.limit, 0))
		rx->seg.note = seg->note;
	return seg->tagged ? place_tagged(stream, right, delivery)
			   : place_untagged(stream, delivery);
}

struct siw_wire_err siw_ddp_last_rx_error(const struct siw_ddp_stream *stream)
{
	return stream->rx.err;
}
