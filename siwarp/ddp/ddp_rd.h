/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_rd.h - part of ddp/ddp.h: streams on reliable datagrams. An endpoint makes a stream for a
 * peer when it is first needed and frees it when nothing is under way; the MSNs stay in rd's record
 * of the peer. A refused message does not end such a stream: siw_ddp_rx_head or siw_ddp_rx_place
 * reports the refusal once, the rest of the message is thrown away, and the next message is
 * received as usual.
 *
 * Messages with siw_ddp_msg.response have a PSN space of their own: one of them can be in progress
 * beside one of the others, and neither waits for the other. In that space the peer's untagged
 * segments are of queues 2 and 3 alone, in the other of queues 0 and 1; which tagged ones belong
 * where, the layer above checks.
 *
 * What this does NOT do: order, repeat or acknowledge segments; rd/rd.h does.
 *
 * Locks: as ddp.h; the functions of an endpoint are called under the progress lock unless noted.
 */
#ifndef SIW_DDP_RD_H
#define SIW_DDP_RD_H

#include "ddp/ddp.h"

/* cffi: begin */

struct siw_rd;
struct siw_ddp_rd;
struct siw_ddp_rd_peer;

/* Opens an endpoint on one of rd, which the caller still owns and closes later. 0 or -ENOMEM. */
int siw_ddp_rd_open(struct siw_mem *mem, struct siw_rd *lower, struct siw_ddp_rd **out);
/* The caller has ended its streams before. */
void siw_ddp_rd_close(struct siw_ddp_rd *rd);
/* The caller stopped before siw_ddp_rd_recv returned 0: its handler is to be called again. */
void siw_ddp_rd_serve_again(struct siw_ddp_rd *rd);

/*
 * Gives the record of the peer at addr. 0; -ENOBUFS: there are as many as allowed; -ENOMEM. Either
 * lock.
 */
int siw_ddp_rd_peer(struct siw_ddp_rd *rd, const struct siw_addr *addr,
		    struct siw_ddp_rd_peer **out);
/* The user of the peer's stream; NULL: it has none. */
void *siw_ddp_rd_user(const struct siw_ddp_rd_peer *peer);
/*
 * Makes the peer's stream. One caller at a time; the stream needs no lock before siw_ddp_rd_show.
 */
int siw_ddp_rd_stream(struct siw_ddp_rd *rd, struct siw_ddp_rd_peer *peer, void *user,
		      struct siw_ddp_stream **out);
/*
 * Publishes a stream that the layer above has set up: siw_ddp_rd_user and siw_ddp_rd_recv find it
 * now.
 */
void siw_ddp_rd_show(struct siw_ddp_stream *stream);
enum siw_ddp_rd_ending {
	SIW_DDP_RD_KEEP, /* it is idle: the peer's record keeps its MSNs */
	SIW_DDP_RD_LOST_PEER,
	/* this end gives up: the peer is sent a BYE. SEQUENCE: since an MSN was wrong */
	SIW_DDP_RD_RESET,
	SIW_DDP_RD_SEQUENCE,
};
/*
 * Frees the stream; both locks. The receive of an unfinished message goes back to the head of its
 * queue.
 */
void siw_ddp_rd_end(struct siw_ddp_stream *stream, enum siw_ddp_rd_ending how);
/*
 * A number of the layer above, kept with the MSNs; 0 at first and for each new incarnation of the
 * peer.
 */
void siw_ddp_rd_set_note(struct siw_ddp_stream *stream, uint32_t note);
uint32_t siw_ddp_rd_note(const struct siw_ddp_stream *stream);
/* Whether nothing is under way in either direction. Both locks. */
bool siw_ddp_rd_idle(struct siw_ddp_stream *stream);
/* Whether only a part of a message has come. Both locks. */
bool siw_ddp_rd_receiving(const struct siw_ddp_stream *stream);
const struct siw_addr *siw_ddp_rd_peer_addr(const struct siw_ddp_stream *stream);
/* The peer's IRD (Read Requests and atomics it accepts at a time); 0: not known yet. */
uint8_t siw_ddp_rd_peer_ird(const struct siw_ddp_stream *stream);
/* Sets whether the peer must send something, so that its silence means it is lost. Either lock. */
void siw_ddp_rd_expect(struct siw_ddp_stream *stream, bool expected);

/* Continues the response in progress, and gives it up: as siw_ddp_tx_more and _abandon. */
int siw_ddp_rd_response_more(struct siw_ddp_stream *stream, struct siw_wire_err *err);
uint64_t siw_ddp_rd_response_abandon(struct siw_ddp_stream *stream);
/* Whether rd has room for a segment of one of these kinds. */
bool siw_ddp_rd_takes(const struct siw_ddp_stream *stream, bool requests, bool responses);
/* Whether the segment at the head came in the space of responses. */
bool siw_ddp_rd_in_responses(const struct siw_ddp_stream *stream);

enum siw_ddp_rd_news {
	SIW_DDP_RD_SEGMENT = 1, /* siw_ddp_rx_head of the stream is due */
	SIW_DDP_RD_ACKED,	/* siw_ddp_tx_accepted moved, or there is room again */
	SIW_DDP_RD_LOST,	/* siw_ddp_rd_end is due. status: -ECONNRESET, the pair starts anew;
			    -ESTALE, another instance of the peer is there;
			    -ETIMEDOUT, it is silent or closed; -ENOBUFS, it had no receive for too
			    long */
};
struct siw_ddp_rd_event {
	int kind; /* enum siw_ddp_rd_news */
	int status;
	struct siw_ddp_rd_peer *peer;
	void *user; /* SEGMENT: NULL: the peer has no stream; make one, and the event comes again */
};
/* Gives the next event: 1 and *event; 0: none. */
int siw_ddp_rd_recv(struct siw_ddp_rd *rd, struct siw_ddp_rd_event *event);
/*
 * Pauses the stream: the segment at the head and what the peer sends behind it in its space wait
 * for siw_ddp_rd_resume. siw_ddp_rx_head does so itself, and returns 0, when a segment of queue 0 finds
 * no buffer.
 */
void siw_ddp_rd_pause(struct siw_ddp_stream *stream, bool no_receive);
bool siw_ddp_rd_paused(const struct siw_ddp_stream *stream);
/*
 * The whole payload of the segment that siw_ddp_rx_head gave; valid until it is placed or refused.
 */
const uint8_t *siw_ddp_rd_octets(const struct siw_ddp_stream *stream);
/*
 * Sets which tagged segments begin with SIW_DDP_ULP_TAGGED octets for the layer above: those with
 * bit 1 << (ulp_octet & 15) in set. These octets are not placed; the TO is that of the first octet
 * behind them. The layer above must refuse a segment that is shorter.
 */
void siw_ddp_rd_headed(struct siw_ddp_stream *stream, uint16_t set);
/* Whether the next segment is one of these. */
bool siw_ddp_rd_is_headed(const struct siw_ddp_stream *stream);
/*
 * Whether a stream that is paused could go on, by what is free of the receives. The same answer
 * again and again costs nothing: a stream that waits for its share is tried when that has grown.
 */
bool siw_ddp_rd_may_resume(struct siw_ddp_rd *rd, const struct siw_mem_queue *recvs);
/* Lets all paused streams of the endpoint go on. */
void siw_ddp_rd_resume(struct siw_ddp_rd *rd);
/* The peer that siw_ddp_rd_peer gave gets no stream after all. */
void siw_ddp_rd_unclaim(struct siw_ddp_rd_peer *peer);
/* Throws away the segment of a peer that has no stream, and sends the peer a BYE. */
void siw_ddp_rd_reject(struct siw_ddp_rd_peer *peer);
/* The buffer that the last refused message had taken: 1 and its user_data, or 0. */
int siw_ddp_rd_blamed(struct siw_ddp_stream *stream, uint64_t *user_data);

/* cffi: end */

#endif
