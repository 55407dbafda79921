/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/lock.h - the one lock of the project: one atomic instruction to take it and a plain store to
 * give it back, where a pthread mutex needs two of them and three times the instructions; a
 * 64-octet message takes a lock five times each way.
 *
 * A thread that finds it held spins for about a microsecond, then yields, then sleeps in short
 * steps, since the holder may be inside a system call. While threads wait, new ones wait with them.
 * A thread that releases the lock and takes it again at once would still be faster than one that
 * sleeps; so a thread that has waited for some tenths of a millisecond becomes urgent, and all
 * others wait for it. Thus no thread starves another.
 */
#ifndef SIW_BASE_LOCK_H
#define SIW_BASE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
	_Atomic uint32_t held;
	_Atomic uint32_t wanted; /* threads in siw_lock_wait */
	_Atomic uint32_t urgent; /* those of them that the others wait for */
} siw_lock_t;

#define SIW_LOCK_INIT   \
	{               \
		0, 0, 0 \
	}

/* Takes the lock when siw_trylock did not. */
void siw_lock_wait(siw_lock_t *l);

static inline void siw_lock_init(siw_lock_t *l)
{
	atomic_init(&l->held, 0);
	atomic_init(&l->wanted, 0);
	atomic_init(&l->urgent, 0);
}

static inline void siw_lock_destroy(siw_lock_t *l)
{
	(void)l;
}

/* Whether it took the lock; false also while others wait, whose turn comes first. */
static inline bool siw_trylock(siw_lock_t *l)
{
	if (atomic_load_explicit(&l->held, memory_order_relaxed) ||
	    atomic_load_explicit(&l->wanted, memory_order_relaxed))
		return false;
	/* Pairs with the store in siw_unlock. */
	return !atomic_exchange_explicit(&l->held, 1, memory_order_acquire);
}

static inline void siw_lock(siw_lock_t *l)
{
	if (!siw_trylock(l))
		siw_lock_wait(l);
}

static inline void siw_unlock(siw_lock_t *l)
{
	atomic_store_explicit(&l->held, 0, memory_order_release);
}

/* Returns when the thread that held the lock as this was called, if any, has given it back. */
static inline void siw_lock_pass(siw_lock_t *l)
{
	if (__builtin_expect(atomic_load_explicit(&l->held, memory_order_relaxed), 0)) {
		siw_lock(l);
		siw_unlock(l);
	}
}

#endif
