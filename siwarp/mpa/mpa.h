/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpa/mpa.h - marker PDU aligned framing over TCP (RFC 5044, RFC 6581): the start-up
 * exchange, then FPDUs with CRC32C.
 *
 * What this layer does NOT do: know DDP. To it a ULPDU is octets; where they go is said
 * from above.
 *
 * Locks: as llp. Of one stream, the tx functions are called under one lock (the QP's send
 * lock) and all others under the progress lock; the two sides share no data but what is
 * atomic.
 */
#ifndef SIW_MPA_H
#define SIW_MPA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <siwarp/types.h>

#include "base/err.h"
#include "base/mpa_params.h"

struct siw_llp_port;
struct siw_llp_waitset;
struct siw_io_handler;
struct siw_mpa_stream;

/* cffi: begin */

struct siw_llp_port;
struct siw_llp_sock;
struct siw_mpa_stream;

/* ---- start-up --------------------------------------------------------------------- */

/* A TCP connection that waits at a listener of llp's, as a stream in start-up, responder mode: 0, -EAGAIN, -errno. */
int siw_mpa_accept(struct siw_llp_sock *listener, struct siw_io_handler *handler,
		   struct siw_mpa_stream **out);
/*
 * A stream in start-up, initiator mode; params are this end's Request. -EINVAL: params
 * illegal.
 */
int siw_mpa_connect(struct siw_llp_port *port, const struct siw_addr *dest,
		    const struct siw_addr *source, const struct siw_mpa_params *params,
		    struct siw_io_handler *handler, struct siw_mpa_stream **out);

enum siw_mpa_startup {
	SIW_MPA_STARTING = 0, /* nothing new: call again when the handler comes up */
	SIW_MPA_REQUEST = 1,  /* responder: the peer's Request is in *peer; answer it */
	SIW_MPA_REPLY = 2,    /* initiator: accepted; *peer is the Reply; FPDUs may flow */
	SIW_MPA_REJECTED = 3, /* initiator: Reply with R=1, private data in *peer */
};

/*
 * Moves start-up on: one of enum siw_mpa_startup, or -errno: -ECONNREFUSED and the like
 * from TCP, -EPROTO a frame that is none (siw_mpa_error tells), -ECONNRESET the peer
 * closed. Octets behind the frame stay for the first FPDU. Once start-up is over it gives
 * STARTING, or again the -errno that ended it.
 *
 * What is checked here is the form. Initiator: the Reply is of the Request's revision and
 * format, its connection model is ours, and peer->rtr is the one RTR to send, among those
 * offered and known to the peer; IRD and ORD are judged above. Without such an RTR:
 * -EPROTO, siw_mpa_error code NO_RTR_MATCH, and FPDUs can still be sent (not received):
 * the Terminate that RFC 6581 section 9.2 asks for. Responder: a Request of revision 0
 * is rejected by this layer itself (a Reply with R=1), then -EPROTO.
 */
int siw_mpa_startup(struct siw_mpa_stream *stream, struct siw_mpa_params *peer);
/*
 * Responder: sends the Reply (rejected=1: rejects). 0, or -errno. What both ends then go
 * by: CRC on if either wanted it; Markers in what goes to an end that wanted them.
 * -EINVAL: illegal params. Looked at: crc, markers, rejected, private data and, if the
 * Request is enhanced, ird, ord and (if it is peer-to-peer; at least one) rtr. All else follows from the Request: revision, format, connection model,
 * and 0x3fff in ird or ord where the Request has it in ord or ird.
 */
int siw_mpa_reply(struct siw_mpa_stream *stream, const struct siw_mpa_params *params);

/* ---- FPDUs out ------------------------------------------------------------------------------------
 *
 * siw_mpa_tx_fpdu frames into a batch; siw_mpa_tx_flush gives the batch to TCP in as few calls as
 * it can. Small payloads are copied into the batch; large ones are referred to, and must stay until
 * siw_mpa_tx_accepted has passed the FPDU (with Markers all is copied). A batch holds about 256 KiB.
 * Responder: nothing is flushed before the peer's first FPDU came (RFC 5044 section 7.1.2).
 */

/*
 * Largest ULPDU now: RFC 5044 section 4.5 from the live EMSS, at most setting mulpdu.
 * Octets.
 */
size_t siw_mpa_mulpdu(struct siw_mpa_stream *stream);
/*
 * Frames one FPDU: head (the DDP header, head_len <= 64 octets) and n pieces of payload
 * behind it. 1; 0 if the batch is full (flush first). The CRC is computed here. -ENOTCONN
 * before start-up is over, -EMSGSIZE a ULPDU over 64768 octets, -ENOMEM, -EFAULT the payload
 * is not there (nothing was framed, the stream goes on), or what killed the stream.
 */
int siw_mpa_tx_fpdu(struct siw_mpa_stream *stream, const void *head, size_t head_len,
		    const struct iovec *payload, int n);
/*
 * 1 everything framed was taken by TCP; 0 not yet (EAGAIN, or the responder waits);
 * -errno dead; -EFAULT so: what was referred to is not there any more.
 */
int siw_mpa_tx_flush(struct siw_mpa_stream *stream);
/* What is framed waits for TCP's buffer, or for the peer's first FPDU; not for another turn. */
bool siw_mpa_tx_blocked(const struct siw_mpa_stream *stream);
/* FPDUs framed so far, and FPDUs that TCP took whole. */
uint64_t siw_mpa_tx_framed(const struct siw_mpa_stream *stream);
uint64_t siw_mpa_tx_accepted(const struct siw_mpa_stream *stream);

/* ---- FPDUs in --------------------------------------------------------------------- */

/*
 * Looks at the FPDU at the head of the stream. 1: *head points at its first *head_len
 * ULPDU octets, at least min(ulpdu_len, 64) of them, *ulpdu_len says how long the ULPDU
 * is, and *whole whether all of it is here and its CRC was checked already (with Markers
 * always; they are judged, too, and out of the way). 0: nothing
 * yet. -errno: -EPROTO or -EBADMSG (siw_mpa_error tells: CRC, ...), -ECONNRESET, 0-length
 * end of stream: -ENOTCONN. Calling it again before siw_mpa_rx_payload gives the same
 * FPDU; -EBUSY after a siw_mpa_rx_payload that returned 0. A zero-length FPDU is given as
 * ulpdu_len 0, whole. *whole is true of every FPDU up to 8 KiB, and of all with setting
 * strict. An end of stream inside an FPDU is -ECONNRESET. Errors are given again.
 */
int siw_mpa_rx_fpdu(struct siw_mpa_stream *stream, const uint8_t **head, size_t *head_len,
		    size_t *ulpdu_len, bool *whole);
/*
 * Consumes that FPDU: its ULPDU octets from skip on go to dest (which holds exactly
 * ulpdu_len - skip octets; n = 0 with a NULL dest throws them away). 1: all placed, CRC
 * good (or off). 0: the rest has not come yet; call again with the same arguments when
 * the handler comes up (what was placed stays placed). -EBADMSG: CRC wrong; -errno as
 * siw_mpa_rx_fpdu; -EFAULT: dest cannot be written (any more). -EINVAL: dest is not exactly as long, or skip
 * not in the head. With setting strict, dest is not touched before the CRC was checked.
 */
int siw_mpa_rx_payload(struct siw_mpa_stream *stream, size_t skip, const struct iovec *dest, int n);

/* ---- the stream as a whole -------------------------------------------------------- */

/* The error behind the last -EPROTO or -EBADMSG. */
struct siw_wire_err siw_mpa_error(const struct siw_mpa_stream *stream);
int siw_mpa_addrs(struct siw_mpa_stream *stream, struct siw_addr *local, struct siw_addr *peer);
/* Its socket, for what is llp's business: whose handler it has, whether it is read. */
struct siw_llp_sock *siw_mpa_sock(const struct siw_mpa_stream *stream);
/* Octets came that were not looked at yet: the next siw_mpa_rx_fpdu may need no system call. */
bool siw_mpa_staged(const struct siw_mpa_stream *stream);
bool siw_mpa_crc_on(const struct siw_mpa_stream *stream);
/* No more will be sent; receiving goes on. */
int siw_mpa_shutdown(struct siw_mpa_stream *stream);
/*
 * Reads and throws away what the peer still sends: 1 its end of stream came (or the
 * stream is dead), 0 not yet; -EMSGSIZE more came than setting linger_octets allows.
 */
int siw_mpa_drain(struct siw_mpa_stream *stream);
/* abort: with a reset. */
void siw_mpa_close(struct siw_mpa_stream *stream, bool abort);

/* cffi: end */

#endif
