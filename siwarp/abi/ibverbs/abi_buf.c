/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_buf.c - memory that the library allocates for programs (IBVERBS_1.17 and 1.18).
 */
#include <sys/mman.h>

#include "abi/ibverbs/abi.h"

ABI_EXPORT void *abi_alloc_buf(struct ibv_pd *pd, size_t size, struct abi_buf **buf);
ABI_EXPORT void abi_free_buf(struct abi_buf *buf);
ABI_EXPORT struct ibv_mr *abi_reg_buf_mr(struct ibv_pd *pd, struct abi_buf *buf, void *addr,
					 size_t length, int access);
ABI_EXPORT int abi_export_buf_dmabuf_fd(struct abi_buf *buf);

ABI_VERSION(abi_alloc_buf, ibv_alloc_buf, 1.17);
void *abi_alloc_buf(struct ibv_pd *pd, size_t size, struct abi_buf **buf)
{
	struct abi_buf *made;
	void *addr;
	int why;

	if (!abi_is_live_object(ABI_PD, pd) || !abi_is_given(buf, "buf"))
		return abi_fail_null(EINVAL);
	if (!size)
		return abi_fail_null(abi_refuse(EINVAL, "size is 0: pass a number of octets"));
	made = abi_alloc_object(ABI_BUF);
	if (!made)
		return NULL;
	addr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	why = errno;
	if (addr != MAP_FAILED) {
		*made = (struct abi_buf){ pd->context, pd, addr, size };
		if (abi_register_handle(ABI_BUF, made, NULL)) {
			*buf = made;
			return addr;
		}
		why = ENOMEM;
		munmap(addr, size);
	}
	abi_free_object(ABI_BUF, made);
	return abi_fail_null(why);
}

ABI_VERSION(abi_free_buf, ibv_free_buf, 1.17);
void abi_free_buf(struct abi_buf *buf)
{
	struct abi_buf gone;

	if (!abi_is_live_object(ABI_BUF, buf))
		return;
	gone = *buf;
	abi_mark_object_dead(ABI_BUF, buf);
	munmap(gone.addr, gone.size);
}

bool abi_buf_contains(const struct abi_buf *buf, const struct ibv_pd *pd, const void *addr,
		      size_t length)
{
	uintptr_t offset = (uintptr_t)addr - (uintptr_t)buf->addr;

	return buf->pd == pd && offset < buf->size && length <= buf->size - offset;
}

ABI_VERSION(abi_reg_buf_mr, ibv_reg_buf_mr, 1.17);
struct ibv_mr *abi_reg_buf_mr(struct ibv_pd *pd, struct abi_buf *buf, void *addr, size_t length,
			      int access)
{
	if (!abi_is_live_object(ABI_PD, pd) || !abi_is_live_object(ABI_BUF, buf))
		return abi_fail_null(EINVAL);
	if (!abi_buf_contains(buf, pd, addr, length))
		return abi_fail_null(abi_refuse(EINVAL, "the memory is not within buf, or buf has "
							"another PD"));
	return ibv_reg_mr(pd, addr, length, access);
}

ABI_VERSION(abi_export_buf_dmabuf_fd, ibv_export_buf_dmabuf_fd, 1.18);
int abi_export_buf_dmabuf_fd(struct abi_buf *buf)
{
	/* The buffer is ordinary process memory, which has no dma-buf. */
	errno = abi_is_live_object(ABI_BUF, buf) ? ENODATA : EINVAL;
	return -1;
}
