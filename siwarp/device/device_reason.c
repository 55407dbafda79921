/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The text that explains why this thread's last call was refused, from the table in base/reason.h.
 * The text is formatted only on request.
 */
#include <stdio.h>
#include <string.h>

#include <siwarp/siw_ext.h>

#include "base/reason.h"
#include "base/settings.h"
#include "base/trace.h"

static const char *const text_of[SIW_WHY_COUNT] = {
#define SIW_WHY(name, number, text) [SIW_WHY_##name] = text,
	"", SIW_REASONS(SIW_WHY)
#undef SIW_WHY
};

static const char *const name_of[SIW_WHY_COUNT] = {
#define SIW_WHY(name, number, text) [SIW_WHY_##name] = #name,
	"", SIW_REASONS(SIW_WHY)
#undef SIW_WHY
};

struct bit_name {
	int bit;
	const char *name;
};

static const char *const states[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
#define N_STATES (sizeof(states) / sizeof(states[0]))

static const struct bit_name attributes[] = {
	{ SIW_QP_STATE, "STATE" },
	{ SIW_QP_CUR_STATE, "CUR_STATE" },
	{ SIW_QP_EN_SQD_ASYNC_NOTIFY, "EN_SQD_ASYNC_NOTIFY" },
	{ SIW_QP_ACCESS_FLAGS, "ACCESS_FLAGS" },
	{ SIW_QP_QKEY, "QKEY" },
	{ SIW_QP_AV, "AV" },
	{ SIW_QP_PATH_MTU, "PATH_MTU" },
	{ SIW_QP_RNR_RETRY, "RNR_RETRY" },
	{ SIW_QP_RQ_PSN, "RQ_PSN" },
	{ SIW_QP_MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC" },
	{ SIW_QP_MIN_RNR_TIMER, "MIN_RNR_TIMER" },
	{ SIW_QP_SQ_PSN, "SQ_PSN" },
	{ SIW_QP_MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC" },
	{ SIW_QP_DEST_QPN, "DEST_QPN" },
	{ SIW_QP_RATE_LIMIT, "RATE_LIMIT" },
	{ SIW_QP_FD, "FD" },
};

/* ---- appending text to a bounded buffer ------------------------------------------------------ */

struct out {
	char text[512];
	size_t n;
};

static void reason_append(struct out *out, const char *text, size_t length)
{
	size_t room = sizeof(out->text) - 1 - out->n;

	if (length > room)
		length = room;
	memcpy(out->text + out->n, text, length);
	out->n += length;
	out->text[out->n] = '\0';
}

static void append_text(struct out *out, const char *text)
{
	reason_append(out, text, strlen(text));
}

static void append_decimal(struct out *out, uint64_t number)
{
	char digits[24];

	reason_append(out, digits,
		      (size_t)snprintf(digits, sizeof(digits), "%lld", (long long)number));
}

/* Bit sets are 32 bits wide, but their sign may have been extended. */
static void append_hex(struct out *out, uint64_t number)
{
	char digits[24];

	reason_append(out, digits,
		      (size_t)snprintf(digits, sizeof(digits), "%#x", (unsigned int)number));
}

/* Appends the separator that precedes item i of a list of n items. */
static void append_separator(struct out *out, int i, int n, const char *last)
{
	if (i)
		append_text(out, i == n - 1 ? last : ", ");
}

static const char *qp_state_name(uint64_t state)
{
	return state < N_STATES ? states[state] : "no state";
}

static void append_state_names(struct out *out, uint64_t set)
{
	int n = __builtin_popcountll(set), i = 0;

	for (uint64_t state = 0; state < N_STATES; state++) {
		if (!(set >> state & 1))
			continue;
		append_separator(out, i++, n, " or ");
		append_text(out, states[state]);
	}
}

static void append_text_of_state_transitions(struct out *out, uint64_t set)
{
	int n = __builtin_popcountll(set), i = 0;

	for (uint64_t bit = 0; bit < 64; bit++) {
		if (!(set >> bit & 1))
			continue;
		append_separator(out, i++, n, ", ");
		append_text(out, qp_state_name(bit / 8));
		if (bit / 8 == bit % 8)
			continue;
		append_text(out, " to ");
		append_text(out, qp_state_name(bit % 8));
	}
}

static void append_attribute_names(struct out *out, uint64_t set)
{
	int i = 0;

	for (size_t k = 0; k < sizeof(attributes) / sizeof(attributes[0]); k++) {
		if (!(set & (uint64_t)attributes[k].bit))
			continue;
		append_separator(out, i++, 0, "");
		append_text(out, attributes[k].name);
	}
}

static const char *qp_type_name(uint64_t type)
{
	switch (type) {
	case SIW_QPT_RC:
		return "RC";
	case SIW_QPT_UC:
		return "UC";
	case SIW_QPT_UD:
		return "UD";
	default:
		return "RD";
	}
}

static void append_errno_text(struct out *out, uint64_t number)
{
	char text[96] = "";

#ifdef __GLIBC__ /* glibc's strerror_r() may return a string that is not in text[] */
	append_text(out, strerror_r((int)number, text, sizeof(text)));
#else
	if (strerror_r((int)number, text, sizeof(text)))
		text[sizeof(text) - 1] = '\0';
	append_text(out, text);
#endif
}

/*
 * Appends one number of the reason text. kind: the format name between the colon and the closing
 * brace.
 */
static void append_formatted_number(struct out *out, const char *kind, uint64_t number)
{
	if (!strncmp(kind, "text}", 5))
		append_text(out, (const char *)(uintptr_t)number);
	else if (!strncmp(kind, "hex}", 4))
		append_hex(out, number);
	else if (!strncmp(kind, "state}", 6))
		append_text(out, qp_state_name(number));
	else if (!strncmp(kind, "states}", 7))
		append_state_names(out, number);
	else if (!strncmp(kind, "steps}", 6))
		append_text_of_state_transitions(out, number);
	else if (!strncmp(kind, "attrs}", 6))
		append_attribute_names(out, number);
	else if (!strncmp(kind, "type}", 5))
		append_text(out, qp_type_name(number));
	else
		append_errno_text(out, number);
}

/* The text that siw_reason() returns, and that siw_reason_record() stores. */
static __thread struct out out;

const char *siw_reason(void)
{
	const char *format;

	if (siw_refusal.why == SIW_WHY_LIBRARY)
		return out.text;
	format = text_of[siw_refusal.why];
	out.n = 0;
	out.text[0] = '\0';
	while (*format) {
		size_t plain = strcspn(format, "{");

		reason_append(&out, format, plain);
		format += plain;
		if (!*format)
			break;
		if (format[2] == ':')
			append_formatted_number(&out, format + 3,
						siw_refusal.number[format[1] - '0']);
		else
			append_decimal(&out, siw_refusal.number[format[1] - '0']);
		format = strchr(format, '}') + 1;
	}
	return out.text;
}

const char *siw_reason_name(void)
{
	return siw_refusal.why == SIW_WHY_LIBRARY ? "LIBRARY" : name_of[siw_refusal.why];
}

void siw_reason_record(const char *text)
{
	siw_refusal.why = text ? SIW_WHY_LIBRARY : SIW_REASON_NONE;
	if (text)
		snprintf(out.text, sizeof(out.text), "%s", text);
}

void siw_log_refused_call(const char *call, int err, const char *reason)
{
	char text[96] = "";
	const char *name = text;

	siw_settings(); /* sets the log level, if the process has opened no device yet */
#ifdef __GLIBC__	/* glibc's strerror_r() may return another string than text */
	name = strerror_r(err, text, sizeof(text));
#else
	strerror_r(err, text, sizeof(text));
#endif
	siw_log(verbs, warn, "%s: %s: %s", call ? call : "refused", name,
		reason && *reason ? reason : "no reason is recorded");
}

int siw_reason_destroyed(void)
{
	return siw_refuse(DESTROYED);
}
