/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * RC queue pairs that connect by GID and QPN (spec/rc-pairing.md). The program tells both ends the
 * id of the other by siw_modify_qp(). The end with the lower id connects, from its own address to
 * the other's address, with the port in the other's QPN; both identify themselves in MPA's private
 * data. Either end may be first: the initiator retries, and a Request for a queue pair that is not
 * in RTR yet is kept for it.
 *
 * When a stream ends, the QP keeps its state, as on InfiniBand, where the loss of the peer does not
 * change the state either. Requests that are outstanding then or posted later fail at their
 * time-out.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/clock.h"
#include "connect/connect_pair.h"

#define FIRST_WAIT_US 1000u
#define LAST_WAIT_US  64000u
/* After this time without success, a peer is tried only once a second. */
#define PATIENT_NS   (3 * UINT64_C(1000000000))
#define SLOW_WAIT_US 1000000u
/* Posted requests wait at least this long for a peer, because one lost SYN costs a second. */
#define LEAST_WAIT_NS (3 * UINT64_C(1000000000))
/*
 * A Request is kept for this many start-up time-outs, longer than its initiator waits; the
 * initiator then retries.
 */
#define KEPT_STARTUPS 2

/* ---- timers ---------------------------------------------------------------------------------- */

static void pair_set_timer(struct siw_pair *pair)
{
	struct siw_context *ctx = pair->rc->wq.qp.ctx;
	uint64_t due = pair->retry_ns;

	if (pair->fail_ns && (!due || pair->fail_ns < due))
		due = pair->fail_ns;
	siw_device_timed_del(ctx, &pair->timed);
	if (due)
		siw_device_timed_at(ctx, &pair->timed, due);
}

/*
 * How long posted requests wait for a peer, in nanoseconds: attribute timeout in InfiniBand's
 * encoding (4.096 us << timeout), times retry_cnt + 1. 0: without limit.
 */
static uint64_t pair_patience_ns(const struct siw_pair *pair)
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
 * The number of Reads that this end accepts (IRD): the program's value plus one, for the empty Read
 * by which the peer finds out what this end has received.
 */
static uint16_t pair_own_ird(const struct siw_pair *pair)
{
	int ird = pair->rc->wq.ird;

	return ird < 0 || ird >= SIW_RDMAP_MAX_READS ? SIW_RDMAP_MAX_READS : (uint16_t)(ird + 1);
}

static uint32_t own_features(void)
{
	return siw_settings()->delivery_counts ? SIW_PAIR_COUNTS : 0;
}

static void pair_fill_params(const struct siw_pair *pair, struct siw_mpa_params *params)
{
	struct siw_pair_hello hello = {
		.features = own_features(),
		.rnr_retry = (uint8_t)pair->rc->wq.rnr_retry,
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
		.ird = pair_own_ird(pair),
		.ord = SIW_RDMAP_MAX_READS,
	};
	params->pdata_len = siw_pair_hello_build(params->pdata, &hello);
}

/*
 * Limits the outstanding Reads to the number that the program has set, plus one for confirmation.
 */
static void bound_reads(struct siw_pair *pair)
{
	struct siw_wq *wq = &pair->rc->wq;

	siw_lock(&wq->qp.send_lock);
	wq->reads_max = wq->granted_ord;
	if (wq->ord >= 0 && wq->ord + 1 < wq->reads_max)
		wq->reads_max = (uint16_t)(wq->ord + 1);
	siw_unlock(&wq->qp.send_lock);
}

static int pair_attach(struct siw_pair *pair, struct siw_conn *conn,
		       const struct siw_mpa_params *theirs, const struct siw_pair_hello *hello,
		       bool initiator, uint8_t rtr)
{
	struct siw_connect_attach at = {
		.ird = pair_own_ird(pair),
		.ord = theirs->ird < SIW_RDMAP_MAX_READS ? theirs->ird : SIW_RDMAP_MAX_READS,
		.rtr = rtr,
		.initiator = initiator,
		.ord_known = true,
		.siwarp = true,
		.counts = own_features() & hello->features & SIW_PAIR_COUNTS,
	};
	int err;

	/* Set before the connection reports that it is established. */
	pair->conn = conn;
	pair->stage = SIW_PAIR_PAIRED;
	pair->retry_ns = pair->fail_ns = 0;
	pair_set_timer(pair);
	err = siw_conn_attach(conn, pair->rc, &at);
	if (err) {
		pair->conn = NULL;
		pair->stage = SIW_PAIR_AWAITING;
		return err;
	}
	bound_reads(pair);
	return 0;
}

/* ---- the initiator --------------------------------------------------------------------------- */

static void pair_connect(struct siw_pair *pair)
{
	bool itself = siw_pair_same(&pair->own, &pair->peer);
	struct siw_addr dest = pair->peer.addr;
	struct siw_mpa_params params;

	pair->retry_ns = 0;
	pair_fill_params(pair, &params);
	if (itself) /* without RTR, since this end is initiator and responder at once */
		params.p2p = params.rtr = 0;
	dest.port_be = htons((uint16_t)pair->peer.qpn);
	if (siw_conn_start(&pair->at->user, itself ? NULL : &dest, &pair->own.addr, &params, 0,
			   pair, &pair->conn)) {
		pair->conn = NULL;
		pair_retry_later(pair);
	}
}

/* Frees a connection that has ended. Its end has been reported already. */
static void pair_drop_conn(struct siw_pair *pair, struct siw_conn *conn)
{
	pair->conn = NULL;
	siw_conn_free(conn);
}

static void on_reply(struct siw_pair *pair, struct siw_conn *conn,
		     const struct siw_mpa_params *params)
{
	bool itself = siw_pair_same(&pair->own, &pair->peer);
	struct siw_pair_hello hello;

	if (!params->ird || siw_pair_hello_parse(params->pdata, params->pdata_len, &hello) ||
	    !siw_pair_same(&hello.from, &pair->peer) || !siw_pair_same(&hello.to, &pair->own)) {
		siw_count(SIW_COUNTER_pair_strangers, 1);
	} else if (pair_attach(pair, conn, params, &hello, true, itself ? 0 : params->rtr) == 0) {
		return;
	}
	pair_drop_conn(pair, conn);
	pair_retry_later(pair);
}

/* ---- the responder --------------------------------------------------------------------------- */

/* The contents of a kept Request. */
struct kept {
	struct siw_pair_hello hello;
	struct siw_mpa_params params;
};

static int accept_request(struct siw_pair *pair, struct siw_conn *conn,
			  const struct siw_pair_hello *hello, const struct siw_mpa_params *theirs)
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
	/* user_data held the kept Request until now; it is no longer needed. */
	free(conn->user_data);
	conn->user_data = pair;
	return pair_attach(pair, conn, theirs, hello, false, params.rtr);
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

static int pair_keep_request(struct siw_conn *conn, const struct siw_pair_hello *hello,
			     const struct siw_mpa_params *params)
{
	struct kept *kept = malloc(sizeof(*kept));

	if (!kept)
		return -ENOMEM;
	*kept = (struct kept){ *hello, *params };
	conn->user_data = kept;
	siw_conn_set_timeout(conn, KEPT_STARTUPS * (int)siw_settings()->mpa_timeout_ms);
	return 0;
}

/*
 * Accepts or rejects a Request. 0: the connection belongs to the queue pair. Otherwise the caller
 * frees conn.
 */
static int pair_handle_request(struct siw_pair *pair, struct siw_conn *conn,
			       const struct siw_pair_hello *hello,
			       const struct siw_mpa_params *params)
{
	if (pair->stage != SIW_PAIR_AWAITING || pair->conn ||
	    !siw_pair_before(&pair->peer, &pair->own) ||
	    !siw_pair_same(&hello->from, &pair->peer) || !siw_pair_same(&hello->to, &pair->own))
		return pair_reject_request(conn, params);
	return accept_request(pair, conn, hello, params);
}

/*
 * Whether the sender's address is the one in its hello, which is not the case behind an address
 * translator.
 */
static bool pair_hello_addr_matches(struct siw_conn *conn, const struct siw_pair_hello *hello)
{
	struct siw_addr local, peer;

	if (siw_mpa_addrs(conn->mpa, &local, &peer))
		return false;
	peer.port_be = 0;
	return siw_addr_same(&peer, &hello->from.addr);
}

static int on_request(struct siw_conn *conn, struct siw_conn *listener,
		      const struct siw_mpa_params *params)
{
	const struct siw_pair_port *port = listener->user_data;
	struct siw_pair_hello hello;
	struct siw_pair *pair;

	/*
	 * Without Reads, neither end can find out what the other has received; siwarp always grants
	 * one.
	 */
	if (!params->enhanced || !params->p2p || !params->ird ||
	    siw_pair_hello_parse(params->pdata, params->pdata_len, &hello)) {
		siw_count(SIW_COUNTER_pair_strangers, 1);
		return -EPROTO;
	}
	if (!pair_hello_addr_matches(conn, &hello)) {
		siw_count(SIW_COUNTER_pair_addresses, 1);
		return -EACCES;
	}
	pair = siw_pair_port_find(port, hello.to.qpn);
	if (!pair)
		return pair_reject_request(conn, params);
	if (pair->stage == SIW_PAIR_UNPAIRED)
		return pair_keep_request(conn, &hello, params);
	return pair_handle_request(pair, conn, &hello, params);
}

/* Handles the kept Requests that arrived before the QP was in RTR. */
static void pair_handle_kept_requests(struct siw_pair *pair)
{
	struct siw_pair_port *port = pair->at;

	for (uint32_t i = 0; i < port->n_listeners; i++) {
		struct siw_link *children = &port->listeners[i]->children, *next;

		for (struct siw_link *l = children->next; l != children; l = next) {
			struct siw_conn *conn = siw_container(l, struct siw_conn, of_listener);
			struct kept *kept = conn->stage == REQUESTED ? conn->user_data : NULL;
			struct kept said;

			next = l->next;
			if (!kept || kept->hello.to.qpn != pair->own.qpn)
				continue;
			said = *kept;
			siw_device_timed_del(port->user.ctx, &conn->timed);
			if (pair_handle_request(pair, conn, &said.hello, &said.params))
				siw_conn_free(conn);
		}
	}
}

/* ---- events of connections: struct siw_conn_user --------------------------------------------- */

static int pair_report(struct siw_conn *conn, struct siw_conn *listener, int kind, int status,
		       const struct siw_mpa_params *params)
{
	struct siw_pair *pair = conn->user_data;

	(void)status;
	switch (kind) {
	case SIW_CONN_REQUEST:
		return on_request(conn, listener, params);
	case SIW_CONN_REPLY:
		on_reply(pair, conn, params);
		return 0;
	case SIW_CONN_ESTABLISHED:
		return 0;
	case SIW_CONN_DISCONNECTED:
		/*
		 * If the connection broke off after this end's Reply but before it was established,
		 * the initiator retries, unless this end has failed itself.
		 */
		pair->stage = conn->established || pair->rc->wq.qp.state == SIW_QPS_ERR
				      ? SIW_PAIR_LOST
				      : SIW_PAIR_AWAITING;
		pair_drop_conn(pair, conn);
		return 0;
	default: /* REJECTED, FAILED */
		pair_drop_conn(pair, conn);
		pair_retry_later(pair);
		return 0;
	}
}

static void pair_conn_freed(struct siw_conn *conn)
{
	/*
	 * user_data of a pending connection is its kept Request. For a listener user_data is the
	 * port, and for other connections the pair, which are not freed here.
	 */
	if (conn->listener)
		free(conn->user_data);
}

static bool pair_expects(const struct siw_conn *listener, const struct siw_addr *peer)
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
	.report = pair_report,
	.forget = pair_conn_freed,
	.expects = pair_expects,
};

/* ---- calls of the queue pair: struct siw_pair_ops -------------------------------------------- */

/* Fails all posted requests; the oldest one with RETRY_EXC_ERR, the others are flushed. */
static void pair_fail_posted(struct siw_pair *pair)
{
	siw_qp_rc_stream_lost(pair->rc, -ETIMEDOUT);
}

static void pair_tick(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_pair *pair = siw_container(timed, struct siw_pair, timed);

	if (pair->fail_ns && now_ns >= pair->fail_ns) {
		pair_fail_posted(pair);
	} else if (pair->retry_ns && now_ns >= pair->retry_ns) {
		pair_connect(pair);
		pair_set_timer(pair);
	} else {
		pair_set_timer(pair);
	}
}

/* Requests are posted, and there is no stream: starts the time-out, and retries to connect now. */
static void pair_turn(struct siw_rc *rc)
{
	struct siw_pair *pair = rc->pair;
	uint64_t now = siw_now_ns(), patience = pair_patience_ns(pair);

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
 * The address that this end uses towards the peer: the one given by the program, or the device's
 * first address of the same family.
 */
static int pair_own_addr(const struct siw_pair *pair, const struct siw_qp_attr *attr,
			 struct siw_addr *addr)
{
	const struct siw_device_info *device = &pair->rc->wq.qp.ctx->now;

	for (uint32_t i = 0; i < device->n_addrs; i++) {
		struct siw_addr given = attr->ah_source;

		*addr = device->addrs[i];
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
	if (!siw_addr_len(&attr->ah_addr) || siw_addr_is_group(&attr->ah_addr))
		return siw_refuse(ADDRESS_FAMILY, attr->ah_addr.family);
	if (!(uint16_t)attr->dest_qp_num || attr->dest_qp_num > SIW_LAST_RC_QPN)
		return siw_refuse(PAIR_QPN, attr->dest_qp_num);
	err = pair_own_addr(pair, attr, &own);
	if (err)
		return err;
	if (own.family != attr->ah_addr.family)
		return siw_refuse(PAIR_SOURCE);
	pair->own.addr = own;
	pair->peer = (struct siw_pair_id){ attr->ah_addr, attr->dest_qp_num };
	pair->peer.addr.port_be = 0;
	/* A link-local address of the peer is on this device's link. */
	if (own.scope && !pair->peer.addr.scope)
		pair->peer.addr.scope = own.scope;
	return 0;
}

static int pair_prepare(struct siw_rc *rc, int event, const struct siw_qp_attr *attr, int mask)
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
	if (siw_pair_before(&pair->peer, &pair->own))
		pair_handle_kept_requests(pair);
	else
		pair_connect(pair);
}

static void pair_modified(struct siw_rc *rc)
{
	struct siw_pair *pair = rc->pair;

	if (rc->wq.qp.state == SIW_QPS_RTR && pair->stage == SIW_PAIR_UNPAIRED)
		pair_start_connecting(pair);
	else if (pair->stage == SIW_PAIR_PAIRED)
		bound_reads(pair);
}

static void pair_stop(struct siw_rc *rc)
{
	struct siw_pair *pair = rc->pair;

	pair->retry_ns = pair->fail_ns = 0;
	pair_set_timer(pair);
	/* A connection that owns a stream is freed when the stream ends. */
	if (pair->conn && pair->stage == SIW_PAIR_AWAITING)
		pair_drop_conn(pair, pair->conn);
	if (pair->conn)
		return;
	pair->stage = SIW_PAIR_UNPAIRED;
	rc->wq.granted_ord = rc->wq.reads_max = SIW_RDMAP_MAX_READS;
}

static void pair_query(const struct siw_rc *rc, struct siw_qp_attr *attr)
{
	const struct siw_pair *pair = rc->pair;

	attr->timeout = pair->timeout;
	attr->retry_cnt = pair->retry_cnt;
	attr->ah_addr = pair->peer.addr;
	attr->ah_source = pair->own.addr;
	attr->dest_qp_num = pair->peer.qpn;
}

static void close_pair(struct siw_rc *rc)
{
	struct siw_pair *pair = rc->pair;

	pair_stop(rc);
	siw_pair_port_leave(pair);
	rc->pair = NULL;
	rc->pairs = NULL;
	free(pair);
}

static const struct siw_pair_ops ops = {
	.prepare = pair_prepare,
	.modified = pair_modified,
	.turn = pair_turn,
	.stop = pair_stop,
	.query = pair_query,
	.close = close_pair,
};

int siw_pair_open(struct siw_rc *rc)
{
	struct siw_pair *pair = calloc(1, sizeof(*pair));
	int err;

	if (!pair)
		return -ENOMEM;
	pair->rc = rc;
	/* 67 ms, eight times with retry_cnt 7; LEAST_WAIT_NS raises this to 3 s */
	pair->timeout = 14;
	pair->retry_cnt = 7;
	pair->timed.tick = pair_tick;
	siw_link_init(&pair->timed.link);
	err = siw_pair_port_join(rc->wq.qp.ctx, &user, pair);
	if (err) {
		free(pair);
		return err == -EADDRINUSE ? siw_refuse(PAIR_PORTS) : err;
	}
	rc->pair = pair;
	rc->pairs = &ops;
	/*
	 * Only siwarp connects in this way, and every siwarp with version 1 of the protocol
	 * supports siwarp-private messages.
	 */
	rc->wq.private = true;
	/* Reads may be posted before the stream has negotiated how many may be outstanding. */
	rc->wq.granted_ord = rc->wq.reads_max = SIW_RDMAP_MAX_READS;
	rc->wq.qp.qpn = pair->own.qpn;
	return 0;
}
