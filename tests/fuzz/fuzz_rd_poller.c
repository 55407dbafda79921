/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The llp functions that devices and queue pairs call in addition to those of fuzz_rd_net.c: a
 * poller for the sockets of that network, one interface, and event descriptors that no thread waits
 * for. Random numbers are the same in each run.
 */
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/random.h>

#include "fuzz_rd.h"
#include "llp/llp_fault.h"

/* ---- the machine, replaced with the linker's --wrap ------------------------------------------ */

int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
	return fuzz_clock_gettime(clock, t);
}

int __wrap_sched_yield(void);
int __wrap_sched_yield(void)
{
	/*
	 * does not yield the CPU: the fuzzer has one thread, and other programs must not delay it
	 */
	return 0;
}

ssize_t __wrap_getrandom(void *buf, size_t len, unsigned int flags);
ssize_t __wrap_getrandom(void *buf, size_t len, unsigned int flags)
{
	static uint8_t next;

	(void)flags;
	if (net.reseed)
		next = 0;
	net.reseed = false;
	for (size_t i = 0; i < len; i++)
		((uint8_t *)buf)[i] = next += 89;
	return (ssize_t)len;
}

/* ---- the poller ------------------------------------------------------------------------------ */

int siw_llp_poller_open(const struct siw_llp_poller *sibling, struct siw_llp_poller **out)
{
	(void)sibling;
	CHECK(!posix_memalign((void **)out, _Alignof(struct siw_llp_poller), sizeof(**out)));
	memset(*out, 0, sizeof(**out));
	(*out)->owner = getpid();
	(*out)->room = malloc(SIW_LLP_ROOM);
	CHECK((*out)->room);
	return 0;
}

void siw_llp_poller_close(struct siw_llp_poller *poller)
{
	for (int i = 0; i < ENDS; i++)
		CHECK(!net.end[i].sock || net.end[i].sock->poller != poller);
	free(poller->room);
	free(poller);
}

int siw_llp_poller_poll(struct siw_llp_poller *poller, struct siw_io_handler **handlers, int n)
{
	int found = 0;

	for (int i = 0; i < ENDS && found < n; i++) {
		struct siw_llp_sock *sock = net.end[i].sock;
		bool due = sock && atomic_load(&sock->due_ns) <= net.now;

		if (!sock || sock->poller != poller || (!net.end[i].up && !due))
			continue;
		net.end[i].up = false;
		if (due)
			atomic_store(&sock->due_ns, UINT64_MAX);
		handlers[found++] = sock->handler;
	}
	return found;
}

uint64_t siw_llp_poller_recent_time_ns(const struct siw_llp_poller *poller)
{
	(void)poller;
	return net.now;
}

int siw_llp_poller_arm_for_sleep(struct siw_llp_poller *poller)
{
	(void)poller;
	return 0;
}

void siw_llp_poller_disarm(struct siw_llp_poller *poller)
{
	(void)poller;
}

bool siw_llp_poller_is_armed(const struct siw_llp_poller *poller)
{
	(void)poller;
	return false;
}

void siw_llp_poller_wake(struct siw_llp_poller *poller)
{
	(void)poller;
}

void siw_llp_poller_wake_if_work_left(struct siw_llp_poller *poller, bool more)
{
	(void)poller, (void)more;
}

uint8_t *siw_llp_poller_rx_buffer(struct siw_llp_poller *poller)
{
	return poller->room;
}

uint8_t *siw_llp_batch_buffer_acquire(struct siw_llp_poller *poller)
{
	(void)poller;
	return NULL;
}

void siw_llp_batch_buffer_return(struct siw_llp_poller *poller, uint8_t *batch)
{
	(void)poller, (void)batch;
}

void siw_llp_waitset_fill(struct siw_llp_poller *poller, struct siw_llp_waitset *set)
{
	memset(set, 0, sizeof(*set));
	set->poller = poller;
}

/* Advances the simulated time instead of sleeping. */
int siw_llp_wait_any(const struct siw_llp_waitset *sets, int n, int extra_fd, int64_t timeout_us)
{
	(void)sets, (void)n, (void)extra_fd;
	net.now += timeout_us > 0 ? (uint64_t)timeout_us * 1000 : 1000000;
	return 1;
}

int siw_llp_wait_any_cancellable(const struct siw_llp_waitset *sets, int n, int extra_fd,
				 int64_t timeout_us)
{
	return siw_llp_wait_any(sets, n, extra_fd, timeout_us);
}

int siw_llp_wait(const struct siw_llp_waitset *set, int extra_fd, int64_t timeout_us)
{
	return siw_llp_wait_any(set, 1, extra_fd, timeout_us);
}

int siw_llp_wait_cancellable(const struct siw_llp_waitset *set, int extra_fd, int64_t timeout_us)
{
	return siw_llp_wait_any(set, 1, extra_fd, timeout_us);
}

/* ---- descriptors and the interface ----------------------------------------------------------- */

int siw_llp_event_fd_open(void)
{
	return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

bool siw_llp_event_fd_is_nonblocking(int fd)
{
	(void)fd;
	return true;
}

void siw_llp_event_fd_set(int fd)
{
	(void)fd;
}

void siw_llp_event_fd_clear(int fd)
{
	(void)fd;
}

void siw_llp_event_fd_close(int fd)
{
	close(fd);
}

/* No event loop waits on a CQ of the harness. */
void siw_llp_event_loop_fd_close(struct siw_llp_event_loop_fd *loop)
{
	CHECK(!loop);
}

int siw_llp_list_interfaces(struct siw_llp_interface *out, int max)
{
	CHECK(max > 0);
	*out = (struct siw_llp_interface){ .name = "fuzz", .mtu = 1500, .up = 1, .n_addrs = ENDS };
	for (int i = 0; i < ENDS; i++) {
		out->addrs[i] = fuzz_addr_from_index(i);
		out->addrs[i].port_be = 0;
	}
	return 1;
}

int siw_llp_interface_watch_open(struct siw_llp_poller *poller, const char *name,
				 struct siw_io_handler *handler, struct siw_llp_watch **out)
{
	(void)poller, (void)name, (void)handler;
	*out = NULL;
	return 0;
}

int siw_llp_interface_watch_read(struct siw_llp_watch *watch)
{
	(void)watch;
	return 0;
}

void siw_llp_interface_watch_close(struct siw_llp_watch *watch)
{
	(void)watch;
}

void siw_llp_set_handler(struct siw_llp_sock *sock, struct siw_io_handler *handler)
{
	sock->handler = handler;
}

void siw_llp_update_want_write(struct siw_llp_sock *sock, bool want)
{
	(void)sock, (void)want;
}
