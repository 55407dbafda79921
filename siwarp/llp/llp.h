/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp.h - the lower layer protocol: UDP and TCP sockets, and the poller that says which of
 * them wants serving. Sockets live here and nowhere else.
 *
 * What this layer does NOT do: know what the octets mean. No framing, no CRC, no reliability of its
 * own. A plan of faults (base/faults.h) may come between these calls and the sockets: llp_fault.h.
 *
 * Locks: none inside, but for what is marked "any thread". The caller serializes all calls on one
 * port (the progress lock) and the sends of one socket (the QP's send lock), but for a UDP socket
 * that siw_llp_shared() was told of; a send and a receive on one socket may run at the same time.
 */
#ifndef SIW_LLP_H
#define SIW_LLP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <siwarp/types.h>

/* cffi: begin */

struct siw_llp_port;
struct siw_llp_sock;

/*
 * Who serves a socket: part of whatever has one, so that serve finds its object by siw_container. A poll hands
 * out the handlers of sockets that may have something. serve does the work: the number of messages it moved.
 */
struct siw_io_handler {
	int (*serve)(struct siw_io_handler *self);
};

/* ---- port: the poller ---------------------------------------------------------------------------
 *
 * Every socket is in one of two places. HOT (at most settings.hot_sockets of them): the ones that
 * had data lately; each poll hands them out unasked, so that the upper layer's receive call is the
 * only system call of a message. COLD: registered edge-triggered in epoll; epoll is asked, without
 * waiting, on each poll while nothing is hot and otherwise on every 32nd, or 10 microseconds after the last
 * time if there are cold ones; what it reports goes to a ready ring. A socket stays on the ring, at its end, until a receive on it said EAGAIN: cost
 * follows the ready sockets, and each is served in turn. A cold socket that turns ready becomes hot
 * if there is room or if a hot one had nothing for 256 polls (that one becomes cold, as does one
 * that had nothing for 1024 polls while others had). Wanting to write counts like data. Listeners,
 * and sockets still connecting, stay cold. Hot sockets are out of the epoll set: staying in would
 * cost each packet a wake-up.
 */
int siw_llp_port_open(struct siw_llp_port **out);
/* Every socket of it must be closed before. */
void siw_llp_port_close(struct siw_llp_port *port);
/* This process opened it; a forked child has a copy. */
bool siw_llp_port_is_ours(const struct siw_llp_port *port);

/* Hands out up to n handlers of sockets that may have something: their count. Never waits. */
int siw_llp_port_poll(struct siw_llp_port *port, struct siw_io_handler **handlers, int n);
/* The time (base/clock.h), as of the last poll if that read the clock: for what need not be exact. */
uint64_t siw_llp_port_clock(const struct siw_llp_port *port);

/*
 * To sleep: arm (hot sockets go back into epoll; those that want to write are watched for that),
 * fill a wait set under the caller's lock, drop the lock, wait. Unarmed, a wait set holds the hot
 * sockets themselves, so that a thread that polls soon again need not move them.
 */
int siw_llp_port_arm(struct siw_llp_port *port);
/* Takes the hot sockets out of epoll again. */
void siw_llp_port_disarm(struct siw_llp_port *port);
bool siw_llp_port_armed(const struct siw_llp_port *port); /* any thread (atomic) */

struct siw_llp_waitset {
	int n;
	int fds[20];
	bool out[20];
	/* For siw_llp_wait(). A set of zeros is an empty one: extra_fd and the time alone count. */
	struct siw_llp_port *port; /* must outlive the wait */
	uint32_t changes;
	uint64_t due_ns; /* when a poll has work whatever the descriptors say; 0: never */
};
void siw_llp_waitset_fill(struct siw_llp_port *port, struct siw_llp_waitset *set);
/*
 * Any thread, no lock: until a member is ready, extra_fd (or -1) is readable, or timeout_us is over
 * (-1: none). 1, 0 at the time's end, -EINTR. What other threads do meanwhile (a socket turns hot
 * or cold, wants to write, is left half read; disarm) cannot make a sleeper miss something: it is
 * woken to fill its set anew. So poll after each wait that gave 1.
 */
int siw_llp_wait(const struct siw_llp_waitset *set, int extra_fd, int64_t timeout_us);
/*
 * Any thread: ends all waits in progress, or the next one; the port's next poll clears it. Look at
 * what a wake was for after siw_llp_port_poll(), not before.
 */
void siw_llp_port_wake(struct siw_llp_port *port);

/*
 * SIW_LLP_ROOM octets, as many as any datagram has: whoever receives one on a socket of this port may have it there
 * until somebody else receives. Under the lock of the receiving side.
 */
#define SIW_LLP_ROOM 65536
uint8_t *siw_llp_port_room(struct siw_llp_port *port);
/*
 * Room of SIW_LLP_ROOM octets to put datagrams that are sent together; NULL: no memory. Any thread. Whoever took it
 * gives it back: one is kept for the port, since there may be thousands of sockets.
 */
uint8_t *siw_llp_batch_take(struct siw_llp_port *port);
void siw_llp_batch_give(struct siw_llp_port *port, uint8_t *batch);

/* ---- an event descriptor, for those above who must not know how one is made ------------------ */

int siw_llp_event_open(void); /* an eventfd: non-blocking, close-on-exec */
void siw_llp_event_set(int fd);
void siw_llp_event_clear(int fd);
void siw_llp_event_close(int fd);

/* ---- interfaces ------------------------------------------------------------------------------ */

struct siw_llp_interface {
	char name[16];
	uint32_t mtu; /* octets */
	uint32_t up;
	uint32_t n_addrs;
	struct siw_addr addrs[16]; /* IPv4 first; port 0 */
};
/* Interfaces that have an address, in the system's order; their count, up to max, or -errno. */
int siw_llp_interfaces(struct siw_llp_interface *out, int max);

/*
 * Watching one of them, by its name. The handler comes up when there is news. siw_llp_watch_read gives
 * the oldest: one of the below, or 0 when there is no more. UP: up and running, as of now or still;
 * DOWN: not, or gone; ADDRS: addresses came or went; LOST: news was lost: look by
 * siw_llp_interfaces.
 */
struct siw_llp_watch;
enum siw_llp_watch_news {
	SIW_LLP_WATCH_UP = 1,
	SIW_LLP_WATCH_DOWN,
	SIW_LLP_WATCH_ADDRS,
	SIW_LLP_WATCH_LOST,
};
int siw_llp_watch_open(struct siw_llp_port *port, const char *name, struct siw_io_handler *handler,
		       struct siw_llp_watch **out);
int siw_llp_watch_read(struct siw_llp_watch *watch);
void siw_llp_watch_close(struct siw_llp_watch *watch);

/* ---- UDP ------------------------------------------------------------------------------------- */

/*
 * Binds a socket (port 0: any). Never SO_REUSEADDR. Buffers by settings rcvbuf and sndbuf (tries
 * FORCE, then the plain option), IPV6_V6ONLY, errors of ICMP do not end anything (counted in
 * icmp_errors; the call that met one tries again once). What the kernel drops for want of room is
 * counted in drop_rxq_overflow, at the latest when the socket is closed.
 */
int siw_llp_udp_open(struct siw_llp_port *port, const struct siw_addr *local,
		     struct siw_io_handler *handler, struct siw_llp_sock **out);
/*
 * Takes over a bound UDP socket of the caller's: made non-blocking, close-on-exec, its error queue
 * and UDP_GRO off; siw_llp_close() closes it. -ENOTSOCK, -EINVAL (not UDP, or without a port): it
 * stays the caller's.
 */
int siw_llp_udp_adopt(struct siw_llp_port *port, int fd, struct siw_io_handler *handler,
		      struct siw_llp_sock **out);

/*
 * A socket of a multicast group on one interface, bound to group and port, so that it is handed nothing
 * else. It has SO_REUSEADDR, which no other has: several processes of a machine are members of one group,
 * and each gets a copy, so nobody takes anything away from another. -EADDRINUSE: a socket that is bound to all addresses has the port, -ENODEV:
 * no such interface. (IPv6, before Linux 5.7 and without CAP_NET_RAW: what comes in over other interfaces that
 * are in the group comes up too.)
 */
int siw_llp_udp_join(struct siw_llp_port *port, const struct siw_addr *group, const char *netdev,
		     struct siw_io_handler *handler, struct siw_llp_sock **out);
/*
 * What this socket sends to groups leaves by that interface, may pass ttl - 1 routers, and comes to the members on this
 * machine too. 0 or -errno. Any thread.
 */
int siw_llp_udp_group_sender(struct siw_llp_sock *sock, const char *netdev, int ttl);
/*
 * From now on several threads may send on this socket at once. A datagram is the kernel's in one piece, so
 * nothing else of a send is common to them but the wish to write: one that got through takes it
 * back, and whoever else found the socket full would not be woken. So every sleeper is, then, and those with something left try
 * again.
 */
void siw_llp_shared(struct siw_llp_sock *sock);
/*
 * One datagram. 0 (want_write is cleared); -EAGAIN (buffer full; ENOBUFS likewise: want_write is
 * set), -EMSGSIZE, -ENETUNREACH, ... EINTR is dealt with inside. One iovec becomes sendto, more
 * become sendmsg.
 */
int siw_llp_udp_send(struct siw_llp_sock *sock, const struct siw_addr *dest,
		     const struct iovec *iov, int n);
/*
 * A batch: datagrams of seg octets each (the last one may be shorter) that lie one behind the other
 * in buf, len octets in all, to one destination in one call (UDP_SEGMENT). 0; -EAGAIN as above;
 * -EOPNOTSUPP if kernel, device or path cannot do it for this size, -ECONNREFUSED if an error of an
 * earlier datagram's came up or a plan of faults is on: send them one by one; -errno.
 */
int siw_llp_udp_send_batch(struct siw_llp_sock *sock, const struct siw_addr *dest, const void *buf,
			   size_t len, uint16_t seg);
/* The same of datagrams that lie apart, one an iovec. */
int siw_llp_udp_send_batchv(struct siw_llp_sock *sock, const struct siw_addr *dest,
			    const struct iovec *iov, int n, uint16_t seg);
/*
 * One datagram into buf: its length (the true one, so > size means it was cut), -EAGAIN, or -errno.
 * recvfrom: one system call.
 */
ssize_t siw_llp_udp_recv(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
			 size_t size);
/*
 * From now on datagrams of one flow may come together, as the batches they were sent in (UDP_GRO), and
 * siw_llp_udp_recv_batch is to be used; what lies there when it ends may still be a batch. 0, or -errno: the
 * kernel does not know how.
 */
int siw_llp_udp_gro(struct siw_llp_sock *sock, bool on);
/* As siw_llp_udp_recv; *seg: octets of each datagram but the last, 0: it is one. Under a plan of faults it is. */
ssize_t siw_llp_udp_recv_batch(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
			       size_t size, uint16_t *seg);

/*
 * From now on no datagram of this socket is cut into fragments: one that is too long for its path is
 * -EMSGSIZE.
 */
int siw_llp_udp_whole(struct siw_llp_sock *sock);
/*
 * Octets that a datagram from here to dest holds at the most without being cut, as far as the kernel
 * knows the path now; -ENETUNREACH and its like. A few system calls.
 */
int siw_llp_udp_path(struct siw_llp_sock *sock, const struct siw_addr *dest);
/*
 * may: datagrams of this socket may be cut into fragments; not may: none is, whatever the kernel believes of
 * the path's MTU (one that is too long for the interface is -EMSGSIZE). 0 or -errno.
 */
int siw_llp_udp_fragments(struct siw_llp_sock *sock, bool may);
/* Octets of the longest IP packet on the way to dest, as far as the kernel knows; 0: it knows nothing. */
uint32_t siw_llp_udp_route_mtu(const struct siw_addr *dest);
/* Octets of payload that the kernel holds for this socket until they are read; 0: unknown. */
uint32_t siw_llp_udp_room(struct siw_llp_sock *sock);
/* As siw_llp_udp_send after siw_llp_udp_whole, for this one datagram: cut if need be. */
int siw_llp_udp_send_cut(struct siw_llp_sock *sock, const struct siw_addr *dest,
			 const struct iovec *iov, int n);

/* ---- TCP ------------------------------------------------------------------------------------- */

int siw_llp_tcp_listen(struct siw_llp_port *port, const struct siw_addr *local, int backlog,
		       struct siw_io_handler *handler, struct siw_llp_sock **out);
/*
 * A connection that waits: 0 and *out, -EAGAIN, or -errno. -EMFILE, -ENFILE, -ENOBUFS and -ENOMEM
 * leave the connection queued; the poller hands the listener out again 100 ms later.
 */
int siw_llp_tcp_accept(struct siw_llp_sock *listener, struct siw_io_handler *handler,
		       struct siw_llp_sock **out);
/* Starts to connect, from source if it is not NULL; siw_llp_tcp_connected tells the outcome. */
int siw_llp_tcp_connect(struct siw_llp_port *port, const struct siw_addr *dest,
			const struct siw_addr *source, struct siw_io_handler *handler,
			struct siw_llp_sock **out);
/* 0 connected, -EAGAIN not yet, or -errno (ECONNREFUSED, ...). */
int siw_llp_tcp_connected(struct siw_llp_sock *sock);

/*
 * All TCP sockets: TCP_NODELAY, non-blocking, close-on-exec, no SIGPIPE, buffers left to
 * autotuning.
 */

/*
 * Octets taken (maybe fewer than given), -EAGAIN (want_write is set), or -errno. One iovec: send.
 */
ssize_t siw_llp_tcp_sendv(struct siw_llp_sock *sock, const struct iovec *iov, int n);
/*
 * Octets read, 0 at the peer's end of stream, -EAGAIN, or -errno. One iovec: recv. The end of a
 * stream is told each time one asks; after it, as after EAGAIN, the poller is silent about reading.
 */
ssize_t siw_llp_tcp_recvv(struct siw_llp_sock *sock, const struct iovec *iov, int n);
/* Effective maximum segment size now, octets (TCP_MAXSEG). */
int siw_llp_tcp_emss(struct siw_llp_sock *sock);
/* The connection is no more, by a reset or a time-out, whatever may still be read of it. */
bool siw_llp_tcp_gone(struct siw_llp_sock *sock);
/* No more will be sent: the peer reads an end of stream after what was sent. */
int siw_llp_tcp_shutdown(struct siw_llp_sock *sock);
/* Makes close() send a reset and forget what is unsent. */
void siw_llp_tcp_abort(struct siw_llp_sock *sock);

/* ---- any socket ------------------------------------------------------------------------------ */

void siw_llp_close(struct siw_llp_sock *sock);
void siw_llp_set_handler(struct siw_llp_sock *sock, struct siw_io_handler *handler);
/* There is something to send that did not fit: a sleep must end when there is room. Any thread. */
void siw_llp_want_write(struct siw_llp_sock *sock, bool want);
/* The upper layer stopped short of EAGAIN (its budget, a full queue): hand the socket out again. */
void siw_llp_resume(struct siw_llp_sock *sock);
/*
 * Until siw_llp_resume the upper layer will not read (or accept): what comes waits in the kernel, and
 * the socket comes up for its end, an error or room to write alone, so that nobody is kept awake.
 */
void siw_llp_pause(struct siw_llp_sock *sock);
/* It may have something: the poller hands it out. */
void siw_llp_sock_ready(struct siw_llp_sock *sock);
/*
 * A socket with timers of its own, once and before the next two: siw_llp_sock_due, in any thread, has it handed
 * out at this time (base/clock.h) at the latest; awaits_due: such a time is set, and no poll has found it past.
 */
void siw_llp_sock_timed(struct siw_llp_sock *sock);
void siw_llp_sock_due(struct siw_llp_sock *sock, uint64_t at);
bool siw_llp_sock_awaits_due(const struct siw_llp_sock *sock);
int siw_llp_local(struct siw_llp_sock *sock, struct siw_addr *out);
int siw_llp_peer(struct siw_llp_sock *sock, struct siw_addr *out);

/* cffi: end */

#endif
