/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * llp/llp_fault.h - applies a fault plan (base/faults.h) between the upper layers and the sockets.
 * Without a plan the cost is one relaxed load and a branch per system call.
 *
 * Each socket has its own rates, limits and packet numbers, in each direction. Packets that a plan
 * delays are queued here; siw_llp_poller_poll() releases them when they are due, and a wait ends in
 * time for that. A capture shows the packets that passed the socket: packets that the plan drops
 * before sending are not captured, and delayed packets are captured when they leave. Received
 * packets that the plan drops are captured, with the reason as a comment.
 */
#ifndef SIW_LLP_FAULT_H
#define SIW_LLP_FAULT_H

#include "base/faults.h"
#include "base/faults_queue.h"
#include "base/lock.h"
#include "llp/llp_sock.h"

struct siw_llp_faulty {
	/*
	 * protects all members; acquired with any lock of llp's callers held, and before a
	 * capture's lock
	 */
	siw_lock_t lock;
	uint32_t generation;
	uint64_t began;
	struct siw_faults plan;
	struct {
		struct siw_fault_path path;
		struct siw_fault_queue queue;
	} way[2];     /* indexed by enum siw_fault_dir */
	bool counted; /* the socket holds packets back and is counted in siw_faults_active */

	/* The following members are used for TCP streams only. */
	struct siw_addr peer;
	uint64_t reset_at; /* time of the planned reset; UINT64_MAX: none */
	uint64_t retry_at; /* the socket was full: do not send before this time */
	int error;	   /* the errno that ended the stream, or 0 */
	bool shut;	   /* the end of the stream will be sent after the octets held back */
	_Atomic bool full; /* the maximum number of octets is held back */
	uint8_t *scratch;  /* buffer of SIW_LLP_FAULT_SCRATCH octets */
};

#define SIW_LLP_FAULT_SCRATCH 65536

/* ---- for the sockets: called while siw_faults_on() ------------------------------------------- */

int siw_llp_udp_send_with_faults(struct siw_llp_sock *sock, const struct siw_addr *dest,
				 const struct iovec *iov, int n);
ssize_t siw_llp_udp_recv_with_faults(struct siw_llp_sock *sock, struct siw_addr *source, void *buf,
				     size_t size);
ssize_t siw_llp_tcp_sendv_with_faults(struct siw_llp_sock *sock, const struct iovec *iov, int n);
ssize_t siw_llp_tcp_recvv_with_faults(struct siw_llp_sock *sock, const struct iovec *iov, int n);
int siw_llp_tcp_shutdown_with_faults(struct siw_llp_sock *sock);
/*
 * Called when a connection was established. From now on the connection's planned reset may happen,
 * even while it is idle.
 */
void siw_llp_fault_note_connected(struct siw_llp_sock *sock);
/*
 * Called when the socket has joined another poller, whose lock the caller holds: records in that
 * poller when packets that are held back are due.
 */
void siw_llp_fault_note_joined_poller(struct siw_llp_sock *sock);
/* Called before the socket is closed: drops the packets that are held back for it. */
void siw_llp_fault_drop_held_packets(struct siw_llp_sock *sock);

/* ---- for the poller -------------------------------------------------------------------------- */

/*
 * Sends the packets that are due, and marks the sockets ready whose received octets are due. Called
 * with the caller's lock on the poller held.
 */
void siw_llp_fault_release_due_packets(struct siw_llp_poller *poller);
/* Returns when a sleeping thread must wake up for a packet that is held back; 0: never. */
uint64_t siw_llp_fault_wake_time_ns(const struct siw_llp_poller *poller);
/*
 * Returns whether the fault plan accepts no more octets although the socket has space. Waiting for
 * space in the socket would then end immediately.
 */
bool siw_llp_fault_is_stream_full(const struct siw_llp_sock *sock);

/* ---- between llp_fault.c and llp_fault_tcp.c ------------------------------------------------- */

/*
 * Locks and returns the socket's fault state, updated to the current plan. Returns NULL if there is
 * no plan and the socket never had one.
 */
struct siw_llp_faulty *siw_llp_fault_state_lock(struct siw_llp_sock *sock, int *error);
/*
 * Unlocks the fault state. Before that, records for the poller when the next delayed packet is due
 * to be sent and, if the caller holds the poller's lock, when one is due to be received.
 */
void siw_llp_fault_state_unlock(struct siw_llp_sock *sock, struct siw_llp_faulty *f,
				bool poller_locked);
/*
 * Performs the actions that are due for a stream: sends octets, ends or resets the stream, or
 * reports its error.
 */
void siw_llp_fault_perform_due_stream_actions(struct siw_llp_sock *sock, struct siw_llp_faulty *f,
					      uint64_t now);
/* Returns when the next received octets of a stream are due; UINT64_MAX: unknown. */
uint64_t siw_llp_fault_next_rx_due_time_ns(struct siw_llp_sock *sock, struct siw_llp_faulty *f);

#endif
