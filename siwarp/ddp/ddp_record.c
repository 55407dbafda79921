/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_record.c - tagged segments on UD, each preceded by the LLP header. Write-Record uses
 * them.
 *
 *   0            12            26               26+head      len-4      len
 *  +------------+-------------+----------------+------------+----------+
 *  | LLP header | DDP tagged  | RDMAP's header | payload    | CRC32C   |
 *  +------------+-------------+----------------+------------+----------+
 */
#include <errno.h>

#include "base/crc32c.h"
#include "base/pieces.h"
#include "ddp/ddp_dgram_impl.h"

int siw_ddp_dgram_max_tagged_payload(const struct siw_ddp_dgram *dgram, const struct siw_addr *dest)
{
	int octets = siw_llp_udp_path_max_payload(dgram->sock, dest);

	return octets < 0 ? octets : octets - SIW_DDP_RECORD_OVERHEAD;
}

int siw_ddp_dgram_tx_tagged(struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_tagged *msg)
{
	uint8_t head[SIW_DGRAM_LEN + SIW_DDP_TAGGED + SIW_DDP_TAGGED_HEAD], tail[SIW_DDP_DGRAM_CRC];
	struct siw_dgram_wire llp = {
		.type = siw_dgram_first(SIW_DGRAM_RECORD),
		.dest_index = msg->dest_index,
		.source_index = msg->source_index,
		.qkey = htobe32(msg->qkey),
		.psn = htobe32(dgram->record_psn),
	};
	struct iovec iov[SIW_MEM_MAX_SGE + 2];
	int n, r;

	if (!siw_ddp_pace_allowance(&dgram->pace))
		return -EAGAIN;
	n = siw_mem_sgl_resolve(dgram->mem, msg->sgl, msg->nsge, msg->internal, msg->pd, false,
				msg->offset, msg->length, iov + 1, SIW_MEM_MAX_SGE);
	if (n < 0)
		return n;
	memcpy(head, &llp, sizeof(llp));
	siw_ddp_put_tagged(head + sizeof(llp), msg->last, msg->ulp_octet, msg->stag, msg->to);
	memcpy(head + SIW_DGRAM_LEN + SIW_DDP_TAGGED, msg->head, msg->head_len);
	iov[0] = (struct iovec){ head, SIW_DGRAM_LEN + SIW_DDP_TAGGED + msg->head_len };
	if (siw_ddp_close_datagram(iov, n, tail, dgram->crc))
		return -EFAULT;
	r = siw_llp_udp_send(dgram->sock, msg->dest, iov, n + 2);
	if (r)
		return r;
	dgram->record_psn++;
	siw_ddp_pace_consume(&dgram->pace, SIW_DDP_RECORD_OVERHEAD + msg->head_len + msg->length);
	return 0;
}

int siw_ddp_dgram_place_tagged(struct siw_ddp_dgram *dgram, const struct siw_ddp_seg *seg,
			       uint32_t pd, uint32_t head, uint32_t right, struct siw_wire_err *err)
{
	const uint8_t *from = dgram->datagram + SIW_DGRAM_LEN + SIW_DDP_TAGGED + head;
	struct iovec iov[SIW_MEM_MAX_SGE];
	int n, r;

	n = siw_mem_stag_acquire(dgram->mem, seg->stag, pd, NULL, right, seg->to,
				 seg->payload - head, iov, SIW_MEM_MAX_SGE, err);
	if (n < 0)
		return n;
	r = siw_iov_scatter(iov, n, from);
	if (n)
		siw_mem_stag_release(dgram->mem, seg->stag);
	if (r)
		*err = (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_LOCAL_CATASTROPHIC, 0 };
	return r ? -EACCES : 0;
}
