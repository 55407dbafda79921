/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ddp/ddp_dgram_impl.h - a datagram endpoint, as ddp_datagram.c and ddp_record.c see it. */
#ifndef SIW_DDP_DGRAM_IMPL_H
#define SIW_DDP_DGRAM_IMPL_H

#include "base/list.h"
#include "ddp/ddp_impl.h"
#include "base/dgram_wire.h"
#include "llp/llp.h"

#define SIW_DDP_DGRAM_CRC 4
/* What a datagram of a Write-Record has beside its payload. */
#define SIW_DDP_RECORD_OVERHEAD (SIW_DGRAM_LEN + SIW_DDP_TAGGED + SIW_DDP_DGRAM_CRC)

struct siw_ddp_dgram {
	struct siw_mem *mem;
	struct siw_llp_port *port;
	uint8_t *datagram;	   /* received last, in the port's room */
	struct siw_llp_sock *sock; /* that it sends on; send lock */
	/* That it receives from, and what that is bound to; progress lock. */
	struct siw_llp_sock *rx_sock;
	const struct siw_addr *at;
	bool crc; /* of all that share the socket: it is checked before one knows who is meant */
	uint32_t max;
	uint32_t rx_payload; /* of that datagram */
	struct siw_addr local;
	/* Sending, under the QP's send lock: a cache line of its own. */
	_Alignas(64) uint32_t msn;
	uint32_t error_msn;  /* of queue 2 */
	uint32_t record_psn; /* of datagrams of Write-Records */
	uint32_t batch_max;  /* octets of a datagram that a batch may be made of; 0: none */
	struct siw_ddp_pace pace;
};

#endif
