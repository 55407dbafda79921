/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "base/clock.h"
#include "base/lock.h"
#include "base/os.h"

#define SPINS	 200
#define YIELDS	 50
#define STEP_NS	 20000
#define PATIENCE 3 /* sleeps, some 0.1 ms in all, after which a waiting thread is urgent */

/*
 * If a yield took this many ns, all CPUs are busy with other threads. A yield then costs the thread
 * its turn, some milliseconds, while a thread that sleeps keeps its turn and lets the holder run.
 */
#define LONG_YIELD_NS  200000
#define WITHOUT_YIELDS 64 /* number of waits without yields after a long yield */

static _Atomic uint32_t waits_without_yields; /* still to come */

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

static bool wait_may_yield(void)
{
	uint32_t left = atomic_load_explicit(&waits_without_yields, memory_order_relaxed);

	if (left)
		atomic_store_explicit(&waits_without_yields, left - 1, memory_order_relaxed);
	return !left;
}

/* Yields the CPU to other threads. Returns whether the wait may yield again. */
static bool yield_once(void)
{
	uint64_t before = siw_now_ns();

	siw_yield();
	if (siw_now_ns() - before < LONG_YIELD_NS)
		return true;
	atomic_store_explicit(&waits_without_yields, WITHOUT_YIELDS, memory_order_relaxed);
	return false;
}

void siw_lock_wait(siw_lock_t *l)
{
	bool may_yield = wait_may_yield();
	unsigned int turns = 0, sleeps = 0;
	bool urgent = false;

	atomic_fetch_add_explicit(&l->wanted, 1, memory_order_relaxed);
	while (!try_lock_once(l, urgent)) {
		if (turns < SPINS) {
			pause_cpu();
		} else if (may_yield && turns < SPINS + YIELDS) {
			may_yield = yield_once();
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
