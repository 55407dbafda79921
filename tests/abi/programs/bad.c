/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Invalid arguments: every function is called with NULL, an invalid address, a handle of another
 * kind, memory that is not an object, and a destroyed handle; then with invalid values of every
 * other parameter. Each call must return the error that its man page specifies, and no call may
 * crash. The program prints all failures.
 */
#include <infiniband/sa.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <unistd.h>

#include "bad.h"

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

struct _compat_ibv_port_attr;
extern int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index,
			      int *type);
extern int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static void *volatile nothing; /* a NULL pointer that the compiler cannot recognise as NULL */

/* Values that are not valid handles of the expected kind */
struct bad {
	const char *name;
	void *handle;
} bads[] = {
	{ "NULL", NULL },
	{ "garbage", (void *)(uintptr_t)0x10 },
	{ "an odd address", memory + 1 },
	{ "memory that is no object", memory },
	{ "a handle of another kind", NULL },
	{ "a handle that was destroyed", NULL },
};
#define FOREIGN	  4
#define DESTROYED 5

#define EACH(handle_)                                                                    \
	for (struct bad *row = bads; row < bads + sizeof(bads) / sizeof(bads[0]); row++) \
		if (which = row->name, (handle_) = row->handle, 1)

static struct ibv_qp_attr qp_attr;
static struct ibv_qp_init_attr qp_init;

static void check_bad_contexts(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL), *device;
	struct ibv_context *c = ibv_open_device(list[0]);
	union ibv_gid one;
	struct ibv_gid_entry entry;
	struct ibv_async_event event;
	struct ibv_device_attr attr;
	struct ibv_wc wc = { 0 };
	struct ibv_ah_attr ah_attr;
	uint8_t mac[6];
	uint16_t vid;
	__be16 pkey;
	int type;

	CHECK(c && ibv_close_device(c) == 0);
	bads[FOREIGN].handle = pd;
	bads[DESTROYED].handle = c;
	EACH(c)
	{
		MINUS(EINVAL, ibv_close_device(c));
		ERRNO(EINVAL, ibv_query_device(c, &attr));
		ERRNO(EINVAL, ibv_query_port(c, 1, (struct _compat_ibv_port_attr *)memory));
		MINUS(EINVAL, ibv_query_gid(c, 1, 0, &one));
		ERRNO(EINVAL, _ibv_query_gid_ex(c, 1, 0, &entry, 0, sizeof(entry)));
		ERRNO(-EINVAL, (int)_ibv_query_gid_table(c, &entry, 1, 0, sizeof(entry)));
		MINUS(EINVAL, ibv_query_gid_type(c, 1, 0, &type));
		MINUS(EINVAL, ibv_query_pkey(c, 1, 0, &pkey));
		MINUS(EINVAL, ibv_get_pkey_index(c, 1, 0xffff));
		MINUS(EINVAL, ibv_get_async_event(c, &event));
		NONE(EINVAL, ibv_alloc_pd(c));
		NONE(EINVAL, ibv_create_comp_channel(c));
		NONE(EINVAL, ibv_create_cq(c, 1, NULL, NULL, 0));
		NONE(EINVAL, ibv_import_pd(c, 1));
		NONE(EINVAL, ibv_import_dm(c, 1));
		MINUS(EINVAL, ibv_init_ah_from_wc(c, 1, &wc, (struct ibv_grh *)memory, &ah_attr));
		ERRNO(-EINVAL, ibv_resolve_eth_l2_from_gid(c, &ah_attr, mac, &vid));
	}
	device = list[0];
	ibv_free_device_list(list);
	bads[FOREIGN].handle = ctx;
	bads[DESTROYED].handle = device;
	EACH(device)
	{
		NONE(EINVAL, ibv_open_device(device));
		NONE(EINVAL, ibv_get_device_name(device));
		ERRNO(-1, ibv_get_device_index(device));
		ERRNO(0, (int)ibv_get_device_guid(device));
	}
	ibv_free_device_list(NULL);
	ibv_free_device_list(list); /* a second free of the same list */
	ibv_free_device_list((struct ibv_device **)memory);
}

static void check_bad_context_values(void)
{
	struct ibv_port_attr port;
	struct ibv_gid_entry entry[1];
	struct ibv_device_attr_ex ex;
	struct ibv_query_device_ex_input input = { 1 };
	union ibv_gid one;
	__be16 pkey;
	char text[8];

	which = "a wrong value";
	ERRNO(EINVAL, ibv_query_device(ctx, NULL));
	ERRNO(EINVAL, ibv_query_device_ex(ctx, &input, &ex));
	ERRNO(EINVAL, ibv_query_rt_values_ex(ctx, NULL));
	for (int number = 0; number < 256; number += 2) {
		ERRNO(EINVAL, ___ibv_query_port(ctx, (uint8_t)number, &port));
		MINUS(EINVAL, ibv_query_gid(ctx, (uint8_t)number, 0, &one));
	}
	ERRNO(EINVAL, ___ibv_query_port(ctx, 1, nothing));
	MINUS(EINVAL, ibv_query_gid(ctx, 1, -1, &one));
	MINUS(EINVAL, ibv_query_gid(ctx, 1, 10000, &one));
	MINUS(EINVAL, ibv_query_gid(ctx, 1, 0, NULL));
	MINUS(EINVAL, ibv_query_pkey(ctx, 1, 1, &pkey));
	MINUS(EINVAL, ibv_query_pkey(ctx, 1, 0, NULL));
	MINUS(EINVAL, ibv_get_pkey_index(ctx, 1, 0x7fff));
	ERRNO(EINVAL, ibv_query_gid_ex(ctx, 1, 10000, entry, 0));
	ERRNO(EOPNOTSUPP, ibv_query_gid_ex(ctx, 1, 0, entry, 1));
	/* the buffer has one entry, but the GID table has two entries */
	ERRNO(-EINVAL, (int)ibv_query_gid_table(ctx, entry, 1, 0));
	ERRNO(-EINVAL, (int)ibv_query_gid_table(ctx, NULL, 1, 0));
	ERRNO(-EOPNOTSUPP, (int)ibv_query_gid_table(ctx, entry, 1, 1));
	MINUS(EINVAL, ibv_get_async_event(ctx, NULL));
	NONE(EINVAL, ibv_import_pd(ctx, 0xffffffff));
	NONE(EOPNOTSUPP, ibv_import_dm(ctx, 1));
	NONE(EBADF, ibv_import_device(-1));
	MINUS(ENOENT, ibv_read_sysfs_file("/nowhere", "file", text, sizeof(text)));
	MINUS(EINVAL, ibv_read_sysfs_file("/sys", "file", text, 0));
	ibv_ack_async_event(NULL);
	ibv_unimport_pd(NULL);
	ibv_unimport_mr(NULL);
	ibv_unimport_dm(NULL);
}

static void check_bad_protection_domains(void)
{
	struct ibv_pd *p = ibv_alloc_pd(ctx);
	struct ibv_srq_init_attr srq = { .attr = { 1, 1, 0 } };
	struct ibv_ah_attr attr = loopback_ah_attr();
	struct ibv_wc wc = { 0 };

	CHECK(p && ibv_dealloc_pd(p) == 0);
	bads[FOREIGN].handle = ctx;
	bads[DESTROYED].handle = p;
	EACH(p)
	{
		ERRNO(EINVAL, ibv_dealloc_pd(p));
		NONE(EINVAL, ibv_reg_mr(p, memory, SIZE, 0));
		NONE(EINVAL, ibv_reg_mr_iova(p, memory, SIZE, 0, 0));
		NONE(EINVAL, ibv_reg_mr_iova2(p, memory, SIZE, 0, 0));
		NONE(EINVAL, ibv_reg_dmabuf_mr(p, 0, SIZE, 0, 0, 0));
		NONE(EINVAL, ibv_import_mr(p, 1));
		NONE(EINVAL, ibv_create_qp(p, &qp_init));
		NONE(EINVAL, ibv_create_srq(p, &srq));
		NONE(EINVAL, ibv_create_ah(p, &attr));
		NONE(EINVAL, ibv_create_ah_from_wc(p, &wc, (struct ibv_grh *)memory, 1));
	}
	p = bads[DESTROYED].handle;
	which = "a destroyed domain, inline";
	NONE(EINVAL, ibv_alloc_mw(p, IBV_MW_TYPE_1));
	NONE(EINVAL, ibv_alloc_null_mr(p));
	ERRNO(EINVAL, ibv_advise_mr(p, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0));
}

static void check_bad_regions(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, 0);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);

	CHECK(mr && mw);
	which = "a wrong value";
	ERRNO(IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, 0x80, pd, memory, SIZE, 0));
	ERRNO(IBV_REREG_MR_ERR_INPUT,
	      ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, (struct ibv_pd *)mr, memory, SIZE, 0));
	ERRNO(IBV_REREG_MR_ERR_INPUT,
	      ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 1 << 18));
	for (int bit = 8; bit < 20; bit++)
		NONE(EINVAL, ibv_reg_mr(pd, memory, SIZE, 1 << bit));
	NONE(EINVAL, ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_REMOTE_WRITE));
	NONE(EINVAL, ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_REMOTE_ATOMIC));
	NONE(EFAULT, ibv_reg_mr(pd, (void *)0x1000, SIZE, 0));
	NONE(EINVAL, ibv_reg_mr(pd, memory, SIZE_MAX, 0));
	NONE(EINVAL, ibv_import_mr(pd, 0xffffffff));
	NONE(EINVAL, ibv_alloc_mw(pd, (enum ibv_mw_type)7));
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_mw(mw) == 0);
	bads[FOREIGN].handle = pd;
	bads[DESTROYED].handle = mr;
	EACH(mr)
	{
		ERRNO(EINVAL, ibv_dereg_mr(mr));
		ERRNO(IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, 1, NULL, memory, SIZE, 0));
	}
	which = "a destroyed window, inline";
	ERRNO(EINVAL, ibv_dealloc_mw(mw));
}

static void check_bad_completion_queues(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq_init_attr_ex ex = { .cqe = 1, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cqx = ibv_create_cq_ex(ctx, &ex);
	struct ibv_modify_cq_attr moderate = { 0 };
	struct ibv_cq *cq, *got;
	struct ibv_wc wc;
	void *user;

	CHECK(channel && cqx);
	cq = ibv_cq_ex_to_cq(cqx);
	which = "a wrong value";
	NONE(EINVAL, ibv_create_cq(ctx, 0, NULL, NULL, 0));
	NONE(EINVAL, ibv_create_cq(ctx, -1, NULL, NULL, 0));
	NONE(EINVAL, ibv_create_cq(ctx, INT_MAX, NULL, NULL, 0));
	NONE(EINVAL, ibv_create_cq(ctx, 1, NULL, NULL, ctx->num_comp_vectors));
	NONE(EINVAL, ibv_create_cq(ctx, 1, NULL, (struct ibv_comp_channel *)cq, 0));
	ERRNO(EINVAL, ibv_resize_cq(cq, 0));
	ERRNO(EINVAL, ibv_resize_cq(cq, INT_MAX));
	ERRNO(EOPNOTSUPP, ibv_modify_cq(cq, &moderate));
	ERRNO(EINVAL, ibv_start_poll(cqx, &(struct ibv_poll_cq_attr){ 1 }));
	MINUS(EINVAL, ibv_get_cq_event(channel, NULL, &user));
	ex.wc_flags = IBV_WC_EX_WITH_TM_INFO;
	NONE(EOPNOTSUPP, ibv_create_cq_ex(ctx, &ex));
	ex.wc_flags = 1ull << 40;
	NONE(EOPNOTSUPP, ibv_create_cq_ex(ctx, &ex));
	ex.wc_flags = 0;
	ex.comp_mask = 1u << 30;
	NONE(EINVAL, ibv_create_cq_ex(ctx, &ex));
	NONE(EINVAL, ibv_create_cq_ex(ctx, NULL));
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
	bads[FOREIGN].handle = pd;
	bads[DESTROYED].handle = cq;
	EACH(cq)
	{
		ERRNO(EINVAL, ibv_destroy_cq(cq));
		ERRNO(EINVAL, ibv_resize_cq(cq, 10));
		ibv_ack_cq_events(cq, 1);
	}
	which = "a destroyed queue, inline";
	ERRNO(-EINVAL, ibv_poll_cq((struct ibv_cq *)cqx, 1, &wc));
	ERRNO(EINVAL, ibv_req_notify_cq((struct ibv_cq *)cqx, 0));
	ERRNO(EINVAL, ibv_modify_cq((struct ibv_cq *)cqx, &moderate));
	ERRNO(EINVAL, ibv_start_poll(cqx, NULL));
	bads[DESTROYED].handle = channel;
	EACH(channel)
	{
		ERRNO(EINVAL, ibv_destroy_comp_channel(channel));
		MINUS(EINVAL, ibv_get_cq_event(channel, &got, &user));
		if (channel)
			NONE(EINVAL, ibv_create_cq(ctx, 1, NULL, channel, 0));
	}
}

static void check_bad_qp_creation(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex ex = { 0 };
	struct ibv_qp_init_attr init;

	which = "a wrong value";
#define WITH(wanted, member, value)                     \
	do {                                            \
		init = qp_init;                         \
		init.member = value;                    \
		NONE(wanted, ibv_create_qp(pd, &init)); \
	} while (0)
	WITH(EINVAL, send_cq, NULL);
	WITH(EINVAL, recv_cq, NULL);
	WITH(EINVAL, send_cq, (struct ibv_cq *)pd);
	WITH(EINVAL, srq, (struct ibv_srq *)cq);
	WITH(EINVAL, qp_type, (enum ibv_qp_type)0);
	WITH(EINVAL, qp_type, (enum ibv_qp_type)77);
	WITH(EOPNOTSUPP, qp_type, IBV_QPT_RAW_PACKET);
	WITH(EOPNOTSUPP, qp_type, IBV_QPT_XRC_SEND);
	WITH(EOPNOTSUPP, qp_type, IBV_QPT_XRC_RECV);
	WITH(EOPNOTSUPP, qp_type, IBV_QPT_DRIVER);
	WITH(EINVAL, cap.max_send_wr, UINT32_MAX);
	WITH(EINVAL, cap.max_recv_wr, UINT32_MAX);
	WITH(EINVAL, cap.max_send_sge, UINT32_MAX);
	WITH(EINVAL, cap.max_recv_sge, UINT32_MAX);
	WITH(EINVAL, cap.max_inline_data, UINT32_MAX);
#undef WITH
	NONE(EINVAL, ibv_create_qp(pd, NULL));
	memcpy(&ex, &qp_init, offsetof(struct ibv_qp_init_attr, sq_sig_all) + sizeof(int));
	ex.pd = pd;
	ex.comp_mask = 0;
	NONE(EINVAL, ibv_create_qp_ex(ctx, &ex));
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD;
	NONE(EOPNOTSUPP, ibv_create_qp_ex(ctx, &ex));
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	ex.create_flags = IBV_QP_CREATE_SCATTER_FCS;
	NONE(EOPNOTSUPP, ibv_create_qp_ex(ctx, &ex));
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	ex.send_ops_flags = IBV_QP_EX_WITH_TSO;
	NONE(EOPNOTSUPP, ibv_create_qp_ex(ctx, &ex));
	ex.send_ops_flags = 1 << 12; /* the value of IBV_QP_EX_WITH_ATOMIC_WRITE */
	NONE(EOPNOTSUPP, ibv_create_qp_ex(ctx, &ex));
}

/* Checks that invalid state transitions and attribute masks fail and leave the state unchanged. */
static void check_invalid_transitions(struct ibv_qp *qp)
{
	static const struct {
		/* attribute mask of the ibv_modify_qp call in state RESET */
		int from_mask;
		struct ibv_qp_attr attr;
		int wanted;
	} table[] = {
		{ IBV_QP_STATE, { .qp_state = IBV_QPS_INIT }, EINVAL },
		{ IBV_QP_STATE, { .qp_state = IBV_QPS_RTR }, EINVAL },
		{ IBV_QP_STATE, { .qp_state = IBV_QPS_RTS }, EINVAL },
		{ IBV_QP_STATE, { .qp_state = IBV_QPS_SQD }, EINVAL },
		{ IBV_QP_STATE, { .qp_state = (enum ibv_qp_state)55 }, EINVAL },
		{ IBV_QP_STATE, { .qp_state = (enum ibv_qp_state) - 1 }, EINVAL },
		{ IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
		  { .qp_state = IBV_QPS_INIT, .port_num = 2 },
		  EINVAL },
		{ IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
		  { .qp_state = IBV_QPS_INIT, .port_num = 1, .pkey_index = 1 },
		  EINVAL },
		{ IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS |
			  IBV_QP_QKEY,
		  { .qp_state = IBV_QPS_INIT, .port_num = 1 },
		  EINVAL },
		{ IBV_QP_STATE | IBV_QP_CUR_STATE,
		  { .qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQD },
		  EINVAL },
		{ IBV_QP_ALT_PATH, { .port_num = 1 }, EOPNOTSUPP },
		{ IBV_QP_CAP, { .port_num = 1 }, EOPNOTSUPP },
		{ IBV_QP_RATE_LIMIT, { .port_num = 1 }, EOPNOTSUPP },
		{ IBV_QP_PATH_MIG_STATE, { .path_mig_state = IBV_MIG_ARMED }, EOPNOTSUPP },
		{ 1 << 30, { .port_num = 1 }, EINVAL },
		{ IBV_QP_DEST_QPN, { .dest_qp_num = 0x1000000 }, EINVAL },
		{ IBV_QP_PATH_MTU, { .path_mtu = 6 }, EINVAL },
	};
	struct ibv_qp_init_attr init;

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct ibv_qp_attr attr = table[i].attr;
		char name[40];

		snprintf(name, sizeof(name), "row %zu of modifying", i);
		which = name;
		ERRNO(table[i].wanted, ibv_modify_qp(qp, &attr, table[i].from_mask));
		CHECK(ibv_query_qp(qp, &qp_attr, IBV_QP_STATE, &init) == 0);
		ERRNO(IBV_QPS_RESET, (int)qp_attr.qp_state);
	}
}

/* Checks that invalid paths are refused in the transition from INIT to RTR. */
static void check_invalid_qp_paths(struct ibv_qp *qp)
{
	which = "a path that is none";
	move_qp_to_init(qp);
	qp_attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = 3, .dest_qp_num = 1 };
#define TO_RTR                                                                          \
	(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | \
	 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
	qp_attr.ah_attr = loopback_ah_attr();
	qp_attr.ah_attr.is_global = 0;
	ERRNO(EINVAL, ibv_modify_qp(qp, &qp_attr, TO_RTR));
	qp_attr.ah_attr = loopback_ah_attr();
	qp_attr.ah_attr.grh.sgid_index = 200;
	ERRNO(EINVAL, ibv_modify_qp(qp, &qp_attr, TO_RTR));
	qp_attr.ah_attr = loopback_ah_attr();
	qp_attr.ah_attr.port_num = 9;
	ERRNO(EINVAL, ibv_modify_qp(qp, &qp_attr, TO_RTR));
	qp_attr.ah_attr = loopback_ah_attr();
	memset(&qp_attr.ah_attr.grh.dgid, 0, 16);
	/* the address families of the destination GID and the source GID differ */
	ERRNO(EINVAL, ibv_modify_qp(qp, &qp_attr, TO_RTR));
}

static void check_bad_posts(struct ibv_qp *qp)
{
	struct ibv_sge sge = { 0 }, many[64] = { { 0 } };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_recv_wr rr = { .sg_list = many, .num_sge = 64 }, *bad_rr;
	struct ibv_ece ece = { .vendor_id = 1 };
	union ibv_gid none = { { 0 } };

	which = "a queue pair in INIT";
	ERRNO(EINVAL, ibv_post_send(qp, &wr, &bad));
	ERRNO(EINVAL, ibv_post_recv(qp, &rr, &bad_rr));
	CHECK(bad == &wr && bad_rr == &rr);
	rr.num_sge = -1;
	ERRNO(EINVAL, ibv_post_recv(qp, &rr, &bad_rr));
	which = "a wrong value";
	ERRNO(EINVAL, ibv_attach_mcast(qp, &none, 0));
	ERRNO(EINVAL, ibv_attach_mcast(qp, NULL, 0));
	ERRNO(EINVAL, ibv_detach_mcast(qp, &none, 0));
	ERRNO(EOPNOTSUPP, ibv_set_ece(qp, &ece));
	ERRNO(EINVAL, ibv_set_ece(qp, NULL));
	ERRNO(EINVAL, ibv_query_ece(qp, NULL));
	ERRNO(EINVAL, ibv_query_qp(qp, NULL, 0, &qp_init));
	ERRNO(EINVAL, ibv_modify_qp(qp, NULL, 0));
	ERRNO(EOPNOTSUPP, ibv_modify_qp_rate_limit(qp, &(struct ibv_qp_rate_limit_attr){ 0 }));
	ERRNO(EINVAL, ibv_modify_qp_rate_limit(qp, NULL));
}

/*
 * Calls siw_reason_name of <siwarp/siw_ext.h>, which is looked up at run time because verbs
 * programs are not linked to siwarp's library.
 */
static const char *last_error_reason_of_libsiwarp(void)
{
	const char *(*name)(void);

	*(void **)&name = dlsym(RTLD_DEFAULT, "siw_reason_name");
	CHECK(name);
	return name();
}

static void check_bad_queue_pairs(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	struct ibv_sge sge = { 0 };
	struct ibv_send_wr wr = { .sg_list = &sge, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_recv_wr rr = { 0 }, *bad_rr;
	struct ibv_qp_init_attr init;
	struct ibv_ece ece = { 0 };
	union ibv_gid group = { { 0xff, 0x0e } };
	struct ibv_qp *qp;

	CHECK(cq);
	qp_init = default_qp_attr(cq, IBV_QPT_RC);
	check_bad_qp_creation(cq);
	init = qp_init;
	qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	check_invalid_transitions(qp);
	check_invalid_qp_paths(qp);
	check_bad_posts(qp);
	CHECK(ibv_destroy_qp(qp) == 0);
	which = "a destroyed queue pair, inline";
	/*
	 * Posts to a destroyed queue pair are accepted and dropped, as the libraries of adapters
	 * do.
	 */
	ERRNO(0, ibv_post_send(qp, &wr, &bad));
	CHECK(strcmp(last_error_reason_of_libsiwarp(), "DESTROYED") == 0);
	ERRNO(0, ibv_post_recv(qp, &rr, &bad_rr));
	CHECK(strcmp(last_error_reason_of_libsiwarp(), "DESTROYED") == 0);
	bads[FOREIGN].handle = cq;
	bads[DESTROYED].handle = qp;
	EACH(qp)
	{
		ERRNO(EINVAL, ibv_destroy_qp(qp));
		ERRNO(EINVAL, ibv_modify_qp(qp, &qp_attr, IBV_QP_STATE));
		ERRNO(EINVAL, ibv_query_qp(qp, &qp_attr, 0, &init));
		ERRNO(EINVAL, ibv_attach_mcast(qp, &group, 0));
		ERRNO(EINVAL, ibv_detach_mcast(qp, &group, 0));
		ERRNO(EINVAL, ibv_set_ece(qp, &ece));
		ERRNO(EINVAL, ibv_query_ece(qp, &ece));
		ERRNO(0, ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 0));
		NONE(EINVAL, ibv_qp_to_qp_ex(qp));
	}
	CHECK(ibv_destroy_cq(cq) == 0);
}

static void check_bad_srqs_and_ahs(void)
{
	struct ibv_srq_init_attr init = { .attr = { 8, 1, 0 } }, wrong;
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_srq_init_attr_ex ex = { .comp_mask = IBV_SRQ_INIT_ATTR_PD |
							IBV_SRQ_INIT_ATTR_TYPE,
					   .pd = pd,
					   .srq_type = IBV_SRQT_XRC };
	struct ibv_ah_attr attr = loopback_ah_attr();
	struct ibv_recv_wr rr = { 0 }, *bad_rr;
	struct ibv_srq_attr srq_attr = { .srq_limit = 1000000 };
	struct ibv_ah *ah;
	uint32_t number;

	CHECK(srq);
	which = "a wrong value";
	ERRNO(EINVAL, ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT));
	ERRNO(EINVAL, ibv_modify_srq(srq, &srq_attr, 1 << 9));
	ERRNO(EINVAL, ibv_modify_srq(srq, NULL, IBV_SRQ_LIMIT));
	ERRNO(EINVAL, ibv_query_srq(srq, NULL));
	NONE(EINVAL, ibv_create_srq(pd, NULL));
	wrong = (struct ibv_srq_init_attr){ .attr = { 0, 1, 0 } };
	NONE(EINVAL, ibv_create_srq(pd, &wrong));
	wrong = (struct ibv_srq_init_attr){ .attr = { 1, UINT32_MAX, 0 } };
	NONE(EINVAL, ibv_create_srq(pd, &wrong));
	NONE(EOPNOTSUPP, ibv_create_srq_ex(ctx, &ex));
	NONE(EINVAL, ibv_create_ah(pd, NULL));
	attr.is_global = 0;
	NONE(EINVAL, ibv_create_ah(pd, &attr));
	attr = loopback_ah_attr();
	attr.grh.sgid_index = 99;
	NONE(EINVAL, ibv_create_ah(pd, &attr));
	attr = loopback_ah_attr();
	ah = ibv_create_ah(pd, &attr);
	CHECK(ah && ibv_destroy_ah(ah) == 0 && ibv_destroy_srq(srq) == 0);
	which = "a destroyed queue, inline";
	ERRNO(0, ibv_post_srq_recv(srq, &rr, &bad_rr));
	ERRNO(EINVAL, ibv_get_srq_num(srq, &number));
	bads[FOREIGN].handle = pd;
	bads[DESTROYED].handle = srq;
	EACH(srq)
	{
		ERRNO(EINVAL, ibv_destroy_srq(srq));
		ERRNO(EINVAL, ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT));
		ERRNO(EINVAL, ibv_query_srq(srq, &srq_attr));
	}
	bads[DESTROYED].handle = ah;
	EACH(ah) ERRNO(EINVAL, ibv_destroy_ah(ah));
}

/* Checks that unsupported features fail with EOPNOTSUPP, never with ENOSYS. */
static void check_unsupported_calls(struct ibv_qp *qp)
{
	struct ibv_srq_init_attr srq_init = { .attr = { 1, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_ops_wr ops = { 0 }, *bad_ops;
	int pipes[2];
	struct ibv_qp_open_attr open = { 0 };
	struct ibv_xrcd_init_attr xrcd = { 0 };
	struct ibv_wq_init_attr wq = { 0 };
	struct ibv_rwq_ind_table_init_attr table = { 0 };
	struct ibv_counters_init_attr counters = { 0 };
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	struct ibv_flow_attr flow = { 0 };
	struct ibv_flow_action_esp_attr esp = { 0 };

	CHECK(srq && pipe(pipes) == 0);
	which = "what is not supported";
	ERRNO(EOPNOTSUPP, ibv_post_srq_ops(srq, &ops, &bad_ops));
	NONE(EOPNOTSUPP, ibv_reg_dmabuf_mr(pd, 0, SIZE, 0, pipes[0], 0));
	CHECK(ibv_destroy_srq(srq) == 0 && close(pipes[0]) == 0 && close(pipes[1]) == 0);
	NONE(EOPNOTSUPP, ibv_open_xrcd(ctx, &xrcd));
	NONE(EOPNOTSUPP, ibv_open_qp(ctx, &open));
	NONE(EOPNOTSUPP, ibv_create_wq(ctx, &wq));
	NONE(EOPNOTSUPP, ibv_create_rwq_ind_table(ctx, &table));
	NONE(EOPNOTSUPP, ibv_create_counters(ctx, &counters));
	NONE(EOPNOTSUPP, ibv_alloc_dm(ctx, &dm));
	NONE(EOPNOTSUPP, ibv_create_flow(qp, &flow));
	NONE(EOPNOTSUPP, ibv_create_flow_action_esp(ctx, &esp));
	NONE(EOPNOTSUPP, ibv_reg_dm_mr(pd, NULL, 0, 1, 0));
	NONE(EOPNOTSUPP, ibv_alloc_null_mr(pd));
}

int main(void)
{
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	open_loopback_device();
	cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	qp_init = default_qp_attr(cq, IBV_QPT_RC);
	qp = ibv_create_qp(pd, &qp_init);
	CHECK(cq && qp);
	check_unsupported_calls(qp);
	check_bad_contexts();
	check_bad_context_values();
	check_bad_protection_domains();
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	check_bad_regions();
	check_bad_completion_queues();
	check_bad_queue_pairs();
	check_bad_srqs_and_ahs();
	close_loopback_device();
	return exit_code_of_refusals(700);
}
