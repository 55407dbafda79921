/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rd/rd_wire.c - headers and CRCs of reliable datagrams. */
#include <arpa/inet.h>
#include <string.h>

#include "base/crc32c.h"
#include "rd/rd_impl.h"

void siw_rd_header(struct siw_rd_peer *peer, enum siw_dgram_type type, uint32_t psn, uint8_t flags,
		   struct siw_rd_wire *out)
{
	struct siw_rd *rd = peer->rd;

	out->llp.type = siw_dgram_first(type);
	out->llp.flags = 0;
	out->llp.dest_index = 0;
	out->llp.source_index = 0;
	out->llp.qkey = htonl(rd->qkey);
	out->llp.psn = htonl(psn);
	out->source_epoch = htonl(peer->epoch);
	out->dest_epoch = htonl(peer->peer_epoch);
	out->acknowledged = htonl(peer->peer_epoch + (uint32_t)peer->rcv);
	out->credit = htons(siw_rd_credit(peer));
	out->ird = rd->ird;
	out->flags = flags;
}

int siw_rd_send(struct siw_rd *rd, const struct siw_addr *to, uint8_t *datagram, size_t len)
{
	struct iovec iov = { datagram, len + SIW_DGRAM_CRC_LEN };

	siw_crc32c_put(datagram + len, rd->crc ? siw_crc32c(0, datagram, len) : 0);
	return siw_llp_udp_send(rd->sock, to, &iov, 1);
}
