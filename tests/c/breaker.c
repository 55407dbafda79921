/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests the circuit breaker of UC queue pairs by calling its timer with times that the test
 * chooses. The test holds the progress lock, so the device's thread cannot interfere. Sends and
 * reports are simulated by changing counters; no datagram is transmitted.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/settings.h"
#include "ddp/ddp_uc_impl.h"
#include "qp/qp_impl.h"
#include "rig.h"

#define SECOND 1000000000ull
#define ROUND  100
#define LEAST  64 /* kbit/s, the rate limit of an open breaker */

static struct rig rig;
static struct siw_cq *cq;
static struct siw_uc_qp *uc;
static uint32_t psn;
static struct siw_ddp_uc_report told;

/*
 * Creates a queue pair in RTS with the user's rate limit in kbit/s (0: none), and acquires the
 * progress lock.
 */
static void create_qp_and_lock_progress(uint32_t kbits)
{
	struct siw_qp_init_attr init = { .qp_type = SIW_QPT_UC, .cap = { 4, 4, 1, 1, 0 } };
	struct siw_qp_attr attr = { .qkey = 1 };
	struct siw_qp *qp;

	check(siw_setting_set("uc_breaker", 2));
	rig_open(&rig);
	cq = siw_create_cq(rig.ctx, 16, NULL, NULL, 0);
	must(cq);
	init.send_cq = init.recv_cq = cq;
	qp = siw_create_qp(rig.pd, &init);
	must(qp);
	check(siw_addr_parse("127.0.0.1", 9, &attr.ah_addr));
	for (attr.qp_state = SIW_QPS_INIT; attr.qp_state <= SIW_QPS_RTS; attr.qp_state++)
		check(siw_modify_qp(qp, &attr,
				    SIW_QP_STATE | (attr.qp_state == SIW_QPS_RTR ? SIW_QP_AV : 0)));
	uc = siw_uc_qp_of(siw_base_qp_of(qp));
	uc->base.rate_limit = kbits;
	siw_lock(&rig.ctx->lane0.lock);
}

static void unlock_progress_and_destroy_qp(void)
{
	siw_unlock(&rig.ctx->lane0.lock);
	check(siw_destroy_qp(&uc->base.qp));
	check(siw_destroy_cq(cq));
	rig_close(&rig);
}

/* Simulates that n more datagrams were sent. */
static void simulate_sends(uint32_t n)
{
	psn += n;
	siw_lock(&uc->base.qp.send_lock);
	siw_qp_circuit_breaker_note_send(uc);
	siw_ddp_uc_set_tx_psn(uc->ddp, psn);
	siw_unlock(&uc->base.qp.send_lock);
}

/* Simulates a report of the peer: `came` more datagrams have arrived. */
static void simulate_loss_report_of_peer(uint32_t came)
{
	told.datagrams += came;
	told.next = psn;
	uc->ddp->reports.last = told;
	uc->ddp->reports.report_unread = true;
	siw_qp_circuit_breaker_exchange_reports(uc);
}

static uint32_t current_send_rate(void)
{
	return siw_ddp_uc_get_pace(uc->ddp)->kbits;
}

static bool is_breaker_timer_armed(void)
{
	return !siw_link_empty(&uc->base.timed.link);
}

/* Checks that an open breaker restores the previous rate after exactly ten seconds. */
static void check_rate_restored_after_10s(uint32_t kbits)
{
	uint64_t until;

	create_qp_and_lock_progress(kbits);
	for (int i = 0; i < 3; i++) {
		simulate_sends(ROUND);
		must(current_send_rate() != LEAST);
		simulate_loss_report_of_peer(ROUND / 2);
	}
	must(current_send_rate() == LEAST);
	until = uc->breaker.last_ns + 10 * SECOND;
	for (int s = 9; s > 0; s--)
		siw_qp_circuit_breaker_handle_timer(&uc->base.timed, until - (uint64_t)s * SECOND);
	siw_qp_circuit_breaker_handle_timer(&uc->base.timed, until - 1);
	must(current_send_rate() == LEAST && is_breaker_timer_armed());
	siw_qp_circuit_breaker_handle_timer(&uc->base.timed, until);
	must(current_send_rate() == kbits);
	unlock_progress_and_destroy_qp();
}

/*
 * Checks that an interval without sends stops the timer until the next send, and that the breaker
 * opens if the peer then stays silent.
 */
static void check_idle_stops_breaker_timer(void)
{
	uint64_t now = siw_now_ns();

	create_qp_and_lock_progress(0);
	must(!is_breaker_timer_armed());
	simulate_sends(ROUND);
	simulate_loss_report_of_peer(ROUND);
	must(is_breaker_timer_armed());
	siw_qp_circuit_breaker_handle_timer(&uc->base.timed, now += SECOND);
	must(is_breaker_timer_armed());
	siw_qp_circuit_breaker_handle_timer(&uc->base.timed, now += SECOND);
	must(!is_breaker_timer_armed());
	siw_qp_circuit_breaker_exchange_reports(uc);
	must(!is_breaker_timer_armed());
	for (int i = 0; i < 3; i++) {
		must(current_send_rate() == 0);
		simulate_sends(ROUND);
		siw_qp_circuit_breaker_exchange_reports(uc);
		must(is_breaker_timer_armed());
		siw_qp_circuit_breaker_handle_timer(&uc->base.timed, now += SECOND);
	}
	must(current_send_rate() == LEAST);
	unlock_progress_and_destroy_qp();
}

/* Checks that a send after an idle period makes the device's thread start a new interval. */
static void check_send_restarts_breaker_interval(void)
{
	long deadline = now_ms() + LIMIT_MS;
	uint64_t now = siw_now_ns();
	bool sends = true;

	create_qp_and_lock_progress(0);
	simulate_sends(ROUND);
	simulate_loss_report_of_peer(ROUND);
	siw_qp_circuit_breaker_handle_timer(&uc->base.timed, now += SECOND);
	siw_qp_circuit_breaker_handle_timer(&uc->base.timed, now += SECOND);
	must(!is_breaker_timer_armed());
	simulate_sends(ROUND);
	while (sends && now_ms() < deadline) {
		siw_unlock(&rig.ctx->lane0.lock);
		sched_yield();
		siw_lock(&rig.ctx->lane0.lock);
		sends = uc->breaker.resumed;
	}
	must(!sends);
	unlock_progress_and_destroy_qp();
}

/*
 * Checks that reports that arrive after sending has stopped open the breaker, and that the timer
 * closes it later.
 */
static void check_late_reports_open_breaker(void)
{
	uint64_t now = siw_now_ns();

	create_qp_and_lock_progress(0);
	simulate_sends(ROUND);
	simulate_loss_report_of_peer(ROUND);
	siw_qp_circuit_breaker_handle_timer(&uc->base.timed, now += SECOND);
	siw_ddp_uc_set_tx_psn(uc->ddp, 4 * ROUND);
	uc->breaker.sent = 4 * ROUND;
	siw_qp_circuit_breaker_handle_timer(&uc->base.timed, now += SECOND);
	must(!is_breaker_timer_armed());
	for (psn = 2 * ROUND; psn <= 4 * ROUND; psn += ROUND)
		simulate_loss_report_of_peer(0);
	must(current_send_rate() == LEAST && is_breaker_timer_armed());
	siw_qp_circuit_breaker_handle_timer(&uc->base.timed, now + 20 * SECOND);
	must(current_send_rate() == 0);
	unlock_progress_and_destroy_qp();
}

int main(int argc, char **argv)
{
	must(argc == 2);
	if (!strcmp(argv[1], "idle"))
		check_idle_stops_breaker_timer();
	else if (!strcmp(argv[1], "woken"))
		check_send_restarts_breaker_interval();
	else if (!strcmp(argv[1], "late"))
		check_late_reports_open_breaker();
	else
		check_rate_restored_after_10s((uint32_t)strtoul(argv[1], NULL, 10));
	return 0;
}
