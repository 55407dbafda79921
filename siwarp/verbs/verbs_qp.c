/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Queue pairs: made and destroyed. What is between is in verbs_modify.c. */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "rdmap/rdmap_uc.h"
#include "verbs/verbs_impl.h"

/* ---- creating -------------------------------------------------------------------------------- */

static int check_init(const struct siw_pd *pd, const struct siw_qp_init_attr *init)
{
	const struct siw_device_attr *max = &pd->ctx->attr;
	const struct siw_qp_cap *cap = &init->cap;

	if (init->qp_type != SIW_QPT_RC && init->qp_type != SIW_QPT_UC &&
	    init->qp_type != SIW_QPT_UD && init->qp_type != SIW_QPT_RD)
		return -EINVAL;
	if (init->max_records && ((init->qp_type != SIW_QPT_UD && init->qp_type != SIW_QPT_RD) ||
				  init->max_records > SIW_MAX_RECORDS))
		return -EINVAL;
	if (init->persona < SIW_PERSONA_AUTO || init->persona > SIW_PERSONA_ROCE)
		return -EINVAL;
	if (init->error_policy < SIW_ERROR_POLICY_AUTO ||
	    init->error_policy > SIW_ERROR_POLICY_MESSAGE)
		return -EINVAL;
	if (!init->send_cq || !init->recv_cq || init->send_cq->ctx != pd->ctx ||
	    init->recv_cq->ctx != pd->ctx)
		return -EINVAL;
	if (init->srq && init->srq->ctx != pd->ctx)
		return -EINVAL;
	if (init->share && (init->qp_type != SIW_QPT_UD || init->share->ctx != pd->ctx ||
			    init->addr.family || init->addr.port_be))
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
	/* A UD send that goes to the socket at once needs no ring, and there may be thousands of QPs. */
	if (qp->type != SIW_QPT_UD && siw_verbs_sq_make(qp))
		return -ENOMEM;
	if (qp->type == SIW_QPT_RD)
		siw_verbs_rd_slots(qp);
	if (qp->srq) {
		qp->recvs = qp->srq->recvs;
		return 0;
	}
	return siw_rdmap_queue_create(qp->ctx->port, cap->max_recv_wr, cap->max_recv_sge,
				      qp->pd->number, &qp->recvs);
}

bool siw_verbs_qpn_taken(const struct siw_context *ctx, uint32_t qpn)
{
	for (const struct siw_link *l = ctx->qps.next; l != &ctx->qps; l = l->next)
		if (siw_container(l, const struct siw_qp, in_ctx)->qpn == qpn)
			return true;
	return false;
}

static uint32_t next_rc_qpn(struct siw_context *ctx)
{
	uint32_t qpn;
	bool taken;

	do {
		qpn = ctx->next_rc_qpn;
		ctx->next_rc_qpn = qpn == SIW_LAST_RC_QPN ? SIW_FIRST_RC_QPN : qpn + 1;
		taken = ctx->n_high && siw_verbs_qpn_taken(ctx, qpn);
	} while (taken);
	return qpn;
}

static int open_transport(struct siw_qp *qp, const struct siw_qp_init_attr *init)
{
	struct siw_addr addr = init->addr;
	uint16_t port = addr.port_be;

	if (qp->type == SIW_QPT_RC) {
		qp->linger = calloc(1, sizeof(*qp->linger));
		if (!qp->linger)
			return -ENOMEM;
		qp->qpn = next_rc_qpn(qp->ctx);
		qp->pollee.serve = siw_verbs_rc_serve;
		return 0;
	}
	if (init->share)
		return siw_verbs_ud_share(qp, init->share);
	if (!addr.family) {
		if (!qp->ctx->now.n_addrs)
			return -EADDRNOTAVAIL;
		addr = qp->ctx->now.addrs[0];
		addr.port_be = port;
	}
	return siw_verbs_open_socket(qp, &addr, -1);
}

/* What it has of its own. Nobody posts any more: it is in RESET, or was never whole. */
static void free_queues(struct siw_qp *qp)
{
	if (qp->dgram)
		siw_rdmap_dgram_close(qp->dgram);
	siw_verbs_uc_close(qp);
	siw_verbs_rd_close(qp);
	if (qp->recvs && !qp->srq)
		siw_rdmap_queue_destroy(qp->recvs);
	free(qp->linger);
	free(qp->errq);
	free(qp->sq);
	qp->dgram = NULL;
	qp->recvs = NULL;
	qp->linger = NULL;
	qp->errq = NULL;
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
	qp->error_policy = init->error_policy ? init->error_policy
					      : (int)siw_settings()->error_policy;
	siw_verbs_err_policy(qp);
	qp->ord = qp->ird = -1;
	qp->rnr_retry = 7;
	qp->min_rnr_timer = 12;
	qp->access = SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_READ | SIW_ACCESS_REMOTE_ATOMIC;
	qp->burst = 1;
	qp->cap = init->cap;
	grant(&qp->cap, qp->srq);
	siw_link_init(&qp->in_ctx);
	siw_link_init(&qp->of_srq);
	siw_link_init(&qp->timed.link);
	qp->timed.tick = qp->type == SIW_QPT_UD ? siw_verbs_record_tick : siw_verbs_rc_tick;
	qp->max_records = init->max_records;
	siw_link_init(&qp->rd_busy);
	siw_link_init(&qp->rd_ready);
	qp->max_peers = init->max_peers;
	qp->peer_timeout_ms = init->peer_timeout_ms;
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
	struct siw_context *ctx;
	struct siw_qp *qp = NULL;
	int err = -EINVAL;

	if (!pd || !init)
		goto fail;
	ctx = pd->ctx;
	err = siw_verbs_inherited(ctx) ? -ESTALE : check_init(pd, init);
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
	struct siw_context *ctx;

	if (!qp)
		return -EINVAL;
	ctx = qp->ctx;
	if (siw_verbs_inherited(ctx))
		return -ESTALE;
	if (atomic_load(&qp->held))
		return -EBUSY;
	siw_lock(&ctx->progress);
	if (qp->dead || siw_link_alone(&qp->in_ctx) || qp->n_groups) {
		bool member = qp->n_groups;

		siw_unlock(&ctx->progress);
		return member ? -EBUSY : -EINVAL;
	}
	if (qp->type == SIW_QPT_RC)
		siw_verbs_rc_settle(qp);
	else if (qp->type == SIW_QPT_UD)
		siw_verbs_ud_finish(qp);
	siw_verbs_qp_step(qp, SIW_QPE_TO_RESET); /* what is posted from here on is refused */
	if (qp->type == SIW_QPT_RC)
		siw_verbs_rc_release(qp);
	siw_verbs_forget(qp);
	siw_link_del(&qp->in_ctx);
	ctx->n_high -= qp->type == SIW_QPT_UD && qp->qpn >= SIW_FIRST_RC_QPN;
	siw_verbs_cq_purge(qp->send_cq, qp);
	siw_verbs_cq_purge(qp->recv_cq, qp);
	if (qp->dgram)
		siw_rdmap_dgram_close(qp->dgram);
	qp->dgram = NULL;
	siw_verbs_uc_close(qp);
	siw_verbs_rd_close(qp);
	siw_unlock(&ctx->progress);
	/* Nothing reaches it any more, and an event's handler may still want to look at it. */
	siw_verbs_async_leave(&qp->async);
	count_qp(qp, UINT32_MAX);
	give_back(qp);
	return 0;
}

/* ---- asking ---------------------------------------------------------------------------------- */

uint32_t siw_qp_num(struct siw_qp *qp)
{
	return qp ? qp->qpn : 0; /* which no QP has */
}

int siw_qp_addr(struct siw_qp *qp, struct siw_addr *local, struct siw_addr *peer)
{
	struct siw_addr other = { 0 }, own = { 0 };
	int err = -ENOTCONN;

	if (!qp)
		return -EINVAL;
	if (siw_verbs_inherited(qp->ctx))
		return -ESTALE;
	siw_lock(&qp->ctx->progress);
	if (qp->dgram)
		err = siw_rdmap_dgram_addr(qp->dgram, &own);
	else if (qp->uc)
		err = siw_rdmap_uc_addr(qp->uc, &own);
	else if (qp->rd)
		err = siw_rdmap_rd_addr(qp->rd, &own);
	else if (qp->stream)
		err = siw_rdmap_addrs(qp->stream, &own, &other);
	if (qp->uc)
		other = qp->peer;
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
