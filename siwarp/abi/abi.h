/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/abi.h - libibverbs.so.1 over <siwarp/siw.h>: the binary interface that programs for RDMA are
 * compiled against.
 *
 * Each object of verbs is one of the engine's with the struct of <infiniband/verbs.h> in front. Work
 * requests, elements and completions have equal layouts on both sides (abi_layout.c checks that), so
 * posting and polling are a cast and a call. Nothing here moves data or keeps protocol state.
 *
 * Functions return as their man pages say: 0 or a positive errno value, or NULL, or -1, with errno.
 */
#ifndef SIWARP_ABI_ABI_H
#define SIWARP_ABI_ABI_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Only these leave the library: everything else is built hidden. */
#pragma GCC visibility push(default)
#include <infiniband/verbs.h>
#pragma GCC visibility pop

#include <siwarp/siw.h>
#include <siwarp/siw_ext.h>

/* The header makes macros of these. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define ABI_EXPORT  __attribute__((visibility("default")))
#define ABI_PORT    1	   /* a device has one port */
#define ABI_GIDS    16	   /* length of its GID table: as many addresses as siw_device_info has */
#define ABI_PKEY    0xffff /* the one partition: the default one, full member */
#define ABI_MIN_WR  32	   /* a queue that is asked for has room for at least so many requests */
#define ABI_MIN_CQE 256	   /* a completion queue for at least so many completions */
#define ABI_INLINE  64	   /* octets that each request may have inline, asked for or not */

/* Rights that change nothing where no memory is pinned, as on-demand paging; and hints. */
#define ABI_ACCESS_IGNORED                         \
	((unsigned int)IBV_ACCESS_OPTIONAL_RANGE | \
	 (unsigned int)(IBV_ACCESS_HUGETLB | IBV_ACCESS_ON_DEMAND))

/*
 * A signal ended a wait. Whether waiting goes on, as the system's own calls do (SA_RESTART): each
 * handler of the program asks for that. Which one ran nobody tells.
 */
bool abi_restarts(void);

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
	ABI_AH, /* lies in the engine's memory, in front of its struct siw_ah */
	ABI_TD,
	ABI_BUF,
	ABI_LIST, /* of ibv_get_device_list; its memory is malloc's */
	ABI_KINDS,
};

struct abi_device {
	struct ibv_device ibv; /* first */
	struct siw_device_info info;
	uint64_t guid_be;
	int ifindex;
	atomic_int users; /* lists and contexts that have it */
};

/* A descriptor that ibv_import_device was given: it is closed with that import. */
struct abi_import {
	struct abi_import *next;
	int fd;
};

/* What was mapped for a dma-buf: until its region is deregistered, or the device closed. */
struct abi_mapping {
	struct abi_mapping *next;
	void *addr;
	size_t size;
};

struct abi_context {
	struct verbs_context v; /* first; programs have &v.context */
	struct siw_context *siw;
	struct abi_device *device;
	unsigned int forks;	     /* abi_forks when it was opened */
	pthread_mutex_t lock;	     /* for the rest */
	struct siw_device_info info; /* when the program last looked at the port or its GIDs */
	struct abi_import *imports;
	struct abi_mapping *mappings;
};

struct abi_pd {
	struct ibv_pd ibv; /* first */
	struct siw_pd *siw;
	struct abi_pd *parent_of; /* NULL, or the domain that this parent domain stands for */
	struct abi_td *td;
	atomic_uint users; /* parent domains of it */
	bool of_ids;	   /* siw_ibv_pd_of_ids */
};

struct abi_td {
	struct ibv_td ibv; /* first */
	atomic_uint users;
};

/* Memory of ibv_alloc_buf, which outlives its device until ibv_free_buf. */
struct abi_buf {
	struct ibv_context *context; /* first */
	struct ibv_pd *pd;
	void *addr;
	size_t size;
};

struct abi_mr {
	struct ibv_mr ibv; /* first */
	struct siw_mr *siw;
	uint64_t iova;
	unsigned int access;
	struct abi_mapping *mapping; /* NULL, or a dma-buf's */
};

struct abi_mw {
	struct ibv_mw ibv; /* first */
	struct siw_mw *siw;
};

struct abi_channel {
	struct ibv_comp_channel ibv; /* first */
	struct siw_comp_channel *siw;
};

struct abi_cq {
	struct ibv_cq_ex ibv; /* first; begins as struct ibv_cq does */
	struct siw_cq *siw;
	struct ibv_wc wc;	 /* between start_poll and end_poll: the completion read */
	pthread_mutex_t polling; /* held between them, unless single_threaded */
	bool single_threaded;
	bool open;			     /* start_poll was called; under polling */
	unsigned int forks;		     /* abi_forks when it was made */
	uint64_t wc_flags;		     /* enum ibv_create_cq_wc_flags */
	uint64_t monotonic_ns, wallclock_ns; /* when wc was taken */
};

struct abi_srq {
	struct ibv_srq ibv; /* first */
	struct siw_srq *siw;
	atomic_bool ending; /* ibv_destroy_srq has begun */
};

struct abi_builder;

struct abi_qp {
	struct ibv_qp_ex ibv; /* first; begins as struct ibv_qp does */
	struct siw_qp *siw;
	atomic_bool ending;	     /* ibv_destroy_qp has begun */
	struct abi_builder *builder; /* NULL: made without send_ops_flags */
	pthread_mutex_t lock;	     /* for of_cm, set, ece and the state in ibv */
	struct ibv_qp_cap cap;	     /* granted */
	int sq_sig_all;
	bool by_cm; /* a connection id connects it, not its peer's GID and number */
	bool of_cm; /* ibv_modify_qp was told so: its state from RTR on is what the program set */
	struct ibv_qp_attr set; /* what the program set and the engine does not store */
	struct ibv_ece ece;
};

/* ---- abi_object.c: which handles are alive --------------------------------------------------- */

/*
 * How often this process is a child of fork(). A lock that was made before may be another thread's
 * for ever: who finds another number in its object must not take it, but say ESTALE.
 */
extern unsigned int abi_forks;
/* Makes a mutex that says so when its owner takes it again, or another releases it. */
void abi_own_lock(pthread_mutex_t *mutex);
/* Zeroed memory of that kind, or NULL with errno ENOMEM. It is never given back to malloc. */
void *abi_alloc(enum abi_kind kind);
/* Memory of abi_alloc that abi_add was never called for, or that abi_end has ended. */
void abi_free(enum abi_kind kind, void *memory);
/* From now on handle is alive; owner may be NULL. false with errno ENOMEM. */
bool abi_add(enum abi_kind kind, void *handle, struct ibv_context *owner);
/* Whether handle is an object of that kind that is alive; false with errno EINVAL. */
bool abi_live(enum abi_kind kind, const void *handle);
/*
 * handle is dead: its calls fail with EINVAL, also those that a program's inline code makes. false:
 * another thread was first.
 */
bool abi_end(enum abi_kind kind, void *handle);
/* Ends every object of the context, and the context: as abi_end. */
bool abi_end_all(struct ibv_context *context);
/* Calls visit for each object of that kind until it returns true; the object, or NULL. */
void *abi_find(enum abi_kind kind, bool (*visit)(void *handle, const void *wanted),
	       const void *wanted);

/* ---- abi_context.c --------------------------------------------------------------------------- */

/* The context of dead objects, whose every function refuses with EINVAL. */
extern struct verbs_context abi_dead_context;

/* ---- abi_newer.c ----------------------------------------------------------------------------- */

/*
 * Makes of a function one that programs know by that name in that version, as the default one.
 * Functions that rdma-core has got since 44 are made so, since the headers may declare them or not.
 */
#define ABI_VERSION(of, name, node) __asm__(".symver " #of "," #name "@@IBVERBS_" #node)

/* ---- abi_buf.c ------------------------------------------------------------------------------- */

/* Whether it is of that domain, and the range lies within it. */
bool abi_buf_has(const struct abi_buf *buf, const struct ibv_pd *pd, const void *addr,
		 size_t length);

/* ---- abi_dmabuf.c ---------------------------------------------------------------------------- */

/* Maps length octets of a dma-buf, from offset on; *at is where they are. NULL with errno. */
struct abi_mapping *abi_map(struct abi_context *ctx, int fd, uint64_t offset, size_t length,
			    bool writable, void **at);
void abi_unmap(struct abi_context *ctx, struct abi_mapping *mapping);
/* Unmaps a list of mappings. */
void abi_unmap_all(struct abi_mapping *mappings);

/* ---- the tables of functions ----------------------------------------- */

int abi_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			struct ibv_device_attr_ex *attr, size_t size);
int abi_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values);
int abi_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr,
		   size_t size);
struct ibv_mw *abi_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int abi_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int abi_dealloc_mw(struct ibv_mw *mw);
struct ibv_mr *abi_alloc_null_mr(struct ibv_pd *pd);
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

void abi_device_get(struct abi_device *device);
void abi_device_put(struct abi_device *device);
/* Whether programs see adapters for Ethernet (persona roce, the default), or iWARP's. */
bool abi_roce(void);

/* ---- abi_port.c ------------------------------------------------------------------------------ */

/* The interface's speed in Mbit/s; what has none, as lo, is said to have a lane of 10 Gbit/s. */
long abi_speed(const char *netdev);

/* ---- abi_addr.c ------------------------------------------------------------------------------ */

/* The GID of an address: IPv4 as ::ffff:a.b.c.d. */
void abi_gid_of_addr(const struct siw_addr *addr, union ibv_gid *gid);
/* The address of a GID, port 0; of a multicast GID that maps an IPv4 group, that group. */
void abi_addr_of_gid(const struct abi_context *ctx, const union ibv_gid *gid,
		     struct siw_addr *addr);
/* The addresses of the device now, as the GID table has them: 0 or an errno value. */
int abi_refresh(struct abi_context *ctx);
/* The address at index of the table, as the program last saw it; false: there is none. */
bool abi_source(struct abi_context *ctx, unsigned int index, struct siw_addr *addr);
/* What an address vector names: 0 or EINVAL. source may be NULL. */
int abi_addrs_of_attr(struct abi_context *ctx, const struct ibv_ah_attr *attr,
		      struct siw_addr *dest, struct siw_addr *source);

/* ---- abi_cq_ex.c ----------------------------------------------------------------------------- */

/* Makes it an extended queue: fills the functions of struct ibv_cq_ex. */
void abi_cq_readers(struct abi_cq *cq, uint64_t wc_flags);
/* Polling it is refused from now on. */
void abi_cq_end(struct abi_cq *cq);

/* ---- abi_qp.c -------------------------------------------------------------------------------- */

/* As ibv_create_qp, with what only siwarp has. */
struct ibv_qp *abi_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init,
			     const struct siw_qp_init_attr *more);
/* As ibv_create_qp_ex, for a connection id. */
struct ibv_qp *abi_create_cm_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);

/* Attributes that ibv_query_qp shows from now on. */
void abi_remember(struct abi_qp *qp, const struct ibv_qp_attr *attr, int mask);

/* ---- abi_modify.c, abi_qp_ex.c --------------------------------------------------------------- */

/* Whether verbs allow the step with that mask: 0 or EINVAL. from and to: enum ibv_qp_state. */
int abi_step_allowed(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, int mask);
/* Fills the functions of struct ibv_qp_ex: 0 or an errno value. */
int abi_builder_make(struct abi_qp *qp, uint64_t send_ops_flags);
/* Frees what abi_builder_make made; the functions refuse from now on. */
void abi_builder_end(struct abi_qp *qp);
/* Makes the engine's bind of verbs' one: 0 or EINVAL. */
int abi_bind_info(const struct ibv_mw_bind_info *from, struct siw_mw_bind_info *to);

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

/* What the engine answered, a negative errno value or 0, as verbs return it. */
static inline int abi_result(int r)
{
	if (r >= 0)
		return 0;
	errno = -r;
	return -r;
}

/*
 * Of a post to a queue that is destroyed by another thread, or was just before. Adapters' libraries
 * write such a request to a queue that nobody reads, so programs rely on it (Gloo does): it is
 * accepted and dropped. The reason is recorded.
 */
static inline int abi_post_dropped(void)
{
	siw_reason_destroyed();
	return 0;
}

static inline int abi_fail(int why)
{
	errno = why;
	return why;
}

static inline void *abi_null(int why)
{
	errno = why;
	return NULL;
}

#endif
