/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * With reliable datagrams, a Read or an atomic may be answered before the call that posts it
 * returns, because that call transmits the request. This test forces that order: the linker
 * (--wrap) inserts a function of this file between ddp and llp, and that function lets the
 * responder answer and the requester receive the answer before it returns.
 *
 * There is only one thread, so no other work on either end is interleaved.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/addr.h"
#include "ddp/ddp_rd.h"
#include "llp/llp.h"
#include "rd/rd.h"
#include "rdmap/rdmap.h"

#define SIZE	1000
#define PATIENT 20 /* time limit in seconds, much longer than any wait of the test */

#define CHECK(what)                                                               \
	do {                                                                      \
		if (!(what)) {                                                    \
			fprintf(stderr, "early.c:%d: not %s\n", __LINE__, #what); \
			exit(1);                                                  \
		}                                                                 \
	} while (0)

struct end {
	struct siw_io_handler handler;
	struct siw_llp_poller *poller;
	struct siw_mem *mem;
	struct siw_rd *lower;
	struct siw_ddp_rd *ddp;
	struct siw_mem_buffer_queue *queue;
	struct siw_rdmap_rd *rd;
	struct siw_addr addr;
	uint32_t stag;
	_Alignas(8) uint8_t memory[SIZE];
};

static struct end asks, answers;
/* how much of the stream the lower layer had accepted at the last siw_rdmap_flush_tx() */
static uint64_t accepted;
static int done;	   /* number of responses received */
static uint64_t user_data; /* user data of the last response */
static bool at_once;	   /* true: the next request is answered before its transmission returns */

int64_t __real_siw_rd_tx(struct siw_rd_peer *peer, enum siw_rd_space space, const void *head,
			 size_t head_len, const struct iovec *iov, int n, bool more);
int64_t __wrap_siw_rd_tx(struct siw_rd_peer *peer, enum siw_rd_space space, const void *head,
			 size_t head_len, const struct iovec *iov, int n, bool more);

static void open_rdmap_endpoint(struct end *e)
{
	struct siw_rd_attr attr = { .fd = -1, .ird = 4, .qkey = 7, .handler = &e->handler };
	struct siw_mem_region region = { .addr = e->memory,
					 .length = SIZE,
					 .to_base = (uintptr_t)e->memory,
					 .rights = 15 | SIW_MEM_LOCAL_READ,
					 .pd = 1 };
	struct siw_mem_queue_attr queue = { .depth = 4, .max_sge = 1, .pd = 1 };
	struct siw_rdmap_start start = { .pd = 1, .ird = 4, .ord = 4 };

	CHECK(siw_addr_parse("127.0.0.1", 0, &attr.local) == 0);
	CHECK(siw_llp_poller_open(NULL, &e->poller) == 0);
	CHECK(siw_mem_stag_table_create(&e->mem) == 0);
	CHECK(siw_mem_buffer_queue_create(&queue, &e->queue) == 0);
	CHECK(siw_mem_stag_alloc(e->mem, &region, &e->stag) == 0);
	CHECK(siw_rd_open(e->poller, &attr, &e->lower) == 0);
	CHECK(siw_ddp_rd_open(e->mem, e->lower, &e->ddp) == 0);
	CHECK(siw_rdmap_rd_open(e->mem, e->ddp, 0, &e->rd) == 0);
	CHECK(siw_llp_local_addr(siw_rd_sock(e->lower), &e->addr) == 0);
	start.recvs = e->queue;
	siw_rdmap_rd_configure_receiving(e->rd, SIW_RDMAP_RD_ON, &start);
}

static void close_rdmap_endpoint(struct end *e)
{
	siw_rdmap_rd_close(e->rd);
	siw_rd_close(e->lower);
	siw_mem_buffer_queue_destroy(e->queue);
	CHECK(siw_mem_stag_free(e->mem, e->stag) == 0);
	siw_mem_stag_table_free(e->mem);
	siw_llp_poller_close(e->poller);
}

/* Receives the datagrams that have arrived at an endpoint, and transmits the replies. */
static void receive_and_reply(struct end *e)
{
	struct siw_rdmap_stream *stream;
	struct siw_rdmap_event event = { 0 };
	struct siw_io_handler *handlers[4];

	siw_llp_poller_poll(e->poller, handlers, 4);
	while (siw_rdmap_rd_recv(e->rd, &stream, &event) == 1) {
		CHECK(event.kind != SIW_RDMAP_REFUSED && event.kind != SIW_RDMAP_LOST);
		if (event.kind == SIW_RDMAP_READ_DONE) {
			done++;
			user_data = event.user_data;
		} else if (e == &answers) {
			CHECK(siw_rdmap_flush_tx(stream, &accepted) >= 0);
		}
	}
}

static void receive_and_reply_until_done(int n)
{
	time_t end = time(NULL) + PATIENT;

	while (done < n) {
		CHECK(time(NULL) < end);
		receive_and_reply(&answers);
		receive_and_reply(&asks);
	}
}

int64_t __wrap_siw_rd_tx(struct siw_rd_peer *peer, enum siw_rd_space space, const void *head,
			 size_t head_len, const struct iovec *iov, int n, bool more)
{
	int64_t r = __real_siw_rd_tx(peer, space, head, head_len, iov, n, more);

	if (r > 0 && at_once) {
		at_once = false; /* because this function also transmits the response */
		receive_and_reply_until_done(done + 1);
	}
	return r;
}

static struct siw_rdmap_stream *get_stream_to_responder(void)
{
	struct siw_rdmap_stream *stream;

	CHECK(siw_rdmap_rd_get_or_create_stream(asks.rd, &answers.addr, &stream) == 0);
	return stream;
}

static void send_request_with_early_response(struct siw_rdmap_op *op, bool early)
{
	struct siw_rdmap_stream *stream = get_stream_to_responder();
	int before = done;

	at_once = early;
	CHECK(siw_rdmap_begin_op(stream, op) == 0);
	CHECK(!early || done == before + 1);
	CHECK(siw_rdmap_flush_tx(stream, &accepted) >= 0);
	receive_and_reply_until_done(before + 1);
	receive_and_reply(&answers);
	receive_and_reply(&asks);
	CHECK(done == before + 1 && user_data == op->user_data);
}

static void check_read_response(uint64_t number, bool early)
{
	struct siw_sge sge = { (uintptr_t)asks.memory, SIZE, asks.stag };
	struct siw_rdmap_op op = {
		.opcode = SIW_RDMAP_READ_REQUEST,
		.user_data = number,
		.sgl = &sge,
		.nsge = 1,
		.length = SIZE,
		.rkey = answers.stag,
		.remote_to = (uintptr_t)answers.memory,
	};

	memset(answers.memory, (int)number, SIZE);
	send_request_with_early_response(&op, early);
	CHECK(memcmp(asks.memory, answers.memory, SIZE) == 0);
}

static void check_atomic_response(uint64_t number, bool early)
{
	struct siw_sge sge = { (uintptr_t)asks.memory, 8, asks.stag };
	struct siw_rdmap_atomic atomic = { .kind = SIW_RDMAP_FETCH_ADD, .data = number };
	struct siw_rdmap_op op = {
		.opcode = SIW_RDMAP_ATOMIC_REQUEST,
		.user_data = number,
		.sgl = &sge,
		.nsge = 1,
		.length = 8,
		.rkey = answers.stag,
		.remote_to = (uintptr_t)answers.memory,
		.atomic = &atomic,
	};
	uint64_t before, after, was;

	memcpy(&before, answers.memory, sizeof(before));
	send_request_with_early_response(&op, early);
	memcpy(&after, answers.memory, sizeof(after));
	memcpy(&was, asks.memory, sizeof(was));
	CHECK(after == before + number && was == before);
}

int main(void)
{
	open_rdmap_endpoint(&asks);
	open_rdmap_endpoint(&answers);
	/* before this Read the two endpoints establish contact */
	check_read_response(1, false);
	/* more requests than a queue pair may have outstanding */
	for (uint64_t i = 2; i < 40; i += 4) {
		check_read_response(i, true);
		check_atomic_response(i + 1, true);
		check_read_response(i + 2, false);
		check_atomic_response(i + 3, false);
	}
	close_rdmap_endpoint(&asks);
	close_rdmap_endpoint(&answers);
	return 0;
}
