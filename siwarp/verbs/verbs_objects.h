/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* verbs/verbs_objects.h - the objects behind the handles; private to this folder. */
#ifndef SIW_VERBS_OBJECTS_H
#define SIW_VERBS_OBJECTS_H

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
			uint32_t send_imm;	 /* SEND_WITH_IMM */
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
	uint32_t max_records;		 /* UD, RD: Write-Records in process, at the most */
	uint32_t records_told;		 /* progress */
	_Atomic uint32_t records_polled; /* of these */
	uint32_t records_seen;	   /* RD: records_polled, when what comes was looked at: progress */
	_Atomic bool records_wait; /* RD: one is to come up when one was polled */
	struct siw_rdmap_uc *uc;   /* UC */
	struct siw_addr peer;	   /* UC, from RTR on: progress and send_lock to write, as */
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
	bool broken;  /* RC, RD: a WQE failed before all of it was sent: send_lock */
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

#endif
