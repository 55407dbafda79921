/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The receiver of a message has to return a delivery count to the peer (spec/delivery-counts.md).
 * The count is sent when the socket is serviced again and has no data. If a program polls its
 * message just before another thread sleeps on the sockets, and then stops polling, that thread
 * must send the count before it sleeps; otherwise the peer's Send never completes. The linker
 * (--wrap) inserts functions of this file at the points where the device's thread, or a thread
 * waiting for an event, has found no work.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rig.h"
#include "device/device_impl.h"

#define SLOTS 8

static struct rig one, two;
static struct end a, b;
static struct siw_context *_Atomic watched; /* the context of rig `two`, once both rigs are open */
/*
 * holds_device_thread, holds_waiter: the inserted function stops the device's thread, or the thread
 * that waits for an event; held: a thread is stopped there; came: the stopped thread may continue
 */
static _Atomic bool holds_device_thread, holds_waiter, held, came;
static pthread_t waiter; /* set before holds_waiter */

int __real_siw_llp_poller_arm_for_sleep(struct siw_llp_poller *poller);
int __wrap_siw_llp_poller_arm_for_sleep(struct siw_llp_poller *poller);
int __real_siw_llp_wait_any_cancellable(const struct siw_llp_waitset *sets, int n, int extra_fd,
					int64_t timeout_us);
int __wrap_siw_llp_wait_any_cancellable(const struct siw_llp_waitset *sets, int n, int extra_fd,
					int64_t timeout_us);

static void sleep_ms(long ms)
{
	const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

static void await_flag(_Atomic bool *what)
{
	for (long deadline = now_ms() + LIMIT_MS; !*what; sleep_ms(1))
		must(now_ms() < deadline);
}

static void hold_thread_until_released(void)
{
	held = true;
	await_flag(&came);
}

/*
 * Makes a progress round, as if a poll of the program had preceded this call; the caller already
 * holds the progress lock.
 */
int __wrap_siw_llp_poller_arm_for_sleep(struct siw_llp_poller *poller)
{
	struct siw_context *ctx = watched;

	if (ctx && poller == ctx->lane0.poller && !siw_llp_poller_is_armed(poller) &&
	    atomic_exchange(&holds_device_thread, false)) {
		hold_thread_until_released();
		must(siw_device_progress_once(&ctx->lane0) == 1);
	}
	return __real_siw_llp_poller_arm_for_sleep(poller);
}

int __wrap_siw_llp_wait_any_cancellable(const struct siw_llp_waitset *sets, int n, int extra_fd,
					int64_t timeout_us)
{
	/*
	 * Once the sockets are in the waiting thread's wait set, the device's thread does not wait
	 * on them.
	 */
	if (holds_waiter && pthread_equal(pthread_self(), waiter) && sets->n > 1 &&
	    atomic_exchange(&holds_waiter, false))
		hold_thread_until_released();
	return __real_siw_llp_wait_any_cancellable(sets, n, extra_fd, timeout_us);
}

static void post_recv_and_send(void)
{
	memset(a.mem, 'x', SLOT);
	check(post_recv(&b, 1));
	check(post_send(&a, 0, SLOT, 7));
}

static void check_device_thread_sends_delivery_count(void)
{
	struct siw_wc wc;

	holds_device_thread = true;
	/*
	 * The device's thread calls siw_llp_poller_arm_for_sleep() again after a program has polled
	 * and has then stopped polling.
	 */
	for (long deadline = now_ms() + LIMIT_MS; !held; sleep_ms(2)) {
		must(siw_poll_cq(b.cq, 1, &wc) == 0);
		siw_device_wake_sleeping_thread(&two.ctx->lane0);
		must(now_ms() < deadline);
	}
	post_recv_and_send();
	came = true;
	await_completions(&a, &wc, 1);
	await_completions(&b, &wc, 1);
}

static void *wait_for_cq_event(void *unused)
{
	struct siw_cq *cq;

	(void)unused;
	waiter = pthread_self();
	holds_waiter = true;
	check(siw_get_cq_event(b.channel, &cq, NULL, LIMIT_MS));
	siw_ack_cq_events(cq, 1);
	return NULL;
}

static void check_waiting_thread_sends_delivery_count(void)
{
	struct siw_wc wc;
	pthread_t thread;

	held = came = false;
	must(pthread_create(&thread, NULL, wait_for_cq_event, NULL) == 0);
	for (long deadline = now_ms() + LIMIT_MS; !held; sleep_ms(2)) {
		siw_device_wake_sleeping_thread(&two.ctx->lane0);
		must(now_ms() < deadline);
	}
	post_recv_and_send();
	await_completions(&b, &wc, 1);
	came = true;
	await_completions(&a, &wc, 1);
	check(siw_req_notify_cq(b.cq, 0));
	post_recv_and_send();
	must(pthread_join(thread, NULL) == 0);
	await_completions(&a, &wc, 1);
	await_completions(&b, &wc, 1);
}

int main(void)
{
	setenv("SIWARP_PERSONA", "roce", 1);
	rig_open(&one);
	rig_open(&two);
	connect_rc_endpoints(&a, &one, &b, &two, SLOTS);
	watched = two.ctx;
	/* enough traffic that the device's thread keeps polling the sockets */
	for (int i = 0; i < 100; i++)
		send_and_check_message(&a, &b, SLOT, 'a');
	check_device_thread_sends_delivery_count();
	check_waiting_thread_sends_delivery_count();
	close_endpoint(&a);
	close_endpoint(&b);
	rig_close(&one);
	rig_close(&two);
	return 0;
}
