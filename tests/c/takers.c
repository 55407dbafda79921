/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Four threads remove receive buffers from one shared queue, while one thread posts buffers and
 * changes the depth of the queue. Some of the threads put buffers back. Every buffer is used
 * exactly once, and its elements are those that were posted. The argument is the number of buffers.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "mem/mem_queue.h"

#define TAKERS	4
#define MAX_SGE 3
#define DEPTH	16

#define CHECK(what)                                                                \
	do {                                                                       \
		if (!(what)) {                                                     \
			fprintf(stderr, "takers.c:%d: not %s\n", __LINE__, #what); \
			exit(1);                                                   \
		}                                                                  \
	} while (0)

static struct siw_mem_buffer_queue *queue;
static uint64_t n_buffers;
static _Atomic uint64_t n_used;
static _Atomic uint8_t *uses; /* for each buffer, how often it was used */

struct taker {
	pthread_t thread;
	unsigned int seed;
	uint64_t used, put_back;
};

/* Computes the scatter/gather elements of a buffer from its number, and returns their count. */
static int make_sges_of_buffer(uint64_t number, struct siw_sge *sgl)
{
	int n = (int)(number % (MAX_SGE + 1));

	for (int i = 0; i < n; i++)
		sgl[i] = (struct siw_sge){ number * 16 + (uint64_t)i, (uint32_t)number + 1,
					   (uint32_t)i };
	return n;
}

static void check_sges_of_taken_buffer(const struct siw_mem_taken *buf)
{
	struct siw_sge sgl[MAX_SGE];
	uint64_t length = 0;

	CHECK(buf->user_data < n_buffers && buf->nsge == make_sges_of_buffer(buf->user_data, sgl));
	for (int i = 0; i < buf->nsge; i++) {
		CHECK(buf->sgl[i].addr == sgl[i].addr && buf->sgl[i].length == sgl[i].length &&
		      buf->sgl[i].lkey == sgl[i].lkey);
		length += sgl[i].length;
	}
	CHECK(buf->length == length);
}

static void record_use_of_buffer(struct taker *taker, uint64_t number)
{
	CHECK(number < n_buffers && atomic_fetch_add(&uses[number], 1) == 0);
	taker->used++;
	atomic_fetch_add(&n_used, 1);
}

static void take_or_pop_one_buffer(struct taker *taker)
{
	unsigned int how = (unsigned int)rand_r(&taker->seed) % 8;
	struct siw_mem_taken buf;
	uint64_t number;

	if (how == 0) {
		if (siw_mem_buffer_queue_pop_unfilled(queue, &number) == 1)
			record_use_of_buffer(taker, number);
		else
			sched_yield();
		return;
	}
	if (siw_mem_queue_is_empty(queue) || !siw_mem_buffer_queue_take(queue, &buf)) {
		sched_yield();
		return;
	}
	check_sges_of_taken_buffer(&buf);
	if (how == 1) {
		CHECK(siw_mem_buffer_queue_put_back(queue, &buf) == 0);
		taker->put_back++;
		return;
	}
	record_use_of_buffer(taker, buf.user_data);
}

static void *take_buffers(void *arg)
{
	while (atomic_load(&n_used) < n_buffers)
		take_or_pop_one_buffer(arg);
	return NULL;
}

static void post_buffer(uint64_t number)
{
	struct siw_sge sgl[MAX_SGE];
	int n = make_sges_of_buffer(number, sgl), r;

	while ((r = siw_mem_buffer_queue_post(queue, number, sgl, n)) != 0) {
		CHECK(r == -ENOMEM); /* the queue is full */
		sched_yield();
	}
}

static void post_buffers_and_resize_queue(void)
{
	for (uint64_t i = 0; i < n_buffers; i++) {
		post_buffer(i);
		CHECK(siw_mem_buffer_queue_posted_count(queue) <= DEPTH + TAKERS);
		/* fails if more buffers are posted than the new depth */
		if (i % 64 == 0)
			(void)siw_mem_buffer_queue_resize(queue, i % 128 ? DEPTH / 2 : DEPTH);
	}
}

int main(int argc, char **argv)
{
	struct siw_mem_queue_attr attr = { .depth = DEPTH, .max_sge = MAX_SGE, .shared = true };
	struct taker takers[TAKERS] = { 0 };
	uint64_t used = 0, put_back = 0;

	CHECK(argc == 2);
	n_buffers = strtoull(argv[1], NULL, 10);
	uses = calloc(n_buffers, sizeof(*uses));
	CHECK(uses && siw_mem_buffer_queue_create(&attr, &queue) == 0);
	for (unsigned int i = 0; i < TAKERS; i++) {
		takers[i].seed = i + 1;
		CHECK(!pthread_create(&takers[i].thread, NULL, take_buffers, &takers[i]));
	}
	post_buffers_and_resize_queue();
	for (int i = 0; i < TAKERS; i++) {
		CHECK(!pthread_join(takers[i].thread, NULL));
		used += takers[i].used;
		put_back += takers[i].put_back;
	}
	CHECK(used == n_buffers && put_back > 0);
	for (uint64_t i = 0; i < n_buffers; i++)
		CHECK(uses[i] == 1);
	CHECK(siw_mem_queue_is_empty(queue) && !siw_mem_buffer_queue_has_returned_buffers(queue) &&
	      siw_mem_buffer_queue_exact_count(queue) == 0);
	siw_mem_buffer_queue_destroy(queue);
	free((void *)uses);
	return 0;
}
