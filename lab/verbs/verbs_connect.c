/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * connect: RC connections of the connection manager, each with a new queue pair, established and
 * closed one after another, with up to --depth of them in flight. The run "polling" does the same
 * with TCP sockets, and polls an epoll set. In both runs both ends of a connection read the end of
 * stream of the other end before they close.
 *
 * The result is the time per connection: from the first connect until both processes have closed
 * the last connection, divided by the number of connections.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lab/verbs/verbs.h"

#define WAIT_MS 5000 /* longest wait for an event of any connection */
#define BACKLOG 1024
#define EVENTS	64
#define RING	4 /* slots of a send queue and of a receive queue */

/* Exchanges the port of the server's listener. Returns it, in host order. */
static uint16_t connect_exchange_listener_port_number(const struct siw_bench_opts *o, uint16_t port)
{
	struct siw_bench_hello mine = { .port = port }, theirs;

	siw_bench_exchange_hello(o->ctl, &mine, &theirs);
	return o->server ? port : theirs.port;
}

/* Makes the warm-up connections, then the measured ones; run makes n connections of one side. */
static void connect_warm_up_and_measure(const struct siw_bench_opts *o,
					void (*run)(void *end, uint32_t n), void *end,
					struct siw_bench_result *result)
{
	uint32_t parts[] = { o->warmup, o->iters };

	siw_bench_pin_thread(o->cpu);
	for (int i = 0; i < 2; i++) {
		uint64_t start;

		siw_bench_exchange_number(o->ctl, 0);
		start = siw_bench_now();
		run(end, parts[i]);
		siw_bench_exchange_number(o->ctl, 0);
		result->value = (double)(siw_bench_now() - start) / parts[i] / 1000;
	}
	result->n = o->iters;
}

/* ---- siwarp ---------------------------------------------------------------------------------- */

struct cm_end {
	const struct siw_bench_opts *o;
	struct siw_context *context;
	struct siw_pd *pd;
	struct siw_cq *cq;
	struct siw_cm_channel *channel;
	struct siw_cm_id *listener;
	struct siw_addr peer; /* client: the address of the listener */
};

/* Creates the queue pair of a connection; the id's context is the queue pair. */
static void cm_bind_new_qp(struct cm_end *e, struct siw_cm_id *id)
{
	struct siw_qp_init_attr init = {
		.send_cq = e->cq,
		.recv_cq = e->cq,
		.qp_type = SIW_QPT_RC,
		.cap = { RING, RING, 1, 1, 0 },
	};
	struct siw_qp *qp = siw_bench_require_object(siw_create_qp(e->pd, &init), "a queue pair");

	siw_cm_set_context(id, qp);
	siw_bench_exit_on_error(siw_cm_bind_qp(id, qp), "binding");
}

static void cm_destroy_connection(const struct siw_cm_event *event)
{
	siw_bench_exit_on_error(siw_destroy_qp(event->context), "destroying a queue pair");
	siw_bench_exit_on_error(siw_cm_destroy_id(event->id), "destroying an id");
}

static void cm_start_connection(struct cm_end *e)
{
	struct siw_cm_id *id =
		siw_bench_require_object(siw_cm_create_id(e->channel, NULL), "an id");

	cm_bind_new_qp(e, id);
	siw_bench_exit_on_error(siw_cm_connect(id, &e->peer, NULL, NULL), "connecting");
}

/* Handles an event. Returns whether a connection has ended. */
static bool cm_handle_event(struct cm_end *e, const struct siw_cm_event *event)
{
	switch (event->event) {
	case SIW_CM_CONNECT_REQUEST:
		cm_bind_new_qp(e, event->id);
		siw_bench_exit_on_error(siw_cm_accept(event->id, NULL), "accepting");
		return false;
	case SIW_CM_ESTABLISHED:
		if (!e->o->server)
			siw_bench_exit_on_error(siw_cm_disconnect(event->id), "disconnecting");
		return false;
	case SIW_CM_DISCONNECTED:
		cm_destroy_connection(event);
		return true;
	default:
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "a connection failed: %s, %s",
			      siw_cm_event_str(event->event), strerror(-event->status));
	}
}

static void cm_make_connections(void *end, uint32_t n)
{
	struct cm_end *e = end;
	uint32_t started = 0, ended = 0;

	while (ended < n) {
		struct siw_cm_event event;

		while (!e->o->server && started < n && started - ended < e->o->depth) {
			cm_start_connection(e);
			started++;
		}
		siw_bench_exit_on_error(siw_cm_get_event(e->channel, &event, WAIT_MS),
					"waiting for an event");
		ended += cm_handle_event(e, &event);
	}
}

static void connect_measure_cm(const struct siw_bench_opts *o, struct siw_bench_result *result)
{
	struct cm_end e = { .o = o };
	struct siw_addr own;

	siw_bench_exit_on_error(siw_addr_parse(o->local, 0, &own), "the address");
	e.context = siw_bench_require_object(siw_open_device_by_addr(&own), "the device");
	e.pd = siw_bench_require_object(siw_alloc_pd(e.context), "a protection domain");
	e.cq = siw_bench_require_object(siw_create_cq(e.context, RING, NULL, NULL, 0),
					"a completion queue");
	e.channel = siw_bench_require_object(siw_cm_create_channel(e.context), "a channel");
	if (o->server) {
		e.listener = siw_bench_require_object(siw_cm_create_id(e.channel, NULL), "an id");
		siw_bench_exit_on_error(siw_cm_listen(e.listener, &own, BACKLOG), "listening");
		siw_bench_exit_on_error(siw_cm_addr(e.listener, &own, NULL), "the port");
	}
	siw_bench_exit_on_error(
		siw_addr_parse(o->remote,
			       connect_exchange_listener_port_number(o, ntohs(own.port_be)),
			       &e.peer),
		"the peer's address");
	connect_warm_up_and_measure(o, cm_make_connections, &e, result);
	if (e.listener)
		siw_cm_destroy_id(e.listener);
	siw_cm_destroy_channel(e.channel);
	siw_destroy_cq(e.cq);
	siw_dealloc_pd(e.pd);
	siw_close_device(e.context);
}

/* ---- TCP sockets ----------------------------------------------------------------------------- */

struct tcp_conn {
	int fd;
	bool shut; /* the sending side is shut down */
};

struct tcp_end {
	const struct siw_bench_opts *o;
	int epoll;
	struct tcp_conn listener; /* the client has no listener: listener.fd is -1 */
	struct sockaddr_in peer;
};

static void tcp_watch_socket(struct tcp_end *e, struct tcp_conn *conn, uint32_t events)
{
	struct epoll_event event = { .events = events | EPOLLET, .data.ptr = conn };

	if (epoll_ctl(e->epoll, EPOLL_CTL_ADD, conn->fd, &event))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "watching a socket: %s", strerror(errno));
}

static void tcp_add_connection(struct tcp_end *e, int fd, uint32_t events)
{
	struct tcp_conn *conn = siw_bench_require_object(calloc(1, sizeof(*conn)), "memory");

	conn->fd = fd;
	tcp_watch_socket(e, conn, events | EPOLLRDHUP);
}

static void tcp_start_connection(struct tcp_end *e)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0 ||
	    (connect(fd, (struct sockaddr *)&e->peer, sizeof(e->peer)) && errno != EINPROGRESS))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "connecting: %s", strerror(errno));
	tcp_add_connection(e, fd, EPOLLIN | EPOLLOUT);
}

static void tcp_accept_connections(struct tcp_end *e)
{
	int fd;

	while ((fd = accept4(e->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
		tcp_add_connection(e, fd, EPOLLIN);
	if (errno != EAGAIN)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "accepting: %s", strerror(errno));
}

/* Shuts down the sending side of a connection of the client, which is established now. */
static void tcp_shut_down(struct tcp_conn *conn)
{
	int error = 0;
	socklen_t length = sizeof(error);

	if (conn->shut)
		return;
	conn->shut = true;
	if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &error, &length) || error ||
	    shutdown(conn->fd, SHUT_WR))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "a connection failed: %s",
			      strerror(error ? error : errno));
}

/* Handles an event of a socket. Returns whether its connection has ended. */
static bool tcp_handle_event(struct tcp_end *e, const struct epoll_event *event)
{
	struct tcp_conn *conn = event->data.ptr;
	char octet;

	if (conn == &e->listener) {
		tcp_accept_connections(e);
		return false;
	}
	if (!(event->events & EPOLLRDHUP)) {
		tcp_shut_down(conn);
		return false;
	}
	if (recv(conn->fd, &octet, 1, 0))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "no end of stream: %s", strerror(errno));
	close(conn->fd);
	free(conn);
	return true;
}

static void tcp_make_connections(void *end, uint32_t n)
{
	struct tcp_end *e = end;
	struct siw_bench_guard guard = { 0 };
	uint32_t started = 0, ended = 0;

	while (ended < n) {
		struct epoll_event events[EVENTS];
		int found;

		while (!e->o->server && started < n && started - ended < e->o->depth) {
			tcp_start_connection(e);
			started++;
		}
		found = epoll_wait(e->epoll, events, EVENTS, 0);
		if (found < 0 || (!found && siw_bench_idle(&guard)))
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "waiting for an event: %s",
				      found ? strerror(errno) : "time-out");
		if (found)
			siw_bench_reset_idle(&guard);
		for (int i = 0; i < found; i++)
			ended += tcp_handle_event(e, &events[i]);
	}
}

static void connect_measure_tcp(const struct siw_bench_opts *o, struct siw_bench_result *result)
{
	struct tcp_end e = { .o = o,
			     .listener = { -1, false },
			     .peer = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) } };
	socklen_t length = sizeof(e.peer);

	e.epoll = epoll_create1(EPOLL_CLOEXEC);
	if (o->server) {
		e.listener.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (bind(e.listener.fd, (struct sockaddr *)&e.peer, sizeof(e.peer)) ||
		    listen(e.listener.fd, BACKLOG) ||
		    getsockname(e.listener.fd, (struct sockaddr *)&e.peer, &length))
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "listening: %s", strerror(errno));
		tcp_watch_socket(&e, &e.listener, EPOLLIN);
	}
	e.peer.sin_port = htons(connect_exchange_listener_port_number(o, ntohs(e.peer.sin_port)));
	connect_warm_up_and_measure(o, tcp_make_connections, &e, result);
	if (o->server)
		close(e.listener.fd);
	close(e.epoll);
}

void siw_lab_measure_connections(const struct siw_bench_opts *o, struct siw_bench_result *result)
{
	if (!strcmp(o->run, "polling"))
		connect_measure_tcp(o, result);
	else
		connect_measure_cm(o, result);
}
