/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include <dirent.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lab/mpi/mpi_process.h"

long long read_pss_of_own_process(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	long long kib = -1;
	char line[256];

	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "Pss: %lld kB", &kib) == 1)
			break;
	fclose(file);
	return kib < 0 ? -1 : kib * 1024;
}

/*
 * Calls getsockopt() as a system call: another thread may close the descriptor at the same time,
 * which is harmless here, but which ThreadSanitizer's wrapper of getsockopt() would report as a
 * race.
 */
static int getsockopt_by_syscall(int fd, int name, void *value, socklen_t size)
{
	return (int)syscall(SYS_getsockopt, fd, SOL_SOCKET, name, value, &size);
}

static long long socket_kernel_memory(int fd)
{
	uint32_t info[SK_MEMINFO_VARS] = { 0 };

	if (getsockopt_by_syscall(fd, SO_MEMINFO, info, sizeof(info)))
		return 0;
	return (long long)info[SK_MEMINFO_RMEM_ALLOC] + info[SK_MEMINFO_WMEM_ALLOC] +
	       info[SK_MEMINFO_FWD_ALLOC] + info[SK_MEMINFO_WMEM_QUEUED] + info[SK_MEMINFO_OPTMEM] +
	       info[SK_MEMINFO_BACKLOG];
}

int process_count_sockets(struct process_sockets *sockets)
{
	DIR *fds = opendir("/proc/self/fd");
	struct dirent *entry;

	*sockets = (struct process_sockets){ 0 };
	if (!fds)
		return -1;
	while ((entry = readdir(fds))) {
		int fd = atoi(entry->d_name), domain, type;

		if (getsockopt_by_syscall(fd, SO_DOMAIN, &domain, sizeof(domain)) ||
		    getsockopt_by_syscall(fd, SO_TYPE, &type, sizeof(type)) ||
		    (domain != AF_INET && domain != AF_INET6))
			continue;
		if (type == SOCK_DGRAM)
			sockets->udp++;
		else
			sockets->tcp++;
		sockets->kernel += socket_kernel_memory(fd);
	}
	closedir(fds);
	return 0;
}
