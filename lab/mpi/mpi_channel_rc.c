/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Connections of the channel: requests, answers to requests, and the choice between two connections
 * if both ranks of a pair have requested one at the same time.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "lab/mpi/mpi_channel.h"

#define CONNECT_MS	 20000
#define BACKLOG		 256
#define RETRY_THRESHOLDS 8 /* repeat a rejected request after (1 + 8) * threshold further frames */
#define RECVS		 (2 * SIW_CHANNEL_WINDOW)
#define SENDS		 (4 * SIW_CHANNEL_WINDOW)

/* Reasons for a rejection, in the private data of the rejection. */
enum { NO_ROOM = 'n', HAVE_ONE = 'h' };

static void message_channel_create_rc_qp(struct siw_channel *c, struct siw_channel_peer *peer)
{
	struct siw_qp_init_attr init = {
		.send_cq = c->send_cq,
		.recv_cq = c->recv_cq,
		.qp_type = SIW_QPT_RC,
		.cap = { SENDS, RECVS, 1, 1, sizeof(struct siw_channel_head) },
	};

	peer->qp = siw_bench_require_object(siw_create_qp(c->pd, &init), "a queue pair");
	peer->slots = siw_bench_require_object(calloc(RECVS, c->stride), "memory");
	peer->mr = siw_bench_require_object(siw_reg_mr(c->pd, peer->slots, RECVS * c->stride,
						       SIW_ACCESS_LOCAL_WRITE),
					    "a region");
	siw_bench_exit_on_error(siw_cm_bind_qp(peer->id, peer->qp), "binding the queue pair");
	for (uint32_t i = 0; i < RECVS; i++)
		message_channel_post_recv(c, peer, i);
	c->slots_used++;
	peer->rc = CHANNEL_RC_CONNECTING;
}

/* Destroys a connection on which nothing was sent, so that no frame is lost. */
static void message_channel_free_connection(struct siw_channel *c, struct siw_channel_peer *peer)
{
	siw_bench_exit_on_error(siw_cm_destroy_id(peer->id), "destroying the id");
	siw_bench_exit_on_error(siw_destroy_qp(peer->qp), "destroying the queue pair");
	siw_bench_exit_on_error(siw_dereg_mr(peer->mr), "deregistering");
	free(peer->slots);
	peer->id = NULL;
	peer->qp = NULL;
	peer->mr = NULL;
	peer->slots = NULL;
	peer->rc = CHANNEL_RC_NONE;
	c->slots_used--;
}

void message_channel_listen(struct siw_channel *c, uint16_t *port)
{
	struct siw_addr a;

	c->cm = siw_bench_require_object(siw_cm_create_channel(c->context),
					 "a channel of connections");
	c->listener = siw_bench_require_object(siw_cm_create_id(c->cm, NULL), "an id");
	siw_addr_parse("127.0.0.1", 0, &a);
	siw_bench_exit_on_error(siw_cm_listen(c->listener, &a, BACKLOG), "listening");
	siw_bench_exit_on_error(siw_cm_addr(c->listener, &a, NULL), "the listener's address");
	*port = ntohs(a.port_be);
}

void message_channel_start_connecting_to_peer(struct siw_channel *c, struct siw_channel_peer *peer)
{
	uint16_t rank = (uint16_t)c->plan.rank;
	struct siw_cm_param param = {
		.private_data = &rank,
		.private_data_len = sizeof(rank),
		.initiator_depth = -1,
		.responder_resources = -1,
		/* RTR messages that allow either end to send first */
		.peer_to_peer = SIW_CM_RTR_FPDU | SIW_CM_RTR_WRITE,
		.timeout_ms = CONNECT_MS,
		.refused_ms = CONNECT_MS / 2,
	};
	struct siw_addr a;

	if (c->slots_used >= c->plan.limit)
		return;
	siw_addr_parse("127.0.0.1", c->cm_ports[peer->rank], &a);
	peer->id = siw_bench_require_object(siw_cm_create_id(c->cm, peer), "an id");
	message_channel_create_rc_qp(c, peer);
	siw_bench_exit_on_error(siw_cm_connect(peer->id, &a, NULL, &param), "connecting");
}

static void message_channel_reject_connection_request(struct siw_cm_id *id, char why)
{
	siw_bench_exit_on_error(siw_cm_reject(id, &why, 1), "rejecting");
	siw_bench_exit_on_error(siw_cm_destroy_id(id), "destroying the id");
}

/*
 * Answers a connection request. If two requests cross, the request of the lower rank is accepted.
 */
static void message_channel_handle_connection_request(struct siw_channel *c,
						      const struct siw_cm_event *event)
{
	struct siw_cm_param param = { .initiator_depth = -1, .responder_resources = -1 };
	struct siw_channel_peer *peer;
	uint16_t rank;

	memcpy(&rank, event->private_data, sizeof(rank));
	if (event->private_data_len < sizeof(rank) || rank >= c->plan.ranks ||
	    rank == c->plan.rank) {
		message_channel_reject_connection_request(event->id, HAVE_ONE);
		return;
	}
	peer = &c->peers[rank];
	if (peer->rc == CHANNEL_RC_UP ||
	    (peer->rc == CHANNEL_RC_CONNECTING && c->plan.rank < rank)) {
		message_channel_reject_connection_request(event->id, HAVE_ONE);
		return;
	}
	if (peer->rc == CHANNEL_RC_CONNECTING)
		message_channel_free_connection(c, peer);
	if (c->slots_used >= c->plan.limit) {
		message_channel_reject_connection_request(event->id, NO_ROOM);
		return;
	}
	peer->id = event->id;
	siw_cm_set_context(peer->id, peer);
	message_channel_create_rc_qp(c, peer);
	siw_bench_exit_on_error(siw_cm_accept(peer->id, &param), "accepting");
}

static void message_channel_handle_cm_event(struct siw_channel *c, const struct siw_cm_event *event)
{
	struct siw_channel_peer *peer = event->context;

	switch (event->event) {
	case SIW_CM_CONNECT_REQUEST:
		message_channel_handle_connection_request(c, event);
		return;
	case SIW_CM_ESTABLISHED:
		peer->rc = CHANNEL_RC_UP;
		c->sums.connections++;
		return;
	case SIW_CM_REJECTED:
		message_channel_free_connection(c, peer);
		peer->try_at = peer->by_ud + c->plan.threshold;
		if (event->private_data_len && event->private_data[0] == HAVE_ONE)
			return; /* the connection that the peer has requested is in progress */
		/*
		 * The peer may be below its limit of connections later, because other ranks may
		 * reject requests of the peer.
		 */
		peer->try_at += RETRY_THRESHOLDS * c->plan.threshold;
		c->sums.refused++;
		return;
	default:
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "the connection to rank %u ended: %s (%s)",
			      peer ? peer->rank : 0, siw_cm_event_str(event->event),
			      strerror(-event->status));
	}
}

void message_channel_handle_cm_events(struct siw_channel *c, int timeout_ms)
{
	struct siw_cm_event event;
	int r;

	while ((r = siw_cm_get_event(c->cm, &event, timeout_ms)) == 0) {
		message_channel_handle_cm_event(c, &event);
		timeout_ms = 0;
	}
	if (r != -EAGAIN && r != -EINTR)
		siw_bench_exit_on_error(r, "waiting for connections");
}

static bool message_channel_has_all_peers(const struct siw_channel *c)
{
	for (uint32_t i = 0; i < c->plan.ranks; i++)
		if (i != c->plan.rank && c->peers[i].rc != CHANNEL_RC_UP)
			return false;
	return true;
}

void message_channel_connect_all_peers(struct siw_channel *c)
{
	uint64_t began = siw_bench_now();

	for (uint32_t i = c->plan.rank + 1; i < c->plan.ranks; i++)
		message_channel_start_connecting_to_peer(c, &c->peers[i]);
	while (!message_channel_has_all_peers(c)) {
		message_channel_handle_cm_events(c, 10);
		if (siw_bench_now() - began > (CONNECT_MS + c->plan.patience_ms) * 1000000ull)
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "not every rank could be connected");
	}
}
