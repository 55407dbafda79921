/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * An unreliable connection, from UDP up to its messages: Sends and Writes in any number of datagrams, and
 * immediate data. Where the octets say "STAG" they get a key that may be written to, "TOHI" and "TOLO" where.
 */
#include "fuzz.h"
#include "rdmap/rdmap_uc.h"

static struct siw_rdmap_port *port;
static uint8_t *buffers;
static uint32_t buffers_key, target_key;

static void set_up(void)
{
	struct siw_rdmap_region r = { .length = 400, .pd = 1, .rights = 1 | 2 };

	buffers = malloc(400);
	CHECK(buffers && siw_rdmap_port_open(&port) == 0);
	r.addr = buffers;
	CHECK(siw_rdmap_stag_alloc(port, &r, &buffers_key) == 0);
	target_key = buffers_key;
}

static struct siw_rdmap_queue *queue_new(void)
{
	struct siw_sge sge[2] = { { (uintptr_t)buffers, 20, buffers_key },
				  { (uintptr_t)buffers + 20, 180, buffers_key } };
	struct siw_rdmap_queue *q;

	CHECK(siw_rdmap_queue_create(port, 8, 2, 1, &q) == 0);
	for (uint64_t i = 0; i < 8; i++)
		CHECK(siw_rdmap_queue_post(q, i, sge, 2) == 0);
	return q;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct siw_rdmap_dgram_attr attr = { .local = fuzz_addr, .fd = -1 };
	struct siw_rdmap_uc_start start = { .pd = 1, .qkey = 0x11223344 };
	uint64_t cookie, next = 0;
	struct siw_rdmap_event event;
	struct siw_rdmap_uc *uc;
	struct fuzz_input in;
	uint32_t octets;

	if (!port)
		set_up();
	if (!fuzz_begin(data, size, NULL, 0, &in))
		return 0;
	attr.no_crc = !(in.flags & FUZZ_CRC);
	fuzz_patch(&in, "STAG", target_key);
	fuzz_patch(&in, "TOHI", (uint32_t)((uintptr_t)buffers >> 32));
	fuzz_patch(&in, "TOLO", (uint32_t)(uintptr_t)buffers + 200);
	CHECK(siw_rdmap_uc_open(port, &attr, &uc) == 0);
	start.recvs = queue_new();
	CHECK(siw_rdmap_uc_connect(uc, &fuzz_addr, 0, 0) == 0);
	siw_rdmap_uc_start(uc, &start);
	for (int i = 0; i < 4096; i++) {
		if (siw_rdmap_uc_recv(uc, &event, &octets) == 0) {
			if (octets)
				continue;
			break;
		}
		CHECK(event.kind == SIW_RDMAP_RECV || event.kind == SIW_RDMAP_BAD_RECV);
		/* Receives in their order, each once; no message longer than its own. */
		CHECK(event.cookie == next++);
		CHECK(event.kind == SIW_RDMAP_BAD_RECV || event.of_write || event.length <= 200);
	}
	CHECK(!siw_rdmap_uc_take_recv(uc, &cookie) || cookie == next);
	siw_rdmap_uc_close(uc);
	siw_rdmap_queue_destroy(start.recvs);
	fuzz_end(&in);
	return 0;
}
