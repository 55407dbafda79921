/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Creation of queue pairs: checks the program's attributes, then creates the queue pair. */
#include <errno.h>

#include "connect/connect.h"
#include "qp/qp_objects.h"

static int qp_check_type_attrs(const struct siw_qp_init_attr *init)
{
	const struct siw_qp_class *class = siw_qp_class_of_type(init->qp_type);

	if (!class)
		return siw_refuse_value("qp_type", init->qp_type, "siw_qp_type");
	if (init->max_write_records &&
	    (!class->has_records || init->max_write_records > SIW_MAX_WRITE_RECORDS))
		return siw_refuse(QP_RECORDS, init->max_write_records, SIW_MAX_WRITE_RECORDS);
	if (init->grh && init->qp_type != SIW_QPT_UD)
		return siw_refuse_type("grh", "UD", init->qp_type);
	if (init->every_addr && init->qp_type != SIW_QPT_UD && init->qp_type != SIW_QPT_UC)
		return siw_refuse_type("every_addr", "UD and UC", init->qp_type);
	if (init->every_addr && init->addr.family)
		return siw_refuse(EVERY_ADDRESS);
	if (init->by_qpn && init->qp_type != SIW_QPT_RC)
		return siw_refuse_type("by_qpn", "RC", init->qp_type);
	if (init->persona < SIW_PERSONA_AUTO || init->persona > SIW_PERSONA_ROCE)
		return siw_refuse_value("persona", init->persona, "siw_persona");
	if (init->error_policy < SIW_ERROR_POLICY_AUTO ||
	    init->error_policy > SIW_ERROR_POLICY_MESSAGE)
		return siw_refuse_value("error_policy", init->error_policy, "siw_error_policy");
	return 0;
}

static int refuse_object_of_other_device(const char *what)
{
	return siw_refuse(QP_CONTEXT, siw_reason_text(what));
}

static int validate_cqs_of_qp_init(const struct siw_pd *pd, const struct siw_qp_init_attr *init)
{
	if (!init->send_cq || !init->recv_cq)
		return siw_refuse(QP_CQ, siw_reason_text(init->send_cq ? "recv_cq" : "send_cq"));
	if (!siw_device_cq_is_on_device(init->send_cq, pd->ctx))
		return refuse_object_of_other_device("send_cq");
	if (!siw_device_cq_is_on_device(init->recv_cq, pd->ctx))
		return refuse_object_of_other_device("recv_cq");
	if (siw_device_cq_is_overrun(init->send_cq) || siw_device_cq_is_overrun(init->recv_cq))
		return siw_refuse(CQ_OVERFLOW);
	return 0;
}

static int qp_validate_srq_and_socket(const struct siw_pd *pd, const struct siw_qp_init_attr *init)
{
	if (init->srq && init->srq->ctx != pd->ctx)
		return refuse_object_of_other_device("srq");
	if (!init->shared_socket_qp)
		return 0;
	if (!siw_qp_class_of_type(init->qp_type)->shares_socket)
		return siw_refuse_type("shared_socket_qp", "UD", init->qp_type);
	if (init->shared_socket_qp->ctx != pd->ctx)
		return refuse_object_of_other_device("shared_socket_qp");
	return init->addr.family || init->addr.port_be ? siw_refuse(SHARE_ADDRESS) : 0;
}

static int check_qp_capabilities(const struct siw_device_attr *max, const struct siw_qp_cap *cap,
				 bool srq)
{
	const struct {
		const char *name, *limit;
		uint32_t asked, most;
	} caps[] = {
		{ "max_send_wr", "max_qp_wr", cap->max_send_wr, max->max_qp_wr },
		{ "max_send_sge", "max_sge", cap->max_send_sge, max->max_sge },
		{ "max_inline_data", "max_inline_data", cap->max_inline_data,
		  max->max_inline_data },
		{ "max_recv_wr", "max_qp_wr", srq ? 0 : cap->max_recv_wr, max->max_qp_wr },
		{ "max_recv_sge", "max_sge", srq ? 0 : cap->max_recv_sge, max->max_sge },
	};

	for (size_t i = 0; i < sizeof(caps) / sizeof(caps[0]); i++)
		if (caps[i].asked > caps[i].most)
			return siw_refuse(QP_CAP, siw_reason_text(caps[i].name), caps[i].asked,
					  siw_reason_text(caps[i].limit), caps[i].most);
	return 0;
}

static int check_qp_init_attributes(const struct siw_pd *pd, const struct siw_qp_init_attr *init)
{
	int err = qp_check_type_attrs(init);

	if (!err)
		err = validate_cqs_of_qp_init(pd, init);
	if (!err)
		err = qp_validate_srq_and_socket(pd, init);
	return err ? err : check_qp_capabilities(&pd->ctx->attr, &init->cap, init->srq);
}

struct siw_qp *siw_create_qp(struct siw_pd *pd, struct siw_qp_init_attr *init)
{
	struct siw_qp *qp = NULL;
	int err = siw_device_check_create_args(pd, init);

	if (!err)
		err = check_qp_init_attributes(pd, init);
	if (err)
		return siw_refuse_and_return_null(err);
	err = siw_qp_create(pd, init, siw_pairing_create_for_qp, &qp);
	if (err == -EMFILE && init->qp_type == SIW_QPT_UD)
		siw_refuse(QP_NO_DESCRIPTORS);
	if (err == -EADDRINUSE && init->by_qpn)
		siw_refuse(PAIR_PORTS);
	return err ? siw_refuse_and_return_null(err) : qp;
}
