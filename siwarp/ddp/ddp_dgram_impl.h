/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ddp/ddp_dgram_impl.h - a datagram endpoint; private to ddp_datagram.c and ddp_record.c. */
#ifndef SIW_DDP_DGRAM_IMPL_H
#define SIW_DDP_DGRAM_IMPL_H

#include "base/list.h"
#include "ddp/ddp_impl.h"
#include "llp/llp_dgram_wire.h"
#include "llp/llp.h"

#define SIW_DDP_DGRAM_CRC 4
/* Octets of a Write-Record datagram in addition to its payload. */
#define SIW_DDP_RECORD_OVERHEAD (SIW_DGRAM_LEN + SIW_DDP_TAGGED + SIW_DDP_DGRAM_CRC)

struct siw_ddp_dgram {
	struct siw_mem *mem;
	struct siw_llp_port *port;
	uint8_t *datagram;	   /* the last received datagram, in the port's buffer */
	struct siw_llp_sock *sock; /* the socket it sends on; protected by the send lock */
	/*
	 * The socket it receives from, and that socket's address. Protected by the progress lock.
	 */
	struct siw_llp_sock *rx_sock;
	const struct siw_addr *at;
	/*
	 * the same for all endpoints of a socket: the CRC is checked before the destination is
	 * known
	 */
	bool crc;
	uint32_t max;
	uint32_t rx_payload; /* payload of the last received datagram, octets */
	struct siw_addr local;
	/* Send side, protected by the QP's send lock, in a cache line of its own. */
	_Alignas(64) uint32_t msn;
	uint32_t error_msn;  /* MSN of the next error message (queue 2) */
	uint32_t record_psn; /* PSN of the next Write-Record datagram */
	/* octets of the longest datagram that may be part of a batch; 0: batches do not work */
	uint32_t batch_max;
	struct siw_ddp_pace pace;
};

#endif
