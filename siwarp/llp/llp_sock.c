/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* llp/llp_sock.c - functions shared by UDP and TCP sockets. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/counters.h"
#include "llp/llp_fault.h"
#include "llp/llp_sock.h"
#include "llp/llp_capture.h"

int siw_llp_open_socket_descriptor(uint16_t family, int type)
{
	if (family != AF_INET && family != AF_INET6)
		return -EAFNOSUPPORT;
	siw_llp_fd_creation_begin();
	return siw_llp_fd_creation_done(socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

int siw_llp_connect(int fd, const struct siw_addr *dest)
{
	int cancel = siw_cancel_disable();
	int rv = connect(fd, (const struct sockaddr *)dest, siw_addr_len(dest)) ? -errno : 0;

	siw_cancel_restore(cancel);
	return rv;
}

int siw_llp_set_socket_option(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof(value)) ? -errno : 0;
}

/* Returns whether a socket of this kind carries data now or will do so once it is connected. */
static bool is_data_socket_kind(enum siw_llp_kind kind)
{
	return kind == SIW_LLP_UDP || kind == SIW_LLP_CONNECTING || kind == SIW_LLP_STREAM;
}

/* Adds a socket to a poller. Returns 0, or -errno, and the socket is in no poller. */
static int sock_add_to_poller(struct siw_llp_sock *sock, struct siw_llp_poller *poller)
{
	int rv;

	sock->poller = poller;
	rv = siw_llp_sock_register(sock);
	if (rv < 0) {
		sock->poller = NULL;
		return rv;
	}
	siw_link_add(&poller->all, &sock->all);
	poller->n_data += is_data_socket_kind((enum siw_llp_kind)sock->kind);
	return 0;
}

static void sock_remove_from_poller(struct siw_llp_sock *sock)
{
	siw_llp_sock_detach(sock);
	siw_link_del(&sock->all);
	siw_link_del(&sock->timed);
	sock->poller->n_data -= is_data_socket_kind((enum siw_llp_kind)sock->kind);
	sock->poller = NULL;
}

int siw_llp_sock_new(struct siw_llp_poller *poller, int fd, enum siw_llp_kind kind,
		     struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	struct siw_llp_sock *sock = aligned_alloc(SIW_LLP_LINE, sizeof(*sock));
	int rv;

	if (!sock)
		return -ENOMEM;
	memset(sock, 0, sizeof(*sock));
	sock->fd = fd;
	sock->kind = kind;
	sock->udp = kind == SIW_LLP_UDP;
	sock->hot = -1;
	sock->handler = handler;
	siw_link_init(&sock->ring);
	siw_link_init(&sock->timed);
	atomic_init(&sock->due_ns, UINT64_MAX);
	rv = sock_add_to_poller(sock, poller);
	if (rv < 0) {
		free(sock);
		return rv;
	}
	*out = sock;
	return 0;
}

void siw_llp_leave_poller(struct siw_llp_sock *sock)
{
	bool ready = sock->ready;

	sock_remove_from_poller(sock);
	sock->ready = ready; /* siw_llp_add_to_poller() marks the socket ready again */
}

int siw_llp_add_to_poller(struct siw_llp_sock *sock, struct siw_llp_poller *poller)
{
	bool ready = sock->ready;
	int rv;

	/*
	 * epoll checks the socket when it is added, so it reports the data that has arrived, and
	 * space for sending if want_write is set.
	 */
	rv = sock_add_to_poller(sock, poller);
	if (rv < 0)
		return rv;
	/*
	 * The octets for which the socket was marked ready need not be in the kernel any more: the
	 * upper layer may have read them.
	 */
	sock->ready = false;
	if (ready)
		siw_llp_sock_mark_ready(sock);
	if (sock->has_timer) {
		siw_llp_sock_enable_timer(sock);
		siw_llp_sock_set_timer(sock,
				       atomic_load_explicit(&sock->due_ns, memory_order_relaxed));
	}
	siw_llp_fault_note_joined_poller(sock);
	return 0;
}

void siw_llp_close(struct siw_llp_sock *sock)
{
	if (!sock)
		return;
	/*
	 * In a forked child the descriptor has already been closed, and its number may denote
	 * another file.
	 */
	if (sock->udp && getpid() == sock->poller->owner) {
		siw_llp_udp_record_new_drops(sock);
		siw_llp_udp_disable_gro_for_close(sock);
	}
	siw_llp_fault_drop_held_packets(sock);
	siw_llp_capture_socket_close(sock);
	if (sock->poller)
		sock_remove_from_poller(sock);
	/* Linux closes the descriptor even if close() returns EINTR, so close() is not repeated. */
	siw_llp_fd_close(sock->fd);
	free(sock);
}

void siw_llp_set_handler(struct siw_llp_sock *sock, struct siw_io_handler *handler)
{
	sock->handler = handler;
}

void siw_llp_sock_resume(struct siw_llp_sock *sock)
{
	sock->held = false;
	siw_llp_sock_mark_ready(sock);
}

/*
 * Changes the socket's entry in the epoll set. epoll checks the socket during the change and
 * reports it if it is ready, so no event is lost. ENOENT means that another thread has just removed
 * the entry because the socket turned hot or was closed.
 */
static void epoll_update_socket_entry(struct siw_llp_sock *sock, bool write)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET, .data.ptr = sock };

	if (!sock->udp)
		ev.events |= EPOLLOUT | EPOLLRDHUP;
	else if (write)
		ev.events |= EPOLLOUT;
	epoll_ctl(sock->poller->epfd, EPOLL_CTL_MOD, sock->fd, &ev);
}

void siw_llp_request_write_event(struct siw_llp_sock *sock, bool always)
{
	bool did;

	siw_lock(&sock->poller->wish_lock);
	did = atomic_exchange_explicit(&sock->want_write, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&sock->registered, memory_order_seq_cst) && (!did || always))
		epoll_update_socket_entry(sock, true);
	else if (!did)
		/* a thread may sleep on this socket's descriptor without waiting for space */
		siw_llp_poller_invalidate_wait_sets(sock->poller);
	siw_unlock(&sock->poller->wish_lock);
}

static __attribute__((cold, noinline)) void clear_want_write(struct siw_llp_sock *sock)
{
	bool did;

	siw_lock(&sock->poller->wish_lock);
	did = atomic_exchange_explicit(&sock->want_write, 0, memory_order_seq_cst);
	if (did && sock->udp && atomic_load_explicit(&sock->registered, memory_order_seq_cst))
		/* with EPOLLOUT in its entry, each transmitted datagram would cause an event */
		epoll_update_socket_entry(sock, false);
	siw_unlock(&sock->poller->wish_lock);
	/* A thread that waits to send may belong to another user of the socket: wake all. */
	if (did && atomic_load_explicit(&sock->shared, memory_order_relaxed))
		siw_llp_poller_wake(sock->poller);
}

void siw_llp_update_want_write(struct siw_llp_sock *sock, bool want)
{
	if (want)
		siw_llp_request_write_event(sock, false);
	else if (atomic_load_explicit(&sock->want_write, memory_order_relaxed))
		clear_want_write(sock);
}

void siw_llp_allow_concurrent_sends(struct siw_llp_sock *sock)
{
	atomic_store_explicit(&sock->shared, 1, memory_order_relaxed);
}

int siw_llp_handle_failed_send(struct siw_llp_sock *sock, int error)
{
	switch (error) {
	case EAGAIN:
	case ENOBUFS:
		siw_count(SIW_COUNTER_tx_eagain, 1);
		siw_llp_request_write_event(sock, error == ENOBUFS);
		return -EAGAIN;
	default:
		siw_count(SIW_COUNTER_send_errors, 1);
		/*
		 * The upper layers use EACCES for a wrong key, so an EACCES of the network becomes
		 * EPERM.
		 */
		return error == EACCES ? -EPERM : -error;
	}
}

static int sock_query_address(struct siw_llp_sock *sock, struct siw_addr *out,
			      int (*name)(int, struct sockaddr *, socklen_t *))
{
	socklen_t len = sizeof(*out);

	memset(out, 0, sizeof(*out));
	return name(sock->fd, (struct sockaddr *)out, &len) ? -errno : 0;
}

int siw_llp_local_addr(struct siw_llp_sock *sock, struct siw_addr *out)
{
	return sock_query_address(sock, out, getsockname);
}

int siw_llp_peer_addr(struct siw_llp_sock *sock, struct siw_addr *out)
{
	return sock_query_address(sock, out, getpeername);
}

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>

/*
 * Returns an address for ThreadSanitizer to synchronize on, one per flow of octets, because
 * ThreadSanitizer does not see that a send precedes the receive of its octets. Two flows with the
 * same address only appear more ordered than they are.
 */
static void *tsan_address_of_flow(uint16_t from, uint16_t to)
{
	static char flows[1 << 16];

	return &flows[(uint16_t)(from * 40503u + to)];
}

/*
 * Represents all flows, for a receiver that cannot find out its peer's port because the connection
 * is gone.
 */
static char any;

static uint16_t get_local_or_peer_port(int fd, int (*name)(int, struct sockaddr *, socklen_t *))
{
	struct siw_addr a = { 0 };
	socklen_t len = sizeof(a);

	return name(fd, (struct sockaddr *)&a, &len) ? 0 : siw_addr_port(&a);
}

void siw_llp_tsan_note_send(int fd, const struct siw_addr *dest)
{
	int saved = errno;
	uint16_t to = dest ? siw_addr_port(dest) : get_local_or_peer_port(fd, getpeername);

	__tsan_release(tsan_address_of_flow(get_local_or_peer_port(fd, getsockname), to));
	__tsan_release(&any);
	errno = saved;
}

void siw_llp_tsan_note_receive(int fd, const struct siw_addr *source)
{
	int saved = errno;
	uint16_t from = source ? siw_addr_port(source) : get_local_or_peer_port(fd, getpeername);

	__tsan_acquire(from ? tsan_address_of_flow(from, get_local_or_peer_port(fd, getsockname))
			    : &any);
	errno = saved;
}
#endif
