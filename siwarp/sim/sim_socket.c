/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sim/sim_socket.c - plain sockets, with which a program takes part in the network without a
 * device. A plain socket is a socket of llp.h on its own poller, which no device polls.
 */
#include "sim/sim_impl.h"

struct siw_sim_socket {
	struct siw_io_handler handler; /* never called, because no device polls the poller */
	struct siw_llp_poller *poller;
	struct siw_llp_sock *sock;
};

static int plain_socket_alloc_with_poller(struct siw_sim_socket **out)
{
	struct siw_sim_socket *socket = sim_alloc(sizeof(*socket));
	int rv = siw_llp_poller_open(NULL, &socket->poller);

	if (rv)
		free(socket);
	else
		*out = socket;
	return rv;
}

void siw_sim_socket_close(struct siw_sim_socket *socket, int reset)
{
	if (!socket)
		return;
	if (reset && socket->sock && socket->sock->stream)
		siw_llp_tcp_set_abortive_close(socket->sock);
	siw_llp_close(socket->sock);
	siw_llp_poller_close(socket->poller);
	free(socket);
}

/*
 * Returns whether the host of a UDP socket or listener has crashed, which unbinds the socket. For
 * connections, sim_tcp.c returns the error.
 */
static bool plain_socket_has_crashed_host(const struct siw_sim_socket *socket)
{
	return !socket->sock->stream && !socket->sock->open;
}

/*
 * Waits after a call without a result. Returns whether the call must be retried. *again: set to
 * true before the last retry, which follows the time `until`.
 */
static bool plain_socket_wait_before_retry(struct siw_sim_socket *socket, uint64_t until,
					   bool *again)
{
	/* A socket that is still marked ready would not wake the tasks that wait for it. */
	sim_sock_clear_ready(socket->sock);
	if (*again)
		return false;
	sim_add_current_task_to_waiters(&socket->poller->waiters);
	if (until > sim.now) {
		*again = !sim_block_task(until);
		return true;
	}
	sim_back_off_after_empty_poll();
	*again = true;
	return true;
}

/* ---- UDP ------------------------------------------------------------------------------------- */

int siw_sim_udp_open(const struct siw_addr *local, struct siw_sim_socket **out)
{
	struct siw_sim_socket *socket;
	int rv = plain_socket_alloc_with_poller(&socket);

	if (rv)
		return rv;
	rv = siw_llp_udp_open(socket->poller, local, &socket->handler, &socket->sock);
	if (rv)
		siw_sim_socket_close(socket, 0);
	else
		*out = socket;
	return rv;
}

int siw_sim_udp_send(struct siw_sim_socket *socket, const struct siw_addr *dest, const void *octets,
		     size_t length, int ecn)
{
	struct iovec iov = { (void *)octets, length };

	if (plain_socket_has_crashed_host(socket))
		return -ESTALE;
	socket->sock->ecn = (uint8_t)(ecn & SIM_ECN_CE);
	return siw_llp_udp_send(socket->sock, dest, &iov, 1);
}

ssize_t siw_sim_udp_recv(struct siw_sim_socket *socket, struct siw_addr *source, void *to,
			 size_t size, uint64_t until, int *ecn)
{
	bool again = false;
	ssize_t got;

	do {
		if (plain_socket_has_crashed_host(socket))
			return -ESTALE;
		got = siw_llp_udp_recv(socket->sock, source, to, size);
	} while (got == -EAGAIN && plain_socket_wait_before_retry(socket, until, &again));
	if (got >= 0)
		sim_current_task()->pause = 0;
	*ecn = socket->sock->got_ecn;
	return got;
}

/* ---- TCP ------------------------------------------------------------------------------------- */

int siw_sim_tcp_listen(const struct siw_addr *local, int backlog, struct siw_sim_socket **out)
{
	struct siw_sim_socket *socket;
	int rv = plain_socket_alloc_with_poller(&socket);

	if (rv)
		return rv;
	rv = siw_llp_tcp_listen(socket->poller, local, backlog, &socket->handler, &socket->sock);
	if (rv)
		siw_sim_socket_close(socket, 0);
	else
		*out = socket;
	return rv;
}

int siw_sim_tcp_accept(struct siw_sim_socket *listener, uint64_t until, struct siw_sim_socket **out)
{
	struct siw_sim_socket *socket;
	bool again = false;
	int rv = plain_socket_alloc_with_poller(&socket);

	if (rv)
		return rv;
	do {
		rv = plain_socket_has_crashed_host(listener)
			     ? -ESTALE
			     : siw_llp_tcp_accept(listener->sock, &socket->handler, &socket->sock);
	} while (rv == -EAGAIN && plain_socket_wait_before_retry(listener, until, &again));
	if (rv) {
		siw_sim_socket_close(socket, 0);
		return rv;
	}
	siw_llp_leave_poller(socket->sock);
	siw_llp_add_to_poller(socket->sock, socket->poller);
	sim_current_task()->pause = 0;
	*out = socket;
	return 0;
}

int siw_sim_tcp_connect(const struct siw_addr *local, const struct siw_addr *dest, uint64_t until,
			struct siw_sim_socket **out)
{
	struct siw_sim_socket *socket;
	bool again = false;
	int rv = plain_socket_alloc_with_poller(&socket);

	if (rv)
		return rv;
	rv = siw_llp_tcp_connect(socket->poller, dest, local, &socket->handler, &socket->sock);
	if (!rv)
		do
			rv = siw_llp_tcp_connect_result(socket->sock);
		while (rv == -EAGAIN && plain_socket_wait_before_retry(socket, until, &again));
	if (rv)
		siw_sim_socket_close(socket, 0);
	else
		*out = socket;
	return rv;
}

ssize_t siw_sim_tcp_send(struct siw_sim_socket *socket, const void *octets, size_t length,
			 uint64_t until)
{
	struct iovec iov = { (void *)octets, length };
	bool again = false;
	ssize_t sent;

	do
		sent = siw_llp_tcp_sendv(socket->sock, &iov, 1);
	while (sent == -EAGAIN && plain_socket_wait_before_retry(socket, until, &again));
	return sent;
}

ssize_t siw_sim_tcp_recv(struct siw_sim_socket *socket, void *to, size_t size, uint64_t until)
{
	struct iovec iov = { to, size };
	bool again = false;
	ssize_t got;

	do
		got = siw_llp_tcp_recvv(socket->sock, &iov, 1);
	while (got == -EAGAIN && plain_socket_wait_before_retry(socket, until, &again));
	if (got >= 0)
		sim_current_task()->pause = 0;
	return got;
}

int siw_sim_tcp_shutdown(struct siw_sim_socket *socket)
{
	return siw_llp_tcp_shutdown(socket->sock);
}

/* ---- functions of both protocols ------------------------------------------------------------- */

void siw_sim_socket_local_addr(struct siw_sim_socket *socket, struct siw_addr *out)
{
	siw_llp_local_addr(socket->sock, out);
}

int siw_sim_socket_peer_addr(struct siw_sim_socket *socket, struct siw_addr *out)
{
	return siw_llp_peer_addr(socket->sock, out);
}
