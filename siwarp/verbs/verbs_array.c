/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Posting of arrays of work requests without pointers. The contents of the arrays are not trusted:
 * each request is copied once, and the copy is checked.
 */
#include <string.h>

#include <siwarp/siw_ext.h>

#include "base/reason.h"
#include "device/device.h"

/* The layouts are used by siwarp.verbs.arrays. */
_Static_assert(sizeof(struct siw_array_send_wr) == 80, "");
_Static_assert(sizeof(struct siw_array_recv_wr) == 24, "");

/* Number of requests posted as one list, which is on the stack: enough for a full GSO batch. */
#define MAX_LIST 64

/*
 * Checks the arguments of a call that posts n requests to a queue, whose device is ctx, or NULL if
 * the queue is. Returns 0 or -errno.
 */
static int check_array_post_args(const struct siw_context *ctx, const char *name, const void *wrs,
				 size_t n, const size_t *posted)
{
	int err = siw_device_check_usable(ctx, name);

	if (err)
		return err;
	if (n && !wrs)
		return siw_refuse_null("wrs");
	return posted ? 0 : siw_refuse_null("posted");
}

static uint32_t length_of_next_wr_list(size_t left)
{
	return left < MAX_LIST ? (uint32_t)left : MAX_LIST;
}

/*
 * Stores the members of *wr that opcode uses, and no others, because members of different opcodes
 * share memory and some are pointers. Returns 0 or -errno.
 */
static int copy_wr_members_of_opcode(struct siw_send_wr *wr, const struct siw_array_send_wr *from,
				     struct siw_ah *ah, uint32_t qpn)
{
	wr->imm_data = from->imm_data;
	wr->rd.ah = ah;
	wr->rd.remote_qpn = qpn;
	wr->rd.remote_qkey = from->remote_qkey;
	switch (from->opcode) {
	case SIW_WR_SEND:
	case SIW_WR_SEND_WITH_IMM:
	case SIW_WR_SEND_WITH_INV:
	case SIW_WR_LOCAL_INV:
		wr->wr.ud.ah = ah;
		wr->wr.ud.remote_qpn = qpn;
		wr->wr.ud.remote_qkey = from->remote_qkey;
		return 0;
	case SIW_WR_RDMA_WRITE:
	case SIW_WR_RDMA_WRITE_WITH_IMM:
	case SIW_WR_RDMA_READ:
	case SIW_WR_RDMA_WRITE_RECORD:
		wr->wr.rdma.remote_addr = from->remote_addr;
		wr->wr.rdma.rkey = from->rkey;
		return 0;
	case SIW_WR_ATOMIC_CMP_AND_SWP:
	case SIW_WR_ATOMIC_FETCH_AND_ADD:
		wr->wr.atomic.remote_addr = from->remote_addr;
		wr->wr.atomic.rkey = from->rkey;
		wr->wr.atomic.compare_add = from->compare_add;
		wr->wr.atomic.swap = from->swap;
		return 0;
	default:
		return siw_refuse(ARRAY_OPCODE, from->opcode);
	}
}

/* Converts a request of an array to a request with one element. Returns 0 or -errno. */
static int convert_array_send_request(struct siw_send_wr *wr, struct siw_sge *sge,
				      const struct siw_array_send_wr *from,
				      const struct siw_array_ah *ahs, size_t n_ahs)
{
	struct siw_ah *ah = NULL;
	uint32_t qpn = from->remote_qpn;

	if (from->send_flags & SIW_SEND_INLINE)
		return siw_refuse(ARRAY_INLINE);
	if (ahs) {
		if (from->ah >= n_ahs)
			return siw_refuse(ARRAY_HANDLE, from->ah, n_ahs);
		ah = ahs[from->ah].ah;
		if (!qpn)
			qpn = ahs[from->ah].qpn;
	}
	*sge = (struct siw_sge){ from->addr, from->length, from->lkey };
	*wr = (struct siw_send_wr){
		.wr_id = from->wr_id,
		.sg_list = sge,
		.num_sge = from->length != 0,
		.opcode = (int)from->opcode,
		.send_flags = from->send_flags,
	};
	return copy_wr_members_of_opcode(wr, from, ah, qpn);
}

int siw_post_send_array(struct siw_qp *qp, const struct siw_array_send_wr *wrs, size_t n,
			const struct siw_array_ah *ahs, size_t n_ahs, size_t *posted)
{
	struct siw_send_wr list[MAX_LIST], *bad = list;
	struct siw_sge sges[MAX_LIST];
	struct siw_array_send_wr one;
	int err = check_array_post_args(qp ? qp->ctx : NULL, "qp", wrs, n, posted);

	if (err)
		return err;
	*posted = 0;
	while (!err && *posted < n) {
		uint32_t most = length_of_next_wr_list(n - *posted), k = 0;
		int post_err = 0;

		for (; k < most; k++) {
			memcpy(&one, (const char *)wrs + (*posted + k) * sizeof(one), sizeof(one));
			err = convert_array_send_request(&list[k], &sges[k], &one, ahs, n_ahs);
			if (err)
				break;
			if (k)
				list[k - 1].next = &list[k];
		}
		/* Requests before a refused one are posted. */
		if (k)
			post_err = siw_post_send(qp, list, &bad);
		*posted += post_err ? (size_t)(bad - list) : k;
		err = post_err ? post_err : err;
	}
	return err;
}

/* Posts n receives to the QP or, if qp is NULL, to the SRQ. */
static int post_recvs(struct siw_qp *qp, struct siw_srq *srq, const struct siw_array_recv_wr *wrs,
		      size_t n, size_t *posted)
{
	struct siw_recv_wr list[MAX_LIST], *bad = list;
	struct siw_sge sges[MAX_LIST];
	struct siw_array_recv_wr one;
	int err = 0;

	*posted = 0;
	while (!err && *posted < n) {
		uint32_t k = length_of_next_wr_list(n - *posted);

		for (uint32_t i = 0; i < k; i++) {
			memcpy(&one, (const char *)wrs + (*posted + i) * sizeof(one), sizeof(one));
			sges[i] = (struct siw_sge){ one.addr, one.length, one.lkey };
			list[i] = (struct siw_recv_wr){
				.wr_id = one.wr_id,
				.next = i + 1 < k ? &list[i + 1] : NULL,
				.sg_list = &sges[i],
				.num_sge = one.length != 0,
			};
		}
		err = qp ? siw_post_recv(qp, list, &bad) : siw_post_srq_recv(srq, list, &bad);
		*posted += err ? (size_t)(bad - list) : k;
	}
	return err;
}

int siw_post_recv_array(struct siw_qp *qp, const struct siw_array_recv_wr *wrs, size_t n,
			size_t *posted)
{
	int err = check_array_post_args(qp ? qp->ctx : NULL, "qp", wrs, n, posted);

	return err ? err : post_recvs(qp, NULL, wrs, n, posted);
}

int siw_post_srq_recv_array(struct siw_srq *srq, const struct siw_array_recv_wr *wrs, size_t n,
			    size_t *posted)
{
	int err = check_array_post_args(srq ? srq->ctx : NULL, "srq", wrs, n, posted);

	return err ? err : post_recvs(NULL, srq, wrs, n, posted);
}
