/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_udp_path.c - the maximum size of an unfragmented datagram on a path, fragmentation and
 * ECN.
 */
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/addr.h"
#include "llp/llp_sock.h"

#define IPV4_HEAD 20
#define IPV6_HEAD 40
#define UDP_HEAD  8

/*
 * Sets the mode of path MTU discovery. The values IP_PMTUDISC_... equal IPV6_PMTUDISC_... . DO sets
 * "don't fragment", DONT allows fragmentation.
 */
static int set_mtu_discovery(struct siw_llp_sock *sock, uint16_t family, int how)
{
	if (family == AF_INET6)
		return siw_llp_set_socket_option(sock->fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, how);
	return siw_llp_set_socket_option(sock->fd, IPPROTO_IP, IP_MTU_DISCOVER, how);
}

int siw_llp_udp_disable_fragmentation(struct siw_llp_sock *sock)
{
	struct siw_addr local;
	int r = siw_llp_local_addr(sock, &local);

	return r ? r : set_mtu_discovery(sock, local.family, IP_PMTUDISC_DO);
}

int siw_llp_udp_set_ecn(struct siw_llp_sock *sock, int ecn)
{
	struct siw_addr local;
	int r = siw_llp_local_addr(sock, &local), was = 0, level, name;
	socklen_t len = sizeof(was);

	if (r)
		return r;
	level = local.family == AF_INET6 ? IPPROTO_IPV6 : IPPROTO_IP;
	name = local.family == AF_INET6 ? IPV6_TCLASS : IP_TOS;
	/* The DSCP is kept: the program may have set one on a socket of its own. */
	if (getsockopt(sock->fd, level, name, &was, &len))
		return -errno;
	return siw_llp_set_socket_option(sock->fd, level, name, (was & ~SIW_LLP_ECN_MASK) | ecn);
}

int siw_llp_udp_enable_ecn(struct siw_llp_sock *sock)
{
	struct siw_addr local;
	int r = siw_llp_udp_set_ecn(sock, SIW_LLP_ECN_ECT0);

	if (r == 0)
		r = siw_llp_local_addr(sock, &local);
	if (r < 0)
		return r;
	if (local.family == AF_INET6)
		r = siw_llp_set_socket_option(sock->fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
	else
		r = siw_llp_set_socket_option(sock->fd, IPPROTO_IP, IP_RECVTOS, 1);
	atomic_store_explicit(&sock->ecn, r == 0, memory_order_relaxed);
	return r;
}

int siw_llp_udp_set_fragmentation_allowed(struct siw_llp_sock *sock, bool may)
{
	struct siw_addr local;
	int r = siw_llp_local_addr(sock, &local);

	return r ? r
		 : set_mtu_discovery(sock, local.family,
				     may ? IP_PMTUDISC_DONT : IP_PMTUDISC_PROBE);
}

int siw_llp_udp_send_fragmented(struct siw_llp_sock *sock, const struct siw_addr *dest,
				const struct iovec *iov, int n)
{
	int r = set_mtu_discovery(sock, dest->family, IP_PMTUDISC_DONT);

	if (r)
		return r;
	r = siw_llp_udp_send(sock, dest, iov, n);
	set_mtu_discovery(sock, dest->family, IP_PMTUDISC_DO);
	return r;
}

/* Connects fd to dest and returns the kernel's path MTU in octets, or -errno. */
static int connect_and_get_path_mtu(int fd, const struct siw_addr *dest)
{
	socklen_t len = sizeof(int);
	int mtu, r;

	r = siw_llp_connect(fd, dest);
	if (r)
		return r;
	if (dest->family == AF_INET6)
		r = getsockopt(fd, IPPROTO_IPV6, IPV6_MTU, &mtu, &len);
	else
		r = getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &len);
	return r ? -errno : mtu;
}

static int query_path_mtu(int fd, const struct siw_addr *local, const struct siw_addr *dest)
{
	struct siw_addr from = *local;

	from.port_be = 0;
	if (bind(fd, (const struct sockaddr *)&from, siw_addr_len(&from)))
		return -errno;
	return connect_and_get_path_mtu(fd, dest);
}

/* Returns whether the address belongs to this host: only then can a socket be bound to it. */
static bool is_address_of_this_host(const struct siw_addr *addr)
{
	struct siw_addr at = *addr;
	int fd = siw_llp_open_socket_descriptor(addr->family, SOCK_DGRAM), r;

	if (fd < 0)
		return false;
	at.port_be = 0;
	r = bind(fd, (const struct sockaddr *)&at, siw_addr_len(&at));
	siw_llp_fd_close(fd);
	return !r;
}

uint32_t siw_llp_udp_route_mtu(struct siw_llp_sock *sock, const struct siw_addr *dest)
{
	struct siw_addr local;
	int fd, mtu;

	if (siw_llp_local_addr(sock, &local))
		return 0;
	fd = siw_llp_open_socket_descriptor(dest->family, SOCK_DGRAM);
	if (fd < 0)
		return 0;
	mtu = query_path_mtu(fd, &local, dest);
	siw_llp_fd_close(fd);
	if (mtu >= SIW_LLP_LOOPBACK_MTU && !is_address_of_this_host(dest))
		return SIW_LLP_LOOPBACK_MTU - 1;
	return mtu > 0 ? (uint32_t)mtu : 0;
}

uint32_t siw_llp_udp_rx_buffer_size(struct siw_llp_sock *sock)
{
	int rcvbuf = 0;
	socklen_t len = sizeof(rcvbuf);

	/* SO_RCVBUF includes the kernel's overhead; half of it is for payload (socket(7)). */
	if (getsockopt(sock->fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, &len))
		return 0;
	return (uint32_t)rcvbuf / 2;
}

int siw_llp_udp_path_max_payload(struct siw_llp_sock *sock, const struct siw_addr *dest)
{
	int head = (dest->family == AF_INET6 ? IPV6_HEAD : IPV4_HEAD) + UDP_HEAD;
	/* A datagram is limited by a 16-bit length, which over IPv4 includes the IP header. */
	int most = 65535 - (dest->family == AF_INET6 ? UDP_HEAD : head);
	struct siw_addr local;
	int fd, r = siw_llp_local_addr(sock, &local);

	if (r)
		return r;
	if (local.family != dest->family)
		return -EAFNOSUPPORT;
	fd = siw_llp_open_socket_descriptor(dest->family, SOCK_DGRAM);
	if (fd < 0)
		return fd;
	r = query_path_mtu(fd, &local, dest);
	siw_llp_fd_close(fd);
	if (r < 0)
		return r;
	return r - head < most ? r - head : most;
}
