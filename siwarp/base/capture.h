/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/capture.h - a pcapng file of what this process sends and receives, with Ethernet, IP and
 * TCP or UDP headers made up round it, so that no root and no network interface is needed. llp
 * hands the packets in; who drops a datagram says why, and the reason becomes that packet's comment.
 *
 * While off it costs a relaxed load and a branch for each system call of llp. While on, one
 * lock is held from before a send until it is written down, so that the file's order is one that
 * can have been: no answer stands before what it answers.
 *
 * Nothing is held back: each packet is in the file when the call that moved it returns. A received
 * datagram's block has room for a comment, which a later siw_capture_note() fills in place.
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

/* Stored, relaxed, by open and close; what it guards is read under the lock. */
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
	size_t missing; /* octets of a datagram behind those that are not at hand */
};

/* ---- for llp: all but the first two between lock and unlock ----------------------------------- */

/* Returns the time. */
uint64_t siw_capture_lock(void);
void siw_capture_unlock(void);
uint64_t siw_capture_now(void);
/*
 * Another number for each file: 0 while there is none. In a forked child the first call
 * makes the child's own file.
 */
uint32_t siw_capture_generation(void);
/* The number of the interface of this name in the file. */
int siw_capture_interface(const char *name);
void siw_capture_write(const struct siw_capture_packet *packet);

/* ---- for those that drop --------------------------------------------------------------------- */

/* cffi: begin */

/* The datagram that this thread received last was dropped for this: an enum siw_counter. */
void siw_capture_note(int why);

/* cffi: end */

/* Counts a datagram that is dropped, and says so in the capture. false, as the judge says then. */
static inline bool siw_drop(enum siw_counter why)
{
	siw_count(why, 1);
	if (siw_capture_on())
		siw_capture_note((int)why);
	return false;
}

/* cffi: begin */

/* ---- the file ---------------------------------------------------------------------------------
 *
 * In path each %p stands for the process's PID. A forked child goes on in a file of its own: the
 * same name with its PID for %p, or with -PID before the suffix, which must not exist yet. It must be a regular file. When it
 * cannot grow, the disk being full or SIWARP_CAPTURE_MB reached, the capture ends with a line on stderr,
 * its file whole up to there; traffic goes on.
 */

/* Overwrites. 0, -EBUSY: there is a capture already, or -errno. */
int siw_capture_open(const char *path);
/* Nothing if there is none. */
void siw_capture_close(void);
/*
 * Once per process: starts what SIWARP_CAPTURE asks for. A file that is there already is another
 * process's (they share the variable): then -PID is put before the suffix. No file is overwritten, and no
 * symbolic link followed.
 */
void siw_capture_init(void);

/* cffi: end */

#endif
