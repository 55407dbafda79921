/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/fork.h - a lock that survives fork(2): no other thread holds it while the process forks, so
 * its data is consistent in the child, and the child can acquire the lock.
 */
#ifndef SIW_BASE_FORK_H
#define SIW_BASE_FORK_H

#include "base/lock.h"

struct siw_fork_lock {
	siw_lock_t lock;
	/*
	 * Called in the child, with the lock held and no other thread running, to update the data
	 * that the lock protects.
	 */
	void (*in_child)(void);
	struct siw_fork_lock *next; /* used by base/fork.c */
	_Atomic bool watched;	    /* used by base/fork.c */
};

/*
 * Registers the lock: from now on fork(2) acquires it, the locks registered last first. Returns 0
 * or -ENOMEM. A second call for the same lock has no effect. The caller must not hold a watched
 * lock.
 */
int siw_fork_lock_register(struct siw_fork_lock *l);

#endif
