/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_record.c - receives Write-Records on UD, where datagrams may be lost. Layout:
 *
 *   0         1       2          4                8                16               20
 *  +---------+-------+----------+----------------+----------------+----------------+----------
 *  | subcode | flags |   zero   |   message id   |  TO of octet 0 |  total length  | payload
 *  |    3    |       |          |                |                |                |
 *  +---------+-------+----------+----------------+----------------+----------------+----------
 *
 * A slot holds an unfinished or a finished message. Finished messages are stored so that their
 * ranges can be queried, and so that late datagrams do not begin a new message.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/os.h"
#include "base/capture.h"
#include "base/clock.h"
#include "base/settings.h"
#include "rdmap/rdmap_impl.h"
#include "rdmap/rdmap_record.h"

#define SUBCODE	  3
#define SOLICITED 0x01

struct record_wire {
	uint8_t subcode;
	uint8_t flags;
	uint16_t zero;
	uint32_t id;
	uint64_t to;
	uint32_t length;
} __attribute__((packed));
_Static_assert(sizeof(struct record_wire) == SIW_RDMAP_RECORD_HEAD &&
		       SIW_RDMAP_RECORD_HEAD <= SIW_DDP_TAGGED_HEAD &&
		       SIW_RDMAP_RECORD_HEAD == SIW_DDP_ULP_TAGGED,
	       "figure 8.1");
_Static_assert(sizeof(((struct siw_rdmap_event *)0)->quoted_more) == SIW_RDMAP_RECORD_HEAD,
	       "quoted_more holds the complete header");

enum slot_state { FREE, OPEN, DUE, REPORTED };

struct slot {
	enum slot_state state;
	uint64_t last_ns; /* in state OPEN: arrival time of the message's latest datagram */
	/* in state OPEN: arrival time of the message's final segment; 0: it has not arrived */
	uint64_t final_ns;
	/*
	 * sequence number of the message's first datagram; in state REPORTED, of the message's
	 * report
	 */
	uint64_t order;
	struct siw_rdmap_record rec;
};

struct siw_rdmap_records {
	uint32_t max;	    /* maximum number of unfinished messages */
	uint32_t open, due; /* number of slots in the states OPEN and DUE */
	uint32_t hint;	    /* index of the slot used by the last datagram */
	uint64_t reported;  /* number of the latest report made */
	uint64_t order;
	uint64_t window_ns, timeout_ns;
	struct slot slots[]; /* the array has 2 * max slots */
};

uint32_t siw_rdmap_write_record_choose_first_id(void)
{
	/*
	 * The first id is random, so that the ids differ from the ids of an earlier process at the
	 * same port.
	 */
	return siw_random();
}

struct siw_rdmap_records *siw_rdmap_write_record_table_new(uint32_t max)
{
	struct siw_rdmap_records *r;

	r = calloc(1, sizeof(*r) + 2 * (size_t)max * sizeof(r->slots[0]));
	if (!r)
		return NULL;
	r->max = max;
	r->window_ns = (uint64_t)siw_settings()->record_reorder_us * 1000;
	r->timeout_ns = (uint64_t)siw_settings()->record_timeout_ms * 1000000;
	return r;
}

int siw_rdmap_write_record_enable_rx(struct siw_rdmap_dgram *dgram, uint32_t max)
{
	if (!max)
		return 0;
	dgram->records = siw_rdmap_write_record_table_new(max);
	return dgram->records ? 0 : -ENOMEM;
}

void siw_rdmap_write_record_drop_partly_received(struct siw_rdmap_dgram *dgram)
{
	struct siw_rdmap_records *r = dgram->records;

	if (!r)
		return;
	for (uint32_t i = 0; i < 2 * r->max; i++)
		if (r->slots[i].state != REPORTED)
			r->slots[i].state = FREE;
	r->open = r->due = 0;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/*
 * Records the octets [start, end) of a message as received. Returns false if more than
 * SIW_RDMAP_RECORD_RANGES ranges would be needed.
 */
static bool write_record_add_range(struct siw_rdmap_record *rec, uint32_t start, uint32_t end)
{
	struct siw_rdmap_range *r = rec->ranges;
	uint32_t i = 0, k;

	while (i < rec->n && r[i].end < start)
		i++;
	/*
	 * i: the first range that touches [start, end) or follows it; k: the first range that
	 * follows [start, end) without touching it.
	 */
	for (k = i; k < rec->n && r[k].start <= end; k++) {
		start = r[k].start < start ? r[k].start : start;
		end = r[k].end > end ? r[k].end : end;
		rec->valid -= r[k].end - r[k].start;
	}
	if (k == i && rec->n == SIW_RDMAP_RECORD_RANGES)
		return false;
	memmove(&r[i + 1], &r[k], (rec->n - k) * sizeof(*r));
	r[i] = (struct siw_rdmap_range){ start, end };
	rec->n += 1 + i - k;
	rec->valid += end - start;
	return true;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static bool write_record_slot_holds_message(const struct slot *s,
					    const struct siw_rdmap_event *event, uint32_t id)
{
	return s->state != FREE && s->rec.id == id && s->rec.src_qpn == event->src_qpn &&
	       siw_addr_same(&s->rec.source, &event->source);
}

static struct slot *write_record_slot_find(struct siw_rdmap_records *r,
					   const struct siw_rdmap_event *event, uint32_t id)
{
	if (write_record_slot_holds_message(&r->slots[r->hint], event, id))
		return &r->slots[r->hint];
	for (uint32_t i = 0; i < 2 * r->max; i++) {
		if (!write_record_slot_holds_message(&r->slots[i], event, id))
			continue;
		r->hint = i;
		return &r->slots[i];
	}
	return NULL;
}

/*
 * Returns the oldest slot in the given state. If host is not NULL, only slots with messages from
 * that host are considered. *n: the number of slots considered.
 */
static struct slot *write_record_slot_oldest(struct siw_rdmap_records *r, enum slot_state state,
					     const struct siw_addr *host, uint32_t *n)
{
	struct slot *found = NULL;

	*n = 0;
	for (uint32_t i = 0; i < 2 * r->max; i++) {
		struct slot *s = &r->slots[i];

		if (s->state != state || (host && !siw_addr_same_host(&s->rec.source, host)))
			continue;
		++*n;
		if (!found || s->order < found->order)
			found = s;
	}
	return found;
}

/*
 * Makes room for a message from the source. A single host may have only half of the unfinished
 * messages, so that the host cannot lock out other hosts. A further message from the host ends the
 * oldest unfinished message of the host; if the limit for all hosts is reached, the oldest
 * unfinished message of all hosts ends.
 */
static void write_record_slot_make_room(struct siw_rdmap_records *r, const struct siw_addr *source)
{
	struct slot *old;
	uint32_t n;

	old = write_record_slot_oldest(r, OPEN, source, &n);
	if (old && n >= (r->max + 1) / 2 && n < r->max)
		goto end;
	if (r->open < r->max)
		return;
	old = write_record_slot_oldest(r, OPEN, n >= r->max ? source : NULL, &n);
	if (!old)
		return;
end:
	old->state = DUE;
	r->open--;
	r->due++;
	siw_count(SIW_COUNTER_record_early, 1);
}

static struct slot *write_record_slot_open(struct siw_rdmap_records *r,
					   const struct siw_rdmap_event *event,
					   const struct siw_ddp_seg *seg,
					   const struct siw_rdmap_record_head *wire)
{
	struct slot *s;
	uint32_t n;

	write_record_slot_make_room(r, &event->source);
	s = write_record_slot_oldest(r, FREE, NULL, &n);
	if (!s) {
		s = write_record_slot_oldest(r, REPORTED, NULL, &n);
		/* the program may still query the reported messages */
		if (n <= siw_rdmap_record_kept(r->max))
			return NULL;
	}
	*s = (struct slot){ .state = OPEN, .order = ++r->order };
	s->rec.source = event->source;
	s->rec.src_qpn = event->src_qpn;
	s->rec.id = wire->id;
	s->rec.stag = seg->stag;
	s->rec.to = wire->to;
	s->rec.length = wire->length;
	s->rec.solicited = wire->solicited;
	r->open++;
	r->hint = (uint32_t)(s - r->slots);
	return s;
}

/* ---- heads ----------------------------------------------------------------------------------- */

void siw_rdmap_write_record_put_header(const struct siw_rdmap_record_head *head, uint8_t *out)
{
	struct record_wire wire = {
		.subcode = SUBCODE,
		.flags = head->solicited ? SOLICITED : 0,
		.id = htobe32(head->id),
		.to = htobe64(head->to),
		.length = htobe32(head->length),
	};

	memcpy(out, &wire, sizeof(wire));
}

bool siw_rdmap_write_record_parse_header(const uint8_t *octets, uint32_t n,
					 struct siw_rdmap_record_head *head)
{
	struct record_wire wire;

	if (n < SIW_RDMAP_RECORD_HEAD)
		return false;
	memcpy(&wire, octets, sizeof(wire));
	*head = (struct siw_rdmap_record_head){
		.id = be32toh(wire.id),
		.length = be32toh(wire.length),
		.to = be64toh(wire.to),
		.solicited = wire.flags & SOLICITED,
	};
	return wire.subcode == SUBCODE;
}

bool siw_rdmap_write_record_segment_fits(const struct siw_ddp_seg *seg,
					 const struct siw_rdmap_record_head *head)
{
	uint64_t start = seg->to - head->to, octets = seg->payload - SIW_RDMAP_RECORD_HEAD;

	return seg->to >= head->to && head->to + head->length >= head->to &&
	       start <= head->length && octets <= head->length - start &&
	       seg->last == (start + octets == head->length) && (octets || !head->length);
}

/* ---- receiving ------------------------------------------------------------------------------- */

void siw_rdmap_write_record_quote_header(const uint8_t *head, size_t len,
					 struct siw_rdmap_event *event)
{
	struct record_wire wire;

	if (len < SIW_RDMAP_RECORD_HEAD)
		return;
	memcpy(&wire, head, sizeof(wire));
	memcpy(event->quoted_more, head, SIW_RDMAP_RECORD_HEAD);
	event->quoted_more_len = SIW_RDMAP_RECORD_HEAD;
	event->quoted_msn = be32toh(wire.id);
}

static bool write_record_slot_agrees_with_segment(const struct slot *s,
						  const struct siw_ddp_seg *seg,
						  const struct siw_rdmap_record_head *wire)
{
	return s->rec.stag == seg->stag && s->rec.to == wire->to && s->rec.length == wire->length;
}

/* Fills *event for an invalid segment: quotes the segment and the id of its message. */
static void write_record_fill_error_event(const struct siw_rdmap_dgram *dgram,
					  const struct siw_ddp_seg *seg, struct siw_wire_err err,
					  struct siw_rdmap_event *event)
{
	siw_rdmap_dgram_fill_bad_message_event(seg, err, event);
	if ((seg->ulp_octet & SIW_RDMAP_OP_MASK) == SIW_RDMAP_PRIVATE)
		siw_rdmap_write_record_quote_header(siw_ddp_dgram_get_rx_payload(dgram->ddp),
						    seg->payload, event);
}

/* Reports in *event that a sender with the correct Q_Key has violated the protocol. */
static bool write_record_report_violation(const struct siw_rdmap_dgram *dgram,
					  const struct siw_ddp_seg *seg, enum siw_counter why,
					  uint8_t code, struct siw_rdmap_event *event)
{
	struct siw_wire_err err = { SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION, code };

	siw_drop(why);
	write_record_fill_error_event(dgram, seg, err, event);
	return true;
}

/*
 * Handles denied access to memory. The user of this end gets an event. The sender gets no error
 * message, since error messages would allow a sender to find valid STags by probing; the datagram
 * may also be an old datagram whose region has been deregistered.
 */
static bool write_record_report_denied_access(const struct siw_rdmap_dgram *dgram,
					      const struct siw_ddp_seg *seg,
					      struct siw_wire_err err,
					      struct siw_rdmap_event *event)
{
	siw_drop(SIW_COUNTER_drop_access);
	write_record_fill_error_event(dgram, seg, err, event);
	event->kind = SIW_RDMAP_BAD_ACCESS;
	return true;
}

bool siw_rdmap_handle_write_record_segment(struct siw_rdmap_dgram *dgram,
					   const struct siw_ddp_seg *seg,
					   struct siw_rdmap_event *event)
{
	struct siw_rdmap_records *r = dgram->records;
	struct siw_wire_err err;
	struct siw_rdmap_record_head wire;
	struct slot *s;
	uint32_t start;

	if (seg->ulp_octet >> SIW_RDMAP_RV_SHIFT != SIW_RDMAP_RV)
		return siw_drop(SIW_COUNTER_drop_version);
	if (seg->ulp_word != dgram->qkey)
		return siw_drop(SIW_COUNTER_drop_qkey);
	if (!r || (seg->ulp_octet & SIW_RDMAP_OP_MASK) != SIW_RDMAP_PRIVATE ||
	    !siw_rdmap_write_record_parse_header(siw_ddp_dgram_get_rx_payload(dgram->ddp),
						 seg->payload, &wire))
		return write_record_report_violation(dgram, seg, SIW_COUNTER_drop_opcode,
						     SIW_RDMAP_OPCODE, event);
	if (!siw_rdmap_write_record_segment_fits(seg, &wire))
		return write_record_report_violation(dgram, seg, SIW_COUNTER_drop_header,
						     SIW_RDMAP_UNSPECIFIED, event);
	event->src_qpn = siw_rdmap_src_qpn(&event->source, seg->qn);
	s = write_record_slot_find(r, event, wire.id);
	if (s && s->state != OPEN) /* the message was reported already, or will be reported next */
		return siw_drop(SIW_COUNTER_drop_late);
	if (s && !write_record_slot_agrees_with_segment(s, seg, &wire))
		return write_record_report_violation(dgram, seg, SIW_COUNTER_drop_header,
						     SIW_RDMAP_UNSPECIFIED, event);
	/*
	 * The payload is placed before a slot is assigned, because a sender without access must not
	 * occupy a slot.
	 */
	if (siw_ddp_dgram_place_tagged(dgram->ddp, seg, dgram->pd, SIW_RDMAP_RECORD_HEAD,
				       SIW_MEM_REMOTE_WRITE, &err))
		return write_record_report_denied_access(dgram, seg, err, event);
	if (!s)
		s = write_record_slot_open(r, event, seg, &wire);
	if (!s)
		return siw_drop(SIW_COUNTER_record_full);
	start = (uint32_t)(seg->to - wire.to);
	if (seg->payload > SIW_RDMAP_RECORD_HEAD &&
	    !write_record_add_range(&s->rec, start, start + seg->payload - SIW_RDMAP_RECORD_HEAD))
		siw_count(SIW_COUNTER_record_ranges, 1);
	s->last_ns = siw_now_ns();
	if (seg->last && !s->final_ns)
		s->final_ns = s->last_ns;
	event->kind = SIW_RDMAP_RECORD;
	event->length = seg->payload - SIW_RDMAP_RECORD_HEAD;
	return true;
}

/* ---- reporting ------------------------------------------------------------------------------- */

/*
 * Returns the time at which a message is reported if no more of its datagrams arrive; 0 if it is
 * reported now.
 */
static uint64_t write_record_slot_expiry_ns(const struct siw_rdmap_records *r, const struct slot *s)
{
	uint64_t at = s->last_ns + r->timeout_ns;

	if (s->state == DUE || s->rec.valid == s->rec.length)
		return 0;
	if (s->final_ns && s->final_ns + r->window_ns < at)
		at = s->final_ns + r->window_ns;
	return at;
}

const struct siw_rdmap_record *siw_rdmap_write_record_next_report(struct siw_rdmap_dgram *dgram,
								  uint64_t now_ns, uint64_t *due_ns)
{
	struct siw_rdmap_records *r = dgram->records;
	struct slot *first = NULL;
	uint32_t left = r ? r->open + r->due : 0;

	*due_ns = 0;
	for (uint32_t i = 0; left && i < 2 * r->max; i++) {
		struct slot *s = &r->slots[i];
		uint64_t at;

		if (s->state != OPEN && s->state != DUE)
			continue;
		left--;
		at = write_record_slot_expiry_ns(r, s);
		if (at <= now_ns && (!first || s->order < first->order))
			first = s;
		if (at > now_ns && (!*due_ns || at < *due_ns))
			*due_ns = at;
	}
	if (!first)
		return NULL;
	if (first->state == DUE)
		r->due--;
	else
		r->open--;
	first->state = REPORTED;
	first->order = ++r->order;
	first->rec.number = ++r->reported;
	if (first->rec.valid < first->rec.length)
		siw_count(SIW_COUNTER_record_partial, 1);
	return &first->rec;
}

const struct siw_rdmap_record *siw_rdmap_write_record_table_find(const struct siw_rdmap_records *r,
								 uint64_t number)
{
	for (uint32_t i = 0; r && i < 2 * r->max; i++)
		if (r->slots[i].state == REPORTED && r->slots[i].rec.number == number)
			return &r->slots[i].rec;
	return NULL;
}

const struct siw_rdmap_record *siw_rdmap_write_record_find_report(struct siw_rdmap_dgram *dgram,
								  uint64_t number)
{
	return siw_rdmap_write_record_table_find(dgram->records, number);
}

uint64_t siw_rdmap_write_record_table_add(struct siw_rdmap_records *r,
					  const struct siw_rdmap_record *rec)
{
	struct slot *s = &r->slots[r->reported % (2 * r->max)];

	*s = (struct slot){ .state = REPORTED, .rec = *rec };
	s->rec.number = ++r->reported;
	return r->reported;
}

bool siw_rdmap_is_write_record_table_full(const struct siw_rdmap_records *r, uint32_t polled)
{
	return (int32_t)((uint32_t)r->reported - polled) >= (int32_t)siw_rdmap_record_kept(r->max);
}
