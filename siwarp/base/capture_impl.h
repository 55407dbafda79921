/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/capture_impl.h - between capture.c (the file) and capture_packet.c (the packets in it). */
#ifndef SIW_BASE_CAPTURE_IMPL_H
#define SIW_BASE_CAPTURE_IMPL_H

#include "base/capture.h"

/* Ethernet, IPv6, TCP with the options of a SYN. */
#define SIW_CAPTURE_HEADERS_MAX (14 + 40 + 28)

/* Writes headers and payload to out: their octets. */
size_t siw_capture_packet_build(const struct siw_capture_packet *packet, uint8_t *out);

#endif
