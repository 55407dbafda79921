/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_fault.h - a plan of faults (base/faults.h) between the layers above and the sockets.
 * Without one it costs each system call a relaxed load and a branch.
 *
 * Each socket has its own rates, limits and packet numbers, in each direction. Packets that are
 * held back lie in queues here; siw_llp_port_poll() releases them when they are due, and a wait
 * ends in time for that. A capture shows what passed the socket: packets that a plan drops when
 * they are sent are not in it, and delayed ones are there when they leave; received packets that a
 * plan drops are in it, with the reason as their comment.
 */
#ifndef SIW_LLP_FAULT_H
#define SIW_LLP_FAULT_H

#include "base/faults.h"
#include "base/faults_queue.h"
#include "base/lock.h"
#include "llp/llp_sock.h"

struct siw_llp_faulty {
	/* guards all members; taken under any lock of llp's callers, and before a capture's */
	siw_lock_t lock;
	uint32_t generation;
	uint64_t began;
	struct siw_faults plan;
	struct {
		struct siw_fault_path path;
		struct siw_fault_queue queue;
	} way[2];     /* enum siw_fault_dir */
	bool counted; /* in siw_faults_active */

	/* Members of a stream. */
	struct siw_addr peer;
	uint64_t reset_at; /* UINT64_MAX: no reset by time is due */
	uint64_t retry_at; /* the socket was full: do not send before this time */
	int error;	   /* the stream is over: an errno */
	bool shut;	   /* the end of the stream is sent after what is held back */
	_Atomic bool full; /* no more octets are accepted */
	uint8_t *scratch;  /* SIW_LLP_FAULT_SCRATCH octets */
};

#define SIW_LLP_FAULT_SCRATCH 65536

/* ---- for the sockets: while siw_faults_on() -------------------------------------------------- */

int siw_llp_fault_send(struct siw_llp_sock *sock, const struct siw_addr *dest,
		       const struct iovec *iov, int n);
ssize_t siw_llp_fault_recv(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
			   size_t size);
ssize_t siw_llp_fault_sendv(struct siw_llp_sock *sock, const struct iovec *iov, int n);
ssize_t siw_llp_fault_recvv(struct siw_llp_sock *sock, const struct iovec *iov, int n);
int siw_llp_fault_shutdown(struct siw_llp_sock *sock);
/* A connection was established. From now on its reset by time may happen, even while it is idle. */
void siw_llp_fault_met(struct siw_llp_sock *sock);
/* The socket is about to be closed: drops what is held back for it. */
void siw_llp_fault_close(struct siw_llp_sock *sock);

/* ---- for the poller -------------------------------------------------------------------------- */

/*
 * Under the caller's lock on the port: sends what is due, marks sockets ready that have octets due.
 */
void siw_llp_fault_release(struct siw_llp_port *port);
/* When a sleeper must wake; 0: never. */
uint64_t siw_llp_fault_wake_at(const struct siw_llp_port *port);
/*
 * Whether the plan accepts no more although the socket has room. Then waiting for room is no use.
 */
bool siw_llp_fault_full(const struct siw_llp_sock *sock);

/* ---- between llp_fault.c and llp_fault_tcp.c ------------------------------------------------- */

/*
 * Returns the socket's state, locked, updated to the current plan. NULL: there is no plan, and the
 * socket has had none.
 */
struct siw_llp_faulty *siw_llp_faulty_lock(struct siw_llp_sock *sock, int *error);
/*
 * Unlocks it, after setting when the port has something due: to send, and also to receive if the
 * caller has the lock on the port.
 */
void siw_llp_faulty_unlock(struct siw_llp_sock *sock, struct siw_llp_faulty *f, bool port_locked);
/* Does what is due for a stream: sends octets, its end, its reset by time; or reports its error. */
void siw_llp_fault_stream_flush(struct siw_llp_sock *sock, struct siw_llp_faulty *f, uint64_t now);
/* When there is something to read; UINT64_MAX: unknown. */
uint64_t siw_llp_fault_rx_next(struct siw_llp_sock *sock, struct siw_llp_faulty *f);

#endif
