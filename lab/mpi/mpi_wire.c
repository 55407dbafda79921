/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpi_wire SECONDS SIZE...: latency, one-way and two-way bandwidth between two ranks, by size.
 *
 * Every message is checked: before the timed part, each octet of some messages; during the timed
 * part, the number at both ends of each message. For each size, each of the three measurements
 * takes about SECONDS. A trial run of rank 0 determines the number of messages for both ranks.
 */
#include "lab/mpi/mpi_util.h"

#define WINDOW	  64	     /* maximum number of small messages in flight */
#define IN_FLIGHT (4u << 20) /* maximum number of octets in flight, for large messages */
#define CHECKED	  3	     /* number of messages whose octets are all checked */
#define TRIAL	  16	     /* number of round trips, or windows of messages, in the trial run */
#define MOST	  20000	     /* maximum number of round trips, or windows of messages, in a run */
#define TAG_DATA  1
#define TAG_DONE  2

struct wire {
	int rank;
	int peer;
	int window;
	size_t size;
	unsigned char *out; /* buffers for `window` messages of `size` octets each */
	unsigned char *in;
	MPI_Request *requests; /* MPI requests of both directions */
};

static unsigned char wire_expected_octet(int from, unsigned int number, size_t at)
{
	return (unsigned char)(from * 101 + number * 29 + at * 13 + (at >> 8));
}

static void wire_fill_message(const struct wire *w, unsigned char *message, unsigned int number)
{
	for (size_t at = 0; at < w->size; at++)
		message[at] = wire_expected_octet(w->rank, number, at);
}

static void wire_check_message(const struct wire *w, const unsigned char *message,
			       unsigned int number)
{
	for (size_t at = 0; at < w->size; at++)
		if (message[at] != wire_expected_octet(w->peer, number, at))
			abort_job("message %u of %zu octets: octet %zu is wrong", number, w->size,
				  at);
}

/*
 * Writes the number of a message into its first and last octets; a message has at least 64 octets.
 */
static void wire_write_message_number(const struct wire *w, unsigned char *message,
				      unsigned int number)
{
	memcpy(message, &number, sizeof(number));
	memcpy(message + w->size - sizeof(number), &number, sizeof(number));
}

static void wire_check_message_number(const struct wire *w, const unsigned char *message,
				      unsigned int number)
{
	unsigned int first, last;

	memcpy(&first, message, sizeof(first));
	memcpy(&last, message + w->size - sizeof(last), sizeof(last));
	if (first != number || last != number)
		abort_job("message %u of %zu octets arrived as %u to %u", number, w->size, first,
			  last);
}

static void wire_send_message(const struct wire *w, const void *message)
{
	MPI_Send(message, (int)w->size, MPI_BYTE, w->peer, TAG_DATA, MPI_COMM_WORLD);
}

static void wire_receive_message(const struct wire *w, void *message)
{
	MPI_Recv(message, (int)w->size, MPI_BYTE, w->peer, TAG_DATA, MPI_COMM_WORLD,
		 MPI_STATUS_IGNORE);
}

/* Returns the seconds of n round trips. */
static double wire_ping_pong(const struct wire *w, int n)
{
	double began;

	MPI_Barrier(MPI_COMM_WORLD);
	began = MPI_Wtime();
	for (int i = 0; i < n; i++) {
		if (w->rank == 0) {
			wire_write_message_number(w, w->out, (unsigned int)i);
			wire_send_message(w, w->out);
			wire_receive_message(w, w->in);
		} else {
			wire_receive_message(w, w->in);
			wire_write_message_number(w, w->out, (unsigned int)i);
			wire_send_message(w, w->out);
		}
		wire_check_message_number(w, w->in, (unsigned int)i);
	}
	return MPI_Wtime() - began;
}

static int wire_post_window_of_messages(const struct wire *w, int turn, int sends, int receives)
{
	int n = 0;

	for (int i = 0; receives && i < w->window; i++)
		MPI_Irecv(w->in + (size_t)i * w->size, (int)w->size, MPI_BYTE, w->peer, TAG_DATA,
			  MPI_COMM_WORLD, &w->requests[n++]);
	for (int i = 0; sends && i < w->window; i++) {
		wire_write_message_number(w, w->out + (size_t)i * w->size,
					  (unsigned int)(turn * w->window + i));
		MPI_Isend(w->out + (size_t)i * w->size, (int)w->size, MPI_BYTE, w->peer, TAG_DATA,
			  MPI_COMM_WORLD, &w->requests[n++]);
	}
	return n;
}

/*
 * Returns the seconds that n windows of messages take, from rank 0 to rank 1 or, if `both` is not
 * 0, in both directions. Rank 1 confirms each window with a message.
 */
static double wire_measure_message_windows(const struct wire *w, int n, int both)
{
	int receives = both || w->rank == 1, done = 0, requests;
	double began;

	MPI_Barrier(MPI_COMM_WORLD);
	began = MPI_Wtime();
	for (int turn = 0; turn < n; turn++) {
		requests = wire_post_window_of_messages(w, turn, both || w->rank == 0, receives);
		MPI_Waitall(requests, w->requests, MPI_STATUSES_IGNORE);
		for (int i = 0; receives && i < w->window; i++)
			wire_check_message_number(w, w->in + (size_t)i * w->size,
						  (unsigned int)(turn * w->window + i));
		if (w->rank == 0)
			MPI_Recv(&done, 1, MPI_INT, 1, TAG_DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		else
			MPI_Send(&turn, 1, MPI_INT, 0, TAG_DONE, MPI_COMM_WORLD);
	}
	return MPI_Wtime() - began;
}

static double wire_time_one_way_windows(const struct wire *w, int n)
{
	return wire_measure_message_windows(w, n, 0);
}

static double wire_time_two_way_windows(const struct wire *w, int n)
{
	return wire_measure_message_windows(w, n, 1);
}

/*
 * Returns the seconds that one round trip, or one window of messages, takes, measured by a call of
 * `run` that takes about `seconds`.
 */
static double measure_wire_seconds_per_repetition(const struct wire *w, double seconds,
						  double (*run)(const struct wire *, int))
{
	double trial;
	int n;

	run(w, TRIAL / 4); /* this first run establishes connections and registers the buffers */
	trial = run(w, TRIAL) / TRIAL;
	n = trial * MOST < seconds ? MOST : (int)(seconds / trial) + 4;
	MPI_Bcast(&n, 1, MPI_INT, 0, MPI_COMM_WORLD);
	return run(w, n) / n;
}

static void wire_exchange_and_check_messages(const struct wire *w)
{
	for (unsigned int i = 0; i < CHECKED; i++) {
		memset(w->in, 0, w->size);
		wire_fill_message(w, w->out, i);
		MPI_Sendrecv(w->out, (int)w->size, MPI_BYTE, w->peer, TAG_DATA, w->in, (int)w->size,
			     MPI_BYTE, w->peer, TAG_DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		wire_check_message(w, w->in, i);
	}
}

/* Measures latency and both bandwidths with messages of w->size; rank 0 prints them as JSON. */
static void wire_measure_and_print_one_size(struct wire *w, double seconds, int last)
{
	double latency, one, two;
	size_t octets;

	w->window = w->size * WINDOW > IN_FLIGHT ? (int)(IN_FLIGHT / w->size) : WINDOW;
	w->window = w->window ? w->window : 1;
	octets = w->size * (size_t)w->window;
	w->out = alloc_zeroed((size_t)w->window, w->size);
	w->in = alloc_zeroed((size_t)w->window, w->size);
	w->requests = alloc_zeroed((size_t)w->window * 2, sizeof(*w->requests));
	wire_exchange_and_check_messages(w);
	latency = measure_wire_seconds_per_repetition(w, seconds, wire_ping_pong) / 2 * 1e6;
	one = (double)octets /
	      measure_wire_seconds_per_repetition(w, seconds, wire_time_one_way_windows) / 1e9;
	two = 2.0 * (double)octets /
	      measure_wire_seconds_per_repetition(w, seconds, wire_time_two_way_windows) / 1e9;
	if (w->rank == 0)
		printf("{\"size\": %zu, \"lat\": %.4f, \"bw\": %.5f, \"bibw\": %.5f}%s", w->size,
		       latency, one, two, last ? "" : ", ");
	free(w->out);
	free(w->in);
	free(w->requests);
}

int main(int argc, char **argv)
{
	struct wire w = { 0 };
	double seconds;

	MPI_Init(&argc, &argv);
	w.rank = own_rank();
	w.peer = !w.rank;
	seconds = argc > 1 ? strtod(argv[1], NULL) : 0;
	if (all_ranks() != 2 || argc < 3 || seconds <= 0)
		abort_job("mpi_wire SECONDS SIZE..., with two ranks");
	if (w.rank == 0)
		printf("[");
	for (int i = 2; i < argc; i++) {
		w.size = strtoul(argv[i], NULL, 10);
		if (w.size < 8 || w.size > 1u << 30)
			abort_job("%s: from 8 octets to 1 GiB", argv[i]);
		wire_measure_and_print_one_size(&w, seconds, i + 1 == argc);
	}
	if (w.rank == 0)
		printf("]\n");
	finalize_job();
	return 0;
}
