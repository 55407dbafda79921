/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Queue pairs: made, moved through their states by the table, queried, destroyed. */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "verbs/verbs_impl.h"

/* ---- creating -------------------------------------------------------------------------------- */

static int check_init(const struct siw_pd *pd, const struct siw_qp_init_attr *init)
{
	const struct siw_device_attr *max = &pd->ctx->attr;
	const struct siw_qp_cap *cap = &init->cap;

	if (init->qp_type != SIW_QPT_RC && init->qp_type != SIW_QPT_UD)
		return -EINVAL;
	if (init->persona < SIW_PERSONA_AUTO || init->persona > SIW_PERSONA_ROCE)
		return -EINVAL;
	if (!init->send_cq || !init->recv_cq || init->send_cq->ctx != pd->ctx ||
	    init->recv_cq->ctx != pd->ctx)
		return -EINVAL;
	if (init->srq && init->srq->ctx != pd->ctx)
		return -EINVAL;
	if (atomic_load(&init->send_cq->overrun) || atomic_load(&init->recv_cq->overrun))
		return -EOVERFLOW;
	if (cap->max_send_wr > max->max_qp_wr || cap->max_send_sge > max->max_sge ||
	    cap->max_inline_data > max->max_inline_data)
		return -EINVAL;
	if (!init->srq && (cap->max_recv_wr > max->max_qp_wr || cap->max_recv_sge > max->max_sge))
		return -EINVAL;
	return 0;
}

static uint32_t power_of_two(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p <<= 1;
	return p;
}

/*
 * Grants at least one of each, whole powers of two of requests, and what inline alignment leaves
 * over; none of the receives that an SRQ has instead.
 */
static void grant(struct siw_qp_cap *cap, bool shared)
{
	cap->max_send_wr = power_of_two(cap->max_send_wr);
	cap->max_recv_wr = shared ? 0 : power_of_two(cap->max_recv_wr);
	if (!cap->max_send_sge)
		cap->max_send_sge = 1;
	if (shared)
		cap->max_recv_sge = 0;
	else if (!cap->max_recv_sge)
		cap->max_recv_sge = 1;
	cap->max_inline_data = (cap->max_inline_data + 15) & ~15u;
}

static int make_queues(struct siw_qp *qp)
{
	const struct siw_qp_cap *cap = &qp->cap;

	qp->sq_stride =
		(uint32_t)(sizeof(struct siw_wqe) + cap->max_send_sge * sizeof(struct siw_sge) +
			   cap->max_inline_data);
	qp->sq_stride = (qp->sq_stride + 63) & ~63u;
	qp->sq_mask = cap->max_send_wr - 1;
	qp->sq = calloc(cap->max_send_wr, qp->sq_stride);
	if (!qp->sq)
		return -ENOMEM;
	if (qp->srq) {
		qp->recvs = qp->srq->recvs;
		return 0;
	}
	return siw_rdmap_queue_create(qp->ctx->port, cap->max_recv_wr, cap->max_recv_sge,
				      qp->pd->number, &qp->recvs);
}

/* RC numbers have a high octet, UD numbers (their UDP port) none. */
static int open_transport(struct siw_qp *qp, const struct siw_qp_init_attr *init)
{
	struct siw_addr addr = init->addr;
	uint16_t port = addr.port_be;

	if (qp->type == SIW_QPT_RC) {
		qp->linger = calloc(1, sizeof(*qp->linger));
		if (!qp->linger)
			return -ENOMEM;
		qp->qpn = qp->ctx->next_rc_qpn;
		qp->ctx->next_rc_qpn = qp->qpn == 0xfffffe ? 1 << 16 : qp->qpn + 1;
		qp->pollee.serve = siw_verbs_rc_serve;
		return 0;
	}
	if (!addr.family) {
		if (!qp->ctx->now.n_addrs)
			return -EADDRNOTAVAIL;
		addr = qp->ctx->now.addrs[0];
		addr.port_be = port;
	}
	return siw_verbs_ud_open(qp, &addr, -1);
}

/* What it has of its own. Nobody posts any more: it is in RESET, or was never whole. */
static void free_queues(struct siw_qp *qp)
{
	if (qp->dgram)
		siw_rdmap_dgram_close(qp->dgram);
	if (qp->recvs && !qp->srq)
		siw_rdmap_queue_destroy(qp->recvs);
	free(qp->linger);
	free(qp->sq);
	qp->dgram = NULL;
	qp->recvs = NULL;
	qp->linger = NULL;
	qp->sq = NULL;
}

#define CLEAR(qp, from, to) \
	memset((char *)&(qp)->from, 0, offsetof(struct siw_qp, to) - offsetof(struct siw_qp, from))

/* All zero, and so in RESET, but for what a post that comes too late still touches. */
static struct siw_qp *blank_qp(struct siw_context *ctx)
{
	struct siw_link *kept = siw_verbs_kept_take(&ctx->kept_qps);
	struct siw_qp *qp;

	if (kept) {
		qp = siw_container(kept, struct siw_qp, kept);
		siw_verbs_forget_unsent(qp);
		siw_lock(&qp->send_lock);
		siw_lock(&qp->recv_lock);
		CLEAR(qp, pd, send_lock);
		CLEAR(qp, sq, unsent);
		CLEAR(qp, recvs, kept);
		siw_unlock(&qp->recv_lock);
		siw_unlock(&qp->send_lock);
		return qp;
	}
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		return NULL;
	qp->ctx = ctx;
	siw_lock_init(&qp->send_lock);
	siw_lock_init(&qp->recv_lock);
	siw_link_init(&qp->unsent);
	siw_link_init(&qp->kept);
	return qp;
}

static void set_attributes(struct siw_qp *qp, struct siw_pd *pd,
			   const struct siw_qp_init_attr *init)
{
	qp->pd = pd;
	qp->serial = atomic_fetch_add(&pd->ctx->next_qp, 1);
	qp->send_cq = init->send_cq;
	qp->recv_cq = init->recv_cq;
	qp->srq = init->srq;
	qp->user = init->qp_context;
	qp->type = init->qp_type;
	qp->sig_all = init->sq_sig_all;
	qp->no_crc = init->no_crc || !siw_settings()->crc;
	qp->roce = (init->persona ? init->persona : siw_settings()->persona) == SIW_PERSONA_ROCE;
	qp->ord = qp->ird = -1;
	qp->rnr_retry = 7;
	qp->min_rnr_timer = 12;
	qp->access = SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_READ;
	qp->burst = 1;
	qp->cap = init->cap;
	grant(&qp->cap, qp->srq);
	siw_link_init(&qp->in_ctx);
	siw_link_init(&qp->timed.link);
	qp->timed.tick = siw_verbs_rc_tick;
	siw_verbs_async_init(&qp->async, qp->ctx, qp);
}

static struct siw_qp *new_qp(struct siw_pd *pd, const struct siw_qp_init_attr *init)
{
	struct siw_qp *qp = blank_qp(pd->ctx);

	if (!qp)
		return NULL;
	/* Under a lock for those who come too late for the last one in this memory. */
	siw_lock(&qp->send_lock);
	siw_lock(&qp->recv_lock);
	set_attributes(qp, pd, init);
	siw_unlock(&qp->recv_lock);
	siw_unlock(&qp->send_lock);
	return qp;
}

static void give_back(struct siw_qp *qp)
{
	siw_lock(&qp->ctx->progress);
	free_queues(qp);
	qp->dead = true;
	siw_unlock(&qp->ctx->progress);
	siw_verbs_kept_give(&qp->ctx->kept_qps, &qp->kept);
}

static void count_qp(struct siw_qp *qp, uint32_t by)
{
	atomic_fetch_add(&qp->ctx->n_qp, by);
	if (qp->type == SIW_QPT_RC)
		atomic_fetch_add(&qp->ctx->n_rc, by);
	atomic_fetch_add(&qp->pd->n_qp, by);
	atomic_fetch_add(&qp->send_cq->n_qp, by);
	atomic_fetch_add(&qp->recv_cq->n_qp, by);
	if (qp->srq)
		atomic_fetch_add(&qp->srq->n_qp, by);
}

struct siw_qp *siw_create_qp(struct siw_pd *pd, struct siw_qp_init_attr *init)
{
	struct siw_context *ctx = pd->ctx;
	struct siw_qp *qp = NULL;
	int err = check_init(pd, init);

	if (siw_verbs_inherited(ctx)) {
		errno = ESTALE;
		return NULL;
	}
	if (err)
		goto fail;
	err = -ENOMEM;
	qp = new_qp(pd, init);
	if (!qp)
		goto fail;
	err = make_queues(qp);
	if (err)
		goto fail;
	siw_lock(&ctx->progress);
	err = atomic_load(&ctx->n_qp) < ctx->attr.max_qp ? open_transport(qp, init) : -ENOMEM;
	if (!err) {
		siw_link_add(&ctx->qps, &qp->in_ctx);
		count_qp(qp, 1);
	}
	siw_unlock(&ctx->progress);
	if (err)
		goto fail;
	init->cap = qp->cap;
	return qp;
fail:
	if (qp)
		give_back(qp);
	errno = -err;
	return NULL;
}

int siw_destroy_qp(struct siw_qp *qp)
{
	struct siw_context *ctx = qp->ctx;

	if (siw_verbs_inherited(ctx))
		return -ESTALE;
	if (atomic_load(&qp->held))
		return -EBUSY;
	siw_lock(&ctx->progress);
	if (qp->dead || siw_link_alone(&qp->in_ctx)) {
		siw_unlock(&ctx->progress);
		return -EINVAL;
	}
	if (qp->type == SIW_QPT_RC)
		siw_verbs_rc_settle(qp);
	else
		siw_verbs_ud_finish(qp);
	siw_verbs_qp_step(qp, SIW_QPE_TO_RESET); /* what is posted from here on is refused */
	if (qp->type == SIW_QPT_RC)
		siw_verbs_rc_release(qp);
	siw_verbs_forget(qp);
	siw_link_del(&qp->in_ctx);
	siw_verbs_cq_purge(qp->send_cq, qp);
	siw_verbs_cq_purge(qp->recv_cq, qp);
	if (qp->dgram)
		siw_rdmap_dgram_close(qp->dgram);
	qp->dgram = NULL;
	siw_unlock(&ctx->progress);
	/* Nothing reaches it any more, and an event's handler may still want to look at it. */
	siw_verbs_async_leave(&qp->async);
	count_qp(qp, UINT32_MAX);
	give_back(qp);
	return 0;
}

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
	if (!qp->draining || qp->sq_head != qp->sq_next)
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
			   SIW_ACCESS_REMOTE_READ;
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
		qp->sq_next = qp->sq_head; /* nothing of a datagram is ever half out */
	else
		siw_verbs_rc_drain(qp);
	siw_verbs_qp_drained(qp);
	siw_unlock(&qp->send_lock);
	/* Whatever is not out yet, the next passes see to. */
	siw_verbs_mark_unsent(qp);
	siw_verbs_nudge(qp->ctx);
}

static void act(struct siw_qp *qp, int action, bool notify)
{
	if (action == SIW_QPA_DRAIN) {
		drain(qp, notify);
	} else if (action == SIW_QPA_RESUME) {
		siw_verbs_mark_unsent(qp);
		siw_verbs_nudge(qp->ctx);
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
}

void siw_verbs_qp_fail(struct siw_qp *qp, int status)
{
	int action;

	if (qp->type == SIW_QPT_RC) {
		siw_verbs_rc_fail(qp, SIW_SHUTTING_DOWN, status, NULL);
		return;
	}
	action = siw_verbs_qp_step(qp, SIW_QPE_FAILED);
	if (action == SIW_QPA_FLUSH)
		siw_verbs_async_qp(qp, SIW_EVENT_QP_FATAL);
	act(qp, action, false);
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
		err = siw_verbs_ud_open(qp, NULL, attr->fd);
		if (err)
			return err;
	}
	/* What only waits for company counts as begun. */
	if (event == SIW_QPE_TO_SQD && qp->type == SIW_QPT_UD)
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

	if (siw_verbs_inherited(qp->ctx))
		return -ESTALE;
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
	bool rc = qp->type == SIW_QPT_RC;

	*attr = (struct siw_qp_attr){
		.qp_state = qp->state,
		.cur_qp_state = qp->state,
		.qkey = qp->qkey,
		.qp_access_flags = rc ? qp->access : 0,
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
		.persona = qp->roce ? SIW_PERSONA_ROCE : SIW_PERSONA_IWARP,
	};
	if (qp->dgram)
		siw_rdmap_dgram_addr(qp->dgram, &init->addr);
}

int siw_query_qp(struct siw_qp *qp, struct siw_qp_attr *attr, struct siw_qp_init_attr *init)
{
	if (siw_verbs_inherited(qp->ctx))
		return -ESTALE;
	siw_lock(&qp->ctx->progress);
	siw_lock(&qp->send_lock);
	if (attr)
		query_attr(qp, attr);
	if (init)
		query_init(qp, init);
	siw_unlock(&qp->send_lock);
	siw_unlock(&qp->ctx->progress);
	return 0;
}

uint32_t siw_qp_num(struct siw_qp *qp)
{
	return qp->qpn;
}

int siw_qp_addr(struct siw_qp *qp, struct siw_addr *local, struct siw_addr *peer)
{
	struct siw_addr other = { 0 }, own = { 0 };
	int err = -ENOTCONN;

	if (siw_verbs_inherited(qp->ctx))
		return -ESTALE;
	siw_lock(&qp->ctx->progress);
	if (qp->dgram)
		err = siw_rdmap_dgram_addr(qp->dgram, &own);
	else if (qp->stream)
		err = siw_rdmap_addrs(qp->stream, &own, &other);
	siw_unlock(&qp->ctx->progress);
	if (err)
		return err;
	if (local)
		*local = own;
	if (peer)
		*peer = other;
	return 0;
}

void siw_verbs_qp_hold(struct siw_qp *qp)
{
	atomic_fetch_add(&qp->held, 1);
}

void siw_verbs_qp_drop(struct siw_qp *qp)
{
	atomic_fetch_sub(&qp->held, 1);
}

struct siw_context *siw_verbs_qp_context(struct siw_qp *qp)
{
	return qp->ctx;
}

int siw_verbs_qp_type(struct siw_qp *qp)
{
	return qp->type;
}

bool siw_verbs_qp_roce(struct siw_qp *qp)
{
	return qp->roce;
}

void siw_verbs_qp_depths(struct siw_qp *qp, int *ord, int *ird)
{
	*ord = qp->ord;
	*ird = qp->ird;
}
