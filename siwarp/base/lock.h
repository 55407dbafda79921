/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/lock.h - the lock used throughout siwarp. Acquiring the lock costs one atomic instruction,
 * and releasing it a plain store; a pthread mutex needs two atomic instructions and three times as
 * many instructions in total. A 64-octet message acquires about five locks in each direction.
 *
 * A thread that finds the lock held spins for about a microsecond, then yields, and then sleeps in
 * short steps, because the holder may be inside a system call. While threads wait, newly arriving
 * threads also wait. A thread that releases the lock and acquires it again immediately would still
 * win over a sleeping thread; therefore a thread that has waited for some tenths of a millisecond
 * becomes urgent, and all other threads wait for it. No thread can starve another.
 */
#ifndef SIW_BASE_LOCK_H
#define SIW_BASE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
	_Atomic uint32_t held;
	_Atomic uint32_t wanted; /* number of threads that wait for the lock in siw_lock_wait */
	_Atomic uint32_t urgent; /* number of urgent threads, which get the lock before others */
} siw_lock_t;

#define SIW_LOCK_INIT   \
	{               \
		0, 0, 0 \
	}

/* Waits for the lock and acquires it. Called when siw_trylock has failed. */
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

/*
 * Tries to acquire the lock; returns whether it was acquired. The attempt also fails while other
 * threads wait, because waiting threads have precedence.
 */
static inline bool siw_trylock(siw_lock_t *l)
{
	if (atomic_load_explicit(&l->held, memory_order_relaxed) ||
	    atomic_load_explicit(&l->wanted, memory_order_relaxed))
		return false;
	/* Acquire order pairs with the release store in siw_unlock. */
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

/* Waits until the thread that holds the lock at the time of the call, if any, has released it. */
static inline void siw_lock_wait_released(siw_lock_t *l)
{
	if (__builtin_expect(atomic_load_explicit(&l->held, memory_order_relaxed), 0)) {
		siw_lock(l);
		siw_unlock(l);
	}
}

#endif
