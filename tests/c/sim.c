/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Runs the simulator: sim SCENARIO SEED, or sim twice SCENARIO SEED for two simulated networks one
 * after the other. Prints the hash of the trace and other values that test_sim_core.py checks as
 * NAME=VALUE lines.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/settings.h"
#include "sim/sim.h"
#include "sim_scenarios.h"
#include <siwarp/siw_ext.h>

#define MS	   1000000ull
#define SECOND	   1000000000ull
#define QKEY	   0x1234
#define PORT	   4791
#define SLOT	   2048
#define SLOTS	   64
#define MOST_HOSTS 4

struct end {
	int host;
	struct siw_addr addr;
	struct siw_context *ctx;
	struct siw_pd *pd;
	struct siw_comp_channel *channel;
	struct siw_cq *cq;
	struct siw_qp *qp;
	struct siw_mr *mr;
	struct siw_ah *ah[MOST_HOSTS]; /* address handles, one for each endpoint */
	uint8_t mem[SLOTS * SLOT];
};

static struct end ends[MOST_HOSTS];
static int n_ends;

/* ---- endpoints ------------------------------------------------------------------------------- */

static struct siw_addr address_of_host(int i)
{
	char text[32];
	struct siw_addr addr;

	snprintf(text, sizeof(text), "10.0.0.%d", i + 1);
	must(!siw_addr_parse(text, PORT, &addr));
	return addr;
}

static void add_hosts(int n)
{
	for (int i = 0; i < n; i++) {
		struct siw_addr addr = address_of_host(i);

		ends[i].host = siw_sim_host_add(&addr, 1, 0);
		must(ends[i].host == i);
	}
}

static void modify_to_state(struct end *end, int state, const struct end *peer)
{
	struct siw_qp_attr attr = { .qp_state = state, .qkey = QKEY };
	int mask = SIW_QP_STATE;

	if (state == SIW_QPS_INIT)
		mask |= SIW_QP_QKEY;
	if (state == SIW_QPS_RTR && peer) {
		attr.ah_addr = peer->addr;
		mask |= SIW_QP_AV;
	}
	must(!siw_modify_qp(end->qp, &attr, mask));
}

static void open_endpoint(struct end *end, int type)
{
	struct siw_qp_init_attr attr = {
		.cap = { SLOTS, SLOTS, 1, 1, 64 },
		.qp_type = type,
		.sq_sig_all = 1,
		.max_write_records = type == SIW_QPT_UD || type == SIW_QPT_RD ? 8 : 0,
	};

	end->addr = attr.addr = address_of_host((int)(end - ends));
	end->ctx = siw_open_device_by_addr(&end->addr);
	must(end->ctx);
	end->pd = siw_alloc_pd(end->ctx);
	end->channel = siw_create_comp_channel(end->ctx);
	end->cq = siw_create_cq(end->ctx, 4 * SLOTS, NULL, end->channel, 0);
	end->mr = siw_reg_mr(end->pd, end->mem, sizeof(end->mem),
			     SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_REMOTE_WRITE |
				     SIW_ACCESS_REMOTE_READ);
	attr.send_cq = attr.recv_cq = end->cq;
	end->qp = siw_create_qp(end->pd, &attr);
	must(end->pd && end->channel && end->cq && end->mr && end->qp);
	modify_to_state(end, SIW_QPS_INIT, NULL);
}

static void open_endpoints(int n, int type)
{
	add_hosts(n);
	n_ends = n;
	for (int i = 0; i < n; i++)
		open_endpoint(&ends[i], type);
	for (int i = 0; i < n; i++) {
		for (int k = 0; k < n; k++) {
			ends[i].ah[k] = siw_create_ah(ends[i].pd, &ends[k].addr);
			must(ends[i].ah[k]);
		}
		modify_to_state(&ends[i], SIW_QPS_RTR, type == SIW_QPT_UC ? &ends[!i] : NULL);
		modify_to_state(&ends[i], SIW_QPS_RTS, NULL);
	}
}

static void close_endpoint(struct end *end)
{
	for (int k = 0; k < n_ends; k++)
		must(!siw_destroy_ah(end->ah[k]));
	must(!siw_destroy_qp(end->qp) && !siw_dereg_mr(end->mr));
	must(!siw_destroy_cq(end->cq) && !siw_destroy_comp_channel(end->channel));
	must(!siw_dealloc_pd(end->pd) && !siw_close_device(end->ctx));
}

static void close_endpoints(void)
{
	for (int i = 0; i < n_ends; i++)
		close_endpoint(&ends[i]);
	n_ends = 0;
}

static uint8_t *slot_address(struct end *end, uint64_t i)
{
	return end->mem + i % SLOTS * SLOT;
}

static void post_recv(struct end *end, uint64_t id)
{
	struct siw_sge sge = { (uintptr_t)slot_address(end, id), SLOT, end->mr->lkey };
	struct siw_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };

	must(!siw_post_recv(end->qp, &wr, NULL));
}

/* Sends `number` in a message of that length, from the slot with that number. */
static int post_send(struct end *end, int to, uint32_t number, uint32_t length)
{
	struct siw_sge sge = { (uintptr_t)slot_address(end, SLOTS / 2 + number % (SLOTS / 2)),
			       length, end->mr->lkey };
	struct siw_send_wr wr = {
		.wr_id = number,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = SIW_WR_SEND,
	};

	memcpy((void *)(uintptr_t)sge.addr, &number, sizeof(number));
	wr.wr.ud.ah = wr.rd.ah = end->ah[to];
	wr.wr.ud.remote_qpn = wr.rd.remote_qpn = siw_qp_num(ends[to].qp);
	wr.wr.ud.remote_qkey = wr.rd.remote_qkey = QKEY;
	return siw_post_send(end->qp, &wr, NULL);
}

static void expect_completion(struct end *end, int opcode)
{
	struct siw_wc wc = sim_poll_one_completion(end->cq);

	must(wc.status == SIW_WC_SUCCESS);
	must(wc.opcode == opcode);
}

/* ---- scenarios ------------------------------------------------------------------------------- */

static void scenario_exchange_ud_messages(void)
{
	must(!siw_sim_set_fault_plan("delay=1ms,jitter=300us"));
	open_endpoints(2, SIW_QPT_UD);
	for (uint32_t n = 0; n < 100; n++)
		for (int i = 0; i < 2; i++) {
			post_recv(&ends[!i], n);
			must(!post_send(&ends[i], !i, n, 64));
			expect_completion(&ends[i], SIW_WC_SEND);
			expect_completion(&ends[!i], SIW_WC_RECV);
		}
	must(siw_sim_now() >= 200 * MS && siw_sim_now() < 270 * MS);
	close_endpoints();
}

struct stream {
	uint32_t posted, sent, received;
};

/* Checks that 1000 messages in each direction over a lossy network arrive once and in order. */
static void scenario_rd_over_lossy_network(void)
{
	enum { N = 1000 };
	struct stream s[2] = { 0 };

	must(!siw_sim_set_fault_plan("loss=10%,dup=5%,reorder=5%,delay=1ms,jitter=1ms"));
	open_endpoints(2, SIW_QPT_RD);
	for (int i = 0; i < 2; i++)
		for (uint32_t n = 0; n < SLOTS / 2; n++)
			post_recv(&ends[i], n);
	while (s[0].received < N || s[1].received < N || s[0].sent < N || s[1].sent < N)
		for (int i = 0; i < 2; i++) {
			struct siw_wc wc;

			while (s[i].posted < N && s[i].posted - s[i].sent < SLOTS / 2)
				must(!post_send(&ends[i], !i, s[i].posted++, 1024));
			if (!siw_poll_cq(ends[i].cq, 1, &wc))
				continue;
			must(wc.status == SIW_WC_SUCCESS);
			if (wc.opcode == SIW_WC_SEND) {
				must(wc.wr_id == s[i].sent++);
			} else {
				uint32_t number;

				memcpy(&number, slot_address(&ends[i], wc.wr_id), sizeof(number));
				must(number == s[i].received++ && wc.byte_len == 1024);
				post_recv(&ends[i], (wc.wr_id + SLOTS / 2) % (SLOTS / 2));
			}
		}
	close_endpoints();
}

static void scenario_send_uc_messages(void)
{
	must(!siw_sim_set_fault_plan("delay=1ms"));
	open_endpoints(2, SIW_QPT_UC);
	for (uint32_t n = 0; n < 20; n++) {
		post_recv(&ends[1], n);
		must(!post_send(&ends[0], 1, n, SLOT));
		expect_completion(&ends[0], SIW_WC_SEND);
		expect_completion(&ends[1], SIW_WC_RECV);
		must(!memcmp(slot_address(&ends[1], n), &n, sizeof(n)));
	}
	close_endpoints();
}

static void scenario_write_record(void)
{
	struct siw_sge sge;
	struct siw_send_wr wr = { .sg_list = &sge, .num_sge = 1 };

	must(!siw_sim_set_fault_plan("delay=1ms"));
	open_endpoints(2, SIW_QPT_UD);
	memset(slot_address(&ends[0], 0), 7, 4 * SLOT);
	sge = (struct siw_sge){ (uintptr_t)ends[0].mem, 4 * SLOT, ends[0].mr->lkey };
	wr.opcode = SIW_WR_RDMA_WRITE_RECORD;
	wr.rd.ah = ends[0].ah[1];
	wr.rd.remote_qpn = siw_qp_num(ends[1].qp);
	wr.rd.remote_qkey = QKEY;
	wr.wr.rdma.remote_addr = (uintptr_t)slot_address(&ends[1], 8);
	wr.wr.rdma.rkey = ends[1].mr->rkey;
	must(!siw_post_send(ends[0].qp, &wr, NULL));
	expect_completion(&ends[0], SIW_WC_RDMA_WRITE);
	expect_completion(&ends[1], SIW_WC_RECV_WRITE_RECORD);
	must(!memcmp(ends[0].mem, slot_address(&ends[1], 8), 4 * SLOT));
	close_endpoints();
}

static void scenario_multicast(void)
{
	struct siw_addr all;
	struct siw_ah *ah;

	must(!siw_sim_set_fault_plan("delay=1ms"));
	open_endpoints(3, SIW_QPT_UD);
	must(!siw_addr_parse("239.1.2.3", 0, &all));
	for (int i = 0; i < 3; i++) {
		must(!siw_attach_mcast(ends[i].qp, &all));
		post_recv(&ends[i], 0);
	}
	ah = ends[0].ah[0];
	ends[0].ah[0] = siw_create_ah(ends[0].pd, &all);
	must(ends[0].ah[0]);
	{
		struct siw_sge sge = { (uintptr_t)slot_address(&ends[0], 9), 64, ends[0].mr->lkey };
		struct siw_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = SIW_WR_SEND };

		wr.wr.ud.ah = ends[0].ah[0];
		wr.wr.ud.remote_qpn = 0xffffff;
		wr.wr.ud.remote_qkey = QKEY;
		must(!siw_post_send(ends[0].qp, &wr, NULL));
	}
	expect_completion(&ends[0], SIW_WC_SEND);
	for (int i = 0; i < 3; i++)
		expect_completion(&ends[i], SIW_WC_RECV);
	must(!siw_destroy_ah(ends[0].ah[0]));
	ends[0].ah[0] = ah;
	for (int i = 0; i < 3; i++)
		must(!siw_detach_mcast(ends[i].qp, &all));
	close_endpoints();
}

static double wall_clock_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t); /* the clock of the machine, not the simulated time */
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void sim_establish_contact(void)
{
	post_recv(&ends[1], 0);
	must(!post_send(&ends[0], 1, 1, 64));
	expect_completion(&ends[0], SIW_WC_SEND);
	expect_completion(&ends[1], SIW_WC_RECV);
}

static void scenario_simulate_long_idle_time(void)
{
	double began;

	must(!siw_sim_set_fault_plan("delay=1ms"));
	open_endpoints(2, SIW_QPT_RD);
	sim_establish_contact();
	began = wall_clock_seconds();
	siw_sim_sleep_until(siw_sim_now() + 600 * SECOND);
	printf("real=%.6f\n", wall_clock_seconds() - began);
	sim_establish_contact();
	close_endpoints();
}

static void scenario_measure_simulation_speed(void)
{
	enum { N = 200000 };
	uint32_t posted = 0, sent = 0, received = 0;
	struct siw_sim_stats stats;
	double began, took;

	must(!siw_sim_set_fault_plan("delay=10us"));
	open_endpoints(2, SIW_QPT_UD);
	began = wall_clock_seconds();
	for (uint32_t n = 0; n < SLOTS / 2; n++)
		post_recv(&ends[1], n);
	while (received < N) {
		struct siw_wc wc[16];
		int n;

		while (posted < N && posted - received < SLOTS / 2)
			must(!post_send(&ends[0], 1, posted++, 64));
		n = siw_poll_cq(ends[0].cq, 16, wc);
		must(n >= 0);
		sent += (uint32_t)n;
		n = siw_poll_cq(ends[1].cq, 16, wc);
		for (int i = 0; i < n; i++, received++)
			post_recv(&ends[1], received);
	}
	while (sent < N) {
		struct siw_wc wc[16];

		sent += (uint32_t)siw_poll_cq(ends[0].cq, 16, wc);
	}
	took = wall_clock_seconds() - began;
	siw_sim_stats(&stats);
	must(stats.delivered >= N);
	printf("rate=%.0f\n", (double)stats.delivered / took);
	close_endpoints();
}

static void scenario_path_mtu(void)
{
	must(!siw_sim_set_fault_plan("delay=1ms"));
	open_endpoints(2, SIW_QPT_UC);
	/* The path MTU is less than the interface MTU, and ICMP reports it. */
	must(!siw_sim_set_path_mtu(0, 1, 1000, 1));
	for (uint32_t n = 0; n < 3; n++) {
		post_recv(&ends[1], n);
		must(!post_send(&ends[0], 1, n, SLOT));
		expect_completion(&ends[0], SIW_WC_SEND);
	}
	/* The first message discovers the path MTU and is lost; the next ones fit. */
	expect_completion(&ends[1], SIW_WC_RECV);
	close_endpoints();
}

/*
 * Checks a peer that crashes: messages in flight to the peer fail because of an ICMP error, long
 * before any time-out.
 */
static void scenario_peer_crash(void)
{
	struct siw_wc wc;

	must(!siw_sim_set_fault_plan("delay=1ms"));
	open_endpoints(2, SIW_QPT_RD);
	sim_establish_contact();
	must(!siw_sim_host_crash(1));
	must(siw_post_send(ends[1].qp, &(struct siw_send_wr){ 0 }, NULL) == -ESTALE);
	must(!siw_open_device_by_addr(&ends[1].addr));
	must(!post_send(&ends[0], 1, 2, 64));
	wc = sim_poll_one_completion(ends[0].cq);
	must(wc.status != SIW_WC_SUCCESS && wc.wr_id == 2);
	printf("status=%d\n", wc.status);
	printf("at=%" PRIu64 "\n", siw_sim_now());
	must(!siw_sim_host_restart(1));
	close_endpoint(&ends[0]);
	n_ends = 1;
	ends[1].ctx = siw_open_device_by_addr(&ends[1].addr);
	must(ends[1].ctx && !siw_close_device(ends[1].ctx));
}

/*
 * Checks that after a partition the message fails when peer_timeout_ms have passed since the last
 * datagram that the peer answered.
 */
static void scenario_network_partition(void)
{
	uint64_t began;
	struct siw_wc wc;

	must(!siw_sim_set_fault_plan("delay=1ms"));
	open_endpoints(2, SIW_QPT_RD);
	sim_establish_contact();
	siw_sim_sleep_until(siw_sim_now() + 100 * MS);
	must(!siw_sim_set_path_cut(0, 1, 1) && !siw_sim_set_path_cut(1, 0, 1));
	began = siw_sim_now();
	must(!post_send(&ends[0], 1, 2, 64));
	must(!siw_req_notify_cq(ends[0].cq, 0));
	must(!siw_get_cq_event(ends[0].channel, &(struct siw_cq *){ 0 }, &(void *){ 0 }, -1));
	siw_ack_cq_events(ends[0].cq, 1);
	wc = sim_poll_one_completion(ends[0].cq);
	must(wc.status == SIW_WC_RETRY_EXC_ERR && wc.wr_id == 2);
	printf("after=%" PRIu64 "\n", siw_sim_now() - began);
	must(!siw_sim_set_path_cut(0, 1, 0) && !siw_sim_set_path_cut(1, 0, 0));
	close_endpoints();
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void wait_for_completion(struct end *end, int opcode)
{
	struct siw_cq *cq;
	struct siw_wc wc;
	void *context;
	int n;

	for (;;) {
		must(!siw_req_notify_cq(end->cq, 0));
		n = siw_poll_cq(end->cq, 1, &wc);
		if (n)
			break;
		must(!siw_get_cq_event(end->channel, &cq, &context, -1));
		siw_ack_cq_events(cq, 1);
	}
	must(n == 1 && wc.status == SIW_WC_SUCCESS && wc.opcode == opcode);
}

static int task_numbers[2];

static void *run_echo_task(void *arg)
{
	struct end *end = arg;

	siw_sim_task_wait_first_turn(task_numbers[end - ends]);
	for (uint32_t n = 0; n < 50; n++) {
		wait_for_completion(end, SIW_WC_RECV);
		post_recv(end, n);
		must(!post_send(end, end == ends, n, 64));
		wait_for_completion(end, SIW_WC_SEND);
	}
	siw_sim_task_end();
	return NULL;
}

/* Runs two threads that block in turn. */
static void scenario_two_blocking_threads(void)
{
	pthread_t threads[2];

	must(!siw_sim_set_fault_plan("delay=1ms"));
	open_endpoints(2, SIW_QPT_UD);
	for (int i = 0; i < 2; i++) {
		post_recv(&ends[i], SLOTS);
		task_numbers[i] = siw_sim_task_new();
		must(task_numbers[i] == i + 1);
		must(!pthread_create(&threads[i], NULL, run_echo_task, &ends[i]));
	}
	must(!post_send(&ends[0], 1, 1000, 64));
	expect_completion(&ends[0], SIW_WC_SEND);
	while (!siw_sim_has_task_ended(1) || !siw_sim_has_task_ended(2))
		must(siw_sim_step_world(10 * SECOND) == 1);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	close_endpoints();
}

/* ---- main ------------------------------------------------------------------------------------ */

static const struct sim_scenario scenarios[] = {
	{ "ud", scenario_exchange_ud_messages },
	{ "rd", scenario_rd_over_lossy_network },
	{ "uc", scenario_send_uc_messages },
	{ "record", scenario_write_record },
	{ "group", scenario_multicast },
	{ "idle", scenario_simulate_long_idle_time },
	{ "speed", scenario_measure_simulation_speed },
	{ "size", scenario_path_mtu },
	{ "crash", scenario_peer_crash },
	{ "partition", scenario_network_partition },
	{ "tasks", scenario_two_blocking_threads },
};

static void print_stats(const struct siw_sim_stats *stats)
{
	printf("sent=%" PRIu64 " delivered=%" PRIu64 " lost=%" PRIu64 " duplicated=%" PRIu64
	       " refused=%" PRIu64 " rounds=%" PRIu64 " switches=%" PRIu64 " instants=%" PRIu64
	       "\n",
	       stats->sent, stats->delivered, stats->lost, stats->duplicated, stats->refused,
	       stats->rounds, stats->switches, stats->instants);
}

int main(int argc, char **argv)
{
	const struct sim_program program = {
		.scenarios = scenarios,
		.n = sizeof(scenarios) / sizeof(scenarios[0]),
		.print_stats = print_stats,
	};

	return sim_run_program(&program, argc, argv);
}
