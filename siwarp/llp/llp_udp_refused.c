/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* llp/llp_udp_refused.c - what ICMP says of datagrams to a port that nobody has. */
#include <errno.h>
/* Before linux/errqueue.h, which lacks struct timespec otherwise. */
#include <time.h>

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "llp/llp_sock.h"

void siw_llp_udp_hear_refusals(struct siw_llp_sock *sock, uint16_t family)
{
	/* Where the kernel does not know it, nothing is heard. */
	if (family == AF_INET6)
		siw_llp_option(sock->fd, IPPROTO_IPV6, IPV6_RECVERR, 1);
	else
		siw_llp_option(sock->fd, IPPROTO_IP, IP_RECVERR, 1);
}

/* Whether the message is "port unreachable", and of a host rather than of this kernel alone. */
static bool is_refusal(struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		struct sock_extended_err said;

		if (!(c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) &&
		    !(c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR))
			continue;
		if (c->cmsg_len < CMSG_LEN(sizeof(said)))
			continue;
		memcpy(&said, CMSG_DATA(c), sizeof(said));
		return said.ee_errno == ECONNREFUSED && (said.ee_origin == SO_EE_ORIGIN_ICMP ||
							 said.ee_origin == SO_EE_ORIGIN_ICMP6);
	}
	return false;
}

ssize_t siw_llp_udp_refused(struct siw_llp_sock *sock, struct siw_addr *dest, void *buf,
			    size_t size)
{
	union {
		char octets[CMSG_SPACE(sizeof(struct sock_extended_err) +
				       sizeof(struct sockaddr_in6))];
		struct cmsghdr aligned;
	} control;
	struct iovec iov = { buf, size };
	struct msghdr msg = {
		.msg_name = dest,
		.msg_namelen = sizeof(*dest),
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.octets,
		.msg_controllen = sizeof(control.octets),
	};
	ssize_t got;

	memset(dest, 0, sizeof(*dest));
	got = siw_llp_recvmsg(sock->fd, &msg, MSG_ERRQUEUE);
	if (got < 0)
		return -errno;
	if (dest->family == AF_INET) {
		memset(dest->v6, 0, sizeof(dest->v6));
		dest->scope = 0;
	}
	return is_refusal(&msg) ? got : 0;
}
