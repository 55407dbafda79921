/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_uc.h - part of rdmap/rdmap.h: unreliable connections (UC), which carry Sends and RDMA
 * Writes of any length to one peer. If a datagram of a message is lost, the message is not
 * delivered, and neither end gets a report.
 *
 * Locks: as ddp/ddp_uc.h.
 */
#ifndef SIW_RDMAP_UC_H
#define SIW_RDMAP_UC_H

#include "rdmap/rdmap.h"

/* cffi: begin */

struct siw_ddp_uc;
struct siw_rdmap_uc;

/*
 * Opens an RDMAP endpoint on a UC endpoint of DDP, which the RDMAP endpoint owns from then on.
 * Returns 0 or -ENOMEM; after -ENOMEM the caller still owns ddp.
 */
int siw_rdmap_uc_open(struct siw_ddp_uc *ddp, struct siw_rdmap_uc **out);
void siw_rdmap_uc_close(struct siw_rdmap_uc *uc);
/*
 * Sets the peer of a UC endpoint. psn: PSN of the peer's next datagram. payload: maximum octets of
 * a segment's payload; 0: as many as the route's MTU allows. Returns the same values as
 * siw_ddp_uc_connect(). Both locks held, as for siw_rdmap_uc_configure_receiving().
 */
int siw_rdmap_uc_connect(struct siw_rdmap_uc *uc, const struct siw_addr *peer, uint32_t psn,
			 uint32_t payload);
struct siw_rdmap_uc_start {
	struct siw_mem_buffer_queue *recvs; /* NULL: incoming messages are dropped */
	uint32_t pd;
	uint32_t qkey;
	uint32_t denied;   /* rights denied to the peer, as in siw_rdmap_deny_access_rights() */
	const void *owner; /* identity of the STags that only this peer may use; NULL: none */
};
void siw_rdmap_uc_configure_receiving(struct siw_rdmap_uc *uc,
				      const struct siw_rdmap_uc_start *start);

/*
 * Begins an operation on UC: SEND, SEND_SE or WRITE, with or without immediate data. Send lock
 * held, as for siw_rdmap_uc_flush_tx(), _begun_count(), _get_refused_range() and _drop_unsent().
 *   0                  begun; its number is siw_rdmap_uc_begun_count() after the call
 *   -EACCES, -EFAULT   an lkey or its memory is invalid; the operation has a number, too
 *   -EAGAIN, -ENOMEM   not possible now
 */
int siw_rdmap_uc_begin_op(struct siw_rdmap_uc *uc, struct siw_rdmap_op *op);
/*
 * Continues the current operation and passes framed segments to UDP. Returns 1 if no segment is
 * left; 0 if the caller must call again; -EACCES or -EFAULT if the last operation begun has failed.
 */
int siw_rdmap_uc_flush_tx(struct siw_rdmap_uc *uc);
uint64_t siw_rdmap_uc_begun_count(const struct siw_rdmap_uc *uc);
/*
 * Returns whether the network refused datagrams, and the range of their operations; see
 * siw_ddp_uc_pop_refused_message_range().
 */
int siw_rdmap_uc_pop_refused_message_range(struct siw_rdmap_uc *uc, uint64_t *first,
					   uint64_t *last);
/* Drops the segments of the endpoint that UDP has not accepted. */
void siw_rdmap_uc_drop_unsent(struct siw_rdmap_uc *uc);

/*
 * Returns 1 and the next message of the peer in *event, or 0 if there is none. RECV and BAD_RECV
 * consume a receive; PROGRESS reports a complete Write. *octets: octets of payload that the call
 * has received, including the payload of Writes.
 */
int siw_rdmap_uc_recv(struct siw_rdmap_uc *uc, struct siw_rdmap_event *event, uint32_t *octets);

/* cffi: end */

#endif
