/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The llp functions that reliable datagrams use, over the network of fuzz_rd.h. */
#include <arpa/inet.h>
#include <time.h>

#include "fuzz_rd.h"

struct fuzz_net net;

static struct fuzz_datagram pool[AIR], past[PAST], inboxes[ENDS][INBOX];
/* array of the datagrams in flight, followed by unused ones */
static struct fuzz_datagram *air[AIR];

void fuzz_net_reset(void)
{
	memset(&net, 0, sizeof(net));
	net.now = 1000000000;
	net.in_flight = air;
	for (int i = 0; i < AIR; i++)
		air[i] = &pool[i];
	net.past = past;
	for (int i = 0; i < ENDS; i++)
		net.end[i].inbox = inboxes[i];
}

int fuzz_clock_gettime(clockid_t clock, struct timespec *t)
{
	(void)clock;
	t->tv_sec = (time_t)(net.now / 1000000000);
	t->tv_nsec = (long)(net.now % 1000000000);
	return 0;
}

struct siw_addr fuzz_addr_from_index(int place)
{
	return (struct siw_addr){
		.family = AF_INET,
		.port_be = htons((uint16_t)(1000 + place)),
		.v4 = { 10, 0, place < ENDS ? 0 : 1, (uint8_t)place },
	};
}

int fuzz_index_of_addr(const struct siw_addr *addr)
{
	CHECK(addr->v4[3] < PLACES);
	return addr->v4[3];
}

/* ---- datagrams in flight --------------------------------------------------------------------- */

static void fuzz_net_copy_datagram(struct fuzz_datagram *to, const struct fuzz_datagram *from)
{
	memcpy(to, from, offsetof(struct fuzz_datagram, octets) + from->len);
}

static void fuzz_net_record_epoch_and_cookie(int stranger, const uint8_t *octets, uint32_t len)
{
	const struct siw_rd_wire *wire = (const void *)octets;

	CHECK(len >= SIW_RD_OVERHEAD);
	net.heard[stranger].epoch = ntohl(wire->source_epoch);
	if (wire->llp.type >> 4 == SIW_DGRAM_RD_CHALLENGE)
		memcpy(net.heard[stranger].cookie,
		       octets + len - SIW_DGRAM_CRC_LEN - SIW_RD_COOKIE_LEN, SIW_RD_COOKIE_LEN);
}

void fuzz_net_send_datagram(int from, int to, const void *octets, uint32_t len)
{
	struct fuzz_datagram *d = &past[net.kept++ % PAST];

	CHECK(len <= sizeof(d->octets));
	d->from = (uint8_t)from;
	d->to = (uint8_t)to;
	d->len = len;
	memcpy(d->octets, octets, len);
	if (to >= ENDS)
		fuzz_net_record_epoch_and_cookie(to - ENDS, octets, len);
	else if (net.n_in_flight < AIR)
		fuzz_net_copy_datagram(air[net.n_in_flight++], d);
}

void fuzz_net_replay_datagram(uint32_t which)
{
	uint32_t n = net.kept < PAST ? net.kept : PAST;
	struct fuzz_datagram d;

	if (!n)
		return;
	d = past[(net.kept - 1 - which % n) % PAST];
	if (d.to < ENDS)
		fuzz_net_send_datagram(d.from, d.to, d.octets, d.len);
}

void fuzz_net_drop_datagram(uint32_t i)
{
	struct fuzz_datagram *unused;

	if (i >= net.n_in_flight)
		return;
	unused = air[i];
	memmove(air + i, air + i + 1, (net.n_in_flight - i - 1) * sizeof(air[0]));
	air[--net.n_in_flight] = unused;
}

bool fuzz_net_deliver_datagram(uint32_t i)
{
	int to;

	if (i >= net.n_in_flight)
		return false;
	to = air[i]->to;
	if (net.end[to].at == net.end[to].n)
		net.end[to].at = net.end[to].n = 0;
	if (net.end[to].n == INBOX)
		return false;
	fuzz_net_copy_datagram(&inboxes[to][net.end[to].n++], air[i]);
	net.end[to].up = true;
	fuzz_net_drop_datagram(i);
	return true;
}

/* ---- sockets: the descriptor encodes the place ----------------------------------------------- */

enum { FIRST_FD = 1000000 };

static int index_of_sock(const struct siw_llp_sock *sock)
{
	return sock->fd - FIRST_FD;
}

int siw_llp_udp_open(struct siw_llp_poller *poller, const struct siw_addr *local,
		     struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	CHECK(!posix_memalign((void **)out, _Alignof(struct siw_llp_sock), sizeof(**out)));
	memset(*out, 0, sizeof(**out));
	(*out)->fd = FIRST_FD + fuzz_index_of_addr(local);
	(*out)->poller = poller;
	(*out)->handler = handler;
	(*out)->due_ns = UINT64_MAX;
	net.end[fuzz_index_of_addr(local)].sock = *out;
	return 0;
}

int siw_llp_udp_adopt_program_socket(struct siw_llp_poller *poller, int fd,
				     struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	(void)poller, (void)fd, (void)handler, (void)out;
	return -ENOTSOCK;
}

void siw_llp_close(struct siw_llp_sock *sock)
{
	net.end[index_of_sock(sock)].sock = NULL;
	free(sock);
}

int siw_llp_local_addr(struct siw_llp_sock *sock, struct siw_addr *out)
{
	*out = fuzz_addr_from_index(index_of_sock(sock));
	return 0;
}

static int fuzz_net_send_from_sock(struct siw_llp_sock *sock, const struct siw_addr *dest,
				   const struct iovec *iov, int n)
{
	int from = index_of_sock(sock), to = fuzz_index_of_addr(dest);
	uint8_t octets[FUZZ_LONGEST];
	uint32_t len = 0;

	for (int i = 0; i < n; i++) {
		CHECK(len + iov[i].iov_len <= sizeof(octets));
		memcpy(octets + len, iov[i].iov_base, iov[i].iov_len);
		len += (uint32_t)iov[i].iov_len;
	}
	/*
	 * A peer without a record, and without a handshake in progress, is never sent more octets
	 * than it sent.
	 */
	CHECK(net.knows(from, to) || len <= net.end[from].asked);
	fuzz_net_send_datagram(from, to, octets, len);
	return 0;
}

int siw_llp_udp_send(struct siw_llp_sock *sock, const struct siw_addr *dest,
		     const struct iovec *iov, int n)
{
	return net.full ? -EAGAIN : fuzz_net_send_from_sock(sock, dest, iov, n);
}

int siw_llp_udp_send_batchv(struct siw_llp_sock *sock, const struct siw_addr *dest,
			    const struct iovec *iov, int n, uint16_t seg)
{
	if (net.full)
		return -EAGAIN;
	if (net.no_batches)
		return -EOPNOTSUPP;
	for (int i = 0; i < n; i++) {
		CHECK(i == n - 1 ? iov[i].iov_len <= seg : iov[i].iov_len == seg);
		fuzz_net_send_from_sock(sock, dest, iov + i, 1);
	}
	return 0;
}

static const struct fuzz_datagram *fuzz_net_next_received_datagram(int place)
{
	return net.end[place].at < net.end[place].n ? &inboxes[place][net.end[place].at] : NULL;
}

ssize_t siw_llp_udp_recv(struct siw_llp_sock *sock, struct siw_addr *source, void *buf, size_t size)
{
	int place = index_of_sock(sock);
	const struct fuzz_datagram *d = fuzz_net_next_received_datagram(place);

	if (!d)
		return -EAGAIN;
	CHECK(d->len <= size);
	memcpy(buf, d->octets, d->len);
	*source = fuzz_addr_from_index(d->from);
	net.end[place].asked = d->len;
	net.end[place].at++;
	return (ssize_t)d->len;
}

/*
 * Receives like the kernel on a socket with UDP_GRO: up to 32 datagrams of one sender and one
 * length, and one shorter datagram at the end, are returned together.
 */
ssize_t siw_llp_udp_recv_with_gro(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
				  size_t size, uint32_t *seg)
{
	int place = index_of_sock(sock);
	ssize_t len = siw_llp_udp_recv(sock, source, buf, size), more;
	const struct fuzz_datagram *d;

	*seg = len > 0 ? (uint32_t)len : 0;
	net.end[place].streak = len > 0 ? net.end[place].streak + 1 : 0;
	if (net.end[place].streak <= 32 || net.no_batches)
		return len;
	for (uint32_t last = (uint32_t)len, first = last; last == first; last = d->len) {
		d = fuzz_net_next_received_datagram(place);
		if (!d || d->from != fuzz_index_of_addr(source) || d->len > first || !d->len ||
		    (size_t)len + d->len > size)
			break;
		more = siw_llp_udp_recv(sock, source, (uint8_t *)buf + len, size - (size_t)len);
		len += more;
		net.end[place].asked = first;
	}
	return len;
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

uint32_t siw_llp_udp_route_mtu(struct siw_llp_sock *sock, const struct siw_addr *dest)
{
	(void)sock, (void)dest;
	return net.route_mtu;
}

int siw_llp_udp_set_fragmentation_allowed(struct siw_llp_sock *sock, bool may)
{
	(void)sock, (void)may;
	return 0;
}

uint32_t siw_llp_udp_rx_buffer_size(struct siw_llp_sock *sock)
{
	(void)sock;
	return 0;
}

/* ---- the poller ------------------------------------------------------------------------------ */

void siw_llp_sock_enable_timer(struct siw_llp_sock *sock)
{
	sock->due_ns = UINT64_MAX;
}

bool siw_llp_sock_timer_is_pending(const struct siw_llp_sock *sock)
{
	return sock->due_ns != UINT64_MAX;
}

bool siw_llp_poller_opened_by_this_process(const struct siw_llp_poller *poller)
{
	return getpid() == poller->owner;
}

void siw_llp_sock_set_timer(struct siw_llp_sock *sock, uint64_t at)
{
	if (at < sock->due_ns)
		sock->due_ns = at;
}

void siw_llp_sock_mark_ready(struct siw_llp_sock *sock)
{
	net.end[index_of_sock(sock)].up = true;
}

void siw_llp_sock_resume(struct siw_llp_sock *sock)
{
	siw_llp_sock_mark_ready(sock);
}
