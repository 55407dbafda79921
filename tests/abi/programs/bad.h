/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Helpers for calls that must fail: every unexpected result is printed. */
#ifndef ABI_TEST_BAD_H
#define ABI_TEST_BAD_H

#include "common.h"

static int failures, rows;
static const char *which;

static void check_result(int line, const char *call, long got, long wanted)
{
	rows++;
	if (got == wanted)
		return;
	failures++;
	fprintf(stderr, "line %d: %s with %s: %ld, not %ld (errno %d)\n", line, call, which, got,
		wanted, errno);
}

/*
 * Check a call that returns an errno value (ERRNO), -1 with errno (MINUS), or NULL with errno
 * (NONE).
 */
#define ERRNO(wanted, call)                                      \
	do {                                                     \
		errno = 0;                                       \
		check_result(__LINE__, #call, (call), (wanted)); \
	} while (0)
#define MINUS(wanted, call)                                                         \
	do {                                                                        \
		errno = 0;                                                          \
		check_result(__LINE__, #call, (call) == -1 ? errno : -2, (wanted)); \
	} while (0)
#define NONE(wanted, call)                                                            \
	do {                                                                          \
		errno = 0;                                                            \
		check_result(__LINE__, #call, (call) == NULL ? errno : -2, (wanted)); \
	} while (0)

static char memory[SIZE] __attribute__((aligned(64)));

/* Returns the exit code of the program. */
static inline int refused_at_least(int calls)
{
	printf("%d calls refused\n", rows);
	return failures || rows < calls;
}

#endif
