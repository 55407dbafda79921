/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * RC queue pairs on the simulated TCP: sim_tcp SCENARIO SEED, or sim_tcp twice SCENARIO SEED for
 * two simulated networks one after the other. Prints the hash of the trace and other values that
 * test_sim_tcp.py checks as NAME=VALUE lines.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"
#include "sim_scenarios.h"
#include <siwarp/cm.h>
#include <siwarp/siw_ext.h>

#define MS	  1000000ull
#define SECOND	  1000000000ull
#define PORT	  7471
#define SLOT	  4096
#define SLOTS	  64
#define RECEIVES  (SLOTS / 2) /* number of slots for receives; Sends use the other slots */
#define MOST_ENDS 8

struct end {
	struct siw_addr addr;
	struct siw_context *ctx;
	struct siw_pd *pd;
	struct siw_cq *cq;
	struct siw_qp *qp;
	struct siw_mr *mr;
	struct siw_cm_channel *cm;
	struct siw_cm_id *id, *listener;
	uint8_t mem[SLOTS * SLOT];
};

static struct end ends[MOST_ENDS];
static int n_ends;
/* Options of the scenario: how its queue pairs connect, and which address family they use. */
static int by_qpn, keep_unexpected;
static bool ipv6;

/* ---- endpoints ------------------------------------------------------------------------------- */

static void create_qp(struct end *end)
{
	struct siw_qp_init_attr attr = {
		.cap = { SLOTS, SLOTS, 1, 1, 64 },
		.qp_type = SIW_QPT_RC,
		.sq_sig_all = 1,
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.by_qpn = by_qpn,
		.keep_unexpected = keep_unexpected,
		.persona = by_qpn ? SIW_PERSONA_ROCE : SIW_PERSONA_IWARP,
	};

	end->qp = siw_create_qp(end->pd, &attr);
	must(end->qp);
}

static void open_endpoint(struct end *end)
{
	end->ctx = siw_open_device_by_addr(&end->addr);
	must(end->ctx);
	end->pd = siw_alloc_pd(end->ctx);
	end->cq = siw_create_cq(end->ctx, 4 * SLOTS, NULL, NULL, 0);
	end->mr = siw_reg_mr(end->pd, end->mem, sizeof(end->mem),
			     SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_REMOTE_WRITE |
				     SIW_ACCESS_REMOTE_READ);
	end->cm = siw_cm_create_channel(end->ctx);
	must(end->pd && end->cq && end->mr && end->cm);
	create_qp(end);
}

static void open_endpoints(int n)
{
	char text[32];

	for (n_ends = 0; n_ends < n; n_ends++) {
		struct end *end = &ends[n_ends];

		memset(end, 0, sizeof(*end));
		snprintf(text, sizeof(text), ipv6 ? "fd00::%d" : "10.0.0.%d", n_ends + 1);
		must(!siw_addr_parse(text, PORT, &end->addr));
		must(siw_sim_host_add(&end->addr, 1, 0) == n_ends);
		open_endpoint(end);
	}
}

static void close_endpoint(struct end *end)
{
	must(!end->id || !siw_cm_destroy_id(end->id));
	must(!end->listener || !siw_cm_destroy_id(end->listener));
	must(!siw_destroy_qp(end->qp) && !siw_dereg_mr(end->mr) && !siw_destroy_cq(end->cq));
	must(!siw_cm_destroy_channel(end->cm));
	must(!siw_dealloc_pd(end->pd) && !siw_close_device(end->ctx));
	end->id = end->listener = NULL;
}

static void close_endpoints(void)
{
	for (int i = 0; i < n_ends; i++)
		close_endpoint(&ends[i]);
	n_ends = 0;
}

static struct siw_cm_event wait_for_cm_event(struct end *end)
{
	struct siw_cm_event event;

	must(!siw_cm_get_event(end->cm, &event, -1));
	return event;
}

static void start_listener(struct end *end)
{
	end->listener = siw_cm_create_id(end->cm, NULL);
	must(end->listener && !siw_cm_listen(end->listener, &end->addr, 8));
}

static void start_connect(struct end *from, const struct end *to, int timeout_ms)
{
	struct siw_cm_param param = { .peer_to_peer = SIW_CM_RTR_WRITE, .timeout_ms = timeout_ms };

	from->id = siw_cm_create_id(from->cm, NULL);
	must(from->id && !siw_cm_bind_qp(from->id, from->qp));
	must(!siw_cm_connect(from->id, &to->addr, NULL, &param));
}

static void finish_connect(struct end *from, struct end *to)
{
	struct siw_cm_event event = wait_for_cm_event(to);

	must(event.event == SIW_CM_CONNECT_REQUEST);
	to->id = event.id;
	must(!siw_cm_bind_qp(to->id, to->qp) && !siw_cm_accept(to->id, NULL));
	must(wait_for_cm_event(from).event == SIW_CM_ESTABLISHED);
	must(wait_for_cm_event(to).event == SIW_CM_ESTABLISHED);
}

static void connect_endpoints(struct end *from, struct end *to)
{
	start_listener(to);
	start_connect(from, to, 0);
	finish_connect(from, to);
}

static uint8_t *slot_address(struct end *end, uint64_t i)
{
	return end->mem + i % SLOTS * SLOT;
}

static int post_recv(struct end *end, uint64_t number)
{
	struct siw_sge sge = { (uintptr_t)slot_address(end, number % RECEIVES), SLOT,
			       end->mr->lkey };
	struct siw_recv_wr wr = { .wr_id = number, .sg_list = &sge, .num_sge = 1 };

	return siw_post_recv(end->qp, &wr, NULL);
}

/* Sends `number` in a message of that length, or writes or reads it. */
static int post_request(struct end *end, int opcode, uint32_t number, uint32_t length,
			const struct end *to, uint64_t to_slot)
{
	uint8_t *from = slot_address(end, RECEIVES + number % RECEIVES);
	struct siw_sge sge = { (uintptr_t)from, length, end->mr->lkey };
	struct siw_send_wr wr = {
		.wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = opcode
	};

	if (opcode != SIW_WR_RDMA_READ)
		for (uint32_t i = 0; i + sizeof(number) <= length; i += sizeof(number))
			memcpy(from + i, &number, sizeof(number));
	if (opcode != SIW_WR_SEND) {
		wr.wr.rdma.remote_addr = (uintptr_t)to->mem + to_slot * SLOT;
		wr.wr.rdma.rkey = to->mr->rkey;
	}
	return siw_post_send(end->qp, &wr, NULL);
}

static bool is_filled_with_number(const uint8_t *at, uint32_t number, uint32_t length)
{
	for (uint32_t i = 0; i + sizeof(number) <= length; i += sizeof(number))
		if (memcmp(at + i, &number, sizeof(number)) != 0)
			return false;
	return true;
}

static void expect_completion(struct end *end, int opcode, uint64_t id)
{
	struct siw_wc wc = sim_poll_one_completion(end->cq);

	must(wc.status == SIW_WC_SUCCESS && wc.opcode == opcode && wc.wr_id == id);
}

/* ---- scenarios ------------------------------------------------------------------------------- */

struct flow {
	uint32_t posted, sent, received;
};

static void poll_and_handle_flow_completion(struct end *end, struct flow *mine, struct flow *theirs)
{
	struct siw_wc wc;

	if (!siw_poll_cq(end->cq, 1, &wc))
		return;
	must(wc.status == SIW_WC_SUCCESS);
	if (wc.opcode == SIW_WC_SEND) {
		must(wc.wr_id == mine->sent++);
		return;
	}
	must(wc.opcode == SIW_WC_RECV && wc.wr_id == theirs->received);
	must(is_filled_with_number(slot_address(end, wc.wr_id % RECEIVES), theirs->received,
				   wc.byte_len));
	must(wc.byte_len == 4 + theirs->received * 7 % 1000 * 4);
	theirs->received++;
	must(!post_recv(end, wc.wr_id + RECEIVES));
}

static bool flow_is_done(const struct flow *flow, uint32_t n)
{
	return flow->sent == n && flow->received == n;
}

/*
 * Checks that the Sends numbered `from` to n - 1 arrive in order and unchanged in both directions,
 * with many lengths.
 */
static void exchange_numbered_sends(struct end *a, struct end *b, uint32_t from, uint32_t n)
{
	struct end *both[2] = { a, b };
	struct flow flows[2] = { 0 };

	for (int i = 0; i < 2; i++) {
		flows[i].posted = flows[i].sent = flows[i].received = from;
		for (uint32_t k = 0; !from && k < RECEIVES; k++)
			must(!post_recv(both[i], k));
	}
	while (!flow_is_done(&flows[0], n) || !flow_is_done(&flows[1], n))
		for (int i = 0; i < 2; i++) {
			struct flow *flow = &flows[i];

			while (flow->posted < n && flow->posted - flow->received < RECEIVES &&
			       flow->posted - flow->sent < RECEIVES) {
				uint32_t length = 4 + flow->posted * 7 % 1000 * 4;

				must(!post_request(both[i], SIW_WR_SEND, flow->posted++, length,
						   NULL, 0));
			}
			poll_and_handle_flow_completion(both[i], flow, &flows[!i]);
		}
}

static void exchange_sends(struct end *a, struct end *b, uint32_t n)
{
	exchange_numbered_sends(a, b, 0, n);
}

static void scenario_lossy_link(void)
{
	must(!siw_sim_set_fault_plan("loss=2%,rate=20Mbit,delay=5ms,jitter=1ms"));
	open_endpoints(2);
	connect_endpoints(&ends[0], &ends[1]);
	exchange_sends(&ends[0], &ends[1], 1000);
	close_endpoints();
}

/* Checks that duplicated and reordered segments cause nothing but delays. */
static void scenario_duplicated_and_reordered_segments(void)
{
	must(!siw_sim_set_fault_plan("loss=5%,burst=3,dup=5%,reorder=5%,delay=1ms"));
	open_endpoints(2);
	connect_endpoints(&ends[0], &ends[1]);
	exchange_sends(&ends[0], &ends[1], 300);
	close_endpoints();
}

/*
 * Sends over a network queue that is much shorter than a window: the congestion window has to adapt
 * to the queue.
 */
static void scenario_short_network_queue(void)
{
	must(!siw_sim_set_fault_plan("rate=10Mbit,limit=8,delay=10ms"));
	open_endpoints(2);
	connect_endpoints(&ends[0], &ends[1]);
	exchange_sends(&ends[0], &ends[1], 300);
	close_endpoints();
}

static void scenario_write_and_read(void)
{
	must(!siw_sim_set_fault_plan("loss=2%,delay=2ms"));
	open_endpoints(2);
	connect_endpoints(&ends[0], &ends[1]);
	for (uint32_t n = 0; n < 50; n++) {
		must(!post_request(&ends[0], SIW_WR_RDMA_WRITE, n, SLOT, &ends[1], 3));
		must(!post_request(&ends[0], SIW_WR_RDMA_READ, n + 1, SLOT, &ends[1], 3));
		expect_completion(&ends[0], SIW_WC_RDMA_WRITE, n);
		expect_completion(&ends[0], SIW_WC_RDMA_READ, n + 1);
		must(is_filled_with_number(slot_address(&ends[1], 3), n, SLOT));
		must(is_filled_with_number(slot_address(&ends[0], RECEIVES + (n + 1) % RECEIVES), n,
					   SLOT));
	}
	close_endpoints();
}

/*
 * Checks the time of connecting: one round trip for TCP, and another for the MPA Request and Reply.
 */
static void scenario_connect_time(void)
{
	uint64_t began;

	must(!siw_sim_set_fault_plan("delay=10ms"));
	open_endpoints(2);
	start_listener(&ends[1]);
	began = siw_sim_now();
	start_connect(&ends[0], &ends[1], 0);
	finish_connect(&ends[0], &ends[1]);
	printf("took=%" PRIu64 "\n", siw_sim_now() - began);
	close_endpoints();
}

static void scenario_refused_connect(void)
{
	struct siw_cm_event event;
	uint64_t began;

	must(!siw_sim_set_fault_plan("delay=10ms"));
	open_endpoints(2);
	began = siw_sim_now();
	start_connect(&ends[0], &ends[1], 0);
	event = wait_for_cm_event(&ends[0]);
	printf("event=%d\nstatus=%d\ntook=%" PRIu64 "\n", event.event, event.status,
	       siw_sim_now() - began);
	close_endpoints();
}

/* Checks that a lost SYN is retransmitted after 1, 3 and 7 s. */
static void scenario_lost_syn(void)
{
	uint64_t began;

	must(!siw_sim_set_fault_plan("delay=10ms"));
	open_endpoints(2);
	start_listener(&ends[1]);
	must(!siw_sim_set_path_cut(0, 1, 1));
	began = siw_sim_now();
	start_connect(&ends[0], &ends[1], 60000);
	siw_sim_sleep_until(began + 4 * SECOND);
	must(!siw_sim_set_path_cut(0, 1, 0));
	finish_connect(&ends[0], &ends[1]);
	printf("took=%" PRIu64 "\n", siw_sim_now() - began);
	close_endpoints();
}

/* Checks that data sent before a disconnect arrives. */
static void scenario_disconnect_after_sends(void)
{
	enum { N = RECEIVES - 2 };
	struct siw_wc wc;

	must(!siw_sim_set_fault_plan("loss=3%,delay=5ms,rate=5Mbit"));
	open_endpoints(2);
	connect_endpoints(&ends[0], &ends[1]);
	for (uint32_t n = 0; n < RECEIVES; n++)
		must(!post_recv(&ends[1], n));
	for (uint32_t n = 0; n < N; n++)
		must(!post_request(&ends[0], SIW_WR_SEND, n, 3000, NULL, 0));
	for (uint32_t n = 0; n < N; n++)
		expect_completion(&ends[0], SIW_WC_SEND, n);
	must(!siw_cm_disconnect(ends[0].id));
	for (uint32_t n = 0; n < N; n++)
		expect_completion(&ends[1], SIW_WC_RECV, n);
	for (uint32_t n = N; n < RECEIVES; n++) {
		wc = sim_poll_one_completion(ends[1].cq);
		must(wc.status == SIW_WC_WR_FLUSH_ERR && wc.wr_id == n);
	}
	must(wait_for_cm_event(&ends[1]).event == SIW_CM_DISCONNECTED);
	close_endpoints();
}

/*
 * Kills the peer with requests in flight. The peer's kernel still sends the responses that were
 * written before, until the next requests cause a reset.
 */
static void scenario_peer_crash(void)
{
	enum { N = 16 };
	struct siw_cm_event event;
	uint32_t whole = 0;
	uint64_t began;
	struct siw_wc wc;

	must(!siw_sim_set_fault_plan("delay=10ms,rate=1Mbit"));
	open_endpoints(2);
	connect_endpoints(&ends[0], &ends[1]);
	for (uint32_t n = 0; n < N / 2; n++)
		must(!post_request(&ends[0], SIW_WR_RDMA_READ, n, SLOT, &ends[1], 0));
	siw_sim_sleep_until(siw_sim_now() + 100 * MS);
	for (uint32_t n = N / 2; n < N; n++)
		must(!post_request(&ends[0], SIW_WR_RDMA_READ, n, SLOT, &ends[1], 0));
	began = siw_sim_now();
	must(!siw_sim_host_crash(1));
	for (uint32_t n = 0; n < N; n++) {
		wc = sim_poll_one_completion(ends[0].cq);
		must(wc.wr_id == n && (wc.status == SIW_WC_SUCCESS ? n == whole : n >= whole));
		whole += wc.status == SIW_WC_SUCCESS;
	}
	must(whole > 0 && whole < N);
	event = wait_for_cm_event(&ends[0]);
	printf("event=%d\ntook=%" PRIu64 "\n", event.event, siw_sim_now() - began);
	/* No program listens at the address of the killed peer any more. */
	must(!siw_cm_destroy_id(ends[0].id) && !siw_destroy_qp(ends[0].qp));
	create_qp(&ends[0]);
	start_connect(&ends[0], &ends[1], 0);
	event = wait_for_cm_event(&ends[0]);
	must(event.event != SIW_CM_ESTABLISHED);
	printf("status=%d\n", event.status);
	/* The host restarts, and a new connection to it works. */
	must(!siw_cm_destroy_id(ends[0].id) && !siw_destroy_qp(ends[0].qp));
	create_qp(&ends[0]);
	must(!siw_sim_host_restart(1));
	open_endpoint(&ends[1]);
	ends[1].id = ends[1].listener = NULL;
	connect_endpoints(&ends[0], &ends[1]);
	exchange_sends(&ends[0], &ends[1], 10);
	close_endpoints();
}

/*
 * Checks a partition of one minute: no data is lost, and the connection continues when the
 * partition heals.
 */
static void scenario_healed_partition(void)
{
	uint64_t healed;

	must(!siw_sim_set_fault_plan("delay=1ms"));
	open_endpoints(2);
	connect_endpoints(&ends[0], &ends[1]);
	exchange_sends(&ends[0], &ends[1], 10);
	must(!siw_sim_set_path_cut(0, 1, 1) && !siw_sim_set_path_cut(1, 0, 1));
	must(!post_request(&ends[0], SIW_WR_RDMA_WRITE, 1, SLOT, &ends[1], 40));
	must(!post_request(&ends[0], SIW_WR_RDMA_READ, 2, SLOT, &ends[1], 40));
	siw_sim_sleep_until(siw_sim_now() + 60 * SECOND);
	must(!siw_sim_set_path_cut(0, 1, 0) && !siw_sim_set_path_cut(1, 0, 0));
	healed = siw_sim_now();
	expect_completion(&ends[0], SIW_WC_RDMA_WRITE, 1);
	expect_completion(&ends[0], SIW_WC_RDMA_READ, 2);
	must(is_filled_with_number(slot_address(&ends[1], 40), 1, SLOT));
	printf("took=%" PRIu64 "\n", siw_sim_now() - healed);
	close_endpoints();
}

/* Checks a permanent partition: TCP ends the connection, and the request fails. */
static void scenario_permanent_partition(void)
{
	uint64_t began;
	struct siw_wc wc;

	must(!siw_sim_set_fault_plan("delay=1ms"));
	open_endpoints(2);
	connect_endpoints(&ends[0], &ends[1]);
	exchange_sends(&ends[0], &ends[1], 10);
	must(!siw_sim_set_path_cut(0, 1, 1) && !siw_sim_set_path_cut(1, 0, 1));
	began = siw_sim_now();
	must(!post_request(&ends[0], SIW_WR_RDMA_READ, 1, SLOT, &ends[1], 40));
	wc = sim_poll_one_completion(ends[0].cq);
	must(wc.status != SIW_WC_SUCCESS && wc.wr_id == 1);
	printf("took=%" PRIu64 "\n", siw_sim_now() - began);
	close_endpoints();
}

/*
 * Checks a receiver that reads nothing for a minute: TCP's window stops the sender. The connection
 * recovers even if the window update that reopens the window, or a window probe, is lost.
 */
static void scenario_closed_tcp_receive_window(void)
{
	enum { N = 400 };
	uint32_t posted = 0, sent = 0, stopped;
	struct siw_wc wc;

	must(!siw_sim_set_fault_plan("loss=20%,delay=1ms"));
	keep_unexpected = 1;
	open_endpoints(2);
	connect_endpoints(&ends[0], &ends[1]);
	for (uint64_t until = siw_sim_now() + 60 * SECOND; siw_sim_now() < until;) {
		while (posted < N && posted - sent < RECEIVES)
			must(!post_request(&ends[0], SIW_WR_SEND, posted++, SLOT, NULL, 0));
		sent += (uint32_t)siw_poll_cq(ends[0].cq, 1, &wc);
	}
	stopped = sent;
	must(stopped > 0 && stopped < N - RECEIVES);
	for (uint32_t received = 0; received < N; received++) {
		must(!post_recv(&ends[1], received));
		expect_completion(&ends[1], SIW_WC_RECV, received);
		must(is_filled_with_number(slot_address(&ends[1], received % RECEIVES), received,
					   SLOT));
		while (posted < N && posted - sent < RECEIVES)
			must(!post_request(&ends[0], SIW_WR_SEND, posted++, SLOT, NULL, 0));
		sent += (uint32_t)siw_poll_cq(ends[0].cq, 1, &wc);
	}
	close_endpoints();
}

/* The path MTU is less than the interfaces' MTU, and ICMP reports it. */
static void scenario_path_mtu(void)
{
	must(!siw_sim_set_fault_plan("delay=1ms"));
	ipv6 = true;
	open_endpoints(2);
	connect_endpoints(&ends[0], &ends[1]);
	exchange_sends(&ends[0], &ends[1], 50);
	must(!siw_sim_set_path_mtu(0, 1, 1280, 1));
	exchange_numbered_sends(&ends[0], &ends[1], 50, 100);
	close_endpoints();
}

static void modify_to_state(struct end *end, int state, const struct end *peer)
{
	struct siw_qp_attr attr = { .qp_state = state };
	int mask = SIW_QP_STATE;

	if (peer) {
		attr.ah_addr = peer->addr;
		attr.dest_qp_num = siw_qp_num(peer->qp);
		mask |= SIW_QP_AV | SIW_QP_DEST_QPN;
	}
	must(!siw_modify_qp(end->qp, &attr, mask));
}

/* Connects queue pairs that find each other by address and QPN; either may start first. */
static void scenario_connect_by_qpn(void)
{
	must(!siw_sim_set_fault_plan("loss=2%,delay=2ms"));
	by_qpn = 1;
	open_endpoints(2);
	for (int i = 0; i < 2; i++)
		modify_to_state(&ends[i], SIW_QPS_INIT, NULL);
	for (int i = 0; i < 2; i++) {
		modify_to_state(&ends[i], SIW_QPS_RTR, &ends[!i]);
		modify_to_state(&ends[i], SIW_QPS_RTS, NULL);
	}
	exchange_sends(&ends[0], &ends[1], 200);
	close_endpoints();
}

/* Checks that the fault plan resets connections after a given number of octets. */
static void scenario_injected_connection_resets(void)
{
	struct siw_wc wc;
	uint32_t n = 0;

	must(!siw_sim_set_fault_plan("delay=1ms,reset=100KB,short=20%"));
	open_endpoints(2);
	connect_endpoints(&ends[0], &ends[1]);
	do {
		must(!post_request(&ends[0], SIW_WR_RDMA_WRITE, ++n, SLOT, &ends[1], 1));
		wc = sim_poll_one_completion(ends[0].cq);
	} while (wc.status == SIW_WC_SUCCESS);
	must(wait_for_cm_event(&ends[0]).event == SIW_CM_DISCONNECTED);
	must(wait_for_cm_event(&ends[1]).event == SIW_CM_DISCONNECTED);
	printf("writes=%u\n", n);
	close_endpoints();
}

/* Creates many endpoints, each connected to the next one. */
static void scenario_many_connections(void)
{
	must(!siw_sim_set_fault_plan("loss=1%,delay=2ms,rate=100Mbit"));
	open_endpoints(MOST_ENDS);
	for (int i = 0; i < MOST_ENDS; i += 2)
		connect_endpoints(&ends[i], &ends[i + 1]);
	for (int i = 0; i < MOST_ENDS; i += 2)
		exchange_sends(&ends[i], &ends[i + 1], 50);
	close_endpoints();
}

/* ---- main ------------------------------------------------------------------------------------ */

static const struct sim_scenario scenarios[] = {
	{ "rc", scenario_lossy_link },
	{ "disorder", scenario_duplicated_and_reordered_segments },
	{ "queue", scenario_short_network_queue },
	{ "one_sided", scenario_write_and_read },
	{ "connects", scenario_connect_time },
	{ "refused", scenario_refused_connect },
	{ "slow", scenario_lost_syn },
	{ "half", scenario_disconnect_after_sends },
	{ "crash", scenario_peer_crash },
	{ "partition", scenario_healed_partition },
	{ "silence", scenario_permanent_partition },
	{ "reset", scenario_injected_connection_resets },
	{ "ring", scenario_many_connections },
	{ "window", scenario_closed_tcp_receive_window },
	{ "mtu", scenario_path_mtu },
	{ "pair", scenario_connect_by_qpn },
};

static void reset_options(void)
{
	by_qpn = keep_unexpected = 0;
	ipv6 = false;
}

static void print_stats(const struct siw_sim_stats *stats)
{
	printf("segments=%" PRIu64 " connections=%" PRIu64 " lost=%" PRIu64 " duplicated=%" PRIu64
	       " refused=%" PRIu64 " rounds=%" PRIu64 "\n",
	       stats->segments, stats->connections, stats->lost, stats->duplicated, stats->refused,
	       stats->rounds);
}

int main(int argc, char **argv)
{
	const struct sim_program program = {
		.scenarios = scenarios,
		.n = sizeof(scenarios) / sizeof(scenarios[0]),
		.init = reset_options,
		.print_stats = print_stats,
	};

	/* The scenario `window` reaches this limit on waiting Sends before TCP's window closes. */
	setenv("SIWARP_RNR_OCTETS", "131072", 1);
	return sim_run_program(&program, argc, argv);
}
