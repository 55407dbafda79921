/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The rate at which threads of one process move messages concurrently. A thread sends a list of
 * SIW_BENCH_BATCH messages over a connected pair of queue pairs or sockets, receives them at the
 * other end of the pair, and repeats this. The runs differ in what the threads share:
 *
 *   raw          nothing, and siwarp is not used: UDP sockets with sendmmsg and recvmmsg, or TCP
 *                sockets with a send per message
 *   own-devices  nothing; each thread has a device of its own, with one lane
 *   one-device   a device; each thread has its own pair, two CQs in one lane, and a region
 *   one-region   a device and a region
 *   one-cq       a device, a region, one pair, and the CQ of both its queue pairs
 *
 * The main thread reads the counts of all threads at the beginning and at the end of the measured
 * time, so threads that wait for a CPU at these moments do not distort the rate. A thread that
 * fails ends the process. The end of the process frees all objects.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <siwarp/cm.h>
#include <siwarp/siw_ext.h>

#include "bench/bench.h"

#define MAX_SIZE       1024 /* octets; a list of such messages fits in the buffers of a socket */
#define CACHE_LINE     64
#define PAGE	       4096
#define FDS_PER_THREAD 16
#define OWN_QKEY       0x80000000u
#define CM_WAIT_MS     5000
/*
 * Lists in flight on a pair that several threads use: one for each of 8 threads, because a thread
 * may be preempted between polling completions and posting their receives again.
 */
#define SHARED_LISTS 8

struct device {
	struct siw_context *context;
	struct siw_pd *pd;
	struct siw_mr *mr;	   /* memory region of all pairs; NULL if each pair has its own */
	struct siw_cm_channel *cm; /* only for RC, like the following members */
	struct siw_cm_id *listener;
	struct siw_addr listener_addr;
};

/* A connected pair of queue pairs; messages go from one to the other. */
struct pair {
	struct siw_qp *from, *to;
	struct siw_cq *send_cq, *recv_cq; /* in a run of kind one-cq both are the same CQ */
	struct siw_ah *ah;		  /* address handle of `to`; only for UD */
	struct siw_bench_buf buf;	  /* the pair's part of the memory of the run */
	uint32_t lkey;
	uint32_t window; /* maximum of in_flight, and number of posted receives */
	/* number of messages from the start of their posting until their receives are reposted */
	_Alignas(CACHE_LINE) _Atomic uint32_t in_flight;
};

struct run;

struct worker {
	struct run *run;
	struct pair *pair;	 /* the pair of queue pairs; NULL in runs with raw sockets */
	int from, to;		 /* only for raw runs: a connected pair of sockets */
	struct sockaddr_in peer; /* only for raw runs of UDP: the address of `to` */
	char *memory;		 /* only for raw runs: the message, followed by space for a list */
	struct siw_bench_guard guard;
	uint64_t moved_when_idle; /* messages moved when the idle time was last checked */
	pthread_t thread;
	/* messages received by this thread, which alone writes the count */
	_Alignas(CACHE_LINE) _Atomic uint64_t moved;
};

struct run {
	const struct siw_bench_opts *o;
	bool raw, own_devices, one_region, one_cq;
	struct siw_bench_buf memory; /* memory of all pairs or workers, one part for each */
	struct device *devices;
	struct pair *pairs;
	struct worker *workers;
	pthread_barrier_t start;
	_Atomic bool stop;
};

static uint64_t threads_sum_transferred_messages(const struct run *run)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < run->o->threads; i++)
		sum += atomic_load_explicit(&run->workers[i].moved, memory_order_relaxed);
	return sum;
}

static bool threads_should_stop(struct run *run)
{
	return atomic_load_explicit(&run->stop, memory_order_relaxed);
}

static void worker_add_transferred_messages(struct worker *w, uint32_t n)
{
	uint64_t moved = atomic_load_explicit(&w->moved, memory_order_relaxed);

	atomic_store_explicit(&w->moved, moved + n, memory_order_relaxed);
	siw_bench_reset_idle(&w->guard);
}

/*
 * Called after an attempt without progress: exit with an error if nothing has moved for a long
 * time. A thread that shares its pair may find nothing because the others find everything.
 */
static void worker_exit_if_idle_too_long(struct worker *w)
{
	uint64_t moved;

	if (!siw_bench_idle(&w->guard))
		return;
	moved = w->run->one_cq ? threads_sum_transferred_messages(w->run)
			       : atomic_load_explicit(&w->moved, memory_order_relaxed);
	if (!w->run->one_cq || moved == w->moved_when_idle)
		siw_bench_die(SIW_BENCH_EXIT_LOST, "a message did not arrive after %llu messages",
			      (unsigned long long)moved);
	w->moved_when_idle = moved;
	siw_bench_reset_idle(&w->guard);
}

/* ---- raw sockets ----------------------------------------------------------------------------- */

static int kernel_open_socket(int type, struct sockaddr_in *local)
{
	socklen_t length = sizeof(*local);
	int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);

	*local = (struct sockaddr_in){ .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (fd < 0 || bind(fd, (struct sockaddr *)local, length) ||
	    getsockname(fd, (struct sockaddr *)local, &length))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "a socket: %s", strerror(errno));
	return fd;
}

static void raw_open_udp_pair(struct worker *w)
{
	struct sockaddr_in local;

	w->from = kernel_open_socket(SOCK_DGRAM, &local);
	w->to = kernel_open_socket(SOCK_DGRAM, &w->peer);
}

static void raw_open_tcp_pair(struct worker *w)
{
	struct sockaddr_in local;
	int listener = kernel_open_socket(SOCK_STREAM, &local), on = 1;

	w->from = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listen(listener, 1) || w->from < 0 ||
	    connect(w->from, (struct sockaddr *)&local, sizeof(local)))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "connecting: %s", strerror(errno));
	w->to = accept(listener, NULL, NULL);
	if (w->to < 0 || setsockopt(w->from, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)))
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "a TCP connection: %s", strerror(errno));
	close(listener);
}

/* Called after a system call without progress: exit with an error unless it can be repeated. */
static void raw_exit_unless_retryable(struct worker *w, ssize_t n, const char *what)
{
	if (n < 0 && errno != EAGAIN && errno != ENOBUFS && errno != EINTR)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "%s: %s", what, strerror(errno));
	worker_exit_if_idle_too_long(w);
}

static void raw_transfer_udp_messages(struct worker *w)
{
	size_t size = w->run->o->size;
	struct mmsghdr msgs[SIW_BENCH_BATCH];
	struct iovec iov[SIW_BENCH_BATCH];
	struct sockaddr_in from[SIW_BENCH_BATCH];
	int n;

	memset(msgs, 0, sizeof(msgs));
	for (int i = 0; i < SIW_BENCH_BATCH; i++) {
		iov[i] = (struct iovec){ .iov_base = w->memory, .iov_len = size };
		msgs[i].msg_hdr.msg_iov = &iov[i];
		msgs[i].msg_hdr.msg_iovlen = 1;
		msgs[i].msg_hdr.msg_name = &w->peer;
		msgs[i].msg_hdr.msg_namelen = sizeof(w->peer);
	}
	for (unsigned int sent = 0; sent<SIW_BENCH_BATCH; sent += n> 0 ? (unsigned int)n : 0) {
		n = sendmmsg(w->from, msgs + sent, SIW_BENCH_BATCH - sent, MSG_DONTWAIT);
		if (n <= 0)
			raw_exit_unless_retryable(w, n, "sendmmsg");
	}
	for (size_t i = 0; i < SIW_BENCH_BATCH; i++) {
		iov[i].iov_base = w->memory + size * (1 + i);
		msgs[i].msg_hdr.msg_name = &from[i];
	}
	for (unsigned int seen = 0; seen<SIW_BENCH_BATCH; seen += n> 0 ? (unsigned int)n : 0) {
		n = recvmmsg(w->to, msgs + seen, SIW_BENCH_BATCH - seen, MSG_DONTWAIT, NULL);
		if (n <= 0)
			raw_exit_unless_retryable(w, n, "recvmmsg");
	}
}

static void raw_transfer_tcp_messages(struct worker *w)
{
	size_t size = w->run->o->size;
	ssize_t n;

	for (int i = 0; i < SIW_BENCH_BATCH; i++)
		for (size_t sent = 0; sent<size; sent += n> 0 ? (size_t)n : 0) {
			n = send(w->from, w->memory + sent, size - sent,
				 MSG_NOSIGNAL | MSG_DONTWAIT);
			if (n <= 0)
				raw_exit_unless_retryable(w, n, "sending");
		}
	for (size_t left = size * SIW_BENCH_BATCH; left; left -= n > 0 ? (size_t)n : 0) {
		n = recv(w->to, w->memory + size, left, MSG_DONTWAIT);
		if (n == 0)
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "the connection was closed");
		if (n < 0)
			raw_exit_unless_retryable(w, n, "receiving");
	}
}

static void raw_transfer_until_stopped(struct worker *w)
{
	while (!threads_should_stop(w->run)) {
		if (w->run->o->rc)
			raw_transfer_tcp_messages(w);
		else
			raw_transfer_udp_messages(w);
		worker_add_transferred_messages(w, SIW_BENCH_BATCH);
	}
}

static void raw_open_pairs(struct run *run)
{
	size_t part = run->o->size * (SIW_BENCH_BATCH + 1);

	part = (part + PAGE - 1) / PAGE * PAGE;
	siw_bench_buf_make(&run->memory, part, run->o->threads);
	for (uint32_t i = 0; i < run->o->threads; i++) {
		run->workers[i].memory = run->memory.base + part * i;
		if (run->o->rc)
			raw_open_tcp_pair(&run->workers[i]);
		else
			raw_open_udp_pair(&run->workers[i]);
	}
}

/* ---- queue pairs: set-up --------------------------------------------------------------------- */

static void device_open_and_listen(struct device *d, const struct siw_bench_opts *o)
{
	struct siw_addr a;

	siw_bench_exit_on_error(siw_addr_parse(o->local, 0, &a), "the address");
	d->context = siw_bench_require_object(siw_open_device_by_addr(&a), "opening the device");
	d->pd = siw_bench_require_object(siw_alloc_pd(d->context), "a protection domain");
	if (!o->rc)
		return;
	d->cm = siw_bench_require_object(siw_cm_create_channel(d->context), "a CM channel");
	d->listener = siw_bench_require_object(siw_cm_create_id(d->cm, NULL), "a CM id");
	siw_bench_exit_on_error(siw_cm_listen(d->listener, &a, 1), "listening");
	siw_bench_exit_on_error(siw_cm_addr(d->listener, &d->listener_addr, NULL),
				"the listener's address");
}

static struct siw_mr *device_register_memory(struct device *d, char *memory, size_t length)
{
	return siw_bench_require_object(siw_reg_mr(d->pd, memory, length, SIW_ACCESS_LOCAL_WRITE),
					"registering");
}

static struct siw_cq *pair_create_cq(struct device *d, const struct pair *p, uint32_t lane)
{
	/* the CQ also gets a completion for each list of Sends */
	int cqe = (int)(4 * p->window + 64);

	return siw_bench_require_object(siw_create_cq(d->context, cqe, NULL, NULL, (int)lane),
					"a completion queue");
}

static struct siw_qp *pair_create_qp(struct device *d, const struct pair *p, struct siw_cq *cq,
				     const struct siw_bench_opts *o)
{
	struct siw_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = o->rc ? SIW_QPT_RC : SIW_QPT_UD,
		.cap = { .max_send_wr = 4 * p->window,
			 .max_recv_wr = p->window,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.private_messages = o->rc, /* the peer, in this process, understands them */
	};
	struct siw_qp *qp;

	if (!o->rc)
		siw_bench_exit_on_error(siw_addr_parse(o->local, 0, &init.addr), "the address");
	qp = siw_bench_require_object(siw_create_qp(d->pd, &init), "a queue pair");
	for (int s = SIW_QPS_INIT; !o->rc && s <= SIW_QPS_RTS; s++)
		siw_bench_exit_on_error(siw_modify_qp(qp, &(struct siw_qp_attr){ .qp_state = s },
						      SIW_QP_STATE),
					"changing the state of the queue pair");
	return qp;
}

static void pair_post_receiver_window(struct pair *p)
{
	for (uint32_t i = 0; i < p->window; i++) {
		struct siw_sge sge = { .addr = (uintptr_t)siw_bench_slot(&p->buf, i),
				       .length = (uint32_t)p->buf.stride,
				       .lkey = p->lkey };
		struct siw_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

		siw_bench_exit_on_error(siw_post_recv(p->to, &wr, &bad), "posting a receive");
	}
}

static void pair_set_up_ud(struct device *d, struct pair *p)
{
	struct siw_addr a;

	pair_post_receiver_window(p);
	siw_bench_exit_on_error(siw_qp_addr(p->to, &a, NULL), "the queue pair's address");
	p->ah = siw_bench_require_object(siw_create_ah(d->pd, &a), "an address handle");
}

static void pair_accept_connection(struct pair *p, struct siw_cm_id *id)
{
	siw_bench_exit_on_error(siw_cm_bind_qp(id, p->to), "binding the queue pair");
	pair_post_receiver_window(p);
	siw_bench_exit_on_error(siw_cm_accept(id, NULL), "accepting");
}

static void pair_connect_rc(struct device *d, struct pair *p)
{
	struct siw_cm_id *id = siw_bench_require_object(siw_cm_create_id(d->cm, NULL), "a CM id");
	int established = 0;

	siw_bench_exit_on_error(siw_cm_bind_qp(id, p->from), "binding the queue pair");
	siw_bench_exit_on_error(siw_cm_connect(id, &d->listener_addr, NULL, NULL), "connecting");
	while (established < 2) { /* each end of the connection reports one event */
		struct siw_cm_event event;

		siw_bench_exit_on_error(siw_cm_get_event(d->cm, &event, CM_WAIT_MS),
					"waiting for the connection");
		if (event.event == SIW_CM_CONNECT_REQUEST)
			pair_accept_connection(p, event.id);
		else if (event.event == SIW_CM_ESTABLISHED)
			established++;
		else
			siw_bench_die(SIW_BENCH_EXIT_ERROR, "connecting: %s (%s)",
				      siw_cm_event_str(event.event), strerror(-event.status));
	}
}

/*
 * The CQs are created in the given lane, and so the queue pairs are in this lane, too; see
 * threads_open_pairs.
 */
static void pair_create_and_connect(struct run *run, uint32_t i, uint32_t lane)
{
	struct device *d = &run->devices[run->own_devices ? i : 0];
	const struct siw_bench_opts *o = run->o;
	struct pair *p = &run->pairs[i];
	struct siw_mr *mr = d->mr;
	size_t part = run->memory.stride;

	p->window = SIW_BENCH_BATCH * (run->one_cq ? SHARED_LISTS : 1);
	p->buf = (struct siw_bench_buf){ .base = run->memory.base + part * i,
					 .length = part,
					 .stride = (o->size + 63) & ~(size_t)63,
					 .slots = p->window };
	/* not memcpy(), because for the first pair source and destination are the same memory */
	memmove(p->buf.base, run->memory.base, o->size);
	if (!mr)
		mr = device_register_memory(d, p->buf.base, p->buf.length);
	p->lkey = mr->lkey;
	p->send_cq = pair_create_cq(d, p, lane);
	p->recv_cq = run->one_cq ? p->send_cq : pair_create_cq(d, p, lane);
	p->from = pair_create_qp(d, p, p->send_cq, o);
	p->to = pair_create_qp(d, p, p->recv_cq, o);
	if (o->rc)
		pair_connect_rc(d, p);
	else
		pair_set_up_ud(d, p);
}

/* Allocate zeroed memory that starts at a cache line and shares its last one with nothing else. */
static void *threads_alloc_aligned(size_t n, size_t size)
{
	size_t octets = (n * size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
	void *memory = siw_bench_require_object(aligned_alloc(CACHE_LINE, octets), "memory");

	return memset(memory, 0, octets);
}

/*
 * Both queue pairs of a pair shall be in one lane, and the pairs spread evenly over the lanes. A
 * queue pair is in the lane of its receive CQ. A comp_vector other than 0 selects the lane of that
 * number, but comp_vector 0 the lane with the fewest CQs on which queue pairs receive, of several
 * the first. So the pairs of lane 0 are opened last, when lane 0 has the fewest such CQs.
 */
static void threads_open_pairs(struct run *run)
{
	const struct siw_bench_opts *o = run->o;
	uint32_t lanes = run->one_cq ? 1 : o->lanes;
	uint32_t n_pairs = run->one_cq ? 1 : o->threads;
	uint32_t n_devices = run->own_devices ? o->threads : 1;
	size_t stride = (o->size + 63) & ~(size_t)63;
	size_t part = stride * (1 + SIW_BENCH_BATCH * (run->one_cq ? SHARED_LISTS : 1));

	siw_bench_buf_make(&run->memory, (part + PAGE - 1) / PAGE * PAGE, n_pairs);
	run->devices = threads_alloc_aligned(n_devices, sizeof(*run->devices));
	run->pairs = threads_alloc_aligned(n_pairs, sizeof(*run->pairs));
	for (uint32_t i = 0; i < n_devices; i++)
		device_open_and_listen(&run->devices[i], o);
	if (run->one_region || run->one_cq)
		run->devices[0].mr = device_register_memory(&run->devices[0], run->memory.base,
							    run->memory.length);
	for (uint32_t lane = lanes; lane--;)
		for (uint32_t i = lanes - 1 - lane; i < n_pairs; i += lanes)
			pair_create_and_connect(run, i, lane);
	for (uint32_t i = 0; i < o->threads; i++)
		run->workers[i].pair = &run->pairs[run->one_cq ? 0 : i];
}

/* ---- queue pairs: moving messages ------------------------------------------------------------ */

/* The requests of a thread, which the thread prepares once */
struct lists {
	struct siw_sge send_sge, recv_sge[SIW_BENCH_BATCH];
	struct siw_send_wr send[SIW_BENCH_BATCH];
	struct siw_recv_wr recv[SIW_BENCH_BATCH];
};

static void request_lists_prepare(struct lists *l, const struct worker *w)
{
	const struct pair *p = w->pair;

	memset(l, 0, sizeof(*l));
	l->send_sge = (struct siw_sge){ .addr = (uintptr_t)p->buf.base,
					.length = (uint32_t)w->run->o->size,
					.lkey = p->lkey };
	for (int i = 0; i < SIW_BENCH_BATCH; i++) {
		bool last = i == SIW_BENCH_BATCH - 1;

		l->send[i] = (struct siw_send_wr){ .sg_list = &l->send_sge,
						   .num_sge = 1,
						   .opcode = SIW_WR_SEND,
						   .next = last ? NULL : &l->send[i + 1],
						   .send_flags = last ? SIW_SEND_SIGNALED : 0 };
		if (p->ah) {
			l->send[i].wr.ud.ah = p->ah;
			l->send[i].wr.ud.remote_qkey = OWN_QKEY;
		}
		l->recv_sge[i].length = (uint32_t)p->buf.stride;
		l->recv_sge[i].lkey = p->lkey;
		l->recv[i].sg_list = &l->recv_sge[i];
		l->recv[i].num_sge = 1;
	}
}

/* Return true if the pair has room for a list, which the caller must then post. */
static bool pair_reserve_room_for_request_list(struct pair *p)
{
	uint32_t n = atomic_load(&p->in_flight);

	do
		if (n + SIW_BENCH_BATCH > p->window)
			return false;
	while (!atomic_compare_exchange_weak(&p->in_flight, &n, n + SIW_BENCH_BATCH));
	return true;
}

/* Post the receives of n slots, whose numbers are the wr_id of the list's requests, again. */
static void pair_post_recvs(struct pair *p, struct lists *l, uint32_t n)
{
	struct siw_recv_wr *bad;

	for (uint32_t i = 0; i < n; i++) {
		l->recv_sge[i].addr =
			(uintptr_t)siw_bench_slot(&p->buf, (uint32_t)l->recv[i].wr_id);
		l->recv[i].next = i + 1 < n ? &l->recv[i + 1] : NULL;
	}
	siw_bench_exit_on_error(siw_post_recv(p->to, l->recv, &bad), "posting receives");
	atomic_fetch_sub(&p->in_flight, n);
}

static void worker_check_completion(struct worker *w, const struct siw_wc *wc)
{
	if (wc->status != SIW_WC_SUCCESS)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "a request failed: %s (0x%06x)",
			      siw_wc_status_str(wc->status), wc->vendor_err);
	if (wc->opcode != SIW_WC_RECV)
		return;
	if (wc->byte_len != w->run->o->size)
		siw_bench_die(SIW_BENCH_EXIT_ERROR, "a message has %u octets, the wrong length",
			      wc->byte_len);
	/* only the octets of the first message are checked */
	if (!atomic_load_explicit(&w->moved, memory_order_relaxed))
		siw_bench_buf_check(siw_bench_slot(&w->pair->buf, (uint32_t)wc->wr_id),
				    w->run->o->size);
}

/* Poll a batch of completions, post the receives again, and return the number of completions. */
static int worker_poll_and_repost(struct worker *w, struct siw_cq *cq, struct lists *l)
{
	struct siw_wc wc[SIW_BENCH_BATCH];
	int n = siw_poll_cq(cq, SIW_BENCH_BATCH, wc);
	uint32_t received = 0;

	siw_bench_exit_on_error(n, "polling");
	for (int i = 0; i < n; i++) {
		worker_check_completion(w, &wc[i]);
		if (wc[i].opcode == SIW_WC_RECV)
			l->recv[received++].wr_id = wc[i].wr_id;
	}
	if (received) {
		pair_post_recvs(w->pair, l, received);
		worker_add_transferred_messages(w, received);
	}
	return n;
}

/* Move messages until the end of the measured time, then wait until every message has arrived. */
static void pair_transfer_until_stopped(struct worker *w)
{
	struct pair *p = w->pair;
	struct siw_send_wr *bad;
	struct lists l;

	request_lists_prepare(&l, w);
	while (!threads_should_stop(w->run) || atomic_load(&p->in_flight)) {
		int n;

		while (!threads_should_stop(w->run) && pair_reserve_room_for_request_list(p))
			siw_bench_exit_on_error(siw_post_send(p->from, l.send, &bad),
						"posting sends");
		n = worker_poll_and_repost(w, p->recv_cq, &l);
		if (p->send_cq != p->recv_cq)
			n += worker_poll_and_repost(w, p->send_cq, &l);
		if (!n)
			worker_exit_if_idle_too_long(w);
	}
}

/* ---- threads --------------------------------------------------------------------------------- */

static void *worker_thread_main(void *arg)
{
	struct worker *w = arg;

	pthread_barrier_wait(&w->run->start);
	if (w->run->raw)
		raw_transfer_until_stopped(w);
	else
		pair_transfer_until_stopped(w);
	return NULL;
}

static void threads_start_workers(struct run *run)
{
	uint32_t n = run->o->threads;
	int err = pthread_barrier_init(&run->start, NULL, n + 1);

	siw_bench_exit_on_error(-err, "a barrier");
	for (uint32_t i = 0; i < n; i++) {
		err = pthread_create(&run->workers[i].thread, NULL, worker_thread_main,
				     &run->workers[i]);
		siw_bench_exit_on_error(-err, "a thread");
	}
	pthread_barrier_wait(&run->start);
}

/* On a busy machine the measured time is extended until a message has arrived. */
static void threads_measure_rate(struct run *run, struct siw_bench_result *result)
{
	uint64_t start, moved, ns;

	usleep(run->o->time_ms * 1000 / 4); /* warm up */
	moved = threads_sum_transferred_messages(run);
	start = siw_bench_now();
	do
		usleep(run->o->time_ms * 1000);
	while (!(result->n = threads_sum_transferred_messages(run) - moved));
	ns = siw_bench_now() - start;
	result->value = (double)result->n * 1e9 / (double)ns;
}

static void threads_join_workers(struct run *run)
{
	atomic_store(&run->stop, true);
	for (uint32_t i = 0; i < run->o->threads; i++)
		siw_bench_exit_on_error(-pthread_join(run->workers[i].thread, NULL),
					"the end of a thread");
	pthread_barrier_destroy(&run->start);
}

void siw_bench_measure_threads(const struct siw_bench_opts *o, struct siw_bench_result *result)
{
	struct run run = { .o = o,
			   .raw = !strcmp(o->run, "raw"),
			   .own_devices = !strcmp(o->run, "own-devices"),
			   .one_region = !strcmp(o->run, "one-region"),
			   .one_cq = !strcmp(o->run, "one-cq") };

	if (!run.raw && !run.own_devices && !run.one_region && !run.one_cq &&
	    strcmp(o->run, "one-device"))
		siw_bench_die(SIW_BENCH_EXIT_USAGE, "there is no run of threads named %s", o->run);
	if (!o->threads || !o->lanes || !o->time_ms || !o->size || o->size > MAX_SIZE || o->uc ||
	    o->rd)
		siw_bench_die(SIW_BENCH_EXIT_USAGE,
			      "threads need --threads, --lanes, --time, and messages of UD or RC "
			      "of 1 to %d octets",
			      MAX_SIZE);
	siw_bench_raise_fd_limit(o->threads * FDS_PER_THREAD);
	run.workers = threads_alloc_aligned(o->threads, sizeof(*run.workers));
	for (uint32_t i = 0; i < o->threads; i++)
		run.workers[i].run = &run;
	if (run.raw)
		raw_open_pairs(&run);
	else
		threads_open_pairs(&run);
	threads_start_workers(&run);
	threads_measure_rate(&run, result);
	threads_join_workers(&run);
}
