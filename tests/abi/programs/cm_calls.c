/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rarely used rdma_cm calls: cm_calls queues, depths, datagrams, settings or moves. Both ends are
 * in this process, on loopback.
 */
#include <pthread.h>

#include "cm.h"

static struct rdma_cm_id *next_request_id(void)
{
	struct rdma_cm_event *event = next_cm_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	struct rdma_cm_id *id = event->id;

	CHECK(rdma_ack_cm_event(event) == 0);
	return id;
}

static void accept_it(struct rdma_cm_id *client, struct rdma_cm_id *server)
{
	CHECK(rdma_accept(server, NULL) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, client, 0);
	expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, server, 0);
}

/* ---- queue pairs and shared receive queues --------------------------------------------------- */

static void shared_receives(struct rdma_cm_id *id)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };

	CHECK(rdma_create_srq(id, NULL, &attr) == 0 && id->srq && attr.attr.max_wr >= 4);
	CHECK(rdma_create_srq(id, NULL, &attr) == -1 && errno == EINVAL);
}

static void shared_receives_ex(struct rdma_cm_id *id)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_BASIC,
		.pd = id->pd,
	};

	CHECK(rdma_create_srq_ex(id, &attr) == 0 && id->srq && id->srq->pd == id->pd);
}

/* The program names no protection domain, so the queue pair gets that of the id. */
static void queues_ex(struct rdma_cm_id *id)
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

static void end_shared(struct rdma_cm_id *id)
{
	rdma_destroy_srq(id);
	CHECK(id->srq); /* the shared receive queue still exists, because the queue pair uses it */
	rdma_destroy_qp(id);
	CHECK(!id->qp && !id->send_cq && id->srq);
	rdma_destroy_srq(id);
	CHECK(!id->srq && !id->recv_cq && !id->recv_cq_channel);
	CHECK(rdma_destroy_id(id) == 0);
}

/* Each end has a shared receive queue that supplies the receives of the id's queue pair. */
static void queues_of_ids(void)
{
	struct rdma_cm_id *listener = listen_on(channel), *server;
	struct rdma_cm_id *client = resolved(other, rdma_get_src_port(listener));

	rdma_destroy_qp(client);
	shared_receives_ex(client);
	queues_ex(client);
	CHECK(client->qp->srq == client->srq);
	CHECK(rdma_connect(client, NULL) == 0);
	server = next_request_id();
	shared_receives(server);
	queues(server);
	CHECK(server->qp->srq == server->srq);
	accept_it(client, server);
	CHECK(rdma_notify(server, IBV_EVENT_COMM_EST) == 0);
	send_to(client,
		/* rdma_post_recv posts to the id's shared receive queue, if there is one */
		server);
	send_to(server, client);
	end_shared(client);
	end_shared(server);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* ---- depths ---------------------------------------------------------------------------------- */

/*
 * A depth of 255 stands for the device's maximum. A depth of 0 means no Reads, except for the Read
 * that persona roce uses for confirmation.
 */
static void depths(void)
{
	struct rdma_conn_param most = { .responder_resources = 255, .initiator_depth = 255 };
	struct rdma_conn_param none = { 0 };
	struct rdma_cm_id *listener = listen_on(channel), *client, *server;
	struct ibv_device_attr device;
	struct rdma_cm_event *event;
	int kept;

	client = resolved(other, rdma_get_src_port(listener));
	CHECK(ibv_query_device(client->verbs, &device) == 0);
	kept = client->verbs->device->transport_type == IBV_TRANSPORT_IB;
	CHECK(rdma_connect(client, &most) == 0);
	event = next_cm_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	CHECK(event->param.conn.responder_resources == device.max_qp_init_rd_atom);
	CHECK(event->param.conn.initiator_depth == device.max_qp_rd_atom);
	server = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	queues(server);
	CHECK(rdma_accept(server, &none) == 0);
	event = next_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, client);
	CHECK(event->param.conn.responder_resources == kept);
	CHECK(event->param.conn.initiator_depth == kept);
	CHECK(rdma_ack_cm_event(event) == 0);
	expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, server, 0);
	cm_disconnect(client, server);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* ---- datagram endpoints ---------------------------------------------------------------------- */

static struct rdma_addrinfo *datagrams_at(const char *port, int flags)
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

static struct rdma_cm_id *endpoint(const char *port, int flags)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_addrinfo *info = datagrams_at(port, flags);
	struct rdma_cm_id *id;

	CHECK(rdma_create_ep(&id, info, NULL, &attr) == 0 && id->qp_type == IBV_QPT_UD);
	CHECK(!id->qp == !!(flags & RAI_PASSIVE));
	rdma_freeaddrinfo(info);
	return id;
}

static void *serve(void *listener)
{
	struct rdma_cm_id *id;

	CHECK(rdma_get_request(listener, &id) == 0);
	CHECK(id->qp && id->qp->qp_type == IBV_QPT_UD);
	CHECK(rdma_accept(id, NULL) == 0);
	return id;
}

static void datagrams(void)
{
	struct rdma_cm_id *listener = endpoint("0", RAI_PASSIVE), *id;
	const struct rdma_ud_param *ud;
	struct ibv_ah_attr way;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	struct ibv_wc wc;
	pthread_t thread;
	char port[8];
	void *server;

	CHECK(rdma_listen(listener, 0) == 0);
	CHECK(pthread_create(&thread, NULL, serve, listener) == 0);
	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listener)));
	id = endpoint(port, 0);
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

/* Options that concern the address cannot be set once the id is bound. */
static void set_option_too_late(struct rdma_cm_id *bound)
{
	int on = 1;

	CHECK(rdma_set_option(bound, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)) == -1);
	CHECK(errno == EINVAL);
	errno = 0;
	CHECK(rdma_set_option(bound, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)) ==
	      -1);
	CHECK(errno == EINVAL);
}

/* Vendor options (ECE): none are sent, and none are received. */
static void vendors_options(struct rdma_cm_id *id)
{
	struct ibv_ece ece = { 0 };

	CHECK(rdma_set_local_ece(id, &ece) == 0);
	ece.vendor_id = ece.options = ece.comp_mask = 7;
	CHECK(rdma_get_remote_ece(id, &ece) == 0);
	CHECK(!ece.vendor_id && !ece.options && !ece.comp_mask);
}

static void refused(struct rdma_cm_id *listener)
{
	struct rdma_cm_id *client = resolved(other, rdma_get_src_port(listener)), *server;
	struct rdma_cm_event *event;

	vendors_options(client);
	CHECK(rdma_connect(client, NULL) == 0);
	server = next_request_id();
	vendors_options(server);
	CHECK(rdma_reject_ece(server, "no", 3) == 0);
	CHECK(rdma_reject_ece(server, "no", 3) == -1 && errno == EINVAL);
	event = next_cm_event(other, RDMA_CM_EVENT_REJECTED, client);
	CHECK(event->param.conn.private_data_len >= 3);
	CHECK(strcmp(event->param.conn.private_data, "no") == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	cm_destroy(client);
	CHECK(rdma_destroy_id(server) == 0);
}

static void settings(void)
{
	struct rdma_cm_id *listener = listen_on(channel);

	set_option_too_late(listener);
	refused(listener);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* ---- ids that become synchronous and asynchronous again -------------------------------------- */

static void migrate_id(void)
{
	struct rdma_cm_id *listener = listen_on(channel), *client, *server;

	client = resolved(other, rdma_get_src_port(listener));
	CHECK(rdma_connect(client, NULL) == 0);
	server = next_request_id();
	queues(server);
	accept_it(client, server);
	CHECK(rdma_migrate_id(client, NULL) == 0);
	CHECK(client->channel && client->channel != other && !client->event);
	CHECK(rdma_migrate_id(client, NULL) == 0); /* the id is already synchronous */
	CHECK(rdma_disconnect(client) == 0);
	CHECK(client->event && client->event->event == RDMA_CM_EVENT_DISCONNECTED);
	expect_cm_event(channel, RDMA_CM_EVENT_DISCONNECTED, server, 0);
	cm_destroy(client);
	cm_destroy(server);

	/* Migrate back: the events are reported on the channel again. */
	client = resolved(other, rdma_get_src_port(listener));
	CHECK(rdma_migrate_id(client, NULL) == 0);
	CHECK(rdma_migrate_id(client, other) == 0 && client->channel == other && !client->event);
	CHECK(rdma_connect(client, NULL) == 0);
	server = next_request_id();
	queues(server);
	accept_it(client, server);
	cm_disconnect(client, server);
	CHECK(rdma_destroy_id(listener) == 0);
}

int main(int argc, char **argv)
{
	static const struct named all[] = { { "queues", queues_of_ids },
					    { "depths", depths },
					    { "datagrams", datagrams },
					    { "settings", settings },
					    { "moves", migrate_id } };

	return run_named(all, sizeof(all) / sizeof(all[0]), argc, argv);
}
