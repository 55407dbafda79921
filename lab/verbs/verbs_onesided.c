/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The additional delay until a Write is visible in a program that does not poll.
 *
 * For each sample the target polls its queue for a while, reports over a plain UDP socket that it
 * is ready, and from then on only reads its memory, like a program that computes. When the number
 * written by the initiator is visible, the target answers over the plain socket. The initiator
 * measures the time from "ready" to the answer. The run "polling" is the same, but the target
 * continues to poll; in the run "idle" the target never polls. All three runs include the cost of
 * the two plain messages, so the difference of two runs is the delay that is caused by not polling.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "lab/verbs/verbs.h"

#define POLL_NS 300000 /* time that the target polls before it stops */

struct side {
	int fd;
	struct sockaddr_in peer;
};

static uint16_t side_channel_open(struct side *s)
{
	struct timeval limit = { .tv_sec = SIW_BENCH_SLEEP_MS / 1000 };
	socklen_t length = sizeof(s->peer);

	s->peer = (struct sockaddr_in){ .sin_family = AF_INET,
					.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	s->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (s->fd < 0 || bind(s->fd, (struct sockaddr *)&s->peer, sizeof(s->peer)) ||
	    getsockname(s->fd, (struct sockaddr *)&s->peer, &length))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "the side channel: %s", strerror(errno));
	setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	return ntohs(s->peer.sin_port);
}

static void side_channel_send(struct side *s, uint64_t number)
{
	if (sendto(s->fd, &number, sizeof(number), 0, (struct sockaddr *)&s->peer,
		   sizeof(s->peer)) != sizeof(number))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "the side channel: %s", strerror(errno));
}

static void side_channel_expect_number(struct side *s, uint64_t number)
{
	uint64_t got;
	ssize_t n;

	do
		n = recv(s->fd, &got, sizeof(got), 0);
	while (n < 0 && errno == EINTR);
	if (n != sizeof(got) || got != number)
		siw_bench_die(SIW_BENCH_EXIT_LOST, "the side channel: no answer %llu",
			      (unsigned long long)number);
}

/* Read a word that another thread writes at the same time, without a report of a data race. */
static __attribute__((no_sanitize("thread"))) uint64_t
onesided_read_word(const volatile uint64_t *at)
{
	return *at;
}

static void onesided_run_target(struct siw_bench_side *e, struct side *s, uint32_t n)
{
	const volatile uint64_t *word = (const void *)siw_bench_slot(&e->buf, 0);
	bool before = strcmp(e->o->run, "idle") != 0, after = !strcmp(e->o->run, "polling");
	struct siw_wc wc;

	for (uint64_t i = 1; i <= n; i++) {
		uint64_t until = siw_bench_now() + POLL_NS;
		struct siw_bench_guard guard = { 0 };

		while (siw_bench_now() < until)
			if (before)
				siw_bench_poll(e, &wc, 1);
		side_channel_send(s, i);
		while (onesided_read_word(word) != i) {
			if (after)
				siw_bench_poll(e, &wc, 1);
			if (siw_bench_idle(&guard))
				siw_bench_die(SIW_BENCH_EXIT_LOST, "Write %llu did not arrive",
					      (unsigned long long)i);
		}
		side_channel_send(s, i);
	}
}

static void onesided_run_initiator(struct siw_bench_side *e, struct side *s, uint32_t n,
				   uint64_t *ns)
{
	struct siw_wc wc;

	for (uint64_t i = 1; i <= n; i++) {
		uint64_t start;

		memcpy(e->buf.base, &i, sizeof(i));
		side_channel_expect_number(s, i);
		start = siw_bench_now();
		siw_bench_post_rdma(e, SIW_WR_RDMA_WRITE, sizeof(i), e->buf.base,
				    e->peer.addr + e->buf.stride);
		side_channel_expect_number(s, i);
		ns[i - 1] = siw_bench_now() - start;
		if (!siw_bench_wait_for_completions(e, &wc, 1))
			siw_bench_die(SIW_BENCH_EXIT_LOST, "a Write did not complete");
	}
}

void siw_lab_measure_onesided(const struct siw_bench_opts *o, struct siw_bench_result *result)
{
	uint64_t *ns = calloc(o->iters, sizeof(*ns));
	struct siw_bench_opts fixed = *o;
	struct siw_bench_side e;
	struct side side;

	if (!ns)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "no memory for the samples");
	fixed.rc = true;
	fixed.event = false;
	fixed.size = sizeof(uint64_t);
	siw_bench_open_client_or_server(&e, &fixed, 1);
	memset(siw_bench_slot(&e.buf, 0), 0, sizeof(uint64_t));
	side.peer.sin_port =
		htons((uint16_t)siw_bench_exchange_number(o->ctl, side_channel_open(&side)));
	siw_bench_exchange_number(o->ctl, 0);
	if (o->server)
		onesided_run_target(&e, &side, o->iters);
	else
		onesided_run_initiator(&e, &side, o->iters, ns);
	siw_bench_exchange_number(o->ctl, 0);
	siw_bench_summarize_samples(ns, o->iters, 1, result);
	siw_bench_close_client_or_server(&e);
	close(side.fd);
	free(ns);
}
