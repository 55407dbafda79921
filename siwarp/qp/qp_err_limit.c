/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How many error messages leave: so many a second in all, and of those so many to one source
 * (settings err_rate and err_source_rate), and so many at once. Whoever forges a victim's address
 * brings no more than that upon it. Sources are counted in a table of fixed size, by place as
 * listeners count theirs (qp_admission.h): two that share a place share its limit.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/random.h>

#include "base/clock.h"
#include "qp/qp_admission.h"
#include "qp/qp_impl.h"

#define SECOND 1000000000u

/*
 * A bucket as the time at which it will be empty again: each message moves that on by a second's
 * part, and it is full when that is a second ahead.
 */
struct siw_err_limit {
	uint64_t key;
	uint64_t all_ns;
	uint64_t source_ns[1 << SIW_ADMISSION_BITS];
};

static struct siw_err_limit *make(void)
{
	struct siw_err_limit *admission = calloc(1, sizeof(*admission));

	if (!admission)
		return NULL;
	/* An early boot's failure is no matter: the limit in all does not depend on it. */
	if (getrandom(&admission->key, sizeof(admission->key), GRND_NONBLOCK) < 0)
		admission->key = (uintptr_t)admission;
	admission->key |= 1;
	return admission;
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
