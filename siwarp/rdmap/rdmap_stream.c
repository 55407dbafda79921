/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_stream.c - creates RDMAP streams, and starts them on a connection (RFC 5040 section
 * 6.1).
 */
#include <errno.h>
#include <stdlib.h>

#include "rdmap/rdmap_impl.h"

struct siw_rdmap_stream *siw_rdmap_stream_new(uint32_t user_octets)
{
	struct siw_rdmap_stream *stream;

	if (posix_memalign((void **)&stream, 64, sizeof(*stream) + user_octets))
		return NULL;
	memset(stream, 0, sizeof(*stream) + user_octets);
	return stream;
}

void siw_rdmap_stream_free(struct siw_rdmap_stream *stream)
{
	if (stream->q_read)
		siw_mem_buffer_queue_destroy(stream->q_read);
	if (stream->q_term)
		siw_mem_buffer_queue_destroy(stream->q_term);
	if (stream->q_atomic)
		siw_mem_buffer_queue_destroy(stream->q_atomic);
	free(stream->reads);
	free(stream);
}

int siw_rdmap_open(struct siw_mem *mem, struct siw_ddp_stream *ddp, struct siw_rdmap_stream **out)
{
	struct siw_rdmap_stream *stream = siw_rdmap_stream_new(0);

	if (!stream)
		return -ENOMEM;
	stream->mem = mem;
	stream->type = &siw_rdmap_connection;
	stream->ddp = ddp;
	*out = stream;
	return 0;
}

int siw_rdmap_refuse_with_terminate(struct siw_rdmap_stream *stream, const struct siw_wire_err *err)
{
	if (stream->started)
		return -EINVAL;
	stream->started = true;
	siw_rdmap_record_first_error(stream, *err, NULL, NULL);
	return siw_rdmap_terminate(stream);
}

/* ---- start ----------------------------------------------------------------------------------- */

static uint32_t round_up_to_power_of_two(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p *= 2;
	return p;
}

/*
 * Allocates the rings for Reads and for requests, and the buffers of queue 1, in one block that
 * begins with the ring of Reads. The block is not cleared, because entries are written completely
 * before they are read: clearing would make the kernel allocate all pages of the block, and an idle
 * connection should use little memory.
 */
static int stream_alloc_rings(struct siw_rdmap_stream *stream, uint32_t ird, uint32_t ord)
{
	uint32_t reads = round_up_to_power_of_two(ord), requests = round_up_to_power_of_two(ird);

	stream->reads =
		malloc(reads * sizeof(*stream->reads) + requests * sizeof(*stream->requests) +
		       requests * sizeof(*stream->read_bufs));
	if (!stream->reads)
		return -ENOMEM;
	stream->requests = (void *)(stream->reads + reads);
	stream->read_bufs = (void *)(stream->requests + requests);
	stream->read_mask = reads - 1;
	stream->request_mask = requests - 1;
	return 0;
}

_Static_assert(_Alignof(struct siw_rdmap_read) >= _Alignof(struct siw_rdmap_request) &&
		       _Alignof(struct siw_rdmap_request) >=
			       _Alignof(union siw_rdmap_wire_atomic_request),
	       "each part of the block is aligned if the preceding part is");

/*
 * Creates queue 1, with one buffer for each Read or Atomic Request that the peer may have
 * outstanding (RFC5040-5.2.2-03, RFC7306-5.2.2-05); one negotiated number limits Reads and atomics
 * together.
 */
static int stream_create_read_queue(struct siw_rdmap_stream *stream, uint32_t n)
{
	struct siw_mem_queue_attr attr = { .depth = n, .max_sge = 1, .internal = true };
	uint32_t i;
	int r;

	r = siw_mem_buffer_queue_create(&attr, &stream->q_read);
	if (r)
		return r;
	for (i = 0; i < n; i++) {
		struct siw_sge sge = { (uintptr_t)&stream->read_bufs[i], sizeof(*stream->read_bufs),
				       0 };

		siw_mem_buffer_queue_post(stream->q_read, i, &sge, 1);
	}
	siw_ddp_stream_set_buffer_queue(stream->ddp, SIW_RDMAP_QN_READ, stream->q_read);
	return 0;
}

/* Creates a queue with one buffer, whose memory is part of the stream. */
static int stream_create_queue(struct siw_rdmap_stream *stream, uint32_t qn, void *buffer,
			       size_t size, struct siw_mem_buffer_queue **out)
{
	struct siw_mem_queue_attr attr = { .depth = 1, .max_sge = 1, .internal = true };
	struct siw_sge sge = { (uintptr_t)buffer, (uint32_t)size, 0 };
	int r = siw_mem_buffer_queue_create(&attr, out);

	if (r)
		return r;
	siw_mem_buffer_queue_post(*out, 0, &sge, 1);
	siw_ddp_stream_set_buffer_queue(stream->ddp, qn, *out);
	return 0;
}

/*
 * Creates queues 2 and 3. Queue 2 has one buffer, so that one Terminate can always be placed
 * (RFC5040-5.4-05). Queue 3, for Atomic Responses, has one buffer, which is posted again before the
 * next response is handled (RFC7306-5.2.2-06).
 */
static int stream_create_terminate_and_atomic_queues(struct siw_rdmap_stream *stream)
{
	int r = stream_create_queue(stream, SIW_RDMAP_QN_TERMINATE, stream->term_in,
				    sizeof(stream->term_in), &stream->q_term);

	return r ? r
		 : stream_create_queue(stream, SIW_RDMAP_QN_ATOMIC, &stream->atomic_response_in,
				       sizeof(stream->atomic_response_in), &stream->q_atomic);
}

static int stream_send_empty_write(struct siw_rdmap_stream *stream)
{
	struct siw_ddp_msg *msg = siw_ddp_tx_get_msg_to_fill(stream->ddp, false);
	struct siw_wire_err err;

	if (!msg)
		return -EBUSY;
	*msg = (struct siw_ddp_msg){
		.tagged = true,
		.ulp_octet = siw_rdmap_ctrl(SIW_RDMAP_WRITE),
		.stag = 1,
	};
	return siw_ddp_tx(stream->ddp, msg, &err);
}

/*
 * Sends the RTR, the initiator's first FPDU in peer-to-peer mode (RFC 6581 section 4). The STag of
 * the RTR is unused, but not 0, because some responders reject 0.
 */
static int stream_send_rtr(struct siw_rdmap_stream *stream, uint8_t rtr)
{
	struct siw_rdmap_op read = { .opcode = SIW_RDMAP_READ_REQUEST, .rkey = 1 };
	uint64_t accepted;
	int r;

	if (rtr == SIW_MPA_RTR_FPDU)
		r = siw_ddp_tx_empty_fpdu(stream->ddp);
	else if (rtr == SIW_MPA_RTR_WRITE)
		r = stream_send_empty_write(stream);
	else
		r = siw_rdmap_begin_read(stream, &read, SIW_RDMAP_READ_RTR);
	if (r < 0)
		return r;
	r = siw_ddp_tx_flush(stream->ddp, &accepted);
	return r < 0 ? r : 0;
}

int siw_rdmap_start(struct siw_rdmap_stream *stream, const struct siw_rdmap_start *start)
{
	/* A Read used as RTR needs a slot even if no Reads were negotiated. */
	uint32_t extra = start->rtr == SIW_MPA_RTR_READ;
	uint32_t ird = start->ird > extra ? start->ird : extra;
	uint32_t ord = start->ord > extra ? start->ord : extra, reads;
	uint64_t taken;
	int r;

	if (stream->started || start->ird > SIW_RDMAP_MAX_READS ||
	    start->ord > SIW_RDMAP_MAX_READS || start->rtr >= SIW_MPA_RTR_READ << 1 ||
	    (start->initiator && start->rtr & (start->rtr - 1)))
		return -EINVAL;
	stream->pd = start->pd;
	stream->ord = start->ord;
	r = stream_alloc_rings(stream, ird, ord);
	if (r)
		return r;
	r = stream_create_read_queue(stream, ird);
	if (r)
		return r;
	r = stream_create_terminate_and_atomic_queues(stream);
	if (r)
		return r;
	/* Reads are numbered by their MSNs, so the ring positions start with the last MSN. */
	reads = siw_ddp_last_tx_msn(stream->ddp, SIW_RDMAP_QN_READ);
	atomic_store_explicit(&stream->reads_begun, reads, memory_order_relaxed);
	atomic_store_explicit(&stream->reads_done, reads, memory_order_relaxed);
	/* No message was received yet, so there is no delivery count to report. */
	taken = (uint64_t)siw_ddp_last_delivered_msn(stream->ddp) << SIW_RDMAP_SENDS_SHIFT;
	atomic_store_explicit(&stream->deliverable, taken, memory_order_relaxed);
	atomic_store_explicit(&stream->tx.reported, taken, memory_order_relaxed);
	stream->denied = start->denied;
	siw_ddp_stream_set_pd(stream->ddp, start->pd);
	if (start->owner)
		siw_ddp_stream_set_stag_identity(stream->ddp, start->owner);
	stream->private = start->private;
	stream->counts = start->counts;
	stream->offers = start->offers && !start->counts;
	siw_ddp_stream_set_opcodes_with_ulp_header(
		stream->ddp,
		1 << SIW_RDMAP_IMMEDIATE | 1 << SIW_RDMAP_IMMEDIATE_SE | 1 << SIW_RDMAP_PRIVATE);
	siw_ddp_stream_enable_unexpected_segments(stream->ddp, start->unexpected_octets,
						  start->deliver_before_end);
	siw_ddp_stream_set_buffer_queue(stream->ddp, SIW_RDMAP_QN_SEND, start->recvs);
	stream->started = true;
	if (!start->initiator) {
		stream->rx.want_rtr = start->rtr;
		siw_ddp_stream_set_accept_empty_rtr(stream->ddp, SIW_RDMAP_QN_SEND,
						    start->rtr & SIW_MPA_RTR_FPDU);
		return 0;
	}
	stream->rx.first_fpdu_seen = true;
	return start->rtr ? stream_send_rtr(stream, start->rtr) : 0;
}

/* ---- close ----------------------------------------------------------------------------------- */

void siw_rdmap_deny_access_rights(struct siw_rdmap_stream *stream, uint32_t denied)
{
	stream->denied = denied;
}

void siw_rdmap_close(struct siw_rdmap_stream *stream)
{
	siw_rdmap_traffic_report(&stream->traffic);
	siw_rdmap_free_all_reads(stream);
	siw_ddp_stream_close(stream->ddp);
	siw_rdmap_stream_free(stream);
}
