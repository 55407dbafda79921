/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/rdmacm/rdmacm_qp.c - queue pairs and shared receive queues of ids, and the CQs created for
 * them.
 */
#include <stdlib.h>

#include "abi/rdmacm/rdmacm.h"

#define ACK_TIMEOUT 14 /* time-out of 67 ms, in InfiniBand's encoding */

#define NO_DEVICE "the id has no device: call rdma_bind_addr or rdma_resolve_addr first"
#define OTHER_PD  "the PD belongs to another device than the id: pass NULL, or a PD of id->verbs"

static int cm_create_cq(struct rdma_cm_id *id, uint32_t wr, struct ibv_comp_channel **channel,
			struct ibv_cq **cq)
{
	*channel = ibv_create_comp_channel(id->verbs);
	if (!*channel)
		return -1;
	*cq = ibv_create_cq(id->verbs, wr ? (int)wr : 1, id, *channel, 0);
	return *cq ? 0 : -1;
}

static void cm_destroy_cq(struct ibv_comp_channel **channel, struct ibv_cq **cq)
{
	if (*cq)
		ibv_destroy_cq(*cq);
	if (*channel)
		ibv_destroy_comp_channel(*channel);
	*cq = NULL;
	*channel = NULL;
}

static void cm_destroy_cqs(struct rdma_cm_id *id)
{
	int why = errno;

	cm_destroy_cq(&id->send_cq_channel, &id->send_cq);
	if (!id->srq)
		cm_destroy_cq(&id->recv_cq_channel, &id->recv_cq);
	errno = why;
}

/* Creates the CQs that the program did not specify. Returns 0, or -1 with errno. */
static int create_missing_cqs(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	if (!attr->send_cq) {
		if (cm_create_cq(id, attr->cap.max_send_wr, &id->send_cq_channel, &id->send_cq))
			return -1;
		attr->send_cq = id->send_cq;
	}
	if (!attr->srq && id->srq)
		attr->srq = id->srq;
	if (!attr->recv_cq && id->srq && id->recv_cq)
		attr->recv_cq = id->recv_cq;
	if (!attr->recv_cq) {
		if (cm_create_cq(id, attr->cap.max_recv_wr, &id->recv_cq_channel, &id->recv_cq))
			return -1;
		attr->recv_cq = id->recv_cq;
	}
	return 0;
}

static int cm_create_qp(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_qp *qp;
	int r;

	if (id->qp || cm_id_of(id)->listening)
		return cm_fail(
			abi_refuse(EINVAL, "the id has a queue pair already, or is listening"));
	if (!id->verbs)
		return cm_fail(abi_refuse(ENODEV, NO_DEVICE));
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd) {
		attr->pd = id->pd;
		attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
	}
	if (!attr->pd || attr->pd->context != id->verbs)
		return cm_fail(abi_refuse(EINVAL, OTHER_PD));
	if (attr->qp_type != (cm_is_ud(cm_id_of(id)) ? IBV_QPT_UD : IBV_QPT_RC))
		return cm_fail(abi_refuse(EINVAL,
					  "qp_type is %d: ids of RDMA_PS_TCP require IBV_QPT_RC, "
					  "ids of RDMA_PS_UDP and RDMA_PS_IPOIB IBV_QPT_UD",
					  (int)attr->qp_type));
	if (create_missing_cqs(id, attr))
		goto failed;
	qp = siw_ibv_create_cm_qp(id->verbs, attr);
	if (!qp)
		goto failed;
	r = siw_cm_bind_qp(cm_id_of(id)->siw, siw_ibv_qp(qp));
	if (r < 0) {
		abi_fail(-r);
		ibv_destroy_qp(qp);
		errno = -r;
		goto failed;
	}
	qp->state = cm_is_ud(cm_id_of(id)) ? IBV_QPS_RTS : IBV_QPS_INIT;
	id->qp = qp;
	cm_id_of(id)->bound_qp = qp;
	id->pd = attr->pd;
	id->qp_type = attr->qp_type;
	return 0;

failed:
	cm_destroy_cqs(id);
	return -1;
}

int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	if (!cm_is_live_object(CM_ID, id) || !abi_is_given(attr, "attr"))
		return cm_fail(EINVAL);
	return cm_create_qp(id, attr);
}

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex ex = { 0 };
	int r;

	if (!cm_is_live_object(CM_ID, id) || !abi_is_given(attr, "attr"))
		return cm_fail(EINVAL);
	memcpy(&ex, attr, sizeof(*attr));
	ex.comp_mask = IBV_QP_INIT_ATTR_PD;
	ex.pd = pd;
	r = cm_create_qp(id, &ex);
	if (r == 0)
		memcpy(attr, &ex, sizeof(*attr));
	return r;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	if (!cm_is_live_object(CM_ID, id) || !id->qp)
		return;
	cm_leave_all_groups(cm_id_of(id));
	ibv_destroy_qp(id->qp);
	id->qp = NULL;
	cm_id_of(id)->bound_qp = NULL;
	cm_destroy_cqs(id);
}

struct ibv_qp *cm_get_substitute_qp(struct cm_id *id)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = cm_default_pd(id->id.verbs),
	};

	if (id->stand_in || !attr.pd)
		return id->stand_in;
	id->stand_in_cq = ibv_create_cq(id->id.verbs, 1, NULL, NULL, 0);
	attr.send_cq = attr.recv_cq = id->stand_in_cq;
	if (id->stand_in_cq)
		id->stand_in = siw_ibv_create_cm_qp(id->id.verbs, &attr);
	return id->stand_in;
}

void cm_destroy_substitute_qp(struct cm_id *id)
{
	if (id->stand_in)
		ibv_destroy_qp(id->stand_in);
	if (id->stand_in_cq)
		ibv_destroy_cq(id->stand_in_cq);
}

/* ---- shared receive queues ------------------------------------------------------------------- */

int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr)
{
	struct ibv_srq *srq;

	if (!cm_is_live_object(CM_ID, id) || !abi_is_given(attr, "attr"))
		return cm_fail(EINVAL);
	if (id->srq)
		return cm_fail(abi_refuse(EINVAL, "the id has a shared receive queue already"));
	if (!id->verbs)
		return cm_fail(abi_refuse(ENODEV, NO_DEVICE));
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd) {
		attr->pd = id->pd;
		attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
	}
	if (attr->pd->context != id->verbs)
		return cm_fail(abi_refuse(EINVAL, OTHER_PD));
	srq = ibv_create_srq_ex(id->verbs, attr);
	if (!srq)
		return -1;
	id->srq = srq;
	id->pd = attr->pd;
	return 0;
}

int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq_init_attr_ex ex = { 0 };
	int r;

	if (!abi_is_given(attr, "attr"))
		return cm_fail(EINVAL);
	memcpy(&ex, attr, sizeof(*attr));
	ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
	ex.srq_type = IBV_SRQT_BASIC;
	ex.pd = pd;
	r = rdma_create_srq_ex(id, &ex);
	if (r == 0)
		memcpy(attr, &ex, sizeof(*attr));
	return r;
}

void rdma_destroy_srq(struct rdma_cm_id *id)
{
	if (!cm_is_live_object(CM_ID, id) || !id->srq)
		return;
	if (ibv_destroy_srq(id->srq))
		return;
	id->srq = NULL;
	if (!id->qp)
		cm_destroy_cq(&id->recv_cq_channel, &id->recv_cq);
}

/* ---- attributes ------------------------------------------------------------------------------ */

/*
 * Fills in the attributes of the transition to state attr->qp_state. Returns 0, or EINVAL for an
 * unsupported state.
 */
static int fill_qp_transition_attr(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	*mask = IBV_QP_STATE;
	switch (attr->qp_state) {
	case IBV_QPS_INIT:
		attr->pkey_index = 0;
		attr->port_num = ABI_PORT;
		attr->qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
					IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
		*mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
		return 0;
	case IBV_QPS_RTR:
		attr->ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = ABI_PORT };
		attr->ah_attr.grh.dgid = id->id.route.addr.addr.ibaddr.dgid;
		attr->path_mtu = IBV_MTU_1024;
		attr->dest_qp_num = SIW_IBV_QPN_OF_CM;
		attr->rq_psn = 0;
		attr->max_dest_rd_atomic = id->resources;
		attr->min_rnr_timer = CM_RNR_TIMER;
		*mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		return 0;
	case IBV_QPS_RTS:
		attr->timeout = id->ack_timeout ? id->ack_timeout : ACK_TIMEOUT;
		attr->retry_cnt = attr->rnr_retry = CM_RETRIES;
		attr->sq_psn = 0;
		attr->max_rd_atomic = id->depth;
		*mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			 IBV_QP_MAX_QP_RD_ATOMIC;
		return 0;
	default:
		return abi_refuse(EINVAL,
				  "qp_state is %d: use IBV_QPS_INIT, IBV_QPS_RTR or "
				  "IBV_QPS_RTS",
				  (int)attr->qp_state);
	}
}

void cm_store_rts_attrs_for_query(const struct cm_id *id)
{
	struct ibv_qp_attr attr;
	int mask;

	for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		attr = (struct ibv_qp_attr){ .qp_state = (enum ibv_qp_state)state };
		if (fill_qp_transition_attr(id, &attr, &mask) == 0)
			siw_ibv_show_attr(id->id.qp, &attr, mask);
	}
}

/*
 * Returns attributes for a queue pair that the program has created itself. ibv_modify_qp only
 * stores the attributes; the id moves the queue pair to RTR and RTS when the connection is
 * established.
 */
int rdma_init_qp_attr(struct rdma_cm_id *rdma_id, struct ibv_qp_attr *attr, int *mask)
{
	struct cm_id *id = cm_id_of(rdma_id);
	int why;

	if (!cm_is_live_object(CM_ID, rdma_id) || !abi_is_given(attr, "qp_attr") ||
	    !abi_is_given(mask, "qp_attr_mask"))
		return cm_fail(EINVAL);
	if (!id->id.verbs)
		return cm_fail(abi_refuse(EINVAL, NO_DEVICE));
	if (cm_is_ud(id))
		return cm_ud_fill_transition_attr(id, attr, mask);
	why = fill_qp_transition_attr(id, attr, mask);
	return why ? cm_fail(why) : 0;
}
