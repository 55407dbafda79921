/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A program makes calls that each transmit one part of a long send queue and find more space in
 * the socket, and then makes no further call for a while. The device's thread was also woken
 * because of the space, but runs only after these calls. By then the last call has consumed the
 * event from epoll, so the thread could go back to sleep with data left to send. The linker
 * (--wrap) inserts functions of this file in front of the thread's wait and of the socket's send.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "base/settings.h"
#include "llp/llp.h"
#include "rig.h"

/* octets: many times the capacity of the sockets, so the data is sent in many parts */
#define SIZE	 (64u << 20)
#define SETTLE_N 50 /* milliseconds without traffic after which the sockets count as idle */

static char from[SIZE], to[SIZE];
static pthread_t program;
static _Atomic bool asleep, held, caught;
static unsigned int sent; /* number of socket sends made by the program's thread */

int __real_siw_llp_wait_any(const struct siw_llp_waitset *sets, int n, int extra_fd,
			    int64_t timeout_us);
int __wrap_siw_llp_wait_any(const struct siw_llp_waitset *sets, int n, int extra_fd,
			    int64_t timeout_us);
ssize_t __real_siw_llp_tcp_sendv(struct siw_llp_sock *sock, const struct iovec *iov, int n);
ssize_t __wrap_siw_llp_tcp_sendv(struct siw_llp_sock *sock, const struct iovec *iov, int n);

static void sleep_ms(long ms)
{
	const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

/*
 * Holds back a thread that has been woken, as if it waited for its CPU. The kernel collects the
 * thread's events only when the thread runs again.
 */
int __wrap_siw_llp_wait_any(const struct siw_llp_waitset *sets, int n, int extra_fd,
			    int64_t timeout_us)
{
	int r;

	/* The program's own thread is not held back. */
	if (pthread_equal(pthread_self(), program))
		return __real_siw_llp_wait_any(sets, n, extra_fd, timeout_us);
	asleep = true;
	r = __real_siw_llp_wait_any(sets, n, extra_fd, timeout_us);
	if (held) {
		caught = true;
		while (held)
			sleep_ms(1);
		r = __real_siw_llp_wait_any(sets, n, extra_fd, timeout_us);
	}
	asleep = false;
	return r;
}

ssize_t __wrap_siw_llp_tcp_sendv(struct siw_llp_sock *sock, const struct iovec *iov, int n)
{
	ssize_t r = __real_siw_llp_tcp_sendv(sock, iov, n);

	if (r > 0 && pthread_equal(pthread_self(), program))
		sent++;
	return r;
}

static struct siw_mr *register_memory(struct rig *rig, char *memory, int access)
{
	struct siw_mr *mr = siw_reg_mr(rig->pd, memory, SIZE, access);

	must(mr);
	return mr;
}

static void post_write_of_whole_buffer(struct end *a, uint32_t lkey, uint32_t rkey)
{
	struct siw_sge sge = { .addr = (uintptr_t)from, .length = SIZE, .lkey = lkey };
	struct siw_send_wr *bad, wr = { .wr_id = 7,
					.sg_list = &sge,
					.num_sge = 1,
					.opcode = SIW_WR_RDMA_WRITE,
					.send_flags = SIW_SEND_SIGNALED };

	wr.wr.rdma.remote_addr = (uintptr_t)to;
	wr.wr.rdma.rkey = rkey;
	check(siw_post_send(a->qp, &wr, &bad));
}

/* Waits until the sockets are full and the sender's thread sleeps until there is space. */
static void wait_until_sender_is_blocked(void)
{
	long deadline = now_ms() + LIMIT_MS;

	for (int still = 0; still < SETTLE_N; sleep_ms(1)) {
		must(now_ms() < deadline);
		still = asleep ? still + 1 : 0;
	}
}

static void poll_empty_cq(struct end *end)
{
	struct siw_wc wc;

	must(siw_poll_cq(end->cq, 1, &wc) == 0);
}

/* Receives all data that the sockets hold, while the sender transmits nothing. */
static void drain_receiving_socket(struct end *b)
{
	long deadline = now_ms() + LIMIT_MS;

	for (int n = 0; n < SETTLE_N || !caught; n++) {
		must(now_ms() < deadline);
		for (int i = 0; i < 100; i++)
			poll_empty_cq(b);
		sleep_ms(1);
	}
}

int main(void)
{
	struct siw_mr *source, *place;
	struct rig one, two;
	struct end a, b;
	struct siw_wc wc;
	long deadline;

	program = pthread_self();
	memset(from, 0xa5, SIZE);
	rig_open(&one);
	/* the receiver has no progress thread: it processes data only when the test polls */
	check(siw_setting_set("progress_thread", 0));
	rig_open(&two);
	connect_rc_endpoints(&a, &one, &b, &two, 8);
	source = register_memory(&one, from, 0);
	place = register_memory(&two, to, SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_REMOTE_WRITE);
	post_write_of_whole_buffer(&a, source->lkey, place->rkey);
	wait_until_sender_is_blocked();
	held = true;
	drain_receiving_socket(&b);
	/* Arming the queue transmits without checking epoll, and stops the wait for space. */
	sent = 0;
	check(siw_req_notify_cq(a.cq, 0));
	must(sent);
	/* Consumes the epoll event that reports space, although no request waits for space. */
	poll_empty_cq(&a);
	held = false;
	/* The sender stops polling; its device's thread has to transmit the rest. */
	deadline = now_ms() + LIMIT_MS;
	while (*(volatile char *)&to[SIZE - 1] != from[SIZE - 1]) {
		must(now_ms() < deadline);
		poll_empty_cq(&b);
	}
	await_completions(&a, &wc, 1);
	must(!memcmp(from, to, SIZE));

	close_endpoint(&a);
	close_endpoint(&b);
	check(siw_dereg_mr(source));
	check(siw_dereg_mr(place));
	rig_close(&one);
	rig_close(&two);
	return 0;
}
