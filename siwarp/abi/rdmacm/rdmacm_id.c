/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/rdmacm/rdmacm_id.c - ids: creation, migration, binding, resolution, destruction; and
 * endpoints.
 */
#include <stdlib.h>
#include <sys/socket.h>

#include "abi/rdmacm/rdmacm.h"

#define HOPS	   64
#define RESOLVE_MS 2000 /* time-outs of rdma_create_ep; no resolution takes that long */

static struct cm_channel *cm_channel_of_id(const struct cm_id *id)
{
	return (struct cm_channel *)id->id.channel;
}

static struct cm_id *cm_id_create(struct rdma_event_channel *ev, void *context,
				  enum rdma_port_space ps)
{
	struct cm_id *id = calloc(1, sizeof(*id));
	int why = ENOMEM;

	if (!id)
		return NULL;
	id->id.channel = ev;
	id->id.context = context;
	id->id.ps = ps;
	id->id.qp_type = cm_is_ud(id) ? IBV_QPT_UD : IBV_QPT_RC;
	id->foreign_device = cm_fake_device_data;
	id->siw = cm_is_ud(id) ? siw_cm_create_ud_id(cm_channel_of_id(id)->siw, id)
			       : siw_cm_create_id(cm_channel_of_id(id)->siw, id);
	if (id->siw) {
		if (cm_register_object(&id->object, CM_ID, id))
			return id;
		siw_cm_destroy_id(id->siw);
	} else {
		why = errno;
	}
	free(id);
	return abi_fail_null(why);
}

static void cm_id_set_device(struct cm_id *id, struct ibv_context *verbs)
{
	id->id.verbs = verbs;
	id->id.port_num = ABI_PORT;
	id->id.pd = id->id.pd ? id->id.pd : cm_default_pd(verbs);
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *context,
		   enum rdma_port_space ps)
{
	struct rdma_event_channel *own = NULL;
	struct cm_id *id;

	if (!abi_is_given(out, "id") || (channel && !cm_is_live_object(CM_CHANNEL, channel)))
		return cm_fail(EINVAL);
	/* RDMA_PS_IB is for native InfiniBand addresses. */
	if (ps != RDMA_PS_TCP && ps != RDMA_PS_UDP && ps != RDMA_PS_IPOIB)
		return cm_fail(abi_refuse(ps == RDMA_PS_IB ? EOPNOTSUPP : EPROTONOSUPPORT,
					  "the port space is %#x: use RDMA_PS_TCP, RDMA_PS_UDP or "
					  "RDMA_PS_IPOIB",
					  (unsigned int)ps));
	if (!channel) {
		channel = own = rdma_create_event_channel();
		if (!own)
			return -1;
	}
	id = cm_id_create(channel, context, ps);
	if (!id) {
		int why = errno;

		rdma_destroy_event_channel(own);
		return cm_outcome(why);
	}
	id->own = (struct cm_channel *)own;
	*out = &id->id;
	return 0;
}

void cm_id_set_device_from_engine_id(struct cm_id *id)
{
	struct ibv_context *verbs = cm_device_of_engine_context(siw_cm_device(id->siw));

	if (verbs && !id->id.verbs)
		cm_id_set_device(id, verbs);
}

struct cm_id *cm_id_create_for_request(struct cm_id *listener, struct siw_cm_id *siw)
{
	struct cm_id *id = calloc(1, sizeof(*id));
	struct siw_addr local, peer;

	if (!id)
		return NULL;
	id->id.channel = listener->id.channel;
	id->id.context = listener->id.context;
	id->id.ps = listener->id.ps;
	id->id.qp_type = listener->id.qp_type;
	id->foreign_device = cm_fake_device_data;
	id->tos = listener->tos;
	id->siw = siw;
	id->unanswered = id->bound = true;
	if (!cm_register_object_locked(&id->object, CM_ID, id)) {
		free(id);
		return NULL;
	}
	siw_cm_set_context(siw, id);
	if (siw_cm_addr(siw, &local, &peer) == 0)
		cm_set_route_addrs(id, &local, &peer);
	return id;
}

void cm_ack_pending_event(struct cm_id *id)
{
	if (id->id.event)
		rdma_ack_cm_event(id->id.event);
	id->id.event = NULL;
}

int rdma_destroy_id(struct rdma_cm_id *rdma_id)
{
	struct cm_id *id = cm_id_of(rdma_id);
	struct rdma_event_channel *own;

	if (!cm_is_live_object(CM_ID, rdma_id))
		return cm_fail(EINVAL);
	/*
	 * If the device was closed, the engine's id has already ended, and siw_cm_destroy_id fails
	 * harmlessly.
	 */
	siw_cm_destroy_id(id->siw);
	cm_destroy_substitute_qp(id);
	cm_leave_all_groups(id);
	cm_ack_pending_event(id);
	cm_wait_until_events_acknowledged(id);
	cm_mark_object_dead(&id->object);
	own = (struct rdma_event_channel *)id->own;
	cm_free_user_event_args(id);
	rdma_freeaddrinfo(id->info);
	free(id->ep_attr);
	free(id);
	if (own)
		rdma_destroy_event_channel(own);
	return 0;
}

int rdma_migrate_id(struct rdma_cm_id *rdma_id, struct rdma_event_channel *channel)
{
	struct cm_id *id = cm_id_of(rdma_id);
	struct rdma_event_channel *own = NULL, *old;
	int r;

	if (!cm_is_live_object(CM_ID, rdma_id) ||
	    (channel && !cm_is_live_object(CM_CHANNEL, channel)))
		return cm_fail(EINVAL);
	if (!channel) {
		if (id->own)
			return 0;
		channel = own = rdma_create_event_channel();
		if (!own)
			return -1;
	}
	r = siw_cm_migrate_id(id->siw, ((struct cm_channel *)channel)->siw);
	if (r < 0) {
		rdma_destroy_event_channel(own);
		return cm_fail(-r);
	}
	cm_ack_pending_event(id);
	/* A thread that got an event from the old channel may still read the member id.channel. */
	cm_wait_until_events_acknowledged(id);
	old = (struct rdma_event_channel *)id->own;
	id->own = (struct cm_channel *)own;
	id->id.channel = channel;
	if (old)
		rdma_destroy_event_channel(old);
	return 0;
}

int cm_wait_for_result_if_synchronous(struct cm_id *id)
{
	struct rdma_cm_event *event;
	int status;

	if (!id->own)
		return 0;
	cm_ack_pending_event(id);
	if (rdma_get_cm_event(id->id.channel, &event))
		return -1;
	id->id.event = event;
	status = event->status;
	if (event->event == RDMA_CM_EVENT_REJECTED)
		status = -ECONNREFUSED;
	if (event->event == RDMA_CM_EVENT_UNREACHABLE && status > 0)
		/* a positive status is a rejection of a UD connection request */
		status = -ECONNREFUSED;
	return status ? cm_outcome(abs(status)) : 0;
}

/* ---- addresses ------------------------------------------------------------------------------- */

/* Binds an id to an address of this machine, or only to a port. Returns 0 or an errno value. */
static int cm_id_bind(struct cm_id *id, const struct siw_addr *addr)
{
	struct siw_addr own = *addr, peer;
	struct ibv_context *verbs = NULL;
	int r;

	if (!cm_addr_is_any(addr)) {
		verbs = cm_device_of_addr(addr);
		if (!verbs)
			return errno;
		r = siw_cm_set_device(id->siw, siw_ibv_context(verbs));
		if (r < 0)
			return -r;
	}
	r = siw_cm_bind_addr(id->siw, addr);
	if (r == 0)
		r = siw_cm_addr(id->siw, &own, &peer);
	if (r < 0)
		return -r;
	id->bound = true;
	id->any = !verbs;
	if (verbs)
		cm_id_set_device(id, verbs);
	cm_set_route_addrs(id, &own, NULL);
	return 0;
}

int rdma_bind_addr(struct rdma_cm_id *rdma_id, struct sockaddr *addr)
{
	struct cm_id *id = cm_id_of(rdma_id);
	struct siw_addr own;
	int why;

	if (!cm_is_live_object(CM_ID, rdma_id))
		return cm_fail(EINVAL);
	if (id->bound || id->id.verbs)
		return cm_fail(abi_refuse(EINVAL, "the id is bound to an address already"));
	why = cm_addr_from_sockaddr(addr, &own);
	if (!why)
		why = cm_id_bind(id, &own);
	return why ? cm_fail(why) : 0;
}

#define OTHER_FAMILY "source and destination have different address families"

/*
 * Determines the source address of an id's connection, and the id's device. Returns 0 or an errno
 * value.
 */
static int cm_id_select_source(struct cm_id *id, const struct siw_addr *dest)
{
	struct siw_addr own = *cm_source_addr(id), found;
	struct ibv_context *verbs;
	int why;

	if (id->id.verbs)
		return own.family == dest->family || cm_addr_is_group(dest)
			       ? 0
			       : abi_refuse(EINVAL, OTHER_FAMILY);
	why = -siw_source_address(dest, &found);
	if (why)
		return why;
	found.port_be = id->bound ? own.port_be : 0;
	if (!id->bound && !cm_is_ud(id))
		return cm_id_bind(id, &found);
	verbs = cm_device_of_addr(&found);
	if (!verbs)
		return errno;
	why = -siw_cm_set_device(id->siw, siw_ibv_context(verbs));
	if (why)
		return why;
	cm_id_set_device(id, verbs);
	cm_set_route_addrs(id, &found, NULL);
	return 0;
}

/*
 * Returns whether an error means that the destination is unreachable, which an event reports
 * instead of the call.
 */
static bool is_errno_of_unreachable_destination(int why)
{
	return why == ENETUNREACH || why == EHOSTUNREACH || why == ENODEV || why == EACCES ||
	       why == EADDRNOTAVAIL;
}

static int cm_id_resolve_addr(struct cm_id *id, struct sockaddr *src, struct sockaddr *dst)
{
	struct siw_addr dest, source;
	int why = cm_addr_from_sockaddr(dst, &dest);

	if (why)
		return why;
	if (cm_addr_is_any(&dest))
		return abi_refuse(EINVAL, "the destination is a wildcard address: pass the address "
					  "of the peer");
	if (id->unanswered || id->listening || id->resolved)
		return abi_refuse(
			EINVAL, "the id is listening, is of a connection request, or has resolved "
				"an address already: use a new id");
	if (src && !id->bound) {
		why = cm_addr_from_sockaddr(src, &source);
		if (!why && source.family != dest.family && !cm_addr_is_group(&dest))
			why = abi_refuse(EINVAL, OTHER_FAMILY);
		if (!why && !(cm_addr_is_any(&source) && !source.port_be))
			why = cm_id_bind(id, &source);
		if (why)
			return why;
	}
	why = cm_id_select_source(id, &dest);
	if (is_errno_of_unreachable_destination(why))
		return -siw_cm_tell(id->siw, SIW_CM_ADDR_ERROR, -why);
	if (why)
		return why;
	cm_set_route_addrs(id, NULL, &dest);
	why = -siw_cm_tell(id->siw, SIW_CM_ADDR_RESOLVED, 0);
	id->resolved = !why;
	return why;
}

int rdma_resolve_addr(struct rdma_cm_id *rdma_id, struct sockaddr *src, struct sockaddr *dst,
		      int timeout_ms)
{
	int why;

	(void)timeout_ms; /* resolution is a local route lookup, which completes immediately */
	if (!cm_is_live_object(CM_ID, rdma_id))
		return cm_fail(EINVAL);
	why = cm_id_resolve_addr(cm_id_of(rdma_id), src, dst);
	return why ? cm_fail(why) : cm_wait_for_result_if_synchronous(cm_id_of(rdma_id));
}

/*
 * Fills in the path record of an id as the kernel does for Ethernet. Programs check whether the
 * destination is beyond the local link, and then address the destination by GID.
 */
static void cm_id_fill_path(struct cm_id *id)
{
	const struct rdma_ib_addr *gids = &id->id.route.addr.addr.ibaddr;

	id->path = (struct ibv_sa_path_rec){
		.dgid = gids->dgid,
		.sgid = gids->sgid,
		.hop_limit = HOPS,
		.traffic_class = id->tos,
		.reversible = 1,
		.numb_path = 1,
		.pkey = htons(ABI_PKEY),
		.mtu = IBV_MTU_1024,
	};
	id->id.route.path_rec = &id->path;
	id->id.route.num_paths = 1;
}

int rdma_resolve_route(struct rdma_cm_id *rdma_id, int timeout_ms)
{
	struct cm_id *id = cm_id_of(rdma_id);
	int r;

	(void)timeout_ms;
	if (!cm_is_live_object(CM_ID, rdma_id))
		return cm_fail(EINVAL);
	if (!id->resolved || id->routed)
		return cm_fail(abi_refuse(EINVAL,
					  "the address is not resolved, or the route is resolved "
					  "already: call rdma_resolve_addr and rdma_resolve_route "
					  "once each"));
	r = siw_cm_tell(id->siw, SIW_CM_ROUTE_RESOLVED, 0);
	id->routed = r == 0;
	cm_id_fill_path(id);
	return r < 0 ? cm_fail(-r) : cm_wait_for_result_if_synchronous(id);
}

/* ---- endpoints ------------------------------------------------------------------------------- */

static int endpoint_start_passive(struct cm_id *id, struct rdma_addrinfo *res, struct ibv_pd *pd,
				  const struct ibv_qp_init_attr *attr)
{
	if (rdma_bind_addr(&id->id, res->ai_src_addr))
		return -1;
	id->ep_pd = pd;
	if (!attr)
		return 0;
	id->ep_attr = malloc(sizeof(*attr));
	if (!id->ep_attr)
		return -1;
	*id->ep_attr = *attr;
	id->ep_attr->qp_type = (enum ibv_qp_type)res->ai_qp_type;
	return 0;
}

static int endpoint_start_active(struct cm_id *id, struct rdma_addrinfo *res, struct ibv_pd *pd,
				 struct ibv_qp_init_attr *attr)
{
	if (rdma_resolve_addr(&id->id, res->ai_src_addr, res->ai_dst_addr, RESOLVE_MS) ||
	    rdma_resolve_route(&id->id, RESOLVE_MS))
		return -1;
	if (!attr)
		return 0;
	attr->qp_type = (enum ibv_qp_type)res->ai_qp_type;
	return rdma_create_qp(&id->id, pd, attr);
}

int rdma_create_ep(struct rdma_cm_id **out, struct rdma_addrinfo *res, struct ibv_pd *pd,
		   struct ibv_qp_init_attr *qp_init_attr)
{
	struct rdma_cm_id *id;
	int r;

	if (!abi_is_given(out, "id") || !abi_is_given(res, "res"))
		return cm_fail(EINVAL);
	if (rdma_create_id(NULL, &id, NULL, (enum rdma_port_space)res->ai_port_space))
		return -1;
	id->qp_type = (enum ibv_qp_type)res->ai_qp_type;
	r = res->ai_flags & RAI_PASSIVE
		    ? endpoint_start_passive(cm_id_of(id), res, pd, qp_init_attr)
		    : endpoint_start_active(cm_id_of(id), res, pd, qp_init_attr);
	if (r) {
		int why = errno;

		rdma_destroy_ep(id);
		return cm_outcome(why);
	}
	*out = id;
	return 0;
}

void rdma_destroy_ep(struct rdma_cm_id *id)
{
	if (!cm_is_live_object(CM_ID, id))
		return;
	if (id->qp)
		rdma_destroy_qp(id);
	if (id->srq)
		rdma_destroy_srq(id);
	rdma_destroy_id(id);
}

int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **out)
{
	struct cm_id *listener = cm_id_of(listen);
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	int why;

	if (!cm_is_live_object(CM_ID, listen) || !abi_is_given(out, "id"))
		return cm_fail(EINVAL);
	if (!listener->own || !listener->listening)
		return cm_fail(abi_refuse(EINVAL,
					  "the id does not listen, or has an event channel: use an "
					  "id of rdma_create_ep, or rdma_get_cm_event"));
	cm_ack_pending_event(listener);
	if (rdma_get_cm_event(listen->channel, &event))
		return -1;
	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST || event->status) {
		int status = event->status;

		rdma_ack_cm_event(event);
		return cm_outcome(status ? abs(status) : EINVAL);
	}
	id = event->id;
	if (rdma_migrate_id(id, NULL))
		goto failed;
	if (listener->ep_attr) {
		struct ibv_qp_init_attr attr = *listener->ep_attr;

		if (rdma_create_qp(id, listener->ep_pd, &attr))
			goto failed;
	}
	id->event = event;
	*out = id;
	return 0;

failed:
	why = errno;
	rdma_ack_cm_event(event);
	rdma_destroy_id(id);
	return cm_outcome(why);
}
