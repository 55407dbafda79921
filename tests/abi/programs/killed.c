/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests a peer that is killed by SIGKILL while no request is posted (idle), or while requests are
 * in flight (busy). Arguments: rc, uc or ud; idle or busy.
 *
 * RC: the queue pair stays in RTS until its next request, which fails with RETRY_EXC_ERR after a
 * time-out; later requests and the receives are flushed. UC and UD: no error is reported, requests
 * keep succeeding, and receives stay posted.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

/*
 * minimum time in s after which requests fail; siwarp waits 3 s for a peer, regardless of timeout
 * and retry_cnt
 */
#define AT_LEAST 2.5
#define BUSY	 16

struct name {
	uint32_t qpn, rkey;
	uint64_t addr;
};

static enum ibv_qp_type type;
static struct side own;
static struct name peer;
static struct ibv_ah *ah;
static int ends[2];

static void connect_qp_to_other_process(void)
{
	struct ibv_ah_attr attr;
	struct name mine;

	open_loopback_device();
	create_side(&own, type, NULL);
	mine = (struct name){ own.qp->qp_num, own.mr->rkey, (uintptr_t)own.buf };
	CHECK(write(ends[0], &mine, sizeof(mine)) == sizeof(mine));
	CHECK(read(ends[1], &peer, sizeof(peer)) == sizeof(peer));
	move_qp_to_rts(own.qp, peer.qpn);
	attr = loopback_ah_attr();
	ah = type == IBV_QPT_UD ? ibv_create_ah(pd, &attr) : NULL;
	post_recv(&own, 1000, 0, 128);
	post_recv(&own, 1001, 128, 128);
	CHECK(write(ends[0], "r", 1) == 1 && read(ends[1], &mine, 1) == 1);
}

static void post_request(uint64_t id)
{
	struct ibv_sge sge = sge_of_side(&own, 2048, ah ? 64 : 2048);
	struct ibv_send_wr wr = {
		.wr_id = id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = ah ? IBV_WR_SEND : IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_send_wr *bad;

	if (ah) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = peer.qpn;
		wr.wr.ud.remote_qkey = QKEY;
	} else {
		wr.wr.rdma.remote_addr = peer.addr + 2048;
		wr.wr.rdma.rkey = peer.rkey;
	}
	CHECK(ibv_post_send(own.qp, &wr, &bad) == 0);
}

static enum ibv_qp_state query_qp_state(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK(ibv_query_qp(own.qp, &attr, IBV_QP_STATE, &init) == 0);
	return attr.qp_state;
}

/* Kills the peer while the send queue is full, and checks the completions of all requests. */
static void check_busy_peer_killed(pid_t child)
{
	double end = now_seconds() + SECONDS;
	uint64_t posted = 0, done = 0;
	struct ibv_wc wc;

	while (now_seconds() < end) {
		int n;

		while (posted < done + BUSY)
			post_request(posted++);
		n = ibv_poll_cq(own.cq, 1, &wc);
		CHECK(n >= 0);
		if (n == 0)
			continue;
		CHECK(wc.wr_id == done++); /* each request completes exactly once and in order */
		if (wc.status != IBV_WC_SUCCESS)
			break;
		if (done == 10 * BUSY)
			CHECK(kill(child, SIGKILL) == 0);
		if (done == 100 * BUSY && type != IBV_QPT_RC)
			break;
	}
	CHECK(now_seconds() < end);
	CHECK(wc.status == (type == IBV_QPT_RC ? IBV_WC_RETRY_EXC_ERR : IBV_WC_SUCCESS));
	for (; done < posted; done++) {
		wc = wait_completion(own.cq);
		CHECK(wc.wr_id == done);
		CHECK(wc.status == (type == IBV_QPT_RC ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS));
	}
}

static void check_flushed_receives(void)
{
	for (uint64_t id = 1000; id < 1002; id++) {
		struct ibv_wc wc = wait_completion(own.cq);

		CHECK(wc.wr_id == id && wc.status == IBV_WC_WR_FLUSH_ERR);
	}
	CHECK(query_qp_state() == IBV_QPS_ERR);
}

static void check_idle_peer_killed(pid_t child)
{
	struct ibv_wc wc;
	double began;

	CHECK(kill(child, SIGKILL) == 0);
	usleep(300000);
	CHECK(ibv_poll_cq(own.cq, 1, &wc) == 0 && query_qp_state() == IBV_QPS_RTS);
	began = now_seconds();
	post_request(1);
	post_request(2);
	wc = wait_completion(own.cq);
	if (type != IBV_QPT_RC) {
		CHECK(wc.status == IBV_WC_SUCCESS && wait_success(own.cq).wr_id == 2);
		return;
	}
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_RETRY_EXC_ERR &&
	      now_seconds() - began > AT_LEAST);
	wc = wait_completion(own.cq);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_WR_FLUSH_ERR);
}

int main(int argc, char **argv)
{
	int there[2], back[2], status;
	struct ibv_wc wc;
	pid_t child;

	CHECK(argc == 3 && pipe(there) == 0 && pipe(back) == 0);
	type = strcmp(argv[1], "rc") == 0   ? IBV_QPT_RC
	       : strcmp(argv[1], "uc") == 0 ? IBV_QPT_UC
					    : IBV_QPT_UD;
	child = fork();
	CHECK(child >= 0);
	ends[0] = child ? there[1] : back[1];
	ends[1] = child ? back[0] : there[0];
	connect_qp_to_other_process();
	while (child == 0)
		pause();
	if (strcmp(argv[2], "busy") == 0)
		check_busy_peer_killed(child);
	else
		check_idle_peer_killed(child);
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	if (type == IBV_QPT_RC) {
		check_flushed_receives();
	} else {
		CHECK(ibv_poll_cq(own.cq, 1, &wc) == 0 && query_qp_state() == IBV_QPS_RTS);
	}
	if (ah)
		CHECK(ibv_destroy_ah(ah) == 0);
	destroy_side(&own);
	close_loopback_device();
	return 0;
}
