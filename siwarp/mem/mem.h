/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mem/mem.h - memory that messages are placed into or sent from: STags and the memory they name,
 * scatter/gather lists, atomics, and queues of receive buffers. mem_queue.h is part of this
 * interface.
 *
 * What this folder does NOT do: know segments, messages or sockets.
 *
 * Functions return 0 or a count, or -errno. Lengths and offsets are in octets.
 *
 * Locks: functions on STags, elements and atomics need none. siw_mem_buffer_queue_post: one thread
 * at a time; siw_mem_buffer_queue_posted_count: any thread; siw_mem_buffer_queue_resize and
 * siw_mem_buffer_queue_exact_count: no thread may post meanwhile. The other functions on queues
 * remove buffers, or put them back: any thread if the queue is shared, otherwise one thread at a
 * time, which holds the progress lock.
 */
#ifndef SIW_MEM_H
#define SIW_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <siwarp/types.h>

#include "base/err.h"

/* cffi: begin */

struct siw_mem; /* the STag table of one device */
struct siw_mem_buffer_queue;

#define SIW_MEM_MAX_SGE 16

/*
 * Creates an empty STag table. Returns 0; -ENOMEM; -EIO if the system provides no random numbers.
 */
int siw_mem_stag_table_create(struct siw_mem **out);
void siw_mem_stag_table_free(struct siw_mem *mem);

/* ---- STags ----------------------------------------------------------------------------------- */

/* Access rights of a region: the values of enum siw_access_flags, and three internal ones. */
enum siw_mem_right {
	SIW_MEM_LOCAL_WRITE = 1,
	SIW_MEM_REMOTE_WRITE = 2,
	SIW_MEM_REMOTE_READ = 4,
	SIW_MEM_REMOTE_ATOMIC = 8,
	SIW_MEM_LOCAL_READ = 1 << 28, /* local read access, granted by every region */
	SIW_MEM_READ_SINK = 1 << 29,  /* only the response of one RDMA Read may be placed here */
	SIW_MEM_REMOTE_INVALIDATE = 1 << 30,
};

/*
 * The memory that an STag names. If sgl is NULL: length octets at addr; tagged offsets, and the
 * addresses in local scatter/gather elements with this key, begin with to_base. If sgl is not NULL:
 * the memory of the nsge local scatter/gather elements in sgl; tagged offsets begin with 0. The
 * list sgl must stay valid until the STag is freed.
 */
struct siw_mem_region {
	uint8_t *addr;
	uint64_t length;
	uint64_t to_base;
	const struct siw_sge *sgl;
	int nsge;
	uint32_t rights;    /* bit mask of enum siw_mem_right */
	uint32_t pd;	    /* protection domain number */
	const void *stream; /* NULL, or the identity of the only stream that may use the STag */
};

/*
 * Allocates an STag for the region. The STag is never 0 and cannot be guessed: it is a keyed
 * permutation of index and generation. Returns 0; -ENOMEM, also if there are 1,048,576 regions.
 */
int siw_mem_stag_alloc(struct siw_mem *mem, const struct siw_mem_region *region, uint32_t *stag);
/*
 * Frees an STag, valid or invalidated. The STag is invalid immediately; the function returns when
 * no references to it are left, so the caller must hold none. Returns 0; -ENOENT if the STag was
 * free already.
 */
int siw_mem_stag_free(struct siw_mem *mem, uint32_t stag);
/*
 * Reserves an STag, to be bound to memory later: it is invalid, and is not allocated again before
 * siw_mem_stag_free. window: the owner chooses the lowest octet at each binding, so this reserves
 * all 256 STags with the same upper 24 bits. Returns 0; -ENOMEM.
 */
int siw_mem_stag_reserve(struct siw_mem *mem, bool window, uint32_t *stag);
/*
 * Makes a reserved or invalidated STag valid, naming this memory; for a window, any of its 256
 * STags may be passed. Returns 0; -EBUSY if it is valid already; -ENOENT if it is not reserved.
 * Must not run concurrently with another thread that binds or frees the STag.
 */
int siw_mem_stag_bind(struct siw_mem *mem, uint32_t stag, const struct siw_mem_region *region);
/*
 * Changes the rights of a valid STag (bit mask of enum siw_mem_right). Returns when all references
 * granted under the previous rights are released, so the caller must hold none. Returns 0; -ENOENT
 * if it is not valid. Must not run concurrently with another thread that binds or frees the STag.
 */
int siw_mem_stag_set_rights(struct siw_mem *mem, uint32_t stag, uint32_t rights);
/* Returns whether the STag is valid, that is, names memory now. */
bool siw_mem_is_stag_valid(struct siw_mem *mem, uint32_t stag);
/*
 * Checks that the STag is valid, its protection domain or stream, the right, and that [to, to +
 * len) is within its bounds, in this order. Then writes at most max iovecs of that memory, and
 * returns their count; a reference to the STag is held until siw_mem_stag_release.
 *
 * If max is 0, writes no iovec and returns 1, with the reference. If len is 0, returns 0 without
 * checks and without a reference, because RFC 5041 allows any STag then. -EACCES: *err has DDP's
 * error (RFC 5041 section 7: invalid STag, not of this stream, bounds, TO wrap), RDMAP's access
 * violation if the right is missing, or the local catastrophic error if an element of the region's
 * scatter/gather list is no longer valid.
 */
int siw_mem_stag_acquire(struct siw_mem *mem, uint32_t stag, uint32_t pd, const void *stream,
			 uint32_t right, uint64_t to, uint64_t len, struct iovec *iov, int max,
			 struct siw_wire_err *err);
/* Releases a reference to an STag, which siw_mem_stag_acquire took if its result was above 0. */
void siw_mem_stag_release(struct siw_mem *mem, uint32_t stag);
/*
 * Returns whether the peer of this stream may invalidate the STag: the STag is valid, bound to this
 * stream (a binding to its protection domain is not sufficient), and grants
 * SIW_MEM_REMOTE_INVALIDATE.
 */
bool siw_mem_peer_may_invalidate_stag(struct siw_mem *mem, uint32_t stag, const void *stream);
/*
 * Invalidates the STag on request of this stream's peer. Returns 0, or -EACCES if the peer has no
 * right to invalidate it. Like siw_mem_stag_free(), waits for references. The STag is not allocated
 * again before siw_mem_stag_free(), because its owner does not know yet that it is invalid.
 */
int siw_mem_stag_invalidate(struct siw_mem *mem, uint32_t stag, const void *stream);
/*
 * Resolves octets [offset, offset + len) of local scatter/gather elements to iovecs, for reading,
 * or for writing if write is true. Returns their count; -EACCES if a key does not allow the access;
 * -EMSGSIZE if the list is shorter. internal: the addresses are the library's own and keys are not
 * checked. No reference is held: the caller ensures that the memory stays valid.
 */
int siw_mem_sgl_resolve(struct siw_mem *mem, const struct siw_sge *sgl, int nsge, bool internal,
			uint32_t pd, bool write, uint64_t offset, uint64_t len, struct iovec *iov,
			int max);

/*
 * Copies len octets to the beginning of a scatter/gather list. Returns 0; -EACCES and -EMSGSIZE as
 * siw_mem_sgl_resolve; -EFAULT if the memory is not mapped.
 */
int siw_mem_sgl_write(struct siw_mem *mem, const struct siw_sge *sgl, int nsge, uint32_t pd,
		      const void *octets, uint64_t len);

/* Atomic operations on 64 bits of a region (RFC 7306 section 5.1); operands in host byte order. */
enum siw_mem_atomic_kind {
	SIW_MEM_FETCH_ADD = 0,
	SIW_MEM_CMP_SWAP = 2,
};
struct siw_mem_atomic {
	uint32_t kind; /* enum siw_mem_atomic_kind: the opcode on the wire */
	uint64_t data; /* the number to add, or the bits to swap in */
	uint64_t mask; /* FETCH_ADD: the top bit of each field; CMP_SWAP: the bits to swap */
	uint64_t compare;
	uint64_t compare_mask;
};
/*
 * Performs an atomic operation on 8 octets at tagged offset to, in the machine's octet order,
 * atomic with respect to every thread and CPU of the machine. Returns 0, with the previous value in
 * *before. If op is NULL, only the checks are made.
 *
 * The checks are those of siw_mem_stag_acquire, with right SIW_MEM_REMOTE_ATOMIC, and that the
 * address is a multiple of 8. -EACCES: the memory is unchanged and *err has the error: for a
 * misaligned address RDMAP's catastrophic error of the stream (RFC 7306 section 8.2), for memory
 * that is not mapped the local catastrophic error.
 */
int siw_mem_atomic(struct siw_mem *mem, uint32_t stag, uint32_t pd, const void *stream, uint64_t to,
		   const struct siw_mem_atomic *op, uint64_t *before, struct siw_wire_err *err);

/* ---- receive queues -------------------------------------------------------------------------- */

/* A ring of posted receive buffers, which several queue pairs may share. */
struct siw_mem_queue_attr {
	uint32_t depth;	  /* number of buffers, rounded up to a power of two */
	uint32_t max_sge; /* elements per buffer, at most SIW_MEM_MAX_SGE */
	uint32_t pd;
	bool internal; /* buffers are library memory: keys are not checked */
	bool shared;   /* several threads may remove buffers at the same time */
};
/* Returns 0; -ENOMEM; -EINVAL if there are more than 2^20 buffers, or max_sge is too large. */
int siw_mem_buffer_queue_create(const struct siw_mem_queue_attr *attr,
				struct siw_mem_buffer_queue **out);
/* Frees the queue. No other thread may use the queue any more. */
void siw_mem_buffer_queue_destroy(struct siw_mem_buffer_queue *queue);
/*
 * Changes the depth of the queue; its buffers are kept, in the same order. No other thread may post
 * meanwhile, and none may remove buffers unless the queue is shared. Returns 0; -ENOMEM; -EINVAL if
 * depth exceeds 2^20 buffers, or is less than the number of posted buffers.
 */
int siw_mem_buffer_queue_resize(struct siw_mem_buffer_queue *queue, uint32_t depth);
/*
 * Adds a receive buffer to the queue. Returns 0; -ENOMEM if the queue is full; -EINVAL if there are
 * more elements than max_sge.
 */
int siw_mem_buffer_queue_post(struct siw_mem_buffer_queue *queue, uint64_t user_data,
			      const struct siw_sge *sgl, int nsge);
/*
 * Removes the oldest receive buffer unfilled, for a flush. Returns 1 and the buffer's user_data, or
 * 0 if the queue is empty.
 */
int siw_mem_buffer_queue_pop_unfilled(struct siw_mem_buffer_queue *queue, uint64_t *user_data);
/*
 * Returns the number of posted receive buffers that are not in use yet. May be called by any
 * thread. If other threads remove buffers meanwhile, the number may be out of date.
 */
uint32_t siw_mem_buffer_queue_posted_count(const struct siw_mem_buffer_queue *queue);
/*
 * Like siw_mem_buffer_queue_posted_count, but the count is exact. If another thread is removing a
 * buffer from a shared queue, either the count already excludes that buffer, or the other thread
 * sees, after the removal, everything that the caller wrote before this call.
 */
uint32_t siw_mem_buffer_queue_exact_count(struct siw_mem_buffer_queue *queue);
/* Whether buffers were put back and not removed again. May be called by any thread. */
bool siw_mem_buffer_queue_has_returned_buffers(const struct siw_mem_buffer_queue *queue);

/* cffi: end */

#endif
