/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fuzzes datagrams, from UDP up to the messages of a UD queue pair, and its error messages: errors
 * found are answered, and errors reported are compared with the messages that were sent to the only
 * peer.
 */
#include "fuzz.h"
#include "llp/llp.h"
#include "ddp/ddp.h"
#include "rdmap/rdmap_record.h"

static struct siw_mem *mem;
static struct siw_llp_poller *poller;
static uint8_t *buffers;
static uint32_t buffers_key;

static void create_poller_and_buffers(void)
{
	struct siw_mem_region r = { .length = 200, .pd = 1, .rights = SIW_MEM_LOCAL_READ | 1 | 2 };

	buffers = malloc(200);
	CHECK(buffers && siw_llp_poller_open(NULL, &poller) == 0 &&
	      siw_mem_stag_table_create(&mem) == 0);
	r.addr = buffers;
	r.to_base = (uintptr_t)buffers;
	CHECK(siw_mem_stag_alloc(mem, &r, &buffers_key) == 0);
}

static struct siw_mem_buffer_queue *create_receive_queue(void)
{
	struct siw_mem_queue_attr attr = { .depth = 8, .max_sge = 2, .pd = 1 };
	struct siw_sge sge[2] = { { (uintptr_t)buffers, 20, buffers_key },
				  { (uintptr_t)buffers + 20, 180, buffers_key } };

	return fuzz_create_full_queue(&attr, sge);
}

/* Sends messages to the peer, to which the input's error messages can refer. */
static void fuzz_dgram_send_messages(struct siw_rdmap_dgram *dgram)
{
	struct siw_rdmap_dgram_op op = { .dest = &fuzz_addr, .qkey = 0x11223344 };
	struct siw_rdmap_record_op record = { .user_data = 5,
					      .dest = &fuzz_addr,
					      .qkey = 0x11223344 };
	uint64_t offset = 0;

	for (op.user_data = 1; op.user_data <= 4; op.user_data++)
		siw_rdmap_dgram_send(dgram, &op);
	siw_rdmap_write_record_send(dgram, &record, &offset);
}

/*
 * Checks each Write-Record that may be complete: its ranges are in ascending order, do not touch,
 * and lie within the message and within the memory.
 */
static void check_write_record_ranges(struct siw_rdmap_dgram *dgram)
{
	const struct siw_rdmap_record *rec;
	uint64_t due;

	while ((rec = siw_rdmap_write_record_next_report(dgram, UINT64_MAX, &due))) {
		uint32_t valid = 0, at = 0;

		for (uint32_t i = 0; i < rec->n; i++) {
			CHECK(rec->ranges[i].start < rec->ranges[i].end);
			CHECK(!i || rec->ranges[i].start > at);
			CHECK(rec->stag == buffers_key &&
			      rec->to + rec->ranges[i].start >= (uintptr_t)buffers &&
			      rec->to + rec->ranges[i].end <= (uintptr_t)buffers + 200);
			at = rec->ranges[i].end;
			valid += at - rec->ranges[i].start;
		}
		CHECK(valid == rec->valid && at <= rec->length &&
		      rec->n <= SIW_RDMAP_RECORD_RANGES);
		CHECK(siw_rdmap_write_record_find_report(dgram, rec->number) == rec);
	}
}

static void fuzz_dgram_check_event(struct siw_rdmap_dgram *dgram,
				   const struct siw_rdmap_event *event)
{
	uint64_t user_data = 0;
	int r;

	switch (event->kind) {
	case SIW_RDMAP_RECV:
		CHECK(event->user_data < 8 && event->length <= 200);
		return;
	case SIW_RDMAP_RECORD:
		if (event->length & 1)
			check_write_record_ranges(dgram);
		return;
	case SIW_RDMAP_PEER_ERR:
		CHECK(event->quoted_head_len == (event->quoted_tagged ? 14 : 18));
		if (siw_rdmap_dgram_match_error_to_sent(dgram, event, &user_data))
			CHECK((event->quoted_tagged
				       ? user_data == 5
				       : user_data <= 4 && user_data == event->quoted_msn) &&
			      !siw_rdmap_dgram_match_error_to_sent(dgram, event, &user_data));
		return;
	case SIW_RDMAP_BAD_RECV:
		CHECK(event->user_data < 8 && event->status == -EMSGSIZE);
		break;
	case SIW_RDMAP_BAD_ACCESS: /* an access error, for which no error message is sent */
		CHECK(event->quoted_tagged && event->quoted_head_len == 14);
		return;
	default:
		CHECK(event->kind == SIW_RDMAP_BAD_MSG);
	}
	CHECK(event->quoted && event->quoted_head_len == (event->quoted_tagged ? 14 : 18) &&
	      event->err.type == 2);
	r = siw_rdmap_dgram_send_error(dgram, event);
	CHECK(r == 0 || r == -EAGAIN || r == -EPERM);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct siw_llp_sock *sock;
	struct siw_ddp_dgram *ddp;
	struct siw_rdmap_dgram *dgram;
	struct siw_mem_buffer_queue *q;
	struct siw_rdmap_event event;
	struct siw_source_drops drops[32];
	struct fuzz_input in;

	if (!poller)
		create_poller_and_buffers();
	if (!fuzz_input_init(data, size, NULL, 0, &in))
		return 0;
	CHECK(siw_llp_udp_open(poller, &fuzz_addr, NULL, &sock) == 0);
	CHECK(siw_ddp_dgram_open(poller, mem, sock, in.flags & FUZZ_CRC, &ddp) == 0);
	CHECK(siw_rdmap_dgram_open(ddp, NULL, NULL, &dgram) == 0);
	fuzz_replace_placeholder(&in, "STAG", buffers_key);
	fuzz_replace_placeholder(&in, "TOHI", (uint32_t)((uintptr_t)buffers >> 32));
	fuzz_replace_placeholder(&in, "TOLO", (uint32_t)(uintptr_t)buffers);
	CHECK(siw_rdmap_write_record_enable_rx(dgram, 4) == 0);
	q = create_receive_queue();
	siw_rdmap_dgram_configure_receiving(dgram, in.flags & FUZZ_REFUSE ? NULL : q, 1,
					    0x11223344);
	fuzz_dgram_send_messages(dgram);
	for (int i = 0; i < 4096 && siw_rdmap_dgram_recv(dgram, &event) == 1; i++)
		fuzz_dgram_check_event(dgram, &event);
	check_write_record_ranges(dgram);
	CHECK(siw_rdmap_dgram_query_drops_by_source(dgram, drops, 32) <= 1);
	siw_rdmap_dgram_close(dgram);
	siw_llp_close(sock);
	siw_mem_buffer_queue_destroy(q);
	fuzz_input_free(&in);
	return 0;
}
