/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap.h - the RDMA protocol (RFC 5040): operations as messages, requests and responses of
 * RDMA Read, Terminate; on datagrams, the Send of datagram-iWARP.
 *
 * What the RDMAP layer does NOT do: know queue pairs, work queues or completions. The caller passes
 * in one operation at a time; events are returned as values.
 *
 * Locks: as in ddp/ddp.h. siw_rdmap_begin_op, _flush_tx and _terminate of a stream are called under
 * the QP's send lock, all other functions under the progress lock, unless stated otherwise. State
 * used by both the sending and the receiving side (outstanding Reads, inbound Read Requests) is in
 * single-producer rings.
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
 * Opens an RDMAP stream on a DDP stream, which the RDMAP stream owns and closes from then on. After
 * connection start-up, siw_rdmap_start() or siw_rdmap_refuse_with_terminate() must be called.
 * Returns 0 or -ENOMEM; after -ENOMEM the caller still owns ddp.
 */
int siw_rdmap_open(struct siw_mem *mem, struct siw_ddp_stream *ddp, struct siw_rdmap_stream **out);
void siw_rdmap_close(struct siw_rdmap_stream *stream);
/*
 * Sends a Terminate instead of starting the stream, as the initiator that has received the Reply
 * (RFC 6581 section 9). Returns 1 if the Terminate is sent, and the caller must shut down the
 * sending side; 0 if the Terminate cannot be sent now; -errno. Both locks held.
 */
int siw_rdmap_refuse_with_terminate(struct siw_rdmap_stream *stream,
				    const struct siw_wire_err *err);

/* The parameters with which a started connection becomes an RDMAP stream. */
struct siw_rdmap_start {
	struct siw_mem_buffer_queue *recvs; /* receives for queue 0 (Sends) */
	uint32_t pd;
	uint16_t ird, ord; /* negotiated IRD and ORD, at most SIW_RDMAP_MAX_READS */
	/*
	 * set of enum siw_mpa_rtr; at the initiator: the RTR to send; at the responder: the RTRs to
	 * accept
	 */
	uint8_t rtr;
	bool initiator;
	uint32_t denied; /* rights denied to the peer, as in siw_rdmap_deny_access_rights() */
	/* identity of the STags that can be used only on the stream; NULL: none */
	const void *owner;
	/*
	 * Octets of memory for Sends that wait for a receive; 0: a Send without a receive is an
	 * error. An empty Read that arrives after a waiting Send is answered only after the Send
	 * was received, so the response confirms the Send to the peer
	 * (siw_rdmap_send_confirming_read()).
	 */
	uint64_t unexpected_octets;
	/*
	 * Whether event CLOSED is returned only when no Send waits for a receive any more, however
	 * the connection has ended.
	 */
	bool deliver_before_end;
	bool private; /* the peer is siwarp: siwarp-private messages may be sent and received */
	/* delivery counts may be sent and received (siw_rdmap_announce_counts_and_rnr_retry()) */
	bool counts;
	/*
	 * Only if counts is not set: the empty Reads of siw_rdmap_send_confirming_read() request
	 * delivery counts, which only a siwarp peer understands, and delivery counts that the peer
	 * requests in this way are sent. The peer's first count is returned as event
	 * SIW_RDMAP_DELIVERED.
	 */
	bool offers;
};
/*
 * Starts RDMAP on a stream: posts the buffers of queues 1 and 2, and sets IRD and ORD. If rtr is
 * set, the initiator sends the RTR, and the responder accepts only an RTR as the first FPDU; the
 * RTR consumes no receive and is reported as SIW_RDMAP_STARTED. Send lock and progress lock held.
 */
int siw_rdmap_start(struct siw_rdmap_stream *stream, const struct siw_rdmap_start *start);
/*
 * Denies the peer the access rights in denied (enum siw_access_flags) on the stream, even if an
 * STag grants them.
 */
void siw_rdmap_deny_access_rights(struct siw_rdmap_stream *stream, uint32_t denied);

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
 * Subcodes of siwarp-private messages, in their first octet (spec/datagram-iwarp.md section 10).
 * The messages with subcodes 4 and 5 are tagged, and used only on connections
 * (spec/delivery-counts.md); subcode 3 is for datagrams (rdmap_record.h).
 */
enum siw_rdmap_private {
	SIW_RDMAP_SEND_IMM = 1,
	SIW_RDMAP_SEND_IMM_SE = 2,
	SIW_RDMAP_DELIVERY_COUNT = 4,
	SIW_RDMAP_REQUESTER = 5,
};

/* An atomic operation on 64 bits of the peer's memory (RFC 7306 section 5.1), in host order. */
enum siw_rdmap_atomic_kind {
	SIW_RDMAP_FETCH_ADD = 0,
	SIW_RDMAP_CMP_SWAP = 2,
};
struct siw_rdmap_atomic {
	uint32_t kind; /* enum siw_rdmap_atomic_kind, as on the wire */
	uint64_t data; /* the value to add or to swap in */
	/*
	 * FETCH_ADD: the top bit of each field that is added separately, 0 for a single field;
	 * CMP_SWAP: the bits to swap
	 */
	uint64_t mask;
	uint64_t compare; /* used only for CMP_SWAP, as is compare_mask */
	uint64_t compare_mask;
};

/*
 * The position of an operation in its stream, in octets from the beginning of the stream. When
 * *accepted of siw_rdmap_flush_tx() has reached the member end, the operation's memory is no longer
 * read. For a Read or an atomic, this means only that its request has been sent.
 */
struct siw_rdmap_stamp {
	uint64_t end; /* end position; UINT64_MAX: the operation is not completely framed */
	uint64_t begin;
};

/* An RDMAP operation, which must stay in place until it is complete. */
struct siw_rdmap_op {
	/*
	 * SEND..., WRITE, READ_REQUEST, ATOMIC_REQUEST; on RD also PRIVATE, which means a
	 * Write-Record
	 */
	uint8_t opcode;
	/*
	 * Opcode of the immediate data: 0 (no immediate data), IMMEDIATE or IMMEDIATE_SE. The
	 * immediate data of a WRITE is sent after the Write as a message of imm_opcode; a SEND with
	 * immediate data is sent as PRIVATE. Both are one operation.
	 */
	uint8_t imm_opcode;
	bool solicited; /* the Send is solicited; used only for PRIVATE */
	bool internal;	/* sgl is library memory (inline data) */
	/*
	 * Used only on RD: the caller will begin another operation before it calls
	 * siw_rdmap_flush_tx(). Short segments wait for that call, so that several are sent in one
	 * system call (rd.h, siw_rd_tx).
	 */
	bool more;
	/*
	 * For WRITE, READ_REQUEST, ATOMIC_REQUEST and SEND..._INV: rkey is the peer's STag, and
	 * remote_to is the tagged offset.
	 */
	uint32_t rkey;
	uint64_t remote_to;
	/* source buffers, or the sink of a Read or atomic; valid until the operation is complete */
	const struct siw_sge *sgl;
	uint64_t length; /* total octets of sgl; 8 for an atomic */
	int nsge;
	uint32_t imm; /* the four octets of immediate data in memory order */
	union {
		uint8_t imm_room[8]; /* used by RDMAP if the operation has immediate data */
		/* only for ATOMIC_REQUEST; the struct is copied */
		const struct siw_rdmap_atomic *atomic;
	};
	uint64_t user_data; /* returned with SIW_RDMAP_READ_DONE, for a Read or an atomic */
	/*
	 * Written by siw_rdmap_begin_op() and siw_rdmap_flush_tx(). On UC only the member end is
	 * written: the number of the operation's last message, in the unit of
	 * siw_rdmap_uc_begun_count().
	 */
	struct siw_rdmap_stamp stamp;
};
/*
 * Begins an operation. Returns 0; -EAGAIN if that is not possible now, because an earlier message
 * is not completely framed, or because a Read or atomic would exceed ORD: call
 * siw_rdmap_flush_tx(), and retry after a later event; -EACCES if a local key is invalid; -EPIPE if
 * the stream has ended; another -errno.
 */
int siw_rdmap_begin_op(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op);
/*
 * Sends an empty Read, whose response shows that the peer has received all operations begun before;
 * the Read counts towards ORD. Returns 0 if event SIW_RDMAP_CONFIRMED with user_data will follow;
 * -EAGAIN if that is not possible now (see siw_rdmap_begin_op()); another -errno.
 */
int siw_rdmap_send_confirming_read(struct siw_rdmap_stream *stream, uint64_t user_data);
/*
 * Announces to the peer, before the next operation, whether this end wants delivery counts
 * (SIW_RDMAP_DELIVERED at this end), and the rnr_retry of this end (SIW_RDMAP_RNR_RETRY at the
 * peer). Has no effect unless delivery counts were agreed. Send lock held.
 */
void siw_rdmap_announce_counts_and_rnr_retry(struct siw_rdmap_stream *stream, bool wants_counts,
					     uint8_t rnr_retry);
/*
 * Whether a delivery count has to be sent to the peer, because more messages of the peer were
 * received. The count is sent before the next message of this end, or separately by
 * siw_rdmap_transmit_delivery_count(). Progress lock held.
 */
bool siw_rdmap_has_unsent_delivery_count(const struct siw_rdmap_stream *stream);
/* Whether the peer has requested delivery counts. Progress lock held. */
bool siw_rdmap_peer_wants_delivery_counts(const struct siw_rdmap_stream *stream);
/*
 * Whether this end has requested delivery counts by siw_rdmap_send_confirming_read(). May be called
 * by any thread.
 */
bool siw_rdmap_has_requested_delivery_counts(const struct siw_rdmap_stream *stream);
/*
 * Frames the delivery count for the peer, which the next siw_rdmap_flush_tx() sends; does nothing
 * while another message is partially framed. Send lock held.
 */
void siw_rdmap_transmit_delivery_count(struct siw_rdmap_stream *stream);
/*
 * Rejects the event SIW_RDMAP_DELIVERED just returned, because its counts are not plausible: the
 * next siw_rdmap_next_event() returns ERROR. Progress lock held.
 */
void siw_rdmap_refuse_bad_delivery_count(struct siw_rdmap_stream *stream);
/*
 * Returns the number of Read and Atomic Requests sent so far, which equals the MSN of the last
 * request. Send lock held.
 */
uint32_t siw_rdmap_begun_read_count(const struct siw_rdmap_stream *stream);
/*
 * Passes framed data to TCP, continues a long message, and responds to the peer's Read Requests, in
 * turns with the user's operations. *accepted is always set to the position up to which TCP has
 * accepted the stream, in the unit of stamps. Returns:
 *
 * 1: all data is sent.
 *
 * 0: TCP is full, or the turn's budget (about 1 MiB) is used up: call again in the next turn, after
 * siw_rdmap_begin_op(), so that the user's operations get their turn. siw_ddp_is_tx_blocked() then
 * returns whether the stream waits for TCP (or the peer's first FPDU) rather than for another turn.
 *
 * -errno: the stream is dead. -EACCES: the cause is an error in data that this end was sending (a
 * local key, the source of a response): siw_rdmap_next_event() returns ERROR too, and
 * siw_rdmap_terminate() must be called. -EFAULT: the cause is that the memory of the data at
 * *accepted is no longer mapped.
 */
int siw_rdmap_flush_tx(struct siw_rdmap_stream *stream, uint64_t *accepted);
/*
 * Frames responses to the peer's Read Requests like siw_rdmap_flush_tx(), but passes them to TCP
 * only if they fill a batch: siw_rdmap_flush_tx() must follow, and reports any error.
 */
void siw_rdmap_frame_responses(struct siw_rdmap_stream *stream);
/*
 * Whether siw_rdmap_flush_tx() has responses to the peer's Read Requests to send. May be called by
 * any thread.
 */
bool siw_rdmap_has_responses_to_send(const struct siw_rdmap_stream *stream);

enum siw_rdmap_event_kind {
	SIW_RDMAP_NONE = 0,
	/*
	 * at the responder: the peer's first FPDU has arrived, so this end may send: call
	 * siw_rdmap_flush_tx()
	 */
	SIW_RDMAP_STARTED,
	SIW_RDMAP_RECV,	     /* a Send was received: user_data, length, solicited, invalidated */
	SIW_RDMAP_READ_DONE, /* an RDMA Read or an atomic is complete: user_data, length */
	/* a Read Request for length octets arrived: call siw_rdmap_flush_tx() */
	SIW_RDMAP_REQUESTED,
	SIW_RDMAP_PROGRESS,   /* a segment was placed; no other event applies */
	SIW_RDMAP_TERMINATED, /* the peer sent a Terminate: err; the stream has ended */
	/* this end found error err: call siw_rdmap_terminate(); the stream has ended */
	SIW_RDMAP_ERROR,
	SIW_RDMAP_CLOSED, /* the stream ended (status 0) or the connection failed (-errno) */
	/* a Send waits for a receive: call siw_rdmap_next_event() when a receive is posted */
	SIW_RDMAP_UNEXPECTED,
	/*
	 * the peer has received all operations begun before siw_rdmap_send_confirming_read():
	 * user_data
	 */
	SIW_RDMAP_CONFIRMED,
	/*
	 * the peer reports how many Sends and Writes of this end it has received: sends, writes.
	 * The values are not checked; see siw_rdmap_refuse_bad_delivery_count().
	 */
	SIW_RDMAP_DELIVERED,
	/* the peer announced its rnr_retry (0 to 7) by siw_rdmap_announce_counts_and_rnr_retry() */
	SIW_RDMAP_RNR_RETRY,
	/*
	 * An invalid message has consumed a receive: user_data, status. On datagrams the status is
	 * -EMSGSIZE or -EACCES; on a stream -EACCES or -EPROTO, and ERROR follows.
	 */
	SIW_RDMAP_BAD_RECV,
	/* datagram: a sender with the correct Q_Key violated the protocol: err, quoted */
	SIW_RDMAP_BAD_MSG,
	/*
	 * datagram: a sender with the correct Q_Key caused a memory access error: err, quoted; the
	 * sender must not get an error message
	 */
	SIW_RDMAP_BAD_ACCESS,
	/*
	 * datagram: a segment of a Write-Record arrived: call siw_rdmap_write_record_next_report()
	 */
	SIW_RDMAP_RECORD,
	/*
	 * datagram: a peer's error message arrived: check it with
	 * siw_rdmap_dgram_match_error_to_sent()
	 */
	SIW_RDMAP_PEER_ERR,
	/*
	 * The events below occur only on reliable datagrams. The stream continues after these
	 * events except LOST, and also after TERMINATED.
	 */
	/*
	 * This end has refused a message from the peer with error err: call siw_rdmap_flush_tx().
	 * of_response: the oldest Read or atomic, user_data, has failed; receive_consumed: the
	 * receive user_data was consumed.
	 */
	SIW_RDMAP_REFUSED,
	/*
	 * the peer has accepted more segments, or there is room to send again: call
	 * siw_rdmap_flush_tx()
	 */
	SIW_RDMAP_ACKED,
	/*
	 * A message is paused: call siw_rdmap_rd_resume_paused_streams() when a receive is posted,
	 * or, if status is -EBUSY, when completions of Write-Records were polled.
	 */
	SIW_RDMAP_PAUSED,
	/*
	 * a message of the peer does not have the next MSN: err, quoted...; call
	 * siw_rdmap_rd_end_stream()
	 */
	SIW_RDMAP_SEQUENCE,
	/* the peer is lost or has restarted: status; call siw_rdmap_rd_end_stream() */
	SIW_RDMAP_LOST,
};

struct siw_rdmap_event {
	int kind; /* enum siw_rdmap_event_kind */
	int status;
	uint64_t user_data;
	uint32_t length;	/* in octets */
	uint32_t placed;	/* stream: octets of the segment that caused the event */
	uint32_t sends, writes; /* DELIVERED: counts since the stream's start, modulo 2^32 */
	uint8_t rnr_retry;	/* the value in event RNR_RETRY */
	bool solicited;
	bool invalidated;
	bool with_imm; /* RECV: imm is immediate data, in memory order */
	/*
	 * If with_imm is set: length is the length of the Write before the immediate data, and the
	 * receive's memory is unused. In event PROGRESS: a Write of length octets is complete.
	 */
	bool of_write;
	/*
	 * on reliable datagrams: after handling the event, handle it like event ACKED, too
	 */
	bool acked;
	uint32_t imm;
	uint32_t inv_stag;
	void *user;	   /* of a datagram: the pointer `user` of the destination endpoint */
	uint32_t ulp_word; /* of a datagram: the Q_Key */
	uint32_t src_qpn;  /* on datagrams: QPN of the sender */
	uint32_t msn;
	struct siw_wire_err err;
	/*
	 * If quoted is set: the DDP header of the failing segment, as quoted by the peer's
	 * Terminate or in this end's future Terminate. The STag and TO of a tagged segment are set
	 * only if the peer quoted the header.
	 */
	bool quoted;
	bool quoted_tagged;
	uint32_t quoted_msn;
	uint32_t quoted_qn;
	uint32_t quoted_stag;
	uint64_t quoted_to;
	uint8_t quoted_head[18]; /* on datagrams: the quoted DDP header */
	uint8_t quoted_head_len;
	uint16_t quoted_seg_len; /* on datagrams: length in octets of the quoted segment */
	/*
	 * on datagrams: the RDMAP header of a Write-Record, quoted after the DDP header; quoted_msn
	 * is the message's id. 0 octets: no RDMAP header is quoted.
	 */
	uint8_t quoted_more[20];
	uint8_t quoted_more_len;
	/* with ERROR: the quoted segment belongs to the response to the oldest Read or atomic */
	bool of_response;
	bool receive_consumed;
	struct siw_addr source; /* on datagrams: address of the sender */
	/*
	 * UD: the local address or group address at which the message arrived; valid as long as the
	 * socket exists
	 */
	const struct siw_addr *dest;
};
/*
 * Returns 1 and the next event of the stream, or 0 if there is no event now. After TERMINATED,
 * ERROR or CLOSED there are no further events.
 */
int siw_rdmap_next_event(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);
/*
 * Whether the next message is a Read Request that was read from the socket together with the
 * previous message. The request has not been checked, and siw_rdmap_next_event() may return an error
 * instead of REQUESTED. Progress lock held.
 */
bool siw_rdmap_is_next_received_read_request(const struct siw_rdmap_stream *stream);

/* Whether Sends wait for receives, or Read Requests wait for Sends without receives. */
bool siw_rdmap_has_unexpected_messages(const struct siw_rdmap_stream *stream);
/* Whether a Send waits for a receive; *msn: the MSN of the oldest waiting Send. */
bool siw_rdmap_received_send_awaits_buffer(const struct siw_rdmap_stream *stream, uint32_t *msn);
/*
 * Expires the oldest Send that waits for a receive: unless a receive is posted, siw_rdmap_next_event()
 * now returns ERROR ("no buffer").
 */
void siw_rdmap_fail_received_send_without_buffer(struct siw_rdmap_stream *stream);
/*
 * Sends the Terminate for the last ERROR, once. Returns 1 if the Terminate is sent, and the caller
 * must shut down the sending side; 0 if the caller must call again; -errno.
 */
int siw_rdmap_terminate(struct siw_rdmap_stream *stream);
/* ---- datagram endpoints (UD) ----------------------------------------------------------------- */

#define SIW_RDMAP_MAX_SHARERS 256
/*
 * Opens an RDMAP endpoint on a DDP datagram endpoint, which the RDMAP endpoint owns and closes from
 * then on. share: NULL, or another endpoint on the same socket: each endpoint of a socket has an
 * index, and any endpoint can receive for all endpoints of the socket. user: returned in struct
 * siw_rdmap_event. Returns 0; -ENOMEM; or -ENOSPC if the socket has SIW_RDMAP_MAX_SHARERS
 * endpoints. On failure the caller still owns ddp.
 */
int siw_rdmap_dgram_open(struct siw_ddp_dgram *ddp, struct siw_rdmap_dgram *share, void *user,
			 struct siw_rdmap_dgram **out);
/*
 * Closes a datagram endpoint. Returns the user pointer of another endpoint on the same socket, or
 * NULL if no endpoint is left.
 */
void *siw_rdmap_dgram_close(struct siw_rdmap_dgram *dgram);
/*
 * Returns the index of the endpoint among the endpoints of its socket. The first endpoint has index
 * 0; each further endpoint gets the next free index, counting up, so that an index is reused as
 * late as possible.
 */
uint8_t siw_rdmap_dgram_index_on_socket(const struct siw_rdmap_dgram *dgram);
/* Whether the endpoint shares its socket with other endpoints. */
bool siw_rdmap_dgram_shares_socket(const struct siw_rdmap_dgram *dgram);
/*
 * Set and return the progress round in which the socket was last found full; the value is shared by
 * all endpoints of the socket.
 */
void siw_rdmap_dgram_set_socket_full_time(struct siw_rdmap_dgram *dgram, uint64_t when);
uint64_t siw_rdmap_dgram_last_full_round(const struct siw_rdmap_dgram *dgram);
/* maximum octets of a message */
uint32_t siw_rdmap_dgram_max_message_octets(const struct siw_rdmap_dgram *dgram);
/*
 * Returns the numbers of messages dropped for lack of a receive, by source, in descending order, as
 * siw_query_drops() does.
 */
int siw_rdmap_dgram_query_drops_by_source(const struct siw_rdmap_dgram *dgram,
					  struct siw_source_drops *out, int max);
/*
 * Sets the receive queue of a datagram endpoint, its PD, and the Q_Key that a received message must
 * carry.
 */
void siw_rdmap_dgram_configure_receiving(struct siw_rdmap_dgram *dgram,
					 struct siw_mem_buffer_queue *recvs, uint32_t pd,
					 uint32_t qkey);
/*
 * Enables the GRH: from now on each received message is preceded by a GRH; see siw_ddp_grh_put().
 */
void siw_rdmap_dgram_enable_grh(struct siw_rdmap_dgram *dgram);

struct siw_rdmap_dgram_op {
	uint64_t user_data; /* returned by siw_rdmap_dgram_match_error_to_sent() */
	const struct siw_addr *dest;
	uint8_t dest_index; /* the destination's index among the endpoints of its socket */
	uint32_t qkey;
	bool solicited;
	bool internal;
	/*
	 * the message has immediate data and is sent as a private message; the maximum length is 8
	 * octets less
	 */
	bool with_imm;
	uint32_t imm; /* immediate data, in memory order */
	const struct siw_sge *sgl;
	int nsge;
	uint64_t length; /* in octets */
};
/*
 * Sends a message as one datagram. Returns 0 if UDP has accepted the message; -EAGAIN if that is
 * not possible now; -EMSGSIZE; -EACCES if an lkey is invalid; another -errno. Send lock held.
 */
int siw_rdmap_dgram_send(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_dgram_op *op);
/*
 * Sends the first of n messages (n is at most SIW_RDMAP_MAX_SOME), and as many of the next messages
 * as fit into the same system call. Returns the number of messages that UDP has accepted, at least
 * 1, or the error of siw_rdmap_dgram_send() for the first message.
 */
#define SIW_RDMAP_MAX_SOME 64
int siw_rdmap_dgram_send_batch(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_dgram_op *ops,
			       int n);
/*
 * Receives the next message of the endpoint's socket. Returns 1 and *event (RECV, RECORD, BAD_RECV,
 * BAD_MSG, BAD_ACCESS or PEER_ERR); event->user is the user of the destination endpoint. Returns 0
 * if no message has arrived. Other datagrams are dropped and counted, without a response.
 */
int siw_rdmap_dgram_recv(struct siw_rdmap_dgram *dgram, struct siw_rdmap_event *event);
/*
 * Sends an error message about a BAD_MSG, or about a BAD_RECV with -EMSGSIZE, to the sender of the
 * message: one datagram in the layout of a Terminate, at most SIW_RDMAP_ERROR_OVER octets longer
 * than the reported message. Returns 0; -EPERM if the source is a multicast address or has no port;
 * another -errno of UDP. The caller limits the rate of error messages. Send lock held.
 */
#define SIW_RDMAP_ERROR_OVER 24
int siw_rdmap_dgram_send_error(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_event *event);
/*
 * Whether an event PEER_ERR refers to one of the last err_window (a setting) messages sent to the
 * address event->source with the reported Q_Key, and is the first report about the message.
 * *user_data: user_data of the operation. Send lock held.
 */
bool siw_rdmap_dgram_match_error_to_sent(struct siw_rdmap_dgram *dgram,
					 const struct siw_rdmap_event *event, uint64_t *user_data);

/* ---- multicast groups ------------------------------------------------------------------------ */

/*
 * A multicast group on one interface, and its members on the device. All functions of groups are
 * called under the progress lock.
 */
struct siw_rdmap_group;
/*
 * Opens a group on the DDP endpoint of the group's socket, which the group owns from then on.
 * Returns 0 or -ENOMEM.
 */
int siw_rdmap_mcast_group_open(struct siw_ddp_dgram *ddp, struct siw_rdmap_group **out);
/* Closes a group, which must have no members. */
void siw_rdmap_mcast_group_close(struct siw_rdmap_group *group);
/*
 * Makes the endpoint a member of the group. Returns 0; -EEXIST if it is a member already; -ENOMEM.
 */
int siw_rdmap_mcast_group_attach(struct siw_rdmap_group *group, struct siw_rdmap_dgram *dgram);
/*
 * Ends the membership of an endpoint in a group. Returns the number of members left, or -ENOENT. An
 * endpoint must leave its groups before it is closed.
 */
int siw_rdmap_mcast_group_detach(struct siw_rdmap_group *group,
				 const struct siw_rdmap_dgram *dgram);
/*
 * siw_rdmap_mcast_group_rx_datagram() receives the group's next message and returns whether a message
 * has arrived. Each call of siw_rdmap_mcast_group_deliver_to_next_member() then delivers this
 * message to one member and returns 1; *event is RECV or BAD_RECV, with the member's user. That
 * function returns 0 when all members have been served. No other datagram may be received on the
 * poller between these calls. A member with another Q_Key or without a receive is skipped and
 * counted (siw_rdmap_dgram_query_drops_by_source()). Group messages never get a response.
 */
bool siw_rdmap_mcast_group_rx_datagram(struct siw_rdmap_group *group);
int siw_rdmap_mcast_group_deliver_to_next_member(struct siw_rdmap_group *group,
						 struct siw_rdmap_event *event);

/*
 * ---- reliable datagrams (RD) -----------------------------------------------------------------
 *
 * An RD endpoint has a stream for each peer with which messages are in progress. siw_rdmap_begin_op
 * and the other functions of streams work as on connections, but stamps count segments, and the
 * accepted position is the position up to which the peer has received. A refused message does not
 * end the stream: the peer gets an error message in the form of a Terminate, and only the quoted
 * message fails at the peer.
 */
/*
 * Opens an RDMAP endpoint on a DDP endpoint of reliable datagrams, which the RDMAP endpoint owns
 * from then on. user_octets: size of the memory returned by siw_rdmap_rd_user_memory(). Returns 0
 * or -ENOMEM; after -ENOMEM the caller still owns ddp.
 */
int siw_rdmap_rd_open(struct siw_mem *mem, struct siw_ddp_rd *ddp, uint32_t user_octets,
		      struct siw_rdmap_rd **out);
/*
 * Closes an RD endpoint. Sends a BYE to the peers with which messages are in progress. Both locks
 * held.
 */
void siw_rdmap_rd_close(struct siw_rdmap_rd *rd);

enum siw_rdmap_rd_mode {
	SIW_RDMAP_RD_WAIT,   /* arriving messages are paused */
	SIW_RDMAP_RD_ON,     /* arriving messages are received */
	SIW_RDMAP_RD_REJECT, /* arriving messages are dropped, and their senders get a BYE */
};
/*
 * Sets how arriving messages are handled. Structure *start applies to streams created from now on.
 * Both locks held.
 */
void siw_rdmap_rd_configure_receiving(struct siw_rdmap_rd *rd, enum siw_rdmap_rd_mode mode,
				      const struct siw_rdmap_start *start);

/*
 * Stores the stream to the peer at addr in *out, and creates the stream if there is none. A stream
 * is freed only under both locks. Returns 0; -ENOBUFS if the limit of peers is reached; -ENOMEM.
 * One of the two locks held.
 */
int siw_rdmap_rd_get_or_create_stream(struct siw_rdmap_rd *rd, const struct siw_addr *addr,
				      struct siw_rdmap_stream **out);
/*
 * Returns the user_octets octets of the stream that are reserved for the upper layer, and zeroed
 * when the stream is created.
 */
void *siw_rdmap_rd_user_memory(struct siw_rdmap_stream *stream);
/* Returns the DDP stream that carries an RDMAP stream. */
struct siw_ddp_stream *siw_rdmap_rd_ddp_stream(const struct siw_rdmap_stream *stream);
const struct siw_addr *siw_rdmap_rd_peer_addr(const struct siw_rdmap_stream *stream);
/*
 * Returns the number of Reads and atomics that may be outstanding to the peer now. Send lock held.
 */
uint32_t siw_rdmap_rd_max_outstanding_reads(const struct siw_rdmap_stream *stream);
/* Returns the MSN of the last Send begun on the stream. Send lock held. */
uint32_t siw_rdmap_rd_last_send_msn(const struct siw_rdmap_stream *stream);
/*
 * Whether siw_rdmap_flush_tx() would frame more data of the stream now, because data is left and
 * there is room to send. Send lock held.
 */
bool siw_rdmap_rd_has_more_to_send(const struct siw_rdmap_stream *stream);
/*
 * Whether a message of the stream cannot be finished because of a local error. If so,
 * siw_rdmap_rd_end_stream() with RESET must be called; until then siw_rdmap_begin_op() returns
 * -EPIPE and siw_rdmap_flush_tx() returns -EACCES. Send lock held.
 */
bool siw_rdmap_rd_has_unfinishable_message(const struct siw_rdmap_stream *stream);
/*
 * Returns a stream for which siw_rdmap_rd_has_unfinishable_message() is true, or NULL. Both locks
 * held.
 */
struct siw_rdmap_stream *siw_rdmap_rd_first_unfinishable_stream(struct siw_rdmap_rd *rd);
enum siw_rdmap_rd_ending {
	SIW_RDMAP_RD_LOST_PEER,
	SIW_RDMAP_RD_RESET,    /* a BYE is sent to the peer */
	SIW_RDMAP_RD_SEQUENCE, /* a BYE is sent to the peer, because its MSNs are wrong */
};
/*
 * Ends the stream with all messages in progress. The receive of a partially received message
 * becomes the first of its queue again. Both locks held.
 */
void siw_rdmap_rd_end_stream(struct siw_rdmap_stream *stream, enum siw_rdmap_rd_ending how);
/*
 * Ends every stream of the endpoint; a BYE is sent to the peers with which messages are in
 * progress.
 */
void siw_rdmap_rd_end_all_streams(struct siw_rdmap_rd *rd);
/*
 * Returns 1 with the next event of the endpoint and its stream, or 0 if there is no event.
 * event->source is set.
 */
int siw_rdmap_rd_recv(struct siw_rdmap_rd *rd, struct siw_rdmap_stream **stream,
		      struct siw_rdmap_event *event);
/*
 * Resumes paused streams, after receives were posted or completions of Write-Records were polled.
 */
void siw_rdmap_rd_resume_paused_streams(struct siw_rdmap_rd *rd);
/*
 * Ends the streams that are idle and were not used since the previous call of this function.
 * busy(user): whether the upper layer has requests in progress on a stream. Returns the number of
 * streams left. Both locks held.
 */
uint32_t siw_rdmap_rd_end_idle_streams(struct siw_rdmap_rd *rd, bool (*busy)(void *user));
uint32_t siw_rdmap_rd_stream_count(const struct siw_rdmap_rd *rd);

/* cffi: end */

#endif
