/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rate limit of error messages: settings err_rate for all and err_source_rate for one source, with
 * bursts of one second's worth. A forged source address thus draws little traffic to its victim.
 * Sources are counted in a table of fixed size, as qp_admission.h does: two sources with the same
 * entry share its limit.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "qp/qp_admission.h"
#include "qp/qp_impl.h"

#define SECOND 1000000000u

/*
 * A token bucket, as the time at which it will be empty. Each message moves this time forward by
 * 1/rate second; the bucket is full when it is a second ahead.
 */
struct siw_err_limit {
	uint64_t key;
	uint64_t all_ns;
	uint64_t source_ns[1 << SIW_ADMISSION_BITS];
};

static struct siw_err_limit *make(void)
{
	struct siw_err_limit *limit = calloc(1, sizeof(*limit));

	if (!limit)
		return NULL;
	/*
	 * No random numbers at early boot: harmless, since the limit for all does not depend on the
	 * key.
	 */
	if (siw_getrandom(&limit->key, sizeof(limit->key), GRND_NONBLOCK) < 0)
		limit->key = (uintptr_t)limit;
	limit->key |= 1;
	return limit;
}

/* The time at which the bucket is empty after one more message; 0: it is full. */
static uint64_t fill(uint64_t empty_ns, uint64_t now_ns, int64_t rate)
{
	if (!rate)
		return 0;
	if (empty_ns < now_ns)
		empty_ns = now_ns;
	empty_ns += SECOND / (uint64_t)rate;
	return empty_ns - now_ns > SECOND ? 0 : empty_ns;
}

bool siw_qp_err_limit_admit(struct siw_context *ctx, const struct siw_addr *to)
{
	const struct siw_settings *set = siw_settings();
	uint64_t now = siw_now_ns(), all, one, *place;

	if (!ctx->err_limit)
		ctx->err_limit = make();
	if (!ctx->err_limit)
		return false;
	place = &ctx->err_limit->source_ns[siw_qp_admission_place(ctx->err_limit->key, to)];
	all = fill(ctx->err_limit->all_ns, now, set->err_rate);
	one = fill(*place, now, set->err_source_rate);
	if (!all || !one)
		return false;
	ctx->err_limit->all_ns = all;
	*place = one;
	return true;
}
