/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/trim.h - returns free memory to the system after a crowd of peers has left. The C library
 * keeps what lies between memory in use: with glibc a process that had thousands of peers at a time
 * keeps most of what they needed. Other C libraries return it by themselves.
 *
 * Any thread may call all of it, with any locks held but for siw_trim.
 */
#ifndef SIW_BASE_TRIM_H
#define SIW_BASE_TRIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* cffi: begin */
/* Objects of a kind, each with some kB that are freed together. Zeroed, it is empty. */
struct siw_crowd;
/* One more object, one less. A quarter is left of at least 1024: siw_trim has work. */
void siw_crowd_join(struct siw_crowd *crowd);
void siw_crowd_leave(struct siw_crowd *crowd);
/*
 * Returns free memory if a crowd has left since the last call; whether it did. It may take some ms:
 * for a thread that is about to sleep, with no lock held.
 */
bool siw_trim(void);
/* cffi: end */

struct siw_crowd {
	_Atomic uint32_t now, most; /* most: since the last time that siw_trim was asked for */
};

#endif
