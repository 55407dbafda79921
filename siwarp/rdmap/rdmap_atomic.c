/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_atomic.c - atomic operations (RFC 7306 section 5), requester and responder. Atomics
 * use the rings of RDMA Reads, and share the limits and the order of Reads.
 *
 * An atomic of the peer is executed when its response is sent, not when its request arrives: by
 * then, earlier requests have been answered, and earlier messages have been received.
 */
#include <errno.h>

#include "rdmap/rdmap_impl.h"

static const struct siw_wire_err UNSPECIFIED = { SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION,
						 SIW_RDMAP_UNSPECIFIED };
static const struct siw_wire_err UNEXPECTED = { SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_OPERATION,
						SIW_RDMAP_OPCODE };

/* ---- requester ------------------------------------------------------------------------------- */

int siw_rdmap_begin_atomic(struct siw_rdmap_stream *stream, struct siw_rdmap_op *op)
{
	const struct siw_rdmap_atomic *atomic = op->atomic;
	struct siw_rdmap_read *read = siw_rdmap_next_read_slot(stream);
	struct iovec iov[SIW_MEM_MAX_SGE];
	int r;

	if (!read)
		return -EAGAIN;
	if (op->length != sizeof(stream->atomic_response_in.original))
		return -EINVAL;
	r = siw_mem_sgl_resolve(stream->mem, op->sgl, op->nsge, false, stream->pd, true, 0,
				op->length, iov, SIW_MEM_MAX_SGE);
	if (r < 0)
		return r;
	read->user_data = op->user_data;
	read->stag = 0;
	read->length = (uint32_t)op->length;
	read->placed = 0;
	read->silent = read->confirm = read->refused = false;
	read->atomic = true;
	read->sgl = op->sgl;
	read->nsge = op->nsge;
	read->wire.atomic = (struct siw_rdmap_wire_atomic){
		.aop = htobe32(atomic->kind),
		.request = htobe32(siw_rdmap_begun_read_count(stream) + 1),
		.stag = htobe32(op->rkey),
		.to = htobe64(op->remote_to),
		.data = htobe64(atomic->data),
		.mask = htobe64(atomic->mask),
		/*
		 * FetchAdd does not use compare and compare_mask; RFC 7306 requires the values 0
		 * and all ones.
		 */
		.compare = htobe64(atomic->kind == SIW_RDMAP_CMP_SWAP ? atomic->compare : 0),
		.compare_mask = htobe64(atomic->kind == SIW_RDMAP_CMP_SWAP ? atomic->compare_mask
									   : UINT64_MAX),
	};
	return siw_rdmap_send_read_or_atomic_request(stream, read, op, SIW_RDMAP_ATOMIC_LEN);
}

bool siw_rdmap_check_atomic_response(struct siw_rdmap_stream *stream, const struct siw_ddp_seg *seg,
				     struct siw_wire_err *err)
{
	const struct siw_rdmap_read *read = siw_rdmap_oldest_outstanding_read(stream);

	*err = UNEXPECTED;
	if (!read || !read->atomic)
		return false;
	/* RFC 7306 has no error code for a response that is too short. */
	*err = UNSPECIFIED;
	return !seg->last || seg->mo + seg->payload == SIW_RDMAP_ATOMIC_RESPONSE_LEN;
}

bool siw_rdmap_complete_atomic(struct siw_rdmap_stream *stream, uint32_t length,
			       struct siw_rdmap_event *event, struct siw_wire_err *err)
{
	const struct siw_rdmap_wire_atomic_response *wire = &stream->atomic_response_in;
	struct siw_sge sge = { (uintptr_t)wire, SIW_RDMAP_ATOMIC_RESPONSE_LEN, 0 };
	struct siw_rdmap_read *read = siw_rdmap_oldest_outstanding_read(stream);
	uint64_t original = be64toh(wire->original);

	/*
	 * One buffer for Atomic Responses is enough, because each response is processed before the
	 * next response is placed. The buffer is posted again even if the response is invalid,
	 * because on reliable datagrams further responses follow.
	 */
	siw_mem_buffer_queue_post(stream->q_atomic, 0, &sge, 1);
	*err = UNSPECIFIED;
	if (length != SIW_RDMAP_ATOMIC_RESPONSE_LEN || wire->request != read->wire.atomic.request)
		return false;
	*err = (struct siw_wire_err){ SIW_LAYER_DDP, SIW_DDP_LOCAL_CATASTROPHIC, 0 };
	if (siw_mem_sgl_write(stream->mem, read->sgl, read->nsge, stream->pd, &original,
			      sizeof(original)))
		return false;
	siw_rdmap_complete_read(stream, read, event);
	return true;
}

/* ---- responder ------------------------------------------------------------------------------- */

bool siw_rdmap_atomic_is_allowed(struct siw_rdmap_stream *stream,
				 const struct siw_rdmap_wire_atomic *wire, struct siw_wire_err *err)
{
	uint32_t kind = be32toh(wire->aop) & SIW_RDMAP_AOP_MASK;

	if (kind != SIW_RDMAP_FETCH_ADD && kind != SIW_RDMAP_CMP_SWAP) { /* RFC7306-5.2.1-08 */
		*err = UNEXPECTED;
		return false;
	}
	if (stream->denied & SIW_MEM_REMOTE_ATOMIC) {
		*err = (struct siw_wire_err){ SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_PROTECTION,
					      SIW_RDMAP_ACCESS };
		return false;
	}
	return siw_mem_atomic(stream->mem, be32toh(wire->stag), stream->pd,
			      siw_ddp_stream_get_stag_identity(stream->ddp), be64toh(wire->to),
			      NULL, NULL, err) == 0;
}

int siw_rdmap_execute_atomic_and_respond(struct siw_rdmap_stream *stream,
					 struct siw_rdmap_request *request,
					 struct siw_wire_err *err)
{
	const struct siw_rdmap_wire_atomic *wire = &request->wire.atomic;
	struct siw_mem_atomic op = {
		.kind = be32toh(wire->aop) & SIW_RDMAP_AOP_MASK,
		.data = be64toh(wire->data),
		.mask = be64toh(wire->mask),
		.compare = be64toh(wire->compare),
		.compare_mask = be64toh(wire->compare_mask),
	};
	struct siw_ddp_msg *msg = siw_ddp_tx_get_msg_to_fill(stream->ddp, true);
	uint64_t original;
	int r;

	if (!msg)
		return -EBUSY;
	if (!request->carried_out) {
		r = siw_mem_atomic(stream->mem, be32toh(wire->stag), stream->pd,
				   siw_ddp_stream_get_stag_identity(stream->ddp), be64toh(wire->to),
				   &op, &original, err);
		if (r)
			return r;
		request->carried_out = true;
		request->response =
			(struct siw_rdmap_wire_atomic_response){ wire->request, htobe64(original) };
		request->response_sge = (struct siw_sge){ (uintptr_t)&request->response,
							  SIW_RDMAP_ATOMIC_RESPONSE_LEN, 0 };
	}
	*msg = (struct siw_ddp_msg){
		.internal = true,
		.ulp_octet = siw_rdmap_ctrl(SIW_RDMAP_ATOMIC_RESPONSE),
		.qn = SIW_RDMAP_QN_ATOMIC, /* RFC7306-5.2-02 */
		.sgl = &request->response_sge,
		.nsge = 1,
		.length = SIW_RDMAP_ATOMIC_RESPONSE_LEN,
	};
	return siw_ddp_tx(stream->ddp, msg, err);
}
