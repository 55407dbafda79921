/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * qp/qp_admission.h - how many connections a listener has pending, in all and by source, and
 * whether one more may come in (RFC 5042 section 6.4.1: nobody may take all of what others need
 * too).
 *
 * Pending is in MPA start-up (settings max_startups) or started up and not taken by the program
 * (max_requests bounds both together). Sources are IPv4 addresses and IPv6 /64 prefixes, counted in
 * a table of fixed size under a secret hash: two that share a place there share its share of the
 * limits, and nobody can know who shares with whom. Under the progress lock.
 */
#ifndef SIW_VERBS_GATE_H
#define SIW_VERBS_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include <siwarp/types.h>

#define SIW_ADMISSION_BITS 10

struct siw_admission_count {
	uint32_t starting, requests;
};

struct siw_admission {
	bool shut; /* the listener is held until there is room */
	uint64_t key;
	struct siw_admission_count max, max_source, all;
	struct siw_admission_count source[1 << SIW_ADMISSION_BITS];
};

enum siw_admission_place {
	SIW_ADMISSION_NOWHERE, /* not counted */
	SIW_ADMISSION_STARTING,
	SIW_ADMISSION_REQUEST,
};

/* Limits are taken from the settings. NULL: no memory. */
struct siw_admission *siw_qp_admission_new(void);
/* Whether one more may be accepted. */
bool siw_qp_admission_has_room(const struct siw_admission *admission);
/*
 * The place of an IPv4 address or an IPv6 /64 in a table of 1 << SIW_ADMISSION_BITS, by a secret
 * odd key: two may share one, and nobody can know who does with whom.
 */
uint32_t siw_qp_admission_place(uint64_t key, const struct siw_addr *addr);
/* Where a source is counted. */
uint32_t siw_qp_admission_source(const struct siw_admission *admission,
				 const struct siw_addr *addr);
/* Whether this source's share has room for one more. */
bool siw_qp_admission_fair(const struct siw_admission *admission, uint32_t source);
/* A connection of this source goes from one place to another. */
void siw_qp_admission_move(struct siw_admission *admission, uint32_t source,
			   enum siw_admission_place from, enum siw_admission_place to);

#endif
