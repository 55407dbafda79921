/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Checks that asynchronous events of each type report the correct object, and that destroying an
 * object waits until its events are acknowledged.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#include "common.h"

static atomic_bool destroyed;
static unsigned int send_flags; /* flags that post_request() adds to IBV_SEND_SIGNALED */

/* Waits for the next asynchronous event, checks its type and element, and returns the event. */
static struct ibv_async_event wait_async_event(enum ibv_event_type wanted, const void *element)
{
	struct pollfd fd = { ctx->async_fd, POLLIN, 0 };
	struct ibv_async_event event;

	CHECK(poll(&fd, 1, SECONDS * 1000) == 1);
	CHECK(ibv_get_async_event(ctx, &event) == 0);
	if (event.event_type != wanted)
		fprintf(stderr, "%s\n", ibv_event_type_str(event.event_type));
	CHECK(event.event_type == wanted && event.element.qp == element);
	return event;
}

static void expect_async_event(enum ibv_event_type wanted, const void *element)
{
	struct ibv_async_event event = wait_async_event(wanted, element);

	ibv_ack_async_event(&event);
}

static void expect_no_async_event(void)
{
	struct ibv_async_event event;

	CHECK(ibv_get_async_event(ctx, &event) == -1 && errno == EAGAIN);
}

static void post_request(struct side *from, enum ibv_wr_opcode opcode, uint32_t rkey,
			 uint64_t remote)
{
	struct ibv_sge sge = sge_of_side(from, 0, 8);
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED | send_flags,
		.wr.rdma = { remote, rkey },
	};
	struct ibv_send_wr *bad;

	CHECK(ibv_post_send(from->qp, &wr, &bad) == 0);
}

static void move_qp_to_state(struct side *side, enum ibv_qp_state to, int more)
{
	struct ibv_qp_attr attr = { .qp_state = to, .en_sqd_async_notify = more != 0 };

	CHECK(ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | more) == 0);
}

/* Checks that a message that arrives in state RTR raises the event COMM_EST. */
static void check_comm_established_event(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7 };
	struct side a, b;
	double end = now_seconds() + SECONDS;
	struct ibv_wc wc;

	create_side(&a, IBV_QPT_UC, NULL);
	create_side(&b, IBV_QPT_UC, NULL);
	move_qp_to_rts(a.qp, b.qp->qp_num);
	{
		struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR,
					   .path_mtu = IBV_MTU_1024,
					   .dest_qp_num = a.qp->qp_num,
					   .ah_attr = loopback_ah_attr() };

		CHECK(ibv_modify_qp(b.qp, &rtr,
				    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					    IBV_QP_RQ_PSN) == 0);
	}
	post_recv(&b, 1, 0, 64);
	post_request(&a, IBV_WR_SEND, 0, 0);
	while (ibv_poll_cq(b.cq, 1, &wc) == 0)
		CHECK(now_seconds() < end);
	expect_async_event(IBV_EVENT_COMM_EST, b.qp);
	CHECK(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	destroy_side(&a);
	destroy_side(&b);
}

/* Connects two queue pairs; `a` sends 8 octets to a receive of `b` with `receive` octets. */
static void connect_and_send(struct side *a, struct side *b, uint32_t receive)
{
	create_side(a, IBV_QPT_RC, NULL);
	create_side(b, IBV_QPT_RC, NULL);
	connect_sides(a, b);
	post_recv(b, 1, 0, receive);
	post_request(a, IBV_WR_SEND, 0, 0);
}

static void check_sq_drained_event(void)
{
	struct side a, b;

	connect_and_send(&a, &b, 64);
	wait_success(a.cq);
	expect_no_async_event();
	move_qp_to_state(&a, IBV_QPS_SQD, IBV_QP_EN_SQD_ASYNC_NOTIFY);
	expect_async_event(IBV_EVENT_SQ_DRAINED, a.qp);
	move_qp_to_state(&a, IBV_QPS_RTS, 0);
	destroy_side(&a);
	destroy_side(&b);
}

/*
 * Checks that a Write with an invalid rkey moves both queue pairs to the error state, and that the
 * responder gets the event QP_ACCESS_ERR.
 */
static void check_access_error_event(void)
{
	struct side a, b;

	create_side(&a, IBV_QPT_RC, NULL);
	create_side(&b, IBV_QPT_RC, NULL);
	connect_sides(&a, &b);
	post_request(&a, IBV_WR_RDMA_WRITE, b.mr->rkey ^ 0x100, (uintptr_t)b.buf);
	CHECK(wait_completion(a.cq).status == IBV_WC_REM_ACCESS_ERR);
	expect_async_event(IBV_EVENT_QP_ACCESS_ERR, b.qp);
	destroy_side(&a);
	destroy_side(&b);
	/* Unread events are discarded when their object is destroyed. */
	while (poll(&(struct pollfd){ ctx->async_fd, POLLIN, 0 }, 1, 0) == 1) {
		struct ibv_async_event event;

		CHECK(ibv_get_async_event(ctx, &event) == 0);
		CHECK(!"an event of an object that is gone");
	}
}

/*
 * Checks that a message longer than its receive moves both queue pairs to the error state, and that
 * the requester gets a completion with an error, but no asynchronous event.
 */
static void check_request_error_async_event(void)
{
	struct side a, b;

	connect_and_send(&a, &b, 4);
	CHECK(wait_completion(b.cq).status == IBV_WC_LOC_LEN_ERR);
	CHECK(wait_completion(a.cq).status == IBV_WC_REM_INV_REQ_ERR);
	expect_async_event(IBV_EVENT_QP_REQ_ERR, b.qp);
	expect_no_async_event();
	destroy_side(&a);
	destroy_side(&b);
}

static void check_last_wqe_event(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct side a;

	CHECK(srq);
	create_side(&a, IBV_QPT_RC, srq);
	move_qp_to_rts(a.qp, a.qp->qp_num ^ 1); /* no queue pair has the destination number */
	move_qp_to_state(&a, IBV_QPS_ERR, 0);
	expect_async_event(IBV_EVENT_QP_LAST_WQE_REACHED, a.qp);
	expect_no_async_event();
	destroy_side(&a);
	CHECK(ibv_destroy_srq(srq) == 0);
}

/*
 * Checks that an overflow makes a completion queue unusable.
 */
static void check_cq_overflow(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
	struct ibv_async_event event;
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	struct ibv_wc wc;
	struct ibv_qp *qp;
	double end = now_seconds() + SECONDS;
	struct side one;
	int n;

	CHECK(cq && ibv_resize_cq(cq, 4) == 0);
	init = default_qp_attr(cq, IBV_QPT_UD);
	init.cap.max_recv_wr = 64;
	qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	one = (struct side){ .qp = qp };
	move_qp_to_init(qp);
	for (int i = 0; i < cq->cqe + 8 && i < 64; i++)
		CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
	move_qp_to_state(&one, IBV_QPS_ERR, 0);
	event = wait_async_event(IBV_EVENT_CQ_ERR, cq);
	ibv_ack_async_event(&event);
	do
		n = ibv_poll_cq(cq, 1, &wc);
	while (n >= 0 && now_seconds() < end);
	CHECK(n < 0);
	/*
	 * The queue pair may have a pending event, which is discarded when the queue pair is
	 * destroyed.
	 */
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	expect_no_async_event();
}

/*
 * Checks that only solicited or failed completions raise an event, one for each ibv_req_notify_cq.
 *
 */
static void check_solicited_events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_qp_init_attr init;
	struct side a, b;
	struct ibv_cq *got;
	void *user;

	CHECK(channel && fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	create_side(&a, IBV_QPT_RC, NULL);
	b.cq = ibv_create_cq(ctx, 4, &b, channel, 0);
	init = default_qp_attr(b.cq, IBV_QPT_RC);
	b.qp = ibv_create_qp(pd, &init);
	CHECK(b.cq && b.qp);
	register_side_memory(&b);
	move_qp_to_init(b.qp);
	connect_sides(&a, &b);
	for (uint64_t i = 0; i < 4; i++)
		post_recv(&b, i, 0, 64);
	CHECK(ibv_req_notify_cq(b.cq, 1) == 0);
	post_request(&a, IBV_WR_SEND, 0, 0);
	wait_success(a.cq);
	CHECK(wait_success(b.cq).wr_id == 0);
	CHECK(ibv_get_cq_event(channel, &got, &user) == -1 && errno == EAGAIN);
	send_flags = IBV_SEND_SOLICITED;
	post_request(&a, IBV_WR_SEND, 0, 0);
	CHECK(poll(&(struct pollfd){ channel->fd, POLLIN, 0 }, 1, SECONDS * 1000) == 1);
	CHECK(ibv_get_cq_event(channel, &got, &user) == 0 && got == b.cq && user == &b);
	ibv_ack_cq_events(got, 1);
	/* A notification request causes only one event, so the next message raises no event. */
	post_request(&a, IBV_WR_SEND, 0, 0);
	CHECK(wait_success(b.cq).wr_id == 1 && wait_success(b.cq).wr_id == 2);
	CHECK(ibv_get_cq_event(channel, &got, &user) == -1 && errno == EAGAIN);
	send_flags = 0;
	/* A failed completion raises an event, as a solicited completion does. */
	CHECK(ibv_req_notify_cq(b.cq, 1) == 0);
	move_qp_to_state(&b, IBV_QPS_ERR, 0);
	CHECK(poll(&(struct pollfd){ channel->fd, POLLIN, 0 }, 1, SECONDS * 1000) == 1);
	CHECK(ibv_get_cq_event(channel, &got, &user) == 0 && got == b.cq);
	ibv_ack_cq_events(got, 1);
	destroy_side(&a);
	destroy_side(&b);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
}

static void check_srq_limit_event(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_srq_attr attr = { .srq_limit = 1 };

	CHECK(srq && ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
	expect_async_event(IBV_EVENT_SRQ_LIMIT_REACHED, srq);
	/* The limit event disarms the limit of the shared receive queue. */
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.srq_limit == 0);
	expect_no_async_event();
	CHECK(ibv_destroy_srq(srq) == 0);
}

/*
 * ---- acknowledgement ---------------------------------------------------------------------------
 */

static void *destroy_srq(void *srq)
{
	CHECK(ibv_destroy_srq(srq) == 0);
	atomic_store(&destroyed, true);
	return NULL;
}

static void *destroy_cq(void *cq)
{
	CHECK(ibv_destroy_cq(cq) == 0);
	atomic_store(&destroyed, true);
	return NULL;
}

/* Checks that a destroy call returns only after the acknowledgement of an event. */
static void check_destroy_waits_for_event_ack(void *(*destroy)(void *), void *object,
					      struct ibv_async_event *event, struct ibv_cq *cq)
{
	pthread_t thread;

	atomic_store(&destroyed, false);
	CHECK(pthread_create(&thread, NULL, destroy, object) == 0);
	usleep(50000);
	CHECK(!atomic_load(&destroyed));
	if (event)
		ibv_ack_async_event(event);
	else
		ibv_ack_cq_events(cq, 1);
	CHECK(pthread_join(thread, NULL) == 0 && atomic_load(&destroyed));
}

static void check_unacknowledged_events(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_srq_attr attr = { .srq_limit = 1 };
	struct ibv_recv_wr wr = { .wr_id = 3 }, *bad;
	struct ibv_qp_init_attr qp_init;
	struct ibv_async_event event;
	struct ibv_cq *cq, *got;
	struct side one;
	void *user;

	CHECK(srq && channel && ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
	event = wait_async_event(IBV_EVENT_SRQ_LIMIT_REACHED, srq);
	check_destroy_waits_for_event_ack(destroy_srq, srq, &event, NULL);
	/* More acknowledgements than events are harmless. */
	cq = ibv_create_cq(ctx, 4, NULL, channel, 0);
	CHECK(cq);
	ibv_ack_cq_events(cq, 7);
	CHECK(ibv_destroy_cq(cq) == 0);
	cq = ibv_create_cq(ctx, 4, NULL, channel, 0);
	CHECK(cq && ibv_req_notify_cq(cq, 0) == 0);
	qp_init = default_qp_attr(cq, IBV_QPT_UD);
	one.qp = ibv_create_qp(pd, &qp_init);
	CHECK(one.qp);
	move_qp_to_init(one.qp);
	CHECK(ibv_post_recv(one.qp, &wr, &bad) == 0);
	move_qp_to_state(&one, IBV_QPS_ERR, 0);
	/* ibv_get_cq_event blocks, because the descriptor has no O_NONBLOCK. */
	CHECK(ibv_get_cq_event(channel, &got, &user) == 0 && got == cq);
	CHECK(ibv_destroy_qp(one.qp) == 0);
	check_destroy_waits_for_event_ack(destroy_cq, cq, NULL, cq);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
}

/*
 * ---- waiting -----------------------------------------------------------------------------------
 */

static void *read_one_async_event(void *event)
{
	CHECK(ibv_get_async_event(ctx, event) == 0);
	return NULL;
}

/* Checks that ibv_get_async_event without O_NONBLOCK waits for an event. */
static void check_blocking_async_event_wait(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_srq_attr attr = { .srq_limit = 1 };
	struct ibv_async_event event = { 0 };
	pthread_t thread;

	CHECK(fcntl(ctx->async_fd, F_SETFL, 0) == 0);
	CHECK(srq && pthread_create(&thread, NULL, read_one_async_event, &event) == 0);
	usleep(50000);
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	ibv_ack_async_event(&event);
	/* Acknowledging an event twice is harmless. */
	ibv_ack_async_event(&event);
	CHECK(ibv_destroy_srq(srq) == 0);
	/* Acknowledging an event of a destroyed object is harmless. */
	ibv_ack_async_event(&event);
}

int main(void)
{
	open_loopback_device();
	CHECK(fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK) == 0);
	check_comm_established_event();
	check_sq_drained_event();
	check_access_error_event();
	check_request_error_async_event();
	check_last_wqe_event();
	check_cq_overflow();
	check_solicited_events();
	check_srq_limit_event();
	check_unacknowledged_events();
	check_blocking_async_event_wait();
	close_loopback_device();
	return 0;
}
