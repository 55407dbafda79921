/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_uc.h - part of rdmap/rdmap.h: unreliable connections. Sends and RDMA Writes of any
 * length to one peer; what lost a datagram is not delivered, and nobody is told.
 *
 * Locks: as ddp/ddp_uc.h.
 */
#ifndef SIW_RDMAP_UC_H
#define SIW_RDMAP_UC_H

#include "rdmap/rdmap.h"

/* cffi: begin */

struct siw_ddp_uc;
struct siw_rdmap_uc;

/* On that of ddp, which goes with it. -ENOMEM: it stays the caller's. */
int siw_rdmap_uc_open(struct siw_ddp_uc *ddp, struct siw_rdmap_uc **out);
void siw_rdmap_uc_close(struct siw_rdmap_uc *uc);
/*
 * psn: of the datagram of the peer's that comes next. payload: octets of a segment's payload at the
 * most, 0: what the route carries. Errors as siw_ddp_uc_connect. Both locks, as the next.
 */
int siw_rdmap_uc_connect(struct siw_rdmap_uc *uc, const struct siw_addr *peer, uint32_t psn,
			 uint32_t payload);
/* Which receives to fill (NULL: what comes is dropped), and what datagrams must carry. */
struct siw_rdmap_uc_start {
	struct siw_mem_queue *recvs;
	uint32_t pd;
	uint32_t qkey;
	uint32_t denied;   /* rights (enum siw_access_flags) that the peer has under no STag */
	const void *owner; /* as in struct siw_rdmap_start */
};
void siw_rdmap_uc_start(struct siw_rdmap_uc *uc, const struct siw_rdmap_uc_start *start);

/*
 * Begins an operation (SEND, SEND_SE, WRITE, each with immediate data or without): 0, it has number siw_rdmap_uc_begun after the call; -EAGAIN
 * not now; -EACCES, -EFAULT a local key or memory is bad, and it has a number too; -ENOMEM. Send lock, as below.
 */
int siw_rdmap_uc_send(struct siw_rdmap_uc *uc, const struct siw_rdmap_op *op);
/*
 * Goes on with it and gives UDP what is framed: 1 nothing is left; 0 call again; -EACCES, -EFAULT the last
 * operation begun ends here.
 */
int siw_rdmap_uc_flush(struct siw_rdmap_uc *uc);
uint64_t siw_rdmap_uc_begun(const struct siw_rdmap_uc *uc);
/* As siw_ddp_uc_refused. */
int siw_rdmap_uc_refused(struct siw_rdmap_uc *uc, uint64_t *first, uint64_t *last);
/* Forgets what is not out. */
void siw_rdmap_uc_cut(struct siw_rdmap_uc *uc);

/*
 * Next message: 1 and *event (RECV or BAD_RECV), 0 nothing. octets: of what was placed meanwhile, that of
 * Writes too.
 */
int siw_rdmap_uc_recv(struct siw_rdmap_uc *uc, struct siw_rdmap_event *event, uint32_t *octets);

/* cffi: end */

#endif
