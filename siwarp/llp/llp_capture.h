/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_capture.h - writes what sockets send and receive to a capture (base/capture.h). Called
 * while one is on, between siw_capture_lock(), which returns the time `when`, and
 * siw_capture_unlock(). All keep errno.
 */
#ifndef SIW_LLP_CAPTURE_H
#define SIW_LLP_CAPTURE_H

#include "base/capture.h"
#include "llp/llp_sock.h"

/* length octets of one datagram, behind the first skip ones; missing ones were cut off. */
void siw_llp_capture_datagram(struct siw_llp_sock *sock, uint64_t when, bool sent,
			      const struct siw_addr *peer, const struct iovec *iov, size_t skip,
			      size_t length, size_t missing);
/* The connection is made: its handshake. */
void siw_llp_capture_connected(struct siw_llp_sock *sock, uint64_t when, bool initiator);
void siw_llp_capture_octets(struct siw_llp_sock *sock, uint64_t when, bool sent,
			    const struct iovec *iov, size_t length);
/* The end of one direction, once; reset ends both. */
void siw_llp_capture_end(struct siw_llp_sock *sock, uint64_t when, bool sent, bool reset);

/* The same for callers without the lock: they do nothing if no capture is on. */
void siw_llp_capture_connected_now(struct siw_llp_sock *sock, bool initiator);
void siw_llp_capture_end_now(struct siw_llp_sock *sock, bool sent, bool reset);
/* The socket is about to be closed. */
void siw_llp_capture_close(struct siw_llp_sock *sock);

#endif
