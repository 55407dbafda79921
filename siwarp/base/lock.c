/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "base/lock.h"
#include "base/os.h"

#define SPINS	 200
#define YIELDS	 50
#define STEP_NS	 20000
#define PATIENCE 3 /* number of sleeps, in all some 0.1 ms, after which a waiter is urgent */

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/*
 * Tries to acquire the lock once, without waiting. Fails if another thread is urgent and the
 * calling thread is not.
 */
static bool try_lock_once(siw_lock_t *l, bool urgent)
{
	if (!urgent && atomic_load_explicit(&l->urgent, memory_order_relaxed))
		return false;
	return !atomic_load_explicit(&l->held, memory_order_relaxed) &&
	       !atomic_exchange_explicit(&l->held, 1, memory_order_acquire);
}

void siw_lock_wait(siw_lock_t *l)
{
	unsigned int turns = 0, sleeps = 0;
	bool urgent = false;

	atomic_fetch_add_explicit(&l->wanted, 1, memory_order_relaxed);
	while (!try_lock_once(l, urgent)) {
		if (turns < SPINS) {
			pause_cpu();
		} else if (turns < SPINS + YIELDS) {
			siw_yield();
		} else {
			siw_sleep_ns(STEP_NS);
			if (++sleeps == PATIENCE) {
				urgent = true;
				atomic_fetch_add_explicit(&l->urgent, 1, memory_order_relaxed);
			}
			if (urgent)
				turns = 0;
		}
		turns++;
	}
	if (urgent)
		atomic_fetch_sub_explicit(&l->urgent, 1, memory_order_relaxed);
	atomic_fetch_sub_explicit(&l->wanted, 1, memory_order_relaxed);
}
