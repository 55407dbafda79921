/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Threads make and destroy objects of one device at the same time, and ask about each other's. */
#include <pthread.h>

#include "common.h"

#define THREADS 4
#define ROUNDS	100

static struct ibv_qp *_Atomic shared; /* a queue pair of some thread, which may be gone by now */

static void once(char *buf)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(ctx, 10, NULL, NULL, 0);
	struct ibv_ah_attr path = to_self();
	struct ibv_ah *ah = ibv_create_ah(pd, &path);
	struct ibv_qp_init_attr init, asked;
	struct ibv_qp_attr attr;
	struct ibv_qp *qp, *other;
	union ibv_gid one;
	int r;

	CHECK(mr && cq && ah);
	init = usual(cq, IBV_QPT_UD);
	qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	to_init(qp);
	CHECK(ibv_query_gid(ctx, PORT, 0, &one) == 0);
	other = shared;
	r = other ? ibv_query_qp(other, &attr, ~0, &asked) : 0;
	CHECK(r == 0 || r == EINVAL);
	shared = qp;
	to_rts(qp, 0);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0);
}

static void *work(void *unused)
{
	char *buf = malloc(SIZE);

	CHECK(buf);
	for (int i = 0; i < ROUNDS; i++)
		once(buf);
	free(buf);
	return unused;
}

int main(void)
{
	pthread_t threads[THREADS];

	open_lo();
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	close_lo();
	return 0;
}
