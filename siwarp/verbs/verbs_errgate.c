/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How many error messages leave: so many a second in all, and of those so many to one source (settings
 * err_rate and err_source_rate), and so many at once. Whoever forges a victim's address brings no more
 * than that upon it. Sources are counted in a table of fixed size, by place as listeners count theirs
 * (verbs_gate.h): two that share a place share its limit.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/random.h>

#include "base/clock.h"
#include "verbs/verbs_gate.h"
#include "verbs/verbs_impl.h"

#define SECOND 1000000000u

/*
 * A bucket as the time at which it will be empty again: each message moves that on by a second's part,
 * and it is full when that is a second ahead.
 */
struct siw_errgate {
	uint64_t key;
	uint64_t all_ns;
	uint64_t source_ns[1 << SIW_GATE_BITS];
};

static struct siw_errgate *make(void)
{
	struct siw_errgate *gate = calloc(1, sizeof(*gate));

	if (!gate)
		return NULL;
	/* An early boot's failure is no matter: the limit in all does not depend on it. */
	if (getrandom(&gate->key, sizeof(gate->key), GRND_NONBLOCK) < 0)
		gate->key = (uintptr_t)gate;
	gate->key |= 1;
	return gate;
}

/* When the bucket would be empty again after one more, or 0: it is full. */
static uint64_t fill(uint64_t empty_ns, uint64_t now_ns, int64_t rate)
{
	if (!rate)
		return 0;
	if (empty_ns < now_ns)
		empty_ns = now_ns;
	empty_ns += SECOND / (uint64_t)rate;
	return empty_ns - now_ns > SECOND ? 0 : empty_ns;
}

bool siw_verbs_errgate_pass(struct siw_context *ctx, const struct siw_addr *to)
{
	const struct siw_settings *set = siw_settings();
	uint64_t now = siw_now_ns(), all, one, *place;

	if (!ctx->errgate)
		ctx->errgate = make();
	if (!ctx->errgate)
		return false;
	place = &ctx->errgate->source_ns[siw_verbs_gate_place(ctx->errgate->key, to)];
	all = fill(ctx->errgate->all_ns, now, set->err_rate);
	one = fill(*place, now, set->err_source_rate);
	if (!all || !one)
		return false;
	ctx->errgate->all_ns = all;
	*place = one;
	return true;
}
