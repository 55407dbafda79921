/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_port.c - properties of a device and its port: limits, state, GIDs and the P_Key.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "abi/ibverbs/abi.h"
#include "abi/ibverbs/abi_cancel.h"

#define PHYS_LINK_UP	    5 /* physical state of a port, InfiniBand section 14.2.5.6 */
#define PHYS_DISABLED	    3
#define GRH_REQUIRED	    1  /* in ibv_port_attr.flags: every address vector needs a GID */
#define COMPAT_PORT_SIZE    48 /* octets that the exported function ibv_query_port writes */
#define SPEED_PER_LANE_MBPS 10000
#define ODP_UD		    (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV)
#define ODP_UC		    (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE)
#define ODP_RC		    (ODP_UD | ODP_UC | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC)
#define NANOSECONDS_KHZ	    1000000 /* frequency of the time stamp clock, in kHz */

/*
 * rdma-core after release 44 has active_speed_ex in struct ibv_port_attr, with the same code as
 * active_speed.
 */
union port_attr {
	struct ibv_port_attr attr;
	uint32_t words[14];
};
#define ACTIVE_SPEED_EX 13 /* index of active_speed_ex in the array `words` */

_Static_assert(sizeof(union port_attr) == 56, "ibv_port_attr");
_Static_assert(offsetof(struct ibv_port_attr, port_cap_flags2) == COMPAT_PORT_SIZE,
	       "ibv_port_attr");

static enum ibv_mtu mtu_code_of_octets(uint32_t octets)
{
	enum ibv_mtu mtu = IBV_MTU_256;

	while (mtu < IBV_MTU_4096 && (256u << mtu) <= octets)
		mtu++;
	return mtu;
}

long abi_interface_mbps(const char *netdev)
{
	char path[64], text[16] = "";
	int cancel = abi_cancel_disable();
	long mbps = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/net/%s/speed", netdev);
	file = fopen(path, "re");
	if (file) {
		if (fgets(text, sizeof(text), file))
			mbps = strtol(text, NULL, 10);
		fclose(file);
	}
	abi_cancel_restore(cancel);
	return mbps > 0 ? mbps : SPEED_PER_LANE_MBPS;
}

/* Sets the width and the speed per lane, which are codes of ibv_query_port(3). */
static void port_attr_set_width_and_speed(struct ibv_port_attr *attr, long mbps)
{
	static const struct {
		long mbps;
		uint8_t width, speed;
	} rates[] = {
		{ 2500, 1, 1 },	   { 5000, 1, 2 },     { 10000, 1, 4 },	 { 14000, 1, 16 },
		{ 25000, 1, 32 },  { 40000, 2, 4 },    { 50000, 1, 64 }, { 100000, 2, 32 },
		{ 200000, 2, 64 }, { 400000, 2, 128 },
	};
	const unsigned int last = sizeof(rates) / sizeof(rates[0]) - 1;
	unsigned int i = 0;

	while (i < last && rates[i].mbps < mbps)
		i++;
	attr->active_width = rates[i].width;
	attr->active_speed = rates[i].speed;
}

static void fill_port_attr(const struct siw_device_info *info, uint32_t max_msg,
			   struct ibv_port_attr *attr)
{
	*attr = (struct ibv_port_attr){
		.state = info->up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN,
		.max_mtu = IBV_MTU_4096,
		.active_mtu = mtu_code_of_octets(info->mtu),
		.gid_tbl_len = ABI_GIDS,
		.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
		.max_msg_sz = max_msg,
		.pkey_tbl_len = 1,
		.max_vl_num = 1,
		.phys_state = info->up ? PHYS_LINK_UP : PHYS_DISABLED,
		.link_layer = IBV_LINK_LAYER_ETHERNET,
		.flags = GRH_REQUIRED,
	};
	port_attr_set_width_and_speed(attr, abi_interface_mbps(info->netdev));
}

int abi_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr,
		   size_t size)
{
	struct siw_device_attr limits;
	struct siw_device_info info;
	union port_attr port = { .words = { 0 } };
	struct abi_context *ctx;
	int r;

	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_port(port_num, "port_num") ||
	    !abi_is_given(attr, "port_attr"))
		return abi_fail(EINVAL);
	ctx = abi_context_of(context);
	r = siw_query_device(ctx->siw, &limits);
	if (r == 0)
		r = -abi_refresh_gids(ctx);
	if (r < 0)
		return abi_errno_of_result(r);
	pthread_mutex_lock(&ctx->lock);
	info = ctx->info;
	pthread_mutex_unlock(&ctx->lock);
	fill_port_attr(&info, limits.max_rc_msg, &port.attr);
	port.words[ACTIVE_SPEED_EX] = port.attr.active_speed;
	/*
	 * The struct ibv_port_attr of newer programs is longer, and that of older programs is
	 * shorter.
	 */
	memset(attr, 0, size);
	memcpy(attr, &port, size < sizeof(port) ? size : sizeof(port));
	return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port_num,
		   struct _compat_ibv_port_attr *attr)
{
	return abi_query_port(context, port_num, (struct ibv_port_attr *)attr, COMPAT_PORT_SIZE);
}

static int clamp_to_int(uint64_t limit)
{
	return limit < INT32_MAX ? (int)limit : INT32_MAX;
}

/* A 24-bit OUI that no vendor has. Programs interpret 0 as a failed query. */
#define NO_VENDOR 0xffffff

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	struct siw_device_attr limits;
	struct abi_context *ctx;
	int r;

	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_given(attr, "device_attr"))
		return abi_fail(EINVAL);
	ctx = abi_context_of(context);
	r = siw_query_device(ctx->siw, &limits);
	if (r < 0)
		return abi_errno_of_result(r);
	*attr = (struct ibv_device_attr){
		.node_guid = ctx->device->guid_be,
		.sys_image_guid = ctx->device->guid_be,
		.max_mr_size = limits.max_mr_size,
		.page_size_cap = ~0xfffull,
		.vendor_id = NO_VENDOR,
		.hw_ver = 1,
		.max_qp = clamp_to_int(limits.max_qp),
		.max_qp_wr = clamp_to_int(limits.max_qp_wr),
		.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_PORT_ACTIVE_EVENT |
				    IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN |
				    IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_MEM_WINDOW |
				    IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_MEM_WINDOW_TYPE_2B,
		.max_sge = clamp_to_int(limits.max_sge),
		.max_sge_rd = clamp_to_int(limits.max_sge),
		.max_cq = clamp_to_int(limits.max_cq),
		.max_cqe = clamp_to_int(limits.max_cqe),
		.max_mr = clamp_to_int(limits.max_mr),
		.max_pd = clamp_to_int(limits.max_pd),
		.max_qp_rd_atom = clamp_to_int(limits.max_qp_rd_atom),
		.max_res_rd_atom = clamp_to_int((uint64_t)limits.max_qp * limits.max_qp_rd_atom),
		.max_qp_init_rd_atom = clamp_to_int(limits.max_qp_init_rd_atom),
		.atomic_cap = (enum ibv_atomic_cap)limits.atomic_cap,
		.max_mw = clamp_to_int(limits.max_mw),
		.max_mcast_grp = clamp_to_int(limits.max_qp),
		.max_mcast_qp_attach = clamp_to_int(limits.max_qp),
		.max_total_mcast_qp_attach = clamp_to_int(limits.max_qp),
		.max_ah = clamp_to_int(limits.max_ah),
		.max_srq = clamp_to_int(limits.max_srq),
		.max_srq_wr = clamp_to_int(limits.max_srq_wr),
		.max_srq_sge = clamp_to_int(limits.max_srq_sge),
		.max_pkeys = 1,
		.phys_port_cnt = 1,
	};
	snprintf(attr->fw_ver, sizeof(attr->fw_ver), "%s", siw_version());
	return 0;
}

int abi_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			struct ibv_device_attr_ex *attr, size_t size)
{
	struct ibv_device_attr_ex full = {
		/*
		 * No region is pinned, so every region is paged on demand. Implicit ODP (the
		 * complete address space) is not supported.
		 */
		.odp_caps = { .general_caps = IBV_ODP_SUPPORT,
			      .per_transport_caps = { ODP_RC, ODP_UC, ODP_UD } },
		.completion_timestamp_mask = UINT64_MAX,
		.hca_core_clock = NANOSECONDS_KHZ,
		.packet_pacing_caps = { .qp_rate_limit_min = 1,
					.qp_rate_limit_max = UINT32_MAX,
					.supported_qpts = 1 << IBV_QPT_UD | 1 << IBV_QPT_UC },
		.phys_port_cnt_ex = 1,
	};
	int r;

	if ((input && input->comp_mask) || !attr || size < sizeof(full.orig_attr))
		return abi_fail(abi_refuse(EINVAL,
					   "comp_mask of input is not 0, attr is NULL, or "
					   "its size is less than that of ibv_device_attr"));
	r = ibv_query_device(context, &full.orig_attr);
	if (r)
		return r;
	full.device_cap_flags_ex = full.orig_attr.device_cap_flags;
	memset(attr, 0, size);
	memcpy(attr, &full, size < sizeof(full) ? size : sizeof(full));
	return 0;
}

/* Reads the clock of completion time stamps. The complete value is in tv_nsec, as for adapters. */
int abi_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
	struct timespec now;

	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_given(values, "values"))
		return abi_fail(EINVAL);
	/* On return, comp_mask reports which of the requested values were set. */
	values->comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
	if (!values->comp_mask)
		return 0;
	clock_gettime(CLOCK_MONOTONIC, &now);
	values->raw_clock = (struct timespec){ .tv_nsec = now.tv_sec * 1000000000 + now.tv_nsec };
	return 0;
}

/* Returns whether an index is less than the size of a table, and otherwise records the reason. */
static bool is_index_in_table(int64_t index, int size, const char *table)
{
	return (index >= 0 && index < size) ||
	       !abi_refuse(EINVAL, "index %lld is not in the %s table, which has %d entries",
			   (long long)index, table, size);
}

int ibv_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid)
{
	struct siw_addr addr;
	int r = EINVAL;

	if (abi_is_live_object(ABI_CONTEXT, context) && abi_is_port(port_num, "port_num") &&
	    is_index_in_table(index, ABI_GIDS, "GID") && abi_is_given(gid, "gid"))
		r = abi_refresh_gids(abi_context_of(context));
	if (r) {
		abi_fail(r);
		return -1;
	}
	memset(gid, 0, sizeof(*gid)); /* an unused GID table entry is all zero, as with adapters */
	if (abi_addr_of_gid_index(abi_context_of(context), (unsigned int)index, &addr))
		abi_gid_of_addr(&addr, gid);
	return 0;
}

static void fill_gid_entry(const struct abi_context *ctx, const struct siw_addr *addr,
			   uint32_t index, void *entry, size_t size)
{
	struct ibv_gid_entry full = {
		.gid_index = index,
		.port_num = ABI_PORT,
		.gid_type = IBV_GID_TYPE_ROCE_V2,
		.ndev_ifindex = (uint32_t)ctx->device->ifindex,
	};

	abi_gid_of_addr(addr, &full.gid);
	memset(entry, 0, size);
	memcpy(entry, &full, size < sizeof(full) ? size : sizeof(full));
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index,
		      struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size)
{
	struct siw_addr addr;
	struct abi_context *ctx;
	int r;

	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_port(port_num, "port_num") ||
	    !is_index_in_table(gid_index, ABI_GIDS, "GID") || !abi_is_given(entry, "entry") ||
	    !entry_size)
		return abi_fail(EINVAL);
	if (flags)
		return abi_fail(abi_refuse(EOPNOTSUPP, "flags is %#x: set it to 0", flags));
	ctx = abi_context_of(context);
	r = abi_refresh_gids(ctx);
	if (r)
		return abi_fail(r);
	if (!abi_addr_of_gid_index(ctx, gid_index, &addr))
		return abi_fail(ENODATA);
	fill_gid_entry(ctx, &addr, gid_index, entry, entry_size);
	return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
			     size_t max_entries, uint32_t flags, size_t entry_size)
{
	struct abi_context *ctx;
	struct siw_addr addr;
	size_t n = 0;
	int r;

	if (!abi_is_live_object(ABI_CONTEXT, context) ||
	    (max_entries && !abi_is_given(entries, "entries")) || !entry_size)
		return -abi_fail(EINVAL);
	if (flags)
		return -abi_fail(abi_refuse(EOPNOTSUPP, "flags is %#x: set it to 0", flags));
	ctx = abi_context_of(context);
	r = abi_refresh_gids(ctx);
	if (r)
		return -abi_fail(r);
	for (uint32_t i = 0; abi_addr_of_gid_index(ctx, i, &addr); i++) {
		if (n == max_entries)
			return -abi_fail(abi_refuse(EINVAL,
						    "the GID table has more than max_entries (%zu) "
						    "entries: pass gid_tbl_len of ibv_query_port",
						    max_entries));
		fill_gid_entry(ctx, &addr, i, (char *)entries + n++ * entry_size, entry_size);
	}
	return (ssize_t)n;
}

/*
 * ibv_query_gid_type is private to rdma-core, but ibv_devinfo and perftest of Linux distributions
 * call it.
 */
ABI_EXPORT int ibv_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index,
				  int *type);
int ibv_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index, int *type)
{
	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_port(port_num, "port_num") ||
	    !is_index_in_table(index, ABI_GIDS, "GID") || !abi_is_given(type, "type")) {
		abi_fail(EINVAL);
		return -1;
	}
	/* GID types are encoded as in sysfs: 0 is InfiniBand or RoCE v1, and 1 is RoCE v2. */
	*type = 1;
	return 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port_num, int index, __be16 *pkey)
{
	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_port(port_num, "port_num") ||
	    !is_index_in_table(index, 1, "P_Key") || !abi_is_given(pkey, "pkey")) {
		abi_fail(EINVAL);
		return -1;
	}
	*pkey = htons(ABI_PKEY);
	return 0;
}

int ibv_get_pkey_index(struct ibv_context *context, uint8_t port_num, __be16 pkey)
{
	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_port(port_num, "port_num") ||
	    (pkey != htons(ABI_PKEY) &&
	     abi_refuse(EINVAL, "P_Key %#x is not in the table: the only P_Key is %#x", ntohs(pkey),
			ABI_PKEY))) {
		abi_fail(EINVAL);
		return -1;
	}
	return 0;
}

/* ---- ibv_query_port_speed (IBVERBS_1.16) ----------------------------------------------------- */

ABI_EXPORT int abi_query_port_speed(struct ibv_context *context, uint32_t port_num,
				    uint64_t *port_speed);
ABI_VERSION(abi_query_port_speed, ibv_query_port_speed, 1.16);
int abi_query_port_speed(struct ibv_context *context, uint32_t port_num, uint64_t *port_speed)
{
	const uint64_t mbps_per_unit = 100;

	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_port(port_num, "port_num") ||
	    !abi_is_given(port_speed, "port_speed"))
		return abi_fail(EINVAL);
	*port_speed = (uint64_t)abi_interface_mbps(abi_context_of(context)->device->info.netdev) /
		      mbps_per_unit;
	return 0;
}
