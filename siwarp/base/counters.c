/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/counters.c - see counters.h.
 *
 * The counters file of a process stays open and locked by flock(2) while the process lives. A
 * process that obtains the lock therefore knows that the owner has exited, even across PID
 * namespaces that share the folder, and may remove the file. Files are created, locked and removed
 * under a lock on the folder.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/os.h"
#include "base/counters.h"
#include "base/lock.h"
#include "base/settings.h"

#define MS_NS 1000000

static struct siw_counters_page private_page;
struct siw_counters_page *_Atomic siw_counters_page = &private_page;
_Atomic uint32_t siw_counters_event_loops;

/*
 * State of this process's counters file, protected by `lock`, which the fork handlers acquire and
 * release.
 */
static siw_lock_t lock = SIW_LOCK_INIT;
static struct {
	pid_t pid;	 /* the process that called siw_counters_init, or 0 */
	int fd;		 /* the counters file, locked by flock; -1 if there is none */
	char path[4096]; /* path of the counters file; "" if there is none */
} own = { .fd = -1 };

static const struct {
	const char *name, *help;
} table[] = {
#define X(name, help) { #name, help },
	SIW_COUNTERS(X)
#undef X
};

/*
 * Returns when this process started, in clock ticks since boot: field 22 of /proc/self/stat. Fields
 * are counted from the closing parenthesis of the process name, which may contain blanks.
 */
static uint64_t process_start_ticks(void)
{
	char buf[1024], *p;
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return 0;
	n = read(fd, buf, sizeof(buf) - 1);
	close(fd);
	if (n <= 0)
		return 0;
	buf[n] = 0;
	p = strrchr(buf, ')');
	for (int field = 2; p && field < 22; field++)
		p = strchr(p + 1, ' ');
	return p ? strtoull(p, NULL, 10) : 0;
}

/*
 * Locks the folder of counters files. Other processes of the user hold this lock for a few
 * microseconds only; the retries are limited so that a hung process does not block this process.
 */
static bool lock_counters_folder(int dir)
{
	for (int i = 0; i < 50; i++) {
		if (flock(dir, LOCK_EX | LOCK_NB) == 0)
			return true;
		if (errno != EWOULDBLOCK && errno != EINTR)
			return false;
		siw_sleep_real_ns(MS_NS);
	}
	return false;
}

/*
 * Opens and locks the folder of counters files, creating the folder if necessary. Returns -1 after
 * an error, or if the folder is not safe to use.
 */
static int open_and_lock_counters_folder(const char *path)
{
	struct stat st;
	int dir;

	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -1;
	dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0)
		return -1;
	if (fstat(dir, &st) < 0 || st.st_uid != geteuid() || (st.st_mode & 07777) != 0700 ||
	    !lock_counters_folder(dir)) {
		close(dir);
		return -1;
	}
	return dir;
}

/* Removes a counters file if the process that owns it has exited. Files of other users are kept. */
static void remove_counters_file_if_stale(int dir, const char *name)
{
	int fd = openat(dir, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	    flock(fd, LOCK_EX | LOCK_NB) == 0)
		unlinkat(dir, name, 0);
	close(fd);
}

static void remove_stale_counters_files(int dir)
{
	int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *e;

	if (!d) {
		if (copy >= 0)
			close(copy);
		return;
	}
	while ((e = readdir(d)))
		if (e->d_name[0] && !e->d_name[strspn(e->d_name, "0123456789")])
			remove_counters_file_if_stale(dir, e->d_name);
	closedir(d);
}

/*
 * Creates, locks and sizes the counters file. Returns the mapping of the file, or NULL after
 * removing the file.
 */
static struct siw_counters_page *counters_create_file(int dir, const char *name, int *out)
{
	const size_t size = sizeof(struct siw_counters_page);
	int fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	void *p = MAP_FAILED;

	if (fd < 0)
		return NULL;
	/*
	 * With posix_fallocate a full file system fails here instead of raising SIGBUS when a
	 * counter is written.
	 */
	if (flock(fd, LOCK_EX | LOCK_NB) == 0 && posix_fallocate(fd, 0, (off_t)size) == 0)
		p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		unlinkat(dir, name, 0);
		close(fd);
		return NULL;
	}
	*out = fd;
	return p;
}

static void counters_init_page(struct siw_counters_page *p)
{
	uint64_t magic;
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	p->version = SIW_COUNTERS_VERSION;
	p->count = SIW_COUNTER_N;
	p->pid = (uint32_t)getpid();
	p->start_ticks = process_start_ticks();
	p->opened_ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	for (int i = 0; i < SIW_COUNTER_N; i++) {
		p->value[i] = atomic_load_explicit(&private_page.value[i], memory_order_relaxed);
		snprintf(p->name[i], sizeof(p->name[i]), "%s", table[i].name);
	}
	/* The magic is stored last: a reader that sees the magic sees all other fields. */
	memcpy(&magic, SIW_COUNTERS_MAGIC, sizeof(magic));
	atomic_store_explicit(&p->magic, magic, memory_order_release);
}

static bool create_own_counters_file(const char *folder)
{
	struct siw_counters_page *p;
	char name[16];
	int dir = open_and_lock_counters_folder(folder);

	if (dir < 0)
		return false;
	remove_stale_counters_files(dir);
	snprintf(name, sizeof(name), "%d", (int)getpid());
	p = counters_create_file(dir, name, &own.fd);
	close(dir); /* close() also releases the lock on the folder */
	if (!p)
		return false;
	counters_init_page(p);
	snprintf(own.path, sizeof(own.path), "%s/%s", folder, name);
	atomic_store_explicit(&siw_counters_page, p, memory_order_release);
	return true;
}

static void lock_before_fork(void)
{
	siw_lock(&lock);
}

static void unlock_in_fork_parent(void)
{
	siw_unlock(&lock);
}

/*
 * Resets the counters of a forked child to 0 and closes the child's copy of the parent's counters
 * file.
 */
static void reset_counters_in_child(void)
{
	struct siw_counters_page *p =
		atomic_load_explicit(&siw_counters_page, memory_order_relaxed);

	memset(&private_page, 0, sizeof(private_page));
	atomic_store_explicit(&siw_counters_page, &private_page, memory_order_release);
	if (p != &private_page)
		munmap(p, sizeof(*p));
	if (own.fd >= 0)
		siw_close_fd(own.fd);
	own.fd = -1;
	own.pid = 0;
	own.path[0] = 0;
	siw_unlock(&lock);
}

void siw_counters_init(void)
{
	static bool watching_fork;
	const char *run = siw_trusted_getenv("XDG_RUNTIME_DIR");
	int cancel = siw_cancel_disable();
	char folder[4000];

	siw_lock(&lock);
	if (own.pid)
		goto out;
	own.pid = getpid();
	if (!watching_fork &&
	    pthread_atfork(lock_before_fork, unlock_in_fork_parent, reset_counters_in_child))
		/*
		 * no counters file, because without fork handlers a child would write to its
		 * parent's page
		 */
		goto out;
	watching_fork = true;
	if (run && run[0] == '/' && strlen(run) < sizeof(folder) - 16) {
		snprintf(folder, sizeof(folder), "%s/siwarp", run);
		if (create_own_counters_file(folder))
			goto out;
	}
	snprintf(folder, sizeof(folder), "/tmp/siwarp-%u", (unsigned)geteuid());
	create_own_counters_file(folder);
out:
	siw_unlock(&lock);
	siw_cancel_restore(cancel);
}

/*
 * Removes this process's counters file at exit. The page stays mapped, because other threads may
 * still write counters. The PID test detects a child that did not run the fork handlers (vfork,
 * clone); the inode test detects another file that has replaced the file of this process.
 */
__attribute__((destructor)) static void remove_own_counters_file(void)
{
	struct stat here, there;

	if (!own.path[0] || own.pid != getpid())
		return;
	if (fstat(own.fd, &here) == 0 && lstat(own.path, &there) == 0 &&
	    here.st_dev == there.st_dev && here.st_ino == there.st_ino)
		unlink(own.path);
}

static bool counters_is_valid_index(int c)
{
	return c >= 0 && c < SIW_COUNTER_N;
}

int siw_counters_count(void)
{
	return SIW_COUNTER_N;
}

uint64_t siw_counter_get(int c)
{
	struct siw_counters_page *p =
		atomic_load_explicit(&siw_counters_page, memory_order_acquire);

	return counters_is_valid_index(c) ? atomic_load_explicit(&p->value[c], memory_order_relaxed)
					  : 0;
}

const char *siw_counter_name(int c)
{
	return counters_is_valid_index(c) ? table[c].name : NULL;
}

const char *siw_counter_help(int c)
{
	return counters_is_valid_index(c) ? table[c].help : NULL;
}

const char *siw_counters_path(void)
{
	const char *path;

	siw_lock(&lock);
	path = own.path[0] ? own.path : NULL;
	siw_unlock(&lock);
	return path;
}

void siw_counters_add_for_tests(int c, uint64_t n)
{
	if (counters_is_valid_index(c))
		siw_count((enum siw_counter)c, n);
}
