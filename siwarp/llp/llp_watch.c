/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* llp/llp_watch.c - reports changes of a network interface (rtnetlink(7)). */
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>

#include "llp/llp_sock.h"

#define MAX_FORGOTTEN 65536 /* limit of discarded messages: more than a socket buffer holds */

struct siw_llp_watch {
	struct siw_llp_sock *sock;
	/* index of the watched interface; 0: the interface does not exist now */
	unsigned int index;
	char name[IF_NAMESIZE];
};

static int open_netlink(void)
{
	struct sockaddr_nl nl = {
		.nl_family = AF_NETLINK,
		.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR,
	};
	int err, fd;

	siw_llp_fd_creation_begin();
	fd = siw_llp_fd_creation_done(
		socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE));
	if (fd < 0 || !bind(fd, (const struct sockaddr *)&nl, sizeof(nl)))
		return fd;
	err = -errno;
	siw_llp_fd_close(fd);
	return err;
}

int siw_llp_interface_watch_open(struct siw_llp_poller *poller, const char *name,
				 struct siw_io_handler *handler, struct siw_llp_watch **out)
{
	struct siw_llp_watch *watch = calloc(1, sizeof(*watch));
	int err, fd;

	if (!watch)
		return -ENOMEM;
	fd = open_netlink();
	if (fd < 0) {
		free(watch);
		return fd;
	}
	err = siw_llp_sock_new(poller, fd, SIW_LLP_WATCHER, handler, &watch->sock);
	if (err) {
		siw_llp_fd_close(fd);
		free(watch);
		return err;
	}
	strncpy(watch->name, name, sizeof(watch->name) - 1);
	watch->index = if_nametoindex(watch->name);
	*out = watch;
	return 0;
}

void siw_llp_interface_watch_close(struct siw_llp_watch *watch)
{
	siw_llp_close(watch->sock);
	free(watch);
}

/*
 * Returns whether a link message is about an interface with the watched name. The interface may
 * have been created after the watch was opened.
 */
static bool is_message_about_watched_interface(const struct siw_llp_watch *watch,
					       const struct nlmsghdr *msg)
{
	const struct ifinfomsg *info = NLMSG_DATA(msg);
	const struct rtattr *attr = IFLA_RTA(info);
	int left = (int)IFLA_PAYLOAD(msg);

	for (; RTA_OK(attr, left); attr = RTA_NEXT(attr, left))
		if (attr->rta_type == IFLA_IFNAME)
			return !strncmp(RTA_DATA(attr), watch->name, RTA_PAYLOAD(attr));
	return false;
}

static int interface_change_from_link_message(struct siw_llp_watch *watch,
					      const struct nlmsghdr *msg)
{
	const struct ifinfomsg *info = NLMSG_DATA(msg);

	if (msg->nlmsg_len < NLMSG_LENGTH(sizeof(*info)) || info->ifi_family == AF_BRIDGE)
		return 0;
	if (!watch->index && msg->nlmsg_type == RTM_NEWLINK &&
	    is_message_about_watched_interface(watch, msg))
		watch->index = (unsigned int)info->ifi_index;
	if ((unsigned int)info->ifi_index != watch->index)
		return 0;
	if (msg->nlmsg_type == RTM_DELLINK) {
		watch->index = 0;
		return SIW_LLP_WATCH_DOWN;
	}
	return (info->ifi_flags & IFF_UP) && (info->ifi_flags & IFF_RUNNING) ? SIW_LLP_WATCH_UP
									     : SIW_LLP_WATCH_DOWN;
}

static int interface_change_from_message(struct siw_llp_watch *watch, const struct nlmsghdr *msg)
{
	const struct ifaddrmsg *addr = NLMSG_DATA(msg);

	switch (msg->nlmsg_type) {
	case RTM_NEWLINK:
	case RTM_DELLINK:
		return interface_change_from_link_message(watch, msg);
	case RTM_NEWADDR:
	case RTM_DELADDR:
		return msg->nlmsg_len >= NLMSG_LENGTH(sizeof(*addr)) &&
				       addr->ifa_index == watch->index
			       ? SIW_LLP_WATCH_ADDRS
			       : 0;
	default:
		return 0;
	}
}

/*
 * Discards the queued messages. The queued messages are older than the messages that the kernel
 * dropped, and report an outdated state. Reading the interface's state afterwards yields at least
 * the state of the newest message.
 */
static void discard_queued_messages(struct siw_llp_watch *watch)
{
	char some[64];

	for (int i = 0; i < MAX_FORGOTTEN; i++)
		if (siw_llp_recvfrom(watch->sock->fd, some, sizeof(some), 0, NULL, NULL) < 0 &&
		    errno != ENOBUFS && errno != EINTR)
			return;
}

int siw_llp_interface_watch_read(struct siw_llp_watch *watch)
{
	union {
		struct nlmsghdr first;
		char octets[16384];
	} buf;
	int tries = 0;

	/* At most 64 messages are read per call, because most may be about other interfaces. */
	while (tries++ < 64) {
		ssize_t len =
			siw_llp_recvfrom(watch->sock->fd, &buf, sizeof(buf), MSG_TRUNC, NULL, NULL);

		if (len < 0 && errno == EINTR)
			continue;
		if (len < 0 && errno == ENOBUFS) {
			discard_queued_messages(watch);
			return SIW_LLP_WATCH_LOST;
		}
		if (len < 0) {
			siw_llp_sock_note_empty(watch->sock);
			return 0;
		}
		/*
		 * The kernel sends these messages one at a time, so the rest of a longer datagram
		 * is ignored.
		 */
		if ((size_t)len <= sizeof(buf) && NLMSG_OK(&buf.first, (size_t)len)) {
			int news = interface_change_from_message(watch, &buf.first);

			if (news)
				return news;
		}
	}
	siw_llp_sock_resume(watch->sock);
	return 0;
}
