/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* verbs/verbs_objects.h - structs that only this folder uses; private to it. */
#ifndef SIW_VERBS_OBJECTS_H
#define SIW_VERBS_OBJECTS_H

#include "verbs/verbs.h"

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

/* A region: the user's struct, and a copy of what the user must not change. */
struct siw_region {
	struct siw_mr mr; /* first */
	int access;
	uint64_t iova;	       /* the tagged offset of its first octet */
	const void *owner;     /* of the QP that it is bound to; NULL: none */
	_Atomic bool bindable; /* windows may be bound to it: mw_lock to write */
	uint32_t pins;	       /* posted binds, and old bindings that are being ended; mw_lock */
	/* windows bound to it, or invalidated since and not bound again; mw_lock */
	struct siw_link windows;
	struct siw_child child;
	struct siw_link in_freelist;
};

/* A memory window. All but mw under mw_lock. */
struct siw_window {
	struct siw_mw mw; /* first */
	bool live;	  /* not deallocated */
	/* reserved, or of the current binding; mw.rkey is what the user sees */
	uint32_t stag;
	uint32_t pins;		   /* posted binds */
	struct siw_region *region; /* NULL: in no region's windows, else in this one's */
	struct siw_link in_region;
	struct siw_child child;
	struct siw_link in_freelist;
};

struct siw_cqe {
	struct siw_wc wc;
	struct siw_qp *owner; /* valid: destroying a QP removes its completions first */
	uint32_t slot;	      /* polling it frees the owner's send or receive slots up to here */
	struct siw_addr source;
	struct siw_addr dest;
	uint64_t instance; /* RD: of the source; 0: not known */
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
	int armed;	      /* 0: not, 1: any, 2: solicited only; lock */
	_Atomic bool overrun; /* it overflowed, and accepts no more; lock to write */
	_Atomic uint32_t n_qp;
	struct siw_link in_channel; /* under the channel's lock, as the two below */
	uint32_t events;	    /* raised, not taken */
	uint32_t unacked;	    /* taken, not acknowledged */
	struct siw_async async;
	struct siw_child child;
	struct siw_link in_freelist;
};

struct siw_comp_channel {
	struct siw_context *ctx;
	siw_lock_t lock;
	struct siw_link cqs; /* those with events */
	int fd;
	bool fd_set;
	struct siw_child child;
	_Atomic uint32_t n_cq;
};

#endif
