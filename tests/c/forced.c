/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Forced close of a device with traffic on its queue pairs, with threads that poll, post and wait,
 * and with every kind of child object. Afterwards calls on every handle return -ESTALE.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rig.h"

static struct siw_context *context;
static struct siw_pd *pd;
static struct siw_comp_channel *channel;
static struct siw_cq *cq;
static struct siw_srq *srq;
static struct siw_mr *mr;
static struct siw_mw *mw;
static struct siw_ah *ah;
static struct siw_qp *ud, *grouped, *listed;
static struct siw_cm_channel *cm;
static struct siw_cm_id *listener, *active;
static char memory[4096];

static void *check_object_created(void *object)
{
	must(object);
	return object;
}

static struct siw_qp *create_qp(int type, int by_qpn)
{
	struct siw_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = type,
		.srq = type == SIW_QPT_UD ? srq : NULL,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16 },
		.by_qpn = by_qpn,
	};

	return check_object_created(siw_create_qp(pd, &init));
}

static void modify_to_rts(struct siw_qp *qp)
{
	for (int state = SIW_QPS_INIT; state <= SIW_QPS_RTS; state++) {
		struct siw_qp_attr attr = { .qp_state = state };

		check(siw_modify_qp(qp, &attr,
				    SIW_QP_STATE | (state == SIW_QPS_INIT ? SIW_QP_QKEY : 0)));
	}
}

static void create_all_objects(void)
{
	struct siw_srq_init_attr shared = { .attr = { .max_wr = 64, .max_sge = 1 } };
	struct siw_addr lo, group;

	check(siw_addr_parse("127.0.0.1", 0, &lo));
	check(siw_addr_parse("239.255.77.7", 0, &group));
	context = check_object_created(siw_open_device_by_addr(&lo));
	pd = check_object_created(siw_alloc_pd(context));
	channel = check_object_created(siw_create_comp_channel(context));
	cq = check_object_created(siw_create_cq(context, 256, NULL, channel, 0));
	srq = check_object_created(siw_create_srq(pd, &shared));
	mr = check_object_created(siw_reg_mr(pd, memory, sizeof(memory),
					     SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_MW_BIND));
	mw = check_object_created(siw_alloc_mw(pd, SIW_MW_TYPE_2));
	ud = create_qp(SIW_QPT_UD, 0);
	grouped = create_qp(SIW_QPT_UD, 0);
	modify_to_rts(ud);
	modify_to_rts(grouped);
	check(siw_attach_mcast(grouped, &group));
	create_qp(SIW_QPT_RC, 1);
	create_qp(SIW_QPT_RD, 0);
	check(siw_qp_addr(ud, &lo, NULL));
	ah = check_object_created(siw_create_ah(pd, &lo));
	cm = check_object_created(siw_cm_create_channel(context));
	listener = check_object_created(siw_cm_create_id(cm, NULL));
	lo.port_be = 0;
	check(siw_cm_listen(listener, &lo, 8));
	check(siw_cm_addr(listener, &lo, NULL));
	active = check_object_created(siw_cm_create_id(cm, NULL));
	listed = create_qp(SIW_QPT_RC, 0);
	check(siw_cm_bind_qp(active, listed));
	check(siw_cm_connect(active, &lo, NULL, NULL));
	check(siw_req_notify_cq(cq, 0));
}

static void *post_until_objects_are_stale(void *unused)
{
	struct siw_sge sge = { (uintptr_t)memory, 64, mr->lkey };
	struct siw_sge into = { (uintptr_t)memory + 64, 64, mr->lkey };
	struct siw_recv_wr recv = { .sg_list = &into, .num_sge = 1 };
	struct siw_send_wr send = { .opcode = SIW_WR_SEND,
				    .sg_list = &sge,
				    .num_sge = 1,
				    .send_flags = SIW_SEND_SIGNALED,
				    .wr.ud = { .ah = ah, .remote_qkey = 1u << 31 } };
	struct siw_wc wc[16];
	int r;

	do {
		siw_post_srq_recv(srq, &recv, NULL);
		r = siw_post_send(ud, &send, NULL);
		siw_poll_cq(cq, 16, wc);
	} while (r != -ESTALE);
	return unused;
}

static void *read_cq_events_until_stale(void *unused)
{
	struct siw_cq *got;
	void *user;
	int r;

	while (!(r = siw_get_cq_event(channel, &got, &user, -1)))
		; /* the thread reads completion events without acknowledging them */
	must(r == -ESTALE);
	return unused;
}

static void *read_async_events_until_estale(void *unused)
{
	struct siw_async_event event;
	int r;

	while (!(r = siw_get_async_event(context, &event, -1)))
		;
	must(r == -ESTALE);
	return unused;
}

static void *read_cm_events_until_stale(void *unused)
{
	static struct siw_cm_event event;
	int r;

	while (!(r = siw_cm_get_event(cm, &event, -1)))
		;
	must(r == -ESTALE);
	return unused;
}

static void check_all_handles_stale(void)
{
	struct siw_qp_attr attr = { 0 };
	struct siw_wc wc;

	must(siw_close_device_forced(context) == -ESTALE);
	must(siw_close_device(context) == -ESTALE);
	must(siw_destroy_qp(ud) == -ESTALE);
	must(siw_destroy_qp(grouped) == -ESTALE);
	must(siw_modify_qp(listed, &attr, SIW_QP_STATE) == -ESTALE);
	must(siw_poll_cq(cq, 1, &wc) == -ESTALE);
	must(siw_destroy_cq(cq) == -ESTALE);
	must(siw_destroy_comp_channel(channel) == -ESTALE);
	must(siw_destroy_srq(srq) == -ESTALE);
	must(siw_dereg_mr(mr) == -ESTALE);
	must(siw_dealloc_mw(mw) == -ESTALE);
	must(siw_destroy_ah(ah) == -ESTALE);
	must(siw_dealloc_pd(pd) == -ESTALE);
	must(siw_cm_disconnect(active) == -ESTALE);
	must(siw_cm_destroy_id(listener) == -ESTALE);
	must(siw_cm_destroy_channel(cm) == -ESTALE);
	siw_ack_cq_events(cq, 1);
}

int main(void)
{
	static void *(*const work[])(
		void *) = { post_until_objects_are_stale, read_cq_events_until_stale,
			    read_async_events_until_estale, read_cm_events_until_stale };
	const struct timespec a_while = { .tv_nsec = 50000000 };

	for (int round = 0; round < 5; round++) {
		pthread_t threads[4];

		create_all_objects();
		for (int i = 0; i < 4; i++)
			must(pthread_create(&threads[i], NULL, work[i], NULL) == 0);
		nanosleep(&a_while, NULL);
		check(siw_close_device_forced(context));
		for (int i = 0; i < 4; i++)
			must(pthread_join(threads[i], NULL) == 0);
		check_all_handles_stale();
	}
	return 0;
}
