/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/faults.h - a plan of faults, of what goes wrong on the way: its text, its values, and its
 * verdict on each datagram and octet. It is seeded: the same plan does the same to the same
 * sequence of packets, whatever the time. It touches no sockets: llp applies verdicts to those,
 * wan/ to a relay's packets.
 *
 *   plan    clause [; clause]...
 *   clause  [tx: | rx:] name=value [, name=value]...
 *
 *   loss=1%          datagrams that vanish
 *   burst=5          ... so many in a row; loss stays their share of all
 *   dup=0.5%         come twice
 *   reorder=2%       held until 1 to 3 later ones have passed, or for 50 ms
 *   corrupt=0.1%     one bit is another; of streams: in so many of their pieces of 1460 octets
 *   delay=10ms       everything comes so much later, in order
 *   jitter=2ms       ... and up to so much more
 *   rate=50Mbit      bits a second at most
 *   limit=100        what may wait for the rate: a number of packets (1000), or octets as 256KB;
 *                    more is dropped, or, of a stream, not taken yet
 *   blackout=2s@10s  nothing passes for 2 s, 10 s after the plan began; a stream's octets wait
 *   reset=1MB        streams: the connection is reset after so many octets of a direction
 *   reset=5s         ... or so long after the plan began; a connection that was there before the
 *                    plan must have moved something since
 *   short=10%        streams: reads and writes that move only a part
 *   peer=ADDR[/LEN][:PORT]  only what goes to or comes from there; [ADDR][/LEN][:PORT] of IPv6
 *   seed=7           another seed than 1
 *
 * What is held is bounded: 65,536 packets and 32 MiB of a direction, more is dropped; of a stream 4
 * MiB, more is not taken yet.
 *
 * Every clause that fits a packet acts on it, in their order. tx: is what this end sends, rx: what
 * it receives, neither is both. A share may have seven decimals, a time is in ns, us, ms or s, a
 * rate in bit, kbit, Mbit or Gbit, octets in B, KB, MB, GB (powers of 1000), KiB or MiB. loss,
 * burst, dup, reorder are of datagrams alone (TCP would repair them: see `siwarp wan`), reset and
 * short of streams alone.
 *
 * Locks: what is marked "any thread" has its own; paths and queues are the caller's.
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
#define SIW_FAULTS_WHOLE   1000000000 /* a share of all: shares are in parts of 10^9 */
#define SIW_FAULTS_PIECE   1460	      /* octets of a stream that corrupt= takes for a packet */

enum siw_fault_dir {
	SIW_FAULT_TX = 0,
	SIW_FAULT_RX = 1,
};

/* A value of 0: this fault is not in the clause. */
struct siw_fault_clause {
	uint8_t dirs; /* 1 << enum siw_fault_dir */
	bool has_blackout, has_reset_at;
	bool limit_octets;			       /* limit is octets, not packets */
	uint8_t prefix;				       /* bits of the peer's address that count */
	struct siw_addr peer;			       /* family 0: any; port 0: any */
	uint32_t loss, dup, reorder, corrupt, partial; /* shares */
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
 * Text to values. 0, or -EINVAL with one line in `why` (size octets) that names clause and
 * character and says what was expected. The empty text is a plan of no clause.
 */
int siw_faults_parse(const char *text, struct siw_faults *out, char *why, size_t size);
/*
 * Values to text, such that parsing it gives them again: its length without the final zero,
 * whatever size is; cut where it does not fit.
 */
size_t siw_faults_format(const struct siw_faults *plan, char *text, size_t size);

/* ---- the plan of this process: any thread ----------------------------------------------------
 *
 * Faults begin when it is set: the time and the numbering of packets start over.
 */

/* NULL or "" ends it. 0, or -EINVAL: siw_faults_why() says why. */
int siw_faults_install(const char *text);
/* Once per process: what SIWARP_FAULTS says. 0, or -EINVAL each time if that is no plan. */
int siw_faults_init(void);
/* Of this thread's last siw_faults_install or _init that failed; "" if none did. */
const char *siw_faults_why(void);
/* The text of the plan, "" if there is none: its length. */
size_t siw_faults_current(char *text, size_t size);

/* cffi: end */

/* Nonzero while there is a plan, or something that one holds. Relaxed: it guards no data. */
extern _Atomic uint32_t siw_faults_active;

static inline bool siw_faults_on(void)
{
	return __builtin_expect(atomic_load_explicit(&siw_faults_active, memory_order_relaxed), 0);
}

/* Something is held, or no longer: keeps siw_faults_on() true without a plan. */
void siw_faults_hold(int change);
/* Another number for each plan that is set; even: there is none. */
uint32_t siw_faults_generation(void);
/* The plan and when it began (base/clock.h); returns its generation. */
uint32_t siw_faults_copy(struct siw_faults *out, uint64_t *began_ns);
/* The next number for siw_fault_path_init(), from 0 for each plan. */
uint32_t siw_faults_next_flow(uint32_t generation);

/* ---- one direction of one flow --------------------------------------------------------------- */

/* cffi: begin */

struct siw_fault_path {
	uint8_t dir;	   /* enum siw_fault_dir */
	uint64_t began_ns; /* the plan's beginning */
	uint64_t packets;  /* so far; of a stream: pieces */
	uint64_t octets;   /* of a stream, so far */
	uint64_t calls;	   /* of a stream, so far */
	uint64_t last_ns;  /* the latest release so far: order is kept */
	struct {
		uint64_t key;	  /* of this clause's random numbers */
		uint64_t busy_ns; /* the rate is taken until then */
		uint32_t burst;	  /* datagrams that are still to be lost */
	} clause[SIW_FAULTS_CLAUSES];
};

/* What happens to a packet. */
struct siw_fault_fate {
	int drop; /* enum siw_counter, or -1 */
	bool dup, corrupt;
	uint8_t passes;	     /* later ones that overtake it */
	uint64_t depart_ns;  /* until then it waits for the rate */
	uint64_t release_ns; /* until then it is on its way */
	uint64_t flip;	     /* a random number: where and which bit */
};

/* flow: another number for each flow of a plan. */
void siw_fault_path_init(struct siw_fault_path *path, const struct siw_faults *plan,
			 uint64_t began_ns, enum siw_fault_dir dir, uint32_t flow);
bool siw_fault_matches(const struct siw_fault_clause *clause, enum siw_fault_dir dir,
		       const struct siw_addr *peer);
/*
 * The fate of the next datagram, of `length` octets, while `packets` ones of `octets` octets wait
 * for the rate. Changes the path: keep a copy for a datagram that is not taken after all.
 */
void siw_fault_judge(const struct siw_faults *plan, struct siw_fault_path *path,
		     const struct siw_addr *peer, size_t length, uint64_t now_ns, uint64_t packets,
		     uint64_t octets, struct siw_fault_fate *fate);
/* Flips the bit that fate->flip means among `length` octets. */
void siw_fault_flip(uint8_t *octets, size_t length, uint64_t flip);

/* ---- streams --------------------------------------------------------------------------------- */

/* Of a call that would move `length` octets: how many it may, at least 1. 0: the reset is due. */
size_t siw_fault_stream_share(const struct siw_faults *plan, struct siw_fault_path *path,
			      const struct siw_addr *peer, size_t length, uint64_t now_ns);
/* Whether octets have to wait at all, or may go as they come. */
bool siw_fault_stream_waits(const struct siw_faults *plan, const struct siw_fault_path *path,
			    const struct siw_addr *peer, uint64_t now_ns);
/* When the next `length` octets come out, and how many may wait. Changes the path. */
uint64_t siw_fault_stream_release(const struct siw_faults *plan, struct siw_fault_path *path,
				  const struct siw_addr *peer, size_t length, uint64_t now_ns);
/*
 * Corrupts what it has to of the next `length` octets of the stream and moves on; how many
 * octets it changed. octets NULL: only says how many it would, and does not move on.
 */
int siw_fault_stream_corrupt(const struct siw_faults *plan, struct siw_fault_path *path,
			     const struct siw_addr *peer, uint8_t *octets, size_t length);
/* Octets that may wait for their release. */
size_t siw_fault_stream_limit(const struct siw_faults *plan, const struct siw_fault_path *path,
			      const struct siw_addr *peer);
/* Octets of one piece, so that a rate does not come in lumps. */
size_t siw_fault_stream_piece(const struct siw_faults *plan, const struct siw_fault_path *path,
			      const struct siw_addr *peer);
/* When a reset comes by time (base/clock.h); UINT64_MAX: never. */
uint64_t siw_fault_reset_at(const struct siw_faults *plan, const struct siw_fault_path *path,
			    const struct siw_addr *peer);

/* cffi: end */

#endif
