/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_wait.c - sleeping until one of several pollers has work, and event descriptors (eventfd).
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "llp/llp_fault.h"
#include "llp/llp_sock.h"

/*
 * Returns whether a socket is marked ready. The edge-triggered event of such a socket is consumed,
 * so epoll will not report the socket again and no thread may sleep.
 */
static bool has_ready_socket(const struct siw_llp_poller *poller)
{
	if (poller->n_ring)
		return true;
	for (int i = 0; i < poller->n_hot; i++)
		if (poller->hot[i]->ready)
			return true;
	return false;
}

void siw_llp_poller_wake_if_work_left(struct siw_llp_poller *poller, bool more)
{
	if (more || has_ready_socket(poller))
		siw_llp_poller_invalidate_wait_sets(poller);
}

/*
 * Returns whether the socket waits for space in its send buffer. Packets held back by a fault plan
 * are not counted, because they are released by time.
 */
static bool waits_for_send_buffer_space(const struct siw_llp_sock *sock)
{
	return atomic_load_explicit(&sock->want_write, memory_order_seq_cst) &&
	       !siw_llp_fault_is_stream_full(sock);
}

uint64_t siw_llp_poller_next_due_ns(const struct siw_llp_poller *poller)
{
	uint64_t faults = siw_llp_fault_wake_time_ns(poller);
	uint64_t own = has_ready_socket(poller) ? SIW_LLP_DUE_NOW
		       : poller->n_stalled	? poller->stalled_until
						: 0;
	uint64_t timed = atomic_load_explicit(&poller->timed_due, memory_order_seq_cst);

	if (timed != UINT64_MAX && (!own || timed < own))
		own = timed;
	return !own || (faults && faults < own) ? faults : own;
}

void siw_llp_waitset_fill(struct siw_llp_poller *poller, struct siw_llp_waitset *set)
{
	int hot;

	set->poller = poller;
	/*
	 * The counter changes is loaded before want_write. siw_llp_request_write_event() stores
	 * want_write before it increments changes, so if the old want_write is found here, the wait
	 * set counts as incomplete.
	 */
	set->changes = atomic_load_explicit(&poller->changes, memory_order_seq_cst);
	set->n = 0;
	hot = atomic_load_explicit(&poller->armed, memory_order_relaxed) ? 0 : poller->n_hot;
	for (int i = 0; i < hot; i++) {
		set->out[set->n] = waits_for_send_buffer_space(poller->hot[i]);
		set->fds[set->n++] = poller->hot[i]->fd;
		poller->hot[i]->in_wait_set = true;
	}
	set->out[set->n] = false;
	set->fds[set->n++] = poller->epfd;
	set->due_ns = siw_llp_poller_next_due_ns(poller);
	poller->after_sleep = true;
}

/*
 * Returns the maximum duration of the wait in nanoseconds, or -1 for no limit. due_ns: when the
 * first of the pollers has packets or timers due, UINT64_MAX: never. Sets *due to whether the wait
 * is limited by that time.
 */
static int64_t wait_duration_ns(uint64_t due_ns, int64_t timeout_us, bool *due)
{
	int64_t ns = timeout_us;
	uint64_t now;

	if (timeout_us > INT64_MAX / 1000)
		ns = INT64_MAX;
	else if (timeout_us > 0)
		ns = timeout_us * 1000;
	*due = false;
	if (due_ns == UINT64_MAX)
		return ns;
	now = siw_now_ns();
	if (due_ns <= now) {
		*due = true;
		return 0;
	}
	if (ns < 0 || due_ns - now < (uint64_t)ns) {
		*due = true;
		ns = (int64_t)(due_ns - now);
	}
	return ns;
}

/* The wait sets of one wait. */
struct wait_sets {
	const struct siw_llp_waitset *sets;
	int n;
};

#define SET_FDS (sizeof(((struct siw_llp_waitset *)0)->fds) / sizeof(int))

struct sleep {
	nfds_t n;
	int64_t ns; /* maximum sleep in ns; -1: no limit */
	/* the first n are set: the array is too large to be cleared in each wait */
	struct pollfd fds[SIW_LLP_MAX_WAITSETS * SET_FDS + 1];
};

/*
 * Sleeps until a descriptor is ready. Returns 1 if a descriptor is ready, 0 after the time-out, or
 * -errno.
 */
static int sleep_until_descriptor_ready(struct sleep *how)
{
	struct timespec t = { how->ns / 1000000000, how->ns % 1000000000 };
	int rv = ppoll(how->fds, how->n, how->ns < 0 ? NULL : &t, NULL);

	return rv < 0 ? -errno : rv > 0;
}

static void increment_sleeper_counts(const struct wait_sets *on)
{
	for (int i = 0; i < on->n; i++)
		if (on->sets[i].poller)
			atomic_fetch_add_explicit(&on->sets[i].poller->sleepers, 1,
						  memory_order_seq_cst);
}

static void decrement_sleeper_counts(void *arg)
{
	const struct wait_sets *on = arg;

	for (int i = 0; i < on->n; i++)
		if (on->sets[i].poller)
			atomic_fetch_sub_explicit(&on->sets[i].poller->sleepers, 1,
						  memory_order_seq_cst);
}

/* Returns whether a wait set has become incomplete since it was filled. */
static bool has_incomplete_wait_set(const struct wait_sets *on)
{
	for (int i = 0; i < on->n; i++)
		if (on->sets[i].poller &&
		    atomic_load_explicit(&on->sets[i].poller->changes, memory_order_seq_cst) !=
			    on->sets[i].changes)
			return true;
	return false;
}

/*
 * Sleeps like sleep_until_descriptor_ready(), but returns 1 if a wait set has become incomplete.
 */
static int sleep_on_wait_sets(struct wait_sets *on, struct sleep *how)
{
	int rv;

	/*
	 * sleepers is incremented before changes is loaded, and
	 * siw_llp_poller_invalidate_wait_sets() increments changes before it loads sleepers: this
	 * thread either notices the change or is woken.
	 */
	increment_sleeper_counts(on);
	pthread_cleanup_push(decrement_sleeper_counts, on);
	if (has_incomplete_wait_set(on))
		rv = 1;
	else
		rv = sleep_until_descriptor_ready(how);
	pthread_cleanup_pop(1);
	return rv;
}

static void add_descriptor(struct sleep *how, int fd, bool out)
{
	how->fds[how->n++] = (struct pollfd){ fd, out ? POLLIN | POLLOUT : POLLIN, 0 };
}

int siw_llp_wait_any_cancellable(const struct siw_llp_waitset *sets, int n, int extra_fd,
				 int64_t timeout_us)
{
	struct wait_sets on = { sets, n };
	uint64_t due_ns = UINT64_MAX;
	struct sleep how;
	bool due;
	int rv;

	how.n = 0;
	for (int i = 0; i < n; i++) {
		for (int fd = 0; fd < sets[i].n; fd++)
			add_descriptor(&how, sets[i].fds[fd], sets[i].out[fd]);
		if (sets[i].due_ns && sets[i].due_ns < due_ns)
			due_ns = sets[i].due_ns;
	}
	if (extra_fd >= 0)
		add_descriptor(&how, extra_fd, false);
	how.ns = wait_duration_ns(due_ns, timeout_us, &due);
	rv = sleep_on_wait_sets(&on, &how);
	return rv == 0 && due ? 1 : rv;
}

int siw_llp_wait_any(const struct siw_llp_waitset *sets, int n, int extra_fd, int64_t timeout_us)
{
	int cancel = siw_cancel_disable();
	int rv = siw_llp_wait_any_cancellable(sets, n, extra_fd, timeout_us);

	siw_cancel_restore(cancel);
	return rv;
}

int siw_llp_wait_cancellable(const struct siw_llp_waitset *set, int extra_fd, int64_t timeout_us)
{
	return siw_llp_wait_any_cancellable(set, 1, extra_fd, timeout_us);
}

int siw_llp_wait(const struct siw_llp_waitset *set, int extra_fd, int64_t timeout_us)
{
	return siw_llp_wait_any(set, 1, extra_fd, timeout_us);
}

int siw_llp_event_fd_open(void)
{
	siw_llp_fd_creation_begin();
	return siw_llp_fd_creation_done(eventfd(0, EFD_CLOEXEC));
}

void siw_llp_event_fd_set(int fd)
{
	uint64_t one = 1;

	/* EAGAIN means that the counter is at its maximum, so the event is set already. */
	while (syscall(SYS_write, fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

/* Clears the event descriptor like read(), but never blocks. For kernels before 5.8. */
static void clear_event_without_blocking(int fd)
{
	struct pollfd set = { .fd = fd, .events = POLLIN };
	int cancel = siw_cancel_disable();
	uint64_t count;

	if (poll(&set, 1, 0) == 1)
		while (read(fd, &count, sizeof(count)) < 0 && errno == EINTR)
			;
	siw_cancel_restore(cancel);
}

void siw_llp_event_fd_clear(int fd)
{
	uint64_t count;
	struct iovec to = { &count, sizeof(count) };
	ssize_t n;

	/*
	 * The loop does not rely on O_NONBLOCK, because the program may have changed the flag, and
	 * may have read the descriptor itself.
	 */
	do
		n = syscall(SYS_preadv2, fd, &to, 1, -1l, -1l, RWF_NOWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EOPNOTSUPP)
		clear_event_without_blocking(fd);
}

bool siw_llp_event_fd_is_nonblocking(int fd)
{
	return fcntl(fd, F_GETFL) & O_NONBLOCK;
}

void siw_llp_event_fd_close(int fd)
{
	siw_llp_fd_close(fd);
}
