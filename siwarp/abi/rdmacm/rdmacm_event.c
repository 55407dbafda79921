/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/rdmacm/rdmacm_event.c - event channels, and conversion of engine events to rdma_cm events. */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "abi/rdmacm/rdmacm.h"
#include "abi/ibverbs/abi_cancel.h"

/* InfiniBand rejection reasons (section 12.6.7.2), which programs for Ethernet adapters expect. */
enum {
	REJ_INVALID_SERVICE_ID = 8,
	REJ_CONSUMER_DEFINED = 28,
};

/*
 * rdma_get_cm_event on a destroyed channel fails only after a second, for programs such as rping:
 * one thread destroys the channel and returns from main(), while another thread has acknowledged
 * its last event and calls rdma_get_cm_event again. With an adapter the second thread usually calls
 * first and then waits forever. After a second such a program has exited.
 */
#define GONE	    16 /* number of destroyed channels that are remembered */
#define LAST_WAIT_S 1
static const void *gone[GONE]; /* addresses of destroyed channels; protected by cm_lock */
static unsigned int n_gone;

static bool is_destroyed_event_channel(const void *channel)
{
	bool found = false;

	cm_lock();
	for (int i = 0; i < GONE; i++)
		found |= channel && gone[i] == channel;
	cm_unlock();
	return found;
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct cm_channel *channel = calloc(1, sizeof(*channel));
	int why;

	if (!channel)
		return NULL;
	channel->siw = siw_cm_create_channel(NULL);
	if (channel->siw) {
		channel->ev.fd = siw_cm_channel_fd(channel->siw);
		if (cm_register_object(&channel->object, CM_CHANNEL, channel))
			return &channel->ev;
	}
	why = errno;
	if (channel->siw)
		siw_cm_destroy_channel(channel->siw);
	free(channel);
	return abi_fail_null(why);
}

void rdma_destroy_event_channel(struct rdma_event_channel *ev)
{
	struct cm_channel *channel = (struct cm_channel *)ev;
	bool over;

	/*
	 * The channel is checked and destroyed under one lock, because a thread that waits for an
	 * event may be about to access the channel.
	 */
	cm_lock();
	/* A channel that still has ids is kept, because the program may still use the ids. */
	over = cm_is_live_object_locked(CM_CHANNEL, ev) &&
	       siw_cm_destroy_channel(channel->siw) == 0;
	if (over) {
		gone[n_gone++ % GONE] = channel;
		cm_mark_object_dead_locked(&channel->object);
	}
	cm_unlock();
	if (over)
		free(channel);
}

/* ---- events ---------------------------------------------------------------------------------- */

static uint8_t ird_or_ord_to_uint8(int value)
{
	return value < 0 ? 0 : value > UINT8_MAX ? UINT8_MAX : (uint8_t)value;
}

/*
 * Sets the IRD and ORD in an event to the values that the local end may use or, in the events
 * ESTABLISHED and CONNECT_RESPONSE, to the peer's ORD and IRD if the peer's frame contains them.
 */
static void event_fill_ird_and_ord(struct rdma_conn_param *conn, const struct siw_cm_event *from)
{
	bool said = from->event == SIW_CM_ESTABLISHED || from->event == SIW_CM_CONNECT_RESPONSE;

	conn->responder_resources = ird_or_ord_to_uint8(
		said && from->peer_ord >= 0 ? from->peer_ord : from->responder_resources);
	conn->initiator_depth = ird_or_ord_to_uint8(
		said && from->peer_ird >= 0 ? from->peer_ird : from->initiator_depth);
}

static void event_fill_conn_param(struct cm_event *event, const struct siw_cm_event *from)
{
	struct rdma_conn_param *conn = &event->ev.param.conn;
	uint32_t len = from->private_data_len > CM_MAX_PRIVATE ? CM_MAX_PRIVATE
							       : from->private_data_len;

	memcpy(event->private_data, from->private_data, from->private_data_len);
	conn->private_data = len ? event->private_data : NULL;
	conn->private_data_len = (uint8_t)len;
	event_fill_ird_and_ord(conn, from);
	conn->rnr_retry_count = 7;
	conn->retry_count = 7;
	conn->flow_control = 1;
	conn->qp_num = SIW_IBV_QPN_OF_CM;
}

static int event_status(const struct cm_id *id, const struct siw_cm_event *from)
{
	/*
	 * The status of DISCONNECTED is 0, as with adapters, because rsockets accepts no other
	 * status.
	 */
	if (from->event == SIW_CM_DISCONNECTED)
		return 0;
	/*
	 * The status of a rejected UD request is that of InfiniBand's SIDR response, as the man
	 * page specifies for UNREACHABLE.
	 */
	if (from->event == SIW_CM_REJECTED && cm_is_ud(id))
		return (int)from->wire_error;
	if (from->event != SIW_CM_REJECTED ||
	    id->id.verbs->device->transport_type == IBV_TRANSPORT_IWARP)
		return from->status;
	return from->rev ? REJ_CONSUMER_DEFINED : REJ_INVALID_SERVICE_ID;
}

static void id_update_state_by_event(struct cm_id *id, int event, const struct siw_cm_event *from)
{
	struct siw_addr local, peer;

	id->over |= event == RDMA_CM_EVENT_DISCONNECTED || event == RDMA_CM_EVENT_CONNECT_ERROR;
	if (event != RDMA_CM_EVENT_ESTABLISHED)
		return;
	id->established = true;
	if (id->id.qp) {
		id->id.qp->state = IBV_QPS_RTS;
		if (!cm_is_ud(id)) {
			id->depth = ird_or_ord_to_uint8(from->initiator_depth);
			id->resources = ird_or_ord_to_uint8(from->responder_resources);
			cm_store_rts_attrs_for_query(id);
		}
	}
	if (siw_cm_addr(id->siw, &local, &peer) == 0)
		cm_set_route_addrs(id, &local, NULL);
}

/*
 * Returns whether an accepted connection ended before it was established, without a local
 * rdma_disconnect. The program gets no DISCONNECTED event of such a connection.
 */
static bool has_ended_before_established(const struct cm_id *id, const struct siw_cm_event *from)
{
	return from->event == SIW_CM_DISCONNECTED && id->accepted && !id->established && !id->ends;
}

/*
 * Fills in the data of an event. Returns false for an event of a group that the program has left.
 */
static bool event_fill_data(struct cm_id *id, struct cm_event *event,
			    const struct siw_cm_event *from)
{
	if (from->event == CM_EVENT_USER)
		memcpy(&event->ev.param, &(uint64_t){ cm_pop_user_event_arg(id) },
		       sizeof(uint64_t));
	else if (from->event == RDMA_CM_EVENT_MULTICAST_JOIN)
		return cm_fill_join_event(id, event);
	else if (cm_is_ud(id))
		cm_ud_fill_event(id, from, event);
	else
		event_fill_conn_param(event, from);
	return true;
}

/*
 * Fills in an event for the program. Returns false if the event must be suppressed, or if the id of
 * a request cannot be created.
 */
static bool event_fill(struct cm_event *event, const struct siw_cm_event *from)
{
	struct cm_id *id = from->context;

	/* A program that completes a connection by rdma_establish gets no ESTABLISHED event. */
	if (id->completes && from->event == SIW_CM_ESTABLISHED) {
		id->established = true;
		return false;
	}
	event->ev.event = (enum rdma_cm_event_type)from->event;
	event->ev.status = event_status(id, from);
	if (has_ended_before_established(id, from)) {
		event->ev.event = RDMA_CM_EVENT_CONNECT_ERROR;
		event->ev.status = from->status ? from->status : -ECONNRESET;
	}
	event->of = id;
	if (from->event == SIW_CM_REJECTED && cm_is_ud(id))
		event->ev.event = RDMA_CM_EVENT_UNREACHABLE;
	if (!event_fill_data(id, event, from))
		return false;
	if (from->event == SIW_CM_CONNECT_REQUEST) {
		struct cm_id *new = cm_id_create_for_request(id, from->id);

		if (!new) {
			siw_cm_destroy_id(from->id);
			return false;
		}
		new->resources = event->ev.param.conn.responder_resources;
		new->depth = event->ev.param.conn.initiator_depth;
		event->ev.id = &new->id;
		event->ev.listen_id = &id->id;
	} else {
		event->ev.id = &id->id;
		id_update_state_by_event(id, event->ev.event, from);
	}
	id->unacked++;
	return true;
}

/*
 * Gets the next event of a channel without waiting. Returns 0; -EAGAIN, with *fd set to the
 * descriptor to wait for; -EINVAL if the channel was destroyed; or another negative errno value.
 */
static int channel_poll_event(struct cm_channel *channel, struct cm_event *event, int *fd)
{
	struct siw_cm_event from;
	int r = -EINVAL;

	/*
	 * The lock ensures that the event is counted in unacked before a thread that destroys the
	 * event's id waits for unacked. The destroying thread has already destroyed the engine's
	 * id, so that no other event of the id can follow.
	 */
	cm_lock();
	if (cm_is_live_object_locked(CM_CHANNEL, channel)) {
		*fd = channel->ev.fd;
		do
			r = siw_cm_get_event(channel->siw, &from, 0);
		while (r == 0 && !event_fill(event, &from));
	}
	cm_unlock();
	return r;
}

/* Waits until a channel's descriptor is readable. Returns 0 or a negative errno value. */
static int event_channel_wait_until_readable(int fd)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0)
		return -errno;
	if (flags & O_NONBLOCK)
		return -EAGAIN;
	/*
	 * poll() is the only cancellation point of this file, because the thread holds no lock and
	 * no event.
	 */
	return poll(&one, 1, -1) < 0 ? -errno : 0;
}

static int channel_get_event(struct cm_channel *channel, struct cm_event *event)
{
	for (;;) {
		int cancel, r, fd;

		cancel = abi_cancel_disable();
		r = channel_poll_event(channel, event, &fd);
		abi_cancel_restore(cancel);
		if (r != -EAGAIN)
			return r;
		r = event_channel_wait_until_readable(fd);
		if (r && !(r == -EINTR && abi_should_restart_interrupted_wait()))
			return r;
	}
}

int rdma_get_cm_event(struct rdma_event_channel *ev, struct rdma_cm_event **out)
{
	struct cm_channel *channel = (struct cm_channel *)ev;
	struct cm_event *event;
	int r;

	if (!abi_is_given(out, "event"))
		return cm_fail(EINVAL);
	event = calloc(1, sizeof(*event));
	if (!event)
		return -1;
	pthread_cleanup_push(free, event);
	r = channel_get_event(channel, event);
	pthread_cleanup_pop(0);
	/* A live channel may have the address of a destroyed channel. */
	if (r && !cm_is_live_object(CM_CHANNEL, ev) && is_destroyed_event_channel(ev)) {
		r = -EINVAL;
		sleep(LAST_WAIT_S);
	}
	if (r == 0 && event->ev.listen_id)
		cm_id_set_device_from_engine_id(cm_id_of(event->ev.id));
	if (r == 0 && cm_register_object(&event->object, CM_EVENT, event)) {
		*out = &event->ev;
		return 0;
	}
	if (r == 0) {
		cm_note_event_acknowledged(event->of);
		r = -ENOMEM;
	}
	free(event);
	return cm_result(r);
}

int rdma_ack_cm_event(struct rdma_cm_event *ev)
{
	struct cm_event *event = (struct cm_event *)ev;

	if (!cm_is_live_object(CM_EVENT, ev))
		return cm_fail(EINVAL);
	cm_mark_object_dead(&event->object);
	cm_note_event_acknowledged(event->of);
	free(event);
	return 0;
}

const char *rdma_event_str(enum rdma_cm_event_type event)
{
	static const char *const names[] = {
		[RDMA_CM_EVENT_ADDR_RESOLVED] = "RDMA_CM_EVENT_ADDR_RESOLVED",
		[RDMA_CM_EVENT_ADDR_ERROR] = "RDMA_CM_EVENT_ADDR_ERROR",
		[RDMA_CM_EVENT_ROUTE_RESOLVED] = "RDMA_CM_EVENT_ROUTE_RESOLVED",
		[RDMA_CM_EVENT_ROUTE_ERROR] = "RDMA_CM_EVENT_ROUTE_ERROR",
		[RDMA_CM_EVENT_CONNECT_REQUEST] = "RDMA_CM_EVENT_CONNECT_REQUEST",
		[RDMA_CM_EVENT_CONNECT_RESPONSE] = "RDMA_CM_EVENT_CONNECT_RESPONSE",
		[RDMA_CM_EVENT_CONNECT_ERROR] = "RDMA_CM_EVENT_CONNECT_ERROR",
		[RDMA_CM_EVENT_UNREACHABLE] = "RDMA_CM_EVENT_UNREACHABLE",
		[RDMA_CM_EVENT_REJECTED] = "RDMA_CM_EVENT_REJECTED",
		[RDMA_CM_EVENT_ESTABLISHED] = "RDMA_CM_EVENT_ESTABLISHED",
		[RDMA_CM_EVENT_DISCONNECTED] = "RDMA_CM_EVENT_DISCONNECTED",
		[RDMA_CM_EVENT_DEVICE_REMOVAL] = "RDMA_CM_EVENT_DEVICE_REMOVAL",
		[RDMA_CM_EVENT_MULTICAST_JOIN] = "RDMA_CM_EVENT_MULTICAST_JOIN",
		[RDMA_CM_EVENT_MULTICAST_ERROR] = "RDMA_CM_EVENT_MULTICAST_ERROR",
		[RDMA_CM_EVENT_ADDR_CHANGE] = "RDMA_CM_EVENT_ADDR_CHANGE",
		[RDMA_CM_EVENT_TIMEWAIT_EXIT] = "RDMA_CM_EVENT_TIMEWAIT_EXIT",
		[CM_EVENT_ADDRINFO_RESOLVED] = "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
		[CM_EVENT_ADDRINFO_ERROR] = "RDMA_CM_EVENT_ADDRINFO_ERROR",
		[CM_EVENT_USER] = "RDMA_CM_EVENT_USER",
	};
	size_t i = (size_t)event;

	return i < sizeof(names) / sizeof(names[0]) ? names[i] : "UNKNOWN EVENT";
}

/* ---- events written by the program (RDMACM_1.4) ---------------------------------------------- */

#pragma GCC visibility push(default)
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status,
			uint64_t arg);
#pragma GCC visibility pop

uint64_t cm_pop_user_event_arg(struct cm_id *id)
{
	struct cm_arg *first = id->args;
	uint64_t arg = first ? first->arg : 0;

	if (first)
		id->args = first->next;
	free(first);
	return arg;
}

/*
 * Queues an event of the program on the id's channel, and appends the event's argument to the id's
 * list of arguments. Returns 0 or a negative errno value.
 */
static int queue_user_event(struct cm_id *id, int status, uint64_t arg)
{
	struct cm_arg *added = calloc(1, sizeof(*added)), **last = &id->args;
	int r;

	if (!added)
		return -ENOMEM;
	added->arg = arg;
	cm_lock();
	while (*last)
		last = &(*last)->next;
	*last = added;
	r = siw_cm_tell(id->siw, CM_EVENT_USER, status);
	if (r < 0) {
		*last = NULL;
		free(added);
	}
	cm_unlock();
	return r;
}

int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status,
			uint64_t arg)
{
	if (!cm_is_live_object(CM_ID, id))
		return cm_fail(EINVAL);
	if ((int)event != CM_EVENT_USER)
		return cm_fail(
			abi_refuse(EINVAL, "event is %d: use RDMA_CM_EVENT_USER", (int)event));
	return cm_result(queue_user_event(cm_id_of(id), status, arg));
}

void cm_free_user_event_args(struct cm_id *id)
{
	while (id->args)
		cm_pop_user_event_arg(id);
}
