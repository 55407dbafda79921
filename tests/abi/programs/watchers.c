/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests three ways of waiting for messages: a child process answers each message, and the parent
 * process detects the answer in the way that an argument selects. Arguments: rc, uc or ud; then
 *   poll     only calls ibv_poll_cq, in a loop
 *   memory   watches its memory, without any call
 *   epoll    sleeps on its completion channel
 */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

#define ROUNDS 50
#define GRH    40
#define LENGTH 32

struct name {
	uint32_t qpn, rkey;
	uint64_t addr;
};

static enum ibv_qp_type type;
static struct ibv_comp_channel *channel;
static struct side own;
static struct name peer;
static struct ibv_ah *ah;
static int ends[2]; /* write end and read end of the pipes to and from the other process */

static size_t grh_length(void)
{
	return type == IBV_QPT_UD ? GRH : 0;
}

/* Returns the address at which messages arrive: offset 1024 for Writes, offset 0 for receives. */
static volatile char *message_arrival_address(bool by_write)
{
	return own.buf + (by_write ? 1024 : grh_length());
}

static void connect_qp_to_other_process(bool with_channel)
{
	struct ibv_qp_init_attr init;
	struct ibv_ah_attr attr;
	struct name mine;

	open_loopback_device();
	if (with_channel) {
		channel = ibv_create_comp_channel(ctx);
		CHECK(channel && fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	}
	own.cq = ibv_create_cq(ctx, 16, NULL, channel, 0);
	CHECK(own.cq);
	init = default_qp_attr(own.cq, type);
	own.qp = ibv_create_qp(pd, &init);
	CHECK(own.qp);
	register_side_memory(&own);
	move_qp_to_init(own.qp);
	mine = (struct name){ own.qp->qp_num, own.mr->rkey, (uintptr_t)own.buf };
	CHECK(write(ends[0], &mine, sizeof(mine)) == sizeof(mine));
	CHECK(read(ends[1], &peer, sizeof(peer)) == sizeof(peer));
	move_qp_to_rts(own.qp, peer.qpn);
	attr = loopback_ah_attr();
	ah = type == IBV_QPT_UD ? ibv_create_ah(pd, &attr) : NULL;
	/*
	 * Both ends post receives before either end sends, because UC and UD drop messages without
	 * a receive.
	 */
	post_recv(&own, 0, 0, (uint32_t)grh_length() + LENGTH);
	CHECK(write(ends[0], "r", 1) == 1 && read(ends[1], &mine, 1) == 1);
}

/* Sends a message whose octets are all `mark`, by a Send or by a Write that consumes no receive. */
static void send_message_filled_with(char mark, bool by_write)
{
	struct ibv_sge sge = sge_of_side(&own, 2048, LENGTH);
	struct ibv_send_wr wr = {
		.wr_id = 99,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = by_write ? IBV_WR_RDMA_WRITE : IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
	};
	struct ibv_send_wr *bad;

	memset(own.buf + 2048, mark, LENGTH);
	if (by_write) {
		wr.wr.rdma.remote_addr = peer.addr + 1024;
		wr.wr.rdma.rkey = peer.rkey;
	}
	if (ah) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = peer.qpn;
		wr.wr.ud.remote_qkey = QKEY;
	}
	CHECK(ibv_post_send(own.qp, &wr, &bad) == 0);
}

/*
 * Polls until the next receive completion, ignoring completions of sends, and posts the receive
 * again.
 */
static void poll_receive(char mark)
{
	double end = now_seconds() + SECONDS;
	struct ibv_wc wc;
	int n;

	do {
		CHECK(now_seconds() < end);
		n = ibv_poll_cq(own.cq, 1, &wc);
		CHECK(n >= 0 && (n == 0 || wc.status == IBV_WC_SUCCESS));
	} while (n == 0 || wc.opcode != IBV_WC_RECV);
	CHECK(*message_arrival_address(false) == mark);
	post_recv(&own, 0, 0, (uint32_t)grh_length() + LENGTH);
}

/* Waits for an answer by reading memory, without any call of verbs. */
static void busy_poll_memory_for_message(char mark, bool by_write)
{
	double end = now_seconds() + SECONDS;

	while (*message_arrival_address(by_write) != mark)
		CHECK(now_seconds() < end);
}

static void sleep_until_cq_event(int epoll)
{
	struct epoll_event event;
	struct ibv_cq *cq;
	void *user;

	CHECK(epoll_wait(epoll, &event, 1, SECONDS * 1000) == 1);
	CHECK(ibv_get_cq_event(channel, &cq, &user) == 0 && cq == own.cq);
	ibv_ack_cq_events(cq, 1);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
}

/*
 * Polls the completions of 16 Writes after every 16th Write, so that the send queue does not fill.
 *
 */
static void wait_after_every_16_writes(int i)
{
	if (i % 16 == 0)
		for (int n = 0; n < 16; n++)
			wait_success(own.cq);
}

/*
 * Waits for ROUNDS messages, answers each by the same operation (a Write or a Send), and exits when
 * the parent process permits.
 */
static void run_answering_child(bool by_write)
{
	connect_qp_to_other_process(false);
	for (int i = 1; i <= ROUNDS; i++) {
		if (by_write)
			busy_poll_memory_for_message((char)i, true);
		else
			poll_receive((char)i);
		send_message_filled_with((char)i, by_write);
		if (by_write)
			wait_after_every_16_writes(i);
	}
	/* The child must not exit before the last message is sent. */
	CHECK(read(ends[1], &peer, 1) == 1);
	_exit(0);
}

/*
 * Waits with epoll for the receive completion of a message with the given mark. Several events may
 * belong to a receive, or one event to several receives.
 */
static void wait_receive_by_epoll(int epoll, char mark)
{
	struct ibv_wc wc;

	for (;;) {
		int n = ibv_poll_cq(own.cq, 1, &wc);

		CHECK(n >= 0);
		if (n == 0) {
			sleep_until_cq_event(epoll);
			continue;
		}
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode != IBV_WC_RECV)
			continue;
		CHECK(*message_arrival_address(false) == mark);
		post_recv(&own, 0, 0, (uint32_t)grh_length() + LENGTH);
		return;
	}
}

static void send_and_wait(const char *way, bool by_write)
{
	bool sleeps = strcmp(way, "epoll") == 0, looks = strcmp(way, "memory") == 0;
	struct epoll_event in = { .events = EPOLLIN };
	int epoll = epoll_create1(EPOLL_CLOEXEC);

	connect_qp_to_other_process(sleeps);
	if (sleeps) {
		CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, channel->fd, &in) == 0);
		CHECK(ibv_req_notify_cq(own.cq, 0) == 0);
	}
	for (int i = 1; i <= ROUNDS; i++) {
		send_message_filled_with((char)i, by_write);
		if (sleeps) {
			wait_receive_by_epoll(epoll, (char)i);
			continue;
		}
		if (looks)
			busy_poll_memory_for_message((char)i, by_write);
		if (by_write)
			wait_after_every_16_writes(i);
		else
			poll_receive((char)i);
	}
	close(epoll);
	CHECK(write(ends[0], "e", 1) == 1);
}

int main(int argc, char **argv)
{
	int there[2], back[2], status;
	bool by_write;
	pid_t child;

	CHECK(argc == 3 && pipe(there) == 0 && pipe(back) == 0);
	type = strcmp(argv[1], "rc") == 0   ? IBV_QPT_RC
	       : strcmp(argv[1], "uc") == 0 ? IBV_QPT_UC
					    : IBV_QPT_UD;
	/* UD has no Writes, so the watched memory is the buffer of a receive. */
	by_write = strcmp(argv[2], "memory") == 0 && type != IBV_QPT_UD;
	child = fork();
	CHECK(child >= 0);
	ends[0] = child ? there[1] : back[1];
	ends[1] = child ? back[0] : there[0];
	if (child == 0)
		run_answering_child(by_write);
	send_and_wait(argv[2], by_write);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	if (ah)
		CHECK(ibv_destroy_ah(ah) == 0);
	destroy_side(&own);
	if (channel)
		CHECK(ibv_destroy_comp_channel(channel) == 0);
	close_loopback_device();
	return 0;
}
