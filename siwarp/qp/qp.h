/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp.h - the interface of queue pairs for the upper layers of siwarp. The public interface is
 * <siwarp/siw.h>.
 *
 * Lock order: progress lock of a lane, QP send lock, QP receive lock, SRQ lock, CQ lock, channel
 * lock (docs/architecture/locks.md has all).
 */
#ifndef SIW_QP_H
#define SIW_QP_H

#include <stdbool.h>

#include <siwarp/siw_ext.h>

#include "base/list.h"
#include "rd/rd_rnr.h"

struct siw_rc_qp;

/*
 * Creates a queue pair whose attributes have been checked, and sets init->cap to the capacities of
 * the queue pair. pair: a function that makes the queue pair connect by GID and QPN, called with
 * the lock of the queue pair's lane held if init->by_qpn is set; returns 0, -EADDRINUSE: no TCP
 * port is free for the lane, or another -errno. Returns 0 or -errno.
 */
int siw_qp_create(struct siw_pd *pd, struct siw_qp_init_attr *init,
		  int (*pair)(struct siw_rc_qp *rc), struct siw_qp **out);

/* The parameters that the start-up has negotiated for the stream of an RC QP. */
struct siw_rc_start {
	uint16_t ird, ord;
	uint8_t rtr; /* set of enum siw_mpa_rtr: the RTR to send, or those to accept */
	bool initiator;
	bool ord_known; /* ord was set by the peer or the user, not by default */
	bool siwarp;	/* the start-up frames have shown that the peer is siwarp */
	bool counts;	/* both ends offer delivery counts; never set unless siwarp is set */
	int rnr_retry;	/* RNR retries of the peer's Sends, as in struct siw_cm_param */
};

/*
 * The reference of a connection id to its QP, cleared when the QP is destroyed; all zero if it
 * refers to no QP. Protected by ctx->refs_lock, which the functions siw_qp_weak_ref_... acquire.
 */
struct siw_qp_hold {
	struct siw_link link;
	struct siw_qp *qp;
};
/* Attributes of a QP that a struct siw_qp_hold refers to. */
struct siw_qp_held {
	int state;    /* enum siw_qp_state */
	int ord, ird; /* values set by siw_modify_qp; -1: not set */
	bool roce;    /* whether the QP's persona is roce */
};
/* Makes hold refer to the QP. Returns 0, or -EINVAL if another thread has destroyed the QP. */
int siw_qp_weak_ref_set(struct siw_qp_hold *hold, struct siw_qp *qp);
void siw_qp_weak_ref_clear(struct siw_context *context, struct siw_qp_hold *hold);
/* Whether hold refers to a QP. If so, stores attributes of the QP in *held unless held is NULL. */
bool siw_qp_weak_ref_query(struct siw_context *context, const struct siw_qp_hold *hold,
			   struct siw_qp_held *held);
/*
 * Returns the QP that hold refers to, or NULL. Unless the lock of the QP's lane is held, another
 * thread may destroy the QP; its memory and its member `lane` stay valid.
 */
struct siw_qp *siw_qp_get_by_weak_ref(struct siw_context *context, const struct siw_qp_hold *hold);
struct siw_context *siw_qp_device_context(struct siw_qp *qp);
int siw_qp_type(struct siw_qp *qp);
/*
 * Makes an RC QP that connects by GID and QPN connect by a connection manager instead. Returns 0,
 * or -EINVAL if the QP has left INIT, and may have begun to connect.
 */
int siw_qp_disable_connecting_by_qpn(struct siw_qp *qp);

#endif
