/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_record.h - part of rdmap/rdmap.h: Write-Record, the RDMA Write of UD (and RD). Each datagram of a
 * message is placed by itself; the target notes which octets came, and tells so when all are there or
 * nothing more is to be expected.
 *
 * What this does NOT do: repeat. A message of which everything is lost was never there.
 *
 * Locks: siw_rdmap_record_send the QP's send lock, all others the progress lock.
 */
#ifndef SIW_RDMAP_RECORD_H
#define SIW_RDMAP_RECORD_H

#include "rdmap/rdmap.h"

/* cffi: begin */

struct siw_rdmap_records;

/* Octets [start, end) of a message. */
struct siw_rdmap_range {
	uint32_t start;
	uint32_t end;
};
/* Ranges of one message that are kept; what would be one more is not noted. */
#define SIW_RDMAP_RECORD_RANGES 32

/* What is told of a message. */
struct siw_rdmap_record {
	struct siw_addr source;
	uint32_t src_qpn;
	uint32_t id; /* the source's number of it */
	uint32_t stag;
	uint64_t to;	 /* of its first octet */
	uint32_t length; /* octets of the whole message */
	uint32_t valid;	 /* octets in ranges */
	bool solicited;
	uint64_t number; /* this end's, counted from 1 */
	uint32_t n;
	struct siw_rdmap_range ranges[SIW_RDMAP_RECORD_RANGES]; /* in order; no two touch */
};

/*
 * The endpoint takes Write-Records from now on: so many in process at a time. -ENOMEM. max 0: none.
 */
int siw_rdmap_record_open(struct siw_rdmap_dgram *dgram, uint32_t max);
/* Forgets what is in process and what is kept. */
void siw_rdmap_record_clear(struct siw_rdmap_dgram *dgram);
/*
 * The next message that is over at this time: *record, which stays until so many more are told. NULL:
 * none. *due_ns: when the next one will be, if nothing more comes; 0: none is in process.
 */
const struct siw_rdmap_record *siw_rdmap_record_next(struct siw_rdmap_dgram *dgram, uint64_t now_ns,
						     uint64_t *due_ns);
/* One that was told, by its number; NULL: it is not kept any more. */
const struct siw_rdmap_record *siw_rdmap_record_find(struct siw_rdmap_dgram *dgram,
						     uint64_t number);

struct siw_rdmap_record_op {
	uint64_t user_data; /* comes back from siw_rdmap_dgram_sent */
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
 * Sends on from octet *offset, which is 0 at first: 1 all is out; 0 a turn is over
 * (64 KiB); -EAGAIN the socket is full; -errno as siw_ddp_dgram_tx, of this message.
 */
int siw_rdmap_record_send(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_record_op *op,
			  uint64_t *offset);

/*
 * Over reliable datagrams (siw_rdmap_send of an op PRIVATE sends one): whole, in order and once; the event RECORD
 * tells of each, its user_data the number. When as many were told beyond those polled as are kept, what comes
 * waits: HELD.
 */
int siw_rdmap_rd_record_open(struct siw_rdmap_rd *rd, uint32_t max);
void siw_rdmap_rd_record_polled(struct siw_rdmap_rd *rd, uint32_t polled);
/* Whether one that waits could be told now. */
bool siw_rdmap_rd_record_has_room(const struct siw_rdmap_rd *rd);
const struct siw_rdmap_record *siw_rdmap_rd_record_find(const struct siw_rdmap_rd *rd,
							uint64_t number);

/* cffi: end */

/* How many that were told are kept at least, where max may be in process. */
static inline uint32_t siw_rdmap_record_kept(uint32_t max)
{
	return (max + 1) / 2;
}

#endif
