/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_hello_wire.h - the bodies of handshake datagrams, which follow RD's header:
 *
 *   HELLO      head, options, zeros: SIW_RD_HELLO_LEAST octets or more
 *   CHALLENGE  head, options, cookie: SIW_RD_HELLO_LEAST octets or fewer
 *   ECHO       the HELLO's head and options, the cookie
 *   VERSIONS   a head whose options are empty
 *
 *   0          1          2                     4         5         6
 *  +----------+----------+---------------------+---------+---------+-------
 *  | versions |   zero   |  octets of options  |  type   | length  | value ...
 *  +----------+----------+---------------------+---------+---------+-------
 *
 * versions: bit i stands for version i of the LLP header. HELLO and VERSIONS have this layout in
 * every version, and RD's epochs are at the same offsets in every version. All four types always
 * have a CRC.
 *
 * What it does NOT do: validate what it parses.
 */
#ifndef SIW_RD_HELLO_WIRE_H
#define SIW_RD_HELLO_WIRE_H

#include "rd/rd_wire.h"

struct siw_rd_head {
	uint8_t versions;
	uint8_t zero;
	uint16_t octets; /* octets of all options */
} __attribute__((packed));
#define SIW_RD_HEAD_LEN 4
_Static_assert(sizeof(struct siw_rd_head) == SIW_RD_HEAD_LEN, "head");

/* Options whose value is a 32-bit number. */
struct siw_rd_option {
	uint8_t type;
	uint8_t length; /* length of the member value in octets */
	uint32_t value;
} __attribute__((packed));
_Static_assert(sizeof(struct siw_rd_option) == 6, "option");

struct siw_rd_option_instance {
	uint8_t type;
	uint8_t length; /* length of the member instance in octets */
	uint64_t instance;
} __attribute__((packed));
_Static_assert(sizeof(struct siw_rd_option_instance) == 10, "instance option");

enum siw_rd_option_type {
	SIW_RD_LONGEST = 1, /* octets of the longest segment that the sender accepts */
	/* datagrams beyond the acknowledged PSN that the sender accepts; not 0 */
	SIW_RD_WINDOW = 2,
	SIW_RD_FEATURES = 3, /* one bit per feature; none is defined yet */
	SIW_RD_INSTANCE = 4, /* eight octets that each endpoint chooses at random; not 0 */
};

#define SIW_RD_VERSIONS	   (1u << SIW_DGRAM_VERSION) /* the versions that siwarp supports */
#define SIW_RD_HELLO_LEAST 64u
/*
 * Every endpoint accepts segments of SIW_RD_MIN_MAX_SEGMENT octets. This value and the next one
 * apply if the peer's options announce no others.
 */
#define SIW_RD_MIN_MAX_SEGMENT (SIW_RD_MIN_DATAGRAM - SIW_RD_OVERHEAD)
#define SIW_RD_DEFAULT_WINDOW  64u

#endif
