/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/rdmacm.h - librdmacm.so.1 over <siwarp/cm.h> and our libibverbs.so.1: the binary interface of
 * programs that connect by rdma_cm.
 *
 * Ids and channels are the engine's with the struct of <rdma/rdma_cma.h> in front. Addresses are
 * resolved here, at once, so those events are told to the engine's channel, which keeps the order.
 *
 * Functions return as their man pages say: 0, or -1 with errno, or NULL with errno.
 */
#ifndef SIWARP_ABI_RDMACM_H
#define SIWARP_ABI_RDMACM_H

#include "abi/abi.h"

#pragma GCC visibility push(default)
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#pragma GCC visibility pop

#include <siwarp/cm.h>
#include <siwarp/ibv_ext.h>

#define CM_MAX_PRIVATE 255 /* octets of private data, as struct rdma_conn_param can say */
#define CM_RETRIES     7   /* without limit, if it is for want of a receive */
#define CM_RNR_TIMER   0   /* of InfiniBand's codes: 655 ms, as man rdma_connect has it */

enum cm_kind {
	CM_CHANNEL = 1,
	CM_ID,
	CM_EVENT,
};

/* First in nothing: a member of each object that programs have a pointer to. */
struct cm_object {
	const void *handle;
	enum cm_kind kind;
};

struct cm_channel {
	struct rdma_event_channel ev; /* first */
	struct cm_object object;
	struct siw_cm_channel *siw;
};

struct cm_id {
	struct rdma_cm_id id; /* first */
	/*
	 * The genuine library's rsockets, which may run on our ids, look here for what it stores of a
	 * device, to see how long queues may be: cm_long_queues.
	 */
	const uint32_t *foreign_device;
	struct cm_object object;
	struct siw_cm_id *siw;
	struct cm_channel *own;	     /* of a synchronous id: its channel; else NULL */
	unsigned int unacked;	     /* events that the program has; under the library's lock */
	bool bound, listening, asks; /* asks: of a CONNECT_REQUEST that is to be answered */
	bool resolved, routed;	     /* active: its address, its route */
	/*
	 * Of its connection, as its events tell: accepted here and not established yet; established;
	 * over. ends: this end disconnects.
	 */
	bool accepted, established, over, ends;
	bool any; /* bound to a wildcard address */
	bool v6_only;
	atomic_bool completes; /* active, with a queue pair of its own: rdma_establish is to come */
	uint8_t resources, depth; /* of the CONNECT_REQUEST, and as both ends agreed */
	/* What the engine's id has: the program may put another one into id.qp. */
	struct ibv_qp *taken;
	/* Without an RC queue pair of the program's, the connection's own: cm_stand_in. */
	struct ibv_qp *stand_in;
	struct ibv_cq *stand_in_cq;
	uint8_t tos;		     /* RDMA_OPTION_ID_TOS; a CONNECT_REQUEST's: its listener's */
	struct ibv_sa_path_rec path; /* that its route shows */
	uint8_t ack_timeout;	     /* RDMA_OPTION_ID_ACK_TIMEOUT */
	struct cm_group *groups;     /* that it has joined; under the lock */
	struct cm_arg *args;	     /* of rdma_write_cm_event, oldest first; under the lock */
	struct rdma_addrinfo *info;  /* of rdma_resolve_addrinfo */
	/* Of rdma_create_ep on the passive side: for the ids of its requests. */
	struct ibv_pd *ep_pd;
	struct ibv_qp_init_attr *ep_attr;
};

/* Events that <rdma/rdma_cma.h> has got since release 44. */
enum {
	CM_EVENT_ADDRINFO_RESOLVED = 16,
	CM_EVENT_ADDRINFO_ERROR = 17,
	CM_EVENT_USER = 18,
};

/* What a program wrote with an event of its own. */
struct cm_arg {
	struct cm_arg *next;
	uint64_t arg;
};

struct cm_event {
	struct rdma_cm_event ev; /* first */
	struct cm_object object;
	struct cm_id *of; /* whose unacked counts it */
	uint8_t private_data[512];
};

/* ---- rdmacm_object.c ------------------------------------------------------------------------- */

/* The library's lock, for unacked. Innermost but for the engine's. */
void cm_lock(void);
void cm_unlock(void);
/* handle, whose object that is, is alive from now on: false with errno ENOMEM. */
bool cm_add(struct cm_object *object, enum cm_kind kind, const void *handle);
bool cm_add_locked(struct cm_object *object, enum cm_kind kind, const void *handle);
bool cm_live(enum cm_kind kind, const void *handle); /* false with errno EINVAL */
bool cm_live_locked(enum cm_kind kind, const void *handle);
void cm_end(struct cm_object *object);
void cm_end_locked(struct cm_object *object);
/* An event of that id was acknowledged; wait: until all of them were. */
void cm_acked(struct cm_id *id);
void cm_wait_acked(struct cm_id *id);

/* ---- rdmacm_device.c ------------------------------------------------------------------------- */

/* The open device that has the address, which may be loopback's: or NULL with errno ENODEV. */
struct ibv_context *cm_device_of(const struct siw_addr *local);
/* The address of the first device that other machines may reach it at: false: it has none. */
bool cm_first_addr(sa_family_t family, struct siw_addr *addr);
/* The open device with that engine's context; NULL: it is not one of this library's. */
struct ibv_context *cm_device_by(const struct siw_context *siw);
/* The device's own protection domain: or NULL with errno. */
struct ibv_pd *cm_default_pd(struct ibv_context *verbs);
/*
 * Calls visit for each address of each device, as (device, address): until it returns false. The
 * first device stands for the addresses of loopback, too. 0 or an errno value.
 */
int cm_each_address(bool (*visit)(struct ibv_context *verbs, const struct siw_addr *addr,
				  void *arg),
		    void *arg);
/* The address of this machine that packets to dest leave from: 0 or an errno value. */
int cm_local_for(const struct siw_addr *dest, struct siw_addr *local);

/* ---- rdmacm_addr.c --------------------------------------------------------------------------- */

/* What a program gave as a struct sockaddr: 0 or an errno value. */
int cm_addr_from(const struct sockaddr *from, struct siw_addr *to);
bool cm_addr_is_any(const struct siw_addr *addr);
bool cm_addr_is_loopback(const struct siw_addr *addr);
bool cm_addr_is_group(const struct siw_addr *addr);
void cm_gid_of(const struct siw_addr *addr, union ibv_gid *gid);
/* Writes both addresses and their GIDs to the id's route; NULL: as it was. */
void cm_show_addrs(struct cm_id *id, const struct siw_addr *source, const struct siw_addr *dest);
/* A copy of the first result, which rdma_freeaddrinfo frees: or NULL without memory. */
struct rdma_addrinfo *cm_copy_info(const struct rdma_addrinfo *info);
const struct siw_addr *cm_source(const struct cm_id *id);
const struct siw_addr *cm_dest(const struct cm_id *id);

/* ---- rdmacm_newer.c -------------------------------------------------------------------------- */

/* What was written with the oldest event of the program's own. The library's lock is held. */
uint64_t cm_take_arg(struct cm_id *id);
/* The id goes: what these functions keep for it. */
void cm_forget_newer(struct cm_id *id);

/* ---- rdmacm_ud.c: the same calls on an id of datagrams, which were checked ------------------- */

static inline bool cm_is_ud(const struct cm_id *id)
{
	return id->id.ps == RDMA_PS_UDP || id->id.ps == RDMA_PS_IPOIB;
}

int cm_ud_connect(struct cm_id *id, const struct rdma_conn_param *from);
int cm_ud_accept(struct cm_id *id, const struct rdma_conn_param *from);
int cm_ud_disconnect(struct cm_id *id);
/* The id has taken its RC queue pair to RTS: ibv_query_qp shows with what. */
void cm_show_attr(const struct cm_id *id);
int cm_ud_init_attr(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask);
/* How to send from the id's address to that GID. */
void cm_ud_way(const struct cm_id *id, const union ibv_gid *dgid, struct rdma_ud_param *ud);
/* What the event says of a question or an answer. */
void cm_ud_show(const struct cm_id *id, const struct siw_cm_event *from, struct cm_event *event);

/* ---- rdmacm_mcast.c -------------------------------------------------------------------------- */

/*
 * The event of the oldest join that has none yet, for which the queue pair becomes a member: false
 * if there is none. The library's lock is held.
 */
bool cm_show_join(struct cm_id *id, struct cm_event *event);
/* The id's queue pair, or the id, goes. */
void cm_leave_all(struct cm_id *id);

/* ---- rdmacm_rsocket.c ------------------------------------------------------------------------ */

/* What the genuine library takes for a device: large numbers, wherever it looks. */
extern const uint32_t cm_long_queues[64];

/* ---- rdmacm_qp.c ----------------------------------------------------------------------------- */

/*
 * The queue pair of a connection that carries private data alone, made at the first call; NULL: it
 * could not be made. cm_end_stand_in ends it, when the engine's id has gone.
 */
struct ibv_qp *cm_stand_in(struct cm_id *id);
void cm_end_stand_in(struct cm_id *id);

/* ---- rdmacm_id.c ----------------------------------------------------------------------------- */

/*
 * The id of a CONNECT_REQUEST that came to the listener: or NULL with errno. The library's lock is
 * held.
 */
struct cm_id *cm_id_of_request(struct cm_id *listener, struct siw_cm_id *siw);
/* Its device, after the library's lock was released. */
void cm_show_device(struct cm_id *id);
/* Ends the event that a synchronous id still shows. */
void cm_forget_event(struct cm_id *id);
/* Of a synchronous id: waits for the result of what was begun. 0; or -1 with errno. */
int cm_complete(struct cm_id *id);

static inline struct cm_id *cm_id_of(struct rdma_cm_id *id)
{
	return (struct cm_id *)id;
}

/* -1 with errno, as most functions of rdma_cm fail. */
static inline int cm_fail(int why)
{
	errno = why;
	return -1;
}

/* The engine's result, a negative errno value or 0. */
static inline int cm_result(int r)
{
	return r < 0 ? cm_fail(-r) : 0;
}

/* Takes a program's private data over into the engine's parameters; -EINVAL: a length without data. */
static inline int cm_take_private(const struct rdma_conn_param *from, struct siw_cm_param *to)
{
	if (from->private_data_len && !from->private_data)
		return -EINVAL;
	to->private_data = from->private_data;
	to->private_data_len = from->private_data_len;
	return 0;
}

#endif
