/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_addr.c - conversion between IP addresses and GIDs as in RoCE v2, where an IPv4
 * GID is ::ffff:a.b.c.d.
 */
#include <sys/socket.h>

#include "abi/ibverbs/abi.h"

static const uint8_t mapped[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };

void abi_gid_of_addr(const struct siw_addr *addr, union ibv_gid *gid)
{
	if (addr->family == AF_INET) {
		memcpy(gid->raw, mapped, sizeof(mapped));
		memcpy(gid->raw + 12, addr->v4, 4);
	} else {
		memcpy(gid->raw, addr->v6, 16);
	}
}

void abi_addr_of_gid(const struct abi_context *ctx, const union ibv_gid *gid, struct siw_addr *addr)
{
	bool group = gid->raw[0] == 0xff;
	bool v4 = memcmp(gid->raw, mapped, sizeof(mapped)) == 0;

	/* The multicast GID of an IPv4 group is ffXY::ffff:a.b.c.d (InfiniBand annex A17). */
	if (group)
		v4 = memcmp(gid->raw + 2, mapped + 2, sizeof(mapped) - 2) == 0;
	memset(addr, 0, sizeof(*addr));
	addr->family = v4 ? AF_INET : AF_INET6;
	if (v4) {
		memcpy(addr->v4, gid->raw + 12, 4);
		return;
	}
	memcpy(addr->v6, gid->raw, 16);
	if (gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80)
		addr->scope = (uint32_t)ctx->device->ifindex;
}

int abi_refresh_gids(struct abi_context *ctx)
{
	struct siw_device_info now;
	int r = siw_query_device_info(ctx->siw, &now);

	if (r < 0)
		return -r;
	pthread_mutex_lock(&ctx->lock);
	ctx->info = now;
	pthread_mutex_unlock(&ctx->lock);
	return 0;
}

bool abi_addr_of_gid_index(struct abi_context *ctx, unsigned int index, struct siw_addr *addr)
{
	bool found;

	pthread_mutex_lock(&ctx->lock);
	found = index < ctx->info.n_addrs;
	if (found)
		*addr = ctx->info.addrs[index];
	pthread_mutex_unlock(&ctx->lock);
	return found;
}

static bool gid_is_zero(const union ibv_gid *gid)
{
	static const union ibv_gid zero;

	return memcmp(gid, &zero, sizeof(zero)) == 0;
}

static const char *family_name(const struct siw_addr *addr)
{
	return addr->family == AF_INET ? "IPv4" : "IPv6";
}

int abi_ah_attr_to_addrs(struct abi_context *ctx, const struct ibv_ah_attr *attr,
			 struct siw_addr *dest, struct siw_addr *source)
{
	struct siw_addr from;

	if (ctx->forks != abi_forks)
		return ESTALE;
	if (!attr->is_global)
		return abi_refuse(EINVAL,
				  "is_global of the address vector is 0: siwarp has GIDs and no "
				  "LIDs: set is_global to 1, grh.dgid to the peer's GID, and "
				  "grh.sgid_index");
	if (!abi_is_port(attr->port_num, "port_num of the address vector"))
		return EINVAL;
	if (!abi_addr_of_gid_index(ctx, attr->grh.sgid_index, &from))
		return abi_refuse(EINVAL,
				  "grh.sgid_index is %u, and the GID table has no such entry: see "
				  "ibv_query_gid_table, or ibv_devinfo -v",
				  attr->grh.sgid_index);
	if (gid_is_zero(&attr->grh.dgid))
		return abi_refuse(EINVAL,
				  "grh.dgid of the address vector is all zero: set it to the GID "
				  "of the peer");
	abi_addr_of_gid(ctx, &attr->grh.dgid, dest);
	if (dest->family != from.family)
		return abi_refuse(EINVAL,
				  "grh.dgid is an %s GID, but grh.sgid_index %u selects an %s "
				  "GID: use an index of the same family",
				  family_name(dest), attr->grh.sgid_index, family_name(&from));
	if (source)
		*source = from;
	return 0;
}
