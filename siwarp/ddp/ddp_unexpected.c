/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_unexpected.c - "unexpected" segments: segments of queue 0 that arrive before a buffer is
 * posted. Unexpected segments are stored, up to a limit of memory, and placed in order once there
 * are buffers. Meanwhile segments of other queues are processed.
 *
 * A stored segment has passed all checks except the check that the segment fits the buffer, which
 * is made when there is a buffer. While any segment is stored, every further segment of queue 0 is
 * stored too, to keep the order.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/counters.h"
#include "base/pieces.h"
#include "ddp/ddp_lower.h"
#include "llp/llp.h"
#include "mpa/mpa.h"

void siw_ddp_stream_enable_unexpected_segments(struct siw_ddp_stream *stream, uint64_t octets,
					       bool deliver_before_end)
{
	stream->rx.unexpected.limit = octets;
	stream->rx.unexpected.deliver_before_end = deliver_before_end;
}

uint8_t siw_ddp_check_unexpected_segment(const struct siw_ddp_rx *rx, const struct siw_ddp_seg *seg)
{
	if (seg->msn != rx->unexpected.msn)
		return SIW_DDP_MSN_RANGE;
	return seg->mo == rx->unexpected.mo ? 0 : SIW_DDP_INVALID_MO;
}

/*
 * Allocates memory to store the segment at the head of the stream. Returns NULL if the limit is
 * reached, or if there is no memory.
 */
static struct siw_ddp_unexpected_seg *alloc_unexpected_segment(struct siw_ddp_stream *stream)
{
	struct siw_ddp_unexpected *unexpected = &stream->rx.unexpected;
	const struct siw_ddp_seg *seg = &stream->rx.seg;
	uint64_t cost = sizeof(struct siw_ddp_unexpected_seg) + seg->payload;
	struct siw_ddp_unexpected_seg *node;

	if (unexpected->used + cost > unexpected->limit)
		return NULL;
	node = malloc(cost);
	if (!node)
		return NULL;
	node->next = NULL;
	node->seg = *seg;
	if (!stream->rx.any_unexpected) {
		unexpected->msn = seg->msn;
		unexpected->mo = 0;
	}
	if (!seg->mo)
		siw_count(SIW_COUNTER_rnr_unexpected, 1);
	unexpected->used += cost;
	unexpected->coming = node;
	stream->rx.any_unexpected = true;
	return node;
}

int siw_ddp_store_unexpected_segment(struct siw_ddp_stream *stream)
{
	struct siw_ddp_rx *rx = &stream->rx;
	struct siw_ddp_unexpected *unexpected = &rx->unexpected;
	struct siw_ddp_unexpected_seg *node = unexpected->coming ? unexpected->coming
								 : alloc_unexpected_segment(stream);
	struct iovec iov;
	int r;

	if (!node) { /* the segment waits in the stream, and later segments wait in the socket */
		/*
		 * While this end does not read, TCP does not report that the peer has closed the
		 * connection, so check explicitly. With deliver_before_end no check is needed,
		 * because the end of the connection is reported only after all messages were
		 * delivered.
		 */
		if (!unexpected->deliver_before_end &&
		    siw_llp_tcp_is_closed(siw_mpa_sock(stream->mpa)))
			return rx->dead = -ECONNRESET;
		unexpected->full = true;
		siw_llp_sock_pause(siw_mpa_sock(stream->mpa));
		return 0;
	}
	iov = (struct iovec){ node->data, rx->seg.payload };
	r = stream->lower->payload(stream, rx->seg.head_len, iov.iov_len ? &iov : NULL,
				   iov.iov_len ? 1 : 0);
	if (r != 1)
		return siw_ddp_handle_lower_layer_result(stream, r);
	rx->have = false;
	unexpected->coming = NULL;
	if (unexpected->last)
		unexpected->last->next = node;
	else
		unexpected->first = node;
	unexpected->last = node;
	unexpected->mo += node->seg.payload;
	if (node->seg.last) {
		unexpected->msn++;
		unexpected->mo = 0;
	}
	return 3;
}

static void free_oldest_unexpected_segment(struct siw_ddp_stream *stream)
{
	struct siw_ddp_unexpected *unexpected = &stream->rx.unexpected;
	struct siw_ddp_unexpected_seg *node = unexpected->first;

	unexpected->first = node->next;
	if (!unexpected->first)
		unexpected->last = NULL;
	unexpected->used -= sizeof(*node) + node->seg.payload;
	free(node);
	stream->rx.any_unexpected = unexpected->first || unexpected->coming;
	if (unexpected->full) {
		unexpected->full = false;
		siw_llp_sock_resume(siw_mpa_sock(stream->mpa));
	}
}

static int fail_unexpected_segment(struct siw_ddp_rx *rx, int why, struct siw_wire_err err)
{
	rx->err = err;
	return rx->dead = why;
}

int siw_ddp_rx_place_stored_segment(struct siw_ddp_stream *stream, struct siw_ddp_seg *seg,
				    struct siw_ddp_delivery *delivery)
{
	struct siw_ddp_rx *rx = &stream->rx;
	struct siw_ddp_rxq *q = &rx->q[0];
	const struct siw_ddp_unexpected_seg *node = rx->unexpected.first;
	struct iovec iov[SIW_MEM_MAX_SGE + 1];
	int n;

	/*
	 * After the end of the connection no more segments arrive, but stored segments can still be
	 * placed.
	 */
	if (rx->dead && !siw_ddp_lower_ended(rx->dead))
		return 0;
	if (!node || (!q->begun && !siw_ddp_rxq_take_buffer(q)))
		return 0;
	*seg = node->seg;
	if (siw_ddp_octets_to(rx, seg) > q->buf.length)
		return fail_unexpected_segment(rx, -EPROTO,
					       (struct siw_wire_err){ SIW_LAYER_DDP,
								      SIW_DDP_UNTAGGED_BUFFER,
								      SIW_DDP_TOO_LONG });
	n = siw_ddp_resolve_untagged_segment(stream, seg, iov);
	if (n < 0 || siw_iov_scatter(iov, n, node->data))
		return fail_unexpected_segment(
			rx, -EACCES,
			(struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_LOCAL_CATASTROPHIC, 0 });
	free_oldest_unexpected_segment(stream);
	return siw_ddp_account_for_placed_segment(stream, seg, delivery);
}

uint64_t siw_ddp_rx_unexpected_octets(const struct siw_ddp_stream *stream)
{
	return stream->rx.unexpected.used;
}

bool siw_ddp_rx_defer_stream_end(struct siw_ddp_stream *stream)
{
	if (!stream->rx.unexpected.deliver_before_end || !stream->rx.unexpected.first ||
	    !siw_ddp_lower_ended(stream->rx.dead))
		return false;
	/*
	 * Pause the socket, which may have been resumed when a receive was posted: no code reads
	 * from the socket any more, so the poller would report the socket as ready forever.
	 */
	siw_llp_sock_pause(siw_mpa_sock(stream->mpa));
	return true;
}

bool siw_ddp_rx_has_partial_message(const struct siw_ddp_stream *stream)
{
	const struct siw_ddp_rx *rx = &stream->rx;

	return rx->any_unexpected ? rx->unexpected.mo != 0 : rx->q[0].begun;
}

bool siw_ddp_rx_unexpected_segment_awaits_buffer(const struct siw_ddp_stream *stream,
						 struct siw_ddp_seg *seg)
{
	const struct siw_ddp_rx *rx = &stream->rx;

	if (!rx->unexpected.first || rx->q[0].begun || !siw_mem_queue_is_empty(rx->q[0].queue))
		return false;
	*seg = rx->unexpected.first->seg;
	return true;
}

uint32_t siw_ddp_newest_arrived_msn(const struct siw_ddp_stream *stream)
{
	const struct siw_ddp_rx *rx = &stream->rx;

	return rx->any_unexpected ? rx->unexpected.msn - !rx->unexpected.mo : rx->q[0].msn - 1;
}

uint32_t siw_ddp_last_delivered_msn(const struct siw_ddp_stream *stream)
{
	return stream->rx.q[0].msn - 1;
}

void siw_ddp_free_unexpected_segments(struct siw_ddp_stream *stream)
{
	struct siw_ddp_unexpected *unexpected = &stream->rx.unexpected;

	while (unexpected->first) {
		struct siw_ddp_unexpected_seg *node = unexpected->first;

		unexpected->first = node->next;
		free(node);
	}
	free(unexpected->coming);
	*unexpected = (struct siw_ddp_unexpected){ 0 };
	stream->rx.any_unexpected = false;
}
