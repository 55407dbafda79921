/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp.h - the lower layer protocol: UDP and TCP sockets, and the poller that finds sockets with
 * work to do. No other layer opens sockets.
 *
 * This layer does not interpret the octets that it carries: it has no framing, no CRC and no
 * reliability of its own. A fault plan (base/faults.h) may act between these functions and the
 * sockets: llp_fault.h.
 *
 * Results: functions that return int or ssize_t return 0 or a count, or -errno. Times are
 * nanoseconds of base/clock.h unless a name says otherwise.
 *
 * Locks: functions marked "any thread" need no lock. For the others the caller holds the progress
 * lock of the poller. For sends the caller also holds the QP's send lock, so that only one thread
 * at a time sends on a socket; siw_llp_allow_concurrent_sends() lifts this restriction. A send and
 * a receive on one socket may run at the same time.
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

struct siw_llp_poller;
struct siw_llp_sock;

/*
 * The callback of a socket. The handler is a member of the object that owns the socket, so that
 * serve can find the object with siw_container(). A poll returns the handlers of sockets that may
 * have work; serve does the work and returns how many messages it moved.
 */
struct siw_io_handler {
	int (*serve)(struct siw_io_handler *self);
};

/* ---- the poller ------------------------------------------------------------------------------
 *
 * A socket is hot or cold.
 *
 * HOT, at most settings.hot_sockets sockets: a socket that had data recently. Every poll returns a
 * hot socket without a preceding system call, so the receive call of the upper layer is the only
 * system call per message. A hot socket is not in the epoll set, where each packet would cause a
 * wake-up.
 *
 * COLD: a socket that is registered in epoll, edge-triggered. A poll calls epoll_wait with time-out
 * 0 if no socket is hot. If sockets are hot, epoll_wait is called in every 32nd poll, and in a poll
 * that comes at least 10 us after the previous call; this interval grows up to 80 us while calls
 * report no event. Sockets that epoll reports are added to the ready ring. The sockets of the ring
 * are served in turn, and a socket stays in the ring until a receive on it returns EAGAIN, or until
 * siw_llp_sock_note_all_handled(); so the cost depends on the number of ready sockets only.
 *
 * A cold socket that becomes ready turns hot if the hot set has room, or replaces a hot socket
 * without data for 256 polls. A hot socket without data for 1024 polls turns cold if other sockets
 * had data. A socket that waits for room to write counts as a socket with data. Listeners and
 * sockets that are still connecting stay cold. While the poller has descriptors for event loops
 * (siw_llp_event_loop_fd_open), no socket turns hot: an event loop calls epoll_wait in each turn
 * anyway, and would only add a receive that finds nothing for each hot socket.
 */
/*
 * Opens a poller without sockets. sibling: an open poller of the same device, or NULL; a poller of
 * a simulated device learns its host from it. Returns 0 or -errno.
 */
int siw_llp_poller_open(const struct siw_llp_poller *sibling, struct siw_llp_poller **out);
/* Closes the poller. All its sockets must have been closed before. */
void siw_llp_poller_close(struct siw_llp_poller *poller);
/* Returns whether this process opened the poller; false in a forked child. */
bool siw_llp_poller_opened_by_this_process(const struct siw_llp_poller *poller);

/* Writes up to n handlers of sockets that may have work and returns their number. Never waits. */
int siw_llp_poller_poll(struct siw_llp_poller *poller, struct siw_io_handler **handlers, int n);
/*
 * Called after a progress round by a thread that may make no further round. Wakes the threads that
 * sleep on a wait set if a socket was not read until empty, or if more is set. more: whether
 * requests are left to send. Called with the progress lock held.
 */
void siw_llp_poller_wake_if_work_left(struct siw_llp_poller *poller, bool more);
/*
 * Returns the current time, or the time of the last poll if that poll read the clock. For uses that
 * need no exact time.
 */
uint64_t siw_llp_poller_recent_time_ns(const struct siw_llp_poller *poller);

/*
 * To sleep, a thread arms the poller, fills a wait set, releases the progress lock and waits.
 * Arming adds the hot sockets to epoll, with EPOLLOUT for sockets that wait for room to write. If
 * the poller is not armed, the wait set contains the hot sockets themselves, which is cheaper for a
 * thread that polls again soon. Returns 0 or -errno.
 */
int siw_llp_poller_arm_for_sleep(struct siw_llp_poller *poller);
/* Removes the hot sockets from epoll, which siw_llp_poller_arm_for_sleep() added. */
void siw_llp_poller_disarm(struct siw_llp_poller *poller);
bool siw_llp_poller_is_armed(const struct siw_llp_poller *poller); /* any thread */

struct siw_llp_waitset {
	int n;
	int fds[20];
	bool out[20];
	/*
	 * The descriptors for siw_llp_wait(). A zeroed set is empty: only extra_fd and the time-out
	 * end a wait on it.
	 */
	struct siw_llp_poller *poller; /* the poller; must exist until the wait ends */
	uint32_t changes;
	uint64_t due_ns; /* time at which a poll has work without a ready descriptor; 0: never */
};
/*
 * Fills the wait set with the descriptors that a poll would check now. Called with the progress
 * lock held.
 */
void siw_llp_waitset_fill(struct siw_llp_poller *poller, struct siw_llp_waitset *set);
/*
 * Waits until a member of the set is ready, extra_fd (-1: none) is readable, or timeout_us
 * microseconds (-1: no limit) have passed. Returns 1, or 0 after the time-out, or -EINTR. Also
 * returns 1 if another thread has made the set incomplete (a socket turned hot or cold, waits for
 * room to write, was not read until empty or has left the poller, or the poller was disarmed or
 * woken), so that the caller fills a new set. The caller polls after each return of 1. Any thread,
 * no lock.
 */
int siw_llp_wait(const struct siw_llp_waitset *set, int extra_fd, int64_t timeout_us);
/* Waits like siw_llp_wait(), and is a cancellation point (base/cancel.h). */
int siw_llp_wait_cancellable(const struct siw_llp_waitset *set, int extra_fd, int64_t timeout_us);
/*
 * Wait like siw_llp_wait() and siw_llp_wait_cancellable(), for n wait sets of different pollers, at
 * most SIW_LLP_MAX_WAITSETS. The wait ends as soon as it would end for one of the sets. With n = 0
 * only extra_fd and the time-out end it. The caller polls all pollers after each return of 1. Any
 * thread, no lock.
 */
#define SIW_LLP_MAX_WAITSETS 16
int siw_llp_wait_any(const struct siw_llp_waitset *sets, int n, int extra_fd, int64_t timeout_us);
int siw_llp_wait_any_cancellable(const struct siw_llp_waitset *sets, int n, int extra_fd,
				 int64_t timeout_us);
/*
 * Ends all waits in progress, all later waits on a wait set that is filled already, and all waits
 * until the poller's next poll. That poll clears the wake-up, so the caller's change must be
 * checked after that siw_llp_poller_poll(), not before. Any thread.
 */
void siw_llp_poller_wake(struct siw_llp_poller *poller);

/*
 * Returns a buffer of SIW_LLP_ROOM octets, the maximum size of a datagram, for receiving a datagram
 * on any socket of this poller. The next receive overwrites the buffer. Called with the progress
 * lock held.
 */
#define SIW_LLP_ROOM 65536
uint8_t *siw_llp_poller_rx_buffer(struct siw_llp_poller *poller);
/*
 * siw_llp_batch_buffer_acquire returns a buffer of SIW_LLP_ROOM octets for building a batch of
 * datagrams, or NULL if memory is exhausted; siw_llp_batch_buffer_return returns the buffer to the
 * poller. The poller keeps one buffer for the next call, because each of possibly thousands of
 * sockets would otherwise need its own. Any thread.
 */
uint8_t *siw_llp_batch_buffer_acquire(struct siw_llp_poller *poller);
void siw_llp_batch_buffer_return(struct siw_llp_poller *poller, uint8_t *batch);

/* ---- descriptors for event loops of programs ------------------------------------------------- */

struct siw_llp_event_loop_fd;
/*
 * Opens a descriptor with which an event loop of the program waits until a poll of the poller may
 * have work: it is readable while a cold socket has work, between siw_llp_poller_wake() and the
 * next poll, between siw_llp_event_loop_fd_signal() and siw_llp_event_loop_fd_clear(), and from the
 * time of siw_llp_event_loop_fd_set_timer() on. A hot socket is watched only while the poller is
 * armed. Returns 0 or -errno. The poller must be closed after the descriptor. The caller makes the
 * calls below one at a time; the progress lock is not needed.
 */
int siw_llp_event_loop_fd_open(struct siw_llp_poller *poller, struct siw_llp_event_loop_fd **out);
/* Closes the descriptor. Does nothing if loop is NULL. */
void siw_llp_event_loop_fd_close(struct siw_llp_event_loop_fd *loop);
/* Returns the descriptor, which must not be read. */
int siw_llp_event_loop_fd_number(const struct siw_llp_event_loop_fd *loop);
void siw_llp_event_loop_fd_signal(struct siw_llp_event_loop_fd *loop);
void siw_llp_event_loop_fd_clear(struct siw_llp_event_loop_fd *loop);
/*
 * Makes the descriptor readable at due_ns; 0: never. An earlier time of a previous call stays
 * valid until it has passed.
 */
void siw_llp_event_loop_fd_set_timer(struct siw_llp_event_loop_fd *loop, uint64_t due_ns);
/*
 * Returns the time at which a poll of the poller has work although no descriptor reports any; 0:
 * never. SIW_LLP_DUE_NOW: a socket was not read until empty. Called with the progress lock held.
 */
#define SIW_LLP_DUE_NOW 1
uint64_t siw_llp_poller_next_due_ns(const struct siw_llp_poller *poller);

/* ---- event descriptors: readable between set and clear; any thread -------------------------- */

/* Opens an event descriptor with close-on-exec set. Returns the descriptor or -errno. */
int siw_llp_event_fd_open(void);
/* Returns whether the program has set O_NONBLOCK on the descriptor. */
bool siw_llp_event_fd_is_nonblocking(int fd);
void siw_llp_event_fd_set(int fd);
void siw_llp_event_fd_clear(int fd);
void siw_llp_event_fd_close(int fd);

/* ---- interfaces ------------------------------------------------------------------------------ */

struct siw_llp_interface {
	char name[16];
	uint32_t mtu; /* in octets */
	uint32_t up;
	uint32_t n_addrs;
	struct siw_addr addrs[16]; /* IPv4 addresses first; all with port 0 */
};
/*
 * Writes up to max interfaces that have an address, in the system's order. Returns their number or
 * -errno.
 */
int siw_llp_list_interfaces(struct siw_llp_interface *out, int max);
/*
 * Sets *source to the address of this host, with port 0, from which the kernel would send to dest
 * (whose port is ignored): 0; -ENETUNREACH if no route leads there; another -errno.
 */
int siw_llp_source_addr_for_dest(const struct siw_addr *dest, struct siw_addr *source);

/*
 * Monitors the interface of this name. A poll returns the handler when there are changes to read.
 * siw_llp_interface_watch_read() returns the oldest unread change (enum siw_llp_watch_change), or 0
 * if there is none.
 */
struct siw_llp_watch;
enum siw_llp_watch_change {
	SIW_LLP_WATCH_UP = 1, /* the interface is up and running, possibly as before */
	SIW_LLP_WATCH_DOWN,   /* the interface is not up or running, or no longer exists */
	SIW_LLP_WATCH_ADDRS,  /* an address was added or removed */
	/* the kernel dropped reports; siw_llp_list_interfaces() has the current state */
	SIW_LLP_WATCH_LOST,
};
int siw_llp_interface_watch_open(struct siw_llp_poller *poller, const char *name,
				 struct siw_io_handler *handler, struct siw_llp_watch **out);
int siw_llp_interface_watch_read(struct siw_llp_watch *watch);
void siw_llp_interface_watch_close(struct siw_llp_watch *watch);

/* ---- UDP ------------------------------------------------------------------------------------- */

/*
 * Opens and binds a UDP socket (port 0: any free port), with IPV6_V6ONLY and without SO_REUSEADDR.
 * The buffer sizes in octets are the settings rcvbuf and sndbuf, applied with SO_RCVBUFFORCE if
 * permitted. Returns 0 or -errno.
 *
 * An ICMP error has no effect except that icmp_errors counts it and the call that returned it is
 * tried once more. Datagrams that the kernel drops because the receive buffer is full are counted
 * in drop_rxq_overflow, at the latest when the socket is closed.
 */
int siw_llp_udp_open(struct siw_llp_poller *poller, const struct siw_addr *local,
		     struct siw_io_handler *handler, struct siw_llp_sock **out);
/*
 * Reserves a UDP port as siw_llp_tcp_reserve_port() does for TCP. No other socket can have the port
 * meanwhile.
 */
int siw_llp_udp_reserve_port(struct siw_addr *local, bool v6_only);
/*
 * Adopts a bound UDP socket of the program: sets it non-blocking and close-on-exec, and turns its
 * error queue and UDP_GRO off. siw_llp_close() closes it. Returns 0; -ENOTSOCK; or -EINVAL if it is
 * not UDP or not bound to a port. After an error the socket still belongs to the caller.
 */
int siw_llp_udp_adopt_program_socket(struct siw_llp_poller *poller, int fd,
				     struct siw_io_handler *handler, struct siw_llp_sock **out);

/*
 * Opens a socket that is a member of a multicast group on one interface and is bound to the group's
 * address and port, so that it receives only the group's datagrams. Only such sockets have
 * SO_REUSEADDR, so every member process of a machine receives its own copy. Returns 0; -EADDRINUSE:
 * a socket bound to the wildcard address uses the port; -ENODEV: no such interface. (IPv6 before
 * Linux 5.7 without CAP_NET_RAW: datagrams to the group that arrive on other interfaces are
 * received, too.)
 */
int siw_llp_udp_open_group_member(struct siw_llp_poller *poller, const struct siw_addr *group,
				  const char *netdev, struct siw_io_handler *handler,
				  struct siw_llp_sock **out);
/*
 * Lets this socket send to multicast groups: such datagrams leave by the given interface, pass at
 * most ttl - 1 routers, and also reach members on this machine. Returns 0 or -errno. Any thread.
 */
int siw_llp_udp_enable_multicast_sending(struct siw_llp_sock *sock, const char *netdev, int ttl);
/*
 * Allows several threads to send on this socket at the same time. The threads share only
 * want_write: a successful send clears want_write even if another thread found the socket full.
 * Clearing want_write therefore wakes all sleeping threads, and the threads with requests left to
 * send try again.
 */
void siw_llp_allow_concurrent_sends(struct siw_llp_sock *sock);
/*
 * Sends one datagram, with sendto for one iovec and sendmsg for more. Returns 0, and want_write is
 * cleared; -EAGAIN, also for ENOBUFS: the socket is full, and want_write is set; -EMSGSIZE,
 * -ENETUNREACH or another -errno. EINTR is handled inside.
 */
int siw_llp_udp_send(struct siw_llp_sock *sock, const struct siw_addr *dest,
		     const struct iovec *iov, int n);
/*
 * Sends a batch of datagrams to one destination with one system call (UDP_SEGMENT). The datagrams
 * are contiguous in buf, len octets in total; each has seg octets, except that the last may be
 * shorter. Returns 0; -EAGAIN as for siw_llp_udp_send(); -EOPNOTSUPP: the kernel, device or path
 * cannot send this size in a batch; -ECONNREFUSED: an error of an earlier datagram was pending, or
 * a fault plan is set; or another -errno. After the latter two named errors the caller sends the
 * datagrams one by one.
 */
int siw_llp_udp_send_batch(struct siw_llp_sock *sock, const struct siw_addr *dest, const void *buf,
			   size_t len, uint16_t seg);
/*
 * Sends a batch like siw_llp_udp_send_batch(), for datagrams that are not contiguous: one iovec per
 * datagram.
 */
int siw_llp_udp_send_batchv(struct siw_llp_sock *sock, const struct siw_addr *dest,
			    const struct iovec *iov, int n, uint16_t seg);
/*
 * Receives one datagram into buf with one recvfrom. Returns the datagram's full length, which
 * exceeds size if the datagram was truncated; -EAGAIN; or -errno.
 */
ssize_t siw_llp_udp_recv(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
			 size_t size);
/*
 * Receives like siw_llp_udp_recv(), but while many short datagrams arrive, one call may return
 * several datagrams from one source (llp_udp_dense.c). *seg: octets of each datagram, except that
 * the last may be shorter.
 */
ssize_t siw_llp_udp_recv_with_gro(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
				  size_t size, uint32_t *seg);

/*
 * Receives the next datagram in the poller's buffer, where it is valid until the next call. Returns
 * its length, which exceeds SIW_LLP_ROOM if the datagram was truncated; -EAGAIN; or -errno. While
 * siw_llp_poller_has_more_datagrams() returns true, the buffer holds further datagrams of the same
 * batch, and no other receive may use the buffer.
 */
ssize_t siw_llp_udp_recv_in_poller_buffer(struct siw_llp_sock *sock, struct siw_addr *source,
					  uint8_t **datagram);
bool siw_llp_poller_has_more_datagrams(const struct siw_llp_poller *poller);

/*
 * Makes the socket send datagrams with ECT(0). siw_llp_udp_ce_received() then returns whether the
 * datagrams of the last siw_llp_udp_recv_with_gro() were marked CE (RFC 3168). Returns 0 or -errno.
 */
int siw_llp_udp_enable_ecn(struct siw_llp_sock *sock);
bool siw_llp_udp_ce_received(const struct siw_llp_sock *sock);

/*
 * Disables fragmentation for this socket: a datagram that is too long for its path fails with
 * -EMSGSIZE. Returns 0 or -errno.
 */
int siw_llp_udp_disable_fragmentation(struct siw_llp_sock *sock);
/*
 * Returns the maximum payload in octets of an unfragmented datagram to dest, according to the path
 * MTU that the kernel knows now; or -ENETUNREACH or another -errno. Costs a few system calls.
 */
int siw_llp_udp_path_max_payload(struct siw_llp_sock *sock, const struct siw_addr *dest);
/*
 * may: whether datagrams of this socket may be sent in IP fragments. If not, the path MTU that the
 * kernel knows is ignored, and a datagram too long for the interface fails with -EMSGSIZE. Returns
 * 0 or -errno.
 */
int siw_llp_udp_set_fragmentation_allowed(struct siw_llp_sock *sock, bool may);
/*
 * Returns the path MTU from the socket's address to dest in octets, as far as the kernel knows it;
 * 0: unknown. The result is SIW_LLP_LOOPBACK_MTU or more only if dest is an address of this host;
 * for another host it is less, however large the interface's MTU is. Costs a few system calls.
 */
uint32_t siw_llp_udp_route_mtu(struct siw_llp_sock *sock, const struct siw_addr *dest);
/* The MTU that Linux reports for its loopback interface over IPv4; over IPv6 it is one more. */
#define SIW_LLP_LOOPBACK_MTU 65535
/*
 * Enables siw_llp_udp_read_refusal(), which reports ICMP errors about this socket's datagrams. From
 * now on the socket's handler must call siw_llp_udp_read_refusal() until -EAGAIN whenever the
 * handler is called, because an unread ICMP message keeps the socket ready.
 */
void siw_llp_udp_enable_refusal_reports(struct siw_llp_sock *sock, uint16_t family);
/*
 * Reads one ICMP message. If the message reports that no socket is bound to the destination port of
 * a datagram (port unreachable), stores that destination in *dest, stores the first octets of the
 * datagram's payload that the message quotes in buf, at most size, and returns their number.
 * Returns 0 for any other message and -EAGAIN if there is none. An attacker that forges such a
 * message has to know the quoted octets.
 */
ssize_t siw_llp_udp_read_refusal(struct siw_llp_sock *sock, struct siw_addr *dest, void *buf,
				 size_t size);
/* Returns the size of the socket's receive buffer in octets of payload; 0: unknown. */
uint32_t siw_llp_udp_rx_buffer_size(struct siw_llp_sock *sock);
/*
 * Sends like siw_llp_udp_send(), but the datagram may be fragmented despite
 * siw_llp_udp_disable_fragmentation().
 */
int siw_llp_udp_send_fragmented(struct siw_llp_sock *sock, const struct siw_addr *dest,
				const struct iovec *iov, int n);

/* ---- TCP ------------------------------------------------------------------------------------- */

/*
 * Every TCP socket has TCP_NODELAY, is non-blocking and close-on-exec, raises no SIGPIPE, and has
 * buffers sized by the kernel.
 */

/*
 * Reserves a port: opens a descriptor that is bound to *local and does not listen, so that the port
 * stays available for this program's listeners on any of its addresses and for a connection from
 * it. Port 0: any free port, which is stored in *local. An IPv6 wildcard address reserves the port
 * for IPv4, too, unless v6_only. Returns the descriptor, which siw_llp_event_fd_close() closes, or
 * -errno.
 */
int siw_llp_tcp_reserve_port(struct siw_addr *local, bool v6_only);
/* Listens on local (port 0: any free port). Returns 0 or -errno. */
int siw_llp_tcp_listen(struct siw_llp_poller *poller, const struct siw_addr *local, int backlog,
		       struct siw_io_handler *handler, struct siw_llp_sock **out);
/*
 * Accepts a connection. Returns 0 and sets *out; -EAGAIN: none is pending; or -errno. After
 * -EMFILE, -ENFILE, -ENOBUFS and -ENOMEM the connection is still pending in the kernel, and the
 * poller returns the listener's handler again 100 ms later.
 */
int siw_llp_tcp_accept(struct siw_llp_sock *listener, struct siw_io_handler *handler,
		       struct siw_llp_sock **out);
/*
 * Starts to connect, from source unless that is NULL. siw_llp_tcp_connect_result() returns the
 * result. Returns 0 or -errno.
 */
int siw_llp_tcp_connect(struct siw_llp_poller *poller, const struct siw_addr *dest,
			const struct siw_addr *source, struct siw_io_handler *handler,
			struct siw_llp_sock **out);
/* Connects a socket to itself: the octets that it sends arrive at the same socket. */
int siw_llp_tcp_connect_to_itself(struct siw_llp_poller *poller, const struct siw_addr *local,
				  struct siw_io_handler *handler, struct siw_llp_sock **out);
/*
 * Returns the result of connecting a TCP socket: 0: connected; -EAGAIN: still connecting; or -errno
 * (ECONNREFUSED, ...). After a simultaneous open the result may be 0 before the peer's ACK arrives;
 * until then a send returns -EAGAIN.
 */
int siw_llp_tcp_connect_result(struct siw_llp_sock *sock);
/*
 * Sets the type of service (IPv4) or traffic class (IPv6) of the socket's segments, if the system
 * permits it.
 */
void siw_llp_tcp_set_tos(struct siw_llp_sock *sock, int tos);

/*
 * Sends octets on a stream, with send for one iovec and sendmsg for more. Returns the number of
 * octets that the kernel accepted, possibly fewer than given; -EAGAIN: the socket is full, and
 * want_write is set; or -errno.
 */
ssize_t siw_llp_tcp_sendv(struct siw_llp_sock *sock, const struct iovec *iov, int n);
/*
 * Receives octets of a stream, with recv for one iovec and recvmsg for more. Returns the number of
 * octets read; 0 at the end of the peer's stream, also when called again; -EAGAIN; or -errno. After
 * the end of the stream, as after EAGAIN, the poller does not return the handler for reading until
 * new input arrives.
 */
ssize_t siw_llp_tcp_recvv(struct siw_llp_sock *sock, const struct iovec *iov, int n);
/* Returns the effective maximum segment size in octets at present (TCP_MAXSEG), or -errno. */
int siw_llp_tcp_emss(struct siw_llp_sock *sock);
/*
 * Returns whether a reset or a time-out has ended the connection. Received octets may still be
 * unread.
 */
bool siw_llp_tcp_is_closed(struct siw_llp_sock *sock);
/*
 * Ends the sending side of the stream: the peer reads end of stream after the sent octets. Returns
 * 0 or -errno.
 */
int siw_llp_tcp_shutdown(struct siw_llp_sock *sock);
/* Makes siw_llp_close() send a reset and drop unsent octets. */
void siw_llp_tcp_set_abortive_close(struct siw_llp_sock *sock);

/* ---- any socket ------------------------------------------------------------------------------ */

void siw_llp_close(struct siw_llp_sock *sock);
/*
 * Move a TCP socket, connected or still connecting, to another poller. siw_llp_leave_poller() takes
 * the socket out of its poller; the progress lock of that poller is held, and no progress round of
 * it is under way. siw_llp_add_to_poller() adds the socket to a poller, whose progress lock is held.
 * Returns 0; or -errno, in which case the socket is still in no poller. While the socket is in no
 * poller, only siw_llp_add_to_poller(), siw_llp_close(), siw_llp_set_handler() and the functions that
 * return addresses may be called for it. The other functions read which poller the socket is in,
 * also those that any thread may call, so no other thread may call one of them meanwhile.
 *
 * No octet and no event is lost. A socket that was marked ready or paused before the move is so
 * afterwards. The new poller reports data that has arrived and space for sending, and continues the
 * timers and the release of octets that a fault plan holds back.
 */
void siw_llp_leave_poller(struct siw_llp_sock *sock);
int siw_llp_add_to_poller(struct siw_llp_sock *sock, struct siw_llp_poller *poller);
void siw_llp_set_handler(struct siw_llp_sock *sock, struct siw_io_handler *handler);
/*
 * want: whether octets are left to send. If so, a wait ends and a poll returns the handler when the
 * socket has space. May be called by any thread.
 */
void siw_llp_update_want_write(struct siw_llp_sock *sock, bool want);
/*
 * Makes polls return the handler again, after siw_llp_sock_pause() or after a reader that stopped
 * before EAGAIN.
 */
void siw_llp_sock_resume(struct siw_llp_sock *sock);
/*
 * Stops reading or accepting until siw_llp_sock_resume(): arriving data or connections wait in the
 * kernel and wake no thread. A poll returns the handler only for the end of the stream, an error,
 * or space for sending.
 */
void siw_llp_sock_pause(struct siw_llp_sock *sock);
/*
 * Called by the reader of a stream whose last receive returned fewer octets than requested, and
 * which has handled all octets. Unless the socket may have more input nevertheless, polls do not
 * return the handler for reading until new input arrives, as after EAGAIN.
 */
void siw_llp_sock_note_all_handled(struct siw_llp_sock *sock);
/* Reports that the socket may have work: the next poll returns its handler. */
void siw_llp_sock_mark_ready(struct siw_llp_sock *sock);
/*
 * Timers of a socket. siw_llp_sock_enable_timer() must be called first. siw_llp_sock_set_timer(): a
 * poll returns the handler at that time at the latest; the earliest time set applies; any thread.
 * siw_llp_sock_timer_is_pending(): whether a time is set that no poll has found past.
 */
void siw_llp_sock_enable_timer(struct siw_llp_sock *sock);
void siw_llp_sock_set_timer(struct siw_llp_sock *sock, uint64_t at);
bool siw_llp_sock_timer_is_pending(const struct siw_llp_sock *sock);
/*
 * Returns the address of this end (siw_llp_local_addr) or of the peer (siw_llp_peer_addr) in *out.
 * The result is 0 or -errno.
 */
int siw_llp_local_addr(struct siw_llp_sock *sock, struct siw_addr *out);
int siw_llp_peer_addr(struct siw_llp_sock *sock, struct siw_addr *out);

/* cffi: end */

#endif
