/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/rdmacm/rdmacm_ud.c - ids of RDMA_PS_UDP and RDMA_PS_IPOIB: rdma_connect queries the queue
 * pair of a service (spec/cm-udp.md), and the event contains the parameters for sending to it.
 */
#include <sys/socket.h>

#include "abi/rdmacm/rdmacm.h"

#define HOPS 64

static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

static bool gid_is_ipv4(const union ibv_gid *gid)
{
	return memcmp(gid->raw, mapped, sizeof(mapped)) == 0;
}

/*
 * Returns the GID index of the address of an id if the address has the family of dgid, otherwise
 * the GID index of the device's first address of that family, or 0 if there is none.
 */
static uint8_t ud_gid_index(const struct cm_id *id, const union ibv_gid *dgid)
{
	const union ibv_gid *own = &id->id.route.addr.addr.ibaddr.sgid;
	union ibv_gid one;
	int found = -1;

	for (int i = 0; ibv_query_gid(id->id.verbs, ABI_PORT, i, &one) == 0; i++) {
		if (memcmp(&one, own, sizeof(one)) == 0 && gid_is_ipv4(&one) == gid_is_ipv4(dgid))
			return (uint8_t)i;
		if (found < 0 && gid_is_ipv4(&one) == gid_is_ipv4(dgid))
			found = i;
	}
	return found < 0 ? 0 : (uint8_t)found;
}

void cm_ud_fill_ah_attr(const struct cm_id *id, const union ibv_gid *dgid, struct rdma_ud_param *ud)
{
	ud->ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = ABI_PORT };
	ud->ah_attr.grh.dgid = *dgid;
	ud->ah_attr.grh.sgid_index = ud_gid_index(id, dgid);
	ud->ah_attr.grh.hop_limit = HOPS;
	ud->ah_attr.grh.traffic_class = id->tos;
}

void cm_ud_fill_event(const struct cm_id *id, const struct siw_cm_event *from,
		      struct cm_event *event)
{
	struct rdma_ud_param *ud = &event->ev.param.ud;
	struct siw_addr local, peer;
	union ibv_gid dgid;

	memcpy(event->private_data, from->private_data, from->private_data_len);
	ud->private_data = from->private_data_len ? event->private_data : NULL;
	ud->private_data_len = (uint8_t)from->private_data_len;
	if (from->event != SIW_CM_ESTABLISHED || siw_cm_addr(id->siw, &local, &peer))
		return;
	cm_gid_of_addr(&peer, &dgid);
	cm_ud_fill_ah_attr(id, &dgid, ud);
	ud->qp_num = from->qpn;
	ud->qkey = from->qkey;
}

static int ud_param_to_engine(const struct rdma_conn_param *from, struct siw_cm_param *to)
{
	*to = (struct siw_cm_param){ 0 };
	return from ? cm_copy_private_data(from, to) : 0;
}

int cm_ud_connect(struct cm_id *id, const struct rdma_conn_param *from)
{
	struct siw_addr source = *cm_source_addr(id);
	struct siw_cm_param param;
	int r = ud_param_to_engine(from, &param);

	if (r == 0)
		r = siw_cm_connect(id->siw, cm_dest_addr(id), &source, &param);
	/*
	 * Ports of rdma_cm are separate from UDP ports, so the program itself may use a UDP socket
	 * on the port. The query then leaves from any free port.
	 */
	if (r == -EADDRINUSE) {
		source.port_be = 0;
		r = siw_cm_connect(id->siw, cm_dest_addr(id), &source, &param);
	}
	return r < 0 ? cm_fail(-r) : cm_wait_for_result_if_synchronous(id);
}

int cm_ud_accept(struct cm_id *id, const struct rdma_conn_param *from)
{
	struct siw_cm_param param;
	int r = ud_param_to_engine(from, &param);

	if (r == 0)
		r = siw_cm_accept(id->siw, &param);
	if (r < 0)
		return cm_fail(-r);
	/*
	 * The responder gets no event, because it is not notified of the arrival of its response.
	 */
	id->unanswered = false;
	cm_ack_pending_event(id);
	return 0;
}

int cm_ud_disconnect(struct cm_id *id)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int why;

	/*
	 * UD has no connection to end. The queue pair is moved to ERR, in which it neither sends
	 * nor receives.
	 */
	why = id->id.qp ? ibv_modify_qp(id->id.qp, &attr, IBV_QP_STATE) : 0;
	return why ? cm_outcome(why) : 0;
}

int cm_ud_fill_transition_attr(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	*mask = IBV_QP_STATE;
	switch (attr->qp_state) {
	case IBV_QPS_INIT:
		attr->pkey_index = 0;
		attr->port_num = id->id.port_num;
		attr->qkey = SIW_CM_UD_QKEY;
		*mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
		return 0;
	case IBV_QPS_RTR:
		return 0;
	case IBV_QPS_RTS:
		attr->sq_psn = 0;
		*mask |= IBV_QP_SQ_PSN;
		return 0;
	default:
		return cm_fail(abi_refuse(EINVAL,
					  "qp_state is %d: use IBV_QPS_INIT, IBV_QPS_RTR or "
					  "IBV_QPS_RTS",
					  (int)attr->qp_state));
	}
}
