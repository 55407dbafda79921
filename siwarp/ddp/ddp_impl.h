/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ddp/ddp_impl.h - declarations shared by the files of the DDP layer. */
#ifndef SIW_DDP_IMPL_H
#define SIW_DDP_IMPL_H

#include <errno.h>
#include <stdatomic.h>

#include "base/crc32c.h"
#include "base/list.h"
#include "base/lock.h"
#include "base/pieces.h"
#include "ddp/ddp.h"
#include "ddp/ddp_wire.h"
#include "mem/mem_queue.h"

/* ---- streams --------------------------------------------------------------------------------- */

#define SIW_DDP_QUEUES 4
/* Maximum number of memory regions that are recorded as referenced by unsent octets. */
#define SIW_DDP_SOURCES 16
/*
 * Maximum number of received datagrams that are dropped, or cause no event, before other sockets
 * are serviced.
 */
#define SIW_DDP_TRIES 64

struct siw_mpa_stream;
struct siw_rd_peer;

/* The receiving side of one queue number of a DDP stream. */
struct siw_ddp_rxq {
	struct siw_mem_buffer_queue *queue;
	uint32_t msn; /* MSN of the current message, or of the next message if none is current */
	/* octets of the current message placed so far, which is also the next valid MO */
	uint32_t placed;
	bool accept_empty_rtr; /* see siw_ddp_stream_set_accept_empty_rtr */
	bool begun; /* the member buf was removed from the queue for the current message */
	struct siw_mem_taken buf;
	/*
	 * the octets for the upper layer, which are not placed into the buffer: see
	 * siw_ddp_stream_set_opcodes_with_ulp_header
	 */
	uint8_t head[SIW_DDP_ULP_HEAD];
};

/* A stored segment of queue 0 that arrived before its buffer was posted. */
struct siw_ddp_unexpected_seg {
	struct siw_ddp_unexpected_seg *next;
	struct siw_ddp_seg seg;
	uint8_t data[]; /* the payload */
};

struct siw_ddp_unexpected {
	/*
	 * limit of the member `used`, in octets of memory including bookkeeping; 0: unexpected
	 * segments are not stored
	 */
	uint64_t limit;
	uint64_t used;
	struct siw_ddp_unexpected_seg *first, *last;
	/* the newest segment (rx.seg), while its payload has not arrived completely */
	struct siw_ddp_unexpected_seg *coming;
	uint32_t msn, mo; /* the MSN and MO expected next, while unexpected segments are stored */
	/* there is no memory left: rx.seg and all later segments wait */
	bool full;
	bool deliver_before_end;
};

struct siw_ddp_rx {
	int dead;	     /* -errno after which no more segments are processed; 0: none */
	bool have;	     /* the member seg holds the segment at the head of the stream */
	bool any_unexpected; /* unexpected segments of queue 0 are stored */
	bool whole;	     /* the complete seg has arrived and its CRC is checked */
	bool refusing;	     /* seg is being dropped, with the error in why and why_err */
	uint16_t headed;     /* see siw_ddp_stream_set_opcodes_with_ulp_header */
	int why;
	struct siw_wire_err why_err;
	struct siw_wire_err err;
	struct siw_ddp_seg seg;
	struct siw_ddp_rxq q[SIW_DDP_QUEUES];
	struct siw_ddp_unexpected unexpected;
};

/* Additional state of a stream over reliable datagrams. Protected by the progress lock. */
struct siw_ddp_rd_rx {
	const uint8_t *data; /* the segment at the head of the stream, or NULL */
	uint32_t len;
	uint8_t space; /* PSN space of the segment at the head of the stream: enum siw_rd_space */
	/* a partially received message holds a receive, and the endpoint's `parts` counts it */
	bool part;
	bool consumed_buffer; /* the refused message used up the buffer of user_data */
	/*
	 * For each PSN space: whether the remaining segments of a refused message are dropped, and
	 * the last segment dropped.
	 */
	struct {
		bool on;
		struct siw_ddp_seg last;
	} skip[2];
	uint64_t user_data;
	uint16_t headed;      /* see siw_ddp_rd_set_opcodes_with_ulp_header */
	struct siw_link held; /* member of the endpoint's list of paused streams */
};

/*
 * A region that Read Responses read from, and the stream position at which the last of these
 * responses ends.
 */
struct siw_ddp_source {
	uint64_t end;
	uint32_t stag;
};

struct siw_ddp_tx {
	bool active; /* the message msg is not completely framed */
	uint32_t at_msn;
	uint64_t offset; /* octets of the message framed so far */
	struct siw_ddp_msg msg;
	uint32_t msn[SIW_DDP_QUEUES]; /* MSN of the next message of each queue */
	uint64_t framed; /* end of the last segment, in the unit of siw_ddp_tx_accepted_position */
	uint32_t n_sources;
	struct siw_ddp_source sources[SIW_DDP_SOURCES];
};

struct siw_ddp_stream {
	struct siw_mem *mem;
	const struct siw_ddp_lower *lower; /* ddp_lower.h */
	/* the lower layer of the stream: mpa for MPA, rd for RD; the other is NULL */
	struct siw_mpa_stream *mpa;
	struct siw_rd_peer *rd;
	uint32_t pd;
	const void *identity; /* identity for STags; set before the first segment is received */
	void *user;	      /* the upper layer's object for a stream over rd */
	struct siw_ddp_rd *endpoint;
	struct siw_ddp_rd_rx rd_rx;
	struct siw_ddp_rx rx;		   /* protected by the progress lock */
	_Alignas(64) struct siw_ddp_tx tx; /* protected by the send lock */
	/*
	 * for a stream over rd: the send state of responses and error messages, which have a PSN
	 * space of their own; protected by the send lock
	 */
	struct siw_ddp_tx *responses;
};

/* ---- ddp_stream.c ---------------------------------------------------------------------------- */

/*
 * Continues to send the message in tx (ddp_tx.c). Returns the same values as
 * siw_ddp_tx_continue_msg.
 */
int siw_ddp_tx_continue(struct siw_ddp_stream *stream, struct siw_ddp_tx *tx,
			struct siw_wire_err *err);

/* Allocates a stream that has no lower layer yet. */
struct siw_ddp_stream *siw_ddp_stream_new(struct siw_mem *mem);

/* ---- ddp_rx.c, for ddp_mpa.c, ddp_rd.c and ddp_unexpected.c ---------------------------------- */

/* The error for local memory that cannot be used, which is not the peer's fault. */
extern const struct siw_wire_err siw_ddp_local_catastrophic;

/*
 * The functions below check the segment at the head of the stream. Each function returns 1, or
 * refuses the segment and returns the result of the member refuse of struct siw_ddp_lower.
 *
 * siw_ddp_rx_parse parses the segment's header into rx.seg.
 */
int siw_ddp_rx_parse(struct siw_ddp_stream *stream, const uint8_t *head, size_t seg_len);
int siw_ddp_rx_check_version(struct siw_ddp_stream *stream);
/*
 * Checks an untagged segment according to RFC5041-7.1-01. Returns a code of enum
 * siw_ddp_untagged_ecode, or 0.
 */
uint8_t siw_ddp_rx_check_untagged(const struct siw_ddp_rx *rx, const struct siw_ddp_seg *seg);
/*
 * Refuse the segment at the head of the stream; return the result of the member refuse of struct
 * siw_ddp_lower.
 */
int siw_ddp_rx_refuse_segment(struct siw_ddp_stream *stream, int why, struct siw_wire_err err);
int siw_ddp_rx_refuse_untagged(struct siw_ddp_stream *stream, uint8_t code);

/*
 * Whether an -errno of the lower layer means that the connection has ended, rather than that a
 * segment was invalid.
 */
static inline bool siw_ddp_lower_ended(int r)
{
	return r && r != -EPROTO && r != -EBADMSG && r != -EACCES;
}
/*
 * Passes an error of the lower layer to the member failed of struct siw_ddp_lower, and returns the
 * result; returns any other value unchanged.
 */
int siw_ddp_handle_lower_layer_result(struct siw_ddp_stream *stream, int r);
/*
 * Octets at the start of the segment's message that are for the upper layer and not placed into the
 * buffer.
 */
static inline uint32_t siw_ddp_head_octets(const struct siw_ddp_rx *rx,
					   const struct siw_ddp_seg *seg)
{
	return !seg->qn && rx->headed >> (seg->ulp_octet & 15) & 1 ? SIW_DDP_ULP_HEAD : 0;
}
/* Octets of the buffer that are used when the message is placed up to the end of the segment. */
static inline uint64_t siw_ddp_octets_to(const struct siw_ddp_rx *rx, const struct siw_ddp_seg *seg)
{
	uint64_t end = (uint64_t)seg->mo + seg->payload;
	uint32_t head = siw_ddp_head_octets(rx, seg);

	if (__builtin_expect(head, 0))
		return end > head ? end - head : 0;
	return end;
}
/*
 * Fills iov with the destination of an untagged segment, at most SIW_MEM_MAX_SGE + 1 iovecs.
 * Returns the number of iovecs, or -errno.
 */
int siw_ddp_resolve_untagged_segment(struct siw_ddp_stream *stream, const struct siw_ddp_seg *seg,
				     struct iovec *iov);
/* Removes a buffer for the next message from the queue; returns false if the queue is empty. */
bool siw_ddp_rxq_take_buffer(struct siw_ddp_rxq *q);
/*
 * Accounts for a segment that was placed. Returns 1, and sets *delivery, if the segment was the
 * last of its message; otherwise 2.
 */
int siw_ddp_account_for_placed_segment(struct siw_ddp_stream *stream, const struct siw_ddp_seg *seg,
				       struct siw_ddp_delivery *delivery);

/* Whether the messages of a queue number are responses or error messages (RFC 5040, RFC 7306). */
static inline bool siw_ddp_is_response_queue(uint32_t qn)
{
	return qn >= 2;
}

/* ---- ddp_rd.c and ddp_rx.c ------------------------------------------------------------------- */

/* Octets at the start of a tagged segment that are for the upper layer and not placed. */
static inline uint32_t siw_ddp_tagged_octets(const struct siw_ddp_rd_rx *rd,
					     const struct siw_ddp_seg *seg)
{
	return rd->headed >> (seg->ulp_octet & 15) & 1 ? SIW_DDP_ULP_TAGGED : 0;
}

/* ---- ddp_unexpected.c, for ddp_rx.c ---------------------------------------------------------- */

/*
 * Checks a segment that arrives while unexpected segments are stored. Returns 0, or a code of enum
 * siw_ddp_untagged_ecode.
 */
uint8_t siw_ddp_check_unexpected_segment(const struct siw_ddp_rx *rx,
					 const struct siw_ddp_seg *seg);
/*
 * Stores the segment at the head of the stream as unexpected. Returns 3 when the segment is stored;
 * 0 if octets of the segment are missing, or there is no room now; or -errno.
 */
int siw_ddp_store_unexpected_segment(struct siw_ddp_stream *stream);
void siw_ddp_free_unexpected_segments(struct siw_ddp_stream *stream);

/* ---- datagrams ------------------------------------------------------------------------------- */

/*
 * Appends the CRC to a datagram whose payload is sent without copying. The elements of `all` are
 * the header, n pieces of payload, and a free element for the CRC, which is stored in tail. Returns
 * 0, or -EFAULT if a piece is not mapped.
 */
static inline int siw_ddp_close_datagram(struct iovec *all, int n, uint8_t *tail, bool with_crc)
{
	uint32_t crc = 0;

	if (with_crc && siw_iov_crc(&crc, all, n + 1))
		return -EFAULT;
	siw_crc32c_put(tail, crc);
	all[n + 1] = (struct iovec){ tail, SIW_CRC32C_OCTETS };
	return 0;
}

/* cffi: begin */

/* Sets the MSN of the next message of queue qn, in both directions, for tests. */
void siw_ddp_set_msn_for_tests(struct siw_ddp_stream *stream, uint32_t qn, uint32_t msn);

/* cffi: end */

#endif
