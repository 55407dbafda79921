/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * <siwarp/siw.h> - OF verbs over a software RNIC: the native C interface of siwarp.
 *
 * Names are those of libibverbs with siw_ in the place of ibv_, and a call does what the man page
 * of its namesake says, except where a comment here says otherwise. Work requests, scatter/gather
 * elements and completions have the layout of their ibv_ namesakes.
 *
 * Returns: a function that gives a pointer returns NULL and sets errno; any other returns 0 or a
 * count, or a negative errno value. Every object may be used from several threads at once.
 *
 * fork: open objects stay the parent's, which goes on undisturbed. In the child every call on them
 * fails with ESTALE, also to destroy them (their descriptors are closed there); the child may open
 * devices of its own. A program that becomes a daemon by forking opens its devices afterwards.
 *
 * What this header does not have: the connection manager, which is <siwarp/cm.h> (RC queue pairs
 * can do without it: by_qpn of struct siw_qp_init_attr), and functions that libibverbs does not
 * know, which are in <siwarp/siw_ext.h>.
 */
#ifndef SIWARP_SIW_H
#define SIWARP_SIW_H

#include <siwarp/types.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* cffi: begin */

/* ---- devices --------------------------------------------------------------------------------- */

/* One device per network interface that has an address, loopback included. */
struct siw_device;
struct siw_context;
struct siw_pd;
struct siw_cq;
struct siw_comp_channel;
struct siw_qp;
struct siw_srq;
struct siw_ah;
struct siw_mr;
struct siw_mw;

/* Name and addresses of a device; its GID table is its addresses in this order, IPv4 first. */
struct siw_device_info {
	char name[20];	  /* "siw_" and the interface's name */
	char netdev[16];  /* the interface's name */
	uint32_t mtu;	  /* of the interface, octets */
	uint32_t up;	  /* 1 if the interface is up and running */
	uint32_t n_addrs; /* entries used in addrs */
	struct siw_addr addrs[16];
};

/* Limits of an open device: each is enforced, and each can be reached. */
struct siw_device_attr {
	uint64_t max_mr_size;
	uint32_t max_qp;
	uint32_t max_qp_wr;
	uint32_t max_sge;
	uint32_t max_inline_data; /* octets */
	uint32_t max_cq;
	uint32_t max_cqe;
	uint32_t max_mr;
	uint32_t max_pd;
	uint32_t max_ah;
	uint32_t max_srq;
	uint32_t max_srq_wr;
	uint32_t max_srq_sge;
	uint32_t max_qp_rd_atom;      /* inbound RDMA Reads and atomics a QP can hold (IRD) */
	uint32_t max_qp_init_rd_atom; /* outbound ones of a QP (ORD) */
	uint32_t max_ud_msg;	      /* octets of one UD message over IPv4 */
	uint32_t max_rc_msg;	      /* octets of one RC message */
	uint32_t max_mw;
	uint32_t atomic_cap; /* enum siw_atomic_cap: SIW_ATOMIC_GLOB */
};

/* As enum ibv_atomic_cap: with respect to whom atomic operations are atomic. */
enum siw_atomic_cap {
	SIW_ATOMIC_NONE = 0,
	SIW_ATOMIC_HCA = 1,
	SIW_ATOMIC_GLOB = 2, /* every device, and the CPUs' own atomic instructions */
};

/* The devices of this machine now, a NULL-terminated array; *num_devices may be NULL. */
struct siw_device **siw_get_device_list(int *num_devices);
void siw_free_device_list(struct siw_device **list);
const struct siw_device_info *siw_device_info(struct siw_device *device);

/* Opens a device; the list may be freed afterwards. Errors: ENOMEM, EMFILE, EAGAIN (thread). */
struct siw_context *siw_open_device(struct siw_device *device);
/* EBUSY while a PD, CQ, channel or queue of connection events of it is alive. */
int siw_close_device(struct siw_context *context);
int siw_query_device(struct siw_context *context, struct siw_device_attr *attr);
/* The device as it was when it was opened. */
const struct siw_device_info *siw_context_info(struct siw_context *context);
/* The device as it is now: whether the interface is up, and its addresses. */
int siw_query_device_info(struct siw_context *context, struct siw_device_info *info);

/* ---- asynchronous events --------------------------------------------------------------------- */

/*
 * As enum ibv_event_type. Those without a comment never come: they are about things that IP does
 * not have, as paths, partitions and a subnet manager.
 */
enum siw_event_type {
	SIW_EVENT_CQ_ERR = 0, /* cq: it overflowed; its QPs are in ERR */
	/*
	 * qp: to ERR: its CQ overflowed, or the peer's octets are not a valid stream. Persona
	 * iwarp: also when the connection broke. With persona roce only completions report that.
	 */
	SIW_EVENT_QP_FATAL = 1,
	SIW_EVENT_QP_REQ_ERR = 2,    /* qp: to ERR: a request of the peer is invalid */
	SIW_EVENT_QP_ACCESS_ERR = 3, /* qp: to ERR: a request of the peer has no access */
	SIW_EVENT_COMM_EST = 4,	     /* qp: a message came while it is in RTR */
	SIW_EVENT_SQ_DRAINED = 5,    /* qp: in SQD, and what was begun is complete */
	SIW_EVENT_PATH_MIG = 6,
	SIW_EVENT_PATH_MIG_ERR = 7,
	/*
	 * Never comes: a device in software does not fail for good. PORT_ERR reports that its
	 * interface is gone; a call without memory or descriptors returns an error.
	 */
	SIW_EVENT_DEVICE_FATAL = 8,
	SIW_EVENT_PORT_ACTIVE = 9, /* port_num: the interface is up and running */
	SIW_EVENT_PORT_ERR = 10,   /* port_num: it is so no longer */
	SIW_EVENT_LID_CHANGE = 11,
	SIW_EVENT_PKEY_CHANGE = 12,
	SIW_EVENT_SM_CHANGE = 13,
	/*
	 * Never comes: an SRQ cannot fail. An error of a receive is in its completion.
	 */
	SIW_EVENT_SRQ_ERR = 14,
	SIW_EVENT_SRQ_LIMIT_REACHED = 15,   /* srq: fewer receives are left than its limit */
	SIW_EVENT_QP_LAST_WQE_REACHED = 16, /* qp: in ERR, it takes nothing of its SRQ any more */
	SIW_EVENT_CLIENT_REREGISTER = 17,
	SIW_EVENT_GID_CHANGE = 18, /* port_num: the interface's addresses changed */
	/* siwarp's own, far above libibverbs' numbers: */
	SIW_EVENT_QP_ERR_QUEUED = 1000,	 /* qp: siw_poll_err has something */
	SIW_EVENT_PEER_RESTARTED = 1001, /* qp: siw_poll_restarts has something */
	/* qp: UC: its peer loses too much of what it sends, which is slowed for 10 s */
	SIW_EVENT_CONGESTED = 1002,
};

/* As struct ibv_async_event. */
struct siw_async_event {
	union {
		struct siw_cq *cq;
		struct siw_qp *qp;
		struct siw_srq *srq;
		int port_num; /* always 1 */
	} element;
	int event_type; /* enum siw_event_type: which member of element counts */
	/* of the CQ, QP or SRQ: its cq_context, qp_context or srq_context; else NULL */
	void *user_context;
};

/*
 * Takes the oldest asynchronous event, waiting as siw_get_cq_event does: 0; -EAGAIN after
 * timeout_ms milliseconds; -EINTR after a signal. But a thread that waits here does not move
 * traffic, unless setting progress is 0: it sleeps until there is an event, and costs nothing. If
 * the same event of an object is raised again before it was taken, it stays one event.
 *
 * A QP that goes to ERR by itself raises one of FATAL, REQ_ERR and ACCESS_ERR. FATAL: a Terminate
 * of the peer, a broken or reset stream, an overflow of its CQ. A QP that goes to ERR by
 * siw_modify_qp, by a disconnect of either end, or by a request of its own that fails, raises none.
 * COMM_EST is not for an RC QP that <siwarp/cm.h> connects, as it passes through RTR at once.
 */
int siw_get_async_event(struct siw_context *context, struct siw_async_event *event, int timeout_ms);
/*
 * Each event taken must be acknowledged: destroying the QP, CQ or SRQ that it is about waits for
 * that. Events that nobody took go with their object.
 */
void siw_ack_async_event(struct siw_async_event *event);
/* Readable while an event waits; read it only through siw_get_async_event. */
int siw_async_fd(struct siw_context *context);
const char *siw_event_type_str(int event_type);

/* ---- protection domains, memory -------------------------------------------------------------- */

enum siw_access_flags {
	SIW_ACCESS_LOCAL_WRITE = 1,
	SIW_ACCESS_REMOTE_WRITE = 2,
	SIW_ACCESS_REMOTE_READ = 4,
	SIW_ACCESS_REMOTE_ATOMIC = 8,
	SIW_ACCESS_MW_BIND = 16,		/* of a region: windows may be bound to it */
	SIW_ACCESS_ZERO_BASED = 32,		/* tagged offsets count from 0 */
	SIW_ACCESS_REMOTE_INVALIDATE = 1 << 30, /* siwarp's own, for siw_reg_mr_qp alone */
};

struct siw_mr {
	struct siw_context *context;
	struct siw_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey; /* the STag, which the peer needs, with the tagged offset: addr or iova */
};

struct siw_pd *siw_alloc_pd(struct siw_context *context);
/* EBUSY while an MR, MW, QP, SRQ or AH of it is alive. */
int siw_dealloc_pd(struct siw_pd *pd);

/*
 * Registers length octets at addr, which may be 0; access is a set of enum siw_access_flags. Pins
 * no memory, and checks the first and the last page alone: an access to a hole between them fails
 * as one with a bad key does. Errors: EINVAL (length above max_mr_size, or the end wraps; remote
 * write or atomics without local write; MW_BIND with REMOTE_INVALIDATE), EFAULT (memory absent, or
 * not writable as access needs it), ENOMEM (max_mr).
 */
struct siw_mr *siw_reg_mr(struct siw_pd *pd, void *addr, size_t length, int access);
/*
 * As siw_reg_mr, but the tagged offsets that the peer uses, the addresses of elements with its lkey
 * and of binds to it count from iova, in the place of addr; with SIW_ACCESS_ZERO_BASED, which
 * siw_reg_mr takes too, from 0. What is sent SIW_SEND_INLINE is read at the address itself, without
 * a key. EINVAL also: iova + length wraps, or iova is not 0 with ZERO_BASED. After siw_rereg_mr
 * with CHANGE_TRANSLATION the offsets count from the new addr.
 */
struct siw_mr *siw_reg_mr_iova(struct siw_pd *pd, void *addr, size_t length, uint64_t iova,
			       int access);
/*
 * Deregisters the region. When this returns, the STag is invalid and no octet of the memory is read
 * or written any more: a placement that another thread has begun is waited for, and a stream that
 * still sends a Read's response from here is reset.
 *
 * EBUSY: a request of this end still uses the memory (a Send or Write that TCP or UDP has not
 * taken, a Read or atomic without its response), a window is bound to it, or a bind to it is
 * posted. Posted receives do not count: a message that takes one later completes it with
 * LOC_PROT_ERR.
 */
int siw_dereg_mr(struct siw_mr *mr);

enum siw_rereg_mr_flags {
	SIW_REREG_MR_CHANGE_TRANSLATION = 1, /* addr and length */
	SIW_REREG_MR_CHANGE_PD = 2,
	SIW_REREG_MR_CHANGE_ACCESS = 4,
};

/* As enum ibv_rereg_mr_err_code, as far as siwarp has them; errno says why. */
enum siw_rereg_mr_err_code {
	SIW_REREG_MR_ERR_INPUT = -1, /* the region is unchanged, its keys are valid */
	SIW_REREG_MR_ERR_CMD = -4,   /* the region is deregistered: do not use it */
};

/*
 * Changes what flags (set of enum siw_rereg_mr_flags) name of a region, and gives it new keys,
 * which nobody can guess; the other arguments are ignored. When this returns, the old keys are
 * invalid as after siw_dereg_mr, and requests that still carry them fail. For CHANGE_ACCESS alone
 * the keys stay, unless the peer has invalidated them or ZERO_BASED changes; what the region may
 * not be used for any more ends as after siw_dereg_mr. 0, or an enum
 * siw_rereg_mr_err_code with errno EINVAL (flags, a PD of another device, another PD for a region
 * that is bound to a QP, or as siw_reg_mr), EFAULT, ENOMEM (the old and the new one exist at the
 * same time), or EBUSY as siw_dereg_mr.
 */
int siw_rereg_mr(struct siw_mr *mr, int flags, struct siw_pd *pd, void *addr, size_t length,
		 int access);

/* ---- memory windows -------------------------------------------------------------------------- */

enum siw_mw_type {
	SIW_MW_TYPE_1 = 1,
	SIW_MW_TYPE_2 = 2,
};

/* As struct ibv_mw. */
struct siw_mw {
	struct siw_context *context;
	struct siw_pd *pd;
	uint32_t rkey; /* type 1: of the last bind posted; type 2: the program writes it */
	uint32_t handle;
	int type; /* enum siw_mw_type */
};

/* As struct ibv_mw_bind_info: length octets at addr, or from iova on, which lie in the region. */
struct siw_mw_bind_info {
	struct siw_mr *mr; /* made with SIW_ACCESS_MW_BIND */
	uint64_t addr;
	uint64_t length;
	unsigned int
		mw_access_flags; /* REMOTE_WRITE, REMOTE_READ, ZERO_BASED of siw_access_flags */
};

/* As struct ibv_mw_bind. */
struct siw_mw_bind {
	uint64_t wr_id;
	unsigned int send_flags; /* enum siw_send_flags: FENCE, SIGNALED */
	struct siw_mw_bind_info bind_info;
};

/*
 * A memory window: a part of a region that peers may access, and how. RC and UC queue pairs bind
 * and invalidate it by requests, which take effect in their turn in the send queue. So a peer that
 * learns the key from a Send behind the bind can use it. When an invalidation, a bind of it
 * elsewhere or siw_dealloc_mw has completed, no octet is changed by the old key any more; a stream
 * that still has to send a Read's response from there is reset. A peer that uses an invalid key is
 * sent a Terminate; on UC its message alone is dropped. A window allows no local access, and remote
 * writing only in a region with local writing.
 *
 * Type 1 is bound by siw_bind_mw. The peers of all QPs of its PD may use it. Each bind gives it a
 * new key that nobody can guess and ends the binding before; a bind of length 0 does that alone.
 *
 * Type 2 is bound by SIW_WR_BIND_MW to the QP that the request is posted to; its peer alone may use
 * it, in every connection that the QP will have. Its key has the upper 24 bits of the rkey of
 * siw_alloc_mw and a lowest octet of the program's choice: siw_inc_rkey gives the next. Before it
 * is bound again it must be invalidated, by SIW_WR_LOCAL_INV on that QP or a Send with Invalidate
 * of its peer. After that QP was destroyed, only siw_dealloc_mw is left.
 *
 * Errors: EINVAL, ENOMEM (max_mw).
 */
struct siw_mw *siw_alloc_mw(struct siw_pd *pd, int type);
/* Also ends the binding. EBUSY: a bind of it is posted that has not taken effect. */
int siw_dealloc_mw(struct siw_mw *mw);
/*
 * Posts a bind of a window of type 1, as siw_post_send posts one of type 2, and puts the new key
 * into mw->rkey. -EINVAL: it is of type 2, and what siw_post_send says of a bind. -ENOMEM: the
 * queue or the table of keys is full.
 */
int siw_bind_mw(struct siw_qp *qp, struct siw_mw *mw, struct siw_mw_bind *bind);
/* The key whose low octet is the next one, as ibv_inc_rkey. */
uint32_t siw_inc_rkey(uint32_t rkey);

/* ---- completion queues ----------------------------------------------------------------------- */

enum siw_wc_status {
	SIW_WC_SUCCESS = 0,
	SIW_WC_LOC_LEN_ERR = 1,
	SIW_WC_LOC_QP_OP_ERR = 2,
	SIW_WC_LOC_EEC_OP_ERR = 3,
	SIW_WC_LOC_PROT_ERR = 4,
	SIW_WC_WR_FLUSH_ERR = 5,
	SIW_WC_MW_BIND_ERR = 6,
	SIW_WC_BAD_RESP_ERR = 7,
	SIW_WC_LOC_ACCESS_ERR = 8,
	SIW_WC_REM_INV_REQ_ERR = 9,
	SIW_WC_REM_ACCESS_ERR = 10,
	SIW_WC_REM_OP_ERR = 11,
	SIW_WC_RETRY_EXC_ERR = 12,
	SIW_WC_RNR_RETRY_EXC_ERR = 13,
	SIW_WC_LOC_RDD_VIOL_ERR = 14,
	SIW_WC_REM_INV_RD_REQ_ERR = 15,
	SIW_WC_REM_ABORT_ERR = 16,
	SIW_WC_INV_EECN_ERR = 17,
	SIW_WC_INV_EEC_STATE_ERR = 18,
	SIW_WC_FATAL_ERR = 19,
	SIW_WC_RESP_TIMEOUT_ERR = 20,
	SIW_WC_GENERAL_ERR = 21,
};

enum siw_wc_opcode {
	SIW_WC_SEND = 0,
	SIW_WC_RDMA_WRITE = 1,
	SIW_WC_RDMA_READ = 2,
	SIW_WC_COMP_SWAP = 3,
	SIW_WC_FETCH_ADD = 4,
	SIW_WC_BIND_MW = 5,
	SIW_WC_LOCAL_INV = 6,
	SIW_WC_RECV = 128,
	SIW_WC_RECV_RDMA_WITH_IMM = 129,
	/*
	 * UD and RD, at the target of a Write-Record, siwarp's own: wr_id is for siw_query_record,
	 * byte_len the octets of the whole message, whether or not all came. No receive is used.
	 */
	SIW_WC_RECV_WRITE_RECORD = 640,
};

enum siw_wc_flags {
	SIW_WC_GRH = 1, /* siw_qp_init_attr.grh */
	SIW_WC_WITH_IMM = 2,
	SIW_WC_WITH_INV = 8,
};

/* As struct ibv_wc. On error only wr_id, status, qp_num and vendor_err hold. */
struct siw_wc {
	uint64_t wr_id;
	int status; /* enum siw_wc_status */
	int opcode; /* enum siw_wc_opcode */
	/*
	 * layer << 16 | type << 8 | code of the Terminate behind it, or 0. RDMAP's local
	 * catastrophic error, which has no code, is 0xff.
	 */
	uint32_t vendor_err;
	uint32_t byte_len; /* RECV_RDMA_WITH_IMM: octets of the peer's Write, which lie elsewhere */
	union {
		uint32_t imm_data; /* with SIW_WC_WITH_IMM: the peer's, as it lies in its memory */
		uint32_t invalidated_rkey; /* with SIW_WC_WITH_INV: the STag that the peer ended */
	};
	uint32_t qp_num;
	uint32_t src_qp;
	uint32_t wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl; /* with SIW_WC_GRH: 9: its form is IPv6's; 10: IPv4's */
	uint8_t dlid_path_bits;
};

/*
 * A queue for at least cqe completions. channel may be NULL. comp_vector must be 0.
 * Errors: EINVAL (cqe < 1 or > max_cqe, comp_vector), ENOMEM.
 */
struct siw_cq *siw_create_cq(struct siw_context *context, int cqe, void *cq_context,
			     struct siw_comp_channel *channel, int comp_vector);
/* EBUSY while a QP uses it. Waits until every event taken from its channel is acknowledged. */
int siw_destroy_cq(struct siw_cq *cq);
int siw_cq_capacity(struct siw_cq *cq);
/*
 * Makes it a queue for at least cqe completions; what is in it stays, in its order. -EINVAL: cqe is
 * below 1, above max_cqe, or less than what is in it. -ENOMEM.
 */
int siw_resize_cq(struct siw_cq *cq, int cqe);
/*
 * Takes up to num_entries completions: their count, 0 if there are none, or -errno.
 *
 * -EOVERFLOW: the queue overflowed, and the completions it held have been taken. Those after them
 * were dropped (counter cq_overflow), SIW_EVENT_CQ_ERR was raised, and every QP that uses the queue
 * goes to ERR with SIW_EVENT_QP_FATAL. The queue can only be destroyed then: to resize or arm it,
 * or to make a QP with it, is -EOVERFLOW, too.
 */
int siw_poll_cq(struct siw_cq *cq, int num_entries, struct siw_wc *wc);
/*
 * Arms the queue: the next completion raises one event on its channel; with solicited_only, the
 * next one with an error or of a receive that a solicited message took. Completions that are in the
 * queue already raise none: so arm, poll once more, then wait. Armed in both ways, any completion
 * raises the event. -EINVAL: the queue has no channel.
 */
int siw_req_notify_cq(struct siw_cq *cq, int solicited_only);
const char *siw_wc_status_str(int status);

struct siw_comp_channel *siw_create_comp_channel(struct siw_context *context);
/* EBUSY while a CQ uses it. */
int siw_destroy_comp_channel(struct siw_comp_channel *channel);
/*
 * Readable while an event waits; for poll(2) and its like. Read it only through siw_get_cq_event.
 */
int siw_comp_channel_fd(struct siw_comp_channel *channel);
/*
 * Waits up to timeout_ms milliseconds (-1: without limit; 0: not at all) for an event, moving the
 * device's traffic in this thread meanwhile. 0, -EAGAIN when the time is over, -EINTR on a signal.
 * With timeout_ms -1, O_NONBLOCK of the descriptor (fcntl) counts: with it the call is as with 0.
 *
 * With a timeout_ms other than 0 this is a cancellation point (pthread_cancel), as are the calls
 * that wait in the same way: siw_get_async_event and siw_cm_get_event. A thread that ends here has
 * taken no event. No other call of siwarp is one.
 */
int siw_get_cq_event(struct siw_comp_channel *channel, struct siw_cq **cq, void **cq_context,
		     int timeout_ms);
void siw_ack_cq_events(struct siw_cq *cq, unsigned int nevents);

/* ---- address handles ------------------------------------------------------------------------- */

/*
 * The destination of UD messages: an IP address and a UDP port. A UD QPN has a UDP port in its low
 * 16 bits and the index of the QP on its socket in bits 16 to 23; the handle's port is used if the
 * low 16 bits of the request's remote_qpn are 0. To reply to a message, send to the source that
 * siw_poll_cq_from gave, with remote_qpn = wc.src_qp as verbs programs do; remote_qpn 0 names the
 * first QP of a shared socket.
 *
 * The address may be a multicast group's. Then the port is SIW_MCAST_PORT (setting mcast_port),
 * whatever the handle and remote_qpn have, and messages leave by the QP's device; they pass routers
 * only if setting mcast_ttl is above 1.
 *
 * A link-local IPv6 address without a scope is on the device's link.
 */
struct siw_ah *siw_create_ah(struct siw_pd *pd, const struct siw_addr *dest);
/*
 * EBUSY: a send to it is posted that UDP has not taken, as its socket is full or its QP is in SQD.
 */
int siw_destroy_ah(struct siw_ah *ah);

/* ---- queue pairs ----------------------------------------------------------------------------- */

enum siw_qp_type {
	SIW_QPT_RC = 2, /* over TCP */
	SIW_QPT_UC = 3, /* over UDP, to one peer */
	SIW_QPT_UD = 4, /* over UDP */
	/*
	 * Over UDP, reliable: to any number of peers, to each of them in order and once, without a
	 * connection. The number is siwarp's own: libibverbs has none for it.
	 */
	SIW_QPT_RD = 5,
};

enum siw_qp_state {
	SIW_QPS_RESET = 0,
	SIW_QPS_INIT = 1,
	SIW_QPS_RTR = 2,
	SIW_QPS_RTS = 3,
	SIW_QPS_SQD = 4,
	SIW_QPS_SQE = 5,
	SIW_QPS_ERR = 6,
};

/*
 * When Sends and Writes on RC complete, and what happens to a Send for which no receive is posted.
 * The octets on the wire are the same, and each end chooses for itself.
 *
 * IWARP, as in RFC 5040: a request completes when TCP has taken it. The completion says only that
 * the buffer may be used again. A Send without a receive ends the connection.
 *
 * ROCE, as programs for InfiniBand expect: a request completes when the peer has it: its receive
 * completed, or its octets are written. A request that the peer refuses completes with the error,
 * those before it with success, those behind it with WR_FLUSH_ERR. A peer that is known to be
 * siwarp (struct siw_qp_init_attr) says what it has, and a Send completes here before the answer
 * to it is received. Any other peer is asked by a zero-length RDMA Read behind the request; a
 * siwarp sees who asks, and says what it has from then on. Such a Read is one of those that the
 * peer allows, so the connection asks for at least one. If the peer allows none, or does not say
 * (MPA revision 1 without initiator_depth), requests complete as with IWARP (counter confirm_none).
 */
enum siw_persona {
	SIW_PERSONA_AUTO = 0, /* setting persona, or else IWARP */
	SIW_PERSONA_IWARP = 1,
	SIW_PERSONA_ROCE = 2,
};

/*
 * UD: what happens to the queue pair when a message with its Q_Key breaks the rules of DDP or RDMAP
 * (an opcode that UD does not have, or a part of a message). Under both policies an error message
 * reports it to the sender, within settings err_rate and err_source_rate, and siw_poll_err to this
 * end.
 *
 * ERROR, as in datagram-iWARP's paper: the queue pair goes to ERR and flushes, with
 * SIW_EVENT_QP_REQ_ERR or SIW_EVENT_QP_ACCESS_ERR. By RESET -> INIT -> RTR -> RTS it can be used
 * again. MESSAGE: the queue pair goes on, with SIW_EVENT_QP_ERR_QUEUED. For servers of untrusted
 * peers.
 *
 * Under ERROR only the Q_Key keeps a stranger from stopping the queue pair: take a random one. It
 * must not be 0 (EINVAL at INIT).
 *
 * Under both policies: a datagram with a wrong Q_Key, or one that fails a check before that (CRC,
 * length, versions, queue number), or finds no receive, is dropped and counted. A message longer
 * than its receive completes it with SIW_WC_LOC_LEN_ERR and is reported to the sender; the queue
 * pair goes on.
 */
enum siw_error_policy {
	/*
	 * Setting error_policy; or else ERROR for a UD QP that has a Q_Key other than 0 and is in
	 * no multicast group, and MESSAGE for all others.
	 */
	SIW_ERROR_POLICY_AUTO = 0,
	SIW_ERROR_POLICY_ERROR = 1,
	SIW_ERROR_POLICY_MESSAGE = 2,
};

struct siw_qp_cap {
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline_data; /* octets */
};

struct siw_qp_init_attr {
	void *qp_context;
	struct siw_cq *send_cq;
	struct siw_cq *recv_cq;
	struct siw_srq
		*srq; /* NULL, or the queue that it takes receives from, in place of its own */
	struct siw_qp_cap cap; /* written back: what it has, at least what was requested */
	int qp_type;
	int sq_sig_all;
	int no_crc; /* UD, UC: 1 = send zero in the CRC field and do not check it */
	/*
	 * UD, UC, RD: address and port to bind; family 0 = the device's first address, port 0 =
	 * any. RD at the wildcard address can be reached only at the address that its machine sends
	 * from.
	 */
	struct siw_addr addr;
	int persona;	  /* RC: enum siw_persona */
	int error_policy; /* UD, RD: enum siw_error_policy */
	/*
	 * UD: NULL, or a UD QP of this device whose socket the new one uses too; addr stays 0 and
	 * no_crc as that QP has it.
	 */
	struct siw_qp *shared_socket_qp;
	/*
	 * UD, RD: how many Write-Records may be in process here at a time, at most 1024; 0: none is
	 * accepted. Up to half as many of their completions lie in the receive CQ, which needs room
	 * for them; further ones are put there when these were polled. Any peer that has the Q_Key
	 * and the key of a region with SIW_ACCESS_REMOTE_WRITE may send Write-Records.
	 */
	uint32_t max_write_records;
	/*
	 * RD: the most peers that it remembers (0: setting rd_peers); a new one takes the place of
	 * the one that was idle for longest, or of one of the address that has most.
	 * peer_timeout_ms: a peer that a response is due from and that is silent for so many
	 * milliseconds is declared lost (0: setting peer_timeout_ms; setting rd_meet_ms for one
	 * beyond this machine that does not answer a first message).
	 */
	uint32_t max_peers;
	uint32_t peer_timeout_ms;
	/*
	 * RC: 1 = a Send without a receive waits here until one is posted, whatever the persona. Up
	 * to setting rnr_octets of such Sends are stored; then TCP stops the peer. The peer's
	 * orderly end is reported after the last of them.
	 */
	int keep_unexpected;
	/*
	 * RC: 1 = siw_modify_qp connects it, by the peer's address and QPN, to one that is made so,
	 * too; else <siwarp/cm.h> does. Such a QPN is index << 16 | TCP port, with an index from 1
	 * to 255; the device's addresses are listened on at that port, one port for 255 queue pairs
	 * of a process (settings rc_port_first, rc_port_last). Errors: EADDRINUSE (none is free),
	 * EADDRNOTAVAIL (the device has no address).
	 */
	int by_qpn;
	/*
	 * UD: 1 = 40 octets of GRH lie in front of each message in its receive, as with RoCE v2:
	 * its IPv6 header; or 20 octets of zero and its IPv4 header, whose checksum is right. The
	 * destination is the address, or the multicast group, that it came to (of a QP bound to the
	 * wildcard address: that); time to live and hop limit are 64, whatever they were.
	 * byte_len is 40 more, wc_flags has SIW_WC_GRH, and sl is 9 (IPv6) or 10 (IPv4). A message
	 * that has no room behind the 40 octets is too long for its receive. Write-Records have
	 * none.
	 */
	int grh;
	/*
	 * UD, UC: 1 = bound to every address of the device: a socket, and so a descriptor, for each
	 * on one port (addr has family 0; its port 0: one that is free at all of them). A QPN is
	 * reached at each. Messages leave by the address handle's source (siw_create_ah_from), or
	 * the device's first address of the destination's family, a link-local one for a link-local
	 * destination; of UC by ah_source of the step to RTR. siw_poll_cq_between says where one
	 * came to, and an answer should leave from there. siw_qp_addr gives the first.
	 *
	 * An address that the device gets later is bound, too, unless another program has the port
	 * there (counter addrs_unbound), up to 16 in a QP's life. One that it loses receives
	 * nothing until it is back. What is sent from it goes out without hope of an answer, or
	 * ends with GENERAL_ERR, as the kernel has it: the queue pair goes on.
	 */
	int every_addr;
	/*
	 * RC: 1 = the peer is siwarp, and says so of this end, too: Send with Immediate may be
	 * posted, and with persona roce the peer is not asked by Reads (enum siw_persona). Only for
	 * peers that the start-up does not tell from others: by_qpn and the connection manager do,
	 * the latter unless setting mpa_announce is 0 at either end. Setting private_messages says
	 * so of all RC queue pairs. Query: whether the peer is known to be siwarp, in any way.
	 */
	int private_messages;
};

/* Which members of struct siw_qp_attr count, in siw_modify_qp. */
enum siw_qp_attr_mask {
	SIW_QP_STATE = 1,
	SIW_QP_CUR_STATE = 2,
	SIW_QP_EN_SQD_ASYNC_NOTIFY = 4,
	SIW_QP_ACCESS_FLAGS = 8,
	SIW_QP_QKEY = 64,
	SIW_QP_AV = 128,
	SIW_QP_PATH_MTU = 256,
	SIW_QP_TIMEOUT = 512,
	SIW_QP_RETRY_CNT = 1024,
	SIW_QP_RNR_RETRY = 2048,
	SIW_QP_RQ_PSN = 4096,
	SIW_QP_MAX_QP_RD_ATOMIC = 8192,
	SIW_QP_MIN_RNR_TIMER = 32768,
	SIW_QP_SQ_PSN = 65536,
	SIW_QP_MAX_DEST_RD_ATOMIC = 131072,
	SIW_QP_DEST_QPN = 1048576,
	SIW_QP_RATE_LIMIT = 33554432,
	SIW_QP_FD = 1073741824, /* siwarp's own */
};

struct siw_qp_attr {
	int qp_state;
	int cur_qp_state; /* modify: the step is taken from this state only */
	uint32_t qkey;	  /* UD, UC: what datagrams must carry; of UC those sent do, too */
	/* RC, UC: what the peer may do, whatever its STags allow; all at first */
	int qp_access_flags;
	int en_sqd_async_notify; /* to SQD: raise an event when the send queue is drained */
	int sq_draining;	 /* query, in SQD: requests that were begun are not complete yet */
	/*
	 * max_rd_atomic, the ORD: the most RDMA Reads and atomics that this end has outstanding; in
	 * SQD it can be set, up to what both ends agreed on. max_dest_rd_atomic, the IRD: the most
	 * that the peer may have outstanding here. Query: while connected what both ends agreed on,
	 * before that what was set, or 0. With by_qpn both are what this end wants: more Reads than
	 * the peer takes wait here, and a query returns what was set.
	 */
	int max_rd_atomic;
	int max_dest_rd_atomic;
	/*
	 * RC, persona roce: how long a Send waits at its receiver for a receive, before a Terminate
	 * ends the connection and the Send completes with RNR_RETRY_EXC_ERR: the sender's rnr_retry
	 * times the time of the receiver's min_rnr_timer. A sender that is siwarp with persona roce
	 * tells its rnr_retry in front of what it sends; for any other one the receiver's own
	 * counts, since there is no receiver-not-ready NAK on the wire. What rnr_retry of struct
	 * siw_cm_param says comes before both.
	 * rnr_retry: 0 to 6, or 7, the default: without limit. min_rnr_timer: InfiniBand's code, 1
	 * (0.01 ms) to 31 (491.52 ms) or 0 (655.36 ms); 12 (0.64 ms) is the default.
	 * RD: the same, but the sender decides, when the receiver answers it: what it began to
	 * send to that peer then ends, and the peer is told so.
	 */
	int rnr_retry;
	int min_rnr_timer;
	/*
	 * UD and UC, to INIT: a bound UDP socket that the QP takes over, which gives it its number.
	 * Not for a QP that shares its socket or is a member of a multicast group.
	 */
	int fd;
	/*
	 * UC, to RTR. ah_addr (SIW_QP_AV, which this step needs): the peer's address; its port is
	 * the low 16 bits of dest_qp_num, or that of the address if they are 0 or not given.
	 * path_mtu: the most octets of payload of one datagram, at least 256, or 1 to 5 as in enum
	 * ibv_mtu (256 to 4096); 0 or not given: what the route carries without fragmentation,
	 * which is also the maximum. Query: octets, now.
	 */
	struct siw_addr ah_addr;
	int path_mtu;
	uint32_t dest_qp_num;
	/*
	 * UC: the number, 32 bits, of the first datagram that is received (rq_psn, to RTR) and sent
	 * (sq_psn, to RTS); the peer has them the other way round. 0 if not given. Query: of the
	 * next.
	 */
	uint32_t rq_psn;
	uint32_t sq_psn;
	/*
	 * RC with by_qpn, to RTR, which needs SIW_QP_AV and SIW_QP_DEST_QPN: the peer is QPN
	 * dest_qp_num at ah_addr (whose port does not count), and this end is at ah_source; family
	 * 0: the device's first address of the peer's family. The peer must be told this end's
	 * address and QPN. Either end may come to RTR first; what is posted in RTS before the
	 * stream is there waits for it. path_mtu and the numbers of packets mean nothing to TCP.
	 *
	 * timeout, retry_cnt: to RTS. What is posted and has no peer ends with RETRY_EXC_ERR after
	 * 4.096 us << timeout, times retry_cnt + 1, and after 3 s at the least; timeout 0: never.
	 * A peer that goes away changes nothing here: requests that are not complete then, and
	 * those posted later, end so after that time.
	 */
	struct siw_addr ah_source;
	int timeout;
	int retry_cnt;
	/*
	 * UD and UC, to or in RTS and SQD: the most that this end sends, in kbit/s of UDP's payload
	 * (headers of DDP and above, and the CRC, included); 0, the default, and after RESET: no
	 * limit. What is beyond it waits in the send queue, and other queue pairs do not wait.
	 * In any time t it is at most the rate times t + 2 ms, and a datagram. Write-Records are
	 * included, error messages are not.
	 */
	uint32_t rate_limit;
};

enum siw_wr_opcode {
	SIW_WR_RDMA_WRITE = 0,
	/*
	 * RC. A Write, then an Immediate Data message (RFC 7306). That takes a receive of the peer,
	 * writes nothing to it, and completes it with SIW_WC_RECV_RDMA_WITH_IMM when the Write is
	 * there. A peer without RFC 7306 terminates.
	 */
	SIW_WR_RDMA_WRITE_WITH_IMM = 1,
	SIW_WR_SEND = 2,
	/*
	 * A message that no RFC has, siwarp's own; on UD it has 8 octets less than a Send. On RC it
	 * is EINVAL unless the peer is known to be siwarp (private_messages of struct
	 * siw_qp_init_attr).
	 */
	SIW_WR_SEND_WITH_IMM = 3,
	SIW_WR_RDMA_READ = 4,
	/*
	 * RC and RD. They change the 64 bits, in the peer's octet order, at wr.atomic.remote_addr,
	 * in memory with SIW_ACCESS_REMOTE_ATOMIC; atomic with respect to all queue pairs, devices,
	 * threads and atomic instructions of that machine. An address that is no multiple of 8
	 * makes the peer terminate, its memory unchanged. The elements, of 8 octets in all, receive
	 * the value before, in this machine's octet order. Atomics count as Reads for ORD and IRD.
	 */
	SIW_WR_ATOMIC_CMP_AND_SWP = 5,	 /* writes wr.atomic.swap if the value is compare_add */
	SIW_WR_ATOMIC_FETCH_AND_ADD = 6, /* adds wr.atomic.compare_add */
	SIW_WR_LOCAL_INV = 7,		 /* RC and UC: at this end alone */
	SIW_WR_BIND_MW = 8,
	SIW_WR_SEND_WITH_INV = 9,
	/*
	 * The same with the masks of RFC 7306 section 5.1; numbers as in the Linux kernel. CMP: if
	 * the bits of masked.compare_add_mask equal those of compare_add, the bits of
	 * masked.swap_mask are set to those of swap. ADD: each set bit of masked.compare_add_mask
	 * is the top bit of a field; fields are added separately, and a carry out of one is lost.
	 */
	SIW_WR_MASKED_ATOMIC_CMP_AND_SWP = 12,
	SIW_WR_MASKED_ATOMIC_FETCH_AND_ADD = 13,
	/*
	 * UD and RD, siwarp's own: an RDMA Write of up to max_rc_msg octets to wr.rdma at the peer
	 * in rd, in as many datagrams as it needs. On UD some may be lost. The peer's queue pair,
	 * which must have max_write_records above 0, gets a completion SIW_WC_RECV_WRITE_RECORD, by
	 * which siw_query_record returns the octets that came.
	 */
	SIW_WR_RDMA_WRITE_RECORD = 128,
};

enum siw_send_flags {
	SIW_SEND_FENCE = 1,
	SIW_SEND_SIGNALED = 2,
	SIW_SEND_SOLICITED = 4,
	SIW_SEND_INLINE = 8,
};

/* As struct ibv_send_wr. The members behind wr are for operations siwarp has not; leave them 0. */
struct siw_send_wr {
	uint64_t wr_id;
	struct siw_send_wr *next;
	struct siw_sge *sg_list;
	int num_sge;
	int opcode; /* enum siw_wr_opcode */
	uint32_t send_flags;
	union {
		uint32_t
			imm_data; /* ..._WITH_IMM: as it lies: htonl() if octet orders may differ */
		/* SEND_WITH_INV: the peer's STag, which the Send ends; LOCAL_INV: our own */
		uint32_t invalidate_rkey;
	};
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			uint64_t remote_addr;
			uint64_t compare_add;
			uint64_t swap;
			uint32_t rkey;
		} atomic;
		struct {
			struct siw_ah *ah;
			uint32_t remote_qpn;
			uint32_t remote_qkey; /* top bit set: the QP's own Q_Key */
		} ud;
	} wr;
	uint32_t remote_srqn;
	union {
		struct {
			uint64_t compare_add_mask;
			uint64_t swap_mask;
		} masked; /* MASKED_ATOMIC_..., beside wr.atomic */
		struct {
			struct siw_mw *mw; /* of type 2 */
			uint32_t rkey;	   /* that it shall have */
			struct siw_mw_bind_info bind_info;
		} bind_mw;
		uint64_t reserved[6];
		/*
		 * RDMA_WRITE_RECORD on UD, and whatever the opcode on RD (where the Q_Key is the
		 * QP's own): the peer, as wr.ud has it, beside the others.
		 */
		struct {
			uint64_t of_masked[2]; /* they lie beside masks */
			struct siw_ah *ah;
			uint32_t remote_qpn;
			uint32_t remote_qkey;
		} rd;
	};
};

/* As struct ibv_recv_wr. */
struct siw_recv_wr {
	uint64_t wr_id;
	struct siw_recv_wr *next;
	struct siw_sge *sg_list;
	int num_sge;
};

/*
 * Makes a queue pair in RESET. With an SRQ the receive caps are ignored and written back as 0.
 * Errors: EINVAL (an unknown type; a cap above the device's; no CQ; a CQ or SRQ of another device;
 * shared_socket_qp is of another device, is no UD QP or has another no_crc, or addr is given, too),
 * ENOMEM, EADDRINUSE and EADDRNOTAVAIL (addr), EMFILE (no descriptor is left for its socket),
 * ENOSPC (SIW_MAX_SHARERS QPs share that socket already).
 *
 * UD QPs that share a socket have an index each, 0 for the first: a UD QPN is index << 16 | UDP
 * port. Each has its own state, queues, CQs, PD and Q_Key. Datagrams to an index without a QP are
 * dropped (counter drop_qn). The QPs share the address and the kernel's buffers, so a flood to one
 * may make the kernel drop datagrams to the others. The socket is closed with the last of them.
 */
#define SIW_MAX_SHARERS 256
struct siw_qp *siw_create_qp(struct siw_pd *pd, struct siw_qp_init_attr *init);
/*
 * Destroys it, and its completions that were not polled. EBUSY: it is a member of a multicast
 * group. A connection id that has it (siw_cm_bind_qp) loses it, and a connection ends, with its
 * event DISCONNECTED; one that is starting up fails. A post that another thread has begun returns
 * EINVAL.
 */
int siw_destroy_qp(struct siw_qp *qp);
/*
 * Changes the state or other attributes; attr_mask is a set of enum siw_qp_attr_mask.
 *
 * RESET -> INIT -> RTR -> RTS: UD, UC and RD by this call, RC by <siwarp/cm.h>. Any state -> ERR:
 * all requests flush. Any state -> RESET: they are dropped without completions, and completions of
 * this QP that nobody has polled leave their CQs, as with siw_destroy_qp. RTS -> SQD: requests that
 * were begun complete; the others wait until SQD -> RTS. A UD or UC send that fails by an error of
 * this end (LOC_PROT_ERR, LOC_LEN_ERR) takes its QP to SQE: sends flush, receives go on, until
 * SQE -> RTS.
 *
 * EINVAL, and nothing changes: there is no such step; the step does not take an attribute of the
 * mask (siw_qp_step_attrs), or a value is beyond what the device or the connection allows.
 */
int siw_modify_qp(struct siw_qp *qp, const struct siw_qp_attr *attr, int attr_mask);
/* Writes the current value of every member. Either pointer may be NULL. */
int siw_query_qp(struct siw_qp *qp, struct siw_qp_attr *attr, struct siw_qp_init_attr *init);
uint32_t siw_qp_num(struct siw_qp *qp);

/* ---- multicast ------------------------------------------------------------------------------- */

/*
 * The UDP port of every group, unless setting mcast_port has another; not registered at IANA.
 */
#define SIW_MCAST_PORT 62607

/*
 * UD: makes the QP a member of a multicast group, on its device. group is an IPv4 or IPv6 multicast
 * address of the QP's family; its port and scope are ignored. From now on the QP receives the
 * messages to the group that have its Q_Key, its own among them. Each member takes a receive for
 * its copy, and drops it without one (counter drop_no_buffer). In a completion src_qp and source
 * are the sender's. Errors in messages to a group are only counted, not reported to the sender. To
 * send to a group a QP need not be a member.
 *
 * In any state; for a member nothing changes. -EINVAL: no UD QP, no multicast address, another
 * family; -ENODEV; -EADDRINUSE: another program has the port for all addresses; -EMFILE; -ENOMEM;
 * or another error of joining.
 */
int siw_attach_mcast(struct siw_qp *qp, const struct siw_addr *group);
/*
 * Ends the membership. -EINVAL: the QP is no member. Before it is destroyed, a QP must leave all
 * groups.
 */
int siw_detach_mcast(struct siw_qp *qp, const struct siw_addr *group);

/*
 * Posts a list of requests, in order, up to the first that is refused: *bad_wr, unless bad_wr is
 * NULL, is then that one. 0; -EINVAL (state, opcode, flags, number of SGEs, inline size, an address
 * handle of another PD, an RC message above max_rc_msg, an atomic of other than 8 octets, a Read or
 * atomic if the peer allows none); -ENOMEM: the queue is full.
 *
 * A queue has room for exactly max_send_wr or max_recv_wr requests. A request occupies its slot
 * until its completion was polled; one without a completion, until a later one of the same queue
 * was. Receives can be posted from INIT on, sends from RTS on; in SQE and ERR they flush.
 *
 * A UD message longer than a datagram (IPv4: max_ud_msg) completes with LOC_LEN_ERR at the sender;
 * one longer than its receive does so at the receiver, and nothing of it is written. SIW_SEND_FENCE
 * on UD, and SIW_SEND_SOLICITED on a Write without immediate data, a Read or an atomic, are
 * ignored.
 *
 * SIW_WR_BIND_MW and SIW_WR_LOCAL_INV act at this end, in their turn; with SIW_SEND_FENCE after the
 * Reads that were posted before. They have no elements. -EINVAL: no window of type 2, a window or
 * region of another device, flags that siw_mw_bind_info does not name, SIW_SEND_INLINE.
 *
 * A bind completes with MW_BIND_ERR, and the QP goes to ERR (UC: SQE), if window, region and QP are
 * not of one PD; the window is bound already; the rkey is not one of its own; the region is closed,
 * has no SIW_ACCESS_MW_BIND, does not contain the range, or has no local writing although the
 * window allows remote writing or atomics; or the length is 0. LOCAL_INV completes with
 * LOC_PROT_ERR, with the same consequence, unless invalidate_rkey is the key of a window of type 2
 * bound to this QP, or of a region of siw_reg_mr_qp with SIW_ACCESS_REMOTE_INVALIDATE.
 */
int siw_post_send(struct siw_qp *qp, struct siw_send_wr *wr, struct siw_send_wr **bad_wr);
/*
 * The same for receives. -EINVAL also for a QP with an SRQ, to which receives are posted instead.
 */
int siw_post_recv(struct siw_qp *qp, struct siw_recv_wr *wr, struct siw_recv_wr **bad_wr);

/* ---- shared receive queues ------------------------------------------------------------------- */

/* As struct ibv_srq_attr. */
struct siw_srq_attr {
	uint32_t max_wr;  /* receives it has room for; written back: at least what was requested */
	uint32_t max_sge; /* of one receive; written back likewise */
	uint32_t srq_limit; /* 0: none */
};

struct siw_srq_init_attr {
	void *srq_context;
	struct siw_srq_attr attr;
};

enum siw_srq_attr_mask {
	SIW_SRQ_MAX_WR = 1,
	SIW_SRQ_LIMIT = 2,
};

/*
 * A queue of receives that any number of RC and UD QPs of one device share (srq of
 * siw_qp_init_attr). The next message to any of them takes the oldest receive, which completes on
 * that QP's receive CQ. The lkeys of receives are of the SRQ's PD, which need not be that of the
 * QPs. Errors: EINVAL (max_wr is 0 or above max_srq_wr, max_sge above max_srq_sge, the limit above
 * max_wr), ENOMEM (max_srq).
 *
 * When one of its QPs goes to ERR, a receive that the QP took for an unfinished message completes
 * with WR_FLUSH_ERR; the others stay. SIW_EVENT_QP_LAST_WQE_REACHED says that the QP takes none any
 * more. If the QP is destroyed or reset before that event, such a receive has no completion.
 */
struct siw_srq *siw_create_srq(struct siw_pd *pd, struct siw_srq_init_attr *init);
/* EBUSY: a QP uses it. Receives that are still posted have no completions. */
int siw_destroy_srq(struct siw_srq *srq);
/*
 * SIW_SRQ_LIMIT arms the limit. When fewer receives are left, which may be at once,
 * SIW_EVENT_SRQ_LIMIT_REACHED is raised once, and the limit is 0 again. SIW_SRQ_MAX_WR makes room
 * for at least max_wr receives; what is posted stays, in its order, and traffic goes on. -EINVAL,
 * and nothing changes: a limit above max_wr; a max_wr of 0, above max_srq_wr, below the limit, or
 * less than what is posted. -ENOMEM.
 */
int siw_modify_srq(struct siw_srq *srq, const struct siw_srq_attr *attr, int attr_mask);
/* Its size, and the limit while it is armed. */
int siw_query_srq(struct siw_srq *srq, struct siw_srq_attr *attr);
/* Its number, unique on the device, never 0. */
uint32_t siw_srq_num(struct siw_srq *srq);
/* As siw_post_recv; in any state of any QP. -EINVAL (number of SGEs), -ENOMEM (it is full). */
int siw_post_srq_recv(struct siw_srq *srq, struct siw_recv_wr *wr, struct siw_recv_wr **bad_wr);

/* cffi: end */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
