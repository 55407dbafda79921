/*
 * librpma test: Writes with flushes, Reads, atomic writes and messages, with checked data.
 *
 * rpma_exchange server|client ADDRESS PORT ROUNDS      ADDRESS: the server's
 *
 * The server exposes its memory. In each round the client writes to the server's memory, reads the
 * data back and notifies the server, which checks its memory and answers.
 */
#include <librpma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 1 << 20, MESSAGE = 64, DESCRIPTOR = 64 };

#define OK(call) exit_on_error((call), #call)
static void exit_on_error(int failed, const char *call)
{
	if (failed) {
		fprintf(stderr, "%s: %s\n", call, rpma_err_2str(failed));
		exit(1);
	}
}

static void require_same_octets(const void *got, const void *wanted, size_t size, const char *what)
{
	if (memcmp(got, wanted, size) != 0) {
		fprintf(stderr, "%s is wrong\n", what);
		exit(1);
	}
}

static void fill_pattern(unsigned char *to, size_t size, int seed)
{
	for (size_t i = 0; i < size; i++)
		to[i] = (unsigned char)(i * 7 + (i >> 8) * 13 + seed);
}

/*
 * The state of one end: its memory for Writes and Reads, and a buffer for messages in each
 * direction.
 */
struct end {
	struct rpma_peer *peer;
	struct rpma_conn *conn;
	struct rpma_cq *cq;
	unsigned char *memory, *expected, *in, *out;
	struct rpma_mr_local *mr, *in_mr, *out_mr;
	int early; /* the peer's answer arrived before the completion of our request */
};

static unsigned char *register_aligned_memory(struct end *end, size_t size, int usage,
					      struct rpma_mr_local **mr)
{
	unsigned char *memory = aligned_alloc(4096, size < 4096 ? 4096 : size);

	memset(memory, 0, size);
	OK(rpma_mr_reg(end->peer, memory, size, usage, mr));
	return memory;
}

static void open_device_and_register_memory(struct end *end, const char *address,
					    enum rpma_util_ibv_context_type type)
{
	const int usage = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST |
			  RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST |
			  RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY;
	struct ibv_context *context = NULL;

	OK(rpma_utils_get_ibv_context(address, type, &context));
	OK(rpma_peer_new(context, &end->peer));
	end->memory = register_aligned_memory(end, SIZE, usage, &end->mr);
	end->in = register_aligned_memory(end, MESSAGE, RPMA_MR_USAGE_RECV, &end->in_mr);
	end->out = register_aligned_memory(end, MESSAGE, RPMA_MR_USAGE_SEND, &end->out_mr);
	end->expected = malloc(SIZE);
}

/* Waits for the next completion and returns its context. */
static const void *wait_completion_and_get_context(struct end *end)
{
	struct ibv_wc wc;
	int failed;

	while ((failed = rpma_cq_get_wc(end->cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
		OK(rpma_cq_wait(end->cq));
	OK(failed);
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
	return (const void *)(uintptr_t)wc.wr_id;
}

/* Waits for the completion with the given context. */
static void wait_for_completion_with_context(struct end *end, const void *context)
{
	const void *found;

	if (context == end->in && end->early) {
		end->early = 0;
		return;
	}
	found = wait_completion_and_get_context(end);
	if (found == end->in && context == end->out && !end->early) {
		end->early = 1;
		found = wait_completion_and_get_context(end);
	}
	if (found != context) {
		fprintf(stderr, "a completion of something else\n");
		exit(1);
	}
}

static void expect_connection_event(struct end *end, enum rpma_conn_event wanted)
{
	enum rpma_conn_event event = RPMA_CONN_UNDEFINED;

	OK(rpma_conn_next_event(end->conn, &event));
	if (event != wanted) {
		fprintf(stderr, "event: %s\n", rpma_utils_conn_event_2str(event));
		exit(1);
	}
}

static void post_message_receive(struct end *end)
{
	OK(rpma_recv(end->conn, end->in_mr, 0, MESSAGE, end->in));
}

static void send_round_message(struct end *end, int round)
{
	fill_pattern(end->out, MESSAGE, round);
	OK(rpma_send(end->conn, end->out_mr, 0, MESSAGE, RPMA_F_COMPLETION_ALWAYS, end->out));
	wait_for_completion_with_context(end, end->out);
}

static void receive_round_message(struct end *end, int round)
{
	wait_for_completion_with_context(end, end->in);
	fill_pattern(end->expected, MESSAGE, round);
	require_same_octets(end->in, end->expected, MESSAGE, "a message");
}

static void run_server(struct end *end, const char *address, const char *port, int rounds)
{
	unsigned char descriptor[DESCRIPTOR];
	struct rpma_conn_private_data lent = { descriptor, 0 };
	struct rpma_conn_req *request = NULL;
	struct rpma_ep *ep = NULL;
	size_t size = 0;

	open_device_and_register_memory(end, address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
	OK(rpma_mr_get_descriptor_size(end->mr, &size));
	OK(rpma_mr_get_descriptor(end->mr, descriptor));
	lent.len = (uint8_t)size;
	OK(rpma_ep_listen(end->peer, address, port, &ep));
	OK(rpma_ep_next_conn_req(ep, NULL, &request));
	OK(rpma_conn_req_recv(request, end->in_mr, 0, MESSAGE, end->in));
	OK(rpma_conn_req_connect(&request, &lent, &end->conn));
	expect_connection_event(end, RPMA_CONN_ESTABLISHED);
	OK(rpma_conn_get_cq(end->conn, &end->cq));
	for (int round = 0; round < rounds; round++) {
		receive_round_message(end, round);
		fill_pattern(end->expected, SIZE, round);
		require_same_octets(end->memory, end->expected, SIZE, "what the peer wrote");
		post_message_receive(end);
		send_round_message(end, round + 1);
	}
	expect_connection_event(end, RPMA_CONN_CLOSED);
	OK(rpma_conn_disconnect(end->conn));
	OK(rpma_ep_shutdown(&ep));
}

static void run_client_round(struct end *end, struct rpma_mr_remote *there, int round)
{
	const char flag[8] = { (char)round, (char)(round >> 8) };

	fill_pattern(end->memory, SIZE, round);
	OK(rpma_write(end->conn, there, 0, end->mr, 0, SIZE, RPMA_F_COMPLETION_ON_ERROR, NULL));
	OK(rpma_flush(end->conn, there, 0, SIZE, RPMA_FLUSH_TYPE_VISIBILITY,
		      RPMA_F_COMPLETION_ALWAYS, there));
	wait_for_completion_with_context(end, there);
	memset(end->memory, 0, SIZE);
	OK(rpma_read(end->conn, end->mr, 0, there, 0, SIZE, RPMA_F_COMPLETION_ALWAYS, end->mr));
	wait_for_completion_with_context(end, end->mr);
	fill_pattern(end->expected, SIZE, round);
	require_same_octets(end->memory, end->expected, SIZE, "what was read back");
	/*
	 * An atomic write of eight octets must never be partly visible. After the check the
	 * previous data is restored.
	 */
	OK(rpma_atomic_write(end->conn, there, 8, flag, RPMA_F_COMPLETION_ON_ERROR, NULL));
	OK(rpma_read(end->conn, end->mr, 0, there, 8, 8, RPMA_F_COMPLETION_ALWAYS, end->mr));
	wait_for_completion_with_context(end, end->mr);
	require_same_octets(end->memory, flag, 8, "the atomic write");
	memcpy(end->memory, end->expected, 16);
	OK(rpma_write(end->conn, there, 0, end->mr, 0, 16, RPMA_F_COMPLETION_ON_ERROR, NULL));
	send_round_message(end, round);
}

static void run_client(struct end *end, const char *address, const char *port, int rounds)
{
	struct rpma_conn_private_data lent = { NULL, 0 };
	struct rpma_mr_remote *there = NULL;
	struct rpma_conn_req *request = NULL;

	open_device_and_register_memory(end, address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	OK(rpma_conn_req_new(end->peer, address, port, NULL, &request));
	OK(rpma_conn_req_recv(request, end->in_mr, 0, MESSAGE, end->in));
	OK(rpma_conn_req_connect(&request, NULL, &end->conn));
	expect_connection_event(end, RPMA_CONN_ESTABLISHED);
	OK(rpma_conn_get_cq(end->conn, &end->cq));
	OK(rpma_conn_get_private_data(end->conn, &lent));
	OK(rpma_mr_remote_from_descriptor(lent.ptr, lent.len, &there));
	for (int round = 0; round < rounds; round++) {
		run_client_round(end, there, round);
		receive_round_message(end, round + 1);
		if (round + 1 < rounds)
			post_message_receive(end);
	}
	OK(rpma_mr_remote_delete(&there));
	OK(rpma_conn_disconnect(end->conn));
	expect_connection_event(end, RPMA_CONN_CLOSED);
}

int main(int argc, char **argv)
{
	struct end end = { 0 };

	if (argc != 5)
		return 2;
	if (strcmp(argv[1], "server") == 0)
		run_server(&end, argv[2], argv[3], atoi(argv[4]));
	else
		run_client(&end, argv[2], argv[3], atoi(argv[4]));
	OK(rpma_conn_delete(&end.conn));
	OK(rpma_mr_dereg(&end.mr));
	OK(rpma_mr_dereg(&end.in_mr));
	OK(rpma_mr_dereg(&end.out_mr));
	OK(rpma_peer_delete(&end.peer));
	printf("rpma: correct\n");
	free(end.memory);
	free(end.expected);
	free(end.in);
	free(end.out);
	return 0;
}
