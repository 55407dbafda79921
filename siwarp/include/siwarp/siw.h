/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * <siwarp/siw.h> - verbs over a software RNIC: the native C interface of siwarp.
 *
 * Each function is named after its libibverbs counterpart, with the prefix siw_ instead of ibv_,
 * and behaves as the man page of the counterpart describes, unless a comment in this header states
 * otherwise. Work requests, scatter/gather elements and completions have the same layout as their
 * ibv_ counterparts.
 *
 * Return values: a function that returns a pointer returns NULL on failure and sets errno. Any
 * other function returns 0 or a count on success and a negative errno value on failure. Every
 * object may be used from several threads at the same time. The headers of siwarp are C11 and C++.
 *
 * fork: open objects continue to work in the parent only. In the child, every call on an inherited
 * object fails with ESTALE, including the calls that destroy it, because the child closes its
 * copies of the descriptors. The child may open devices itself. A daemon that forks at start-up
 * must open its devices after the fork.
 *
 * The connection manager is in <siwarp/cm.h>. RC queue pairs can also be connected without the
 * connection manager (by_qpn in struct siw_qp_init_attr). Functions that have no libibverbs
 * counterpart are in <siwarp/siw_ext.h>.
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

/* siwarp has one device for each network interface that has an address, including loopback. */
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

/*
 * Name and addresses of a device. The GID table contains the addresses in the order of addrs, IPv4
 * first.
 */
struct siw_device_info {
	char name[20];	  /* "siw_" and the interface's name */
	char netdev[16];  /* the interface's name */
	uint32_t mtu;	  /* MTU of the interface in octets */
	uint32_t up;	  /* 1 if the interface is up and running */
	uint32_t n_addrs; /* number of valid entries in addrs */
	struct siw_addr addrs[16];
};

/* Limits of an open device. Every limit is enforced, and every limit can actually be reached. */
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
	uint32_t max_qp_rd_atom; /* RDMA Reads and atomics that a QP can serve at a time (IRD) */
	/* RDMA Reads and atomics that a QP can have outstanding (ORD) */
	uint32_t max_qp_init_rd_atom;
	uint32_t max_ud_msg; /* longest UD message over IPv4, in octets */
	uint32_t max_rc_msg; /* longest RC message, in octets */
	uint32_t max_mw;
	uint32_t atomic_cap; /* enum siw_atomic_cap; always SIW_ATOMIC_GLOB */
};

/* The scope within which atomic operations are atomic, as enum ibv_atomic_cap */
enum siw_atomic_cap {
	SIW_ATOMIC_NONE = 0,
	SIW_ATOMIC_HCA = 1,
	/* atomic with respect to all devices and the CPU's atomic instructions */
	SIW_ATOMIC_GLOB = 2,
};

/*
 * Returns the current devices of the machine as a NULL-terminated array, which must be freed by
 * siw_free_device_list. num_devices may be NULL.
 */
struct siw_device **siw_get_device_list(int *num_devices);
/* Frees a device list. Open devices stay open. */
void siw_free_device_list(struct siw_device **list);
/* Returns the name and addresses of a device in the list, valid until the list is freed. */
const struct siw_device_info *siw_device_info(struct siw_device *device);

/*
 * Opens a device. The device list may be freed afterwards. Errors: ENOMEM, EMFILE, EAGAIN (the
 * progress thread could not be created).
 */
struct siw_context *siw_open_device(struct siw_device *device);
/*
 * Closes a device that has no children. -EBUSY: a PD, CQ, completion channel or connection manager
 * channel of the device still exists.
 */
int siw_close_device(struct siw_context *context);
/* Writes the limits of the device to *attr. */
int siw_query_device(struct siw_context *context, struct siw_device_attr *attr);
/* Returns the name and addresses that the device had when it was opened. */
const struct siw_device_info *siw_context_info(struct siw_context *context);
/*
 * Writes the current state of the device to *info: whether the interface is up, and its addresses.
 */
int siw_query_device_info(struct siw_context *context, struct siw_device_info *info);
/*
 * Returns the number of completion vectors, which is the number of lanes of the device (setting
 * lanes; by default one for each CPU of the process, at most 16): see siw_create_cq. Or -errno.
 */
int siw_num_comp_vectors(struct siw_context *context);

/* ---- asynchronous events --------------------------------------------------------------------- */

/*
 * Types of asynchronous events, as enum ibv_event_type. A comment names the valid member of the
 * union element. Events without a comment are never raised, because they concern features that IP
 * does not have: path migration, partitions and a subnet manager.
 */
enum siw_event_type {
	SIW_EVENT_CQ_ERR = 0, /* cq: the CQ overflowed; its QPs are in ERR */
	/*
	 * qp: the QP went to ERR because its CQ overflowed, or because the peer's octets are not a
	 * valid stream. With persona iwarp the event is also raised when the connection breaks;
	 * with persona roce only completions report a broken connection.
	 */
	SIW_EVENT_QP_FATAL = 1,
	SIW_EVENT_QP_REQ_ERR = 2,    /* qp: an invalid request of the peer moved the QP to ERR */
	SIW_EVENT_QP_ACCESS_ERR = 3, /* qp: a forbidden access by the peer moved the QP to ERR */
	SIW_EVENT_COMM_EST = 4,	     /* qp: a message arrived while the QP was in RTR */
	SIW_EVENT_SQ_DRAINED = 5,    /* qp: the QP is in SQD; all started requests completed */
	SIW_EVENT_PATH_MIG = 6,
	SIW_EVENT_PATH_MIG_ERR = 7,
	/*
	 * Never raised, because a software device does not fail permanently. A deleted interface is
	 * reported by PORT_ERR, and a lack of memory or descriptors by the error of the call.
	 */
	SIW_EVENT_DEVICE_FATAL = 8,
	SIW_EVENT_PORT_ACTIVE = 9, /* port_num: the interface is up and running */
	SIW_EVENT_PORT_ERR = 10,   /* port_num: the interface is no longer up and running */
	SIW_EVENT_LID_CHANGE = 11,
	SIW_EVENT_PKEY_CHANGE = 12,
	SIW_EVENT_SM_CHANGE = 13,
	/* Never raised, because an SRQ cannot fail. Completions report errors of receives. */
	SIW_EVENT_SRQ_ERR = 14,
	SIW_EVENT_SRQ_LIMIT_REACHED = 15, /* srq: fewer receives than the SRQ's limit are left */
	/* qp: the QP is in ERR and consumes no more receives of its SRQ */
	SIW_EVENT_QP_LAST_WQE_REACHED = 16,
	SIW_EVENT_CLIENT_REREGISTER = 17,
	SIW_EVENT_GID_CHANGE = 18, /* port_num: the interface's addresses changed */
	/* Events specific to siwarp, with numbers far above those of libibverbs: */
	SIW_EVENT_QP_ERR_QUEUED = 1000,	 /* qp: the QP's error queue (siw_poll_err) is not empty */
	SIW_EVENT_PEER_RESTARTED = 1001, /* qp: an RD peer has restarted (siw_poll_restarts) */
	/* qp: UC only: the peer loses too many datagrams; the QP sends at a lower rate for 10 s */
	SIW_EVENT_CONGESTED = 1002,
};

/* An asynchronous event, as struct ibv_async_event */
struct siw_async_event {
	union {
		struct siw_cq *cq;
		struct siw_qp *qp;
		struct siw_srq *srq;
		int port_num; /* always 1 */
	} element;
	int event_type; /* enum siw_event_type; selects the valid member of element */
	/* the cq_context, qp_context or srq_context of the object; NULL for a port event */
	void *user_context;
};

/*
 * Removes the oldest asynchronous event from the device's queue and writes it to *event. Blocks as
 * siw_get_cq_event does. Returns 0; -EAGAIN after timeout_ms milliseconds without an event; -EINTR
 * after a signal. Unlike in siw_get_cq_event, the waiting thread only sleeps and makes no progress
 * on the device's traffic, unless setting progress_thread is 0. Raising an event that is still
 * queued for the same object does not queue it again.
 *
 * A QP that goes to ERR by itself raises exactly one of FATAL, REQ_ERR and ACCESS_ERR. Causes of
 * FATAL: a Terminate from the peer, a broken or reset stream, an overflow of the QP's CQ. A QP
 * raises none of them if it goes to ERR by siw_modify_qp, by a disconnect of either end, or by the
 * failure of one of its own requests. COMM_EST is not raised for an RC QP that <siwarp/cm.h>
 * connects, because such a QP leaves RTR immediately.
 */
int siw_get_async_event(struct siw_context *context, struct siw_async_event *event, int timeout_ms);
/*
 * Acknowledges an event that siw_get_async_event returned. Every such event must be acknowledged:
 * destroying its QP, CQ or SRQ waits for the acknowledgement. Events still queued when their object
 * is destroyed are discarded.
 */
void siw_ack_async_event(struct siw_async_event *event);
/*
 * Returns a descriptor that is readable while an asynchronous event is queued. Do not read from the
 * descriptor; call siw_get_async_event.
 */
int siw_async_fd(struct siw_context *context);
/* Returns a static text that describes an event type (enum siw_event_type). */
const char *siw_event_type_str(int event_type);

/* ---- protection domains, memory -------------------------------------------------------------- */

enum siw_access_flags {
	SIW_ACCESS_LOCAL_WRITE = 1,
	SIW_ACCESS_REMOTE_WRITE = 2,
	SIW_ACCESS_REMOTE_READ = 4,
	SIW_ACCESS_REMOTE_ATOMIC = 8,
	SIW_ACCESS_MW_BIND = 16,    /* for a region: memory windows may be bound to it */
	SIW_ACCESS_ZERO_BASED = 32, /* tagged offsets of the region or window start at 0 */
	SIW_ACCESS_REMOTE_INVALIDATE = 1 << 30, /* specific to siwarp; only for siw_reg_mr_qp */
};

/* A memory region; addr and length are the registered values */
struct siw_mr {
	struct siw_context *context;
	struct siw_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey; /* STag for the peer, used with a tagged offset (addr or iova) */
};

/* Allocates a protection domain. Errors: ENOMEM (max_pd reached). */
struct siw_pd *siw_alloc_pd(struct siw_context *context);
/* Deallocates the PD. -EBUSY: an MR, MW, QP, SRQ or AH of the PD still exists. */
int siw_dealloc_pd(struct siw_pd *pd);

/*
 * Registers length octets at addr, which may be NULL. access is a set of enum siw_access_flags. No
 * memory is pinned. Only the first and the last page are checked at registration; an access to an
 * unmapped page between them fails later in the same way as an access with an invalid key. Errors:
 * EINVAL (length exceeds max_mr_size, or the end of the range wraps; remote write or remote atomic
 * access without local write access; MW_BIND together with REMOTE_INVALIDATE), EFAULT (the memory
 * is not mapped, or not writable although access requires it), ENOMEM (max_mr reached).
 */
struct siw_mr *siw_reg_mr(struct siw_pd *pd, void *addr, size_t length, int access);
/*
 * Registers memory like siw_reg_mr, but addresses in the region start at iova instead of addr: the
 * tagged offsets that the peer uses, the addresses of scatter/gather elements with the region's
 * lkey, and the addresses of memory windows bound to the region. With SIW_ACCESS_ZERO_BASED, which
 * siw_reg_mr also accepts, addresses start at 0. SIW_SEND_INLINE payload is always read at its
 * virtual address, without a key. Additional causes of EINVAL: iova + length wraps, or iova is not
 * 0 with ZERO_BASED. After siw_rereg_mr with CHANGE_TRANSLATION, addresses start at the new addr.
 */
struct siw_mr *siw_reg_mr_iova(struct siw_pd *pd, void *addr, size_t length, uint64_t iova,
			       int access);
/*
 * Deregisters the region. When the call returns, the STag is invalid and siwarp no longer accesses
 * the memory: the call waits for a placement in progress in another thread, and resets a stream
 * that still has to send a Read response from the region.
 *
 * -EBUSY: a local request still uses the memory (a Send or Write that TCP or UDP has not accepted,
 * or a Read or atomic without its response), a window is bound to the region, or a bind to the
 * region is posted. Posted receives do not prevent deregistration; a message that later consumes
 * such a receive completes it with LOC_PROT_ERR.
 */
int siw_dereg_mr(struct siw_mr *mr);

enum siw_rereg_mr_flags {
	SIW_REREG_MR_CHANGE_TRANSLATION = 1, /* addr and length change */
	SIW_REREG_MR_CHANGE_PD = 2,
	SIW_REREG_MR_CHANGE_ACCESS = 4,
};

/* The values of enum ibv_rereg_mr_err_code that siwarp uses; errno holds the cause. */
enum siw_rereg_mr_err_code {
	SIW_REREG_MR_ERR_INPUT = -1, /* the region is unchanged, and its keys are valid */
	SIW_REREG_MR_ERR_CMD = -4,   /* the region is deregistered and must not be used */
};

/*
 * Changes the attributes of a region that flags (a set of enum siw_rereg_mr_flags) selects, and
 * gives the region new, unguessable keys. Arguments that flags does not select are ignored. When
 * the call returns, the old keys are invalid as after siw_dereg_mr, and requests that still carry
 * them fail. With CHANGE_ACCESS alone the keys are kept, unless the peer has invalidated them or
 * ZERO_BASED changes; accesses that the new rights do not allow are ended as by siw_dereg_mr.
 *
 * Returns 0, or a value of enum siw_rereg_mr_err_code with errno set to EINVAL (invalid flags, a PD
 * of another device, another PD for a region that is bound to a QP, or a cause listed at
 * siw_reg_mr), EFAULT, ENOMEM (the old and the new region exist at the same time), or EBUSY as for
 * siw_dereg_mr.
 */
int siw_rereg_mr(struct siw_mr *mr, int flags, struct siw_pd *pd, void *addr, size_t length,
		 int access);

/* ---- memory windows -------------------------------------------------------------------------- */

enum siw_mw_type {
	SIW_MW_TYPE_1 = 1,
	SIW_MW_TYPE_2 = 2,
};

/* A memory window, as struct ibv_mw */
struct siw_mw {
	struct siw_context *context;
	struct siw_pd *pd;
	uint32_t rkey; /* type 1: key of the bind posted last; type 2: written by the program */
	uint32_t handle;
	int type; /* enum siw_mw_type */
};

/*
 * The memory of a bind, as struct ibv_mw_bind_info. The window covers length octets of the region
 * from addr on; for a region with an iova, addr is in the range that starts at iova.
 */
struct siw_mw_bind_info {
	struct siw_mr *mr; /* the region, which was registered with SIW_ACCESS_MW_BIND */
	uint64_t addr;
	uint64_t length;
	unsigned int
		/* set of enum siw_access_flags: REMOTE_WRITE, REMOTE_READ, ZERO_BASED */
		mw_access_flags;
};

/* A bind request, as struct ibv_mw_bind */
struct siw_mw_bind {
	uint64_t wr_id;
	unsigned int send_flags; /* set of enum siw_send_flags: FENCE, SIGNALED */
	struct siw_mw_bind_info bind_info;
};

/*
 * Allocates a memory window: a part of a region that peers may access with the rights given when
 * the window is bound. RC and UC queue pairs bind and invalidate windows by work requests, which
 * take effect in send queue order, so that a peer can use a key that it receives in a Send posted
 * after the bind. Once an invalidation, a bind to another range or siw_dealloc_mw has completed, no
 * access with the old key changes memory, and a stream that still has to send a Read response from
 * the window has been reset. A peer that uses an invalid key receives a Terminate; on UC only its
 * message is dropped. A window grants no local access, and grants remote write access only if the
 * region has local write access.
 *
 * Type 1 windows are bound by siw_bind_mw. The peers of all QPs of the PD may access the window.
 * Each bind ends the previous binding and generates a new, unguessable key. A bind of length 0 only
 * ends the previous binding.
 *
 * Type 2 windows are bound by SIW_WR_BIND_MW to the QP to which the request is posted. Only the
 * peer of that QP may access the window, in every connection of the QP. The upper 24 bits of the
 * key are those of the rkey that siw_alloc_mw returned; the program chooses the low octet, for
 * example by siw_inc_rkey. Before the window is bound again it must be invalidated by
 * SIW_WR_LOCAL_INV on the same QP, or by a Send with Invalidate from the peer. After that QP is
 * destroyed, the window can only be deallocated.
 *
 * Errors: EINVAL, ENOMEM (max_mw reached).
 */
struct siw_mw *siw_alloc_mw(struct siw_pd *pd, int type);
/*
 * Deallocates the window and ends its binding. -EBUSY: a posted bind of the window has not taken
 * effect.
 */
int siw_dealloc_mw(struct siw_mw *mw);
/*
 * Posts a bind of a type 1 window to the send queue and stores the new key in mw->rkey. -EINVAL:
 * the window is of type 2, or an EINVAL cause that siw_post_send lists for SIW_WR_BIND_MW. -ENOMEM:
 * the send queue or the STag table is full.
 */
int siw_bind_mw(struct siw_qp *qp, struct siw_mw *mw, struct siw_mw_bind *bind);
/* Returns rkey with its low octet incremented, as ibv_inc_rkey does. */
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
	 * UD and RD, at the target of a Write-Record; specific to siwarp. wr_id is the argument for
	 * siw_query_record. byte_len is the length of the complete message in octets, even if parts
	 * of it were lost. No receive is consumed.
	 */
	SIW_WC_RECV_WRITE_RECORD = 640,
};

enum siw_wc_flags {
	SIW_WC_GRH = 1, /* the receive buffer begins with a GRH: grh of struct siw_qp_init_attr */
	SIW_WC_WITH_IMM = 2,
	SIW_WC_WITH_INV = 8,
};

/*
 * A work completion, as struct ibv_wc. In a completion with an error only wr_id, status, qp_num and
 * vendor_err are valid.
 */
struct siw_wc {
	uint64_t wr_id;
	int status; /* enum siw_wc_status */
	int opcode; /* enum siw_wc_opcode */
	/*
	 * The Terminate that caused the error, as layer << 16 | type << 8 | code, or 0 if no
	 * Terminate caused the error. RDMAP's local catastrophic error, which has no code, is 0xff.
	 */
	uint32_t vendor_err;
	uint32_t byte_len; /* octets received; RECV_RDMA_WITH_IMM: octets of the peer's Write */
	union {
		uint32_t imm_data; /* with SIW_WC_WITH_IMM: as stored in the peer's request */
		/* with SIW_WC_WITH_INV: STag that the peer invalidated */
		uint32_t invalidated_rkey;
	};
	uint32_t qp_num;
	uint32_t src_qp;
	uint32_t wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl; /* with SIW_WC_GRH: GRH format, 9 = IPv6 header, 10 = IPv4 header */
	uint8_t dlid_path_bits;
};

/*
 * Creates a completion queue with space for at least cqe completions. channel may be NULL.
 *
 * comp_vector selects a lane of the device, 0 to siw_num_comp_vectors() - 1. QPs whose receives
 * complete on the CQ are in its lane, and threads that poll CQs of different lanes do not wait for
 * each other. 0: the lane with the fewest such CQs. Errors: EINVAL (cqe < 1 or > max_cqe,
 * comp_vector < 0 or >= siw_num_comp_vectors()), ENOMEM.
 */
struct siw_cq *siw_create_cq(struct siw_context *context, int cqe, void *cq_context,
			     struct siw_comp_channel *channel, int comp_vector);
/* Destroys the CQ, after all its events have been acknowledged. -EBUSY: a QP uses the CQ. */
int siw_destroy_cq(struct siw_cq *cq);
/* Returns the capacity of the CQ in completions, or -errno. */
int siw_cq_capacity(struct siw_cq *cq);
/*
 * Resizes the CQ to at least cqe completions. Completions in the CQ are kept in order. -EINVAL: cqe
 * is less than 1, greater than max_cqe, or less than the number of completions in the CQ. -ENOMEM.
 */
int siw_resize_cq(struct siw_cq *cq, int cqe);
/*
 * Removes up to num_entries completions from the CQ and writes them to wc. Returns the number of
 * completions, 0 if the CQ is empty, or -errno.
 *
 * -EOVERFLOW: the CQ overflowed, and all completions that it held have been polled. Later
 * completions were dropped (counter cq_overflow), SIW_EVENT_CQ_ERR was raised, and every QP that
 * uses the CQ goes to ERR with SIW_EVENT_QP_FATAL. Such a CQ can only be destroyed: resizing it,
 * arming it or creating a QP with it also fails with -EOVERFLOW.
 */
int siw_poll_cq(struct siw_cq *cq, int num_entries, struct siw_wc *wc);
/*
 * Arms the CQ: the next completion raises one event on the CQ's channel. With solicited_only, only
 * a completion with an error status, or of a receive consumed by a solicited message, raises the
 * event. Completions already in the CQ raise no event, so a program arms the CQ, polls once more,
 * and then waits. If the CQ has been armed both ways, any completion raises the event. -EINVAL: the
 * CQ has no channel.
 */
int siw_req_notify_cq(struct siw_cq *cq, int solicited_only);
/* Returns a static text that describes a completion status (enum siw_wc_status). */
const char *siw_wc_status_str(int status);

/* Creates a completion channel, which queues the events of CQs. Errors: ENOMEM, EMFILE. */
struct siw_comp_channel *siw_create_comp_channel(struct siw_context *context);
/* Destroys the completion channel. -EBUSY: a CQ uses the channel. */
int siw_destroy_comp_channel(struct siw_comp_channel *channel);
/*
 * Returns a descriptor, for poll(2) and similar calls, that is readable while a completion event is
 * queued. Do not read from the descriptor; call siw_get_cq_event.
 */
int siw_comp_channel_fd(struct siw_comp_channel *channel);
/*
 * Waits up to timeout_ms milliseconds for a completion event (-1: without limit; 0: without
 * waiting). While waiting, the calling thread makes progress on the device's traffic. Returns 0;
 * -EAGAIN when the time has elapsed; -EINTR after a signal. If O_NONBLOCK is set on the channel's
 * descriptor by fcntl(2), timeout_ms -1 means 0.
 *
 * If timeout_ms is not 0, siw_get_cq_event is a cancellation point (pthread_cancel), and so are
 * siw_get_async_event, siw_cm_get_event and siw_wait_cq (siw_ext.h). A thread that is cancelled in
 * such a call has not removed an event or a completion. No other function of siwarp is a
 * cancellation point.
 */
int siw_get_cq_event(struct siw_comp_channel *channel, struct siw_cq **cq, void **cq_context,
		     int timeout_ms);
/*
 * Acknowledges nevents events of the CQ that siw_get_cq_event returned. siw_destroy_cq waits until
 * all events are acknowledged.
 */
void siw_ack_cq_events(struct siw_cq *cq, unsigned int nevents);

/* ---- address handles ------------------------------------------------------------------------- */

/*
 * Creates an address handle: the destination of UD messages, an IP address and a UDP port. A UD QPN
 * contains a UDP port in its low 16 bits and the index of the QP on its socket in bits 16 to 23.
 * The handle's port is used if the low 16 bits of remote_qpn in the work request are 0. To reply to
 * a message, send to the source address that siw_poll_cq_from returned, with remote_qpn = wc.src_qp
 * as usual in verbs. remote_qpn 0 addresses the first QP of a shared socket.
 *
 * The address may be a multicast group. The port is then always SIW_MCAST_PORT (setting
 * mcast_port), and messages leave through the interface of the QP's device. Messages to a group
 * pass routers only if setting mcast_ttl is greater than 1.
 *
 * An IPv6 link-local address without a scope is taken to be on the device's link.
 */
struct siw_ah *siw_create_ah(struct siw_pd *pd, const struct siw_addr *dest);
/*
 * Destroys the address handle. -EBUSY: a posted Send with this handle has not been accepted by UDP,
 * because the socket is full or the QP is in SQD.
 */
int siw_destroy_ah(struct siw_ah *ah);

/* ---- queue pairs ----------------------------------------------------------------------------- */

enum siw_qp_type {
	SIW_QPT_RC = 2, /* reliable connection over TCP */
	SIW_QPT_UC = 3, /* unreliable connection over UDP, to one peer */
	SIW_QPT_UD = 4, /* unreliable datagrams over UDP */
	/*
	 * Reliable datagrams over UDP, without a connection. Messages to each of any number of
	 * peers are delivered in order and exactly once. libibverbs has no counterpart; the number
	 * is specific to siwarp.
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
 * Determines when Sends and Writes on RC complete, and how a Send without a posted receive is
 * handled. The wire format is the same for all personas, and each end chooses its persona
 * independently.
 *
 * IWARP, as in RFC 5040: a request completes when TCP has accepted all of it. The completion means
 * only that the buffer may be reused. A Send without a posted receive ends the connection.
 *
 * ROCE, as InfiniBand programs expect: a request completes when the peer has it, that is, when the
 * peer's receive has completed or the data is in the peer's memory. If the peer refuses a request,
 * the refused request completes with the error, the earlier requests with success, and the later
 * requests with WR_FLUSH_ERR. A peer known to be siwarp (see private_messages in struct
 * siw_qp_init_attr) acknowledges messages by delivery counts, and a Send completes before the
 * peer's reply to it is received. For any other peer, a zero-length RDMA Read after the request
 * serves as the acknowledgement; a siwarp peer recognizes such a Read and then sends delivery
 * counts. The Read counts towards the peer's IRD, so the connection requests an IRD of at least 1.
 * If the peer allows no Reads, or does not state its IRD (MPA revision 1 without initiator_depth),
 * requests complete as with IWARP (counter confirm_none).
 */
enum siw_persona {
	SIW_PERSONA_AUTO = 0, /* setting persona; IWARP if the setting is 0 (auto) */
	SIW_PERSONA_IWARP = 1,
	SIW_PERSONA_ROCE = 2,
};

/*
 * UD: how a queue pair reacts to a message with the right Q_Key that violates DDP or RDMAP (an
 * opcode that UD does not support, or a message fragment). Under both policies the error is
 * reported to the sender by an error message, within the limits of settings err_rate and
 * err_source_rate, and locally by siw_poll_err.
 *
 * ERROR, as in the datagram-iWARP paper: the queue pair goes to ERR and flushes, with
 * SIW_EVENT_QP_REQ_ERR or SIW_EVENT_QP_ACCESS_ERR. The transitions RESET -> INIT -> RTR -> RTS make
 * the queue pair usable again. MESSAGE: the queue pair continues, with SIW_EVENT_QP_ERR_QUEUED;
 * meant for servers whose peers are untrusted.
 *
 * Under ERROR only the Q_Key prevents strangers from stopping the queue pair, so the Q_Key should
 * be random. ERROR with a Q_Key of 0 is refused (EINVAL at the transition to INIT); MESSAGE accepts
 * any Q_Key.
 *
 * Under both policies a datagram is dropped and counted if its Q_Key is wrong, if an earlier check
 * fails (CRC, length, versions, queue number), or if no receive is posted. A message longer than
 * its receive completes the receive with SIW_WC_LOC_LEN_ERR and is reported to the sender; the
 * queue pair continues.
 */
enum siw_error_policy {
	/*
	 * The policy of setting error_policy. If the setting is 0 (auto): ERROR for a UD QP with a
	 * non-zero Q_Key that is in no multicast group, MESSAGE for every other QP.
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

/*
 * Attributes of a new queue pair. A prefix such as "UD, RC:" names the QP types to which a member
 * applies; other types ignore the member or refuse a value other than 0.
 */
struct siw_qp_init_attr {
	void *qp_context;
	struct siw_cq *send_cq;
	struct siw_cq *recv_cq;
	struct siw_srq *srq;   /* NULL, or the SRQ that replaces the QP's own receive queue */
	struct siw_qp_cap cap; /* written back: the actual values, not below the requested values */
	int qp_type;
	int sq_sig_all;
	int no_crc; /* UD, UC: 1 = send 0 in the CRC field and do not check received CRCs */
	/*
	 * UD, UC, RD: local address and port to bind. Family 0 selects the device's first address,
	 * port 0 any free port. An RD QP bound to the wildcard address can be reached only at the
	 * source address of its machine.
	 */
	struct siw_addr addr;
	int persona;	  /* RC: enum siw_persona */
	int error_policy; /* UD, RD: enum siw_error_policy */
	/*
	 * UD: NULL, or a UD QP of the same device whose socket the new QP shares. addr must then be
	 * zero, and no_crc must equal that of the other QP.
	 */
	struct siw_qp *shared_socket_qp;
	/*
	 * UD, RD: number of incoming Write-Records that can be in progress at a time, at most 1024;
	 * with 0 all Write-Records are refused. Up to max_write_records / 2 completions are held in
	 * the receive CQ, which needs space for them; further completions are added after the
	 * earlier ones have been polled. Any peer that knows the Q_Key and the key of a region with
	 * SIW_ACCESS_REMOTE_WRITE may send Write-Records.
	 */
	uint32_t max_write_records;
	/*
	 * RD: max_peers is the maximum number of peer records (0: setting rd_peers). When the limit
	 * is reached, a new peer replaces the record that has been idle longest, or else a record
	 * of the source address that has the most records.
	 *
	 * RD: peer_timeout_ms is the time in milliseconds after which a peer that does not send an
	 * outstanding response is declared lost (0: setting peer_timeout_ms). With 0, setting
	 * rd_handshake_timeout_ms applies to a peer on another machine that has not yet answered
	 * the first message.
	 */
	uint32_t max_peers;
	uint32_t peer_timeout_ms;
	/*
	 * RC: 1 = a Send for which no receive is posted waits at the receiver until a receive is
	 * posted, with any persona. Up to setting rnr_octets octets of such Sends are stored; above
	 * this limit TCP flow control stops the peer. An orderly close by the peer is reported
	 * after the last stored Send.
	 */
	int keep_unexpected;
	/*
	 * RC: 1 = siw_modify_qp connects the QP to another QP with by_qpn set, given the peer's
	 * address and QPN. 0 = <siwarp/cm.h> connects the QP. The QPN of a by_qpn QP is index << 16
	 * | TCP port, with an index of 1 to 255. The library listens on the TCP port at the
	 * device's addresses; one port serves 255 queue pairs of a process (settings rc_port_first,
	 * rc_port_last). With several lanes (setting lanes) each lane uses ports of its own while
	 * ports are free. Errors: EADDRINUSE (no port is free), EADDRNOTAVAIL (the device has no
	 * address).
	 */
	int by_qpn;
	/*
	 * UD: 1 = each received message is preceded by a 40-octet GRH in its receive buffer, as
	 * with RoCE v2: the IPv6 header, or 20 zero octets followed by the IPv4 header with a valid
	 * checksum. The destination in the header is the address or multicast group to which the
	 * message was sent; for a QP bound to the wildcard address, the wildcard address. The time
	 * to live or hop limit is always 64. byte_len includes the 40 octets, wc_flags contains
	 * SIW_WC_GRH, and sl is 9 (IPv6) or 10 (IPv4). A message that does not fit after the 40
	 * octets is too long for its receive. Write-Records have no GRH.
	 */
	int grh;
	/*
	 * UD, UC: 1 = the QP is bound to every address of the device, with one socket (and
	 * descriptor) per address, all on the same port. addr must have family 0; its port 0
	 * selects a port that is free on all addresses. The QPN is reachable at each address. UD
	 * messages leave from the source of the address handle (siw_create_ah_from) or else from
	 * the device's first address of the destination's family, a link-local address for a
	 * link-local destination. UC messages leave from ah_source of the transition to RTR.
	 * siw_poll_cq_between returns the local address to which a message was sent, and a reply
	 * should leave from the same address. siw_qp_addr returns the first address.
	 *
	 * Addresses that the device gains later are bound as well, up to 16 during the life of the
	 * QP, unless another program uses the port there (counter addrs_unbound). An address that
	 * the device loses receives nothing until the address is back. Messages from a lost address
	 * either leave without a chance of a reply or end with GENERAL_ERR, depending on the
	 * kernel; the QP continues.
	 */
	int every_addr;
	/*
	 * RC: 1 = the program asserts that the peer is siwarp, and that the peer's program asserts
	 * the same about this end. Send with Immediate may then be posted, and persona roce needs
	 * no RDMA Reads (enum siw_persona). Set this only for peers that the start-up of the
	 * connection does not identify: connections made with by_qpn identify themselves, and so do
	 * those of the connection manager unless setting mpa_announce is 0 at either end.
	 * siw_query_qp returns whether the peer is known to be siwarp by any of these means.
	 */
	int private_messages;
};

/* Flags that tell siw_modify_qp which members of struct siw_qp_attr to apply. */
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
	SIW_QP_FD = 1073741824, /* specific to siwarp */
};

/*
 * Attributes of a queue pair. A prefix such as "UD, UC:" names the QP types that have the
 * attribute, and "to RTR" the transition that accepts it (siw_qp_step_attrs).
 */
struct siw_qp_attr {
	int qp_state;
	int cur_qp_state; /* modify: the required current state; another state is an error */
	uint32_t qkey;	  /* UD, UC: Q_Key of received datagrams; on UC also of sent datagrams */
	/*
	 * RC, UC: operations that the peer may use. An operation requires both the right of the QP
	 * and the right of the STag. Initially all rights of the QP are set.
	 */
	int qp_access_flags;
	/* to SQD: raise SIW_EVENT_SQ_DRAINED when the send queue is drained */
	int en_sqd_async_notify;
	int sq_draining; /* query, in SQD: 1 = some requests that were started are not complete */
	/*
	 * max_rd_atomic is the ORD: the maximum number of outstanding RDMA Reads and atomics of
	 * this end. In SQD it can be changed, up to the value that both ends agreed on.
	 * max_dest_rd_atomic is the IRD: the maximum number of Reads and atomics that the peer may
	 * have outstanding at this end. siw_query_qp returns the agreed values while the QP is
	 * connected, and the configured values, or 0, before the connection. With by_qpn both
	 * members are the values that this end requests: Reads beyond the peer's limit wait in the
	 * send queue, and a query returns the configured values.
	 */
	int max_rd_atomic;
	int max_dest_rd_atomic;
	/*
	 * RC with persona roce: the time that a Send waits at the receiver for a receive to be
	 * posted, after which a Terminate ends the connection and the Send completes with
	 * RNR_RETRY_EXC_ERR. The time is rnr_retry of the sender times the delay encoded by
	 * min_rnr_timer of the receiver. A siwarp sender with persona roce transmits its rnr_retry
	 * before its first message. For any other sender the receiver's own rnr_retry applies,
	 * because iWARP has no receiver-not-ready NAK. rnr_retry of struct siw_cm_param overrides
	 * both values.
	 *
	 * rnr_retry is 0 to 6, or 7 for no limit (the default). min_rnr_timer is the InfiniBand
	 * code: 1 (0.01 ms) to 31 (491.52 ms), or 0 (655.36 ms); the default is 12 (0.64 ms).
	 *
	 * RD: the same times apply, but the sender measures them after the receiver has reported
	 * that no receive is posted. When the time has elapsed, the messages that the sender has
	 * started to the receiver fail, and the receiver is notified.
	 */
	int rnr_retry;
	int min_rnr_timer;
	/*
	 * UD and UC, to INIT: a bound UDP socket, of which the QP takes ownership and whose port
	 * determines the QPN. Not allowed for a QP that shares its socket or is a member of a
	 * multicast group.
	 */
	int fd;
	/*
	 * UC, to RTR. ah_addr is the address of the peer and requires SIW_QP_AV, which is mandatory
	 * for this transition. The peer's port is the low 16 bits of dest_qp_num, or the port in
	 * ah_addr if those bits are 0 or dest_qp_num is not given. path_mtu is the maximum payload
	 * of one datagram in octets, at least 256, or 1 to 5 as in enum ibv_mtu (256 to 4096). A
	 * path_mtu of 0, or one that is not given, selects the size that the route carries without
	 * fragmentation, which is also the upper limit. siw_query_qp returns the current value in
	 * octets.
	 */
	struct siw_addr ah_addr;
	int path_mtu;
	uint32_t dest_qp_num;
	/*
	 * UC: 32-bit sequence number of the first datagram received (rq_psn, to RTR) and of the
	 * first datagram sent (sq_psn, to RTS). Each end's rq_psn must equal the other end's
	 * sq_psn. The default is 0. siw_query_qp returns the number of the next datagram.
	 */
	uint32_t rq_psn;
	uint32_t sq_psn;
	/*
	 * RC with by_qpn, to RTR, with SIW_QP_AV and SIW_QP_DEST_QPN mandatory: the peer is QPN
	 * dest_qp_num at ah_addr (whose port is ignored), and the local address is ah_source;
	 * family 0 selects the device's first address of the peer's family. The peer must be given
	 * the local address and QPN. Either end may reach RTR first. Requests posted in RTS before
	 * the stream exists wait for the stream. path_mtu, rq_psn and sq_psn have no effect on TCP.
	 *
	 * timeout, retry_cnt: to RTS. A posted request without a connected peer completes with
	 * RETRY_EXC_ERR after (4.096 us << timeout) * (retry_cnt + 1), but not before 3 s. With
	 * timeout 0 the request waits indefinitely. Losing the peer does not change the state of
	 * the QP: incomplete requests, and requests posted later, fail after the same time.
	 */
	struct siw_addr ah_source;
	int timeout;
	int retry_cnt;
	/*
	 * UD and UC, on transitions to RTS and SQD and within these states: maximum send rate in
	 * kbit/s of UDP payload (including DDP and RDMAP headers and the CRC). 0, the default and
	 * the value after RESET, means no limit. Requests beyond the rate wait in the send queue,
	 * without delaying other queue pairs. During any interval t the QP sends at most rate * (t
	 * + 2 ms) plus one datagram. Write-Records are included; error messages are not.
	 */
	uint32_t rate_limit;
};

enum siw_wr_opcode {
	SIW_WR_RDMA_WRITE = 0,
	/*
	 * RC: an RDMA Write followed by an Immediate Data message (RFC 7306). The Immediate Data
	 * message consumes a receive of the peer without writing to its buffer, and completes it
	 * with SIW_WC_RECV_RDMA_WITH_IMM after the Write has been placed. A peer without RFC 7306
	 * terminates the connection.
	 */
	SIW_WR_RDMA_WRITE_WITH_IMM = 1,
	SIW_WR_SEND = 2,
	/*
	 * A Send with immediate data, a message specific to siwarp that no RFC defines. On UD its
	 * maximum length is 8 octets less than that of a Send. On RC it is refused with EINVAL
	 * unless the peer is known to be siwarp (private_messages of struct siw_qp_init_attr).
	 */
	SIW_WR_SEND_WITH_IMM = 3,
	SIW_WR_RDMA_READ = 4,
	/*
	 * RC and RD. An atomic changes the 64-bit value, in the peer's byte order, at
	 * wr.atomic.remote_addr, in memory registered with SIW_ACCESS_REMOTE_ATOMIC. The change is
	 * atomic with respect to all queue pairs, devices, threads and atomic instructions of the
	 * peer's machine. If the address is not a multiple of 8, the peer terminates the connection
	 * and its memory is unchanged. The scatter/gather elements, 8 octets in total, receive the
	 * original value in local byte order. Atomics count as Reads for ORD and IRD.
	 */
	SIW_WR_ATOMIC_CMP_AND_SWP = 5,	 /* stores swap if the value equals compare_add */
	SIW_WR_ATOMIC_FETCH_AND_ADD = 6, /* adds compare_add to the value */
	SIW_WR_LOCAL_INV = 7,		 /* RC and UC: invalidates a local STag */
	SIW_WR_BIND_MW = 8,
	SIW_WR_SEND_WITH_INV = 9,
	/*
	 * Masked versions of compare-and-swap and fetch-and-add (RFC 7306 section 5.1), with the
	 * numbers of the Linux kernel. CMP: if the value and compare_add are equal in the bits of
	 * masked.compare_add_mask, the bits of masked.swap_mask are replaced by those of swap. ADD:
	 * each set bit of masked.compare_add_mask is the most significant bit of a field; the
	 * fields are added separately, and the carry out of each field is discarded.
	 */
	SIW_WR_MASKED_ATOMIC_CMP_AND_SWP = 12,
	SIW_WR_MASKED_ATOMIC_FETCH_AND_ADD = 13,
	/*
	 * UD and RD, specific to siwarp: an RDMA Write of up to max_rc_msg octets to wr.rdma at the
	 * peer given in rd, in as many datagrams as needed. On UD some datagrams may be lost. The
	 * peer's queue pair, which needs max_write_records > 0, gets a completion
	 * SIW_WC_RECV_WRITE_RECORD; siw_query_record then returns the octet ranges that arrived.
	 */
	SIW_WR_RDMA_WRITE_RECORD = 128,
};

enum siw_send_flags {
	SIW_SEND_FENCE = 1,
	SIW_SEND_SIGNALED = 2,
	SIW_SEND_SOLICITED = 4,
	SIW_SEND_INLINE = 8,
};

/* A send request, as struct ibv_send_wr. Members of unsupported operations after wr must be 0. */
struct siw_send_wr {
	uint64_t wr_id;
	struct siw_send_wr *next;
	struct siw_sge *sg_list;
	int num_sge;
	int opcode; /* enum siw_wr_opcode */
	uint32_t send_flags;
	union {
		uint32_t
			/*
			 * ..._WITH_IMM: sent in the stored byte order; use htonl() if byte orders
			 * may differ
			 */
			imm_data;
		/*
		 * SEND_WITH_INV: the peer's STag to invalidate; LOCAL_INV: the local STag to
		 * invalidate
		 */
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
			uint32_t remote_qkey; /* top bit set: the QP's own Q_Key is used */
		} ud;
	} wr;
	uint32_t remote_srqn;
	union {
		struct {
			uint64_t compare_add_mask;
			uint64_t swap_mask;
		} masked; /* MASKED_ATOMIC_...: the masks; the operands are in wr.atomic */
		struct {
			struct siw_mw *mw; /* the window to bind, of type 2 */
			uint32_t rkey;	   /* the window's key after the bind */
			struct siw_mw_bind_info bind_info;
		} bind_mw;
		uint64_t reserved[6];
		/*
		 * The peer of the request, in the format of wr.ud: for RDMA_WRITE_RECORD on UD, and
		 * for every opcode on RD (where the QP's own Q_Key is used).
		 */
		struct {
			uint64_t of_masked[2]; /* padding that overlaps the two masks above */
			struct siw_ah *ah;
			uint32_t remote_qpn;
			uint32_t remote_qkey;
		} rd;
	};
};

/* A receive request, as struct ibv_recv_wr */
struct siw_recv_wr {
	uint64_t wr_id;
	struct siw_recv_wr *next;
	struct siw_sge *sg_list;
	int num_sge;
};

/* Maximum number of UD QPs that share one socket. */
#define SIW_MAX_SHARERS 256
/*
 * Creates a queue pair in state RESET. With an SRQ the receive capabilities are ignored and written
 * back as 0. Errors: EINVAL (an unknown type; a capability above the device's limit; no CQ; a CQ or
 * SRQ of another device; shared_socket_qp is of another device, is not a UD QP, has a different
 * no_crc, or is combined with addr), ENOMEM, EADDRINUSE and EADDRNOTAVAIL (addr), EMFILE (no
 * descriptor is left for the socket), ENOSPC (SIW_MAX_SHARERS QPs already share the socket).
 *
 * UD QPs that share a socket each have an index, 0 for the first QP: a UD QPN is index << 16 | UDP
 * port. Each of the QPs has its own state, queues, CQs, PD and Q_Key. Datagrams to an index without
 * a QP are dropped (counter drop_qn). The QPs share the address and the kernel's socket buffers, so
 * a flood of datagrams to one QP may make the kernel drop datagrams to the others. The socket is
 * closed when the last of these QPs is destroyed.
 */
struct siw_qp *siw_create_qp(struct siw_pd *pd, struct siw_qp_init_attr *init);
/*
 * Destroys the queue pair and removes its completions that were not polled. -EBUSY: the QP is a
 * member of a multicast group. If the QP is bound to a connection id (siw_cm_bind_qp), the binding
 * ends; an established connection ends with event DISCONNECTED, and a connection in start-up fails.
 * A concurrent post in another thread returns -EINVAL.
 */
int siw_destroy_qp(struct siw_qp *qp);
/*
 * Changes the state or other attributes of the queue pair. attr_mask is a set of enum
 * siw_qp_attr_mask.
 *
 * RESET -> INIT -> RTR -> RTS: by this call for UD, UC, RD and by_qpn RC queue pairs; by
 * <siwarp/cm.h> for other RC queue pairs. Any state -> ERR: all requests are flushed. Any state ->
 * RESET: all requests are dropped without completions, and completions of this QP that were not
 * polled are removed from their CQs, as by siw_destroy_qp. RTS -> SQD: requests that were started
 * complete; other requests wait until SQD -> RTS. A UD or UC Send that fails by a local error
 * (LOC_PROT_ERR, LOC_LEN_ERR) moves its QP to SQE: sends are flushed and receives continue until
 * SQE -> RTS.
 *
 * -EINVAL, and nothing changes: the transition does not exist, the transition does not accept an
 * attribute in attr_mask (siw_qp_step_attrs), or a value exceeds a limit of the device or the
 * connection.
 */
int siw_modify_qp(struct siw_qp *qp, const struct siw_qp_attr *attr, int attr_mask);
/* Writes the current value of every member to *attr and *init. Either pointer may be NULL. */
int siw_query_qp(struct siw_qp *qp, struct siw_qp_attr *attr, struct siw_qp_init_attr *init);
/* Returns the QPN of a queue pair, or 0 if qp is NULL. */
uint32_t siw_qp_num(struct siw_qp *qp);

/* ---- multicast ------------------------------------------------------------------------------- */

/*
 * Default UDP port of all multicast groups (setting mcast_port). The number is not registered with
 * IANA.
 */
#define SIW_MCAST_PORT 62607

/*
 * UD: makes the QP a member of a multicast group on its device. group is an IPv4 or IPv6 multicast
 * address of the QP's address family; its port and scope are ignored. The QP then receives all
 * messages to the group that carry its Q_Key, including its own messages. Each member's copy
 * consumes a receive of that member, and is dropped if no receive is posted (counter
 * drop_no_buffer). src_qp and the source address in a completion are those of the sender. Errors in
 * messages to a group are counted but not reported to the sender. A QP need not be a member of a
 * group to send to it.
 *
 * Allowed in any state; no effect if the QP is already a member. -EINVAL: not a UD QP, not a
 * multicast address, or another address family; -ENODEV; -EADDRINUSE: another program has bound the
 * port on all addresses; -EMFILE; -ENOMEM; or another error of joining the group.
 */
int siw_attach_mcast(struct siw_qp *qp, const struct siw_addr *group);
/*
 * Ends the membership of a QP in a multicast group. A QP must leave all groups before it can be
 * destroyed. -EINVAL: the QP is not a member.
 */
int siw_detach_mcast(struct siw_qp *qp, const struct siw_addr *group);

/*
 * Posts a list of send requests, in order, up to the first request that is refused; *bad_wr then
 * points to that request, unless bad_wr is NULL. Returns 0; -EINVAL (state, opcode, flags, number
 * of SGEs, inline size, an address handle of another PD, an RC message longer than max_rc_msg, an
 * atomic whose length is not 8 octets, a Read or atomic if the peer allows none); -ENOMEM: the
 * queue is full.
 *
 * A queue has space for exactly max_send_wr or max_recv_wr requests. A request occupies its slot
 * until its completion is polled; an unsignaled request, until a later completion of the same queue
 * is polled. Receives can be posted from INIT on and sends from RTS on; in SQE and ERR they are
 * flushed.
 *
 * A UD message longer than a datagram (IPv4: max_ud_msg) completes with LOC_LEN_ERR at the sender.
 * A UD message longer than its receive completes the receive with LOC_LEN_ERR, and nothing is
 * written to the buffer. SIW_SEND_FENCE is ignored on UD, and SIW_SEND_SOLICITED is ignored on a
 * Write without immediate data, a Read or an atomic.
 *
 * SIW_WR_BIND_MW and SIW_WR_LOCAL_INV are local operations executed in send queue order; with
 * SIW_SEND_FENCE, after all earlier Reads. Both operations have no scatter/gather elements.
 * -EINVAL: not a type 2 window, a window or region of another device, access flags that struct
 * siw_mw_bind_info does not list, or SIW_SEND_INLINE.
 *
 * A bind completes with MW_BIND_ERR, and the QP goes to ERR (UC: SQE), if window, region and QP are
 * not all of the same PD; the window is already bound; the new rkey is not one of the window's
 * keys; the region is deregistered, lacks SIW_ACCESS_MW_BIND, does not contain the range, or lacks
 * local write access although the window allows remote writes or atomics; or the length is 0.
 * LOCAL_INV completes with LOC_PROT_ERR, with the same state change, unless invalidate_rkey is the
 * key of a type 2 window bound to this QP, or of a region registered by siw_reg_mr_qp with
 * SIW_ACCESS_REMOTE_INVALIDATE.
 */
int siw_post_send(struct siw_qp *qp, struct siw_send_wr *wr, struct siw_send_wr **bad_wr);
/*
 * Posts a list of receive requests like siw_post_send. -EINVAL also if the QP has an SRQ, for which
 * siw_post_srq_recv posts receives.
 */
int siw_post_recv(struct siw_qp *qp, struct siw_recv_wr *wr, struct siw_recv_wr **bad_wr);

/* ---- shared receive queues ------------------------------------------------------------------- */

/* Attributes of a shared receive queue, as struct ibv_srq_attr */
struct siw_srq_attr {
	uint32_t max_wr;    /* capacity in receives; written back: at least the requested value */
	uint32_t max_sge;   /* SGEs per receive; written back: at least the requested value */
	uint32_t srq_limit; /* 0: the limit is not armed */
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
 * Creates a shared receive queue: a queue of receives used by any number of RC and UD QPs of one
 * device (srq of struct siw_qp_init_attr). The next message to any of these QPs consumes the oldest
 * receive, which completes on the receive CQ of that QP. The lkeys of the receives belong to the PD
 * of the SRQ, which may differ from the PDs of the QPs. Errors: EINVAL (max_wr is 0 or exceeds
 * max_srq_wr, max_sge exceeds max_srq_sge, srq_limit exceeds max_wr), ENOMEM (max_srq reached).
 *
 * When a QP of the SRQ goes to ERR, a receive that the QP holds for an unfinished message completes
 * with WR_FLUSH_ERR; all other receives stay in the SRQ. SIW_EVENT_QP_LAST_WQE_REACHED reports that
 * the QP takes no more receives. If the QP is destroyed or reset before that event, the receive
 * that it holds has no completion.
 */
struct siw_srq *siw_create_srq(struct siw_pd *pd, struct siw_srq_init_attr *init);
/* Destroys the SRQ. Receives that are still posted do not complete. -EBUSY: a QP uses the SRQ. */
int siw_destroy_srq(struct siw_srq *srq);
/*
 * Changes the attributes in attr_mask (a set of enum siw_srq_attr_mask). SIW_SRQ_LIMIT arms the
 * limit. When fewer than srq_limit receives are left, which may be immediately,
 * SIW_EVENT_SRQ_LIMIT_REACHED is raised once and the limit is reset to 0. SIW_SRQ_MAX_WR resizes
 * the SRQ to at least max_wr receives; posted receives are kept in order, and traffic continues.
 * -EINVAL, and nothing changes: a limit above max_wr; a max_wr that is 0, above max_srq_wr, below
 * the limit, or less than the number of posted receives. -ENOMEM.
 */
int siw_modify_srq(struct siw_srq *srq, const struct siw_srq_attr *attr, int attr_mask);
/* Returns the capacity of the SRQ, and the limit while it is armed (otherwise 0). */
int siw_query_srq(struct siw_srq *srq, struct siw_srq_attr *attr);
/* Returns the number of the SRQ, which is unique on the device and never 0. */
uint32_t siw_srq_num(struct siw_srq *srq);
/*
 * Posts receives to an SRQ, in any state of its QPs. -EINVAL (number of SGEs), -ENOMEM (SRQ full).
 *
 */
int siw_post_srq_recv(struct siw_srq *srq, struct siw_recv_wr *wr, struct siw_recv_wr **bad_wr);

/* cffi: end */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
