/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * wan/wan_space.c - creation of two network namespaces with one interface each, with or without
 * root privileges.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wan/wan.h"

static __attribute__((format(printf, 1, 2))) int wan_fail(const char *fmt, ...)
{
	int error = errno;
	va_list args;

	fprintf(stderr, "siwarp wan: ");
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fprintf(stderr, ": %s\n", strerror(error));
	return -1;
}

static int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (fd >= 0)
		close(fd);
	return n == (ssize_t)strlen(text) ? 0 : -1;
}

/*
 * Enters a new user namespace, in which this process has root privileges and may create network
 * namespaces.
 */
static int enter_user_namespace(void)
{
	uid_t uid = geteuid();
	gid_t gid = getegid();
	char text[64];

	if (unshare(CLONE_NEWUSER))
		return wan_fail(
			"creating a user namespace, which siwarp wan needs unless it runs as root");
	write_file("/proc/self/setgroups",
		   "deny"); /* may fail: kernels before 3.19 lack this file and do not need it */
	snprintf(text, sizeof(text), "0 %u 1", uid);
	if (write_file("/proc/self/uid_map", text))
		return wan_fail("mapping the user");
	snprintf(text, sizeof(text), "0 %u 1", gid);
	return write_file("/proc/self/gid_map", text) ? wan_fail("mapping the group") : 0;
}

static int open_tun(void)
{
	struct ifreq request = { .ifr_name = "wan0", .ifr_flags = IFF_TUN | IFF_NO_PI };
	int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return wan_fail(
			"opening /dev/net/tun, which must exist and be accessible to this user");
	if (ioctl(fd, TUNSETIFF, &request) == 0)
		return fd;
	wan_fail("making the interface wan0");
	close(fd);
	return -1;
}

static int create_network_namespace(struct wan_space *space, int keep)
{
	int ns;

	if (unshare(CLONE_NEWNET))
		return wan_fail("making a network namespace");
	ns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	if (ns < 0)
		return wan_fail("/proc/self/ns/net");
	space->ns = dup3(ns, keep, O_CLOEXEC);
	close(ns);
	if (space->ns < 0)
		return wan_fail("keeping a network namespace");
	space->tun = open_tun();
	return space->tun < 0 ? -1 : 0;
}

/*
 * Configures the interface of a namespace by ip(8), which reads the commands from standard input.
 *
 */
static int configure_interface(const struct wan_space *space, const char *v4, const char *v6,
			       int mtu)
{
	char *argv[] = { "ip", "-force", "-batch", "-", NULL };
	int ends[2], status, saved;
	pid_t pid;

	if (pipe(ends))
		return wan_fail("a pipe");
	saved = dup(STDIN_FILENO);
	dup2(ends[0], STDIN_FILENO);
	fcntl(ends[1], F_SETFD, FD_CLOEXEC);
	close(ends[0]);
	pid = wan_fork_and_exec_command(space, argv, false);
	if (saved >= 0) {
		dup2(saved, STDIN_FILENO);
		close(saved);
	} else {
		close(STDIN_FILENO);
	}
	dprintf(ends[1],
		"link set lo up\nlink set wan0 mtu %d\nlink set wan0 addrgenmode none\n"
		"link set wan0 up\naddr add %s/24 dev wan0\naddr add %s/64 dev wan0 nodad\n",
		mtu, v4, v6);
	close(ends[1]);
	if (pid < 0)
		return -1;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return wan_fail("waiting for ip");
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	errno = EINVAL;
	return wan_fail("ip could not configure an interface; is iproute2 installed?");
}

int wan_namespaces_create(struct wan_space spaces[2], int mtu)
{
	if (geteuid() != 0 && enter_user_namespace())
		return -1;
	if (create_network_namespace(&spaces[WAN_A], WAN_FD_A) ||
	    create_network_namespace(&spaces[WAN_B], WAN_FD_B))
		return -1;
	if (configure_interface(&spaces[WAN_A], WAN_ADDR_A, WAN_ADDR6_A, mtu))
		return -1;
	return configure_interface(&spaces[WAN_B], WAN_ADDR_B, WAN_ADDR6_B, mtu);
}

static __attribute__((noreturn)) void exec_program(char *const argv[])
{
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGINT, SIG_DFL);
	execvp(argv[0], argv);
	fprintf(stderr, "siwarp wan: %s: %s\n", argv[0], strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

pid_t wan_fork_and_exec_command(const struct wan_space *space, char *const argv[], bool apart)
{
	pid_t relay = getpid(), pid = fork();

	if (pid < 0)
		return wan_fail("starting %s", argv[0]);
	if (pid > 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != relay)
		_exit(126); /* the relay ended before PR_SET_PDEATHSIG was set */
	if (apart)
		setpgid(0, 0);
	if (setns(space->ns, CLONE_NEWNET)) {
		wan_fail("entering a network namespace");
		_exit(126);
	}
	exec_program(argv);
}

static int join_namespace(pid_t pid, const char *what, int type)
{
	char path[64];
	int fd, rv;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, what);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return wan_fail("%s; is this the PID of a running siwarp wan?", path);
	rv = setns(fd, type);
	if (rv)
		wan_fail("entering the namespace %s", path);
	close(fd);
	return rv;
}

int wan_exec_in_namespace(pid_t pid, int which, char *const argv[])
{
	char path[64], net[16];
	struct stat ours, theirs;

	snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
	if (stat(path, &theirs) || stat("/proc/self/ns/user", &ours)) {
		wan_fail("%s; is this the PID of a running siwarp wan?", path);
		return 126;
	}
	if (ours.st_ino != theirs.st_ino && join_namespace(pid, "ns/user", CLONE_NEWUSER))
		return 126;
	snprintf(net, sizeof(net), "fd/%d", which == WAN_A ? WAN_FD_A : WAN_FD_B);
	if (join_namespace(pid, net, CLONE_NEWNET))
		return 126;
	exec_program(argv);
}
