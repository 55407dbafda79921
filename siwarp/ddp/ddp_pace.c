/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "base/clock.h"
#include "ddp/ddp_pace.h"
#include "llp/llp.h"

/*
 * A sender that exceeds the rate is called again when the token bucket holds the tokens of WAKE_NS
 * nanoseconds, so that one system call can send several short datagrams.
 */
#define WAKE_NS 250000ull
/* octets = ns * kbit/s / NS_KBITS_PER_OCTET */
#define NS_KBITS_PER_OCTET 8000000ull

void siw_ddp_pace_set_rate_limit(struct siw_ddp_pace *pace, uint32_t kbits,
				 struct siw_llp_sock *timer)
{
	uint64_t now = siw_now_ns();

	if (kbits == pace->kbits && timer == pace->timer)
		return;
	if (kbits && pace->kbits && pace->paid_ns > now) {
		unsigned __int128 due = pace->paid_ns - now;

		due = due * pace->kbits / kbits;
		pace->paid_ns =
			now + (due < UINT32_MAX * 1000ull ? (uint64_t)due : UINT32_MAX * 1000ull);
	} else if (!pace->kbits) {
		pace->paid_ns = 0;
	}
	pace->kbits = kbits;
	pace->held = false;
	pace->timer = timer;
	if (kbits)
		siw_llp_sock_enable_timer(timer);
}

uint64_t siw_ddp_pace_compute_allowance(struct siw_ddp_pace *pace)
{
	uint64_t now = siw_now_ns(), room;

	if (pace->paid_ns + SIW_DDP_BURST_NS < now)
		pace->paid_ns = now - SIW_DDP_BURST_NS;
	pace->held = pace->paid_ns >= now;
	if (pace->held) {
		siw_llp_sock_set_timer(pace->timer, pace->paid_ns + WAKE_NS);
		return 0;
	}
	room = (now - pace->paid_ns) * pace->kbits / NS_KBITS_PER_OCTET;
	return room ? room : 1;
}

void siw_ddp_pace_charge_octets(struct siw_ddp_pace *pace, uint64_t octets)
{
	/*
	 * The time is rounded up, so that a stream of very short datagrams does not exceed the
	 * rate.
	 */
	pace->paid_ns += (octets * NS_KBITS_PER_OCTET + pace->kbits - 1) / pace->kbits;
}
