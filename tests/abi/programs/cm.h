/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Helpers shared by the rdma_cm programs, which connect ids on two event channels of one process
 * over loopback.
 */
#ifndef ABI_TEST_CM_H
#define ABI_TEST_CM_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "common.h"

static struct rdma_event_channel *channel, *other;
static char memory[SIZE];

static inline struct sockaddr_in loopback_sockaddr(uint16_t port_be)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = port_be };

	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return addr;
}

/* Waits for the next event of a channel, checks the event's type and id, and returns the event. */
static inline struct rdma_cm_event *wait_cm_event(struct rdma_event_channel *of,
						  enum rdma_cm_event_type wanted,
						  const struct rdma_cm_id *id)
{
	struct pollfd fd = { of->fd, POLLIN, 0 };
	struct rdma_cm_event *event;

	CHECK(poll(&fd, 1, SECONDS * 1000) == 1);
	CHECK(rdma_get_cm_event(of, &event) == 0);
	if (event->event != wanted)
		fprintf(stderr, "%s, status %d, and not %s\n", rdma_event_str(event->event),
			event->status, rdma_event_str(wanted));
	CHECK(event->event == wanted && (!id || event->id == id));
	return event;
}

static inline void expect_cm_event(struct rdma_event_channel *of, enum rdma_cm_event_type wanted,
				   const struct rdma_cm_id *id, int status)
{
	struct rdma_cm_event *event = wait_cm_event(of, wanted, id);

	CHECK(event->status == status);
	CHECK(rdma_ack_cm_event(event) == 0);
}

static inline struct rdma_cm_id *listen_on_channel(struct rdma_event_channel *on)
{
	struct sockaddr_in addr = loopback_sockaddr(0);
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(on, &id, &channel, RDMA_PS_TCP) == 0);
	CHECK(id->verbs == NULL && id->context == &channel && id->channel == on);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&addr) == 0);
	CHECK(id->verbs && rdma_get_src_port(id) != 0 && rdma_get_dst_port(id) == 0);
	CHECK(rdma_listen(id, 0) == 0);
	return id;
}

static inline void create_rc_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
	CHECK(id->qp && id->send_cq && id->recv_cq && id->send_cq_channel && id->pd);
	CHECK(attr.send_cq == id->send_cq && id->qp->state == IBV_QPS_INIT);
}

static inline struct rdma_cm_id *create_resolved_id(struct rdma_event_channel *on, uint16_t port_be)
{
	struct sockaddr_in addr = loopback_sockaddr(port_be);
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(on, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 1000) == 0);
	expect_cm_event(on, RDMA_CM_EVENT_ADDR_RESOLVED, id, 0);
	CHECK(id->verbs && id->port_num == 1 && rdma_get_dst_port(id) == port_be);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	expect_cm_event(on, RDMA_CM_EVENT_ROUTE_RESOLVED, id, 0);
	create_rc_qp(id);
	return id;
}

static inline void send_between_ids(struct rdma_cm_id *from, struct rdma_cm_id *to)
{
	struct ibv_mr *one = rdma_reg_msgs(from, memory, 64), *two = rdma_reg_msgs(to, memory, 64);
	struct ibv_wc wc;

	CHECK(one && two);
	CHECK(rdma_post_recv(to, &wc, memory, 64, two) == 0);
	CHECK(rdma_post_send(from, &wc, memory, 64, one, 0) == 0);
	CHECK(rdma_get_recv_comp(to, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == 64);
	CHECK(rdma_get_send_comp(from, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_dereg_mr(one) == 0 && rdma_dereg_mr(two) == 0);
}

static inline void destroy_id_and_qp(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	CHECK(id->qp == NULL && id->send_cq == NULL && id->recv_cq_channel == NULL);
	CHECK(rdma_destroy_id(id) == 0);
}

/* Disconnects the client, checks that both ends receive the event, and destroys both ids. */
static inline void disconnect_ids(struct rdma_cm_id *client, struct rdma_cm_id *server)
{
	CHECK(rdma_disconnect(client) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_DISCONNECTED, client, 0);
	expect_cm_event(channel, RDMA_CM_EVENT_DISCONNECTED, server, 0);
	destroy_id_and_qp(client);
	destroy_id_and_qp(server);
}

/* Waits for a connection request, checks its private data, and returns its id with a queue pair. */
static inline struct rdma_cm_id *wait_cm_request(struct rdma_cm_id *listener, const uint8_t *data,
						 uint8_t len)
{
	struct rdma_cm_event *event = wait_cm_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	struct rdma_cm_id *id = event->id;

	CHECK(event->listen_id == listener && id != listener && id->context == listener->context);
	CHECK(id->verbs && id->channel == channel && id->pd);
	CHECK(rdma_get_src_port(id) == rdma_get_src_port(listener) && rdma_get_dst_port(id) != 0);
	CHECK(event->param.conn.private_data_len == len);
	CHECK(len == 0 || memcmp(event->param.conn.private_data, data, len) == 0);
	create_rc_qp(id);
	CHECK(len == 0 || memcmp(event->param.conn.private_data, data, len) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	return id;
}

static inline void connect_ids(struct rdma_cm_id *listener, struct rdma_cm_id **client,
			       struct rdma_cm_id **server)
{
	struct rdma_conn_param param = { .responder_resources = 255, .initiator_depth = 255 };
	struct rdma_cm_event *event;
	uint8_t data[255];

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i + 1);
	param.private_data = data;
	param.private_data_len = sizeof(data);
	*client = create_resolved_id(other, rdma_get_src_port(listener));
	CHECK(rdma_connect(*client, &param) == 0);
	*server = wait_cm_request(listener, data, sizeof(data));
	param.private_data_len = 10;
	param.initiator_depth = param.responder_resources = 0;
	CHECK(rdma_accept(*server, &param) == 0);
	event = wait_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, *client);
	CHECK(event->param.conn.private_data_len == 10);
	CHECK(memcmp(event->param.conn.private_data, data, 10) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, *server, 0);
	CHECK((*client)->qp->state == IBV_QPS_RTS && rdma_get_src_port(*client) != 0);
	CHECK(rdma_get_src_port(*client) == rdma_get_dst_port(*server));
	send_between_ids(*server, *client); /* an RC server may send before its client */
	send_between_ids(*client, *server);
}

struct named {
	const char *name;
	void (*run)(void);
};

/*
 * Opens both channels and runs the part of the program that the only argument names. Returns the
 * program's exit code.
 */
static inline int run_named_part(const struct named *all, size_t count, int argc, char **argv)
{
	channel = rdma_create_event_channel();
	other = rdma_create_event_channel();
	CHECK(channel && other && argc == 2);
	for (size_t i = 0; i < count; i++)
		if (strcmp(argv[1], all[i].name) == 0) {
			all[i].run();
			rdma_destroy_event_channel(channel);
			rdma_destroy_event_channel(other);
			return 0;
		}
	return 2;
}

#endif
