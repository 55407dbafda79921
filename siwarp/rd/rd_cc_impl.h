/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* rd/rd_cc_impl.h - declarations shared by the congestion control files. */
#ifndef SIW_RD_CC_IMPL_H
#define SIW_RD_CC_IMPL_H

#include "rd/rd_cc.h"

#define MS	   1000000ull
#define SECOND	   1000000000ull
#define NO_LIMIT   UINT64_MAX
#define LOCAL_CWND (128u << 10)

/* The delivery rate measured over about one round trip (BBR draft, section 4.1.1). */
struct sample {
	uint64_t rate;	    /* delivery rate; 0: no rate could be measured */
	uint64_t delivered; /* octets delivered since the datagram was sent */
	uint64_t prior;	    /* octets delivered in total when the datagram was sent */
	uint64_t lost;	    /* octets lost since the datagram was sent */
	uint64_t in_flight; /* octets in flight when the datagram was sent */
	bool app_limited;
};

static inline uint64_t greater(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static inline uint64_t lesser(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Returns the octets sent in ns nanoseconds at this rate. */
static inline uint64_t octets_in(uint64_t rate, uint64_t ns)
{
	double octets = (double)rate * (double)ns / (double)SECOND;

	return octets < 1e15 ? (uint64_t)octets : (uint64_t)1e15;
}

void siw_rd_cc_set_rate(struct siw_rd_cc *cc, uint64_t rate);

void siw_rd_cubic_init(struct siw_rd_cc *cc);
void siw_rd_cubic_handle_loss(struct siw_rd_cc *cc, uint64_t now, uint64_t sent_ns, bool ce);
void siw_rd_cubic_handle_ack(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack);
void siw_rd_cubic_handle_timeout(struct siw_rd_cc *cc, uint64_t now);

void siw_rd_bbr_init(struct siw_rd_cc *cc);
void siw_rd_bbr_handle_send_after_idle(struct siw_rd_cc *cc, uint64_t now, uint64_t in_flight);
void siw_rd_bbr_handle_loss(struct siw_rd_cc *cc, uint64_t now, const struct siw_rd_sent *sent,
			    uint32_t octets);
void siw_rd_bbr_handle_ack(struct siw_rd_cc *cc, const struct siw_rd_cc_ack *ack,
			   const struct sample *sample);
void siw_rd_bbr_handle_timeout(struct siw_rd_cc *cc, uint64_t now);

#endif
