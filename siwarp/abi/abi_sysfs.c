/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/abi_sysfs.c - files under /sys, and fork: what the library does for the program as a whole. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "abi/abi.h"
#include "abi/abi_cancel.h"

ABI_EXPORT const char *ibv_get_sysfs_path(void);
const char *ibv_get_sysfs_path(void)
{
	const char *path = secure_getenv("SYSFS_PATH");

	return path && *path ? path : "/sys";
}

/* Reads the beginning of a file: how many octets, or -1 with errno. */
static ssize_t read_file(const char *path, char *buf, size_t size)
{
	int cancel = abi_cancel_off();
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = -1;

	if (fd >= 0) {
		n = read(fd, buf, size);
		abi_close_fd(fd);
	}
	abi_cancel_back(cancel);
	return n;
}

/* The octets of dir/file without the newline at their end, and how many; -1 with errno. */
ABI_EXPORT int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
	char path[PATH_MAX];
	ssize_t n;

	if (!dir || !file || !buf || !size ||
	    snprintf(path, sizeof(path), "%s/%s", dir, file) >= (int)sizeof(path)) {
		errno = EINVAL;
		return -1;
	}
	n = read_file(path, buf, size);
	if (n > 0 && buf[n - 1] == '\n')
		n--;
	if (n >= 0 && (size_t)n < size)
		buf[n] = '\0';
	return (int)n;
}

/*
 * Nothing is pinned, so a parent's memory stays its own after fork, and its devices go on. A child
 * opens devices for itself: objects of its parent are ESTALE there.
 */
int ibv_fork_init(void)
{
	return 0;
}

enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return IBV_FORK_UNNEEDED;
}

ABI_EXPORT int ibv_dontfork_range(void *base, size_t size);
int ibv_dontfork_range(void *base, size_t size)
{
	(void)base;
	(void)size;
	return 0;
}

ABI_EXPORT int ibv_dofork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size)
{
	(void)base;
	(void)size;
	return 0;
}

struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t dm_handle)
{
	(void)dm_handle;
	return abi_live(ABI_CONTEXT, context) ? abi_null(EOPNOTSUPP) : NULL;
}

void ibv_unimport_dm(struct ibv_dm *dm)
{
	(void)dm;
}
