/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rd/rd_impl.h - what the files of this folder share. */
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
#define SIW_RD_CLASSES	   8 /* the largest, 64 KiB */
#define SIW_RD_SHARE	   4 /* one peer may use 1/4 of the memory that is left for all peers */
#define SIW_RD_NEVER	   UINT64_MAX
#define SIW_RD_BATCH	   65507u /* maximum octets of a batch, sent (GSO) or received (GRO) */
#define SIW_RD_ACK_NS	   20000  /* the longest delay of an acknowledgement */
#define SIW_RD_MS	   1000000ull
#define SIW_RD_S	   1000000000ull

/* ---- datagrams sent and not acknowledged ----------------------------------------------------- */

struct siw_rd_slot {
	uint8_t *buf;  /* header, segment and CRC */
	uint32_t len;  /* octets of buf in use */
	uint8_t class; /* of buf, as siw_rd_class */
	bool sacked;   /* delivered */
	bool lost;     /* presumed lost, to be retransmitted */
	bool again;    /* sent more than once */
	uint64_t sent_ns;
	struct siw_rd_sent sent;
};

/* The send window of a space: the PSN indices una to nxt; index i is in slot[i & mask]. */
struct siw_rd_tx {
	uint32_t mask;
	uint32_t units;	 /* of credit, used by una to sent */
	uint64_t sent;	 /* the first index that was never sent */
	uint64_t octets; /* octets of una to nxt */
	uint64_t high;	 /* the greatest delivered index, + 1 */
	uint32_t n_lost;
	struct siw_rd_slot slot[];
};

/* ---- datagrams that came early or are paused ------------------------------------------------- */

struct siw_rd_held {
	uint8_t *buf; /* NULL: nothing is stored here */
	uint32_t len; /* octets of the datagram */
	uint8_t class;
};

/* The receive window of a space: the PSN indices rcv to rcv + mask. */
struct siw_rd_rx {
	uint32_t mask;
	uint32_t n;
	uint32_t units;
	uint64_t high; /* the greatest stored index, + 1 */
	struct siw_rd_held slot[];
};

/* ---- peers ----------------------------------------------------------------------------------- */

enum siw_rd_state {
	SIW_RD_CLOSED, /* no epochs are agreed; the next segment starts the handshake */
	SIW_RD_HELLO,  /* HELLO was sent */
	SIW_RD_ECHOED, /* a CHALLENGE came, an ECHO was sent */
	SIW_RD_OPEN,
};

/* Events to report, in this order. */
#define SIW_RD_REPORT_OVER  0x01 /* RESTARTED or GONE */
#define SIW_RD_REPORT_NEW   0x02
#define SIW_RD_REPORT_ACKED 0x04

/* One PSN space of a peer: what is sent in it and what is received. */
struct siw_rd_seq {
	/*
	 * PSN indices: a datagram's PSN is its epoch + its index. Oldest unacknowledged; next to be
	 * queued; next expected from the peer.
	 */
	uint64_t una, nxt, rcv;
	/* una of the incarnation that ended, until the layer above has handled that */
	uint64_t over_una;
	struct siw_rd_tx *tx; /* NULL: nothing is outstanding */
	struct siw_rd_rx *rx; /* NULL: nothing is stored */
	uint16_t credit;      /* units that the peer grants, from una on */
	/* since when the credit is too small for the segment at una without NOT READY; 0: it is not */
	uint64_t starved_ns;
	/* the last credit that was not 0, or 1: no segment takes more units */
	_Atomic uint16_t most_units;
	uint8_t space; /* enum siw_rd_space */
	bool held;     /* siw_rd_pause */
};

struct siw_rd_peer {
	struct siw_rd *rd;
	struct siw_rd_peer *chain; /* the next in its hash bucket */
	struct siw_addr addr;
	uint32_t hash;
	uint32_t place; /* of its source: siw_source_place */
	_Atomic(void *) upper;
	/* in the list of all peers; the first one had no traffic for the longest time */
	struct siw_link lru;
	struct siw_link starved; /* linked while its datagrams wait for room in the socket */
	struct siw_link news;	 /* linked while it has events to report */
	struct siw_link ready;	 /* linked while a next segment is in an rx and can be delivered */
	struct siw_link acks;	 /* linked while an acknowledgement to it is due */
	struct siw_link kin;	 /* in the list of all records of its source */

	uint32_t epoch, peer_epoch; /* peer_epoch 0: not known */
	uint64_t cookie_made; /* siw_rd_ms of the ECHO that opened this incarnation; 0: none */
	uint8_t state;	      /* enum siw_rd_state */
	_Atomic uint8_t ird;
	uint8_t reports;   /* set of SIW_RD_REPORT_ */
	uint8_t over_kind; /* RESTARTED or GONE */
	bool settling : 1; /* over_kind was reported, and the layer above is handling it */
	bool claimed : 1;  /* siw_rd_peer returned it, and siw_rd_set_upper was not called yet */
	/* a PROBE asks whether it still knows these epochs, after a long idle time */
	bool verify : 1;
	bool given : 1; /* something was taken, or sent, in an earlier incarnation */
	bool near : 1;	/* the path to it does not leave this machine */
	/* requests to it were lost, so that who posts more knows that the instance may be gone */
	bool known_lost : 1;
	bool restarted : 1; /* another instance was met, and siw_rd_restarts has not told yet */
	bool expect;	    /* siw_rd_expect */
	bool full;	    /* the window held something back since the last acknowledgement */
	/* how many times the time-out was doubled since the last measured round trip */
	uint8_t backoff;
	uint8_t rtos; /* time-outs in a row */
	/* 1 + datagrams that may be sent before something is acknowledged; 0: no such limit */
	uint8_t after_rto;
	uint8_t due_acks;
	uint8_t probe_tries : 4;
	uint8_t suspect : 4;  /* long datagrams lost twice since a long one was last delivered */
	uint16_t its_longest; /* octets of the longest segment that it accepts; 0: not known yet */
	uint16_t probe_limit; /* octets: the path drops datagrams of this length */

	struct siw_rd_seq seq[SIW_RD_SPACES];

	uint64_t in_flight; /* octets that were sent and are neither delivered nor lost */
	uint64_t newest_ns; /* when the most recently sent of the delivered ones was sent */
	/*
	 * Since when its request has lacked a receive here, and since when its acknowledgements
	 * have said that ours does there, with una of then; 0: none does.
	 */
	uint64_t lacks_ns, unready_ns, unready_una;
	uint64_t passed;  /* octets of responses sent since a request was sent */
	uint64_t came_ns; /* when the newest DATA that was taken or stored came */
	uint64_t heard_ns, sent_ns;
	/* since when what the peer could take is not acknowledged; the first time-out of these */
	uint64_t stuck_ns;
	/* when the peer last ended a wait of siw_rd_awaits_more in part, or when that wait began */
	uint64_t moved_ns;
	uint64_t since_ns; /* since when a response of the peer has been due; 0: none is due */
	uint64_t ack_ns;   /* when the first datagram that due_acks counts came */
	uint64_t timer_ns; /* when the next handshake, PTO, RTO or idle timer expires */
	uint64_t pace_ns;  /* nothing is sent before this time */

	uint32_t its_window;	   /* datagrams that it accepts beyond what it acknowledged */
	_Atomic uint16_t datagram; /* octets of the longest datagram now */
	/* longer datagrams are sent in IP fragments; equals datagram, or 0 */
	uint16_t whole;
	/* sending a datagram of at least this length starts a search for a longer one */
	uint16_t search_at;
	uint16_t probe;	    /* octets of the outstanding PROBE; 0: none */
	uint32_t probe_psn; /* its PSN */
	/* when it was last moved to the end of lru: low bits of the time in ms */
	uint32_t touched_ms;
	/*
	 * With a PROBE outstanding: when it times out. Else: no longer datagrams are probed before.
	 */
	uint64_t probe_ns;
	/*
	 * Round trips and congestion control of its own, from the first segment until it has been idle
	 * for a while; else rd->resting, which only has first values to read.
	 */
	struct siw_rd_cc *cc;
	uint64_t rtt;		      /* what cc->srtt was when cc was freed; 0: never measured */
	uint32_t ce;		      /* DATA of this incarnation that came with CE */
	uint32_t ce_told;	      /* the peer's last count of ours */
	uint64_t instance;	      /* that it told when it was met last; 0: none */
	struct siw_rd_cookie cookie;  /* ECHOED: the cookie that the ECHO returns */
	struct siw_rd_parted *parted; /* this end's last BYE, until it is answered; else NULL */
	uint32_t heap_at;	      /* its index in the heap of timers, + 1; 0: no timer is set */
	uint32_t room[SIW_RD_ROOM / sizeof(uint32_t)]; /* siw_rd_room */
};

/* Octets of the longest datagram to the peer now. Any thread. */
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

/* What strangers may cause and hold, by source: base/source.h. */
struct siw_rd_sources {
	uint64_t key;
	struct siw_source_buckets hello, bye; /* answers: to HELLOs; to unknown pairs */
	uint32_t records[SIW_SOURCES];
	/*
	 * siw_rd_ms: a record that began then was evicted; ECHOs with a cookie of that time, or an
	 * earlier one, make no record.
	 */
	uint64_t not_before[SIW_SOURCES];
	struct siw_link oldest[SIW_SOURCES]; /* their records, linked by kin */
};

struct siw_rd {
	siw_lock_t lock;
	struct siw_llp_sock *sock;
	struct siw_llp_port *port;
	/* The source of the last datagram; the next one mostly has the same. */
	struct siw_rd_peer *last;
	bool crc;
	bool ipv6;
	uint8_t ird;
	uint8_t rnr_retry, rnr_timer; /* siw_rd_set_rnr */
	bool blocked;		      /* the socket was full at the last send */
	bool leaving;		      /* siw_rd_leave */
	bool away;		      /* siw_rd_set_away */
	uint32_t qkey;
	/* octets of the longest datagram that may be part of a batch; 0: none */
	uint32_t batch_max;
	uint32_t window_units; /* the most credit for one peer */
	/* memory of stored datagrams and their rings, all peers together */
	uint64_t rx_octets, rx_limit;
	struct siw_crowd busy;	      /* peers with congestion control of their own */
	uint64_t tx_octets, tx_limit; /* memory of unacknowledged datagrams, all peers together */
	uint64_t timeout;
	uint64_t meet; /* how long a peer beyond this machine has to answer a first segment */
	/*
	 * Longer than a datagram can stay in the network. A record idle for this time may be
	 * evicted. A peer that was silent for a third of it may have evicted this end's record, and
	 * is probed before anything else is sent to it.
	 */
	uint64_t idle;
	uint64_t began;
	uint32_t cookie_ms; /* lifetime of a cookie */
	/*
	 * A binary heap, earliest timer first: the children of entry i are 2i + 1 and 2i + 2. It
	 * has room for a timer of each record.
	 */
	struct siw_rd_timer *heap;
	uint32_t heap_n, heap_max;
	uint64_t due; /* the earliest timer, as the socket knows it */
	uint64_t now; /* when the last datagram came */
	struct siw_sipkey key;
	uint64_t instance;    /* of this endpoint's life, as peers are told */
	bool follow;	      /* setting rd_follow */
	bool restarts;	      /* siw_rd_restarted */
	uint32_t n_restarted; /* peers with restarted */
	uint32_t n_peers, max_peers;
	uint32_t buckets; /* a power of two */
	struct siw_rd_peer **table;
	struct siw_rd_slab *slabs;  /* the memory of the records */
	struct siw_rd_peer *unused; /* free records, linked by chain */
	struct siw_link lru, starved, news, ready, acks;
	struct siw_rd_cc resting;	/* of the peers that have none of their own */
	struct siw_rd_sources *sources; /* siw_rd_sources */
	uint64_t epochs;		/* how many were generated so far */

	/* Under the caller's progress lock: */
	struct siw_rd_peer *offered;	/* the peer whose segment was given to the layer above */
	struct siw_rd_seq *offered_seq; /* and the space that it is of */
	struct siw_rd_peer *settle;
	uint8_t *direct;     /* that segment's datagram in rx_buf; NULL: it is in the peer's rx */
	uint32_t direct_len; /* its octets */
	uint8_t *rx_buf;     /* SIW_RD_BUF octets */
	/*
	 * The datagrams in rx_buf come from one source. Each has seg octets, the last one perhaps
	 * fewer. The next begins at at; the last ends at end.
	 */
	struct siw_addr from;
	uint32_t at, end, seg;
	bool ecn;	 /* datagrams leave with ECT(0), and CE is told */
	bool ce;	 /* what is in rx_buf came with CE */
	uint32_t streak; /* short datagrams since the socket was last empty */

	struct {
		struct siw_rd_free *free;
		uint32_t n;
	} pool[SIW_RD_CLASSES];
};

_Static_assert(sizeof(struct siw_rd_peer) + sizeof(void *) <= 640, "an idle peer's record");

/* ---- rd_peer.c ------------------------------------------------------------------------------- */

int siw_rd_table_init(struct siw_rd *rd);
void siw_rd_table_fini(struct siw_rd *rd);
struct siw_rd_peer *siw_rd_find(struct siw_rd *rd, const struct siw_addr *addr);
/* As siw_rd_peer; lock held. */
int siw_rd_make(struct siw_rd *rd, const struct siw_addr *addr, struct siw_rd_peer **out);
/* A new epoch, never 0. */
uint32_t siw_rd_new_epoch(struct siw_rd *rd);
/* NULL: no memory. */
struct siw_rd_sources *siw_rd_sources(struct siw_rd *rd);
/* Notes that an event of the peer is due: a SIW_RD_REPORT_. */
void siw_rd_report(struct siw_rd_peer *peer, uint8_t what);
/*
 * Ends this incarnation of the pair: drops what is unacknowledged, gives this end a new epoch, and
 * reports kind to the layer above (0: reports nothing).
 */
void siw_rd_over(struct siw_rd_peer *peer, int kind);
/* Gives the peer a congestion control of its own, if it has none. false: no memory. */
bool siw_rd_cc_begin(struct siw_rd_peer *peer);
/* Frees that; what the round trip was is kept. Nothing is outstanding. */
void siw_rd_cc_end(struct siw_rd_peer *peer);
/* If a segment at rcv is stored and its space is not paused, delivers it next. */
void siw_rd_offer_next(struct siw_rd_peer *peer);
void siw_rd_touch(struct siw_rd_peer *peer, uint64_t now);

static inline uint32_t siw_rd_class_octets(uint8_t class)
{
	return 1u << (class + SIW_RD_CLASS_LEAST);
}
/* The class of the smallest buffers that have so many octets. */
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

/* The socket is full: siw_rd_pump is called for the peer when there is room again. */
void siw_rd_starve(struct siw_rd_peer *peer);
/* Sends what window, credit, pace and socket allow. false: something still waits. */
bool siw_rd_pump(struct siw_rd_peer *peer, uint64_t now);
/* Retransmits the datagram with that index, whatever the window allows. */
void siw_rd_resend(struct siw_rd_peer *peer, struct siw_rd_seq *seq, uint64_t index, uint64_t now);
void siw_rd_tx_free(struct siw_rd_peer *peer, struct siw_rd_seq *seq);
/* Octets from una on that the credit does not cover are not sent, not even once more. */
bool siw_rd_in_credit(const struct siw_rd_seq *seq, uint64_t index);
/* Whether something is outstanding of which the credit does not cover even the first segment. */
bool siw_rd_lacks_credit(const struct siw_rd_seq *seq);
/* ---- rd_ack.c -------------------------------------------------------------------------------- */

/*
 * Handles the acknowledgement in a datagram of the current epochs. ack: the body of an ACK, or
 * NULL.
 */
void siw_rd_acked(struct siw_rd_peer *peer, const struct siw_rd_wire *wire,
		  const struct siw_rd_ack *ack, uint64_t now);
/* Whether the octets behind the header of an ACK are its body. */
bool siw_rd_is_ack(const void *body, uint32_t octets);
void siw_rd_timeout(struct siw_rd_peer *peer, uint64_t now);
/* Sets the timer after something was sent or delivered. */
void siw_rd_rearm(struct siw_rd_peer *peer, uint64_t now);

/* ---- rd_rx.c --------------------------------------------------------------------------------- */

/* Handles a DATA datagram in rx_buf. */
void siw_rd_data(struct siw_rd_peer *peer, struct siw_rd_wire *wire, uint32_t len, uint64_t now);
void siw_rd_rx_free(struct siw_rd_peer *peer, struct siw_rd_seq *seq);
void siw_rd_send_ack(struct siw_rd_peer *peer, uint8_t flags, uint32_t psn, uint64_t now);
/* The socket is empty: whether the acknowledgement that is due must be sent now. */
bool siw_rd_ack_now(const struct siw_rd_peer *peer, uint64_t now);
/* The space whose next segment is stored and can be delivered, responses first; or NULL. */
struct siw_rd_seq *siw_rd_ready_seq(struct siw_rd_peer *peer);
/* An acknowledgement is due: sends it at once, or within SIW_RD_ACK_NS. */
void siw_rd_ack_due(struct siw_rd_peer *peer, bool at_once, uint64_t now);
uint16_t siw_rd_credit(const struct siw_rd_peer *peer, const struct siw_rd_seq *seq);

/* ---- rd_rnr.c -------------------------------------------------------------------------------- */

/* Whether the message at the head of the peer's requests lacks a receive. */
static inline bool siw_rd_lacks(const struct siw_rd_peer *peer)
{
	return peer->lacks_ns && peer->seq[SIW_RD_REQUESTS].held;
}
/*
 * What an ACK, after siw_rd_acked, says of the request at the head: whether it lacks a receive
 * there. If it did for too long, ends the incarnation.
 */
void siw_rd_heard_ready(struct siw_rd_peer *peer, const struct siw_rd_wire *wire, uint64_t now);

/* ---- rd_life.c ------------------------------------------------------------------------------- */

/*
 * Notes which instance of the peer a handshake shows. true: another one than before, which must not
 * get what was posted for that.
 */
bool siw_rd_meets_other(struct siw_rd_peer *peer, uint64_t instance);
/* The record is to be freed. */
void siw_rd_restart_free(struct siw_rd_peer *peer);

/*
 * Another instance of the peer was met: ends what there was with the one before, and reports that
 * even if nothing was in progress: what was posted for it must not be sent.
 */
void siw_rd_replaced(struct siw_rd_peer *peer);

/* ---- rd_hello.c ------------------------------------------------------------------------------ */

void siw_rd_hello(struct siw_rd_peer *peer, uint64_t now);
/* The handshake timer expired: sends HELLO or ECHO once more. */
void siw_rd_hello_again(struct siw_rd_peer *peer, uint64_t now);
void siw_rd_got_hello(struct siw_rd *rd, const struct siw_addr *from,
		      const struct siw_rd_wire *wire, uint32_t len);
void siw_rd_got_challenge(struct siw_rd *rd, const struct siw_addr *from,
			  const struct siw_rd_wire *wire, uint32_t len, uint64_t now);
void siw_rd_got_echo(struct siw_rd *rd, const struct siw_addr *from, const struct siw_rd_wire *wire,
		     uint32_t len, uint64_t now);
/* A HELLO of another version of the LLP header: names those that this end has. */
void siw_rd_got_foreign(struct siw_rd *rd, const struct siw_addr *from,
			const struct siw_rd_wire *wire, uint32_t len);
void siw_rd_got_versions(struct siw_rd *rd, const struct siw_addr *from,
			 const struct siw_rd_wire *wire, uint32_t len);
/* A header without an acknowledgement. */
void siw_rd_bare(const struct siw_rd *rd, enum siw_dgram_type type, uint32_t epoch,
		 uint32_t its_epoch, struct siw_rd_wire *out);

/* ---- rd_bye.c -------------------------------------------------------------------------------- */

/* As siw_rd_over, and tells the peer by a BYE, which is repeated until it is answered. */
void siw_rd_part(struct siw_rd_peer *peer, enum siw_rd_reason reason, int kind);
/* When that BYE is to be repeated; SIW_RD_NEVER: none is. */
uint64_t siw_rd_bye_due(const struct siw_rd_peer *peer);
void siw_rd_bye_again(struct siw_rd_peer *peer, uint64_t now);
/* Repeats it no more. */
void siw_rd_parted_free(struct siw_rd_peer *peer);
void siw_rd_got_bye(struct siw_rd_peer *peer, const struct siw_rd_wire *wire, uint64_t now);
/*
 * Answers a datagram whose epochs are over or unknown here with a BYE, if it is to be answered.
 * peer: the record of its source, or NULL.
 */
void siw_rd_refuse(struct siw_rd *rd, struct siw_rd_peer *peer, const struct siw_rd_wire *wire);
/* Sends each peer a BYE, once. */
void siw_rd_farewell(struct siw_rd *rd);

/* ---- rd_wire.c ------------------------------------------------------------------------------- */

/* Whether a datagram that begins with this octet has a CRC also where the rest have none. */
static inline bool siw_rd_of_handshake(uint8_t first)
{
	int type = first >> 4;

	return (type >= SIW_DGRAM_RD_HELLO && type <= SIW_DGRAM_RD_ECHO) ||
	       type == SIW_DGRAM_RD_VERSIONS;
}
/* Writes the header of a datagram to this peer, with the current acknowledgement. */
void siw_rd_header(struct siw_rd_peer *peer, enum siw_dgram_type type, uint32_t psn, uint8_t flags,
		   uint64_t now, struct siw_rd_wire *out);
/* Appends the CRC to len octets and sends them. Returns as siw_llp_udp_send. */
int siw_rd_send(struct siw_rd *rd, const struct siw_addr *to, uint8_t *datagram, size_t len);

/* ---- rd_mtu.c -------------------------------------------------------------------------------- */

void siw_rd_mtu_start(struct siw_rd_peer *peer);
/* The peer has told which segments it accepts. */
void siw_rd_mtu_met(struct siw_rd_peer *peer);
/* Its incarnation is over: what the next one accepts is not known. */
void siw_rd_mtu_parted(struct siw_rd_peer *peer);
/* A datagram of so many octets did not pass the path: uses shorter ones. */
void siw_rd_mtu_lower(struct siw_rd_peer *peer, uint32_t octets, uint64_t now);
/* One more time-out in a row (peer->rtos); the longest outstanding datagram has so many octets. */
void siw_rd_mtu_silence(struct siw_rd_peer *peer, uint32_t octets, uint64_t now);
/*
 * From one acknowledgement: octets of the longest datagram lost twice, and of the longest one
 * delivered.
 */
void siw_rd_mtu_suspect(struct siw_rd_peer *peer, uint32_t lost, uint32_t passed, uint64_t now);
/* Sends a datagram longer than the path's MTU, in fragments. Returns as siw_rd_send. */
int siw_rd_mtu_send(struct siw_rd_peer *peer, uint8_t *datagram, size_t len);
/* A longer datagram could have been filled: probes the path for one, unless it did so lately. */
void siw_rd_mtu_search(struct siw_rd_peer *peer, uint64_t now);
void siw_rd_mtu_unanswered(struct siw_rd_peer *peer, uint64_t now);
void siw_rd_mtu_probed(struct siw_rd_peer *peer, uint32_t psn);

/* ---- rd_timer.c ------------------------------------------------------------------------------ */

/* Sets the peer's timer to expire at that time, in ns. */
void siw_rd_due(struct siw_rd_peer *peer, uint64_t at);
/* Cancels its timer. */
void siw_rd_no_timer(struct siw_rd_peer *peer);
/* Makes room for the timers of so many peers. false: no memory. */
bool siw_rd_timers(struct siw_rd *rd, uint32_t peers);
/* When the peer is lost if it stays silent, in ns; SIW_RD_NEVER: nothing is due from it. */
uint64_t siw_rd_lost_at(const struct siw_rd_peer *peer);
/* Sends an empty PROBE, which the peer must acknowledge. */
void siw_rd_ask(struct siw_rd_peer *peer, uint64_t now);
/*
 * To be called before sending after a long silence: probes whether the peer still knows these
 * epochs. Returns 0.
 */
int siw_rd_verify(struct siw_rd_peer *peer, uint64_t now);
/* A response of the peer is due from now on: if the peer stays silent, it is declared lost. */
void siw_rd_await(struct siw_rd_peer *peer, uint64_t now);
/* Serves the timers that expired, and the peers that waited for room in the socket. */
void siw_rd_tick(struct siw_rd *rd, uint64_t now);

/* The clock of cookies: milliseconds since this endpoint was opened, plus 1. */
static inline uint64_t siw_rd_ms(const struct siw_rd *rd, uint64_t now)
{
	return (now - rd->began) / SIW_RD_MS + 1;
}

static inline bool siw_rd_has_gap(const struct siw_rd_seq *seq)
{
	return seq->rx && !seq->held && !seq->rx->slot[seq->rcv & seq->rx->mask].buf;
}

/*
 * Whether the peer must send something although nothing sent to it is outstanding: the layer above
 * expects it, or there is a gap in what was received.
 */
static inline bool siw_rd_awaits_more(const struct siw_rd_peer *peer)
{
	return peer->expect || siw_rd_has_gap(&peer->seq[SIW_RD_REQUESTS]) ||
	       siw_rd_has_gap(&peer->seq[SIW_RD_RESPONSES]);
}

/* Whether it has a send window, which needs a congestion control. */
static inline bool siw_rd_has_window(const struct siw_rd_peer *peer)
{
	return peer->seq[SIW_RD_REQUESTS].tx || peer->seq[SIW_RD_RESPONSES].tx;
}

static inline bool siw_rd_has_cc(const struct siw_rd_peer *peer)
{
	return peer->cc != &peer->rd->resting;
}

/* Whether a segment is queued or unacknowledged. */
static inline bool siw_rd_outstanding(const struct siw_rd_peer *peer)
{
	return peer->seq[SIW_RD_REQUESTS].una != peer->seq[SIW_RD_REQUESTS].nxt ||
	       peer->seq[SIW_RD_RESPONSES].una != peer->seq[SIW_RD_RESPONSES].nxt;
}

/* Whether something is to be sent, for the first time or again. */
static inline bool siw_rd_unsent(const struct siw_rd_seq *seq)
{
	return seq->tx && (seq->tx->n_lost || seq->tx->sent < seq->nxt);
}

/* The PSN of the next request, which ACKs and others carry. */
static inline uint32_t siw_rd_next_psn(const struct siw_rd_peer *peer)
{
	return peer->epoch + (uint32_t)peer->seq[SIW_RD_REQUESTS].nxt;
}

/*
 * Whether the next time-out only retransmits the last datagram, as a tail loss probe (RFC 8985
 * section 7). It does not while the peer is silent or the time-out is backed off.
 */
static inline bool siw_rd_probes_tail(const struct siw_rd_peer *peer)
{
	return peer->cc->srtt && !peer->rtos && !peer->backoff;
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

/* When the pace allows a batch, so that a fast path needs few timers. */
static inline uint64_t siw_rd_paced(const struct siw_rd_peer *peer)
{
	return peer->pace_ns + siw_rd_cc_wait(peer->cc, peer->cc->quantum);
}

#endif
