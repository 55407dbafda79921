/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Helpers that check calls that must fail, and print every unexpected result. */
#ifndef ABI_TEST_BAD_H
#define ABI_TEST_BAD_H

#include "common.h"

static int failures, rows;
static const char *which;

static void check_call_result(int line, const char *call, long got, long wanted)
{
	rows++;
	if (got == wanted)
		return;
	failures++;
	fprintf(stderr, "line %d: %s with %s: %ld, not %ld (errno %d)\n", line, call, which, got,
		wanted, errno);
}

/*
 * Check that a call fails by returning an errno value (ERRNO), by returning -1 and setting errno
 * (MINUS), or by returning NULL and setting errno (NONE).
 */
#define ERRNO(wanted, call)                                           \
	do {                                                          \
		errno = 0;                                            \
		check_call_result(__LINE__, #call, (call), (wanted)); \
	} while (0)
#define MINUS(wanted, call)                                                              \
	do {                                                                             \
		errno = 0;                                                               \
		check_call_result(__LINE__, #call, (call) == -1 ? errno : -2, (wanted)); \
	} while (0)
#define NONE(wanted, call)                                                                 \
	do {                                                                               \
		errno = 0;                                                                 \
		check_call_result(__LINE__, #call, (call) == NULL ? errno : -2, (wanted)); \
	} while (0)

static char memory[SIZE] __attribute__((aligned(64)));

/*
 * Returns the program's exit code: 0 if all of at least `calls` checked calls failed as expected.
 *
 */
static inline int exit_code_of_refusals(int calls)
{
	printf("%d calls refused\n", rows);
	return failures || rows < calls;
}

#endif
