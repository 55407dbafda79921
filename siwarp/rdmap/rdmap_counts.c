/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_counts.c - delivery counts between siwarp peers (spec/delivery-counts.md): a receiver
 * reports how many Sends it has received and how many Writes it has placed, if the sender has
 * requested such counts. A count precedes the next message; the upper layer decides when a count is
 * sent without a message.
 *
 * A Send is counted when its receive completes, not when the Send arrives: a Send that waits for
 * its receive is not counted, but later Writes are. The sender completes its requests in order.
 */
#include <errno.h>

#include "base/counters.h"
#include "rdmap/rdmap_impl.h"

/* ---- sending --------------------------------------------------------------------------------- */

static int frame_private_opcode_message(struct siw_rdmap_stream *stream, uint8_t subcode,
					uint64_t to)
{
	struct siw_ddp_msg *msg = siw_ddp_tx_get_msg_to_fill(stream->ddp, false);
	struct siw_wire_err err;
	int r;

	if (!msg)
		return -EBUSY;
	*msg = (struct siw_ddp_msg){
		.tagged = true,
		.internal = true,
		.ulp_octet = siw_rdmap_ctrl(SIW_RDMAP_PRIVATE),
		.stag = (uint32_t)subcode << SIW_RDMAP_PRIVATE_SUBCODE_SHIFT,
		.to = to,
	};
	r = siw_ddp_tx(stream->ddp, msg, &err);
	if (r < 0)
		return r;
	stream->tx.response = false;
	stream->tx.active = r == 0;
	return r;
}

int siw_rdmap_send_pending_private_msgs(struct siw_rdmap_stream *stream)
{
	struct siw_rdmap_tx *tx = &stream->tx;
	uint64_t taken;
	int r;

	if (tx->announce) {
		r = frame_private_opcode_message(stream, SIW_RDMAP_REQUESTER, tx->announcement);
		tx->announce = r < 0;
		if (r != 1)
			return r;
	}
	/* Memory ordering: pairs with the store in siw_rdmap_count_update(). */
	taken = atomic_load_explicit(&stream->deliverable, memory_order_acquire);
	if (taken == atomic_load_explicit(&tx->reported, memory_order_relaxed))
		return 1;
	r = frame_private_opcode_message(stream, SIW_RDMAP_DELIVERY_COUNT, taken);
	if (r >= 0) {
		atomic_store_explicit(&tx->reported, taken, memory_order_relaxed);
		siw_count(SIW_COUNTER_delivery_counts_tx, 1);
	}
	return r;
}

void siw_rdmap_announce_counts_and_rnr_retry(struct siw_rdmap_stream *stream, bool wants_counts,
					     uint8_t rnr_retry)
{
	stream->tx.announcement = (wants_counts ? SIW_RDMAP_WANTS_COUNTS : 0) | rnr_retry;
	stream->tx.announce = stream->counts;
}

bool siw_rdmap_has_unsent_delivery_count(const struct siw_rdmap_stream *stream)
{
	return __builtin_expect(stream->rx.counting, 0) && siw_rdmap_has_unsent_count(stream);
}

void siw_rdmap_transmit_delivery_count(struct siw_rdmap_stream *stream)
{
	if (stream->started && !stream->tx.term && !stream->tx.active &&
	    !atomic_load_explicit(&stream->closing, memory_order_relaxed))
		siw_rdmap_send_tagged_private_msgs(stream);
}

/* ---- receiving ------------------------------------------------------------------------------- */

static const struct siw_wire_err UNKNOWN = { SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION,
					     SIW_RDMAP_OPCODE };
static const struct siw_wire_err WRONG = { SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION,
					   SIW_RDMAP_UNSPECIFIED };

static bool tagged_private_msg_is_allowed(const struct siw_rdmap_stream *stream, uint8_t subcode)
{
	switch (subcode) {
	case SIW_RDMAP_DELIVERY_COUNT:
		return stream->counts || siw_rdmap_has_requested_delivery_counts(stream);
	case SIW_RDMAP_REQUESTER:
		return stream->counts;
	default:
		return false;
	}
}

bool siw_rdmap_check_tagged_private_msg(struct siw_rdmap_stream *stream,
					const struct siw_ddp_seg *seg, struct siw_wire_err *err)
{
	uint8_t subcode = (uint8_t)(seg->stag >> SIW_RDMAP_PRIVATE_SUBCODE_SHIFT);

	*err = UNKNOWN;
	if (!tagged_private_msg_is_allowed(stream, subcode))
		return false;
	*err = WRONG;
	return seg->last && !seg->payload &&
	       (subcode != SIW_RDMAP_REQUESTER ||
		(seg->to & SIW_RDMAP_RNR_MASK) <= SIW_RDMAP_RNR_MAX);
}

void siw_rdmap_handle_tagged_private_msg(struct siw_rdmap_stream *stream,
					 const struct siw_ddp_seg *seg,
					 struct siw_rdmap_event *event)
{
	if (seg->stag >> SIW_RDMAP_PRIVATE_SUBCODE_SHIFT == SIW_RDMAP_REQUESTER) {
		event->kind = SIW_RDMAP_RNR_RETRY;
		event->rnr_retry = seg->to & SIW_RDMAP_RNR_MASK;
		stream->rx.counting = seg->to & SIW_RDMAP_WANTS_COUNTS;
		/*
		 * The first count includes the messages that arrived before the peer requested
		 * counts.
		 */
		siw_rdmap_count_update(stream);
		return;
	}
	siw_count(SIW_COUNTER_delivery_counts_rx, 1);
	event->kind = SIW_RDMAP_DELIVERED;
	event->sends = (uint32_t)(seg->to >> SIW_RDMAP_SENDS_SHIFT);
	event->writes = (uint32_t)seg->to;
}

bool siw_rdmap_peer_wants_delivery_counts(const struct siw_rdmap_stream *stream)
{
	return stream->rx.counting;
}

bool siw_rdmap_has_requested_delivery_counts(const struct siw_rdmap_stream *stream)
{
	return atomic_load_explicit(&stream->asked, memory_order_relaxed);
}

void siw_rdmap_handle_delivery_counts_request(struct siw_rdmap_stream *stream,
					      const struct siw_rdmap_wire_read *wire)
{
	if (!stream->offers || wire->rdmardsz || wire->src_to != htobe64(SIW_RDMAP_ASKS_COUNTS))
		return;
	stream->rx.counting = true;
	siw_rdmap_count_update(stream);
}

void siw_rdmap_refuse_bad_delivery_count(struct siw_rdmap_stream *stream)
{
	siw_rdmap_record_first_error(stream, WRONG, &stream->rx.seg, NULL);
}
