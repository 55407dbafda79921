/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests that an rdma_cm peer is lost: killed with SIGKILL or stopped. The argument names its state:
 * "idle", "busy", "asked" (it has a connection request), "asking" (it has sent one), "stopped", or
 * "datagrams" (its id is of RDMA_PS_UDP). This end must receive an event within the time that the
 * comment of each part states.
 */
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cm.h"

#define WRITES 4

static uint16_t *port; /* listening port of the peer; in memory shared by both processes */
static pid_t peer;
static double began;

/* Runs the function in a child process until the child is killed. */
static void run_peer(void (*what)(void))
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

static void kill_peer(int number)
{
	began = now();
	CHECK(kill(peer, number) == 0);
}

static void gone(void)
{
	CHECK(kill(peer, SIGKILL) == 0);
	CHECK(waitpid(peer, NULL, 0) == peer);
}

static void open_channels(void)
{
	channel = rdma_create_event_channel();
	other = rdma_create_event_channel();
	CHECK(channel && other);
}

/* Returns the port that the other process listens on. */
static uint16_t its_port(void)
{
	while (!*(volatile uint16_t *)port)
		usleep(1000);
	return *port;
}

static void listens(void)
{
	*port = rdma_get_src_port(listen_on(channel));
}

static void peer_accepts(void)
{
	struct rdma_cm_id *listener = listen_on(channel);

	*port = rdma_get_src_port(listener);
	CHECK(rdma_accept(next_cm_request(listener, NULL, 0), NULL) == 0);
}

static void peer_connects(void)
{
	CHECK(rdma_connect(resolved(other, its_port()), NULL) == 0);
}

/* ---- connections ----------------------------------------------------------------------------- */

static struct rdma_cm_id *connect_to(void)
{
	struct rdma_cm_id *id;

	run_peer(peer_accepts);
	open_channels();
	id = resolved(other, its_port());
	CHECK(rdma_connect(id, NULL) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, id, 0);
	return id;
}

/* All posted requests complete in order: possibly some successes first, then only errors. */
static void ends_in_order(struct rdma_cm_id *id, int posted)
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
 * The event arrives immediately, because the kernel closes the connection of a process that dies.
 */
static void connected_one(bool busy)
{
	struct rdma_cm_id *id = connect_to();
	struct ibv_mr *mr = rdma_reg_msgs(id, memory, SIZE);
	struct ibv_wc wc;

	CHECK(mr && rdma_post_recv(id, NULL, memory, 64, mr) == 0);
	if (busy) {
		CHECK(kill(peer, SIGSTOP) == 0); /* the peer has received none of the Writes */
		for (int i = 0; i < WRITES; i++)
			CHECK(rdma_post_send(id, (void *)(uintptr_t)i, memory, 64, mr, 0) == 0);
	}
	kill_peer(SIGKILL);
	expect_cm_event(other, RDMA_CM_EVENT_DISCONNECTED, id, 0);
	CHECK(now() - began < SECONDS / 4.0);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	if (!busy)
		CHECK(rdma_post_send(id, NULL, memory, 64, mr, 0) == 0);
	ends_in_order(id, busy ? WRITES : 1);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	cm_destroy(id);
}

static void idle(void)
{
	connected_one(false);
}

static void busy(void)
{
	connected_one(true);
}

/* ---- connection establishment ---------------------------------------------------------------- */

/* The peer is killed before it answers a connection request, so nothing listens there any more. */
static void peer_killed_before_reply(void)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	run_peer(listens);
	open_channels();
	id = resolved(other, its_port());
	CHECK(rdma_connect(id, NULL) == 0);
	usleep(100000);
	kill_peer(SIGKILL);
	event = next_cm_event(other, RDMA_CM_EVENT_REJECTED, id);
	CHECK(event->status == 8 && now() - began < SECONDS / 4.0);
	CHECK(rdma_ack_cm_event(event) == 0);
	cm_destroy(id);
}

/* The peer is killed before its connection request is answered. */
static void client_killed_before_reply(void)
{
	struct rdma_cm_id *listener, *id;

	run_peer(peer_connects);
	open_channels();
	listener = listen_on(channel);
	*port = rdma_get_src_port(listener);
	id = next_cm_request(listener, NULL, 0);
	kill_peer(SIGKILL);
	CHECK(waitpid(peer, NULL, 0) == peer);
	/*
	 * Either rdma_accept fails, or it succeeds and an event reports the loss of the peer later.
	 */
	if (rdma_accept(id, NULL) == 0) {
		struct rdma_cm_event *event =
			next_cm_event(channel, RDMA_CM_EVENT_CONNECT_ERROR, id);

		CHECK(event->status < 0);
		CHECK(rdma_ack_cm_event(event) == 0);
	} else {
		CHECK(errno == ECONNRESET || errno == ENOTCONN || errno == EPIPE);
	}
	cm_destroy(id);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* The peer is stopped, but alive: the event arrives after the setting mpa_timeout_ms. */
static void stopped(void)
{
	double limit = atof(getenv("SIWARP_MPA_TIMEOUT_MS")) / 1000;
	struct rdma_cm_id *id;

	run_peer(listens);
	open_channels();
	id = resolved(other, its_port());
	kill_peer(SIGSTOP);
	CHECK(rdma_connect(id, NULL) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_UNREACHABLE, id, -ETIMEDOUT);
	CHECK(now() - began >= limit && now() - began < limit + SECONDS / 4.0);
	cm_destroy(id);
}

/* ---- datagrams ------------------------------------------------------------------------------- */

static struct rdma_cm_id *new_ud(struct rdma_event_channel *on)
{
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(on, &id, NULL, RDMA_PS_UDP) == 0);
	return id;
}

static void listens_for_datagrams(void)
{
	struct sockaddr_in addr = loopback(0);
	struct rdma_cm_id *id = new_ud(channel);

	CHECK(rdma_bind_addr(id, (struct sockaddr *)&addr) == 0 && rdma_listen(id, 0) == 0);
	*port = rdma_get_src_port(id);
}

/*
 * The peer is killed before it answers: the event arrives soon, with status 1, as if nothing
 * listened there.
 */
static void datagrams(void)
{
	struct rdma_conn_param param = { 0 };
	struct sockaddr_in addr;
	struct rdma_cm_id *id;

	run_peer(listens_for_datagrams);
	open_channels();
	id = new_ud(other);
	addr = loopback(its_port());
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 100) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ADDR_RESOLVED, id, 0);
	CHECK(rdma_resolve_route(id, 100) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ROUTE_RESOLVED, id, 0);
	CHECK(rdma_connect(id, &param) == 0);
	usleep(100000);
	kill_peer(SIGKILL);
	expect_cm_event(other, RDMA_CM_EVENT_UNREACHABLE, id, 1);
	CHECK(now() - began < SECONDS / 4.0);
	CHECK(rdma_destroy_id(id) == 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = { { "idle", idle },
		    { "busy", busy },
		    { "asked", peer_killed_before_reply },
		    { "asking", client_killed_before_reply },
		    { "stopped", stopped },
		    { "datagrams", datagrams } };

	port = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(port != MAP_FAILED && argc == 2);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (strcmp(argv[1], all[i].name) == 0) {
			all[i].run();
			if (kill(peer, 0) == 0)
				gone();
			rdma_destroy_event_channel(channel);
			rdma_destroy_event_channel(other);
			return 0;
		}
	return 2;
}
