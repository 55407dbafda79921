/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Resources of a device that queue pairs share: UDP sockets, QP numbers, the device's first
 * address.
 */
#include <errno.h>
#include <stdlib.h>

#include "qp/qp_impl.h"

_Static_assert(SIW_MAX_READS == SIW_RDMAP_MAX_READS, "SIW_MAX_READS equals the limit of rdmap");

int siw_qp_check_usable(const struct siw_qp *qp)
{
	return siw_device_check_usable(qp ? qp->ctx : NULL, "qp");
}

int siw_qp_open_udp(struct siw_base_qp *base, const struct siw_addr *addr, int fd,
		    struct siw_llp_sock **out)
{
	if (fd >= 0)
		return siw_llp_udp_adopt(base->qp.ctx->lane.port, fd, &base->qp.handler, out);
	return siw_llp_udp_open(base->qp.ctx->lane.port, addr, &base->qp.handler, out);
}

bool siw_qp_qpn_taken(const struct siw_context *ctx, uint32_t qpn)
{
	for (const struct siw_link *l = ctx->qps.next; l != &ctx->qps; l = l->next)
		if (siw_container(l, const struct siw_qp, in_ctx)->qpn == qpn)
			return true;
	return false;
}

uint32_t siw_qp_new_rc_qpn(struct siw_context *ctx)
{
	uint32_t qpn;
	bool taken;

	do {
		qpn = ctx->next_rc_qpn;
		ctx->next_rc_qpn = qpn == SIW_LAST_RC_QPN ? SIW_FIRST_RC_QPN : qpn + 1;
		taken = ctx->n_high && siw_qp_qpn_taken(ctx, qpn);
	} while (taken);
	return qpn;
}

int siw_qp_addr_or_first_of_device(const struct siw_base_qp *base, const struct siw_addr *wanted,
				   struct siw_addr *addr)
{
	*addr = *wanted;
	if (wanted->family)
		return 0;
	if (!base->qp.ctx->now.n_addrs)
		return -EADDRNOTAVAIL;
	*addr = base->qp.ctx->now.addrs[0];
	addr->port_be = wanted->port_be;
	return 0;
}
