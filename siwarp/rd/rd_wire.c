/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rd/rd_wire.c - headers and CRCs of reliable datagrams. */
#include <arpa/inet.h>
#include <string.h>

#include "base/crc32c.h"
#include "rd/rd_impl.h"

#define LONGEST_DELAY 65535u

/* Returns the microseconds since the arrival of the newest datagram that this end acknowledges. */
static uint16_t ack_delay_us(const struct siw_rd_peer *peer, uint64_t now)
{
	uint64_t us = now > peer->last_data_ns ? (now - peer->last_data_ns) / 1000 : 0;

	return (uint16_t)(us < LONGEST_DELAY ? us : LONGEST_DELAY);
}

void siw_rd_write_header(struct siw_rd_peer *peer, enum siw_dgram_type type, uint32_t psn,
			 uint8_t flags, uint64_t now, struct siw_rd_wire *out)
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
	for (int i = 0; i < SIW_RD_SPACES; i++) {
		const struct siw_rd_seq *seq = &peer->seq[i];

		out->acknowledged[i] = htonl(peer->peer_epoch + (uint32_t)seq->rcv);
		out->credit[i] = htons(siw_rd_credit_to_grant(peer, seq));
	}
	out->delay = htons(ack_delay_us(peer, now));
	out->ird = rd->ird;
	out->flags = flags;
}

int siw_rd_send_datagram(struct siw_rd *rd, const struct siw_addr *to, uint8_t *datagram,
			 size_t len)
{
	struct iovec iov = { datagram, len + SIW_DGRAM_CRC_LEN };

	bool sum = rd->crc || siw_rd_is_handshake_type(datagram[0]);

	siw_crc32c_put(datagram + len, sum ? siw_crc32c(0, datagram, len) : 0);
	return siw_llp_udp_send(rd->sock, to, &iov, 1);
}
