/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_datagram.c - UD: the Sends of datagram-iWARP, with or without Solicited Event or
 * immediate data; each Send is one datagram. The Q_Key is carried in the four octets that RFC 5040
 * uses for the STag to invalidate.
 *
 * A datagram that is not addressed to this end is dropped and counted, without other effects: the
 * datagram consumes no receive and gets no response. A datagram that is addressed to this end but
 * violates the protocol is reported (SIW_RDMAP_BAD_MSG); see rdmap_datagram_err.c.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/capture.h"
#include "rdmap/rdmap_impl.h"

/*
 * The endpoints of a socket, by index. The struct is allocated with the second endpoint, and freed
 * with the last endpoint.
 */
struct siw_rdmap_sharers {
	uint32_t n;
	uint32_t next; /* the index to try first for a new endpoint */
	/* when the socket was last full, see siw_rdmap_dgram_set_socket_full_time() */
	uint64_t full;
	struct siw_rdmap_dgram *at[SIW_RDMAP_MAX_SHARERS];
};

/* ---- endpoints that share a socket ----------------------------------------------------------- */

static int dgram_join_shared_socket(struct siw_rdmap_dgram *first, struct siw_rdmap_dgram *dgram)
{
	struct siw_rdmap_sharers *s = first->sharers;

	if (!s) {
		s = calloc(1, sizeof(*s));
		if (!s)
			return -ENOMEM;
		s->n = s->next = 1;
		s->at[0] = first;
		first->sharers = s;
	}
	if (s->n == SIW_RDMAP_MAX_SHARERS)
		return -ENOSPC;
	while (s->at[s->next])
		s->next = (s->next + 1) % SIW_RDMAP_MAX_SHARERS;
	dgram->joined = true;
	dgram->index = s->next;
	dgram->sharers = s;
	s->at[s->next] = dgram;
	s->n++;
	s->next = (s->next + 1) % SIW_RDMAP_MAX_SHARERS;
	return 0;
}

/*
 * Removes an endpoint from its shared socket. Returns another endpoint of the socket, or NULL if
 * none is left.
 */
static struct siw_rdmap_dgram *dgram_leave_socket(struct siw_rdmap_dgram *dgram)
{
	struct siw_rdmap_sharers *s = dgram->sharers;

	dgram->sharers = NULL;
	s->at[dgram->index] = NULL;
	if (--s->n == 0) {
		free(s);
		return NULL;
	}
	for (uint32_t i = 0;; i++)
		if (s->at[i])
			return s->at[i];
}

uint8_t siw_rdmap_dgram_index_on_socket(const struct siw_rdmap_dgram *dgram)
{
	return (uint8_t)dgram->index;
}

bool siw_rdmap_dgram_shares_socket(const struct siw_rdmap_dgram *dgram)
{
	return dgram->sharers && dgram->sharers->n > 1;
}

void siw_rdmap_dgram_set_socket_full_time(struct siw_rdmap_dgram *dgram, uint64_t when)
{
	dgram->sharers->full = when;
}

uint64_t siw_rdmap_dgram_last_full_round(const struct siw_rdmap_dgram *dgram)
{
	return dgram->sharers->full;
}

/* ---- an endpoint ----------------------------------------------------------------------------- */

int siw_rdmap_dgram_open(struct siw_ddp_dgram *ddp, struct siw_rdmap_dgram *share, void *user,
			 struct siw_rdmap_dgram **out)
{
	struct siw_rdmap_dgram *dgram = calloc(1, sizeof(*dgram));
	int r;

	if (!dgram)
		return -ENOMEM;
	dgram->ddp = ddp;
	dgram->user = user;
	dgram->max = siw_ddp_dgram_max_payload(ddp);
	dgram->record_id = siw_rdmap_write_record_choose_first_id();
	r = share ? dgram_join_shared_socket(share, dgram) : 0;
	if (r) {
		free(dgram);
		return r;
	}
	*out = dgram;
	return 0;
}

void *siw_rdmap_dgram_close(struct siw_rdmap_dgram *dgram)
{
	struct siw_rdmap_dgram *other = dgram->sharers ? dgram_leave_socket(dgram) : NULL;
	void *user = other ? other->user : NULL;

	siw_rdmap_traffic_report(&dgram->traffic);
	siw_ddp_dgram_close(dgram->ddp);
	free(dgram->sents);
	free(dgram->dropped);
	free(dgram->records);
	free(dgram->record_sents);
	free(dgram);
	return user;
}

uint32_t siw_rdmap_dgram_max_message_octets(const struct siw_rdmap_dgram *dgram)
{
	return dgram->max;
}

int siw_rdmap_dgram_query_drops_by_source(const struct siw_rdmap_dgram *dgram,
					  struct siw_source_drops *out, int max)
{
	return siw_rdmap_sources_query_drops(dgram->dropped, out, max);
}

void siw_rdmap_dgram_configure_receiving(struct siw_rdmap_dgram *dgram,
					 struct siw_mem_buffer_queue *recvs, uint32_t pd,
					 uint32_t qkey)
{
	dgram->recvs = recvs;
	dgram->pd = pd;
	dgram->qkey = qkey;
}

void siw_rdmap_dgram_enable_grh(struct siw_rdmap_dgram *dgram)
{
	dgram->grh = true;
}

/* Makes the message of a Send with immediate data a private message. */
static __attribute__((cold, noinline)) void
dgram_put_imm_header(const struct siw_rdmap_dgram_op *op, struct siw_ddp_dgram_msg *msg)
{
	msg->ulp_octet = siw_rdmap_ctrl(SIW_RDMAP_PRIVATE);
	msg->head_len = SIW_RDMAP_IMM_LEN;
	siw_rdmap_put_send_imm(msg->head, op->solicited, op->imm);
}

static inline struct siw_ddp_dgram_msg dgram_build_msg(const struct siw_rdmap_dgram *dgram,
						       const struct siw_rdmap_dgram_op *op)
{
	struct siw_ddp_dgram_msg msg = {
		.dest = op->dest,
		.ulp_octet = siw_rdmap_ctrl(op->solicited ? SIW_RDMAP_SEND_SE : SIW_RDMAP_SEND),
		.ulp_word = op->qkey,
		.qn = SIW_RDMAP_QN_SEND | (uint32_t)op->dest_index << SIW_RDMAP_DQN_DEST_SHIFT |
		      dgram->index << SIW_RDMAP_DQN_SRC_SHIFT,
		.sgl = op->sgl,
		.nsge = op->nsge,
		.internal = op->internal,
		.pd = dgram->pd,
		.length = op->length,
	};

	if (__builtin_expect(op->with_imm, 0))
		dgram_put_imm_header(op, &msg);
	return msg;
}

static inline void dgram_count_sent_message(struct siw_rdmap_dgram *dgram, uint64_t octets)
{
	if (__builtin_expect(dgram->joined, 0)) {
		siw_count(SIW_COUNTER_tx_msgs, 1);
		siw_count(SIW_COUNTER_tx_octets, octets);
		return;
	}
	siw_rdmap_traffic_count_sent(&dgram->traffic, 1, octets);
}

int siw_rdmap_dgram_send(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_dgram_op *op)
{
	struct siw_ddp_dgram_msg msg = dgram_build_msg(dgram, op);
	int r = siw_ddp_dgram_tx(dgram->ddp, &msg);

	if (r)
		return r;
	siw_rdmap_add_sent(dgram, siw_ddp_dgram_next_msn(dgram->ddp) - 1,
			   siw_rdmap_sent_tag(op->dest, op->qkey, msg.qn), op->user_data);
	dgram_count_sent_message(dgram, op->length);
	return 0;
}

int siw_rdmap_dgram_send_batch(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_dgram_op *ops,
			       int n)
{
	struct siw_ddp_dgram_msg msgs[SIW_RDMAP_MAX_SOME];
	uint32_t msn;
	int i, taken;

	for (i = 0; i < n; i++)
		msgs[i] = dgram_build_msg(dgram, &ops[i]);
	taken = siw_ddp_dgram_tx_some(dgram->ddp, msgs, n);
	msn = siw_ddp_dgram_next_msn(dgram->ddp) - (uint32_t)(taken > 0 ? taken : 0);
	for (i = 0; i < taken; i++) {
		siw_rdmap_add_sent(dgram, msn + (uint32_t)i,
				   siw_rdmap_sent_tag(ops[i].dest, ops[i].qkey, msgs[i].qn),
				   ops[i].user_data);
		dgram_count_sent_message(dgram, ops[i].length);
	}
	return taken;
}

/* Whether a received message with siwarp's private opcode is a Send with immediate data. */
static __attribute__((cold, noinline)) bool dgram_is_send_imm(const struct siw_rdmap_dgram *dgram,
							      const struct siw_ddp_seg *seg)
{
	struct siw_rdmap_wire_send_imm head;

	if (seg->payload < sizeof(head))
		return false;
	memcpy(&head, siw_ddp_dgram_get_rx_payload(dgram->ddp), sizeof(head));
	return siw_rdmap_is_send_imm(&head);
}

enum siw_rdmap_dgram_action siw_rdmap_dgram_check_segment(const struct siw_rdmap_dgram *dgram,
							  const struct siw_ddp_seg *seg,
							  struct siw_wire_err *err)
{
	uint8_t opcode = seg->ulp_octet & SIW_RDMAP_OP_MASK;
	uint32_t queue = seg->qn & SIW_RDMAP_DQN_QUEUE;
	enum siw_counter why;

	if (seg->ulp_octet >> SIW_RDMAP_RV_SHIFT != SIW_RDMAP_RV) {
		why = SIW_COUNTER_drop_version;
	} else if (seg->qn & SIW_RDMAP_DQN_UNUSED ||
		   (queue != SIW_RDMAP_QN_SEND && queue != SIW_RDMAP_QN_TERMINATE)) {
		why = SIW_COUNTER_drop_qn;
	} else if (queue == SIW_RDMAP_QN_TERMINATE) {
		if (opcode == SIW_RDMAP_TERMINATE && siw_ddp_dgram_is_complete(seg))
			return SIW_RDMAP_ERROR_MESSAGE;
		why = SIW_COUNTER_drop_qn; /* queue 2 is for error messages only */
	} else if (seg->ulp_word != dgram->qkey) {
		why = SIW_COUNTER_drop_qkey;
	} else if (!siw_ddp_dgram_is_complete(seg)) {
		siw_drop(SIW_COUNTER_drop_header);
		*err = (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_UNTAGGED_BUFFER,
					      SIW_DDP_INVALID_MO };
		return opcode == SIW_RDMAP_TERMINATE ? SIW_RDMAP_DROP : SIW_RDMAP_VIOLATION;
	} else if (opcode == SIW_RDMAP_SEND || opcode == SIW_RDMAP_SEND_SE) {
		return SIW_RDMAP_TAKE;
	} else if (opcode == SIW_RDMAP_PRIVATE && dgram_is_send_imm(dgram, seg)) {
		return SIW_RDMAP_TAKE_HEADED;
	} else {
		siw_drop(SIW_COUNTER_drop_opcode);
		*err = (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION,
					      SIW_RDMAP_OPCODE };
		return opcode == SIW_RDMAP_TERMINATE ? SIW_RDMAP_DROP : SIW_RDMAP_VIOLATION;
	}
	siw_drop(why);
	return SIW_RDMAP_DROP;
}

static __attribute__((cold, noinline)) void
dgram_read_imm_header(const struct siw_rdmap_dgram *dgram, struct siw_rdmap_event *event)
{
	struct siw_rdmap_wire_send_imm head;

	memcpy(&head, siw_ddp_dgram_get_rx_payload(dgram->ddp), sizeof(head));
	event->with_imm = true;
	event->imm = head.data;
	event->solicited = head.subcode == SIW_RDMAP_SEND_IMM_SE;
}

/* Fills *event as event RECV of a delivered Send. */
static inline void dgram_fill_recv_event(struct siw_rdmap_event *event,
					 const struct siw_ddp_seg *seg,
					 const struct siw_ddp_delivery *delivery)
{
	event->kind = SIW_RDMAP_RECV;
	event->status = 0;
	event->user_data = delivery->user_data;
	event->length = delivery->length;
	event->solicited = (seg->ulp_octet & SIW_RDMAP_OP_MASK) == SIW_RDMAP_SEND_SE;
	event->invalidated = event->with_imm = false;
	event->inv_stag = 0;
	event->ulp_word = seg->ulp_word;
	event->src_qpn = siw_rdmap_src_qpn(&event->source, seg->qn);
	event->msn = seg->msn;
}

int siw_rdmap_dgram_place(const struct siw_rdmap_dgram *dgram, struct siw_ddp_dgram *lower,
			  const struct siw_ddp_seg *seg, enum siw_rdmap_dgram_action verdict,
			  struct siw_rdmap_event *event)
{
	bool headed = __builtin_expect(verdict == SIW_RDMAP_TAKE_HEADED, 0);
	struct siw_ddp_delivery delivery;
	int r = siw_ddp_dgram_place(lower, dgram->recvs, headed ? SIW_RDMAP_IMM_LEN : 0,
				    dgram->grh ? &event->source : NULL, &delivery);

	if (r == -ENOBUFS)
		return r;
	dgram_fill_recv_event(event, seg, &delivery);
	if (__builtin_expect(headed, 0))
		dgram_read_imm_header(dgram, event);
	return r;
}

/*
 * Fills *event for a message that consumed a receive but could not be placed. If the message is too
 * long, the sender gets an error message; an invalid lkey is an error of this end.
 */
static __attribute__((cold, noinline)) void
dgram_report_bad_recv(const struct siw_ddp_seg *seg, int status, struct siw_rdmap_event *event)
{
	uint32_t length = event->length; /* octets of user data, without the header */

	siw_rdmap_dgram_fill_bad_message_event(
		seg,
		(struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_UNTAGGED_BUFFER, SIW_DDP_TOO_LONG },
		event);
	event->kind = SIW_RDMAP_BAD_RECV;
	event->status = status;
	event->length = length;
}

/*
 * Returns the destination endpoint of a datagram on a socket with several endpoints, or of a
 * datagram with an index; NULL if there is no such endpoint.
 */
static __attribute__((noinline)) struct siw_rdmap_dgram *
dgram_find_endpoint(struct siw_rdmap_dgram *dgram, uint32_t qn)
{
	uint32_t index = SIW_RDMAP_DQN_DEST(qn);

	return dgram->sharers ? dgram->sharers->at[index] : index == dgram->index ? dgram : NULL;
}

int siw_rdmap_dgram_recv(struct siw_rdmap_dgram *any, struct siw_rdmap_event *event)
{
	struct siw_wire_err err;
	struct siw_ddp_seg seg;
	enum siw_rdmap_dgram_action verdict;
	int tries;

	for (tries = 0; siw_ddp_dgram_continue_or_requeue_rx(any->ddp, tries); tries++) {
		struct siw_rdmap_dgram *dgram = any;
		int r;

		if (!siw_ddp_dgram_rx(any->ddp, &seg, &event->source)) {
			siw_rdmap_traffic_report(&any->traffic);
			return 0;
		}
		if (__builtin_expect(SIW_RDMAP_DQN_DEST(seg.qn) != 0 || any->sharers, 0)) {
			dgram = dgram_find_endpoint(any, seg.qn);
			if (!dgram) {
				siw_drop(SIW_COUNTER_drop_qn);
				continue;
			}
		}
		event->user = dgram->user;
		event->dest = siw_ddp_dgram_get_rx_dest_addr(any->ddp);
		if (!dgram->recvs) { /* the endpoint has no receive queue before RTR and in ERR */
			siw_drop(SIW_COUNTER_drop_no_buffer);
			siw_rdmap_count_dropped_message_of_source(&dgram->dropped, &event->source);
			continue;
		}
		if (__builtin_expect(seg.tagged, 0)) {
			if (siw_rdmap_handle_write_record_segment(dgram, &seg, event))
				return 1;
			continue;
		}
		verdict = siw_rdmap_dgram_check_segment(dgram, &seg, &err);
		if (__builtin_expect(verdict > SIW_RDMAP_TAKE_HEADED, 0)) {
			if (verdict == SIW_RDMAP_VIOLATION)
				siw_rdmap_dgram_fill_bad_message_event(&seg, err, event);
			if (verdict == SIW_RDMAP_VIOLATION ||
			    (verdict == SIW_RDMAP_ERROR_MESSAGE &&
			     siw_rdmap_dgram_parse_error_message(dgram, &seg, event)))
				return 1;
			continue;
		}
		r = siw_rdmap_dgram_place(dgram, any->ddp, &seg, verdict, event);
		if (r == -ENOBUFS) {
			siw_rdmap_count_dropped_message_of_source(&dgram->dropped, &event->source);
			continue;
		}
		if (__builtin_expect(r < 0, 0)) {
			dgram_report_bad_recv(&seg, r, event);
			return 1;
		}
		siw_rdmap_traffic_count(&any->traffic.received, 1, event->length);
		return 1;
	}
	return 0;
}
