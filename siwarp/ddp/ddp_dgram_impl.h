/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_dgram_impl.h - the structure of a datagram endpoint; private to ddp_datagram.c and
 * ddp_record.c.
 */
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
	struct siw_llp_poller *poller;
	uint8_t *datagram; /* the last received datagram, in the llp layer's receive buffer */
	/* the socket that the endpoint sends on; protected by the send lock */
	struct siw_llp_sock *sock;
	/*
	 * The socket that the endpoint receives from, and the address of that socket. Protected by
	 * the progress lock.
	 */
	struct siw_llp_sock *rx_sock;
	const struct siw_addr *at;
	/*
	 * whether CRCs are used; the same for all endpoints of a socket, because the CRC is checked
	 * before the destination endpoint is known
	 */
	bool crc;
	uint32_t max;
	uint32_t rx_payload; /* octets of payload of the last received datagram */
	struct siw_addr local;
	/*
	 * The members below belong to the send side: protected by the QP's send lock, and in a
	 * cache line of their own.
	 */
	_Alignas(64) uint32_t msn;
	uint32_t error_msn;  /* MSN of the next error message (queue 2) */
	uint32_t record_psn; /* PSN of the next Write-Record datagram */
	/*
	 * octets of the longest datagram that may be part of a batch; 0: the kernel supports no
	 * batches
	 */
	uint32_t batch_max;
	struct siw_ddp_pace pace;
};

#endif
