/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rd/rd_impl.h - what the files of reliable datagrams share. */
#ifndef SIW_RD_IMPL_H
#define SIW_RD_IMPL_H

#include <errno.h>

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
#define SIW_RD_SHARE	   4 /* of the memory left for all, one peer may have this part */
#define SIW_RD_NEVER	   UINT64_MAX
#define SIW_RD_BATCH	   65507u /* octets of a batch, and of what comes as one */
#define SIW_RD_ACK_NS	   20000  /* an acknowledgement may wait so long for company */
#define SIW_RD_MS	   1000000ull
#define SIW_RD_S	   1000000000ull

/* ---- a datagram that is sent, until it is acknowledged ---------------------------------------- */

struct siw_rd_slot {
	uint8_t *buf;  /* room for the header, the segment, room for the CRC */
	uint32_t len;  /* of all that */
	uint8_t class; /* of the buffer */
	bool sacked, lost, again;
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

/* ---- a datagram that came early, or that nobody takes now -------------------------------------- */

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

/* ---- peers -------------------------------------------------------------------------------------- */

enum siw_rd_state {
	SIW_RD_CLOSED, /* nothing was agreed; the next segment starts it */
	SIW_RD_HELLO,  /* a cookie is asked for */
	SIW_RD_ECHOED, /* and brought back */
	SIW_RD_OPEN,
};

/* What is to be told, in this order. */
#define SIW_RD_REPORT_OVER  0x01 /* RESTARTED or GONE */
#define SIW_RD_REPORT_NEW   0x02
#define SIW_RD_REPORT_ACKED 0x04

struct siw_rd_peer {
	struct siw_rd *rd;
	struct siw_rd_peer *chain; /* the next of its hash */
	struct siw_addr addr;
	uint32_t hash;
	void *upper;
	struct siw_link lru;	 /* the one heard or spoken to least lately first */
	struct siw_link starved; /* the socket had no room for what it sends */
	struct siw_link news;	 /* it has something to tell */
	struct siw_link ready;	 /* its next segment lies in rx, and may come up */
	struct siw_link acks;	 /* it is owed an acknowledgement */

	uint32_t epoch, peer_epoch; /* peer_epoch 0: not known */
	uint64_t cookie_made;	    /* siw_rd_ms of the ECHO that made this life; 0: none */
	uint8_t state;		    /* enum siw_rd_state */
	uint8_t ird;
	uint8_t tell;
	uint8_t over_kind; /* RESTARTED or GONE */
	bool settling : 1; /* that was told, and the layer above is at it */
	bool claimed : 1;  /* by who asked for it, until siw_rd_set_upper */
	bool verify : 1;   /* long idle: asked whether it still knows this life */
	bool held;
	bool expect;
	bool full;	 /* the window held something back since the last acknowledgement */
	uint8_t backoff; /* the time-out is doubled so often, until there is a round trip again */
	uint8_t rtos;	 /* in a row */
	uint8_t due_acks;
	uint8_t probe_tries : 4;
	uint8_t suspect : 4;  /* long datagrams lost again since one passed */
	uint16_t credit;      /* what the peer gives, in units, from una on */
	uint16_t probe_limit; /* octets: so many were tried, and do not pass */

	uint64_t una, nxt, rcv; /* indices: of PSN epoch + index */
	uint64_t over_una;	/* of the life that is over, until that is dealt with */
	struct siw_rd_tx *tx;	/* NULL: nothing outstanding */
	struct siw_rd_rx *rx;	/* NULL: nothing kept */

	uint64_t heard_ns, sent_ns;
	uint64_t since_ns; /* since when it owes an answer; 0: it does not */
	uint64_t ack_ns;   /* when the first of due_acks came */
	uint64_t timer_ns; /* what is due next of: handshake, PTO, RTO, asking */
	uint64_t pace_ns;  /* not before */

	uint16_t datagram;   /* octets of the longest one now */
	uint16_t whole;	     /* what is longer goes in fragments; the same, or 0 */
	uint16_t search_at;  /* a datagram so long asks for longer ones */
	uint16_t probe;	     /* octets that are being tried; 0: none */
	uint32_t probe_psn;  /* of the one that is being tried */
	uint32_t touched_ms; /* of the clock, cut: when it went to the end of lru last */
	/* Until when the probe's answer is waited for; with none, longer ones are not tried before. */
	uint64_t probe_ns;
	struct siw_rd_cc cc;
	struct siw_rd_cookie cookie; /* to bring back, while state is ECHOED */
	uint32_t heap_at; /* where it stands in the heap of timers, + 1; 0: it has none */
	uint32_t room[SIW_RD_ROOM / sizeof(uint32_t)]; /* the layer above's */
};

struct siw_rd_slab;

/* A buffer that nobody uses. */
struct siw_rd_free {
	struct siw_rd_free *next;
};

/* A peer's next time, or one before it: what is put off moves when it is looked at. */
struct siw_rd_timer {
	uint64_t at;
	struct siw_rd_peer *peer;
};

struct siw_rd_bucket {
	uint64_t at; /* ns: nothing was taken since */
};

struct siw_rd {
	siw_lock_t lock;
	struct siw_llp_sock *sock;
	struct siw_llp_port *port;
	struct siw_rd_peer *last; /* who came last: most often it comes again */
	bool crc;
	bool ipv6;
	uint8_t ird;
	bool blocked; /* the socket took no more */
	uint32_t qkey;
	uint32_t batch_max;    /* octets of a datagram that a batch may be made of; 0: none */
	uint32_t window_units; /* of credit for one peer */
	uint64_t rx_octets, rx_limit; /* of buffers and rings, of all peers */
	uint64_t tx_octets, tx_limit; /* of buffers, of all peers */
	uint64_t timeout;
	/*
	 * Longer than a datagram can be on its way: who was idle so long may be forgotten. Who was silent
	 * for a third of it may have forgotten this end, and is asked before something is sent.
	 */
	uint64_t idle;
	uint64_t began;
	uint32_t cookie_ms; /* a cookie's life */
	/* Who has a timer, the earliest first: entry i before 2i + 1 and 2i + 2. Room for every record. */
	struct siw_rd_timer *heap;
	uint32_t heap_n, heap_max;
	uint64_t due; /* of the first one, as the socket knows it */
	uint64_t now; /* when the last datagram came */
	struct siw_sipkey key;
	uint32_t n_peers, max_peers;
	uint32_t buckets; /* a power of two */
	struct siw_rd_peer **table;
	struct siw_rd_slab *slabs; /* what records lie in */
	struct siw_rd_peer *spare; /* records of nobody, by chain */
	struct siw_link lru, starved, news, ready, acks;
	struct siw_rd_bucket hello, bye;
	uint64_t epochs; /* made so far */

	/* Under the caller's progress lock. */
	struct siw_rd_peer *offered; /* its segment is with the layer above */
	struct siw_rd_peer *settle;
	uint8_t *direct;     /* the offered one, in rx_buf; NULL: it lies in the peer's rx */
	uint32_t direct_len; /* of the datagram there */
	uint8_t *rx_buf;     /* SIW_RD_BUF octets */
	/* What lies there: datagrams of one source, each of seg octets but the last. at: of the next one. */
	struct siw_addr from;
	uint32_t at, end, seg;
	bool batches;	 /* the kernel gives them together (UDP_GRO) */
	bool no_batches; /* it does not know how */
	uint8_t lulls;	 /* times in a row that hardly anything was there */
	uint32_t streak; /* short ones since the socket was empty */

	struct {
		struct siw_rd_free *free;
		uint32_t n;
	} pool[SIW_RD_CLASSES];
};

_Static_assert(sizeof(struct siw_rd_peer) + sizeof(void *) <= 512, "an idle peer's record");

/* ---- rd_peer.c ------------------------------------------------------------------------------ */

int siw_rd_table_init(struct siw_rd *rd);
void siw_rd_table_fini(struct siw_rd *rd);
struct siw_rd_peer *siw_rd_find(struct siw_rd *rd, const struct siw_addr *addr);
/* As siw_rd_peer(), locked. */
int siw_rd_make(struct siw_rd *rd, const struct siw_addr *addr, struct siw_rd_peer **out);
/* Another epoch at each call; never 0. */
uint32_t siw_rd_new_epoch(struct siw_rd *rd);
/* Something is to be told of the peer: SIW_RD_REPORT_. */
void siw_rd_report(struct siw_rd_peer *peer, uint8_t what);
/*
 * The life of this pair is over: what is unacknowledged goes, this end has another epoch, and the layer
 * above is told (kind; 0: it knows).
 */
void siw_rd_over(struct siw_rd_peer *peer, int kind);
/* Its segment at rcv lies in rx and nothing keeps it: it comes up. */
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

/* ---- rd_tx.c -------------------------------------------------------------------------------- */

/* The socket took no more: pumped again when it may. */
void siw_rd_starve(struct siw_rd_peer *peer);
/* Sends what window, credit and pace allow: false when something waits. */
bool siw_rd_pump(struct siw_rd_peer *peer, uint64_t now);
/* That one again, whatever the window says. */
void siw_rd_resend(struct siw_rd_peer *peer, uint64_t index, uint64_t now);
void siw_rd_tx_free(struct siw_rd_peer *peer);
/* ---- rd_ack.c ------------------------------------------------------------------------------- */

/* What a datagram of this life acknowledges. bitmap: octets of it, may be NULL. */
void siw_rd_acked(struct siw_rd_peer *peer, const struct siw_rd_wire *wire, const uint8_t *bitmap,
		  uint32_t octets, uint64_t now);
void siw_rd_timeout(struct siw_rd_peer *peer, uint64_t now);
/* Sets the timer anew after something was sent, or delivered. */
void siw_rd_rearm(struct siw_rd_peer *peer, uint64_t now);

/* ---- rd_rx.c -------------------------------------------------------------------------------- */

/* A datagram that lies in rx_buf. */
void siw_rd_data(struct siw_rd_peer *peer, struct siw_rd_wire *wire, uint32_t len, uint64_t now);
void siw_rd_rx_free(struct siw_rd_peer *peer);
void siw_rd_send_ack(struct siw_rd_peer *peer, uint8_t flags, uint32_t psn, uint64_t now);
/* The socket is empty, and the acknowledgement that is owed has waited long enough for company. */
bool siw_rd_ack_now(const struct siw_rd_peer *peer, uint64_t now);
/* An acknowledgement is owed: now, or soon. */
void siw_rd_ack_due(struct siw_rd_peer *peer, bool at_once, uint64_t now);
uint16_t siw_rd_credit(const struct siw_rd_peer *peer);

/* ---- rd_hello.c ----------------------------------------------------------------------------- */

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
/* Tells one who speaks of a pair of epochs that is not known here. */
void siw_rd_refuse(struct siw_rd *rd, const struct siw_addr *to, const struct siw_rd_wire *wire,
		   uint64_t now);
void siw_rd_bye(struct siw_rd_peer *peer);

/* ---- rd_wire.c ------------------------------------------------------------------------------- */

/* The header of a datagram to this peer, as of now. */
void siw_rd_header(struct siw_rd_peer *peer, enum siw_dgram_type type, uint32_t psn, uint8_t flags,
		   struct siw_rd_wire *out);
/* Puts the CRC behind len octets and sends it: as siw_llp_udp_send(). */
int siw_rd_send(struct siw_rd *rd, const struct siw_addr *to, uint8_t *datagram, size_t len);

/* ---- rd_mtu.c ------------------------------------------------------------------------------- */

void siw_rd_mtu_start(struct siw_rd_peer *peer);
/* A datagram of so many octets does not pass. */
void siw_rd_mtu_lower(struct siw_rd_peer *peer, uint32_t octets, uint64_t now);
/* Nothing came back of datagrams of up to so many octets: another of peer->rtos in a row. */
void siw_rd_mtu_silence(struct siw_rd_peer *peer, uint32_t octets, uint64_t now);
/* The longest one lost for a second time, and the longest delivered, of one acknowledgement. */
void siw_rd_mtu_suspect(struct siw_rd_peer *peer, uint32_t lost, uint32_t passed, uint64_t now);
/* One longer than the path takes now: in fragments. */
int siw_rd_mtu_send(struct siw_rd_peer *peer, uint8_t *datagram, size_t len);
/* Longer ones would be of use: tries them, unless it did so lately. */
void siw_rd_mtu_search(struct siw_rd_peer *peer, uint64_t now);
void siw_rd_mtu_unanswered(struct siw_rd_peer *peer, uint64_t now);
void siw_rd_mtu_probed(struct siw_rd_peer *peer, uint32_t psn);

/* ---- rd_timer.c ------------------------------------------------------------------------------ */

/* This peer has something due at that time: the endpoint is up then. */
void siw_rd_due(struct siw_rd_peer *peer, uint64_t at);
/* It has no timer any more. */
void siw_rd_no_timer(struct siw_rd_peer *peer);
/* There is room for the timers of so many peers: false without memory. */
bool siw_rd_timers(struct siw_rd *rd, uint32_t peers);
/* Has the peer answer: it is asked what it has. */
void siw_rd_ask(struct siw_rd_peer *peer, uint64_t now);
/* Whether it still knows this life, before something is sent after a long silence: 0. */
int siw_rd_verify(struct siw_rd_peer *peer, uint64_t now);
/* It owes an answer from now on: what is found out if it is silent. */
void siw_rd_await(struct siw_rd_peer *peer, uint64_t now);
/* All that is due, or waited for room in the socket. */
void siw_rd_tick(struct siw_rd *rd, uint64_t now);

/* The clock that cookies are made by: milliseconds of this endpoint's life, from 1. */
static inline uint64_t siw_rd_ms(const struct siw_rd *rd, uint64_t now)
{
	return (now - rd->began) / SIW_RD_MS + 1;
}

/*
 * The peer has to go on though it was sent nothing: the layer above waits for it, or a gap in what came.
 */
static inline bool siw_rd_awaits_more(const struct siw_rd_peer *peer)
{
	const struct siw_rd_rx *rx = peer->rx;

	return peer->expect || (rx && !peer->held && !rx->slot[peer->rcv & rx->mask].buf);
}

/*
 * The next time-out has the last datagram sent once more and nothing else (RFC 8985 section 7): not while the peer
 * is silent, nor while the time-out is backed off.
 */
static inline bool siw_rd_probes_tail(const struct siw_rd_peer *peer)
{
	return peer->cc.srtt && !peer->rtos && !peer->backoff;
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
