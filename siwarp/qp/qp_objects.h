/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_objects.h - the structs of queue pairs by type, and of their send queues; private to this
 * folder.
 */
#ifndef SIW_QP_OBJECTS_H
#define SIW_QP_OBJECTS_H

#include "qp/qp.h"
#include "qp/qp_everywhere.h"
#include "qp/qp_state.h"
#include "ddp/ddp.h"
#include "ddp/ddp_uc.h"
#include "mpa/mpa.h"
#include "rdmap/rdmap.h"
#include "verbs/verbs.h"

enum siw_wqe_state {
	SIW_WQE_POSTED,
	SIW_WQE_BEGUN, /* handed to RDMAP */
	SIW_WQE_DONE,  /* a Read or atomic with its response, or a request in error */
};

/* A posted send, in a slot. Its SGEs follow in memory, then its inline octets. */
struct siw_wqe {
	uint64_t wr_id;
	uint64_t length;		      /* octets */
	union {				      /* while BEGUN */
		struct siw_rdmap_stamp stamp; /* RC, RD */
		uint64_t seq;		      /* UC: its number; in the place of the stamp's end */
	};
	uint64_t remote;
	/* RC, while BEGUN: of a Send, or of a Read or Atomic Request; a Write's number among such */
	uint32_t msn;
	uint32_t rkey;	/* UD: the Q_Key */
	uint8_t opcode; /* enum siw_wr_opcode */
	uint8_t state;
	/* enum siw_wc_status: while DONE; RD, while BEGUN: not 0 if the peer refused it */
	uint8_t status;
	uint8_t nsge;
	uint32_t flags; /* enum siw_send_flags */
	union {
		struct { /* UD */
			struct siw_addr dest;
			uint32_t send_imm;	   /* SEND_WITH_IMM */
			const struct siw_ah *ah;   /* that dest comes from; only compared */
			struct siw_llp_sock *sock; /* that it leaves by */
			/* of an RDMA_WRITE_RECORD: the peer's memory. seq counts the octets sent */
			struct {
				uint64_t addr;
				uint32_t rkey;
			} record;
		};
		struct siw_bind bind; /* BIND_MW, while POSTED */
		struct siw_rdmap_atomic atomic;
		struct {
			uint32_t imm; /* with SIW_OP_IMM */
			uint8_t imm_room[8];
		};
	};
	struct siw_wqe *chain; /* the next of its flow, or the next free slot */
	struct siw_sge sge[];
};

/*
 * An ordered sequence of requests to one peer. RC, UC and UD have one flow, RD has one per peer.
 * All zero but for the links: never used. Under send_lock.
 */
struct siw_flow {
	struct siw_wqe *first, *next; /* the oldest, and the next to begin; NULL: none */
	struct siw_wqe *last;	      /* the newest; valid if there is a first */
	/* RC and RD: the stream of the requests, or NULL, and the ddp stream below it. */
	struct siw_rdmap_stream *stream;
	struct siw_ddp_stream *ddp;
	const struct siw_addr *peer; /* RD */
	uint64_t instance;	     /* RD: the peer's; 0: not known */
	/*
	 * In the units of stamps: up to accepted, requests are complete; up to taken, their memory
	 * is not read any more.
	 */
	uint64_t accepted, taken;
	uint32_t reads_out; /* Reads and atomics whose responses are outstanding */
	/* RD: siw_rdmap_rd_is_torn, and the unfinished request is already in error */
	bool torn;
	struct siw_link busy;  /* in its QP's flows; for RD, while it has requests */
	struct siw_link ready; /* RD: in its QP's ready */
};

enum siw_revoke_state {
	SIW_REVOKE_NONE,
	SIW_REVOKE_DUE,	  /* the next request of the flow waits for siw_qp_mw_settle */
	SIW_REVOKE_BEGUN, /* siw_qp_mw_settle is carrying it out */
};

/* A window's old binding, still to be ended because a bind replaced it. */
struct siw_revoke {
	enum siw_revoke_state due;
	const struct siw_wqe *wqe;
	struct siw_bind_rest rest;
};

/*
 * How far the teardown of a queue pair has come. The state table (qp_state.c) is what a program
 * sees; these are the steps behind it, most of them within ERR. They are in order.
 *
 *              a request failed; older      ... or the older ones       ... or the stream reads
 *              ones complete first          are not waited for          revoked memory
 *                        |                            |                       |
 *     ALIVE ----------> FAILING ------------------> BROKEN ----------------> CUT
 *       |                |  UC: to SQE, ALIVE       |  RC: the next turn      |  the next turn
 *       |                |                          |  RD: ends the peer's    |  resets the stream
 *       |                |                          |  stream, ALIVE          |
 *       +--- to ERR -----+--------------------------+                         |
 *       |    RC with a stream: sends what was begun                           |
 *       v                                                                     |
 *     SHUTTING_DOWN or TERMINATING                                            |
 *       |    all is sent, or timed out                                        |
 *       v                                                                     |
 *     FLUSHED <---------------------------------------------------------------+
 *       |    to RESET: ALIVE
 *       v
 *     DEAD   destroyed
 */
enum siw_teardown {
	SIW_ALIVE,
	/* no more requests begin; those before the failed one complete first */
	SIW_FAILING,
	SIW_BROKEN,	   /* the stream is ended at the next turn */
	SIW_CUT,	   /* as BROKEN, with a TCP reset */
	SIW_SHUTTING_DOWN, /* ERR: what was begun is being sent */
	SIW_TERMINATING,   /* ERR: as SHUTTING_DOWN, and then a Terminate */
	SIW_FLUSHED,	   /* ERR: everything was flushed, and what is posted is flushed at once */
	SIW_DEAD,	   /* destroyed; the memory stays for calls that come too late */
};

/* What a turn of sending left. */
enum siw_run {
	SIW_RUN_DONE,	 /* nothing */
	SIW_RUN_BLOCKED, /* something; the socket is full, or ORD or a fence holds it back */
	SIW_RUN_MORE,	 /* something that can go on at the next turn */
};

/*
 * Persona roce, a peer that is not known to be siwarp: up to which request the peer is known to
 * have everything, as counts of requests begun. The response to an empty Read or an atomic confirms
 * all requests before it, to a Read of octets only Writes: a siwarp answers such a Read although a
 * Send before it waits for its receive. If no Read follows the requests that wait for this, a Read
 * of no octets is sent, one at a time.
 */
struct siw_confirm {
	bool on;	  /* off: completion does not depend on Reads */
	bool asked;	  /* a Read of no octets is outstanding */
	bool due;	  /* the last request was long: send such a Read before the next request */
	uint32_t wanted;  /* the count up to which a confirmation is needed */
	uint32_t covered; /* the count up to which outstanding Reads will confirm */
	uint32_t sends;	  /* the count up to the last request begun that takes a receive */
};

/*
 * Delivery counts, with a peer that is siwarp. This end's own: with persona roce a Send or Write is
 * complete when the peer has said that it has it. The peer's: see qp_rc_counts.c.
 */
struct siw_counts {
	bool on;		/* this end wants them, and completes by them */
	bool tell;		/* the peer is to be told so before the next request; send_lock */
	uint32_t writes_begun;	/* send_lock, as for the next */
	uint32_t sends, writes; /* what the peer said last */
	int rnr_retry;		/* the peer's; -1: it said none; progress, as for what follows */
	bool rnr_fixed;		/* ... or this end's program gave it, and the peer does not count */
	uint32_t octets;	/* received since the last count of this end */
	uint64_t alone_ns;	/* when the last one was sent that rode on nothing */
	uint64_t came;		/* the round of progress in which something was last received */
	uint64_t seen;		/* ... behind which the program may have seen what it answers */
};

struct siw_wq;

/*
 * What a queue pair has posted since its program's last poll that found nothing, or SIW_TAKES that
 * did not, for siw_qp_may_wait; send_lock held.
 */
struct siw_round {
	uint32_t polls; /* siw_qp_polls() at its first post */
	uint32_t posts;
	uint32_t dense;	   /* rounds of several posts before it, without a pause between them */
	uint64_t octets;   /* of the posts that wait for company */
	uint64_t began_ns; /* 0: not known */
};

/* What differs between the types of queue pairs. */
struct siw_qp_class {
	struct siw_qp_ops ops; /* first */
	size_t size;	       /* octets of its struct */
	bool has_records;      /* it sends and receives Write-Records */
	bool has_errors;       /* it has siw_poll_err; RC reports errors by the end of its stream */
	bool shares_socket;    /* several QPs may use one socket */
	bool binds;	       /* binds windows by requests, and has LOCAL_INV */
	bool lazy_slots;       /* most requests need no slot */
	bool many_flows;       /* one flow for each peer */
	bool has_rights;       /* peers have access rights to this end's memory */
	int type;	       /* enum siw_qp_type */
	uint32_t opcodes;      /* set of 1 << enum siw_wr_opcode */
	/* a turn begins requests until it has so many octets */
	uint64_t turn_octets;
	/* posts of so many octets may wait for company, 0: none may: siw_qp_may_wait */
	uint32_t wait_octets;
	/* enum siw_wc_status of a request that failed for other reasons than its memory */
	int failure;
	/*
	 * create takes over the caller's attributes and opens the first socket, or prepares a
	 * connection. open opens a socket on addr, or replaces the socket by the user's fd (else
	 * -1). 0 or -errno. progress held, as below unless said otherwise.
	 */
	int (*create)(struct siw_wq *wq, const struct siw_qp_init_attr *init);
	int (*open)(struct siw_wq *wq, const struct siw_addr *addr, int fd);
	/* Whether it may be destroyed now: 0 or -errno. */
	int (*may_end)(const struct siw_wq *wq);
	/* It is about to be destroyed, and nothing of it has ended yet. */
	void (*depart)(struct siw_wq *wq);
	/*
	 * Frees what the type has of its own. Harmless if called twice, or for a QP whose creation
	 * failed.
	 */
	void (*close)(struct siw_wq *wq);
	/* -ENOTCONN: there is none. peer is set only for a connection. */
	int (*addr)(const struct siw_wq *wq, struct siw_addr *own, struct siw_addr *peer);
	void (*query_attr)(const struct siw_wq *wq, struct siw_qp_attr *attr);
	void (*query_init)(const struct siw_wq *wq, struct siw_qp_init_attr *init);
	/*
	 * Called before an event's step, for what may fail: 0 or -errno. Before ERR and RESET,
	 * receives what has arrived already.
	 */
	int (*prepare)(struct siw_wq *wq, int event, const struct siw_qp_attr *attr, int mask);
	/* The state has changed: starts or stops receiving. */
	void (*receive)(struct siw_wq *wq);
	/* Attributes have changed; called last. */
	void (*modified)(struct siw_wq *wq, int mask);
	/* The QP is in ERR: ends what is in progress, then siw_qp_flush. */
	void (*end)(struct siw_wq *wq);
	/* The QP goes to RESET: releases everything at once. */
	void (*release)(struct siw_wq *wq);

	/* Sending; send_lock held, as for all down to take_recv. */
	int (*post)(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait);
	/* Whether post would take it, had the queue room: 0 or more, or -errno. */
	int64_t (*check)(struct siw_wq *wq, const struct siw_send_wr *wr);
	enum siw_run (*run)(struct siw_wq *wq);
	/* SQD to RTS: called before run. */
	void (*resume)(struct siw_wq *wq);
	/*
	 * begin: begins a request: 0; -EAGAIN: not now; -errno. failed: a request could not begin;
	 * status: enum siw_wc_status.
	 */
	int (*begin)(struct siw_wq *wq, struct siw_flow *flow, struct siw_wqe *wqe);
	void (*failed)(struct siw_wq *wq, struct siw_flow *flow, int status);
	/*
	 * Gives what was begun to the layer below; returns as siw_rdmap_flush. Updates the flow's
	 * accepted and taken.
	 */
	int (*flush)(struct siw_wq *wq, struct siw_flow *flow);
	/* All requests have ended: the protocol forgets them, and unfinished Write-Records. */
	void (*abandon)(struct siw_wq *wq);
	/* The receive that an unfinished message has consumed: 1 and its wr_id, or 0. */
	int (*take_recv)(struct siw_wq *wq, uint64_t *wr_id);
	/* The Write-Record with that number, or NULL. progress held. */
	const struct siw_rdmap_record *(*find_record)(struct siw_wq *wq, uint64_t number);
	/*
	 * Whether the stream still has to send a Read Response from that STag, and so must be
	 * reset.
	 */
	bool (*is_sending)(struct siw_wq *wq, uint32_t stag);
	/* A local request is done: notes who waits for it. */
	void (*did_local)(struct siw_wq *wq, struct siw_wqe *wqe);
};

/* The work queues, and what else all types have. */
struct siw_wq {
	struct siw_qp qp; /* first */
	void *user;
	struct siw_link holds; /* of connection ids: progress */
	bool sig_all, no_crc;
	bool grh;	      /* UD: each receive begins with one */
	bool every_addr;      /* UD, UC: it has a socket at each address */
	bool roce;	      /* persona */
	bool keep_unexpected; /* a Send without a receive waits for one, whatever the persona is */
	bool private;	      /* the peer is siwarp: siwarp-private messages may be sent */
	bool private_always;  /* ... whatever the setting is */
	bool errs_fatal;      /* the effective error_policy; under progress */
	int error_policy;     /* enum siw_error_policy */
	uint32_t qkey;
	int access, ord, ird; /* ord, ird: -1: not set */
	int rnr_retry, min_rnr_timer;
	uint32_t rate_limit; /* UD, UC: kbit/s; 0: none */
	struct siw_qp_cap cap;
	bool connected;			   /* it has a stream; progress and send_lock to write */
	uint16_t granted_ord, granted_ird; /* negotiated with the peer */
	uint16_t reads_max;		   /* the effective ORD, which SQD may lower; send_lock */
	/* of the Terminate that ended the stream, as vendor_err of struct siw_wc */
	uint32_t wire_err;

	/* The send queue, under send_lock. */
	char *sq;		   /* slots of WQEs */
	uint32_t sq_stride;	   /* octets */
	uint32_t sq_mask;	   /* number of slots, less one */
	uint32_t sq_used;	   /* slots that were ever used */
	struct siw_wqe *sq_free;   /* used slots that are free now */
	uint32_t sq_head, sq_tail; /* counts of complete requests, and of all */
	uint32_t begun;		   /* requests begun and not complete */
	struct siw_flow flow;	   /* not used by types with many */
	struct siw_link flows;
	struct siw_revoke revoke;
	bool draining;	 /* in SQD, and not everything begun is complete */
	bool sqd_notify; /* SQ_DRAINED is to be raised then */
	/* enum siw_teardown; send_lock to write, from SHUTTING_DOWN on also progress */
	_Atomic int teardown;
	struct siw_round round;

	/* The receive queue. */
	struct siw_mem_queue *recvs; /* its own, or the SRQ's */
	uint32_t rq_posted;	     /* under recv_lock */
	uint32_t rq_done;	     /* receives completed; under progress */
	int burst;		     /* most messages to receive in the next turn; under progress */
	bool heard;		     /* COMM_EST was raised since RESET; under progress */

	/* errors to be polled; allocated with the first one; under progress */
	struct siw_errq *errq;
	struct siw_timed timed;
};

/* Write-Records received, on UD and RD. */
struct siw_records {
	uint32_t max;		 /* most in progress at a time */
	uint32_t reported;	 /* completions queued; under progress */
	_Atomic uint32_t polled; /* how many of these were polled */
	uint32_t seen;		 /* RD: polled, when the peers were last served; under progress */
	_Atomic bool waits;	 /* RD: a paused message goes on after the next poll */
};

struct siw_rc;

/*
 * What an RC queue pair that connects without a connection manager asks of qp_pair.c. progress
 * held.
 */
struct siw_pair_ops {
	/* As in struct siw_qp_class; of modified, the state and the depths are looked at. */
	int (*prepare)(struct siw_rc *rc, int event, const struct siw_qp_attr *attr, int mask);
	void (*modified)(struct siw_rc *rc);
	/* Requests are posted, and there is no stream. */
	void (*turn)(struct siw_rc *rc);
	/* It left RTR and RTS, and has no stream: whatever was begun ends. */
	void (*stop)(struct siw_rc *rc);
	void (*query)(const struct siw_rc *rc, struct siw_qp_attr *attr);
	void (*close)(struct siw_rc *rc);
};

struct siw_rc {
	struct siw_wq wq; /* first */
	/* What the flow's streams are on. While it exists: progress and send_lock to write. */
	struct siw_mpa_stream *mpa;
	/* Equals the MSN of the last Send (RFC 5041: MSNs begin at 1). send_lock. */
	uint32_t sends_begun;
	struct siw_confirm confirm; /* send_lock */
	struct siw_counts counts;
	/* the peer sends Reads of no octets to learn what has arrived; progress */
	bool peer_confirms;
	/* a responder may send once the initiator's first FPDU came (RFC5044-7.1.2-11); set with both locks */
	bool may_send;
	/* The receive of a message that was unfinished when the stream ended, by QPN; progress */
	bool has_torn;
	uint64_t torn;
	uint32_t rnr_msn;	  /* MSN of the oldest Send that waits for a receive; progress */
	uint64_t rnr_deadline_ns; /* how long it may wait; progress */
	uint64_t close_by_ns;
	const struct siw_pair_ops *pairs; /* NULL: a connection manager connects it */
	struct siw_pair *pair;
	struct siw_linger *linger; /* allocated with the QP, so that closing cannot fail */
	bool left_pairing;	   /* it keeps a number of RC by QPN */
	bool counted;		   /* it is counted in ctx->n_rc */
	/*
	 * Its connection, or NULL, and the connection's callback. kind: SIW_CONN_ESTABLISHED, or at
	 * the end SIW_CONN_DISCONNECTED with the cause. progress held.
	 */
	struct siw_qp_conn *conn;
	void (*on_end)(struct siw_qp_conn *conn, int kind, int status,
		       const struct siw_wire_err *err);
	bool has_cause;
	int cause; /* -errno */
	struct siw_wire_err cause_err;
};

struct siw_ud {
	struct siw_wq wq;	   /* first */
	struct siw_llp_sock *sock; /* its only or its first one; perhaps shared with other QPs */
	struct siw_ends *ends;	   /* NULL, or the sockets at every address; shared likewise */
	struct siw_ddp_dgram *ddp; /* on the sockets; dgram is on this */
	struct siw_rdmap_dgram *dgram;
	uint32_t n_groups;    /* groups that it is a member of; progress */
	bool sends_to_groups; /* the socket is set up for sending to groups; send_lock */
	struct siw_records records;
};

/* The circuit breaker of a UC queue pair: qp_uc_breaker.c. Under progress. */
struct siw_breaker {
	bool known;    /* the peer has sent a report: it is to go on with that */
	bool heard;    /* ... and did, in the interval at hand */
	bool open;     /* the rate is cut */
	bool rests;    /* nothing was sent in the last interval: there is none now */
	bool sends;    /* ... but now something is: the next begins; send_lock */
	uint32_t bad;  /* reports in a row that tell of too much loss */
	uint32_t mute; /* intervals in a row with traffic and without a report */
	/* Of the last report that was judged, or of the beginning. */
	struct siw_ddp_uc_report last;
	uint64_t last_ns;
	uint32_t sent;	   /* PSN at the beginning of the interval */
	uint32_t kbits;	   /* open: the rate */
	uint64_t until_ns; /* open: how long */
};

struct siw_uc {
	struct siw_wq wq;	   /* first */
	struct siw_llp_sock *sock; /* that it sends on */
	struct siw_ends *ends;	   /* NULL, or its sockets at every address */
	struct siw_ddp_uc *ddp;	   /* on the socket; end is on this */
	struct siw_rdmap_uc *end;
	/* set from RTR on; progress and send_lock to write, as for dest_qpn */
	struct siw_addr peer;
	uint32_t dest_qpn;
	struct siw_breaker breaker;
};

struct siw_rd_qp {
	struct siw_wq wq; /* first */
	struct siw_rd *endpoint;
	struct siw_ddp_rd *ddp;	  /* on the endpoint, and end's; under the progress lock */
	struct siw_rdmap_rd *end; /* on the endpoint; what follows is under send_lock */
	struct siw_link ready;	  /* flows with something to begin or to continue */
	uint32_t max_peers, peer_timeout_ms;
	struct siw_records records;
};

static inline struct siw_wq *siw_wq_of(const struct siw_qp *qp)
{
	return siw_container(qp, struct siw_wq, qp);
}

static inline struct siw_rc *siw_rc_of(const struct siw_wq *wq)
{
	return siw_container(wq, struct siw_rc, wq);
}

static inline struct siw_ud *siw_ud_of(const struct siw_wq *wq)
{
	return siw_container(wq, struct siw_ud, wq);
}

static inline struct siw_uc *siw_uc_of(const struct siw_wq *wq)
{
	return siw_container(wq, struct siw_uc, wq);
}

static inline struct siw_rd_qp *siw_rd_of(const struct siw_wq *wq)
{
	return siw_container(wq, struct siw_rd_qp, wq);
}

static inline int siw_teardown_of(const struct siw_wq *wq)
{
	return atomic_load_explicit(&wq->teardown, memory_order_relaxed);
}

static inline void siw_set_teardown(struct siw_wq *wq, enum siw_teardown to)
{
	atomic_store_explicit(&wq->teardown, to, memory_order_relaxed);
}

/* Moves teardown forward to to; never back. send_lock held. */
static inline void siw_tear(struct siw_wq *wq, enum siw_teardown to)
{
	if (siw_teardown_of(wq) < (int)to)
		siw_set_teardown(wq, to);
}

/* RC: the stream is being closed, with the QP in ERR. */
static inline bool siw_is_closing(const struct siw_wq *wq)
{
	return siw_teardown_of(wq) == SIW_SHUTTING_DOWN || siw_teardown_of(wq) == SIW_TERMINATING;
}

static inline const struct siw_qp_class *siw_class_of(const struct siw_wq *wq)
{
	return siw_container(wq->qp.ops, const struct siw_qp_class, ops);
}

/*
 * A stream that has shut its sending side and waits for the peer's end of stream, so that closing
 * it does not reset the connection.
 */
struct siw_linger {
	struct siw_io_handler handler;
	struct siw_context *ctx;
	struct siw_mpa_stream *mpa;
	uint64_t deadline_ns;
	struct siw_timed timed;
};

#endif
