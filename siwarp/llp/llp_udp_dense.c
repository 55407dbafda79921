/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_udp_dense.c - when a UDP socket receives several datagrams by one system call.
 *
 * With UDP_GRO on, the kernel delivers datagrams of one flow as the batch that they were sent in. A
 * batch costs a fraction of its datagrams received one by one, but a lone datagram costs slightly
 * more. So a socket asks for batches while many short datagrams come: from the 32nd that came
 * without the socket being empty in between, until 64 times in a row it was empty after two or
 * fewer. Faults and captures handle each datagram alone, so while there are any, it asks for none.
 */
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include "llp/llp_fault.h"
#include "llp/llp_sock.h"
#include "llp/llp_capture.h"

#define DENSE  32
#define SPARSE 64
#define SHORT  (SIW_LLP_ROOM / 2) /* of a longer one no two fit into a batch */

static void start(struct siw_llp_sock *sock)
{
	sock->no_batches = siw_llp_option(sock->fd, IPPROTO_UDP, UDP_GRO, 1) < 0;
	sock->batches = !sock->no_batches;
	sock->lulls = 0;
}

/*
 * A batch that is queued would be received as one datagram, without a word of how many it is. So
 * batches go on if there may be one: what comes from now on comes alone.
 */
static void stop(struct siw_llp_sock *sock)
{
	int queued = 0;

	siw_llp_option(sock->fd, IPPROTO_UDP, UDP_GRO, 0);
	sock->batches = false;
	if (ioctl(sock->fd, SIOCINQ, &queued) || queued)
		start(sock);
}

void siw_llp_udp_dense_close(struct siw_llp_sock *sock)
{
	/* The user may still have a descriptor of the socket, and gets it back without UDP_GRO. */
	if (sock->batches)
		siw_llp_option(sock->fd, IPPROTO_UDP, UDP_GRO, 0);
}

static bool each_alone(void)
{
	return siw_faults_on() || siw_capture_on();
}

static __attribute__((cold, noinline)) void thicken(struct siw_llp_sock *sock)
{
	if (!sock->batches && !sock->no_batches && !each_alone())
		start(sock);
}

/* The socket is empty, and was not before. */
static void ran_dry(struct siw_llp_sock *sock)
{
	if (sock->streak > 2)
		sock->lulls = 0;
	else if (sock->batches && ++sock->lulls >= SPARSE)
		stop(sock);
	sock->streak = 0;
}

/* Receives with what the kernel tells beside the octets: the size of a batch's datagrams, and CE. */
static ssize_t recv_told(struct siw_llp_sock *sock, struct siw_addr *source, void *buf, size_t size,
			 uint16_t *batch)
{
	sock->ce = false;
	if (siw_faults_on() && !sock->batches)
		return siw_llp_fault_recv(sock, source, buf, size);
	return siw_llp_udp_recv_batch(sock, source, buf, size, batch);
}

ssize_t siw_llp_udp_recv_dense(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
			       size_t size, uint32_t *seg)
{
	uint16_t batch = 0;
	ssize_t len;

	if (__builtin_expect(sock->batches, 0) && each_alone())
		stop(sock);
	if (__builtin_expect(sock->batches, 0) ||
	    __builtin_expect(atomic_load_explicit(&sock->ecn, memory_order_relaxed), 0))
		len = recv_told(sock, source, buf, size, &batch);
	else
		len = siw_llp_udp_recv(sock, source, buf, size);
	if (len < 0) {
		if (sock->streak)
			ran_dry(sock);
		return len;
	}
	*seg = batch ? batch : (uint32_t)len;
	if (*seg <= SHORT)
		sock->streak += batch ? (uint32_t)len / batch : 1;
	if (__builtin_expect(sock->streak >= DENSE, 0))
		thicken(sock);
	return len;
}

bool siw_llp_port_more(const struct siw_llp_port *port)
{
	return port->room_at < port->room_end;
}

ssize_t siw_llp_udp_next(struct siw_llp_sock *sock, struct siw_addr *source, uint8_t **datagram)
{
	struct siw_llp_port *port = sock->port;
	uint32_t left;
	ssize_t len;

	*datagram = port->room;
	if (__builtin_expect(!siw_llp_port_more(port), 1)) {
		len = siw_llp_udp_recv_dense(sock, source, port->room, SIW_LLP_ROOM,
					     &port->room_seg);
		if (len <= (ssize_t)port->room_seg || len > SIW_LLP_ROOM)
			return len;
		port->room_source = *source;
		port->room_at = 0;
		port->room_end = (uint32_t)len;
	}
	*source = port->room_source;
	*datagram += port->room_at;
	left = port->room_end - port->room_at;
	len = left < port->room_seg ? left : port->room_seg;
	port->room_at += (uint32_t)len;
	return len;
}
