/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Creation, destruction and queries of queue pairs. qp_modify.c changes their attributes. */
#include <errno.h>
#include <stdlib.h>

#include "qp/qp_impl.h"

/* ---- creating -------------------------------------------------------------------------------- */

/* The classes of the QP types, in the order of lane->free_qps, which has one freelist per type. */
static const struct siw_qp_class *const types[SIW_QP_TYPES] = {
	&siw_qp_rc_class,
	&siw_qp_uc_class,
	&siw_qp_ud_class,
	&siw_qp_rd_class,
};

static int qp_class_index_of_type(int type)
{
	int i = 0;

	while (i < SIW_QP_TYPES && types[i]->type != type)
		i++;
	return i;
}

const struct siw_qp_class *siw_qp_class_of_type(int type)
{
	int i = qp_class_index_of_type(type);

	return i < SIW_QP_TYPES ? types[i] : NULL;
}

static uint32_t round_up_to_power_of_two(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p <<= 1;
	return p;
}

/*
 * Rounds the requested capacities up: at least one SGE, numbers of requests to powers of two,
 * inline data to a multiple of 16 octets. shared: the QP uses an SRQ and has no receive queue.
 */
static void qp_round_caps(struct siw_qp_cap *cap, bool shared)
{
	cap->max_send_wr = round_up_to_power_of_two(cap->max_send_wr);
	cap->max_recv_wr = shared ? 0 : round_up_to_power_of_two(cap->max_recv_wr);
	if (!cap->max_send_sge)
		cap->max_send_sge = 1;
	if (shared)
		cap->max_recv_sge = 0;
	else if (!cap->max_recv_sge)
		cap->max_recv_sge = 1;
	cap->max_inline_data = (cap->max_inline_data + 15) & ~15u;
}

static int qp_create_queues(struct siw_base_qp *base)
{
	struct siw_mem_queue_attr queue = { .pd = base->qp.pd->number };
	const struct siw_qp_cap *cap = &base->cap;

	base->sq_stride =
		(uint32_t)(sizeof(struct siw_wqe) + cap->max_send_sge * sizeof(struct siw_sge) +
			   cap->max_inline_data);
	base->sq_stride = (base->sq_stride + 63) & ~63u;
	base->sq_mask = cap->max_send_wr - 1;
	/*
	 * With lazy_slots, the slots of the send queue are allocated when they are first needed,
	 * because a UD send that is passed directly to the socket needs no slot, and there may be
	 * thousands of QPs.
	 */
	if (!siw_class_of(base)->lazy_slots && siw_qp_sq_alloc(base))
		return -ENOMEM;
	if (base->qp.srq) {
		base->recvs = base->qp.srq->recvs;
		return 0;
	}
	queue.depth = cap->max_recv_wr;
	queue.max_sge = cap->max_recv_sge;
	return siw_mem_buffer_queue_create(&queue, &base->recvs);
}

/* Frees the QP's queues. Posts are refused by now: the QP is in RESET, or its creation failed. */
static void qp_free_queues(struct siw_base_qp *base)
{
	siw_class_of(base)->close(base);
	if (base->recvs && !base->qp.srq)
		siw_mem_buffer_queue_destroy(base->recvs);
	free(base->errq);
	free(base->sq);
	base->recvs = NULL;
	base->errq = NULL;
	base->sq = NULL;
}

/* Zeroes the octets [from, to) of the QP's struct. */
static void qp_zero_struct_range(struct siw_base_qp *base, size_t from, size_t to)
{
	memset((char *)base + from, 0, to - from);
}

#define START_OF(field) offsetof(struct siw_base_qp, field)
#define END_OF(field)	(START_OF(field) + sizeof(((struct siw_base_qp *)0)->field))

/*
 * Returns a zeroed struct for a new QP; zero represents state RESET. Memory from the freelist keeps
 * the fields that a late post on the destroyed QP may still use: locks, links, ops.
 */
static struct siw_base_qp *qp_alloc_zeroed(struct siw_lane *lane, const struct siw_qp_class *class)
{
	struct siw_link *old =
		siw_device_freelist_take(&lane->free_qps[qp_class_index_of_type(class->type)]);
	struct siw_base_qp *base;

	if (old) {
		base = siw_container(old, struct siw_base_qp, qp.in_freelist);
		siw_device_remove_unsent_qp(&base->qp);
		siw_lock(&base->qp.send_lock);
		siw_lock(&base->qp.recv_lock);
		qp_zero_struct_range(base, START_OF(qp.handler), START_OF(qp.ops));
		qp_zero_struct_range(base, START_OF(qp.pd), START_OF(qp.send_lock));
		qp_zero_struct_range(base, START_OF(qp.sq_freed), START_OF(qp.unsent));
		qp_zero_struct_range(base, START_OF(qp.has_unexpected), START_OF(qp.in_freelist));
		qp_zero_struct_range(base, END_OF(qp.in_freelist), class->size);
		siw_unlock(&base->qp.recv_lock);
		siw_unlock(&base->qp.send_lock);
		return base;
	}
	base = calloc(1, class->size);
	if (!base)
		return NULL;
	base->qp.ctx = lane->ctx;
	base->qp.lane = lane;
	base->qp.ops = &class->ops;
	siw_lock_init(&base->qp.send_lock);
	siw_lock_init(&base->qp.recv_lock);
	siw_link_init(&base->qp.unsent);
	siw_link_init(&base->qp.busy);
	siw_link_init(&base->qp.in_freelist);
	return base;
}

static void qp_set_initial_attributes(struct siw_base_qp *base, struct siw_pd *pd,
				      const struct siw_qp_init_attr *init)
{
	struct siw_qp *qp = &base->qp;

	qp->pd = pd;
	qp->serial = atomic_fetch_add(&pd->ctx->next_qp, 1);
	qp->send_cq = init->send_cq;
	qp->recv_cq = init->recv_cq;
	qp->srq = init->srq;
	base->user = init->qp_context;
	base->sig_all = init->sq_sig_all;
	base->grh = init->grh;
	base->every_addr = init->every_addr;
	base->no_crc = init->no_crc || !siw_settings()->crc;
	base->roce = (init->persona ? init->persona : siw_settings()->persona) == SIW_PERSONA_ROCE;
	base->keep_unexpected = init->keep_unexpected;
	base->private_always = init->private_messages;
	base->error_policy = init->error_policy ? init->error_policy
						: (int)siw_settings()->error_policy;
	siw_qp_err_update_policy(base, false);
	base->ord = base->ird = -1;
	base->rnr_retry = 7;
	base->min_rnr_timer = 12;
	base->access = SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_READ | SIW_ACCESS_REMOTE_ATOMIC;
	base->burst = 1;
	/* any value but the current one: the first post then begins a round, and is not delayed */
	base->round.polls = siw_qp_poll_round(qp->lane) - 1;
	base->cap = init->cap;
	qp_round_caps(&base->cap, qp->srq);
	siw_link_init(&qp->in_ctx);
	siw_link_init(&qp->in_lane);
	siw_link_init(&qp->in_srq);
	siw_link_init(&base->timed.link);
	siw_link_init(&base->holds);
	siw_link_init(&base->flows);
	siw_link_init(&base->flow.busy);
	siw_link_init(&base->flow.ready);
	if (!siw_class_of(base)->many_flows)
		siw_link_add(&base->flows, &base->flow.busy);
	siw_device_init_object_async(&qp->async, qp->ctx, qp, base->user);
}

/*
 * Queue pairs that share a socket are in one lane, because one thread at a time receives from it.
 */
static int qp_choose_lane(const struct siw_qp_init_attr *init, struct siw_lane **out)
{
	if (!init->shared_socket_qp)
		return siw_device_cq_get_or_choose_lane(init->recv_cq, out);
	*out = init->shared_socket_qp->lane;
	return 0;
}

static struct siw_base_qp *qp_alloc_and_init(struct siw_lane *lane, struct siw_pd *pd,
					     const struct siw_qp_init_attr *init)
{
	struct siw_base_qp *base = qp_alloc_zeroed(lane, siw_qp_class_of_type(init->qp_type));

	if (!base)
		return NULL;
	/* A late post on the destroyed QP that used the same memory before may hold a lock. */
	siw_lock(&base->qp.send_lock);
	siw_lock(&base->qp.recv_lock);
	qp_set_initial_attributes(base, pd, init);
	siw_unlock(&base->qp.recv_lock);
	siw_unlock(&base->qp.send_lock);
	return base;
}

static void qp_release_memory(struct siw_base_qp *base)
{
	struct siw_lane *lane = base->qp.lane;

	siw_lock(&lane->lock);
	qp_free_queues(base);
	siw_set_teardown(base, SIW_DEAD);
	siw_unlock(&lane->lock);
	siw_qp_release_qpn(base);
	siw_device_freelist_give(&lane->free_qps[qp_class_index_of_type(siw_class_of(base)->type)],
				 &base->qp.in_freelist);
}

static void adjust_qp_counts_of_used_objects(struct siw_base_qp *base, int by)
{
	atomic_fetch_add(&base->qp.pd->n_qp, (uint32_t)by);
	siw_device_cq_adjust_qp_count(base->qp.send_cq, base->qp.lane, by);
	siw_device_cq_adjust_qp_count(base->qp.recv_cq, base->qp.lane, by);
	if (base->qp.srq)
		atomic_fetch_add(&base->qp.srq->n_qp, (uint32_t)by);
}

/* Subtracts a QP that is being destroyed from the counts of QPs of the device and its objects. */
static void qp_remove_from_counts(struct siw_base_qp *base)
{
	adjust_qp_counts_of_used_objects(base, -1);
	atomic_fetch_sub(&base->qp.ctx->n_qp, 1);
}

/*
 * Clears the references of connection ids to the QP. Called with the lock of the QP's lane held, so
 * that the holder of that lock can rely on a reference that it has read.
 */
static void qp_clear_weak_references(struct siw_base_qp *base)
{
	siw_lock(&base->qp.ctx->refs_lock);
	while (!siw_link_empty(&base->holds)) {
		struct siw_qp_hold *hold =
			siw_container(base->holds.next, struct siw_qp_hold, link);

		siw_link_del(&hold->link);
		hold->qp = NULL;
	}
	siw_unlock(&base->qp.ctx->refs_lock);
}

/*
 * Removes the QP from its context and drops its requests. Returns 0, or -errno if nothing was
 * changed. Progress lock held.
 */
static int qp_remove(struct siw_base_qp *base)
{
	const struct siw_qp_class *class = siw_class_of(base);
	struct siw_qp *qp = &base->qp;
	int err;

	if (siw_teardown_of(base) == SIW_DEAD || siw_link_empty(&qp->in_lane))
		return siw_refuse(DESTROYED);
	err = class->may_destroy ? class->may_destroy(base) : 0;
	if (err)
		return err;
	siw_qp_prepare_transition(base, SIW_QPE_TO_RESET, NULL, 0);
	if (class->before_destroy)
		class->before_destroy(base);
	siw_qp_apply_state_event(base,
				 SIW_QPE_TO_RESET); /* after the state change, posts are refused */
	if (class->release)
		class->release(base);
	siw_qp_drop_requests_for_reset(base);
	/*
	 * The QPN is released before the references are cleared: siw_qp_weak_ref_set() adds no
	 * reference to a QP without a QPN, so none remains.
	 */
	siw_qp_release_qpn(base);
	qp_clear_weak_references(base);
	siw_link_del(&qp->in_lane);
	if (siw_link_empty(&qp->lane->qps))
		atomic_fetch_and(&qp->ctx->lanes_with_qps, ~(1u << qp->lane->index));
	siw_device_remove_qp_from_busy_list(qp);
	class->close(base);
	return 0;
}

/* Destroys a QP as siw_destroy_qp() does, because its device is closed by force. */
static void qp_destroy_by_force(struct siw_child *child)
{
	struct siw_qp *qp = siw_container(child, struct siw_qp, child);
	struct siw_base_qp *base = siw_base_qp_of(qp);

	siw_lock(&qp->lane->lock);
	if (siw_class_of(base) == &siw_qp_ud_class)
		siw_qp_leave_mcast_groups(siw_ud_qp_of(base));
	qp_remove(base);
	siw_unlock(&qp->lane->lock);
	siw_device_drop_object_events_unacked(&qp->async);
	qp_remove_from_counts(base);
	qp_release_memory(base);
}

/* Opens the QP's sockets, and adds the QP to its lane and device. */
static int qp_open_in_lane(struct siw_base_qp *base, struct siw_qp_init_attr *init,
			   int (*pair)(struct siw_rc_qp *rc))
{
	struct siw_lane *lane = base->qp.lane;
	struct siw_context *ctx = lane->ctx;
	int err;

	if (!siw_device_increment_count_if_below_max(&ctx->n_qp, ctx->attr.max_qp))
		return siw_device_refuse_limit_reached("max_qp", ctx->attr.max_qp);
	siw_lock(&lane->lock);
	/* A device that was closed by force meanwhile has no poller. */
	err = lane->poller ? siw_class_of(base)->create(base, init) : siw_refuse(STALE);
	if (!err && init->by_qpn)
		err = pair(siw_rc_qp_of(base));
	if (!err) {
		siw_qp_enter_qpn_in_list(base);
		siw_link_add(&lane->qps, &base->qp.in_lane);
		atomic_fetch_or(&ctx->lanes_with_qps, 1u << lane->index);
		adjust_qp_counts_of_used_objects(base, 1);
	}
	siw_unlock(&lane->lock);
	if (err)
		atomic_fetch_sub(&ctx->n_qp, 1);
	return err;
}

static int qp_create_in_lane(struct siw_lane *lane, struct siw_pd *pd,
			     struct siw_qp_init_attr *init, int (*pair)(struct siw_rc_qp *rc),
			     struct siw_base_qp **out)
{
	struct siw_base_qp *base = qp_alloc_and_init(lane, pd, init);
	int err;

	if (!base)
		return -ENOMEM;
	err = qp_create_queues(base);
	if (!err)
		err = qp_open_in_lane(base, init, pair);
	if (err == -EADDRINUSE && siw_class_of(base)->free_port &&
	    siw_class_of(base)->free_port(base, init))
		err = qp_open_in_lane(base, init, pair);
	if (err)
		qp_release_memory(base);
	else
		*out = base;
	return err;
}

/*
 * Creates a QP that connects by QPN in a lane that has a TCP port for such QPs already, because no
 * port is free for the lane of the QP's CQ: settings rc_port_first and rc_port_last may permit
 * fewer ports than there are lanes. Returns 0; -EADDRINUSE: no lane has a port with a free QPN; or
 * another -errno.
 */
static int qp_create_in_other_lane_with_rc_port(const struct siw_lane *own, struct siw_pd *pd,
						struct siw_qp_init_attr *init,
						int (*pair)(struct siw_rc_qp *rc),
						struct siw_base_qp **out)
{
	int err = -EADDRINUSE;

	SIW_EACH_LANE(lane, pd->ctx)
	{
		bool has_port;

		siw_lock(&lane->lock);
		has_port = !siw_link_empty(&lane->pair_ports);
		siw_unlock(&lane->lock);
		if (lane != own && has_port)
			err = qp_create_in_lane(lane, pd, init, pair, out);
		if (err != -EADDRINUSE)
			break;
	}
	return err;
}

int siw_qp_create(struct siw_pd *pd, struct siw_qp_init_attr *init,
		  int (*pair)(struct siw_rc_qp *rc), struct siw_qp **out)
{
	struct siw_base_qp *base;
	struct siw_lane *lane;
	int err = qp_choose_lane(init, &lane);

	if (!err)
		err = qp_create_in_lane(lane, pd, init, pair, &base);
	if (err == -EADDRINUSE && init->by_qpn)
		err = qp_create_in_other_lane_with_rc_port(lane, pd, init, pair, &base);
	if (err)
		return err;
	siw_device_add_child(pd->ctx, &base->qp.child, SIW_CHILD_QP, qp_destroy_by_force, -1);
	init->cap = base->cap;
	*out = &base->qp;
	return 0;
}

int siw_destroy_qp(struct siw_qp *qp)
{
	struct siw_base_qp *base = siw_base_qp_of(qp);
	int err = siw_qp_check_usable(qp);

	if (err)
		return err;
	siw_lock(&qp->lane->lock);
	err = qp_remove(base);
	siw_unlock(&qp->lane->lock);
	if (err)
		return err;
	siw_device_remove_child(qp->ctx, &qp->child);
	/* Wait until no event handler uses the QP any more. */
	siw_device_drop_async_events_then_wait(&qp->async);
	qp_remove_from_counts(base);
	qp_release_memory(base);
	return 0;
}

/* ---- queries --------------------------------------------------------------------------------- */

uint32_t siw_qp_num(struct siw_qp *qp)
{
	return qp ? qp->qpn : 0; /* no QP has number 0 */
}

int siw_qp_addr(struct siw_qp *qp, struct siw_addr *local, struct siw_addr *peer)
{
	struct siw_addr other = { 0 }, own = { 0 };
	int err = siw_qp_check_usable(qp);

	if (err)
		return err;
	siw_lock(&qp->lane->lock);
	err = siw_class_of(siw_base_qp_of(qp))->addr(siw_base_qp_of(qp), &own, &other);
	siw_unlock(&qp->lane->lock);
	if (err == -ENOTCONN)
		return siw_refuse(NOT_CONNECTED);
	if (err)
		return siw_refused(err);
	if (local)
		*local = own;
	if (peer)
		*peer = other;
	return 0;
}

int siw_qp_weak_ref_set(struct siw_qp_hold *hold, struct siw_qp *qp)
{
	int err = 0;

	siw_lock(&qp->ctx->refs_lock);
	if (siw_qp_is_qpn_in_list(siw_base_qp_of(qp))) {
		siw_link_init(&hold->link);
		siw_link_add(&siw_base_qp_of(qp)->holds, &hold->link);
		hold->qp = qp;
	} else { /* another thread has destroyed the QP */
		err = siw_refuse(DESTROYED);
	}
	siw_unlock(&qp->ctx->refs_lock);
	return err;
}

void siw_qp_weak_ref_clear(struct siw_context *ctx, struct siw_qp_hold *hold)
{
	siw_lock(&ctx->refs_lock);
	if (hold->qp)
		siw_link_del(&hold->link);
	hold->qp = NULL;
	siw_unlock(&ctx->refs_lock);
}

struct siw_qp *siw_qp_get_by_weak_ref(struct siw_context *ctx, const struct siw_qp_hold *hold)
{
	struct siw_qp *qp;

	siw_lock(&ctx->refs_lock);
	qp = hold->qp;
	siw_unlock(&ctx->refs_lock);
	return qp;
}

bool siw_qp_weak_ref_query(struct siw_context *ctx, const struct siw_qp_hold *hold,
			   struct siw_qp_held *held)
{
	struct siw_base_qp *base;

	siw_lock(&ctx->refs_lock);
	base = hold->qp ? siw_base_qp_of(hold->qp) : NULL;
	if (base && held) {
		/* Attributes are stored under the send lock (qp_store_attributes()). */
		siw_lock(&base->qp.send_lock);
		*held = (struct siw_qp_held){ base->qp.state, base->ord, base->ird, base->roce };
		siw_unlock(&base->qp.send_lock);
	}
	siw_unlock(&ctx->refs_lock);
	return base;
}

int siw_persona_setting(void)
{
	return (int)siw_settings()->persona;
}

struct siw_context *siw_qp_device_context(struct siw_qp *qp)
{
	return qp->ctx;
}

int siw_qp_type(struct siw_qp *qp)
{
	return siw_class_of(siw_base_qp_of(qp))->type;
}

int siw_qp_disable_connecting_by_qpn(struct siw_qp *qp)
{
	struct siw_rc_qp *rc = siw_rc_qp_of(siw_base_qp_of(qp));
	int err = 0;

	siw_lock(&qp->lane->lock);
	if (rc->pairs && qp->state != SIW_QPS_RESET && qp->state != SIW_QPS_INIT)
		err = siw_refuse(CM_QP_PAIRS);
	if (!err && rc->pairs)
		rc->pairs->close(rc); /* ends the use of the TCP port; the QP keeps its QPN */
	siw_unlock(&qp->lane->lock);
	return err;
}
