/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mem/mem.h - memory that messages are placed into or sent from: STags and what they name, lists of
 * scatter/gather elements, atomics, and queues of receive buffers. Part of this contract: mem_queue.h.
 *
 * What this folder does NOT do: know segments, messages or sockets.
 *
 * Locks: STags, elements and atomics: any thread. Of a queue: siw_mem_queue_post any thread, one poster at a
 * time; the rest, but for siw_mem_queue_used, under the progress lock.
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

/* 0; -ENOMEM; -EIO there are no random numbers to be had. */
int siw_mem_open(struct siw_mem **out);
void siw_mem_close(struct siw_mem *mem);

/* ---- STags ----------------------------------------------------------------------------------- */

/* What a region may be used for: those of enum siw_access_flags by their values there, and our own. */
enum siw_mem_right {
	SIW_MEM_LOCAL_WRITE = 1,
	SIW_MEM_REMOTE_WRITE = 2,
	SIW_MEM_REMOTE_READ = 4,
	SIW_MEM_REMOTE_ATOMIC = 8,
	SIW_MEM_LOCAL_READ = 1 << 28, /* every region has it */
	SIW_MEM_READ_SINK = 1 << 29,  /* where one RDMA Read's response goes, and nothing else */
	SIW_MEM_REMOTE_INVALIDATE = 1 << 30,
};

/*
 * Memory under an STag: either length octets at addr, with tagged offsets from to_base on; or (sgl
 * != NULL) a scatter list of nsge local elements, tagged offsets from 0 on, which must stay until
 * the STag is freed.
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
 * Gives the region an STag: unpredictable (a keyed permutation of index and generation), never 0.
 * -ENOMEM at 1,048,576 regions. Any thread; so is every function of this part.
 */
int siw_mem_stag_alloc(struct siw_mem *mem, const struct siw_mem_region *region, uint32_t *stag);
/*
 * The STag is dead at once; returns when nobody is between siw_mem_stag_get and _put on it. -ENOENT
 * if it was dead (one that was only invalidated is freed by this). The caller does not hold a reference itself.
 */
int siw_mem_stag_free(struct siw_mem *mem, uint32_t stag);
/*
 * Reserves an STag for memory to be bound later: dead, and nobody else's before siw_mem_stag_free.
 * window: one that has the same upper 24 bits at each binding and an octet of its owner's choice below.
 * -ENOMEM.
 */
int siw_mem_stag_reserve(struct siw_mem *mem, bool window, uint32_t *stag);
/*
 * Brings a reserved or an invalidated STag to life, for this memory; a window under any of its 256.
 * -EBUSY it lives; -ENOENT it is not reserved. Not while the same is bound or freed by another thread.
 */
int siw_mem_stag_bind(struct siw_mem *mem, uint32_t stag, const struct siw_mem_region *region);
/* Whether it names memory now. */
bool siw_mem_stag_alive(struct siw_mem *mem, uint32_t stag);
/*
 * Checks STag, protection domain or stream, rights and bounds [to, to+len), in this order, and
 * resolves to at most max iovecs: their count, with a reference held until siw_mem_stag_put (0 for
 * len 0: nothing is checked, since RFC 5041 allows any STag, and nothing is held); or -EACCES with
 * *err as DDP names it (RFC 5041 section 7: invalid STag, not of this stream, bounds, TO wrap; a
 * missing right is given as RDMAP's access violation). max 0: only checks; 1 (or more) all the
 * same.
 */
int siw_mem_stag_get(struct siw_mem *mem, uint32_t stag, uint32_t pd, const void *stream,
		     uint32_t right, uint64_t to, uint64_t len, struct iovec *iov, int max,
		     struct siw_wire_err *err);
void siw_mem_stag_put(struct siw_mem *mem, uint32_t stag);
/*
 * Whether the peer of this stream may invalidate the STag: it lives, is bound to that stream (being of
 * its domain is not enough) and has SIW_MEM_REMOTE_INVALIDATE.
 */
bool siw_mem_stag_may_invalidate(struct siw_mem *mem, uint32_t stag, const void *stream);
/*
 * Does so: 0, or -EACCES if it may not. As siw_mem_stag_free, but that the STag is given to nobody
 * else before siw_mem_stag_free: its owner does not know yet that it is dead.
 */
int siw_mem_stag_invalidate(struct siw_mem *mem, uint32_t stag, const void *stream);
/*
 * Resolves local scatter/gather elements, octets [offset, offset+len) of them, for reading (write =
 * false) or writing. internal: the addresses are the library's own, no key is looked at. Count of
 * iovecs or -EACCES (a key is wrong) or -EMSGSIZE (list shorter than that). References are not
 * kept: hold what must stay.
 */
int siw_mem_sgl_resolve(struct siw_mem *mem, const struct siw_sge *sgl, int nsge, bool internal,
			uint32_t pd, bool write, uint64_t offset, uint64_t len, struct iovec *iov,
			int max);

/* As siw_mem_sgl_resolve for all of the list, and puts octets there: 0, -EACCES, -EMSGSIZE, -EFAULT. */
int siw_mem_sgl_write(struct siw_mem *mem, const struct siw_sge *sgl, int nsge, uint32_t pd,
		      const void *octets, uint64_t len);

/* Operations on 64 bits of a region (RFC 7306 section 5.1), as values in host order. */
enum siw_mem_atomic_kind {
	SIW_MEM_FETCH_ADD = 0,
	SIW_MEM_CMP_SWAP = 2,
};
struct siw_mem_atomic {
	uint32_t kind; /* enum siw_mem_atomic_kind: the code on the wire */
	uint64_t data; /* what to add, or what to swap in */
	uint64_t mask; /* adding: each field's top bit; swapping: the bits to swap */
	uint64_t compare;
	uint64_t compare_mask;
};
/*
 * Checks as siw_mem_stag_get does, SIW_MEM_REMOTE_ATOMIC the right; then whether the place lies on an
 * 8-octet boundary of memory; and does it, in one step for every thread and CPU of the machine, in its octet
 * order: 0 and *before, what was there, or -EACCES and *err with the memory untouched (misaligned:
 * RDMAP's catastrophic error of the stream, RFC 7306 section 8.2; memory that is not there any more:
 * local catastrophic). op NULL: only checks.
 */
int siw_mem_atomic(struct siw_mem *mem, uint32_t stag, uint32_t pd, const void *stream, uint64_t to,
		   const struct siw_mem_atomic *op, uint64_t *before, struct siw_wire_err *err);

/* ---- receive queues ------------------------------------------------------------------------- */

/* A ring of posted buffers; several endpoints may share it. */
struct siw_mem_queue_attr {
	uint32_t depth;	  /* buffers, rounded up to a power of two */
	uint32_t max_sge; /* per buffer, at most SIW_MEM_MAX_SGE */
	uint32_t pd;
	bool internal; /* library memory: keys are not looked at */
};
int siw_mem_queue_create(const struct siw_mem_queue_attr *attr, struct siw_mem_queue **out);
void siw_mem_queue_destroy(struct siw_mem_queue *queue);
/* -ENOMEM full, -EINVAL too many elements. */
int siw_mem_queue_post(struct siw_mem_queue *queue, uint64_t user_data, const struct siw_sge *sgl,
		       int nsge);
/* Takes the oldest buffer away unfilled, for a flush: 1 and its user_data, or 0. Progress lock. */
int siw_mem_queue_take(struct siw_mem_queue *queue, uint64_t *user_data);
/* Buffers that are posted and not taken. Any thread. */
uint32_t siw_mem_queue_used(const struct siw_mem_queue *queue);

/* cffi: end */

#endif
