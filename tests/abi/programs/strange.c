/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests that rdma_cm refuses peers that are not RNICs or use another version (arguments "servers"
 * and "clients"), and queue pairs that their program resets (argument "resets").
 */
#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cm.h"

#define HTTP "HTTP/1.1 400 Bad Request\r\n\r\n"
/*
 * An MPA Reply: key, flags, revision and length of the private data, then IRD and ORD if the flags
 * announce enhanced mode
 */
#define REPLY(flags, revision) "MPA ID Rep Frame" flags revision "\x00\x04\x00\x01\x00\x01"

struct answer {
	const char *octets;
	size_t size;
	enum rdma_cm_event_type wanted;
	int status;
};

static const struct answer answers[] = {
	{ HTTP, sizeof(HTTP) - 1, RDMA_CM_EVENT_CONNECT_ERROR, -EPROTO },
	{ REPLY("\x50", "\x09"), 24, RDMA_CM_EVENT_CONNECT_ERROR,
	  -EPROTO }, /* an MPA Reply of an unknown revision */
	{ REPLY("\x70", "\x02"), 24, RDMA_CM_EVENT_REJECTED, 28 },
};

static struct sockaddr *as_sockaddr(struct sockaddr_in *addr)
{
	return (struct sockaddr *)addr;
}

/* Opens a listening TCP socket and stores the address of the socket. */
static int open_plain_listener(struct sockaddr_in *addr)
{
	socklen_t len = sizeof(*addr);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	*addr = loopback_sockaddr(0);
	CHECK(fd >= 0 && bind(fd, as_sockaddr(addr), len) == 0 && listen(fd, 1) == 0);
	CHECK(getsockname(fd, as_sockaddr(addr), &len) == 0);
	return fd;
}

/* Checks the events of connecting to servers whose answers are not valid MPA Replies. */
static void check_non_rdma_servers(void)
{
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		const struct answer *a = &answers[i];
		struct rdma_cm_event *event;
		struct sockaddr_in addr;
		struct rdma_cm_id *id;
		int fd = open_plain_listener(&addr), peer;

		id = create_resolved_id(other, addr.sin_port);
		CHECK(rdma_connect(id, NULL) == 0);
		peer = accept(fd, NULL, NULL);
		CHECK(peer >= 0 && send(peer, a->octets, a->size, 0) == (ssize_t)a->size);
		event = wait_cm_event(other, a->wanted, id);
		if (event->status != a->status)
			fprintf(stderr, "answer %zu: status %d\n", i, event->status);
		CHECK(event->status == a->status);
		CHECK(rdma_ack_cm_event(event) == 0);
		CHECK(close(peer) == 0 && close(fd) == 0);
		destroy_id_and_qp(id);
	}
}

/*
 * Checks that an rdma_cm event holds the first 255 octets of longer private data, which MPA limits
 * to 512 octets. The MPA Request is of revision 1, which has no depths.
 */
static void check_long_private_data_truncated(struct rdma_cm_id *listener, uint16_t len)
{
	static const uint8_t frame[] = "MPA ID Req Frame\x40\x01";
	struct sockaddr_in addr = loopback_sockaddr(rdma_get_src_port(listener));
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	uint8_t data[512], octets[64];
	struct rdma_cm_id *server;

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 7 + len);
	CHECK(fd >= 0 && connect(fd, as_sockaddr(&addr), sizeof(addr)) == 0);
	CHECK(send(fd, frame, 18, MSG_MORE) == 18);
	CHECK(send(fd, (uint8_t[]){ (uint8_t)(len >> 8), (uint8_t)len }, 2, MSG_MORE) == 2);
	CHECK(send(fd, data, len, 0) == len);
	server = wait_cm_request(listener, data, 255);
	CHECK(rdma_reject(server, NULL, 0) == 0);
	destroy_id_and_qp(server);
	CHECK(recv(fd, octets, 20, MSG_WAITALL) == 20);
	CHECK(memcmp(octets, "MPA ID Rep Frame", 16) == 0 && octets[16] & 0x20);
	CHECK(close(fd) == 0);
}

/* Checks that a listener accepts a valid client after clients that do not speak MPA. */
static void check_non_mpa_clients(void)
{
	static const char *const said[] = {
		"GET / HTTP/1.1\r\n\r\n0123456789",
		/* an MPA Request with an unknown revision, of which the rest is not parsed */
		"MPA ID Req Frame\x50\x09",
		"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
	};
	struct rdma_cm_id *listener = listen_on_channel(channel), *client, *server;
	struct sockaddr_in addr = loopback_sockaddr(rdma_get_src_port(listener));

	for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		char octets[64];

		CHECK(fd >= 0 && connect(fd, as_sockaddr(&addr), sizeof(addr)) == 0);
		CHECK(send(fd, said[i], strlen(said[i]), 0) == (ssize_t)strlen(said[i]));
		/* The listener may already have reset the connection. */
		CHECK(shutdown(fd, SHUT_WR) == 0 || errno == ENOTCONN);
		/*
		 * Read until the end of the stream or a reset, which a rejecting MPA Reply may
		 * precede.
		 */
		while (recv(fd, octets, sizeof(octets), 0) > 0)
			;
		CHECK(close(fd) == 0);
	}
	check_long_private_data_truncated(listener, 256);
	check_long_private_data_truncated(listener, 512);
	connect_ids(listener, &client, &server);
	disconnect_ids(client, server);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* ---- queue pairs that their program resets --------------------------------------------------- */

static void reset_qp(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0 && qp->state == IBV_QPS_RESET);
}

/*
 * Checks that resetting a connected queue pair disconnects both ends, and that a reset queue pair
 * can connect again by its number.
 */
static void check_qp_resets(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel), *client, *server;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct sockaddr_in addr = loopback_sockaddr(rdma_get_src_port(listener));
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *own = NULL;

	connect_ids(listener, &client, &server);
	reset_qp(client->qp);
	CHECK(rdma_ack_cm_event(wait_cm_event(other, RDMA_CM_EVENT_DISCONNECTED, client)) == 0);
	CHECK(rdma_ack_cm_event(wait_cm_event(channel, RDMA_CM_EVENT_DISCONNECTED, server)) == 0);
	destroy_id_and_qp(client);
	destroy_id_and_qp(server);
	for (int round = 0; round < 3; round++) {
		CHECK(rdma_create_id(other, &client, NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_resolve_addr(client, NULL, as_sockaddr(&addr), 1000) == 0);
		expect_cm_event(other, RDMA_CM_EVENT_ADDR_RESOLVED, client, 0);
		CHECK(rdma_resolve_route(client, 1000) == 0);
		expect_cm_event(other, RDMA_CM_EVENT_ROUTE_RESOLVED, client, 0);
		if (!own) {
			init.send_cq = init.recv_cq =
				ibv_create_cq(client->verbs, 4, NULL, NULL, 0);
			own = ibv_create_qp(client->pd, &init);
			CHECK(own);
		} else {
			reset_qp(own);
		}
		param.qp_num = own->qp_num;
		CHECK(rdma_connect(client, &param) == 0);
		server = wait_cm_request(listener, NULL, 0);
		CHECK(rdma_accept(server, NULL) == 0);
		expect_cm_event(other, RDMA_CM_EVENT_CONNECT_RESPONSE, client, 0);
		CHECK(rdma_establish(client) == 0);
		expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, server, 0);
		CHECK(rdma_disconnect(server) == 0);
		expect_cm_event(channel, RDMA_CM_EVENT_DISCONNECTED, server, 0);
		expect_cm_event(other, RDMA_CM_EVENT_DISCONNECTED, client, 0);
		destroy_id_and_qp(server);
		CHECK(rdma_destroy_id(client) == 0);
	}
	CHECK(ibv_destroy_qp(own) == 0 && ibv_destroy_cq(init.send_cq) == 0);
	CHECK(rdma_destroy_id(listener) == 0);
}

int main(int argc, char **argv)
{
	channel = rdma_create_event_channel();
	other = rdma_create_event_channel();
	CHECK(channel && other && argc == 2);
	if (strcmp(argv[1], "servers") == 0)
		check_non_rdma_servers();
	else if (strcmp(argv[1], "clients") == 0)
		check_non_mpa_clients();
	else if (strcmp(argv[1], "resets") == 0)
		check_qp_resets();
	else
		return 2;
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
	return 0;
}
