/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sim/sim_impl.h - the parts of a world, and what this folder's files share; private to it.
 *
 * No locks: one task runs at a time, and everything here belongs to the one that runs. Each choice
 * depends on the seed and on what happened before, never on an address, a thread's number or the
 * machine's clock.
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
#include "base/faults.h"
#include "base/list.h"
#include "llp/llp.h"
#include "sim/sim.h"

#define SIM_NEVER UINT64_MAX

/* Code points of ECN (RFC 3168). */
#define SIM_ECN_ECT0 2
#define SIM_ECN_CE   3

#define SIM_OVERHEAD 768 /* octets that a datagram takes of a socket's buffer beside its own */

/* ---- what happens at a time -------------------------------------------------------------------- */

struct sim_timer {
	uint64_t at;
	uint32_t place; /* in the heap, from 1; 0: it is not set */
	void (*fire)(struct sim_timer *self);
};

/* An entry of the world's heap, in order of time, then of the order in which they were set. */
struct sim_due {
	uint64_t at, order;
	struct sim_timer *timer;
};

/* Sets it, also anew. */
void sim_timer_set(struct sim_timer *timer, uint64_t at);
void sim_timer_stop(struct sim_timer *timer);

/* ---- hosts and links --------------------------------------------------------------------------- */

struct sim_plan {
	struct siw_faults faults;
	uint64_t began;
	struct sim_plan *next; /* all plans of a world live as long as it */
};

/* What a plan does to packets that pass one way, one behind the other. */
struct sim_line {
	const struct sim_plan *plan; /* which state is for */
	struct siw_fault_path state;
	/* Packets that wait for the rate: a ring of when each is through, and of their octets. */
	struct sim_leaving {
		uint64_t at;
		uint32_t octets;
		struct siw_llp_sock *sock; /* whose send buffer has it; NULL: none */
	} * leaving;
	uint32_t leaving_at, n_leaving, leaving_room;
	uint64_t leaving_octets;
};

struct sim_host {
	uint32_t number;
	struct siw_llp_interface netif; /* its addresses have port 0 */
	bool dead;			/* crashed, and not restarted */
	uint32_t mutated;		/* of 1,000 datagrams that it sends */
	struct siw_link watches;
	struct siw_link socks;
	const struct sim_plan *plan; /* of its interface; NULL: none */
	struct sim_line sends, receives;
};

/* One direction between two hosts. */
struct sim_path {
	struct sim_host *from, *to;
	const struct sim_plan *own; /* NULL: the world's */
	struct sim_line line;
	bool receives; /* of its plan the rx: clauses are for it, not the tx: ones */
	bool cut;
	bool told; /* ICMP reports packets that are longer than the path MTU */
	uint32_t cuts;
	uint32_t mtu;	       /* 0: that of the interfaces */
	uint32_t known;	       /* what ICMP has told of the MTU; 0: nothing */
	struct siw_link aside; /* packets that wait to be overtaken */
	/* ICMP's ration, as Linux's (net.ipv4.icmp_ratelimit): six at once, then one a second. */
	uint64_t icmp_since;
	uint32_t icmp_tokens;
	struct sim_path *next; /* in its bucket */
};

enum sim_event {
	SIM_SENT = 1,
	SIM_LOST,
	SIM_DELIVERED,
	SIM_REFUSED,
	SIM_OVERFLOWED,
	SIM_CRASHED,
	/* Of TCP: */
	SIM_SEGMENT_SENT,
	SIM_SEGMENT_LOST,
	SIM_SEGMENT_DELIVERED,
	SIM_CONNECTED,
};

/* A TCP segment's header. Sequence numbers count from 0, the SYN's, and do not wrap. */
struct sim_segment {
	uint8_t flags;		 /* enum siw_capture_tcp_flags */
	bool probe;		 /* asks for the window */
	uint64_t seq, ack, edge; /* edge: behind the last octet that there is room for */
	/* For selective acknowledgement: the number of this transmission, and of the one acknowledged. */
	uint64_t number, answers;
	/* Which connections it is of; to: 0, since the sender does not know it yet. */
	uint64_t from, to;
};

struct sim_packet {
	struct sim_timer timer;
	struct siw_link link; /* in a socket's inbox, or a list of a connection's */
	struct siw_link aside;
	uint8_t passes; /* not 0: in its path's list aside */
	struct sim_path *path;
	uint32_t cuts; /* the path's as it left */
	struct siw_addr from, to;
	uint8_t ecn;
	bool refusal; /* an ICMP port unreachable; octets is what it quotes */
	bool tcp;
	bool received;		    /* it has passed the interface of its destination */
	struct sim_segment segment; /* of TCP */
	uint32_t length;	    /* of the payload */
	uint8_t octets[];
};

struct sim_host *sim_host_of(const struct siw_addr *addr);
struct sim_path *sim_path_of(struct sim_host *from, struct sim_host *to);
/* The MTU that the sender knows of, in octets. */
uint32_t sim_path_known(const struct sim_path *path);
/*
 * The fate of a packet of so many octets, which peer is the other end of, by the path's plan. sock: whose
 * send buffer has it while it waits for the rate, or NULL. False: it is lost, which is counted.
 */
bool sim_path_judge(struct sim_path *path, const struct siw_addr *peer, uint32_t octets,
		    struct siw_llp_sock *sock, struct siw_fault_fate *fate);
/* A plan of this world; NULL: siw_sim_why() says what is wrong with the text. */
struct sim_plan *sim_plan_new(const char *text);
/* Sends a datagram, or to a group one to each host with a member: 0, or -EMSGSIZE. */
int sim_net_send(struct siw_llp_sock *sock, const struct siw_addr *dest, const struct iovec *iov,
		 int n);
struct sim_packet *sim_packet_new(struct sim_path *path, const struct siw_addr *from,
				  const struct siw_addr *to, uint32_t length);
void sim_packet_free(struct sim_packet *packet);
/* Sends a TCP segment; the packet is the network's from now on. */
void sim_segment_send(struct sim_packet *packet);
void sim_segment_trace(enum sim_event what, const struct sim_packet *packet);
void sim_segment_capture(const struct sim_host *host, bool sent, const struct sim_packet *packet);
/* Where a connection is in the random numbers of its path's plan. */
struct sim_flow {
	uint32_t number; /* of the connection */
	const struct sim_plan *plan;
	struct siw_fault_path state;
};
/*
 * How many of `length` octets one call moves by the path's plan (reset=, short=): 0, the connection
 * is to be reset. *reset_at: when it is to be reset anyway (siw_sim_now); SIM_NEVER.
 */
size_t sim_path_share(struct sim_path *path, struct sim_flow *flow, const struct siw_addr *peer,
		      size_t length, uint64_t *reset_at);
/* Writes a datagram to the capture, if one is on. */
void sim_net_capture(const struct sim_host *host, bool sent, const struct siw_addr *from,
		     const struct siw_addr *to, const uint8_t *octets, uint32_t length);
/* Frees hosts, paths and what is under way. */
void sim_net_close(void);

void sim_trace(enum sim_event what, const struct siw_addr *from, const struct siw_addr *to,
	       uint64_t length, const void *octets);

/* ---- ports and sockets ------------------------------------------------------------------------- */

struct siw_llp_port {
	struct siw_link all;
	struct siw_link ring; /* sockets that are ready */
	uint32_t n_ring;
	struct siw_link socks;
	struct siw_link timed;
	uint64_t timed_due;
	bool woken;
	uint32_t changes;
	struct sim_host *host;	 /* NULL until it has a watch or a socket */
	struct siw_link waiters; /* tasks that wait on it */
	/* The scheduler's, which serves the device. */
	struct siw_context *context; /* of the device; NULL until that is opened */
	bool served;		     /* the scheduler serves it */
	struct sim_timer timer;
	uint64_t nap_until;
	struct siw_link due; /* in the world's list of those to look at */
	bool has_work;	     /* it is in the world's list of those */
	bool nap_over;	     /* a nap has ended, behind which a round is due */
	uint64_t round_at;   /* when its last round was, and how many there were then */
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
	SIM_CUT_KNOWN, /* as IP_PMTUDISC_WANT: fragments what is longer than the known path MTU */
	SIM_CUT_ALL,
	SIM_CUT_NONE,  /* as IP_PMTUDISC_DO */
	SIM_CUT_PROBE, /* as IP_PMTUDISC_PROBE */
};

struct siw_llp_sock {
	enum sim_kind kind;
	struct siw_llp_port *port;
	struct siw_io_handler *handler;
	struct sim_host *host;
	struct siw_addr local;
	bool open; /* it has its port; false after its host crashed */
	bool ready, held, want_write, timed;
	uint64_t due_ns;
	struct siw_link ring, of_port, of_host, in_timed;
	struct siw_llp_sock *next; /* in its bucket */
	/* UDP */
	struct siw_link inbox, refusals;
	uint32_t n_inbox, inbox_octets;
	uint32_t streak;
	uint32_t out_octets;   /* in its send buffer: they wait for a rate */
	struct sim_timer room; /* when that has room again */
	bool hears, group;
	uint8_t ecn;	 /* of what it sends */
	uint8_t got_ecn; /* of what it received last */
	int ttl;
	enum sim_cut cut;
	/* TCP: sim_tcp.c */
	struct sim_stream *stream; /* NULL: of a listener */
	struct siw_link coming;	   /* of a listener: connections that are not complete */
	struct siw_link waiting;   /* ... and those that wait for accept */
	uint32_t n_waiting, backlog;
};

struct siw_llp_watch {
	struct siw_llp_sock sock;
	struct siw_link of_host;
	struct siw_link news;
	uint8_t queue[16];
	uint32_t n;
};

int sim_sock_init(struct siw_llp_sock *sock, struct siw_llp_port *port, enum sim_kind kind,
		  struct siw_io_handler *handler);
void sim_sock_fini(struct siw_llp_sock *sock);
void sim_sock_drained(struct siw_llp_sock *sock);
/* The sockets that have this address and port, one after another; host: of a wildcard address. */
struct siw_llp_sock *sim_sock_at(enum sim_kind kind, const struct siw_addr *addr,
				 const struct sim_host *host, const struct siw_llp_sock *after);
/* Gives it the address: 0, -EADDRINUSE or -EADDRNOTAVAIL. *local gets the port. */
int sim_sock_bind(struct siw_llp_sock *sock, struct siw_addr *local, bool shares);
void sim_sock_unbind(struct siw_llp_sock *sock);
/* Its packets that wait for a rate are in no send buffer from now on. */
void sim_net_forget(struct siw_llp_sock *sock);
/* Whether the send buffer takes so many octets more. If not, sock->room is set. */
bool sim_net_has_room(struct siw_llp_sock *sock, const struct siw_addr *dest, uint32_t octets);
/* A datagram, or what ICMP says, arrives at the host. */
void sim_udp_arrive(struct sim_packet *packet, struct sim_host *host);
void sim_udp_drop_all(struct siw_llp_sock *sock);
/* A segment arrives at the host. */
void sim_tcp_arrive(struct sim_packet *packet, struct sim_host *host);
/* Closes the connections of the host's processes as the kernel does when they are killed. */
void sim_tcp_crash(const struct sim_host *host);
void sim_tcp_close(void);
/* The port has something to do: wakes the tasks that wait on it, or marks it for the scheduler. */
void sim_port_kick(struct siw_llp_port *port);
/* The scheduler checks the port before it next picks a task or a device. */
void sim_port_due(struct siw_llp_port *port);
void sim_port_look(struct siw_llp_port *port);
/*
 * Returns a descriptor that keeps a port (0: a free one, which is stored in *local) for sockets of
 * this kind, or -errno. Like Linux, one of UDP excludes other sockets, and one of TCP conflicts
 * with listeners only. In a world of several hosts a wildcard address conflicts with nothing, since
 * the caller's host is not known.
 */
int sim_keep(enum sim_kind kind, struct siw_addr *local, bool v6_only);
/* The host has crashed: its descriptors keep no ports any more. */
void sim_keep_none(const struct sim_host *host);
void sim_watch_tell(struct sim_host *host, enum siw_llp_watch_news news);

/* sim_device.c: the device of a port that the scheduler serves */
bool sim_device_round(struct siw_llp_port *port);	   /* whether it moved something */
uint64_t sim_device_tick(const struct siw_llp_port *port); /* SIM_NEVER: none */
void sim_device_close_all(const struct sim_host *host);

/* ---- event descriptors ------------------------------------------------------------------------- */

/* A bound address that is kept for sockets which are opened later (siw_llp_tcp_keep). */
struct sim_kept {
	enum sim_kind kind; /* SIM_UDP or SIM_LISTENER */
	struct siw_addr addr;
	const struct sim_host *host; /* NULL: of a wildcard address where there are several hosts */
	bool both;		     /* the IPv6 wildcard address without IPV6_V6ONLY: IPv4, too */
};

struct sim_fd {
	int fd;
	bool set;
	bool keeps; /* it keeps a port, and is not for events */
	struct sim_kept kept;
	struct siw_link waiters;
	struct siw_link members; /* of sets */
};

struct siw_sim_set {
	struct siw_link members, readable, waiters;
	int *gone; /* that were closed, and not reported yet */
	uint32_t n_gone, gone_room;
};

struct sim_fd *sim_fd_of(int fd); /* NULL: it is none of ours */

/* ---- tasks ------------------------------------------------------------------------------------- */

/* One thing that a task waits for: in that thing's list of waiters. */
struct sim_wait {
	struct siw_link link;
	struct sim_task *task;
};

enum sim_state {
	SIM_READY,
	SIM_BLOCKED,
	SIM_STEPPING, /* runs again when nothing else can run at this instant */
	SIM_ENDED,
};

struct sim_task {
	int number;
	enum sim_state state;
	_Atomic uint32_t turn; /* a futex: 1 while it is this task's turn */
	struct sim_timer timer;
	bool woken;    /* by what it waits for, not by the timer */
	bool unparked; /* before it parked */
	bool parked;
	uint64_t until; /* of a step */
	bool runs;	/* of a step: it does not end with the instant */
	int stepped;
	uint64_t pause; /* ns, after its next poll that finds nothing */
	struct sim_wait *waits;
	uint32_t n_waits, waits_room;
};

/* The running task waits for this, too, when it next calls sim_block(). */
void sim_wait_add(struct siw_link *waiters);
/* A scheduling point. True: something woke it; false: it is `until`, or that is past. */
bool sim_block(uint64_t until);
/* A poll of the running task found nothing; it may wait for something, as before sim_block(). */
void sim_empty_poll(void);
/* What the list's tasks wait for has come. */
void sim_wake_all(struct siw_link *waiters);
/* The running task; aborts if the calling thread is none. */
struct sim_task *sim_me(void);

/* ---- world ------------------------------------------------------------------------------------- */

/* A stream of random numbers (SplitMix64). */
struct sim_random {
	uint64_t state;
};
uint64_t sim_random(struct sim_random *random);

/* As those of the C library, for the simulator's own memory: the world has none of them fail. */
void *sim_malloc(size_t size);
void *sim_calloc(size_t n, size_t size);
void *sim_realloc(void *old, size_t size);

#define SIM_BUCKETS	 4096
#define SIM_PATH_BUCKETS 65536 /* there may be one for each pair of hosts */

struct sim_world {
	bool open;
	_Atomic uint64_t now; /* any thread may read it */
	uint64_t order;
	uint64_t hash;
	struct sim_random choose, numbers, net, tcp, memory;
	uint32_t memory_fails; /* of 1,000,000 allocations */
	enum {
		SIM_MEMORY_OPEN,
		SIM_MEMORY_FAILS,
		SIM_MEMORY_IS_THERE
	} memory_decided; /* of the next */
	/* What siw_first_number() was called with, in a world whose numbers begin near their wrap. */
	bool near_wrap;
	uint32_t *firsts;
	uint32_t n_firsts, firsts_room;
	struct siw_sim_stats stats;
	uint64_t handed; /* handlers that polls returned, so far */
	bool in_round;	 /* of a device */
	bool in_poll;	 /* of a queue: a yield in it is the poll's */

	struct sim_due *heap; /* from 1 */
	uint32_t n_heap, heap_room;

	struct sim_task **tasks;
	uint32_t n_tasks, tasks_room;
	uint32_t n_stepping;
	bool stopped; /* siw_sim_stop() was called, and no siw_sim_run() has returned since */
	struct sim_task *running;
	/* What can run at this instant: tasks that are ready, and ports with work. */
	struct sim_task **ready;
	uint32_t n_ready, ready_room;
	struct siw_llp_port **work;
	uint32_t n_work, work_room;
	struct siw_link due; /* ports to look at */
	struct siw_link ports;
	uint32_t n_ports;

	struct sim_host **hosts;
	uint32_t n_hosts, hosts_room;
	struct sim_plan *plans, *plan;
	struct sim_path *paths[SIM_PATH_BUCKETS];
	struct siw_llp_sock *socks[SIM_BUCKETS];
	struct siw_link streams; /* every connection's end */
	struct sim_stream *streams_at[SIM_BUCKETS];
	uint64_t n_streams; /* so far */
	struct sim_host_addr {
		struct siw_addr addr;
		struct sim_host *host;
		struct sim_host_addr *next;
	} * addrs[SIM_BUCKETS];
};

extern struct sim_world sim;

/* Memory, all zero. Without any left the process is aborted: nothing that depends on it may differ. */
void *sim_alloc(size_t octets);
/* Makes room for one more element of an array that has n. */
void *sim_grow(void *array, uint32_t n, uint32_t *room, size_t size);

static inline uint64_t sim_clock(void)
{
	return sim.now + SIW_SIM_MONOTONIC;
}

uint32_t sim_addr_bucket(const struct siw_addr *addr, uint64_t more);
bool sim_addr_is_any(const struct siw_addr *addr);

#endif
