/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* llp/llp_udp.c - UDP sockets. */
#include <fcntl.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/counters.h"
#include "base/settings.h"
#include "llp/llp_fault.h"
#include "llp/llp_sock.h"
#include "llp/llp_capture.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

/*
 * Reads the kernel's counter of datagrams dropped at this socket. SO_RXQ_OVFL would instead add a
 * control message to each received datagram.
 */
static uint32_t read_drop_counter(int fd)
{
	uint32_t info[SK_MEMINFO_VARS] = { 0 };
	socklen_t len = sizeof(info);

	if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info, &len))
		return 0;
	return info[SK_MEMINFO_DROPS];
}

void siw_llp_udp_record_new_drops(struct siw_llp_sock *sock)
{
	uint32_t now = read_drop_counter(sock->fd);

	if (now == sock->drops)
		return;
	siw_count(SIW_COUNTER_drop_rxq_overflow, now - sock->drops);
	sock->drops = now;
}

/* Sets a socket buffer's size in octets; the system's limit applies only without privilege. */
static void set_buffer_size(int fd, int force, int plain, int64_t octets)
{
	/* The kernel doubles the requested buffer size. */
	int value = octets > INT32_MAX / 2 ? INT32_MAX / 2 : (int)octets;

	if (siw_llp_set_socket_option(fd, SOL_SOCKET, force, value) < 0)
		siw_llp_set_socket_option(fd, SOL_SOCKET, plain, value);
}

void siw_llp_udp_set_buffer_sizes(int fd)
{
	set_buffer_size(fd, SO_RCVBUFFORCE, SO_RCVBUF, siw_settings()->rcvbuf);
	set_buffer_size(fd, SO_SNDBUFFORCE, SO_SNDBUF, siw_settings()->sndbuf);
}

int siw_llp_udp_open(struct siw_llp_poller *poller, const struct siw_addr *local,
		     struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	int rv, fd = siw_llp_open_socket_descriptor(local->family, SOCK_DGRAM);

	if (fd < 0)
		return fd;
	siw_llp_udp_set_buffer_sizes(fd);
	if (local->family == AF_INET6) {
		rv = siw_llp_set_socket_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
		if (rv < 0)
			goto fail;
	}
	if (bind(fd, (const struct sockaddr *)local, siw_addr_len(local))) {
		rv = -errno;
		goto fail;
	}
	rv = siw_llp_sock_new(poller, fd, SIW_LLP_UDP, handler, out);
	if (rv == 0)
		return 0;
fail:
	siw_llp_fd_close(fd);
	return rv;
}

int siw_llp_udp_reserve_port(struct siw_addr *local, bool v6_only)
{
	int rv = 0, fd = siw_llp_open_socket_descriptor(local->family, SOCK_DGRAM);
	socklen_t len = sizeof(*local);

	if (fd < 0)
		return fd;
	if (local->family == AF_INET6)
		rv = siw_llp_set_socket_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, v6_only);
	if (rv == 0 && (bind(fd, (const struct sockaddr *)local, siw_addr_len(local)) ||
			getsockname(fd, (struct sockaddr *)local, &len)))
		rv = -errno;
	if (rv == 0)
		return fd;
	siw_llp_fd_close(fd);
	return rv;
}

static int get_int_socket_option(int fd, int name, int *value)
{
	socklen_t len = sizeof(*value);

	return getsockopt(fd, SOL_SOCKET, name, value, &len) ? -errno : 0;
}

/* Checks that fd is a UDP socket that is bound to a port. Returns 0 or -errno. */
static int check_is_bound_udp_socket(int fd)
{
	struct siw_addr local = { 0 };
	socklen_t len = sizeof(local);
	int type = 0, protocol = 0;
	int rv = get_int_socket_option(fd, SO_TYPE, &type);

	if (rv == 0)
		rv = get_int_socket_option(fd, SO_PROTOCOL, &protocol);
	if (rv < 0)
		return rv;
	if (type != SOCK_DGRAM || protocol != IPPROTO_UDP)
		return -EINVAL;
	if (getsockname(fd, (struct sockaddr *)&local, &len))
		return -errno;
	if (!siw_addr_len(&local) || !local.port_be)
		return -EINVAL;
	return 0;
}

int siw_llp_udp_adopt_program_socket(struct siw_llp_poller *poller, int fd,
				     struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	int flags, rv = check_is_bound_udp_socket(fd);

	if (rv < 0)
		return rv;
	flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) || fcntl(fd, F_SETFD, FD_CLOEXEC))
		return -errno;
	/*
	 * Turn RECVERR off: nothing reads the error queue, and a queued error would keep the socket
	 * ready forever. Turn GRO off: datagrams must be received one by one. Failures are ignored,
	 * because an option that the kernel does not support is off.
	 */
	siw_llp_set_socket_option(fd, IPPROTO_IP, IP_RECVERR, 0);
	siw_llp_set_socket_option(fd, IPPROTO_IPV6, IPV6_RECVERR, 0);
	siw_llp_set_socket_option(fd, IPPROTO_UDP, UDP_GRO, 0);
	rv = siw_llp_fd_add_close_on_fork(fd);
	if (rv < 0)
		return rv;
	rv = siw_llp_sock_new(poller, fd, SIW_LLP_UDP, handler, out);
	if (rv == 0)
		(*out)->drops = read_drop_counter(fd);
	else
		siw_llp_fd_remove_close_on_fork(fd);
	return rv;
}

/*
 * Returns whether this error may be the socket's pending error, set by an ICMP message or by an
 * unanswered neighbour discovery for an earlier datagram.
 */
static bool may_be_pending_error(int error)
{
	switch (error) {
	case ECONNREFUSED:
	case EHOSTUNREACH:
	case ENETUNREACH:
	case EHOSTDOWN:
	case ENONET:
	case ENOPROTOOPT:
	case EPROTO:
		return true;
	default:
		return false;
	}
}

static __attribute__((cold, noinline)) ssize_t udp_send_captured(struct siw_llp_sock *sock,
								 const struct siw_addr *dest,
								 const struct iovec *iov, int n)
{
	uint64_t when = siw_capture_lock();
	ssize_t sent = siw_llp_send(sock->fd, dest, iov, n);

	if (sent >= 0)
		siw_llp_capture_datagram(sock, when, true, dest, iov, 0, (size_t)sent, 0);
	siw_capture_unlock();
	return sent;
}

static inline ssize_t udp_send_once(struct siw_llp_sock *sock, const struct siw_addr *dest,
				    const struct iovec *iov, int n)
{
	return siw_capture_on() ? udp_send_captured(sock, dest, iov, n)
				: siw_llp_send(sock->fd, dest, iov, n);
}

/*
 * Sends a datagram again after a pending error. A pending error belongs to an earlier datagram, and
 * the call that returned it has cleared it. If the second attempt fails with the same errno, the
 * error is this datagram's own (for example no route). ECONNREFUSED, which only ICMP causes, is
 * never the datagram's own.
 */
static __attribute__((cold, noinline)) int resend_after_pending_error(struct siw_llp_sock *sock,
								      const struct siw_addr *dest,
								      const struct iovec *iov,
								      int n)
{
	int first = errno;

	if (udp_send_once(sock, dest, iov, n) >= 0) {
		siw_count(SIW_COUNTER_icmp_errors, 1);
		siw_llp_update_want_write(sock, false);
		return 0;
	}
	if (errno != first || first == ECONNREFUSED)
		siw_count(SIW_COUNTER_icmp_errors, 1);
	return siw_llp_handle_failed_send(sock, errno);
}

static __attribute__((always_inline)) inline int
send_datagram_without_faults(struct siw_llp_sock *sock, const struct siw_addr *dest,
			     const struct iovec *iov, int n)
{
	if (__builtin_expect(udp_send_once(sock, dest, iov, n) >= 0, 1)) {
		/* clearing want_write costs one load, unless a previous send failed with EAGAIN */
		siw_llp_update_want_write(sock, false);
		return 0;
	}
	if (may_be_pending_error(errno))
		return resend_after_pending_error(sock, dest, iov, n);
	return siw_llp_handle_failed_send(sock, errno);
}

int siw_llp_udp_send_without_faults(struct siw_llp_sock *sock, const struct siw_addr *dest,
				    const struct iovec *iov, int n)
{
	return send_datagram_without_faults(sock, dest, iov, n);
}

int siw_llp_udp_send(struct siw_llp_sock *sock, const struct siw_addr *dest,
		     const struct iovec *iov, int n)
{
	return siw_faults_on() ? siw_llp_udp_send_with_faults(sock, dest, iov, n)
			       : send_datagram_without_faults(sock, dest, iov, n);
}

/*
 * Returns whether a batch may have failed with this error although its datagrams can be sent one by
 * one.
 */
static bool can_retry_without_batching(int error)
{
	return error == EINVAL || error == EIO || error == EMSGSIZE || error == EOPNOTSUPP ||
	       error == ENOPROTOOPT;
}

/*
 * Writes each datagram of a batch to the capture. octets: length of the batch; negative: write
 * nothing.
 */
static void capture_batch(struct siw_llp_sock *sock, uint64_t when, bool out,
			  const struct siw_addr *peer, const struct iovec *iov, ssize_t octets,
			  size_t seg)
{
	size_t len = octets > 0 ? (size_t)octets : 0;

	for (size_t at = 0; at < len; at += seg)
		siw_llp_capture_datagram(sock, when, out, peer, iov, at,
					 len - at < seg ? len - at : seg, 0);
}

static ssize_t send_batch(struct siw_llp_sock *sock, const struct siw_addr *dest,
			  const struct iovec *iov, int n, uint16_t seg)
{
	union {
		char octets[CMSG_SPACE(sizeof(uint16_t))];
		struct cmsghdr aligned;
	} control = { 0 };
	struct msghdr msg = {
		.msg_name = (void *)dest,
		.msg_namelen = siw_addr_len(dest),
		.msg_iov = (struct iovec *)iov,
		.msg_iovlen = (size_t)n,
		.msg_control = control.octets,
		.msg_controllen = sizeof(control.octets),
	};
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
	ssize_t sent;

	cmsg->cmsg_level = IPPROTO_UDP;
	cmsg->cmsg_type = UDP_SEGMENT;
	cmsg->cmsg_len = CMSG_LEN(sizeof(seg));
	memcpy(CMSG_DATA(cmsg), &seg, sizeof(seg));
	siw_llp_tsan_note_send(sock->fd, dest);
	do {
		sent = siw_llp_sendmsg(sock->fd, &msg, MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	return sent;
}

static __attribute__((cold, noinline)) ssize_t send_batch_captured(struct siw_llp_sock *sock,
								   const struct siw_addr *dest,
								   const struct iovec *iov, int n,
								   uint16_t seg)
{
	uint64_t when = siw_capture_lock();
	ssize_t sent = send_batch(sock, dest, iov, n, seg);

	capture_batch(sock, when, true, dest, iov, sent, seg);
	siw_capture_unlock();
	return sent;
}

int siw_llp_udp_send_batchv(struct siw_llp_sock *sock, const struct siw_addr *dest,
			    const struct iovec *iov, int n, uint16_t seg)
{
	ssize_t sent;

	if (siw_faults_on())
		/*
		 * the caller then sends the datagrams one by one, because the fault plan judges
		 * each
		 */
		return -ECONNREFUSED;
	sent = siw_capture_on() ? send_batch_captured(sock, dest, iov, n, seg)
				: send_batch(sock, dest, iov, n, seg);
	if (sent >= 0) {
		siw_llp_update_want_write(sock, false);
		return 0;
	}
	if (can_retry_without_batching(errno))
		return -EOPNOTSUPP;
	/*
	 * The error belongs to an earlier datagram. Sending the datagrams one by one finds out
	 * which destination the error concerns.
	 */
	if (may_be_pending_error(errno)) {
		siw_count(SIW_COUNTER_icmp_errors, 1);
		return -ECONNREFUSED;
	}
	return siw_llp_handle_failed_send(sock, errno);
}

int siw_llp_udp_send_batch(struct siw_llp_sock *sock, const struct siw_addr *dest, const void *buf,
			   size_t len, uint16_t seg)
{
	struct iovec iov = { (void *)buf, len };

	return siw_llp_udp_send_batchv(sock, dest, &iov, 1, seg);
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Reads from control messages the size of a batch's datagrams, and the batch's ECN code point. */
static void read_control_messages(struct siw_llp_sock *sock, struct msghdr *msg, uint16_t *seg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		int value = 0;

		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS)
			value = *CMSG_DATA(c);
		else if (c->cmsg_len >= CMSG_LEN(sizeof(value)))
			memcpy(&value, CMSG_DATA(c), sizeof(value));
		if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO)
			*seg = (uint16_t)value;
		else if ((c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) ||
			 (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS))
			sock->got_ecn = value & SIW_LLP_ECN_MASK;
	}
}

/*
 * Receives like recvfrom(2). If seg is not NULL, *seg is set to the size of the datagrams of a
 * batch, or to 0 for a single datagram.
 */
static __attribute__((always_inline)) inline ssize_t
recv_one_datagram_or_batch(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
			   size_t size, socklen_t *len, uint16_t *seg)
{
	union {
		char octets[2 * CMSG_SPACE(sizeof(int))];
		struct cmsghdr aligned;
	} control;
	struct iovec iov = { buf, size };
	struct msghdr msg = {
		.msg_name = source,
		.msg_namelen = *len,
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.octets,
		.msg_controllen = sizeof(control.octets),
	};
	ssize_t got;

	if (!seg)
		return siw_llp_recvfrom(sock->fd, buf, size, MSG_TRUNC, source, len);
	got = siw_llp_recvmsg(sock->fd, &msg, MSG_TRUNC);
	*len = msg.msg_namelen;
	*seg = 0;
	sock->got_ecn = 0;
	if (got >= 0 && msg.msg_controllen)
		read_control_messages(sock, &msg, seg);
	return got;
}

/* Receives once, and clears the octets of source that a sockaddr_in does not fill. */
static __attribute__((always_inline)) inline ssize_t udp_recv_once(struct siw_llp_sock *sock,
								   struct siw_addr *source,
								   void *buf, size_t size,
								   uint16_t *seg)
{
	socklen_t len = sizeof(*source);
	ssize_t got = recv_one_datagram_or_batch(sock, source, buf, size, &len, seg);

	if (__builtin_expect(got >= 0, 1) && source->family == AF_INET) {
		memset(source->v6, 0, sizeof(source->v6));
		source->scope = 0;
	}
	return got;
}

static __attribute__((cold, noinline)) ssize_t udp_recv_captured(struct siw_llp_sock *sock,
								 struct siw_addr *source, void *buf,
								 size_t size, uint16_t *seg)
{
	struct iovec iov = { buf, size };
	ssize_t got;

	siw_capture_lock();
	got = udp_recv_once(sock, source, buf, size, seg);
	if (got >= 0 && seg && *seg && (size_t)got <= size) {
		capture_batch(sock, siw_capture_time_ns(), false, source, &iov, got, *seg);
	} else if (got >= 0) {
		size_t here = (size_t)got < size ? (size_t)got : size;

		siw_llp_capture_datagram(sock, siw_capture_time_ns(), false, source, &iov, 0, here,
					 (size_t)got - here);
	}
	siw_capture_unlock();
	return got;
}

static __attribute__((always_inline)) inline ssize_t recv_without_faults(struct siw_llp_sock *sock,
									 struct siw_addr *source,
									 void *buf, size_t size,
									 uint16_t *seg)
{
	bool again = false;

	for (;;) {
		ssize_t got = siw_capture_on() ? udp_recv_captured(sock, source, buf, size, seg)
					       : udp_recv_once(sock, source, buf, size, seg);

		if (__builtin_expect(got >= 0, 1)) {
			siw_llp_tsan_note_receive(sock->fd, source);
			siw_llp_sock_note_received_data(sock);
			return got;
		}
		if (errno == EAGAIN) {
			siw_llp_sock_note_empty(sock);
			return -EAGAIN;
		}
		if (errno == EINTR)
			continue;
		if (!may_be_pending_error(errno))
			return -errno;
		siw_count(SIW_COUNTER_icmp_errors, 1);
		if (again)
			return -errno;
		again = true;
	}
}

ssize_t siw_llp_udp_recv_without_faults(struct siw_llp_sock *sock, struct siw_addr *source,
					void *buf, size_t size)
{
	uint16_t seg;

	/* With ECN, control messages are received, too: they contain the ECN code point. */
	return recv_without_faults(sock, source, buf, size,
				   atomic_load_explicit(&sock->ecn, memory_order_relaxed) ? &seg
											  : NULL);
}

ssize_t siw_llp_udp_recv(struct siw_llp_sock *sock, struct siw_addr *source, void *buf, size_t size)
{
	return siw_faults_on() ? siw_llp_udp_recv_with_faults(sock, source, buf, size)
			       : recv_without_faults(sock, source, buf, size, NULL);
}

bool siw_llp_udp_ce_received(const struct siw_llp_sock *sock)
{
	return sock->got_ecn == SIW_LLP_ECN_CE;
}

ssize_t siw_llp_udp_recv_batch(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
			       size_t size, uint16_t *seg)
{
	return recv_without_faults(sock, source, buf, size, seg);
}
