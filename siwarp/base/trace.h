/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/trace.h - log lines for people on stderr about devices, streams and connections. Never
 * called per message; counters.h serves that purpose.
 *
 * SIWARP_LOG=level[,layer=level]... sets the levels, for example "warn,mpa=debug"; it is read with
 * the other settings (base/settings.h). By default nothing is logged.
 */
#ifndef SIW_BASE_TRACE_H
#define SIW_BASE_TRACE_H

#include <stdatomic.h>
#include <stdint.h>

/* X(layer) */
#define SIW_TRACE_LAYERS(X) X(base) X(llp) X(mpa) X(ddp) X(rdmap) X(verbs) X(cm)

enum siw_trace_layer {
#define X(layer) SIW_TRACE_##layer,
	SIW_TRACE_LAYERS(X)
#undef X
		SIW_TRACE_N
};

enum siw_log_level {
	SIW_LOG_off = 0,
	SIW_LOG_error = 1,
	SIW_LOG_warn = 2,
	SIW_LOG_info = 3,
	SIW_LOG_debug = 4,
};

/*
 * The log level of each layer. Stored by siw_trace_set_all_levels() and siw_trace_parse_levels(),
 * relaxed, because a level guards no data.
 */
extern _Atomic uint8_t siw_trace_levels[SIW_TRACE_N];

/*
 * siw_log(mpa, warn, "stream %u: %s", id, why): layer and level are bare names; the format has no
 * newline at the end. A disabled level costs one load and one branch, and no argument is evaluated.
 */
#define siw_log(layer, level, ...)                                                              \
	do {                                                                                    \
		if (__builtin_expect(atomic_load_explicit(&siw_trace_levels[SIW_TRACE_##layer], \
							  memory_order_relaxed) >=              \
					     SIW_LOG_##level,                                   \
				     0))                                                        \
			siw_trace_write(SIW_TRACE_##layer, SIW_LOG_##level, __VA_ARGS__);       \
	} while (0)

/*
 * Writes one line by a single write(2), so that lines of several threads do not mix. Preserves
 * errno.
 */
void siw_trace_write(enum siw_trace_layer layer, enum siw_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Writes a line to stderr regardless of the levels: for errors in the user's settings. */
void siw_log_warn_user(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* cffi: begin */

/* Sets the same level (0 off to 4 debug) for every layer. */
void siw_trace_set_all_levels(int level);

/*
 * Parses "level[,layer=level]...", where a level is a name or 0..4, and sets all layers. Returns
 * the level given without a layer's name (0 if there is none). -EINVAL: no such layer or level;
 * nothing is changed.
 */
int siw_trace_parse_levels(const char *text);

/* Returns the level of the layer called layer; -EINVAL if there is no such layer. */
int siw_trace_level_of_layer(const char *layer);

/*
 * For tests: writes one line for this layer and level through siw_log(). -EINVAL: no such layer or
 * level.
 */
int siw_trace_log_text_for_tests(const char *layer, int level, const char *text);

/* cffi: end */

#endif
