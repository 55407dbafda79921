/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap.h - the RDMA protocol (RFC 5040): operations as messages, RDMA Read's request and
 * response, Terminate; on datagrams, the Send of datagram-iWARP.
 *
 * What this layer does NOT do: know queue pairs, work queues or completions. It is handed one
 * operation at a time and hands up events as values.
 *
 * Locks: as ddp. siw_rdmap_send/flush/terminate/accepted/ready of a stream: the QP's send lock. All
 * others: the progress lock. What the two sides share (outstanding Reads, inbound Read Requests) is
 * in single-producer rings.
 */
#ifndef SIW_RDMAP_H
#define SIW_RDMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <siwarp/types.h>

#include "base/err.h"
#include "base/mpa_params.h"

/* cffi: begin */

struct siw_rdmap_port;
struct siw_rdmap_listener;
struct siw_rdmap_stream;
struct siw_rdmap_dgram;
struct siw_rdmap_rd;
struct siw_rdmap_queue; /* receives: the untagged buffers of queue 0 */

#define SIW_RDMAP_MAX_SGE   16
#define SIW_RDMAP_MAX_READS 128 /* most IRD and ORD of a stream */

/* ---- port: the crank, handed down to llp (see llp.h for each) -------------------------------- */

struct siw_rdmap_waitset {
	int n;
	int fds[20];
	bool out[20];
	void *port; /* this and the rest: llp's */
	uint32_t changes;
	uint64_t due_ns;
};
int siw_rdmap_port_open(struct siw_rdmap_port **out);
void siw_rdmap_port_close(struct siw_rdmap_port *port);
int siw_rdmap_port_poll(struct siw_rdmap_port *port, void **tokens, int n);
/* The time, as of the last poll if that read the clock. */
uint64_t siw_rdmap_port_clock(const struct siw_rdmap_port *port);
int siw_rdmap_port_arm(struct siw_rdmap_port *port);
void siw_rdmap_port_disarm(struct siw_rdmap_port *port);
bool siw_rdmap_port_armed(const struct siw_rdmap_port *port);
void siw_rdmap_port_wake(struct siw_rdmap_port *port);
void siw_rdmap_waitset_fill(struct siw_rdmap_port *port, struct siw_rdmap_waitset *set);
int siw_rdmap_wait(const struct siw_rdmap_waitset *set, int extra_fd, int64_t timeout_us);
int siw_rdmap_event_open(void);
void siw_rdmap_event_set(int fd);
void siw_rdmap_event_clear(int fd);
void siw_rdmap_event_close(int fd);

struct siw_rdmap_interface {
	char name[16];
	uint32_t mtu; /* octets */
	uint32_t up;
	uint32_t n_addrs;
	struct siw_addr addrs[16]; /* IPv4 first; port 0 */
};
int siw_rdmap_interfaces(struct siw_rdmap_interface *out, int max);

struct siw_rdmap_watch;
enum siw_rdmap_watch_news {
	SIW_RDMAP_WATCH_UP = 1,
	SIW_RDMAP_WATCH_DOWN,
	SIW_RDMAP_WATCH_ADDRS,
	SIW_RDMAP_WATCH_LOST,
};
int siw_rdmap_watch_open(struct siw_rdmap_port *port, const char *name, void *token,
			 struct siw_rdmap_watch **out);
int siw_rdmap_watch_read(struct siw_rdmap_watch *watch);
void siw_rdmap_watch_close(struct siw_rdmap_watch *watch);

/* ---- memory ---------------------------------------------------------------------------------- */

struct siw_rdmap_region {
	void *addr;
	uint64_t length; /* octets */
	uint32_t rights; /* set of enum siw_access_flags */
	uint32_t pd;
	const void *owner; /* NULL, or that of the one stream that may use it (siw_rdmap_start) */
	bool window;	   /* for peers alone: it is nobody's lkey */
	bool zero_based;   /* tagged offsets count from 0, and are the addresses otherwise */
};
/* Any thread. Errors as those of siw_ddp_stag_alloc, and so on. */
int siw_rdmap_stag_alloc(struct siw_rdmap_port *port, const struct siw_rdmap_region *region,
			 uint32_t *stag);
int siw_rdmap_stag_free(struct siw_rdmap_port *port, uint32_t stag);
int siw_rdmap_stag_reserve(struct siw_rdmap_port *port, bool window, uint32_t *stag);
int siw_rdmap_stag_bind(struct siw_rdmap_port *port, uint32_t stag,
			const struct siw_rdmap_region *region);
bool siw_rdmap_stag_alive(struct siw_rdmap_port *port, uint32_t stag);
int siw_rdmap_stag_invalidate(struct siw_rdmap_port *port, uint32_t stag, const void *owner);

/* ---- receives -------------------------------------------------------------------------------- */

int siw_rdmap_queue_create(struct siw_rdmap_port *port, uint32_t depth, uint32_t max_sge,
			   uint32_t pd, struct siw_rdmap_queue **out);
void siw_rdmap_queue_destroy(struct siw_rdmap_queue *queue);
/* -ENOMEM full, -EINVAL too many elements. One poster at a time, any thread. */
int siw_rdmap_queue_post(struct siw_rdmap_queue *queue, uint64_t cookie, const struct siw_sge *sgl,
			 int nsge);
int siw_rdmap_queue_take(struct siw_rdmap_queue *queue, uint64_t *cookie);
/* Buffers that are posted and not taken. Any thread. */
uint32_t siw_rdmap_queue_used(const struct siw_rdmap_queue *queue);

/* ---- streams --------------------------------------------------------------------------------- */

/* Start-up: as in mpa.h. */
int siw_rdmap_listen(struct siw_rdmap_port *port, const struct siw_addr *local, int backlog,
		     void *token, struct siw_rdmap_listener **out);
int siw_rdmap_listener_addr(struct siw_rdmap_listener *listener, struct siw_addr *out);
void siw_rdmap_listener_hold(struct siw_rdmap_listener *listener, bool hold);
void siw_rdmap_listener_close(struct siw_rdmap_listener *listener);
int siw_rdmap_accept(struct siw_rdmap_listener *listener, void *token,
		     struct siw_rdmap_stream **out);
int siw_rdmap_connect(struct siw_rdmap_port *port, const struct siw_addr *dest,
		      const struct siw_addr *source, const struct siw_mpa_params *params,
		      void *token, struct siw_rdmap_stream **out);
enum siw_rdmap_startup {
	SIW_RDMAP_STARTING = 0,
	SIW_RDMAP_REQUEST = 1,
	SIW_RDMAP_REPLY = 2,
	SIW_RDMAP_REJECTED = 3,
};
int siw_rdmap_startup(struct siw_rdmap_stream *stream, struct siw_mpa_params *peer);
int siw_rdmap_reply(struct siw_rdmap_stream *stream, const struct siw_mpa_params *params);
/* The error behind a start-up that ended with -EPROTO. */
struct siw_wire_err siw_rdmap_startup_error(const struct siw_rdmap_stream *stream);
/*
 * Initiator, after the Reply: ends with a Terminate instead of siw_rdmap_start (RFC 6581 section
 * 9). 1 it is out and the sending side shut; 0 it cannot go out now; -errno. Both locks.
 */
int siw_rdmap_refuse(struct siw_rdmap_stream *stream, const struct siw_wire_err *err);
int siw_rdmap_addrs(struct siw_rdmap_stream *stream, struct siw_addr *local, struct siw_addr *peer);
void siw_rdmap_set_token(struct siw_rdmap_stream *stream, void *token);
void siw_rdmap_again(struct siw_rdmap_stream *stream);
/* Octets came that no siw_rdmap_recv has looked at. */
bool siw_rdmap_staged(const struct siw_rdmap_stream *stream);
void siw_rdmap_hold(struct siw_rdmap_stream *stream);
bool siw_rdmap_crc_on(const struct siw_rdmap_stream *stream);

/* What turns a started connection into an RDMAP stream. */
struct siw_rdmap_start {
	struct siw_rdmap_queue *recvs; /* queue 0 */
	uint32_t pd;
	uint16_t ird, ord; /* after negotiation; at most SIW_RDMAP_MAX_READS */
	uint8_t rtr;	   /* the one enum siw_mpa_rtr both agreed on, or none */
	bool initiator;
	uint32_t denied;   /* as siw_rdmap_deny */
	const void *owner; /* what regions are bound to for this stream alone; NULL: nothing is */
	/*
	 * Octets in which Sends that find no receive wait for one; 0: that is an error. A Read of
	 * nothing that comes behind such a Send is answered when that was received: the peer may be
	 * asking just this (siw_rdmap_confirm).
	 */
	uint64_t park;
	bool private; /* the peer is siwarp, too: messages of its own may come and go */
};
/*
 * Posts the buffers of queues 1 and 2, keeps IRD and ORD. Initiator with an RTR: sends it.
 * Responder with an RTR: the first FPDU must be one of it (it consumes no receive) and comes up as
 * SIW_RDMAP_STARTED. Send lock and progress lock both.
 */
int siw_rdmap_start(struct siw_rdmap_stream *stream, const struct siw_rdmap_start *start);
/* Rights (of enum siw_access_flags) that the peer has on this stream under no STag at all. */
void siw_rdmap_deny(struct siw_rdmap_stream *stream, uint32_t denied);

/* Operations (RFC 5040 figure 4, RFC 7306 figure 2): the opcodes on the wire. */
enum siw_rdmap_opcode {
	SIW_RDMAP_WRITE = 0,
	SIW_RDMAP_READ_REQUEST = 1,
	SIW_RDMAP_READ_RESPONSE = 2,
	SIW_RDMAP_SEND = 3,
	SIW_RDMAP_SEND_INV = 4,
	SIW_RDMAP_SEND_SE = 5,
	SIW_RDMAP_SEND_SE_INV = 6,
	SIW_RDMAP_TERMINATE = 7,
	SIW_RDMAP_IMMEDIATE = 8,
	SIW_RDMAP_IMMEDIATE_SE = 9,
	SIW_RDMAP_ATOMIC_REQUEST = 10,
	SIW_RDMAP_ATOMIC_RESPONSE = 11,
	SIW_RDMAP_PRIVATE =
		15, /* RFC 6580's experimental one; an enum siw_rdmap_private says more */
};

/* Messages of siwarp's own (spec/datagram-iwarp.md section 10): the octet they begin with. */
enum siw_rdmap_private {
	SIW_RDMAP_SEND_IMM = 1,
	SIW_RDMAP_SEND_IMM_SE = 2,
};

/* An operation on 64 bits of the peer's memory (RFC 7306 section 5.1), in host order. */
enum siw_rdmap_atomic_kind {
	SIW_RDMAP_FETCH_ADD = 0,
	SIW_RDMAP_CMP_SWAP = 2,
};
struct siw_rdmap_atomic {
	uint32_t kind; /* enum siw_rdmap_atomic_kind: the code on the wire */
	uint64_t data; /* what to add, or what to swap in */
	uint64_t mask; /* adding: each field's top bit, 0: one field; swapping: the bits to swap */
	uint64_t compare; /* swapping alone, as the next: */
	uint64_t compare_mask;
};

struct siw_rdmap_op {
	uint8_t opcode; /* SEND..., WRITE, READ_REQUEST, ATOMIC_REQUEST; RD: PRIVATE, a Write-Record */
	bool solicited;	 /* PRIVATE */
	bool internal;	 /* sgl is library memory (inline data) */
	uint64_t cookie; /* READ_REQUEST, ATOMIC_REQUEST: comes back in SIW_RDMAP_READ_DONE */
	const struct siw_sge *sgl; /* source; of these two, the sink. Must stay until done. */
	int nsge;
	uint64_t length; /* octets of all of sgl; of an atomic 8 */
	/* WRITE, READ_REQUEST, ATOMIC_REQUEST, SEND..._INV: the peer's STag; with tagged offset */
	uint32_t rkey;
	uint64_t remote_to;
	const struct siw_rdmap_atomic *atomic; /* ATOMIC_REQUEST; need not stay */
	/*
	 * Immediate data: imm_opcode is 0 (none), IMMEDIATE or IMMEDIATE_SE, imm its four octets as they
	 * lie in memory, imm_room 8 octets for this layer to use, which stay as sgl does. Of a WRITE: a
	 * message of that opcode behind it, of a SEND: PRIVATE instead. Either is one operation.
	 */
	uint8_t imm_opcode;
	uint32_t imm;
	uint8_t *imm_room;
};
/*
 * Begins an operation: 0 (it has number siw_rdmap_begun after the call); -EAGAIN not now: an
 * earlier message is not wholly framed, or a Read (an atomic counts as one) would exceed ORD:
 * flush and try again after progress; -EACCES a local key is bad; -EPIPE the stream has ended; -errno.
 */
int siw_rdmap_send(struct siw_rdmap_stream *stream, const struct siw_rdmap_op *op);
/*
 * Asks whether the peer has all that was begun: a Read of nothing behind it, one of the ORD. 0:
 * SIW_RDMAP_CONFIRMED will say so; -EAGAIN not now, as siw_rdmap_send; -errno.
 */
int siw_rdmap_confirm(struct siw_rdmap_stream *stream);
/* Read and Atomic Requests sent so far, of any kind: the MSN of the last one. Send lock. */
uint32_t siw_rdmap_reads(const struct siw_rdmap_stream *stream);
/*
 * Gives TCP what is framed, goes on with a long message, answers the peer's Read Requests, in fair
 * turns. 1: nothing is left to do; 0: TCP is full or a turn's budget (about 1 MiB) is used up; call
 * again at the next progress (siw_rdmap_send first, so that the user's operations get their turn);
 * -errno the stream is dead. -EACCES: dead because this end found an error in what it was sending
 * (a local key, the source of a response): siw_rdmap_recv gives ERROR too, and siw_rdmap_terminate
 * is due. -EFAULT: dead because memory that was referred to is not there any more.
 */
int siw_rdmap_flush(struct siw_rdmap_stream *stream);
/*
 * After a flush gave -EFAULT: the operation whose memory TCP could not read, by its number, or 0 if
 * it was not the user's.
 */
uint64_t siw_rdmap_faulty(struct siw_rdmap_stream *stream);
/* After a flush gave 0: it waits for TCP (or for the peer's first FPDU), not for another turn. */
bool siw_rdmap_blocked(const struct siw_rdmap_stream *stream);
/* Operations begun by siw_rdmap_send, and how many of them (in order) TCP took whole. */
uint64_t siw_rdmap_begun(const struct siw_rdmap_stream *stream);
uint64_t siw_rdmap_accepted(struct siw_rdmap_stream *stream);
/* Read Requests of the peer wait to be answered: siw_rdmap_flush is due. Any thread. */
bool siw_rdmap_owes(const struct siw_rdmap_stream *stream);

enum siw_rdmap_event_kind {
	SIW_RDMAP_NONE = 0,
	SIW_RDMAP_STARTED, /* responder: the peer's first FPDU came; sending is open, flush is due */
	SIW_RDMAP_RECV,	   /* a Send arrived: cookie, length, solicited, invalidated */
	SIW_RDMAP_READ_DONE,  /* an RDMA Read or an atomic is complete: cookie, length */
	SIW_RDMAP_REQUESTED,  /* the peer asked for data, length octets: flush is due */
	SIW_RDMAP_PROGRESS,   /* something one-sided was placed; nothing to tell the user */
	SIW_RDMAP_TERMINATED, /* the peer sent a Terminate: err; the stream is over */
	SIW_RDMAP_ERROR,  /* this end found err; siw_rdmap_terminate is due; the stream is over */
	SIW_RDMAP_CLOSED, /* end of stream or a dead connection: status */
	SIW_RDMAP_PARKED, /* a Send waits for a receive: siw_rdmap_recv is due when one is posted */
	SIW_RDMAP_CONFIRMED, /* the peer has every operation up to number cookie */
	/*
	 * A receive is used up: cookie, and -EMSGSIZE or -EACCES (datagram), -EACCES or -EPROTO (stream:
	 * the ERROR follows).
	 */
	SIW_RDMAP_BAD_RECV,
	SIW_RDMAP_BAD_MSG, /* datagram: whoever has the Q_Key broke a rule: err, the header quoted */
	SIW_RDMAP_BAD_ACCESS, /* datagram: likewise, but the peer must not be told: it reached for memory */
	SIW_RDMAP_RECORD, /* datagram: a segment of a Write-Record came: siw_rdmap_record_next is due */
	SIW_RDMAP_PEER_ERR, /* datagram: a peer's error message: siw_rdmap_dgram_sent tells if it counts */
	/* Reliable datagrams; the stream goes on but for LOST, and so it does after TERMINATED: */
	SIW_RDMAP_REFUSED, /* a message of the peer's was refused for err, flush is due; of_response: the
			      oldest Read or atomic is over, cookie; blamed: a receive is, cookie */
	SIW_RDMAP_ACKED, /* siw_rdmap_accepted moved, or there is room: flush is due */
	SIW_RDMAP_HELD, /* as PARKED: siw_rdmap_rd_resume is due when a receive is posted; or, status
			    -EBUSY, when one who was told of Write-Records has polled some */
	SIW_RDMAP_LOST, /* the peer is gone or lives anew: siw_rdmap_rd_end is due: status */
};

struct siw_rdmap_event {
	int kind; /* enum siw_rdmap_event_kind */
	int status;
	uint64_t cookie;
	uint32_t length; /* octets */
	uint32_t placed; /* stream: octets of the segment that brought this */
	bool solicited;
	bool invalidated;
	bool with_imm; /* RECV: imm is immediate data, as it lies in memory */
	bool of_write; /* ... and length that of the Write before it: the receive is unused */
	uint32_t imm;
	uint32_t inv_stag;
	void *token;	   /* datagram: of the endpoint */
	uint32_t ulp_word; /* datagram: the Q_Key */
	uint32_t src_qpn;  /* datagram */
	uint32_t msn;
	struct siw_wire_err err;
	/*
	 * What the Terminate quoted, or what ours will: the failing segment's DDP header, if quoted
	 * is set; of a tagged one the STag and TO only where the peer quoted it.
	 */
	bool quoted;
	bool quoted_tagged;
	uint32_t quoted_msn;
	uint32_t quoted_qn;
	uint32_t quoted_stag;
	uint64_t quoted_to;
	uint8_t quoted_head[18]; /* datagram: the header itself */
	uint8_t quoted_head_len;
	uint16_t quoted_seg_len; /* datagram: octets of the segment that it headed */
	/* datagram: RDMAP's header of a Write-Record behind it, whose id is quoted_msn; or 0 octets */
	uint8_t quoted_more[20];
	uint8_t quoted_more_len;
	bool of_response; /* ERROR: the segment is of a response, that to the oldest Read or atomic */
	bool blamed;
	struct siw_addr source; /* datagram */
};
/*
 * Next event: 1 and *event; 0 nothing now. After TERMINATED, ERROR or CLOSED nothing comes any
 * more.
 */
int siw_rdmap_recv(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);

/* Whether anything of that kind goes on. */
bool siw_rdmap_parked(const struct siw_rdmap_stream *stream);
/* Octets of memory that hold such Sends. */
uint64_t siw_rdmap_parked_octets(const struct siw_rdmap_stream *stream);
/* Whether a Send waits for a receive, and the oldest one's number. */
bool siw_rdmap_starved(const struct siw_rdmap_stream *stream, uint32_t *msn);
/* It has waited long enough: siw_rdmap_recv gives ERROR, no buffer, unless there is one now. */
void siw_rdmap_expire(struct siw_rdmap_stream *stream);
/*
 * Sends the Terminate for the last ERROR (once) and shuts the sending side down. 1 done, 0 not yet:
 * call again, -errno.
 */
int siw_rdmap_terminate(struct siw_rdmap_stream *stream);
/* Ends sending: everything begun is flushed first: 1 flushed and shut, 0 not yet, -errno. */
int siw_rdmap_shutdown(struct siw_rdmap_stream *stream);
/* The same without waiting for TCP: what it has not taken is never sent. 1, -errno. */
int siw_rdmap_cut(struct siw_rdmap_stream *stream);
/*
 * After that: reads and throws away until the peer's end of stream: 1 it came, or the stream is dead;
 * 0 not yet; -EMSGSIZE more came than setting linger_octets allows.
 */
int siw_rdmap_drain(struct siw_rdmap_stream *stream);
/*
 * The user's regions that this stream's responses may be reading: see siw_ddp_tx_revoke. Send lock.
 */
int siw_rdmap_revoke(struct siw_rdmap_stream *stream, uint32_t stag);
/*
 * Reads still outstanding, oldest first: 1 and the cookie, or 0. For a flush, once the stream is
 * over.
 */
int siw_rdmap_take_read(struct siw_rdmap_stream *stream, uint64_t *cookie);
/*
 * The receive that a Send broken off in its middle had taken from the queue: 1 and its cookie, or
 * 0. For a flush likewise.
 */
int siw_rdmap_take_recv(struct siw_rdmap_stream *stream, uint64_t *cookie);
void siw_rdmap_close(struct siw_rdmap_stream *stream, bool abort);

/* ---- datagram endpoints (UD) ----------------------------------------------------------------- */

struct siw_rdmap_dgram_attr {
	struct siw_addr local;
	int fd; /* -1, or the user's socket */
	bool no_crc;
	/*
	 * NULL, or one whose socket this one uses too, and whose CRC; local, fd and no_crc are not
	 * looked at then.
	 */
	struct siw_rdmap_dgram *share;
	void *token; /* of this endpoint: the poller hands out that of any one that shares the socket */
};
#define SIW_RDMAP_MAX_SHARERS 256
/* -ENOSPC: SIW_RDMAP_MAX_SHARERS share that socket. */
int siw_rdmap_dgram_open(struct siw_rdmap_port *port, const struct siw_rdmap_dgram_attr *attr,
			 struct siw_rdmap_dgram **out);
/* The socket goes with the last endpoint of it. */
void siw_rdmap_dgram_close(struct siw_rdmap_dgram *dgram);
/*
 * Its index among those of its socket: 0 of the first; then the next one up that is free, so that one is
 * given again as late as can be.
 */
uint8_t siw_rdmap_dgram_index(const struct siw_rdmap_dgram *dgram);
/* Whether others share its socket now. */
bool siw_rdmap_dgram_shared(const struct siw_rdmap_dgram *dgram);
/* If they do: a number that they have in common, for who wants to know when the socket was full. */
void siw_rdmap_dgram_set_full(struct siw_rdmap_dgram *dgram, uint64_t when);
uint64_t siw_rdmap_dgram_full(const struct siw_rdmap_dgram *dgram);
int siw_rdmap_dgram_addr(struct siw_rdmap_dgram *dgram, struct siw_addr *out);
uint32_t siw_rdmap_dgram_max(const struct siw_rdmap_dgram *dgram); /* octets of a message */
/* What was dropped for want of a receive, by source, the worst first: as siw_query_drops. */
int siw_rdmap_dgram_drops(const struct siw_rdmap_dgram *dgram, struct siw_source_drops *out,
			  int max);
/* Which receives to fill, and the Q_Key a message must carry. */
void siw_rdmap_dgram_start(struct siw_rdmap_dgram *dgram, struct siw_rdmap_queue *recvs,
			   uint32_t pd, uint32_t qkey);

/* As siw_llp_udp_group_sender: before the first Send to a group. Send lock. */
int siw_rdmap_dgram_group_sender(struct siw_rdmap_dgram *dgram, const char *netdev, int ttl);

struct siw_rdmap_dgram_op {
	uint64_t cookie; /* comes back from siw_rdmap_dgram_sent */
	const struct siw_addr *dest;
	uint8_t dest_index; /* of the endpoint among those of the socket there */
	uint32_t qkey;
	bool solicited;
	bool internal;
	bool with_imm; /* it is a private message then, and may be 8 octets less: */
	uint32_t imm;  /* as it lies in memory */
	const struct siw_sge *sgl;
	int nsge;
	uint64_t length; /* octets */
};
/* One Send: 0 taken by UDP; -EAGAIN; -EMSGSIZE; -EACCES a local key is bad; -errno. Send lock. */
int siw_rdmap_dgram_send(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_dgram_op *op);
/*
 * The first of n Sends (at most SIW_RDMAP_MAX_SOME) and those behind it that fit into the same
 * system call: how many UDP took, at least 1, or what siw_rdmap_dgram_send says of the first.
 */
#define SIW_RDMAP_MAX_SOME 32
int siw_rdmap_dgram_send_some(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_dgram_op *ops,
			      int n);
/*
 * Next message of the socket: 1 and *event (RECV, RECORD, BAD_RECV, BAD_MSG, BAD_ACCESS or PEER_ERR), whose token is that of
 * the endpoint it is for, any of those that share the socket; 0 nothing. What is not credible is
 * dropped and counted inside; nobody is told of that.
 */
int siw_rdmap_dgram_recv(struct siw_rdmap_dgram *dgram, struct siw_rdmap_event *event);
/*
 * Tells the sender of what a BAD_MSG, or a BAD_RECV with -EMSGSIZE, is about: one datagram, in the
 * layout of a Terminate, SIW_RDMAP_ERROR_OVER octets longer than what it answers at the most. 0; -EPERM
 * there is nobody to tell (a multicast source, no port); -errno what UDP says. How often: the caller's
 * matter. Send lock.
 */
#define SIW_RDMAP_ERROR_OVER 24
int siw_rdmap_dgram_answer(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_event *event);
/*
 * Whether the message that a PEER_ERR names was among the last err_window (a setting) that went there,
 * with its Q_Key, and no error message came about it yet; *cookie: its operation's. Send lock.
 */
bool siw_rdmap_dgram_sent(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_event *event,
			  uint64_t *cookie);

/* ---- multicast groups ------------------------------------------------------------------------ */

/*
 * A group on one interface and its members of this port. All under the progress lock. addr is the
 * group's, with the port.
 */
struct siw_rdmap_group;
int siw_rdmap_group_open(struct siw_rdmap_port *port, const struct siw_addr *addr,
			 const char *netdev, void *token, struct siw_rdmap_group **out);
/* It has no members. */
void siw_rdmap_group_close(struct siw_rdmap_group *group);
/* -EEXIST: it is a member. */
int siw_rdmap_group_attach(struct siw_rdmap_group *group, struct siw_rdmap_dgram *dgram);
/* How many members are left, or -ENOENT. An endpoint is a member of nothing when it is closed. */
int siw_rdmap_group_detach(struct siw_rdmap_group *group, const struct siw_rdmap_dgram *dgram);
/*
 * The next message of the group: whether there is one. Then siw_rdmap_group_copy gives it to one member after the
 * other, until it says 0 (nothing else may be received on the port meanwhile): 1 and *event, RECV or
 * BAD_RECV, with the token of the member. Whom it is not credible to, or who has no receive, is passed
 * over; that is counted, and noted where siw_rdmap_dgram_drops looks. Nothing is ever answered.
 */
bool siw_rdmap_group_next(struct siw_rdmap_group *group);
int siw_rdmap_group_copy(struct siw_rdmap_group *group, struct siw_rdmap_event *event);

/* ---- reliable datagrams (RD) --------------------------------------------------------------------
 *
 * An endpoint, and a stream for each peer with whom something goes on: siw_rdmap_send, _flush, _begun,
 * _accepted and so on are as above. A refusal ends no stream: the peer is told in an error message of a
 * Terminate's form, and what it names comes to its end there.
 */
struct siw_rdmap_rd_attr {
	struct siw_addr local;
	int fd; /* -1, or the user's socket */
	bool no_crc;
	uint16_t ird; /* Reads and atomics that each peer may have outstanding here */
	uint32_t qkey;
	uint32_t max_peers;	  /* 0: the setting */
	uint64_t peer_timeout_ns; /* 0: the setting */
	uint32_t user_octets;	  /* of siw_rdmap_rd_user */
	void *token;
};
int siw_rdmap_rd_open(struct siw_rdmap_port *port, const struct siw_rdmap_rd_attr *attr,
		      struct siw_rdmap_rd **out);
/* Both locks. Peers that still owe something are told. */
void siw_rdmap_rd_close(struct siw_rdmap_rd *rd);
int siw_rdmap_rd_addr(struct siw_rdmap_rd *rd, struct siw_addr *out);
void siw_rdmap_rd_again(struct siw_rdmap_rd *rd);

enum siw_rdmap_rd_mode {
	SIW_RDMAP_RD_WAIT,   /* what comes waits */
	SIW_RDMAP_RD_ON,     /* it is received */
	SIW_RDMAP_RD_REJECT, /* its sender is told that nobody will */
};
/* Into which receives, with which rights and depths (they hold for streams made later). Both locks. */
void siw_rdmap_rd_start(struct siw_rdmap_rd *rd, enum siw_rdmap_rd_mode mode,
			const struct siw_rdmap_start *start, uint32_t qkey);

/*
 * The stream to the peer at an address, made if there is none, and given up only under both locks: 0;
 * -ENOBUFS there are as many peers as there may be; -ENOMEM. Send lock, or progress lock.
 */
int siw_rdmap_rd_stream(struct siw_rdmap_rd *rd, const struct siw_addr *addr,
			struct siw_rdmap_stream **out);
/* user_octets of the layer above's, zero at first. */
void *siw_rdmap_rd_user(struct siw_rdmap_stream *stream);
const struct siw_addr *siw_rdmap_rd_peer_addr(const struct siw_rdmap_stream *stream);
/* Reads and atomics that may be outstanding to this peer now. Send lock. */
uint32_t siw_rdmap_rd_ord(const struct siw_rdmap_stream *stream);
/* Of the operations begun, how many, in order, are wholly framed: their memory is not read again. Send lock. */
uint64_t siw_rdmap_rd_framed(const struct siw_rdmap_stream *stream);
/* MSN of the last Send begun. Send lock. */
uint32_t siw_rdmap_rd_sends(const struct siw_rdmap_stream *stream);
/*
 * A message of this end's broke off in its middle, by this end's fault: siw_rdmap_rd_end(reset) is due, siw_rdmap_send
 * says -EPIPE and _flush -EACCES. Send lock.
 */
bool siw_rdmap_rd_is_torn(const struct siw_rdmap_stream *stream);
/* A stream of which that is true, or NULL. Both locks. */
struct siw_rdmap_stream *siw_rdmap_rd_torn(struct siw_rdmap_rd *rd);
/*
 * Gives the stream up, whatever is in the works; reset: unless it is lost, the peer must be told. A receive
 * that was half filled is the first of its queue again. Both locks.
 */
void siw_rdmap_rd_end(struct siw_rdmap_stream *stream, bool reset);
/* Gives up, as that with reset, each stream with whom something goes on; the users' part is over. */
void siw_rdmap_rd_abandon(struct siw_rdmap_rd *rd);
/* Next event and whose: 1, or 0. event->source is filled. */
int siw_rdmap_rd_recv(struct siw_rdmap_rd *rd, struct siw_rdmap_stream **stream,
		      struct siw_rdmap_event *event);
/* Receives were posted: those held come up again. */
void siw_rdmap_rd_resume(struct siw_rdmap_rd *rd);
/*
 * Gives up streams with whom nothing goes on now and since the last time; busy says of a user whether
 * something does. How many are left. Both locks.
 */
uint32_t siw_rdmap_rd_sweep(struct siw_rdmap_rd *rd, bool (*busy)(void *user));
uint32_t siw_rdmap_rd_streams(const struct siw_rdmap_rd *rd);

/* cffi: end */

#endif
