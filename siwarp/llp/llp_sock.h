/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_sock.h - the poller and socket structs, and the functions shared by this folder's files;
 * private to llp/.
 */
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
#define SIW_LLP_LINE	64 /* size of a cache line in octets */

enum siw_llp_kind {
	SIW_LLP_UDP,
	SIW_LLP_LISTENER,
	SIW_LLP_CONNECTING,
	SIW_LLP_STREAM,
	SIW_LLP_WATCHER, /* netlink socket that reports changes of an interface */
};

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

struct siw_llp_sock {
	/* Protected by the progress lock. A poll and a receive access only this cache line. */
	_Alignas(SIW_LLP_LINE) int fd;
	uint8_t kind; /* enum siw_llp_kind */
	int8_t hot;   /* index in the poller's hot set; -1: cold */
	/*
	 * the socket may have work: set when epoll or the upper layer reports the socket, cleared
	 * when a receive returns EAGAIN; a cold socket is in the ready ring meanwhile
	 */
	bool ready;
	bool held;	 /* siw_llp_sock_pause(): the upper layer does not read at present */
	bool stopped;	 /* a fault plan holds back the maximum number of octets of this stream */
	uint8_t got_ecn; /* ECN code point of the last datagram or batch; 0: not known */
	bool stalled;	 /* of a listener: accept failed because no descriptor was available */
	/* members used by llp_udp_dense.c: */
	bool batches;	 /* UDP_GRO is on: the kernel delivers batches */
	bool no_batches; /* the kernel does not support UDP_GRO */
	uint8_t lulls; /* consecutive times that the socket was empty after at most two datagrams */
	_Atomic uint8_t ecn; /* siw_llp_udp_enable_ecn() was called; any thread */
	/*
	 * a wait set has contained the descriptor: threads may sleep on it, and each of them keeps
	 * the socket open until it wakes up
	 */
	bool in_wait_set;
	struct siw_io_handler *handler;
	/* NULL between siw_llp_leave_poller() and siw_llp_add_to_poller() */
	struct siw_llp_poller *poller;
	uint64_t active; /* number of the last poll in which the socket had data or want_write */
	struct siw_link ring;
	uint32_t streak; /* number of short datagrams received since the socket was last empty */
	/*
	 * of a stream: epoll reports all input that arrives after the last read, because it has
	 * reported nothing since then
	 */
	bool read_last;
	bool ended; /* of a stream: epoll has reported its end, an error or urgent data */

	/*
	 * Accessed by any thread. want_write is stored by siw_llp_request_write_event() and pairs with
	 * the loads in siw_llp_sock_register() and siw_llp_waitset_fill(); registered is stored by
	 * siw_llp_sock_register() and pairs with the load in siw_llp_request_write_event().
	 */
	_Alignas(SIW_LLP_LINE) _Atomic uint8_t want_write;
	_Atomic uint8_t registered; /* the socket is in the epoll set */
	bool udp;		    /* never changes */
	_Atomic uint8_t
		shared; /* several threads send on the socket: siw_llp_allow_concurrent_sends() */
	bool aborted;	/* siw_llp_tcp_set_abortive_close() was called */
	bool has_timer; /* siw_llp_sock_enable_timer() was called */
	/* time at which a poll returns the handler unconditionally; UINT64_MAX: never */
	_Atomic uint64_t due_ns;
	int error;	  /* error of connecting: an errno, or 0 */
	uint32_t ifindex; /* interface of a multicast group's socket; otherwise 0 */
	/*
	 * the part of the kernel's count of dropped datagrams that siwarp's counter already
	 * includes
	 */
	uint32_t drops;
	struct siw_link all;
	struct siw_link timed; /* link in the poller's list `timed` if has_timer is set */
	/* capture state of the socket, under the capture lock; NULL until a capture is started */
	struct siw_llp_capture *capture;
	/* fault state of the socket; NULL until there is a fault plan */
	struct siw_llp_faulty *_Atomic faulty;
};

struct siw_llp_poller {
	/* Accessed by each poll; protected by the progress lock. */
	_Alignas(SIW_LLP_LINE) uint64_t polls;
	uint64_t active; /* number of the last poll that found data on any socket */
	uint64_t slept;	 /* number of the last poll that followed a sleep */
	int n_hot;
	int max_hot;
	int n_ring;
	unsigned int hot_turn; /* index of the next hot socket, if a poll cannot return all */
	bool ask;	       /* the last epoll_wait filled the event array */
	bool after_sleep;      /* a wait set was filled; reset by the next poll that checks it */
	uint32_t n_data;       /* number of sockets that carry data, hot and cold */
	struct siw_link ring;
	uint64_t asked_ns; /* when epoll_wait was last called, while there are cold sockets */
	uint32_t ask_ns;   /* interval in ns after which epoll_wait is called again */
	uint64_t clock_ns; /* time in ns that the poll with number clock_poll read */
	uint64_t clock_poll;
	struct siw_llp_sock *hot[SIW_LLP_HOT_MAX];
	/*
	 * A lock that is held while a socket's want_write changes together with its events in
	 * epoll. Innermost lock.
	 */
	siw_lock_t wish_lock;

	/*
	 * Accessed by any thread. armed is returned by siw_llp_poller_is_armed(). sleepers counts
	 * the threads inside siw_llp_wait_any(). changes counts the changes that make existing wait
	 * sets incomplete. Each side stores its own counter and then loads the other's
	 * (sequentially consistent), so at least one side sees the other's store.
	 */
	/* the wake descriptor is set or about to be set */
	_Alignas(SIW_LLP_LINE) _Atomic uint32_t woken;
	_Atomic uint32_t loops; /* number of descriptors for event loops (llp_loop.c) */
	_Atomic uint32_t sleepers;
	_Atomic uint32_t changes;
	_Atomic uint8_t armed;
	/* When a packet that a fault plan holds back is due (llp_fault.c); UINT64_MAX: never. */
	_Atomic uint64_t fault_due;
	/* when the first timer of a socket is due; UINT64_MAX: never */
	_Atomic uint64_t timed_due;
	/*
	 * protected by the progress lock: generation of the fault plan at the last release of
	 * packets
	 */
	uint32_t fault_generation;

	int epfd, wake_fd;
	pid_t owner;
	uint8_t *room; /* the buffer returned by siw_llp_poller_rx_buffer() */
	/*
	 * The unread rest of a batch in room: datagrams of seg octets, except that the last may be
	 * shorter.
	 */
	uint32_t room_at, room_end, room_seg;
	struct siw_addr room_source;
	/* buffer for siw_llp_batch_buffer_acquire(), any thread; NULL while in use */
	_Atomic(uint8_t *) batch;
	int n_stalled;
	uint64_t stalled_until; /* when stalled listeners are tried again, in ns */
	uint64_t quiet_rounds;	/* number of epoll_wait calls that reported no event */
	struct siw_link all;	/* list of all sockets */
	struct siw_link timed;	/* list of the sockets with timers */
};

/* Sets *due to at if at is earlier. Returns whether *due was changed. Any thread. */
static inline bool siw_llp_set_earlier_due_time(_Atomic uint64_t *due, uint64_t at)
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

/* ---- llp_poller.c: functions by which sockets report to the poller --------------------------- */

int siw_llp_sock_register(struct siw_llp_sock *sock);
/* Called when a receive on the socket returned EAGAIN. */
void siw_llp_sock_note_empty(struct siw_llp_sock *sock);
/*
 * Called when a receive found the end of the stream or an error. The socket leaves the hot set,
 * where every poll would find the same end again.
 */
void siw_llp_sock_note_end_of_stream(struct siw_llp_sock *sock);
/*
 * Called when accept() on a listener failed with EMFILE or a similar error: the listener leaves the
 * ready ring for 100 ms (STALL_NS).
 */
void siw_llp_listener_pause_after_accept_error(struct siw_llp_sock *sock);
/*
 * Removes the socket from the hot set, the ready ring and the epoll set. Wakes the threads that
 * sleep on the socket itself.
 */
void siw_llp_sock_detach(struct siw_llp_sock *sock);
/*
 * Called when existing wait sets have become incomplete: wakes the threads that sleep on a wait
 * set. Any thread.
 */
void siw_llp_poller_invalidate_wait_sets(struct siw_llp_poller *poller);

/*
 * Called when a receive on the socket returned data. A hot socket is marked ready until a receive
 * finds it empty, because received data may be left unhandled and no descriptor would wake a
 * sleeping thread for them.
 */
static inline void siw_llp_sock_note_received_data(struct siw_llp_sock *sock)
{
	sock->active = sock->poller->active = sock->poller->polls;
	if (sock->hot >= 0)
		sock->ready = true;
}

/*
 * The system calls of the data path, made without the C library's wrappers. The wrappers make each
 * call a cancellation point (base/cancel.h), which costs two atomic instructions in a process with
 * threads. ThreadSanitizer does not see direct system calls; siw_llp_tsan_note_send() reports their
 * order instead. AddressSanitizer checks the memory that the wrappers read and write, so its builds
 * use them.
 */
#if defined(__SANITIZE_ADDRESS__)
#define SIW_LLP_CALL(name, ...)                               \
	({                                                    \
		int siw_cancel = siw_cancel_disable();        \
		ssize_t siw_n = (ssize_t)(name)(__VA_ARGS__); \
		siw_cancel_restore(siw_cancel);               \
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
 * Called before and after a call that opens a descriptor, so that no fork() happens before the
 * descriptor is in the set.
 */
void siw_llp_fd_creation_begin(void);
/*
 * Ends siw_llp_fd_creation_begin(). fd: the result of the call that opened a descriptor. Adds the
 * descriptor to the set and returns it, or returns -errno.
 */
int siw_llp_fd_creation_done(int fd);
/*
 * siw_llp_fd_add_close_on_fork() adds a descriptor that the program has opened to the set, so that
 * forked children close it. Returns 0 or -ENOMEM. siw_llp_fd_remove_close_on_fork() removes a
 * descriptor from the set, so that children inherit it. Returns false if it was not in the set.
 */
int siw_llp_fd_add_close_on_fork(int fd);
bool siw_llp_fd_remove_close_on_fork(int fd);
void siw_llp_fd_close(int fd);

/* ---- llp_sock.c ------------------------------------------------------------------------------ */

/*
 * Connects a socket. Returns 0 or -errno. After -EINPROGRESS, and also after -EINTR, connecting
 * continues in the background.
 */
int siw_llp_connect(int fd, const struct siw_addr *dest);

/*
 * Report to ThreadSanitizer that memory accesses before a send precede the receive of its octets.
 * ThreadSanitizer cannot see an order that passes through the kernel: with both ends in one process
 * it would report the peer's placement as a race with the program's accesses before its post. dest
 * and source are NULL on a connected socket. In other builds these functions do nothing.
 */
#if defined(__SANITIZE_THREAD__)
void siw_llp_tsan_note_send(int fd, const struct siw_addr *dest);
void siw_llp_tsan_note_receive(int fd, const struct siw_addr *source);
#else
static inline void siw_llp_tsan_note_send(int fd, const struct siw_addr *dest)
{
	(void)fd, (void)dest;
}

static inline void siw_llp_tsan_note_receive(int fd, const struct siw_addr *source)
{
	(void)fd, (void)source;
}
#endif

/*
 * Sends on a socket. Returns the number of octets sent, or -1 with errno set. dest: NULL on a
 * connected socket. n: at most IOV_MAX.
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

	siw_llp_tsan_note_send(fd, dest);
	do {
		if (n == 1)
			sent = siw_llp_sendto(fd, iov->iov_base, iov->iov_len, MSG_NOSIGNAL, dest,
					      dest_len);
		else
			sent = siw_llp_sendmsg(fd, &msg, MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	return sent;
}

/*
 * Creates a socket struct for fd and registers it. After an error fd still belongs to the caller.
 */
int siw_llp_sock_new(struct siw_llp_poller *poller, int fd, enum siw_llp_kind kind,
		     struct siw_io_handler *handler, struct siw_llp_sock **out);
/*
 * Sets want_write of a socket. always: update the epoll entry even if want_write was set before,
 * which is needed after errors without a certain later event: after ENOBUFS a full device queue
 * gets space without an event on the socket.
 */
void siw_llp_request_write_event(struct siw_llp_sock *sock, bool always);
/*
 * Handles a send that failed with this errno: counts it and returns -EAGAIN (want_write is set) or
 * -error.
 */
int siw_llp_handle_failed_send(struct siw_llp_sock *sock, int error);
/*
 * Adds the datagrams that the kernel dropped at this socket since the last call to siwarp's
 * counter.
 */
void siw_llp_udp_record_new_drops(struct siw_llp_sock *sock);
/* Turns batched receiving off before the descriptor is closed. */
void siw_llp_udp_disable_gro_for_close(struct siw_llp_sock *sock);
/* Sets the socket's buffer sizes from the settings. */
void siw_llp_udp_set_buffer_sizes(int fd);
#define SIW_LLP_ECN_MASK 3
#define SIW_LLP_ECN_ECT0 2
#define SIW_LLP_ECN_CE	 3
/* Sets the ECN code point of the datagrams that the socket sends. Returns 0 or -errno. */
int siw_llp_udp_set_ecn(struct siw_llp_sock *sock, int ecn);
/* Opens a socket descriptor. Returns the descriptor, or -errno. */
int siw_llp_open_socket_descriptor(uint16_t family, int type);
int siw_llp_set_socket_option(int fd, int level, int name, int value);

/* ---- llp_udp.c, llp_tcp.c: the functions of llp.h without fault injection -------------------- */

int siw_llp_udp_send_without_faults(struct siw_llp_sock *sock, const struct siw_addr *dest,
				    const struct iovec *iov, int n);
ssize_t siw_llp_udp_recv_without_faults(struct siw_llp_sock *sock, struct siw_addr *source,
					void *buf, size_t size);
/*
 * Receives a datagram or a batch. *seg: the size of a batch's datagrams; 0: a single datagram was
 * received.
 */
ssize_t siw_llp_udp_recv_batch(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
			       size_t size, uint16_t *seg);
ssize_t siw_llp_tcp_sendv_without_faults(struct siw_llp_sock *sock, const struct iovec *iov, int n);
ssize_t siw_llp_tcp_recvv_without_faults(struct siw_llp_sock *sock, const struct iovec *iov, int n);
int siw_llp_tcp_shutdown_without_faults(struct siw_llp_sock *sock);
/* Resets the connection immediately. The descriptor stays open until siw_llp_close(). */
void siw_llp_tcp_reset(struct siw_llp_sock *sock);

#endif
