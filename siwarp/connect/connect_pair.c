/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * RC queue pairs that connect by GID and QPN, without a connection manager (spec/rc-pairing.md).
 * Each lane has TCP ports and listeners of its own, so that everything that belongs to a queue pair
 * is in its lane. All functions are called with the lock of that lane held.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/clock.h"
#include "connect/connect_impl.h"
#include "llp/llp.h"
#include "qp/qp_sockets.h"

/* ==== private data of Request and Reply ======================================================= */

/*
 * The private data by which two RC queue pairs that connect by GID and QPN identify each other, in
 * network byte order (spec/rc-pairing.md):
 *
 *    0                   1                   2                   3
 *    0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                        "SIWP" (magic)                         |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |    version    |   rnr_retry   |           features            |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                       the sender's QPN                        |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                      the receiver's QPN                       |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                 the sender's GID (16 octets)                  |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                the receiver's GID (16 octets)                 |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 */

/* Identifies one end of a connection: its address (without port) and its QPN. */
struct siw_pair_id {
	struct siw_addr addr;
	uint32_t qpn;
};

enum siw_pair_features {
	SIW_PAIR_COUNTS = 1, /* the sender supports delivery counts (spec/delivery-counts.md) */
};

struct siw_pair_pdata {
	uint32_t features; /* set of enum siw_pair_features */
	uint8_t rnr_retry; /* rnr_retry of the sender's QP, as in struct siw_qp_attr */
	struct siw_pair_id from, to;
};

#define VERSION 1

static const uint8_t magic[4] = { 'S', 'I', 'W', 'P' };

struct frame {
	uint8_t magic[4];
	uint8_t version, rnr_retry;
	uint16_t features;
	uint32_t from_qpn, to_qpn;
	uint8_t from_gid[16], to_gid[16];
};

_Static_assert(sizeof(struct frame) == 48, "the size in the figure");

/* Builds the private data that identifies this end; returns the length in octets. */
static uint16_t pair_private_data_build(uint8_t *out, const struct siw_pair_pdata *pdata)
{
	struct frame frame = {
		.version = VERSION,
		.rnr_retry = pdata->rnr_retry,
		.features = htons((uint16_t)pdata->features),
		.from_qpn = htonl(pdata->from.qpn),
		.to_qpn = htonl(pdata->to.qpn),
	};

	memcpy(frame.magic, magic, sizeof(magic));
	siw_addr_to_gid(&pdata->from.addr, frame.from_gid);
	siw_addr_to_gid(&pdata->to.addr, frame.to_gid);
	memcpy(out, &frame, sizeof(frame));
	return sizeof(frame);
}

/*
 * Parses the private data of a peer. Returns 0, or -EPROTO: the data is not from siwarp, or of an
 * unknown version.
 */
static int pair_private_data_parse(const uint8_t *in, size_t len, struct siw_pair_pdata *pdata)
{
	struct frame frame;

	if (len != sizeof(frame))
		return -EPROTO;
	memcpy(&frame, in, sizeof(frame));
	if (memcmp(frame.magic, magic, sizeof(magic)) || frame.version != VERSION)
		return -EPROTO;
	pdata->features = ntohs(frame.features);
	pdata->rnr_retry = frame.rnr_retry;
	pdata->from =
		(struct siw_pair_id){ siw_addr_of_gid(frame.from_gid), ntohl(frame.from_qpn) };
	pdata->to = (struct siw_pair_id){ siw_addr_of_gid(frame.to_gid), ntohl(frame.to_qpn) };
	return 0;
}

static int pair_id_compare(const struct siw_pair_id *a, const struct siw_pair_id *b)
{
	uint8_t gid_a[16], gid_b[16];
	int order;

	siw_addr_to_gid(&a->addr, gid_a);
	siw_addr_to_gid(&b->addr, gid_b);
	order = memcmp(gid_a, gid_b, sizeof(gid_a));
	return order ? order : (a->qpn > b->qpn) - (a->qpn < b->qpn);
}

static bool pair_ids_are_equal(const struct siw_pair_id *a, const struct siw_pair_id *b)
{
	return pair_id_compare(a, b) == 0;
}

/*
 * Returns whether id a is ordered before id b, in which case the end with id a connects. The order
 * is total and the same at both ends.
 */
static bool pair_id_is_lower(const struct siw_pair_id *a, const struct siw_pair_id *b)
{
	return pair_id_compare(a, b) < 0;
}

/* ==== ports, and the listeners behind them ==================================================== */

/*
 * The TCP ports in the low 16 bits of RC QPNs. Each port is used by up to 255 queue pairs of one
 * lane; the kernel ensures that no other lane and no other process uses the same port.
 */

#define SIW_PAIR_INDEXES 255 /* maximum number of QPs that share one TCP port: indexes 1 to 255 */

struct siw_pair;

/*
 * A TCP port of a lane, shared by queue pairs with QPNs index << 16 | port. It listens at each of
 * the device's addresses.
 */
struct siw_pair_port {
	struct siw_conn_user user;   /* must be first; handles events of the port's connections */
	struct siw_every_addr every; /* the listeners at every address, their port and lane */
	struct siw_link link;	     /* link in pair_ports of the lane */
	uint8_t last;		     /* the index assigned last; indexes are assigned round-robin */
	uint32_t n_pairs, n_listeners;
	struct siw_conn *listeners[16];
	struct siw_pair *pairs[SIW_PAIR_INDEXES + 1];
};

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
	struct siw_rc_qp *rc;
	struct siw_lane *lane; /* the queue pair's lane */
	struct siw_pair_port *port;
	uint8_t index;
	enum siw_pair_stage stage;
	struct siw_pair_id own, peer; /* the ids of both ends, valid from RTR on */
	struct siw_conn *conn;	      /* connection that this end initiates, or that is attached */
	struct siw_timed timed;	      /* timer for retry_ns and fail_ns */
	uint64_t retry_ns;	      /* time of the next connection attempt; 0: none */
	/* time at which posted requests fail; 0: nothing is posted, or no limit */
	uint64_t fail_ns;
	uint64_t began_ns;	/* when the QP went to RTR, or the first request was posted */
	uint32_t wait_us;	/* wait between the last attempt and the next */
	int timeout, retry_cnt; /* time-out and retry count, as in struct siw_qp_attr */
};

#define BACKLOG 1024

_Static_assert(sizeof(((struct siw_pair_port *)0)->listeners) / sizeof(struct siw_conn *) ==
		       SIW_MAX_ADDRS,
	       "one listener for each address");

/* Returns the pair that has this QPN, or NULL. */
static struct siw_pair *pair_port_find_pair(const struct siw_pair_port *port, uint32_t qpn)
{
	uint32_t index = qpn >> SIW_QPN_INDEX_BIT;

	return (qpn & 0xffff) == port->every.port && index <= SIW_PAIR_INDEXES ? port->pairs[index]
									       : NULL;
}

static void pair_port_close_listeners(struct siw_every_addr *every)
{
	struct siw_pair_port *port = siw_container(every, struct siw_pair_port, every);

	for (uint32_t i = 0; i < port->n_listeners; i++)
		siw_conn_free(port->listeners[i]);
	port->n_listeners = 0;
}

static int pair_port_listen_at(struct siw_every_addr *every, struct siw_addr *addr)
{
	struct siw_pair_port *port = siw_container(every, struct siw_pair_port, every);
	struct siw_conn **listener = &port->listeners[port->n_listeners];
	int err = siw_conn_listen(&port->user, every->lane, addr, BACKLOG, port, listener);

	if (err)
		return err;
	port->n_listeners++;
	return siw_llp_local_addr((*listener)->lsock, addr);
}

/*
 * Opens the listeners of a port. Settings rc_port_first and rc_port_last restrict the port, for
 * firewalls; 0: any port.
 */
static int pair_port_listen(struct siw_pair_port *port, struct siw_lane *lane)
{
	int64_t first = siw_settings()->rc_port_first, last = siw_settings()->rc_port_last;
	int err;

	do {
		err = siw_every_addr_open_sockets(&port->every, lane, (uint16_t)first);
	} while (err == -EADDRINUSE && first && ++first <= last);
	return err;
}

static void pair_port_reconnect_pairs(struct siw_every_addr *every);

static int pair_port_open(struct siw_lane *lane, const struct siw_conn_user *user,
			  struct siw_pair_port **out)
{
	struct siw_pair_port *port = calloc(1, sizeof(*port));
	int err;

	if (!port)
		return -ENOMEM;
	port->user = *user;
	port->user.ctx = lane->ctx;
	port->every = (struct siw_every_addr){
		.open = pair_port_listen_at,
		.undo = pair_port_close_listeners,
		.updated = pair_port_reconnect_pairs,
	};
	err = pair_port_listen(port, lane);
	if (err) {
		free(port);
		return err;
	}
	siw_link_add(&lane->pair_ports, &port->link);
	*out = port;
	return 0;
}

static void pair_port_close(struct siw_pair_port *port)
{
	siw_every_addr_stop_handling_addr_changes(&port->every);
	pair_port_close_listeners(&port->every);
	siw_link_del(&port->link);
	free(port);
}

/*
 * Assigns to the pair a free index of this port whose QPN is unused. Returns false if there is
 * none.
 */
static bool pair_assign_index_of_port(struct siw_pair_port *port, struct siw_pair *pair)
{
	for (uint32_t i = 0, index = port->last; i < SIW_PAIR_INDEXES; i++) {
		uint32_t qpn;

		index = index % SIW_PAIR_INDEXES + 1;
		qpn = index << SIW_QPN_INDEX_BIT | port->every.port;
		if (port->pairs[index] || qpn > SIW_LAST_RC_QPN ||
		    !siw_qp_reserve_qpn(&pair->rc->base, qpn))
			continue;
		port->pairs[index] = pair;
		port->last = (uint8_t)index;
		port->n_pairs++;
		pair->port = port;
		pair->index = (uint8_t)index;
		pair->own.qpn = qpn;
		return true;
	}
	return false;
}

/*
 * Assigns a QPN to pair. Returns 0, -EADDRNOTAVAIL, -EADDRINUSE, -EMFILE, -ENOMEM, or another
 * -errno.
 */
static int pair_obtain_qpn(struct siw_pair *pair, const struct siw_conn_user *user)
{
	struct siw_link *ports = &pair->lane->pair_ports;
	struct siw_pair_port *port;
	int err;

	for (struct siw_link *l = ports->next; l != ports; l = l->next) {
		port = siw_container(l, struct siw_pair_port, link);
		if (port->n_pairs < SIW_PAIR_INDEXES && pair_assign_index_of_port(port, pair))
			return 0;
	}
	err = pair_port_open(pair->lane, user, &port);
	if (err)
		return err;
	if (pair_assign_index_of_port(port, pair))
		return 0;
	pair_port_close(port);
	return -EADDRINUSE;
}

static void pair_release_qpn(struct siw_pair *pair)
{
	struct siw_pair_port *port = pair->port;

	port->pairs[pair->index] = NULL;
	if (!--port->n_pairs)
		pair_port_close(port);
}

/* ==== pairing ================================================================================= */

/*
 * RC queue pairs that connect by GID and QPN (spec/rc-pairing.md). The program sets the id of the
 * other end at both ends with siw_modify_qp(). The end with the lower id connects, from its own
 * address to the other's address, with the port in the other's QPN; both identify themselves in
 * MPA's private data. Either end may be first: the initiator retries, and a Request for a queue
 * pair that is not in RTR yet is kept for it.
 *
 * When a stream ends, the QP keeps its state, as on InfiniBand, where the loss of the peer does not
 * change the state either. Requests that are outstanding then or posted later fail at their
 * time-out.
 */

#define FIRST_WAIT_US 1000u
#define LAST_WAIT_US  64000u
/* After this time without success, connecting to a peer is tried only once a second. */
#define PATIENT_NS   (3 * UINT64_C(1000000000))
#define SLOW_WAIT_US 1000000u
/* Posted requests wait at least this long for a peer, because one lost SYN costs a second. */
#define LEAST_WAIT_NS (3 * UINT64_C(1000000000))
/*
 * A Request is kept for this many start-up time-outs, longer than the initiator of the Request
 * waits; the initiator then retries.
 */
#define KEPT_STARTUPS 2

/* ---- timers ---------------------------------------------------------------------------------- */

static void pair_set_timer(struct siw_pair *pair)
{
	uint64_t due = pair->retry_ns;

	if (pair->fail_ns && (!due || pair->fail_ns < due))
		due = pair->fail_ns;
	siw_device_timer_cancel(pair->lane, &pair->timed);
	if (due)
		siw_device_timer_start_at(pair->lane, &pair->timed, due);
}

/*
 * Returns how long posted requests wait for a peer, in nanoseconds: attribute timeout in
 * InfiniBand's encoding (4.096 us << timeout), times retry_cnt + 1. 0: without limit.
 */
static uint64_t pair_request_timeout_ns(const struct siw_pair *pair)
{
	uint64_t wait = (UINT64_C(4096) << pair->timeout) * (uint64_t)(pair->retry_cnt + 1);

	if (!pair->timeout)
		return 0;
	return wait < LEAST_WAIT_NS ? LEAST_WAIT_NS : wait;
}

static void pair_retry_later(struct siw_pair *pair)
{
	uint64_t now = siw_now_ns();

	siw_count(SIW_COUNTER_pair_retries, 1);
	pair->wait_us *= 2;
	if (pair->wait_us > LAST_WAIT_US)
		pair->wait_us = now - pair->began_ns < PATIENT_NS ? LAST_WAIT_US : SLOW_WAIT_US;
	pair->retry_ns = now + (uint64_t)pair->wait_us * 1000;
	pair_set_timer(pair);
}

/* ---- parameters of start-up ------------------------------------------------------------------ */

/*
 * Returns the number of Reads that this end accepts (IRD): the program's value plus one, for the
 * empty Read by which the peer finds out how much this end has received.
 */
static uint16_t pair_own_ird_limit(const struct siw_pair *pair)
{
	int ird = pair->rc->base.ird;

	return ird < 0 || ird >= SIW_RDMAP_MAX_READS ? SIW_RDMAP_MAX_READS : (uint16_t)(ird + 1);
}

static uint32_t pair_features_to_announce(void)
{
	return siw_settings()->delivery_counts ? SIW_PAIR_COUNTS : 0;
}

static void pair_fill_params(const struct siw_pair *pair, struct siw_mpa_params *params)
{
	struct siw_pair_pdata pdata = {
		.features = pair_features_to_announce(),
		.rnr_retry = (uint8_t)pair->rc->base.rnr_retry,
		.from = pair->own,
		.to = pair->peer,
	};

	*params = (struct siw_mpa_params){
		.rev = 2,
		.crc = siw_settings()->crc != 0,
		.markers = siw_settings()->markers != 0,
		.enhanced = 1,
		.p2p = 1,
		.rtr = SIW_MPA_RTR_WRITE | SIW_MPA_RTR_READ,
		.ird = pair_own_ird_limit(pair),
		.ord = SIW_RDMAP_MAX_READS,
	};
	params->pdata_len = pair_private_data_build(params->pdata, &pdata);
}

/*
 * Limits the outstanding Reads to the number that the program has set, plus one for the empty Read
 * by which this end finds out how much the peer has received.
 */
static void pair_limit_outstanding_reads(struct siw_pair *pair)
{
	struct siw_base_qp *base = &pair->rc->base;

	siw_lock(&base->qp.send_lock);
	base->reads_max = base->granted_ord;
	if (base->ord >= 0 && base->ord + 1 < base->reads_max)
		base->reads_max = (uint16_t)(base->ord + 1);
	siw_unlock(&base->qp.send_lock);
}

static int pair_attach_connection(struct siw_pair *pair, struct siw_conn *conn,
				  const struct siw_mpa_params *theirs,
				  const struct siw_pair_pdata *pdata, bool initiator, uint8_t rtr)
{
	struct siw_rc_start at = {
		.ird = pair_own_ird_limit(pair),
		.ord = theirs->ird < SIW_RDMAP_MAX_READS ? theirs->ird : SIW_RDMAP_MAX_READS,
		.rtr = rtr,
		.initiator = initiator,
		.ord_known = true,
		.siwarp = true,
		.counts = pair_features_to_announce() & pdata->features & SIW_PAIR_COUNTS,
	};
	int err;

	/* pair->conn is set before the connection reports that it is established. */
	pair->conn = conn;
	pair->stage = SIW_PAIR_PAIRED;
	pair->retry_ns = pair->fail_ns = 0;
	pair_set_timer(pair);
	err = siw_conn_attach_qp(conn, pair->rc, &at);
	if (err) {
		pair->conn = NULL;
		pair->stage = SIW_PAIR_AWAITING;
		return err;
	}
	pair_limit_outstanding_reads(pair);
	return 0;
}

/* ---- the initiator --------------------------------------------------------------------------- */

static void pair_connect(struct siw_pair *pair)
{
	bool itself = pair_ids_are_equal(&pair->own, &pair->peer);
	struct siw_addr dest = pair->peer.addr;
	struct siw_mpa_params params;

	pair->retry_ns = 0;
	pair_fill_params(pair, &params);
	if (itself) /* no RTR message, because this end is both initiator and responder */
		params.p2p = params.rtr = 0;
	dest.port_be = htons((uint16_t)pair->peer.qpn);
	if (siw_conn_start_connecting(&pair->port->user, pair->lane, itself ? NULL : &dest,
				      &pair->own.addr, &params, 0, pair, &pair->conn)) {
		pair->conn = NULL;
		pair_retry_later(pair);
	}
}

/* Frees a connection that has ended, and whose end has been reported already. */
static void pair_drop_connection(struct siw_pair *pair, struct siw_conn *conn)
{
	pair->conn = NULL;
	siw_conn_free(conn);
}

/* Returns whether this end has started to connect and the TCP handshake is not complete yet. */
static bool pair_waits_for_tcp(const struct siw_pair *pair)
{
	const struct siw_conn *conn = pair->conn;

	return pair->stage == SIW_PAIR_AWAITING && conn && conn->initiator && conn->mpa &&
	       siw_llp_tcp_connect_result(siw_mpa_sock(conn->mpa)) == -EAGAIN;
}

static void pair_connect_again(struct siw_pair *pair)
{
	if (pair_waits_for_tcp(pair)) {
		pair_drop_connection(pair, pair->conn);
		pair_connect(pair);
	} else if (pair->retry_ns) {
		pair->retry_ns = siw_now_ns();
	}
	pair_set_timer(pair);
}

/*
 * Reconnects the pairs of a port after a change of the link or of the device's addresses; callback
 * `updated` of struct siw_every_addr. Linux sets the routes of IPv6 addresses again when a link
 * becomes ready. A SYN that is sent meanwhile to an address of this host leaves on the link and is
 * lost; TCP retransmits the SYN only after neighbor discovery of that address has failed, which
 * takes 3 s.
 */
static void pair_port_reconnect_pairs(struct siw_every_addr *every)
{
	struct siw_pair_port *port = siw_container(every, struct siw_pair_port, every);

	for (uint32_t i = 1; i <= SIW_PAIR_INDEXES; i++)
		if (port->pairs[i])
			pair_connect_again(port->pairs[i]);
}

static void pair_handle_reply(struct siw_pair *pair, struct siw_conn *conn,
			      const struct siw_mpa_params *params)
{
	bool itself = pair_ids_are_equal(&pair->own, &pair->peer);
	struct siw_pair_pdata pdata;

	if (!params->ird || pair_private_data_parse(params->pdata, params->pdata_len, &pdata) ||
	    !pair_ids_are_equal(&pdata.from, &pair->peer) ||
	    !pair_ids_are_equal(&pdata.to, &pair->own)) {
		siw_count(SIW_COUNTER_pair_strangers, 1);
	} else if (pair_attach_connection(pair, conn, params, &pdata, true,
					  itself ? 0 : params->rtr) == 0) {
		return;
	}
	pair_drop_connection(pair, conn);
	pair_retry_later(pair);
}

/* ---- the responder --------------------------------------------------------------------------- */

/* The contents of a Request that is kept until its QP is in RTR. */
struct kept {
	struct siw_pair_pdata pdata;
	struct siw_mpa_params params;
};

static int pair_accept_request(struct siw_pair *pair, struct siw_conn *conn,
			       const struct siw_pair_pdata *pdata,
			       const struct siw_mpa_params *theirs)
{
	struct siw_mpa_params params;
	int err;

	pair_fill_params(pair, &params);
	params.crc |= theirs->crc;
	params.rtr = theirs->rtr;
	if (params.ord > theirs->ird)
		params.ord = theirs->ird;
	err = siw_conn_reply(conn, &params);
	if (err)
		return err;
	siw_conn_leave_listener(conn);
	/*
	 * The member user_data held the kept Request until now; the kept Request is no longer
	 * needed.
	 */
	free(conn->user_data);
	conn->user_data = pair;
	return pair_attach_connection(pair, conn, theirs, pdata, false, params.rtr);
}

/* Rejects a Request. The initiator retries as long as its program wants to connect. */
static int pair_reject_request(struct siw_conn *conn, const struct siw_mpa_params *theirs)
{
	struct siw_mpa_params params = {
		.rev = 2,
		.crc = theirs->crc,
		.enhanced = theirs->enhanced,
		.p2p = theirs->p2p,
		.rejected = 1,
	};

	siw_count(SIW_COUNTER_pair_refused, 1);
	siw_conn_reply(conn, &params);
	return -ECONNREFUSED;
}

static int pair_keep_request(struct siw_conn *conn, const struct siw_pair_pdata *pdata,
			     const struct siw_mpa_params *params)
{
	struct kept *kept = malloc(sizeof(*kept));

	if (!kept)
		return -ENOMEM;
	*kept = (struct kept){ *pdata, *params };
	conn->user_data = kept;
	siw_conn_start_user_timer(conn, KEPT_STARTUPS * (int)siw_settings()->mpa_timeout_ms);
	return 0;
}

/*
 * Accepts or rejects a Request. Returns 0: the connection belongs to the queue pair. Otherwise the
 * caller frees conn.
 */
static int pair_accept_or_reject_request(struct siw_pair *pair, struct siw_conn *conn,
					 const struct siw_pair_pdata *pdata,
					 const struct siw_mpa_params *params)
{
	if (pair->stage != SIW_PAIR_AWAITING || pair->conn ||
	    !pair_id_is_lower(&pair->peer, &pair->own) ||
	    !pair_ids_are_equal(&pdata->from, &pair->peer) ||
	    !pair_ids_are_equal(&pdata->to, &pair->own))
		return pair_reject_request(conn, params);
	return pair_accept_request(pair, conn, pdata, params);
}

/*
 * Returns whether the sender's address is the address in its private data, which is not the case
 * behind an address translator.
 */
static bool pair_private_data_addr_matches(struct siw_conn *conn,
					   const struct siw_pair_pdata *pdata)
{
	struct siw_addr local, peer;

	if (siw_mpa_addrs(conn->mpa, &local, &peer))
		return false;
	peer.port_be = 0;
	return siw_addr_same(&peer, &pdata->from.addr);
}

static int pair_handle_arriving_request(struct siw_conn *conn, struct siw_conn *listener,
					const struct siw_mpa_params *params)
{
	const struct siw_pair_port *port = listener->user_data;
	struct siw_pair_pdata pdata;
	struct siw_pair *pair;

	/*
	 * siwarp's Requests always permit at least one Read (IRD), because a Read shows how much
	 * the initiator has received.
	 */
	if (!params->enhanced || !params->p2p || !params->ird ||
	    pair_private_data_parse(params->pdata, params->pdata_len, &pdata)) {
		siw_count(SIW_COUNTER_pair_strangers, 1);
		return -EPROTO;
	}
	if (!pair_private_data_addr_matches(conn, &pdata)) {
		siw_count(SIW_COUNTER_pair_addresses, 1);
		return -EACCES;
	}
	pair = pair_port_find_pair(port, pdata.to.qpn);
	if (!pair)
		return pair_reject_request(conn, params);
	if (pair->stage == SIW_PAIR_UNPAIRED)
		return pair_keep_request(conn, &pdata, params);
	return pair_accept_or_reject_request(pair, conn, &pdata, params);
}

/* Accepts or rejects the kept Requests, which arrived before the QP was in RTR. */
static void pair_answer_kept_requests(struct siw_pair *pair)
{
	struct siw_pair_port *port = pair->port;

	for (uint32_t i = 0; i < port->n_listeners; i++) {
		struct siw_link *children = &port->listeners[i]->children, *next;

		for (struct siw_link *l = children->next; l != children; l = next) {
			struct siw_conn *conn = siw_container(l, struct siw_conn, of_listener);
			struct kept *kept = conn->stage == REQUESTED ? conn->user_data : NULL;
			struct kept said;

			next = l->next;
			if (!kept || kept->pdata.to.qpn != pair->own.qpn)
				continue;
			said = *kept;
			siw_device_timer_cancel(siw_conn_lane(conn), &conn->timed);
			if (pair_accept_or_reject_request(pair, conn, &said.pdata, &said.params))
				siw_conn_free(conn);
		}
	}
}

/* ---- events of connections: struct siw_conn_user --------------------------------------------- */

static int pair_handle_connection_event(struct siw_conn *conn, struct siw_conn *listener, int kind,
					int status, const struct siw_mpa_params *params)
{
	struct siw_pair *pair = conn->user_data;

	(void)status;
	switch (kind) {
	case SIW_CONN_REQUEST:
		return pair_handle_arriving_request(conn, listener, params);
	case SIW_CONN_REPLY:
		pair_handle_reply(pair, conn, params);
		return 0;
	case SIW_CONN_ESTABLISHED:
		return 0;
	case SIW_CONN_DISCONNECTED:
		/*
		 * If the connection ended after this end's Reply but before it was established, the
		 * initiator connects again, and this end waits for that unless its queue pair is in
		 * ERR.
		 */
		pair->stage = conn->established || pair->rc->base.qp.state == SIW_QPS_ERR
				      ? SIW_PAIR_LOST
				      : SIW_PAIR_AWAITING;
		pair_drop_connection(pair, conn);
		return 0;
	default: /* REJECTED, FAILED */
		pair_drop_connection(pair, conn);
		pair_retry_later(pair);
		return 0;
	}
}

static void pair_handle_freed_connection(struct siw_conn *conn)
{
	/*
	 * The user_data of a pending connection is its kept Request. The user_data of a listener is
	 * the port, and that of any other connection is the pair; neither is freed here.
	 */
	if (conn->listener)
		free(conn->user_data);
}

static bool pair_expects_connection_from(const struct siw_conn *listener,
					 const struct siw_addr *peer)
{
	const struct siw_pair_port *port = listener->user_data;
	struct siw_addr who = *peer;

	who.port_be = 0;
	for (uint32_t i = 1; i <= SIW_PAIR_INDEXES; i++) {
		const struct siw_pair *pair = port->pairs[i];

		if (pair && pair->stage == SIW_PAIR_AWAITING && !pair->conn &&
		    siw_addr_same(&pair->peer.addr, &who))
			return true;
	}
	return false;
}

static const struct siw_conn_user user = {
	.report = pair_handle_connection_event,
	.forget = pair_handle_freed_connection,
	.expects = pair_expects_connection_from,
};

/* ---- calls of the queue pair: struct siw_pair_ops -------------------------------------------- */

/*
 * Called when the timer of a pair expires: fails all posted requests; the oldest with
 * RETRY_EXC_ERR, the others are flushed.
 */
static void rc_pair_handle_timer(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_pair *pair = siw_container(timed, struct siw_pair, timed);

	if (pair->fail_ns && now_ns >= pair->fail_ns) {
		siw_qp_rc_handle_lost_stream(pair->rc, -ETIMEDOUT);
	} else if (pair->retry_ns && now_ns >= pair->retry_ns) {
		pair_connect(pair);
		pair_set_timer(pair);
	} else {
		pair_set_timer(pair);
	}
}

/*
 * Called when requests are posted and there is no stream: starts the time-out, and retries to
 * connect now.
 */
static void pair_start_timeout_and_retry_connecting(struct siw_rc_qp *rc)
{
	struct siw_pair *pair = rc->pair;
	uint64_t now = siw_now_ns(), patience = pair_request_timeout_ns(pair);

	if ((pair->stage != SIW_PAIR_AWAITING && pair->stage != SIW_PAIR_LOST) || pair->fail_ns ||
	    !patience)
		return;
	pair->fail_ns = now + patience;
	pair->began_ns = now;
	if (pair->retry_ns) {
		pair->wait_us = FIRST_WAIT_US;
		pair->retry_ns = now;
	}
	pair_set_timer(pair);
}

/*
 * Sets the address that this end uses towards the peer: the address given by the program, or the
 * device's first address of the same family.
 */
static int pair_choose_own_addr(const struct siw_pair *pair, const struct siw_qp_attr *attr,
				struct siw_addr *addr)
{
	struct siw_device_info now;

	siw_device_get_current_info(pair->rc->base.qp.ctx, &now);
	for (uint32_t i = 0; i < now.n_addrs; i++) {
		struct siw_addr given = attr->ah_source;

		*addr = now.addrs[i];
		given.port_be = 0;
		if (given.family ? siw_addr_same(addr, &given)
				 : addr->family == attr->ah_addr.family)
			return 0;
	}
	return siw_refuse(PAIR_SOURCE);
}

static int pair_set_peer(struct siw_pair *pair, const struct siw_qp_attr *attr, int mask)
{
	struct siw_addr own;
	int err;

	if (!(mask & SIW_QP_AV) || !(mask & SIW_QP_DEST_QPN))
		return siw_refuse(PAIR_PEER);
	if (!siw_addr_len(&attr->ah_addr))
		return siw_refuse(ADDRESS_FAMILY, attr->ah_addr.family);
	if (siw_addr_is_group(&attr->ah_addr))
		return siw_refuse(PAIR_GROUP);
	if (!(uint16_t)attr->dest_qp_num || attr->dest_qp_num > SIW_LAST_RC_QPN)
		return siw_refuse(PAIR_QPN, attr->dest_qp_num);
	err = pair_choose_own_addr(pair, attr, &own);
	if (err)
		return err;
	if (own.family != attr->ah_addr.family)
		return siw_refuse(PAIR_SOURCE);
	pair->own.addr = own;
	pair->peer = (struct siw_pair_id){ attr->ah_addr, attr->dest_qp_num };
	pair->peer.addr.port_be = 0;
	/* The scope of a link-local peer address is the link of this device. */
	if (own.scope && !pair->peer.addr.scope)
		pair->peer.addr.scope = own.scope;
	return 0;
}

static int pair_store_transition_attrs(struct siw_rc_qp *rc, int event,
				       const struct siw_qp_attr *attr, int mask)
{
	struct siw_pair *pair = rc->pair;

	if (event == SIW_QPE_TO_RTR)
		return pair_set_peer(pair, attr, mask);
	if (mask & SIW_QP_TIMEOUT)
		pair->timeout = attr->timeout;
	if (mask & SIW_QP_RETRY_CNT)
		pair->retry_cnt = attr->retry_cnt;
	return 0;
}

static void pair_start_connecting(struct siw_pair *pair)
{
	pair->stage = SIW_PAIR_AWAITING;
	pair->began_ns = siw_now_ns();
	pair->wait_us = FIRST_WAIT_US / 2;
	if (pair_id_is_lower(&pair->peer, &pair->own))
		pair_answer_kept_requests(pair);
	else
		pair_connect(pair);
}

static void pair_handle_modified_qp(struct siw_rc_qp *rc)
{
	struct siw_pair *pair = rc->pair;

	if (rc->base.qp.state == SIW_QPS_RTR && pair->stage == SIW_PAIR_UNPAIRED)
		pair_start_connecting(pair);
	else if (pair->stage == SIW_PAIR_PAIRED)
		pair_limit_outstanding_reads(pair);
}

static void pair_stop_connecting(struct siw_rc_qp *rc)
{
	struct siw_pair *pair = rc->pair;

	pair->retry_ns = pair->fail_ns = 0;
	pair_set_timer(pair);
	/* A connection that owns a stream is freed when the stream ends. */
	if (pair->conn && pair->stage == SIW_PAIR_AWAITING)
		pair_drop_connection(pair, pair->conn);
	if (pair->conn)
		return;
	pair->stage = SIW_PAIR_UNPAIRED;
	rc->base.granted_ord = rc->base.reads_max = SIW_RDMAP_MAX_READS;
}

static void pair_query_attributes(const struct siw_rc_qp *rc, struct siw_qp_attr *attr)
{
	const struct siw_pair *pair = rc->pair;

	attr->timeout = pair->timeout;
	attr->retry_cnt = pair->retry_cnt;
	attr->ah_addr = pair->peer.addr;
	attr->ah_source = pair->own.addr;
	attr->dest_qp_num = pair->peer.qpn;
}

/* Ends the pairing of a QP with a peer by GID and QPN. */
static void pair_end_and_free(struct siw_rc_qp *rc)
{
	struct siw_pair *pair = rc->pair;

	pair_stop_connecting(rc);
	pair_release_qpn(pair);
	rc->pair = NULL;
	rc->pairs = NULL;
	free(pair);
}

static const struct siw_pair_ops ops = {
	.prepare = pair_store_transition_attrs,
	.modified = pair_handle_modified_qp,
	.turn = pair_start_timeout_and_retry_connecting,
	.stop = pair_stop_connecting,
	.query = pair_query_attributes,
	.close = pair_end_and_free,
};

int siw_pairing_create_for_qp(struct siw_rc_qp *rc)
{
	struct siw_pair *pair = calloc(1, sizeof(*pair));
	int err;

	if (!pair)
		return -ENOMEM;
	pair->rc = rc;
	pair->lane = rc->base.qp.lane;
	/*
	 * 67 ms; with retry_cnt 7 requests wait eight times as long, and LEAST_WAIT_NS raises that
	 * to 3 s
	 */
	pair->timeout = 14;
	pair->retry_cnt = 7;
	pair->timed.tick = rc_pair_handle_timer;
	siw_link_init(&pair->timed.link);
	err = pair_obtain_qpn(pair, &user);
	if (err) {
		free(pair);
		return err;
	}
	rc->pair = pair;
	rc->pairs = &ops;
	/*
	 * Only siwarp connects in this way, and every siwarp with version 1 of the protocol
	 * supports siwarp-private messages.
	 */
	rc->base.private = true;
	/* Reads may be posted before the stream has negotiated how many may be outstanding. */
	rc->base.granted_ord = rc->base.reads_max = SIW_RDMAP_MAX_READS;
	return 0;
}
