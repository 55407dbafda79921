/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* wan/wan_relay.c - relays packets between two network namespaces, subject to a fault plan. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/clock.h"
#include "base/counters.h"
#include "base/faults_queue.h"
#include "wan/wan.h"

#define BATCH  64  /* maximum number of packets read from one namespace in a row */
#define QUEUED 512 /* more than the 500 packets that the kernel queues for a TUN reader */
#define PACKET 65536
#define NS     1000000000ll

struct way {
	int in, out; /* descriptors */
	struct siw_fault_path path;
	struct siw_fault_queue queue;
	struct wan_stats stats;
};

struct wan_relay {
	struct siw_faults plan;
	struct way ways[2]; /* state of each direction, indexed by the sending namespace */
	uint8_t packet[PACKET];
};

struct wan_relay *wan_relay_new(const struct siw_faults *plan, const struct wan_space spaces[2])
{
	struct wan_relay *relay = calloc(1, sizeof(*relay));
	uint64_t now = siw_now_ns();

	if (!relay)
		return NULL;
	relay->plan = *plan;
	for (int from = 0; from < 2; from++) {
		struct way *way = &relay->ways[from];

		way->in = spaces[from].tun;
		way->out = spaces[!from].tun;
		siw_fault_path_init(&way->path, plan, now,
				    from == WAN_A ? SIW_FAULT_TX : SIW_FAULT_RX, 0);
		siw_fault_queue_init(&way->queue);
	}
	return relay;
}

void wan_relay_free(struct wan_relay *relay)
{
	if (!relay)
		return;
	siw_fault_queue_free(&relay->ways[0].queue);
	siw_fault_queue_free(&relay->ways[1].queue);
	free(relay);
}

const struct wan_stats *wan_relay_stats(const struct wan_relay *relay, int from)
{
	return &relay->ways[from].stats;
}

/*
 * Stores a packet's address in namespace b, and its port there if it has one, in *peer. Returns the
 * length of the IP header, or 0 if the packet is not an IP packet.
 */
static size_t parse_ip_header(const uint8_t *p, size_t n, bool from_a, struct siw_addr *peer)
{
	size_t head;
	uint8_t protocol;
	bool first = true;

	memset(peer, 0, sizeof(*peer));
	if (n >= 20 && p[0] >> 4 == 4) {
		head = (size_t)(p[0] & 15) * 4;
		protocol = p[9];
		first = !((p[6] & 31) | p[7]); /* fragments other than the first have no ports */
		peer->family = AF_INET;
		memcpy(peer->v4, p + (from_a ? 16 : 12), 4);
	} else if (n >= 40 && p[0] >> 4 == 6) {
		head = 40;
		protocol = p[6];
		peer->family = AF_INET6;
		memcpy(peer->v6, p + (from_a ? 24 : 8), 16);
	} else {
		return 0;
	}
	if (first && (protocol == IPPROTO_TCP || protocol == IPPROTO_UDP) && n >= head + 4)
		memcpy(&peer->port_be, p + head + (from_a ? 2 : 0), 2);
	return head < n ? head : n;
}

static void count_dropped_packet(struct wan_stats *stats, int why)
{
	if (why == SIW_COUNTER_fault_loss)
		stats->lost++;
	else if (why == SIW_COUNTER_fault_blackout)
		stats->blackout++;
	else
		stats->full++;
}

/*
 * Sets CE in a packet whose sender declared support for ECN (RFC 3168 section 5). Returns whether
 * CE was set.
 */
static bool set_congestion_experienced(uint8_t *p)
{
	uint32_t sum;

	if (p[0] >> 4 == 6) {
		if (!(p[1] & 0x30))
			return false;
		p[1] |= 0x30;
		return true;
	}
	if (!(p[1] & 3))
		return false;
	/*
	 * Update the header checksum (RFC 1624) by the bits that setting CE adds to a header word.
	 */
	sum = (uint32_t)(p[10] << 8 | p[11]);
	sum = (~sum & 0xffff) + (uint32_t)((p[1] | 3) - p[1]);
	sum = ~(sum + (sum >> 16)) & 0xffff;
	p[1] |= 3;
	p[10] = (uint8_t)(sum >> 8);
	p[11] = (uint8_t)sum;
	return true;
}

static void path_deliver_packet_to_interface(struct way *way, const uint8_t *packet, size_t n)
{
	/*
	 * As by a network interface, the packet is dropped if the receiving interface is down or
	 * has no buffer space.
	 */
	if (write(way->out, packet, n) == (ssize_t)n)
		way->stats.passed++;
}

static void path_queue_packet(struct way *way, const struct iovec *iov,
			      const struct siw_fault_decision *fate)
{
	struct siw_fault_held *held;

	if (siw_fault_queue_add(&way->queue, iov, 0, iov->iov_len, fate, &held))
		way->stats.full++;
}

static void path_send_due_packets(struct way *way, uint64_t now)
{
	struct siw_fault_held *held;

	while ((held = siw_fault_queue_first_due(&way->queue, now))) {
		path_deliver_packet_to_interface(way, held->octets, held->length);
		siw_fault_queue_remove(&way->queue, held);
	}
}

static void relay_packet(struct wan_relay *relay, struct way *way, size_t n)
{
	struct iovec iov = { relay->packet, n };
	struct siw_fault_decision fate;
	struct siw_addr peer;
	uint64_t now = siw_now_ns();
	size_t head = parse_ip_header(relay->packet, n, way->path.dir == SIW_FAULT_TX, &peer);

	way->stats.packets++;
	way->stats.octets += n;
	siw_fault_queue_decide_packet_fate(&way->queue, &relay->plan, &way->path, &peer, n, now,
					   &fate);
	if (fate.drop >= 0) {
		count_dropped_packet(&way->stats, fate.drop);
		return;
	}
	way->stats.copies += fate.dup;
	way->stats.reordered += fate.passes > 0;
	way->stats.corrupted += fate.corrupt;
	if (fate.mark && head && set_congestion_experienced(relay->packet))
		way->stats.marked++;
	if (fate.corrupt)
		siw_fault_flip_bit(relay->packet + head, n - head, fate.flip);
	fate.corrupt = false;
	path_queue_packet(way, &iov, &fate);
	fate.depart_ns = 0; /* the duplicate does not wait for the rate limit a second time */
	if (fate.dup)
		path_queue_packet(way, &iov, &fate);
	path_send_due_packets(way, now);
}

/*
 * Relays the pending packets from one namespace. Returns 1 if more packets may be pending, 0 if
 * not, or -1 after a message on stderr.
 */
static int relay_pending_packets(struct wan_relay *relay, struct way *way)
{
	for (int i = 0; i < BATCH; i++) {
		ssize_t n = read(way->in, relay->packet, sizeof(relay->packet));

		if (n > 0)
			relay_packet(relay, way, (size_t)n);
		else if (n < 0 && errno == EAGAIN)
			return 0;
		else if (n < 0 && errno != EINTR) {
			fprintf(stderr, "siwarp wan: reading packets: %s\n", strerror(errno));
			return -1;
		}
	}
	return 1;
}

static int64_t time_to_sleep_ns(const struct wan_relay *relay, uint64_t now, uint64_t end)
{
	uint64_t next = end;

	for (int from = 0; from < 2; from++) {
		uint64_t due = siw_fault_queue_next_due_time(&relay->ways[from].queue);

		next = due < next ? due : next;
	}
	return next == UINT64_MAX ? -1 : next > now ? (int64_t)(next - now) : 0;
}

/* Relays the packets sent until now by both namespaces. Returns 0 or -1 like wan_relay_run(). */
static int relay_queued_packets(struct wan_relay *relay)
{
	for (int from = 0; from < 2; from++) {
		int more = 1;

		for (int n = 0; n < QUEUED && more > 0; n += BATCH)
			more = relay_pending_packets(relay, &relay->ways[from]);
		if (more < 0)
			return -1;
	}
	return 0;
}

int wan_relay_run(struct wan_relay *relay, int other_fd, int64_t ns)
{
	uint64_t now = siw_now_ns(), end = ns < 0 ? UINT64_MAX : now + (uint64_t)ns;

	for (; now < end; now = siw_now_ns()) {
		struct pollfd fds[3] = { { relay->ways[0].in, POLLIN, 0 },
					 { relay->ways[1].in, POLLIN, 0 },
					 { other_fd, POLLIN, 0 } };
		int64_t left = time_to_sleep_ns(relay, now, end);
		struct timespec t = { left / NS, left % NS };

		if (ppoll(fds, 3, left < 0 ? NULL : &t, NULL) < 0 && errno != EINTR) {
			fprintf(stderr, "siwarp wan: waiting: %s\n", strerror(errno));
			return -1;
		}
		for (int from = 0; from < 2; from++) {
			if (relay_pending_packets(relay, &relay->ways[from]) < 0)
				return -1;
			path_send_due_packets(&relay->ways[from], siw_now_ns());
		}
		if (fds[2].revents)
			return relay_queued_packets(relay);
	}
	return 0;
}
