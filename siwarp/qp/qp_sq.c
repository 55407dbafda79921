/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The send queue of a QP: slots of requests, flows that link the requests, and the completion of
 * requests.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/settings.h"
#include "qp/qp_impl.h"

/*
 * A program that has polled AWAKE_POLLS times since it armed a CQ is assumed to keep polling rather
 * than sleep.
 */
#define AWAKE_POLLS 64
/*
 * Posts are delayed for a batch after DENSE_ROUNDS consecutive dense rounds. A round is dense if it
 * has several posts and the next round begins before a pause of SILENCE_NS has passed. Since only
 * the beginnings of rounds are timed, each post extends the allowed time by 1/SILENCE_POSTS of the
 * pause, about the time of a system call on a busy machine (64 posts alone can take as long as the
 * pause), and by 1 ns per octet.
 */
#define DENSE_ROUNDS  4
#define SILENCE_NS    200000u
#define SILENCE_POSTS 20
/* Values of SIWARP_BATCHING: never or always delay posts; 0: the traffic decides. */
enum { NEVER = 1, ALWAYS };

/* ---- posting --------------------------------------------------------------------------------- */

/*
 * Copies inline data to the memory after the WQE's SGEs; the WQE of an inline request has one SGE,
 * which points to the copy.
 */
static void wqe_copy_inline_data(struct siw_base_qp *base, struct siw_wqe *wqe,
				 const struct siw_send_wr *wr)
{
	char *to = (char *)(wqe->sge + base->cap.max_send_sge);

	wqe->sge[0] = (struct siw_sge){ .addr = (uintptr_t)to, .length = (uint32_t)wqe->op.length };
	wqe->op.nsge = 1;
	for (int i = 0; i < wr->num_sge; i++) {
		const void *from = (const void *)(uintptr_t)wr->sg_list[i].addr;

		if (wr->sg_list[i].length) /* the address of an empty SGE may be invalid */
			memcpy(to, from, wr->sg_list[i].length);
		to += wr->sg_list[i].length;
	}
}

static void wqe_copy_sge_list(struct siw_wqe *wqe, const struct siw_send_wr *wr)
{
	wqe->op.nsge = wr->num_sge;
	if (wr->num_sge) /* sg_list may be NULL if num_sge is 0 */
		memcpy(wqe->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(wqe->sge[0]));
}

int siw_qp_sq_alloc(struct siw_base_qp *base)
{
	base->sq = calloc(base->cap.max_send_wr, base->sq_stride);
	return base->sq ? 0 : -ENOMEM;
}

/*
 * Removes a free slot from the send queue and returns it; the caller has checked that a slot is
 * free.
 */
static struct siw_wqe *sq_alloc_slot(struct siw_base_qp *base)
{
	struct siw_wqe *wqe = base->sq_free;

	if (wqe)
		base->sq_free = wqe->chain;
	else
		wqe = (struct siw_wqe *)(base->sq + (size_t)base->sq_used++ * base->sq_stride);
	return wqe;
}

static void flow_append_request(struct siw_base_qp *base, struct siw_flow *flow,
				struct siw_wqe *wqe)
{
	wqe->chain = NULL;
	if (flow->first)
		flow->last->chain = wqe;
	else
		flow->first = wqe;
	flow->last = wqe;
	if (!flow->next)
		flow->next = wqe;
	if (siw_link_empty(&flow->busy))
		siw_link_add(&base->flows, &flow->busy);
}

struct siw_wqe *siw_qp_sq_append(struct siw_base_qp *base, struct siw_flow *flow,
				 const struct siw_send_wr *wr, uint64_t length)
{
	struct siw_wqe *wqe;

	if (siw_qp_sq_full(base) || (__builtin_expect(!base->sq, 0) && siw_qp_sq_alloc(base)))
		return NULL;
	wqe = sq_alloc_slot(base);
	wqe->wr_id = wr->wr_id;
	wqe->op.length = length;
	wqe->opcode = (uint8_t)wr->opcode;
	wqe->state = SIW_WQE_POSTED;
	wqe->flags = wr->send_flags;
	wqe->op.sgl = wqe->sge;
	if (wr->send_flags & SIW_SEND_INLINE)
		wqe_copy_inline_data(base, wqe, wr);
	else
		wqe_copy_sge_list(wqe, wr);
	base->sq_tail++;
	flow_append_request(base, flow, wqe);
	siw_device_mark_busy(&base->qp);
	return wqe;
}

struct siw_wqe *siw_qp_flow_finish_current_request(struct siw_base_qp *base, struct siw_flow *flow,
						   int state, int status)
{
	struct siw_wqe *wqe = flow->next;

	wqe->state = (uint8_t)state;
	wqe->status = (uint8_t)status;
	flow->next = wqe->chain;
	base->begun++;
	return wqe;
}

/* ---- completing ------------------------------------------------------------------------------ */

enum siw_wc_status siw_qp_wc_status_of_send_error(const struct siw_base_qp *base, int err)
{
	return err == -EACCES || err == -EFAULT ? SIW_WC_LOC_PROT_ERR
						: (enum siw_wc_status)siw_class_of(base)->failure;
}

static bool wqe_needs_no_completion(const struct siw_base_qp *base, uint32_t flags, int status)
{
	return status == SIW_WC_SUCCESS && !base->sig_all && !(flags & SIW_SEND_SIGNALED);
}

static void sq_put_completion(struct siw_base_qp *base, uint64_t wr_id, int wr_opcode,
			      uint64_t length, int status, const struct siw_addr *peer)
{
	struct siw_wc wc = {
		.wr_id = wr_id,
		.status = status,
		.opcode = siw_qp_wc_opcode_of_wr_opcode(wr_opcode),
		.vendor_err = status ? base->wire_err : 0,
		.byte_len = (uint32_t)length,
		.qp_num = atomic_load_explicit(&base->qp.qpn, memory_order_relaxed),
	};
	struct siw_way way = { .source = peer };

	if (__builtin_expect(base->post_reports_success, 0) && status == SIW_WC_SUCCESS) {
		base->post_reports_success = false;
		base->post_succeeded = true;
		return;
	}
	siw_device_cq_add_completion(&base->qp, base->qp.send_cq, &wc, peer ? &way : NULL,
				     base->sq_head + 1, false);
}

void siw_qp_sq_complete_without_slot(struct siw_base_qp *base, const struct siw_send_wr *wr,
				     uint64_t length, int status, const struct siw_addr *peer)
{
	base->sq_tail++;
	if (!wqe_needs_no_completion(base, wr->send_flags, status))
		sq_put_completion(base, wr->wr_id, wr->opcode, length, status, peer);
	base->sq_head++;
}

/*
 * Releases the region that a bind has pinned, if the bind never began. (A bind that began has
 * released the region already.)
 */
static void wqe_release_region_of_bind(struct siw_base_qp *base, struct siw_wqe *wqe)
{
	if (__builtin_expect(wqe->opcode == SIW_WR_BIND_MW, 0))
		siw_device_mw_drop_bind(base->qp.ctx, &wqe->bind);
}

void siw_qp_flow_complete_oldest_request(struct siw_base_qp *base, struct siw_flow *flow,
					 int status)
{
	struct siw_wqe *wqe = flow->first;

	wqe_release_region_of_bind(base, wqe);
	base->begun -= wqe->state != SIW_WQE_POSTED;
	if (flow->next == wqe)
		flow->next = wqe->chain;
	flow->first = wqe->chain;
	if (flow->peer && !flow->first)
		siw_link_del(&flow->busy);
	if (!wqe_needs_no_completion(base, wqe->flags, status))
		sq_put_completion(base, wqe->wr_id, wqe->opcode, wqe->op.length, status,
				  status ? flow->peer : NULL);
	base->sq_head++;
	wqe->chain = base->sq_free;
	base->sq_free = wqe;
}

void siw_qp_flow_flush_requests(struct siw_base_qp *base, struct siw_flow *flow, int first)
{
	while (flow->first) {
		const struct siw_wqe *wqe = flow->first;

		if (wqe->state == SIW_WQE_DONE || (wqe->state == SIW_WQE_BEGUN && wqe->status)) {
			siw_qp_flow_complete_oldest_request(base, flow, wqe->status);
		} else {
			siw_qp_flow_complete_oldest_request(base, flow, first);
			first = SIW_WC_WR_FLUSH_ERR;
		}
	}
	flow->reads_out = 0;
	siw_link_del(&flow->ready);
}

void siw_qp_flush_late_send(struct siw_base_qp *base)
{
	if (base->qp.state == SIW_QPS_SQE || siw_teardown_of(base) == SIW_FLUSHED)
		siw_qp_flow_flush_requests(base, &base->flow, SIW_WC_WR_FLUSH_ERR);
}

static void flow_drop_requests(struct siw_base_qp *base, struct siw_flow *flow)
{
	for (struct siw_wqe *wqe = flow->next; wqe; wqe = wqe->chain)
		wqe_release_region_of_bind(base, wqe);
	flow->first = flow->next = NULL;
	flow->reads_out = 0;
	siw_link_del(&flow->ready);
	if (flow->peer)
		siw_link_del(&flow->busy);
}

void siw_qp_sq_flush_or_drop_requests(struct siw_base_qp *base, bool report)
{
	struct siw_link *next;

	for (struct siw_link *l = base->flows.next; l != &base->flows; l = next) {
		struct siw_flow *flow = siw_container(l, struct siw_flow, busy);

		next = l->next;
		if (report)
			siw_qp_flow_flush_requests(base, flow, SIW_WC_WR_FLUSH_ERR);
		else
			flow_drop_requests(base, flow);
	}
	if (report)
		return;
	base->sq_free = NULL;
	base->sq_used = base->begun = 0;
	base->sq_head = base->sq_tail;
}

/* ---- objects that requests use --------------------------------------------------------------- */

/* Whether the request may still read or write its memory. */
static bool wqe_needs_memory(const struct siw_flow *flow, const struct siw_wqe *wqe)
{
	if (wqe->state == SIW_WQE_DONE || (wqe->flags & SIW_SEND_INLINE))
		return false;
	return wqe->state == SIW_WQE_POSTED || siw_qp_awaits_response(wqe) ||
	       wqe->op.stamp.end > flow->memory_released;
}

bool siw_qp_wqe_uses_lkey(const struct siw_flow *flow, const struct siw_wqe *wqe, const void *lkey)
{
	if (!wqe_needs_memory(flow, wqe))
		return false;
	for (int i = 0; i < wqe->op.nsge; i++)
		if (wqe->sge[i].lkey == *(const uint32_t *)lkey)
			return true;
	return false;
}

bool siw_qp_sq_uses_object(const struct siw_base_qp *base, siw_qp_wqe_uses_fn *uses,
			   const void *what)
{
	for (struct siw_link *l = base->flows.next; l != &base->flows; l = l->next) {
		const struct siw_flow *flow = siw_container(l, struct siw_flow, busy);

		for (const struct siw_wqe *wqe = flow->first; wqe; wqe = wqe->chain)
			if (uses(flow, wqe, what))
				return true;
	}
	return false;
}

/*
 * Whether a program that has armed a CQ may be sleeping, because it has polled rarely since it
 * armed the CQ.
 */
static bool program_may_be_sleeping(const struct siw_lane *lane)
{
	uint32_t polls = atomic_load_explicit(&lane->polls, memory_order_relaxed);

	return atomic_load_explicit(&lane->ctx->n_armed, memory_order_relaxed) &&
	       polls - atomic_load_explicit(&lane->armed_at, memory_order_relaxed) < AWAKE_POLLS;
}

/*
 * Starts a round of posts at the first post after a poll. The clock is read only if rounds have
 * several posts, so that a program with one message at a time does not pay for reading the clock.
 */
static __attribute__((noinline)) void post_round_begin(struct siw_post_round *round,
						       const struct siw_lane *lane, uint32_t polls)
{
	uint64_t now = round->posts > 1 ? siw_now_ns() : 0;
	uint64_t silence = SILENCE_NS * (uint64_t)siw_settings()->pauses;
	uint64_t most = silence + round->posts * silence / SILENCE_POSTS + round->octets;

	if (!round->began_ns || now - round->began_ns > most ||
	    now < atomic_load_explicit(&lane->no_delay_until_ns, memory_order_relaxed))
		round->dense = 0;
	else
		round->dense++;
	round->began_ns = now;
	round->polls = polls;
	round->posts = 0;
	round->octets = 0;
}

/*
 * Counts n requests with a total length of octets, which are posted with one call. Returns whether
 * posts are frequent. A request that is posted alone after a poll may be a single message, which is
 * never delayed.
 */
static bool note_posts_and_check_if_frequent(struct siw_post_round *round,
					     const struct siw_lane *lane, uint32_t n,
					     uint64_t octets)
{
	int64_t batching = siw_settings()->batching;
	uint32_t polls = siw_qp_poll_round(lane);

	if (round->polls != polls)
		post_round_begin(round, lane, polls);
	round->posts += n;
	round->octets += octets;
	if (round->posts < 2)
		return false;
	return batching ? batching == ALWAYS : round->dense >= DENSE_ROUNDS;
}

static void note_posted_octets(struct siw_lane *lane, uint64_t octets)
{
	octets += atomic_load_explicit(&lane->posted_octets, memory_order_relaxed);
	atomic_store_explicit(&lane->posted_octets, octets, memory_order_relaxed);
}

/* Whether n more requests may be added to the requests that are delayed for a batch. */
static bool sq_count_octets_for_batch(struct siw_base_qp *base, uint32_t n, uint64_t octets)
{
	uint32_t waiting = base->sq_tail - base->sq_head - base->begun;
	const struct siw_qp_class *class = siw_class_of(base);

	base->waiting_octets = (waiting ? base->waiting_octets : 0) + octets;
	return waiting + n < class->wait_requests && base->waiting_octets < class->wait_octets;
}

/*
 * Whether a request of this many octets is a long Read that is posted after an earlier one has
 * completed, so that the number of outstanding Reads does not grow.
 */
static bool is_long_read_after_completed_one(struct siw_base_qp *base, const struct siw_send_wr *wr,
					     uint64_t octets)
{
	if (__builtin_expect(!base->reads_answered, 1))
		return false;
	/* a teardown may have ended the outstanding Reads without responses */
	if (!base->flow.reads_out || wr->next || wr->opcode != SIW_WR_RDMA_READ ||
	    octets < SIW_LONG_READ || siw_settings()->batching == NEVER ||
	    siw_now_ns() <
		    atomic_load_explicit(&base->qp.lane->no_delay_until_ns, memory_order_relaxed)) {
		base->reads_answered = 0;
		return false;
	}
	base->reads_answered--;
	return true;
}

/* Records the post of a list. Returns whether the post replaces a long Read that has completed. */
static bool note_post_replacing_long_read(struct siw_base_qp *base, const struct siw_send_wr *wr,
					  uint64_t octets)
{
	bool waiting = base->sq_tail - base->sq_head != base->begun;
	bool replaces = is_long_read_after_completed_one(base, wr, octets);

	base->only_reads_wait = replaces && (base->only_reads_wait || !waiting);
	return replaces;
}

/*
 * Posts are not delayed while a thread may be sleeping, on the sockets or in the program's own
 * epoll_wait().
 */
bool siw_qp_may_delay_posts(struct siw_base_qp *base, const struct siw_send_wr *wr)
{
	const struct siw_send_wr *first = wr;
	struct siw_lane *lane = base->qp.lane;
	bool frequent, replaces;
	uint64_t octets = 0;
	uint32_t n = 0;

	if (!siw_class_of(base)->wait_octets || !wr)
		return false;
	for (; wr; wr = wr->next, n++) { /* the post refuses invalid requests only later */
		if (!wr->sg_list || (uint32_t)wr->num_sge > base->cap.max_send_sge)
			return false;
		octets += siw_qp_octets(wr);
	}
	note_posted_octets(lane, octets);
	frequent = note_posts_and_check_if_frequent(&base->round, lane, n, octets);
	replaces = note_post_replacing_long_read(base, first, octets);
	if ((!frequent && !replaces) || !lane->ctx->has_thread ||
	    atomic_load_explicit(&lane->waiters, memory_order_relaxed) ||
	    program_may_be_sleeping(lane))
		return false;
	if (!atomic_load_explicit(&lane->posts_dense, memory_order_relaxed))
		atomic_store_explicit(&lane->posts_dense, true, memory_order_relaxed);
	/* a Read Request takes no room, whatever the length of the Read */
	return !siw_llp_poller_is_armed(lane->poller) &&
	       sq_count_octets_for_batch(base, n, base->only_reads_wait ? 0 : octets);
}
