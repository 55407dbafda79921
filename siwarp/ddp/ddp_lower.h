/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_lower.h - the functions that a DDP stream needs from the layer that carries its segments:
 * mpa (ddp_mpa.c), or an RD peer (ddp_rd.c). Both layers deliver segments complete and in order.
 *
 * What this interface does NOT do: start-up and teardown, and finding the next segment. A stream on
 * MPA is asked for its next segment (siw_ddp_rx_peek_segment); an RD endpoint returns the next
 * segment of any of its peers (siw_ddp_rd_recv).
 */
#ifndef SIW_DDP_LOWER_H
#define SIW_DDP_LOWER_H

#include "ddp/ddp_impl.h"

struct siw_ddp_lower {
	/* ---- sending: send lock ---- */

	/* The maximum length of the next segment of tx, header included, in octets. */
	size_t (*mulpdu)(const struct siw_ddp_stream *stream, const struct siw_ddp_tx *tx);
	/*
	 * Frames a segment of tx. Returns the segment's end position; 0 if the lower layer has no
	 * room now; -EFAULT if the memory is not mapped; another -errno if the stream is dead.
	 */
	int64_t (*tx)(struct siw_ddp_stream *stream, const struct siw_ddp_tx *tx, const void *head,
		      size_t head_len, const struct iovec *iov, int n);
	/*
	 * The implementations of siw_ddp_tx_flush, siw_ddp_is_tx_blocked and
	 * siw_ddp_tx_accepted_position.
	 */
	int (*flush)(struct siw_ddp_stream *stream, uint64_t *accepted);
	bool (*blocked)(const struct siw_ddp_stream *stream);
	uint64_t (*accepted)(const struct siw_ddp_stream *stream);
	/*
	 * Whether a flush makes room for a segment; if not, only the peer's acknowledgements make
	 * room.
	 */
	bool flush_makes_room;
	/*
	 * Whether framed octets are copies, so that no region is read after the segment was framed.
	 */
	bool copies;

	/* ---- receiving: progress lock ---- */

	/*
	 * Scatters the octets of the segment at the head of the stream, without its first skip
	 * octets. Returns 1; 0 if octets are still missing; or an -errno, which must be passed to
	 * the member failed.
	 */
	int (*payload)(struct siw_ddp_stream *stream, size_t skip, const struct iovec *iov, int n);
	/* Handles an error of the lower layer. Returns the same values as siw_ddp_rx_place. */
	int (*failed)(struct siw_ddp_stream *stream, int err);
	/*
	 * Drops the refused segment rx.seg, with the error in rx.why and rx.why_err. Returns
	 * rx.why, or 0 while octets of the segment are missing.
	 */
	int (*refuse)(struct siw_ddp_stream *stream);
};

extern const struct siw_ddp_lower siw_ddp_lower_mpa;

#endif
