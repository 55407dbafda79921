/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_tx.c - sending on streams: a message is split into segments (RFC 5041 section 5.2), which
 * are passed to the lower layer in order (RFC5041-5.3-02, -03). One message at a time is in
 * progress; tx.offset counts its framed octets.
 */
#include <errno.h>
#include <stdlib.h>

#include "ddp/ddp_lower.h"

/* Maximum octets that one call frames, so that other queue pairs of the device can send, too. */
#define TURN (1u << 20)

/* ---- the regions that unsent octets refer to ------------------------------------------------- */

static struct siw_ddp_source *find_tx_source_region(struct siw_ddp_tx *tx, uint32_t stag)
{
	for (uint32_t i = 0; i < tx->n_sources; i++)
		if (tx->sources[i].stag == stag)
			return &tx->sources[i];
	return NULL;
}

/*
 * Whether tx->sources has an entry for the region that the current message reads from, or a free
 * entry.
 */
static bool tx_has_room_for_source_region(struct siw_ddp_stream *stream, struct siw_ddp_tx *tx)
{
	uint64_t accepted;
	uint32_t n = 0;

	if (tx->n_sources < SIW_DDP_SOURCES || find_tx_source_region(tx, tx->msg.src_stag))
		return true;
	accepted = siw_ddp_tx_accepted_position(stream);
	for (uint32_t i = 0; i < tx->n_sources; i++)
		if (tx->sources[i].end > accepted)
			tx->sources[n++] = tx->sources[i];
	tx->n_sources = n;
	return n < SIW_DDP_SOURCES;
}

/*
 * Records that framed octets, which TCP has not accepted yet, refer to the source region of the
 * current Read Response.
 */
static void record_tx_source_region(struct siw_ddp_stream *stream, struct siw_ddp_tx *tx)
{
	struct siw_ddp_source *source = find_tx_source_region(tx, tx->msg.src_stag);

	if (stream->lower->copies)
		return;
	if (!source)
		source = &tx->sources[tx->n_sources++];
	*source = (struct siw_ddp_source){ tx->framed, tx->msg.src_stag };
}

/* ---- segments -------------------------------------------------------------------------------- */

/*
 * Resolves the memory of the next len octets of a message that has octets for the upper layer
 * (msg->head) before sgl. Returns the number of iovecs or -errno.
 */
static __attribute__((cold, noinline)) int ddp_resolve_headed(struct siw_ddp_stream *stream,
							      const struct siw_ddp_tx *tx,
							      uint64_t len, struct iovec *iov)
{
	const struct siw_ddp_msg *msg = &tx->msg;
	uint64_t at = tx->offset, end = at + len;
	int n = 0, r;

	if (msg->tagged) {
		iov[n++] = (struct iovec){ (void *)msg->head, SIW_DDP_ULP_TAGGED };
		/*
		 * tx->offset does not count the head of a tagged message, but the variables `at`
		 * and `end` must count it
		 */
		at += SIW_DDP_ULP_HEAD;
		end += SIW_DDP_ULP_HEAD;
	} else if (at < SIW_DDP_ULP_HEAD) {
		uint64_t part = (end < SIW_DDP_ULP_HEAD ? end : SIW_DDP_ULP_HEAD) - at;

		iov[n++] = (struct iovec){ (void *)(msg->head + at), part };
		at += part;
	}
	if (at == end)
		return n;
	r = siw_mem_sgl_resolve(stream->mem, msg->sgl, msg->nsge, msg->internal, stream->pd, false,
				at - SIW_DDP_ULP_HEAD, end - at, iov + n, SIW_MEM_MAX_SGE);
	return r < 0 ? r : n + r;
}

/*
 * Resolves the memory of the next len octets of the payload. Returns the number of iovecs or
 * -errno. If the source is an STag and the result is above 0, the caller holds a reference to the
 * STag and must release it.
 */
static int ddp_resolve_payload(struct siw_ddp_stream *stream, const struct siw_ddp_tx *tx,
			       uint64_t len, struct iovec *iov, struct siw_wire_err *err)
{
	const struct siw_ddp_msg *msg = &tx->msg;
	int n;

	if (msg->from_stag)
		return siw_mem_stag_acquire(stream->mem, msg->src_stag, stream->pd,
					    stream->identity, SIW_MEM_REMOTE_READ,
					    msg->src_to + tx->offset, len, iov, SIW_MEM_MAX_SGE,
					    err);
	if (__builtin_expect(msg->head != NULL, 0))
		n = ddp_resolve_headed(stream, tx, len, iov);
	else
		n = siw_mem_sgl_resolve(stream->mem, msg->sgl, msg->nsge, msg->internal, stream->pd,
					false, tx->offset, len, iov, SIW_MEM_MAX_SGE);
	if (n < 0)
		*err = (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_LOCAL_CATASTROPHIC, 0 };
	return n;
}

/* The next segment of the message that is being sent. */
struct segment {
	uint64_t len; /* octets of the segment's payload */
	bool last;
	size_t head_len;
	uint8_t head[SIW_DDP_MAX_HEAD];
	struct iovec iov[SIW_MEM_MAX_SGE + 1];
};

/*
 * Takes the next segment from the message. Returns the number of iovecs of the segment's payload,
 * or -errno. As with ddp_resolve_payload(), the caller may hold a reference to the STag afterwards.
 */
static int ddp_prepare_next_tx_segment(struct siw_ddp_stream *stream, const struct siw_ddp_tx *tx,
				       struct segment *seg, struct siw_wire_err *err)
{
	const struct siw_ddp_msg *msg = &tx->msg;
	uint64_t left = msg->length - tx->offset;

	seg->head_len = msg->tagged ? SIW_DDP_TAGGED : SIW_DDP_UNTAGGED;
	/*
	 * The maximum segment length is queried for each segment, because it may change between
	 * segments (RFC5041-3-02).
	 */
	seg->len = stream->lower->mulpdu(stream, tx) - seg->head_len;
	if (__builtin_expect(msg->head && msg->tagged, 0))
		seg->len -= SIW_DDP_ULP_TAGGED;
	seg->last = left <= seg->len; /* RFC5041-4.1-03, -04 */
	if (seg->last)
		seg->len = left;
	if (msg->tagged) /* RFC5041-5.2-07 */
		siw_ddp_put_tagged(seg->head, seg->last, msg->ulp_octet, msg->stag,
				   msg->to + tx->offset);
	else /* RFC5041-5.2-05 */
		siw_ddp_put_untagged(seg->head, seg->last, msg->ulp_octet, msg->ulp_word, msg->qn,
				     tx->at_msn, (uint32_t)tx->offset);
	return ddp_resolve_payload(stream, tx, seg->len, seg->iov, err);
}

/*
 * Records that the lower layer has accepted a segment. end: the segment's end position in the lower
 * layer's stream.
 */
static void ddp_tx_advance_past_segment(struct siw_ddp_stream *stream, struct siw_ddp_tx *tx,
					const struct segment *seg, int64_t end)
{
	tx->offset += seg->len;
	tx->framed = (uint64_t)end;
	if (!seg->last)
		return;
	tx->active = false;
	if (tx->msg.end)
		*tx->msg.end = tx->framed;
	if (tx->msg.from_stag && tx->msg.length)
		record_tx_source_region(stream, tx);
}

int siw_ddp_tx_continue(struct siw_ddp_stream *stream, struct siw_ddp_tx *tx,
			struct siw_wire_err *err)
{
	uint64_t turn = 0, accepted;
	bool flushed = false;
	struct segment seg;

	while (tx->active) {
		int64_t end = 0;

		if (turn >= TURN)
			return 0;
		if (!tx->msg.from_stag || tx_has_room_for_source_region(stream, tx)) {
			int n = ddp_prepare_next_tx_segment(stream, tx, &seg, err);

			if (n < 0)
				return n;
			end = stream->lower->tx(stream, tx, seg.head, seg.head_len, seg.iov, n);
			if (tx->msg.from_stag && n)
				siw_mem_stag_release(stream->mem, tx->msg.src_stag);
		}
		if (end > 0) {
			ddp_tx_advance_past_segment(stream, tx, &seg, end);
			turn += seg.len;
			flushed = false;
			continue;
		}
		if (__builtin_expect(end == -EFAULT, 0)) {
			*err = (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_LOCAL_CATASTROPHIC,
						      0 };
			return -EACCES;
		}
		if (end < 0 || !stream->lower->flush_makes_room)
			return (int)end;
		if (flushed) /* not reachable: an empty batch accepts any segment */
			return -EIO;
		end = siw_ddp_tx_flush(stream, &accepted);
		if (end <= 0)
			return (int)end;
		flushed = true;
	}
	return 1;
}

int siw_ddp_tx_continue_msg(struct siw_ddp_stream *stream, struct siw_wire_err *err)
{
	return siw_ddp_tx_continue(stream, &stream->tx, err);
}

struct siw_ddp_msg *siw_ddp_tx_get_msg_to_fill(struct siw_ddp_stream *stream, bool response)
{
	struct siw_ddp_tx *tx = response && stream->responses ? stream->responses : &stream->tx;

	return tx->active ? NULL : &tx->msg;
}

int siw_ddp_tx(struct siw_ddp_stream *stream, struct siw_ddp_msg *msg, struct siw_wire_err *err)
{
	struct siw_ddp_tx *tx = siw_container(msg, struct siw_ddp_tx, msg);
	int r;

	if (__builtin_expect(msg->head && !msg->tagged, 0))
		msg->length += SIW_DDP_ULP_HEAD;
	if (msg->length > UINT32_MAX) /* RFC5041-5.2-02 */
		return -EMSGSIZE;
	if (!msg->tagged && msg->qn >= SIW_DDP_QUEUES)
		return -EINVAL;
	tx->offset = 0;
	tx->active = true;
	if (msg->end)
		*msg->end = UINT64_MAX;
	if (!msg->tagged)
		tx->at_msn = tx->msn[msg->qn]++; /* RFC5041-4.3-08, -10 */
	r = siw_ddp_tx_continue(stream, tx, err);
	if (r < 0 && tx->active && !tx->offset) {
		/* no segment was framed, so the message does not count as begun */
		tx->active = false;
		if (!msg->tagged)
			tx->msn[msg->qn]--;
	}
	return r;
}

uint64_t siw_ddp_tx_abandon(struct siw_ddp_stream *stream)
{
	struct siw_ddp_tx *tx = &stream->tx;

	if (!tx->active)
		return 0;
	tx->active = false;
	if (tx->msg.from_stag && tx->offset)
		record_tx_source_region(stream, tx);
	return tx->offset;
}

int siw_ddp_tx_flush(struct siw_ddp_stream *stream, uint64_t *accepted)
{
	return stream->lower->flush(stream, accepted);
}

bool siw_ddp_is_tx_blocked(const struct siw_ddp_stream *stream)
{
	return stream->lower->blocked(stream);
}

uint32_t siw_ddp_last_tx_msn(const struct siw_ddp_stream *stream, uint32_t qn)
{
	return stream->tx.msn[qn] - 1;
}

bool siw_ddp_has_tx_message_in_progress(const struct siw_ddp_stream *stream)
{
	return stream->tx.active;
}

uint64_t siw_ddp_tx_framed_position(const struct siw_ddp_stream *stream)
{
	return stream->tx.framed;
}

uint64_t siw_ddp_tx_accepted_position(const struct siw_ddp_stream *stream)
{
	return stream->lower->accepted(stream);
}

int siw_ddp_tx_still_refers_to_stag(struct siw_ddp_stream *stream, uint32_t stag)
{
	struct siw_ddp_tx *tx = &stream->tx;
	const struct siw_ddp_source *source = find_tx_source_region(tx, stag);

	if (stream->lower->copies)
		return 0;
	if (source && source->end > siw_ddp_tx_accepted_position(stream))
		return 1;
	return tx->active && tx->msg.from_stag && tx->msg.src_stag == stag && tx->offset > 0;
}
