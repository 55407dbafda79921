/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/rdmacm/rdmacm_mcast.c - multicast groups of an id. Joining an IP group needs no permission,
 * so the event of a join is queued immediately; the queue pair becomes a member when the program
 * gets the event.
 */
#include <stdlib.h>

#include "abi/rdmacm/rdmacm.h"

/*
 * A group that an id has joined. The list of groups is ordered from the oldest to the newest and
 * protected by cm_lock.
 */
struct cm_group {
	struct cm_group *next;
	struct siw_addr addr;
	union ibv_gid gid;
	void *context;
	bool send_only;
	bool join_reported; /* the program has received the event MULTICAST_JOIN of the group */
	struct ibv_qp *qp;  /* queue pair that the join has added to the group, or NULL */
};

/*
 * Removes a group from the list of an id and returns the group, or NULL if it is not in the list.
 * The caller holds cm_lock.
 */
static struct cm_group *cm_mcast_group_unlink(struct cm_id *id, const struct siw_addr *addr)
{
	for (struct cm_group **at = &id->groups; *at; at = &(*at)->next) {
		struct cm_group *group = *at;

		if (memcmp(&group->addr, addr, sizeof(*addr)) != 0)
			continue;
		*at = group->next;
		return group;
	}
	return NULL;
}

static void cm_mcast_group_leave(struct cm_group *group)
{
	if (group->qp)
		ibv_detach_mcast(group->qp, &group->gid, 0);
	free(group);
}

void cm_leave_all_groups(struct cm_id *id)
{
	struct cm_group *group;

	for (;;) {
		cm_lock();
		group = id->groups;
		id->groups = group ? group->next : NULL;
		cm_unlock();
		if (!group)
			return;
		cm_mcast_group_leave(group);
	}
}

bool cm_fill_join_event(struct cm_id *id, struct cm_event *event)
{
	struct rdma_ud_param *ud = &event->ev.param.ud;
	struct cm_group *group = id->groups;

	while (group && group->join_reported)
		group = group->next;
	if (!group) /* the program has left the group */
		return false;
	group->join_reported = true;
	event->ev.event = RDMA_CM_EVENT_MULTICAST_JOIN;
	if (id->id.qp && !group->send_only) {
		event->ev.status = -ibv_attach_mcast(id->id.qp, &group->gid, 0);
		if (event->ev.status)
			event->ev.event = RDMA_CM_EVENT_MULTICAST_ERROR;
		else
			group->qp = id->id.qp;
	}
	ud->private_data = group->context;
	cm_ud_fill_ah_attr(id, &group->gid, ud);
	ud->qp_num = 0xffffff;
	ud->qkey = SIW_CM_UD_QKEY;
	return true;
}

static int cm_mcast_addr_from_sockaddr(const struct sockaddr *from, struct siw_addr *addr)
{
	int why = cm_addr_from_sockaddr(from, addr);

	if (why)
		return why;
	/* The port is 0, because all multicast messages use one UDP port, which is a setting. */
	addr->port_be = 0;
	addr->scope = 0;
	return cm_addr_is_group(addr) ? 0
				      : abi_refuse(EINVAL, "the address is not a multicast "
							   "address: use an address in 224.0.0.0/4 "
							   "or ff00::/8");
}

static int cm_mcast_group_join(struct cm_id *id, const struct sockaddr *from, bool send_only,
			       void *context)
{
	struct cm_group *group, **at = &id->groups;
	struct siw_addr addr;
	int why = cm_mcast_addr_from_sockaddr(from, &addr);

	if (!why && (!cm_is_ud(id) || !id->id.verbs))
		why = abi_refuse(EINVAL, "the id has no device, or another port space than "
					 "RDMA_PS_UDP and RDMA_PS_IPOIB");
	group = why ? NULL : calloc(1, sizeof(*group));
	if (!group)
		return cm_fail(why ? why : ENOMEM);
	group->addr = addr;
	cm_gid_of_addr(&addr, &group->gid);
	group->context = context;
	group->send_only = send_only;
	cm_lock();
	while (*at)
		at = &(*at)->next;
	*at = group;
	cm_unlock();
	why = -siw_cm_tell(id->siw, RDMA_CM_EVENT_MULTICAST_JOIN, 0);
	if (!why)
		return cm_wait_for_result_if_synchronous(id);
	cm_lock();
	cm_mcast_group_unlink(id, &addr);
	cm_unlock();
	free(group);
	return cm_fail(why);
}

int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context)
{
	if (!cm_is_live_object(CM_ID, id))
		return cm_fail(EINVAL);
	return cm_mcast_group_join(cm_id_of(id), addr, false, context);
}

int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr,
			   void *context)
{
	uint32_t flags = RDMA_MC_JOIN_FLAG_FULLMEMBER;

	if (!cm_is_live_object(CM_ID, id))
		return cm_fail(EINVAL);
	if (!abi_is_given(attr, "mc_join_attr"))
		return cm_fail(EINVAL);
	if (!(attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS))
		return cm_fail(abi_refuse(EINVAL, "comp_mask lacks RDMA_CM_JOIN_MC_ATTR_ADDRESS: "
						  "set addr and this bit"));
	if (attr->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED)
		return cm_fail(abi_refuse(EOPNOTSUPP, "comp_mask %#x contains unknown bits",
					  attr->comp_mask));
	if (attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS)
		flags = attr->join_flags;
	if (flags >= RDMA_MC_JOIN_FLAG_RESERVED)
		return cm_fail(
			abi_refuse(EOPNOTSUPP, "join_flags %#x contains unknown bits", flags));
	return cm_mcast_group_join(cm_id_of(id), attr->addr,
				   flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, context);
}

int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *addr)
{
	struct cm_group *group;
	struct siw_addr which;
	int why;

	if (!cm_is_live_object(CM_ID, id))
		return cm_fail(EINVAL);
	why = cm_mcast_addr_from_sockaddr(addr, &which);
	if (why)
		return cm_fail(why);
	cm_lock();
	group = cm_mcast_group_unlink(cm_id_of(id), &which);
	cm_unlock();
	if (!group)
		return cm_fail(abi_refuse(EADDRNOTAVAIL,
					  "the id is not a member of the group: leave only groups "
					  "that it has joined"));
	cm_mcast_group_leave(group);
	return 0;
}
