/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_hello_wire.h - what follows RD's header in the datagrams of a handshake:
 *
 *   HELLO      head, options, zeros: SIW_RD_HELLO_LEAST octets at least
 *   CHALLENGE  head, options, cookie: SIW_RD_HELLO_LEAST octets at most
 *   ECHO       the HELLO's head and options, the cookie
 *   VERSIONS   a head whose options are empty
 *
 *   0          1          2                     4         5         6
 *  +----------+----------+---------------------+---------+---------+-------
 *  | versions |   zero   |  octets of options  |  type   | length  | value ...
 *  +----------+----------+---------------------+---------+---------+-------
 *
 * versions: bit i is version i of the LLP header. HELLO and VERSIONS have this layout, and RD's
 * epochs their places, in every version. All four always have a CRC.
 *
 * What it does NOT do: check what it reads.
 */
#ifndef SIW_RD_HELLO_WIRE_H
#define SIW_RD_HELLO_WIRE_H

#include "rd/rd_wire.h"

struct siw_rd_head {
	uint8_t versions;
	uint8_t zero;
	uint16_t octets; /* of options */
} __attribute__((packed));
#define SIW_RD_HEAD_LEN 4
_Static_assert(sizeof(struct siw_rd_head) == SIW_RD_HEAD_LEN, "head");

/* Options whose value is a number. */
struct siw_rd_option {
	uint8_t type;
	uint8_t length; /* of value */
	uint32_t value;
} __attribute__((packed));
_Static_assert(sizeof(struct siw_rd_option) == 6, "option");

struct siw_rd_option_instance {
	uint8_t type;
	uint8_t length; /* of instance */
	uint64_t instance;
} __attribute__((packed));
_Static_assert(sizeof(struct siw_rd_option_instance) == 10, "option of an instance");

enum siw_rd_option_type {
	SIW_RD_LONGEST = 1,  /* octets of the longest segment that is accepted */
	SIW_RD_WINDOW = 2,   /* datagrams beyond what is acknowledged that are accepted; not 0 */
	SIW_RD_FEATURES = 3, /* a bit for each; none is defined yet */
	SIW_RD_INSTANCE = 4, /* eight octets that each endpoint draws for itself; not 0 */
};

#define SIW_RD_VERSIONS	   (1u << SIW_DGRAM_VERSION) /* those that siwarp has */
#define SIW_RD_HELLO_LEAST 64u
/* Every end accepts such segments; what counts, where no option tells more. */
#define SIW_RD_LONGEST_LEAST (SIW_RD_LEAST_DATAGRAM - SIW_RD_OVERHEAD)
#define SIW_RD_WINDOW_UNSAID 64u

#endif
