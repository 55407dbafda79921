/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* mpa/mpa_spare.c - a pool of memory blocks that streams share. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "mpa/mpa_spare.h"

/*
 * Returns the slot at which this thread begins its search. pthread structs of different threads are
 * pages apart, so their addresses select different slots.
 */
static uint32_t first_slot_to_search(void)
{
	return (uint32_t)((uintptr_t)pthread_self() >> 12) * 0x9e3779b1u >> 28;
}

_Static_assert(SIW_MPA_SPARES == 1u << 4, "own_slot has four bits");

void *siw_mpa_pool_get(struct siw_mpa_spares *spares)
{
	uint32_t first = first_slot_to_search();

	for (uint32_t i = 0; i < SIW_MPA_SPARES; i++) {
		_Atomic(void *) *at = &spares->slot[(first + i) % SIW_MPA_SPARES].block;
		void *block = NULL;

		if (atomic_load_explicit(at, memory_order_relaxed))
			block = atomic_exchange_explicit(at, NULL, memory_order_acquire);
		if (block)
			return block;
	}
	return NULL;
}

void siw_mpa_pool_put(struct siw_mpa_spares *spares, void *block)
{
	uint32_t first = first_slot_to_search();

	for (uint32_t i = 0; i < SIW_MPA_SPARES; i++) {
		_Atomic(void *) *at = &spares->slot[(first + i) % SIW_MPA_SPARES].block;
		void *none = NULL;

		if (!atomic_load_explicit(at, memory_order_relaxed) &&
		    atomic_compare_exchange_strong_explicit(at, &none, block, memory_order_release,
							    memory_order_relaxed))
			return;
	}
	free(block);
}

void siw_mpa_pool_free(struct siw_mpa_spares *spares)
{
	for (uint32_t i = 0; i < SIW_MPA_SPARES; i++)
		free(siw_mpa_pool_get(spares));
}
