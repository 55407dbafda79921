/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests threads that create and destroy objects of one device concurrently, and query the objects
 * of other threads.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#include "common.h"

#define THREADS 4
#define ROUNDS	100

/* queue pair of any thread, which may already be destroyed */
static struct ibv_qp *_Atomic shared;

static void create_and_destroy_objects(char *buf)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(ctx, 10, NULL, NULL, 0);
	struct ibv_ah_attr path = loopback_ah_attr();
	struct ibv_ah *ah = ibv_create_ah(pd, &path);
	struct ibv_qp_init_attr init, asked;
	struct ibv_qp_attr attr;
	struct ibv_qp *qp, *other;
	union ibv_gid one;
	int r;

	CHECK(mr && cq && ah);
	init = default_qp_attr(cq, IBV_QPT_UD);
	qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	move_qp_to_init(qp);
	CHECK(ibv_query_gid(ctx, PORT, 0, &one) == 0);
	other = shared;
	r = other ? ibv_query_qp(other, &attr, ~0, &asked) : 0;
	CHECK(r == 0 || r == EINVAL);
	shared = qp;
	move_qp_to_rts(qp, 0);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0);
}

static void *create_and_destroy_objects_repeatedly(void *unused)
{
	char *buf = malloc(SIZE);

	CHECK(buf);
	for (int i = 0; i < ROUNDS; i++)
		create_and_destroy_objects(buf);
	free(buf);
	return unused;
}

/*
 * ---- use of objects that another thread destroys -----------------------------------------------
 */

static struct {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	atomic_bool over;
} victim;

/*
 * Checks that each call on an object that another thread destroys succeeds or reports that the
 * object does not exist. As with adapters, post calls never report that an object does not exist.
 */
static void *use_objects_during_destruction(void *unused)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_wc wc;

	while (!atomic_load(&victim.over)) {
		struct ibv_recv_wr rr = { .wr_id = 1 }, *bad_rr;
		struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
		int r = ibv_post_recv(victim.qp, &rr, &bad_rr);

		CHECK(r == 0 || r == ENOMEM);
		r = ibv_post_send(victim.qp, &wr, &bad);
		/* EINVAL: the request has no address handle */
		CHECK(r == 0 || r == EINVAL);
		r = ibv_post_srq_recv(victim.srq, &rr, &bad_rr);
		CHECK(r == 0 || r == ENOMEM);
		CHECK(ibv_poll_cq(victim.cq, 1, &wc) <= 1);
		CHECK(ibv_req_notify_cq(victim.cq, 0) >= 0);
		r = ibv_query_qp(victim.qp, &attr, ~0, &init);
		CHECK(r == 0 || r == EINVAL || r == ESTALE);
	}
	return unused;
}

/* The number of iterations is so small that the memory of destroyed objects is not reused. */
static void check_destroy_during_use(void)
{
	for (int i = 0; i < 40; i++) {
		struct ibv_srq_init_attr srq = { .attr = { 8, 1, 0 } };
		struct ibv_qp_init_attr init;
		pthread_t thread;

		victim.over = false;
		victim.srq = ibv_create_srq(pd, &srq);
		victim.cq = ibv_create_cq(ctx, 10, NULL, NULL, 0);
		CHECK(victim.srq && victim.cq);
		init = default_qp_attr(victim.cq, IBV_QPT_UD);
		victim.qp = ibv_create_qp(pd, &init);
		CHECK(victim.qp);
		move_qp_to_init(victim.qp);
		move_qp_to_rts(victim.qp, 0);
		CHECK(pthread_create(&thread, NULL, use_objects_during_destruction, NULL) == 0);
		usleep(500);
		CHECK(ibv_destroy_qp(victim.qp) == 0 && ibv_destroy_cq(victim.cq) == 0);
		CHECK(ibv_destroy_srq(victim.srq) == 0);
		usleep(500);
		atomic_store(&victim.over, true);
		CHECK(pthread_join(thread, NULL) == 0);
	}
}

static void *expect_async_event_wait_fails(void *context)
{
	struct ibv_async_event event;

	CHECK(ibv_get_async_event(context, &event) == -1 && (errno == ESTALE || errno == EINVAL));
	return NULL;
}

/* Checks that a wait for a device's events fails when another thread closes the device. */
static void check_device_close_during_wait(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *c = ibv_open_device(list[0]);
	pthread_t thread;

	CHECK(c && pthread_create(&thread, NULL, expect_async_event_wait_fails, c) == 0);
	usleep(50000);
	CHECK(ibv_close_device(c) == 0 && pthread_join(thread, NULL) == 0);
	ibv_free_device_list(list);
}

static atomic_int closed;

static void *close_device_and_count_successes(void *context)
{
	if (ibv_close_device(context) == 0)
		atomic_fetch_add(&closed, 1);
	return NULL;
}

/* Checks that exactly one of several threads that close a device at the same time succeeds. */
static void check_concurrent_device_close(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	pthread_t threads[THREADS];

	for (int round = 0; round < 20; round++) {
		struct ibv_context *c = ibv_open_device(list[0]);

		CHECK(c && ibv_alloc_pd(c) && ibv_create_cq(c, 1, NULL, NULL, 0));
		atomic_store(&closed, 0);
		for (int i = 0; i < THREADS; i++)
			CHECK(pthread_create(&threads[i], NULL, close_device_and_count_successes,
					     c) == 0);
		for (int i = 0; i < THREADS; i++)
			CHECK(pthread_join(threads[i], NULL) == 0);
		CHECK(atomic_load(&closed) == 1);
	}
	ibv_free_device_list(list);
}

static atomic_bool went_through;

/* Opens and closes a device, with calls that are no cancellation points because none waits. */
static void *open_and_close_device_while_cancelled(void *unused)
{
	struct ibv_device **list;
	struct ibv_context *c;
	struct ibv_port_attr port;
	int cancel;

	pthread_cancel(pthread_self());
	list = ibv_get_device_list(NULL);
	c = ibv_open_device(list[0]);
	if (c && ibv_query_port(c, PORT, &port) == 0 && ibv_close_device(c) == 0)
		atomic_store(&went_through, true);
	ibv_free_device_list(list);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	return unused;
}

/*
 * Checks that opening and closing a device leaks no descriptor when the thread is cancelled before
 * or during the calls.
 */
static void check_cancelled_threads_leak_no_descriptor(void)
{
	int before = count_descriptors();
	pthread_t thread;
	void *ended;

	for (int i = 0; i < 20; i++) {
		atomic_store(&went_through, false);
		CHECK(pthread_create(&thread, NULL, open_and_close_device_while_cancelled, NULL) ==
		      0);
		CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, &ended) == 0);
		CHECK(ended == PTHREAD_CANCELED || atomic_load(&went_through));
		CHECK(count_descriptors() == before);
	}
	CHECK(pthread_create(&thread, NULL, open_and_close_device_while_cancelled, NULL) == 0);
	CHECK(pthread_join(thread, &ended) == 0);
	CHECK(ended != PTHREAD_CANCELED && atomic_load(&went_through));
	CHECK(count_descriptors() == before);
}

int main(void)
{
	pthread_t threads[THREADS];

	open_loopback_device();
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, create_and_destroy_objects_repeatedly,
				     NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	check_destroy_during_use();
	check_device_close_during_wait();
	check_concurrent_device_close();
	check_cancelled_threads_leak_no_descriptor();
	close_loopback_device();
	return 0;
}
