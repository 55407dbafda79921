/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The baselines ("floors") of RC: a TCP connection with TCP_NODELAY and without a protocol above
 * TCP.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "bench/bench.h"

#define PIECE	(64 << 10) /* octets of a coalesced write, and minimum octets asked from recv() */
#define REQUEST 28	   /* octets of a Read Request header (RFC 5040 section 4.4) */

enum { BLOCKING = 1, COALESCED = 2 };

static const struct variant {
	const char *name;
	int flags;
} variants[] = {
	{ "polling", 0 },
	{ "single", 0 },
	{ "blocking", BLOCKING },
	{ "coalesced", COALESCED },
	{ "blocking-coalesced", BLOCKING | COALESCED },
};

struct raw {
	const struct siw_bench_opts *o;
	int fd, flags;
	struct siw_bench_buf buf;
	struct siw_bench_guard guard;
};

static int raw_tcp_accept(struct raw *r, struct sockaddr_in *local)
{
	struct siw_bench_hello mine = { 0 }, theirs;
	socklen_t length = sizeof(*local);
	int fd, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (listener < 0 || bind(listener, (struct sockaddr *)local, sizeof(*local)) ||
	    listen(listener, 1) || getsockname(listener, (struct sockaddr *)local, &length))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "listening: %s", strerror(errno));
	mine.port = ntohs(local->sin_port);
	siw_bench_exchange_hello(r->o->ctl, &mine, &theirs);
	fd = accept(listener, NULL, NULL);
	close(listener);
	return fd;
}

static int raw_tcp_connect(struct raw *r, struct sockaddr_in *peer)
{
	struct siw_bench_hello mine = { 0 }, theirs;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	siw_bench_exchange_hello(r->o->ctl, &mine, &theirs);
	peer->sin_port = htons(theirs.port);
	if (fd >= 0 && connect(fd, (struct sockaddr *)peer, sizeof(*peer)))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "connecting: %s", strerror(errno));
	return fd;
}

static void raw_tcp_open(struct raw *r)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct timeval limit = { .tv_sec = SIW_BENCH_SLEEP_MS / 1000 };
	int on = 1;

	r->fd = r->o->server ? raw_tcp_accept(r, &address) : raw_tcp_connect(r, &address);
	if (r->fd < 0 || setsockopt(r->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "a TCP connection: %s", strerror(errno));
	setsockopt(r->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(r->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

/*
 * Check the result of a send or recv without progress: return for EAGAIN or EINTR, otherwise exit
 * with an error.
 */
static void raw_tcp_exit_unless_retryable(struct raw *r, const char *what, ssize_t n)
{
	if (n < 0 && errno == EINTR)
		return;
	if (n == 0 || errno != EAGAIN)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "%s: %s", what,
			      n ? strerror(errno) : "the peer closed the connection");
	if ((r->flags & BLOCKING) || siw_bench_idle(&r->guard))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "%s: the peer sends and accepts no data", what);
}

static int raw_tcp_msg_flags(const struct raw *r)
{
	return MSG_NOSIGNAL | (r->flags & BLOCKING ? 0 : MSG_DONTWAIT);
}

static void raw_tcp_send_all(struct raw *r, const char *data, size_t size)
{
	while (size) {
		ssize_t n = send(r->fd, data, size, raw_tcp_msg_flags(r));

		if (n <= 0) {
			raw_tcp_exit_unless_retryable(r, "sending", n);
			continue;
		}
		siw_bench_reset_idle(&r->guard);
		data += n;
		size -= (size_t)n;
	}
}

/* Receive total octets, wrapping to the start of the buffer after each size octets. */
static void raw_tcp_recv_all(struct raw *r, char *data, size_t size, uint64_t total)
{
	size_t at = 0;

	while (total) {
		size_t most = size - at < total ? size - at : (size_t)total;
		ssize_t n = recv(r->fd, data + at, most, raw_tcp_msg_flags(r));

		if (n <= 0) {
			raw_tcp_exit_unless_retryable(r, "receiving", n);
			continue;
		}
		siw_bench_reset_idle(&r->guard);
		total -= (uint64_t)n;
		at += (size_t)n;
		if (at == size)
			at = 0;
	}
}

/* ---- latency of round trips ------------------------------------------------------------------ */

/*
 * Exchange messages in both directions or, for Read, requests in one direction and data in the
 * other.
 */
static void raw_tcp_ping_pong(struct raw *r, uint32_t n, uint64_t *ns)
{
	size_t size = r->o->size;
	size_t there = r->o->op == SIW_BENCH_READ ? REQUEST : size;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t start = siw_bench_now();

		if (!r->o->server)
			raw_tcp_send_all(r, r->buf.base, there);
		raw_tcp_recv_all(r, siw_bench_slot(&r->buf, i), r->o->server ? there : size,
				 r->o->server ? there : size);
		if (r->o->server)
			raw_tcp_send_all(r, r->buf.base, size);
		if (ns)
			ns[i] = siw_bench_now() - start;
	}
}

static void raw_tcp_measure_latency(struct raw *r, struct siw_bench_result *result)
{
	uint64_t *ns = calloc(r->o->iters, sizeof(*ns));

	if (!ns)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "no memory for the samples");
	siw_bench_exchange_number(r->o->ctl, 0);
	raw_tcp_ping_pong(r, r->o->warmup, NULL);
	raw_tcp_ping_pong(r, r->o->iters, ns);
	siw_bench_summarize_samples(ns, r->o->iters, r->o->op == SIW_BENCH_READ ? 1 : 2, result);
	free(ns);
}

/* ---- streams of messages --------------------------------------------------------------------- */

static void raw_tcp_send_stream(struct raw *r, uint32_t n)
{
	size_t piece = r->flags & COALESCED ? PIECE : r->o->size;

	for (uint64_t left = n * r->o->size; left;) {
		size_t size = left < piece ? (size_t)left : piece;

		raw_tcp_send_all(r, r->buf.base, size);
		left -= size;
	}
}

static void raw_tcp_recv_stream(struct raw *r, uint32_t n)
{
	size_t size = r->o->size < PIECE ? PIECE : r->o->size;

	raw_tcp_recv_all(r, siw_bench_slot(&r->buf, 0), size, n * r->o->size);
}

/*
 * Transfer data in one direction, with an octet in the other direction as request or
 * acknowledgement.
 */
static void raw_tcp_transfer_one_way(struct raw *r, uint32_t n)
{
	bool pull = r->o->op == SIW_BENCH_READ;
	char octet = 0;

	if (pull && !r->o->server)
		raw_tcp_send_all(r, &octet, 1);
	if (pull && r->o->server)
		raw_tcp_recv_all(r, &octet, 1, 1);
	if (pull == r->o->server)
		raw_tcp_send_stream(r, n);
	else
		raw_tcp_recv_stream(r, n);
	if (!pull && r->o->server)
		raw_tcp_send_all(r, &octet, 1);
	if (!pull && !r->o->server)
		raw_tcp_recv_all(r, &octet, 1, 1);
}

static void raw_tcp_measure_stream(struct raw *r, struct siw_bench_result *result)
{
	uint32_t parts[] = { r->o->warmup, r->o->iters };

	for (int i = 0; i < 2; i++) {
		uint64_t start;

		siw_bench_exchange_number(r->o->ctl, 0);
		start = siw_bench_now();
		raw_tcp_transfer_one_way(r, parts[i]);
		siw_bench_store_rate_result(r->o, parts[i], siw_bench_now() - start, result);
	}
}

void siw_bench_measure_raw_tcp(const struct siw_bench_opts *o, struct siw_bench_result *result)
{
	struct raw r = { .o = o, .flags = -1 };

	for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++)
		if (!strcmp(o->run, variants[i].name))
			r.flags = variants[i].flags;
	if (r.flags < 0)
		siw_bench_die(SIW_BENCH_EXIT_USAGE, "there is no TCP run named %s", o->run);
	siw_bench_buf_make(&r.buf, o->size < PIECE ? PIECE : o->size, 1);
	raw_tcp_open(&r);
	siw_bench_pin_thread(o->cpu);
	if (!strcmp(o->kind, "lat"))
		raw_tcp_measure_latency(&r, result);
	else
		raw_tcp_measure_stream(&r, result);
	siw_bench_exchange_number(o->ctl, 0);
	close(r.fd);
	siw_bench_buf_free(&r.buf);
}
