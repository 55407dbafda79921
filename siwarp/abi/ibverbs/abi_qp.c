/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_qp.c - queue pairs: creation and destruction, states and attributes, multicast,
 * posting.
 */
#include "abi/ibverbs/abi.h"

#define SIWARP_IBV_EXT_DEFINES
#include <siwarp/ibv_ext.h>

/* Attribute mask bits that have the same names and values in the engine. */
#define SAME_MASKS                                                                            \
	(IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY | IBV_QP_ACCESS_FLAGS | \
	 IBV_QP_QKEY | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |      \
	 IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER |  \
	 IBV_QP_SQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_DEST_QPN | IBV_QP_RATE_LIMIT)
#define KNOWN_MASKS                                                                               \
	(SAME_MASKS | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | \
	 IBV_QP_CAP)

_Static_assert((int)IBV_QP_DEST_QPN == (int)SIW_QP_DEST_QPN, "masks");
_Static_assert((int)IBV_QP_RATE_LIMIT == (int)SIW_QP_RATE_LIMIT, "masks");
_Static_assert((int)IBV_QP_SQ_PSN == (int)SIW_QP_SQ_PSN, "masks");
_Static_assert((int)IBV_QPS_ERR == (int)SIW_QPS_ERR, "states");

/* Rounds a non-zero queue size up to ABI_MIN_WR, as adapters do. */
static uint32_t raise_to_minimum_queue_size(uint32_t wr)
{
	return wr > 0 && wr < ABI_MIN_WR ? ABI_MIN_WR : wr;
}

static int qp_init_attr_to_engine(const struct ibv_pd *pd, const struct ibv_qp_init_attr *init,
				  struct abi_qp *qp, struct siw_qp_init_attr *out)
{
	if (!abi_is_given(init->send_cq, "send_cq") || !abi_is_given(init->recv_cq, "recv_cq") ||
	    !abi_is_live_object(ABI_CQ, init->send_cq) ||
	    !abi_is_live_object(ABI_CQ, init->recv_cq) ||
	    (init->srq && !abi_is_live_object(ABI_SRQ, init->srq)))
		return EINVAL;
	if (init->send_cq->context != pd->context || init->recv_cq->context != pd->context ||
	    (init->srq && init->srq->context != pd->context))
		return abi_refuse(EINVAL, "send_cq, recv_cq or srq belongs to another device "
					  "context than the PD: create all on one context");
	*out = (struct siw_qp_init_attr){
		.qp_context = qp,
		.send_cq = abi_cq_of(init->send_cq)->siw,
		.recv_cq = abi_cq_of(init->recv_cq)->siw,
		.srq = init->srq ? ((struct abi_srq *)init->srq)->siw : NULL,
		.cap = {
			.max_send_wr = raise_to_minimum_queue_size(init->cap.max_send_wr),
			.max_recv_wr = raise_to_minimum_queue_size(init->cap.max_recv_wr),
			.max_send_sge = init->cap.max_send_sge,
			.max_recv_sge = init->cap.max_recv_sge,
			.max_inline_data = init->cap.max_inline_data > ABI_INLINE
						   ? init->cap.max_inline_data
						   : ABI_INLINE,
		},
		.qp_type = (int)init->qp_type,
		.sq_sig_all = init->sq_sig_all != 0,
		.persona = abi_persona_is_roce() ? SIW_PERSONA_ROCE : SIW_PERSONA_IWARP,
		.by_qpn = init->qp_type == IBV_QPT_RC && !qp->by_cm,
		.grh = init->qp_type == IBV_QPT_UD,
		.every_addr = init->qp_type == IBV_QPT_UD || init->qp_type == IBV_QPT_UC,
	};
	return 0;
}

static int check_qp_type(const struct ibv_qp_init_attr *init)
{
	switch (init->qp_type) {
	case IBV_QPT_RC:
	case IBV_QPT_UD:
		return 0;
	case IBV_QPT_UC: /* ibv_create_qp(3): UC has no shared receive queue */
		return init->srq ? abi_refuse(EINVAL, "a UC queue pair has no SRQ: set srq to NULL")
				 : 0;
	case IBV_QPT_RAW_PACKET:
	case IBV_QPT_XRC_SEND:
	case IBV_QPT_XRC_RECV:
	case IBV_QPT_DRIVER:
		return abi_refuse(EOPNOTSUPP,
				  "siwarp has no raw packet, XRC or driver queue pairs: use "
				  "IBV_QPT_RC, IBV_QPT_UC or IBV_QPT_UD");
	default:
		return abi_refuse(EINVAL, "qp_type is %d: use IBV_QPT_RC, IBV_QPT_UC or IBV_QPT_UD",
				  (int)init->qp_type);
	}
}

static void qp_init_public_members(struct abi_qp *qp, struct ibv_pd *pd,
				   const struct ibv_qp_init_attr *init)
{
	struct ibv_qp *ibv = &qp->ibv.qp_base;

	ibv->context = pd->context;
	ibv->qp_context = init->qp_context;
	ibv->pd = pd;
	ibv->send_cq = init->send_cq;
	ibv->recv_cq = init->recv_cq;
	ibv->srq = init->srq;
	ibv->qp_num = siw_qp_num(qp->siw);
	ibv->handle = ibv->qp_num;
	ibv->state = IBV_QPS_RESET;
	ibv->qp_type = init->qp_type;
	pthread_mutex_init(&ibv->mutex, NULL);
	pthread_cond_init(&ibv->cond, NULL);
	pthread_mutex_init(&qp->lock, NULL);
	qp->sq_sig_all = init->sq_sig_all;
}

/* Copies the attributes that only siwarp supports (<siwarp/ibv_ext.h>). */
static void qp_copy_extension_attrs(struct siw_qp_init_attr *wanted,
				    const struct siw_qp_init_attr *more)
{
	wanted->no_crc = more->no_crc;
	if (more->persona)
		wanted->persona = more->persona;
	wanted->error_policy = more->error_policy;
	wanted->max_write_records = more->max_write_records;
	wanted->max_peers = more->max_peers;
	wanted->peer_timeout_ms = more->peer_timeout_ms;
	wanted->keep_unexpected = more->keep_unexpected;
}

/*
 * Creates a queue pair. by_cm: a connection id connects the queue pair. ops_flags: NULL, or the
 * send_ops_flags of an extended queue pair. more: NULL, or the attributes that only siwarp
 * supports.
 */
static struct ibv_qp *qp_create(struct ibv_pd *pd, struct ibv_qp_init_attr *init, bool by_cm,
				const uint64_t *ops_flags, const struct siw_qp_init_attr *more)
{
	struct siw_qp_init_attr wanted;
	struct abi_qp *qp;
	int why;

	if (!abi_is_live_object(ABI_PD, pd) || !abi_is_given(init, "qp_init_attr"))
		return abi_fail_null(EINVAL);
	why = more && (int)init->qp_type == SIW_QPT_RD ? 0 : check_qp_type(init);
	if (why)
		return abi_fail_null(why);
	qp = abi_alloc_object(ABI_QP);
	if (!qp)
		return NULL;
	qp->by_cm = by_cm;
	why = qp_init_attr_to_engine(pd, init, qp, &wanted);
	if (why)
		goto no_engine;
	if (more)
		qp_copy_extension_attrs(&wanted, more);
	qp->siw = siw_create_qp(((struct abi_pd *)pd)->siw, &wanted);
	if (!qp->siw) {
		why = errno;
		goto no_engine;
	}
	memcpy(&qp->cap, &wanted.cap, sizeof(qp->cap));
	qp_init_public_members(qp, pd, init);
	why = ops_flags ? abi_wr_builder_create(qp, *ops_flags) : 0;
	if (!why && !abi_register_handle(ABI_QP, qp, pd->context))
		why = ENOMEM;
	if (!why) {
		init->cap = qp->cap;
		return &qp->ibv.qp_base;
	}
	siw_destroy_qp(qp->siw);
	abi_wr_builder_destroy(qp);
no_engine:
	abi_free_object(ABI_QP, qp);
	return abi_fail_null(why);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	return qp_create(pd, init, false, NULL, NULL);
}

struct ibv_qp *abi_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init,
			     const struct siw_qp_init_attr *more)
{
	return qp_create(pd, init, false, NULL, more);
}

static struct ibv_qp *qp_create_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
				   bool by_cm)
{
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS |
			       IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	bool extended;

	if (!abi_is_live_object(ABI_CONTEXT, context) || !abi_is_given(attr, "qp_init_attr_ex"))
		return abi_fail_null(EINVAL);
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD))
		return abi_fail_null(abi_refuse(EINVAL, "comp_mask lacks IBV_QP_INIT_ATTR_PD: set "
							"pd and this bit"));
	if (!abi_is_live_object(ABI_PD, attr->pd))
		return abi_fail_null(EINVAL);
	if (attr->pd->context != context)
		return abi_fail_null(abi_refuse(EINVAL, "pd belongs to another device context"));
	if (attr->comp_mask & ~known ||
	    (attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && attr->create_flags))
		return abi_fail_null(abi_refuse(EOPNOTSUPP,
						"siwarp does not support XRC, receive side "
						"scaling, TSO or create_flags: comp_mask %#x may "
						"contain PD and SEND_OPS_FLAGS",
						attr->comp_mask));
	extended = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	return qp_create(attr->pd, (struct ibv_qp_init_attr *)attr, by_cm,
			 extended ? &attr->send_ops_flags : NULL, NULL);
}

struct ibv_qp *abi_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	return qp_create_ex(context, attr, false);
}

struct ibv_qp *abi_create_cm_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	return qp_create_ex(context, attr, true);
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	return abi_is_live_object(ABI_QP, qp) && abi_qp_of(qp)->builder ? &abi_qp_of(qp)->ibv
									: NULL;
}

int ibv_destroy_qp(struct ibv_qp *ibv)
{
	int r;

	if (!abi_is_live_object(ABI_QP, ibv))
		return abi_fail(EINVAL);
	atomic_store(&abi_qp_of(ibv)->ending, true);
	r = siw_destroy_qp(abi_qp_of(ibv)->siw);
	if (r == 0)
		abi_mark_object_dead(ABI_QP, ibv);
	else
		atomic_store(&abi_qp_of(ibv)->ending, false);
	return abi_errno_of_result(r);
}

/* ---- states and attributes ------------------------------------------------------------------- */

static bool qp_supports_rate_limit(const struct ibv_qp *qp)
{
	return qp->qp_type == IBV_QPT_UD || qp->qp_type == IBV_QPT_UC;
}

/*
 * Checks attribute values that the engine does not check, or does not check in the requested state
 * transition.
 */
static int qp_check_attr(const struct ibv_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	if (mask & ~KNOWN_MASKS)
		return abi_refuse(EINVAL,
				  "attr_mask %#x contains unknown bits: use a set of enum "
				  "ibv_qp_attr_mask",
				  mask);
	/* The rate of an RC queue pair is controlled by TCP alone. */
	if (mask & IBV_QP_RATE_LIMIT && !qp_supports_rate_limit(qp))
		return abi_refuse(EOPNOTSUPP, "only UD and UC queue pairs have a rate limit: omit "
					      "IBV_QP_RATE_LIMIT");
	if (mask & (IBV_QP_ALT_PATH | IBV_QP_CAP) ||
	    (mask & IBV_QP_PATH_MIG_STATE && attr->path_mig_state != IBV_MIG_MIGRATED))
		return abi_refuse(EOPNOTSUPP,
				  "siwarp has no alternate paths and does not resize queues: omit "
				  "IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE and IBV_QP_CAP");
	if (mask & IBV_QP_PORT && !abi_is_port(attr->port_num, "port_num"))
		return EINVAL;
	if (mask & IBV_QP_PKEY_INDEX && attr->pkey_index != 0)
		return abi_refuse(EINVAL, "pkey_index is %u: the only P_Key has index 0",
				  attr->pkey_index);
	if (mask & IBV_QP_PATH_MTU &&
	    (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > IBV_MTU_4096))
		return abi_refuse(EINVAL,
				  "path_mtu is %d: use a value of enum ibv_mtu, which is a code "
				  "from 1 (IBV_MTU_256) to 5 (IBV_MTU_4096)",
				  (int)attr->path_mtu);
	if (mask & IBV_QP_DEST_QPN && attr->dest_qp_num > 0xffffff)
		return abi_refuse(EINVAL,
				  "dest_qp_num %#x exceeds 24 bits: use qp_num of the peer's queue "
				  "pair, in host byte order",
				  attr->dest_qp_num);
	return 0;
}

/*
 * Stores attributes that the program has set, which ibv_query_qp returns. The engine does not store
 * these attributes for all QP types.
 */
static void qp_store_attr(struct ibv_qp_attr *set, const struct ibv_qp_attr *attr, int mask)
{
#define REMEMBER(bit, member) \
	if (mask & (bit))     \
	set->member = attr->member
	REMEMBER(IBV_QP_PKEY_INDEX, pkey_index);
	REMEMBER(IBV_QP_PORT, port_num);
	REMEMBER(IBV_QP_AV, ah_attr);
	REMEMBER(IBV_QP_PATH_MTU, path_mtu);
	REMEMBER(IBV_QP_TIMEOUT, timeout);
	REMEMBER(IBV_QP_RETRY_CNT, retry_cnt);
	REMEMBER(IBV_QP_RNR_RETRY, rnr_retry);
	REMEMBER(IBV_QP_RQ_PSN, rq_psn);
	REMEMBER(IBV_QP_SQ_PSN, sq_psn);
	REMEMBER(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	REMEMBER(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	REMEMBER(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	REMEMBER(IBV_QP_DEST_QPN, dest_qp_num);
	REMEMBER(IBV_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify);
#undef REMEMBER
}

void abi_store_qp_attr(struct abi_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	pthread_mutex_lock(&qp->lock);
	qp_store_attr(&qp->set, attr, mask);
	pthread_mutex_unlock(&qp->lock);
}

static int qp_attr_to_engine(struct ibv_qp *qp, const struct ibv_qp_attr *attr, int mask,
			     struct siw_qp_attr *out)
{
	*out = (struct siw_qp_attr){
		.qp_state = (int)attr->qp_state,
		.cur_qp_state = (int)attr->cur_qp_state,
		.qkey = attr->qkey,
		/*
		 * MW_BIND is an access right of regions, but DAPL sets MW_BIND for queue pairs,
		 * too.
		 */
		.qp_access_flags =
			(int)(attr->qp_access_flags & ~(ABI_ACCESS_IGNORED | IBV_ACCESS_MW_BIND)),
		.en_sqd_async_notify = attr->en_sqd_async_notify,
		.max_rd_atomic = attr->max_rd_atomic,
		.max_dest_rd_atomic = attr->max_dest_rd_atomic,
		.rnr_retry = attr->rnr_retry,
		.min_rnr_timer = attr->min_rnr_timer,
		.path_mtu = (int)attr->path_mtu,
		.dest_qp_num = attr->dest_qp_num,
		.rq_psn = attr->rq_psn,
		.sq_psn = attr->sq_psn,
		.timeout = attr->timeout,
		.retry_cnt = attr->retry_cnt,
		.rate_limit = attr->rate_limit,
	};
	if (mask & IBV_QP_AV)
		return abi_ah_attr_to_addrs(abi_context_of(qp->context), &attr->ah_attr,
					    &out->ah_addr, &out->ah_source);
	return 0;
}

/*
 * Returns the state that ibv_query_qp reports. The engine keeps the queue pair of a connection id
 * in INIT until the connection is established.
 */
static enum ibv_qp_state qp_visible_state(struct abi_qp *own, int engine)
{
	enum ibv_qp_state state = (enum ibv_qp_state)engine;

	pthread_mutex_lock(&own->lock);
	if (own->of_cm && engine == SIW_QPS_INIT)
		state = own->ibv.qp_base.state;
	pthread_mutex_unlock(&own->lock);
	return state;
}

/*
 * Returns whether the connection id performs a state transition later, so that only the attributes
 * are stored.
 */
static bool qp_is_transition_left_to_cm(struct abi_qp *own, const struct ibv_qp_attr *attr,
					int mask, enum ibv_qp_state from, enum ibv_qp_state to)
{
	bool of_cm;

	if (own->ibv.qp_base.qp_type != IBV_QPT_RC)
		return false;
	pthread_mutex_lock(&own->lock);
	if (from == IBV_QPS_INIT && to == IBV_QPS_RTR && mask & IBV_QP_DEST_QPN &&
	    attr->dest_qp_num == SIW_IBV_QPN_OF_CM)
		own->of_cm = true;
	if (to == IBV_QPS_RESET)
		own->of_cm = false;
	of_cm = own->of_cm;
	pthread_mutex_unlock(&own->lock);
	return of_cm && ((from == IBV_QPS_INIT && to == IBV_QPS_RTR) ||
			 (from == IBV_QPS_RTR && to == IBV_QPS_RTS));
}

/* Stores the attributes that the program has set, and the new state. */
static void qp_store_new_state_and_attrs(struct abi_qp *own, const struct ibv_qp_attr *attr,
					 int mask, enum ibv_qp_state to)
{
	pthread_mutex_lock(&own->lock);
	if (mask & IBV_QP_STATE)
		own->ibv.qp_base.state = to;
	if (to == IBV_QPS_RESET)
		memset(&own->set, 0, sizeof(own->set));
	else
		qp_store_attr(&own->set, attr, mask);
	pthread_mutex_unlock(&own->lock);
}

/*
 * Truncates attributes to the widths of an adapter's fields (three or five bits), as ibv_query_qp
 * then shows them. Programs rely on this: some pass a min_rnr_timer of 32.
 */
static struct ibv_qp_attr qp_truncate_attrs_to_field_widths(const struct ibv_qp_attr *attr)
{
	struct ibv_qp_attr fields = *attr;

	fields.timeout &= 0x1f;
	fields.retry_cnt &= 7;
	fields.rnr_retry &= 7;
	fields.min_rnr_timer &= 0x1f;
	return fields;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr_in, int mask)
{
	const struct ibv_qp_attr *attr;
	struct siw_qp_attr now, wanted;
	struct ibv_qp_attr fields;
	enum ibv_qp_state from, to;
	struct abi_qp *own;
	int r, taken;

	if (!abi_is_live_object(ABI_QP, qp) || !abi_is_given(attr_in, "attr"))
		return abi_fail(EINVAL);
	fields = qp_truncate_attrs_to_field_widths(attr_in);
	attr = &fields;
	own = abi_qp_of(qp);
	r = qp_check_attr(qp, attr, mask);
	if (r)
		return abi_fail(r);
	r = siw_query_qp(own->siw, &now, NULL);
	if (r < 0)
		return abi_errno_of_result(r);
	from = mask & IBV_QP_CUR_STATE ? attr->cur_qp_state : qp_visible_state(own, now.qp_state);
	to = mask & IBV_QP_STATE ? attr->qp_state : from;
	r = abi_check_qp_transition(qp->qp_type, from, to, mask);
	if (r)
		return abi_fail(r);
	if (qp_is_transition_left_to_cm(own, attr, mask, from, to)) {
		qp_store_new_state_and_attrs(own, attr, mask, to);
		return 0;
	}
	r = qp_attr_to_engine(qp, attr, mask, &wanted);
	if (r)
		return abi_fail(r);
	taken = siw_qp_step_attrs((int)qp->qp_type, (int)from, mask & IBV_QP_STATE ? (int)to : -1);
	if (taken < 0)
		return abi_errno_of_result(taken);
	r = siw_modify_qp(own->siw, &wanted,
			  mask & SAME_MASKS & (taken | IBV_QP_STATE | IBV_QP_CUR_STATE));
	if (r < 0)
		return abi_errno_of_result(r);
	qp_store_new_state_and_attrs(own, attr, mask, to);
	return 0;
}

/* The burst size is fixed, so that a program cannot request one. */
int abi_modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr)
{
	struct siw_qp_attr wanted = { 0 };

	if (!abi_is_live_object(ABI_QP, qp) || !abi_is_given(attr, "attr"))
		return abi_fail(EINVAL);
	if (attr->comp_mask)
		return abi_fail(
			abi_refuse(EINVAL, "comp_mask is %#x: set it to 0", attr->comp_mask));
	if (!qp_supports_rate_limit(qp) || attr->max_burst_sz || attr->typical_pkt_sz)
		return abi_fail(abi_refuse(EOPNOTSUPP,
					   "only UD and UC queue pairs have a rate limit, without "
					   "max_burst_sz and typical_pkt_sz"));
	wanted.rate_limit = attr->rate_limit;
	return abi_errno_of_result(siw_modify_qp(abi_qp_of(qp)->siw, &wanted, SIW_QP_RATE_LIMIT));
}

static void fill_init_attr(struct ibv_qp *qp, struct ibv_qp_init_attr *init)
{
	*init = (struct ibv_qp_init_attr){
		.qp_context = qp->qp_context,
		.send_cq = qp->send_cq,
		.recv_cq = qp->recv_cq,
		.srq = qp->srq,
		.cap = abi_qp_of(qp)->cap,
		.qp_type = qp->qp_type,
		.sq_sig_all = abi_qp_of(qp)->sq_sig_all,
	};
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask,
		 struct ibv_qp_init_attr *init)
{
	enum ibv_qp_state state;
	struct siw_qp_attr now;
	struct abi_qp *own;
	int r;

	/* All attributes are available at no cost, so the mask is ignored. */
	(void)attr_mask;
	if (!abi_is_live_object(ABI_QP, qp) || !abi_is_given(attr, "attr") ||
	    !abi_is_given(init, "init_attr"))
		return abi_fail(EINVAL);
	own = abi_qp_of(qp);
	r = siw_query_qp(own->siw, &now, NULL);
	if (r < 0)
		return abi_errno_of_result(r);
	state = qp_visible_state(own, now.qp_state);
	pthread_mutex_lock(&own->lock);
	*attr = own->set;
	qp->state = state; /* the engine may have changed the state, for example to ERR */
	pthread_mutex_unlock(&own->lock);
	attr->qp_state = attr->cur_qp_state = state;
	attr->path_mig_state = IBV_MIG_MIGRATED;
	attr->qkey = now.qkey;
	attr->qp_access_flags = (unsigned int)now.qp_access_flags;
	attr->cap = own->cap;
	attr->rate_limit = now.rate_limit;
	attr->sq_draining = now.sq_draining != 0;
	if (qp->qp_type == IBV_QPT_UC && attr->qp_state >= IBV_QPS_RTR) {
		attr->rq_psn = now.rq_psn;
		attr->sq_psn = now.sq_psn;
	}
	fill_init_attr(qp, init);
	return 0;
}

int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)op;
	(void)flags;
	(void)qp;
	/*
	 * Segments are placed in order, but memcpy() places the octets of a segment in no
	 * guaranteed order.
	 */
	return 0;
}

int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	if (!abi_is_live_object(ABI_QP, qp) || !abi_is_given(ece, "ece"))
		return abi_fail(EINVAL);
	if (ece->comp_mask)
		return abi_fail(
			abi_refuse(EINVAL, "comp_mask is %#x: set it to 0", ece->comp_mask));
	/*
	 * ECE carries vendor options; siwarp has none, and does not support those of other vendors.
	 */
	if (ece->vendor_id || ece->options)
		return abi_fail(abi_refuse(EOPNOTSUPP, "siwarp has no enhanced connection options: "
						       "set vendor_id and options to 0"));
	return 0;
}

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	if (!abi_is_live_object(ABI_QP, qp) || !abi_is_given(ece, "ece"))
		return abi_fail(EINVAL);
	memset(ece, 0, sizeof(*ece));
	return 0;
}

/* ---- multicast ------------------------------------------------------------------------------- */

static int qp_change_mcast_membership(struct ibv_qp *qp, const union ibv_gid *gid,
				      int (*change)(struct siw_qp *qp,
						    const struct siw_addr *group))
{
	struct siw_addr group;

	if (!abi_is_live_object(ABI_QP, qp) || !abi_is_given(gid, "gid"))
		return abi_fail(EINVAL);
	if (qp->qp_type != IBV_QPT_UD)
		return abi_fail(abi_refuse(EINVAL, "only UD queue pairs join multicast groups"));
	abi_addr_of_gid(abi_context_of(qp->context), gid, &group);
	return abi_errno_of_result(change(abi_qp_of(qp)->siw, &group));
}

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)lid;
	return qp_change_mcast_membership(qp, gid, siw_attach_mcast);
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)lid;
	return qp_change_mcast_membership(qp, gid, siw_detach_mcast);
}

/* ---- posting --------------------------------------------------------------------------------- */

/*
 * Posts one bind request. Binds are posted separately, because a bind contains verbs objects that
 * must be converted.
 */
static int post_mw_bind_request(struct ibv_qp *qp, const struct ibv_send_wr *wr)
{
	struct siw_send_wr one, *bad;

	if (!abi_is_live_object(ABI_MW, wr->bind_mw.mw))
		return EINVAL;
	memcpy(&one, wr, sizeof(one));
	one.next = NULL;
	one.bind_mw.mw = ((struct abi_mw *)wr->bind_mw.mw)->siw;
	if (abi_convert_bind_info(&wr->bind_mw.bind_info, &one.bind_mw.bind_info))
		return EINVAL;
	return -siw_post_send(abi_qp_of(qp)->siw, &one, &bad);
}

/*
 * Returns a number of requests that cannot fit into the send queue (more than twice its depth),
 * which bounds the traversal of a list that contains a cycle.
 */
static uint32_t send_list_traversal_limit(struct ibv_qp *qp)
{
	return 2 * abi_qp_of(qp)->cap.max_send_wr + 1;
}

/*
 * Converts the engine's result of a post to an errno value. A post that races with the destruction
 * of its queue pair is dropped without an error.
 */
static int errno_of_post_result(struct ibv_qp *qp, int r, const char *call)
{
	if (__builtin_expect(r == 0, 1))
		return 0;
	if (atomic_load(&abi_qp_of(qp)->ending))
		return abi_post_dropped();
	/* A full queue is not logged, because a program may post until the queue is full. */
	return r == -ENOMEM ? ENOMEM : abi_set_errno_and_log_refusal(call, -r);
}

/*
 * Posts a list that contains binds: each bind and each run of other requests is posted separately.
 */
static int post_send_list_with_mw_binds(struct ibv_qp *qp, struct ibv_send_wr *wr,
					struct ibv_send_wr **bad_wr)
{
	struct ibv_send_wr *last, *next;
	int r = 0;

	for (; wr && !r; wr = next) {
		struct siw_send_wr *bad = (struct siw_send_wr *)wr;
		uint32_t left = send_list_traversal_limit(qp);

		last = wr;
		while (wr->opcode != IBV_WR_BIND_MW && last->next &&
		       last->next->opcode != IBV_WR_BIND_MW && left--)
			last = last->next;
		next = last->next;
		if (wr->opcode == IBV_WR_BIND_MW) {
			r = post_mw_bind_request(qp, wr);
		} else {
			last->next = NULL;
			r = -siw_post_send(abi_qp_of(qp)->siw, (struct siw_send_wr *)wr, &bad);
			last->next = next;
		}
		if (r && bad_wr)
			*bad_wr = (struct ibv_send_wr *)bad;
	}
	return r;
}

int abi_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	uint32_t left = send_list_traversal_limit(qp);

	for (const struct ibv_send_wr *one = wr; one && left; one = one->next, left--)
		if (one->opcode == IBV_WR_BIND_MW)
			return errno_of_post_result(
				qp, -post_send_list_with_mw_binds(qp, wr, bad_wr), "ibv_post_send");
	return errno_of_post_result(qp,
				    siw_post_send(abi_qp_of(qp)->siw, (struct siw_send_wr *)wr,
						  (struct siw_send_wr **)bad_wr),
				    "ibv_post_send");
}

int abi_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	return errno_of_post_result(qp,
				    siw_post_recv(abi_qp_of(qp)->siw, (struct siw_recv_wr *)wr,
						  (struct siw_recv_wr **)bad_wr),
				    "ibv_post_recv");
}
