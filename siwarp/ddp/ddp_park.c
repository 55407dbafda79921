/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_park.c - segments of queue 0 that come before their buffer: kept, within a limit, and
 * placed in their order once buffers are posted, while what comes behind them goes on.
 *
 * What is kept was checked like everything else but for the buffer's length, which is judged when
 * there is one. While anything is kept, all that comes for queue 0 is, so that nothing overtakes.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/counters.h"
#include "base/guard.h"
#include "ddp/ddp_lower.h"

void siw_ddp_stream_park(struct siw_ddp_stream *stream, uint64_t octets)
{
	stream->rx.park.limit = octets;
}

uint8_t siw_ddp_park_judge(const struct siw_ddp_rx *rx, const struct siw_ddp_seg *seg)
{
	if (seg->msn != rx->park.msn)
		return SIW_DDP_MSN_RANGE;
	return seg->mo == rx->park.mo ? 0 : SIW_DDP_INVALID_MO;
}

/* Room for the segment at the head of the stream: NULL when there is none, or no memory. */
static struct siw_ddp_parked *make_room(struct siw_ddp_stream *stream)
{
	struct siw_ddp_park *park = &stream->rx.park;
	const struct siw_ddp_seg *seg = &stream->rx.seg;
	uint64_t cost = sizeof(struct siw_ddp_parked) + seg->payload;
	struct siw_ddp_parked *node;

	if (park->used + cost > park->limit)
		return NULL;
	node = malloc(cost);
	if (!node)
		return NULL;
	node->next = NULL;
	node->seg = *seg;
	if (!stream->rx.parked) {
		park->msn = seg->msn;
		park->mo = 0;
	}
	if (!seg->mo)
		siw_count(SIW_COUNTER_rnr_parked, 1);
	park->used += cost;
	park->coming = node;
	stream->rx.parked = true;
	return node;
}

int siw_ddp_park(struct siw_ddp_stream *stream)
{
	struct siw_ddp_rx *rx = &stream->rx;
	struct siw_ddp_park *park = &rx->park;
	struct siw_ddp_parked *node = park->coming ? park->coming : make_room(stream);
	struct iovec iov;
	int r;

	if (!node) { /* it stays where it is, and what is behind it in the socket */
		/* Who reads no more does not hear it from TCP. */
		if (siw_mpa_gone(stream->mpa))
			return rx->dead = -ECONNRESET;
		park->full = true;
		siw_mpa_hold(stream->mpa);
		return 0;
	}
	iov = (struct iovec){ node->data, rx->seg.payload };
	r = siw_ddp_lower_payload(stream, rx->seg.head_len, iov.iov_len ? &iov : NULL,
				  iov.iov_len ? 1 : 0);
	if (r != 1)
		return siw_ddp_from_lower(stream, r);
	rx->have = false;
	park->coming = NULL;
	if (park->last)
		park->last->next = node;
	else
		park->first = node;
	park->last = node;
	park->mo += node->seg.payload;
	if (node->seg.last) {
		park->msn++;
		park->mo = 0;
	}
	return 3;
}

static void pop(struct siw_ddp_stream *stream)
{
	struct siw_ddp_park *park = &stream->rx.park;
	struct siw_ddp_parked *node = park->first;

	park->first = node->next;
	if (!park->first)
		park->last = NULL;
	park->used -= sizeof(*node) + node->seg.payload;
	free(node);
	stream->rx.parked = park->first || park->coming;
	if (park->full) {
		park->full = false;
		siw_mpa_again(stream->mpa);
	}
}

static int failed(struct siw_ddp_rx *rx, int why, struct siw_wire_err err)
{
	rx->err = err;
	return rx->dead = why;
}

/* 0, or -EFAULT: the buffer's memory is not there any more. */
static int copy_out(const struct siw_ddp_parked *node, const struct iovec *iov, int n)
{
	const uint8_t *from = node->data;

	for (int i = 0; i < n; i++) {
		if (siw_guard_write(iov[i].iov_base, from, iov[i].iov_len))
			return -EFAULT;
		from += iov[i].iov_len;
	}
	return 0;
}

int siw_ddp_rx_unpark(struct siw_ddp_stream *stream, struct siw_ddp_seg *seg,
		      struct siw_ddp_delivery *delivery)
{
	struct siw_ddp_rx *rx = &stream->rx;
	struct siw_ddp_rxq *q = &rx->q[0];
	const struct siw_ddp_parked *node = rx->park.first;
	struct iovec iov[SIW_DDP_MAX_SGE + 1];
	int n;

	if (rx->dead || !node || (!q->begun && !siw_ddp_take_buffer(q)))
		return 0;
	*seg = node->seg;
	if (siw_ddp_octets_to(rx, seg) > q->length)
		return failed(rx, -EPROTO,
			      (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_UNTAGGED_BUFFER,
						     SIW_DDP_TOO_LONG });
	n = siw_ddp_untagged_iov(stream, seg, iov);
	if (n < 0 || copy_out(node, iov, n))
		return failed(rx, -EACCES,
			      (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_LOCAL_CATASTROPHIC,
						     0 });
	pop(stream);
	return siw_ddp_placed(stream, seg, delivery);
}

uint64_t siw_ddp_rx_parked(const struct siw_ddp_stream *stream)
{
	return stream->rx.park.used;
}

bool siw_ddp_rx_starved(const struct siw_ddp_stream *stream, struct siw_ddp_seg *seg)
{
	const struct siw_ddp_rx *rx = &stream->rx;

	if (!rx->park.first || rx->q[0].begun || siw_ddp_queue_peek(rx->q[0].queue))
		return false;
	*seg = rx->park.first->seg;
	return true;
}

uint32_t siw_ddp_rx_arrived(const struct siw_ddp_stream *stream)
{
	const struct siw_ddp_rx *rx = &stream->rx;

	return rx->parked ? rx->park.msn - !rx->park.mo : rx->q[0].msn - 1;
}

uint32_t siw_ddp_rx_delivered(const struct siw_ddp_stream *stream)
{
	return stream->rx.q[0].msn - 1;
}

void siw_ddp_park_free(struct siw_ddp_stream *stream)
{
	struct siw_ddp_park *park = &stream->rx.park;

	while (park->first) {
		struct siw_ddp_parked *node = park->first;

		park->first = node->next;
		free(node);
	}
	free(park->coming);
	*park = (struct siw_ddp_park){ 0 };
	stream->rx.parked = false;
}
