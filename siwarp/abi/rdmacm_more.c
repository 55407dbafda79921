/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/rdmacm_more.c - options and ECE. */
#include "abi/rdmacm.h"

int rdma_set_option(struct rdma_cm_id *rdma_id, int level, int optname, void *optval, size_t optlen)
{
	struct cm_id *id = cm_id_of(rdma_id);
	size_t wanted;

	if (!optval || !cm_live(CM_ID, rdma_id))
		return cm_fail(EINVAL);
	/* Paths of InfiniBand's subnet administrator: there is none. */
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
		/* One that the library bound to connect: the program may set what has no effect. */
		if (id->bound && !id->resolved)
			return cm_fail(EINVAL);
		if (optname == RDMA_OPTION_ID_AFONLY) {
			id->v6_only = *(int *)optval != 0;
			siw_cm_set_v6only(id->siw, id->v6_only);
		}
	}
	/*
	 * An address is reusable anyway. The timeout is what rdma_init_qp_attr says: TCP, which
	 * repeats what is not acknowledged, has its own.
	 */
	return 0;
}

int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	if (!ece || !cm_live(CM_ID, id) || ece->comp_mask)
		return cm_fail(EINVAL);
	/* Options of a vendor: this one has none, and takes no other's. */
	return ece->vendor_id || ece->options ? cm_fail(EOPNOTSUPP) : 0;
}

int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	if (!ece || !cm_live(CM_ID, id))
		return cm_fail(EINVAL);
	memset(ece, 0, sizeof(*ece));
	return 0;
}
