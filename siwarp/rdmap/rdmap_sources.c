/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_sources.c - counts messages dropped for lack of a receive, by source address, so that
 * an application can identify sources that send more than the endpoint posts receives for (RFC 5042
 * section 6.4.3.1). The table has a fixed size and uses the "space saving" algorithm: an address
 * without an entry replaces the entry with the lowest count and inherits the count. So every
 * flooding source has an entry, and a count is too high by at most the value of member `over`.
 */
#include <stdlib.h>

#include "base/addr.h"
#include "rdmap/rdmap_impl.h"

#define PLACES 32

struct siw_rdmap_sources {
	int n;
	struct siw_source_drops place[PLACES];
};

static struct siw_source_drops *find_or_replace_drops_of_source(struct siw_rdmap_sources *s,
								const struct siw_addr *who)
{
	struct siw_source_drops *least = &s->place[0];

	for (int i = 0; i < s->n; i++) {
		if (siw_addr_same(&s->place[i].source, who))
			return &s->place[i];
		if (s->place[i].drops < least->drops)
			least = &s->place[i];
	}
	if (s->n < PLACES)
		least = &s->place[s->n++];
	least->source = *who;
	least->over = least->drops;
	return least;
}

void siw_rdmap_count_dropped_message_of_source(struct siw_rdmap_sources **sources,
					       const struct siw_addr *source)
{
	struct siw_addr who = *source;

	if (!*sources)
		*sources = calloc(1, sizeof(**sources));
	if (!*sources)
		return;
	/* All ports of one address count as one source. */
	who.port_be = 0;
	find_or_replace_drops_of_source(*sources, &who)->drops++;
}

static int compare_by_drops(const void *a, const void *b)
{
	uint64_t x = ((const struct siw_source_drops *)a)->drops;
	uint64_t y = ((const struct siw_source_drops *)b)->drops;

	return x < y ? 1 : x > y ? -1 : 0;
}

int siw_rdmap_sources_query_drops(const struct siw_rdmap_sources *sources,
				  struct siw_source_drops *out, int max)
{
	struct siw_rdmap_sources sorted = { 0 };

	if (sources)
		sorted = *sources;
	qsort(sorted.place, (size_t)sorted.n, sizeof(sorted.place[0]), compare_by_drops);
	if (max > sorted.n)
		max = sorted.n;
	if (max > 0)
		memcpy(out, sorted.place, (size_t)max * sizeof(*out));
	return sorted.n;
}
