/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/mpa_params.h - what one end says in its MPA Request or Reply Frame, as a
 * value that passes through the layers (RFC 5044 section 7.1, RFC 6581 section 4).
 */
#ifndef SIW_BASE_MPA_PARAMS_H
#define SIW_BASE_MPA_PARAMS_H

#include <stdint.h>

#define SIW_MPA_MAX_PDATA 512

/* cffi: begin */

/* What may open a peer-to-peer connection, as a set (RFC 6581 section 4.1, bits B, C, D). */
enum siw_mpa_rtr {
	SIW_MPA_RTR_NONE = 0,
	SIW_MPA_RTR_FPDU = 1,  /* zero-length FPDU */
	SIW_MPA_RTR_WRITE = 2, /* zero-length RDMA Write */
	SIW_MPA_RTR_READ = 4,  /* zero-length RDMA Read */
};

/* What siwarp says of itself in the reserved bits of a frame (spec/mpa-announcement.md), as a set. */
enum siw_mpa_feature {
	SIW_MPA_SIWARP = 1, /* the sender is siwarp: it knows siwarp's own messages */
	SIW_MPA_COUNTS = 2, /* with SIWARP: it sends and takes delivery counts */
};

struct siw_mpa_params {
	uint8_t rev;	    /* 0, 1 or 2 */
	uint8_t markers;    /* M: this end wants markers in what it receives */
	uint8_t crc;	    /* C: this end wants CRCs */
	uint8_t rejected;   /* R, in a Reply */
	uint8_t enhanced;   /* S: ird, ord and the RTR bits below are on the wire (rev 2) */
	uint8_t p2p;	    /* A: peer-to-peer; the initiator sends an RTR */
	uint8_t rtr;	    /* set of enum siw_mpa_rtr: offered in a Request, taken in a Reply */
	uint8_t features;   /* set of enum siw_mpa_feature; 0: nothing is announced */
	uint16_t ird;	    /* inbound RDMA Reads this end allows; 0x3fff: not negotiated */
	uint16_t ord;	    /* outbound RDMA Reads this end wants; 0x3fff: not negotiated */
	uint16_t pdata_len; /* octets of the ULP's private data below */
	uint8_t pdata[512];
};

/* cffi: end */

#endif
