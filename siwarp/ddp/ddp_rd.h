/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_rd.h - part of ddp/ddp.h: streams on reliable datagrams. An endpoint has one for each peer with whom
 * something goes on: made when it is first needed, given up when nothing is in the works. The message
 * sequence numbers outlive it in llp's record of the peer. Such a stream does not end with a refusal: what
 * is refused is thrown away with the rest of its message, siw_ddp_rx_head or _place says so once, and
 * the next message is as good as any.
 *
 * What this does NOT do: order, repeat or acknowledge segments; rd.h does.
 *
 * Locks: as ddp.h; functions of an endpoint under the progress lock unless they say otherwise.
 */
#ifndef SIW_DDP_RD_H
#define SIW_DDP_RD_H

#include "ddp/ddp.h"

/* cffi: begin */

struct siw_rd;
struct siw_ddp_rd;
struct siw_ddp_rd_peer;

/* On an endpoint of rd, which stays the caller's and is closed after this. -ENOMEM. */
int siw_ddp_rd_open(struct siw_mem *mem, struct siw_rd *lower, struct siw_ddp_rd **out);
/* Its streams are gone already. */
void siw_ddp_rd_close(struct siw_ddp_rd *rd);
/* Who calls siw_ddp_rd_recv stopped short of 0. */
void siw_ddp_rd_serve_again(struct siw_ddp_rd *rd);

/* The peer at an address: 0; -ENOBUFS no room for another one; -ENOMEM. Either lock. */
int siw_ddp_rd_peer(struct siw_ddp_rd *rd, const struct siw_addr *addr,
		    struct siw_ddp_rd_peer **out);
/* Its stream's user, or NULL: there is none. */
void *siw_ddp_rd_user(const struct siw_ddp_rd_peer *peer);
/* Makes its stream; one caller at a time. Locks of the stream: none before siw_ddp_rd_show. */
int siw_ddp_rd_stream(struct siw_ddp_rd *rd, struct siw_ddp_rd_peer *peer, void *user,
		      struct siw_ddp_stream **out);
/* It is whole, with all that the layer above adds: from here on siw_ddp_rd_user and _recv know it. */
void siw_ddp_rd_show(struct siw_ddp_stream *stream);
enum siw_ddp_rd_ending {
	SIW_DDP_RD_KEEP, /* it is idle: the numbers are kept */
	SIW_DDP_RD_LOST_PEER,
	SIW_DDP_RD_RESET, /* the peer is told that nothing more of it will be had */
};
/* Gives it up; both locks. The receive of a half message goes back to the head of its queue. */
void siw_ddp_rd_end(struct siw_ddp_stream *stream, enum siw_ddp_rd_ending how);
/* A number of the layer above's that is kept as the MSNs are: 0 at first, and with each life of the pair. */
void siw_ddp_rd_set_note(struct siw_ddp_stream *stream, uint32_t note);
uint32_t siw_ddp_rd_note(const struct siw_ddp_stream *stream);
/* Whether nothing is in the works in either direction. Both locks. */
bool siw_ddp_rd_idle(struct siw_ddp_stream *stream);
/* Whether a message has begun to come and its rest has not. Both locks. */
bool siw_ddp_rd_receiving(const struct siw_ddp_stream *stream);
const struct siw_addr *siw_ddp_rd_peer_addr(const struct siw_ddp_stream *stream);
/* How many Read Requests and atomics the peer holds, 0 before it said. */
uint8_t siw_ddp_rd_peer_ird(const struct siw_ddp_stream *stream);
/* Whether something is awaited of the peer, so that silence means that it is gone. Either lock. */
void siw_ddp_rd_expect(struct siw_ddp_stream *stream, bool expected);

enum siw_ddp_rd_news {
	SIW_DDP_RD_SEGMENT = 1, /* siw_ddp_rx_head of the stream is due */
	SIW_DDP_RD_ACKED,	/* siw_ddp_tx_accepted moved, or there is room again */
	SIW_DDP_RD_LOST, /* siw_ddp_rd_end is due: status -ECONNRESET it lives anew, -ETIMEDOUT
				   it is silent or gone */
};
struct siw_ddp_rd_event {
	int kind; /* enum siw_ddp_rd_news */
	int status;
	struct siw_ddp_rd_peer *peer;
	void *user; /* SEGMENT: NULL where there is no stream: make one, and it comes up again */
};
/* Next news: 1 and *event, or 0. */
int siw_ddp_rd_recv(struct siw_ddp_rd *rd, struct siw_ddp_rd_event *event);
/*
 * The segment at the head waits for siw_ddp_rd_resume, and all that this peer sends behind it; also
 * done by siw_ddp_rx_head, which then says 0, for one of queue 0 that finds no buffer.
 */
void siw_ddp_rd_pause(struct siw_ddp_stream *stream);
bool siw_ddp_rd_paused(const struct siw_ddp_stream *stream);
/* The payload of the segment that siw_ddp_rx_head gave, all of it, until it is placed or refused. */
const uint8_t *siw_ddp_rd_octets(const struct siw_ddp_stream *stream);
/*
 * Tagged segments whose ulp_octet's low four bits are in the set (1 << bits) begin with SIW_DDP_ULP_TAGGED octets
 * for the layer above, which are not placed; their TO is of the first octet behind. One of fewer octets
 * must be refused.
 */
void siw_ddp_rd_headed(struct siw_ddp_stream *stream, uint16_t set);
/* Whether the segment that siw_ddp_rx_head would give is such a one. */
bool siw_ddp_rd_is_headed(const struct siw_ddp_stream *stream);
/* All that wait come up again. */
void siw_ddp_rd_resume(struct siw_ddp_rd *rd);
/* The peer that was asked for gets no stream. */
void siw_ddp_rd_unclaim(struct siw_ddp_rd_peer *peer);
/* The segment of a peer without a stream is thrown away, and the peer told so. */
void siw_ddp_rd_reject(struct siw_ddp_rd_peer *peer);
/* The buffer that the message refused last had taken: 1 and its user_data, or 0. */
int siw_ddp_rd_blamed(struct siw_ddp_stream *stream, uint64_t *user_data);

/* cffi: end */

#endif
