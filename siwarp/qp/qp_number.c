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

int siw_qp_open_udp_socket(struct siw_base_qp *base, const struct siw_addr *addr, int fd,
			   struct siw_llp_sock **out)
{
	if (fd >= 0)
		return siw_llp_udp_adopt_program_socket(base->qp.lane->poller, fd,
							&base->qp.handler, out);
	return siw_llp_udp_open(base->qp.lane->poller, addr, &base->qp.handler, out);
}

/* ---- QP numbers ------------------------------------------------------------------------------ */

/*
 * The queue pairs of all lanes share the numbers of the device. A number is checked and reserved
 * with numbers_lock held, so that no two queue pairs get the same.
 */

/* Returns whether another QP of the device has the number. Called with numbers_lock held. */
static bool qpn_is_taken(const struct siw_base_qp *base, uint32_t qpn)
{
	const struct siw_context *ctx = base->qp.ctx;

	for (const struct siw_link *l = ctx->qps.next; l != &ctx->qps; l = l->next) {
		const struct siw_qp *qp = siw_container(l, const struct siw_qp, in_ctx);

		if (qp != &base->qp && qp->qpn == qpn)
			return true;
	}
	return false;
}

/*
 * Gives the number to the QP. high: the number lies in the range of the RC QPs with connection
 * manager, and the QP is not one of these. Called with numbers_lock held.
 */
static void qp_assign_qpn(struct siw_base_qp *base, uint32_t qpn, bool high)
{
	struct siw_qp *qp = &base->qp;
	struct siw_context *ctx = qp->ctx;

	ctx->n_high += (uint32_t)high - (uint32_t)qp->qpn_is_high;
	qp->qpn_is_high = high;
	qp->qpn = qpn;
	if (siw_link_empty(&qp->in_ctx))
		siw_link_add(&ctx->qps, &qp->in_ctx);
}

void siw_qp_reserve_next_rc_qpn(struct siw_base_qp *base)
{
	struct siw_context *ctx = base->qp.ctx;
	uint32_t qpn;

	siw_lock(&ctx->numbers_lock);
	do {
		qpn = ctx->next_rc_qpn;
		ctx->next_rc_qpn = qpn == SIW_LAST_RC_QPN ? SIW_FIRST_RC_QPN : qpn + 1;
		ctx->rc_qpns_recur |= qpn == SIW_LAST_RC_QPN;
	} while ((ctx->n_high || ctx->rc_qpns_recur) && qpn_is_taken(base, qpn));
	qp_assign_qpn(base, qpn, false);
	siw_unlock(&ctx->numbers_lock);
}

bool siw_qp_reserve_qpn(struct siw_base_qp *base, uint32_t qpn)
{
	struct siw_context *ctx = base->qp.ctx;
	bool is_free;

	siw_lock(&ctx->numbers_lock);
	/* Without RC QPs no search is needed: only the number of an RC QP must be unique. */
	is_free = !atomic_load(&ctx->n_rc) || !qpn_is_taken(base, qpn);
	if (is_free)
		qp_assign_qpn(base, qpn, qpn >= SIW_FIRST_RC_QPN);
	siw_unlock(&ctx->numbers_lock);
	return is_free;
}

void siw_qp_enter_qpn_in_list(struct siw_base_qp *base)
{
	struct siw_context *ctx = base->qp.ctx;

	siw_lock(&ctx->numbers_lock);
	if (siw_link_empty(&base->qp.in_ctx))
		qp_assign_qpn(base, base->qp.qpn, false);
	siw_unlock(&ctx->numbers_lock);
}

bool siw_qp_is_qpn_in_list(struct siw_base_qp *base)
{
	struct siw_context *ctx = base->qp.ctx;
	bool listed;

	siw_lock(&ctx->numbers_lock);
	listed = !siw_link_empty(&base->qp.in_ctx);
	siw_unlock(&ctx->numbers_lock);
	return listed;
}

void siw_qp_release_qpn(struct siw_base_qp *base)
{
	struct siw_context *ctx = base->qp.ctx;

	siw_lock(&ctx->numbers_lock);
	ctx->n_high -= base->qp.qpn_is_high;
	base->qp.qpn_is_high = false;
	siw_link_del(&base->qp.in_ctx);
	siw_unlock(&ctx->numbers_lock);
}

/* ---- addresses ------------------------------------------------------------------------------- */

int siw_qp_addr_or_first_of_device(const struct siw_base_qp *base, const struct siw_addr *wanted,
				   struct siw_addr *addr)
{
	struct siw_device_info now;

	*addr = *wanted;
	if (wanted->family)
		return 0;
	siw_device_get_current_info(base->qp.ctx, &now);
	if (!now.n_addrs)
		return -EADDRNOTAVAIL;
	*addr = now.addrs[0];
	addr->port_be = wanted->port_be;
	return 0;
}
