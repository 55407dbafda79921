/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_uc_impl.h - the structure of an endpoint of an unreliable connection; private to the
 * ddp_uc*.c files.
 */
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

/*
 * The receive side of a UC endpoint. Protected by the progress lock; siw_ddp_uc_connect also holds
 * the send lock.
 */
struct siw_uc_rx {
	bool connected;
	bool whole;   /* no datagram of the current operation is missing so far */
	uint32_t psn; /* PSN of the next datagram */
	/* The current datagram, in the llp layer's receive buffer. */
	struct siw_ddp_seg seg;
	const uint8_t *payload;
	/*
	 * The current message. The member buf was removed from the queue for the current message,
	 * or for an earlier message that was not finished.
	 */
	bool begun;
	bool held; /* a receive buffer was removed from the receive queue */
	uint32_t msn;
	uint32_t placed; /* octets of the message placed so far, which is the next valid MO */
	struct siw_mem_taken buf;
};

/* The reports of a UC endpoint; protected by the progress lock. */
struct siw_uc_reports {
	bool on;		     /* reports of received datagrams are sent and accepted */
	bool report_unread;	     /* the peer's report in the member last was not read yet */
	uint64_t datagrams, octets;  /* counts of received datagrams since siw_ddp_uc_connect */
	uint64_t reported_datagrams; /* count of datagrams in the last report sent to the peer */
	uint64_t reported_ns;	     /* time of the last report sent, ns; 0: none was sent */
	uint32_t psn;		     /* PSN of the next report */
	struct siw_ddp_uc_report last;
};

/* The send side of a UC endpoint; protected by the send lock. */
struct siw_uc_tx {
	bool active; /* the message msg is not completely framed */
	bool blocked;
	uint32_t psn;	  /* PSN of the next datagram */
	uint32_t msn[4];  /* MSN of the next message of each queue number */
	uint32_t payload; /* maximum octets of a segment's payload */
	uint64_t offset;  /* number of octets of msg's payload that are framed */
	uint32_t at_msn;
	struct siw_ddp_uc_msg msg;
	uint64_t begun, accepted;
	/* numbers of the messages refused by the network; 0: none */
	uint64_t refused_first, refused_last;
	/*
	 * Datagrams of one size that wait to be sent together, stored contiguously; the last
	 * datagram may be shorter, and then no more datagrams can be added.
	 */
	uint8_t *batch;
	uint32_t used, datagram, datagrams;
	/* octets of the batch that have been sent, if its datagrams are sent one by one */
	uint32_t gone;
	bool full;
	uint32_t batch_max; /* octets of the longest datagram that may be part of a batch */
	struct siw_ddp_pace pace;
};

struct siw_ddp_uc {
	struct siw_mem *mem;
	struct siw_llp_poller *poller;
	struct siw_llp_sock *sock; /* the socket that the endpoint sends on */
	/* the socket that the endpoint receives from; protected by the progress lock */
	struct siw_llp_sock *rx_sock;
	bool crc;
	/*
	 * The members from peer to identity are written under both the send lock and the progress
	 * lock.
	 */
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
/* Stores a UC report received from the peer. */
void siw_ddp_uc_store_receiver_report(struct siw_ddp_uc *uc, const uint8_t *datagram);
/* Resets the UC reports for a new peer. */
void siw_ddp_uc_reset_receiver_reports(struct siw_ddp_uc *uc);

#endif
