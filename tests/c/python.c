/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Stands for the program `python`, or, under the name `siwarp`, for that command: the server of
 * tests/harness/siwarp_process.py forks a process that runs the Python program with the arguments,
 * environment, directory, descriptors and namespaces of this process. This process forwards signals
 * and ends with the status of the forked one. A program that the server refuses is run by a new
 * interpreter.
 *
 * The executable is in a folder beside `socket`, that of the server, and `interpreter`, a symbolic
 * link.
 *
 * The request is a message of strings, each with a NUL at its end: the folder, the number of
 * arguments, the arguments, the numbers of the descriptors, and the environment. The server answers
 * with the process ID, or 0 if it refuses, and later with the wait status, both as int.
 */
#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* A message can have 253 descriptors (unix(7)). */
#define DESCRIPTORS 250
#define REQUEST	    (1u << 17)

extern char **environ;

static const int forwarded[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2 };
static int descriptors[DESCRIPTORS], n_descriptors;
static char request[REQUEST];
static size_t request_octets;
static volatile sig_atomic_t program;

static void forward_signal(int number)
{
	kill((pid_t)program, number);
}

static bool append_to_request(const char *text)
{
	size_t octets = strlen(text) + 1;

	if (request_octets + octets > sizeof(request))
		return false;
	memcpy(request + request_octets, text, octets);
	request_octets += octets;
	return true;
}

static bool list_open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	if (!dir)
		return false;
	while ((entry = readdir(dir))) {
		int fd = atoi(entry->d_name);

		if (entry->d_name[0] == '.' || fd == dirfd(dir))
			continue;
		if (n_descriptors == DESCRIPTORS)
			break;
		descriptors[n_descriptors++] = fd;
	}
	closedir(dir);
	return !entry && n_descriptors;
}

static bool build_request(int argc, char *argv[])
{
	char cwd[PATH_MAX], count[16], numbers[DESCRIPTORS * 12] = "";
	size_t at = 0;

	for (int i = 0; i < n_descriptors; i++)
		at += (size_t)snprintf(numbers + at, sizeof(numbers) - at, "%d ", descriptors[i]);
	snprintf(count, sizeof(count), "%d", argc - 1);
	if (!getcwd(cwd, sizeof(cwd)) || !append_to_request(cwd) || !append_to_request(count))
		return false;
	for (int i = 1; i < argc; i++) {
		if (!append_to_request(argv[i]))
			return false;
	}
	if (!append_to_request(numbers))
		return false;
	for (char **variable = environ; *variable; variable++) {
		if (!append_to_request(*variable))
			return false;
	}
	return true;
}

static bool send_request(int server)
{
	union {
		char octets[CMSG_SPACE(sizeof(descriptors))];
		struct cmsghdr header;
	} control = { 0 };
	struct iovec part = { request, request_octets };
	size_t octets = sizeof(int) * (size_t)n_descriptors;
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_SPACE(octets),
	};

	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(octets);
	memcpy(CMSG_DATA(&control.header), descriptors, octets);
	return sendmsg(server, &message, MSG_NOSIGNAL) >= 0;
}

static bool receive_number(int server, int *number)
{
	return recv(server, number, sizeof(*number), 0) == sizeof(*number);
}

/* Has the server start the program; returns the socket, or -1 if the server refuses. */
static int start_program(const char *folder, int argc, char *argv[])
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int server, pid = 0;

	if (snprintf(to.sun_path, sizeof(to.sun_path), "%s/socket", folder) >=
	    (int)sizeof(to.sun_path))
		return -1;
	if (!list_open_descriptors() || !build_request(argc, argv))
		return -1;
	server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (server < 0)
		return -1;
	if (connect(server, (const struct sockaddr *)&to, sizeof(to)) == 0 &&
	    send_request(server) && receive_number(server, &pid) && pid) {
		program = pid;
		return server;
	}
	close(server);
	return -1;
}

/*
 * Blocks the forwarded signals, until it is known whether they are forwarded, or lets them in. A
 * signal that comes meanwhile is pending.
 */
static void set_signals_blocked(bool block)
{
	sigset_t set;

	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++)
		sigaddset(&set, forwarded[i]);
	sigprocmask(block ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

static void install_signal_handlers(void)
{
	struct sigaction action = { .sa_handler = forward_signal, .sa_flags = SA_RESTART };

	for (size_t i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++) {
		struct sigaction before;

		sigaction(forwarded[i], NULL, &before);
		if (before.sa_handler != SIG_IGN)
			sigaction(forwarded[i], &action, NULL);
	}
}

/* Ends this process as the program has ended. */
static int end_as_program_ended(int status)
{
	const struct rlimit no_core = { 0, 0 };

	if (!WIFSIGNALED(status))
		return WEXITSTATUS(status);
	setrlimit(RLIMIT_CORE, &no_core);
	signal(WTERMSIG(status), SIG_DFL);
	raise(WTERMSIG(status));
	return 128 + WTERMSIG(status);
}

static int exec_interpreter(const char *folder, char *argv[])
{
	char link[PATH_MAX + 16], interpreter[PATH_MAX];
	ssize_t length;

	snprintf(link, sizeof(link), "%s/interpreter", folder);
	length = readlink(link, interpreter, sizeof(interpreter) - 1);
	if (length > 0) {
		interpreter[length] = 0;
		argv[0] = interpreter; /* by which Python finds its virtual environment */
		execv(interpreter, argv);
	}
	perror(link);
	return 127;
}

int main(int argc, char *argv[])
{
	char folder[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
	char **words = calloc((size_t)argc + 3, sizeof(*words));
	const char *name;
	int server, status;

	if (length <= 0 || !words)
		return 127;
	folder[length] = 0;
	name = strrchr(folder, '/') + 1;
	words[0] = argv[0];
	if (strcmp(name, "siwarp") == 0) {
		words[1] = "-m";
		words[2] = "siwarp.cli";
		memcpy(words + 3, argv + 1, sizeof(*words) * (size_t)(argc - 1));
		argc += 2;
	} else {
		memcpy(words + 1, argv + 1, sizeof(*words) * (size_t)(argc - 1));
	}
	*strrchr(folder, '/') = 0;
	*strrchr(folder, '/') = 0;
	set_signals_blocked(true);
	server = start_program(folder, argc, words);
	if (server >= 0)
		install_signal_handlers();
	set_signals_blocked(false);
	if (server < 0)
		return exec_interpreter(folder, words);
	/* Pipes must end when the program closes them. */
	for (int i = 0; i < n_descriptors; i++)
		close(descriptors[i]);
	return receive_number(server, &status) ? end_as_program_ended(status) : 127;
}
