/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Queue pairs: moved through their states by the table, changed, and asked. */
#include <errno.h>

#include "rdmap/rdmap_uc.h"
#include "verbs/verbs_impl.h"

/* ---- states ---------------------------------------------------------------------------------- */

int siw_verbs_qp_step(struct siw_qp *qp, int event)
{
	int action, next;

	/* Under every lock that reads it, so that a post sees the old state or the new. */
	siw_lock(&qp->send_lock);
	siw_lock(&qp->recv_lock);
	next = siw_verbs_state_next(qp->type, qp->state, event, &action);
	if (next >= 0)
		atomic_store(&qp->state, next);
	if (next != SIW_QPS_SQD)
		qp->draining = false;
	siw_unlock(&qp->recv_lock);
	siw_unlock(&qp->send_lock);
	return next < 0 ? next : action;
}

void siw_verbs_qp_send_failed(struct siw_qp *qp)
{
	int action, next = siw_verbs_state_next(qp->type, qp->state, SIW_QPE_SEND_FAILED, &action);

	if (next < 0)
		return;
	atomic_store(&qp->state, next);
	qp->draining = false;
}

void siw_verbs_qp_drained(struct siw_qp *qp)
{
	if (!qp->draining || qp->rd_begun || (!qp->rd && qp->sq_head != qp->sq_next))
		return;
	qp->draining = false;
	if (qp->sqd_notify)
		siw_verbs_async_qp(qp, SIW_EVENT_SQ_DRAINED);
}

static int event_of(int target_state)
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
	int event = to < 0 ? SIW_QPE_STAY : event_of(to);

	return siw_verbs_state_attrs(qp_type, from, event);
}

static void take_attributes(struct siw_qp *qp, const struct siw_qp_attr *attr, int mask)
{
	siw_lock(&qp->send_lock);
	if (mask & SIW_QP_QKEY)
		qp->qkey = attr->qkey;
	if (mask & SIW_QP_ACCESS_FLAGS) {
		qp->access = attr->qp_access_flags;
		if (qp->stream)
			siw_rdmap_deny(qp->stream, ~(uint32_t)qp->access);
	}
	if (mask & SIW_QP_MAX_QP_RD_ATOMIC) {
		if (qp->stream)
			qp->reads_max = (uint16_t)attr->max_rd_atomic;
		else
			qp->ord = attr->max_rd_atomic;
	}
	if (mask & SIW_QP_MAX_DEST_RD_ATOMIC)
		qp->ird = attr->max_dest_rd_atomic;
	if (mask & SIW_QP_RNR_RETRY)
		qp->rnr_retry = attr->rnr_retry;
	if (mask & SIW_QP_MIN_RNR_TIMER)
		qp->min_rnr_timer = attr->min_rnr_timer;
	siw_unlock(&qp->send_lock);
}

static bool within(int asked, int least, int most)
{
	return asked >= least && asked <= most;
}

/* Values that no QP can have. What the step takes is the table's matter. progress held. */
static int check_values(const struct siw_qp *qp, const struct siw_qp_attr *attr, int mask)
{
	const int rights = SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_REMOTE_WRITE |
			   SIW_ACCESS_REMOTE_READ | SIW_ACCESS_REMOTE_ATOMIC;
	/* Of a connection, no more than the peer agreed on, and never none: posted Reads would hang. */
	int max_ord = qp->stream ? qp->granted_ord : SIW_RDMAP_MAX_READS;
	int min_ord = qp->stream && max_ord;

	if ((mask & SIW_QP_CUR_STATE) && attr->cur_qp_state != qp->state)
		return -EINVAL;
	if ((mask & SIW_QP_ACCESS_FLAGS) && (attr->qp_access_flags & ~rights))
		return -EINVAL;
	if ((mask & SIW_QP_MAX_QP_RD_ATOMIC) && !within(attr->max_rd_atomic, min_ord, max_ord))
		return -EINVAL;
	if ((mask & SIW_QP_MAX_DEST_RD_ATOMIC) &&
	    !within(attr->max_dest_rd_atomic, 0, SIW_RDMAP_MAX_READS))
		return -EINVAL;
	if ((mask & SIW_QP_RNR_RETRY) && !within(attr->rnr_retry, 0, 7))
		return -EINVAL;
	if ((mask & SIW_QP_PATH_MTU) && !siw_verbs_uc_mtu_valid(attr->path_mtu))
		return -EINVAL;
	if ((mask & SIW_QP_MIN_RNR_TIMER) && !within(attr->min_rnr_timer, 0, 31))
		return -EINVAL;
	return 0;
}

static void drain(struct siw_qp *qp, bool notify)
{
	siw_lock(&qp->send_lock);
	qp->draining = true;
	qp->sqd_notify = notify;
	if (qp->type == SIW_QPT_UD)
		qp->sq_next = qp->sq_head + siw_verbs_ud_half_out(qp);
	else if (qp->type == SIW_QPT_RC)
		siw_verbs_rc_drain(qp);
	siw_verbs_qp_drained(qp);
	siw_unlock(&qp->send_lock);
	/* Whatever is not out yet, the next passes see to. */
	siw_verbs_mark_unsent(qp);
	siw_verbs_nudge(qp->ctx);
}

static void resume(struct siw_qp *qp)
{
	enum siw_run run;

	siw_lock(&qp->send_lock);
	if (qp->rd)
		siw_verbs_rd_resume(qp);
	run = siw_verbs_run(qp);
	siw_unlock(&qp->send_lock);
	if (run == SIW_RUN_DONE)
		return;
	siw_verbs_mark_unsent(qp);
	siw_verbs_nudge(qp->ctx);
}

static void act(struct siw_qp *qp, int action, bool notify)
{
	if (action == SIW_QPA_DRAIN) {
		drain(qp, notify);
	} else if (action == SIW_QPA_RESUME) {
		resume(qp);
	} else if (action == SIW_QPA_FLUSH) {
		if (qp->type == SIW_QPT_RC)
			siw_verbs_rc_close(qp, SIW_SHUTTING_DOWN);
		else
			siw_verbs_flush(qp);
	} else if (action == SIW_QPA_FORGET) {
		qp->heard = false;
		if (qp->type == SIW_QPT_RC)
			siw_verbs_rc_release(qp);
		siw_verbs_forget(qp);
	}
	if (qp->type == SIW_QPT_UD)
		siw_verbs_ud_receive(qp);
	else if (qp->type == SIW_QPT_UC)
		siw_verbs_uc_receive(qp);
	else if (qp->type == SIW_QPT_RD)
		siw_verbs_rd_receive(qp);
}

void siw_verbs_qp_abort(struct siw_qp *qp, int type)
{
	int action = siw_verbs_qp_step(qp, SIW_QPE_FAILED);

	if (action == SIW_QPA_FLUSH)
		siw_verbs_async_qp(qp, type);
	act(qp, action, false);
}

void siw_verbs_qp_fail(struct siw_qp *qp, int status)
{
	if (qp->type == SIW_QPT_RC)
		siw_verbs_rc_fail(qp, SIW_SHUTTING_DOWN, status, NULL);
	else
		siw_verbs_qp_abort(qp, SIW_EVENT_QP_FATAL);
}

static int modify(struct siw_qp *qp, const struct siw_qp_attr *attr, int mask)
{
	int event = mask & SIW_QP_STATE ? event_of(attr->qp_state) : SIW_QPE_STAY;
	int attrs = siw_verbs_state_attrs(qp->type, qp->state, event);
	int action, err;

	if (qp->dead || siw_link_alone(&qp->in_ctx))
		return -EINVAL;
	if (attrs < 0 || (mask & ~(attrs | SIW_QP_STATE)) || check_values(qp, attr, mask))
		return -EINVAL;
	if (qp->stream && (event == SIW_QPE_TO_ERR || event == SIW_QPE_TO_RESET))
		siw_verbs_rc_settle(qp);
	/* The one action that can fail comes before the state changes. */
	if (mask & SIW_QP_FD) {
		err = siw_verbs_open_socket(qp, NULL, attr->fd);
		if (err)
			return err;
	}
	if (qp->type == SIW_QPT_UC) {
		err = siw_verbs_uc_prepare(qp, event, attr, mask);
		if (err)
			return err;
	}
	/* What only waits for company counts as begun. */
	if (event == SIW_QPE_TO_SQD && qp->type != SIW_QPT_RC)
		siw_verbs_ud_finish(qp);
	take_attributes(qp, attr, mask);
	action = siw_verbs_qp_step(qp, event);
	if (action < 0) /* a send failed just now, and SQE has no such step */
		return action;
	act(qp, action, (mask & SIW_QP_EN_SQD_ASYNC_NOTIFY) && attr->en_sqd_async_notify);
	return 0;
}

int siw_modify_qp(struct siw_qp *qp, const struct siw_qp_attr *attr, int mask)
{
	int err;

	if (!qp)
		return -EINVAL;
	if (siw_verbs_inherited(qp->ctx))
		return -ESTALE;
	if (!attr)
		return -EINVAL;
	siw_lock(&qp->ctx->progress);
	err = modify(qp, attr, mask);
	if (!err && qp->parked && (mask & (SIW_QP_RNR_RETRY | SIW_QP_MIN_RNR_TIMER)))
		siw_verbs_rnr_begin(qp);
	siw_unlock(&qp->ctx->progress);
	return err;
}

/* ---- asking ---------------------------------------------------------------------------------- */

static void query_attr(const struct siw_qp *qp, struct siw_qp_attr *attr)
{
	bool tagged = qp->type != SIW_QPT_UD;

	*attr = (struct siw_qp_attr){
		.qp_state = qp->state,
		.cur_qp_state = qp->state,
		.qkey = qp->qkey,
		.qp_access_flags = tagged ? qp->access : 0,
		.en_sqd_async_notify = qp->state == SIW_QPS_SQD && qp->sqd_notify,
		.sq_draining = qp->draining,
		.max_rd_atomic = qp->ord < 0 ? 0 : qp->ord,
		.max_dest_rd_atomic = qp->ird < 0 ? 0 : qp->ird,
		.rnr_retry = qp->rnr_retry,
		.min_rnr_timer = qp->min_rnr_timer,
		.fd = -1,
	};
	if (qp->stream) {
		attr->max_rd_atomic = qp->reads_max;
		attr->max_dest_rd_atomic = qp->granted_ird;
	}
	if (qp->uc)
		siw_verbs_uc_query(qp, attr);
}

static void query_init(const struct siw_qp *qp, struct siw_qp_init_attr *init)
{
	*init = (struct siw_qp_init_attr){
		.qp_context = qp->user,
		.send_cq = qp->send_cq,
		.recv_cq = qp->recv_cq,
		.srq = qp->srq,
		.cap = qp->cap,
		.qp_type = qp->type,
		.sq_sig_all = qp->sig_all,
		.no_crc = qp->no_crc,
		.max_peers = qp->max_peers,
		.peer_timeout_ms = qp->peer_timeout_ms,
		.persona = qp->roce ? SIW_PERSONA_ROCE : SIW_PERSONA_IWARP,
		.error_policy = qp->errs_fatal ? SIW_ERROR_POLICY_ERROR : SIW_ERROR_POLICY_MESSAGE,
	};
	if (qp->dgram)
		siw_rdmap_dgram_addr(qp->dgram, &init->addr);
	if (qp->uc)
		siw_rdmap_uc_addr(qp->uc, &init->addr);
	if (qp->rd)
		siw_rdmap_rd_addr(qp->rd, &init->addr);
}

int siw_query_qp(struct siw_qp *qp, struct siw_qp_attr *attr, struct siw_qp_init_attr *init)
{
	bool dead;

	if (!qp)
		return -EINVAL;
	if (siw_verbs_inherited(qp->ctx))
		return -ESTALE;
	siw_lock(&qp->ctx->progress);
	dead = qp->dead;
	siw_lock(&qp->send_lock);
	if (attr && !dead)
		query_attr(qp, attr);
	if (init && !dead)
		query_init(qp, init);
	siw_unlock(&qp->send_lock);
	siw_unlock(&qp->ctx->progress);
	return dead ? -EINVAL : 0;
}
