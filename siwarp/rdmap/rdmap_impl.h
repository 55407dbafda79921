/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rdmap/rdmap_impl.h - internal interface between the files of rdmap/. */
#ifndef SIW_RDMAP_IMPL_H
#define SIW_RDMAP_IMPL_H

#include <netinet/in.h>
#include <stdatomic.h>

#include "base/counters.h"
#include "base/list.h"
#include "base/lock.h"
#include "ddp/ddp_rd.h"
#include "rdmap/rdmap.h"
#include "rdmap/rdmap_record.h"
#include "rdmap/rdmap_wire.h"

/* ---- traffic --------------------------------------------------------------------------------- */

/*
 * Traffic counts of an endpoint. Each update of a shared counter costs an atomic instruction, so
 * messages are counted per endpoint, each direction under its own lock, and added to the shared
 * counters when a receive finds no message. In a process with an event loop that may come too late
 * for sent messages, which are then counted in the shared counters.
 */
struct siw_rdmap_flow {
	_Atomic uint64_t msgs, octets;
};

struct siw_rdmap_traffic {
	struct siw_rdmap_flow sent; /* protected by the send lock */
	/* this member and the next two are protected by the progress lock */
	struct siw_rdmap_flow received;
	struct siw_rdmap_flow sent_reported, received_reported;
};

static inline void siw_rdmap_traffic_add(_Atomic uint64_t *to, uint64_t n)
{
	atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

static inline void siw_rdmap_traffic_count(struct siw_rdmap_flow *flow, uint64_t msgs,
					   uint64_t octets)
{
	siw_rdmap_traffic_add(&flow->msgs, msgs);
	siw_rdmap_traffic_add(&flow->octets, octets);
}

/* Counts sent messages. Under the send lock. */
static inline void siw_rdmap_traffic_count_sent(struct siw_rdmap_traffic *t, uint64_t msgs,
						uint64_t octets)
{
	if (__builtin_expect(atomic_load_explicit(&siw_counters_event_loops, memory_order_relaxed),
			     0)) {
		siw_count(SIW_COUNTER_tx_msgs, msgs);
		siw_count(SIW_COUNTER_tx_octets, octets);
		return;
	}
	siw_rdmap_traffic_count(&t->sent, msgs, octets);
}

static inline void siw_rdmap_traffic_publish(_Atomic uint64_t *now, _Atomic uint64_t *reported,
					     enum siw_counter counter)
{
	uint64_t n = atomic_load_explicit(now, memory_order_relaxed);
	uint64_t before = atomic_load_explicit(reported, memory_order_relaxed);

	if (n == before)
		return;
	siw_count(counter, n - before);
	atomic_store_explicit(reported, n, memory_order_relaxed);
}

static inline void siw_rdmap_traffic_report(struct siw_rdmap_traffic *t)
{
	siw_rdmap_traffic_publish(&t->sent.msgs, &t->sent_reported.msgs, SIW_COUNTER_tx_msgs);
	siw_rdmap_traffic_publish(&t->sent.octets, &t->sent_reported.octets, SIW_COUNTER_tx_octets);
	siw_rdmap_traffic_publish(&t->received.msgs, &t->received_reported.msgs,
				  SIW_COUNTER_rx_msgs);
	siw_rdmap_traffic_publish(&t->received.octets, &t->received_reported.octets,
				  SIW_COUNTER_rx_octets);
}

/* ---- rdmap_sources.c: sources of messages dropped for lack of a receive ---------------------- */

struct siw_rdmap_sources;

/* Counts a dropped message of a source. Allocates *sources for the first dropped message. */
void siw_rdmap_count_dropped_message_of_source(struct siw_rdmap_sources **sources,
					       const struct siw_addr *source);
/*
 * Returns the numbers of dropped messages by source, as siw_rdmap_dgram_query_drops_by_source()
 * does.
 */
int siw_rdmap_sources_query_drops(const struct siw_rdmap_sources *sources,
				  struct siw_source_drops *out, int max);

/* ---- datagrams ------------------------------------------------------------------------------- */

/*
 * The queue number of datagrams: the queue number of RFC 5040 in the low two bits, then the indexes
 * of the destination and of the source among the queue pairs on their sockets (0 for the first
 * queue pair).
 */
#define SIW_RDMAP_DQN_QUEUE	 0x3u
#define SIW_RDMAP_DQN_DEST_SHIFT 8
#define SIW_RDMAP_DQN_SRC_SHIFT	 16
#define SIW_RDMAP_DQN_SRC(qn)	 ((qn) >> SIW_RDMAP_DQN_SRC_SHIFT & 0xff)
#define SIW_RDMAP_DQN_DEST(qn)	 ((qn) >> SIW_RDMAP_DQN_DEST_SHIFT & 0xff)
#define SIW_RDMAP_DQN_UNUSED	 0xff0000fcu
#define SIW_RDMAP_INDEX_SHIFT	 16 /* bit position of the index in a QP number */

/* What is stored about a recently sent message: a hash of its destination, and its user_data. */
struct siw_rdmap_sent {
	uint64_t user_data;
	uint32_t tag; /* hash of the destination; 0: the entry is free */
};

/* A table of recently sent messages, indexed by MSN modulo the table size. Under the send lock. */
struct siw_rdmap_sents {
	uint32_t mask;
	uint32_t most; /* maximum value of mask */
	struct siw_rdmap_sent sent[];
};

struct siw_rdmap_sharers;

struct siw_rdmap_dgram {
	struct siw_ddp_dgram *ddp;
	/* NULL: no other endpoint is on the socket; under the progress lock */
	struct siw_rdmap_sharers *sharers;
	void *user;
	uint32_t max; /* maximum octets of a message */
	uint32_t index;
	/*
	 * the endpoint has joined the socket of another endpoint, which receives on the socket and
	 * reports only its own traffic counts
	 */
	bool joined;
	bool grh; /* each received message is preceded by a GRH */
	struct siw_rdmap_traffic traffic;
	/*
	 * Written by siw_rdmap_dgram_configure_receiving() under the QP's send lock and the
	 * progress lock.
	 */
	struct siw_mem_buffer_queue *recvs;
	uint32_t pd;
	uint32_t qkey;
	struct siw_rdmap_sents *sents;	   /* send lock; allocated with the first message */
	struct siw_rdmap_sources *dropped; /* protected by the progress lock */
	/* NULL: no Write-Records are accepted; under the progress lock */
	struct siw_rdmap_records *records;
	/* Write-Records sent; allocated with the first Write-Record; under the send lock */
	struct siw_rdmap_record_sents *record_sents;
	uint32_t record_id;   /* id of the next Write-Record */
	uint32_t path_octets; /* user octets per datagram to the address in path */
	struct siw_addr path;
	uint64_t path_ns; /* time of the last path lookup, ns */
};

/*
 * Handles a tagged segment for a UD endpoint (rdmap_record.c). Returns true if *event is filled,
 * false if the segment was dropped.
 */
bool siw_rdmap_handle_write_record_segment(struct siw_rdmap_dgram *dgram,
					   const struct siw_ddp_seg *seg,
					   struct siw_rdmap_event *event);
/*
 * Copies the RDMAP header of a Write-Record, if the header is complete, to *event as a quoted
 * header, with the message's id as quoted_msn.
 */
void siw_rdmap_write_record_quote_header(const uint8_t *head, size_t len,
					 struct siw_rdmap_event *event);
/*
 * Does what siw_rdmap_dgram_match_error_to_sent() does, for an error message that quotes a tagged
 * header (of a Write-Record).
 */
bool siw_rdmap_match_error_to_sent_write_record(struct siw_rdmap_dgram *dgram,
						const struct siw_rdmap_event *event,
						uint64_t *user_data);

/*
 * Returns a hash of a message's destination, Q_Key and queue number. An attacker that does not know
 * the Q_Key cannot forge an error message that matches the hash.
 */
static inline uint32_t siw_rdmap_sent_tag(const struct siw_addr *to, uint32_t qkey, uint32_t qn)
{
	const uint64_t odd =
		0x9e3779b97f4a7c15u; /* 2^64 divided by the golden ratio; any odd number would do */
	uint64_t who[2] = { 0 };

	if (__builtin_expect(to->family == AF_INET, 1))
		memcpy(who, to->v4, sizeof(to->v4));
	else
		memcpy(who, to->v6, sizeof(to->v6));
	who[0] = (who[0] ^ (uint64_t)to->port_be << 32) * odd + who[1];
	who[0] = ((who[0] ^ who[0] >> 32) + ((uint64_t)qkey << 32 | qn)) * odd;
	return (uint32_t)((who[0] ^ who[0] >> 29) >> 32) | 1;
}

/* Returns the QP number of a datagram's sender. */
static inline uint32_t siw_rdmap_src_qpn(const struct siw_addr *source, uint32_t qn)
{
	return ntohs(source->port_be) | SIW_RDMAP_DQN_SRC(qn) << SIW_RDMAP_INDEX_SHIFT;
}

/* ---- rdmap_datagram.c, for rdmap_group.c ----------------------------------------------------- */

/* How to handle a received datagram segment. */
enum siw_rdmap_dgram_action {
	SIW_RDMAP_TAKE,
	/* deliver the message without its first SIW_RDMAP_IMM_LEN octets, which RDMAP uses */
	SIW_RDMAP_TAKE_HEADED,
	SIW_RDMAP_DROP, /* the segment was dropped, and counted */
	SIW_RDMAP_ERROR_MESSAGE,
	SIW_RDMAP_VIOLATION,
};
/*
 * Checks a datagram segment. VIOLATION with *err means that the sender has the correct Q_Key but
 * violated the protocol, and gets an error message; other senders get no error message. Error
 * messages arrive on queue 2; a Terminate on any queue counts as an error message, because no error
 * message is sent about error messages.
 */
enum siw_rdmap_dgram_action siw_rdmap_dgram_check_segment(const struct siw_rdmap_dgram *dgram,
							  const struct siw_ddp_seg *seg,
							  struct siw_wire_err *err);
/*
 * Places the current datagram of lower, which is the DDP endpoint of dgram or of its group, in the
 * next receive of dgram. Returns the same values as siw_ddp_dgram_place(). *event becomes event
 * RECV, except with -ENOBUFS; the caller has set source, dest and user of *event.
 */
int siw_rdmap_dgram_place(const struct siw_rdmap_dgram *dgram, struct siw_ddp_dgram *lower,
			  const struct siw_ddp_seg *seg, enum siw_rdmap_dgram_action verdict,
			  struct siw_rdmap_event *event);

/*
 * Allocates the table dgram->sents, or doubles the table before the message with the given MSN is
 * recorded (rdmap_datagram_err.c). Does nothing if there is no memory.
 */
void siw_rdmap_sent_table_grow(struct siw_rdmap_dgram *dgram, uint32_t msn);
/* Records that the message with the given MSN was sent. */
static inline void siw_rdmap_add_sent(struct siw_rdmap_dgram *dgram, uint32_t msn, uint32_t tag,
				      uint64_t user_data)
{
	struct siw_rdmap_sents *s = dgram->sents;

	/*
	 * The table grows on demand, because there may be thousands of endpoints that have sent
	 * only a few messages each.
	 */
	if (__builtin_expect(!s || (!(msn & s->mask) && s->mask < s->most), 0)) {
		siw_rdmap_sent_table_grow(dgram, msn);
		s = dgram->sents;
		if (!s) /* without memory, later error messages about the message are dropped */
			return;
	}
	s->sent[msn & s->mask] = (struct siw_rdmap_sent){ user_data, tag };
}
/*
 * Parses a received error message. Returns 1 if *event is filled, which must still be checked by
 * siw_rdmap_dgram_match_error_to_sent(); 0 if the error message was dropped.
 */
int siw_rdmap_dgram_parse_error_message(struct siw_rdmap_dgram *dgram,
					const struct siw_ddp_seg *seg,
					struct siw_rdmap_event *event);
/* Copies the header of the segment to *event as the quoted header. */
void siw_rdmap_copy_quoted_header_to_event(struct siw_rdmap_event *event,
					   const struct siw_ddp_seg *seg);
/* Fills *event as event BAD_MSG for a message that violated the protocol. */
void siw_rdmap_dgram_fill_bad_message_event(const struct siw_ddp_seg *seg, struct siw_wire_err err,
					    struct siw_rdmap_event *event);

/* ---- streams --------------------------------------------------------------------------------- */

/*
 * Size of the buffer for a peer's Terminate. The Terminates of this end are shorter; a peer's
 * Terminate may end with unknown octets.
 */
#define SIW_RDMAP_TERM_BUF 256

/* An RDMA Read or atomic of this end, from its request to its response. */
struct siw_rdmap_read {
	uint64_t user_data;
	uint32_t stag;	 /* STag of the sink, or 0 */
	uint32_t length; /* in octets */
	uint32_t placed; /* octets of the response placed; used only by the receiving side */
	/*
	 * the upper layer does not wait for the Read, which is an RTR, or was sent by
	 * siw_rdmap_send_confirming_read()
	 */
	bool silent;
	bool confirm; /* the Read was sent by siw_rdmap_send_confirming_read() */
	/* an error message has refused the request; used only by the receiving side */
	bool refused;
	bool atomic; /* the request is an atomic, whose result is written to sgl */
	int nsge;
	const struct siw_sge *sgl;
	/* octets of the request, valid until TCP has accepted them */
	union siw_rdmap_wire_atomic_request wire;
	struct siw_sge wire_sge;
};

/* An RDMA Read or atomic of the peer, from its request until its response is framed. */
struct siw_rdmap_request {
	union siw_rdmap_wire_atomic_request wire;
	bool atomic;
	/* the atomic was executed, but its response may still have to wait */
	bool carried_out;
	struct siw_rdmap_wire_atomic_response response; /* the response to an executed atomic */
	struct siw_sge response_sge;
	struct siw_ddp_seg seg; /* the request's segment, for a Terminate to quote */
	uint64_t buffer;	/* index of the request's buffer of queue 1 */
	/*
	 * on reliable datagrams: the request was refused, and an error message with err is sent
	 * instead of the response
	 */
	bool refused;
	struct siw_wire_err err;
	bool held; /* the response waits until the Send with the MSN in behind is received */
	uint32_t behind;
};

/* The first error that this end has found on a stream, which the Terminate reports. */
struct siw_rdmap_fault {
	struct siw_wire_err err;
	bool has_seg, has_read;
	/*
	 * the stream is on reliable datagrams: only the message that err concerns fails, so a
	 * segment is always quoted
	 */
	bool of_rd;
	struct siw_ddp_seg seg;
	struct siw_rdmap_wire_read wire;
};

enum siw_rdmap_fault_state {
	SIW_RDMAP_FAULT_NONE = 0,
	SIW_RDMAP_FAULT_WRITING = 1, /* the sending or the receiving side is writing the fault */
	SIW_RDMAP_FAULT_SET = 2,     /* the fault is complete and does not change any more */
};

enum siw_rdmap_term_state {
	SIW_RDMAP_TERM_NONE = 0,
	SIW_RDMAP_TERM_COUNTS = 1, /* the last delivery counts are being sent */
	SIW_RDMAP_TERM_DUE = 2,	   /* delivery counts are sent: only the Terminate may follow */
	SIW_RDMAP_TERM_FRAMED = 3, /* MPA has the Terminate in a batch that is not sent yet */
	SIW_RDMAP_TERM_SENT = 4,   /* TCP has accepted the Terminate */
};

/* The receive state of an RDMAP stream; under the progress lock. */
struct siw_rdmap_rx {
	bool over;	      /* event TERMINATED, ERROR or CLOSED was returned */
	bool first_fpdu_seen; /* the peer's first FPDU has arrived, or is not awaited */
	bool seg_pending;     /* seg was checked and is not completely placed */
	bool rtr;	      /* seg is the peer's RTR */
	bool discard;	      /* the payload of seg was not requested by a Read, and is discarded */
	bool unexpected;      /* Sends wait for receives, or requests wait for Sends */
	/*
	 * number of requests received; all but the first stream->requests_released of them wait for
	 * earlier Sends
	 */
	uint32_t requests_in;
	uint8_t want_rtr;
	bool counting;	 /* the peer wants delivery counts */
	uint32_t writes; /* number of Writes placed, not counting an RTR */
	bool writing;	 /* the last segment of a Write has not arrived yet */
	/*
	 * octets of the last Write, or 0 if a message for queue 0 has arrived since the Write began
	 */
	uint32_t written;
	bool write_refused; /* the last Write was refused, so its immediate data is refused, too */
	struct siw_ddp_seg seg;
};

/* Forgets the last Write, because the next message does not directly follow a Write. */
static inline void siw_rdmap_forget_write(struct siw_rdmap_rx *rx)
{
	rx->written = 0;
	rx->write_refused = false;
}

/* The send state of an RDMAP stream; under the send lock. */
struct siw_rdmap_tx {
	bool active;   /* ddp has a message that is not completely framed */
	bool response; /* the message being framed is the response to the peer's oldest request */
	/* an operation of the user had to wait while a response was framed, and is framed next */
	bool waiting;
	bool imm_due; /* the message being framed is a Write, to be followed by immediate data */
	/*
	 * the opcode of the immediate data that follows the Write; the octets of the immediate data
	 * are in imm_sge
	 */
	uint8_t imm_opcode;
	uint8_t term; /* enum siw_rdmap_term_state */
	/*
	 * RD: the rest of a message cannot be sent, so the stream has to end
	 * (siw_rdmap_rd_has_unfinishable_message())
	 */
	bool torn;
	/* announce the wish for delivery counts and the rnr_retry before the next message */
	bool announce;
	/* TO of the message (SIW_RDMAP_REQUESTER) that makes this announcement */
	uint32_t announcement;
	/* the last delivery count sent, in the format of stream->deliverable */
	_Atomic uint64_t reported;
	uint8_t term_out[SIW_RDMAP_TERM_MAX];
	struct siw_sge term_sge;
	struct siw_sge imm_sge;
	uint64_t *imm_end; /* points to stamp.end of the operation that has Immediate Data */
};

/* A queued error message to be sent to the peer on reliable datagrams. */
struct siw_rdmap_error_report {
	struct siw_link link;
	struct siw_rdmap_fault fault;
};

/* An RDMAP endpoint of reliable datagrams (RD). */
struct siw_rdmap_rd {
	struct siw_mem *mem;
	struct siw_ddp_rd *ddp;
	uint32_t user_octets;
	/*
	 * NULL: no Write-Records are accepted. The progress lock protects this member and the next.
	 */
	struct siw_rdmap_records *records;
	uint32_t records_polled; /* number of reported Write-Records that were polled */
	uint32_t record_id;	 /* id of the next Write-Record to send; under the send lock */
	enum siw_rdmap_rd_mode mode;
	struct siw_rdmap_start start;	 /* written with both locks held */
	bool paused;			 /* a segment is paused; under the progress lock */
	struct siw_rdmap_stream *served; /* the stream of the last event; under the progress lock */
	/* innermost lock: protects the creation of streams, and their queues of error messages */
	siw_lock_t lock;
	struct siw_link streams;
	_Atomic uint32_t n_streams;
	/*
	 * the last address passed to siw_rdmap_rd_get_or_create_stream(), and the stream returned
	 * for that address; under the send lock
	 */
	struct siw_addr last_addr;
	struct siw_rdmap_stream *last;
};

/*
 * The state of a Write-Record that is being received on reliable datagrams; under the progress
 * lock.
 */
struct siw_rdmap_recording {
	bool on; /* a Write-Record is partially received */
	bool solicited;
	uint32_t id, length, stag;
	uint64_t to, next; /* tagged offsets of the first octet, and of the next octet expected */
};

/* The additional state of an RDMAP stream on reliable datagrams. */
struct siw_rdmap_of_rd {
	struct siw_rdmap_rd *rd; /* NULL: the stream is a connection */
	const struct siw_addr *peer;
	struct siw_link in_rd; /* link in the endpoint's streams; under the endpoint's lock */
	_Atomic bool used;     /* the stream was used since the last search for idle streams */
	/* a message was partially received at the last search for idle streams */
	bool partly_received;
	struct siw_link
		reports; /* list of struct siw_rdmap_error_report; under the endpoint's lock */
	_Atomic uint32_t n_reports;
	struct siw_rdmap_recording recording;
	/*
	 * responding: a response or an error message is partially framed; response: the message
	 * being framed is a response. Under the send lock.
	 */
	bool responding, response;
	/* header of the Write-Record being sent; under the send lock */
	uint8_t record_head[SIW_DDP_ULP_TAGGED];
};

struct siw_rdmap_stream {
	struct siw_mem *mem;
	const struct siw_rdmap_stream_type *type;
	struct siw_ddp_stream *ddp;
	struct siw_rdmap_traffic traffic;
	uint32_t pd;
	uint32_t denied; /* protected by the progress lock */
	bool started;
	bool private, counts, offers; /* copies of the members of struct siw_rdmap_start */
	uint16_t ord;
	uint32_t read_mask, request_mask;
	struct siw_rdmap_read *reads;
	struct siw_rdmap_request *requests;
	struct siw_mem_buffer_queue *q_read, *q_term, *q_atomic;
	/* the receive buffers of queue 1 */
	union siw_rdmap_wire_atomic_request *read_bufs;
	/* the receive buffer of queue 2 */
	uint8_t term_in[SIW_RDMAP_TERM_BUF];
	/* the receive buffer of queue 3 */
	struct siw_rdmap_wire_atomic_response atomic_response_in;
	struct siw_rdmap_fault fault;
	_Atomic uint32_t fault_state;
	/*
	 * a Read of this end has requested delivery counts; set by the sending side, read by both
	 * sides
	 */
	_Atomic bool asked;
	/* only a Terminate may be sent from now on; read by the sending side */
	_Atomic bool closing;

	/*
	 * Positions in the rings `reads` and `requests`. Entries are added to `reads` under the
	 * send lock and removed under the progress lock; with `requests` it is the other way round.
	 */
	_Alignas(64) _Atomic uint32_t
		reads_begun;		/* position in `reads`; stored under the send lock */
	_Atomic uint32_t requests_done; /* position in `requests`; stored under the send lock */
	_Alignas(64) _Atomic uint32_t
		reads_done; /* position in `reads`; stored under the progress lock */
	_Atomic uint32_t
		requests_released; /* position in `requests`; stored under the progress lock */
	/* the delivery count to report, sent as the TO of a Write; stored under the progress lock */
	_Atomic uint64_t deliverable;

	_Alignas(64) struct siw_rdmap_rx rx;
	_Alignas(64) struct siw_rdmap_tx tx;
	struct siw_rdmap_of_rd of_rd;
	_Alignas(16) char user[]; /* memory returned by siw_rdmap_rd_user_memory() */
};

/*
 * The functions that differ between a connection (rdmap_connection.c), which ends with its first
 * error, and a stream on reliable datagrams (rdmap_rd.c), on which an error ends only one message.
 */
struct siw_rdmap_stream_type {
	/* ---- receiving: progress lock ---- */

	/*
	 * Whether a tagged segment may have the opcode; on RD, the PSN space of the segment
	 * decides.
	 */
	bool (*tagged_expects)(const struct siw_rdmap_stream *stream, uint8_t opcode);
	/*
	 * Whether a segment of a private message has a known subcode. Always true on a connection,
	 * where the subcode is checked later.
	 */
	bool (*knows_private)(const struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg);
	/*
	 * private_expects checks a segment of a tagged private message, and returns false with *err
	 * if it is invalid; private_placed handles a placed segment.
	 */
	bool (*private_expects)(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
				struct siw_wire_err *err);
	void (*private_placed)(struct siw_rdmap_stream *stream, bool done,
			       struct siw_rdmap_event *event);
	/* Handles an invalid segment of the peer. Returns 1 if *event is filled. */
	int (*segment_failed)(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event,
			      struct siw_wire_err err, const struct siw_ddp_seg *seg);
	/* Handles a complete message that could not be delivered; *event has kind BAD_RECV. */
	void (*delivery_failed)(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event,
				struct siw_wire_err err, const struct siw_ddp_seg *seg);
	/*
	 * Handles the last request received, which was invalid. wire: the header of the request to
	 * quote in the error message, or NULL. Returns whether the stream continues.
	 */
	bool (*request_failed)(struct siw_rdmap_stream *stream, struct siw_rdmap_request *request,
			       struct siw_wire_err err, const struct siw_rdmap_wire_read *wire);
	/* Fills the remaining fields of *event for the last request received. */
	void (*request_received)(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);
	/* Handles a received Terminate, from which *event was filled. Returns 1. */
	int (*terminate_received)(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);
	/* Called when the response to a request of this end has arrived, or will not arrive. */
	void (*response_received)(struct siw_rdmap_stream *stream);

	/* ---- sending: send lock ---- */

	/* Begins an operation with opcode PRIVATE. Returns the same values as siw_ddp_tx(). */
	int (*begin_private)(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op);
	/*
	 * Sends the Read or Atomic Request in msg, and begins to expect its response. Returns the
	 * same values as siw_ddp_tx().
	 */
	int (*request_send)(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read,
			    struct siw_ddp_msg *msg);
	/*
	 * Frames messages and responses. Returns 1 if all are framed; 0 if some are left; -errno.
	 */
	int (*frame)(struct siw_rdmap_stream *stream);
	/* Handles an operation in progress that cannot be finished. Returns -EACCES. */
	int (*send_failed)(struct siw_rdmap_stream *stream);
	/*
	 * Whether a lost peer is reported only by an event, and not by the operation that finds the
	 * peer lost.
	 */
	bool loss_is_event;
};

extern const struct siw_rdmap_stream_type siw_rdmap_connection, siw_rdmap_rd_type;

/*
 * Allocates an RDMAP stream that has no DDP stream yet (rdmap_stream.c). user_octets: size of the
 * memory returned by siw_rdmap_rd_user_memory().
 */
struct siw_rdmap_stream *siw_rdmap_stream_new(uint32_t user_octets);
void siw_rdmap_stream_free(struct siw_rdmap_stream *stream);

/* ---- rdmap_rx.c: progress lock --------------------------------------------------------------- */

/*
 * Checks segment rx.seg, which DDP has found, according to RFC5040-7.2-02, -03, and the
 * requirements of each opcode. Returns false with *err if the segment is invalid.
 */
bool siw_rdmap_rx_check_segment(struct siw_rdmap_stream *stream, struct siw_wire_err *err);
/*
 * Places segment rx.seg, and delivers its message if the segment is the last. Returns 1 if *event
 * is filled; 0 if the segment has not arrived completely; or the -errno of siw_ddp_rx_place.
 */
int siw_rdmap_rx_place_segment(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);
/* Fills *event for a Send that was placed completely. */
void siw_rdmap_fill_received_send_event(struct siw_rdmap_stream *stream,
					const struct siw_ddp_seg *seg,
					const struct siw_ddp_delivery *delivery,
					struct siw_rdmap_event *event);
/* Clears the fields of *event that a caller may read in every event. */
void siw_rdmap_reset_event_fields(struct siw_rdmap_event *event);
extern const struct siw_wire_err siw_rdmap_no_rtr_match;

/* ---- rdmap_connection.c ---------------------------------------------------------------------- */

/*
 * Returns 1 and fills *event from the stream's fault, or returns 0 if no fault is set yet. Progress
 * lock held.
 */
int siw_rdmap_fill_first_error_event(struct siw_rdmap_stream *stream,
				     struct siw_rdmap_event *event);

/* ---- rdmap_tx.c ------------------------------------------------------------------------------ */

/*
 * Continues to frame the user's message. Returns 1 if the message is completely framed; 0 if octets
 * are left; -errno.
 */
int siw_rdmap_tx_continue(struct siw_rdmap_stream *stream);

/* ---- the other files ------------------------------------------------------------------------- */

/* Records the first error of a connection (rdmap_terminate.c); seg and wire may be NULL. */
void siw_rdmap_record_first_error(struct siw_rdmap_stream *stream, struct siw_wire_err err,
				  const struct siw_ddp_seg *seg,
				  const struct siw_rdmap_wire_read *wire);
/* Whether a fault of the stream is set; if so, stream->fault may be read. */
static inline bool siw_rdmap_fault_is_set(const struct siw_rdmap_stream *stream)
{
	/* Memory ordering: pairs with the store in siw_rdmap_record_first_error(). */
	return atomic_load_explicit(&stream->fault_state, memory_order_acquire) ==
	       SIW_RDMAP_FAULT_SET;
}
/*
 * Builds the Terminate Message for a fault in out. Returns the length of the message, at most
 * SIW_RDMAP_TERM_MAX octets.
 */
uint32_t siw_rdmap_terminate_build(const struct siw_rdmap_fault *fault, uint8_t *out);
/* Builds the Terminate Message in *msg. The stream stores the octets of the Terminate. */
void siw_rdmap_terminate_build_msg(struct siw_rdmap_stream *stream,
				   const struct siw_rdmap_fault *fault, struct siw_ddp_msg *msg);
/*
 * Fills *event from len octets of a received Terminate Message, which may be too short or have
 * invalid contents.
 */
void siw_rdmap_terminate_parse(const uint8_t *buf, size_t len, struct siw_rdmap_event *event);

enum siw_rdmap_read_kind {
	SIW_RDMAP_READ_USERS,
	SIW_RDMAP_READ_RTR, /* a Read that is an RTR; not limited by ORD */
	SIW_RDMAP_READ_CONFIRM,
};

static inline uint8_t siw_rdmap_opcode_of(const struct siw_ddp_seg *seg)
{
	return seg->ulp_octet & SIW_RDMAP_OP_MASK;
}

static inline bool siw_rdmap_is_immediate(uint8_t opcode)
{
	return opcode == SIW_RDMAP_IMMEDIATE || opcode == SIW_RDMAP_IMMEDIATE_SE;
}

/*
 * Begins a Read of this end (rdmap_read.c). Returns the same values as siw_ddp_tx(). Send lock
 * held.
 */
int siw_rdmap_begin_read(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op,
			 enum siw_rdmap_read_kind kind);
/*
 * siw_rdmap_check_read_response() checks a segment of a Read Response, and returns false with *err
 * if it is invalid. siw_rdmap_count_read_octets() counts a placed segment; the last segment ends
 * the oldest Read. Progress lock held.
 */
bool siw_rdmap_check_read_response(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
				   struct siw_wire_err *err);
/*
 * Ends the oldest request, whose response has arrived, and fills *event if the request has a
 * completion.
 */
void siw_rdmap_complete_read(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read,
			     struct siw_rdmap_event *event);
void siw_rdmap_count_read_octets(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
				 struct siw_rdmap_event *event);
/* Ends all outstanding Reads and frees their sinks. Both locks held. */
void siw_rdmap_free_all_reads(struct siw_rdmap_stream *stream);
/* Returns the slot for the next Read or Atomic Request, or NULL if the limit is reached. */
struct siw_rdmap_read *siw_rdmap_next_read_slot(struct siw_rdmap_stream *stream);
/*
 * Sends the Read or Atomic Request of length octets in read->wire. Returns the same values as
 * siw_ddp_tx().
 */
int siw_rdmap_send_read_or_atomic_request(struct siw_rdmap_stream *stream,
					  struct siw_rdmap_read *read, struct siw_rdmap_op *op,
					  uint32_t length);
/*
 * siw_rdmap_oldest_outstanding_read() returns the oldest outstanding request, or NULL;
 * siw_rdmap_pop_oldest_read() ends the request. Progress lock held.
 */
struct siw_rdmap_read *siw_rdmap_oldest_outstanding_read(struct siw_rdmap_stream *stream);
void siw_rdmap_pop_oldest_read(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read);
/*
 * Functions for the member request_send of struct siw_rdmap_stream_type. siw_rdmap_store_begun_read_count()
 * makes the next request visible to the receiving side, which then expects a response;
 * siw_rdmap_free_read_sink() frees the sink of a request that cannot be sent.
 */
void siw_rdmap_store_begun_read_count(struct siw_rdmap_stream *stream);
void siw_rdmap_free_read_sink(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read);
/*
 * Translates the DDP error codes for the memory that a request of the peer accesses to RDMAP error
 * codes.
 */
struct siw_wire_err siw_rdmap_map_ddp_to_rdmap_error(struct siw_wire_err err);

/*
 * Begins an atomic of this end (rdmap_atomic.c). Returns the same values as siw_ddp_tx(). Send lock
 * held.
 */
int siw_rdmap_begin_atomic(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op);
/*
 * Checks a segment of an Atomic Response, and returns false with *err if it is invalid. Progress
 * lock held.
 */
bool siw_rdmap_check_atomic_response(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
				     struct siw_wire_err *err);
/*
 * Ends the oldest request with the response of length octets in stream->atomic_response_in. Returns
 * false with *err if the response is invalid.
 */
bool siw_rdmap_complete_atomic(struct siw_rdmap_stream *stream, uint32_t length,
			       struct siw_rdmap_event *event, struct siw_wire_err *err);
/* Whether the atomic that the peer requests is allowed; if not, *err is set. Progress lock held. */
bool siw_rdmap_atomic_is_allowed(struct siw_rdmap_stream *stream,
				 const struct siw_rdmap_wire_atomic *wire,
				 struct siw_wire_err *err);
/*
 * Executes an atomic of the peer, and begins the response. Returns the same values as siw_ddp_tx().
 * Send lock held.
 */
int siw_rdmap_execute_atomic_and_respond(struct siw_rdmap_stream *stream,
					 struct siw_rdmap_request *request,
					 struct siw_wire_err *err);

/*
 * Whether a delivery count has to be sent to the peer (rdmap_counts.c). One of the two locks held.
 */
static inline bool siw_rdmap_has_unsent_count(const struct siw_rdmap_stream *stream)
{
	/* Memory ordering: pairs with the store in siw_rdmap_count_update(). */
	return atomic_load_explicit(&stream->deliverable, memory_order_acquire) !=
	       atomic_load_explicit(&stream->tx.reported, memory_order_relaxed);
}
/*
 * Updates the delivery count after a Send was received or a Write placed, if the peer wants counts.
 * Progress lock held.
 */
static inline void siw_rdmap_count_update(struct siw_rdmap_stream *stream)
{
	uint64_t sends;

	if (__builtin_expect(!stream->rx.counting, 1))
		return;
	sends = siw_ddp_last_delivered_msn(stream->ddp);
	atomic_store_explicit(&stream->deliverable,
			      sends << SIW_RDMAP_SENDS_SHIFT | stream->rx.writes,
			      memory_order_release);
}
/*
 * Begins the tagged private messages (delivery counts and requester messages) that precede other
 * messages. Returns 1 if none of them is left; 0 if one is not completely framed yet; -errno. Send
 * lock held.
 */
int siw_rdmap_send_pending_private_msgs(struct siw_rdmap_stream *stream);
static inline int siw_rdmap_send_tagged_private_msgs(struct siw_rdmap_stream *stream)
{
	return stream->tx.announce || siw_rdmap_has_unsent_count(stream)
		       ? siw_rdmap_send_pending_private_msgs(stream)
		       : 1;
}
/*
 * Handles a Read Request that may request delivery counts, if this end offers delivery counts.
 * Progress lock held.
 */
void siw_rdmap_handle_delivery_counts_request(struct siw_rdmap_stream *stream,
					      const struct siw_rdmap_wire_read *wire);
/*
 * siw_rdmap_check_tagged_private_msg() checks a tagged private message of a connection, and returns
 * false with *err if the message is invalid. siw_rdmap_handle_tagged_private_msg() fills *event
 * from the message. Progress lock held.
 */
bool siw_rdmap_check_tagged_private_msg(struct siw_rdmap_stream *stream,
					const struct siw_ddp_seg *seg, struct siw_wire_err *err);
void siw_rdmap_handle_tagged_private_msg(struct siw_rdmap_stream *stream,
					 const struct siw_ddp_seg *seg,
					 struct siw_rdmap_event *event);

/*
 * Stores a Read or Atomic Request of the peer (rdmap_read.c). Returns false if the request is
 * invalid and the fault of the stream is set. Progress lock held.
 */
bool siw_rdmap_store_request(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
			     const struct siw_ddp_delivery *delivery);
/*
 * Releases the responses that need not wait for earlier Sends any more. Returns whether a response
 * was released.
 */
bool siw_rdmap_release_waiting_responses(struct siw_rdmap_stream *stream);
/*
 * Begins the response to the oldest request of the peer. Returns the same values as siw_ddp_tx().
 * Send lock held.
 */
int siw_rdmap_begin_oldest_response(struct siw_rdmap_stream *stream, struct siw_wire_err *err);
/* Returns the length of the response to the oldest request of the peer, in octets. */
uint32_t siw_rdmap_oldest_response_octets(struct siw_rdmap_stream *stream);
void siw_rdmap_finish_oldest_response(struct siw_rdmap_stream *stream);
struct siw_rdmap_request *siw_rdmap_oldest_request(struct siw_rdmap_stream *stream);
/*
 * Changes the header of a Read Request as if its first `octets` octets had not been requested. The
 * Terminate for an error in the middle of a Read Response quotes the changed header (RFC 5040
 * section 4.8).
 */
void siw_rdmap_advance_read_request(struct siw_rdmap_wire_read *wire, uint64_t octets);

/*
 * Queues an error message to an RD peer, if the queue has room (rdmap_rd_err.c). At least one lock
 * held.
 */
void siw_rdmap_rd_queue_error(struct siw_rdmap_stream *stream, struct siw_wire_err err,
			      const struct siw_ddp_seg *seg);
/* The member frame of struct siw_rdmap_stream_type for RD: frames messages and responses. */
int siw_rdmap_rd_frame_messages(struct siw_rdmap_stream *stream);
/* The member request_failed of struct siw_rdmap_stream_type for RD: handles an invalid request. */
bool siw_rdmap_rd_handle_failed_request(struct siw_rdmap_stream *stream,
					struct siw_rdmap_request *request, struct siw_wire_err err,
					const struct siw_rdmap_wire_read *wire);
/*
 * Begins the error message for a refused request of the peer. Returns the same values as
 * siw_ddp_tx(). Send lock held.
 */
int siw_rdmap_rd_report_refused_request(struct siw_rdmap_stream *stream,
					const struct siw_rdmap_request *request,
					struct siw_wire_err *err);
/* Handles the refusal of a message of the peer. Returns 1 and *event. Progress lock held. */
int siw_rdmap_rd_handle_refused_segment(struct siw_rdmap_stream *stream,
					struct siw_rdmap_event *event, struct siw_wire_err err,
					const struct siw_ddp_seg *seg);
/*
 * Handles a complete message that could not be delivered: turns *event into BAD_RECV, and queues
 * an error message to the peer. Progress lock held.
 */
void siw_rdmap_rd_handle_failed_delivery(struct siw_rdmap_stream *stream,
					 struct siw_rdmap_event *event, struct siw_wire_err err,
					 const struct siw_ddp_seg *seg);
/*
 * Turns *event into REFUSED if the last RDMA request that the peer sent (a Read, for example) was
 * refused. Progress lock held.
 */
void siw_rdmap_rd_fill_refused_request_event(struct siw_rdmap_stream *stream,
					     struct siw_rdmap_event *event);
/* Fills *event from an error message of the peer in stream->term_in. Progress lock held. */
int siw_rdmap_rd_handle_peer_error(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);
/*
 * Begins a Write-Record on RD (rdmap_record_rd.c). Returns the same values as siw_ddp_tx(). Send
 * lock held.
 */
int siw_rdmap_rd_write_record_begin_send(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op);
/*
 * siw_rdmap_rd_write_record_check_segment() checks a segment of a Write-Record on RD, and returns
 * false with *err if it is invalid. siw_rdmap_rd_handle_placed_write_record() is called after a
 * segment was placed. If the segment is the last of its message (done), the function adds the
 * Write-Record to the table and fills *event as event RECORD. Progress lock held.
 */
bool siw_rdmap_rd_write_record_check_segment(struct siw_rdmap_stream *stream,
					     const struct siw_ddp_seg *seg,
					     struct siw_wire_err *err);
void siw_rdmap_rd_handle_placed_write_record(struct siw_rdmap_stream *stream, bool done,
					     struct siw_rdmap_event *event);
/* Returns the first id of an endpoint's Write-Records (DGRAM-REC-2). */
uint32_t siw_rdmap_write_record_choose_first_id(void);
/*
 * siw_rdmap_write_record_table_new() allocates a table of reported Write-Records;
 * siw_rdmap_write_record_table_add() adds a Write-Record and returns its number.
 */
struct siw_rdmap_records *siw_rdmap_write_record_table_new(uint32_t max);
uint64_t siw_rdmap_write_record_table_add(struct siw_rdmap_records *r,
					  const struct siw_rdmap_record *rec);
/* Whether the table of Write-Records is full of reports that were not polled. */
bool siw_rdmap_is_write_record_table_full(const struct siw_rdmap_records *r, uint32_t polled);
const struct siw_rdmap_record *siw_rdmap_write_record_table_find(const struct siw_rdmap_records *r,
								 uint64_t number);
/*
 * The header at the start of each segment of a Write-Record. siw_rdmap_write_record_put_header()
 * writes the header; siw_rdmap_write_record_parse_header() parses a header, and returns false if it
 * is invalid.
 */
#define SIW_RDMAP_RECORD_HEAD 20
struct siw_rdmap_record_head {
	uint32_t id, length;
	uint64_t to;
	bool solicited;
};
void siw_rdmap_write_record_put_header(const struct siw_rdmap_record_head *head, uint8_t *out);
bool siw_rdmap_write_record_parse_header(const uint8_t *octets, uint32_t n,
					 struct siw_rdmap_record_head *head);
/*
 * Whether a segment of a Write-Record lies within its message, and has the Last flag exactly if the
 * segment is the last.
 */
bool siw_rdmap_write_record_segment_fits(const struct siw_ddp_seg *seg,
					 const struct siw_rdmap_record_head *head);

/*
 * Marks the request with the given MSN as refused: it will not get a response (rdmap_read.c).
 * Progress lock held.
 */
void siw_rdmap_mark_read_refused(struct siw_rdmap_stream *stream, uint32_t msn);
/*
 * Ends the oldest Read or atomic of this end, which gets no valid response. Returns true and the
 * user_data of the request, or false if there is no request.
 */
bool siw_rdmap_abandon_oldest_read(struct siw_rdmap_stream *stream, uint64_t *user_data);

#endif
