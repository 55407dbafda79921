/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/settings.c - see settings.h. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "base/settings.h"
#include "base/trace.h"

extern char **environ;

#define ENV_PREFIX "SIWARP_"

static struct siw_settings values = {
#define X(field, env, option, def, min, max, help) .field = (def),
	SIW_SETTINGS(X)
#undef X
		.pauses = 1,
};

static const struct setting {
	const char *name, *env, *option, *help;
	int64_t def, min, max;
	_Atomic int64_t *value;
} table[] = {
#define X(field, env, option, def, min, max, help) \
	{ #field, env, option, help, def, min, max, &values.field },
	SIW_SETTINGS(X)
#undef X
};
#define N_SETTINGS ((int)(sizeof(table) / sizeof(table[0])))

/* Settings of earlier releases, and what to do instead of using them. */
static const struct {
	const char *env, *advice;
} former[] = {
	{ "SIWARP_COMPANY", "use SIWARP_BATCHING" },
	{ "SIWARP_COMPANY_US", "remove it, the pause is 200 microseconds" },
	{ "SIWARP_DEPUTIES_US", "remove it, the interval is 2000 microseconds" },
	{ "SIWARP_LINGER_OCTETS", "remove it, the limit is 256 MiB" },
	{ "SIWARP_PRIVATE_MESSAGES", "set private_messages in the attributes of the queue pair" },
	{ "SIWARP_PROGRESS", "use SIWARP_PROGRESS_THREAD" },
	{ "SIWARP_RD_DATAGRAM", "use SIWARP_RD_MAX_DATAGRAM" },
	{ "SIWARP_RD_FOLLOW", "use SIWARP_RD_FOLLOW_RESTART" },
	{ "SIWARP_RD_MEET_MS", "use SIWARP_RD_HANDSHAKE_TIMEOUT_MS" },
	{ "SIWARP_RD_OCTETS", "use SIWARP_RD_TOTAL_WINDOW" },
	{ "SIWARP_REC_TIMEOUT_MS", "use SIWARP_RECORD_TIMEOUT_MS" },
	{ "SIWARP_REC_WINDOW_US", "use SIWARP_RECORD_REORDER_US" },
	{ "SIWARP_STRICT", "use SIWARP_CRC_FIRST" },
};

/* The values of the environment variables SIWARP_CAPTURE and SIWARP_FAULTS, which are text. */
static const char *capture, *faults;
#define CAPTURE ENV_PREFIX "CAPTURE="
#define FAULTS	ENV_PREFIX "FAULTS="
/* The variable that selects a Python process's library; only siwarp/base/library.py reads it. */
#define SIMULATED ENV_PREFIX "SIM="

static const struct setting *setting_by_name(const char *name)
{
	for (int i = 0; name && i < N_SETTINGS; i++)
		if (strcmp(table[i].name, name) == 0)
			return &table[i];
	return NULL;
}

static bool is_log_setting(const struct setting *s)
{
	return s->value == &values.log;
}

static int store_setting_value(const struct setting *s, int64_t value);

/* Settings with values 0 to 2 that have names. */
static const struct named {
	const _Atomic int64_t *value;
	const char *names[3];
} named[] = {
	{ &values.persona, { "auto", "iwarp", "roce" } },
	{ &values.rd_cc, { "auto", "bbr", "cubic" } },
	{ &values.batching, { "auto", "never", "always" } },
	{ &values.error_policy, { "auto", "error", "message" } },
};

/* Returns the names of a setting's values, or NULL if they have none. */
static const char *const *names_of_setting_values(const struct setting *s)
{
	for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
		if (named[i].value == s->value)
			return named[i].names;
	return NULL;
}

static int store_setting_by_value_name(const struct setting *s, const char *text)
{
	const char *const *names = names_of_setting_values(s);

	for (int i = 0; names && i < 3; i++)
		if (strcmp(text, names[i]) == 0)
			return store_setting_value(s, i);
	return -EINVAL;
}

/*
 * Relaxed order suffices: no other data depends on a setting, and siw_settings() orders the first
 * read.
 */
static int store_setting_value(const struct setting *s, int64_t value)
{
	if (value < s->min || value > s->max)
		return -ERANGE;
	atomic_store_explicit(s->value, value, memory_order_relaxed);
	return 0;
}

static int store_setting_text(const struct setting *s, const char *text)
{
	const char *digits = text[0] == '-' ? text + 1 : text;
	int64_t value;

	if (is_log_setting(s)) {
		int level = siw_trace_parse_levels(text);

		return level < 0 ? level : store_setting_value(s, level);
	}
	/*
	 * Accepts digits only: strtoll() would also accept blanks, a plus sign and trailing text.
	 */
	if (store_setting_by_value_name(s, text) == 0)
		return 0;
	if (!digits[0] || digits[strspn(digits, "0123456789")])
		return -EINVAL;
	errno = 0;
	value = strtoll(text, NULL, 10);
	return errno ? -ERANGE : store_setting_value(s, value);
}

static const char *advice_for_former_variable(const char *var, size_t len)
{
	for (size_t i = 0; i < sizeof(former) / sizeof(former[0]); i++)
		if (strlen(former[i].env) == len && memcmp(former[i].env, var, len) == 0)
			return former[i].advice;
	return NULL;
}

const char *siw_settings_advice_for_former_name(const char *variable)
{
	return variable ? advice_for_former_variable(variable, strlen(variable)) : NULL;
}

static const struct setting *setting_by_env(const char *var, size_t len)
{
	for (int i = 0; i < N_SETTINGS; i++)
		if (strlen(table[i].env) == len && memcmp(table[i].env, var, len) == 0)
			return &table[i];
	return NULL;
}

/*
 * If the environment string var assigns the variable with this name, stores a copy of the
 * variable's value. Returns false for another variable.
 */
static bool store_value_of_variable(const char *var, const char *name, const char **value)
{
	size_t n = strlen(name);

	if (strncmp(var, name, n) != 0)
		return false;
	*value = var[n] ? strdup(var + n) : NULL;
	return true;
}

static void env_apply_variable(const char *var)
{
	size_t len = strcspn(var, "=");
	const struct setting *s = setting_by_env(var, len);
	const char *const *names = s ? names_of_setting_values(s) : NULL;

	if (store_value_of_variable(var, CAPTURE, &capture) ||
	    store_value_of_variable(var, FAULTS, &faults) ||
	    !strncmp(var, SIMULATED, strlen(SIMULATED)))
		return;
	if (!s && advice_for_former_variable(var, len))
		siw_log_warn_user("%.*s is ignored: %s", (int)len, var,
				  advice_for_former_variable(var, len));
	else if (!s)
		siw_log_warn_user("there is no setting %.*s; ignored", (int)len, var);
	else if (!var[len])
		return;
	else if (store_setting_text(s, var + len + 1) == 0)
		return;
	else if (is_log_setting(s))
		siw_log_warn_user("%s is not level[,layer=level]...; ignored", var);
	else if (names)
		siw_log_warn_user("%s is not %s, %s or %s; ignored", var, names[0], names[1],
				  names[2]);
	else
		siw_log_warn_user("%s is not a number from %lld to %lld; using %lld", var,
				  (long long)s->min, (long long)s->max, (long long)s->def);
}

/*
 * Returns the environment, or NULL for a program that runs with more privileges than the user who
 * started it (setuid, setgid, file capabilities). Such a program must ignore the user's
 * environment: SIWARP_CAPTURE would let the user write to any file.
 */
static char **trusted_environment_or_null(void)
{
	return getauxval(AT_SECURE) ? NULL : environ;
}

const char *siw_trusted_getenv(const char *name)
{
	return trusted_environment_or_null() ? getenv(name) : NULL;
}

static void settings_read_environment(void)
{
	for (char **e = trusted_environment_or_null(); e && *e; e++)
		if (strncmp(*e, ENV_PREFIX, strlen(ENV_PREFIX)) == 0)
			env_apply_variable(*e);
}

static void settings_init(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, settings_read_environment);
}

const struct siw_settings *siw_settings(void)
{
	settings_init();
	return &values;
}

const char *siw_setting_get_capture_path(void)
{
	settings_init();
	return capture;
}

const char *siw_setting_get_fault_plan(void)
{
	settings_init();
	return faults;
}

static const struct setting *setting_at(int i)
{
	return i >= 0 && i < N_SETTINGS ? &table[i] : NULL;
}

int siw_settings_count(void)
{
	return N_SETTINGS;
}

const char *siw_setting_name(int i)
{
	return setting_at(i) ? setting_at(i)->name : NULL;
}

const char *siw_setting_env(int i)
{
	return setting_at(i) ? setting_at(i)->env : NULL;
}

const char *siw_setting_option(int i)
{
	return setting_at(i) ? setting_at(i)->option : NULL;
}

const char *siw_setting_help(int i)
{
	return setting_at(i) ? setting_at(i)->help : NULL;
}

int64_t siw_setting_default(int i)
{
	return setting_at(i) ? setting_at(i)->def : -1;
}

int64_t siw_setting_min(int i)
{
	return setting_at(i) ? setting_at(i)->min : -1;
}

int64_t siw_setting_max(int i)
{
	return setting_at(i) ? setting_at(i)->max : -1;
}

int64_t siw_setting_value(int i)
{
	settings_init();
	return setting_at(i) ? atomic_load_explicit(setting_at(i)->value, memory_order_relaxed)
			     : -1;
}

int siw_setting_set(const char *name, int64_t value)
{
	const struct setting *s = setting_by_name(name);
	int rv;

	if (!s)
		return -ENOENT;
	settings_init();
	rv = store_setting_value(s, value);
	if (rv == 0 && is_log_setting(s))
		siw_trace_set_all_levels((int)value);
	return rv;
}

int siw_setting_set_text(const char *name, const char *text)
{
	const struct setting *s = setting_by_name(name);

	if (!s)
		return -ENOENT;
	settings_init();
	return store_setting_text(s, text);
}

void siw_settings_scale_pauses_for_tests(int64_t factor)
{
	atomic_store_explicit(&values.pauses, factor, memory_order_relaxed);
}
