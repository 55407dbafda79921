/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* llp/llp_if.c - the interfaces of this host, and its address towards a destination. */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cancel.h"
#include "llp/llp_sock.h"

#define N_ADDRS (sizeof(((struct siw_llp_interface *)0)->addrs) / sizeof(struct siw_addr))

/*
 * Returns the entry of ifa's interface, or NULL if the array is full. An IPv4 alias such as
 * "eth0:1" belongs to eth0.
 */
static struct siw_llp_interface *find_or_add_interface_entry(struct siw_llp_interface *out, int *n,
							     int max, const struct ifaddrs *ifa)
{
	size_t len = strcspn(ifa->ifa_name, ":");
	struct siw_llp_interface *i = out;

	if (len >= sizeof(i->name))
		return NULL;
	for (; i < out + *n; i++)
		if (strncmp(i->name, ifa->ifa_name, len) == 0 && !i->name[len])
			return i;
	if (*n == max)
		return NULL;
	memset(i, 0, sizeof(*i));
	memcpy(i->name, ifa->ifa_name, len);
	i->up = (ifa->ifa_flags & IFF_UP) && (ifa->ifa_flags & IFF_RUNNING);
	++*n;
	return i;
}

static void interface_add_addr(struct siw_llp_interface *i, const struct sockaddr *from, size_t len)
{
	struct siw_addr *a;

	if (i->n_addrs == N_ADDRS)
		return;
	a = &i->addrs[i->n_addrs++];
	memcpy(a, from, len);
	a->port_be = 0;
}

static int read_interface_mtus(struct siw_llp_interface *out, int n)
{
	int fd = siw_llp_open_socket_descriptor(AF_INET, SOCK_DGRAM);

	if (fd == -EAFNOSUPPORT)
		fd = siw_llp_open_socket_descriptor(AF_INET6, SOCK_DGRAM);
	if (fd < 0)
		return fd;
	for (int i = 0; i < n; i++) {
		struct ifreq req = { 0 };

		memcpy(req.ifr_name, out[i].name, sizeof(out[i].name));
		/* An interface that has disappeared meanwhile has no MTU and is not up. */
		if (ioctl(fd, SIOCGIFMTU, &req) == 0)
			out[i].mtu = (uint32_t)req.ifr_mtu;
		else
			out[i].up = 0;
	}
	siw_llp_fd_close(fd);
	return 0;
}

int siw_llp_list_interfaces(struct siw_llp_interface *out, int max)
{
	static const struct {
		sa_family_t family;
		size_t len;
	} pass[] = {
		{ AF_UNSPEC, 0 }, /* the first pass creates the entries, in the system's order */
		{ AF_INET, sizeof(struct sockaddr_in) },
		{ AF_INET6, sizeof(struct sockaddr_in6) },
	};
	struct ifaddrs *all;
	int n = 0, rv, cancel = siw_cancel_disable();

	rv = getifaddrs(&all) ? -errno : 0;
	siw_cancel_restore(cancel);
	if (rv)
		return rv;
	for (size_t p = 0; p < sizeof(pass) / sizeof(pass[0]); p++) {
		for (const struct ifaddrs *ifa = all; ifa; ifa = ifa->ifa_next) {
			sa_family_t family = ifa->ifa_addr ? ifa->ifa_addr->sa_family : AF_UNSPEC;
			struct siw_llp_interface *i;

			if (family != AF_INET && family != AF_INET6)
				continue;
			if (pass[p].family && pass[p].family != family)
				continue;
			i = find_or_add_interface_entry(out, &n, max, ifa);
			if (i && pass[p].family)
				interface_add_addr(i, ifa->ifa_addr, pass[p].len);
		}
	}
	freeifaddrs(all);
	rv = read_interface_mtus(out, n);
	return rv < 0 ? rv : n;
}

int siw_llp_source_addr_for_dest(const struct siw_addr *dest, struct siw_addr *source)
{
	struct siw_addr to = *dest;
	socklen_t len = sizeof(*source);
	int fd = siw_llp_open_socket_descriptor(dest->family, SOCK_DGRAM), err;

	if (fd < 0)
		return fd;
	if (!to.port_be)
		to.port_be = htons(9); /* any port will do, because nothing is sent */
	memset(source, 0, sizeof(*source));
	/* Connecting a UDP socket sends nothing, and selects the source address. */
	err = siw_llp_connect(fd, &to);
	if (!err && getsockname(fd, (struct sockaddr *)source, &len))
		err = -errno;
	source->port_be = 0;
	siw_llp_fd_close(fd);
	return err;
}
