/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_lower.h - dispatch from a DDP stream to the layer that carries its segments: mpa, or an
 * RD peer. Either layer delivers segments complete and in order.
 *
 * What it does NOT do: start-up and teardown, which are done by the code that opens the stream.
 */
#ifndef SIW_DDP_LOWER_H
#define SIW_DDP_LOWER_H

#include "ddp/ddp_impl.h"
#include "ddp/ddp_rd.h"
#include "mpa/mpa.h"
#include "rd/rd.h"

static inline bool siw_ddp_over_rd(const struct siw_ddp_stream *stream)
{
	return __builtin_expect(stream->rd != NULL, 0);
}

/* ddp_rd.c: implementations of siw_ddp_lower_rx and siw_ddp_lower_payload over rd. */
int siw_ddp_rd_rx(struct siw_ddp_stream *stream, const uint8_t **head, size_t *head_len,
		  size_t *seg_len, bool *whole);
/*
 * Called when a multi-segment message is about to use a receive. Returns whether the peer has used
 * up its share of the receives; the stream is then paused. Such messages never use the last quarter
 * of the receives, nor those of one source (base/source.h) more than half; a single one is always
 * admitted.
 */
bool siw_ddp_rd_lacks_share(struct siw_ddp_stream *stream);
int siw_ddp_rd_payload(struct siw_ddp_stream *stream, size_t skip, const struct iovec *iov, int n);

/* ---- sending: send lock ---------------------------------------------------------------------- */

/*
 * The maximum length of the next segment, header included, in octets. space is used only over rd.
 */
static inline size_t siw_ddp_lower_mulpdu(struct siw_ddp_stream *stream, enum siw_rd_space space)
{
	if (siw_ddp_over_rd(stream))
		return siw_rd_mulpdu(stream->rd, space);
	return siw_mpa_mulpdu(stream->mpa);
}

/* ---- receiving: progress lock ---------------------------------------------------------------- */

/* See siw_mpa_rx_fpdu. */
static inline int siw_ddp_lower_rx(struct siw_ddp_stream *stream, const uint8_t **head,
				   size_t *head_len, size_t *seg_len, bool *whole)
{
	if (siw_ddp_over_rd(stream))
		return siw_ddp_rd_rx(stream, head, head_len, seg_len, whole);
	return siw_mpa_rx_fpdu(stream->mpa, head, head_len, seg_len, whole);
}

/* See siw_mpa_rx_payload. */
static inline int siw_ddp_lower_payload(struct siw_ddp_stream *stream, size_t skip,
					const struct iovec *iov, int n)
{
	if (siw_ddp_over_rd(stream))
		return siw_ddp_rd_payload(stream, skip, iov, n);
	return siw_mpa_rx_payload(stream->mpa, skip, iov, n);
}

#endif
