/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * verbs/verbs_gate.h - how many connections a listener has pending, in all and by source, and whether
 * one more may come in (RFC 5042 section 6.4.1: nobody may take all of what others need too).
 *
 * Pending is in MPA start-up (settings max_startups) or started up and not taken by the program
 * (max_requests bounds both together). Sources are IPv4 addresses and IPv6 /64 prefixes, counted in
 * a table of fixed size under a secret hash: two that share a place there share its share of the
 * limits, and nobody can know who shares with whom. Under the progress lock.
 */
#ifndef SIW_VERBS_GATE_H
#define SIW_VERBS_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include <siwarp/types.h>

#define SIW_GATE_BITS 10

struct siw_gate_count {
	uint32_t starting, requests;
};

struct siw_gate {
	bool shut; /* the listener is held until there is room */
	uint64_t key;
	struct siw_gate_count max, max_source, all;
	struct siw_gate_count source[1 << SIW_GATE_BITS];
};

enum siw_gate_place {
	SIW_GATE_NOWHERE, /* not counted */
	SIW_GATE_STARTING,
	SIW_GATE_REQUEST,
};

/* Limits are taken from the settings. NULL: no memory. */
struct siw_gate *siw_verbs_gate_new(void);
/* Whether one more may be accepted. */
bool siw_verbs_gate_has_room(const struct siw_gate *gate);
/*
 * The place of an IPv4 address or an IPv6 /64 in a table of 1 << SIW_GATE_BITS, by a secret odd key: two
 * may share one, and nobody can know who does with whom.
 */
uint32_t siw_verbs_gate_place(uint64_t key, const struct siw_addr *addr);
/* Where a source is counted. */
uint32_t siw_verbs_gate_source(const struct siw_gate *gate, const struct siw_addr *addr);
/* Whether this source's share has room for one more. */
bool siw_verbs_gate_fair(const struct siw_gate *gate, uint32_t source);
/* A connection of this source goes from one place to another. */
void siw_verbs_gate_move(struct siw_gate *gate, uint32_t source, enum siw_gate_place from,
			 enum siw_gate_place to);

#endif
