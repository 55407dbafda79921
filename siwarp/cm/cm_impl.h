/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* cm/cm_impl.h - what the files of cm share: the channel, the id, and a rule of negotiation. */
#ifndef SIW_CM_IMPL_H
#define SIW_CM_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <siwarp/cm.h>

#include "base/lock.h"
#include "qp/qp.h"
#include "qp/qp_sidr.h"
#include "verbs/verbs.h"

#define SIW_CM_NOT_NEGOTIATED 0x3fff /* IRD or ORD left to the ULP (RFC 6581 section 4.1) */

/* RFC6581-9.3-01: the Terminate of an end that cannot go on for a reason of its own. */
static const struct siw_wire_err SIW_CM_LOCAL_ERROR = { SIW_LAYER_LLP, 0, SIW_MPA_CATASTROPHIC };

struct siw_cm_channel {
	struct siw_context *context; /* NULL: it belongs to no device */
	pid_t pid;		     /* of the process that made it */
	struct siw_qp_evq *evq;
	/*
	 * Held from the taking of an event until it is reported: its id cannot be destroyed
	 * meanwhile.
	 */
	siw_lock_t lock;
	_Atomic uint32_t n_ids;
	struct siw_child child;
};

struct siw_cm_id {
	struct siw_cm_channel *channel;
	struct siw_context *context;	  /* its device; NULL: it has none yet */
	struct siw_qp_reporter *reporter; /* NULL without a device */
	void *user;
	struct siw_child child; /* of its device */
	struct siw_qp_conn *conn;
	struct siw_qp_place place; /* where it was bound */
	struct siw_cm_id *door_of; /* NULL, or the listener for which this one listens elsewhere */
	struct siw_cm_id *doors;   /* of a listener: those, linked by next_door */
	struct siw_cm_id *next_door;
	struct siw_qp_hold qp;
	bool passive, listening;
	bool v6_only; /* bound to a wildcard address of IPv6 it leaves IPv4 alone */
	struct siw_mpa_params request; /* active: our Request; passive: the peer's */
	struct siw_mpa_params reply;   /* active, and holds: the peer's */
	bool holds, responded;	       /* the user completes it; a Reply waits for that */
	uint16_t ird, ord;	       /* after negotiation */
	int rnr_retry;		       /* active: as in struct siw_cm_param */
	bool ord_asked;		       /* by number */
	bool ud; /* it resolves UD queue pairs, by at most one of the next three */
	struct siw_sidr_ask *ask;
	struct siw_sidr_port *port;
	struct siw_sidr_request *asked; /* NULL once it is answered */
	struct siw_addr ud_local, ud_peer;
};

/* Whether this is a forked child's copy, or its device was closed by force. */
bool siw_cm_channel_stale(const struct siw_cm_channel *channel);
bool siw_cm_id_stale(const struct siw_cm_id *id);
/* A new id; context may be NULL. NULL: no memory. */
struct siw_cm_id *siw_cm_new_id(struct siw_cm_channel *channel, struct siw_context *context,
				void *user);
/* Its device: 0 or -ENOMEM. */
int siw_cm_give_device(struct siw_cm_id *id, struct siw_context *context);
/* Ends the id, and frees it and its doors. */
void siw_cm_end_id(struct siw_cm_id *id);

/* What the peer's frame says. */
void siw_cm_report_params(struct siw_cm_event *ev, const struct siw_mpa_params *p);

/* ---- cm_ud.c: the same calls on an id for UD, whose arguments were checked ------------------- */

int siw_cm_ud_bind_qp(struct siw_qp *qp);
/* UDP gives a port to one socket alone: what kept it gives it up, and siw_cm_addr still tells it. */
void siw_cm_ud_free_place(struct siw_cm_id *id);
int siw_cm_ud_listen(struct siw_cm_id *id, const struct siw_addr *addr);
int siw_cm_ud_connect(struct siw_cm_id *id, const struct siw_addr *dest,
		      const struct siw_addr *source, const struct siw_cm_param *param);
int siw_cm_ud_accept(struct siw_cm_id *id, const struct siw_cm_param *param);
int siw_cm_ud_reject(struct siw_cm_id *id, const void *data, uint32_t len);
/* Ends what it has on its device; a question that is not answered is rejected. */
void siw_cm_ud_let_go(struct siw_cm_id *id);
/* The user's event of a question that came: 0 or -ENOMEM; and of an answer. */
int siw_cm_ud_asked(struct siw_cm_channel *ch, const struct siw_qp_conn_event *e,
		    struct siw_cm_event *ev);
void siw_cm_ud_answered(struct siw_cm_id *id, const struct siw_qp_conn_event *e,
			struct siw_cm_event *ev);

/* Whether it connects, listens, or has a request. */
static inline bool siw_cm_busy(const struct siw_cm_id *id)
{
	return id->conn || id->ask || id->port || id->asked;
}

/* RFC 6581 section 6: the smaller of this end's depth and the peer's, which may be left open. */
static inline uint16_t siw_cm_at_most(uint16_t own, uint16_t peer)
{
	return peer == SIW_CM_NOT_NEGOTIATED || own < peer ? own : peer;
}

/* What both ends have announced holds for the connection. */
static inline void siw_cm_agree(struct siw_qp_attach *at, uint8_t features)
{
	at->siwarp = features & SIW_MPA_SIWARP;
	at->counts = features & SIW_MPA_COUNTS;
}

#endif
