/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Four threads use two devices with progress threads: shared queue pairs and per-thread ones, RC
 * and UD, posting, polling and waiting on channels concurrently. Every received octet is checked,
 * and at the end every request has completed exactly once.
 *
 * siw-test-threads SECONDS
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

#define THREADS 4
#define SLOTS	64
/* receives posted; the following slots are targets of Writes and sources of Reads */
#define RECVS	48
#define SIZE	100
#define FILL	'x'
#define WAIT_MS 5

static struct rig left, right;
/* queue pairs shared by all threads; messages go from a to b */
static struct end ud_a, ud_b, rc_a, rc_b;
static _Atomic bool stop;
static _Atomic long credits; /* number of receives of rc_b that no Send has been reserved for yet */
static _Atomic long posted, completed, sent, received, ud_sent, ud_received, own_rounds, waits;

struct own {
	unsigned int number;
	unsigned int seed;
	struct end ud, rc_a, rc_b;
};

/* ---- shared queue pairs ---------------------------------------------------------------------- */

static bool is_posted_unless_queue_full(int r)
{
	if (r == -ENOMEM) /* -ENOMEM means that the queue is full, which is not a failure */
		return false;
	check(r);
	return true;
}

static void post_send_on_shared_rc_qp(void)
{
	if (atomic_fetch_sub(&credits, 1) <= 0 ||
	    !is_posted_unless_queue_full(post_send(&rc_a, 0, SIZE, 0))) {
		atomic_fetch_add(&credits, 1);
		return;
	}
	atomic_fetch_add(&posted, 1);
	atomic_fetch_add(&sent, 1);
}

static void post_write_on_shared_rc_qp(unsigned int number)
{
	if (is_posted_unless_queue_full(post_write(&rc_a, 0, SIZE, 0, &rc_b, RECVS + number)))
		atomic_fetch_add(&posted, 1);
}

static void post_read_on_shared_rc_qp(unsigned int number)
{
	struct siw_sge sge = { .addr = (uintptr_t)rc_a.mem + (RECVS + (uintptr_t)number) * SLOT,
			       .length = SIZE,
			       .lkey = rc_a.mr->lkey };
	struct siw_send_wr *bad, wr = { .sg_list = &sge,
					.num_sge = 1,
					.opcode = SIW_WR_RDMA_READ,
					.send_flags = SIW_SEND_SIGNALED };

	wr.wr.rdma.remote_addr = (uintptr_t)rc_b.mem + (uintptr_t)(SLOTS - 1) * SLOT;
	wr.wr.rdma.rkey = rc_b.mr->rkey;
	if (is_posted_unless_queue_full(siw_post_send(rc_a.qp, &wr, &bad)))
		atomic_fetch_add(&posted, 1);
}

static void check_received_message(struct end *end, const struct siw_wc *wc)
{
	const char *message = end->mem + wc->wr_id * SLOT;

	must(wc->byte_len == SIZE && message[0] == FILL && message[SIZE - 1] == FILL);
	check(post_recv(end, (unsigned int)wc->wr_id));
	if (end == &rc_b) {
		atomic_fetch_add(&received, 1);
		atomic_fetch_add(&credits, 1);
	} else {
		atomic_fetch_add(&ud_received, 1);
	}
}

/* Polls up to 8 completions of a shared queue and returns the number of completions. */
static int poll_shared_cq(struct end *end)
{
	struct siw_wc wc[8];
	int n = siw_poll_cq(end->cq, 8, wc);

	check(n);
	for (int i = 0; i < n; i++) {
		if (wc[i].status != SIW_WC_SUCCESS)
			die("a shared request failed: %s", siw_wc_status_str(wc[i].status));
		if (wc[i].opcode == SIW_WC_RECV)
			check_received_message(end, &wc[i]);
		else if (end == &rc_a)
			atomic_fetch_add(&completed, 1);
	}
	return n;
}

/* Arms the CQ, polls once more and sleeps on the channel; another thread may consume the event. */
static void wait_on_shared_cq(struct end *end)
{
	struct siw_cq *cq;
	int r;

	check(siw_req_notify_cq(end->cq, 0));
	if (poll_shared_cq(end))
		return;
	r = siw_get_cq_event(end->channel, &cq, NULL, WAIT_MS);
	if (r == -EAGAIN || r == -EINTR)
		return;
	check(r);
	must(cq == end->cq);
	siw_ack_cq_events(cq, 1);
	atomic_fetch_add(&waits, 1);
	poll_shared_cq(end);
}

/* ---- queue pairs of one thread --------------------------------------------------------------- */

/*
 * Exchanges a message like send_and_check_message() of rig.h, but the receiver sleeps on its
 * channel.
 */
static void exchange_with_sleeping_receiver(struct end *a, struct end *b, char first)
{
	long deadline = now_ms() + LIMIT_MS;
	struct siw_wc wc[2];
	bool here = false;
	int wanted = a == b ? 2 : 1, have = 0;

	check(post_recv(b, 1));
	memset(a->mem, first, SIZE);
	check(post_send(a, 0, SIZE, 7));
	while (have < wanted) {
		struct siw_cq *cq;
		int n, r;

		check(siw_req_notify_cq(b->cq, 0));
		n = siw_poll_cq(b->cq, wanted - have, wc);
		check(n);
		for (int i = 0; i < n; i++) {
			must(wc[i].status == SIW_WC_SUCCESS);
			here |= wc[i].opcode == SIW_WC_RECV;
		}
		have += n;
		if (have == wanted)
			break;
		r = siw_get_cq_event(b->channel, &cq, NULL, 100);
		if (r == 0)
			siw_ack_cq_events(cq, 1);
		else if (r != -EAGAIN && r != -EINTR)
			check(r);
		must(now_ms() < deadline);
	}
	must(here && b->mem[SLOT] == first && b->mem[SLOT + SIZE - 1] == first);
	if (a != b)
		await_completions(a, wc, 1);
}

static void exchange_on_private_qps(struct own *own, unsigned int choice)
{
	char first = (char)rand_r(&own->seed);

	switch (choice % 6) {
	case 0:
		send_and_check_message(&own->ud, &own->ud, SIZE, first);
		break;
	case 1:
		exchange_with_sleeping_receiver(&own->ud, &own->ud, first);
		break;
	case 2:
		send_and_check_message(&own->rc_a, &own->rc_b, SIZE, first);
		break;
	case 3:
		exchange_with_sleeping_receiver(&own->rc_b, &own->rc_a, first);
		break;
	case 4:
		exchange_with_sleeping_receiver(&own->rc_a, &own->rc_b, first);
		break;
	default:
		close_endpoint(&own->ud);
		open_ud_endpoint(&own->ud, &left, SLOTS, NULL);
		break;
	}
	atomic_fetch_add(&own_rounds, 1);
}

static void *run_random_operations(void *arg)
{
	struct end *const shared[] = { &rc_a, &rc_b, &ud_a, &ud_b };
	struct own *own = arg;

	while (!atomic_load(&stop)) {
		unsigned int choice = (unsigned int)rand_r(&own->seed);

		switch (choice % 8) {
		case 0:
			post_send_on_shared_rc_qp();
			break;
		case 1:
			post_write_on_shared_rc_qp(own->number);
			break;
		case 2:
			post_read_on_shared_rc_qp(own->number);
			break;
		case 3:
			if (is_posted_unless_queue_full(post_send(&ud_a, 0, SIZE, 0)))
				atomic_fetch_add(&ud_sent, 1);
			break;
		case 4:
			wait_on_shared_cq(shared[choice / 8 % 4]);
			break;
		case 5:
			exchange_on_private_qps(own, choice / 8);
			break;
		default:
			poll_shared_cq(shared[choice / 8 % 4]);
			break;
		}
	}
	return NULL;
}

/* ---- all threads ----------------------------------------------------------------------------- */

static void open_shared_queue_pairs(void)
{
	rig_open(&left);
	rig_open(&right);
	open_ud_endpoint(&ud_b, &right, SLOTS, NULL);
	open_ud_endpoint(&ud_a, &left, SLOTS, &ud_b);
	connect_rc_endpoints(&rc_a, &left, &rc_b, &right, SLOTS);
	memset(rc_a.mem, FILL, SIZE);
	memset(ud_a.mem, FILL, SIZE);
	memset(rc_b.mem + (size_t)(SLOTS - 1) * SLOT, FILL, SIZE);
	for (unsigned int i = 0; i < RECVS; i++) {
		check(post_recv(&rc_b, i));
		check(post_recv(&ud_b, i));
	}
	atomic_store(&credits, RECVS);
}

/*
 * Waits until all requests posted on the connection have completed and all messages have arrived.
 */
static void await_all_completions(void)
{
	long deadline = now_ms() + LIMIT_MS;

	while (completed < posted || received < sent) {
		poll_shared_cq(&rc_a);
		poll_shared_cq(&rc_b);
		if (now_ms() > deadline)
			die("%ld of %ld completed, %ld of %ld arrived", completed, posted, received,
			    sent);
	}
	for (int i = 0; i < 4; i++)
		poll_shared_cq(i % 2 ? &ud_a : &ud_b);
	must(completed == posted && received == sent && ud_received <= ud_sent);
}

static void sleep_for_short_time(void)
{
	const struct timespec step = { .tv_nsec = 20000000 };

	nanosleep(&step, NULL);
}

int main(int argc, char **argv)
{
	long seconds = argc > 1 ? atol(argv[1]) : 2, end;
	pthread_t threads[THREADS];
	struct own own[THREADS];

	open_shared_queue_pairs();
	for (unsigned int i = 0; i < THREADS; i++) {
		own[i].number = i;
		own[i].seed = i + 1;
		open_ud_endpoint(&own[i].ud, &left, SLOTS, NULL);
		connect_rc_endpoints(&own[i].rc_a, &left, &own[i].rc_b, &right, SLOTS);
	}
	end = now_ms() + seconds * 1000;
	for (int i = 0; i < THREADS; i++)
		must(!pthread_create(&threads[i], NULL, run_random_operations, &own[i]));
	while (now_ms() < end)
		sleep_for_short_time();
	atomic_store(&stop, true);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	await_all_completions();
	for (int i = 0; i < THREADS; i++) {
		close_endpoint(&own[i].rc_a);
		close_endpoint(&own[i].rc_b);
		close_endpoint(&own[i].ud);
	}
	close_endpoint(&rc_a);
	close_endpoint(&rc_b);
	close_endpoint(&ud_a);
	close_endpoint(&ud_b);
	rig_close(&right);
	rig_close(&left);
	printf("%ld shared requests, %ld messages, %ld of %ld datagrams, %ld own, %ld waits\n",
	       (long)posted, (long)received, (long)ud_received, (long)ud_sent, (long)own_rounds,
	       (long)waits);
	return 0;
}
