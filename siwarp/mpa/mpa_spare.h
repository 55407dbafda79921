/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpa/mpa_spare.h - large blocks of memory that a stream holds only while it sends or receives.
 *
 * A stream without anything staged or batched gives its block away, and the next one takes it: a
 * process has as many blocks as streams that are busy at once, however many are connected.
 */
#ifndef SIW_MPA_SPARE_H
#define SIW_MPA_SPARE_H

#include <stdatomic.h>

#define SIW_MPA_SPARES 16u

/* Blocks of one size that nobody holds. A thread begins at a slot of its own: no line is shared. */
struct siw_mpa_spares {
	struct {
		_Alignas(64) _Atomic(void *) block;
	} slot[SIW_MPA_SPARES];
};

/* A block that nobody holds, or NULL: the caller allocates one. Any thread. */
void *siw_mpa_spare_take(struct siw_mpa_spares *spares);
/* Keeps a block for the next one, or frees it if SIW_MPA_SPARES are kept. Any thread. */
void siw_mpa_spare_give(struct siw_mpa_spares *spares, void *block);
/* Frees what is kept, as the library is unloaded. */
void siw_mpa_spare_free(struct siw_mpa_spares *spares);

#endif
