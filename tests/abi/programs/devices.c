/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Two devices: an interface "near" and loopback, in a private network namespace. The interface
 * gains and loses addresses, goes down and up, and is deleted.
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

static void ip(const char *what)
{
	char command[200];

	snprintf(command, sizeof(command), "ip %s", what);
	CHECK(system(command) == 0);
}

static void device_use(const struct device *device)
{
	ctx = device->ctx;
	pd = device->pd;
}

static struct device opened(struct ibv_device *of)
{
	struct device device = { .ctx = ibv_open_device(of) };

	CHECK(device.ctx);
	device.pd = ibv_alloc_pd(device.ctx);
	CHECK(device.pd && fcntl(device.ctx->async_fd, F_SETFL, O_NONBLOCK) == 0);
	return device;
}

static void devices(void)
{
	struct ibv_device **list;
	int n;

	list = ibv_get_device_list(&n);
	CHECK(list && n == 2 && !list[2]);
	/* Programs use the first device of the list, so it must not be loopback. */
	CHECK(strcmp(ibv_get_device_name(list[0]), "siw_near") == 0);
	CHECK(strcmp(ibv_get_device_name(list[1]), "siw_lo") == 0);
	CHECK(ibv_get_device_guid(list[0]) && ibv_get_device_guid(list[1]));
	CHECK(ibv_get_device_guid(list[0]) != ibv_get_device_guid(list[1]));
	CHECK(ibv_get_device_index(list[0]) != ibv_get_device_index(list[1]));
	near = opened(list[0]);
	lo = opened(list[1]);
	/* An open device stays valid after its list was freed. */
	ibv_free_device_list(list);
	CHECK(strcmp(near.ctx->device->name, "siw_near") == 0);
	CHECK(strcmp(ibv_get_device_name(lo.ctx->device), "siw_lo") == 0);
}

static union ibv_gid gid_of(const struct device *device, int index)
{
	union ibv_gid one;

	CHECK(ibv_query_gid(device->ctx, PORT, index, &one) == 0);
	return one;
}

/* Compares a GID with an address, such as 127.0.0.1 or ::1, in its textual form. */
static bool gid_is(const union ibv_gid *one, const char *text)
{
	char own[INET6_ADDRSTRLEN];

	return inet_ntop(AF_INET6, one->raw, own, sizeof(own)) && strcmp(own, text) == 0;
}

static void send_both_ways(struct side *from, struct side *to, struct ibv_ah *ah)
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
	next_success(from->cq);
	CHECK(next_success(to->cq).byte_len == before + 5);
	CHECK(memcmp(to->buf + before, "hello", 5) == 0);
}

/*
 * One queue pair on each device, connected to each other; messages in both directions, for UD with
 * an address handle.
 */
static void exchange_between(const struct device *first, const struct device *second,
			     enum ibv_qp_type type, int index)
{
	union ibv_gid gids[2] = { gid_of(first, index), gid_of(second, index) };
	struct ibv_ah *ahs[2] = { NULL, NULL };
	struct side a, b;

	device_use(first);
	make_side(&a, type, NULL);
	device_use(second);
	make_side(&b, type, NULL);
	source_index = (uint8_t)index;
	gid = gids[1];
	to_rts(a.qp, b.qp->qp_num);
	if (type == IBV_QPT_UD) {
		struct ibv_ah_attr attr = to_self();

		ahs[0] = ibv_create_ah(first->pd, &attr);
		CHECK(ahs[0]);
	}
	gid = gids[0];
	to_rts(b.qp, a.qp->qp_num);
	if (type == IBV_QPT_UD) {
		struct ibv_ah_attr attr = to_self();

		ahs[1] = ibv_create_ah(second->pd, &attr);
		CHECK(ahs[1]);
	}
	send_both_ways(&a, &b, ahs[0]);
	send_both_ways(&b, &a, ahs[1]);
	for (int i = 0; i < 2; i++)
		CHECK(!ahs[i] || ibv_destroy_ah(ahs[i]) == 0);
	end_side(&a);
	end_side(&b);
	source_index = 0;
}

/* An IPv6 group: a member receives the message with a GRH that names the group and the sender. */
static void group(void)
{
	union ibv_gid own = gid_of(&near, 1), mgid = { .raw = { 0xff, 0x05, [15] = 0x42 } };
	struct ibv_ah_attr attr, back;
	struct ibv_wc wc;
	struct ibv_grh *grh;
	struct side a, b;
	struct ibv_ah *ah;

	device_use(&near);
	make_side(&a, IBV_QPT_UD, NULL);
	make_side(&b, IBV_QPT_UD, NULL);
	to_rts(a.qp, 0);
	to_rts(b.qp, 0);
	CHECK(ibv_attach_mcast(b.qp, &mgid, 0) == 0 && ibv_attach_mcast(b.qp, &mgid, 0) == 0);
	CHECK(ibv_destroy_qp(b.qp) == EBUSY);
	gid = mgid;
	source_index = 1;
	attr = to_self();
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
	next_success(a.cq);
	wc = next_success(b.cq);
	grh = (struct ibv_grh *)b.buf;
	CHECK(wc.wc_flags & IBV_WC_GRH && wc.sl == 9 && wc.src_qp == a.qp->qp_num);
	CHECK(memcmp(&grh->dgid, &mgid, 16) == 0 && memcmp(&grh->sgid, &own, 16) == 0);
	CHECK(memcmp(b.buf + GRH, "group", 5) == 0);
	CHECK(ibv_init_ah_from_wc(ctx, PORT, &wc, grh, &back) == 0);
	CHECK(memcmp(&back.grh.dgid, &own, 16) == 0);
	CHECK(gid_of(&near, back.grh.sgid_index).raw[0] != 0);
	/* A message to the group arrives once, although the queue pair was attached twice. */
	CHECK(ibv_poll_cq(b.cq, 1, &wc) == 0);
	CHECK(ibv_detach_mcast(b.qp, &mgid, 0) == 0 && ibv_destroy_ah(ah) == 0);
	source_index = 0;
	end_side(&a);
	end_side(&b);
}

/* Reads events until the wanted one arrives. */
static void await(enum ibv_event_type wanted)
{
	struct pollfd fd = { near.ctx->async_fd, POLLIN, 0 };
	struct ibv_async_event event;
	double end = now() + SECONDS;

	do {
		CHECK(now() < end && poll(&fd, 1, SECONDS * 1000) == 1);
		CHECK(ibv_get_async_event(near.ctx, &event) == 0 && event.element.port_num == PORT);
		ibv_ack_async_event(&event);
	} while (event.event_type != wanted);
}

static enum ibv_port_state state(void)
{
	struct ibv_port_attr attr;

	CHECK(ibv_query_port(near.ctx, PORT, &attr) == 0);
	return attr.state;
}

/* The port reports the largest MTU of verbs that fits the interface's MTU, while that changes. */
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
		double end = now() + SECONDS;

		snprintf(command, sizeof(command), "link set near mtu %s", each[i].octets);
		ip(command);
		do {
			CHECK(now() < end);
			CHECK(ibv_query_port(near.ctx, PORT, &attr) == 0);
		} while (attr.active_mtu != each[i].mtu);
		CHECK(attr.max_mtu == IBV_MTU_4096);
		/* A veth interface reports 10 Gb/s: one lane of that speed. */
		CHECK(attr.active_width == 1 && attr.active_speed == 4);
	}
}

/* Returns the index of the address in the GID table, or -1. */
static int index_of(const char *text)
{
	struct ibv_gid_entry table[16];
	ssize_t n = ibv_query_gid_table(near.ctx, table, 16, 0);

	CHECK(n >= 0);
	for (ssize_t i = 0; i < n; i++)
		if (gid_is(&table[i].gid, text))
			return (int)table[i].gid_index;
	return -1;
}

static void check_address_changes(void)
{
	struct ibv_ah_attr attr;
	struct ibv_ah *ah;
	struct side a, b;

	device_use(&near);
	make_side(&a, IBV_QPT_UD, NULL);
	make_side(&b, IBV_QPT_UD, NULL);
	to_rts(a.qp, 0);
	to_rts(b.qp, 0);
	/* Existing queue pairs are reachable at an address that is added later. */
	ip("addr add 192.0.2.77/24 dev near");
	await(IBV_EVENT_GID_CHANGE);
	CHECK(index_of("::ffff:192.0.2.77") > 0);
	gid = gid_of(&near, index_of("::ffff:192.0.2.77"));
	source_index = (uint8_t)index_of("::ffff:192.0.2.77");
	attr = to_self();
	ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	send_both_ways(&a, &b, ah);
	CHECK(ibv_destroy_ah(ah) == 0);
	source_index = 0;
	ip("addr del 192.0.2.77/24 dev near");
	await(IBV_EVENT_GID_CHANGE);
	CHECK(index_of("::ffff:192.0.2.77") < 0);
	ip("link set near down");
	await(IBV_EVENT_PORT_ERR);
	CHECK(state() == IBV_PORT_DOWN);
	ip("link set near up");
	await(IBV_EVENT_PORT_ACTIVE);
	CHECK(state() == IBV_PORT_ACTIVE);
	end_side(&a);
	end_side(&b);
}

/* The interface is deleted: open objects can be closed, and nothing new can be opened. */
static void removal(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_gid_entry entry;
	struct side a;

	CHECK(list && strcmp(list[0]->name, "siw_near") == 0);
	device_use(&near);
	make_side(&a, IBV_QPT_UD, NULL);
	gid = gid_of(&near, 0);
	to_rts(a.qp, 0);
	ip("link del near");
	await(IBV_EVENT_PORT_ERR);
	await(IBV_EVENT_GID_CHANGE);
	CHECK(state() == IBV_PORT_DOWN && index_of("::ffff:192.0.2.1") < 0);
	CHECK(ibv_query_gid_ex(near.ctx, PORT, 0, &entry, 0) == ENODATA);
	CHECK(ibv_query_gid_table(near.ctx, &entry, 1, 0) == 0);
	CHECK(!ibv_open_device(list[0]) && errno == ENODEV);
	ibv_free_device_list(list);
	sge = sge_of_side(&a, 0, 8);
	wr.sg_list = &sge;
	/* ibv_post_send fails: the UD request has no address handle */
	CHECK(ibv_post_send(a.qp, &wr, &bad) == EINVAL && bad == &wr);
	end_side(&a);
}

int main(void)
{
	/* A preloaded sanitizer is meant for this program, not for ip. */
	unsetenv("LD_PRELOAD");
	ip("link add near type veth peer name far");
	ip("link set far addrgenmode none");
	ip("link set far up");
	ip("link set near addrgenmode none");
	ip("link set lo up");
	ip("link set near up");
	ip("addr add 192.0.2.1/24 dev near");
	ip("addr add 2001:db8::1/64 dev near nodad");
	ip("addr add fe80::77/64 dev near nodad");
	devices();
	CHECK(index_of("2001:db8::1") == 1);
	for (int index = 0; index < 2; index++) {
		exchange_between(&near, &near, IBV_QPT_RC, index);
		/*
		 * 127.0.0.1 and ::1 are reachable from another device: they belong to this machine.
		 */
		exchange_between(&near, &lo, IBV_QPT_RC, index);
		exchange_between(&lo, &near, IBV_QPT_RC, index);
		exchange_between(&near, &lo, IBV_QPT_UC, index);
		exchange_between(&near, &lo, IBV_QPT_UD, index);
	}
	/* A link-local address: the device determines the link. */
	CHECK(index_of("fe80::77") > 0);
	exchange_between(&near, &near, IBV_QPT_RC, index_of("fe80::77"));
	exchange_between(&near, &near, IBV_QPT_UC, index_of("fe80::77"));
	exchange_between(&near, &near, IBV_QPT_UD, index_of("fe80::77"));
	group();
	check_port_mtu();
	check_address_changes();
	removal();
	CHECK(ibv_dealloc_pd(near.pd) == 0 && ibv_close_device(near.ctx) == 0);
	CHECK(ibv_dealloc_pd(lo.pd) == 0 && ibv_close_device(lo.ctx) == 0);
	return 0;
}
