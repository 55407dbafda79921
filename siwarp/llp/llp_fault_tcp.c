/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_fault_tcp.c - applies a fault plan to streams: octets are delayed or changed, never lost
 * or reordered.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/counters.h"
#include "base/guard.h"
#include "base/pieces.h"
#include "llp/llp_fault.h"

#define PIECES 64 /* maximum number of iovecs that one call passes on */
#define TURNS  16 /* maximum number of reads in one call */

/*
 * Stores the iovecs of the first *length octets of iov in out, at most PIECES. Returns their number
 * and sets *length to the octets in them.
 */
static int copy_iov_prefix(const struct iovec *iov, int n, struct iovec *out, size_t *length)
{
	size_t left = *length;
	int used = 0;

	for (int i = 0; i < n && left && used < PIECES; i++) {
		if (!iov[i].iov_len)
			continue;
		out[used] = iov[i];
		if (out[used].iov_len > left)
			out[used].iov_len = left;
		left -= out[used++].iov_len;
	}
	*length -= left;
	return used;
}

static uint8_t *get_scratch_buffer(struct siw_llp_faulty *f)
{
	if (!f->scratch)
		f->scratch = malloc(SIW_LLP_FAULT_SCRATCH);
	return f->scratch;
}

/* Ends the stream as if the peer or the network had ended it. */
static int end_stream_with_error(struct siw_llp_faulty *f, int error)
{
	siw_fault_queue_free(&f->way[SIW_FAULT_TX].queue);
	siw_fault_queue_free(&f->way[SIW_FAULT_RX].queue);
	atomic_store_explicit(&f->full, false, memory_order_relaxed);
	f->reset_at = UINT64_MAX;
	f->shut = false;
	f->error = error;
	return -error;
}

static int reset_stream_by_fault_plan(struct siw_llp_sock *sock, struct siw_llp_faulty *f)
{
	siw_count(SIW_COUNTER_fault_reset, 1);
	siw_llp_tcp_reset(sock);
	return end_stream_with_error(f, ECONNRESET);
}

/* ---- sending --------------------------------------------------------------------------------- */

static ssize_t stream_send_direct(struct siw_llp_sock *sock, struct siw_llp_faulty *f,
				  const struct iovec *iov, int n, size_t share)
{
	struct siw_fault_path *path = &f->way[SIW_FAULT_TX].path;
	uint64_t from = path->octets;
	size_t looked_at = share < SIW_LLP_FAULT_SCRATCH ? share : SIW_LLP_FAULT_SCRATCH;
	int bits = siw_fault_corrupt_stream_octets(&f->plan, path, &f->peer, NULL, looked_at);
	struct iovec part[PIECES];
	ssize_t sent;

	if (bits) {
		share = looked_at;
		if (!get_scratch_buffer(f))
			return siw_llp_handle_failed_send(sock, ENOBUFS);
		if (siw_fault_copy_from_iov(f->scratch, iov, 0, share))
			return -EFAULT;
		siw_fault_corrupt_stream_octets(&f->plan, path, &f->peer, f->scratch, share);
		path->octets = from;
		part[0] = (struct iovec){ f->scratch, share };
		n = 1;
	} else {
		/*
		 * Octets beyond the scratch buffer's size were not examined, so this call does not
		 * send them if the plan may corrupt octets.
		 */
		for (int i = 0; i < f->plan.n; i++)
			if (f->plan.clause[i].corrupt)
				share = looked_at;
		n = copy_iov_prefix(iov, n, part, &share);
	}
	sent = siw_llp_tcp_sendv_without_faults(sock, part, n);
	if (sent > 0)
		path->octets = from + (uint64_t)sent;
	if (sent > 0 && bits) {
		/* Only the corrupted octets that were actually sent are counted. */
		path->octets = from;
		bits = siw_fault_corrupt_stream_octets(&f->plan, path, &f->peer, NULL,
						       (size_t)sent);
		path->octets = from + (uint64_t)sent;
		siw_count(SIW_COUNTER_fault_corrupt, (uint64_t)bits);
	}
	return sent;
}

/* Holds back up to length octets of a stream. Returns the number of octets held back, or -errno. */
static ssize_t hold_back_stream_octets(struct siw_llp_faulty *f, enum siw_fault_dir dir,
				       const struct iovec *iov, size_t length, uint64_t now)
{
	struct siw_fault_path *path = &f->way[dir].path;
	size_t piece = siw_fault_stream_max_piece_octets(&f->plan, path, &f->peer), taken = 0;

	while (taken < length) {
		size_t n = length - taken < piece ? length - taken : piece;
		struct siw_fault_path before = *path;
		struct siw_fault_decision fate = {
			.release_ns =
				siw_fault_stream_release_time(&f->plan, path, &f->peer, n, now),
		};
		struct siw_fault_held *held;
		int rv = siw_fault_queue_add(&f->way[dir].queue, iov, taken, n, &fate, &held);

		if (rv < 0) {
			*path = before; /* octets that were not added do not use the rate limit */
			return taken ? (ssize_t)taken : rv;
		}
		siw_count(SIW_COUNTER_fault_corrupt,
			  (uint64_t)siw_fault_corrupt_stream_octets(&f->plan, path, &f->peer,
								    held->octets, n));
		if (held->release_ns > now)
			siw_count(SIW_COUNTER_fault_delay, 1);
		taken += n;
	}
	return (ssize_t)taken;
}

static ssize_t hold_back_sent_stream_octets(struct siw_llp_sock *sock, struct siw_llp_faulty *f,
					    const struct iovec *iov, size_t share, uint64_t now)
{
	struct siw_fault_queue *q = &f->way[SIW_FAULT_TX].queue;
	size_t limit =
		siw_fault_stream_max_held_octets(&f->plan, &f->way[SIW_FAULT_TX].path, &f->peer);
	ssize_t taken = -ENOBUFS;

	if (q->octets < limit) {
		size_t room = limit - q->octets;

		taken = hold_back_stream_octets(f, SIW_FAULT_TX, iov, share < room ? share : room,
						now);
	}
	atomic_store_explicit(&f->full, q->octets >= limit || taken == -ENOBUFS,
			      memory_order_relaxed);
	if (taken == -ENOBUFS) {
		/*
		 * siw_llp_fault_perform_due_stream_actions() reports the socket ready once the
		 * queue has space.
		 */
		siw_count(SIW_COUNTER_tx_eagain, 1);
		siw_llp_request_write_event(sock, false);
		return -EAGAIN;
	}
	return taken;
}

static ssize_t send_by_fault_plan_locked(struct siw_llp_sock *sock, struct siw_llp_faulty *f,
					 const struct iovec *iov, int n)
{
	struct siw_fault_path *path = &f->way[SIW_FAULT_TX].path;
	size_t length = siw_iov_octets(iov, n), share;
	uint64_t now = siw_now_ns();
	ssize_t sent;

	if (f->error)
		return -f->error;
	share = siw_fault_stream_octets_for_next_call(&f->plan, path, &f->peer, length, now);
	if (!share)
		return reset_stream_by_fault_plan(sock, f);
	if (siw_fault_queue_empty(&f->way[SIW_FAULT_TX].queue) &&
	    !siw_fault_stream_is_delayed(&f->plan, path, &f->peer, now))
		sent = stream_send_direct(sock, f, iov, n, share);
	else
		sent = hold_back_sent_stream_octets(sock, f, iov, share, now);
	if (sent < 0)
		path->calls--; /* the caller repeats the call: the plan must not count it twice */
	else if (share < length)
		siw_count(SIW_COUNTER_fault_short, 1);
	return sent;
}

ssize_t siw_llp_tcp_sendv_with_faults(struct siw_llp_sock *sock, const struct iovec *iov, int n)
{
	int error;
	struct siw_llp_faulty *f = siw_llp_fault_state_lock(sock, &error);
	ssize_t sent;

	if (error)
		return siw_llp_handle_failed_send(sock, error);
	if (!f)
		return siw_llp_tcp_sendv_without_faults(sock, iov, n);
	sent = send_by_fault_plan_locked(sock, f, iov, n);
	siw_llp_fault_state_unlock(sock, f, false);
	return sent;
}

/* Sends the octets of a stream that are due, until the socket is full. */
static void send_due_octets(struct siw_llp_sock *sock, struct siw_llp_faulty *f, uint64_t now)
{
	struct siw_fault_queue *q = &f->way[SIW_FAULT_TX].queue;
	struct siw_fault_held *held;

	if (now < f->retry_at)
		return;
	f->retry_at = 0;
	/* The loop ends: each iteration sends octets or returns. */
	while ((held = siw_fault_queue_first_due(q, now))) {
		struct iovec iov = { held->octets + held->octets_done,
				     held->length - held->octets_done };
		ssize_t sent = siw_llp_tcp_sendv_without_faults(sock, &iov, 1);

		if (sent == -EAGAIN) {
			f->retry_at = now + 1000000;
			return;
		}
		if (sent < 0) {
			end_stream_with_error(f, (int)-sent);
			siw_llp_sock_mark_ready(sock);
			return;
		}
		held->octets_done += (size_t)sent;
		if (held->octets_done == held->length)
			siw_fault_queue_remove(q, held);
	}
}

void siw_llp_fault_perform_due_stream_actions(struct siw_llp_sock *sock, struct siw_llp_faulty *f,
					      uint64_t now)
{
	struct siw_fault_queue *q = &f->way[SIW_FAULT_TX].queue;

	if (f->reset_at <= now && !f->error) {
		reset_stream_by_fault_plan(sock, f);
		siw_llp_sock_mark_ready(sock);
		return;
	}
	if (f->error || siw_fault_queue_empty(q))
		return;
	send_due_octets(sock, f, now);
	if (f->shut && siw_fault_queue_empty(q)) {
		f->shut = false;
		siw_llp_tcp_shutdown_without_faults(sock);
	}
	if (atomic_load_explicit(&f->full, memory_order_relaxed) &&
	    q->octets < siw_fault_stream_max_held_octets(&f->plan, &f->way[SIW_FAULT_TX].path,
							 &f->peer)) {
		atomic_store_explicit(&f->full, false, memory_order_relaxed);
		siw_llp_sock_mark_ready(sock);
	}
}

int siw_llp_tcp_shutdown_with_faults(struct siw_llp_sock *sock)
{
	int error, rv = 0;
	struct siw_llp_faulty *f = siw_llp_fault_state_lock(sock, &error);

	if (!f)
		return siw_llp_tcp_shutdown_without_faults(sock);
	if (f->error || siw_fault_queue_empty(&f->way[SIW_FAULT_TX].queue))
		rv = siw_llp_tcp_shutdown_without_faults(sock);
	else
		f->shut = true;
	siw_llp_fault_state_unlock(sock, f, false);
	return rv;
}

void siw_llp_fault_note_connected(struct siw_llp_sock *sock)
{
	int error;
	struct siw_llp_faulty *f = siw_llp_fault_state_lock(sock, &error);

	if (f)
		siw_llp_fault_state_unlock(sock, f, false);
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Copies length octets to the caller's iovecs. */
static int copy_to_iovecs(const struct iovec *iov, int n, const uint8_t *octets, size_t length)
{
	for (int i = 0; i < n && length; i++) {
		size_t now = iov[i].iov_len < length ? iov[i].iov_len : length;

		if (siw_guard_write(iov[i].iov_base, octets, now))
			return -EFAULT;
		octets += now;
		length -= now;
	}
	return 0;
}

/*
 * Copies octets of a stream that are due to the caller. Returns the number of octets copied, 0 at
 * the end of the stream, -EAGAIN or -EFAULT.
 */
static ssize_t take_due_stream_octets(struct siw_llp_sock *sock, struct siw_llp_faulty *f,
				      const struct iovec *iov, int n, size_t length)
{
	struct siw_fault_queue *q = &f->way[SIW_FAULT_RX].queue;
	uint64_t now = siw_now_ns();
	struct siw_fault_held *held;
	size_t here;

	if (siw_llp_fault_next_rx_due_time_ns(sock, f) > now)
		return -EAGAIN;
	held = siw_fault_queue_first_due(q, now);
	if (!held)
		return -EAGAIN;
	if (held->end) {
		siw_llp_sock_note_end_of_stream(sock);
		/* from now on the kernel reports the end of the stream */
		siw_fault_queue_remove(q, held);
		return 0;
	}
	here = held->length - held->octets_done;
	if (here > length)
		here = length;
	if (copy_to_iovecs(iov, n, held->octets + held->octets_done, here))
		return -EFAULT;
	held->octets_done += here;
	if (held->octets_done == held->length)
		siw_fault_queue_remove(q, held);
	siw_llp_sock_note_received_data(sock);
	return (ssize_t)here;
}

static int hold_back_end_of_stream(struct siw_llp_faulty *f)
{
	struct siw_fault_decision fate = { .release_ns = f->way[SIW_FAULT_RX].path.last_ns };
	struct siw_fault_held *held;
	int rv = siw_fault_queue_add(&f->way[SIW_FAULT_RX].queue, NULL, 0, 0, &fate, &held);

	if (rv == 0)
		held->end = true;
	return rv;
}

static bool is_end_of_stream_held(struct siw_llp_faulty *f)
{
	struct siw_link *l = f->way[SIW_FAULT_RX].queue.order.prev;

	return l != &f->way[SIW_FAULT_RX].queue.order &&
	       siw_container(l, struct siw_fault_held, link)->end;
}

/*
 * Moves octets from the kernel into the queue of held octets. Returns the number of octets, 0 at
 * the end of the stream, or -errno.
 */
static ssize_t stream_read_and_hold_back(struct siw_llp_sock *sock, struct siw_llp_faulty *f,
					 size_t share)
{
	size_t limit =
		siw_fault_stream_max_held_octets(&f->plan, &f->way[SIW_FAULT_RX].path, &f->peer);
	struct siw_fault_queue *q = &f->way[SIW_FAULT_RX].queue;
	struct iovec iov;
	ssize_t got;

	/*
	 * If the queue is full, the socket leaves the hot set, because unread octets of a hot
	 * socket end every sleep.
	 */
	sock->stopped = is_end_of_stream_held(f) || q->octets >= limit;
	if (sock->stopped) {
		siw_llp_sock_note_end_of_stream(sock);
		return -EAGAIN;
	}
	if (!get_scratch_buffer(f))
		return -ENOMEM;
	if (share > SIW_LLP_FAULT_SCRATCH)
		share = SIW_LLP_FAULT_SCRATCH;
	if (share > limit - q->octets)
		share = limit - q->octets;
	iov = (struct iovec){ f->scratch, share };
	got = siw_llp_tcp_recvv_without_faults(sock, &iov, 1);
	if (got > 0 &&
	    hold_back_stream_octets(f, SIW_FAULT_RX, &iov, (size_t)got, siw_now_ns()) < got)
		/* not all octets could be queued, so the stream ends in error */
		return end_stream_with_error(f, ENOMEM);
	if (got == 0)
		hold_back_end_of_stream(f);
	return got;
}

/*
 * Receives directly from the kernel. The scratch buffer is used only if the fault plan corrupts
 * octets.
 */
static ssize_t recv_stream_from_kernel(struct siw_llp_sock *sock, struct siw_llp_faulty *f,
				       const struct iovec *iov, int n, size_t share)
{
	struct siw_fault_path *path = &f->way[SIW_FAULT_RX].path;
	struct iovec part[PIECES];
	ssize_t got;
	int bits;

	if (siw_fault_corrupt_stream_octets(&f->plan, path, &f->peer, NULL, share)) {
		if (!get_scratch_buffer(f))
			return -ENOMEM;
		share = share < SIW_LLP_FAULT_SCRATCH ? share : SIW_LLP_FAULT_SCRATCH;
		part[0] = (struct iovec){ f->scratch, share };
		got = siw_llp_tcp_recvv_without_faults(sock, part, 1);
		if (got <= 0)
			return got;
		bits = siw_fault_corrupt_stream_octets(&f->plan, path, &f->peer, f->scratch,
						       (size_t)got);
		siw_count(SIW_COUNTER_fault_corrupt, (uint64_t)bits);
		return copy_to_iovecs(iov, n, f->scratch, (size_t)got) ? -EFAULT : got;
	}
	n = copy_iov_prefix(iov, n, part, &share);
	got = siw_llp_tcp_recvv_without_faults(sock, part, n);
	if (got > 0)
		path->octets += (uint64_t)got;
	return got;
}

static ssize_t recv_by_fault_plan_locked(struct siw_llp_sock *sock, struct siw_llp_faulty *f,
					 const struct iovec *iov, int n)
{
	struct siw_fault_path *path = &f->way[SIW_FAULT_RX].path;
	size_t length = siw_iov_octets(iov, n), share;

	for (int i = 0; i < TURNS; i++) {
		ssize_t got = f->error ? -f->error
				       : take_due_stream_octets(sock, f, iov, n, length);
		uint64_t now = siw_now_ns();

		if (got != -EAGAIN)
			return got;
		share = siw_fault_stream_octets_for_next_call(&f->plan, path, &f->peer, length,
							      now);
		if (!share)
			return reset_stream_by_fault_plan(sock, f);
		if (siw_fault_queue_empty(&f->way[SIW_FAULT_RX].queue) &&
		    siw_fault_queue_empty(&f->way[SIW_FAULT_TX].queue) &&
		    !siw_fault_stream_is_delayed(&f->plan, path, &f->peer, now)) {
			got = recv_stream_from_kernel(sock, f, iov, n, share);
			if (got < 0)
				/* the caller repeats the call: the plan must not count it twice */
				path->calls--;
			else if (share < length && (size_t)got == share)
				siw_count(SIW_COUNTER_fault_short, 1);
			return got;
		}
		got = stream_read_and_hold_back(sock, f, share);
		if (got < 0) {
			/* Packets may have become due since this call began. */
			path->calls--;
			return got == -EAGAIN ? take_due_stream_octets(sock, f, iov, n, length)
					      : got;
		}
	}
	return -EAGAIN; /* the kernel may have more octets, so the socket stays ready */
}

ssize_t siw_llp_tcp_recvv_with_faults(struct siw_llp_sock *sock, const struct iovec *iov, int n)
{
	int error;
	struct siw_llp_faulty *f = siw_llp_fault_state_lock(sock, &error);
	ssize_t got;

	if (error)
		return -error;
	if (!f)
		return siw_llp_tcp_recvv_without_faults(sock, iov, n);
	got = recv_by_fault_plan_locked(sock, f, iov, n);
	siw_llp_fault_state_unlock(sock, f, true);
	if (got < 0 && got != -EAGAIN)
		siw_llp_sock_note_end_of_stream(sock);
	return got;
}
