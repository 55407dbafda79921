/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * cm/cm_id.c - connection ids: translates the user's parameters to MPA parameters, and negotiates
 * them. Frames are built by mpa and streams by qp. Events are handled in cm_event.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/reason.h"
#include "base/settings.h"
#include "cm/cm_impl.h"
#include "device/device.h"

#define MAX_PDATA_REV1 512
#define MAX_PDATA_REV2 508

bool siw_cm_is_channel_stale(const struct siw_cm_channel *ch)
{
	return ch->context ? siw_device_inherited(ch->context) : ch->pid != getpid();
}

bool siw_cm_is_id_stale(const struct siw_cm_id *id)
{
	return id->context ? siw_device_inherited(id->context)
			   : siw_cm_is_channel_stale(id->channel);
}

int siw_cm_check_id_usable(const struct siw_cm_id *id)
{
	siw_reason_begin();
	if (!id)
		return siw_refuse_null("id");
	return siw_cm_is_id_stale(id) ? siw_refuse(STALE) : 0;
}

int siw_cm_check_channel_usable(const struct siw_cm_channel *ch)
{
	siw_reason_begin();
	if (!ch)
		return siw_refuse_null("channel");
	return siw_cm_is_channel_stale(ch) ? siw_refuse(STALE) : 0;
}

static void cm_channel_destroy_by_force(struct siw_child *child)
{
	struct siw_cm_channel *ch = siw_container(child, struct siw_cm_channel, child);

	siw_evq_close(ch->evq);
}

struct siw_cm_channel *siw_cm_create_channel(struct siw_context *context)
{
	struct siw_cm_channel *ch;
	int err;

	siw_reason_begin();
	if (context && siw_device_refuse_if_stale(context))
		return siw_refuse_and_return_null(-ESTALE);
	ch = calloc(1, sizeof(*ch));
	err = ch ? siw_evq_open(context, &ch->evq) : -ENOMEM;
	if (err) {
		free(ch);
		return siw_refuse_and_return_null(err);
	}
	siw_lock_init(&ch->lock);
	ch->context = context;
	ch->pid = getpid();
	if (context)
		siw_device_add_child(context, &ch->child, SIW_CHILD_CM_CHANNEL,
				     cm_channel_destroy_by_force, siw_evq_fd(ch->evq));
	return ch;
}

int siw_cm_destroy_channel(struct siw_cm_channel *ch)
{
	int err = siw_cm_check_channel_usable(ch);

	if (err)
		return err;
	if (atomic_load(&ch->n_ids))
		return siw_refuse(CM_CHANNEL_BUSY, atomic_load(&ch->n_ids));
	if (ch->context)
		siw_device_remove_child(ch->context, &ch->child);
	cm_channel_destroy_by_force(&ch->child);
	siw_evq_free(ch->evq);
	siw_lock_destroy(&ch->lock);
	free(ch);
	return 0;
}

int siw_cm_channel_fd(struct siw_cm_channel *ch)
{
	int err = siw_cm_check_channel_usable(ch);

	if (err)
		return err;
	return siw_evq_fd(ch->evq);
}

/* Ends the id's use of its device and drops the id's events. The channel's lock is held. */
static void id_release_device(struct siw_cm_id *id)
{
	if (id->conn)
		siw_conn_destroy(id->conn);
	id->conn = NULL;
	siw_cm_ud_release_sidr_objects(id);
	if (id->context)
		siw_qp_weak_ref_clear(id->context, &id->qp);
	siw_evq_drop_events_with_user_data(id->channel->evq, id);
	if (id->reporter)
		siw_reporter_close(id->reporter);
	id->reporter = NULL;
	siw_connect_release_addr(&id->reserved);
}

/*
 * Called when the id's device is closed by force: the id's struct is kept, but its channel may be
 * destroyed.
 */
static void id_detach_from_closed_device(struct siw_child *child)
{
	struct siw_cm_id *id = siw_container(child, struct siw_cm_id, child);
	struct siw_cm_channel *channel = siw_cm_lock_channel_of(id);

	id_release_device(id);
	siw_unlock(&channel->lock);
	atomic_fetch_sub(&channel->n_ids, 1);
}

int siw_cm_assign_device(struct siw_cm_id *id, struct siw_context *context)
{
	int err = siw_reporter_open(context, id->channel->evq, id, &id->reporter);

	if (err)
		return err;
	id->context = context;
	siw_device_add_child(context, &id->child, SIW_CHILD_CM_ID, id_detach_from_closed_device,
			     -1);
	return 0;
}

struct siw_cm_id *siw_cm_new_id(struct siw_cm_channel *ch, struct siw_context *context, void *user)
{
	struct siw_cm_id *id = calloc(1, sizeof(*id));

	if (!id)
		return NULL;
	id->channel = ch;
	id->user = user;
	id->reserved.fd = -1;
	if (context && siw_cm_assign_device(id, context)) {
		free(id);
		return NULL;
	}
	atomic_fetch_add(&ch->n_ids, 1);
	return id;
}

struct siw_cm_id *siw_cm_create_id(struct siw_cm_channel *ch, void *context)
{
	struct siw_cm_id *id;
	int err = siw_cm_check_channel_usable(ch);

	if (err)
		return siw_refuse_and_return_null(err);
	id = siw_cm_new_id(ch, ch->context, context);
	return id ? id : siw_refuse_and_return_null(-ENOMEM);
}

struct siw_cm_id *siw_cm_create_ud_id(struct siw_cm_channel *ch, void *context)
{
	struct siw_cm_id *id = siw_cm_create_id(ch, context);

	if (id)
		id->ud = true;
	return id;
}

void siw_cm_free_id(struct siw_cm_id *id)
{
	struct siw_cm_channel *ch = id->channel;
	struct siw_cm_id *door;

	while ((door = id->device_listeners)) {
		id->device_listeners = door->next_listener;
		if (siw_cm_is_id_stale(door)) /* the id's device was closed: the struct is kept */
			continue;
		siw_cm_free_id(door);
	}
	if (id->context)
		siw_device_remove_child(id->context, &id->child);
	siw_lock(&ch->lock);
	id_release_device(id);
	free(id);
	siw_unlock(&ch->lock);
	atomic_fetch_sub(&ch->n_ids, 1);
}

int siw_cm_destroy_id(struct siw_cm_id *id)
{
	int err = siw_cm_check_id_usable(id);

	if (err)
		return err;
	siw_cm_free_id(id);
	return 0;
}

void siw_cm_set_context(struct siw_cm_id *id, void *context)
{
	if (id)
		id->user = context;
}

static int get_addrs_of_unconnected_id(const struct siw_cm_id *id, struct siw_addr *local,
				       struct siw_addr *peer)
{
	if (id->ud_local.family) {
		*local = id->ud_local;
		*peer = id->ud_peer;
		return 0;
	}
	if (id->reserved.fd < 0)
		return siw_refuse(NOT_CONNECTED);
	*local = id->reserved.addr;
	memset(peer, 0, sizeof(*peer));
	return 0;
}

int siw_cm_addr(struct siw_cm_id *id, struct siw_addr *local, struct siw_addr *peer)
{
	struct siw_addr l, p;
	int err = siw_cm_check_id_usable(id);

	if (err)
		return err;
	err = id->conn ? siw_conn_addrs(id->conn, &l, &p) : get_addrs_of_unconnected_id(id, &l, &p);
	if (err)
		return siw_refused(err);
	if (local)
		*local = l;
	if (peer)
		*peer = p;
	return 0;
}

static int check_id_can_bind_qp(const struct siw_cm_id *id, struct siw_qp *qp)
{
	if (id->listening)
		return siw_refuse(CM_LISTENS);
	if (!id->context)
		return siw_refuse(CM_NO_DEVICE);
	if (siw_qp_weak_ref_query(id->context, &id->qp, NULL))
		return siw_refuse(CM_HAS_QP);
	if (siw_qp_type(qp) != (id->ud ? SIW_QPT_UD : SIW_QPT_RC))
		return siw_refuse(CM_QP_TYPE, (uint64_t)siw_qp_type(qp));
	if (siw_qp_device_context(qp) != id->context)
		return siw_refuse(CM_QP_CONTEXT);
	return id->ud ? 0 : siw_qp_disable_connecting_by_qpn(qp);
}

int siw_cm_bind_qp(struct siw_cm_id *id, struct siw_qp *qp)
{
	struct siw_qp_attr attr = { .qp_state = SIW_QPS_INIT };
	int err = siw_cm_check_id_usable(id);

	if (err)
		return err;
	if (!qp)
		return siw_refuse_null("qp");
	err = check_id_can_bind_qp(id, qp);
	if (err)
		return err;
	err = id->ud ? siw_cm_ud_move_qp_to_rts(qp) : siw_modify_qp(qp, &attr, SIW_QP_STATE);
	if (err)
		return siw_refused(err);
	return siw_qp_weak_ref_set(&id->qp, qp);
}

int siw_cm_listen(struct siw_cm_id *id, const struct siw_addr *addr, int backlog)
{
	int err = siw_cm_check_id_usable(id);

	if (err)
		return err;
	if (!addr && id->reserved.fd >= 0)
		addr = &id->reserved.addr;
	else if (!addr && id->ud_local.family)
		addr = &id->ud_local;
	if (!addr)
		return siw_refuse_null("addr");
	if (!id->context)
		return siw_refuse(CM_NO_DEVICE);
	if (siw_cm_is_busy(id) || siw_qp_weak_ref_query(id->context, &id->qp, NULL))
		return siw_refuse(CM_USED);
	if (addr->family && !siw_addr_len(addr))
		return siw_refuse(ADDRESS_FAMILY, addr->family);
	err = id->ud ? siw_cm_ud_listen(id, addr)
		     : siw_connect_listen(id->reporter, addr, backlog, &id->conn);
	id->listening = !err;
	return siw_refused(err);
}

/* ---- the user's parameters become MPA's ------------------------------------------------------ */

/*
 * Checks an IRD or ORD given by the user and converts it to MPA's: 0 becomes the device's limit,
 * and -1 (no Reads) becomes 0.
 */
static int convert_ird_or_ord(const char *name, int asked, uint32_t limit, uint16_t *out)
{
	if (asked < -1 || asked > (int)limit)
		return siw_refuse(RANGE, siw_reason_text(name), (uint64_t)asked, (uint64_t)-1,
				  limit);
	*out = asked < 0 ? 0 : asked ? (uint16_t)asked : (uint16_t)limit;
	return 0;
}

static int copy_private_data(struct siw_mpa_params *p, const void *data, uint32_t len)
{
	uint32_t most = p->rev == 2 ? MAX_PDATA_REV2 : MAX_PDATA_REV1;

	if (len > most)
		return siw_refuse(CM_PRIVATE_DATA, len, most, p->rev);
	if (len && !data)
		return siw_refuse_null("private_data");
	p->pdata_len = (uint16_t)len;
	if (len)
		memcpy(p->pdata, data, len);
	return 0;
}

/* Returns whether this end requests MPA markers from its peer. */
static bool are_markers_requested(const struct siw_cm_param *param)
{
	return param->markers || siw_settings()->markers;
}

static int param_convert_ird_and_ord(struct siw_cm_id *id, const struct siw_cm_param *param,
				     uint16_t *ird, uint16_t *ord)
{
	struct siw_device_attr dev;
	struct siw_qp_held qp;

	/* the queue pair was destroyed meanwhile */
	if (!siw_qp_weak_ref_query(id->context, &id->qp, &qp))
		return siw_refuse(CM_NO_QP);
	siw_query_device(id->context, &dev);
	if (qp.ord >= 0)
		dev.max_qp_init_rd_atom = (uint32_t)qp.ord;
	if (qp.ird >= 0)
		dev.max_qp_rd_atom = (uint32_t)qp.ird;
	if (convert_ird_or_ord("initiator_depth", param->initiator_depth, dev.max_qp_init_rd_atom,
			       ord) ||
	    convert_ird_or_ord("responder_resources", param->responder_resources,
			       dev.max_qp_rd_atom, ird))
		return -EINVAL;
	id->ord_asked = param->initiator_depth > 0 || qp.ord > 0;
	/* With persona roce, Reads in both directions confirm that requests were received. */
	if (qp.roce) {
		*ord = *ord ? *ord : 1;
		*ird = *ird ? *ird : 1;
	}
	return 0;
}

static int cm_param_check_common_fields(const struct siw_cm_param *param)
{
	if (param->rnr_retry < -1 || param->rnr_retry > SIW_RNR_NO_LIMIT)
		return siw_refuse(RANGE, siw_reason_text("rnr_retry"), (uint64_t)param->rnr_retry,
				  (uint64_t)-1, SIW_RNR_NO_LIMIT);
	if (param->tos < 0 || param->tos > UINT8_MAX)
		return siw_refuse(RANGE, siw_reason_text("tos"), (uint64_t)param->tos, 0,
				  UINT8_MAX);
	return 0;
}

static int param_check_request(const struct siw_cm_param *param)
{
	const int kinds = SIW_CM_RTR_FPDU | SIW_CM_RTR_WRITE | SIW_CM_RTR_READ;

	if (param->rev < 0 || param->rev > 2)
		return siw_refuse(RANGE, siw_reason_text("rev"), (uint64_t)param->rev, 0, 2);
	if (param->rev == 1 && param->peer_to_peer)
		return siw_refuse(CM_RTR_REVISION, 1);
	if (param->peer_to_peer & ~kinds)
		return siw_refuse_flags("peer_to_peer", param->peer_to_peer, "siw_cm_rtr");
	return cm_param_check_common_fields(param);
}

/* Returns the features that this end announces: all that no setting has turned off. */
static uint8_t features_to_announce(void)
{
	if (!siw_settings()->mpa_announce)
		return 0;
	return SIW_MPA_SIWARP | (siw_settings()->delivery_counts ? SIW_MPA_COUNTS : 0);
}

static int param_to_mpa_request_params(struct siw_cm_id *id, const struct siw_cm_param *param,
				       struct siw_mpa_params *p)
{
	int err;

	memset(p, 0, sizeof(*p));
	p->rev = param->rev ? (uint8_t)param->rev : 2;
	err = param_check_request(param);
	if (err)
		return err;
	p->crc = !param->no_crc && siw_settings()->crc;
	p->markers = are_markers_requested(param);
	p->enhanced = p->rev == 2;
	p->features = features_to_announce();
	p->p2p = param->peer_to_peer != 0;
	p->rtr = (uint8_t)param->peer_to_peer;
	if (param_convert_ird_and_ord(id, param, &p->ird, &p->ord))
		return -EINVAL;
	return copy_private_data(p, param->private_data, param->private_data_len);
}

int siw_cm_connect(struct siw_cm_id *id, const struct siw_addr *dest, const struct siw_addr *source,
		   const struct siw_cm_param *param)
{
	static const struct siw_cm_param defaults;
	int err = siw_cm_check_id_usable(id);

	if (err)
		return err;
	if (!dest)
		return siw_refuse_null("dest");
	if (siw_cm_is_busy(id))
		return siw_refuse(CM_USED);
	if (id->ud && !id->context)
		return siw_refuse(CM_NO_DEVICE);
	if (!id->ud && (!id->context || !siw_qp_weak_ref_query(id->context, &id->qp, NULL)))
		return siw_refuse(CM_NO_QP);
	if (!siw_addr_len(dest))
		return siw_refuse(ADDRESS_FAMILY, dest->family);
	if (!param)
		param = &defaults;
	if (id->ud)
		return siw_refused(siw_cm_ud_connect(id, dest, source, param));
	err = param_to_mpa_request_params(id, param, &id->request);
	if (err)
		return err;
	id->holds = param->hold != 0;
	id->rnr_retry = param->rnr_retry;
	err = siw_connect_with_retries(id->reporter, dest, source, &id->request, param->timeout_ms,
				       param->refused_ms, &id->conn);
	siw_connect_release_addr(&id->reserved);
	if (!err && param->tos)
		siw_conn_set_tos(id->conn, param->tos);
	return siw_refused(err);
}

/* ---- negotiation (RFC 6581 section 6) -------------------------------------------------------- */

/*
 * RFC6581-9.2-05: the Reply lists all offered RTR kinds that can open the connection, and the
 * initiator chooses one. A Read can open the connection only if this end's IRD permits one.
 */
static uint8_t choose_rtr_messages_of_reply(uint8_t offered, uint16_t ird)
{
	uint8_t rtr = ird ? offered : offered & ~SIW_MPA_RTR_READ;

	if (rtr)
		return rtr;
	/* RFC6581-9.2-08: the Reply lists an RTR kind even if the Request offers none. */
	return offered ? offered : SIW_MPA_RTR_WRITE;
}

static int param_to_mpa_reply_params(struct siw_cm_id *id, const struct siw_cm_param *param,
				     struct siw_mpa_params *p)
{
	const struct siw_mpa_params *req = &id->request;

	memset(p, 0, sizeof(*p));
	if (cm_param_check_common_fields(param))
		return -EINVAL;
	p->rev = req->rev;
	p->crc = req->crc || (!param->no_crc && siw_settings()->crc);
	p->markers = are_markers_requested(param);
	p->enhanced = req->enhanced;
	p->features = features_to_announce() & req->features;
	if (param_convert_ird_and_ord(id, param, &id->ird, &id->ord))
		return -EINVAL;
	if (req->enhanced) {
		id->ord = siw_cm_limit_ord(id->ord, req->ird);
		p->p2p = req->p2p;
		p->rtr = req->p2p ? choose_rtr_messages_of_reply(req->rtr, id->ird) : 0;
	}
	p->ird = id->ird;
	p->ord = id->ord;
	return copy_private_data(p, param->private_data, param->private_data_len);
}

static int check_qp_can_accept(struct siw_cm_id *id)
{
	struct siw_qp_held qp;

	if (!id->passive || !id->conn)
		return siw_refuse(CM_NO_REQUEST);
	if (!siw_qp_weak_ref_query(id->context, &id->qp, &qp))
		return siw_refuse(CM_NO_QP);
	return qp.state == SIW_QPS_INIT ? 0 : siw_refuse(CM_QP_STATE, (uint64_t)qp.state);
}

int siw_cm_accept(struct siw_cm_id *id, const struct siw_cm_param *param)
{
	static const struct siw_cm_param defaults;
	struct siw_rc_start at = { .rnr_retry = param ? param->rnr_retry : 0 };
	struct siw_mpa_params reply;
	int err = siw_cm_check_id_usable(id);

	if (err)
		return err;
	if (id->ud)
		return siw_refused(siw_cm_ud_accept(id, param ? param : &defaults));
	/* Check the QP before the Reply is sent, because an accepting Reply cannot be withdrawn. */
	err = check_qp_can_accept(id);
	if (!err)
		err = param_to_mpa_reply_params(id, param ? param : &defaults, &reply);
	if (!err && param && param->tos)
		siw_conn_set_tos(id->conn, param->tos);
	if (!err)
		err = siw_connect_reply(id->conn, &reply);
	if (err)
		return siw_refused(err);
	at.ird = id->ird;
	at.ord = id->ord;
	at.rtr = reply.rtr;
	siw_cm_set_features(&at, reply.features);
	at.ord_known = reply.enhanced || id->ord_asked;
	err = siw_connect_attach_qp(id->conn, &id->qp, &at);
	if (err)
		siw_connect_refuse_with_terminate(id->conn, &SIW_CM_LOCAL_ERROR);
	return siw_refused(err);
}

int siw_cm_reject(struct siw_cm_id *id, const void *private_data, uint32_t private_data_len)
{
	struct siw_mpa_params p = { .rejected = 1 };
	int err = siw_cm_check_id_usable(id);

	if (err)
		return err;
	if (id->ud)
		return siw_refused(siw_cm_ud_reject(id, private_data, private_data_len));
	if (!id->passive || !id->conn)
		return siw_refuse(CM_NO_REQUEST);
	p.rev = id->request.rev;
	p.crc = id->request.crc;
	p.enhanced = id->request.enhanced;
	p.p2p = id->request.p2p;
	err = copy_private_data(&p, private_data, private_data_len);
	return siw_refused(err ? err : siw_connect_reply(id->conn, &p));
}

int siw_cm_disconnect(struct siw_cm_id *id)
{
	int err = siw_cm_check_id_usable(id);

	if (err)
		return err;
	if (!id->conn || id->listening)
		return siw_refuse(NOT_CONNECTED);
	return siw_refused(siw_connect_disconnect(id->conn));
}
