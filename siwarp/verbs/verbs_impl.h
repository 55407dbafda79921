/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* verbs/verbs_impl.h - the objects behind the handles; private to this folder. */
#ifndef SIW_VERBS_IMPL_H
#define SIW_VERBS_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include <siwarp/siw.h>

#include "base/counters.h"
#include "base/list.h"
#include "base/lock.h"
#include "base/settings.h"
#include "rdmap/rdmap.h"
#include "verbs/verbs.h"
#include "verbs/verbs_state.h"

#define SIW_MAX_QP	 16384
#define SIW_MAX_QP_WR	 16384
#define SIW_MAX_INLINE	 1024
#define SIW_MAX_CQ	 16384
#define SIW_MAX_CQE	 (1 << 20)
#define SIW_MAX_PD	 16384
#define SIW_MAX_AH	 (1 << 20)
#define SIW_MAX_MR	 (1 << 20)
#define SIW_MAX_MW	 (1 << 16)
#define SIW_MAX_CHANNELS 16384
#define SIW_MAX_SRQ	 16384
#define SIW_MAX_SRQ_WR	 (1 << 18)
#define SIW_MAX_RC_MSG	 (1u << 30)
#define SIW_MAX_RECORDS	 1024

/*
 * QPNs. UD: index << 16 | UDP port, the index being that among the QPs of one socket. RC: numbers with
 * the top bit of the 24 set, where a UD QP has one from index 128 on; whoever comes second there
 * takes another one.
 */
#define SIW_QPN_INDEX_BIT 16
#define SIW_FIRST_RC_QPN  0x800000u
#define SIW_LAST_RC_QPN	  0xfffffeu

/*
 * What a poll hands back for a socket that may have something: the first member of every object
 * that owns a socket. serve does the work and returns the number of messages it moved.
 */
struct siw_pollee {
	int (*serve)(struct siw_pollee *self);
};

/* Something with a deadline: ticked now and then while it is on the list of its context. */
struct siw_timed {
	struct siw_link link;
	void (*tick)(struct siw_timed *self, uint64_t now_ns);
	uint64_t due_ns, by_ns, step_ns; /* verbs_progress.c's */
};

struct siw_device {
	struct siw_device_info info;
};

/* The port: who hears of changes of the device's interface. */
struct siw_port_watch {
	struct siw_pollee pollee; /* first */
	struct siw_context *ctx;
	struct siw_rdmap_watch *watch;
};

/* One kind of event of one object: waiting to be taken, or not. Under ctx->async_lock. */
struct siw_async_note {
	struct siw_link link;
	struct siw_async *of;
	int type; /* enum siw_event_type, -1: the place is free */
};

#define SIW_ASYNC_KINDS 7 /* as many as any object has: a QP */

/* The asynchronous events of an object. */
struct siw_async {
	struct siw_context *ctx;
	void *object;
	uint32_t unacked; /* taken, not acknowledged: async_lock */
	struct siw_async_note note[SIW_ASYNC_KINDS];
};

/*
 * Objects of one kind that were destroyed. A call of another thread that comes too late must find
 * memory that still is of this kind, and dead; so it is kept, and the next object of the kind is made in
 * it. What such a call touches before it knows (ctx, the locks, whether it is on a list) stays.
 */
struct siw_kept {
	siw_lock_t lock;
	struct siw_link objects;
};

/* An open device: one RNIC with its own poller and progress thread. */
struct siw_context {
	siw_lock_t progress;	     /* whoever holds it turns the crank */
	struct siw_rdmap_port *port; /* NULL: the device was closed: progress to write */
	_Atomic uint32_t polls; /* bumped by whoever polls; the thread steps aside while it moves */
	_Atomic uint32_t waiters;  /* threads inside siw_verbs_wait */
	_Atomic bool cq_overrun;   /* a CQ was, and its QPs have not failed yet */
	_Atomic uint32_t n_unsent; /* QPs on unsent */
	bool inherited; /* over fork: nothing here may be used; written by the child's first step */
	siw_lock_t unsent_lock;
	struct siw_link unsent;	       /* QPs with something left to send; unsent_lock */
	uint64_t turns;		       /* of all on unsent: progress */
	struct siw_link timed;	       /* of struct siw_timed; progress */
	_Atomic uint32_t n_timed;      /* its members */
	_Atomic uint32_t n_linger;     /* of those, streams that wait for the peer's end */
	_Atomic uint64_t next_tick_ns; /* the soonest of them; progress to write */
	struct siw_link qps;	       /* progress */
	struct siw_link groups;	       /* multicast, those that QPs are members of: progress */

	siw_lock_t async_lock;	      /* a leaf: any other may be held */
	struct siw_link async_events; /* of struct siw_async_note, oldest first: async_lock */
	struct siw_async async;	      /* the device's own */
	int async_fd;
	bool async_fd_set; /* async_lock */

	struct siw_link open;	     /* of all, or of the closed ones: verbs_fork.c */
	struct siw_device_info info; /* when it was opened */
	struct siw_device_info now;  /* progress */
	struct siw_port_watch watch;
	struct siw_device_attr attr;
	_Atomic uint32_t n_pd, n_cq, n_ah, n_qp, n_rc, n_channel, n_evq, n_srq, n_mw;
	siw_lock_t mw_lock; /* a leaf: what windows and regions have to do with each other */
	_Atomic uint32_t next_pd;
	_Atomic uint64_t next_qp; /* what siw_verbs_owner counts by */
	uint32_t next_rc_qpn;	  /* progress */
	uint32_t n_high;	  /* UD QPs with a number where those of RC are: progress */

	bool has_thread;
	pthread_t thread;
	_Atomic bool stop;
	_Atomic bool parked;
	int park_fd;

	struct siw_errgate *errgate; /* made with the first error message: progress */
	struct siw_kept kept_qps, kept_cqs, kept_srqs, kept_ahs, kept_regions, kept_windows;
};

struct siw_pd {
	struct siw_context *ctx;
	uint32_t number;
	_Atomic uint32_t n_mr, n_qp, n_ah, n_srq, n_mw;
};

/* What the user sees of a region, and what is not for changing. */
struct siw_region {
	struct siw_mr mr; /* first */
	int access;
	const void *owner;	 /* of the QP that it is bound to, or NULL */
	_Atomic bool bindable;	 /* it lives and windows may be bound to it: mw_lock to write */
	uint32_t pins;		 /* posted binds, and bindings whose end is under way: mw_lock */
	struct siw_link windows; /* bound to it, or invalidated and not bound again: mw_lock */
	struct siw_link kept;
};

/* A memory window. All but mw under mw_lock. */
struct siw_window {
	struct siw_mw mw;	   /* first */
	bool live;		   /* not deallocated */
	uint32_t stag;		   /* reserved, or what it is bound by; mw.rkey is the user's */
	uint32_t pins;		   /* posted binds */
	struct siw_region *region; /* NULL, or in whose windows it is: */
	struct siw_link in_region;
	struct siw_link kept;
};

struct siw_ah {
	struct siw_pd *_Atomic pd; /* NULL: destroyed */
	struct siw_addr dest;
	bool group;	     /* dest is a multicast group's, with its port */
	_Atomic bool queued; /* a send to it was left in a ring at some time */
	struct siw_link kept;
};

struct siw_cqe {
	struct siw_wc wc;
	struct siw_qp *owner; /* alive: destroying takes its completions out before */
	uint32_t slot;	      /* polling it frees the owner's send or receive slots up to here */
	struct siw_addr source;
};

struct siw_cq {
	siw_lock_t lock;
	_Atomic uint32_t tail; /* next to fill: lock */
	_Atomic uint32_t head; /* next to take: lock */
	uint32_t mask;
	struct siw_cqe *ring;
	struct siw_context *ctx;
	struct siw_comp_channel *channel;
	void *user;
	int armed;	      /* 0, 1 any, 2 solicited only: lock */
	_Atomic bool overrun; /* a completion was lost, and no more come: lock to write */
	_Atomic uint32_t n_qp;
	struct siw_link in_channel; /* channel's lock, as the three below */
	uint32_t events;	    /* raised, not taken */
	uint32_t unacked;	    /* taken, not acknowledged */
	struct siw_async async;
	struct siw_link kept;
};

struct siw_comp_channel {
	struct siw_context *ctx;
	siw_lock_t lock;
	struct siw_link cqs; /* with events */
	int fd;
	bool fd_set;
	_Atomic uint32_t n_cq;
};

struct siw_srq {
	struct siw_context *ctx;
	struct siw_pd *pd;
	void *user;
	siw_lock_t lock;	       /* whoever posts */
	struct siw_rdmap_queue *recvs; /* NULL: destroyed */
	struct siw_link parked;	       /* QPs whose Sends wait for receives */
	struct siw_srq_attr attr;      /* srq_limit: progress, 0 once it was reached */
	_Atomic uint32_t n_qp;
	struct siw_async async;
	struct siw_link kept;
};

enum siw_wqe_state {
	SIW_WQE_POSTED,
	SIW_WQE_BEGUN, /* handed to RDMAP */
	SIW_WQE_DONE,  /* a Read or an atomic whose response came, or one in error */
};

/* A posted send. Followed in memory by its SGEs, then its inline octets. */
struct siw_wqe {
	uint64_t wr_id;
	uint64_t length; /* octets */
	uint64_t seq;	 /* BEGUN: RDMAP's number of it */
	uint64_t remote;
	uint32_t msn;	/* RC, BEGUN: of a Send or a Read or Atomic Request */
	uint32_t rkey;	/* UD: the Q_Key */
	uint8_t opcode; /* enum siw_wr_opcode */
	uint8_t state;
	uint8_t status; /* enum siw_wc_status, DONE */
	uint8_t nsge;
	uint32_t flags; /* enum siw_send_flags */
	union {
		struct { /* UD */
			struct siw_addr dest;
			const struct siw_ah *ah; /* dest is of; only compared */
			struct { /* RDMA_WRITE_RECORD: the peer's; seq: octets sent */
				uint64_t addr;
				uint32_t rkey;
			} record;
		};
		struct {			   /* BIND_MW, while it is POSTED */
			struct siw_window *window; /* pinned; NULL: the binding is made */
			struct siw_region *region; /* pinned; NULL: none, or it cannot be */
			uint64_t length;
			int access; /* set of enum siw_access_flags */
		} bind;
		struct siw_rdmap_atomic atomic;
		struct {
			uint32_t imm; /* with SIW_OP_IMM */
			uint8_t imm_room[8];
		};
	};
	uint32_t chain; /* RD: the slot of the next to its peer, or the next free one */
	struct siw_sge sge[];
};

enum siw_revoke_state {
	SIW_REVOKE_NONE,
	SIW_REVOKE_DUE,	  /* the request, at sq_next, waits for siw_verbs_mw_settle */
	SIW_REVOKE_BEGUN, /* ... which is at it */
};

/* What is left of a window's binding that a bind has ended. */
struct siw_revoke {
	enum siw_revoke_state due;
	uint32_t stag;	/* dead; streams may still have answers from there on their way */
	uint32_t index; /* sq_next then */
	struct siw_region *region; /* pinned, or NULL */
};

/* How an RC QP's stream comes to its end, before its work is flushed. */
enum siw_closing {
	SIW_OPEN,
	SIW_TERMINATING,   /* a Terminate is on its way out */
	SIW_SHUTTING_DOWN, /* what was begun is on its way out */
};

/* What a turn at sending left behind. */
enum siw_run {
	SIW_RUN_DONE,	 /* nothing */
	SIW_RUN_BLOCKED, /* something, and the socket is full (or ORD, or a fence) */
	SIW_RUN_MORE,	 /* something that can go on at the next turn */
};

/*
 * Persona roce: how far the peer is known to have what was sent, in RDMAP's numbers of operations.
 * Any Read tells it of all that went before; where there is none behind what waits, one of nothing is
 * sent, one at a time.
 */
struct siw_confirm {
	bool on;	  /* off: TCP's acceptance completes */
	bool asked;	  /* a Read of nothing is on its way */
	bool due;	  /* a long request was last: one goes ahead of the next request */
	uint64_t wanted;  /* the last operation that somebody waits for */
	uint64_t covered; /* the last one that a Read on its way will confirm */
	uint64_t known;	  /* the last one that is confirmed */
};

struct siw_qp {
	struct siw_pollee pollee; /* first */
	struct siw_context *ctx;
	struct siw_pd *pd;
	struct siw_cq *send_cq, *recv_cq;
	struct siw_srq *srq; /* NULL, or whose receives it takes */
	void *user;
	int type;
	_Atomic int state; /* send_lock to write, and progress but for a UD's RTS to SQE */
	_Atomic uint32_t qpn;
	_Atomic uint32_t held; /* connection ids that point here */
	bool sig_all, no_crc;
	bool roce;	  /* persona */
	bool private;	  /* RC: its peer is siwarp, and messages of siwarp's own may go there */
	bool errs_fatal;  /* what error_policy comes to now: progress */
	int error_policy; /* enum siw_error_policy */
	uint32_t qkey;
	uint64_t serial;      /* of all QPs of the device: never used again */
	int access, ord, ird; /* ord, ird: -1 not set */
	int rnr_retry, min_rnr_timer;
	struct siw_qp_cap cap;

	siw_lock_t send_lock;
	char *sq;	    /* ring of WQEs */
	uint32_t sq_stride; /* octets */
	uint32_t sq_mask;
	uint32_t sq_head, sq_next, sq_tail; /* oldest, next to begin, next free: send_lock */
	_Atomic uint32_t
		sq_freed;     /* as sq_tail: a polled completion gave back the slots before it */
	uint32_t reads_out;   /* Reads and atomics without their responses */
	uint32_t sends_begun; /* RC: the MSN of the last Send, too (RFC 5041: they count from 1) */
	struct siw_confirm confirm; /* RC: send_lock */
	struct siw_revoke revoke;   /* RC: send_lock */
	bool flushed;		    /* in ERR, and what was posted before is complete: send_lock */
	bool draining;		    /* in SQD, and what was begun is not complete yet: send_lock */
	bool sqd_notify;	    /* and somebody wants to know when it is: send_lock */
	uint32_t polls_at_post;	    /* UD: ctx->polls at the last post: send_lock */
	struct siw_link unsent;	    /* ctx->unsent_lock */
	bool on_unsent;		    /* ctx->unsent_lock */

	siw_lock_t recv_lock;
	struct siw_rdmap_queue *recvs; /* its own, or the SRQ's */
	uint32_t rq_posted;	       /* recv_lock */
	uint32_t rq_done;	       /* receives completed: progress */
	/* As rq_posted: a polled completion gave back the slots before it. */
	_Atomic uint32_t rq_freed;
	int burst;		  /* messages to ask for at the next turn: progress */
	bool heard;		  /* COMM_EST was raised since it left RESET: progress */
	bool peer_asks;		  /* by Reads of nothing whether its messages are here: progress */
	bool parked;		  /* Sends wait for receives: progress and recv_lock to write */
	struct siw_link of_srq;	  /* in its SRQ's parked, then: the SRQ's lock */
	uint32_t rnr_msn;	  /* the oldest of them: progress */
	uint64_t rnr_deadline_ns; /* it waits until then: progress */

	struct siw_rdmap_dgram *dgram;	 /* UD */
	struct siw_errq *errq;		 /* errors to be read, made with the first: progress */
	uint32_t max_records;		 /* UD: Write-Records in process, at the most */
	uint32_t records_told;		 /* progress */
	_Atomic uint32_t records_polled; /* of these */
	struct siw_rdmap_uc *uc;	 /* UC */
	struct siw_addr peer;		 /* UC, from RTR on: progress and send_lock to write, as */
	uint32_t dest_qpn;
	uint32_t n_groups;	  /* UD: that it is a member of: progress */
	bool sends_to_groups;	  /* UD: its socket is made ready for that: send_lock */
	struct siw_rdmap_rd *rd;  /* RD; what follows: send_lock */
	struct siw_link rd_busy;  /* peers with requests */
	struct siw_link rd_ready; /* of these, with something to begin or to go on with */
	uint32_t rd_free;	  /* a free slot */
	uint32_t rd_begun;	  /* requests begun and not complete */
	uint32_t max_peers, peer_timeout_ms;
	struct siw_rdmap_stream *stream; /* RC, while it lives: progress and send_lock to write */
	bool broken;			 /* a WQE failed before it was sent: send_lock */
	bool failing; /* the same, once those ahead of it are complete: send_lock */
	bool cut; /* and the stream must be reset, as it refers to memory it may not: send_lock */
	bool may_send; /* a responder: once the initiator's first FPDU came (RFC5044-7.1.2-11): progress */
	uint16_t granted_ord, granted_ird; /* what both ends agreed on */
	uint16_t reads_max;		   /* ORD now: SQD may lower it: send_lock */
	uint32_t wire_err; /* of the Terminate that ended it, as in struct siw_wc's vendor_err */
	enum siw_closing closing; /* progress and send_lock to write */
	uint64_t close_by_ns;
	struct siw_timed timed;
	struct siw_linger *linger; /* made with the QP, so that closing cannot fail */
	struct siw_verbs_conn *conn;
	struct siw_link in_ctx;
	struct siw_async async;
	bool dead; /* destroyed: progress */
	struct siw_link kept;
};

/* A stream that sent its end and waits for the peer's, so that closing it resets nothing. */
struct siw_linger {
	struct siw_pollee pollee;
	struct siw_context *ctx;
	struct siw_rdmap_stream *stream;
	uint64_t deadline_ns;
	struct siw_timed timed;
};

/*
 * How many messages to ask a QP's socket for at its next turn, after n came. Asking once more than
 * there are costs a system call that a lone message's latency would feel, so a turn begins with one
 * and doubles while they keep coming. Who stops before the socket is empty is handed out again: a
 * poller that moved something does not sleep. Long messages end a turn sooner (SIW_TURN_OCTETS, some 10
 * microseconds of copying): other queue pairs wait.
 */
#define SIW_TURN_OCTETS 65536

static inline void siw_verbs_next_burst(struct siw_qp *qp, int n)
{
	int max = (int)siw_settings()->budget;

	if (n < qp->burst)
		qp->burst = 1;
	else
		qp->burst = qp->burst * 2 < max ? qp->burst * 2 : max;
}

/* ---- verbs_exit.c ---- */
/* From here on exit() ends connections before the process ends: 0 or -ENOMEM. */
int siw_verbs_exit_watch(void);

/* ---- verbs_fork.c ---- */
/* In a forked child, for what its parent had opened: calls say ESTALE, before they take a lock. */
static inline bool siw_verbs_inherited(const struct siw_context *ctx)
{
	return __builtin_expect(ctx->inherited, 0);
}
/* From here on a fork is noticed: 0 or -ENOMEM. */
int siw_verbs_fork_watch(struct siw_context *ctx);
void siw_verbs_fork_unwatch(struct siw_context *ctx);
/* Every open device; none is opened or closed meanwhile. */
void siw_verbs_context_each(void (*call)(struct siw_context *ctx, uint64_t arg), uint64_t arg);
/* A context that was closed, to be used again, or NULL; and one that is closed now. */
struct siw_context *siw_verbs_context_take(void);
void siw_verbs_context_keep(struct siw_context *ctx);

/* What a region is bound to for this QP alone: odd, so that it is no object's address. */
static inline const void *siw_verbs_owner(const struct siw_qp *qp)
{
	return (const void *)(uintptr_t)(qp->serial << 1 | 1);
}

/* ---- verbs_progress.c ---- */
/* One turn of the crank: the number of messages moved. progress held. */
int siw_verbs_pass(struct siw_context *ctx);
/* Counts as polling, and turns the crank if nobody else does. */
void siw_verbs_poll(struct siw_context *ctx);
/*
 * Until ready(arg) gives non-zero: that; -EAGAIN at the time's end; -EINTR. The caller's thread
 * moves the traffic. fd becomes readable when another thread made it ready.
 */
int siw_verbs_wait(struct siw_context *ctx, int (*ready)(void *arg), void *arg, int fd,
		   int timeout_ms);
int siw_verbs_thread_start(struct siw_context *ctx);
void siw_verbs_thread_stop(struct siw_context *ctx);
/* Something is left to send: the next passes go on with it. */
void siw_verbs_mark_unsent(struct siw_qp *qp);
/* From outside a pass: whoever sleeps must make one. */
void siw_verbs_nudge(struct siw_context *ctx);
void siw_verbs_forget_unsent(struct siw_qp *qp);
/*
 * Puts it on the list of what is ticked: after 5 ms, then a quarter as often each time, and at by_ns if that is
 * not 0. Again: from 5 ms on anew. _at: at by_ns alone. _del takes it off. All may be said twice. progress
 * held.
 */
void siw_verbs_timed_add(struct siw_context *ctx, struct siw_timed *timed, uint64_t by_ns);
void siw_verbs_timed_at(struct siw_context *ctx, struct siw_timed *timed, uint64_t by_ns);
void siw_verbs_timed_del(struct siw_context *ctx, struct siw_timed *timed);

/* ---- verbs_async.c ---- */
int siw_verbs_async_open(struct siw_context *ctx);
void siw_verbs_async_close(struct siw_context *ctx);
void siw_verbs_async_init(struct siw_async *async, struct siw_context *ctx, void *object);
/*
 * Raises an event (enum siw_event_type). It cannot fail, takes only a leaf lock, and may be called
 * with any lock held. Raised again before anybody took it, it stays one.
 */
void siw_verbs_async_raise(struct siw_async *async, int type);
void siw_verbs_async_qp(struct siw_qp *qp, int type);
/* Which event (enum siw_event_type) tells that a peer caused this error. */
int siw_verbs_async_kind(const struct siw_wire_err *err);
/* A QP went to ERR by itself: raises what no completion tells, if there is something. */
void siw_verbs_async_failure(struct siw_qp *qp, enum siw_closing how, int status,
			     const struct siw_wire_err *err);
/*
 * The object goes: drops its events that nobody took and waits until those taken are acknowledged.
 * Nobody may raise one any more; no lock held.
 */
void siw_verbs_async_leave(struct siw_async *async);

/* A message came: in RTR, the first one is news. progress held. */
static inline void siw_verbs_heard(struct siw_qp *qp)
{
	if (__builtin_expect(atomic_load_explicit(&qp->state, memory_order_relaxed) == SIW_QPS_RTR,
			     0) &&
	    !qp->heard) {
		qp->heard = true;
		siw_verbs_async_qp(qp, SIW_EVENT_COMM_EST);
	}
}

/* ---- verbs_port.c ---- */
int siw_verbs_port_open(struct siw_context *ctx);
void siw_verbs_port_close(struct siw_context *ctx);

/* ---- verbs_cq.c ---- */
/* A completion of the QP's oldest send (send_lock held) or of any receive (progress held). */
void siw_verbs_complete(struct siw_qp *qp, struct siw_cq *cq, const struct siw_wc *wc,
			const struct siw_addr *source, bool solicited);
void siw_verbs_cq_purge(struct siw_cq *cq, const struct siw_qp *qp);
/* The QP's slots are all free: what is in the queue of it frees none any more. */
void siw_verbs_cq_rebase(struct siw_cq *cq, const struct siw_qp *qp);
/* A queue of the device's was overrun: its QPs go to ERR. progress held. */
void siw_verbs_cq_fail_qps(struct siw_context *ctx);

/* ---- verbs_busy.c; no lock held ---- */
/* Whether a send request that is not out yet, or a Read without its response, uses this memory. */
bool siw_verbs_key_in_use(struct siw_context *ctx, uint32_t lkey);
/* Whether a send to it is not out yet. */
bool siw_verbs_ah_in_use(struct siw_ah *ah);

/* ---- verbs_srq.c ---- */
/* Receives of it may have been taken: raises SRQ_LIMIT_REACHED when too few are left. progress. */
void siw_verbs_srq_taken(struct siw_srq *srq);

/* ---- verbs_ud.c ---- */
int siw_verbs_ud_open(struct siw_qp *qp, const struct siw_addr *addr, int fd);
/* On the socket of another one: -EINVAL it has none, or another CRC, -ENOSPC it is full. progress held. */
int siw_verbs_ud_share(struct siw_qp *qp, const struct siw_qp *with);
void siw_verbs_ud_receive(struct siw_qp *qp);
/* wait: into the ring, for siw_verbs_ud_run. send_lock held, as for all below. */
int siw_verbs_ud_post(struct siw_qp *qp, const struct siw_send_wr *wr, bool wait);
/*
 * Whether a post may wait for others: it is not the first since the last poll, and somebody looks
 * soon: whoever polls, or the progress thread at its next nap's end.
 */
bool siw_verbs_ud_may_wait(struct siw_qp *qp);
/* Gets out what waits for company, as far as the socket takes it at once. send_lock not held. */
void siw_verbs_ud_finish(struct siw_qp *qp);
/* Sends what is queued. send_lock held; so for rc and rd. */
enum siw_run siw_verbs_ud_run(struct siw_qp *qp);
/*
 * The same in a pass, of that number. Where others share the socket: not all of it, and nothing behind
 * one that found no room in this pass; or room would be whosever it is when it comes. progress held, too.
 */
enum siw_run siw_verbs_ud_turn(struct siw_qp *qp, uint64_t turn);

/* ---- verbs_errq.c; progress held ---- */
/*
 * A message that came is wrong (BAD_MSG, or BAD_RECV of one too long): notes it, tells the sender within
 * the limits, and ends the QP if its policy has it so.
 */
void siw_verbs_err_found(struct siw_qp *qp, const struct siw_rdmap_event *event);
/* What the policy comes to may have changed: the QP is new, or the first or last group's member. */
void siw_verbs_err_policy(struct siw_qp *qp);
/* A peer's error message came: notes it, if it is about something sent. */
void siw_verbs_err_told(struct siw_qp *qp, const struct siw_rdmap_event *event);

/* RD, where the sender is told by its stream: notes it, and ends the QP if its policy has it so. */
void siw_verbs_err_refused(struct siw_qp *qp, const struct siw_rdmap_event *event);
/* RD: a peer refused a request that is complete. */
void siw_verbs_err_reported(struct siw_qp *qp, const struct siw_rdmap_event *event);

/* ---- verbs_errgate.c; progress held ---- */
/* Whether one more error message may go to this address; counted as sent if so. */
bool siw_verbs_errgate_pass(struct siw_context *ctx, const struct siw_addr *to);
/* ---- verbs_record.c ---- */
/* Sends on with a Write-Record: as siw_rdmap_record_send. send_lock held. */
int siw_verbs_record_send(struct siw_qp *qp, struct siw_wqe *wqe);
/* Tells of those that are over, and sees to it that the others are looked at in time. progress held. */
void siw_verbs_record_look(struct siw_qp *qp, uint64_t now_ns);
void siw_verbs_record_tick(struct siw_timed *timed, uint64_t now_ns);
/* Forgets those in process. progress held. */
void siw_verbs_record_clear(struct siw_qp *qp);

/* ---- verbs_uc.c ---- */
int siw_verbs_uc_open(struct siw_qp *qp, const struct siw_addr *addr, int fd);
void siw_verbs_uc_close(struct siw_qp *qp);
bool siw_verbs_uc_mtu_valid(int path_mtu);
/*
 * What must be done before the step of this event: to RTR, the peer's address is taken. 0; -EINVAL it is
 * not given; -errno there is no way to it. progress held.
 */
int siw_verbs_uc_prepare(struct siw_qp *qp, int event, const struct siw_qp_attr *attr, int mask);
void siw_verbs_uc_receive(struct siw_qp *qp);
void siw_verbs_uc_query(const struct siw_qp *qp, struct siw_qp_attr *attr);
/* send_lock held. */
int siw_verbs_uc_post(struct siw_qp *qp, const struct siw_send_wr *wr);
enum siw_run siw_verbs_uc_run(struct siw_qp *qp);

/* A RECV or BAD_RECV: completes its receive. progress held, not send_lock. */
void siw_verbs_ud_received(struct siw_qp *qp, const struct siw_rdmap_event *ev);

/* ---- verbs_mcast.c ---- */
/* A send to a group was posted: 0 or -errno. send_lock held. */
int siw_verbs_mcast_sender(struct siw_qp *qp);
/* ---- verbs_rd.c ---- */
/* Opens or, with fd, replaces its endpoint: as siw_verbs_ud_open. progress held. */
int siw_verbs_rd_open(struct siw_qp *qp, const struct siw_addr *addr, int fd);
/* What its state has it do with what comes. progress held. */
void siw_verbs_rd_receive(struct siw_qp *qp);
void siw_verbs_rd_close(struct siw_qp *qp);
/* The process ends: to ERR without a word, and closed. */
void siw_verbs_rd_leave(struct siw_qp *qp);
/* All slots of its ring are free: they are in no order here. */
void siw_verbs_rd_slots(struct siw_qp *qp);
/* send_lock held, for these. */
int siw_verbs_rd_post(struct siw_qp *qp, const struct siw_send_wr *wr);
enum siw_run siw_verbs_rd_run(struct siw_qp *qp);
/* Whatever peers have requests, there may be something to begin. */
void siw_verbs_rd_resume(struct siw_qp *qp);
/* Ends every request: with WR_FLUSH_ERR, or without a word; and what peers are at. progress held, too. */
void siw_verbs_rd_flush(struct siw_qp *qp, bool tell);
/* A receive was posted that some message waits for. progress held. */
void siw_verbs_rd_look(struct siw_qp *qp);
bool siw_verbs_rd_uses_key(struct siw_qp *qp, uint32_t lkey);

/* ---- verbs_rc.c ---- */
/* How the request behind an error of the peer's completes. */
enum siw_wc_status siw_verbs_status_of(const struct siw_wire_err *err);
/* Whether the header that the peer's error quotes is of this request. */
bool siw_verbs_is_quoted(const struct siw_wqe *wqe, const struct siw_rdmap_event *ev);
int siw_verbs_rc_post(struct siw_qp *qp, const struct siw_send_wr *wr);
enum siw_run siw_verbs_rc_run(struct siw_qp *qp);
/* The request at sq_next has happened at this end alone. send_lock held. */
void siw_verbs_rc_did_local(struct siw_qp *qp);
/* In SQD: sees to it that what was begun completes. send_lock held. */
void siw_verbs_rc_drain(struct siw_qp *qp);
int siw_verbs_rc_serve(struct siw_pollee *self);
/* Sends what is queued, whatever the type. send_lock held. */
static inline enum siw_run siw_verbs_run(struct siw_qp *qp)
{
	if (qp->type == SIW_QPT_UD)
		return siw_verbs_ud_run(qp);
	if (__builtin_expect(qp->type == SIW_QPT_RC, 1))
		return siw_verbs_rc_run(qp);
	return qp->type == SIW_QPT_UC ? siw_verbs_uc_run(qp) : siw_verbs_rd_run(qp);
}
/* Binds a socket for the type, or takes the caller's. progress held. */
static inline int siw_verbs_open_socket(struct siw_qp *qp, const struct siw_addr *addr, int fd)
{
	return qp->type == SIW_QPT_UC	? siw_verbs_uc_open(qp, addr, fd)
	       : qp->type == SIW_QPT_RD ? siw_verbs_rd_open(qp, addr, fd)
					: siw_verbs_ud_open(qp, addr, fd);
}

/* ---- verbs_rc_close.c; all with progress held and send_lock not ---- */
/* An error or the peer ended the stream: to ERR by the table, then as siw_verbs_rc_close. */
void siw_verbs_rc_fail(struct siw_qp *qp, enum siw_closing how, int status,
		       const struct siw_wire_err *err);
/*
 * The QP is in ERR: gets what was begun (and a Terminate) out, then flushes and lets go of the
 * stream.
 */
void siw_verbs_rc_close(struct siw_qp *qp, enum siw_closing how);
/* A request or a response of this end's own could not be sent. */
void siw_verbs_rc_broken(struct siw_qp *qp);
/* Goes on with it. */
void siw_verbs_rc_close_step(struct siw_qp *qp);
void siw_verbs_rc_tick(struct siw_timed *timed, uint64_t now_ns);
/* Awaits the peer's end of a stream that was shut, with nobody's help. progress held. 0, -ENOMEM. */
int siw_verbs_linger(struct siw_context *ctx, struct siw_rdmap_stream *stream);
/*
 * Before this end closes: takes in what has come already, within bounds. The peer may be asking
 * whether its last message is here.
 */
void siw_verbs_rc_settle(struct siw_qp *qp);
/* Ends the stream with a reset: what TCP has not taken must not be sent any more. */
void siw_verbs_rc_abort(struct siw_qp *qp);
/* Lets go of the stream at once; what TCP has taken still reaches the peer. */
void siw_verbs_rc_release(struct siw_qp *qp);

/* ---- verbs_mr.c ---- */
/* Takes one of max: whether there was one. */
bool siw_verbs_take_one(_Atomic uint32_t *count, uint32_t max);
/*
 * The STag is dead already; streams whose answers to Reads still refer to its memory cannot go on. When
 * this returns, nobody else does, either. No lock held; _locked: progress held.
 */
void siw_verbs_revoke_stag(struct siw_context *ctx, uint32_t stag);
void siw_verbs_revoke_stag_locked(struct siw_context *ctx, uint32_t stag,
				  const struct siw_qp *except);
/* The device is closed. */
void siw_verbs_free_kept_memory(struct siw_context *ctx);

/* ---- verbs_mw.c ---- */
/* From here on windows may be bound to the region, if its access says so. */
void siw_verbs_mw_allow(struct siw_region *region);
/*
 * Before the region ends: 0, no window is bound to it any more or will be, and what was is over; -EBUSY.
 * No lock held.
 */
int siw_verbs_mw_forbid(struct siw_region *region);
/*
 * Whether a request happens at this end alone: BIND_MW or LOCAL_INV. Both stand side by side in enum
 * siw_wr_opcode.
 */
static inline bool siw_verbs_is_local(int opcode)
{
	return (unsigned int)opcode - SIW_WR_LOCAL_INV <= SIW_WR_BIND_MW - SIW_WR_LOCAL_INV;
}
/* Puts one into the send ring; type: the windows that may be bound. send_lock held, for all below. */
int siw_verbs_mw_post(struct siw_qp *qp, const struct siw_send_wr *wr, int type);
/*
 * Does what it says: 0; -EINPROGRESS: it has happened, but before it completes siw_verbs_mw_settle is due, or
 * the stream must be reset (qp->cut); or an enum siw_wc_status.
 */
int siw_verbs_mw_begin(struct siw_qp *qp, struct siw_wqe *wqe);
/* A posted bind will not happen. */
void siw_verbs_mw_drop(struct siw_qp *qp, struct siw_wqe *wqe);
/*
 * Ends what qp->revoke says, if it is due. last: the QP's own stream is over. progress held, and send_lock
 * not.
 */
void siw_verbs_mw_settle(struct siw_qp *qp, bool last);

/* ---- verbs_kept.c ---- */
void siw_verbs_kept_init(struct siw_kept *kept);
/* The link of the object that was destroyed first, or NULL. */
struct siw_link *siw_verbs_kept_take(struct siw_kept *kept);
void siw_verbs_kept_give(struct siw_kept *kept, struct siw_link *link);
/* ---- verbs_rnr.c; progress held ---- */
/* Posting a receive is news from now on, or not any more. */
void siw_verbs_rnr_parked(struct siw_qp *qp, bool parked);
/* A Send found no receive. */
void siw_verbs_rnr_begin(struct siw_qp *qp);
/* Nobody waits any more. */
void siw_verbs_rnr_end(struct siw_qp *qp);
/* What waits may have got its receive, or waited long enough. */
void siw_verbs_rnr_look(struct siw_qp *qp, uint64_t now_ns);

/* ---- verbs_post.c ---- */
struct siw_wqe *siw_verbs_wqe(struct siw_qp *qp, uint32_t index);
/* Whether every slot of the send queue waits for a completion to be polled. */
static inline bool siw_verbs_sq_full(struct siw_qp *qp)
{
	return qp->sq_tail - atomic_load_explicit(&qp->sq_freed, memory_order_relaxed) >
	       qp->sq_mask;
}
/* Makes the ring: 0 or -ENOMEM. UD: with the first request that goes there. */
int siw_verbs_sq_make(struct siw_qp *qp);
/* Copies a checked request into the ring: the WQE, or NULL when it is full. */
struct siw_wqe *siw_verbs_wqe_put(struct siw_qp *qp, const struct siw_send_wr *wr, uint64_t length);
/* As it, but the WQE is given, and RD's slots are not in order. */
void siw_verbs_wqe_fill(struct siw_qp *qp, struct siw_wqe *wqe, const struct siw_send_wr *wr,
			uint64_t length);
/* Completes a WQE (if it is signalled or failed); peer may be NULL. */
void siw_verbs_wqe_complete(struct siw_qp *qp, struct siw_wqe *wqe, int status, uint32_t vendor_err,
			    const struct siw_addr *peer);
/* Completes the oldest WQE (if it is signalled or failed) and frees its slot. */
void siw_verbs_wqe_finish(struct siw_qp *qp, struct siw_wqe *wqe, int status, uint32_t vendor_err);
/*
 * A send was put into the ring of a QP in ERR: completes it, unless a flush of older ones is due.
 * send_lock held.
 */
void siw_verbs_flush_late_send(struct siw_qp *qp);
/* Completes every send and receive with WR_FLUSH_ERR. progress held. */
void siw_verbs_flush(struct siw_qp *qp);
/* One receive with WR_FLUSH_ERR. */
void siw_verbs_flush_recv(struct siw_qp *qp, uint64_t cookie);
/* Drops them without a word. progress held. */
void siw_verbs_forget(struct siw_qp *qp);

/* ---- verbs_op.c ---- */
enum siw_op_flags {
	SIW_OP_KNOWN = 1,
	SIW_OP_SENDS = 2, /* it takes a receive of the peer's: an MSN of queue 0 */
	SIW_OP_ASKS = 4,  /* it is one of the ORD and complete with its response */
	SIW_OP_ATOMIC = 8,
	SIW_OP_WRITES = 16, /* to the peer's memory: a Terminate may quote STag and offset */
	SIW_OP_IMM = 32,
	SIW_OP_PRIVATE = 64, /* a message of siwarp's own */
};
/* Of an opcode (enum siw_wr_opcode): set of enum siw_op_flags, 0: there is no such. */
uint8_t siw_verbs_op_flags(int wr_opcode);
/* Whether it is complete when something came back, and not before. */
static inline bool siw_verbs_asks(const struct siw_wqe *wqe)
{
	const uint32_t asks = 1u << SIW_WR_RDMA_READ | 1u << SIW_WR_ATOMIC_CMP_AND_SWP |
			      1u << SIW_WR_ATOMIC_FETCH_AND_ADD |
			      1u << SIW_WR_MASKED_ATOMIC_CMP_AND_SWP |
			      1u << SIW_WR_MASKED_ATOMIC_FETCH_AND_ADD;

	return asks >> wqe->opcode & 1;
}
/* enum siw_wc_opcode of a known one. */
int siw_verbs_op_wc(int wr_opcode);
/* The checks at posting, all but those of its list of elements: octets, or -EINVAL. */
int64_t siw_verbs_op_check(const struct siw_qp *qp, const struct siw_send_wr *wr);
/* What a checked request says of the peer's memory, into its WQE. */
void siw_verbs_op_put(struct siw_wqe *wqe, const struct siw_send_wr *wr);
/* The WQE as RDMAP's operation; index is its cookie. */
void siw_verbs_op_make(struct siw_wqe *wqe, uint32_t index, struct siw_rdmap_op *op);

/* ---- verbs_qp.c ---- */
/* Whether a QP of the device has this number. progress held. */
bool siw_verbs_qpn_taken(const struct siw_context *ctx, uint32_t qpn);
/* Does an event's step by the table, actions aside: the action, or -EINVAL. progress held. */
int siw_verbs_qp_step(struct siw_qp *qp, int event);
/* UD: a request failed by this end's own mistake: to SQE by the table. send_lock held. */
void siw_verbs_qp_send_failed(struct siw_qp *qp);
/* In SQD: tells, once, when everything begun is complete. send_lock held. */
void siw_verbs_qp_drained(struct siw_qp *qp);
/* Something that is not the peer's ends the QP: to ERR by the table. progress held. */
void siw_verbs_qp_fail(struct siw_qp *qp, int status);
/* UD: something ends it, and this event (enum siw_event_type) tells. Likewise. */
void siw_verbs_qp_abort(struct siw_qp *qp, int type);

/* ---- verbs_conn.c ---- */
void siw_verbs_conn_established(struct siw_verbs_conn *conn);
/* Why the stream ends; conn_over tells it. */
void siw_verbs_conn_cause(struct siw_verbs_conn *conn, int status, const struct siw_wire_err *err);
/* The QP has let go of the stream: DISCONNECTED. */
void siw_verbs_conn_over(struct siw_verbs_conn *conn);

#endif
