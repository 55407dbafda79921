/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/rdmacm/rdmacm_addr.c - addresses: conversion of sockaddrs and GIDs, and rdma_getaddrinfo. */
#include <netdb.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "abi/ibverbs/abi_cancel.h"
#include "abi/rdmacm/rdmacm.h"

#include <infiniband/ib.h>

/*
 * Converts a multicast address of family AF_IB, which is a GID and therefore an IP address.
 * Programs have no other way to pass the GID of a group.
 */
static int addr_from_af_ib_multicast_sockaddr(const struct sockaddr *from, struct siw_addr *to)
{
	struct sockaddr_ib ib;

	memcpy(&ib, from, sizeof(ib));
	if (ib.sib_addr.sib_addr8[0] != 0xff)
		return EAFNOSUPPORT;
	to->family = AF_INET6;
	memcpy(to->v6, &ib.sib_addr, sizeof(to->v6));
	return 0;
}

int cm_addr_from_sockaddr(const struct sockaddr *from, struct siw_addr *to)
{
	if (!abi_is_given(from, "the socket address"))
		return EINVAL;
	memset(to, 0, sizeof(*to));
	if (from->sa_family == AF_IB)
		return addr_from_af_ib_multicast_sockaddr(from, to);
	if (from->sa_family == AF_INET)
		memcpy(to, from, offsetof(struct sockaddr_in, sin_zero));
	else if (from->sa_family == AF_INET6)
		memcpy(to, from, sizeof(struct sockaddr_in6));
	else
		return abi_refuse(EAFNOSUPPORT,
				  "the address family is %d: use AF_INET, AF_INET6 or AF_IB",
				  from->sa_family);
	/*
	 * The flow label of a sockaddr_in6 is at the offset of v4 in struct siw_addr, which must be
	 * zero for IPv6.
	 */
	if (from->sa_family == AF_INET6)
		memset(to->v4, 0, sizeof(to->v4));
	return 0;
}

bool cm_addr_is_any(const struct siw_addr *addr)
{
	static const uint8_t any[16];

	return addr->family == AF_INET ? memcmp(addr->v4, any, 4) == 0
				       : memcmp(addr->v6, any, 16) == 0;
}

bool cm_addr_is_group(const struct siw_addr *addr)
{
	return addr->family == AF_INET ? addr->v4[0] >> 4 == 14 : addr->v6[0] == 0xff;
}

bool cm_addr_is_loopback(const struct siw_addr *addr)
{
	static const uint8_t one[16] = { [15] = 1 };

	return addr->family == AF_INET ? addr->v4[0] == 127 : memcmp(addr->v6, one, 16) == 0;
}

void cm_gid_of_addr(const struct siw_addr *addr, union ibv_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	if (addr->family == AF_INET) {
		gid->raw[10] = gid->raw[11] = 0xff;
		memcpy(gid->raw + 12, addr->v4, 4);
	} else {
		memcpy(gid->raw, addr->v6, 16);
	}
}

void cm_set_route_addrs(struct cm_id *id, const struct siw_addr *source,
			const struct siw_addr *dest)
{
	struct rdma_addr *addr = &id->id.route.addr;

	if (source) {
		memcpy(&addr->src_storage, source, sizeof(*source));
		cm_gid_of_addr(source, &addr->addr.ibaddr.sgid);
	}
	if (dest) {
		memcpy(&addr->dst_storage, dest, sizeof(*dest));
		cm_gid_of_addr(dest, &addr->addr.ibaddr.dgid);
	}
	addr->addr.ibaddr.pkey = htons(ABI_PKEY);
}

const struct siw_addr *cm_source_addr(const struct cm_id *id)
{
	return (const struct siw_addr *)&id->id.route.addr.src_storage;
}

const struct siw_addr *cm_dest_addr(const struct cm_id *id)
{
	return (const struct siw_addr *)&id->id.route.addr.dst_storage;
}

__be16 rdma_get_src_port(struct rdma_cm_id *id)
{
	return cm_is_live_object(CM_ID, id) ? cm_source_addr(cm_id_of(id))->port_be : 0;
}

__be16 rdma_get_dst_port(struct rdma_cm_id *id)
{
	return cm_is_live_object(CM_ID, id) ? cm_dest_addr(cm_id_of(id))->port_be : 0;
}

/* ---- rdma_getaddrinfo ------------------------------------------------------------------------ */

static bool copy_sockaddr(const struct sockaddr *from, socklen_t len, struct sockaddr **to,
			  socklen_t *to_len)
{
	if (!from || !len)
		return true;
	*to = malloc(len);
	if (!*to)
		return false;
	memcpy(*to, from, len);
	*to_len = len;
	return true;
}

static bool copy_canonical_name(const char *from, char **to)
{
	*to = from ? strdup(from) : NULL;
	return !from || *to;
}

struct rdma_addrinfo *cm_copy_addrinfo(const struct rdma_addrinfo *from)
{
	struct rdma_addrinfo *info = calloc(1, sizeof(*info));

	if (!info)
		return NULL;
	info->ai_flags = from->ai_flags;
	info->ai_family = from->ai_family;
	info->ai_qp_type = from->ai_qp_type;
	info->ai_port_space = from->ai_port_space;
	if (copy_sockaddr(from->ai_src_addr, from->ai_src_len, &info->ai_src_addr,
			  &info->ai_src_len) &&
	    copy_sockaddr(from->ai_dst_addr, from->ai_dst_len, &info->ai_dst_addr,
			  &info->ai_dst_len) &&
	    copy_canonical_name(from->ai_src_canonname, &info->ai_src_canonname) &&
	    copy_canonical_name(from->ai_dst_canonname, &info->ai_dst_canonname))
		return info;
	rdma_freeaddrinfo(info);
	return NULL;
}

/*
 * Sets port space and queue pair type; if the hints contain only one of them, it determines the
 * other. Returns 0, or EAI_SERVICE if they contradict each other.
 */
static int addrinfo_set_port_space_and_qp_type(struct rdma_addrinfo *info,
					       const struct rdma_addrinfo *hints)
{
	int space = hints ? hints->ai_port_space : 0, type = hints ? hints->ai_qp_type : 0;

	if (!space)
		space = type == IBV_QPT_UD ? RDMA_PS_UDP : RDMA_PS_TCP;
	if (!type)
		type = space == RDMA_PS_UDP || space == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC;
	info->ai_port_space = space;
	info->ai_qp_type = type;
	return (type == IBV_QPT_UD) == (space == RDMA_PS_UDP || space == RDMA_PS_IPOIB)
		       ? 0
		       : EAI_SERVICE;
}

/*
 * Unless the hints contain a source, sets the source of an active end to the address from which
 * packets to its destination leave. Returns false if memory is exhausted.
 */
static bool addrinfo_set_source(struct rdma_addrinfo *info)
{
	struct siw_addr dest, local;

	if (info->ai_src_addr || !info->ai_dst_addr || info->ai_flags & RAI_NOROUTE)
		return true;
	if (cm_addr_from_sockaddr(info->ai_dst_addr, &dest) || siw_source_address(&dest, &local))
		return true; /* no source is returned, as the man page allows */
	return copy_sockaddr((const struct sockaddr *)&local, info->ai_dst_len, &info->ai_src_addr,
			     &info->ai_src_len);
}

/*
 * Replaces a loopback address if a passive end passes a name of this machine and no port. libfabric
 * resolves "localhost" in this way and passes the result to its peers, which cannot use a loopback
 * address.
 */
static void addrinfo_replace_loopback(struct rdma_addrinfo *info)
{
	struct siw_addr addr, first;

	if (!cm_addr_from_sockaddr(info->ai_src_addr, &addr) && cm_addr_is_loopback(&addr) &&
	    cm_first_non_loopback_addr(addr.family, &first))
		memcpy(info->ai_src_addr, &first, info->ai_src_len);
}

static struct rdma_addrinfo *addrinfo_create(const struct addrinfo *found,
					     const struct rdma_addrinfo *hints, int *why)
{
	struct rdma_addrinfo *info = calloc(1, sizeof(*info));
	bool passive = hints && hints->ai_flags & RAI_PASSIVE, ok;

	*why = EAI_MEMORY;
	if (!info)
		return NULL;
	info->ai_flags = hints ? hints->ai_flags : 0;
	ok = !hints || (copy_sockaddr(hints->ai_src_addr, hints->ai_src_len, &info->ai_src_addr,
				      &info->ai_src_len) &&
			copy_sockaddr(hints->ai_dst_addr, hints->ai_dst_len, &info->ai_dst_addr,
				      &info->ai_dst_len));
	if (ok && found) {
		struct sockaddr **to = passive ? &info->ai_src_addr : &info->ai_dst_addr;

		free(*to);
		*to = NULL;
		ok = copy_sockaddr(found->ai_addr, found->ai_addrlen, to,
				   passive ? &info->ai_src_len : &info->ai_dst_len) &&
		     copy_canonical_name(found->ai_canonname, passive ? &info->ai_src_canonname
								      : &info->ai_dst_canonname);
	}
	ok = ok && (passive || addrinfo_set_source(info));
	info->ai_family = info->ai_dst_addr   ? info->ai_dst_addr->sa_family
			  : info->ai_src_addr ? info->ai_src_addr->sa_family
					      : AF_INET;
	*why = ok ? addrinfo_set_port_space_and_qp_type(info, hints) : EAI_MEMORY;
	if (!*why)
		return info;
	rdma_freeaddrinfo(info);
	return NULL;
}

/*
 * Resolves a name to its first IP address. Programs use the first result, and request another
 * family by RAI_FAMILY.
 */
static int addrinfo_resolve(const char *node, const char *service, const struct addrinfo *wanted,
			    const struct rdma_addrinfo *hints, struct rdma_addrinfo **res)
{
	int cancel = abi_cancel_disable();
	struct addrinfo *found = NULL, *one;
	int why = getaddrinfo(node, service, wanted, &found);

	if (!why) {
		for (one = found; one && one->ai_family != AF_INET && one->ai_family != AF_INET6;)
			one = one->ai_next;
		*res = addrinfo_create(one, hints, &why);
		freeaddrinfo(found);
	}
	abi_cancel_restore(cancel);
	return why;
}

int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
		     struct rdma_addrinfo **res)
{
	struct addrinfo wanted = { .ai_socktype = SOCK_STREAM };
	int why;

	if (!abi_is_given(res, "res"))
		return cm_fail(EINVAL);
	*res = NULL;
	if (!node && !service && !hints)
		return cm_fail(abi_refuse(EINVAL, "node, service and hints are NULL: pass one"));
	if (hints && hints->ai_flags & ~(RAI_PASSIVE | RAI_NUMERICHOST | RAI_NOROUTE | RAI_FAMILY))
		return EAI_BADFLAGS;
	if (!node && !service) {
		*res = addrinfo_create(NULL, hints, &why);
		return why;
	}
	if (hints) {
		wanted.ai_flags = (hints->ai_flags & RAI_PASSIVE ? AI_PASSIVE : 0) |
				  (hints->ai_flags & RAI_NUMERICHOST ? AI_NUMERICHOST : 0);
		if (hints->ai_flags & RAI_FAMILY)
			wanted.ai_family = hints->ai_family;
	}
	if (wanted.ai_family != AF_UNSPEC && wanted.ai_family != AF_INET &&
	    wanted.ai_family != AF_INET6)
		return EAI_FAMILY;
	why = addrinfo_resolve(node, service, &wanted, hints, res);
	if (*res && !service && hints && hints->ai_flags & RAI_PASSIVE)
		addrinfo_replace_loopback(*res);
	return why;
}

void rdma_freeaddrinfo(struct rdma_addrinfo *res)
{
	while (res) {
		struct rdma_addrinfo *next = res->ai_next;

		free(res->ai_src_addr);
		free(res->ai_dst_addr);
		free(res->ai_src_canonname);
		free(res->ai_dst_canonname);
		free(res->ai_route);
		free(res->ai_connect);
		free(res);
		res = next;
	}
}

/* ---- asynchronous resolution of names (RDMACM_1.4) ------------------------------------------- */

/* The flags RAI_SA and RAI_DNS of rdma_resolve_addrinfo */
enum {
	BY_SA = 0x10,
	BY_DNS = 0x20,
};

#pragma GCC visibility push(default)
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);
#pragma GCC visibility pop

/* Converts an error code of getaddrinfo(3) to an errno value for the status of an event. */
static int errno_of_getaddrinfo_error(int why)
{
	switch (why) {
	case EAI_MEMORY:
		return ENOMEM;
	case EAI_AGAIN:
		return EAGAIN;
	case EAI_SYSTEM:
		return errno;
	case EAI_BADFLAGS:
	case EAI_FAMILY:
	case EAI_SERVICE:
		return EINVAL;
	default:
		return ENODATA;
	}
}

int rdma_resolve_addrinfo(struct rdma_cm_id *rdma_id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints)
{
	struct rdma_addrinfo wanted = { 0 }, *found = NULL;
	struct cm_id *id = cm_id_of(rdma_id);
	int why, r;

	if (!cm_is_live_object(CM_ID, rdma_id))
		return cm_fail(EINVAL);
	if (!node && !service && !hints)
		return cm_fail(abi_refuse(EINVAL, "node, service and hints are NULL: pass one"));
	if (hints)
		wanted = *hints;
	/* resolution by an InfiniBand subnet administrator is not supported */
	if (wanted.ai_flags & BY_SA)
		return cm_fail(abi_refuse(wanted.ai_flags & BY_DNS ? EINVAL : EOPNOTSUPP,
					  "there is no InfiniBand subnet administrator: omit "
					  "RAI_SA"));
	wanted.ai_flags &= ~BY_DNS;
	/*
	 * The system's resolver determines the time-out. The event is queued when the resolver has
	 * finished.
	 */
	why = rdma_getaddrinfo(node, service, hints ? &wanted : NULL, &found);
	r = siw_cm_tell(id->siw, why ? CM_EVENT_ADDRINFO_ERROR : CM_EVENT_ADDRINFO_RESOLVED,
			why ? -errno_of_getaddrinfo_error(why) : 0);
	if (r < 0) {
		rdma_freeaddrinfo(found);
		return cm_fail(-r);
	}
	rdma_freeaddrinfo(id->info);
	id->info = found;
	return cm_wait_for_result_if_synchronous(id);
}

int rdma_query_addrinfo(struct rdma_cm_id *rdma_id, struct rdma_addrinfo **info)
{
	struct cm_id *id = cm_id_of(rdma_id);

	if (!cm_is_live_object(CM_ID, rdma_id) || !abi_is_given(info, "info"))
		return cm_fail(EINVAL);
	if (!id->info)
		return cm_fail(ENODATA);
	*info = cm_copy_addrinfo(id->info);
	return *info ? 0 : cm_fail(ENOMEM);
}
