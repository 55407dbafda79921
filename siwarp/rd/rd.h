/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd.h - reliable datagrams: one UDP socket and any number of peers. Segments to and from each
 * peer arrive whole, once and in order (spec/datagram-iwarp.md, "RD").
 *
 * What this layer does NOT do: interpret a segment. It numbers segments, checks them (CRC32C,
 * Q_Key), acknowledges, retransmits and paces them, and detects lost peers.
 *
 * A peer is identified by its address. Its record is made by siw_rd_peer, or when an unknown source
 * returns a cookie; an idle record takes less than 1 kB. An epoch numbers one incarnation of
 * an endpoint. When a peer has restarted, it is unknown whether it received what was sent to it
 * before; nothing of that is retransmitted.
 *
 * An instance is an endpoint from open to close. Peers tell theirs in the handshake, so that a
 * process that took another's port is told from one that met this end again (rd_life.c).
 *
 * Segments are numbered in two spaces, requests and responses, each with an order and a credit of
 * its own: requests that the layer above cannot take do not delay responses. Responses go first.
 *
 * A segment is acknowledged after the layer above has taken it (siw_rd_taken): an accepted segment
 * has been placed at the peer.
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

enum siw_rd_space {
	SIW_RD_REQUESTS = 0,
	SIW_RD_RESPONSES = 1,
};
#define SIW_RD_SPACES 2

/* Why a BYE ends the incarnation. */
enum siw_rd_reason {
	SIW_RD_CLOSED_END = 0,	 /* the endpoint closes */
	SIW_RD_UNKNOWN_PAIR = 1, /* a datagram came whose epochs are not known */
	SIW_RD_SEQUENCE = 2,	 /* a message had another MSN than the next */
	SIW_RD_IDLE = 3,	 /* the record was idle, or another needs its place */
	SIW_RD_REFUSED = 4,
	SIW_RD_RNR = 5, /* no receive for too long */
};

struct siw_rd_attr {
	struct siw_addr local;		/* used if fd is -1; its family must be set */
	int fd;				/* a bound UDP socket of the user's, or -1 */
	struct siw_io_handler *handler; /* siw_llp_port_poll calls it when siw_rd_recv is due */
	bool no_crc;
	/* advertised: Read Requests and atomics that a peer may have outstanding here */
	uint8_t ird;
	uint32_t qkey;
	uint32_t max_peers; /* 0: setting rd_peers */
	/* A silent peer is declared lost after this time, +-20%; 0: setting peer_timeout. */
	uint64_t peer_timeout_ns;
	/* as siw_rd_set_rnr has them */
	uint8_t rnr_retry, rnr_timer;
};
/* 0, -ENOMEM, or -errno of the socket. */
int siw_rd_open(struct siw_llp_port *port, const struct siw_rd_attr *attr, struct siw_rd **out);
/* Sends each peer a BYE, which may get lost, and frees everything. */
void siw_rd_close(struct siw_rd *rd);
/*
 * To be called before siw_rd_close, when the layer above ends: takes in nothing more but
 * acknowledgements. siw_rd_reset has no effect from now on: what was taken to be sent is sent to
 * its end, before the peer gets its BYE.
 */
void siw_rd_leave(struct siw_rd *rd);
/*
 * After siw_rd_leave: serves the socket and the timers. true: each peer has what was sent to it, as
 * far as it takes it, and has answered the BYE, or is silent for linger_ms. The caller's limit of
 * time bounds how long a peer may take.
 */
bool siw_rd_left(struct siw_rd *rd);
/*
 * The endpoint's socket: for its address, and for a caller that stops before siw_rd_recv returned 0
 * and must have the handler called once more.
 */
struct siw_llp_sock *siw_rd_sock(const struct siw_rd *rd);
void siw_rd_set_qkey(struct siw_rd *rd, uint32_t qkey);
/*
 * away: every datagram but a BYE is dropped without an answer, as if there were no endpoint; its
 * senders find it lost after their own time-outs. Peers that are known stay known.
 */
void siw_rd_set_away(struct siw_rd *rd, bool away);
void siw_rd_set_ird(struct siw_rd *rd, uint8_t ird);
/*
 * retry: so many times the peer's timer a message may wait there for a receive; 7: without limit.
 * timer: this end's own, InfiniBand's code of 5 bits, which peers are told.
 */
void siw_rd_set_rnr(struct siw_rd *rd, uint8_t retry, uint8_t timer);
/* The peers with whom a message waits for a receive: up to max of them. Returns how many. */
int siw_rd_waits(struct siw_rd *rd, struct siw_rd_wait *out, int max);
/*
 * Whether another instance of a peer was met since the last call: siw_rd_restarts tells of whom.
 * Also where the layer above has nothing in progress with that peer.
 */
bool siw_rd_restarted(struct siw_rd *rd);
/* Takes up to max of these peers, each once with its instance of now. Returns how many. */
int siw_rd_restarts(struct siw_rd *rd, struct siw_rd_restart *out, int max);
/* The instance that the peer at addr told when it was met last; 0: none, or it is not known. */
uint64_t siw_rd_instance(struct siw_rd *rd, const struct siw_addr *addr);

/* ---- peers ----------------------------------------------------------------------------------- */

/*
 * Finds or makes the record of the peer at addr; sends nothing. If there are max_peers records
 * already, it evicts the one that has been idle longest. Either lock. Returns 0, -ENOMEM, or
 * -ENOBUFS: no record is idle.
 */
int siw_rd_peer(struct siw_rd *rd, const struct siw_addr *addr, struct siw_rd_peer **out);
const struct siw_addr *siw_rd_peer_addr(const struct siw_rd_peer *peer);
/*
 * The layer above's pointer for this peer; NULL at first. A record whose pointer is set is not
 * evicted.
 */
void siw_rd_set_upper(struct siw_rd_peer *peer, void *upper);
void *siw_rd_upper(const struct siw_rd_peer *peer);
/*
 * Octets in the record for the use of the layer above. They are zeroed when the record is made, and
 * when an incarnation of either end has ended. Either lock.
 */
#define SIW_RD_ROOM 36
void *siw_rd_room(struct siw_rd_peer *peer);
/*
 * The IRD that the peer advertised; this end's ORD to the peer must not exceed it. 0: not known
 * yet.
 */
uint8_t siw_rd_peer_ird(const struct siw_rd_peer *peer);
/* For tests and benchmarks: the number of records, and the octets of one. */
uint32_t siw_rd_n_peers(struct siw_rd *rd);
size_t siw_rd_peer_size(void);
/*
 * Ends this incarnation of the pair: drops what was not sent yet and sends the peer a BYE with this
 * reason. The record stays.
 */
void siw_rd_reset(struct siw_rd_peer *peer, enum siw_rd_reason reason);

/*
 * Ends the incarnation of the pair with the peer at addr, if there is one: sends the peer a BYE and
 * reports GONE. Progress lock. Returns whether there was one.
 */
bool siw_rd_give_up(struct siw_rd *rd, const struct siw_addr *addr);

/* ---- tx -------------------------------------------------------------------------------------- */

/*
 * The longest segment, in octets, that can be sent to this peer now; at least 1024. It follows the
 * path MTU and the peer's credit, and may change from one segment to the next.
 */
uint32_t siw_rd_mulpdu(const struct siw_rd_peer *peer, enum siw_rd_space space);
/*
 * Takes a segment: head_len octets at head, then the iovecs; at most mulpdu in all. Copies it and
 * computes its CRC in the same loop. It is sent as soon as window, credit and pace allow; a short
 * segment behind others waits for the next siw_rd_flush, so that several leave in one system call.
 * Returns siw_rd_framed if the segment was taken (> 0); 0: no room now (siw_rd_blocked); -EFAULT:
 * the memory is not mapped; -EPIPE: the peer is gone or has restarted, which siw_rd_recv reports
 * too.
 */
int64_t siw_rd_tx(struct siw_rd_peer *peer, enum siw_rd_space space, const void *head,
		  size_t head_len, const struct iovec *iov, int n);
/*
 * Sends what window, pace and socket allow. 1: everything that was taken is sent; 0: some of it
 * waits. *taken: as siw_rd_accepted of the requests.
 */
int siw_rd_flush(struct siw_rd_peer *peer, uint64_t *taken);
bool siw_rd_blocked(const struct siw_rd_peer *peer, enum siw_rd_space space);
/*
 * Segments of that space that siw_rd_tx took in this pair of epochs, and how many of them, in order, the peer has
 * taken.
 */
uint64_t siw_rd_framed(const struct siw_rd_peer *peer, enum siw_rd_space space);
uint64_t siw_rd_accepted(const struct siw_rd_peer *peer, enum siw_rd_space space);

/* ---- rx and events --------------------------------------------------------------------------- */

enum siw_rd_news {
	/* space, data, len: the peer's next segment of that space, CRC checked */
	SIW_RD_SEGMENT = 1,
	/* the peer accepted more, or there is room again: the upper layer must flush */
	SIW_RD_ACKED,
	SIW_RD_NEW_PEER, /* an unknown source has a record now; its upper is NULL */
	/*
	 * The peer is a new incarnation: both directions and both counts start at 0. It is unknown
	 * whether the peer received what it did not accept.
	 */
	SIW_RD_RESTARTED,
	/*
	 * As RESTARTED, but the peer closed, or was silent for peer_timeout. The next siw_rd_tx
	 * starts a new handshake.
	 */
	SIW_RD_GONE,
	/* As GONE, since this end gave up: a message waited there too long for its receive. */
	SIW_RD_UNREADY,
	/* As RESTARTED, but it is another instance: nothing that was for the one before may go to it. */
	SIW_RD_REPLACED,
};

struct siw_rd_event {
	int kind; /* enum siw_rd_news */
	struct siw_rd_peer *peer;
	int space;	     /* SEGMENT: enum siw_rd_space */
	const uint8_t *data; /* SEGMENT: valid until the next siw_rd_recv or siw_rd_taken */
	uint32_t len;
};
/*
 * Returns 1 and the next event, or 0: none now. Also serves timers that have expired. The same
 * SEGMENT is returned until siw_rd_taken or siw_rd_pause.
 */
int siw_rd_recv(struct siw_rd *rd, struct siw_rd_event *event);
/* The last SEGMENT was placed, or discarded on purpose: it may be acknowledged. */
void siw_rd_taken(struct siw_rd_peer *peer);
/*
 * The last SEGMENT, of that space, cannot be taken now, since no receive is posted. It is stored;
 * this peer has no more segments of that space until siw_rd_resume, and its credit runs out. The
 * other space and other peers are not affected. no_receive: the peer is told that its request lacks
 * one.
 */
void siw_rd_pause(struct siw_rd_peer *peer, enum siw_rd_space space, bool no_receive);
void siw_rd_resume(struct siw_rd_peer *peer, enum siw_rd_space space);
/*
 * expected: the peer must send something although it acknowledged everything. If it is silent, it
 * is declared lost.
 */
void siw_rd_expect(struct siw_rd_peer *peer, bool expected);

/* cffi: end */

#endif
