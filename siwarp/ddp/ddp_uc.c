/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_uc.c - unreliable connections (UC): the peer, and receiving.
 *
 *   0            12            26 or 30          len-4      len
 *  +------------+-------------+-----------------+----------+
 *  | LLP header | DDP header  | payload         | CRC32C   |
 *  +------------+-------------+-----------------+----------+
 *
 * A datagram that arrives out of order is dropped: its message was abandoned when the gap was
 * detected.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/capture.h"
#include "base/crc32c.h"
#include "base/pieces.h"
#include "ddp/ddp_uc_impl.h"

/* ---- opening and closing --------------------------------------------------------------------- */

int siw_ddp_uc_open(struct siw_llp_poller *poller, struct siw_mem *mem, struct siw_llp_sock *sock,
		    bool crc, struct siw_ddp_uc **out)
{
	struct siw_ddp_uc *uc;
	int r = siw_llp_udp_disable_fragmentation(sock);

	if (r)
		return r;
	if (posix_memalign((void **)&uc, 64, sizeof(*uc)))
		return -ENOMEM;
	memset(uc, 0, sizeof(*uc));
	uc->mem = mem;
	uc->poller = poller;
	uc->sock = uc->rx_sock = sock;
	uc->crc = crc;
	siw_ddp_uc_reset_tx(uc);
	uc->tx.batch_max = UINT32_MAX;
	*out = uc;
	return 0;
}

void siw_ddp_uc_close(struct siw_ddp_uc *uc)
{
	free(uc->tx.batch);
	free(uc);
}

void siw_ddp_uc_set_rx_sock(struct siw_ddp_uc *uc, struct siw_llp_sock *sock)
{
	uc->rx_sock = sock;
}

int siw_ddp_uc_set_tx_sock(struct siw_ddp_uc *uc, struct siw_llp_sock *sock)
{
	int r = siw_llp_udp_disable_fragmentation(sock);

	if (!r)
		uc->sock = sock;
	return r;
}

int siw_ddp_uc_connect(struct siw_ddp_uc *uc, const struct siw_ddp_uc_path *path)
{
	int octets = siw_llp_udp_path_max_payload(uc->sock, &path->peer);

	if (octets < 0)
		return octets;
	if (octets <= SIW_UC_UNTAGGED + SIW_DGRAM_CRC_LEN + SIW_DDP_UC_HEAD)
		return -EMSGSIZE;
	uc->peer = path->peer;
	uc->tx.payload = (uint32_t)octets - SIW_UC_UNTAGGED - SIW_DGRAM_CRC_LEN;
	if (path->payload && path->payload < uc->tx.payload)
		uc->tx.payload = path->payload;
	uc->rx.psn = path->psn;
	uc->rx.connected = true;
	uc->rx.whole = uc->rx.begun = false;
	siw_ddp_uc_reset_receiver_reports(uc);
	return 0;
}

void siw_ddp_uc_set_qkey_pd_and_identity(struct siw_ddp_uc *uc, uint32_t qkey, uint32_t pd,
					 const void *identity)
{
	uc->qkey = qkey;
	uc->pd = pd;
	uc->identity = identity;
}

void siw_ddp_uc_next_psns(const struct siw_ddp_uc *uc, uint32_t *in, uint32_t *out)
{
	*in = uc->rx.psn;
	*out = uc->tx.psn;
}

uint32_t siw_ddp_uc_max_payload(const struct siw_ddp_uc *uc)
{
	return uc->tx.payload;
}

/* ---- checks of received datagrams ------------------------------------------------------------ */

static bool uc_datagram_is_valid(const struct siw_ddp_uc *uc, const uint8_t *buf, size_t len)
{
	if (len < SIW_UC_TAGGED + SIW_DGRAM_CRC_LEN || len > SIW_LLP_ROOM)
		return siw_drop(SIW_COUNTER_drop_short);
	if (uc->crc && !siw_crc32c_ends(buf, len))
		return siw_drop(SIW_COUNTER_drop_crc);
	if (buf[0] == siw_dgram_first(SIW_DGRAM_UC_REPORT))
		return len == SIW_UC_REPORT || siw_drop(SIW_COUNTER_drop_short);
	if (buf[0] != siw_dgram_first(SIW_DGRAM_UC) ||
	    (buf[SIW_DGRAM_LEN] & SIW_DDP_DV_MASK) != SIW_DDP_DV)
		return siw_drop(SIW_COUNTER_drop_version);
	if (len < SIW_DGRAM_LEN + siw_ddp_head_len(buf[SIW_DGRAM_LEN]) + SIW_DGRAM_CRC_LEN)
		return siw_drop(SIW_COUNTER_drop_short);
	return true;
}

static bool uc_is_from_peer(const struct siw_ddp_uc *uc, const struct siw_dgram_wire *head,
			    const struct siw_addr *source)
{
	if (!uc->rx.connected || !siw_addr_same(&uc->peer, source))
		return siw_drop(SIW_COUNTER_drop_source);
	/* both queue pair indexes are 0, because a UC socket is never shared between queue pairs */
	if (head->dest_index || head->source_index)
		return siw_drop(SIW_COUNTER_drop_qn);
	if (be32toh(head->qkey) != uc->qkey)
		return siw_drop(SIW_COUNTER_drop_qkey);
	return true;
}

/*
 * Whether the datagram's PSN is newer than all PSNs received so far. Counts the PSNs that are
 * missing between the last datagram and the new datagram.
 */
static bool uc_accept_psn(struct siw_ddp_uc *uc, const struct siw_dgram_wire *head)
{
	uint32_t psn = be32toh(head->psn);
	int32_t missing = (int32_t)(psn - uc->rx.psn);

	if (missing < 0)
		return siw_drop(SIW_COUNTER_drop_late);
	if (missing) {
		siw_count(SIW_COUNTER_uc_missing, (uint64_t)missing);
		uc->rx.whole = false;
	}
	uc->rx.psn = psn + 1;
	return true;
}

/*
 * Stores the report if the datagram is a report, which contains no segment. Returns whether the
 * datagram is a report.
 */
static bool uc_store_datagram_if_report(struct siw_ddp_uc *uc, const uint8_t *datagram)
{
	if (__builtin_expect(datagram[0] != siw_dgram_first(SIW_DGRAM_UC_REPORT), 1))
		return false;
	siw_ddp_uc_store_receiver_report(uc, datagram);
	return true;
}

bool siw_ddp_uc_continue_or_resume_rx(struct siw_ddp_uc *uc, int tries, uint32_t octets)
{
	if ((tries < SIW_DDP_TRIES && octets < 65536) ||
	    siw_llp_poller_has_more_datagrams(uc->poller))
		return true;
	siw_llp_sock_resume(uc->rx_sock);
	return false;
}

int siw_ddp_uc_rx(struct siw_ddp_uc *uc, struct siw_ddp_uc_seg *seg)
{
	struct siw_dgram_wire head;
	struct siw_addr source;
	uint8_t *buf;
	int tries;

	for (tries = 0; siw_ddp_uc_continue_or_resume_rx(uc, tries, 0); tries++) {
		ssize_t len = siw_llp_udp_recv_in_poller_buffer(uc->rx_sock, &source, &buf);

		if (len < 0)
			return 0;
		if (!uc_datagram_is_valid(uc, buf, (size_t)len))
			continue;
		memcpy(&head, buf, sizeof(head));
		if (!uc_is_from_peer(uc, &head, &source) || uc_store_datagram_if_report(uc, buf) ||
		    !uc_accept_psn(uc, &head))
			continue;
		uc->reports.datagrams++;
		uc->reports.octets += (uint64_t)len;
		siw_ddp_parse(buf + SIW_DGRAM_LEN,
			      (uint32_t)len - SIW_DGRAM_LEN - SIW_DGRAM_CRC_LEN, &uc->rx.seg);
		uc->rx.payload = buf + SIW_DGRAM_LEN + uc->rx.seg.head_len;
		if (head.flags & SIW_UC_FIRST) {
			uc->rx.whole = true;
			/* an earlier message that is unfinished will not be finished */
			uc->rx.begun = false;
		}
		seg->seg = uc->rx.seg;
		seg->first = head.flags & SIW_UC_FIRST;
		seg->whole = uc->rx.whole;
		return 1;
	}
	return 0;
}

void siw_ddp_uc_abandon_rx_op(struct siw_ddp_uc *uc)
{
	uc->rx.whole = false;
}

uint32_t siw_ddp_uc_peek_payload(const struct siw_ddp_uc *uc, void *out, uint32_t len)
{
	if (len > uc->rx.seg.payload)
		len = uc->rx.seg.payload;
	memcpy(out, uc->rx.payload, len);
	return len;
}

/* ---- placing --------------------------------------------------------------------------------- */

/*
 * Removes a buffer from the queue, unless an unfinished message left its buffer to the next
 * message. Returns false if there is no buffer.
 */
static bool uc_acquire_receive_buffer(struct siw_uc_rx *rx, struct siw_mem_buffer_queue *queue)
{
	if (!rx->held)
		rx->held = siw_mem_buffer_queue_take(queue, &rx->buf);
	return rx->held;
}

static int uc_finish_receive_buffer(struct siw_uc_rx *rx, struct siw_ddp_delivery *delivery, int r)
{
	rx->begun = rx->held = false;
	delivery->user_data = rx->buf.user_data;
	delivery->length = rx->placed;
	return r;
}

int siw_ddp_uc_place(struct siw_ddp_uc *uc, struct siw_mem_buffer_queue *queue, uint32_t head,
		     struct siw_ddp_delivery *delivery)
{
	struct siw_uc_rx *rx = &uc->rx;
	const struct siw_ddp_seg *seg = &rx->seg;
	uint32_t skip = seg->mo ? 0 : head, octets = seg->payload - skip;
	struct iovec iov[SIW_MEM_MAX_SGE];
	int n;

	if (seg->payload < skip || seg->mo != (rx->begun ? rx->placed + head : 0) ||
	    (rx->begun && seg->msn != rx->msn))
		return -EPROTO;
	if (!uc_acquire_receive_buffer(rx, queue))
		return -ENOBUFS;
	if (!rx->begun) {
		rx->begun = true;
		rx->placed = 0;
		rx->msn = seg->msn;
	}
	if ((uint64_t)rx->placed + octets > rx->buf.length)
		return uc_finish_receive_buffer(rx, delivery, -EMSGSIZE);
	n = siw_mem_sgl_resolve(uc->mem, rx->buf.sgl, rx->buf.nsge, queue->internal, queue->pd,
				true, rx->placed, octets, iov, SIW_MEM_MAX_SGE);
	if (n < 0 || siw_iov_scatter(iov, n, rx->payload + skip))
		return uc_finish_receive_buffer(rx, delivery, -EACCES);
	rx->placed += octets;
	return seg->last ? uc_finish_receive_buffer(rx, delivery, 1) : 2;
}

int siw_ddp_uc_use_up_receive_buffer(struct siw_ddp_uc *uc, struct siw_mem_buffer_queue *queue,
				     struct siw_ddp_delivery *delivery)
{
	struct siw_uc_rx *rx = &uc->rx;

	if (!uc_acquire_receive_buffer(rx, queue))
		return -ENOBUFS;
	rx->placed = 0;
	return uc_finish_receive_buffer(rx, delivery, 1);
}

int siw_ddp_uc_place_tagged(struct siw_ddp_uc *uc, struct siw_mem_buffer_queue *queue,
			    uint32_t right, struct siw_wire_err *err)
{
	const struct siw_ddp_seg *seg = &uc->rx.seg;
	struct iovec iov[SIW_MEM_MAX_SGE];
	int n, r;

	/*
	 * What the program wrote to its memory before it posted a receive must happen before the
	 * peer's data is written there.
	 */
	if (queue)
		siw_mem_queue_sync_with_posts(queue);
	n = siw_mem_stag_acquire(uc->mem, seg->stag, uc->pd, uc->identity, right, seg->to,
				 seg->payload, iov, SIW_MEM_MAX_SGE, err);
	if (n < 0)
		return n;
	r = siw_iov_scatter(iov, n, uc->rx.payload);
	if (n)
		siw_mem_stag_release(uc->mem, seg->stag);
	if (r) {
		*err = (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_LOCAL_CATASTROPHIC, 0 };
		return -EACCES;
	}
	return seg->last ? 1 : 2;
}

int siw_ddp_uc_pop_unfinished_buffer(struct siw_ddp_uc *uc, uint64_t *user_data)
{
	if (!uc->rx.held)
		return 0;
	*user_data = uc->rx.buf.user_data;
	uc->rx.begun = uc->rx.held = false;
	return 1;
}
