/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ddp/ddp_uc_impl.h - an endpoint of an unreliable connection; private to the ddp_uc*.c files. */
#ifndef SIW_DDP_UC_IMPL_H
#define SIW_DDP_UC_IMPL_H

#include "ddp/ddp_impl.h"
#include "ddp/ddp_uc.h"
#include "llp/llp_dgram_wire.h"
#include "llp/llp.h"

#define SIW_UC_TAGGED	(SIW_DGRAM_LEN + SIW_DDP_TAGGED)
#define SIW_UC_UNTAGGED (SIW_DGRAM_LEN + SIW_DDP_UNTAGGED)
/* LLP header flag: first datagram of an operation. */
#define SIW_UC_FIRST 0x01

/* Protected by the progress lock; siw_ddp_uc_connect also holds the send lock. */
struct siw_uc_rx {
	bool connected;
	bool whole;   /* no datagram of the current operation has been missed so far */
	uint32_t psn; /* PSN of the next datagram */
	/* The current datagram, in the port's buffer. */
	struct siw_ddp_seg seg;
	const uint8_t *payload;
	/*
	 * The current message. The members from user_data on describe the buffer that was removed
	 * from the queue for it, or for an unfinished message before it.
	 */
	bool begun;
	bool held; /* a buffer was removed from the queue */
	uint32_t msn;
	uint32_t placed; /* octets of the message placed so far: the next valid MO */
	uint64_t user_data;
	uint64_t length;
	int nsge;
	struct siw_sge sgl[SIW_MEM_MAX_SGE];
};

/* Reports; protected by the progress lock. */
struct siw_uc_reports {
	bool on;		    /* reports are sent and accepted */
	bool heard;		    /* last has not been read yet */
	uint64_t datagrams, octets; /* received since siw_ddp_uc_connect */
	uint64_t told;		    /* value of datagrams in the last report that was sent */
	uint64_t told_ns;	    /* time of the last report, ns; 0: never */
	uint32_t psn;		    /* PSN of the next report */
	struct siw_ddp_uc_report last;
};

/* Protected by the send lock. */
struct siw_uc_tx {
	bool active; /* msg is not completely framed */
	bool blocked;
	uint32_t psn;	  /* PSN of the next datagram */
	uint32_t msn[4];  /* MSN of the next message */
	uint32_t payload; /* maximum octets of a segment's payload */
	uint64_t offset;  /* octets of msg's payload framed */
	uint32_t at_msn;
	struct siw_ddp_uc_msg msg;
	uint64_t begun, accepted;
	uint64_t refused_first, refused_last; /* message numbers; 0: none */
	/*
	 * Datagrams of one size that wait to be sent together, stored contiguously; the last one
	 * may be shorter, and then no more can be added.
	 */
	uint8_t *batch;
	uint32_t used, datagram, datagrams;
	/* octets of the batch that are already sent, if the datagrams are sent one by one */
	uint32_t gone;
	bool full;
	uint32_t batch_max; /* octets of the longest datagram that may be part of a batch */
	struct siw_ddp_pace pace;
};

struct siw_ddp_uc {
	struct siw_mem *mem;
	struct siw_llp_port *port;
	struct siw_llp_sock *sock; /* the socket it sends on */
	/* the socket it receives from; protected by the progress lock */
	struct siw_llp_sock *rx_sock;
	bool crc;
	/* Written under both locks. */
	struct siw_addr peer;
	uint32_t qkey;
	uint32_t pd;
	const void *identity;
	struct siw_uc_rx rx;
	struct siw_uc_reports reports;
	_Alignas(64) struct siw_uc_tx tx;
};

/* ---- ddp_uc_report.c ------------------------------------------------------------------------- */

/* Octets of a report datagram. */
#define SIW_UC_REPORT (SIW_DGRAM_LEN + 24 + SIW_DGRAM_CRC_LEN)
/* Stores a report received from the peer. */
void siw_ddp_uc_report_take(struct siw_ddp_uc *uc, const uint8_t *datagram);
/* Resets the reports for a new peer. */
void siw_ddp_uc_report_begin(struct siw_ddp_uc *uc);

#endif
