/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/rdmacm/rdmacm_rsocket.c - rsockets, a protocol on top of rdma_cm. Calls are forwarded to the
 * system's librdmacm, if it is installed. The calls of rdma_cm and verbs by the system's librdmacm
 * reach siwarp's libraries, which come first in symbol lookup. Without the system's librdmacm each
 * function prints a message once and fails with EOPNOTSUPP.
 */
#include <dlfcn.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/select.h>

#include "abi/ibverbs/abi_cancel.h"
#include "abi/rdmacm/rdmacm.h"

#pragma GCC visibility push(default)
#include <rdma/rsocket.h>
#pragma GCC visibility pop

const uint32_t cm_fake_device_data[64] = { [0 ... 63] = 0x3fffffff };

/* Functions of later rdma-core releases (RDMACM_1.5) */
struct epoll_event;
#pragma GCC visibility push(default)
int repoll_create1(int flags);
int repoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
#pragma GCC visibility pop

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *genuine;

static void open_system_librdmacm(void)
{
	static const char *const places[] = {
		"/usr/lib/x86_64-linux-gnu/librdmacm.so.1",
		"/usr/lib/aarch64-linux-gnu/librdmacm.so.1",
		"/usr/lib64/librdmacm.so.1",
		"/lib64/librdmacm.so.1",
		"/usr/lib/librdmacm.so.1",
	};

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && !genuine; i++) {
		genuine = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
		/* A symbolic link to siwarp's librdmacm is not the system's librdmacm. */
		if (genuine && dlsym(genuine, "rsocket") == (void *)rsocket)
			genuine = NULL;
	}
}

/* State of one forwarded function. */
struct forwarded {
	_Atomic(void *) function; /* function of the system's library, or NULL before the lookup */
	atomic_bool reported_missing; /* the message about the missing function was printed */
};

/*
 * Looks up a function in the system's library; NULL with errno EOPNOTSUPP. Concurrent lookups give
 * the same result.
 */
static void *rsocket_find_in_system_librdmacm(const char *name, struct forwarded *of)
{
	int cancel = abi_cancel_disable();
	void *function;

	pthread_once(&once, open_system_librdmacm);
	function = genuine ? dlsym(genuine, name) : NULL;
	if (!function && !atomic_exchange(&of->reported_missing, true))
		fprintf(stderr, "siwarp: %s: rsockets require the system's librdmacm, which %s\n",
			name, genuine ? "does not contain this function" : "is not installed");
	abi_cancel_restore(cancel);
	if (!function)
		errno = EOPNOTSUPP;
	/*
	 * The release store pairs with the acquire load in rsocket_get_cached_function(), so that a
	 * reader sees the opened library.
	 */
	atomic_store_explicit(&of->function, function, memory_order_release);
	return function;
}

/*
 * Returns a function of the system's library, which the first call looks up, or NULL with errno
 * EOPNOTSUPP.
 */
static void *rsocket_get_cached_function(const char *name, struct forwarded *of)
{
	void *function = atomic_load_explicit(&of->function, memory_order_acquire);

	return function ? function : rsocket_find_in_system_librdmacm(name, of);
}

/*
 * Defines a function that calls its counterpart in the system's library, or returns `none` without
 * a counterpart.
 */
#define FORWARD(type, name, parameters, arguments, none)                          \
	type name parameters                                                      \
	{                                                                         \
		static struct forwarded known;                                    \
		type(*function) parameters;                                       \
                                                                                  \
		*(void **)&function = rsocket_get_cached_function(#name, &known); \
		return function ? function arguments : none;                      \
	}

FORWARD(int, rsocket, (int domain, int type, int protocol), (domain, type, protocol), -1)
FORWARD(int, rbind, (int socket, const struct sockaddr *addr, socklen_t len), (socket, addr, len),
	-1)
FORWARD(int, rlisten, (int socket, int backlog), (socket, backlog), -1)
FORWARD(int, raccept, (int socket, struct sockaddr *addr, socklen_t *len), (socket, addr, len), -1)
FORWARD(int, rconnect, (int socket, const struct sockaddr *addr, socklen_t len),
	(socket, addr, len), -1)
FORWARD(int, rshutdown, (int socket, int how), (socket, how), -1)
FORWARD(int, rclose, (int socket), (socket), -1)
FORWARD(ssize_t, rrecv, (int socket, void *buf, size_t len, int flags), (socket, buf, len, flags),
	-1)
FORWARD(ssize_t, rrecvfrom,
	(int socket, void *buf, size_t len, int flags, struct sockaddr *from, socklen_t *from_len),
	(socket, buf, len, flags, from, from_len), -1)
FORWARD(ssize_t, rrecvmsg, (int socket, struct msghdr *msg, int flags), (socket, msg, flags), -1)
FORWARD(ssize_t, rsend, (int socket, const void *buf, size_t len, int flags),
	(socket, buf, len, flags), -1)
FORWARD(ssize_t, rsendto,
	(int socket, const void *buf, size_t len, int flags, const struct sockaddr *to,
	 socklen_t to_len),
	(socket, buf, len, flags, to, to_len), -1)
FORWARD(ssize_t, rsendmsg, (int socket, const struct msghdr *msg, int flags), (socket, msg, flags),
	-1)
FORWARD(ssize_t, rread, (int socket, void *buf, size_t count), (socket, buf, count), -1)
FORWARD(ssize_t, rreadv, (int socket, const struct iovec *iov, int n), (socket, iov, n), -1)
FORWARD(ssize_t, rwrite, (int socket, const void *buf, size_t count), (socket, buf, count), -1)
FORWARD(ssize_t, rwritev, (int socket, const struct iovec *iov, int n), (socket, iov, n), -1)
FORWARD(int, rpoll, (struct pollfd * fds, nfds_t n, int timeout), (fds, n, timeout), -1)
FORWARD(int, rselect, (int n, fd_set *in, fd_set *out, fd_set *bad, struct timeval *timeout),
	(n, in, out, bad, timeout), -1)
FORWARD(int, rgetpeername, (int socket, struct sockaddr *addr, socklen_t *len), (socket, addr, len),
	-1)
FORWARD(int, rgetsockname, (int socket, struct sockaddr *addr, socklen_t *len), (socket, addr, len),
	-1)
FORWARD(int, rsetsockopt, (int socket, int level, int name, const void *value, socklen_t len),
	(socket, level, name, value, len), -1)
FORWARD(int, rgetsockopt, (int socket, int level, int name, void *value, socklen_t *len),
	(socket, level, name, value, len), -1)
FORWARD(off_t, riomap, (int socket, void *buf, size_t len, int prot, int flags, off_t offset),
	(socket, buf, len, prot, flags, offset), -1)
FORWARD(int, riounmap, (int socket, void *buf, size_t len), (socket, buf, len), -1)
FORWARD(size_t, riowrite, (int socket, const void *buf, size_t count, off_t offset, int flags),
	(socket, buf, count, offset, flags), (size_t)-1)

FORWARD(int, repoll_create1, (int flags), (flags), -1)
FORWARD(int, repoll_ctl, (int epfd, int op, int fd, struct epoll_event *event),
	(epfd, op, fd, event), -1)

int rfcntl(int socket, int cmd, ...)
{
	static struct forwarded known;
	int (*function)(int socket, int cmd, ...);
	va_list list;
	long value;

	va_start(list, cmd);
	value = va_arg(list, long);
	va_end(list);
	*(void **)&function = rsocket_get_cached_function("rfcntl", &known);
	return function ? function(socket, cmd, value) : -1;
}
