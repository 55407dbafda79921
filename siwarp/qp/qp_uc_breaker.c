/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A circuit breaker of UC queue pairs (RFC 8084): the peer reports once a second what came. Loss that
 * is excessive and lasts, or a peer that reports no longer, cuts the rate for a while.
 */
#include "base/clock.h"
#include "qp/qp_impl.h"

#define SECOND_NS 1000000000ull
#define OPEN_NS	  (10 * SECOND_NS)
/*
 * Excessive is more than one datagram in ten: at that loss a TCP has four segments in flight. It lasts
 * when three reports in a row say so.
 */
#define LOSS_PART 10
#define LASTS	  3
/* A report about fewer datagrams says nothing of the path. */
#define LEAST 16
/* In an interval with so many datagrams a report is expected. */
#define TALK 64
/* Open: what is left of the rate at which datagrams came, and the least, in kbit/s. */
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

/* After a rest an interval begins. */
static void wake(struct siw_uc *uc, uint64_t now_ns)
{
	struct siw_breaker *b = &uc->breaker;

	if (!b->rests)
		return;
	b->rests = b->sends = b->heard = false;
	siw_verbs_timed_at(uc->wq.qp.ctx, &uc->wq.timed, now_ns + SECOND_NS);
}

/* Cuts the rate. octets: that came, in so many nanoseconds. */
static void open_up(struct siw_uc *uc, uint64_t now_ns, uint64_t octets, uint64_t ns)
{
	struct siw_breaker *b = &uc->breaker;
	uint64_t kbits = octets * 8 * 1000000 / (ns ? ns : 1) / CUT_PART;

	b->bad = b->mute = 0;
	b->kbits = kbits < LEAST_KBITS	? LEAST_KBITS
		   : kbits < UINT32_MAX ? (uint32_t)kbits
					: UINT32_MAX;
	b->until_ns = now_ns + OPEN_NS;
	if (!b->open)
		siw_verbs_async_raise(&uc->wq.qp.async, SIW_EVENT_CONGESTED);
	b->open = true;
	wake(uc, now_ns); /* a late report may open it */
	siw_qp_breaker_pace(uc);
}

/* Whether what it says can be: not more than was sent, and not less than it said before. */
static bool is_possible(const struct siw_ddp_uc_report *last, const struct siw_ddp_uc_report *told,
			uint32_t sent)
{
	uint32_t span = told->next - last->next;

	return span <= sent - last->next && told->datagrams >= last->datagrams &&
	       told->datagrams - last->datagrams <= span && told->octets >= last->octets &&
	       told->octets - last->octets <= (uint64_t)span * UINT16_MAX;
}

/* send_lock held, as for silence(). */
static void judge(struct siw_uc *uc, const struct siw_ddp_uc_report *told, uint64_t now_ns)
{
	struct siw_breaker *b = &uc->breaker;
	const struct siw_ddp_uc_report last = b->last;
	uint32_t span = told->next - last.next, in, sent;
	uint64_t ns = now_ns - b->last_ns;

	siw_ddp_uc_numbers(uc->ddp, &in, &sent);
	if (!is_possible(&last, told, sent))
		return;
	b->heard = true;
	if (!b->known) {
		siw_llp_sock_timed(uc->sock);
		siw_verbs_timed_at(uc->wq.qp.ctx, &uc->wq.timed, now_ns + SECOND_NS);
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
		open_up(uc, now_ns, told->octets - last.octets, ns);
}

/* An interval is over: whether the peer, which can report, did not although it was sent a lot. */
static void silence(struct siw_uc *uc, uint64_t now_ns)
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
		open_up(uc, now_ns, 0, 1);
}

void siw_qp_breaker_look(struct siw_uc *uc)
{
	struct siw_ddp_uc_report told;
	bool due = siw_ddp_uc_report_due(uc->ddp);
	bool heard = siw_ddp_uc_report_heard(uc->ddp, &told);

	if (__builtin_expect(!due && !heard && !uc->breaker.rests, 1))
		return;
	siw_lock(&uc->wq.qp.send_lock);
	if (uc->breaker.sends)
		wake(uc, siw_now_ns());
	if (due && uc->wq.qp.state >= SIW_QPS_RTR && uc->wq.qp.state <= SIW_QPS_SQE)
		siw_ddp_uc_report_send(uc->ddp);
	if (heard && uc->wq.qp.state >= SIW_QPS_RTS && uc->wq.qp.state <= SIW_QPS_SQE)
		judge(uc, &told, siw_now_ns());
	siw_unlock(&uc->wq.qp.send_lock);
}

void siw_qp_breaker_tick(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_uc *uc = siw_container(timed, struct siw_uc, wq.timed);
	struct siw_breaker *b = &uc->breaker;
	bool closes = b->open && now_ns >= b->until_ns;

	siw_lock(&uc->wq.qp.send_lock);
	silence(uc, now_ns);
	if (closes && now_ns >= b->until_ns) {
		b->open = false;
		b->bad = 0;
		siw_qp_breaker_pace(uc);
	}
	siw_unlock(&uc->wq.qp.send_lock);
	if (closes)
		siw_qp_wake(&uc->wq);
	if (b->rests)
		siw_verbs_timed_del(uc->wq.qp.ctx, timed);
	else
		siw_verbs_timed_at(uc->wq.qp.ctx, timed, now_ns + SECOND_NS);
}
