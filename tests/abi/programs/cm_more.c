/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Further rdma_cm tests. The argument selects a part: ends, depths, immediate, options, newer,
 * infos, moves, impatient or given. Both ends of each connection are in this process, on loopback;
 * in some parts one end is a plain TCP socket.
 */
#include <netdb.h>
#include <netinet/ip.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cm.h"

static struct sockaddr *as_sockaddr(struct sockaddr_in *addr)
{
	return (struct sockaddr *)addr;
}

/* ---- connections that end early -------------------------------------------------------------- */

/*
 * Checks a client that sends an MPA Request of revision 2 for a peer-to-peer connection and reads
 * the Reply, but never sends the RTR message.
 */
static void check_connection_without_rtr(struct rdma_cm_id *listener)
{
	static const uint8_t frame[] = "MPA ID Req Frame\x50\x02\x00\x04\xc0\x01\xc0\x01";
	struct sockaddr_in addr = loopback_sockaddr(rdma_get_src_port(listener));
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct rdma_cm_event *event;
	struct rdma_cm_id *server;

	CHECK(fd >= 0 && connect(fd, as_sockaddr(&addr), sizeof(addr)) == 0);
	CHECK(send(fd, frame, sizeof(frame) - 1, 0) == (ssize_t)sizeof(frame) - 1);
	server = wait_cm_request(listener, NULL, 0);
	CHECK(rdma_accept(server, NULL) == 0);
	CHECK(recv(fd, (char[24]){ 0 }, 24, MSG_WAITALL) == 24);
	CHECK(close(fd) == 0);
	event = wait_cm_event(channel, RDMA_CM_EVENT_CONNECT_ERROR, server);
	CHECK(event->status < 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_disconnect(server) == 0);
	destroy_id_and_qp(server);
}

/* Checks that resolving an unreachable address causes an error event and can be retried. */
static void check_unreachable_address(void)
{
	struct sockaddr_in nowhere = { .sin_family = AF_INET, .sin_port = htons(9) };
	struct sockaddr_in addr = loopback_sockaddr(htons(9));
	struct rdma_cm_id *id;

	nowhere.sin_addr.s_addr =
		htonl(0x7fffffff); /* broadcast address of loopback, which needs no route */
	CHECK(rdma_create_id(other, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, as_sockaddr(&nowhere), 1000) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ADDR_ERROR, id, -EACCES);
	CHECK(rdma_resolve_route(id, 1000) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_addr(id, NULL, as_sockaddr(&addr), 1000) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ADDR_RESOLVED, id, 0);
	CHECK(rdma_resolve_addr(id, NULL, as_sockaddr(&addr), 1000) == -1 && errno == EINVAL);
	create_rc_qp(id);
	/* rdma_connect fails because the route has not been resolved */
	CHECK(rdma_connect(id, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ROUTE_RESOLVED, id, 0);
	CHECK(rdma_resolve_route(id, 1000) == -1 && errno == EINVAL);
	destroy_id_and_qp(id);
	CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, as_sockaddr(&nowhere), 1000) == -1 && errno == EACCES);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ADDR_ERROR);
	CHECK(rdma_destroy_id(id) == 0);
}

static struct rdma_cm_id *create_synchronous_id(uint16_t port_be)
{
	struct sockaddr_in addr = loopback_sockaddr(port_be);
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, as_sockaddr(&addr), 1000) == 0);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	create_rc_qp(id);
	return id;
}

static void *accept_next_connection_request(void *listener)
{
	struct rdma_cm_id *server = wait_cm_request(listener, NULL, 0);

	CHECK(rdma_accept(server, NULL) == 0);
	return server;
}

static void check_second_disconnect(struct rdma_cm_id *listener)
{
	struct rdma_cm_id *client = create_synchronous_id(rdma_get_src_port(listener));
	pthread_t thread;
	void *server;

	CHECK(pthread_create(&thread, NULL, accept_next_connection_request, listener) == 0);
	CHECK(rdma_connect(client, NULL) == 0);
	CHECK(pthread_join(thread, &server) == 0);
	expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, server, 0);
	CHECK(rdma_disconnect(client) == 0 && client->qp->state == IBV_QPS_ERR);
	CHECK(client->event->event == RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rdma_disconnect(client) == 0);
	expect_cm_event(channel, RDMA_CM_EVENT_DISCONNECTED, server, 0);
	destroy_id_and_qp(server);
	destroy_id_and_qp(client);
	client = create_synchronous_id(htons(9));
	CHECK(rdma_connect(client, NULL) == -1 && errno == ECONNREFUSED);
	/* rdma_disconnect returns without waiting for an event */
	CHECK(rdma_disconnect(client) == 0);
	destroy_id_and_qp(client);
}

static void check_connections_that_end_early(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel);

	check_connection_without_rtr(listener);
	check_unreachable_address();
	check_second_disconnect(listener);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* ---- parameters announced by each end -------------------------------------------------------- */

static void accept_and_check_read_depths(struct rdma_cm_id *client, struct rdma_cm_id *server,
					 struct rdma_conn_param *told)
{
	struct rdma_cm_event *event;

	CHECK(rdma_accept(server, told) == 0);
	event = wait_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, client);
	CHECK(event->param.conn.responder_resources == told->initiator_depth);
	CHECK(event->param.conn.initiator_depth == told->responder_resources);
	CHECK(rdma_ack_cm_event(event) == 0);
	expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, server, 0);
}

/*
 * Checks that each end gets the read depths that its peer announced, and that a Send without a
 * receive is retried as often as the receiving end announced: once, for 655 ms.
 */
static void check_announced_read_depths(void)
{
	struct rdma_conn_param param = { .responder_resources = 7,
					 .initiator_depth = 5,
					 .rnr_retry_count = 7 };
	struct rdma_cm_id *listener = listen_on_channel(channel), *client, *server;
	struct rdma_cm_event *event;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	double before;

	client = create_resolved_id(other, rdma_get_src_port(listener));
	CHECK(rdma_connect(client, &param) == 0);
	event = wait_cm_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	server = event->id;
	CHECK(event->param.conn.responder_resources == 5);
	CHECK(event->param.conn.initiator_depth == 7);
	CHECK(rdma_ack_cm_event(event) == 0);
	create_rc_qp(server);
	param = (struct rdma_conn_param){ .responder_resources = 4,
					  .initiator_depth = 3,
					  .rnr_retry_count = 1 };
	accept_and_check_read_depths(client, server, &param);
	mr = rdma_reg_msgs(client, memory, 64);
	before = now_seconds();
	CHECK(mr && rdma_post_send(client, NULL, memory, 64, mr, 0) == 0);
	CHECK(rdma_get_send_comp(client, &wc) == 1);
	CHECK(wc.status == IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK(now_seconds() - before > 0.6);
	CHECK(rdma_ack_cm_event(wait_cm_event(other, RDMA_CM_EVENT_DISCONNECTED, client)) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	destroy_id_and_qp(client);
	destroy_id_and_qp(server);
	CHECK(rdma_destroy_id(listener) == 0);
}

/*
 * ---- immediate data, without a setting --------------------------------------------------------
 */

static void send_and_check_immediate_data(struct rdma_cm_id *from, struct rdma_cm_id *to,
					  uint32_t imm)
{
	struct ibv_mr *one = rdma_reg_msgs(from, memory, 64), *two = rdma_reg_msgs(to, memory, 64);
	struct ibv_sge sge = { (uintptr_t)memory, 64, one->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND_WITH_IMM,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED,
				  .imm_data = htonl(imm) };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	CHECK(one && two);
	CHECK(rdma_post_recv(to, NULL, memory, 64, two) == 0);
	CHECK(ibv_post_send(from->qp, &wr, &bad) == 0);
	CHECK(rdma_get_recv_comp(to, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == 64);
	CHECK((wc.wc_flags & IBV_WC_WITH_IMM) && ntohl(wc.imm_data) == imm);
	CHECK(rdma_get_send_comp(from, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_dereg_mr(one) == 0 && rdma_dereg_mr(two) == 0);
}

/*
 * Checks a client that implements only the RFCs: its Request announces no extension, and the Reply
 * must not set a reserved bit.
 */
static void check_immediate_to_rfc_peer(struct rdma_cm_id *listener)
{
	static const uint8_t frame[] = "MPA ID Req Frame\x50\x02\x00\x04\x00\x01\x00\x01";
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND_WITH_IMM }, *bad;
	struct sockaddr_in addr = loopback_sockaddr(rdma_get_src_port(listener));
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct rdma_cm_id *server;
	uint8_t reply[24];

	CHECK(fd >= 0 && connect(fd, as_sockaddr(&addr), sizeof(addr)) == 0);
	CHECK(send(fd, frame, sizeof(frame) - 1, 0) == (ssize_t)sizeof(frame) - 1);
	server = wait_cm_request(listener, NULL, 0);
	CHECK(rdma_accept(server, NULL) == 0);
	CHECK(recv(fd, reply, 24, MSG_WAITALL) == 24 && (reply[16] & 0x2f) == 0);
	expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, server, 0);
	CHECK(ibv_post_send(server->qp, &wr, &bad) == EINVAL && bad == &wr);
	wr.opcode = IBV_WR_SEND;
	CHECK(ibv_post_send(server->qp, &wr, &bad) == 0);
	CHECK(close(fd) == 0);
	expect_cm_event(channel, RDMA_CM_EVENT_DISCONNECTED, server, 0);
	destroy_id_and_qp(server);
}

static void check_immediate_data(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel), *client, *server;

	connect_ids(listener, &client, &server);
	send_and_check_immediate_data(client, server, 0x12345678);
	send_and_check_immediate_data(server, client, 0);
	disconnect_ids(client, server);
	check_immediate_to_rfc_peer(listener);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* ---- options --------------------------------------------------------------------------------- */

/* Returns the number of connected TCP sockets of this process with the given type of service. */
static int count_sockets_with_tos(int tos)
{
	int found = 0;

	for (int fd = 0; fd < 256; fd++) {
		struct sockaddr_in peer;
		socklen_t size = sizeof(peer), len = sizeof(int);
		int value = 0, protocol = 0;

		if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) ||
		    protocol != IPPROTO_TCP || getpeername(fd, as_sockaddr(&peer), &size))
			continue;
		CHECK(getsockopt(fd, IPPROTO_IP, IP_TOS, &value, &len) == 0);
		found += value == tos;
	}
	return found;
}

static void check_rdma_set_option(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel), *client, *server;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	uint8_t low = 0x10, high = 0x28, timeout = 20;
	struct ibv_qp_init_attr init;
	int mask, on = 1;

	CHECK(rdma_set_option(listener, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &low, 1) == 0);
	client = create_resolved_id(other, rdma_get_src_port(listener));
	CHECK(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &high, 1) == 0);
	CHECK(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1) ==
	      0);
	CHECK(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)) ==
	      0);
	CHECK(rdma_init_qp_attr(client, &attr, &mask) == 0 && attr.timeout == timeout);
	CHECK(rdma_connect(client, NULL) == 0);
	server = wait_cm_request(listener, NULL, 0);
	CHECK(rdma_accept(server, NULL) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, client, 0);
	expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, server, 0);
	CHECK(count_sockets_with_tos(low) == 1 && count_sockets_with_tos(high) == 1);
	CHECK(ibv_query_qp(client->qp, &attr, IBV_QP_TIMEOUT, &init) == 0);
	CHECK(attr.timeout == timeout && attr.retry_cnt == 7 && attr.rnr_retry == 7);
	CHECK(ibv_query_qp(server->qp, &attr, IBV_QP_TIMEOUT, &init) == 0);
	CHECK(attr.timeout != timeout && attr.timeout != 0 && attr.path_mtu == IBV_MTU_1024);
	CHECK(attr.max_rd_atomic > 0 && attr.max_dest_rd_atomic > 0);
	destroy_id_and_qp(client);
	destroy_id_and_qp(server);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* ---- queue pairs of other ids ---------------------------------------------------------------- */

/*
 * Gives an id a queue pair that another id has created, and destroys the other id, as DAPL does for
 * its endpoints.
 *
 */
static void attach_qp_created_by_other_id(struct rdma_cm_id *to)
{
	struct sockaddr_in addr = loopback_sockaddr(0);
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *maker;

	CHECK(rdma_create_id(other, &maker, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(maker, as_sockaddr(&addr)) == 0);
	to->send_cq_channel = ibv_create_comp_channel(to->verbs);
	to->recv_cq_channel = ibv_create_comp_channel(to->verbs);
	attr.send_cq = to->send_cq = ibv_create_cq(to->verbs, 4, to, to->send_cq_channel, 0);
	attr.recv_cq = to->recv_cq = ibv_create_cq(to->verbs, 4, to, to->recv_cq_channel, 0);
	CHECK(to->send_cq && to->recv_cq && rdma_create_qp(maker, NULL, &attr) == 0);
	to->qp = maker->qp;
	maker->qp = NULL;
	CHECK(rdma_destroy_id(maker) == 0);
}

static void check_qp_created_by_other_id(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel), *client, *server;
	struct rdma_cm_event *event;
	struct ibv_qp *qp;

	client = create_resolved_id(other, rdma_get_src_port(listener));
	rdma_destroy_qp(client);
	attach_qp_created_by_other_id(client);
	CHECK(rdma_connect(client, NULL) == 0);
	event = wait_cm_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	server = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	server->qp = (struct ibv_qp *)memory; /* a pointer to memory that is not a queue pair */
	CHECK(rdma_accept(server, NULL) == -1 && errno == EINVAL);
	attach_qp_created_by_other_id(server);
	qp = server->qp;
	CHECK(rdma_accept(server, NULL) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, client, 0);
	expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, server, 0);
	CHECK(server->qp == qp && qp->state == IBV_QPS_RTS);
	send_between_ids(client, server);
	send_between_ids(server, client);
	disconnect_ids(client, server);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* ---- functions of later releases ------------------------------------------------------------- */

#define EVENT_ADDRINFO_RESOLVED ((enum rdma_cm_event_type)16)
#define EVENT_ADDRINFO_ERROR	((enum rdma_cm_event_type)17)
#define EVENT_USER		((enum rdma_cm_event_type)18)
#define BY_SA			0x10
#define BY_DNS			0x20

int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status,
			uint64_t arg);
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);

static void check_call_rdma_write_cm_event(void)
{
	const uint64_t base = 0x5566778899aabb00;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0) == -1 && errno == EINVAL);
	CHECK(rdma_write_cm_event(NULL, EVENT_USER, 0, 0) == -1 && errno == EINVAL);
	for (unsigned int i = 0; i < 4; i++)
		CHECK(rdma_write_cm_event(id, EVENT_USER, (int)i, base + i) == 0);
	for (unsigned int i = 0; i < 3; i++) {
		uint64_t arg;

		event = wait_cm_event(channel, EVENT_USER, id);
		memcpy(&arg, &event->param, sizeof(arg));
		CHECK(event->status == (int)i && arg == base + i);
		CHECK(rdma_ack_cm_event(event) == 0);
	}
	CHECK(rdma_destroy_id(id) == 0); /* destroying the id discards the last event */
}

static void check_addrinfo_resolution(void)
{
	struct rdma_addrinfo hints = { .ai_flags = BY_SA }, *info, *again;
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_query_addrinfo(id, &info) == -1 && errno == ENODATA);
	CHECK(rdma_query_addrinfo(id, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_addrinfo(id, NULL, NULL, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_addrinfo(id, NULL, "1", &hints) == -1 && errno == EOPNOTSUPP);
	hints.ai_flags |= BY_DNS;
	CHECK(rdma_resolve_addrinfo(id, NULL, "1", &hints) == -1 && errno == EINVAL);
	hints.ai_flags = BY_DNS | RAI_NUMERICHOST;
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints) == 0);
	expect_cm_event(channel, EVENT_ADDRINFO_RESOLVED, id, 0);
	CHECK(rdma_query_addrinfo(id, &info) == 0 && rdma_query_addrinfo(id, &again) == 0);
	CHECK(info != again && info->ai_dst_len && info->ai_src_len && info->ai_family == AF_INET);
	CHECK(((struct sockaddr_in *)again->ai_dst_addr)->sin_port == htons(7471));
	rdma_freeaddrinfo(again);
	CHECK(rdma_resolve_addr(id, NULL, info->ai_dst_addr, 1000) == 0);
	rdma_freeaddrinfo(info);
	expect_cm_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED, id, 0);
	CHECK(rdma_resolve_addrinfo(id, "no number", NULL, &hints) == 0);
	expect_cm_event(channel, EVENT_ADDRINFO_ERROR, id, -ENODATA);
	CHECK(rdma_query_addrinfo(id, &info) == -1 && errno == ENODATA);
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addrinfo(id, "no number", NULL, &hints) == -1 && errno == ENODATA);
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints) == 0);
	CHECK(rdma_query_addrinfo(id, &info) == 0);
	rdma_freeaddrinfo(info);
	CHECK(rdma_destroy_id(id) == 0);
}

static void check_newer_rdma_cm_functions(void)
{
	check_call_rdma_write_cm_event();
	check_addrinfo_resolution();
	CHECK(strcmp(rdma_event_str(EVENT_USER), "RDMA_CM_EVENT_USER") == 0);
}

/* ---- addresses and devices ------------------------------------------------------------------- */

static struct rdma_addrinfo *get_addrinfo(const char *node, const char *service,
					  const struct rdma_addrinfo *hints)
{
	struct rdma_addrinfo *info;

	CHECK(rdma_getaddrinfo(node, service, hints, &info) == 0 && !info->ai_next);
	return info;
}

/* Checks rdma_getaddrinfo for both address families, and without node and service. */
static void check_rdma_getaddrinfo(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST }, *info;
	struct sockaddr_in own = loopback_sockaddr(htons(7471));

	info = get_addrinfo("::1", "7471", &hints);
	CHECK(info->ai_family == AF_INET6 && info->ai_dst_len == sizeof(struct sockaddr_in6));
	CHECK(info->ai_src_len == info->ai_dst_len && info->ai_src_addr->sa_family == AF_INET6);
	rdma_freeaddrinfo(info);
	hints = (struct rdma_addrinfo){ .ai_flags = RAI_FAMILY, .ai_family = AF_INET };
	info = get_addrinfo("localhost", NULL, &hints);
	CHECK(info->ai_family == AF_INET && info->ai_qp_type == IBV_QPT_RC);
	CHECK(info->ai_port_space == RDMA_PS_TCP && info->ai_flags == RAI_FAMILY);
	rdma_freeaddrinfo(info);
	hints = (struct rdma_addrinfo){ .ai_dst_addr = as_sockaddr(&own),
					.ai_dst_len = sizeof(own) };
	info = get_addrinfo(NULL, NULL, &hints);
	CHECK(info->ai_dst_addr != as_sockaddr(&own) && info->ai_dst_len == sizeof(own));
	CHECK(((struct sockaddr_in *)info->ai_dst_addr)->sin_port == own.sin_port);
	CHECK(info->ai_src_len == sizeof(own));
	rdma_freeaddrinfo(info);
	hints.ai_flags = RAI_NOROUTE;
	info = get_addrinfo(NULL, NULL, &hints);
	CHECK(info->ai_dst_len && !info->ai_src_addr && !info->ai_src_len);
	rdma_freeaddrinfo(info);
	hints = (struct rdma_addrinfo){ .ai_flags = RAI_PASSIVE };
	info = get_addrinfo(NULL, "7471", &hints);
	CHECK(info->ai_src_len && !info->ai_dst_len && !info->ai_dst_addr);
	rdma_freeaddrinfo(info);
}

/* Checks that an id that resolves the given loopback address uses the device `first`. */
static void check_device_of_loopback(struct ibv_context *first, struct sockaddr *loopback_addr)
{
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(other, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, loopback_addr, 1000) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ADDR_RESOLVED, id, 0);
	CHECK(id->verbs == first);
	CHECK(rdma_destroy_id(id) == 0);
}

/*
 * Checks that the devices of a list stay open after rdma_free_devices(): objects on the devices
 * remain valid, and the next list has the same contexts.
 */
static void check_devices_outlive_list(void)
{
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6,
				   .sin6_port = htons(9),
				   .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr_in v4 = loopback_sockaddr(htons(9));
	struct ibv_context **list, **again;
	struct ibv_pd *pd_of_it;
	int n = 0, m = 0;

	list = rdma_get_devices(&n);
	CHECK(list && n > 0 && list[0] && !list[n]);
	check_device_of_loopback(list[0], as_sockaddr(&v4));
	check_device_of_loopback(list[0], (struct sockaddr *)&v6);
	pd_of_it = ibv_alloc_pd(list[0]);
	CHECK(pd_of_it);
	again = rdma_get_devices(NULL);
	CHECK(again && again != list && again[0] == list[0]);
	rdma_free_devices(list);
	rdma_free_devices(again);
	CHECK(ibv_dealloc_pd(pd_of_it) == 0);
	again = rdma_get_devices(&m);
	CHECK(again && m == n);
	rdma_free_devices(again);
}

static void check_getaddrinfo_and_device_list(void)
{
	check_rdma_getaddrinfo();
	check_devices_outlive_list();
}

/* ---- migration of an id waits for acknowledgements ------------------------------------------- */

static atomic_bool moved;

static void *migrate_to_other_channel(void *id)
{
	CHECK(rdma_migrate_id(id, other) == 0);
	moved = true;
	return NULL;
}

static void check_migration_waits_for_ack(void)
{
	struct sockaddr_in addr = loopback_sockaddr(htons(9));
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	pthread_t thread;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, as_sockaddr(&addr), 1000) == 0);
	event = wait_cm_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED, id);
	CHECK(pthread_create(&thread, NULL, migrate_to_other_channel, id) == 0);
	usleep(50000);
	CHECK(!moved);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(pthread_join(thread, NULL) == 0 && id->channel == other);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ROUTE_RESOLVED, id, 0);
	CHECK(rdma_destroy_id(id) == 0);
}

/* ---- signals --------------------------------------------------------------------------------- */

#define SIGNALS 5

static atomic_int handled;
static atomic_bool waiting;
static struct rdma_cm_id *user, *sender;
static struct ibv_mr *sent;
static pthread_t waiter;

static void count_handled_signal(int number)
{
	(void)number;
	handled++;
}

static void write_user_cm_event(void)
{
	CHECK(rdma_write_cm_event(user, EVENT_USER, 0, 0) == 0);
}

static void send_one_message(void)
{
	CHECK(rdma_post_send(sender, NULL, memory, 64, sent, 0) == 0);
}

/*
 * Sends signals to the waiting thread until the wait ends. After five signals, the function
 * triggers the event for which the thread waits.
 */
static void *send_signals_until_wait_ends(void *arg)
{
	void (*what)(void) = (void (*)(void))arg;

	while (waiting) {
		CHECK(pthread_kill(waiter, SIGUSR1) == 0);
		usleep(20000);
		if (handled < SIGNALS || !what)
			continue;
		what();
		what = NULL;
	}
	return NULL;
}

static void set_signal_handler(int flags)
{
	struct sigaction how = { .sa_handler = count_handled_signal, .sa_flags = flags };

	CHECK(sigaction(SIGUSR1, &how, NULL) == 0);
}

/* Makes a call that waits while signals are sent, and checks the result of the call. */
#define DISTURBED(what, call, wanted)                                             \
	do {                                                                      \
		pthread_t thread;                                                 \
		int errno_of_it;                                                  \
                                                                                  \
		handled = 0;                                                      \
		waiting = true;                                                   \
		CHECK(pthread_create(&thread, NULL, send_signals_until_wait_ends, \
				     (void *)(what)) == 0);                       \
		errno = 0;                                                        \
		CHECK((call) == ((wanted) ? -1 : 0));                             \
		errno_of_it = errno;                                              \
		waiting = false;                                                  \
		CHECK(pthread_join(thread, NULL) == 0);                           \
		errno = errno_of_it;                                              \
		CHECK(!(wanted) || errno == (wanted));                            \
		CHECK((wanted) || handled >= SIGNALS);                            \
	} while (0)

/* Discards the pending events of a channel, of which rdma_get_recv_comp may leave one. */
static void discard_cq_events(struct ibv_comp_channel *of)
{
	struct pollfd fd = { of->fd, POLLIN, 0 };
	struct ibv_cq *cq;
	void *unused;

	while (poll(&fd, 1, 0) == 1) {
		CHECK(ibv_get_cq_event(of, &cq, &unused) == 0);
		ibv_ack_cq_events(cq, 1);
	}
}

static void check_interrupted_waits(struct rdma_cm_id *listener, struct rdma_cm_id *server)
{
	struct rdma_cm_id *client = create_synchronous_id(rdma_get_src_port(listener)), *id;
	struct sockaddr_in addr = loopback_sockaddr(0);
	struct ibv_async_event fault;
	struct rdma_cm_event *event;
	struct rdma_cm_id *passive;
	struct ibv_cq *cq;
	void *unused;

	set_signal_handler(0);
	DISTURBED(NULL, rdma_get_cm_event(channel, &event), EINTR);
	CHECK(rdma_create_id(NULL, &passive, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(passive, as_sockaddr(&addr)) == 0 && rdma_listen(passive, 1) == 0);
	DISTURBED(NULL, rdma_get_request(passive, &id), EINTR);
	discard_cq_events(server->recv_cq_channel);
	DISTURBED(NULL, ibv_get_cq_event(server->recv_cq_channel, &cq, &unused), EINTR);
	DISTURBED(NULL, ibv_get_async_event(server->verbs, &fault), EINTR);
	/*
	 * The connection request is not answered, so that rdma_connect waits.
	 */
	DISTURBED(NULL, rdma_connect(client, NULL), EINTR);
	id = wait_cm_request(listener, NULL, 0);
	CHECK(rdma_reject(id, NULL, 0) == 0);
	destroy_id_and_qp(id);
	destroy_id_and_qp(client);
	CHECK(rdma_destroy_id(passive) == 0);
}

static void check_waits_resume_with_sa_restart(struct rdma_cm_id *server)
{
	struct ibv_mr *mr = rdma_reg_msgs(server, memory, 64);
	struct rdma_cm_event *event;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *unused;

	set_signal_handler(SA_RESTART);
	DISTURBED(write_user_cm_event, rdma_get_cm_event(channel, &event), 0);
	CHECK(event->event == EVENT_USER && rdma_ack_cm_event(event) == 0);
	CHECK(mr && rdma_post_recv(server, NULL, memory, 64, mr) == 0);
	CHECK(ibv_req_notify_cq(server->recv_cq, 0) == 0);
	DISTURBED(send_one_message, ibv_get_cq_event(server->recv_cq_channel, &cq, &unused), 0);
	ibv_ack_cq_events(cq, 1);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_dereg_mr(mr) == 0);
}

static void check_waits_with_signals(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel), *server;

	waiter = pthread_self();
	user = listener;
	connect_ids(listener, &sender, &server);
	sent = rdma_reg_msgs(sender, memory, 64);
	CHECK(sent);
	check_interrupted_waits(listener, server);
	check_waits_resume_with_sa_restart(server);
	CHECK(rdma_dereg_mr(sent) == 0);
	destroy_id_and_qp(sender);
	destroy_id_and_qp(server);
	CHECK(rdma_destroy_id(listener) == 0);
}

int main(int argc, char **argv)
{
	static const struct named all[] = {
		{ "ends", check_connections_that_end_early },
		{ "depths", check_announced_read_depths },
		{ "immediate", check_immediate_data },
		{ "options", check_rdma_set_option },
		{ "newer", check_newer_rdma_cm_functions },
		{ "infos", check_getaddrinfo_and_device_list },
		{ "moves", check_migration_waits_for_ack },
		{ "impatient", check_waits_with_signals },
		{ "given", check_qp_created_by_other_id },
	};

	return run_named_part(all, sizeof(all) / sizeof(all[0]), argc, argv);
}
