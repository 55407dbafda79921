/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_uc.h - part of ddp/ddp.h: endpoints of unreliable connections (datagram-iWARP, "UC"). A
 * message is split into segments, each of which is sent in one datagram: LLP header
 * (llp/llp_dgram_wire.h, type UC), DDP segment, CRC32C. Datagrams are numbered (PSN), so that a
 * receiver detects missing ones.
 *
 * An operation is one message, or several messages that belong together; the first datagram of an
 * operation is marked. An operation is "whole" if no datagram of the operation up to the current
 * datagram is missing.
 *
 * What a UC endpoint does NOT do: retransmit datagrams, or wait for late datagrams. A datagram that
 * arrives late or twice is dropped.
 *
 * Locks: call siw_ddp_uc_tx... and _set_tx_psn under the QP's send lock; _close, _connect,
 * _set_qkey_pd_and_identity and _reset_tx under the send lock and the progress lock; all others
 * under the progress lock.
 */
#ifndef SIW_DDP_UC_H
#define SIW_DDP_UC_H

#include "ddp/ddp.h"

/* cffi: begin */

struct siw_ddp_uc;

/*
 * Opens a UC endpoint on a UDP socket, and disables fragmentation on the socket. The caller keeps
 * ownership of the socket, and closes the socket after the endpoint. crc: whether CRCs are sent and
 * checked. Returns 0 or -errno.
 */
int siw_ddp_uc_open(struct siw_llp_poller *poller, struct siw_mem *mem, struct siw_llp_sock *sock,
		    bool crc, struct siw_ddp_uc **out);
void siw_ddp_uc_close(struct siw_ddp_uc *uc);

/*
 * Sets the socket that siw_ddp_uc_rx receives from; the default is the endpoint's own socket. Call
 * under the progress lock.
 */
void siw_ddp_uc_set_rx_sock(struct siw_ddp_uc *uc, struct siw_llp_sock *sock);
/*
 * Sets the socket that the endpoint sends on, and disables fragmentation on the socket. Call under
 * both locks. Returns 0 or -errno.
 */
int siw_ddp_uc_set_tx_sock(struct siw_ddp_uc *uc, struct siw_llp_sock *sock);
struct siw_ddp_uc_path {
	struct siw_addr peer;
	uint32_t psn; /* PSN of the peer's next datagram */
	/* maximum octets of a segment's payload; 0: the maximum that the route's MTU allows */
	uint32_t payload;
};
/*
 * Sets the peer of a UC endpoint; datagrams from other addresses are dropped. Returns 0;
 * -EAFNOSUPPORT if the peer's address is of another family than the socket's; -ENETUNREACH or a
 * similar error if there is no route. On failure nothing is changed.
 */
int siw_ddp_uc_connect(struct siw_ddp_uc *uc, const struct siw_ddp_uc_path *path);
/* Sets the PSN of the next datagram that the UC endpoint sends. */
void siw_ddp_uc_set_tx_psn(struct siw_ddp_uc *uc, uint32_t psn);
/* Returns the PSN of the next datagram in each direction. */
void siw_ddp_uc_next_psns(const struct siw_ddp_uc *uc, uint32_t *in, uint32_t *out);
/*
 * Sets the Q_Key, the protection domain, and the identity for STags bound to one stream
 * (siw_ddp_stream_set_stag_identity).
 */
void siw_ddp_uc_set_qkey_pd_and_identity(struct siw_ddp_uc *uc, uint32_t qkey, uint32_t pd,
					 const void *identity);
/* Returns the rate limit of the datagrams that the UC endpoint sends. */
struct siw_ddp_pace *siw_ddp_uc_get_pace(struct siw_ddp_uc *uc);
/*
 * Returns the current maximum payload of a tagged segment, in octets; 0 if the endpoint is not
 * connected.
 */
uint32_t siw_ddp_uc_max_payload(const struct siw_ddp_uc *uc);

/* ---- sending --------------------------------------------------------------------------------- */

#define SIW_DDP_UC_HEAD 16

/*
 * A message that a UC endpoint sends. sgl must stay valid until
 * siw_ddp_uc_accepted_tx_message_count has counted the message.
 */
struct siw_ddp_uc_msg {
	bool first; /* the message begins an operation */
	bool tagged;
	bool internal; /* sgl is library memory */
	uint8_t ulp_octet;
	uint32_t qn;   /* untagged; the DDP layer assigns the MSN */
	uint32_t stag; /* tagged: the peer's STag */
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
 * NULL if another message has segments left, or if the caller has not read a refusal by
 * siw_ddp_uc_pop_refused_message_range.
 */
struct siw_ddp_uc_msg *siw_ddp_uc_tx_get_msg_to_fill(struct siw_ddp_uc *uc);
/*
 * Begins to send the message returned by siw_ddp_uc_tx_get_msg_to_fill(). Small segments are
 * collected until siw_ddp_uc_tx_flush.
 *   1        all segments are framed
 *   0        some are left: siw_ddp_uc_tx_continue_msg continues
 *   -ENOMEM  not begun
 *   -EACCES  an lkey is invalid; -EFAULT: its memory is not mapped. The message ends here, and a
 *            receiver drops the segments that were sent
 */
int siw_ddp_uc_tx(struct siw_ddp_uc *uc);
/* Continues to send the message, by at most 64 KiB. Returns the same values as siw_ddp_uc_tx. */
int siw_ddp_uc_tx_continue_msg(struct siw_ddp_uc *uc);
/*
 * Passes the collected datagrams to UDP. Returns 1 if UDP accepted all datagrams; 0 if the socket
 * is full, or if the network refused a datagram.
 */
int siw_ddp_uc_tx_flush(struct siw_ddp_uc *uc);
/*
 * Whether the last flush found the socket full, or the remaining datagrams wait for the rate limit.
 */
bool siw_ddp_uc_is_tx_blocked(const struct siw_ddp_uc *uc);
/*
 * Return the number of messages begun so far, and the number of these messages, in order, that UDP
 * has accepted or refused.
 */
uint64_t siw_ddp_uc_begun_tx_message_count(const struct siw_ddp_uc *uc);
uint64_t siw_ddp_uc_accepted_tx_message_count(const struct siw_ddp_uc *uc);
/*
 * Whether the network refused a datagram (no route, a filter). Returns 1, once per refusal, with
 * the numbers of the first and the last message that the datagram may belong to, counted from 1; 0
 * if no datagram was refused.
 */
int siw_ddp_uc_pop_refused_message_range(struct siw_ddp_uc *uc, uint64_t *first, uint64_t *last);
/* Drops the collected datagrams, and the message whose segments are not all sent. */
void siw_ddp_uc_reset_tx(struct siw_ddp_uc *uc);

/* ---- reports --------------------------------------------------------------------------------- */

/* A receiver's statistics on its peer's datagrams since siw_ddp_uc_connect. */
struct siw_ddp_uc_report {
	/* count only datagrams with a PSN that was newer than all earlier ones */
	uint64_t datagrams, octets;
	uint32_t next; /* the PSN that follows the newest PSN received */
};
/* Whether setting uc_breaker enables reports of received datagrams to the endpoint's peer. */
bool siw_ddp_uc_are_receiver_reports_enabled(const struct siw_ddp_uc *uc);
/*
 * Whether a report must be sent: enough datagrams arrived since the last report, and the last
 * report was sent at least one second ago.
 */
bool siw_ddp_uc_is_receiver_report_due(const struct siw_ddp_uc *uc);
/*
 * Sends a report to the peer; if the socket has no room, the report stays due. Call under both
 * locks.
 */
void siw_ddp_uc_send_receiver_report(struct siw_ddp_uc *uc);
/*
 * Returns 1 and the peer's last report in *report, once per report, or 0 if there is no new report.
 */
int siw_ddp_uc_take_receiver_report(struct siw_ddp_uc *uc, struct siw_ddp_uc_report *report);

/* ---- receiving ------------------------------------------------------------------------------- */

struct siw_ddp_uc_seg {
	struct siw_ddp_seg seg;
	bool first; /* the segment is the first of an operation */
	bool whole;
};
/*
 * Returns the peer's next datagram that is valid and newer than all earlier datagrams: 1 with *seg,
 * valid until the next call; 0 if no more datagrams have arrived. Other datagrams are dropped and
 * counted.
 */
int siw_ddp_uc_rx(struct siw_ddp_uc *uc, struct siw_ddp_uc_seg *seg);
/*
 * Whether the caller may receive another datagram in this turn: see siw_ddp_dgram_continue_or_requeue_rx.
 * octets: the octets received in this turn, which are limited so that a long message does not
 * starve other sockets.
 */
bool siw_ddp_uc_continue_or_resume_rx(struct siw_ddp_uc *uc, int tries, uint32_t octets);
/*
 * Abandons the operation that is being received. Its remaining datagrams are handled as after the
 * loss of a datagram.
 */
void siw_ddp_uc_abandon_rx_op(struct siw_ddp_uc *uc);
/*
 * Copies the first octets of the current payload, at most len, into out. Returns the number of
 * octets copied.
 */
uint32_t siw_ddp_uc_peek_payload(const struct siw_ddp_uc *uc, void *out, uint32_t len);
/*
 * Places the current untagged segment, whose operation must be whole. head: octets at the start of
 * the message that are not placed into the buffer. A message that is never finished leaves its
 * buffer to the next message.
 *   1          the message is delivered: *delivery
 *   2          the message has more segments
 *   -ENOBUFS   there is no buffer
 *   -EPROTO    the segment does not begin where the previous one ended
 *   -EMSGSIZE  the message is longer than the buffer; -EACCES: the buffer's lkey or memory is
 *              invalid. The buffer is used up: *delivery
 */
int siw_ddp_uc_place(struct siw_ddp_uc *uc, struct siw_mem_buffer_queue *queue, uint32_t head,
		     struct siw_ddp_delivery *delivery);
/*
 * Uses up a receive buffer for a message that places no octets into the buffer. Returns 1, and the
 * buffer's user_data in *delivery; or -ENOBUFS.
 */
int siw_ddp_uc_use_up_receive_buffer(struct siw_ddp_uc *uc, struct siw_mem_buffer_queue *queue,
				     struct siw_ddp_delivery *delivery);
/*
 * Places the current tagged segment. Returns 1 if the segment is the last of its message; 2 if it
 * is not; or -EACCES with *err if nothing was written.
 */
int siw_ddp_uc_place_tagged(struct siw_ddp_uc *uc, struct siw_mem_buffer_queue *queue,
			    uint32_t right, struct siw_wire_err *err);
/*
 * Removes the buffer of an unfinished message when the queue pair is flushed. Returns 1 and the
 * buffer's user_data, or 0 if there is no such buffer.
 */
int siw_ddp_uc_pop_unfinished_buffer(struct siw_ddp_uc *uc, uint64_t *user_data);

/* cffi: end */

#endif
