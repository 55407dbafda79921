/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sim/sim_impl.h - the state of a world, and the declarations shared by the files of sim/; private
 * to sim/.
 *
 * There are no locks, because only one task runs at a time, and the running task may access the
 * whole state. Every decision depends on the seed and on earlier events only, never on an address,
 * a thread id or the machine's clock.
 */
#ifndef SIW_SIM_IMPL_H
#define SIW_SIM_IMPL_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/addr.h"
#include "base/counters.h"
#include "base/faults_queue.h"
#include "base/list.h"
#include "llp/llp.h"
#include "sim/sim.h"

#define SIM_NEVER UINT64_MAX

/* ECN code points (RFC 3168) */
#define SIM_ECN_ECT0 2
#define SIM_ECN_CE   3

/* octets of a socket buffer that each datagram uses in addition to its payload */
#define SIM_OVERHEAD 768

/* ---- timers ---------------------------------------------------------------------------------- */

struct sim_timer {
	uint64_t at;
	uint32_t place; /* index in the heap of timers, counted from 1; 0: the timer is not set */
	void (*fire)(struct sim_timer *self);
};

/*
 * An entry of the world's heap of timers. The heap is ordered by expiry time, then by the order in
 * which the timers were set.
 */
struct sim_due {
	uint64_t at, order;
	struct sim_timer *timer;
};

/* Sets the expiry time of a timer, which may already be set. */
void sim_timer_set(struct sim_timer *timer, uint64_t at);
void sim_timer_stop(struct sim_timer *timer);

/* ---- hosts and links ------------------------------------------------------------------------- */

struct sim_plan {
	struct siw_faults faults;
	uint64_t began;
	/* link in the list of the world's plans, which are freed when the world is closed */
	struct sim_plan *next;
};

/*
 * A transmission line: the state of a fault plan for packets that pass in one direction, in order.
 */
struct sim_line {
	const struct sim_plan *plan; /* fault plan to which the member `state` belongs */
	struct siw_fault_path state;
	struct siw_fault_backlog backlog; /* list of struct sim_leaving */
};

/* A packet or a fragment of a packet that waits for the rate limit of a transmission line. */
struct sim_leaving {
	struct siw_fault_waiting waiting;
	struct siw_llp_sock *sock; /* socket whose send buffer holds the packet, or NULL */
};

struct sim_host {
	uint32_t number;
	struct siw_llp_interface netif; /* port numbers of the addresses are 0 */
	bool dead;			/* the host has crashed and has not been restarted */
	/* number of datagrams in 1,000 sent by the host that are mutated */
	uint32_t mutated;
	struct siw_link watches;
	struct siw_link socks;
	const struct sim_plan *plan; /* fault plan of the interface; NULL: none */
	struct sim_line sends, receives;
};

/* A path: one direction of the link between two hosts */
struct sim_path {
	struct sim_host *from, *to;
	const struct sim_plan *own; /* fault plan of the link; NULL: the world's plan applies */
	struct sim_line line;
	bool receives; /* the plan's rx: clauses apply to this direction, not the tx: clauses */
	bool cut;
	bool reports_icmp; /* ICMP reports packets that are longer than the path MTU */
	uint32_t cuts;
	uint32_t mtu;	       /* 0: the MTU of the interfaces applies */
	uint32_t known;	       /* the path MTU that ICMP has reported; 0: none */
	struct siw_link aside; /* list of packets held back by reorder= until overtaken */
	/*
	 * Rate limit of ICMP messages, as net.ipv4.icmp_ratelimit of Linux: a burst of 6, then 1
	 * message per second.
	 */
	uint64_t icmp_since;
	uint32_t icmp_tokens;
	struct sim_path *next; /* next path in the hash bucket */
};

enum sim_event {
	SIM_SENT = 1,
	SIM_LOST,
	SIM_DELIVERED,
	SIM_REFUSED,
	SIM_OVERFLOWED,
	SIM_CRASHED,
	/* TCP events */
	SIM_SEGMENT_SENT,
	SIM_SEGMENT_LOST,
	SIM_SEGMENT_DELIVERED,
	SIM_CONNECTED,
};

/*
 * Header of a TCP segment. Sequence numbers have 64 bits, start with the SYN at 0 and do not wrap.
 */
struct sim_segment {
	uint8_t flags;		 /* enum siw_capture_tcp_flags */
	bool probe;		 /* the segment is a window probe */
	uint64_t seq, ack, edge; /* edge: right edge of the receive window */
	/*
	 * Numbers of this transmission, and of the transmission that the segment acknowledges, for
	 * selective acknowledgement
	 */
	uint64_t number, answers;
	/* Connection ids of both ends. The id `to` is 0 while the sender does not know it. */
	uint64_t from, to;
};

struct sim_packet {
	struct sim_timer timer;
	struct siw_link link; /* link in a socket's inbox or in a packet list of a connection */
	struct siw_fault_aside aside; /* link in path->aside */
	struct sim_path *path;
	uint32_t cuts; /* value of path->cuts when the packet was sent */
	struct siw_addr from, to;
	uint8_t ecn;
	bool refusal; /* the packet is an ICMP port unreachable message, which quotes a datagram */
	bool tcp;
	/* the packet has passed the fault plan of the destination's interface */
	bool received;
	struct sim_segment segment; /* only for TCP packets: the header */
	uint32_t length;	    /* octets of the packet's payload */
	uint8_t octets[];
};

struct sim_host *sim_host_by_addr(const struct siw_addr *addr);
struct sim_path *sim_path_find_or_create(struct sim_host *from, struct sim_host *to);
/* Returns the path MTU in octets that the sender knows. */
uint32_t sim_path_known_mtu(const struct sim_path *path);
/*
 * Applies the path's fault plan to a packet of the given number of octets. peer: the address of the
 * packet's other end. sock: the socket whose send buffer holds the packet while the packet waits
 * for the plan's rate limit, or NULL. Returns false if the packet is lost, in which case the loss
 * has been counted.
 */
bool sim_path_apply_faults_to_packet(struct sim_path *path, const struct siw_addr *peer,
				     uint32_t octets, struct siw_llp_sock *sock,
				     struct siw_fault_decision *fate);
/*
 * Parses a fault plan for a link or an interface of this world. Returns NULL if the text is
 * invalid; siw_sim_error_text() then returns the reason.
 */
struct sim_plan *sim_fault_plan_parse(const char *text, enum siw_faults_place place);
/* Sends a datagram, or a copy to each host with a member of the group. Returns 0 or -errno. */
int sim_send_datagram(struct siw_llp_sock *sock, const struct siw_addr *dest,
		      const struct iovec *iov, int n);
struct sim_packet *sim_packet_new(struct sim_path *path, const struct siw_addr *from,
				  const struct siw_addr *to, uint32_t length);
void sim_packet_free(struct sim_packet *packet);
/* Sends a TCP segment. The network takes ownership of the packet. */
void sim_send_tcp_segment(struct sim_packet *packet);
void sim_trace_tcp_segment(enum sim_event what, const struct sim_packet *packet);
void sim_capture_tcp_segment(const struct sim_host *host, bool sent,
			     const struct sim_packet *packet);
/* How far a connection has used up the random numbers of the path's fault plan */
struct sim_flow {
	uint32_t number; /* number of the TCP connection */
	const struct sim_plan *plan;
	struct siw_fault_path state;
};
/*
 * Returns the number of octets, of `length`, that one call may move according to the path's plan
 * (reset=, short=); 0: the connection must be reset. *reset_at: the time (of siw_sim_now) at which
 * the plan resets the connection, or SIM_NEVER.
 */
size_t sim_path_allowed_stream_octets(struct sim_path *path, struct sim_flow *flow,
				      const struct siw_addr *peer, size_t length,
				      uint64_t *reset_at);
/* Writes a datagram to the capture file, if a capture is running. */
void sim_capture_datagram(const struct sim_host *host, bool sent, const struct siw_addr *from,
			  const struct siw_addr *to, const uint8_t *octets, uint32_t length);
/* Frees hosts, paths and packets in flight. */
void sim_net_free(void);

void sim_trace_event(enum sim_event what, const struct siw_addr *from, const struct siw_addr *to,
		     uint64_t length, const void *octets);

/* ---- pollers and sockets --------------------------------------------------------------------- */

struct siw_llp_poller {
	struct siw_link all;
	struct siw_link ring; /* list of ready sockets, in the order of polling */
	uint32_t n_ring;
	struct siw_link socks;
	struct siw_link timed;
	uint64_t timed_due;
	bool woken;
	uint32_t changes;
	/*
	 * the host of the poller's sockets: that of an earlier poller of the device, or NULL until
	 * the poller has a socket or an interface watch
	 */
	struct sim_host *host;
	struct siw_link waiters; /* list of tasks that wait on the poller */
	struct siw_link loops;	 /* list of struct siw_llp_event_loop_fd */
	/* The fields below belong to the scheduler, which makes the lane's progress rounds. */
	struct siw_lane *lane; /* lane of the poller, or NULL until the device is opened */
	bool served;	       /* whether the scheduler makes the lane's progress rounds */
	struct sim_timer timer;
	uint64_t nap_until;
	/* link in sim.due, the list of pollers that the scheduler must check */
	struct siw_link due;
	bool has_work; /* the poller is in the array sim.work */
	/*
	 * a progress round must follow, for example because nap_us have passed since a poll by
	 * another thread
	 */
	bool nap_over;
	/* time of the last progress round, and number of rounds at that instant */
	uint64_t round_at;
	uint32_t rounds;
	pid_t owner;
	uint8_t *room;
	uint32_t room_at, room_end, room_seg;
	struct siw_addr room_source;
};

enum sim_kind {
	SIM_UDP,
	SIM_WATCH,
	SIM_LISTENER,
	SIM_STREAM_SOCK,
};

enum sim_cut {
	/*
	 * like the socket option IP_PMTUDISC_WANT: fragment datagrams that exceed the known path
	 * MTU
	 */
	SIM_CUT_KNOWN,
	SIM_CUT_ALL,
	SIM_CUT_NONE,  /* as IP_PMTUDISC_DO */
	SIM_CUT_PROBE, /* as IP_PMTUDISC_PROBE */
};

struct siw_llp_sock {
	enum sim_kind kind;
	/* NULL between siw_llp_leave_poller() and siw_llp_add_to_poller() */
	struct siw_llp_poller *poller;
	struct siw_io_handler *handler;
	struct sim_host *host;
	struct siw_addr local;
	bool open; /* the socket is bound; false after a crash of its host */
	bool ready, held, want_write;
	bool has_timer; /* siw_llp_sock_enable_timer() was called */
	uint64_t due_ns;
	struct siw_link ring, of_poller, of_host, in_timed;
	struct siw_llp_sock *next; /* link in the hash bucket */
	/* UDP sockets */
	struct siw_link inbox, refusals;
	uint32_t n_inbox, inbox_octets;
	uint32_t streak;
	uint32_t out_octets;   /* octets in the send buffer, which wait for a rate limit */
	struct sim_timer room; /* expires when the send buffer has free space again */
	bool hears, group;
	uint8_t ecn;	 /* ECN code point of sent datagrams */
	uint8_t got_ecn; /* ECN code point of the last received datagram */
	int ttl;
	enum sim_cut cut;
	/* TCP sockets (sim_tcp.c) */
	struct sim_stream *stream; /* the connection; NULL if the socket is a listener */
	struct siw_link coming;	   /* listener: list of connections not yet established */
	struct siw_link waiting;   /* listener: list of connections to be accepted */
	uint32_t n_waiting, backlog;
};

struct siw_llp_watch {
	struct siw_llp_sock sock;
	struct siw_link of_host;
	struct siw_link news;
	uint8_t queue[16];
	uint32_t n;
};

int sim_sock_init(struct siw_llp_sock *sock, struct siw_llp_poller *poller, enum sim_kind kind,
		  struct siw_io_handler *handler);
void sim_sock_fini(struct siw_llp_sock *sock);
void sim_sock_clear_ready(struct siw_llp_sock *sock);
/*
 * Returns the next socket after `after` that is bound to the given address and port, or NULL. host:
 * the host to search if addr is the wildcard address.
 */
struct siw_llp_sock *sim_sock_find(enum sim_kind kind, const struct siw_addr *addr,
				   const struct sim_host *host, const struct siw_llp_sock *after);
/*
 * Binds a socket to an address, and stores the port in *local. Returns 0, -EADDRINUSE,
 * -EADDRNOTAVAIL or -EAFNOSUPPORT.
 */
int sim_sock_bind(struct siw_llp_sock *sock, struct siw_addr *local, bool shares);
/*
 * Binds a new socket to an address, and stores the socket in *out. Returns the value of
 * sim_sock_bind(); after an error the socket is freed.
 */
int sim_sock_bind_or_free(struct siw_llp_sock *sock, const struct siw_addr *local, bool shares,
			  struct siw_llp_sock **out);
void sim_sock_unbind(struct siw_llp_sock *sock);
/*
 * Removes a socket's packets that wait for a rate limit from the accounting of its send buffer.
 */
void sim_net_detach_sock(struct siw_llp_sock *sock);
/*
 * Returns whether a socket's send buffer has space for the given number of octets. If not, sets the
 * timer sock->room.
 */
bool sim_net_send_buffer_has_space(struct siw_llp_sock *sock, const struct siw_addr *dest,
				   uint32_t octets);
/* Delivers a datagram or an ICMP message to a host. */
void sim_udp_deliver(struct sim_packet *packet, struct sim_host *host);
void sim_udp_drop_queued_packets(struct siw_llp_sock *sock);
/* Delivers a TCP segment to a host. */
void sim_tcp_deliver(struct sim_packet *packet, struct sim_host *host);
/* Closes the connections of a host's processes, as the kernel does when processes are killed. */
void sim_tcp_close_host_streams(const struct sim_host *host);
void sim_tcp_free_streams(void);
/*
 * Reports that a poller has work: wakes the tasks that wait on the poller, or marks the poller for
 * the scheduler.
 */
void sim_poller_wake(struct siw_llp_poller *poller);
/* Makes the scheduler check the poller before the scheduler selects the next task or device. */
void sim_poller_request_schedule_update(struct siw_llp_poller *poller);
void sim_poller_update_schedule(struct siw_llp_poller *poller);
/*
 * Reserves a port number for sockets of the given kind and returns the descriptor that holds the
 * reservation, or -errno. Port 0 reserves a free port, which is stored in *local. As on Linux, a
 * reserved UDP port excludes other sockets, and a reserved TCP port conflicts with listeners only.
 * In a world of several hosts a wildcard address has no conflicts, because the caller's host is not
 * known.
 */
int sim_reserve_port(enum sim_kind kind, struct siw_addr *local, bool v6_only);
/* Releases the port reservations of a crashed host. */
void sim_release_reserved_ports(const struct sim_host *host);
void sim_netdev_watch_report_change(struct sim_host *host, enum siw_llp_watch_change news);

/* sim_device.c: the lane of a poller whose progress rounds the scheduler makes */
/* Makes a progress round of the poller's lane. Returns whether the round handled anything. */
bool sim_device_make_progress_round(struct siw_llp_poller *poller);
/* Returns the monotonic time in ns of the lane's next tick; SIM_NEVER: no tick is due. */
uint64_t sim_device_next_tick_ns(const struct siw_llp_poller *poller);
void sim_host_close_devices(const struct sim_host *host);

/* ---- event descriptors ----------------------------------------------------------------------- */

/* An address and port reserved for sockets that are opened later (siw_llp_tcp_reserve_port). */
struct sim_kept {
	enum sim_kind kind; /* SIM_UDP or SIM_LISTENER */
	struct siw_addr addr;
	/* the host of the address; NULL: a wildcard address in a world of several hosts */
	const struct sim_host *host;
	/* addr is the IPv6 wildcard address without IPV6_V6ONLY, which includes IPv4 */
	bool both;
};

struct sim_fd {
	int fd;
	bool set;
	bool keeps; /* the descriptor holds a port reservation and is not an event descriptor */
	struct sim_kept kept;
	struct siw_link waiters;
	struct siw_link members; /* list of the descriptor's memberships in sets */
};

struct siw_sim_set {
	struct siw_link members, readable, waiters;
	int *gone; /* closed descriptors that have not been reported yet */
	uint32_t n_gone, gone_room;
};

/* Returns the simulator's object for a descriptor; NULL: not a descriptor of the simulator. */
struct sim_fd *sim_fd_find(int fd);

/* ---- tasks ----------------------------------------------------------------------------------- */

/* Entry of a waiting task in the list of waiters of one of the objects that it waits for */
struct sim_wait {
	struct siw_link link;
	struct sim_task *task;
};

enum sim_state {
	SIM_READY,
	SIM_BLOCKED,
	/*
	 * The task is in siw_sim_step_world() or siw_sim_run_world() and runs again when no other
	 * task or device can run at the current instant.
	 */
	SIM_STEPPING,
	SIM_ENDED,
};

struct sim_task {
	int number;
	enum sim_state state;
	_Atomic uint32_t turn; /* futex that is 1 while the task may run */
	struct sim_timer timer;
	bool woken;    /* the task was woken by an object, not by the timer */
	bool unparked; /* siw_sim_unpark() was called before siw_sim_park() */
	bool parked;
	/*
	 * latest time to which the current call of siw_sim_step_world() or siw_sim_run_world() may
	 * advance the clock
	 */
	uint64_t until;
	/* the call is siw_sim_run_world(), which does not return at each advance of the clock */
	bool runs;
	int stepped;
	uint64_t pause; /* ns to wait after the task's next poll without a result */
	struct sim_wait *waits;
	uint32_t n_waits, waits_room;
};

/* Adds the running task to a list of waiters until its next sim_block_task() ends. */
void sim_add_current_task_to_waiters(struct siw_link *waiters);
/*
 * Blocks the running task, as a scheduling point, until an event or the time `until`. Returns true
 * if an event woke the task, false if the time is `until` or later.
 */
bool sim_block_task(uint64_t until);
/*
 * Pauses the running task after a poll without a result. Objects may be added with
 * sim_add_current_task_to_waiters() before the call, as for sim_block_task().
 */
void sim_back_off_after_empty_poll(void);
/* Wakes all tasks in a list of waiters. */
void sim_wake_all(struct siw_link *waiters);
/* Returns the running task. Aborts the process if the calling thread is not a task. */
struct sim_task *sim_current_task(void);

/* ---- world ----------------------------------------------------------------------------------- */

/* Generator of random numbers (SplitMix64) */
struct sim_random {
	uint64_t state;
};
uint64_t sim_draw_random(struct sim_random *random);

/*
 * Allocate the simulator's own memory like malloc, calloc and realloc.
 * siw_sim_set_allocation_failure_rate() has no effect on these allocations.
 */
void *sim_internal_malloc(size_t size);
void *sim_internal_calloc(size_t n, size_t size);
void *sim_internal_realloc(void *old, size_t size);

#define SIM_BUCKETS	 4096
#define SIM_PATH_BUCKETS 65536 /* large, because there may be a path for each pair of hosts */

struct sim_world {
	bool open;
	_Atomic uint64_t now; /* time in ns, which any thread may read */
	uint64_t order;
	uint64_t hash;
	struct sim_random choose, numbers, net, tcp, memory;
	uint32_t memory_fails; /* number of allocations in 1,000,000 that fail */
	enum {
		SIM_MEMORY_UNDECIDED,
		SIM_MEMORY_FAILS,
		SIM_MEMORY_SUCCEEDS
	} memory_decided; /* whether the next allocation fails */
	/*
	 * firsts: the distinct RD epochs for which siw_initial_sequence() has returned a number
	 * since near_wrap was set
	 */
	bool near_wrap;
	uint32_t *firsts;
	uint32_t n_firsts, firsts_room;
	struct siw_sim_stats stats;
	uint64_t handed; /* number of handlers that polls of pollers have returned so far */
	bool in_round;	 /* whether a progress round of a device is running */
	/*
	 * a poll of a completion queue is running, in which sched_yield() does not pause the task
	 */
	bool in_poll;

	struct sim_due *heap; /* binary heap of timers, whose index 0 is not used */
	uint32_t n_heap, heap_room;

	struct sim_task **tasks;
	uint32_t n_tasks, tasks_room;
	uint32_t n_stepping;
	/* siw_sim_stop_world_run() was called, and no siw_sim_run_world() has returned since */
	bool stopped;
	struct sim_task *running;
	/* What can run at the current instant: the ready tasks, and the pollers with work */
	struct sim_task **ready;
	uint32_t n_ready, ready_room;
	struct siw_llp_poller **work;
	uint32_t n_work, work_room;
	struct siw_link due; /* list of pollers that the scheduler must check */
	struct siw_link pollers;
	uint32_t n_pollers;

	struct sim_host **hosts;
	uint32_t n_hosts, hosts_room;
	struct sim_plan *plans, *plan;
	struct sim_path *paths[SIM_PATH_BUCKETS];
	struct siw_llp_sock *socks[SIM_BUCKETS];
	struct siw_link streams; /* list of all TCP connection endpoints */
	struct sim_stream *streams_at[SIM_BUCKETS];
	uint64_t n_streams; /* number of TCP connection endpoints created so far */
	struct sim_host_addr {
		struct siw_addr addr;
		struct sim_host *host;
		struct sim_host_addr *next;
	} * addrs[SIM_BUCKETS];
};

extern struct sim_world sim;

/*
 * Allocates zeroed memory. Aborts the process if no memory is available, because a run must not
 * depend on the machine's memory.
 */
void *sim_alloc(size_t octets);
/* Grows an array of n elements, if it is full, and returns it. *room: its capacity in elements. */
void *sim_grow_array(void *array, uint32_t n, uint32_t *room, size_t size);

static inline uint64_t sim_monotonic_ns(void)
{
	return sim.now + SIW_SIM_MONOTONIC;
}

uint32_t sim_addr_hash_bucket(const struct siw_addr *addr, uint64_t more);
bool sim_addr_is_any(const struct siw_addr *addr);

#endif
