/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * fuzz_rd.h - a network in memory with a simulated clock, below the product's code of reliable
 * datagrams. A datagram that an endpoint sends stays in flight until the input makes the network
 * deliver, drop, duplicate or corrupt it.
 *
 * Each host of the network has a number, called its place. Places 0 to ENDS - 1 are endpoints;
 * places ENDS to PLACES - 1 are strangers, whose datagrams come from the input.
 */
#ifndef FUZZ_RD_H
#define FUZZ_RD_H

#include <time.h>

#include "fuzz.h"
#include "llp/llp_sock.h"
#include "rd/rd_impl.h"

/* Length in octets of the longest datagram; tests/c sets a larger one. */
#ifndef FUZZ_LONGEST
#define FUZZ_LONGEST 1536
#endif

enum { ENDS = 3, STRANGERS = 4, PLACES = ENDS + STRANGERS };

struct fuzz_datagram {
	uint8_t from, to; /* host numbers of sender and receiver */
	uint32_t len;
	uint8_t octets[FUZZ_LONGEST];
};

struct fuzz_net {
	uint64_t now;
	bool full;	      /* every socket refuses sends */
	bool no_batches;      /* the kernel has no UDP_SEGMENT */
	bool reseed;	      /* getrandom() starts its fixed sequence again (fuzz_rd_poller.c) */
	uint32_t route_mtu;   /* path MTU that the kernel reports for every route; 0: none */
	uint32_t n_in_flight; /* number of datagrams in flight, in sending order */
	struct fuzz_datagram **in_flight;
	uint32_t kept; /* number of datagrams ever sent; the last PAST are kept for replay */
	struct fuzz_datagram *past;
	struct {
		bool up; /* the socket is readable, or its endpoint requested service */
		uint32_t n, at;
		struct fuzz_datagram *inbox;
		uint32_t asked;	 /* length in octets of the last received datagram */
		uint32_t streak; /* datagrams received since the inbox was last empty */
		struct siw_llp_sock *sock;
	} end[ENDS];
	/* The values that each stranger received last: the sender's epoch, and a cookie. */
	struct {
		uint32_t epoch;
		uint8_t cookie[SIW_RD_COOKIE_LEN];
	} heard[STRANGERS];
	/*
	 * Returns whether the endpoint at `end` has a record of the peer at `place`; set by the
	 * harness.
	 */
	bool (*knows)(int end, int place);
};

enum { AIR = 256, PAST = 128, INBOX = 128 };

extern struct fuzz_net net;

/* Replaces clock_gettime() in the files of rd. */
int fuzz_clock_gettime(clockid_t clock, struct timespec *t);
void fuzz_net_reset(void);
struct siw_addr fuzz_addr_from_index(int place);
int fuzz_index_of_addr(const struct siw_addr *addr);
/*
 * Delivers the i-th datagram in flight. Returns false if there is no such datagram, or its
 * receiver's inbox is full.
 */
bool fuzz_net_deliver_datagram(uint32_t i);
void fuzz_net_drop_datagram(uint32_t i);
/* Sends an earlier datagram again; `which` counts back from the last one sent. */
void fuzz_net_replay_datagram(uint32_t which);
/* Adds one datagram to the datagrams in flight. */
void fuzz_net_send_datagram(int from, int to, const void *octets, uint32_t len);

#endif
