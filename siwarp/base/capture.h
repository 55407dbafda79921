/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/capture.h - a pcapng file of what this process sends and receives, with Ethernet, IP and
 * TCP or UDP headers made up, so that no root and no network interface is needed. llp writes the
 * packets; the code that drops a datagram gives the reason, which becomes that packet's comment.
 *
 * While off it costs a relaxed load and a branch for each system call of llp. While on, one lock is
 * held from before a send until the packet is written, so that no response is in the file before
 * its request.
 *
 * Nothing is buffered: each packet is in the file when the call that moved it returns. The block of
 * a received datagram has room for a comment, which siw_capture_note() fills in place.
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
 * Whether a capture may be on. Stored, relaxed, by open and close; the capture's data has a lock.
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

/* A TCP segment's payload at most: some readers take no frame of more than 65535 octets. */
#define SIW_CAPTURE_TCP_MAX 65460

struct siw_capture_packet {
	uint64_t when_ns; /* CLOCK_REALTIME */
	int interface;	  /* what siw_capture_interface() gave */
	bool sent;
	bool tcp;
	uint8_t flags;		      /* enum siw_capture_tcp_flags */
	uint32_t seq, ack;	      /* of TCP */
	struct siw_addr source, dest; /* with ports; of one family */
	/* The payload: length octets behind the first skip ones. */
	const struct iovec *iov;
	size_t skip, length;
	size_t missing; /* octets of a datagram behind these that were cut off */
};

/* ---- for llp: all but the first two between lock and unlock ---------------------------------- */

/* Takes the lock, and returns the time (CLOCK_REALTIME, ns), as siw_capture_now() does. */
uint64_t siw_capture_lock(void);
void siw_capture_unlock(void);
uint64_t siw_capture_now(void);
/*
 * The number of the file, another one for each; 0: there is none. In a forked child the first call
 * makes the child's own file.
 */
uint32_t siw_capture_generation(void);
/* The number in the file of the interface of this name, which is added if it is new. */
int siw_capture_interface(const char *name);
void siw_capture_write(const struct siw_capture_packet *packet);

/* ---- for the code that drops ----------------------------------------------------------------- */

/* cffi: begin */

/* Says why the datagram that this thread received last was dropped: an enum siw_counter. */
void siw_capture_note(int why);

/* cffi: end */

/*
 * Counts a dropped datagram and notes the reason in the capture. Always false, for a check to
 * return.
 */
static inline bool siw_drop(enum siw_counter why)
{
	siw_count(why, 1);
	if (siw_capture_on())
		siw_capture_note((int)why);
	return false;
}

/* cffi: begin */

/* ---- the file --------------------------------------------------------------------------------
 *
 * In path each %p stands for the process's PID. The file must be a regular one. A forked child has
 * a file of its own: the same name with its PID for %p, or with -PID before the suffix, which must
 * not exist yet. When the file cannot grow, because the disk is full or it has SIWARP_CAPTURE_MB
 * million octets, the capture ends after a whole packet with a line on stderr; traffic goes on.
 */

/* Starts a capture; an existing file is overwritten. 0; -EBUSY: a capture is on; or -errno. */
int siw_capture_open(const char *path);
/* Ends the capture, if one is on. */
void siw_capture_close(void);
/*
 * Starts the capture that SIWARP_CAPTURE names, at the first call of a process. If the file exists,
 * another process with the same variable has it, and this one writes to FILE with -PID before the
 * suffix. No file is overwritten and no symbolic link followed.
 */
void siw_capture_init(void);

/* cffi: end */

#endif
