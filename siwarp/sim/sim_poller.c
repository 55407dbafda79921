/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sim/sim_poller.c - the functions of llp.h except those of UDP and TCP: pollers, sockets and their
 * addresses, waiting, event descriptors and interfaces.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/settings.h"
#include "sim/sim_impl.h"

#define FIRST_FREE_PORT 32768
#define FREE_PORTS	28232

static uint64_t simulated_time_of_monotonic(uint64_t ns)
{
	return ns == SIM_NEVER ? SIM_NEVER : ns > SIW_SIM_MONOTONIC ? ns - SIW_SIM_MONOTONIC : 0;
}

/* ---- scheduling of a poller ------------------------------------------------------------------ */

void sim_poller_request_schedule_update(struct siw_llp_poller *poller)
{
	if (siw_link_empty(&poller->due))
		siw_link_add(&sim.due, &poller->due);
}

/* A descriptor for an event loop: an event descriptor, set while the poller has work. */
struct siw_llp_event_loop_fd {
	struct siw_llp_poller *poller;
	struct siw_link of_poller;
	int fd;
	bool set; /* by siw_llp_event_loop_fd_signal() */
	bool readable;
};

static void event_loop_fd_update(struct siw_llp_event_loop_fd *loop)
{
	bool work = loop->poller->n_ring || loop->poller->woken, readable = work || loop->set;

	if (readable == loop->readable)
		return;
	loop->readable = readable;
	if (readable)
		siw_llp_event_fd_set(loop->fd);
	else
		siw_llp_event_fd_clear(loop->fd);
	/* As the progress thread of a real device, wait for nap_us before serving the poller. */
	if (work && loop->poller->nap_until <= sim.now)
		loop->poller->nap_until = sim.now + (uint64_t)siw_settings()->nap_us * 1000;
}

static void poller_update_event_loop_fds(struct siw_llp_poller *poller)
{
	for (struct siw_link *l = poller->loops.next; l != &poller->loops; l = l->next)
		event_loop_fd_update(siw_container(l, struct siw_llp_event_loop_fd, of_poller));
}

void sim_poller_wake(struct siw_llp_poller *poller)
{
	poller_update_event_loop_fds(poller);
	sim_wake_all(&poller->waiters);
	sim_poller_request_schedule_update(poller);
}

static void poller_timer_fire(struct sim_timer *timer)
{
	struct siw_llp_poller *poller = siw_container(timer, struct siw_llp_poller, timer);

	poller->nap_over |= poller->nap_until == timer->at;
	sim_poller_request_schedule_update(poller);
}

static void poller_schedule_progress_round(struct siw_llp_poller *poller)
{
	if (poller->has_work)
		return;
	poller->has_work = true;
	sim.work = sim_grow_array(sim.work, sim.n_work, &sim.work_room,
				  sizeof(struct siw_llp_poller *));
	sim.work[sim.n_work++] = poller;
}

void sim_poller_update_schedule(struct siw_llp_poller *poller)
{
	uint64_t due, tick;

	if (!poller->served)
		return;
	due = simulated_time_of_monotonic(poller->timed_due);
	tick = simulated_time_of_monotonic(sim_device_next_tick_ns(poller));
	if (tick < due)
		due = tick;
	if (due <= sim.now || poller->nap_over ||
	    ((poller->n_ring || poller->woken) && siw_link_empty(&poller->waiters) &&
	     sim.now >= poller->nap_until)) {
		poller_schedule_progress_round(poller);
		return;
	}
	if (sim.now < poller->nap_until && poller->nap_until < due)
		due = poller->nap_until;
	sim_timer_set(&poller->timer, due);
	if (due == SIM_NEVER)
		sim_timer_stop(&poller->timer);
}

int siw_llp_poller_open(const struct siw_llp_poller *sibling, struct siw_llp_poller **out)
{
	struct siw_llp_poller *poller;

	if (!sim.open)
		return -ENODEV;
	poller = sim_alloc(sizeof(*poller));
	poller->room = sim_alloc(SIW_LLP_ROOM);
	poller->owner = getpid();
	poller->timed_due = SIM_NEVER;
	poller->timer.fire = poller_timer_fire;
	/* A socket that connects from the wildcard address gets the poller's host. */
	poller->host = sibling ? sibling->host : NULL;
	siw_link_init(&poller->ring);
	siw_link_init(&poller->socks);
	siw_link_init(&poller->timed);
	siw_link_init(&poller->waiters);
	siw_link_init(&poller->loops);
	siw_link_init(&poller->due);
	siw_link_add(&sim.pollers, &poller->all);
	sim.n_pollers++;
	*out = poller;
	return 0;
}

void siw_llp_poller_close(struct siw_llp_poller *poller)
{
	if (!poller)
		return;
	sim_wake_all(&poller->waiters);
	sim_timer_stop(&poller->timer);
	siw_link_del(&poller->due);
	siw_link_del(&poller->all);
	for (uint32_t i = 0; i < sim.n_work; i++)
		if (sim.work[i] == poller)
			sim.work[i--] = sim.work[--sim.n_work];
	sim.n_pollers--;
	free(poller->room);
	free(poller);
}

bool siw_llp_poller_opened_by_this_process(const struct siw_llp_poller *poller)
{
	return getpid() == poller->owner;
}

static void poller_set_expired_socks_ready(struct siw_llp_poller *poller)
{
	if (sim_monotonic_ns() < poller->timed_due)
		return;
	poller->timed_due = SIM_NEVER;
	for (struct siw_link *l = poller->timed.next; l != &poller->timed; l = l->next) {
		struct siw_llp_sock *sock = siw_container(l, struct siw_llp_sock, in_timed);

		if (sock->due_ns > sim_monotonic_ns()) {
			if (sock->due_ns < poller->timed_due)
				poller->timed_due = sock->due_ns;
			continue;
		}
		sock->due_ns = SIM_NEVER;
		siw_llp_sock_mark_ready(sock);
	}
}

int siw_llp_poller_poll(struct siw_llp_poller *poller, struct siw_io_handler **handlers, int n)
{
	int found = 0;

	poller->woken = false;
	poller_set_expired_socks_ready(poller);
	if (!sim.in_round)
		poller->nap_until = sim.now + (uint64_t)siw_settings()->nap_us * 1000;
	for (uint32_t left = poller->n_ring; left && found < n; left--) {
		struct siw_link *l = poller->ring.next;

		siw_link_del(l);
		siw_link_add(&poller->ring, l);
		handlers[found++] = siw_container(l, struct siw_llp_sock, ring)->handler;
	}
	sim.handed += (uint64_t)found;
	poller_update_event_loop_fds(poller);
	sim_poller_request_schedule_update(poller);
	return found;
}

void siw_llp_poller_wake_if_work_left(struct siw_llp_poller *poller, bool more)
{
	if (more || poller->n_ring) {
		poller->changes++;
		poller->nap_over |= more;
		sim_poller_wake(poller);
	}
}

uint64_t siw_llp_poller_recent_time_ns(const struct siw_llp_poller *poller)
{
	(void)poller;
	return sim_monotonic_ns();
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

/*
 * Returns whether an event of the poller's sockets starts a progress round, as it would wake the
 * progress thread of a real device. No event does so within nap_us after a poll by another thread.
 */
bool siw_llp_poller_is_armed(const struct siw_llp_poller *poller)
{
	return poller->served && sim.now >= poller->nap_until;
}

void siw_llp_poller_wake(struct siw_llp_poller *poller)
{
	poller->woken = true;
	poller->changes++;
	sim_poller_wake(poller);
}

uint8_t *siw_llp_poller_rx_buffer(struct siw_llp_poller *poller)
{
	return poller->room;
}

uint8_t *siw_llp_batch_buffer_acquire(struct siw_llp_poller *poller)
{
	(void)poller;
	return malloc(SIW_LLP_ROOM);
}

void siw_llp_batch_buffer_return(struct siw_llp_poller *poller, uint8_t *batch)
{
	(void)poller;
	free(batch);
}

bool siw_llp_poller_has_more_datagrams(const struct siw_llp_poller *poller)
{
	return poller->room_at < poller->room_end;
}

/* ---- waiting --------------------------------------------------------------------------------- */

void siw_llp_waitset_fill(struct siw_llp_poller *poller, struct siw_llp_waitset *set)
{
	memset(set, 0, sizeof(*set));
	set->poller = poller;
	set->changes = poller->changes;
	set->due_ns = poller->timed_due == SIM_NEVER ? 0 : poller->timed_due;
}

static bool waitset_has_event(const struct siw_llp_waitset *set)
{
	const struct siw_llp_poller *poller = set->poller;

	return poller && (poller->woken || poller->n_ring || poller->changes != set->changes);
}

int siw_llp_wait_any_cancellable(const struct siw_llp_waitset *sets, int n, int extra_fd,
				 int64_t timeout_us)
{
	struct sim_fd *extra = sim_fd_find(extra_fd);
	uint64_t until = SIM_NEVER, due = SIM_NEVER;
	bool event = extra && extra->set, woken;

	if (!sim.open)
		return 0;
	if (timeout_us >= 0 && (uint64_t)timeout_us < (SIM_NEVER - sim.now) / 1000)
		until = sim.now + (uint64_t)timeout_us * 1000;
	for (int i = 0; i < n; i++) {
		uint64_t at = sets[i].due_ns ? simulated_time_of_monotonic(sets[i].due_ns)
					     : SIM_NEVER;

		due = at < due ? at : due;
		event |= waitset_has_event(&sets[i]);
	}
	if (event) {
		sim_block_task(sim.now);
		return 1;
	}
	for (int i = 0; i < n; i++)
		if (sets[i].poller)
			sim_add_current_task_to_waiters(&sets[i].poller->waiters);
	if (extra)
		sim_add_current_task_to_waiters(&extra->waiters);
	woken = sim_block_task(due < until ? due : until);
	return woken || due < until;
}

int siw_llp_wait_any(const struct siw_llp_waitset *sets, int n, int extra_fd, int64_t timeout_us)
{
	return siw_llp_wait_any_cancellable(sets, n, extra_fd, timeout_us);
}

int siw_llp_wait_cancellable(const struct siw_llp_waitset *set, int extra_fd, int64_t timeout_us)
{
	return siw_llp_wait_any_cancellable(set, 1, extra_fd, timeout_us);
}

int siw_llp_wait(const struct siw_llp_waitset *set, int extra_fd, int64_t timeout_us)
{
	return siw_llp_wait_any_cancellable(set, 1, extra_fd, timeout_us);
}

/* ---- event descriptors, which are eventfds ---------------------- */

static struct sim_fd **fds; /* indexed by descriptor number */
static int n_fds;

struct sim_fd *sim_fd_find(int fd)
{
	return fd >= 0 && fd < n_fds ? fds[fd] : NULL;
}

int siw_llp_event_fd_open(void)
{
	int fd = eventfd(0, EFD_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (fd >= n_fds) {
		int n = n_fds ? n_fds : 64;

		while (n <= fd)
			n *= 2;
		fds = sim_internal_realloc(fds, (size_t)n * sizeof(*fds));
		if (!fds)
			abort();
		memset(fds + n_fds, 0, (size_t)(n - n_fds) * sizeof(*fds));
		n_fds = n;
	}
	fds[fd] = sim_alloc(sizeof(*fds[fd]));
	fds[fd]->fd = fd;
	siw_link_init(&fds[fd]->waiters);
	siw_link_init(&fds[fd]->members);
	return fd;
}

bool siw_llp_event_fd_is_nonblocking(int fd)
{
	return fcntl(fd, F_GETFL) & O_NONBLOCK;
}

/* Membership of an event descriptor in a descriptor set */
struct member {
	struct siw_sim_set *set;
	int fd;
	struct siw_link of_set, of_event;
	struct siw_link readable; /* link in the list of the set's readable descriptors */
};

static void event_set_readable_in_sets(struct sim_fd *event)
{
	for (struct siw_link *l = event->members.next; l != &event->members; l = l->next) {
		struct member *member = siw_container(l, struct member, of_event);

		if (siw_link_empty(&member->readable))
			siw_link_add(&member->set->readable, &member->readable);
		sim_wake_all(&member->set->waiters);
	}
}

static void event_clear_readable_in_sets(struct sim_fd *event)
{
	for (struct siw_link *l = event->members.next; l != &event->members; l = l->next)
		siw_link_del(&siw_container(l, struct member, of_event)->readable);
}

static void fd_set_remove_member(struct member *member)
{
	siw_link_del(&member->of_set);
	siw_link_del(&member->of_event);
	siw_link_del(&member->readable);
	free(member);
}

/*
 * Removes a closed descriptor from all descriptor sets. Each set reports the descriptor once more,
 * as closed.
 */
static void event_fd_report_closed(struct sim_fd *event)
{
	while (!siw_link_empty(&event->members)) {
		struct member *member = siw_container(event->members.next, struct member, of_event);
		struct siw_sim_set *set = member->set;

		fd_set_remove_member(member);
		set->gone =
			sim_grow_array(set->gone, set->n_gone, &set->gone_room, sizeof(*set->gone));
		set->gone[set->n_gone++] = event->fd;
		sim_wake_all(&set->waiters);
	}
}

void siw_llp_event_fd_set(int fd)
{
	struct sim_fd *event = sim_fd_find(fd);
	uint64_t one = 1;

	if (!event)
		return;
	if (!event->set && write(fd, &one, sizeof(one)) == (ssize_t)sizeof(one))
		event->set = true;
	sim_wake_all(&event->waiters);
	event_set_readable_in_sets(event);
}

void siw_llp_event_fd_clear(int fd)
{
	struct sim_fd *event = sim_fd_find(fd);
	struct pollfd readable = { .fd = fd, .events = POLLIN };
	uint64_t count;

	if (!event || !event->set)
		return;
	event->set = false;
	event_clear_readable_in_sets(event);
	/*
	 * Poll first, because read() would block if the program has already read the descriptor.
	 * preadv2() with RWF_NOWAIT is no alternative: Linux before 5.8 and qemu-user refuse it.
	 */
	if (poll(&readable, 1, 0) == 1 && read(fd, &count, sizeof(count)) < 0)
		perror("siwarp.sim: reading an event descriptor");
}

void siw_llp_event_fd_close(int fd)
{
	struct sim_fd *event = sim_fd_find(fd);

	if (!event)
		return;
	sim_wake_all(&event->waiters);
	event_fd_report_closed(event);
	fds[fd] = NULL;
	free(event);
	close(fd);
}

/* ---- descriptors for event loops ------------------------------------------------------------- */

int siw_llp_event_loop_fd_open(struct siw_llp_poller *poller, struct siw_llp_event_loop_fd **out)
{
	struct siw_llp_event_loop_fd *loop;
	int fd = siw_llp_event_fd_open();

	if (fd < 0)
		return fd;
	loop = sim_alloc(sizeof(*loop));
	loop->poller = poller;
	loop->fd = fd;
	siw_link_add(&poller->loops, &loop->of_poller);
	atomic_fetch_add(&siw_counters_event_loops, 1);
	event_loop_fd_update(loop);
	*out = loop;
	return 0;
}

void siw_llp_event_loop_fd_close(struct siw_llp_event_loop_fd *loop)
{
	if (!loop)
		return;
	siw_link_del(&loop->of_poller);
	atomic_fetch_sub(&siw_counters_event_loops, 1);
	siw_llp_event_fd_close(loop->fd);
	free(loop);
}

int siw_llp_event_loop_fd_number(const struct siw_llp_event_loop_fd *loop)
{
	return loop->fd;
}

void siw_llp_event_loop_fd_signal(struct siw_llp_event_loop_fd *loop)
{
	loop->set = true;
	event_loop_fd_update(loop);
}

void siw_llp_event_loop_fd_clear(struct siw_llp_event_loop_fd *loop)
{
	loop->set = false;
	event_loop_fd_update(loop);
}

void siw_llp_event_loop_fd_set_timer(struct siw_llp_event_loop_fd *loop, uint64_t due_ns)
{
	/* No timer is needed, because the scheduler makes a progress round at due_ns. */
	(void)loop;
	(void)due_ns;
}

uint64_t siw_llp_poller_next_due_ns(const struct siw_llp_poller *poller)
{
	if (poller->n_ring)
		return SIW_LLP_DUE_NOW;
	return poller->timed_due == SIM_NEVER ? 0 : poller->timed_due;
}

int siw_sim_poll_fds(const int *which, int n, uint64_t until, uint8_t *ready)
{
	struct sim_task *me = sim_current_task();

	for (bool waited = false;; waited = true) {
		int found = 0;

		for (int i = 0; i < n; i++) {
			const struct sim_fd *event = sim_fd_find(which[i]);

			if (!event)
				return -EBADF;
			ready[i] = event->set;
			found += event->set;
		}
		if (found || me->unparked || (waited && sim.now >= until)) {
			me->unparked = false;
			if (!waited)
				sim_block_task(sim.now);
			return found;
		}
		for (int i = 0; i < n; i++)
			sim_add_current_task_to_waiters(&sim_fd_find(which[i])->waiters);
		me->parked = true;
		sim_block_task(until);
		me->parked = false;
	}
}

int siw_sim_event_fd_open(void)
{
	return siw_llp_event_fd_open();
}

int siw_sim_is_event_fd(int fd)
{
	return sim_fd_find(fd) != NULL;
}

void siw_sim_event_fd_set(int fd)
{
	siw_llp_event_fd_set(fd);
}

void siw_sim_event_fd_clear(int fd)
{
	siw_llp_event_fd_clear(fd);
}

void siw_sim_event_fd_close(int fd)
{
	siw_llp_event_fd_close(fd);
}

struct siw_sim_set *siw_sim_fd_set_open(void)
{
	struct siw_sim_set *set;

	if (!sim.open)
		return NULL;
	set = sim_alloc(sizeof(*set));
	siw_link_init(&set->members);
	siw_link_init(&set->readable);
	siw_link_init(&set->waiters);
	return set;
}

void siw_sim_fd_set_close(struct siw_sim_set *set)
{
	if (!set)
		return;
	while (!siw_link_empty(&set->members))
		fd_set_remove_member(siw_container(set->members.next, struct member, of_set));
	free(set->gone);
	free(set);
}

static struct member *fd_set_find_member(const struct siw_sim_set *set, const struct sim_fd *event)
{
	for (struct siw_link *l = event->members.next; l != &event->members; l = l->next) {
		struct member *member = siw_container(l, struct member, of_event);

		if (member->set == set)
			return member;
	}
	return NULL;
}

int siw_sim_fd_set_add(struct siw_sim_set *set, int fd)
{
	struct sim_fd *event = sim_fd_find(fd);
	struct member *member;

	if (!event)
		return -EBADF;
	if (fd_set_find_member(set, event))
		return 0;
	member = sim_alloc(sizeof(*member));
	member->set = set;
	member->fd = fd;
	siw_link_add(&set->members, &member->of_set);
	siw_link_add(&event->members, &member->of_event);
	siw_link_init(&member->readable);
	if (event->set)
		event_set_readable_in_sets(event);
	return 0;
}

void siw_sim_fd_set_del(struct siw_sim_set *set, int fd)
{
	const struct sim_fd *event = sim_fd_find(fd);
	struct member *member = event ? fd_set_find_member(set, event) : NULL;

	if (member)
		fd_set_remove_member(member);
}

int siw_sim_wait_on_fd_set(struct siw_sim_set *set, uint64_t until, int *ready, int max)
{
	struct sim_task *me = sim_current_task();

	for (bool waited = false;; waited = true) {
		int found = 0;

		while (set->n_gone && found < max)
			ready[found++] = set->gone[--set->n_gone];
		for (struct siw_link *l = set->readable.next; l != &set->readable && found < max;
		     l = l->next)
			ready[found++] = siw_container(l, struct member, readable)->fd;
		if (found || me->unparked || (waited && sim.now >= until)) {
			me->unparked = false;
			if (!waited)
				sim_block_task(sim.now);
			return found;
		}
		sim_add_current_task_to_waiters(&set->waiters);
		me->parked = true;
		sim_block_task(until);
		me->parked = false;
	}
}

static bool is_port_reserved(uint16_t port_be)
{
	for (int i = 0; i < n_fds; i++)
		if (fds[i] && fds[i]->keeps && fds[i]->kept.addr.port_be == port_be)
			return true;
	return false;
}

/* ---- sockets --------------------------------------------------------------------------------- */

static void sock_send_space_timer_fire(struct sim_timer *timer)
{
	struct siw_llp_sock *sock = siw_container(timer, struct siw_llp_sock, room);

	if (sock->want_write)
		siw_llp_sock_mark_ready(sock);
}

int sim_sock_init(struct siw_llp_sock *sock, struct siw_llp_poller *poller, enum sim_kind kind,
		  struct siw_io_handler *handler)
{
	memset(sock, 0, sizeof(*sock));
	sock->kind = kind;
	sock->poller = poller;
	sock->handler = handler;
	sock->due_ns = SIM_NEVER;
	sock->ttl = 1;
	sock->room.fire = sock_send_space_timer_fire;
	siw_link_init(&sock->ring);
	siw_link_init(&sock->of_host);
	siw_link_init(&sock->in_timed);
	siw_link_init(&sock->inbox);
	siw_link_init(&sock->refusals);
	siw_link_add(&poller->socks, &sock->of_poller);
	return 0;
}

void sim_sock_fini(struct siw_llp_sock *sock)
{
	sim_sock_clear_ready(sock);
	sim_net_detach_sock(sock);
	sim_sock_unbind(sock);
	siw_link_del(&sock->in_timed);
	siw_link_del(&sock->of_poller);
}

void siw_llp_leave_poller(struct siw_llp_sock *sock)
{
	bool ready = sock->ready;

	sim_sock_clear_ready(sock);
	siw_link_del(&sock->in_timed);
	siw_link_del(&sock->of_poller);
	sock->poller = NULL;
	sock->ready = ready; /* siw_llp_add_to_poller() then adds the socket to the ready sockets */
}

int siw_llp_add_to_poller(struct siw_llp_sock *sock, struct siw_llp_poller *poller)
{
	bool ready = sock->ready;

	sock->poller = poller;
	siw_link_add(&poller->socks, &sock->of_poller);
	if (!poller->host)
		poller->host = sock->host;
	sock->ready = false;
	if (ready)
		siw_llp_sock_mark_ready(sock);
	if (sock->has_timer) {
		siw_llp_sock_enable_timer(sock);
		siw_llp_sock_set_timer(sock, sock->due_ns);
	}
	return 0;
}

static uint32_t sock_hash_bucket(const struct siw_addr *addr, const struct sim_host *host)
{
	return sim_addr_hash_bucket(addr, sim_addr_is_any(addr) ? host->number + 1 : 0);
}

static bool is_not_udp(enum sim_kind kind)
{
	return kind != SIM_UDP;
}

static bool is_sock_bound_to(const struct siw_llp_sock *sock, enum sim_kind kind,
			     const struct siw_addr *addr, const struct sim_host *host)
{
	if (is_not_udp(sock->kind) != is_not_udp(kind) || sock->host != host ||
	    sock->local.family != addr->family || sock->local.port_be != addr->port_be)
		return false;
	return !memcmp(sock->local.v4, addr->v4, 4) && !memcmp(sock->local.v6, addr->v6, 16);
}

static struct siw_llp_sock *sock_find_exact(enum sim_kind kind, const struct siw_addr *addr,
					    const struct sim_host *host,
					    const struct siw_llp_sock *after)
{
	struct siw_llp_sock *sock = after ? after->next : sim.socks[sock_hash_bucket(addr, host)];

	while (sock && !is_sock_bound_to(sock, kind, addr, host))
		sock = sock->next;
	return sock;
}

struct siw_llp_sock *sim_sock_find(enum sim_kind kind, const struct siw_addr *addr,
				   const struct sim_host *host, const struct siw_llp_sock *after)
{
	struct siw_addr any = { .family = addr->family, .port_be = addr->port_be };
	struct siw_llp_sock *sock = sock_find_exact(kind, addr, host, after);

	if (!sock && !after && !siw_addr_is_group(addr))
		sock = sock_find_exact(kind, &any, host, NULL);
	return sock;
}

/* Returns whether a socket of the host prevents binding to the given address and port. */
static bool is_port_in_use(enum sim_kind kind, const struct siw_addr *addr,
			   const struct sim_host *host)
{
	if (sim_sock_find(kind, addr, host, NULL))
		return true;
	if (!sim_addr_is_any(addr))
		return false;
	for (struct siw_link *l = host->socks.next; l != &host->socks; l = l->next) {
		const struct siw_llp_sock *sock = siw_container(l, struct siw_llp_sock, of_host);

		if (is_not_udp(sock->kind) == is_not_udp(kind) &&
		    sock->local.family == addr->family && sock->local.port_be == addr->port_be)
			return true;
	}
	return false;
}

static bool is_same_ip_address(const struct siw_addr *a, const struct siw_addr *b)
{
	return !memcmp(a->v4, b->v4, 4) && !memcmp(a->v6, b->v6, 16);
}

/*
 * Returns whether a port reservation conflicts with an address. both: addr is the IPv6 wildcard
 * address and includes IPv4.
 */
static bool port_reservation_conflicts_with_addr(const struct sim_kept *kept,
						 const struct siw_addr *addr, bool both)
{
	if (kept->addr.port_be != addr->port_be)
		return false;
	if (kept->addr.family != addr->family)
		return kept->addr.family == AF_INET6 ? kept->both : both;
	return sim_addr_is_any(&kept->addr) || sim_addr_is_any(addr) ||
	       is_same_ip_address(&kept->addr, addr);
}

/*
 * Returns whether a port is reserved for UDP at the given address. There is no counterpart for TCP,
 * because several sockets may use a reserved TCP port.
 */
static bool is_udp_port_reserved(const struct siw_addr *addr, const struct sim_host *host,
				 bool both)
{
	for (int i = 0; i < n_fds; i++) {
		const struct sim_kept *kept = fds[i] && fds[i]->keeps ? &fds[i]->kept : NULL;

		if (kept && kept->kind == SIM_UDP && host && kept->host == host &&
		    port_reservation_conflicts_with_addr(kept, addr, both))
			return true;
	}
	return false;
}

static int choose_free_port(enum sim_kind kind, struct siw_addr *addr, const struct sim_host *host)
{
	uint32_t first = (uint32_t)(sim_draw_random(&sim.numbers) % FREE_PORTS);

	for (uint32_t i = 0; i < FREE_PORTS; i++) {
		addr->port_be = htons((uint16_t)(FIRST_FREE_PORT + (first + i) % FREE_PORTS));
		if (!is_port_reserved(addr->port_be) && !is_port_in_use(kind, addr, host))
			return 0;
	}
	return -EADDRINUSE;
}

int sim_sock_bind(struct siw_llp_sock *sock, struct siw_addr *local, bool shares)
{
	struct sim_host *host = sock->host;
	uint32_t bucket;
	int rv;

	if (local->family != AF_INET && local->family != AF_INET6)
		return -EAFNOSUPPORT;
	if (!host)
		host = sim_addr_is_any(local) ? sock->poller->host : sim_host_by_addr(local);
	if (!host || host->dead)
		return -EADDRNOTAVAIL;
	local->scope = 0;
	if (!local->port_be)
		rv = choose_free_port(sock->kind, local, host);
	else if (sock->kind == SIM_UDP && is_udp_port_reserved(local, host, false))
		rv = -EADDRINUSE;
	else
		rv = !shares && is_port_in_use(sock->kind, local, host) ? -EADDRINUSE : 0;
	if (rv)
		return rv;
	sock->host = host;
	sock->local = *local;
	sock->open = true;
	if (!sock->poller->host)
		sock->poller->host = host;
	bucket = sock_hash_bucket(local, host);
	sock->next = sim.socks[bucket];
	sim.socks[bucket] = sock;
	siw_link_add(&host->socks, &sock->of_host);
	return 0;
}

int sim_sock_bind_or_free(struct siw_llp_sock *sock, const struct siw_addr *local, bool shares,
			  struct siw_llp_sock **out)
{
	struct siw_addr addr = *local;
	int rv = sim_sock_bind(sock, &addr, shares);

	if (rv) {
		sim_sock_fini(sock);
		free(sock);
		return rv;
	}
	*out = sock;
	return 0;
}

void sim_sock_unbind(struct siw_llp_sock *sock)
{
	struct siw_llp_sock **at;

	if (!sock->open)
		return;
	at = &sim.socks[sock_hash_bucket(&sock->local, sock->host)];
	while (*at != sock)
		at = &(*at)->next;
	*at = sock->next;
	sock->open = false;
	siw_link_del(&sock->of_host);
	if (sock->kind == SIM_UDP)
		sim_udp_drop_queued_packets(sock);
}

void sim_sock_clear_ready(struct siw_llp_sock *sock)
{
	if (!sock->ready)
		return;
	sock->ready = false;
	if (!sock->poller)
		return;
	siw_link_del(&sock->ring);
	sock->poller->n_ring--;
	poller_update_event_loop_fds(sock->poller);
}

void siw_llp_sock_mark_ready(struct siw_llp_sock *sock)
{
	if (sock->ready)
		return;
	sock->ready = true;
	if (!sock->poller)
		return;
	siw_link_add(&sock->poller->ring, &sock->ring);
	sock->poller->n_ring++;
	sim_poller_wake(sock->poller);
}

void siw_llp_sock_note_all_handled(struct siw_llp_sock *sock)
{
	(void)sock; /* nothing to save: a receive that returns EAGAIN costs no system call here */
}

void siw_llp_sock_pause(struct siw_llp_sock *sock)
{
	sock->held = true;
	sim_sock_clear_ready(sock);
}

void siw_llp_sock_resume(struct siw_llp_sock *sock)
{
	sock->held = false;
	siw_llp_sock_mark_ready(sock);
}

void siw_llp_set_handler(struct siw_llp_sock *sock, struct siw_io_handler *handler)
{
	sock->handler = handler;
}

void siw_llp_allow_concurrent_sends(struct siw_llp_sock *sock)
{
	(void)sock;
}

void siw_llp_sock_enable_timer(struct siw_llp_sock *sock)
{
	sock->has_timer = true;
	if (siw_link_empty(&sock->in_timed))
		siw_link_add(&sock->poller->timed, &sock->in_timed);
}

void siw_llp_sock_set_timer(struct siw_llp_sock *sock, uint64_t at)
{
	struct siw_llp_poller *poller = sock->poller;

	if (at < sock->due_ns)
		sock->due_ns = at;
	if (at >= poller->timed_due)
		return;
	poller->timed_due = at;
	poller->changes++;
	sim_poller_wake(poller);
}

bool siw_llp_sock_timer_is_pending(const struct siw_llp_sock *sock)
{
	return sock->due_ns != SIM_NEVER;
}

int siw_llp_local_addr(struct siw_llp_sock *sock, struct siw_addr *out)
{
	*out = sock->local;
	return 0;
}

/* ---- interfaces and their watches ------------------------------------------------------------ */

int siw_llp_list_interfaces(struct siw_llp_interface *out, int max)
{
	int n = 0;

	for (uint32_t i = 0; i < sim.n_hosts && n < max; i++)
		if (!sim.hosts[i]->dead)
			out[n++] = sim.hosts[i]->netif;
	return n;
}

int siw_llp_source_addr_for_dest(const struct siw_addr *dest, struct siw_addr *source)
{
	for (uint32_t h = 0; h < sim.n_hosts; h++)
		for (uint32_t i = 0; i < sim.hosts[h]->netif.n_addrs; i++)
			if (!sim.hosts[h]->dead &&
			    sim.hosts[h]->netif.addrs[i].family == dest->family) {
				*source = sim.hosts[h]->netif.addrs[i];
				return 0;
			}
	return -ENETUNREACH;
}

static struct sim_host *host_of_netdev(const char *name)
{
	for (uint32_t i = 0; i < sim.n_hosts; i++)
		if (!strcmp(sim.hosts[i]->netif.name, name))
			return sim.hosts[i];
	return NULL;
}

int siw_llp_interface_watch_open(struct siw_llp_poller *poller, const char *name,
				 struct siw_io_handler *handler, struct siw_llp_watch **out)
{
	struct sim_host *host = host_of_netdev(name);
	struct siw_llp_watch *watch;

	if (!host || host->dead)
		return -ENODEV;
	watch = sim_alloc(sizeof(*watch));
	sim_sock_init(&watch->sock, poller, SIM_WATCH, handler);
	poller->host = host;
	siw_link_add(&host->watches, &watch->of_host);
	*out = watch;
	return 0;
}

void sim_netdev_watch_report_change(struct sim_host *host, enum siw_llp_watch_change news)
{
	for (struct siw_link *l = host->watches.next; l != &host->watches; l = l->next) {
		struct siw_llp_watch *watch = siw_container(l, struct siw_llp_watch, of_host);

		if (watch->n < sizeof(watch->queue))
			watch->queue[watch->n++] = (uint8_t)news;
		else
			watch->queue[watch->n - 1] = SIW_LLP_WATCH_LOST;
		siw_llp_sock_mark_ready(&watch->sock);
	}
}

int siw_llp_interface_watch_read(struct siw_llp_watch *watch)
{
	int news;

	if (!watch->n) {
		sim_sock_clear_ready(&watch->sock);
		return 0;
	}
	news = watch->queue[0];
	memmove(watch->queue, watch->queue + 1, --watch->n);
	return news;
}

void siw_llp_interface_watch_close(struct siw_llp_watch *watch)
{
	if (!watch)
		return;
	siw_link_del(&watch->of_host);
	sim_sock_fini(&watch->sock);
	free(watch);
}

/* ---- port reservations ----------------------------------------------------------------------- */

static bool is_port_unreservable(const struct sim_kept *kept)
{
	struct siw_addr v4 = { .family = AF_INET, .port_be = kept->addr.port_be };

	return is_port_in_use(kept->kind, &kept->addr, kept->host) ||
	       (kept->both && is_port_in_use(kept->kind, &v4, kept->host)) ||
	       (kept->kind == SIM_UDP && is_udp_port_reserved(&kept->addr, kept->host, kept->both));
}

int sim_reserve_port(enum sim_kind kind, struct siw_addr *local, bool v6_only)
{
	bool any = sim_addr_is_any(local);
	struct sim_kept kept = { .kind = kind,
				 .both = any && local->family == AF_INET6 && !v6_only };
	int fd, rv;

	if (!any)
		kept.host = sim_host_by_addr(local);
	else if (sim.n_hosts == 1)
		kept.host = sim.hosts[0];
	if (!sim.n_hosts || (!any && !kept.host))
		return -EADDRNOTAVAIL;
	if (!local->port_be) {
		rv = choose_free_port(kind, local, kept.host ? kept.host : sim.hosts[0]);
		if (rv)
			return rv;
	}
	kept.addr = *local;
	if (kept.host && is_port_unreservable(&kept))
		return -EADDRINUSE;
	fd = siw_llp_event_fd_open();
	if (fd >= 0) {
		fds[fd]->keeps = true;
		fds[fd]->kept = kept;
	}
	return fd;
}

void sim_release_reserved_ports(const struct sim_host *host)
{
	for (int i = 0; i < n_fds; i++)
		if (fds[i] && fds[i]->kept.host == host)
			fds[i]->keeps = false;
}
