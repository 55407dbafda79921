/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/fork.h - a lock whose data a forked child finds whole: nobody is inside while the process forks,
 * and the child may take it although the threads that waited for it are not there.
 */
#ifndef SIW_BASE_FORK_H
#define SIW_BASE_FORK_H

#include "base/lock.h"

struct siw_fork_lock {
	siw_lock_t lock;
	/* What becomes of the data in the child; the lock is held, and there is no other thread. */
	void (*in_child)(void);
	struct siw_fork_lock *next; /* base/fork.c */
	_Atomic bool watched;	    /* base/fork.c */
};

/*
 * From now on a fork takes the lock, those watched last first. 0 or -ENOMEM. A second call does nothing;
 * at the first the caller holds no such lock.
 */
int siw_fork_watch(struct siw_fork_lock *l);

#endif
