/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_poller.c - the poller, which finds the sockets that have work. llp.h defines hot and cold
 * sockets.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/counters.h"
#include "base/settings.h"
#include "base/trace.h"
#include "llp/llp_fault.h"
#include "llp/llp_sock.h"

#define EPOLL_EVERY_POLLS 32 /* while sockets are hot, epoll_wait is called in every 32nd poll */
/* minimum interval of epoll_wait calls in ns while there are hot and cold sockets */
#define EPOLL_INTERVAL_NS 10000
/* maximum interval of epoll_wait calls in ns; doubles after each call without an event */
#define MAX_EPOLL_INTERVAL_NS 80000
/* a hot socket without data for this many polls may be replaced by a ready one */
#define STALE_POLLS 256
/* a hot socket without data for this many polls turns cold if another socket had data */
#define COOL_POLLS 1024
#define BATCH	   64 /* maximum number of events returned by one epoll_wait call */
/* the drop counters are read after this many epoll_wait calls without an event */
#define DROPS_EVERY 4096
#define STALL_NS    (100 * 1000 * 1000ull)

/* ---- the wake descriptor --------------------------------------------------------------------- */

static void signal_wake_descriptor(struct siw_llp_poller *poller)
{
	/*
	 * While woken is set, the descriptor is readable, and another write is not needed.
	 * reset_wake_descriptor() reads the descriptor before it clears woken, so no wake-up is
	 * lost.
	 */
	if (!atomic_exchange_explicit(&poller->woken, 1, memory_order_seq_cst))
		siw_llp_event_fd_set(poller->wake_fd);
}

void siw_llp_poller_wake(struct siw_llp_poller *poller)
{
	/*
	 * A thread that has filled a wait set and does not sleep yet notices the change of the
	 * counter. The descriptor alone is not sufficient, because a poll of another thread may
	 * reset it before the thread sleeps.
	 */
	atomic_fetch_add_explicit(&poller->changes, 1, memory_order_seq_cst);
	signal_wake_descriptor(poller);
}

/*
 * Resets the wake descriptor if no thread sleeps on it; otherwise it must first wake all sleeping
 * threads. The descriptor is read before woken is cleared. This poll handles the reason for an
 * earlier wake-up; a later wake-up writes to the descriptor again.
 */
static void reset_wake_descriptor(struct siw_llp_poller *poller)
{
	if (atomic_load_explicit(&poller->sleepers, memory_order_seq_cst))
		return;
	siw_llp_event_fd_clear(poller->wake_fd);
	atomic_store_explicit(&poller->woken, 0, memory_order_seq_cst);
	/*
	 * A thread may have begun to sleep in the meantime, and a wake-up for that thread may have
	 * found woken set and written nothing: so set the descriptor again.
	 */
	if (atomic_load_explicit(&poller->sleepers, memory_order_seq_cst))
		signal_wake_descriptor(poller);
}

void siw_llp_poller_invalidate_wait_sets(struct siw_llp_poller *poller)
{
	/*
	 * changes is incremented before sleepers is loaded, and siw_llp_wait_any() increments
	 * sleepers before it loads changes: a thread that begins to sleep either notices this
	 * change or is woken here.
	 */
	atomic_fetch_add_explicit(&poller->changes, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&poller->sleepers, memory_order_seq_cst))
		signal_wake_descriptor(poller);
}

/* ---- ready ring ------------------------------------------------------------------------------ */

static void append_to_ready_ring(struct siw_llp_sock *sock)
{
	siw_link_add(&sock->poller->ring, &sock->ring);
	sock->poller->n_ring++;
}

static void remove_from_ready_ring(struct siw_llp_sock *sock)
{
	siw_link_del(&sock->ring);
	sock->poller->n_ring--;
}

void siw_llp_sock_mark_ready(struct siw_llp_sock *sock)
{
	if (sock->ready)
		return;
	sock->ready = true;
	if (sock->hot < 0)
		append_to_ready_ring(sock);
	siw_llp_poller_invalidate_wait_sets(sock->poller);
}

void siw_llp_sock_note_empty(struct siw_llp_sock *sock)
{
	if (!sock->ready)
		return;
	sock->ready = false;
	if (sock->hot < 0)
		remove_from_ready_ring(sock);
}

void siw_llp_sock_note_all_handled(struct siw_llp_sock *sock)
{
	/*
	 * The socket may have more input, and stays ready, if epoll has reported the end of the
	 * stream, which it does not report again, or urgent data, before which a read stops.
	 */
	if (sock->read_last && !sock->ended &&
	    atomic_load_explicit(&sock->registered, memory_order_relaxed))
		siw_llp_sock_note_empty(sock);
}

/* ---- epoll set ------------------------------------------------------------------------------- */

static uint32_t wanted_epoll_events(const struct siw_llp_sock *sock)
{
	switch (sock->kind) {
	case SIW_LLP_UDP:
		return EPOLLET | EPOLLIN |
		       (atomic_load_explicit(&sock->want_write, memory_order_seq_cst) ? EPOLLOUT
										      : 0);
	case SIW_LLP_LISTENER:
	case SIW_LLP_WATCHER:
		return EPOLLET | EPOLLIN;
	default:
		return EPOLLET | EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDHUP;
	}
}

int siw_llp_sock_register(struct siw_llp_sock *sock)
{
	struct epoll_event ev = { .events = wanted_epoll_events(sock), .data.ptr = sock };
	uint32_t now;

	if (epoll_ctl(sock->poller->epfd, EPOLL_CTL_ADD, sock->fd, &ev))
		return -errno;
	atomic_store_explicit(&sock->registered, 1, memory_order_seq_cst);
	/*
	 * siw_llp_request_write_event() may have set want_write after wanted_epoll_events() loaded it,
	 * and found the socket not registered yet, so load want_write again.
	 */
	now = wanted_epoll_events(sock) | ev.events;
	if (now != ev.events) {
		ev.events = now;
		epoll_ctl(sock->poller->epfd, EPOLL_CTL_MOD, sock->fd, &ev);
	}
	return 0;
}

static void remove_sock_from_epoll(struct siw_llp_sock *sock)
{
	struct epoll_event unused = { 0 };

	if (!atomic_exchange_explicit(&sock->registered, 0, memory_order_seq_cst))
		return;
	epoll_ctl(sock->poller->epfd, EPOLL_CTL_DEL, sock->fd, &unused);
}

/* ---- hot set --------------------------------------------------------------------------------- */

static void remove_from_hot_set(struct siw_llp_sock *sock)
{
	struct siw_llp_poller *poller = sock->poller;
	struct siw_llp_sock *last = poller->hot[--poller->n_hot];

	poller->hot[sock->hot] = last;
	last->hot = sock->hot;
	sock->hot = -1;
	if (sock->ready)
		append_to_ready_ring(sock);
}

/*
 * Makes a hot socket cold. epoll checks the socket when it is registered, so data that arrived
 * earlier is reported.
 */
static int sock_move_from_hot_set_to_epoll(struct siw_llp_sock *sock)
{
	int rv = atomic_load_explicit(&sock->registered, memory_order_relaxed)
			 ? 0
			 : siw_llp_sock_register(sock);

	if (rv == 0)
		remove_from_hot_set(sock);
	return rv;
}

static bool make_room_in_hot_set(struct siw_llp_poller *poller)
{
	struct siw_llp_sock *idlest = poller->hot[0];

	if (poller->n_hot < poller->max_hot)
		return true;
	for (int i = 1; i < poller->n_hot; i++)
		if (poller->hot[i]->active < idlest->active)
			idlest = poller->hot[i];
	return poller->polls - idlest->active >= STALE_POLLS &&
	       sock_move_from_hot_set_to_epoll(idlest) == 0;
}

/* Makes a cold socket hot. Returns false if the hot set is full. */
static bool sock_move_from_epoll_to_hot_set(struct siw_llp_sock *sock)
{
	struct siw_llp_poller *poller = sock->poller;

	if (!make_room_in_hot_set(poller))
		return false;
	if (sock->ready)
		remove_from_ready_ring(sock);
	sock->ready = true; /* epoll will not report the consumed event again */
	if (!atomic_load_explicit(&poller->armed, memory_order_relaxed))
		remove_sock_from_epoll(sock);
	sock->hot = (int8_t)poller->n_hot;
	sock->active = poller->polls;
	poller->hot[poller->n_hot++] = sock;
	siw_llp_poller_invalidate_wait_sets(poller);
	return true;
}

void siw_llp_sock_note_end_of_stream(struct siw_llp_sock *sock)
{
	siw_llp_sock_note_empty(sock);
	if (sock->hot >= 0)
		sock_move_from_hot_set_to_epoll(sock);
}

void siw_llp_sock_pause(struct siw_llp_sock *sock)
{
	sock->held = true;
	/*
	 * A paused hot socket would end every sleep, because a sleep checks hot sockets
	 * level-triggered: for unread data, not for new data.
	 */
	siw_llp_sock_note_end_of_stream(sock);
}

void siw_llp_sock_detach(struct siw_llp_sock *sock)
{
	siw_llp_sock_note_empty(sock);
	if (sock->stalled)
		sock->poller->n_stalled--;
	if (sock->hot >= 0)
		remove_from_hot_set(sock);
	/* A forked child must not change the epoll set, which it shares with the parent. */
	if (getpid() != sock->poller->owner)
		return;
	remove_sock_from_epoll(sock);
	/*
	 * A thread that sleeps on the descriptor holds a reference to the file. The kernel would
	 * not end the connection of a closed socket before that thread wakes up.
	 */
	if (sock->in_wait_set)
		siw_llp_poller_invalidate_wait_sets(sock->poller);
	sock->in_wait_set = false;
}

/*
 * Turns hot sockets cold that had no data for long while other sockets had data, because each hot
 * socket costs every poll a system call.
 */
static void move_idle_sockets_to_epoll(struct siw_llp_poller *poller)
{
	for (int i = poller->n_hot - 1; i >= 0; i--)
		if (poller->active >= poller->hot[i]->active + COOL_POLLS)
			sock_move_from_hot_set_to_epoll(poller->hot[i]);
}

/* ---- periodic work --------------------------------------------------------------------------- */

void siw_llp_listener_pause_after_accept_error(struct siw_llp_sock *sock)
{
	struct siw_llp_poller *poller = sock->poller;

	siw_llp_sock_note_empty(sock);
	if (sock->stalled)
		return;
	sock->stalled = true;
	if (poller->n_stalled++ == 0)
		poller->stalled_until = siw_now_ns() + STALL_NS;
	siw_log(llp, warn,
		"no file descriptor for a pending connection; the listener retries in %d ms",
		(int)(STALL_NS / 1000000));
}

static void resume_stalled_listeners(struct siw_llp_poller *poller)
{
	if (siw_now_ns() < poller->stalled_until)
		return;
	poller->n_stalled = 0;
	for (struct siw_link *l = poller->all.next; l != &poller->all; l = l->next) {
		struct siw_llp_sock *sock = SIW_LLP_OF(l, all);

		if (sock->stalled) {
			sock->stalled = false;
			siw_llp_sock_mark_ready(sock);
		}
	}
}

void siw_llp_sock_enable_timer(struct siw_llp_sock *sock)
{
	sock->has_timer = true;
	if (siw_link_empty(&sock->timed))
		siw_link_add(&sock->poller->timed, &sock->timed);
}

void siw_llp_sock_set_timer(struct siw_llp_sock *sock, uint64_t at)
{
	/*
	 * The time of the socket is set before the poller's time timed_due, and
	 * mark_sockets_with_expired_timers_ready() resets timed_due before it reads the times of
	 * the sockets, so no timer is missed.
	 */
	siw_llp_set_earlier_due_time(&sock->due_ns, at);
	if (!siw_llp_set_earlier_due_time(&sock->poller->timed_due, at))
		return;
	/*
	 * A thread that sleeps must wake up, because the timer is due earlier. A thread that sleeps
	 * in an event loop is not counted in sleepers, so it is always woken.
	 */
	if (atomic_load_explicit(&sock->poller->loops, memory_order_seq_cst))
		siw_llp_poller_wake(sock->poller);
	else
		siw_llp_poller_invalidate_wait_sets(sock->poller);
}

static void mark_sockets_with_expired_timers_ready(struct siw_llp_poller *poller)
{
	uint64_t now = siw_now_ns(), due;

	poller->clock_ns = now;
	poller->clock_poll = poller->polls;
	if (now < atomic_load_explicit(&poller->timed_due, memory_order_relaxed))
		return;
	atomic_store_explicit(&poller->timed_due, UINT64_MAX, memory_order_seq_cst);
	for (struct siw_link *l = poller->timed.next; l != &poller->timed; l = l->next) {
		struct siw_llp_sock *sock = SIW_LLP_OF(l, timed);

		due = atomic_load_explicit(&sock->due_ns, memory_order_seq_cst);
		if (due > now) {
			siw_llp_set_earlier_due_time(&poller->timed_due, due);
			continue;
		}
		atomic_store_explicit(&sock->due_ns, UINT64_MAX, memory_order_seq_cst);
		siw_llp_sock_mark_ready(sock);
	}
}

/* Reads the drop counters of eight sockets per call, in turn. */
static void read_drop_counters(struct siw_llp_poller *poller)
{
	for (int i = 0; i < 8 && poller->all.next != &poller->all; i++) {
		struct siw_link *l = poller->all.next;

		siw_link_del(l);
		siw_link_add(&poller->all, l);
		if (SIW_LLP_OF(l, all)->udp)
			siw_llp_udp_record_new_drops(SIW_LLP_OF(l, all));
	}
}

/* ---- polling --------------------------------------------------------------------------------- */

static void handle_epoll_event(struct siw_llp_sock *sock, uint32_t events)
{
	bool want = atomic_load_explicit(&sock->want_write, memory_order_seq_cst);
	bool data = sock->kind == SIW_LLP_UDP || sock->kind == SIW_LLP_STREAM;

	sock->read_last = false;
	if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLPRI))
		sock->ended = true;
	/*
	 * EPOLLOUT alone is ignored if no thread waits to send: a later siw_llp_request_write_event()
	 * makes epoll report it again.
	 */
	if (data && !want && !(events & ~(uint32_t)EPOLLOUT))
		return;
	if ((sock->held || sock->stopped) && !(events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) &&
	    !(want && events & EPOLLOUT))
		return;
	if (data && sock->hot < 0 && !sock->held && !sock->stopped &&
	    !(events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) &&
	    !atomic_load_explicit(&sock->poller->loops, memory_order_relaxed) &&
	    sock_move_from_epoll_to_hot_set(sock))
		return;
	siw_llp_sock_mark_ready(sock);
}

static void poll_epoll_events(struct siw_llp_poller *poller)
{
	struct epoll_event events[BATCH];
	int n = (int)syscall(SYS_epoll_pwait, poller->epfd, events, BATCH, 0, NULL, 0);

	siw_count(SIW_COUNTER_epoll_waits, 1);
	poller->ask = n == BATCH;
	for (int i = 0; i < n; i++) {
		if (events[i].data.ptr)
			handle_epoll_event(events[i].data.ptr, events[i].events);
		else
			reset_wake_descriptor(poller);
	}
	if (n > 0)
		poller->ask_ns = EPOLL_INTERVAL_NS;
	else if (poller->ask_ns < MAX_EPOLL_INTERVAL_NS)
		poller->ask_ns *= 2;
	if (n <= 0 && ++poller->quiet_rounds % DROPS_EVERY == 0)
		read_drop_counters(poller);
	move_idle_sockets_to_epoll(poller);
}

/*
 * Returns whether this poll follows a sleep and no hot socket had data. After a sleep the hot
 * sockets are polled first, and epoll_wait is called only if none of them had data.
 */
static bool take_cold_wakeup(struct siw_llp_poller *poller)
{
	bool cold = poller->active < poller->slept;

	poller->after_sleep = false;
	poller->slept = poller->polls;
	return cold;
}

/*
 * Returns whether epoll_wait is due by time. One poll may take long: a hot socket may be flooded,
 * or the program may be busy between two polls. So if there are cold sockets, the time since the
 * last epoll_wait call counts, too.
 */
static inline bool is_epoll_due_by_time(struct siw_llp_poller *poller)
{
	uint64_t now;

	if (poller->n_data == (uint32_t)poller->n_hot)
		return false;
	now = siw_now_ns();
	if (now - poller->asked_ns < poller->ask_ns)
		return false;
	poller->asked_ns = now;
	return true;
}

static inline bool is_epoll_due(struct siw_llp_poller *poller)
{
	return poller->n_hot == 0 || poller->polls % EPOLL_EVERY_POLLS == 0 || poller->ask ||
	       is_epoll_due_by_time(poller) ||
	       atomic_load_explicit(&poller->armed, memory_order_relaxed) ||
	       (poller->after_sleep && take_cold_wakeup(poller));
}

/* Returns up to `room` hot sockets: all of them, or the next ones in turn. */
static int collect_hot_sockets(struct siw_llp_poller *poller, struct siw_io_handler **handlers,
			       int room)
{
	int n = poller->n_hot < room ? poller->n_hot : room;
	unsigned int next = 0;

	if (__builtin_expect(n < poller->n_hot, 0)) {
		next = poller->hot_turn;
		poller->hot_turn += (unsigned int)n;
	}
	for (int i = 0; i < n; i++, next++) {
		struct siw_llp_sock *sock =
			poller->hot[n < poller->n_hot ? next % (unsigned int)poller->n_hot : next];

		if (atomic_load_explicit(&sock->want_write, memory_order_relaxed))
			sock->active = poller->polls;
		handlers[i] = sock->handler;
	}
	return n;
}

static int collect_ready_handlers(struct siw_llp_poller *poller, struct siw_io_handler **handlers,
				  int room)
{
	int n = poller->n_ring < room ? poller->n_ring : room;

	for (int i = 0; i < n; i++) {
		struct siw_link *l = poller->ring.next;

		siw_link_del(l);
		siw_link_add(&poller->ring, l);
		handlers[i] = SIW_LLP_OF(l, ring)->handler;
	}
	return n;
}

int siw_llp_poller_poll(struct siw_llp_poller *poller, struct siw_io_handler **handlers, int n)
{
	int share, done;

	poller->polls++;
	if (atomic_load_explicit(&poller->woken, memory_order_relaxed))
		reset_wake_descriptor(poller);
	if (poller->n_stalled)
		resume_stalled_listeners(poller);
	if (__builtin_expect(atomic_load_explicit(&poller->fault_due, memory_order_relaxed) !=
				     UINT64_MAX,
			     0))
		siw_llp_fault_release_due_packets(poller);
	if (atomic_load_explicit(&poller->timed_due, memory_order_relaxed) != UINT64_MAX)
		mark_sockets_with_expired_timers_ready(poller);
	if (is_epoll_due(poller))
		poll_epoll_events(poller);
	if (poller->n_ring == 0)
		return collect_hot_sockets(poller, handlers, n);
	/*
	 * The ready ring gets up to half of the array's entries. If the array has one entry, the
	 * ring gets it in every other poll.
	 */
	share = n > 1 ? n / 2 : (int)(poller->polls & 1);
	if (share > poller->n_ring)
		share = poller->n_ring;
	done = collect_hot_sockets(poller, handlers, n - share);
	return done + collect_ready_handlers(poller, handlers + done, n - done);
}

uint64_t siw_llp_poller_recent_time_ns(const struct siw_llp_poller *poller)
{
	return poller->clock_poll == poller->polls ? poller->clock_ns : siw_now_ns();
}

/* ---- arm, disarm ----------------------------------------------------------------------------- */

int siw_llp_poller_arm_for_sleep(struct siw_llp_poller *poller)
{
	if (atomic_load_explicit(&poller->armed, memory_order_relaxed))
		return 0;
	for (int i = 0; i < poller->n_hot; i++) {
		int rv = siw_llp_sock_register(poller->hot[i]);

		if (rv < 0) {
			while (i-- > 0)
				remove_sock_from_epoll(poller->hot[i]);
			return rv;
		}
	}
	atomic_store_explicit(&poller->armed, 1, memory_order_seq_cst);
	return 0;
}

void siw_llp_poller_disarm(struct siw_llp_poller *poller)
{
	if (!atomic_load_explicit(&poller->armed, memory_order_relaxed))
		return;
	atomic_store_explicit(&poller->armed, 0, memory_order_seq_cst);
	for (int i = 0; i < poller->n_hot; i++)
		remove_sock_from_epoll(poller->hot[i]);
	if (poller->n_hot)
		/* a thread that sleeps on the epoll set alone would miss the hot sockets' data */
		siw_llp_poller_invalidate_wait_sets(poller);
}

bool siw_llp_poller_is_armed(const struct siw_llp_poller *poller)
{
	return atomic_load_explicit(&poller->armed, memory_order_seq_cst);
}

/* ---- open, close ----------------------------------------------------------------------------- */

int siw_llp_poller_open(const struct siw_llp_poller *sibling, struct siw_llp_poller **out)
{
	struct siw_llp_poller *poller = aligned_alloc(SIW_LLP_LINE, sizeof(*poller));
	struct epoll_event ev = { .events = EPOLLIN };
	int rv = -ENOMEM;

	(void)sibling;
	if (!poller)
		return rv;
	memset(poller, 0, sizeof(*poller));
	poller->ask_ns = EPOLL_INTERVAL_NS;
	siw_link_init(&poller->ring);
	siw_link_init(&poller->all);
	siw_lock_init(&poller->wish_lock);
	atomic_init(&poller->fault_due, UINT64_MAX);
	siw_link_init(&poller->timed);
	atomic_init(&poller->timed_due, UINT64_MAX);
	poller->clock_poll = UINT64_MAX;
	poller->max_hot = (int)siw_settings()->hot_sockets;
	poller->owner = getpid();
	poller->room = malloc(SIW_LLP_ROOM);
	if (!poller->room)
		goto free;
	poller->wake_fd = siw_llp_event_fd_open();
	rv = poller->wake_fd;
	if (rv < 0)
		goto free;
	siw_llp_fd_creation_begin();
	rv = poller->epfd = siw_llp_fd_creation_done(epoll_create1(EPOLL_CLOEXEC));
	if (rv < 0)
		goto close_wake;
	if (epoll_ctl(poller->epfd, EPOLL_CTL_ADD, poller->wake_fd, &ev)) {
		rv = -errno;
		goto close_epoll;
	}
	*out = poller;
	return 0;
close_epoll:
	siw_llp_fd_close(poller->epfd);
close_wake:
	siw_llp_fd_close(poller->wake_fd);
free:
	free(poller->room);
	free(poller);
	return rv;
}

bool siw_llp_poller_opened_by_this_process(const struct siw_llp_poller *poller)
{
	return getpid() == poller->owner;
}

bool siw_llp_sock_timer_is_pending(const struct siw_llp_sock *sock)
{
	return atomic_load_explicit(&sock->due_ns, memory_order_relaxed) != UINT64_MAX;
}

void siw_llp_poller_close(struct siw_llp_poller *poller)
{
	if (!poller)
		return;
	siw_llp_fd_close(poller->epfd);
	siw_llp_fd_close(poller->wake_fd);
	free(atomic_load_explicit(&poller->batch, memory_order_relaxed));
	free(poller->room);
	free(poller);
}

uint8_t *siw_llp_poller_rx_buffer(struct siw_llp_poller *poller)
{
	return poller->room;
}

/*
 * The acquire order pairs with the release order in siw_llp_batch_buffer_return(): the thread that
 * returned the buffer has finished its accesses to it.
 */
uint8_t *siw_llp_batch_buffer_acquire(struct siw_llp_poller *poller)
{
	uint8_t *batch = atomic_exchange_explicit(&poller->batch, NULL, memory_order_acquire);

	return batch ? batch : malloc(SIW_LLP_ROOM);
}

void siw_llp_batch_buffer_return(struct siw_llp_poller *poller, uint8_t *batch)
{
	free(atomic_exchange_explicit(&poller->batch, batch, memory_order_acq_rel));
}
