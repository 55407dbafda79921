/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/faults.h - fault plans, which simulate a bad network: their language, their values, and the
 * decision about each datagram and octet. Decisions are seeded: the same plan treats the same
 * sequence of packets in the same way, independent of time. No sockets are used here. Three parts
 * of siwarp carry the decisions out: llp on sockets, wan on the packets of a relay, sim on the
 * packets of a simulated network.
 *
 *   plan    clause [; clause]...
 *   clause  [tx: | rx:] rule=value [, rule=value]...
 *
 * docs/guides/faults.md describes the rules, with their units and where each has an effect;
 * faults_text.c has them as a table.
 *
 * llp and wan hold back at most 65,536 packets and 32 MiB in each direction; packets beyond that
 * are dropped. At most 4 MiB of a stream are held back; then the stream waits.
 *
 * Locking: functions marked "any thread" lock internally. The caller must protect paths and queues.
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
#define SIW_FAULTS_WHOLE   1000000000 /* percentages are stored in parts of 10^9 */
#define SIW_FAULTS_PIECE   1460	      /* octets of a stream that corrupt= treats as one packet */

enum siw_fault_dir {
	SIW_FAULT_TX = 0,
	SIW_FAULT_RX = 1,
};

/* One clause of a plan. A member of 0 means that the clause does not contain this fault. */
struct siw_fault_clause {
	uint8_t dirs; /* directions of the clause: set of 1 << enum siw_fault_dir */
	bool has_blackout, has_reset_at;
	bool limit_octets; /* the clause's limit= is a number of octets, not of packets */
	/* number of leading bits of the peer's address that are compared */
	uint8_t prefix;
	struct siw_addr peer; /* peer of the packets; family 0: any address; port 0: any port */
	/* probabilities, in parts of SIW_FAULTS_WHOLE */
	uint32_t loss, dup, reorder, corrupt, mark, partial;
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

/* The parts of siwarp that carry out a fault plan. */
enum siw_faults_place {
	SIW_FAULTS_PROCESS,   /* for llp: datagrams and streams of the sockets of a process */
	SIW_FAULTS_RELAY,     /* for siwarp wan: packets between two namespaces */
	SIW_FAULTS_LINK,      /* for the simulator: packets and streams between two hosts */
	SIW_FAULTS_INTERFACE, /* for the simulator: packets of all links of a host */
};

/*
 * Parses a plan for one of the parts of siwarp. Returns 0, or -EINVAL with one line in `why` (of
 * `size` octets) that names the clause and the character and states what was expected, or names the
 * rule that this part cannot carry out. An empty text is a plan without clauses.
 */
int siw_faults_parse(const char *text, enum siw_faults_place place, struct siw_faults *out,
		     char *why, size_t size);
/*
 * Formats a fault plan as text that parses to the same plan. Returns the length of the complete
 * text without the terminating NUL, even if size is too small; the text is then truncated.
 */
size_t siw_faults_format(const struct siw_faults *plan, char *text, size_t size);

/* ---- the plan of this process: any thread ---------------------------------------------------- */

/* Setting a fault plan restarts the plan's time and packet numbers. */

/*
 * Sets the fault plan of this process; NULL or "" removes it. Returns 0, or -EINVAL;
 * siw_faults_error_text() returns the reason.
 */
int siw_faults_install_plan(const char *text);
/*
 * Sets the plan given by SIWARP_FAULTS, once per process. Returns 0, or, at each call, -EINVAL if
 * that plan is invalid.
 */
int siw_faults_init(void);
/*
 * Returns why this thread's last failed siw_faults_install_plan or siw_faults_init failed; "" if
 * none failed.
 */
const char *siw_faults_error_text(void);
/* Writes the current fault plan as text, "" if there is none. Returns the length of the text. */
size_t siw_faults_format_current_plan(char *text, size_t size);

/* cffi: end */

/*
 * Not 0 while a fault plan is set or a socket holds packets back. Accessed in relaxed order,
 * because the variable guards no data.
 */
extern _Atomic uint32_t siw_faults_active;

static inline bool siw_faults_on(void)
{
	return __builtin_expect(atomic_load_explicit(&siw_faults_active, memory_order_relaxed), 0);
}

/*
 * Adds change to the number of sockets that hold packets back. A number above 0 keeps
 * siw_faults_on() true even without a plan.
 */
void siw_faults_adjust_holding_socket_count(int change);
/*
 * Returns the generation number of the fault plan, which changes each time a plan is set; even: no
 * plan is set.
 */
uint32_t siw_faults_plan_generation_number(void);
/*
 * Copies the fault plan and its start time (base/clock.h). Returns the generation number of the
 * plan.
 */
uint32_t siw_faults_copy_current_plan(struct siw_faults *out, uint64_t *began_ns);
/* Returns the next flow number for siw_fault_path_init(). Numbers start at 0 with each plan. */
uint32_t siw_faults_allocate_flow_number(uint32_t generation);

/* ---- one direction of one flow --------------------------------------------------------------- */

/* cffi: begin */

struct siw_fault_path {
	uint8_t dir;	   /* enum siw_fault_dir */
	uint64_t began_ns; /* start time of the plan */
	/* packets that the plan has handled so far; for a stream, pieces of octets */
	uint64_t packets;
	uint64_t octets;  /* for a stream: number of octets that the plan has handled so far */
	uint64_t calls;	  /* for a stream: number of send or receive calls so far */
	uint64_t last_ns; /* latest release time of the packets so far, to keep their order */
	struct {
		uint64_t key;	  /* key of the clause's random numbers */
		uint64_t busy_ns; /* earlier packets use the rate limit until this time */
		uint32_t burst;	  /* datagrams of the current burst of losses still to be lost */
	} clause[SIW_FAULTS_CLAUSES];
};

/* What a fault plan does to a packet. */
struct siw_fault_decision {
	int drop; /* counter for the drop (enum siw_counter); -1: not dropped */
	bool dup, corrupt, mark;
	uint8_t passes;	     /* number of later packets that overtake this packet */
	uint64_t depart_ns;  /* time at which the rate limit lets the packet pass; 0: no wait */
	uint64_t release_ns; /* time at which the packet is delivered */
	uint64_t flip;	     /* random number that selects the flipped bit */
};

/* Initializes one direction of a flow. flow must be different for each flow of a plan. */
void siw_fault_path_init(struct siw_fault_path *path, const struct siw_faults *plan,
			 uint64_t began_ns, enum siw_fault_dir dir, uint32_t flow);
bool siw_fault_clause_matches_packet(const struct siw_fault_clause *clause, enum siw_fault_dir dir,
				     const struct siw_addr *peer);
/*
 * Applies the fault plan to the next datagram of a path, of `length` octets: sets *fate to whether
 * the datagram is lost, delayed, duplicated or corrupted. packets, octets: the datagrams that the
 * rate limit of the plan delays at present. The call changes the state of the path. A caller that
 * passes a datagram again because the socket did not accept it must first restore a copy of the
 * path.
 */
void siw_fault_decide_packet_fate(const struct siw_faults *plan, struct siw_fault_path *path,
				  const struct siw_addr *peer, size_t length, uint64_t now_ns,
				  uint64_t packets, uint64_t octets,
				  struct siw_fault_decision *fate);
/* Flips the bit that `flip` selects among the `length` octets. */
void siw_fault_flip_bit(uint8_t *octets, size_t length, uint64_t flip);

/* ---- streams --------------------------------------------------------------------------------- */

/*
 * Returns how many of the next `length` octets of a stream a call may transfer, at least 1; 0: a
 * reset is due.
 */
size_t siw_fault_stream_octets_for_next_call(const struct siw_faults *plan,
					     struct siw_fault_path *path,
					     const struct siw_addr *peer, size_t length,
					     uint64_t now_ns);
/* Returns whether octets of the stream have to wait. Otherwise the octets may pass directly. */
bool siw_fault_stream_is_delayed(const struct siw_faults *plan, const struct siw_fault_path *path,
				 const struct siw_addr *peer, uint64_t now_ns);
/* Returns the release time of the next `length` octets of a stream. Advances the path. */
uint64_t siw_fault_stream_release_time(const struct siw_faults *plan, struct siw_fault_path *path,
				       const struct siw_addr *peer, size_t length, uint64_t now_ns);
/*
 * Corrupts the next `length` octets of the stream according to the plan, and advances the path.
 * Returns the number of octets changed. With octets NULL it only returns the number that would be
 * changed.
 */
int siw_fault_corrupt_stream_octets(const struct siw_faults *plan, struct siw_fault_path *path,
				    const struct siw_addr *peer, uint8_t *octets, size_t length);
/* Returns the maximum number of octets of a stream that may wait for their release. */
size_t siw_fault_stream_max_held_octets(const struct siw_faults *plan,
					const struct siw_fault_path *path,
					const struct siw_addr *peer);
/*
 * Returns the maximum number of octets of one piece of a stream; short pieces keep a limited rate
 * smooth.
 */
size_t siw_fault_stream_max_piece_octets(const struct siw_faults *plan,
					 const struct siw_fault_path *path,
					 const struct siw_addr *peer);
/* Returns the time (base/clock.h) of the first reset= that has a time; UINT64_MAX: none. */
uint64_t siw_fault_planned_reset_time(const struct siw_faults *plan,
				      const struct siw_fault_path *path,
				      const struct siw_addr *peer);

/* cffi: end */

#endif
