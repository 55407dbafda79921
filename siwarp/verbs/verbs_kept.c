/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The memory of destroyed objects, in the order of their end: the longer ago, the fewer look for it. */
#include "verbs/verbs_impl.h"

void siw_verbs_kept_init(struct siw_kept *kept)
{
	siw_lock_init(&kept->lock);
	siw_link_init(&kept->objects);
}

struct siw_link *siw_verbs_kept_take(struct siw_kept *kept)
{
	struct siw_link *link = NULL;

	siw_lock(&kept->lock);
	if (!siw_link_alone(&kept->objects)) {
		link = kept->objects.next;
		siw_link_del(link);
	}
	siw_unlock(&kept->lock);
	return link;
}

void siw_verbs_kept_give(struct siw_kept *kept, struct siw_link *link)
{
	siw_lock(&kept->lock);
	siw_link_add(&kept->objects, link);
	siw_unlock(&kept->lock);
}
