/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/capture_impl.h - internal interface of capture.c (the file) and capture_packet.c (its
 * packets).
 */
#ifndef SIW_BASE_CAPTURE_IMPL_H
#define SIW_BASE_CAPTURE_IMPL_H

#include "base/capture.h"

/* Maximum length of all headers: Ethernet, IPv6, and TCP with the options of a SYN. */
#define SIW_CAPTURE_HEADERS_MAX (14 + 40 + 28)

/* Writes headers and payload of a packet to out; returns their length in octets. */
size_t siw_capture_packet_build(const struct siw_capture_packet *packet, uint8_t *out);

#endif
