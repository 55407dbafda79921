/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests the loss of an rdma_cm peer that is killed by SIGKILL or stopped. The argument is the state
 * of the peer: "idle", "busy", "asked" (the peer has received a connection request), "asking" (the
 * peer has sent a connection request), "stopped", or "datagrams" (the peer's id is of RDMA_PS_UDP).
 * This process must receive an event in time.
 */
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cm.h"

#define WRITES 4

static uint16_t *port; /* listening port, in memory shared by both processes */
static pid_t peer;
static double began;

/* Runs a function in a child process, which then waits to be killed. */
static void fork_peer_process(void (*what)(void))
{
	peer = fork();
	CHECK(peer >= 0);
	if (peer)
		return;
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	channel = rdma_create_event_channel();
	other = rdma_create_event_channel();
	CHECK(channel && other);
	what();
	pause();
}

static void send_signal_to_peer(int number)
{
	began = now_seconds();
	CHECK(kill(peer, number) == 0);
}

static void kill_and_reap_peer(void)
{
	CHECK(kill(peer, SIGKILL) == 0);
	CHECK(waitpid(peer, NULL, 0) == peer);
}

static void create_event_channels(void)
{
	channel = rdma_create_event_channel();
	other = rdma_create_event_channel();
	CHECK(channel && other);
}

/* Waits until the other process listens, and returns the port. */
static uint16_t wait_peer_port(void)
{
	while (!*(volatile uint16_t *)port)
		usleep(1000);
	return *port;
}

static void listen_in_peer_process(void)
{
	*port = rdma_get_src_port(listen_on_channel(channel));
}

static void accept_in_peer_process(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel);

	*port = rdma_get_src_port(listener);
	CHECK(rdma_accept(wait_cm_request(listener, NULL, 0), NULL) == 0);
}

static void connect_in_peer_process(void)
{
	CHECK(rdma_connect(create_resolved_id(other, wait_peer_port()), NULL) == 0);
}

/* ---- connections ----------------------------------------------------------------------------- */

static struct rdma_cm_id *connect_to_peer(void)
{
	struct rdma_cm_id *id;

	fork_peer_process(accept_in_peer_process);
	create_event_channels();
	id = create_resolved_id(other, wait_peer_port());
	CHECK(rdma_connect(id, NULL) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, id, 0);
	return id;
}

/*
 * Checks that all posted requests complete in order, and that only errors follow the first error.
 *
 */
static void check_completions_in_order(struct rdma_cm_id *id, int posted)
{
	bool failed = false;

	for (int i = 0; i < posted; i++) {
		struct ibv_wc wc;

		CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.wr_id == (uint64_t)i);
		CHECK(!failed || wc.status == IBV_WC_WR_FLUSH_ERR);
		failed = wc.status != IBV_WC_SUCCESS;
	}
	CHECK(failed);
}

/*
 * Checks that the event DISCONNECTED arrives without delay, because the kernel closes the
 * connections of a killed process.
 */
static void check_connected_peer_killed(bool busy)
{
	struct rdma_cm_id *id = connect_to_peer();
	struct ibv_mr *mr = rdma_reg_msgs(id, memory, SIZE);
	struct ibv_wc wc;

	CHECK(mr && rdma_post_recv(id, NULL, memory, 64, mr) == 0);
	if (busy) {
		CHECK(kill(peer, SIGSTOP) == 0); /* a stopped peer receives none of the Sends */
		for (int i = 0; i < WRITES; i++)
			CHECK(rdma_post_send(id, (void *)(uintptr_t)i, memory, 64, mr, 0) == 0);
	}
	send_signal_to_peer(SIGKILL);
	expect_cm_event(other, RDMA_CM_EVENT_DISCONNECTED, id, 0);
	CHECK(now_seconds() - began < SECONDS / 4.0);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	if (!busy)
		CHECK(rdma_post_send(id, NULL, memory, 64, mr, 0) == 0);
	check_completions_in_order(id, busy ? WRITES : 1);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	destroy_id_and_qp(id);
}

static void check_idle_peer_killed(void)
{
	check_connected_peer_killed(false);
}

static void check_busy_peer_killed(void)
{
	check_connected_peer_killed(true);
}

/* ---- connection establishment ---------------------------------------------------------------- */

/* Checks a connection request to a peer that is killed before the peer answers. */
static void check_server_killed_before_reply(void)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	fork_peer_process(listen_in_peer_process);
	create_event_channels();
	id = create_resolved_id(other, wait_peer_port());
	CHECK(rdma_connect(id, NULL) == 0);
	usleep(100000);
	send_signal_to_peer(SIGKILL);
	event = wait_cm_event(other, RDMA_CM_EVENT_REJECTED, id);
	CHECK(event->status == 8 && now_seconds() - began < SECONDS / 4.0);
	CHECK(rdma_ack_cm_event(event) == 0);
	destroy_id_and_qp(id);
}

/* Checks the accept of a connection request whose sender has been killed. */
static void check_client_killed_before_reply(void)
{
	struct rdma_cm_id *listener, *id;

	fork_peer_process(connect_in_peer_process);
	create_event_channels();
	listener = listen_on_channel(channel);
	*port = rdma_get_src_port(listener);
	id = wait_cm_request(listener, NULL, 0);
	send_signal_to_peer(SIGKILL);
	CHECK(waitpid(peer, NULL, 0) == peer);
	/*
	 * Either rdma_accept fails, or rdma_accept succeeds and an event reports the loss of the
	 * peer later.
	 */
	if (rdma_accept(id, NULL) == 0) {
		struct rdma_cm_event *event =
			wait_cm_event(channel, RDMA_CM_EVENT_CONNECT_ERROR, id);

		CHECK(event->status < 0);
		CHECK(rdma_ack_cm_event(event) == 0);
	} else {
		CHECK(errno == ECONNRESET || errno == ENOTCONN || errno == EPIPE);
	}
	destroy_id_and_qp(id);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* Checks that a connect to a stopped peer times out after SIWARP_MPA_TIMEOUT_MS. */
static void check_connect_to_stopped_peer_times_out(void)
{
	double limit = atof(getenv("SIWARP_MPA_TIMEOUT_MS")) / 1000;
	struct rdma_cm_id *id;

	fork_peer_process(listen_in_peer_process);
	create_event_channels();
	id = create_resolved_id(other, wait_peer_port());
	send_signal_to_peer(SIGSTOP);
	CHECK(rdma_connect(id, NULL) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_UNREACHABLE, id, -ETIMEDOUT);
	CHECK(now_seconds() - began >= limit && now_seconds() - began < limit + SECONDS / 4.0);
	destroy_id_and_qp(id);
}

/* ---- datagrams ------------------------------------------------------------------------------- */

static struct rdma_cm_id *create_ud_id(struct rdma_event_channel *on)
{
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(on, &id, NULL, RDMA_PS_UDP) == 0);
	return id;
}

static void listen_for_datagrams_in_peer_process(void)
{
	struct sockaddr_in addr = loopback_sockaddr(0);
	struct rdma_cm_id *id = create_ud_id(channel);

	CHECK(rdma_bind_addr(id, (struct sockaddr *)&addr) == 0 && rdma_listen(id, 0) == 0);
	*port = rdma_get_src_port(id);
}

/*
 * Checks that a request to a datagram peer that is killed before the peer answers fails without
 * delay with status 1, as if there were no listener.
 */
static void check_datagram_peer_killed(void)
{
	struct rdma_conn_param param = { 0 };
	struct sockaddr_in addr;
	struct rdma_cm_id *id;

	fork_peer_process(listen_for_datagrams_in_peer_process);
	create_event_channels();
	id = create_ud_id(other);
	addr = loopback_sockaddr(wait_peer_port());
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 100) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ADDR_RESOLVED, id, 0);
	CHECK(rdma_resolve_route(id, 100) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ROUTE_RESOLVED, id, 0);
	CHECK(rdma_connect(id, &param) == 0);
	usleep(100000);
	send_signal_to_peer(SIGKILL);
	expect_cm_event(other, RDMA_CM_EVENT_UNREACHABLE, id, 1);
	CHECK(now_seconds() - began < SECONDS / 4.0);
	CHECK(rdma_destroy_id(id) == 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = { { "idle", check_idle_peer_killed },
		    { "busy", check_busy_peer_killed },
		    { "asked", check_server_killed_before_reply },
		    { "asking", check_client_killed_before_reply },
		    { "stopped", check_connect_to_stopped_peer_times_out },
		    { "datagrams", check_datagram_peer_killed } };

	port = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(port != MAP_FAILED && argc == 2);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (strcmp(argv[1], all[i].name) == 0) {
			all[i].run();
			if (kill(peer, 0) == 0)
				kill_and_reap_peer();
			rdma_destroy_event_channel(channel);
			rdma_destroy_event_channel(other);
			return 0;
		}
	return 2;
}
