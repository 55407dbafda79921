/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Ids, events and endpoints of rdma_cm. The argument selects a part: order, threads, endpoints,
 * names, private, others or forked. Both ends of each connection are in this process, on loopback.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cm.h"

/*
 * ---- order of events --------------------------------------------------------------------------
 */

static void check_connection_rejection(struct rdma_cm_id *listener)
{
	struct rdma_cm_id *client = create_resolved_id(other, rdma_get_src_port(listener)), *server;
	struct rdma_cm_event *event;

	CHECK(rdma_connect(client, NULL) == 0);
	server = wait_cm_request(listener, NULL, 0);
	CHECK(rdma_reject(server, "no", 3) == 0);
	CHECK(rdma_reject(server, NULL, 0) == -1 && errno == EINVAL);
	destroy_id_and_qp(server);
	event = wait_cm_event(other, RDMA_CM_EVENT_REJECTED, client);
	CHECK(event->status == 28 && event->param.conn.private_data_len == 3);
	CHECK(strcmp(event->param.conn.private_data, "no") == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	destroy_id_and_qp(client);
	client = create_resolved_id(other, htons(9)); /* port 9, where no program listens */
	CHECK(rdma_connect(client, NULL) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_REJECTED, client, 8);
	destroy_id_and_qp(client);
}

static atomic_bool destroyed;

static void *destroy_id(void *id)
{
	CHECK(rdma_destroy_id(id) == 0);
	destroyed = true;
	return NULL;
}

static void check_destroy_waits_for_ack(struct rdma_cm_id *listener)
{
	struct rdma_cm_id *client, *server;
	struct rdma_cm_event *event;
	pthread_t thread;

	connect_ids(listener, &client, &server);
	CHECK(rdma_disconnect(client) == 0);
	event = wait_cm_event(other, RDMA_CM_EVENT_DISCONNECTED, client);
	rdma_destroy_qp(client);
	CHECK(pthread_create(&thread, NULL, destroy_id, client) == 0);
	usleep(50000);
	CHECK(!destroyed);
	CHECK(event->id == client && rdma_ack_cm_event(event) == 0);
	CHECK(pthread_join(thread, NULL) == 0 && destroyed);
	expect_cm_event(channel, RDMA_CM_EVENT_DISCONNECTED, server, 0);
	destroy_id_and_qp(server);
}

static void check_destroy_of_connected_qp(struct rdma_cm_id *listener)
{
	struct rdma_cm_id *client, *server;

	connect_ids(listener, &client, &server);
	rdma_destroy_qp(server);
	expect_cm_event(other, RDMA_CM_EVENT_DISCONNECTED, client, 0);
	expect_cm_event(channel, RDMA_CM_EVENT_DISCONNECTED, server, 0);
	CHECK(rdma_destroy_id(server) == 0);
	destroy_id_and_qp(client);
}

static void check_migration_of_events(struct rdma_cm_id *listener)
{
	struct rdma_event_channel *third = rdma_create_event_channel();
	struct rdma_cm_id *client, *server;

	CHECK(third);
	connect_ids(listener, &client, &server);
	CHECK(rdma_disconnect(server) == 0);
	CHECK(rdma_migrate_id(client, third) == 0 && client->channel == third);
	expect_cm_event(third, RDMA_CM_EVENT_DISCONNECTED, client, 0);
	expect_cm_event(channel, RDMA_CM_EVENT_DISCONNECTED, server, 0);
	destroy_id_and_qp(client);
	destroy_id_and_qp(server);
	rdma_destroy_event_channel(third);
}

static void check_cm_event_order(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel), *client, *server;
	struct rdma_cm_event *event;

	connect_ids(listener, &client, &server);
	CHECK(rdma_disconnect(client) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_DISCONNECTED, client, 0);
	expect_cm_event(channel, RDMA_CM_EVENT_DISCONNECTED, server, 0);
	/*
	 * rdma_disconnect succeeds although the connection has ended, and causes no further event
	 */
	CHECK(rdma_disconnect(server) == 0);
	destroy_id_and_qp(client);
	destroy_id_and_qp(server);
	check_connection_rejection(listener);
	check_destroy_waits_for_ack(listener);
	check_destroy_of_connected_qp(listener);
	check_migration_of_events(listener);
	CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* ---- threads --------------------------------------------------------------------------------- */

static atomic_int seen;

static void *count_cm_events(void *unused)
{
	struct rdma_cm_event *event;

	(void)unused;
	while (rdma_get_cm_event(other, &event) == 0) {
		seen++;
		CHECK(rdma_ack_cm_event(event) == 0);
	}
	return NULL;
}

/* Cancels a thread that waits for events while another thread creates and destroys ids. */
static void check_cancelled_event_thread(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel), *id;
	struct sockaddr_in addr = loopback_sockaddr(rdma_get_src_port(listener));
	pthread_t thread;

	for (int round = 0; round < 20; round++) {
		CHECK(pthread_create(&thread, NULL, count_cm_events, NULL) == 0);
		for (int i = 0; i < 20; i++) {
			CHECK(rdma_create_id(other, &id, NULL, RDMA_PS_TCP) == 0);
			CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 1000) == 0);
			CHECK(rdma_resolve_route(id, 1000) == 0);
			create_rc_qp(id);
			CHECK(rdma_connect(id, NULL) == 0);
			if (i % 2)
				usleep(100);
			destroy_id_and_qp(id);
		}
		CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
	}
	CHECK(seen > 0);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* ---- endpoints, which are synchronous -------------------------------------------------------- */

static struct rdma_addrinfo *loopback_addrinfo(const char *port, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *res;

	CHECK(rdma_getaddrinfo("127.0.0.1", port, &hints, &res) == 0);
	CHECK(res->ai_flags == flags && res->ai_qp_type == IBV_QPT_RC);
	CHECK(flags & RAI_PASSIVE ? res->ai_src_len && !res->ai_dst_len
				  : res->ai_src_len && res->ai_dst_len);
	return res;
}

/*
 * Checks that a passive lookup without a port returns an address that other hosts can reach, unless
 * loopback is the only device.
 */
static void check_passive_getaddrinfo(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE }, *res;
	struct ibv_context **devices = rdma_get_devices(NULL);
	struct sockaddr_in *v4;
	bool alone;

	CHECK(devices && devices[0]);
	alone = strcmp(ibv_get_device_name(devices[0]->device), "siw_lo") == 0;
	rdma_free_devices(devices);
	CHECK(rdma_getaddrinfo("127.0.0.1", NULL, &hints, &res) == 0);
	v4 = (struct sockaddr_in *)res->ai_src_addr;
	CHECK(v4->sin_family == AF_INET && v4->sin_port == 0);
	CHECK((v4->sin_addr.s_addr == htonl(INADDR_LOOPBACK)) == alone);
	rdma_freeaddrinfo(res);
	CHECK(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &res) == 0);
	v4 = (struct sockaddr_in *)res->ai_src_addr;
	CHECK(v4->sin_addr.s_addr == htonl(INADDR_LOOPBACK) && v4->sin_port == htons(7471));
	rdma_freeaddrinfo(res);
}

static struct ibv_qp_init_attr small_qp_attr(void)
{
	return (struct ibv_qp_init_attr){
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
}

static void *serve_one_request(void *listener)
{
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	CHECK(rdma_get_request(listener, &id) == 0);
	CHECK(id->qp && id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	mr = rdma_reg_msgs(id, memory, 64);
	CHECK(mr && rdma_post_recv(id, NULL, memory, 64, mr) == 0);
	CHECK(rdma_accept(id, NULL) == 0 && id->qp->state == IBV_QPS_RTS);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	return NULL;
}

static void check_endpoint_creation(void)
{
	struct rdma_addrinfo *res = loopback_addrinfo("0", RAI_PASSIVE | RAI_NUMERICHOST);
	struct ibv_qp_init_attr attr = small_qp_attr();
	struct rdma_cm_id *listener, *id;
	pthread_t thread;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	char port[8];

	CHECK(rdma_create_ep(&listener, res, NULL, &attr) == 0 && !listener->qp);
	rdma_freeaddrinfo(res);
	CHECK(rdma_listen(listener, 0) == 0);
	CHECK(pthread_create(&thread, NULL, serve_one_request, listener) == 0);
	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listener)));
	res = loopback_addrinfo(port, RAI_NUMERICHOST);
	attr = small_qp_attr();
	CHECK(rdma_create_ep(&id, res, NULL, &attr) == 0 && id->qp);
	rdma_freeaddrinfo(res);
	mr = rdma_reg_msgs(id, memory, 64);
	CHECK(rdma_connect(id, NULL) == 0 && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rdma_post_send(id, NULL, memory, 64, mr, 0) == 0);
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	res = loopback_addrinfo("9", 0);
	attr = small_qp_attr();
	CHECK(rdma_create_ep(&id, res, NULL, &attr) == 0);
	rdma_freeaddrinfo(res);
	CHECK(rdma_connect(id, NULL) == -1 && errno == ECONNREFUSED);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
}

/* ---- queue pairs created by the program ------------------------------------------------------ */

static struct ibv_cq *own_cq;

static struct ibv_qp *create_qp_outside_rdma_cm(struct rdma_cm_id *id, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = small_qp_attr();

	own_cq = own_cq ? own_cq : ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	CHECK(own_cq);
	attr.send_cq = attr.recv_cq = own_cq;
	attr.qp_type = type;
	return ibv_create_qp(id->pd, &attr);
}

static void modify_qp_by_rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp *qp,
					   enum ibv_qp_state to)
{
	struct ibv_qp_attr attr = { .qp_state = to };
	struct ibv_qp_init_attr init;
	int mask;

	CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0 && mask & IBV_QP_STATE);
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0 && qp->state == to);
	CHECK(ibv_query_qp(qp, &attr, mask, &init) == 0 && attr.qp_state == to);
}

static void send_between_qps(struct ibv_qp *from, struct ibv_qp *to, struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)memory, 64, mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_wc wc;
	int done = 0;

	CHECK(ibv_post_recv(to, &recv, &bad_recv) == 0);
	CHECK(ibv_post_send(from, &send, &bad) == 0);
	for (time_t until = time(NULL) + SECONDS; done < 2 && time(NULL) < until;)
		if (ibv_poll_cq(own_cq, 1, &wc) == 1) {
			CHECK(wc.status == IBV_WC_SUCCESS);
			done++;
		}
	CHECK(done == 2);
}

static void check_qps_created_outside_rdma_cm(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel), *client, *server;
	struct sockaddr_in addr = loopback_sockaddr(rdma_get_src_port(listener));
	struct rdma_conn_param param = { .responder_resources = 4, .initiator_depth = 4 };
	struct rdma_cm_event *event;
	struct ibv_qp *one, *two;
	struct ibv_mr *mr;

	CHECK(rdma_create_id(other, &client, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(client, NULL, (struct sockaddr *)&addr, 1000) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ADDR_RESOLVED, client, 0);
	CHECK(rdma_resolve_route(client, 1000) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ROUTE_RESOLVED, client, 0);
	one = create_qp_outside_rdma_cm(client, IBV_QPT_RC);
	CHECK(one);
	/* rdma_connect fails because no queue pair has the given number */
	CHECK(rdma_connect(client, &param) == -1 && errno == EINVAL);
	param.qp_num = one->qp_num;
	CHECK(rdma_establish(client) == -1 && errno == EINVAL);
	CHECK(rdma_connect(client, &param) == 0);
	event = wait_cm_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	server = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	two = create_qp_outside_rdma_cm(server, IBV_QPT_RC);
	CHECK(two);
	modify_qp_by_rdma_init_qp_attr(server, two, IBV_QPS_INIT);
	modify_qp_by_rdma_init_qp_attr(server, two, IBV_QPS_RTR);
	modify_qp_by_rdma_init_qp_attr(server, two, IBV_QPS_RTS);
	param.qp_num = two->qp_num;
	CHECK(rdma_accept(server, &param) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_CONNECT_RESPONSE, client, 0);
	modify_qp_by_rdma_init_qp_attr(client, one, IBV_QPS_INIT);
	modify_qp_by_rdma_init_qp_attr(client, one, IBV_QPS_RTR);
	modify_qp_by_rdma_init_qp_attr(client, one, IBV_QPS_RTS);
	CHECK(rdma_establish(client) == 0);
	CHECK(rdma_establish(client) == -1 && errno == EINVAL);
	expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, server, 0);
	mr = rdma_reg_msgs(client, memory, 64);
	CHECK(mr && client->pd == server->pd);
	send_between_qps(one, two, mr);
	send_between_qps(two, one, mr);
	CHECK(rdma_disconnect(server) == 0);
	expect_cm_event(channel, RDMA_CM_EVENT_DISCONNECTED, server, 0);
	/*
	 * the client, which called rdma_establish, gets DISCONNECTED without an ESTABLISHED event
	 *
	 */
	expect_cm_event(other, RDMA_CM_EVENT_DISCONNECTED, client, 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(two) == 0 && ibv_destroy_cq(own_cq) == 0);
	CHECK(rdma_destroy_id(client) == 0 && rdma_destroy_id(server) == 0);
	CHECK(rdma_destroy_id(listener) == 0);
}

/*
 * Checks ids that only exchange private data. The program passes the number of a UD queue pair,
 * because rdma_cm requires a number.
 */
static void check_private_data_without_qp(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel), *client, *server;
	struct sockaddr_in addr = loopback_sockaddr(rdma_get_src_port(listener));
	struct rdma_conn_param param = { .private_data = "ask", .private_data_len = 4 };
	struct rdma_cm_event *event;
	struct ibv_qp *one, *two;

	CHECK(rdma_create_id(other, &client, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(client, NULL, (struct sockaddr *)&addr, 1000) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ADDR_RESOLVED, client, 0);
	CHECK(rdma_resolve_route(client, 1000) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ROUTE_RESOLVED, client, 0);
	one = create_qp_outside_rdma_cm(client, IBV_QPT_UD);
	CHECK(one);
	param.qp_num = one->qp_num;
	CHECK(rdma_connect(client, &param) == 0 && !client->qp);
	event = wait_cm_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	server = event->id;
	CHECK(strcmp(event->param.conn.private_data, "ask") == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	two = create_qp_outside_rdma_cm(server, IBV_QPT_UD);
	CHECK(two);
	param = (struct rdma_conn_param){ .private_data = "answer",
					  .private_data_len = 7,
					  .qp_num = two->qp_num };
	CHECK(rdma_accept(server, &param) == 0 && !server->qp);
	event = wait_cm_event(other, RDMA_CM_EVENT_CONNECT_RESPONSE, client);
	CHECK(strcmp(event->param.conn.private_data, "answer") == 0);
	CHECK(rdma_ack_cm_event(event) == 0 && rdma_establish(client) == 0);
	expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, server, 0);
	CHECK(one->state == IBV_QPS_RESET && two->state == IBV_QPS_RESET);
	CHECK(rdma_disconnect(client) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_DISCONNECTED, client, 0);
	expect_cm_event(channel, RDMA_CM_EVENT_DISCONNECTED, server, 0);
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(two) == 0 && ibv_destroy_cq(own_cq) == 0);
	destroy_id_and_qp(client);
	destroy_id_and_qp(server);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* ---- forked child ---------------------------------------------------------------------------- */

static void check_inherited_id_is_refused(struct rdma_cm_id *inherited)
{
	struct rdma_event_channel *own = rdma_create_event_channel();
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == ESTALE);
	CHECK(rdma_connect(inherited, NULL) == -1 && errno == ESTALE);
	CHECK(own);
	rdma_destroy_qp(inherited);
	rdma_destroy_id(create_resolved_id(own, htons(9)));
	_exit(0);
}

static void check_forked_child(void)
{
	struct rdma_cm_id *id = create_resolved_id(channel, htons(9));
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (pid == 0)
		check_inherited_id_is_refused(id);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	destroy_id_and_qp(id);
}

int main(int argc, char **argv)
{
	const char *what = argc == 2 ? argv[1] : "";

	channel = rdma_create_event_channel();
	other = rdma_create_event_channel();
	CHECK(channel && other);
	if (strcmp(what, "order") == 0)
		check_cm_event_order();
	else if (strcmp(what, "threads") == 0)
		check_cancelled_event_thread();
	else if (strcmp(what, "endpoints") == 0)
		check_endpoint_creation();
	else if (strcmp(what, "names") == 0)
		check_passive_getaddrinfo();
	else if (strcmp(what, "private") == 0)
		check_private_data_without_qp();
	else if (strcmp(what, "others") == 0)
		check_qps_created_outside_rdma_cm();
	else if (strcmp(what, "forked") == 0)
		check_forked_child();
	else
		return 2;
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
	return 0;
}
