/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpa/mpa.h - marker PDU aligned framing over TCP (RFC 5044, RFC 6581): the start-up exchange, then
 * FPDUs with CRC32C.
 *
 * What this layer does NOT do: interpret ULPDUs. A ULPDU is a sequence of octets, and the upper
 * layer determines where they are placed.
 *
 * Locks: as in llp.h. The tx functions of a stream are called under the QP's send lock and all
 * others under the progress lock. The sending and the receiving side share only atomic data.
 */
#ifndef SIW_MPA_H
#define SIW_MPA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <siwarp/types.h>

#include "base/err.h"
#include "mpa/mpa_params.h"

struct siw_llp_poller;
struct siw_llp_waitset;
struct siw_io_handler;
struct siw_mpa_stream;

/* cffi: begin */

struct siw_llp_poller;
struct siw_llp_sock;
struct siw_mpa_stream;

/* ---- start-up -------------------------------------------------------------------------------- */

/*
 * Accepts a TCP connection from llp's listener as a stream in start-up, responder mode. Returns 0;
 * -EAGAIN if no connection was accepted; or another -errno.
 */
int siw_mpa_accept_connection(struct siw_llp_sock *listener, struct siw_io_handler *handler,
			      struct siw_mpa_stream **out);
/*
 * Opens a stream in start-up, initiator mode; params: this end's Request. Returns 0; -EINVAL if
 * params are illegal; -errno.
 */
int siw_mpa_connect(struct siw_llp_poller *poller, const struct siw_addr *dest,
		    const struct siw_addr *source, const struct siw_mpa_params *params,
		    struct siw_io_handler *handler, struct siw_mpa_stream **out);
/*
 * Opens a stream that is its own peer and therefore receives the FPDUs that it sends. No frames are
 * exchanged; siw_mpa_startup returns SIW_MPA_REPLY with the params passed here.
 */
int siw_mpa_connect_to_itself(struct siw_llp_poller *poller, const struct siw_addr *local,
			      const struct siw_mpa_params *params, struct siw_io_handler *handler,
			      struct siw_mpa_stream **out);

enum siw_mpa_startup {
	/* start-up is not complete: call siw_mpa_startup() again when the handler is called */
	SIW_MPA_STARTING = 0,
	SIW_MPA_REQUEST =
		1, /* responder: *peer is the peer's Request; call siw_mpa_send_startup_reply */
	SIW_MPA_REPLY = 2,    /* initiator: accepted; *peer is the Reply; FPDUs may be sent */
	SIW_MPA_REJECTED = 3, /* initiator: Reply with R=1, whose private data is in *peer */
};

/*
 * Continues start-up. Returns one of enum siw_mpa_startup, or -errno: -ECONNREFUSED and similar
 * errors from TCP; -EPROTO, not a valid frame (siw_mpa_get_error); -ECONNRESET, the peer closed.
 * Octets after the frame belong to the first FPDU. After start-up it returns STARTING, or the
 * -errno that ended start-up.
 *
 * This layer checks the format; upper layers check IRD and ORD. Initiator: the Reply has the
 * Request's revision, format and connection model, and peer->rtr is the one RTR to send, among
 * those that were offered and that the peer supports. If there is none: -EPROTO with NO_RTR_MATCH;
 * FPDUs can still be sent, but not received, for the Terminate that RFC 6581 section 9.2 requires.
 * Responder: this layer itself rejects a Request of revision 0 (a Reply with R=1) and returns
 * -EPROTO.
 */
int siw_mpa_startup(struct siw_mpa_stream *stream, struct siw_mpa_params *peer);
/*
 * Responder: sends the Reply, which is a rejection if params->rejected is set. Returns 0; -EINVAL
 * if params are illegal; -errno. Of params it uses crc, markers, rejected, features if the Request
 * announces any, the private data and, for an enhanced Request, ird, ord and, for a peer-to-peer
 * Request, rtr (at least one). Everything else is copied from the Request: revision, format,
 * connection model, and 0x3fff in ird or ord if the Request has it in ord or ird. CRCs are then on
 * if either end requested them, and FPDUs to an end have Markers if that end requested them.
 */
int siw_mpa_send_startup_reply(struct siw_mpa_stream *stream, const struct siw_mpa_params *params);

/* ---- sending FPDUs ---------------------------------------------------------------------------
 *
 * siw_mpa_tx_fpdu frames into a batch; siw_mpa_tx_flush passes the batch to TCP in as few calls as
 * possible. Small payloads are copied into the batch; large ones are referenced, and must stay
 * valid until siw_mpa_octets_accepted_by_tcp has reached the FPDU's end (with Markers everything is
 * copied). A batch holds about 256 KiB. A responder flushes nothing until the peer's first FPDU has
 * arrived (RFC 5044 section 7.1.2).
 */

/*
 * The maximum ULPDU length now, in octets: RFC 5044 section 4.5 with the current EMSS, limited by
 * setting mulpdu.
 */
size_t siw_mpa_mulpdu(struct siw_mpa_stream *stream);
/*
 * Frames one FPDU with its CRC: head (the DDP header, at most 64 octets), then n pieces of payload.
 *   > 0        framed: octets of the stream up to the FPDU's end
 *   0          the batch is full: flush first
 *   -ENOTCONN  start-up is not complete
 *   -EMSGSIZE  a ULPDU of more than 64768 octets; -ENOMEM
 *   -EFAULT    the payload is not mapped: nothing was framed, and the stream is still usable
 *   -errno     the error that broke the connection
 */
int64_t siw_mpa_tx_fpdu(struct siw_mpa_stream *stream, const void *head, size_t head_len,
			const struct iovec *payload, int n);
/*
 * Returns 1 if TCP accepted everything framed; 0 if not yet (EAGAIN, or a responder waits for the
 * initiator's first FPDU); -errno if the stream is dead; -EFAULT if it is dead because referenced
 * payload is no longer mapped. *accepted is always set: octets of the stream that TCP accepted. TCP
 * has accepted all of an FPDU when *accepted has reached the stream position of the FPDU's end.
 */
int siw_mpa_tx_flush(struct siw_mpa_stream *stream, uint64_t *accepted);
/* Returns whether framed FPDUs wait for space in TCP's buffer, or for the peer's first FPDU. */
bool siw_mpa_is_tx_blocked(const struct siw_mpa_stream *stream);
/* Returns the value of *accepted of the last siw_mpa_tx_flush. */
uint64_t siw_mpa_octets_accepted_by_tcp(const struct siw_mpa_stream *stream);

/* ---- receiving FPDUs ------------------------------------------------------------------------- */

/*
 * Returns the FPDU at the head of the stream, until siw_mpa_rx_payload consumes it.
 *   1            *head: its first *head_len ULPDU octets, at least min(ulpdu_len, 64); *ulpdu_len:
 *                octets of the ULPDU, 0 for an empty FPDU; *whole: the FPDU has arrived
 *                completely and its CRC is checked (always up to 8 KiB, with setting crc_first, and
 *                with Markers, which are checked and removed)
 *   0            no FPDU has arrived yet
 *   -EPROTO, -EBADMSG  the received octets are invalid: siw_mpa_get_error
 *   -ENOTCONN    the stream ended between FPDUs; -ECONNRESET: within one, or by a reset
 *   -EBUSY       siw_mpa_rx_payload returned 0 and must be called again first
 * An error is returned again by each further call.
 */
int siw_mpa_rx_fpdu(struct siw_mpa_stream *stream, const uint8_t **head, size_t *head_len,
		    size_t *ulpdu_len, bool *whole);
/*
 * Returns whether the FPDU at the head of the stream has not been returned by siw_mpa_rx_fpdu yet
 * and has already been read completely, so that no system call is needed to receive it. *ulpdu: its
 * ULPDU of *ulpdu_len octets, valid until the next call; nothing of it has been checked. Always
 * false with Markers.
 */
bool siw_mpa_rx_peek_already_read_fpdu(const struct siw_mpa_stream *stream, const uint8_t **ulpdu,
				       size_t *ulpdu_len);
/*
 * Consumes the FPDU that siw_mpa_rx_fpdu returned: writes its ULPDU octets from skip on to dest,
 * which must hold exactly ulpdu_len - skip octets; dest NULL, n 0: discards them. With setting
 * crc_first dest is written after the CRC was checked.
 *   1         the ULPDU is placed completely, and the CRC is right (or off)
 *   0         octets are missing: call again with the same arguments when the handler is called
 *   -EBADMSG  the CRC is wrong
 *   -EFAULT   dest cannot be written
 *   -EINVAL   dest has another length, or skip is not within the head
 *   -errno    as siw_mpa_rx_fpdu
 */
int siw_mpa_rx_payload(struct siw_mpa_stream *stream, size_t skip, const struct iovec *dest, int n);

/* ---- the complete stream --------------------------------------------------------------------- */

/* Returns the error that caused the last -EPROTO or -EBADMSG of the stream. */
struct siw_wire_err siw_mpa_get_error(const struct siw_mpa_stream *stream);
int siw_mpa_addrs(struct siw_mpa_stream *stream, struct siw_addr *local, struct siw_addr *peer);
/* Returns the stream's socket: to set its handler, to pause and resume reading. */
struct siw_llp_sock *siw_mpa_sock(const struct siw_mpa_stream *stream);
/*
 * Returns whether octets were read but not consumed: the next siw_mpa_rx_fpdu may need no system
 * call.
 */
bool siw_mpa_has_unconsumed_octets(const struct siw_mpa_stream *stream);
bool siw_mpa_is_crc_on(const struct siw_mpa_stream *stream);
/* Shuts down the sending side of the stream; receiving continues. Returns 0 or -errno. */
int siw_mpa_shutdown(struct siw_mpa_stream *stream);
/*
 * Reads and discards the octets that the peer still sends. Returns 1 if the stream ended, or the
 * connection failed; 0 if not yet; -EMSGSIZE if more than 256 MiB arrived.
 */
int siw_mpa_read_and_discard(struct siw_mpa_stream *stream);
/* Closes and frees the stream. abort: the connection is reset. */
void siw_mpa_close(struct siw_mpa_stream *stream, bool abort);

/* cffi: end */

#endif
