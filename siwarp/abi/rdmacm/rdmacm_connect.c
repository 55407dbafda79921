/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/rdmacm/rdmacm_connect.c - listening, connecting, accepting, rejecting, disconnecting. */
#include <sys/socket.h>

#include "abi/rdmacm/rdmacm.h"

/*
 * Time for which a refused connect is retried. Programs that connect twice, such as perftest, start
 * to listen for the second connection about when the peer connects; with adapters, resolving
 * addresses and creating queue pairs takes longer, which hides the race.
 */
#define REFUSED_MS 500

/*
 * Converts an IRD or ORD of rdma_cm to the engine's: 0 (no Reads) becomes -1, and a value above the
 * limit becomes the limit.
 */
static int ird_or_ord_to_engine(uint8_t asked, int limit)
{
	if (!asked)
		return -1;
	return asked < limit ? asked : limit;
}

static int conn_param_to_engine(const struct cm_id *id, const struct rdma_conn_param *from,
				struct siw_cm_param *to)
{
	struct siw_device_attr device;
	int r = siw_query_device(siw_ibv_context(id->id.verbs), &device);

	if (r < 0)
		return r;
	*to = (struct siw_cm_param){
		/* Either end may send first, as with InfiniBand adapters. */
		.peer_to_peer = SIW_CM_RTR_WRITE | SIW_CM_RTR_READ,
		.refused_ms = REFUSED_MS,
		.tos = id->tos,
	};
	if (!from)
		return 0;
	to->initiator_depth =
		ird_or_ord_to_engine(from->initiator_depth, (int)device.max_qp_init_rd_atom);
	to->responder_resources =
		ird_or_ord_to_engine(from->responder_resources, (int)device.max_qp_rd_atom);
	return cm_copy_private_data(from, to);
}

/*
 * Sets the RNR retry count for the peer's Sends for which this end has posted no receive. The count
 * limits how long such a Send waits at this end. Applies to queue pairs whose states the id
 * manages.
 */
static int set_rnr_retries_of_peer(struct cm_id *id, const struct rdma_conn_param *from,
				   struct siw_cm_param *to)
{
	struct siw_qp_attr attr = { .min_rnr_timer = CM_RNR_TIMER };
	int retries = CM_RETRIES;

	if (!id->id.qp)
		return 0;
	if (from && from->rnr_retry_count < CM_RETRIES)
		retries = from->rnr_retry_count;
	to->rnr_retry = retries ? retries : -1;
	return siw_modify_qp(siw_ibv_qp(id->id.qp), &attr, SIW_QP_MIN_RNR_TIMER);
}

/* ---- listening ------------------------------------------------------------------------------- */

struct listening {
	struct cm_id *id;
	int backlog;
	int opened, why;
};

static bool listen_on_address(struct ibv_context *verbs, const struct siw_addr *addr, void *arg)
{
	struct listening *l = arg;
	const struct siw_addr *bound = cm_source_addr(l->id);
	struct siw_addr at = *addr;
	int r;

	/* An IPv6 wildcard also covers IPv4, unless the program set IPV6_V6ONLY. */
	if (at.family != bound->family && (bound->family == AF_INET || l->id->v6_only))
		return true;
	at.port_be = bound->port_be;
	r = siw_cm_listen_also(l->id->siw, siw_ibv_context(verbs), &at, l->backlog);
	/* An address that is still undergoing duplicate address detection is skipped. */
	if (r < 0 && r != -EADDRNOTAVAIL)
		l->why = -r;
	l->opened += r == 0;
	return !l->why;
}

static int listen_on_all_addresses(struct cm_id *id, int backlog)
{
	struct listening l = { .id = id, .backlog = backlog };
	int why = cm_visit_addresses(listen_on_address, &l);

	if (why || l.why)
		return why ? why : l.why;
	return l.opened ? 0 : EADDRNOTAVAIL;
}

int rdma_listen(struct rdma_cm_id *rdma_id, int backlog)
{
	/* An id without an address listens on all devices, at a port that the library selects. */
	struct sockaddr_in6 any = { .sin6_family = AF_INET6 };
	struct cm_id *id = cm_id_of(rdma_id);
	int why;

	if (!cm_is_live_object(CM_ID, rdma_id))
		return cm_fail(EINVAL);
	if (id->listening || id->unanswered || id->id.qp)
		return cm_fail(abi_refuse(EINVAL,
					  "the id is listening, is of a connection request, or has "
					  "a queue pair: listen with a new id"));
	if (!id->bound && rdma_bind_addr(rdma_id, (struct sockaddr *)&any))
		return -1;
	if (backlog <= 0)
		backlog = SOMAXCONN;
	why = id->any ? listen_on_all_addresses(id, backlog)
		      : -siw_cm_listen(id->siw, NULL, backlog);
	if (why)
		return cm_fail(why);
	id->listening = true;
	return 0;
}

/*
 * Binds a queue pair that the program created without the id, given by its number. Returns 0 or an
 * errno value. A queue pair of another type than RC is not connected: UCX passes a UD queue pair
 * only for its number, and sends its peer the numbers of the queue pairs to connect in private
 * data.
 */
static int cm_attach_qp_by_number(struct cm_id *id, const struct rdma_conn_param *param)
{
	struct ibv_qp *qp = param ? siw_ibv_find_qp(id->id.verbs, param->qp_num) : NULL;

	if (qp && qp->qp_type != IBV_QPT_RC && !cm_is_ud(id))
		qp = cm_get_substitute_qp(id);
	if (!qp)
		return abi_refuse(EINVAL,
				  "the id has no queue pair, and qp_num %#x is not the number of "
				  "one of its device: call rdma_create_qp first, or set qp_num",
				  param ? param->qp_num : 0);
	return -siw_cm_bind_qp(id->siw, siw_ibv_qp(qp));
}

/*
 * Binds a queue pair that was created with another id and that the program then stored in the given
 * id, as DAPL does. Returns 0 or an errno value.
 */
static int bind_qp_stored_by_program(struct cm_id *id)
{
	struct ibv_qp *qp = id->id.qp;
	int r;

	if (qp == id->bound_qp)
		return 0;
	r = siw_ibv_qp(qp) ? siw_cm_bind_qp(id->siw, siw_ibv_qp(qp)) : -EINVAL;
	if (r == 0)
		id->bound_qp = qp;
	return -r;
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* The reason for refusing rdma_accept and rdma_reject on an id without an unanswered request. */
#define NO_REQUEST                                                              \
	"the id has no unanswered connection request: use the id of the event " \
	"RDMA_CM_EVENT_CONNECT_REQUEST"

int rdma_connect(struct rdma_cm_id *rdma_id, struct rdma_conn_param *conn_param)
{
	struct cm_id *id = cm_id_of(rdma_id);
	struct siw_addr source;
	struct siw_cm_param param;
	int r;

	if (!cm_is_live_object(CM_ID, rdma_id))
		return cm_fail(EINVAL);
	if (!id->routed)
		return cm_fail(abi_refuse(EINVAL,
					  "the route is not resolved: call rdma_resolve_addr and "
					  "rdma_resolve_route, and wait for their events, first"));
	if (cm_is_ud(id))
		return cm_ud_connect(id, conn_param);
	r = conn_param_to_engine(id, conn_param, &param);
	if (r == 0 && id->id.qp)
		r = -bind_qp_stored_by_program(id);
	if (r == 0)
		r = set_rnr_retries_of_peer(id, conn_param, &param);
	if (r == 0 && !id->id.qp)
		r = -cm_attach_qp_by_number(id, conn_param);
	if (r < 0)
		return cm_fail(-r);
	id->completes = !id->id.qp;
	param.hold = id->completes;
	source = *cm_source_addr(id);
	r = siw_cm_connect(id->siw, cm_dest_addr(id), &source, &param);
	return r < 0 ? cm_fail(-r) : cm_wait_for_result_if_synchronous(id);
}

int rdma_accept(struct rdma_cm_id *rdma_id, struct rdma_conn_param *conn_param)
{
	struct cm_id *id = cm_id_of(rdma_id);
	struct rdma_conn_param asked;
	struct siw_cm_param param;
	int r;

	if (!cm_is_live_object(CM_ID, rdma_id))
		return cm_fail(EINVAL);
	if (!id->unanswered)
		return cm_fail(abi_refuse(EINVAL, NO_REQUEST));
	r = id->id.qp ? bind_qp_stored_by_program(id) : cm_attach_qp_by_number(id, conn_param);
	if (r)
		return cm_fail(r);
	if (cm_is_ud(id))
		return cm_ud_accept(id, conn_param);
	if (!conn_param) {
		asked = (struct rdma_conn_param){
			.responder_resources = id->resources,
			.initiator_depth = id->depth,
			.rnr_retry_count = CM_RETRIES,
		};
		conn_param = &asked;
	}
	r = conn_param_to_engine(id, conn_param, &param);
	if (r == 0)
		r = set_rnr_retries_of_peer(id, conn_param, &param);
	if (r < 0)
		return cm_fail(-r);
	id->accepted = true; /* before siw_cm_accept: another thread may then get an event */
	r = siw_cm_accept(id->siw, &param);
	if (r < 0) {
		id->accepted = false;
		return cm_fail(-r);
	}
	id->unanswered = false;
	return cm_wait_for_result_if_synchronous(id);
}

int rdma_reject(struct rdma_cm_id *rdma_id, const void *private_data, uint8_t private_data_len)
{
	struct cm_id *id = cm_id_of(rdma_id);
	int r;

	if (!cm_is_live_object(CM_ID, rdma_id))
		return cm_fail(EINVAL);
	if (!id->unanswered)
		return cm_fail(abi_refuse(EINVAL, NO_REQUEST));
	r = siw_cm_reject(id->siw, private_data, private_data_len);
	if (r < 0)
		return cm_fail(-r);
	id->unanswered = false;
	cm_ack_pending_event(id);
	return 0;
}

int rdma_reject_ece(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len)
{
	return rdma_reject(id, private_data, private_data_len);
}

int rdma_disconnect(struct rdma_cm_id *rdma_id)
{
	struct cm_id *id = cm_id_of(rdma_id);
	int r;

	if (!cm_is_live_object(CM_ID, rdma_id))
		return cm_fail(EINVAL);
	if (id->unanswered || id->listening)
		return cm_fail(abi_refuse(EINVAL,
					  "the id is listening, or is of a connection "
					  "request without an answer: it is not connected"));
	if (cm_is_ud(id))
		return cm_ud_disconnect(id);
	id->ends = true;
	r = siw_cm_disconnect(id->siw);
	if (r < 0)
		return cm_fail(r == -ENOTCONN ? EINVAL : -r);
	if (id->id.qp)
		id->id.qp->state = IBV_QPS_ERR;
	/*
	 * A synchronous id that was never connected, or whose connection has ended, gets no event.
	 */
	if (id->over || !(id->accepted || id->established || id->completes))
		return 0;
	return cm_wait_for_result_if_synchronous(id);
}

int rdma_establish(struct rdma_cm_id *rdma_id)
{
	struct cm_id *id = cm_id_of(rdma_id);

	if (!cm_is_live_object(CM_ID, rdma_id))
		return cm_fail(EINVAL);
	/* Only an active id whose queue pair the program manages needs rdma_establish. */
	if (!id->completes)
		return cm_fail(abi_refuse(
			EINVAL, "rdma_establish is for an id that has connected without a "
				"queue pair (rdma_create_qp)"));
	return cm_result(siw_cm_establish(id->siw));
}

int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event)
{
	if (!cm_is_live_object(CM_ID, id))
		return cm_fail(EINVAL);
	/*
	 * COMM_EST needs no action, because queue pairs receive nothing before their connection is
	 * established.
	 */
	if (event != IBV_EVENT_COMM_EST)
		return cm_fail(
			abi_refuse(EINVAL, "event is %d: use IBV_EVENT_COMM_EST", (int)event));
	return 0;
}
