/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* device/device_objects.h - structs used only in this folder; private to device/. */
#ifndef SIW_DEVICE_OBJECTS_H
#define SIW_DEVICE_OBJECTS_H

#include "device/device.h"

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

struct siw_device {
	struct siw_device_info info;
};

/* A memory region: the user's struct, and copies of the values that the user must not change. */
struct siw_region {
	struct siw_mr mr; /* must be the first member */
	int access;
	uint64_t iova;	       /* the tagged offset of the region's first octet */
	const void *owner;     /* identity of the QP that the region is bound to; NULL: none */
	_Atomic bool bindable; /* windows may be bound to the region; written under mw_lock */
	uint32_t pins; /* number of posted binds and of previous bindings being ended; mw_lock */
	/*
	 * list of the windows that were last bound to the region; a window that a peer has
	 * invalidated stays in the list until it is bound again or deallocated; under mw_lock
	 */
	struct siw_link windows;
	struct siw_child child;
	struct siw_link in_freelist;
};

/* A memory window. All members except mw are protected by mw_lock. */
struct siw_window {
	struct siw_mw mw; /* must be the first member */
	bool live;	  /* the window has not been deallocated */
	/* STag reserved for the window or of its current binding; mw.rkey is the user's copy */
	uint32_t stag;
	uint32_t pins;		   /* number of posted binds of this window */
	struct siw_region *region; /* the region in whose windows list this window is, or NULL */
	struct siw_link in_region;
	struct siw_child child;
	struct siw_link in_freelist;
};

/*
 * A replaced binding of a window that streams of lanes other than the lane of the bind may still
 * use. Freed by the queue pair that waits for the end of the binding, or by the last of these
 * lanes. Protected by revocations_lock.
 */
struct siw_revocation {
	struct siw_link link;	   /* in ctx->revocations until the binding has ended */
	uint32_t stag;		   /* the STag of the replaced binding */
	struct siw_region *region; /* the region of the replaced binding, pinned; or NULL */
	uint32_t lanes; /* bit mask of the lanes whose streams may still use the binding */
	/* the lane of the queue pair that waits; NULL: the queue pair does not wait any longer */
	struct siw_lane *waiter;
};

struct siw_cqe {
	struct siw_wc wc;
	struct siw_qp *owner; /* the QP exists: destroying a QP first removes its completions */
	/* polling the completion frees the owner's send or receive slots up to this number */
	uint32_t slot;
	struct siw_addr source;
	struct siw_addr dest;
	uint64_t instance; /* RD: instance of the source endpoint; 0: unknown */
};

struct siw_cq {
	siw_lock_t lock;
	_Atomic uint32_t tail; /* number of the next completion to store; written under lock */
	_Atomic uint32_t head; /* number of the next completion to poll; written under lock */
	uint32_t mask;
	struct siw_cqe *ring;
	struct siw_context *ctx;
	struct siw_comp_channel *channel;
	void *user;
	int armed; /* 0: not armed, 1: for any completion, 2: for solicited ones only; lock */
	/* the CQ overflowed and accepts no more completions; written under lock */
	_Atomic bool overrun;
	_Atomic uint32_t n_qp;
	unsigned int comp_vector; /* the lane wanted, or 0 for any; constant */
	/*
	 * The lane of the queue pairs whose receives complete on the CQ; NULL before the first of
	 * them; lock.
	 */
	struct siw_lane *home;
	/*
	 * The lanes whose queue pairs use the CQ, as a bit mask. If no queue pair uses the CQ: the
	 * lane home or, if home is NULL, lane 0. sole_lane: the lane if there is only one, else
	 * NULL. Written under lock.
	 */
	_Atomic uint32_t lanes;
	struct siw_lane *_Atomic sole_lane;
	uint32_t lane_qps[SIW_MAX_LANES]; /* number of uses by queue pairs per lane; lock */
	/* link in channel->cqs; in_channel, events and unacked: under the channel's lock */
	struct siw_link in_channel;
	uint32_t events; /* number of events raised and not read yet */
	/*
	 * The descriptor with which an event loop of the program waits; NULL: none. loop_armed: the
	 * next completion makes it readable. The CQ's lock protects both members.
	 */
	struct siw_llp_event_loop_fd *loop;
	bool loop_armed;
	_Atomic uint32_t waiters; /* threads inside siw_wait_cq; incremented under lock */
	uint32_t unacked;	  /* number of events read and not acknowledged yet */
	struct siw_async async;
	struct siw_child child;
	struct siw_link in_freelist;
};

struct siw_comp_channel {
	struct siw_context *ctx;
	siw_lock_t lock;
	struct siw_link cqs; /* list of the CQs with unread events */
	int fd;
	bool fd_set;
	struct siw_child child;
	_Atomic uint32_t n_cq;
	_Atomic uint32_t lanes; /* bit mask of the lanes of the channel's CQs; written under lock */
	uint32_t lane_cqs[SIW_MAX_LANES]; /* number of CQs per lane; lock */
};

#endif
