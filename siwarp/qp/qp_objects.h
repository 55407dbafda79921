/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_objects.h - queue pairs by type, and what is in their send queues; private to this folder.
 */
#ifndef SIW_QP_OBJECTS_H
#define SIW_QP_OBJECTS_H

#include "qp/qp.h"
#include "qp/qp_state.h"
#include "ddp/ddp.h"
#include "mpa/mpa.h"
#include "rdmap/rdmap.h"
#include "verbs/verbs.h"

enum siw_wqe_state {
	SIW_WQE_POSTED,
	SIW_WQE_BEGUN, /* handed to RDMAP */
	SIW_WQE_DONE,  /* a Read or an atomic whose response came, or one in error */
};

/* A posted send, in a slot. Followed in memory by its SGEs, then its inline octets. */
struct siw_wqe {
	uint64_t wr_id;
	uint64_t length;		      /* octets */
	union {				      /* BEGUN */
		struct siw_rdmap_stamp stamp; /* RC, RD */
		uint64_t seq;		      /* UC: its number, where the stamp's end lies */
	};
	uint64_t remote;
	uint32_t msn;	/* RC, BEGUN: of a Send or a Read or Atomic Request */
	uint32_t rkey;	/* UD: the Q_Key */
	uint8_t opcode; /* enum siw_wr_opcode */
	uint8_t state;
	uint8_t status; /* enum siw_wc_status: DONE; RD, BEGUN: the peer refused it, if not 0 */
	uint8_t nsge;
	uint32_t flags; /* enum siw_send_flags */
	union {
		struct { /* UD */
			struct siw_addr dest;
			uint32_t send_imm;	 /* SEND_WITH_IMM */
			const struct siw_ah *ah; /* dest is of; only compared */
			struct { /* RDMA_WRITE_RECORD: the peer's; seq: octets sent */
				uint64_t addr;
				uint32_t rkey;
			} record;
		};
		struct siw_bind bind; /* BIND_MW, while it is POSTED */
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
 * One ordered run of requests to one peer: RC, UC and UD have one, RD has one for each peer. All
 * zero but for the links: it was never used. send_lock.
 */
struct siw_flow {
	struct siw_wqe *first, *next; /* the oldest, and the next to begin; NULL: there is none */
	struct siw_wqe *last;	      /* the newest, while there is a first one */
	/* RC and RD: where they go, NULL: there is none; and what that stands on. */
	struct siw_rdmap_stream *stream;
	struct siw_ddp_stream *ddp;
	const struct siw_addr *peer; /* RD */
	/* As stamps count: what ends there or before is complete, or is not read any more. */
	uint64_t accepted, taken;
	uint32_t reads_out;   /* Reads and atomics without their responses */
	bool torn;	      /* RD: siw_rdmap_rd_is_torn, and the request that broke off says so */
	struct siw_link busy; /* in flows of its QP; RD: while it has requests */
	struct siw_link ready; /* RD: in ready */
};

enum siw_revoke_state {
	SIW_REVOKE_NONE,
	SIW_REVOKE_DUE,	  /* the request, the next of its flow, waits for siw_qp_mw_settle */
	SIW_REVOKE_BEGUN, /* ... which is at it */
};

/* What is left of a window's binding that a bind has ended. */
struct siw_revoke {
	enum siw_revoke_state due;
	const struct siw_wqe *wqe;
	struct siw_bind_rest rest;
};

/*
 * How far a queue pair is with coming to its end. The table of states (qp_state.c) says what a
 * program sees; this is what happens behind it, mostly within ERR. In order: each is further than
 * those before it.
 *
 *              a request failed, those      ... or nobody waits     ... or the stream refers to
 *              ahead of it complete         for those ahead of it   memory that it may not
 *                       |                            |                       |
 *    ALIVE ----------> FAILING ------------------> BROKEN ----------------> CUT
 *      |                |  UC: to SQE, ALIVE       |  RC: the next turn      |  the next turn
 *      |                |                          |  RD: ends the peer's    |  resets the stream
 *      |                |                          |  stream, ALIVE          |
 *      +--- to ERR -----+--------------------------+                         |
 *      |    RC with a stream: what was begun goes out                        |
 *      v                                                                     |
 *    SHUTTING_DOWN or TERMINATING                                            |
 *      |    all is out, or its time is over                                  |
 *      v                                                                     |
 *    FLUSHED <---------------------------------------------------------------+
 *      |    to RESET: ALIVE
 *      v
 *    DEAD   destroyed
 */
enum siw_teardown {
	SIW_ALIVE,
	/* nothing more begins; those ahead of the request that failed complete first */
	SIW_FAILING,
	SIW_BROKEN,	   /* the stream ends at the next turn */
	SIW_CUT,	   /* the same, by a reset */
	SIW_SHUTTING_DOWN, /* ERR: what was begun is on its way out */
	SIW_TERMINATING,   /* ERR: the same, and a Terminate */
	SIW_FLUSHED, /* ERR: what was posted before is complete, and what is posted is so at once */
	SIW_DEAD,    /* destroyed, and kept for those who come too late */
};

/* What a turn at sending left behind. */
enum siw_run {
	SIW_RUN_DONE,	 /* nothing */
	SIW_RUN_BLOCKED, /* something, and the socket is full (or ORD, or a fence) */
	SIW_RUN_MORE,	 /* something that can go on at the next turn */
};

/*
 * Persona roce: how far the peer is known to have what was sent, in numbers of requests begun.
 * Any Read tells it of all that went before; where there is none behind what waits, one of nothing
 * is sent, one at a time.
 */
struct siw_confirm {
	bool on;	  /* off: TCP's acceptance completes */
	bool asked;	  /* a Read of nothing is on its way */
	bool due;	  /* a long request was last: one goes ahead of the next request */
	uint32_t wanted;  /* so many: the last one that somebody waits for */
	uint32_t covered; /* ... that a Read on its way will confirm */
};

struct siw_wq;

/* What a type of queue pairs is: the differences, once. */
struct siw_qp_class {
	struct siw_qp_ops ops; /* first */
	size_t size;	       /* octets of its struct */
	bool has_records;      /* it takes and sends Write-Records */
	bool has_errors;       /* siw_poll_err; a stream's end says what was wrong instead */
	bool shares_socket;    /* several may use one socket */
	bool may_wait;	       /* a post may wait for others to go down with it: siw_qp_may_wait */
	bool binds;	       /* windows, by requests; and LOCAL_INV */
	bool lazy_slots;       /* most requests need no slot */
	bool many_flows;       /* one for each peer */
	bool has_rights;       /* of peers, in this end's memory */
	int type;	       /* enum siw_qp_type */
	uint32_t opcodes;      /* set of 1 << enum siw_wr_opcode */
	uint64_t turn_octets;  /* that one turn begins, at least */
	int failure; /* enum siw_wc_status of a request that could not be, if not for its memory */
	/*
	 * Takes over the caller's attributes; the first socket, or what comes before a connection:
	 * 0 or -errno. fd: the user's, replaces the socket; or -1. progress held, as below unless
	 * something else is said.
	 */
	int (*create)(struct siw_wq *wq, const struct siw_qp_init_attr *init);
	int (*open)(struct siw_wq *wq, const struct siw_addr *addr, int fd);
	/* Whether it may be destroyed now: 0 or -errno. */
	int (*may_end)(const struct siw_wq *wq);
	/*
	 * What it has of its own goes. Said twice, or of one that was never whole, it does no harm.
	 */
	void (*close)(struct siw_wq *wq);
	/* -ENOTCONN: it has none. peer: of a connection, else as it was. */
	int (*addr)(const struct siw_wq *wq, struct siw_addr *own, struct siw_addr *peer);
	void (*query_attr)(const struct siw_wq *wq, struct siw_qp_attr *attr);
	void (*query_init)(const struct siw_wq *wq, struct siw_qp_init_attr *init);
	/*
	 * What must be done before an event's step, and may fail: 0 or -errno. Before it goes to
	 * ERR or RESET, too: what has come is taken in.
	 */
	int (*prepare)(struct siw_wq *wq, int event, const struct siw_qp_attr *attr, int mask);
	/* The state is another: what comes from now on is received, or is not. */
	void (*receive)(struct siw_wq *wq);
	/* Attributes are others, and all else is done. */
	void (*modified)(struct siw_wq *wq, int mask);
	/* It is in ERR: ends what goes on, then siw_qp_flush. */
	void (*end)(struct siw_wq *wq);
	/* It goes to RESET: lets go of everything at once. */
	void (*release)(struct siw_wq *wq);

	/* Sending; send_lock held, as for all down to take_recv. */
	int (*post)(struct siw_wq *wq, const struct siw_send_wr *wr, bool wait);
	enum siw_run (*run)(struct siw_wq *wq);
	/* Back from SQD to RTS, before run. */
	void (*resume)(struct siw_wq *wq);
	/*
	 * Begins a request: 0; -EAGAIN not now; -errno. What it means
	 * that one could not be (err: that -errno, or an enum siw_wc_status).
	 */
	int (*begin)(struct siw_wq *wq, struct siw_flow *flow, struct siw_wqe *wqe);
	void (*failed)(struct siw_wq *wq, struct siw_flow *flow, int status);
	/*
	 * Gives what was begun to the layer below, as siw_rdmap_flush, and sees how far the flow
	 * is.
	 */
	int (*flush)(struct siw_wq *wq, struct siw_flow *flow);
	/*
	 * Requests are over: the protocol forgets what it knows of them, and the receiving side
	 * Write-Records.
	 */
	void (*abandon)(struct siw_wq *wq);
	/* The receive that a message broken off in its middle has taken: 1 and its wr_id, or 0. */
	int (*take_recv)(struct siw_wq *wq, uint64_t *wr_id);
	/* The Write-Record of that number, or NULL. progress held. */
	const struct siw_rdmap_record *(*find_record)(struct siw_wq *wq, uint64_t number);
	/*
	 * Whether the stream still has to send a Read's response from there, and so must be reset.
	 */
	bool (*is_sending)(struct siw_wq *wq, uint32_t stag);
	/* A request has happened at this end alone: its number, and who waits for it. */
	void (*did_local)(struct siw_wq *wq, struct siw_wqe *wqe);
};

/* The work queues, and what else queue pairs of every type have. */
struct siw_wq {
	struct siw_qp qp; /* first */
	void *user;
	_Atomic uint32_t held; /* connection ids that point here */
	bool sig_all, no_crc;
	bool roce;	      /* persona */
	bool keep_unexpected; /* a Send without a receive waits for one, whatever the persona */
	bool private;	      /* its peer is siwarp, and messages of siwarp's own may go there */
	bool errs_fatal;      /* what error_policy comes to now: progress */
	int error_policy;     /* enum siw_error_policy */
	uint32_t qkey;
	int access, ord, ird; /* ord, ird: -1 not set */
	int rnr_retry, min_rnr_timer;
	struct siw_qp_cap cap;
	bool connected; /* a stream is its own: progress and send_lock to write */
	uint16_t granted_ord, granted_ird; /* what both ends agreed on */
	uint16_t reads_max;		   /* ORD now: SQD may lower it: send_lock */
	uint32_t wire_err; /* of the Terminate that ended it, as in struct siw_wc's vendor_err */

	/* The send queue: send_lock. */
	char *sq;		   /* slots of WQEs */
	uint32_t sq_stride;	   /* octets */
	uint32_t sq_mask;	   /* their number less one */
	uint32_t sq_used;	   /* slots that were ever used */
	struct siw_wqe *sq_free;   /* ... and are free again */
	uint32_t sq_head, sq_tail; /* requests that are complete, and all of them */
	uint32_t begun;		   /* requests begun and not complete */
	struct siw_flow flow;	   /* unless there are many */
	struct siw_link flows;
	struct siw_revoke revoke;
	bool draining;	 /* in SQD, and what was begun is not complete yet */
	bool sqd_notify; /* and somebody wants to know when it is */
	/* enum siw_teardown: send_lock to write; from SHUTTING_DOWN on progress, too */
	_Atomic int teardown;
	uint32_t polls_at_post; /* ctx->polls at the last post */

	/* The receive queue. */
	struct siw_mem_queue *recvs; /* its own, or the SRQ's */
	uint32_t rq_posted;	     /* recv_lock */
	uint32_t rq_done;	     /* receives completed: progress */
	int burst;		     /* messages to ask for at the next turn: progress */
	bool heard;		     /* COMM_EST was raised since it left RESET: progress */

	struct siw_errq *errq; /* errors to be read, made with the first: progress */
	struct siw_timed timed;
};

/* Write-Records that come: UD and RD. */
struct siw_records {
	uint32_t max;		 /* in process, at the most */
	uint32_t reported;	 /* completions of them: progress */
	_Atomic uint32_t polled; /* of these */
	uint32_t seen;		 /* RD: polled, when what comes was looked at: progress */
	_Atomic bool waits;	 /* RD: one is to come up when one was polled */
};

struct siw_rc {
	struct siw_wq wq; /* first */
	/* What the flow's streams stand on. All while it lives: progress and send_lock to write. */
	struct siw_mpa_stream *mpa;
	/* The MSN of the last Send, too (RFC 5041: they count from 1): send_lock. */
	uint32_t sends_begun;
	struct siw_confirm confirm; /* send_lock */
	bool peer_confirms; /* by Reads of nothing whether its messages are here: progress */
	/* a responder: once the initiator's first FPDU came (RFC5044-7.1.2-11): progress */
	bool may_send;
	uint32_t rnr_msn;	  /* the oldest Send that waits for a receive: progress */
	uint64_t rnr_deadline_ns; /* it waits until then: progress */
	uint64_t close_by_ns;
	struct siw_linger *linger; /* made with the QP, so that closing cannot fail */
	bool counted;		   /* in ctx->n_rc */
	/*
	 * Its connection, or NULL, and how that hears of it: kind is SIW_CONN_ESTABLISHED, or at
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
	struct siw_llp_sock *sock; /* perhaps others', too */
	struct siw_rdmap_dgram *dgram;
	uint32_t n_groups;    /* that it is a member of: progress */
	bool sends_to_groups; /* its socket is made ready for that: send_lock */
	struct siw_records records;
};

struct siw_uc {
	struct siw_wq wq; /* first */
	struct siw_llp_sock *sock;
	struct siw_ddp_uc *ddp; /* on the socket, and on that: */
	struct siw_rdmap_uc *end;
	struct siw_addr peer; /* from RTR on: progress and send_lock to write, as */
	uint32_t dest_qpn;
};

struct siw_rd_qp {
	struct siw_wq wq; /* first */
	struct siw_rd *endpoint;
	struct siw_rdmap_rd *end; /* on that; what follows: send_lock */
	struct siw_link ready;	  /* flows with something to begin or to go on with */
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

/* It comes that far at least. send_lock held. */
static inline void siw_tear(struct siw_wq *wq, enum siw_teardown to)
{
	if (siw_teardown_of(wq) < (int)to)
		siw_set_teardown(wq, to);
}

/* RC: its stream is being shut, with the QP in ERR. */
static inline bool siw_is_closing(const struct siw_wq *wq)
{
	return siw_teardown_of(wq) == SIW_SHUTTING_DOWN || siw_teardown_of(wq) == SIW_TERMINATING;
}

static inline const struct siw_qp_class *siw_class_of(const struct siw_wq *wq)
{
	return siw_container(wq->qp.ops, const struct siw_qp_class, ops);
}

/* A stream that sent its end and waits for the peer's, so that closing it resets nothing. */
struct siw_linger {
	struct siw_io_handler handler;
	struct siw_context *ctx;
	struct siw_mpa_stream *mpa;
	uint64_t deadline_ns;
	struct siw_timed timed;
};

#endif
