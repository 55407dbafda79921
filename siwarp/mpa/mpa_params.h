/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpa/mpa_params.h - the contents of an MPA Request or Reply Frame as a value that is passed
 * between layers (RFC 5044 section 7.1, RFC 6581 section 4).
 */
#ifndef SIW_MPA_PARAMS_H
#define SIW_MPA_PARAMS_H

#include <stdint.h>

#define SIW_MPA_MAX_PDATA 512

/* cffi: begin */

/*
 * Ready-to-receive (RTR) messages of peer-to-peer connections, as a set (RFC 6581 section 4.1, bits
 * B, C, D).
 */
enum siw_mpa_rtr {
	SIW_MPA_RTR_NONE = 0,
	SIW_MPA_RTR_FPDU = 1,  /* zero-length FPDU */
	SIW_MPA_RTR_WRITE = 2, /* the RTR is a zero-length RDMA Write */
	SIW_MPA_RTR_READ = 4,  /* the RTR is a zero-length RDMA Read */
};

/*
 * Features that siwarp announces in reserved bits of a frame (spec/mpa-announcement.md), as a set.
 */
enum siw_mpa_feature {
	SIW_MPA_SIWARP = 1, /* the sender is siwarp and supports siwarp's private messages */
	SIW_MPA_COUNTS = 2, /* with SIWARP: the sender supports delivery counts */
};

struct siw_mpa_params {
	uint8_t rev;	    /* MPA revision: 0, 1 or 2 */
	uint8_t markers;    /* M: the sender requests Markers in the FPDUs that it receives */
	uint8_t crc;	    /* C: the sender requests CRCs */
	uint8_t rejected;   /* R, in a Reply: the connection is rejected */
	uint8_t enhanced;   /* S: ird, ord and the RTR bits below are in the frame (revision 2) */
	uint8_t p2p;	    /* A: peer-to-peer; the initiator sends an RTR message */
	uint8_t rtr;	    /* set of enum siw_mpa_rtr: offered in a Request, accepted in a Reply */
	uint8_t features;   /* set of enum siw_mpa_feature; 0: none announced */
	uint16_t ird;	    /* inbound RDMA Reads that the sender allows; 0x3fff: not negotiated */
	uint16_t ord;	    /* outbound RDMA Reads that the sender wants; 0x3fff: not negotiated */
	uint16_t pdata_len; /* octets of private data in pdata */
	uint8_t pdata[512];
};

/* cffi: end */

#endif
