/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Admission of connections at a listener; connect_admission.h explains it. */
#include <stdlib.h>

#include "base/addr.h"
#include "base/settings.h"
#include "connect/connect_admission.h"

/* A source's share of the pending connections, in percent, if setting source_share is 0. */
#define USUAL_SHARE 75

static uint32_t admission_source_limit(int64_t limit)
{
	int64_t set = siw_settings()->source_share;
	int64_t share = limit * (set ? set : USUAL_SHARE) / 100;

	return share ? (uint32_t)share : 1;
}

struct siw_admission *siw_admission_new(void)
{
	struct siw_admission *admission = calloc(1, sizeof(*admission));
	const struct siw_settings *set = siw_settings();

	if (!admission)
		return NULL;
	admission->max.starting = (uint32_t)set->max_startups;
	admission->max.requests = (uint32_t)set->max_requests;
	admission->max_source.starting = admission_source_limit(set->max_startups);
	admission->max_source.requests = admission_source_limit(set->max_requests);
	admission->loopback_all = set->source_share == 0;
	admission->key = siw_source_make_hash_key();
	return admission;
}

static bool admission_below_limit(const struct siw_admission_count *now,
				  const struct siw_admission_count *max)
{
	return now->starting < max->starting && now->starting + now->requests < max->requests;
}

bool siw_admission_has_room(const struct siw_admission *admission)
{
	return admission_below_limit(&admission->all, &admission->max);
}

uint32_t siw_admission_source_index_of_addr(const struct siw_admission *admission,
					    const struct siw_addr *addr)
{
	if (admission->loopback_all && siw_addr_is_loopback(addr))
		return SIW_SOURCES;
	return siw_source_table_index(admission->key, addr);
}

bool siw_admission_source_has_room(const struct siw_admission *admission, uint32_t source)
{
	return source == SIW_SOURCES ||
	       admission_below_limit(&admission->source[source], &admission->max_source);
}

bool siw_admission_is_half_full(const struct siw_admission *admission)
{
	return admission->all.starting >= (admission->max.starting + 1) / 2;
}

static void admission_add_to_count_of_stage(struct siw_admission_count *count,
					    enum siw_admission_place place, uint32_t n)
{
	if (place == SIW_ADMISSION_STARTING)
		count->starting += n;
	else if (place == SIW_ADMISSION_REQUEST)
		count->requests += n;
}

void siw_admission_move_count(struct siw_admission *admission, uint32_t source,
			      enum siw_admission_place from, enum siw_admission_place to)
{
	admission_add_to_count_of_stage(&admission->all, from, -1u);
	admission_add_to_count_of_stage(&admission->source[source], from, -1u);
	admission_add_to_count_of_stage(&admission->all, to, 1);
	admission_add_to_count_of_stage(&admission->source[source], to, 1);
}
