/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * fuzz_queue.c - receive queues of the fuzz harnesses (fuzz.h).
 */
#include "fuzz.h"

struct siw_mem_buffer_queue *fuzz_create_full_queue(const struct siw_mem_queue_attr *attr,
						    const struct siw_sge *sge)
{
	struct siw_mem_buffer_queue *q;

	CHECK(siw_mem_buffer_queue_create(attr, &q) == 0);
	for (uint64_t i = 0; i < attr->depth; i++)
		CHECK(siw_mem_buffer_queue_post(q, i, sge, (int)attr->max_sge) == 0);
	return q;
}
