/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/trace.c - see trace.h. */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/trace.h"

_Atomic uint8_t siw_trace_levels[SIW_TRACE_N];

static const char *const layer_names[] = {
#define X(layer) #layer,
	SIW_TRACE_LAYERS(X)
#undef X
};

static const char *const level_names[] = { "off", "error", "warn", "info", "debug" };
#define N_LEVELS ((int)(sizeof(level_names) / sizeof(level_names[0])))

static void write_log_line(const char *head, const char *fmt, va_list ap)
{
	int saved = errno, cancel;
	char line[512];
	int n = snprintf(line, sizeof(line) - 1, "%s", head);
	int m = vsnprintf(line + n, sizeof(line) - 1 - (size_t)n, fmt, ap);

	if (m > 0)
		n += m;
	if (n > (int)sizeof(line) - 2)
		n = (int)sizeof(line) - 2;
	line[n++] = '\n';
	/* A log line that cannot be written is lost, without an error. */
	cancel = siw_cancel_disable();
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		errno = saved;
	siw_cancel_restore(cancel);
	errno = saved;
}

void siw_trace_write(enum siw_trace_layer layer, enum siw_log_level level, const char *fmt, ...)
{
	uint64_t us = siw_now_ns() / 1000;
	char head[80];
	va_list ap;

	snprintf(head, sizeof(head), "siwarp[%d] %llu.%06u %s %s: ", (int)getpid(),
		 (unsigned long long)(us / 1000000), (unsigned)(us % 1000000), layer_names[layer],
		 level_names[level]);
	va_start(ap, fmt);
	write_log_line(head, fmt, ap);
	va_end(ap);
}

void siw_log_warn_user(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	write_log_line("siwarp: ", fmt, ap);
	va_end(ap);
}

void siw_trace_set_all_levels(int level)
{
	for (int i = 0; i < SIW_TRACE_N; i++)
		atomic_store_explicit(&siw_trace_levels[i], (uint8_t)level, memory_order_relaxed);
}

/* Returns the index of the word, of len octets, in the array of n names, or -1. */
static int trace_find_index_of_name(const char *const *names, int n, const char *word, size_t len)
{
	for (int i = 0; i < n; i++)
		if (strlen(names[i]) == len && memcmp(names[i], word, len) == 0)
			return i;
	return -1;
}

static int parse_level(const char *word, size_t len)
{
	if (len == 1 && word[0] >= '0' && word[0] < '0' + N_LEVELS)
		return word[0] - '0';
	return trace_find_index_of_name(level_names, N_LEVELS, word, len);
}

int siw_trace_parse_levels(const char *text)
{
	int level[SIW_TRACE_N];
	int all = 0;

	for (int i = 0; i < SIW_TRACE_N; i++)
		level[i] = -1;
	for (;;) {
		size_t len = strcspn(text, ",");
		const char *eq = memchr(text, '=', len);
		const char *word = eq ? eq + 1 : text;
		int v = parse_level(word, len - (size_t)(word - text));
		int layer = eq ? trace_find_index_of_name(layer_names, SIW_TRACE_N, text,
							  (size_t)(eq - text))
			       : 0;

		if (v < 0 || layer < 0)
			return -EINVAL;
		*(eq ? &level[layer] : &all) = v;
		if (!text[len])
			break;
		text += len + 1;
	}
	for (int i = 0; i < SIW_TRACE_N; i++)
		atomic_store_explicit(&siw_trace_levels[i],
				      (uint8_t)(level[i] < 0 ? all : level[i]),
				      memory_order_relaxed);
	return all;
}

int siw_trace_level_of_layer(const char *layer)
{
	int i = trace_find_index_of_name(layer_names, SIW_TRACE_N, layer, strlen(layer));

	return i < 0 ? -EINVAL : atomic_load_explicit(&siw_trace_levels[i], memory_order_relaxed);
}

int siw_trace_log_text_for_tests(const char *layer, int level, const char *text)
{
	/*
	 * siw_log() accepts bare names, not values, so every pair of layer and level needs a
	 * separate call.
	 */
#define LEVELS(l)                                      \
	if (strcmp(layer, #l) == 0) {                  \
		switch (level) {                       \
		case SIW_LOG_error:                    \
			siw_log(l, error, "%s", text); \
			return 0;                      \
		case SIW_LOG_warn:                     \
			siw_log(l, warn, "%s", text);  \
			return 0;                      \
		case SIW_LOG_info:                     \
			siw_log(l, info, "%s", text);  \
			return 0;                      \
		case SIW_LOG_debug:                    \
			siw_log(l, debug, "%s", text); \
			return 0;                      \
		}                                      \
	}
	SIW_TRACE_LAYERS(LEVELS)
#undef LEVELS
	return -EINVAL;
}
