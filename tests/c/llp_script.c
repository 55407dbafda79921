/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Runs a script of llp's TCP calls and prints the result of each step to stdout. The script is
 * built twice: for the kernel's TCP over loopback, and (SIMULATED) for the simulated TCP.
 * test_sim_tcp.py compares the output of both builds.
 *
 * Results that depend on timing or buffer sizes, such as port numbers and the number of octets that
 * one call moves, are not printed.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/addr.h"
#include "llp/llp.h"

#ifdef SIMULATED
#include "sim/sim.h"
#define ADDR_A	"10.0.0.1"
#define ADDR_B	"10.0.0.2"
#define ADDR_V6 "fd00::1" /* second address of the simulated host that has ADDR_A */
#else
#define ADDR_A	"127.0.0.1"
#define ADDR_B	"127.0.0.2"
#define ADDR_V6 "::1"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "wan/wan.h"
#endif

#define HANDLERS 8
#define LIMIT_S	 20 /* time limit of a step; a step that works ends immediately */
#define LOSSY	 (512u << 10)
/* time limit of the transfer with losses, which waits for a few retransmission time-outs */
#define LOSSY_LIMIT_S 60
/* octets, more than both socket buffers of a connection hold together */
#define BIG (16u << 20)

#define must(condition)                                                                         \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                                \
		}                                                                               \
	} while (0)

struct side {
	struct siw_llp_poller *poller;
	struct siw_addr addr;
	struct siw_io_handler handler, of_listener;
	struct siw_llp_sock *sock, *listener;
};

static struct side a, b;

static int handle_no_socket_event(struct siw_io_handler *self)
{
	(void)self;
	return 0;
}

/* ---- sockets of both sides ------------------------------------------------------------------- */

#ifdef SIMULATED
static void enter_namespace(const struct side *side)
{
	(void)side;
}

/* Does nothing: in the simulation both ends send at the same instant without a paused link. */
static void set_link_paused(bool hold)
{
	(void)hold;
}
#else
/* process id of `siwarp wan` if a and b are in its two network namespaces; otherwise 0 */
static pid_t relay;

/* Makes sockets that are opened from now on belong to the side's network namespace. */
static void enter_namespace(const struct side *side)
{
	char path[64];
	int fd;

	if (!relay)
		return;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)relay,
		 side == &a ? WAN_FD_A : WAN_FD_B);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	must(fd >= 0 && !setns(fd, CLONE_NEWNET) && !close(fd));
}

/*
 * Pauses or resumes the link between a and b: while the link is paused, no packet passes, and none
 * is lost.
 */
static void set_link_paused(bool hold)
{
	must(relay && !kill(relay, hold ? SIGSTOP : SIGCONT));
}
#endif

static int start_connect_from(const struct side *side, const struct siw_addr *dest,
			      const struct siw_addr *source, struct siw_io_handler *handler,
			      struct siw_llp_sock **out)
{
	enter_namespace(side);
	return siw_llp_tcp_connect(side->poller, dest, source, handler, out);
}

static int start_self_connect(const struct side *side, const struct siw_addr *local,
			      struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	enter_namespace(side);
	return siw_llp_tcp_connect_to_itself(side->poller, local, handler, out);
}

static int open_listener(const struct side *side, const struct siw_addr *local, int backlog,
			 struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	enter_namespace(side);
	return siw_llp_tcp_listen(side->poller, local, backlog, handler, out);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static double monotonic_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool poll_reports_handler(struct side *side, const struct siw_io_handler *handler)
{
	struct siw_io_handler *handlers[HANDLERS];
	int n = siw_llp_poller_poll(side->poller, handlers, HANDLERS);

	for (int i = 0; i < n; i++)
		if (handlers[i] == handler)
			return true;
	return false;
}

/* Waits, for at most 10 ms, until a socket of the side has an event. */
static void wait_for_poller_event(struct side *side)
{
	struct siw_llp_waitset set;

	siw_llp_waitset_fill(side->poller, &set);
	siw_llp_wait(&set, -1, 10000);
}

static void wait_until_handler_ready(struct side *side, const struct siw_io_handler *handler)
{
	double until = monotonic_seconds() + LIMIT_S;

	while (!poll_reports_handler(side, handler)) {
		must(monotonic_seconds() < until);
		wait_for_poller_event(side);
	}
}

static void await_connection_closed(struct side *side)
{
	const struct timespec moment = { .tv_nsec = 1000000 };
	double until = monotonic_seconds() + LIMIT_S;

	/* Sleeps instead of waiting for socket events: unread octets would end the wait at once. */
	while (!siw_llp_tcp_is_closed(side->sock)) {
		must(monotonic_seconds() < until);
		nanosleep(&moment, NULL);
	}
}

/* ---- steps: each prints its result ----------------------------------------------------------- */

static const char *endpoint_name(const struct side *side)
{
	return side == &a ? "a" : "b";
}

static const char *result_text(long rv)
{
	static char text[32];

	switch (rv) {
	case -EAGAIN:
		return "EAGAIN";
	case -EPIPE:
		return "EPIPE";
	case -ECONNRESET:
		return "ECONNRESET";
	case -ECONNREFUSED:
		return "ECONNREFUSED";
	case -ENOTCONN:
		return "ENOTCONN";
	case -EADDRINUSE:
		return "EADDRINUSE";
	case -EADDRNOTAVAIL:
		return "EADDRNOTAVAIL";
	default:
		snprintf(text, sizeof(text), "%ld", rv);
		return text;
	}
}

static void print_step_result(const struct side *side, const char *what, long rv)
{
	printf("%s %s %s\n", endpoint_name(side), what, result_text(rv));
}

static long try_send(struct side *side, const void *octets, size_t n)
{
	struct iovec iov[2] = { { (void *)octets, n / 2 }, { (char *)octets + n / 2, n - n / 2 } };

	return siw_llp_tcp_sendv(side->sock, iov, 2);
}

/*
 * Sends all octets of a string. After a simultaneous open, the kernel sends nothing (-EAGAIN) before
 * it has received the peer's ACK; the poller then reports when it can send.
 */
static void script_send_all(struct side *side, const char *octets)
{
	size_t done = 0, all = strlen(octets);
	bool blocked = false;

	while (done < all) {
		long n = try_send(side, octets + done, all - done);

		if (n == -EAGAIN) {
			blocked = true;
			wait_until_handler_ready(side, &side->handler);
			continue;
		}
		must(n > 0);
		done += (size_t)n;
	}
	if (blocked)
		siw_llp_update_want_write(side->sock, false);
	printf("%s sent %s\n", endpoint_name(side), octets);
}

static long try_recv(struct side *side, void *to, size_t n)
{
	struct iovec iov = { to, n };

	return siw_llp_tcp_recvv(side->sock, &iov, 1);
}

/*
 * Returns the next result of a receive other than -EAGAIN; waits until the poller returns the
 * handler.
 */
static long await_recv(struct side *side, void *to, size_t n)
{
	for (;;) {
		long got = try_recv(side, to, n);

		if (got != -EAGAIN)
			return got;
		wait_until_handler_ready(side, &side->handler);
	}
}

static void script_recv_all(struct side *side, size_t n)
{
	char octets[64] = { 0 };
	size_t done = 0;

	while (done < n) {
		long got = await_recv(side, octets + done, n - done);

		if (got <= 0) {
			print_step_result(side, "received", got);
			return;
		}
		done += (size_t)got;
	}
	printf("%s received %s\n", endpoint_name(side), octets);
}

static void try_recv_and_print_result(struct side *side)
{
	char octets[64];

	print_step_result(side, "receives", try_recv(side, octets, sizeof(octets)));
}

static void recv_end_of_stream_and_print_result(struct side *side)
{
	char octets[64];

	print_step_result(side, "at its end", await_recv(side, octets, sizeof(octets)));
}

static void try_send_and_print_result(struct side *side)
{
	long sent = try_send(side, "xy", 2);

	/* the result is 1 or 2: one or both octets may have been sent */
	print_step_result(side, "sends", sent > 0 ? 1 : sent);
}

static void print_peer_address(struct side *side)
{
	struct siw_addr peer;

	print_step_result(side, "peer", siw_llp_peer_addr(side->sock, &peer));
}

static void shut_down_and_print_result(struct side *side)
{
	print_step_result(side, "shutdown", siw_llp_tcp_shutdown(side->sock));
}

static void close_endpoint_socket(struct side *side)
{
	siw_llp_close(side->sock);
	side->sock = NULL;
	printf("%s closed\n", endpoint_name(side));
}

static void start_listener(struct side *side)
{
	struct siw_addr local = side->addr;

	must(!open_listener(side, &local, 4, &side->of_listener, &side->listener));
	must(!siw_llp_local_addr(side->listener, &side->addr));
}

static int await_connect_result(struct side *side)
{
	int rv;

	while ((rv = siw_llp_tcp_connect_result(side->sock)) == -EAGAIN)
		wait_until_handler_ready(side, &side->handler);
	return rv;
}

static void connect_a_to_b(void)
{
	must(!start_connect_from(&a, &b.addr, NULL, &a.handler, &a.sock));
	must(!await_connect_result(&a));
}

/* Accepts until no connection is waiting, so that the poller stops returning the listener. */
static void accept_connection_on_b(void)
{
	struct siw_llp_sock *more;

	wait_until_handler_ready(&b, &b.of_listener);
	must(!siw_llp_tcp_accept(b.listener, &b.handler, &b.sock));
	must(siw_llp_tcp_accept(b.listener, &b.handler, &more) == -EAGAIN);
}

static void connect_endpoints_tcp(void)
{
	connect_a_to_b();
	accept_connection_on_b();
}

/* ---- the script ------------------------------------------------------------------------------ */

static void scenario_connect_refused(void)
{
	struct siw_addr nobody = b.addr;

	nobody.port_be = 0x0100; /* port 1, where nothing listens */
	must(!start_connect_from(&a, &nobody, NULL, &a.handler, &a.sock));
	print_step_result(&a, "connects", await_connect_result(&a));
	print_step_result(&a, "connects", siw_llp_tcp_connect_result(a.sock));
	print_step_result(&a, "gone", siw_llp_tcp_is_closed(a.sock));
	print_peer_address(&a);
	close_endpoint_socket(&a);
}

static void scenario_socket_addresses(void)
{
	struct siw_addr one, other;
	struct siw_llp_sock *second;

	connect_endpoints_tcp();
	must(!siw_llp_local_addr(a.sock, &one) && !siw_llp_peer_addr(b.sock, &other));
	print_step_result(&a, "is b's peer", siw_addr_same(&one, &other));
	must(!siw_llp_local_addr(b.sock, &one) && !siw_llp_peer_addr(a.sock, &other));
	print_step_result(&b, "is a's peer", siw_addr_same(&one, &other));
	print_step_result(&a, "segments", siw_llp_tcp_emss(a.sock) >= 536);
	print_step_result(&b, "accepts", siw_llp_tcp_accept(b.listener, &b.handler, &second));
	print_step_result(&b, "listens", open_listener(&b, &b.addr, 4, &b.of_listener, &second));
	must(!siw_llp_local_addr(a.sock, &one));
	print_step_result(&a, "connects",
			  start_connect_from(&a, &b.addr, &one, &a.handler, &second));
	siw_addr_parse("192.0.2.1", 0, &one);
	print_step_result(&a, "connects",
			  start_connect_from(&a, &b.addr, &one, &a.handler, &second));
	print_step_result(&a, "connects", siw_llp_tcp_connect_result(a.sock));
	try_recv_and_print_result(&a);
	try_recv_and_print_result(&b);
	close_endpoint_socket(&a);
	recv_end_of_stream_and_print_result(&b);
	close_endpoint_socket(&b);
}

static void scenario_half_closed_connection(void)
{
	connect_endpoints_tcp();
	script_send_all(&a, "to b");
	shut_down_and_print_result(&a);
	try_send_and_print_result(&a);
	script_recv_all(&b, 4);
	recv_end_of_stream_and_print_result(&b);
	try_recv_and_print_result(&b);
	script_send_all(&b, "to a");
	script_recv_all(&a, 4);
	try_recv_and_print_result(&a);
	print_step_result(&a, "gone", siw_llp_tcp_is_closed(a.sock));
	shut_down_and_print_result(&a);
	shut_down_and_print_result(&b);
	recv_end_of_stream_and_print_result(&a);
	try_recv_and_print_result(&a);
	await_connection_closed(&a);
	await_connection_closed(&b);
	shut_down_and_print_result(&a);
	shut_down_and_print_result(&b);
	try_send_and_print_result(&a);
	try_send_and_print_result(&b);
	try_recv_and_print_result(&a);
	try_recv_and_print_result(&b);
	print_peer_address(&a);
	print_peer_address(&b);
	close_endpoint_socket(&a);
	close_endpoint_socket(&b);
}

static void make_calls_after_tcp_reset_and_print_results(struct side *side)
{
	print_step_result(side, "gone", siw_llp_tcp_is_closed(side->sock));
	try_recv_and_print_result(side);
	try_send_and_print_result(side);
	print_peer_address(side);
	shut_down_and_print_result(side);
	close_endpoint_socket(side);
}

/* Checks that closing a socket with unread octets resets the connection. */
static void scenario_close_with_unread_octets(void)
{
	connect_endpoints_tcp();
	script_send_all(&a, "unread");
	wait_until_handler_ready(&b, &b.handler);
	close_endpoint_socket(&b);
	recv_end_of_stream_and_print_result(&a);
	make_calls_after_tcp_reset_and_print_results(&a);
}

/* Checks that octets that arrived before a reset can still be read. */
static void scenario_read_after_reset(void)
{
	connect_endpoints_tcp();
	script_send_all(&b, "before");
	siw_llp_tcp_set_abortive_close(b.sock);
	close_endpoint_socket(&b);
	await_connection_closed(&a);
	script_recv_all(&a, 6);
	recv_end_of_stream_and_print_result(&a);
	make_calls_after_tcp_reset_and_print_results(&a);
}

static void scenario_send_after_abort(void)
{
	connect_endpoints_tcp();
	siw_llp_tcp_set_abortive_close(b.sock);
	close_endpoint_socket(&b);
	await_connection_closed(&a);
	try_send_and_print_result(&a);
	try_send_and_print_result(&a);
	make_calls_after_tcp_reset_and_print_results(&a);
}

/* Sends octets to a socket that the peer has closed. */
static void scenario_send_to_closed_peer(void)
{
	connect_endpoints_tcp();
	close_endpoint_socket(&b);
	recv_end_of_stream_and_print_result(&a);
	script_send_all(&a, "late");
	await_connection_closed(&a);
	try_send_and_print_result(&a);
	try_send_and_print_result(&a);
	make_calls_after_tcp_reset_and_print_results(&a);
}

static void scenario_connection_never_accepted(void)
{
	connect_a_to_b();
	script_send_all(&a, "nobody reads it");
	wait_until_handler_ready(&b, &b.of_listener);
	siw_llp_close(b.listener);
	recv_end_of_stream_and_print_result(&a);
	make_calls_after_tcp_reset_and_print_results(&a);
	start_listener(&b);
}

/* The client establishes and ends a connection before the server accepts it. */
static void scenario_accept_after_client_closed(void)
{
	connect_a_to_b();
	script_send_all(&a, "early");
	close_endpoint_socket(&a);
	accept_connection_on_b();
	script_recv_all(&b, 5);
	recv_end_of_stream_and_print_result(&b);
	try_send_and_print_result(&b);
	close_endpoint_socket(&b);
}

/* Sends and receives octet by octet, because a stream has no message boundaries. */
static void scenario_send_octet_by_octet(void)
{
	static const char text[] = "cut anywhere";
	char got[sizeof(text)] = { 0 };

	connect_endpoints_tcp();
	for (size_t i = 0; i < sizeof(text) - 1; i++)
		must(try_send(&a, text + i, 1) == 1);
	script_recv_all(&b, sizeof(text) - 1);
	script_send_all(&b, text);
	for (size_t i = 0; i < sizeof(text) - 1; i++)
		print_step_result(&a, "received", await_recv(&a, got + i, 1));
	printf("a received %s\n", got);
	print_step_result(&a, "receives", try_recv(&a, got, 0));
	try_recv_and_print_result(&a);
	close_endpoint_socket(&a);
	recv_end_of_stream_and_print_result(&b);
	close_endpoint_socket(&b);
}

/*
 * Connects to a listener with a full backlog, which ignores further SYNs. The connect succeeds when
 * there is space for its next SYN, after one second.
 */
static void scenario_full_listen_backlog(void)
{
	struct siw_io_handler handlers[3] = { a.handler, a.handler, a.handler }, on_new = a.handler;
	struct siw_llp_sock *listener, *connecting[3], *accepted[3];
	struct siw_addr at = b.addr;
	int rv;

	at.port_be = 0;
	must(!open_listener(&b, &at, 1, &on_new, &listener));
	must(!siw_llp_local_addr(listener, &at));
	for (int i = 0; i < 3; i++) {
		must(!start_connect_from(&a, &at, NULL, &handlers[i], &connecting[i]));
		if (i == 2)
			break;
		while ((rv = siw_llp_tcp_connect_result(connecting[i])) == -EAGAIN)
			wait_until_handler_ready(&a, &handlers[i]);
		must(!rv);
		a.sock = connecting[i];
		try_recv_and_print_result(
			&a); /* read until EAGAIN, so that the poller stops returning the handler */
	}
	for (int i = 0; i < 3; i++)
		print_step_result(&a, "connects", siw_llp_tcp_connect_result(connecting[i]));
	for (int i = 0; i < 3; i++) {
		while ((rv = siw_llp_tcp_accept(listener, &b.handler, &accepted[i])) == -EAGAIN)
			wait_until_handler_ready(&b, &on_new);
		must(!rv);
	}
	while ((rv = siw_llp_tcp_connect_result(connecting[2])) == -EAGAIN)
		wait_until_handler_ready(&a, &handlers[2]);
	print_step_result(&a, "connects", rv);
	for (int i = 0; i < 3; i++) {
		siw_llp_close(connecting[i]);
		siw_llp_close(accepted[i]);
	}
	siw_llp_close(listener);
}

/* Checks a simultaneous open of a socket that connects to itself. */
static void scenario_socket_connects_to_itself(void)
{
	struct siw_addr own = a.addr;

	own.port_be = 0;
	must(!start_self_connect(&a, &own, &a.handler, &a.sock));
	print_step_result(&a, "connects", await_connect_result(&a));
	script_send_all(&a, "to itself");
	script_recv_all(&a, 9);
	shut_down_and_print_result(&a);
	recv_end_of_stream_and_print_result(&a);
	try_recv_and_print_result(&a);
	close_endpoint_socket(&a);
}

/* Sends until the buffers are full, and then until all octets have arrived. */
static void scenario_full_socket_buffers(void)
{
	static uint8_t out[BIG], in[65536];
	size_t sent = 0, received = 0;
	bool blocked = false;
	long n;

	for (size_t i = 0; i < BIG; i++)
		out[i] = (uint8_t)(i * 2654435761u >> 24);
	connect_endpoints_tcp();
	while (received < BIG) {
		while (sent < BIG) {
			n = try_send(&a, out + sent, BIG - sent);
			if (n == -EAGAIN)
				break;
			must(n > 0);
			sent += (size_t)n;
		}
		blocked |= sent < BIG;
		must(sent > received);
		n = await_recv(&b, in, sizeof(in));
		must(n > 0 && !memcmp(in, out + received, (size_t)n));
		received += (size_t)n;
		if (sent < BIG && received == sent) /* the poller reports send buffer space */
			wait_until_handler_ready(&a, &a.handler);
	}
	siw_llp_update_want_write(a.sock, false);
	print_step_result(&a, "was blocked", blocked);
	print_step_result(&b, "received all", received == BIG);
	try_recv_and_print_result(&b);
	close_endpoint_socket(&a);
	recv_end_of_stream_and_print_result(&b);
	close_endpoint_socket(&b);
}

/* Checks that a paused socket is reported only after the peer has closed the connection. */
static void scenario_paused_socket(void)
{
	connect_endpoints_tcp();
	try_recv_and_print_result(&b);
	siw_llp_sock_pause(b.sock);
	script_send_all(&a, "later");
	for (int i = 0; i < 3; i++) {
		print_step_result(&b, "is returned", poll_reports_handler(&b, &b.handler));
		wait_for_poller_event(&b);
	}
	siw_llp_sock_resume(b.sock);
	script_recv_all(&b, 5);
	try_recv_and_print_result(&b);
	siw_llp_sock_pause(b.sock);
	shut_down_and_print_result(&a);
	wait_until_handler_ready(&b, &b.handler);
	recv_end_of_stream_and_print_result(&b);
	close_endpoint_socket(&b);
	recv_end_of_stream_and_print_result(&a);
	close_endpoint_socket(&a);
}

static struct siw_llp_poller *open_sibling_poller(const struct side *side)
{
	struct siw_llp_poller *poller;

	enter_namespace(side);
	must(!siw_llp_poller_open(side->poller, &poller));
	return poller;
}

static void move_socket_to_poller(struct side *side, struct siw_llp_poller *poller)
{
	siw_llp_leave_poller(side->sock);
	must(!siw_llp_add_to_poller(side->sock, poller));
	side->poller = poller;
}

/*
 * Connects a new socket, which belongs to the poller of `side`, to a's listener, and closes both.
 */
static void connect_to_listener_of_a(struct side *side)
{
	struct siw_io_handler handler = side->handler;
	struct siw_llp_sock *sock, *accepted;
	int rv;

	must(!start_connect_from(side, &a.addr, NULL, &handler, &sock));
	while ((rv = siw_llp_tcp_connect_result(sock)) == -EAGAIN)
		wait_until_handler_ready(side, &handler);
	print_step_result(side, "connects", rv);
	while ((rv = siw_llp_tcp_accept(a.listener, &handler, &accepted)) == -EAGAIN)
		wait_until_handler_ready(&a, &a.of_listener);
	must(!rv);
	siw_llp_close(accepted);
	must(siw_llp_tcp_accept(a.listener, &handler, &accepted) == -EAGAIN);
	siw_llp_close(sock);
}

/* Checks that a socket that moves to another poller of its host loses no octet and no event. */
static void scenario_move_to_another_poller(void)
{
	struct siw_llp_poller *first = b.poller, *second = open_sibling_poller(&b);

	connect_endpoints_tcp();
	script_send_all(&a, "unread");
	wait_until_handler_ready(&b, &b.handler);
	move_socket_to_poller(&b, second);
	wait_until_handler_ready(&b, &b.handler);
	script_recv_all(&b, 6);
	try_recv_and_print_result(&b);
	move_socket_to_poller(&b, first);
	print_step_result(&b, "is returned", poll_reports_handler(&b, &b.handler));
	siw_llp_sock_pause(b.sock);
	script_send_all(&a, "paused");
	move_socket_to_poller(&b, second);
	for (int i = 0; i < 3; i++) {
		print_step_result(&b, "is returned", poll_reports_handler(&b, &b.handler));
		wait_for_poller_event(&b);
	}
	siw_llp_sock_resume(b.sock);
	script_recv_all(&b, 6);
	try_recv_and_print_result(&b);
	siw_llp_sock_enable_timer(b.sock);
	siw_llp_sock_set_timer(b.sock, 1);
	move_socket_to_poller(&b, first);
	print_step_result(&b, "timer is pending", siw_llp_sock_timer_is_pending(b.sock));
	wait_until_handler_ready(&b, &b.handler);
	print_step_result(&b, "timer is pending", siw_llp_sock_timer_is_pending(b.sock));
	try_recv_and_print_result(&b);
	siw_llp_leave_poller(b.sock);
	script_send_all(&a, "between");
	must(!siw_llp_add_to_poller(b.sock, second));
	b.poller = second;
	wait_until_handler_ready(&b, &b.handler);
	script_recv_all(&b, 7);
	try_recv_and_print_result(
		&a); /* a socket that stays ready would end each wait while b connects */
	try_recv_and_print_result(&b);
	connect_to_listener_of_a(&b);
	shut_down_and_print_result(&a);
	recv_end_of_stream_and_print_result(&b);
	close_endpoint_socket(&b);
	close_endpoint_socket(&a);
	b.poller = first;
	siw_llp_poller_close(second);
}

/* Checks that a full socket that moves is reported when it has space. */
static void scenario_move_full_socket(void)
{
	static uint8_t octets[65536];
	struct siw_llp_poller *first = a.poller, *second = open_sibling_poller(&a);
	size_t sent = 0, received = 0;
	long n;

	connect_endpoints_tcp();
	while ((n = try_send(&a, octets, sizeof(octets))) > 0)
		sent += (size_t)n;
	print_step_result(&a, "sends", n);
	move_socket_to_poller(&a, second);
	for (; received < sent; received += (size_t)n) {
		n = await_recv(&b, octets, sizeof(octets));
		must(n > 0);
	}
	wait_until_handler_ready(&a, &a.handler);
	try_send_and_print_result(&a);
	siw_llp_update_want_write(a.sock, false);
	close_endpoint_socket(&b);
	close_endpoint_socket(&a);
	a.poller = first;
	siw_llp_poller_close(second);
}

/* Connects both sides to each other at the same time, which results in one connection. */
static void scenario_simultaneous_open(void)
{
	struct siw_addr at_a = a.addr, at_b = b.addr, peer;

	at_a.port_be = at_b.port_be = 0x0200;
	set_link_paused(true);
	must(!start_connect_from(&a, &at_b, &at_a, &a.handler, &a.sock));
	must(!start_connect_from(&b, &at_a, &at_b, &b.handler, &b.sock));
	set_link_paused(false);
	print_step_result(&a, "connects", await_connect_result(&a));
	print_step_result(&b, "connects", await_connect_result(&b));
	must(!siw_llp_peer_addr(a.sock, &peer) && siw_addr_same(&peer, &at_b));
	must(!siw_llp_peer_addr(b.sock, &peer) && siw_addr_same(&peer, &at_a));
	script_send_all(&a, "to b");
	script_send_all(&b, "to a");
	script_recv_all(&a, 4);
	script_recv_all(&b, 4);
	close_endpoint_socket(&a);
	recv_end_of_stream_and_print_result(&b);
	close_endpoint_socket(&b);
}

/* ---- loss ------------------------------------------------------------------------------------ */

struct flow {
	struct side *from, *to;
	size_t sent, received;
};

static uint8_t stream_octet_at(size_t at)
{
	return (uint8_t)((uint32_t)at * 2654435761u >> 24);
}

static void send_until_socket_is_full(struct flow *flow)
{
	uint8_t octets[4096];

	while (flow->sent < LOSSY) {
		size_t n = LOSSY - flow->sent < sizeof(octets) ? LOSSY - flow->sent
							       : sizeof(octets);
		long rv;

		for (size_t i = 0; i < n; i++)
			octets[i] = stream_octet_at(flow->sent + i);
		rv = try_send(flow->from, octets, n);
		if (rv == -EAGAIN)
			return;
		must(rv > 0);
		flow->sent += (size_t)rv;
	}
	siw_llp_update_want_write(flow->from->sock, false);
}

/* Checks that octets arrive in order: octets after a lost segment are not delivered before it. */
static void receive_and_check_flow_order(struct flow *flow)
{
	uint8_t octets[4096];
	long n;

	while ((n = try_recv(flow->to, octets, sizeof(octets))) > 0) {
		for (long i = 0; i < n; i++)
			must(octets[i] == stream_octet_at(flow->received + (size_t)i));
		flow->received += (size_t)n;
	}
	must(n == -EAGAIN && flow->received <= flow->sent);
}

/* Loses segments in both directions, including SYN and FIN segments. */
static void scenario_lossy_link(void)
{
	struct flow flows[] = { { &a, &b, 0, 0 }, { &b, &a, 0, 0 } };
	double until = monotonic_seconds() + LOSSY_LIMIT_S;

	connect_endpoints_tcp();
	while (flows[0].received < LOSSY || flows[1].received < LOSSY) {
		must(monotonic_seconds() < until);
		for (int i = 0; i < 2; i++) {
			send_until_socket_is_full(&flows[i]);
			receive_and_check_flow_order(&flows[i]);
		}
		(void)poll_reports_handler(&a, &a.handler);
		(void)poll_reports_handler(&b, &b.handler);
		wait_for_poller_event(&a);
		wait_for_poller_event(&b);
	}
	print_step_result(&a, "received all", flows[1].received == LOSSY);
	print_step_result(&b, "received all", flows[0].received == LOSSY);
	shut_down_and_print_result(&a);
	recv_end_of_stream_and_print_result(&b);
	script_send_all(&b, "still open");
	script_recv_all(&a, 10);
	shut_down_and_print_result(&b);
	recv_end_of_stream_and_print_result(&a);
	close_endpoint_socket(&a);
	close_endpoint_socket(&b);
}

/* ---- ports of both address families ---------------------------------------------------------- */

static uint16_t the_port_be;

static struct siw_addr parse_addr_and_set_port(const char *addr)
{
	struct siw_addr found;

	must(!siw_addr_parse(addr, 0, &found));
	found.port_be = the_port_be;
	return found;
}

/*
 * Returns the text to print for an address, because the host's addresses differ between the two
 * builds.
 */
static const char *address_label_for_output(const char *addr)
{
	return !strcmp(addr, ADDR_A) ? "IPv4" : !strcmp(addr, ADDR_V6) ? "IPv6" : addr;
}

/* Reserves a port. Returns the descriptor, or -1 after an error. */
static int reserve_port_and_get_fd(bool udp, const char *addr, bool v6_only)
{
	struct siw_addr at = parse_addr_and_set_port(addr);
	int fd = udp ? siw_llp_udp_reserve_port(&at, v6_only)
		     : siw_llp_tcp_reserve_port(&at, v6_only);

	printf("%s keep %s%s: %s\n", udp ? "udp" : "tcp", address_label_for_output(addr),
	       v6_only ? " alone" : "", result_text(fd < 0 ? fd : 0));
	return fd < 0 ? -1 : fd;
}

static void reserve_and_release_port(bool udp, const char *addr, bool v6_only)
{
	int fd = reserve_port_and_get_fd(udp, addr, v6_only);

	if (fd >= 0)
		siw_llp_event_fd_close(fd);
}

/*
 * Opens a UDP socket or a listener, and closes it. between: tries to reserve the same port on each
 * kind of address while the socket is open.
 */
static void open_and_close_socket(bool udp, const char *addr, bool between)
{
	static const struct {
		const char *addr;
		bool v6_only;
	} kept[] = { { "0.0.0.0", false }, { "::", false }, { "::", true }, { ADDR_A, false } };
	struct siw_addr at = parse_addr_and_set_port(addr);
	struct siw_llp_sock *sock;
	int rv = udp ? siw_llp_udp_open(a.poller, &at, &a.of_listener, &sock)
		     : siw_llp_tcp_listen(a.poller, &at, 4, &a.of_listener, &sock);

	printf("%s open %s: %s\n", udp ? "udp" : "tcp", address_label_for_output(addr),
	       result_text(rv));
	if (rv)
		return;
	for (size_t i = 0; between && i < sizeof(kept) / sizeof(kept[0]); i++)
		reserve_and_release_port(udp, kept[i].addr, kept[i].v6_only);
	siw_llp_close(sock);
}

static void check_port_reservations(bool udp)
{
	struct siw_addr any = { .family = AF_INET6 };
	int fd = udp ? siw_llp_udp_reserve_port(&any, false)
		     : siw_llp_tcp_reserve_port(&any, false);

	must(fd >= 0);
	must(any.port_be);
	the_port_be = any.port_be;
	siw_llp_event_fd_close(fd);
	open_and_close_socket(udp, "0.0.0.0", false);
	open_and_close_socket(udp, "::", false);
	for (int alone = 0; alone < 2; alone++) {
		fd = reserve_port_and_get_fd(udp, "::", alone);
		reserve_and_release_port(udp, "0.0.0.0", false);
		reserve_and_release_port(udp, "::", true);
		open_and_close_socket(udp, ADDR_A, true);
		open_and_close_socket(udp, ADDR_V6, true);
		siw_llp_event_fd_close(fd);
	}
	fd = reserve_port_and_get_fd(udp, "0.0.0.0", false);
	reserve_and_release_port(udp, "::", false);
	reserve_and_release_port(udp, "::", true);
	open_and_close_socket(udp, ADDR_A, false);
	open_and_close_socket(udp, ADDR_V6, true);
	siw_llp_event_fd_close(fd);
	reserve_and_release_port(udp, "192.0.2.1", false);
}

static const struct {
	const char *name;
	void (*run)(void);
} scenes[] = {
	{ "refused", scenario_connect_refused },
	{ "addresses", scenario_socket_addresses },
	{ "half closed", scenario_half_closed_connection },
	{ "unread", scenario_close_with_unread_octets },
	{ "aborted", scenario_read_after_reset },
	{ "aborted sender", scenario_send_after_abort },
	{ "closed peer", scenario_send_to_closed_peer },
	{ "not accepted", scenario_connection_never_accepted },
	{ "accepted late", scenario_accept_after_client_closed },
	{ "pieces", scenario_send_octet_by_octet },
	{ "slow", scenario_full_listen_backlog },
	{ "itself", scenario_socket_connects_to_itself },
	{ "full", scenario_full_socket_buffers },
	{ "paused", scenario_paused_socket },
	{ "moved", scenario_move_to_another_poller },
	{ "moved full", scenario_move_full_socket },
};

static void open_poller_of_endpoint(struct side *side, const char *addr)
{
	side->handler.serve = side->of_listener.serve = handle_no_socket_event;
	must(!siw_addr_parse(addr, 0, &side->addr));
	must(!siw_llp_poller_open(NULL, &side->poller));
}

/*
 * Runs the steps that reserve ports, on a host with addresses of both families, in a separate
 * simulated network.
 */
static void run_port_reservation_scenario(uint64_t seed)
{
#ifdef SIMULATED
	struct siw_addr both[2];

	must(!siw_sim_open(seed, ""));
	must(!siw_addr_parse(ADDR_A, 0, &both[0]) && !siw_addr_parse(ADDR_V6, 0, &both[1]));
	must(!siw_sim_host_add(both, 2, 0));
#else
	(void)seed;
#endif
	open_poller_of_endpoint(&a, ADDR_A);
	start_listener(&a); /* listening assigns the poller to the side's simulated host */
	check_port_reservations(true);
	check_port_reservations(false);
	siw_llp_close(a.listener);
	siw_llp_poller_close(a.poller);
#ifdef SIMULATED
	must(!siw_sim_close_world());
#endif
}

static void print_name_and_run_scenario(const char *name, void (*scene)(void))
{
	printf("- %s\n", name);
	scene();
}

/*
 * Kernel build: without an argument, runs the complete script over loopback. In a namespace of
 * `siwarp wan`, "line" adds the steps that need two hosts, and "lossy" runs only the steps for a
 * fault plan with loss. Simulated build: the argument is a seed, and everything is run.
 */
int main(int argc, char **argv)
{
	const char *at_a = ADDR_A, *at_b = ADDR_B;
	bool plain = true, line = false, loss = false;

#ifdef SIMULATED
	uint64_t seed;

	must(argc == 2);
	seed = strtoull(argv[1], NULL, 0);
	line = loss = true;
	printf("- ports\n");
	run_port_reservation_scenario(seed);
	must(!siw_sim_open(seed, "delay=1ms"));
	must(!siw_addr_parse(ADDR_A, 0, &a.addr) && !siw_sim_host_add(&a.addr, 1, 0));
	must(!siw_addr_parse(ADDR_B, 0, &b.addr) && siw_sim_host_add(&b.addr, 1, 0) == 1);
#else
	if (argc > 1) {
		must(getenv("WAN_RELAY"));
		relay = atoi(getenv("WAN_RELAY"));
		at_a = getenv("WAN_A");
		at_b = getenv("WAN_B");
		loss = !strcmp(argv[1], "lossy");
		plain = line = !loss;
	} else {
		printf("- ports\n");
		run_port_reservation_scenario(0);
	}
#endif
	open_poller_of_endpoint(&a, at_a);
	open_poller_of_endpoint(&b, at_b);
	/* Listening assigns each address to a simulated host, as a device's address watch does. */
	start_listener(&a);
	start_listener(&b);
	for (size_t i = 0; plain && i < sizeof(scenes) / sizeof(scenes[0]); i++)
		print_name_and_run_scenario(scenes[i].name, scenes[i].run);
	if (line)
		print_name_and_run_scenario("simultaneous", scenario_simultaneous_open);
#ifdef SIMULATED
	must(!siw_sim_set_fault_plan("delay=5ms,loss=3%"));
#endif
	if (loss)
		print_name_and_run_scenario("lossy", scenario_lossy_link);
	siw_llp_close(a.listener);
	siw_llp_close(b.listener);
	siw_llp_poller_close(a.poller);
	siw_llp_poller_close(b.poller);
#ifdef SIMULATED
	{
		struct siw_sim_stats stats;

		siw_sim_stats(&stats);
		must(stats.lost > 0);
	}
	must(!siw_sim_close_world());
#endif
	return 0;
}
