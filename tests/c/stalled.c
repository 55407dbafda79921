/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A posting thread is preempted just before it wakes the device's thread, while another thread
 * closes the device by force. The post holds a lock that the close acquires before it frees the
 * objects that the post still uses, so the close waits for the post. The linker (--wrap) inserts
 * functions of this file before the wake-up, before the post's check of the device's thread, and
 * before a Send waits for a receive.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rig.h"

#define SLOTS	 8
#define STALL_MS 300

struct siw_llp_poller;
struct siw_base_qp;

static __thread bool stalls;
static _Atomic bool inside, done, waits;

void __real_siw_device_wake_sleeping_thread(struct siw_context *ctx);
void __wrap_siw_device_wake_sleeping_thread(struct siw_context *ctx);
bool __real_siw_llp_poller_is_armed(const struct siw_llp_poller *poller);
bool __wrap_siw_llp_poller_is_armed(const struct siw_llp_poller *poller);
void __real_siw_qp_set_messages_waiting(struct siw_base_qp *base, bool any);
void __wrap_siw_qp_set_messages_waiting(struct siw_base_qp *base, bool any);

static void sleep_ms(long ms)
{
	const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

void __wrap_siw_device_wake_sleeping_thread(struct siw_context *ctx)
{
	if (stalls) {
		inside = true;
		sleep_ms(STALL_MS);
	}
	__real_siw_device_wake_sleeping_thread(ctx);
	if (stalls)
		done = true;
}

/*
 * Pretends that the device's thread does not sleep on the sockets but leaves polling to the posting
 * thread. Without this function that state would arise only by chance, because each time the thread
 * is woken, the program polls the messages before the thread runs, and the thread sleeps again.
 */
bool __wrap_siw_llp_poller_is_armed(const struct siw_llp_poller *poller)
{
	return __real_siw_llp_poller_is_armed(poller) && !stalls;
}

/* Records that a Send has begun to wait for its receive. */
void __wrap_siw_qp_set_messages_waiting(struct siw_base_qp *base, bool any)
{
	__real_siw_qp_set_messages_waiting(base, any);
	waits = waits || any;
}

static void *post_recv_while_closing(void *end)
{
	stalls = true;
	check(post_recv(end, 1));
	return NULL;
}

static void *post_sends_while_closing(void *end)
{
	struct end *ud = end;
	struct siw_wc wc;

	stalls = true;
	/* After a poll, the first Send is transmitted at once, and the second waits for a batch. */
	check(siw_poll_cq(ud->cq, 1, &wc));
	check(post_send(ud, 0, 8, 7));
	must(!inside);
	check(post_send(ud, 0, 8, 7));
	return NULL;
}

static void force_close_during_post(void *(*post)(void *), struct end *end)
{
	pthread_t thread;

	inside = done = false;
	must(pthread_create(&thread, NULL, post, end) == 0);
	for (long deadline = now_ms() + LIMIT_MS; !inside; sleep_ms(1))
		must(now_ms() < deadline);
	check(siw_close_device_forced(end->rig->ctx));
	must(done);
	must(pthread_join(thread, NULL) == 0);
}

int main(void)
{
	struct rig one, two, alone;
	struct end a, b, ud;
	struct siw_wc wc;

	rig_open(&one);
	rig_open(&two);
	rig_open(&alone);
	connect_rc_endpoints(&a, &one, &b, &two, SLOTS);
	/* The Send waits for a receive, so posting a receive wakes the device's thread. */
	check(post_send(&a, 0, 8, 1));
	for (long deadline = now_ms() + LIMIT_MS; !waits;) {
		must(now_ms() < deadline);
		must(siw_poll_cq(b.cq, 1, &wc) == 0);
	}
	force_close_during_post(post_recv_while_closing, &b);
	open_ud_endpoint(&ud, &alone, SLOTS, NULL);
	force_close_during_post(post_sends_while_closing, &ud);
	check(siw_close_device_forced(one.ctx));
	free(a.mem);
	free(b.mem);
	free(ud.mem);
	return 0;
}
