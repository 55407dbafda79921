/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_record_tx.c - sends Write-Records segment by segment, and keeps a table of recently
 * sent Write-Records, against which received error messages are checked.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/clock.h"
#include "base/settings.h"
#include "rdmap/rdmap_impl.h"

/*
 * Maximum octets that one call sends, so that other queue pairs, and perhaps a receiver in the same
 * process, get their turn.
 */
#define TURN 65536u
/* The time in nanoseconds after which a path's MTU is looked up again. */
#define PATH_NS 1000000000ull

/*
 * A recently sent Write-Record: the values that an error message must quote, and a hash of the
 * address that may send the error message.
 */
struct sent {
	uint64_t user_data, to;
	uint32_t tag; /* hash by siw_rdmap_sent_tag(); 0: the entry is free */
	uint32_t id, stag, length;
};

/* The table of the latest Write-Records sent, indexed by id modulo n. Under the send lock. */
struct siw_rdmap_record_sents {
	uint32_t n;
	struct sent sent[];
};

static struct siw_rdmap_record_sents *write_record_alloc_sent_table(void)
{
	uint32_t n = (uint32_t)siw_settings()->err_window;
	struct siw_rdmap_record_sents *s = calloc(1, sizeof(*s) + n * sizeof(s->sent[0]));

	if (s)
		s->n = n;
	return s;
}

/*
 * Records a Write-Record whose first datagram was sent. The Write-Record has used up its id, even
 * if the rest is never sent. If there is no memory for the table, error messages about the
 * Write-Record are dropped.
 */
static void write_record_note_begun(struct siw_rdmap_dgram *dgram,
				    const struct siw_rdmap_record_op *op)
{
	struct siw_rdmap_record_sents *s = dgram->record_sents;
	uint32_t id = dgram->record_id++;

	if (!s)
		s = dgram->record_sents = write_record_alloc_sent_table();
	if (!s)
		return;
	s->sent[id % s->n] = (struct sent){
		.user_data = op->user_data,
		.to = op->to,
		.tag = siw_rdmap_sent_tag(op->dest, op->qkey, op->dest_index),
		.id = id,
		.stag = op->stag,
		.length = (uint32_t)op->length,
	};
}

bool siw_rdmap_match_error_to_sent_write_record(struct siw_rdmap_dgram *dgram,
						const struct siw_rdmap_event *event,
						uint64_t *user_data)
{
	struct siw_rdmap_record_sents *s = dgram->record_sents;
	uint32_t index = event->src_qpn >> SIW_RDMAP_INDEX_SHIFT;
	struct sent *sent;

	if (!s || !event->quoted_more_len)
		return false;
	sent = &s->sent[event->quoted_msn % s->n];
	if (sent->tag != siw_rdmap_sent_tag(&event->source, event->ulp_word, index) ||
	    sent->id != event->quoted_msn || sent->stag != event->quoted_stag ||
	    event->quoted_to - sent->to > sent->length)
		return false;
	*user_data = sent->user_data;
	sent->tag = 0; /* only one error message per Write-Record is accepted */
	return true;
}

/* Returns the maximum octets of user data in one datagram to dest, or -errno. */
static int write_record_path_max_payload(struct siw_rdmap_dgram *dgram, const struct siw_addr *dest)
{
	uint64_t now = siw_now_ns();
	int octets;

	if (dgram->path_ns && now - dgram->path_ns < PATH_NS && siw_addr_same(&dgram->path, dest))
		return (int)dgram->path_octets;
	octets = siw_ddp_dgram_max_tagged_payload(dgram->ddp, dest);
	if (octets < 0)
		return octets;
	if (octets <= SIW_RDMAP_RECORD_HEAD)
		return -EMSGSIZE;
	dgram->path = *dest;
	dgram->path_ns = now;
	dgram->path_octets = (uint32_t)octets - SIW_RDMAP_RECORD_HEAD;
	return (int)dgram->path_octets;
}

static int write_record_send_segment(struct siw_rdmap_dgram *dgram,
				     const struct siw_rdmap_record_op *op, uint64_t offset,
				     uint64_t octets)
{
	struct siw_rdmap_record_head head = {
		/* write_record_note_begun() has advanced record_id after the first segment */
		.id = dgram->record_id - (offset != 0),
		.length = (uint32_t)op->length,
		.to = op->to,
		.solicited = op->solicited,
	};
	uint8_t wire[SIW_RDMAP_RECORD_HEAD];
	struct siw_ddp_dgram_tagged msg = {
		.dest = op->dest,
		.dest_index = op->dest_index,
		.source_index = (uint8_t)dgram->index,
		.qkey = op->qkey,
		.last = offset + octets == op->length,
		.ulp_octet = siw_rdmap_ctrl(SIW_RDMAP_PRIVATE),
		.stag = op->stag,
		.to = op->to + offset,
		.head = wire,
		.head_len = SIW_RDMAP_RECORD_HEAD,
		.sgl = op->sgl,
		.nsge = op->nsge,
		.internal = op->internal,
		.pd = dgram->pd,
		.offset = offset,
		.length = octets,
	};

	siw_rdmap_write_record_put_header(&head, wire);
	return siw_ddp_dgram_tx_tagged(dgram->ddp, &msg);
}

int siw_rdmap_write_record_send(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_record_op *op,
				uint64_t *offset)
{
	int most = write_record_path_max_payload(dgram, op->dest), r;
	uint64_t turn = 0;

	if (most < 0)
		return most;
	do {
		uint64_t left = op->length - *offset;
		uint64_t octets = left < (uint64_t)most ? left : (uint64_t)most;

		if (turn >= TURN)
			return 0;
		r = write_record_send_segment(dgram, op, *offset, octets);
		if (r)
			return r;
		if (!*offset)
			write_record_note_begun(dgram, op);
		*offset += octets;
		turn += octets;
	} while (*offset < op->length);
	siw_count(SIW_COUNTER_tx_msgs, 1);
	siw_count(SIW_COUNTER_tx_octets, op->length);
	return 1;
}
