/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Checks that child processes of a program with an rdma_cm connection inherit no descriptors of the
 * library, and that their exit leaves the connection intact. With an argument, the program only
 * returns its number of open descriptors.
 */
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cm.h"

extern char **environ;

static void check_exit_status(pid_t pid, int code)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code);
}

/*
 * Runs children by fork and exec, by posix_spawn, which shares memory until exec, and by fork only.
 *
 */
static void run_children_by_fork_and_spawn(const char *self, int before)
{
	char *arguments[] = { (char *)self, "count", NULL };
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		_exit(execv(self, arguments));
	check_exit_status(pid, before);
	CHECK(posix_spawn(&pid, self, NULL, NULL, arguments, environ) == 0);
	check_exit_status(pid, before);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		_exit(7);
	check_exit_status(pid, 7);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		exit(8); /* exit() runs the exit handlers, unlike _exit() */
	check_exit_status(pid, 8);
}

int main(int argc, char **argv)
{
	struct rdma_cm_id *listener, *client, *server;
	int before = count_descriptors();

	if (argc == 2)
		return before;
	CHECK(ibv_fork_init() == 0);
	channel = rdma_create_event_channel();
	other = rdma_create_event_channel();
	CHECK(channel && other);
	listener = listen_on_channel(channel);
	connect_ids(listener, &client, &server);
	CHECK(count_descriptors() > before + 8);
	for (int i = 0; i < 3; i++) {
		run_children_by_fork_and_spawn(argv[0], before);
		send_between_ids(client, server);
		send_between_ids(server, client);
	}
	disconnect_ids(client, server);
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
	return 0;
}
