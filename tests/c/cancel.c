/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests pthread_cancel() of threads that are inside calls of siwarp. With a cancellation pending,
 * each call except the waits returns as usual. A wait terminates its thread, whether the thread was
 * already asleep or only starting to wait. Afterwards no event is lost and the device still works:
 * a terminated thread leaves no lock held and is not counted as active.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rig.h"

#define SLOTS 8
/* a forced close waits up to 5 s for threads that are counted as inside siwarp */
#define FORCED_MS 3000

static struct rig rig;
static struct end ud, a, b;
static struct siw_cm_channel *no_device;
static char passed;

static void cancel_own_thread(void)
{
	must(pthread_cancel(pthread_self()) == 0);
}

/* ---- calls that are not cancellation points -------------------------------------------------- */

static void get_and_free_device_list(void)
{
	struct siw_device **list = siw_get_device_list(NULL);

	must(list && list[0]);
	siw_free_device_list(list);
}

static void cause_and_read_events(struct end *end)
{
	struct siw_async_event async;
	struct siw_cm_event event;
	struct siw_cq *cq;
	int r;

	check(siw_req_notify_cq(end->cq, 0));
	send_and_check_message(end, end, SLOT, 'e');
	r = siw_get_cq_event(end->channel, &cq, NULL, 0);
	must(r == 0 && cq == end->cq);
	siw_ack_cq_events(cq, 1);
	must(siw_get_cq_event(end->channel, &cq, NULL, 0) == -EAGAIN);
	must(siw_get_async_event(end->rig->ctx, &async, 0) == -EAGAIN);
	must(siw_cm_get_event(end->rig->cm, &event, 0) == -EAGAIN);
}

static void bind_and_free_memory_window(struct rig *of, struct end *end)
{
	struct siw_mr *mr =
		siw_reg_mr(of->pd, end->mem, SLOT, SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_MW_BIND);
	struct siw_mw *mw = siw_alloc_mw(of->pd, SIW_MW_TYPE_1);
	struct siw_mw_bind bind = { .wr_id = 3, .send_flags = SIW_SEND_SIGNALED };
	struct siw_wc wc;

	must(mr && mw);
	bind.bind_info.mr = mr;
	bind.bind_info.addr = (uintptr_t)end->mem;
	bind.bind_info.length = SLOT;
	bind.bind_info.mw_access_flags = SIW_ACCESS_REMOTE_READ;
	check(siw_bind_mw(end->qp, mw, &bind));
	await_completions(end, &wc, 1);
	check(siw_dealloc_mw(mw));
	check(siw_dereg_mr(mr));
}

static void *call_all_functions_with_cancel_pending(void *unused)
{
	struct rig own, other;
	struct end u, c, d;
	struct siw_wc wc;

	(void)unused;
	cancel_own_thread();
	get_and_free_device_list();
	rig_open(&own);
	rig_open(&other);
	open_ud_endpoint(&u, &own, SLOTS, NULL);
	connect_rc_endpoints(&c, &own, &d, &other, SLOTS);
	for (int i = 0; i < 20; i++) {
		send_and_check_message(&u, &u, SLOT, (char)('a' + i));
		send_and_check_message(&c, &d, SLOT, (char)('a' + i));
		send_and_check_message(&d, &c, SLOT, (char)('a' + i));
	}
	check(post_write(&c, 0, SLOT, 9, &d, 2));
	await_completions(&c, &wc, 1);
	cause_and_read_events(&u);
	bind_and_free_memory_window(&own, &c);
	close_endpoint(&u);
	close_endpoint(&c);
	rig_close(&own);
	check(siw_close_device_forced(other.ctx));
	free(d.mem);
	return &passed;
}

/* Makes threads compete for the same locks, so that they sleep on them (base/lock.c). */
static void *contend_for_library_locks(void *unused)
{
	struct siw_wc wc[4];

	(void)unused;
	cancel_own_thread();
	for (int i = 0; i < 3000; i++) {
		int r = post_send(&ud, 0, 8, 5);

		must(r == 0 || r == -ENOMEM);
		check(siw_poll_cq(ud.cq, 4, wc));
	}
	return &passed;
}

/* ---- waits ----------------------------------------------------------------------------------- */

static _Atomic bool own_pending, got;

static void cancel_own_thread_if_requested(void)
{
	if (own_pending)
		cancel_own_thread();
}

static void *await_cq_event(void *unused)
{
	struct siw_cq *cq;

	cancel_own_thread_if_requested();
	check(siw_get_cq_event(ud.channel, &cq, NULL, -1));
	got = true;
	siw_ack_cq_events(cq, 1);
	return unused;
}

static void *await_completion(void *unused)
{
	struct siw_wc wc;

	cancel_own_thread_if_requested();
	check(siw_wait_cq(a.cq, 1, &wc, NULL, NULL, NULL, -1));
	return unused;
}

static void *await_async_event(void *unused)
{
	struct siw_async_event event;

	cancel_own_thread_if_requested();
	check(siw_get_async_event(rig.ctx, &event, LIMIT_MS));
	return unused;
}

static void *await_cm_event(void *unused)
{
	struct siw_cm_event event;

	cancel_own_thread_if_requested();
	check(siw_cm_get_event(rig.cm, &event, -1));
	return unused;
}

/* Waits on an event channel that belongs to no device and therefore has no traffic to process. */
static void *await_event_on_deviceless_channel(void *unused)
{
	struct siw_cm_event event;

	cancel_own_thread_if_requested();
	check(siw_cm_get_event(no_device, &event, -1));
	return unused;
}

static void *(*const waits[])(void *) = { await_cq_event, await_completion, await_async_event,
					  await_cm_event, await_event_on_deviceless_channel };
#define N_WAITS (sizeof(waits) / sizeof(waits[0]))

static void sleep_us(long us)
{
	const struct timespec t = { .tv_nsec = us * 1000 };

	nanosleep(&t, NULL);
}

static void *join_thread(pthread_t thread)
{
	void *result;

	must(pthread_join(thread, &result) == 0);
	return result;
}

static pthread_t start_thread(void *(*run)(void *))
{
	pthread_t thread;

	must(pthread_create(&thread, NULL, run, NULL) == 0);
	return thread;
}

static void check_waits_are_cancellable(void)
{
	for (size_t i = 0; i < N_WAITS; i++) {
		own_pending = true;
		must(join_thread(start_thread(waits[i])) == PTHREAD_CANCELED);
		own_pending = false;
		for (long us = 10; us < 100000; us *= 10) {
			pthread_t thread = start_thread(waits[i]);

			sleep_us(us);
			must(pthread_cancel(thread) == 0);
			must(join_thread(thread) == PTHREAD_CANCELED);
		}
	}
}

static void drain_cq(void)
{
	struct siw_wc wc[4];

	while (siw_poll_cq(ud.cq, 4, wc) > 0)
		;
}

/*
 * Cancels a thread at about the time of its event: either that thread consumes the event, or the
 * next waiting thread does.
 */
static void check_cancel_loses_no_event(int round)
{
	struct siw_cq *cq;
	struct siw_wc wc[2];
	pthread_t thread;
	void *end;

	got = false;
	check(siw_req_notify_cq(ud.cq, 0));
	thread = start_thread(await_cq_event);
	sleep_us(round % 100);
	check(post_recv(&ud, 1));
	check(post_send(&ud, 0, 8, 7));
	sleep_us(round * 7 % 60);
	must(pthread_cancel(thread) == 0);
	end = join_thread(thread);
	must(end == PTHREAD_CANCELED || got);
	if (!got) {
		check(siw_get_cq_event(ud.channel, &cq, NULL, LIMIT_MS));
		siw_ack_cq_events(cq, 1);
	}
	await_completions(&ud, wc, 2);
}

static void check_cancel_with_concurrent_pollers(void)
{
	pthread_t threads[N_WAITS + 3];

	for (size_t i = 0; i < N_WAITS + 3; i++)
		threads[i] = start_thread(i < N_WAITS ? waits[i] : contend_for_library_locks);
	for (size_t i = N_WAITS; i < N_WAITS + 3; i++)
		must(join_thread(threads[i]) == &passed);
	for (size_t i = 0; i < N_WAITS; i++) {
		must(pthread_cancel(threads[i]) == 0);
		must(join_thread(threads[i]) == PTHREAD_CANCELED);
	}
	drain_cq();
}

/*
 * Checks that the device's thread responds to Reads. No thread of the program polls the responder
 * b, so the device's thread has to respond, unless it wrongly assumes that a thread of the program
 * is waiting.
 */
static void check_progress_thread_answers_reads(void)
{
	struct siw_sge sge = { (uintptr_t)a.mem, SLOT, a.mr->lkey };
	struct siw_send_wr wr = { .wr_id = 9,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = SIW_WR_RDMA_READ,
				  .send_flags = SIW_SEND_SIGNALED };
	struct siw_wc wc;

	wr.wr.rdma.remote_addr = (uintptr_t)b.mem;
	wr.wr.rdma.rkey = b.mr->rkey;
	for (int i = 0; i < 20; i++) {
		check(siw_post_send(a.qp, &wr, NULL));
		await_completions(&a, &wc, 1);
	}
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 100;
	struct rig served;
	long before;

	must(join_thread(start_thread(call_all_functions_with_cancel_pending)) == &passed);
	rig_open(&rig);
	rig_open(&served);
	open_ud_endpoint(&ud, &rig, SLOTS, NULL);
	connect_rc_endpoints(&a, &served, &b, &rig, SLOTS);
	no_device = siw_cm_create_channel(NULL);
	must(no_device);
	check_waits_are_cancellable();
	check_cancel_with_concurrent_pollers();
	for (int i = 0; i < rounds; i++)
		check_cancel_loses_no_event(i);
	check_progress_thread_answers_reads();
	send_and_check_message(&a, &b, SLOT, 'z');
	before = now_ms();
	check(siw_close_device_forced(rig.ctx));
	must(now_ms() - before < FORCED_MS);
	check(siw_close_device_forced(served.ctx));
	check(siw_cm_destroy_channel(no_device));
	return 0;
}
