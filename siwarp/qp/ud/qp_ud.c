/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* UD queue pairs: their sockets, and the receive path. */
#include <errno.h>

#include "base/addr.h"
#include "base/clock.h"
#include "ddp/ddp.h"
#include "rdmap/rdmap_record.h"
#include "qp/qp_impl.h"

_Static_assert(SIW_MAX_SHARERS == SIW_RDMAP_MAX_SHARERS,
	       "SIW_MAX_SHARERS equals the limit of rdmap");

static int ud_serve(struct siw_io_handler *self);
static int ud_serve_sock(struct siw_addr_sock *end);

static void ud_close_socket(struct siw_wq *wq)
{
	struct siw_ud *ud = siw_ud_of(wq), *other;

	if (!ud->dgram)
		return;
	other = siw_rdmap_dgram_close(ud->dgram);
	/* The other QP serves the socket from now on. */
	if (other && ud->ends)
		ud->ends->server = other;
	else if (other)
		siw_llp_set_handler(ud->sock, &other->wq.qp.handler);
	else if (ud->ends)
		siw_addr_socks_close(ud->ends);
	else
		siw_llp_close(ud->sock);
	ud->dgram = NULL;
	ud->ddp = NULL;
	ud->ends = NULL;
	ud->sock = NULL;
}

/*
 * Opens an endpoint on a socket, which remains the caller's on failure. share: the endpoint of
 * another QP on the same socket, or NULL.
 */
static int ud_open_endpoint(struct siw_ud *ud, struct siw_llp_sock *sock,
			    struct siw_rdmap_dgram *share)
{
	struct siw_context *ctx = ud->wq.qp.ctx;
	struct siw_rdmap_dgram *dgram;
	struct siw_ddp_dgram *ddp;
	struct siw_addr bound;
	int err = siw_llp_local(sock, &bound);

	if (!err)
		err = siw_ddp_dgram_open(ctx->port, ctx->mem, sock, !ud->wq.no_crc, &ddp);
	if (err)
		return err;
	err = siw_rdmap_dgram_open(ddp, share, ud, &dgram);
	if (err) {
		siw_ddp_dgram_close(ddp);
		return err;
	}
	err = siw_rdmap_record_open(dgram, ud->records.max);
	if (err) {
		siw_rdmap_dgram_close(dgram);
		return err;
	}
	if (ud->wq.grh)
		siw_rdmap_dgram_grh(dgram);
	ud_close_socket(&ud->wq);
	ud->sock = sock;
	ud->ddp = ddp;
	ud->dgram = dgram;
	ud->wq.qp.handler.serve = ud_serve;
	/* The QPN: the UDP port, and the QP's index among the QPs that share the port. */
	atomic_store(&ud->wq.qp.qpn, siw_addr_port(&bound) | (uint32_t)siw_rdmap_dgram_index(dgram)
								     << SIW_QPN_INDEX_BIT);
	return 0;
}

static int ud_open_socket(struct siw_wq *wq, const struct siw_addr *addr, int fd)
{
	struct siw_ud *ud = siw_ud_of(wq);
	struct siw_llp_sock *sock;
	int err;

	/* Other QPs that share the socket depend on it. */
	if (ud->dgram && siw_rdmap_dgram_shared(ud->dgram))
		return siw_refuse(QP_FD_SHARED);
	if (ud->n_groups)
		return siw_refuse(QP_FD_GROUPS);
	if (ud->ends)
		return siw_refuse(QP_FD_EVERY);
	err = siw_qp_open_udp(wq, addr, fd, &sock);
	if (err)
		return err;
	ud->sends_to_groups = false; /* the QP is in RESET, so no thread sends */
	err = ud_open_endpoint(ud, sock, NULL);
	if (err)
		siw_llp_close(sock);
	return err;
}

static int ud_open_every_addr(struct siw_ud *ud, uint16_t port)
{
	struct siw_addr_socks *ends;
	int err = siw_addr_socks_open(ud->wq.qp.ctx, port, ud, ud_serve_sock, &ends);

	if (err)
		return err;
	err = ud_open_endpoint(ud, ends->at[0]->sock, NULL);
	if (err)
		siw_addr_socks_close(ends);
	else
		ud->ends = ends;
	return err;
}

/* Makes this QP use the other QP's sockets, too. */
static void ud_share_sockets(struct siw_ud *ud, const struct siw_ud *with)
{
	ud->ends = with->ends;
	ud->wq.every_addr = ud->ends != NULL;
	if (ud->ends)
		siw_addr_socks_share(ud->ends);
	else
		siw_llp_shared(ud->sock);
}

/*
 * Opens an endpoint on another QP's socket. -EINVAL: that QP has no socket, or another CRC setting;
 * -ENOSPC: no index is free.
 */
static int share_socket(struct siw_ud *ud, const struct siw_ud *with)
{
	struct siw_context *ctx = ud->wq.qp.ctx;
	int tries, err;

	/* The other QP may have been destroyed meanwhile. */
	if (siw_class_of(&with->wq) != &siw_qp_ud_class)
		return siw_refuse(SHARE_TYPE);
	if (!with->dgram)
		return siw_refuse(SHARE_CLOSED);
	if (with->wq.no_crc != ud->wq.no_crc)
		return siw_refuse(SHARE_CRC, with->wq.no_crc);
	/* Each attempt gets another index; the resulting QPN must not be that of an RC QP. */
	for (tries = 0; tries < SIW_MAX_SHARERS; tries++) {
		err = ud_open_endpoint(ud, with->sock, with->dgram);
		if (err)
			return err == -ENOSPC ? siw_refuse(SHARE_FULL, SIW_MAX_SHARERS) : err;
		ud_share_sockets(ud, with);
		if (ud->wq.qp.qpn < SIW_FIRST_RC_QPN)
			return 0;
		if (!atomic_load(&ctx->n_rc) || !siw_qp_qpn_taken(ctx, ud->wq.qp.qpn)) {
			ctx->n_high++;
			return 0;
		}
		ud_close_socket(&ud->wq);
	}
	return siw_refuse(SHARE_FULL, SIW_MAX_SHARERS);
}

static int ud_create(struct siw_wq *wq, const struct siw_qp_init_attr *init)
{
	struct siw_addr addr;
	int err;

	wq->timed.tick = siw_qp_record_tick;
	siw_ud_of(wq)->records.max = init->max_write_records;
	if (init->shared_socket_qp)
		return share_socket(siw_ud_of(wq), siw_ud_of(siw_wq_of(init->shared_socket_qp)));
	if (init->every_addr)
		return ud_open_every_addr(siw_ud_of(wq), siw_addr_port(&init->addr));
	err = siw_qp_first_addr(wq, &init->addr, &addr);
	return err ? err : ud_open_socket(wq, &addr, -1);
}

static void ud_close(struct siw_wq *wq)
{
	wq->qp.ctx->n_high -= siw_ud_of(wq)->dgram && wq->qp.qpn >= SIW_FIRST_RC_QPN;
	ud_close_socket(wq);
}

static int ud_addr(const struct siw_wq *wq, struct siw_addr *own, struct siw_addr *peer)
{
	(void)peer;
	return siw_ud_of(wq)->sock ? siw_llp_local(siw_ud_of(wq)->sock, own) : -ENOTCONN;
}

static int ud_may_destroy(const struct siw_wq *wq)
{
	uint64_t groups = siw_ud_of(wq)->n_groups;

	return groups ? siw_refuse(QP_IN_GROUPS, groups) : 0;
}

static void ud_set_receiving(struct siw_wq *wq)
{
	struct siw_ud *ud = siw_ud_of(wq);
	bool on = ud->wq.qp.state >= SIW_QPS_RTR && ud->wq.qp.state <= SIW_QPS_SQE;

	/* The send path reads these settings, too. */
	siw_lock(&ud->wq.qp.send_lock);
	siw_rdmap_dgram_start(ud->dgram, on ? ud->wq.recvs : NULL, ud->wq.qp.pd->number,
			      ud->wq.qkey);
	siw_ddp_pace_set(siw_ddp_dgram_pace(ud->ddp), ud->wq.rate_limit, ud->sock);
	siw_unlock(&ud->wq.qp.send_lock);
}

static void ud_modified(struct siw_wq *wq, int mask)
{
	if (mask & SIW_QP_QKEY)
		siw_qp_err_policy(wq, siw_ud_of(wq)->n_groups);
}

int siw_query_drops(struct siw_qp *qp, struct siw_source_drops *out, int max)
{
	struct siw_ud *ud;
	int n = siw_qp_enter(qp);

	if (n)
		return n;
	if (max > 0 && !out)
		return siw_refuse_null("out");
	ud = siw_ud_of(siw_wq_of(qp));
	n = -EINVAL;
	siw_lock(&qp->ctx->progress);
	if (siw_class_of(&ud->wq) == &siw_qp_ud_class && ud->dgram)
		n = siw_rdmap_dgram_drops(ud->dgram, out, max);
	siw_unlock(&qp->ctx->progress);
	return n == -EINVAL ? siw_qp_refuse_type(&ud->wq, "UD") : siw_refused(n);
}

/* ---- receiving ------------------------------------------------------------------------------- */

void siw_qp_ud_received(struct siw_ud *ud, const struct siw_rdmap_event *ev)
{
	siw_qp_received(&ud->wq, ev, siw_qp_recv_status(ev), ev->src_qpn, &ev->source, 0);
}

/* Handles all events other than a successful receive. */
static __attribute__((cold, noinline)) void ud_handle_event(struct siw_ud *ud,
							    const struct siw_rdmap_event *ev)
{
	if (ev->kind == SIW_RDMAP_RECORD) {
		siw_qp_record_report(ud, siw_now_ns());
		return;
	}
	if (ev->kind == SIW_RDMAP_BAD_ACCESS) {
		siw_qp_err_access(&ud->wq, ev);
		return;
	}
	if (ev->kind == SIW_RDMAP_BAD_RECV)
		siw_qp_ud_received(ud, ev);
	if (ev->kind == SIW_RDMAP_PEER_ERR)
		siw_qp_ud_err_reported(ud, ev);
	else if (ev->status != -EACCES) /* a wrong key of this end is not the peer's fault */
		siw_qp_ud_err_found(ud, ev);
}

static inline int ud_receive_some(struct siw_ud *ud)
{
	struct siw_rdmap_event ev;
	uint32_t octets = 0;
	int n = 0;

	ev.of_write = false;
	while (((n < ud->wq.burst && octets < SIW_TURN_OCTETS) ||
		siw_llp_port_more(ud->wq.qp.ctx->port)) &&
	       siw_rdmap_dgram_recv(ud->dgram, &ev) == 1) {
		/* The event is for this QP or for one that shares the socket. */
		struct siw_ud *to = ev.user;

		if (__builtin_expect(ev.kind == SIW_RDMAP_RECV, 1))
			siw_qp_ud_received(to, &ev);
		else
			ud_handle_event(to, &ev);
		if (to != ud && to->wq.qp.srq)
			siw_device_srq_taken(to->wq.qp.srq);
		octets += ev.length;
		n++;
	}
	siw_qp_receive_turn_done(&ud->wq, n, octets);
	return n;
}

static int ud_serve(struct siw_io_handler *self)
{
	return ud_receive_some(siw_container(self, struct siw_ud, wq.qp.handler));
}

static int ud_serve_sock(struct siw_addr_sock *end)
{
	struct siw_ud *ud = end->ends->server;

	siw_ddp_dgram_set_rx_sock(ud->ddp, end->sock, &end->addr);
	return ud_receive_some(ud);
}

/* ---- the type -------------------------------------------------------------------------------- */

static void ud_readdress(struct siw_qp *qp)
{
	struct siw_ud *ud = siw_ud_of(siw_wq_of(qp));

	if (ud->ends && ud->ends->server == ud) /* once for all QPs that share the sockets */
		siw_addr_socks_update(ud->ends);
}

static void record_polled(struct siw_qp *qp)
{
	siw_qp_record_polled(siw_wq_of(qp), &siw_ud_of(siw_wq_of(qp))->records);
}

static void ud_abandon(struct siw_wq *wq)
{
	siw_qp_record_clear(siw_ud_of(wq));
}

static const struct siw_rdmap_record *find_record(struct siw_wq *wq, uint64_t number)
{
	return siw_ud_of(wq)->dgram ? siw_rdmap_record_find(siw_ud_of(wq)->dgram, number) : NULL;
}

const struct siw_qp_class siw_qp_ud_class = {
	.ops = {
		.turn = siw_qp_ud_turn,
		.uses_key = siw_qp_uses_key,
		.is_quiet = siw_qp_is_quiet,
		.uses_ah = siw_qp_ud_uses_ah,
		.fail = siw_qp_fail,
		.leave = siw_qp_dgram_leave,
		.readdress = ud_readdress,
		.record_polled = record_polled,
	},
	.size = sizeof(struct siw_ud),
	.type = SIW_QPT_UD,
	.has_records = true,
	.has_errors = true,
	.shares_socket = true,
	.wait_octets = SIW_DELAY_OCTETS_DGRAM,
	.lazy_slots = true,
	.failure = SIW_WC_GENERAL_ERR,
	.create = ud_create,
	.open = ud_open_socket,
	.may_end = ud_may_destroy,
	.close = ud_close,
	.addr = ud_addr,
	.receive = ud_set_receiving,
	.modified = ud_modified,
	.end = siw_qp_flush,
	.post = siw_qp_ud_post,
	.check = siw_qp_ud_check,
	.run = siw_qp_ud_run,
	.abandon = ud_abandon,
	.find_record = find_record,
};
