// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A library to preload. After fail_nth_call(n), the n-th system call that siwarp makes fails as it
 * would on a machine without memory, descriptors or buffers; send and receive calls fail with an
 * interruption instead. After fail_named_function(), calls of one function fail with a given error.
 * Calls made by other code are not affected.
 */
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);

/*
 * Address ranges of siwarp's libraries, and of the Python extension that contains the layers, if
 * loaded.
 */
static struct {
	uintptr_t begin, end;
} code[3];
static int n_code;
static atomic_long seen, fails_at;
static char named[32]; /* name of the function that has to fail; "": any function is counted */
static atomic_long last_at;
static int named_error;

static int add_code_range_of_siwarp_library(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)size;
	(void)unused;
	if (!strstr(info->dlpi_name, "libsiwarp.so") && !strstr(info->dlpi_name, "libibverbs.so") &&
	    !strstr(info->dlpi_name, "_siwarp_layers"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type == PT_LOAD && p->p_flags & PF_X) {
			code[n_code].begin = info->dlpi_addr + p->p_vaddr;
			code[n_code].end = code[n_code].begin + p->p_memsz;
		}
	}
	return ++n_code == 3;
}

static void find_siwarp_code_ranges(void)
{
	if (!n_code)
		dl_iterate_phdr(add_code_range_of_siwarp_library, NULL);
}

static bool is_caller_in_siwarp(const void *caller)
{
	for (int i = 0; i < n_code; i++)
		if ((uintptr_t)caller >= code[i].begin && (uintptr_t)caller < code[i].end)
			return true;
	return false;
}

/*
 * Makes the n-th call from now on fail; 0: no call fails. Returns the number of calls since the
 * previous fail_nth_call().
 */
long fail_nth_call(long n);
long fail_nth_call(long n)
{
	find_siwarp_code_ranges();
	atomic_store(&fails_at, 0);
	long before = atomic_exchange(&seen, 0);

	named[0] = 0;
	atomic_store(&last_at, n);
	atomic_store(&fails_at, n);
	return before;
}

/*
 * Selects a function to fail: from its n-th call on, `times` calls of the named function fail with
 * `error`; times = 0: none. Returns how many calls the previously named function has received. Call
 * it only while no other thread of siwarp runs.
 */
long fail_named_function(const char *name, long n, long times, int error);
long fail_named_function(const char *name, long n, long times, int error)
{
	find_siwarp_code_ranges();
	atomic_store(&fails_at, 0);
	long before = atomic_exchange(&seen, 0);

	strncpy(named, name, sizeof(named) - 1);
	named_error = error;
	atomic_store(&last_at, n + times - 1);
	atomic_store(&fails_at, times ? n : 0);
	return before;
}

/*
 * Returns whether this call has to fail. Sets *error if the call has to fail with an error other
 * than its default.
 */
static bool is_call_to_fail(const char *name, const void *caller, int *error, bool alone)
{
	long n, from;

	if (!is_caller_in_siwarp(caller))
		return false;
	if (named[0] ? strcmp(named, name) != 0 : alone)
		return false;
	n = atomic_fetch_add(&seen, 1) + 1;
	from = atomic_load(&fails_at);
	if (!from || n < from || n > atomic_load(&last_at))
		return false;
	if (named[0])
		*error = named_error;
	errno = *error;
	return true;
}

#define CALLER __builtin_return_address(0)

void *malloc(size_t size)
{
	int error = ENOMEM;

	return is_call_to_fail("malloc", CALLER, &error, false) ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	int error = ENOMEM;

	return is_call_to_fail("calloc", CALLER, &error, false) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	int error = ENOMEM;

	return is_call_to_fail("realloc", CALLER, &error, false) ? NULL : __libc_realloc(p, size);
}

/*
 * Defines TYPE NAME(PARAMETERS), which calls the next library's function with ARGUMENTS, or fails
 * with ERROR.
 */
#define CALL(type, name, parameters, arguments, failed, usual, alone)       \
	type name parameters                                                \
	{                                                                   \
		static type(*_Atomic next) parameters;                      \
		int error = usual;                                          \
                                                                            \
		if (is_call_to_fail(#name, CALLER, &error, alone))          \
			return failed;                                      \
		if (!next)                                                  \
			next = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
		return next arguments;                                      \
	}
#define FAILING(type, name, parameters, arguments, failed, error) \
	CALL(type, name, parameters, arguments, failed, error, false)
/* Defines a wrapper of a function that fails only if fail_named_function() selects it. */
#define NAMED(type, name, parameters, arguments, failed) \
	CALL(type, name, parameters, arguments, failed, 0, true)

FAILING(int, posix_memalign, (void **out, size_t to, size_t size), (out, to, size), error, ENOMEM)
FAILING(void *, aligned_alloc, (size_t to, size_t size), (to, size), NULL, ENOMEM)
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
	(thread, attr, run, arg), error, EAGAIN)
FAILING(ssize_t, send, (int fd, const void *buf, size_t n, int flags), (fd, buf, n, flags), -1,
	EINTR)

NAMED(ssize_t, read, (int fd, void *buf, size_t n), (fd, buf, n), -1)
NAMED(ssize_t, write, (int fd, const void *buf, size_t n), (fd, buf, n), -1)
NAMED(int, shutdown, (int fd, int how), (fd, how), -1)
/*
 * __register_atfork() is the function that implements pthread_atfork(), which the linker adds to
 * each library.
 */
NAMED(int, __register_atfork,
      (void (*before)(void), void (*parent)(void), void (*child)(void), void *library),
      (before, parent, child, library), error)
NAMED(int, flock, (int fd, int how), (fd, how), -1)
NAMED(int, posix_fallocate, (int fd, off_t at, off_t len), (fd, at, len), error)
NAMED(ssize_t, getrandom, (void *buf, size_t n, unsigned int flags), (buf, n, flags), -1)

/* ioctl() is variadic; siwarp always passes one pointer. */
int ioctl(int fd, unsigned long request, ...)
{
	static int (*_Atomic next)(int, unsigned long, ...);
	int error = EIO;
	va_list list;
	void *arg;

	if (is_call_to_fail("ioctl", CALLER, &error, true))
		return -1;
	va_start(list, request);
	arg = va_arg(list, void *);
	va_end(list);
	if (!next)
		next = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
	return next(fd, request, arg);
}

/* Calls that siwarp makes with syscall() because the C library's wrappers are slower. */
static const struct {
	const char *name;
	long number;
	bool alone;
} directly[] = {
	{ "sendto", SYS_sendto, false },   { "recvfrom", SYS_recvfrom, false },
	{ "sendmsg", SYS_sendmsg, false }, { "recvmsg", SYS_recvmsg, false },
	{ "readv", SYS_readv, false },	   { "write", SYS_write, true },
	{ "preadv2", SYS_preadv2, true },  { "epoll_wait", SYS_epoll_pwait, true },
};

long syscall(long number, ...)
{
	static long (*_Atomic next)(long, ...);
	int error = EINTR;
	va_list list;
	long a[6];

	for (size_t i = 0; i < sizeof(directly) / sizeof(directly[0]); i++)
		if (number == directly[i].number &&
		    is_call_to_fail(directly[i].name, CALLER, &error, directly[i].alone))
			return -1;
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (!next)
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
