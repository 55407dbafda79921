/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/guard.h - touching memory that is not ours. What a program registered it may unmap, protect
 * or truncate at any time, and then a peer's Write must end a queue pair and not the process. System
 * calls say EFAULT of themselves; copies and checksums of our own go through here and do too.
 *
 * How: a guarded access notes on its thread which octets it is about and where to go on; a handler
 * of SIGSEGV and SIGBUS that finds a fault in exactly these octets goes on there. Every other fault is
 * handed to the handler that was there before (the program's own, Python's faulthandler, a
 * sanitizer's), so that mistakes of ours still crash. An access that meets no fault costs some stores
 * to the stack, about two nanoseconds, and no system call.
 *
 * What a program must know: a handler for these signals that it installs after it opened its first
 * device must call the one that it replaced (as sigaction() gave it) or memory that vanishes is a
 * crash again; and a thread that polls must not block the two signals, since Linux kills a process
 * for a fault of a thread that does. It is undefined which octets of such a range were written.
 */
#ifndef SIW_BASE_GUARD_H
#define SIW_BASE_GUARD_H

#include <stddef.h>
#include <stdint.h>

/* cffi: begin */

/*
 * Installs the handlers; remove gives back what was there before, unless somebody else has
 * replaced them meanwhile. They count: the last remove does it. Any thread.
 */
void siw_guard_install(void);
void siw_guard_remove(void);

/*
 * All of these: 0, or -EFAULT when theirs is not there, or may not be touched so. One of the two
 * ranges is the library's own; *crc is a running CRC32C (crc32c.h), undefined after an error.
 */
int siw_guard_read(void *own, const void *theirs, size_t len);
int siw_guard_write(void *theirs, const void *own, size_t len);
int siw_guard_crc(uint32_t *crc, const void *theirs, size_t len);
int siw_guard_crc_read(uint32_t *crc, void *own, const void *theirs, size_t len);
int siw_guard_crc_write(uint32_t *crc, void *theirs, const void *own, size_t len);

/*
 * On 64 bits of theirs, which lie on an 8-octet boundary, in this machine's octet order, in one step for
 * every CPU and thread; *before is what was there. Adding: of each field alone, a set bit of bounds being
 * its most significant one; 0: one field of 64 bits. Swapping: the bits of swap_mask, if those of
 * compare_mask are as in compare.
 */
int siw_guard_fetch_add(uint64_t *before, uint64_t *theirs, uint64_t add, uint64_t bounds);
int siw_guard_cmp_swap(uint64_t *before, uint64_t *theirs, uint64_t compare, uint64_t compare_mask,
		       uint64_t swap, uint64_t swap_mask);

/* cffi: end */

#endif
