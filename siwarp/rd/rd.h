/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd.h - reliable datagrams: one UDP socket and any number of peers. Segments to and from each
 * peer are delivered intact, exactly once and in order (spec/datagram-iwarp.md, "RD").
 *
 * What this layer does NOT do: interpret a segment. It numbers segments, checks them (CRC32C,
 * Q_Key), acknowledges, retransmits and paces them, and detects lost peers.
 *
 * A peer is identified by its address. A peer record is created by siw_rd_get_or_create_peer, or
 * when an unknown source returns a valid cookie; an idle record takes less than 1 kB. An epoch
 * numbers one incarnation of the pair of endpoints. After a peer has restarted, it is unknown
 * whether the peer received the segments sent to it before; none of them is retransmitted.
 *
 * An instance is the lifetime of an endpoint, from open to close. Each endpoint announces its
 * instance number in the handshake. A changed number shows that another process now uses the peer's
 * port; an unchanged number shows that the same endpoint began a new incarnation (rd_life.c).
 *
 * Segments are numbered in two PSN spaces, requests and responses. Each space has its own order and
 * credit, so that requests the upper layer cannot accept do not delay responses. Responses are sent
 * first.
 *
 * A segment is acknowledged after the upper layer has accepted it (siw_rd_mark_segment_accepted):
 * an acknowledged segment has been placed at the peer.
 *
 * Locks: the "tx" functions are called under the caller's send lock, siw_rd_close under the send
 * lock and the progress lock, all other functions under the progress lock. The endpoint's own lock
 * serializes the two sides.
 */
#ifndef SIW_RD_H
#define SIW_RD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <siwarp/types.h>

/* cffi: begin */

struct siw_llp_poller;
struct siw_llp_sock;
struct siw_rd;
struct siw_rd_peer;

enum siw_rd_space {
	SIW_RD_REQUESTS = 0,
	SIW_RD_RESPONSES = 1,
};
#define SIW_RD_SPACES 2

/* The reason for which a BYE ends the incarnation. */
enum siw_rd_reason {
	SIW_RD_CLOSED_END = 0,	 /* the endpoint is being closed */
	SIW_RD_UNKNOWN_PAIR = 1, /* a datagram with an unknown pair of epochs arrived */
	SIW_RD_SEQUENCE = 2,	 /* a message had an MSN other than the next one */
	SIW_RD_IDLE = 3,	 /* the peer record was idle, or was evicted for another peer */
	SIW_RD_REFUSED = 4,
	SIW_RD_RNR = 5, /* no receive was posted for too long */
};

struct siw_rd_attr {
	struct siw_addr local; /* address to bind if fd is -1; local.family must always be set */
	int fd;		       /* the user's bound UDP socket, or -1 */
	/* the handler that siw_llp_poller_poll returns when siw_rd_recv must be called */
	struct siw_io_handler *handler;
	bool no_crc;
	/* advertised IRD: Read Requests and atomics that a peer may have outstanding here */
	uint8_t ird;
	uint32_t qkey;
	uint32_t max_peers; /* 0: use setting rd_peers */
	/*
	 * A silent peer is declared lost after this time, +-20%; 0: after the time in setting
	 * peer_timeout_ms.
	 */
	uint64_t peer_timeout_ns;
	/* see siw_rd_set_rnr_retry_and_timer */
	uint8_t rnr_retry, rnr_timer;
};
/* Returns 0, -ENOMEM, or -errno from creating the socket. */
int siw_rd_open(struct siw_llp_poller *poller, const struct siw_rd_attr *attr, struct siw_rd **out);
/* Sends each peer one BYE, without retransmission, and frees the endpoint. */
void siw_rd_close(struct siw_rd *rd);
/*
 * The upper layer calls siw_rd_shutdown before siw_rd_close when it shuts down. From then on the
 * endpoint handles incoming acknowledgements only. siw_rd_end_peer_incarnation has no effect any more:
 * segments that were accepted for sending are sent completely before their peer receives its BYE.
 */
void siw_rd_shutdown(struct siw_rd *rd);
/*
 * Called after siw_rd_shutdown: services the socket and the timers. Returns true when each peer has
 * answered the BYE, or linger_ms has passed since the BYE. A peer gets its BYE when it has
 * acknowledged all segments, or reports NOT READY. The caller's own time limit bounds how long a
 * slow peer may delay the close.
 */
bool siw_rd_continue_shutdown(struct siw_rd *rd);
/*
 * Returns the endpoint's socket. The caller needs the socket to query its address, and to have the
 * handler called again if the caller stops before siw_rd_recv has returned 0.
 */
struct siw_llp_sock *siw_rd_sock(const struct siw_rd *rd);
void siw_rd_set_qkey(struct siw_rd *rd, uint32_t qkey);
/*
 * If away is true, every datagram except a BYE is dropped without an answer, as if the endpoint did
 * not exist; senders declare this end lost after their own time-outs. The records of known peers
 * are kept.
 */
void siw_rd_set_unreachable(struct siw_rd *rd, bool away);
void siw_rd_set_ird(struct siw_rd *rd, uint8_t ird);
/*
 * retry: how often the peer's RNR timer may expire while a message waits at the peer for a receive;
 * 7: without limit. timer: this end's RNR timer, a 5-bit InfiniBand code that is sent to peers.
 */
void siw_rd_set_rnr_retry_and_timer(struct siw_rd *rd, uint8_t retry, uint8_t timer);
/* Lists up to max peers with which a message waits for a receive. Returns their number. */
int siw_rd_list_waiting_peers(struct siw_rd *rd, struct siw_rd_wait *out, int max);
/*
 * Returns whether a new instance of any peer has been detected since the last call, including peers
 * with which the upper layer has nothing in progress. siw_rd_list_restarted_peers lists the peers
 * with a new instance.
 */
bool siw_rd_test_and_clear_any_peer_restarted(struct siw_rd *rd);
/*
 * Removes up to max peers from the list of restarted peers, each reported once with its current
 * instance. Returns their number.
 */
int siw_rd_list_restarted_peers(struct siw_rd *rd, struct siw_rd_restart *out, int max);
/*
 * Returns the instance that the peer at addr announced in the latest handshake; 0: none, or
 * unknown.
 */
uint64_t siw_rd_instance_number_of_peer(struct siw_rd *rd, const struct siw_addr *addr);

/* ---- peers ----------------------------------------------------------------------------------- */

/*
 * Finds or creates the record of the peer at addr; sends nothing. If max_peers records exist
 * already, one of them is evicted. Call under the send lock or the progress lock. Returns 0,
 * -ENOMEM, or -ENOBUFS if no record may be evicted.
 */
int siw_rd_get_or_create_peer(struct siw_rd *rd, const struct siw_addr *addr,
			      struct siw_rd_peer **out);
const struct siw_addr *siw_rd_peer_addr(const struct siw_rd_peer *peer);
/*
 * Sets the upper layer's pointer for this peer, initially NULL. A peer record whose pointer is set
 * is not evicted.
 */
void siw_rd_set_upper_layer_object(struct siw_rd_peer *peer, void *upper);
void *siw_rd_upper_layer_object(const struct siw_rd_peer *peer);
/*
 * Octets in the peer record reserved for the upper layer. They are zeroed when the record is
 * created and when an incarnation of the pair ends. Access under the send lock or the progress
 * lock.
 */
#define SIW_RD_ROOM 36
void *siw_rd_peer_upper_data(struct siw_rd_peer *peer);
/*
 * Returns the IRD that the peer advertised, which this end's ORD to the peer must not exceed. 0:
 * not known yet.
 */
uint8_t siw_rd_peer_ird(const struct siw_rd_peer *peer);
/*
 * For tests and benchmarks: the number of peer records (siw_rd_peer_count), and the size of one
 * peer record in octets (siw_rd_peer_record_size).
 */
uint32_t siw_rd_peer_count(struct siw_rd *rd);
size_t siw_rd_peer_record_size(void);
/*
 * Ends this incarnation of the pair: drops segments that were not sent yet and sends the peer a BYE
 * with this reason. The record is kept.
 */
void siw_rd_end_peer_incarnation(struct siw_rd_peer *peer, enum siw_rd_reason reason);

/*
 * Ends the incarnation of the pair with the peer at addr, if one exists: sends the peer a BYE and
 * reports GONE. Call under the progress lock. Returns whether an incarnation was ended.
 */
bool siw_rd_abandon_peer(struct siw_rd *rd, const struct siw_addr *addr);

/* ---- tx -------------------------------------------------------------------------------------- */

/*
 * Returns the longest segment, in octets, that can be sent to this peer now; at least 1024. The
 * value follows the path MTU and the peer's credit, and may change from one segment to the next.
 */
uint32_t siw_rd_mulpdu(const struct siw_rd_peer *peer, enum siw_rd_space space);
/*
 * Queues a segment: head_len octets at head, then the iovecs; at most mulpdu octets in total. The
 * segment is copied and its CRC computed in the same pass. It is sent as soon as the congestion
 * window, credit and pacing allow; a short segment after unacknowledged ones, or with `more` set,
 * waits for the next siw_rd_flush, so that several segments are sent in one system call. more: the
 * caller queues another segment to the peer before siw_rd_flush, if possible. Returns a value > 0,
 * equal to siw_rd_segments_ever_queued, if the segment was queued; 0 if there is no space now
 * (siw_rd_is_send_queue_full); -EFAULT if the memory is not mapped; -EPIPE if the peer is gone or
 * has restarted, which siw_rd_recv reports too.
 */
int64_t siw_rd_tx(struct siw_rd_peer *peer, enum siw_rd_space space, const void *head,
		  size_t head_len, const struct iovec *iov, int n, bool more);
/*
 * Transmits the segments that siw_rd_tx has queued, as far as the congestion window, pacing and the
 * socket allow. Returns 1 if all segments were sent, 0 if some still wait. *accepted: set to
 * siw_rd_total_accepted_segments of the request space.
 */
int siw_rd_flush(struct siw_rd_peer *peer, uint64_t *accepted);
bool siw_rd_is_send_queue_full(const struct siw_rd_peer *peer, enum siw_rd_space space);
/*
 * siw_rd_segments_ever_queued() returns the number of segments of a PSN space that
 * siw_rd_tx() has queued in this incarnation. siw_rd_total_accepted_segments() returns how many of
 * them, counted without a gap from the first, the peer has acknowledged as accepted.
 */
uint64_t siw_rd_segments_ever_queued(const struct siw_rd_peer *peer, enum siw_rd_space space);
uint64_t siw_rd_total_accepted_segments(const struct siw_rd_peer *peer, enum siw_rd_space space);

/* ---- rx and events --------------------------------------------------------------------------- */

enum siw_rd_event_kind {
	/* the peer's next segment of that space, CRC checked; see space, data, len */
	SIW_RD_SEGMENT = 1,
	/*
	 * the peer acknowledged more segments, or the send queue has space again: the upper layer
	 * must flush
	 */
	SIW_RD_ACKED,
	SIW_RD_NEW_PEER, /* a record was created for an unknown source; its upper pointer is NULL */
	/*
	 * The peer began a new incarnation: both directions and both counts start at 0. It is
	 * unknown whether the peer received the segments that it did not acknowledge.
	 */
	SIW_RD_RESTARTED,
	/*
	 * Like RESTARTED, but the peer closed its endpoint, or was silent for the peer time-out.
	 * The next siw_rd_tx starts a new handshake.
	 */
	SIW_RD_GONE,
	/*
	 * Like GONE, but this end ended the incarnation: a message waited too long for a receive at
	 * the peer.
	 */
	SIW_RD_UNREADY,
	/*
	 * Like RESTARTED, but the peer is another instance: requests posted for the previous
	 * instance must not be sent to the new one.
	 */
	SIW_RD_REPLACED,
};

struct siw_rd_event {
	int kind; /* enum siw_rd_event_kind */
	struct siw_rd_peer *peer;
	int space;  /* in event SEGMENT: enum siw_rd_space */
	bool acked; /* in event SEGMENT: also an event ACKED, to be handled last */
	const uint8_t
		*data; /* SEGMENT: valid until the next siw_rd_recv or siw_rd_pause_delivery */
	uint32_t len;
};
/*
 * Returns 1 and the next event, or 0 if there is no event now. Also services expired timers. The
 * same SEGMENT is returned until siw_rd_mark_segment_accepted or siw_rd_pause_delivery is called.
 */
int siw_rd_recv(struct siw_rd *rd, struct siw_rd_event *event);
/*
 * Called when the last SEGMENT was placed, or discarded on purpose: the segment is acknowledged by
 * the next siw_rd_recv, or by a segment that this end sends before that call.
 */
void siw_rd_mark_segment_accepted(struct siw_rd_peer *peer);
/*
 * Called when the last SEGMENT, of that space, cannot be accepted now, because no receive is
 * posted. The segment is stored. Until siw_rd_resume_delivery, no further segments of that space
 * are delivered for this peer, and the peer gets no further credit in that space. The other space
 * and other peers are not affected. no_receive: the peer is notified that its request lacks a
 * receive.
 */
void siw_rd_pause_delivery(struct siw_rd_peer *peer, enum siw_rd_space space, bool no_receive);
void siw_rd_resume_delivery(struct siw_rd_peer *peer, enum siw_rd_space space);
/*
 * expected: whether the peer still has to send something, such as a Read Response, although it has
 * acknowledged everything. While this is set, a peer that stays silent is declared lost.
 */
void siw_rd_set_response_expected(struct siw_rd_peer *peer, bool expected);

/* cffi: end */

#endif
