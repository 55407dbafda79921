/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * fuzz_rd.h - a network of memory with a clock of its own, under the true code of reliable
 * datagrams: what an endpoint sends is in flight until the input has it delivered, dropped, doubled
 * or damaged.
 *
 * Places 0 to ENDS - 1 are endpoints, those from there on to PLACES - 1 strangers that the input
 * speaks for.
 */
#ifndef FUZZ_RD_H
#define FUZZ_RD_H

#include <time.h>

#include "fuzz.h"
#include "llp/llp_sock.h"
#include "rd/rd_impl.h"

/* Octets of the longest datagram; tests/c has longer ones. */
#ifndef FUZZ_LONGEST
#define FUZZ_LONGEST 1536
#endif

enum { ENDS = 3, STRANGERS = 4, PLACES = ENDS + STRANGERS };

struct fuzz_datagram {
	uint8_t from, to; /* places */
	uint32_t len;
	uint8_t octets[FUZZ_LONGEST];
};

struct fuzz_net {
	uint64_t now;
	bool full;	    /* sockets take nothing */
	bool no_batches;    /* the kernel has no UDP_SEGMENT */
	bool reseed;	    /* the next random octets are the first ones again: fuzz_rd_port.c */
	uint32_t route_mtu; /* what the kernel says of any way: 0 nothing */
	uint32_t flying;    /* datagrams in flight, in the order of sending */
	struct fuzz_datagram **air;
	uint32_t kept; /* datagrams ever sent: the last ones are kept, for who says them again */
	struct fuzz_datagram *past;
	struct {
		bool up; /* it has something, or wants to be looked at */
		uint32_t n, at;
		struct fuzz_datagram *inbox;
		uint32_t asked;	 /* octets of the datagram received last */
		uint32_t streak; /* received since there was none */
		struct siw_llp_sock *sock;
	} end[ENDS];
	/* What each stranger heard last: the epoch of who spoke, and a cookie. */
	struct {
		uint32_t epoch;
		uint8_t cookie[SIW_RD_COOKIE_LEN];
	} heard[STRANGERS];
	/* Whether the endpoint at this place knows somebody at that one; of fuzz_rd.c. */
	bool (*knows)(int end, int place);
};

enum { AIR = 256, PAST = 128, INBOX = 128 };

extern struct fuzz_net net;

/* The files of rd are compiled so that they call this one. */
int fuzz_clock_gettime(clockid_t clock, struct timespec *t);
void fuzz_net_reset(void);
struct siw_addr fuzz_addr_of(int place);
int fuzz_place_of(const struct siw_addr *addr);
/* The i-th in flight arrives; false: there is none, or its receiver has no room for it. */
bool fuzz_net_arrive(uint32_t i);
void fuzz_net_drop(uint32_t i);
/* One of the datagrams that were sent flies once more: which from the last one back. */
void fuzz_net_again(uint32_t which);
/* One more in flight. */
void fuzz_net_send(int from, int to, const void *octets, uint32_t len);

#endif
