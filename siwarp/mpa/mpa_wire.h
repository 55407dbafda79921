/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpa/mpa_wire.h - the wire formats of MPA: start-up frames and FPDUs.
 *
 * All integers are big endian except the CRC (see base/crc32c.h). The caller must check the length
 * first; the accessors cannot fail after that.
 */
#ifndef SIW_MPA_WIRE_H
#define SIW_MPA_WIRE_H

#include <stddef.h>
#include <stdint.h>

/*
 * Request and Reply Frame (RFC 5044 section 7.1.1; bit S: RFC 6581 section 6)
 *
 *      0               1               2               3
 *      0 1 2 3 4 5 6 7 0 1 2 3 4 5 6 7 0 1 2 3 4 5 6 7 0 1 2 3 4 5 6 7
 *     +-------------------------------------------------------------+
 *   0 |                                                             |
 *     :      key, 16 octets: "MPA ID Req Frame" in a Request,       :
 *     |                      "MPA ID Rep Frame" in a Reply          |
 *     +-+-+-+-+-+-+-+-+---------------+-----------------------------+
 *  16 |M|C|R|S|0|Q|P|D|      rev      |          pd_length          |
 *     +-+-+-+-+-+-+-+-+---------------+-----------------------------+
 *  20 |  private data: pd_length octets, at most 512                :
 *     +-------------------------------------------------------------+
 */
#define SIW_MPA_KEY_LEN	    16
#define SIW_MPA_KEY_REQUEST "MPA ID Req Frame"
#define SIW_MPA_KEY_REPLY   "MPA ID Rep Frame"

#define SIW_MPA_FLAG_M 0x80 /* the sender requests Markers in the FPDUs it receives */
#define SIW_MPA_FLAG_C 0x40 /* the sender requests CRCs */
#define SIW_MPA_FLAG_R 0x20 /* in a Reply: the connection is rejected; ignored in a Request */
#define SIW_MPA_FLAG_S 0x10 /* the private data starts with struct siw_mpa_enhanced */
/*
 * Flag bits reserved by RFC 5044; siwarp announces itself with them (spec/mpa-announcement.md).
 * Linux siw builds its Reply in the memory of the Request and so repeats the bits that the
 * initiator set; therefore each role has its own bit. Linux siw's experimental GSO flag is 0x08,
 * which siwarp does not set.
 */
#define SIW_MPA_FLAG_Q 0x04 /* Request: the sender is siwarp */
#define SIW_MPA_FLAG_P 0x02 /* Reply: the sender is siwarp */
#define SIW_MPA_FLAG_D 0x01 /* with Q or P: the sender offers delivery counts */
/* of the bits Q, P and 0x08 only Q may be set in a Request, only P in a Reply */
#define SIW_MPA_FLAGS_ROLE 0x0e

struct siw_mpa_frame {
	uint8_t key[SIW_MPA_KEY_LEN];
	uint8_t flags;
	uint8_t rev;
	uint8_t pd_length[2];
} __attribute__((packed));
_Static_assert(sizeof(struct siw_mpa_frame) == 20, "RFC 5044 figure 8");
_Static_assert(offsetof(struct siw_mpa_frame, flags) == 16, "RFC 5044 figure 8");
_Static_assert(offsetof(struct siw_mpa_frame, pd_length) == 18, "RFC 5044 figure 8");

/*
 * Enhanced connection establishment data (RFC 6581 section 9)
 *
 *      0               1               2               3
 *     +-+-+---------------------------+-+-+-------------------------+
 *   0 |A|B|            IRD            |C|D|           ORD           |
 *     +-+-+---------------------------+-+-+-------------------------+
 *
 * A: peer-to-peer. Supported RTR messages: B: zero-length FPDU, C: RDMA Write, D: RDMA Read.
 */
struct siw_mpa_enhanced {
	uint8_t ird[2]; /* bits A and B, IRD */
	uint8_t ord[2]; /* bits C and D, ORD */
} __attribute__((packed));
_Static_assert(sizeof(struct siw_mpa_enhanced) == 4, "RFC 6581 section 9");

#define SIW_MPA_BIT_A	0x8000 /* bit A (peer-to-peer connection), in field ird */
#define SIW_MPA_BIT_B	0x4000 /* bit B (RTR by an empty FPDU), in field ird */
#define SIW_MPA_BIT_C	0x8000 /* bit C (RTR by an empty Write), in field ord */
#define SIW_MPA_BIT_D	0x4000 /* bit D (RTR by an empty Read), in field ord */
#define SIW_MPA_MAX_IRD 0x3fff /* 14 bits; all ones: not negotiated (RFC 6581 section 9.1) */

#define SIW_MPA_MAX_FRAME (sizeof(struct siw_mpa_frame) + 512)

/*
 * FPDU without Markers (RFC 5044 section 4.1)
 *
 *     +-------------------------------+-----------------------------+
 *     |         ULPDU_Length          |                             |
 *     +-------------------------------+                             |
 *     :                            ULPDU                            :
 *     |                               +-----------------------------+
 *     |                               |  pad, 0 to 3 octets of zero |
 *     +-------------------------------+-----------------------------+
 *     |                             CRC                             |
 *     +-------------------------------------------------------------+
 */
/*
 * Marker (RFC 5044 section 4.2, figure 3), before the first FPDU and at every 512th octet from
 * there. FPDUs and Markers are multiples of four octets. So a Marker is between two FPDUs, at an
 * even offset inside a ULPDU, or right before a CRC; never inside a length field or a CRC.
 *
 *     +-------------------------------+-----------------------------+
 *     |           reserved            | FPDUPTR: octets from the    |
 *     |                               | FPDU's start to the Marker  |
 *     +-------------------------------+-----------------------------+
 */
struct siw_mpa_marker {
	uint8_t reserved[2];
	uint8_t fpduptr[2];
} __attribute__((packed));
_Static_assert(sizeof(struct siw_mpa_marker) == 4, "RFC 5044 figure 3");
#define SIW_MPA_MARKER_SPACING 512u
#define SIW_MPA_MARKER_OCTETS  4u
#define SIW_MPA_MARKER_APART   (SIW_MPA_MARKER_SPACING - SIW_MPA_MARKER_OCTETS)
#define SIW_MPA_PTR_MASK       0xfffcu /* RFC5044-4.3-06 */

#define SIW_MPA_LEN_OCTETS  2
#define SIW_MPA_CRC_OCTETS  4
#define SIW_MPA_MAX_TRAILER (3 + SIW_MPA_CRC_OCTETS)
#define SIW_MPA_MIN_MULPDU  128
#define SIW_MPA_MAX_MULPDU  64768 /* RFC5044-3-04 */

static inline uint16_t siw_mpa_be16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static inline void siw_mpa_put_be16(uint8_t *p, uint32_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

/* Returns the octets of padding that make length field, ULPDU and pad a multiple of four octets. */
static inline uint32_t siw_mpa_pad(uint32_t ulpdu_len)
{
	return -(SIW_MPA_LEN_OCTETS + ulpdu_len) & 3;
}

static inline uint32_t siw_mpa_fpdu_len(uint32_t ulpdu_len)
{
	return SIW_MPA_LEN_OCTETS + ulpdu_len + siw_mpa_pad(ulpdu_len) + SIW_MPA_CRC_OCTETS;
}

/*
 * Returns the octets from position at of a stream with Markers to the start of the next Marker; 0
 * at a Marker.
 */
static inline uint32_t siw_mpa_octets_to_marker(uint32_t at)
{
	return -at % SIW_MPA_MARKER_SPACING;
}

/*
 * Returns the length in octets of an FPDU of len octets in a stream with Markers, starting at
 * position at: the FPDU's own octets, and the Markers directly before it and inside it
 * (RFC5044-4.3-05). Positions count from the first Marker and wrap.
 */
static inline uint32_t siw_mpa_fpdu_len_with_markers(uint32_t at, uint32_t len)
{
	uint32_t clear = siw_mpa_octets_to_marker(at);
	uint32_t behind = len > clear ? len - clear : 0;

	return len +
	       SIW_MPA_MARKER_OCTETS * ((behind + SIW_MPA_MARKER_APART - 1) / SIW_MPA_MARKER_APART);
}

#endif
