/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests functions that rdma-core added after release 44. The program declares the functions itself,
 * because the headers of the machine may be older.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

struct buffer;
struct attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	struct buffer *buf;
};
enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16, BUF = 32 };

#ifndef IBV_REG_MR_MASK_FD
extern struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *, struct attr *);
extern void *ibv_alloc_dmah(struct ibv_context *, void *);
extern int ibv_dealloc_dmah(void *);
extern int ibv_dm_export_dmabuf_fd(struct ibv_dm *);
extern int ibv_query_port_speed(struct ibv_context *, uint32_t, uint64_t *);
extern void *ibv_alloc_buf(struct ibv_pd *, size_t, struct buffer **);
extern void ibv_free_buf(struct buffer *);
extern struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *, struct buffer *, void *, size_t, int);
extern int ibv_export_buf_dmabuf_fd(struct buffer *);
extern int _ibv_query_comp_cntr_caps(struct ibv_context *, void *, size_t);
extern void *ibv_create_comp_cntr(struct ibv_context *, void *);
extern int ibv_destroy_comp_cntr(void *);
extern int ibv_set_comp_cntr(void *, uint64_t);
extern int ibv_set_err_comp_cntr(void *, uint64_t);
extern int ibv_inc_comp_cntr(void *, uint64_t);
extern int ibv_inc_err_comp_cntr(void *, uint64_t);
extern int ibv_read_comp_cntr(void *, uint64_t *);
extern int ibv_read_err_comp_cntr(void *, uint64_t *);
extern int ibv_qp_attach_comp_cntr(struct ibv_qp *, void *, void *);
extern const char *ibv_wr_opcode_str(int);
#endif

static int ibv_query_comp_cntr_caps(struct ibv_context *context, void *caps)
{
	return _ibv_query_comp_cntr_caps(context, caps, 16);
}

/* Reads a region from remote address `at`, and checks the data. */
static void check_read_of_region(struct ibv_mr *mr, uint64_t at, const char *wanted)
{
	struct side a, b;
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;
	struct ibv_sge sge;

	create_side(&a, IBV_QPT_RC, NULL);
	create_side(&b, IBV_QPT_RC, NULL);
	connect_sides(&a, &b);
	sge = sge_of_side(&a, 0, (uint32_t)strlen(wanted));
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.wr.rdma.remote_addr = at;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	wait_success(a.cq);
	CHECK(memcmp(a.buf, wanted, strlen(wanted)) == 0);
	destroy_side(&a);
	destroy_side(&b);
}

static void check_reg_mr_ex(void)
{
	char *buf = aligned_alloc(SIZE, SIZE);
	struct attr attr = { .length = SIZE, .access = ACCESS, .comp_mask = ADDR, .addr = buf };
	int fd = memfd_create("dmabuf", MFD_CLOEXEC);
	struct ibv_mr *mr = ibv_reg_mr_ex(pd, &attr);

	CHECK(mr && mr->addr == buf && mr->length == SIZE && mr->pd == pd);
	memcpy(buf, "by address", 10);
	check_read_of_region(mr, (uintptr_t)buf, "by address");
	CHECK(ibv_dereg_mr(mr) == 0);
	attr.comp_mask = ADDR | IOVA;
	attr.iova = 0x10000;
	mr = ibv_reg_mr_ex(pd, &attr);
	CHECK(mr);
	check_read_of_region(mr, 0x10000, "by address");
	CHECK(ibv_dereg_mr(mr) == 0);

	CHECK(fd >= 0 && ftruncate(fd, 2 * SIZE) == 0 && pwrite(fd, "by file", 7, SIZE) == 7);
	attr = (struct attr){ .length = SIZE, .access = ACCESS, .fd = fd, .fd_offset = SIZE };
	attr.comp_mask = FD | FD_OFFSET | IOVA;
	mr = ibv_reg_mr_ex(pd, &attr);
	CHECK(mr);
	check_read_of_region(mr, 0, "by file");
	CHECK(ibv_dereg_mr(mr) == 0);
	attr.comp_mask = FD | FD_OFFSET;
	mr = ibv_reg_mr_ex(pd, &attr);
	CHECK(mr);
	check_read_of_region(mr, SIZE, "by file");
	CHECK(ibv_dereg_mr(mr) == 0);

	/* ibv_reg_mr_ex requires exactly one of a memory address and a descriptor. */
	CHECK(!ibv_reg_mr_ex(pd, NULL) && errno == EINVAL);
	for (uint64_t mask = 0; mask < 64; mask++) {
		attr.comp_mask = mask;
		attr.buf = NULL;
		if (!(mask & ADDR) == !(mask & FD) || (mask & BUF) ||
		    (mask & FD_OFFSET && !(mask & FD)))
			CHECK(!ibv_reg_mr_ex(pd, &attr) && errno == EINVAL);
	}
	close(fd);
	free(buf);
}

static void check_ibv_alloc_buf(void)
{
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct buffer *buf = NULL;
	char *addr = ibv_alloc_buf(pd, SIZE + 10, &buf);
	struct attr attr = { .length = SIZE, .access = ACCESS, .comp_mask = ADDR | BUF };
	struct ibv_mr *mr;

	CHECK(other && addr && buf && (uintptr_t)addr % 4096 == 0);
	memcpy(addr + 10, "buffer", 6);
	mr = ibv_reg_buf_mr(pd, buf, addr + 10, SIZE, ACCESS);
	CHECK(mr);
	check_read_of_region(mr, (uintptr_t)addr + 10, "buffer");
	CHECK(ibv_dereg_mr(mr) == 0);
	attr.addr = addr;
	attr.buf = buf;
	mr = ibv_reg_mr_ex(pd, &attr);
	CHECK(mr && ibv_dereg_mr(mr) == 0);
	CHECK(!ibv_reg_buf_mr(other, buf, addr, SIZE, ACCESS) && errno == EINVAL);
	CHECK(!ibv_reg_buf_mr(pd, buf, addr + 11, SIZE, ACCESS) && errno == EINVAL);
	CHECK(!ibv_reg_buf_mr(pd, buf, addr - 1, 1, ACCESS) && errno == EINVAL);
	CHECK(!ibv_reg_buf_mr(pd, buf, addr, SIZE_MAX, ACCESS) && errno == EINVAL);
	CHECK(ibv_export_buf_dmabuf_fd(buf) == -1 && errno == ENODATA);
	ibv_free_buf(buf);
	CHECK(ibv_export_buf_dmabuf_fd(buf) == -1 && errno == EINVAL);
	CHECK(!ibv_reg_buf_mr(pd, buf, addr, 1, ACCESS) && errno == EINVAL);
	ibv_free_buf(buf);
	ibv_free_buf(NULL);
	CHECK(!ibv_alloc_buf(pd, 0, &buf) && errno == EINVAL);
	CHECK(!ibv_alloc_buf(pd, 1, NULL) && errno == EINVAL);
	CHECK(!ibv_alloc_buf(NULL, 1, &buf) && errno == EINVAL);
	CHECK(!ibv_alloc_buf(pd, SIZE_MAX / 2, &buf) && errno == ENOMEM);
	CHECK(ibv_dealloc_pd(other) == 0);
}

static void check_port_speed(void)
{
	struct {
		struct ibv_port_attr attr;
		uint32_t more[4];
	} port;
	uint64_t speed = 0;

	/* the unit of the port speed is 100 Mbit/s, so that 100 means 10 Gbit/s */
	CHECK(ibv_query_port_speed(ctx, PORT, &speed) == 0 && speed == 100);
	CHECK(ibv_query_port_speed(ctx, 0, &speed) == EINVAL);
	CHECK(ibv_query_port_speed(ctx, 257, &speed) == EINVAL);
	CHECK(ibv_query_port_speed(ctx, PORT, NULL) == EINVAL);
	CHECK(ibv_query_port_speed(NULL, PORT, &speed) == EINVAL);
	/*
	 * The newer struct ibv_port_attr has the additional member active_speed_ex, and may grow
	 * again.
	 */
	memset(&port, 0xff, sizeof(port));
	CHECK(verbs_get_ctx(ctx)->query_port(ctx, PORT, &port.attr, 56) == 0);
	memcpy(&speed, (char *)&port + 52, 4);
	CHECK((uint32_t)speed == port.attr.active_speed && port.attr.state == IBV_PORT_ACTIVE);
	memcpy(&speed, (char *)&port + 56, 4);
	CHECK((uint32_t)speed == 0xffffffff);
	CHECK(verbs_get_ctx(ctx)->query_port(ctx, PORT, &port.attr, 64) == 0);
	memcpy(&speed, (char *)&port + 56, 8);
	CHECK(speed == 0);
}

#define ERRNO(wanted, call) CHECK((call) == (wanted))
#define NONE(wanted, call)  CHECK(!(call) && errno == (wanted))
#define MINUS(wanted, call) CHECK((call) == -1 && errno == (wanted))

static void *allocate_nothing(struct ibv_pd *p, void *context, size_t size, size_t alignment,
			      uint64_t type)
{
	(void)p;
	(void)context;
	(void)size;
	(void)alignment;
	(void)type;
	return NULL;
}

static void check_unsupported_functions(void)
{
	struct ibv_parent_domain_init_attr own = {
		.pd = pd,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS,
		.alloc = allocate_nothing,
	};
	uint64_t number[8] = { 0 };
	struct attr attr = { .length = 8, .comp_mask = ADDR | DMAH, .addr = number };

	NONE(EOPNOTSUPP, ibv_alloc_parent_domain(ctx, &own));
	NONE(EOPNOTSUPP, ibv_reg_mr_ex(pd, &attr));
	NONE(EOPNOTSUPP, ibv_alloc_dmah(ctx, number));
	ERRNO(EOPNOTSUPP, ibv_dealloc_dmah(NULL));
	MINUS(EOPNOTSUPP, ibv_dm_export_dmabuf_fd(NULL));
	ERRNO(EOPNOTSUPP, ibv_query_comp_cntr_caps(ctx, number));
	NONE(EOPNOTSUPP, ibv_create_comp_cntr(ctx, number));
	ERRNO(EOPNOTSUPP, ibv_destroy_comp_cntr(NULL));
	ERRNO(EOPNOTSUPP, ibv_set_comp_cntr(NULL, 0));
	ERRNO(EOPNOTSUPP, ibv_set_err_comp_cntr(NULL, 0));
	ERRNO(EOPNOTSUPP, ibv_inc_comp_cntr(NULL, 1));
	ERRNO(EOPNOTSUPP, ibv_inc_err_comp_cntr(NULL, 1));
	ERRNO(EOPNOTSUPP, ibv_read_comp_cntr(NULL, number));
	ERRNO(EOPNOTSUPP, ibv_read_err_comp_cntr(NULL, number));
	ERRNO(EOPNOTSUPP, ibv_qp_attach_comp_cntr(NULL, NULL, number));
	CHECK(strcmp(ibv_wr_opcode_str(IBV_WR_SEND), "SEND") == 0);
	CHECK(strcmp(ibv_wr_opcode_str(14), "unknown") == 0);
}

int main(void)
{
	open_loopback_device();
	check_reg_mr_ex();
	check_ibv_alloc_buf();
	check_port_speed();
	check_unsupported_functions();
	close_loopback_device();
	return 0;
}
