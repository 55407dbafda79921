/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_uc.h - part of ddp/ddp.h: endpoints of unreliable connections (datagram-iWARP, "UC"). A
 * message is cut into segments, each of which is sent in one datagram: LLP header
 * (llp/llp_dgram_wire.h, type UC), DDP segment, CRC32C. Datagrams are numbered (PSN), so that a
 * receiver detects missing ones.
 *
 * An operation is one message, or several that belong together; its first datagram is marked. An
 * operation is "whole" if none of its datagrams up to the current one is missing.
 *
 * What this does NOT do: retransmit datagrams, or wait for late ones. A datagram that arrives late
 * or twice is dropped.
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
 * Opens an endpoint on a UDP socket, and disables fragmentation on the socket. The caller keeps
 * ownership of the socket, and closes it after the endpoint. crc: whether CRCs are sent and
 * checked. Returns 0, -ENOMEM or -errno.
 */
int siw_ddp_uc_open(struct siw_llp_port *port, struct siw_mem *mem, struct siw_llp_sock *sock,
		    bool crc, struct siw_ddp_uc **out);
void siw_ddp_uc_close(struct siw_ddp_uc *uc);

/*
 * Sets the socket that siw_ddp_uc_rx receives from; the default is the endpoint's own socket. Call
 * under the progress lock.
 */
void siw_ddp_uc_receive_at(struct siw_ddp_uc *uc, struct siw_llp_sock *sock);
/*
 * Sets the socket that the endpoint sends on, and disables fragmentation on it. Call under both
 * locks. Returns 0 or -errno.
 */
int siw_ddp_uc_send_by(struct siw_ddp_uc *uc, struct siw_llp_sock *sock);
struct siw_ddp_uc_path {
	struct siw_addr peer;
	uint32_t psn; /* PSN of the peer's next datagram */
	/* maximum octets of a segment's payload; 0: what the route's MTU allows */
	uint32_t payload;
};
/*
 * Sets the peer; datagrams from other addresses are dropped. Returns 0; -EAFNOSUPPORT if the peer's
 * address is of another family; -ENETUNREACH or a similar error if there is no route. On failure
 * nothing is changed.
 */
int siw_ddp_uc_connect(struct siw_ddp_uc *uc, const struct siw_ddp_uc_path *path);
/* Sets the PSN of the next datagram to be sent. */
void siw_ddp_uc_set_tx_psn(struct siw_ddp_uc *uc, uint32_t psn);
/* The next PSN in each direction. */
void siw_ddp_uc_numbers(const struct siw_ddp_uc *uc, uint32_t *in, uint32_t *out);
/*
 * Sets the Q_Key, the protection domain, and the identity for STags bound to one stream
 * (siw_ddp_stream_bind).
 */
void siw_ddp_uc_set_keys(struct siw_ddp_uc *uc, uint32_t qkey, uint32_t pd, const void *identity);
/* The rate limit of the endpoint's sends. */
struct siw_ddp_pace *siw_ddp_uc_pace(struct siw_ddp_uc *uc);
/* The longest payload of a tagged segment now, in octets; 0: the endpoint is not connected. */
uint32_t siw_ddp_uc_payload(const struct siw_ddp_uc *uc);

/* ---- sending --------------------------------------------------------------------------------- */

#define SIW_DDP_UC_HEAD 16

/* A message. sgl must stay valid until siw_ddp_uc_accepted has passed the message. */
struct siw_ddp_uc_msg {
	bool first; /* an operation begins */
	bool tagged;
	bool internal; /* sgl is library memory */
	uint8_t ulp_octet;
	uint32_t qn;   /* untagged; the MSN is assigned here */
	uint32_t stag; /* tagged: the peer's */
	uint64_t to;
	const struct siw_sge *sgl;
	int nsge;
	uint64_t length; /* octets of sgl to send, from its start */
	/* Untagged: octets that precede sgl in the payload. */
	uint8_t head[SIW_DDP_UC_HEAD];
	uint8_t head_len;
};
/*
 * Returns the endpoint's message, which the caller must assign as a whole before siw_ddp_uc_tx();
 * NULL: another message has segments left, or siw_ddp_uc_refused has an unread report.
 */
struct siw_ddp_uc_msg *siw_ddp_uc_tx_msg(struct siw_ddp_uc *uc);
/*
 * Begins the message from siw_ddp_uc_tx_msg(). Small segments are collected until
 * siw_ddp_uc_tx_flush.
 *   1        all segments are framed
 *   0        some are left: siw_ddp_uc_tx_more continues
 *   -ENOMEM  not begun
 *   -EACCES  an lkey is invalid; -EFAULT: its memory is not mapped. The message ends here, and a
 *            receiver drops the segments that were sent
 */
int siw_ddp_uc_tx(struct siw_ddp_uc *uc);
/* Continues the message, by 64 KiB at most. Returns the same values as siw_ddp_uc_tx. */
int siw_ddp_uc_tx_more(struct siw_ddp_uc *uc);
/*
 * Passes the collected datagrams to UDP. Returns 1 if UDP accepted all; 0 if the socket is full, or
 * the network refused one.
 */
int siw_ddp_uc_tx_flush(struct siw_ddp_uc *uc);
/*
 * Whether the last flush found the socket full, or the remaining datagrams wait for the rate limit.
 */
bool siw_ddp_uc_tx_blocked(const struct siw_ddp_uc *uc);
/* Messages begun so far; and how many of them, in order, UDP has accepted or refused. */
uint64_t siw_ddp_uc_begun(const struct siw_ddp_uc *uc);
uint64_t siw_ddp_uc_accepted(const struct siw_ddp_uc *uc);
/*
 * Whether the network refused a datagram (no route, a filter). Returns 1, once, with the numbers of
 * the first and the last message that the datagram may belong to, counted from 1; 0 if none was
 * refused.
 */
int siw_ddp_uc_refused(struct siw_ddp_uc *uc, uint64_t *first, uint64_t *last);
/* Drops the collected datagrams, and the message that has segments left. */
void siw_ddp_uc_reset_tx(struct siw_ddp_uc *uc);

/* ---- reports --------------------------------------------------------------------------------- */

/* A receiver's statistics on its peer's datagrams since siw_ddp_uc_connect. */
struct siw_ddp_uc_report {
	uint64_t datagrams, octets; /* counted for datagrams whose PSN was newer than all before */
	uint32_t next;		    /* the PSN that follows the newest one */
};
/* Whether setting uc_breaker applies to this peer. */
bool siw_ddp_uc_reports(const struct siw_ddp_uc *uc);
/*
 * Whether a report must be sent: enough datagrams arrived since the last report, which was sent at
 * least one second ago.
 */
bool siw_ddp_uc_report_due(const struct siw_ddp_uc *uc);
/* Sends a report; without room in the socket the report stays due. Call under both locks. */
void siw_ddp_uc_report_send(struct siw_ddp_uc *uc);
/* Returns 1 and the peer's last report in *report, once per report, or 0. */
int siw_ddp_uc_report_received(struct siw_ddp_uc *uc, struct siw_ddp_uc_report *report);

/* ---- receiving ------------------------------------------------------------------------------- */

struct siw_ddp_uc_seg {
	struct siw_ddp_seg seg;
	bool first; /* the segment is the first of an operation */
	bool whole;
};
/*
 * Returns the peer's next datagram that is valid and newer than all before it: 1 with *seg, valid
 * until the next call; 0 if no more have arrived. Other datagrams are dropped and counted.
 */
int siw_ddp_uc_rx(struct siw_ddp_uc *uc, struct siw_ddp_uc_seg *seg);
/*
 * See siw_ddp_dgram_may_continue; octets: limits the turn, so that a long message does not starve other
 * sockets, either.
 */
bool siw_ddp_uc_may_continue(struct siw_ddp_uc *uc, int tries, uint32_t octets);
/* Abandons the current operation: the rest of it counts as not whole. */
void siw_ddp_uc_abandon_op(struct siw_ddp_uc *uc);
/* Copies the first octets of the current payload, at most len, into out. Returns their number. */
uint32_t siw_ddp_uc_peek(const struct siw_ddp_uc *uc, void *out, uint32_t len);
/*
 * Places the current untagged segment, whose operation must be whole. head: octets at the start of
 * the message that are not placed into the buffer. A message that is never finished leaves its
 * buffer to the next one.
 *   1          the message is delivered: *delivery
 *   2          the message has more segments
 *   -ENOBUFS   there is no buffer
 *   -EPROTO    the segment does not begin where the previous one ended
 *   -EMSGSIZE  the message is longer than the buffer; -EACCES: the buffer's lkey or memory is
 *              invalid. The buffer is used up: *delivery
 */
int siw_ddp_uc_place(struct siw_ddp_uc *uc, struct siw_mem_queue *queue, uint32_t head,
		     struct siw_ddp_delivery *delivery);
/*
 * Uses up a buffer for a message that places no octets into it. Returns 1, and the buffer's
 * user_data in *delivery; or -ENOBUFS.
 */
int siw_ddp_uc_use_buffer(struct siw_ddp_uc *uc, struct siw_mem_queue *queue,
			  struct siw_ddp_delivery *delivery);
/*
 * Places the current tagged segment. Returns 1 if it is the last of its message; 2 if not; -EACCES
 * with *err, and nothing was written.
 */
int siw_ddp_uc_place_tagged(struct siw_ddp_uc *uc, struct siw_mem_queue *queue, uint32_t right,
			    struct siw_wire_err *err);
/* For a flush: releases the buffer of an unfinished message. Returns 1 and its user_data, or 0. */
int siw_ddp_uc_release_buffer(struct siw_ddp_uc *uc, uint64_t *user_data);

/* cffi: end */

#endif
