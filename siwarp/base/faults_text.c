/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/faults_text.c - parses and formats fault plans; faults.h describes the syntax. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/addr.h"
#include "base/faults.h"

#define NAME_MAX_ 16
#define WORD_MAX  80
#define MAX_BURST 1000000
#define MAX_TIME  (1000000 * 1000000000ull) /* maximum time in ns: a million seconds */
#define MAX_RATE  (1000000000000000ull)	    /* bit/s */

struct unit {
	const char *name;
	uint64_t value;
};

static const struct unit shares[] = { { "%", SIW_FAULTS_WHOLE / 100 }, { NULL, 0 } };
static const struct unit times[] = {
	{ "s", 1000000000 }, { "ms", 1000000 }, { "us", 1000 }, { "ns", 1 }, { NULL, 0 }
};
static const struct unit rates[] = {
	{ "Gbit", 1000000000 }, { "Mbit", 1000000 }, { "kbit", 1000 }, { "bit", 1 }, { NULL, 0 }
};
static const struct unit octets[] = { { "GB", 1000000000 }, { "MB", 1000000 },	{ "MiB", 1 << 20 },
				      { "KB", 1000 },	    { "KiB", 1 << 10 }, { "B", 1 },
				      { NULL, 0 } };

/* ---- the rules ------------------------------------------------------------------------------- */

enum form { SHARE, COUNT, TIME, RATE, LIMIT, BLACKOUT, RESET, PEER, SEED };

#define EVERYWHERE 0xff
#define AT(place)  (1 << SIW_FAULTS_##place)
#define MEMBER(m)  offsetof(struct siw_fault_clause, m)

/* The rules, in the order in which a clause is formatted. */
static const struct rule {
	const char *name;
	enum form form;
	size_t at;     /* SHARE, COUNT, TIME, RATE: offset of the value in siw_fault_clause */
	uint8_t where; /* set of 1 << enum siw_faults_place: where the rule can be carried out */
} rules[] = {
	{ "loss", SHARE, MEMBER(loss), EVERYWHERE },
	{ "burst", COUNT, MEMBER(burst), EVERYWHERE },
	{ "dup", SHARE, MEMBER(dup), EVERYWHERE & ~AT(INTERFACE) },
	{ "reorder", SHARE, MEMBER(reorder), EVERYWHERE & ~AT(INTERFACE) },
	{ "corrupt", SHARE, MEMBER(corrupt), EVERYWHERE },
	{ "mark", SHARE, MEMBER(mark), EVERYWHERE },
	{ "delay", TIME, MEMBER(delay), EVERYWHERE },
	{ "jitter", TIME, MEMBER(jitter), EVERYWHERE },
	{ "rate", RATE, MEMBER(rate), EVERYWHERE },
	{ "limit", LIMIT, 0, EVERYWHERE },
	{ "blackout", BLACKOUT, 0, EVERYWHERE },
	{ "reset", RESET, 0, AT(PROCESS) | AT(LINK) },
	{ "short", SHARE, MEMBER(partial), AT(PROCESS) | AT(LINK) },
	{ "peer", PEER, 0, EVERYWHERE },
	{ "seed", SEED, 0, EVERYWHERE },
};
#define N_RULES ((int)(sizeof(rules) / sizeof(rules[0])))

/* ---- reading --------------------------------------------------------------------------------- */

struct reader {
	const char *text, *at; /* the text of the plan, and the position of the parser in it */
	int clause;	       /* number of the current clause, from 1 */
	enum siw_faults_place place;
	char *why;
	size_t size;
};

static __attribute__((format(printf, 3, 4))) int parse_fail(struct reader *r, const char *where,
							    const char *fmt, ...)
{
	va_list args;
	int n = snprintf(r->why, r->size, "clause %d, character %d: ", r->clause,
			 (int)(where - r->text) + 1);

	va_start(args, fmt);
	if (n >= 0 && (size_t)n < r->size)
		vsnprintf(r->why + n, r->size - (size_t)n, fmt, args);
	va_end(args);
	return -EINVAL;
}

static void skip_blanks(struct reader *r)
{
	while (*r->at == ' ' || *r->at == '\t' || *r->at == '\n')
		r->at++;
}

/*
 * Copies the text up to the first character that is in stops, or to the end, into word. Returns 0
 * or -EINVAL.
 */
static int parse_word(struct reader *r, const char *stops, char *word, size_t size)
{
	size_t n = strcspn(r->at, stops);

	if (n >= size)
		return parse_fail(r, r->at, "\"%.20s...\" is too long", r->at);
	memcpy(word, r->at, n);
	word[n] = '\0';
	r->at += n;
	return 0;
}

/*
 * Parses digits[.digits]unit. A value that is not an integral multiple of the smallest unit is
 * refused (-EDOM).
 */
static int parse_number(const char *word, const struct unit *units, uint64_t most, uint64_t *out)
{
	const char *dot, *end = word;
	unsigned __int128 value = 0, scale = 1;
	size_t whole = strspn(word, "0123456789"), part = 0;

	if (!whole || whole > 19)
		return -EINVAL;
	for (; end < word + whole; end++)
		value = value * 10 + (unsigned)(*end - '0');
	dot = end;
	if (*dot == '.') {
		part = strspn(dot + 1, "0123456789");
		if (!part || part > 12)
			return -EINVAL;
		for (end = dot + 1; end <= dot + part; end++) {
			value = value * 10 + (unsigned)(*end - '0');
			scale *= 10;
		}
	}
	for (; units->name; units++)
		if (strcmp(units->name, end) == 0)
			break;
	if (!units->name)
		return -EINVAL;
	value *= units->value;
	if (value % scale)
		return -EDOM;
	value /= scale;
	if (value > most)
		return -ERANGE;
	*out = (uint64_t)value;
	return 0;
}

static int parse_count(const char *word, uint64_t most, uint64_t *out)
{
	static const struct unit plain[] = { { "", 1 }, { NULL, 0 } };

	return parse_number(word, plain, most, out);
}

static int parse_rule_number(struct reader *r, const char *at, const char *word,
			     const struct unit *units, uint64_t most, const char *expected,
			     uint64_t *out)
{
	switch (parse_number(word, units, most, out)) {
	case 0:
		return 0;
	case -EDOM:
		return parse_fail(r, at, "\"%s\" has more decimal places than supported", word);
	case -ERANGE:
		return parse_fail(r, at, "\"%s\" exceeds the maximum", word);
	default:
		return parse_fail(r, at, "\"%s\" is not %s", word, expected);
	}
}

static int parse_percentage(struct reader *r, const char *at, const char *word, uint32_t *out)
{
	uint64_t value = 0;
	int rv = parse_rule_number(r, at, word, shares, SIW_FAULTS_WHOLE,
				   "a percentage such as 1% or 0.05%", &value);

	*out = (uint32_t)value;
	return rv;
}

static int parse_time(struct reader *r, const char *at, const char *word, uint64_t *out)
{
	return parse_rule_number(r, at, word, times, MAX_TIME, "a time such as 2s, 0.1ms or 50us",
				 out);
}

static int parse_positive_number(struct reader *r, const char *at, const char *word, uint64_t most,
				 uint64_t *out)
{
	if (parse_count(word, most, out) == 0 && *out)
		return 0;
	return parse_fail(r, at, "\"%s\" is not a number from 1 to %llu", word,
			  (unsigned long long)most);
}

static int parse_limit(struct reader *r, const char *at, const char *word,
		       struct siw_fault_clause *c)
{
	c->limit_octets = parse_number(word, octets, UINT32_MAX, &c->limit) == 0;
	if ((c->limit_octets || parse_count(word, UINT32_MAX, &c->limit) == 0) && c->limit)
		return 0;
	return parse_fail(
		r, at, "\"%s\" is not a number of packets such as 100, or of octets such as 256KB",
		word);
}

static int parse_blackout(struct reader *r, const char *at, char *word, struct siw_fault_clause *c)
{
	char *sign = strchr(word, '@');

	if (!sign)
		return parse_fail(r, at, "\"%s\" is not of the form length@start, such as 2s@10s",
				  word);
	*sign = '\0';
	c->has_blackout = true;
	if (parse_time(r, at, word, &c->blackout_for) < 0)
		return -EINVAL;
	return parse_time(r, at + (sign + 1 - word), sign + 1, &c->blackout_at);
}

static int parse_reset_fault(struct reader *r, const char *at, const char *word,
			     struct siw_fault_clause *c)
{
	if (parse_number(word, octets, INT64_MAX, &c->reset_after) == 0 && c->reset_after)
		return 0;
	c->has_reset_at = parse_number(word, times, MAX_TIME, &c->reset_at) == 0;
	if (c->has_reset_at)
		return 0;
	return parse_fail(
		r, at, "\"%s\" is not a number of octets such as 1MB, or a time such as 5s", word);
}

/* Parses ADDR[/LEN][:PORT] or [ADDR][/LEN][:PORT]. IPv6 needs the brackets if there is a port. */
static int parse_peer(struct reader *r, const char *at, char *word, struct siw_fault_clause *c)
{
	char *addr = word, *rest, *slash, *colon;
	uint64_t number;
	int most;

	if (word[0] == '[') {
		addr++;
		rest = strchr(word, ']');
		if (!rest)
			return parse_fail(r, at, "\"%s\" has no closing bracket", word);
		*rest++ = '\0';
	} else {
		rest = word + strcspn(word, "/");
		colon = strchr(word, ':');
		if (colon && strchr(colon + 1, ':'))
			colon = NULL; /* the colons belong to an IPv6 address */
		else if (colon && colon < rest)
			rest = colon;
	}
	slash = *rest == '/' ? rest : NULL;
	colon = strchr(rest, ':');
	if ((*rest && !slash && colon != rest))
		return parse_fail(r, at, "\"%s\" is not an address such as 10.0.0.0/8:4791", word);
	if (slash)
		*slash = '\0';
	if (colon)
		*colon = '\0';
	if (siw_addr_parse(addr, 0, &c->peer) < 0)
		return parse_fail(r, at, "\"%s\" is not a numeric address", addr);
	most = c->peer.family == AF_INET ? 32 : 128;
	c->prefix = (uint8_t)most;
	if (slash) {
		if (parse_count(slash + 1, (uint64_t)most, &number) < 0)
			return parse_fail(r, at, "\"%s\" is not a prefix length up to %d",
					  slash + 1, most);
		c->prefix = (uint8_t)number;
	}
	if (colon) {
		if (parse_count(colon + 1, 65535, &number) < 0 || !number)
			return parse_fail(r, at, "\"%s\" is not a port from 1 to 65535", colon + 1);
		c->peer.port_be = htons((uint16_t)number);
	}
	return 0;
}

static int parse_rule_value(struct reader *r, const struct rule *rule, const char *at, char *word,
			    struct siw_fault_clause *c)
{
	void *member = (char *)c + rule->at;
	uint64_t value = 0;
	int rv = 0;

	switch (rule->form) {
	case SHARE:
		return parse_percentage(r, at, word, member);
	case COUNT:
		rv = parse_positive_number(r, at, word, MAX_BURST, &value);
		*(uint32_t *)member = (uint32_t)value;
		return rv;
	case TIME:
		return parse_time(r, at, word, member);
	case RATE:
		rv = parse_rule_number(r, at, word, rates, MAX_RATE,
				       "a rate such as 50Mbit or 1.5Gbit", member);
		return rv || c->rate
			       ? rv
			       : parse_fail(r, at, "a rate of 0: use blackout= or loss=100%%");
	case LIMIT:
		return parse_limit(r, at, word, c);
	case BLACKOUT:
		return parse_blackout(r, at, word, c);
	case RESET:
		return parse_reset_fault(r, at, word, c);
	case PEER:
		return parse_peer(r, at, word, c);
	case SEED:
		break;
	}
	if (parse_count(word, INT64_MAX, &c->seed) < 0)
		return parse_fail(r, at, "\"%s\" is not a number, as required for the seed", word);
	return 0;
}

static int refuse_unknown_rule(struct reader *r, const char *at, const char *name)
{
	char list[128] = "";

	for (int i = 0; i < N_RULES; i++) {
		size_t n = strlen(list);

		snprintf(list + n, sizeof(list) - n, "%s%s", i ? ", " : "", rules[i].name);
	}
	return parse_fail(r, at, "\"%s\" is not a fault; faults are %s", name, list);
}

/* Refuses a rule that the part of siwarp for which the plan is parsed cannot carry out. */
static int refuse_inapplicable_rule(struct reader *r, const char *at, const struct rule *rule)
{
	if (r->place == SIW_FAULTS_RELAY)
		return parse_fail(r, at,
				  "reset= and short= apply only to siwarp's own streams, but a "
				  "link carries packets: use loss= or blackout=");
	return parse_fail(r, at,
			  "%s= applies only to a link between two hosts, not to an interface: "
			  "use world.link or world.faults",
			  rule->name);
}

static int parse_rule(struct reader *r, struct siw_fault_clause *c, uint32_t *seen)
{
	char name[NAME_MAX_], word[WORD_MAX];
	const char *at;
	int i = 0;

	skip_blanks(r);
	at = r->at;
	if (parse_word(r, "=,; \t\n", name, sizeof(name)) < 0)
		return -EINVAL;
	if (!name[0])
		return parse_fail(r, at, "expected a fault such as loss=1%%");
	while (i < N_RULES && strcmp(rules[i].name, name) != 0)
		i++;
	if (i == N_RULES)
		return refuse_unknown_rule(r, at, name);
	if (*r->at != '=')
		return parse_fail(r, r->at, "expected = and a value after \"%s\"", name);
	if (!(rules[i].where & 1 << r->place))
		return refuse_inapplicable_rule(r, at, &rules[i]);
	if (*seen & 1u << i)
		return parse_fail(r, at,
				  "\"%s\" occurs twice in this clause; start another clause with ;",
				  name);
	*seen |= 1u << i;
	at = ++r->at;
	if (parse_word(r, ",; \t\n", word, sizeof(word)) < 0)
		return -EINVAL;
	return parse_rule_value(r, &rules[i], at, word, c);
}

static int parse_clause(struct reader *r, struct siw_fault_clause *c)
{
	uint32_t seen = 0;

	memset(c, 0, sizeof(*c));
	c->dirs = 1 << SIW_FAULT_TX | 1 << SIW_FAULT_RX;
	c->seed = 1;
	skip_blanks(r);
	if (strncmp(r->at, "tx:", 3) == 0 || strncmp(r->at, "rx:", 3) == 0) {
		c->dirs = r->at[0] == 't' ? 1 << SIW_FAULT_TX : 1 << SIW_FAULT_RX;
		r->at += 3;
	}
	for (;;) {
		const char *at;

		if (parse_rule(r, c, &seen) < 0)
			return -EINVAL;
		skip_blanks(r);
		at = r->at;
		if (*at == ',')
			r->at++;
		else if (*at == ';' || !*at)
			break;
		else
			return parse_fail(r, at, "expected a comma, a semicolon or the end");
	}
	if (c->burst && !c->loss)
		return parse_fail(r, r->at, "burst= requires loss= in the same clause");
	return 0;
}

int siw_faults_parse(const char *text, enum siw_faults_place place, struct siw_faults *out,
		     char *why, size_t size)
{
	struct reader r = { .text = text, .at = text, .place = place, .why = why, .size = size };

	memset(out, 0, sizeof(*out));
	if (size)
		why[0] = '\0';
	skip_blanks(&r);
	if (!*r.at)
		return 0;
	for (;;) {
		r.clause++;
		if (out->n == SIW_FAULTS_CLAUSES)
			return parse_fail(&r, r.at, "a plan has at most %d clauses",
					  SIW_FAULTS_CLAUSES);
		if (parse_clause(&r, &out->clause[out->n]) < 0)
			return -EINVAL;
		out->n++;
		if (!*r.at)
			return 0;
		r.at++;
	}
}

/* ---- writing --------------------------------------------------------------------------------- */

struct writer {
	char *text;
	size_t size, length;
	bool first; /* no rule of the fault plan's current clause is written yet */
};

static __attribute__((format(printf, 2, 3))) void write_text(struct writer *w, const char *fmt, ...)
{
	va_list args;
	size_t room = w->length < w->size ? w->size - w->length : 0;
	int n;

	va_start(args, fmt);
	n = vsnprintf(room ? w->text + w->length : NULL, room, fmt, args);
	va_end(args);
	w->length += n > 0 ? (size_t)n : 0;
}

static void write_rule_name(struct writer *w, const char *name)
{
	write_text(w, "%s%s=", w->first ? "" : ",", name);
	w->first = false;
}

/*
 * Writes a number with the largest unit that leaves no fraction, or in decimals if there is only
 * one unit.
 */
static void append_number_with_unit(struct writer *w, uint64_t value, const struct unit *units)
{
	const struct unit *u = units;
	uint64_t rest, scale;

	while (value && value % u->value && u[1].name)
		u++;
	write_text(w, "%llu", (unsigned long long)(value / u->value));
	rest = value % u->value;
	for (scale = u->value; rest; rest %= scale) {
		write_text(w, "%s", scale == u->value ? "." : "");
		scale /= 10;
		write_text(w, "%llu", (unsigned long long)(rest / scale));
	}
	write_text(w, "%s", u->name);
}

static void write_fault_rule_if_set(struct writer *w, const char *name, uint64_t value,
				    const struct unit *units)
{
	if (!value)
		return;
	write_rule_name(w, name);
	append_number_with_unit(w, value, units);
}

static void write_peer_as_text(struct writer *w, const struct siw_fault_clause *c)
{
	char text[64], *end;
	int most = c->peer.family == AF_INET ? 32 : 128;

	siw_addr_format(&c->peer, text, sizeof(text));
	end = strrchr(text, ':');
	*end = '\0';
	write_rule_name(w, "peer");
	write_text(w, "%s", text);
	if (c->prefix != most)
		write_text(w, "/%u", c->prefix);
	if (c->peer.port_be)
		write_text(w, ":%u", siw_addr_port(&c->peer));
}

static void append_fault_rule_text(struct writer *w, const struct rule *rule,
				   const struct siw_fault_clause *c)
{
	static const struct unit plain[] = { { "", 1 }, { NULL, 0 } };
	const void *member = (const char *)c + rule->at;

	switch (rule->form) {
	case SHARE:
	case COUNT:
		write_fault_rule_if_set(w, rule->name, *(const uint32_t *)member,
					rule->form == SHARE ? shares : plain);
		break;
	case TIME:
	case RATE:
		write_fault_rule_if_set(w, rule->name, *(const uint64_t *)member,
					rule->form == TIME ? times : rates);
		break;
	case LIMIT:
		write_fault_rule_if_set(w, rule->name, c->limit, c->limit_octets ? octets : plain);
		break;
	case BLACKOUT:
		if (!c->has_blackout)
			break;
		write_rule_name(w, rule->name);
		append_number_with_unit(w, c->blackout_for, times);
		write_text(w, "@");
		append_number_with_unit(w, c->blackout_at, times);
		break;
	case RESET:
		write_fault_rule_if_set(w, rule->name, c->reset_after, octets);
		if (!c->has_reset_at)
			break;
		write_rule_name(w, rule->name);
		append_number_with_unit(w, c->reset_at, times);
		break;
	case PEER:
		if (c->peer.family)
			write_peer_as_text(w, c);
		break;
	case SEED:
		/* A clause must not be empty, so a clause without faults shows its seed. */
		if (c->seed == 1 && !w->first)
			break;
		write_rule_name(w, rule->name);
		append_number_with_unit(w, c->seed, plain);
		break;
	}
}

static void write_fault_clause(struct writer *w, const struct siw_fault_clause *c)
{
	w->first = true;
	if (c->dirs == 1 << SIW_FAULT_TX)
		write_text(w, "tx:");
	else if (c->dirs == 1 << SIW_FAULT_RX)
		write_text(w, "rx:");
	for (int i = 0; i < N_RULES; i++)
		append_fault_rule_text(w, &rules[i], c);
}

size_t siw_faults_format(const struct siw_faults *plan, char *text, size_t size)
{
	struct writer w = { .text = text, .size = size };

	if (size)
		text[0] = '\0';
	for (int i = 0; i < plan->n; i++) {
		if (i)
			write_text(&w, ";");
		write_fault_clause(&w, &plan->clause[i]);
	}
	return w.length;
}
