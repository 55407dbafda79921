/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdma_cm calls that must fail: invalid values, calls in a wrong order, invalid and destroyed
 * handles.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bad.h"

static struct rdma_event_channel *channel;
static struct sockaddr_in addr, any;

/* Functions that rdma-core added in later releases. */
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status,
			uint64_t arg);
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);

/* Passes an invalid id to every function with an id parameter. */
static void check_calls_with_bad_id(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct ibv_qp_init_attr_ex init_ex = { .qp_type = IBV_QPT_RC };
	struct ibv_srq_init_attr srq = { .attr = { 1, 1, 0 } };
	struct ibv_srq_init_attr_ex srq_ex = { .attr = { 1, 1, 0 } };
	struct rdma_conn_param param = { 0 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct rdma_cm_join_mc_attr_ex join = { 0 };
	struct sockaddr *sa = (struct sockaddr *)&addr;
	struct rdma_cm_id *out;
	struct rdma_addrinfo *info;
	struct ibv_ece ece = { 0 };
	int mask, zero = 0;

	MINUS(EINVAL, rdma_destroy_id(id));
	MINUS(EINVAL, rdma_bind_addr(id, sa));
	MINUS(EINVAL, rdma_resolve_addr(id, NULL, sa, 1));
	MINUS(EINVAL, rdma_resolve_route(id, 1));
	MINUS(EINVAL, rdma_create_qp(id, NULL, &init));
	MINUS(EINVAL, rdma_create_qp_ex(id, &init_ex));
	MINUS(EINVAL, rdma_create_srq(id, NULL, &srq));
	MINUS(EINVAL, rdma_create_srq_ex(id, &srq_ex));
	MINUS(EINVAL, rdma_connect(id, &param));
	MINUS(EINVAL, rdma_establish(id));
	MINUS(EINVAL, rdma_listen(id, 1));
	MINUS(EINVAL, rdma_get_request(id, &out));
	MINUS(EINVAL, rdma_accept(id, &param));
	MINUS(EINVAL, rdma_reject(id, NULL, 0));
	MINUS(EINVAL, rdma_reject_ece(id, NULL, 0));
	MINUS(EINVAL, rdma_notify(id, IBV_EVENT_COMM_EST));
	MINUS(EINVAL, rdma_disconnect(id));
	MINUS(EINVAL, rdma_join_multicast(id, sa, NULL));
	MINUS(EINVAL, rdma_join_multicast_ex(id, &join, NULL));
	MINUS(EINVAL, rdma_leave_multicast(id, sa));
	MINUS(EINVAL,
	      rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &zero, sizeof(int)));
	MINUS(EINVAL, rdma_migrate_id(id, channel));
	MINUS(EINVAL, rdma_init_qp_attr(id, &attr, &mask));
	MINUS(EINVAL, rdma_set_local_ece(id, &ece));
	MINUS(EINVAL, rdma_get_remote_ece(id, &ece));
	MINUS(EINVAL, rdma_write_cm_event(id, (enum rdma_cm_event_type)18, 0, 0));
	MINUS(EINVAL, rdma_resolve_addrinfo(id, "127.0.0.1", NULL, NULL));
	MINUS(EINVAL, rdma_query_addrinfo(id, &info));
	check_call_result(__LINE__, "rdma_get_src_port", rdma_get_src_port(id), 0);
	check_call_result(__LINE__, "rdma_get_dst_port", rdma_get_dst_port(id), 0);
	/* Functions without a return value have to ignore the invalid id. */
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	rdma_destroy_ep(id);
}

static void check_calls_with_bad_handles(void)
{
	struct rdma_cm_event *event, *gone;
	struct rdma_cm_id *id;

	which = "a handle that is none";
	check_calls_with_bad_id(NULL);
	check_calls_with_bad_id((struct rdma_cm_id *)memory);
	check_calls_with_bad_id((struct rdma_cm_id *)channel);
	MINUS(EINVAL, rdma_get_cm_event(NULL, &event));
	MINUS(EINVAL, rdma_get_cm_event((struct rdma_event_channel *)memory, &event));
	MINUS(EINVAL, rdma_get_cm_event(channel, NULL));
	MINUS(EINVAL, rdma_ack_cm_event(NULL));
	MINUS(EINVAL, rdma_ack_cm_event((struct rdma_cm_event *)memory));
	MINUS(EINVAL, rdma_create_id((struct rdma_event_channel *)memory, &id, NULL, RDMA_PS_TCP));
	MINUS(EINVAL, rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP));
	rdma_destroy_event_channel(NULL);
	rdma_destroy_event_channel((struct rdma_event_channel *)memory);
	rdma_free_devices(NULL);
	rdma_freeaddrinfo(NULL);

	which = "a handle that is gone";
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 1) == 0);
	CHECK(rdma_get_cm_event(channel, &gone) == 0 && rdma_ack_cm_event(gone) == 0);
	MINUS(EINVAL, rdma_ack_cm_event(gone));
	CHECK(rdma_destroy_id(id) == 0);
	check_calls_with_bad_id(id);
}

static void check_calls_with_bad_values(struct rdma_cm_id *id)
{
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr strange = { .sa_family = AF_UNIX };
	struct ibv_ece ece = { .vendor_id = 1 };
	struct rdma_cm_id *out;
	int value = 1;

	which = "a wrong value";
	MINUS(EOPNOTSUPP, rdma_create_id(channel, &out, NULL, RDMA_PS_IB));
	MINUS(EPROTONOSUPPORT, rdma_create_id(channel, &out, NULL, (enum rdma_port_space)7));
	MINUS(EINVAL, rdma_bind_addr(id, NULL));
	MINUS(EAFNOSUPPORT, rdma_bind_addr(id, &strange));
	MINUS(EAFNOSUPPORT, rdma_resolve_addr(id, NULL, &strange, 1));
	MINUS(EINVAL, rdma_resolve_addr(id, NULL, NULL, 1));
	MINUS(EINVAL, rdma_resolve_addr(id, NULL, (struct sockaddr *)&any, 1));
	MINUS(EINVAL, rdma_resolve_addr(id, (struct sockaddr *)&v6, (struct sockaddr *)&addr, 1));
	/* 192.0.2.99, which is not an address of this machine */
	any.sin_addr.s_addr = htonl(0xc0000263);
	MINUS(ENODEV, rdma_bind_addr(id, (struct sockaddr *)&any));
	MINUS(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, NULL, 4));
	MINUS(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &value, 1));
	MINUS(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &value, 4));
	MINUS(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, 99, &value, 4));
	MINUS(EINVAL, rdma_set_option(id, 99, 0, &value, 1));
	MINUS(EOPNOTSUPP, rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &value, 4));
	value = 32;
	MINUS(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &value, 1));
	MINUS(EOPNOTSUPP, rdma_set_local_ece(id, &ece));
	MINUS(EINVAL, rdma_set_local_ece(id, NULL));
	MINUS(EINVAL, rdma_get_remote_ece(id, NULL));
	MINUS(EINVAL, rdma_notify(id, IBV_EVENT_QP_FATAL));
	MINUS(EINVAL, rdma_join_multicast(id, NULL, NULL));
	MINUS(EINVAL, rdma_join_multicast(id, (struct sockaddr *)&addr, NULL));
	MINUS(EINVAL, rdma_leave_multicast(id, (struct sockaddr *)&addr));
	MINUS(EINVAL, rdma_migrate_id(id, (struct rdma_event_channel *)memory));
	MINUS(EINVAL, rdma_create_ep(&out, NULL, NULL, NULL));
	check_call_result(__LINE__, "rdma_event_str",
			  strcmp(rdma_event_str((enum rdma_cm_event_type)99), "UNKNOWN EVENT"), 0);
}

static void check_bad_addrinfo_arguments(void)
{
	struct rdma_addrinfo hints = { .ai_flags = 1 << 20 }, *res;

	which = "a name that is none";
	MINUS(EINVAL, rdma_getaddrinfo(NULL, NULL, NULL, &res));
	MINUS(EINVAL, rdma_getaddrinfo("127.0.0.1", NULL, NULL, NULL));
	ERRNO(EAI_BADFLAGS, rdma_getaddrinfo("127.0.0.1", NULL, &hints, &res));
	hints.ai_flags = RAI_NUMERICHOST;
	ERRNO(EAI_NONAME, rdma_getaddrinfo("no number", NULL, &hints, &res));
	hints.ai_flags |= RAI_FAMILY;
	hints.ai_family = AF_UNIX;
	ERRNO(EAI_FAMILY, rdma_getaddrinfo("127.0.0.1", NULL, &hints, &res));
	hints.ai_family = AF_INET;
	ERRNO(EAI_ADDRFAMILY, rdma_getaddrinfo("::1", NULL, &hints, &res));
	hints.ai_qp_type = IBV_QPT_UD;
	hints.ai_port_space = RDMA_PS_TCP;
	ERRNO(EAI_SERVICE, rdma_getaddrinfo("127.0.0.1", NULL, &hints, &res));
}

/* Checks calls that are not valid in the current state of the id. */
static void check_calls_in_wrong_id_state(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_srq_init_attr srq = { .attr = { 1, 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct rdma_cm_event *event;
	struct rdma_cm_id *out;
	int mask;

	which = "an id without a device";
	MINUS(ENODEV, rdma_create_qp(id, NULL, &init));
	MINUS(ENODEV, rdma_create_srq(id, NULL, &srq));
	MINUS(EINVAL, rdma_resolve_route(id, 1));
	MINUS(EINVAL, rdma_connect(id, NULL));
	MINUS(EINVAL, rdma_accept(id, NULL));
	MINUS(EINVAL, rdma_reject(id, NULL, 0));
	MINUS(EINVAL, rdma_disconnect(id));
	MINUS(EINVAL, rdma_init_qp_attr(id, &attr, &mask));
	MINUS(EINVAL, rdma_get_request(id, &out));
	which = "a resolved id";
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 1) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == 0 && rdma_ack_cm_event(event) == 0);
	MINUS(EINVAL, rdma_bind_addr(id, (struct sockaddr *)&addr));
	MINUS(EINVAL, rdma_connect(id, NULL)); /* rdma_connect needs a queue pair */
	MINUS(EINVAL, rdma_establish(id));
	CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0 && mask & IBV_QP_PORT);
	attr.qp_state = IBV_QPS_SQE;
	MINUS(EINVAL, rdma_init_qp_attr(id, &attr, &mask));
	init.qp_type = IBV_QPT_UD;
	MINUS(EINVAL, rdma_create_qp(id, NULL, &init));
	init.qp_type = IBV_QPT_UC;
	MINUS(EINVAL, rdma_create_qp(id, NULL, &init));
	MINUS(EINVAL, rdma_create_qp(id, NULL, NULL));
	init.qp_type = IBV_QPT_RC;
	init.cap.max_send_wr = 1u << 30;
	MINUS(EINVAL, rdma_create_qp(id, NULL, &init));
	CHECK(!id->qp && !id->send_cq && !id->recv_cq_channel);
	init.cap.max_send_wr = 1;
	CHECK(rdma_create_qp(id, NULL, &init) == 0);
	MINUS(EINVAL, rdma_create_qp(id, NULL, &init));
	MINUS(EINVAL, rdma_listen(id, 1));
	rdma_destroy_qp(id);
}

/* whether the next wait for events of the channel destroys the channel first */
static _Thread_local bool leaves;

/*
 * Replaces the C library's fcntl64, which the rdma_cm library calls before a wait to find out
 * whether the channel's descriptor is non-blocking.
 */
int fcntl64(int fd, int cmd, ...)
{
	va_list more;
	long arg;

	va_start(more, cmd);
	arg = va_arg(more, long);
	va_end(more);
	if (leaves && cmd == F_GETFL) {
		leaves = false;
		rdma_destroy_event_channel(channel);
	}
	return (int)syscall(SYS_fcntl, fd, cmd, arg);
}

/*
 * Checks that a wait on a destroyed channel fails, but only after a delay. rping depends on the
 * delay, because it exits while its second thread waits for events.
 */
static void check_wait_on_destroyed_channel(const char *when)
{
	struct rdma_cm_event *event;
	double before = now_seconds();

	which = when;
	MINUS(EINVAL, rdma_get_cm_event(channel, &event));
	CHECK(now_seconds() - before > 0.9);
}

static void check_channel_destroyed_before_or_in_wait(void)
{
	leaves = true;
	check_wait_on_destroyed_channel("a channel that goes while an event is waited for");
	CHECK(!leaves);
	check_wait_on_destroyed_channel("a channel that is gone");
}

/* Checks that a new event channel at the address of a destroyed event channel is usable. */
static void check_new_channel_at_old_address(void)
{
	struct rdma_cm_event *event;
	double before = now_seconds();

	which = "a channel at the place of one that is gone";
	channel = rdma_create_event_channel();
	CHECK(channel && fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	MINUS(EAGAIN, rdma_get_cm_event(channel, &event));
	CHECK(now_seconds() - before < 0.9);
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	struct rdma_cm_id *id;

	addr.sin_family = any.sin_family = AF_INET;
	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	addr.sin_port = htons(9);
	channel = rdma_create_event_channel();
	CHECK(channel);
	check_calls_with_bad_handles();
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	check_calls_with_bad_values(id);
	check_bad_addrinfo_arguments();
	check_calls_in_wrong_id_state(id);
	CHECK(rdma_destroy_id(id) == 0);
	check_channel_destroyed_before_or_in_wait();
	check_new_channel_at_old_address();
	return exit_code_of_refusals(150);
}
