/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rd/rd_impl.h - declarations shared by the files of this folder. */
#ifndef SIW_RD_IMPL_H
#define SIW_RD_IMPL_H

#include <errno.h>
#include <stdatomic.h>

#include "base/addr.h"
#include "base/clock.h"
#include "base/counters.h"
#include "base/list.h"
#include "base/lock.h"
#include "base/siphash.h"
#include "base/source.h"
#include "base/trim.h"
#include "llp/llp.h"
#include "rd/rd.h"
#include "rd/rd_cc.h"
#include "rd/rd_wire.h"

#define SIW_RD_BUF	   65536u
#define SIW_RD_CLASS_LEAST 9 /* the smallest buffers have 1 << 9 octets */
#define SIW_RD_CLASSES	   8 /* number of buffer sizes; the largest is 64 KiB */
#define SIW_RD_SHARE	   4 /* one peer may use 1/4 of the memory that is left for all peers */
#define SIW_RD_NEVER	   UINT64_MAX
#define SIW_RD_BATCH	   65507u /* maximum octets of a batch, sent (GSO) or received (GRO) */
#define SIW_RD_ACK_NS	   20000  /* the longest delay of an acknowledgement, ns */
#define SIW_RD_MS	   1000000ull
#define SIW_RD_S	   1000000000ull

/* ---- unacknowledged datagrams ---------------------------------------------------------------- */

struct siw_rd_slot {
	uint8_t *buf; /* header, segment and CRC */
	uint32_t len; /* number of octets of buf that are in use */
	uint32_t
		/*
		 * CRC of a long segment without the header, see
		 * computes_segment_crc_while_copying()
		 */
		crc;
	uint8_t class; /* size class of buf, see siw_rd_size_class */
	bool sacked;   /* the peer received the datagram */
	bool lost;     /* presumed lost, must be retransmitted */
	bool again;    /* sent more than once */
	uint64_t sent_ns;
	struct siw_rd_sent sent;
};

/* The send window of a PSN space: indices una to nxt - 1; index i is in slot[i & mask]. */
struct siw_rd_tx {
	uint32_t mask;
	uint32_t units;	 /* units of credit used by the datagrams una to sent - 1 */
	uint64_t sent;	 /* the lowest index that was never sent */
	uint64_t octets; /* octets of the datagrams una to nxt - 1 */
	uint64_t high;	 /* the highest index that the peer received, + 1 */
	uint32_t n_lost;
	struct siw_rd_slot slot[];
};

/* ---- received datagrams that are early or paused --------------------------------------------- */

struct siw_rd_held {
	uint8_t *buf; /* NULL: the slot is empty */
	uint32_t len; /* octets of the datagram */
	uint8_t class;
};

/* The receive window of a PSN space: indices rcv to rcv + mask. */
struct siw_rd_rx {
	uint32_t mask;
	uint32_t n;
	uint32_t units;
	uint64_t high; /* the highest stored index, + 1 */
	struct siw_rd_held slot[];
};

/* ---- peers ----------------------------------------------------------------------------------- */

enum siw_rd_state {
	SIW_RD_CLOSED, /* no epochs are agreed; the next segment starts the handshake */
	SIW_RD_HELLO,  /* this end has sent a HELLO, and waits for the CHALLENGE */
	SIW_RD_ECHOED, /* this end received a CHALLENGE and sent an ECHO */
	SIW_RD_OPEN,
};

/* Events of a peer to report to the upper layer, in this order. */
#define SIW_RD_REPORT_OVER  0x01 /* the event that ends an incarnation, such as GONE */
#define SIW_RD_REPORT_NEW   0x02
#define SIW_RD_REPORT_ACKED 0x04

/* The state of one PSN space of a peer, for both directions. */
struct siw_rd_seq {
	/*
	 * PSN indices: a datagram's PSN is its epoch + its index. una: the oldest unacknowledged
	 * index; nxt: the next index to be queued; rcv: the next index expected from the peer.
	 */
	uint64_t una, nxt, rcv;
	/*
	 * The value of una, for siw_rd_total_accepted_segments. After the end of an incarnation it
	 * keeps that incarnation's value until the upper layer has handled the end.
	 */
	_Atomic uint64_t accepted;
	struct siw_rd_tx *tx; /* NULL: no segment is queued or unacknowledged */
	struct siw_rd_rx *rx; /* NULL: no received datagram is stored */
	uint16_t credit;      /* units of credit that the peer grants, counted from una */
	/*
	 * time since which the credit does not cover the segment at una although the peer does not
	 * report NOT READY; 0: the credit suffices
	 */
	uint64_t starved_ns;
	/*
	 * The last credit other than 0 that the peer granted, initially 1: no segment uses more
	 * units.
	 */
	_Atomic uint16_t most_units;
	uint8_t space; /* enum siw_rd_space */
	bool held;     /* delivery is paused, see siw_rd_pause_delivery */
};

struct siw_rd_peer {
	struct siw_rd *rd;
	struct siw_rd_peer *chain; /* next peer in the same hash bucket */
	struct siw_addr addr;
	uint32_t hash;
	uint32_t place; /* index of the peer's source in the tables of struct siw_rd_sources */
	_Atomic(void *) upper;
	/* in the list of all peers, least recently used first */
	struct siw_link lru;
	/* linked while datagrams to this peer wait for space in the socket's send buffer */
	struct siw_link starved;
	struct siw_link news;  /* linked while the peer has events to report */
	struct siw_link ready; /* linked while the next segment is stored and can be delivered */
	struct siw_link acks;  /* linked while an acknowledgement to the peer is pending */
	struct siw_link in_source; /* in the list of all records of the same source */

	uint32_t epoch, peer_epoch; /* peer_epoch 0: not known */
	/*
	 * creation time, by siw_rd_cookie_clock_ms, of the cookie whose ECHO opened this
	 * incarnation; 0: none
	 */
	uint64_t cookie_made;
	uint8_t state; /* enum siw_rd_state */
	_Atomic uint8_t ird;
	uint8_t reports;   /* bit mask of SIW_RD_REPORT_ */
	uint8_t over_kind; /* event that reports the end of the incarnation, such as GONE */
	bool settling : 1; /* over_kind was reported, and the upper layer is still handling it */
	/*
	 * siw_rd_get_or_create_peer returned the record, and siw_rd_set_upper_layer_object was not
	 * called yet
	 */
	bool claimed : 1;
	/*
	 * a PROBE was sent after a long idle time to ask whether the peer still knows these epochs
	 */
	bool verify : 1;
	bool given : 1; /* a segment was sent or accepted in an earlier incarnation */
	bool near : 1;	/* the path to the peer does not leave this machine */
	/*
	 * requests to this peer were lost when the last incarnation ended: requests posted after
	 * the loss may be sent to another instance of the peer
	 */
	bool known_lost : 1;
	/* another instance was detected and siw_rd_list_restarted_peers has not reported it yet */
	bool restarted : 1;
	bool expect; /* see siw_rd_set_response_expected */
	bool queued; /* a segment may wait for siw_rd_flush; protected by the caller's send lock */
	/* the congestion window held a datagram back since the last acknowledgement */
	bool full;
	/* how many times the time-out was doubled since the last round-trip measurement */
	uint8_t backoff;
	uint8_t rtos; /* consecutive time-outs */
	/*
	 * After a time-out, until an acknowledgement arrives: 1 + the number of datagrams that may
	 * still be sent; 0: no such limit.
	 */
	uint8_t after_rto;
	uint8_t due_acks;
	uint8_t probe_tries : 4;
	/* long datagrams lost twice since a long datagram was last delivered */
	uint8_t long_losses : 4;
	/* octets of the longest segment that the peer accepts; 0: not known yet */
	uint16_t peer_max_segment;
	uint16_t probe_limit; /* the path drops datagrams of this many octets or more */

	struct siw_rd_seq seq[SIW_RD_SPACES];

	uint64_t in_flight; /* octets that were sent and are neither delivered nor lost */
	uint64_t newest_ns; /* send time of the most recently sent datagram among those delivered */
	/*
	 * receive_wait_ns: time since which the peer's oldest request has waited at this end for a
	 * receive. peer_unready_ns: time since which the peer has reported that this end's oldest
	 * request waits at the peer for a receive; peer_unready_una: una at that time. 0: no
	 * request waits.
	 */
	uint64_t receive_wait_ns, peer_unready_ns, peer_unready_una;
	uint64_t response_octets; /* octets of responses sent since the last request was sent */
	uint64_t last_data_ns;	  /* arrival time of the newest DATA that was accepted or stored */
	uint64_t last_received_ns, last_sent_ns;
	/*
	 * Time of the first of the consecutive time-outs (rtos) in which the peer acknowledged none
	 * of the datagrams that it could have accepted.
	 */
	uint64_t first_timeout_ns;
	/*
	 * The time at which the peer last sent a part of the data for which this end waits
	 * (siw_rd_awaits_more), or at which that wait began.
	 */
	uint64_t last_progress_ns;
	/*
	 * since when this end has waited for an acknowledgement or response of the peer; 0: it does
	 * not wait
	 */
	uint64_t awaited_since_ns;
	uint64_t ack_ns;   /* arrival time of the first datagram that due_acks counts */
	uint64_t timer_ns; /* when the next handshake, PTO, RTO or idle timer expires */
	uint64_t pace_ns;  /* pacing: nothing is sent to the peer before this time */

	/* number of datagrams beyond the acknowledged ones that the peer accepts */
	uint32_t peer_window;
	/* octets of the longest datagram that may be sent to this peer now */
	_Atomic uint16_t datagram;
	/*
	 * Datagrams longer than this are sent in IP fragments. Equal to the member datagram; or 0,
	 * if the path carries only datagrams shorter than the minimum.
	 */
	uint16_t fragmented_len;
	/* A datagram of this length or longer triggers a search for a larger path MTU. */
	uint16_t mtu_search_len;
	uint16_t probe;	    /* octets of the outstanding PROBE; 0: none */
	uint32_t probe_psn; /* PSN of the outstanding PROBE */
	/* when the record was last moved to the end of lru: low bits of the time in ms */
	uint32_t lru_ms;
	/*
	 * While a PROBE is outstanding: its time-out. Otherwise: earliest time of the next probe
	 * for longer datagrams.
	 */
	uint64_t probe_ns;
	/*
	 * The peer's own round-trip and congestion state, from the first segment until the peer has
	 * been idle for a while; otherwise &rd->initial_cc, which holds initial values and is only
	 * read.
	 */
	struct siw_rd_cc *cc;
	/* cc->srtt at the time when cc was freed; 0: never measured */
	uint64_t rtt;
	uint32_t ce; /* DATA of this incarnation received with the ECN mark CE */
	/* the peer's latest count of this end's datagrams received with CE */
	uint32_t ce_reported;
	uint64_t instance;	     /* the instance announced in the latest handshake; 0: none */
	struct siw_rd_cookie cookie; /* state ECHOED: the cookie that the ECHO returns */
	/* this end's last BYE, until the peer answers it; otherwise NULL */
	struct siw_rd_pending_bye *pending_bye;
	/* 1 + index of the peer's timer in the heap; 0: no timer is set */
	uint32_t heap_at;
	uint32_t upper_data[SIW_RD_ROOM / sizeof(uint32_t)]; /* see siw_rd_peer_upper_data */
};

/*
 * Returns the octets of the longest datagram that may be sent to the peer now. Any thread may call
 * this function.
 */
static inline uint16_t siw_rd_max_datagram_octets(const struct siw_rd_peer *peer)
{
	return atomic_load_explicit(&peer->datagram, memory_order_relaxed);
}

/* The progress of the segment that siw_rd_recv returned last. */
enum siw_rd_delivery {
	SIW_RD_NONE,	  /* no segment was returned, or it was acknowledged or paused */
	SIW_RD_DELIVERED, /* the upper layer is handling the segment */
	SIW_RD_ACCEPTED,  /* the upper layer has accepted the segment: it is to be acknowledged */
};

struct siw_rd_slab;

/* A free datagram buffer, in a list of free buffers of one size. */
struct siw_rd_free {
	struct siw_rd_free *next;
};

/*
 * One entry of the timer heap. The time may be earlier than the peer's timer: a postponed timer is
 * re-sifted when the entry expires.
 */
struct siw_rd_timer {
	uint64_t at;
	struct siw_rd_peer *peer;
};

/*
 * Limits, per source address, on the answers that unknown senders can cause and on the peer records
 * that they can occupy: base/source.h.
 */
struct siw_rd_sources {
	uint64_t key;
	/*
	 * rate limits of the answers to HELLOs, and of the BYEs that answer unknown pairs of epochs
	 */
	struct siw_source_buckets hello, bye;
	uint32_t records[SIW_SOURCES];
	/*
	 * Per source: cookie_made of the newest evicted incarnation. ECHOs whose cookie was made at
	 * that time or earlier create no record.
	 */
	uint64_t not_before[SIW_SOURCES];
	struct siw_link
		oldest[SIW_SOURCES]; /* lists of the sources' records, linked by in_source */
};

struct siw_rd {
	siw_lock_t lock;
	struct siw_llp_sock *sock;
	struct siw_llp_poller *poller;
	/*
	 * The sender of the last datagram, cached because the next datagram usually has the same
	 * sender.
	 */
	struct siw_rd_peer *last;
	bool crc;
	bool ipv6;
	uint8_t ird;
	uint8_t rnr_retry, rnr_timer; /* see siw_rd_set_rnr_retry_and_timer */
	bool blocked;		      /* the socket was full at the last send */
	bool shut_down;		      /* siw_rd_shutdown was called */
	bool unreachable;	      /* see siw_rd_set_unreachable */
	uint32_t qkey;
	/* octets of the longest datagram that may be part of a batch; 0: batches do not work */
	uint32_t batch_max;
	uint32_t window_units; /* the largest credit for one peer, in units */
	/* The time when a segment was last queued, or queued segments were sent. */
	uint64_t queued_ns;
	/* the result of siw_crc32c_shift_factor for segments of this number of octets */
	uint32_t crc_shift_octets, crc_shift;
	/* memory used by stored datagrams and their rings for all peers, and its limit */
	uint64_t rx_octets, rx_limit;
	/* peers with congestion state of their own, counted for siw_trim_free_memory */
	struct siw_trim_group busy;
	/* memory used by unacknowledged datagrams for all peers, and its limit */
	uint64_t tx_octets, tx_limit;
	uint64_t timeout;
	/* how long a peer outside this machine may take to complete the handshake, ns */
	uint64_t handshake_timeout;
	/*
	 * Longer than a datagram can stay in the network, ns. A peer record that is idle for this
	 * time may be evicted. A peer that was silent for a third of this time may have evicted
	 * this end's record, and is probed before anything else is sent to it.
	 */
	uint64_t idle;
	uint64_t began;
	uint32_t cookie_ms; /* lifetime of a cookie, ms */
	/*
	 * A binary heap of timers, the earliest first: the children of entry i are 2i + 1 and 2i +
	 * 2. The heap has space for one timer per record.
	 */
	struct siw_rd_timer *heap;
	uint32_t heap_n, heap_max;
	uint64_t due; /* the earliest timer, as reported to the socket */
	uint64_t now; /* arrival time of the last datagram */
	struct siw_sipkey key;
	uint64_t instance;    /* random number of this endpoint's lifetime, announced to peers */
	bool follow_restart;  /* setting rd_follow_restart */
	bool restarts;	      /* see siw_rd_test_and_clear_any_peer_restarted */
	uint32_t n_restarted; /* number of peers whose flag restarted is set */
	uint32_t n_peers, max_peers;
	uint32_t buckets; /* number of hash buckets in table, a power of two */
	struct siw_rd_peer **table;
	struct siw_rd_slab *slabs;  /* blocks of memory that contain the peer records */
	struct siw_rd_peer *unused; /* free records, linked by chain */
	struct siw_link lru, starved, news, ready, acks;
	_Atomic bool has_events; /* list `news` or list `ready` is not empty */
	/* initial congestion state, read for peers that have no state of their own */
	struct siw_rd_cc initial_cc;
	struct siw_rd_sources *sources; /* limits by source address; NULL until needed */
	uint64_t epochs;		/* number of epochs generated so far */

	/* Members protected by the caller's progress lock: */
	/* the peer whose segment was delivered to the upper layer */
	struct siw_rd_peer *delivered_peer;
	struct siw_rd_seq *delivered_seq; /* PSN space of the segment that was delivered */
	/*
	 * enum siw_rd_delivery. Only the upper layer's acceptance is stored without the lock, so
	 * that the lock is acquired once for a segment's acceptance and the next call.
	 */
	_Atomic uint8_t delivery;
	struct siw_rd_peer *settle;
	/* datagram of the delivered segment in rx_buf; NULL: it is stored in the peer's rx */
	uint8_t *direct;
	uint32_t direct_len; /* octets of the datagram at direct */
	uint8_t *rx_buf;     /* a buffer of SIW_RD_BUF octets */
	/*
	 * All datagrams in rx_buf come from this sender. Each has seg octets; the last one may be
	 * shorter. The next unprocessed datagram begins at offset `at`; the last one ends at offset
	 * `end`.
	 */
	struct siw_addr from;
	uint32_t at, end, seg;
	bool ecn;	 /* datagrams are sent with ECT(0), and CE marks are reported to the peer */
	bool ce;	 /* the datagrams in rx_buf arrived with CE */
	uint32_t streak; /* short datagrams received since the socket was last empty */

	struct {
		struct siw_rd_free *free;
		uint32_t n;
	} pool[SIW_RD_CLASSES];
};

_Static_assert(sizeof(struct siw_rd_peer) + sizeof(void *) <= 640, "size of an idle peer record");

/* ---- rd_peer.c ------------------------------------------------------------------------------- */

int siw_rd_peer_table_init(struct siw_rd *rd);
void siw_rd_peer_table_fini(struct siw_rd *rd);
struct siw_rd_peer *siw_rd_peer_find(struct siw_rd *rd, const struct siw_addr *addr);
/*
 * Finds or creates the record of the peer at addr. Returns the same values as
 * siw_rd_get_or_create_peer. Called with the endpoint's lock held.
 */
int siw_rd_get_or_create_peer_locked(struct siw_rd *rd, const struct siw_addr *addr,
				     struct siw_rd_peer **out);
/* Returns a new epoch, never 0. */
uint32_t siw_rd_new_epoch(struct siw_rd *rd);
/* Returns rd->sources, which are allocated on first use; NULL: no memory. */
struct siw_rd_sources *siw_rd_get_source_table(struct siw_rd *rd);
/*
 * Updates the value that siw_rd_total_accepted_segments returns. Called after una (the index of the
 * oldest unacknowledged datagram) has changed, or the end of an incarnation was handled.
 */
void siw_rd_store_accepted_counts(struct siw_rd_peer *peer);
/* Schedules an event of the peer for the upper layer; what: a SIW_RD_REPORT_ bit. */
void siw_rd_queue_peer_event(struct siw_rd_peer *peer, uint8_t what);
/*
 * Ends this incarnation of the pair: drops all unacknowledged segments, gives this end a new epoch,
 * and reports kind to the upper layer (0: reports nothing).
 */
void siw_rd_end_incarnation(struct siw_rd_peer *peer, int kind);
/*
 * Allocates congestion state for the peer, if the peer has none of its own. Returns false if there
 * is no memory.
 */
bool siw_rd_cc_alloc_for_peer(struct siw_rd_peer *peer);
/*
 * Frees the peer's congestion state and keeps its round-trip time. No datagram may be outstanding.
 */
void siw_rd_cc_free_of_peer(struct siw_rd_peer *peer);
/* If a segment at rcv is stored and its space is not paused, schedules its delivery. */
void siw_rd_schedule_delivery(struct siw_rd_peer *peer);
void siw_rd_move_to_end_of_lru(struct siw_rd_peer *peer, uint64_t now);

static inline uint32_t siw_rd_size_class_octets(uint8_t class)
{
	return 1u << (class + SIW_RD_CLASS_LEAST);
}
/* Returns the size class of the smallest buffers that hold this number of octets. */
static inline uint8_t siw_rd_size_class(uint32_t octets)
{
	uint8_t class = 0;

	while (siw_rd_size_class_octets(class) < octets)
		class ++;
	return class;
}
void *siw_rd_alloc_buffer(struct siw_rd *rd, uint32_t octets, uint8_t *class);
void siw_rd_buf_free(struct siw_rd *rd, void *buf, uint8_t class);

/* ---- rd_tx.c --------------------------------------------------------------------------------- */

/*
 * Called when the socket is full: siw_rd_send_queued_datagrams will be called for the peer when the
 * socket has space again.
 */
void siw_rd_queue_peer_for_full_socket(struct siw_rd_peer *peer);
/*
 * Sends the queued segments that the congestion window, credit, pacing and the socket allow.
 * Returns false if a segment still waits.
 */
bool siw_rd_send_queued_datagrams(struct siw_rd_peer *peer, uint64_t now);
/* Retransmits the datagram with this index, regardless of the congestion window. */
void siw_rd_resend_datagram(struct siw_rd_peer *peer, struct siw_rd_seq *seq, uint64_t index,
			    uint64_t now);
void siw_rd_release_send_window(struct siw_rd_peer *peer, struct siw_rd_seq *seq);
/*
 * Returns whether the credit covers all datagrams from una to this index. A datagram that the
 * credit does not cover is neither sent nor retransmitted.
 */
bool siw_rd_is_covered_by_credit(const struct siw_rd_seq *seq, uint64_t index);
/* Returns whether a segment is outstanding and the credit does not cover even the first one. */
bool siw_rd_lacks_credit_for_oldest_segment(const struct siw_rd_seq *seq);
/* ---- rd_ack.c -------------------------------------------------------------------------------- */

/*
 * Handles the acknowledgement in a datagram of the current epochs. ack: the body of an ACK, or NULL
 * for other types.
 */
void siw_rd_handle_ack(struct siw_rd_peer *peer, const struct siw_rd_wire *wire,
		       const struct siw_rd_ack *ack, uint64_t now);
/* Returns whether the octets after the header of an ACK are a well-formed body. */
bool siw_rd_is_valid_ack_body(const void *body, uint32_t octets);
void siw_rd_handle_retransmission_timeout(struct siw_rd_peer *peer, uint64_t now);
/* Sets the retransmission timer after a transmission or delivery. */
void siw_rd_set_retransmission_timer(struct siw_rd_peer *peer, uint64_t now);

/* ---- rd_rx.c --------------------------------------------------------------------------------- */

/* If the upper layer has accepted the delivered segment, schedules its acknowledgement. */
void siw_rd_acknowledge_accepted_segment(struct siw_rd *rd);
/* Handles a DATA datagram in rx_buf. */
void siw_rd_handle_data(struct siw_rd_peer *peer, struct siw_rd_wire *wire, uint32_t len,
			uint64_t now);
void siw_rd_free_receive_window(struct siw_rd_peer *peer, struct siw_rd_seq *seq);
void siw_rd_send_ack(struct siw_rd_peer *peer, uint8_t flags, uint32_t psn, uint64_t now);
/* Called when the socket is empty: returns whether the pending acknowledgement must be sent now. */
bool siw_rd_must_ack_now(const struct siw_rd_peer *peer, uint64_t now);
/*
 * Returns the PSN space whose next segment is stored and can be delivered, responses first; or
 * NULL.
 */
struct siw_rd_seq *siw_rd_sequence_space_to_deliver(struct siw_rd_peer *peer);
/* Schedules an acknowledgement: sends it immediately, or within SIW_RD_ACK_NS. */
void siw_rd_schedule_ack(struct siw_rd_peer *peer, bool at_once, uint64_t now);
uint16_t siw_rd_credit_to_grant(const struct siw_rd_peer *peer, const struct siw_rd_seq *seq);

/* ---- rd_rnr.c -------------------------------------------------------------------------------- */

/* Returns whether the peer's oldest request waits here for a receive. */
static inline bool siw_rd_request_lacks_receive(const struct siw_rd_peer *peer)
{
	return peer->receive_wait_ns && peer->seq[SIW_RD_REQUESTS].held;
}
/*
 * Handles the NOT READY flag of an ACK, after siw_rd_handle_ack: whether this end's oldest request
 * waits at the peer for a receive. Ends the incarnation if it has waited too long.
 */
void siw_rd_handle_not_ready(struct siw_rd_peer *peer, const struct siw_rd_wire *wire,
			     uint64_t now);

/* ---- rd_life.c ------------------------------------------------------------------------------- */

/*
 * Records the instance that the peer announced in a handshake. Returns true if the instance has
 * changed: requests posted for the previous instance must not be sent to this one.
 */
bool siw_rd_update_peer_instance(struct siw_rd_peer *peer, uint64_t instance);
/*
 * Called when the peer record is freed, or a restart of the peer was reported: clears the peer's
 * flag `restarted`.
 */
void siw_rd_clear_peer_restarted_flag(struct siw_rd_peer *peer);

/*
 * Handles a changed instance of the peer: ends the incarnation with the previous instance. The end
 * is reported even if nothing was in progress, because requests posted for the previous instance
 * must not be sent.
 */
void siw_rd_handle_replaced_instance(struct siw_rd_peer *peer);

/* ---- rd_hello.c ------------------------------------------------------------------------------ */

void siw_rd_start_handshake(struct siw_rd_peer *peer, uint64_t now);
/* Called when the handshake timer has expired: retransmits HELLO or ECHO. */
void siw_rd_retransmit_handshake(struct siw_rd_peer *peer, uint64_t now);
void siw_rd_handle_hello(struct siw_rd *rd, const struct siw_addr *from,
			 const struct siw_rd_wire *wire, uint32_t len);
void siw_rd_handle_challenge(struct siw_rd *rd, const struct siw_addr *from,
			     const struct siw_rd_wire *wire, uint32_t len, uint64_t now);
void siw_rd_handle_cookie_echo(struct siw_rd *rd, const struct siw_addr *from,
			       const struct siw_rd_wire *wire, uint32_t len, uint64_t now);
/*
 * Handles a HELLO of an unsupported version of the LLP header: answers with the supported versions.
 */
void siw_rd_handle_hello_of_other_version(struct siw_rd *rd, const struct siw_addr *from,
					  const struct siw_rd_wire *wire, uint32_t len);
void siw_rd_handle_versions_datagram(struct siw_rd *rd, const struct siw_addr *from,
				     const struct siw_rd_wire *wire, uint32_t len);
/* Fills the header of a datagram that carries no acknowledgement. */
void siw_rd_write_bare_header(const struct siw_rd *rd, enum siw_dgram_type type, uint32_t epoch,
			      uint32_t its_epoch, struct siw_rd_wire *out);

/* ---- rd_bye.c -------------------------------------------------------------------------------- */

/*
 * Like siw_rd_end_incarnation, but also sends the peer a BYE, which is retransmitted until it is
 * answered.
 */
void siw_rd_end_incarnation_with_bye(struct siw_rd_peer *peer, enum siw_rd_reason reason, int kind);
/*
 * Returns the time of the next retransmission of the pending BYE; SIW_RD_NEVER: no BYE is pending.
 */
uint64_t siw_rd_next_bye_time(const struct siw_rd_peer *peer);
void siw_rd_bye_retransmit(struct siw_rd_peer *peer, uint64_t now);
/* Stops the retransmission of the pending BYE. */
void siw_rd_pending_bye_free(struct siw_rd_peer *peer);
void siw_rd_handle_bye(struct siw_rd_peer *peer, const struct siw_rd_wire *wire, uint64_t now);
/*
 * Answers a datagram whose epochs have ended or are unknown with a BYE, if an answer is allowed.
 * peer: the record of the datagram's source, or NULL.
 */
void siw_rd_answer_with_bye(struct siw_rd *rd, struct siw_rd_peer *peer,
			    const struct siw_rd_wire *wire);
/* Sends each peer one BYE, without retransmission. */
void siw_rd_send_final_byes(struct siw_rd *rd);

/* ---- rd_wire.c ------------------------------------------------------------------------------- */

/*
 * Returns whether a datagram that begins with this octet is part of a handshake: such a datagram
 * has a CRC even if CRCs are disabled.
 */
static inline bool siw_rd_is_handshake_type(uint8_t first)
{
	int type = first >> 4;

	return (type >= SIW_DGRAM_RD_HELLO && type <= SIW_DGRAM_RD_ECHO) ||
	       type == SIW_DGRAM_RD_VERSIONS;
}
/* Writes the header of a datagram to this peer, with the current acknowledgement. */
void siw_rd_write_header(struct siw_rd_peer *peer, enum siw_dgram_type type, uint32_t psn,
			 uint8_t flags, uint64_t now, struct siw_rd_wire *out);
/*
 * Appends the CRC to a datagram of len octets and sends it. Returns the result of siw_llp_udp_send.
 */
int siw_rd_send_datagram(struct siw_rd *rd, const struct siw_addr *to, uint8_t *datagram,
			 size_t len);

/* ---- rd_mtu.c -------------------------------------------------------------------------------- */

void siw_rd_mtu_init(struct siw_rd_peer *peer);
/*
 * Called when the handshake has determined the longest segment that the peer accepts: sets the
 * datagram length.
 */
void siw_rd_mtu_handle_handshake_done(struct siw_rd_peer *peer);
/*
 * Called when the peer's incarnation has ended: the longest segment of the next incarnation is
 * unknown.
 */
void siw_rd_mtu_handle_incarnation_end(struct siw_rd_peer *peer);
/* Called when a datagram of this length did not pass the path: reduces the datagram length. */
void siw_rd_mtu_reduce_datagram_len(struct siw_rd_peer *peer, uint32_t octets, uint64_t now);
/* Handles one more consecutive time-out (peer->rtos); octets: the longest outstanding datagram. */
void siw_rd_mtu_handle_retransmission_timeout(struct siw_rd_peer *peer, uint32_t octets,
					      uint64_t now);
/*
 * Detects from one acknowledgement that the path MTU has become smaller, and reduces the datagram
 * length. lost: octets of the longest datagram lost twice; passed: octets of the longest datagram
 * delivered.
 */
void siw_rd_mtu_detect_smaller_mtu(struct siw_rd_peer *peer, uint32_t lost, uint32_t passed,
				   uint64_t now);
/*
 * Sends a datagram longer than the path MTU in IP fragments. Returns the result of
 * siw_rd_send_datagram.
 */
int siw_rd_send_in_ip_fragments(struct siw_rd_peer *peer, uint8_t *datagram, size_t len);
/*
 * Called when a longer datagram could have been filled: probes the path for a longer datagram,
 * unless a probe was sent recently.
 */
void siw_rd_mtu_probe_longer_datagram(struct siw_rd_peer *peer, uint64_t now);
void siw_rd_mtu_handle_lost_probe(struct siw_rd_peer *peer, uint64_t now);
void siw_rd_mtu_handle_probe_ack(struct siw_rd_peer *peer, uint32_t psn);

/* ---- rd_timer.c ------------------------------------------------------------------------------ */

/* Sets the peer's timer to expire at this time, in ns, unless the timer already expires earlier. */
void siw_rd_set_timer(struct siw_rd_peer *peer, uint64_t at);
/* Cancels the peer's timer. */
void siw_rd_cancel_timer(struct siw_rd_peer *peer);
/* Allocates memory for the timers of this number of peers. Returns false if there is no memory. */
bool siw_rd_reserve_timers(struct siw_rd *rd, uint32_t peers);
/*
 * Returns the time, in ns, at which a silent peer is declared lost; SIW_RD_NEVER: the peer owes
 * nothing.
 */
uint64_t siw_rd_time_to_declare_peer_lost(const struct siw_rd_peer *peer);
/* Sends an empty PROBE, which the peer must acknowledge. */
void siw_rd_send_liveness_probe(struct siw_rd_peer *peer, uint64_t now);
/*
 * Called before sending after a long silence: sends a PROBE to find out whether the peer still
 * knows these epochs. Returns 0: nothing can be queued until the peer has answered.
 */
int siw_rd_probe_peer_before_send(struct siw_rd_peer *peer, uint64_t now);
/*
 * Called when the peer owes a response from now on: the peer is declared lost if it stays silent.
 */
void siw_rd_note_peer_owes_response(struct siw_rd_peer *peer, uint64_t now);
/* Services expired timers, and the peers that waited for space in the socket. */
void siw_rd_service_timers(struct siw_rd *rd, uint64_t now);

/*
 * Returns the time of the clock for cookies: milliseconds since this endpoint was opened, plus 1.
 */
static inline uint64_t siw_rd_cookie_clock_ms(const struct siw_rd *rd, uint64_t now)
{
	return (now - rd->began) / SIW_RD_MS + 1;
}

static inline bool siw_rd_has_gap(const struct siw_rd_seq *seq)
{
	return seq->rx && !seq->held && !seq->rx->slot[seq->rcv & seq->rx->mask].buf;
}

/*
 * Returns whether the peer must send something although nothing sent to it is outstanding: the
 * upper layer expects data, or there is a gap in the received datagrams.
 */
static inline bool siw_rd_awaits_more(const struct siw_rd_peer *peer)
{
	return peer->expect || siw_rd_has_gap(&peer->seq[SIW_RD_REQUESTS]) ||
	       siw_rd_has_gap(&peer->seq[SIW_RD_RESPONSES]);
}

/* Returns whether the upper layer still has to handle the end of an incarnation. */
static inline bool siw_rd_incarnation_ended(const struct siw_rd_peer *peer)
{
	return (peer->reports & SIW_RD_REPORT_OVER) || peer->settling;
}

/* Returns whether the peer has a send window, which requires congestion state. */
static inline bool siw_rd_has_window(const struct siw_rd_peer *peer)
{
	return peer->seq[SIW_RD_REQUESTS].tx || peer->seq[SIW_RD_RESPONSES].tx;
}

static inline bool siw_rd_has_cc(const struct siw_rd_peer *peer)
{
	return peer->cc != &peer->rd->initial_cc;
}

/* Returns whether a segment is queued or unacknowledged. */
static inline bool siw_rd_has_outstanding_segment(const struct siw_rd_peer *peer)
{
	return peer->seq[SIW_RD_REQUESTS].una != peer->seq[SIW_RD_REQUESTS].nxt ||
	       peer->seq[SIW_RD_RESPONSES].una != peer->seq[SIW_RD_RESPONSES].nxt;
}

/* Returns whether a datagram waits for its first transmission or for retransmission. */
static inline bool siw_rd_has_unsent_datagram(const struct siw_rd_seq *seq)
{
	return seq->tx && (seq->tx->n_lost || seq->tx->sent < seq->nxt);
}

/* Returns the PSN of the next request; an ACK carries this PSN in its header. */
static inline uint32_t siw_rd_next_psn(const struct siw_rd_peer *peer)
{
	return peer->epoch + (uint32_t)peer->seq[SIW_RD_REQUESTS].nxt;
}

/*
 * Returns whether the next time-out only retransmits the last datagram, as a tail loss probe (RFC
 * 8985 section 7). There is no tail loss probe while the peer is silent or the time-out is backed
 * off.
 */
static inline bool siw_rd_probes_tail(const struct siw_rd_peer *peer)
{
	return peer->cc->srtt && !peer->rtos && !peer->backoff;
}

static inline struct siw_rd_slot *siw_rd_slot_of(struct siw_rd_tx *tx, uint64_t index)
{
	return &tx->slot[index & tx->mask];
}

static inline uint32_t siw_rd_credit_units(uint32_t datagram)
{
	uint32_t segment = datagram - SIW_RD_OVERHEAD;

	return segment ? (segment + SIW_RD_UNIT - 1) / SIW_RD_UNIT : 1;
}

/*
 * Returns the time at which pacing allows a full batch: waiting for a batch keeps the number of
 * timers low on a fast path.
 */
static inline uint64_t siw_rd_next_paced_send_time(const struct siw_rd_peer *peer)
{
	return peer->pace_ns + siw_rd_cc_pacing_delay(peer->cc, peer->cc->quantum);
}

#endif
