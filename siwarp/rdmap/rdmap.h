/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap.h - the RDMA protocol (RFC 5040): operations as messages, requests and responses of
 * RDMA Read, Terminate; on datagrams, the Send of datagram-iWARP.
 *
 * What this layer does NOT do: know queue pairs, work queues or completions. The caller passes in
 * one operation at a time; events are returned as values.
 *
 * Locks: as in ddp/ddp.h. siw_rdmap_send/flush/terminate of a stream: the QP's send lock. Others:
 * the progress lock, unless stated otherwise. State used by both sides (outstanding Reads, inbound
 * Read Requests) is in single-producer rings.
 */
#ifndef SIW_RDMAP_H
#define SIW_RDMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <siwarp/types.h>

#include "base/err.h"
#include "mpa/mpa_params.h"
#include "mem/mem.h"

/* cffi: begin */

struct siw_rdmap_stream;
struct siw_rdmap_dgram;
struct siw_rdmap_rd;
struct siw_ddp_dgram;
struct siw_ddp_rd;
struct siw_ddp_stream;

#define SIW_RDMAP_QN_SEND   0	/* DDP queue number of the Send queue */
#define SIW_RDMAP_MAX_READS 128 /* maximum IRD and ORD of a stream */

/* ---- streams --------------------------------------------------------------------------------- */

/*
 * Opens an RDMAP stream on a ddp stream, which the RDMAP stream owns and closes from then on. After
 * connection start-up, siw_rdmap_start() or siw_rdmap_refuse() must be called. 0; -ENOMEM: the
 * caller still owns ddp.
 */
int siw_rdmap_open(struct siw_mem *mem, struct siw_ddp_stream *ddp, struct siw_rdmap_stream **out);
void siw_rdmap_close(struct siw_rdmap_stream *stream);
/*
 * Initiator, after the Reply: sends a Terminate instead of starting (RFC 6581 section 9). 1: the
 * Terminate is sent, and the caller must shut down the sending side; 0: it cannot be sent now;
 * -errno. Both locks held.
 */
int siw_rdmap_refuse(struct siw_rdmap_stream *stream, const struct siw_wire_err *err);

/* The parameters with which a started connection becomes an RDMAP stream. */
struct siw_rdmap_start {
	struct siw_mem_queue *recvs; /* receives for queue 0 (Sends) */
	uint32_t pd;
	uint16_t ird, ord; /* after negotiation; at most SIW_RDMAP_MAX_READS */
	/* set of enum siw_mpa_rtr: initiator: the RTR to send; responder: the RTRs to accept */
	uint8_t rtr;
	bool initiator;
	uint32_t denied; /* rights denied to the peer, as in siw_rdmap_deny() */
	/* STags bound to this identity can be used only on this stream; NULL: none */
	const void *owner;
	/*
	 * Octets of memory for Sends that wait for a receive; 0: a Send without a receive is an
	 * error. An empty Read that arrives after a waiting Send is answered only after that Send
	 * was received, so the response shows the peer that it was (siw_rdmap_confirm()).
	 */
	uint64_t unexpected_octets;
	/* Report CLOSED only when no Send waits any more, however the connection has ended. */
	bool deliver_before_end;
	bool private; /* the peer is siwarp: siwarp-private messages may be sent and received */
	bool counts;  /* delivery counts may be sent and received, too (siw_rdmap_announce()) */
	/*
	 * Only without counts: the empty Reads of siw_rdmap_confirm() request counts, which only a
	 * siwarp peer understands, and such requests of the peer are granted. The peer's answer is
	 * event SIW_RDMAP_DELIVERED.
	 */
	bool offers;
};
/*
 * Posts the buffers of queues 1 and 2, and sets IRD and ORD. If rtr is set, the initiator sends the
 * RTR, and the responder accepts only an RTR as the first FPDU; the RTR consumes no receive and is
 * reported as SIW_RDMAP_STARTED. Send lock and progress lock held.
 */
int siw_rdmap_start(struct siw_rdmap_stream *stream, const struct siw_rdmap_start *start);
/*
 * Denies the peer these access rights (enum siw_access_flags) on this stream, even if an STag
 * grants them.
 */
void siw_rdmap_deny(struct siw_rdmap_stream *stream, uint32_t denied);

/* RDMAP opcodes on the wire (RFC 5040 figure 4, RFC 7306 figure 2). */
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
	/* RFC 6580's experimental opcode; subcodes: enum siw_rdmap_private */
	SIW_RDMAP_PRIVATE = 15,
};

/*
 * Subcodes: the first octet of siwarp-private messages (spec/datagram-iwarp.md section 10). The
 * last two are tagged messages, used only on connections (spec/delivery-counts.md); subcode 3 is
 * for datagrams (rdmap_record.h).
 */
enum siw_rdmap_private {
	SIW_RDMAP_SEND_IMM = 1,
	SIW_RDMAP_SEND_IMM_SE = 2,
	SIW_RDMAP_DELIVERY_COUNT = 4,
	SIW_RDMAP_REQUESTER = 5,
};

/* An operation on 64 bits of the peer's memory (RFC 7306 section 5.1), in host order. */
enum siw_rdmap_atomic_kind {
	SIW_RDMAP_FETCH_ADD = 0,
	SIW_RDMAP_CMP_SWAP = 2,
};
struct siw_rdmap_atomic {
	uint32_t kind; /* enum siw_rdmap_atomic_kind, as on the wire */
	uint64_t data; /* the value to add or to swap in */
	/*
	 * FETCH_ADD: the top bit of each field to add separately, 0: a single field; CMP_SWAP: the
	 * bits to swap
	 */
	uint64_t mask;
	uint64_t compare; /* CMP_SWAP only, as is compare_mask */
	uint64_t compare_mask;
};

/*
 * The position of an operation in its stream, in octets from the beginning of the stream. When
 * *accepted of siw_rdmap_flush() has reached end, the operation's memory is no longer read; for a
 * Read or an atomic, the request has been sent.
 */
struct siw_rdmap_stamp {
	uint64_t end; /* UINT64_MAX: not completely framed yet */
	uint64_t begin;
};

/* An operation. It must stay in place until it is complete. */
struct siw_rdmap_op {
	/*
	 * SEND..., WRITE, READ_REQUEST, ATOMIC_REQUEST; on RD also PRIVATE, which is a Write-Record
	 */
	uint8_t opcode;
	/*
	 * Immediate data: 0 (none), IMMEDIATE or IMMEDIATE_SE. With WRITE, the immediate data is
	 * sent after the Write as a message of imm_opcode; a SEND with immediate data is sent as
	 * PRIVATE. Either is one operation.
	 */
	uint8_t imm_opcode;
	bool solicited; /* used only for PRIVATE */
	bool internal;	/* sgl is library memory (inline data) */
	/*
	 * WRITE, READ_REQUEST, ATOMIC_REQUEST, SEND..._INV: rkey is the peer's STag, remote_to its
	 * tagged offset.
	 */
	uint32_t rkey;
	uint64_t remote_to;
	/* source buffers; for Reads and atomics the sink; valid until the operation is complete */
	const struct siw_sge *sgl;
	uint64_t length; /* total octets of sgl; 8 for an atomic */
	int nsge;
	uint32_t imm; /* the four octets of immediate data in memory order */
	union {
		uint8_t imm_room[8];		       /* with immediate data: used by this layer */
		const struct siw_rdmap_atomic *atomic; /* ATOMIC_REQUEST; copied */
	};
	uint64_t user_data; /* READ_REQUEST, ATOMIC_REQUEST: returned with SIW_RDMAP_READ_DONE */
	/*
	 * Written by siw_rdmap_send() and siw_rdmap_flush(). On UC only end is written: the number
	 * of the operation's last message, in the unit of siw_rdmap_uc_begun().
	 */
	struct siw_rdmap_stamp stamp;
};
/*
 * Begins an operation: 0; -EAGAIN: not possible now, because an earlier message is not completely
 * framed, or a Read or atomic would exceed ORD: flush, and retry after progress; -EACCES: a local
 * key is invalid; -EPIPE: the stream has ended; -errno.
 */
int siw_rdmap_send(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op);
/*
 * Sends an empty Read, whose response shows that the peer has received everything begun before; the
 * Read counts towards ORD. 0: SIW_RDMAP_CONFIRMED with this user_data will follow; -EAGAIN: not
 * possible now, as siw_rdmap_send(); -errno.
 */
int siw_rdmap_confirm(struct siw_rdmap_stream *stream, uint64_t user_data);
/*
 * Only if delivery counts were agreed: informs the peer, in front of the next operation, whether
 * this end wants reports of how many of its Sends and Writes the peer has received
 * (SIW_RDMAP_DELIVERED at this end), and of this end's rnr_retry (SIW_RDMAP_RNR_RETRY at the peer). Send
 * lock held.
 */
void siw_rdmap_announce(struct siw_rdmap_stream *stream, bool wants_counts, uint8_t rnr_retry);
/*
 * Whether a delivery count has to be sent to the peer, because more of its messages were received.
 * The count is sent in front of the next message of this end, or separately by siw_rdmap_send_count().
 * Progress lock held.
 */
bool siw_rdmap_count_pending(const struct siw_rdmap_stream *stream);
/* Whether the peer has requested delivery counts. Progress lock held. */
bool siw_rdmap_counts_requested(const struct siw_rdmap_stream *stream);
/*
 * Whether this end has requested delivery counts by siw_rdmap_confirm(). May be called by any
 * thread.
 */
bool siw_rdmap_requested_counts(const struct siw_rdmap_stream *stream);
/*
 * Frames the delivery count now, for the next flush; does nothing while another message is partly
 * framed. Send lock held.
 */
void siw_rdmap_send_count(struct siw_rdmap_stream *stream);
/*
 * Rejects the SIW_RDMAP_DELIVERED just returned, as its counts are not plausible: the next
 * siw_rdmap_recv() returns ERROR. Progress lock held.
 */
void siw_rdmap_refuse_count(struct siw_rdmap_stream *stream);
/*
 * Number of Read and Atomic Requests sent so far; equals the MSN of the last one. Send lock held.
 */
uint32_t siw_rdmap_reads(const struct siw_rdmap_stream *stream);
/*
 * Passes framed data to TCP, continues a long message, and responds to the peer's Read Requests, in
 * turns with the user's operations. *accepted is always set to the position up to which TCP has
 * accepted the stream, in the unit of stamps. Returns:
 *
 * 1: nothing is left.
 *
 * 0: TCP is full, or the turn's budget (about 1 MiB) is used up: call again at the next progress,
 * after siw_rdmap_send(), so that the user's operations get their turn. siw_ddp_tx_blocked() then
 * tells whether the stream waits for TCP (or the peer's first FPDU), or for another turn.
 *
 * -errno: the stream is dead. -EACCES: because of an error in data that this end was sending (a
 * local key, the source of a response): siw_rdmap_recv() returns ERROR too, and
 * siw_rdmap_terminate() must be called. -EFAULT: because the memory of the data at *accepted is no
 * longer mapped.
 */
int siw_rdmap_flush(struct siw_rdmap_stream *stream, uint64_t *accepted);
/*
 * Whether siw_rdmap_flush() has responses to the peer's Read Requests to send. May be called by any
 * thread.
 */
bool siw_rdmap_responses_pending(const struct siw_rdmap_stream *stream);

enum siw_rdmap_event_kind {
	SIW_RDMAP_NONE = 0,
	/*
	 * responder: the peer's first FPDU has arrived, and this end may send: call
	 * siw_rdmap_flush()
	 */
	SIW_RDMAP_STARTED,
	SIW_RDMAP_RECV,	      /* a Send was received: user_data, length, solicited, invalidated */
	SIW_RDMAP_READ_DONE,  /* an RDMA Read or an atomic is complete: user_data, length */
	SIW_RDMAP_REQUESTED,  /* a Read Request for length octets arrived: call siw_rdmap_flush() */
	SIW_RDMAP_PROGRESS,   /* a segment was placed, and no other event applies */
	SIW_RDMAP_TERMINATED, /* the peer sent a Terminate: err; the stream has ended */
	/* this end found error err: call siw_rdmap_terminate(); the stream has ended */
	SIW_RDMAP_ERROR,
	SIW_RDMAP_CLOSED, /* the stream ended (status 0) or the connection broke (-errno) */
	/* a Send waits for a receive: call siw_rdmap_recv() when a receive is posted */
	SIW_RDMAP_UNEXPECTED,
	/* the peer has received everything begun before siw_rdmap_confirm(): user_data */
	SIW_RDMAP_CONFIRMED,
	/*
	 * the peer reports how many Sends and Writes of this end it has received: sends, writes.
	 * The values are not checked; see siw_rdmap_refuse_count().
	 */
	SIW_RDMAP_DELIVERED,
	SIW_RDMAP_RNR_RETRY, /* sent by the peer's siw_rdmap_announce(): rnr_retry, 0 to 7 */
	/*
	 * An erroneous message has consumed a receive: user_data, status. Datagram: -EMSGSIZE or
	 * -EACCES; stream: -EACCES or -EPROTO, and ERROR follows.
	 */
	SIW_RDMAP_BAD_RECV,
	/* datagram: a sender with the right Q_Key violated the protocol: err, quoted */
	SIW_RDMAP_BAD_MSG,
	/*
	 * datagram: as BAD_MSG, for a memory access error; the sender must not get an error message
	 */
	SIW_RDMAP_BAD_ACCESS,
	/* datagram: a segment of a Write-Record arrived: call siw_rdmap_record_next() */
	SIW_RDMAP_RECORD,
	/* datagram: a peer's error message arrived: check it with siw_rdmap_dgram_sent() */
	SIW_RDMAP_PEER_ERR,
	/*
	 * Reliable datagrams. The stream continues after all of the events below except LOST, and
	 * also after TERMINATED.
	 */
	/*
	 * A message of the peer was refused with error err: call siw_rdmap_flush(). of_response:
	 * the oldest Read or atomic, user_data, has failed; blamed: the receive user_data was
	 * consumed.
	 */
	SIW_RDMAP_REFUSED,
	/* the peer has accepted more segments, or there is room again: call siw_rdmap_flush() */
	SIW_RDMAP_ACKED,
	/*
	 * A message is paused: call siw_rdmap_rd_resume() when a receive is posted, or, if status
	 * is -EBUSY, when completions of Write-Records were polled.
	 */
	SIW_RDMAP_PAUSED,
	/*
	 * a message of the peer does not have the next MSN: err, quoted...; call siw_rdmap_rd_end()
	 */
	SIW_RDMAP_SEQUENCE,
	SIW_RDMAP_LOST, /* the peer is lost or has restarted: status; call siw_rdmap_rd_end() */
};

struct siw_rdmap_event {
	int kind; /* enum siw_rdmap_event_kind */
	int status;
	uint64_t user_data;
	uint32_t length;	/* in octets */
	uint32_t placed;	/* stream: octets of the segment that caused this event */
	uint32_t sends, writes; /* DELIVERED: counts since the start of the stream, modulo 2^32 */
	uint8_t rnr_retry;	/* TOLD */
	bool solicited;
	bool invalidated;
	bool with_imm; /* RECV: imm is immediate data, in memory order */
	/*
	 * with_imm: length is that of the Write before the immediate data, and the receive's memory
	 * is unused. PROGRESS: a Write of length octets is complete.
	 */
	bool of_write;
	/* reliable datagrams: the event is also an ACKED, to be handled after it */
	bool acked;
	uint32_t imm;
	uint32_t inv_stag;
	void *user;	   /* datagram: user pointer of the endpoint */
	uint32_t ulp_word; /* datagram: the Q_Key */
	uint32_t src_qpn;  /* datagram */
	uint32_t msn;
	struct siw_wire_err err;
	/*
	 * If quoted is set: the DDP header of the failing segment, as quoted by the peer's
	 * Terminate or in this end's future Terminate. The STag and TO of a tagged segment are set
	 * only if the peer quoted it.
	 */
	bool quoted;
	bool quoted_tagged;
	uint32_t quoted_msn;
	uint32_t quoted_qn;
	uint32_t quoted_stag;
	uint64_t quoted_to;
	uint8_t quoted_head[18]; /* datagram: the header itself */
	uint8_t quoted_head_len;
	uint16_t quoted_seg_len; /* datagram: length in octets of the segment with that header */
	/*
	 * datagram: the RDMAP header of a Write-Record, quoted after the DDP header; quoted_msn is
	 * the message's id. 0 octets: none.
	 */
	uint8_t quoted_more[20];
	uint8_t quoted_more_len;
	/* ERROR: the segment belongs to the response to the oldest Read or atomic */
	bool of_response;
	bool receive_consumed;
	struct siw_addr source; /* datagram */
	/*
	 * UD: the local address or group address at which the message arrived; valid as long as its
	 * socket
	 */
	const struct siw_addr *dest;
};
/*
 * Returns 1 and the next event, or 0: none now. After TERMINATED, ERROR or CLOSED there are no
 * further events.
 */
int siw_rdmap_recv(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);

/* Whether Sends wait for receives, or Read Requests wait for such Sends. */
bool siw_rdmap_unexpected(const struct siw_rdmap_stream *stream);
/* Whether a Send waits for a receive; *msn: the MSN of the oldest such Send. */
bool siw_rdmap_send_waits(const struct siw_rdmap_stream *stream, uint32_t *msn);
/*
 * The oldest waiting Send has waited too long: unless a receive is posted, siw_rdmap_recv() now
 * returns ERROR ("no buffer").
 */
void siw_rdmap_expire(struct siw_rdmap_stream *stream);
/*
 * Sends the Terminate for the last ERROR, once. 1: it is sent, and the caller must shut down the
 * sending side; 0: not yet, call again; -errno.
 */
int siw_rdmap_terminate(struct siw_rdmap_stream *stream);
/* ---- datagram endpoints (UD) ----------------------------------------------------------------- */

#define SIW_RDMAP_MAX_SHARERS 256
/*
 * Opens an RDMAP endpoint on a ddp endpoint, which the RDMAP endpoint owns and closes from then on.
 * share: NULL, or another endpoint on the same socket: each endpoint of a socket has an index, and
 * any of them can receive for all. user: returned in struct siw_rdmap_event. 0; -ENOMEM; -ENOSPC:
 * the socket has SIW_RDMAP_MAX_SHARERS endpoints. On failure the caller still owns ddp.
 */
int siw_rdmap_dgram_open(struct siw_ddp_dgram *ddp, struct siw_rdmap_dgram *share, void *user,
			 struct siw_rdmap_dgram **out);
/*
 * Closes an endpoint. Returns the user pointer of another endpoint on the socket; NULL: this was
 * the last one.
 */
void *siw_rdmap_dgram_close(struct siw_rdmap_dgram *dgram);
/*
 * The endpoint's index among the endpoints of its socket. The first endpoint has 0; each further
 * one gets the next free index, counting up, so that an index is reused as late as possible.
 */
uint8_t siw_rdmap_dgram_index(const struct siw_rdmap_dgram *dgram);
/* Whether the endpoint shares its socket with others. */
bool siw_rdmap_dgram_shared(const struct siw_rdmap_dgram *dgram);
/*
 * The time or progress round in which the socket was last found full; shared by all endpoints of
 * the socket.
 */
void siw_rdmap_dgram_set_full(struct siw_rdmap_dgram *dgram, uint64_t when);
uint64_t siw_rdmap_dgram_full(const struct siw_rdmap_dgram *dgram);
uint32_t siw_rdmap_dgram_max(const struct siw_rdmap_dgram *dgram); /* maximum octets of a message */
/*
 * Messages dropped for lack of a receive, by source, in descending order, as in siw_query_drops().
 */
int siw_rdmap_dgram_drops(const struct siw_rdmap_dgram *dgram, struct siw_source_drops *out,
			  int max);
/* Sets the receive queue, its PD, and the Q_Key that a message must carry. */
void siw_rdmap_dgram_start(struct siw_rdmap_dgram *dgram, struct siw_mem_queue *recvs, uint32_t pd,
			   uint32_t qkey);
/* From now on each received message is preceded by a GRH; see siw_ddp_grh_put(). */
void siw_rdmap_dgram_grh(struct siw_rdmap_dgram *dgram);

struct siw_rdmap_dgram_op {
	uint64_t user_data; /* returned by siw_rdmap_dgram_sent() */
	const struct siw_addr *dest;
	uint8_t dest_index; /* the destination's index among the endpoints of its socket */
	uint32_t qkey;
	bool solicited;
	bool internal;
	/* with immediate data, sent as a private message; the maximum length is 8 octets less */
	bool with_imm;
	uint32_t imm; /* in memory order */
	const struct siw_sge *sgl;
	int nsge;
	uint64_t length; /* in octets */
};
/*
 * Sends a message. 0: UDP has accepted it; -EAGAIN: not possible now; -EMSGSIZE; -EACCES: an lkey
 * is invalid; -errno. Send lock held.
 */
int siw_rdmap_dgram_send(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_dgram_op *op);
/*
 * Sends the first of n messages (n is at most SIW_RDMAP_MAX_SOME), and as many of the others as fit
 * into the same system call. Returns how many UDP has accepted, at least 1, or the error of
 * siw_rdmap_dgram_send() for the first message.
 */
#define SIW_RDMAP_MAX_SOME 64
int siw_rdmap_dgram_send_some(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_dgram_op *ops,
			      int n);
/*
 * Receives the socket's next message: 1 and *event (RECV, RECORD, BAD_RECV, BAD_MSG, BAD_ACCESS or
 * PEER_ERR); event->user is that of the destination endpoint. 0: none. Other datagrams are dropped
 * and counted, without a response.
 */
int siw_rdmap_dgram_recv(struct siw_rdmap_dgram *dgram, struct siw_rdmap_event *event);
/*
 * Sends an error message about a BAD_MSG, or about a BAD_RECV with -EMSGSIZE, to the sender of the
 * message: one datagram in the layout of a Terminate, at most SIW_RDMAP_ERROR_OVER octets longer
 * than the reported message. 0; -EPERM: the source is a multicast address or has no port; -errno of
 * UDP. The caller limits the rate. Send lock held.
 */
#define SIW_RDMAP_ERROR_OVER 24
int siw_rdmap_dgram_send_error(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_event *event);
/*
 * Whether a PEER_ERR refers to one of the last err_window (a setting) messages sent to that address
 * with that Q_Key, and is the first report about it. *user_data: user_data of the operation. Send
 * lock held.
 */
bool siw_rdmap_dgram_sent(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_event *event,
			  uint64_t *user_data);

/* ---- multicast groups ------------------------------------------------------------------------ */

/*
 * A multicast group on one interface, and its members on this device. All functions: progress lock.
 */
struct siw_rdmap_group;
/*
 * Opens a group on the ddp endpoint of the group's socket, which the group owns from then on. 0 or
 * -ENOMEM.
 */
int siw_rdmap_group_open(struct siw_ddp_dgram *ddp, struct siw_rdmap_group **out);
/* The group must have no members. */
void siw_rdmap_group_close(struct siw_rdmap_group *group);
/* Makes the endpoint a member. 0; -EEXIST: it is one already; -ENOMEM. */
int siw_rdmap_group_attach(struct siw_rdmap_group *group, struct siw_rdmap_dgram *dgram);
/*
 * Ends the membership. Returns the number of members left, or -ENOENT. An endpoint must leave its
 * groups before it is closed.
 */
int siw_rdmap_group_detach(struct siw_rdmap_group *group, const struct siw_rdmap_dgram *dgram);
/*
 * siw_rdmap_group_next() receives the group's next message and returns whether there is one.
 * siw_rdmap_group_copy() then delivers the message to one member per call: 1 and *event, RECV or
 * BAD_RECV, with the member's user; 0: no member is left. Nothing else may be received on the port
 * meanwhile. A member with another Q_Key or without a receive is skipped and counted
 * (siw_rdmap_dgram_drops()). Group messages never get a response.
 */
bool siw_rdmap_group_next(struct siw_rdmap_group *group);
int siw_rdmap_group_copy(struct siw_rdmap_group *group, struct siw_rdmap_event *event);

/* ---- reliable datagrams (RD) -----------------------------------------------------------------
 *
 * An endpoint has a stream for each peer with which something is in progress. siw_rdmap_send and
 * the other functions of streams are as above, but stamps count segments, and accepted is what the
 * peer has received. A refused message does not end the stream: the peer gets an error message in
 * the form of a Terminate, and only the message that this quotes fails there.
 */
/*
 * Opens an RDMAP endpoint on a ddp endpoint, which the RDMAP endpoint owns from then on.
 * user_octets: size of the memory returned by siw_rdmap_rd_user(). 0; -ENOMEM: the caller still
 * owns ddp.
 */
int siw_rdmap_rd_open(struct siw_mem *mem, struct siw_ddp_rd *ddp, uint32_t user_octets,
		      struct siw_rdmap_rd **out);
/* Closes an endpoint. Sends a BYE to peers that still have data to send. Both locks held. */
void siw_rdmap_rd_close(struct siw_rdmap_rd *rd);

enum siw_rdmap_rd_mode {
	SIW_RDMAP_RD_WAIT,   /* arriving messages are paused */
	SIW_RDMAP_RD_ON,     /* arriving messages are received */
	SIW_RDMAP_RD_REJECT, /* arriving messages are dropped, and their senders get a BYE */
};
/*
 * Sets the handling of arriving messages; start applies to streams made from now on. Both locks
 * held.
 */
void siw_rdmap_rd_start(struct siw_rdmap_rd *rd, enum siw_rdmap_rd_mode mode,
			const struct siw_rdmap_start *start);

/*
 * Returns the stream to the peer at addr, which is created if there is none. A stream is freed only
 * under both locks. 0; -ENOBUFS: the limit of peers is reached; -ENOMEM. One of the two locks held.
 */
int siw_rdmap_rd_stream(struct siw_rdmap_rd *rd, const struct siw_addr *addr,
			struct siw_rdmap_stream **out);
/* The stream's user_octets for the layer above, zeroed when the stream is made. */
void *siw_rdmap_rd_user(struct siw_rdmap_stream *stream);
/* The ddp stream below an RDMAP stream. */
struct siw_ddp_stream *siw_rdmap_rd_ddp(const struct siw_rdmap_stream *stream);
const struct siw_addr *siw_rdmap_rd_peer_addr(const struct siw_rdmap_stream *stream);
/* How many Reads and atomics may be outstanding to this peer now. Send lock held. */
uint32_t siw_rdmap_rd_ord(const struct siw_rdmap_stream *stream);
/* The MSN of the last Send begun. Send lock held. */
uint32_t siw_rdmap_rd_sends(const struct siw_rdmap_stream *stream);
/*
 * Whether a flush would frame more data now: data is left, and the peer has room. Send lock held.
 */
bool siw_rdmap_rd_has_more(const struct siw_rdmap_stream *stream);
/*
 * Whether a message cannot be finished because of a local error. Then siw_rdmap_rd_end() with RESET
 * must be called; until then siw_rdmap_send() returns -EPIPE and siw_rdmap_flush() returns -EACCES.
 * Send lock held.
 */
bool siw_rdmap_rd_is_torn(const struct siw_rdmap_stream *stream);
/* A stream for which siw_rdmap_rd_is_torn() is true, or NULL. Both locks held. */
struct siw_rdmap_stream *siw_rdmap_rd_first_torn(struct siw_rdmap_rd *rd);
enum siw_rdmap_rd_ending {
	SIW_RDMAP_RD_LOST_PEER,
	SIW_RDMAP_RD_RESET,    /* a BYE is sent to the peer */
	SIW_RDMAP_RD_SEQUENCE, /* as RESET, because the peer's MSNs are wrong */
};
/*
 * Ends the stream with all work in progress. The receive of an unfinished message becomes the first
 * of its queue again. Both locks held.
 */
void siw_rdmap_rd_end(struct siw_rdmap_stream *stream, enum siw_rdmap_rd_ending how);
/* Ends every stream that has work in progress, as with RESET. */
void siw_rdmap_rd_abandon(struct siw_rdmap_rd *rd);
/* Returns 1, the next event and its stream, or 0: none. event->source is set. */
int siw_rdmap_rd_recv(struct siw_rdmap_rd *rd, struct siw_rdmap_stream **stream,
		      struct siw_rdmap_event *event);
/*
 * Resumes paused streams, after receives were posted or completions of Write-Records were polled.
 */
void siw_rdmap_rd_resume(struct siw_rdmap_rd *rd);
/*
 * Ends the streams that were idle at the last sweep and still are. busy(user): whether the layer
 * above has work in progress on a stream. Returns the number of streams left. Both locks held.
 */
uint32_t siw_rdmap_rd_sweep(struct siw_rdmap_rd *rd, bool (*busy)(void *user));
uint32_t siw_rdmap_rd_streams(const struct siw_rdmap_rd *rd);

/* cffi: end */

#endif
