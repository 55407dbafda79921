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
#include "mem/mem.h"

/* cffi: begin */

struct siw_rdmap_stream;
struct siw_rdmap_dgram;
struct siw_rdmap_rd;
struct siw_ddp_dgram;
struct siw_ddp_rd;
struct siw_ddp_stream;

#define SIW_RDMAP_QN_SEND   0	/* the queue of Sends: DDP's number of it */
#define SIW_RDMAP_MAX_READS 128 /* most IRD and ORD of a stream */

/* ---- streams --------------------------------------------------------------------------------- */

/*
 * A stream on that of ddp, which goes with it: from here on it is this one's. siw_rdmap_start, or siw_rdmap_refuse, is
 * due when the connection is started up. -ENOMEM.
 */
int siw_rdmap_open(struct siw_mem *mem, struct siw_ddp_stream *ddp, struct siw_rdmap_stream **out);
void siw_rdmap_close(struct siw_rdmap_stream *stream);
/*
 * Initiator, after the Reply: ends with a Terminate instead of siw_rdmap_start (RFC 6581 section
 * 9). 1 it is out, and the sending side is to be shut; 0 it cannot go out now; -errno. Both locks.
 */
int siw_rdmap_refuse(struct siw_rdmap_stream *stream, const struct siw_wire_err *err);

/* What turns a started connection into an RDMAP stream. */
struct siw_rdmap_start {
	struct siw_mem_queue *recvs; /* queue 0 */
	uint32_t pd;
	uint16_t ird, ord; /* after negotiation; at most SIW_RDMAP_MAX_READS */
	uint8_t rtr; /* set of enum siw_mpa_rtr: the one to send, those that may come; or none */
	bool initiator;
	uint32_t denied;   /* as siw_rdmap_deny */
	const void *owner; /* what regions are bound to for this stream alone; NULL: nothing is */
	/*
	 * Octets in which Sends that find no receive wait for one; 0: that is an error. A Read of
	 * nothing that comes behind such a Send is answered when that was received: the peer may be
	 * asking just this (siw_rdmap_confirm).
	 */
	uint64_t unexpected_octets;
	bool deliver_before_end; /* however the connection ends, CLOSED comes when none of them waits any more */
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
	bool solicited;	    /* PRIVATE */
	bool internal;	    /* sgl is library memory (inline data) */
	uint64_t user_data; /* READ_REQUEST, ATOMIC_REQUEST: comes back in SIW_RDMAP_READ_DONE */
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
bool siw_rdmap_responses_pending(const struct siw_rdmap_stream *stream);

enum siw_rdmap_event_kind {
	SIW_RDMAP_NONE = 0,
	SIW_RDMAP_STARTED, /* responder: the peer's first FPDU came; sending is open, flush is due */
	SIW_RDMAP_RECV,	   /* a Send arrived: user_data, length, solicited, invalidated */
	SIW_RDMAP_READ_DONE,  /* an RDMA Read or an atomic is complete: user_data, length */
	SIW_RDMAP_REQUESTED,  /* the peer asked for data, length octets: flush is due */
	SIW_RDMAP_PROGRESS,   /* something one-sided was placed; nothing to tell the user */
	SIW_RDMAP_TERMINATED, /* the peer sent a Terminate: err; the stream is over */
	SIW_RDMAP_ERROR,  /* this end found err; siw_rdmap_terminate is due; the stream is over */
	SIW_RDMAP_CLOSED, /* end of stream or a dead connection: status */
	SIW_RDMAP_UNEXPECTED, /* a Send waits for a receive: siw_rdmap_recv is due when one is posted */
	SIW_RDMAP_CONFIRMED, /* the peer has every operation up to number user_data */
	/*
	 * A receive is used up: user_data, and -EMSGSIZE or -EACCES (datagram), -EACCES or -EPROTO (stream:
	 * the ERROR follows).
	 */
	SIW_RDMAP_BAD_RECV,
	SIW_RDMAP_BAD_MSG, /* datagram: whoever has the Q_Key broke a rule: err, the header quoted */
	SIW_RDMAP_BAD_ACCESS, /* datagram: likewise, but the peer must not be told: it reached for memory */
	SIW_RDMAP_RECORD, /* datagram: a segment of a Write-Record came: siw_rdmap_record_next is due */
	SIW_RDMAP_PEER_ERR, /* datagram: a peer's error message: siw_rdmap_dgram_sent tells if it counts */
	/* Reliable datagrams; the stream goes on but for LOST, and so it does after TERMINATED: */
	SIW_RDMAP_REFUSED, /* a message of the peer's was refused for err, flush is due; of_response: the
			      oldest Read or atomic is over, user_data; blamed: a receive is, user_data */
	SIW_RDMAP_ACKED, /* siw_rdmap_accepted moved, or there is room: flush is due */
	SIW_RDMAP_PAUSED, /* as PARKED: siw_rdmap_rd_resume is due when a receive is posted; or, status
			    -EBUSY, when one who was told of Write-Records has polled some */
	SIW_RDMAP_LOST, /* the peer is gone or lives anew: siw_rdmap_rd_end is due: status */
};

struct siw_rdmap_event {
	int kind; /* enum siw_rdmap_event_kind */
	int status;
	uint64_t user_data;
	uint32_t length; /* octets */
	uint32_t placed; /* stream: octets of the segment that brought this */
	bool solicited;
	bool invalidated;
	bool with_imm; /* RECV: imm is immediate data, as it lies in memory */
	bool of_write; /* ... and length that of the Write before it: the receive is unused */
	uint32_t imm;
	uint32_t inv_stag;
	void *user;	   /* datagram: of the endpoint */
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
bool siw_rdmap_unexpected(const struct siw_rdmap_stream *stream);
/* Whether a Send waits for a receive, and the oldest one's number. */
bool siw_rdmap_starved(const struct siw_rdmap_stream *stream, uint32_t *msn);
/* It has waited long enough: siw_rdmap_recv gives ERROR, no buffer, unless there is one now. */
void siw_rdmap_expire(struct siw_rdmap_stream *stream);
/*
 * Sends the Terminate for the last ERROR (once): 1 it is out, and the sending side is to be shut; 0 not yet: call
 * again, -errno.
 */
int siw_rdmap_terminate(struct siw_rdmap_stream *stream);
/*
 * Reads still outstanding, oldest first: 1 and the user_data, or 0. For a flush, once the stream is
 * over.
 */
int siw_rdmap_take_read(struct siw_rdmap_stream *stream, uint64_t *user_data);
/* ---- datagram endpoints (UD) ----------------------------------------------------------------- */

#define SIW_RDMAP_MAX_SHARERS 256
/*
 * An endpoint on that of ddp, which goes with it. share: NULL, or another one on the same socket: they have an index
 * each, and what comes to one may be for any. user: what an event is about, siw_rdmap_event's user. -ENOMEM; -ENOSPC
 * SIW_RDMAP_MAX_SHARERS share that socket. The one of ddp stays the caller's then.
 */
int siw_rdmap_dgram_open(struct siw_ddp_dgram *ddp, struct siw_rdmap_dgram *share, void *user,
			 struct siw_rdmap_dgram **out);
/* The user of another one that shares the socket, or NULL: it was the last one. */
void *siw_rdmap_dgram_close(struct siw_rdmap_dgram *dgram);
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
uint32_t siw_rdmap_dgram_max(const struct siw_rdmap_dgram *dgram); /* octets of a message */
/* What was dropped for want of a receive, by source, the worst first: as siw_query_drops. */
int siw_rdmap_dgram_drops(const struct siw_rdmap_dgram *dgram, struct siw_source_drops *out,
			  int max);
/* Which receives to fill, and the Q_Key a message must carry. */
void siw_rdmap_dgram_start(struct siw_rdmap_dgram *dgram, struct siw_mem_queue *recvs, uint32_t pd,
			   uint32_t qkey);

struct siw_rdmap_dgram_op {
	uint64_t user_data; /* comes back from siw_rdmap_dgram_sent */
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
 * Next message of the socket: 1 and *event (RECV, RECORD, BAD_RECV, BAD_MSG, BAD_ACCESS or PEER_ERR), whose user is that of
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
int siw_rdmap_dgram_send_error(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_event *event);
/*
 * Whether the message that a PEER_ERR names was among the last err_window (a setting) that went there,
 * with its Q_Key, and no error message came about it yet; *user_data: its operation's. Send lock.
 */
bool siw_rdmap_dgram_sent(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_event *event,
			  uint64_t *user_data);

/* ---- multicast groups ------------------------------------------------------------------------ */

/*
 * A group on one interface and its members of this device. All under the progress lock.
 */
struct siw_rdmap_group;
/* On an endpoint of ddp's on the group's socket, which goes with it: 0 or -ENOMEM. */
int siw_rdmap_group_open(struct siw_ddp_dgram *ddp, struct siw_rdmap_group **out);
/* It has no members. */
void siw_rdmap_group_close(struct siw_rdmap_group *group);
/* -EEXIST: it is a member. */
int siw_rdmap_group_attach(struct siw_rdmap_group *group, struct siw_rdmap_dgram *dgram);
/* How many members are left, or -ENOENT. An endpoint is a member of nothing when it is closed. */
int siw_rdmap_group_detach(struct siw_rdmap_group *group, const struct siw_rdmap_dgram *dgram);
/*
 * The next message of the group: whether there is one. Then siw_rdmap_group_copy gives it to one member after the
 * other, until it says 0 (nothing else may be received on the port meanwhile): 1 and *event, RECV or
 * BAD_RECV, with the user of the member. Whom it is not credible to, or who has no receive, is passed
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
/* On that of ddp, which goes with it; user_octets: of siw_rdmap_rd_user. -ENOMEM: it stays the caller's. */
int siw_rdmap_rd_open(struct siw_mem *mem, struct siw_ddp_rd *ddp, uint32_t user_octets,
		      struct siw_rdmap_rd **out);
/* Both locks. Peers that still owe something are told. */
void siw_rdmap_rd_close(struct siw_rdmap_rd *rd);

enum siw_rdmap_rd_mode {
	SIW_RDMAP_RD_WAIT,   /* what comes waits */
	SIW_RDMAP_RD_ON,     /* it is received */
	SIW_RDMAP_RD_REJECT, /* its sender is told that nobody will */
};
/* Into which receives, with which rights and depths (they hold for streams made later). Both locks. */
void siw_rdmap_rd_start(struct siw_rdmap_rd *rd, enum siw_rdmap_rd_mode mode,
			const struct siw_rdmap_start *start);

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
