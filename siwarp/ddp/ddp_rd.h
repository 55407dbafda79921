/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_rd.h - part of ddp/ddp.h: streams over reliable datagrams. An endpoint creates a stream
 * for a peer when the stream is first needed and frees the stream when nothing is in progress; the
 * MSNs are kept in rd's peer record. A refused message does not end a stream over reliable
 * datagrams: siw_ddp_rd_recv or siw_ddp_rx_place reports the refusal once, the rest of the message
 * is discarded, and the next message is received as usual.
 *
 * Messages from siw_ddp_tx_get_msg_to_fill() with response set have a PSN space of their own: one
 * response and one other message can be in progress at the same time, and neither waits for the
 * other. In the response space the peer's untagged segments are for queues 2 and 3 only, in the
 * request space for queues 0 and 1; the upper layer checks which space tagged segments belong to.
 *
 * What ddp_rd does NOT do: order, retransmit or acknowledge segments, which is the task of rd/rd.h.
 *
 * Locks: as in ddp.h; the functions of an endpoint are called under the progress lock unless noted.
 */
#ifndef SIW_DDP_RD_H
#define SIW_DDP_RD_H

#include "ddp/ddp.h"

/* cffi: begin */

struct siw_rd;
struct siw_ddp_rd;
struct siw_ddp_rd_peer;

/*
 * Opens a DDP endpoint over an rd endpoint, which the caller owns and closes later. Returns 0 or
 * -ENOMEM.
 */
int siw_ddp_rd_open(struct siw_mem *mem, struct siw_rd *lower, struct siw_ddp_rd **out);
/* Closes the endpoint. The caller must have ended all streams of the endpoint. */
void siw_ddp_rd_close(struct siw_ddp_rd *rd);
/*
 * Schedules another call of the endpoint's handler. Required if the caller stops receiving before
 * siw_ddp_rd_recv returned 0.
 */
void siw_ddp_rd_schedule_receiving_again(struct siw_ddp_rd *rd);
/*
 * Sets whether segments are received, which is the default; if not, a stream is paused when a
 * segment arrives.
 */
void siw_ddp_rd_set_receiving_enabled(struct siw_ddp_rd *rd, bool on);
/*
 * Sets whether a stream is paused when its next segment begins with octets for the upper layer
 * (siw_ddp_rd_set_opcodes_with_ulp_header).
 */
void siw_ddp_rd_set_pause_at_ulp_header(struct siw_ddp_rd *rd, bool on);

/*
 * Finds the record of the peer at addr, or creates the record, and stores it in *out. Returns 0;
 * -ENOBUFS if the maximum number of records exists; or -ENOMEM. Call under the send lock or the
 * progress lock.
 */
int siw_ddp_rd_find_or_create_peer(struct siw_ddp_rd *rd, const struct siw_addr *addr,
				   struct siw_ddp_rd_peer **out);
/* Returns the upper layer's object (user) of the peer's stream; NULL if the peer has no stream. */
void *siw_ddp_rd_upper_layer_object(const struct siw_ddp_rd_peer *peer);
/*
 * Creates the peer's stream. Only one thread at a time may create streams; the stream needs no lock
 * before siw_ddp_rd_publish_stream.
 */
int siw_ddp_rd_stream_create(struct siw_ddp_rd *rd, struct siw_ddp_rd_peer *peer, void *user,
			     struct siw_ddp_stream **out);
/*
 * Publishes a stream that the upper layer has set up, so that siw_ddp_rd_upper_layer_object and
 * siw_ddp_rd_recv return the stream's user.
 */
void siw_ddp_rd_publish_stream(struct siw_ddp_stream *stream);
enum siw_ddp_rd_ending {
	SIW_DDP_RD_KEEP, /* the stream is idle: the peer's record keeps its MSNs */
	SIW_DDP_RD_LOST_PEER,
	/*
	 * this end ends the incarnation and sends the peer a BYE; SIW_DDP_RD_SEQUENCE: because an
	 * MSN was wrong
	 */
	SIW_DDP_RD_RESET,
	SIW_DDP_RD_SEQUENCE,
};
/*
 * Frees the stream; call under both locks. The receive of an unfinished message is returned to the
 * head of its queue.
 */
void siw_ddp_rd_end_stream(struct siw_ddp_stream *stream, enum siw_ddp_rd_ending how);
/*
 * Set and return the note, a number for use by the upper layer that is kept with the MSNs; 0
 * initially and in each new incarnation of the peer.
 */
void siw_ddp_rd_set_upper_layer_value(struct siw_ddp_stream *stream, uint32_t note);
uint32_t siw_ddp_rd_upper_layer_value(const struct siw_ddp_stream *stream);
/* Whether the stream has nothing in progress in either direction. Call under both locks. */
bool siw_ddp_rd_stream_is_idle(struct siw_ddp_stream *stream);
/* Whether a message of the stream has arrived only in part. Call under both locks. */
bool siw_ddp_rd_has_partial_message(const struct siw_ddp_stream *stream);
const struct siw_addr *siw_ddp_rd_peer_addr(const struct siw_ddp_stream *stream);
/*
 * The peer's IRD (the number of Read Requests and atomics that the peer accepts at a time); 0: not
 * known yet.
 */
uint8_t siw_ddp_rd_peer_ird(const struct siw_ddp_stream *stream);
/*
 * Sets whether a datagram of the peer is expected, so that a silent peer is declared lost. Call
 * under the send lock or the progress lock.
 */
void siw_ddp_rd_set_datagram_expected(struct siw_ddp_stream *stream, bool expected);

/*
 * siw_ddp_rd_continue_response continues to send the response in progress, and
 * siw_ddp_rd_abandon_response drops the rest of it. They return what siw_ddp_tx_continue_msg and
 * siw_ddp_tx_abandon return for requests.
 */
int siw_ddp_rd_continue_response(struct siw_ddp_stream *stream, struct siw_wire_err *err);
uint64_t siw_ddp_rd_abandon_response(struct siw_ddp_stream *stream);
/* Whether rd has room to send a segment of one of the selected kinds (requests, responses). */
bool siw_ddp_rd_has_tx_room(const struct siw_ddp_stream *stream, bool requests, bool responses);
/* Whether the segment at the head of the stream arrived in the response space. */
bool siw_ddp_rd_is_segment_in_response_space(const struct siw_ddp_stream *stream);

enum siw_ddp_rd_event_kind {
	/*
	 * the next segment of a stream, *seg, has passed all checks that precede placement
	 * (version, QN, MSN, MO, a buffer, its length): the caller must place or refuse the segment
	 * before the next siw_ddp_rd_recv
	 */
	SIW_DDP_RD_SEGMENT = 1,
	/*
	 * segment *seg was refused, with an -errno in status and the error in siw_ddp_last_rx_error
	 */
	SIW_DDP_RD_REFUSED,
	/*
	 * the stream was paused, because no receive is posted (status 0), because receiving is
	 * switched off (status 0), or because its next segment begins with octets for the upper
	 * layer (status -EBUSY)
	 */
	SIW_DDP_RD_PAUSED,
	/*
	 * a segment of a peer that has no stream has arrived: the caller creates a stream, after
	 * which the segment is returned again, or rejects the peer
	 */
	SIW_DDP_RD_NO_STREAM,
	/*
	 * the peer accepted segments (siw_ddp_tx_accepted_position), or there is room to send again
	 */
	SIW_DDP_RD_ACKED,
	/*
	 * siw_ddp_rd_end_stream must be called. status: -ECONNRESET, the peer began a new
	 * incarnation; -ESTALE, the peer is another instance; -ETIMEDOUT, the peer is silent or
	 * closed; -ENOBUFS, the peer had no receive for too long
	 */
	SIW_DDP_RD_LOST,
};
struct siw_ddp_rd_event {
	int kind; /* enum siw_ddp_rd_event_kind */
	int status;
	bool acked; /* the event is also an SIW_DDP_RD_ACKED, to be handled last */
	struct siw_ddp_rd_peer *peer;
	void *user; /* user of the peer's stream; NULL in event SIW_DDP_RD_NO_STREAM */
	const struct siw_ddp_seg *seg;
};
/* Returns 1 and the next event in *event, or 0 if there is none. */
int siw_ddp_rd_recv(struct siw_ddp_rd *rd, struct siw_ddp_rd_event *event);
/*
 * The complete payload of the segment that siw_ddp_rd_recv returned; valid until the segment is
 * placed or refused.
 */
const uint8_t *siw_ddp_rd_segment_payload(const struct siw_ddp_stream *stream);
/*
 * Sets which tagged segments begin with SIW_DDP_ULP_TAGGED octets for the upper layer: the segments
 * whose bit 1 << (ulp_octet & 15) is in set. The octets for the upper layer are not placed; the TO
 * is the tagged offset of the first octet after them. The upper layer must refuse a segment that is
 * shorter.
 */
void siw_ddp_rd_set_opcodes_with_ulp_header(struct siw_ddp_stream *stream, uint16_t set);
/*
 * Whether a paused stream could continue with the receives that are free now. A stream that was
 * paused because the peer had used up its share of the receives is retried only after receives have
 * become free or partially received messages have ended, so that repeated calls are cheap.
 */
bool siw_ddp_rd_can_resume_paused_stream(struct siw_ddp_rd *rd,
					 const struct siw_mem_buffer_queue *recvs);
/* Resumes all paused streams of the endpoint. */
void siw_ddp_rd_resume_paused_streams(struct siw_ddp_rd *rd);
/*
 * Releases the record of a peer that siw_ddp_rd_find_or_create_peer returned, if no stream is
 * created for it.
 */
void siw_ddp_rd_release_unused_peer(struct siw_ddp_rd_peer *peer);
/* Discards the segment of a peer that has no stream, and sends the peer a BYE. */
void siw_ddp_rd_reject_peer(struct siw_ddp_rd_peer *peer);
/*
 * Returns 1 and the user_data of the buffer that the last refused message used up, or 0 if it used
 * none.
 */
int siw_ddp_rd_buffer_of_refused_message(struct siw_ddp_stream *stream, uint64_t *user_data);

/* cffi: end */

#endif
