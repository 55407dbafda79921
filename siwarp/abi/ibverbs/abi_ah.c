/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_ah.c - address handles. A struct ibv_ah is stored in the space at the start of
 * the engine's handle. Both have the same address, so that work requests with the handle are posted
 * unchanged.
 */
#include <arpa/inet.h>
#include <netinet/ip.h>
#include <sys/socket.h>

#include "abi/ibverbs/abi.h"

/* Offset of the IPv4 header of RoCE v2 within the space for a GRH (InfiniBand annex A17). */
#define IPV4_AT 20

/*
 * rsockets addresses its own port by an address vector without a GID and with LID 0. If pd is used
 * by rdma_cm ids, stores an address vector with the device's first GID in *out instead. Returns
 * false for any other address vector, and for a protection domain that the program has allocated,
 * because Ethernet adapters refuse an address vector without a GID.
 */
static bool ah_attr_fill_own_port_gid(const struct ibv_pd *pd, const struct ibv_ah_attr *attr,
				      struct ibv_ah_attr *out)
{
	if (attr->is_global || attr->dlid || !((const struct abi_pd *)pd)->of_ids)
		return false;
	*out = (struct ibv_ah_attr){ .is_global = 1, .port_num = attr->port_num };
	return ibv_query_gid(pd->context, ABI_PORT, 0, &out->grh.dgid) == 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct siw_addr dest, source;
	struct ibv_ah_attr own;
	struct siw_ah *siw;
	struct ibv_ah *ah;
	int why;

	if (!abi_is_live_object(ABI_PD, pd) || !abi_is_given(attr, "attr"))
		return abi_fail_null(EINVAL);
	if (ah_attr_fill_own_port_gid(pd, attr, &own))
		attr = &own;
	why = abi_ah_attr_to_addrs(abi_context_of(pd->context), attr, &dest, &source);
	if (why)
		return abi_fail_null(why);
	siw = siw_create_ah_from(((struct abi_pd *)pd)->siw, &dest, &source);
	if (!siw)
		return abi_fail_null(errno);
	ah = siw_ah_room(siw);
	ah->context = pd->context;
	ah->pd = pd;
	ah->handle = 0;
	if (abi_register_handle(ABI_AH, ah, pd->context))
		return ah;
	siw_destroy_ah(siw);
	return abi_fail_null(ENOMEM);
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	struct ibv_context *context;
	struct ibv_pd *pd;
	int r;

	if (!abi_is_live_object(ABI_AH, ah))
		return abi_fail(EINVAL);
	context = ah->context;
	pd = ah->pd;
	/* The handle must be marked dead before its memory can be reused for another handle. */
	abi_mark_object_dead(ABI_AH, ah);
	r = siw_destroy_ah((struct siw_ah *)ah);
	if (r < 0) {
		ah->context = context;
		ah->pd = pd;
		abi_register_handle(ABI_AH, ah, context);
	}
	return abi_errno_of_result(r);
}

/*
 * Derives the reverse path from the GRH of a received RoCE v2 message, by exchanging the GIDs. The
 * GRH is an IPv6 header, or contains an IPv4 header in its second half.
 */
static bool derive_reverse_path_from_grh(const struct ibv_grh *grh, union ibv_gid *own,
					 struct ibv_global_route *back)
{
	const uint8_t *octets = (const uint8_t *)grh;
	struct siw_addr from = { .family = AF_INET }, to = { .family = AF_INET };
	struct iphdr ip;

	if (octets[0] >> 4 == 6) {
		uint32_t first = ntohl(grh->version_tclass_flow);

		back->dgid = grh->sgid;
		back->flow_label = first & 0xfffff;
		back->traffic_class = (uint8_t)(first >> 20);
		back->hop_limit = grh->hop_limit;
		*own = grh->dgid;
		return true;
	}
	memcpy(&ip, octets + IPV4_AT, sizeof(ip));
	if (ip.version != 4)
		return false;
	memcpy(from.v4, &ip.saddr, 4);
	memcpy(to.v4, &ip.daddr, 4);
	abi_gid_of_addr(&from, &back->dgid);
	abi_gid_of_addr(&to, own);
	back->traffic_class = ip.tos;
	back->hop_limit = ip.ttl;
	return true;
}

/*
 * Returns the index of a GID in the GID table. If the GID is not in the table, such as a multicast
 * GID, returns the index of the first GID of the same family, or -1 if there is none.
 */
static int gid_index_or_same_family(struct abi_context *ctx, const union ibv_gid *gid)
{
	struct siw_addr wanted, one;
	int same_family = -1;
	union ibv_gid own;

	abi_addr_of_gid(ctx, gid, &wanted);
	for (unsigned int i = 0; abi_addr_of_gid_index(ctx, i, &one); i++) {
		abi_gid_of_addr(&one, &own);
		if (memcmp(&own, gid, sizeof(own)) == 0)
			return (int)i;
		if (same_family < 0 && one.family == wanted.family)
			same_family = (int)i;
	}
	return same_family;
}

int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc,
			struct ibv_grh *grh, struct ibv_ah_attr *ah_attr)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = port_num };
	union ibv_gid own;
	int index;

	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_port(port_num, "port_num") ||
	    !abi_is_given(wc, "wc") || !abi_is_given(ah_attr, "ah_attr") ||
	    abi_context_of(context)->forks != abi_forks)
		goto refuse;
	if (!(wc->wc_flags & IBV_WC_GRH) || !grh ||
	    !derive_reverse_path_from_grh(grh, &own, &attr.grh)) {
		abi_refuse(EINVAL, "the completion has no GRH, and siwarp has no LIDs: pass the "
				   "completion of a UD receive, and the first 40 octets of its "
				   "buffer as grh");
		goto refuse;
	}
	index = gid_index_or_same_family(abi_context_of(context), &own);
	if (index < 0) {
		abi_refuse(EINVAL, "the device has no address of the family of the GRH");
		goto refuse;
	}
	attr.sl = wc->sl;
	attr.grh.sgid_index = (uint8_t)index;
	*ah_attr = attr;
	return 0;
refuse:
	abi_fail(EINVAL);
	return -1;
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
				     uint8_t port_num)
{
	struct ibv_ah_attr attr;

	if (!abi_is_live_object(ABI_PD, pd))
		return abi_fail_null(EINVAL);
	if (ibv_init_ah_from_wc(pd->context, port_num, wc, grh, &attr))
		return NULL;
	return ibv_create_ah(pd, &attr);
}

int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr,
				uint8_t eth_mac[ETHERNET_LL_SIZE], uint16_t *vid)
{
	struct siw_addr dest;
	int why;

	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_given(attr, "attr") ||
	    !abi_is_given(eth_mac, "eth_mac"))
		return -abi_fail(EINVAL);
	why = abi_ah_attr_to_addrs(abi_context_of(context), attr, &dest, NULL);
	if (why)
		return -abi_fail(why);
	/*
	 * The kernel resolves MAC addresses when it sends, and programs never see Ethernet frames.
	 */
	memset(eth_mac, 0, ETHERNET_LL_SIZE);
	if (vid)
		*vid = 0xffff; /* no VLAN */
	return 0;
}
