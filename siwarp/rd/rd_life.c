/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_life.c - instances of peers. An incarnation may end, and another begin, while both
 * processes stay alive: requests whose transmission has not begun are then sent to the same peer.
 * These requests are not sent if another process now uses the peer's port, which the instance
 * number in the handshake shows.
 *
 * A caller that posts requests after earlier requests to the peer were lost knows that the peer may
 * have been replaced: the new requests are sent to whichever instance completes the next handshake.
 * The death of a peer therefore fails only the requests that were posted before the loss was
 * reported.
 *
 * An instance number is no authentication: a peer that announces a different number in each
 * handshake only loses the requests that were posted for it.
 */
#include "rd/rd_impl.h"

bool siw_rd_update_peer_instance(struct siw_rd_peer *peer, uint64_t instance)
{
	struct siw_rd *rd = peer->rd;
	bool other = peer->instance && peer->instance != instance;

	peer->instance = instance;
	if (!other)
		return false;
	rd->n_restarted += !peer->restarted;
	peer->restarted = rd->restarts = true;
	siw_count(SIW_COUNTER_rd_restarted, 1);
	return !rd->follow_restart && !peer->known_lost;
}

void siw_rd_handle_replaced_instance(struct siw_rd_peer *peer)
{
	peer->over_kind = SIW_RD_REPLACED;
	siw_rd_queue_peer_event(peer, SIW_RD_REPORT_OVER);
	siw_rd_end_incarnation(peer, 0);
}

void siw_rd_clear_peer_restarted_flag(struct siw_rd_peer *peer)
{
	peer->rd->n_restarted -= peer->restarted;
	peer->restarted = false;
}

/* ---- calls of the upper layer ---------------------------------------------------------------- */

bool siw_rd_test_and_clear_any_peer_restarted(struct siw_rd *rd)
{
	bool restarts = rd->restarts;

	rd->restarts = false;
	return restarts;
}

int siw_rd_list_restarted_peers(struct siw_rd *rd, struct siw_rd_restart *out, int max)
{
	int n = 0;

	siw_lock(&rd->lock);
	for (struct siw_link *l = rd->lru.next; l != &rd->lru && n < max && rd->n_restarted;
	     l = l->next) {
		struct siw_rd_peer *peer = siw_container(l, struct siw_rd_peer, lru);

		if (!peer->restarted)
			continue;
		out[n++] = (struct siw_rd_restart){ peer->addr, peer->instance };
		siw_rd_clear_peer_restarted_flag(peer);
	}
	siw_unlock(&rd->lock);
	return n;
}

uint64_t siw_rd_instance_number_of_peer(struct siw_rd *rd, const struct siw_addr *addr)
{
	const struct siw_rd_peer *peer;
	uint64_t instance;

	siw_lock(&rd->lock);
	peer = siw_rd_peer_find(rd, addr);
	instance = peer ? peer->instance : 0;
	siw_unlock(&rd->lock);
	return instance;
}
