/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Memory windows are revoked while the peer writes and reads through them at full speed. After this
 * end has detected the revocation, no octet of the memory changes, and no octet written there
 * afterwards is transmitted. In the second half, four threads concurrently bind and deallocate
 * windows, deregister regions and destroy queue pairs, and any call may fail because another thread
 * was faster. The argument is the duration of each half in milliseconds.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rig.h"

#define SIZE	 (64u << 10)
#define WINDOW	 (SIW_ACCESS_REMOTE_WRITE | SIW_ACCESS_REMOTE_READ)
#define REGION	 (SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_MW_BIND)
#define STILL_US 300

static struct rig left, right; /* the peer's rig and this end's rig */
static unsigned long rounds[2][4], terminated, cut;

/* ---- the peer -------------------------------------------------------------------------------- */

struct peer {
	struct end *end;
	uint32_t rkey;
	uint64_t addr;
	unsigned int seed;
	struct siw_mr *mr;
	char out[SIZE], in[SIZE];
	uint32_t why; /* vendor_err of the first request that failed */
	_Atomic unsigned long done;
};

static int post_random_rdma_request(struct peer *p)
{
	bool reads = rand_r(&p->seed) % 3 == 0;
	uint32_t length = 1 + (uint32_t)rand_r(&p->seed) % SIZE;
	struct siw_sge sge = { (uintptr_t)(reads ? p->in : p->out), length, p->mr->lkey };
	struct siw_send_wr *bad, wr = { .sg_list = &sge,
					.num_sge = 1,
					.opcode = reads ? SIW_WR_RDMA_READ : SIW_WR_RDMA_WRITE,
					.send_flags = SIW_SEND_SIGNALED };

	wr.wr.rdma.remote_addr = p->addr + (uint32_t)rand_r(&p->seed) % (SIZE - length + 1);
	wr.wr.rdma.rkey = p->rkey;
	return siw_post_send(p->end->qp, &wr, &bad);
}

/* Sends requests until one fails. */
static void *post_rdma_requests_until_error(void *arg)
{
	long deadline = now_ms() + LIMIT_MS;
	struct peer *p = arg;
	struct siw_wc wc[16];

	for (;;) {
		int n, r = post_random_rdma_request(p);

		if (r != -ENOMEM)
			check(r);
		n = siw_poll_cq(p->end->cq, 16, wc);
		check(n);
		for (int i = 0; i < n; i++) {
			if (wc[i].status != SIW_WC_SUCCESS) {
				p->why = wc[i].vendor_err;
				return NULL;
			}
			atomic_fetch_add(&p->done, 1);
		}
		if (now_ms() > deadline)
			die("the peer goes on after the window's end");
	}
}

static void start_posting_peer_thread(struct peer *p, pthread_t *thread, struct end *end,
				      const struct siw_mw *mw, const char *memory)
{
	long deadline = now_ms() + LIMIT_MS;

	p->end = end;
	p->rkey = mw->rkey;
	p->addr = (uintptr_t)memory;
	memset(p->out, 'x', SIZE);
	memset(p->in, '.', SIZE);
	atomic_store(&p->done, 0);
	check(-pthread_create(thread, NULL, post_rdma_requests_until_error, p));
	while (atomic_load(&p->done) < 3)
		must(now_ms() < deadline);
}

/* ---- this end -------------------------------------------------------------------------------- */

static struct siw_mw_bind_info bind_info_of_region(struct siw_mr *mr)
{
	return (struct siw_mw_bind_info){
		.mr = mr,
		.addr = mr ? (uintptr_t)mr->addr : 0,
		.length = mr ? mr->length : 0,
		.mw_access_flags = WINDOW,
	};
}

static int post_bind(struct siw_qp *qp, struct siw_mw *mw, struct siw_mr *mr)
{
	struct siw_mw_bind bind = { .send_flags = SIW_SEND_SIGNALED,
				    .bind_info = bind_info_of_region(mr) };
	struct siw_send_wr *bad, wr = { .opcode = SIW_WR_BIND_MW, .send_flags = SIW_SEND_SIGNALED };

	if (mw->type == SIW_MW_TYPE_1)
		return siw_bind_mw(qp, mw, &bind);
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = siw_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = bind_info_of_region(mr);
	return siw_post_send(qp, &wr, &bad);
}

static int post_invalidate(struct siw_qp *qp, uint32_t rkey)
{
	struct siw_send_wr *bad, wr = { .opcode = SIW_WR_LOCAL_INV,
					.send_flags = SIW_SEND_SIGNALED,
					.invalidate_rkey = rkey };

	return siw_post_send(qp, &wr, &bad);
}

/*
 * Waits for a completion. Returns false if it was flushed because the connection was reset during a
 * response.
 */
static bool wait_completion(struct end *end)
{
	long deadline = now_ms() + LIMIT_MS;
	struct siw_wc wc;
	int n;

	while ((n = siw_poll_cq(end->cq, 1, &wc)) == 0)
		must(now_ms() < deadline);
	check(n);
	must(wc.status == SIW_WC_SUCCESS || wc.status == SIW_WC_WR_FLUSH_ERR);
	return wc.status == SIW_WC_SUCCESS;
}

static void bind_mw_and_wait(struct end *end, struct siw_mw *mw, struct siw_mr *mr)
{
	check(post_bind(end->qp, mw, mr));
	if (mw->type == SIW_MW_TYPE_2)
		mw->rkey = siw_inc_rkey(mw->rkey);
	must(wait_completion(end));
}

enum ending { REQUEST, REBIND, DEALLOC, DESTROY };

/* Revokes the window in one of four ways; the revocation is complete when the function returns. */
static void revoke_mw(struct end *end, struct siw_mw **mw, enum ending how, struct siw_mr *other)
{
	bool two = (*mw)->type == SIW_MW_TYPE_2;

	if (how == DEALLOC) {
		check(siw_dealloc_mw(*mw));
		*mw = NULL;
	} else if (how == DESTROY) {
		check(siw_cm_destroy_id(end->id));
		end->id = NULL;
		check(siw_destroy_qp(end->qp));
		end->qp = NULL;
	} else if (two) {
		check(post_invalidate(end->qp, (*mw)->rkey));
		if (wait_completion(end) && how == REBIND && !post_bind(end->qp, *mw, other))
			wait_completion(end);
	} else {
		check(post_bind(end->qp, *mw, how == REBIND ? other : NULL));
		wait_completion(end);
	}
}

static void check_memory_unchanged(const char *memory, char what)
{
	struct timespec from, now;

	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		for (unsigned int i = 0; i < SIZE; i++)
			if (memory[i] != what)
				die("octet %u is %#x after the window's end", i, memory[i]);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - from.tv_sec) * 1000000 + (now.tv_nsec - from.tv_nsec) / 1000 <
		 STILL_US);
}

static void destroy_endpoint_objects(struct end *end)
{
	if (end->id)
		check(siw_cm_destroy_id(end->id));
	if (end->qp)
		check(siw_destroy_qp(end->qp));
	check(siw_dereg_mr(end->mr));
	check(siw_destroy_cq(end->cq));
	check(siw_destroy_comp_channel(end->channel));
	free(end->mem);
}

static struct siw_mr *register_region(struct rig *rig, void *memory, size_t size, int access)
{
	struct siw_mr *mr = siw_reg_mr(rig->pd, memory, size, access);

	if (!mr)
		die("siw_reg_mr: %s", strerror(errno));
	return mr;
}

static struct siw_mw *alloc_mw(int type)
{
	struct siw_mw *mw = siw_alloc_mw(right.pd, type);

	if (!mw)
		die("siw_alloc_mw: %s", strerror(errno));
	return mw;
}

static void drain_cm_events(struct rig *rig)
{
	struct siw_cm_event event;

	while (siw_cm_get_event(rig->cm, &event, 0) == 0)
		;
}

static void run_mw_revocation_round(struct peer *p, char *memory, char *elsewhere, int type,
				    enum ending how)
{
	struct siw_mr *mr = register_region(&right, memory, SIZE, REGION);
	struct siw_mr *other = register_region(&right, elsewhere, SIZE, REGION);
	struct siw_mw *mw = alloc_mw(type);
	struct end a, b;
	pthread_t thread;

	memset(memory, '.', SIZE);
	drain_cm_events(&left);
	drain_cm_events(&right);
	connect_rc_endpoints(&a, &left, &b, &right, 16);
	bind_mw_and_wait(&b, mw, mr);
	must(siw_dereg_mr(mr) == -EBUSY);
	start_posting_peer_thread(p, &thread, &a, mw, memory);
	revoke_mw(&b, &mw, how, other);
	/*
	 * Destroying a queue pair does not revoke a type 1 window, which other queue pairs could
	 * still use. A type 2 window has no other user.
	 */
	if (how == DESTROY) {
		check(siw_dealloc_mw(mw));
		mw = NULL;
	}
	memset(memory, 'o', SIZE);
	check_memory_unchanged(memory, 'o');
	check(siw_dereg_mr(mr));
	check(-pthread_join(thread, NULL));
	must(!memchr(p->in, 'o', SIZE));
	must(p->why == 0 || p->why == 0x010100 || p->why == 0x000100);
	*(p->why ? &terminated : &cut) += how != DESTROY;
	if (mw)
		check(siw_dealloc_mw(mw));
	check(siw_dereg_mr(other));
	destroy_endpoint_objects(&a);
	destroy_endpoint_objects(&b);
	rounds[type - 1][how]++;
}

static void revoke_mws_under_load(long ms)
{
	static char memory[SIZE], elsewhere[SIZE];
	static struct peer p = { .seed = 1 };
	long end = now_ms() + ms;

	p.mr = register_region(&left, &p, sizeof(p), SIW_ACCESS_LOCAL_WRITE);
	for (unsigned int i = 0; i < 8 || now_ms() < end; i++)
		run_mw_revocation_round(&p, memory, elsewhere, 1 + (int)i % 2,
					(enum ending)(i / 2 % 4));
	check(siw_dereg_mr(p.mr));
}

/* ---- all operations at the same time --------------------------------------------------------- */

#define FEW 4

/* Even elements are type 1 windows, odd ones type 2. */
static struct siw_mw *_Atomic windows[FEW];
static _Atomic uint32_t keys[FEW];
static struct siw_mr *_Atomic regions[FEW];
static struct siw_qp *_Atomic qps[2];
static struct siw_cq *_Atomic cqs[2];
static char shared[SIZE];
static atomic_bool stop;
static _Atomic unsigned long binds, made, deallocs, deregs, opened;

static void alloc_mw_of_slot(unsigned int i)
{
	struct siw_mw *mw = alloc_mw(i % 2 ? SIW_MW_TYPE_2 : SIW_MW_TYPE_1);

	if (i % 2) /* the rkey of a type 1 window changes with its next bind and is not needed */
		keys[i] = mw->rkey;
	windows[i] = mw;
}

static void check_success_or_expected_race_error(int r)
{
	if (r < 0 && r != -EINVAL && r != -ENOMEM && r != -EBUSY && r != -ENOENT)
		die("unexpected: %s", strerror(-r));
}

/*
 * Binds random windows, and is the only thread that polls completions. The status of a completion
 * depends on which thread was faster.
 */
static void *bind_random_mws(void *unused)
{
	unsigned int seed = 2;
	struct siw_wc wc[16];

	for (; !stop; binds++) {
		unsigned int i = (unsigned int)rand_r(&seed) % FEW,
			     q = (unsigned int)rand_r(&seed) % 2;
		struct siw_mr *mr = regions[rand_r(&seed) % FEW];
		struct siw_mw_bind bind = {
			.send_flags = SIW_SEND_SIGNALED,
			.bind_info = { mr, (uintptr_t)shared, SIZE, WINDOW },
		};
		struct siw_send_wr *bad,
			wr = { .opcode = SIW_WR_BIND_MW, .send_flags = SIW_SEND_SIGNALED };

		wr.bind_mw.mw = windows[i];
		wr.bind_mw.rkey = (keys[i] & ~0xffu) | (uint32_t)rand_r(&seed) % 256;
		wr.bind_mw.bind_info = bind.bind_info;
		if (rand_r(&seed) % 8 == 0)
			bind.bind_info.length = 0;
		check_success_or_expected_race_error(
			i % 2 ? siw_post_send(qps[q], &wr, &bad)
			      : siw_bind_mw(qps[q], windows[i], &bind));
		if (i % 2)
			check_success_or_expected_race_error(
				post_invalidate(qps[q], wr.bind_mw.rkey));
		for (q = 0; q < 2; q++) {
			int n = siw_poll_cq(cqs[q], 16, wc);

			check_success_or_expected_race_error(n);
			for (int k = 0; k < n; k++)
				made += wc[k].status == SIW_WC_SUCCESS;
		}
	}
	return unused;
}

static void *replace_random_mws(void *unused)
{
	unsigned int seed = 3;

	for (; !stop; deallocs++) {
		unsigned int i = (unsigned int)rand_r(&seed) % FEW;
		int r = siw_dealloc_mw(windows[i]);

		check_success_or_expected_race_error(r);
		if (r)
			continue;
		alloc_mw_of_slot(i);
	}
	return unused;
}

static void *replace_random_mrs(void *unused)
{
	unsigned int seed = 4;

	for (; !stop; deregs++) {
		unsigned int i = (unsigned int)rand_r(&seed) % FEW;
		int r = siw_dereg_mr(regions[i]);

		check_success_or_expected_race_error(r);
		if (!r)
			regions[i] = register_region(&right, shared, SIZE, REGION);
	}
	return unused;
}

/*
 * A connection on separate event channels, because a failing bind may end it at any time, and the
 * other connection of the test must not receive that event.
 */
struct pair {
	struct rig left, right;
	struct end a, b;
};

static void connect_endpoint_pair(struct pair *pair, int i)
{
	pair->left = left;
	pair->right = right;
	pair->left.cm = siw_cm_create_channel(left.ctx);
	pair->right.cm = siw_cm_create_channel(right.ctx);
	must(pair->left.cm && pair->right.cm);
	connect_rc_endpoints(&pair->a, &pair->left, &pair->b, &pair->right, 64);
	qps[i] = pair->b.qp;
	cqs[i] = pair->b.cq;
}

static void close_endpoint_pair(struct pair *pair)
{
	destroy_endpoint_objects(&pair->a);
	destroy_endpoint_objects(&pair->b);
	check(siw_cm_destroy_channel(pair->left.cm));
	check(siw_cm_destroy_channel(pair->right.cm));
}

/*
 * Waits until no bind uses the handle of a queue pair that has been closed. A new queue pair may
 * get the same memory, and a failing bind would end it while it connects.
 */
static void wait_until_binds_to_closed_qp_are_over(void)
{
	const struct timespec rest = { .tv_nsec = 3000000 };

	for (unsigned long before = binds; !stop && binds < before + 2;)
		nanosleep(&rest, NULL);
}

static void *replace_queue_pairs(void *unused)
{
	struct pair pairs[2], old;

	for (int i = 0; i < 2; i++)
		connect_endpoint_pair(&pairs[i], i);
	for (; !stop; opened++) {
		int i = opened % 2;

		wait_until_binds_to_closed_qp_are_over();
		old = pairs[i];
		connect_endpoint_pair(&pairs[i], i);
		close_endpoint_pair(&old);
	}
	for (int i = 0; i < 2; i++)
		close_endpoint_pair(&pairs[i]);
	return unused;
}

static void run_concurrent_operations(long ms)
{
	void *(*const work[])(void *) = { bind_random_mws, replace_random_mws, replace_random_mrs };
	const struct timespec rest = { .tv_nsec = 1000000 };
	struct timespec length = { ms / 1000, ms % 1000 * 1000000 };
	pthread_t threads[3], opener;

	for (unsigned int i = 0; i < FEW; i++) {
		alloc_mw_of_slot(i);
		regions[i] = register_region(&right, shared, SIZE, REGION);
	}
	check(-pthread_create(&opener, NULL, replace_queue_pairs, NULL));
	while (!cqs[1])
		nanosleep(&rest, NULL);
	for (int i = 0; i < 3; i++)
		check(-pthread_create(&threads[i], NULL, work[i], NULL));
	nanosleep(&length, NULL);
	for (long end = now_ms() + LIMIT_MS;
	     !(made && deallocs && deregs && opened > 1) && now_ms() < end;)
		nanosleep(&rest, NULL);
	stop = true;
	for (int i = 0; i < 3; i++)
		check(-pthread_join(threads[i], NULL));
	check(-pthread_join(opener, NULL));
	for (int i = 0; i < FEW; i++)
		check(siw_dealloc_mw(windows[i]));
	for (int i = 0; i < FEW; i++)
		check(siw_dereg_mr(regions[i]));
}

int main(int argc, char **argv)
{
	long ms = argc > 1 ? atol(argv[1]) : 1000;

	rig_open(&left);
	rig_open(&right);
	revoke_mws_under_load(ms);
	run_concurrent_operations(ms);
	drain_cm_events(&left);
	drain_cm_events(&right);
	rig_close(&right);
	rig_close(&left);
	for (int i = 0; i < 8; i++)
		printf("%lu ", rounds[i / 4][i % 4]);
	printf("%lu %lu %lu %lu %lu %lu %lu\n", terminated, binds, made, deallocs, deregs, opened,
	       cut);
	return 0;
}
