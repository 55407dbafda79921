/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests many processes or many connections with rdma_cm on loopback.
 *
 *   many PROCESSES GROUP EACH ROUNDS poll|event
 *
 * Every two processes of a group of GROUP processes have EACH connections, on which both ends send
 * in turn, ROUNDS times. The program prints the totals "wall" and "cpu" in seconds, and the maxima
 * "rss" in KiB and "fds" of a process without and with connections.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cm.h"

#define MOST	2048 /* maximum number of connections of a process */
#define OCTETS	64
#define LIMIT_S 120 /* time limit in s for each wait of a process */

struct connection {
	struct rdma_cm_id *id;
	int to_receive, to_send;
	bool dialed;
};

/* Memory shared by all processes */
static struct {
	pthread_barrier_t all;
	_Atomic long rss[2], fds[2];
	uint16_t ports[1024];
} * shared;

static int processes, group, each, rounds, rank;
static bool by_event;
static struct connection connections[MOST];
static int n_connections, n_established;
static struct rdma_cm_id *listener;
static struct ibv_comp_channel *completions;
static struct ibv_cq *cq;
static struct ibv_mr *mr;

/* ---- resources of a process ------------------------------------------------------------------ */

static long resident_kib(void)
{
	long pages, in_memory;
	FILE *of = fopen("/proc/self/statm", "r");

	CHECK(of && fscanf(of, "%ld %ld", &pages, &in_memory) == 2);
	fclose(of);
	return in_memory * (sysconf(_SC_PAGESIZE) / 1024);
}

static void update_atomic_maximum(_Atomic long *most, long value)
{
	long seen = *most;

	while (seen < value && !atomic_compare_exchange_weak(most, &seen, value))
		;
}

static void note_peak_memory_and_descriptors(int when)
{
	update_atomic_maximum(&shared->rss[when], resident_kib());
	update_atomic_maximum(&shared->fds[when], count_descriptors());
}

/* ---- connecting ------------------------------------------------------------------------------ */

static void create_shared_cq(struct ibv_context *verbs)
{
	if (cq)
		return;
	completions = ibv_create_comp_channel(verbs);
	CHECK(completions);
	cq = ibv_create_cq(verbs, 4 * MOST, NULL, completions, 0);
	CHECK(cq && ibv_req_notify_cq(cq, 0) == 0);
}

static void post_receive(struct connection *one)
{
	CHECK(rdma_post_recv(one->id, one, memory, OCTETS, mr) == 0);
}

static void add_connection(struct rdma_cm_id *id, bool dialed)
{
	struct connection *one = &connections[n_connections++];
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	CHECK(n_connections <= MOST);
	create_shared_cq(id->verbs);
	attr.send_cq = attr.recv_cq = cq;
	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
	if (!mr)
		mr = ibv_reg_mr(id->pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	*one = (struct connection){
		.id = id, .dialed = dialed, .to_receive = rounds, .to_send = rounds
	};
	id->context = one;
	post_receive(one);
}

static void start_connecting(int to)
{
	struct sockaddr_in addr = loopback_sockaddr(shared->ports[to]);
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 1000) == 0);
}

static void handle_cm_event(struct rdma_cm_event *event)
{
	switch ((int)event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		CHECK(rdma_resolve_route(event->id, 1000) == 0);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		add_connection(event->id, true);
		CHECK(rdma_connect(event->id, NULL) == 0);
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		add_connection(event->id, false);
		CHECK(rdma_accept(event->id, NULL) == 0);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		n_established++;
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		n_established--;
		break;
	default:
		fprintf(stderr, "%d: %s, status %d\n", rank, rdma_event_str(event->event),
			event->status);
		CHECK(!"unexpected event");
	}
}

/* Handles connection manager events until `wanted` connections are established. */
static void wait_established(int wanted)
{
	double end = now_seconds() + LIMIT_S;

	while (n_established != wanted) {
		struct rdma_cm_event *event;
		struct rdma_cm_event copy;

		CHECK(poll(&(struct pollfd){ channel->fd, POLLIN, 0 }, 1, LIMIT_S * 1000) == 1);
		CHECK(rdma_get_cm_event(channel, &event) == 0 && now_seconds() < end);
		copy = *event;
		CHECK(rdma_ack_cm_event(event) == 0);
		handle_cm_event(&copy);
	}
}

/* ---- messages -------------------------------------------------------------------------------- */

static void post_send(struct connection *one)
{
	CHECK(one->to_send-- > 0);
	CHECK(rdma_post_send(one->id, one, memory + OCTETS, OCTETS, mr,
			     IBV_SEND_INLINE | IBV_SEND_SIGNALED) == 0);
}

/* Waits for completions, and returns their number. */
static int wait_for_completions(struct ibv_wc *wc, int most)
{
	double end = now_seconds() + LIMIT_S;
	struct ibv_cq *which;
	void *unused;
	int n;

	while ((n = ibv_poll_cq(cq, most, wc)) == 0) {
		CHECK(now_seconds() < end);
		if (!by_event)
			continue;
		CHECK(ibv_get_cq_event(completions, &which, &unused) == 0);
		ibv_ack_cq_events(which, 1);
		CHECK(ibv_req_notify_cq(which, 0) == 0);
	}
	CHECK(n > 0);
	return n;
}

/*
 * Sends from the connecting end of each connection, and answers each message, until all are sent.
 *
 */
static void exchange_messages_on_all_connections(void)
{
	int open = 0;

	for (int i = 0; i < n_connections; i++) {
		open += rounds;
		if (rounds && connections[i].dialed)
			post_send(&connections[i]);
	}
	while (open) {
		struct ibv_wc wc[16];
		int n = wait_for_completions(wc, 16);

		for (int i = 0; i < n; i++) {
			struct connection *one = (struct connection *)(uintptr_t)wc[i].wr_id;

			CHECK(wc[i].status == IBV_WC_SUCCESS);
			if (wc[i].opcode != IBV_WC_RECV)
				continue;
			CHECK(one->id->qp->qp_num == wc[i].qp_num && wc[i].byte_len == OCTETS);
			open--;
			if (--one->to_receive)
				post_receive(one);
			if (one->to_send)
				post_send(one);
		}
	}
}

/* ---- a process ------------------------------------------------------------------------------- */

static void wait_at_barrier_of_processes(void)
{
	pthread_barrier_wait(&shared->all);
}

static void disconnect_all(void)
{
	for (int i = 0; i < n_connections; i++)
		if (connections[i].dialed)
			CHECK(rdma_disconnect(connections[i].id) == 0);
	wait_established(0);
	for (int i = 0; i < n_connections; i++) {
		rdma_destroy_qp(connections[i].id);
		CHECK(rdma_destroy_id(connections[i].id) == 0);
	}
}

static void connect_group_and_exchange(void)
{
	int first = rank / group * group, last = first + group - 1;

	channel = rdma_create_event_channel();
	CHECK(channel);
	if (last >= processes)
		last = processes - 1;
	listener = listen_on_channel(channel);
	shared->ports[rank] = rdma_get_src_port(listener);
	note_peak_memory_and_descriptors(0);
	wait_at_barrier_of_processes();
	for (int to = rank + 1; to <= last; to++)
		for (int i = 0; i < each; i++)
			start_connecting(to);
	wait_established(each * (last - first));
	wait_at_barrier_of_processes();
	exchange_messages_on_all_connections();
	note_peak_memory_and_descriptors(1);
	wait_at_barrier_of_processes();
	disconnect_all();
	CHECK(!mr || ibv_dereg_mr(mr) == 0);
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(channel);
}

static double timeval_seconds(struct timeval t)
{
	return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

static void print_resource_usage(double began)
{
	struct rusage used;

	CHECK(getrusage(RUSAGE_CHILDREN, &used) == 0);
	printf("{\"wall\": %.3f, \"cpu\": %.3f, \"rss\": [%ld, %ld], \"fds\": [%ld, %ld]}\n",
	       now_seconds() - began,
	       timeval_seconds(used.ru_utime) + timeval_seconds(used.ru_stime), shared->rss[0],
	       shared->rss[1], shared->fds[0], shared->fds[1]);
}

int main(int argc, char **argv)
{
	pthread_barrierattr_t attr;
	double began = now_seconds();
	int failed = 0, status;

	CHECK(argc == 6 && setpgid(0, 0) == 0);
	processes = atoi(argv[1]);
	group = atoi(argv[2]);
	each = atoi(argv[3]);
	rounds = atoi(argv[4]);
	by_event = strcmp(argv[5], "event") == 0;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	CHECK(shared != MAP_FAILED && processes <= 1024 && group > 1);
	CHECK(pthread_barrierattr_init(&attr) == 0);
	CHECK(pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED) == 0);
	CHECK(pthread_barrier_init(&shared->all, &attr, (unsigned int)processes) == 0);
	for (rank = 0; rank < processes; rank++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (pid == 0) {
			CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
			connect_group_and_exchange();
			return 0;
		}
	}
	/* If a process fails, terminate the others, which would wait at the barrier. */
	while (wait(&status) > 0)
		if (status && !failed) {
			failed = 1;
			signal(SIGTERM, SIG_IGN);
			kill(0, SIGTERM);
		}
	if (!failed)
		print_resource_usage(began);
	return failed;
}
