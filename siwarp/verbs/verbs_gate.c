/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Who may still come in at a listener. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/settings.h"
#include "verbs/verbs_gate.h"

static uint32_t share_of(int64_t limit)
{
	int64_t share = limit * siw_settings()->source_share / 100;

	return share ? (uint32_t)share : 1;
}

struct siw_gate *siw_verbs_gate_new(void)
{
	struct siw_gate *gate = calloc(1, sizeof(*gate));
	const struct siw_settings *set = siw_settings();

	if (!gate)
		return NULL;
	gate->max.starting = (uint32_t)set->max_startups;
	gate->max.requests = (uint32_t)set->max_requests;
	gate->max_source.starting = share_of(set->max_startups);
	gate->max_source.requests = share_of(set->max_requests);
	/* A secret is nice to have and nothing depends on it: an early boot's failure is no matter. */
	if (getrandom(&gate->key, sizeof(gate->key), GRND_NONBLOCK) < 0)
		gate->key = (uintptr_t)gate;
	gate->key |= 1;
	return gate;
}

static bool below(const struct siw_gate_count *now, const struct siw_gate_count *max)
{
	return now->starting < max->starting && now->starting + now->requests < max->requests;
}

bool siw_verbs_gate_has_room(const struct siw_gate *gate)
{
	return below(&gate->all, &gate->max);
}

uint32_t siw_verbs_gate_place(uint64_t key, const struct siw_addr *addr)
{
	uint64_t who = 0;

	if (addr->family == AF_INET)
		memcpy(&who, addr->v4, sizeof(addr->v4));
	else
		memcpy(&who, addr->v6, sizeof(who));
	who = (who ^ who >> 32) * key;
	who = (who ^ who >> 29) * key;
	return (uint32_t)(who >> (64 - SIW_GATE_BITS));
}

uint32_t siw_verbs_gate_source(const struct siw_gate *gate, const struct siw_addr *addr)
{
	return siw_verbs_gate_place(gate->key, addr);
}

bool siw_verbs_gate_fair(const struct siw_gate *gate, uint32_t source)
{
	return below(&gate->source[source], &gate->max_source);
}

static void add(struct siw_gate_count *count, enum siw_gate_place place, uint32_t n)
{
	if (place == SIW_GATE_STARTING)
		count->starting += n;
	else if (place == SIW_GATE_REQUEST)
		count->requests += n;
}

void siw_verbs_gate_move(struct siw_gate *gate, uint32_t source, enum siw_gate_place from,
			 enum siw_gate_place to)
{
	add(&gate->all, from, -1u);
	add(&gate->source[source], from, -1u);
	add(&gate->all, to, 1);
	add(&gate->source[source], to, 1);
}
