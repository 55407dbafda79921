/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_tx.c - messages cut into segments (RFC 5041 section 5.2) that go down one by one, in
 * order (RFC5041-5.3-02, -03). One message at a time is in the works: a cursor.
 */
#include <errno.h>
#include <stdlib.h>

#include "ddp/ddp_lower.h"

/* Octets that one call frames at most: others of the port want their turn too. */
#define TURN (1u << 20)

static void refresh_accepted(struct siw_ddp_stream *stream)
{
	struct siw_ddp_tx *tx = &stream->tx;
	uint64_t fpdus = siw_ddp_lower_accepted(stream);

	while (tx->accepted != tx->framed && tx->ring[tx->accepted & tx->ring_mask].fpdus <= fpdus)
		tx->accepted++;
}

/* Twice the room for messages that are not accepted: false if that is more than there may be. */
static __attribute__((cold, noinline)) bool grow(struct siw_ddp_tx *tx)
{
	uint32_t size = (tx->ring_mask + 1) * 2;
	struct siw_ddp_framed *ring;

	if (size > SIW_DDP_INFLIGHT)
		return false;
	ring = malloc(size * sizeof(*ring));
	if (!ring)
		return false;
	for (uint64_t i = tx->accepted; i != tx->framed; i++)
		ring[i & (size - 1)] = tx->ring[i & tx->ring_mask];
	free(tx->ring);
	tx->ring = ring;
	tx->ring_mask = size - 1;
	return true;
}

static bool ring_full(struct siw_ddp_stream *stream)
{
	struct siw_ddp_tx *tx = &stream->tx;

	if (tx->framed - tx->accepted <= tx->ring_mask)
		return false;
	refresh_accepted(stream);
	return tx->framed - tx->accepted > tx->ring_mask && !grow(tx);
}

static void message_framed(struct siw_ddp_stream *stream, uint32_t stag, uint64_t fpdus)
{
	struct siw_ddp_tx *tx = &stream->tx;

	tx->ring[tx->framed++ & tx->ring_mask] = (struct siw_ddp_framed){ fpdus, stag };
	tx->active = false;
}

/* The same of a message with a head, which stands before its list. */
static __attribute__((cold, noinline)) int headed_payload(struct siw_ddp_stream *stream,
							  uint64_t len, struct iovec *iov)
{
	const struct siw_ddp_tx *tx = &stream->tx;
	const struct siw_ddp_msg *msg = &tx->msg;
	uint64_t at = tx->offset, end = at + len;
	int n = 0, r;

	if (msg->tagged) {
		iov[n++] = (struct iovec){ (void *)msg->head, SIW_DDP_ULP_TAGGED };
		at += SIW_DDP_ULP_HEAD; /* which is no part of the message, as: */
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

/* The payload of the next len octets; for a source under an STag a reference is held if > 0. */
static int payload(struct siw_ddp_stream *stream, uint64_t len, struct iovec *iov,
		   struct siw_wire_err *err)
{
	const struct siw_ddp_tx *tx = &stream->tx;
	const struct siw_ddp_msg *msg = &tx->msg;
	int n;

	if (msg->from_stag)
		return siw_mem_stag_get(stream->mem, msg->src_stag, stream->pd, stream->identity,
					SIW_MEM_REMOTE_READ, msg->src_to + tx->offset, len, iov,
					SIW_MEM_MAX_SGE, err);
	if (__builtin_expect(msg->head != NULL, 0))
		n = headed_payload(stream, len, iov);
	else
		n = siw_mem_sgl_resolve(stream->mem, msg->sgl, msg->nsge, msg->internal, stream->pd,
					false, tx->offset, len, iov, SIW_MEM_MAX_SGE);
	if (n < 0)
		*err = (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_LOCAL_CATASTROPHIC, 0 };
	return n;
}

static size_t put_head(const struct siw_ddp_tx *tx, bool last, uint8_t *head)
{
	const struct siw_ddp_msg *msg = &tx->msg;

	if (msg->tagged) { /* RFC5041-5.2-07 */
		siw_ddp_put_tagged(head, last, msg->ulp_octet, msg->stag, msg->to + tx->offset);
		return SIW_DDP_TAGGED;
	}
	/* RFC5041-5.2-05 */
	siw_ddp_put_untagged(head, last, msg->ulp_octet, msg->ulp_word, msg->qn, tx->at_msn,
			     (uint32_t)tx->offset);
	return SIW_DDP_UNTAGGED;
}

/* Frames the next segment: 1; 0 no room now; -errno. *framed: octets of its payload. */
static int segment(struct siw_ddp_stream *stream, uint64_t *framed, struct siw_wire_err *err)
{
	struct siw_ddp_tx *tx = &stream->tx;
	uint64_t left = tx->msg.length - tx->offset;
	/* Asked anew each time: it may change between segments (RFC5041-3-02). */
	uint64_t len =
		siw_ddp_lower_mulpdu(stream) - (tx->msg.tagged ? SIW_DDP_TAGGED : SIW_DDP_UNTAGGED);
	bool last;
	struct iovec iov[SIW_MEM_MAX_SGE + 1];
	uint8_t head[SIW_DDP_MAX_HEAD];
	size_t head_len;
	int n, r;

	if (__builtin_expect(tx->msg.head && tx->msg.tagged, 0))
		len -= SIW_DDP_ULP_TAGGED;
	last = left <= len; /* RFC5041-4.1-03, -04 */
	if (last) {
		len = left;
		if (ring_full(stream))
			return 0;
	}
	n = payload(stream, len, iov, err);
	if (n < 0)
		return n;
	head_len = put_head(tx, last, head);
	r = siw_ddp_lower_tx(stream, head, head_len, iov, n);
	if (tx->msg.from_stag && n)
		siw_mem_stag_put(stream->mem, tx->msg.src_stag);
	if (__builtin_expect(r == -EFAULT, 0)) {
		*err = (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_LOCAL_CATASTROPHIC, 0 };
		return -EACCES;
	}
	if (r != 1)
		return r;
	tx->offset += len;
	*framed = len;
	if (last)
		message_framed(stream, tx->msg.from_stag && tx->msg.length ? tx->msg.src_stag : 0,
			       siw_ddp_lower_framed(stream));
	return 1;
}

int siw_ddp_tx_more(struct siw_ddp_stream *stream, struct siw_wire_err *err)
{
	uint64_t turn = 0, framed = 0;
	bool flushed = false;

	while (stream->tx.active) {
		int r;

		if (turn >= TURN)
			return 0;
		r = segment(stream, &framed, err);
		if (r < 0)
			return r;
		if (r) {
			turn += framed;
			flushed = false;
			continue;
		}
		if (siw_ddp_over_rd(stream)) /* the peer is to take something first */
			return 0;
		if (flushed) /* cannot be: an empty batch takes any segment */
			return -EIO;
		r = siw_ddp_lower_flush(stream);
		if (r <= 0)
			return r;
		flushed = true;
	}
	return 1;
}

int siw_ddp_tx(struct siw_ddp_stream *stream, const struct siw_ddp_msg *msg,
	       struct siw_wire_err *err)
{
	struct siw_ddp_tx *tx = &stream->tx;
	int r;

	if (tx->active)
		return -EBUSY;
	if (msg->length + (msg->head && !msg->tagged ? SIW_DDP_ULP_HEAD : 0) >
	    UINT32_MAX) /* RFC5041-5.2-02 */
		return -EMSGSIZE;
	if (!msg->tagged && msg->qn >= SIW_DDP_QUEUES)
		return -EINVAL;
	tx->msg = *msg;
	if (__builtin_expect(msg->head && !msg->tagged, 0))
		tx->msg.length += SIW_DDP_ULP_HEAD;
	tx->offset = 0;
	tx->active = true;
	tx->begun++;
	if (!msg->tagged)
		tx->at_msn = tx->msn[msg->qn]++; /* RFC5041-4.3-08, -10 */
	r = siw_ddp_tx_more(stream, err);
	if (r < 0 && tx->active && !tx->offset) { /* nothing of it is framed: it never was */
		tx->active = false;
		tx->begun--;
		if (!msg->tagged)
			tx->msn[msg->qn]--;
	}
	return r;
}

int siw_ddp_tx_empty(struct siw_ddp_stream *stream)
{
	int r;

	if (stream->tx.active)
		return -EBUSY;
	if (ring_full(stream))
		return -EAGAIN;
	r = siw_ddp_lower_tx(stream, "", 0, NULL, 0);
	if (r != 1)
		return r ? r : -EAGAIN;
	stream->tx.begun++;
	message_framed(stream, 0, siw_ddp_lower_framed(stream));
	return 1;
}

uint64_t siw_ddp_tx_abandon(struct siw_ddp_stream *stream)
{
	struct siw_ddp_tx *tx = &stream->tx;

	if (!tx->active)
		return 0;
	/* Behind it accepted stands still; make room for it if there is none. */
	if (ring_full(stream))
		tx->framed--;
	message_framed(stream, tx->msg.from_stag ? tx->msg.src_stag : 0,
		       siw_ddp_over_rd(stream) ? siw_ddp_lower_framed(stream) : UINT64_MAX);
	return tx->offset;
}

int siw_ddp_tx_flush(struct siw_ddp_stream *stream)
{
	return siw_ddp_lower_flush(stream);
}

bool siw_ddp_tx_blocked(const struct siw_ddp_stream *stream)
{
	return siw_ddp_lower_blocked(stream);
}

uint32_t siw_ddp_tx_msn(const struct siw_ddp_stream *stream, uint32_t qn)
{
	return stream->tx.msn[qn] - 1;
}

uint64_t siw_ddp_tx_begun(const struct siw_ddp_stream *stream)
{
	return stream->tx.begun;
}

uint64_t siw_ddp_tx_accepted(struct siw_ddp_stream *stream)
{
	refresh_accepted(stream);
	return stream->tx.accepted;
}

int siw_ddp_tx_revoke(struct siw_ddp_stream *stream, uint32_t stag)
{
	struct siw_ddp_tx *tx = &stream->tx;
	uint64_t i;

	if (siw_ddp_over_rd(stream)) /* what is framed was copied */
		return 0;
	refresh_accepted(stream);
	for (i = tx->accepted; i != tx->framed; i++) {
		if (tx->ring[i & tx->ring_mask].stag == stag)
			return 1;
	}
	return tx->active && tx->msg.from_stag && tx->msg.src_stag == stag && tx->offset > 0;
}
