/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_fault.c - applies a fault plan to datagrams, and releases held datagrams when they are
 * due (llp_fault.h).
 */
#include <stdlib.h>
#include <string.h>

#include "base/capture.h"
#include "base/clock.h"
#include "base/counters.h"
#include "base/pieces.h"
#include "llp/llp_fault.h"

#define RECEIVES 64 /* maximum number of datagrams that one call receives from the kernel */
/* maximum UDP payload in octets; the kernel refuses more with EMSGSIZE */
#define MAX_DATAGRAM 65507
/* maximum sleep in ns while packets are held back; the plan may end meanwhile */
#define LONGEST_SLEEP 100000000

/* ---- a socket's state ------------------------------------------------------------------------ */

static struct siw_llp_faulty *alloc_fault_state(struct siw_llp_sock *sock)
{
	struct siw_llp_faulty *f = calloc(1, sizeof(*f)), *other = NULL;

	if (!f)
		return NULL;
	siw_lock_init(&f->lock);
	siw_fault_queue_init(&f->way[0].queue);
	siw_fault_queue_init(&f->way[1].queue);
	f->reset_at = UINT64_MAX;
	/*
	 * A send and a receive in two threads may both create the fault state of the socket: the
	 * state that was stored first is used. Pairs with the load in siw_llp_fault_state_lock().
	 */
	if (atomic_compare_exchange_strong_explicit(&sock->faulty, &other, f, memory_order_acq_rel,
						    memory_order_acquire))
		return f;
	free(f);
	return other;
}

/* Adopts a new fault plan. Packets held back under the old plan become due immediately. */
static void adopt_new_fault_plan(struct siw_llp_sock *sock, struct siw_llp_faulty *f)
{
	uint32_t flow;

	f->generation = siw_faults_copy_current_plan(&f->plan, &f->began);
	flow = f->plan.n ? siw_faults_allocate_flow_number(f->generation) : 0;
	for (int dir = 0; dir < 2; dir++) {
		siw_fault_path_init(&f->way[dir].path, &f->plan, f->began, (enum siw_fault_dir)dir,
				    flow);
		siw_fault_queue_make_all_due(&f->way[dir].queue, siw_now_ns());
	}
	if (sock->udp)
		return;
	if (!f->peer.family && siw_llp_peer_addr(sock, &f->peer) < 0)
		f->peer.family = 0;
	f->reset_at = UINT64_MAX;
	for (int dir = 0; dir < 2 && !f->error; dir++) {
		uint64_t at = siw_fault_planned_reset_time(&f->plan, &f->way[dir].path, &f->peer);

		f->reset_at = at < f->reset_at ? at : f->reset_at;
	}
}

struct siw_llp_faulty *siw_llp_fault_state_lock(struct siw_llp_sock *sock, int *error)
{
	struct siw_llp_faulty *f = atomic_load_explicit(&sock->faulty, memory_order_acquire);

	*error = 0;
	if (!f) {
		if (siw_faults_plan_generation_number() % 2 == 0)
			/* the plan has ended, but another socket still holds packets back */
			return NULL;
		f = alloc_fault_state(sock);
		if (!f) {
			*error = ENOBUFS;
			return NULL;
		}
	}
	siw_lock(&f->lock);
	if (f->generation != siw_faults_plan_generation_number())
		adopt_new_fault_plan(sock, f);
	return f;
}

/* ---- when packets are due -------------------------------------------------------------------- */

static uint64_t earlier_time(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

uint64_t siw_llp_fault_next_rx_due_time_ns(struct siw_llp_sock *sock, struct siw_llp_faulty *f)
{
	struct siw_fault_queue *rx = &f->way[SIW_FAULT_RX].queue;

	if (sock->held)
		return UINT64_MAX; /* the socket is paused; siw_llp_sock_resume() will report it */
	/*
	 * The end of the stream is not reported before all held octets are sent, because a reader
	 * that finds the end closes the socket.
	 */
	if (!siw_fault_queue_empty(&f->way[SIW_FAULT_TX].queue) && !siw_link_empty(&rx->order) &&
	    siw_container(rx->order.next, struct siw_fault_held, link)->end)
		return UINT64_MAX;
	return siw_fault_queue_next_due_time(rx);
}

static uint64_t next_transmit_time_ns(const struct siw_llp_faulty *f)
{
	uint64_t next = siw_fault_queue_next_due_time(&f->way[SIW_FAULT_TX].queue);

	return next == UINT64_MAX || next > f->retry_at ? next : f->retry_at;
}

/*
 * Sets the time at which the poller has packets due, if `at` is earlier than the present value. Any
 * thread.
 */
static void poller_set_earlier_packet_due_time(struct siw_llp_poller *poller, uint64_t at)
{
	if (siw_llp_set_earlier_due_time(&poller->fault_due, at))
		siw_llp_poller_invalidate_wait_sets(
			poller); /* a sleeping thread must wake up earlier */
}

void siw_llp_fault_state_unlock(struct siw_llp_sock *sock, struct siw_llp_faulty *f,
				bool poller_locked)
{
	uint64_t next = next_transmit_time_ns(f);
	bool holds = !siw_fault_queue_empty(&f->way[SIW_FAULT_TX].queue) ||
		     !siw_fault_queue_empty(&f->way[SIW_FAULT_RX].queue) || f->error;

	next = earlier_time(next, f->reset_at);
	/*
	 * Without the poller's lock the receive queue is not examined. The thread that added
	 * packets to the receive queue has already set the time at which these packets are due.
	 */
	if (poller_locked)
		next = earlier_time(next, siw_llp_fault_next_rx_due_time_ns(sock, f));
	if (holds != f->counted)
		siw_faults_adjust_holding_socket_count(holds ? 1 : -1);
	f->counted = holds;
	siw_unlock(&f->lock);
	if (next != UINT64_MAX)
		poller_set_earlier_packet_due_time(sock->poller, next);
}

void siw_llp_fault_note_joined_poller(struct siw_llp_sock *sock)
{
	struct siw_llp_faulty *f;
	int error;

	if (!atomic_load_explicit(&sock->faulty, memory_order_acquire))
		return;
	f = siw_llp_fault_state_lock(sock, &error);
	siw_llp_fault_state_unlock(sock, f, true);
}

void siw_llp_fault_drop_held_packets(struct siw_llp_sock *sock)
{
	struct siw_llp_faulty *f = atomic_load_explicit(&sock->faulty, memory_order_relaxed);

	if (!f)
		return;
	siw_count(SIW_COUNTER_fault_closed,
		  f->way[SIW_FAULT_TX].queue.n + f->way[SIW_FAULT_RX].queue.n);
	siw_fault_queue_free(&f->way[SIW_FAULT_TX].queue);
	siw_fault_queue_free(&f->way[SIW_FAULT_RX].queue);
	if (f->counted)
		siw_faults_adjust_holding_socket_count(-1);
	free(f->scratch);
	free(f);
	atomic_store_explicit(&sock->faulty, NULL, memory_order_relaxed);
}

bool siw_llp_fault_is_stream_full(const struct siw_llp_sock *sock)
{
	const struct siw_llp_faulty *f = atomic_load_explicit(&sock->faulty, memory_order_acquire);

	return f && atomic_load_explicit(&f->full, memory_order_relaxed);
}

uint64_t siw_llp_fault_wake_time_ns(const struct siw_llp_poller *poller)
{
	uint64_t due = atomic_load_explicit(&poller->fault_due, memory_order_seq_cst);

	return due == UINT64_MAX ? 0 : earlier_time(due, siw_now_ns() + LONGEST_SLEEP);
}

/* ---- sending datagrams ----------------------------------------------------------------------- */

/* Sends a datagram, with CE if the plan marks it and the socket's datagrams are ECN-capable. */
static int send_with_ce_mark(struct siw_llp_sock *sock, const struct siw_addr *dest,
			     const struct iovec *iov, int n, bool mark)
{
	bool marked = mark && atomic_load_explicit(&sock->ecn, memory_order_relaxed) &&
		      siw_llp_udp_set_ecn(sock, SIW_LLP_ECN_CE) == 0;
	int rv = siw_llp_udp_send_without_faults(sock, dest, iov, n);

	if (marked)
		siw_llp_udp_set_ecn(sock, SIW_LLP_ECN_ECT0);
	return rv;
}

static void send_due_datagrams(struct siw_llp_sock *sock, struct siw_llp_faulty *f, uint64_t now)
{
	struct siw_fault_queue *q = &f->way[SIW_FAULT_TX].queue;
	struct siw_fault_held *held;

	if (now < f->retry_at)
		return;
	f->retry_at = 0;
	/* The loop ends, because each iteration removes a datagram from the queue. */
	while ((held = siw_fault_queue_first_due(q, now))) {
		struct iovec iov = { held->octets, held->length };
		int rv = send_with_ce_mark(sock, &held->peer, &iov, 1, held->ecn == SIW_LLP_ECN_CE);

		if (rv == -EAGAIN) {
			f->retry_at = now + 1000000;
			return;
		}
		siw_fault_queue_remove(q, held);
	}
}

static int hold_back_datagram(struct siw_llp_faulty *f, enum siw_fault_dir dir,
			      const struct siw_addr *peer, const struct iovec *iov, size_t length,
			      size_t true_length, uint8_t ecn,
			      const struct siw_fault_decision *fate)
{
	struct siw_fault_held *held;
	int rv = siw_fault_queue_add(&f->way[dir].queue, iov, 0, length, fate, &held);

	if (rv < 0)
		return rv;
	held->peer = *peer;
	held->true_length = true_length;
	held->ecn = ecn;
	return 0;
}

static void count_applied_faults(const struct siw_fault_decision *fate, uint64_t now)
{
	if (fate->dup)
		siw_count(SIW_COUNTER_fault_dup, 1);
	if (fate->passes)
		siw_count(SIW_COUNTER_fault_reorder, 1);
	if (fate->corrupt)
		siw_count(SIW_COUNTER_fault_corrupt, 1);
	if (fate->release_ns > now)
		siw_count(SIW_COUNTER_fault_delay, 1);
}

/* Sends the datagram immediately, twice if the plan duplicates it. */
static int datagram_send_direct(struct siw_llp_sock *sock, const struct siw_addr *dest,
				const struct iovec *iov, int n, size_t length,
				const struct siw_fault_decision *fate)
{
	struct iovec one = { NULL, length };
	int rv;

	if (fate->corrupt) {
		one.iov_base = malloc(length + 1);
		if (!one.iov_base)
			return siw_llp_handle_failed_send(sock, ENOBUFS);
		if (siw_fault_copy_from_iov(one.iov_base, iov, 0, length)) {
			free(one.iov_base);
			return -EFAULT;
		}
		siw_fault_flip_bit(one.iov_base, length, fate->flip);
		iov = &one;
		n = 1;
	}
	rv = send_with_ce_mark(sock, dest, iov, n, fate->mark);
	/* If the socket is full, the duplicate is lost, as in a network. */
	if (rv == 0 && fate->dup && send_with_ce_mark(sock, dest, iov, n, fate->mark) == -EAGAIN)
		siw_llp_update_want_write(sock, false);
	free(one.iov_base);
	return rv;
}

static int hold_back_sent_datagram(struct siw_llp_faulty *f, const struct siw_addr *dest,
				   const struct iovec *iov, size_t length,
				   struct siw_fault_decision *fate)
{
	uint8_t ecn = fate->mark ? SIW_LLP_ECN_CE : 0;
	int rv = hold_back_datagram(f, SIW_FAULT_TX, dest, iov, length, length, ecn, fate);

	if (rv == 0 && fate->dup) {
		/* only the first copy of a duplicated datagram counts against the plan's rate */
		fate->depart_ns = 0;
		rv = hold_back_datagram(f, SIW_FAULT_TX, dest, iov, length, length, ecn, fate);
	}
	if (rv == -ENOBUFS) {
		siw_count(SIW_COUNTER_fault_limit, 1);
		rv = 0;
	}
	return rv;
}

static int datagram_send_by_fault_plan(struct siw_llp_sock *sock, struct siw_llp_faulty *f,
				       const struct siw_addr *dest, const struct iovec *iov, int n,
				       size_t length)
{
	struct siw_fault_queue *q = &f->way[SIW_FAULT_TX].queue;
	struct siw_fault_path before = f->way[SIW_FAULT_TX].path;
	struct siw_fault_decision fate;
	uint64_t now = siw_now_ns();
	int rv;

	siw_fault_queue_decide_packet_fate(q, &f->plan, &f->way[SIW_FAULT_TX].path, dest, length,
					   now, &fate);
	if (fate.drop >= 0) {
		siw_count((enum siw_counter)fate.drop, 1);
		rv = 0;
	} else if (fate.release_ns <= now && !fate.passes && !siw_fault_queue_first_due(q, now)) {
		rv = datagram_send_direct(sock, dest, iov, n, length, &fate);
		if (rv == 0)
			siw_fault_queue_note_undelayed_packet(q, now);
	} else {
		rv = hold_back_sent_datagram(f, dest, iov, length, &fate);
	}
	if (rv < 0)
		/* the caller will send again, so restore the plan's state */
		f->way[SIW_FAULT_TX].path = before;
	else if (fate.drop < 0)
		count_applied_faults(&fate, now);
	send_due_datagrams(sock, f, now);
	return rv;
}

int siw_llp_udp_send_with_faults(struct siw_llp_sock *sock, const struct siw_addr *dest,
				 const struct iovec *iov, int n)
{
	size_t length = siw_iov_octets(iov, n);
	struct siw_llp_faulty *f;
	int rv, error;

	if (length > MAX_DATAGRAM)
		return siw_llp_udp_send_without_faults(sock, dest, iov, n);
	f = siw_llp_fault_state_lock(sock, &error);
	if (error)
		return siw_llp_handle_failed_send(sock, error);
	if (!f)
		return siw_llp_udp_send_without_faults(sock, dest, iov, n);
	rv = datagram_send_by_fault_plan(sock, f, dest, iov, n, length);
	siw_llp_fault_state_unlock(sock, f, false);
	if (rv == 0)
		siw_llp_update_want_write(sock, false);
	return rv;
}

/* ---- receiving datagrams --------------------------------------------------------------------- */

/* Returns the length of a held datagram that is due, or -EAGAIN. */
static ssize_t take_due_datagram(struct siw_llp_sock *sock, struct siw_llp_faulty *f,
				 struct siw_addr *source, void *buf, size_t size)
{
	struct siw_fault_queue *q = &f->way[SIW_FAULT_RX].queue;
	struct siw_fault_held *held = siw_fault_queue_first_due(q, siw_now_ns());
	ssize_t got;

	if (!held)
		return -EAGAIN;
	got = (ssize_t)held->true_length;
	memcpy(buf, held->octets, held->length < size ? held->length : size);
	*source = held->peer;
	sock->got_ecn = held->ecn;
	siw_fault_queue_remove(q, held);
	siw_llp_sock_note_received_data(sock);
	return got;
}

/*
 * Applies the plan to a datagram received from the kernel. Returns true if it is delivered now, and
 * false if it was held back or dropped.
 */
static bool apply_fault_plan_to_received_datagram(struct siw_llp_sock *sock,
						  struct siw_llp_faulty *f,
						  const struct siw_addr *source, void *buf,
						  size_t here, size_t true_length)
{
	struct siw_fault_queue *q = &f->way[SIW_FAULT_RX].queue;
	struct iovec iov = { buf, here };
	struct siw_fault_decision fate;
	uint64_t now = siw_now_ns();
	bool direct;

	siw_fault_queue_decide_packet_fate(q, &f->plan, &f->way[SIW_FAULT_RX].path, source,
					   true_length, now, &fate);
	if (fate.drop >= 0) {
		siw_drop((enum siw_counter)fate.drop);
		return false;
	}
	count_applied_faults(&fate, now);
	if (fate.mark && sock->got_ecn)
		sock->got_ecn = SIW_LLP_ECN_CE;
	direct = fate.release_ns <= now && !fate.passes && !siw_fault_queue_first_due(q, now);
	if (direct)
		siw_fault_queue_note_undelayed_packet(q, now);
	for (int copies = !direct + fate.dup; copies; copies--) {
		if (hold_back_datagram(f, SIW_FAULT_RX, source, &iov, here, true_length,
				       sock->got_ecn, &fate))
			siw_drop(SIW_COUNTER_fault_limit);
		/* only the first copy of a duplicated datagram counts against the plan's rate */
		fate.depart_ns = 0;
	}
	if (direct && fate.corrupt)
		siw_fault_flip_bit(buf, here, fate.flip);
	return direct;
}

ssize_t siw_llp_udp_recv_with_faults(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
				     size_t size)
{
	struct siw_llp_faulty *f;
	ssize_t got = -EAGAIN;
	int error;

	f = siw_llp_fault_state_lock(sock, &error);
	if (error)
		return -error;
	if (!f)
		return siw_llp_udp_recv_without_faults(sock, source, buf, size);
	for (int i = 0; i < RECEIVES; i++) {
		got = take_due_datagram(sock, f, source, buf, size);
		if (got >= 0)
			break;
		got = siw_llp_udp_recv_without_faults(sock, source, buf, size);
		if (got < 0 || apply_fault_plan_to_received_datagram(
				       sock, f, source, buf,
				       (size_t)got < size ? (size_t)got : size, (size_t)got))
			break;
		got = -EAGAIN; /* the kernel may have more datagrams, so the socket stays ready */
	}
	siw_llp_fault_state_unlock(sock, f, true);
	return got;
}

/* ---- called by the poller -------------------------------------------------------------------- */

void siw_llp_fault_release_due_packets(struct siw_llp_poller *poller)
{
	uint64_t due = atomic_load_explicit(&poller->fault_due, memory_order_seq_cst),
		 now = siw_now_ns();
	int error;

	if (now < due && poller->fault_generation == siw_faults_plan_generation_number())
		return;
	poller->fault_generation = siw_faults_plan_generation_number();
	/*
	 * The time is cleared before the sockets are examined, so that the time of a packet that
	 * another thread holds back meanwhile is kept.
	 */
	atomic_store_explicit(&poller->fault_due, UINT64_MAX, memory_order_seq_cst);
	for (struct siw_link *l = poller->all.next; l != &poller->all; l = l->next) {
		struct siw_llp_sock *sock = SIW_LLP_OF(l, all);
		struct siw_llp_faulty *f;

		if (!atomic_load_explicit(&sock->faulty, memory_order_acquire))
			continue;
		f = siw_llp_fault_state_lock(sock, &error);
		if (sock->udp)
			send_due_datagrams(sock, f, now);
		else
			siw_llp_fault_perform_due_stream_actions(sock, f, now);
		if (siw_llp_fault_next_rx_due_time_ns(sock, f) <= now)
			siw_llp_sock_mark_ready(sock);
		siw_llp_fault_state_unlock(sock, f, true);
	}
}
