/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd.h - reliable datagrams: one UDP socket, any number of peers, and to and from each of
 * them segments that arrive whole, once and in order (spec/datagram-iwarp.md, "RD").
 *
 * What this layer does NOT do: know what a segment is. It numbers, checks (CRC32C, Q_Key), acknowledges,
 * repeats, paces and finds out who is gone.
 *
 * A peer is an address. Its record is made by siw_rd_peer, or when an unknown source has brought
 * back a cookie; idle it costs less than 512 octets. An epoch is one life of an endpoint: what was
 * sent to a peer that has started anew is in doubt and is not repeated.
 *
 * Acknowledged is what the layer above has taken (siw_rd_taken), so that what counts as accepted
 * is placed at the peer.
 *
 * Locks: "tx" functions under the caller's send lock, the rest under the progress lock; a lock inside
 * orders the two, so that neither caller needs the other's. close: both.
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
	struct siw_addr local; /* used when fd is -1; its family must be given */
	int fd;		       /* a bound UDP socket of the user's, or -1 */
	struct siw_io_handler
		*handler; /* comes up from siw_llp_port_poll when siw_rd_recv is due */
	bool no_crc;
	uint8_t ird; /* told to peers: Read Requests and atomics they may have outstanding here */
	uint32_t qkey;
	uint32_t max_peers;	  /* 0: setting rd_peers */
	uint64_t peer_timeout_ns; /* 0: setting peer_timeout. Found gone within it, +-20% */
};
int siw_rd_open(struct siw_llp_port *port, const struct siw_rd_attr *attr, struct siw_rd **out);
/* Peers hear of it (best effort). */
void siw_rd_close(struct siw_rd *rd);
/* Its socket, for its address, and for who stops short of siw_rd_recv's end. */
struct siw_llp_sock *siw_rd_sock(const struct siw_rd *rd);
void siw_rd_set_qkey(struct siw_rd *rd, uint32_t qkey);
void siw_rd_set_ird(struct siw_rd *rd, uint8_t ird);

/* ---- peers ----------------------------------------------------------------------------------- */

/*
 * The record of the peer at this address, made if there is none: 0; -ENOBUFS max_peers and none of
 * them idle (the one idle longest makes room), -ENOMEM. Sends nothing yet. Either lock.
 */
int siw_rd_peer(struct siw_rd *rd, const struct siw_addr *addr, struct siw_rd_peer **out);
const struct siw_addr *siw_rd_peer_addr(const struct siw_rd_peer *peer);
/* What the layer above has of this peer; NULL at first. A record that has one is not evicted. */
void siw_rd_set_upper(struct siw_rd_peer *peer, void *upper);
void *siw_rd_upper(const struct siw_rd_peer *peer);
/*
 * Room of the layer above's in the record, all zero when the record is made and whenever a life of either
 * end is over. Either lock.
 */
#define SIW_RD_ROOM 36
void *siw_rd_room(struct siw_rd_peer *peer);
/* The IRD the peer told, 0 before it did: what this end's ORD to it may be. */
uint8_t siw_rd_peer_ird(const struct siw_rd_peer *peer);
/* For tests and figures: records there are, and octets of one. */
uint32_t siw_rd_n_peers(struct siw_rd *rd);
size_t siw_rd_peer_size(void);
/* The layer above will not have it any more: what is unsent goes, the peer is told, the record stays. */
void siw_rd_reset(struct siw_rd_peer *peer);

/* ---- tx -------------------------------------------------------------------------------------- */

/*
 * Octets of a segment that a datagram to the peer carries now: it follows the path MTU and may change
 * between segments. At least 1024.
 */
uint32_t siw_rd_mulpdu(const struct siw_rd_peer *peer);
/*
 * Takes a segment: head_len octets at head, then the iovecs; at most mulpdu in all. It is copied, with
 * its CRC, in one pass, and sent as soon as window, credit and pace allow; a short one behind others
 * with the next siw_rd_flush, as several go down together. 1 taken; 0 no room now
 * (siw_rd_blocked); -EFAULT memory is not there; -EPIPE the peer is gone or starting anew
 * (siw_rd_recv says so too).
 */
int siw_rd_tx(struct siw_rd_peer *peer, const void *head, size_t head_len, const struct iovec *iov,
	      int n);
/* Sends what may go: 1 everything taken is on its way; 0 some waits for window, pace or socket. */
int siw_rd_flush(struct siw_rd_peer *peer);
bool siw_rd_blocked(const struct siw_rd_peer *peer);
/* Segments taken by siw_rd_tx in this epoch pair, and how many, in order, the peer has taken. */
uint64_t siw_rd_framed(const struct siw_rd_peer *peer);
uint64_t siw_rd_accepted(const struct siw_rd_peer *peer);

/* ---- rx and news ----------------------------------------------------------------------------- */

enum siw_rd_news {
	SIW_RD_SEGMENT = 1, /* data, len: the next segment of this peer, in order, CRC checked */
	SIW_RD_ACKED,	    /* accepted moved, or room: the upper layer's flush is due */
	SIW_RD_NEW_PEER,    /* a record was made for one who came; upper is NULL */
	SIW_RD_RESTARTED,   /* the peer lives anew: both directions start at nothing; what was sent
				   and not accepted is in doubt, framed and accepted are 0 */
	SIW_RD_GONE,	    /* silent for peer_timeout, or it said it closes: as RESTARTED; the next
				   siw_rd_tx tries anew */
};

struct siw_rd_event {
	int kind; /* enum siw_rd_news */
	struct siw_rd_peer *peer;
	const uint8_t *data; /* SEGMENT: valid until the next siw_rd_recv or _taken */
	uint32_t len;
};
/*
 * Next event: 1 and *event; 0 nothing now. Works off timers too. A SEGMENT comes up again until
 * siw_rd_taken or siw_rd_pause.
 */
int siw_rd_recv(struct siw_rd *rd, struct siw_rd_event *event);
/* The segment that came up last is placed (or judged and thrown away): it may be acknowledged. */
void siw_rd_taken(struct siw_rd_peer *peer);
/*
 * It cannot be taken now (no receive is posted): it is kept, nothing of this peer comes up, others do,
 * and the peer's credit runs down to nothing. resume: it comes up again.
 */
void siw_rd_pause(struct siw_rd_peer *peer);
void siw_rd_resume(struct siw_rd_peer *peer);
/* The layer above awaits something of this peer though all was acknowledged: so it must not be silent. */
void siw_rd_expect(struct siw_rd_peer *peer, bool expected);

/* cffi: end */

#endif
