/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_rnr.c - requests for which the receiver has posted no receive. The receiver stores them and
 * sets NOT READY in its ACKs, together with its RNR timer. The sender decides how long its requests
 * may wait at the peer: it ends the incarnation only when, after that time, another ACK still
 * reports NOT READY.
 */
#include "rd/rd_rnr.h"
#include "rd/rd_impl.h"

/* Ends the incarnation, because a request of this end waited too long for a receive at the peer. */
static void end_incarnation_after_rnr_timeout(struct siw_rd_peer *peer)
{
	siw_count(SIW_COUNTER_rnr_expired, 1);
	siw_rd_end_incarnation_with_bye(peer, SIW_RD_RNR, SIW_RD_UNREADY);
}

void siw_rd_handle_not_ready(struct siw_rd_peer *peer, const struct siw_rd_wire *wire, uint64_t now)
{
	const struct siw_rd_seq *requests = &peer->seq[SIW_RD_REQUESTS];
	const struct siw_rd_ack *ack = (const struct siw_rd_ack *)(wire + 1);
	uint64_t patience;

	if (ntohl(wire->acknowledged[SIW_RD_REQUESTS]) != peer->epoch + (uint32_t)requests->una)
		return; /* the ACK is older than another one that has arrived before it */
	if (!(wire->flags & SIW_RD_NOT_READY) || requests->una == requests->nxt) {
		peer->peer_unready_ns = 0;
		return;
	}
	peer->seq[SIW_RD_REQUESTS].starved_ns = 0;
	if (!peer->peer_unready_ns || peer->peer_unready_una != requests->una) {
		peer->peer_unready_ns = now;
		peer->peer_unready_una = requests->una;
		siw_count(SIW_COUNTER_rd_not_ready, 1);
	}
	if (peer->rd->rnr_retry >= SIW_RNR_NO_LIMIT)
		return;
	patience = siw_rnr_timeout_ns(peer->rd->rnr_retry, ack->rnr_timer);
	if (now - peer->peer_unready_ns >= patience) {
		end_incarnation_after_rnr_timeout(peer);
	} else if (peer->peer_unready_ns + patience < peer->timer_ns) {
		peer->timer_ns =
			peer->peer_unready_ns + patience; /* the time at which the peer is probed */
		siw_rd_set_timer(peer, peer->timer_ns);
	}
}

static bool fill_waiting_peer_entry(const struct siw_rd_peer *peer, uint64_t since, bool here,
				    uint64_t now, struct siw_rd_wait *out)
{
	if (!since)
		return false;
	*out = (struct siw_rd_wait){
		.peer = peer->addr,
		.ms = now > since ? (now - since) / SIW_RD_MS : 0,
		.here = here,
	};
	return true;
}

int siw_rd_list_waiting_peers(struct siw_rd *rd, struct siw_rd_wait *out, int max)
{
	uint64_t now = siw_now_ns();
	int n = 0;

	siw_lock(&rd->lock);
	for (struct siw_link *l = rd->lru.next; l != &rd->lru && n < max; l = l->next) {
		const struct siw_rd_peer *peer = siw_container(l, struct siw_rd_peer, lru);

		n += fill_waiting_peer_entry(
			peer, siw_rd_request_lacks_receive(peer) ? peer->receive_wait_ns : 0, true,
			now, &out[n]);
		if (n < max)
			n += fill_waiting_peer_entry(peer, peer->peer_unready_ns, false, now,
						     &out[n]);
	}
	siw_unlock(&rd->lock);
	return n;
}
