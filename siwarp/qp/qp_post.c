/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Posting of sends and receives: checks the requests, and decides when posted requests are sent or
 * flushed.
 */
#include <errno.h>

#include "qp/qp_impl.h"

/* Makes the checks of a send request that are common to all QP types. Returns 0 or -errno. */
static inline int check_send_request(const struct siw_base_qp *base, const struct siw_send_wr *wr)
{
	int state = atomic_load_explicit(&base->qp.state, memory_order_relaxed);

	if (__builtin_expect(state < SIW_QPS_RTS, 0))
		return siw_qp_refuse_send_in_state(base, state);
	if ((uint32_t)wr->num_sge > base->cap.max_send_sge)
		return siw_refuse(SEND_SGE, (uint64_t)wr->num_sge, base->cap.max_send_sge);
	if (wr->num_sge && !wr->sg_list)
		return siw_refuse(SGE_LIST, (uint64_t)wr->num_sge);
	return 0;
}

static inline int post_one_send(struct siw_base_qp *base, const struct siw_send_wr *wr, bool wait)
{
	int err = check_send_request(base, wr);

	return __builtin_expect(err, 0) ? err : siw_class_of(base)->post(base, wr, wait);
}

/*
 * Checks that every request of the list is valid and that the send queue has room for all requests.
 * Returns 0 or -errno. *bad_wr: the first request that fails.
 */
static __attribute__((noinline)) int
post_check_all(struct siw_base_qp *base, struct siw_send_wr *wr, struct siw_send_wr **bad_wr)
{
	uint32_t used =
		base->sq_tail - atomic_load_explicit(&base->qp.sq_freed, memory_order_relaxed);
	int64_t err;

	if (!base->sq && siw_qp_sq_alloc(base))
		return siw_refuse(NO_MEMORY);
	for (; wr; wr = wr->next) {
		*bad_wr = wr;
		err = check_send_request(base, wr);
		if (!err)
			err = siw_class_of(base)->check(base, wr);
		if (err >= 0 && used++ > base->sq_mask)
			err = siw_qp_refuse_full_sq(base);
		if (err < 0)
			return (int)err;
	}
	return 0;
}

int siw_post_send(struct siw_qp *qp, struct siw_send_wr *wr, struct siw_send_wr **bad_wr)
{
	struct siw_base_qp *base = siw_base_qp_of(qp);
	enum siw_run run = SIW_RUN_BLOCKED;
	bool list, later;
	int err = 0;

	if (__builtin_expect(!qp, 0) || siw_device_inherited(qp->ctx)) {
		if (bad_wr)
			*bad_wr = wr;
		return qp ? siw_refuse(STALE) : siw_refuse_null("qp");
	}
	siw_lock(&qp->send_lock);
	list = wr && wr->next;
	later = qp->state >= SIW_QPS_RTS && siw_qp_may_delay_posts(base, wr);
	for (; wr; wr = wr->next) {
		err = post_one_send(base, wr, list || later);
		if (err) {
			if (bad_wr)
				*bad_wr = wr;
			break;
		}
	}
	if (!later || err)
		run = base->sq_head == base->sq_tail ? SIW_RUN_DONE : siw_class_of(base)->run(base);
	/*
	 * Wake the progress thread before the lock is released, because QP and device may be
	 * destroyed after the release.
	 */
	if (run != SIW_RUN_DONE)
		siw_qp_schedule_sending_turn(base);
	if (later && !err)
		atomic_store_explicit(&qp->lane->posts_delayed, true, memory_order_release);
	siw_unlock(&qp->send_lock);
	return err;
}

int siw_post_send_all(struct siw_qp *qp, struct siw_send_wr *wr, struct siw_send_wr **bad_wr)
{
	struct siw_base_qp *base = siw_base_qp_of(qp);
	struct siw_send_wr *bad = wr;
	int err;

	if (!qp || siw_device_inherited(qp->ctx)) {
		if (bad_wr)
			*bad_wr = wr;
		return qp ? siw_refuse(STALE) : siw_refuse_null("qp");
	}
	siw_lock(&qp->send_lock);
	err = post_check_all(base, wr, &bad);
	for (; !err && wr; wr = wr->next) {
		bad = wr;
		err = post_one_send(base, wr, true);
	}
	if (base->sq_head != base->sq_tail && siw_class_of(base)->run(base) != SIW_RUN_DONE)
		siw_qp_schedule_sending_turn(base);
	siw_unlock(&qp->send_lock);
	if (err && bad_wr)
		*bad_wr = bad;
	return err;
}

/* Returns whether no earlier request or completion of the send queue is left. */
static bool sq_has_no_slot_in_use(const struct siw_base_qp *base)
{
	return base->sq_head == base->sq_tail &&
	       atomic_load_explicit(&base->qp.sq_freed, memory_order_relaxed) == base->sq_tail;
}

/* Posts a request of siw_send_inline(). Returns its result. Under send_lock. */
static int post_one_inline(struct siw_base_qp *base, const struct siw_send_wr *wr)
{
	enum siw_run run = SIW_RUN_DONE;
	int err;

	/*
	 * A request that the call itself reports frees its slot immediately. Slots are freed in
	 * order, so no earlier slot may be in use.
	 */
	base->post_succeeded = false;
	base->post_reports_success = sq_has_no_slot_in_use(base);
	err = post_one_send(base, wr, false);
	if (!err && base->sq_head != base->sq_tail)
		run = siw_class_of(base)->run(base);
	base->post_reports_success = false;
	if (run != SIW_RUN_DONE)
		siw_qp_schedule_sending_turn(base);
	if (!base->post_succeeded)
		return err;
	atomic_store_explicit(&base->qp.sq_freed, base->sq_head, memory_order_relaxed);
	return 1;
}

int siw_send_inline(struct siw_qp *qp, uint64_t wr_id, const void *data, uint32_t length)
{
	struct siw_base_qp *base = siw_base_qp_of(qp);
	struct siw_sge sge = { .addr = (uintptr_t)data, .length = length };
	struct siw_send_wr wr = {
		.wr_id = wr_id,
		.sg_list = &sge,
		.num_sge = length != 0,
		.opcode = SIW_WR_SEND,
		.send_flags = SIW_SEND_SIGNALED | SIW_SEND_INLINE,
	};
	int type, rv;

	if (!qp || (!data && length))
		return siw_refuse_null(qp ? "data" : "qp");
	if (siw_device_inherited(qp->ctx))
		return siw_refuse(STALE);
	type = siw_class_of(base)->type;
	if (type != SIW_QPT_RC && type != SIW_QPT_UC)
		return siw_qp_refuse_type(base, "RC and UC");
	siw_lock(&qp->send_lock);
	rv = post_one_inline(base, &wr);
	siw_unlock(&qp->send_lock);
	return rv;
}

static void flush_late_receives(struct siw_base_qp *base)
{
	struct siw_lane *lane = base->qp.lane;
	uint64_t wr_id;

	/* Only a thread that holds the progress lock may remove receives from the queue. */
	siw_lock(&lane->lock);
	/* The QP may have been reset or destroyed before the lock was acquired. */
	while (base->qp.state == SIW_QPS_ERR && !base->qp.srq &&
	       siw_mem_buffer_queue_pop_unfilled(base->recvs, &wr_id) == 1)
		siw_qp_add_flushed_recv_completion(base, wr_id);
	siw_unlock(&lane->lock);
}

static int post_one_recv(struct siw_base_qp *base, const struct siw_recv_wr *wr)
{
	uint32_t used =
		base->rq_posted - atomic_load_explicit(&base->qp.rq_freed, memory_order_relaxed);
	int err;

	if ((uint32_t)wr->num_sge > base->cap.max_recv_sge)
		return siw_refuse(RECV_SGE, (uint64_t)wr->num_sge, base->cap.max_recv_sge);
	if (wr->num_sge && !wr->sg_list)
		return siw_refuse(SGE_LIST, (uint64_t)wr->num_sge);
	if (used >= base->cap.max_recv_wr)
		return siw_refuse_full(RECV_FULL, base->cap.max_recv_wr);
	err = siw_mem_buffer_queue_post(base->recvs, wr->wr_id, wr->sg_list, wr->num_sge);
	base->rq_posted += !err;
	return err ? siw_refuse_full(RECV_FULL, base->cap.max_recv_wr) : 0;
}

int siw_post_recv(struct siw_qp *qp, struct siw_recv_wr *wr, struct siw_recv_wr **bad_wr)
{
	struct siw_base_qp *base = siw_base_qp_of(qp);
	int state, err = 0;
	bool late;

	if (__builtin_expect(!qp, 0) || siw_device_inherited(qp->ctx)) {
		if (bad_wr)
			*bad_wr = wr;
		return qp ? siw_refuse(STALE) : siw_refuse_null("qp");
	}
	siw_lock(&qp->recv_lock);
	state = atomic_load(&qp->state);
	if (qp->srq)
		err = siw_refuse(RECV_SRQ);
	else if (state == SIW_QPS_RESET)
		err = siw_teardown_of(base) == SIW_DEAD ? siw_refuse(DESTROYED)
							: siw_refuse(RECV_STATE);
	for (; !err && wr; wr = wr->next) {
		err = post_one_recv(base, wr);
		if (err)
			break;
	}
	late = state == SIW_QPS_ERR && !qp->srq;
	if (__builtin_expect(qp->has_unexpected, 0))
		siw_qp_schedule_sending_turn(base);
	siw_unlock(&qp->recv_lock);
	if (err && bad_wr)
		*bad_wr = wr;
	if (late)
		flush_late_receives(base);
	return err;
}
