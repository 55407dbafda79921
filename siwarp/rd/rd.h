/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd.h - reliable datagrams: one UDP socket and any number of peers. Segments to and from each
 * peer arrive whole, once and in order (spec/datagram-iwarp.md, "RD").
 *
 * What this layer does NOT do: know what a segment is. It numbers segments, checks them (CRC32C,
 * Q_Key), acknowledges, repeats and paces them, and finds out which peers are lost.
 *
 * A peer is an address. Its record is made by siw_rd_peer, or when an unknown source returned a
 * cookie; an idle record takes less than 512 octets. An epoch is one incarnation of an endpoint.
 * Whether a peer that has started anew got what was sent to it before is unknown, and none of that
 * is repeated.
 *
 * A segment is acknowledged when the layer above has taken it (siw_rd_taken): so an accepted
 * segment is placed at the peer.
 *
 * Locks: the "tx" functions are called under the caller's send lock, close under both, all others
 * under the progress lock. The endpoint's own lock orders the two sides.
 */
#ifndef SIW_RD_H
#define SIW_RD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <siwarp/types.h>

/* cffi: begin */

struct siw_llp_port;
struct siw_llp_sock;
struct siw_rd;
struct siw_rd_peer;

struct siw_rd_attr {
	struct siw_addr local;		/* used when fd is -1; its family must be given */
	int fd;				/* a bound UDP socket of the user's, or -1 */
	struct siw_io_handler *handler; /* siw_llp_port_poll calls it when siw_rd_recv is due */
	bool no_crc;
	/* advertised: Read Requests and atomics that a peer may have outstanding here */
	uint8_t ird;
	uint32_t qkey;
	uint32_t max_peers; /* 0: setting rd_peers */
	/* A silent peer is declared lost after this, +-20%; 0: setting peer_timeout. */
	uint64_t peer_timeout_ns;
};
/* 0, -ENOMEM, or -errno of the socket. */
int siw_rd_open(struct siw_llp_port *port, const struct siw_rd_attr *attr, struct siw_rd **out);
/* Sends each peer a BYE, which may be lost, and frees all. */
void siw_rd_close(struct siw_rd *rd);
/*
 * Its socket: for its address, and to have the handler called again before siw_rd_recv returned 0.
 */
struct siw_llp_sock *siw_rd_sock(const struct siw_rd *rd);
void siw_rd_set_qkey(struct siw_rd *rd, uint32_t qkey);
void siw_rd_set_ird(struct siw_rd *rd, uint8_t ird);

/* ---- peers ----------------------------------------------------------------------------------- */

/*
 * Gives the record of the peer at addr, and makes it if there is none; nothing is sent yet. With
 * max_peers records the one idle longest is evicted; -ENOBUFS: none is idle. 0, -ENOMEM. Either
 * lock.
 */
int siw_rd_peer(struct siw_rd *rd, const struct siw_addr *addr, struct siw_rd_peer **out);
const struct siw_addr *siw_rd_peer_addr(const struct siw_rd_peer *peer);
/* The layer above's pointer for this peer; NULL at first. A record that has one is not evicted. */
void siw_rd_set_upper(struct siw_rd_peer *peer, void *upper);
void *siw_rd_upper(const struct siw_rd_peer *peer);
/*
 * Octets in the record for the layer above, zeroed when the record is made and when an incarnation
 * of either end is over. Either lock.
 */
#define SIW_RD_ROOM 36
void *siw_rd_room(struct siw_rd_peer *peer);
/* The IRD that the peer advertised, which limits this end's ORD to it; 0: not known yet. */
uint8_t siw_rd_peer_ird(const struct siw_rd_peer *peer);
/* For tests and benchmarks: how many records there are, and octets of one. */
uint32_t siw_rd_n_peers(struct siw_rd *rd);
size_t siw_rd_peer_size(void);
/*
 * Ends this incarnation of the pair: drops what is unsent and sends the peer a BYE. The record
 * stays.
 */
void siw_rd_reset(struct siw_rd_peer *peer);

/* ---- tx -------------------------------------------------------------------------------------- */

/*
 * The longest segment to this peer now, in octets, at least 1024. It follows the path MTU and may
 * change from one segment to the next.
 */
uint32_t siw_rd_mulpdu(const struct siw_rd_peer *peer);
/*
 * Takes a segment: head_len octets at head, then the iovecs; at most mulpdu in all. It is copied,
 * with its CRC, in one pass, and sent as soon as window, credit and pace allow; a short one behind
 * others with the next siw_rd_flush, as several go down together. > 0 taken: as siw_rd_framed is
 * now; 0 no room now (siw_rd_blocked); -EFAULT memory is not there; -EPIPE the peer is gone or
 * starting anew (siw_rd_recv says so too).
 */
int64_t siw_rd_tx(struct siw_rd_peer *peer, const void *head, size_t head_len,
		  const struct iovec *iov, int n);
/*
 * Sends what may go: 1 everything taken is on its way; 0 some waits for window, pace or socket.
 * *taken: as siw_rd_accepted.
 */
int siw_rd_flush(struct siw_rd_peer *peer, uint64_t *taken);
bool siw_rd_blocked(const struct siw_rd_peer *peer);
/* Segments taken by siw_rd_tx in this epoch pair, and how many, in order, the peer has taken. */
uint64_t siw_rd_framed(const struct siw_rd_peer *peer);
uint64_t siw_rd_accepted(const struct siw_rd_peer *peer);

/* ---- rx and news ----------------------------------------------------------------------------- */

enum siw_rd_news {
	SIW_RD_SEGMENT = 1, /* data, len: the peer's next segment, in order, CRC checked */
	SIW_RD_ACKED,	  /* more was accepted, or there is room: the upper layer's flush is due */
	SIW_RD_NEW_PEER,  /* an unknown source has a record now; its upper is NULL */
	SIW_RD_RESTARTED, /* the peer is a new incarnation: both directions and both counts start
				   at 0; whether it got what was not accepted is unknown */
	SIW_RD_GONE,	  /* silent for peer_timeout, or closed: else as RESTARTED. The next
				   siw_rd_tx starts anew */
};

struct siw_rd_event {
	int kind; /* enum siw_rd_news */
	struct siw_rd_peer *peer;
	const uint8_t *data; /* SEGMENT: valid until the next siw_rd_recv or siw_rd_taken */
	uint32_t len;
};
/*
 * Gives the next event: 1 and *event; 0: none now. Timers expire here, too. A SEGMENT is given
 * again until siw_rd_taken or siw_rd_pause.
 */
int siw_rd_recv(struct siw_rd *rd, struct siw_rd_event *event);
/* The last SEGMENT is placed, or refused and thrown away: it may be acknowledged. */
void siw_rd_taken(struct siw_rd_peer *peer);
/*
 * The last SEGMENT cannot be taken now, as no receive is posted. It is stored, no event of this
 * peer is given until siw_rd_resume, and the peer's credit runs out. Other peers go on.
 */
void siw_rd_pause(struct siw_rd_peer *peer);
void siw_rd_resume(struct siw_rd_peer *peer);
/*
 * expected: the peer must send something although all is acknowledged, so silence means it is lost.
 */
void siw_rd_expect(struct siw_rd_peer *peer, bool expected);

/* cffi: end */

#endif
