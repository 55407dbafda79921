/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_datagram.c - UD: the Send and the Send with Solicited Event of datagram-iWARP, each
 * one datagram. The four octets that RFC 5040 has for an STag to invalidate carry the Q_Key.
 *
 * What is not for us is dropped and counted, and changes nothing: no receive is used, nobody is
 * told.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/capture.h"
#include "rdmap/rdmap_impl.h"

/*
 * The queue number on datagrams: the standard queue in the low two bits, then the index of the
 * destination and of the source among the queue pairs of their socket (0: the only one).
 */
#define QN_QUEUE      0x3u
#define QN_DEST_MASK  0xff00u
#define QN_SRC(qn)    ((qn) >> 16 & 0xff)
#define QN_UNUSED     0xff0000fcu
#define QPN_INDEX_BIT 16

struct siw_rdmap_dgram {
	struct siw_ddp_dgram *ddp;
	struct siw_rdmap_traffic traffic;
	/* Written by start: under the QP's send lock and the progress lock. */
	struct siw_ddp_queue *recvs;
	uint32_t pd;
	uint32_t qkey;
	struct siw_rdmap_sources *dropped; /* progress lock */
};

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
	siw_rdmap_traffic_count(&dgram->traffic.sent, 1, op->length);
	return 0;
}

int siw_rdmap_dgram_send_some(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_dgram_op *ops,
			      int n)
{
	struct siw_ddp_dgram_msg msgs[SIW_RDMAP_MAX_SOME];
	int i, taken;

	for (i = 0; i < n; i++)
		msgs[i] = message(dgram, &ops[i]);
	taken = siw_ddp_dgram_tx_some(dgram->ddp, msgs, n);
	for (i = 0; i < taken; i++)
		siw_rdmap_traffic_count(&dgram->traffic.sent, 1, ops[i].length);
	return taken;
}

/* Whether the segment is a Send to this endpoint; counts it if not. */
static bool wanted(const struct siw_rdmap_dgram *dgram, const struct siw_ddp_seg *seg)
{
	uint8_t opcode = seg->ulp_octet & SIW_RDMAP_OP_MASK;

	if (seg->ulp_octet >> SIW_RDMAP_RV_SHIFT != SIW_RDMAP_RV) {
		siw_drop(SIW_COUNTER_drop_version);
		return false;
	}
	if ((seg->qn & QN_QUEUE) != SIW_RDMAP_QN_SEND || seg->qn & (QN_UNUSED | QN_DEST_MASK)) {
		siw_drop(SIW_COUNTER_drop_qn);
		return false;
	}
	if (opcode != SIW_RDMAP_SEND && opcode != SIW_RDMAP_SEND_SE) {
		siw_drop(SIW_COUNTER_drop_opcode);
		return false;
	}
	if (seg->ulp_word != dgram->qkey) {
		siw_drop(SIW_COUNTER_drop_qkey);
		return false;
	}
	return true;
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
	event->src_qpn = siw_addr_port(&event->source) | QN_SRC(seg->qn) << QPN_INDEX_BIT;
	event->msn = seg->msn;
}

int siw_rdmap_dgram_recv(struct siw_rdmap_dgram *dgram, struct siw_rdmap_event *event)
{
	struct siw_ddp_delivery delivery;
	struct siw_ddp_seg seg;
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
		if (!wanted(dgram, &seg))
			continue;
		r = siw_ddp_dgram_place(dgram->ddp, dgram->recvs, &delivery);
		if (r == -ENOBUFS) {
			siw_rdmap_sources_blame(&dgram->dropped, &event->source);
			continue;
		}
		fill(event, &seg, &delivery);
		if (r < 0) {
			event->kind = SIW_RDMAP_BAD_RECV;
			event->status = r;
			return 1;
		}
		siw_rdmap_traffic_count(&dgram->traffic.received, 1, delivery.length);
		return 1;
	}
	/* A flood of what is not for us must not keep the others waiting. */
	siw_ddp_dgram_again(dgram->ddp);
	return 0;
}
