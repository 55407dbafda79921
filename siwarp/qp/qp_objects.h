/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_objects.h - the structs of queue pairs by type, and of their send queues. Only the folders
 * that create or connect queue pairs (verbs, connect) use them from outside.
 */
#ifndef SIW_QP_OBJECTS_H
#define SIW_QP_OBJECTS_H

#include "qp/qp.h"
#include "qp/qp_sockets.h"
#include "qp/qp_state.h"
#include "ddp/ddp.h"
#include "ddp/ddp_uc.h"
#include "mpa/mpa.h"
#include "rdmap/rdmap.h"
#include "device/device.h"

enum siw_wqe_state {
	SIW_WQE_POSTED,
	SIW_WQE_BEGUN, /* handed to RDMAP; not complete yet */
	SIW_WQE_DONE,  /* has failed, or is a Read or atomic whose response has arrived */
};

/*
 * A work queue entry: a posted send request in a slot of the send queue. The SGEs follow it in
 * memory, then the inline data.
 */
struct siw_wqe {
	uint64_t wr_id;
	struct siw_wqe *chain; /* the next request of the flow, or the next free slot */
	/*
	 * RC, while BEGUN: the MSN of a Send, or of a Read or Atomic Request. For a Write: its
	 * number in the count of Writes.
	 */
	uint32_t msn;
	uint8_t opcode; /* enum siw_wr_opcode */
	uint8_t state;
	/*
	 * enum siw_wc_status; valid while DONE. RD, while BEGUN: not 0 if the peer has refused the
	 * request.
	 */
	uint8_t status;
	uint32_t flags; /* enum siw_send_flags */
	/*
	 * The request as RDMAP sends it; stamp is valid while BEGUN. UD uses only sgl, nsge, length
	 * (in octets), imm, rkey as the Q_Key, and remote_to as the index of the destination's queue
	 * pair.
	 */
	struct siw_rdmap_op op;
	union {
		struct { /* UD only */
			struct siw_addr dest;
			/* the handle that dest was copied from; only compared */
			const struct siw_ah *ah;
			struct siw_llp_sock *sock; /* the socket that it is sent from */
			/* RDMA_WRITE_RECORD */
			struct {
				uint64_t addr; /* at the target */
				uint64_t sent; /* octets sent so far */
				uint32_t rkey;
			} record;
		};
		struct siw_bind bind;		/* BIND_MW, while POSTED */
		struct siw_rdmap_atomic atomic; /* op.atomic points to it */
	};
	struct siw_sge sge[];
};

/*
 * An ordered sequence of requests to one peer. An RC, UC or UD queue pair has one flow, an RD queue
 * pair has one per peer. A flow that was never used is all zero except for its links. Protected by
 * send_lock.
 */
struct siw_flow {
	/* the oldest request, and the next one to begin; NULL: none */
	struct siw_wqe *first, *next;
	struct siw_wqe *last; /* the newest request; valid unless first is NULL */
	/* RC and RD: the RDMAP stream that carries the requests, or NULL, and its ddp stream. */
	struct siw_rdmap_stream *stream;
	struct siw_ddp_stream *ddp;
	const struct siw_addr *peer; /* RD only */
	uint64_t instance;	     /* RD: the peer's instance number; 0: not known */
	/*
	 * Positions in the unit of stamps. Requests that end at or before accepted are complete.
	 * The memory of requests that end at or before taken is no longer read.
	 */
	uint64_t accepted, taken;
	uint32_t reads_out; /* Reads and atomics whose responses are outstanding */
	/* RD: siw_rdmap_rd_is_torn() holds, and the unfinished request has failed already */
	bool torn;
	struct siw_link busy; /* link in base->flows; RD: linked only while the flow has requests */
	struct siw_link ready; /* RD: link in the QP's ready list */
};

enum siw_revoke_state {
	SIW_REVOKE_NONE,
	SIW_REVOKE_DUE,	  /* the flow's next request waits for siw_qp_mw_settle() */
	SIW_REVOKE_BEGUN, /* siw_qp_mw_settle() is ending the binding */
};

/*
 * The old binding of a memory window that a new bind has replaced, while it still has to be ended.
 */
struct siw_revoke {
	enum siw_revoke_state due;
	const struct siw_wqe *wqe;
	struct siw_bind_rest rest;
};

/*
 * Internal teardown states of a queue pair. Programs see only the states of the table in
 * qp_state.c; most of the states here lie within ERR. The numeric order is used in comparisons.
 *
 *              a request failed; older      ... or the older ones       ... or the stream reads
 *              ones complete first          are not waited for          revoked memory
 *                        |                            |                       |
 *     ALIVE ----------> FAILING ------------------> BROKEN ----------------> CUT
 *       |                |  UC: to SQE, ALIVE       |  RC: the next turn      |  the next turn
 *       |                |                          |  RD: ends the peer's    |  resets the stream
 *       |                |                          |  stream, ALIVE          |
 *       +--- to ERR -----+--------------------------+                         |
 *       |    RC with a stream: sends begun requests                           |
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
	/* no more requests begin; the requests before the failed one complete first */
	SIW_FAILING,
	SIW_BROKEN,	   /* the next turn ends the stream */
	SIW_RESETTING,	   /* as BROKEN, but the next turn resets the TCP connection */
	SIW_SHUTTING_DOWN, /* ERR: requests that have begun are still being sent */
	SIW_TERMINATING,   /* ERR: as SHUTTING_DOWN, followed by a Terminate */
	SIW_FLUSHED,	   /* ERR: all requests were flushed; new requests are flushed at once */
	SIW_DEAD,	   /* destroyed; the memory is kept because late calls may still use it */
};

/* The result of a sending turn. */
enum siw_run {
	SIW_RUN_DONE, /* everything was sent */
	/* requests are left: the socket is full, or ORD or a fence holds them back */
	SIW_RUN_BLOCKED,
	SIW_RUN_MORE, /* requests are left, and the next turn can continue with them */
};

/*
 * Confirmation of delivery by Reads, used with persona roce and a peer that is not known to be
 * siwarp. The fields count requests begun. The response to an empty Read or to an atomic confirms
 * all earlier requests. The response to a Read that returns data confirms only earlier Writes: a
 * siwarp peer answers such a Read even if an earlier Send still waits for its receive. If no Read
 * is queued behind the requests that need confirmation, an empty Read is sent, one at a time.
 */
struct siw_confirm {
	bool on;	       /* false: completion does not depend on Reads */
	bool read_outstanding; /* an empty Read is outstanding */
	/* the last request was long: send an empty Read before the next request */
	bool due;
	uint32_t wanted;  /* the count up to which a confirmation is needed */
	uint32_t covered; /* the count up to which outstanding Reads will confirm */
	uint32_t sends;	  /* count of requests up to the last one begun that consumes a receive */
};

/*
 * Delivery counts, exchanged with a siwarp peer. With persona roce, a Send or Write of this end is
 * complete when the peer's count covers it. Counts sent to the peer: see qp_rc.c.
 */
struct siw_delivery_counts {
	bool on; /* this end requested counts, and completes requests by them */
	/*
	 * announce to the peer, before the next request, that this end wants counts; under
	 * send_lock
	 */
	bool announce;
	uint32_t writes_begun;	/* Writes begun; send_lock, also for the next line */
	uint32_t sends, writes; /* the peer's latest counts */
	/*
	 * the peer's rnr_retry; -1: not announced. Protected by the progress lock, as are the
	 * fields below.
	 */
	int rnr_retry;
	/* rnr_retry was set by this end's program; the peer's announcements are ignored */
	bool rnr_fixed;
	uint32_t octets;	      /* octets received since this end last sent a count */
	uint64_t last_alone_ns;	      /* when a count was last sent without a message behind it */
	uint64_t last_received_round; /* the progress round in which data was last received */
	/* the progress round after which the program may have polled the resulting completions */
	uint64_t last_seen_round;
};

struct siw_base_qp;

/*
 * Counts the posts on a queue pair since the program's last poll of an empty CQ, or since its last
 * SIW_POLLS_PER_BURST polls that returned completions. Used by siw_qp_may_delay_post(). Under send_lock.
 */
struct siw_post_round {
	uint32_t polls; /* siw_qp_poll_round() at the first post of this round */
	uint32_t posts;
	/* number of preceding rounds with several posts each and no pause between them */
	uint32_t dense;
	uint64_t octets;   /* octets of the posts that are delayed for a batch */
	uint64_t began_ns; /* 0: not known */
};

/* Properties and functions that differ between the types of queue pairs. */
struct siw_qp_class {
	struct siw_qp_ops ops; /* must be first */
	size_t size;	       /* size of the type's struct in octets */
	bool has_records;      /* sends and receives Write-Records */
	bool has_errors;       /* supports siw_poll_err(); RC reports errors by ending its stream */
	bool shares_socket;    /* several QPs may share one socket */
	bool binds;	       /* supports window binds by work requests, and LOCAL_INV */
	bool lazy_slots;       /* most requests need no slot of the send queue */
	bool many_flows;       /* has one flow per peer */
	bool has_rights;       /* peers can have access rights to this end's memory */
	int type;	       /* enum siw_qp_type */
	uint32_t opcodes;      /* supported opcodes: a set of 1 << enum siw_wr_opcode */
	/* a turn stops beginning requests once they add up to this many octets */
	uint64_t turn_octets;
	/*
	 * posts may be delayed for a batch up to this many octets; 0: never delayed. See
	 * siw_qp_may_delay_post().
	 */
	uint32_t wait_octets;
	/* enum siw_wc_status of a request that failed for a reason other than its memory */
	int failure;
	/*
	 * create copies the caller's attributes and opens the first socket, or prepares for a
	 * connection. open opens a socket bound to addr, or replaces the socket with the descriptor
	 * fd of the user (-1: none). 0 or -errno. Progress lock held, also for the members below
	 * unless they say otherwise.
	 */
	int (*create)(struct siw_base_qp *base, const struct siw_qp_init_attr *init);
	int (*open)(struct siw_base_qp *base, const struct siw_addr *addr, int fd);
	/* Whether the QP may be destroyed now: 0 or -errno. */
	int (*may_destroy)(const struct siw_base_qp *base);
	/* Called before a QP is destroyed, while all its resources are still open. */
	void (*before_destroy)(struct siw_base_qp *base);
	/*
	 * Frees the type's own resources. Harmless if called twice, or for a QP whose creation
	 * failed.
	 */
	void (*close)(struct siw_base_qp *base);
	/*
	 * The QP's own address; peer is set only for a connection. -ENOTCONN: the QP has no
	 * address.
	 */
	int (*addr)(const struct siw_base_qp *base, struct siw_addr *own, struct siw_addr *peer);
	void (*query_attr)(const struct siw_base_qp *base, struct siw_qp_attr *attr);
	void (*query_init)(const struct siw_base_qp *base, struct siw_qp_init_attr *init);
	/*
	 * Called before the state step of an event, for the parts that may fail: 0 or -errno.
	 * Before a step to ERR or RESET, it also receives the messages that have arrived already.
	 */
	int (*prepare)(struct siw_base_qp *base, int event, const struct siw_qp_attr *attr,
		       int mask);
	/* The state has changed: starts or stops receiving. */
	void (*receive)(struct siw_base_qp *base);
	/* Attributes have changed; called last. */
	void (*modified)(struct siw_base_qp *base, int mask);
	/* The QP is in ERR: ends the work in progress, then calls siw_qp_flush(). */
	void (*end)(struct siw_base_qp *base);
	/* The QP goes to RESET: releases everything at once. */
	void (*release)(struct siw_base_qp *base);

	/* Sending. send_lock held, for all members down to take_recv. */
	int (*post)(struct siw_base_qp *base, const struct siw_send_wr *wr, bool wait);
	/* Whether post would accept the request if the queue had room: 0 or more, or -errno. */
	int64_t (*check)(struct siw_base_qp *base, const struct siw_send_wr *wr);
	enum siw_run (*run)(struct siw_base_qp *base);
	/* SQD to RTS: called before run. */
	void (*resume)(struct siw_base_qp *base);
	/*
	 * begin starts a request: 0; -EAGAIN: not possible now; or -errno. failed is called when a
	 * request could not be started; status: enum siw_wc_status.
	 */
	int (*begin)(struct siw_base_qp *base, struct siw_flow *flow, struct siw_wqe *wqe);
	void (*failed)(struct siw_base_qp *base, struct siw_flow *flow, int status);
	/*
	 * Passes the requests that have begun to the layer below; returns as siw_rdmap_flush().
	 * Updates the flow's accepted and taken.
	 */
	int (*flush)(struct siw_base_qp *base, struct siw_flow *flow);
	/*
	 * All requests have ended: discards the protocol state of requests and of unfinished
	 * Write-Records.
	 */
	void (*discard_state)(struct siw_base_qp *base);
	/* The receive that an unfinished message has consumed: 1 and its wr_id, or 0. */
	int (*take_recv)(struct siw_base_qp *base, uint64_t *wr_id);
	/* The Write-Record with that number, or NULL. Progress lock held. */
	const struct siw_rdmap_record *(*find_record)(struct siw_base_qp *base, uint64_t number);
	/*
	 * Whether the stream still has to send a Read Response from the memory of that STag, in
	 * which case it must be reset.
	 */
	bool (*is_sending)(struct siw_base_qp *base, uint32_t stag);
	/* A local request (bind or invalidation) is done: updates the type's confirmation state. */
	void (*did_local)(struct siw_base_qp *base, struct siw_wqe *wqe);
};

/* The class of a type (enum siw_qp_type), or NULL. */
const struct siw_qp_class *siw_qp_class_of_type(int type);

/* The work queues, and the other state common to all types. */
struct siw_base_qp {
	struct siw_qp qp; /* must be first */
	void *user;
	/* connection ids that use the QP, each with a struct siw_qp_hold; under the progress lock */
	struct siw_link holds;
	bool sig_all, no_crc;
	bool grh;	      /* UD: each received message is preceded by a GRH */
	bool every_addr;      /* UD, UC: has a socket at each address of the device */
	bool roce;	      /* persona roce */
	bool keep_unexpected; /* a Send without a receive waits for one, with any persona */
	bool private;	      /* the peer is siwarp: siwarp-private messages may be sent */
	bool private_always;  /* siwarp-private messages may be sent even if the setting is off */
	bool errs_fatal;      /* the effective error_policy; under the progress lock */
	int error_policy;     /* enum siw_error_policy */
	uint32_t qkey;
	int access, ord, ird; /* ord, ird: -1: not set */
	int rnr_retry, min_rnr_timer;
	uint32_t rate_limit; /* UD, UC: kbit/s; 0: none */
	struct siw_qp_cap cap;
	/* has a stream; written with the progress lock and send_lock held */
	bool connected;
	uint16_t granted_ord, granted_ird; /* negotiated with the peer */
	/* the effective ORD, which SQD may lower; under send_lock */
	uint16_t reads_max;
	/* error code of the Terminate that ended the stream, as vendor_err of struct siw_wc */
	uint32_t wire_err;

	/* The send queue, under send_lock. */
	char *sq;		   /* memory of the slots */
	uint32_t sq_stride;	   /* in octets */
	uint32_t sq_mask;	   /* number of slots minus one */
	uint32_t sq_used;	   /* number of slots used at least once */
	struct siw_wqe *sq_free;   /* list of free slots among those used before */
	uint32_t sq_head, sq_tail; /* number of requests completed, and posted */
	uint32_t begun;		   /* number of requests begun and not complete */
	struct siw_flow flow;	   /* not used by types with many_flows */
	struct siw_link flows;
	struct siw_revoke revoke;
	bool draining;	 /* in SQD, with requests that have begun and are not complete */
	bool sqd_notify; /* raise SQ_DRAINED when the send queue has drained */
	/*
	 * enum siw_teardown; written with send_lock held, from SHUTTING_DOWN on also the progress
	 * lock
	 */
	_Atomic int teardown;
	struct siw_post_round round;

	/* The receive queue. */
	struct siw_mem_queue *recvs; /* the QP's own receive queue, or the SRQ's */
	uint32_t rq_posted;	     /* under recv_lock */
	uint32_t rq_done;	     /* number of receives completed; under the progress lock */
	/* maximum number of messages to receive in the next turn; under the progress lock */
	int burst;
	bool comm_established; /* COMM_EST was raised since RESET; under the progress lock */

	/*
	 * error entries for siw_poll_err(); allocated with the first entry; under the progress lock
	 */
	struct siw_errq *errq;
	struct siw_timed timed;
};

/* Bookkeeping of received Write-Records, on UD and RD. */
struct siw_records {
	uint32_t max;		 /* maximum number in progress at a time */
	uint32_t reported;	 /* number of completions queued; under the progress lock */
	_Atomic uint32_t polled; /* how many of these completions were polled */
	/* RD: value of polled when the peers were last served; under the progress lock */
	uint32_t seen;
	_Atomic bool waits; /* RD: a paused message waits for the next poll */
};

struct siw_rc_qp;

/*
 * Functions of connect_pair.c that an RC queue pair without a connection manager calls. Progress lock
 * held.
 */
struct siw_pair_ops {
	/* As in struct siw_qp_class; modified reacts to the state and to the Read depths. */
	int (*prepare)(struct siw_rc_qp *rc, int event, const struct siw_qp_attr *attr, int mask);
	void (*modified)(struct siw_rc_qp *rc);
	/* Called when requests are posted and there is no stream. */
	void (*turn)(struct siw_rc_qp *rc);
	/* Called when the QP has left RTR and RTS and has no stream: ends connection start-up. */
	void (*stop)(struct siw_rc_qp *rc);
	void (*query)(const struct siw_rc_qp *rc, struct siw_qp_attr *attr);
	void (*close)(struct siw_rc_qp *rc);
};

struct siw_rc_qp {
	struct siw_base_qp base; /* must be first */
	/*
	 * The MPA stream below the flow's streams. While it exists, written with the progress lock
	 * and send_lock held.
	 */
	struct siw_mpa_stream *mpa;
	/*
	 * Number of Sends begun, which equals the MSN of the last Send (RFC 5041: MSNs begin at 1).
	 * send_lock.
	 */
	uint32_t sends_begun;
	struct siw_confirm confirm; /* protected by send_lock */
	struct siw_delivery_counts counts;
	/* the peer sends empty Reads to learn what has arrived; under the progress lock */
	bool peer_confirms;
	/*
	 * a responder may send once the initiator's first FPDU has arrived (RFC5044-7.1.2-11); set
	 * with both locks
	 */
	bool may_send;
	/*
	 * QPs that connect by QPN: wr_id of the receive of a message that was unfinished when the
	 * stream ended; under the progress lock
	 */
	bool has_torn;
	uint64_t torn;
	/* MSN of the oldest Send that waits for a receive; under the progress lock */
	uint32_t rnr_msn;
	uint64_t rnr_deadline_ns; /* deadline of that Send; under the progress lock */
	uint64_t close_by_ns;
	const struct siw_pair_ops *pairs; /* NULL: a connection manager connects it */
	struct siw_pair *pair;
	struct siw_linger *linger; /* allocated with the QP, so that closing cannot fail */
	bool left_pairing;	   /* created for RC by QPN, now connected by cm; keeps its QPN */
	bool counted;		   /* included in ctx->n_rc */
	/*
	 * The connection of the QP, or NULL, and its callbacks, called with the progress lock held:
	 * the stream has started, and the stream has ended for this cause (-errno or 0).
	 */
	struct siw_conn *conn;
	void (*on_started)(struct siw_conn *conn);
	void (*on_ended)(struct siw_conn *conn, int status, const struct siw_wire_err *err);
	bool has_cause;
	int cause; /* -errno */
	struct siw_wire_err cause_err;
};

struct siw_ud_qp {
	struct siw_base_qp base;   /* must be first */
	struct siw_llp_sock *sock; /* the QP's only or first socket; may be shared with other QPs */
	struct siw_addr_socks
		*socks;		   /* NULL, or the sockets at every address; may be shared, too */
	struct siw_ddp_dgram *ddp; /* datagram DDP on the sockets; dgram is layered on it */
	struct siw_rdmap_dgram *dgram;
	/* number of multicast groups that the QP is a member of; under the progress lock */
	uint32_t n_groups;
	bool sends_to_groups; /* the socket is set up for sending to groups; under send_lock */
	struct siw_records records;
};

/* The circuit breaker of a UC queue pair: qp_uc.c. Under the progress lock. */
struct siw_breaker {
	bool reports_expected; /* the peer has sent a report, so further reports are expected */
	bool report_seen;      /* a report has arrived in the current interval */
	bool open;	       /* the breaker is open: the rate is cut */
	bool paused; /* nothing was sent in the last interval, and no interval is running */
	/* traffic has resumed after a rest: start the next interval; under send_lock */
	bool resumed;
	uint32_t bad_reports; /* number of consecutive reports of excessive loss */
	uint32_t
		silent_intervals; /* number of consecutive intervals with traffic but without a report */
	/* The last report evaluated and its time, or the initial values. */
	struct siw_ddp_uc_report last;
	uint64_t last_ns;
	uint32_t sent;	   /* PSN at the beginning of the interval */
	uint32_t kbits;	   /* while open: the rate limit in kbit/s */
	uint64_t until_ns; /* while open: when the limit ends */
};

struct siw_uc_qp {
	struct siw_base_qp base;      /* must be first */
	struct siw_llp_sock *sock;    /* the socket used for sending */
	struct siw_addr_socks *socks; /* NULL, or the QP's sockets at every address */
	struct siw_ddp_uc *ddp;	      /* UC DDP on the socket; end is layered on it */
	struct siw_rdmap_uc *end;
	/* set from RTR on; written with the progress lock and send_lock held, as is dest_qpn */
	struct siw_addr peer;
	uint32_t dest_qpn;
	struct siw_breaker breaker;
};

struct siw_rd_qp {
	struct siw_base_qp base; /* must be first */
	struct siw_rd *endpoint;
	struct siw_ddp_rd *ddp;	  /* DDP on the endpoint, below end; under the progress lock */
	struct siw_rdmap_rd *end; /* RDMAP on ddp. The fields below are under send_lock. */
	struct siw_link ready;	  /* list of flows with requests to begin or to continue */
	uint32_t max_peers, peer_timeout_ms;
	struct siw_records records;
};

static inline struct siw_base_qp *siw_base_qp_of(const struct siw_qp *qp)
{
	return siw_container(qp, struct siw_base_qp, qp);
}

static inline struct siw_rc_qp *siw_rc_qp_of(const struct siw_base_qp *base)
{
	return siw_container(base, struct siw_rc_qp, base);
}

static inline struct siw_ud_qp *siw_ud_qp_of(const struct siw_base_qp *base)
{
	return siw_container(base, struct siw_ud_qp, base);
}

static inline struct siw_uc_qp *siw_uc_qp_of(const struct siw_base_qp *base)
{
	return siw_container(base, struct siw_uc_qp, base);
}

static inline struct siw_rd_qp *siw_rd_qp_of(const struct siw_base_qp *base)
{
	return siw_container(base, struct siw_rd_qp, base);
}

static inline int siw_teardown_of(const struct siw_base_qp *base)
{
	return atomic_load_explicit(&base->teardown, memory_order_relaxed);
}

static inline void siw_set_teardown(struct siw_base_qp *base, enum siw_teardown to)
{
	atomic_store_explicit(&base->teardown, to, memory_order_relaxed);
}

/* Advances the teardown state; never moves it back. send_lock held. */
static inline void siw_tear(struct siw_base_qp *base, enum siw_teardown to)
{
	if (siw_teardown_of(base) < (int)to)
		siw_set_teardown(base, to);
}

/* RC: the stream is being closed, with the QP in ERR. */
static inline bool siw_is_closing(const struct siw_base_qp *base)
{
	return siw_teardown_of(base) == SIW_SHUTTING_DOWN ||
	       siw_teardown_of(base) == SIW_TERMINATING;
}

static inline const struct siw_qp_class *siw_class_of(const struct siw_base_qp *base)
{
	return siw_container(base->qp.ops, const struct siw_qp_class, ops);
}

/*
 * A stream that has shut down its sending side and waits for the peer's end of stream, so that
 * closing the socket does not reset the connection.
 */
struct siw_linger {
	struct siw_io_handler handler;
	struct siw_context *ctx;
	struct siw_mpa_stream *mpa;
	uint64_t deadline_ns;
	struct siw_timed timed;
};

#endif
