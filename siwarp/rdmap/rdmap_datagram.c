/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_datagram.c - UD: the Send and the Send with Solicited Event of datagram-iWARP, each
 * one datagram. The four octets that RFC 5040 has for an STag to invalidate carry the Q_Key.
 *
 * What is not for us is dropped and counted, and changes nothing: no receive is used, nobody is
 * told. What is, and breaks a rule, comes up (SIW_RDMAP_BAD_MSG): rdmap_datagram_err.c.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/capture.h"
#include "rdmap/rdmap_impl.h"

int siw_rdmap_dgram_open(struct siw_rdmap_port *port, const struct siw_rdmap_dgram_attr *attr,
			 struct siw_rdmap_dgram **out)
{
	struct siw_ddp_dgram_attr below = {
		.local = attr->local,
		.fd = attr->fd,
		.no_crc = attr->no_crc,
		.token = attr->token,
	};
	struct siw_rdmap_dgram *dgram = calloc(1, sizeof(*dgram));
	int r;

	if (!dgram)
		return -ENOMEM;
	r = siw_ddp_dgram_open(ddp_port(port), &below, &dgram->ddp);
	if (r) {
		free(dgram);
		return r;
	}
	*out = dgram;
	return 0;
}

void siw_rdmap_dgram_close(struct siw_rdmap_dgram *dgram)
{
	siw_rdmap_traffic_report(&dgram->traffic);
	siw_ddp_dgram_close(dgram->ddp);
	free(dgram->sents);
	free(dgram->dropped);
	free(dgram);
}

int siw_rdmap_dgram_addr(struct siw_rdmap_dgram *dgram, struct siw_addr *out)
{
	return siw_ddp_dgram_addr(dgram->ddp, out);
}

uint32_t siw_rdmap_dgram_max(const struct siw_rdmap_dgram *dgram)
{
	return siw_ddp_dgram_max(dgram->ddp);
}

int siw_rdmap_dgram_drops(const struct siw_rdmap_dgram *dgram, struct siw_source_drops *out,
			  int max)
{
	return siw_rdmap_sources_query(dgram->dropped, out, max);
}

void siw_rdmap_dgram_again(struct siw_rdmap_dgram *dgram)
{
	siw_ddp_dgram_again(dgram->ddp);
}

void siw_rdmap_dgram_start(struct siw_rdmap_dgram *dgram, struct siw_rdmap_queue *recvs,
			   uint32_t pd, uint32_t qkey)
{
	dgram->recvs = ddp_queue(recvs);
	dgram->pd = pd;
	dgram->qkey = qkey;
}

static inline struct siw_ddp_dgram_msg message(const struct siw_rdmap_dgram *dgram,
					       const struct siw_rdmap_dgram_op *op)
{
	return (struct siw_ddp_dgram_msg){
		.dest = op->dest,
		.ulp_octet = siw_rdmap_ctrl(op->solicited ? SIW_RDMAP_SEND_SE : SIW_RDMAP_SEND),
		.ulp_word = op->qkey,
		.qn = SIW_RDMAP_QN_SEND,
		.sgl = op->sgl,
		.nsge = op->nsge,
		.internal = op->internal,
		.pd = dgram->pd,
		.length = op->length,
	};
}

int siw_rdmap_dgram_send(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_dgram_op *op)
{
	struct siw_ddp_dgram_msg msg = message(dgram, op);
	int r = siw_ddp_dgram_tx(dgram->ddp, &msg);

	if (r)
		return r;
	siw_rdmap_sent_note(dgram, siw_ddp_dgram_next_msn(dgram->ddp) - 1,
			    siw_rdmap_sent_tag(op->dest, op->qkey, msg.qn), op->cookie);
	siw_rdmap_traffic_count(&dgram->traffic.sent, 1, op->length);
	return 0;
}

int siw_rdmap_dgram_send_some(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_dgram_op *ops,
			      int n)
{
	struct siw_ddp_dgram_msg msgs[SIW_RDMAP_MAX_SOME];
	uint32_t msn;
	int i, taken;

	for (i = 0; i < n; i++)
		msgs[i] = message(dgram, &ops[i]);
	taken = siw_ddp_dgram_tx_some(dgram->ddp, msgs, n);
	msn = siw_ddp_dgram_next_msn(dgram->ddp) - (uint32_t)(taken > 0 ? taken : 0);
	for (i = 0; i < taken; i++) {
		siw_rdmap_sent_note(dgram, msn + (uint32_t)i,
				    siw_rdmap_sent_tag(ops[i].dest, ops[i].qkey, msgs[i].qn),
				    ops[i].cookie);
		siw_rdmap_traffic_count(&dgram->traffic.sent, 1, ops[i].length);
	}
	return taken;
}

/* What a segment is to this endpoint. */
enum verdict { TAKE, DROP, ERROR_MESSAGE, WRONG };

/*
 * Who has the Q_Key and breaks a rule is told so (WRONG, *err); nobody else is told anything. Queue 2
 * is for error messages, and a Terminate is one wherever it comes: about them nothing is ever said.
 */
static enum verdict judge(const struct siw_rdmap_dgram *dgram, const struct siw_ddp_seg *seg,
			  struct siw_wire_err *err)
{
	uint8_t opcode = seg->ulp_octet & SIW_RDMAP_OP_MASK;
	uint32_t queue = seg->qn & SIW_RDMAP_DQN_QUEUE;
	enum siw_counter why;

	if (seg->ulp_octet >> SIW_RDMAP_RV_SHIFT != SIW_RDMAP_RV) {
		why = SIW_COUNTER_drop_version;
	} else if (seg->qn & (SIW_RDMAP_DQN_UNUSED | SIW_RDMAP_DQN_DEST_MASK) ||
		   (queue != SIW_RDMAP_QN_SEND && queue != SIW_RDMAP_QN_TERMINATE)) {
		why = SIW_COUNTER_drop_qn;
	} else if (queue == SIW_RDMAP_QN_TERMINATE) {
		if (opcode == SIW_RDMAP_TERMINATE && siw_ddp_dgram_whole(seg))
			return ERROR_MESSAGE;
		why = SIW_COUNTER_drop_qn; /* it is for nothing else */
	} else if (seg->ulp_word != dgram->qkey) {
		why = SIW_COUNTER_drop_qkey;
	} else if (!siw_ddp_dgram_whole(seg)) {
		siw_drop(SIW_COUNTER_drop_header);
		*err = (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_UNTAGGED_BUFFER,
					      SIW_DDP_INVALID_MO };
		return opcode == SIW_RDMAP_TERMINATE ? DROP : WRONG;
	} else if (opcode != SIW_RDMAP_SEND && opcode != SIW_RDMAP_SEND_SE) {
		siw_drop(SIW_COUNTER_drop_opcode);
		*err = (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION,
					      SIW_RDMAP_OPCODE };
		return opcode == SIW_RDMAP_TERMINATE ? DROP : WRONG;
	} else {
		return TAKE;
	}
	siw_drop(why);
	return DROP;
}

static void fill(struct siw_rdmap_event *event, const struct siw_ddp_seg *seg,
		 const struct siw_ddp_delivery *delivery)
{
	event->kind = SIW_RDMAP_RECV;
	event->status = 0;
	event->cookie = delivery->cookie;
	event->length = delivery->length;
	event->solicited = (seg->ulp_octet & SIW_RDMAP_OP_MASK) == SIW_RDMAP_SEND_SE;
	event->invalidated = false;
	event->inv_stag = 0;
	event->ulp_word = seg->ulp_word;
	event->src_qpn = siw_rdmap_src_qpn(&event->source, seg->qn);
	event->msn = seg->msn;
}

/* A receive was used up for nothing. Whose message was too long is told so; a bad key is our own. */
static __attribute__((cold, noinline)) void bad_recv(const struct siw_ddp_seg *seg, int status,
						     struct siw_rdmap_event *event)
{
	siw_rdmap_dgram_found(seg,
			      (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_UNTAGGED_BUFFER,
						     SIW_DDP_TOO_LONG },
			      event);
	event->kind = SIW_RDMAP_BAD_RECV;
	event->status = status;
}

int siw_rdmap_dgram_recv(struct siw_rdmap_dgram *dgram, struct siw_rdmap_event *event)
{
	struct siw_ddp_delivery delivery;
	struct siw_wire_err err;
	struct siw_ddp_seg seg;
	enum verdict verdict;
	int tries;

	for (tries = 0; tries < 64; tries++) {
		int r;

		if (!siw_ddp_dgram_rx(dgram->ddp, &seg, &event->source)) {
			siw_rdmap_traffic_report(&dgram->traffic);
			return 0;
		}
		if (!dgram->recvs) { /* before RTR, or in error */
			siw_drop(SIW_COUNTER_drop_no_buffer);
			siw_rdmap_sources_blame(&dgram->dropped, &event->source);
			continue;
		}
		verdict = judge(dgram, &seg, &err);
		if (__builtin_expect(verdict != TAKE, 0)) {
			if (verdict == WRONG)
				siw_rdmap_dgram_found(&seg, err, event);
			if (verdict == WRONG || (verdict == ERROR_MESSAGE &&
						 siw_rdmap_dgram_error_in(dgram, &seg, event)))
				return 1;
			continue;
		}
		r = siw_ddp_dgram_place(dgram->ddp, dgram->recvs, &delivery);
		if (r == -ENOBUFS) {
			siw_rdmap_sources_blame(&dgram->dropped, &event->source);
			continue;
		}
		fill(event, &seg, &delivery);
		if (__builtin_expect(r < 0, 0)) {
			bad_recv(&seg, r, event);
			return 1;
		}
		siw_rdmap_traffic_count(&dgram->traffic.received, 1, delivery.length);
		return 1;
	}
	/* A flood of what is not for us must not keep the others waiting. */
	siw_ddp_dgram_again(dgram->ddp);
	return 0;
}
