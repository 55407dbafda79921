/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/err.h - a protocol error as the layer, type and code of a Terminate Message (RFC 5040
 * section 4.8), with names for these numbers.
 */
#ifndef SIW_BASE_ERR_H
#define SIW_BASE_ERR_H

#include <stdint.h>

/* cffi: begin */

struct siw_wire_err {
	uint8_t layer; /* enum siw_layer */
	uint8_t type;
	uint8_t code;
};

enum siw_layer {
	SIW_LAYER_RDMAP = 0,
	SIW_LAYER_DDP = 1,
	SIW_LAYER_LLP = 2, /* MPA over TCP */
};

/* Error types and codes of RDMAP (RFC 5040 figure 9). */
enum siw_rdmap_etype {
	SIW_RDMAP_LOCAL_CATASTROPHIC = 0,
	SIW_RDMAP_REMOTE_PROTECTION = 1,
	SIW_RDMAP_REMOTE_OPERATION = 2,
};
enum siw_rdmap_ecode {
	SIW_RDMAP_INVALID_STAG = 0x00,
	SIW_RDMAP_BOUNDS = 0x01,
	SIW_RDMAP_ACCESS = 0x02,
	SIW_RDMAP_STAG_NOT_OF_STREAM = 0x03,
	SIW_RDMAP_TO_WRAP = 0x04,
	SIW_RDMAP_VERSION = 0x05,
	SIW_RDMAP_OPCODE = 0x06,
	SIW_RDMAP_CATASTROPHIC_STREAM = 0x07,
	SIW_RDMAP_CATASTROPHIC_GLOBAL = 0x08,
	SIW_RDMAP_CANNOT_INVALIDATE = 0x09,
	SIW_RDMAP_UNSPECIFIED = 0xff,
};

/* Error types and codes of DDP (RFC 5041 section 7). */
enum siw_ddp_etype {
	SIW_DDP_LOCAL_CATASTROPHIC = 0,
	SIW_DDP_TAGGED_BUFFER = 1,
	SIW_DDP_UNTAGGED_BUFFER = 2,
};
enum siw_ddp_tagged_ecode {
	SIW_DDP_INVALID_STAG = 0x00,
	SIW_DDP_BOUNDS = 0x01,
	SIW_DDP_STAG_NOT_OF_STREAM = 0x02,
	SIW_DDP_TO_WRAP = 0x03,
	SIW_DDP_TAGGED_VERSION = 0x04,
};
enum siw_ddp_untagged_ecode {
	SIW_DDP_INVALID_QN = 0x01,
	SIW_DDP_NO_BUFFER = 0x02,
	SIW_DDP_MSN_RANGE = 0x03,
	SIW_DDP_INVALID_MO = 0x04,
	SIW_DDP_TOO_LONG = 0x05,
	SIW_DDP_UNTAGGED_VERSION = 0x06,
};

/* Error codes of MPA (RFC 5044 section 8, RFC 6581 section 8). The error type is always 0. */
enum siw_mpa_ecode {
	SIW_MPA_CLOSED = 0x01,
	SIW_MPA_CRC = 0x02,
	SIW_MPA_MARKER = 0x03,
	SIW_MPA_BAD_FRAME = 0x04,
	SIW_MPA_CATASTROPHIC = 0x05,
	SIW_MPA_INSUFFICIENT_IRD = 0x06,
	SIW_MPA_NO_RTR_MATCH = 0x07,
};

/* cffi: end */

#endif
