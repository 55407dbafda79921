/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* sim/sim_udp.c - the functions of llp.h for UDP sockets, on the datagrams of sim_net.c. */
#include <stdio.h>

#include "base/settings.h"
#include "sim/sim_impl.h"

#define IPV4_HEAD 20
#define IPV6_HEAD 40
#define UDP_HEAD  8
/* consecutive datagrams after which a socket receives in batches, as in llp_udp_dense.c */
#define DENSE	  32
#define TRAIN	  64  /* maximum number of datagrams in a batch */
#define MOST_HELD 256 /* maximum number of ICMP messages that a socket queues */

int siw_llp_udp_open(struct siw_llp_poller *poller, const struct siw_addr *local,
		     struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	struct siw_llp_sock *sock = sim_alloc(sizeof(*sock));

	sim_sock_init(sock, poller, SIM_UDP, handler);
	return sim_sock_bind_or_free(sock, local, false, out);
}

int siw_llp_udp_reserve_port(struct siw_addr *local, bool v6_only)
{
	return sim_reserve_port(SIM_UDP, local, v6_only);
}

/* Always fails, because a descriptor of the program is not a simulated socket. */
int siw_llp_udp_adopt_program_socket(struct siw_llp_poller *poller, int fd,
				     struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	(void)poller, (void)fd, (void)handler, (void)out;
	return -ENOTSOCK;
}

static struct sim_host *host_of_netdev(const char *netdev)
{
	for (uint32_t i = 0; i < sim.n_hosts; i++)
		if (!strcmp(sim.hosts[i]->netif.name, netdev))
			return sim.hosts[i];
	return NULL;
}

int siw_llp_udp_open_group_member(struct siw_llp_poller *poller, const struct siw_addr *group,
				  const char *netdev, struct siw_io_handler *handler,
				  struct siw_llp_sock **out)
{
	struct sim_host *host = host_of_netdev(netdev);
	struct siw_addr addr = *group, any = { .family = group->family, .port_be = group->port_be };
	struct siw_llp_sock *sock;

	if (!siw_addr_is_group(group))
		return -EINVAL;
	if (!host)
		return -ENODEV;
	if (sim_sock_find(SIM_UDP, &any, host, NULL))
		return -EADDRINUSE;
	sock = sim_alloc(sizeof(*sock));
	sim_sock_init(sock, poller, SIM_UDP, handler);
	sock->group = true;
	sock->host = host;
	return sim_sock_bind_or_free(sock, &addr, true, out);
}

int siw_llp_udp_enable_multicast_sending(struct siw_llp_sock *sock, const char *netdev, int ttl)
{
	if (!host_of_netdev(netdev))
		return -ENODEV;
	sock->ttl = ttl;
	return 0;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* As in the kernel, the send buffer accepts all datagrams of a batch or none. */
static int udp_check_send_buffer_space(struct siw_llp_sock *sock, const struct siw_addr *dest,
				       size_t octets)
{
	if (sim_net_send_buffer_has_space(sock, dest, (uint32_t)octets))
		return 0;
	sock->want_write = true;
	return -EAGAIN;
}

static size_t iov_octets(const struct iovec *iov, int n)
{
	size_t octets = 0;

	for (int i = 0; i < n; i++)
		octets += iov[i].iov_len;
	return octets;
}

int siw_llp_udp_send(struct siw_llp_sock *sock, const struct siw_addr *dest,
		     const struct iovec *iov, int n)
{
	int rv = udp_check_send_buffer_space(sock, dest, iov_octets(iov, n));

	if (rv)
		return rv;
	rv = sim_send_datagram(sock, dest, iov, n);
	if (rv)
		siw_count(SIW_COUNTER_send_errors, 1);
	sock->want_write = false;
	return rv;
}

/*
 * Returns whether the datagrams of a batch are sent without fragmentation; the kernel refuses other
 * batches.
 */
static bool batch_fits_path_mtu(const struct siw_llp_sock *sock, const struct siw_addr *dest,
				uint16_t seg)
{
	uint32_t head = (dest->family == AF_INET6 ? IPV6_HEAD : IPV4_HEAD) + UDP_HEAD;
	struct sim_host *host = sim_host_by_addr(dest);

	if (!sock->open)
		return true;
	return seg + head <= (host ? sim_path_known_mtu(sim_path_find_or_create(sock->host, host))
				   : sock->host->netif.mtu);
}

int siw_llp_udp_send_batchv(struct siw_llp_sock *sock, const struct siw_addr *dest,
			    const struct iovec *iov, int n, uint16_t seg)
{
	int rv;

	if (!batch_fits_path_mtu(sock, dest, seg))
		return -EOPNOTSUPP;
	rv = udp_check_send_buffer_space(sock, dest, iov_octets(iov, n));
	if (rv)
		return rv;
	for (int i = 0; i < n; i++) {
		rv = sim_send_datagram(sock, dest, &iov[i], 1);
		if (rv)
			return rv;
	}
	sock->want_write = false;
	return 0;
}

int siw_llp_udp_send_batch(struct siw_llp_sock *sock, const struct siw_addr *dest, const void *buf,
			   size_t len, uint16_t seg)
{
	int rv;

	if (!batch_fits_path_mtu(sock, dest, seg))
		return -EOPNOTSUPP;
	rv = udp_check_send_buffer_space(sock, dest, len);
	if (rv)
		return rv;
	for (size_t at = 0; at < len; at += seg) {
		struct iovec iov = { (uint8_t *)buf + at, len - at < seg ? len - at : seg };

		rv = sim_send_datagram(sock, dest, &iov, 1);
		if (rv)
			return rv;
	}
	sock->want_write = false;
	return 0;
}

int siw_llp_udp_send_fragmented(struct siw_llp_sock *sock, const struct siw_addr *dest,
				const struct iovec *iov, int n)
{
	enum sim_cut before = sock->cut;
	int rv;

	sock->cut = SIM_CUT_ALL;
	rv = siw_llp_udp_send(sock, dest, iov, n);
	sock->cut = before;
	return rv;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static bool inbox_has_space(const struct siw_llp_sock *sock, uint32_t length)
{
	uint64_t room = 2 * (uint64_t)siw_settings()->rcvbuf;

	return (uint64_t)sock->inbox_octets + length +
			       (sock->n_inbox + 1) * (uint64_t)SIM_OVERHEAD <=
		       room ||
	       !sock->n_inbox;
}

static void udp_enqueue(struct siw_llp_sock *sock, struct sim_packet *packet)
{
	if (!inbox_has_space(sock, packet->length)) {
		sim.stats.overflowed++;
		siw_count(SIW_COUNTER_drop_rxq_overflow, 1);
		sim_trace_event(SIM_OVERFLOWED, &packet->from, &packet->to, packet->length, NULL);
		sim_packet_free(packet);
		return;
	}
	sim.stats.delivered++;
	sim_trace_event(SIM_DELIVERED, &packet->from, &packet->to, packet->length, packet->octets);
	siw_link_add(&sock->inbox, &packet->link);
	sock->n_inbox++;
	sock->inbox_octets += packet->length;
	if (!sock->held)
		siw_llp_sock_mark_ready(sock);
}

static void udp_enqueue_icmp_refusal(struct siw_llp_sock *sock, struct sim_packet *packet)
{
	uint32_t n = 0;

	for (struct siw_link *l = sock->refusals.next; l != &sock->refusals; l = l->next)
		n++;
	if (!sock->hears || n >= MOST_HELD) {
		sim_packet_free(packet);
		return;
	}
	/*
	 * The kernel also sets the socket's pending error, which llp counts and otherwise ignores.
	 *
	 */
	siw_count(SIW_COUNTER_icmp_errors, 1);
	siw_link_add(&sock->refusals, &packet->link);
	siw_llp_sock_mark_ready(sock);
}

void sim_udp_deliver(struct sim_packet *packet, struct sim_host *host)
{
	struct siw_llp_sock *sock = sim_sock_find(SIM_UDP, &packet->to, host, NULL), *next;

	if (packet->refusal) {
		if (sock)
			udp_enqueue_icmp_refusal(sock, packet);
		else
			sim_packet_free(packet);
		return;
	}
	/* Each member of the group on the host gets a copy of the datagram. */
	for (; sock && siw_addr_is_group(&packet->to); sock = next) {
		struct sim_packet *copy;

		next = sim_sock_find(SIM_UDP, &packet->to, host, sock);
		if (!next)
			break;
		copy = sim_alloc(sizeof(*copy) + packet->length);
		memcpy(copy, packet, sizeof(*copy) + packet->length);
		siw_link_init(&copy->link);
		siw_link_init(&copy->aside.link);
		udp_enqueue(sock, copy);
	}
	udp_enqueue(sock, packet);
}

void sim_udp_drop_queued_packets(struct siw_llp_sock *sock)
{
	struct siw_link *lists[] = { &sock->inbox, &sock->refusals };

	for (int i = 0; i < 2; i++)
		while (!siw_link_empty(lists[i])) {
			struct sim_packet *packet =
				siw_container(lists[i]->next, struct sim_packet, link);

			siw_link_del(&packet->link);
			sim_packet_free(packet);
		}
	sock->n_inbox = sock->inbox_octets = 0;
}

static struct sim_packet *inbox_first_packet(const struct siw_llp_sock *sock)
{
	return siw_link_empty(&sock->inbox)
		       ? NULL
		       : siw_container(sock->inbox.next, struct sim_packet, link);
}

static ssize_t udp_dequeue(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
			   size_t size)
{
	struct sim_packet *packet = inbox_first_packet(sock);
	uint32_t length;

	if (!packet)
		return -EAGAIN;
	length = packet->length;
	*source = packet->from;
	memcpy(buf, packet->octets, length < size ? length : size);
	sock->got_ecn = packet->ecn;
	sim_capture_datagram(sock->host, false, &packet->from, &packet->to, packet->octets, length);
	siw_link_del(&packet->link);
	sock->n_inbox--;
	sock->inbox_octets -= length;
	sim_packet_free(packet);
	return length;
}

ssize_t siw_llp_udp_recv(struct siw_llp_sock *sock, struct siw_addr *source, void *buf, size_t size)
{
	ssize_t got = udp_dequeue(sock, source, buf, size);

	if (got == -EAGAIN && siw_link_empty(&sock->refusals))
		sim_sock_clear_ready(sock);
	return got;
}

/*
 * Returns several datagrams of one source and length in one call, as the kernel does with UDP_GRO;
 * the last datagram may be shorter.
 */
ssize_t siw_llp_udp_recv_with_gro(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
				  size_t size, uint32_t *seg)
{
	ssize_t len = siw_llp_udp_recv(sock, source, buf, size), last = len;
	bool ce = siw_llp_udp_ce_received(sock);

	*seg = len > 0 ? (uint32_t)len : 0;
	sock->streak = len >= 0 ? sock->streak + 1 : 0;
	if (sock->streak <= DENSE || len <= 0 || (size_t)len > size)
		return len;
	for (int n = 1; n < TRAIN && last == (ssize_t)*seg; n++) {
		const struct sim_packet *packet = inbox_first_packet(sock);
		struct siw_addr same;

		if (!packet || !packet->length || packet->length > *seg ||
		    (size_t)len + packet->length > size || (packet->ecn == SIM_ECN_CE) != ce ||
		    !siw_addr_same(&packet->from, source))
			break;
		last = udp_dequeue(sock, &same, (uint8_t *)buf + len, size - (size_t)len);
		len += last;
	}
	return len;
}

ssize_t siw_llp_udp_recv_in_poller_buffer(struct siw_llp_sock *sock, struct siw_addr *source,
					  uint8_t **datagram)
{
	struct siw_llp_poller *poller = sock->poller;
	uint32_t left;
	ssize_t len;

	*datagram = poller->room;
	if (!siw_llp_poller_has_more_datagrams(poller)) {
		len = siw_llp_udp_recv_with_gro(sock, source, poller->room, SIW_LLP_ROOM,
						&poller->room_seg);
		if (len <= (ssize_t)poller->room_seg)
			return len;
		poller->room_source = *source;
		poller->room_at = 0;
		poller->room_end = (uint32_t)len;
	}
	*source = poller->room_source;
	*datagram += poller->room_at;
	left = poller->room_end - poller->room_at;
	len = left < poller->room_seg ? left : poller->room_seg;
	poller->room_at += (uint32_t)len;
	return len;
}

void siw_llp_udp_enable_refusal_reports(struct siw_llp_sock *sock, uint16_t family)
{
	(void)family;
	sock->hears = true;
}

ssize_t siw_llp_udp_read_refusal(struct siw_llp_sock *sock, struct siw_addr *dest, void *buf,
				 size_t size)
{
	struct sim_packet *packet;
	size_t length;

	if (siw_link_empty(&sock->refusals))
		return -EAGAIN;
	packet = siw_container(sock->refusals.next, struct sim_packet, link);
	length = packet->length < size ? packet->length : size;
	memcpy(buf, packet->octets, length);
	*dest = packet->from;
	siw_link_del(&packet->link);
	sim_packet_free(packet);
	return (ssize_t)length;
}

/* ---- ECN, fragmentation and path MTU --------------------------------------------------------- */

int siw_llp_udp_enable_ecn(struct siw_llp_sock *sock)
{
	sock->ecn = SIM_ECN_ECT0;
	return 0;
}

bool siw_llp_udp_ce_received(const struct siw_llp_sock *sock)
{
	return sock->got_ecn == SIM_ECN_CE;
}

int siw_llp_udp_disable_fragmentation(struct siw_llp_sock *sock)
{
	sock->cut = SIM_CUT_NONE;
	return 0;
}

int siw_llp_udp_set_fragmentation_allowed(struct siw_llp_sock *sock, bool may)
{
	sock->cut = may ? SIM_CUT_ALL : SIM_CUT_PROBE;
	return 0;
}

int siw_llp_udp_path_max_payload(struct siw_llp_sock *sock, const struct siw_addr *dest)
{
	int head = (dest->family == AF_INET6 ? IPV6_HEAD : IPV4_HEAD) + UDP_HEAD;
	int most = 65535 - (dest->family == AF_INET6 ? UDP_HEAD : head);
	struct sim_host *host = sim_host_by_addr(dest);
	int mtu;

	if (sock->local.family != dest->family)
		return -EAFNOSUPPORT;
	if (!sock->host)
		return -ENETUNREACH;
	mtu = host ? (int)sim_path_known_mtu(sim_path_find_or_create(sock->host, host))
		   : (int)sock->host->netif.mtu;
	return mtu - head < most ? mtu - head : most;
}

uint32_t siw_llp_udp_route_mtu(struct siw_llp_sock *sock, const struct siw_addr *dest)
{
	struct sim_host *host = sim_host_by_addr(dest);
	uint32_t mtu;

	if (!sock->host)
		return 0;
	if (host == sock->host)
		return SIW_LLP_LOOPBACK_MTU;
	mtu = host ? sim_path_known_mtu(sim_path_find_or_create(sock->host, host))
		   : sock->host->netif.mtu;
	return mtu < SIW_LLP_LOOPBACK_MTU ? mtu : SIW_LLP_LOOPBACK_MTU - 1;
}

uint32_t siw_llp_udp_rx_buffer_size(struct siw_llp_sock *sock)
{
	(void)sock;
	return (uint32_t)siw_settings()->rcvbuf;
}
