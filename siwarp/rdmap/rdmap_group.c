/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_group.c - multicast groups: each member of a group gets a copy of a received
 * datagram.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/capture.h"
#include "base/list.h"
#include "rdmap/rdmap_impl.h"

struct member {
	struct siw_link link;
	struct siw_rdmap_dgram *dgram;
};

struct siw_rdmap_group {
	struct siw_ddp_dgram *ddp;
	struct siw_link members; /* list of members, in the order in which they joined */
	int n;
	/* The members below describe the message that is being delivered to the group. */
	struct siw_link *last; /* the last group member that got the message, or the list head */
	struct siw_ddp_seg seg;
	struct siw_addr source;
};

#define MEMBER(l) siw_container(l, struct member, link)

int siw_rdmap_mcast_group_open(struct siw_ddp_dgram *ddp, struct siw_rdmap_group **out)
{
	struct siw_rdmap_group *group = calloc(1, sizeof(*group));

	if (!group)
		return -ENOMEM;
	group->ddp = ddp;
	siw_link_init(&group->members);
	*out = group;
	return 0;
}

void siw_rdmap_mcast_group_close(struct siw_rdmap_group *group)
{
	siw_ddp_dgram_close(group->ddp);
	free(group);
}

static struct member *mcast_member_find(const struct siw_rdmap_group *group,
					const struct siw_rdmap_dgram *dgram)
{
	for (struct siw_link *l = group->members.next; l != &group->members; l = l->next)
		if (MEMBER(l)->dgram == dgram)
			return MEMBER(l);
	return NULL;
}

int siw_rdmap_mcast_group_attach(struct siw_rdmap_group *group, struct siw_rdmap_dgram *dgram)
{
	struct member *member;

	if (mcast_member_find(group, dgram))
		return -EEXIST;
	member = malloc(sizeof(*member));
	if (!member)
		return -ENOMEM;
	member->dgram = dgram;
	siw_link_add(&group->members, &member->link);
	group->n++;
	return 0;
}

int siw_rdmap_mcast_group_detach(struct siw_rdmap_group *group, const struct siw_rdmap_dgram *dgram)
{
	struct member *member = mcast_member_find(group, dgram);

	if (!member)
		return -ENOENT;
	siw_link_del(&member->link);
	free(member);
	return --group->n;
}

bool siw_rdmap_mcast_group_rx_datagram(struct siw_rdmap_group *group)
{
	group->last = &group->members;
	return siw_ddp_dgram_rx(group->ddp, &group->seg, &group->source);
}

/*
 * Returns how to handle the group's message for one member. A message that violates the protocol is
 * dropped, as a message with a wrong Q_Key is.
 */
static enum siw_rdmap_dgram_action mcast_member_check_message(const struct siw_rdmap_group *group,
							      const struct siw_rdmap_dgram *dgram)
{
	struct siw_wire_err unused;
	enum siw_rdmap_dgram_action verdict;

	if (!siw_ddp_dgram_crc_valid(group->ddp, dgram->ddp))
		return SIW_RDMAP_DROP;
	if (group->seg.tagged) { /* Write-Records are not sent to groups */
		siw_drop(SIW_COUNTER_drop_header);
		return SIW_RDMAP_DROP;
	}
	/* Members of a group have no indexes, and errors are not reported to a group. */
	if (SIW_RDMAP_DQN_DEST(group->seg.qn)) {
		siw_drop(SIW_COUNTER_drop_qn);
		return SIW_RDMAP_DROP;
	}
	verdict = siw_rdmap_dgram_check_segment(dgram, &group->seg, &unused);
	if (verdict == SIW_RDMAP_ERROR_MESSAGE)
		siw_drop(SIW_COUNTER_drop_qn);
	return verdict > SIW_RDMAP_TAKE_HEADED ? SIW_RDMAP_DROP : verdict;
}

/*
 * Delivers the group's message to one member, as part of
 * siw_rdmap_mcast_group_deliver_to_next_member(). Returns 1 and *event, or 0 if the member gets no
 * message.
 */
static int mcast_member_deliver(const struct siw_rdmap_group *group, struct siw_rdmap_dgram *dgram,
				struct siw_rdmap_event *event)
{
	enum siw_rdmap_dgram_action verdict;
	int r = -ENOBUFS;

	event->source = group->source;
	event->dest = siw_ddp_dgram_get_rx_dest_addr(group->ddp);
	event->user = dgram->user;
	if (!dgram->recvs) { /* the endpoint has no receive queue before RTR and in ERR */
		siw_drop(SIW_COUNTER_drop_no_buffer);
	} else {
		verdict = mcast_member_check_message(group, dgram);
		if (verdict == SIW_RDMAP_DROP)
			return 0;
		r = siw_rdmap_dgram_place(dgram, group->ddp, &group->seg, verdict, event);
	}
	if (r == -ENOBUFS) {
		siw_rdmap_count_dropped_message_of_source(&dgram->dropped, &group->source);
		return 0;
	}
	if (r < 0) {
		event->kind = SIW_RDMAP_BAD_RECV;
		event->status = r;
		return 1;
	}
	/*
	 * The message is added to the shared counters directly, because the traffic counts of a
	 * member's endpoint are published only by receives on its own socket.
	 */
	siw_count(SIW_COUNTER_rx_msgs, 1);
	siw_count(SIW_COUNTER_rx_octets, event->length);
	return 1;
}

int siw_rdmap_mcast_group_deliver_to_next_member(struct siw_rdmap_group *group,
						 struct siw_rdmap_event *event)
{
	while (group->last->next != &group->members) {
		group->last = group->last->next;
		if (mcast_member_deliver(group, MEMBER(group->last)->dgram, event))
			return 1;
	}
	return 0;
}
