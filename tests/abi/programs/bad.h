/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Calls that must be refused: each is tried, and all that are not as they should be are printed. */
#ifndef ABI_TEST_BAD_H
#define ABI_TEST_BAD_H

#include "common.h"

static int failures, rows;
static const char *which;

static void expect(int line, const char *call, long got, long wanted)
{
	rows++;
	if (got == wanted)
		return;
	failures++;
	fprintf(stderr, "line %d: %s with %s: %ld, not %ld (errno %d)\n", line, call, which, got,
		wanted, errno);
}

/* A call that returns an errno value; -1 with errno; or NULL with errno. */
#define ERRNO(wanted, call)                                \
	do {                                               \
		errno = 0;                                 \
		expect(__LINE__, #call, (call), (wanted)); \
	} while (0)
#define MINUS(wanted, call)                                                   \
	do {                                                                  \
		errno = 0;                                                    \
		expect(__LINE__, #call, (call) == -1 ? errno : -2, (wanted)); \
	} while (0)
#define NONE(wanted, call)                                                      \
	do {                                                                    \
		errno = 0;                                                      \
		expect(__LINE__, #call, (call) == NULL ? errno : -2, (wanted)); \
	} while (0)

static char memory[SIZE] __attribute__((aligned(64)));

/* The program's exit code. */
static inline int refused_at_least(int calls)
{
	printf("%d calls refused\n", rows);
	return failures || rows < calls;
}

#endif
