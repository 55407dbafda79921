/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rate limit of error messages: setting err_rate for all destinations together and err_source_rate
 * for each source, with bursts of one second's worth. A forged source address thus directs little
 * traffic at its victim.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/source.h"
#include "qp/qp_impl.h"

struct siw_err_limit {
	uint64_t key;
	struct siw_source_buckets buckets;
};

static struct siw_err_limit *err_limit_alloc(void)
{
	struct siw_err_limit *limit = calloc(1, sizeof(*limit));

	if (limit)
		limit->key = siw_source_key();
	return limit;
}

bool siw_qp_err_limit_admit(struct siw_context *ctx, const struct siw_addr *to)
{
	const struct siw_settings *set = siw_settings();
	uint64_t all = (uint64_t)set->err_rate, one = (uint64_t)set->err_source_rate;

	if (!ctx->err_limit)
		ctx->err_limit = err_limit_alloc();
	if (!ctx->err_limit)
		return false;
	return siw_source_take(&ctx->err_limit->buckets, siw_source_index(ctx->err_limit->key, to),
			       &(struct siw_rate){ all, all }, &(struct siw_rate){ one, one },
			       siw_now_ns());
}
