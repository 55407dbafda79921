/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_uc_tx.c - sending on unreliable connections (UC): messages are split into segments, and
 * each segment is sent in a numbered datagram. Short payloads are copied, with the CRC computed in
 * the same pass, into a batch: datagrams of one size that one system call sends. Long payloads are
 * sent without copying.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/crc32c.h"
#include "base/os.h"
#include "base/pieces.h"
#include "ddp/ddp_uc_impl.h"

/* The longest payload that is copied, octets. */
#define COPY_MAX     4096
#define BATCH_MAX    64 /* maximum datagrams in one call: UDP_MAX_SEGMENTS of older kernels */
#define BATCH_OCTETS 65507
/*
 * Maximum octets that one call frames, so that other work of the process, such as receiving, is not
 * delayed.
 */
#define TURN 65536u
/*
 * The maximum payload after the kernel has reported EMSGSIZE without knowing the path MTU: the
 * payload that every IPv6 path carries.
 */
#define SAFE_PAYLOAD (1280 - 48 - SIW_UC_UNTAGGED - SIW_DGRAM_CRC_LEN)

void siw_ddp_uc_set_tx_psn(struct siw_ddp_uc *uc, uint32_t psn)
{
	uc->tx.psn = psn;
}

void siw_ddp_uc_reset_tx(struct siw_ddp_uc *uc)
{
	struct siw_uc_tx *tx = &uc->tx;

	tx->active = tx->blocked = tx->full = false;
	tx->used = tx->datagrams = tx->gone = 0;
	tx->begun = tx->accepted = 0;
	tx->refused_first = tx->refused_last = 0;
	for (int i = 0; i < 4; i++)
		tx->msn[i] = siw_initial_sequence(1); /* RFC5041-4.3-09 */
}

uint64_t siw_ddp_uc_begun_tx_message_count(const struct siw_ddp_uc *uc)
{
	return uc->tx.begun;
}

uint64_t siw_ddp_uc_accepted_tx_message_count(const struct siw_ddp_uc *uc)
{
	return uc->tx.accepted;
}

bool siw_ddp_uc_is_tx_blocked(const struct siw_ddp_uc *uc)
{
	return uc->tx.blocked || uc->tx.pace.held;
}

struct siw_ddp_pace *siw_ddp_uc_get_pace(struct siw_ddp_uc *uc)
{
	return &uc->tx.pace;
}

int siw_ddp_uc_pop_refused_message_range(struct siw_ddp_uc *uc, uint64_t *first, uint64_t *last)
{
	struct siw_uc_tx *tx = &uc->tx;

	if (!tx->refused_last)
		return 0;
	*first = tx->refused_first;
	*last = tx->refused_last;
	tx->refused_last = 0;
	return 1;
}

/* ---- sending to the socket ------------------------------------------------------------------- */

/*
 * Records that the network refused a datagram: all messages that are begun and not completely sent
 * have failed.
 */
static __attribute__((cold, noinline)) void uc_record_network_refusal(struct siw_uc_tx *tx)
{
	if (!tx->refused_last)
		tx->refused_first = tx->accepted + 1;
	tx->refused_last = tx->begun;
	tx->active = false;
}

/*
 * Sends a datagram that is longer than the path MTU in IP fragments, and makes later datagrams
 * shorter.
 */
static __attribute__((cold, noinline)) int uc_send_fragmented(struct siw_ddp_uc *uc,
							      const struct iovec *iov, int n)
{
	int octets = siw_llp_udp_path_max_payload(uc->sock, &uc->peer);
	uint32_t payload = SAFE_PAYLOAD;

	if (octets > SIW_UC_UNTAGGED + SIW_DGRAM_CRC_LEN + SIW_DDP_UC_HEAD)
		payload = (uint32_t)octets - SIW_UC_UNTAGGED - SIW_DGRAM_CRC_LEN;
	if (payload < uc->tx.payload)
		uc->tx.payload = payload;
	return siw_llp_udp_send_fragmented(uc->sock, &uc->peer, iov, n);
}

/* Sends one datagram. Returns 1 if the datagram was sent or refused, 0 if the socket is full. */
static int uc_send_datagram(struct siw_ddp_uc *uc, const struct iovec *iov, int n)
{
	int r = siw_llp_udp_send(uc->sock, &uc->peer, iov, n);

	if (__builtin_expect(r == -EMSGSIZE, 0))
		r = uc_send_fragmented(uc, iov, n);
	if (r == -EAGAIN) {
		uc->tx.blocked = true;
		return 0;
	}
	if (__builtin_expect(r, 0))
		uc_record_network_refusal(&uc->tx);
	return 1;
}

/*
 * Sends the complete batch with one system call. Returns 1 if the batch was sent or refused, 0 if
 * the socket is full, -EOPNOTSUPP if the datagrams of the batch have to be sent one by one.
 */
static int uc_send_batch(struct siw_ddp_uc *uc)
{
	struct siw_uc_tx *tx = &uc->tx;
	int r;

	if (tx->gone || tx->datagrams < 2 || tx->datagram > tx->batch_max)
		return -EOPNOTSUPP;
	r = siw_llp_udp_send_batch(uc->sock, &uc->peer, tx->batch, tx->used,
				   (uint16_t)tx->datagram);
	if (r == 0)
		return 1;
	if (r == -EAGAIN) {
		tx->blocked = true;
		return 0;
	}
	if (r == -EOPNOTSUPP)
		tx->batch_max = tx->datagram - 1;
	else if (r != -ECONNREFUSED)
		uc_record_network_refusal(tx);
	return r == -EOPNOTSUPP || r == -ECONNREFUSED ? -EOPNOTSUPP : 1;
}

static int uc_flush_batch(struct siw_ddp_uc *uc)
{
	struct siw_uc_tx *tx = &uc->tx;
	int r = uc_send_batch(uc);

	while (r == -EOPNOTSUPP && tx->gone < tx->used) {
		uint32_t left = tx->used - tx->gone;
		struct iovec one = { tx->batch + tx->gone,
				     left < tx->datagram ? left : tx->datagram };

		if (!uc_send_datagram(uc, &one, 1))
			return 0;
		tx->gone += (uint32_t)one.iov_len;
	}
	if (!r)
		return 0;
	tx->used = tx->datagrams = tx->gone = 0;
	tx->full = false;
	return 1;
}

int siw_ddp_uc_tx_flush(struct siw_ddp_uc *uc)
{
	struct siw_uc_tx *tx = &uc->tx;

	tx->blocked = false;
	if (tx->used && !uc_flush_batch(uc))
		return 0;
	if (__builtin_expect(tx->refused_last != 0, 0))
		return 0;
	tx->accepted = tx->begun - tx->active;
	return 1;
}

/* ---- segments -------------------------------------------------------------------------------- */

static uint8_t *put_uc_headers(struct siw_uc_tx *tx, uint32_t qkey, bool last, uint8_t *at)
{
	const struct siw_ddp_uc_msg *msg = &tx->msg;
	struct siw_dgram_wire h = {
		.type = siw_dgram_first(SIW_DGRAM_UC),
		.flags = msg->first && !tx->offset ? SIW_UC_FIRST : 0,
		.qkey = htobe32(qkey),
		.psn = htobe32(tx->psn),
	};

	memcpy(at, &h, sizeof(h));
	at += sizeof(h);
	if (msg->tagged) {
		siw_ddp_put_tagged(at, last, msg->ulp_octet, msg->stag, msg->to + tx->offset);
		return at + SIW_DDP_TAGGED;
	}
	siw_ddp_put_untagged(at, last, msg->ulp_octet, 0, msg->qn, tx->at_msn,
			     (uint32_t)tx->offset);
	at += SIW_DDP_UNTAGGED;
	if (!tx->offset) {
		memcpy(at, msg->head, msg->head_len);
		at += msg->head_len;
	}
	return at;
}

/* Whether a datagram of size octets can be added to the batch. */
static bool uc_datagram_fits_batch(const struct siw_uc_tx *tx, uint32_t size)
{
	return !tx->used ||
	       (!tx->full && !tx->gone && tx->datagrams < BATCH_MAX && size <= tx->datagram &&
		tx->datagram <= tx->batch_max && tx->used + size <= BATCH_OCTETS);
}

/* Appends the next segment, as a datagram, to the batch. Returns 1 or -EFAULT. */
static int uc_batch_append(struct siw_ddp_uc *uc, bool last, const struct iovec *iov, int n)
{
	struct siw_uc_tx *tx = &uc->tx;
	uint8_t *start = tx->batch + tx->used, *at = put_uc_headers(tx, uc->qkey, last, start);
	uint32_t crc = uc->crc ? siw_crc32c(0, start, (size_t)(at - start)) : 0, size;

	at = siw_iov_gather(at, uc->crc ? &crc : NULL, iov, n);
	if (!at)
		return -EFAULT;
	siw_crc32c_put(at, crc);
	size = (uint32_t)(at - start) + SIW_DGRAM_CRC_LEN;
	if (!tx->used)
		tx->datagram = size;
	tx->full = size < tx->datagram;
	tx->used += size;
	tx->datagrams++;
	return 1;
}

/*
 * Sends the next segment, as a datagram, without copying its payload. Returns 1, 0 if the socket is
 * full, or -EFAULT.
 */
static int uc_send_uncopied(struct siw_ddp_uc *uc, bool last, const struct iovec *iov, int n)
{
	uint8_t head[SIW_UC_UNTAGGED + SIW_DDP_UC_HEAD], tail[SIW_DGRAM_CRC_LEN];
	struct iovec all[SIW_MEM_MAX_SGE + 2];
	uint8_t *end = put_uc_headers(&uc->tx, uc->qkey, last, head);

	all[0] = (struct iovec){ head, (size_t)(end - head) };
	memcpy(all + 1, iov, (size_t)n * sizeof(*iov));
	if (siw_ddp_close_datagram(all, n, tail, uc->crc))
		return -EFAULT;
	return uc_send_datagram(uc, all, n + 2);
}

/*
 * Sends the batch, so that the next datagram can begin a new batch. Returns false if the socket is
 * full, or if the network refused a datagram and the current message was abandoned.
 */
static bool uc_batch_make_room(struct siw_ddp_uc *uc)
{
	return uc_flush_batch(uc) && uc->tx.active;
}

/*
 * Sends the next segment or adds the segment to the batch. Returns 1 and sets *octets to the length
 * of the payload; 0 if sending is not possible now; -EACCES or -EFAULT.
 */
static int uc_send_segment(struct siw_ddp_uc *uc, uint32_t *octets)
{
	struct siw_uc_tx *tx = &uc->tx;
	const struct siw_ddp_uc_msg *msg = &tx->msg;
	uint64_t left = msg->head_len + msg->length - tx->offset;
	uint32_t head = tx->offset ? 0 : msg->head_len;
	uint32_t fixed = (msg->tagged ? SIW_UC_TAGGED : SIW_UC_UNTAGGED) + SIW_DGRAM_CRC_LEN;
	bool last = left <= tx->payload;
	uint32_t len = last ? (uint32_t)left : tx->payload;
	struct iovec iov[SIW_MEM_MAX_SGE];
	int n, r;

	if (!siw_ddp_pace_allowance(&tx->pace))
		return 0;
	n = siw_mem_sgl_resolve(uc->mem, msg->sgl, msg->nsge, msg->internal, uc->pd, false,
				tx->offset ? tx->offset - msg->head_len : 0, len - head, iov,
				SIW_MEM_MAX_SGE);
	if (n < 0)
		return -EACCES;
	if (len <= COPY_MAX) {
		if (!uc_datagram_fits_batch(tx, fixed + len) && !uc_batch_make_room(uc))
			return 0;
		r = uc_batch_append(uc, last, iov, n);
	} else {
		if (tx->used && !uc_batch_make_room(uc))
			return 0;
		r = uc_send_uncopied(uc, last, iov, n);
	}
	if (r != 1)
		return r;
	siw_ddp_pace_consume(&tx->pace, fixed + len);
	*octets = len;
	tx->psn++;
	tx->offset += len;
	if (last)
		tx->active = false;
	return 1;
}

int siw_ddp_uc_tx_continue_msg(struct siw_ddp_uc *uc)
{
	struct siw_uc_tx *tx = &uc->tx;
	uint32_t turn = 0, octets;
	int r;

	tx->blocked = false;
	while (tx->active) {
		if (turn >= TURN)
			return 0;
		r = uc_send_segment(uc, &octets);
		if (r < 0)
			tx->active = false;
		if (r != 1)
			return r;
		turn += octets;
	}
	return 1;
}

struct siw_ddp_uc_msg *siw_ddp_uc_tx_get_msg_to_fill(struct siw_ddp_uc *uc)
{
	struct siw_uc_tx *tx = &uc->tx;

	return tx->active || __builtin_expect(tx->refused_last != 0, 0) ? NULL : &tx->msg;
}

int siw_ddp_uc_tx(struct siw_ddp_uc *uc)
{
	struct siw_uc_tx *tx = &uc->tx;

	if (__builtin_expect(!tx->batch, 0)) {
		tx->batch = malloc(BATCH_OCTETS);
		if (!tx->batch)
			return -ENOMEM;
	}
	tx->active = true;
	tx->offset = 0;
	tx->begun++;
	if (!tx->msg.tagged)
		tx->at_msn = tx->msn[tx->msg.qn]++;
	return siw_ddp_uc_tx_continue_msg(uc);
}
