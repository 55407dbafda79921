/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_uc_report.c - a receiver's reports on the datagrams of an unreliable connection.
 *
 *   0            12          20          28         32         36         40
 *  +------------+-----------+-----------+----------+----------+----------+
 *  | LLP header | datagrams | octets    | next PSN | zero     | CRC32C   |
 *  +------------+-----------+-----------+----------+----------+----------+
 */
#include "base/addr.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/settings.h"
#include "ddp/ddp_uc_impl.h"

/*
 * Minimum number of received datagrams per report: 16 datagrams, even if empty, have more octets
 * than the report that answers them.
 */
#define LEAST	    16
#define INTERVAL_NS 1000000000ull
/*
 * Values of setting uc_breaker: never send reports, or send reports only to peers on other
 * machines. Greater values: always send reports.
 */
enum { NEVER, BEYOND };

struct report_wire {
	struct siw_dgram_wire head;
	uint64_t datagrams, octets;
	uint32_t next, zero;
} __attribute__((packed));
_Static_assert(sizeof(struct report_wire) + SIW_DGRAM_CRC_LEN == SIW_UC_REPORT, "figure 7.2");
_Static_assert(LEAST *(SIW_UC_TAGGED + SIW_DGRAM_CRC_LEN) > SIW_UC_REPORT, "no amplification");

void siw_ddp_uc_reset_receiver_reports(struct siw_ddp_uc *uc)
{
	int64_t breaker = siw_settings()->uc_breaker;

	uc->reports = (struct siw_uc_reports){
		.on = breaker > BEYOND || (breaker != NEVER && !siw_addr_is_loopback(&uc->peer)),
	};
}

bool siw_ddp_uc_are_receiver_reports_enabled(const struct siw_ddp_uc *uc)
{
	return uc->reports.on;
}

bool siw_ddp_uc_is_receiver_report_due(const struct siw_ddp_uc *uc)
{
	const struct siw_uc_reports *r = &uc->reports;

	return r->on && r->datagrams - r->reported_datagrams >= LEAST &&
	       (!r->reported_ns || siw_now_ns() - r->reported_ns >= INTERVAL_NS);
}

void siw_ddp_uc_send_receiver_report(struct siw_ddp_uc *uc)
{
	struct siw_uc_reports *r = &uc->reports;
	struct report_wire wire = {
		.head = { .type = siw_dgram_first(SIW_DGRAM_UC_REPORT),
			  .qkey = htobe32(uc->qkey),
			  .psn = htobe32(r->psn) },
		.datagrams = htobe64(r->datagrams),
		.octets = htobe64(r->octets),
		.next = htobe32(uc->rx.psn),
	};
	uint8_t crc[SIW_DGRAM_CRC_LEN];
	struct iovec iov[2] = { { &wire, sizeof(wire) }, { crc, sizeof(crc) } };

	siw_crc32c_put(crc, uc->crc ? siw_crc32c(0, &wire, sizeof(wire)) : 0);
	if (siw_llp_udp_send(uc->sock, &uc->peer, iov, 2))
		return;
	r->psn++;
	r->reported_datagrams = r->datagrams;
	r->reported_ns = siw_now_ns();
}

void siw_ddp_uc_store_receiver_report(struct siw_ddp_uc *uc, const uint8_t *datagram)
{
	struct report_wire wire;

	memcpy(&wire, datagram, sizeof(wire));
	uc->reports.report_unread = uc->reports.on;
	uc->reports.last = (struct siw_ddp_uc_report){
		.datagrams = be64toh(wire.datagrams),
		.octets = be64toh(wire.octets),
		.next = be32toh(wire.next),
	};
}

int siw_ddp_uc_take_receiver_report(struct siw_ddp_uc *uc, struct siw_ddp_uc_report *report)
{
	if (!uc->reports.report_unread)
		return 0;
	uc->reports.report_unread = false;
	*report = uc->reports.last;
	return 1;
}
