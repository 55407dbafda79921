/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * <siwarp/ibv_ext.h> - siwarp's extensions for programs that use siwarp's libibverbs.so.1. They may
 * use reliable datagrams, Write-Records, the error queue and all other functions of
 * <siwarp/siw_ext.h> on objects that were created by verbs.
 *
 * Each verbs object is backed by a siwarp object. The functions below return the siwarp object, for
 * use with the query, post and poll functions of <siwarp/siw.h> and <siwarp/siw_ext.h>. The object
 * remains owned by verbs: only ibv_ functions may destroy it, change its state or resize it. Work
 * requests and completions have the same layout in both interfaces. For an invalid or destroyed
 * handle the functions return NULL and set errno to EINVAL.
 *
 * All functions are weak symbols: if the process has loaded another libibverbs.so.1, they are NULL
 * pointers, so a program can test whether it runs on siwarp by
 *
 *     if (siw_ibv_qp)
 */
#ifndef SIWARP_IBV_EXT_H
#define SIWARP_IBV_EXT_H

#include <infiniband/verbs.h>

#include <siwarp/siw.h>
#include <siwarp/siw_ext.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef SIWARP_IBV_EXT_DEFINES
#define SIW_IBV __attribute__((visibility("default")))
#else
#define SIW_IBV __attribute__((weak))
#endif

/* Returns the siwarp object of a device context. */
SIW_IBV struct siw_context *siw_ibv_context(struct ibv_context *context);
/* Returns the siwarp object of a protection domain. */
SIW_IBV struct siw_pd *siw_ibv_pd(struct ibv_pd *pd);
/* Returns the siwarp object of a memory region. */
SIW_IBV struct siw_mr *siw_ibv_mr(struct ibv_mr *mr);
/* Returns the siwarp object of a completion queue. */
SIW_IBV struct siw_cq *siw_ibv_cq(struct ibv_cq *cq);
/* Returns the siwarp object of a queue pair. */
SIW_IBV struct siw_qp *siw_ibv_qp(struct ibv_qp *qp);
/* Returns the siwarp object of a shared receive queue. */
SIW_IBV struct siw_srq *siw_ibv_srq(struct ibv_srq *srq);
/* Returns the siwarp object of an address handle, valid until ibv_destroy_ah. */
SIW_IBV struct siw_ah *siw_ibv_ah(struct ibv_ah *ah);

/*
 * Creates a queue pair like ibv_create_qp, with additional attributes from these members of *more:
 * no_crc, persona, error_policy, max_write_records, max_peers, peer_timeout_ms, private_messages,
 * keep_unexpected. Other members of *more are ignored. init->qp_type may also be SIW_QPT_RD. An RD
 * queue pair is moved through the states of UD by ibv_modify_qp, and its requests are posted by
 * siw_post_send, because RD requests contain their peer in wr.rd of struct siw_send_wr. Errors: as
 * siw_create_qp.
 */
SIW_IBV struct ibv_qp *siw_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init,
					 const struct siw_qp_init_attr *more);

/*
 * Creates an RC queue pair like ibv_create_qp_ex, for siw_cm_bind_qp of <siwarp/cm.h>. The queue
 * pair cannot be connected by GID and QPN.
 */
SIW_IBV struct ibv_qp *siw_ibv_create_cm_qp(struct ibv_context *context,
					    struct ibv_qp_init_attr_ex *attr);

/*
 * Marks a protection domain as used by rdma_cm ids. In a marked domain an address handle without a
 * GID and with LID 0 refers to the device's own port, as rsockets expects.
 */
SIW_IBV void siw_ibv_pd_of_ids(struct ibv_pd *pd);

/* Stores attributes that rdma_cm has set, only so that ibv_query_qp returns them. */
SIW_IBV void siw_ibv_show_attr(struct ibv_qp *qp, const struct ibv_qp_attr *attr, int mask);

/* Returns the queue pair with number qp_num of the context, or NULL if there is none. */
SIW_IBV struct ibv_qp *siw_ibv_find_qp(struct ibv_context *context, uint32_t qp_num);
/*
 * A reserved dest_qp_num that no queue pair has. After ibv_modify_qp with this number an RC queue
 * pair of a connection id is reported in RTR and then RTS; the real transitions happen when the
 * connection is established.
 */
#define SIW_IBV_QPN_OF_CM 0xff0000

#undef SIW_IBV

#ifdef __cplusplus
}
#endif
#endif
