/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The process forks repeatedly while an RC stream, a UD queue pair and several threads carry
 * traffic. In the children every inherited handle is dead. They open their own device, communicate
 * over it, and exit in each possible way.
 *
 * siw-test-fork CHILDREN
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rig.h"

#define SLOTS 16

static struct rig left, right;
static struct end ud, rc_a, rc_b;
static _Atomic bool stop;
static _Atomic unsigned long rounds[2];

/*
 * In gcc 12, AddressSanitizer's allocator does not survive a fork if another thread is inside it: a
 * child hangs in free(). With AddressSanitizer the threads of this file therefore stop during a
 * fork; in other builds they keep running.
 */
#if defined(__SANITIZE_ADDRESS__)
static pthread_rwlock_t gate = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

static void begin_exchange_round(void)
{
	pthread_rwlock_rdlock(&gate);
}

static void end_exchange_round(void)
{
	pthread_rwlock_unlock(&gate);
}

static pid_t fork_between_rounds(void)
{
	pid_t pid;

	pthread_rwlock_wrlock(&gate);
	pid = fork();
	if (pid)
		pthread_rwlock_unlock(&gate);
	return pid;
}
#else
static void begin_exchange_round(void)
{
}

static void end_exchange_round(void)
{
}

static pid_t fork_between_rounds(void)
{
	return fork();
}
#endif

static void *exchange_rc_forever(void *unused)
{
	(void)unused;
	for (unsigned int i = 0; !atomic_load(&stop); i++) {
		begin_exchange_round();
		send_and_check_message(&rc_a, &rc_b, i % SLOT + 1, (char)i);
		send_and_check_message(&rc_b, &rc_a, i % SLOT + 1, (char)~i);
		end_exchange_round();
		atomic_fetch_add(&rounds[0], 1);
	}
	return NULL;
}

static void *exchange_ud_forever(void *unused)
{
	(void)unused;
	for (unsigned int i = 0; !atomic_load(&stop); i++) {
		begin_exchange_round();
		send_and_check_message(&ud, &ud, i % SLOT + 1, (char)i);
		end_exchange_round();
		atomic_fetch_add(&rounds[1], 1);
	}
	return NULL;
}

#define is_stale(call)	 must((call) == -ESTALE)
#define no_pointer(call) must((errno = 0, (call) == NULL && errno == ESTALE))

/*
 * Checks calls on handles that a forked child has inherited. None of these calls acquires a lock,
 * although other threads held all locks when the child was forked.
 */
static void check_handles_stale(void)
{
	struct siw_qp_init_attr init = { .qp_type = SIW_QPT_UD,
					 .send_cq = ud.cq,
					 .recv_cq = ud.cq };
	struct siw_qp_attr attr = { .qp_state = SIW_QPS_ERR };
	struct siw_device_attr limits;
	struct siw_cm_event event;
	struct siw_addr addr;
	struct siw_cq *cq;
	struct siw_wc wc;

	is_stale(post_send(&ud, 0, 1, 1));
	is_stale(post_send(&rc_a, 0, 1, 1));
	is_stale(post_recv(&rc_b, 0));
	is_stale(siw_poll_cq(rc_a.cq, 1, &wc));
	is_stale(siw_req_notify_cq(ud.cq, 0));
	is_stale(siw_poll_err(ud.qp, 0, NULL));
	is_stale(siw_get_cq_event(ud.channel, &cq, NULL, -1));
	is_stale(siw_comp_channel_fd(ud.channel));
	is_stale(siw_modify_qp(rc_a.qp, &attr, SIW_QP_STATE));
	is_stale(siw_query_qp(rc_a.qp, &attr, &init));
	is_stale(siw_qp_addr(ud.qp, &addr, NULL));
	is_stale(siw_cm_get_event(left.cm, &event, -1));
	is_stale(siw_cm_disconnect(rc_a.id));
	is_stale(siw_query_device(left.ctx, &limits));
	no_pointer(siw_alloc_pd(left.ctx));
	no_pointer(siw_create_qp(left.pd, &init));
	no_pointer(siw_reg_mr(left.pd, ud.mem, 1, 0));
	no_pointer(siw_create_cq(left.ctx, 1, NULL, NULL, 0));
	no_pointer(siw_cm_create_id(left.cm, NULL));
	siw_ack_cq_events(ud.cq, 1);
	is_stale(siw_cm_destroy_id(rc_b.id));
	is_stale(siw_destroy_qp(rc_b.qp));
	is_stale(siw_destroy_ah(ud.ah));
	is_stale(siw_dereg_mr(ud.mr));
	is_stale(siw_destroy_cq(ud.cq));
	is_stale(siw_destroy_comp_channel(ud.channel));
	is_stale(siw_cm_destroy_channel(left.cm));
	is_stale(siw_dealloc_pd(left.pd));
	is_stale(siw_close_device(left.ctx));
}

#if defined(__SANITIZE_THREAD__)
/*
 * ThreadSanitizer cannot start a thread in the forked child of a multithreaded process, so the
 * child switches the progress thread off by this function of base/settings.h.
 */
int siw_setting_set(const char *name, int64_t value);
#endif

static void exchange_in_child(void)
{
	struct end own_ud, a, b;
	struct rig own;

#if defined(__SANITIZE_THREAD__)
	check(siw_setting_set("progress_thread", 0));
#endif

	rig_open(&own);
	open_ud_endpoint(&own_ud, &own, SLOTS, NULL);
	connect_rc_endpoints(&a, &own, &b, &own, SLOTS);
	for (int i = 0; i < 5; i++) {
		send_and_check_message(&own_ud, &own_ud, SLOT, (char)i);
		send_and_check_message(&a, &b, SLOT, (char)i);
		send_and_check_message(&b, &a, SLOT, (char)i);
	}
	close_endpoint(&a);
	close_endpoint(&b);
	close_endpoint(&own_ud);
	rig_close(&own);
}

static _Noreturn void run_child(int i, char *program)
{
	/* kills the child if it hangs, so that its exit status shows the failure */
	alarm(LIMIT_MS / 1000 * 2);
	check_handles_stale();
	if (i % 2)
		exchange_in_child();
	if (i % 3 == 0)
		_exit(0);
	if (i % 3 == 1)
		execl(program, program, "0", (char *)NULL);
	exit(0);
}

int main(int argc, char **argv)
{
	int children = argc > 1 ? atoi(argv[1]) : 12;
	pthread_t threads[2];

	/* A child has run this program by exec, which must have closed siwarp's descriptors. */
	if (!children)
		return access("/proc/self/fd/3", F_OK) == 0;
	rig_open(&left);
	rig_open(&right);
	open_ud_endpoint(&ud, &left, SLOTS, NULL);
	connect_rc_endpoints(&rc_a, &left, &rc_b, &right, SLOTS);
	must(!pthread_create(&threads[0], NULL, exchange_rc_forever, NULL));
	must(!pthread_create(&threads[1], NULL, exchange_ud_forever, NULL));
	for (int i = 0; i < children; i++) {
		unsigned long before = atomic_load(&rounds[0]), at = now_ms();
		int status;
		pid_t pid = fork_between_rounds();

		must(pid >= 0);
		if (!pid)
			run_child(i, argv[0]);
		/* The loop ends when the stream has made progress while the child lives. */
		while (atomic_load(&rounds[0]) < before + 3)
			must(now_ms() < (long)at + LIMIT_MS);
		must(waitpid(pid, &status, 0) == pid);
		if (status)
			die("child %d ended with %#x", i, status);
	}
	atomic_store(&stop, true);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	send_and_check_message(&rc_a, &rc_b, SLOT, 'z');
	close_endpoint(&rc_a);
	close_endpoint(&rc_b);
	close_endpoint(&ud);
	rig_close(&right);
	rig_close(&left);
	printf("%lu and %lu rounds beside %d children\n", rounds[0], rounds[1], children);
	return 0;
}
