/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* llp/llp_tcp.c - TCP sockets. */
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/trace.h"
#include "llp/llp_fault.h"
#include "llp/llp_sock.h"
#include "llp/llp_capture.h"

#define ACCEPT_TRIES 16

#ifndef IOV_MAX
#define IOV_MAX 1024
#endif

enum purpose {
	TO_LISTEN,
	TO_KEEP,
	TO_KEEP_BOTH, /* reserve the port for IPv4, too, if the address is an IPv6 address */
	TO_CONNECT,
	/* the port is assigned at bind(), because it must be known before connecting */
	TO_CONNECT_ITSELF,
};

static int open_bound_socket(const struct siw_addr *local, uint16_t family, enum purpose how)
{
	int rv, fd = siw_llp_open_socket_descriptor(family, SOCK_STREAM);
	bool reusable = how == TO_CONNECT ? local && local->port_be : how != TO_CONNECT_ITSELF;

	if (fd < 0)
		return fd;
	rv = siw_llp_set_socket_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	if (rv == 0 && family == AF_INET6)
		rv = siw_llp_set_socket_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, how != TO_KEEP_BOTH);
	/*
	 * Allow a port given by the caller to be bound again while old connections of it are in
	 * TIME-WAIT, and to be used for a connection while siw_llp_tcp_reserve_port() reserves it.
	 * Linux still refuses a port on which another socket listens.
	 */
	if (rv == 0 && reusable)
		rv = siw_llp_set_socket_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	if (rv == 0 && local && how == TO_CONNECT && !local->port_be)
		rv = siw_llp_set_socket_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
	if (rv == 0 && local && bind(fd, (const struct sockaddr *)local, siw_addr_len(local)))
		rv = -errno;
	if (rv == 0)
		return fd;
	siw_llp_fd_close(fd);
	return rv;
}

int siw_llp_tcp_listen(struct siw_llp_poller *poller, const struct siw_addr *local, int backlog,
		       struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	int rv, fd = open_bound_socket(local, local->family, TO_LISTEN);

	if (fd < 0)
		return fd;
	rv = listen(fd, backlog) ? -errno : 0;
	if (rv == 0)
		rv = siw_llp_sock_new(poller, fd, SIW_LLP_LISTENER, handler, out);
	if (rv < 0)
		siw_llp_fd_close(fd);
	return rv;
}

/*
 * Opens and binds a socket like open_bound_socket(); *own: the address to which the socket was
 * bound.
 */
static int open_bound_socket_and_get_addr(const struct siw_addr *local, enum purpose how,
					  struct siw_addr *own)
{
	int fd = open_bound_socket(local, local->family, how);
	socklen_t len = sizeof(*own);

	if (fd < 0)
		return fd;
	memset(own, 0, sizeof(*own));
	if (getsockname(fd, (struct sockaddr *)own, &len)) {
		siw_llp_fd_close(fd);
		return -EINVAL;
	}
	return fd;
}

int siw_llp_tcp_reserve_port(struct siw_addr *local, bool v6_only)
{
	struct siw_addr own;
	int fd = open_bound_socket_and_get_addr(local, v6_only ? TO_KEEP : TO_KEEP_BOTH, &own);

	if (fd >= 0)
		local->port_be = own.port_be;
	return fd;
}

/* Returns whether this accept() error concerns one connection and not the listener. */
static bool is_error_of_one_connection(int error)
{
	switch (error) {
	case EINTR:
	case ECONNABORTED:
	case EPROTO:
	case ENOPROTOOPT:
	case EHOSTDOWN:
	case ENONET:
	case EHOSTUNREACH:
	case EOPNOTSUPP:
	case ENETUNREACH:
	case ENETDOWN:
		return true;
	default:
		return false;
	}
}

static int handle_accept_error(struct siw_llp_sock *listener, int error)
{
	if (error == EAGAIN)
		siw_llp_sock_note_empty(listener);
	else if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM)
		siw_llp_listener_pause_after_accept_error(listener);
	else if (is_error_of_one_connection(error))
		return -EAGAIN; /* there may be more connections, so the listener stays ready */
	return -error;
}

static int accept_descriptor(int listener)
{
	int cancel = siw_cancel_disable(), fd;

	siw_llp_fd_creation_begin();
	fd = siw_llp_fd_creation_done(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
	siw_cancel_restore(cancel);
	return fd;
}

int siw_llp_tcp_accept(struct siw_llp_sock *listener, struct siw_io_handler *handler,
		       struct siw_llp_sock **out)
{
	int rv, fd, tries = 0;

	do {
		fd = accept_descriptor(listener->fd);
	} while (fd < 0 && is_error_of_one_connection(-fd) && ++tries < ACCEPT_TRIES);
	if (fd < 0)
		return handle_accept_error(listener, -fd);
	/* Linux copies TCP_NODELAY from the listener. */
	rv = siw_llp_sock_new(listener->poller, fd, SIW_LLP_STREAM, handler, out);
	if (rv < 0) {
		siw_llp_fd_close(fd);
		return rv;
	}
	if (siw_capture_on())
		siw_llp_capture_tcp_handshake_locking(*out, false);
	if (siw_faults_on())
		siw_llp_fault_note_connected(*out);
	return 0;
}

/* Connects fd and creates the socket struct *out. After an error the descriptor is closed. */
static int connect_descriptor(struct siw_llp_poller *poller, int fd, const struct siw_addr *dest,
			      struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	int rv = siw_llp_connect(fd, dest);

	/* An interrupted connect() continues in the background, like one that would block. */
	if (rv == 0 || rv == -EINPROGRESS || rv == -EINTR)
		rv = siw_llp_sock_new(poller, fd, SIW_LLP_CONNECTING, handler, out);
	if (rv < 0)
		siw_llp_fd_close(fd);
	return rv;
}

int siw_llp_tcp_connect(struct siw_llp_poller *poller, const struct siw_addr *dest,
			const struct siw_addr *source, struct siw_io_handler *handler,
			struct siw_llp_sock **out)
{
	int fd = open_bound_socket(source, dest->family, TO_CONNECT);

	return fd < 0 ? fd : connect_descriptor(poller, fd, dest, handler, out);
}

int siw_llp_tcp_connect_to_itself(struct siw_llp_poller *poller, const struct siw_addr *local,
				  struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	struct siw_addr own;
	int fd = open_bound_socket_and_get_addr(local, TO_CONNECT_ITSELF, &own);

	/* TCP simultaneous open (RFC 9293 section 3.5), with one socket as both ends. */
	if (fd < 0)
		return fd;
	return connect_descriptor(poller, fd, &own, handler, out);
}

void siw_llp_tcp_set_tos(struct siw_llp_sock *sock, int tos)
{
	/* One of the two calls fails, because each option exists in one address family only. */
	siw_llp_set_socket_option(sock->fd, IPPROTO_IP, IP_TOS, tos);
	siw_llp_set_socket_option(sock->fd, IPPROTO_IPV6, IPV6_TCLASS, tos);
}

int siw_llp_tcp_connect_result(struct siw_llp_sock *sock)
{
	struct siw_addr peer;
	socklen_t len = sizeof(sock->error);

	if (sock->kind == SIW_LLP_STREAM)
		return 0;
	/* A connection that has failed has no peer address. */
	if (!sock->error && siw_llp_peer_addr(sock, &peer) == 0) {
		/* The socket stays ready, because data may have arrived with the same event. */
		sock->kind = SIW_LLP_STREAM;
		if (siw_capture_on())
			siw_llp_capture_tcp_handshake_locking(sock, true);
		if (siw_faults_on())
			siw_llp_fault_note_connected(sock);
		return 0;
	}
	/* Reading SO_ERROR clears it, so the error is stored for later calls. */
	if (!sock->error && getsockopt(sock->fd, SOL_SOCKET, SO_ERROR, &sock->error, &len))
		sock->error = errno;
	if (!sock->error) {
		siw_llp_sock_note_empty(sock);
		return -EAGAIN;
	}
	siw_llp_sock_note_end_of_stream(sock);
	return -sock->error;
}

static inline ssize_t tcp_send_once(struct siw_llp_sock *sock, const struct iovec *iov, int n)
{
	return siw_llp_send(sock->fd, NULL, iov, n > IOV_MAX ? IOV_MAX : n);
}

static __attribute__((cold, noinline)) ssize_t tcp_send_captured(struct siw_llp_sock *sock,
								 const struct iovec *iov, int n)
{
	uint64_t when = siw_capture_lock();
	ssize_t sent = tcp_send_once(sock, iov, n);

	if (sent > 0)
		siw_llp_capture_stream_octets(sock, when, true, iov, (size_t)sent);
	siw_capture_unlock();
	return sent;
}

static __attribute__((always_inline)) inline ssize_t sendv_now(struct siw_llp_sock *sock,
							       const struct iovec *iov, int n)
{
	ssize_t sent = siw_capture_on() ? tcp_send_captured(sock, iov, n)
					: tcp_send_once(sock, iov, n);

	if (__builtin_expect(sent < 0, 0))
		return siw_llp_handle_failed_send(sock, errno);
	return sent;
}

ssize_t siw_llp_tcp_sendv_without_faults(struct siw_llp_sock *sock, const struct iovec *iov, int n)
{
	return sendv_now(sock, iov, n);
}

ssize_t siw_llp_tcp_sendv(struct siw_llp_sock *sock, const struct iovec *iov, int n)
{
	return siw_faults_on() ? siw_llp_tcp_sendv_with_faults(sock, iov, n)
			       : sendv_now(sock, iov, n);
}

static __attribute__((always_inline)) inline ssize_t tcp_recv_once(struct siw_llp_sock *sock,
								   const struct iovec *iov, int n)
{
	ssize_t got;

	do {
		if (n == 1)
			got = siw_llp_recvfrom(sock->fd, iov->iov_base, iov->iov_len, 0, NULL,
					       NULL);
		else
			got = siw_llp_readv(sock->fd, iov, n > IOV_MAX ? IOV_MAX : n);
	} while (got < 0 && errno == EINTR);
	return got;
}

/*
 * Receives on a stream with the capture's lock held, so that the octets are written in stream
 * order.
 */
static __attribute__((cold, noinline)) ssize_t tcp_recv_captured(struct siw_llp_sock *sock,
								 const struct iovec *iov, int n)
{
	ssize_t got;

	siw_capture_lock();
	got = tcp_recv_once(sock, iov, n);
	if (got > 0)
		siw_llp_capture_stream_octets(sock, siw_capture_time_ns(), false, iov, (size_t)got);
	else if (got == 0 || errno == ECONNRESET)
		siw_llp_capture_stream_end(sock, siw_capture_time_ns(), false, got < 0);
	siw_capture_unlock();
	return got;
}

static __attribute__((always_inline)) inline ssize_t recvv_now(struct siw_llp_sock *sock,
							       const struct iovec *iov, int n)
{
	ssize_t got = siw_capture_on() ? tcp_recv_captured(sock, iov, n)
				       : tcp_recv_once(sock, iov, n);

	if (__builtin_expect(got > 0, 1)) {
		siw_llp_tsan_note_receive(sock->fd, NULL);
		siw_llp_sock_note_received_data(sock);
		return got;
	}
	if (got == 0) {
		siw_llp_sock_note_end_of_stream(sock);
		return 0;
	}
	if (errno == EAGAIN) {
		siw_llp_sock_note_empty(sock);
		return -EAGAIN;
	}
	got = -errno;
	siw_llp_sock_note_end_of_stream(sock);
	return got;
}

ssize_t siw_llp_tcp_recvv_without_faults(struct siw_llp_sock *sock, const struct iovec *iov, int n)
{
	return recvv_now(sock, iov, n);
}

ssize_t siw_llp_tcp_recvv(struct siw_llp_sock *sock, const struct iovec *iov, int n)
{
	bool faults = siw_faults_on();

	sock->read_last = !faults; /* with a fault plan, a short read may leave input unread */
	return faults ? siw_llp_tcp_recvv_with_faults(sock, iov, n) : recvv_now(sock, iov, n);
}

int siw_llp_tcp_emss(struct siw_llp_sock *sock)
{
	int emss = 0;
	socklen_t len = sizeof(emss);

	return getsockopt(sock->fd, IPPROTO_TCP, TCP_MAXSEG, &emss, &len) ? -errno : emss;
}

bool siw_llp_tcp_is_closed(struct siw_llp_sock *sock)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	/*
	 * TCP_INFO is used instead of SO_ERROR, because reading SO_ERROR would hide the error from
	 * the next receive.
	 */
	return getsockopt(sock->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
	       info.tcpi_state == TCP_CLOSE;
}

int siw_llp_tcp_shutdown_without_faults(struct siw_llp_sock *sock)
{
	bool captured = siw_capture_on();
	uint64_t when = captured ? siw_capture_lock() : 0;
	int rv = shutdown(sock->fd, SHUT_WR) ? -errno : 0;

	if (captured && rv == 0)
		siw_llp_capture_stream_end(sock, when, true, false);
	if (captured)
		siw_capture_unlock();
	return rv;
}

int siw_llp_tcp_shutdown(struct siw_llp_sock *sock)
{
	return siw_faults_on() ? siw_llp_tcp_shutdown_with_faults(sock)
			       : siw_llp_tcp_shutdown_without_faults(sock);
}

void siw_llp_tcp_reset(struct siw_llp_sock *sock)
{
	/*
	 * On Linux, connecting a stream socket to AF_UNSPEC resets the connection and wakes its
	 * pollers. The system call is made directly, because ThreadSanitizer treats connect() as
	 * the creation of a descriptor unknown to other threads, and another thread may be in
	 * epoll_ctl() with this one.
	 */
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };

	siw_llp_tcp_set_abortive_close(sock);
	if (siw_capture_on())
		siw_llp_capture_stream_end_locking(sock, true, true);
	if (syscall(SYS_connect, sock->fd, &nobody, sizeof(nobody)))
		siw_log(llp, warn, "resetting a connection failed: %s", strerror(errno));
}

void siw_llp_tcp_set_abortive_close(struct siw_llp_sock *sock)
{
	struct linger reset = { .l_onoff = 1, .l_linger = 0 };

	sock->aborted = true;
	setsockopt(sock->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
}
