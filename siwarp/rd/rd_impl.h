/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rd/rd_impl.h - what the files of reliable datagrams share. */
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
#include "llp/llp.h"
#include "rd/rd.h"
#include "rd/rd_cc.h"
#include "rd/rd_wire.h"

#define SIW_RD_BUF	   65536u
#define SIW_RD_CLASS_LEAST 9 /* a buffer has 1 << class octets, from here */
#define SIW_RD_CLASSES	   8 /* ... to 64 KiB */
#define SIW_RD_SHARE	   4 /* one peer may take 1/4 of the memory that is left for all */
#define SIW_RD_NEVER	   UINT64_MAX
#define SIW_RD_BATCH	   65507u /* most octets of a batch, sent (GSO) or received (GRO) */
#define SIW_RD_ACK_NS	   20000  /* how long an acknowledgement may be delayed for others */
#define SIW_RD_MS	   1000000ull
#define SIW_RD_S	   1000000000ull

/* ---- datagrams sent and not acknowledged ----------------------------------------------------- */

struct siw_rd_slot {
	uint8_t *buf;  /* header, segment and CRC */
	uint32_t len;  /* octets of all three */
	uint8_t class; /* siw_rd_class of buf */
	bool sacked, lost,
		again; /* acknowledged in a bitmap; taken for lost; sent more than once */
	uint64_t sent_ns;
};

/* The window: slots of PSN indices una to nxt, index i in slot[i & mask]. */
struct siw_rd_tx {
	uint32_t mask;
	uint32_t units;	    /* of credit, una to sent */
	uint64_t sent;	    /* index of the first that was never sent */
	uint64_t in_flight; /* octets sent and neither delivered nor lost */
	uint64_t octets;    /* una to nxt */
	uint64_t high;	    /* the greatest index delivered, + 1 */
	uint64_t newest_ns; /* when the latest of those delivered was sent */
	uint32_t n_lost;
	struct siw_rd_slot slot[];
};

/* ---- datagrams that came early, or that cannot be taken now ---------------------------------- */

struct siw_rd_held {
	uint8_t *buf; /* NULL: not here */
	uint32_t len; /* of the datagram */
	uint8_t class;
};

/* Slots of PSN indices rcv to rcv + mask. */
struct siw_rd_rx {
	uint32_t mask;
	uint32_t n;
	uint32_t units;
	uint64_t high; /* the greatest index here, + 1 */
	struct siw_rd_held slot[];
};

/* ---- peers ----------------------------------------------------------------------------------- */

enum siw_rd_state {
	SIW_RD_CLOSED, /* no epochs are agreed; the next segment starts the handshake */
	SIW_RD_HELLO,  /* HELLO was sent */
	SIW_RD_ECHOED, /* CHALLENGE came, ECHO was sent */
	SIW_RD_OPEN,
};

/* Events that are due, in this order. */
#define SIW_RD_REPORT_OVER  0x01 /* RESTARTED or GONE */
#define SIW_RD_REPORT_NEW   0x02
#define SIW_RD_REPORT_ACKED 0x04

struct siw_rd_peer {
	struct siw_rd *rd;
	struct siw_rd_peer *chain; /* the next of its hash */
	struct siw_addr addr;
	uint32_t hash;
	_Atomic(void *) upper;
	struct siw_link lru;	 /* of all peers, the one without traffic for longest first */
	struct siw_link starved; /* the socket had no room for its datagrams */
	struct siw_link news;	 /* it has events due */
	struct siw_link ready;	 /* its next segment lies in rx and may be given */
	struct siw_link acks;	 /* an acknowledgement to it is due */

	uint32_t epoch, peer_epoch; /* peer_epoch 0: not known */
	uint64_t cookie_made; /* siw_rd_ms of the ECHO that opened this incarnation; 0: none */
	uint8_t state;	      /* enum siw_rd_state */
	_Atomic uint8_t ird;
	uint8_t reports;   /* set of SIW_RD_REPORT_ */
	uint8_t over_kind; /* RESTARTED or GONE */
	bool settling : 1; /* that was reported, and the layer above deals with it */
	bool claimed : 1;  /* siw_rd_peer gave it, and siw_rd_set_upper has not come */
	bool verify : 1;   /* idle for long: asked whether it still knows these epochs */
	bool held;	   /* siw_rd_pause */
	bool expect;	   /* siw_rd_expect */
	bool full;	   /* the window held something back since the last acknowledgement */
	uint8_t backoff;   /* the time-out is doubled so often, until there is a round trip again */
	uint8_t rtos;	   /* in a row */
	uint8_t due_acks;
	uint8_t probe_tries : 4;
	uint8_t suspect : 4;  /* long datagrams lost twice since one passed */
	uint16_t credit;      /* units the peer grants, from una on */
	uint16_t probe_limit; /* octets: datagrams of this length were tried and do not pass */

	/*
	 * Indices; a datagram's PSN is its epoch + its index. Oldest unacknowledged, next sent,
	 * next expected.
	 */
	uint64_t una, nxt, rcv;
	uint64_t over_una;    /* una of the incarnation that is over, until that is dealt with */
	struct siw_rd_tx *tx; /* NULL: nothing outstanding */
	struct siw_rd_rx *rx; /* NULL: nothing stored */

	uint64_t heard_ns, sent_ns;
	uint64_t since_ns; /* since when a response of it is due; 0: none is */
	uint64_t ack_ns;   /* when the first of due_acks came */
	uint64_t timer_ns; /* the next of: handshake, PTO, RTO, asking */
	uint64_t pace_ns;  /* nothing is sent before */

	_Atomic uint16_t datagram; /* octets of the longest one now */
	uint16_t whole;		   /* longer ones go in IP fragments; as datagram, or 0 */
	uint16_t search_at;	   /* a datagram of this length starts a search for longer ones */
	uint16_t probe;		   /* octets of the PROBE under way; 0: none */
	uint32_t probe_psn;	   /* and its number */
	uint32_t touched_ms;	   /* when it was moved to the end of lru; low bits of the clock */
	/*
	 * Until when the PROBE's answer is awaited; without a PROBE: no longer ones are tried
	 * before.
	 */
	uint64_t probe_ns;
	struct siw_rd_cc cc;
	struct siw_rd_cookie cookie; /* ECHOED: to be returned */
	uint32_t heap_at;	     /* its place in the heap of timers, + 1; 0: it has no timer */
	uint32_t room[SIW_RD_ROOM / sizeof(uint32_t)]; /* siw_rd_room */
};

/* Octets of the longest datagram to the peer now; any thread. */
static inline uint16_t siw_rd_datagram(const struct siw_rd_peer *peer)
{
	return atomic_load_explicit(&peer->datagram, memory_order_relaxed);
}

struct siw_rd_slab;

/* A free buffer. */
struct siw_rd_free {
	struct siw_rd_free *next;
};

/* A peer's timer, or an earlier time: a postponed timer is re-sifted when it expires. */
struct siw_rd_timer {
	uint64_t at;
	struct siw_rd_peer *peer;
};

struct siw_rd_bucket {
	uint64_t at; /* ns: when the last token would have been due at a steady rate */
};

struct siw_rd {
	siw_lock_t lock;
	struct siw_llp_sock *sock;
	struct siw_llp_port *port;
	struct siw_rd_peer
		*last; /* the source of the last datagram: mostly that of the next, too */
	bool crc;
	bool ipv6;
	uint8_t ird;
	bool blocked; /* the socket was full at the last send */
	uint32_t qkey;
	uint32_t batch_max;	      /* longest datagram that goes into batches; 0: none does */
	uint32_t window_units;	      /* most credit for one peer */
	uint64_t rx_octets, rx_limit; /* memory of buffers and rings, all peers */
	uint64_t tx_octets, tx_limit; /* memory of buffers, all peers */
	uint64_t timeout;
	/*
	 * Longer than a datagram can be in the network. A record idle for so long may be evicted. A
	 * peer silent for a third of it may have evicted this end's, and is asked before it is sent
	 * anything.
	 */
	uint64_t idle;
	uint64_t began;
	uint32_t cookie_ms; /* how long a cookie is valid */
	/*
	 * A heap, the earliest timer first: entry i before 2i + 1 and 2i + 2. It has room for every
	 * record.
	 */
	struct siw_rd_timer *heap;
	uint32_t heap_n, heap_max;
	uint64_t due; /* the earliest timer, as set at the socket */
	uint64_t now; /* when the last datagram came */
	struct siw_sipkey key;
	uint32_t n_peers, max_peers;
	uint32_t buckets; /* a power of two */
	struct siw_rd_peer **table;
	struct siw_rd_slab *slabs;  /* the memory of the records */
	struct siw_rd_peer *unused; /* free records, linked by chain */
	struct siw_link lru, starved, news, ready, acks;
	struct siw_rd_bucket hello, bye;
	uint64_t epochs; /* made so far */

	/* Under the caller's progress lock. */
	struct siw_rd_peer *offered; /* its segment was given to the layer above */
	struct siw_rd_peer *settle;
	uint8_t *direct; /* the given segment's datagram in rx_buf; NULL: it is in the peer's rx */
	uint32_t direct_len; /* octets of it */
	uint8_t *rx_buf;     /* SIW_RD_BUF octets */
	/*
	 * In rx_buf: datagrams of one source, at: the next, each of seg octets but the last, up to
	 * end.
	 */
	struct siw_addr from;
	uint32_t at, end, seg;
	bool batches;	 /* the kernel gives datagrams in batches (UDP_GRO) */
	bool no_batches; /* the kernel cannot */
	uint8_t lulls;	 /* receives in a row that found hardly anything */
	uint32_t streak; /* short datagrams since the socket was empty */

	struct {
		struct siw_rd_free *free;
		uint32_t n;
	} pool[SIW_RD_CLASSES];
};

_Static_assert(sizeof(struct siw_rd_peer) + sizeof(void *) <= 512, "an idle peer's record");

/* ---- rd_peer.c ------------------------------------------------------------------------------- */

int siw_rd_table_init(struct siw_rd *rd);
void siw_rd_table_fini(struct siw_rd *rd);
struct siw_rd_peer *siw_rd_find(struct siw_rd *rd, const struct siw_addr *addr);
/* As siw_rd_peer; lock held. */
int siw_rd_make(struct siw_rd *rd, const struct siw_addr *addr, struct siw_rd_peer **out);
/* A new epoch, never 0. */
uint32_t siw_rd_new_epoch(struct siw_rd *rd);
/* An event of the peer is due: SIW_RD_REPORT_. */
void siw_rd_report(struct siw_rd_peer *peer, uint8_t what);
/*
 * Ends this incarnation of the pair: drops what is unacknowledged, takes another epoch for this
 * end, and reports kind to the layer above (0: it knows).
 */
void siw_rd_over(struct siw_rd_peer *peer, int kind);
/* Its segment at rcv lies in rx and it is not paused: it is given next. */
void siw_rd_offer_next(struct siw_rd_peer *peer);
void siw_rd_touch(struct siw_rd_peer *peer, uint64_t now);

static inline uint32_t siw_rd_class_octets(uint8_t class)
{
	return 1u << (class + SIW_RD_CLASS_LEAST);
}
/* The class of buffers that have room for so many octets. */
static inline uint8_t siw_rd_class(uint32_t octets)
{
	uint8_t class = 0;

	while (siw_rd_class_octets(class) < octets)
		class ++;
	return class;
}
void *siw_rd_buf(struct siw_rd *rd, uint32_t octets, uint8_t *class);
void siw_rd_buf_free(struct siw_rd *rd, void *buf, uint8_t class);

/* ---- rd_tx.c --------------------------------------------------------------------------------- */

/* The socket is full: the peer is pumped again when there is room. */
void siw_rd_starve(struct siw_rd_peer *peer);
/* Sends what window, credit, pace and socket allow; false: something still waits. */
bool siw_rd_pump(struct siw_rd_peer *peer, uint64_t now);
/* Sends the datagram of that index again, whatever the window allows. */
void siw_rd_resend(struct siw_rd_peer *peer, uint64_t index, uint64_t now);
void siw_rd_tx_free(struct siw_rd_peer *peer);
/* ---- rd_ack.c -------------------------------------------------------------------------------- */

/* Handles what a datagram of these epochs acknowledges. octets: of bitmap, which may be NULL. */
void siw_rd_acked(struct siw_rd_peer *peer, const struct siw_rd_wire *wire, const uint8_t *bitmap,
		  uint32_t octets, uint64_t now);
void siw_rd_timeout(struct siw_rd_peer *peer, uint64_t now);
/* Sets the timer anew after something was sent, or delivered. */
void siw_rd_rearm(struct siw_rd_peer *peer, uint64_t now);

/* ---- rd_rx.c --------------------------------------------------------------------------------- */

/* Handles a DATA that lies in rx_buf. */
void siw_rd_data(struct siw_rd_peer *peer, struct siw_rd_wire *wire, uint32_t len, uint64_t now);
void siw_rd_rx_free(struct siw_rd_peer *peer);
void siw_rd_send_ack(struct siw_rd_peer *peer, uint8_t flags, uint32_t psn, uint64_t now);
/* The socket is empty: whether the acknowledgement that is due has been delayed long enough. */
bool siw_rd_ack_now(const struct siw_rd_peer *peer, uint64_t now);
/* An acknowledgement is due: at once, or within SIW_RD_ACK_NS. */
void siw_rd_ack_due(struct siw_rd_peer *peer, bool at_once, uint64_t now);
uint16_t siw_rd_credit(const struct siw_rd_peer *peer);

/* ---- rd_hello.c ------------------------------------------------------------------------------ */

void siw_rd_hello(struct siw_rd_peer *peer, uint64_t now);
/* The handshake's timer. */
void siw_rd_hello_again(struct siw_rd_peer *peer, uint64_t now);
void siw_rd_got_hello(struct siw_rd *rd, const struct siw_addr *from,
		      const struct siw_rd_wire *wire, uint32_t len);
void siw_rd_got_challenge(struct siw_rd *rd, const struct siw_addr *from,
			  const struct siw_rd_wire *wire, uint32_t len, uint64_t now);
void siw_rd_got_echo(struct siw_rd *rd, const struct siw_addr *from, const struct siw_rd_wire *wire,
		     uint32_t len, uint64_t now);
void siw_rd_got_bye(struct siw_rd_peer *peer, const struct siw_rd_wire *wire);
/* Sends a BYE to the source of a datagram whose epochs are not known here. */
void siw_rd_refuse(struct siw_rd *rd, const struct siw_addr *to, const struct siw_rd_wire *wire,
		   uint64_t now);
void siw_rd_bye(struct siw_rd_peer *peer);

/* ---- rd_wire.c ------------------------------------------------------------------------------- */

/* Writes the header of a datagram to this peer, with what is acknowledged now. */
void siw_rd_header(struct siw_rd_peer *peer, enum siw_dgram_type type, uint32_t psn, uint8_t flags,
		   struct siw_rd_wire *out);
/* Adds the CRC behind len octets and sends them: returns as siw_llp_udp_send. */
int siw_rd_send(struct siw_rd *rd, const struct siw_addr *to, uint8_t *datagram, size_t len);

/* ---- rd_mtu.c -------------------------------------------------------------------------------- */

void siw_rd_mtu_start(struct siw_rd_peer *peer);
/* A datagram of so many octets does not pass the path. */
void siw_rd_mtu_lower(struct siw_rd_peer *peer, uint32_t octets, uint64_t now);
/*
 * One more time-out in a row (peer->rtos) while datagrams of up to so many octets were outstanding.
 */
void siw_rd_mtu_silence(struct siw_rd_peer *peer, uint32_t octets, uint64_t now);
/*
 * Of one acknowledgement: octets of the longest datagram lost twice, and of the longest delivered.
 */
void siw_rd_mtu_suspect(struct siw_rd_peer *peer, uint32_t lost, uint32_t passed, uint64_t now);
/* Sends a datagram that is longer than the path's MTU, in fragments: as siw_rd_send. */
int siw_rd_mtu_send(struct siw_rd_peer *peer, uint8_t *datagram, size_t len);
/* Longer datagrams would be of use: probes for them, unless it did so lately. */
void siw_rd_mtu_search(struct siw_rd_peer *peer, uint64_t now);
void siw_rd_mtu_unanswered(struct siw_rd_peer *peer, uint64_t now);
void siw_rd_mtu_probed(struct siw_rd_peer *peer, uint32_t psn);

/* ---- rd_timer.c ------------------------------------------------------------------------------ */

/* Sets the peer's timer to expire at that time, ns. */
void siw_rd_due(struct siw_rd_peer *peer, uint64_t at);
/* Ends its timer. */
void siw_rd_no_timer(struct siw_rd_peer *peer);
/* Makes room for the timers of so many peers; false: no memory. */
bool siw_rd_timers(struct siw_rd *rd, uint32_t peers);
/* Asks the peer for an acknowledgement. */
void siw_rd_ask(struct siw_rd_peer *peer, uint64_t now);
/*
 * After a long silence, before something is sent: asks whether the peer still knows these epochs.
 * 0.
 */
int siw_rd_verify(struct siw_rd_peer *peer, uint64_t now);
/* A response of the peer is due from now on: if it stays silent, it is lost. */
void siw_rd_await(struct siw_rd_peer *peer, uint64_t now);
/* Handles the timers that expired, and the peers that waited for room in the socket. */
void siw_rd_tick(struct siw_rd *rd, uint64_t now);

/* The clock of cookies: milliseconds since this endpoint was opened, from 1. */
static inline uint64_t siw_rd_ms(const struct siw_rd *rd, uint64_t now)
{
	return (now - rd->began) / SIW_RD_MS + 1;
}

/*
 * Whether the peer must send something although it was sent nothing: the layer above expects it, or
 * what came has a gap.
 */
static inline bool siw_rd_awaits_more(const struct siw_rd_peer *peer)
{
	const struct siw_rd_rx *rx = peer->rx;

	return peer->expect || (rx && !peer->held && !rx->slot[peer->rcv & rx->mask].buf);
}

/*
 * Whether the next time-out only repeats the last datagram (a tail loss probe, RFC 8985 section 7):
 * not while the peer is silent, nor while the time-out is backed off.
 */
static inline bool siw_rd_probes_tail(const struct siw_rd_peer *peer)
{
	return peer->cc.srtt && !peer->rtos && !peer->backoff;
}

static inline struct siw_rd_slot *siw_rd_slot_of(struct siw_rd_tx *tx, uint64_t index)
{
	return &tx->slot[index & tx->mask];
}

static inline uint32_t siw_rd_units(uint32_t datagram)
{
	uint32_t segment = datagram - SIW_RD_OVERHEAD;

	return segment ? (segment + SIW_RD_UNIT - 1) / SIW_RD_UNIT : 1;
}

static inline bool siw_rd_take(struct siw_rd_bucket *bucket, uint64_t now, uint64_t each,
			       uint64_t burst)
{
	if (bucket->at + each * burst < now)
		bucket->at = now - each * burst;
	if (bucket->at + each > now)
		return false;
	bucket->at += each;
	return true;
}

#endif
