/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_loop.c - descriptors for event loops of programs: an epoll instance that contains the
 * epoll instance of a poller, an event descriptor and a timer.
 */
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "base/clock.h"
#include "base/counters.h"
#include "llp/llp_sock.h"

struct siw_llp_event_loop_fd {
	struct siw_llp_poller *poller;
	int epfd, event_fd, timer_fd;
	bool set;	   /* the event descriptor is readable */
	uint64_t timer_ns; /* when the timer expires or has expired; 0: it is not set */
};

static void close_descriptors(const int *fds, int n)
{
	while (n--)
		if (fds[n] >= 0)
			siw_llp_fd_close(fds[n]);
}

/* Creates the descriptors of a loop descriptor. Returns 0, or -errno with all of them closed. */
static int event_loop_fd_create_descriptors(struct siw_llp_event_loop_fd *loop)
{
	int fds[3];

	fds[0] = siw_llp_event_fd_open();
	siw_llp_fd_creation_begin();
	fds[1] = siw_llp_fd_creation_done(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
	siw_llp_fd_creation_begin();
	fds[2] = siw_llp_fd_creation_done(epoll_create1(EPOLL_CLOEXEC));
	for (int i = 0; i < 3; i++) {
		if (fds[i] < 0) {
			int err = fds[i];

			close_descriptors(fds, 3);
			return err;
		}
	}
	loop->event_fd = fds[0];
	loop->timer_fd = fds[1];
	loop->epfd = fds[2];
	return 0;
}

int siw_llp_event_loop_fd_open(struct siw_llp_poller *poller, struct siw_llp_event_loop_fd **out)
{
	struct siw_llp_event_loop_fd *loop = calloc(1, sizeof(*loop));
	struct epoll_event ev = { .events = EPOLLIN };
	int err;

	if (!loop)
		return -ENOMEM;
	err = event_loop_fd_create_descriptors(loop);
	if (err) {
		free(loop);
		return err;
	}
	loop->poller = poller;
	atomic_fetch_add(&poller->loops, 1);
	atomic_fetch_add(&siw_counters_event_loops, 1);
	if (epoll_ctl(loop->epfd, EPOLL_CTL_ADD, poller->epfd, &ev) ||
	    epoll_ctl(loop->epfd, EPOLL_CTL_ADD, loop->event_fd, &ev) ||
	    epoll_ctl(loop->epfd, EPOLL_CTL_ADD, loop->timer_fd, &ev)) {
		err = -errno;
		siw_llp_event_loop_fd_close(loop);
		return err;
	}
	*out = loop;
	return 0;
}

void siw_llp_event_loop_fd_close(struct siw_llp_event_loop_fd *loop)
{
	if (!loop)
		return;
	atomic_fetch_sub(&loop->poller->loops, 1);
	atomic_fetch_sub(&siw_counters_event_loops, 1);
	close_descriptors((const int[]){ loop->event_fd, loop->timer_fd, loop->epfd }, 3);
	free(loop);
}

int siw_llp_event_loop_fd_number(const struct siw_llp_event_loop_fd *loop)
{
	return loop->epfd;
}

void siw_llp_event_loop_fd_signal(struct siw_llp_event_loop_fd *loop)
{
	if (loop->set)
		return;
	loop->set = true;
	siw_llp_event_fd_set(loop->event_fd);
}

void siw_llp_event_loop_fd_clear(struct siw_llp_event_loop_fd *loop)
{
	if (!loop->set)
		return;
	loop->set = false;
	siw_llp_event_fd_clear(loop->event_fd);
}

void siw_llp_event_loop_fd_set_timer(struct siw_llp_event_loop_fd *loop, uint64_t due_ns)
{
	bool expired = loop->timer_ns && siw_now_ns() >= loop->timer_ns;
	struct itimerspec at = { .it_value = { (time_t)(due_ns / 1000000000),
					       (long)(due_ns % 1000000000) } };

	/* A timer that expires too early does no harm: the loop polls once more than it has to. */
	if (!expired && (!due_ns || (loop->timer_ns && loop->timer_ns <= due_ns)))
		return;
	/* This also makes the descriptor of an expired timer unreadable. */
	timerfd_settime(loop->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
	loop->timer_ns = due_ns;
}
