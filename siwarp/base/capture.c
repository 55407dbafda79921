/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/capture.c - writes capture files; see capture.h. The format is pcapng in host byte order. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/capture_impl.h"
#include "base/settings.h"
#include "base/trace.h"

#define BLOCK_SECTION	0x0a0d0d0au
#define BLOCK_INTERFACE 1u
#define BLOCK_PACKET	6u
#define OPT_END		0
#define OPT_COMMENT	1
#define OPT_FLAGS	2      /* packet option: 1 inbound, 2 outbound */
#define OPT_APPLICATION 4      /* section option */
#define OPT_NAME	2      /* interface option */
#define OPT_RESOLUTION	9      /* interface option: resolution of time stamps, 10^-n seconds */
#define OPT_ROOM	0xf51a /* local use: reserves space for a comment; readers skip it */
#define ROOM		76     /* octets of the reserved space */

#define MAX_INTERFACES 64
#define BLOCK_MAX      (32 + SIW_CAPTURE_HEADERS_MAX + 65536 + 4 + 8 + 4 + ROOM + 4 + 4)

_Atomic uint32_t siw_capture_active;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* State of the capture file, protected by the mutex `lock`. */
static struct {
	int fd; /* descriptor of the file; valid if generation is not 0 */
	uint32_t generation, generations;
	bool forked; /* this process is a forked child; the file is its parent's */
	off_t end, limit;
	char path[PATH_MAX]; /* path of the capture as the user has given it */
	char file[PATH_MAX]; /* path of the file that was opened */
	int n_interfaces;
	char interfaces[MAX_INTERFACES][16];
	uint8_t block[BLOCK_MAX];
	size_t len;
	int cancel; /* previous cancellation state of the thread that holds the lock */
} cap;

/*
 * Acquires the capture lock. Cancellation is disabled, because writing a file is a cancellation
 * point (base/cancel.h).
 */
static void capture_take_lock(void)
{
	int cancel = siw_cancel_disable();

	pthread_mutex_lock(&lock);
	cap.cancel = cancel;
}

static void capture_release_lock(void)
{
	int cancel = cap.cancel;

	pthread_mutex_unlock(&lock);
	siw_cancel_restore(cancel);
}

/* File offset for the comment of the datagram that this thread received last. */
static __thread struct {
	uint32_t generation;
	off_t room;
} last;

/* ---- pcapng blocks --------------------------------------------------------------------------- */

static void capture_append_octets(const void *octets, size_t n)
{
	memcpy(cap.block + cap.len, octets, n);
	cap.len += n;
}

static void capture_append_uint32(uint32_t v)
{
	capture_append_octets(&v, sizeof(v));
}

static void capture_pad_to_32_bits(void)
{
	while (cap.len % 4)
		cap.block[cap.len++] = 0;
}

static void capture_append_option(uint16_t code, const void *value, size_t n)
{
	uint16_t head[2] = { code, (uint16_t)n };

	capture_append_octets(head, sizeof(head));
	capture_append_octets(value, n);
	capture_pad_to_32_bits();
}

static void capture_begin_block(uint32_t type)
{
	cap.len = 0;
	capture_append_uint32(type);
	capture_append_uint32(0);
}

static void capture_end_after_error(const char *what)
{
	siw_log_warn_user("the capture to %s ends here: %s: %s", cap.file, what, strerror(errno));
	if (ftruncate(cap.fd,
		      /*
		       * an incomplete block would make the file unreadable; if ftruncate fails,
		       * nothing more can be done
		       */
		      cap.end))
		errno = 0;
	close(cap.fd);
	cap.generation = 0;
	atomic_store_explicit(&siw_capture_active, 0, memory_order_relaxed);
}

/* Completes the current block and writes it to the file. Returns 0 or -errno. */
static int capture_write_block(void)
{
	uint32_t size;
	ssize_t n;

	size = (uint32_t)cap.len + 4;
	capture_append_uint32(size);
	memcpy(cap.block + 4, &size, sizeof(size));
	if (cap.end + (off_t)cap.len > cap.limit) {
		/*
		 * The size is checked before the write, because exceeding ulimit -f raises SIGXFSZ,
		 * which terminates most programs.
		 */
		errno = EFBIG;
		capture_end_after_error(
			"the file has reached the limit of SIWARP_CAPTURE_MB or ulimit -f");
		return -EFBIG;
	}
	do
		n = pwrite(cap.fd, cap.block, cap.len, cap.end);
	while (n < 0 && errno == EINTR);
	if (n != (ssize_t)cap.len) {
		int error = n < 0 ? errno : ENOSPC;

		errno = error;
		capture_end_after_error("writing to its file");
		return -error;
	}
	cap.end += n;
	return 0;
}

static int write_section_header(void)
{
	char application[64];
	int n = snprintf(application, sizeof(application), "siwarp " SIW_VERSION " (process %d)",
			 (int)getpid());
	uint16_t version[2] = { 1, 0 };
	uint64_t unknown = UINT64_MAX;

	capture_begin_block(BLOCK_SECTION);
	capture_append_uint32(0x1a2b3c4d);
	capture_append_octets(version, sizeof(version));
	capture_append_octets(&unknown, sizeof(unknown));
	capture_append_option(OPT_APPLICATION, application, (size_t)n);
	capture_append_option(OPT_END, "", 0);
	return capture_write_block();
}

/* ---- the capture file ------------------------------------------------------------------------ */

/*
 * Copies path to out and replaces each %p by the process ID. suffixed: also inserts -PID before the
 * suffix. Returns 0 or -ENAMETOOLONG.
 */
static int capture_expand_path(char *out, const char *path, bool suffixed)
{
	const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
	const char *at, *mark = path + strlen(path);
	char pid[16];
	size_t n = 0;

	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	if (dot && dot > (slash ? slash + 1 : path))
		mark = dot;
	for (at = path;; at++) {
		const char *word = NULL;

		if (suffixed && at == mark)
			n += (size_t)snprintf(out + n, PATH_MAX - n, "-%s", pid);
		if (!*at)
			break;
		if (at[0] == '%' && at[1] == 'p')
			word = pid, at++;
		n += (size_t)(word ? snprintf(out + n, PATH_MAX - n, "%s", word)
				   : snprintf(out + n, PATH_MAX - n, "%c", *at));
		if (n >= PATH_MAX - 32)
			return -ENAMETOOLONG;
	}
	return 0;
}

/*
 * Returns the maximum file size: the smaller of setting capture_mb and the process's resource
 * limit.
 */
static off_t capture_size_limit(void)
{
	off_t limit = siw_settings()->capture_mb * 1000000;
	struct rlimit process;

	if (!limit)
		limit = INT64_MAX;
	if (getrlimit(RLIMIT_FSIZE, &process) == 0 && process.rlim_cur != RLIM_INFINITY &&
	    process.rlim_cur < (rlim_t)limit)
		limit = (off_t)process.rlim_cur;
	return limit;
}

static int capture_open_file(bool suffixed, int how)
{
	struct stat st;
	int fd, rv = capture_expand_path(cap.file, cap.path, suffixed);

	if (rv < 0)
		return rv;
	fd = open(cap.file, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | how, 0600);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		/* comments are written later at an earlier offset, which a pipe does not support */
		close(fd);
		return -ESPIPE;
	}
	cap.fd = fd;
	cap.end = 0;
	cap.limit = capture_size_limit();
	cap.n_interfaces = 0;
	cap.forked = false;
	cap.generation = ++cap.generations;
	return write_section_header();
}

static void capture_take_lock_before_fork(void)
{
	capture_take_lock();
}

static void capture_release_lock_in_fork_parent(void)
{
	capture_release_lock();
}

static void capture_reset_in_fork_child(void)
{
	pthread_mutex_init(&lock, NULL);
	siw_cancel_restore(cap.cancel);
	cap.forked = cap.generation != 0;
}

static void capture_register_fork_handlers(void)
{
	/*
	 * Without this handler a forked child would write into its parent's file. pthread_atfork
	 * fails only if memory is exhausted.
	 */
	if (pthread_atfork(capture_take_lock_before_fork, capture_release_lock_in_fork_parent,
			   capture_reset_in_fork_child))
		abort();
}

static int capture_start_file(const char *path, bool shared)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int rv = -EBUSY;

	if (strlen(path) >= sizeof(cap.path))
		return -ENAMETOOLONG;
	pthread_once(&once, capture_register_fork_handlers);
	capture_take_lock();
	if (!cap.generation || cap.forked) {
		if (cap.forked)
			close(cap.fd);
		cap.generation = 0;
		cap.forked = false;
		strcpy(cap.path, path);
		rv = capture_open_file(false, shared ? O_EXCL : O_TRUNC);
		if (rv == -EEXIST)
			rv = capture_open_file(true, O_EXCL);
		atomic_store_explicit(&siw_capture_active, rv == 0, memory_order_relaxed);
	}
	capture_release_lock();
	return rv;
}

int siw_capture_open(const char *path)
{
	return capture_start_file(path, false);
}

void siw_capture_close(void)
{
	capture_take_lock();
	atomic_store_explicit(&siw_capture_active, 0, memory_order_relaxed);
	if (cap.generation)
		close(cap.fd);
	cap.generation = 0;
	cap.forked = false;
	capture_release_lock();
}

static void capture_start_if_set_in_environment(void)
{
	const char *path = siw_setting_get_capture_path();
	int rv = path ? capture_start_file(path, true) : 0;

	if (rv == -EEXIST)
		siw_log_warn_user(
			"cannot capture to %s or %s: both exist; remove them, or use %%p for the PID",
			path, cap.file);
	else if (rv < 0 && rv != -EBUSY)
		siw_log_warn_user("cannot capture to %s: %s", path, strerror(-rv));
}

void siw_capture_init(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, capture_start_if_set_in_environment);
}

/* ---- captured packets ------------------------------------------------------------------------ */

uint64_t siw_capture_time_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t siw_capture_lock(void)
{
	capture_take_lock();
	return siw_capture_time_ns();
}

void siw_capture_unlock(void)
{
	capture_release_lock();
}

uint32_t siw_capture_current_file_number(void)
{
	int rv;

	if (!cap.forked)
		return cap.generation;
	close(cap.fd);
	cap.forked = false;
	cap.generation = 0;
	rv = capture_open_file(!strstr(cap.path, "%p"), O_EXCL);
	if (rv < 0) {
		siw_log_warn_user("cannot capture this child to %s: %s", cap.file, strerror(-rv));
		atomic_store_explicit(&siw_capture_active, 0, memory_order_relaxed);
	}
	return cap.generation;
}

int siw_capture_find_or_add_interface(const char *name)
{
	uint8_t nanoseconds = 9;
	int i;

	for (i = 0; i < cap.n_interfaces; i++)
		if (strncmp(cap.interfaces[i], name, sizeof(cap.interfaces[i])) == 0)
			return i;
	if (!cap.generation || i == MAX_INTERFACES)
		return 0;
	capture_begin_block(BLOCK_INTERFACE);
	capture_append_uint32(1); /* link type: Ethernet */
	capture_append_uint32(0); /* no snapshot length limit */
	capture_append_option(OPT_NAME, name, strlen(name));
	capture_append_option(OPT_RESOLUTION, &nanoseconds, 1);
	capture_append_option(OPT_END, "", 0);
	if (capture_write_block())
		return 0;
	snprintf(cap.interfaces[i], sizeof(cap.interfaces[i]), "%s", name);
	return cap.n_interfaces++;
}

void siw_capture_write(const struct siw_capture_packet *p)
{
	static const uint8_t room[ROOM];
	uint32_t flags = p->sent ? 2 : 1, captured;
	off_t where = 0;

	if (!cap.generation)
		return;
	capture_begin_block(BLOCK_PACKET);
	capture_append_uint32((uint32_t)p->interface);
	capture_append_uint32((uint32_t)(p->when_ns >> 32));
	capture_append_uint32((uint32_t)p->when_ns);
	captured = (uint32_t)siw_capture_packet_build(p, cap.block + cap.len + 8);
	capture_append_uint32(captured);
	capture_append_uint32(captured + (uint32_t)p->missing);
	cap.len += captured;
	capture_pad_to_32_bits();
	capture_append_option(OPT_FLAGS, &flags, sizeof(flags));
	if (!p->tcp && !p->sent) {
		where = cap.end + (off_t)cap.len;
		capture_append_option(OPT_ROOM, room, ROOM);
	}
	capture_append_option(OPT_END, "", 0);
	if (capture_write_block() == 0 && where) {
		last.generation = cap.generation;
		last.room = where;
	}
}

void siw_capture_note_drop_reason(int why)
{
	static const char prefix[] = "datagrams dropped: ";
	const char *help = siw_counter_help(why);
	uint8_t room[4 + ROOM] = { 0 };
	uint16_t head[2] = { OPT_COMMENT, 0 };
	uint16_t rest[2] = { OPT_ROOM, 0 };
	size_t used;
	int n;

	if (strncmp(help, prefix, sizeof(prefix) - 1) == 0)
		help += sizeof(prefix) - 1;
	/* The unused part of the reserved space must hold at least an option header. */
	n = snprintf((char *)room + 4, ROOM - 4 + 1, "%s: %s", siw_counter_name(why), help);
	if (n > ROOM - 4)
		n = ROOM - 4;
	used = (size_t)(n + 3) / 4 * 4;
	head[1] = (uint16_t)n;
	memcpy(room, head, sizeof(head));
	rest[1] = (uint16_t)(ROOM - used - sizeof(rest));
	memset(room + 4 + n, 0, ROOM - (size_t)n);
	memcpy(room + 4 + used, rest, sizeof(rest));
	capture_take_lock();
	if (last.generation && last.generation == cap.generation && !cap.forked &&
	    pwrite(cap.fd, room, sizeof(room), last.room) != (ssize_t)sizeof(room))
		capture_end_after_error("writing a comment");
	last.generation = 0;
	capture_release_lock();
}
