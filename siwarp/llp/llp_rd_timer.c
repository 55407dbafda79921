/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* llp/llp_rd_timer.c - what happens by time alone. */
#include <stdlib.h>

#include "llp/llp_rd_impl.h"

void siw_llp_rd_due(struct siw_llp_rd_peer *peer, uint64_t at)
{
	struct siw_llp_rd *rd = peer->rd;

	if (siw_link_alone(&peer->active))
		siw_link_add(&rd->active, &peer->active);
	if (at >= rd->due)
		return;
	rd->due = at;
	siw_llp_sock_due(rd->sock, at);
}

void siw_llp_rd_ask(struct siw_llp_rd_peer *peer, uint64_t now)
{
	uint8_t out[SIW_RD_OVERHEAD];

	siw_llp_rd_header(peer, SIW_DGRAM_RD_PROBE, ++peer->probe_psn, 0,
			  (struct siw_rd_wire *)out);
	peer->probe = 0; /* its answer is not that of a longer one */
	siw_count(SIW_COUNTER_rd_probes, 1);
	siw_llp_rd_send(peer->rd, &peer->addr, out, SIW_RD_LEN);
	peer->sent_ns = now;
}

int siw_llp_rd_verify(struct siw_llp_rd_peer *peer, uint64_t now)
{
	if (peer->verify)
		return 0;
	peer->verify = true;
	peer->since_ns = now;
	peer->backoff = peer->rtos = 0;
	siw_llp_rd_ask(peer, now);
	peer->timer_ns = now + peer->cc.rto;
	siw_llp_rd_due(peer, peer->timer_ns);
	return 0;
}

/* It owes an answer and was silent for too long. */
static bool is_gone(const struct siw_llp_rd_peer *peer, uint64_t now)
{
	uint64_t last = peer->heard_ns > peer->since_ns ? peer->heard_ns : peer->since_ns;

	return peer->since_ns && now > last && now - last >= peer->rd->timeout;
}

/* Nothing is outstanding: what the window took may go; a peer that something is expected of is asked. */
static void rest(struct siw_llp_rd_peer *peer, uint64_t now)
{
	uint64_t every = peer->rd->timeout / 8;

	if (peer->tx && now - peer->sent_ns >= 100 * SIW_RD_MS)
		siw_llp_rd_tx_free(peer);
	if (peer->verify) {
		siw_llp_rd_ask(peer, now);
		peer->timer_ns = now + (every < SIW_RD_S / 4 ? every : SIW_RD_S / 4);
	} else if (siw_rd_owes(peer) && peer->state == SIW_RD_OPEN) {
		if (now - peer->heard_ns >= every)
			siw_llp_rd_ask(peer, now);
		peer->timer_ns = now + every;
	} else {
		peer->since_ns = 0;
		peer->timer_ns = peer->tx ? now + 100 * SIW_RD_MS : SIW_RD_NEVER;
	}
}

static void fire(struct siw_llp_rd_peer *peer, uint64_t now)
{
	if (is_gone(peer, now)) {
		siw_count(SIW_COUNTER_rd_gone, 1);
		siw_llp_rd_over(peer, SIW_LLP_RD_GONE);
	} else if (peer->state == SIW_RD_HELLO || peer->state == SIW_RD_ECHOED) {
		siw_llp_rd_hello_again(peer, now);
	} else if (peer->una == peer->nxt || peer->state == SIW_RD_CLOSED) {
		rest(peer, now);
	} else {
		siw_llp_rd_timeout(peer, now);
	}
}

/* When it has something next. */
static uint64_t next_of(const struct siw_llp_rd_peer *peer, uint64_t now)
{
	uint64_t next = peer->timer_ns;

	if (peer->due_acks && peer->ack_ns + SIW_RD_ACK_NS < next)
		next = peer->ack_ns + SIW_RD_ACK_NS;
	if (peer->tx && peer->pace_ns > now && peer->pace_ns < next &&
	    (peer->tx->n_lost || peer->tx->sent < peer->nxt))
		next = peer->pace_ns;
	return next < peer->probe_ns ? next : peer->probe_ns;
}

static void tick_peer(struct siw_llp_rd_peer *peer, uint64_t now)
{
	if (peer->timer_ns <= now)
		fire(peer, now);
	if (peer->due_acks && peer->ack_ns + SIW_RD_ACK_NS <= now)
		siw_llp_rd_send_ack(peer, 0, peer->epoch + (uint32_t)peer->nxt, now);
	if (peer->probe_ns <= now)
		siw_llp_rd_mtu_probe(peer, now);
	siw_llp_rd_pump(peer, now);
}

void siw_llp_rd_tick(struct siw_llp_rd *rd, uint64_t now)
{
	struct siw_link *l = rd->active.next, *next;
	uint64_t due = SIW_RD_NEVER, at;

	rd->due = 0; /* nobody sets it meanwhile */
	for (; l != &rd->active; l = next) {
		struct siw_llp_rd_peer *peer = siw_container(l, struct siw_llp_rd_peer, active);

		next = l->next;
		tick_peer(peer, now);
		at = next_of(peer, now);
		if (at == SIW_RD_NEVER)
			siw_link_del(&peer->active);
		else if (at < due)
			due = at;
	}
	rd->due = due;
	if (due != SIW_RD_NEVER)
		siw_llp_sock_due(rd->sock, due);
}

void siw_llp_rd_await(struct siw_llp_rd_peer *peer, uint64_t now)
{
	if (peer->state != SIW_RD_OPEN)
		return;
	if (!peer->since_ns)
		peer->since_ns = now;
	if (peer->timer_ns <= now + peer->rd->timeout / 8)
		return;
	peer->timer_ns = now + peer->rd->timeout / 8;
	siw_llp_rd_due(peer, peer->timer_ns);
}

void siw_llp_rd_expect(struct siw_llp_rd_peer *peer, bool expected)
{
	struct siw_llp_rd *rd = peer->rd;
	uint64_t now = siw_now_ns();

	siw_lock(&rd->lock);
	peer->expect = expected;
	if (expected)
		siw_llp_rd_await(peer, now);
	else if (peer->una == peer->nxt && !peer->verify && !siw_rd_owes(peer))
		peer->since_ns = 0;
	siw_unlock(&rd->lock);
}
