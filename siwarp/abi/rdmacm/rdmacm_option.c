/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/rdmacm/rdmacm_option.c - rdma_set_option, and ECE (enhanced connection establishment). */
#include "abi/rdmacm/rdmacm.h"

int rdma_set_option(struct rdma_cm_id *rdma_id, int level, int optname, void *optval, size_t optlen)
{
	struct cm_id *id = cm_id_of(rdma_id);
	size_t wanted;

	if (!optval || !cm_is_live(CM_ID, rdma_id))
		return cm_fail(EINVAL);
	/*
	 * RDMA_OPTION_IB, which sets paths of an InfiniBand subnet administrator, is not supported.
	 */
	if (level != RDMA_OPTION_ID)
		return cm_fail(level == RDMA_OPTION_IB ? EOPNOTSUPP : EINVAL);
	wanted = optname == RDMA_OPTION_ID_TOS || optname == RDMA_OPTION_ID_ACK_TIMEOUT
			 ? sizeof(uint8_t)
			 : sizeof(int);
	if (optname < RDMA_OPTION_ID_TOS || optname > RDMA_OPTION_ID_ACK_TIMEOUT ||
	    optlen != wanted)
		return cm_fail(EINVAL);
	if (optname == RDMA_OPTION_ID_ACK_TIMEOUT) {
		if (*(uint8_t *)optval > 31)
			return cm_fail(EINVAL);
		id->ack_timeout = *(uint8_t *)optval;
	}
	if (optname == RDMA_OPTION_ID_TOS)
		id->tos = *(uint8_t *)optval;
	if (optname == RDMA_OPTION_ID_REUSEADDR || optname == RDMA_OPTION_ID_AFONLY) {
		/*
		 * On an id that rdma_resolve_addr has bound, address options may be set, but have
		 * no effect.
		 */
		if (id->bound && !id->resolved)
			return cm_fail(EINVAL);
		if (optname == RDMA_OPTION_ID_AFONLY) {
			id->v6_only = *(int *)optval != 0;
			siw_cm_set_v6only(id->siw, id->v6_only);
		}
	}
	/*
	 * REUSEADDR needs no action, because addresses are always reusable. ACK_TIMEOUT is only
	 * returned by rdma_init_qp_attr, because TCP uses its own retransmission time-out.
	 */
	return 0;
}

int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	if (!ece || !cm_is_live(CM_ID, id) || ece->comp_mask)
		return cm_fail(EINVAL);
	/*
	 * ECE carries vendor options; siwarp has none, and does not support those of other vendors.
	 */
	return ece->vendor_id || ece->options ? cm_fail(EOPNOTSUPP) : 0;
}

int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	if (!ece || !cm_is_live(CM_ID, id))
		return cm_fail(EINVAL);
	memset(ece, 0, sizeof(*ece));
	return 0;
}
