/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/guard.h - access to memory of the user. A program may unmap, protect or truncate memory that
 * it registered at any time; a peer's Write to it must then end a queue pair, not the process.
 * System calls return EFAULT there; copies and checksums of our own go through these functions,
 * which do so, too.
 *
 * How: a guarded access notes for its thread the range that it accesses and where to continue. A
 * handler of SIGSEGV and SIGBUS continues there after a fault in this very range. It passes every
 * other fault to the handler that was installed before (the program's, Python's faulthandler, a
 * sanitizer's), so that bugs of ours still crash. An access without a fault costs some stores to
 * the stack, about two nanoseconds, and no system call.
 *
 * What a program must know: a handler for these signals that it installs after its first device was
 * opened must call the one that it replaced (of sigaction()); otherwise memory that vanishes
 * crashes the process. A thread that polls must not block the two signals, since Linux kills the
 * process for a fault in such a thread. After a fault it is undefined which octets of the range
 * were written.
 */
#ifndef SIW_BASE_GUARD_H
#define SIW_BASE_GUARD_H

#include <stddef.h>
#include <stdint.h>

/* cffi: begin */

/*
 * Installs the handlers, or counts one more user. The last remove restores the handlers from
 * before, unless ours were replaced meanwhile. Any thread.
 */
void siw_guard_install(void);
void siw_guard_remove(void);

/*
 * Each returns 0, or -EFAULT if theirs, the user's range, is absent or protected; own is the
 * library's. *crc is a CRC32C so far (crc32c.h), undefined after an error. crc: of theirs. crc_read
 * and crc_write: they copy as read and write do, and sum the octets copied.
 */
int siw_guard_read(void *own, const void *theirs, size_t len);
int siw_guard_write(void *theirs, const void *own, size_t len);
int siw_guard_crc(uint32_t *crc, const void *theirs, size_t len);
int siw_guard_crc_read(uint32_t *crc, void *own, const void *theirs, size_t len);
int siw_guard_crc_write(uint32_t *crc, void *theirs, const void *own, size_t len);

/*
 * Atomic operations on 64 bits of theirs, at an address that is a multiple of 8, in this machine's
 * octet order, atomic for every CPU and thread. *before: the value before. fetch_add: each set bit
 * of bounds is the top bit of a field, and fields are added separately; bounds 0: one field of 64
 * bits. cmp_swap: if the bits of compare_mask equal those of compare, the bits of swap_mask are set
 * to those of swap.
 */
int siw_guard_fetch_add(uint64_t *before, uint64_t *theirs, uint64_t add, uint64_t bounds);
int siw_guard_cmp_swap(uint64_t *before, uint64_t *theirs, uint64_t compare, uint64_t compare_mask,
		       uint64_t swap, uint64_t swap_mask);

/* cffi: end */

#endif
