/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rarely used rdma_cm calls. The argument selects a part: queues, depths, datagrams, settings or
 * moves. Both ends of each connection are in this process, on loopback.
 */
#include <pthread.h>

#include "cm.h"

static struct rdma_cm_id *wait_connection_request(void)
{
	struct rdma_cm_event *event = wait_cm_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	struct rdma_cm_id *id = event->id;

	CHECK(rdma_ack_cm_event(event) == 0);
	return id;
}

static void accept_and_expect_established(struct rdma_cm_id *client, struct rdma_cm_id *server)
{
	CHECK(rdma_accept(server, NULL) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, client, 0);
	expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, server, 0);
}

/* ---- queue pairs and shared receive queues --------------------------------------------------- */

static void create_srq_of_id(struct rdma_cm_id *id)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };

	CHECK(rdma_create_srq(id, NULL, &attr) == 0 && id->srq && attr.attr.max_wr >= 4);
	CHECK(rdma_create_srq(id, NULL, &attr) == -1 && errno == EINVAL);
}

static void create_srq_ex_of_id(struct rdma_cm_id *id)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_BASIC,
		.pd = id->pd,
	};

	CHECK(rdma_create_srq_ex(id, &attr) == 0 && id->srq && id->srq->pd == id->pd);
}

/* Creates a queue pair without a protection domain argument: the id's protection domain is used. */
static void create_qp_ex_of_id(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr_ex attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	CHECK(rdma_create_qp_ex(id, &attr) == 0);
	CHECK(id->qp && id->qp->pd == id->pd && attr.pd == id->pd);
	CHECK(attr.send_cq == id->send_cq && attr.recv_cq == id->recv_cq && attr.srq == id->srq);
}

static void destroy_qp_then_srq(struct rdma_cm_id *id)
{
	rdma_destroy_srq(id);
	CHECK(id->srq); /* the shared receive queue still exists, because the queue pair uses it */
	rdma_destroy_qp(id);
	CHECK(!id->qp && !id->send_cq && id->srq);
	rdma_destroy_srq(id);
	CHECK(!id->srq && !id->recv_cq && !id->recv_cq_channel);
	CHECK(rdma_destroy_id(id) == 0);
}

/* Checks ids with shared receive queues, which supply the receives of the ids' queue pairs. */
static void check_ids_with_srqs(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel), *server;
	struct rdma_cm_id *client = create_resolved_id(other, rdma_get_src_port(listener));

	rdma_destroy_qp(client);
	create_srq_ex_of_id(client);
	create_qp_ex_of_id(client);
	CHECK(client->qp->srq == client->srq);
	CHECK(rdma_connect(client, NULL) == 0);
	server = wait_connection_request();
	create_srq_of_id(server);
	create_rc_qp(server);
	CHECK(server->qp->srq == server->srq);
	accept_and_expect_established(client, server);
	CHECK(rdma_notify(server, IBV_EVENT_COMM_EST) == 0);
	send_between_ids(client,
			 /* rdma_post_recv posts to the id's shared receive queue */
			 server);
	send_between_ids(server, client);
	destroy_qp_then_srq(client);
	destroy_qp_then_srq(server);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* ---- depths ---------------------------------------------------------------------------------- */

/*
 * Checks that a read depth of 255 selects the device's maximum, and that a read depth of 0 permits
 * no Reads except the confirming Read of persona roce.
 */
static void check_extreme_read_depths(void)
{
	struct rdma_conn_param most = { .responder_resources = 255, .initiator_depth = 255 };
	struct rdma_conn_param none = { 0 };
	struct rdma_cm_id *listener = listen_on_channel(channel), *client, *server;
	struct ibv_device_attr device;
	struct rdma_cm_event *event;
	int kept;

	client = create_resolved_id(other, rdma_get_src_port(listener));
	CHECK(ibv_query_device(client->verbs, &device) == 0);
	kept = client->verbs->device->transport_type == IBV_TRANSPORT_IB;
	CHECK(rdma_connect(client, &most) == 0);
	event = wait_cm_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	CHECK(event->param.conn.responder_resources == device.max_qp_init_rd_atom);
	CHECK(event->param.conn.initiator_depth == device.max_qp_rd_atom);
	server = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	create_rc_qp(server);
	CHECK(rdma_accept(server, &none) == 0);
	event = wait_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, client);
	CHECK(event->param.conn.responder_resources == kept);
	CHECK(event->param.conn.initiator_depth == kept);
	CHECK(rdma_ack_cm_event(event) == 0);
	expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, server, 0);
	disconnect_ids(client, server);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* ---- datagram endpoints ---------------------------------------------------------------------- */

static struct rdma_addrinfo *datagram_addrinfo(const char *port, int flags)
{
	struct rdma_addrinfo hints = {
		.ai_flags = flags | RAI_NUMERICHOST,
		.ai_port_space = RDMA_PS_UDP,
		.ai_qp_type = IBV_QPT_UD,
	};
	struct rdma_addrinfo *info;

	CHECK(rdma_getaddrinfo("127.0.0.1", port, &hints, &info) == 0);
	CHECK(info->ai_port_space == RDMA_PS_UDP && info->ai_qp_type == IBV_QPT_UD);
	return info;
}

static struct rdma_cm_id *create_datagram_endpoint(const char *port, int flags)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_addrinfo *info = datagram_addrinfo(port, flags);
	struct rdma_cm_id *id;

	CHECK(rdma_create_ep(&id, info, NULL, &attr) == 0 && id->qp_type == IBV_QPT_UD);
	CHECK(!id->qp == !!(flags & RAI_PASSIVE));
	rdma_freeaddrinfo(info);
	return id;
}

static void *accept_ud_connection_request(void *listener)
{
	struct rdma_cm_id *id;

	CHECK(rdma_get_request(listener, &id) == 0);
	CHECK(id->qp && id->qp->qp_type == IBV_QPT_UD);
	CHECK(rdma_accept(id, NULL) == 0);
	return id;
}

static void check_datagram_endpoints(void)
{
	struct rdma_cm_id *listener = create_datagram_endpoint("0", RAI_PASSIVE), *id;
	const struct rdma_ud_param *ud;
	struct ibv_ah_attr way;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	struct ibv_wc wc;
	pthread_t thread;
	char port[8];
	void *server;

	CHECK(rdma_listen(listener, 0) == 0);
	CHECK(pthread_create(&thread, NULL, accept_ud_connection_request, listener) == 0);
	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listener)));
	id = create_datagram_endpoint(port, 0);
	CHECK(rdma_connect(id, NULL) == 0 && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(pthread_join(thread, &server) == 0);
	ud = &id->event->param.ud;
	CHECK(ud->qp_num == ((struct rdma_cm_id *)server)->qp->qp_num);
	way = ud->ah_attr;
	ah = ibv_create_ah(id->pd, &way);
	mr = ibv_reg_mr(id->pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(ah && mr && rdma_post_recv(server, NULL, memory, 100, mr) == 0);
	CHECK(rdma_post_ud_send(id, NULL, memory + 200, 7, mr, 0, ah, ud->qp_num) == 0);
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(server, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(wc.byte_len == 47);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(server);
	rdma_destroy_ep(listener);
}

/* ---- options and ECE ------------------------------------------------------------------------- */

/* Checks that options of the address cannot be set after the id was bound. */
static void check_option_after_bind(struct rdma_cm_id *bound)
{
	int on = 1;

	CHECK(rdma_set_option(bound, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)) == -1);
	CHECK(errno == EINVAL);
	errno = 0;
	CHECK(rdma_set_option(bound, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)) ==
	      -1);
	CHECK(errno == EINVAL);
}

/* Checks that no vendor options (ECE) are sent or received. */
static void check_no_vendor_options_are_exchanged(struct rdma_cm_id *id)
{
	struct ibv_ece ece = { 0 };

	CHECK(rdma_set_local_ece(id, &ece) == 0);
	ece.vendor_id = ece.options = ece.comp_mask = 7;
	CHECK(rdma_get_remote_ece(id, &ece) == 0);
	CHECK(!ece.vendor_id && !ece.options && !ece.comp_mask);
}

static void check_rejection_with_ece(struct rdma_cm_id *listener)
{
	struct rdma_cm_id *client = create_resolved_id(other, rdma_get_src_port(listener)), *server;
	struct rdma_cm_event *event;

	check_no_vendor_options_are_exchanged(client);
	CHECK(rdma_connect(client, NULL) == 0);
	server = wait_connection_request();
	check_no_vendor_options_are_exchanged(server);
	CHECK(rdma_reject_ece(server, "no", 3) == 0);
	CHECK(rdma_reject_ece(server, "no", 3) == -1 && errno == EINVAL);
	event = wait_cm_event(other, RDMA_CM_EVENT_REJECTED, client);
	CHECK(event->param.conn.private_data_len >= 3);
	CHECK(strcmp(event->param.conn.private_data, "no") == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	destroy_id_and_qp(client);
	CHECK(rdma_destroy_id(server) == 0);
}

static void check_options_and_ece(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel);

	check_option_after_bind(listener);
	check_rejection_with_ece(listener);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* ---- migration to synchronous operation and back --------------------------------------------- */

static void check_id_migration(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel), *client, *server;

	client = create_resolved_id(other, rdma_get_src_port(listener));
	CHECK(rdma_connect(client, NULL) == 0);
	server = wait_connection_request();
	create_rc_qp(server);
	accept_and_expect_established(client, server);
	CHECK(rdma_migrate_id(client, NULL) == 0);
	CHECK(client->channel && client->channel != other && !client->event);
	CHECK(rdma_migrate_id(client, NULL) == 0); /* a second call has no effect */
	CHECK(rdma_disconnect(client) == 0);
	CHECK(client->event && client->event->event == RDMA_CM_EVENT_DISCONNECTED);
	expect_cm_event(channel, RDMA_CM_EVENT_DISCONNECTED, server, 0);
	destroy_id_and_qp(client);
	destroy_id_and_qp(server);

	/* After migration back to the channel, events are reported on the channel again. */
	client = create_resolved_id(other, rdma_get_src_port(listener));
	CHECK(rdma_migrate_id(client, NULL) == 0);
	CHECK(rdma_migrate_id(client, other) == 0 && client->channel == other && !client->event);
	CHECK(rdma_connect(client, NULL) == 0);
	server = wait_connection_request();
	create_rc_qp(server);
	accept_and_expect_established(client, server);
	disconnect_ids(client, server);
	CHECK(rdma_destroy_id(listener) == 0);
}

int main(int argc, char **argv)
{
	static const struct named all[] = { { "queues", check_ids_with_srqs },
					    { "depths", check_extreme_read_depths },
					    { "datagrams", check_datagram_endpoints },
					    { "settings", check_options_and_ece },
					    { "moves", check_id_migration } };

	return run_named_part(all, sizeof(all) / sizeof(all[0]), argc, argv);
}
