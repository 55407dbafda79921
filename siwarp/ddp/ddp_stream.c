/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_stream.c - DDP stream objects and their settings: queues, protection domain, identity.
 * The caller sets up and tears down the underlying connection (RFC5041-6.2-01).
 */
#include <errno.h>
#include <stdlib.h>

#include "base/os.h"
#include "ddp/ddp_lower.h"
#include "llp/llp.h"
#include "mpa/mpa.h"

void siw_ddp_stream_close(struct siw_ddp_stream *stream)
{
	siw_ddp_free_unexpected_segments(stream);
	free(stream->responses);
	free(stream);
}

struct siw_ddp_stream *siw_ddp_stream_new(struct siw_mem *mem)
{
	struct siw_ddp_stream *stream;
	int qn;

	if (posix_memalign((void **)&stream, 64, sizeof(*stream)))
		return NULL;
	memset(stream, 0, sizeof(*stream));
	stream->mem = mem;
	stream->identity = stream;
	for (qn = 0; qn < SIW_DDP_QUEUES; qn++) /* RFC5041-4.3-09 */
		stream->rx.q[qn].msn = stream->tx.msn[qn] = siw_initial_sequence(1);
	return stream;
}

int siw_ddp_stream_open(struct siw_mem *mem, struct siw_mpa_stream *mpa,
			struct siw_ddp_stream **out)
{
	struct siw_ddp_stream *stream = siw_ddp_stream_new(mem);

	if (!stream)
		return -ENOMEM;
	stream->mpa = mpa;
	stream->lower = &siw_ddp_lower_mpa;
	*out = stream;
	return 0;
}

void siw_ddp_stream_drop_unexpected_segments(struct siw_ddp_stream *stream)
{
	if (stream->rx.unexpected.full)
		siw_llp_sock_resume(siw_mpa_sock(stream->mpa));
	siw_ddp_free_unexpected_segments(stream);
}

void siw_ddp_stream_set_buffer_queue(struct siw_ddp_stream *stream, uint32_t qn,
				     struct siw_mem_buffer_queue *queue)
{
	if (qn < SIW_DDP_QUEUES)
		stream->rx.q[qn].queue = queue;
}

void siw_ddp_stream_set_pd(struct siw_ddp_stream *stream, uint32_t pd)
{
	stream->pd = pd;
}

void siw_ddp_stream_set_accept_empty_rtr(struct siw_ddp_stream *stream, uint32_t qn, bool on)
{
	if (qn < SIW_DDP_QUEUES)
		stream->rx.q[qn].accept_empty_rtr = on;
}

void siw_ddp_stream_set_opcodes_with_ulp_header(struct siw_ddp_stream *stream, uint16_t set)
{
	stream->rx.headed = set;
}

void siw_ddp_stream_set_stag_identity(struct siw_ddp_stream *stream, const void *identity)
{
	stream->identity = identity;
}

const void *siw_ddp_stream_get_stag_identity(const struct siw_ddp_stream *stream)
{
	return stream->identity;
}

int siw_ddp_stream_pop_partial_buffer(struct siw_ddp_stream *stream, uint32_t qn,
				      uint64_t *user_data)
{
	struct siw_ddp_rxq *q;

	if (qn >= SIW_DDP_QUEUES || !stream->rx.q[qn].begun)
		return 0;
	q = &stream->rx.q[qn];
	q->begun = false;
	*user_data = q->buf.user_data;
	return 1;
}

void siw_ddp_set_msn_for_tests(struct siw_ddp_stream *stream, uint32_t qn, uint32_t msn)
{
	stream->rx.q[qn].msn = stream->tx.msn[qn] = msn;
	if (stream->responses)
		stream->responses->msn[qn] = msn;
}
