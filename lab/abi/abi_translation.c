/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * siwarp-lab-translation: additional cycles of a request through libibverbs.so.1 compared with
 * siw.h. Started by `make lab-abi`. Prints one line of JSON.
 *
 * The queue pair is in state ERR, in which requests are flushed immediately, so that posts and
 * polls make no system call; the time of a system call would hide a difference of a few cycles.
 * Both APIs are measured alternately on the same queue pair, with POSTS requests each time; the
 * program prints the medians.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <siwarp/ibv_ext.h>

#include "bench/bench.h"

#define POSTS  32 /* requests between two readings of the clock */
#define ROUNDS 4001
#define SIZE   64

enum what { SEND, RECV, POLL, KINDS };

/* Return the time in cycles, or in nanoseconds on machines where programs cannot read cycles. */
static uint64_t abi_translation_read_clock(void)
{
#ifdef __x86_64__
	return __builtin_ia32_rdtsc();
#else
	return siw_bench_now();
#endif
}

static const char *const names[KINDS] = { "post_send", "post_recv", "poll_cq" };

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	struct siw_qp *own_qp;
	struct siw_cq *own_cq;
	char memory[SIZE];
};

static void abi_translation_open_endpoint(struct end *e)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { POSTS, POSTS, 1, 1, 0 },
					 .sq_sig_all = 1 };
	struct ibv_device **list = ibv_get_device_list(NULL);

	siw_bench_require_object(list ? list[0] : NULL, "a device");
	e->context = siw_bench_require_object(ibv_open_device(list[0]), "opening the device");
	ibv_free_device_list(list);
	e->pd = siw_bench_require_object(ibv_alloc_pd(e->context), "a protection domain");
	e->cq = siw_bench_require_object(ibv_create_cq(e->context, 4 * POSTS, NULL, NULL, 0),
					 "a completion queue");
	e->mr = siw_bench_require_object(ibv_reg_mr(e->pd, e->memory, SIZE, IBV_ACCESS_LOCAL_WRITE),
					 "a region");
	init.send_cq = init.recv_cq = e->cq;
	e->qp = siw_bench_require_object(ibv_create_qp(e->pd, &init), "a queue pair");
	siw_bench_exit_on_error(-ibv_modify_qp(e->qp,
					       &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR },
					       IBV_QP_STATE),
				"changing the state of the queue pair");
	e->own_qp = siw_bench_require_object(siw_ibv_qp(e->qp), "the underlying siwarp queue pair");
	e->own_cq = siw_bench_require_object(siw_ibv_cq(e->cq),
					     "the underlying siwarp completion queue");
}

static void abi_translation_close_endpoint(struct end *e)
{
	siw_bench_exit_on_error(-ibv_destroy_qp(e->qp), "destroying the queue pair");
	siw_bench_exit_on_error(-ibv_dereg_mr(e->mr), "deregistering");
	siw_bench_exit_on_error(-ibv_destroy_cq(e->cq), "destroying the queue");
	siw_bench_exit_on_error(-ibv_dealloc_pd(e->pd), "freeing the protection domain");
	siw_bench_exit_on_error(-ibv_close_device(e->context), "closing the device");
}

/* Return the cycles per call over POSTS calls; die if a call fails or finds no completion. */
static double abi_translation_cycles_per_call(struct end *e, enum what what, bool by_abi)
{
	struct ibv_sge sge = { (uintptr_t)e->memory, SIZE, e->mr->lkey };
	struct ibv_send_wr *bad_send,
		send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_recv_wr *bad_recv, recv = { .sg_list = &sge, .num_sge = 1 };
	struct siw_send_wr *own_bad_send, *own_send = (struct siw_send_wr *)&send;
	struct siw_recv_wr *own_bad_recv, *own_recv = (struct siw_recv_wr *)&recv;
	struct ibv_wc wc;
	int good = 0;
	uint64_t start = abi_translation_read_clock();

	for (int i = 0; i < POSTS; i++)
		switch (what) {
		case SEND:
			good += by_abi ? !ibv_post_send(e->qp, &send, &bad_send)
				       : !siw_post_send(e->own_qp, own_send, &own_bad_send);
			break;
		case RECV:
			good += by_abi ? !ibv_post_recv(e->qp, &recv, &bad_recv)
				       : !siw_post_recv(e->own_qp, own_recv, &own_bad_recv);
			break;
		default:
			good += by_abi ? ibv_poll_cq(e->cq, 1, &wc)
				       : siw_poll_cq(e->own_cq, 1, (struct siw_wc *)&wc);
		}
	start = abi_translation_read_clock() - start;
	if (good != POSTS)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "%s: %d of %d", names[what], good, POSTS);
	return (double)start / POSTS;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double abi_translation_median(double *values)
{
	qsort(values, ROUNDS, sizeof(*values), compare_doubles);
	return values[ROUNDS / 2];
}

int main(void)
{
	static double cycles[KINDS][2][ROUNDS];
	static struct end e;

	abi_translation_open_endpoint(&e);
	for (int i = 0; i < 2 * ROUNDS; i++) {
		bool by_abi = i & 1;
		int n = i / 2;

		cycles[SEND][by_abi][n] = abi_translation_cycles_per_call(&e, SEND, by_abi);
		cycles[POLL][by_abi][n] = abi_translation_cycles_per_call(&e, POLL, by_abi);
		cycles[RECV][by_abi][n] = abi_translation_cycles_per_call(&e, RECV, by_abi);
		cycles[POLL][by_abi][n] += abi_translation_cycles_per_call(&e, POLL, by_abi);
		cycles[POLL][by_abi][n] /= 2;
	}
	abi_translation_close_endpoint(&e);
	for (int what = 0; what < KINDS; what++)
		printf("%s\"%s\": {\"siw\": %.1f, \"ibv\": %.1f}", what ? ", " : "{", names[what],
		       abi_translation_median(cycles[what][0]),
		       abi_translation_median(cycles[what][1]));
	puts("}");
	return 0;
}
