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
 * Opens a stream on one of ddp, which it owns from then on and closes with itself. When the
 * connection is started up, siw_rdmap_start or siw_rdmap_refuse is due. 0; -ENOMEM: the caller
 * still owns ddp.
 */
int siw_rdmap_open(struct siw_mem *mem, struct siw_ddp_stream *ddp, struct siw_rdmap_stream **out);
void siw_rdmap_close(struct siw_rdmap_stream *stream);
/*
 * Initiator, after the Reply: sends a Terminate instead of starting (RFC 6581 section 9). 1: it is
 * sent, and the sending side is to be shut; 0: it cannot be sent now; -errno. Both locks.
 */
int siw_rdmap_refuse(struct siw_rdmap_stream *stream, const struct siw_wire_err *err);

/* What turns a started connection into an RDMAP stream. */
struct siw_rdmap_start {
	struct siw_mem_queue *recvs; /* queue 0 */
	uint32_t pd;
	uint16_t ird, ord; /* after negotiation; at most SIW_RDMAP_MAX_READS */
	/* set of enum siw_mpa_rtr: initiator: the one to send; responder: those allowed */
	uint8_t rtr;
	bool initiator;
	uint32_t denied; /* as siw_rdmap_deny */
	const void
		*owner; /* identity by which STags are bound to this stream alone; NULL: none are */
	/*
	 * Octets of memory for Sends that find no receive and wait for one; 0: such a Send is an
	 * error. An empty Read that comes behind such a Send is responded to once the Send was
	 * received, as the peer may ask by it whether that happened (siw_rdmap_confirm).
	 */
	uint64_t unexpected_octets;
	/* CLOSED is given only when no Send waits any more, however the connection ends. */
	bool deliver_before_end;
	bool private; /* the peer is siwarp, too: siwarp's own messages may be sent and received */
};
/*
 * Posts the buffers of queues 1 and 2, keeps IRD and ORD. Initiator with an RTR: sends it.
 * Responder with an RTR: the first FPDU must be one of it (it consumes no receive) and comes up as
 * SIW_RDMAP_STARTED. Send lock and progress lock both.
 */
int siw_rdmap_start(struct siw_rdmap_stream *stream, const struct siw_rdmap_start *start);
/*
 * Rights (enum siw_access_flags) that the peer does not have on this stream, whatever the STag
 * says.
 */
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
	SIW_RDMAP_PRIVATE = 15, /* RFC 6580's experimental opcode: enum siw_rdmap_private */
};

/* The first octet of siwarp's own messages (spec/datagram-iwarp.md section 10). */
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

/*
 * Where an operation lies in its stream: octets from the first on. Its memory is not read any more,
 * and it is out, when what siw_rdmap_flush says is accepted has come to its end; of a Read or an
 * atomic, that is its request.
 */
struct siw_rdmap_stamp {
	uint64_t end; /* UINT64_MAX: it is not wholly framed */
	uint64_t begin;
};

struct siw_rdmap_op {
	/* SEND..., WRITE, READ_REQUEST, ATOMIC_REQUEST; RD: PRIVATE, a Write-Record */
	uint8_t opcode;
	bool solicited;	    /* PRIVATE */
	bool internal;	    /* sgl is library memory (inline data) */
	uint64_t user_data; /* READ_REQUEST, ATOMIC_REQUEST: returned in SIW_RDMAP_READ_DONE */
	const struct siw_sge *sgl; /* the source, of those two the sink; valid until it is done */
	int nsge;
	uint64_t length; /* octets of all of sgl; 8 for an atomic */
	/* WRITE, READ_REQUEST, ATOMIC_REQUEST, SEND..._INV: the peer's STag; with tagged offset */
	uint32_t rkey;
	uint64_t remote_to;
	const struct siw_rdmap_atomic *atomic; /* ATOMIC_REQUEST; copied */
	/*
	 * Immediate data. imm_opcode: 0 (none), IMMEDIATE or IMMEDIATE_SE; imm: its four octets as
	 * they lie in memory; imm_room: 8 octets for this layer's use, valid as long as sgl. Behind
	 * a WRITE it is sent as a message of that opcode; a SEND with it is sent as PRIVATE. Either
	 * is one operation.
	 */
	uint8_t imm_opcode;
	uint32_t imm;
	uint8_t *imm_room;
	/* Written by siw_rdmap_send and _flush; stays as sgl does. */
	struct siw_rdmap_stamp *stamp;
};
/*
 * Begins an operation: 0; -EAGAIN not now: an earlier message is not wholly framed, or a Read (an
 * atomic counts as one) would exceed ORD: flush and try again after progress; -EACCES a local key
 * is bad; -EPIPE the stream has ended; -errno.
 */
int siw_rdmap_send(struct siw_rdmap_stream *stream, const struct siw_rdmap_op *op);
/*
 * Asks the peer, by an empty Read behind all that was begun, whether it has received that; the Read
 * counts against the ORD. 0: SIW_RDMAP_CONFIRMED will come, with this user_data; -EAGAIN: not now,
 * as siw_rdmap_send; -errno.
 */
int siw_rdmap_confirm(struct siw_rdmap_stream *stream, uint64_t user_data);
/* Read and Atomic Requests sent so far, of any kind: the MSN of the last one. Send lock. */
uint32_t siw_rdmap_reads(const struct siw_rdmap_stream *stream);
/*
 * Gives TCP what is framed, goes on with a long message, answers the peer's Read Requests, in fair
 * turns. 1: nothing is left to do; 0: TCP is full or a turn's budget (about 1 MiB) is used up; call
 * again at the next progress (siw_rdmap_send first, so that the user's operations get their turn);
 * -errno the stream is dead. -EACCES: dead because this end found an error in what it was sending
 * (a local key, the source of a response): siw_rdmap_recv gives ERROR too, and siw_rdmap_terminate
 * is due. -EFAULT: dead because memory that was referred to, at *accepted, is not there any more.
 * After 0 siw_ddp_tx_blocked tells whether it waits for TCP (or the peer's first FPDU), or for
 * another turn. *accepted, always: how far TCP took the stream, as stamps count.
 */
int siw_rdmap_flush(struct siw_rdmap_stream *stream, uint64_t *accepted);
/* Whether responses to the peer's Read Requests are due: siw_rdmap_flush sends them. Any thread. */
bool siw_rdmap_responses_pending(const struct siw_rdmap_stream *stream);

enum siw_rdmap_event_kind {
	SIW_RDMAP_NONE = 0,
	/* responder: the peer's first FPDU came; sending is open, flush is due */
	SIW_RDMAP_STARTED,
	SIW_RDMAP_RECV,	      /* a Send was received: user_data, length, solicited, invalidated */
	SIW_RDMAP_READ_DONE,  /* an RDMA Read or an atomic is complete: user_data, length */
	SIW_RDMAP_REQUESTED,  /* a Read Request for length octets came: flush is due */
	SIW_RDMAP_PROGRESS,   /* a segment was placed, and no message is complete by it */
	SIW_RDMAP_TERMINATED, /* the peer sent a Terminate: err; the stream is over */
	SIW_RDMAP_ERROR,  /* this end found err; siw_rdmap_terminate is due; the stream is over */
	SIW_RDMAP_CLOSED, /* the stream ended (status 0) or the connection broke (-errno) */
	/* a Send waits for a receive: siw_rdmap_recv is due when one is posted */
	SIW_RDMAP_UNEXPECTED,
	/* the peer has received all that was begun before siw_rdmap_confirm: user_data */
	SIW_RDMAP_CONFIRMED,
	/*
	 * A receive is used up by a bad message: user_data, status. Datagram: -EMSGSIZE or -EACCES;
	 * stream: -EACCES or -EPROTO, and ERROR follows.
	 */
	SIW_RDMAP_BAD_RECV,
	SIW_RDMAP_BAD_MSG, /* datagram: a sender that has the Q_Key broke a rule: err, quoted */
	/* datagram: the same, about memory: the sender must not be sent an error */
	SIW_RDMAP_BAD_ACCESS,
	/* datagram: a segment of a Write-Record came: siw_rdmap_record_next is due */
	SIW_RDMAP_RECORD,
	SIW_RDMAP_PEER_ERR, /* datagram: a peer's error message; siw_rdmap_dgram_sent checks it */
	/* Reliable datagrams. The stream goes on after each but LOST, and after TERMINATED, too. */
	/*
	 * The peer's message was refused for err, flush is due. of_response: the oldest Read or
	 * atomic is over, user_data; blamed: a receive is used up, user_data.
	 */
	SIW_RDMAP_REFUSED,
	SIW_RDMAP_ACKED, /* more is accepted, or there is room: flush is due */
	/*
	 * As UNEXPECTED: siw_rdmap_rd_resume is due when a receive is posted; with status -EBUSY,
	 * when completions of Write-Records were polled.
	 */
	SIW_RDMAP_PAUSED,
	SIW_RDMAP_LOST, /* the peer is lost or started anew, status: siw_rdmap_rd_end is due */
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
	/*
	 * datagram: RDMAP's header of a Write-Record behind it, whose id is quoted_msn; or 0 octets
	 */
	uint8_t quoted_more[20];
	uint8_t quoted_more_len;
	/* ERROR: the segment is of a response, that to the oldest Read or atomic */
	bool of_response;
	bool blamed;
	struct siw_addr source; /* datagram */
};
/*
 * Gives the next event: 1 and *event; 0: none now. TERMINATED, ERROR or CLOSED is the last one.
 */
int siw_rdmap_recv(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);

/* Whether Sends wait for receives, or Read Requests behind them for their responses. */
bool siw_rdmap_unexpected(const struct siw_rdmap_stream *stream);
/* Whether a Send waits for a receive; *msn: the oldest such Send's MSN. */
bool siw_rdmap_starved(const struct siw_rdmap_stream *stream, uint32_t *msn);
/*
 * That Send has waited too long: unless a receive is posted now, siw_rdmap_recv gives ERROR ("no
 * buffer").
 */
void siw_rdmap_expire(struct siw_rdmap_stream *stream);
/*
 * Sends the Terminate for the last ERROR, once. 1: it is sent, and the sending side is to be shut;
 * 0: not yet, call again; -errno.
 */
int siw_rdmap_terminate(struct siw_rdmap_stream *stream);
/*
 * Once the stream is over, for a flush: takes the oldest outstanding Read or atomic. 1: *user_data;
 * 0: there is none.
 */
int siw_rdmap_take_read(struct siw_rdmap_stream *stream, uint64_t *user_data);
/* ---- datagram endpoints (UD) ----------------------------------------------------------------- */

#define SIW_RDMAP_MAX_SHARERS 256
/*
 * Opens an endpoint on one of ddp, which it owns from then on and closes with itself. share: NULL,
 * or another endpoint on the same socket: each has an index, and each receives for all. user: given
 * in struct siw_rdmap_event. 0; -ENOMEM; -ENOSPC: SIW_RDMAP_MAX_SHARERS share the socket. On
 * failure the caller still owns ddp.
 */
int siw_rdmap_dgram_open(struct siw_ddp_dgram *ddp, struct siw_rdmap_dgram *share, void *user,
			 struct siw_rdmap_dgram **out);
/* Returns the user of another endpoint on the socket; NULL: this was the last one. */
void *siw_rdmap_dgram_close(struct siw_rdmap_dgram *dgram);
/*
 * Its index among those of its socket. The first has 0; each further one has the next free index,
 * counting up, so that an index is reused as late as possible.
 */
uint8_t siw_rdmap_dgram_index(const struct siw_rdmap_dgram *dgram);
/* Whether other endpoints share its socket now. */
bool siw_rdmap_dgram_shared(const struct siw_rdmap_dgram *dgram);
/* A number that all endpoints of a socket share: when the socket was last full. */
void siw_rdmap_dgram_set_full(struct siw_rdmap_dgram *dgram, uint64_t when);
uint64_t siw_rdmap_dgram_full(const struct siw_rdmap_dgram *dgram);
uint32_t siw_rdmap_dgram_max(const struct siw_rdmap_dgram *dgram); /* octets of a message */
/* Messages dropped for want of a receive, by source, most first: as siw_query_drops. */
int siw_rdmap_dgram_drops(const struct siw_rdmap_dgram *dgram, struct siw_source_drops *out,
			  int max);
/* Sets the queue of receives to fill, their PD, and the Q_Key that a message must carry. */
void siw_rdmap_dgram_start(struct siw_rdmap_dgram *dgram, struct siw_mem_queue *recvs, uint32_t pd,
			   uint32_t qkey);

struct siw_rdmap_dgram_op {
	uint64_t user_data; /* returned by siw_rdmap_dgram_sent */
	const struct siw_addr *dest;
	uint8_t dest_index; /* the destination's index among those of its socket */
	uint32_t qkey;
	bool solicited;
	bool internal;
	bool with_imm; /* sent as a private message, whose most octets are 8 fewer */
	uint32_t imm;  /* as it lies in memory */
	const struct siw_sge *sgl;
	int nsge;
	uint64_t length; /* octets */
};
/*
 * Sends one Send. 0: UDP took it; -EAGAIN: not now; -EMSGSIZE; -EACCES: an lkey is bad; -errno.
 * Send lock.
 */
int siw_rdmap_dgram_send(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_dgram_op *op);
/*
 * Sends the first of n Sends (at most SIW_RDMAP_MAX_SOME) and those behind it that fit into the
 * same system call. Returns how many UDP took, at least 1, or what siw_rdmap_dgram_send returns for
 * the first.
 */
#define SIW_RDMAP_MAX_SOME 32
int siw_rdmap_dgram_send_some(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_dgram_op *ops,
			      int n);
/*
 * Gives the socket's next message: 1 and *event (RECV, RECORD, BAD_RECV, BAD_MSG, BAD_ACCESS or
 * PEER_ERR), whose user is that of the endpoint it is for; 0: none. Other datagrams are dropped and
 * counted, and no response is sent to them.
 */
int siw_rdmap_dgram_recv(struct siw_rdmap_dgram *dgram, struct siw_rdmap_event *event);
/*
 * Sends an error message about a BAD_MSG, or a BAD_RECV with -EMSGSIZE, to the sender: one datagram
 * in the layout of a Terminate, at most SIW_RDMAP_ERROR_OVER octets longer than what it is about.
 * 0; -EPERM: the source is a multicast address or has no port; -errno of UDP. The caller limits the
 * rate. Send lock.
 */
#define SIW_RDMAP_ERROR_OVER 24
int siw_rdmap_dgram_send_error(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_event *event);
/*
 * Whether a PEER_ERR is about one of the last err_window (a setting) messages sent to that address
 * with that Q_Key, and is the first about it. *user_data: of the operation. Send lock.
 */
bool siw_rdmap_dgram_sent(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_event *event,
			  uint64_t *user_data);

/* ---- multicast groups ------------------------------------------------------------------------ */

/*
 * A multicast group on one interface, and its members of this device. All under the progress lock.
 */
struct siw_rdmap_group;
/* Opens a group on ddp's endpoint on the group's socket, which it then owns. 0 or -ENOMEM. */
int siw_rdmap_group_open(struct siw_ddp_dgram *ddp, struct siw_rdmap_group **out);
/* The group must have no members. */
void siw_rdmap_group_close(struct siw_rdmap_group *group);
/* Makes the endpoint a member. 0; -EEXIST: it is one already; -ENOMEM. */
int siw_rdmap_group_attach(struct siw_rdmap_group *group, struct siw_rdmap_dgram *dgram);
/*
 * Ends the membership: members left, or -ENOENT. An endpoint must leave its groups before it is
 * closed.
 */
int siw_rdmap_group_detach(struct siw_rdmap_group *group, const struct siw_rdmap_dgram *dgram);
/*
 * Takes the group's next message: whether there is one. Then siw_rdmap_group_copy gives it to one
 * member after the other: 1 and *event, RECV or BAD_RECV, with the member's user; 0: no member is
 * left. Nothing else may be received on the port meanwhile. A member whose Q_Key it has not, or
 * that has no receive, is passed over and counted (siw_rdmap_dgram_drops). No response is ever sent
 * to a group's message.
 */
bool siw_rdmap_group_next(struct siw_rdmap_group *group);
int siw_rdmap_group_copy(struct siw_rdmap_group *group, struct siw_rdmap_event *event);

/* ---- reliable datagrams (RD) -----------------------------------------------------------------
 *
 * An endpoint has a stream for each peer with which something is under way; siw_rdmap_send and the
 * other functions of streams are as above, but that stamps count segments and accepted is what the
 * peer has. A refusal ends no stream: the peer is sent an error message in a Terminate's form, and
 * only the message that it names fails there.
 */
/*
 * Opens an endpoint on one of ddp, which it owns from then on. user_octets: of siw_rdmap_rd_user.
 * 0; -ENOMEM: the caller still owns ddp.
 */
int siw_rdmap_rd_open(struct siw_mem *mem, struct siw_ddp_rd *ddp, uint32_t user_octets,
		      struct siw_rdmap_rd **out);
/* Both locks. Peers from which something is awaited are sent a BYE. */
void siw_rdmap_rd_close(struct siw_rdmap_rd *rd);

enum siw_rdmap_rd_mode {
	SIW_RDMAP_RD_WAIT,   /* messages that come wait */
	SIW_RDMAP_RD_ON,     /* they are received */
	SIW_RDMAP_RD_REJECT, /* they are thrown away, and their senders sent a BYE */
};
/* Sets what happens to messages that come; start is for streams made from now on. Both locks. */
void siw_rdmap_rd_start(struct siw_rdmap_rd *rd, enum siw_rdmap_rd_mode mode,
			const struct siw_rdmap_start *start);

/*
 * Gives the stream to the peer at addr, and makes it if there is none. It is freed only under both
 * locks. 0; -ENOBUFS: there are as many peers as allowed; -ENOMEM. Either lock.
 */
int siw_rdmap_rd_stream(struct siw_rdmap_rd *rd, const struct siw_addr *addr,
			struct siw_rdmap_stream **out);
/* The layer above's user_octets in the stream, zeroed when it is made. */
void *siw_rdmap_rd_user(struct siw_rdmap_stream *stream);
/* What it stands on, to be asked directly. */
struct siw_ddp_stream *siw_rdmap_rd_ddp(const struct siw_rdmap_stream *stream);
const struct siw_addr *siw_rdmap_rd_peer_addr(const struct siw_rdmap_stream *stream);
/* Reads and atomics that may be outstanding to this peer now. Send lock. */
uint32_t siw_rdmap_rd_ord(const struct siw_rdmap_stream *stream);
/* MSN of the last Send begun. Send lock. */
uint32_t siw_rdmap_rd_sends(const struct siw_rdmap_stream *stream);
/*
 * Whether a message broke off in its middle by this end's fault. Then siw_rdmap_rd_end with reset
 * is due, siw_rdmap_send returns -EPIPE and siw_rdmap_flush -EACCES. Send lock.
 */
bool siw_rdmap_rd_is_torn(const struct siw_rdmap_stream *stream);
/* A stream of which that is true, or NULL. Both locks. */
struct siw_rdmap_stream *siw_rdmap_rd_torn(struct siw_rdmap_rd *rd);
/*
 * Ends the stream, whatever is under way. reset: the peer is sent a BYE, unless it is lost. The
 * receive of an unfinished message is the first of its queue again. Both locks.
 */
void siw_rdmap_rd_end(struct siw_rdmap_stream *stream, bool reset);
/* Ends each stream on which something is under way, with reset. */
void siw_rdmap_rd_abandon(struct siw_rdmap_rd *rd);
/* Gives the next event and its stream: 1; 0: none. event->source is set. */
int siw_rdmap_rd_recv(struct siw_rdmap_rd *rd, struct siw_rdmap_stream **stream,
		      struct siw_rdmap_event *event);
/* Receives were posted, or Write-Records polled: paused streams go on. */
void siw_rdmap_rd_resume(struct siw_rdmap_rd *rd);
/*
 * Ends the streams that were idle at the last sweep and are idle now; busy(user): whether the layer
 * above has something under way on one. Returns how many are left. Both locks.
 */
uint32_t siw_rdmap_rd_sweep(struct siw_rdmap_rd *rd, bool (*busy)(void *user));
uint32_t siw_rdmap_rd_streams(const struct siw_rdmap_rd *rd);

/* cffi: end */

#endif
