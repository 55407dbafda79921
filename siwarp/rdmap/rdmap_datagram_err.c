/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_datagram_err.c - error messages on datagrams. An error message has the format of a
 * Terminate, but does not end a stream. An error message is one untagged segment on queue 2, with
 * the Q_Key of the reported message:
 *
 *   0                 18                 22            24                42        46
 *  +-----------------+------------------+-------------+-----------------+--------+
 *  | untagged header | Terminate header | segment len | DDP header that | CRC32C |
 *  | QN 2            | M=1 D=1 R=0      |             | is reported     |        |
 *  +-----------------+------------------+-------------+-----------------+--------+
 *
 * The quoted header contains the MSN. For a Write-Record, R is 1 and RDMAP's header follows, which
 * contains the message's id. A received error message is accepted only if it refers to one of the
 * last messages that this end has sent to the error message's source.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/capture.h"
#include "base/settings.h"
#include "rdmap/rdmap_impl.h"

#define FEWEST_SENTS 16
#define HDRCT	     offsetof(struct siw_rdmap_wire_terminate, hdrct)

_Static_assert(SIW_DDP_MAX_ERROR >= SIW_RDMAP_TERM_MAX, "SIW_DDP_MAX_ERROR holds an error message");

/* ---- errors found by this end ---------------------------------------------------------------- */

void siw_rdmap_copy_quoted_header_to_event(struct siw_rdmap_event *event,
					   const struct siw_ddp_seg *seg)
{
	event->quoted = true;
	event->quoted_tagged = seg->tagged;
	event->quoted_qn = seg->tagged ? 0 : seg->qn;
	event->quoted_msn = seg->tagged ? 0 : seg->msn;
	event->quoted_stag = seg->tagged ? seg->stag : 0;
	event->quoted_to = seg->tagged ? seg->to : 0;
	event->quoted_head_len = seg->head_len;
	event->quoted_seg_len = (uint16_t)seg->seg_len;
	event->quoted_more_len = 0;
	memcpy(event->quoted_head, seg->head, sizeof(event->quoted_head));
}

/*
 * Fills the fields that are common to the events for an invalid message and for a peer's error
 * message.
 */
static void dgram_err_fill_event(const struct siw_ddp_seg *seg, int kind,
				 struct siw_rdmap_event *event)
{
	event->kind = kind;
	event->status = 0;
	event->length = seg->payload;
	event->solicited = false;
	event->ulp_word = seg->ulp_word;
	event->src_qpn = siw_rdmap_src_qpn(&event->source, seg->qn);
	event->msn = seg->msn;
}

void siw_rdmap_dgram_fill_bad_message_event(const struct siw_ddp_seg *seg, struct siw_wire_err err,
					    struct siw_rdmap_event *event)
{
	dgram_err_fill_event(seg, SIW_RDMAP_BAD_MSG, event);
	event->err = err;
	siw_rdmap_copy_quoted_header_to_event(event, seg);
	/* for a tagged segment, qn contains the queue pair indexes of the LLP header */
	event->quoted_qn = seg->qn;
}

/*
 * Whether an error message may be sent to the address, which must not be a multicast group, nor an
 * address at which no socket can receive.
 */
static bool dgram_err_is_address_allowed(const struct siw_addr *to)
{
	if (!to->port_be)
		return false;
	if (to->family == AF_INET)
		return to->v4[0] < 224 && to->v4[0] != 0;
	return to->family == AF_INET6 && to->v6[0] != 0xff;
}

int siw_rdmap_dgram_send_error(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_event *event)
{
	struct siw_rdmap_fault fault = { .err = event->err, .has_seg = true };
	struct siw_ddp_dgram_error message = {
		.dest = &event->source,
		.ulp_octet = siw_rdmap_ctrl(SIW_RDMAP_TERMINATE),
		.ulp_word = event->ulp_word,
		/*
		 * In an error message, the indexes of source and destination of the reported
		 * message are swapped.
		 */
		.qn = SIW_RDMAP_QN_TERMINATE | SIW_RDMAP_DQN_SRC(event->quoted_qn) << 8 |
		      SIW_RDMAP_DQN_DEST(event->quoted_qn) << 16,
	};
	uint8_t payload[SIW_RDMAP_TERM_MAX];

	if (!dgram_err_is_address_allowed(&event->source))
		return -EPERM;
	fault.seg.seg_len = event->quoted_seg_len;
	fault.seg.head_len = event->quoted_head_len;
	memcpy(fault.seg.head, event->quoted_head, sizeof(fault.seg.head));
	message.payload = payload;
	message.length = siw_rdmap_terminate_build(&fault, payload);
	if (event->quoted_more_len) {
		payload[HDRCT] |= SIW_RDMAP_TERM_R;
		memcpy(payload + message.length, event->quoted_more, event->quoted_more_len);
		message.length += event->quoted_more_len;
	}
	return siw_ddp_dgram_send_error_message(dgram->ddp, &message);
}

/* ---- errors reported by a peer --------------------------------------------------------------- */

/*
 * Parses the error codes and the quoted header of a received error message. Returns false if the
 * layout is invalid.
 */
static bool dgram_err_parse(const uint8_t *buf, size_t len, struct siw_rdmap_event *event)
{
	const uint8_t both = SIW_RDMAP_TERM_M | SIW_RDMAP_TERM_D;
	struct siw_rdmap_wire_terminate head;
	struct siw_ddp_seg seg;
	uint16_t seg_len;

	if (len < sizeof(head) + sizeof(seg_len) || len > SIW_RDMAP_TERM_MAX)
		return false;
	memcpy(&head, buf, sizeof(head));
	memcpy(&seg_len, buf + sizeof(head), sizeof(seg_len));
	if ((head.hdrct & both) != both)
		return false;
	buf += sizeof(head) + sizeof(seg_len);
	len -= sizeof(head) + sizeof(seg_len);
	if (!siw_ddp_parse_quoted_header(buf, len, &seg))
		return false;
	event->err =
		(struct siw_wire_err){ head.layer_etype >> 4, head.layer_etype & 15, head.code };
	seg.seg_len = be16toh(seg_len);
	siw_rdmap_copy_quoted_header_to_event(event, &seg);
	if (seg.tagged && head.hdrct & SIW_RDMAP_TERM_R)
		siw_rdmap_write_record_quote_header(buf + seg.head_len, len - seg.head_len, event);
	return true;
}

int siw_rdmap_dgram_parse_error_message(struct siw_rdmap_dgram *dgram,
					const struct siw_ddp_seg *seg,
					struct siw_rdmap_event *event)
{
	if (!dgram_err_parse(siw_ddp_dgram_get_rx_payload(dgram->ddp), seg->payload, event))
		return siw_drop(SIW_COUNTER_err_malformed);
	dgram_err_fill_event(seg, SIW_RDMAP_PEER_ERR, event);
	return 1;
}

void siw_rdmap_sent_table_grow(struct siw_rdmap_dgram *dgram, uint32_t msn)
{
	struct siw_rdmap_sents *s, *old = dgram->sents;
	uint32_t n = old ? 2 * (old->mask + 1) : FEWEST_SENTS, most = 1;

	while (most < siw_settings()->err_window)
		most <<= 1;
	if (n > most)
		n = most;
	s = calloc(1, sizeof(*s) + n * sizeof(s->sent[0]));
	/*
	 * without memory, later error messages about messages that do not fit into the old table
	 * are dropped
	 */
	if (!s)
		return;
	s->mask = n - 1;
	s->most = most - 1;
	for (uint32_t i = 1; old && i <= old->mask + 1; i++)
		s->sent[(msn - i) & s->mask] = old->sent[(msn - i) & old->mask];
	free(old);
	dgram->sents = s;
}

bool siw_rdmap_dgram_match_error_to_sent(struct siw_rdmap_dgram *dgram,
					 const struct siw_rdmap_event *event, uint64_t *user_data)
{
	struct siw_rdmap_sents *s = dgram->sents;
	uint32_t ago = siw_ddp_dgram_next_msn(dgram->ddp) - event->quoted_msn;
	struct siw_rdmap_sent *sent;
	struct siw_ddp_seg seg;

	if (event->quoted_tagged)
		return siw_rdmap_match_error_to_sent_write_record(dgram, event, user_data);
	if (!s || ago - 1 > s->mask)
		return false;
	siw_ddp_parse_quoted_header(event->quoted_head, event->quoted_head_len, &seg);
	sent = &s->sent[event->quoted_msn & s->mask];
	if (seg.ulp_word != event->ulp_word || !sent->tag ||
	    sent->tag != siw_rdmap_sent_tag(&event->source, seg.ulp_word, seg.qn))
		return false;
	*user_data = sent->user_data;
	sent->tag = 0; /* only the first error message about a message is accepted */
	return true;
}
