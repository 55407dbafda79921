/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/trace.h - lines for people on stderr: what happened to devices, streams and
 * connections. Never called per message; counters.h is there for that.
 *
 * SIWARP_LOG=level[,layer=level]... sets the levels, e.g. "warn,mpa=debug"; it is read
 * with the other settings (base/settings.h). Silent until then, and by default.
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

/* Stored by siw_trace_set() and siw_trace_parse(), relaxed: a level guards no other data. */
extern _Atomic uint8_t siw_trace_levels[SIW_TRACE_N];

/*
 * siw_log(mpa, warn, "stream %u: %s", id, why): layer and level by their bare names, no
 * newline at the end. While off it costs one load and one branch, and evaluates nothing.
 */
#define siw_log(layer, level, ...)                                                              \
	do {                                                                                    \
		if (__builtin_expect(atomic_load_explicit(&siw_trace_levels[SIW_TRACE_##layer], \
							  memory_order_relaxed) >=              \
					     SIW_LOG_##level,                                   \
				     0))                                                        \
			siw_trace_write(SIW_TRACE_##layer, SIW_LOG_##level, __VA_ARGS__);       \
	} while (0)

/* One line, in one write(2), so that lines of several threads do not mix. Keeps errno. */
void siw_trace_write(enum siw_trace_layer layer, enum siw_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* A line to stderr that no level silences: what is wrong with the user's settings. */
void siw_trace_warn_user(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* cffi: begin */

/* The same level (0 off to 4 debug) for every layer. */
void siw_trace_set(int level);

/*
 * Takes "level[,layer=level]..." where a level is a name or 0..4, and sets all layers.
 * Returns the level without a layer's name (0 if there is none). -EINVAL: no such layer or
 * level; then nothing is changed.
 */
int siw_trace_parse(const char *text);

/* The level of the layer of that name; -EINVAL if there is none such. */
int siw_trace_level(const char *layer);

/* For tests: one line of that layer and level through siw_log(). -EINVAL as above. */
int siw_trace_test_log(const char *layer, int level, const char *text);

/* cffi: end */

#endif
