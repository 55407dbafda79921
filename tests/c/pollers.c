/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Threads that wait for several pollers of llp at once, as the threads of a device with several
 * lanes do. The argument selects what happens meanwhile: "wake" (one of the pollers is woken),
 * "move" (streams move between the pollers while octets arrive), "cancel" (waiting threads are
 * cancelled). A lost event shows itself as a wait that lasts LIMIT_US.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/addr.h"
#include "base/list.h"
#include "llp/llp.h"

#define POLLERS	 3
#define WAITERS	 4
#define WAKES	 10000
#define STREAMS	 4
#define SENDS	 4000
#define CANCELS	 300
#define LIMIT_US 20000000

#define must(condition)                                                                         \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                                \
		}                                                                               \
	} while (0)

/* A poller with its progress lock, as a lane has it. */
static struct lane {
	pthread_mutex_t lock;
	struct siw_llp_poller *poller;
} lanes[POLLERS];

static _Atomic bool over; /* the threads have to end */

/* Makes a progress round, and fills the wait set. Returns how many octets were received. */
static int make_progress_round_and_fill_wait_set(struct lane *lane, struct siw_llp_waitset *set)
{
	struct siw_io_handler *handlers[STREAMS];
	int n, moved = 0;

	pthread_mutex_lock(&lane->lock);
	n = siw_llp_poller_poll(lane->poller, handlers, STREAMS);
	for (int i = 0; i < n; i++)
		moved += handlers[i]->serve(handlers[i]);
	siw_llp_waitset_fill(lane->poller, set);
	pthread_mutex_unlock(&lane->lock);
	return moved;
}

static void start_threads(pthread_t *threads, int n, void *(*run)(void *arg))
{
	for (int i = 0; i < n; i++)
		must(!pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i));
}

static void wake_and_join_threads(const pthread_t *threads, int n)
{
	over = true;
	for (int i = 0; i < POLLERS; i++)
		siw_llp_poller_wake(lanes[i].poller);
	for (int i = 0; i < n; i++)
		must(!pthread_join(threads[i], NULL));
}

/* ---- wake ------------------------------------------------------------------------------------ */

static _Atomic unsigned int news, seen[WAITERS];

static void *wait_for_socket_or_wake_up(void *arg)
{
	_Atomic unsigned int *mine = &seen[(intptr_t)arg];
	struct siw_llp_waitset sets[POLLERS];

	while (!over) {
		unsigned int now;

		for (int i = 0; i < POLLERS; i++)
			make_progress_round_and_fill_wait_set(&lanes[i], &sets[i]);
		now = news; /* number of wake-ups, read after the polls, which clear them */
		if (*mine == now && !over) {
			sched_yield(); /* lets the other threads see the pending wake-up first */
			must(siw_llp_wait_any(sets, POLLERS, -1, LIMIT_US) == 1);
		}
		*mine = now;
	}
	return NULL;
}

static void run_wake_test(void)
{
	pthread_t threads[WAITERS];

	start_threads(threads, WAITERS, wait_for_socket_or_wake_up);
	for (unsigned int i = 0; i < WAKES; i++) {
		news = i + 1;
		siw_llp_poller_wake(lanes[i % POLLERS].poller);
		for (int j = 0; j < WAITERS; j++)
			while (seen[j] != i + 1)
				sched_yield();
	}
	wake_and_join_threads(threads, WAITERS);
}

/* ---- move ------------------------------------------------------------------------------------ */

/* A stream, whose octets a thread of its present lane receives. */
static struct stream {
	struct siw_io_handler handler;
	struct siw_llp_sock *sock, *peer;
	unsigned int lane;
	size_t sent;
	_Atomic size_t received;
} streams[STREAMS];

/* the poller of the peers, which only the main thread uses */
static struct siw_llp_poller *outside;

static int receive_from_tcp_stream(struct siw_io_handler *self)
{
	struct stream *stream = siw_container(self, struct stream, handler);
	char octets[4096];
	struct iovec iov = { octets, sizeof(octets) };
	ssize_t got = siw_llp_tcp_recvv(stream->sock, &iov, 1);

	must(got > 0 || got == -EAGAIN);
	if (got > 0)
		stream->received += (size_t)got;
	return got > 0;
}

static int ignore_events_of_peer(struct siw_io_handler *self)
{
	(void)self;
	return 0;
}

static struct siw_io_handler peer_handler = { ignore_events_of_peer };

static void connect_tcp_stream(struct siw_llp_sock *listener, const struct siw_addr *at,
			       struct stream *stream)
{
	int rv;

	stream->handler.serve = receive_from_tcp_stream;
	must(!siw_llp_tcp_connect(outside, at, NULL, &peer_handler, &stream->peer));
	while ((rv = siw_llp_tcp_connect_result(stream->peer)) == -EAGAIN)
		sched_yield();
	must(!rv);
	while ((rv = siw_llp_tcp_accept(listener, &stream->handler, &stream->sock)) == -EAGAIN)
		sched_yield();
	must(!rv);
	siw_llp_leave_poller(stream->sock);
	must(!siw_llp_add_to_poller(stream->sock, lanes[0].poller));
}

static void open_tcp_streams(void)
{
	struct siw_llp_sock *listener;
	struct siw_addr at;

	must(!siw_llp_poller_open(NULL, &outside));
	must(!siw_addr_parse("127.0.0.1", 0, &at));
	must(!siw_llp_tcp_listen(outside, &at, STREAMS, &peer_handler, &listener));
	must(!siw_llp_local_addr(listener, &at));
	for (int i = 0; i < STREAMS; i++)
		connect_tcp_stream(listener, &at, &streams[i]);
	siw_llp_close(listener);
}

/* Makes progress on one lane; the thread with the number POLLERS makes progress on all lanes. */
static void *make_progress_on_lanes_until_over(void *arg)
{
	int first = (int)(intptr_t)arg, n = 1;
	struct siw_llp_waitset sets[POLLERS];

	if (first == POLLERS) {
		first = 0;
		n = POLLERS;
	}
	while (!over) {
		int moved = 0;

		for (int i = 0; i < n; i++)
			moved += make_progress_round_and_fill_wait_set(&lanes[first + i], &sets[i]);
		if (!moved && !over) {
			sched_yield(); /* lets the other threads see the pending wake-up first */
			must(siw_llp_wait_any(sets, n, -1, LIMIT_US) == 1);
		}
	}
	return NULL;
}

static void move_stream_to_lane(struct stream *stream, unsigned int to)
{
	struct lane *first = &lanes[stream->lane < to ? stream->lane : to];
	struct lane *second = &lanes[stream->lane < to ? to : stream->lane];

	pthread_mutex_lock(&first->lock);
	pthread_mutex_lock(&second->lock);
	siw_llp_leave_poller(stream->sock);
	must(!siw_llp_add_to_poller(stream->sock, lanes[to].poller));
	stream->lane = to;
	pthread_mutex_unlock(&second->lock);
	pthread_mutex_unlock(&first->lock);
}

static void test_streams_move_between_lanes(void)
{
	pthread_t threads[POLLERS + 1];
	char octets[64] = { 0 };
	struct iovec iov = { octets, sizeof(octets) };

	open_tcp_streams();
	/* Thread i makes progress on lane i, and one more thread makes progress on all lanes. */
	start_threads(threads, POLLERS + 1, make_progress_on_lanes_until_over);
	for (unsigned int i = 0; i < SENDS; i++) {
		struct stream *stream = &streams[i % STREAMS];
		ssize_t sent = siw_llp_tcp_sendv(stream->peer, &iov, 1);

		must(sent > 0);
		stream->sent += (size_t)sent;
		if (i % 3 == 0)
			move_stream_to_lane(stream,
					    (stream->lane + 1 + i % (POLLERS - 1)) % POLLERS);
		/* In half of the turns, the threads are given time to go to sleep. */
		while (i % 2 && stream->received != stream->sent)
			sched_yield();
	}
	for (int i = 0; i < STREAMS; i++)
		while (streams[i].received != streams[i].sent)
			sched_yield();
	wake_and_join_threads(threads, POLLERS + 1);
	for (int i = 0; i < STREAMS; i++) {
		siw_llp_close(streams[i].sock);
		siw_llp_close(streams[i].peer);
	}
	siw_llp_poller_close(outside);
}

/* ---- cancel ---------------------------------------------------------------------------------- */

static _Atomic bool about_to_wait;

static void *wait_until_cancelled(void *unused)
{
	struct siw_llp_waitset sets[POLLERS];

	(void)unused;
	for (int i = 0; i < POLLERS; i++)
		siw_llp_waitset_fill(lanes[i].poller, &sets[i]);
	about_to_wait = true;
	siw_llp_wait_any_cancellable(sets, POLLERS, -1, -1);
	return NULL;
}

static void run_cancel_test(void)
{
	for (int i = 0; i < CANCELS; i++) {
		pthread_t thread;
		void *end;

		about_to_wait = false;
		must(!pthread_create(&thread, NULL, wait_until_cancelled, NULL));
		while (!about_to_wait)
			sched_yield();
		for (int j = 0; j < i; j++) /* in most cases the thread sleeps after this loop */
			sched_yield();
		must(!pthread_cancel(thread));
		must(!pthread_join(thread, &end) && end == PTHREAD_CANCELED);
	}
	/* A poller whose count of sleeping threads is wrong would never clear the wake-up. */
	for (int i = 0; i < POLLERS; i++) {
		struct siw_llp_waitset set;

		siw_llp_poller_wake(lanes[i].poller);
		make_progress_round_and_fill_wait_set(&lanes[i], &set);
		must(siw_llp_wait(&set, -1, 0) == 0);
	}
}

int main(int argc, char **argv)
{
	must(argc == 2);
	for (int i = 0; i < POLLERS; i++) {
		must(!pthread_mutex_init(&lanes[i].lock, NULL));
		must(!siw_llp_poller_open(i ? lanes[0].poller : NULL, &lanes[i].poller));
	}
	if (!strcmp(argv[1], "wake"))
		run_wake_test();
	else if (!strcmp(argv[1], "move"))
		test_streams_move_between_lanes();
	else
		run_cancel_test();
	for (int i = 0; i < POLLERS; i++)
		siw_llp_poller_close(lanes[i].poller);
	return 0;
}
