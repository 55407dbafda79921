/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_objects.h - the structs of the queue pair types, and of their send queues. Outside qp/,
 * only the folders that create or connect queue pairs (verbs, connect) use these structs.
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
	SIW_WQE_BEGUN, /* the request was passed to RDMAP and is not complete yet */
	/* the request has failed, or is a Read or atomic whose response has arrived */
	SIW_WQE_DONE,
};

/*
 * A work queue entry: a posted send request in a slot of the send queue. In memory, the SGEs follow
 * the work queue entry, then the inline data.
 */
struct siw_wqe {
	uint64_t wr_id;
	/* the next request of the flow; in a free slot: the next free slot */
	struct siw_wqe *chain;
	/*
	 * on RC, while the request is BEGUN: the MSN of a Send, or of a Read or Atomic Request; for
	 * a Write, its number in the count of Writes
	 */
	uint32_t msn;
	uint8_t opcode; /* enum siw_wr_opcode */
	uint8_t state;
	/*
	 * enum siw_wc_status; valid while the request is DONE. On RD, while the request is BEGUN:
	 * not 0 if the peer has refused the request.
	 */
	uint8_t status;
	uint32_t flags; /* enum siw_send_flags */
	/*
	 * The request in the form that RDMAP sends; stamp is valid while the request is BEGUN. UD
	 * uses only sgl, nsge, length (in octets), imm, rkey as the Q_Key, and remote_to as the
	 * index of the destination's queue pair.
	 */
	struct siw_rdmap_op op;
	union {
		struct { /* UD only */
			struct siw_addr dest;
			/*
			 * the address handle that dest was copied from; the pointer is only
			 * compared
			 */
			const struct siw_ah *ah;
			struct siw_llp_sock *sock; /* the socket that the message is sent from */
			/* RDMA_WRITE_RECORD */
			struct {
				uint64_t addr; /* address in the target's memory */
				uint64_t sent; /* octets of the message sent so far */
				uint32_t rkey;
			} record;
		};
		struct siw_bind bind; /* the bind of a BIND_MW request in state POSTED */
		/* the operands of an atomic request; op.atomic points to this member */
		struct siw_rdmap_atomic atomic;
	};
	struct siw_sge sge[];
};

/*
 * A flow: an ordered sequence of requests to one peer. An RC, UC or UD queue pair has one flow, an
 * RD queue pair has one flow per peer. A flow that was never used is all zero except for its links.
 * Protected by send_lock.
 */
struct siw_flow {
	/* the oldest request, and the next request to begin; NULL: none */
	struct siw_wqe *first, *next;
	struct siw_wqe *last; /* the newest request; valid unless first is NULL */
	/* on RC and RD, the RDMAP stream that carries the requests, or NULL, and its DDP stream */
	struct siw_rdmap_stream *stream;
	struct siw_ddp_stream *ddp;
	const struct siw_addr *peer; /* RD only */
	uint64_t instance;	     /* RD: the peer's instance number; 0: not known */
	/*
	 * Stream positions, in the unit of struct siw_rdmap_stamp. Requests that end at or before
	 * `accepted` are complete. The memory of requests that end at or before `memory_released`
	 * is no longer read.
	 */
	uint64_t accepted, memory_released;
	uint32_t reads_out; /* Reads and atomics whose responses are outstanding */
	/*
	 * RD: siw_rdmap_rd_has_unfinishable_message() returns true, and the unfinished request has
	 * failed already
	 */
	bool torn;
	struct siw_link busy;  /* link in base->flows; on RD only while the flow has requests */
	struct siw_link ready; /* RD: link in the QP's ready list */
};

enum siw_revoke_state {
	SIW_REVOKE_NONE,
	SIW_REVOKE_DUE,	  /* the flow's next request waits for siw_qp_mw_end_replaced_binding() */
	SIW_REVOKE_BEGUN, /* siw_qp_mw_end_replaced_binding() is ending the binding */
};

/*
 * The old binding of a memory window after a new bind has replaced it. It exists until
 * siw_qp_mw_end_replaced_binding() has ended it.
 */
struct siw_revoke {
	enum siw_revoke_state due;
	const struct siw_wqe *wqe;
	struct siw_bind_rest rest;
};

/*
 * Internal teardown states of a queue pair. Programs see only the states of the table in
 * qp_state.c; most of the teardown states lie within ERR. The numeric order is used in comparisons.
 *
 *              a request failed; older      ... or the older ones       ... or the stream reads
 *              ones complete first          are not waited for          revoked memory
 *                        |                            |                       |
 *     ALIVE ----------> FAILING ------------------> BROKEN ----------------> RESETTING
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
	/* no more requests begin; the requests before the failed request complete first */
	SIW_FAILING,
	SIW_BROKEN,	   /* the next turn ends the stream */
	SIW_RESETTING,	   /* the next turn resets the TCP connection */
	SIW_SHUTTING_DOWN, /* ERR: requests that have begun are still being sent */
	SIW_TERMINATING,   /* ERR: begun requests, and then a Terminate, are being sent */
	/* ERR: all requests were flushed; new requests are flushed immediately */
	SIW_FLUSHED,
	SIW_DEAD, /* the QP is destroyed; its memory is kept, because late calls may access it */
};

/* The result of a sending turn of a queue pair. */
enum siw_run {
	SIW_RUN_DONE, /* all posted requests were sent */
	/* requests are left, because the socket is full, or because ORD or a fence delays them */
	SIW_RUN_BLOCKED,
	SIW_RUN_MORE, /* requests are left, and the next turn can send them */
};

/*
 * The state of the confirmation of delivery by Reads, used with persona roce if the peer is not
 * known to be siwarp. The counters count requests begun. The response to an empty Read or to an
 * atomic confirms all earlier requests. The response to a Read that returns data confirms only
 * earlier Writes: a siwarp peer answers such a Read even if an earlier Send still waits for its
 * receive. If no Read is queued after the requests that need confirmation, an empty Read is sent,
 * one at a time.
 */
struct siw_confirm {
	bool on;	       /* whether requests complete by confirming Reads */
	bool read_outstanding; /* an empty Read is outstanding */
	/* the last request was long: send an empty Read before the next request */
	bool due;
	uint32_t wanted;  /* the last request that needs a confirmation */
	uint32_t covered; /* the last request that outstanding Reads will confirm */
	uint32_t sends;	  /* the last request begun that consumes a receive of the peer */
};

/*
 * The state of the delivery counts exchanged with a siwarp peer. With persona roce, a Send or Write
 * of this end is complete when the peer's count includes the request. For the counts sent to the
 * peer see qp_rc.c.
 */
struct siw_delivery_counts {
	bool on; /* this end requested delivery counts, and completes requests by them */
	/*
	 * before the next request, announce to the peer that this end wants delivery counts; under
	 * send_lock
	 */
	bool announce;
	/* number of Writes begun; send_lock protects this member, sends and writes */
	uint32_t writes_begun;
	uint32_t sends, writes; /* the latest counts that the peer has sent */
	/*
	 * the peer's rnr_retry; -1: not announced. This member and the following members are
	 * protected by the progress lock.
	 */
	int rnr_retry;
	/* rnr_retry was set by this end's program; the peer's announcements are ignored */
	bool rnr_fixed;
	uint32_t octets; /* octets received since this end last sent a count */
	/* the time at which a count was last sent alone, not before a message */
	uint64_t last_alone_ns;
	uint64_t last_received_round; /* the progress round in which data was last received */
	/* the progress round after which the program may have polled the resulting completions */
	uint64_t last_seen_round;
};

struct siw_base_qp;

/*
 * A round of posts: the requests posted on a queue pair since the program's last poll of an empty
 * CQ, or since the last poll that ended a burst (SIW_POLLS_PER_BURST). Used by
 * siw_qp_may_delay_posts(). Under send_lock.
 */
struct siw_post_round {
	uint32_t polls;	 /* value of siw_qp_poll_round() at the first post of the round */
	uint32_t posts;	 /* number of requests posted in the round */
	uint64_t octets; /* total length of the requests posted in the round, in octets */
	/* number of preceding rounds with several posts each and no pause between them */
	uint32_t dense;
	uint64_t began_ns; /* time of the round's first post, ns; 0: not known */
};

/* Properties and functions that differ between the types of queue pairs. */
struct siw_qp_class {
	struct siw_qp_ops ops; /* must be the first member of the struct */
	size_t size;	       /* size of the type's struct in octets */
	bool has_records;      /* QPs of the type send and receive Write-Records */
	bool has_errors;       /* supports siw_poll_err(); RC reports errors by ending its stream */
	bool shares_socket;    /* several QPs may share one socket */
	bool binds;	       /* supports window binds by work requests, and LOCAL_INV */
	/* the send queue is allocated at first use, because most requests are sent when posted */
	bool lazy_slots;
	bool many_flows;  /* the QP has one flow per peer */
	bool has_rights;  /* peers can have access rights to the memory of the QP */
	int type;	  /* enum siw_qp_type */
	uint32_t opcodes; /* supported opcodes: a set of 1 << enum siw_wr_opcode */
	/*
	 * maximum total octets of the requests that one turn begins; a turn ends once the total
	 * reaches the maximum
	 */
	uint64_t turn_octets;
	/*
	 * maximum total octets of posts that are delayed for a batch; 0: posts are never delayed.
	 * See siw_qp_may_delay_posts().
	 */
	uint32_t wait_octets;
	uint32_t wait_requests; /* maximum number of requests that are delayed for a batch */
	/* enum siw_wc_status of a request that failed for a reason other than its memory */
	int failure;
	/*
	 * create copies the caller's attributes and opens the first socket, or prepares for a
	 * connection. open opens a socket bound to addr, or replaces the socket with the descriptor
	 * fd of the user (-1: none). Both return 0 or -errno. The progress lock is held when a
	 * member is called, unless the comment on the member says otherwise.
	 */
	int (*create)(struct siw_base_qp *base, const struct siw_qp_init_attr *init);
	int (*open)(struct siw_base_qp *base, const struct siw_addr *addr, int fd);
	/*
	 * Closes endpoints of other lanes that use the port of the QP to be created, and whose own
	 * queue pairs no longer exist. Returns whether there was one. Called without locks; NULL if
	 * the type has no such endpoints.
	 */
	bool (*free_port)(struct siw_base_qp *base, const struct siw_qp_init_attr *init);
	/* Returns 0 if the QP may be destroyed now, or -errno. */
	int (*may_destroy)(const struct siw_base_qp *base);
	/* Called before a QP is destroyed, while all its resources are still open. */
	void (*before_destroy)(struct siw_base_qp *base);
	/*
	 * Frees the resources specific to the QP type. Harmless if called twice, or for a QP whose
	 * creation failed.
	 */
	void (*close)(struct siw_base_qp *base);
	/*
	 * Returns the QP's address in *own, and on a connection the peer's address in *peer.
	 * Returns 0, or -ENOTCONN if the QP has no address.
	 */
	int (*addr)(const struct siw_base_qp *base, struct siw_addr *own, struct siw_addr *peer);
	void (*query_attr)(const struct siw_base_qp *base, struct siw_qp_attr *attr);
	void (*query_init)(const struct siw_base_qp *base, struct siw_qp_init_attr *init);
	/*
	 * Executes, before the state transition of an event, the operations that may fail. Returns
	 * 0 or -errno. Before a transition to ERR or RESET, the function also receives the messages
	 * that have arrived already.
	 */
	int (*prepare)(struct siw_base_qp *base, int event, const struct siw_qp_attr *attr,
		       int mask);
	/* Starts or stops receiving after the state has changed. */
	void (*receive)(struct siw_base_qp *base);
	/* Applies changed attributes; called last by siw_modify_qp(). */
	void (*modified)(struct siw_base_qp *base, int mask);
	/* Ends the requests in progress of a QP in ERR, then calls siw_qp_flush(). */
	void (*end)(struct siw_base_qp *base);
	/* Releases all protocol state immediately when the QP is moved to RESET. */
	void (*release)(struct siw_base_qp *base);

	/*
	 * Posts a send request. send_lock is held when the members from post to take_recv are
	 * called.
	 */
	int (*post)(struct siw_base_qp *base, const struct siw_send_wr *wr, bool wait);
	/*
	 * Checks whether the member post would accept the request if the queue had room. Returns 0
	 * or more, or -errno.
	 */
	int64_t (*check)(struct siw_base_qp *base, const struct siw_send_wr *wr);
	enum siw_run (*run)(struct siw_base_qp *base);
	/* Prepares sending after the transition from SQD to RTS; called before run. */
	void (*resume)(struct siw_base_qp *base);
	/*
	 * begin starts a request and returns 0, -EAGAIN if that is not possible now, or another
	 * -errno. failed is called when a request could not be started; status: enum siw_wc_status.
	 */
	int (*begin)(struct siw_base_qp *base, struct siw_flow *flow, struct siw_wqe *wqe);
	void (*failed)(struct siw_base_qp *base, struct siw_flow *flow, int status);
	/*
	 * Passes the requests that have begun to the lower layer, and updates the members accepted
	 * and memory_released of the flow. Returns the same values as siw_rdmap_flush_tx().
	 */
	int (*transmit)(struct siw_base_qp *base, struct siw_flow *flow);
	/*
	 * Discards the protocol state of the requests and of unfinished Write-Records, after all
	 * requests have ended.
	 */
	void (*discard_state)(struct siw_base_qp *base);
	/*
	 * Releases the receive that a partially received message has consumed. Returns 1 and the
	 * wr_id of the receive, or 0 if there is none.
	 */
	int (*take_recv)(struct siw_base_qp *base, uint64_t *wr_id);
	/* Returns the received Write-Record with the given number, or NULL. Progress lock held. */
	const struct siw_rdmap_record *(*find_record)(struct siw_base_qp *base, uint64_t number);
	/*
	 * Whether the stream still has to send a Read Response from the memory of the STag, in
	 * which case the stream must be reset.
	 */
	bool (*is_sending)(struct siw_base_qp *base, uint32_t stag);
	/*
	 * Updates the confirmation state of the QP after a local request (bind or invalidation) is
	 * done.
	 */
	void (*did_local)(struct siw_base_qp *base, struct siw_wqe *wqe);
};

/* Returns the class of a QP type (enum siw_qp_type), or NULL. */
const struct siw_qp_class *siw_qp_class_of_type(int type);

/* The part of a queue pair that is common to all QP types: the work queues and the attributes. */
struct siw_base_qp {
	struct siw_qp qp; /* must be the first member of the struct */
	void *user;
	/* list of the references that connection ids have to the QP; under ctx->refs_lock */
	struct siw_link holds;
	bool sig_all, no_crc;
	bool grh;	      /* UD: each received message is preceded by a GRH */
	bool every_addr;      /* UD, UC: the QP has a socket at each address of the device */
	bool roce;	      /* persona roce */
	bool keep_unexpected; /* whatever the persona, a received Send waits for a receive */
	bool private;	      /* the peer is siwarp: siwarp-private messages may be sent */
	bool private_always;  /* siwarp-private messages may be sent even if the setting is off */
	bool errs_fatal;      /* the effective error_policy; under the progress lock */
	int error_policy;     /* enum siw_error_policy */
	uint32_t qkey;
	int access, ord, ird; /* ord, ird: -1: not set */
	int rnr_retry, min_rnr_timer;
	uint32_t rate_limit; /* UD, UC: limit of the sending rate in kbit/s; 0: no limit */
	struct siw_qp_cap cap;
	/* the QP has a stream; written with the progress lock and send_lock held */
	bool connected;
	uint16_t granted_ord, granted_ird; /* ORD and IRD negotiated with the peer */
	/* the effective ORD, which SQD may lower; under send_lock */
	uint16_t reads_max;
	/*
	 * error code of the Terminate that ended the stream, in the format of vendor_err of struct
	 * siw_wc
	 */
	uint32_t wire_err;

	/* The send queue; its members are protected by send_lock. */
	char *sq;		   /* memory of the send queue's slots */
	uint32_t sq_stride;	   /* in octets */
	uint32_t sq_mask;	   /* number of slots of the send queue, minus one */
	uint32_t sq_used;	   /* number of slots used at least once */
	struct siw_wqe *sq_free;   /* list of free slots that were used before */
	uint32_t sq_head, sq_tail; /* numbers of requests that were completed, and posted */
	uint32_t begun;		   /* number of requests begun and not complete */
	struct siw_flow flow;	   /* the QP's only flow; not used by QP types with many_flows */
	struct siw_link flows;
	struct siw_revoke revoke;
	bool draining;	 /* the QP is in SQD, with requests that have begun and are not complete */
	bool sqd_notify; /* raise SQ_DRAINED when the send queue has drained */
	/*
	 * enum siw_teardown; written with send_lock held, from SHUTTING_DOWN on also the progress
	 * lock
	 */
	_Atomic int teardown;
	struct siw_post_round round;
	uint64_t waiting_octets; /* octets of the posts that are delayed for a batch; send_lock */
	/*
	 * RC: number of long Reads that have completed and that no later post has replaced, at most
	 * the number of outstanding ones; under send_lock
	 */
	uint32_t reads_answered;
	/* all posts that are delayed for a batch replace long Reads; under send_lock */
	bool only_reads_wait;
	/*
	 * siw_send_inline() sets post_reports_success while it posts a request to an empty send
	 * queue. If the request succeeds immediately, post_succeeded is set and no completion is
	 * queued: the return value of the call reports the success. Under send_lock.
	 */
	bool post_reports_success, post_succeeded;

	/* The receive queue. */
	struct siw_mem_buffer_queue *recvs; /* the QP's own receive queue, or the SRQ's */
	uint32_t rq_posted;		    /* under recv_lock */
	uint32_t rq_done; /* number of receives completed; under the progress lock */
	/* maximum number of messages to receive in the next turn; under the progress lock */
	int burst;
	bool comm_established; /* event COMM_EST was raised since RESET; under the progress lock */

	/*
	 * error entries for siw_poll_err(); allocated with the first entry; under the progress lock
	 */
	struct siw_errq *errq;
	struct siw_timed timed;
};

/* Bookkeeping of received Write-Records, on UD and RD. */
struct siw_records {
	uint32_t max; /* maximum number of Write-Records in progress at a time */
	/* number of completions of Write-Records queued; under the progress lock */
	uint32_t reported;
	_Atomic uint32_t polled; /* number of completions of Write-Records that were polled */
	/*
	 * RD: the value of `polled` when the messages of the peers were last processed; under the
	 * progress lock
	 */
	uint32_t seen;
	_Atomic bool waits; /* RD: a paused message waits for the next poll */
};

struct siw_rc_qp;

/*
 * Functions of connect_pair.c that an RC queue pair without a connection manager calls. The
 * progress lock is held.
 */
struct siw_pair_ops {
	/*
	 * prepare and modified have the meaning of these members of struct siw_qp_class; modified
	 * applies changes of the state and of the Read depths.
	 */
	int (*prepare)(struct siw_rc_qp *rc, int event, const struct siw_qp_attr *attr, int mask);
	void (*modified)(struct siw_rc_qp *rc);
	/* Called when requests are posted while the QP has no stream. */
	void (*turn)(struct siw_rc_qp *rc);
	/* Ends connection start-up, when the QP has left RTR and RTS and has no stream. */
	void (*stop)(struct siw_rc_qp *rc);
	void (*query)(const struct siw_rc_qp *rc, struct siw_qp_attr *attr);
	void (*close)(struct siw_rc_qp *rc);
};

struct siw_rc_qp {
	struct siw_base_qp base; /* must be the first member of the struct */
	/*
	 * The MPA stream that carries the RDMAP and DDP streams of the flow. The pointer is changed
	 * only with the progress lock and send_lock held.
	 */
	struct siw_mpa_stream *mpa;
	/*
	 * number of Sends begun, which equals the MSN of the last Send (RFC 5041: MSNs begin at 1);
	 * under send_lock
	 */
	uint32_t sends_begun;
	struct siw_confirm confirm; /* protected by send_lock */
	struct siw_delivery_counts counts;
	/*
	 * the peer sends empty Reads, whose responses confirm the delivery of its requests; under
	 * the progress lock
	 */
	bool peer_confirms;
	/*
	 * Read Responses are framed, and the receiving turn in progress sends them; under the
	 * progress lock
	 */
	bool responses_framed;
	/*
	 * the arrival time in ns of the last response after which the Reads of a batch continued to
	 * wait; 0: no Read waits; under the progress lock
	 */
	uint64_t answered_ns;
	/*
	 * sending is allowed: a responder may send only after the initiator's first FPDU has
	 * arrived (RFC5044-7.1.2-11); set with both locks held
	 */
	bool may_send;
	/*
	 * only for QPs that connect by GID and QPN: has_torn: a message was partially received when
	 * the stream ended; torn: the wr_id of its receive; under the progress lock
	 */
	bool has_torn;
	uint64_t torn;
	/* MSN of the oldest Send that waits for a receive; under the progress lock */
	uint32_t rnr_msn;
	/* deadline for a receive for the Send rnr_msn; under the progress lock */
	uint64_t rnr_deadline_ns;
	uint64_t close_by_ns;
	const struct siw_pair_ops *pairs; /* NULL: a connection manager connects the QP */
	struct siw_pair *pair;
	struct siw_linger *linger; /* allocated with the QP, so that closing the QP cannot fail */
	bool counted;		   /* the QP is included in the counter ctx->n_rc */
	/*
	 * The connection of the QP, or NULL, and the connection's callbacks, called with the
	 * progress lock held: on_started when the stream has started; on_ended when the stream has
	 * ended because of status (-errno or 0).
	 */
	struct siw_conn *conn;
	void (*on_started)(struct siw_conn *conn);
	void (*on_ended)(struct siw_conn *conn, int status, const struct siw_wire_err *err);
	bool has_cause;
	int cause; /* -errno */
	struct siw_wire_err cause_err;
};

struct siw_ud_qp {
	struct siw_base_qp base;   /* must be the first member of the struct */
	struct siw_llp_sock *sock; /* the QP's only or first socket; may be shared with other QPs */
	struct siw_addr_socks
		/* NULL, or the sockets at every address; may be shared with other QPs */
		*socks;
	struct siw_ddp_dgram *ddp; /* datagram DDP on the sockets */
	struct siw_rdmap_dgram *dgram;
	/* number of multicast groups that the QP is a member of; under the progress lock */
	uint32_t n_groups;
	bool sends_to_groups; /* the socket is set up for sending to groups; under send_lock */
	struct siw_records records;
};

/* The circuit breaker of a UC queue pair (qp_uc.c). Under the progress lock. */
struct siw_breaker {
	bool reports_expected; /* the peer has sent a report, so further reports are expected */
	bool report_seen;      /* a report has arrived in the current interval */
	bool open;	       /* the breaker is open: the sending rate is reduced */
	bool paused; /* no datagram was sent in the last interval, and no interval is running */
	/* traffic has resumed after a pause: start the next interval; under send_lock */
	bool resumed;
	uint32_t bad_reports;	   /* number of consecutive reports of excessive loss */
	uint32_t silent_intervals; /* consecutive intervals with traffic but without a report */
	/*
	 * the last report that was evaluated, and the time of its evaluation; before the first
	 * report, the PSN and the time at which the connection began
	 */
	struct siw_ddp_uc_report last;
	uint64_t last_ns;
	uint32_t sent;	   /* PSN of the next datagram at the beginning of the interval */
	uint32_t kbits;	   /* while the circuit breaker is open: the rate limit in kbit/s */
	uint64_t until_ns; /* while the circuit breaker is open: when the rate limit ends */
};

struct siw_uc_qp {
	struct siw_base_qp base;      /* must be the first member of the struct */
	struct siw_llp_sock *sock;    /* the socket used for sending */
	struct siw_addr_socks *socks; /* NULL, or the QP's sockets at every address */
	struct siw_ddp_uc *ddp;	      /* UC DDP on the socket */
	struct siw_rdmap_uc *end;
	/*
	 * the peer's address, set from RTR on; peer and dest_qpn are written with the progress lock
	 * and send_lock held
	 */
	struct siw_addr peer;
	uint32_t dest_qpn;
	struct siw_breaker breaker;
};

struct siw_rd_qp {
	struct siw_base_qp base; /* must be the first member of the struct */
	struct siw_rd *endpoint;
	struct siw_ddp_rd *ddp;	  /* DDP on the endpoint; under the progress lock */
	struct siw_rdmap_rd *end; /* RDMAP on ddp; under send_lock, as all members below */
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

/*
 * Advances the teardown state to the given state, but never moves the state back. send_lock held.
 */
static inline void siw_advance_teardown(struct siw_base_qp *base, enum siw_teardown to)
{
	if (siw_teardown_of(base) < (int)to)
		siw_set_teardown(base, to);
}

/* Whether the stream of an RC QP is being closed, with the QP in ERR. */
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
 * A stream that has shut down its sending side and waits until the peer closes its side, so that
 * closing the socket does not reset the connection.
 */
struct siw_linger {
	struct siw_io_handler handler;
	struct siw_lane *lane;
	struct siw_mpa_stream *mpa;
	uint64_t deadline_ns;
	struct siw_timed timed;
};

#endif
