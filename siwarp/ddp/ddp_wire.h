/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_wire.h - conversion of the two DDP segment headers (RFC 5041 section 4) to and from
 * values.
 *
 * What the conversion does NOT do: validate. The receive functions check version, queue number and
 * offsets; a header that is long enough always parses.
 */
#ifndef SIW_DDP_WIRE_H
#define SIW_DDP_WIRE_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

#include "ddp/ddp.h"

/* The bits of the DDP control field (RFC 5041 figure 3): T, L, four reserved bits, DV. */
#define SIW_DDP_T	 0x80
#define SIW_DDP_L	 0x40
#define SIW_DDP_DV_MASK	 0x03
#define SIW_DDP_DV	 0x01
#define SIW_DDP_TAGGED	 14 /* octets of the tagged header */
#define SIW_DDP_UNTAGGED 18 /* octets of the untagged header */

/*
 *   0      1      2      3      4      5      6 ...                  13
 *  +------+------+---------------------------+-------------------------+
 *  | T L  | Rsvd |           STag            |           TO            |
 *  |   DV | ULP  |                           |                         |
 *  +------+------+---------------------------+-------------------------+
 */
struct siw_ddp_wire_tagged {
	uint8_t ctrl;
	uint8_t rsvd_ulp;
	uint32_t stag;
	uint64_t to;
} __attribute__((packed));
_Static_assert(sizeof(struct siw_ddp_wire_tagged) == SIW_DDP_TAGGED, "RFC 5041 figure 4");

/*
 *   0      1      2      5      6     9  10   13  14   17
 *  +------+-------------------+--------+--------+--------+
 *  | T L  |     RsvdULP       |   QN   |  MSN   |   MO   |
 *  |   DV |  (1 + 4 octets)   |        |        |        |
 *  +------+-------------------+--------+--------+--------+
 */
struct siw_ddp_wire_untagged {
	uint8_t ctrl;
	uint8_t rsvd_ulp;
	uint32_t rsvd_ulp_rest;
	uint32_t qn;
	uint32_t msn;
	uint32_t mo;
} __attribute__((packed));
_Static_assert(sizeof(struct siw_ddp_wire_untagged) == SIW_DDP_UNTAGGED, "RFC 5041 figure 5");

/* Octets of the DDP header that starts with the control field ctrl. */
static inline uint32_t siw_ddp_head_len(uint8_t ctrl)
{
	return ctrl & SIW_DDP_T ? SIW_DDP_TAGGED : SIW_DDP_UNTAGGED;
}

/*
 * The reserved bits of the DDP control field are sent as zero (RFC5041-4.1-08), DV as one
 * (RFC5041-4.1-09).
 */
static inline void siw_ddp_put_tagged(void *at, bool last, uint8_t ulp_octet, uint32_t stag,
				      uint64_t to)
{
	struct siw_ddp_wire_tagged h = {
		.ctrl = SIW_DDP_T | (last ? SIW_DDP_L : 0) | SIW_DDP_DV,
		.rsvd_ulp = ulp_octet,
		.stag = htobe32(stag),
		.to = htobe64(to),
	};

	memcpy(at, &h, sizeof(h));
}

static inline void siw_ddp_put_untagged(void *at, bool last, uint8_t ulp_octet, uint32_t ulp_word,
					uint32_t qn, uint32_t msn, uint32_t mo)
{
	struct siw_ddp_wire_untagged h = {
		.ctrl = (last ? SIW_DDP_L : 0) | SIW_DDP_DV,
		.rsvd_ulp = ulp_octet,
		.rsvd_ulp_rest = htobe32(ulp_word),
		.qn = htobe32(qn),
		.msn = htobe32(msn),
		.mo = htobe32(mo),
	};

	memcpy(at, &h, sizeof(h));
}

/*
 * Parses the header at the start of a segment of seg_len octets. The caller has checked that
 * seg_len and the octets available at head are at least siw_ddp_head_len().
 */
static inline void siw_ddp_parse(const uint8_t *head, uint32_t seg_len, struct siw_ddp_seg *seg)
{
	seg->tagged = head[0] & SIW_DDP_T;
	seg->last = head[0] & SIW_DDP_L;
	seg->ulp_octet = head[1];
	seg->seg_len = seg_len;
	seg->head_len = (uint8_t)siw_ddp_head_len(head[0]);
	seg->payload = seg_len - seg->head_len;
	if (seg->tagged) {
		struct siw_ddp_wire_tagged h;

		memcpy(&h, head, sizeof(h));
		memcpy(seg->head, &h, sizeof(h));
		seg->stag = be32toh(h.stag);
		seg->to = be64toh(h.to);
	} else {
		struct siw_ddp_wire_untagged h;

		memcpy(&h, head, sizeof(h));
		memcpy(seg->head, &h, sizeof(h));
		seg->ulp_word = be32toh(h.rsvd_ulp_rest);
		seg->qn = be32toh(h.qn);
		seg->msn = be32toh(h.msn);
		seg->mo = be32toh(h.mo);
	}
}

#endif
