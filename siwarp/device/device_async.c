/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Asynchronous events. An object contains the memory for its events, so raising an event cannot
 * fail. An event that is raised again before it was read moves to the end of the list and stays a
 * single event.
 */
#include <errno.h>

#include "base/os.h"
#include "device/device_impl.h"

#define STEP_NS 200000

void siw_device_init_object_async(struct siw_async *async, struct siw_context *ctx, void *object,
				  void *user)
{
	async->ctx = ctx;
	async->object = object;
	async->user = user;
	async->unacked = 0;
	for (int i = 0; i < SIW_ASYNC_KINDS; i++) {
		async->note[i].type = -1;
		siw_link_init(&async->note[i].link);
	}
}

int siw_device_open_async_event_queue(struct siw_context *ctx)
{
	siw_lock_init(&ctx->async_lock);
	siw_link_init(&ctx->async_events);
	siw_device_init_object_async(&ctx->async, ctx, ctx, NULL);
	ctx->async_fd = siw_llp_event_fd_open();
	return ctx->async_fd < 0 ? ctx->async_fd : 0;
}

void siw_device_close_async_event_queue(struct siw_context *ctx)
{
	siw_llp_event_fd_close(ctx->async_fd);
	siw_lock_destroy(&ctx->async_lock);
}

/*
 * Makes the descriptor readable if and only if there are unread events. Called with async_lock
 * held.
 */
static void async_event_fd_update(struct siw_context *ctx)
{
	bool any = !siw_link_empty(&ctx->async_events);

	if (any == ctx->async_fd_set)
		return;
	if (any)
		siw_llp_event_fd_set(ctx->async_fd);
	else
		siw_llp_event_fd_clear(ctx->async_fd);
	ctx->async_fd_set = any;
}

/* ---- raising --------------------------------------------------------------------------------- */

/*
 * Returns the object's struct siw_async_note that is used for this event type, or an unused one. An
 * object has enough of these structs for all its event types.
 */
static struct siw_async_note *async_find_event_slot(struct siw_async *async, int type)
{
	int i = 0;

	while (i < SIW_ASYNC_KINDS - 1 && async->note[i].type >= 0 && async->note[i].type != type)
		i++;
	return &async->note[i];
}

void siw_device_raise_async_event(struct siw_async *async, int type)
{
	struct siw_context *ctx = async->ctx;
	struct siw_async_note *note;

	siw_lock(&ctx->async_lock);
	note = async_find_event_slot(async, type);
	note->type = type;
	note->of = async;
	siw_link_del(&note->link);
	siw_link_add(&ctx->async_events, &note->link);
	async_event_fd_update(ctx);
	siw_unlock(&ctx->async_lock);
}

/* ---- destroying the object ------------------------------------------------------------------- */

void siw_device_drop_async_events_then_wait(struct siw_async *async)
{
	struct siw_context *ctx = async->ctx;

	siw_lock(&ctx->async_lock);
	for (int i = 0; i < SIW_ASYNC_KINDS; i++)
		siw_link_del(&async->note[i].link);
	async_event_fd_update(ctx);
	while (async->unacked) { /* rarely: wait until the program has acknowledged the events */
		siw_unlock(&ctx->async_lock);
		siw_sleep_ns(STEP_NS);
		siw_lock(&ctx->async_lock);
	}
	siw_unlock(&ctx->async_lock);
}

void siw_device_drop_object_events_unacked(struct siw_async *async)
{
	siw_lock(&async->ctx->async_lock);
	async->unacked = 0;
	siw_unlock(&async->ctx->async_lock);
	siw_device_drop_async_events_then_wait(async);
}

/* ---- reading --------------------------------------------------------------------------------- */

bool siw_device_take_async_event(struct siw_context *ctx, struct siw_async_event *event)
{
	struct siw_async_note *note = NULL;

	siw_lock(&ctx->async_lock);
	if (!siw_link_empty(&ctx->async_events)) {
		note = siw_container(ctx->async_events.next, struct siw_async_note, link);
		siw_link_del(&note->link);
		memset(event, 0, sizeof(*event));
		event->event_type = note->type;
		if (note->of == &ctx->async) {
			event->element.port_num = 1;
		} else {
			/*
			 * event->element is a union of pointers, so setting qp sets cq and srq, too
			 */
			event->element.qp = note->of->object;
			event->user_context = note->of->user;
			note->of->unacked++;
		}
	}
	async_event_fd_update(ctx);
	siw_unlock(&ctx->async_lock);
	return note != NULL;
}

static struct siw_async *async_state_of_event(const struct siw_async_event *event)
{
	switch (event->event_type) {
	case SIW_EVENT_CQ_ERR:
		return &event->element.cq->async;
	case SIW_EVENT_QP_FATAL:
	case SIW_EVENT_QP_REQ_ERR:
	case SIW_EVENT_QP_ACCESS_ERR:
	case SIW_EVENT_COMM_EST:
	case SIW_EVENT_SQ_DRAINED:
	case SIW_EVENT_QP_LAST_WQE_REACHED:
	case SIW_EVENT_QP_ERR_QUEUED:
	case SIW_EVENT_PEER_RESTARTED:
	case SIW_EVENT_CONGESTED:
		return &event->element.qp->async;
	case SIW_EVENT_SRQ_ERR:
	case SIW_EVENT_SRQ_LIMIT_REACHED:
		return &event->element.srq->async;
	default: /* an event of the port, which exists as long as the device is open */
		return NULL;
	}
}

void siw_ack_async_event(struct siw_async_event *event)
{
	struct siw_async *async = event ? async_state_of_event(event) : NULL;

	if (!async || siw_device_inherited(async->ctx))
		return;
	siw_lock(&async->ctx->async_lock);
	if (async->unacked)
		async->unacked--;
	siw_unlock(&async->ctx->async_lock);
}

int siw_async_fd(struct siw_context *ctx)
{
	int err = siw_device_check_usable(ctx, "context");

	return err ? err : ctx->async_fd;
}

const char *siw_event_type_str(int event_type)
{
	static const char *const text[] = {
		[SIW_EVENT_CQ_ERR] = "CQ error",
		[SIW_EVENT_QP_FATAL] = "local work queue catastrophic error",
		[SIW_EVENT_QP_REQ_ERR] = "invalid request local work queue error",
		[SIW_EVENT_QP_ACCESS_ERR] = "local access violation work queue error",
		[SIW_EVENT_COMM_EST] = "communication established",
		[SIW_EVENT_SQ_DRAINED] = "send queue drained",
		[SIW_EVENT_PATH_MIG] = "path migrated",
		[SIW_EVENT_PATH_MIG_ERR] = "path migration request error",
		[SIW_EVENT_DEVICE_FATAL] = "local catastrophic error",
		[SIW_EVENT_PORT_ACTIVE] = "port active",
		[SIW_EVENT_PORT_ERR] = "port error",
		[SIW_EVENT_LID_CHANGE] = "LID changed",
		[SIW_EVENT_PKEY_CHANGE] = "P_Key changed",
		[SIW_EVENT_SM_CHANGE] = "SM changed",
		[SIW_EVENT_SRQ_ERR] = "SRQ catastrophic error",
		[SIW_EVENT_SRQ_LIMIT_REACHED] = "SRQ limit reached",
		[SIW_EVENT_QP_LAST_WQE_REACHED] = "last WQE reached",
		[SIW_EVENT_CLIENT_REREGISTER] = "client reregistration",
		[SIW_EVENT_GID_CHANGE] = "GID table changed",
	};

	if (event_type == SIW_EVENT_QP_ERR_QUEUED)
		return "error queued";
	if (event_type == SIW_EVENT_PEER_RESTARTED)
		return "peer restarted";
	if (event_type == SIW_EVENT_CONGESTED)
		return "congested";
	if (event_type < 0 || event_type >= (int)(sizeof(text) / sizeof(text[0])))
		return "unknown event";
	return text[event_type];
}
