/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* UD: error messages to senders of erroneous messages, within rate limits. */
#include "base/capture.h"

#include "qp/qp_impl.h"

/*
 * Makes the next message leave from the address at which the erroneous message arrived, since its
 * sender knows this end by that address.
 */
static void ud_set_error_source(struct siw_ud *ud, const struct siw_addr *dest)
{
	struct siw_addr_sock *end = ud->ends ? siw_addr_socks_find(ud->ends, dest, dest) : NULL;

	if (end)
		siw_ddp_dgram_set_tx_sock(ud->ddp, end->sock);
}

static void ud_report_error(struct siw_ud *ud, const struct siw_rdmap_event *event)
{
	int err;

	if (!siw_qp_err_limit_admit(ud->wq.qp.ctx, &event->source)) {
		siw_count(SIW_COUNTER_err_limited, 1);
		return;
	}
	siw_lock(&ud->wq.qp.send_lock);
	ud_set_error_source(ud, event->dest);
	err = siw_rdmap_dgram_send_error(ud->dgram, event);
	siw_unlock(&ud->wq.qp.send_lock);
	siw_count(err ? SIW_COUNTER_err_unsent : SIW_COUNTER_err_sent, 1);
}

void siw_qp_ud_err_found(struct siw_ud *ud, const struct siw_rdmap_event *event)
{
	siw_count(SIW_COUNTER_err_found, 1);
	ud_report_error(ud, event);
	/* for BAD_RECV, the completion of the receive reports the error */
	if (event->kind == SIW_RDMAP_BAD_MSG)
		siw_qp_err_found(&ud->wq, event);
}

void siw_qp_ud_err_reported(struct siw_ud *ud, const struct siw_rdmap_event *event)
{
	uint64_t wr_id;
	bool ours;

	siw_lock(&ud->wq.qp.send_lock);
	ours = siw_rdmap_dgram_sent(ud->dgram, event, &wr_id);
	siw_unlock(&ud->wq.qp.send_lock);
	if (ours)
		siw_qp_err_reported(&ud->wq, event, wr_id);
	else
		siw_drop(SIW_COUNTER_err_stale);
}
