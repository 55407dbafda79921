/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp.h - the lower layer protocol: UDP and TCP sockets, and the poller that finds those with
 * work to do. No other folder opens a socket.
 *
 * What this layer does NOT do: know what the octets mean. No framing, no CRC, no reliability of its
 * own. A plan of faults (base/faults.h) may act between these calls and the sockets: llp_fault.h.
 *
 * Results: int and ssize_t functions return 0 or a count, or -errno. Times are nanoseconds of
 * base/clock.h unless a name says otherwise.
 *
 * Locks: functions marked "any thread" need none. For the others the caller holds the progress lock
 * of the port, and for sends the QP's send lock, so that one thread at a time sends on a socket; a
 * socket after siw_llp_shared() is the exception. A send and a receive on one socket may run at the
 * same time.
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
 * Who serves a socket. It is a member of the object that owns the socket, so that serve finds that
 * object by siw_container. A poll returns the handlers of sockets that may have work; serve does
 * the work and returns how many messages it moved.
 */
struct siw_io_handler {
	int (*serve)(struct siw_io_handler *self);
};

/* ---- port: the poller ------------------------------------------------------------------------
 *
 * A socket is hot or cold.
 *
 * HOT, at most settings.hot_sockets: it had data lately. Every poll returns it without a system
 * call first, so the receive call of the upper layer is the only one per message. It is not in the
 * epoll set, where each packet would cost a wake-up.
 *
 * COLD: it is registered in epoll, edge-triggered. A poll calls epoll_wait, with time-out 0, if no
 * socket is hot; otherwise every 32nd poll does, and also one that comes 10 us after the last call, or
 * up to 80 us once calls find nothing. Sockets that epoll reports go to the ready ring. There each
 * is served in turn, and stays until a receive on it returns EAGAIN; so the cost follows the number of
 * ready sockets.
 *
 * A cold socket that becomes ready turns hot if there is room, or takes the place of a hot one
 * without data for 256 polls. A hot one without data for 1024 polls turns cold while others have
 * data. A socket that waits for room to write counts as one with data. Listeners and sockets that
 * are still connecting stay cold.
 */
/* Opens a port without sockets: 0 or -errno. */
int siw_llp_port_open(struct siw_llp_port **out);
/* Closes it; all its sockets must be closed already. */
void siw_llp_port_close(struct siw_llp_port *port);
/* Whether this process opened it; in a forked child: false. */
bool siw_llp_port_is_ours(const struct siw_llp_port *port);

/* Writes up to n handlers of sockets that may have work; returns their count. Never waits. */
int siw_llp_port_poll(struct siw_llp_port *port, struct siw_io_handler **handlers, int n);
/*
 * Behind a round whose thread may make no other one: wakes the threads that sleep on a wait set, if
 * there is more to do (more), or a socket was not found empty. Progress lock.
 */
void siw_llp_port_leave(struct siw_llp_port *port, bool more);
/* The time, as of the last poll if that read the clock: for uses that need not be exact. */
uint64_t siw_llp_port_clock(const struct siw_llp_port *port);

/*
 * A thread that wants to sleep arms the port, fills a wait set, releases the lock and waits. Arming
 * puts the hot sockets into epoll, with EPOLLOUT for those that wait for room. If the port is not
 * armed, the wait set has the hot sockets themselves: cheaper for a thread that polls again soon.
 * 0 or -errno.
 */
int siw_llp_port_arm(struct siw_llp_port *port);
/* Takes the hot sockets out of epoll again. */
void siw_llp_port_disarm(struct siw_llp_port *port);
bool siw_llp_port_armed(const struct siw_llp_port *port); /* any thread (atomic) */

struct siw_llp_waitset {
	int n;
	int fds[20];
	bool out[20];
	/*
	 * For siw_llp_wait(). A set of zeros is empty: then only extra_fd and the time end a wait.
	 */
	struct siw_llp_port *port; /* must outlive the wait */
	uint32_t changes;
	uint64_t due_ns; /* when a poll has work even if no descriptor is ready; 0: never */
};
/* Fills the set with what a poll would look at now. Progress lock. */
void siw_llp_waitset_fill(struct siw_llp_port *port, struct siw_llp_waitset *set);
/*
 * Any thread, no lock. Waits until a member is ready, extra_fd (-1: none) is readable, or
 * timeout_us microseconds (-1: no limit) are over. Returns 1, 0 after the time-out, or -EINTR. If
 * another thread changes what the set should have had (a socket turns hot or cold, waits for room,
 * is left half read; the port is disarmed), the wait returns 1, so that the caller fills a new set.
 * After each 1: poll.
 */
int siw_llp_wait(const struct siw_llp_waitset *set, int extra_fd, int64_t timeout_us);
/* The same, and a cancellation point (base/cancel.h). */
int siw_llp_wait_cancel(const struct siw_llp_waitset *set, int extra_fd, int64_t timeout_us);
/*
 * Any thread. Ends all waits in progress, or the next one if there is none; the port's next poll
 * clears it. What the wake was for must be looked at after that siw_llp_port_poll(), not before.
 */
void siw_llp_port_wake(struct siw_llp_port *port);

/*
 * A buffer of SIW_LLP_ROOM octets, the largest datagram there is, for a datagram received on any
 * socket of this port. The next receive overwrites it. Progress lock.
 */
#define SIW_LLP_ROOM 65536
uint8_t *siw_llp_port_room(struct siw_llp_port *port);
/*
 * A buffer of SIW_LLP_ROOM octets to build a batch of datagrams in, or NULL without memory; give
 * returns it. Any thread. The port keeps one for the next take, rather than one for each of what
 * may be thousands of sockets.
 */
uint8_t *siw_llp_batch_take(struct siw_llp_port *port);
void siw_llp_batch_give(struct siw_llp_port *port, uint8_t *batch);

/* ---- an event descriptor: readable between set and clear; any thread ------------------------- */

int siw_llp_event_open(void); /* close-on-exec: the descriptor, or -errno */
/* Whether somebody has set O_NONBLOCK on it. */
bool siw_llp_event_nonblocking(int fd);
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
/*
 * Writes up to max interfaces that have an address, in the system's order: their count, or -errno.
 */
int siw_llp_interfaces(struct siw_llp_interface *out, int max);

/*
 * Watches the interface of a name. A poll returns the handler when there are changes to read;
 * siw_llp_watch_read then returns the oldest one, of the enum below, or 0 if there is none left.
 */
struct siw_llp_watch;
enum siw_llp_watch_news {
	SIW_LLP_WATCH_UP = 1, /* it is up and running; it may have been before */
	SIW_LLP_WATCH_DOWN,   /* it is not, or does not exist any more */
	SIW_LLP_WATCH_ADDRS,  /* an address was added or removed */
	SIW_LLP_WATCH_LOST,   /* the kernel dropped reports: siw_llp_interfaces has the state */
};
int siw_llp_watch_open(struct siw_llp_port *port, const char *name, struct siw_io_handler *handler,
		       struct siw_llp_watch **out);
int siw_llp_watch_read(struct siw_llp_watch *watch);
void siw_llp_watch_close(struct siw_llp_watch *watch);

/* ---- UDP ------------------------------------------------------------------------------------- */

/*
 * Binds a socket (port 0: any free one), IPV6_V6ONLY and never with SO_REUSEADDR. Buffers have the
 * octets of settings rcvbuf and sndbuf, by SO_RCVBUFFORCE where that is allowed. 0 or -errno.
 *
 * An ICMP error breaks nothing: it is counted in icmp_errors, and the call that returned it is
 * tried once more. Datagrams that the kernel drops because the buffer is full are counted in
 * drop_rxq_overflow, at the latest when the socket is closed.
 */
int siw_llp_udp_open(struct siw_llp_port *port, const struct siw_addr *local,
		     struct siw_io_handler *handler, struct siw_llp_sock **out);
/* As siw_llp_tcp_keep, of UDP: nobody else has the port meanwhile. */
int siw_llp_udp_keep(struct siw_addr *local, bool v6_only);
/*
 * Takes over a bound UDP socket: makes it non-blocking and close-on-exec, turns its error queue and
 * UDP_GRO off; siw_llp_close() closes it. -ENOTSOCK; -EINVAL: not UDP, or not bound to a port.
 * After an error the socket is still the caller's.
 */
int siw_llp_udp_adopt(struct siw_llp_port *port, int fd, struct siw_io_handler *handler,
		      struct siw_llp_sock **out);

/*
 * A socket that is a member of a multicast group on one interface, bound to the group's address and
 * port, so that it receives nothing else. It alone has SO_REUSEADDR: each process of a machine that
 * is a member gets a copy of its own. -EADDRINUSE: a socket bound to the wildcard address has the
 * port; -ENODEV: no such interface. (IPv6 before Linux 5.7 without CAP_NET_RAW: datagrams to the
 * group that came over other interfaces are received, too.)
 */
int siw_llp_udp_join(struct siw_llp_port *port, const struct siw_addr *group, const char *netdev,
		     struct siw_io_handler *handler, struct siw_llp_sock **out);
/*
 * From now on datagrams of this socket to groups leave by that interface, pass at most ttl - 1
 * routers, and reach the members on this machine, too. 0 or -errno. Any thread.
 */
int siw_llp_udp_group_sender(struct siw_llp_sock *sock, const char *netdev, int ttl);
/*
 * From now on several threads may send on this socket at once. They share one thing only,
 * want_write: a send that succeeds clears it, although another thread found the socket full. So on
 * that occasion every sleeper is woken, and those with something left to send try again.
 */
void siw_llp_shared(struct siw_llp_sock *sock);
/*
 * Sends one datagram, by sendto for one iovec and sendmsg for more. 0, and want_write is cleared;
 * -EAGAIN, also for ENOBUFS: no room, and want_write is set; -EMSGSIZE, -ENETUNREACH or another
 * -errno. EINTR is handled inside.
 */
int siw_llp_udp_send(struct siw_llp_sock *sock, const struct siw_addr *dest,
		     const struct iovec *iov, int n);
/*
 * Sends a batch: datagrams to one destination by one call (UDP_SEGMENT). They lie one behind the
 * other in buf, len octets in all, each of seg octets but the last, which may be shorter. 0;
 * -EAGAIN as above; -EOPNOTSUPP: kernel, device or path cannot send this size so; -ECONNREFUSED: an
 * error of an earlier datagram was pending, or a plan of faults is set. After the latter two the
 * caller sends them one by one. Or another -errno.
 */
int siw_llp_udp_send_batch(struct siw_llp_sock *sock, const struct siw_addr *dest, const void *buf,
			   size_t len, uint16_t seg);
/* The same for datagrams that lie apart, one per iovec. */
int siw_llp_udp_send_batchv(struct siw_llp_sock *sock, const struct siw_addr *dest,
			    const struct iovec *iov, int n, uint16_t seg);
/*
 * Receives one datagram into buf by one recvfrom. Returns the datagram's whole length, which is
 * above size if it was cut; -EAGAIN; or -errno.
 */
ssize_t siw_llp_udp_recv(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
			 size_t size);
/*
 * As siw_llp_udp_recv, but while many short datagrams come, one call may return several of one
 * source (llp_udp_dense.c). *seg: octets of each datagram but the last, which may be shorter.
 */
ssize_t siw_llp_udp_recv_dense(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
			       size_t size, uint32_t *seg);

/*
 * Receives the next datagram in the port's room, where it stays until the next call. Returns its
 * length, which is above SIW_LLP_ROOM if it was cut; -EAGAIN; or -errno. While siw_llp_port_more(),
 * nothing else may be received in the room: datagrams that came with this one are there.
 */
ssize_t siw_llp_udp_next(struct siw_llp_sock *sock, struct siw_addr *source, uint8_t **datagram);
bool siw_llp_port_more(const struct siw_llp_port *port);

/*
 * From now on datagrams leave with ECT(0), and siw_llp_udp_recv_dense notes whether what it
 * received came with CE (RFC 3168): siw_llp_udp_ce. 0 or -errno.
 */
int siw_llp_udp_ecn(struct siw_llp_sock *sock);
bool siw_llp_udp_ce(const struct siw_llp_sock *sock);

/*
 * From now on no datagram of this socket is fragmented: one that is too long for its path is
 * -EMSGSIZE. 0 or -errno.
 */
int siw_llp_udp_whole(struct siw_llp_sock *sock);
/*
 * The most octets of payload that a datagram to dest has without being fragmented, as far as the
 * kernel knows the path now; or -ENETUNREACH or another -errno. Costs a few system calls.
 */
int siw_llp_udp_path(struct siw_llp_sock *sock, const struct siw_addr *dest);
/*
 * may: datagrams of this socket may be fragmented. Otherwise none is, whatever path MTU the kernel
 * knows; one that is too long for the interface is -EMSGSIZE. 0 or -errno.
 */
int siw_llp_udp_fragments(struct siw_llp_sock *sock, bool may);
/*
 * The path MTU from the socket's address to dest in octets, as far as the kernel knows it; 0: unknown.
 * SIW_LLP_LOOPBACK_MTU or more only if dest is an address of this host: to another host it is
 * less, however large the interface's MTU is. Costs a few system calls.
 */
uint32_t siw_llp_udp_route_mtu(struct siw_llp_sock *sock, const struct siw_addr *dest);
/* What Linux reports of its loopback interface over IPv4; over IPv6 it is one more. */
#define SIW_LLP_LOOPBACK_MTU 65535
/*
 * From now on siw_llp_udp_refused tells what ICMP says of this socket's datagrams. Its handler has
 * to call that until -EAGAIN whenever it is served: what nobody takes keeps the socket ready.
 */
void siw_llp_udp_hear_refusals(struct siw_llp_sock *sock, uint16_t family);
/*
 * Takes one ICMP message. If it says that nobody has the port to which a datagram went: *dest, and
 * in buf the first octets of that datagram's payload, as many as the message quotes, at most size;
 * returns how many. 0: it says something else. -EAGAIN: there is none. Who makes such a message up
 * has to know what it quotes.
 */
ssize_t siw_llp_udp_refused(struct siw_llp_sock *sock, struct siw_addr *dest, void *buf,
			    size_t size);
/* Octets of payload that the socket's receive buffer has room for; 0: unknown. */
uint32_t siw_llp_udp_room(struct siw_llp_sock *sock);
/* As siw_llp_udp_send, but this datagram may be fragmented despite siw_llp_udp_whole. */
int siw_llp_udp_send_cut(struct siw_llp_sock *sock, const struct siw_addr *dest,
			 const struct iovec *iov, int n);

/* ---- TCP ------------------------------------------------------------------------------------- */

/*
 * Every TCP socket has TCP_NODELAY, is non-blocking and close-on-exec, raises no SIGPIPE, and has
 * buffers that the kernel sizes.
 */

/*
 * A descriptor that is bound to *local and does not listen: it keeps the port for listeners, which
 * may be at each of its addresses, and for a connection from it. Port 0: a free one, which it puts
 * into *local. A wildcard address of IPv6 keeps the port for IPv4, too, unless v6_only.
 * siw_llp_event_close ends it. Or -errno.
 */
int siw_llp_tcp_keep(struct siw_addr *local, bool v6_only);
/* Listens on local (port 0: any free one). 0 or -errno. */
int siw_llp_tcp_listen(struct siw_llp_port *port, const struct siw_addr *local, int backlog,
		       struct siw_io_handler *handler, struct siw_llp_sock **out);
/*
 * Accepts a connection: 0 and *out; -EAGAIN: none waits; or -errno. After -EMFILE, -ENFILE,
 * -ENOBUFS and -ENOMEM it still waits in the kernel, and the poller returns the listener's handler
 * 100 ms later.
 */
int siw_llp_tcp_accept(struct siw_llp_sock *listener, struct siw_io_handler *handler,
		       struct siw_llp_sock **out);
/*
 * Starts to connect, from source unless that is NULL; siw_llp_tcp_connected has the result. 0 or
 * -errno.
 */
int siw_llp_tcp_connect(struct siw_llp_port *port, const struct siw_addr *dest,
			const struct siw_addr *source, struct siw_io_handler *handler,
			struct siw_llp_sock **out);
/* The same with one socket at both ends: what is sent on it comes back. */
int siw_llp_tcp_connect_itself(struct siw_llp_port *port, const struct siw_addr *local,
			       struct siw_io_handler *handler, struct siw_llp_sock **out);
/* 0 connected, -EAGAIN not yet, or -errno (ECONNREFUSED, ...). */
int siw_llp_tcp_connected(struct siw_llp_sock *sock);
/*
 * What it sends from now on has that type of service (IPv4) or traffic class (IPv6), as far as the
 * system grants it.
 */
void siw_llp_tcp_tos(struct siw_llp_sock *sock, int tos);

/*
 * Sends, by send for one iovec and sendmsg for more. The octets taken, which may be fewer than
 * given; -EAGAIN: no room, and want_write is set; or -errno.
 */
ssize_t siw_llp_tcp_sendv(struct siw_llp_sock *sock, const struct iovec *iov, int n);
/*
 * Receives, by recv for one iovec and recvmsg for more. The octets read, 0 at the end of the peer's
 * stream, also when called again; -EAGAIN; or -errno. After the end, as after EAGAIN, the poller
 * does not return the handler for reading until something comes.
 */
ssize_t siw_llp_tcp_recvv(struct siw_llp_sock *sock, const struct iovec *iov, int n);
/* The effective maximum segment size now, in octets (TCP_MAXSEG), or -errno. */
int siw_llp_tcp_emss(struct siw_llp_sock *sock);
/*
 * Whether a reset or a time-out has ended the connection; received octets may still be there to
 * read.
 */
bool siw_llp_tcp_gone(struct siw_llp_sock *sock);
/* Ends this side's stream: the peer reads its end after what was sent. 0 or -errno. */
int siw_llp_tcp_shutdown(struct siw_llp_sock *sock);
/* From now on siw_llp_close() sends a reset and drops what is unsent. */
void siw_llp_tcp_abort(struct siw_llp_sock *sock);

/* ---- any socket ------------------------------------------------------------------------------ */

void siw_llp_close(struct siw_llp_sock *sock);
void siw_llp_set_handler(struct siw_llp_sock *sock, struct siw_io_handler *handler);
/*
 * want: something is left to send, so a wait ends, and a poll returns the handler, when there is
 * room. Any thread.
 */
void siw_llp_want_write(struct siw_llp_sock *sock, bool want);
/*
 * Ends siw_llp_pause; also for a reader that stopped before EAGAIN. A poll returns the handler
 * again.
 */
void siw_llp_resume(struct siw_llp_sock *sock);
/*
 * Until siw_llp_resume the upper layer does not read or accept: what comes waits in the kernel and
 * wakes nobody. A poll returns the handler only for the stream's end, an error, or room to write.
 */
void siw_llp_pause(struct siw_llp_sock *sock);
/* The socket may have work: a poll returns its handler. */
void siw_llp_sock_ready(struct siw_llp_sock *sock);
/*
 * Timers of a socket. siw_llp_sock_timed comes first. siw_llp_sock_due: a poll returns the
 * handler at that time at the latest; the earliest time set counts; any thread.
 * siw_llp_sock_awaits_due: whether a time is set that no poll has found past.
 */
void siw_llp_sock_timed(struct siw_llp_sock *sock);
void siw_llp_sock_due(struct siw_llp_sock *sock, uint64_t at);
bool siw_llp_sock_awaits_due(const struct siw_llp_sock *sock);
/* The address of this end, and of the peer: 0 or -errno. */
int siw_llp_local(struct siw_llp_sock *sock, struct siw_addr *out);
int siw_llp_peer(struct siw_llp_sock *sock, struct siw_addr *out);

/* cffi: end */

#endif
