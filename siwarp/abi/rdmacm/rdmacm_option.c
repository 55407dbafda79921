/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/rdmacm/rdmacm_option.c - rdma_set_option, and ECE (enhanced connection establishment). */
#include "abi/rdmacm/rdmacm.h"

int rdma_set_option(struct rdma_cm_id *rdma_id, int level, int optname, void *optval, size_t optlen)
{
	struct cm_id *id = cm_id_of(rdma_id);
	size_t wanted;

	if (!cm_is_live_object(CM_ID, rdma_id) || !abi_is_given(optval, "optval"))
		return cm_fail(EINVAL);
	/*
	 * RDMA_OPTION_IB, which sets paths of an InfiniBand subnet administrator, is not supported.
	 */
	if (level != RDMA_OPTION_ID)
		return cm_fail(abi_refuse(level == RDMA_OPTION_IB ? EOPNOTSUPP : EINVAL,
					  "level is %d: use RDMA_OPTION_ID", level));
	wanted = optname == RDMA_OPTION_ID_TOS || optname == RDMA_OPTION_ID_ACK_TIMEOUT
			 ? sizeof(uint8_t)
			 : sizeof(int);
	if (optname < RDMA_OPTION_ID_TOS || optname > RDMA_OPTION_ID_ACK_TIMEOUT ||
	    optlen != wanted)
		return cm_fail(abi_refuse(EINVAL,
					  "optname is %d with optlen %zu: use TOS or ACK_TIMEOUT "
					  "with one octet, or REUSEADDR or AFONLY with an int",
					  optname, optlen));
	if (optname == RDMA_OPTION_ID_ACK_TIMEOUT) {
		if (*(uint8_t *)optval > 31)
			return cm_fail(abi_refuse(EINVAL, "ACK_TIMEOUT is %u: use 0 to 31",
						  *(uint8_t *)optval));
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
			return cm_fail(abi_refuse(EINVAL, "the id is bound to an address already: "
							  "set the option before rdma_bind_addr"));
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
	if (!cm_is_live_object(CM_ID, id) || !abi_is_given(ece, "ece"))
		return cm_fail(EINVAL);
	if (ece->comp_mask)
		return cm_fail(abi_refuse(EINVAL, "comp_mask is %#x: set it to 0", ece->comp_mask));
	/*
	 * ECE carries vendor options; siwarp has none, and does not support those of other vendors.
	 */
	if (ece->vendor_id || ece->options)
		return cm_fail(abi_refuse(EOPNOTSUPP, "siwarp has no enhanced connection options: "
						      "set vendor_id and options to 0"));
	return 0;
}

int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	if (!cm_is_live_object(CM_ID, id) || !abi_is_given(ece, "ece"))
		return cm_fail(EINVAL);
	memset(ece, 0, sizeof(*ece));
	return 0;
}
