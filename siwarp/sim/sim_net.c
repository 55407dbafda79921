/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* sim/sim_net.c - hosts, the paths between them, and packets in flight. */
#include <stdio.h>

#include "base/capture.h"
#include "base/crc32c.h"
#include "llp/llp_dgram_wire.h"
#include "base/settings.h"
#include "sim/sim_impl.h"

#define IPV4_HEAD      20
#define IPV6_HEAD      40
#define IPV6_FRAG_HEAD 8
#define UDP_HEAD       8
#define TCP_HEAD       32 /* octets of a TCP header with the time stamp option */
#define LOCAL_MTU      65536
#define USUAL_MTU      1500
#define LEAST_MTU      68
#define ICMP_BURST     6
#define ICMP_EACH_NS   1000000000ull
/* octets of payload quoted in an ICMP message of 576 octets (RFC 1812 section 4.3.2.3) */
#define QUOTED 548

/* ---- the trace ------------------------------------------------------------------------------- */

static void trace_hash_add_u64(uint64_t word)
{
	struct sim_random step = { sim.hash ^ word };

	sim.hash = sim_draw_random(&step);
}

static void trace_hash_add_addr(const struct siw_addr *addr)
{
	uint64_t words[2];

	memcpy(words, addr->v6, sizeof(words));
	if (addr->family == AF_INET)
		memcpy(words, addr->v4, sizeof(addr->v4));
	trace_hash_add_u64((uint64_t)addr->family << 16 | addr->port_be);
	trace_hash_add_u64(words[0]);
	trace_hash_add_u64(words[1]);
}

void sim_trace_event(enum sim_event what, const struct siw_addr *from, const struct siw_addr *to,
		     uint64_t length, const void *octets)
{
	uint64_t head[2] = { 0 };

	trace_hash_add_u64((uint64_t)what << 56 ^ sim.now);
	trace_hash_add_addr(from);
	trace_hash_add_addr(to);
	trace_hash_add_u64(length);
	/*
	 * Only the header is hashed, because the octets after the header may hold tagged offsets,
	 * on which the CRC depends as well.
	 */
	if (octets && length >= SIW_DGRAM_LEN && siw_dgram_is(*(const uint8_t *)octets))
		memcpy(head, octets, SIW_DGRAM_LEN);
	trace_hash_add_u64(head[0]);
	trace_hash_add_u64(head[1]);
}

/* ---- addresses ------------------------------------------------------------------------------- */

uint32_t sim_addr_hash_bucket(const struct siw_addr *addr, uint64_t more)
{
	const uint8_t *at = addr->family == AF_INET ? addr->v4 : addr->v6;
	uint64_t hash = 14695981039346656037u ^ more ^ addr->port_be;

	for (int i = 0; i < (addr->family == AF_INET ? 4 : 16); i++)
		hash = (hash ^ at[i]) * 1099511628211u;
	return (uint32_t)((hash ^ hash >> 32) % SIM_BUCKETS);
}

bool sim_addr_is_any(const struct siw_addr *addr)
{
	static const uint8_t zero[16];

	return !memcmp(addr->family == AF_INET ? addr->v4 : addr->v6, zero,
		       addr->family == AF_INET ? 4 : 16);
}

struct sim_host *sim_host_by_addr(const struct siw_addr *addr)
{
	struct siw_addr alone = *addr;
	struct sim_host_addr *a;

	alone.port_be = 0;
	for (a = sim.addrs[sim_addr_hash_bucket(&alone, 0)]; a; a = a->next)
		if (siw_addr_same(&a->addr, &alone))
			return a->host;
	return NULL;
}

static struct sim_host *host_by_number(int number)
{
	return number >= 0 && (uint32_t)number < sim.n_hosts ? sim.hosts[number] : NULL;
}

static bool is_unicast_addr(const struct siw_addr *addr)
{
	return (addr->family == AF_INET || addr->family == AF_INET6) && !sim_addr_is_any(addr) &&
	       !siw_addr_is_group(addr) && !siw_addr_is_loopback(addr);
}

static int check_new_host_addrs_usable(const struct siw_addr *addrs, int n)
{
	if (n < 1 || n > (int)(sizeof(((struct siw_llp_interface *)0)->addrs) / sizeof(*addrs)))
		return -EINVAL;
	for (int i = 0; i < n; i++) {
		if (!is_unicast_addr(&addrs[i]))
			return -EINVAL;
		for (int j = 0; j < i; j++)
			if (siw_addr_same_host(&addrs[i], &addrs[j]))
				return -EINVAL;
		if (sim_host_by_addr(&addrs[i]))
			return -EADDRINUSE;
	}
	return 0;
}

static void host_add_addr(struct sim_host *host, const struct siw_addr *addr)
{
	struct sim_host_addr *a = sim_alloc(sizeof(*a));
	uint32_t bucket;

	a->addr = *addr;
	a->addr.port_be = 0;
	a->host = host;
	bucket = sim_addr_hash_bucket(&a->addr, 0);
	a->next = sim.addrs[bucket];
	sim.addrs[bucket] = a;
	host->netif.addrs[host->netif.n_addrs++] = a->addr;
}

int siw_sim_host_add(const struct siw_addr *addrs, int n, uint32_t mtu)
{
	struct sim_host *host;
	int rv = sim.open ? check_new_host_addrs_usable(addrs, n) : -ENOENT;

	if (!rv && mtu && (mtu < LEAST_MTU || mtu > LOCAL_MTU))
		rv = -EINVAL;
	if (rv)
		return rv;
	host = sim_alloc(sizeof(*host));
	host->number = sim.n_hosts;
	snprintf(host->netif.name, sizeof(host->netif.name), "sim%u", host->number);
	host->netif.mtu = mtu ? mtu : USUAL_MTU;
	host->netif.up = 1;
	siw_link_init(&host->watches);
	siw_link_init(&host->socks);
	siw_fault_backlog_init(&host->sends.backlog);
	siw_fault_backlog_init(&host->receives.backlog);
	for (int i = 0; i < n; i++) /* add the IPv4 addresses before the IPv6 addresses */
		if (addrs[i].family == AF_INET)
			host_add_addr(host, &addrs[i]);
	for (int i = 0; i < n; i++)
		if (addrs[i].family == AF_INET6)
			host_add_addr(host, &addrs[i]);
	sim.hosts =
		sim_grow_array(sim.hosts, sim.n_hosts, &sim.hosts_room, sizeof(struct sim_host *));
	sim.hosts[sim.n_hosts++] = host;
	return (int)host->number;
}

int siw_sim_host_crash(int number)
{
	struct sim_host *host = host_by_number(number);

	if (!host)
		return -ENOENT;
	if (host->dead)
		return 0;
	host->dead = true;
	sim_trace_event(SIM_CRASHED, &host->netif.addrs[0], &host->netif.addrs[0], host->number,
			NULL);
	sim_tcp_close_host_streams(host);
	while (!siw_link_empty(&host->socks)) {
		struct siw_llp_sock *sock =
			siw_container(host->socks.next, struct siw_llp_sock, of_host);

		sim_sock_unbind(sock);
		if (sock->poller)
			sim_poller_wake(sock->poller);
	}
	sim_release_reserved_ports(host);
	sim_host_close_devices(host);
	return 0;
}

int siw_sim_host_restart(int number)
{
	struct sim_host *host = host_by_number(number);

	if (!host)
		return -ENOENT;
	host->dead = false;
	return 0;
}

int siw_sim_set_host_link_state(int number, int up)
{
	struct sim_host *host = host_by_number(number);

	if (!host)
		return -ENOENT;
	if (host->netif.up == !!up)
		return 0;
	host->netif.up = !!up;
	sim_netdev_watch_report_change(host, up ? SIW_LLP_WATCH_UP : SIW_LLP_WATCH_DOWN);
	return 0;
}

/* ---- paths ----------------------------------------------------------------------------------- */

static struct sim_path **path_hash_bucket(const struct sim_host *from, const struct sim_host *to)
{
	return &sim.paths[(from->number * 2654435761u ^ to->number * 40503u) % SIM_PATH_BUCKETS];
}

static struct sim_path *path_find(const struct sim_host *from, const struct sim_host *to)
{
	struct sim_path *path = *path_hash_bucket(from, to);

	while (path && (path->from != from || path->to != to))
		path = path->next;
	return path;
}

struct sim_path *sim_path_find_or_create(struct sim_host *from, struct sim_host *to)
{
	struct sim_path **bucket = path_hash_bucket(from, to), *path = path_find(from, to);

	if (path)
		return path;
	path = sim_alloc(sizeof(*path));
	path->from = from;
	path->to = to;
	siw_link_init(&path->aside);
	siw_fault_backlog_init(&path->line.backlog);
	path->icmp_tokens = ICMP_BURST;
	path->next = *bucket;
	*bucket = path;
	return path;
}

static struct sim_path *path_get_reverse(const struct sim_path *path)
{
	return sim_path_find_or_create(path->to, path->from);
}

int siw_sim_set_path_cut(int a, int b, int cut)
{
	struct sim_host *from = host_by_number(a), *to = host_by_number(b);
	struct sim_path *path;

	if (!from || !to)
		return -ENOENT;
	path = sim_path_find_or_create(from, to);
	path->cuts += cut && !path->cut;
	path->cut = cut != 0;
	return 0;
}

int siw_sim_set_path_mtu(int a, int b, uint32_t mtu, int reports_icmp)
{
	struct sim_host *from = host_by_number(a), *to = host_by_number(b);
	struct sim_path *both[2];

	if (!from || !to)
		return -ENOENT;
	if (mtu && mtu < LEAST_MTU)
		return -EINVAL;
	both[0] = sim_path_find_or_create(from, to);
	both[1] = sim_path_find_or_create(to, from);
	for (int i = 0; i < 2; i++) {
		both[i]->mtu = mtu;
		both[i]->reports_icmp = reports_icmp != 0;
		both[i]->known = 0;
	}
	return 0;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t sender_interface_mtu(const struct sim_path *path)
{
	return path->from == path->to ? LOCAL_MTU : path->from->netif.mtu;
}

uint32_t sim_path_known_mtu(const struct sim_path *path)
{
	uint32_t mtu = sender_interface_mtu(path);

	return path->known ? min_u32(mtu, path->known) : mtu;
}

static uint32_t path_usable_mtu(const struct sim_path *path)
{
	uint32_t mtu = sender_interface_mtu(path);

	if (path->from != path->to)
		mtu = min_u32(mtu, path->to->netif.mtu);
	return path->mtu ? min_u32(mtu, path->mtu) : mtu;
}

static const struct siw_faults nothing;

/*
 * Makes a transmission line use the given fault plan. If the line used another plan before, the
 * fault state of the line is initialized.
 */
static const struct siw_faults *transmission_line_use_fault_plan(struct sim_line *line,
								 const struct sim_plan *plan,
								 enum siw_fault_dir dir,
								 uint32_t flow)
{
	if (line->plan != plan) {
		line->plan = plan;
		siw_fault_path_init(&line->state, &plan->faults, plan->began + SIW_SIM_MONOTONIC,
				    dir, flow);
	}
	return &plan->faults;
}

/* Returns the fault plan that applies to a path. */
static const struct siw_faults *path_active_fault_plan(struct sim_path *path)
{
	const struct sim_plan *plan = path->own ? path->own : sim.plan;
	bool receives = path->own ? path->receives : path->from->number > path->to->number;

	if (path->from == path->to && !path->own)
		return &nothing;
	return transmission_line_use_fault_plan(&path->line, plan,
						receives ? SIW_FAULT_RX : SIW_FAULT_TX,
						path->from->number << 16 ^ path->to->number);
}

int siw_sim_set_host_fault_plan(int number, const char *faults)
{
	struct sim_host *host = host_by_number(number);
	struct sim_plan *plan = NULL;

	if (!host)
		return -ENOENT;
	if (faults) {
		plan = sim_fault_plan_parse(faults, SIW_FAULTS_INTERFACE);
		if (!plan)
			return -EINVAL;
	}
	host->plan = plan;
	return 0;
}

static struct sim_leaving *departing_packet_of_list_node(struct siw_link *l)
{
	return siw_container(siw_container(l, struct siw_fault_waiting, link), struct sim_leaving,
			     waiting);
}

/*
 * Removes the packets that have passed the rate limit of a transmission line from the line, and
 * from the send buffers of their sockets.
 */
static void transmission_line_remove_departed(struct sim_line *line, uint64_t now)
{
	struct siw_fault_waiting *first;

	while ((first = siw_fault_backlog_pop_departed(&line->backlog, now))) {
		struct sim_leaving *leaving = departing_packet_of_list_node(&first->link);

		if (leaving->sock)
			leaving->sock->out_octets -= (uint32_t)first->octets + SIM_OVERHEAD;
		free(leaving);
	}
}

static void free_packets_of_line(struct sim_line *line)
{
	struct siw_fault_waiting *first;

	while ((first = siw_fault_backlog_pop_departed(&line->backlog, UINT64_MAX)))
		free(departing_packet_of_list_node(&first->link));
}

static void transmission_line_add_departure(struct sim_line *line, uint64_t at, uint32_t octets,
					    struct siw_llp_sock *sock)
{
	struct sim_leaving *leaving;

	if (at <= sim_monotonic_ns())
		return;
	leaving = sim_alloc(sizeof(*leaving));
	leaving->sock = sock;
	siw_fault_backlog_add(&line->backlog, &leaving->waiting, at, octets);
	if (sock)
		sock->out_octets += octets + SIM_OVERHEAD;
}

/*
 * Applies a fault plan to a packet on a transmission line. Counts the loss and returns false if the
 * packet is lost.
 */
static bool transmission_line_apply_faults_to_packet(struct sim_line *line,
						     const struct siw_faults *plan,
						     const struct siw_addr *peer, uint32_t octets,
						     struct siw_llp_sock *sock,
						     struct siw_fault_decision *fate)
{
	*fate = (struct siw_fault_decision){ .drop = -1, .release_ns = sim_monotonic_ns() };
	if (!plan->n)
		return true;
	transmission_line_remove_departed(line, sim_monotonic_ns());
	siw_fault_decide_packet_fate(plan, &line->state, peer, octets, sim_monotonic_ns(),
				     line->backlog.n, line->backlog.octets, fate);
	if (fate->drop >= 0) {
		siw_count((enum siw_counter)fate->drop, 1);
		sim.stats.lost++;
		return false;
	}
	transmission_line_add_departure(line, fate->depart_ns, octets, sock);
	return true;
}

bool sim_path_apply_faults_to_packet(struct sim_path *path, const struct siw_addr *peer,
				     uint32_t octets, struct siw_llp_sock *sock,
				     struct siw_fault_decision *fate)
{
	const struct siw_faults *plan = path_active_fault_plan(path);

	if (path->cut || !path->from->netif.up || !path->to->netif.up) {
		sim.stats.lost++;
		return false;
	}
	return transmission_line_apply_faults_to_packet(&path->line, plan, peer, octets, sock,
							fate);
}

/* ---- send buffers ---------------------------------------------------------------------------- */

/*
 * Returns the first transmission line on the way from a socket to an address that may have a rate
 * limit; NULL: no host has the address.
 */
static struct sim_line *first_link_with_rate_limit(const struct siw_llp_sock *sock,
						   const struct siw_addr *dest)
{
	struct sim_host *to = sim_host_by_addr(dest);

	if (sock->host->plan && to != sock->host)
		return &sock->host->sends;
	return to ? &sim_path_find_or_create(sock->host, to)->line : NULL;
}

static uint64_t send_buffer_capacity(void)
{
	return 2 * (uint64_t)siw_settings()->sndbuf;
}

bool sim_net_send_buffer_has_space(struct siw_llp_sock *sock, const struct siw_addr *dest,
				   uint32_t octets)
{
	struct sim_line *line;
	uint64_t rest;

	if (!sock->out_octets || !sock->open)
		return true;
	line = first_link_with_rate_limit(sock, dest);
	if (line)
		transmission_line_remove_departed(line, sim_monotonic_ns());
	rest = sock->out_octets;
	if (!rest || rest + octets + SIM_OVERHEAD <= send_buffer_capacity() || !line)
		return true;
	/* As in the kernel, the send buffer becomes writable again once half of it is free. */
	for (struct siw_link *l = line->backlog.waiting.next; l != &line->backlog.waiting;
	     l = l->next) {
		const struct sim_leaving *leaving = departing_packet_of_list_node(l);

		if (leaving->sock != sock)
			continue;
		rest -= leaving->waiting.octets + SIM_OVERHEAD;
		sim_timer_set(&sock->room, leaving->waiting.depart_ns - SIW_SIM_MONOTONIC);
		if (rest <= send_buffer_capacity() / 2)
			break;
	}
	return !sock->room.place;
}

static void transmission_line_forget_sock(struct sim_line *line, const struct siw_llp_sock *sock)
{
	for (struct siw_link *l = line->backlog.waiting.next; l != &line->backlog.waiting;
	     l = l->next)
		if (departing_packet_of_list_node(l)->sock == sock)
			departing_packet_of_list_node(l)->sock = NULL;
}

void sim_net_detach_sock(struct siw_llp_sock *sock)
{
	sim_timer_stop(&sock->room);
	if (!sock->out_octets)
		return;
	transmission_line_forget_sock(&sock->host->sends, sock);
	for (uint32_t i = 0; i < sim.n_hosts; i++) {
		struct sim_path *path = path_find(sock->host, sim.hosts[i]);

		if (path)
			transmission_line_forget_sock(&path->line, sock);
	}
	sock->out_octets = 0;
}

/* ---- datagrams ------------------------------------------------------------------------------- */

void sim_packet_free(struct sim_packet *packet)
{
	siw_link_del(&packet->aside.link);
	sim_timer_stop(&packet->timer);
	free(packet);
}

static uint32_t ip_header_octets(const struct siw_addr *addr)
{
	return addr->family == AF_INET6 ? IPV6_HEAD : IPV4_HEAD;
}

static void packet_send(struct sim_packet *packet, struct siw_llp_sock *sock);
static void packet_answer_icmp_port_unreachable(struct sim_packet *packet);
static void packet_arrive(struct sim_timer *timer);

/* Returns the number of octets of a packet that count against the rates of fault plans. */
static uint32_t packet_octets_counted_by_rate(const struct sim_packet *packet)
{
	if (packet->refusal)
		return packet->length + IPV4_HEAD + UDP_HEAD;
	return packet->tcp ? packet->length + TCP_HEAD + ip_header_octets(&packet->to)
			   : packet->length;
}

/* Stage at which a fault plan is applied to a packet */
enum stage {
	SENDS,	  /* interface of the sender */
	PASSES,	  /* path between the hosts */
	RECEIVES, /* interface of the receiver */
};

static bool packet_apply_fault_plan(struct sim_packet *packet, enum stage stage, uint32_t octets,
				    struct siw_llp_sock *sock, struct siw_fault_decision *fate)
{
	struct sim_path *path = packet->path;
	struct sim_host *host = stage == SENDS ? path->from : path->to;
	struct sim_line *line = stage == SENDS ? &host->sends : &host->receives;

	if (stage == PASSES)
		return sim_path_apply_faults_to_packet(path, &packet->to, octets, sock, fate);
	transmission_line_use_fault_plan(
		line, host->plan, stage == SENDS ? SIW_FAULT_TX : SIW_FAULT_RX, host->number);
	return transmission_line_apply_faults_to_packet(
		line, &host->plan->faults, stage == SENDS ? &packet->to : &packet->from, octets,
		sock, fate);
}

/*
 * Applies a fault plan to a packet, or to every fragment of a datagram that is longer than the path
 * MTU. A datagram is lost if any fragment is lost.
 */
static bool datagram_apply_fault_plan(struct sim_packet *packet, enum stage stage,
				      struct siw_llp_sock *sock, struct siw_fault_decision *fate)
{
	uint32_t head = ip_header_octets(&packet->to), limit = path_usable_mtu(packet->path);
	uint32_t most = (limit - head) & ~7u, rest = packet->length + UDP_HEAD;
	struct siw_fault_decision each;
	bool passes = true;

	if (packet->tcp || packet->refusal || rest + head <= limit)
		return packet_apply_fault_plan(packet, stage, packet_octets_counted_by_rate(packet),
					       sock, fate);
	*fate = (struct siw_fault_decision){ 0 };
	for (; rest; rest -= min_u32(rest, most)) {
		if (!packet_apply_fault_plan(packet, stage, min_u32(rest, most), sock, &each)) {
			passes = false;
			continue;
		}
		fate->release_ns = each.release_ns;
		fate->corrupt |= each.corrupt;
		fate->flip = each.flip;
	}
	return passes;
}

/* Discards a packet whose loss is already counted. */
static void packet_discard_without_counting(struct sim_packet *packet)
{
	if (packet->tcp)
		sim_trace_tcp_segment(SIM_SEGMENT_LOST, packet);
	else
		sim_trace_event(SIM_LOST, &packet->from, &packet->to, packet->length,
				packet->octets);
	sim_packet_free(packet);
}

static void packet_discard_and_count(struct sim_packet *packet)
{
	sim.stats.lost++;
	if (packet->tcp)
		sim_trace_tcp_segment(SIM_SEGMENT_LOST, packet);
	else
		sim_trace_event(SIM_LOST, &packet->from, &packet->to, packet->length, NULL);
	sim_packet_free(packet);
}

static void packet_apply_damage(struct sim_packet *packet, const struct siw_fault_decision *fate)
{
	if (fate->corrupt) {
		if (packet->tcp)
			siw_count(SIW_COUNTER_fault_corrupt, packet->length > 0);
		siw_fault_flip_bit(packet->octets, packet->length, fate->flip);
	}
	if (packet->ecn && fate->mark)
		packet->ecn = SIM_ECN_CE;
}

/*
 * Passes a packet through the interface of its destination. Returns false if the packet is lost or
 * arrives later. Packets that the fault plan of an interface delays stay in order.
 */
static bool packet_enter_receiver(struct sim_packet *packet)
{
	struct siw_fault_decision fate;

	packet->received = true;
	if (!packet->path->to->plan || packet->path->from == packet->path->to)
		return true;
	if (!datagram_apply_fault_plan(packet, RECEIVES, NULL, &fate)) {
		packet_discard_without_counting(packet);
		return false;
	}
	packet_apply_damage(packet, &fate);
	if (fate.release_ns <= sim_monotonic_ns())
		return true;
	sim_timer_set(&packet->timer, fate.release_ns - SIW_SIM_MONOTONIC);
	return false;
}

static void packet_arrive(struct sim_timer *timer)
{
	struct sim_packet *packet = siw_container(timer, struct sim_packet, timer);
	struct sim_path *path = packet->path;

	siw_link_del(&packet->aside.link);
	if (packet->cuts != path->cuts || !path->to->netif.up) {
		packet_discard_and_count(packet);
		return;
	}
	if (!packet->received && !packet_enter_receiver(packet))
		return;
	if (packet->tcp) {
		sim_tcp_deliver(packet, path->to);
		return;
	}
	if (!packet->refusal && !sim_sock_find(SIM_UDP, &packet->to, path->to, NULL)) {
		packet_answer_icmp_port_unreachable(packet);
		return;
	}
	sim_udp_deliver(packet, path->to);
}

struct sim_packet *sim_packet_new(struct sim_path *path, const struct siw_addr *from,
				  const struct siw_addr *to, uint32_t length)
{
	struct sim_packet *packet = sim_internal_malloc(sizeof(*packet) + length);

	if (!packet)
		packet = sim_alloc(sizeof(*packet) + length); /* aborts the process on failure */
	*packet = (struct sim_packet){
		.path = path,
		.cuts = path->cuts,
		.from = *from,
		.to = *to,
		.length = length,
		.timer.fire = packet_arrive,
	};
	siw_link_init(&packet->link);
	siw_link_init(&packet->aside.link);
	return packet;
}

/*
 * Lets a packet that arrives at the time `arrives` overtake the packets that reorder= holds back.
 * Unlike in a siw_fault_queue, packets that were held back do not count as overtaking packets.
 */
static void path_release_overtaken_packets(struct sim_path *path, uint64_t arrives)
{
	struct siw_fault_aside *aside;

	siw_fault_note_overtaking_packet(&path->aside);
	while ((aside = siw_fault_pop_overtaken_packet(&path->aside))) {
		struct sim_packet *packet = siw_container(aside, struct sim_packet, aside);

		if (arrives < packet->timer.at)
			sim_timer_set(&packet->timer, arrives);
	}
}

static void packet_depart(struct sim_packet *packet, const struct siw_fault_decision *fate)
{
	uint64_t arrives = fate->release_ns - SIW_SIM_MONOTONIC;

	if (fate->passes) {
		packet->aside.passes = fate->passes;
		siw_link_add(&packet->path->aside, &packet->aside.link);
		sim_timer_set(&packet->timer, arrives + SIW_FAULT_ASIDE_NS);
		siw_count(SIW_COUNTER_fault_reorder, 1);
		return;
	}
	sim_timer_set(&packet->timer, arrives);
	path_release_overtaken_packets(packet->path, arrives);
}

static void packet_send_duplicate(const struct sim_packet *packet,
				  const struct siw_fault_decision *fate)
{
	struct sim_packet *copy =
		sim_packet_new(packet->path, &packet->from, &packet->to, packet->length);

	memcpy(copy->octets, packet->octets, packet->length);
	copy->ecn = packet->ecn;
	copy->tcp = packet->tcp;
	copy->segment = packet->segment;
	sim.stats.duplicated++;
	siw_count(SIW_COUNTER_fault_dup, 1);
	packet_depart(copy, fate);
}

/*
 * Answers a datagram to a port without a socket by an ICMP port unreachable message, at most at the
 * kernel's rate.
 */
static void packet_answer_icmp_port_unreachable(struct sim_packet *packet)
{
	struct sim_path *back = path_get_reverse(packet->path);
	uint32_t quoted = min_u32(packet->length, QUOTED);
	uint64_t earned = (sim.now - back->icmp_since) / ICMP_EACH_NS;

	sim.stats.refused++;
	sim_trace_event(SIM_REFUSED, &packet->from, &packet->to, packet->length, NULL);
	if (earned) {
		back->icmp_since += earned * ICMP_EACH_NS;
		back->icmp_tokens = (uint32_t)(earned > ICMP_BURST - back->icmp_tokens
						       ? ICMP_BURST
						       : back->icmp_tokens + earned);
	}
	if (!siw_addr_is_group(&packet->to) && (back->icmp_tokens || back->from == back->to)) {
		struct sim_packet *icmp = sim_packet_new(back, &packet->to, &packet->from, quoted);

		back->icmp_tokens -= back->icmp_tokens > 0;
		memcpy(icmp->octets, packet->octets, quoted);
		icmp->refusal = true;
		packet_send(icmp, NULL);
	}
	sim_packet_free(packet);
}

/* Sends a packet along the path between its hosts. */
static void packet_enter_path(struct sim_packet *packet, struct siw_llp_sock *sock)
{
	struct siw_fault_decision fate;

	packet->timer.fire = packet_arrive;
	if (!datagram_apply_fault_plan(packet, PASSES, sock, &fate)) {
		packet_discard_without_counting(packet);
		return;
	}
	packet_apply_damage(packet, &fate);
	if (packet->refusal)
		fate.passes = 0;
	packet_depart(packet, &fate);
	if (fate.dup && !packet->refusal)
		packet_send_duplicate(packet, &fate);
}

static void packet_leave_sender(struct sim_timer *timer)
{
	packet_enter_path(siw_container(timer, struct sim_packet, timer), NULL);
}

/*
 * Sends a packet from its host. sock: the socket whose send buffer holds the packet while the
 * packet waits for a rate limit, or NULL.
 */
static void packet_send(struct sim_packet *packet, struct siw_llp_sock *sock)
{
	struct sim_path *path = packet->path;
	struct siw_fault_decision fate;

	if (!path->from->plan || path->from == path->to) {
		packet_enter_path(packet, sock);
		return;
	}
	if (!datagram_apply_fault_plan(packet, SENDS, sock, &fate)) {
		packet_discard_without_counting(packet);
		return;
	}
	packet_apply_damage(packet, &fate);
	if (fate.release_ns <= sim_monotonic_ns()) {
		packet_enter_path(packet, NULL);
		return;
	}
	packet->timer.fire = packet_leave_sender;
	sim_timer_set(&packet->timer, fate.release_ns - SIW_SIM_MONOTONIC);
}

int siw_sim_set_datagram_mutation_rate(int number, int of_1000)
{
	struct sim_host *host = host_by_number(number);

	if (!host)
		return -ENOENT;
	if (of_1000 < 0 || of_1000 > 1000)
		return -EINVAL;
	host->mutated = (uint32_t)of_1000;
	return 0;
}

/* Randomly changes a datagram as a malicious peer would, with a recomputed, valid CRC. */
static void datagram_mutate(struct sim_packet *packet)
{
	uint32_t body = packet->length - SIW_DGRAM_CRC_LEN;
	uint64_t draw = siw_sim_random();

	if (draw % 1000 >= packet->path->from->mutated)
		return;
	if (packet->length < SIW_DGRAM_LEN + SIW_DGRAM_CRC_LEN)
		return;
	if ((draw >> 32 & 3) == 3)
		body = 1 + (uint32_t)((draw >> 40) % body);
	for (uint32_t i = 0; i <= (draw >> 36 & 3); i++) {
		uint64_t where = siw_sim_random();
		/*
		 * At least half of the changes affect the first 64 octets, which contain the
		 * headers.
		 */
		uint32_t most = where & 1 && body > 64 ? 64 : body;

		packet->octets[(where >> 32) % most] ^= (uint8_t)(1u << (where >> 8 & 7));
	}
	siw_crc32c_put(packet->octets + body, siw_crc32c(0, packet->octets, body));
	packet->length = body + SIW_DGRAM_CRC_LEN;
}

static void datagram_send(struct siw_llp_sock *sock, struct sim_path *path,
			  const struct siw_addr *from, const struct siw_addr *dest,
			  const uint8_t *octets, uint32_t length)
{
	struct sim_packet *packet = sim_packet_new(path, from, dest, length);

	memcpy(packet->octets, octets, length);
	if (path->from->mutated)
		datagram_mutate(packet);
	packet->ecn = sock->ecn;
	packet_send(packet, sock);
}

/*
 * Returns the length of the longest packet of a datagram if routers must not fragment the packets;
 * 0: routers may fragment them. With `whole` the datagram is one packet. Over IPv6 the sender
 * fragments the datagram to the path MTU that it knows, and routers never do.
 */
static uint32_t largest_unfragmentable_packet(const struct siw_addr *dest, uint32_t packet,
					      uint32_t known, bool whole)
{
	uint32_t head = IPV6_HEAD + IPV6_FRAG_HEAD;

	if (whole)
		return packet;
	if (dest->family != AF_INET6)
		return 0;
	return packet <= known ? packet : head + ((known - head) & ~7u);
}

/*
 * Checks a datagram's length against the socket's fragmentation mode. Returns 0 or -EMSGSIZE.
 * *lost: whether the datagram is sent, but is lost because it is too long for the path.
 */
static int datagram_check_size(const struct siw_llp_sock *sock, struct sim_path *path,
			       const struct siw_addr *dest, uint32_t length, bool *lost)
{
	uint32_t packet = length + UDP_HEAD + ip_header_octets(dest);
	uint32_t known = sim_path_known_mtu(path);
	bool whole;

	*lost = false;
	if (sock->cut == SIM_CUT_NONE && packet > known)
		return -EMSGSIZE;
	if (sock->cut == SIM_CUT_PROBE && packet > sender_interface_mtu(path))
		return -EMSGSIZE;
	whole = sock->cut == SIM_CUT_NONE || sock->cut == SIM_CUT_PROBE ||
		(sock->cut == SIM_CUT_KNOWN && packet <= known);
	if (largest_unfragmentable_packet(dest, packet, known, whole) <= path_usable_mtu(path))
		return 0;
	*lost = true;
	if (path->reports_icmp)
		path->known = path_usable_mtu(path);
	return 0;
}

static void sim_write_packet_to_capture_file(const struct sim_host *host,
					     struct siw_capture_packet packet,
					     const uint8_t *octets, uint32_t length)
{
	struct iovec iov = { (void *)octets, length };

	packet.when_ns = siw_capture_lock();
	if (siw_capture_current_file_number()) {
		packet.interface = siw_capture_find_or_add_interface(host->netif.name);
		packet.iov = &iov;
		packet.length = length;
		siw_capture_write(&packet);
	}
	siw_capture_unlock();
}

void sim_capture_datagram(const struct sim_host *host, bool sent, const struct siw_addr *from,
			  const struct siw_addr *to, const uint8_t *octets, uint32_t length)
{
	if (siw_capture_on())
		sim_write_packet_to_capture_file(
			host,
			(struct siw_capture_packet){ .sent = sent, .source = *from, .dest = *to },
			octets, length);
}

static const struct siw_addr *host_first_addr(const struct sim_host *host, uint16_t family)
{
	for (uint32_t i = 0; i < host->netif.n_addrs; i++)
		if (host->netif.addrs[i].family == family)
			return &host->netif.addrs[i];
	return NULL;
}

/* Sends a datagram to each host with a member of the group, including the sender's host. */
static void send_to_group_members(struct siw_llp_sock *sock, const struct siw_addr *from,
				  const struct siw_addr *dest, const uint8_t *octets,
				  uint32_t length)
{
	for (uint32_t i = 0; i < sim.n_hosts; i++) {
		struct sim_host *host = sim.hosts[i];

		if (!sim_sock_find(SIM_UDP, dest, host, NULL) || (host != sock->host && !sock->ttl))
			continue;
		datagram_send(sock, sim_path_find_or_create(sock->host, host), from, dest, octets,
			      length);
	}
}

static int datagram_gather(uint8_t *to, const struct iovec *iov, int n, uint32_t *length)
{
	size_t octets = 0;

	for (int i = 0; i < n; i++)
		octets += iov[i].iov_len;
	if (octets > SIW_LLP_ROOM)
		return -EMSGSIZE;
	*length = (uint32_t)octets;
	return siw_fault_copy_from_iov(to, iov, 0, octets);
}

int sim_send_datagram(struct siw_llp_sock *sock, const struct siw_addr *dest,
		      const struct iovec *iov, int n)
{
	static uint8_t octets[SIW_LLP_ROOM];
	struct siw_addr from = sock->local, to = *dest;
	struct sim_host *host = sim_host_by_addr(dest);
	uint32_t length;
	bool lost = false;
	int rv = datagram_gather(octets, iov, n, &length);

	to.scope = 0;
	if (!sock->open)
		return 0; /* the host has crashed: the datagram is not sent */
	if (!rv && dest->family != sock->local.family)
		rv = -EAFNOSUPPORT;
	if (!rv && length > 65535 - UDP_HEAD - (dest->family == AF_INET ? IPV4_HEAD : 0u))
		rv = -EMSGSIZE;
	if (rv)
		return rv;
	if (sim_addr_is_any(&from)) {
		const struct siw_addr *own = host_first_addr(sock->host, from.family);

		if (!own)
			return -ENETUNREACH;
		memcpy(from.v4, own->v4, sizeof(from.v4));
		memcpy(from.v6, own->v6, sizeof(from.v6));
	}
	if (siw_addr_is_group(dest)) {
		sim.stats.sent++;
		sim_capture_datagram(sock->host, true, &from, &to, octets, length);
		sim_trace_event(SIM_SENT, &from, &to, length, octets);
		send_to_group_members(sock, &from, &to, octets, length);
		return 0;
	}
	if (host)
		rv = datagram_check_size(sock, sim_path_find_or_create(sock->host, host), dest,
					 length, &lost);
	if (rv)
		return rv;
	sim.stats.sent++;
	sim_capture_datagram(sock->host, true, &from, &to, octets, length);
	sim_trace_event(SIM_SENT, &from, &to, length, octets);
	if (host && !lost) {
		datagram_send(sock, sim_path_find_or_create(sock->host, host), &from, &to, octets,
			      length);
	} else { /* too long for the path, or no host has the address */
		sim.stats.lost++;
		sim_trace_event(SIM_LOST, &from, &to, length, NULL);
	}
	return 0;
}

/* ---- TCP segments ---------------------------------------------------------------------------- */

void sim_trace_tcp_segment(enum sim_event what, const struct sim_packet *packet)
{
	const struct sim_segment *segment = &packet->segment;

	sim_trace_event(what, &packet->from, &packet->to,
			(uint64_t)segment->flags << 56 ^ segment->seq << 20 ^ packet->length, NULL);
}

/* Returns the initial sequence number of a connection endpoint in the capture file. */
static uint32_t initial_seq_in_capture_file(uint64_t connection)
{
	return (uint32_t)connection * 2654435761u;
}

void sim_capture_tcp_segment(const struct sim_host *host, bool sent,
			     const struct sim_packet *packet)
{
	const struct sim_segment *segment = &packet->segment;
	struct siw_capture_packet shown = {
		.sent = sent,
		.tcp = true,
		.flags = segment->flags,
		.seq = initial_seq_in_capture_file(segment->from) + (uint32_t)segment->seq,
		.ack = initial_seq_in_capture_file(segment->to) + (uint32_t)segment->ack,
		.source = packet->from,
		.dest = packet->to,
	};

	if (siw_capture_on())
		sim_write_packet_to_capture_file(host, shown, packet->octets, packet->length);
}

void sim_send_tcp_segment(struct sim_packet *packet)
{
	struct sim_path *path = packet->path;
	uint32_t octets = packet->length + TCP_HEAD + ip_header_octets(&packet->to);

	sim.stats.segments++;
	sim_trace_tcp_segment(SIM_SEGMENT_SENT, packet);
	sim_capture_tcp_segment(path->from, true, packet);
	if (octets > path_usable_mtu(path)) {
		if (path->reports_icmp)
			path->known = path_usable_mtu(path);
		packet_discard_and_count(packet);
		return;
	}
	packet_send(packet, NULL);
}

size_t sim_path_allowed_stream_octets(struct sim_path *path, struct sim_flow *flow,
				      const struct siw_addr *peer, size_t length,
				      uint64_t *reset_at)
{
	const struct siw_faults *faults = path_active_fault_plan(path);
	uint64_t at;

	*reset_at = SIM_NEVER;
	if (!faults->n)
		return length;
	if (flow->plan != path->line.plan) {
		flow->plan = path->line.plan;
		siw_fault_path_init(&flow->state, faults, path->line.state.began_ns,
				    (enum siw_fault_dir)path->line.state.dir, flow->number);
	}
	at = siw_fault_planned_reset_time(faults, &flow->state, peer);
	if (at != UINT64_MAX)
		*reset_at = at - SIW_SIM_MONOTONIC;
	return siw_fault_stream_octets_for_next_call(faults, &flow->state, peer, length,
						     sim_monotonic_ns());
}

void sim_net_free(void)
{
	sim_tcp_free_streams();
	/*
	 * When a world is closed, the only timers that are still set are those of packets in
	 * flight.
	 */
	while (sim.n_heap)
		sim_packet_free(siw_container(sim.heap[1].timer, struct sim_packet, timer));
	for (int i = 0; i < SIM_PATH_BUCKETS; i++)
		while (sim.paths[i]) {
			struct sim_path *path = sim.paths[i];

			sim.paths[i] = path->next;
			free_packets_of_line(&path->line);
			free(path);
		}
	for (int i = 0; i < SIM_BUCKETS; i++)
		while (sim.addrs[i]) {
			struct sim_host_addr *addr = sim.addrs[i];

			sim.addrs[i] = addr->next;
			free(addr);
		}
	for (uint32_t i = 0; i < sim.n_hosts; i++) {
		free_packets_of_line(&sim.hosts[i]->sends);
		free_packets_of_line(&sim.hosts[i]->receives);
		free(sim.hosts[i]);
	}
	free(sim.hosts);
}
