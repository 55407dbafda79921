/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_dmabuf.c - memory regions of dma-bufs, which are mapped so that the CPU can
 * access them.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi/ibverbs/abi.h"

struct abi_mapping *abi_map_dmabuf(struct abi_context *ctx, int fd, uint64_t offset, size_t length,
				   bool writable, void **at)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), before = offset % page;
	struct abi_mapping *mapping;

	if (!length || length > SIZE_MAX - before)
		return abi_fail_null(abi_refuse(EINVAL,
						"length %zu of the DMA buffer is 0 or too "
						"large",
						length));
	mapping = malloc(sizeof(*mapping));
	if (!mapping)
		return abi_fail_null(ENOMEM);
	mapping->size = before + length;
	mapping->addr = mmap(NULL, mapping->size, PROT_READ | (writable ? PROT_WRITE : 0),
			     MAP_SHARED, fd, (off_t)(offset - before));
	if (mapping->addr == MAP_FAILED) {
		free(mapping);
		if (errno == EBADF || errno == EINVAL)
			return abi_fail_null(errno);
		return abi_fail_null(abi_refuse(EOPNOTSUPP,
						"the DMA buffer of descriptor %d cannot be mapped, "
						"like most of a graphics card's memory: copy the "
						"data to host memory",
						fd));
	}
	*at = (char *)mapping->addr + before;
	pthread_mutex_lock(&ctx->lock);
	mapping->next = ctx->mappings;
	ctx->mappings = mapping;
	pthread_mutex_unlock(&ctx->lock);
	return mapping;
}

void abi_unmap_dmabuf(struct abi_context *ctx, struct abi_mapping *mapping)
{
	struct abi_mapping **at = &ctx->mappings;

	pthread_mutex_lock(&ctx->lock);
	while (*at != mapping)
		at = &(*at)->next;
	*at = mapping->next;
	pthread_mutex_unlock(&ctx->lock);
	mapping->next = NULL;
	abi_unmap_dmabufs(mapping);
}

void abi_unmap_dmabufs(struct abi_mapping *mappings)
{
	while (mappings) {
		struct abi_mapping *next = mappings->next;

		munmap(mappings->addr, mappings->size);
		free(mappings);
		mappings = next;
	}
}

/* The access flags that ibv_reg_mr(3) allows for a dma-buf. */
#define TAKEN                                                               \
	((unsigned int)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |  \
			IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | \
			IBV_ACCESS_OPTIONAL_RANGE))

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
				 int fd, int access)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct abi_mapping *mapping;
	struct abi_context *ctx;
	struct ibv_mr *mr;
	void *at;
	int why;

	if (!abi_is_live_object(ABI_PD, pd))
		return abi_fail_null(EINVAL);
	if ((unsigned int)access & ~TAKEN || (offset ^ iova) % page)
		return abi_fail_null(abi_refuse(EINVAL,
						"access %#x contains unsupported flags, or offset "
						"and iova have different offsets in a page",
						(unsigned int)access));
	ctx = abi_context_of(pd->context);
	if (ctx->forks != abi_forks)
		return abi_fail_null(ESTALE);
	mapping = abi_map_dmabuf(ctx, fd, offset, length, access & IBV_ACCESS_LOCAL_WRITE, &at);
	if (!mapping)
		return NULL;
	mr = ibv_reg_mr_iova2(pd, at, length, iova, (unsigned int)access);
	if (!mr) {
		why = errno;
		abi_unmap_dmabuf(ctx, mapping);
		return abi_fail_null(why);
	}
	((struct abi_mr *)mr)->mapping = mapping;
	return mr;
}
