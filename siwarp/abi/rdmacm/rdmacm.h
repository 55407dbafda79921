/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/rdmacm/rdmacm.h - librdmacm.so.1 on top of <siwarp/cm.h> and siwarp's libibverbs.so.1: the
 * binary interface of programs that connect by rdma_cm.
 *
 * Ids and channels wrap engine objects and begin with the public structs of <rdma/rdma_cma.h>.
 * Addresses are resolved without delay; the resulting events are queued on the engine's channel,
 * which keeps all events in order.
 *
 * Functions return what their man pages specify: 0, or -1 with errno, or NULL with errno.
 */
#ifndef SIW_RDMACM_H
#define SIW_RDMACM_H

#include "abi/ibverbs/abi.h"

#pragma GCC visibility push(default)
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#pragma GCC visibility pop

#include <siwarp/cm.h>
#include <siwarp/ibv_ext.h>

#define CM_MAX_PRIVATE 255 /* maximum private data in octets, limited by struct rdma_conn_param */
#define CM_RETRIES     7   /* retry count; as rnr_retry_count, 7 means that there is no limit */
#define CM_RNR_TIMER   0   /* InfiniBand's RNR timer code for 655 ms, as in rdma_connect(3) */

enum cm_kind {
	CM_CHANNEL = 1,
	CM_ID,
	CM_EVENT,
};

/* Registry entry, embedded in every object to which programs hold a pointer */
struct cm_object {
	const void *handle;
	enum cm_kind kind;
};

struct cm_channel {
	struct rdma_event_channel ev; /* must be the first member of the struct */
	struct cm_object object;
	struct siw_cm_channel *siw;
};

struct cm_id {
	struct rdma_cm_id id; /* must be the first member of the struct */
	/*
	 * The system's librdmacm, whose rsockets may use siwarp's ids, reads its private device
	 * data through the pointer at this offset to determine queue sizes. The pointer refers to
	 * cm_fake_device_data.
	 */
	const uint32_t *foreign_device;
	struct cm_object object;
	struct siw_cm_id *siw;
	struct cm_channel *own; /* private channel of a synchronous id, otherwise NULL */
	/* events that the program has not acknowledged; protected by cm_lock */
	unsigned int unacked;
	/* unanswered: the program has neither accepted nor rejected the connection request */
	bool bound, listening, unanswered;
	bool resolved, routed; /* active side: address resolved, route resolved */
	/*
	 * State of the connection. accepted: by the local program; established: an event has
	 * reported ESTABLISHED; over: an event has reported the end of the connection; ends: the
	 * local program has called rdma_disconnect.
	 */
	bool accepted, established, over, ends;
	bool any; /* bound to a wildcard address */
	bool v6_only;
	/*
	 * active side with a QP that the program manages: the program still has to call
	 * rdma_establish
	 */
	atomic_bool completes;
	/* IRD and ORD: those in the CONNECT_REQUEST; once established, the negotiated values */
	uint8_t resources, depth;
	/*
	 * The queue pair bound to the engine's id. The program may store another queue pair in
	 * id.qp.
	 */
	struct ibv_qp *bound_qp;
	/*
	 * Queue pair of a connection without an RC queue pair of the program (cm_get_substitute_qp)
	 */
	struct ibv_qp *stand_in;
	struct ibv_cq *stand_in_cq;
	/*
	 * value of RDMA_OPTION_ID_TOS, which an id of a CONNECT_REQUEST inherits from the listener
	 */
	uint8_t tos;
	struct ibv_sa_path_rec path; /* path record shown in the id's route */
	uint8_t ack_timeout;	     /* RDMA_OPTION_ID_ACK_TIMEOUT */
	struct cm_group *groups;     /* groups that the id has joined; protected by cm_lock */
	/* arguments of rdma_write_cm_event, oldest first; protected by cm_lock */
	struct cm_arg *args;
	struct rdma_addrinfo *info; /* result of rdma_resolve_addrinfo */
	/* Arguments of rdma_create_ep on the passive side, for the ids of connection requests */
	struct ibv_pd *ep_pd;
	struct ibv_qp_init_attr *ep_attr;
};

/* Events that <rdma/rdma_cma.h> introduced after rdma-core release 44 */
enum {
	CM_EVENT_ADDRINFO_RESOLVED = 16,
	CM_EVENT_ADDRINFO_ERROR = 17,
	CM_EVENT_USER = 18,
};

/* Argument of an event that the program wrote by rdma_write_cm_event */
struct cm_arg {
	struct cm_arg *next;
	uint64_t arg;
};

struct cm_event {
	struct rdma_cm_event ev; /* must be the first member of the struct */
	struct cm_object object;
	struct cm_id *of; /* connection id that counts the event as unacknowledged */
	uint8_t private_data[512];
};

/* ---- rdmacm_object.c ------------------------------------------------------------------------- */

/* Acquires the library's lock. While the lock is held, only locks of the engine may be acquired. */
void cm_lock(void);
void cm_unlock(void);
/* Registers an object as alive under its handle. Returns true, or false with errno ENOMEM. */
bool cm_register_object(struct cm_object *object, enum cm_kind kind, const void *handle);
bool cm_register_object_locked(struct cm_object *object, enum cm_kind kind, const void *handle);
/*
 * Returns whether handle is a live object of the given kind. If not, records the reason, and sets
 * errno to EINVAL. If it is, clears the reason of an earlier call.
 */
bool cm_is_live_object(enum cm_kind kind, const void *handle);
bool cm_is_live_object_locked(enum cm_kind kind, const void *handle);
void cm_mark_object_dead(struct cm_object *object);
void cm_mark_object_dead_locked(struct cm_object *object);
/*
 * cm_note_event_acknowledged records that an event of an id was acknowledged;
 * cm_wait_until_events_acknowledged waits until all events of an id are acknowledged.
 */
void cm_note_event_acknowledged(struct cm_id *id);
void cm_wait_until_events_acknowledged(struct cm_id *id);

/* ---- rdmacm_device.c ------------------------------------------------------------------------- */

/*
 * Returns the open device with the given address, which may be a loopback address, or NULL with
 * errno ENODEV.
 */
struct ibv_context *cm_device_of_addr(const struct siw_addr *local);
/*
 * Stores the first address of the first device that other machines can reach. Returns false if
 * there is none.
 */
bool cm_first_non_loopback_addr(sa_family_t family, struct siw_addr *addr);
/*
 * Returns the open device with the given engine context, or NULL if the library has not opened the
 * device.
 */
struct ibv_context *cm_device_of_engine_context(const struct siw_context *siw);
/* Returns the library's default protection domain of a device, or NULL with errno. */
struct ibv_pd *cm_default_pd(struct ibv_context *verbs);
/*
 * Calls visit(device, address) for every address of every device until visit returns false.
 * Loopback addresses are reported with the first device. Returns 0 or an errno value.
 */
int cm_visit_addresses(bool (*visit)(struct ibv_context *verbs, const struct siw_addr *addr,
				     void *arg),
		       void *arg);

/* ---- rdmacm_addr.c --------------------------------------------------------------------------- */

/* Converts a struct sockaddr of the program. Returns 0 or an errno value. */
int cm_addr_from_sockaddr(const struct sockaddr *from, struct siw_addr *to);
bool cm_addr_is_any(const struct siw_addr *addr);
bool cm_addr_is_loopback(const struct siw_addr *addr);
bool cm_addr_is_group(const struct siw_addr *addr);
void cm_gid_of_addr(const struct siw_addr *addr, union ibv_gid *gid);
/* Stores addresses and their GIDs in the route of an id. NULL leaves an address unchanged. */
void cm_set_route_addrs(struct cm_id *id, const struct siw_addr *source,
			const struct siw_addr *dest);
/*
 * Copies the first element of info. rdma_freeaddrinfo frees the copy. Returns NULL if memory is
 * exhausted.
 */
struct rdma_addrinfo *cm_copy_addrinfo(const struct rdma_addrinfo *info);
const struct siw_addr *cm_source_addr(const struct cm_id *id);
const struct siw_addr *cm_dest_addr(const struct cm_id *id);

/* ---- rdmacm_event.c: events written by the program ------------------------------------------- */

/*
 * Removes and returns the argument of the oldest event that the program wrote. The caller holds
 * cm_lock.
 */
uint64_t cm_pop_user_event_arg(struct cm_id *id);
/* Frees the arguments of the unread events of an id that is being destroyed. */
void cm_free_user_event_args(struct cm_id *id);

/* ---- rdmacm_ud.c: functions for datagram ids; the caller has checked the arguments ----------- */

static inline bool cm_is_ud(const struct cm_id *id)
{
	return id->id.ps == RDMA_PS_UDP || id->id.ps == RDMA_PS_IPOIB;
}

int cm_ud_connect(struct cm_id *id, const struct rdma_conn_param *from);
int cm_ud_accept(struct cm_id *id, const struct rdma_conn_param *from);
int cm_ud_disconnect(struct cm_id *id);
/*
 * Stores the attributes with which an id has moved its RC queue pair to RTS, which ibv_query_qp
 * returns.
 */
void cm_store_rts_attrs_for_query(const struct cm_id *id);
int cm_ud_fill_transition_attr(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask);
/* Fills in the address vector for sending from the address of an id to dgid. */
void cm_ud_fill_ah_attr(const struct cm_id *id, const union ibv_gid *dgid,
			struct rdma_ud_param *ud);
/* Fills in the event data of a UD connection request or response. */
void cm_ud_fill_event(const struct cm_id *id, const struct siw_cm_event *from,
		      struct cm_event *event);

/* ---- rdmacm_mcast.c -------------------------------------------------------------------------- */

/*
 * Fills in the event of the oldest join whose event was not yet delivered, and makes the queue pair
 * a member of the group. Returns false if there is no such join. The caller holds cm_lock.
 */
bool cm_fill_join_event(struct cm_id *id, struct cm_event *event);
/* Leaves all groups of an id. Called when the id or its queue pair is destroyed. */
void cm_leave_all_groups(struct cm_id *id);

/* ---- rdmacm_rsocket.c ------------------------------------------------------------------------ */

/*
 * Data that the system's librdmacm interprets as device limits, with large values at every offset
 */
extern const uint32_t cm_fake_device_data[64];

/* ---- rdmacm_qp.c ----------------------------------------------------------------------------- */

/*
 * Returns the substitute queue pair of a connection that only carries private data. The first call
 * creates the queue pair, or returns NULL if that fails. cm_destroy_substitute_qp destroys the
 * queue pair after the engine's id was destroyed.
 */
struct ibv_qp *cm_get_substitute_qp(struct cm_id *id);
void cm_destroy_substitute_qp(struct cm_id *id);

/* ---- rdmacm_id.c ----------------------------------------------------------------------------- */

/*
 * Creates the id of a CONNECT_REQUEST that arrived at a listener. Returns NULL with errno on
 * failure. The caller holds cm_lock.
 */
struct cm_id *cm_id_create_for_request(struct cm_id *listener, struct siw_cm_id *siw);
/* Sets the device of a new id. Must be called after cm_lock was released. */
void cm_id_set_device_from_engine_id(struct cm_id *id);
/* Acknowledges the event that a synchronous id holds in its member `event`, if there is one. */
void cm_ack_pending_event(struct cm_id *id);
/*
 * Waits for the result of the operation that was started last, if the id is synchronous. Returns 0,
 * or -1 with errno.
 */
int cm_wait_for_result_if_synchronous(struct cm_id *id);

static inline struct cm_id *cm_id_of(struct rdma_cm_id *id)
{
	return (struct cm_id *)id;
}

/*
 * Logs the recorded reason, sets errno and returns -1, as most functions of rdma_cm do on failure.
 */
#define cm_fail(err) (abi_set_errno_and_log_refusal(__func__, (err)), -1)

/*
 * Converts an engine result (0 or a negative errno value) to the return value of an rdma_cm
 * function.
 */
static inline int cm_result_of_call(const char *call, int r)
{
	return r < 0 ? (abi_set_errno_and_log_refusal(call, -r), -1) : 0;
}
#define cm_result(r) cm_result_of_call(__func__, (r))

/*
 * Sets errno and returns -1 without a line in the log: for the outcome of an operation, such as a
 * connection that the peer has refused, and for an error that another function has logged.
 */
static inline int cm_outcome(int err)
{
	errno = err;
	return -1;
}

/*
 * Copies a program's private data to the engine's parameters. Returns 0, or -EINVAL for a length
 * without data.
 */
static inline int cm_copy_private_data(const struct rdma_conn_param *from, struct siw_cm_param *to)
{
	if (from->private_data_len && !from->private_data)
		return -abi_refuse(EINVAL, "private_data_len is %u, but private_data is NULL",
				   from->private_data_len);
	to->private_data = from->private_data;
	to->private_data_len = from->private_data_len;
	return 0;
}

#endif
