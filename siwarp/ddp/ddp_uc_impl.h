/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_uc_impl.h - an endpoint of an unreliable connection; private to ddp_uc.c and ddp_uc_tx.c.
 */
#ifndef SIW_DDP_UC_IMPL_H
#define SIW_DDP_UC_IMPL_H

#include "ddp/ddp_impl.h"
#include "ddp/ddp_uc.h"
#include "base/dgram_wire.h"
#include "llp/llp.h"

#define SIW_UC_TAGGED	(SIW_DGRAM_LEN + SIW_DDP_TAGGED)
#define SIW_UC_UNTAGGED (SIW_DGRAM_LEN + SIW_DDP_UNTAGGED)
/* The flag of an operation's first datagram. */
#define SIW_UC_FIRST 0x01

/* Under the progress lock; siw_ddp_uc_connect also holds the send lock. */
struct siw_uc_rx {
	bool connected;
	bool whole;   /* nothing of the current operation is missing so far */
	uint32_t psn; /* the next datagram's */
	/* The datagram in the port's buffer. */
	struct siw_ddp_seg seg;
	const uint8_t *payload;
	/*
	 * The current message; the members from user_data on describe the buffer that was taken for
	 * it, or for an unfinished message before it.
	 */
	bool begun;
	bool held; /* a buffer was taken */
	uint32_t msn;
	uint32_t placed; /* octets of the message: the MO that comes next */
	uint64_t user_data;
	uint64_t length;
	int nsge;
	struct siw_sge sgl[SIW_MEM_MAX_SGE];
};

/* Reports, under the progress lock. */
struct siw_uc_reports {
	bool on;		    /* they are sent and taken */
	bool heard;		    /* last has not been read yet */
	uint64_t datagrams, octets; /* taken since siw_ddp_uc_connect */
	uint64_t told;		    /* datagrams, in the last report that was sent */
	uint64_t told_ns;	    /* when that was; 0: never */
	uint32_t psn;		    /* of the next report */
	struct siw_ddp_uc_report last;
};

/* Send lock. */
struct siw_uc_tx {
	bool active; /* msg is not wholly framed */
	bool blocked;
	uint32_t psn;	  /* the next datagram's */
	uint32_t msn[4];  /* the next message's */
	uint32_t payload; /* octets of a segment's payload at the most */
	uint64_t offset;  /* octets of msg's payload framed */
	uint32_t at_msn;
	struct siw_ddp_uc_msg msg;
	uint64_t begun, accepted;
	uint64_t refused_first, refused_last; /* 0: none */
	/*
	 * Datagrams of one size that wait to go together, one behind the other; the last one may be
	 * shorter, and then none follows.
	 */
	uint8_t *batch;
	uint32_t used, datagram, datagrams;
	uint32_t gone; /* octets of it that are out, where they go one by one */
	bool full;
	uint32_t batch_max; /* octets of a datagram that a batch may be made of */
	struct siw_ddp_pace pace;
};

struct siw_ddp_uc {
	struct siw_mem *mem;
	struct siw_llp_port *port;
	struct siw_llp_sock *sock;    /* that it sends on */
	struct siw_llp_sock *rx_sock; /* that it receives from; progress lock */
	bool crc;
	/* Both locks to write. */
	struct siw_addr peer;
	uint32_t qkey;
	uint32_t pd;
	const void *identity;
	struct siw_uc_rx rx;
	struct siw_uc_reports reports;
	_Alignas(64) struct siw_uc_tx tx;
};

/* ---- ddp_uc_report.c ------------------------------------------------------------------------- */

/* Octets of a report's datagram. */
#define SIW_UC_REPORT (SIW_DGRAM_LEN + 24 + SIW_DGRAM_CRC_LEN)
/* A report of the peer's came: notes it. */
void siw_ddp_uc_report_take(struct siw_ddp_uc *uc, const uint8_t *datagram);
/* The peer is another one. */
void siw_ddp_uc_report_begin(struct siw_ddp_uc *uc);

#endif
