/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Errors of datagram queue pairs as a C program sees them: errors reported by the peer, errors
 * found locally, fatal and non-fatal ones, and recovery from them.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rig.h"

#define QKEY 0x01020304u

static struct rig rig;
static struct siw_cq *cq;
static char memory[64];
static struct siw_mr *mr;

static void modify_to_rts(struct siw_qp *qp)
{
	for (int s = SIW_QPS_INIT; s <= SIW_QPS_RTS; s++) {
		struct siw_qp_attr attr = { .qp_state = s, .qkey = QKEY };

		check(siw_modify_qp(qp, &attr,
				    SIW_QP_STATE | (s == SIW_QPS_INIT ? SIW_QP_QKEY : 0)));
	}
}

static struct siw_qp *create_ud_qp(int policy)
{
	struct siw_qp_init_attr init = { .send_cq = cq,
					 .recv_cq = cq,
					 .cap = { 8, 8, 1, 1, 0 },
					 .qp_type = SIW_QPT_UD,
					 .no_crc = 1,
					 .error_policy = policy };
	struct siw_qp_init_attr now;
	struct siw_qp *qp = siw_create_qp(rig.pd, &init);

	must(qp);
	modify_to_rts(qp);
	check(siw_query_qp(qp, NULL, &now));
	must(now.error_policy == (policy ? policy : SIW_ERROR_POLICY_ERROR));
	return qp;
}

static void post_recv_of_length(struct siw_qp *qp, uint32_t length)
{
	struct siw_sge sge = { (uintptr_t)memory, length, mr->lkey };
	struct siw_recv_wr *bad, wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 };

	check(siw_post_recv(qp, &wr, &bad));
}

static void post_send_to(struct siw_qp *qp, struct siw_ah *ah, uint64_t wr_id)
{
	struct siw_sge sge = { (uintptr_t)memory, 16, mr->lkey };
	struct siw_send_wr *bad,
		wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = SIW_WR_SEND };

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qkey = QKEY;
	check(siw_post_send(qp, &wr, &bad));
}

static struct siw_wc wait_for_completion(void)
{
	long end = now_ms() + LIMIT_MS;
	struct siw_wc wc;

	while (siw_poll_cq(cq, 1, &wc) != 1)
		must(now_ms() < end);
	return wc;
}

static struct siw_err_entry wait_for_reported_error(struct siw_qp *qp)
{
	long end = now_ms() + LIMIT_MS;
	struct siw_err_entry entry;
	int n;

	while ((n = siw_poll_err(qp, 1, &entry)) == 0)
		must(now_ms() < end);
	check(n);
	must(siw_poll_err(qp, 0, NULL) == 0);
	return entry;
}

static void expect_async_event(struct siw_qp *qp, int type)
{
	struct siw_async_event event;

	check(siw_get_async_event(rig.ctx, &event, LIMIT_MS));
	must(event.event_type == type && event.element.qp == qp);
	siw_ack_async_event(&event);
}

/*
 * Checks that a message longer than the receive buffer of b is reported to a, with the number of
 * the message.
 */
static void check_length_error_is_reported_to_sender(struct siw_qp *a, struct siw_qp *b)
{
	struct siw_err_entry e;
	struct siw_addr at;
	struct siw_ah *ah;

	check(siw_qp_addr(b, &at, NULL));
	ah = siw_create_ah(rig.pd, &at);
	must(ah);
	post_recv_of_length(b, 8);
	post_send_to(a, ah, 4711);
	must(wait_for_completion().status == SIW_WC_LOC_LEN_ERR);
	expect_async_event(a, SIW_EVENT_QP_ERR_QUEUED);
	e = wait_for_reported_error(a);
	must(e.origin == SIW_ERR_REPORTED && e.wr_id == 4711 && e.msn == 1);
	must(e.src_qpn == siw_qp_num(b) && e.source.port_be == at.port_be);
	must(e.layer == 1 && e.type == 2 && e.code == 5);
	must(e.header_len == 18 && e.seg_len == 18 + 16);
	post_recv_of_length(b, 16);
	post_send_to(a, ah, 4712);
	must(wait_for_completion().status == SIW_WC_SUCCESS);
	check(siw_destroy_ah(ah));
}

/*
 * Sends an empty Send with Invalidate, an operation that UD does not have. The receiver does not
 * check the CRC field.
 */
static void send_invalid_datagram(struct siw_qp *to)
{
	static const unsigned char wrong[22] = { 0x41, 0x44, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 99 };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct siw_addr at;

	must(fd >= 0);
	check(siw_qp_addr(to, &at, NULL));
	must(sendto(fd, wrong, sizeof(wrong), 0, (struct sockaddr *)&at,
		    sizeof(struct sockaddr_in)) == sizeof(wrong));
	close(fd);
}

static void check_invalid_datagram_is_reported_locally(struct siw_qp *qp, int event, int state)
{
	struct siw_qp_attr attr;
	struct siw_err_entry e;

	send_invalid_datagram(qp);
	e = wait_for_reported_error(qp);
	must(e.origin == SIW_ERR_FOUND && e.msn == 99 && e.seg_len == 18);
	must(e.layer == 0 && e.type == 2 && e.code == 6);
	expect_async_event(qp, event);
	check(siw_query_qp(qp, &attr, NULL));
	must(attr.qp_state == state);
}

int main(void)
{
	const struct siw_qp_attr reset = { .qp_state = SIW_QPS_RESET };
	struct siw_qp *a, *b;

	rig_open(&rig);
	cq = siw_create_cq(rig.ctx, 64, NULL, NULL, 0);
	must(cq);
	mr = siw_reg_mr(rig.pd, memory, sizeof(memory), SIW_ACCESS_LOCAL_WRITE);
	must(mr);
	a = create_ud_qp(SIW_ERROR_POLICY_AUTO);
	b = create_ud_qp(SIW_ERROR_POLICY_MESSAGE);
	check_length_error_is_reported_to_sender(a, b);
	check_invalid_datagram_is_reported_locally(b, SIW_EVENT_QP_ERR_QUEUED, SIW_QPS_RTS);
	check_invalid_datagram_is_reported_locally(a, SIW_EVENT_QP_REQ_ERR, SIW_QPS_ERR);
	check(siw_modify_qp(a, &reset, SIW_QP_STATE));
	modify_to_rts(a);
	check_invalid_datagram_is_reported_locally(a, SIW_EVENT_QP_REQ_ERR, SIW_QPS_ERR);
	must(siw_poll_err(NULL, 0, NULL) == -EINVAL && siw_poll_err(a, 1, NULL) == -EINVAL);
	check(siw_destroy_qp(a));
	check(siw_destroy_qp(b));
	check(siw_dereg_mr(mr));
	check(siw_destroy_cq(cq));
	rig_close(&rig);
	return 0;
}
