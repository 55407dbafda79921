/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * wan/wan_main.c - siwarp-wan, the program behind `siwarp wan`. Usage:
 *
 *   siwarp-wan PLAN MTU STATS_FD B_COMMAND A_COMMAND [ARGUMENT]...
 *   siwarp-wan --enter PID a|b COMMAND [ARGUMENT]...
 *   siwarp-wan --check PLAN
 *
 * B_COMMAND is a shell command, or empty. When A_COMMAND ends, the relay writes its statistics to
 * STATS_FD as JSON and exits with the exit status of A_COMMAND. With --check the program prints why
 * the relay cannot execute a plan and exits with status 2, or prints nothing and exits with status
 * 0.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wan/wan.h"

#define GRACE_NS 3000000000ll /* time from SIGTERM to SIGKILL for b's command */

static int exit_status_of_wait(int status)
{
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct run {
	struct wan_relay *relay;
	int signals; /* descriptor of signalfd(2) */
	pid_t a, b;  /* PIDs of the commands; 0: no command, or the command has ended */
	int status;  /* exit status of a's command */
};

/* Records the end of commands, and forwards SIGTERM to a's command. */
static void reap_commands_and_forward_sigterm(struct run *run)
{
	struct signalfd_siginfo info;
	int status;
	pid_t pid;

	while (read(run->signals, &info, sizeof(info)) == sizeof(info))
		if (info.ssi_signo == SIGTERM && run->a)
			kill(run->a, SIGTERM);
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid == run->a) {
			run->a = 0;
			run->status = exit_status_of_wait(status);
		} else if (pid == run->b) {
			run->b = 0;
		}
	}
}

static int relay_until_done(struct run *run)
{
	while (run->a) {
		if (wan_relay_run(run->relay, run->signals, -1))
			return -1;
		reap_commands_and_forward_sigterm(run);
	}
	if (!run->b)
		return 0;
	kill(-run->b, SIGTERM);
	wan_relay_run(run->relay, run->signals, GRACE_NS);
	reap_commands_and_forward_sigterm(run);
	if (run->b) {
		kill(-run->b, SIGKILL);
		waitpid(run->b, NULL, 0);
	}
	return 0;
}

static void print_path_stats(int fd, const char *name, const struct wan_stats *s, const char *end)
{
	dprintf(fd,
		"\"%s\": {\"packets\": %llu, \"octets\": %llu, \"passed\": %llu, \"lost\": %llu, "
		"\"blackout\": %llu, \"full\": %llu, \"copies\": %llu, \"reordered\": %llu, "
		"\"corrupted\": %llu, \"marked\": %llu}%s",
		name, (unsigned long long)s->packets, (unsigned long long)s->octets,
		(unsigned long long)s->passed, (unsigned long long)s->lost,
		(unsigned long long)s->blackout, (unsigned long long)s->full,
		(unsigned long long)s->copies, (unsigned long long)s->reordered,
		(unsigned long long)s->corrupted, (unsigned long long)s->marked, end);
}

static int block_signals(void)
{
	sigset_t set;

	signal(SIGINT, SIG_IGN); /* SIGINT is meant for the command in namespace a */
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

static int run_command_in_wan_namespace(int argc, char **argv)
{
	if (argc < 5 || (strcmp(argv[3], "a") != 0 && strcmp(argv[3], "b") != 0))
		return 2;
	return wan_exec_in_namespace((pid_t)atoi(argv[2]), argv[3][0] == 'a' ? WAN_A : WAN_B,
				     argv + 4);
}

static int check_fault_plan_of_command_line(const char *text)
{
	struct siw_faults plan;
	char why[192];

	if (siw_faults_parse(text, SIW_FAULTS_RELAY, &plan, why, sizeof(why)) == 0)
		return 0;
	puts(why);
	return 2;
}

static void set_environment(void)
{
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	setenv("WAN_RELAY", pid, 1);
	setenv("WAN_A", WAN_ADDR_A, 1);
	setenv("WAN_B", WAN_ADDR_B, 1);
}

int main(int argc, char **argv)
{
	struct wan_space spaces[2];
	struct siw_faults plan;
	struct run run = { .status = 126 };
	char why[192];
	int stats;

	if (argc > 1 && strcmp(argv[1], "--enter") == 0)
		return run_command_in_wan_namespace(argc, argv);
	if (argc == 3 && strcmp(argv[1], "--check") == 0)
		return check_fault_plan_of_command_line(argv[2]);
	if (argc < 6)
		return 2;
	if (siw_faults_parse(argv[1], SIW_FAULTS_RELAY, &plan, why, sizeof(why))) {
		fprintf(stderr, "siwarp wan: invalid fault plan: %s\n", why);
		return 2;
	}
	stats = atoi(argv[3]);
	if (wan_namespaces_create(spaces, atoi(argv[2])))
		return 1;
	run.signals = block_signals();
	run.relay = wan_relay_new(&plan, spaces);
	if (!run.relay || run.signals < 0)
		return 1;
	set_environment();
	if (argv[4][0]) {
		char *shell[] = { "/bin/sh", "-c", argv[4], NULL };

		run.b = wan_fork_and_exec_command(&spaces[WAN_B], shell, true);
		if (run.b < 0)
			return 1;
	}
	run.a = wan_fork_and_exec_command(&spaces[WAN_A], argv + 5, false);
	if (run.a < 0 || relay_until_done(&run))
		return 1;
	dprintf(stats, "{");
	print_path_stats(stats, "a_to_b", wan_relay_stats(run.relay, WAN_A), ", ");
	print_path_stats(stats, "b_to_a", wan_relay_stats(run.relay, WAN_B), "}\n");
	wan_relay_free(run.relay);
	return run.status;
}
