/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fuzzes rtnetlink messages. The messages come from the kernel, but the parser must validate every
 * field.
 */
#include "fuzz.h"
#include "llp/llp_sock.h"

static const uint8_t *message;
static size_t n_message;

/* Returns the single message of the input, then end of data. */
static ssize_t recvfrom_fuzz_input(int fd, void *buf, size_t size, int flags, void *source,
				   void *len)
{
	size_t n = n_message < size ? n_message : size;

	(void)fd, (void)flags, (void)source, (void)len;
	if (!message) {
		errno = EAGAIN;
		return -1;
	}
	memcpy(buf, message, n);
	message = NULL;
	return flags & MSG_TRUNC ? (ssize_t)n_message : (ssize_t)n;
}

/*
 * Includes the source file of the parser with its reads redirected to recvfrom_fuzz_input. The
 * open and close functions of that file are not called.
 */
#define siw_llp_recvfrom	      recvfrom_fuzz_input
#define siw_llp_interface_watch_open  watch_open
#define siw_llp_interface_watch_read  watch_read
#define siw_llp_interface_watch_close watch_close
#include "llp/llp_watch.c"
#undef siw_llp_recvfrom

void siw_llp_fd_creation_begin(void)
{
}

int siw_llp_fd_creation_done(int fd)
{
	return fd;
}

void siw_llp_fd_close(int fd)
{
	(void)fd;
}

int siw_llp_sock_new(struct siw_llp_poller *poller, int fd, enum siw_llp_kind kind,
		     struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	(void)poller, (void)fd, (void)kind, (void)handler, (void)out;
	return -ENOSYS;
}

void siw_llp_sock_note_empty(struct siw_llp_sock *sock)
{
	(void)sock;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct siw_llp_poller poller = { 0 };
	struct siw_llp_sock sock = { .poller = &poller, .kind = SIW_LLP_WATCHER };
	struct siw_llp_watch watch = { .sock = &sock, .index = 3, .name = "eth0" };
	int news = 1;

	if (!size)
		return 0;
	watch.index = data[0];
	message = data + 1;
	n_message = size - 1;
	for (int i = 0; i < 1 << 12 && news; i++) {
		news = watch_read(&watch);
		CHECK(news >= 0 && news <= SIW_LLP_WATCH_LOST);
	}
	return 0;
}
