/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/trim.c - see trim.h. */
#include "base/trim.h"

#ifdef SIW_HAVE_MALLOC_TRIM
#include <malloc.h>
#endif

#define TRIM_MIN_OBJECTS 1024u

/*
 * Whether siw_trim_free_memory has to return memory. One flag per process, because the heap is
 * shared by the process.
 */
static atomic_bool wanted;

/*
 * Two threads that change a group at the same time may store a maximum that is too low by one,
 * which is harmless.
 */
void siw_trim_group_note_added(struct siw_trim_group *group)
{
	uint32_t now = atomic_fetch_add_explicit(&group->now, 1, memory_order_relaxed) + 1;

	if (now > atomic_load_explicit(&group->most, memory_order_relaxed))
		atomic_store_explicit(&group->most, now, memory_order_relaxed);
}

bool siw_trim_group_note_removed(struct siw_trim_group *group)
{
	uint32_t now = atomic_fetch_sub_explicit(&group->now, 1, memory_order_relaxed) - 1;
	uint32_t most = atomic_load_explicit(&group->most, memory_order_relaxed);

	if (most >= TRIM_MIN_OBJECTS && now <= most / 4) {
		atomic_store_explicit(&group->most, now, memory_order_relaxed);
		atomic_store_explicit(&wanted, true, memory_order_relaxed);
	}
	return now == 0;
}

bool siw_trim_free_memory(void)
{
	if (!atomic_load_explicit(&wanted, memory_order_relaxed) ||
	    !atomic_exchange_explicit(&wanted, false, memory_order_relaxed))
		return false;
#ifdef SIW_HAVE_MALLOC_TRIM
	malloc_trim(0);
#endif
	return true;
}
