/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tests the results of calls on devices, ports, regions, queues and events. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

static atomic_bool forked;

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

extern int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index,
			      int *type);

static void check_device_and_port(void)
{
	struct ibv_device_attr_ex attr;
	struct ibv_gid_entry entry, table[32];
	struct ibv_port_attr port;
	union ibv_gid one;
	__be16 pkey;
	int type = -1;

	CHECK(ibv_query_device_ex(ctx, NULL, &attr) == 0 && attr.phys_port_cnt_ex == 1);
	CHECK(attr.orig_attr.vendor_id);
	CHECK(attr.orig_attr.phys_port_cnt == 1 && attr.orig_attr.max_qp > 0);
	CHECK(attr.orig_attr.max_qp_rd_atom >= 16 && attr.orig_attr.max_srq_wr >= 4095);
	CHECK(ibv_query_port(ctx, PORT, &port) == 0 && port.state == IBV_PORT_ACTIVE);
	CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.active_mtu == IBV_MTU_4096);
	CHECK(port.pkey_tbl_len == 1 && port.gid_tbl_len >= 1 && port.lid == 0);
	CHECK(ibv_query_pkey(ctx, PORT, 0, &pkey) == 0 && pkey == 0xffff);
	CHECK(ibv_get_pkey_index(ctx, PORT, 0xffff) == 0);
	CHECK(ibv_query_gid_table(ctx, table, 32, 0) >= 2);
	CHECK(table[0].gid_type == IBV_GID_TYPE_ROCE_V2 && table[0].port_num == PORT);
	CHECK(table[0].ndev_ifindex == (uint32_t)ibv_get_device_index(ctx->device));
	CHECK(ibv_query_gid_ex(ctx, PORT, 0, &entry, 0) == 0);
	CHECK(memcmp(&entry.gid, &gid, sizeof(gid)) == 0);
	CHECK(ibv_query_gid_ex(ctx, PORT, (uint32_t)port.gid_tbl_len - 1, &entry, 0) == ENODATA);
	CHECK(ibv_query_gid(ctx, PORT, port.gid_tbl_len - 1, &one) == 0 &&
	      !one.global.interface_id);
	CHECK(ibv_query_gid_type(ctx, PORT, 0, &type) == 0 && type == 1);
	CHECK(ibv_get_device_guid(ctx->device) == attr.orig_attr.node_guid);
	CHECK(ibv_fork_init() == 0 && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	CHECK(fcntl(ctx->cmd_fd, F_GETFD) >= 0 && fcntl(ctx->async_fd, F_GETFD) >= 0);
}

static void check_memory_regions(void)
{
	char *buf = calloc(2, SIZE);
	struct ibv_mr *mr, *same;
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	uint32_t before;

	CHECK(buf && other);
	mr = ibv_reg_mr(pd, buf, SIZE, ACCESS | IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_HUGETLB);
	CHECK(mr && mr->pd == pd && mr->context == ctx);
	same = ibv_import_mr(pd, mr->handle);
	CHECK(same && same->lkey == mr->lkey);
	ibv_unimport_mr(same);
	before = mr->rkey;
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD, other,
			   buf + SIZE, SIZE, 0) == 0);
	CHECK(mr->pd == other && mr->addr == buf + SIZE && mr->rkey != before);
	CHECK(ibv_dealloc_pd(other) == EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dealloc_pd(other) == 0);
	CHECK(ibv_reg_mr(pd, NULL, SIZE, ACCESS) == NULL && errno == EFAULT);
	CHECK(ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_REMOTE_WRITE) == NULL && errno == EINVAL);
	free(buf);
}

/*
 * Checks a Write to offset 100 of a region whose remote addresses start at 0x10000, from a region
 * whose addresses start at 0x20000.
 */
static void check_iova_regions(struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, uint64_t))
{
	struct side a, b;
	struct ibv_mr *from, *to;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;

	create_side(&a, IBV_QPT_RC, NULL);
	create_side(&b, IBV_QPT_RC, NULL);
	connect_sides(&a, &b);
	from = reg(pd, a.buf, SIZE, 0x20000);
	to = reg(pd, b.buf, SIZE, 0x10000);
	CHECK(from && to && to->addr == b.buf && to->length == SIZE);
	memcpy(a.buf + 8, "elsewhere", 9);
	sge = (struct ibv_sge){ 0x20000 + 8, 9, from->lkey };
	wr.wr.rdma.remote_addr = 0x10000 + 100;
	wr.wr.rdma.rkey = to->rkey;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	wait_success(a.cq);
	/* Reading the octets back proves that the Write has been placed. */
	memset(a.buf, 0, SIZE);
	wr.opcode = IBV_WR_RDMA_READ;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	wait_success(a.cq);
	CHECK(memcmp(a.buf + 8, "elsewhere", 9) == 0 && memcmp(b.buf + 100, "elsewhere", 9) == 0);
	CHECK(ibv_dereg_mr(from) == 0 && ibv_dereg_mr(to) == 0);
	destroy_side(&a);
	destroy_side(&b);
}

static struct ibv_mr *reg_mr_iova(struct ibv_pd *of, void *addr, size_t length, uint64_t iova)
{
	return (ibv_reg_mr_iova)(of, addr, length, iova, ACCESS);
}

static struct ibv_mr *reg_mr_iova2(struct ibv_pd *of, void *addr, size_t length, uint64_t iova)
{
	return ibv_reg_mr_iova2(of, addr, length, iova, ACCESS | IBV_ACCESS_RELAXED_ORDERING);
}

static int count_dmabuf_mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	CHECK(maps);
	while (fgets(line, sizeof(line), maps))
		n += strstr(line, "memfd:dmabuf") != NULL;
	fclose(maps);
	return n;
}

/* Checks regions of memory that is mapped from a descriptor, as the memory of a dma-buf is. */
static void check_dmabuf(void)
{
	int fd = memfd_create("dmabuf", MFD_CLOEXEC), pipes[2];
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *other = ibv_open_device(list[0]);
	struct ibv_pd *left = ibv_alloc_pd(other);
	struct ibv_mr *mr;

	CHECK(fd >= 0 && ftruncate(fd, 3 * SIZE) == 0 && pipe(pipes) == 0 && left);
	mr = ibv_reg_dmabuf_mr(pd, SIZE + 100, 500, 100, fd, ACCESS | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(mr && mr->length == 500 && count_dmabuf_mappings() == 1);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) ==
	      IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_dereg_mr(mr) == 0 && count_dmabuf_mappings() == 0);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, SIZE, 0, pipes[0], ACCESS) && errno == EOPNOTSUPP);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, SIZE, 0, -1, ACCESS) && errno == EBADF);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 0, 0, fd, ACCESS) && errno == EINVAL);
	/*
	 * Offset and iova must have the same offset within a page; only a few access flags are
	 * supported.
	 */
	CHECK(!ibv_reg_dmabuf_mr(pd, 100, SIZE, 0, fd, ACCESS) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, SIZE, 0, fd, IBV_ACCESS_ZERO_BASED) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, SIZE, 0, fd, IBV_ACCESS_ON_DEMAND) && errno == EINVAL);
	CHECK(count_dmabuf_mappings() == 0);
	/* A region that was not deregistered is released with its device. */
	CHECK(ibv_reg_dmabuf_mr(left, 0, SIZE, 0, fd, ACCESS) && count_dmabuf_mappings() == 1);
	CHECK(ibv_reg_dmabuf_mr(left, 0, SIZE, 0, fd, ACCESS) && count_dmabuf_mappings() == 2);
	CHECK(ibv_close_device(other) == 0 && count_dmabuf_mappings() == 0);
	ibv_free_device_list(list);
	close(fd);
	close(pipes[0]);
	close(pipes[1]);
}

/*
 * Checks that advice to prefetch memory is accepted only for a region of the same protection
 * domain, and advice to prefetch for writing only for a writable region.
 */
static void check_advise_mr(void)
{
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	char *buf = calloc(1, SIZE);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_ON_DEMAND);
	struct ibv_sge sge = { (uintptr_t)buf, SIZE, mr->lkey };

#define ADVISE(pd_, what) ibv_advise_mr(pd_, IBV_ADVISE_MR_ADVICE_##what, 0, &sge, 1)
	CHECK(mr && other);
	CHECK(ADVISE(pd, PREFETCH) == 0 && ADVISE(pd, PREFETCH_NO_FAULT) == 0);
	CHECK(ADVISE(pd, PREFETCH_WRITE) == EPERM && ADVISE(other, PREFETCH) == EPERM);
	sge.addr++;
	CHECK(ADVISE(pd, PREFETCH) == EFAULT);
	sge = (struct ibv_sge){ (uintptr_t)buf, SIZE, mr->lkey + 0x100 };
	CHECK(ADVISE(pd, PREFETCH) == EFAULT);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 2, &sge, 1) == EINVAL);
	CHECK(ibv_advise_mr(pd, (enum ibv_advise_mr_advice)9, 0, &sge, 1) == ENOTSUP);
#undef ADVISE
	/* A zero-based region stays zero-based when its memory is changed. */
	CHECK(ibv_dereg_mr(mr) == 0);
	mr = ibv_reg_mr(pd, buf, SIZE / 2, IBV_ACCESS_ZERO_BASED);
	CHECK(mr && ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, buf + SIZE / 2,
				 SIZE / 2, 0) == 0);
	sge = (struct ibv_sge){ 0, SIZE / 2, mr->lkey };
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 1, &sge, 1) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(other) == 0);
	free(buf);
}

static void check_parent_domains_and_imports(void)
{
	struct ibv_td_init_attr none = { 0 };
	struct ibv_td *td = ibv_alloc_td(ctx, &none);
	struct ibv_parent_domain_init_attr init = { .pd = pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &init), *same;
	struct ibv_context *again;
	char buf[64];
	struct ibv_mr *mr;
	int fd;

	CHECK(td && parent);
	CHECK(ibv_dealloc_td(td) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	mr = ibv_reg_mr(parent, buf, sizeof(buf), ACCESS);
	CHECK(mr && mr->pd == parent && ibv_dealloc_pd(parent) == EBUSY && ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dealloc_pd(parent) == 0 && ibv_dealloc_td(td) == 0);

	fd = dup(ctx->cmd_fd);
	again = ibv_import_device(fd);
	CHECK(again == ctx);
	same = ibv_import_pd(again, pd->handle);
	CHECK(same == pd);
	ibv_unimport_pd(same);
	/* Closing an imported context closes the imported descriptor and leaves the device open. */
	CHECK(ibv_close_device(again) == 0 && fcntl(fd, F_GETFD) == -1);
	CHECK(ibv_import_device(ctx->cmd_fd) == ctx && ibv_close_device(ctx) == 0);
	CHECK(fcntl(ctx->cmd_fd, F_GETFD) >= 0);
	CHECK(ibv_import_device(0) == NULL && errno == EINVAL);
}

static void check_completion_events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	struct ibv_recv_wr wr = { .wr_id = 3 }, *bad;
	struct ibv_cq *cq, *got;
	struct ibv_qp *qp;
	void *user;

	CHECK(channel);
	cq = ibv_create_cq(ctx, 10, &channel, channel, 0);
	CHECK(cq);
	init = default_qp_attr(cq, IBV_QPT_UD);
	qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	move_qp_to_init(qp);
	CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ibv_get_cq_event(channel, &got, &user) == -1 && errno == EAGAIN);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	CHECK(poll(&(struct pollfd){ channel->fd, POLLIN, 0 }, 1, SECONDS * 1000) == 1);
	CHECK(ibv_get_cq_event(channel, &got, &user) == 0 && got == cq && user == &channel);
	ibv_ack_cq_events(cq, 1);
	CHECK(wait_completion(cq).status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_resize_cq(cq, 1000) == 0 && cq->cqe >= 1000);
	CHECK(ibv_resize_cq(cq, 10) == 0 && cq->cqe >= 10 && cq->cqe < 256);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY && ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
}

/*
 * Checks that resizing a completion queue keeps its completions, and cannot shrink the completion
 * queue below their number.
 */
static void check_cq_resize(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_cq *cq = ibv_create_cq(ctx, 10, NULL, NULL, 0);
	struct ibv_qp_init_attr init = default_qp_attr(cq, IBV_QPT_UD);
	struct ibv_recv_wr wr = { .wr_id = 0 }, *bad;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	int before;

	CHECK(cq && qp);
	move_qp_to_init(qp);
	for (; wr.wr_id < 5; wr.wr_id++)
		CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	before = cq->cqe;
	CHECK(ibv_resize_cq(cq, 2) == EINVAL && cq->cqe == before);
	CHECK(ibv_resize_cq(cq, 5) == 0 && cq->cqe >= 5);
	CHECK(wait_completion(cq).wr_id == 0);
	CHECK(ibv_resize_cq(cq, 5000) == 0 && cq->cqe >= 5000);
	for (uint64_t id = 1; id < 5; id++)
		CHECK(wait_completion(cq).wr_id == id);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

/* Checks that resizing a shared receive queue keeps its posted receives. */
static void check_srq_resize(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 100, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init), *other = ibv_create_srq(pd, &init);
	struct ibv_srq_attr attr = { .max_wr = 200 };
	struct ibv_recv_wr wr = { .wr_id = 0 }, *bad;
	uint32_t one, two;

	CHECK(srq && other);
	CHECK(ibv_get_srq_num(srq, &one) == 0 && ibv_get_srq_num(other, &two) == 0 && one != two);
	for (int i = 0; i < 100; i++)
		CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == 0);
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr >= 200);
	for (int i = 100; i < 200; i++)
		CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
	/* The shared receive queue cannot shrink below the number of posted receives. */
	attr.max_wr = 150;
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == EINVAL);
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr >= 200);
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_srq(other) == 0);
}

static void check_async_events(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_srq_attr limit = { .srq_limit = 4 };
	struct ibv_async_event event;
	uint32_t number;

	CHECK(srq);
	CHECK(fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ibv_get_async_event(ctx, &event) == -1 && errno == EAGAIN);
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
	CHECK(poll(&(struct pollfd){ ctx->async_fd, POLLIN, 0 }, 1, SECONDS * 1000) == 1);
	CHECK(ibv_get_async_event(ctx, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	ibv_ack_async_event(&event);
	CHECK(ibv_get_srq_num(srq, &number) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
}

/*
 * Acquires the library's locks repeatedly, so that the locks may be held when another thread forks.
 *
 */
static void *call_library_until_fork(void *unused)
{
	struct ibv_ah_attr path = loopback_ah_attr();

	while (!atomic_load(&forked)) {
		struct ibv_ah *ah = ibv_create_ah(pd, &path);
		union ibv_gid one;

		CHECK(ah && ibv_query_gid(ctx, PORT, 0, &one) == 0 && ibv_destroy_ah(ah) == 0);
	}
	return unused;
}

static void check_objects_stale_in_forked_child(struct ibv_qp_ex *qpx, struct ibv_cq_ex *cqx)
{
	struct ibv_ah_attr path = loopback_ah_attr();
	struct ibv_gid_entry entry;
	union ibv_gid one;

	alarm(SECONDS); /* kills a child that hangs on a lock held by a thread of the parent */
	CHECK(ibv_alloc_pd(ctx) == NULL && errno == ESTALE);
	CHECK(!ibv_create_ah(pd, &path) && errno == ESTALE);
	CHECK(ibv_query_gid(ctx, PORT, 0, &one) == -1 && errno == ESTALE);
	CHECK(ibv_query_gid_ex(ctx, PORT, 0, &entry, 0) == ESTALE);
	CHECK(ibv_query_gid_table(ctx, &entry, 1, 0) == -ESTALE);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, SIZE, 0, ctx->cmd_fd, 0) && errno == ESTALE);
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	CHECK(ibv_wr_complete(qpx) == ESTALE && ibv_start_poll(cqx, NULL) == ESTALE);
	ibv_close_device(ctx);
	/* ThreadSanitizer cannot start a thread in the forked child of a multithreaded process. */
	if (!getenv("TSAN_OPTIONS")) {
		open_loopback_device();
		close_loopback_device();
	}
	_exit(0);
}

/* Checks that inherited objects are unusable in a forked child, but the child can open devices. */
static void check_forked_children(void)
{
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 1 };
	struct ibv_cq_ex *cqx = ibv_create_cq_ex(ctx, &cq_init);
	struct ibv_qp_init_attr base = default_qp_attr(ibv_cq_ex_to_cq(cqx), IBV_QPT_RC);
	struct ibv_qp_init_attr_ex init = { 0 };
	pthread_t thread;
	struct ibv_qp *qp;
	int status;

	memcpy(&init, &base, sizeof(base));
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.pd = pd;
	qp = ibv_create_qp_ex(ctx, &init);
	CHECK(cqx && qp && pthread_create(&thread, NULL, call_library_until_fork, NULL) == 0);
	ibv_wr_start(ibv_qp_to_qp_ex(qp));
	for (int i = 0; i < 10; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (child == 0)
			check_objects_stale_in_forked_child(ibv_qp_to_qp_ex(qp), cqx);
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	}
	ibv_wr_abort(ibv_qp_to_qp_ex(qp));
	atomic_store(&forked, true);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cqx)) == 0);
}

/* Checks that a device can be closed while objects of the device are still open. */
static void check_close_succeeds_despite_objects(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *mine = ibv_open_device(list[0]);
	struct ibv_pd *left;
	struct ibv_cq *cq;

	CHECK(mine);
	left = ibv_alloc_pd(mine);
	cq = ibv_create_cq(mine, 1, NULL, NULL, 0);
	CHECK(left && cq && ibv_close_device(mine) == 0);
	CHECK(ibv_dealloc_pd(left) == EINVAL && ibv_destroy_cq(cq) == EINVAL);
	CHECK(ibv_close_device(mine) == -1 && errno == EINVAL);
	ibv_free_device_list(list);
}

int main(void)
{
	open_loopback_device();
	check_device_and_port();
	check_memory_regions();
	check_iova_regions(reg_mr_iova);
	check_iova_regions(reg_mr_iova2);
	check_dmabuf();
	check_advise_mr();
	check_parent_domains_and_imports();
	check_completion_events();
	check_cq_resize();
	check_srq_resize();
	check_async_events();
	check_forked_children();
	check_close_succeeds_despite_objects();
	close_loopback_device();
	return 0;
}
