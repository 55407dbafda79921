/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_uc.h - part of ddp/ddp.h: endpoints of unreliable connections (datagram-iWARP, "UC"). A
 * message is cut into segments, each of which is one datagram: LLP header (base/dgram_wire.h, type
 * UC), DDP segment, CRC32C. Datagrams are numbered (PSN), so that a receiver sees what did not
 * come.
 *
 * An operation is one message, or several that belong together; its first datagram is marked. An
 * operation is "whole" if none of its datagrams up to the one at hand is missing.
 *
 * What this does NOT do: repeat datagrams, or wait for late ones. A datagram that comes late or
 * twice is dropped.
 *
 * Locks: siw_ddp_uc_tx... and _number: the QP's send lock; _close, _connect, _keys and _cut: both;
 * all others: the progress lock.
 */
#ifndef SIW_DDP_UC_H
#define SIW_DDP_UC_H

#include "ddp/ddp.h"

/* cffi: begin */

struct siw_ddp_uc;

/*
 * Opens an endpoint on a UDP socket, and forbids fragments there. The caller still owns the socket,
 * and closes it after the endpoint. crc: whether CRCs are sent and checked. 0, -ENOMEM, -errno.
 */
int siw_ddp_uc_open(struct siw_llp_port *port, struct siw_mem *mem, struct siw_llp_sock *sock,
		    bool crc, struct siw_ddp_uc **out);
void siw_ddp_uc_close(struct siw_ddp_uc *uc);

/*
 * From now on siw_ddp_uc_rx receives from this socket; at first it is the endpoint's own. Progress
 * lock.
 */
void siw_ddp_uc_receive_at(struct siw_ddp_uc *uc, struct siw_llp_sock *sock);
/* The same for what it sends; forbids fragments there. Both locks: 0 or -errno. */
int siw_ddp_uc_send_by(struct siw_ddp_uc *uc, struct siw_llp_sock *sock);
struct siw_ddp_uc_path {
	struct siw_addr peer;
	uint32_t psn;	  /* of the peer's next datagram */
	uint32_t payload; /* most octets of a segment's payload; 0: what the route's MTU allows */
};
/*
 * Sets the peer; datagrams from others are dropped. 0; -EAFNOSUPPORT: its address is of another
 * family; -ENETUNREACH and the like: there is no route. On failure nothing changed.
 */
int siw_ddp_uc_connect(struct siw_ddp_uc *uc, const struct siw_ddp_uc_path *path);
/* Sets the PSN of the next datagram that is sent. */
void siw_ddp_uc_number(struct siw_ddp_uc *uc, uint32_t psn);
/* The next PSN in each direction. */
void siw_ddp_uc_numbers(const struct siw_ddp_uc *uc, uint32_t *in, uint32_t *out);
/* identity: as siw_ddp_stream_bind. */
void siw_ddp_uc_keys(struct siw_ddp_uc *uc, uint32_t qkey, uint32_t pd, const void *identity);
/* The limit of the rate at which it sends. */
struct siw_ddp_pace *siw_ddp_uc_pace(struct siw_ddp_uc *uc);
/* The longest payload of a tagged segment now, in octets; 0: it is not connected. */
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
 * Begins a message. Small segments are collected until siw_ddp_uc_tx_flush.
 *   1        all its segments are framed
 *   0        some are left: siw_ddp_uc_tx_more goes on
 *   -EBUSY   another message has segments left
 *   -EAGAIN  siw_ddp_uc_refused has a report to be read first
 *   -EACCES  an lkey is bad; -EFAULT: its memory is gone. The message ends here, and a receiver
 *            drops what came of it
 */
int siw_ddp_uc_tx(struct siw_ddp_uc *uc, const struct siw_ddp_uc_msg *msg);
/* Goes on with the message, by 64 KiB at most: returns as siw_ddp_uc_tx. */
int siw_ddp_uc_tx_more(struct siw_ddp_uc *uc);
/*
 * Gives UDP what is collected. 1: it took all; 0: the socket is full, or the network refused one.
 */
int siw_ddp_uc_tx_flush(struct siw_ddp_uc *uc);
/* Whether the last flush found the socket full, or what is left waits for the limit of the rate. */
bool siw_ddp_uc_tx_blocked(const struct siw_ddp_uc *uc);
/* Messages begun so far; and those of them, in order, that UDP took or refused. */
uint64_t siw_ddp_uc_begun(const struct siw_ddp_uc *uc);
uint64_t siw_ddp_uc_accepted(const struct siw_ddp_uc *uc);
/*
 * Whether the network refused a datagram (no route, a filter). 1, once: the numbers of the first
 * and the last message that it may belong to, counted from 1. 0: none was refused.
 */
int siw_ddp_uc_refused(struct siw_ddp_uc *uc, uint64_t *first, uint64_t *last);
/* Drops what is collected, and the message that has segments left. */
void siw_ddp_uc_cut(struct siw_ddp_uc *uc);

/* ---- reports ---------------------------------------------------------------------------------- */

/* What a receiver says of its peer's datagrams, since it was connected. */
struct siw_ddp_uc_report {
	uint64_t datagrams, octets; /* of those whose PSN was newer than all before */
	uint32_t next;		    /* the PSN behind the newest */
};
/* Whether setting uc_breaker is for this peer. */
bool siw_ddp_uc_reports(const struct siw_ddp_uc *uc);
/* Whether a report is to be sent: enough came since the last, and that was a second ago. */
bool siw_ddp_uc_report_due(const struct siw_ddp_uc *uc);
/* Sends it; without room in the socket it stays due. Both locks. */
void siw_ddp_uc_report_send(struct siw_ddp_uc *uc);
/* The peer's last report, once: 1 and *report, or 0. */
int siw_ddp_uc_report_heard(struct siw_ddp_uc *uc, struct siw_ddp_uc_report *report);

/* ---- receiving ------------------------------------------------------------------------------- */

struct siw_ddp_uc_seg {
	struct siw_ddp_seg seg;
	bool first; /* of an operation */
	bool whole;
};
/*
 * Gives the peer's next datagram that is valid and newer than all before it. 1: *seg, valid until
 * the next call; 0: no more came. Others are dropped and counted.
 */
int siw_ddp_uc_rx(struct siw_ddp_uc *uc, struct siw_ddp_uc_seg *seg);
/* As siw_ddp_dgram_goes_on; a long message must not starve other sockets, either. */
bool siw_ddp_uc_goes_on(struct siw_ddp_uc *uc, int tries, uint32_t octets);
/* Gives up the operation at hand: the rest of it is not whole. */
void siw_ddp_uc_spoil(struct siw_ddp_uc *uc);
/* Copies the first octets of the payload at hand, at most len, into out: how many. */
uint32_t siw_ddp_uc_peek(const struct siw_ddp_uc *uc, void *out, uint32_t len);
/*
 * Places the untagged segment at hand, which is whole. head: octets that its message begins with
 * and that are not for the buffer. A message that is never finished leaves its buffer to the next
 * one.
 *   1          the message is delivered: *delivery
 *   2          the message has more segments
 *   -ENOBUFS   there is no buffer
 *   -EPROTO    the segment does not begin where the last one ended
 *   -EMSGSIZE  the message is longer than the buffer; -EACCES: the buffer's lkey or memory is bad.
 *              The buffer is used up: *delivery
 */
int siw_ddp_uc_place(struct siw_ddp_uc *uc, struct siw_mem_queue *queue, uint32_t head,
		     struct siw_ddp_delivery *delivery);
/*
 * Takes a buffer for a message that has no octets for it. 1: *delivery has its user_data; -ENOBUFS.
 */
int siw_ddp_uc_take(struct siw_ddp_uc *uc, struct siw_mem_queue *queue,
		    struct siw_ddp_delivery *delivery);
/*
 * Places the tagged segment at hand. 1: it is its message's last one; 2: it is not; -EACCES: *err,
 * and nothing was written.
 */
int siw_ddp_uc_place_tagged(struct siw_ddp_uc *uc, struct siw_mem_queue *queue, uint32_t right,
			    struct siw_wire_err *err);
/* For a flush: gives up the buffer of an unfinished message. 1 and its user_data, or 0. */
int siw_ddp_uc_give(struct siw_ddp_uc *uc, uint64_t *user_data);

/* cffi: end */

#endif
