/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests threads that share one CQ, one SRQ and one device: some post and poll while others create,
 * modify and destroy objects. The argument is the duration in milliseconds.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rig.h"

#define OWN_QKEY 0x80000000u
#define SIZE	 64

static struct rig rig;
static struct siw_comp_channel *channel;
static struct siw_cq *cq;
static struct siw_srq *srq;
static struct siw_mr *mr;
static char memory[2 * SIZE];
static atomic_bool stop;
static atomic_ulong received, made, resized, told, armed, freed;

/*
 * Accepts two error codes that are legitimate because another thread was faster or a queue is full.
 */
static void check_success_or_expected_errno(int r, int errno1, int errno2)
{
	if (r < 0 && r != -errno1 && r != -errno2)
		die("unexpected: %s", strerror(-r));
}

static struct siw_qp *open_qp(void)
{
	struct siw_qp_init_attr init = { .send_cq = cq,
					 .recv_cq = cq,
					 .srq = srq,
					 .cap = { .max_send_wr = 32, .max_send_sge = 1 },
					 .qp_type = SIW_QPT_UD };
	struct siw_qp *qp = siw_create_qp(rig.pd, &init);

	must(qp);
	for (int s = SIW_QPS_INIT; s <= SIW_QPS_RTS; s++) {
		struct siw_qp_attr attr = { .qp_state = s };

		check(siw_modify_qp(qp, &attr, SIW_QP_STATE));
	}
	return qp;
}

static struct siw_ah *create_ah_to(struct siw_qp *qp)
{
	struct siw_addr at;
	struct siw_ah *ah;

	check(siw_qp_addr(qp, &at, NULL));
	ah = siw_create_ah(rig.pd, &at);
	must(ah);
	return ah;
}

static int post_send_to(struct siw_qp *qp, struct siw_ah *ah, const void *from, uint32_t lkey)
{
	struct siw_sge sge = { (uintptr_t)from, SIZE, lkey };
	struct siw_send_wr *bad, wr = { .sg_list = &sge,
					.num_sge = 1,
					.opcode = SIW_WR_SEND,
					.send_flags = SIW_SEND_SIGNALED };

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qkey = OWN_QKEY;
	return siw_post_send(qp, &wr, &bad);
}

static void post_shared_receive(void)
{
	struct siw_sge sge = { (uintptr_t)memory + SIZE, SIZE, mr->lkey };
	struct siw_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };

	check_success_or_expected_errno(siw_post_srq_recv(srq, &wr, &bad), ENOMEM, 0);
}

static void poll_shared_cq(void)
{
	struct siw_wc wc[16];
	int n = siw_poll_cq(cq, 16, wc);

	check(n);
	for (int i = 0; i < n; i++) {
		if (wc[i].status != SIW_WC_SUCCESS && wc[i].status != SIW_WC_WR_FLUSH_ERR)
			die("a request failed: %s", siw_wc_status_str(wc[i].status));
		received += wc[i].status == SIW_WC_SUCCESS && wc[i].opcode == SIW_WC_RECV;
	}
}

/*
 * Posts Sends from a queue pair to itself. Each posting thread also polls, so that the CQ cannot be
 * overrun.
 */
static void *post_sends_to_own_qp(void *unused)
{
	struct siw_qp *qp = open_qp();
	struct siw_ah *ah = create_ah_to(qp);

	while (!stop) {
		post_shared_receive();
		check_success_or_expected_errno(post_send_to(qp, ah, memory, mr->lkey), ENOMEM, 0);
		poll_shared_cq();
	}
	check(siw_destroy_qp(qp));
	check(siw_destroy_ah(ah));
	return unused;
}

static void *create_and_destroy_qps(void *unused)
{
	for (; !stop; made++) {
		struct siw_qp *qp = open_qp();
		struct siw_ah *ah = create_ah_to(qp);
		struct siw_qp_attr to_err = { .qp_state = SIW_QPS_ERR };

		for (int i = 0; i < 4; i++)
			check(post_send_to(qp, ah, memory, mr->lkey));
		if (made % 2)
			check(siw_modify_qp(qp, &to_err, SIW_QP_STATE));
		poll_shared_cq();
		check(siw_destroy_qp(qp));
		check(siw_destroy_ah(ah));
	}
	return unused;
}

static void *resize_cq_repeatedly(void *unused)
{
	const struct timespec rest = { .tv_nsec = 1000000 };
	static const int sizes[] = { 1 << 14, 1 << 15, 1 << 16 };

	for (; !stop; resized++) {
		check_success_or_expected_errno(siw_resize_cq(cq, sizes[resized % 3]), EINVAL, 0);
		must(siw_cq_capacity(cq) >= sizes[0]);
		nanosleep(&rest, NULL);
	}
	return unused;
}

static void *read_async_events(void *unused)
{
	struct siw_srq_attr limit = { .srq_limit = 4 };
	struct siw_async_event event;

	while (!stop) {
		int r;

		check(siw_modify_srq(srq, &limit, SIW_SRQ_LIMIT));
		r = siw_get_async_event(rig.ctx, &event, 20);
		check_success_or_expected_errno(r, EAGAIN, EINTR);
		if (r)
			continue;
		must(event.event_type == SIW_EVENT_SRQ_LIMIT_REACHED ||
		     event.event_type == SIW_EVENT_QP_LAST_WQE_REACHED);
		told++;
		siw_ack_async_event(&event);
	}
	return unused;
}

static void *wait_for_completions(void *unused)
{
	struct siw_cq *which;
	void *user;

	while (!stop) {
		int r;

		check(siw_req_notify_cq(cq, 0));
		poll_shared_cq();
		r = siw_get_cq_event(channel, &which, &user, 20);
		check_success_or_expected_errno(r, EAGAIN, EINTR);
		if (r)
			continue;
		must(which == cq && user == &rig);
		siw_ack_cq_events(cq, 1);
		armed++;
	}
	return unused;
}

static void *register_and_free_memory(void *unused)
{
	struct siw_qp *qp = open_qp();

	for (; !stop; freed++) {
		char own[SIZE] = "";
		struct siw_mr *m = siw_reg_mr(rig.pd, own, sizeof(own), SIW_ACCESS_LOCAL_WRITE);
		struct siw_ah *ah = create_ah_to(qp);

		if (!m) {
			die("siw_reg_mr: %s", strerror(errno));
			/* for static analysers, which do not know that die() never returns */
			break;
		}
		check_success_or_expected_errno(post_send_to(qp, ah, own, m->lkey), ENOMEM, 0);
		poll_shared_cq();
		/*
		 * A loopback send to the same queue pair never waits for space, so the region and
		 * the address handle are no longer in use.
		 */
		check(siw_dereg_mr(m));
		check(siw_destroy_ah(ah));
	}
	check(siw_destroy_qp(qp));
	return unused;
}

int main(int argc, char **argv)
{
	void *(*const work[])(void *) = { post_sends_to_own_qp,	  post_sends_to_own_qp,
					  create_and_destroy_qps, create_and_destroy_qps,
					  resize_cq_repeatedly,	  read_async_events,
					  wait_for_completions,	  register_and_free_memory };
	enum { N = sizeof(work) / sizeof(work[0]) };
	struct siw_srq_init_attr init = { .attr = { .max_wr = 1024, .max_sge = 1 } };
	const struct timespec rest = { .tv_nsec = 10000000 };
	struct timespec length = { 0 };
	pthread_t threads[N];
	long ms = argc > 1 ? atol(argv[1]) : 1000;

	rig_open(&rig);
	channel = siw_create_comp_channel(rig.ctx);
	must(channel);
	cq = siw_create_cq(rig.ctx, 1 << 14, &rig, channel, 0);
	must(cq);
	srq = siw_create_srq(rig.pd, &init);
	must(srq);
	mr = siw_reg_mr(rig.pd, memory, sizeof(memory), SIW_ACCESS_LOCAL_WRITE);
	must(mr);
	for (int i = 0; i < N; i++)
		check(-pthread_create(&threads[i], NULL, work[i], NULL));
	length.tv_sec = ms / 1000;
	length.tv_nsec = ms % 1000 * 1000000;
	nanosleep(&length, NULL);
	/* On a busy machine the test continues until each thread has made progress. */
	for (long end = now_ms() + LIMIT_MS;
	     !(received && made && resized && told && armed && freed) && now_ms() < end;)
		nanosleep(&rest, NULL);
	stop = true;
	for (int i = 0; i < N; i++)
		check(-pthread_join(threads[i], NULL));
	check(siw_destroy_cq(cq));
	check(siw_destroy_srq(srq));
	check(siw_dereg_mr(mr));
	check(siw_destroy_comp_channel(channel));
	rig_close(&rig);
	printf("%lu %lu %lu %lu %lu %lu\n", received, made, resized, told, armed, freed);
	return 0;
}
