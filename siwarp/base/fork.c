/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "base/fork.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>

/*
 * Protects the list of watched locks. During a fork this lock is held, like the locks in the list,
 * and it is acquired first, so that the list does not change.
 */
static siw_lock_t lock = SIW_LOCK_INIT;
/* list of locks held during fork(), the newest first; protected by lock */
static struct siw_fork_lock *watched;
static bool registered; /* the fork handlers are registered; protected by lock */

static void fork_locks_take(void)
{
	siw_lock(&lock);
	for (struct siw_fork_lock *l = watched; l; l = l->next)
		siw_lock(&l->lock);
}

static void fork_locks_release(void)
{
	for (struct siw_fork_lock *l = watched; l; l = l->next)
		siw_unlock(&l->lock);
	siw_unlock(&lock);
}

static void fork_locks_reset(void)
{
	for (struct siw_fork_lock *l = watched; l; l = l->next)
		l->in_child();
	/*
	 * The locks are initialized instead of released, because threads that do not exist in the
	 * child may have been waiting for them.
	 */
	for (struct siw_fork_lock *l = watched; l; l = l->next)
		siw_lock_init(&l->lock);
	siw_lock_init(&lock);
}

int siw_fork_lock_register(struct siw_fork_lock *l)
{
	bool done;

	/*
	 * This acquire load pairs with the store of l->watched below. Later calls for the same lock
	 * return here and do not acquire the lock of the list, which another thread may hold during
	 * a fork.
	 */
	if (atomic_load_explicit(&l->watched, memory_order_acquire))
		return 0;
	siw_lock(&lock);
	if (!registered)
		registered =
			pthread_atfork(fork_locks_take, fork_locks_release, fork_locks_reset) == 0;
	if (registered && !l->watched) {
		l->next = watched;
		watched = l;
		atomic_store_explicit(&l->watched, true, memory_order_release);
	}
	done = registered;
	siw_unlock(&lock);
	return done ? 0 : -ENOMEM;
}
