/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_capture.h - writes the sent and received packets of sockets to a capture file
 * (base/capture.h). Called while a capture is running, between siw_capture_lock(), which returns
 * the time `when`, and siw_capture_unlock(). All functions preserve errno.
 */
#ifndef SIW_LLP_CAPTURE_H
#define SIW_LLP_CAPTURE_H

#include "base/capture.h"
#include "llp/llp_sock.h"

/*
 * Writes a datagram to the capture file. The datagram has length octets, which begin skip octets
 * after the start of iov; missing: number of further octets that were truncated.
 */
void siw_llp_capture_datagram(struct siw_llp_sock *sock, uint64_t when, bool sent,
			      const struct siw_addr *peer, const struct iovec *iov, size_t skip,
			      size_t length, size_t missing);
/* Writes the TCP handshake of a connection that has been established. */
void siw_llp_capture_tcp_handshake(struct siw_llp_sock *sock, uint64_t when, bool initiator);
void siw_llp_capture_stream_octets(struct siw_llp_sock *sock, uint64_t when, bool sent,
				   const struct iovec *iov, size_t length);
/* Writes the end of one direction of a stream, once. reset: a reset ends both directions. */
void siw_llp_capture_stream_end(struct siw_llp_sock *sock, uint64_t when, bool sent, bool reset);

/*
 * Variants of siw_llp_capture_tcp_handshake() and siw_llp_capture_stream_end() for callers without
 * the capture lock. They do nothing if no capture is running.
 */
void siw_llp_capture_tcp_handshake_locking(struct siw_llp_sock *sock, bool initiator);
void siw_llp_capture_stream_end_locking(struct siw_llp_sock *sock, bool sent, bool reset);
/* Writes the end of a connection to the capture. Called before the socket is closed. */
void siw_llp_capture_socket_close(struct siw_llp_sock *sock);

#endif
