/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shows which settings a setuid program accepts from the environment of the user that starts it:
 * opens a device and prints the settings in effect. The library is linked statically, because the
 * loader of a setuid program does not search a build directory for libraries.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <siwarp/siw.h>

#include "base/capture.h"
#include "base/counters.h"
#include "base/settings.h"

/* The leak checker uses ptrace, which the kernel forbids for a setuid process. */
const char *__lsan_default_options(void);
const char *__lsan_default_options(void)
{
	return "detect_leaks=0";
}

static const char *text_or_placeholder(const char *s)
{
	return s ? s : "none";
}

int main(void)
{
	struct siw_device **devices = siw_get_device_list(NULL);
	struct siw_context *context = devices && devices[0] ? siw_open_device(devices[0]) : NULL;

	if (!context)
		return 1;
	printf("secure %lu\n", getauxval(AT_SECURE));
	printf("crc %lld\n", (long long)siw_settings()->crc);
	printf("capture %s %d\n", text_or_placeholder(siw_setting_get_capture_path()),
	       siw_capture_on());
	printf("faults %s\n", text_or_placeholder(siw_setting_get_fault_plan()));
	printf("counters %s\n", text_or_placeholder(siw_counters_path()));
	siw_close_device(context);
	siw_free_device_list(devices);
	return 0;
}
