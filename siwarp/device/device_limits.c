/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Limits on the number of objects per device. */
#include "device/device_impl.h"

bool siw_device_count_up(_Atomic uint32_t *count, uint32_t max)
{
	if (atomic_fetch_add(count, 1) < max)
		return true;
	atomic_fetch_sub(count, 1);
	return false;
}

int siw_device_refuse_full(const char *limit, uint32_t max)
{
	return siw_refuse(DEVICE_FULL, siw_reason_text(limit), max);
}
