/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ddp/ddp_impl.h - what the files of this layer share and nobody else sees. */
#ifndef SIW_DDP_IMPL_H
#define SIW_DDP_IMPL_H

#include <errno.h>
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
/* Regions of which octets may lie below, not taken by TCP. */
#define SIW_DDP_SOURCES 16

struct siw_mpa_stream;
struct siw_rd_peer;

/* The receiving side of one queue number. */
struct siw_ddp_rxq {
	struct siw_mem_queue *queue;
	uint32_t msn;	       /* of the message that is next or in the works */
	uint32_t placed;       /* octets of it: the MO that must come next */
	bool accept_empty_rtr; /* siw_ddp_stream_accept_empty_rtr */
	bool begun;	       /* a buffer was taken for it: */
	int nsge;
	uint64_t user_data;
	uint64_t length;
	struct siw_sge sgl[SIW_MEM_MAX_SGE];
	uint8_t head[SIW_DDP_ULP_HEAD]; /* siw_ddp_stream_headed: what does not go there */
};

/* A segment of queue 0 that came before its buffer. */
struct siw_ddp_unexpected_seg {
	struct siw_ddp_unexpected_seg *next;
	struct siw_ddp_seg seg;
	uint8_t data[]; /* its payload */
};

struct siw_ddp_unexpected {
	uint64_t limit; /* octets of memory, bookkeeping included; 0: nothing is stored */
	uint64_t used;
	struct siw_ddp_unexpected_seg *first, *last;
	struct siw_ddp_unexpected_seg *coming; /* the rest of its payload has not come: rx.seg */
	uint32_t msn, mo;		       /* what must come next, while any is stored */
	bool full;			       /* rx.seg, and what is behind it, waits for room */
	bool deliver_before_end;
};

struct siw_ddp_rx {
	int dead;	     /* -errno, once no segment will be looked at any more */
	bool have;	     /* seg is the segment at the head of the stream */
	bool any_unexpected; /* segments of queue 0 that came before their buffer are stored */
	bool whole;	     /* all of seg is here, its CRC checked */
	bool refusing;	     /* seg is thrown away, because of why and why_err */
	uint16_t headed;     /* siw_ddp_stream_headed */
	int why;
	struct siw_wire_err why_err;
	struct siw_wire_err err;
	struct siw_ddp_seg seg;
	struct siw_ddp_rxq q[SIW_DDP_QUEUES];
	struct siw_ddp_unexpected unexpected;
};

/* Reliable datagrams below. Under the progress lock. */
struct siw_ddp_rd_rx {
	const uint8_t *data; /* the segment at the head, or NULL */
	uint32_t len;
	bool skip;   /* segments of the message that was refused: */
	bool blamed; /* ... which had taken the buffer: */
	struct siw_ddp_seg skipped;
	uint64_t user_data;
	uint16_t headed;      /* siw_ddp_rd_headed */
	struct siw_link held; /* in its endpoint's, while it waits */
};

/* A region that messages were read from, and where the last of them ends. */
struct siw_ddp_source {
	uint64_t end;
	uint32_t stag;
};

struct siw_ddp_tx {
	bool active; /* msg is not wholly framed */
	uint32_t at_msn;
	uint64_t offset; /* octets of msg framed */
	struct siw_ddp_msg msg;
	uint32_t msn[SIW_DDP_QUEUES]; /* the next message's */
	uint64_t framed; /* where the last segment ends: as siw_ddp_tx_accepted counts */
	uint32_t n_sources;
	struct siw_ddp_source sources[SIW_DDP_SOURCES];
};

struct siw_ddp_stream {
	struct siw_mem *mem;
	struct siw_mpa_stream *mpa; /* one of these two */
	struct siw_rd_peer *rd;
	uint32_t pd;
	const void *identity; /* set before it carries anything */
	void *user;	      /* over rd */
	struct siw_ddp_rd *endpoint;
	struct siw_ddp_rd_rx rd_rx;
	struct siw_ddp_rx rx;		   /* under the progress lock */
	_Alignas(64) struct siw_ddp_tx tx; /* under the send lock */
};

/* ---- ddp_stream.c ---------------------------------------------------------------------------- */

/* A stream with nothing below it. */
struct siw_ddp_stream *siw_ddp_stream_new(struct siw_mem *mem);

/* ---- ddp_rx.c, for ddp_unexpected.c ---------------------------------------------------------- */

/* Whether this -errno means that the connection is over, and not that what came is wrong. */
static inline bool siw_ddp_lower_ended(int r)
{
	return r && r != -EPROTO && r != -EBADMSG && r != -EACCES;
}
/*
 * What a failure of the layer below means to this stream: -errno, and rx.err for a protocol error.
 */

int siw_ddp_from_lower(struct siw_ddp_stream *stream, int r);
/* Octets at the start of this segment's message that are not for its buffer. */
static inline uint32_t siw_ddp_head_octets(const struct siw_ddp_rx *rx,
					   const struct siw_ddp_seg *seg)
{
	return !seg->qn && rx->headed >> (seg->ulp_octet & 15) & 1 ? SIW_DDP_ULP_HEAD : 0;
}
/* Octets of the buffer that the message fills up to this segment's end. */
static inline uint64_t siw_ddp_octets_to(const struct siw_ddp_rx *rx, const struct siw_ddp_seg *seg)
{
	uint64_t end = (uint64_t)seg->mo + seg->payload;
	uint32_t head = siw_ddp_head_octets(rx, seg);

	if (__builtin_expect(head, 0))
		return end > head ? end - head : 0;
	return end;
}
/*
 * Where an untagged segment is placed: at most SIW_MEM_MAX_SGE + 1 iovecs; their count or -errno.
 */
int siw_ddp_untagged_iov(struct siw_ddp_stream *stream, const struct siw_ddp_seg *seg,
			 struct iovec *iov);
/* Takes a buffer for the next message off the queue; false: there is none. */
bool siw_ddp_take_buffer(struct siw_ddp_rxq *q);
/*
 * Counts a segment that lies in its buffer. 1: it was its message's last one, *delivery; 2: it was
 * not.
 */
int siw_ddp_placed(struct siw_ddp_stream *stream, const struct siw_ddp_seg *seg,
		   struct siw_ddp_delivery *delivery);

/* ---- ddp_rd.c, for ddp_rx.c ------------------------------------------------------------------ */

/* Octets at the start of this tagged segment that are not placed. */
static inline uint32_t siw_ddp_tagged_octets(const struct siw_ddp_rd_rx *rd,
					     const struct siw_ddp_seg *seg)
{
	return rd->headed >> (seg->ulp_octet & 15) & 1 ? SIW_DDP_ULP_TAGGED : 0;
}

/* Refuses the segment at the head for rx.why_err: returns rx.why. */
int siw_ddp_rd_refusal(struct siw_ddp_stream *stream);
/* Drops the segment at the head if its message was refused before: whether it did. */
bool siw_ddp_rd_skips(struct siw_ddp_stream *stream);

/* ---- ddp_unexpected.c, for ddp_rx.c ---------------------------------------------------------- */

/*
 * Checks a segment while unexpected ones are stored: 0, or a code of enum siw_ddp_untagged_ecode.
 */
uint8_t siw_ddp_unexpected_judge(const struct siw_ddp_rx *rx, const struct siw_ddp_seg *seg);
/*
 * Stores the segment at the head. 3: done; 0: its rest has not come, or there is no room now;
 * -errno.
 */
int siw_ddp_keep_unexpected(struct siw_ddp_stream *stream);
void siw_ddp_unexpected_free(struct siw_ddp_stream *stream);

/* ---- datagrams ------------------------------------------------------------------------------- */

/*
 * A datagram that goes from where it lies: all has the header in front, n pieces behind it, and
 * room for the CRC, which lies in tail. 0, or -EFAULT: a piece is not there.
 */
static inline int siw_ddp_close_datagram(struct iovec *all, int n, uint8_t *tail, bool with_crc)
{
	uint32_t crc = 0;

	if (with_crc && siw_pieces_crc(&crc, all, n + 1))
		return -EFAULT;
	siw_crc32c_put(tail, crc);
	all[n + 1] = (struct iovec){ tail, SIW_CRC32C_OCTETS };
	return 0;
}

/* cffi: begin */

/* For tests: the MSN that queue qn's next message has, in both directions. */
void siw_ddp_test_set_msn(struct siw_ddp_stream *stream, uint32_t qn, uint32_t msn);

/* cffi: end */

#endif
