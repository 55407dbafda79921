/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/trim.h - returns free memory to the system after a large number of peers has left. glibc
 * keeps free memory that lies between memory in use: a process that once had thousands of peers
 * keeps most of the memory that they needed. Other C libraries return such memory themselves.
 *
 * All functions may be called by any thread. siw_trim_group_note_added and
 * siw_trim_group_note_removed may be called with any locks held; siw_trim_free_memory must be
 * called without locks.
 */
#ifndef SIW_BASE_TRIM_H
#define SIW_BASE_TRIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* cffi: begin */
/*
 * A group of objects of one kind, each of which uses some kB that are freed together. A zeroed
 * group is empty.
 */
struct siw_trim_group;
/*
 * siw_trim_group_note_added counts an object that was added to a group, and
 * siw_trim_group_note_removed one that was removed. When a group of at least 1024 objects has
 * shrunk to a quarter, the next siw_trim_free_memory returns memory. siw_trim_group_note_removed
 * returns whether the group is now empty.
 */
void siw_trim_group_note_added(struct siw_trim_group *group);
bool siw_trim_group_note_removed(struct siw_trim_group *group);
/*
 * Returns free memory to the system if a group has shrunk since the last call. Returns whether the
 * group had shrunk. The call may take some ms: for a thread that is about to sleep.
 */
bool siw_trim_free_memory(void);
/* cffi: end */

struct siw_trim_group {
	_Atomic uint32_t now,
		most; /* number of objects, and its maximum since the last shrinking to a quarter */
};

#endif
