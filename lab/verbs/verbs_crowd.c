/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * crowd: latency of a queue pair beside idle queue pairs of the same type in both processes, whose
 * CQs are in all lanes of the device. Each idle RC queue pair of the client is connected to one of
 * the server. The run "alone" has no idle queue pairs.
 */
#include <stdlib.h>
#include <string.h>

#include "lab/verbs/verbs.h"

#define IDLE_QPS  10000
#define RECVS	  16
#define MAX_LANES 16
#define WAIT_MS	  5000 /* longest wait for an event of a connection */

struct crowd {
	struct siw_bench_side side;
	uint32_t n;
	struct siw_qp *qps[IDLE_QPS];
	int n_cqs;
	struct siw_cq *cqs[MAX_LANES];
	/* the members from here on are used only to connect RC queue pairs */
	struct siw_cm_channel *channel;
	struct siw_cm_id *listener, *ids[IDLE_QPS];
	struct siw_addr listens; /* the address of the server's listener */
};

static struct siw_qp *idle_qps_create_qp(struct siw_bench_side *e, int type, struct siw_cq *cq)
{
	struct siw_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = type,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	if (type != SIW_QPT_RC)
		siw_bench_exit_on_error(siw_addr_parse(e->o->local, 0, &init.addr), "the address");
	return siw_bench_require_object(siw_create_qp(e->pd, &init), "an idle queue pair");
}

static void idle_qps_post_recv(struct siw_bench_side *e, struct siw_qp *qp)
{
	struct siw_sge sge = { .addr = (uintptr_t)siw_bench_slot(&e->buf, 0),
			       .length = (uint32_t)e->buf.stride,
			       .lkey = e->mr->lkey };
	struct siw_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };

	siw_bench_exit_on_error(siw_post_recv(qp, &wr, &bad), "posting a receive");
}

struct siw_qp *siw_lab_open_unused_qp(struct siw_bench_side *e, int type, struct siw_cq *cq)
{
	struct siw_qp *qp = idle_qps_create_qp(e, type, cq);

	for (int s = SIW_QPS_INIT; s <= SIW_QPS_RTS; s++) {
		struct siw_qp_attr attr = { .qp_state = s };

		siw_bench_exit_on_error(siw_modify_qp(qp, &attr, SIW_QP_STATE),
					"changing the state of the queue pair");
	}
	idle_qps_post_recv(e, qp);
	return qp;
}

/* ---- RC -------------------------------------------------------------------------------------- */

/* Creates queue pair number i, binds it to the id of its connection, and posts a receive. */
static void idle_qps_create_bound_qp(struct crowd *crowd, struct siw_cm_id *id, uint32_t i)
{
	struct siw_qp *qp = idle_qps_create_qp(&crowd->side, SIW_QPT_RC,
					       crowd->cqs[i % (uint32_t)crowd->n_cqs]);

	siw_bench_exit_on_error(siw_cm_bind_qp(id, qp), "binding");
	idle_qps_post_recv(&crowd->side, qp);
	crowd->qps[i] = qp;
	crowd->ids[i] = id;
}

/* Waits for an event of one of two types, and returns whether the event has the first type. */
static bool idle_qps_wait_for_event(struct crowd *crowd, int type, int other,
				    struct siw_cm_event *event)
{
	siw_bench_exit_on_error(siw_cm_get_event(crowd->channel, event, WAIT_MS),
				"waiting for an event");
	if (event->event != type && event->event != other)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "an idle connection failed: %s",
			      siw_cm_event_str(event->event));
	return event->event == type;
}

static void idle_qps_accept_connections(struct crowd *crowd)
{
	uint32_t requested = 0, established = 0;

	while (established < crowd->n) {
		struct siw_cm_event event;

		if (!idle_qps_wait_for_event(crowd, SIW_CM_CONNECT_REQUEST, SIW_CM_ESTABLISHED,
					     &event)) {
			established++;
			continue;
		}
		idle_qps_create_bound_qp(crowd, event.id, requested++);
		siw_bench_exit_on_error(siw_cm_accept(event.id, NULL), "accepting");
	}
}

static void idle_qps_start_connecting(struct crowd *crowd)
{
	for (uint32_t i = 0; i < crowd->n; i++) {
		struct siw_cm_id *id =
			siw_bench_require_object(siw_cm_create_id(crowd->channel, NULL), "an id");
		struct siw_cm_event event;

		idle_qps_create_bound_qp(crowd, id, i);
		siw_bench_exit_on_error(siw_cm_connect(id, &crowd->listens, NULL, NULL),
					"connecting");
		idle_qps_wait_for_event(crowd, SIW_CM_ESTABLISHED, SIW_CM_ESTABLISHED, &event);
	}
}

static void idle_qps_open_connections(struct crowd *crowd)
{
	struct siw_bench_side *e = &crowd->side;
	struct siw_bench_hello mine = { 0 }, theirs;
	struct siw_addr own;

	crowd->channel = siw_bench_require_object(siw_cm_create_channel(e->context), "a channel");
	if (e->o->server) {
		siw_bench_exit_on_error(siw_addr_parse(e->o->local, 0, &own), "the address");
		crowd->listener =
			siw_bench_require_object(siw_cm_create_id(crowd->channel, NULL), "an id");
		siw_bench_exit_on_error(siw_cm_listen(crowd->listener, &own, 16), "listening");
		siw_bench_exit_on_error(siw_cm_addr(crowd->listener, &own, NULL), "the port");
		mine.port = ntohs(own.port_be);
	}
	siw_bench_exchange_hello(e->o->ctl, &mine, &theirs);
	siw_bench_exit_on_error(siw_addr_parse(e->o->remote, theirs.port, &crowd->listens),
				"the peer's address");
	if (e->o->server)
		idle_qps_accept_connections(crowd);
	else
		idle_qps_start_connecting(crowd);
}

/* ---- all types ------------------------------------------------------------------------------- */

static void idle_qps_create_and_connect(struct crowd *crowd)
{
	struct siw_bench_side *e = &crowd->side;

	crowd->n_cqs = siw_num_comp_vectors(e->context);
	for (int i = 0; i < crowd->n_cqs; i++)
		crowd->cqs[i] = siw_bench_require_object(
			siw_create_cq(e->context, IDLE_QPS, NULL, NULL, i), "a completion queue");
	if (e->o->rc)
		idle_qps_open_connections(crowd);
	for (uint32_t i = 0; !e->o->rc && i < crowd->n; i++)
		crowd->qps[i] = siw_lab_open_unused_qp(e, e->o->rd ? SIW_QPT_RD : SIW_QPT_UD,
						       crowd->cqs[i % (uint32_t)crowd->n_cqs]);
}

static void idle_qps_destroy(struct crowd *crowd)
{
	for (uint32_t i = 0; i < crowd->n; i++) {
		siw_bench_exit_on_error(siw_destroy_qp(crowd->qps[i]),
					"destroying an idle queue pair");
		if (crowd->ids[i])
			siw_bench_exit_on_error(siw_cm_destroy_id(crowd->ids[i]),
						"destroying an id");
	}
	if (crowd->listener)
		siw_cm_destroy_id(crowd->listener);
	if (crowd->channel)
		siw_cm_destroy_channel(crowd->channel);
	for (int i = 0; i < crowd->n_cqs; i++)
		siw_bench_exit_on_error(siw_destroy_cq(crowd->cqs[i]),
					"destroying a completion queue");
}

void siw_lab_measure_latency_among_idle_qps(const struct siw_bench_opts *o,
					    struct siw_bench_result *result)
{
	struct crowd *crowd = siw_bench_require_object(calloc(1, sizeof(*crowd)), "memory");

	crowd->n = strcmp(o->run, "alone") ? IDLE_QPS : 0;
	siw_bench_raise_fd_limit(IDLE_QPS);
	siw_bench_open_client_or_server(&crowd->side, o, RECVS);
	idle_qps_create_and_connect(crowd);
	siw_bench_measure_latency(&crowd->side, siw_bench_run_send_latency, 2, result);
	idle_qps_destroy(crowd);
	siw_bench_close_client_or_server(&crowd->side);
	free(crowd);
}
