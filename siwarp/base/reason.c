/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include <stddef.h>

#include "base/reason.h"

__thread struct siw_refusal siw_refusal __attribute__((tls_model("initial-exec")));

static const int errno_of[SIW_WHY_COUNT] = {
#define SIW_WHY(name, number, text) [SIW_WHY_##name] = number,
	SIW_REASONS(SIW_WHY)
#undef SIW_WHY
};

int siw_fail_call_with_reason(enum siw_reason_code why, const uint64_t number[SIW_WHY_NUMBERS])
{
	siw_refusal.why = why;
	for (int i = 0; i < SIW_WHY_NUMBERS; i++)
		siw_refusal.number[i] = number[i];
	return -errno_of[why];
}

int siw_refuse_with_errno(int err)
{
	for (int why = SIW_WHY_NO_MEMORY; why < SIW_WHY_SYSTEM; why++)
		if (errno_of[why] == -err)
			return siw_fail_call_with_reason(why,
							 (const uint64_t[SIW_WHY_NUMBERS]){ 0 });
	siw_refuse(SYSTEM, (uint64_t)-err);
	return err;
}

void *siw_refuse_and_return_null(int err)
{
	siw_refused(err);
	errno = -err;
	return NULL;
}
