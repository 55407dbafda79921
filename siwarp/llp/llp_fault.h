/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_fault.h - a plan of faults (base/faults.h) between the layers above and the sockets. Without
 * one it costs each system call a relaxed load and a branch.
 *
 * Each socket is a way of its own: rates, limits and numbering of packets are its own, in each
 * direction. What is held back lies in queues here; siw_llp_port_poll() moves it on when it is due, and a
 * wait ends in time for that. A capture shows what the socket gave and took: what a plan drops or holds on the way
 * out is not in it, or when it leaves; what it drops on the way in is, with the reason as its comment.
 */
#ifndef SIW_LLP_FAULT_H
#define SIW_LLP_FAULT_H

#include "base/faults.h"
#include "base/faults_queue.h"
#include "base/lock.h"
#include "llp/llp_sock.h"

struct siw_llp_faulty {
	siw_lock_t
		lock; /* of all below; taken with any of llp's callers' locks held, before a capture's */
	uint32_t generation;
	uint64_t began;
	struct siw_faults plan;
	struct {
		struct siw_fault_path path;
		struct siw_fault_queue queue;
	} way[2];     /* enum siw_fault_dir */
	bool counted; /* in siw_faults_active */

	/* Of a stream. */
	struct siw_addr peer;
	uint64_t reset_at; /* UINT64_MAX: not by time, or done */
	uint64_t retry_at; /* the socket was full: no earlier than this */
	int error;	   /* the stream is over: an errno */
	bool shut;	   /* the end of it goes behind what is held */
	_Atomic bool full; /* nothing more is taken */
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
/* A connection is made: its reset may come while it is idle. */
void siw_llp_fault_met(struct siw_llp_sock *sock);
/* The socket is about to be closed: what it held is gone. */
void siw_llp_fault_close(struct siw_llp_sock *sock);

/* ---- for the poller ----------------------------------------------------------------------------- */

/* Under the caller's lock on the port: sends what is due, marks ready who has something to read. */
void siw_llp_fault_release(struct siw_llp_port *port);
/* When a sleeper must be up: 0 never. */
uint64_t siw_llp_fault_wake_at(const struct siw_llp_port *port);
/* The socket has room, but the plan takes no more: nobody is to wait for room. */
bool siw_llp_fault_full(const struct siw_llp_sock *sock);

/* ---- between llp_fault.c and llp_fault_tcp.c ---------------------------------------------------- */

/* The socket's state, locked, as of the plan that is on; NULL: no plan ever met it, and none is on. */
struct siw_llp_faulty *siw_llp_faulty_lock(struct siw_llp_sock *sock, int *error);
/*
 * Gives it back, and has the port know when something is due; what came in too, if the caller has
 * the lock on the port.
 */
void siw_llp_faulty_unlock(struct siw_llp_sock *sock, struct siw_llp_faulty *f, bool port_locked);
/* What of a stream is due to be sent; its error, its end, its reset by time. */
void siw_llp_fault_stream_flush(struct siw_llp_sock *sock, struct siw_llp_faulty *f, uint64_t now);
/* When there is something to be read, UINT64_MAX: not by the clock. */
uint64_t siw_llp_fault_rx_next(struct siw_llp_sock *sock, struct siw_llp_faulty *f);

#endif
