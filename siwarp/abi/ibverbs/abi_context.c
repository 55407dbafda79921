/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/ibverbs/abi_context.c - opening, closing and importing devices, and their function tables. */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi/ibverbs/abi.h"
#include "abi/ibverbs/abi_cancel.h"

static const struct ibv_context_ops ops = {
	.alloc_mw = abi_alloc_mw,
	.bind_mw = abi_bind_mw,
	.dealloc_mw = abi_dealloc_mw,
	.poll_cq = abi_poll_cq,
	.req_notify_cq = abi_req_notify_cq,
	.post_srq_recv = abi_post_srq_recv,
	.post_send = abi_post_send,
	.post_recv = abi_post_recv,
};

/* Functions that this table does not set fail with EOPNOTSUPP in the inline wrappers of verbs.h. */
static const struct verbs_context extended = {
	.query_port = abi_query_port,
	.advise_mr = abi_advise_mr,
	.alloc_null_mr = abi_refuse_null_mr,
	.alloc_parent_domain = abi_alloc_parent_domain,
	.dealloc_td = abi_dealloc_td,
	.alloc_td = abi_alloc_td,
	.modify_qp_rate_limit = abi_modify_qp_rate_limit,
	.modify_cq = abi_modify_cq,
	.query_rt_values = abi_query_rt_values,
	.create_cq_ex = abi_create_cq_ex,
	.query_device_ex = abi_query_device_ex,
	.create_qp_ex = abi_create_qp_ex,
	.get_srq_num = abi_get_srq_num,
	.create_srq_ex = abi_create_srq_ex,
	.sz = sizeof(struct verbs_context),
};

static int refuse_poll_of_dead_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
	(void)cq;
	(void)num_entries;
	(void)wc;
	return -EINVAL;
}

static int refuse_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	(void)cq;
	(void)solicited_only;
	return EINVAL;
}

static int drop_send_to_dead_qp(struct ibv_qp *qp, struct ibv_send_wr *wr,
				struct ibv_send_wr **bad_wr)
{
	(void)qp;
	(void)wr;
	(void)bad_wr;
	return abi_post_dropped();
}

static int drop_recv_of_dead_qp(struct ibv_qp *qp, struct ibv_recv_wr *wr,
				struct ibv_recv_wr **bad_wr)
{
	(void)qp;
	(void)wr;
	(void)bad_wr;
	return abi_post_dropped();
}

static int post_recv_to_dead_srq(struct ibv_srq *srq, struct ibv_recv_wr *wr,
				 struct ibv_recv_wr **bad_wr)
{
	(void)srq;
	(void)wr;
	(void)bad_wr;
	return abi_post_dropped();
}

/*
 * Context of dead objects, in which the functions that do not check whether their object is alive
 * are replaced by functions that fail or drop the request.
 */
struct verbs_context abi_dead_context = {
	.sz = sizeof(struct verbs_context),
	.query_port = abi_query_port,
	.modify_qp_rate_limit = abi_modify_qp_rate_limit,
	.modify_cq = abi_modify_cq,
	.get_srq_num = abi_get_srq_num,
	.dealloc_td = abi_dealloc_td,
	.advise_mr = abi_advise_mr,
	.alloc_null_mr = abi_refuse_null_mr,
	.context = {
		.ops = {
			.alloc_mw = abi_alloc_mw,
			.bind_mw = abi_bind_mw,
			.dealloc_mw = abi_dealloc_mw,
			.poll_cq = refuse_poll_of_dead_cq,
			.req_notify_cq = refuse_req_notify_cq,
			.post_srq_recv = post_recv_to_dead_srq,
			.post_send = drop_send_to_dead_qp,
			.post_recv = drop_recv_of_dead_qp,
		},
		.cmd_fd = -1,
		.async_fd = -1,
		.abi_compat = (void *)UINTPTR_MAX,
	},
};

/*
 * Opens the engine's device of an interface, which may have disappeared since the device list was
 * made.
 */
static struct siw_context *open_engine_device(const char *netdev)
{
	struct siw_device **list = siw_get_device_list(NULL);
	struct siw_context *siw = NULL;
	int why = ENODEV;

	if (!list)
		return NULL;
	for (struct siw_device **one = list; *one; one++)
		if (strcmp(siw_device_info(*one)->netdev, netdev) == 0) {
			siw = siw_open_device(*one);
			why = errno;
			break;
		}
	siw_free_device_list(list);
	return siw ? siw : abi_fail_null(why);
}

static void context_init(struct abi_context *ctx, struct abi_device *device)
{
	struct ibv_context *context = &ctx->v.context;

	ctx->v = extended;
	context->device = &device->ibv;
	context->ops = ops;
	context->async_fd = siw_async_fd(ctx->siw);
	context->num_comp_vectors = siw_num_comp_vectors(ctx->siw);
	context->abi_compat = __VERBS_ABI_IS_EXTENDED;
	pthread_mutex_init(&context->mutex, NULL);
	pthread_mutex_init(&ctx->lock, NULL);
	ctx->device = device;
	ctx->forks = abi_forks;
	ctx->info = *siw_context_info(ctx->siw);
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct abi_context *ctx;
	int why = ENOMEM;

	if (!abi_is_live_object(ABI_DEVICE, device))
		return abi_fail_null(EINVAL);
	ctx = abi_alloc_object(ABI_CONTEXT);
	if (!ctx)
		return NULL;
	ctx->siw = open_engine_device(((struct abi_device *)device)->info.netdev);
	if (!ctx->siw) {
		why = errno;
		goto no_engine;
	}
	context_init(ctx, (struct abi_device *)device);
	/*
	 * cmd_fd must be a valid descriptor, because programs poll it, duplicate it and pass it to
	 * ibv_import_device.
	 */
	ctx->v.context.cmd_fd = memfd_create("siwarp", MFD_CLOEXEC);
	if (ctx->v.context.cmd_fd < 0) {
		why = errno;
		goto no_fd;
	}
	abi_device_add_reference(ctx->device);
	if (!abi_register_handle(ABI_CONTEXT, &ctx->v.context, NULL))
		goto not_added;
	return &ctx->v.context;

not_added:
	abi_device_drop_reference(ctx->device);
	abi_close_fd(ctx->v.context.cmd_fd);
no_fd:
	siw_close_device_forced(ctx->siw);
no_engine:
	abi_free_object(ABI_CONTEXT, ctx);
	return abi_fail_null(why);
}

/* Returns whether cmd_fd of a context refers to the file *wanted. */
static bool context_cmd_fd_refers_to_file(void *handle, const void *wanted)
{
	const struct stat *file = wanted;
	const struct ibv_context *context = handle;
	struct stat own;

	return fstat(context->cmd_fd, &own) == 0 && own.st_dev == file->st_dev &&
	       own.st_ino == file->st_ino;
}

/*
 * Removes one import of a context, and closes the descriptor that was passed to ibv_import_device.
 * Returns false if the context has no import.
 */
static bool context_release_import(struct abi_context *ctx)
{
	struct abi_import *import;
	struct stat file;

	pthread_mutex_lock(&ctx->lock);
	import = ctx->imports;
	if (import)
		ctx->imports = import->next;
	pthread_mutex_unlock(&ctx->lock);
	if (!import)
		return false;
	/*
	 * Close the imported descriptor only if it still refers to the context's file: the program
	 * may have closed it by mistake, and its number may have been reused.
	 */
	if (fstat(import->fd, &file) == 0 && context_cmd_fd_refers_to_file(&ctx->v.context, &file))
		abi_close_fd(import->fd);
	free(import);
	return true;
}

int ibv_close_device(struct ibv_context *context)
{
	struct abi_mapping *mappings;
	struct abi_context *ctx;
	struct abi_device *device;
	struct siw_context *siw;
	int fd;

	if (!abi_is_live_object(ABI_CONTEXT, context)) {
		abi_fail(EINVAL);
		return -1;
	}
	ctx = abi_context_of(context);
	if (ctx->forks == abi_forks && context_release_import(ctx))
		return 0;
	device = ctx->device;
	siw = ctx->siw;
	fd = context->cmd_fd;
	mappings = ctx->mappings;
	/*
	 * Closing a device also ends the objects of the device that the program has not destroyed.
	 */
	if (!abi_mark_context_dead(context)) {
		errno = EINVAL;
		return -1;
	}
	siw_close_device_forced(siw);
	abi_unmap_dmabufs(mappings);
	abi_close_fd(fd);
	abi_device_drop_reference(device);
	return 0;
}

struct ibv_context *ibv_import_device(int cmd_fd)
{
	struct ibv_context *context;
	struct abi_import *import;
	struct abi_context *ctx;
	struct stat file;

	if (fstat(cmd_fd, &file) != 0)
		return NULL;
	/*
	 * A device of another process cannot be imported, because its queues and sockets exist only
	 * in the other process.
	 */
	context = abi_find_object(ABI_CONTEXT, context_cmd_fd_refers_to_file, &file);
	if (!context)
		return abi_fail_null(abi_refuse(EINVAL,
						"descriptor %d is not cmd_fd of a device context "
						"of this process",
						cmd_fd));
	import = malloc(sizeof(*import));
	if (!import)
		return abi_fail_null(ENOMEM);
	ctx = abi_context_of(context);
	/* the end of the import must not close the descriptor cmd_fd of the context */
	import->fd = cmd_fd != context->cmd_fd ? cmd_fd : -1;
	pthread_mutex_lock(&ctx->lock);
	import->next = ctx->imports;
	ctx->imports = import;
	pthread_mutex_unlock(&ctx->lock);
	return context;
}
