/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* UC queue pairs: the circuit breaker, sending and receiving. */
#include <errno.h>

#include "base/addr.h"
#include "base/clock.h"
#include "ddp/ddp_uc.h"
#include "qp/qp_impl.h"
#include "rdmap/rdmap_uc.h"

/* ==== the circuit breaker ===================================================================== */

/*
 * A circuit breaker for UC queue pairs (RFC 8084). The peer reports once a second how many
 * datagrams it has received. Excessive loss that persists, or the end of the reports, reduces the
 * sending rate for 10 s.
 */

#define SECOND_NS 1000000000ull
#define OPEN_NS	  (10 * SECOND_NS)
/*
 * Loss is excessive if more than one datagram in LOSS_PART is lost; at 10 % loss, a TCP connection
 * has four segments in flight. Loss is persistent if LASTS consecutive reports show excessive loss.
 */
#define LOSS_PART 10
#define LASTS	  3
/* Minimum number of datagrams in a report; reports about fewer datagrams are ignored. */
#define LEAST 16
/* Minimum number of datagrams sent in an interval for which a report of the peer is expected. */
#define TALK 64
/*
 * While the circuit breaker is open, the sending rate is limited to 1/CUT_PART of the rate at which
 * datagrams arrived at the peer, but at least to LEAST_KBITS, in kbit/s.
 */
#define CUT_PART    10
#define LEAST_KBITS 64

void siw_qp_circuit_breaker_apply_rate(struct siw_uc_qp *uc)
{
	const struct siw_breaker *b = &uc->breaker;
	uint32_t kbits = uc->base.rate_limit;

	if (b->open && (!kbits || b->kbits < kbits))
		kbits = b->kbits;
	siw_ddp_pace_set_rate_limit(siw_ddp_uc_get_pace(uc->ddp), kbits, uc->sock);
}

void siw_qp_circuit_breaker_init(struct siw_uc_qp *uc, uint32_t psn)
{
	uc->breaker = (struct siw_breaker){
		.last = { .next = psn },
		.last_ns = siw_now_ns(),
		.sent = psn,
	};
}

/* Starts a new interval of the circuit breaker when traffic resumes after a pause. */
static void circuit_breaker_start_interval(struct siw_uc_qp *uc, uint64_t now_ns)
{
	struct siw_breaker *b = &uc->breaker;

	if (!b->paused)
		return;
	b->paused = b->resumed = b->report_seen = false;
	siw_device_timer_start_at(uc->base.qp.lane, &uc->base.timed, now_ns + SECOND_NS);
}

/*
 * Opens the circuit breaker, which reduces the sending rate. octets: the octets that the peer
 * received within ns nanoseconds.
 */
static void circuit_breaker_trip(struct siw_uc_qp *uc, uint64_t now_ns, uint64_t octets,
				 uint64_t ns)
{
	struct siw_breaker *b = &uc->breaker;
	uint64_t kbits = octets * 8 * 1000000 / (ns ? ns : 1) / CUT_PART;

	b->bad_reports = b->silent_intervals = 0;
	b->kbits = kbits < LEAST_KBITS	? LEAST_KBITS
		   : kbits < UINT32_MAX ? (uint32_t)kbits
					: UINT32_MAX;
	b->until_ns = now_ns + OPEN_NS;
	if (!b->open)
		siw_device_raise_async_event(&uc->base.qp.async, SIW_EVENT_CONGESTED);
	b->open = true;
	/* a late report may open the breaker while traffic pauses */
	circuit_breaker_start_interval(uc, now_ns);
	siw_qp_circuit_breaker_apply_rate(uc);
}

/*
 * Whether a report of the peer is plausible: its counts do not exceed the number of datagrams sent,
 * and do not decrease.
 */
static bool circuit_breaker_report_is_plausible(const struct siw_ddp_uc_report *last,
						const struct siw_ddp_uc_report *report,
						uint32_t sent)
{
	uint32_t span = report->next - last->next;

	return span <= sent - last->next && report->datagrams >= last->datagrams &&
	       report->datagrams - last->datagrams <= span && report->octets >= last->octets &&
	       report->octets - last->octets <= (uint64_t)span * UINT16_MAX;
}

/*
 * Evaluates a report of the peer in the circuit breaker. send_lock held, as for
 * circuit_breaker_evaluate_interval().
 */
static void circuit_breaker_evaluate_report(struct siw_uc_qp *uc,
					    const struct siw_ddp_uc_report *report, uint64_t now_ns)
{
	struct siw_breaker *b = &uc->breaker;
	const struct siw_ddp_uc_report last = b->last;
	uint32_t span = report->next - last.next, in, sent;
	uint64_t ns = now_ns - b->last_ns;

	siw_ddp_uc_next_psns(uc->ddp, &in, &sent);
	if (!circuit_breaker_report_is_plausible(&last, report, sent))
		return;
	b->report_seen = true;
	if (!b->reports_expected) {
		siw_llp_sock_enable_timer(uc->sock);
		siw_device_timer_start_at(uc->base.qp.lane, &uc->base.timed, now_ns + SECOND_NS);
	}
	b->reports_expected = true;
	if (span < LEAST)
		return;
	b->last = *report;
	b->last_ns = now_ns;
	if ((span - (report->datagrams - last.datagrams)) * LOSS_PART > span)
		b->bad_reports++;
	else
		b->bad_reports = 0;
	if (b->bad_reports >= LASTS)
		circuit_breaker_trip(uc, now_ns, report->octets - last.octets, ns);
}

/*
 * Evaluates an interval at its end: opens the circuit breaker if a peer that can report has sent no
 * report for LASTS intervals although many datagrams were sent to the peer.
 */
static void circuit_breaker_evaluate_interval(struct siw_uc_qp *uc, uint64_t now_ns)
{
	struct siw_breaker *b = &uc->breaker;
	uint32_t in, sent;

	siw_ddp_uc_next_psns(uc->ddp, &in, &sent);
	if (b->report_seen || sent - b->sent < TALK)
		b->silent_intervals = 0;
	else
		b->silent_intervals++;
	b->paused = !b->open && sent == b->sent;
	b->report_seen = false;
	b->sent = sent;
	if (b->silent_intervals >= LASTS)
		circuit_breaker_trip(uc, now_ns, 0, 1);
}

void siw_qp_circuit_breaker_exchange_reports(struct siw_uc_qp *uc)
{
	struct siw_ddp_uc_report report;
	bool due = siw_ddp_uc_is_receiver_report_due(uc->ddp);
	bool received = siw_ddp_uc_take_receiver_report(uc->ddp, &report);

	if (__builtin_expect(!due && !received && !uc->breaker.paused, 1))
		return;
	siw_lock(&uc->base.qp.send_lock);
	if (uc->breaker.resumed)
		circuit_breaker_start_interval(uc, siw_now_ns());
	if (due && uc->base.qp.state >= SIW_QPS_RTR && uc->base.qp.state <= SIW_QPS_SQE)
		siw_ddp_uc_send_receiver_report(uc->ddp);
	if (received && uc->base.qp.state >= SIW_QPS_RTS && uc->base.qp.state <= SIW_QPS_SQE)
		circuit_breaker_evaluate_report(uc, &report, siw_now_ns());
	siw_unlock(&uc->base.qp.send_lock);
}

void siw_qp_circuit_breaker_handle_timer(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_uc_qp *uc = siw_container(timed, struct siw_uc_qp, base.timed);
	struct siw_breaker *b = &uc->breaker;
	bool closes = b->open && now_ns >= b->until_ns;

	siw_lock(&uc->base.qp.send_lock);
	circuit_breaker_evaluate_interval(uc, now_ns);
	if (closes && now_ns >= b->until_ns) {
		b->open = false;
		b->bad_reports = 0;
		siw_qp_circuit_breaker_apply_rate(uc);
	}
	siw_unlock(&uc->base.qp.send_lock);
	if (closes)
		siw_qp_schedule_sending_turn(&uc->base);
	if (b->paused)
		siw_device_timer_cancel(uc->base.qp.lane, timed);
	else
		siw_device_timer_start_at(uc->base.qp.lane, timed, now_ns + SECOND_NS);
}

/* ==== the queue pair ========================================================================== */

/*
 * UC queue pairs: one peer, messages of any length; losses are not reported. A request stays in the
 * send queue until UDP has accepted all its datagrams.
 */

static int uc_handle_socket_event(struct siw_io_handler *self);
static int uc_handle_addr_sock_event(struct siw_addr_sock *end);

static void uc_close_socket(struct siw_base_qp *base)
{
	struct siw_uc_qp *uc = siw_uc_qp_of(base);

	if (!uc->end)
		return;
	siw_device_timer_cancel(base->qp.lane, &base->timed);
	siw_rdmap_uc_close(uc->end);
	if (uc->socks)
		siw_addr_socks_close(uc->socks);
	else
		siw_llp_close(uc->sock);
	uc->socks = NULL;
	uc->end = NULL;
	uc->ddp = NULL;
	uc->sock = NULL;
}

/* Opens DDP and RDMAP on a socket. On failure the caller keeps the ownership of the socket. */
static int uc_open_endpoint(struct siw_base_qp *base, struct siw_llp_sock *sock)
{
	struct siw_lane *lane = base->qp.lane;
	struct siw_uc_qp *uc = siw_uc_qp_of(base);
	struct siw_rdmap_uc *end;
	struct siw_ddp_uc *ddp;
	struct siw_addr bound;
	int err = siw_ddp_uc_open(lane->poller, lane->ctx->mem, sock, !base->no_crc, &ddp);

	if (err)
		return err;
	err = siw_rdmap_uc_open(ddp, &end);
	if (err) {
		siw_ddp_uc_close(ddp);
		return err;
	}
	siw_llp_local_addr(sock, &bound);
	uc_close_socket(base);
	uc->sock = sock;
	uc->ddp = ddp;
	uc->end = end;
	base->qp.handler.serve = uc_handle_socket_event;
	base->private = true; /* the peer of a UC QP is siwarp, and knows private messages */
	atomic_store(&base->qp.qpn, siw_addr_port(&bound));
	return 0;
}

static int uc_open_socket(struct siw_base_qp *base, const struct siw_addr *addr, int fd)
{
	struct siw_llp_sock *sock;
	int err;

	if (siw_uc_qp_of(base)->socks)
		return siw_refuse(QP_FD_EVERY);
	err = siw_qp_open_udp_socket(base, addr, fd, &sock);
	if (err)
		return err;
	err = uc_open_endpoint(base, sock);
	if (err)
		siw_llp_close(sock);
	return err;
}

static int uc_open_sockets_at_every_addr(struct siw_base_qp *base, uint16_t port)
{
	struct siw_addr_socks *ends;
	int err = siw_per_addr_sockets_open(base->qp.lane, port, base, uc_handle_addr_sock_event,
					    &ends);

	if (err)
		return err;
	err = uc_open_endpoint(base, ends->at[0]->sock);
	if (err)
		siw_addr_socks_close(ends);
	else
		siw_uc_qp_of(base)->socks = ends;
	return err;
}

static int uc_create(struct siw_base_qp *base, const struct siw_qp_init_attr *init)
{
	struct siw_addr addr;
	int err;

	base->timed.tick = siw_qp_circuit_breaker_handle_timer;
	if (init->every_addr)
		return uc_open_sockets_at_every_addr(base, siw_addr_port(&init->addr));
	err = siw_qp_addr_or_first_of_device(base, &init->addr, &addr);
	return err ? err : uc_open_socket(base, &addr, -1);
}

static int uc_get_addrs(const struct siw_base_qp *base, struct siw_addr *own, struct siw_addr *peer)
{
	const struct siw_uc_qp *uc = siw_uc_qp_of(base);

	if (!uc->end)
		return -ENOTCONN;
	*peer = uc->peer;
	return siw_llp_local_addr(uc->sock, own);
}

/* ---- the path -------------------------------------------------------------------------------- */

#define LEAST_MTU 256

/*
 * Converts an MTU to octets: the values 1 to 5 of enum ibv_mtu mean 256 to 4096 octets, larger
 * values are octets.
 */
static uint32_t uc_mtu_octets(int path_mtu)
{
	return path_mtu >= 1 && path_mtu <= 5 ? 128u << path_mtu : (uint32_t)path_mtu;
}

static bool uc_mtu_is_valid(int path_mtu)
{
	return path_mtu == 0 || (uc_mtu_octets(path_mtu) >= LEAST_MTU && path_mtu <= 65535);
}

/*
 * Selects the socket from which datagrams are sent to the peer. Returns 0, or -errno if there is no
 * socket at the source address.
 */
static int uc_set_source(struct siw_uc_qp *uc, struct siw_addr *peer, const struct siw_addr *source)
{
	const struct siw_addr_sock *end;
	struct siw_addr own;

	if (!uc->socks) {
		if (!source->family ||
		    (!siw_llp_local_addr(uc->sock, &own) && siw_addr_same_host(&own, source)))
			return 0;
		return siw_refuse(UC_SOURCE);
	}
	end = siw_addr_socks_find(uc->socks, peer, source);
	if (!end)
		return siw_refuse(UC_SOURCE);
	/* A link-local address of the peer without a scope gets the scope of the device's link. */
	if (siw_addr_is_link_local(peer) && !peer->scope)
		peer->scope = end->addr.scope;
	uc->sock = end->sock;
	return siw_ddp_uc_set_tx_sock(uc->ddp, end->sock);
}

static int uc_set_peer(struct siw_uc_qp *uc, const struct siw_qp_attr *attr, int mask)
{
	struct siw_addr peer = attr->ah_addr;
	uint32_t psn = mask & SIW_QP_RQ_PSN ? attr->rq_psn : 0;
	uint32_t payload = mask & SIW_QP_PATH_MTU ? uc_mtu_octets(attr->path_mtu) : 0;
	int err;

	if (!(mask & SIW_QP_AV))
		return siw_refuse(UC_PEER);
	if ((mask & SIW_QP_DEST_QPN) && attr->dest_qp_num)
		peer.port_be = htons((uint16_t)attr->dest_qp_num);
	if (!siw_addr_len(&peer))
		return siw_refuse(ADDRESS_FAMILY, peer.family);
	if (!peer.port_be)
		return siw_refuse(UC_PORT);
	siw_lock(&uc->base.qp.send_lock);
	err = uc_set_source(uc, &peer, &attr->ah_source);
	if (!err)
		err = siw_rdmap_uc_connect(uc->end, &peer, psn, payload);
	if (!err) {
		uc->peer = peer;
		uc->dest_qpn = mask & SIW_QP_DEST_QPN ? attr->dest_qp_num : 0;
		if (!uc->dest_qpn)
			uc->dest_qpn = siw_addr_port(&peer);
	}
	siw_unlock(&uc->base.qp.send_lock);
	return err == -EAFNOSUPPORT ? siw_refuse(UC_FAMILY) : err;
}

static int uc_prepare_transition(struct siw_base_qp *base, int event,
				 const struct siw_qp_attr *attr, int mask)
{
	struct siw_uc_qp *uc = siw_uc_qp_of(base);

	if ((mask & SIW_QP_PATH_MTU) && !uc_mtu_is_valid(attr->path_mtu))
		return siw_refuse(QP_PATH_MTU, (uint64_t)attr->path_mtu);
	if (event == SIW_QPE_TO_RTR)
		return uc_set_peer(uc, attr, mask);
	if (event == SIW_QPE_TO_RTS && uc->base.qp.state == SIW_QPS_RTR) {
		siw_lock(&uc->base.qp.send_lock);
		siw_ddp_uc_set_tx_psn(uc->ddp, mask & SIW_QP_SQ_PSN ? attr->sq_psn : 0);
		siw_qp_circuit_breaker_init(uc, mask & SIW_QP_SQ_PSN ? attr->sq_psn : 0);
		siw_unlock(&uc->base.qp.send_lock);
	}
	return 0;
}

static void uc_configure_receiving(struct siw_base_qp *base)
{
	struct siw_uc_qp *uc = siw_uc_qp_of(base);
	bool on = uc->base.qp.state >= SIW_QPS_RTR && uc->base.qp.state <= SIW_QPS_SQE;
	struct siw_rdmap_uc_start start = {
		.recvs = on ? uc->base.recvs : NULL,
		.pd = uc->base.qp.pd->number,
		.qkey = uc->base.qkey,
		.denied = ~(uint32_t)uc->base.access,
		.owner = siw_device_owner(&uc->base.qp),
	};

	/* Under send_lock, because the send path reads what these calls change. */
	siw_lock(&uc->base.qp.send_lock);
	siw_rdmap_uc_configure_receiving(uc->end, &start);
	siw_qp_circuit_breaker_apply_rate(uc);
	if (uc->base.qp.state == SIW_QPS_RESET)
		uc->peer = (struct siw_addr){ 0 };
	siw_unlock(&uc->base.qp.send_lock);
	if (!on)
		siw_device_timer_cancel(uc->base.qp.lane, &uc->base.timed);
}

static void uc_query_attr(const struct siw_base_qp *base, struct siw_qp_attr *attr)
{
	const struct siw_uc_qp *uc = siw_uc_qp_of(base);

	if (!uc->end || !uc->peer.family)
		return;
	attr->ah_addr = uc->peer;
	if (uc->socks)
		siw_llp_local_addr(uc->sock, &attr->ah_source);
	attr->dest_qp_num = uc->dest_qpn;
	attr->path_mtu = (int)siw_ddp_uc_max_payload(uc->ddp);
	siw_ddp_uc_next_psns(uc->ddp, &attr->rq_psn, &attr->sq_psn);
}

/* ---- sending --------------------------------------------------------------------------------- */

static int uc_begin_request(struct siw_base_qp *base, struct siw_flow *flow, struct siw_wqe *wqe)
{
	struct siw_uc_qp *uc = siw_uc_qp_of(base);

	(void)flow;
	siw_qp_circuit_breaker_note_send(uc);
	return siw_rdmap_uc_begin_op(uc->end, &wqe->op);
}

/*
 * Stops the send queue if a request failed because of a local error; a request that the network
 * refused counts as lost.
 */
static void uc_handle_request_failure(struct siw_base_qp *base, struct siw_flow *flow, int status)
{
	(void)flow;
	if (status != SIW_WC_GENERAL_ERR)
		siw_advance_teardown(base, SIW_FAILING);
}

/*
 * Marks the requests with the numbers first to last as failed with status: requests that the
 * network refused (GENERAL_ERR), or the last request, which could not be continued.
 */
static __attribute__((cold, noinline)) void
uc_mark_requests_failed(struct siw_base_qp *base, uint64_t first, uint64_t last, int status)
{
	for (struct siw_wqe *wqe = base->flow.first; wqe; wqe = wqe->chain) {
		if (wqe->state != SIW_WQE_BEGUN || wqe->op.stamp.end < first ||
		    wqe->op.stamp.end > last)
			continue;
		wqe->state = SIW_WQE_DONE;
		wqe->status = (uint8_t)status;
		uc_handle_request_failure(base, &base->flow, status);
	}
}

static int uc_transmit_requests(struct siw_base_qp *base, struct siw_flow *flow)
{
	struct siw_uc_qp *uc = siw_uc_qp_of(base);
	uint64_t first, last = siw_rdmap_uc_begun_count(uc->end);
	int r = siw_rdmap_uc_flush_tx(uc->end);

	if (__builtin_expect(r < 0, 0)) {
		uc_mark_requests_failed(base, last, last, siw_qp_wc_status_of_send_error(base, r));
		r = 0;
	}
	if (__builtin_expect(siw_rdmap_uc_pop_refused_message_range(uc->end, &first, &last), 0)) {
		uc_mark_requests_failed(base, first, last, SIW_WC_GENERAL_ERR);
		r = siw_rdmap_uc_flush_tx(uc->end);
	}
	flow->accepted = flow->memory_released = siw_ddp_uc_accepted_tx_message_count(uc->ddp);
	return r;
}

static enum siw_run uc_run_send_queue(struct siw_base_qp *base)
{
	int r;

	if (!base->flow.first)
		return SIW_RUN_DONE;
	r = siw_qp_flow_send_requests(base, &base->flow);
	siw_qp_reap_finished_requests(base, &base->flow);
	return siw_qp_flow_finish_sending_turn(base, r,
					       siw_ddp_uc_is_tx_blocked(siw_uc_qp_of(base)->ddp));
}

static void uc_discard_send_state(struct siw_base_qp *base)
{
	if (siw_uc_qp_of(base)->end)
		siw_rdmap_uc_drop_unsent(siw_uc_qp_of(base)->end);
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void uc_handle_event(struct siw_uc_qp *uc, const struct siw_rdmap_event *ev)
{
	if (ev->kind == SIW_RDMAP_PROGRESS)
		siw_qp_count_one_sided(&uc->base, ev->length);
	else
		siw_qp_add_recv_completion(&uc->base, ev, siw_qp_wc_status_of_recv_event(ev),
					   uc->dest_qpn, NULL, 0);
}

static int uc_make_receiving_turn(struct siw_uc_qp *uc)
{
	struct siw_rdmap_event ev;
	uint32_t octets = 0, more;
	int n = 0, got = 1;

	while (got && ((n < uc->base.burst && octets < SIW_TURN_OCTETS) ||
		       siw_llp_poller_has_more_datagrams(uc->base.qp.lane->poller))) {
		got = siw_rdmap_uc_recv(uc->end, &ev, &more);
		if (got)
			uc_handle_event(uc, &ev);
		octets += more;
		n += got;
	}
	siw_qp_receive_turn_done(&uc->base, n, octets);
	siw_qp_circuit_breaker_exchange_reports(uc);
	/*
	 * Segments that complete no message are counted, too, because the poller must not sleep
	 * while segments arrive.
	 */
	return n + (octets != 0);
}

static int uc_handle_socket_event(struct siw_io_handler *self)
{
	return uc_make_receiving_turn(siw_container(self, struct siw_uc_qp, base.qp.handler));
}

/*
 * Receives datagrams from one of the QP's sockets: datagrams are accepted at all addresses of the
 * QP, not only at the address that the peer should use.
 */
static int uc_handle_addr_sock_event(struct siw_addr_sock *end)
{
	struct siw_uc_qp *uc = siw_uc_qp_of(end->socks->server);

	siw_ddp_uc_set_rx_sock(uc->ddp, end->sock);
	return uc_make_receiving_turn(uc);
}

/* ---- the type -------------------------------------------------------------------------------- */

static void uc_end_replaced_mw_binding(struct siw_qp *qp)
{
	siw_qp_mw_end_replaced_binding(siw_base_qp_of(qp), false);
}

static int uc_release_unfinished_recv(struct siw_base_qp *base, uint64_t *wr_id)
{
	return siw_uc_qp_of(base)->end
		       ? siw_ddp_uc_pop_unfinished_buffer(siw_uc_qp_of(base)->ddp, wr_id)
		       : 0;
}

const struct siw_qp_class siw_qp_uc_class = {
	.ops = {
		.owns_regions = true,
		.turn = siw_qp_make_sending_turn,
		.uses_key = siw_qp_uses_lkey,
		.is_quiet = siw_qp_has_empty_sq,
		.settle = uc_end_replaced_mw_binding,
		.fail = siw_qp_fail,
		.leave = siw_qp_dgram_send_delayed_at_exit,
	},
	.size = sizeof(struct siw_uc_qp),
	.type = SIW_QPT_UC,
	.opcodes = 1 << SIW_WR_SEND | 1 << SIW_WR_SEND_WITH_IMM | 1 << SIW_WR_RDMA_WRITE |
		   1 << SIW_WR_RDMA_WRITE_WITH_IMM,
	.turn_octets = SIW_TURN_OCTETS,
	.failure = SIW_WC_GENERAL_ERR,
	.has_errors = true,
	.wait_octets = SIW_DELAY_OCTETS_DGRAM,
	.wait_requests = SIW_RDMAP_MAX_SOME,
	.binds = true,
	.has_rights = true,
	.create = uc_create,
	.open = uc_open_socket,
	.close = uc_close_socket,
	.addr = uc_get_addrs,
	.query_attr = uc_query_attr,
	.prepare = uc_prepare_transition,
	.receive = uc_configure_receiving,
	.end = siw_qp_flush,
	.post = siw_qp_post_send_request,
	.check = siw_qp_check_send_request,
	.run = uc_run_send_queue,
	.begin = uc_begin_request,
	.failed = uc_handle_request_failure,
	.transmit = uc_transmit_requests,
	.discard_state = uc_discard_send_state,
	.take_recv = uc_release_unfinished_recv,
};
