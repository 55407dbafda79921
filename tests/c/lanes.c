/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Threads that create and destroy queue pairs in four lanes of a device, beside threads that send
 * messages in each lane and threads that query the queue pairs. No two queue pairs ever have the
 * same QPN, although the numbers are made to recur, and their number never exceeds the limit of the
 * device. The argument is the duration in milliseconds.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/addr.h"
#include "device/device.h"
#include "rig.h"

#define LANES	 4
#define KEPT	 16 /* maximum number of queue pairs that a thread keeps */
#define MAX_KEPT 40 /* maximum number of queue pairs of all threads together */
#define QPNS	 (1u << 24)
#define SIZE	 64
#define SLOTS	 8
#define TRIES	 32

static struct rig rig;
static atomic_bool stop;
static _Atomic bool *in_use; /* for each QPN, whether a queue pair has it */
static atomic_ulong live, created, refused, messages, queries, late_queries;
static unsigned long max_live;

struct creator {
	pthread_t thread;
	unsigned int seed;
	struct siw_cq *cq;
	struct siw_qp *shared; /* the UD queue pair whose socket others share */
	struct siw_qp *_Atomic qps[KEPT];
};

static struct creator creators[LANES];
static struct end ends[LANES];

/* ---- queue pairs ----------------------------------------------------------------------------- */

static void record_created_qp(struct siw_qp *qp)
{
	must(!atomic_exchange(&in_use[siw_qp_num(qp)], true));
	atomic_fetch_add(&live, 1);
	must(!max_live || live <= max_live);
}

static struct siw_qp *try_to_create_qp(struct siw_cq *cq, struct siw_qp_init_attr init)
{
	struct siw_qp *qp;

	init.send_cq = init.recv_cq = cq;
	init.cap = (struct siw_qp_cap){ 4, 4, 1, 1, 0 };
	qp = siw_create_qp(rig.pd, &init);
	if (qp)
		record_created_qp(qp);
	return qp;
}

static struct siw_qp *create_qp(struct siw_cq *cq, struct siw_qp_init_attr init)
{
	struct siw_qp *qp = try_to_create_qp(cq, init);

	if (!qp)
		die("siw_create_qp: %s", strerror(errno));
	return qp;
}

static void destroy_qp(struct siw_qp *qp)
{
	atomic_fetch_sub(&live, 1);
	must(atomic_exchange(&in_use[siw_qp_num(qp)], false));
	check(siw_destroy_qp(qp));
}

/* ---- numbers, without other threads ---------------------------------------------------------- */

static void set_next_rc_qpn(uint32_t qpn)
{
	siw_lock(&rig.ctx->numbers_lock);
	rig.ctx->next_rc_qpn = qpn;
	/* After the counter was set back, the next numbers may belong to existing queue pairs. */
	rig.ctx->rc_qpns_recur |= qpn != SIW_LAST_RC_QPN;
	siw_unlock(&rig.ctx->numbers_lock);
}

/* Checks that the number after the last QPN is the first one that no queue pair has. */
static void check_recurring_rc_qpns(struct siw_cq *cq)
{
	struct siw_qp_init_attr rc = { .qp_type = SIW_QPT_RC };
	struct siw_qp *first = create_qp(cq, rc), *last, *next;

	must(siw_qp_num(first) == SIW_FIRST_RC_QPN);
	set_next_rc_qpn(SIW_LAST_RC_QPN);
	last = create_qp(cq, rc);
	next = create_qp(cq, rc);
	must(siw_qp_num(last) == SIW_LAST_RC_QPN && siw_qp_num(next) == SIW_FIRST_RC_QPN + 1);
	destroy_qp(first);
	destroy_qp(last);
	destroy_qp(next);
}

/*
 * Checks that an RC queue pair that connects by QPN and a UD queue pair that shares a socket have
 * different QPNs although their TCP port and UDP port have the same number. Returns false if the
 * UDP port is in use.
 */
static bool check_udp_and_tcp_port_with_one_number(struct siw_cq *cq)
{
	struct siw_qp *rc =
		create_qp(cq, (struct siw_qp_init_attr){ .qp_type = SIW_QPT_RC, .by_qpn = 1 });
	struct siw_qp_init_attr ud = { .qp_type = SIW_QPT_UD };
	struct siw_qp *first, *second;

	must(siw_qp_num(rc) >> SIW_QPN_INDEX_BIT == 1);
	check(siw_addr_parse("127.0.0.1", (uint16_t)siw_qp_num(rc), &ud.addr));
	first = try_to_create_qp(cq, ud);
	if (first) {
		second = create_qp(cq, (struct siw_qp_init_attr){ .qp_type = SIW_QPT_UD,
								  .shared_socket_qp = first });
		must(siw_qp_num(second) == siw_qp_num(rc) + (1u << SIW_QPN_INDEX_BIT));
		destroy_qp(second);
		destroy_qp(first);
	}
	destroy_qp(rc);
	return first;
}

/* ---- creating and destroying ----------------------------------------------------------------- */

static struct siw_qp *create_qp_of_type_number(struct creator *creator, unsigned int type)
{
	struct siw_qp_init_attr init = { .qp_type = SIW_QPT_UD };

	switch (type % 5) {
	case 0:
		init.qp_type = SIW_QPT_RC;
		break;
	case 1:
		init.qp_type = SIW_QPT_RC;
		init.by_qpn = 1;
		break;
	case 2:
		break;
	default:
		init.shared_socket_qp = creator->shared;
		break;
	}
	return try_to_create_qp(creator->cq, init);
}

static void create_or_destroy_random_qp(struct creator *creator)
{
	unsigned int choice = (unsigned int)rand_r(&creator->seed);
	struct siw_qp *_Atomic *at = &creator->qps[choice % KEPT];
	struct siw_qp *qp = *at;
	uint32_t qpn;

	if (qp) {
		destroy_qp(qp);
		*at = NULL;
		return;
	}
	qp = create_qp_of_type_number(creator, choice / KEPT);
	if (!qp) {
		must(errno == ENOMEM); /* the limit of the device's queue pairs is reached */
		atomic_fetch_add(&refused, 1);
		return;
	}
	*at = qp;
	atomic_fetch_add(&created, 1);
	/* The next RC queue pairs must not get the number of this one. */
	qpn = siw_qp_num(qp);
	if (choice / KEPT % 3 == 0 && qpn >= SIW_FIRST_RC_QPN)
		set_next_rc_qpn(qpn);
}

static void *create_and_destroy_qps(void *arg)
{
	struct creator *creator = arg;

	while (!stop)
		create_or_destroy_random_qp(creator);
	for (int i = 0; i < KEPT; i++)
		if (creator->qps[i])
			destroy_qp(creator->qps[i]);
	return NULL;
}

/* ---- traffic and queries --------------------------------------------------------------------- */

static void *send_messages(void *arg)
{
	struct end *end = arg;

	for (char first = 0; !stop; first++, atomic_fetch_add(&messages, 1))
		send_and_check_message(end, end, SIZE, first);
	return NULL;
}

static void query_and_check_device(void)
{
	struct siw_device_info info;

	check(siw_query_device_info(rig.ctx, &info));
	must(info.up && info.n_addrs && !strcmp(info.netdev, "lo"));
}

/* Queries a queue pair that sends and receives meanwhile. */
static void query_qp_with_traffic(struct end *end)
{
	struct siw_qp_init_attr init;
	struct siw_err_entry error;
	struct siw_qp_attr attr;
	struct siw_addr addr;

	check(siw_query_qp(end->qp, &attr, &init));
	must(attr.qp_state == SIW_QPS_RTS && init.qp_type == SIW_QPT_UD &&
	     init.send_cq == end->cq && init.recv_cq == end->cq && init.cap.max_send_wr == SLOTS);
	check(siw_qp_addr(end->qp, &addr, NULL));
	must(siw_addr_port(&addr) == siw_qp_num(end->qp));
	must(siw_query_drops(end->qp, NULL, 0) == 0 && siw_poll_err(end->qp, 1, &error) == 0);
}

/* Queries a queue pair that another thread may destroy meanwhile. */
static void query_qp_of_creator_thread(const struct creator *creator, unsigned int number)
{
	struct siw_qp_init_attr init;
	struct siw_qp *qp = creator->qps[number % KEPT];
	struct siw_qp_attr attr;
	int r;

	if (!qp)
		return;
	r = siw_query_qp(qp, &attr, &init);
	must(r == 0 || r == -EINVAL);
	atomic_fetch_add(&late_queries, 1);
}

static void *query_device_and_qps_repeatedly(void *arg)
{
	unsigned int seed = (unsigned int)(uintptr_t)arg;

	for (; !stop; atomic_fetch_add(&queries, 1)) {
		unsigned int choice = (unsigned int)rand_r(&seed);

		query_and_check_device();
		query_qp_with_traffic(&ends[choice % LANES]);
		query_qp_of_creator_thread(&creators[choice / LANES % LANES],
					   choice / LANES / LANES);
	}
	return NULL;
}

/* ---- all threads ----------------------------------------------------------------------------- */

static void create_cq_and_shared_qp_in_each_lane(void)
{
	/*
	 * The first queue pair chooses the lane of its CQ. Completion vector 0 stands for the lane
	 * with the fewest CQs, which is lane 0 after the others.
	 */
	for (int i = LANES - 1; i >= 0; i--) {
		struct creator *creator = &creators[i];

		creator->seed = (unsigned int)i + 1;
		creator->cq = siw_create_cq(rig.ctx, 64, NULL, NULL, i);
		must(creator->cq);
		creator->shared =
			create_qp(creator->cq, (struct siw_qp_init_attr){ .qp_type = SIW_QPT_UD });
		must(creator->shared->lane->index == (unsigned int)i);
	}
}

static void open_endpoints_for_traffic(void)
{
	unsigned int used = 0;

	for (int i = 0; i < LANES; i++) {
		unsigned int lane;

		open_ud_endpoint(&ends[i], &rig, SLOTS, NULL);
		atomic_store(&in_use[siw_qp_num(ends[i].qp)], true);
		lane = ends[i].qp->lane->index;
		must(lane < LANES && !(used >> lane & 1));
		used |= 1u << lane;
	}
}

static void wait_until_each_thread_has_made_progress(long ms)
{
	const struct timespec rest = { .tv_nsec = 10000000 };
	long end = now_ms() + ms, last = now_ms() + LIMIT_MS;

	/* On a busy machine the test continues until each thread has made progress. */
	while (now_ms() < end ||
	       (!(created > 100 && refused && messages > 100 && queries > 100 && late_queries) &&
		now_ms() < last))
		nanosleep(&rest, NULL);
	stop = true;
}

static void run_threads(long ms)
{
	pthread_t senders[LANES], queriers[2];

	for (int i = 0; i < LANES; i++) {
		check(-pthread_create(&creators[i].thread, NULL, create_and_destroy_qps,
				      &creators[i]));
		check(-pthread_create(&senders[i], NULL, send_messages, &ends[i]));
	}
	for (uintptr_t i = 0; i < 2; i++)
		check(-pthread_create(&queriers[i], NULL, query_device_and_qps_repeatedly,
				      (void *)(i + 1)));
	wait_until_each_thread_has_made_progress(ms);
	for (int i = 0; i < LANES; i++) {
		check(-pthread_join(creators[i].thread, NULL));
		check(-pthread_join(senders[i], NULL));
	}
	for (int i = 0; i < 2; i++)
		check(-pthread_join(queriers[i], NULL));
}

int main(int argc, char **argv)
{
	int tries = 0;

	setenv("SIWARP_LANES", "4", 1);
	in_use = calloc(QPNS, sizeof(*in_use));
	must(in_use);
	rig_open(&rig);
	create_cq_and_shared_qp_in_each_lane();
	check_recurring_rc_qpns(creators[0].cq);
	while (!check_udp_and_tcp_port_with_one_number(creators[0].cq))
		must(++tries < TRIES);
	open_endpoints_for_traffic();
	max_live = live + MAX_KEPT;
	rig.ctx->attr.max_qp = (uint32_t)(max_live + LANES);
	run_threads(argc > 1 ? atol(argv[1]) : 1000);
	must(live == LANES);
	for (int i = 0; i < LANES; i++) {
		destroy_qp(creators[i].shared);
		check(siw_destroy_cq(creators[i].cq));
		close_endpoint(&ends[i]);
	}
	must(atomic_load(&rig.ctx->n_qp) == 0 && rig.ctx->n_high == 0 &&
	     siw_link_empty(&rig.ctx->qps));
	rig_close(&rig);
	free((void *)in_use);
	printf("%lu created, %lu refused, %lu messages, %lu and %lu queries\n", created, refused,
	       messages, queries, late_queries);
	return 0;
}
