/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* siw_modify_qp and siw_query_qp: changing and querying the attributes of queue pairs. */
#include <errno.h>

#include "qp/qp_impl.h"

static int transition_event_of_target_state(int target_state)
{
	switch (target_state) {
	case SIW_QPS_RESET:
		return SIW_QPE_TO_RESET;
	case SIW_QPS_INIT:
		return SIW_QPE_TO_INIT;
	case SIW_QPS_RTR:
		return SIW_QPE_TO_RTR;
	case SIW_QPS_RTS:
		return SIW_QPE_TO_RTS;
	case SIW_QPS_SQD:
		return SIW_QPE_TO_SQD;
	case SIW_QPS_ERR:
		return SIW_QPE_TO_ERR;
	default:
		return -EINVAL;
	}
}

int siw_qp_step_attrs(int qp_type, int from, int to)
{
	int event = to < 0 ? SIW_QPE_STAY : transition_event_of_target_state(to);

	return siw_qp_attrs_of_transition(qp_type, from, event);
}

#define ALL_ATTRIBUTES                                                                        \
	(SIW_QP_STATE | SIW_QP_CUR_STATE | SIW_QP_EN_SQD_ASYNC_NOTIFY | SIW_QP_ACCESS_FLAGS | \
	 SIW_QP_QKEY | SIW_QP_AV | SIW_QP_PATH_MTU | SIW_QP_RNR_RETRY | SIW_QP_RQ_PSN |       \
	 SIW_QP_MAX_QP_RD_ATOMIC | SIW_QP_MIN_RNR_TIMER | SIW_QP_SQ_PSN |                     \
	 SIW_QP_MAX_DEST_RD_ATOMIC | SIW_QP_DEST_QPN | SIW_QP_TIMEOUT | SIW_QP_RETRY_CNT |    \
	 SIW_QP_FD | SIW_QP_RATE_LIMIT)

/*
 * Whether a connection manager has negotiated the number of outstanding Reads with the peer. An RC
 * QP that connects by GID and QPN does not negotiate the number: the program sets it
 * (connect_pair.c).
 */
static bool has_negotiated_read_depths(const struct siw_base_qp *base)
{
	return base->connected && !siw_rc_qp_of(base)->pairs;
}

static void qp_store_attributes(struct siw_base_qp *base, const struct siw_qp_attr *attr, int mask)
{
	siw_lock(&base->qp.send_lock);
	if (mask & SIW_QP_QKEY)
		base->qkey = attr->qkey;
	if (mask & SIW_QP_ACCESS_FLAGS)
		base->access = attr->qp_access_flags;
	if (mask & SIW_QP_MAX_QP_RD_ATOMIC) {
		if (has_negotiated_read_depths(base))
			base->reads_max = (uint16_t)attr->max_rd_atomic;
		else
			base->ord = attr->max_rd_atomic;
	}
	if (mask & SIW_QP_MAX_DEST_RD_ATOMIC)
		base->ird = attr->max_dest_rd_atomic;
	if (mask & SIW_QP_RNR_RETRY)
		base->rnr_retry = attr->rnr_retry;
	if (mask & SIW_QP_MIN_RNR_TIMER)
		base->min_rnr_timer = attr->min_rnr_timer;
	if (mask & SIW_QP_RATE_LIMIT)
		base->rate_limit = attr->rate_limit;
	siw_unlock(&base->qp.send_lock);
}

/*
 * Checks that the value of an attribute is in the range 0 to most. Returns 0 or -errno; returns 0
 * if the attribute was not given.
 */
static int qp_check_attr_range(const char *name, int asked, int most, bool given)
{
	if (!given || (asked >= 0 && asked <= most))
		return 0;
	return siw_refuse(RANGE, siw_reason_text(name), (uint64_t)asked, 0, (uint64_t)most);
}

static int qp_check_attr_ranges(const struct siw_base_qp *base, const struct siw_qp_attr *attr,
				int mask)
{
	/*
	 * On a connection, ORD is at most the negotiated value, and at least 1 unless the
	 * negotiated value is 0, because with ORD 0 posted Reads would never begin.
	 */
	bool connected = has_negotiated_read_depths(base) && (mask & SIW_QP_MAX_QP_RD_ATOMIC);
	int err;

	if (connected &&
	    (attr->max_rd_atomic > base->granted_ord || attr->max_rd_atomic < !!base->granted_ord))
		return siw_refuse(QP_ORD, (uint64_t)attr->max_rd_atomic, !!base->granted_ord,
				  base->granted_ord);
	err = qp_check_attr_range("max_rd_atomic", attr->max_rd_atomic, SIW_RDMAP_MAX_READS,
				  mask & SIW_QP_MAX_QP_RD_ATOMIC);
	if (!err)
		err = qp_check_attr_range("max_dest_rd_atomic", attr->max_dest_rd_atomic,
					  SIW_RDMAP_MAX_READS, mask & SIW_QP_MAX_DEST_RD_ATOMIC);
	if (!err)
		err = qp_check_attr_range("rnr_retry", attr->rnr_retry, 7, mask & SIW_QP_RNR_RETRY);
	if (!err)
		err = qp_check_attr_range("min_rnr_timer", attr->min_rnr_timer, 31,
					  mask & SIW_QP_MIN_RNR_TIMER);
	if (!err)
		err = qp_check_attr_range("timeout", attr->timeout, 31, mask & SIW_QP_TIMEOUT);
	if (!err)
		err = qp_check_attr_range("retry_cnt", attr->retry_cnt, 7, mask & SIW_QP_RETRY_CNT);
	return err;
}

/*
 * Refuses Q_Key 0 together with error policy ERROR: everybody knows Q_Key 0, so any sender could
 * move the QP to ERR by an invalid message.
 */
static int qp_check_qkey_for_policy(const struct siw_base_qp *base, const struct siw_qp_attr *attr,
				    int mask)
{
	uint32_t qkey = mask & SIW_QP_QKEY ? attr->qkey : base->qkey;
	bool begins = mask & SIW_QP_STATE && attr->qp_state == SIW_QPS_INIT;

	if (base->error_policy != SIW_ERROR_POLICY_ERROR || qkey || !siw_class_of(base)->has_errors)
		return 0;
	return begins || mask & SIW_QP_QKEY ? siw_refuse(QP_POLICY_QKEY) : 0;
}

/*
 * Refuses attribute values that are invalid for every QP. (qp_check_transition() refuses attributes
 * that do not apply to the state transition.) Progress lock held.
 */
static int qp_check_attr_values(const struct siw_base_qp *base, const struct siw_qp_attr *attr,
				int mask)
{
	const int rights = SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_REMOTE_WRITE |
			   SIW_ACCESS_REMOTE_READ | SIW_ACCESS_REMOTE_ATOMIC;
	int err;

	if ((mask & SIW_QP_CUR_STATE) && attr->cur_qp_state != base->qp.state)
		return siw_refuse(QP_CUR_STATE, (uint64_t)attr->cur_qp_state,
				  (uint64_t)base->qp.state);
	if ((mask & SIW_QP_ACCESS_FLAGS) && (attr->qp_access_flags & ~rights))
		return siw_refuse_flags("qp_access_flags", attr->qp_access_flags,
					"siw_access_flags");
	err = qp_check_qkey_for_policy(base, attr, mask);
	return err ? err : qp_check_attr_ranges(base, attr, mask);
}

static int qp_adopt_socket(struct siw_base_qp *base, int fd)
{
	int err = siw_class_of(base)->open(base, NULL, fd);

	if (err == -EBADF)
		return siw_refuse(QP_FD_CLOSED, (uint64_t)fd);
	if ((err == -EINVAL && !siw_refusal.why) || err == -ENOTSOCK)
		siw_refuse(QP_FD, (uint64_t)fd);
	return err;
}

/*
 * Returns the states that siw_modify_qp() can reach from the given state, as a bit set, without
 * RESET and ERR.
 */
static uint64_t reachable_states(int type, int state)
{
	uint64_t ways = 0;

	for (int to = SIW_QPS_INIT; to < SIW_QPS_ERR; to++)
		if (to != state && siw_qp_step_attrs(type, state, to) >= 0)
			ways |= 1u << to;
	return ways;
}

static int qp_refuse_transition(const struct siw_base_qp *base, int to)
{
	const uint64_t init = 1u << SIW_QPS_INIT;
	uint64_t ways = reachable_states(siw_class_of(base)->type, base->qp.state);

	if (to < SIW_QPS_RESET || to > SIW_QPS_ERR)
		return siw_refuse_value("qp_state", to, "siw_qp_state");
	if (siw_class_of(base)->type == SIW_QPT_RC && !siw_rc_qp_of(base)->pairs &&
	    to > SIW_QPS_INIT && (ways & init || base->qp.state == SIW_QPS_INIT))
		return siw_refuse(QP_STEP_RC, (uint64_t)base->qp.state, (uint64_t)to);
	if (!ways)
		return siw_refuse(QP_STEP_OUT, (uint64_t)base->qp.state, (uint64_t)to);
	return siw_refuse(QP_STEP, (uint64_t)base->qp.state, (uint64_t)to, ways);
}

/*
 * Returns the state transitions that accept an attribute, as a set of steps in the format of
 * base/reason.h.
 */
static uint64_t transitions_accepting_attr(int type, int attribute)
{
	uint64_t steps = 0;

	for (int from = 0; from <= SIW_QPS_ERR; from++)
		for (int to = -1; to <= SIW_QPS_ERR; to++) {
			int attrs = siw_qp_step_attrs(type, from, to);

			if (attrs >= 0 && (attrs & attribute))
				steps |= UINT64_C(1) << (8 * from + (to < 0 ? from : to));
		}
	return steps;
}

/*
 * Checks that the state table has the transition, and that the transition accepts the attributes in
 * mask. Returns 0 or -errno. to: the target state; -1: the state stays.
 */
static int qp_check_transition(const struct siw_base_qp *base, int to, int mask)
{
	int attrs = siw_qp_step_attrs(siw_class_of(base)->type, base->qp.state, to);
	int first, extra = mask & ~(attrs | SIW_QP_STATE);
	uint64_t steps;

	if ((mask & SIW_QP_STATE && to < 0) || attrs < 0)
		return qp_refuse_transition(base, to);
	if (!extra)
		return 0;
	first = extra & -extra;
	if (!(first & ALL_ATTRIBUTES))
		return siw_refuse_flags("the mask", extra, "siw_qp_attr_mask");
	steps = transitions_accepting_attr(siw_class_of(base)->type, first);
	if (!steps)
		return siw_refuse(QP_ATTR_TYPE, (uint64_t)extra,
				  (uint64_t)siw_class_of(base)->type);
	return siw_refuse(QP_ATTR_STEP, (uint64_t)extra, steps);
}

static int qp_modify_locked(struct siw_base_qp *base, const struct siw_qp_attr *attr, int mask)
{
	const struct siw_qp_class *class = siw_class_of(base);
	int event = mask & SIW_QP_STATE ? transition_event_of_target_state(attr->qp_state)
					: SIW_QPE_STAY;
	int action, err;

	if (siw_teardown_of(base) == SIW_DEAD || siw_link_empty(&base->qp.in_lane))
		return siw_refuse(DESTROYED);
	err = qp_check_transition(base, mask & SIW_QP_STATE ? attr->qp_state : -1, mask);
	if (!err)
		err = qp_check_attr_values(base, attr, mask);
	if (err)
		return err;
	/* Operations that can fail are executed before the state changes. */
	if (mask & SIW_QP_FD) {
		err = qp_adopt_socket(base, attr->fd);
		if (err)
			return err;
	}
	err = siw_qp_prepare_transition(base, event, attr, mask);
	if (err)
		return err;
	qp_store_attributes(base, attr, mask);
	action = siw_qp_apply_state_event(base, event);
	/* a send failed in the meantime, and state SQE does not have the requested transition */
	if (action < 0)
		return qp_refuse_transition(base, attr->qp_state);
	siw_qp_carry_out_transition_action(
		base, action, (mask & SIW_QP_EN_SQD_ASYNC_NOTIFY) && attr->en_sqd_async_notify);
	if (class->modified)
		class->modified(base, mask);
	/* Requests that the former rate limit delayed may be sent now. */
	if (mask & SIW_QP_RATE_LIMIT)
		siw_qp_schedule_sending_turn(base);
	return 0;
}

int siw_modify_qp(struct siw_qp *qp, const struct siw_qp_attr *attr, int mask)
{
	int err = siw_qp_check_usable(qp);

	if (err)
		return err;
	if (!attr)
		return siw_refuse_null("attr");
	siw_lock(&qp->lane->lock);
	err = qp_modify_locked(siw_base_qp_of(qp), attr, mask);
	siw_unlock(&qp->lane->lock);
	return siw_refused(err);
}

/* ---- queries --------------------------------------------------------------------------------- */

static void qp_query_attr_common(const struct siw_base_qp *base, struct siw_qp_attr *attr)
{
	*attr = (struct siw_qp_attr){
		.qp_state = base->qp.state,
		.cur_qp_state = base->qp.state,
		.qkey = base->qkey,
		.qp_access_flags = siw_class_of(base)->has_rights ? base->access : 0,
		.en_sqd_async_notify = base->qp.state == SIW_QPS_SQD && base->sqd_notify,
		.sq_draining = base->draining,
		.max_rd_atomic = base->ord < 0 ? 0 : base->ord,
		.max_dest_rd_atomic = base->ird < 0 ? 0 : base->ird,
		.rnr_retry = base->rnr_retry,
		.min_rnr_timer = base->min_rnr_timer,
		.rate_limit = base->rate_limit,
		.fd = -1,
	};
	if (has_negotiated_read_depths(base)) {
		attr->max_rd_atomic = base->reads_max;
		attr->max_dest_rd_atomic = base->granted_ird;
	}
	if (siw_class_of(base)->query_attr)
		siw_class_of(base)->query_attr(base, attr);
}

static void qp_query_init_common(const struct siw_base_qp *base, struct siw_qp_init_attr *init)
{
	struct siw_addr peer;

	*init = (struct siw_qp_init_attr){
		.qp_context = base->user,
		.send_cq = base->qp.send_cq,
		.recv_cq = base->qp.recv_cq,
		.srq = base->qp.srq,
		.cap = base->cap,
		.qp_type = siw_class_of(base)->type,
		.sq_sig_all = base->sig_all,
		.no_crc = base->no_crc,
		.grh = base->grh,
		.every_addr = base->every_addr,
		.keep_unexpected = base->keep_unexpected,
		.persona = base->roce ? SIW_PERSONA_ROCE : SIW_PERSONA_IWARP,
		.error_policy = base->errs_fatal ? SIW_ERROR_POLICY_ERROR
						 : SIW_ERROR_POLICY_MESSAGE,
	};
	if (siw_class_of(base)->open) /* each QP of the type has a socket of its own */
		siw_class_of(base)->addr(base, &init->addr, &peer);
	if (base->every_addr)
		init->addr = (struct siw_addr){ .port_be = init->addr.port_be };
	if (siw_class_of(base)->query_init)
		siw_class_of(base)->query_init(base, init);
}

int siw_query_qp(struct siw_qp *qp, struct siw_qp_attr *attr, struct siw_qp_init_attr *init)
{
	int err = siw_qp_check_usable(qp);
	bool dead;

	if (err)
		return err;
	siw_lock(&qp->lane->lock);
	siw_lock(&qp->send_lock);
	dead = siw_teardown_of(siw_base_qp_of(qp)) == SIW_DEAD;
	if (attr && !dead)
		qp_query_attr_common(siw_base_qp_of(qp), attr);
	if (init && !dead)
		qp_query_init_common(siw_base_qp_of(qp), init);
	siw_unlock(&qp->send_lock);
	siw_unlock(&qp->lane->lock);
	return dead ? siw_refuse(DESTROYED) : 0;
}
