/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fuzzes RDMAP messages on a stream: Sends, Writes, Read Requests and responses, Terminates. As the
 * initiator, the harness has one RDMA Read outstanding, whose sink STag the input writes as "SINK".
 */
#include "fuzz.h"
#include "llp/llp.h"
#include "mpa/mpa.h"
#include "ddp/ddp.h"
#include "rdmap/rdmap.h"

#define REGION 3000
#define BASE   0x10000

static struct siw_mem *mem;
static struct siw_llp_poller *poller;
static struct siw_mpa_stream *mpa;
static struct siw_ddp_stream *ddp;
static uint32_t stag;
static uint8_t *region, *buffers;
static uint32_t buffers_key;

static void create_poller_and_buffers(void)
{
	struct siw_mem_region r = { .length = REGION,
				    .pd = 1,
				    .rights = SIW_MEM_LOCAL_READ | 1 | 2 | 4 | 8 };

	region = calloc(1, REGION);
	buffers = malloc(400);
	CHECK(region && buffers && siw_llp_poller_open(NULL, &poller) == 0 &&
	      siw_mem_stag_table_create(&mem) == 0);
	r.addr = region;
	r.to_base = (uintptr_t)region;
	CHECK(siw_mem_stag_alloc(mem, &r, &stag) == 0);
	r = (struct siw_mem_region){ .addr = buffers,
				     .to_base = (uintptr_t)buffers,
				     .length = 400,
				     .pd = 1,
				     .rights = SIW_MEM_LOCAL_READ | 1 };
	CHECK(siw_mem_stag_alloc(mem, &r, &buffers_key) == 0);
}

static struct siw_mem_buffer_queue *create_receive_queue(void)
{
	struct siw_mem_queue_attr attr = { .depth = 4, .max_sge = 2, .pd = 1 };
	struct siw_sge sge[2] = { { (uintptr_t)buffers, 20, buffers_key },
				  { (uintptr_t)buffers + 20, 380, buffers_key } };

	return fuzz_create_full_queue(&attr, sge);
}

/*
 * The tagged offsets of a region are virtual addresses, so the placeholder REGION in the input is
 * replaced with the region's address.
 */
static void replace_region_placeholders(struct fuzz_input *in)
{
	static const uint8_t word[6] = "REGION";
	uint64_t base = (uintptr_t)region;

	for (size_t i = 0; i + 8 <= in->len; i++)
		if (!memcmp(in->octets + i, word, 6)) {
			uint64_t to = base + ((uint64_t)in->octets[i + 6] << 8 | in->octets[i + 7]);

			for (int j = 0; j < 8; j++)
				in->octets[i + (size_t)j] = (uint8_t)(to >> (56 - 8 * j));
		}
}

static struct siw_rdmap_stream *open_rdmap_stream(void)
{
	struct siw_rdmap_stream *stream;

	CHECK(siw_ddp_stream_open(mem, mpa, &ddp) == 0);
	CHECK(siw_rdmap_open(mem, ddp, &stream) == 0);
	return stream;
}

static struct siw_rdmap_stream *open_rdmap_stream_as_responder(const struct fuzz_input *in,
							       struct siw_mem_buffer_queue *q,
							       struct siw_llp_sock **listener)
{
	struct siw_mpa_params peer, reply = { .ird = 4, .ord = 4 };
	struct siw_rdmap_start start = { .recvs = q,
					 .pd = 1,
					 .ird = 4,
					 .ord = 4,
					 .unexpected_octets = in->flags & FUZZ_OWN ? 500 : 0,
					 .private = in->flags & FUZZ_OWN,
					 .counts = in->flags & FUZZ_OWN,
					 .rtr = in->flags & FUZZ_REFUSE ? 2 : 0 };
	struct siw_rdmap_stream *stream;

	reply.markers = !!(in->flags & FUZZ_MARKERS);
	CHECK(siw_llp_tcp_listen(poller, &fuzz_addr, 1, NULL, listener) == 0);
	CHECK(siw_mpa_accept_connection(*listener, NULL, &mpa) == 0);
	CHECK(siw_mpa_startup(mpa, &peer) == SIW_MPA_REQUEST);
	CHECK(siw_mpa_send_startup_reply(mpa, &reply) == 0);
	stream = open_rdmap_stream();
	CHECK(siw_rdmap_start(stream, &start) == 0);
	return stream;
}

static struct siw_rdmap_stream *open_rdmap_stream_and_post_read(struct fuzz_input *in,
								struct siw_mem_buffer_queue *q)
{
	struct siw_mpa_params peer,
		ask = { .rev = 2, .enhanced = 1, .ird = 4, .ord = 4, .crc = in->flags & FUZZ_CRC };
	struct siw_rdmap_start start = {
		.recvs = q, .pd = 1, .ird = 4, .ord = 4, .initiator = true
	};
	/* static, because both variables must exist as long as the Read is outstanding */
	static struct siw_sge sink_sge;
	static struct siw_rdmap_op read;
	struct siw_rdmap_stream *stream;
	uint64_t accepted;
	uint32_t sink;

	sink_sge = (struct siw_sge){ (uintptr_t)region, 100, stag };
	read = (struct siw_rdmap_op){ .opcode = SIW_RDMAP_READ_REQUEST,
				      .user_data = 9,
				      .sgl = &sink_sge,
				      .nsge = 1,
				      .length = 100,
				      .rkey = 1 };
	CHECK(siw_mpa_connect(poller, &fuzz_addr, NULL, &ask, NULL, &mpa) == 0);
	CHECK(siw_mpa_startup(mpa, &peer) == SIW_MPA_REPLY);
	stream = open_rdmap_stream();
	CHECK(siw_rdmap_start(stream, &start) == 0);
	fuzz_n_sent = 0;
	CHECK(siw_rdmap_begin_op(stream, &read) == 0 && siw_rdmap_flush_tx(stream, &accepted) == 1);
	/*
	 * The request that was sent consists of length (2 octets), untagged header (18), then the
	 * sink's STag.
	 */
	memcpy(&sink, fuzz_sent + 2 + 18, 4);
	fuzz_replace_placeholder(in, "SINK", __builtin_bswap32(sink));
	return stream;
}

/* Handles one event of the stream. Returns false if the stream has ended. */
static bool handle_one_rdmap_event(struct siw_rdmap_stream *stream, int *idle)
{
	struct siw_rdmap_event event;
	uint64_t accepted;

	if (siw_rdmap_next_event(stream, &event) != 1) {
		*idle += fuzz_input_exhausted();
		return true;
	}
	switch (event.kind) {
	case SIW_RDMAP_ERROR:
		siw_rdmap_terminate(stream);
		return false;
	case SIW_RDMAP_TERMINATED:
	case SIW_RDMAP_CLOSED:
		return false;
	case SIW_RDMAP_RECV:
		CHECK(event.user_data < 4 && (event.of_write || event.length <= 400));
		break;
	case SIW_RDMAP_RNR_RETRY:
		CHECK(event.rnr_retry <= 7);
		break;
	/* Nothing was sent, so each delivery count is invalid; only some are refused here. */
	case SIW_RDMAP_DELIVERED:
		if (event.sends & 1)
			siw_rdmap_refuse_bad_delivery_count(stream);
		break;
	case SIW_RDMAP_READ_DONE:
		CHECK(event.user_data == 9 && event.length == 100);
		break;
	default:
		break;
	}
	if (siw_rdmap_has_unsent_delivery_count(stream))
		siw_rdmap_transmit_delivery_count(stream);
	siw_rdmap_flush_tx(stream, &accepted);
	return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct siw_llp_sock *listener = NULL;
	struct siw_rdmap_stream *stream;
	struct siw_mem_buffer_queue *q;
	struct fuzz_input in;
	uint8_t frame[64];
	uint64_t cookie;
	size_t n = 0;
	int idle = 0;

	if (!poller)
		create_poller_and_buffers();
	if (size)
		n = data[0] & FUZZ_INITIATOR ? fuzz_build_mpa_reply(frame, data[0])
					     : fuzz_build_mpa_request(frame, data[0]);
	if (!fuzz_input_init(data, size, frame, n, &in))
		return 0;
	fuzz_replace_placeholder(&in, "STAG", stag);
	replace_region_placeholders(&in);
	q = create_receive_queue();
	stream = in.flags & FUZZ_INITIATOR ? open_rdmap_stream_and_post_read(&in, q)
					   : open_rdmap_stream_as_responder(&in, q, &listener);
	while (idle < 4 && handle_one_rdmap_event(stream, &idle))
		;
	siw_ddp_stream_pop_partial_buffer(ddp, SIW_RDMAP_QN_SEND, &cookie);
	siw_rdmap_close(stream);
	siw_mpa_close(mpa, false);
	if (listener)
		siw_llp_close(listener);
	siw_mem_buffer_queue_destroy(q);
	fuzz_input_free(&in);
	return 0;
}
