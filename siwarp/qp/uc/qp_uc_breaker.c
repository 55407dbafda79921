/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A circuit breaker for UC queue pairs (RFC 8084). The peer reports once a second what it has
 * received. Excessive loss that persists, or the end of reports, cuts the rate for a while.
 */
#include "base/clock.h"
#include "qp/qp_impl.h"

#define SECOND_NS 1000000000ull
#define OPEN_NS	  (10 * SECOND_NS)
/*
 * Loss is excessive if it exceeds one datagram in LOSS_PART; at 10 % loss, a TCP connection has
 * four segments in flight. It persists if LASTS consecutive reports show it.
 */
#define LOSS_PART 10
#define LASTS	  3
/* Reports about fewer datagrams than this are ignored. */
#define LEAST 16
/* A report is expected in an interval with at least this many datagrams. */
#define TALK 64
/*
 * While the breaker is open, the rate is 1/CUT_PART of the rate at which datagrams arrived, but at
 * least LEAST_KBITS, in kbit/s.
 */
#define CUT_PART    10
#define LEAST_KBITS 64

void siw_qp_breaker_pace(struct siw_uc *uc)
{
	const struct siw_breaker *b = &uc->breaker;
	uint32_t kbits = uc->wq.rate_limit;

	if (b->open && (!kbits || b->kbits < kbits))
		kbits = b->kbits;
	siw_ddp_pace_set(siw_ddp_uc_pace(uc->ddp), kbits, uc->sock);
}

void siw_qp_breaker_begin(struct siw_uc *uc, uint32_t psn)
{
	uc->breaker = (struct siw_breaker){
		.last = { .next = psn },
		.last_ns = siw_now_ns(),
		.sent = psn,
	};
}

/* Starts a new interval when traffic resumes after a rest. */
static void breaker_resume(struct siw_uc *uc, uint64_t now_ns)
{
	struct siw_breaker *b = &uc->breaker;

	if (!b->rests)
		return;
	b->rests = b->sends = b->heard = false;
	siw_device_timed_at(uc->wq.qp.ctx, &uc->wq.timed, now_ns + SECOND_NS);
}

/* Opens the breaker: cuts the rate. octets: received by the peer within ns nanoseconds. */
static void breaker_open(struct siw_uc *uc, uint64_t now_ns, uint64_t octets, uint64_t ns)
{
	struct siw_breaker *b = &uc->breaker;
	uint64_t kbits = octets * 8 * 1000000 / (ns ? ns : 1) / CUT_PART;

	b->bad = b->mute = 0;
	b->kbits = kbits < LEAST_KBITS	? LEAST_KBITS
		   : kbits < UINT32_MAX ? (uint32_t)kbits
					: UINT32_MAX;
	b->until_ns = now_ns + OPEN_NS;
	if (!b->open)
		siw_device_async_raise(&uc->wq.qp.async, SIW_EVENT_CONGESTED);
	b->open = true;
	breaker_resume(uc, now_ns); /* a late report may open the breaker during a rest */
	siw_qp_breaker_pace(uc);
}

/* Whether a report is plausible: its counts do not exceed what was sent, and do not decrease. */
static bool breaker_report_plausible(const struct siw_ddp_uc_report *last,
				     const struct siw_ddp_uc_report *told, uint32_t sent)
{
	uint32_t span = told->next - last->next;

	return span <= sent - last->next && told->datagrams >= last->datagrams &&
	       told->datagrams - last->datagrams <= span && told->octets >= last->octets &&
	       told->octets - last->octets <= (uint64_t)span * UINT16_MAX;
}

/* Evaluates a report of the peer. send_lock held, as for breaker_evaluate_interval(). */
static void breaker_evaluate_report(struct siw_uc *uc, const struct siw_ddp_uc_report *told,
				    uint64_t now_ns)
{
	struct siw_breaker *b = &uc->breaker;
	const struct siw_ddp_uc_report last = b->last;
	uint32_t span = told->next - last.next, in, sent;
	uint64_t ns = now_ns - b->last_ns;

	siw_ddp_uc_numbers(uc->ddp, &in, &sent);
	if (!breaker_report_plausible(&last, told, sent))
		return;
	b->heard = true;
	if (!b->known) {
		siw_llp_sock_timed(uc->sock);
		siw_device_timed_at(uc->wq.qp.ctx, &uc->wq.timed, now_ns + SECOND_NS);
	}
	b->known = true;
	if (span < LEAST)
		return;
	b->last = *told;
	b->last_ns = now_ns;
	if ((span - (told->datagrams - last.datagrams)) * LOSS_PART > span)
		b->bad++;
	else
		b->bad = 0;
	if (b->bad >= LASTS)
		breaker_open(uc, now_ns, told->octets - last.octets, ns);
}

/*
 * Evaluates the end of an interval: opens the breaker if a peer that can report has sent no report
 * for LASTS intervals although it was sent many datagrams.
 */
static void breaker_evaluate_interval(struct siw_uc *uc, uint64_t now_ns)
{
	struct siw_breaker *b = &uc->breaker;
	uint32_t in, sent;

	siw_ddp_uc_numbers(uc->ddp, &in, &sent);
	if (b->heard || sent - b->sent < TALK)
		b->mute = 0;
	else
		b->mute++;
	b->rests = !b->open && sent == b->sent;
	b->heard = false;
	b->sent = sent;
	if (b->mute >= LASTS)
		breaker_open(uc, now_ns, 0, 1);
}

void siw_qp_breaker_check(struct siw_uc *uc)
{
	struct siw_ddp_uc_report told;
	bool due = siw_ddp_uc_report_due(uc->ddp);
	bool heard = siw_ddp_uc_report_received(uc->ddp, &told);

	if (__builtin_expect(!due && !heard && !uc->breaker.rests, 1))
		return;
	siw_lock(&uc->wq.qp.send_lock);
	if (uc->breaker.sends)
		breaker_resume(uc, siw_now_ns());
	if (due && uc->wq.qp.state >= SIW_QPS_RTR && uc->wq.qp.state <= SIW_QPS_SQE)
		siw_ddp_uc_report_send(uc->ddp);
	if (heard && uc->wq.qp.state >= SIW_QPS_RTS && uc->wq.qp.state <= SIW_QPS_SQE)
		breaker_evaluate_report(uc, &told, siw_now_ns());
	siw_unlock(&uc->wq.qp.send_lock);
}

void siw_qp_breaker_tick(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_uc *uc = siw_container(timed, struct siw_uc, wq.timed);
	struct siw_breaker *b = &uc->breaker;
	bool closes = b->open && now_ns >= b->until_ns;

	siw_lock(&uc->wq.qp.send_lock);
	breaker_evaluate_interval(uc, now_ns);
	if (closes && now_ns >= b->until_ns) {
		b->open = false;
		b->bad = 0;
		siw_qp_breaker_pace(uc);
	}
	siw_unlock(&uc->wq.qp.send_lock);
	if (closes)
		siw_qp_wake(&uc->wq);
	if (b->rests)
		siw_device_timed_del(uc->wq.qp.ctx, timed);
	else
		siw_device_timed_at(uc->wq.qp.ctx, timed, now_ns + SECOND_NS);
}
