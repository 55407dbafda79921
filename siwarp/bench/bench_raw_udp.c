/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The baselines ("floors") of UD: the performance of a UDP socket on the same machine without
 * siwarp. Streams are windowed like siwarp's, with a credit from the receiver per half window, so
 * that no datagram is lost and both variants do the same work.
 */
#include <errno.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "bench/bench.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define BUFFER	      (8 << 20) /* octets of a socket's buffer, as in the setting rcvbuf */
#define GSO_SEGMENTS  64
#define GSO_OCTETS    65507
#define CREDIT_OCTETS 4

enum { CONNECTED = 1, BLOCKING = 2, MMSG = 4, GSO = 8 };

static const struct variant {
	const char *name;
	int flags;
} variants[] = {
	{ "unconnected", 0 },	  { "connected", CONNECTED },
	{ "blocking", BLOCKING }, { "single", 0 },
	{ "mmsg", MMSG },	  { "blocking-mmsg", BLOCKING | MMSG },
	{ "gso", GSO },		  { "blocking-gso", BLOCKING | GSO },
};

struct raw {
	const struct siw_bench_opts *o;
	int fd, flags;
	struct sockaddr_in peer;
	struct siw_bench_buf buf;
	struct siw_bench_guard guard;
};

static void raw_udp_set_socket_buffer_size(int fd, int force, int plain)
{
	int octets = BUFFER;

	if (setsockopt(fd, SOL_SOCKET, force, &octets, sizeof(octets)))
		setsockopt(fd, SOL_SOCKET, plain, &octets, sizeof(octets));
}

static void raw_udp_open(struct raw *r)
{
	struct sockaddr_in local = { .sin_family = AF_INET,
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct timeval limit = { .tv_sec = SIW_BENCH_SLEEP_MS / 1000 };
	struct siw_bench_hello mine = { 0 }, theirs;
	socklen_t length = sizeof(local);
	int on = 1, type = SOCK_DGRAM | SOCK_CLOEXEC;

	if (!(r->flags & BLOCKING))
		type |= SOCK_NONBLOCK;
	r->fd = socket(AF_INET, type, 0);
	if (r->fd < 0 || bind(r->fd, (struct sockaddr *)&local, sizeof(local)) ||
	    getsockname(r->fd, (struct sockaddr *)&local, &length))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "a UDP socket: %s", strerror(errno));
	raw_udp_set_socket_buffer_size(r->fd, SO_RCVBUFFORCE, SO_RCVBUF);
	raw_udp_set_socket_buffer_size(r->fd, SO_SNDBUFFORCE, SO_SNDBUF);
	setsockopt(r->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if ((r->flags & GSO) && r->o->server &&
	    setsockopt(r->fd, IPPROTO_UDP, UDP_GRO, &on, sizeof(on)))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "this kernel has no UDP_GRO");
	mine.port = ntohs(local.sin_port);
	siw_bench_exchange_hello(r->o->ctl, &mine, &theirs);
	r->peer = local;
	r->peer.sin_port = htons(theirs.port);
	if ((r->flags & CONNECTED) && connect(r->fd, (struct sockaddr *)&r->peer, sizeof(r->peer)))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "connect: %s", strerror(errno));
}

/* Return if errno is a temporary error (EAGAIN, ENOBUFS, EINTR); otherwise exit with an error. */
static void raw_udp_exit_unless_retryable(const char *what)
{
	if (errno != EAGAIN && errno != ENOBUFS && errno != EINTR)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "%s: %s", what, strerror(errno));
}

static void raw_udp_send(struct raw *r, const void *data, size_t size)
{
	for (;;) {
		ssize_t n = r->flags & CONNECTED
				    ? send(r->fd, data, size, 0)
				    : sendto(r->fd, data, size, 0, (struct sockaddr *)&r->peer,
					     sizeof(r->peer));

		if (n >= 0)
			return;
		raw_udp_exit_unless_retryable("sending");
		if (siw_bench_idle(&r->guard))
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "the socket accepts no more data");
	}
}

/* Receive a datagram; return false if none has arrived in time (SO_RCVTIMEO if recv blocks). */
static bool raw_udp_recv(struct raw *r, void *data, size_t size)
{
	struct sockaddr_in from;

	for (;;) {
		socklen_t length = sizeof(from);
		ssize_t n = r->flags & CONNECTED ? recv(r->fd, data, size, 0)
						 : recvfrom(r->fd, data, size, 0,
							    (struct sockaddr *)&from, &length);

		if (n >= 0) {
			siw_bench_reset_idle(&r->guard);
			return true;
		}
		raw_udp_exit_unless_retryable("receiving");
		if ((r->flags & BLOCKING) || siw_bench_idle(&r->guard))
			return false;
	}
}

/* ---- latency of round trips ------------------------------------------------------------------ */

static void raw_udp_ping_pong(struct raw *r, uint32_t n, uint64_t *ns)
{
	const char *out = r->buf.base;
	size_t size = r->o->size;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t start = siw_bench_now();

		if (!r->o->server)
			raw_udp_send(r, out, size);
		if (!raw_udp_recv(r, siw_bench_slot(&r->buf, i), size))
			siw_bench_die(SIW_BENCH_EXIT_LOST, "a datagram was lost");
		if (r->o->server)
			raw_udp_send(r, out, size);
		if (ns)
			ns[i] = siw_bench_now() - start;
	}
}

static void raw_udp_measure_latency(struct raw *r, struct siw_bench_result *result)
{
	uint64_t *ns = calloc(r->o->iters, sizeof(*ns));

	if (!ns)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "no memory for the samples");
	siw_bench_exchange_number(r->o->ctl, 0);
	raw_udp_ping_pong(r, r->o->warmup, NULL);
	raw_udp_ping_pong(r, r->o->iters, ns);
	siw_bench_summarize_samples(ns, r->o->iters, 2, result);
	free(ns);
}

/* ---- streams of messages --------------------------------------------------------------------- */

static uint32_t raw_udp_send_mmsg(struct raw *r, uint32_t k)
{
	struct iovec iov = { .iov_base = r->buf.base, .iov_len = r->o->size };
	struct mmsghdr msgs[SIW_BENCH_BATCH] = { 0 };
	int n;

	if (k > SIW_BENCH_BATCH)
		k = SIW_BENCH_BATCH;
	for (uint32_t i = 0; i < k; i++) {
		msgs[i].msg_hdr.msg_name = &r->peer;
		msgs[i].msg_hdr.msg_namelen = sizeof(r->peer);
		msgs[i].msg_hdr.msg_iov = &iov;
		msgs[i].msg_hdr.msg_iovlen = 1;
	}
	n = sendmmsg(r->fd, msgs, k, 0);
	if (n < 0) {
		raw_udp_exit_unless_retryable("sendmmsg");
		if (siw_bench_idle(&r->guard))
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "the socket accepts no more data");
		return 0;
	}
	return (uint32_t)n;
}

static uint32_t raw_udp_max_gso_segments(const struct siw_bench_opts *o)
{
	uint64_t most = GSO_OCTETS / o->size;

	return most > GSO_SEGMENTS ? GSO_SEGMENTS : (uint32_t)most;
}

static uint32_t raw_udp_send_gso(struct raw *r, uint32_t k)
{
	union {
		char space[CMSG_SPACE(sizeof(uint16_t))];
		struct cmsghdr align;
	} control = { { 0 } };
	struct iovec iov = { .iov_base = r->buf.base };
	struct msghdr msg = { .msg_name = &r->peer,
			      .msg_namelen = sizeof(r->peer),
			      .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.space,
			      .msg_controllen = sizeof(control.space) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	uint16_t segment = (uint16_t)r->o->size;

	if (k > raw_udp_max_gso_segments(r->o))
		k = raw_udp_max_gso_segments(r->o);
	iov.iov_len = k * r->o->size;
	c->cmsg_level = IPPROTO_UDP;
	c->cmsg_type = UDP_SEGMENT;
	c->cmsg_len = CMSG_LEN(sizeof(segment));
	memcpy(CMSG_DATA(c), &segment, sizeof(segment));
	if (sendmsg(r->fd, &msg, 0) < 0) {
		raw_udp_exit_unless_retryable("sendmsg with UDP_SEGMENT");
		if (siw_bench_idle(&r->guard))
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "the socket accepts no more data");
		return 0;
	}
	return k;
}

static uint32_t raw_udp_send_batch(struct raw *r, uint32_t k)
{
	if (r->flags & MMSG)
		return raw_udp_send_mmsg(r, k);
	if (r->flags & GSO)
		return raw_udp_send_gso(r, k);
	raw_udp_send(r, r->buf.base, r->o->size);
	return 1;
}

/*
 * Send n messages; return the number of messages sent, which is less than n if a credit did not
 * arrive.
 */
static uint32_t raw_udp_send_stream(struct raw *r, uint32_t n)
{
	uint32_t sent = 0, credited = 0, half = siw_bench_credit_size(r->o);
	char credit[CREDIT_OCTETS];

	while (credited < n) {
		uint32_t room = r->o->depth - (sent - credited);

		if (room > n - sent)
			room = n - sent;
		if (room) {
			sent += raw_udp_send_batch(r, room);
			continue;
		}
		if (!raw_udp_recv(r, credit, sizeof(credit)))
			break;
		credited += half;
	}
	return sent;
}

static uint32_t raw_udp_recv_mmsg(struct raw *r, uint32_t at, uint32_t most)
{
	struct sockaddr_in from[SIW_BENCH_BATCH];
	struct iovec iov[SIW_BENCH_BATCH];
	struct mmsghdr msgs[SIW_BENCH_BATCH] = { 0 };

	if (most > SIW_BENCH_BATCH)
		most = SIW_BENCH_BATCH;
	for (uint32_t i = 0; i < most; i++) {
		iov[i].iov_base = siw_bench_slot(&r->buf, at + i);
		iov[i].iov_len = r->o->size;
		msgs[i].msg_hdr.msg_name = &from[i];
		msgs[i].msg_hdr.msg_namelen = sizeof(from[i]);
		msgs[i].msg_hdr.msg_iov = &iov[i];
		msgs[i].msg_hdr.msg_iovlen = 1;
	}
	for (;;) {
		int n = recvmmsg(r->fd, msgs, most, r->flags & BLOCKING ? MSG_WAITFORONE : 0, NULL);

		if (n > 0) {
			siw_bench_reset_idle(&r->guard);
			return (uint32_t)n;
		}
		raw_udp_exit_unless_retryable("recvmmsg");
		if ((r->flags & BLOCKING) || siw_bench_idle(&r->guard))
			return 0;
	}
}

/* Receive datagrams; a batch that GRO delivers as one packet counts as its number of datagrams. */
static uint32_t raw_udp_recv_gro(struct raw *r)
{
	static char batch[1 << 16];

	for (;;) {
		ssize_t n = recv(r->fd, batch, sizeof(batch), 0);

		if (n >= 0) {
			siw_bench_reset_idle(&r->guard);
			return (uint32_t)(((uint64_t)n + r->o->size - 1) / r->o->size);
		}
		raw_udp_exit_unless_retryable("receiving a batch");
		if ((r->flags & BLOCKING) || siw_bench_idle(&r->guard))
			return 0;
	}
}

static uint32_t raw_udp_recv_batch(struct raw *r, uint32_t at, uint32_t most)
{
	if (r->flags & MMSG)
		return raw_udp_recv_mmsg(r, at, most);
	if (r->flags & GSO)
		return raw_udp_recv_gro(r);
	return raw_udp_recv(r, siw_bench_slot(&r->buf, at), r->o->size) ? 1 : 0;
}

static uint32_t raw_udp_recv_stream(struct raw *r, uint32_t n)
{
	uint32_t seen = 0, credited = 0, half = siw_bench_credit_size(r->o);

	while (seen < n) {
		uint32_t k = raw_udp_recv_batch(r, seen, n - seen);

		if (!k)
			break;
		for (seen += k; seen - credited >= half; credited += half)
			raw_udp_send(r, &seen, CREDIT_OCTETS);
	}
	return seen;
}

static void raw_udp_measure_stream(struct raw *r, struct siw_bench_result *result)
{
	const struct siw_bench_opts *o = r->o;
	uint32_t parts[] = { o->warmup, o->iters };

	for (int i = 0; i < 2; i++) {
		uint64_t start, ns;
		uint32_t done;

		siw_bench_exchange_number(o->ctl, 0);
		start = siw_bench_now();
		done = o->server ? raw_udp_recv_stream(r, parts[i])
				 : raw_udp_send_stream(r, parts[i]);
		ns = siw_bench_now() - start;
		siw_bench_check_message_counts(o, done, parts[i]);
		siw_bench_store_rate_result(o, parts[i], ns, result);
	}
}

void siw_bench_measure_raw_udp(const struct siw_bench_opts *o, struct siw_bench_result *result)
{
	struct raw r = { .o = o, .flags = -1 };

	for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++)
		if (!strcmp(o->run, variants[i].name))
			r.flags = variants[i].flags;
	if (r.flags < 0 || o->op != SIW_BENCH_SEND || !o->size || o->size > GSO_OCTETS)
		siw_bench_die(SIW_BENCH_EXIT_USAGE, "there is no UDP run named %s of this kind",
			      o->run);
	siw_bench_buf_make(&r.buf, r.flags & GSO ? GSO_OCTETS : o->size, 2 * o->depth);
	raw_udp_open(&r);
	siw_bench_pin_thread(o->cpu);
	if (!strcmp(o->kind, "lat"))
		raw_udp_measure_latency(&r, result);
	else
		raw_udp_measure_stream(&r, result);
	siw_bench_exchange_number(o->ctl, 0);
	close(r.fd);
	siw_bench_buf_free(&r.buf);
}
