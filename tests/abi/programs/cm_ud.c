/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Datagram ids and multicast groups of rdma_cm. The argument selects a part: connect, left, groups,
 * or ipoib, which runs connect and groups with the port space RDMA_PS_IPOIB. Both ends are in this
 * process, on loopback, which belongs to the first device.
 */
#include <unistd.h>

#include "cm.h"

#define UDP_QKEY 0x01234567

static enum rdma_port_space space = RDMA_PS_UDP;

static struct rdma_cm_id *create_ud_id(struct rdma_event_channel *on)
{
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(on, &id, NULL, space) == 0);
	CHECK(id->qp_type == IBV_QPT_UD && id->ps == space);
	return id;
}

static struct rdma_cm_id *create_ud_listener(void)
{
	struct sockaddr_in addr = loopback_sockaddr(0);
	struct rdma_cm_id *id = create_ud_id(channel);

	CHECK(rdma_bind_addr(id, (struct sockaddr *)&addr) == 0 && rdma_get_src_port(id));
	CHECK(rdma_listen(id, 0) == 0);
	return id;
}

static struct rdma_cm_id *create_resolved_ud_id(uint16_t port_be)
{
	struct sockaddr_in addr = loopback_sockaddr(port_be);
	struct rdma_cm_id *id = create_ud_id(other);

	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 100) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ADDR_RESOLVED, id, 0);
	CHECK(rdma_resolve_route(id, 100) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ROUTE_RESOLVED, id, 0);
	CHECK(id->route.num_paths == 1 && id->route.path_rec->hop_limit > 1);
	CHECK(memcmp(&id->route.path_rec->dgid, &id->route.addr.addr.ibaddr.dgid, 16) == 0);
	return id;
}

static void create_ud_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UD,
		.sq_sig_all = 1,
	};
	struct ibv_qp_attr now;

	CHECK(rdma_create_qp(id, NULL, &attr) == 0 && id->qp->state == IBV_QPS_RTS);
	CHECK(ibv_query_qp(id->qp, &now, IBV_QP_STATE | IBV_QP_QKEY, &attr) == 0);
	CHECK(now.qp_state == IBV_QPS_RTS && now.qkey == UDP_QKEY);
}

static void connect_ud_id(struct rdma_cm_id *id, const char *data)
{
	struct rdma_conn_param param = {
		.private_data = data,
		.private_data_len = (uint8_t)(data ? strlen(data) + 1 : 0),
	};

	CHECK(rdma_connect(id, &param) == 0);
}

static struct rdma_cm_id *wait_ud_request(struct rdma_cm_id *listener, const char *data)
{
	struct rdma_cm_event *event = wait_cm_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	struct rdma_cm_id *id = event->id;

	CHECK(event->listen_id == listener && id->verbs && id->qp_type == IBV_QPT_UD);
	CHECK(id->ps == space);
	CHECK(event->param.ud.private_data_len == (data ? strlen(data) + 1 : 0));
	CHECK(!data || strcmp(event->param.ud.private_data, data) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	return id;
}

static void destroy_ud_id(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(!id->qp && rdma_destroy_id(id) == 0);
}

/* Sends a message with the address handle attributes of an event's parameters. */
static void send_ud_message_with_event_address(struct rdma_cm_id *from, struct rdma_cm_id *to,
					       const struct rdma_ud_param *ud)
{
	struct ibv_ah_attr attr = ud->ah_attr;
	struct ibv_ah *ah = ibv_create_ah(from->pd, &attr);
	struct ibv_mr *mr = ibv_reg_mr(from->pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_wc wc;

	CHECK(ah && mr);
	CHECK(rdma_post_recv(to, NULL, memory, 100, mr) == 0);
	CHECK(rdma_post_ud_send(from, NULL, memory + 200, 7, mr, 0, ah, ud->qp_num) == 0);
	CHECK(rdma_get_send_comp(from, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(to, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(wc.byte_len == 47);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0);
}

static void check_accepted_sidr_request(struct rdma_cm_id *listener)
{
	struct rdma_conn_param param = { .private_data = "it is me", .private_data_len = 9 };
	struct rdma_cm_id *client = create_resolved_ud_id(rdma_get_src_port(listener)), *server;
	struct rdma_cm_event *event;
	uint8_t tos = 0x20;

	CHECK(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1) == 0);
	create_ud_qp(client);
	connect_ud_id(client, "who");
	server = wait_ud_request(listener, "who");
	create_ud_qp(server);
	CHECK(rdma_accept(server, &param) == 0);
	CHECK(rdma_accept(server, &param) == -1 && errno == EINVAL);
	event = wait_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, client);
	CHECK(event->status == 0 && strcmp(event->param.ud.private_data, "it is me") == 0);
	CHECK(event->param.ud.qp_num == server->qp->qp_num && event->param.ud.qkey == UDP_QKEY);
	CHECK(event->param.ud.ah_attr.grh.traffic_class == 0x20);
	send_ud_message_with_event_address(client, server, &event->param.ud);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_disconnect(client) == 0 && rdma_disconnect(server) == 0);
	destroy_ud_id(client);
	destroy_ud_id(server);
}

/* Checks that rejected requests fail with status 2 (rejected) of InfiniBand's SIDR response. */
static void check_rejected_sidr_requests(struct rdma_cm_id *listener)
{
	struct rdma_cm_id *client = create_resolved_ud_id(rdma_get_src_port(listener)), *server;
	struct rdma_cm_event *event;

	connect_ud_id(client, NULL);
	server = wait_ud_request(listener, NULL);
	CHECK(rdma_reject(server, "no", 3) == 0);
	CHECK(rdma_reject(server, "no", 3) == -1 && errno == EINVAL);
	destroy_ud_id(server);
	event = wait_cm_event(other, RDMA_CM_EVENT_UNREACHABLE, client);
	CHECK(event->status == 2 && event->param.ud.private_data_len == 3);
	CHECK(rdma_ack_cm_event(event) == 0);
	destroy_ud_id(client);
	client = create_resolved_ud_id(rdma_get_src_port(listener));
	connect_ud_id(client, NULL);
	/* destroying the id of a request without an answer rejects the request */
	destroy_ud_id(wait_ud_request(listener, NULL));
	expect_cm_event(other, RDMA_CM_EVENT_UNREACHABLE, client, 2);
	destroy_ud_id(client);
	/* InfiniBand's status for port 9, which has no listener */
	client = create_resolved_ud_id(htons(9));
	connect_ud_id(client, NULL);
	expect_cm_event(other, RDMA_CM_EVENT_UNREACHABLE, client, 1);
	destroy_ud_id(client);
}

/* Checks that a request can be accepted with the number and Q_Key of the program's queue pair. */
static void check_accept_by_qp_number(struct rdma_cm_id *listener)
{
	struct rdma_cm_id *client = create_resolved_ud_id(rdma_get_src_port(listener)), *server;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_event *event;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp *qp;
	int mask;

	connect_ud_id(client, NULL);
	server = wait_ud_request(listener, NULL);
	/* rdma_accept fails because no queue pair has the given number */
	CHECK(rdma_accept(server, &param) == -1 && errno == EINVAL);
	init.send_cq = init.recv_cq = ibv_create_cq(server->verbs, 8, NULL, NULL, 0);
	qp = ibv_create_qp(server->pd, &init);
	CHECK(qp);
	for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		attr.qp_state = (enum ibv_qp_state)state;
		CHECK(rdma_init_qp_attr(server, &attr, &mask) == 0);
		if (state == IBV_QPS_INIT) {
			CHECK(attr.qkey == UDP_QKEY && mask & IBV_QP_QKEY);
			attr.qkey = 77;
		}
		CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
	}
	param.qp_num = qp->qp_num;
	CHECK(rdma_accept(server, &param) == 0);
	event = wait_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, client);
	CHECK(event->param.ud.qp_num == qp->qp_num && event->param.ud.qkey == 77);
	CHECK(rdma_ack_cm_event(event) == 0);
	destroy_ud_id(client);
	destroy_ud_id(server);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(init.send_cq) == 0);
}

static void check_private_data_limit(struct rdma_cm_id *listener)
{
	struct rdma_cm_id *client = create_resolved_ud_id(rdma_get_src_port(listener)), *server;
	struct rdma_conn_param param = { .private_data = memory, .private_data_len = 181 };

	CHECK(rdma_connect(client, &param) == -1 && errno == EINVAL);
	param.private_data_len = 180;
	CHECK(rdma_connect(client, &param) == 0);
	server = wait_cm_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST, NULL)->id;
	(void)server;
	_exit(0); /* the process exits with pending requests, without an orderly shutdown */
}

/* ---- groups ---------------------------------------------------------------------------------- */

static struct sockaddr_in multicast_group_sockaddr(const char *text)
{
	struct sockaddr_in addr = { .sin_family = AF_INET };

	CHECK(inet_pton(AF_INET, text, &addr.sin_addr) == 1);
	return addr;
}

static void expect_join_event(struct rdma_cm_id *id, void *context)
{
	struct rdma_cm_event *event = wait_cm_event(other, RDMA_CM_EVENT_MULTICAST_JOIN, id);
	const struct rdma_ud_param *ud = &event->param.ud;

	CHECK(event->status == 0 && ud->private_data == context);
	CHECK(ud->qp_num == 0xffffff && ud->qkey == UDP_QKEY && ud->ah_attr.is_global);
	CHECK(rdma_ack_cm_event(event) == 0);
}

static void check_multicast_groups(void)
{
	struct sockaddr_in addr = loopback_sockaddr(0), one = multicast_group_sockaddr("239.8.8.1"),
			   two = multicast_group_sockaddr("239.8.8.2");
	struct sockaddr_in strange = multicast_group_sockaddr("10.8.8.1");
	struct rdma_cm_join_mc_attr_ex ex = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
		.addr = (struct sockaddr *)&two,
	};
	struct rdma_cm_id *id = create_ud_id(other);
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff, 239, 8, 8, 2 } };
	int word;

	CHECK(rdma_join_multicast(id, (struct sockaddr *)&one, &word) == -1 && errno == EINVAL);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&addr) == 0);
	create_ud_qp(id);
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&strange, &word) == -1);
	CHECK(errno == EINVAL);
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&one, &word) == 0);
	expect_join_event(id, &word);
	/* ibv_destroy_qp fails while the queue pair is a member of a group */
	CHECK(ibv_destroy_qp(id->qp) == EBUSY);
	CHECK(rdma_join_multicast_ex(id, &ex, NULL) == 0);
	expect_join_event(id, NULL);
	/*
	 * ibv_detach_mcast fails because the queue pair joined through rdma_cm, not through
	 * ibv_attach_mcast
	 */
	CHECK(ibv_detach_mcast(id->qp, &gid, 0) == EINVAL);
	ex.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
	CHECK(rdma_join_multicast_ex(id, &ex, NULL) == -1 && errno == EOPNOTSUPP);
	ex.comp_mask = RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	CHECK(rdma_join_multicast_ex(id, &ex, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_leave_multicast(id, (struct sockaddr *)&one) == 0);
	CHECK(rdma_leave_multicast(id, (struct sockaddr *)&one) == -1);
	CHECK(errno == EADDRNOTAVAIL);
	CHECK(rdma_leave_multicast(id, (struct sockaddr *)&two) == 0);
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&one, NULL) == 0);
	/* leaving a group discards the pending join event */
	CHECK(rdma_leave_multicast(id, (struct sockaddr *)&one) == 0);
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&two, NULL) == 0);
	expect_join_event(id, NULL);
	destroy_ud_id(id); /* destroying an id ends its membership in the other groups */
}

int main(int argc, char **argv)
{
	struct rdma_cm_id *listener;

	CHECK(argc == 2);
	channel = rdma_create_event_channel();
	other = rdma_create_event_channel();
	CHECK(channel && other);
	if (strcmp(argv[1], "ipoib") == 0)
		space = RDMA_PS_IPOIB;
	if (strcmp(argv[1], "connect") != 0 && strcmp(argv[1], "left") != 0)
		check_multicast_groups();
	if (strcmp(argv[1], "groups") != 0) {
		listener = create_ud_listener();
		check_accepted_sidr_request(listener);
		check_rejected_sidr_requests(listener);
		check_accept_by_qp_number(listener);
		if (strcmp(argv[1], "left") == 0)
			check_private_data_limit(listener);
		destroy_ud_id(listener);
	}
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
	return 0;
}
