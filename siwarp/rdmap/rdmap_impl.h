/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rdmap/rdmap_impl.h - what the files of this layer share and nobody else sees. */
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
 * The shared counters cost an atomic instruction each. So messages are counted here, each direction
 * under its own lock, and the sums go to the shared counters when a receive finds nothing.
 */
struct siw_rdmap_flow {
	_Atomic uint64_t msgs, octets;
};

struct siw_rdmap_traffic {
	struct siw_rdmap_flow sent;	/* send lock */
	struct siw_rdmap_flow received; /* progress lock, as what was reported */
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

/* ---- rdmap_sources.c: who was dropped for want of a receive ---------------------------------- */

struct siw_rdmap_sources;

/* Counts one more message of this source. *sources is made with the first. */
void siw_rdmap_sources_blame(struct siw_rdmap_sources **sources, const struct siw_addr *source);
/* As siw_rdmap_dgram_drops. */
int siw_rdmap_sources_query(const struct siw_rdmap_sources *sources, struct siw_source_drops *out,
			    int max);

/* ---- datagrams ------------------------------------------------------------------------------- */

/*
 * The queue number on datagrams: the standard queue in the low two bits, then the index of the
 * destination and of the source among the queue pairs of their socket (0: the only one).
 */
#define SIW_RDMAP_DQN_QUEUE	 0x3u
#define SIW_RDMAP_DQN_DEST_SHIFT 8
#define SIW_RDMAP_DQN_SRC_SHIFT	 16
#define SIW_RDMAP_DQN_SRC(qn)	 ((qn) >> SIW_RDMAP_DQN_SRC_SHIFT & 0xff)
#define SIW_RDMAP_DQN_DEST(qn)	 ((qn) >> SIW_RDMAP_DQN_DEST_SHIFT & 0xff)
#define SIW_RDMAP_DQN_UNUSED	 0xff0000fcu
#define SIW_RDMAP_INDEX_SHIFT	 16 /* of the index in a QPN */

/* One of the last messages sent: a hash of its destination, and the layer above's user_data. */
struct siw_rdmap_sent {
	uint64_t user_data;
	uint32_t tag; /* 0: none */
};

/* The last messages sent, each at its MSN modulo their number. Send lock. */
struct siw_rdmap_sents {
	uint32_t mask;
	uint32_t most; /* what mask grows to */
	struct siw_rdmap_sent sent[];
};

struct siw_rdmap_sharers;

struct siw_rdmap_dgram {
	struct siw_ddp_dgram *ddp;
	struct siw_rdmap_sharers *sharers; /* NULL: it is alone; progress lock */
	void *user;
	uint32_t max; /* octets of a message */
	uint32_t index;
	/*
	 * it shares another's socket, and the endpoint that receives there reports only its own
	 * traffic
	 */
	bool joined;
	struct siw_rdmap_traffic traffic;
	/* Written by start: under the QP's send lock and the progress lock. */
	struct siw_mem_queue *recvs;
	uint32_t pd;
	uint32_t qkey;
	struct siw_rdmap_sents *sents;	   /* send lock; made with the first message */
	struct siw_rdmap_sources *dropped; /* progress lock */
	struct siw_rdmap_records *records; /* NULL: it takes none; progress lock */
	/* Write-Records sent: send lock. */
	struct siw_rdmap_record_sents *record_sents; /* made with the first */
	uint32_t record_id;			     /* the next one's */
	uint32_t path_octets;			     /* of a datagram to: */
	struct siw_addr path;
	uint64_t path_ns; /* when that was asked about */
};

/* rdmap_record.c: takes a tagged segment for this endpoint. true: *event; false: it is dropped. */
bool siw_rdmap_record_in(struct siw_rdmap_dgram *dgram, const struct siw_ddp_seg *seg,
			 struct siw_rdmap_event *event);
/* Quotes a message's RDMAP header, or what there is of it, in *event, its id as quoted_msn. */
void siw_rdmap_record_quote(const uint8_t *head, size_t len, struct siw_rdmap_event *event);
/* As siw_rdmap_dgram_sent, for an error message that quotes a tagged header. */
bool siw_rdmap_record_sent(struct siw_rdmap_dgram *dgram, const struct siw_rdmap_event *event,
			   uint64_t *user_data);

/*
 * A hash of a message's destination, Q_Key and queue number. A sender that does not know the Q_Key
 * cannot forge an error message that matches it.
 */
static inline uint32_t siw_rdmap_sent_tag(const struct siw_addr *to, uint32_t qkey, uint32_t qn)
{
	const uint64_t odd =
		0x9e3779b97f4a7c15u; /* 2^64 by the golden ratio: any odd number mixes */
	uint64_t who[2] = { 0 };

	if (__builtin_expect(to->family == AF_INET, 1))
		memcpy(who, to->v4, sizeof(to->v4));
	else
		memcpy(who, to->v6, sizeof(to->v6));
	who[0] = (who[0] ^ (uint64_t)to->port_be << 32) * odd + who[1];
	who[0] = ((who[0] ^ who[0] >> 32) + ((uint64_t)qkey << 32 | qn)) * odd;
	return (uint32_t)((who[0] ^ who[0] >> 29) >> 32) | 1;
}

/* The QPN of a datagram's sender. */
static inline uint32_t siw_rdmap_src_qpn(const struct siw_addr *source, uint32_t qn)
{
	return ntohs(source->port_be) | SIW_RDMAP_DQN_SRC(qn) << SIW_RDMAP_INDEX_SHIFT;
}

/* ---- rdmap_datagram.c, for rdmap_group.c ----------------------------------------------------- */

/* What this endpoint does with a segment. */
enum siw_rdmap_verdict {
	SIW_RDMAP_TAKE,
	SIW_RDMAP_TAKE_HEADED, /* it begins with SIW_RDMAP_IMM_LEN octets for this layer */
	SIW_RDMAP_DROP,	       /* counted */
	SIW_RDMAP_ERROR_MESSAGE,
	SIW_RDMAP_WRONG,
};
/*
 * Checks a segment. WRONG, *err: its sender has the Q_Key and breaks a rule, and is sent an error
 * message; no other is. Error messages come on queue 2, and a Terminate is one on any queue: no
 * error message is sent about them.
 */
enum siw_rdmap_verdict siw_rdmap_dgram_judge(const struct siw_rdmap_dgram *dgram,
					     const struct siw_ddp_seg *seg,
					     struct siw_wire_err *err);
/*
 * Fills the endpoint's next receive with the datagram at hand of lower, its own endpoint of ddp or
 * its group's. Returns as siw_ddp_dgram_place. *event becomes a RECV, except with -ENOBUFS; the
 * caller has set its source and user.
 */
int siw_rdmap_dgram_take(const struct siw_rdmap_dgram *dgram, struct siw_ddp_dgram *lower,
			 const struct siw_ddp_seg *seg, enum siw_rdmap_verdict verdict,
			 struct siw_rdmap_event *event);

/*
 * rdmap_datagram_err.c: makes dgram->sents, or doubles it before this MSN; without memory it does
 * nothing.
 */
void siw_rdmap_sents_make(struct siw_rdmap_dgram *dgram, uint32_t msn);
/* Records that the message of this MSN was sent. */
static inline void siw_rdmap_sent_note(struct siw_rdmap_dgram *dgram, uint32_t msn, uint32_t tag,
				       uint64_t user_data)
{
	struct siw_rdmap_sents *s = dgram->sents;

	/* Thousands of endpoints may have sent a few messages each. */
	if (__builtin_expect(!s || (!(msn & s->mask) && s->mask < s->most), 0)) {
		siw_rdmap_sents_make(dgram, msn);
		s = dgram->sents;
		if (!s) /* no memory: reports about it will be stale */
			return;
	}
	s->sent[msn & s->mask] = (struct siw_rdmap_sent){ user_data, tag };
}
/* Takes an error message. 1: *event, which siw_rdmap_dgram_sent has still to check; 0: dropped. */
int siw_rdmap_dgram_error_in(struct siw_rdmap_dgram *dgram, const struct siw_ddp_seg *seg,
			     struct siw_rdmap_event *event);
/* *event quotes the segment's header. */
void siw_rdmap_quote(struct siw_rdmap_event *event, const struct siw_ddp_seg *seg);
/* Fills *event for a message that broke a rule. */
void siw_rdmap_dgram_found(const struct siw_ddp_seg *seg, struct siw_wire_err err,
			   struct siw_rdmap_event *event);

/* ---- streams --------------------------------------------------------------------------------- */

/* A Terminate of ours is shorter; a peer's may have unknown octets behind it. */
#define SIW_RDMAP_TERM_BUF 256

/* An RDMA Read or an atomic of ours, from its request to its response. */
struct siw_rdmap_read {
	uint64_t user_data;
	uint32_t stag;	 /* the sink's, or 0 */
	uint32_t length; /* octets */
	uint32_t placed; /* octets of the response; of the receiving side alone */
	bool silent;	 /* the layer above does not wait for it: the RTR, or confirm */
	bool confirm;	 /* siw_rdmap_confirm's */
	bool refused;	 /* an error message named it; of the receiving side alone */
	bool atomic;	 /* an atomic, whose result goes to sgl */
	int nsge;
	const struct siw_sge *sgl;
	union siw_rdmap_wire_atomic_request wire; /* the request, referred to until TCP has it */
	struct siw_sge wire_sge;
};

/* An RDMA Read or an atomic of the peer's, from its request until its response is framed. */
struct siw_rdmap_request {
	union siw_rdmap_wire_atomic_request wire;
	bool atomic;
	struct siw_rdmap_wire_atomic_response response; /* to an atomic, once it is done */
	struct siw_sge response_sge;
	struct siw_ddp_seg seg; /* for a Terminate to quote */
	uint64_t buffer;	/* of queue 1 */
	bool refused;		/* over reliable datagrams: err is sent in place of the response */
	struct siw_wire_err err;
	bool held; /* the response waits until the Send of MSN behind was received */
	uint32_t behind;
};

/* The first error that this end found, for its Terminate. */
struct siw_rdmap_fault {
	struct siw_wire_err err;
	bool has_seg, has_read;
	/* over reliable datagrams: only the message that it names ends, so it always names one */
	bool of_rd;
	struct siw_ddp_seg seg;
	struct siw_rdmap_wire_read wire;
};

enum siw_rdmap_fault_state {
	SIW_RDMAP_FAULT_NONE = 0,
	SIW_RDMAP_FAULT_WRITING = 1, /* one side has claimed it */
	SIW_RDMAP_FAULT_SET = 2,     /* fault holds; it does not change any more */
};

enum siw_rdmap_term_state {
	SIW_RDMAP_TERM_NONE = 0,
	SIW_RDMAP_TERM_DUE = 1,	   /* nothing else is sent any more */
	SIW_RDMAP_TERM_FRAMED = 2, /* ... and in mpa's batch */
	SIW_RDMAP_TERM_SENT = 3,   /* TCP has it */
};

/* No Write has as many octets. */
#define SIW_RDMAP_SPOILT UINT32_MAX

/* Under the progress lock. */
struct siw_rdmap_rx {
	bool over;	 /* TERMINATED, ERROR or CLOSED was given */
	bool heard;	 /* the peer's first FPDU was seen, or need not be awaited */
	bool have;	 /* seg is judged and not wholly placed */
	bool rtr;	 /* ... and it is the peer's RTR */
	bool discard;	 /* seg's payload, which no Read requested, is thrown away */
	bool unexpected; /* Sends wait for receives, or requests for Sends */
	/* the peer's, taken in; those beyond stream->requests_released are held */
	uint32_t requests_in;
	uint8_t want_rtr;
	bool writing; /* a Write's last segment has not come */
	/*
	 * Octets of the last Write, if nothing came for queue 0 since it began; or it was refused:
	 */
	uint32_t written;
	struct siw_ddp_seg seg;
};

/* Under the send lock. */
struct siw_rdmap_tx {
	bool active;   /* ddp has a message in the works */
	bool response; /* ... which is the oldest request's response */
	bool waiting;  /* the user found a response in the works and waits for a turn */
	bool imm_due;  /* the message in the works is a Write, and what is behind it is this: */
	uint8_t imm_opcode; /* with imm_sge for its octets */
	uint8_t term;	    /* enum siw_rdmap_term_state */
	bool torn;	    /* over reliable datagrams: siw_rdmap_rd_is_torn */
	uint8_t term_out[SIW_RDMAP_TERM_MAX];
	struct siw_sge term_sge;
	struct siw_sge imm_sge;
	uint64_t *imm_end; /* of its operation's stamp */
};

/* An error to report to the peer. */
struct siw_rdmap_report {
	struct siw_link link;
	struct siw_rdmap_fault fault;
};

/* An endpoint of reliable datagrams. */
struct siw_rdmap_rd {
	struct siw_mem *mem;
	struct siw_ddp_rd *ddp;
	uint32_t user_octets;
	struct siw_rdmap_records *records; /* NULL: it takes no Write-Records; progress, as: */
	uint32_t records_polled;	   /* of those reported */
	uint32_t record_id;		   /* of the next one sent: send lock */
	enum siw_rdmap_rd_mode mode;
	struct siw_rdmap_start start;	 /* both locks to write */
	bool waits;			 /* a segment is held: progress */
	struct siw_rdmap_stream *served; /* by the last event: progress */
	siw_lock_t lock;		 /* a leaf: new streams, and their reports */
	struct siw_link streams;
	_Atomic uint32_t n_streams;
	/* Where the last stream asked for is: send lock. */
	struct siw_addr last_addr;
	struct siw_rdmap_stream *last;
};

/* A Write-Record on its way in over reliable datagrams: progress lock. */
struct siw_rdmap_recording {
	bool on; /* it is not whole */
	bool solicited;
	uint32_t id, length, stag;
	uint64_t to, next; /* of its first octet, and of the next that must come */
};

/* What a stream has over reliable datagrams besides. */
struct siw_rdmap_of_rd {
	struct siw_rdmap_rd *rd; /* NULL: it is a connection */
	const struct siw_addr *peer;
	struct siw_link in_rd;	 /* of its endpoint: its lock */
	_Atomic bool used;	 /* since the last sweep */
	bool half;		 /* at the last sweep: a message has come by half */
	struct siw_link reports; /* of struct siw_rdmap_report: the endpoint's lock */
	_Atomic uint32_t n_reports;
	struct siw_rdmap_recording recording;
	uint8_t record_head[SIW_DDP_ULP_TAGGED]; /* of the one on its way out: send lock */
};

struct siw_rdmap_stream {
	struct siw_mem *mem;
	struct siw_ddp_stream *ddp;
	struct siw_rdmap_traffic traffic;
	uint32_t pd;
	uint32_t denied; /* progress lock */
	bool started;
	bool private; /* siw_rdmap_start's */
	uint16_t ord;
	uint32_t read_mask, request_mask;
	struct siw_rdmap_read *reads;
	struct siw_rdmap_request *requests;
	struct siw_mem_queue *q_read, *q_term, *q_atomic;
	union siw_rdmap_wire_atomic_request *read_bufs;		  /* queue 1's buffers */
	uint8_t term_in[SIW_RDMAP_TERM_BUF];			  /* queue 2's */
	struct siw_rdmap_wire_atomic_response atomic_response_in; /* queue 3's */
	struct siw_rdmap_fault fault;
	_Atomic uint32_t fault_state;
	/* Nothing more is to be sent but a Terminate. Set by rx, read by tx. */
	_Atomic bool closing;

	/* Rings with one writer and one reader each, by the two locks. */
	_Alignas(64) _Atomic uint32_t reads_begun; /* reads: stored under the send lock */
	_Atomic uint32_t requests_done;		   /* requests: likewise */
	_Alignas(64) _Atomic uint32_t reads_done;  /* reads: stored under the progress lock */
	_Atomic uint32_t requests_released;	   /* requests: likewise */

	_Alignas(64) struct siw_rdmap_rx rx;
	_Alignas(64) struct siw_rdmap_tx tx;
	struct siw_rdmap_of_rd of_rd;
	_Alignas(16) char user[]; /* siw_rdmap_rd_user */
};

static inline bool siw_rdmap_is_rd(const struct siw_rdmap_stream *stream)
{
	return __builtin_expect(stream->of_rd.rd != NULL, 0);
}

/*
 * rdmap_stream.c: with nothing below it. user_octets: of siw_rdmap_rd_user.
 */
struct siw_rdmap_stream *siw_rdmap_stream_new(uint32_t user_octets);
void siw_rdmap_stream_free(struct siw_rdmap_stream *stream);

/* rdmap_terminate.c: records the first error; seg and wire may be NULL. */
void siw_rdmap_fault_set(struct siw_rdmap_stream *stream, struct siw_wire_err err,
			 const struct siw_ddp_seg *seg, const struct siw_rdmap_wire_read *wire);
/* Whether there is one; it may then be read. */
static inline bool siw_rdmap_fault_is_set(const struct siw_rdmap_stream *stream)
{
	/* Pairs with the store in siw_rdmap_fault_set. */
	return atomic_load_explicit(&stream->fault_state, memory_order_acquire) ==
	       SIW_RDMAP_FAULT_SET;
}
/* Builds the Terminate Message about it, at most SIW_RDMAP_TERM_MAX octets: how many. */
uint32_t siw_rdmap_terminate_build(const struct siw_rdmap_fault *fault, uint8_t *out);
/* ... as a message of this stream's, which the octets lie in. */
void siw_rdmap_terminate_msg(struct siw_rdmap_stream *stream, const struct siw_rdmap_fault *fault,
			     struct siw_ddp_msg *msg);
/* Fills *event from len octets that are meant to be a Terminate Message; any octets are safe. */
void siw_rdmap_terminate_parse(const uint8_t *buf, size_t len, struct siw_rdmap_event *event);

enum siw_rdmap_read_kind {
	SIW_RDMAP_READ_USERS,
	SIW_RDMAP_READ_RTR, /* it may exceed the ORD */
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

/* rdmap_read.c: our Reads. Requester, send lock: */
int siw_rdmap_read_begin(struct siw_rdmap_stream *stream, const struct siw_rdmap_op *op,
			 enum siw_rdmap_read_kind kind);
/* Progress lock: judges a segment of a response (false: *err); ends the oldest Read. */
bool siw_rdmap_read_expects(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
			    struct siw_wire_err *err);
/* The oldest request has its response: writes *event, if it has a completion. */
void siw_rdmap_read_done(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read,
			 struct siw_rdmap_event *event);
void siw_rdmap_read_placed(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
			   struct siw_rdmap_event *event);
/* Both locks. */
void siw_rdmap_read_free_all(struct siw_rdmap_stream *stream);
/* The slot of the next Read or Atomic Request; NULL: as many are outstanding as may be. */
struct siw_rdmap_read *siw_rdmap_read_slot(struct siw_rdmap_stream *stream);
/* Sends the request of so many octets that lies in the slot's wire: as siw_ddp_tx. */
int siw_rdmap_read_issue(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read,
			 const struct siw_rdmap_op *op, uint32_t length);
/* Progress lock: the oldest outstanding one, or NULL; ends it. */
struct siw_rdmap_read *siw_rdmap_read_oldest(struct siw_rdmap_stream *stream);
void siw_rdmap_read_pop(struct siw_rdmap_stream *stream, struct siw_rdmap_read *read);
/* RDMAP's own error codes in place of DDP's, for memory that a request names. */
struct siw_wire_err siw_rdmap_request_error(struct siw_wire_err err);

/* rdmap_atomic.c. Requester, send lock: */
int siw_rdmap_atomic_begin(struct siw_rdmap_stream *stream, const struct siw_rdmap_op *op);
/* Progress lock: judges a segment of a response (false: *err). */
bool siw_rdmap_atomic_expects(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
			      struct siw_wire_err *err);
/* A response of so many octets lies in atomic_response_in: ends the oldest request; false: *err. */
bool siw_rdmap_atomic_done(struct siw_rdmap_stream *stream, uint32_t length,
			   struct siw_rdmap_event *event, struct siw_wire_err *err);
/* Progress lock: whether the peer's atomic may be done; false: *err. */
bool siw_rdmap_atomic_ok(struct siw_rdmap_stream *stream, const struct siw_rdmap_wire_atomic *wire,
			 struct siw_wire_err *err);
/* Does it, and begins the response (send lock): as siw_ddp_tx. */
int siw_rdmap_atomic_respond(struct siw_rdmap_stream *stream, struct siw_rdmap_request *request,
			     struct siw_wire_err *err);

/* rdmap_read.c: the peer's Reads. Progress lock: takes a request in; false: the fault is set. */
bool siw_rdmap_request_in(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
			  const struct siw_ddp_delivery *delivery);
/* Allows the responses that need not wait any more: whether there are any. */
bool siw_rdmap_request_release(struct siw_rdmap_stream *stream);
/* Send lock: begins the oldest request's response. As siw_ddp_tx. */
int siw_rdmap_response_begin(struct siw_rdmap_stream *stream, struct siw_wire_err *err);
/* Octets of it. */
uint32_t siw_rdmap_response_size(struct siw_rdmap_stream *stream);
void siw_rdmap_response_done(struct siw_rdmap_stream *stream);
/*
 * It broke off. Sets the fault: -EACCES; over reliable datagrams sends an error message instead: 1.
 */
int siw_rdmap_response_failed(struct siw_rdmap_stream *stream, struct siw_wire_err err);

/* rdmap_rd_err.c. Any lock: reports an error to the peer, if there is a place for it. */
void siw_rdmap_rd_report(struct siw_rdmap_stream *stream, struct siw_wire_err err,
			 const struct siw_ddp_seg *seg);
/* Send lock: begins the oldest error message, if there is one (1: there is none). As siw_ddp_tx. */
int siw_rdmap_rd_send_report(struct siw_rdmap_stream *stream);
/* Send lock: the error message for a request that was refused. As siw_ddp_tx. */
int siw_rdmap_rd_report_request(struct siw_rdmap_stream *stream,
				const struct siw_rdmap_request *request, struct siw_wire_err *err);
/* Progress lock: a message of the peer's was refused: 1 and *event. */
int siw_rdmap_rd_refused(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event,
			 struct siw_wire_err err, const struct siw_ddp_seg *seg);
/*
 * Progress lock: a whole message could not be delivered. Makes *event a BAD_RECV, and queues an
 * error message to the peer.
 */
void siw_rdmap_rd_undelivered(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event,
			      struct siw_wire_err err, const struct siw_ddp_seg *seg);
/* Progress lock: if the last request was refused, *event becomes REFUSED. */
void siw_rdmap_rd_request_event(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);
/* Progress lock: an error message of the peer's is in term_in; *event is filled. */
int siw_rdmap_rd_reported(struct siw_rdmap_stream *stream, struct siw_rdmap_event *event);
/* rdmap_rd.c. Progress lock: one more of our requests has its response. */
void siw_rdmap_rd_response_done(struct siw_rdmap_stream *stream);
/* rdmap_record_rd.c. Send lock: begins a Write-Record. As siw_ddp_tx. */
int siw_rdmap_rd_record_begin(struct siw_rdmap_stream *stream, const struct siw_rdmap_op *op);
/*
 * Progress lock, both: checks a segment of one (false: *err); counts one that is placed. done: the
 * last.
 */
bool siw_rdmap_rd_record_expects(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
				 struct siw_wire_err *err);
void siw_rdmap_rd_record_placed(struct siw_rdmap_stream *stream, bool done,
				struct siw_rdmap_event *event);
/* Whether the next segment is of one, and must wait as too many are reported and not polled. */
bool siw_rdmap_rd_record_waits(const struct siw_rdmap_stream *stream);

/* rdmap_record.c: what an endpoint counts its Write-Records from (DGRAM-REC-2). */
uint32_t siw_rdmap_record_first_id(void);
/* Room for those that were reported; and one more of them: its number. */
struct siw_rdmap_records *siw_rdmap_records_new(uint32_t max);
uint64_t siw_rdmap_records_add(struct siw_rdmap_records *r, const struct siw_rdmap_record *rec);
/* Whether, beyond those polled, as many were reported as are stored. */
bool siw_rdmap_records_full(const struct siw_rdmap_records *r, uint32_t polled);
const struct siw_rdmap_record *siw_rdmap_records_find(const struct siw_rdmap_records *r,
						      uint64_t number);
/*
 * The octets at the start of each segment of a message: written, and parsed (false: there are too
 * few).
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
/* Whether a segment lies in its message, and is its last if it says so. */
bool siw_rdmap_record_fits(const struct siw_ddp_seg *seg, const struct siw_rdmap_record_head *head);

/* rdmap_read.c, progress lock: the request of that MSN will have no response. */
void siw_rdmap_read_refused(struct siw_rdmap_stream *stream, uint32_t msn);
/* Ends the oldest one: true and its user_data, or false. */
bool siw_rdmap_read_cancel(struct siw_rdmap_stream *stream, uint64_t *user_data);

#endif
