/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * cm/cm_event.c - translates the events of a connection to the user's events of its id, and
 * completes the negotiation of IRD and ORD.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/reason.h"
#include "cm/cm_impl.h"
#include "device/device.h"

/*
 * RFC6581-9.1-09: the error in the Terminate that is sent if the responder's ORD exceeds the
 * maximum IRD of this end.
 */
static const struct siw_wire_err INSUFFICIENT_IRD = { SIW_LAYER_LLP, 0, SIW_MPA_INSUFFICIENT_IRD };

/*
 * Returns the RTR message that an initiator chooses among the kinds it offered: Write, then Read,
 * as siwarp and Linux's siw do. The choice is not transmitted to the responder.
 */
static uint8_t choose_rtr_message(uint8_t offered)
{
	if (offered & SIW_MPA_RTR_WRITE)
		return SIW_MPA_RTR_WRITE;
	if (offered & SIW_MPA_RTR_READ)
		return SIW_MPA_RTR_READ;
	return offered & SIW_MPA_RTR_FPDU ? SIW_MPA_RTR_FPDU : SIW_MPA_RTR_WRITE;
}

void siw_cm_copy_mpa_params_to_event(struct siw_cm_event *ev, const struct siw_mpa_params *p)
{
	ev->rev = p->rev;
	ev->crc = p->crc;
	ev->markers = p->markers;
	ev->peer_to_peer = p->p2p ? p->rtr : 0;
	ev->private_data_len = p->pdata_len;
	memcpy(ev->private_data, p->pdata, p->pdata_len);
	/* RFC6581-9.1-01, -10: only enhanced frames contain IRD and ORD. */
	ev->peer_ird = p->enhanced ? p->ird : -1;
	ev->peer_ord = p->enhanced ? p->ord : -1;
}

/*
 * Creates an id for the connection that a peer requested; the user owns the id from now on. Returns
 * 0 or -ENOMEM.
 */
static int create_id_for_request_event(struct siw_cm_channel *ch, const struct siw_conn_event *e,
				       struct siw_cm_event *ev)
{
	struct siw_cm_id *door = e->user_data;
	struct siw_cm_id *listener = door->listener ? door->listener : door;
	struct siw_cm_id *id = siw_cm_new_id(ch, e->ctx, listener->user);

	if (!id) {
		siw_conn_destroy(e->conn);
		return -ENOMEM;
	}
	id->conn = e->conn;
	id->passive = true;
	id->request = e->params;
	siw_conn_set_reporter(e->conn, id->reporter);
	ev->event = SIW_CM_CONNECT_REQUEST;
	ev->id = id;
	ev->listen_id = listener;
	siw_cm_copy_mpa_params_to_event(ev, &e->params);
	/*
	 * This end's ORD is limited by the peer's IRD, and the peer's ORD is the IRD that it
	 * requests from this end.
	 */
	ev->initiator_depth = e->params.enhanced ? e->params.ird : SIW_CM_NOT_NEGOTIATED;
	ev->responder_resources = e->params.enhanced ? e->params.ord : SIW_CM_NOT_NEGOTIATED;
	return 0;
}

static void event_set_wire_error(struct siw_cm_event *ev, const struct siw_wire_err *err)
{
	ev->wire_error = (uint32_t)err->layer << 16 | (uint32_t)err->type << 8 | err->code;
}

/*
 * Raises this end's IRD to the responder's ORD, or fails if that exceeds the device's limit
 * (RFC6581-9.1-07, -08).
 */
static int raise_ird_to_responder_ord(struct siw_cm_id *id, uint16_t peer_ord)
{
	struct siw_device_attr dev;

	/* RFC6581-9.1-14: the peer may leave its ORD to the ULP */
	if (peer_ord == SIW_CM_NOT_NEGOTIATED || peer_ord <= id->ird)
		return 0;
	siw_query_device(id->context, &dev);
	if (peer_ord > dev.max_qp_rd_atom)
		return -EPROTO;
	id->ird = peer_ord;
	return 0;
}

/*
 * Negotiates IRD and ORD and attaches the stream to the QP. Returns 0; or -errno, and sets *why to
 * the error that was reported to the peer.
 */
static int complete_connect_with_reply(struct siw_cm_id *id, const struct siw_mpa_params *reply,
				       struct siw_wire_err *why)
{
	struct siw_rc_start at = { .initiator = true, .rnr_retry = id->rnr_retry };
	int err = 0;

	*why = SIW_CM_LOCAL_ERROR;
	id->ird = id->request.ird;
	id->ord = id->request.ord;
	if (reply->enhanced) {
		id->ord = siw_cm_limit_ord(id->ord, reply->ird);
		err = raise_ird_to_responder_ord(id, reply->ord);
		if (err)
			*why = INSUFFICIENT_IRD;
		at.rtr = id->request.p2p ? reply->rtr : 0;
	}
	siw_cm_set_features(&at, id->request.features & reply->features);
	at.ird = id->ird;
	at.ord = id->ord;
	at.ord_known = reply->enhanced || id->ord_asked;
	if (!err)
		err = siw_connect_attach_qp(id->conn, &id->qp, &at);
	if (err) {
		siw_connect_refuse_with_terminate(id->conn, why);
		return err;
	}
	/*
	 * SIW_CONN_ESTABLISHED follows immediately; the user's event then reports these parameters.
	 */
	id->request = *reply;
	return 0;
}

static void translate_reply_event(struct siw_cm_id *id, const struct siw_conn_event *e,
				  struct siw_cm_event *ev)
{
	struct siw_wire_err why;

	if (id->holds) {
		id->reply = e->params;
		id->responded = true;
		ev->event = SIW_CM_CONNECT_RESPONSE;
		siw_cm_copy_mpa_params_to_event(ev, &e->params);
		return;
	}
	ev->status = complete_connect_with_reply(id, &e->params, &why);
	if (!ev->status)
		return;
	ev->event = SIW_CM_CONNECT_ERROR;
	event_set_wire_error(ev, &why);
}

int siw_cm_establish(struct siw_cm_id *id)
{
	struct siw_cm_channel *channel;
	struct siw_wire_err why;
	int err = siw_cm_check_id_usable(id);

	if (err)
		return err;
	channel = siw_cm_lock_channel_of(id);
	if (!id->responded) {
		err = siw_refuse(CM_NO_RESPONSE);
	} else {
		id->responded = false;
		err = complete_connect_with_reply(id, &id->reply, &why);
	}
	siw_unlock(&channel->lock);
	return siw_refused(err);
}

static void translate_established_event(struct siw_cm_id *id, struct siw_cm_event *ev)
{
	ev->event = SIW_CM_ESTABLISHED;
	ev->initiator_depth = id->ord;
	ev->responder_resources = id->ird;
	if (!id->passive) {
		siw_cm_copy_mpa_params_to_event(ev, &id->request);
	} else {
		ev->rev = id->request.rev;
		ev->markers = id->request.markers;
		ev->peer_to_peer = id->request.p2p ? choose_rtr_message(id->request.rtr) : 0;
	}
	ev->crc = siw_conn_uses_crc(id->conn);
}

static int event_type_of_connect_failure(int status)
{
	/*
	 * No listener at the destination: reported like a peer's rejection, but without an MPA
	 * frame.
	 */
	if (status == -ECONNREFUSED)
		return SIW_CM_REJECTED;
	return status == -EPROTO || status == -ECONNRESET || status == -ENOTCONN
		       ? SIW_CM_CONNECT_ERROR
		       : SIW_CM_UNREACHABLE;
}

/* Translates a connection's event for the user. Returns 0, or 1 if there is nothing to report. */
static int translate_connection_event(struct siw_cm_channel *ch, const struct siw_conn_event *e,
				      struct siw_cm_event *ev)
{
	struct siw_cm_id *id = e->user_data;

	memset(ev, 0, sizeof(*ev));
	ev->status = e->status;
	ev->id = id;
	ev->peer_ird = ev->peer_ord = -1;
	switch (e->kind) {
	case SIW_CONN_REQUEST:
		if (create_id_for_request_event(ch, e, ev))
			return 1;
		break;
	case SIW_CONN_REPLY:
		translate_reply_event(id, e, ev);
		break;
	case SIW_CONN_REJECTED:
		ev->event = SIW_CM_REJECTED;
		ev->wire_error = (uint32_t)e->number;
		siw_cm_copy_mpa_params_to_event(ev, &e->params);
		break;
	case SIW_CONN_FAILED:
		ev->event = event_type_of_connect_failure(e->status);
		event_set_wire_error(ev, &e->err);
		break;
	case SIW_CONN_ESTABLISHED:
		translate_established_event(id, ev);
		break;
	case SIW_CONN_ASKED:
		if (siw_cm_ud_translate_query_event(ch, e, ev))
			return 1;
		break;
	case SIW_CONN_ANSWERED:
		siw_cm_ud_translate_answer(id, e, ev);
		break;
	case SIW_CONN_NOTIFIED:
		ev->event = e->number;
		ev->context = id->user;
		return 0;
	default:
		ev->event = SIW_CM_DISCONNECTED;
		event_set_wire_error(ev, &e->err);
		break;
	}
	ev->context = ev->id->user;
	return ev->event == 0;
}

static int remaining_ms(uint64_t deadline)
{
	uint64_t now = siw_now_ns();

	return now >= deadline ? 0 : (int)((deadline - now + 999999) / 1000000);
}

int siw_cm_get_event(struct siw_cm_channel *ch, struct siw_cm_event *event, int timeout_ms)
{
	uint64_t deadline = siw_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000;
	struct siw_conn_event e;
	int err = siw_cm_check_channel_usable(ch);

	if (err)
		return err;
	if (!event)
		return siw_refuse_null("event");
	/*
	 * The loop repeats until there is an event to report: another thread may have read the
	 * event that ended the wait, and an MPA Reply alone is not reported, because
	 * SIW_CONN_ESTABLISHED follows it.
	 */
	for (;;) {
		int r = siw_evq_wait(ch->evq, timeout_ms < 0 ? -1 : remaining_ms(deadline));

		if (r)
			return siw_refused(r);
		siw_lock(&ch->lock);
		r = siw_evq_pop_event(ch->evq, &e) && !translate_connection_event(ch, &e, event);
		siw_unlock(&ch->lock);
		if (r)
			/* an error of the connection is reported in the event, not as the result */
			return siw_refused(0);
	}
}

const char *siw_cm_event_str(int event)
{
	switch (event) {
	case SIW_CM_ADDR_RESOLVED:
		return "address resolved";
	case SIW_CM_ADDR_ERROR:
		return "address error";
	case SIW_CM_ROUTE_RESOLVED:
		return "route resolved";
	case SIW_CM_ROUTE_ERROR:
		return "route error";
	case SIW_CM_CONNECT_REQUEST:
		return "connect request";
	case SIW_CM_CONNECT_RESPONSE:
		return "connect response";
	case SIW_CM_CONNECT_ERROR:
		return "connect error";
	case SIW_CM_UNREACHABLE:
		return "unreachable";
	case SIW_CM_REJECTED:
		return "rejected";
	case SIW_CM_ESTABLISHED:
		return "established";
	case SIW_CM_DISCONNECTED:
		return "disconnected";
	case SIW_CM_MULTICAST_JOIN:
		return "multicast join";
	case SIW_CM_MULTICAST_ERROR:
		return "multicast error";
	default:
		return "unknown event";
	}
}
