/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * cm/cm_ud.c - ids for UD: a connect sends a query to a listener for the QPN and Q_Key of its queue
 * pair (spec/cm-udp.md). The frames, the retransmissions and their limits are in connect/.
 */
#include <errno.h>
#include <string.h>

#include "base/addr.h"
#include "base/reason.h"
#include "cm/cm_impl.h"

#define MAX_QUERY_DATA	180
#define MAX_ANSWER_DATA 136

int siw_cm_ud_move_qp_to_rts(struct siw_qp *qp)
{
	static const int steps[] = { SIW_QPS_INIT, SIW_QPS_RTR, SIW_QPS_RTS };
	struct siw_qp_attr attr;
	int err = siw_query_qp(qp, &attr, NULL);

	/* A queue pair that the user has already moved out of RESET keeps its own Q_Key. */
	if (err || attr.qp_state != SIW_QPS_RESET)
		return err;
	for (size_t i = 0; !err && i < sizeof(steps) / sizeof(steps[0]); i++) {
		attr = (struct siw_qp_attr){ .qp_state = steps[i], .qkey = SIW_CM_UD_QKEY };
		err = siw_modify_qp(qp, &attr, SIW_QP_STATE | (i ? 0 : SIW_QP_QKEY));
	}
	return err;
}

void siw_cm_ud_release_port(struct siw_cm_id *id)
{
	if (id->reserved.fd >= 0)
		id->ud_local = id->reserved.addr;
	siw_connect_release_addr(&id->reserved);
}

static int check_private_data_args(const void *data, uint32_t len, uint32_t most)
{
	if (len > most)
		return siw_refuse(CM_UD_DATA, len, most);
	return len && !data ? siw_refuse_null("private_data") : 0;
}

int siw_cm_ud_listen(struct siw_cm_id *id, const struct siw_addr *addr)
{
	struct siw_addr at = *addr; /* a copy, because addr may point into *id */
	int err;

	siw_cm_ud_release_port(id);
	err = siw_sidr_listen(id->reporter, &at, &id->sidr_port);
	if (!err)
		id->ud_local = siw_sidr_port_addr(id->sidr_port);
	return err;
}

int siw_cm_ud_connect(struct siw_cm_id *id, const struct siw_addr *dest,
		      const struct siw_addr *source, const struct siw_cm_param *param)
{
	static const struct siw_addr any;
	struct siw_sidr_data say = {
		.data = param->private_data,
		.data_len = (uint8_t)param->private_data_len,
	};
	int err = check_private_data_args(param->private_data, param->private_data_len,
					  MAX_QUERY_DATA);

	if (err)
		return err;
	siw_cm_ud_release_port(id);
	id->ud_peer = *dest;
	return siw_sidr_query(id->reporter, dest, source ? source : &any, &say, param->timeout_ms,
			      &id->sidr_query, &id->ud_local);
}

/* ---- answers --------------------------------------------------------------------------------- */

/*
 * Determines the address at which the id's queue pair receives: the address that the query was sent
 * to, if the queue pair receives at every address of the device and the address is one of them;
 * otherwise the queue pair's bound or first address.
 */
static int ud_qp_address(struct siw_cm_id *id, struct siw_qp *qp, struct siw_addr *out)
{
	/* the device's addresses; filled only if the QP receives at each of them */
	struct siw_device_info info = { 0 };
	struct siw_qp_init_attr init;
	struct siw_qp_attr attr;
	int err = siw_query_qp(qp, &attr, &init);

	if (!err && init.every_addr)
		err = siw_query_device_info(id->context, &info);
	for (uint32_t i = 0; !err && i < info.n_addrs; i++)
		if (siw_addr_same_host(&info.addrs[i], &id->ud_local)) {
			*out = id->ud_local;
			return 0;
		}
	return err ? err : siw_qp_addr(qp, out, NULL);
}

static int fill_ud_answer(struct siw_cm_id *id, const struct siw_cm_param *param,
			  struct siw_sidr_data *say)
{
	struct siw_qp_attr attr;
	int err = check_private_data_args(param->private_data, param->private_data_len,
					  MAX_ANSWER_DATA);

	if (err)
		return err;
	if (!siw_qp_weak_ref_query(id->context, &id->qp, NULL))
		return siw_refuse(CM_NO_QP);
	err = siw_query_qp(id->qp.qp, &attr, NULL);
	if (!err)
		err = ud_qp_address(id, id->qp.qp, &say->addr);
	say->qpn = siw_qp_num(id->qp.qp);
	say->qkey = attr.qkey;
	say->data = param->private_data;
	say->data_len = (uint8_t)param->private_data_len;
	return err;
}

int siw_cm_ud_accept(struct siw_cm_id *id, const struct siw_cm_param *param)
{
	struct siw_sidr_data say;
	int err;

	if (!id->sidr_request)
		return siw_refuse(CM_NO_REQUEST);
	err = fill_ud_answer(id, param, &say);
	if (err)
		return err;
	siw_sidr_answer_or_refuse_request(id->sidr_request, &say, 0);
	id->sidr_request = NULL;
	return 0;
}

int siw_cm_ud_reject(struct siw_cm_id *id, const void *data, uint32_t len)
{
	struct siw_sidr_data say = { .data = data, .data_len = (uint8_t)len };
	int err = check_private_data_args(data, len, MAX_ANSWER_DATA);

	if (!id->sidr_request)
		return siw_refuse(CM_NO_REQUEST);
	if (err)
		return err;
	siw_sidr_answer_or_refuse_request(id->sidr_request, &say, SIW_SIDR_REJECTED);
	id->sidr_request = NULL;
	return 0;
}

void siw_cm_ud_release_sidr_objects(struct siw_cm_id *id)
{
	static const struct siw_sidr_data nothing;

	if (id->sidr_query)
		siw_sidr_end_query(id->sidr_query);
	if (id->sidr_port)
		siw_sidr_port_close(id->sidr_port);
	if (id->sidr_request)
		siw_sidr_answer_or_refuse_request(id->sidr_request, &nothing, SIW_SIDR_REJECTED);
	id->sidr_query = NULL;
	id->sidr_port = NULL;
	id->sidr_request = NULL;
}

/* ---- events ---------------------------------------------------------------------------------- */

int siw_cm_ud_translate_query_event(struct siw_cm_channel *ch, const struct siw_conn_event *e,
				    struct siw_cm_event *ev)
{
	static const struct siw_sidr_data nothing;
	struct siw_cm_id *door = e->user_data;
	struct siw_cm_id *listener = door->listener ? door->listener : door;
	struct siw_cm_id *id = siw_cm_new_id(ch, e->ctx, listener->user);

	if (!id) {
		siw_sidr_answer_or_refuse_request(e->sidr_request, &nothing, SIW_SIDR_REJECTED);
		return -ENOMEM;
	}
	id->ud = id->passive = true;
	id->sidr_request = e->sidr_request;
	siw_sidr_request_addrs(e->sidr_request, &id->ud_local, &id->ud_peer);
	ev->event = SIW_CM_CONNECT_REQUEST;
	ev->id = id;
	ev->listen_id = listener;
	siw_cm_copy_mpa_params_to_event(ev, &e->params);
	return 0;
}

void siw_cm_ud_translate_answer(struct siw_cm_id *id, const struct siw_conn_event *e,
				struct siw_cm_event *ev)
{
	id->ud_peer = e->addr;
	ev->event = SIW_CM_ESTABLISHED;
	ev->qpn = e->qpn;
	ev->qkey = e->qkey;
	siw_cm_copy_mpa_params_to_event(ev, &e->params);
}
