/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_udp_dense.c - decides when a UDP socket receives several datagrams with one system call.
 *
 * With UDP_GRO on, the kernel delivers datagrams of one flow in the batch in which they were sent.
 * Receiving a batch costs a fraction of receiving its datagrams one by one, but receiving a single
 * datagram costs slightly more. So UDP_GRO is turned on while many short datagrams arrive: after 32
 * datagrams that were received without finding the socket empty, until the socket was found empty
 * after at most two datagrams 64 times in a row. Fault plans and captures handle each datagram
 * separately, so UDP_GRO is off while either is active.
 */
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include "llp/llp_fault.h"
#include "llp/llp_sock.h"
#include "llp/llp_capture.h"

#define DENSE  32
#define SPARSE 64
#define SHORT  (SIW_LLP_ROOM / 2) /* octets; two longer datagrams do not fit into one batch */

static void turn_gro_on(struct siw_llp_sock *sock)
{
	sock->no_batches = siw_llp_set_socket_option(sock->fd, IPPROTO_UDP, UDP_GRO, 1) < 0;
	sock->batches = !sock->no_batches;
	sock->lulls = 0;
}

/*
 * Turns UDP_GRO off. A batch that is already queued would then be received as one datagram, without
 * the size of its parts, so UDP_GRO is turned on again if any datagrams are queued.
 */
static void sock_turn_udp_gro_off(struct siw_llp_sock *sock)
{
	int queued = 0;

	siw_llp_set_socket_option(sock->fd, IPPROTO_UDP, UDP_GRO, 0);
	sock->batches = false;
	if (ioctl(sock->fd, SIOCINQ, &queued) || queued)
		turn_gro_on(sock);
}

void siw_llp_udp_disable_gro_for_close(struct siw_llp_sock *sock)
{
	/* The program may have another descriptor of the socket, which must behave as before. */
	if (sock->batches)
		siw_llp_set_socket_option(sock->fd, IPPROTO_UDP, UDP_GRO, 0);
}

static bool must_send_datagrams_unbatched(void)
{
	return siw_faults_on() || siw_capture_on();
}

static __attribute__((cold, noinline)) void count_dense_traffic(struct siw_llp_sock *sock)
{
	if (!sock->batches && !sock->no_batches && !must_send_datagrams_unbatched())
		turn_gro_on(sock);
}

/* Called when the socket was found empty after at least one datagram. */
static void note_socket_empty(struct siw_llp_sock *sock)
{
	if (sock->streak > 2)
		sock->lulls = 0;
	else if (sock->batches && ++sock->lulls >= SPARSE)
		sock_turn_udp_gro_off(sock);
	sock->streak = 0;
}

/*
 * Receives a datagram or a batch together with its control messages, which state the size of the
 * batch's datagrams, and whether the datagrams were marked CE.
 */
static ssize_t recv_with_control(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
				 size_t size, uint16_t *batch)
{
	sock->got_ecn = 0;
	if (siw_faults_on() && !sock->batches)
		return siw_llp_udp_recv_with_faults(sock, source, buf, size);
	return siw_llp_udp_recv_batch(sock, source, buf, size, batch);
}

ssize_t siw_llp_udp_recv_with_gro(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
				  size_t size, uint32_t *seg)
{
	uint16_t batch = 0;
	ssize_t len;

	if (__builtin_expect(sock->batches, 0) && must_send_datagrams_unbatched())
		sock_turn_udp_gro_off(sock);
	if (__builtin_expect(sock->batches, 0) ||
	    __builtin_expect(atomic_load_explicit(&sock->ecn, memory_order_relaxed), 0))
		len = recv_with_control(sock, source, buf, size, &batch);
	else
		len = siw_llp_udp_recv(sock, source, buf, size);
	if (len < 0) {
		if (sock->streak)
			note_socket_empty(sock);
		return len;
	}
	*seg = batch ? batch : (uint32_t)len;
	if (*seg <= SHORT)
		sock->streak += batch ? (uint32_t)len / batch : 1;
	if (__builtin_expect(sock->streak >= DENSE, 0))
		count_dense_traffic(sock);
	return len;
}

bool siw_llp_poller_has_more_datagrams(const struct siw_llp_poller *poller)
{
	return poller->room_at < poller->room_end;
}

ssize_t siw_llp_udp_recv_in_poller_buffer(struct siw_llp_sock *sock, struct siw_addr *source,
					  uint8_t **datagram)
{
	struct siw_llp_poller *poller = sock->poller;
	uint32_t left;
	ssize_t len;

	*datagram = poller->room;
	if (__builtin_expect(!siw_llp_poller_has_more_datagrams(poller), 1)) {
		len = siw_llp_udp_recv_with_gro(sock, source, poller->room, SIW_LLP_ROOM,
						&poller->room_seg);
		if (len <= (ssize_t)poller->room_seg || len > SIW_LLP_ROOM)
			return len;
		poller->room_source = *source;
		poller->room_at = 0;
		poller->room_end = (uint32_t)len;
	}
	*source = poller->room_source;
	*datagram += poller->room_at;
	left = poller->room_end - poller->room_at;
	len = left < poller->room_seg ? left : poller->room_seg;
	poller->room_at += (uint32_t)len;
	return len;
}
