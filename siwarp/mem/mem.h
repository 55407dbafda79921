/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mem/mem.h - memory that messages are placed into or sent from: STags and what they name, lists of
 * scatter/gather elements, atomics, and queues of receive buffers. Part of this contract:
 * mem_queue.h.
 *
 * What this folder does NOT do: know segments, messages or sockets.
 *
 * Results: 0 or a count, or -errno. Lengths and offsets are octets.
 *
 * Locks: functions on STags, elements and atomics need none. siw_mem_queue_post: one poster at a
 * time, in any thread; siw_mem_queue_used: any thread; the other functions on queues: the progress
 * lock.
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

struct siw_mem; /* the STags of one device */
struct siw_mem_queue;

#define SIW_MEM_MAX_SGE 16

/* Makes an empty table of STags: 0; -ENOMEM; -EIO: the system gives no random numbers. */
int siw_mem_open(struct siw_mem **out);
void siw_mem_close(struct siw_mem *mem);

/* ---- STags ----------------------------------------------------------------------------------- */

/* What a region may be used for: the values of enum siw_access_flags, and three of our own. */
enum siw_mem_right {
	SIW_MEM_LOCAL_WRITE = 1,
	SIW_MEM_REMOTE_WRITE = 2,
	SIW_MEM_REMOTE_READ = 4,
	SIW_MEM_REMOTE_ATOMIC = 8,
	SIW_MEM_LOCAL_READ = 1 << 28, /* every region has it */
	SIW_MEM_READ_SINK = 1 << 29,  /* only the response of one RDMA Read may be placed there */
	SIW_MEM_REMOTE_INVALIDATE = 1 << 30,
};

/*
 * The memory that an STag names: length octets at addr, whose tagged offsets, and the addresses of
 * local elements with this key, begin with to_base;
 * or, if sgl is not NULL, the octets of nsge local elements, whose tagged offsets begin with 0.
 * That list must stay until the STag is freed.
 */
struct siw_mem_region {
	uint8_t *addr;
	uint64_t length;
	uint64_t to_base;
	const struct siw_sge *sgl;
	int nsge;
	uint32_t rights;    /* set of enum siw_mem_right */
	uint32_t pd;	    /* protection domain number */
	const void *stream; /* NULL, or the identity of the one stream that may use it */
};

/*
 * Gives the region an STag, which is never 0 and which nobody can guess: a keyed permutation of
 * index and generation. 0; -ENOMEM, also beyond 1,048,576 regions.
 */
int siw_mem_stag_alloc(struct siw_mem *mem, const struct siw_mem_region *region, uint32_t *stag);
/*
 * Frees an STag. It is invalid at once; the function returns when nobody holds a reference to it
 * any more, so the caller must hold none. 0; -ENOENT: it was free already. An STag that was
 * invalidated is freed by this, too.
 */
int siw_mem_stag_free(struct siw_mem *mem, uint32_t stag);
/*
 * Reserves an STag, to be bound to memory later: it is invalid, and nobody else gets it before
 * siw_mem_stag_free. window: the owner chooses the lowest octet at each binding, so this reserves
 * all 256 STags with the upper 24 bits. 0; -ENOMEM.
 */
int siw_mem_stag_reserve(struct siw_mem *mem, bool window, uint32_t *stag);
/*
 * Makes a reserved or invalidated STag valid, for this memory; a window's by any of its 256 STags.
 * 0; -EBUSY: it is valid already; -ENOENT: it is not reserved. Not while another thread binds or
 * frees it.
 */
int siw_mem_stag_bind(struct siw_mem *mem, uint32_t stag, const struct siw_mem_region *region);
/*
 * Changes what a valid STag may be used for (set of enum siw_mem_right). Returns when nobody holds
 * a reference that the rights of before gave, so the caller must hold none. 0; -ENOENT: it is not
 * valid. Not while another thread binds or frees it.
 */
int siw_mem_stag_set_rights(struct siw_mem *mem, uint32_t stag, uint32_t rights);
/* Whether the STag is valid: names memory now. */
bool siw_mem_stag_alive(struct siw_mem *mem, uint32_t stag);
/*
 * Checks the STag, its protection domain or stream, the right, and that [to, to + len) is within
 * its bounds, in this order. Then writes at most max iovecs of that memory, and returns their
 * count; a reference to the STag is held until siw_mem_stag_put.
 *
 * max 0: writes no iovec and returns 1, with the reference. len 0: returns 0 with neither check nor
 * reference, since RFC 5041 allows any STag there. -EACCES: *err has DDP's error (RFC 5041 section
 * 7: invalid STag, not of this stream, bounds, TO wrap), RDMAP's access violation if the right is
 * missing, or the local catastrophic error if an element of the list is not valid any more.
 */
int siw_mem_stag_get(struct siw_mem *mem, uint32_t stag, uint32_t pd, const void *stream,
		     uint32_t right, uint64_t to, uint64_t len, struct iovec *iov, int max,
		     struct siw_wire_err *err);
/* Gives back the reference of a siw_mem_stag_get that returned more than 0. */
void siw_mem_stag_put(struct siw_mem *mem, uint32_t stag);
/*
 * Whether the peer of this stream may invalidate the STag: it is valid, bound to that very stream
 * (its protection domain is not enough), and has SIW_MEM_REMOTE_INVALIDATE.
 */
bool siw_mem_stag_may_invalidate(struct siw_mem *mem, uint32_t stag, const void *stream);
/*
 * Invalidates the STag for the peer of this stream: 0, or -EACCES if that may not. Waits for
 * references as siw_mem_stag_free does; but nobody else gets the STag before siw_mem_stag_free,
 * since its owner does not know yet that it is invalid.
 */
int siw_mem_stag_invalidate(struct siw_mem *mem, uint32_t stag, const void *stream);
/*
 * Writes the iovecs of octets [offset, offset + len) of local scatter/gather elements, to be read,
 * or to be written to if write is true: their count; -EACCES: a key does not allow that; -EMSGSIZE:
 * the list is shorter. internal: the addresses are the library's own and keys are not checked. No
 * reference is held: the caller knows that the memory stays.
 */
int siw_mem_sgl_resolve(struct siw_mem *mem, const struct siw_sge *sgl, int nsge, bool internal,
			uint32_t pd, bool write, uint64_t offset, uint64_t len, struct iovec *iov,
			int max);

/*
 * Copies len octets to the beginning of the list. 0; -EACCES and -EMSGSIZE as above; -EFAULT: the
 * memory does not exist any more.
 */
int siw_mem_sgl_write(struct siw_mem *mem, const struct siw_sge *sgl, int nsge, uint32_t pd,
		      const void *octets, uint64_t len);

/* Operations on 64 bits of a region (RFC 7306 section 5.1), as values in host order. */
enum siw_mem_atomic_kind {
	SIW_MEM_FETCH_ADD = 0,
	SIW_MEM_CMP_SWAP = 2,
};
struct siw_mem_atomic {
	uint32_t kind; /* enum siw_mem_atomic_kind: the code on the wire */
	uint64_t data; /* the number to add, or the bits to swap in */
	uint64_t mask; /* FETCH_ADD: the top bit of each field; CMP_SWAP: the bits to swap */
	uint64_t compare;
	uint64_t compare_mask;
};
/*
 * Performs an atomic operation on 8 octets at tagged offset to, in the machine's octet order,
 * atomic for every thread and CPU of the machine. 0, and *before has the value that was there. op
 * NULL: checks alone.
 *
 * Checks as siw_mem_stag_get does, with right SIW_MEM_REMOTE_ATOMIC, and that the address is a
 * multiple of 8. -EACCES: the memory is unchanged and *err says why; for a wrong address it is
 * RDMAP's catastrophic error of the stream (RFC 7306 section 8.2), for memory that does not exist
 * any more the local catastrophic error.
 */
int siw_mem_atomic(struct siw_mem *mem, uint32_t stag, uint32_t pd, const void *stream, uint64_t to,
		   const struct siw_mem_atomic *op, uint64_t *before, struct siw_wire_err *err);

/* ---- receive queues -------------------------------------------------------------------------- */

/* A ring of posted receive buffers, which several queue pairs may share. */
struct siw_mem_queue_attr {
	uint32_t depth;	  /* buffers, rounded up to a power of two */
	uint32_t max_sge; /* per buffer, at most SIW_MEM_MAX_SGE */
	uint32_t pd;
	bool internal; /* buffers are the library's own: keys are not checked */
};
/* 0; -ENOMEM; -EINVAL: more than 2^20 buffers, or max_sge is too large. */
int siw_mem_queue_create(const struct siw_mem_queue_attr *attr, struct siw_mem_queue **out);
void siw_mem_queue_destroy(struct siw_mem_queue *queue);
/*
 * Makes it a queue of that depth; what is in it stays, in its order. Nobody posts or takes
 * meanwhile. 0; -ENOMEM; -EINVAL: more than 2^20 buffers, or fewer than are posted.
 */
int siw_mem_queue_resize(struct siw_mem_queue *queue, uint32_t depth);
/* Adds a buffer: 0; -ENOMEM: the queue is full; -EINVAL: more elements than max_sge. */
int siw_mem_queue_post(struct siw_mem_queue *queue, uint64_t user_data, const struct siw_sge *sgl,
		       int nsge);
/*
 * Takes the oldest buffer away unfilled, for a flush: 1 and its user_data; 0: the queue is empty.
 */
int siw_mem_queue_take(struct siw_mem_queue *queue, uint64_t *user_data);
/* Buffers that are posted and not taken. Any thread. */
uint32_t siw_mem_queue_used(const struct siw_mem_queue *queue);

/* cffi: end */

#endif
