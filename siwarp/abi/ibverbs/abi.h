/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi.h - libibverbs.so.1 on top of <siwarp/siw.h>: the binary interface that RDMA
 * programs are compiled against.
 *
 * Each verbs object wraps a siwarp object and begins with the public struct of
 * <infiniband/verbs.h>. Work requests, scatter/gather elements and completions have the same layout
 * on both sides (checked by abi_layout.c), so posting and polling consist of a cast and a call.
 * This library neither moves data nor keeps protocol state. "The engine" means libsiwarp.so.0.
 *
 * Functions return what their man pages specify: 0 or a positive errno value, or NULL or -1 with
 * errno set.
 */
#ifndef SIW_ABI_H
#define SIW_ABI_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * The functions of <infiniband/verbs.h> are exported; all other symbols are compiled with hidden
 * visibility.
 */
#pragma GCC visibility push(default)
#include <infiniband/verbs.h>
#pragma GCC visibility pop

#include <siwarp/siw.h>
#include <siwarp/siw_ext.h>

/* Remove the macros of <infiniband/verbs.h> that have the names of exported functions. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define ABI_EXPORT  __attribute__((visibility("default")))
#define ABI_PORT    1  /* a device has one port */
#define ABI_GIDS    16 /* length of the GID table, equal to the capacity of siw_device_info.addrs */
#define ABI_PKEY    0xffff /* the only P_Key: default partition, full member */
#define ABI_MIN_WR  32	   /* minimum size of a queue that a program creates, in requests */
#define ABI_MIN_CQE 256	   /* minimum size of a completion queue, in completions */
#define ABI_INLINE  64	   /* minimum inline size of every request, in octets */

/*
 * Access flags without effect: hints, and flags such as on-demand paging that are meaningless
 * because no memory is pinned.
 */
#define ABI_ACCESS_IGNORED                         \
	((unsigned int)IBV_ACCESS_OPTIONAL_RANGE | \
	 (unsigned int)(IBV_ACCESS_HUGETLB | IBV_ACCESS_ON_DEMAND))

/*
 * Returns whether a wait that a signal has interrupted should be restarted, as the kernel does for
 * SA_RESTART: true if every handler of the program is installed with SA_RESTART, because the
 * handler that ran cannot be determined.
 */
bool abi_should_restart_interrupted_wait(void);

enum abi_kind {
	ABI_DEVICE,
	ABI_CONTEXT,
	ABI_PD,
	ABI_MR,
	ABI_MW,
	ABI_CHANNEL,
	ABI_CQ,
	ABI_QP,
	ABI_SRQ,
	ABI_AH, /* a struct ibv_ah is stored in engine memory, at the start of its struct siw_ah */
	ABI_TD,
	ABI_BUF,
	ABI_LIST, /* array of ibv_get_device_list, allocated by malloc */
	ABI_KINDS,
};

struct abi_device {
	struct ibv_device ibv; /* must be the first member of the struct */
	struct siw_device_info info;
	uint64_t guid_be;
	int ifindex;
	atomic_int users; /* number of device lists and contexts that refer to the device */
};

/* A descriptor that was passed to ibv_import_device, and that is closed with the import. */
struct abi_import {
	struct abi_import *next;
	int fd;
};

/* A mapping of a dma-buf, which exists until its region is deregistered or the device is closed. */
struct abi_mapping {
	struct abi_mapping *next;
	void *addr;
	size_t size;
};

struct abi_context {
	struct verbs_context v; /* must be the first member; programs hold &v.context */
	struct siw_context *siw;
	struct abi_device *device;
	unsigned int forks;   /* abi_forks when the device was opened; differs in a forked child */
	pthread_mutex_t lock; /* protects the members below */
	/* device information at the time of the program's last query of the port or its GIDs */
	struct siw_device_info info;
	struct abi_import *imports;
	struct abi_mapping *mappings;
};

struct abi_pd {
	struct ibv_pd ibv; /* must be the first member of the struct */
	struct siw_pd *siw;
	/* protection domain to which this parent domain refers; NULL: no parent domain */
	struct abi_pd *parent_of;
	struct abi_td *td;
	atomic_uint users; /* number of parent domains that refer to this domain */
	bool of_ids;	   /* the protection domain is used by rdma_cm ids (siw_ibv_pd_of_ids) */
};

struct abi_td {
	struct ibv_td ibv; /* must be the first member of the struct */
	atomic_uint users;
};

/* Memory allocated by ibv_alloc_buf, which may outlive its device and is freed by ibv_free_buf. */
struct abi_buf {
	struct ibv_context *context; /* must be the first member of the struct */
	struct ibv_pd *pd;
	void *addr;
	size_t size;
};

struct abi_mr {
	struct ibv_mr ibv; /* must be the first member of the struct */
	struct siw_mr *siw;
	uint64_t iova;
	unsigned int access;
	struct abi_mapping *mapping; /* NULL, or the mapping of a dma-buf */
};

struct abi_mw {
	struct ibv_mw ibv; /* must be the first member of the struct */
	struct siw_mw *siw;
};

struct abi_channel {
	struct ibv_comp_channel ibv; /* must be the first member of the struct */
	struct siw_comp_channel *siw;
};

struct abi_cq {
	/* must be the first member; begins with the members of struct ibv_cq */
	struct ibv_cq_ex ibv;
	struct siw_cq *siw;
	struct ibv_wc wc;	 /* the current completion, between start_poll and end_poll */
	pthread_mutex_t polling; /* held between start_poll and end_poll, unless single_threaded */
	bool single_threaded;
	/* ibv_start_poll has begun a batch; protected by the mutex polling */
	bool open;
	/* abi_forks when the CQ was created; differs in a forked child */
	unsigned int forks;
	uint64_t wc_flags;		     /* enum ibv_create_cq_wc_flags */
	uint64_t monotonic_ns, wallclock_ns; /* time at which wc was polled */
};

struct abi_srq {
	struct ibv_srq ibv; /* must be the first member of the struct */
	struct siw_srq *siw;
	atomic_bool ending; /* ibv_destroy_srq is in progress */
};

struct abi_builder;

struct abi_qp {
	/* must be the first member; begins with the members of struct ibv_qp */
	struct ibv_qp_ex ibv;
	struct siw_qp *siw;
	atomic_bool ending;	     /* ibv_destroy_qp is in progress */
	struct abi_builder *builder; /* NULL: the QP was created without send_ops_flags */
	pthread_mutex_t lock;	     /* mutex that protects of_cm, set, ece and ibv.state */
	struct ibv_qp_cap cap;	     /* granted capabilities */
	int sq_sig_all;
	bool by_cm; /* an rdma_cm id connects the QP, not the peer's GID and QPN */
	/*
	 * a connection manager connects the QP, because the program has passed SIW_IBV_QPN_OF_CM to
	 * ibv_modify_qp as the peer's QPN; from RTR on, queries return the state that the program
	 * has set
	 */
	bool of_cm;
	/* attributes that the program has set and the engine does not store */
	struct ibv_qp_attr set;
	struct ibv_ece ece;
};

/* ---- abi_object.c: registry of live handles -------------------------------------------------- */

/*
 * The number of fork() generations between this process and the first process. A lock that was
 * created before a fork may be held by a thread that does not exist in the child. A function must
 * therefore not acquire the lock of an object that contains another number, and must return ESTALE.
 */
extern unsigned int abi_forks;
/*
 * Initializes a mutex that reports an error if its owner locks it again or another thread unlocks
 * it.
 */
void abi_init_checked_mutex(pthread_mutex_t *mutex);
/*
 * Returns zeroed memory for an object of the given kind, or NULL with errno ENOMEM. The memory is
 * never returned to malloc.
 */
void *abi_alloc_object(enum abi_kind kind);
/*
 * Registers the fork handlers of the registry at the first call, so that the registry's lock is
 * free in the child of fork().
 */
void abi_fork_init(void);
/*
 * Frees memory of abi_alloc_object that was not passed to abi_register_handle, or whose handle
 * abi_mark_object_dead has marked dead.
 */
void abi_free_object(enum abi_kind kind, void *memory);
/*
 * Registers a handle as a live object. owner may be NULL. Returns true, or false with errno ENOMEM.
 */
bool abi_register_handle(enum abi_kind kind, void *handle, struct ibv_context *owner);
/*
 * Returns whether handle is a live object of the given kind. If not, records the reason, and sets
 * errno to EINVAL. If it is, clears the reason of an earlier call.
 */
bool abi_is_live_object(enum abi_kind kind, const void *handle);
/*
 * Marks a handle as dead. Later calls on the handle fail with EINVAL, including those of inline
 * functions compiled into the program; posts are dropped (abi_post_dropped). Returns false if
 * another thread has marked the handle before.
 */
bool abi_mark_object_dead(enum abi_kind kind, void *handle);
/*
 * Marks all objects of a context, and then the context, as dead. Returns the same values as
 * abi_mark_object_dead.
 */
bool abi_mark_context_dead(struct ibv_context *context);
/*
 * Calls visit for each object of the given kind until visit returns true. Returns the object for
 * which visit returned true, or NULL.
 */
void *abi_find_object(enum abi_kind kind, bool (*visit)(void *handle, const void *wanted),
		      const void *wanted);

/* ---- abi_context.c --------------------------------------------------------------------------- */

/*
 * The context of dead objects, whose functions fail with EINVAL, except posts, which are accepted
 * and dropped (abi_post_dropped).
 */
extern struct verbs_context abi_dead_context;

/* ---- functions newer than rdma-core 44 ------------------------------------------------------- */

/*
 * Exports a function under a versioned name, as the default version of the name. Used for functions
 * that rdma-core introduced after release 44, which the installed headers may not declare.
 */
#define ABI_VERSION(of, name, node) __asm__(".symver " #of "," #name "@@IBVERBS_" #node)

/* ---- abi_buf.c ------------------------------------------------------------------------------- */

/* Returns whether a buffer belongs to the protection domain and contains the range. */
bool abi_buf_contains(const struct abi_buf *buf, const struct ibv_pd *pd, const void *addr,
		      size_t length);

/* ---- abi_dmabuf.c ---------------------------------------------------------------------------- */

/*
 * Maps length octets of a dma-buf, starting at offset, and sets *at to the address of the mapping.
 * Returns NULL with errno on failure.
 */
struct abi_mapping *abi_map_dmabuf(struct abi_context *ctx, int fd, uint64_t offset, size_t length,
				   bool writable, void **at);
void abi_unmap_dmabuf(struct abi_context *ctx, struct abi_mapping *mapping);
/* Unmaps all dma-buf mappings in a list. */
void abi_unmap_dmabufs(struct abi_mapping *mappings);

/* ---- implementations of the function tables in struct verbs_context -------------------------- */

int abi_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			struct ibv_device_attr_ex *attr, size_t size);
int abi_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values);
int abi_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr,
		   size_t size);
struct ibv_mw *abi_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int abi_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int abi_dealloc_mw(struct ibv_mw *mw);
struct ibv_mr *abi_refuse_null_mr(struct ibv_pd *pd);
int abi_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
		  struct ibv_sge *sg_list, uint32_t num_sge);
int abi_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
int abi_req_notify_cq(struct ibv_cq *cq, int solicited_only);
int abi_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);
int abi_modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr);
struct ibv_cq_ex *abi_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
int abi_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
int abi_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
int abi_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
struct ibv_qp *abi_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
struct ibv_srq *abi_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
int abi_get_srq_num(struct ibv_srq *srq, uint32_t *srq_num);
struct ibv_td *abi_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr);
int abi_dealloc_td(struct ibv_td *td);
struct ibv_pd *abi_alloc_parent_domain(struct ibv_context *context,
				       struct ibv_parent_domain_init_attr *attr);

/* ---- abi_device.c ---------------------------------------------------------------------------- */

void abi_device_add_reference(struct abi_device *device);
void abi_device_drop_reference(struct abi_device *device);
/*
 * Returns whether devices appear as Ethernet channel adapters (persona roce, the default) rather
 * than as iWARP RNICs.
 */
bool abi_persona_is_roce(void);

/* ---- abi_port.c ------------------------------------------------------------------------------ */

/*
 * Returns the speed of an interface in Mbit/s, or 10 Gbit/s for an interface without a speed, such
 * as lo.
 */
long abi_interface_mbps(const char *netdev);

/* ---- abi_addr.c ------------------------------------------------------------------------------ */

/* Converts an address to a GID, an IPv4 address to ::ffff:a.b.c.d. */
void abi_gid_of_addr(const struct siw_addr *addr, union ibv_gid *gid);
/*
 * Converts a GID to an address with port 0, and a multicast GID that maps an IPv4 group to the IPv4
 * group.
 */
void abi_addr_of_gid(const struct abi_context *ctx, const union ibv_gid *gid,
		     struct siw_addr *addr);
/* Updates the GID table from the device's current addresses. Returns 0 or an errno value. */
int abi_refresh_gids(struct abi_context *ctx);
/*
 * Stores the address at an index of the GID table that the program queried last. Returns false if
 * there is no address at that index.
 */
bool abi_addr_of_gid_index(struct abi_context *ctx, unsigned int index, struct siw_addr *addr);
/*
 * Resolves an address vector to a destination and a source address. Returns 0 or EINVAL. source may
 * be NULL.
 */
int abi_ah_attr_to_addrs(struct abi_context *ctx, const struct ibv_ah_attr *attr,
			 struct siw_addr *dest, struct siw_addr *source);

/* ---- abi_cq_ex.c ----------------------------------------------------------------------------- */

/* Makes a CQ an extended CQ by setting the function pointers of struct ibv_cq_ex. */
void abi_cq_set_read_functions(struct abi_cq *cq, uint64_t wc_flags);
/* Makes the polling functions of an extended CQ fail, because the CQ is being destroyed. */
void abi_cq_disable_polling(struct abi_cq *cq);

/* ---- abi_qp.c -------------------------------------------------------------------------------- */

/* Creates a queue pair like ibv_create_qp, with additional attributes that only siwarp supports. */
struct ibv_qp *abi_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init,
			     const struct siw_qp_init_attr *more);
/* Creates a queue pair of a connection id like ibv_create_qp_ex. */
struct ibv_qp *abi_create_cm_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);

/* Stores queue pair attributes, which ibv_query_qp returns. */
void abi_store_qp_attr(struct abi_qp *qp, const struct ibv_qp_attr *attr, int mask);

/* ---- abi_modify.c, abi_qp_ex.c --------------------------------------------------------------- */

/*
 * Checks whether verbs allow a state transition with the given attribute mask. Returns 0 or EINVAL.
 * from and to: enum ibv_qp_state.
 */
int abi_check_qp_transition(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to,
			    int mask);
/*
 * Creates the builder of an extended QP, which builds lists of work requests, and sets the
 * functions of struct ibv_qp_ex. Returns 0 or an errno value.
 */
int abi_wr_builder_create(struct abi_qp *qp, uint64_t send_ops_flags);
/* Frees the builder that abi_wr_builder_create has made. Requests built afterwards are dropped. */
void abi_wr_builder_destroy(struct abi_qp *qp);
/* Converts a verbs bind request to the engine's. Returns 0 or EINVAL. */
int abi_convert_bind_info(const struct ibv_mw_bind_info *from, struct siw_mw_bind_info *to);

static inline struct abi_context *abi_context_of(struct ibv_context *context)
{
	return (struct abi_context *)((char *)context - offsetof(struct abi_context, v.context));
}

static inline struct abi_qp *abi_qp_of(struct ibv_qp *qp)
{
	return (struct abi_qp *)qp;
}

static inline struct abi_cq *abi_cq_of(struct ibv_cq *cq)
{
	return (struct abi_cq *)cq;
}

/* ---- abi_refuse.c ---------------------------------------------------------------------------- */

/*
 * Records a reason of this library for siw_reason() and the log. format: as in printf, without a
 * newline. The caller then fails with abi_fail() or abi_fail_null(). Returns err.
 */
int abi_refuse(int err, const char *format, ...) __attribute__((cold, format(printf, 2, 3)));

/*
 * Ends a refused call: logs the reason that the engine or abi_refuse() has recorded, and sets
 * errno. call: the function that the program called. Returns err.
 */
int abi_set_errno_and_log_refusal(const char *call, int err) __attribute__((cold));

#define abi_fail(err)	   abi_set_errno_and_log_refusal(__func__, (err))
#define abi_fail_null(err) (abi_set_errno_and_log_refusal(__func__, (err)), (void *)NULL)

/* Returns whether a mandatory pointer argument is not NULL; if it is NULL, records the reason. */
static inline bool abi_is_given(const void *argument, const char *name)
{
	return argument || !abi_refuse(EINVAL, "%s is NULL: pass a valid pointer", name);
}

/*
 * Returns whether a port number is valid, and otherwise records the reason. name: the parameter or
 * member with the number.
 */
static inline bool abi_is_port(uint32_t port, const char *name)
{
	return port == ABI_PORT ||
	       !abi_refuse(EINVAL, "%s is %u: a device has one port, with number 1", name, port);
}

/*
 * Converts a result of the engine (0 or a negative errno value) to the return value of a verbs
 * function.
 */
static inline int abi_errno_of_call(const char *call, int r)
{
	return r < 0 ? abi_set_errno_and_log_refusal(call, -r) : 0;
}
#define abi_errno_of_result(r) abi_errno_of_call(__func__, (r))

/*
 * Returns the result of a post to a queue that another thread is destroying or has just destroyed.
 * Such a request is accepted and dropped, and the reason is recorded. Programs such as Gloo rely on
 * the libraries of adapters, which write such a request to a queue that is no longer read.
 */
static inline int abi_post_dropped(void)
{
	siw_reason_destroyed();
	return 0;
}

#endif
