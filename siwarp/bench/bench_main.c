/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* siwarp-bench: client or server of a run, see bench.h. Started by `siwarp bench`. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "bench/bench.h"

enum {
	OPT_KIND = 1,
	OPT_RUN,
	OPT_SIDE,
	OPT_QP,
	OPT_OP,
	OPT_WAIT,
	OPT_SIZE,
	OPT_ITERS,
	OPT_WARMUP,
	OPT_DEPTH,
	OPT_BATCH,
	OPT_CPU,
	OPT_CTL,
	OPT_LIMIT,
	OPT_LOCAL,
	OPT_REMOTE,
	OPT_SAMPLES,
	OPT_PATIENCE,
};

static const struct option options[] = {
	{ "kind", required_argument, NULL, OPT_KIND },
	{ "run", required_argument, NULL, OPT_RUN },
	{ "side", required_argument, NULL, OPT_SIDE },
	{ "qp", required_argument, NULL, OPT_QP },
	{ "op", required_argument, NULL, OPT_OP },
	{ "wait", required_argument, NULL, OPT_WAIT },
	{ "size", required_argument, NULL, OPT_SIZE },
	{ "iters", required_argument, NULL, OPT_ITERS },
	{ "warmup", required_argument, NULL, OPT_WARMUP },
	{ "depth", required_argument, NULL, OPT_DEPTH },
	{ "batch", required_argument, NULL, OPT_BATCH },
	{ "cpu", required_argument, NULL, OPT_CPU },
	{ "ctl", required_argument, NULL, OPT_CTL },
	{ "limit", required_argument, NULL, OPT_LIMIT },
	{ "local", required_argument, NULL, OPT_LOCAL },
	{ "remote", required_argument, NULL, OPT_REMOTE },
	{ "samples", required_argument, NULL, OPT_SAMPLES },
	{ "patience", required_argument, NULL, OPT_PATIENCE },
	{ 0 },
};

static unsigned long long main_parse_number(const char *text, unsigned long long most)
{
	char *end;
	unsigned long long n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno || end == text || *end || n > most)
		siw_bench_die(SIW_BENCH_EXIT_USAGE, "not a number from 0 to %llu: %s", most, text);
	return n;
}

static bool main_is_second_word(const char *text, const char *first, const char *second)
{
	if (strcmp(text, first) && strcmp(text, second))
		siw_bench_die(SIW_BENCH_EXIT_USAGE, "neither %s nor %s: %s", first, second, text);
	return !strcmp(text, second);
}

static enum siw_bench_op main_parse_op(const char *text)
{
	static const char *const names[] = { "send", "write", "read" };

	for (int i = 0; i < 3; i++)
		if (!strcmp(text, names[i]))
			return (enum siw_bench_op)i;
	siw_bench_die(SIW_BENCH_EXIT_USAGE, "unknown operation: %s", text);
}

/* Store a numeric option; return false if the option is not numeric. */
static bool main_set_number(struct siw_bench_opts *o, int option, const char *text)
{
	switch (option) {
	case OPT_SIZE:
		o->size = main_parse_number(text, 1ull << 40);
		break;
	case OPT_ITERS:
		o->iters = (uint32_t)main_parse_number(text, 100000000);
		break;
	case OPT_WARMUP:
		o->warmup = (uint32_t)main_parse_number(text, 100000000);
		break;
	case OPT_DEPTH:
		o->depth = (uint32_t)main_parse_number(text, 1 << 16);
		break;
	case OPT_BATCH:
		o->batch = (uint32_t)main_parse_number(text, SIW_BENCH_BATCH);
		break;
	case OPT_CPU:
		o->cpu = (int)main_parse_number(text, 1 << 16);
		break;
	case OPT_CTL:
		o->ctl = (int)main_parse_number(text, 1 << 20);
		break;
	case OPT_LIMIT:
		o->limit_s = (unsigned int)main_parse_number(text, 600);
		break;
	case OPT_PATIENCE:
		siw_bench_patience_ms = (unsigned int)main_parse_number(text, 60000);
		break;
	default:
		return false;
	}
	return true;
}

static void main_set_option(struct siw_bench_opts *o, int option, const char *text)
{
	if (main_set_number(o, option, text))
		return;
	switch (option) {
	case OPT_KIND:
		o->kind = text;
		break;
	case OPT_RUN:
		o->run = text;
		break;
	case OPT_SIDE:
		o->server = main_is_second_word(text, "client", "server");
		break;
	case OPT_QP:
		o->uc = !strcmp(text, "uc");
		o->rd = !strcmp(text, "rd");
		o->rc = !o->uc && !o->rd && main_is_second_word(text, "ud", "rc");
		break;
	case OPT_OP:
		o->op = main_parse_op(text);
		break;
	case OPT_WAIT:
		o->event = main_is_second_word(text, "poll", "event");
		break;
	case OPT_LOCAL:
		o->local = text;
		break;
	case OPT_REMOTE:
		o->remote = text;
		break;
	case OPT_SAMPLES:
		o->samples = text;
		break;
	default:
		siw_bench_die(SIW_BENCH_EXIT_USAGE,
			      "siwarp-bench is started by `siwarp bench`: run that command");
	}
}

static siw_bench_fn *main_select_run(const struct siw_bench_opts *o)
{
	bool ours = !strcmp(o->run, "ours");

	if (!strcmp(o->kind, "reg"))
		return siw_bench_reg;
	if (!strcmp(o->kind, "onesided"))
		return siw_bench_onesided;
	if (!strcmp(o->kind, "fair"))
		return siw_bench_fair;
	if (!strcmp(o->kind, "crowd"))
		return siw_bench_idle_qps;
	if (!strcmp(o->kind, "done") || !strcmp(o->kind, "answer") || !strcmp(o->kind, "watched"))
		return siw_bench_ours_lat;
	if (strcmp(o->kind, "lat") && strcmp(o->kind, "bw") && strcmp(o->kind, "rate"))
		siw_bench_die(SIW_BENCH_EXIT_USAGE, "unknown kind: %s", o->kind);
	if (!ours)
		return o->rc ? siw_bench_raw_tcp : siw_bench_raw_udp;
	return strcmp(o->kind, "lat") ? siw_bench_ours_stream : siw_bench_ours_lat;
}

static bool has_one_cpu(void)
{
	cpu_set_t set;

	return !sched_getaffinity(0, sizeof(set), &set) && CPU_COUNT(&set) == 1;
}

int main(int argc, char **argv)
{
	struct siw_bench_opts o = { .kind = "",
				    .run = "ours",
				    .iters = 1000,
				    .depth = 1,
				    .batch = 1,
				    .cpu = -1,
				    .ctl = -1,
				    .local = "127.0.0.1",
				    .remote = "127.0.0.1",
				    .limit_s = 60 };
	struct siw_bench_result result = { 0 };
	pid_t parent = getppid();
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
		main_set_option(&o, option, optarg);
	if (optind != argc || !o.iters || !o.depth || !o.batch)
		siw_bench_die(SIW_BENCH_EXIT_USAGE,
			      "siwarp-bench is started by `siwarp bench`: run that command");
	/* End with the parent, because no other process waits for this run. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		return SIW_BENCH_EXIT_ERROR;
	alarm(o.limit_s);
	siw_bench_spin_yields = has_one_cpu();
	main_select_run (&o)(&o, &result);
	if (!o.server)
		printf("{\"value\": %.6g, \"p99\": %.6g, \"n\": %llu}\n", result.value, result.p99,
		       (unsigned long long)result.n);
	return 0;
}
