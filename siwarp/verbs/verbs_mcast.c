/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Multicast: the groups that UD queue pairs of a device are members of. Each has a socket of its own,
 * which carries nothing else; what comes there is given to every member, each with its own receive.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "verbs/verbs_impl.h"

_Static_assert(SIW_MCAST_PORT == 62607, "the default of setting mcast_port");

/* Of ctx->groups. It goes with its last member. */
struct siw_group {
	struct siw_pollee pollee; /* first */
	struct siw_link link;
	struct siw_addr addr; /* port and scope 0 */
	struct siw_rdmap_group *rdmap;
	int burst;
};

static void deliver(const struct siw_rdmap_event *ev)
{
	struct siw_qp *qp = siw_container(ev->token, struct siw_qp, pollee);

	siw_verbs_ud_received(qp, ev);
	if (qp->srq)
		siw_verbs_srq_taken(qp->srq);
}

static int serve(struct siw_pollee *self)
{
	struct siw_group *group = siw_container(self, struct siw_group, pollee);
	int n, max = (int)siw_settings()->budget;
	struct siw_rdmap_event ev;
	uint64_t octets = 0;

	for (n = 0;
	     n < group->burst && octets < SIW_TURN_OCTETS && siw_rdmap_group_next(group->rdmap);
	     n++) {
		/* A message is given out whole: it lies where the next one will. */
		while (siw_rdmap_group_copy(group->rdmap, &ev)) {
			deliver(&ev);
			octets += ev.length;
		}
	}
	group->burst = n < group->burst ? 1 : group->burst * 2 < max ? group->burst * 2 : max;
	return n;
}

static struct siw_group *find(struct siw_context *ctx, const struct siw_addr *addr)
{
	for (struct siw_link *l = ctx->groups.next; l != &ctx->groups; l = l->next) {
		struct siw_group *group = siw_container(l, struct siw_group, link);

		if (siw_addr_same(&group->addr, addr))
			return group;
	}
	return NULL;
}

static int make(struct siw_context *ctx, const struct siw_addr *addr, struct siw_group **out)
{
	struct siw_group *group = calloc(1, sizeof(*group));
	struct siw_addr bound = *addr;
	int err;

	if (!group)
		return -ENOMEM;
	group->pollee.serve = serve;
	group->addr = *addr;
	group->burst = 1;
	bound.port_be = htons((uint16_t)siw_settings()->mcast_port);
	err = siw_rdmap_group_open(ctx->port, &bound, ctx->info.netdev, group, &group->rdmap);
	if (err) {
		free(group);
		return err;
	}
	siw_link_add(&ctx->groups, &group->link);
	*out = group;
	return 0;
}

static void unmake(struct siw_group *group)
{
	siw_link_del(&group->link);
	siw_rdmap_group_close(group->rdmap);
	free(group);
}

/* progress held. */
static int attach(struct siw_qp *qp, const struct siw_addr *addr)
{
	struct siw_group *group = find(qp->ctx, addr);
	struct siw_addr own;
	bool fresh = !group;
	int err = -EINVAL;

	if (!qp->dgram || siw_rdmap_dgram_addr(qp->dgram, &own) || own.family != addr->family)
		return err;
	err = fresh ? make(qp->ctx, addr, &group) : 0;
	if (err)
		return err;
	err = siw_rdmap_group_attach(group->rdmap, qp->dgram);
	if (err && fresh)
		unmake(group);
	if (err == -EEXIST)
		return 0;
	qp->n_groups += !err;
	siw_verbs_err_policy(qp);
	return err;
}

/* progress held. */
static int detach(struct siw_qp *qp, const struct siw_addr *addr)
{
	struct siw_group *group = find(qp->ctx, addr);
	int left = group && qp->dgram ? siw_rdmap_group_detach(group->rdmap, qp->dgram) : -ENOENT;

	if (left < 0)
		return -EINVAL;
	qp->n_groups--;
	siw_verbs_err_policy(qp);
	if (!left)
		unmake(group);
	return 0;
}

static int change(struct siw_qp *qp, const struct siw_addr *addr,
		  int (*how)(struct siw_qp *qp, const struct siw_addr *addr))
{
	struct siw_addr key;
	int err = -EINVAL;

	if (!qp)
		return err;
	if (siw_verbs_inherited(qp->ctx))
		return -ESTALE;
	if (!addr || !siw_addr_is_group(addr))
		return err;
	key = *addr;
	key.port_be = 0;
	key.scope = 0;
	siw_lock(&qp->ctx->progress);
	if (!qp->dead && qp->type == SIW_QPT_UD)
		err = how(qp, &key);
	siw_unlock(&qp->ctx->progress);
	return err;
}

int siw_attach_mcast(struct siw_qp *qp, const struct siw_addr *group)
{
	return change(qp, group, attach);
}

int siw_detach_mcast(struct siw_qp *qp, const struct siw_addr *group)
{
	return change(qp, group, detach);
}

int siw_verbs_mcast_sender(struct siw_qp *qp)
{
	int err = siw_rdmap_dgram_group_sender(qp->dgram, qp->ctx->info.netdev,
					       (int)siw_settings()->mcast_ttl);

	qp->sends_to_groups = !err;
	return err;
}
