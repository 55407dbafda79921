/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Frames of the channel: pool, windows and acknowledgements, and retransmission over UD. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "lab/mpi/mpi_channel.h"

#define MAGIC	 0x68796272u
#define POOL	 256u /* maximum number of unacknowledged frames, to all peers together */
#define UD_RECVS 512u
#define UD_SENDS (POOL + 64u)
#define OWN_QKEY 0x80000000u
/* flag in the wr_id of an acknowledgement's send; the other bits are the peer's rank */
#define OF_ACK		   (1ull << 63)
#define RTO_NS		   100000000ull
#define RTO_MOST_NS	   800000000ull
#define SLEEP_MS	   10
#define BATCH		   32
#define TIMER_CHECK_ROUNDS 64u /* progress rounds between checks of timers and connections */

static char *message_channel_address_of_frame(const struct siw_channel *c, uint32_t frame)
{
	return c->pool + frame * c->stride;
}

static void message_channel_release_frame(struct siw_channel *c, uint32_t frame)
{
	c->frames[frame].next = c->free;
	c->free = frame;
}

/* ---- sending frames -------------------------------------------------------------------------- */

/*
 * Handles send completions. A frame is freed when the peer has acknowledged the frame and no post
 * of the frame is outstanding.
 */
static int message_channel_reap_sends(struct siw_channel *c)
{
	struct siw_wc wc[BATCH];
	int n = siw_poll_cq(c->send_cq, BATCH, wc);

	siw_bench_exit_on_error(n, "polling");
	for (int i = 0; i < n; i++) {
		bool ack = wc[i].wr_id & OF_ACK;
		struct siw_channel_frame *frame = ack ? NULL : &c->frames[wc[i].wr_id];

		if (wc[i].status != SIW_WC_SUCCESS)
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "sending to rank %u failed: %s",
				      frame ? frame->to : (uint32_t)wc[i].wr_id,
				      siw_wc_status_str(wc[i].status));
		if (frame && --frame->posted == 0 && frame->acked)
			message_channel_release_frame(c, (uint32_t)wc[i].wr_id);
	}
	return n;
}

/* Posts a send; while the send queue is full, waits for completions. */
static void message_channel_post_send(struct siw_channel *c, struct siw_channel_peer *peer, bool rc,
				      struct siw_send_wr *wr)
{
	uint64_t began = 0;
	struct siw_send_wr *bad;
	int r;

	wr->opcode = SIW_WR_SEND;
	wr->send_flags |= SIW_SEND_SIGNALED;
	if (!rc) {
		wr->wr.ud.ah = peer->ah;
		wr->wr.ud.remote_qkey = OWN_QKEY;
	}
	while ((r = siw_post_send(rc ? peer->qp : c->ud, wr, &bad)) == -ENOMEM) {
		if (!began)
			began = siw_bench_now();
		if (!message_channel_reap_sends(c) &&
		    siw_bench_now() - began > c->plan.patience_ms * 1000000ull)
			siw_bench_die(SIW_BENCH_EXIT_LOST, "rank %u no longer accepts messages",
				      peer->rank);
	}
	siw_bench_exit_on_error(r, "posting a send");
}

static void message_channel_post_frame(struct siw_channel *c, struct siw_channel_peer *peer,
				       uint32_t frame)
{
	struct siw_channel_frame *f = &c->frames[frame];
	struct siw_sge sge = { (uintptr_t)message_channel_address_of_frame(c, frame), f->length,
			       c->mr->lkey };
	struct siw_send_wr wr = { .wr_id = frame, .sg_list = &sge, .num_sge = 1 };

	f->posted++;
	peer->sent_ns = siw_bench_now();
	message_channel_post_send(c, peer, peer->over_rc, &wr);
}

/*
 * Sends an acknowledgement. Over RC each acknowledgement must confirm at least one frame; an
 * acknowledgement that may have been lost is repeated over UD.
 */
static void message_channel_send_ack(struct siw_channel *c, struct siw_channel_peer *peer)
{
	struct siw_channel_head head = {
		.magic = MAGIC,
		.from = (uint16_t)c->plan.rank,
		.to = (uint16_t)peer->rank,
		.ack = peer->expected,
	};
	struct siw_sge sge = { (uintptr_t)&head, sizeof(head), 0 };
	struct siw_send_wr wr = { .wr_id = OF_ACK | peer->rank,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .send_flags = SIW_SEND_INLINE };
	bool rc = peer->rc == CHANNEL_RC_UP && peer->told != peer->expected;

	peer->told = peer->expected;
	peer->again = false;
	message_channel_post_send(c, peer, rc, &wr);
}

static void message_channel_mark_ack_pending(struct siw_channel *c, struct siw_channel_peer *peer)
{
	if (!peer->owed)
		c->owed[c->n_owed++] = peer->rank;
	peer->owed = true;
}

/*
 * Sends acknowledgements to all peers that wait for one, or only to peers whose last
 * acknowledgement may have been lost or that wait for the acknowledgement of half a window of
 * frames.
 */
static void message_channel_send_pending_acks(struct siw_channel *c, bool all)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < c->n_owed; i++) {
		struct siw_channel_peer *peer = &c->peers[c->owed[i]];
		uint32_t frames = peer->expected - peer->told;
		bool few = frames && frames < SIW_CHANNEL_WINDOW / 2;

		if ((!all && !peer->again && few) || (peer->from_rc && peer->rc != CHANNEL_RC_UP)) {
			c->owed[kept++] = c->owed[i];
			continue;
		}
		peer->owed = false;
		if (frames || peer->again)
			message_channel_send_ack(c, peer);
	}
	c->n_owed = kept;
}

bool message_channel_switch_to_rc(struct siw_channel_peer *peer)
{
	if (peer->rc == CHANNEL_RC_UP && peer->acked == peer->next_seq)
		peer->over_rc = true;
	return peer->over_rc;
}

/*
 * Returns whether a frame can be sent to a peer: the pool has a free frame, the window is not full,
 * and the pair is not switching to RC.
 */
static bool message_channel_can_send_frame(const struct siw_channel *c,
					   struct siw_channel_peer *peer)
{
	if (c->free == SIW_CHANNEL_NONE || peer->next_seq - peer->acked >= SIW_CHANNEL_WINDOW)
		return false;
	return message_channel_switch_to_rc(peer) || peer->rc != CHANNEL_RC_UP;
}

static void message_channel_send_frame(struct siw_channel *c, struct siw_channel_peer *peer,
				       const char *data, uint32_t length, uint64_t left)
{
	uint32_t frame = c->free;
	struct siw_channel_frame *f = &c->frames[frame];
	struct siw_channel_head head = {
		.magic = MAGIC,
		.from = (uint16_t)c->plan.rank,
		.to = (uint16_t)peer->rank,
		.seq = peer->next_seq++,
		.ack = peer->expected,
		.length = length,
		.left = left,
	};

	c->free = f->next;
	*f = (struct siw_channel_frame){ .next = SIW_CHANNEL_NONE,
					 .length = (uint32_t)sizeof(head) + length,
					 .to = peer->rank };
	peer->told = peer->expected;
	memcpy(message_channel_address_of_frame(c, frame), &head, sizeof(head));
	memcpy(message_channel_address_of_frame(c, frame) + sizeof(head), data, length);
	if (peer->first == SIW_CHANNEL_NONE) {
		peer->first = frame;
		peer->news_ns = siw_bench_now();
	} else {
		c->frames[peer->last].next = frame;
	}
	peer->last = frame;
	message_channel_post_frame(c, peer, frame);
	if (peer->over_rc)
		c->sums.by_rc++;
	else
		c->sums.by_ud++, peer->by_ud++;
}

void message_channel_send_message(struct siw_channel *c, uint32_t to, const char *data,
				  uint64_t size)
{
	struct siw_channel_peer *peer = &c->peers[to];

	for (uint64_t left = size; left;) {
		uint32_t length = left < SIW_CHANNEL_PAYLOAD ? (uint32_t)left : SIW_CHANNEL_PAYLOAD;

		while (!message_channel_can_send_frame(c, peer))
			message_channel_make_progress(c);
		message_channel_send_frame(c, peer, data + (size - left), length, left);
		left -= length;
		if (!peer->over_rc && peer->rc == CHANNEL_RC_NONE && peer->by_ud >= peer->try_at)
			message_channel_start_connecting_to_peer(c, peer);
	}
}

/* ---- receiving frames ------------------------------------------------------------------------ */

/*
 * Frees the frames below ack, which the peer has received; ignores an ack beyond the sent frames.
 */
static void message_channel_handle_ack(struct siw_channel *c, struct siw_channel_peer *peer,
				       uint32_t ack)
{
	if (ack == peer->acked || ack - peer->acked > peer->next_seq - peer->acked)
		return;
	peer->news_ns = siw_bench_now();
	peer->sent_ns = peer->news_ns;
	peer->rto_ns = RTO_NS;
	while (peer->acked != ack) {
		uint32_t frame = peer->first;
		struct siw_channel_frame *f = &c->frames[frame];

		peer->first = f->next;
		peer->acked++;
		f->acked = true;
		if (!f->posted)
			message_channel_release_frame(c, frame);
	}
}

/* Returns whether a received frame is a valid frame of a peer; if so, sets *peer. */
static bool message_channel_frame_is_valid(struct siw_channel *c,
					   const struct siw_channel_head *head, uint32_t octets,
					   struct siw_channel_peer **peer)
{
	if (octets < sizeof(*head) || head->magic != MAGIC || head->to != c->plan.rank ||
	    head->from >= c->plan.ranks || head->from == c->plan.rank ||
	    octets - sizeof(*head) != head->length || head->length > SIW_CHANNEL_PAYLOAD)
		return false;
	*peer = &c->peers[head->from];
	if (!head->length)
		return true;
	return head->left >= head->length && head->left <= c->plan.size;
}

static void message_channel_handle_frame(struct siw_channel *c, const char *data, uint32_t octets)
{
	struct siw_channel_head head;
	struct siw_channel_peer *peer;

	memcpy(&head, data, octets < sizeof(head) ? octets : sizeof(head));
	if (!message_channel_frame_is_valid(c, &head, octets, &peer)) {
		c->sums.strange++;
		return;
	}
	message_channel_handle_ack(c, peer, head.ack);
	if (!head.length)
		return;
	message_channel_mark_ack_pending(c, peer);
	if (head.seq != peer->expected) {
		/*
		 * an earlier frame was lost, or the frame is a duplicate because an acknowledgement
		 * was lost
		 */
		peer->again = true;
		return;
	}
	if (peer->left && head.left != peer->left)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "rank %u sent a part of a different message",
			      peer->rank);
	peer->expected++;
	peer->left = head.left - head.length;
	c->plan.deliver(c->plan.arg, peer->rank, data + sizeof(head), head.length, head.left);
}

/* Posts a receive. The wr_id encodes the slot and 1 + the peer's rank, or 0 for UD. */
void message_channel_post_recv(struct siw_channel *c, struct siw_channel_peer *peer, uint32_t slot)
{
	char *slots = peer ? peer->slots : c->ud_slots;
	struct siw_sge sge = { (uintptr_t)(slots + slot * c->stride), (uint32_t)c->stride,
			       peer ? peer->mr->lkey : c->mr->lkey };
	uint64_t of = peer ? peer->rank + 1ull : 0;
	struct siw_recv_wr *bad, wr = { .wr_id = of << 32 | slot, .sg_list = &sge, .num_sge = 1 };

	siw_bench_exit_on_error(siw_post_recv(peer ? peer->qp : c->ud, &wr, &bad),
				"posting a receive");
}

static int message_channel_reap_receives(struct siw_channel *c)
{
	struct siw_wc wc[BATCH];
	int n = siw_poll_cq(c->recv_cq, BATCH, wc);

	siw_bench_exit_on_error(n, "polling");
	for (int i = 0; i < n; i++) {
		uint32_t of = (uint32_t)(wc[i].wr_id >> 32), slot = (uint32_t)wc[i].wr_id;
		struct siw_channel_peer *peer = of ? &c->peers[of - 1] : NULL;

		if (wc[i].status != SIW_WC_SUCCESS && peer)
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "connection to rank %u failed: %s",
				      peer->rank, siw_wc_status_str(wc[i].status));
		if (peer)
			peer->from_rc = true;
		if (wc[i].status == SIW_WC_SUCCESS)
			message_channel_handle_frame(
				c, (peer ? peer->slots : c->ud_slots) + slot * c->stride,
				wc[i].byte_len);
		else
			c->sums.strange++; /* the message was longer than any frame, so it is dropped */
		message_channel_post_recv(c, peer, slot);
	}
	return n;
}

/* ---- timers ---------------------------------------------------------------------------------- */

static void message_channel_retransmit(struct siw_channel *c, struct siw_channel_peer *peer)
{
	for (uint32_t i = peer->first; i != SIW_CHANNEL_NONE; i = c->frames[i].next) {
		if (c->frames[i].posted)
			continue; /* the frame is not sent again before its last send has completed */
		message_channel_post_frame(c, peer, i);
		c->sums.again++;
	}
	peer->sent_ns = siw_bench_now();
	peer->rto_ns = peer->rto_ns * 2 > RTO_MOST_NS ? RTO_MOST_NS : peer->rto_ns * 2;
}

static void message_channel_check_timers(struct siw_channel *c)
{
	uint64_t now = siw_bench_now();

	if (c->cm)
		message_channel_handle_cm_events(c, 0);
	for (uint32_t i = 0; i < c->plan.ranks; i++) {
		struct siw_channel_peer *peer = &c->peers[i];

		if (peer->first == SIW_CHANNEL_NONE)
			continue;
		if (now > peer->news_ns + c->plan.patience_ms * 1000000ull)
			siw_bench_die(SIW_BENCH_EXIT_LOST,
				      "rank %u has acknowledged nothing for %u ms", i,
				      c->plan.patience_ms);
		if (!peer->over_rc && now > peer->sent_ns + peer->rto_ns)
			message_channel_retransmit(c, peer);
	}
}

static void message_channel_sleep_until_event(struct siw_channel *c)
{
	struct siw_cq *cq;
	int r;

	siw_bench_exit_on_error(siw_req_notify_cq(c->recv_cq, 0), "arming the queue");
	if (message_channel_reap_receives(c)) {
		c->empty = 0;
		return;
	}
	r = siw_get_cq_event(c->events, &cq, NULL, SLEEP_MS);
	if (r != -EAGAIN && r != -EINTR) {
		siw_bench_exit_on_error(r, "waiting for an event");
		siw_ack_cq_events(cq, 1);
	}
	message_channel_check_timers(c);
}

void message_channel_make_progress(struct siw_channel *c)
{
	int n = message_channel_reap_receives(c);

	message_channel_reap_sends(c);
	c->empty = n ? 0 : c->empty + 1;
	message_channel_send_pending_acks(c, !n);
	if (++c->turns % TIMER_CHECK_ROUNDS == 0)
		message_channel_check_timers(c);
	if (c->empty > c->plan.spins)
		message_channel_sleep_until_event(c);
}

bool message_channel_is_idle(const struct siw_channel *c)
{
	for (uint32_t i = 0; i < c->plan.ranks; i++)
		if (c->peers[i].first != SIW_CHANNEL_NONE ||
		    c->peers[i].rc == CHANNEL_RC_CONNECTING)
			return false;
	return c->n_owed == 0;
}

/* ---- opening a channel ----------------------------------------------------------------------- */

static bool message_channel_uses_ud(const struct siw_channel *c)
{
	return c->plan.threshold || !c->plan.limit;
}

static void message_channel_allocate_and_register_memory(struct siw_channel *c)
{
	uint32_t slots = message_channel_uses_ud(c) ? POOL + UD_RECVS : POOL;
	uint64_t most = c->plan.size < SIW_CHANNEL_PAYLOAD ? c->plan.size : SIW_CHANNEL_PAYLOAD;

	c->stride = (sizeof(struct siw_channel_head) + most + 63) & ~(size_t)63;
	c->pool = siw_bench_require_object(calloc(slots, c->stride), "memory");
	c->ud_slots = c->pool + POOL * c->stride;
	c->mr = siw_bench_require_object(
		siw_reg_mr(c->pd, c->pool, slots * c->stride, SIW_ACCESS_LOCAL_WRITE), "a region");
	c->frames = siw_bench_require_object(calloc(POOL, sizeof(*c->frames)), "memory");
	c->free = SIW_CHANNEL_NONE;
	for (uint32_t i = POOL; i > 0; i--)
		message_channel_release_frame(c, i - 1);
	c->peers = siw_bench_require_object(calloc(c->plan.ranks, sizeof(*c->peers)), "memory");
	c->owed = siw_bench_require_object(calloc(c->plan.ranks, sizeof(*c->owed)), "memory");
	for (uint32_t i = 0; i < c->plan.ranks; i++)
		c->peers[i] = (struct siw_channel_peer){ .rank = i,
							 .first = SIW_CHANNEL_NONE,
							 .rto_ns = RTO_NS,
							 .try_at = c->plan.threshold };
}

static void message_channel_create_cqs(struct siw_channel *c)
{
	uint32_t connections = c->plan.limit < c->plan.ranks ? c->plan.limit : c->plan.ranks;
	int windows = (int)(connections * SIW_CHANNEL_WINDOW);

	c->events = siw_bench_require_object(siw_create_comp_channel(c->context),
					     "a completion channel");
	c->send_cq = siw_bench_require_object(siw_create_cq(c->context, (int)UD_SENDS + 4 * windows,
							    NULL, NULL, 0),
					      "a completion queue");
	c->recv_cq = siw_bench_require_object(siw_create_cq(c->context, (int)UD_RECVS + 2 * windows,
							    NULL, c->events, 0),
					      "a completion queue");
}

static void message_channel_create_ud_qp(struct siw_channel *c, uint16_t *port)
{
	struct siw_qp_init_attr init = { .qp_type = SIW_QPT_UD,
					 .cap = { UD_SENDS, UD_RECVS, 1, 1,
						  sizeof(struct siw_channel_head) } };
	struct siw_addr a;

	siw_addr_parse("127.0.0.1", 0, &init.addr);
	init.send_cq = c->send_cq;
	init.recv_cq = c->recv_cq;
	c->ud = siw_bench_require_object(siw_create_qp(c->pd, &init), "a queue pair");
	for (int s = SIW_QPS_INIT; s <= SIW_QPS_RTS; s++)
		siw_bench_exit_on_error(siw_modify_qp(c->ud, &(struct siw_qp_attr){ .qp_state = s },
						      SIW_QP_STATE),
					"changing the state of the queue pair");
	for (uint32_t i = 0; i < UD_RECVS; i++)
		message_channel_post_recv(c, NULL, i);
	siw_bench_exit_on_error(siw_qp_addr(c->ud, &a, NULL), "the queue pair's address");
	*port = ntohs(a.port_be);
}

void message_channel_open(struct siw_channel *c, const struct siw_channel_plan *plan,
			  uint16_t *ud_port, uint16_t *cm_port)
{
	struct siw_addr loopback;

	memset(c, 0, sizeof(*c));
	c->plan = *plan;
	siw_bench_raise_fd_limit(plan->limit < plan->ranks ? plan->limit : plan->ranks);
	siw_addr_parse("127.0.0.1", 0, &loopback);
	c->context =
		siw_bench_require_object(siw_open_device_by_addr(&loopback), "the loopback device");
	c->pd = siw_bench_require_object(siw_alloc_pd(c->context), "a protection domain");
	message_channel_allocate_and_register_memory(c);
	message_channel_create_cqs(c);
	*ud_port = 0;
	*cm_port = 0;
	if (message_channel_uses_ud(c))
		message_channel_create_ud_qp(c, ud_port);
	if (plan->limit)
		message_channel_listen(c, cm_port);
}

void message_channel_store_ports_of_peers(struct siw_channel *c, const uint16_t *ud_ports,
					  const uint16_t *cm_ports)
{
	struct siw_addr a;

	c->cm_ports = cm_ports;
	for (uint32_t i = 0; c->ud && i < c->plan.ranks; i++) {
		siw_addr_parse("127.0.0.1", ud_ports[i], &a);
		c->peers[i].ah =
			siw_bench_require_object(siw_create_ah(c->pd, &a), "an address handle");
	}
}
