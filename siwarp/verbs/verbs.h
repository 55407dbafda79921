/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * verbs/verbs.h - the context and what belongs to it: the port and its progress, timers, events, protection
 * domains, memory, completion queues, shared receive queues. What queue pairs (qp/) and the connection
 * manager (cm/) may use of it; the user's half is <siwarp/siw.h>.
 *
 * What this layer does NOT do: know what types of queue pairs there are, or what they speak. It asks them
 * what struct siw_qp_ops has, and nothing else.
 *
 * Lock order: context progress lock, QP send lock, QP receive lock, SRQ lock, CQ lock, channel lock.
 */
#ifndef SIW_VERBS_H
#define SIW_VERBS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include <siwarp/siw_ext.h>

#include "base/counters.h"
#include "base/err.h"
#include "base/list.h"
#include "base/lock.h"
#include "base/reason.h"
#include "base/settings.h"
#include "llp/llp.h"
#include "mem/mem.h"
#include "mem/mem_queue.h"

#define SIW_QP_TYPES	      4
#define SIW_MAX_READS	      128 /* most IRD and ORD */
#define SIW_MAX_RC_MSG	      (1u << 30)
#define SIW_MAX_WRITE_RECORDS 1024

/*
 * QPNs. UD: index << 16 | UDP port, the index being that among the QPs of one socket. RC: numbers with
 * the top bit of the 24 set, where a UD QP has one from index 128 on; whoever comes second there
 * takes another one.
 */
#define SIW_QPN_INDEX_BIT 16
#define SIW_FIRST_RC_QPN  0x800000u
#define SIW_LAST_RC_QPN	  0xfffffeu

/* Something with a deadline: ticked now and then while it is on the list of its context. */
struct siw_timed {
	struct siw_link link;
	void (*tick)(struct siw_timed *self, uint64_t now_ns);
	uint64_t due_ns, by_ns, step_ns; /* verbs_progress.c's */
};

/* The port: who hears of changes of the device's interface. */
struct siw_port_watch {
	struct siw_io_handler handler; /* first */
	struct siw_context *ctx;
	struct siw_llp_watch *watch;
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
struct siw_freelist {
	siw_lock_t lock;
	struct siw_link objects;
};

/* An open device: one RNIC with its own poller and progress thread. */
struct siw_context {
	siw_lock_t progress;	   /* whoever holds it makes progress */
	struct siw_llp_port *port; /* NULL: the device was closed: progress to write */
	struct siw_mem *mem;
	_Atomic uint32_t polls; /* bumped by whoever polls; the thread steps aside while it moves */
	_Atomic uint32_t waiters;  /* threads inside siw_verbs_wait */
	_Atomic uint32_t n_armed;  /* CQs that are to announce a completion */
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
	_Atomic bool asleep; /* for long, beside a waiter that sleeps on the sockets */
	int sleep_fd;

	/*
	 * What queue pairs share on this device: qp's, of malloc, made with the first error message.
	 */
	struct siw_err_limit *err_limit;	    /* progress */
	struct siw_freelist free_qps[SIW_QP_TYPES]; /* by type: qp's */
	struct siw_freelist free_cqs, free_srqs, free_ahs, free_regions, free_windows;
};

struct siw_pd {
	struct siw_context *ctx;
	uint32_t number;
	_Atomic uint32_t n_mr, n_qp, n_ah, n_srq, n_mw;
};

struct siw_ah {
	struct siw_pd *_Atomic pd; /* NULL: destroyed */
	struct siw_addr dest;
	bool group;	     /* dest is a multicast group's, with its port */
	_Atomic bool queued; /* a send to it was left in a ring at some time */
	struct siw_link in_freelist;
};

struct siw_srq {
	struct siw_context *ctx;
	struct siw_pd *pd;
	void *user;
	siw_lock_t lock;	     /* whoever posts */
	struct siw_mem_queue *recvs; /* NULL: destroyed */
	struct siw_link waiting;     /* QPs whose Sends wait for receives */
	struct siw_srq_attr attr;    /* srq_limit: progress, 0 once it was reached */
	_Atomic uint32_t n_qp;
	struct siw_async async;
	struct siw_link in_freelist;
};

/* What a queue pair's turn at sending left behind. */
enum siw_turn {
	SIW_TURN_DONE,	  /* nothing */
	SIW_TURN_MORE,	  /* something that can go on at the next turn */
	SIW_TURN_BLOCKED, /* something that waits for room in a socket */
	SIW_TURN_STARVED, /* the same, and nothing completed: the next round begins with this one */
};

/*
 * What verbs asks of a queue pair: one const table per type. Under the progress lock, but for
 * record_polled. What a type has no use for is NULL.
 */
struct siw_qp_ops {
	bool owns_regions; /* it has one peer at a time: a region may be bound to it alone */
	/*
	 * It was marked unsent: goes on with its requests, and with messages that wait for receives. turn: the
	 * number of this round over all that were marked.
	 */
	enum siw_turn (*turn)(struct siw_qp *qp, uint64_t turn);
	/*
	 * Whether a request that is not out yet, or a Read without its response, uses this memory; whether
	 * a send to this address handle is not out. What only waits for company goes out first.
	 */
	bool (*uses_key)(struct siw_qp *qp, uint32_t lkey);
	bool (*uses_ah)(struct siw_qp *qp, const struct siw_ah *ah);
	/* The STag is dead: if the answer to a Read from there is on its way, the connection is reset. */
	void (*revoke)(struct siw_qp *qp, uint32_t stag);
	/* Regions or windows ended: requests that wait for streams to let go of them go on. */
	void (*settle)(struct siw_qp *qp);
	/* It cannot go on (status: -errno): to ERR. */
	void (*fail)(struct siw_qp *qp, int status);
	/* The process ends: what was posted goes out, connections are shut down; and whether that goes on. */
	void (*leave)(struct siw_qp *qp);
	bool (*is_leaving)(const struct siw_qp *qp);
	/* The completion of a Write-Record was polled. A CQ's lock is held, and no other need be. */
	void (*record_polled)(struct siw_qp *qp);
};

/* What verbs knows of a queue pair: the first member of each type's own struct (qp/qp_objects.h). */
struct siw_qp {
	struct siw_io_handler handler; /* first */
	const struct siw_qp_ops *ops;
	struct siw_context *ctx;
	struct siw_pd *pd;
	struct siw_cq *send_cq, *recv_cq;
	struct siw_srq *srq; /* NULL, or whose receives it takes */
	uint64_t serial;     /* of all QPs of the device: never used again */
	/* enum siw_qp_state. send_lock to write, and progress but for a UD's RTS to SQE. */
	_Atomic int state;
	_Atomic uint32_t qpn;
	siw_lock_t send_lock;
	siw_lock_t recv_lock;
	/* A polled completion gave back the slots before it: no more than counts. */
	_Atomic uint32_t sq_freed, rq_freed;
	struct siw_link unsent; /* ctx->unsent_lock */
	bool on_unsent;		/* ctx->unsent_lock */
	bool has_unexpected;	/* Sends wait for receives: progress and recv_lock to write */
	struct siw_link in_srq; /* in its SRQ's waiting, while it has_unexpected: the SRQ's lock */
	struct siw_link in_ctx;
	struct siw_async async;
	struct siw_link in_freelist;
};

/* A posted bind of a window, from its post to its turn. */
struct siw_bind {
	struct siw_window *window; /* pinned; NULL: the binding is made, or will not be */
	struct siw_region *region; /* pinned; NULL: none, or it cannot be */
	uint64_t addr, length;	   /* octets */
	uint32_t rkey;		   /* of the window from then on */
	int access;		   /* set of enum siw_access_flags */
};

/* What is left of a window's binding that a bind has ended. */
struct siw_bind_rest {
	uint32_t stag; /* dead; streams may still have answers from there on their way */
	struct siw_region *region; /* pinned, or NULL */
};

/* ---- the context; any thread ------------------------------------------------------------------ */

/* In a forked child, for what its parent had opened: calls say ESTALE, before they take a lock. */
static inline bool siw_verbs_inherited(const struct siw_context *ctx)
{
	return __builtin_expect(ctx->inherited, 0);
}
/* The same as -ESTALE, or 0. */
int siw_verbs_stale(const struct siw_context *ctx);

/* What a region is bound to for this QP alone: odd, so that it is no object's address. */
static inline const void *siw_verbs_owner(const struct siw_qp *qp)
{
	return (const void *)(uintptr_t)(qp->serial << 1 | 1);
}

/* The link of the object that was destroyed first, or NULL. */
struct siw_link *siw_verbs_freelist_take(struct siw_freelist *list);
void siw_verbs_freelist_give(struct siw_freelist *list, struct siw_link *link);

/* ---- progress -------------------------------------------------------------------------------- */

/* Counts as polling, and makes progress if nobody else does. */
void siw_verbs_poll(struct siw_context *ctx);
/*
 * Until ready(arg) gives non-zero: that; -EAGAIN at the time's end; -EINTR. The caller's thread
 * moves the traffic. fd becomes readable when another thread made it ready.
 */
int siw_verbs_wait(struct siw_context *ctx, int (*ready)(void *arg), void *arg, int fd,
		   int timeout_ms);
/* Something is left to send: the next rounds of progress go on with it. */
void siw_verbs_mark_unsent(struct siw_qp *qp);
void siw_verbs_forget_unsent(struct siw_qp *qp);
/* From outside of progress: whoever sleeps must make some. */
void siw_verbs_nudge(struct siw_context *ctx);
/*
 * Puts it on the list of what is ticked: after 5 ms, then a quarter as often each time, and at by_ns if that is
 * not 0. Again: from 5 ms on anew. _at: at by_ns alone. _del takes it off. All may be said twice. progress
 * held.
 */
void siw_verbs_timed_add(struct siw_context *ctx, struct siw_timed *timed, uint64_t by_ns);
void siw_verbs_timed_at(struct siw_context *ctx, struct siw_timed *timed, uint64_t by_ns);
void siw_verbs_timed_del(struct siw_context *ctx, struct siw_timed *timed);

/* ---- events ---------------------------------------------------------------------------------- */

void siw_verbs_async_init(struct siw_async *async, struct siw_context *ctx, void *object);
/*
 * Raises an event (enum siw_event_type). It cannot fail, takes only a leaf lock, and may be called
 * with any lock held. Raised again before anybody took it, it stays one.
 */
void siw_verbs_async_raise(struct siw_async *async, int type);
/*
 * The object goes: drops its events that nobody took and waits until those taken are acknowledged.
 * Nobody may raise one any more; no lock held.
 */
void siw_verbs_async_leave(struct siw_async *async);

/* ---- completion and receive queues ----------------------------------------------------------- */

/* -ENOMEM, and the reason: the device has as many as its limit of this name says. */
int siw_verbs_refuse_full(const char *limit, uint32_t max);

/* Whether it is of this context; whether a completion was lost there, so that no more come. */
bool siw_verbs_cq_is_of(const struct siw_cq *cq, const struct siw_context *ctx);
bool siw_verbs_cq_is_overrun(const struct siw_cq *cq);
/* One queue pair more (by: 1) or less (-1) completes there. */
void siw_verbs_cq_count(struct siw_cq *cq, int by);
/*
 * A completion of a send (send_lock held) or of a receive (progress held). slot: polling it frees the send or
 * receive slots before that one.
 */
void siw_verbs_complete(struct siw_qp *qp, struct siw_cq *cq, const struct siw_wc *wc,
			const struct siw_addr *source, uint32_t slot, bool solicited);
/* The QP goes: so do its completions. */
void siw_verbs_cq_purge(struct siw_cq *cq, const struct siw_qp *qp);
/* The QP's slots are all free: polling what is in the queue of it frees those before these and no more. */
void siw_verbs_cq_rebase(struct siw_cq *cq, const struct siw_qp *qp, uint32_t sq_slot,
			 uint32_t rq_slot);
/* Receives of it may have been taken: raises SRQ_LIMIT_REACHED when too few are left. progress. */
void siw_verbs_srq_taken(struct siw_srq *srq);

/* ---- memory windows -------------------------------------------------------------------------- */

/*
 * Takes up a bind that is posted, of a window of that type: 0, and it pins window and region; -EINVAL:
 * there is no such window any more, and nothing is pinned.
 */
int siw_verbs_bind_pin(struct siw_context *ctx, const struct siw_send_wr *wr, int type,
		       struct siw_bind *bind);
/* It will not happen. */
void siw_verbs_bind_drop(struct siw_context *ctx, struct siw_bind *bind);
/*
 * Binds, in its turn: 0; -EINPROGRESS: it has happened, and what is left of the binding before it must
 * end before it completes; or SIW_WC_MW_BIND_ERR.
 */
int siw_verbs_bind(struct siw_qp *qp, struct siw_bind *bind, struct siw_bind_rest *rest);
/* Resets the streams, but for except's, that still send from there. progress held, and no send_lock. */
void siw_verbs_bind_end(struct siw_context *ctx, const struct siw_bind_rest *rest,
			const struct siw_qp *except);

#endif
