/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests two devices in a private network namespace: an interface "near" and loopback. The program
 * adds and deletes addresses of the interface, sets the interface down and up, and deletes it.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdbool.h>

#include "common.h"

#define GRH 40

struct device {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
};

static struct device near, lo;

static void run_ip_command(const char *what)
{
	char command[200];

	snprintf(command, sizeof(command), "ip %s", what);
	CHECK(system(command) == 0);
}

static void select_device(const struct device *device)
{
	ctx = device->ctx;
	pd = device->pd;
}

static struct device open_device(struct ibv_device *of)
{
	struct device device = { .ctx = ibv_open_device(of) };

	CHECK(device.ctx);
	device.pd = ibv_alloc_pd(device.ctx);
	CHECK(device.pd && fcntl(device.ctx->async_fd, F_SETFL, O_NONBLOCK) == 0);
	return device;
}

static void check_device_list(void)
{
	struct ibv_device **list;
	int n;

	list = ibv_get_device_list(&n);
	CHECK(list && n == 2 && !list[2]);
	/*
	 * The first device of the list must not be loopback, because programs use the first device.
	 *
	 */
	CHECK(strcmp(ibv_get_device_name(list[0]), "siw_near") == 0);
	CHECK(strcmp(ibv_get_device_name(list[1]), "siw_lo") == 0);
	CHECK(ibv_get_device_guid(list[0]) && ibv_get_device_guid(list[1]));
	CHECK(ibv_get_device_guid(list[0]) != ibv_get_device_guid(list[1]));
	CHECK(ibv_get_device_index(list[0]) != ibv_get_device_index(list[1]));
	near = open_device(list[0]);
	lo = open_device(list[1]);
	/* An open device stays valid after its device list was freed. */
	ibv_free_device_list(list);
	CHECK(strcmp(near.ctx->device->name, "siw_near") == 0);
	CHECK(strcmp(ibv_get_device_name(lo.ctx->device), "siw_lo") == 0);
}

static union ibv_gid query_gid_at_index(const struct device *device, int index)
{
	union ibv_gid one;

	CHECK(ibv_query_gid(device->ctx, PORT, index, &one) == 0);
	return one;
}

/* Returns whether a GID equals an address in textual form, such as ::1. */
static bool gid_equals_address(const union ibv_gid *one, const char *text)
{
	char own[INET6_ADDRSTRLEN];

	return inet_ntop(AF_INET6, one->raw, own, sizeof(own)) && strcmp(own, text) == 0;
}

static void send_and_check_message(struct side *from, struct side *to, struct ibv_ah *ah)
{
	size_t before = from->qp->qp_type == IBV_QPT_UD ? GRH : 0;
	struct ibv_sge sge = sge_of_side(from, 0, 5);
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_send_wr *bad;

	if (ah) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = to->qp->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
	}
	memcpy(from->buf, "hello", 5);
	memset(to->buf, 0, 64);
	post_recv(to, 1, 0, 64);
	CHECK(ibv_post_send(from->qp, &wr, &bad) == 0);
	wait_success(from->cq);
	CHECK(wait_success(to->cq).byte_len == before + 5);
	CHECK(memcmp(to->buf + before, "hello", 5) == 0);
}

/*
 * Creates a connected queue pair on each of two devices and sends messages in both directions, for
 * UD with address handles.
 */
static void check_exchange_between_devices(const struct device *first, const struct device *second,
					   enum ibv_qp_type type, int index)
{
	union ibv_gid gids[2] = { query_gid_at_index(first, index),
				  query_gid_at_index(second, index) };
	struct ibv_ah *ahs[2] = { NULL, NULL };
	struct side a, b;

	select_device(first);
	create_side(&a, type, NULL);
	select_device(second);
	create_side(&b, type, NULL);
	source_index = (uint8_t)index;
	gid = gids[1];
	move_qp_to_rts(a.qp, b.qp->qp_num);
	if (type == IBV_QPT_UD) {
		struct ibv_ah_attr attr = loopback_ah_attr();

		ahs[0] = ibv_create_ah(first->pd, &attr);
		CHECK(ahs[0]);
	}
	gid = gids[0];
	move_qp_to_rts(b.qp, a.qp->qp_num);
	if (type == IBV_QPT_UD) {
		struct ibv_ah_attr attr = loopback_ah_attr();

		ahs[1] = ibv_create_ah(second->pd, &attr);
		CHECK(ahs[1]);
	}
	send_and_check_message(&a, &b, ahs[0]);
	send_and_check_message(&b, &a, ahs[1]);
	for (int i = 0; i < 2; i++)
		CHECK(!ahs[i] || ibv_destroy_ah(ahs[i]) == 0);
	destroy_side(&a);
	destroy_side(&b);
	source_index = 0;
}

/*
 * Checks that a member of an IPv6 group receives a message with the GIDs of the group and the
 * sender in the GRH.
 */
static void check_ipv6_group(void)
{
	union ibv_gid own = query_gid_at_index(&near, 1),
		      mgid = { .raw = { 0xff, 0x05, [15] = 0x42 } };
	struct ibv_ah_attr attr, back;
	struct ibv_wc wc;
	struct ibv_grh *grh;
	struct side a, b;
	struct ibv_ah *ah;

	select_device(&near);
	create_side(&a, IBV_QPT_UD, NULL);
	create_side(&b, IBV_QPT_UD, NULL);
	move_qp_to_rts(a.qp, 0);
	move_qp_to_rts(b.qp, 0);
	CHECK(ibv_attach_mcast(b.qp, &mgid, 0) == 0 && ibv_attach_mcast(b.qp, &mgid, 0) == 0);
	CHECK(ibv_destroy_qp(b.qp) == EBUSY);
	gid = mgid;
	source_index = 1;
	attr = loopback_ah_attr();
	ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	post_recv(&b, 1, 0, 64);
	post_recv(&b, 2, 64, 64);
	{
		struct ibv_sge sge = sge_of_side(&a, 0, 5);
		struct ibv_send_wr wr = { .sg_list = &sge,
					  .num_sge = 1,
					  .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED,
					  .wr.ud = { ah, 0xffffff, QKEY } };
		struct ibv_send_wr *bad;

		memcpy(a.buf, "group", 5);
		CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	}
	wait_success(a.cq);
	wc = wait_success(b.cq);
	grh = (struct ibv_grh *)b.buf;
	CHECK(wc.wc_flags & IBV_WC_GRH && wc.sl == 9 && wc.src_qp == a.qp->qp_num);
	CHECK(memcmp(&grh->dgid, &mgid, 16) == 0 && memcmp(&grh->sgid, &own, 16) == 0);
	CHECK(memcmp(b.buf + GRH, "group", 5) == 0);
	CHECK(ibv_init_ah_from_wc(ctx, PORT, &wc, grh, &back) == 0);
	CHECK(memcmp(&back.grh.dgid, &own, 16) == 0);
	CHECK(query_gid_at_index(&near, back.grh.sgid_index).raw[0] != 0);
	/* A message to a group arrives once, although the queue pair was attached twice. */
	CHECK(ibv_poll_cq(b.cq, 1, &wc) == 0);
	CHECK(ibv_detach_mcast(b.qp, &mgid, 0) == 0 && ibv_destroy_ah(ah) == 0);
	source_index = 0;
	destroy_side(&a);
	destroy_side(&b);
}

/* Reads asynchronous events until an event of the wanted type arrives. */
static void wait_async_event(enum ibv_event_type wanted)
{
	struct pollfd fd = { near.ctx->async_fd, POLLIN, 0 };
	struct ibv_async_event event;
	double end = now_seconds() + SECONDS;

	do {
		CHECK(now_seconds() < end && poll(&fd, 1, SECONDS * 1000) == 1);
		CHECK(ibv_get_async_event(near.ctx, &event) == 0 && event.element.port_num == PORT);
		ibv_ack_async_event(&event);
	} while (event.event_type != wanted);
}

static enum ibv_port_state query_port_state(void)
{
	struct ibv_port_attr attr;

	CHECK(ibv_query_port(near.ctx, PORT, &attr) == 0);
	return attr.state;
}

/* Checks that the port reports the largest MTU of verbs that fits the interface's changing MTU. */
static void check_port_mtu(void)
{
	static const struct {
		const char *octets;
		enum ibv_mtu mtu;
	} each[] = { { "9000", IBV_MTU_4096 },
		     { "4096", IBV_MTU_4096 },
		     { "4095", IBV_MTU_2048 },
		     { "1280", IBV_MTU_1024 },
		     { "1500", IBV_MTU_1024 } };
	struct ibv_port_attr attr;
	char command[64];

	for (unsigned int i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
		double end = now_seconds() + SECONDS;

		snprintf(command, sizeof(command), "link set near mtu %s", each[i].octets);
		run_ip_command(command);
		do {
			CHECK(now_seconds() < end);
			CHECK(ibv_query_port(near.ctx, PORT, &attr) == 0);
		} while (attr.active_mtu != each[i].mtu);
		CHECK(attr.max_mtu == IBV_MTU_4096);
		/* A veth interface reports 10 Gb/s, which is one lane of that speed. */
		CHECK(attr.active_width == 1 && attr.active_speed == 4);
	}
}

/* Returns the index of an address in the GID table, or -1. */
static int find_gid_index(const char *text)
{
	struct ibv_gid_entry table[16];
	ssize_t n = ibv_query_gid_table(near.ctx, table, 16, 0);

	CHECK(n >= 0);
	for (ssize_t i = 0; i < n; i++)
		if (gid_equals_address(&table[i].gid, text))
			return (int)table[i].gid_index;
	return -1;
}

static void check_address_changes(void)
{
	struct ibv_ah_attr attr;
	struct ibv_ah *ah;
	struct side a, b;

	select_device(&near);
	create_side(&a, IBV_QPT_UD, NULL);
	create_side(&b, IBV_QPT_UD, NULL);
	move_qp_to_rts(a.qp, 0);
	move_qp_to_rts(b.qp, 0);
	/* Existing queue pairs are reachable at an address that is added after their creation. */
	run_ip_command("addr add 192.0.2.77/24 dev near");
	wait_async_event(IBV_EVENT_GID_CHANGE);
	CHECK(find_gid_index("::ffff:192.0.2.77") > 0);
	gid = query_gid_at_index(&near, find_gid_index("::ffff:192.0.2.77"));
	source_index = (uint8_t)find_gid_index("::ffff:192.0.2.77");
	attr = loopback_ah_attr();
	ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	send_and_check_message(&a, &b, ah);
	CHECK(ibv_destroy_ah(ah) == 0);
	source_index = 0;
	run_ip_command("addr del 192.0.2.77/24 dev near");
	wait_async_event(IBV_EVENT_GID_CHANGE);
	CHECK(find_gid_index("::ffff:192.0.2.77") < 0);
	run_ip_command("link set near down");
	wait_async_event(IBV_EVENT_PORT_ERR);
	CHECK(query_port_state() == IBV_PORT_DOWN);
	run_ip_command("link set near up");
	wait_async_event(IBV_EVENT_PORT_ACTIVE);
	CHECK(query_port_state() == IBV_PORT_ACTIVE);
	destroy_side(&a);
	destroy_side(&b);
}

/*
 * Checks that after the interface was deleted open objects can be closed, but no device can be
 * opened.
 */
static void check_interface_removal(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_gid_entry entry;
	struct side a;

	CHECK(list && strcmp(list[0]->name, "siw_near") == 0);
	select_device(&near);
	create_side(&a, IBV_QPT_UD, NULL);
	gid = query_gid_at_index(&near, 0);
	move_qp_to_rts(a.qp, 0);
	run_ip_command("link del near");
	wait_async_event(IBV_EVENT_PORT_ERR);
	wait_async_event(IBV_EVENT_GID_CHANGE);
	CHECK(query_port_state() == IBV_PORT_DOWN && find_gid_index("::ffff:192.0.2.1") < 0);
	CHECK(ibv_query_gid_ex(near.ctx, PORT, 0, &entry, 0) == ENODATA);
	CHECK(ibv_query_gid_table(near.ctx, &entry, 1, 0) == 0);
	CHECK(!ibv_open_device(list[0]) && errno == ENODEV);
	ibv_free_device_list(list);
	sge = sge_of_side(&a, 0, 8);
	wr.sg_list = &sge;
	/* ibv_post_send fails because the UD request has no address handle */
	CHECK(ibv_post_send(a.qp, &wr, &bad) == EINVAL && bad == &wr);
	destroy_side(&a);
}

int main(void)
{
	/* The command ip runs without the sanitizer that is preloaded into this program. */
	unsetenv("LD_PRELOAD");
	run_ip_command("link add near type veth peer name far");
	run_ip_command("link set far addrgenmode none");
	run_ip_command("link set far up");
	run_ip_command("link set near addrgenmode none");
	run_ip_command("link set lo up");
	run_ip_command("link set near up");
	run_ip_command("addr add 192.0.2.1/24 dev near");
	run_ip_command("addr add 2001:db8::1/64 dev near nodad");
	run_ip_command("addr add fe80::77/64 dev near nodad");
	check_device_list();
	CHECK(find_gid_index("2001:db8::1") == 1);
	for (int index = 0; index < 2; index++) {
		check_exchange_between_devices(&near, &near, IBV_QPT_RC, index);
		/*
		 * 127.0.0.1 and ::1 are reachable from another device, because they are addresses
		 * of this machine.
		 */
		check_exchange_between_devices(&near, &lo, IBV_QPT_RC, index);
		check_exchange_between_devices(&lo, &near, IBV_QPT_RC, index);
		check_exchange_between_devices(&near, &lo, IBV_QPT_UC, index);
		check_exchange_between_devices(&near, &lo, IBV_QPT_UD, index);
	}
	/* For a link-local address, the device determines the link. */
	CHECK(find_gid_index("fe80::77") > 0);
	check_exchange_between_devices(&near, &near, IBV_QPT_RC, find_gid_index("fe80::77"));
	check_exchange_between_devices(&near, &near, IBV_QPT_UC, find_gid_index("fe80::77"));
	check_exchange_between_devices(&near, &near, IBV_QPT_UD, find_gid_index("fe80::77"));
	check_ipv6_group();
	check_port_mtu();
	check_address_changes();
	check_interface_removal();
	CHECK(ibv_dealloc_pd(near.pd) == 0 && ibv_close_device(near.ctx) == 0);
	CHECK(ibv_dealloc_pd(lo.pd) == 0 && ibv_close_device(lo.ctx) == 0);
	return 0;
}
