/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_layout.c - compile-time checks that work requests and completions of verbs have the same
 * layout as the engine's, which allows casts between them. The file contains no code.
 */
#include "abi/ibverbs/abi.h"

#define SAME(ibv, siw, member) \
	_Static_assert(offsetof(struct ibv, member) == offsetof(struct siw, member), #member)
#define SIZE(ibv, siw) _Static_assert(sizeof(struct ibv) == sizeof(struct siw), #ibv)

SIZE(ibv_sge, siw_sge);
SAME(ibv_sge, siw_sge, addr);
SAME(ibv_sge, siw_sge, length);
SAME(ibv_sge, siw_sge, lkey);

SIZE(ibv_recv_wr, siw_recv_wr);
SAME(ibv_recv_wr, siw_recv_wr, wr_id);
SAME(ibv_recv_wr, siw_recv_wr, next);
SAME(ibv_recv_wr, siw_recv_wr, sg_list);
SAME(ibv_recv_wr, siw_recv_wr, num_sge);

SIZE(ibv_send_wr, siw_send_wr);
SAME(ibv_send_wr, siw_send_wr, wr_id);
SAME(ibv_send_wr, siw_send_wr, next);
SAME(ibv_send_wr, siw_send_wr, sg_list);
SAME(ibv_send_wr, siw_send_wr, num_sge);
SAME(ibv_send_wr, siw_send_wr, opcode);
SAME(ibv_send_wr, siw_send_wr, send_flags);
SAME(ibv_send_wr, siw_send_wr, imm_data);
SAME(ibv_send_wr, siw_send_wr, invalidate_rkey);
SAME(ibv_send_wr, siw_send_wr, wr.rdma.remote_addr);
SAME(ibv_send_wr, siw_send_wr, wr.rdma.rkey);
SAME(ibv_send_wr, siw_send_wr, wr.atomic.remote_addr);
SAME(ibv_send_wr, siw_send_wr, wr.atomic.compare_add);
SAME(ibv_send_wr, siw_send_wr, wr.atomic.swap);
SAME(ibv_send_wr, siw_send_wr, wr.atomic.rkey);
SAME(ibv_send_wr, siw_send_wr, wr.ud.ah);
SAME(ibv_send_wr, siw_send_wr, wr.ud.remote_qpn);
SAME(ibv_send_wr, siw_send_wr, wr.ud.remote_qkey);
SAME(ibv_send_wr, siw_send_wr, bind_mw.mw);
SAME(ibv_send_wr, siw_send_wr, bind_mw.rkey);
SAME(ibv_send_wr, siw_send_wr, bind_mw.bind_info.mr);
SAME(ibv_send_wr, siw_send_wr, bind_mw.bind_info.mw_access_flags);

SIZE(ibv_wc, siw_wc);
SAME(ibv_wc, siw_wc, wr_id);
SAME(ibv_wc, siw_wc, status);
SAME(ibv_wc, siw_wc, opcode);
SAME(ibv_wc, siw_wc, vendor_err);
SAME(ibv_wc, siw_wc, byte_len);
SAME(ibv_wc, siw_wc, imm_data);
SAME(ibv_wc, siw_wc, qp_num);
SAME(ibv_wc, siw_wc, src_qp);
SAME(ibv_wc, siw_wc, wc_flags);
SAME(ibv_wc, siw_wc, pkey_index);
SAME(ibv_wc, siw_wc, slid);
SAME(ibv_wc, siw_wc, sl);
SAME(ibv_wc, siw_wc, dlid_path_bits);

SIZE(ibv_qp_cap, siw_qp_cap);
SAME(ibv_qp_cap, siw_qp_cap, max_inline_data);
SIZE(ibv_srq_attr, siw_srq_attr);
SAME(ibv_srq_attr, siw_srq_attr, srq_limit);

/*
 * struct ibv_cq_ex and struct ibv_qp_ex begin with the members of struct ibv_cq and struct ibv_qp.
 * A struct ibv_ah fits into the space at the start of the engine's handle.
 */
_Static_assert(offsetof(struct ibv_cq_ex, async_events_completed) ==
		       offsetof(struct ibv_cq, async_events_completed),
	       "ibv_cq_ex");
_Static_assert(offsetof(struct ibv_qp_ex, qp_base) == 0, "ibv_qp_ex");
_Static_assert(sizeof(struct ibv_ah) <= 64, "struct ibv_ah fits into the room in struct siw_ah");
/* Properties of the binary interface that must not change with the headers. */
_Static_assert(offsetof(struct ibv_device, name) == 24, "ibv_device");
_Static_assert(offsetof(struct ibv_context, ops.post_send) == 208, "ibv_context");
_Static_assert(offsetof(struct verbs_context, context) ==
		       offsetof(struct verbs_context, sz) + sizeof(size_t),
	       "verbs_context");
_Static_assert((int)IBV_WC_RECV_RDMA_WITH_IMM == (int)SIW_WC_RECV_RDMA_WITH_IMM, "opcodes");
_Static_assert((int)IBV_WR_SEND_WITH_INV == (int)SIW_WR_SEND_WITH_INV, "opcodes");
_Static_assert((int)IBV_WC_GENERAL_ERR == (int)SIW_WC_GENERAL_ERR, "statuses");
_Static_assert((int)IBV_EVENT_GID_CHANGE == (int)SIW_EVENT_GID_CHANGE, "events");
