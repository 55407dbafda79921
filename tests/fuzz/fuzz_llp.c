/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The functions of llp/llp.h over memory: one socket at a time; no call blocks, and every send is
 * accepted completely.
 */
#include <arpa/inet.h>

#include "fuzz.h"

struct siw_llp_poller {
	int unused;
};

struct siw_llp_sock {
	bool listener;
};

const struct siw_addr fuzz_addr = { .family = AF_INET, .port_be = 0x1027, .v4 = { 127, 0, 0, 1 } };
uint8_t fuzz_sent[4096];
size_t fuzz_n_sent;

static struct {
	uint8_t before[64];
	size_t n_before, at_before;
	const struct fuzz_input *in;
	size_t at;
	uint8_t how;
	bool skip, ended;
} feed;

/* ---- the input ------------------------------------------------------------------------------- */

bool fuzz_input_init(const uint8_t *data, size_t size, const void *before, size_t n,
		     struct fuzz_input *in)
{
	if (size < 2)
		return false;
	in->flags = data[0];
	in->len = size - 2;
	in->octets = malloc(in->len + 1);
	CHECK(in->octets && n <= sizeof(feed.before));
	memcpy(in->octets, data + 2, in->len);
	memset(&feed, 0, sizeof(feed));
	if (n)
		memcpy(feed.before, before, n);
	feed.n_before = n;
	feed.in = in;
	feed.how = data[1];
	fuzz_n_sent = 0;
	siw_setting_set("crc_first", !!(in->flags & FUZZ_STRICT));
	return true;
}

void fuzz_input_free(struct fuzz_input *in)
{
	free(in->octets);
}

void fuzz_replace_placeholder(struct fuzz_input *in, const char *word, uint32_t number)
{
	number = htonl(number);
	for (size_t i = 0; i + 4 <= in->len; i++)
		if (!memcmp(in->octets + i, word, 4))
			memcpy(in->octets + i, &number, 4);
}

bool fuzz_input_exhausted(void)
{
	return feed.ended || (feed.at == feed.in->len && feed.at_before == feed.n_before);
}

static size_t fuzz_build_mpa_frame(uint8_t *to, const char *key, uint8_t flags)
{
	static const uint8_t depths[4] = { 0, 4, 0, 4 };

	memcpy(to, key, 16);
	to[16] = (uint8_t)(0x10 | (flags & FUZZ_CRC ? 0x40 : 0));
	to[17] = 2;
	to[18] = 0;
	to[19] = sizeof(depths);
	memcpy(to + 20, depths, sizeof(depths));
	return 20 + sizeof(depths);
}

size_t fuzz_build_mpa_request(uint8_t *to, uint8_t flags)
{
	return fuzz_build_mpa_frame(to, "MPA ID Req Frame", flags);
}

size_t fuzz_build_mpa_reply(uint8_t *to, uint8_t flags)
{
	return fuzz_build_mpa_frame(to, "MPA ID Rep Frame", flags);
}

/* ---- reading and writing octets -------------------------------------------------------------- */

static size_t copy_to_iovecs(const struct iovec *iov, int n, const uint8_t *from, size_t len)
{
	size_t done = 0;

	for (int i = 0; i < n && done < len; i++) {
		size_t now = iov[i].iov_len < len - done ? iov[i].iov_len : len - done;

		if (now)
			memcpy(iov[i].iov_base, from + done, now);
		done += now;
	}
	return done;
}

static ssize_t result_at_end_of_input(void)
{
	if (feed.how & 16)
		return -EAGAIN;
	feed.ended = true;
	return feed.how & 32 ? -ECONNRESET : 0;
}

ssize_t siw_llp_tcp_recvv(struct siw_llp_sock *sock, const struct iovec *iov, int n)
{
	static const size_t most[8] = { 1 << 20, 1, 2, 7, 20, 100, 512, 9000 };
	size_t len;

	CHECK(!sock->listener);
	if (feed.at_before < feed.n_before) {
		len = copy_to_iovecs(iov, n, feed.before + feed.at_before,
				     feed.n_before - feed.at_before);
		feed.at_before += len;
		return (ssize_t)len;
	}
	if (feed.at == feed.in->len)
		return result_at_end_of_input();
	feed.skip = !feed.skip;
	if (feed.how & 8 && feed.skip)
		return -EAGAIN;
	len = feed.in->len - feed.at;
	if (len > most[feed.how & 7])
		len = most[feed.how & 7];
	len = copy_to_iovecs(iov, n, feed.in->octets + feed.at, len);
	feed.at += len;
	return (ssize_t)len;
}

/* Reads every octet, so that a sanitizer detects a send from memory that must not be read. */
static ssize_t fuzz_read_all_octets(const struct iovec *iov, int n)
{
	size_t len = 0;

	for (int i = 0; i < n; i++)
		for (size_t j = 0; j < iov[i].iov_len; j++, len++)
			fuzz_sent[fuzz_n_sent++ % sizeof(fuzz_sent)] =
				((const uint8_t *)iov[i].iov_base)[j];
	return (ssize_t)len;
}

ssize_t siw_llp_tcp_sendv(struct siw_llp_sock *sock, const struct iovec *iov, int n)
{
	CHECK(!sock->listener);
	return fuzz_read_all_octets(iov, n);
}

int siw_llp_udp_send(struct siw_llp_sock *sock, const struct siw_addr *dest,
		     const struct iovec *iov, int n)
{
	(void)sock, (void)dest;
	fuzz_read_all_octets(iov, n);
	return 0;
}

void siw_llp_sock_enable_timer(struct siw_llp_sock *sock)
{
	(void)sock;
}

void siw_llp_sock_set_timer(struct siw_llp_sock *sock, uint64_t at)
{
	(void)sock, (void)at;
}

int siw_llp_udp_enable_ecn(struct siw_llp_sock *sock)
{
	(void)sock;
	return 0;
}

bool siw_llp_udp_ce_received(const struct siw_llp_sock *sock)
{
	(void)sock;
	return false;
}

int siw_llp_udp_disable_fragmentation(struct siw_llp_sock *sock)
{
	(void)sock;
	return 0;
}

int siw_llp_udp_path_max_payload(struct siw_llp_sock *sock, const struct siw_addr *dest)
{
	(void)sock;
	(void)dest;
	return 1472;
}

int siw_llp_udp_send_fragmented(struct siw_llp_sock *sock, const struct siw_addr *dest,
				const struct iovec *iov, int n)
{
	return siw_llp_udp_send(sock, dest, iov, n);
}

int siw_llp_udp_send_batch(struct siw_llp_sock *sock, const struct siw_addr *dest, const void *buf,
			   size_t len, uint16_t seg)
{
	(void)sock, (void)dest, (void)buf, (void)len, (void)seg;
	return -EOPNOTSUPP;
}

/* Returns the next datagram of the input: two octets of length, then that many octets. */
ssize_t siw_llp_udp_recv(struct siw_llp_sock *sock, struct siw_addr *source, void *buf, size_t size)
{
	const uint8_t *at = feed.in->octets + feed.at;
	size_t left = feed.in->len - feed.at, len;

	(void)sock;
	*source = fuzz_addr;
	if (left < 2)
		return -EAGAIN;
	len = (size_t)at[0] << 8 | at[1];
	if (len > left - 2)
		len = left - 2;
	CHECK(len <= size);
	memcpy(buf, at + 2, len);
	feed.at += 2 + len;
	return (ssize_t)len;
}

ssize_t siw_llp_udp_recv_in_poller_buffer(struct siw_llp_sock *sock, struct siw_addr *source,
					  uint8_t **datagram)
{
	*datagram = siw_llp_poller_rx_buffer(NULL);
	return siw_llp_udp_recv(sock, source, *datagram, SIW_LLP_ROOM);
}

bool siw_llp_poller_has_more_datagrams(const struct siw_llp_poller *poller)
{
	(void)poller;
	return false;
}

/* ---- other functions of llp ------------------------------------------------------------------ */

static int create_fuzz_socket(bool listener, struct siw_llp_sock **out)
{
	*out = calloc(1, sizeof(**out));
	CHECK(*out);
	(*out)->listener = listener;
	return 0;
}

int siw_llp_poller_open(const struct siw_llp_poller *sibling, struct siw_llp_poller **out)
{
	(void)sibling;
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : -ENOMEM;
}

uint8_t *siw_llp_poller_rx_buffer(struct siw_llp_poller *poller)
{
	static uint8_t room[SIW_LLP_ROOM];

	(void)poller;
	return room;
}

uint8_t *siw_llp_batch_buffer_acquire(struct siw_llp_poller *poller)
{
	(void)poller;
	return malloc(SIW_LLP_ROOM);
}

void siw_llp_batch_buffer_return(struct siw_llp_poller *poller, uint8_t *batch)
{
	(void)poller;
	free(batch);
}

int siw_llp_udp_open(struct siw_llp_poller *poller, const struct siw_addr *local,
		     struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	(void)poller, (void)local, (void)handler;
	return create_fuzz_socket(false, out);
}

int siw_llp_tcp_listen(struct siw_llp_poller *poller, const struct siw_addr *local, int backlog,
		       struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	(void)poller, (void)local, (void)backlog, (void)handler;
	return create_fuzz_socket(true, out);
}

int siw_llp_tcp_reserve_port(struct siw_addr *local, bool v6_only)
{
	(void)local, (void)v6_only;
	return -EADDRINUSE;
}

int siw_llp_tcp_accept(struct siw_llp_sock *listener, struct siw_io_handler *handler,
		       struct siw_llp_sock **out)
{
	CHECK(listener->listener);
	(void)handler;
	return create_fuzz_socket(false, out);
}

int siw_llp_tcp_connect(struct siw_llp_poller *poller, const struct siw_addr *dest,
			const struct siw_addr *source, struct siw_io_handler *handler,
			struct siw_llp_sock **out)
{
	(void)poller, (void)dest, (void)source, (void)handler;
	return create_fuzz_socket(false, out);
}

int siw_llp_tcp_connect_to_itself(struct siw_llp_poller *poller, const struct siw_addr *local,
				  struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	(void)poller, (void)local, (void)handler;
	return create_fuzz_socket(false, out);
}

void siw_llp_tcp_set_tos(struct siw_llp_sock *sock, int tos)
{
	(void)sock, (void)tos;
}

int siw_llp_tcp_connect_result(struct siw_llp_sock *sock)
{
	(void)sock;
	return 0;
}

int siw_llp_tcp_emss(struct siw_llp_sock *sock)
{
	(void)sock;
	return 1460;
}

bool siw_llp_tcp_is_closed(struct siw_llp_sock *sock)
{
	(void)sock;
	return feed.ended && feed.how & 32;
}

int siw_llp_tcp_shutdown(struct siw_llp_sock *sock)
{
	(void)sock;
	return 0;
}

void siw_llp_tcp_set_abortive_close(struct siw_llp_sock *sock)
{
	(void)sock;
}

void siw_llp_close(struct siw_llp_sock *sock)
{
	free(sock);
}

void siw_llp_update_want_write(struct siw_llp_sock *sock, bool want)
{
	(void)sock, (void)want;
}

void siw_llp_sock_resume(struct siw_llp_sock *sock)
{
	(void)sock;
}

void siw_llp_sock_note_all_handled(struct siw_llp_sock *sock)
{
	(void)sock;
}

void siw_llp_sock_pause(struct siw_llp_sock *sock)
{
	(void)sock;
}

int siw_llp_local_addr(struct siw_llp_sock *sock, struct siw_addr *out)
{
	(void)sock;
	*out = fuzz_addr;
	return 0;
}

int siw_llp_peer_addr(struct siw_llp_sock *sock, struct siw_addr *out)
{
	return siw_llp_local_addr(sock, out);
}
