/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Queues of connection events, with a descriptor to wait on. */
#include <errno.h>
#include <stdlib.h>

#include "qp/qp_conn.h"

struct event_node {
	struct siw_link link;
	struct siw_qp_conn_event event;
};

static void set_fd(struct siw_qp_evq *q)
{
	bool any = !siw_link_alone(&q->events);

	if (any == q->fd_set)
		return;
	if (any)
		siw_llp_event_set(q->fd);
	else
		siw_llp_event_clear(q->fd);
	q->fd_set = any;
}

static struct siw_qp_evq *queue_of(const struct siw_qp_conn *conn)
{
	return siw_container(conn->user, struct siw_qp_evq, user);
}

/* Queues an event: 0 or -ENOMEM. */
static int raise(struct siw_qp_conn *conn, struct siw_qp_conn *listener, int kind, int status,
		 const struct siw_mpa_params *params)
{
	struct siw_qp_evq *q = queue_of(conn);
	struct event_node *node = calloc(1, sizeof(*node));

	if (!node)
		return -ENOMEM;
	node->event.kind = kind;
	node->event.status = status;
	node->event.conn = conn;
	node->event.listener = listener;
	node->event.err = conn->err;
	if (params)
		node->event.params = *params;
	siw_lock(&q->lock);
	siw_link_add(&q->events, &node->link);
	set_fd(q);
	siw_unlock(&q->lock);
	return 0;
}

/* Its events that nobody took are gone. */
static void drop(struct siw_qp_conn *conn)
{
	struct siw_qp_evq *q = queue_of(conn);
	struct siw_link *l, *next;

	siw_lock(&q->lock);
	for (l = q->events.next; l != &q->events; l = next) {
		struct event_node *node = siw_container(l, struct event_node, link);

		next = l->next;
		if (node->event.conn != conn && node->event.listener != conn)
			continue;
		siw_link_del(l);
		free(node);
	}
	set_fd(q);
	siw_unlock(&q->lock);
}

int siw_qp_evq_open(struct siw_context *ctx, struct siw_qp_evq **out)
{
	struct siw_qp_evq *q;

	if (siw_verbs_inherited(ctx))
		return -ESTALE;
	q = calloc(1, sizeof(*q));
	if (!q)
		return -ENOMEM;
	q->fd = siw_llp_event_open();
	if (q->fd < 0) {
		int err = q->fd;

		free(q);
		return err;
	}
	q->user = (struct siw_conn_user){ .ctx = ctx, .report = raise, .forget = drop };
	siw_lock_init(&q->lock);
	siw_link_init(&q->events);
	atomic_fetch_add(&ctx->n_evq, 1);
	*out = q;
	return 0;
}

void siw_qp_evq_close(struct siw_qp_evq *q)
{
	atomic_fetch_sub(&q->user.ctx->n_evq, 1);
	siw_llp_event_close(q->fd);
	siw_lock_destroy(&q->lock);
	free(q);
}

int siw_qp_evq_fd(struct siw_qp_evq *q)
{
	return q->fd;
}

void siw_qp_conn_place(struct siw_qp_conn *conn, enum siw_admission_place place)
{
	struct siw_qp_conn *listener = conn->listener;
	struct siw_admission *admission = listener->admission;

	siw_qp_admission_move(admission, conn->source, conn->place, place);
	conn->place = place;
	if (!admission->shut || !siw_qp_admission_has_room(admission))
		return;
	admission->shut = false;
	siw_llp_resume(listener->lsock);
}

void siw_qp_conn_hand_over(struct siw_qp_conn *conn)
{
	if (!conn->listener)
		return;
	siw_qp_conn_place(conn, SIW_ADMISSION_NOWHERE);
	siw_link_del(&conn->of_listener);
	conn->listener = NULL;
}

static int has_event(void *arg)
{
	struct siw_qp_evq *q = arg;
	bool any;

	siw_lock(&q->lock);
	any = q->fd_set;
	siw_unlock(&q->lock);
	return any;
}

int siw_qp_evq_wait(struct siw_qp_evq *q, int timeout_ms)
{
	int r = siw_verbs_wait_aside(q->user.ctx, has_event, q, q->fd, timeout_ms);

	return r < 0 ? r : 0;
}

int siw_qp_evq_take(struct siw_qp_evq *q, struct siw_qp_conn_event *event)
{
	struct event_node *node = NULL;

	/*
	 * The lock order is progress, then the queue's lock; siw_qp_conn_hand_over needs progress.
	 */
	siw_lock(&q->user.ctx->progress);
	siw_lock(&q->lock);
	if (!siw_link_alone(&q->events)) {
		node = siw_container(q->events.next, struct event_node, link);
		siw_link_del(&node->link);
		set_fd(q);
	}
	siw_unlock(&q->lock);
	if (node) {
		*event = node->event;
		event->user_data = event->listener ? event->listener->user_data
						   : event->conn->user_data;
		if (event->kind == SIW_CONN_REQUEST)
			siw_qp_conn_hand_over(event->conn);
	}
	siw_unlock(&q->user.ctx->progress);
	free(node);
	return node != NULL;
}
