/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * cm/cm_impl.h - definitions shared by the files of cm: the event channel, the connection id, and
 * negotiation helpers.
 */
#ifndef SIW_CM_IMPL_H
#define SIW_CM_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <siwarp/cm.h>

#include "base/lock.h"
#include "connect/connect.h"
#include "connect/connect_sidr.h"
#include "device/device.h"

/* value of an IRD or ORD that is left to the ULP (RFC 6581 section 4.1) */
#define SIW_CM_NOT_NEGOTIATED 0x3fff

/* The error in a Terminate of an end that cannot continue for a local reason (RFC6581-9.3-01). */
static const struct siw_wire_err SIW_CM_LOCAL_ERROR = { SIW_LAYER_LLP, 0, SIW_MPA_CATASTROPHIC };

struct siw_cm_channel {
	struct siw_context *context; /* NULL: the channel belongs to no device */
	pid_t pid;		     /* the process that created the channel */
	struct siw_evq *evq;
	/*
	 * A lock that is held from when an event is read from the queue until it is returned to the
	 * user, so that the event's id cannot be destroyed meanwhile.
	 */
	siw_lock_t lock;
	_Atomic uint32_t n_ids;
	struct siw_child child;
};

struct siw_cm_id {
	/* changed by siw_cm_migrate_id() with the locks of both channels held */
	struct siw_cm_channel *_Atomic channel;
	struct siw_context *context; /* device of the id; NULL: no device was assigned yet */
	/* reports events of the id's connections on its device; NULL: no device */
	struct siw_reporter *reporter;
	void *user;
	struct siw_child child; /* links the id into the list of its device's objects */
	struct siw_conn *conn;
	struct siw_reserved_addr reserved; /* the reserved address and port, if the id was bound */
	/* NULL, or the listener for which this id listens on another device */
	struct siw_cm_id *listener;
	/* of a listener: its ids on the other devices, linked by next_listener */
	struct siw_cm_id *device_listeners;
	struct siw_cm_id *next_listener;
	struct siw_qp_hold qp;
	bool passive, listening;
	/* if the id is bound to the IPv6 wildcard address: its port is not reserved for IPv4 */
	bool v6_only;
	/* active side: this end's MPA Request; passive side: the peer's MPA Request */
	struct siw_mpa_params request;
	struct siw_mpa_params reply; /* active side, while holds is set: the peer's MPA Reply */
	/*
	 * holds: the user completes the connection by siw_cm_establish(); responded: the peer's
	 * Reply waits for that call
	 */
	bool holds, responded;
	uint16_t ird, ord; /* the negotiated IRD and ORD */
	int rnr_retry;	   /* active side: rnr_retry from struct siw_cm_param */
	bool ord_asked;	   /* the program has specified an ORD */
	bool ud;	   /* for UD queue pairs; at most one of the next three members is set */
	struct siw_sidr_query *sidr_query;
	struct siw_sidr_port *sidr_port;
	struct siw_sidr_request *sidr_request; /* the peer's query; NULL after it was answered */
	struct siw_addr ud_local, ud_peer;
};

/*
 * Returns whether the object is unusable: this is a forked child's copy, or the device was closed
 * by force.
 */
bool siw_cm_is_channel_stale(const struct siw_cm_channel *channel);
bool siw_cm_is_id_stale(const struct siw_cm_id *id);
/*
 * The first step of every call on an id or on a channel: clears the reason of the thread's previous
 * call. Returns 0, -EINVAL for NULL, or -ESTALE if the device is unusable or this is a forked
 * child.
 */
int siw_cm_check_id_usable(const struct siw_cm_id *id);
int siw_cm_check_channel_usable(const struct siw_cm_channel *channel);
/* Returns the channel of an id, which siw_cm_migrate_id() may change at the same time. */
static inline struct siw_cm_channel *siw_cm_channel_of(const struct siw_cm_id *id)
{
	/*
	 * Relaxed order suffices, because the locks order the accesses: a value that was read
	 * without a lock is read again with the lock held.
	 */
	return atomic_load_explicit(&id->channel, memory_order_relaxed);
}

/* Locks the channel of an id, and returns the channel, which the id keeps until the unlock. */
static inline struct siw_cm_channel *siw_cm_lock_channel_of(struct siw_cm_id *id)
{
	for (;;) {
		struct siw_cm_channel *channel = siw_cm_channel_of(id);

		siw_lock(&channel->lock);
		if (siw_cm_channel_of(id) == channel)
			return channel;
		siw_unlock(&channel->lock);
	}
}

/* Returns a new id, or NULL if memory is exhausted. context may be NULL. */
struct siw_cm_id *siw_cm_new_id(struct siw_cm_channel *channel, struct siw_context *context,
				void *user);
/* Assigns a device to the id. Returns 0 or -ENOMEM. */
int siw_cm_assign_device(struct siw_cm_id *id, struct siw_context *context);
/* Ends the id's connection or listener, and frees the id and the ids that listen for it. */
void siw_cm_free_id(struct siw_cm_id *id);

/* Copies the parameters of the peer's MPA frame to the event. */
void siw_cm_copy_mpa_params_to_event(struct siw_cm_event *ev, const struct siw_mpa_params *p);

/* ---- cm_ud.c: the calls for UD ids; the callers have checked the arguments ------------------- */

int siw_cm_ud_move_qp_to_rts(struct siw_qp *qp);
/*
 * Releases the reserved UDP port, because only one socket can be bound to it. siw_cm_addr() still
 * returns the address.
 */
void siw_cm_ud_release_port(struct siw_cm_id *id);
int siw_cm_ud_listen(struct siw_cm_id *id, const struct siw_addr *addr);
int siw_cm_ud_connect(struct siw_cm_id *id, const struct siw_addr *dest,
		      const struct siw_addr *source, const struct siw_cm_param *param);
int siw_cm_ud_accept(struct siw_cm_id *id, const struct siw_cm_param *param);
int siw_cm_ud_reject(struct siw_cm_id *id, const void *data, uint32_t len);
/*
 * Ends the query, listening port or request of a UD id. An unanswered query of a peer is rejected.
 */
void siw_cm_ud_release_sidr_objects(struct siw_cm_id *id);
/*
 * Translate a peer's query (siw_cm_ud_translate_query_event; returns 0 or -ENOMEM) or the answer to our
 * query (siw_cm_ud_translate_answer) to an event for the user.
 */
int siw_cm_ud_translate_query_event(struct siw_cm_channel *ch, const struct siw_conn_event *e,
				    struct siw_cm_event *ev);
void siw_cm_ud_translate_answer(struct siw_cm_id *id, const struct siw_conn_event *e,
				struct siw_cm_event *ev);

/* Returns whether the id is connecting, connected or listening, or has a request to answer. */
static inline bool siw_cm_is_busy(const struct siw_cm_id *id)
{
	return id->conn || id->sidr_query || id->sidr_port || id->sidr_request;
}

/*
 * Returns the ORD that this end may use (RFC 6581 section 6): the smaller of its own ORD and the
 * peer's IRD. The peer may have left its IRD open.
 */
static inline uint16_t siw_cm_limit_ord(uint16_t own, uint16_t peer)
{
	return peer == SIW_CM_NOT_NEGOTIATED || own < peer ? own : peer;
}

/* Enables for the connection the features that both ends announced. */
static inline void siw_cm_set_features(struct siw_rc_start *at, uint8_t features)
{
	at->siwarp = features & SIW_MPA_SIWARP;
	at->counts = features & SIW_MPA_COUNTS;
}

#endif
