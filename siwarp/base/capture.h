/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/capture.h - writes what this process sends and receives to a pcapng file. Ethernet, IP and
 * TCP or UDP headers are synthesized, so neither root privileges nor a network interface are
 * needed. llp writes the packets; the code that drops a datagram supplies the reason, which becomes
 * the comment of that packet.
 *
 * Cost while no capture is running: a relaxed load and a branch per system call of llp. While a
 * capture is running, a lock is held from before a send until its packet is written, so that a
 * response never precedes its request in the file.
 *
 * Nothing is buffered: when the function that transferred a packet returns, the packet is in the
 * file. The block of a received datagram has reserved space for a comment, which
 * siw_capture_note_drop_reason() fills in place.
 */
#ifndef SIW_BASE_CAPTURE_H
#define SIW_BASE_CAPTURE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <siwarp/types.h>

#include "base/counters.h"

/*
 * Not 0 while a capture may be running. Written by open and close with relaxed order, because the
 * data of the capture is protected by a lock.
 */
extern _Atomic uint32_t siw_capture_active;

static inline bool siw_capture_on(void)
{
	return __builtin_expect(atomic_load_explicit(&siw_capture_active, memory_order_relaxed), 0);
}

enum siw_capture_tcp_flags {
	SIW_TCP_FIN = 0x01,
	SIW_TCP_SYN = 0x02,
	SIW_TCP_RST = 0x04,
	SIW_TCP_PSH = 0x08,
	SIW_TCP_ACK = 0x10,
};

/*
 * Maximum payload of a captured TCP segment: some readers reject frames longer than 65535 octets.
 */
#define SIW_CAPTURE_TCP_MAX 65460

struct siw_capture_packet {
	uint64_t when_ns; /* CLOCK_REALTIME */
	int interface;	  /* interface number from siw_capture_find_or_add_interface() */
	bool sent;
	bool tcp;
	uint8_t flags;		      /* enum siw_capture_tcp_flags */
	uint32_t seq, ack;	      /* TCP sequence and acknowledgement numbers */
	struct siw_addr source, dest; /* addresses and ports, of the same family */
	/* The payload: length octets of iov after the first skip octets. */
	const struct iovec *iov;
	size_t skip, length;
	size_t missing; /* octets truncated from the end of the datagram */
};

/* ---- for llp: call all but the first two functions between lock and unlock ------------------- */

/*
 * Acquires the capture lock and returns the time as siw_capture_time_ns() does (CLOCK_REALTIME,
 * ns).
 */
uint64_t siw_capture_lock(void);
void siw_capture_unlock(void);
uint64_t siw_capture_time_ns(void);
/*
 * Returns the number of the current capture file, which differs for each file, or 0 if no capture
 * is running. The first call in a forked child opens the child's own file.
 */
uint32_t siw_capture_current_file_number(void);
/*
 * Returns the index in the capture file of the interface with this name, which is added if
 * necessary.
 */
int siw_capture_find_or_add_interface(const char *name);
void siw_capture_write(const struct siw_capture_packet *packet);

/* ---- for code that drops datagrams ----------------------------------------------------------- */

/* cffi: begin */

/* Records why the datagram that this thread received last was dropped: an enum siw_counter. */
void siw_capture_note_drop_reason(int why);

/* cffi: end */

/*
 * Counts a dropped datagram and records the reason in the capture. Always returns false, so that a
 * validity check can return the result of this function directly.
 */
static inline bool siw_drop(enum siw_counter why)
{
	siw_count(why, 1);
	if (siw_capture_on())
		siw_capture_note_drop_reason((int)why);
	return false;
}

/* cffi: begin */

/*
 * ---- the file --------------------------------------------------------------------------------
 *
 * Each %p in path is replaced by the PID of the process. The file must be a regular file. A forked
 * child writes a separate file with its own PID for %p, or with -PID before the suffix; that file
 * must not exist. If the file cannot grow, because the disk is full or SIWARP_CAPTURE_MB million
 * octets are reached, the capture ends after a complete packet with a line on stderr. Traffic
 * continues.
 */

/*
 * Starts a capture and overwrites an existing file. 0; -EBUSY: a capture is already running; or
 * -errno.
 */
int siw_capture_open(const char *path);
/* Ends the running capture, if any. */
void siw_capture_close(void);
/*
 * At its first call in a process, starts the capture that SIWARP_CAPTURE names. An existing file is
 * assumed to belong to another process with the same environment; this process then writes to a
 * file with -PID before the suffix. No file is overwritten and no symbolic link is followed.
 */
void siw_capture_init(void);

/* cffi: end */

#endif
