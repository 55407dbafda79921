/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Over reliable datagrams a Read or an atomic may be answered before the call that asks for it returns, as the
 * request leaves in that call. Here it always is: the linker puts a function of this file between ddp and
 * llp (--wrap), which has the other end answer, and this end take the answer, before it returns.
 *
 * One thread, so nobody else's work on either end comes in between.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/addr.h"
#include "llp/llp_rd.h"
#include "rdmap/rdmap.h"

#define SIZE	1000
#define PATIENT 20 /* seconds: whatever is waited for comes long before */

#define CHECK(what)                                                               \
	do {                                                                      \
		if (!(what)) {                                                    \
			fprintf(stderr, "early.c:%d: not %s\n", __LINE__, #what); \
			exit(1);                                                  \
		}                                                                 \
	} while (0)

struct end {
	struct siw_rdmap_port *port;
	struct siw_rdmap_queue *queue;
	struct siw_rdmap_rd *rd;
	struct siw_addr addr;
	uint32_t stag;
	_Alignas(8) uint8_t memory[SIZE];
};

static struct end asks, answers;
static int done;	/* answers that came */
static uint64_t cookie; /* of the last one */
static bool at_once;	/* the next request is answered before it returns */

int __real_siw_llp_rd_tx(struct siw_llp_rd_peer *peer, const void *head, size_t head_len,
			 const struct iovec *iov, int n);
int __wrap_siw_llp_rd_tx(struct siw_llp_rd_peer *peer, const void *head, size_t head_len,
			 const struct iovec *iov, int n);

static void begin(struct end *e)
{
	struct siw_rdmap_rd_attr attr = { .fd = -1, .ird = 4, .qkey = 7, .token = e };
	struct siw_rdmap_region region = {
		.addr = e->memory, .length = SIZE, .rights = 15, .pd = 1
	};
	struct siw_rdmap_start start = { .pd = 1, .ird = 4, .ord = 4 };

	CHECK(siw_addr_parse("127.0.0.1", 0, &attr.local) == 0);
	CHECK(siw_rdmap_port_open(&e->port) == 0);
	CHECK(siw_rdmap_queue_create(e->port, 4, 1, 1, &e->queue) == 0);
	CHECK(siw_rdmap_stag_alloc(e->port, &region, &e->stag) == 0);
	CHECK(siw_rdmap_rd_open(e->port, &attr, &e->rd) == 0);
	CHECK(siw_rdmap_rd_addr(e->rd, &e->addr) == 0);
	start.recvs = e->queue;
	siw_rdmap_rd_start(e->rd, SIW_RDMAP_RD_ON, &start, attr.qkey);
}

static void finish(struct end *e)
{
	siw_rdmap_rd_close(e->rd);
	siw_rdmap_queue_destroy(e->queue);
	CHECK(siw_rdmap_stag_free(e->port, e->stag) == 0);
	siw_rdmap_port_close(e->port);
}

/* What came to an end, and what that asks for. */
static void turn(struct end *e)
{
	struct siw_rdmap_stream *stream;
	struct siw_rdmap_event event = { 0 };
	void *tokens[4];

	siw_rdmap_port_poll(e->port, tokens, 4);
	while (siw_rdmap_rd_recv(e->rd, &stream, &event) == 1) {
		CHECK(event.kind != SIW_RDMAP_REFUSED && event.kind != SIW_RDMAP_LOST);
		if (event.kind == SIW_RDMAP_READ_DONE) {
			done++;
			cookie = event.cookie;
		} else if (e == &answers) {
			CHECK(siw_rdmap_flush(stream) >= 0);
		}
	}
}

static void until_done(int n)
{
	time_t end = time(NULL) + PATIENT;

	while (done < n) {
		CHECK(time(NULL) < end);
		turn(&answers);
		turn(&asks);
	}
}

int __wrap_siw_llp_rd_tx(struct siw_llp_rd_peer *peer, const void *head, size_t head_len,
			 const struct iovec *iov, int n)
{
	int r = __real_siw_llp_rd_tx(peer, head, head_len, iov, n);

	if (r == 1 && at_once) {
		at_once = false; /* the answer goes the same way */
		until_done(done + 1);
	}
	return r;
}

static struct siw_rdmap_stream *toward(void)
{
	struct siw_rdmap_stream *stream;

	CHECK(siw_rdmap_rd_stream(asks.rd, &answers.addr, &stream) == 0);
	return stream;
}

static void ask(const struct siw_rdmap_op *op, bool early)
{
	struct siw_rdmap_stream *stream = toward();
	int before = done;

	at_once = early;
	CHECK(siw_rdmap_send(stream, op) == 0);
	CHECK(!early || done == before + 1);
	CHECK(siw_rdmap_flush(stream) >= 0);
	until_done(before + 1);
	turn(&answers);
	turn(&asks);
	CHECK(done == before + 1 && cookie == op->cookie);
}

static void read_all(uint64_t number, bool early)
{
	struct siw_sge sge = { (uintptr_t)asks.memory, SIZE, asks.stag };
	struct siw_rdmap_op op = {
		.opcode = SIW_RDMAP_READ_REQUEST,
		.cookie = number,
		.sgl = &sge,
		.nsge = 1,
		.length = SIZE,
		.rkey = answers.stag,
		.remote_to = (uintptr_t)answers.memory,
	};

	memset(answers.memory, (int)number, SIZE);
	ask(&op, early);
	CHECK(memcmp(asks.memory, answers.memory, SIZE) == 0);
}

static void add(uint64_t number, bool early)
{
	struct siw_sge sge = { (uintptr_t)asks.memory, 8, asks.stag };
	struct siw_rdmap_atomic atomic = { .kind = SIW_RDMAP_FETCH_ADD, .data = number };
	struct siw_rdmap_op op = {
		.opcode = SIW_RDMAP_ATOMIC_REQUEST,
		.cookie = number,
		.sgl = &sge,
		.nsge = 1,
		.length = 8,
		.rkey = answers.stag,
		.remote_to = (uintptr_t)answers.memory,
		.atomic = &atomic,
	};
	uint64_t before, after, was;

	memcpy(&before, answers.memory, sizeof(before));
	ask(&op, early);
	memcpy(&after, answers.memory, sizeof(after));
	memcpy(&was, asks.memory, sizeof(was));
	CHECK(after == before + number && was == before);
}

int main(void)
{
	begin(&asks);
	begin(&answers);
	read_all(1, false);		       /* the two meet */
	for (uint64_t i = 2; i < 40; i += 4) { /* more than there may be outstanding */
		read_all(i, true);
		add(i + 1, true);
		read_all(i + 2, false);
		add(i + 3, false);
	}
	finish(&asks);
	finish(&answers);
	return 0;
}
