/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpa/mpa_spare.h - large blocks of memory that a stream holds only while it sends or receives.
 *
 * A stream with nothing staged or batched returns its block to the pool, and the next stream reuses
 * it: a process has as many blocks as streams that are busy at the same time, however many are
 * connected. When the last stream of the process is freed, the pools are freed too.
 */
#ifndef SIW_MPA_SPARE_H
#define SIW_MPA_SPARE_H

#include <stdatomic.h>

#define SIW_MPA_SPARES 16u

/*
 * A pool of unused memory blocks of one size. Threads begin their search at different slots, so
 * that they do not share cache lines.
 */
struct siw_mpa_spares {
	struct {
		_Alignas(64) _Atomic(void *) block;
	} slot[SIW_MPA_SPARES];
};

/*
 * Returns an unused block of the pool, or NULL: the caller then allocates a block. May be called by
 * any thread.
 */
void *siw_mpa_pool_get(struct siw_mpa_spares *spares);
/*
 * Puts a block into the pool, or frees it if SIW_MPA_SPARES blocks are pooled. May be called by any
 * thread.
 */
void siw_mpa_pool_put(struct siw_mpa_spares *spares, void *block);
/* Frees the pooled blocks. May be called by any thread. */
void siw_mpa_pool_free(struct siw_mpa_spares *spares);

#endif
