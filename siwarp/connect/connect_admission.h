/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * connect/connect_admission.h - counts a listener's pending connections, in total and per source,
 * and decides whether another connection is admitted (RFC 5042 section 6.4.1: a single party must
 * not exhaust a shared resource).
 *
 * A connection is pending while it is in MPA start-up (setting max_startups), and then until the
 * program reads its event (setting max_requests bounds both together). When the limit is reached, a
 * start-up that has not received its complete Request for a while is closed to admit a new
 * connection: the oldest start-up of the new connection's source if that source has used up its
 * share, otherwise the oldest of the source that has the most start-ups. Sources are defined in
 * base/source.h. By default loopback has no share limit: a test may open a thousand client
 * connections from there, and a local attacker can do more harm than use up the pending
 * connections. Setting source_share limits loopback, too.
 *
 * A listener and its pending connections are in one lane; all functions are called with the lock of
 * that lane held.
 */
#ifndef SIW_CONNECT_ADMISSION_H
#define SIW_CONNECT_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include <siwarp/types.h>

#include "base/source.h"

struct siw_admission_count {
	uint32_t starting, requests;
};

struct siw_admission {
	bool shut;	   /* the listener is paused until there is room */
	bool loopback_all; /* connections from loopback are limited only by max */
	uint64_t key;
	struct siw_admission_count max, max_source, all;
	struct siw_admission_count
		/* the last entry counts loopback connections, if they have no share limit */
		source[SIW_SOURCES + 1];
};

enum siw_admission_place {
	SIW_ADMISSION_NOWHERE, /* no admission count includes the connection */
	SIW_ADMISSION_STARTING,
	SIW_ADMISSION_REQUEST,
};

/*
 * Allocates the admission state of a listener, with the limits of the settings. Returns NULL if
 * there is no memory.
 */
struct siw_admission *siw_admission_new(void);
/* Returns whether the limits for all sources together admit another connection. */
bool siw_admission_has_room(const struct siw_admission *admission);
/* Returns the index of an address's source in the listener's table. */
uint32_t siw_admission_source_index_of_addr(const struct siw_admission *admission,
					    const struct siw_addr *addr);
/* Returns whether at least half of the admissible start-ups are in progress. */
bool siw_admission_is_half_full(const struct siw_admission *admission);
/* Returns whether the limits for this source admit another connection. */
bool siw_admission_source_has_room(const struct siw_admission *admission, uint32_t source);
/* Moves a connection of this source from one admission count to another. */
void siw_admission_move_count(struct siw_admission *admission, uint32_t source,
			      enum siw_admission_place from, enum siw_admission_place to);

#endif
