/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Listeners on the wildcard address of a private network namespace with the two devices "near" and
 * "far". Each connection request must report the device on which the request arrived.
 */
#include <stdbool.h>
#include <unistd.h>

#include "cm.h"

static void run_ip_command(const char *what)
{
	char command[200];

	snprintf(command, sizeof(command), "ip %s", what);
	CHECK(system(command) == 0);
}

static void create_two_devices(void)
{
	/* The command ip runs without the sanitizer that is preloaded into this program. */
	unsetenv("LD_PRELOAD");
	run_ip_command("link add near type veth peer name far");
	run_ip_command("link set far addrgenmode none");
	run_ip_command("link set near addrgenmode none");
	run_ip_command("link set lo up");
	run_ip_command("link set far up");
	run_ip_command("link set near up");
	run_ip_command("addr add 192.0.2.1/24 dev near");
	run_ip_command("addr add 198.51.100.1/24 dev far");
	run_ip_command("addr add 2001:db8::1/64 dev far nodad");
	/*
	 * The kernel installs the local route with a delay, and connections to the address fail
	 * until the route exists.
	 */
	CHECK(system("until ip -6 route show table local | grep -q 2001:db8::1; do sleep 0.01; done") ==
	      0);
}

/* Creates a listener on :: and on every device. only_v6: do not accept IPv4 connections. */
static struct rdma_cm_id *listen_wildcard(bool only_v6)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6 };
	struct rdma_cm_id *id;
	int on = only_v6;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&any) == 0 && !id->verbs);
	CHECK(rdma_listen(id, 0) == 0 && rdma_get_src_port(id));
	return id;
}

static bool is_id_on_device(const struct rdma_cm_id *id, const char *name)
{
	return id->verbs && strcmp(ibv_get_device_name(id->verbs->device), name) == 0;
}

/* Creates an id that starts to connect to an address. */
static struct rdma_cm_id *start_connecting(const char *text, uint16_t port_be)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = port_be };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = port_be };
	bool is_v4 = inet_pton(AF_INET, text, &v4.sin_addr) == 1;
	struct rdma_cm_id *id;

	CHECK(is_v4 || inet_pton(AF_INET6, text, &v6.sin6_addr) == 1);
	CHECK(rdma_create_id(other, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6,
				1000) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ADDR_RESOLVED, id, 0);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ROUTE_RESOLVED, id, 0);
	create_rc_qp(id);
	CHECK(rdma_connect(id, NULL) == 0);
	return id;
}

static void check_device_of_connection_request(struct rdma_cm_id *listener, const char *text,
					       const char *device)
{
	struct rdma_cm_id *client = start_connecting(text, rdma_get_src_port(listener));
	struct rdma_cm_id *server = wait_cm_request(listener, NULL, 0);

	CHECK(is_id_on_device(client, device) && is_id_on_device(server, device));
	CHECK(server->qp->context == server->verbs && server->pd->context == server->verbs);
	CHECK(rdma_accept(server, NULL) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, client, 0);
	expect_cm_event(channel, RDMA_CM_EVENT_ESTABLISHED, server, 0);
	send_between_ids(client, server);
	disconnect_ids(client, server);
}

/* Checks that a connection to a port without a listener is refused. */
static void check_connection_refused(const char *text, uint16_t port_be)
{
	struct rdma_cm_id *client = start_connecting(text, port_be);
	struct rdma_cm_event *event = wait_cm_event(other, RDMA_CM_EVENT_REJECTED, client);

	CHECK(event->status == 8);
	CHECK(rdma_ack_cm_event(event) == 0);
	destroy_id_and_qp(client);
}

/*
 * Checks that joining an IPv6 group fails on a device with only IPv4 addresses, and that the id can
 * then join another group.
 */
static void check_multicast_group_of_other_family(void)
{
	struct sockaddr_in own = { .sin_family = AF_INET }, group = own;
	struct sockaddr_in6 strange = { .sin6_family = AF_INET6 };
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UD,
	};
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	int word;

	CHECK(inet_pton(AF_INET, "192.0.2.1", &own.sin_addr) == 1);
	CHECK(inet_pton(AF_INET, "239.8.8.3", &group.sin_addr) == 1);
	CHECK(inet_pton(AF_INET6, "ff05::42", &strange.sin6_addr) == 1);
	CHECK(rdma_create_id(other, &id, NULL, RDMA_PS_UDP) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&own) == 0);
	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&strange, &word) == 0);
	event = wait_cm_event(other, RDMA_CM_EVENT_MULTICAST_ERROR, id);
	CHECK(event->status < 0 && event->param.ud.private_data == &word);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, NULL) == 0);
	expect_cm_event(other, RDMA_CM_EVENT_MULTICAST_JOIN, id, 0);
	rdma_destroy_qp(id);
	CHECK(!id->qp && rdma_destroy_id(id) == 0);
}

int main(void)
{
	struct rdma_cm_id *listener;

	create_two_devices();
	channel = rdma_create_event_channel();
	other = rdma_create_event_channel();
	CHECK(channel && other);
	listener = listen_wildcard(false);
	check_device_of_connection_request(listener, "192.0.2.1", "siw_near");
	check_device_of_connection_request(listener, "198.51.100.1", "siw_far");
	check_device_of_connection_request(listener, "2001:db8::1", "siw_far");
	CHECK(rdma_destroy_id(listener) == 0);
	listener = listen_wildcard(true);
	check_device_of_connection_request(listener, "2001:db8::1", "siw_far");
	check_connection_refused("192.0.2.1", rdma_get_src_port(listener));
	CHECK(rdma_destroy_id(listener) == 0);
	check_multicast_group_of_other_family();
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
	return 0;
}
