/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fuzzes an unreliable connection, from UDP up to its messages: Sends and Writes in any number of
 * datagrams, and immediate data. In the input, "STAG" is replaced with a writable rkey, and "TOHI"
 * and "TOLO" with the halves of its address.
 */
#include "fuzz.h"
#include "llp/llp.h"
#include "ddp/ddp_uc.h"
#include "rdmap/rdmap_uc.h"

static struct siw_mem *mem;
static struct siw_llp_poller *poller;
static uint8_t *buffers;
static uint32_t buffers_key, target_key;

static void create_poller_and_buffers(void)
{
	struct siw_mem_region r = { .length = 400, .pd = 1, .rights = SIW_MEM_LOCAL_READ | 1 | 2 };

	buffers = malloc(400);
	CHECK(buffers && siw_llp_poller_open(NULL, &poller) == 0 &&
	      siw_mem_stag_table_create(&mem) == 0);
	r.addr = buffers;
	r.to_base = (uintptr_t)buffers;
	CHECK(siw_mem_stag_alloc(mem, &r, &buffers_key) == 0);
	target_key = buffers_key;
}

static struct siw_mem_buffer_queue *create_receive_queue(void)
{
	struct siw_mem_queue_attr attr = { .depth = 8, .max_sge = 2, .pd = 1 };
	struct siw_sge sge[2] = { { (uintptr_t)buffers, 20, buffers_key },
				  { (uintptr_t)buffers + 20, 180, buffers_key } };

	return fuzz_create_full_queue(&attr, sge);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct siw_rdmap_uc_start start = { .pd = 1, .qkey = 0x11223344 };
	uint64_t user_data, next = 0;
	struct siw_rdmap_event event;
	struct siw_llp_sock *sock;
	struct siw_ddp_uc *ddp;
	struct siw_rdmap_uc *uc;
	struct fuzz_input in;
	uint32_t octets;

	if (!poller)
		create_poller_and_buffers();
	if (!fuzz_input_init(data, size, NULL, 0, &in))
		return 0;
	fuzz_replace_placeholder(&in, "STAG", target_key);
	fuzz_replace_placeholder(&in, "TOHI", (uint32_t)((uintptr_t)buffers >> 32));
	fuzz_replace_placeholder(&in, "TOLO", (uint32_t)(uintptr_t)buffers + 200);
	CHECK(siw_llp_udp_open(poller, &fuzz_addr, NULL, &sock) == 0);
	CHECK(siw_ddp_uc_open(poller, mem, sock, in.flags & FUZZ_CRC, &ddp) == 0);
	CHECK(siw_rdmap_uc_open(ddp, &uc) == 0);
	start.recvs = create_receive_queue();
	CHECK(siw_setting_set("uc_breaker", 2) == 0); /* reports on loopback, too */
	CHECK(siw_rdmap_uc_connect(uc, &fuzz_addr, 0, 0) == 0);
	siw_rdmap_uc_configure_receiving(uc, &start);
	for (int i = 0; i < 4096; i++) {
		if (siw_rdmap_uc_recv(uc, &event, &octets) == 0) {
			if (octets)
				continue;
			break;
		}
		if (event.kind == SIW_RDMAP_PROGRESS) {
			CHECK(event.of_write);
			continue;
		}
		CHECK(event.kind == SIW_RDMAP_RECV || event.kind == SIW_RDMAP_BAD_RECV);
		/*
		 * Receives complete in order, each exactly once, and no message exceeds its buffer.
		 */
		CHECK(event.user_data == next++);
		CHECK(event.kind == SIW_RDMAP_BAD_RECV || event.of_write || event.length <= 200);
	}
	CHECK(!siw_ddp_uc_pop_unfinished_buffer(ddp, &user_data) || user_data == next);
	siw_rdmap_uc_close(uc);
	siw_llp_close(sock);
	siw_mem_buffer_queue_destroy(start.recvs);
	fuzz_input_free(&in);
	return 0;
}
