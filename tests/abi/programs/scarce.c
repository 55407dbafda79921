/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests a shortage of memory or descriptors: every call reports the shortage, existing objects can
 * be destroyed, and no descriptor leaks. The program makes the same calls in each run. With the
 * argument "calls" and tests/c/failing.c preloaded, the n-th system call fails in run n; with
 * "descriptors" the limit of descriptors rises by one with each run.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <sys/resource.h>

#include "common.h"

static struct {
	struct ibv_device **list;
	struct ibv_context *ctx;
	struct ibv_pd *pd, *parent;
	struct ibv_td *td;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_cq_ex *cqx;
	struct ibv_srq *srq;
	struct ibv_qp *rc, *ud;
	struct ibv_ah *ah;
} own;

static char memory[SIZE];

static bool is_shortage_errno(int why)
{
	if (why == ENOMEM || why == EMFILE || why == ENOBUFS || why == EAGAIN || why == EINTR ||
	    why == ENFILE || why == ENOSPC)
		return true;
	fprintf(stderr, "errno %d: %s\n", why, strerror(why));
	return false;
}

/* Creates an object, or ends the current run if the creation fails. */
#define MAKE(member, call)                               \
	do {                                             \
		errno = 0;                               \
		own.member = (call);                     \
		if (!own.member) {                       \
			CHECK(is_shortage_errno(errno)); \
			return;                          \
		}                                        \
	} while (0)
#define DO(call)                                       \
	do {                                           \
		int why = (call);                      \
                                                       \
		if (why) {                             \
			CHECK(is_shortage_errno(why)); \
			return;                        \
		}                                      \
	} while (0)

static struct ibv_qp *create_extended_qp(void)
{
	struct ibv_qp_init_attr base = default_qp_attr(ibv_cq_ex_to_cq(own.cqx), IBV_QPT_RC);
	struct ibv_qp_init_attr_ex init = { 0 };

	memcpy(&init, &base, sizeof(base));
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.send_ops_flags = IBV_QP_EX_WITH_SEND;
	init.pd = own.pd;
	return ibv_create_qp_ex(own.ctx, &init);
}

static int modify_qp_state(struct ibv_qp *qp, enum ibv_qp_state to, int mask)
{
	struct ibv_qp_attr attr = {
		.qp_state = to,
		.port_num = PORT,
		.qkey = QKEY,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp->qp_num,
		.min_rnr_timer = 12,
		.ah_attr = loopback_ah_attr(),
	};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

static void move_qps_through_states(void)
{
	DO(modify_qp_state(own.rc, IBV_QPS_INIT,
			   IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS));
	DO(modify_qp_state(own.rc, IBV_QPS_RTR,
			   IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	DO(modify_qp_state(own.ud, IBV_QPS_INIT, IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY));
	DO(modify_qp_state(own.ud, IBV_QPS_RTR, 0));
	DO(modify_qp_state(own.ud, IBV_QPS_RTS, IBV_QP_SQ_PSN));
}

/*
 * Posts a receive to the UD queue pair and to the shared receive queue.
 */
static void post_receives(void)
{
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;

	DO(ibv_post_recv(own.ud, &wr, &bad));
	DO(ibv_post_srq_recv(own.srq, &wr, &bad));
}

static void create_all_objects(void)
{
	struct ibv_td_init_attr none = { 0 };
	struct ibv_parent_domain_init_attr domain = { 0 };
	struct ibv_cq_init_attr_ex cq = { .cqe = 10, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_srq_init_attr srq = { .attr = { 8, 1, 0 } };
	struct ibv_qp_init_attr init;
	struct ibv_ah_attr path;
	int n;

	MAKE(list, ibv_get_device_list(&n));
	if (!n)
		return; /* the device list is empty if the interfaces could not be listed */
	MAKE(ctx, ibv_open_device(own.list[n - 1]));
	MAKE(pd, ibv_alloc_pd(own.ctx));
	MAKE(td, ibv_alloc_td(own.ctx, &none));
	domain.pd = own.pd;
	domain.td = own.td;
	MAKE(parent, ibv_alloc_parent_domain(own.ctx, &domain));
	MAKE(mr, ibv_reg_mr(own.parent, memory, SIZE, IBV_ACCESS_LOCAL_WRITE));
	MAKE(mw, ibv_alloc_mw(own.pd, IBV_MW_TYPE_2));
	MAKE(channel, ibv_create_comp_channel(own.ctx));
	MAKE(cq, ibv_create_cq(own.ctx, 10, NULL, own.channel, 0));
	MAKE(cqx, ibv_create_cq_ex(own.ctx, &cq));
	DO(ibv_resize_cq(own.cq, 1000));
	MAKE(srq, ibv_create_srq(own.pd, &srq));
	MAKE(rc, create_extended_qp());
	init = default_qp_attr(own.cq, IBV_QPT_UD);
	MAKE(ud, ibv_create_qp(own.pd, &init));
	if (ibv_query_gid(own.ctx, PORT, 0, &gid)) {
		CHECK(is_shortage_errno(errno));
		return;
	}
	path = loopback_ah_attr();
	MAKE(ah, ibv_create_ah(own.pd, &path));
	move_qps_through_states();
	post_receives();
}

#define END(member, call)                          \
	do {                                       \
		CHECK(!own.member || (call) == 0); \
		own.member = NULL;                 \
	} while (0)

static void destroy_all_objects(void)
{
	END(ah, ibv_destroy_ah(own.ah));
	END(ud, ibv_destroy_qp(own.ud));
	END(rc, ibv_destroy_qp(own.rc));
	END(srq, ibv_destroy_srq(own.srq));
	END(cqx, ibv_destroy_cq(ibv_cq_ex_to_cq(own.cqx)));
	END(cq, ibv_destroy_cq(own.cq));
	END(channel, ibv_destroy_comp_channel(own.channel));
	END(mw, ibv_dealloc_mw(own.mw));
	END(mr, ibv_dereg_mr(own.mr));
	END(parent, ibv_dealloc_pd(own.parent));
	END(td, ibv_dealloc_td(own.td));
	END(pd, ibv_dealloc_pd(own.pd));
	END(ctx, ibv_close_device(own.ctx));
	ibv_free_device_list(own.list);
	own.list = NULL;
}

/* Makes the n-th system call fail in run n, until a run makes fewer calls than that. */
static int check_failing_system_calls(void)
{
	long (*arm)(long n) = (long (*)(long))dlsym(RTLD_DEFAULT, "fail_nth_call");
	int before = count_descriptors();
	long n = 0, made;

	CHECK(arm);
	do {
		arm(++n);
		create_all_objects();
		made = arm(0);
		destroy_all_objects();
		CHECK(count_descriptors() == before);
	} while (made >= n);
	printf("%ld calls failed\n", n - 1);
	return n > 50 ? 0 : 1;
}

static int check_creation_with_few_descriptors(void)
{
	int before = count_descriptors(), lives = 0;
	struct rlimit limit;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (rlim_t n = 3; n < 64; n++) {
		struct rlimit few = { n, limit.rlim_max };
		bool whole;

		CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
		create_all_objects();
		whole = own.ah != NULL;
		destroy_all_objects();
		CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
		CHECK(count_descriptors() == before);
		lives++;
		if (whole)
			break;
	}
	printf("%d lives\n", lives);
	return lives > 5 && lives < 61 ? 0 : 1;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	/* The test needs no locked memory, so the limit of locked memory can be 0. */
	CHECK(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ 0, 0 }) == 0);
	/* The first run makes the allocations that a process makes only once. */
	create_all_objects();
	destroy_all_objects();
	return strcmp(argv[1], "calls") == 0 ? check_failing_system_calls()
					     : check_creation_with_few_descriptors();
}
