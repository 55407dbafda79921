/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Multicast groups of a device's UD queue pairs. Each group has a socket that receives only the
 * group's messages; each message is delivered to every member, into a receive of the member.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "qp/qp_impl.h"

_Static_assert(SIW_MCAST_PORT == 62607, "SIW_MCAST_PORT is the default of setting mcast_port");

/*
 * A multicast group, in the list of groups of its lane. The detach of the last member frees the
 * group.
 */
struct siw_group {
	struct siw_io_handler handler; /* must be the first member of the struct */
	struct siw_link link;
	struct siw_addr addr; /* group address, with port and scope 0 */
	struct siw_llp_poller *poller;
	struct siw_llp_sock *sock;
	struct siw_rdmap_group *rdmap;
	int burst;
};

static void mcast_group_add_recv_completion(const struct siw_rdmap_event *ev)
{
	struct siw_ud_qp *ud = ev->user;

	siw_qp_ud_add_recv_completion(ud, ev);
	if (ud->base.qp.srq)
		siw_device_srq_raise_limit_event_if_low(ud->base.qp.srq);
}

static int mcast_group_handle_socket_event(struct siw_io_handler *self)
{
	struct siw_group *group = siw_container(self, struct siw_group, handler);
	int n, max = (int)siw_settings()->budget;
	struct siw_rdmap_event ev = { 0 };
	uint64_t octets = 0;

	for (n = 0; ((n < group->burst && octets < SIW_TURN_OCTETS) ||
		     siw_llp_poller_has_more_datagrams(group->poller)) &&
		    siw_rdmap_mcast_group_rx_datagram(group->rdmap);
	     n++) {
		/*
		 * A message is delivered to all members before the next message is received into
		 * the same buffer.
		 */
		while (siw_rdmap_mcast_group_deliver_to_next_member(group->rdmap, &ev)) {
			mcast_group_add_recv_completion(&ev);
			octets += ev.length;
		}
	}
	group->burst = n < group->burst ? 1 : group->burst * 2 < max ? group->burst * 2 : max;
	return n;
}

static struct siw_group *mcast_group_find(struct siw_lane *lane, const struct siw_addr *addr)
{
	for (struct siw_link *l = lane->groups.next; l != &lane->groups; l = l->next) {
		struct siw_group *group = siw_container(l, struct siw_group, link);

		if (siw_addr_same(&group->addr, addr))
			return group;
	}
	return NULL;
}

/* Opens the DDP and RDMAP endpoint that receives on the group's socket. */
static int mcast_group_open_rdmap_endpoint(struct siw_lane *lane, struct siw_group *group)
{
	struct siw_ddp_dgram *ddp;
	int err;

	group->poller = lane->poller;
	err = siw_ddp_dgram_open(lane->poller, lane->ctx->mem, group->sock, false, &ddp);

	if (err)
		return err;
	err = siw_rdmap_mcast_group_open(ddp, &group->rdmap);
	if (err)
		siw_ddp_dgram_close(ddp);
	return err;
}

static int mcast_group_create(struct siw_lane *lane, const struct siw_addr *addr,
			      struct siw_group **out)
{
	struct siw_group *group = calloc(1, sizeof(*group));
	struct siw_addr bound = *addr;
	int err;

	if (!group)
		return -ENOMEM;
	group->handler.serve = mcast_group_handle_socket_event;
	group->addr = *addr;
	group->burst = 1;
	bound.port_be = htons((uint16_t)siw_settings()->mcast_port);
	err = siw_llp_udp_open_group_member(lane->poller, &bound, lane->ctx->info.netdev,
					    &group->handler, &group->sock);
	if (err)
		goto free_group;
	err = mcast_group_open_rdmap_endpoint(lane, group);
	if (err)
		goto close_sock;
	siw_link_add(&lane->groups, &group->link);
	*out = group;
	return 0;

close_sock:
	siw_llp_close(group->sock);
free_group:
	free(group);
	return err;
}

static void mcast_group_destroy(struct siw_group *group)
{
	siw_link_del(&group->link);
	siw_rdmap_mcast_group_close(group->rdmap);
	siw_llp_close(group->sock);
	free(group);
}

/* The progress lock is held. */
static int mcast_group_attach_qp(struct siw_ud_qp *ud, const struct siw_addr *addr)
{
	struct siw_group *group = mcast_group_find(ud->base.qp.lane, addr);
	struct siw_addr any = { 0 }, own;
	bool fresh = !group;
	int err;

	if (!ud->dgram || siw_llp_local_addr(ud->sock, &own))
		return siw_refuse(DESTROYED);
	if (own.family != addr->family &&
	    !(ud->socks && siw_addr_socks_find(ud->socks, addr, &any)))
		return siw_refuse(MCAST_FAMILY,
				  siw_reason_text(own.family == AF_INET ? "IPv4" : "IPv6"));
	err = fresh ? mcast_group_create(ud->base.qp.lane, addr, &group) : 0;
	if (err)
		return err == -EADDRINUSE ? siw_refuse(MCAST_PORT) : err;
	err = siw_rdmap_mcast_group_attach(group->rdmap, ud->dgram);
	if (err && fresh)
		mcast_group_destroy(group);
	if (err == -EEXIST)
		return 0;
	ud->n_groups += !err;
	siw_qp_err_update_policy(&ud->base, ud->n_groups);
	return err;
}

/* The progress lock is held. */
static int mcast_group_detach_qp(struct siw_ud_qp *ud, const struct siw_addr *addr)
{
	struct siw_group *group = mcast_group_find(ud->base.qp.lane, addr);
	int left = group && ud->dgram ? siw_rdmap_mcast_group_detach(group->rdmap, ud->dgram)
				      : -ENOENT;

	if (left < 0)
		return siw_refuse(MCAST_MEMBER);
	ud->n_groups--;
	siw_qp_err_update_policy(&ud->base, ud->n_groups);
	if (!left)
		mcast_group_destroy(group);
	return 0;
}

void siw_qp_leave_mcast_groups(struct siw_ud_qp *ud)
{
	struct siw_lane *lane = ud->base.qp.lane;
	struct siw_link *l, *next;

	for (l = lane->groups.next; ud->n_groups && l != &lane->groups; l = next) {
		struct siw_group *group = siw_container(l, struct siw_group, link);
		struct siw_addr addr = group->addr;

		next = l->next;
		mcast_group_detach_qp(ud, &addr);
	}
}

static int mcast_group_attach_or_detach(struct siw_qp *qp, const struct siw_addr *addr,
					int (*how)(struct siw_ud_qp *ud,
						   const struct siw_addr *addr))
{
	struct siw_addr key;
	int err = siw_qp_check_usable(qp);

	if (err)
		return err;
	if (!addr)
		return siw_refuse_null("group");
	if (siw_class_of(siw_base_qp_of(qp)) != &siw_qp_ud_class)
		return siw_refuse_type("a group", "UD", siw_class_of(siw_base_qp_of(qp))->type);
	if (!siw_addr_is_group(addr))
		return siw_refuse(MCAST_ADDRESS);
	key = *addr;
	key.port_be = 0;
	key.scope = 0;
	siw_lock(&qp->lane->lock);
	err = siw_teardown_of(siw_base_qp_of(qp)) == SIW_DEAD
		      ? siw_refuse(DESTROYED)
		      : how(siw_ud_qp_of(siw_base_qp_of(qp)), &key);
	siw_unlock(&qp->lane->lock);
	return siw_refused(err);
}

int siw_attach_mcast(struct siw_qp *qp, const struct siw_addr *group)
{
	return mcast_group_attach_or_detach(qp, group, mcast_group_attach_qp);
}

int siw_detach_mcast(struct siw_qp *qp, const struct siw_addr *group)
{
	return mcast_group_attach_or_detach(qp, group, mcast_group_detach_qp);
}
