/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Queues of connection events, with a descriptor to wait on. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "connect/connect_impl.h"

/*
 * Time in microseconds for which a thread that waits for an event makes progress itself before it
 * leaves the sockets to the progress thread. While connections are established, the next event
 * usually follows within this time, and the thread saves two wake-ups per event.
 */
#define PROGRESS_US 1000

struct event_node {
	struct siw_link link;
	struct siw_conn_event event;
};

static void evq_update_fd(struct siw_evq *q)
{
	bool any = !siw_link_empty(&q->events);

	if (any == q->fd_set)
		return;
	if (any)
		siw_llp_event_fd_set(q->fd);
	else
		siw_llp_event_fd_clear(q->fd);
	q->fd_set = any;
}

static struct siw_reporter *reporter_of_connection(const struct siw_conn *conn)
{
	return siw_container(conn->user, struct siw_reporter, user);
}

/* Returns a copy of the event that can be added to a queue, or NULL: there is no memory. */
static struct event_node *event_node_new(const struct siw_conn_event *event)
{
	struct event_node *node = calloc(1, sizeof(*node));

	if (node)
		node->event = *event;
	return node;
}

static void evq_add_node(struct siw_evq *q, struct event_node *node)
{
	siw_lock(&q->lock);
	siw_link_add(&q->events, &node->link);
	evq_update_fd(q);
	siw_unlock(&q->lock);
}

/* Adds a copy of the event to the reporter's queue. Returns 0 or -ENOMEM. */
static int reporter_add_event(struct siw_reporter *reporter, const struct siw_conn_event *event)
{
	struct event_node *node = event_node_new(event);

	if (!node)
		return -ENOMEM;
	siw_lock(&reporter->lock);
	evq_add_node(reporter->evq, node);
	siw_unlock(&reporter->lock);
	return 0;
}

static int conn_event_raise(struct siw_conn *conn, struct siw_conn *listener, int kind, int status,
			    const struct siw_mpa_params *params)
{
	struct siw_reporter *reporter = reporter_of_connection(conn);
	struct siw_conn_event event = {
		.kind = kind,
		.status = status,
		.conn = conn,
		.listener = listener,
		.ctx = conn->user->ctx,
		.user_data = reporter->user_data,
		.err = conn->err,
	};

	if (params)
		event.params = *params;
	return reporter_add_event(reporter, &event);
}

int siw_evq_add_notification(struct siw_evq *q, int number, int status, void *user_data)
{
	struct siw_conn_event event = {
		.kind = SIW_CONN_NOTIFIED,
		.number = number,
		.status = status,
		.user_data = user_data,
	};
	struct event_node *node = event_node_new(&event);

	if (!node)
		return -ENOMEM;
	evq_add_node(q, node);
	return 0;
}

int siw_reporter_queue_event(struct siw_reporter *reporter, const struct siw_conn_event *event)
{
	struct siw_conn_event its = *event;

	its.ctx = reporter->user.ctx;
	its.user_data = reporter->user_data;
	return reporter_add_event(reporter, &its);
}

/*
 * Returns whether the event concerns the object that `what` points to: a connection, its listener,
 * or a request.
 */
static bool event_is_about_object(const struct siw_conn_event *event, const void *what)
{
	return event->conn == what || event->listener == what || event->sidr_request == what;
}

/*
 * Drops the queued events that concern the object that `what` points to, or, if `what` is NULL, the
 * events of user_data.
 */
static void evq_drop_events(struct siw_evq *q, const void *what, const void *user_data)
{
	struct siw_link *l, *next;

	siw_lock(&q->lock);
	for (l = q->events.next; l != &q->events; l = next) {
		struct event_node *node = siw_container(l, struct event_node, link);
		bool its = what ? event_is_about_object(&node->event, what)
				: node->event.user_data == user_data;

		next = l->next;
		if (!its)
			continue;
		siw_link_del(l);
		free(node);
	}
	evq_update_fd(q);
	siw_unlock(&q->lock);
}

void siw_evq_drop_events_with_user_data(struct siw_evq *q, const void *user_data)
{
	evq_drop_events(q, NULL, user_data);
}

/* Drops the events in the reporter's queue that concern the object that `what` points to. */
static void reporter_drop_events(struct siw_reporter *reporter, const void *what)
{
	siw_lock(&reporter->lock);
	evq_drop_events(reporter->evq, what, NULL);
	siw_unlock(&reporter->lock);
}

void siw_reporter_drop_sidr_events(struct siw_reporter *reporter,
				   const struct siw_sidr_request *asked)
{
	reporter_drop_events(reporter, asked);
}

static void drop_events_of_connection(struct siw_conn *conn)
{
	reporter_drop_events(reporter_of_connection(conn), conn);
}

int siw_evq_open(struct siw_context *ctx, struct siw_evq **out)
{
	struct siw_evq *q;

	if (ctx && siw_device_inherited(ctx))
		return -ESTALE;
	q = calloc(1, sizeof(*q));
	if (!q)
		return -ENOMEM;
	q->fd = siw_llp_event_fd_open();
	if (q->fd < 0) {
		int err = q->fd;

		free(q);
		return err;
	}
	q->ctx = ctx;
	siw_lock_init(&q->lock);
	siw_link_init(&q->events);
	if (ctx)
		atomic_fetch_add(&ctx->n_evq, 1);
	*out = q;
	return 0;
}

void siw_evq_close(struct siw_evq *q)
{
	if (q->ctx)
		atomic_fetch_sub(&q->ctx->n_evq, 1);
	siw_llp_event_fd_close(q->fd);
}

void siw_evq_free(struct siw_evq *q)
{
	siw_lock_destroy(&q->lock);
	free(q);
}

/*
 * Adds `by` (1 or -1) to the device's number of users if the queue is not bound to a device: each
 * connection id that uses the device then keeps the device from being closed.
 */
static void adjust_user_count_of_device(struct siw_context *ctx, const struct siw_evq *q,
					uint32_t by)
{
	if (!q->ctx)
		atomic_fetch_add(&ctx->n_evq, by);
}

int siw_reporter_open(struct siw_context *ctx, struct siw_evq *q, void *user_data,
		      struct siw_reporter **out)
{
	struct siw_reporter *reporter = calloc(1, sizeof(*reporter));

	if (!reporter)
		return -ENOMEM;
	reporter->user = (struct siw_conn_user){ .ctx = ctx,
						 .report = conn_event_raise,
						 .forget = drop_events_of_connection };
	siw_lock_init(&reporter->lock);
	reporter->evq = q;
	reporter->user_data = user_data;
	adjust_user_count_of_device(ctx, q, 1);
	*out = reporter;
	return 0;
}

void siw_reporter_close(struct siw_reporter *reporter)
{
	adjust_user_count_of_device(reporter->user.ctx, reporter->evq, (uint32_t)-1);
	siw_lock_destroy(&reporter->lock);
	free(reporter);
}

/*
 * Moves the events of user_data to another queue. The two queues are never locked at the same time.
 * Called with the lock of the reporter of user_data held, if there is one.
 */
static void evq_move_events(struct siw_evq *from, struct siw_evq *to, const void *user_data)
{
	struct siw_link moved, *l, *next;

	siw_link_init(&moved);
	siw_lock(&from->lock);
	for (l = from->events.next; l != &from->events; l = next) {
		next = l->next;
		if (siw_container(l, struct event_node, link)->event.user_data != user_data)
			continue;
		siw_link_del(l);
		siw_link_add(&moved, l);
	}
	evq_update_fd(from);
	siw_unlock(&from->lock);
	siw_lock(&to->lock);
	while (!siw_link_empty(&moved)) {
		l = moved.next;
		siw_link_del(l);
		siw_link_add(&to->events, l);
	}
	evq_update_fd(to);
	siw_unlock(&to->lock);
}

void siw_evq_move_events_with_user_data(struct siw_evq *from, struct siw_evq *to,
					const void *user_data, struct siw_reporter *reporter)
{
	if (!reporter) {
		evq_move_events(from, to, user_data);
		return;
	}
	siw_lock(&reporter->lock);
	evq_move_events(from, to, user_data);
	reporter->evq = to;
	siw_unlock(&reporter->lock);
	adjust_user_count_of_device(reporter->user.ctx, to, 1);
	adjust_user_count_of_device(reporter->user.ctx, from, (uint32_t)-1);
}

void siw_conn_set_reporter(struct siw_conn *conn, struct siw_reporter *reporter)
{
	struct siw_lane *lane = siw_conn_lock(conn);

	conn->user = &reporter->user;
	siw_unlock(&lane->lock);
}

int siw_evq_fd(struct siw_evq *q)
{
	return q->fd;
}

void siw_conn_set_admission_stage(struct siw_conn *conn, enum siw_admission_place place)
{
	struct siw_conn *listener = conn->listener;
	struct siw_admission *admission = listener->admission;

	siw_admission_move_count(admission, conn->source, conn->place, place);
	conn->place = place;
	if (!admission->shut || !siw_admission_has_room(admission))
		return;
	admission->shut = false;
	siw_llp_sock_resume(listener->lsock);
}

void siw_conn_leave_listener(struct siw_conn *conn)
{
	if (!conn->listener)
		return;
	siw_conn_set_admission_stage(conn, SIW_ADMISSION_NOWHERE);
	siw_link_del(&conn->of_listener);
	conn->listener = NULL;
}

static int evq_has_event(void *arg)
{
	struct siw_evq *q = arg;
	bool any;

	siw_lock(&q->lock);
	any = q->fd_set;
	siw_unlock(&q->lock);
	return any;
}

/*
 * Waits for an event on the queue's descriptor only, without making progress. The wait is a
 * cancellation point.
 */
static int evq_wait_on_fd_without_progress(struct siw_evq *q, int timeout_ms)
{
	static const struct siw_llp_waitset nothing;
	uint64_t deadline = UINT64_MAX;

	if (timeout_ms < 0 && siw_llp_event_fd_is_nonblocking(q->fd))
		timeout_ms = 0;
	if (timeout_ms >= 0)
		deadline = siw_now_ns() + (uint64_t)timeout_ms * 1000000;
	for (;;) {
		uint64_t now = siw_now_ns();
		int r;

		if (evq_has_event(q))
			return 0;
		if (now >= deadline)
			return siw_refuse(TIME_OVER);
		pthread_testcancel();
		r = siw_llp_wait_cancellable(
			&nothing, q->fd,
			deadline == UINT64_MAX ? -1 : (int64_t)(deadline - now) / 1000 + 1);
		if (r == -EINTR)
			return siw_refuse(INTERRUPTED);
		if (r < 0)
			return r;
	}
}

int siw_evq_wait(struct siw_evq *q, int timeout_ms)
{
	int r = q->ctx ? siw_device_wait_on_fd(q->ctx, evq_has_event, q, q->fd, timeout_ms,
					       PROGRESS_US)
		       : evq_wait_on_fd_without_progress(q, timeout_ms);

	return r < 0 ? r : 0;
}

/*
 * Returns whether the object of the event leaves its listener or its UDP port when the program
 * reads the event. Listeners that report to a queue and UDP ports are in lane 0.
 */
static bool event_removes_object_from_listener(const struct siw_conn_event *event)
{
	return event->kind == SIW_CONN_REQUEST || event->kind == SIW_CONN_ASKED;
}

/* Called with the lock of lane 0 held when an event has been removed from its queue. */
static void remove_event_object_from_listener(const struct siw_conn_event *event)
{
	if (event->kind == SIW_CONN_REQUEST)
		siw_conn_leave_listener(event->conn);
	if (event->kind == SIW_CONN_ASKED)
		event->on_taken(event->sidr_request);
}

/*
 * Removes and returns the oldest event, or returns NULL. An event for which the lock of lane 0 of
 * its device must be held stays in the queue, and *needed is set to the device, unless the caller
 * holds this lock: locked is the device whose lock is held, or NULL.
 */
static struct event_node *evq_remove_oldest(struct siw_evq *q, const struct siw_context *locked,
					    struct siw_context **needed)
{
	struct event_node *node = NULL;

	*needed = NULL;
	siw_lock(&q->lock);
	if (!siw_link_empty(&q->events))
		node = siw_container(q->events.next, struct event_node, link);
	if (node && event_removes_object_from_listener(&node->event) && node->event.ctx != locked) {
		*needed = node->event.ctx;
		node = NULL;
	}
	if (node) {
		siw_link_del(&node->link);
		evq_update_fd(q);
	}
	siw_unlock(&q->lock);
	return node;
}

int siw_evq_pop_event(struct siw_evq *q, struct siw_conn_event *event)
{
	struct siw_context *ctx, *other;
	struct event_node *node = evq_remove_oldest(q, NULL, &ctx);

	/*
	 * The lock of lane 0 is taken before the queue's lock. Meanwhile the event may be dropped,
	 * because its peer has disconnected, so the queue is asked again.
	 */
	if (ctx) {
		siw_lock(&ctx->lane0.lock);
		node = evq_remove_oldest(q, ctx, &other);
		if (node)
			remove_event_object_from_listener(&node->event);
		siw_unlock(&ctx->lane0.lock);
	}
	if (!node)
		return 0;
	*event = node->event;
	free(node);
	return 1;
}
