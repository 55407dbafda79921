/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * More invalid arguments: calls with valid handles but a NULL result pointer, and functions without
 * a handle parameter. A function without a return value must not write through a NULL pointer.
 */
#include <infiniband/sa.h>
#include <limits.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <siwarp/ibv_ext.h>

#include "bad.h"

extern int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index,
			      int *type);
extern int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);
extern const char *ibv_get_sysfs_path(void);
extern int ibv_dontfork_range(void *base, size_t size);
extern int ibv_dofork_range(void *base, size_t size);
extern void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *dst, struct ib_uverbs_ah_attr *src);
extern void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *dst, struct ib_uverbs_qp_attr *src);
extern void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *dst, struct ib_user_path_rec *src);
extern void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *dst, struct ibv_sa_path_rec *src);

/*
 * Functions of libibverbs for providers (drivers of adapters), of which siwarp has none. Newer
 * headers declare some of the functions differently.
 */
extern int read_ibdev_file(void *buf, size_t size, void *device,
			   const char *file) __asm__("ibv_read_ibdev_sysfs_file");
extern void *heap_alloc(void *heap, size_t size) __asm__("ibv_dmabuf_heap_alloc");
extern void *heap_init(void) __asm__("ibv_dmabuf_heap_cc_shared_init");
extern void heap_free(void *buf) __asm__("ibv_dmabuf_heap_free");
extern void heap_destroy(void *heap) __asm__("ibv_dmabuf_heap_destroy");

static void *volatile nothing; /* a NULL pointer that the compiler cannot recognise as NULL */

/* Checks functions of a context with NULL result pointers. */
static void check_null_result_pointers_of_context(void)
{
	struct ibv_ah_attr to = loopback_ah_attr();
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
	uint8_t mac[6];
	uint16_t vid;

	which = "NULL for the result";
	ERRNO(EINVAL, ibv_query_device_ex(ctx, NULL, nothing));
	ERRNO(EINVAL, _ibv_query_gid_ex(ctx, 1, 0, nothing, 0, sizeof(struct ibv_gid_entry)));
	MINUS(EINVAL, ibv_query_gid_type(ctx, 1, 0, nothing));
	NONE(EINVAL, ibv_alloc_td(ctx, nothing));
	NONE(EINVAL, ibv_alloc_parent_domain(ctx, nothing));
	MINUS(EINVAL, ibv_init_ah_from_wc(ctx, 1, &wc, (struct ibv_grh *)memory, nothing));
	ERRNO(-EINVAL, ibv_resolve_eth_l2_from_gid(ctx, &to, nothing, &vid));
	which = "NULL for what is asked of";
	MINUS(EINVAL, ibv_init_ah_from_wc(ctx, 1, nothing, (struct ibv_grh *)memory, &to));
	MINUS(EINVAL, ibv_init_ah_from_wc(ctx, 1, &wc, nothing, &to));
	NONE(EINVAL, ibv_create_ah_from_wc(pd, nothing, (struct ibv_grh *)memory, 1));
	NONE(EINVAL, ibv_create_ah_from_wc(pd, &wc, nothing, 1));
	ERRNO(-EINVAL, ibv_resolve_eth_l2_from_gid(ctx, nothing, mac, &vid));
	which = "a header that is none";
	MINUS(EINVAL, ibv_init_ah_from_wc(ctx, 1, &wc, (struct ibv_grh *)memory, &to));
	NONE(EINVAL, ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)memory, 1));
}

/* Checks functions of queues with NULL result pointers. */
static void check_null_result_pointers_of_queues(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_srq_init_attr srq_init = { .attr = { 1, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, channel, 0), *got;
	struct ibv_qp_init_attr init = default_qp_attr(cq, IBV_QPT_RC);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr;

	CHECK(channel && srq && cq && qp);
	which = "NULL for the result";
	ERRNO(EINVAL, ibv_query_qp(qp, &attr, IBV_QP_STATE, nothing));
	ERRNO(EINVAL, ibv_query_qp(qp, nothing, IBV_QP_STATE, nothing));
	MINUS(EINVAL, ibv_get_cq_event(channel, &got, nothing));
	MINUS(EINVAL, ibv_get_cq_event(channel, nothing, nothing));
	ERRNO(EINVAL, ibv_get_srq_num(srq, nothing));
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

/*
 * Checks the lookup of siwarp's objects by invalid handles, handles of another kind, and destroyed
 * handles.
 */
static void check_siwarp_object_lookup(void)
{
	struct ibv_pd *gone = ibv_alloc_pd(ctx);
	void *handles[] = { NULL, (void *)(uintptr_t)0x10, memory + 1, memory, NULL };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct ibv_qp_init_attr_ex ex = { .qp_type = IBV_QPT_RC };
	struct siw_qp_init_attr more = { 0 };
	struct ibv_qp_attr attr = { .timeout = 1 };

	CHECK(gone && ibv_dealloc_pd(gone) == 0);
	handles[4] = gone;
	which = "a handle that is none";
	for (int i = 0; i < 5; i++) {
		NONE(EINVAL, siw_ibv_context(handles[i]));
		NONE(EINVAL, siw_ibv_pd(handles[i]));
		NONE(EINVAL, siw_ibv_mr(handles[i]));
		NONE(EINVAL, siw_ibv_cq(handles[i]));
		NONE(EINVAL, siw_ibv_qp(handles[i]));
		NONE(EINVAL, siw_ibv_srq(handles[i]));
		NONE(EINVAL, siw_ibv_ah(handles[i]));
		NONE(EINVAL, siw_ibv_create_qp(handles[i], &init, &more));
		NONE(EINVAL, siw_ibv_create_qp(handles[i], &init, NULL));
		NONE(EINVAL, siw_ibv_create_cm_qp(handles[i], &ex));
		ERRNO(1, siw_ibv_find_qp(handles[i], 1) == NULL);
		siw_ibv_pd_of_ids(handles[i]);
		siw_ibv_show_attr(handles[i], &attr, IBV_QP_TIMEOUT);
	}
	which = "a handle of another kind";
	NONE(EINVAL, siw_ibv_context((struct ibv_context *)pd));
	NONE(EINVAL, siw_ibv_qp((struct ibv_qp *)ctx));
	which = "no attributes, and none that are right";
	NONE(EINVAL, siw_ibv_create_qp(pd, NULL, &more));
	NONE(EINVAL, siw_ibv_create_qp(pd, &init, &more));
	NONE(EINVAL, siw_ibv_create_cm_qp(ctx, NULL));
	NONE(EINVAL, siw_ibv_create_cm_qp(ctx, &ex));
	which = "a number that no queue pair has";
	ERRNO(1, siw_ibv_find_qp(ctx, 0) == NULL);
}

/* Checks that a copy function changes neither object if either pointer is NULL. */
#define COPIES_NOTHING(function, to, from)                                 \
	do {                                                               \
		to dst;                                                    \
		from src;                                                  \
		memset(&dst, 0x5a, sizeof(dst));                           \
		memset(&src, 0xa5, sizeof(src));                           \
		function(&dst, nothing);                                   \
		function(nothing, &src);                                   \
		function(nothing, nothing);                                \
		ERRNO(1, all_octets_equal(&dst, sizeof(dst), 0x5a));       \
		ERRNO(1, all_octets_equal(&src, sizeof(src), (char)0xa5)); \
	} while (0)

static int all_octets_equal(const void *at, size_t size, char octet)
{
	const char *octets = at;

	while (size && octets[size - 1] == octet)
		size--;
	return size == 0;
}

static void check_copies_with_null(void)
{
	which = "NULL";
	COPIES_NOTHING(ibv_copy_ah_attr_from_kern, struct ibv_ah_attr, struct ib_uverbs_ah_attr);
	COPIES_NOTHING(ibv_copy_qp_attr_from_kern, struct ibv_qp_attr, struct ib_uverbs_qp_attr);
	COPIES_NOTHING(ibv_copy_path_rec_from_kern, struct ibv_sa_path_rec,
		       struct ib_user_path_rec);
	COPIES_NOTHING(ibv_copy_path_rec_to_kern, struct ib_user_path_rec, struct ibv_sa_path_rec);
}

/* Checks that ibv_dofork_range and ibv_dontfork_range accept any range in any order. */
static void check_dofork_and_dontfork_ranges(void)
{
	static const size_t sizes[] = { 0, 1, 4095, SIZE_MAX };
	char *const bases[] = { NULL, memory, memory + 1, (char *)UINTPTR_MAX };

	which = "a range that is none";
	for (int base = 0; base < 4; base++)
		for (int size = 0; size < 4; size++) {
			ERRNO(0, ibv_dofork_range(bases[base], sizes[size]));
			ERRNO(0, ibv_dontfork_range(bases[base], sizes[size]));
		}
	/* The libraries of adapters refuse ibv_fork_init while a device is open. */
	which = "an open device";
	ERRNO(0, ibv_fork_init());
	ERRNO(0, ibv_fork_init());
	ERRNO(IBV_FORK_UNNEEDED, (int)ibv_is_fork_initialized());
}

static void check_sysfs_calls(void)
{
	char long_name[PATH_MAX + 1], text[8];

	memset(long_name, 'a', PATH_MAX);
	long_name[PATH_MAX] = '\0';
	which = "NULL";
	MINUS(EINVAL, ibv_read_sysfs_file(nothing, "file", text, sizeof(text)));
	MINUS(EINVAL, ibv_read_sysfs_file("/sys", nothing, text, sizeof(text)));
	MINUS(EINVAL, ibv_read_sysfs_file("/sys", "file", nothing, sizeof(text)));
	which = "a name that is too long";
	MINUS(EINVAL, ibv_read_sysfs_file("/sys", long_name, text, sizeof(text)));
	which = "a directory";
	MINUS(EISDIR, ibv_read_sysfs_file("/", "sys", text, sizeof(text)));
	which = "SYSFS_PATH that is empty";
	CHECK(setenv("SYSFS_PATH", "", 1) == 0);
	ERRNO(0, strcmp(ibv_get_sysfs_path(), "/sys"));
	which = "SYSFS_PATH that does not exist";
	CHECK(setenv("SYSFS_PATH", "/nowhere", 1) == 0);
	ERRNO(0, strcmp(ibv_get_sysfs_path(), "/nowhere"));
	CHECK(unsetenv("SYSFS_PATH") == 0);
}

static void check_unsupported_provider_functions(void)
{
	which = "what is for providers";
	ERRNO(EOPNOTSUPP, read_ibdev_file(memory, SIZE, nothing, "file"));
	NONE(EOPNOTSUPP, heap_alloc(nothing, SIZE));
	NONE(EOPNOTSUPP, heap_init());
	heap_free(nothing);
	heap_free(memory);
	heap_destroy(nothing);
	heap_destroy(memory);
	ERRNO(1, all_octets_equal(memory, SIZE, 0));
}

int main(void)
{
	open_loopback_device();
	check_null_result_pointers_of_context();
	check_null_result_pointers_of_queues();
	check_siwarp_object_lookup();
	check_copies_with_null();
	check_dofork_and_dontfork_ranges();
	check_sysfs_calls();
	check_unsupported_provider_functions();
	close_loopback_device();
	return exit_code_of_refusals(130);
}
