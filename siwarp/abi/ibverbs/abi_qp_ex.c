/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_qp_ex.c - extended queue pairs: after ibv_wr_start, requests are built one by
 * one, and ibv_wr_complete posts them as one list.
 */
#include <stdlib.h>

#include "abi/ibverbs/abi.h"

struct abi_builder {
	pthread_mutex_t lock; /* mutex held from ibv_wr_start to ibv_wr_complete or ibv_wr_abort */
	bool open;	      /* ibv_wr_start has begun a list of requests; protected by lock */
	/* abi_forks when the builder was created; differs in a forked child */
	unsigned int forks;
	int err;   /* first error of a request in the list */
	bool dead; /* the builder that all destroyed queue pairs share: its requests are dropped */
	size_t n, sges, octets;
	/*
	 * The following arrays grow as needed. Pointers between the arrays are set when the list is
	 * complete.
	 */
	struct siw_send_wr *wr;
	size_t wr_room;
	size_t *first_sge; /* index of the first SGE of each request */
	struct ibv_sge *sge;
	size_t sge_room;
	/*
	 * copies of inline data; until the list is complete, sge.addr of inline data is an offset
	 * into `inlined`
	 */
	char *inlined;
	size_t inlined_room;
};

static struct abi_builder *builder_of_qp_ex(struct ibv_qp_ex *qp)
{
	return ((struct abi_qp *)qp)->builder;
}

/* Ensures that *array has space for `wanted` elements of `size` octets. */
static bool builder_grow_array_if_needed(struct abi_builder *b, void *array, size_t *have,
					 size_t wanted, size_t size)
{
	size_t n = *have ? *have : 16;
	void *bigger;

	if (wanted <= *have)
		return true;
	while (n < wanted)
		n *= 2;
	bigger = realloc(*(void **)array, n * size);
	if (!bigger) {
		b->err = ENOMEM;
		return false;
	}
	*(void **)array = bigger;
	*have = n;
	return true;
}

/* Begins a request. Returns NULL if an earlier request failed or memory is exhausted. */
static struct siw_send_wr *builder_begin_wr(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode)
{
	struct abi_builder *b = builder_of_qp_ex(qp);
	size_t index_room = b->wr_room;
	struct siw_send_wr *wr;

	if (b->err ||
	    !builder_grow_array_if_needed(b, &b->first_sge, &index_room, b->n + 1,
					  sizeof(*b->first_sge)) ||
	    !builder_grow_array_if_needed(b, &b->wr, &b->wr_room, b->n + 1, sizeof(*b->wr)))
		return NULL;
	b->first_sge[b->n] = b->sges;
	wr = &b->wr[b->n++];
	memset(wr, 0, sizeof(*wr));
	wr->wr_id = qp->wr_id;
	/* the setters of inline data set IBV_SEND_INLINE */
	wr->send_flags = qp->wr_flags & ~(unsigned int)IBV_SEND_INLINE;
	wr->opcode = (int)opcode;
	return wr;
}

static void builder_fail(struct ibv_qp_ex *qp, int why)
{
	if (!builder_of_qp_ex(qp)->err)
		builder_of_qp_ex(qp)->err = why;
}

/* ---- operations ------------------------------------------------------------------------------ */

static void wr_rdma(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t rkey,
		    uint64_t remote_addr, __be32 imm_data)
{
	struct siw_send_wr *wr = builder_begin_wr(qp, opcode);

	if (!wr)
		return;
	wr->wr.rdma.remote_addr = remote_addr;
	wr->wr.rdma.rkey = rkey;
	wr->imm_data = imm_data;
}

static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
{
	wr_rdma(qp, IBV_WR_RDMA_READ, rkey, remote_addr, 0);
}

static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
{
	wr_rdma(qp, IBV_WR_RDMA_WRITE, rkey, remote_addr, 0);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
			      __be32 imm_data)
{
	wr_rdma(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote_addr, imm_data);
}

static void wr_atomic(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t rkey,
		      uint64_t remote_addr, uint64_t compare_add, uint64_t swap)
{
	struct siw_send_wr *wr = builder_begin_wr(qp, opcode);

	if (!wr)
		return;
	wr->wr.atomic.remote_addr = remote_addr;
	wr->wr.atomic.rkey = rkey;
	wr->wr.atomic.compare_add = compare_add;
	wr->wr.atomic.swap = swap;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
			      uint64_t compare, uint64_t swap)
{
	wr_atomic(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote_addr, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
				uint64_t add)
{
	wr_atomic(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote_addr, add, 0);
}

static void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey,
		       const struct ibv_mw_bind_info *bind_info)
{
	struct siw_send_wr *wr = builder_begin_wr(qp, IBV_WR_BIND_MW);

	if (!wr)
		return;
	if (!abi_is_live_object(ABI_MW, mw) || !bind_info ||
	    abi_convert_bind_info(bind_info, &wr->bind_mw.bind_info)) {
		builder_fail(qp, EINVAL);
		return;
	}
	wr->bind_mw.mw = ((struct abi_mw *)mw)->siw;
	wr->bind_mw.rkey = rkey;
}

static void wr_begin_send(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t imm_or_key)
{
	struct siw_send_wr *wr = builder_begin_wr(qp, opcode);

	if (wr)
		wr->imm_data = imm_or_key;
}

static void wr_local_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey)
{
	wr_begin_send(qp, IBV_WR_LOCAL_INV, invalidate_rkey);
}

static void wr_send(struct ibv_qp_ex *qp)
{
	wr_begin_send(qp, IBV_WR_SEND, 0);
}

static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm_data)
{
	wr_begin_send(qp, IBV_WR_SEND_WITH_IMM, imm_data);
}

static void wr_send_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey)
{
	wr_begin_send(qp, IBV_WR_SEND_WITH_INV, invalidate_rkey);
}

static void wr_send_tso(struct ibv_qp_ex *qp, void *hdr, uint16_t hdr_sz, uint16_t mss)
{
	(void)hdr;
	(void)hdr_sz;
	(void)mss;
	builder_fail(qp, EOPNOTSUPP);
}

static void wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
			    const void *atomic_wr)
{
	(void)rkey;
	(void)remote_addr;
	(void)atomic_wr;
	builder_fail(qp, EOPNOTSUPP);
}

/* ---- setters of the last request ------------------------------------------------------------- */

static struct siw_send_wr *builder_last_wr(struct ibv_qp_ex *qp)
{
	struct abi_builder *b = builder_of_qp_ex(qp);

	if (!b->n)
		builder_fail(qp, EINVAL);
	return b->err ? NULL : &b->wr[b->n - 1];
}

static void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t remote_qpn,
			   uint32_t remote_qkey)
{
	struct siw_send_wr *wr = builder_last_wr(qp);

	if (!wr)
		return;
	wr->wr.ud.ah = (struct siw_ah *)ah;
	wr->wr.ud.remote_qpn = remote_qpn;
	wr->wr.ud.remote_qkey = remote_qkey;
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t remote_srqn)
{
	(void)remote_srqn;
	builder_fail(qp, EOPNOTSUPP);
}

/* Replaces the scatter/gather elements of the last request. */
static void builder_set_sges(struct ibv_qp_ex *qp, size_t n, const struct ibv_sge *list)
{
	struct abi_builder *b = builder_of_qp_ex(qp);
	struct siw_send_wr *wr = builder_last_wr(qp);

	if (!wr)
		return;
	b->sges = b->first_sge[b->n - 1];
	if (n > ((struct abi_qp *)qp)->cap.max_send_sge || (n && !list)) {
		builder_fail(qp, EINVAL);
		return;
	}
	if (!n ||
	    !builder_grow_array_if_needed(b, &b->sge, &b->sge_room, b->sges + n, sizeof(*list)))
		return;
	wr->send_flags &= ~(uint32_t)IBV_SEND_INLINE;
	memcpy(b->sge + b->sges, list, n * sizeof(*list));
	b->sges += n;
	wr->num_sge = (int)n;
}

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	const struct ibv_sge one = { .addr = addr, .length = length, .lkey = lkey };

	builder_set_sges(qp, 1, &one);
}

static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t num_sge, const struct ibv_sge *sg_list)
{
	builder_set_sges(qp, num_sge, sg_list);
}

/*
 * Copies inline data into one element during the call, because the program may change the data
 * afterwards.
 */
static void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t num_buf,
				    const struct ibv_data_buf *buf_list)
{
	struct abi_builder *b = builder_of_qp_ex(qp);
	struct siw_send_wr *wr = builder_last_wr(qp);
	struct ibv_sge one = { .addr = b->octets };
	size_t total = 0;

	if (!wr)
		return;
	if (num_buf && !buf_list) {
		builder_fail(qp, EINVAL);
		return;
	}
	for (size_t i = 0; i < num_buf; i++) {
		if (buf_list[i].length && !buf_list[i].addr) {
			builder_fail(qp, EINVAL);
			return;
		}
		total += buf_list[i].length;
		if (total > ((struct abi_qp *)qp)->cap.max_inline_data) {
			/* the error that ibv_wr_set_inline_data_list(3) specifies */
			builder_fail(qp, ENOMEM);
			return;
		}
	}
	if (!builder_grow_array_if_needed(b, &b->inlined, &b->inlined_room, b->octets + total, 1))
		return;
	for (size_t i = 0; i < num_buf; i++) {
		if (buf_list[i].length)
			memcpy(b->inlined + b->octets, buf_list[i].addr, buf_list[i].length);
		b->octets += buf_list[i].length;
	}
	one.length = (uint32_t)total;
	builder_set_sges(qp, total ? 1 : 0, &one);
	wr->send_flags |= IBV_SEND_INLINE;
}

static void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)
{
	const struct ibv_data_buf one = { addr, length };

	wr_set_inline_data_list(qp, 1, &one);
}

/* ---- lists of requests ----------------------------------------------------------------------- */

/*
 * Begins a list of requests. A second call before the end of the list makes the complete list fail.
 */
static void wr_start(struct ibv_qp_ex *qp)
{
	struct abi_builder *b = builder_of_qp_ex(qp);

	if (b->dead || b->forks != abi_forks)
		return;
	if (pthread_mutex_lock(&b->lock)) {
		builder_fail(qp, EINVAL);
		return;
	}
	b->open = true;
	b->err = 0;
	b->n = b->sges = b->octets = 0;
}

static void builder_link_requests(struct abi_builder *b)
{
	for (size_t i = 0; i < b->n; i++) {
		struct siw_send_wr *wr = &b->wr[i];

		wr->next = i + 1 < b->n ? wr + 1 : NULL;
		wr->sg_list = (struct siw_sge *)(b->sge + b->first_sge[i]);
		if (wr->send_flags & IBV_SEND_INLINE && wr->num_sge)
			wr->sg_list->addr += (uintptr_t)b->inlined;
	}
}

/* Posts the complete list of requests or, on an error, no request. */
static int builder_post(struct abi_qp *qp, struct abi_builder *b)
{
	struct siw_send_wr *bad;

	builder_link_requests(b);
	return -(b->n > 1 ? siw_post_send_all(qp->siw, b->wr, &bad)
			  : siw_post_send(qp->siw, b->wr, &bad));
}

static int wr_complete(struct ibv_qp_ex *qp)
{
	struct abi_builder *b = builder_of_qp_ex(qp);
	int r;

	if (b->dead)
		return abi_post_dropped();
	if (b->forks != abi_forks)
		return abi_fail(ESTALE);
	if (!b->open)
		return abi_fail(EINVAL);
	r = b->err;
	if (!r && b->n)
		r = builder_post((struct abi_qp *)qp, b);
	b->open = false;
	pthread_mutex_unlock(&b->lock);
	if (r && atomic_load(&((struct abi_qp *)qp)->ending))
		return abi_post_dropped();
	return r ? abi_fail(r) : 0;
}

static void wr_abort(struct ibv_qp_ex *qp)
{
	struct abi_builder *b = builder_of_qp_ex(qp);

	if (!b->open)
		return;
	b->open = false;
	pthread_mutex_unlock(&b->lock);
}

/* Returns the operations of a queue pair type: a set of enum ibv_qp_create_send_ops_flags. */
static uint64_t supported_send_ops_of_qp_type(enum ibv_qp_type type)
{
	const uint64_t sends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	const uint64_t tagged = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
				IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;

	switch (type) {
	case IBV_QPT_RC:
		return sends | tagged | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND_WITH_INV |
		       IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	case IBV_QPT_UC:
		return sends | tagged | IBV_QP_EX_WITH_SEND_WITH_INV;
	default:
		return sends;
	}
}

int abi_wr_builder_create(struct abi_qp *qp, uint64_t send_ops_flags)
{
	struct ibv_qp_ex *ibv = &qp->ibv;

	if (send_ops_flags & ~supported_send_ops_of_qp_type(ibv->qp_base.qp_type))
		return EOPNOTSUPP;
	qp->builder = calloc(1, sizeof(*qp->builder));
	if (!qp->builder)
		return ENOMEM;
	abi_init_checked_mutex(&qp->builder->lock);
	qp->builder->forks = abi_forks;
	/*
	 * All functions are set, regardless of send_ops_flags, because unsupported operations are
	 * refused when they are posted.
	 */
	ibv->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	ibv->wr_atomic_fetch_add = wr_atomic_fetch_add;
	ibv->wr_bind_mw = wr_bind_mw;
	ibv->wr_local_inv = wr_local_inv;
	ibv->wr_rdma_read = wr_rdma_read;
	ibv->wr_rdma_write = wr_rdma_write;
	ibv->wr_rdma_write_imm = wr_rdma_write_imm;
	ibv->wr_send = wr_send;
	ibv->wr_send_imm = wr_send_imm;
	ibv->wr_send_inv = wr_send_inv;
	ibv->wr_send_tso = wr_send_tso;
	ibv->wr_set_ud_addr = wr_set_ud_addr;
	ibv->wr_set_xrc_srqn = wr_set_xrc_srqn;
	ibv->wr_set_inline_data = wr_set_inline_data;
	ibv->wr_set_inline_data_list = wr_set_inline_data_list;
	ibv->wr_set_sge = wr_set_sge;
	ibv->wr_set_sge_list = wr_set_sge_list;
	ibv->wr_start = wr_start;
	ibv->wr_complete = wr_complete;
	ibv->wr_abort = wr_abort;
	ibv->wr_atomic_write = wr_atomic_write;
	return 0;
}

void abi_wr_builder_destroy(struct abi_qp *qp)
{
	static struct abi_builder dead = { .dead = true, .err = EINVAL };
	struct abi_builder *b = qp->builder;

	if (!b || b == &dead)
		return;
	qp->builder = &dead;
	free(b->wr);
	free(b->first_sge);
	free(b->sge);
	free(b->inlined);
	free(b);
}
