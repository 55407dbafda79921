/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rd/rd_peer.c - the table of peers, their pending events, and buffers. */
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "rd/rd_impl.h"

#define TOUCH_MS 100
/* maximum number of peer records that one call examines to find a record to evict */
#define LOOK_AT 16

/* ---- buffers ---------------------------------------------------------------------------------
 *
 * Buffer sizes are powers of two. The most recently freed buffer is reused first, while it is in
 * the CPU's cache.
 */

#define POOL_OCTETS (4u << 20) /* maximum octets of free buffers of one size */
#define POOL_MOST   256u       /* maximum number of free buffers of one size */

void *siw_rd_alloc_buffer(struct siw_rd *rd, uint32_t octets, uint8_t *class)
{
	uint8_t c = siw_rd_size_class(octets);
	struct siw_rd_free *buf;

	*class = c;
	if (!rd->pool[c].free)
		return malloc(siw_rd_size_class_octets(c));
	buf = rd->pool[c].free;
	rd->pool[c].free = buf->next;
	rd->pool[c].n--;
	return buf;
}

void siw_rd_buf_free(struct siw_rd *rd, void *buf, uint8_t class)
{
	struct siw_rd_free *unused = buf;
	uint32_t most = POOL_OCTETS / siw_rd_size_class_octets(class);

	if (rd->pool[class].n >= (most < POOL_MOST ? most : POOL_MOST)) {
		free(buf);
		return;
	}
	unused->next = rd->pool[class].free;
	rd->pool[class].free = unused;
	rd->pool[class].n++;
}

/* ---- records ---------------------------------------------------------------------------------
 *
 * Records are long-lived, so they are allocated in slabs: scattered among short-lived objects, each
 * record would keep a page in use.
 */

#define MOST_OF_SLAB 64u

struct siw_rd_slab {
	struct siw_rd_slab *next;
	struct siw_rd_peer peer[];
};

/* Returns a zeroed peer record, or NULL. */
static struct siw_rd_peer *alloc_peer_record(struct siw_rd *rd)
{
	uint32_t n = rd->n_peers + 1 < MOST_OF_SLAB ? rd->n_peers + 1 : MOST_OF_SLAB;
	struct siw_rd_peer *peer;
	struct siw_rd_slab *slab;

	if (!rd->unused) {
		slab = malloc(sizeof(*slab) + n * sizeof(slab->peer[0]));
		if (!slab)
			return NULL;
		slab->next = rd->slabs;
		rd->slabs = slab;
		for (uint32_t i = 0; i < n; i++) {
			slab->peer[i].chain = rd->unused;
			rd->unused = &slab->peer[i];
		}
	}
	peer = rd->unused;
	rd->unused = peer->chain;
	memset(peer, 0, sizeof(*peer));
	return peer;
}

static void release_peer_record(struct siw_rd *rd, struct siw_rd_peer *peer)
{
	peer->chain = rd->unused;
	rd->unused = peer;
}

/* ---- the table ------------------------------------------------------------------------------- */

int siw_rd_peer_table_init(struct siw_rd *rd)
{
	siw_link_init(&rd->lru);
	siw_link_init(&rd->starved);
	siw_link_init(&rd->news);
	siw_link_init(&rd->ready);
	siw_link_init(&rd->acks);
	rd->buckets = 16;
	rd->table = calloc(rd->buckets, sizeof(rd->table[0]));
	return rd->table ? 0 : -ENOMEM;
}

bool siw_rd_cc_alloc_for_peer(struct siw_rd_peer *peer)
{
	struct siw_rd_cc *cc;

	if (siw_rd_has_cc(peer))
		return true;
	cc = malloc(sizeof(*cc));
	if (!cc)
		return false;
	siw_rd_cc_init(cc, siw_rd_max_datagram_octets(peer), peer->near);
	if (peer->rtt)
		siw_rd_cc_add_rtt_sample(cc, peer->rtt);
	peer->cc = cc;
	siw_trim_group_note_added(&peer->rd->busy);
	return true;
}

void siw_rd_cc_free_of_peer(struct siw_rd_peer *peer)
{
	if (!siw_rd_has_cc(peer))
		return;
	peer->rtt = peer->cc->srtt;
	free(peer->cc);
	peer->cc = &peer->rd->initial_cc;
	siw_trim_group_note_removed(&peer->rd->busy);
}

static void peer_table_remove(struct siw_rd_peer *peer)
{
	struct siw_rd *rd = peer->rd;
	struct siw_rd_peer **at = &rd->table[peer->hash & (rd->buckets - 1)];

	while (*at != peer)
		at = &(*at)->chain;
	*at = peer->chain;
}

static void free_send_and_receive_windows(struct siw_rd_peer *peer)
{
	for (int i = 0; i < SIW_RD_SPACES; i++) {
		siw_rd_release_send_window(peer, &peer->seq[i]);
		siw_rd_free_receive_window(peer, &peer->seq[i]);
	}
}

static bool has_send_or_receive_window(const struct siw_rd_peer *peer)
{
	for (int i = 0; i < SIW_RD_SPACES; i++)
		if (peer->seq[i].tx || peer->seq[i].rx)
			return true;
	return false;
}

struct siw_rd_sources *siw_rd_get_source_table(struct siw_rd *rd)
{
	struct siw_rd_sources *sources = rd->sources;

	if (sources)
		return sources;
	sources = calloc(1, sizeof(*sources));
	if (!sources)
		return NULL;
	sources->key = siw_source_make_hash_key();
	for (uint32_t i = 0; i < SIW_SOURCES; i++)
		siw_link_init(&sources->oldest[i]);
	rd->sources = sources;
	return sources;
}

static void peer_record_free(struct siw_rd_peer *peer)
{
	struct siw_rd *rd = peer->rd;

	free_send_and_receive_windows(peer);
	siw_rd_cc_free_of_peer(peer);
	siw_rd_pending_bye_free(peer);
	siw_rd_clear_peer_restarted_flag(peer);
	peer_table_remove(peer);
	siw_link_del(&peer->lru);
	siw_rd_cancel_timer(peer);
	siw_link_del(&peer->starved);
	siw_link_del(&peer->news);
	siw_link_del(&peer->ready);
	siw_link_del(&peer->acks);
	siw_link_del(&peer->in_source);
	rd->sources->records[peer->place]--;
	if (rd->last == peer)
		rd->last = NULL;
	if (rd->delivered_peer == peer)
		rd->delivered_peer = NULL;
	if (rd->settle == peer)
		rd->settle = NULL;
	rd->n_peers--;
	release_peer_record(rd, peer);
}

void siw_rd_peer_table_fini(struct siw_rd *rd)
{
	while (!siw_link_empty(&rd->lru))
		peer_record_free(siw_container(rd->lru.next, struct siw_rd_peer, lru));
	while (rd->slabs) {
		struct siw_rd_slab *slab = rd->slabs;

		rd->slabs = slab->next;
		free(slab);
	}
	free(rd->sources);
	free(rd->table);
	free(rd->heap);
	for (int c = 0; c < SIW_RD_CLASSES; c++)
		while (rd->pool[c].free) {
			struct siw_rd_free *buf = rd->pool[c].free;

			rd->pool[c].free = buf->next;
			free(buf);
		}
}

static uint32_t peer_addr_hash(const struct siw_rd *rd, const struct siw_addr *addr)
{
	/*
	 * siw_addr_same compares scopes only if both addresses have one, so the hash does not cover
	 * the scope.
	 */
	return (uint32_t)siw_siphash(&rd->key, addr, offsetof(struct siw_addr, scope));
}

struct siw_rd_peer *siw_rd_peer_find(struct siw_rd *rd, const struct siw_addr *addr)
{
	struct siw_rd_peer *peer = rd->last;
	uint32_t hash;

	if (peer && siw_addr_same(&peer->addr, addr))
		return peer;
	hash = peer_addr_hash(rd, addr);
	for (peer = rd->table[hash & (rd->buckets - 1)]; peer; peer = peer->chain)
		if (peer->hash == hash && siw_addr_same(&peer->addr, addr)) {
			rd->last = peer;
			return peer;
		}
	return NULL;
}

/* Doubles the number of hash buckets, if there is memory for them. */
static void peer_table_grow(struct siw_rd *rd)
{
	uint32_t n = rd->buckets * 2;
	struct siw_rd_peer **table = calloc(n, sizeof(table[0]));

	if (!table)
		return;
	for (struct siw_link *l = rd->lru.next; l != &rd->lru; l = l->next) {
		struct siw_rd_peer *peer = siw_container(l, struct siw_rd_peer, lru);

		peer->chain = table[peer->hash & (n - 1)];
		table[peer->hash & (n - 1)] = peer;
	}
	free(rd->table);
	rd->table = table;
	rd->buckets = n;
}

/* Returns whether anything is in progress with the peer. */
static bool is_peer_in_use(const struct siw_rd_peer *peer)
{
	return peer->claimed || has_send_or_receive_window(peer) || peer->reports ||
	       peer->settling || peer->expect || !siw_link_empty(&peer->ready) ||
	       peer->rd->delivered_peer == peer;
}

/*
 * Returns whether the peer record may be evicted as idle: no datagram of the peer can still be in
 * flight, and no valid ECHO can reopen its incarnation after the sequence numbers were discarded.
 */
static bool peer_is_evictable(const struct siw_rd_peer *peer, uint64_t now)
{
	const struct siw_rd *rd = peer->rd;
	uint64_t last = peer->last_received_ns > peer->last_sent_ns ? peer->last_received_ns
								    : peer->last_sent_ns;

	return siw_rd_cookie_clock_ms(rd, now) > peer->cookie_made + rd->cookie_ms &&
	       (peer->state == SIW_RD_CLOSED || now - last >= rd->idle);
}

/* Returns whether either end ever queued or accepted a segment of this pair. */
static bool has_exchanged_segments(const struct siw_rd_peer *peer)
{
	for (int i = 0; i < SIW_RD_SPACES; i++)
		if (peer->seq[i].rcv || peer->seq[i].nxt)
			return true;
	return peer->given;
}

static void peer_evict(struct siw_rd_peer *peer)
{
	struct siw_rd_sources *sources = peer->rd->sources;

	/*
	 * An ECHO with a cookie of the evicted incarnation must not reopen it after its sequence
	 * numbers were discarded.
	 */
	if (has_exchanged_segments(peer) && sources->not_before[peer->place] < peer->cookie_made)
		sources->not_before[peer->place] = peer->cookie_made;
	siw_count(SIW_COUNTER_rd_evicted, 1);
	peer_record_free(peer);
}

/*
 * Evicts the peer record that has been idle longest. Records in use are moved to the end of the
 * list, so that a few long-lived records at its front do not hide the idle ones. The work per call
 * is bounded.
 */
static bool evict_longest_idle_peer(struct siw_rd *rd, uint64_t now)
{
	for (int i = 0; i < LOOK_AT; i++) {
		struct siw_rd_peer *peer = siw_container(rd->lru.next, struct siw_rd_peer, lru);

		if (!siw_rd_upper_layer_object(peer) && !is_peer_in_use(peer)) {
			if (!peer_is_evictable(peer, now))
				return false;
			peer_evict(peer);
			return true;
		}
		siw_link_del(&peer->lru);
		siw_link_add(&rd->lru, &peer->lru);
	}
	return false;
}

/*
 * Returns the source with the most peer records; the new peer's own source, if no other source has
 * more.
 */
static uint32_t source_with_most_peers(const struct siw_rd_sources *sources, uint32_t place)
{
	for (uint32_t i = 0, most = sources->records[place]; i < SIW_SOURCES; i++)
		if (sources->records[i] > most) {
			most = sources->records[i];
			place = i;
		}
	return place;
}

/*
 * Returns whether the peer record is kept only because datagrams of an ended incarnation may still
 * arrive.
 */
static bool is_peer_kept_for_ended_incarnation(const struct siw_rd_peer *peer)
{
	return peer->state == SIW_RD_CLOSED && !peer->pending_bye;
}

/*
 * Evicts a peer record of a source: the oldest closed record, otherwise the oldest that never
 * exchanged a segment, otherwise, if the parameter `any` is true, the oldest record. The work per
 * call is bounded.
 */
static bool evict_peer_of_source(struct siw_rd_sources *sources, uint32_t place, bool any)
{
	struct siw_link *list = &sources->oldest[place];
	struct siw_rd_peer *closed = NULL, *useless = NULL, *oldest = NULL, *chosen;

	for (int i = 0; i < LOOK_AT && !closed && !siw_link_empty(list); i++) {
		struct siw_rd_peer *peer = siw_container(list->next, struct siw_rd_peer, in_source);

		siw_link_del(&peer->in_source);
		siw_link_add(list, &peer->in_source);
		if (siw_rd_upper_layer_object(peer) || is_peer_in_use(peer))
			continue;
		if (is_peer_kept_for_ended_incarnation(peer))
			closed = peer;
		if (!useless && !has_exchanged_segments(peer))
			useless = peer;
		if (!oldest)
			oldest = peer;
	}
	chosen = closed ? closed : useless ? useless : any ? oldest : NULL;
	if (chosen)
		peer_evict(chosen);
	return chosen;
}

/*
 * Called if no peer record is idle: evicts a record of the source that has the most records, or
 * else a record of the new peer's own source. A record that has exchanged segments is evicted only
 * if the new peer's source has fewer records.
 */
static bool evict_peer_of_largest_source(struct siw_rd *rd, uint32_t place)
{
	struct siw_rd_sources *sources = rd->sources;
	uint32_t fullest = source_with_most_peers(sources, place);
	bool fairer = sources->records[fullest] > sources->records[place] + 1;

	return evict_peer_of_source(sources, fullest, fairer) ||
	       (fullest != place && evict_peer_of_source(sources, place, false));
}

static bool evict_for_new_peer(struct siw_rd *rd, uint32_t place, uint64_t now)
{
	return evict_longest_idle_peer(rd, now) || evict_peer_of_largest_source(rd, place);
}

uint32_t siw_rd_new_epoch(struct siw_rd *rd)
{
	uint32_t epoch;

	do {
		rd->epochs++;
		epoch = (uint32_t)siw_siphash(&rd->key, &rd->epochs, sizeof(rd->epochs));
	} while (!epoch);
	return siw_initial_sequence(epoch); /* the epoch is also the first PSN */
}

int siw_rd_get_or_create_peer_locked(struct siw_rd *rd, const struct siw_addr *addr,
				     struct siw_rd_peer **out)
{
	struct siw_rd_peer *peer = siw_rd_peer_find(rd, addr);
	struct siw_rd_sources *sources;
	uint32_t place;
	uint64_t now;

	*out = peer;
	if (peer)
		return 0;
	sources = siw_rd_get_source_table(rd);
	if (!sources)
		return -ENOMEM;
	place = siw_source_table_index(sources->key, addr);
	now = siw_now_ns();
	if (rd->n_peers >= rd->max_peers && !evict_for_new_peer(rd, place, now))
		return -ENOBUFS;
	peer = siw_rd_reserve_timers(rd, rd->n_peers + 1) ? alloc_peer_record(rd) : NULL;
	if (!peer)
		return -ENOMEM;
	peer->rd = rd;
	peer->addr = *addr;
	peer->hash = peer_addr_hash(rd, addr);
	peer->place = place;
	sources->records[place]++;
	siw_link_add(&sources->oldest[place], &peer->in_source);
	peer->epoch = siw_rd_new_epoch(rd);
	peer->timer_ns = SIW_RD_NEVER;
	peer->last_received_ns = now;
	for (int i = 0; i < SIW_RD_SPACES; i++) {
		peer->seq[i].space = (uint8_t)i;
		atomic_init(&peer->seq[i].most_units, 1);
	}
	siw_link_init(&peer->starved);
	siw_link_init(&peer->news);
	siw_link_init(&peer->ready);
	siw_link_init(&peer->acks);
	if (++rd->n_peers > rd->buckets)
		peer_table_grow(rd);
	siw_link_add(&rd->lru, &peer->lru);
	peer->chain = rd->table[peer->hash & (rd->buckets - 1)];
	rd->table[peer->hash & (rd->buckets - 1)] = peer;
	peer->cc = &rd->initial_cc;
	siw_rd_mtu_init(peer);
	*out = peer;
	return 0;
}

void siw_rd_move_to_end_of_lru(struct siw_rd_peer *peer, uint64_t now)
{
	uint32_t ms = (uint32_t)(now / SIW_RD_MS);

	/*
	 * The times last_received_ns and last_sent_ns are exact; the order of the list of peers may
	 * lag by TOUCH_MS, which saves work.
	 */
	if (ms - peer->lru_ms < TOUCH_MS)
		return;
	peer->lru_ms = ms;
	siw_link_del(&peer->lru);
	siw_link_add(&peer->rd->lru, &peer->lru);
}

/* ---- events ---------------------------------------------------------------------------------- */

void siw_rd_queue_peer_event(struct siw_rd_peer *peer, uint8_t what)
{
	peer->reports |= what;
	if (siw_link_empty(&peer->news))
		siw_link_add(&peer->rd->news, &peer->news);
	atomic_store_explicit(&peer->rd->has_events, true, memory_order_relaxed);
}

void siw_rd_store_accepted_counts(struct siw_rd_peer *peer)
{
	if (siw_rd_incarnation_ended(peer))
		return;
	for (int i = 0; i < SIW_RD_SPACES; i++)
		atomic_store_explicit(&peer->seq[i].accepted, peer->seq[i].una,
				      memory_order_relaxed);
}

static void reset_sequence_space(struct siw_rd_seq *seq)
{
	seq->una = seq->nxt = seq->rcv = 0;
	seq->credit = 0;
	seq->starved_ns = 0;
	atomic_store_explicit(&seq->most_units, 1, memory_order_relaxed);
	seq->held = false;
}

void siw_rd_end_incarnation(struct siw_rd_peer *peer, int kind)
{
	struct siw_rd *rd = peer->rd;
	bool was = peer->state == SIW_RD_OPEN || peer->seq[SIW_RD_REQUESTS].nxt ||
		   peer->seq[SIW_RD_RESPONSES].nxt;

	peer->given = has_exchanged_segments(peer);
	if (kind && peer->seq[SIW_RD_REQUESTS].una != peer->seq[SIW_RD_REQUESTS].nxt)
		peer->known_lost = true;
	free_send_and_receive_windows(peer);
	for (int i = 0; i < SIW_RD_SPACES; i++)
		reset_sequence_space(&peer->seq[i]);
	if (rd->delivered_peer == peer)
		rd->delivered_peer = NULL;
	siw_link_del(&peer->ready);
	siw_link_del(&peer->acks);
	siw_link_del(&peer->starved);
	siw_rd_cancel_timer(peer);
	if (peer->pending_bye) /* keep retransmitting the BYE of an earlier incarnation */
		siw_rd_set_timer(peer, siw_rd_next_bye_time(peer));
	peer->state = SIW_RD_CLOSED;
	peer->epoch = siw_rd_new_epoch(rd);
	peer->peer_epoch = 0;
	peer->in_flight = peer->newest_ns = peer->last_data_ns = 0;
	peer->receive_wait_ns = peer->peer_unready_ns = peer->response_octets = 0;
	memset(peer->upper_data, 0, sizeof(peer->upper_data));
	peer->awaited_since_ns = 0;
	peer->timer_ns = SIW_RD_NEVER;
	peer->backoff = peer->rtos = peer->due_acks = 0;
	peer->after_rto = 0;
	peer->verify = peer->full = false;
	peer->expect = false;
	atomic_store_explicit(&peer->ird, 0, memory_order_relaxed);
	peer->probe = peer->long_losses = 0;
	peer->probe_ns = 0;
	peer->ce = peer->ce_reported = 0;
	peer->reports &= (uint8_t)~SIW_RD_REPORT_ACKED;
	siw_rd_mtu_handle_incarnation_end(peer);
	siw_rd_cc_free_of_peer(peer);
	peer->rtt = 0;
	if (kind && was) {
		/*
		 * REPLACED must be reported even if other events follow: requests posted for the
		 * previous instance must not be sent to the new one.
		 */
		if (!(peer->reports & SIW_RD_REPORT_OVER) || peer->over_kind != SIW_RD_REPLACED)
			peer->over_kind = (uint8_t)kind;
		siw_rd_queue_peer_event(peer, SIW_RD_REPORT_OVER);
	}
	siw_rd_store_accepted_counts(peer);
}
