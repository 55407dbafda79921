/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_cq_ex.c - extended completion queues, which return one completion at a time and
 * one member per function.
 *
 * The time stamp of a completion is the time of the poll that returned the completion.
 */
#include <time.h>

#include "abi/ibverbs/abi.h"

static struct abi_cq *cq_of_cq_ex(struct ibv_cq_ex *cq)
{
	return (struct abi_cq *)cq;
}

static uint64_t now_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * Polls the next completion of a batch. Returns 0, ENOENT if there is no completion, or another
 * errno value.
 */
static int next_poll(struct ibv_cq_ex *ibv)
{
	struct abi_cq *cq = cq_of_cq_ex(ibv);
	int n = siw_poll_cq(cq->siw, 1, (struct siw_wc *)&cq->wc);

	if (n <= 0)
		return n < 0 ? -n : ENOENT;
	ibv->wr_id = cq->wc.wr_id;
	ibv->status = cq->wc.status;
	if (cq->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
		cq->monotonic_ns = now_ns(CLOCK_MONOTONIC);
	if (cq->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
		cq->wallclock_ns = now_ns(CLOCK_REALTIME);
	return 0;
}

/* Ends a batch of completions, if start_poll has begun a batch. */
static void end_poll(struct ibv_cq_ex *cq)
{
	if (cq_of_cq_ex(cq)->single_threaded || !cq_of_cq_ex(cq)->open)
		return;
	cq_of_cq_ex(cq)->open = false;
	pthread_mutex_unlock(&cq_of_cq_ex(cq)->polling);
}

/*
 * Begins a batch of completions. After an error, including ENOENT, no lock is held and end_poll
 * must not be called. EINVAL: the calling thread has not ended its previous batch.
 */
static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	int r;

	if (attr && attr->comp_mask)
		return EINVAL;
	if (cq_of_cq_ex(cq)->forks != abi_forks)
		return ESTALE;
	if (!cq_of_cq_ex(cq)->single_threaded) {
		if (pthread_mutex_lock(&cq_of_cq_ex(cq)->polling))
			return EINVAL;
		cq_of_cq_ex(cq)->open = true;
	}
	r = next_poll(cq);
	if (r)
		end_poll(cq);
	return r;
}

/* Defines the function wc_read_FIELD, which returns a field of the current completion. */
#define DEFINE_WC_READ(type, field)                       \
	static type wc_read_##field(struct ibv_cq_ex *cq) \
	{                                                 \
		return cq_of_cq_ex(cq)->wc.field;         \
	}

DEFINE_WC_READ(enum ibv_wc_opcode, opcode)
DEFINE_WC_READ(uint32_t, vendor_err)
DEFINE_WC_READ(uint32_t, byte_len)
DEFINE_WC_READ(__be32, imm_data)
DEFINE_WC_READ(uint32_t, qp_num)
DEFINE_WC_READ(uint32_t, src_qp)
DEFINE_WC_READ(unsigned int, wc_flags)
DEFINE_WC_READ(uint32_t, slid)
DEFINE_WC_READ(uint8_t, sl)
DEFINE_WC_READ(uint8_t, dlid_path_bits)

static uint64_t wc_read_completion_ts(struct ibv_cq_ex *cq)
{
	return cq_of_cq_ex(cq)->monotonic_ns;
}

static uint64_t wc_read_wallclock_ns(struct ibv_cq_ex *cq)
{
	return cq_of_cq_ex(cq)->wallclock_ns;
}

/* VLANs, flow tags and tag matching are not supported, so that their values are always 0. */
static uint16_t wc_read_cvlan(struct ibv_cq_ex *cq)
{
	(void)cq;
	return 0;
}

static uint32_t wc_read_flow_tag(struct ibv_cq_ex *cq)
{
	(void)cq;
	return 0;
}

static void wc_read_tm_info(struct ibv_cq_ex *cq, struct ibv_wc_tm_info *tm_info)
{
	(void)cq;
	memset(tm_info, 0, sizeof(*tm_info));
}

void abi_cq_set_read_functions(struct abi_cq *cq, uint64_t wc_flags)
{
	struct ibv_cq_ex *ibv = &cq->ibv;

	cq->wc_flags = wc_flags;
	ibv->start_poll = start_poll;
	ibv->next_poll = next_poll;
	ibv->end_poll = end_poll;
	ibv->read_opcode = wc_read_opcode;
	ibv->read_vendor_err = wc_read_vendor_err;
	ibv->read_byte_len = wc_read_byte_len;
	ibv->read_imm_data = wc_read_imm_data;
	ibv->read_qp_num = wc_read_qp_num;
	ibv->read_src_qp = wc_read_src_qp;
	ibv->read_wc_flags = wc_read_wc_flags;
	ibv->read_slid = wc_read_slid;
	ibv->read_sl = wc_read_sl;
	ibv->read_dlid_path_bits = wc_read_dlid_path_bits;
	ibv->read_completion_ts = wc_read_completion_ts;
	ibv->read_completion_wallclock_ns = wc_read_wallclock_ns;
	ibv->read_cvlan = wc_read_cvlan;
	ibv->read_flow_tag = wc_read_flow_tag;
	ibv->read_tm_info = wc_read_tm_info;
}

static int refuse_poll_of_dead_cq(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	(void)cq;
	(void)attr;
	return EINVAL;
}

static int refuse_next_poll(struct ibv_cq_ex *cq)
{
	(void)cq;
	return EINVAL;
}

void abi_cq_disable_polling(struct abi_cq *cq)
{
	cq->ibv.start_poll = refuse_poll_of_dead_cq;
	cq->ibv.next_poll = refuse_next_poll;
}
