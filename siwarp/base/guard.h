/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/guard.h - guarded access to user memory. A program may unmap, protect or truncate memory
 * that it has registered at any time; a peer's Write to such memory must then end a queue pair, not
 * the process. System calls report EFAULT in this case; siwarp's own copies and checksums use these
 * functions, which do the same.
 *
 * Implementation: a guarded access records, for its thread, the address range that it accesses and
 * the place where to continue. After a fault in this range, a handler of SIGSEGV and SIGBUS
 * continues at that place. Every other fault is passed to the previously installed handler (of the
 * program, of Python's faulthandler or of a sanitizer), so that bugs of siwarp still crash the
 * process. An access without a fault costs a few stores to the stack, about two nanoseconds, and no
 * system call.
 *
 * Requirements for programs: a handler for these signals that is installed after the first device
 * has been opened must call the handler that it replaced (as returned by sigaction()); otherwise
 * memory that disappears crashes the process. A thread that polls must not block the two signals,
 * because Linux kills a process whose thread faults with the signal blocked. After a fault it is
 * undefined which octets of the range were written.
 */
#ifndef SIW_BASE_GUARD_H
#define SIW_BASE_GUARD_H

#include <stddef.h>
#include <stdint.h>

/* cffi: begin */

/*
 * Installs the signal handlers, or adds a user if they are already installed. The last remove
 * restores the previous handlers, unless the handlers have been replaced meanwhile. Any thread.
 */
void siw_guard_install_handlers(void);
void siw_guard_remove_handlers(void);

/*
 * Each function returns 0, or -EFAULT if `theirs`, the user's range, is unmapped or protected;
 * `own` is memory of the library. *crc is a running CRC32C (crc32c.h), undefined after an error:
 * siw_guard_crc continues it over theirs; siw_guard_crc_read and siw_guard_crc_write copy as
 * siw_guard_read and siw_guard_write do, and continue it over the copied octets.
 */
int siw_guard_read(void *own, const void *theirs, size_t len);
int siw_guard_write(void *theirs, const void *own, size_t len);
int siw_guard_crc(uint32_t *crc, const void *theirs, size_t len);
int siw_guard_crc_read(uint32_t *crc, void *own, const void *theirs, size_t len);
int siw_guard_crc_write(uint32_t *crc, void *theirs, const void *own, size_t len);

/*
 * Atomic operations on the 64-bit word at theirs, whose address must be a multiple of 8, in host
 * byte order; atomic with respect to all CPUs and threads. *before receives the previous value.
 * fetch_add: each set bit of bounds is the top bit of a field, and fields are added separately;
 * bounds 0 means one 64-bit field. cmp_swap: if the value equals compare in the bits of
 * compare_mask, the bits of swap_mask are replaced by those of swap.
 */
int siw_guard_fetch_add(uint64_t *before, uint64_t *theirs, uint64_t add, uint64_t bounds);
int siw_guard_cmp_swap(uint64_t *before, uint64_t *theirs, uint64_t compare, uint64_t compare_mask,
		       uint64_t swap, uint64_t swap_mask);

/* cffi: end */

#endif
