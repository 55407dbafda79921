/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_wire.h - RDMAP's control octet, Read Request header and Terminate header (RFC 5040
 * section 4), and the headers of atomic operations (RFC 7306 section 5.2): wire formats and
 * conversion.
 *
 * What the conversion does NOT do: check the values that it reads.
 */
#ifndef SIW_RDMAP_WIRE_H
#define SIW_RDMAP_WIRE_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

#include "rdmap/rdmap.h"

/*
 * The RDMAP control octet (RFC 5040 figure 3), which is the first RsvdULP octet of DDP: RV 2 bits,
 * reserved 2 bits, opcode 4 bits. This end sends RV 1; in received messages, 0 (the RDMA
 * Consortium's version) is valid, too (RFC5040-4.1-08).
 */
#define SIW_RDMAP_RV	   1
#define SIW_RDMAP_RV_SHIFT 6
#define SIW_RDMAP_OP_MASK  0x0f

/* The numbers of the untagged queues (RFC 5040 figure 4, RFC 7306 figure 2). */
#define SIW_RDMAP_QN_READ      1
#define SIW_RDMAP_QN_TERMINATE 2
#define SIW_RDMAP_QN_ATOMIC    3

static inline uint8_t siw_rdmap_ctrl(uint8_t opcode)
{
	return (uint8_t)(SIW_RDMAP_RV << SIW_RDMAP_RV_SHIFT | opcode);
}

/*
 *   0        3  4         11  12       15  16       19  20        27
 *  +----------+-------------+-------------+-----------+-------------+
 *  | SinkSTag |   SinkTO    |  RDMARDSZ   |  SrcSTag  |    SrcTO    |   figure 6
 *  +----------+-------------+-------------+-----------+-------------+
 */
struct siw_rdmap_wire_read {
	uint32_t sink_stag;
	uint64_t sink_to;
	uint32_t rdmardsz;
	uint32_t src_stag;
	uint64_t src_to;
} __attribute__((packed));
#define SIW_RDMAP_READ_LEN 28
_Static_assert(sizeof(struct siw_rdmap_wire_read) == SIW_RDMAP_READ_LEN, "RFC 5040 figure 6");

/*
 *   0                     4            8             12         20     28     36        44
 *  +---------------------+------------+-------------+----------+------+------+---------+---------+
 *  | reserved 28 bits,   | Request    | Remote STag | Remote   | Add  | Add  | Compare | Compare |
 *  | AOpCode 4           | Identifier |             | TO       | Swap | mask | Data    | Mask    |
 *  +---------------------+------------+-------------+----------+------+------+---------+---------+
 *   RFC 7306 figure 4
 */
struct siw_rdmap_wire_atomic {
	uint32_t aop;
	uint32_t request;
	uint32_t stag;
	uint64_t to;
	uint64_t data;
	uint64_t mask;
	uint64_t compare;
	uint64_t compare_mask;
} __attribute__((packed));
#define SIW_RDMAP_ATOMIC_LEN 52
#define SIW_RDMAP_AOP_MASK   0x0f
_Static_assert(sizeof(struct siw_rdmap_wire_atomic) == SIW_RDMAP_ATOMIC_LEN, "RFC 7306 figure 4");

/*
 *   0                              4
 *  +------------------------------+----------------------------+
 *  | Original Request Identifier  | Original Remote Data Value |   RFC 7306 figure 6
 *  +------------------------------+----------------------------+
 */
struct siw_rdmap_wire_atomic_response {
	uint32_t request;
	uint64_t original;
} __attribute__((packed));
#define SIW_RDMAP_ATOMIC_RESPONSE_LEN 12
_Static_assert(sizeof(struct siw_rdmap_wire_atomic_response) == SIW_RDMAP_ATOMIC_RESPONSE_LEN,
	       "RFC 7306 figure 6");

/*
 *   0                4                            7
 *  +----------------+----------------------------+
 *  | the verbs' own | zero                       |   RFC 7306 figure 7, as verbs use it
 *  +----------------+----------------------------+
 *   0         1        4                8
 *  +---------+--------+----------------+-----------
 *  | subcode | zero   | immediate data | the user's    a private message that is a Send
 *  +---------+--------+----------------+-----------
 */
struct siw_rdmap_wire_imm {
	uint32_t data; /* immediate data, in memory order at both ends */
	uint32_t zero;
} __attribute__((packed));
struct siw_rdmap_wire_send_imm {
	uint8_t subcode;
	uint8_t zero[3];
	uint32_t data; /* immediate data, in memory order at both ends */
} __attribute__((packed));
#define SIW_RDMAP_IMM_LEN 8
_Static_assert(sizeof(struct siw_rdmap_wire_imm) == SIW_RDMAP_IMM_LEN, "RFC 7306 figure 7");
_Static_assert(sizeof(struct siw_rdmap_wire_send_imm) == SIW_RDMAP_IMM_LEN,
	       "both immediate data headers have the same size");

/* Writes the header of a Send with immediate data. */
static inline void siw_rdmap_put_send_imm(void *at, bool solicited, uint32_t data)
{
	struct siw_rdmap_wire_send_imm head = {
		.subcode = solicited ? SIW_RDMAP_SEND_IMM_SE : SIW_RDMAP_SEND_IMM,
		.data = data,
	};

	memcpy(at, &head, sizeof(head));
}

static inline bool siw_rdmap_is_send_imm(const struct siw_rdmap_wire_send_imm *head)
{
	return head->subcode == SIW_RDMAP_SEND_IMM || head->subcode == SIW_RDMAP_SEND_IMM_SE;
}

/*
 * Tagged private messages on connections have no payload; their contents are in the DDP header:
 *
 *   0         1       4                             STag
 *  +---------+-------+
 *  | subcode | zero  |
 *  +---------+-------+----------+------------------+
 *                    | Sends    | Writes           |   TO of a delivery count
 *                    +----------+------+-----------+
 *                    | zero     | wants | rnr_retry|   TO of a requester's message: 6, 1, 1 octets
 *                    +----------+-------+----------+
 */
#define SIW_RDMAP_PRIVATE_SUBCODE_SHIFT 24 /* bit position, in the STag, of the subcode */
#define SIW_RDMAP_SENDS_SHIFT \
	32 /* bit position, in the TO of a delivery count, of its number of Sends */
#define SIW_RDMAP_WANTS_COUNTS 0x100u
#define SIW_RDMAP_RNR_MASK     0xffu
#define SIW_RDMAP_RNR_MAX      7

/*
 * The source TO of an empty Read Request by which siwarp requests delivery counts, and which shows
 * that the sender is siwarp: the letters "SIWC", and a version. In RFC 5040 the TO of an empty Read
 * has no meaning (RFC5040-5.2.1-16).
 */
#define SIW_RDMAP_ASKS_COUNTS 0x5349574300000001u

/*
 * The header of a message on queue 1, a Read Request or an Atomic Request; the opcode selects the
 * member.
 */
union siw_rdmap_wire_atomic_request {
	struct siw_rdmap_wire_read read;
	struct siw_rdmap_wire_atomic atomic;
};

/*
 *   0              1            2                   3     4             6
 *  +--------------+------------+-------------------+-----+-------------+------------+-------------+
 *  | layer, etype | error code | M D R, 5 reserved | res | segment len | DDP header | RDMA header |
 *  +--------------+------------+-------------------+-----+-------------+------------+-------------+
 *   figures 7 and 8                                        with M or D   with D       with R: 28
 */
struct siw_rdmap_wire_terminate {
	uint8_t layer_etype; /* error layer in the upper four bits, error type in the lower */
	uint8_t code;
	uint8_t hdrct;
	uint8_t reserved;
} __attribute__((packed));
#define SIW_RDMAP_TERM_M 0x80 /* Terminate: the DDP segment length is valid */
#define SIW_RDMAP_TERM_D 0x40 /* Terminate: a DDP header is included */
#define SIW_RDMAP_TERM_R 0x20 /* Terminate: an RDMAP header is included */
_Static_assert(sizeof(struct siw_rdmap_wire_terminate) == 4, "RFC 5040 figure 8");

/*
 * Maximum length of a Terminate in octets: control, segment length, untagged DDP header, Read
 * Request header.
 */
#define SIW_RDMAP_TERM_MAX (4 + 2 + 18 + SIW_RDMAP_READ_LEN)

#endif
