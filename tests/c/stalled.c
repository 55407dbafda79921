/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A post whose thread is kept from its CPU just before it wakes the device's thread, while another
 * thread closes the device by force. The post holds a lock that the closing takes before it frees
 * what the post still touches: so the closing waits. The linker puts functions of this file in
 * front of the waking, of what a post asks about that thread, and of a Send's wait (--wrap).
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

struct siw_llp_port;
struct siw_rc;

static __thread bool stalls;
static _Atomic bool inside, done, waits;

void __real_siw_verbs_nudge(struct siw_context *ctx);
void __wrap_siw_verbs_nudge(struct siw_context *ctx);
bool __real_siw_llp_port_armed(const struct siw_llp_port *port);
bool __wrap_siw_llp_port_armed(const struct siw_llp_port *port);
void __real_siw_qp_rnr_begin(struct siw_rc *rc);
void __wrap_siw_qp_rnr_begin(struct siw_rc *rc);

static void sleep_ms(long ms)
{
	const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

void __wrap_siw_verbs_nudge(struct siw_context *ctx)
{
	if (stalls) {
		inside = true;
		sleep_ms(STALL_MS);
	}
	__real_siw_verbs_nudge(ctx);
	if (stalls)
		done = true;
}

/*
 * The device's thread lets the one that posts poll: it does not sleep on the sockets. On a CPU of
 * their own that would come about only by chance: each time the thread is woken, the messages that
 * woke it are polled before it runs, and it sleeps on.
 */
bool __wrap_siw_llp_port_armed(const struct siw_llp_port *port)
{
	return __real_siw_llp_port_armed(port) && !stalls;
}

/* A Send waits for its receive from here on. */
void __wrap_siw_qp_rnr_begin(struct siw_rc *rc)
{
	__real_siw_qp_rnr_begin(rc);
	waits = true;
}

static void *posts_recv(void *end)
{
	stalls = true;
	check(post_recv(end, 1));
	return NULL;
}

static void *posts_sends(void *end)
{
	struct end *ud = end;
	struct siw_wc wc;

	stalls = true;
	/* The second since a poll waits for company. */
	check(siw_poll_cq(ud->cq, 1, &wc));
	check(post_send(ud, 0, 8, 7));
	must(!inside);
	check(post_send(ud, 0, 8, 7));
	return NULL;
}

static void close_beside(void *(*post)(void *), struct end *end)
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
	rc_open(&a, &one, &b, &two, SLOTS);
	/* It waits for a receive, so that posting one wakes. */
	check(post_send(&a, 0, 8, 1));
	for (long deadline = now_ms() + LIMIT_MS; !waits;) {
		must(now_ms() < deadline);
		must(siw_poll_cq(b.cq, 1, &wc) == 0);
	}
	close_beside(posts_recv, &b);
	ud_open(&ud, &alone, SLOTS, NULL);
	close_beside(posts_sends, &ud);
	check(siw_close_device_forced(one.ctx));
	free(a.mem);
	free(b.mem);
	free(ud.mem);
	return 0;
}
