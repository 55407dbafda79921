/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Helpers shared by the programs of this folder, which use only verbs: two queue pairs of one
 * process on the device siw_lo send messages to each other.
 */
#ifndef ABI_TEST_COMMON_H
#define ABI_TEST_COMMON_H

#include <dirent.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QKEY	0x11111111u
#define SIZE	4096
#define PORT	1
#define SECONDS 20 /* time limit in s for one completion on a busy machine */

#define CHECK(condition)                                                                          \
	do {                                                                                      \
		if (!(condition)) {                                                               \
			fprintf(stderr, "%s:%d: not so: %s (errno %d: %s)\n", __FILE__, __LINE__, \
				#condition, errno, strerror(errno));                              \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)

struct side {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	char *buf;
	struct ibv_mr *mr;
};

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static union ibv_gid gid;    /* GID of the peer, to which all messages are sent */
static uint8_t source_index; /* index of the local GID, the source of all messages */

static inline void open_loopback_device(void)
{
	struct ibv_device **list;
	int n;

	list = ibv_get_device_list(&n);
	CHECK(list && n > 0);
	/* The last device of the device list is the loopback device. */
	CHECK(strcmp(ibv_get_device_name(list[n - 1]), "siw_lo") == 0);
	ctx = ibv_open_device(list[n - 1]);
	CHECK(ctx);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	CHECK(ibv_query_gid(ctx, PORT, 0, &gid) == 0);
}

static inline void close_loopback_device(void)
{
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(ctx) == 0);
}

static inline struct ibv_ah_attr loopback_ah_attr(void)
{
	return (struct ibv_ah_attr){ .is_global = 1,
				     .port_num = PORT,
				     .grh = { .dgid = gid, .sgid_index = source_index } };
}

static inline void move_qp_to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = QKEY };
	int mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX;

	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			       IBV_ACCESS_REMOTE_ATOMIC;
	mask |= qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static inline void move_qp_to_rts(struct ibv_qp *qp, uint32_t dest)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = dest,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = loopback_ah_attr(),
	};
	int mask = IBV_QP_STATE, rc = qp->qp_type == IBV_QPT_RC;

	if (qp->qp_type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (rc)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
				     .timeout = 14,
				     .retry_cnt = 7,
				     .rnr_retry = 7,
				     .max_rd_atomic = 4 };
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (rc)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
	CHECK(qp->state == IBV_QPS_RTS);
}

static inline void register_side_memory(struct side *side)
{
	side->buf = calloc(1, SIZE);
	CHECK(side->buf);
	side->mr = ibv_reg_mr(pd, side->buf, SIZE,
			      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				      IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
				      IBV_ACCESS_MW_BIND | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(side->mr && side->mr->addr == side->buf && side->mr->length == SIZE);
}

static inline struct ibv_qp_init_attr default_qp_attr(struct ibv_cq *cq, enum ibv_qp_type type)
{
	return (struct ibv_qp_init_attr){
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = type,
		.cap = { .max_send_wr = 1,
			 .max_recv_wr = 1,
			 .max_send_sge = 2,
			 .max_recv_sge = 2,
			 .max_inline_data = 64 },
	};
}

static inline void create_side(struct side *side, enum ibv_qp_type type, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init;

	side->cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	CHECK(side->cq && side->cq->cqe >= 256);
	init = default_qp_attr(side->cq, type);
	init.srq = srq;
	side->qp = ibv_create_qp(pd, &init);
	CHECK(side->qp);
	CHECK(init.cap.max_send_wr >= 32 && (srq || init.cap.max_recv_wr >= 32));
	register_side_memory(side);
	move_qp_to_init(side->qp);
}

static inline void destroy_side(struct side *side)
{
	CHECK(ibv_destroy_qp(side->qp) == 0);
	CHECK(ibv_destroy_cq(side->cq) == 0);
	CHECK(ibv_dereg_mr(side->mr) == 0);
	free(side->buf);
}

static inline void connect_sides(struct side *a, struct side *b)
{
	move_qp_to_rts(a->qp, b->qp->qp_num);
	move_qp_to_rts(b->qp, a->qp->qp_num);
}

static inline struct ibv_sge sge_of_side(const struct side *side, size_t offset, uint32_t length)
{
	return (struct ibv_sge){ (uintptr_t)side->buf + offset, length, side->mr->lkey };
}

static inline void post_recv(struct side *side, uint64_t id, size_t offset, uint32_t length)
{
	struct ibv_sge sge = sge_of_side(side, offset, length);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(ibv_post_recv(side->qp, &wr, &bad) == 0);
}

/* Returns the number of open file descriptors of this process. */
static inline int count_descriptors(void)
{
	DIR *all = opendir("/proc/self/fd");
	int n = 0;

	CHECK(all);
	while (readdir(all))
		n++;
	closedir(all);
	return n - 3; /* do not count ".", ".." and the directory's own descriptor */
}

static inline double now_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Waits for the next completion of a completion queue and returns the completion. */
static inline struct ibv_wc wait_completion(struct ibv_cq *cq)
{
	double end = now_seconds() + SECONDS;
	struct ibv_wc wc;
	int n;

	do
		n = ibv_poll_cq(cq, 1, &wc);
	while (n == 0 && now_seconds() < end);
	CHECK(n == 1);
	return wc;
}

static inline struct ibv_wc wait_success(struct ibv_cq *cq)
{
	struct ibv_wc wc = wait_completion(cq);

	if (wc.status != IBV_WC_SUCCESS)
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
	CHECK(wc.status == IBV_WC_SUCCESS);
	return wc;
}

#endif
