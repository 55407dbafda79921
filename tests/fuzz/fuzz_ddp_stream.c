/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fuzzes DDP segments, which are placed into queues of small buffers and, if tagged, under the STag
 * that the input writes as "STAG".
 */
#include "ddp/ddp.h"
#include "fuzz.h"
#include "llp/llp.h"
#include "mpa/mpa.h"

#define REGION 3000
#define BASE   0x10000 /* first tagged offset of the region */

static struct siw_mem *mem;
static struct siw_llp_poller *poller;
static uint32_t stag;
static uint8_t *region, *buffers;

static void create_poller_and_buffers(void)
{
	struct siw_mem_region r = { .length = REGION,
				    .to_base = BASE,
				    .pd = 1,
				    .rights = SIW_MEM_LOCAL_WRITE | SIW_MEM_REMOTE_WRITE };

	region = malloc(REGION);
	buffers = malloc(400);
	CHECK(region && buffers && siw_llp_poller_open(NULL, &poller) == 0 &&
	      siw_mem_stag_table_create(&mem) == 0);
	r.addr = region;
	CHECK(siw_mem_stag_alloc(mem, &r, &stag) == 0);
}

static struct siw_mem_buffer_queue *create_receive_queue(void)
{
	struct siw_mem_queue_attr attr = { .depth = 4, .max_sge = 2, .internal = true };
	struct siw_sge sge[2] = { { (uintptr_t)buffers, 100, 0 },
				  { (uintptr_t)buffers + 100, 300, 0 } };

	return fuzz_create_full_queue(&attr, sge);
}

static int receive_one_ddp_segment(struct siw_ddp_stream *stream)
{
	struct siw_ddp_delivery delivery = { 0 };
	struct siw_ddp_seg seg;
	int r = siw_ddp_rx_peek_segment(stream, &seg);

	if (r != 1)
		return r;
	if (seg.ulp_octet == 0x77) {
		siw_ddp_rx_refuse_for_upper_layer(stream, (struct siw_wire_err){ 0, 2, 6 });
		return 1;
	}
	r = siw_ddp_rx_place(stream, &seg, SIW_MEM_REMOTE_WRITE, &delivery);
	if (r == 1 && !seg.tagged)
		CHECK(delivery.length <= 400 && delivery.user_data < 4);
	return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct siw_mpa_params peer, reply = { .ird = 1, .ord = 1 };
	struct siw_llp_sock *listener;
	struct siw_mpa_stream *mpa;
	struct siw_ddp_stream *stream;
	struct siw_mem_buffer_queue *q[2];
	struct fuzz_input in;
	uint8_t request[64];
	uint64_t user_data;
	size_t n = size ? fuzz_build_mpa_request(request, data[0]) : 0;

	if (!poller)
		create_poller_and_buffers();
	if (!fuzz_input_init(data, size, request, n, &in))
		return 0;
	fuzz_replace_placeholder(&in, "STAG", stag);
	reply.markers = !!(in.flags & FUZZ_MARKERS);
	CHECK(siw_llp_tcp_listen(poller, &fuzz_addr, 1, NULL, &listener) == 0);
	CHECK(siw_mpa_accept_connection(listener, NULL, &mpa) == 0);
	CHECK(siw_mpa_startup(mpa, &peer) == 1 && siw_mpa_send_startup_reply(mpa, &reply) == 0);
	CHECK(siw_ddp_stream_open(mem, mpa, &stream) == 0);
	siw_ddp_stream_set_pd(stream, 1);
	for (uint32_t i = 0; i < 2; i++)
		siw_ddp_stream_set_buffer_queue(stream, i, q[i] = create_receive_queue());
	for (int idle = 0; idle < 4;) {
		int r = receive_one_ddp_segment(stream);

		if (r < 0)
			break;
		idle += !r && fuzz_input_exhausted();
	}
	for (uint32_t i = 0; i < 2; i++)
		(void)siw_ddp_stream_pop_partial_buffer(stream, i, &user_data);
	siw_ddp_stream_close(stream);
	siw_mpa_close(mpa, false);
	siw_llp_close(listener);
	for (uint32_t i = 0; i < 2; i++)
		siw_mem_buffer_queue_destroy(q[i]);
	fuzz_input_free(&in);
	return 0;
}
