/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/faults.c - the fault plan of this process, and the decision about each packet; see faults.h.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/addr.h"
#include "base/clock.h"
#include "base/counters.h"
#include "base/faults.h"
#include "base/lock.h"
#include "base/settings.h"
#include "base/trace.h"

#define MAX_PASSES    3
#define DEFAULT_LIMIT 1000	 /* packets that may wait for a rate, if the plan has no limit= */
#define STREAM_LIMIT  (4 << 20)	 /* maximum octets of a stream that a fault plan holds back */
#define STREAM_PIECE  (64 << 10) /* maximum octets of a stream that are released together */
#define PIECE_NS      1000000	 /* about the time in ns in which a rate limit passes a piece */
#define NS	      1000000000ull

/* ---- the plan of this process ---------------------------------------------------------------- */

_Atomic uint32_t siw_faults_active;

static siw_lock_t lock = SIW_LOCK_INIT;
/*
 * The fault plan of this process, protected by `lock`. The generation is also loaded without the
 * lock, relaxed, to detect a change of the plan.
 */
static struct siw_faults current;
static uint64_t began;
static _Atomic uint32_t generation; /* generation number, odd while a plan is set */
static uint32_t flows;
static bool installed; /* whether a fault plan is set and counted in siw_faults_active */

static __thread char why[192];
static char why_environment[192];

void siw_faults_adjust_holding_socket_count(int change)
{
	atomic_fetch_add_explicit(&siw_faults_active, (uint32_t)change, memory_order_relaxed);
}

int siw_faults_install_plan(const char *text)
{
	struct siw_faults plan = { 0 };
	int rv = text ? siw_faults_parse(text, SIW_FAULTS_PROCESS, &plan, why, sizeof(why)) : 0;

	if (rv < 0)
		return rv;
	siw_lock(&lock);
	current = plan;
	began = siw_now_ns();
	flows = 0;
	atomic_store_explicit(&generation,
			      ((siw_faults_plan_generation_number() + 1) & ~1u) + (plan.n > 0),
			      memory_order_relaxed);
	if (installed != (plan.n > 0))
		siw_faults_adjust_holding_socket_count(plan.n ? 1 : -1);
	installed = plan.n > 0;
	siw_unlock(&lock);
	return 0;
}

static void faults_read_environment(void)
{
	const char *text = siw_setting_get_fault_plan();

	if (!text || siw_faults_install_plan(text) == 0)
		return;
	snprintf(why_environment, sizeof(why_environment), "%s", why);
	siw_log_warn_user("SIWARP_FAULTS is not a valid fault plan: %s", why_environment);
}

int siw_faults_init(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, faults_read_environment);
	if (!why_environment[0])
		return 0;
	memcpy(why, why_environment, sizeof(why));
	return -EINVAL;
}

const char *siw_faults_error_text(void)
{
	return why;
}

size_t siw_faults_format_current_plan(char *text, size_t size)
{
	struct siw_faults plan;
	uint64_t since;

	siw_faults_copy_current_plan(&plan, &since);
	return siw_faults_format(&plan, text, size);
}

uint32_t siw_faults_plan_generation_number(void)
{
	return atomic_load_explicit(&generation, memory_order_relaxed);
}

uint32_t siw_faults_copy_current_plan(struct siw_faults *out, uint64_t *began_ns)
{
	uint32_t now;

	siw_lock(&lock);
	*out = current;
	*began_ns = began;
	now = siw_faults_plan_generation_number();
	siw_unlock(&lock);
	return now;
}

uint32_t siw_faults_allocate_flow_number(uint32_t of)
{
	uint32_t flow = 0;

	siw_lock(&lock);
	if (of == siw_faults_plan_generation_number())
		flow = flows++;
	siw_unlock(&lock);
	return flow;
}

/* ---- random numbers -------------------------------------------------------------------------- */

/*
 * The decisions that random numbers make. Each kind of fault has a separate sequence, so that
 * adding one fault to a plan does not change the decisions about another.
 */
/*
 * Key of the random sequence for ECN marks, which is separate so that marks do not change the
 * other decisions.
 */
#define MARK_KEY 0x6d61726bull

enum faults_random { LOSS, DUP, REORDER, PASSES, CORRUPT, FLIP, JITTER, SHORT, SHARE, N_DRAWS };

/* The mixing function of splitmix64, published by its author for any use. */
static uint64_t faults_mix_bits(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t faults_random(uint64_t key, uint64_t number, enum faults_random what)
{
	return faults_mix_bits(key ^ faults_mix_bits(number * N_DRAWS + what));
}

static bool faults_is_drawn_with_probability(uint64_t key, uint64_t number, enum faults_random what,
					     uint32_t share)
{
	unsigned __int128 scaled =
		(unsigned __int128)faults_random(key, number, what) * SIW_FAULTS_WHOLE;

	return share && (uint64_t)(scaled >> 64) < share;
}

/* Returns a random number from 0 to n - 1. */
static uint64_t faults_random_below(uint64_t key, uint64_t number, enum faults_random what,
				    uint64_t n)
{
	return (uint64_t)((unsigned __int128)faults_random(key, number, what) * n >> 64);
}

/* ---- datagrams ------------------------------------------------------------------------------- */

void siw_fault_path_init(struct siw_fault_path *path, const struct siw_faults *plan,
			 uint64_t began_ns, enum siw_fault_dir dir, uint32_t flow)
{
	memset(path, 0, sizeof(*path));
	path->dir = (uint8_t)dir;
	path->began_ns = began_ns;
	for (int i = 0; i < plan->n; i++)
		path->clause[i].key = faults_mix_bits(
			faults_mix_bits(faults_mix_bits(plan->clause[i].seed) + (uint64_t)i) +
			((uint64_t)flow << 1 | dir));
}

static bool addrs_have_same_prefix(const uint8_t *a, const uint8_t *b, unsigned int bits)
{
	unsigned int whole = bits / 8, rest = bits % 8;

	return memcmp(a, b, whole) == 0 && (!rest || (a[whole] ^ b[whole]) >> (8 - rest) == 0);
}

bool siw_fault_clause_matches_packet(const struct siw_fault_clause *c, enum siw_fault_dir dir,
				     const struct siw_addr *peer)
{
	if (!(c->dirs & 1 << dir))
		return false;
	if (!c->peer.family)
		return true;
	if (c->peer.family != peer->family || (c->peer.port_be && c->peer.port_be != peer->port_be))
		return false;
	return peer->family == AF_INET ? addrs_have_same_prefix(c->peer.v4, peer->v4, c->prefix)
				       : addrs_have_same_prefix(c->peer.v6, peer->v6, c->prefix);
}

static bool is_in_blackout(const struct siw_fault_clause *c, const struct siw_fault_path *path,
			   uint64_t now)
{
	uint64_t from = path->began_ns + c->blackout_at;

	return c->has_blackout && now >= from && now - from < c->blackout_for;
}

/*
 * Returns whether the datagram is lost. Losses come in bursts of `burst` datagrams. q, the
 * probability that a datagram outside a burst starts one, is chosen so that the fraction of lost
 * datagrams is `loss`: gaps last (1-q)/q datagrams on average, so loss = burst / (burst + (1-q)/q).
 */
static bool faults_is_packet_lost(const struct siw_fault_clause *c, struct siw_fault_path *path,
				  int i)
{
	uint64_t good = SIW_FAULTS_WHOLE - c->loss, burst = c->burst ? c->burst : 1;
	uint64_t begins = (uint64_t)c->loss * SIW_FAULTS_WHOLE / (c->loss + burst * good);

	if (path->clause[i].burst) {
		path->clause[i].burst--;
		return true;
	}
	if (!c->loss || !faults_is_drawn_with_probability(path->clause[i].key, path->packets, LOSS,
							  (uint32_t)begins))
		return false;
	path->clause[i].burst = (uint32_t)burst - 1;
	return true;
}

static uint64_t faults_transmission_time_ns(uint64_t length, uint64_t rate)
{
	return (uint64_t)(((unsigned __int128)length * 8 * NS + rate - 1) / rate);
}

static bool faults_is_queue_limit_exceeded(const struct siw_fault_clause *c, size_t length,
					   uint64_t packets, uint64_t octets)
{
	if (c->limit_octets)
		return octets + length > c->limit;
	return packets >= (c->limit ? c->limit : DEFAULT_LIMIT);
}

/*
 * Returns the time at which clause i releases a packet that enters at time t. *depart is set to the
 * time at which the packet has passed the rate limit.
 */
static uint64_t faults_packet_release_time(const struct siw_fault_clause *c,
					   struct siw_fault_path *path, int i, size_t length,
					   uint64_t t, uint64_t *depart)
{
	if (c->rate) {
		if (t < path->clause[i].busy_ns)
			t = path->clause[i].busy_ns;
		t += faults_transmission_time_ns(length, c->rate);
		path->clause[i].busy_ns = t;
		*depart = t;
	}
	if (c->jitter)
		t += faults_random_below(path->clause[i].key, path->packets, JITTER, c->jitter + 1);
	return t + c->delay;
}

static int faults_drop_reason(const struct siw_fault_clause *c, struct siw_fault_path *path, int i,
			      size_t length, uint64_t now, uint64_t packets, uint64_t octets)
{
	bool is_lost = faults_is_packet_lost(c, path, i);

	if (is_in_blackout(c, path, now))
		return SIW_COUNTER_fault_blackout;
	if (is_lost)
		return SIW_COUNTER_fault_loss;
	/*
	 * The rule limit= drops only packets that would have to wait for the rate limit: a packet
	 * passes if no earlier packet is still in transmission.
	 */
	if (c->rate && path->clause[i].busy_ns > now &&
	    faults_is_queue_limit_exceeded(c, length, packets, octets))
		return SIW_COUNTER_fault_limit;
	return -1;
}

void siw_fault_decide_packet_fate(const struct siw_faults *plan, struct siw_fault_path *path,
				  const struct siw_addr *peer, size_t length, uint64_t now,
				  uint64_t packets, uint64_t octets,
				  struct siw_fault_decision *fate)
{
	uint64_t t = now, number = path->packets;

	*fate = (struct siw_fault_decision){ .drop = -1, .depart_ns = now };
	for (int i = 0; i < plan->n && fate->drop < 0; i++) {
		const struct siw_fault_clause *c = &plan->clause[i];
		uint64_t key = path->clause[i].key;

		if (!siw_fault_clause_matches_packet(c, (enum siw_fault_dir)path->dir, peer))
			continue;
		fate->drop = faults_drop_reason(c, path, i, length, now, packets, octets);
		if (fate->drop >= 0)
			break;
		t = faults_packet_release_time(c, path, i, length, t, &fate->depart_ns);
		fate->dup |= faults_is_drawn_with_probability(key, number, DUP, c->dup);
		fate->mark |=
			faults_is_drawn_with_probability(key ^ MARK_KEY, number, LOSS, c->mark);
		if (faults_is_drawn_with_probability(key, number, REORDER, c->reorder))
			fate->passes =
				(uint8_t)(1 + faults_random_below(key, number, PASSES, MAX_PASSES));
		if (faults_is_drawn_with_probability(key, number, CORRUPT, c->corrupt)) {
			fate->corrupt = true;
			fate->flip = faults_random(key, number, FLIP);
		}
	}
	path->packets++;
	if (fate->drop >= 0)
		return;
	/* Jitter does not reorder packets. */
	if (t < path->last_ns)
		t = path->last_ns;
	path->last_ns = t;
	fate->release_ns = t;
}

void siw_fault_flip_bit(uint8_t *octets, size_t length, uint64_t flip)
{
	uint64_t bit = (uint64_t)((unsigned __int128)flip * (length * 8) >> 64);

	if (length)
		octets[bit / 8] ^= (uint8_t)(1 << bit % 8);
}

/* ---- streams --------------------------------------------------------------------------------- */

#define FOR_EACH_FIT(plan, path, peer, i, c)                                                    \
	for (int i = 0; i < (plan)->n; i++)                                                     \
		for (const struct siw_fault_clause *c = &(plan)->clause[i];                     \
		     c &&                                                                       \
		     siw_fault_clause_matches_packet(c, (enum siw_fault_dir)(path)->dir, peer); \
		     c = NULL)

uint64_t siw_fault_planned_reset_time(const struct siw_faults *plan,
				      const struct siw_fault_path *path,
				      const struct siw_addr *peer)
{
	uint64_t first = UINT64_MAX;

	FOR_EACH_FIT(plan, path, peer, i, c)
	if (c->has_reset_at && path->began_ns + c->reset_at < first)
		first = path->began_ns + c->reset_at;
	return first;
}

size_t siw_fault_stream_octets_for_next_call(const struct siw_faults *plan,
					     struct siw_fault_path *path,
					     const struct siw_addr *peer, size_t length,
					     uint64_t now)
{
	uint64_t number = path->calls++;

	FOR_EACH_FIT(plan, path, peer, i, c)
	{
		if (c->has_reset_at && now >= path->began_ns + c->reset_at)
			return 0;
		if (c->reset_after && path->octets >= c->reset_after)
			return 0;
		if (c->reset_after && length > c->reset_after - path->octets)
			length = (size_t)(c->reset_after - path->octets);
		if (length > 1 && faults_is_drawn_with_probability(path->clause[i].key, number,
								   SHORT, c->partial))
			length = 1 + (size_t)faults_random_below(path->clause[i].key, number, SHARE,
								 length - 1);
	}
	return length;
}

bool siw_fault_stream_is_delayed(const struct siw_faults *plan, const struct siw_fault_path *path,
				 const struct siw_addr *peer, uint64_t now)
{
	FOR_EACH_FIT(plan, path, peer, i, c)
	if (c->rate || c->delay || c->jitter || is_in_blackout(c, path, now))
		return true;
	return false;
}

uint64_t siw_fault_stream_release_time(const struct siw_faults *plan, struct siw_fault_path *path,
				       const struct siw_addr *peer, size_t length, uint64_t now)
{
	uint64_t t = now, depart;

	FOR_EACH_FIT(plan, path, peer, i, c)
	{
		if (is_in_blackout(c, path, now) &&
		    t < path->began_ns + c->blackout_at + c->blackout_for)
			t = path->began_ns + c->blackout_at + c->blackout_for;
		t = faults_packet_release_time(c, path, i, length, t, &depart);
	}
	path->packets++;
	if (t < path->last_ns)
		t = path->last_ns;
	return path->last_ns = t;
}

/*
 * Whether a piece is corrupted, and in which octet, depends only on its position in the stream, not
 * on the lengths of the calls.
 */
int siw_fault_corrupt_stream_octets(const struct siw_faults *plan, struct siw_fault_path *path,
				    const struct siw_addr *peer, uint8_t *octets, size_t length)
{
	uint64_t from = path->octets, end = from + length;
	int n = 0;

	FOR_EACH_FIT(plan, path, peer, i, c)
	{
		uint64_t key = path->clause[i].key;

		for (uint64_t piece = from / SIW_FAULTS_PIECE;
		     c->corrupt && piece * SIW_FAULTS_PIECE < end; piece++) {
			uint64_t at;

			if (!faults_is_drawn_with_probability(key, piece, CORRUPT, c->corrupt))
				continue;
			at = piece * SIW_FAULTS_PIECE +
			     faults_random_below(key, piece, FLIP, SIW_FAULTS_PIECE);
			if (at < from || at >= end)
				continue;
			n++;
			if (octets)
				octets[at - from] ^=
					(uint8_t)(1 << faults_random_below(key, piece, SHARE, 8));
		}
	}
	if (octets)
		path->octets = end;
	return n;
}

size_t siw_fault_stream_max_held_octets(const struct siw_faults *plan,
					const struct siw_fault_path *path,
					const struct siw_addr *peer)
{
	size_t limit = STREAM_LIMIT;

	FOR_EACH_FIT(plan, path, peer, i, c)
	if (c->limit) {
		uint64_t octets = c->limit_octets ? c->limit : c->limit * SIW_FAULTS_PIECE;

		if (octets < limit)
			limit = (size_t)octets;
	}
	return limit;
}

size_t siw_fault_stream_max_piece_octets(const struct siw_faults *plan,
					 const struct siw_fault_path *path,
					 const struct siw_addr *peer)
{
	uint64_t piece = STREAM_PIECE;

	FOR_EACH_FIT(plan, path, peer, i, c)
	if (c->rate) {
		uint64_t octets = c->rate / 8 * PIECE_NS / NS;

		piece = octets < piece ? octets : piece;
	}
	return piece < SIW_FAULTS_PIECE ? SIW_FAULTS_PIECE : (size_t)piece;
}
