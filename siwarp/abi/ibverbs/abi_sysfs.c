/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/ibverbs/abi_sysfs.c - access to files in /sys, fork support, and imports of device memory. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "abi/ibverbs/abi.h"
#include "abi/ibverbs/abi_cancel.h"

ABI_EXPORT const char *ibv_get_sysfs_path(void);
const char *ibv_get_sysfs_path(void)
{
	const char *path = secure_getenv("SYSFS_PATH");

	return path && *path ? path : "/sys";
}

/* Reads the beginning of a file. Returns the number of octets read, or -1 with errno. */
static ssize_t read_beginning_of_file(const char *path, char *buf, size_t size)
{
	int cancel = abi_cancel_disable();
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = -1;

	if (fd >= 0) {
		n = read(fd, buf, size);
		abi_close_fd(fd);
	}
	abi_cancel_restore(cancel);
	return n;
}

/*
 * Reads the file dir/file without the trailing newline. Returns the number of octets, or -1 with
 * errno.
 */
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
	n = read_beginning_of_file(path, buf, size);
	if (n > 0 && buf[n - 1] == '\n')
		n--;
	if (n >= 0 && (size_t)n < size)
		buf[n] = '\0';
	return (int)n;
}

/*
 * No memory is pinned, so the parent keeps its memory and its devices continue to work after fork.
 * A child must open devices itself; calls on inherited objects fail with ESTALE. ibv_fork_init only
 * registers the library's fork handlers.
 */
int ibv_fork_init(void)
{
	abi_fork_init();
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
	if (!abi_is_live_object(ABI_CONTEXT, context))
		return abi_fail_null(EINVAL);
	return abi_fail_null(abi_refuse(EOPNOTSUPP, "siwarp has no device memory"));
}

void ibv_unimport_dm(struct ibv_dm *dm)
{
	(void)dm;
}
