/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* llp/llp_group.c - multicast: sockets that are members of a group, and sending to groups. */
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/settings.h"
#include "llp/llp_sock.h"

#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif
#ifndef IP_MULTICAST_ALL
#define IP_MULTICAST_ALL 49
#endif

/*
 * Looks up an interface's index. The function uses an existing socket, because if_nametoindex()
 * opens its own and does not report why that failed.
 */
static int look_up_interface_index(int fd, const char *netdev, uint32_t *ifindex)
{
	struct ifreq request = { 0 };

	strncpy(request.ifr_name, netdev, sizeof(request.ifr_name) - 1);
	if (ioctl(fd, SIOCGIFINDEX, &request))
		return -errno;
	*ifindex = (uint32_t)request.ifr_ifindex;
	return 0;
}

/*
 * Joins the group on the interface. With IP_MULTICAST_ALL off, datagrams of groups that only other
 * sockets joined are not received.
 */
static int join_ipv4_mcast_group(int fd, const struct siw_addr *group, uint32_t ifindex)
{
	struct ip_mreqn member = { .imr_ifindex = (int)ifindex };
	int rv = siw_llp_set_socket_option(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);

	if (rv < 0)
		return rv;
	memcpy(&member.imr_multiaddr, group->v4, sizeof(group->v4));
	return setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &member, sizeof(member)) ? -errno : 0;
}

static int join_ipv6_mcast_group(int fd, const struct siw_addr *group, uint32_t ifindex)
{
	struct ipv6_mreq member = { .ipv6mr_interface = ifindex };

	memcpy(&member.ipv6mr_multiaddr, group->v6, sizeof(group->v6));
	return setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &member, sizeof(member)) ? -errno : 0;
}

/* Binds the socket to the group's address and joins the group. Returns 0 or -errno. */
static int mcast_group_join(int fd, const struct siw_addr *group, uint32_t ifindex)
{
	struct siw_addr local = *group;
	int rv;

	siw_llp_udp_set_buffer_sizes(fd);
	rv = siw_llp_set_socket_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	if (rv == 0 && group->family == AF_INET6) {
		local.scope = ifindex;
		rv = siw_llp_set_socket_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
		/*
		 * IPv6 delivers a copy to every member of the group, whatever the interface on
		 * which the datagram arrived.
		 */
		if (rv == 0)
			rv = siw_llp_set_socket_option(fd, SOL_SOCKET, SO_BINDTOIFINDEX,
						       (int)ifindex);
		/* without privilege the socket is not bound to the interface: see llp.h */
		if (rv == -EPERM)
			rv = 0;
	}
	if (rv == 0 && bind(fd, (const struct sockaddr *)&local, siw_addr_len(&local)))
		rv = -errno;
	if (rv < 0)
		return rv;
	return group->family == AF_INET ? join_ipv4_mcast_group(fd, group, ifindex)
					: join_ipv6_mcast_group(fd, group, ifindex);
}

int siw_llp_udp_open_group_member(struct siw_llp_poller *poller, const struct siw_addr *group,
				  const char *netdev, struct siw_io_handler *handler,
				  struct siw_llp_sock **out)
{
	uint32_t ifindex = 0;
	int rv, fd;

	if (!siw_addr_is_group(group))
		return -EINVAL;
	fd = siw_llp_open_socket_descriptor(group->family, SOCK_DGRAM);
	if (fd < 0)
		return fd;
	rv = look_up_interface_index(fd, netdev, &ifindex);
	if (rv == 0)
		rv = mcast_group_join(fd, group, ifindex);
	if (rv == 0)
		rv = siw_llp_sock_new(poller, fd, SIW_LLP_UDP, handler, out);
	if (rv == 0)
		(*out)->ifindex = ifindex;
	else
		siw_llp_fd_close(fd);
	return rv;
}

static int set_ipv4_mcast_send_options(int fd, uint32_t ifindex, int ttl)
{
	struct ip_mreqn by = { .imr_ifindex = (int)ifindex };
	int rv = setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof(by)) ? -errno : 0;

	if (rv == 0)
		rv = siw_llp_set_socket_option(fd, IPPROTO_IP, IP_MULTICAST_TTL, ttl);
	return rv ? rv : siw_llp_set_socket_option(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 1);
}

static int set_ipv6_mcast_send_options(int fd, uint32_t ifindex, int ttl)
{
	int rv = siw_llp_set_socket_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, (int)ifindex);

	if (rv == 0)
		rv = siw_llp_set_socket_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, ttl);
	return rv ? rv : siw_llp_set_socket_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1);
}

int siw_llp_udp_enable_multicast_sending(struct siw_llp_sock *sock, const char *netdev, int ttl)
{
	struct siw_addr local;
	uint32_t ifindex = 0;
	int rv = look_up_interface_index(sock->fd, netdev, &ifindex);

	if (rv == 0)
		rv = siw_llp_local_addr(sock, &local);
	if (rv < 0)
		return rv;
	return local.family == AF_INET ? set_ipv4_mcast_send_options(sock->fd, ifindex, ttl)
				       : set_ipv6_mcast_send_options(sock->fd, ifindex, ttl);
}
