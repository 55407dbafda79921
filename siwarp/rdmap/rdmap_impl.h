/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rdmap/rdmap_impl.h - internal interface between the files of this folder. */
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
 * Each update of a shared counter costs an atomic instruction. So messages are counted per
 * endpoint, each direction under its own lock, and added to the shared counters when a receive
 * finds no message.
 */
struct siw_rdmap_flow {
	_Atomic uint64_t msgs, octets;
};

struct siw_rdmap_traffic {
	struct siw_rdmap_flow sent;	/* protected by the send lock */
	struct siw_rdmap_flow received; /* progress lock, also for the two fields below */
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

/* Counts a dropped message of this source. Allocates *sources for the first one. */
void siw_rdmap_sources_count(struct siw_rdmap_sources **sources, const struct siw_addr *source);
/* As siw_rdmap_dgram_drops(). */
int siw_rdmap_sources_query(const struct siw_rdmap_sources *sources, struct siw_source_drops *out,
			    int max);

/* ---- datagrams ------------------------------------------------------------------------------- */

/*
 * The queue number on datagrams: the RFC's queue number in the low two bits, then the indexes of
 * the destination and source among the queue pairs on their sockets (0 for the first).
 */
#define SIW_RDMAP_DQN_QUEUE	 0x3u
#define SIW_RDMAP_DQN_DEST_SHIFT 8
#define SIW_RDMAP_DQN_SRC_SHIFT	 16
#define SIW_RDMAP_DQN_SRC(qn)	 ((qn) >> SIW_RDMAP_DQN_SRC_SHIFT & 0xff)
#define SIW_RDMAP_DQN_DEST(qn)	 ((qn) >> SIW_RDMAP_DQN_DEST_SHIFT & 0xff)
#define SIW_RDMAP_DQN_UNUSED	 0xff0000fcu
#define SIW_RDMAP_INDEX_SHIFT	 16 /* bit position of the index in a QP number */

/* A message sent recently: a hash of its destination, and its user_data. */
struct siw_rdmap_sent {
	uint64_t user_data;
	uint32_t tag; /* 0: none */
};

/* Recently sent messages, indexed by MSN modulo the table size. Under the send lock. */
struct siw_rdmap_sents {
	uint32_t mask;
	uint32_t most; /* the maximum of mask */
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
	 * this endpoint has joined the socket of another endpoint, which receives there and reports
	 * only its own traffic counts
	 */
	bool joined;
	bool grh; /* each received message is preceded by a GRH */
	struct siw_rdmap_traffic traffic;
	/* Written by siw_rdmap_dgram_start() under the QP's send lock and the progress lock. */
	struct siw_mem_queue *recvs;
	uint32_t pd;
	uint32_t qkey;
	struct siw_rdmap_sents *sents;	   /* send lock; allocated with the first message */
	struct siw_rdmap_sources *dropped; /* protected by the progress lock */
	/* NULL: no Write-Records are accepted; under the progress lock */
	struct siw_rdmap_records *records;
	/* Write-Records sent; allocated with the first one; under the send lock. */
	struct siw_rdmap_record_sents *record_sents;
	uint32_t record_id;   /* id of the next Write-Record */
	uint32_t path_octets; /* user octets per datagram to address path */
	struct siw_addr path;
	uint64_t path_ns; /* when the path was last looked up */
};

/*
 * rdmap_record.c: handles a tagged segment for this endpoint. true: *event is filled; false: the
 * segment was dropped.
 */
bool siw_rdmap_record_in(struct siw_rdmap_dgram *dgram, const struct siw_ddp_seg *seg,
			 struct siw_rdmap_event *event);
/*
 * Copies a message's RDMAP header, if it is complete, to *event as quoted, with its id as
 * quoted_msn.
 */
void siw_rdmap_record_quote(const uint8_t *head, size_t len, struct siw_rdmap_event *event);
/* As siw_rdmap_dgram_sent(), for an error message that quotes a tagged header. */
bool siw_rdmap_record_sent(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_event *event,
			   uint64_t *user_data);

/*
 * A hash of a message's destination, Q_Key and queue number. An attacker that does not know the
 * Q_Key cannot forge an error message that matches the hash.
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

/* The QP number of a datagram's sender. */
static inline uint32_t siw_rdmap_src_qpn(const struct siw_addr *source, uint32_t qn)
{
	return ntohs(source->port_be) | SIW_RDMAP_DQN_SRC(qn) << SIW_RDMAP_INDEX_SHIFT;
}

/* ---- rdmap_datagram.c, for rdmap_group.c ----------------------------------------------------- */

/* How to handle a segment. */
enum siw_rdmap_dgram_action {
	SIW_RDMAP_TAKE,
	/* as TAKE; the first SIW_RDMAP_IMM_LEN octets are a header of this layer */
	SIW_RDMAP_TAKE_HEADED,
	SIW_RDMAP_DROP, /* dropped, and counted */
	SIW_RDMAP_ERROR_MESSAGE,
	SIW_RDMAP_VIOLATION,
};
/*
 * Checks a segment. WRONG, *err: the sender has the right Q_Key but violated the protocol, and gets
 * an error message; other senders get none. Error messages arrive on queue 2; a Terminate on any
 * queue counts as one, because no error message is sent about error messages.
 */
enum siw_rdmap_dgram_action siw_rdmap_dgram_check(const struct siw_rdmap_dgram *dgram,
						  const struct siw_ddp_seg *seg,
						  struct siw_wire_err *err);
/*
 * Places the current datagram of lower, which is the ddp endpoint of dgram or of its group, in the
 * endpoint's next receive. Returns as siw_ddp_dgram_place(). *event becomes a RECV, except with
 * -ENOBUFS; the caller has set its source, dest and user.
 */
int siw_rdmap_dgram_place(const struct siw_rdmap_dgram *dgram, struct siw_ddp_dgram *lower,
			  const struct siw_ddp_seg *seg, enum siw_rdmap_dgram_action verdict,
			  struct siw_rdmap_event *event);

/*
 * rdmap_datagram_err.c: allocates dgram->sents, or doubles it before this MSN is recorded. Does
 * nothing if there is no memory.
 */
void siw_rdmap_sents_grow(struct siw_rdmap_dgram *dgram, uint32_t msn);
/* Records that the message with this MSN was sent. */
static inline void siw_rdmap_sent_record(struct siw_rdmap_dgram *dgram, uint32_t msn, uint32_t tag,
					 uint64_t user_data)
{
	struct siw_rdmap_sents *s = dgram->sents;

	/*
	 * The table grows on demand, because there may be thousands of endpoints that have sent
	 * only a few messages each.
	 */
	if (__builtin_expect(!s || (!(msn & s->mask) && s->mask < s->most), 0)) {
		siw_rdmap_sents_grow(dgram, msn);
		s = dgram->sents;
		if (!s) /* no memory: later reports about this message are dropped */
			return;
	}
	s->sent[msn & s->mask] = (struct siw_rdmap_sent){ user_data, tag };
}
/*
 * Parses an error message. 1: *event is filled, and must still be checked by
 * siw_rdmap_dgram_sent(); 0: the message was dropped.
 */
int siw_rdmap_dgram_error_in(struct siw_rdmap_dgram *dgram, const struct siw_ddp_seg *seg,
			     struct siw_rdmap_event *event);
/* Copies the segment's header to *event as quoted. */
void siw_rdmap_quote(struct siw_rdmap_event *event, const struct siw_ddp_seg *seg);
/* Fills *event for a message that violated the protocol. */
void siw_rdmap_dgram_fill_error(const struct siw_ddp_seg *seg, struct siw_wire_err err,
				struct siw_rdmap_event *event);

/* ---- streams --------------------------------------------------------------------------------- */

/*
 * Size of the buffer for a peer's Terminate. This end's Terminates are shorter; a peer's may end
 * with unknown octets.
 */
#define SIW_RDMAP_TERM_BUF 256

/* An RDMA Read or atomic of this end, from its request to its response. */
struct siw_rdmap_read {
	uint64_t user_data;
	uint32_t stag;	 /* STag of the sink, or 0 */
	uint32_t length; /* in octets */
	uint32_t placed; /* octets of the response placed; used only by the receiving side */
	/* the layer above does not wait for it: an RTR, or from siw_rdmap_confirm() */
	bool silent;
	bool confirm; /* from siw_rdmap_confirm() */
	bool refused; /* an error message named this request; used only by the receiving side */
	bool atomic;  /* an atomic, whose result is written to sgl */
	int nsge;
	const struct siw_sge *sgl;
	union siw_rdmap_wire_atomic_request wire; /* the request; valid until TCP has accepted it */
	struct siw_sge wire_sge;
};

/* An RDMA Read or atomic of the peer, from its request until its response is framed. */
struct siw_rdmap_request {
	union siw_rdmap_wire_atomic_request wire;
	bool atomic;
	/* the atomic was executed; its response may still have to wait for memory */
	bool carried_out;
	struct siw_rdmap_wire_atomic_response response; /* the response to an executed atomic */
	struct siw_sge response_sge;
	struct siw_ddp_seg seg; /* the request's segment, for a Terminate to quote */
	uint64_t buffer;	/* index of the request's buffer of queue 1 */
	/* on reliable datagrams: an error message with err is sent instead of the response */
	bool refused;
	struct siw_wire_err err;
	bool held; /* the response waits until the Send with MSN behind is received */
	uint32_t behind;
};

/* The first error that this end has found, which its Terminate reports. */
struct siw_rdmap_fault {
	struct siw_wire_err err;
	bool has_seg, has_read;
	/*
	 * the stream is on reliable datagrams: only the message that err concerns ends, so a
	 * segment is always quoted
	 */
	bool of_rd;
	struct siw_ddp_seg seg;
	struct siw_rdmap_wire_read wire;
};

enum siw_rdmap_fault_state {
	SIW_RDMAP_FAULT_NONE = 0,
	SIW_RDMAP_FAULT_WRITING = 1, /* one side is writing fault */
	SIW_RDMAP_FAULT_SET = 2,     /* fault is complete, and constant from now on */
};

enum siw_rdmap_term_state {
	SIW_RDMAP_TERM_NONE = 0,
	SIW_RDMAP_TERM_COUNTS = 1, /* the last delivery counts are being sent */
	SIW_RDMAP_TERM_DUE = 2,	   /* the Terminate is next; nothing else may be sent */
	SIW_RDMAP_TERM_FRAMED = 3, /* the Terminate is in mpa's batch */
	SIW_RDMAP_TERM_SENT = 4,   /* TCP has accepted the Terminate */
};

/* Receive state of a stream; under the progress lock. */
struct siw_rdmap_rx {
	bool over;	      /* TERMINATED, ERROR or CLOSED was returned */
	bool first_fpdu_seen; /* the peer's first FPDU has arrived, or is not awaited */
	bool seg_pending;     /* seg was checked and is not completely placed */
	bool rtr;	      /* seg is the peer's RTR */
	bool discard;	      /* the payload of seg was not requested by a Read, and is discarded */
	bool unexpected;      /* Sends wait for receives, or requests wait for Sends */
	/* number of requests received; those beyond stream->requests_released wait */
	uint32_t requests_in;
	uint8_t want_rtr;
	bool counting;	 /* the peer wants delivery counts */
	uint32_t writes; /* number of Writes placed, without an RTR */
	bool writing;	 /* the last segment of a Write has not arrived yet */
	/* Octets of the last Write, if no message for queue 0 has arrived since it began; else 0. */
	uint32_t written;
	bool write_refused; /* that Write was refused, so its immediate data is, too */
	struct siw_ddp_seg seg;
};

/* The next message does not directly follow a Write. */
static inline void siw_rdmap_forget_write(struct siw_rdmap_rx *rx)
{
	rx->written = 0;
	rx->write_refused = false;
}

/* Send state of a stream; under the send lock. */
struct siw_rdmap_tx {
	bool active;   /* ddp has a message that is not completely framed */
	bool response; /* that message is the response to the peer's oldest request */
	/* the user's operation had to wait for a response being framed, and has the next turn */
	bool waiting;
	bool imm_due; /* that message is a Write, to be followed by immediate data */
	/* the opcode of that immediate data; its octets are in imm_sge */
	uint8_t imm_opcode;
	uint8_t term; /* enum siw_rdmap_term_state */
	/* on reliable datagrams: a message cannot be finished (siw_rdmap_rd_is_torn()) */
	bool torn;
	bool announce;	       /* send announcement in front of the next message */
	uint32_t announcement; /* TO of the requester's message to send */
	/* the last delivery count sent, in the format of stream->taken */
	_Atomic uint64_t reported;
	uint8_t term_out[SIW_RDMAP_TERM_MAX];
	struct siw_sge term_sge;
	struct siw_sge imm_sge;
	uint64_t *imm_end; /* points to the end of the operation's stamp */
};

/* An error message to be sent to the peer. */
struct siw_rdmap_send_count {
	struct siw_link link;
	struct siw_rdmap_fault fault;
};

/* An endpoint of reliable datagrams. */
struct siw_rdmap_rd {
	struct siw_mem *mem;
	struct siw_ddp_rd *ddp;
	uint32_t user_octets;
	/* NULL: no Write-Records are accepted; progress lock, also for records_polled */
	struct siw_rdmap_records *records;
	uint32_t records_polled; /* how many of the reported Write-Records were polled */
	uint32_t record_id;	 /* id of the next Write-Record to send; under the send lock */
	enum siw_rdmap_rd_mode mode;
	struct siw_rdmap_start start;	 /* written with both locks held */
	bool paused;			 /* a segment is paused; under the progress lock */
	struct siw_rdmap_stream *served; /* the stream of the last event; under the progress lock */
	/* innermost lock: protects the creation of streams, and their queues of error messages */
	siw_lock_t lock;
	struct siw_link streams;
	_Atomic uint32_t n_streams;
	/* The last result of siw_rdmap_rd_stream(); under the send lock. */
	struct siw_addr last_addr;
	struct siw_rdmap_stream *last;
};

/* A Write-Record being received on reliable datagrams; progress lock. */
struct siw_rdmap_recording {
	bool on; /* a message is partly received */
	bool solicited;
	uint32_t id, length, stag;
	uint64_t to, next; /* tagged offsets of the first octet, and of the next octet expected */
};

/* Additional state of a stream on reliable datagrams. */
struct siw_rdmap_of_rd {
	struct siw_rdmap_rd *rd; /* NULL: the stream is a connection */
	const struct siw_addr *peer;
	struct siw_link in_rd; /* link in the endpoint's streams; under the endpoint's lock */
	_Atomic bool used;     /* the stream was used since the last sweep */
	bool partly_received;  /* a message was partly received at the last sweep */
	struct siw_link
		reports; /* list of struct siw_rdmap_send_count; under the endpoint's lock */
	_Atomic uint32_t n_reports;
	struct siw_rdmap_recording recording;
	/*
	 * responding: a response or an error message is partly framed; response: it is a response.
	 * Under the send lock.
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
	bool private, counts, offers; /* as in struct siw_rdmap_start */
	uint16_t ord;
	uint32_t read_mask, request_mask;
	struct siw_rdmap_read *reads;
	struct siw_rdmap_request *requests;
	struct siw_mem_queue *q_read, *q_term, *q_atomic;
	union siw_rdmap_wire_atomic_request *read_bufs;		  /* buffers of queue 1 */
	uint8_t term_in[SIW_RDMAP_TERM_BUF];			  /* buffer of queue 2 */
	struct siw_rdmap_wire_atomic_response atomic_response_in; /* buffer of queue 3 */
	struct siw_rdmap_fault fault;
	_Atomic uint32_t fault_state;
	/*
	 * A Read of this end has requested delivery counts. Set by the sending side, read by both.
	 */
	_Atomic bool asked;
	/* Only a Terminate may be sent any more. Read by the sending side. */
	_Atomic bool closing;

	/*
	 * Positions in the rings reads and requests. Each ring has one writer and one reader, the
	 * holders of the two locks.
	 */
	_Alignas(64) _Atomic uint32_t reads_begun; /* ring reads: stored under the send lock */
	_Atomic uint32_t requests_done;		   /* ring requests: stored under the send lock */
	_Alignas(64) _Atomic uint32_t reads_done;  /* ring reads: stored under the progress lock */
	/* ring requests: stored under the progress lock */
	_Atomic uint32_t requests_released;
	/* TO of the delivery count to report; stored under the progress lock */
	_Atomic uint64_t deliverable;

	_Alignas(64) struct siw_rdmap_rx rx;
	_Alignas(64) struct siw_rdmap_tx tx;
	struct siw_rdmap_of_rd of_rd;
	_Alignas(16) char user[]; /* memory returned by siw_rdmap_rd_user() */
};

/*
 * What differs between a connection (rdmap_stream.c), which ends with its first error, and a stream
 * on reliable datagrams (rdmap_rd.c), on which an error ends one message.
 */
struct siw_rdmap_stream_type {
	/* ---- receiving: progress lock ---- */

	/* Whether a tagged segment may have this opcode: on RD, its PSN space decides. */
	bool (*tagged_expects)(const struct siw_rdmap_stream *stream, uint8_t opcode);
	/* Whether a segment of a private message has a known subcode, if it can be told yet. */
	bool (*knows_private)(const struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg);
	/* Tagged private messages: checks a segment (false: *err); handles a placed one. */
	bool (*private_expects)(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
				struct siw_wire_err *err);
	void (*private_placed)(struct siw_rdmap_stream *stream, bool done,
			       struct siw_rdmap_event *event);
	/* Handles an invalid segment of the peer. 1: *event is filled. */
	int (*segment_failed)(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event,
			      struct siw_wire_err err, const struct siw_ddp_seg *seg);
	/* Handles a complete message that could not be delivered; *event is a BAD_RECV. */
	void (*delivery_failed)(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event,
				struct siw_wire_err err, const struct siw_ddp_seg *seg);
	/*
	 * Handles the last request received, which was invalid. wire: the header of the request to
	 * quote in the error message; NULL: none. Returns whether the stream continues.
	 */
	bool (*request_failed)(struct siw_rdmap_stream *stream, struct siw_rdmap_request *request,
			       struct siw_wire_err err, const struct siw_rdmap_wire_read *wire);
	/* Completes *event for the last request received. */
	void (*request_received)(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);
	/* Handles a Terminate, which *event was filled from. Returns 1. */
	int (*terminate_received)(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);
	/* The response to a request of this end has arrived, or will not arrive. */
	void (*response_received)(struct siw_rdmap_stream *stream);

	/* ---- sending: send lock ---- */

	/* Begins a PRIVATE operation. Returns as siw_ddp_tx(). */
	int (*begin_private)(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op);
	/*
	 * Sends the Read or Atomic Request in msg, and begins to expect its response. Returns as
	 * siw_ddp_tx().
	 */
	int (*request_send)(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read,
			    struct siw_ddp_msg *msg);
	/* Frames messages and responses. 1: everything is framed; 0: some is left; -errno. */
	int (*frame)(struct siw_rdmap_stream *stream);
	/* The operation in progress cannot be finished. Returns -EACCES. */
	int (*send_failed)(struct siw_rdmap_stream *stream);
	/* A lost peer is reported by an event alone, not by the operation that finds it lost. */
	bool loss_is_event;
};

extern const struct siw_rdmap_stream_type siw_rdmap_connection, siw_rdmap_rd_type;

/*
 * rdmap_stream.c: allocates a stream without a ddp stream. user_octets: size of the memory returned
 * by siw_rdmap_rd_user().
 */
struct siw_rdmap_stream *siw_rdmap_stream_new(uint32_t user_octets);
void siw_rdmap_stream_free(struct siw_rdmap_stream *stream);

/* ---- rdmap_rx.c: progress lock --------------------------------------------------------------- */

/*
 * Checks segment rx.seg, which ddp has found: RFC5040-7.2-02, -03, and the requirements of each
 * opcode. false: *err.
 */
bool siw_rdmap_rx_check(struct siw_rdmap_stream *stream, struct siw_wire_err *err);
/*
 * Places segment rx.seg, and delivers its message if it is the last one. 1: *event is filled; 0: the
 * segment has not arrived completely; -errno of siw_ddp_rx_place.
 */
int siw_rdmap_rx_place(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);
/* A Send was placed: fills *event. */
void siw_rdmap_send_received(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
			     const struct siw_ddp_delivery *delivery,
			     struct siw_rdmap_event *event);
/* Clears the fields that a caller may read in every event. */
void siw_rdmap_clear_event(struct siw_rdmap_event *event);
extern const struct siw_wire_err siw_rdmap_no_rtr_match;

/* ---- rdmap_connection.c ---------------------------------------------------------------------- */

/* Progress lock: 1: *event is filled from the stream's fault; 0: the fault is not set yet. */
int siw_rdmap_fault_event(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);

/* ---- rdmap_tx.c ------------------------------------------------------------------------------ */

/* Continues the user's message: 1: it is completely framed; 0: not yet; -errno. */
int siw_rdmap_tx_continue(struct siw_rdmap_stream *stream);

/* ---- the other files ------------------------------------------------------------------------- */

/* rdmap_terminate.c: records a connection's first error; seg and wire may be NULL. */
void siw_rdmap_fault_set(struct siw_rdmap_stream *stream, struct siw_wire_err err,
			 const struct siw_ddp_seg *seg, const struct siw_rdmap_wire_read *wire);
/* Whether a fault is set; if so, stream->fault may be read. */
static inline bool siw_rdmap_fault_is_set(const struct siw_rdmap_stream *stream)
{
	/* Pairs with the store in siw_rdmap_fault_set(). */
	return atomic_load_explicit(&stream->fault_state, memory_order_acquire) ==
	       SIW_RDMAP_FAULT_SET;
}
/*
 * Builds the Terminate Message for a fault; returns its length, at most SIW_RDMAP_TERM_MAX octets.
 */
uint32_t siw_rdmap_terminate_build(const struct siw_rdmap_fault *fault, uint8_t *out);
/* Builds the Terminate Message in *msg. The stream stores its octets. */
void siw_rdmap_terminate_msg(struct siw_rdmap_stream *stream, const struct siw_rdmap_fault *fault,
			     struct siw_ddp_msg *msg);
/* Fills *event from len octets of a received Terminate Message; invalid ones are handled safely. */
void siw_rdmap_terminate_parse(const uint8_t *buf, size_t len, struct siw_rdmap_event *event);

enum siw_rdmap_read_kind {
	SIW_RDMAP_READ_USERS,
	SIW_RDMAP_READ_RTR, /* an RTR; not limited by ORD */
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

/* rdmap_read.c: Reads of this end. Send lock: begins a Read. Returns as siw_ddp_tx(). */
int siw_rdmap_read_begin(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op,
			 enum siw_rdmap_read_kind kind);
/*
 * Progress lock: checks a segment of a response (false: *err). siw_rdmap_read_placed() counts a
 * placed segment; the last one ends the oldest Read.
 */
bool siw_rdmap_read_expects(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
			    struct siw_wire_err *err);
/* The response to the oldest request has arrived: fills *event, if the request has a completion. */
void siw_rdmap_read_done(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read,
			 struct siw_rdmap_event *event);
void siw_rdmap_read_placed(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
			   struct siw_rdmap_event *event);
/* Both locks: ends all outstanding Reads and frees their sinks. */
void siw_rdmap_read_free_all(struct siw_rdmap_stream *stream);
/* The slot for the next Read or Atomic Request; NULL: the limit is reached. */
struct siw_rdmap_read *siw_rdmap_read_slot(struct siw_rdmap_stream *stream);
/* Sends the request of length octets in read->wire. Returns as siw_ddp_tx(). */
int siw_rdmap_read_issue(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read,
			 struct siw_rdmap_op *op, uint32_t length);
/*
 * Progress lock: siw_rdmap_read_oldest() returns the oldest outstanding request, or NULL;
 * siw_rdmap_read_pop() ends it.
 */
struct siw_rdmap_read *siw_rdmap_read_oldest(struct siw_rdmap_stream *stream);
void siw_rdmap_read_pop(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read);
/*
 * For request_send of struct siw_rdmap_stream_type: makes the request visible to the receiving side,
 * which expects a response from here on; or frees the sink of a request that cannot be sent.
 */
void siw_rdmap_read_publish(struct siw_rdmap_stream *stream);
void siw_rdmap_read_free_sink(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read);
/* Translates DDP error codes for memory that a request names to RDMAP error codes. */
struct siw_wire_err siw_rdmap_request_error(struct siw_wire_err err);

/* rdmap_atomic.c. Send lock: begins an atomic of this end. Returns as siw_ddp_tx(). */
int siw_rdmap_atomic_begin(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op);
/* Progress lock: checks a segment of an Atomic Response (false: *err). */
bool siw_rdmap_atomic_expects(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
			      struct siw_wire_err *err);
/*
 * stream->atomic_response_in contains a response of length octets: ends the oldest request; false:
 * *err.
 */
bool siw_rdmap_atomic_done(struct siw_rdmap_stream *stream, uint32_t length,
			   struct siw_rdmap_event *event, struct siw_wire_err *err);
/* Progress lock: whether the peer's atomic is allowed; false: *err. */
bool siw_rdmap_atomic_ok(struct siw_rdmap_stream *stream, const struct siw_rdmap_wire_atomic *wire,
			 struct siw_wire_err *err);
/* Executes the atomic, and begins the response. Send lock. Returns as siw_ddp_tx(). */
int siw_rdmap_atomic_respond(struct siw_rdmap_stream *stream, struct siw_rdmap_request *request,
			     struct siw_wire_err *err);

/* rdmap_counts.c. Either lock: whether a delivery count has to be sent to the peer. */
static inline bool siw_rdmap_count_is_pending(const struct siw_rdmap_stream *stream)
{
	/* Pairs with the store in siw_rdmap_count_update(). */
	return atomic_load_explicit(&stream->deliverable, memory_order_acquire) !=
	       atomic_load_explicit(&stream->tx.reported, memory_order_relaxed);
}
/*
 * Progress lock: updates the delivery count after a Send was received or a Write placed, if the
 * peer wants counts.
 */
static inline void siw_rdmap_count_update(struct siw_rdmap_stream *stream)
{
	uint64_t sends;

	if (__builtin_expect(!stream->rx.counting, 1))
		return;
	sends = siw_ddp_rx_delivered(stream->ddp);
	atomic_store_explicit(&stream->deliverable,
			      sends << SIW_RDMAP_SENDS_SHIFT | stream->rx.writes,
			      memory_order_release);
}
/*
 * Send lock: begins the notices (delivery counts and requester messages) that precede other
 * messages: 1: none is left; 0: not completely framed yet; -errno.
 */
int siw_rdmap_notices_begin(struct siw_rdmap_stream *stream);
static inline int siw_rdmap_send_notices(struct siw_rdmap_stream *stream)
{
	return stream->tx.announce || siw_rdmap_count_is_pending(stream)
		       ? siw_rdmap_notices_begin(stream)
		       : 1;
}
/*
 * Progress lock: handles a Read Request that may request delivery counts, if this end offers them.
 */
void siw_rdmap_count_asked(struct siw_rdmap_stream *stream, const struct siw_rdmap_wire_read *wire);
/*
 * Progress lock: siw_rdmap_notice_expects() checks a tagged private message (false: *err);
 * siw_rdmap_notice_in() fills *event from it.
 */
bool siw_rdmap_notice_expects(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
			      struct siw_wire_err *err);
void siw_rdmap_notice_in(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
			 struct siw_rdmap_event *event);

/* rdmap_read.c: the peer's Reads. Progress lock: stores a request; false: the fault is set. */
bool siw_rdmap_request_in(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
			  const struct siw_ddp_delivery *delivery);
/* Releases the responses that need not wait any more. Returns whether there are any. */
bool siw_rdmap_request_release(struct siw_rdmap_stream *stream);
/* Send lock: begins the response to the oldest request. Returns as siw_ddp_tx(). */
int siw_rdmap_response_begin(struct siw_rdmap_stream *stream, struct siw_wire_err *err);
/* Returns the length of the response to the oldest request, in octets. */
uint32_t siw_rdmap_response_size(struct siw_rdmap_stream *stream);
void siw_rdmap_response_done(struct siw_rdmap_stream *stream);
struct siw_rdmap_request *siw_rdmap_oldest_request(struct siw_rdmap_stream *stream);
/*
 * Changes the header of a Read Request as if its first `octets` octets had not been requested. The
 * Terminate for an error in the middle of a Read Response quotes this header (RFC 5040 section 4.8).
 */
void siw_rdmap_request_skip(struct siw_rdmap_wire_read *wire, uint64_t octets);

/* rdmap_rd_err.c. Any lock: queues an error message to the peer, if there is room for it. */
void siw_rdmap_rd_report(struct siw_rdmap_stream *stream, struct siw_wire_err err,
			 const struct siw_ddp_seg *seg);
/* As frame of struct siw_rdmap_stream_type. */
int siw_rdmap_rd_frame(struct siw_rdmap_stream *stream);
/* As request_failed of struct siw_rdmap_stream_type. */
bool siw_rdmap_rd_request_failed(struct siw_rdmap_stream *stream, struct siw_rdmap_request *request,
				 struct siw_wire_err err, const struct siw_rdmap_wire_read *wire);
/* Send lock: begins the error message for a refused request. Returns as siw_ddp_tx(). */
int siw_rdmap_rd_report_request(struct siw_rdmap_stream *stream,
				const struct siw_rdmap_request *request, struct siw_wire_err *err);
/* Progress lock: handles the refusal of a message of the peer: 1 and *event. */
int siw_rdmap_rd_refused(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event,
			 struct siw_wire_err err, const struct siw_ddp_seg *seg);
/*
 * Progress lock: handles a complete message that could not be delivered: makes *event a BAD_RECV,
 * and queues an error message to the peer.
 */
void siw_rdmap_rd_delivery_failed(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event,
				  struct siw_wire_err err, const struct siw_ddp_seg *seg);
/* Progress lock: if the last request was refused, *event becomes REFUSED. */
void siw_rdmap_rd_request_event(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);
/* Progress lock: fills *event from an error message of the peer in stream->term_in. */
int siw_rdmap_rd_reported(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);
/* rdmap_record_rd.c. Send lock: begins a Write-Record. Returns as siw_ddp_tx(). */
int siw_rdmap_rd_record_begin(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op);
/*
 * Progress lock: siw_rdmap_rd_record_expects() checks a segment of a Write-Record (false: *err);
 * siw_rdmap_rd_record_placed() counts a placed segment. done: it is the message's last.
 */
bool siw_rdmap_rd_record_expects(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
				 struct siw_wire_err *err);
void siw_rdmap_rd_record_placed(struct siw_rdmap_stream *stream, bool done,
				struct siw_rdmap_event *event);
/* rdmap_record.c: the first id of an endpoint's Write-Records (DGRAM-REC-2). */
uint32_t siw_rdmap_record_first_id(void);
/*
 * siw_rdmap_records_new() allocates a table of reported Write-Records; siw_rdmap_records_add() adds
 * one and returns its number.
 */
struct siw_rdmap_records *siw_rdmap_records_new(uint32_t max);
uint64_t siw_rdmap_records_add(struct siw_rdmap_records *r, const struct siw_rdmap_record *rec);
/* Whether the table is full of reports that were not polled. */
bool siw_rdmap_records_full(const struct siw_rdmap_records *r, uint32_t polled);
const struct siw_rdmap_record *siw_rdmap_records_find(const struct siw_rdmap_records *r,
						      uint64_t number);
/*
 * The header at the start of each segment of a Write-Record: put_head writes it, get_head parses it
 * (false: invalid).
 */
#define SIW_RDMAP_RECORD_HEAD 20
struct siw_rdmap_record_head {
	uint32_t id, length;
	uint64_t to;
	bool solicited;
};
void siw_rdmap_record_put_head(const struct siw_rdmap_record_head *head, uint8_t *out);
bool siw_rdmap_record_get_head(const uint8_t *octets, uint32_t n,
			       struct siw_rdmap_record_head *head);
/*
 * Whether a segment lies within its message, and its Last flag is set exactly if it is the last
 * one.
 */
bool siw_rdmap_record_fits(const struct siw_ddp_seg *seg, const struct siw_rdmap_record_head *head);

/* rdmap_read.c, progress lock: the request with this MSN will not get a response. */
void siw_rdmap_read_refused(struct siw_rdmap_stream *stream, uint32_t msn);
/* Ends the oldest request: true, and *user_data is that of the request; false: there is none. */
bool siw_rdmap_read_cancel(struct siw_rdmap_stream *stream, uint64_t *user_data);

#endif
