/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/fork.h - a lock that survives fork: no thread holds it while the process forks, so its data
 * is consistent in the child, and the child can take it.
 */
#ifndef SIW_BASE_FORK_H
#define SIW_BASE_FORK_H

#include "base/lock.h"

struct siw_fork_lock {
	siw_lock_t lock;
	/* Called in the child, with the lock held and no other thread, to change the data. */
	void (*in_child)(void);
	struct siw_fork_lock *next; /* base/fork.c */
	_Atomic bool watched;	    /* base/fork.c */
};

/*
 * From now on fork takes the lock, those watched last first. 0 or -ENOMEM. A second call does
 * nothing. The caller holds no such lock.
 */
int siw_fork_watch(struct siw_fork_lock *l);

#endif
