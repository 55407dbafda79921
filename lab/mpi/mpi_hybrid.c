/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * siwarp-lab-hybrid RANKS SIZE MESSAGES LIMIT THRESHOLD PINGS PATIENCE_MS LIMIT_S: cost and
 * performance of a channel over UD, RC and both. LIMIT 0: UD only; THRESHOLD 0: each rank is
 * connected to each other rank at the start; otherwise UD first, and up to LIMIT connections of a
 * rank.
 *
 * The program forks RANKS processes. Each process sends one message to each other rank, then
 * MESSAGES messages in a skewed pattern: nine out of ten to the four neighbours in a ring, one to
 * any rank. Every received octet is checked. Then each process measures its memory, and ranks 0 and
 * 1 exchange PINGS messages in each direction while the others sleep. The parent prints the sums as
 * one line of JSON.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "lab/mpi/mpi_channel.h"
#include "lab/mpi/mpi_held.h"
#include "lab/mpi/mpi_process.h"

#define MOST_RANKS   256
#define NEIGHBOURS   4
#define SPINS_ALONE  2000 /* polls before sleeping if each rank has a CPU */
#define SPINS_SHARED 20
#define WAIT_POLL_US 2000

struct options {
	uint32_t ranks, messages, limit, threshold, pings, patience_ms, limit_s;
	uint64_t size;
};

/*
 * Memory shared by the processes. Each process writes its own entries; barriers order the accesses.
 */
struct shared {
	pthread_barrier_t barrier;
	_Atomic uint32_t arrived; /* number of ranks that have ended a phase, over all phases */
	_Atomic uint32_t pinged;  /* how many of ranks 0 and 1 have ended the ping-pong */
	uint16_t ud_ports[MOST_RANKS], cm_ports[MOST_RANKS];
	struct figures {
		long long pss, held;
		struct process_sockets sockets;
		struct siw_channel_stats sums;
		uint64_t ns;
	} of[MOST_RANKS];
	struct siw_bench_result lat;
	bool pinged_over_rc;
};

struct rank {
	const struct options *o;
	struct shared *shared;
	struct siw_channel channel;
	uint32_t own, phase;
	uint64_t received, expected; /* numbers of complete messages to this rank */
	uint32_t numbers_out[MOST_RANKS], numbers_in[MOST_RANKS];
	unsigned char *out;
};

/* ---- sending and checking messages ----------------------------------------------------------- */

static unsigned char ud_rc_hybrid_expected_octet(uint32_t from, uint32_t to, uint32_t number,
						 uint64_t at)
{
	return (unsigned char)(from * 31 + to * 7 + number * 3 + at * 13 + (at >> 8));
}

static void ud_rc_hybrid_send_message(struct rank *r, uint32_t to)
{
	uint32_t number = r->numbers_out[to]++;

	for (uint64_t at = 0; at < r->o->size; at++)
		r->out[at] = ud_rc_hybrid_expected_octet(r->own, to, number, at);
	message_channel_send_message(&r->channel, to, (const char *)r->out, r->o->size);
}

static void ud_rc_hybrid_check_received_fragment(void *arg, uint32_t from, const char *data,
						 uint32_t length, uint64_t left)
{
	struct rank *r = arg;
	uint64_t at = r->o->size - left;

	for (uint32_t i = 0; i < length; i++)
		if ((unsigned char)data[i] !=
		    ud_rc_hybrid_expected_octet(from, r->own, r->numbers_in[from], at + i))
			siw_bench_die(SIW_BENCH_EXIT_ERROR,
				      "from rank %u to %u: octet %llu of message %u is wrong", from,
				      r->own, (unsigned long long)(at + i), r->numbers_in[from]);
	if (length == left) {
		r->numbers_in[from]++;
		r->received++;
	}
}

/* ---- the skewed message pattern -------------------------------------------------------------- */

/* Returns the distance of a rank to a neighbour in the ring; with few ranks, distances repeat. */
static uint32_t ud_rc_hybrid_ring_neighbour_distance(uint32_t ranks, uint32_t which)
{
	const uint32_t distances[NEIGHBOURS] = { 1, ranks - 1, 2, ranks - 2 };

	return distances[which % (ranks > NEIGHBOURS ? NEIGHBOURS : ranks - 1)];
}

/*
 * Returns the rank to which a rank sends its next message of the pattern. *state is the state of a
 * random number generator, which must be the sending rank + 1 at first.
 */
static uint32_t ud_rc_hybrid_next_destination(uint32_t rank, uint32_t ranks, uint32_t *state)
{
	uint32_t x = *state;

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	*state = x;
	if (x % 10)
		return (rank + ud_rc_hybrid_ring_neighbour_distance(ranks, x >> 8)) % ranks;
	return (rank + 1 + (x >> 8) % (ranks - 1)) % ranks;
}

/* Returns the number of messages of the pattern that all other ranks send to this rank. */
static uint64_t ud_rc_hybrid_expected_message_count(const struct rank *r)
{
	uint64_t n = 0;

	for (uint32_t from = 0; from < r->o->ranks; from++) {
		uint32_t state = from + 1;

		for (uint32_t i = 0; from != r->own && i < r->o->messages; i++)
			n += ud_rc_hybrid_next_destination(from, r->o->ranks, &state) == r->own;
	}
	return n;
}

/* ---- the process of one rank ----------------------------------------------------------------- */

/*
 * Makes progress until every rank has received all messages and all its messages are acknowledged.
 * Until then a peer may need an acknowledgement again, because the first acknowledgement was lost.
 */
static void ud_rc_hybrid_wait_until_idle(struct rank *r, _Atomic uint32_t *arrived, uint32_t wanted)
{
	while (r->received < r->expected || !message_channel_is_idle(&r->channel))
		message_channel_make_progress(&r->channel);
	atomic_fetch_add(arrived, 1);
	while (atomic_load(arrived) < wanted)
		message_channel_make_progress(&r->channel);
}

static void ud_rc_hybrid_wait_for_end_of_phase(struct rank *r)
{
	ud_rc_hybrid_wait_until_idle(r, &r->shared->arrived, ++r->phase * r->o->ranks);
}

static void ud_rc_hybrid_send_messages_of_pattern(struct rank *r)
{
	uint32_t state = r->own + 1;
	uint64_t began = siw_bench_now();

	r->expected += ud_rc_hybrid_expected_message_count(r);
	for (uint32_t i = 0; i < r->o->messages; i++)
		ud_rc_hybrid_send_message(r, ud_rc_hybrid_next_destination(r->own, r->o->ranks,
									   &state));
	ud_rc_hybrid_wait_for_end_of_phase(r);
	r->shared->of[r->own].ns = siw_bench_now() - began;
}

static void ud_rc_hybrid_measure_memory(struct rank *r)
{
	struct figures *figures = &r->shared->of[r->own];

	figures->pss = read_pss_of_own_process();
	figures->held = heap_octets_of_siwarp();
	if (figures->pss < 0 || process_count_sockets(&figures->sockets))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "/proc/self cannot be read");
}

static void ud_rc_hybrid_wait_for_message(struct rank *r, uint32_t from, uint32_t number)
{
	while (r->numbers_in[from] == number)
		message_channel_make_progress(&r->channel);
}

static void ud_rc_hybrid_ping_pong(struct rank *r)
{
	uint32_t pings = r->o->pings, other = 1 - r->own, warmup = pings / 10;
	uint64_t *ns = siw_bench_require_object(calloc(pings, sizeof(*ns)), "memory");

	for (uint32_t i = 0; i < warmup + pings; i++) {
		uint64_t began = siw_bench_now();
		uint32_t number = r->numbers_in[other];

		if (r->own == 0)
			ud_rc_hybrid_send_message(r, other);
		ud_rc_hybrid_wait_for_message(r, other, number);
		if (r->own == 1)
			ud_rc_hybrid_send_message(r, other);
		if (i >= warmup)
			ns[i - warmup] = siw_bench_now() - began;
	}
	ud_rc_hybrid_wait_until_idle(r, &r->shared->pinged, 2);
	if (r->own == 0) {
		siw_bench_summarize_samples(ns, pings, 2, &r->shared->lat);
		r->shared->pinged_over_rc = message_channel_switch_to_rc(&r->channel.peers[other]);
	}
	free(ns);
}

static void ud_rc_hybrid_wait_at_barrier(struct rank *r)
{
	int e = pthread_barrier_wait(&r->shared->barrier);

	if (e && e != PTHREAD_BARRIER_SERIAL_THREAD)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "waiting for all ranks: %s", strerror(e));
}

static uint32_t ud_rc_hybrid_count_cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : (uint32_t)CPU_COUNT(&set);
}

/* Binds the thread to the CPU with the given index among the CPUs that the program may use. */
static void ud_rc_hybrid_pin_thread(uint32_t index)
{
	cpu_set_t set;
	int cpu = 0;

	if (sched_getaffinity(0, sizeof(set), &set))
		return;
	for (; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set) && index-- == 0) {
			siw_bench_pin_thread(cpu);
			return;
		}
}

static void ud_rc_hybrid_open_message_channel(struct rank *r)
{
	const struct options *o = r->o;
	struct siw_channel_plan plan = {
		.rank = r->own,
		.ranks = o->ranks,
		.size = o->size,
		.limit = o->limit,
		.threshold = o->threshold,
		.patience_ms = o->patience_ms,
		.spins = ud_rc_hybrid_count_cpus() >= o->ranks ? SPINS_ALONE : SPINS_SHARED,
		.deliver = ud_rc_hybrid_check_received_fragment,
		.arg = r,
	};

	message_channel_open(&r->channel, &plan, &r->shared->ud_ports[r->own],
			     &r->shared->cm_ports[r->own]);
	ud_rc_hybrid_wait_at_barrier(r);
	message_channel_store_ports_of_peers(&r->channel, r->shared->ud_ports, r->shared->cm_ports);
	if (o->limit && !o->threshold)
		message_channel_connect_all_peers(&r->channel);
	ud_rc_hybrid_wait_at_barrier(r);
}

static void ud_rc_hybrid_run_rank(const struct options *o, struct shared *shared, uint32_t own)
{
	struct rank r = { .o = o, .shared = shared, .own = own };

	r.out = siw_bench_require_object(calloc(1, o->size), "memory");
	heap_start_counting();
	ud_rc_hybrid_open_message_channel(&r);
	r.expected = o->ranks - 1;
	for (uint32_t step = 1; step < o->ranks; step++)
		ud_rc_hybrid_send_message(&r, (own + step) % o->ranks);
	ud_rc_hybrid_wait_for_end_of_phase(&r);
	ud_rc_hybrid_send_messages_of_pattern(&r);
	ud_rc_hybrid_measure_memory(&r);
	shared->of[own].sums = r.channel.sums;
	ud_rc_hybrid_wait_at_barrier(&r);
	/* Only ranks 0 and 1 are awake now, so that polling disturbs no other rank. */
	if (own < 2 && ud_rc_hybrid_count_cpus() > 1) {
		ud_rc_hybrid_pin_thread(own);
		r.channel.plan.spins = SPINS_ALONE;
	}
	if (own < 2)
		ud_rc_hybrid_ping_pong(&r);
	ud_rc_hybrid_wait_at_barrier(&r);
}

/* ---- the parent process ---------------------------------------------------------------------- */

static void ud_rc_hybrid_kill_ranks(pid_t *pids, uint32_t ranks)
{
	for (uint32_t i = 0; i < ranks; i++)
		if (pids[i])
			kill(pids[i], SIGKILL);
	for (uint32_t i = 0; i < ranks; i++)
		if (pids[i])
			waitpid(pids[i], NULL, 0);
}

/* Returns whether a rank has ended. A rank that failed ends the other ranks and this program. */
static bool ud_rc_hybrid_rank_has_ended(pid_t *pids, uint32_t ranks, uint32_t rank)
{
	int status;

	if (!pids[rank])
		return true;
	if (waitpid(pids[rank], &status, WNOHANG) != pids[rank])
		return false;
	pids[rank] = 0;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return true;
	ud_rc_hybrid_kill_ranks(pids, ranks);
	if (WIFSIGNALED(status))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "rank %u was killed by signal %d", rank,
			      WTERMSIG(status));
	exit(WEXITSTATUS(status)); /* the failed rank has already printed the reason */
}

static void ud_rc_hybrid_wait_for_ranks(const struct options *o, pid_t *pids)
{
	uint64_t began = siw_bench_now();
	uint32_t rank = 0;

	while (rank < o->ranks) {
		/*
		 * All ranks are checked each time, because the first rank that fails has printed
		 * the cause.
		 */
		for (uint32_t i = rank; i < o->ranks; i++)
			ud_rc_hybrid_rank_has_ended(pids, o->ranks, i);
		while (rank < o->ranks && !pids[rank])
			rank++;
		if (rank < o->ranks && siw_bench_now() - began > o->limit_s * 1000000000ull) {
			ud_rc_hybrid_kill_ranks(pids, o->ranks);
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "rank %u did not finish within %u s",
				      rank, o->limit_s);
		}
		usleep(WAIT_POLL_US);
	}
}

static void ud_rc_hybrid_print_result(const struct options *o, const struct shared *s)
{
	struct figures all = { 0 };

	for (uint32_t i = 0; i < o->ranks; i++) {
		const struct figures *of = &s->of[i];

		all.pss += of->pss;
		all.held += of->held;
		all.sockets.udp += of->sockets.udp;
		all.sockets.tcp += of->sockets.tcp;
		all.sockets.kernel += of->sockets.kernel;
		all.sums.by_ud += of->sums.by_ud;
		all.sums.by_rc += of->sums.by_rc;
		all.sums.again += of->sums.again;
		all.sums.strange += of->sums.strange;
		all.sums.connections += of->sums.connections;
		all.sums.refused += of->sums.refused;
		all.ns = of->ns > all.ns ? of->ns : all.ns;
	}
	printf("{\"ranks\": %u, \"pss\": %lld, \"held\": %lld, \"udp\": %lld, \"tcp\": %lld, "
	       "\"kernel\": %lld, \"us\": %llu, \"rate\": %.1f, \"lat\": %.3f, \"p99\": %.3f, "
	       "\"lat_over_rc\": %s, \"by_ud\": %llu, \"by_rc\": %llu, \"again\": %llu, "
	       "\"strange\": %llu, \"connections\": %u, \"refused\": %u}\n",
	       o->ranks, all.pss, all.held, all.sockets.udp, all.sockets.tcp, all.sockets.kernel,
	       (unsigned long long)(all.ns / 1000 * o->ranks),
	       (double)o->ranks * o->messages * 1e9 / (double)all.ns, s->lat.value, s->lat.p99,
	       s->pinged_over_rc ? "true" : "false", (unsigned long long)all.sums.by_ud,
	       (unsigned long long)all.sums.by_rc, (unsigned long long)all.sums.again,
	       (unsigned long long)all.sums.strange, all.sums.connections, all.sums.refused);
}

static struct shared *ud_rc_hybrid_create_shared_memory(const struct options *o)
{
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_barrierattr_t attr;

	if (shared == MAP_FAILED)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "no shared memory");
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&shared->barrier, &attr, o->ranks);
	pthread_barrierattr_destroy(&attr);
	return shared;
}

static struct options ud_rc_hybrid_parse_options(int argc, char **argv)
{
	unsigned long long n[8] = { 0 };

	for (int i = 0; i < 8 && i < argc - 1; i++)
		n[i] = strtoull(argv[i + 1], NULL, 10);
	if (argc != 9 || n[0] < 2 || n[0] > MOST_RANKS || !n[1] || !n[2] || !n[5])
		siw_bench_die(SIW_BENCH_EXIT_USAGE,
			      "siwarp-lab-hybrid is run by `python -m lab.mpi --part hybrid`");
	return (struct options){ .ranks = (uint32_t)n[0],
				 .size = n[1],
				 .messages = (uint32_t)n[2],
				 .limit = (uint32_t)n[3],
				 .threshold = (uint32_t)n[4],
				 .pings = (uint32_t)n[5],
				 .patience_ms = (uint32_t)n[6],
				 .limit_s = (uint32_t)n[7] };
}

int main(int argc, char **argv)
{
	struct options o = ud_rc_hybrid_parse_options(argc, argv);
	struct shared *shared = ud_rc_hybrid_create_shared_memory(&o);
	pid_t pids[MOST_RANKS] = { 0 };

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (uint32_t i = 0; i < o.ranks; i++) {
		pids[i] = fork();
		if (pids[i] < 0) {
			int e = errno;

			pids[i] = 0;
			ud_rc_hybrid_kill_ranks(pids, o.ranks);
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "rank %u cannot be started: %s", i,
				      strerror(e));
		}
		if (pids[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			ud_rc_hybrid_run_rank(&o, shared, i);
			return 0; /* the end of the process releases all its resources */
		}
	}
	ud_rc_hybrid_wait_for_ranks(&o, pids);
	ud_rc_hybrid_print_result(&o, shared);
	return 0;
}
