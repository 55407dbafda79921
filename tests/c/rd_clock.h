/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * An endpoint of reliable datagrams with a clock that the test moves: one endpoint, a stranger
 * whose datagrams the test builds, and all that the endpoint sent, each with its time. Over the
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
#define EPOCH 0xabcd0001u /* the stranger's */

struct sent {
	uint64_t at; /* since begin() */
	uint32_t len;
	int type; /* enum siw_dgram_type */
	struct siw_rd_wire wire;
	uint8_t rest[600];
};

extern struct siw_rd *rd;
extern struct sent *log_;
extern uint32_t n_sent; /* entries of log_ */
extern uint32_t taken;	/* segments that came up */
extern bool holds;	/* each is held when it comes up */
extern int news[8];	/* by enum siw_rd_event_kind */
extern uint32_t epoch;	/* the endpoint's, as the stranger knows it */
extern int stranger;	/* its place: who speaks, and is spoken to, from now on */

/* An endpoint, a stranger, and no time gone. */
void begin(void);
uint64_t now(void);
/* Time goes by: the endpoint is looked at whenever it said that it is due, and at the end. */
void pass(uint64_t ns);
/* The stranger's datagram, with these fields and octets behind the header, is there now. */
struct says {
	int type;
	uint32_t psn, acknowledged; /* from the epochs on */
	uint32_t responses;	    /* acknowledged, from the epoch on */
	uint16_t credit;	    /* of both spaces */
	uint16_t delay;		    /* µs */
	uint8_t flags;
	const void *rest;
	uint32_t len;
	uint32_t source_epoch; /* 0: EPOCH */
};
void say(const struct says *what);
#define SAY(...) say(&(struct says){ __VA_ARGS__ })
/* What the stranger says of itself, padded as a HELLO's body is; and with that cookie behind it. */
extern const uint8_t hello_body[SIW_RD_HELLO_LEAST];
enum { OFFER = 16, ECHO = OFFER + SIW_RD_COOKIE_LEN };
const uint8_t *with_cookie(const void *cookie);
/* The body of the ECHO of the first CHALLENGE in the log. */
const uint8_t *echo_body(void);
/* ... and the endpoint looks, if it was not said together with others. */
void look(void);
/* The two meet, the stranger beginning; what was sent for that is not in the log. */
void meet(void);
struct siw_rd_peer *peer(void);
void post(uint32_t octets);
/* The i-th in the log of that type; NULL: there are fewer. */
const struct sent *nth(int type, uint32_t i);
uint32_t count(int type);

#endif
