/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Ports of connection ids: an id connects from its reported port, the port is free again after the
 * connection has ended, and both address families can share a port if requested.
 */
#include <unistd.h>

#include "cm.h"

/* Ways in which the client gets its source port */
enum way { NO_SOURCE, BY_RESOLVE, BY_BIND, WAYS };

static struct rdma_cm_id *create_client_cm_id(enum way way, uint16_t own_be, uint16_t port_be)
{
	struct sockaddr_in source = loopback_sockaddr(own_be), dest = loopback_sockaddr(port_be);
	struct sockaddr *from = (struct sockaddr *)&source;
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(other, &id, NULL, RDMA_PS_TCP) == 0);
	if (way == BY_BIND)
		CHECK(rdma_bind_addr(id, from) == 0);
	CHECK(rdma_resolve_addr(id, way == BY_RESOLVE ? from : NULL, (struct sockaddr *)&dest,
				1000) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ADDR_RESOLVED, id, 0);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ROUTE_RESOLVED, id, 0);
	create_rc_qp(id);
	return id;
}

/*
 * Connects and disconnects two ids. The client disconnects first, so that its port is in TIME-WAIT.
 *
 */
static void connect_and_disconnect(struct rdma_cm_id *listener, struct rdma_cm_id *client)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	uint16_t told = rdma_get_src_port(client);
	struct rdma_cm_id *server;

	CHECK(told != 0);
	CHECK(rdma_connect(client, &param) == 0);
	server = wait_cm_request(listener, NULL, 0);
	CHECK(rdma_get_dst_port(server) == told);
	CHECK(rdma_accept(server, &param) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, client, 0);
	expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, server, 0);
	CHECK(rdma_get_src_port(client) == told);
	send_between_ids(client, server);
	disconnect_ids(client, server);
}

static void check_reported_port(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel);

	for (enum way way = NO_SOURCE; way < WAYS; way++)
		connect_and_disconnect(listener,
				       create_client_cm_id(way, 0, rdma_get_src_port(listener)));
	CHECK(rdma_destroy_id(listener) == 0);
}

/* Returns a free port, which was the port of a destroyed id. */
static uint16_t find_free_port(void)
{
	struct rdma_cm_id *id = listen_on_channel(channel);
	uint16_t port_be = rdma_get_src_port(id);

	CHECK(rdma_destroy_id(id) == 0);
	return port_be;
}

static void check_port_reuse(void)
{
	struct rdma_cm_id *listener = listen_on_channel(channel);
	uint16_t own = find_free_port();

	for (int i = 0; i < 6; i++) {
		struct rdma_cm_id *client = create_client_cm_id(i % 2 ? BY_BIND : BY_RESOLVE, own,
								rdma_get_src_port(listener));

		CHECK(rdma_get_src_port(client) == own);
		connect_and_disconnect(listener, client);
	}
	CHECK(rdma_destroy_id(listener) == 0);
}

static struct rdma_cm_id *listen_on_wildcard(sa_family_t family, uint16_t port_be, int only,
					     int wanted)
{
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = port_be };
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = port_be };
	struct sockaddr *addr = family == AF_INET ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
	struct rdma_cm_id *id;
	int r;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof(only)) == 0);
	r = rdma_bind_addr(id, addr);
	if (r == 0)
		r = rdma_listen(id, 4);
	CHECK(r == (wanted ? -1 : 0) && (r == 0 || errno == wanted));
	return id;
}

static void check_address_families_share_port(void)
{
	struct rdma_cm_id *v4 = listen_on_wildcard(AF_INET, 0, 0, 0), *both, *v6;
	uint16_t port_be = rdma_get_src_port(v4);

	both = listen_on_wildcard(AF_INET6, port_be, 0, EADDRINUSE);
	v6 = listen_on_wildcard(AF_INET6, port_be, 1, 0);
	CHECK(rdma_get_src_port(v6) == port_be);
	CHECK(rdma_destroy_id(both) == 0 && rdma_destroy_id(v6) == 0 && rdma_destroy_id(v4) == 0);
	/* Both families can also share a port if the listeners are created in the reverse order. */
	v6 = listen_on_wildcard(AF_INET6, port_be, 1, 0);
	v4 = listen_on_wildcard(AF_INET, port_be, 1, 0);
	CHECK(rdma_destroy_id(v6) == 0 && rdma_destroy_id(v4) == 0);
}

int main(int argc, char **argv)
{
	static const struct named parts[] = {
		{ "told", check_reported_port },
		{ "again", check_port_reuse },
		{ "families", check_address_families_share_port },
	};

	return run_named_part(parts, sizeof(parts) / sizeof(parts[0]), argc, argv);
}
