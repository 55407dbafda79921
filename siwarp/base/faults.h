/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/faults.h - a plan of faults, which simulates a bad network: its text, its values, and its
 * decision about each datagram and octet. It is seeded: the same plan does the same to the same
 * sequence of packets, independent of time. It uses no sockets: llp applies the decisions to
 * sockets, and wan/ to the packets of a relay.
 *
 *   plan    clause [; clause]...
 *   clause  [tx: | rx:] name=value [, name=value]...
 *
 *   loss=1%          datagrams that are lost
 *   burst=5          ... so many in a row; loss stays their share of all datagrams
 *   dup=0.5%         datagrams that arrive twice
 *   reorder=2%       datagrams held until 1 to 3 later ones have passed, or for 50 ms
 *   corrupt=0.1%     datagrams with one bit changed; of a stream, pieces of 1460 octets
 *   mark=1%          packets that can have it (ECT) get CE, as by a queue that grows (RFC 3168)
 *   delay=10ms       everything is delayed by this time, and stays in order
 *   jitter=2ms       ... plus a random time up to this
 *   rate=50Mbit      bits per second at most
 *   limit=100        how much may wait for the rate: a number of packets (1000 unless given) or
 *                    octets, as 256KB; datagrams beyond it are dropped, a stream has to wait
 *   blackout=2s@10s  nothing passes for 2 s, beginning 10 s after the plan; streams wait meanwhile
 *   reset=1MB        streams: the connection is reset after this many octets in one direction
 *   reset=5s         ... or this long after the plan began; a connection that is older than the
 *                    plan is reset only if it has moved data since
 *   short=10%        streams: reads and writes that move only a part
 *   peer=ADDR[/LEN][:PORT]  only what goes to or comes from there; for IPv6 [ADDR][/LEN][:PORT]
 *   seed=7           the seed; 1 unless given
 *
 * At most 65,536 packets and 32 MiB are held back in each direction, and more is dropped. Of a
 * stream at most 4 MiB are held back, and then it has to wait.
 *
 * All clauses that match a packet act on it, in their order. tx: matches what this end sends, rx:
 * what it receives; without either, a clause matches both. A share has up to seven decimals. A time
 * is given in ns, us, ms or s, a rate in bit, kbit, Mbit or Gbit, octets in B, KB, MB, GB (powers
 * of 1000), KiB or MiB. loss, burst, dup and reorder act on datagrams only (TCP would repair them:
 * see `siwarp wan`), reset and short on streams only, mark on the packets of `siwarp wan`.
 *
 * Locks: functions marked "any thread" have their own. The caller guards paths and queues.
 */
#ifndef SIW_BASE_FAULTS_H
#define SIW_BASE_FAULTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <siwarp/types.h>

/* cffi: begin */

#define SIW_FAULTS_CLAUSES 8
#define SIW_FAULTS_WHOLE   1000000000 /* shares are in parts of 10^9 */
#define SIW_FAULTS_PIECE   1460	      /* octets of a stream that corrupt= treats as one packet */

enum siw_fault_dir {
	SIW_FAULT_TX = 0,
	SIW_FAULT_RX = 1,
};

/* A member of 0 means that the clause does not have this fault. */
struct siw_fault_clause {
	uint8_t dirs; /* 1 << enum siw_fault_dir */
	bool has_blackout, has_reset_at;
	bool limit_octets; /* limit is octets, not packets */
	/* bits of the peer's address that are compared */
	uint8_t prefix;
	struct siw_addr peer;				     /* family 0: any; port 0: any */
	uint32_t loss, dup, reorder, corrupt, mark, partial; /* shares */
	uint32_t burst;
	uint64_t delay, jitter; /* ns */
	uint64_t rate;		/* bit/s */
	uint64_t limit;
	uint64_t blackout_for, blackout_at; /* ns */
	uint64_t reset_after;		    /* octets */
	uint64_t reset_at;		    /* ns */
	uint64_t seed;
};

struct siw_faults {
	int n;
	struct siw_fault_clause clause[SIW_FAULTS_CLAUSES];
};

/*
 * Parses a plan. Returns 0, or -EINVAL with one line in `why` (size octets) that names the clause
 * and the character and says what was expected. The empty text is a plan without clauses.
 */
int siw_faults_parse(const char *text, struct siw_faults *out, char *why, size_t size);
/*
 * Writes a plan as text that parses to the same plan. Returns the text's length without the final
 * zero, even if that does not fit; the text is then truncated.
 */
size_t siw_faults_format(const struct siw_faults *plan, char *text, size_t size);

/* ---- the plan of this process: any thread ---------------------------------------------------- */

/* Setting a plan restarts the time and the numbering of packets. */

/* Sets the plan; NULL or "" ends it. 0, or -EINVAL: siw_faults_why() has the reason. */
int siw_faults_install(const char *text);
/*
 * Sets the plan that SIWARP_FAULTS contains, once per process. 0, or at each call -EINVAL if it is
 * not valid.
 */
int siw_faults_init(void);
/* The reason of this thread's last siw_faults_install or _init that failed; "" if none did. */
const char *siw_faults_why(void);
/* Writes the current plan as text, "" without one. Returns its length. */
size_t siw_faults_current(char *text, size_t size);

/* cffi: end */

/* Not 0 while there is a plan, or something is held back. Relaxed: it guards no data. */
extern _Atomic uint32_t siw_faults_active;

static inline bool siw_faults_on(void)
{
	return __builtin_expect(atomic_load_explicit(&siw_faults_active, memory_order_relaxed), 0);
}

/*
 * Adds change to the number of sockets that hold something back, which keeps siw_faults_on() true
 * without a plan.
 */
void siw_faults_hold(int change);
/* A number that changes with each plan that is set; even: there is none. */
uint32_t siw_faults_generation(void);
/* Copies the plan and the time when it began (base/clock.h). Returns its generation. */
uint32_t siw_faults_copy(struct siw_faults *out, uint64_t *began_ns);
/* The next flow number for siw_fault_path_init(); each plan begins with 0. */
uint32_t siw_faults_next_flow(uint32_t generation);

/* ---- one direction of one flow --------------------------------------------------------------- */

/* cffi: begin */

struct siw_fault_path {
	uint8_t dir;	   /* enum siw_fault_dir */
	uint64_t began_ns; /* when the plan began */
	uint64_t packets;  /* so far; of a stream, pieces */
	uint64_t octets;   /* of a stream, so far */
	uint64_t calls;	   /* of a stream, so far */
	uint64_t last_ns;  /* the latest release so far, to keep the order */
	struct {
		uint64_t key;	  /* of this clause's random numbers */
		uint64_t busy_ns; /* until then the rate is used up */
		uint32_t burst;	  /* datagrams of the current burst still to be lost */
	} clause[SIW_FAULTS_CLAUSES];
};

/* The decision about a packet. */
struct siw_fault_fate {
	int drop; /* enum siw_counter to count the drop by, or -1 */
	bool dup, corrupt, mark;
	uint8_t passes;	     /* how many later packets overtake it */
	uint64_t depart_ns;  /* when it has passed the rate */
	uint64_t release_ns; /* when it is delivered */
	uint64_t flip;	     /* a random number that selects the changed bit */
};

/* flow: different for each flow of a plan. */
void siw_fault_path_init(struct siw_fault_path *path, const struct siw_faults *plan,
			 uint64_t began_ns, enum siw_fault_dir dir, uint32_t flow);
bool siw_fault_matches(const struct siw_fault_clause *clause, enum siw_fault_dir dir,
		       const struct siw_addr *peer);
/*
 * Decides about the next datagram, of `length` octets. `packets` datagrams with `octets` octets
 * wait for the rate. Advances the path: the caller keeps a copy if the datagram may be refused and
 * sent again.
 */
void siw_fault_judge(const struct siw_faults *plan, struct siw_fault_path *path,
		     const struct siw_addr *peer, size_t length, uint64_t now_ns, uint64_t packets,
		     uint64_t octets, struct siw_fault_fate *fate);
/* Flips the bit that fate->flip selects among `length` octets. */
void siw_fault_flip(uint8_t *octets, size_t length, uint64_t flip);

/* ---- streams --------------------------------------------------------------------------------- */

/* How many octets a call may move that would move `length`: at least 1. 0: the reset is due. */
size_t siw_fault_stream_share(const struct siw_faults *plan, struct siw_fault_path *path,
			      const struct siw_addr *peer, size_t length, uint64_t now_ns);
/* Whether octets have to wait. If not, they may pass directly. */
bool siw_fault_stream_waits(const struct siw_faults *plan, const struct siw_fault_path *path,
			    const struct siw_addr *peer, uint64_t now_ns);
/* When the next `length` octets are released. Advances the path. */
uint64_t siw_fault_stream_release(const struct siw_faults *plan, struct siw_fault_path *path,
				  const struct siw_addr *peer, size_t length, uint64_t now_ns);
/*
 * Corrupts the next `length` octets of the stream as the plan says, and advances the path. Returns
 * how many octets it changed. With octets NULL it only returns how many it would change.
 */
int siw_fault_stream_corrupt(const struct siw_faults *plan, struct siw_fault_path *path,
			     const struct siw_addr *peer, uint8_t *octets, size_t length);
/* The most octets that may wait for their release. */
size_t siw_fault_stream_limit(const struct siw_faults *plan, const struct siw_fault_path *path,
			      const struct siw_addr *peer);
/* The most octets of one piece, so that a rate is smooth. */
size_t siw_fault_stream_piece(const struct siw_faults *plan, const struct siw_fault_path *path,
			      const struct siw_addr *peer);
/* The time of a reset= that has one (base/clock.h); UINT64_MAX: never. */
uint64_t siw_fault_reset_at(const struct siw_faults *plan, const struct siw_fault_path *path,
			    const struct siw_addr *peer);

/* cffi: end */

#endif
