/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests a program that waits in its own epoll set. Arming the completion queue transmits the posts
 * that were held back for batching, and reports the event, however long the device's thread sleeps.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "rig.h"

#define TIMES 20
#define SLOTS 8

static struct rig rig;
static struct end end;

static void poll_all_completions(void)
{
	struct siw_wc wc[SLOTS];

	while (siw_poll_cq(end.cq, SLOTS, wc) > 0)
		;
}

/*
 * Posts two Sends, of which the first is transmitted immediately. Returns whether the second is
 * held back for batching, as happens while the device's thread sleeps because the program polls.
 */
static bool post_two_sends_and_check_batching(void)
{
	poll_all_completions();
	check(post_send(&end, 0, 8, 1));
	check(post_send(&end, 1, 8, 2));
	return siw_cq_pending(end.cq) == 1;
}

int main(void)
{
	const struct timespec ms = { .tv_nsec = 1000000 };
	struct epoll_event event = { .events = EPOLLIN };
	long until = now_ms() + LIMIT_MS;
	int epoll, events = 0;
	void *user;

	setenv("SIWARP_NAP_US", "100000", 1);
	setenv("SIWARP_BATCHING", "always", 1);
	rig_open(&rig);
	open_ud_endpoint(&end, &rig, SLOTS, NULL);
	epoll = epoll_create1(0);
	check(epoll_ctl(epoll, EPOLL_CTL_ADD, siw_comp_channel_fd(end.channel), &event));
	for (int i = 0; i < TIMES;) {
		struct siw_cq *cq;

		must(now_ms() < until);
		if (!post_two_sends_and_check_batching()) {
			nanosleep(&ms, NULL);
			continue;
		}
		i++;
		check(siw_req_notify_cq(end.cq, 0));
		must(siw_cq_pending(end.cq) == 2);
		/* there is no event if the device's thread woke up earlier */
		if (epoll_wait(epoll, &event, 1, 0) == 1) {
			events++;
			check(siw_get_cq_event(end.channel, &cq, &user, 0));
			siw_ack_cq_events(cq, 1);
		}
	}
	must(events > TIMES / 2);
	poll_all_completions();
	close(epoll);
	close_endpoint(&end);
	rig_close(&rig);
	return 0;
}
