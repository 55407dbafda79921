/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * verbs/verbs.h - the context and what belongs to it: the port and its progress, timers, events,
 * protection domains, memory, completion queues, shared receive queues. What queue pairs (qp/) and
 * the connection manager (cm/) may use of it; the user's half is <siwarp/siw.h>.
 *
 * What this layer does NOT do: know what types of queue pairs there are, or their protocols. It
 * calls them by struct siw_qp_ops alone.
 *
 * Results: 0 or a count, or -errno, unless said otherwise. Times are nanoseconds of base/clock.h.
 *
 * Lock order: context progress lock, QP send lock, QP receive lock, SRQ lock, CQ lock, channel
 * lock.
 */
#ifndef SIW_VERBS_H
#define SIW_VERBS_H

#include <pthread.h>
#include <semaphore.h>
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
 * QPNs. UD: index << 16 | UDP port, where the index is that of the QP on its socket. RC: numbers
 * with the top bit of the 24 set; RC by QPN: index << 16 | TCP port. Indexes of 128 and above are in
 * the range of the other RC QPs: a new QP whose number is taken gets another one.
 */
#define SIW_QPN_INDEX_BIT 16
#define SIW_FIRST_RC_QPN  0x800000u
#define SIW_LAST_RC_QPN	  0xfffffeu

/* A timer. While it is in its context's list, progress calls tick when it is due. */
struct siw_timed {
	struct siw_link link;
	void (*tick)(struct siw_timed *self, uint64_t now_ns);
	uint64_t due_ns, by_ns, step_ns; /* only for verbs_progress.c */
};

/* Watches the device's interface; served by the port. */
struct siw_port_watch {
	struct siw_io_handler handler; /* first */
	struct siw_context *ctx;
	struct siw_llp_watch *watch;
};

/* An event of one kind on one object; in ctx->async_events while raised. Under ctx->async_lock. */
struct siw_async_note {
	struct siw_link link;
	struct siw_async *of;
	int type; /* enum siw_event_type, -1: not in use */
};

#define SIW_ASYNC_KINDS 9 /* the most kinds that any object has: those of a QP */

/* The asynchronous events of an object. */
struct siw_async {
	struct siw_context *ctx;
	void *object;
	void *user;	  /* the object's, as the program made it; NULL: the device's */
	uint32_t unacked; /* taken, not acknowledged; async_lock */
	struct siw_async_note note[SIW_ASYNC_KINDS];
};

/*
 * The freelist of one kind of object. Another thread may call with an object that was destroyed
 * just before, and must then find a destroyed object of the same kind. So the memory is not freed
 * but reused for the next object of that kind; the members that such a call reads first (ctx, the
 * locks, whether it is in a list) stay valid.
 */
struct siw_freelist {
	siw_lock_t lock;
	struct siw_link objects;
};

/* In which order children of a device end when it is closed by force. */
enum siw_child_rank {
	SIW_CHILD_CM_ID,
	SIW_CHILD_CM_CHANNEL,
	SIW_CHILD_QP,
	SIW_CHILD_SRQ,
	SIW_CHILD_CQ,
	SIW_CHILD_CHANNEL,
	SIW_CHILD_PASSIVE, /* it has nothing that must end */
	SIW_CHILD_RANKS,
};

/* What a device must end when it is closed by force; in its context's children. */
struct siw_child {
	struct siw_link link;
	/* Ends it as its destructor does, but waits for nobody and frees not its struct. No lock. */
	void (*end)(struct siw_child *self);
	int fd; /* that threads wait on, or -1 */
};

/* Threads beside the device's own, which starts them (verbs_deputy.c). */
#define SIW_DEPUTIES 2

struct siw_deputies {
	struct siw_deputy {
		struct siw_context *ctx;
		pthread_t thread;
		sem_t wake; /* they are on duty, or to end */
	} each[SIW_DEPUTIES];
	unsigned int n; /* that run */
	bool asked;	/* the system was asked for them */
	_Atomic bool on;
	_Atomic uint32_t served; /* count of wake-ups in which one-sided traffic was served */
	uint64_t last_ns;	 /* when the device's thread last did so */
	unsigned int row;	 /* how often it did, soon after the time before */
};

/* Rounds of polls that moved nothing, since one that did. */
struct siw_vain {
	uint32_t rounds;
	bool idle;		 /* they have lasted longer than messages take */
	uint64_t since_ns;	 /* when they had become a few */
	const struct siw_cq *by; /* whose poll looked last; NULL: not known */
	unsigned int passed;	 /* polls of other queues since then */
	uint32_t moves;		 /* idle: count of the rounds of all devices that moved something */
	uint32_t aside;		 /* polls for which this device stands behind a busy one */
	uint64_t round_ns;	 /* then: time of the last round */
};

/* So many polls that took what was there already end a round of posts, as one that found nothing. */
#define SIW_TAKES 8

/* An open device: one RNIC with its own poller and progress thread. */
struct siw_context {
	siw_lock_t progress;		   /* whoever holds it makes progress */
	struct siw_llp_port *_Atomic port; /* NULL: it was closed; progress to write */
	struct siw_mem *mem;
	/* count of polls; while it grows, the progress thread leaves progress to others */
	_Atomic uint32_t polls;
	_Atomic uint32_t takes;	  /* count of polls that took what was there already: no round */
	_Atomic bool crowded;	  /* posts are dense, and would wait for company */
	_Atomic bool held_back;	  /* posts wait for company since the last round over unsent */
	struct siw_vain vain;	  /* progress */
	_Atomic uint32_t waiters; /* threads inside siw_verbs_wait */
	/*
	 * After a wait whose spin found nothing, this many waits do not spin, and this many of them
	 * are left. Hints only: relaxed accesses.
	 */
	_Atomic uint32_t spin_skip, spin_left;
	_Atomic uint32_t aside;	   /* threads inside siw_verbs_wait_aside */
	_Atomic uint32_t n_armed;  /* CQs that are armed */
	_Atomic uint32_t armed_at; /* polls when one was armed last */
	_Atomic bool cq_overrun;   /* a CQ overflowed, and its QPs have not been moved to ERR yet */
	_Atomic uint32_t n_unsent; /* QPs on unsent */
	/*
	 * This is a forked child's copy, which is not usable (set before the child runs), or the
	 * device was closed by force.
	 */
	_Atomic bool inherited;
	siw_lock_t children_lock; /* innermost */
	struct siw_link children[SIW_CHILD_RANKS];
	siw_lock_t unsent_lock;
	struct siw_link unsent;	  /* QPs with something left to send; unsent_lock */
	uint64_t turns;		  /* number of rounds over unsent; progress */
	siw_lock_t busy_lock;	  /* innermost */
	struct siw_link busy;	  /* QPs that may use memory or address handles; busy_lock */
	uint32_t n_busy;	  /* its length; busy_lock */
	uint64_t rounds;	  /* of progress, each of which looks at sockets; progress */
	bool sends_more;	  /* ... the last of which left what the sockets have room for */
	struct siw_link timed;	  /* list of struct siw_timed; progress */
	_Atomic uint32_t n_timed; /* its length */
	/* of those, the streams and endpoints that wait for the peers' end */
	_Atomic uint32_t n_linger;
	_Atomic uint64_t next_tick_ns; /* when the first of them is due; progress to write */
	struct siw_link qps;	       /* progress */
	struct siw_link groups;	       /* multicast groups that QPs are members of; progress */
	struct siw_link partings;      /* qp's: RD endpoints whose queue pairs are gone; progress */
	struct siw_link pair_ports;    /* qp's: TCP ports of RC QPs that connect by QPN; progress */

	siw_lock_t async_lock;	      /* innermost lock: any other may be held */
	struct siw_link async_events; /* list of struct siw_async_note, oldest first; async_lock */
	struct siw_async async;	      /* of the device itself */
	int async_fd;
	bool async_fd_set; /* async_lock */

	/* in the list of open contexts, or of closed ones: verbs_fork.c */
	struct siw_link open;
	struct siw_device_info info; /* as it was when opened */
	struct siw_device_info now;  /* progress */
	struct siw_port_watch watch;
	struct siw_device_attr attr;
	_Atomic uint32_t n_pd, n_cq, n_ah, n_qp, n_rc, n_channel, n_evq, n_srq, n_mw;
	siw_lock_t mw_lock; /* innermost lock: the relations of windows and regions */
	_Atomic uint32_t next_pd, next_srq;
	_Atomic uint64_t next_qp; /* serial of the next QP */
	uint32_t next_rc_qpn;	  /* progress */
	uint32_t n_high; /* QPs of UD, and RC by QPN, in the other RC QPs' range; progress */

	bool has_thread;
	pthread_t thread;
	_Atomic bool stop;
	uint32_t one_sided;  /* count of peers' short Writes and Reads; progress */
	_Atomic bool naps;   /* it leaves progress to others, for a moment */
	_Atomic bool asleep; /* it sleeps without a limit, since a waiter sleeps on the sockets */
	int sleep_fd;
	struct siw_deputies deputies; /* the device's thread's, but for atomics */

	/*
	 * Rate limits that queue pairs share on this device; owned by qp, allocated with the first
	 * error message.
	 */
	struct siw_err_limit *err_limit;	    /* progress */
	struct siw_freelist free_qps[SIW_QP_TYPES]; /* by type; used by qp */
	struct siw_freelist free_cqs, free_srqs, free_ahs, free_regions, free_windows;
};

struct siw_pd {
	struct siw_context *ctx;
	struct siw_child child;
	uint32_t number;
	_Atomic uint32_t n_mr, n_qp, n_ah, n_srq, n_mw;
};

struct siw_ah {
	/* The caller's (siw_ah_room); first, so that a pointer to it is one to the handle. */
	_Alignas(16) unsigned char room[SIW_AH_ROOM];
	struct siw_pd *_Atomic pd; /* NULL: destroyed */
	struct siw_addr dest;
	struct siw_addr source; /* where messages leave; family 0: it does not matter */
	struct siw_child child;
	bool group;	     /* dest is the address of a multicast group, with its port */
	_Atomic bool queued; /* a send to it was once left in a send queue */
	struct siw_link in_freelist;
};

struct siw_srq {
	struct siw_context *ctx;
	struct siw_pd *pd;
	uint32_t number;
	void *user;
	siw_lock_t lock;	     /* for posting */
	struct siw_mem_queue *recvs; /* NULL: destroyed */
	struct siw_link waiting;     /* QPs whose Sends wait for receives */
	struct siw_srq_attr attr;    /* srq_limit: under progress; 0 once the limit was reached */
	_Atomic uint32_t n_qp;
	struct siw_async async;
	struct siw_child child;
	struct siw_link in_freelist;
};

/* What a queue pair has left to send after its turn. */
enum siw_turn {
	SIW_TURN_DONE,	  /* nothing */
	SIW_TURN_MORE,	  /* requests for the next turn */
	SIW_TURN_BLOCKED, /* requests that wait for room in a socket */
	SIW_TURN_STARVED, /* as BLOCKED, and none completed: the next round begins with this QP */
};

/*
 * The calls of verbs to a queue pair: one const table per type, NULL for what a type does not need.
 * Called with the progress lock, except record_polled.
 */
struct siw_qp_ops {
	bool owns_regions; /* it has one peer at a time, so a region may be bound to it alone */
	/*
	 * The QP was marked unsent: sends more of its requests, and delivers messages that wait for
	 * receives. turn: number of this round over all marked QPs.
	 */
	enum siw_turn (*turn)(struct siw_qp *qp, uint64_t turn);
	/*
	 * Whether a request that the socket has not accepted, or a Read without its response, uses
	 * this memory; whether the socket has not accepted a send to this address handle. Requests
	 * that were only delayed for a batch are sent first.
	 */
	bool (*uses_key)(struct siw_qp *qp, uint32_t lkey);
	bool (*uses_ah)(struct siw_qp *qp, const struct siw_ah *ah);
	/* Whether nothing that was posted or asked for waits or is being sent. send_lock. */
	bool (*is_quiet)(const struct siw_qp *qp);
	/*
	 * The STag was invalidated: resets the connection if a response to a Read from it is not
	 * sent completely.
	 */
	void (*revoke)(struct siw_qp *qp, uint32_t stag);
	/* Regions or windows have ended: continues requests that waited for that. */
	void (*settle)(struct siw_qp *qp);
	/* The device's addresses may have changed. */
	void (*readdress)(struct siw_qp *qp);
	/* Moves it to ERR; status: why, -errno. */
	void (*fail)(struct siw_qp *qp, int status);
	/*
	 * The process ends. leave: sends what was posted and shuts the connection down; is_leaving:
	 * whether that is still in progress.
	 */
	void (*leave)(struct siw_qp *qp);
	bool (*is_leaving)(const struct siw_qp *qp);
	/* The completion of a Write-Record was polled. A CQ's lock is held. */
	void (*record_polled)(struct siw_qp *qp);
};

/*
 * The part of a queue pair that verbs uses: the first member of each type's struct
 * (qp/qp_objects.h).
 */
struct siw_qp {
	struct siw_io_handler handler; /* first */
	const struct siw_qp_ops *ops;
	struct siw_context *ctx;
	struct siw_pd *pd;
	struct siw_cq *send_cq, *recv_cq;
	struct siw_srq *srq; /* the queue that it takes receives from; NULL: its own */
	uint64_t serial;     /* unique among all QPs ever made on the device */
	/* enum siw_qp_state. send_lock to write, and progress but for a UD's RTS to SQE. */
	_Atomic int state;
	_Atomic uint32_t qpn;
	siw_lock_t send_lock;
	siw_lock_t recv_lock;
	/* Slots of each queue below this number are free, since a later completion was polled. */
	_Atomic uint32_t sq_freed, rq_freed;
	struct siw_link unsent; /* ctx->unsent_lock */
	bool on_unsent;		/* ctx->unsent_lock */
	bool on_busy;		/* send_lock */
	struct siw_link busy;	/* ctx->busy_lock */
	bool has_unexpected;	/* Sends wait for receives: progress and recv_lock to write */
	struct siw_link in_srq; /* in its SRQ's waiting, while it has_unexpected: the SRQ's lock */
	struct siw_link in_ctx;
	struct siw_async async;
	struct siw_child child;
	struct siw_link in_freelist;
};

/* A bind of a window that was posted and has not begun. */
struct siw_bind {
	struct siw_window *window; /* pinned; NULL: the bind was carried out or dropped */
	struct siw_region *region; /* pinned; NULL: none, or one without bindings */
	uint64_t addr, length;	   /* octets */
	uint32_t rkey;		   /* the window's key after the bind */
	int access;		   /* set of enum siw_access_flags */
};

/* A window's old binding, which a new bind has replaced, until no stream uses it any more. */
struct siw_bind_rest {
	uint32_t stag;		   /* invalid; streams may still have to send responses from it */
	struct siw_region *region; /* pinned, or NULL */
};

/* ---- the context; any thread ----------------------------------------------------------------- */

/*
 * Whether this is a forked child and its parent opened the device, or it was closed by force. Needs
 * no lock.
 */
static inline bool siw_verbs_inherited(const struct siw_context *ctx)
{
	return __builtin_expect(atomic_load_explicit(&ctx->inherited, memory_order_relaxed), 0);
}
/* siw_verbs_inherited as -ESTALE, or 0. */
int siw_verbs_stale(const struct siw_context *ctx);
/*
 * To be called first by a verb that creates an object of a PD by its init attributes: 0, or -errno:
 * an argument is NULL, or the device was inherited.
 */
int siw_verbs_create_begin(const struct siw_pd *pd, const void *init);

/*
 * The identity to which a region of this QP is bound. It is odd, so it differs from the address of
 * any object.
 */
static inline const void *siw_verbs_owner(const struct siw_qp *qp)
{
	return (const void *)(uintptr_t)(qp->serial << 1 | 1);
}

/*
 * A child of the device was made, or is being destroyed: closing by force ends it, or not any more.
 * end may be NULL for SIW_CHILD_PASSIVE.
 */
void siw_verbs_child_add(struct siw_context *ctx, struct siw_child *child, enum siw_child_rank rank,
			 void (*end)(struct siw_child *self), int fd);
void siw_verbs_child_del(struct siw_context *ctx, struct siw_child *child);

/* Takes the object that was put there first, or NULL. */
struct siw_link *siw_verbs_freelist_take(struct siw_freelist *list);
void siw_verbs_freelist_give(struct siw_freelist *list, struct siw_link *link);

/* ---- progress -------------------------------------------------------------------------------- */

/*
 * Counts a poll of cq (NULL: of something else), and makes progress unless another thread does so or
 * has just done so in vain.
 */
void siw_verbs_poll(struct siw_context *ctx, const struct siw_cq *cq);
/*
 * Makes one round of progress: serves each socket that may have work once. Returns the number of
 * messages moved. The caller holds the progress lock.
 */
int siw_verbs_progress_once(struct siw_context *ctx);
/*
 * Waits until ready(arg) returns non-zero, and returns that value; -EAGAIN after timeout_ms
 * milliseconds (-1: no limit); -EINTR. The calling thread makes progress meanwhile. fd must become
 * readable when another thread makes ready() return non-zero. With a timeout_ms other than 0 it is
 * a cancellation point (base/cancel.h): the caller holds no lock.
 */
int siw_verbs_wait(struct siw_context *ctx, int (*ready)(void *arg), void *arg, int fd,
		   int timeout_ms);
/*
 * The same, but while the device's thread runs the calling thread sleeps on fd alone: for events
 * that are rare, as a thread that waits for them must not be woken for every message.
 */
int siw_verbs_wait_aside(struct siw_context *ctx, int (*ready)(void *arg), void *arg, int fd,
			 int timeout_ms);
/* The QP has something left to send: the next rounds of progress give it a turn. */
void siw_verbs_mark_unsent(struct siw_qp *qp);
void siw_verbs_forget_unsent(struct siw_qp *qp);
/*
 * The QP may use memory or an address handle from now on, until it is found quiet: only such QPs are
 * asked before one of these goes. send_lock.
 */
void siw_verbs_put_busy(struct siw_qp *qp);
static inline void siw_verbs_mark_busy(struct siw_qp *qp)
{
	if (__builtin_expect(!qp->on_busy, 0))
		siw_verbs_put_busy(qp);
}
/* The QP is destroyed. Progress lock. */
void siw_verbs_forget_busy(struct siw_qp *qp);
/*
 * Wakes a sleeping thread to make progress. Any thread, with a lock held that the end of the
 * caller's object takes, since a device that is closed by force frees its port after those.
 */
void siw_verbs_nudge(struct siw_context *ctx);
/*
 * Starts a timer. _add: it ticks after 5 ms, then after four times as long each time, and also at
 * by_ns unless that is 0; a second call begins at 5 ms again. _at: it ticks at by_ns alone. _del
 * stops it, if it runs. progress held.
 */
void siw_verbs_timed_add(struct siw_context *ctx, struct siw_timed *timed, uint64_t by_ns);
void siw_verbs_timed_at(struct siw_context *ctx, struct siw_timed *timed, uint64_t by_ns);
void siw_verbs_timed_del(struct siw_context *ctx, struct siw_timed *timed);

/* ---- events ---------------------------------------------------------------------------------- */

void siw_verbs_async_init(struct siw_async *async, struct siw_context *ctx, void *object,
			  void *user);
/*
 * Raises an event (enum siw_event_type); raising it again before it is taken has no effect but its
 * order. Cannot fail. Any lock may be held.
 */
void siw_verbs_async_raise(struct siw_async *async, int type);
/*
 * Before the object is destroyed: drops its events that were not taken, and waits until those taken
 * were acknowledged. No event may be raised any more; no lock held.
 */
void siw_verbs_async_leave(struct siw_async *async);
/* The same when the device is closed by force: nobody will acknowledge. */
void siw_verbs_async_drop(struct siw_async *async);

/* ---- completion and receive queues ----------------------------------------------------------- */

/* Returns -ENOMEM and records the reason: the limit with this name is reached. */
int siw_verbs_refuse_full(const char *limit, uint32_t max);

/* Whether the CQ is of this context; whether it overflowed. */
bool siw_verbs_cq_is_of(const struct siw_cq *cq, const struct siw_context *ctx);
bool siw_verbs_cq_is_overrun(const struct siw_cq *cq);
/* Counts a queue pair whose completions go to the CQ: by is 1, or -1 when it is destroyed. */
void siw_verbs_cq_count(struct siw_cq *cq, int by);
/*
 * Queues the completion of a send (send_lock held) or of a receive (progress held). slot: polling
 * it frees the send or receive slots before that one. way: of the message, or NULL.
 */
struct siw_way {
	const struct siw_addr *source, *dest; /* dest: NULL: not known */
	uint64_t instance;		      /* RD: of the source; 0: not known */
};
void siw_verbs_complete(struct siw_qp *qp, struct siw_cq *cq, const struct siw_wc *wc,
			const struct siw_way *way, uint32_t slot, bool solicited);
/* Removes the completions of a QP that is reset or destroyed. They count as polled. */
void siw_verbs_cq_purge(struct siw_cq *cq, struct siw_qp *qp);
/*
 * After receives were taken: raises SRQ_LIMIT_REACHED if fewer are left than the limit. progress
 * held.
 */
void siw_verbs_srq_taken(struct siw_srq *srq);

/* ---- memory windows -------------------------------------------------------------------------- */

/*
 * When a bind of a window of this type is posted: fills *bind and pins window and region. 0;
 * -EINVAL: the window does not exist any more, and nothing is pinned.
 */
int siw_verbs_bind_pin(struct siw_context *ctx, const struct siw_send_wr *wr, int type,
		       struct siw_bind *bind);
/* Drops a bind that will not be carried out. */
void siw_verbs_bind_drop(struct siw_context *ctx, struct siw_bind *bind);
/*
 * Carries out a bind: 0; -EINPROGRESS: done, but it completes only after siw_verbs_bind_end has
 * ended the old binding *rest; or SIW_WC_MW_BIND_ERR.
 */
int siw_verbs_bind(struct siw_qp *qp, struct siw_bind *bind, struct siw_bind_rest *rest);
/*
 * Resets all streams that still send from that binding, except except's. progress held, no
 * send_lock.
 */
void siw_verbs_bind_end(struct siw_context *ctx, const struct siw_bind_rest *rest,
			const struct siw_qp *except);

#endif
