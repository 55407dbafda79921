/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rd/rd_bye.c - the end of an incarnation. A BYE acknowledges the segments that its sender has
 * accepted, so a BYE must be delivered: it is retransmitted until the peer answers it with a BYE,
 * or linger_ms has passed. Until then the peer's record also keeps the pair of epochs that has
 * ended, even if the record already has a new pair.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "base/capture.h"
#include "base/settings.h"
#include "rd/rd_impl.h"

/*
 * Retransmission interval of a BYE: the initial value if the peer is on this machine, and the
 * maximum.
 */
#define NEAR_NS	   (20 * SIW_RD_MS)
#define LONGEST_NS SIW_RD_S

static const struct siw_rate byes = { 1000, 100 }, byes_each = { 200, 20 };

/*
 * The pair of epochs that this end ended last with a peer, stored until the peer answers the BYE.
 */
struct siw_rd_pending_bye {
	uint32_t epoch, peer_epoch;
	uint64_t due_ns, until_ns, every_ns;
	uint8_t bye[SIW_RD_OVERHEAD];
};

static void build_bye_datagram(struct siw_rd_peer *peer, enum siw_rd_reason reason, uint8_t flags,
			       uint8_t *out)
{
	siw_rd_write_header(peer, SIW_DGRAM_RD_BYE, 0, flags, siw_now_ns(),
			    (struct siw_rd_wire *)out);
	((struct siw_rd_wire *)out)->reason = (uint8_t)reason;
}

static void send_bye_datagram(struct siw_rd_peer *peer, uint8_t *bye)
{
	siw_rd_send_datagram(peer->rd, &peer->addr, bye, SIW_RD_LEN);
}

/* ---- BYEs sent by this end ------------------------------------------------------------------- */

void siw_rd_pending_bye_free(struct siw_rd_peer *peer)
{
	free(peer->pending_bye);
	peer->pending_bye = NULL;
}

/*
 * Allocates the state of a BYE that is retransmitted. Returns NULL if there is no memory; the BYE
 * is then sent only once.
 */
static struct siw_rd_pending_bye *alloc_bye_state(const struct siw_rd_peer *peer,
						  const uint8_t *bye)
{
	uint64_t linger = (uint64_t)siw_settings()->linger_ms * SIW_RD_MS, now = siw_now_ns();
	uint64_t every = peer->near ? NEAR_NS : peer->cc->rto;
	struct siw_rd_pending_bye *pending = linger ? malloc(sizeof(*pending)) : NULL;

	if (!pending)
		return NULL;
	*pending = (struct siw_rd_pending_bye){
		.epoch = peer->epoch,
		.peer_epoch = peer->peer_epoch,
		.due_ns = now + every,
		.until_ns = now + linger,
		.every_ns = every,
	};
	memcpy(pending->bye, bye, sizeof(pending->bye));
	return pending;
}

void siw_rd_end_incarnation_with_bye(struct siw_rd_peer *peer, enum siw_rd_reason reason, int kind)
{
	struct siw_rd_pending_bye *pending;
	uint8_t bye[SIW_RD_OVERHEAD];

	build_bye_datagram(peer, reason, 0, bye);
	pending = alloc_bye_state(peer, bye);
	send_bye_datagram(peer, bye);
	siw_rd_end_incarnation(peer, kind);
	siw_rd_pending_bye_free(peer);
	peer->pending_bye = pending;
	if (pending)
		siw_rd_set_timer(peer, pending->due_ns);
}

uint64_t siw_rd_next_bye_time(const struct siw_rd_peer *peer)
{
	return peer->pending_bye ? peer->pending_bye->due_ns : SIW_RD_NEVER;
}

void siw_rd_bye_retransmit(struct siw_rd_peer *peer, uint64_t now)
{
	struct siw_rd_pending_bye *pending = peer->pending_bye;

	if (now >= pending->until_ns) {
		siw_rd_pending_bye_free(peer);
		return;
	}
	send_bye_datagram(peer, pending->bye);
	pending->every_ns = 2 * pending->every_ns < LONGEST_NS ? 2 * pending->every_ns : LONGEST_NS;
	pending->due_ns = now + pending->every_ns;
	if (pending->due_ns > pending->until_ns)
		pending->due_ns = pending->until_ns;
}

/* ---- BYEs received from the peer ------------------------------------------------------------- */

/*
 * Sends a BYE for the pair of epochs of a datagram, if the pair is unknown here and the rate limit
 * permits the BYE.
 */
static void send_bye_for_unknown_epochs(struct siw_rd *rd, const struct siw_addr *to,
					const struct siw_rd_wire *wire, uint8_t reason,
					uint8_t flags)
{
	struct siw_rd_sources *sources = siw_rd_get_source_table(rd);
	struct {
		struct siw_rd_wire wire;
		uint8_t crc[SIW_DGRAM_CRC_LEN];
	} out;

	siw_drop(SIW_COUNTER_drop_rd_epoch);
	if (!sources ||
	    !siw_source_consume_token(&sources->bye, siw_source_table_index(sources->key, to),
				      &byes, &byes_each, rd->now))
		return;
	siw_rd_write_bare_header(rd, SIW_DGRAM_RD_BYE, ntohl(wire->dest_epoch),
				 ntohl(wire->source_epoch), &out.wire);
	out.wire.reason = reason;
	out.wire.flags = flags;
	siw_rd_send_datagram(rd, to, (uint8_t *)&out, SIW_RD_LEN);
}

static bool is_bye_datagram(const struct siw_rd_wire *wire)
{
	return wire->llp.type >> 4 == SIW_DGRAM_RD_BYE;
}

/* Returns whether the sender of this BYE expects an answer. */
static bool awaits_answer_to_bye(const struct siw_rd_wire *wire)
{
	return is_bye_datagram(wire) && !(wire->flags & SIW_RD_ANSWER) &&
	       wire->reason != SIW_RD_UNKNOWN_PAIR;
}

/*
 * Handles a datagram of the incarnation that this end has ended. A BYE in that incarnation is an
 * answer to this end's BYE, whether or not it has the answer flag.
 */
static void handle_datagram_of_ended_incarnation(struct siw_rd_peer *peer,
						 const struct siw_rd_wire *wire)
{
	struct siw_rd_wire *bye = (struct siw_rd_wire *)peer->pending_bye->bye;

	if (awaits_answer_to_bye(wire))
		bye->flags |= SIW_RD_ANSWER;
	if (!is_bye_datagram(wire) || awaits_answer_to_bye(wire))
		send_bye_datagram(peer, peer->pending_bye->bye);
	if (is_bye_datagram(wire))
		siw_rd_pending_bye_free(peer);
}

static bool is_datagram_of_ended_incarnation(const struct siw_rd_peer *peer,
					     const struct siw_rd_wire *wire)
{
	return peer && peer->pending_bye && ntohl(wire->dest_epoch) == peer->pending_bye->epoch &&
	       ntohl(wire->source_epoch) == peer->pending_bye->peer_epoch;
}

void siw_rd_answer_with_bye(struct siw_rd *rd, struct siw_rd_peer *peer,
			    const struct siw_rd_wire *wire)
{
	if (is_datagram_of_ended_incarnation(peer, wire))
		handle_datagram_of_ended_incarnation(peer, wire);
	else if (!is_bye_datagram(wire))
		send_bye_for_unknown_epochs(rd, &rd->from, wire, SIW_RD_UNKNOWN_PAIR, 0);
	else if (awaits_answer_to_bye(
			 wire)) /* the peer repeats its BYE, because this end's answer was lost */
		send_bye_for_unknown_epochs(rd, &rd->from, wire, SIW_RD_CLOSED_END, SIW_RD_ANSWER);
	else
		siw_drop(SIW_COUNTER_drop_rd_epoch);
}

void siw_rd_handle_bye(struct siw_rd_peer *peer, const struct siw_rd_wire *wire, uint64_t now)
{
	bool open = peer->state == SIW_RD_OPEN;
	uint8_t answer[SIW_RD_OVERHEAD];

	/*
	 * The peer's BYE also acknowledges the segments of this end that the peer accepted before
	 * it closed. The peer is marked as closed first, so that handling the acknowledgement sends
	 * no more segments.
	 */
	peer->state = SIW_RD_CLOSED;
	if (open && wire->reason != SIW_RD_UNKNOWN_PAIR)
		siw_rd_handle_ack(peer, wire, NULL, now);
	if (awaits_answer_to_bye(wire)) {
		build_bye_datagram(peer, SIW_RD_CLOSED_END, SIW_RD_ANSWER, answer);
		send_bye_datagram(peer, answer);
	}
	if (open)
		peer->state = SIW_RD_OPEN; /* so that siw_rd_end_incarnation() reports the end */
	siw_rd_end_incarnation(peer, wire->reason == SIW_RD_UNKNOWN_PAIR ? SIW_RD_RESTARTED
									 : SIW_RD_GONE);
}

/* ---- closing the endpoint -------------------------------------------------------------------- */

static struct siw_rd_peer *peer_of_lru_list_entry(struct siw_link *l)
{
	return siw_container(l, struct siw_rd_peer, lru);
}

void siw_rd_shutdown(struct siw_rd *rd)
{
	siw_lock(&rd->lock);
	siw_rd_acknowledge_accepted_segment(rd);
	rd->shut_down = true;
	rd->delivered_peer = NULL;
	for (struct siw_link *l = rd->lru.next; l != &rd->lru; l = l->next) {
		struct siw_rd_peer *peer = peer_of_lru_list_entry(l);

		for (int i = 0; i < SIW_RD_SPACES; i++)
			siw_rd_free_receive_window(peer, &peer->seq[i]);
		siw_link_del(&peer->ready);
	}
	siw_unlock(&rd->lock);
}

/*
 * Returns whether segments to the peer are outstanding that it can still be expected to accept. A
 * peer that reports NOT READY may never accept them.
 */
static bool peer_can_accept_outstanding_segments(const struct siw_rd_peer *peer)
{
	return peer->state == SIW_RD_OPEN && siw_rd_has_outstanding_segment(peer) &&
	       !peer->peer_unready_ns;
}

bool siw_rd_continue_shutdown(struct siw_rd *rd)
{
	struct siw_rd_event event;
	bool left = true;

	if (!siw_llp_poller_opened_by_this_process(rd->poller))
		return true;
	while (siw_rd_recv(rd, &event) == 1)
		;
	siw_lock(&rd->lock);
	for (struct siw_link *l = rd->lru.next; l != &rd->lru; l = l->next) {
		struct siw_rd_peer *peer = peer_of_lru_list_entry(l);

		if (peer->state == SIW_RD_OPEN && !peer_can_accept_outstanding_segments(peer))
			siw_rd_end_incarnation_with_bye(peer, SIW_RD_CLOSED_END, 0);
		left &= peer->state != SIW_RD_OPEN && !peer->pending_bye;
	}
	siw_unlock(&rd->lock);
	return left;
}

void siw_rd_send_final_byes(struct siw_rd *rd)
{
	for (struct siw_link *l = rd->lru.next; l != &rd->lru; l = l->next) {
		uint8_t bye[SIW_RD_OVERHEAD];

		if (peer_of_lru_list_entry(l)->state != SIW_RD_OPEN)
			continue;
		build_bye_datagram(peer_of_lru_list_entry(l), SIW_RD_CLOSED_END, 0, bye);
		send_bye_datagram(peer_of_lru_list_entry(l), bye);
	}
}
