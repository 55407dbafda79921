/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_fd.c - the set of this layer's descriptors. A forked child closes its copies immediately,
 * because a port stays in use and a connection stays open as long as any copy of the descriptor is
 * open, even after the parent has closed its own. The child only closes the copies; it must not
 * change the epoll set, which it shares with the parent.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cancel.h"
#include "base/fork.h"
#include "llp/llp_sock.h"

#define BITS 64

static void close_descriptors_in_child(void);

static struct siw_fork_lock fork_lock = { .lock = SIW_LOCK_INIT,
					  .in_child = close_descriptors_in_child };
/* The set of descriptors, with one bit per descriptor; protected by fork_lock. */
static uint64_t *ours;
static size_t n_words;

static void close_descriptors_in_child(void)
{
	for (size_t i = 0; i < n_words; i++) {
		for (uint64_t word = ours[i]; word; word &= word - 1)
			siw_close_fd((int)(i * BITS) + __builtin_ctzll(word));
		ours[i] = 0;
	}
}

static int fork_fd_set_grow(size_t words)
{
	uint64_t *more;
	size_t n = n_words ? n_words : 16;

	while (n < words)
		n *= 2;
	more = realloc(ours, n * sizeof(*ours));
	if (!more)
		return -ENOMEM;
	memset(more + n_words, 0, (n - n_words) * sizeof(*ours));
	ours = more;
	n_words = n;
	return 0;
}

void siw_llp_fd_creation_begin(void)
{
	siw_fork_lock_register(&fork_lock);
	siw_lock(&fork_lock.lock);
}

static int fork_fd_set_add(int fd)
{
	size_t word = (size_t)fd / BITS;

	if (!fork_lock.watched || (word >= n_words && fork_fd_set_grow(word + 1)))
		return -ENOMEM;
	ours[word] |= 1ull << fd % BITS;
	return 0;
}

int siw_llp_fd_creation_done(int fd)
{
	int error = errno;

	if (fd < 0)
		fd = -error;
	else if (fork_fd_set_add(fd)) {
		siw_close_fd(fd);
		fd = -ENOMEM;
	}
	siw_unlock(&fork_lock.lock);
	return fd;
}

int siw_llp_fd_add_close_on_fork(int fd)
{
	int rv;

	siw_llp_fd_creation_begin();
	rv = fork_fd_set_add(fd);
	siw_unlock(&fork_lock.lock);
	return rv;
}

bool siw_llp_fd_remove_close_on_fork(int fd)
{
	size_t word = (size_t)fd / BITS;
	bool was;

	siw_lock(&fork_lock.lock);
	was = word < n_words && ours[word] >> fd % BITS & 1;
	if (was)
		ours[word] &= ~(1ull << fd % BITS);
	siw_unlock(&fork_lock.lock);
	return was;
}

void siw_llp_fd_close(int fd)
{
	/*
	 * In a forked child, closing an inherited object does nothing here: the child's copy of the
	 * descriptor is closed already, and the number may denote another file by now.
	 */
	if (siw_llp_fd_remove_close_on_fork(fd))
		siw_close_fd(fd);
}
