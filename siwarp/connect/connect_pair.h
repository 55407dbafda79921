/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * connect/connect_pair.h - RC queue pairs that connect by GID and QPN, without a connection manager: internal
 * interface between the qp_pair files. spec/rc-pairing.md specifies the protocol. All functions are
 * called with the progress lock held.
 */
#ifndef SIW_CONNECT_PAIR_H
#define SIW_CONNECT_PAIR_H

#include "connect/connect_impl.h"
#include "qp/qp_sockets.h"

/* ---- connect_pair_frame.c: the private data of Request and Reply ----------------------------- */

/* Identifies one end: its address (without port) and its QPN. */
struct siw_pair_id {
	struct siw_addr addr;
	uint32_t qpn;
};

enum siw_pair_features {
	SIW_PAIR_COUNTS = 1, /* supports delivery counts (spec/delivery-counts.md) */
};

struct siw_pair_hello {
	uint32_t features; /* set of enum siw_pair_features */
	uint8_t rnr_retry; /* the sender's, as in struct siw_qp_attr */
	struct siw_pair_id from, to;
};

/* Builds the private data; returns its length in octets. */
uint16_t siw_pair_hello_build(uint8_t *out, const struct siw_pair_hello *hello);
/* Parses private data: 0, or -EPROTO: not from siwarp, or of an unknown version. */
int siw_pair_hello_parse(const uint8_t *in, size_t len, struct siw_pair_hello *hello);
bool siw_pair_same(const struct siw_pair_id *a, const struct siw_pair_id *b);
/*
 * Whether a is ordered before b, in which case a connects. The order is total and the same at both
 * ends.
 */
bool siw_pair_before(const struct siw_pair_id *a, const struct siw_pair_id *b);

/* ---- connect_pair_port.c: numbers, and the listeners behind them ----------------------------- */

#define SIW_PAIR_INDEXES 255 /* queue pairs of one port: indexes 1 to 255 */

struct siw_pair;

/*
 * A TCP port of this device, shared by queue pairs with QPNs index << 16 | port. It listens at each
 * of the device's addresses.
 */
struct siw_pair_port {
	struct siw_conn_user user; /* first; user of its listeners and their connections */
	struct siw_every_addr how; /* used to open the listeners */
	struct siw_link link;	   /* link in ctx->pair_ports */
	uint16_t port;
	uint8_t last; /* the index assigned last; indexes are assigned round-robin */
	uint32_t n_pairs, n_listeners;
	struct siw_conn *listeners[16];
	struct siw_pair *pairs[SIW_PAIR_INDEXES + 1];
};

/* Assigns a QPN to pair: 0, -EADDRNOTAVAIL, -EADDRINUSE, -EMFILE, -ENOMEM, or another -errno. */
int siw_pair_port_join(struct siw_context *ctx, const struct siw_conn_user *user,
		       struct siw_pair *pair);
void siw_pair_port_leave(struct siw_pair *pair);
/* The pair that has this QPN, or NULL. */
struct siw_pair *siw_pair_port_find(const struct siw_pair_port *port, uint32_t qpn);

/* ---- connect_pair.c -------------------------------------------------------------------------- */

/*
 *            to RTR              the stream runs             the stream ended,
 *  UNPAIRED --------> AWAITING --------------------> PAIRED -- with nothing posted --> LOST
 *     ^                                                                                  |
 *     +---------------- RESET; or ERR, with what was posted flushed ---------------------+
 */
enum siw_pair_stage {
	SIW_PAIR_UNPAIRED, /* RESET or INIT: Requests for this QP are kept until it is in RTR */
	SIW_PAIR_AWAITING, /* the end with the lower id connects, the other end listens */
	SIW_PAIR_PAIRED,
	SIW_PAIR_LOST, /* the stream has ended: the next request fails */
};

struct siw_pair {
	struct siw_rc *rc;
	struct siw_pair_port *at;
	uint8_t index;
	enum siw_pair_stage stage;
	struct siw_pair_id own, peer; /* from RTR on */
	struct siw_conn *conn;	      /* in start-up as initiator, or attached */
	struct siw_timed timed;	      /* timer for the two times below */
	uint64_t retry_ns;	      /* time of the next connection attempt; 0: none */
	/* time at which posted requests fail; 0: nothing is posted, or no limit */
	uint64_t fail_ns;
	uint64_t began_ns;	/* when the QP went to RTR, or the first request was posted */
	uint32_t wait_us;	/* wait between the last attempt and the next */
	int timeout, retry_cnt; /* as in struct siw_qp_attr */
};

#endif
