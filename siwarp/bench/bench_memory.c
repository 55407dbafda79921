/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * siwarp-bench-memory: the memory that a process needs for its peers. `siwarp bench memory` starts
 * siwarp-bench-memory twice, as the measured process and as the process with the peers, with a
 * socket pair between both.
 *
 * The measured process prints one line of JSON: its own memory and the kernel's memory for its
 * sockets, with every peer known and no traffic ("idle"), and with one message in flight to each
 * peer that the peer does not receive, because its process is stopped ("loaded").
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <linux/sock_diag.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <siwarp/cm.h>
#include <siwarp/siw_ext.h>

#include "bench/bench.h"

#define RING	   4 /* requests and receives that a queue pair can hold */
#define MESSAGE	   1024
#define MESSAGES   2 /* number of messages that are sent to each peer */
#define OWN_QKEY   0x80000000u
#define CM_WAIT_MS 10000
#define LIMIT_S	   120
#define BACKLOG	   4096
#define SETTLE_US  1500000

struct end {
	const char *qp;
	uint32_t peers;
	int ctl;
	pid_t other;
	struct siw_context *context;
	struct siw_pd *pd;
	struct siw_cq *cq;
	struct siw_mr *mr;
	char *memory;
	struct siw_cm_channel *cm;
	struct siw_qp **qps; /* QPs of the measured process: one, or for RC one per peer */
	struct siw_ah **ahs;
	struct siw_cm_id **ids;
};

static bool memory_bench_uses_rc(const struct end *e)
{
	return !strcmp(e->qp, "rc");
}

static bool memory_bench_uses_rd(const struct end *e)
{
	return !strcmp(e->qp, "rd");
}

/*
 * Returns whether the type is UD, whose requests complete without action by the peer on a single
 * queue pair.
 */
static bool memory_bench_uses_ud(const struct end *e)
{
	return !strcmp(e->qp, "ud");
}

/* ---- memory in use --------------------------------------------------------------------------- */

/*
 * Returns the octets of the process's own memory. Pages of files (code, libraries) are excluded,
 * because their share depends on the number of other processes that map them, and peers do not
 * increase it.
 */
static uint64_t process_memory_octets(void)
{
	FILE *file = siw_bench_require_object(fopen("/proc/self/smaps_rollup", "r"),
					      "/proc/self/smaps_rollup");
	unsigned long long kib = 0;
	char line[256];

	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "Anonymous: %llu kB", &kib) == 1)
			break;
	fclose(file);
	return kib * 1024;
}

/*
 * Returns the octets that the kernel has allocated for sent and received data of a socket, or -1 if
 * fd is not a socket. The system call is made directly, because the device may concurrently close a
 * descriptor, which is harmless, but which ThreadSanitizer would report for the libc function.
 */
static int64_t socket_memory_octets(int fd)
{
	uint32_t info[SK_MEMINFO_VARS] = { 0 };
	socklen_t size = sizeof(info);

	if (syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_MEMINFO, info, &size))
		return -1;
	return (int64_t)info[SK_MEMINFO_RMEM_ALLOC] + info[SK_MEMINFO_WMEM_ALLOC] +
	       info[SK_MEMINFO_FWD_ALLOC] + info[SK_MEMINFO_WMEM_QUEUED] + info[SK_MEMINFO_OPTMEM] +
	       info[SK_MEMINFO_BACKLOG];
}

/*
 * Returns the octets of kernel memory for all sockets of the process, and stores the number of
 * sockets.
 */
static uint64_t all_sockets_memory_octets(const struct end *e, uint32_t *sockets)
{
	DIR *fds = siw_bench_require_object(opendir("/proc/self/fd"), "/proc/self/fd");
	struct dirent *entry;
	uint64_t octets = 0;

	*sockets = 0;
	while ((entry = readdir(fds))) {
		int fd = atoi(entry->d_name);
		int64_t its = entry->d_name[0] == '.' || fd == e->ctl ? -1
								      : socket_memory_octets(fd);

		if (its < 0)
			continue;
		octets += (uint64_t)its;
		++*sockets;
	}
	closedir(fds);
	return octets;
}

/* ---- both processes -------------------------------------------------------------------------- */

/*
 * Opens the device and creates the objects of one of the two processes. cqe: number of completions
 * that stay unpolled in the completion queue.
 */
static void memory_bench_create_objects(struct end *e, uint32_t cqe)
{
	struct siw_addr loopback;

	siw_addr_parse("127.0.0.1", 0, &loopback);
	e->context =
		siw_bench_require_object(siw_open_device_by_addr(&loopback), "the loopback device");
	e->pd = siw_bench_require_object(siw_alloc_pd(e->context), "a protection domain");
	e->cq = siw_bench_require_object(
		siw_create_cq(e->context, (int)(cqe + RING), NULL, NULL, 0), "a completion queue");
	e->memory = siw_bench_require_object(calloc(1, MESSAGE), "memory");
	e->mr = siw_bench_require_object(
		siw_reg_mr(e->pd, e->memory, MESSAGE, SIW_ACCESS_LOCAL_WRITE), "a region");
	if (memory_bench_uses_rc(e))
		e->cm = siw_bench_require_object(siw_cm_create_channel(e->context), "a channel");
}

static struct siw_qp *memory_bench_create_qp(struct end *e, uint32_t sends)
{
	struct siw_qp_init_attr init = {
		.send_cq = e->cq,
		.recv_cq = e->cq,
		.qp_type = memory_bench_uses_rc(e)   ? SIW_QPT_RC
			   : memory_bench_uses_rd(e) ? SIW_QPT_RD
						     : SIW_QPT_UD,
		.cap = { sends, RING, 1, 1, 0 },
	};
	struct siw_qp *qp;

	siw_addr_parse("127.0.0.1", 0, &init.addr);
	qp = siw_bench_require_object(siw_create_qp(e->pd, &init), "a queue pair");
	for (int s = SIW_QPS_INIT; !memory_bench_uses_rc(e) && s <= SIW_QPS_RTS; s++)
		siw_bench_exit_on_error(siw_modify_qp(qp, &(struct siw_qp_attr){ .qp_state = s },
						      SIW_QP_STATE),
					"changing the state of the queue pair");
	return qp;
}

/*
 * Posts one receive per expected message, because a message without a receive would end a
 * connection.
 */
static void memory_bench_post_recvs(struct end *e, struct siw_qp *qp)
{
	struct siw_sge sge = { (uintptr_t)e->memory, MESSAGE, e->mr->lkey };
	struct siw_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };

	for (int i = 0; i < MESSAGES; i++)
		siw_bench_exit_on_error(siw_post_recv(qp, &wr, &bad), "posting a receive");
}

static uint16_t memory_bench_qp_port(struct siw_qp *qp)
{
	struct siw_addr a;

	siw_bench_exit_on_error(siw_qp_addr(qp, &a, NULL), "the queue pair's address");
	return ntohs(a.port_be);
}

/* ---- the process with the peers -------------------------------------------------------------- */

static void memory_bench_create_dgram_peers(struct end *e)
{
	for (uint32_t i = 0; i < e->peers; i++) {
		struct siw_qp *qp = memory_bench_create_qp(e, RING);

		memory_bench_post_recvs(e, qp);
		siw_bench_exchange_number(e->ctl, memory_bench_qp_port(qp));
	}
}

static void memory_bench_accept_peer(struct end *e, struct siw_cm_id *id)
{
	struct siw_qp *qp = memory_bench_create_qp(e, RING);

	siw_bench_exit_on_error(siw_cm_bind_qp(id, qp), "binding");
	memory_bench_post_recvs(e, qp);
	siw_bench_exit_on_error(siw_cm_accept(id, NULL), "accepting");
}

static void memory_bench_accept_rc_peers(struct end *e)
{
	struct siw_cm_id *listener =
		siw_bench_require_object(siw_cm_create_id(e->cm, NULL), "an id");
	struct siw_addr a;
	uint32_t there = 0;

	siw_addr_parse("127.0.0.1", 0, &a);
	siw_bench_exit_on_error(siw_cm_listen(listener, &a, BACKLOG), "listening");
	siw_bench_exit_on_error(siw_cm_addr(listener, &a, NULL), "the listener's address");
	siw_bench_exchange_number(e->ctl, ntohs(a.port_be));
	while (there < e->peers) {
		struct siw_cm_event event;

		siw_bench_exit_on_error(siw_cm_get_event(e->cm, &event, CM_WAIT_MS),
					"waiting for a connection");
		if (event.event == SIW_CM_CONNECT_REQUEST)
			memory_bench_accept_peer(e, event.id);
		else if (event.event == SIW_CM_ESTABLISHED)
			there++;
	}
}

static void memory_bench_run_peer_process(struct end *e)
{
	siw_bench_exchange_number(e->ctl, (uint64_t)getpid());
	if (memory_bench_uses_rc(e))
		memory_bench_accept_rc_peers(e);
	else
		memory_bench_create_dgram_peers(e);
	siw_bench_exchange_number(e->ctl, 0); /* wait until all peers exist */
	siw_bench_exchange_number(e->ctl, 0); /* wait until the measurement is done */
}

/* ---- the measured process -------------------------------------------------------------------- */

static void memory_bench_add_dgram_peers(struct end *e)
{
	struct siw_addr a;

	/*
	 * A request to an RD peer occupies a slot of the send queue until the peer has acknowledged
	 * the request, so the queue has a slot for each peer.
	 */
	e->qps[0] = memory_bench_create_qp(e, memory_bench_uses_rd(e) && e->peers > RING ? e->peers
											 : RING);
	for (uint32_t i = 0; i < e->peers; i++) {
		siw_addr_parse("127.0.0.1", (uint16_t)siw_bench_exchange_number(e->ctl, 0), &a);
		e->ahs[i] = siw_bench_require_object(siw_create_ah(e->pd, &a), "an address handle");
	}
}

/*
 * Connects the peers one after another, because concurrent connection attempts would increase the
 * measured memory.
 */
static void memory_bench_connect_rc_peers(struct end *e)
{
	struct siw_addr a;

	siw_addr_parse("127.0.0.1", (uint16_t)siw_bench_exchange_number(e->ctl, 0), &a);
	for (uint32_t i = 0; i < e->peers; i++) {
		struct siw_cm_event event;

		e->ids[i] = siw_bench_require_object(siw_cm_create_id(e->cm, NULL), "an id");
		e->qps[i] = memory_bench_create_qp(e, RING);
		siw_bench_exit_on_error(siw_cm_bind_qp(e->ids[i], e->qps[i]), "binding");
		siw_bench_exit_on_error(siw_cm_connect(e->ids[i], &a, NULL, NULL), "connecting");
		siw_bench_exit_on_error(siw_cm_get_event(e->cm, &event, CM_WAIT_MS),
					"waiting for the connection");
		if (event.event != SIW_CM_ESTABLISHED)
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "connection %u: %s", i,
				      siw_cm_event_str(event.event));
	}
}

static void memory_bench_send_to_peer(struct end *e, uint32_t peer, int flags)
{
	struct siw_sge sge = { (uintptr_t)e->memory, MESSAGE, e->mr->lkey };
	struct siw_send_wr *bad,
		wr = { .sg_list = &sge, .num_sge = 1, .opcode = SIW_WR_SEND, .send_flags = flags };

	if (memory_bench_uses_rd(e)) {
		wr.rd.ah = e->ahs[peer];
	} else if (!memory_bench_uses_rc(e)) {
		wr.wr.ud.ah = e->ahs[peer];
		wr.wr.ud.remote_qkey = OWN_QKEY;
	}
	siw_bench_exit_on_error(siw_post_send(memory_bench_uses_rc(e) ? e->qps[peer] : e->qps[0],
					      &wr, &bad),
				"posting a send");
}

static void memory_bench_wait_completion(struct end *e)
{
	struct siw_bench_guard guard = { 0 };
	struct siw_wc wc;
	int n;

	while (!(n = siw_poll_cq(e->cq, 1, &wc)))
		if (siw_bench_idle(&guard))
			siw_bench_die(SIW_BENCH_EXIT_LOST, "a request did not complete");
	siw_bench_exit_on_error(n, "polling");
	if (wc.status != SIW_WC_SUCCESS)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "a request failed: %s",
			      siw_wc_status_str(wc.status));
}

/*
 * Exits with an error unless all connections still exist, because the measured memory must include
 * all connections.
 */
static void memory_bench_check_connected(struct end *e)
{
	struct siw_qp_attr attr;

	for (uint32_t i = 0; i < e->peers; i++) {
		siw_bench_exit_on_error(siw_query_qp(e->qps[i], &attr, NULL),
					"querying the queue pair's state");
		if (attr.qp_state != SIW_QPS_RTS)
			siw_bench_die(SIW_BENCH_EXIT_LOST,
				      "connection %u was lost while its memory was measured", i);
	}
}

/* Wait until temporary memory is freed, and return free memory to the system. */
static void memory_bench_trim_heap(void)
{
	usleep(SETTLE_US);
#ifdef __GLIBC__ /* C libraries other than glibc return memory immediately */
	malloc_trim(0);
#endif
}

static void memory_bench_run_measured_process(struct end *e)
{
	uint64_t idle, idle_kernel, loaded, loaded_kernel;
	uint32_t sockets;

	e->other = (pid_t)siw_bench_exchange_number(e->ctl, 0);
	if (memory_bench_uses_rc(e))
		memory_bench_connect_rc_peers(e);
	else
		memory_bench_add_dgram_peers(e);
	siw_bench_exchange_number(e->ctl, 0);
	/*
	 * Send one message to each peer, so that the memory allocated for the first message of a
	 * peer exists.
	 */
	for (uint32_t i = 0; i < e->peers; i++) {
		memory_bench_send_to_peer(e, i, SIW_SEND_SIGNALED);
		memory_bench_wait_completion(e);
	}
	if (memory_bench_uses_rd(e))
		memory_bench_trim_heap();
	idle = process_memory_octets();
	idle_kernel = all_sockets_memory_octets(e, &sockets);
	/*
	 * The next loop needs a completion for each peer. The completion queue is enlarged only
	 * here, so that its memory is not part of the idle memory.
	 */
	if (!memory_bench_uses_ud(e))
		siw_bench_exit_on_error(siw_resize_cq(e->cq, (int)e->peers + RING),
					"a larger completion queue");
	kill(e->other, SIGSTOP);
	for (uint32_t i = 0; i < e->peers; i++) {
		memory_bench_send_to_peer(e, i, SIW_SEND_SIGNALED);
		if (memory_bench_uses_ud(e))
			memory_bench_wait_completion(e);
	}
	loaded = process_memory_octets();
	loaded_kernel = all_sockets_memory_octets(e, &sockets);
	kill(e->other, SIGCONT);
	if (memory_bench_uses_rc(e))
		memory_bench_check_connected(e);
	printf("{\"peers\": %u, \"sockets\": %u, \"idle\": %llu, \"idle_kernel\": %llu, "
	       "\"loaded\": %llu, \"loaded_kernel\": %llu}\n",
	       e->peers, sockets, (unsigned long long)idle, (unsigned long long)idle_kernel,
	       (unsigned long long)loaded, (unsigned long long)loaded_kernel);
	siw_bench_exchange_number(e->ctl, 0);
}

int main(int argc, char **argv)
{
	struct end e = { 0 };
	bool measured;

	if (argc != 5)
		siw_bench_die(SIW_BENCH_EXIT_USAGE,
			      "siwarp-bench-memory is started by `siwarp bench memory`: run that "
			      "command");
	measured = !strcmp(argv[1], "measured");
	e.qp = argv[2];
	e.peers = (uint32_t)strtoul(argv[3], NULL, 10);
	e.ctl = atoi(argv[4]);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(LIMIT_S);
	siw_bench_raise_fd_limit(e.peers);
	e.qps = siw_bench_require_object(calloc(e.peers, sizeof(*e.qps)), "memory");
	e.ahs = siw_bench_require_object(calloc(e.peers, sizeof(*e.ahs)), "memory");
	e.ids = siw_bench_require_object(calloc(e.peers, sizeof(*e.ids)), "memory");
	memory_bench_create_objects(&e, measured ? 0 : MESSAGES * e.peers);
	if (measured)
		memory_bench_run_measured_process(&e);
	else
		memory_bench_run_peer_process(&e);
	return 0; /* the end of the process frees all objects */
}
