/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_uc.h - part of ddp/ddp.h: endpoints of unreliable connections (datagram-iWARP, "UC"). A
 * message is cut into segments, each of which is one datagram: LLP header (base/dgram_wire.h, type UC),
 * DDP segment, CRC32C. Datagrams are numbered (PSN), so that a receiver sees what did not come.
 *
 * An operation is a message, or several that mean something together; its first datagram is marked.
 * "Whole" is an operation of which nothing is missing, up to the segment at hand.
 *
 * What this does NOT do: repeat, or wait for what comes late. It is dropped, as what came before.
 *
 * Locks: siw_ddp_uc_tx... and _number: the QP's send lock; _close, _connect, _keys and _cut: both; the rest
 * the progress lock.
 */
#ifndef SIW_DDP_UC_H
#define SIW_DDP_UC_H

#include "ddp/ddp.h"

/* cffi: begin */

struct siw_ddp_uc;

/*
 * On a UDP socket, whose datagrams are not cut from here on; it stays the caller's, and is closed after this. crc:
 * whether CRCs are made and looked at. -ENOMEM, -errno.
 */
int siw_ddp_uc_open(struct siw_llp_port *port, struct siw_mem *mem, struct siw_llp_sock *sock,
		    bool crc, struct siw_ddp_uc **out);
void siw_ddp_uc_close(struct siw_ddp_uc *uc);
/* Who calls siw_ddp_uc_rx stopped short of 0. */
void siw_ddp_uc_resume(struct siw_ddp_uc *uc);

struct siw_ddp_uc_path {
	struct siw_addr peer;
	uint32_t psn;	  /* of the datagram of the peer's that comes next */
	uint32_t payload; /* octets of a segment's payload at the most; 0: what the route carries */
};
/*
 * Says who the peer is: all else that comes is dropped. -EAFNOSUPPORT the peer's address is of another
 * family, -ENETUNREACH and its like: there is no route. Nothing changed then.
 */
int siw_ddp_uc_connect(struct siw_ddp_uc *uc, const struct siw_ddp_uc_path *path);
/* The number of the datagram that is sent next. */
void siw_ddp_uc_number(struct siw_ddp_uc *uc, uint32_t psn);
/* The numbers that come next, in both directions. */
void siw_ddp_uc_numbers(const struct siw_ddp_uc *uc, uint32_t *in, uint32_t *out);
/* identity: as siw_ddp_stream_bind. */
void siw_ddp_uc_keys(struct siw_ddp_uc *uc, uint32_t qkey, uint32_t pd, const void *identity);
/* Octets of a segment's payload now, of a tagged segment; 0 before it is connected. */
uint32_t siw_ddp_uc_payload(const struct siw_ddp_uc *uc);

/* ---- sending --------------------------------------------------------------------------------- */

#define SIW_DDP_UC_HEAD 16

/* A message. sgl must stay until siw_ddp_uc_accepted has passed the message. */
struct siw_ddp_uc_msg {
	bool first; /* an operation begins */
	bool tagged;
	bool internal; /* sgl is library memory */
	uint8_t ulp_octet;
	uint32_t qn;   /* untagged; the MSN is counted here */
	uint32_t stag; /* tagged: the peer's */
	uint64_t to;
	const struct siw_sge *sgl;
	int nsge;
	uint64_t length; /* octets of sgl to send, from its start */
	/* Untagged: what the payload begins with, before the octets of sgl. */
	uint8_t head[SIW_DDP_UC_HEAD];
	uint8_t head_len;
};
/*
 * Begins a message: 1 all its segments are framed, 0 some are left (siw_ddp_uc_tx_more goes on), -EBUSY
 * one is in the works, -EAGAIN siw_ddp_uc_refused was not taken, -EACCES a key is bad, -EFAULT memory is not
 * there: the message ends here, and a receiver will drop what came of it. Small segments are gathered:
 * flush.
 */
int siw_ddp_uc_tx(struct siw_ddp_uc *uc, const struct siw_ddp_uc_msg *msg);
/* A turn is 64 KiB. */
int siw_ddp_uc_tx_more(struct siw_ddp_uc *uc);
/* Gives UDP what is gathered: 1 it has everything; 0 its socket is full, or refused. */
int siw_ddp_uc_tx_flush(struct siw_ddp_uc *uc);
/* The socket was full the last time. */
bool siw_ddp_uc_tx_blocked(const struct siw_ddp_uc *uc);
/* Messages begun, and of these, from the first on, messages that UDP has or refused. */
uint64_t siw_ddp_uc_begun(const struct siw_ddp_uc *uc);
uint64_t siw_ddp_uc_accepted(const struct siw_ddp_uc *uc);
/*
 * The network would not have a datagram (no route, a filter): 1, once, and the numbers of the first and the
 * last message that this may be about, counted from 1; 0.
 */
int siw_ddp_uc_refused(struct siw_ddp_uc *uc, uint64_t *first, uint64_t *last);
/* Forgets what is gathered or in the works. */
void siw_ddp_uc_cut(struct siw_ddp_uc *uc);

/* ---- receiving ------------------------------------------------------------------------------- */

struct siw_ddp_uc_seg {
	struct siw_ddp_seg seg;
	bool first; /* of an operation */
	bool whole;
};
/*
 * Next credible datagram of the peer's that is newer than all before it: 1 with *seg; 0 nothing more. What
 * else comes is dropped and counted. It stays until the next call.
 */
int siw_ddp_uc_rx(struct siw_ddp_uc *uc, struct siw_ddp_uc_seg *seg);
/* The operation at hand cannot be finished: none of what is left of it is whole. */
void siw_ddp_uc_spoil(struct siw_ddp_uc *uc);
/* The first octets of the payload at hand, so many at the most: how many. */
uint32_t siw_ddp_uc_peek(const struct siw_ddp_uc *uc, void *out, uint32_t len);
/*
 * Places an untagged segment at hand that is whole, of a message whose payload begins with head octets that
 * are not for the buffer: 1 the message is delivered; 2 more is to come; -ENOBUFS no buffer; -EPROTO it
 * does not go on where the last segment ended; -EMSGSIZE longer than the buffer and -EACCES the buffer's key or
 * memory is bad: the buffer is used up (*delivery). The buffer of a message that is not finished serves the
 * next one.
 */
int siw_ddp_uc_place(struct siw_ddp_uc *uc, struct siw_mem_queue *queue, uint32_t head,
		     struct siw_ddp_delivery *delivery);
/* A message without octets for a buffer: 1 and a buffer's user_data, -ENOBUFS. */
int siw_ddp_uc_take(struct siw_ddp_uc *uc, struct siw_mem_queue *queue,
		    struct siw_ddp_delivery *delivery);
/*
 * Places a tagged segment, by itself: 1 it is its message's last; 2; -EACCES (*err says why), nothing was
 * written.
 */
int siw_ddp_uc_place_tagged(struct siw_ddp_uc *uc, struct siw_mem_queue *queue, uint32_t right,
			    struct siw_wire_err *err);
/* Takes away a buffer that waits for the rest of its message, for a flush: 1 and its user_data, or 0. */
int siw_ddp_uc_give(struct siw_ddp_uc *uc, uint64_t *user_data);

/* cffi: end */

#endif
