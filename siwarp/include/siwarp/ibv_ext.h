/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * <siwarp/ibv_ext.h> - for programs of libibverbs that run on siwarp's libibverbs.so.1: reliable
 * datagrams, Write-Records, the error queue and all else of <siwarp/siw_ext.h>, on the objects that
 * the program has from verbs.
 *
 * Each object of verbs has one of siwarp's behind it. These functions return that one, for calls of
 * <siwarp/siw.h> and <siwarp/siw_ext.h> that query, post or poll. The object stays verbs': destroy
 * it, change its state and resize it by ibv_ calls alone. Requests and completions of both have the
 * same layout. They return NULL with errno EINVAL for a handle that is none, or was destroyed.
 *
 * All are weak: where another libibverbs.so.1 is in the process they are NULL pointers, so
 *     if (siw_ibv_qp)
 * asks whether the program runs on siwarp.
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

SIW_IBV struct siw_context *siw_ibv_context(struct ibv_context *context);
SIW_IBV struct siw_pd *siw_ibv_pd(struct ibv_pd *pd);
SIW_IBV struct siw_mr *siw_ibv_mr(struct ibv_mr *mr);
SIW_IBV struct siw_cq *siw_ibv_cq(struct ibv_cq *cq);
SIW_IBV struct siw_qp *siw_ibv_qp(struct ibv_qp *qp);
SIW_IBV struct siw_srq *siw_ibv_srq(struct ibv_srq *srq);
/* Valid until ibv_destroy_ah. */
SIW_IBV struct siw_ah *siw_ibv_ah(struct ibv_ah *ah);

/*
 * As ibv_create_qp, with the members of more that struct ibv_qp_init_attr does not have: no_crc,
 * persona, error_policy, max_write_records, max_peers, peer_timeout_ms, private_messages,
 * keep_unexpected; the others of more are ignored. init->qp_type may be SIW_QPT_RD, too. Such a
 * queue pair takes the steps of UD by ibv_modify_qp; its requests name their peer in wr.rd of
 * struct siw_send_wr, so they are posted by siw_post_send. Errors: as siw_create_qp.
 */
SIW_IBV struct ibv_qp *siw_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init,
					 const struct siw_qp_init_attr *more);

/*
 * As ibv_create_qp_ex; an RC queue pair that siw_cm_bind_qp of <siwarp/cm.h> takes: it does not
 * connect by its peer's GID and number.
 */
SIW_IBV struct ibv_qp *siw_ibv_create_cm_qp(struct ibv_context *context,
					    struct ibv_qp_init_attr_ex *attr);

/*
 * The domain is one of ids of rdma_cm: in it, address handles without a GID and with LID 0 name the
 * device's own port, as rsockets do.
 */
SIW_IBV void siw_ibv_pd_of_ids(struct ibv_pd *pd);

/* rdma_cm has set these attributes of the queue pair: ibv_query_qp shows them. No other effect. */
SIW_IBV void siw_ibv_show_attr(struct ibv_qp *qp, const struct ibv_qp_attr *attr, int mask);

/* The queue pair of that context with that number; NULL: there is none. */
SIW_IBV struct ibv_qp *siw_ibv_find_qp(struct ibv_context *context, uint32_t qp_num);
/*
 * A dest_qp_num that is nobody's: ibv_modify_qp with it takes an RC queue pair to RTR, and then to
 * RTS, for a connection id, which really takes these steps when the connection is made.
 */
#define SIW_IBV_QPN_OF_CM 0xff0000

#undef SIW_IBV

#ifdef __cplusplus
}
#endif
#endif
