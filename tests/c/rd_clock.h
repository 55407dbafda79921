/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * An RD endpoint with a clock that the test advances, and a simulated peer whose datagrams the test
 * builds. Every datagram that the endpoint sends is logged with its time. Based on the simulated
 * network of tests/fuzz/fuzz_rd.h.
 */
#ifndef TESTS_C_RD_CLOCK_H
#define TESTS_C_RD_CLOCK_H

#include <arpa/inet.h>

#include "fuzz_rd.h"
#include "rd/rd_hello_wire.h"

#define US    1000ull
#define MS    1000000ull
#define S     1000000000ull
#define QKEY  0x11223344u
#define EPOCH 0xabcd0001u /* the epoch that the simulated peer uses */

struct sent {
	uint64_t at; /* time of sending, in ns since open_endpoint() */
	uint32_t len;
	int type; /* type of the datagram, an enum siw_dgram_type */
	struct siw_rd_wire wire;
	uint8_t rest[600];
};

extern struct siw_rd *rd;
extern struct sent *log_;
extern uint32_t n_sent; /* number of entries in log_ */
extern uint32_t taken;	/* number of segments delivered to the upper layer */
extern bool holds;	/* if true, each received segment pauses the delivery */
extern int news[8];	/* number of events of each kind, indexed by enum siw_rd_event_kind */
extern uint32_t epoch;	/* the endpoint's epoch, as the simulated peer knows it */
extern int stranger;	/* index of the simulated peer that sends and receives from now on */

/* Creates an endpoint and a simulated peer, at time 0. */
void open_endpoint(void);
uint64_t elapsed_ns(void);
/*
 * Advances the clock by ns nanoseconds. The endpoint runs whenever one of its timers expires, and
 * at the end.
 */
void advance_clock(uint64_t ns);
/* Header fields of a datagram from the simulated peer, and the octets after the header. */
struct peer_datagram {
	int type;
	/* PSN, and acknowledged PSN of the request space, relative to the epochs */
	uint32_t psn, acknowledged;
	/* acknowledged PSN of the response space, relative to its initial PSN */
	uint32_t responses;
	uint16_t credit; /* credit that is granted in both sequence spaces */
	uint16_t delay;	 /* acknowledgement delay in µs */
	uint8_t flags;
	const void *rest;
	uint32_t len;
	uint32_t source_epoch; /* source epoch; 0 stands for EPOCH */
};
/* Delivers the datagram to the endpoint without a delay. */
void send_from_peer(const struct peer_datagram *what);
#define SEND_FROM_PEER(...) send_from_peer(&(struct peer_datagram){ __VA_ARGS__ })
/*
 * The simulated peer's parameters, padded to the length of a HELLO body;
 * build_rd_echo_body() appends a cookie.
 */
extern const uint8_t hello_body[SIW_RD_HELLO_LEAST];
enum { OFFER = 16, ECHO = OFFER + SIW_RD_COOKIE_LEN };
const uint8_t *build_rd_echo_body(const void *cookie);
/* Returns the body of the ECHO that answers the first CHALLENGE in the log. */
const uint8_t *build_echo_body(void);
/* Delivers the datagrams in flight and runs the endpoint until it has handled all of them. */
void process_endpoint_events(void);
/* Establishes contact, started by the simulated peer, and then clears the log. */
void establish_contact(void);
struct siw_rd_peer *get_simulated_peer(void);
void send_segment(uint32_t octets);
/* Returns the i-th datagram of that type in the log, or NULL if there are fewer. */
const struct sent *find_nth_sent_datagram(int type, uint32_t i);
uint32_t count_sent_datagrams(int type);

#endif
