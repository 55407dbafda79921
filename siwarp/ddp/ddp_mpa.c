/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_mpa.c - DDP streams on MPA. FPDUs arrive octet by octet, so a segment may be incomplete
 * when its header is read, and its CRC is checked with its last octet.
 */
#include <errno.h>

#include "ddp/ddp_lower.h"
#include "mpa/mpa.h"

/* ---- sending --------------------------------------------------------------------------------- */

static size_t mpa_mulpdu(const struct siw_ddp_stream *stream, const struct siw_ddp_tx *tx)
{
	(void)tx;
	return siw_mpa_mulpdu(stream->mpa);
}

static int64_t mpa_tx_segment(struct siw_ddp_stream *stream, const struct siw_ddp_tx *tx,
			      const void *head, size_t head_len, const struct iovec *iov, int n)
{
	(void)tx;
	return siw_mpa_tx_fpdu(stream->mpa, head, head_len, iov, n);
}

static int mpa_flush_tx(struct siw_ddp_stream *stream, uint64_t *accepted)
{
	return siw_mpa_tx_flush(stream->mpa, accepted);
}

static bool mpa_tx_is_blocked(const struct siw_ddp_stream *stream)
{
	return siw_mpa_is_tx_blocked(stream->mpa);
}

static uint64_t mpa_tx_accepted_octets(const struct siw_ddp_stream *stream)
{
	return siw_mpa_octets_accepted_by_tcp(stream->mpa);
}

int siw_ddp_tx_empty_fpdu(struct siw_ddp_stream *stream)
{
	int64_t end;

	if (stream->tx.active)
		return -EBUSY;
	end = siw_mpa_tx_fpdu(stream->mpa, "", 0, NULL, 0);
	if (end <= 0)
		return end ? (int)end : -EAGAIN;
	stream->tx.framed = (uint64_t)end;
	return 1;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static int mpa_scatter_payload(struct siw_ddp_stream *stream, size_t skip, const struct iovec *iov,
			       int n)
{
	return siw_mpa_rx_payload(stream->mpa, skip, iov, n);
}

/* Ends the stream after an error of MPA or TCP, and stores the error that a Terminate reports. */
static int mpa_end_stream_on_error(struct siw_ddp_stream *stream, int err)
{
	struct siw_ddp_rx *rx = &stream->rx;

	if (err == -EPROTO || err == -EBADMSG) { /* RFC5041-7-01 */
		rx->err = siw_mpa_get_error(stream->mpa);
	} else if (err == -EFAULT) {
		/*
		 * The destination memory is no longer mapped. The error that the Terminate reports
		 * shows that the peer did not cause the failure.
		 */
		rx->err = siw_ddp_local_catastrophic;
		err = -EACCES;
	}
	rx->have = false;
	rx->dead = err;
	return err;
}

static int mpa_drop_refused_segment(struct siw_ddp_stream *stream)
{
	struct siw_ddp_rx *rx = &stream->rx;
	int r = 1;

	if (!rx->whole)
		r = mpa_scatter_payload(stream, rx->seg.head_len, NULL, 0);
	if (r < 1)
		return siw_ddp_handle_lower_layer_result(stream, r);
	rx->have = false;
	rx->err = rx->why_err;
	/* RFC5041-7.1-09: no segment after an invalid one is processed */
	return rx->dead = rx->why;
}

static int mpa_check_segment(struct siw_ddp_stream *stream, const uint8_t *head, size_t seg_len)
{
	struct siw_ddp_rx *rx = &stream->rx;
	uint8_t code;
	int r = siw_ddp_rx_parse(stream, head, seg_len);

	if (r != 1)
		return r;
	r = siw_ddp_rx_check_version(stream);
	if (r != 1)
		return r;
	if (!rx->seg.tagged) {
		code = siw_ddp_rx_check_untagged(rx, &rx->seg);
		if (code)
			return siw_ddp_rx_refuse_untagged(stream, code);
	}
	rx->have = true;
	return 1;
}

int siw_ddp_rx_peek_segment(struct siw_ddp_stream *stream, struct siw_ddp_seg *seg)
{
	struct siw_ddp_rx *rx = &stream->rx;
	size_t head_len, seg_len;
	const uint8_t *head;
	int r;

	if (rx->dead)
		return rx->dead;
	if (rx->refusing) {
		r = mpa_drop_refused_segment(stream);
		if (r < 0)
			*seg = rx->seg;
		return r;
	}
	if (!rx->have) {
		r = siw_mpa_rx_fpdu(stream->mpa, &head, &head_len, &seg_len, &rx->whole);
		if (r <= 0)
			return siw_ddp_handle_lower_layer_result(stream, r);
		if (!seg_len) {
			r = mpa_scatter_payload(stream, 0, NULL, 0);
			return r == 1 ? 2 : siw_ddp_handle_lower_layer_result(stream, r);
		}
		r = mpa_check_segment(stream, head, seg_len);
		if (r != 1) {
			*seg = rx->seg;
			return r;
		}
	}
	*seg = rx->seg;
	return 1;
}

bool siw_ddp_rx_peek_already_read_segment(const struct siw_ddp_stream *stream,
					  struct siw_ddp_seg *seg)
{
	const uint8_t *head;
	size_t seg_len;

	return !stream->rx.have &&
	       siw_mpa_rx_peek_already_read_fpdu(stream->mpa, &head, &seg_len) &&
	       siw_ddp_parse_quoted_header(head, seg_len, seg);
}

const struct siw_ddp_lower siw_ddp_lower_mpa = {
	.mulpdu = mpa_mulpdu,
	.tx = mpa_tx_segment,
	.flush = mpa_flush_tx,
	.blocked = mpa_tx_is_blocked,
	.accepted = mpa_tx_accepted_octets,
	.flush_makes_room = true,
	.payload = mpa_scatter_payload,
	.failed = mpa_end_stream_on_error,
	.refuse = mpa_drop_refused_segment,
};
