/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_record.h - part of rdmap/rdmap.h: Write-Record, the RDMA Write of UD and RD. Each
 * datagram of a message is placed independently. The target records which octets have arrived, and
 * reports the message when the message is complete or no more of its datagrams are expected.
 *
 * What Write-Record on UD does NOT do: retransmit datagrams. A message of which all datagrams are
 * lost is not reported.
 *
 * Locks: siw_rdmap_write_record_send(): the QP's send lock; all others: the progress lock.
 */
#ifndef SIW_RDMAP_RECORD_H
#define SIW_RDMAP_RECORD_H

#include "rdmap/rdmap.h"

/* cffi: begin */

struct siw_rdmap_records;

/* The octets [start, end) of a Write-Record. */
struct siw_rdmap_range {
	uint32_t start;
	uint32_t end;
};
/* Maximum number of ranges recorded for a message; further ranges are not recorded. */
#define SIW_RDMAP_RECORD_RANGES 32

/* The report of a received Write-Record. */
struct siw_rdmap_record {
	struct siw_addr source;
	uint32_t src_qpn;
	uint32_t id; /* the message's id, assigned by the source */
	uint32_t stag;
	uint64_t to;	 /* tagged offset of the message's first octet */
	uint32_t length; /* octets of the complete message */
	/* octets of the message that were received: the total length of the ranges */
	uint32_t valid;
	bool solicited;
	uint64_t number; /* number of the report at this end, from 1 */
	uint32_t n;
	/* the received ranges, in ascending order; adjacent ranges are merged */
	struct siw_rdmap_range ranges[SIW_RDMAP_RECORD_RANGES];
};

/*
 * Enables the endpoint to receive Write-Records, with at most max unfinished messages at a time; if
 * max is 0, no Write-Records are received. Returns 0 or -ENOMEM.
 */
int siw_rdmap_write_record_enable_rx(struct siw_rdmap_dgram *dgram, uint32_t max);
/*
 * Drops partly received Write-Records. Reports are kept, because their completions may still be
 * polled.
 */
void siw_rdmap_write_record_drop_partly_received(struct siw_rdmap_dgram *dgram);
/*
 * Returns the report of the next Write-Record that is complete, or has expired at now_ns, or NULL.
 * The report is valid until siw_rdmap_record_kept() further reports were made. *due_ns: the time at
 * which the next message expires; 0 if no message is unfinished.
 */
const struct siw_rdmap_record *siw_rdmap_write_record_next_report(struct siw_rdmap_dgram *dgram,
								  uint64_t now_ns,
								  uint64_t *due_ns);
/* Returns the report with the given number, or NULL if the report is no longer stored. */
const struct siw_rdmap_record *siw_rdmap_write_record_find_report(struct siw_rdmap_dgram *dgram,
								  uint64_t number);

struct siw_rdmap_record_op {
	uint64_t user_data; /* returned by siw_rdmap_dgram_match_error_to_sent() */
	const struct siw_addr *dest;
	uint8_t dest_index;
	uint32_t qkey;
	bool solicited;
	bool internal;
	uint32_t stag;
	uint64_t to;
	const struct siw_sge *sgl;
	int nsge;
	uint64_t length;
};
/*
 * Sends a Write-Record, beginning with octet *offset (initially 0), and advances *offset. Returns 1
 * if the message is sent completely; 0 if the 64 KiB of a turn are sent, and the caller must call
 * again; -EAGAIN if the socket is full; another -errno of siw_ddp_dgram_tx() if the message fails.
 */
int siw_rdmap_write_record_send(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_record_op *op,
				uint64_t *offset);

/*
 * Write-Records on reliable datagrams, which siw_rdmap_begin_op() sends for an operation with
 * opcode PRIVATE. Write-Records on RD arrive complete, once and in order; event RECORD reports each
 * Write-Record, with its number as user_data. While the table is full of reports that were not
 * polled, the stream is paused.
 */
int siw_rdmap_rd_write_record_enable_rx(struct siw_rdmap_rd *rd, uint32_t max);
/* Sets how many of the reported Write-Records the user has polled. */
void siw_rdmap_rd_write_record_set_polled_count(struct siw_rdmap_rd *rd, uint32_t polled);
/* Whether a paused Write-Record could be reported now. */
bool siw_rdmap_rd_write_record_has_room(const struct siw_rdmap_rd *rd);
const struct siw_rdmap_record *siw_rdmap_rd_write_record_find_report(const struct siw_rdmap_rd *rd,
								     uint64_t number);

/* cffi: end */

/* Returns the minimum number of reports that stay stored, if max messages may be unfinished. */
static inline uint32_t siw_rdmap_record_kept(uint32_t max)
{
	return (max + 1) / 2;
}

#endif
