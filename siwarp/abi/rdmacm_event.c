/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/rdmacm_event.c - event channels, and the engine's events as rdma_cm's. */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "abi/rdmacm.h"
#include "abi/abi_cancel.h"

/* Of InfiniBand's list of reasons (12.6.7.2), which programs for Ethernet adapters know. */
enum {
	REJ_INVALID_SERVICE_ID = 8,
	REJ_CONSUMER_DEFINED = 28,
};

/*
 * Programs such as rping end like this: one thread destroys the channel and leaves main(), another has
 * acknowledged its last event and asks for the next. With an adapter it mostly asks first, and then
 * waits for ever. So who asks a channel that is gone learns it a second later, when the program has
 * ended if it was about to.
 */
#define GONE	    16 /* channels that were destroyed last */
#define LAST_WAIT_S 1
static const void *gone[GONE]; /* under the library's lock */
static unsigned int n_gone;

static bool is_gone(const void *channel)
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
		if (cm_add(&channel->object, CM_CHANNEL, channel))
			return &channel->ev;
	}
	why = errno;
	if (channel->siw)
		siw_cm_destroy_channel(channel->siw);
	free(channel);
	return abi_null(why);
}

void rdma_destroy_event_channel(struct rdma_event_channel *ev)
{
	struct cm_channel *channel = (struct cm_channel *)ev;
	bool over;

	/* In one step: a thread that waits for an event may be about to look at the channel again. */
	cm_lock();
	/* Programs that leave ids behind would use them: the channel stays with them. */
	over = cm_live_locked(CM_CHANNEL, ev) && siw_cm_destroy_channel(channel->siw) == 0;
	if (over) {
		gone[n_gone++ % GONE] = channel;
		cm_end_locked(&channel->object);
	}
	cm_unlock();
	if (over)
		free(channel);
}

/* ---- events ---------------------------------------------------------------------------------- */

static uint8_t depth(int value)
{
	return value < 0 ? 0 : value > UINT8_MAX ? UINT8_MAX : (uint8_t)value;
}

/*
 * What the peer said of its depths, as far as its frame has them; else what this end may use. An
 * event of a request has no other.
 */
static void show_depths(struct rdma_conn_param *conn, const struct siw_cm_event *from)
{
	bool said = from->event == SIW_CM_ESTABLISHED || from->event == SIW_CM_CONNECT_RESPONSE;

	conn->responder_resources =
		depth(said && from->peer_ord >= 0 ? from->peer_ord : from->responder_resources);
	conn->initiator_depth =
		depth(said && from->peer_ird >= 0 ? from->peer_ird : from->initiator_depth);
}

static void show_data(struct cm_event *event, const struct siw_cm_event *from)
{
	struct rdma_conn_param *conn = &event->ev.param.conn;
	uint32_t len = from->private_data_len > CM_MAX_PRIVATE ? CM_MAX_PRIVATE
							       : from->private_data_len;

	memcpy(event->private_data, from->private_data, from->private_data_len);
	conn->private_data = len ? event->private_data : NULL;
	conn->private_data_len = (uint8_t)len;
	show_depths(conn, from);
	conn->rnr_retry_count = 7;
	conn->retry_count = 7;
	conn->flow_control = 1;
	conn->qp_num = SIW_IBV_QPN_OF_CM;
}

static int status_of(const struct cm_id *id, const struct siw_cm_event *from)
{
	/* As adapters': no operation failed. rsockets take no other for the end of a connection. */
	if (from->event == SIW_CM_DISCONNECTED)
		return 0;
	/* Of InfiniBand's SIDR response, as the man page of UNREACHABLE has it. */
	if (from->event == SIW_CM_REJECTED && cm_is_ud(id))
		return (int)from->wire_error;
	if (from->event != SIW_CM_REJECTED ||
	    id->id.verbs->device->transport_type == IBV_TRANSPORT_IWARP)
		return from->status;
	return from->rev ? REJ_CONSUMER_DEFINED : REJ_INVALID_SERVICE_ID;
}

static void follow_state(struct cm_id *id, int event, const struct siw_cm_event *from)
{
	struct siw_addr local, peer;

	id->over |= event == RDMA_CM_EVENT_DISCONNECTED || event == RDMA_CM_EVENT_CONNECT_ERROR;
	if (event != RDMA_CM_EVENT_ESTABLISHED)
		return;
	id->established = true;
	if (id->id.qp) {
		id->id.qp->state = IBV_QPS_RTS;
		if (!cm_is_ud(id)) {
			id->depth = depth(from->initiator_depth);
			id->resources = depth(from->responder_resources);
			cm_show_attr(id);
		}
	}
	if (siw_cm_addr(id->siw, &local, &peer) == 0)
		cm_show_addrs(id, &local, NULL);
}

/*
 * What was accepted and ends before it was established, without this end's wish, never was a
 * connection.
 */
static bool never_was(const struct cm_id *id, const struct siw_cm_event *from)
{
	return from->event == SIW_CM_DISCONNECTED && id->accepted && !id->established && !id->ends;
}

/* What comes with the event; false: it is of a group that the program has left. */
static bool show(struct cm_id *id, struct cm_event *event, const struct siw_cm_event *from)
{
	if (from->event == CM_EVENT_USER)
		memcpy(&event->ev.param, &(uint64_t){ cm_take_arg(id) }, sizeof(uint64_t));
	else if (from->event == RDMA_CM_EVENT_MULTICAST_JOIN)
		return cm_show_join(id, event);
	else if (cm_is_ud(id))
		cm_ud_show(id, from, event);
	else
		show_data(event, from);
	return true;
}

/* The program's event; false: there is none, since a request's id cannot be made, or it knows. */
static bool fill(struct cm_event *event, const struct siw_cm_event *from)
{
	struct cm_id *id = from->context;

	/* Who completes a connection by rdma_establish is not told so. */
	if (id->completes && from->event == SIW_CM_ESTABLISHED) {
		id->established = true;
		return false;
	}
	event->ev.event = (enum rdma_cm_event_type)from->event;
	event->ev.status = status_of(id, from);
	if (never_was(id, from)) {
		event->ev.event = RDMA_CM_EVENT_CONNECT_ERROR;
		event->ev.status = from->status ? from->status : -ECONNRESET;
	}
	event->of = id;
	if (from->event == SIW_CM_REJECTED && cm_is_ud(id))
		event->ev.event = RDMA_CM_EVENT_UNREACHABLE;
	if (!show(id, event, from))
		return false;
	if (from->event == SIW_CM_CONNECT_REQUEST) {
		struct cm_id *new = cm_id_of_request(id, from->id);

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
		follow_state(id, event->ev.event, from);
	}
	id->unacked++;
	return true;
}

/*
 * The next event, if there is one: 0; -EAGAIN, with the descriptor to wait for; or another negative
 * errno value: -EINVAL, the channel is gone.
 */
static int take(struct cm_channel *channel, struct cm_event *event, int *fd)
{
	struct siw_cm_event from;
	int r = -EINVAL;

	/*
	 * Under the lock, so that the event counts before a thread that destroys its id looks. That
	 * thread has the engine's id ended by then, and no other event of it can come.
	 */
	cm_lock();
	if (cm_live_locked(CM_CHANNEL, channel)) {
		*fd = channel->ev.fd;
		do
			r = siw_cm_get_event(channel->siw, &from, 0);
		while (r == 0 && !fill(event, &from));
	}
	cm_unlock();
	return r;
}

/* Waits until the channel may have an event: 0, or a negative errno value. */
static int wait_for(int fd)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0)
		return -errno;
	if (flags & O_NONBLOCK)
		return -EAGAIN;
	/* The one place where the thread may be cancelled: it holds nothing. */
	return poll(&one, 1, -1) < 0 ? -errno : 0;
}

static int get(struct cm_channel *channel, struct cm_event *event)
{
	for (;;) {
		int cancel, r, fd;

		cancel = abi_cancel_off();
		r = take(channel, event, &fd);
		abi_cancel_back(cancel);
		if (r != -EAGAIN)
			return r;
		r = wait_for(fd);
		if (r && !(r == -EINTR && abi_restarts()))
			return r;
	}
}

int rdma_get_cm_event(struct rdma_event_channel *ev, struct rdma_cm_event **out)
{
	struct cm_channel *channel = (struct cm_channel *)ev;
	struct cm_event *event;
	int r;

	if (!out)
		return cm_fail(EINVAL);
	event = calloc(1, sizeof(*event));
	if (!event)
		return -1;
	pthread_cleanup_push(free, event);
	r = get(channel, event);
	pthread_cleanup_pop(0);
	/* Not one that was made since at the same place. */
	if (r && !cm_live(CM_CHANNEL, ev) && is_gone(ev)) {
		r = -EINVAL;
		sleep(LAST_WAIT_S);
	}
	if (r == 0 && event->ev.listen_id)
		cm_show_device(cm_id_of(event->ev.id));
	if (r == 0 && cm_add(&event->object, CM_EVENT, event)) {
		*out = &event->ev;
		return 0;
	}
	if (r == 0) {
		cm_acked(event->of);
		r = -ENOMEM;
	}
	free(event);
	return cm_result(r);
}

int rdma_ack_cm_event(struct rdma_cm_event *ev)
{
	struct cm_event *event = (struct cm_event *)ev;

	if (!cm_live(CM_EVENT, ev))
		return cm_fail(EINVAL);
	cm_end(&event->object);
	cm_acked(event->of);
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
