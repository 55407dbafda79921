/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* llp/llp_sock.h - the port and the socket, and what this folder's files share; private to it. */
#ifndef SIW_LLP_SOCK_H
#define SIW_LLP_SOCK_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/cancel.h"
#include "base/list.h"
#include "base/lock.h"
#include "llp/llp.h"

#define SIW_LLP_HOT_MAX 16
#define SIW_LLP_LINE	64 /* octets in a cache line */

enum siw_llp_kind {
	SIW_LLP_UDP,
	SIW_LLP_LISTENER,
	SIW_LLP_CONNECTING,
	SIW_LLP_STREAM,
	SIW_LLP_WATCHER, /* of an interface */
};

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

struct siw_llp_sock {
	/* Under the caller's lock on the port. A poll and a receive need this line and no more. */
	_Alignas(SIW_LLP_LINE) int fd;
	uint8_t kind; /* enum siw_llp_kind */
	int8_t hot;   /* index in the port's hot set; -1: cold */
	/*
	 * set when epoll or the upper layer reports the socket, until a receive returns EAGAIN; a
	 * cold socket is on the ready ring while it is set
	 */
	bool ready;
	bool held;    /* siw_llp_pause: the upper layer does not read now */
	bool stopped; /* a plan of faults holds back as much of its stream as it may */
	bool ce;      /* the last datagram or batch came with CE */
	bool stalled; /* of a listener: no descriptor was left for a connection */
	/* llp_udp_dense.c: */
	bool batches;	 /* UDP_GRO is on: the kernel delivers batches */
	bool no_batches; /* the kernel has no UDP_GRO */
	uint8_t lulls;	 /* times in a row that the socket was empty after two datagrams or fewer */
	_Atomic uint8_t ecn; /* siw_llp_udp_ecn, any thread */
	struct siw_io_handler *handler;
	struct siw_llp_port *port;
	uint64_t active; /* number of the last poll that found data or want_write here */
	struct siw_link ring;
	uint32_t streak; /* short datagrams since the socket was last empty */

	/*
	 * Any thread. want_write is stored by siw_llp_wants() and pairs with the loads in
	 * siw_llp_sock_register() and siw_llp_waitset_fill(); registered is stored by
	 * siw_llp_sock_register() and pairs with the load in siw_llp_wants().
	 */
	_Alignas(SIW_LLP_LINE) _Atomic uint8_t want_write;
	_Atomic uint8_t registered; /* it is in the epoll set */
	bool udp;		    /* never changes */
	_Atomic uint8_t shared;	    /* several threads send on it: siw_llp_shared() */
	bool aborted;		    /* siw_llp_tcp_abort */
	_Atomic uint64_t
		due_ns;	  /* when a poll returns its handler in any case; UINT64_MAX: never */
	int error;	  /* of connecting: an errno, or 0 */
	uint32_t ifindex; /* of a group's socket: its interface, else 0 */
	/* how much of the kernel's count of dropped datagrams is in our counter */
	uint32_t drops;
	struct siw_link all;
	struct siw_link timed; /* it has timers */
	struct siw_llp_capture
		*capture; /* of llp_capture.c, under its lock; NULL until there is a capture */
	struct siw_llp_faulty
		*_Atomic faulty; /* of llp_fault.c; NULL until there is a plan of faults */
};

struct siw_llp_port {
	/* Under the caller's lock: what each poll reads and writes. */
	_Alignas(SIW_LLP_LINE) uint64_t polls;
	uint64_t active; /* number of the poll that last had data on any socket */
	uint64_t slept;	 /* number of the last poll that followed a sleep */
	int n_hot;
	int max_hot;
	int n_ring;
	unsigned int hot_turn; /* which hot socket is next, if a poll cannot return all */
	bool ask;	       /* the last epoll_wait returned as many events as fit */
	bool after_sleep;      /* a wait set was filled; reset by the next poll that checks it */
	uint32_t n_data;       /* data sockets, hot and cold */
	struct siw_link ring;
	uint64_t asked_ns; /* when epoll was asked last, while there are cold sockets */
	uint32_t ask_ns;   /* after how long it is asked again then */
	uint64_t clock_ns; /* the time that poll number clock_poll read */
	uint64_t clock_poll;
	struct siw_llp_sock *hot[SIW_LLP_HOT_MAX];
	/*
	 * Held to change a socket's want_write together with its events in epoll. No lock is taken
	 * under it.
	 */
	siw_lock_t wish_lock;

	/*
	 * Any thread. armed: for siw_llp_port_armed(). sleepers counts the threads inside
	 * siw_llp_wait(). changes counts the changes that make older wait sets incomplete. Each
	 * side stores its own counter and then loads the other's (sequentially consistent), so at
	 * least one of them sees the other.
	 */
	_Alignas(SIW_LLP_LINE) _Atomic uint32_t woken; /* the wake descriptor was or will be set */
	_Atomic uint32_t sleepers;
	_Atomic uint32_t changes;
	_Atomic uint8_t armed;
	/* When something that a plan of faults holds is due: llp_fault.c; UINT64_MAX: never. */
	_Atomic uint64_t fault_due;
	_Atomic uint64_t
		timed_due; /* when the first of the sockets with timers is due; UINT64_MAX: never */
	/* under the caller's lock: generation of the plan at the last release */
	uint32_t fault_generation;

	int epfd, wake_fd;
	pid_t owner;
	uint8_t *room; /* siw_llp_port_room */
	/* What is left of a batch in room: datagrams of seg octets, the last one perhaps shorter. */
	uint32_t room_at, room_end, room_seg;
	struct siw_addr room_source;
	_Atomic(uint8_t *) batch; /* for siw_llp_batch_take, any thread; NULL while it is in use */
	int n_stalled;
	uint64_t stalled_until; /* ns: when stalled listeners are tried again */
	uint64_t quiet_rounds;	/* epoll_waits without an event */
	struct siw_link all;	/* every socket */
	struct siw_link timed;	/* those with timers */
};

/* Stores at in *due if it is earlier. Returns whether it was. Any thread. */
static inline bool siw_llp_due_by(_Atomic uint64_t *due, uint64_t at)
{
	uint64_t before = atomic_load_explicit(due, memory_order_relaxed);

	do {
		if (before <= at)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(due, &before, at, memory_order_seq_cst,
							memory_order_relaxed));
	return true;
}

#define SIW_LLP_OF(link, member) siw_container(link, struct siw_llp_sock, member)

/* ---- llp_port.c: reports of sockets to the poller -------------------------------------------- */

int siw_llp_sock_register(struct siw_llp_sock *sock);
/* A receive returned EAGAIN. */
void siw_llp_sock_drained(struct siw_llp_sock *sock);
/*
 * A receive found the end or an error. The socket leaves the hot set, where polls would find that
 * again.
 */
void siw_llp_sock_ended(struct siw_llp_sock *sock);
/* A listener got EMFILE or the like: it leaves the ready ring for a while. */
void siw_llp_sock_stall(struct siw_llp_sock *sock);
/* Takes the socket out of the hot set, the ready ring and the epoll set. */
void siw_llp_sock_detach(struct siw_llp_sock *sock);
/*
 * Wait sets that were filled before are incomplete now: wakes the threads that sleep on one. Any
 * thread.
 */
void siw_llp_port_changed(struct siw_llp_port *port);

/*
 * A receive on the socket had data. A hot socket is marked ready from now on until one finds it
 * empty: some of what was received may not have been handled, and no descriptor tells a thread that
 * sleeps.
 */
static inline void siw_llp_sock_active(struct siw_llp_sock *sock)
{
	sock->active = sock->port->active = sock->port->polls;
	if (sock->hot >= 0)
		sock->ready = true;
}

/*
 * The system calls of the data path, made without the C library's functions. These make each call
 * a cancellation point (base/cancel.h), which costs two atomic instructions in a process with
 * threads. ThreadSanitizer does not see them, and need not: siw_llp_order_send() tells it the order.
 * AddressSanitizer looks at the memory that the C library's functions read and write, and is to.
 */
#if defined(__SANITIZE_ADDRESS__)
#define SIW_LLP_CALL(name, ...)                               \
	({                                                    \
		int siw_cancel = siw_cancel_off();            \
		ssize_t siw_n = (ssize_t)(name)(__VA_ARGS__); \
		siw_cancel_back(siw_cancel);                  \
		siw_n;                                        \
	})
#else
#define SIW_LLP_CALL(name, ...) syscall(SYS_##name, __VA_ARGS__)
#endif

static inline ssize_t siw_llp_sendto(int fd, const void *buf, size_t len, int flags,
				     const struct siw_addr *dest, socklen_t dest_len)
{
	return SIW_LLP_CALL(sendto, fd, buf, len, flags, (const struct sockaddr *)dest, dest_len);
}

static inline ssize_t siw_llp_recvfrom(int fd, void *buf, size_t len, int flags,
				       struct siw_addr *source, socklen_t *source_len)
{
	return SIW_LLP_CALL(recvfrom, fd, buf, len, flags, (struct sockaddr *)source, source_len);
}

static inline ssize_t siw_llp_sendmsg(int fd, const struct msghdr *msg, int flags)
{
	return SIW_LLP_CALL(sendmsg, fd, msg, flags);
}

static inline ssize_t siw_llp_recvmsg(int fd, struct msghdr *msg, int flags)
{
	return SIW_LLP_CALL(recvmsg, fd, msg, flags);
}

static inline ssize_t siw_llp_readv(int fd, const struct iovec *iov, int n)
{
	return SIW_LLP_CALL(readv, fd, iov, n);
}

/* ---- llp_fd.c: the set of descriptors that a forked child closes ----------------------------- */

/*
 * To be called before and after a call that opens a descriptor, so that no fork happens before it
 * is in the set.
 */
void siw_llp_fd_begin(void);
/* fd: the result of that call. Adds it to the set and returns it, or returns -errno. */
int siw_llp_fd_end(int fd);
/*
 * take: adds a descriptor of the caller's: 0 or -ENOMEM. give: removes it, so that it is the
 * caller's again; false if it was not in the set.
 */
int siw_llp_fd_take(int fd);
bool siw_llp_fd_give(int fd);
void siw_llp_fd_close(int fd);

/* ---- llp_sock.c ------------------------------------------------------------------------------ */

/* 0, or -errno: -EINPROGRESS, and -EINTR, which goes on as that does. */
int siw_llp_connect(int fd, const struct siw_addr *dest);

/*
 * Tells ThreadSanitizer that what was done before a send happens before the receive of its octets.
 * It cannot see an order that passes through the kernel. With both ends in one process it would
 * report the peer's placing as a race with what the program did before it posted. dest and source
 * are NULL on a connected socket. In other builds these do nothing.
 */
#if defined(__SANITIZE_THREAD__)
void siw_llp_order_send(int fd, const struct siw_addr *dest);
void siw_llp_order_received(int fd, const struct siw_addr *source);
#else
static inline void siw_llp_order_send(int fd, const struct siw_addr *dest)
{
	(void)fd, (void)dest;
}

static inline void siw_llp_order_received(int fd, const struct siw_addr *source)
{
	(void)fd, (void)source;
}
#endif

/*
 * Returns the octets sent, or -1 and errno. dest: NULL on a connected socket. n: at most IOV_MAX.
 */
static __attribute__((always_inline)) inline ssize_t
siw_llp_send(int fd, const struct siw_addr *dest, const struct iovec *iov, int n)
{
	socklen_t dest_len = dest ? siw_addr_len(dest) : 0;
	struct msghdr msg = {
		.msg_name = (void *)dest,
		.msg_namelen = dest_len,
		.msg_iov = (struct iovec *)iov,
		.msg_iovlen = (size_t)n,
	};
	ssize_t sent;

	siw_llp_order_send(fd, dest);
	do {
		if (n == 1)
			sent = siw_llp_sendto(fd, iov->iov_base, iov->iov_len, MSG_NOSIGNAL, dest,
					      dest_len);
		else
			sent = siw_llp_sendmsg(fd, &msg, MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	return sent;
}

/* Makes a socket of fd and registers it; fd stays the caller's on an error. */
int siw_llp_sock_new(struct siw_llp_port *port, int fd, enum siw_llp_kind kind,
		     struct siw_io_handler *handler, struct siw_llp_sock **out);
/*
 * Sets want_write. always: updates the epoll entry even if want_write was set, for errors that no
 * event follows for sure: after ENOBUFS a full device queue gets room without an event of the
 * socket.
 */
void siw_llp_wants(struct siw_llp_sock *sock, bool always);
/* A send failed with this errno: counts it; -EAGAIN (want_write is set) or -error. */
int siw_llp_send_failed(struct siw_llp_sock *sock, int error);
/* Counts what the kernel dropped at this socket since the last call. */
void siw_llp_udp_count_drops(struct siw_llp_sock *sock);
/* Gives up batches, before the descriptor is closed. */
void siw_llp_udp_dense_close(struct siw_llp_sock *sock);
/* Sets its buffers as the settings say. */
void siw_llp_udp_buffers(int fd);
/* A descriptor of our own: 0, or -errno. */
int siw_llp_socket(uint16_t family, int type);
int siw_llp_option(int fd, int level, int name, int value);

/* ---- llp_udp.c, llp_tcp.c: the calls of llp.h without faults --------------------------------- */

int siw_llp_udp_send_now(struct siw_llp_sock *sock, const struct siw_addr *dest,
			 const struct iovec *iov, int n);
ssize_t siw_llp_udp_recv_now(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
			     size_t size);
/* *seg: the size of a batch's datagrams, or 0: a single one. */
ssize_t siw_llp_udp_recv_batch(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
			       size_t size, uint16_t *seg);
ssize_t siw_llp_tcp_sendv_now(struct siw_llp_sock *sock, const struct iovec *iov, int n);
ssize_t siw_llp_tcp_recvv_now(struct siw_llp_sock *sock, const struct iovec *iov, int n);
int siw_llp_tcp_shutdown_now(struct siw_llp_sock *sock);
/* Resets the connection now; the descriptor stays open until siw_llp_close(). */
void siw_llp_tcp_reset(struct siw_llp_sock *sock);

#endif
