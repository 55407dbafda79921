/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * device/device.h - the device context and the objects that belong to it: the socket poller and
 * progress engine, timers, events, protection domains, memory regions, memory windows, completion
 * queues and shared receive queues. This header is for the queue pair layer (qp/) and the
 * connection manager (cm/); applications use <siwarp/siw.h>.
 *
 * This layer does not know the queue pair types or their protocols. It calls queue pairs only
 * through struct siw_qp_ops.
 *
 * Functions return 0 or a count on success and -errno on failure, unless stated otherwise. Times
 * are nanoseconds of the clock in base/clock.h.
 *
 * Lock order: progress lock of a lane, QP send lock, QP receive lock, SRQ lock, CQ lock, channel
 * lock.
 */
#ifndef SIW_DEVICE_H
#define SIW_DEVICE_H

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
#define SIW_MAX_READS	      128 /* maximum of IRD and of ORD */
#define SIW_MAX_RC_MSG	      (1u << 30)
#define SIW_MAX_WRITE_RECORDS 1024

/*
 * QP numbers (24 bits). UD: index << 16 | UDP port, where the index numbers the QPs that share one
 * socket. RC with connection manager: numbers whose top bit is set. RC connected by QPN: index <<
 * 16 | TCP port. Indexes of 128 and above overlap the range of the RC QPs with connection manager;
 * a new QP whose number is already in use gets another one.
 */
#define SIW_QPN_INDEX_BIT 16
#define SIW_FIRST_RC_QPN  0x800000u
#define SIW_LAST_RC_QPN	  0xfffffeu

/*
 * A timer. While it is linked into its context's timer list, progress rounds call tick at the due
 * time.
 */
struct siw_timed {
	struct siw_link link;
	void (*tick)(struct siw_timed *self, uint64_t now_ns);
	uint64_t due_ns, by_ns, step_ns; /* used only in device_progress.c */
};

/* Monitors the device's network interface for changes, which the device's progress rounds read. */
struct siw_port_watch {
	struct siw_io_handler handler; /* must be the first member */
	struct siw_context *ctx;
	struct siw_llp_watch *watch;
};

/*
 * A pending asynchronous event of one kind and one object. The struct is linked into
 * ctx->async_events from when the event is raised until it is read. Protected by ctx->async_lock.
 */
struct siw_async_note {
	struct siw_link link;
	struct siw_async *of;
	int type; /* enum siw_event_type; -1: unused */
};

#define SIW_ASYNC_KINDS 9 /* the highest number of event kinds of any object: that of a QP */

/* The asynchronous events of one object. */
struct siw_async {
	struct siw_context *ctx;
	void *object;
	/* user context given at the object's creation; NULL for the device itself */
	void *user;
	uint32_t unacked; /* events that were read and are not yet acknowledged; async_lock */
	struct siw_async_note note[SIW_ASYNC_KINDS];
};

/*
 * The freelist of one kind of object. A thread may call a verb on an object that another thread has
 * just destroyed; such a late call must find a destroyed object of the same kind. The memory is
 * therefore not freed but reused for the next object of that kind, and the members that such a call
 * reads first (ctx, the locks, list membership) stay valid.
 */
struct siw_freelist {
	siw_lock_t lock;
	struct siw_link objects;
};

/* The order in which a device's children are ended when the device is closed by force. */
enum siw_child_rank {
	SIW_CHILD_CM_ID,
	SIW_CHILD_CM_CHANNEL,
	SIW_CHILD_QP,
	SIW_CHILD_SRQ,
	SIW_CHILD_CQ,
	SIW_CHILD_CHANNEL,
	SIW_CHILD_PASSIVE, /* children that need no action when the device is closed */
	SIW_CHILD_RANKS,
};

/*
 * An object that must be ended when its device is closed by force; linked into its context's
 * children.
 */
struct siw_child {
	struct siw_link link;
	/*
	 * Ends the object as its destructor does, but does not wait and does not free the struct.
	 * Called without locks.
	 */
	void (*end)(struct siw_child *self);
	int fd; /* descriptor on which threads wait for this object, or -1 */
};

/*
 * Number of watchdog threads per device, in addition to the device's progress thread, which starts
 * them (device_watchdog.c).
 */
#define SIW_WATCHDOGS 2

struct siw_watchdogs {
	struct siw_watchdog {
		struct siw_context *ctx;
		pthread_t thread;
		sem_t wake; /* wakes the thread when the watchdogs are activated or must end */
	} threads[SIW_WATCHDOGS];
	unsigned int n; /* number of running watchdog threads */
	bool attempted; /* creation of the threads was attempted */
	_Atomic bool active;
	_Atomic uint32_t served; /* number of wake-ups in which one-sided traffic was handled */
	uint64_t last_ns;	 /* when the progress thread last handled one-sided traffic */
	/* consecutive wake-ups with one-sided traffic, each soon after the one before */
	unsigned int streak;
};

/*
 * Counts the polls without work since the last poll that found work, to decide when a poll yields
 * the CPU, and which polls make no progress round.
 */
struct siw_idle_polls {
	uint32_t rounds;
	bool idle;	   /* polls have found no work for longer than a message exchange takes */
	uint64_t since_ns; /* when the clock was first read after the last poll that found work */
	/* the CQ whose poll made the last progress round; NULL: unknown */
	const struct siw_cq *last_cq;
	unsigned int skipped; /* number of polls of other CQs since the progress round of last_cq */
	/* while idle: how many rounds of all devices had moved messages when last checked */
	uint32_t work_count;
	/* number of further polls that only rarely make a round, because another device is busy */
	uint32_t rare_left;
	uint64_t round_ns; /* time of the last round made while rounds are rare */
};

/*
 * A burst of posts ends with a poll of an empty CQ. Polls that return completions end it, too:
 * after SIW_POLLS_PER_BURST of them, or with the first one after SIW_OCTETS_PER_BURST posted
 * octets.
 */
#define SIW_POLLS_PER_BURST  8
#define SIW_OCTETS_PER_BURST (1u << 20)

/* maximum number of lanes of a device; a set of lanes is a bit mask in 32 bits */
#define SIW_MAX_LANES 16
_Static_assert(SIW_MAX_LANES <= SIW_LLP_MAX_WAITSETS, "a thread waits on all lanes of a device");

/* What a round of one lane leaves for the next round of another lane. */
enum siw_lane_work {
	SIW_LANE_NOTIFY_FOLLOWERS = 1, /* the link or the addresses of the device have changed */
	SIW_LANE_REVOKE_BINDINGS = 2,  /* reset streams that use a binding in ctx->revocations */
	SIW_LANE_CONTINUE_BINDS = 4,   /* the replaced binding that a bind waits for has ended */
};

/*
 * A lane: the state that a thread needs to make progress for a set of sockets and queue pairs. Each
 * CQ belongs to a lane, and a queue pair belongs to the lane of its receive CQ. Threads that make
 * progress on different lanes do not wait for each other. Lane 0 also has what belongs to no queue
 * pair: the listeners and the connections of the connection manager until a queue pair takes over
 * the stream, the resolution of UD queue pairs, and the interface watch.
 */
struct siw_lane {
	/* the progress lock: the thread that holds it makes progress */
	siw_lock_t lock;
	/* the sockets and their poller; NULL: the device is closed; written under the lock */
	struct siw_llp_poller *_Atomic poller;
	struct siw_context *ctx;
	unsigned int index; /* position in ctx->lanes */
	/* number of progress rounds that polled sockets; written under lock */
	_Atomic uint64_t rounds;
	siw_lock_t unsent_lock;
	struct siw_link unsent;	   /* list of QPs with requests left to send; unsent_lock */
	_Atomic uint32_t n_unsent; /* number of QPs in unsent */
	uint64_t unsent_rounds;	   /* number of rounds over the unsent list; under lock */
	/* posts were delayed for a batch since the last round over the unsent list */
	_Atomic bool posts_delayed;
	/* the last round left requests for which the sockets have space; under lock */
	bool more_to_send;
	/*
	 * a poll makes the round in progress, so the program will probably poll again; under lock
	 */
	bool round_of_poll;
	_Atomic bool cq_overrun; /* a CQ overflowed and its QPs have not been moved to ERR yet */
	/* octets posted since the last burst of posts ended; a hint, relaxed */
	_Atomic uint64_t posted_octets;
	_Atomic bool posts_dense; /* posts are dense enough to be delayed for a batch */
	/*
	 * Until no_delay_until_ns no posts are delayed, because the progress thread had to send
	 * delayed posts. no_delay_ns: the duration, written under lock.
	 */
	_Atomic uint64_t no_delay_until_ns;
	uint64_t no_delay_ns;
	_Atomic uint32_t work_of_others; /* set of enum siw_lane_work */
	/*
	 * number of polls; while it increases, the progress thread does not make rounds on the lane
	 */
	_Atomic uint32_t polls;
	/* number of polls that returned completions without a progress round */
	_Atomic uint32_t polls_without_round;
	_Atomic uint32_t armed_at; /* value of `polls` when a CQ was last armed */
	_Atomic uint32_t waiters;  /* threads inside siw_device_wait */
	/* number of CQs with which event loops of the program wait on the lane (device_loop.c) */
	_Atomic uint32_t loops;
	/*
	 * Rounds of polls on other lanes (device_progress.c). Hints: relaxed accesses, and lost
	 * increments do no harm. failed_polls: number of polls in a row that found the lock held.
	 * adopted: the other lanes that polls of this lane make rounds on. looks: number of polls
	 * that were to check another lane (lane_is_unserved); last_look: the lane checked last.
	 */
	_Atomic uint32_t failed_polls, adopted, looks, last_look;
	/*
	 * Polls of other lanes detect with these members that no thread makes rounds on this lane.
	 * seen_rounds: value of `rounds` at the last check. unserved_since_ns: time of the first
	 * check that found the value unchanged; 0: none.
	 */
	_Atomic uint64_t seen_rounds, unserved_since_ns;
	uint32_t polls_with_work; /* number of polls whose rounds moved messages; under lock */
	uint32_t one_sided;	  /* number of short Writes and Reads by peers; under lock */
	struct siw_idle_polls idle_polls; /* under lock */
	struct siw_link timed;		  /* list of struct siw_timed; under lock */
	_Atomic uint32_t n_timed;	  /* number of timers in timed */
	/* when the first timer is due; written under the lock */
	_Atomic uint64_t next_tick_ns;
	struct siw_link qps; /* list of the QPs of the lane; under lock */
	/* list of struct siw_addr_follower, oldest first; under lock */
	struct siw_link addr_followers;
	struct siw_link groups; /* list of multicast groups with member QPs; under lock */
	/* list of the TCP ports of RC QPs that connect by QPN; used by connect/; under lock */
	struct siw_link pair_ports;
	/* list of the RD endpoints that outlive their destroyed QPs; used by qp/; under lock */
	struct siw_link lingering_rds;
	siw_lock_t busy_lock; /* innermost lock: no lock is acquired while it is held */
	/* list of QPs that may be using memory or address handles; busy_lock */
	struct siw_link busy;
	uint32_t n_busy;			    /* number of QPs in busy; busy_lock */
	struct siw_freelist free_qps[SIW_QP_TYPES]; /* freelists of QPs, by QP type; used by qp/ */
};

/* An object whose sockets follow the addresses of the device. */
struct siw_addr_follower {
	struct siw_link link; /* link in addr_followers of its lane */
	/*
	 * Called with the lock of its lane held when the link or the addresses of the device's
	 * interface may have changed; siw_device_get_current_info() returns the new state. Must not
	 * remove a follower.
	 */
	void (*update)(struct siw_addr_follower *self);
};

#define SIW_PORT_EVENTS 3 /* number of asynchronous event types of the interface */

/*
 * The state of the device's interface. The followers of all lanes handle a change before the
 * program sees it: a program that has seen a new address can use it with every queue pair.
 */
struct siw_port_state {
	/* the current state; written only by the holder of the lock of lane 0 */
	struct siw_device_info now;
	struct siw_device_info shown; /* the state that the program sees */
	uint32_t changes;	      /* number of changes so far */
	uint32_t lanes; /* bit mask of the lanes whose followers must handle the last change */
	/*
	 * the events to raise when these lanes have handled it (enum siw_event_type), each type
	 * once, oldest first
	 */
	int events[SIW_PORT_EVENTS];
	int n_events;
};

/* An open device: one RNIC with its own poller and progress thread. */
struct siw_context {
	struct siw_lane lane0;		       /* the first lane, open as long as the device */
	struct siw_lane *lanes[SIW_MAX_LANES]; /* lanes[0] is &lane0; NULL: never opened */
	_Atomic uint32_t open_lanes;	       /* bit mask of the lanes that have a poller */
	_Atomic uint32_t lanes_with_qps;       /* bit mask of the lanes that have queue pairs */
	uint32_t n_lanes;		       /* number of lanes that may be opened; constant */
	siw_lock_t lanes_lock;		       /* held while a lane is opened */
	uint32_t lane_cqs[SIW_MAX_LANES];      /* number of CQs per lane; lanes_lock */
	struct siw_mem *mem;
	/*
	 * The spinning of waits: after a spin that found no completion, the next spin_skip waits do
	 * not spin; spin_left of these are still to come. Both are hints only: relaxed accesses.
	 */
	_Atomic uint32_t spin_skip, spin_left;
	/* threads inside siw_device_wait_on_fd, or at the end of siw_device_wait */
	_Atomic uint32_t fd_waiters;
	_Atomic uint32_t n_armed; /* number of armed CQs and of threads inside siw_wait_cq */
	/*
	 * Set in a forked child before the child runs, because the child's copy of the device is
	 * unusable, and also set when the device is closed by force.
	 */
	_Atomic bool inherited;
	siw_lock_t children_lock; /* innermost lock: no lock is acquired while it is held */
	struct siw_link children[SIW_CHILD_RANKS];
	/* number of timers of streams and endpoints that wait for their peers to close */
	_Atomic uint32_t n_linger;
	/*
	 * Protects the references of connection ids to QPs (struct siw_qp_hold). May be acquired
	 * while the lock of a lane is held, and held while the send lock of a QP is acquired.
	 */
	siw_lock_t refs_lock;
	siw_lock_t numbers_lock; /* innermost lock: no lock is acquired while it is held */
	struct siw_link qps;	 /* list of the QPs that have a QPN; numbers_lock */
	siw_lock_t revocations_lock;
	struct siw_link revocations; /* list of struct siw_revocation; revocations_lock */

	siw_lock_t async_lock;	      /* innermost lock: may be taken with any other lock held */
	struct siw_link async_events; /* list of struct siw_async_note, oldest first; async_lock */
	struct siw_async async;	      /* the asynchronous events of the device itself */
	int async_fd;
	bool async_fd_set; /* protected by async_lock */

	/* link in the list of open or of closed contexts (device_fork.c) */
	struct siw_link open;
	struct siw_device_info info; /* interface state when the device was opened */
	siw_lock_t port_lock;	     /* innermost lock: no lock is acquired while it is held */
	struct siw_port_state port;  /* protected by port_lock */
	struct siw_port_watch watch;
	struct siw_device_attr attr;
	_Atomic uint32_t n_pd, n_cq, n_ah, n_qp, n_rc, n_channel, n_evq, n_srq, n_mw;
	siw_lock_t mw_lock; /* innermost lock; protects bindings of memory windows to regions */
	_Atomic uint32_t next_pd, next_srq;
	_Atomic uint64_t next_qp; /* serial number of the next QP */
	uint32_t next_rc_qpn;	  /* protected by numbers_lock */
	bool rc_qpns_recur;	  /* next_rc_qpn has passed the last number; numbers_lock */
	/*
	 * number of UD QPs, and of RC QPs created to connect by QPN, whose QPN lies in the range of
	 * the RC QPs with connection manager; numbers_lock
	 */
	uint32_t n_high;

	bool has_thread;
	pthread_t thread;
	_Atomic bool stop;
	_Atomic bool naps; /* the progress thread takes short sleeps; others make progress */
	/* the progress thread sleeps long, because a waiter sleeps on the sockets */
	_Atomic bool asleep;
	int sleep_fd;
	/*
	 * the watchdog threads; except for its atomics, only the progress thread uses this member
	 */
	struct siw_watchdogs watchdogs;

	siw_lock_t err_lock; /* innermost lock: no lock is acquired while it is held */
	/*
	 * Error message rate limits shared by the device's queue pairs; owned by the qp layer,
	 * allocated with the first error message. Protected by err_lock.
	 */
	struct siw_err_limit *err_limit;
	struct siw_freelist free_cqs, free_srqs, free_ahs, free_regions, free_windows;
};

struct siw_pd {
	struct siw_context *ctx;
	struct siw_child child;
	uint32_t number;
	_Atomic uint32_t n_mr, n_qp, n_ah, n_srq, n_mw;
};

struct siw_ah {
	/*
	 * Space for the caller's data (siw_ah_room). Must be the first member, so that the space
	 * and the handle have the same address.
	 */
	_Alignas(16) unsigned char room[SIW_AH_ROOM];
	struct siw_pd *_Atomic pd; /* NULL: the address handle is destroyed */
	struct siw_addr dest;
	struct siw_addr source; /* source address of outgoing messages; family 0: any */
	struct siw_child child;
	bool group;	     /* dest is the address and port of a multicast group */
	_Atomic bool queued; /* a send to this handle has been left in a send queue at least once */
	struct siw_link in_freelist;
};

struct siw_srq {
	struct siw_context *ctx;
	struct siw_pd *pd;
	uint32_t number;
	void *user;
	/*
	 * Protects the posting of receives, the size of the queue, and the members from recvs to
	 * limit. Receives are taken under the lock of the queue itself (mem/mem_queue.h).
	 */
	siw_lock_t lock;
	/*
	 * NULL: the SRQ is destroyed. Written only while no QP uses the SRQ, so a progress round of
	 * such a QP may read it without the lock.
	 */
	struct siw_mem_buffer_queue *recvs;
	struct siw_link waiting;  /* list of QPs with received Sends that have no receive yet */
	struct siw_srq_attr attr; /* without srq_limit */
	_Atomic uint32_t limit;	  /* srq_limit; written under the lock; 0 after the limit event */
	_Atomic uint32_t n_qp;
	struct siw_async async;
	struct siw_child child;
	struct siw_link in_freelist;
};

/* The requests that are left in a send queue after the queue pair's turn. */
enum siw_turn {
	SIW_TURN_DONE,	  /* no request is left */
	SIW_TURN_MORE,	  /* requests are left for the next turn */
	SIW_TURN_BLOCKED, /* requests wait for room in a socket */
	/* requests wait for room in a socket, and none completed: this QP is first next time */
	SIW_TURN_STARVED,
};

/*
 * The operations of a queue pair that verbs calls: one const table per QP type. An operation that a
 * type does not need is NULL. All operations except record_polled are called with the progress lock
 * held.
 */
struct siw_qp_ops {
	/* the QP has one peer at a time, so a region may be restricted to this QP */
	bool owns_regions;
	/*
	 * Called when the QP was marked unsent: sends more of its requests, and delivers messages
	 * that were waiting for receives. turn: number of this round over all marked QPs.
	 */
	enum siw_turn (*turn)(struct siw_qp *qp, uint64_t turn);
	/*
	 * uses_key: whether a request that the socket has not accepted, or a Read without a
	 * response, uses this memory. uses_ah: whether a send that the socket has not accepted uses
	 * this address handle. Both first send the requests that were only delayed for a batch.
	 */
	bool (*uses_key)(struct siw_qp *qp, uint32_t lkey);
	bool (*uses_ah)(struct siw_qp *qp, const struct siw_ah *ah);
	/*
	 * Returns whether no posted request and no response to the peer is waiting or being sent.
	 * Called with send_lock held.
	 */
	bool (*is_quiet)(const struct siw_qp *qp);
	/*
	 * Called after the STag was invalidated: resets the connection if a Read Response from that
	 * memory has not been sent completely.
	 */
	void (*revoke)(struct siw_qp *qp, uint32_t stag);
	/*
	 * Continues a bind of the QP that has replaced a binding: ends the old binding, and
	 * completes the bind when no lane uses the old binding any more.
	 */
	void (*settle)(struct siw_qp *qp);
	/* Moves the QP to ERR; status: the reason, -errno. */
	void (*fail)(struct siw_qp *qp, int status);
	/*
	 * Called when the process is exiting. leave: sends the posted requests and shuts the
	 * connection down. is_leaving: returns whether the shutdown is still in progress.
	 */
	void (*leave)(struct siw_qp *qp);
	bool (*is_leaving)(const struct siw_qp *qp);
	/* Called with a CQ lock held when the completion of a Write-Record was polled. */
	void (*record_polled)(struct siw_qp *qp);
};

/*
 * The part of a queue pair that verbs uses: the first member of each QP type's struct
 * (qp/qp_objects.h).
 */
struct siw_qp {
	struct siw_io_handler handler; /* must be the first member */
	const struct siw_qp_ops *ops;
	struct siw_context *ctx;
	struct siw_lane *lane; /* the lane never changes, so a late call finds the right lock */
	struct siw_pd *pd;
	struct siw_cq *send_cq, *recv_cq;
	struct siw_srq *srq; /* SRQ that supplies the receives; NULL: the QP has its own queue */
	uint64_t serial;     /* serial number, unique among all QPs ever created on the device */
	/*
	 * enum siw_qp_state. Written under send_lock and the progress lock; the transition of a QP
	 * from RTS to SQE (UC, UD and RD), under send_lock only.
	 */
	_Atomic int state;
	_Atomic uint32_t qpn;
	siw_lock_t send_lock;
	siw_lock_t recv_lock;
	/* Slots of each queue below this number are free, because a later completion was polled. */
	_Atomic uint32_t sq_freed, rq_freed;
	struct siw_link unsent; /* protected by lane->unsent_lock */
	bool on_unsent;		/* protected by lane->unsent_lock */
	bool on_busy;		/* protected by send_lock */
	struct siw_link busy;	/* protected by lane->busy_lock */
	/* received Sends wait for receives; written under the progress lock and recv_lock */
	bool has_unexpected;
	/*
	 * link in the list `waiting` of the QP's SRQ while has_unexpected is set; protected by the
	 * SRQ's lock
	 */
	struct siw_link in_srq;
	struct siw_link in_ctx;	 /* link in ctx->qps; under ctx->numbers_lock */
	bool qpn_is_high;	 /* the QP is included in ctx->n_high; under ctx->numbers_lock */
	struct siw_link in_lane; /* link in lane->qps until the QP is destroyed; under lane->lock */
	struct siw_async async;
	struct siw_child child;
	struct siw_link in_freelist;
};

/* A memory window bind that was posted and not carried out yet. */
struct siw_bind {
	/*
	 * memory window to bind, which cannot be deallocated meanwhile; NULL after the bind was
	 * carried out or dropped
	 */
	struct siw_window *window;
	/*
	 * region to bind the window to, which cannot be deregistered meanwhile; NULL: none, or a
	 * region that permits no windows
	 */
	struct siw_region *region;
	uint64_t addr, length; /* in octets */
	uint32_t rkey;	       /* the window's rkey after the bind */
	int access;	       /* set of enum siw_access_flags */
	/* allocated when the bind is posted, if the device may have several lanes; or NULL */
	struct siw_revocation *revocation;
};

/* A memory window's previous binding, replaced by a new bind, until no stream uses it any more. */
struct siw_bind_rest {
	uint32_t stag; /* the invalidated STag; streams may still have responses to send from it */
	struct siw_region *region; /* the region of the previous binding, pinned; or NULL */
	struct siw_revocation *revocation;
};

/* ---- the context; any thread ----------------------------------------------------------------- */

/*
 * Returns whether the device is unusable: this is a forked child and the parent opened the device,
 * or the device was closed by force. Lock-free.
 */
static inline bool siw_device_inherited(const struct siw_context *ctx)
{
	return __builtin_expect(atomic_load_explicit(&ctx->inherited, memory_order_relaxed), 0);
}
/* Returns -ESTALE and records the reason if siw_device_inherited() is true; otherwise returns 0. */
int siw_device_refuse_if_stale(const struct siw_context *ctx);
/*
 * The first step of every verb: clears the reason of the thread's previous call and checks the
 * object that is passed to the verb. ctx: the object's device, or NULL if the object is NULL. name:
 * the object's parameter, for the reason. Returns 0, -EINVAL for NULL, or -ESTALE.
 */
int siw_device_check_usable(const struct siw_context *ctx, const char *name);
/*
 * First step of a verb that creates an object of a PD from init attributes. Returns 0, or -errno if
 * an argument is NULL or the device is unusable (siw_device_inherited).
 */
int siw_device_check_create_args(const struct siw_pd *pd, const void *init);

/*
 * Copies the current state of the device's interface, which the program may not see yet
 * (siw_query_device_info). Any lock may be held. To miss no change, a caller that adds a struct
 * siw_addr_follower holds the lock of the follower's lane from its first copy until the addition.
 */
void siw_device_get_current_info(struct siw_context *ctx, struct siw_device_info *info);

/*
 * Returns the QP's identity, for regions that are bound to the QP. The value is odd, so it never
 * equals an object's address.
 */
static inline const void *siw_device_owner(const struct siw_qp *qp)
{
	return (const void *)(uintptr_t)(qp->serial << 1 | 1);
}

/*
 * siw_device_add_child() adds a new child of the device to the list of objects that are ended when
 * the device is closed by force. siw_device_remove_child() removes a child that is being destroyed.
 * end may be NULL for SIW_CHILD_PASSIVE.
 */
void siw_device_add_child(struct siw_context *ctx, struct siw_child *child,
			  enum siw_child_rank rank, void (*end)(struct siw_child *self), int fd);
void siw_device_remove_child(struct siw_context *ctx, struct siw_child *child);

/*
 * Removes and returns the object that was added to the freelist first, or NULL if the list is
 * empty.
 */
struct siw_link *siw_device_freelist_take(struct siw_freelist *list);
void siw_device_freelist_give(struct siw_freelist *list, struct siw_link *link);

/* ---- lanes ----------------------------------------------------------------------------------- */

/*
 * Returns the first open lane with a higher number than `lane`, or NULL. May be called by any
 * thread.
 */
static inline struct siw_lane *siw_device_next_lane(const struct siw_lane *lane)
{
	/* Acquire order pairs with the release in lane_open_poller(). */
	uint32_t later = atomic_load_explicit(&lane->ctx->open_lanes, memory_order_acquire) &
			 ~(uint32_t)0 << (lane->index + 1);

	return __builtin_expect(later, 0) ? lane->ctx->lanes[__builtin_ctz(later)] : NULL;
}

/*
 * Visits the open lanes of a device in ascending order. Whoever acquires the lock of a visited lane
 * releases it before the next lane.
 */
#define SIW_EACH_LANE(lane, ctx) \
	for (struct siw_lane *lane = &(ctx)->lane0; lane; lane = siw_device_next_lane(lane))

/* Leaves work for another lane, whose lock may be held by any thread. Any thread, any lock. */
void siw_device_leave_work_for_lane(struct siw_lane *lane, enum siw_lane_work work);

/*
 * Returns in *out the lane of the queue pairs whose receives complete on the CQ. The first call
 * chooses the lane, because only then is it known that receives complete on the CQ: a program that
 * creates a CQ for sends and one for receives per thread should use all lanes. Returns 0; -ESTALE
 * if the device is being closed by force; -ENOMEM or another -errno of the poller.
 */
int siw_device_cq_get_or_choose_lane(struct siw_cq *cq, struct siw_lane **out);

/* ---- progress -------------------------------------------------------------------------------- */

/*
 * Counts a poll of cq (NULL: a poll that is not of a CQ) and makes a progress round, unless another
 * thread is making one or a recent round found no work.
 */
void siw_device_poll(struct siw_lane *lane, const struct siw_cq *cq);
/*
 * Makes one progress round: services each socket that may have work once. Returns the number of
 * messages moved. Called with the progress lock held.
 */
int siw_device_progress_once(struct siw_lane *lane);
/*
 * Waits until ready(arg) returns non-zero and returns that value; -EAGAIN after timeout_ms
 * milliseconds (-1: no limit); -EINTR. The calling thread makes progress on a set of lanes while it
 * waits: *lanes is a bit mask, and may change meanwhile (siw_device_comp_channel_change_lanes). fd
 * must become readable when another thread causes ready() to return non-zero; -1: that thread calls
 * siw_device_wake_sleeping_thread() for these lanes. With a non-zero timeout_ms this is a
 * cancellation point (base/cancel.h), so the caller must hold no lock.
 */
int siw_device_wait(struct siw_context *ctx, const _Atomic uint32_t *lanes, int (*ready)(void *arg),
		    void *arg, int fd, int timeout_ms);
/*
 * Waits like siw_device_wait(), but if the device has a progress thread, the calling thread makes
 * progress only for the first progress_us microseconds, on lane 0, and then sleeps on fd only. For
 * rare events: a thread that waits for them must not be woken by every message.
 */
int siw_device_wait_on_fd(struct siw_context *ctx, int (*ready)(void *arg), void *arg, int fd,
			  int timeout_ms, uint32_t progress_us);
/* Marks the QP as having requests left to send: each following progress round services the QP. */
void siw_device_add_unsent_qp(struct siw_qp *qp);
void siw_device_remove_unsent_qp(struct siw_qp *qp);
/*
 * Records that the QP may use memory or an address handle from now on, until a check finds that the
 * QP has nothing in progress. Only recorded QPs are checked before memory or an address handle is
 * destroyed. Called with send_lock held.
 */
void siw_device_add_qp_to_busy_list(struct siw_qp *qp);
static inline void siw_device_mark_busy(struct siw_qp *qp)
{
	if (__builtin_expect(!qp->on_busy, 0))
		siw_device_add_qp_to_busy_list(qp);
}
/*
 * Removes the QP's record of possible uses before the QP is destroyed. Called with the progress
 * lock held.
 */
void siw_device_remove_qp_from_busy_list(struct siw_qp *qp);
/*
 * Wakes a sleeping thread to make progress. May be called by any thread. The caller holds a lock of
 * its object that is also acquired when the object is ended, because closing a device by force
 * frees the socket poller after ending the objects.
 */
void siw_device_wake_sleeping_thread(struct siw_lane *lane);
/*
 * Timers. siw_device_timer_start_periodic: ticks after 5 ms, then after intervals that grow
 * fourfold, and also at by_ns unless by_ns is 0; calling it again restarts at 5 ms.
 * siw_device_timer_start_at: ticks at by_ns only. siw_device_timer_cancel: stops the timer if it is
 * running. Progress lock held.
 */
void siw_device_timer_start_periodic(struct siw_lane *lane, struct siw_timed *timed,
				     uint64_t by_ns);
void siw_device_timer_start_at(struct siw_lane *lane, struct siw_timed *timed, uint64_t by_ns);
void siw_device_timer_cancel(struct siw_lane *lane, struct siw_timed *timed);

/* ---- events ---------------------------------------------------------------------------------- */

void siw_device_init_object_async(struct siw_async *async, struct siw_context *ctx, void *object,
				  void *user);
/*
 * Raises an asynchronous event (enum siw_event_type). An event that is raised again before it was
 * read is reported once, in the position of the last raise. Cannot fail. Called with any locks
 * held.
 */
void siw_device_raise_async_event(struct siw_async *async, int type);
/*
 * Called before the object is destroyed: drops the object's unread events and waits until the read
 * events are acknowledged. No further event may be raised. Called without locks.
 */
void siw_device_drop_async_events_then_wait(struct siw_async *async);
/*
 * Ends the events of an object like siw_device_drop_async_events_then_wait() when the device is
 * closed by force, without waiting: no acknowledgements will arrive.
 */
void siw_device_drop_object_events_unacked(struct siw_async *async);

/* ---- completion and receive queues ----------------------------------------------------------- */

/* Increments the count if it is below max. Returns whether the count was incremented. */
bool siw_device_increment_count_if_below_max(_Atomic uint32_t *count, uint32_t max);
/* Returns -ENOMEM and records the reason: the device limit of this name is reached. */
int siw_device_refuse_limit_reached(const char *limit, uint32_t max);

/*
 * siw_device_cq_is_on_device: returns whether the CQ belongs to this context.
 * siw_device_cq_is_overrun: returns whether the CQ has overflowed.
 */
bool siw_device_cq_is_on_device(const struct siw_cq *cq, const struct siw_context *ctx);
bool siw_device_cq_is_overrun(const struct siw_cq *cq);
/*
 * Adjusts the number of queue pairs that use the CQ: by is 1 when a queue pair is created, -1 when
 * one is destroyed.
 */
void siw_device_cq_adjust_qp_count(struct siw_cq *cq, const struct siw_lane *lane, int by);
/* The addresses of a received message. */
struct siw_way {
	/* source and destination; dest may be NULL: unknown */
	const struct siw_addr *source, *dest;
	uint64_t instance; /* RD: instance of the source endpoint; 0: unknown */
};
/*
 * Queues the completion of a send (send_lock held) or of a receive (progress lock held). slot:
 * polling the completion frees the send or receive slots before that number. way: the addresses of
 * the message, or NULL.
 */
void siw_device_cq_add_completion(struct siw_qp *qp, struct siw_cq *cq, const struct siw_wc *wc,
				  const struct siw_way *way, uint32_t slot, bool solicited);
/*
 * Removes the completions of a QP that is reset or destroyed. The removed completions count as
 * polled.
 */
void siw_device_cq_remove_completions_of_qp(struct siw_cq *cq, struct siw_qp *qp);
/*
 * Called after receives were removed from the SRQ: raises SRQ_LIMIT_REACHED if fewer are left than
 * the limit. Called with the lock of the lane of a QP that uses the SRQ held, srq->lock not held.
 */
void siw_device_srq_raise_limit_event_if_low(struct siw_srq *srq);
/*
 * Called after receives may have been put back: the QPs that wait for receives get a turn if a
 * receive that was put back is left. Locks as for siw_device_srq_raise_limit_event_if_low().
 */
void siw_device_srq_offer_returned_receives(struct siw_srq *srq);

/* ---- memory windows -------------------------------------------------------------------------- */

/*
 * Called when a bind of a window of this type is posted: fills *bind and pins window and region.
 * Returns 0, or -EINVAL if the window no longer exists; then nothing is pinned.
 */
int siw_device_mw_pin_for_bind(struct siw_context *ctx, const struct siw_send_wr *wr, int type,
			       struct siw_bind *bind);
/* Drops a bind that will not be carried out. */
void siw_device_mw_drop_bind(struct siw_context *ctx, struct siw_bind *bind);
/*
 * Carries out a bind. Returns 0; -EINPROGRESS: the window is bound, but the request completes only
 * after siw_device_mw_end_replaced_binding() has ended the previous binding *rest; or
 * SIW_WC_MW_BIND_ERR.
 */
int siw_device_mw_bind(struct siw_qp *qp, struct siw_bind *bind, struct siw_bind_rest *rest);
/*
 * Resets all streams that still send from the previous binding, except the stream of the QP
 * `except`: the streams of this lane immediately, and those of other lanes in the next rounds of
 * their lanes. Returns whether the binding has ended. If not, the member settle of the lane's queue
 * pairs is called when it has; until then siw_device_mw_replaced_binding_has_ended() returns false.
 * siw_device_mw_stop_waiting_for_binding_end(): the queue pair does not wait for that any longer.
 * Called with the lock of the lane held and send_lock not held.
 */
bool siw_device_mw_end_replaced_binding(struct siw_lane *lane, const struct siw_bind_rest *rest,
					const struct siw_qp *except);
bool siw_device_mw_replaced_binding_has_ended(struct siw_context *ctx,
					      const struct siw_bind_rest *rest);
void siw_device_mw_stop_waiting_for_binding_end(struct siw_context *ctx,
						const struct siw_bind_rest *rest);

#endif
