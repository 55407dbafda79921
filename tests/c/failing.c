// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Preloaded into a process: of the calls that siwarp makes of the system the n-th since failing_arm(n)
 * fails, as on a machine without memory, descriptors or buffers. Sending and receiving is
 * interrupted instead. Calls of everybody else go through untouched.
 */
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);

static uintptr_t begin, end; /* siwarp's library */
static atomic_long seen, fails_at;

static int find(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)size;
	(void)unused;
	if (!strstr(info->dlpi_name, "libsiwarp.so"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type == PT_LOAD && p->p_flags & PF_X) {
			begin = info->dlpi_addr + p->p_vaddr;
			end = begin + p->p_memsz;
		}
	}
	return 1;
}

/* How many calls there were since the last time; 0: none fails from here on. */
long failing_arm(long n);
long failing_arm(long n)
{
	if (!begin)
		dl_iterate_phdr(find, NULL);
	atomic_store(&fails_at, 0);
	long before = atomic_exchange(&seen, 0);

	atomic_store(&fails_at, n);
	return before;
}

static int due(const void *caller)
{
	if ((uintptr_t)caller < begin || (uintptr_t)caller >= end)
		return 0;
	return atomic_fetch_add(&seen, 1) + 1 == atomic_load(&fails_at);
}

#define CALLER __builtin_return_address(0)

void *malloc(size_t size)
{
	if (!due(CALLER))
		return __libc_malloc(size);
	errno = ENOMEM;
	return NULL;
}

void *calloc(size_t n, size_t size)
{
	if (!due(CALLER))
		return __libc_calloc(n, size);
	errno = ENOMEM;
	return NULL;
}

void *realloc(void *p, size_t size)
{
	if (!due(CALLER))
		return __libc_realloc(p, size);
	errno = ENOMEM;
	return NULL;
}

/* TYPE NAME(PARAMETERS), which with ARGUMENTS is the next library's; fails with ERROR. */
#define FAILING(type, name, parameters, arguments, failed, error)           \
	type name parameters                                                \
	{                                                                   \
		static type(*_Atomic next) parameters;                      \
                                                                            \
		if (due(CALLER)) {                                          \
			errno = error;                                      \
			return failed;                                      \
		}                                                           \
		if (!next)                                                  \
			next = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
		return next arguments;                                      \
	}

FAILING(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1, EMFILE)
FAILING(int, bind, (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len), -1,
	ENOBUFS)
FAILING(int, listen, (int fd, int backlog), (fd, backlog), -1, ENOBUFS)
FAILING(int, accept4, (int fd, struct sockaddr *addr, socklen_t *len, int flags),
	(fd, addr, len, flags), -1, ENFILE)
FAILING(int, connect, (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len), -1,
	ENOBUFS)
FAILING(int, getsockname, (int fd, struct sockaddr *addr, socklen_t *len), (fd, addr, len), -1,
	ENOBUFS)
FAILING(int, getpeername, (int fd, struct sockaddr *addr, socklen_t *len), (fd, addr, len), -1,
	ENOBUFS)
FAILING(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t len),
	(fd, level, name, value, len), -1, ENOBUFS)
FAILING(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *len),
	(fd, level, name, value, len), -1, ENOBUFS)
FAILING(int, epoll_create1, (int flags), (flags), -1, EMFILE)
FAILING(int, epoll_ctl, (int fd, int op, int other, struct epoll_event *ev), (fd, op, other, ev),
	-1, ENOSPC)
FAILING(int, eventfd, (unsigned int count, int flags), (count, flags), -1, EMFILE)
FAILING(int, getifaddrs, (struct ifaddrs * *all), (all), -1, ENOBUFS)
FAILING(void *, mmap, (void *at, size_t len, int prot, int flags, int fd, off_t off),
	(at, len, prot, flags, fd, off), MAP_FAILED, ENOMEM)
FAILING(int, pthread_create,
	(pthread_t * thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg),
	(thread, attr, run, arg), EAGAIN, EAGAIN)
FAILING(ssize_t, sendto,
	(int fd, const void *buf, size_t n, int flags, const struct sockaddr *to, socklen_t len),
	(fd, buf, n, flags, to, len), -1, EINTR)
FAILING(ssize_t, sendmsg, (int fd, const struct msghdr *msg, int flags), (fd, msg, flags), -1,
	EINTR)
FAILING(ssize_t, send, (int fd, const void *buf, size_t n, int flags), (fd, buf, n, flags), -1,
	EINTR)
FAILING(ssize_t, recvfrom,
	(int fd, void *buf, size_t n, int flags, struct sockaddr *from, socklen_t *len),
	(fd, buf, n, flags, from, len), -1, EINTR)
FAILING(ssize_t, recvmsg, (int fd, struct msghdr *msg, int flags), (fd, msg, flags), -1, EINTR)
FAILING(ssize_t, recv, (int fd, void *buf, size_t n, int flags), (fd, buf, n, flags), -1, EINTR)
