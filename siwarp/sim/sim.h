/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sim/sim.h - a deterministic simulator: the layers above llp, unchanged, on a network of memory
 * and a virtual clock. libsiwarp-sim is libsiwarp with this folder in the place of llp.
 *
 * A world has hosts, links between them, a clock, tasks and one seed. Devices are opened at the
 * hosts' addresses by the ordinary calls (siw_open_device_by_addr). The same seed gives the same run,
 * in any process, however busy the machine is.
 *
 * Time. While a world is open, the clocks of this library (base/clock.h, and the C library's for
 * code that is linked into it) stand still while code runs. They go on where nothing is left to do at
 * this instant: to the next delivery, timer or deadline.
 *
 * Tasks. A task is a thread of the program that takes part in the world. Exactly one runs at a time;
 * the others are blocked inside a call of this library. The thread that opens the world is task 0.
 * Every call that blocks (siw_get_cq_event and its like, sleeps, the calls below that say so) and every
 * poll that finds nothing is a scheduling point: the seed picks what runs next among the tasks that
 * are ready and the devices that have something to serve. A task whose poll found nothing runs again
 * after a microsecond, then twice as much each time, up to a millisecond, or when something happens.
 * Devices have no threads. They are served by the scheduler, where a thread would: unless a task
 * waits on the device, or has just polled it; not at all with setting progress=0.
 *
 * Between scheduling points a task may call anything. A thread that is no task must not call what
 * blocks or polls while a world is open: the process is aborted with a line on stderr.
 *
 * TCP. Its segments pass the links' plans like datagrams: a lost one is sent again, and what follows
 * it waits. The seed decides where a stream is cut into segments, and how much a call moves. As with
 * Linux's defaults a connection whose peer does not answer ends after 924.6 s (ETIMEDOUT), and a
 * connect after 127 s. corrupt= changes what TCP's checksum would have to find. reset= and short= act
 * on each connection.
 *
 * Rates. Packets queued for the sender's interface, or for a link whose plan has a rate, occupy the
 * socket's send buffer (setting sndbuf). A full send buffer refuses datagrams (-EAGAIN) until half of
 * it is free.
 *
 * Results: int functions return 0 or a value, or -errno. Times are nanoseconds. Unless it says "any
 * thread", a function is called by the task that runs.
 */
#ifndef SIW_SIM_H
#define SIW_SIM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <siwarp/types.h>

#pragma GCC visibility push(default)

/* cffi: begin */

/* ---- world ----------------------------------------------------------------------------------- */

/*
 * Opens the world: a process has one at a time, with any number after one another. faults: the plan of
 * every link without a plan of its own (base/faults.h); NULL or "": packets arrive at once, in order.
 * -EBUSY: there is one; -EINVAL: siw_sim_why() says what is wrong with the plan; -ENOMEM.
 */
int siw_sim_open(uint64_t seed, const char *faults);
/*
 * From now on message sequence numbers, and the epochs of RD, which are its first packet sequence
 * numbers, begin just below 2^32, so that they soon wrap; if not on, as on a machine. Both ends of a
 * connection must begin alike: call it before devices are opened. A peer that the program writes by
 * hand begins with MSN SIW_SIM_NEAR_WRAP.
 */
void siw_sim_near_wrap(int on);
#define SIW_SIM_NEAR_WRAP 0xfffffff0u
/*
 * Ends it, from task 0. All devices are closed already. -EBUSY: a device is open, or a task has not
 * ended; -ENOENT: there is none.
 */
int siw_sim_close(void);
/* Whether a world is open. Any thread. */
int siw_sim_is_open(void);
/* Why the last call with a plan returned -EINVAL. */
const char *siw_sim_why(void);

/* Since the world was opened. Any thread. */
uint64_t siw_sim_now(void);
/* Added to siw_sim_now() it is CLOCK_MONOTONIC, and so is the second for CLOCK_REALTIME. */
#define SIW_SIM_MONOTONIC 1000000000000ull
#define SIW_SIM_REALTIME  1577836800000000000ull /* 2020-01-01T00:00:00Z */
/* A random number that follows from the seed. */
uint64_t siw_sim_random(void);

/*
 * A hash of all that has happened: each datagram, segment and connection that was sent, delivered, lost
 * or refused, with its time, addresses and length, and of datagrams the LLP header, too. Of what is
 * behind that nothing is hashed, because tagged offsets are addresses of this process.
 */
uint64_t siw_sim_trace_hash(void);

struct siw_sim_stats {
	uint64_t sent, delivered;  /* datagrams */
	uint64_t lost, duplicated; /* packets, by plans, partitions and crashes */
	uint64_t refused;	   /* ... that no socket had the port of: ICMP or a reset said so */
	uint64_t overflowed;	   /* datagrams without room, connections beyond a backlog */
	uint64_t connections,
		segments;	     /* TCP: that came about; that were sent, retransmissions too */
	uint64_t rounds;	     /* of devices, by the scheduler */
	uint64_t switches;	     /* from one task to another */
	uint64_t instants;	     /* times that the clock went on */
	uint64_t allocations_failed; /* siw_sim_fail_memory */
};
void siw_sim_stats(struct siw_sim_stats *out);

/*
 * Blocks of memory that this library has taken from the C library and not given back. Some are kept
 * for the next world, so a difference says something only after the same world ran before. Any thread.
 */
int64_t siw_sim_blocks(void);
/*
 * Has so many of 1,000,000 allocations of this library fail from now on, which the seed decides; 0, as
 * at first: none. The network, the clock and the sockets of the world have memory always. -ENOENT,
 * -EINVAL.
 */
int siw_sim_fail_memory(uint32_t of_million);

/* ---- hosts ----------------------------------------------------------------------------------- */

/*
 * Adds a host with one interface, "sim0", "sim1" and so on by its number, which has these addresses
 * (ports are ignored) and this MTU (0: 1500). Its number, from 0; -EINVAL: no address, more than 16, or
 * one that is no unicast address; -EADDRINUSE: another host has one; -ENOMEM.
 */
int siw_sim_host_add(const struct siw_addr *addrs, int n, uint32_t mtu);
/*
 * What runs on the host is gone, as by kill -9, and the host's kernel goes on: its ports are closed (UDP:
 * ICMP says so), its TCP connections as by close: what was written is still sent, then a FIN; a reset if
 * octets are unread. What is in flight arrives, and the handles of its devices say ESTALE. Until siw_sim_host_restart no device can be opened there. A second call does nothing. A
 * scheduling point, since tasks that wait on such a device are woken. -ENOENT: no such host.
 */
int siw_sim_host_crash(int host);
/* Devices can be opened there again. */
int siw_sim_host_restart(int host);
/* The link of the host's interface is up or not, as after ip link set: its devices get a port event. */
int siw_sim_host_link_up(int host, int up);

/*
 * The plan of the host's interface from now on, which all of its packets pass, whoever the other end is:
 * tx: is for what it sends, before the link's plan; rx: for what it receives, after that. A rate in it is
 * one that all senders share. NULL: none, as at first. dup= and reorder= do nothing in it. -EINVAL,
 * -ENOENT.
 */
int siw_sim_host_plan(int host, const char *faults);

/* ---- links: each pair of hosts has one, and so has a host with itself ------------------------- */

/*
 * The plan between two hosts from now on: its tx: clauses are for what a sends to b, its rx: clauses for
 * the other way, the rest for both. NULL: that of the world. What is under way is not touched.
 * -EINVAL, -ENOENT.
 */
int siw_sim_link(int a, int b, const char *faults);
/* The plan of the world from now on, in which a is the host that was added first. */
int siw_sim_faults(const char *faults);
/* Nothing passes from a to b from now on (cut), or it does again. What is under way is lost. */
int siw_sim_cut(int a, int b, int cut);
/*
 * Has the host send so many of 1,000 datagrams mutated, from now on: a few octets behind the first are
 * others, or it is shorter, and its CRC is right again. A peer that lies, for tests. -ENOENT, -EINVAL.
 */
int siw_sim_mutate(int host, int of_1000);
/*
 * The MTU of the path between a and b; 0: that of their interfaces. Larger packets that may not be
 * fragmented are lost; with told, ICMP says so to their host.
 */
int siw_sim_path_mtu(int a, int b, uint32_t mtu, int told);

/* ---- tasks ----------------------------------------------------------------------------------- */

/*
 * A new task begins in three steps: a running task makes it (its number; -ENOMEM) and starts a thread, and
 * that thread calls begin, which returns when it is first picked. end is its last call.
 */
int siw_sim_task_new(void);
void siw_sim_task_begin(int task);
void siw_sim_task_end(void);
/* For a task whose thread could not be started. */
void siw_sim_task_drop(int task);
/* The calling thread's task; -1: it is none. Any thread. */
int siw_sim_task(void);
/* Whether the task has ended. */
int siw_sim_task_ended(int task);

/*
 * Scheduling points. yield: others may run first, at the same instant. sleep_until: returns at that time
 * (of siw_sim_now), not before, and at once if it is past.
 */
void siw_sim_yield(void);
void siw_sim_sleep_until(uint64_t at);
/*
 * Lets the world go on by one instant, up to `until`: all that can run at this time does, then the
 * clock goes on once. 1, or 0: it is `until` now. -EDEADLK: nothing will ever happen, and until is
 * UINT64_MAX.
 */
int siw_sim_step(uint64_t until);
/*
 * Lets the world go on to `until`, or to the end of the instant at which a task calls siw_sim_stop,
 * without a switch to the caller at each instant. 1: stopped, also if siw_sim_stop was called before;
 * 0: it is `until` now, and what was due then has not all run; -EDEADLK as siw_sim_step.
 */
int siw_sim_run(uint64_t until);
void siw_sim_stop(void);
/*
 * park: blocks until unpark of this task, or `until`. 1, or 0 after the time; at once if unpark came
 * before. unpark: any task.
 */
int siw_sim_park(uint64_t until);
void siw_sim_unpark(int task);
/*
 * Blocks until one of n descriptors (of completion channels, asynchronous events, connection events:
 * what siw_llp_event_open made) is readable, unpark, or `until`; ready[i] is 1 for those that are. Their
 * number, which is 0 after the time and after unpark; -EBADF: one is not of this world.
 */
int siw_sim_poll(const int *fds, int n, uint64_t until, uint8_t *ready);
/*
 * Descriptors for siw_sim_poll() that only the program sets: open returns one, or -errno. It is readable
 * once it is set, until clear.
 */
int siw_sim_event_open(void);
/* Whether siw_sim_poll() knows the descriptor. */
int siw_sim_event_is(int fd);
void siw_sim_event_set(int fd);
void siw_sim_event_clear(int fd);
void siw_sim_event_close(int fd);
/*
 * A set of such descriptors, to wait for many at a cost that does not grow with their number. NULL: no
 * world is open. A descriptor leaves the set when it is closed. Close the set before the world.
 */
struct siw_sim_set;
struct siw_sim_set *siw_sim_set_open(void);
void siw_sim_set_close(struct siw_sim_set *set);
/* 0, also if it is in the set already; -EBADF: it is not of this world. */
int siw_sim_set_add(struct siw_sim_set *set, int fd);
void siw_sim_set_del(struct siw_sim_set *set, int fd);
/*
 * As siw_sim_poll. Writes up to max descriptors: those that were closed, once; then the readable ones, in
 * the order in which they became so. Their number.
 */
int siw_sim_set_wait(struct siw_sim_set *set, uint64_t until, int *ready, int max);

/* ---- plain sockets: for a peer that the program writes itself ---------------------------------- */

/*
 * A UDP or TCP socket at an address of a host, which needs no device. Functions with `until` block up to
 * that time (of siw_sim_now), then return -EAGAIN. If `until` is not in the future they do not block, but
 * a call that finds nothing is an empty poll and lets time pass. After the host has crashed every function
 * returns -ESTALE (of TCP connections: -ECONNRESET).
 */
struct siw_sim_socket;

/* Port 0: a free one. 0, -EADDRINUSE or -EADDRNOTAVAIL. */
int siw_sim_udp_open(const struct siw_addr *local, struct siw_sim_socket **out);
/* One datagram, with this ECN code point (0 to 3): 0 or -EMSGSIZE, -EAFNOSUPPORT, -ENETUNREACH. */
int siw_sim_udp_send(struct siw_sim_socket *socket, const struct siw_addr *dest, const void *octets,
		     size_t length, int ecn);
/* Its length, which is above size if it was cut. *ecn: its code point. */
ssize_t siw_sim_udp_recv(struct siw_sim_socket *socket, struct siw_addr *source, void *to,
			 size_t size, uint64_t until, int *ecn);

int siw_sim_tcp_listen(const struct siw_addr *local, int backlog, struct siw_sim_socket **out);
int siw_sim_tcp_accept(struct siw_sim_socket *listener, uint64_t until,
		       struct siw_sim_socket **out);
/* local: where from. 0, -EAGAIN, or why it failed, as -ECONNREFUSED. */
int siw_sim_tcp_connect(const struct siw_addr *local, const struct siw_addr *dest, uint64_t until,
			struct siw_sim_socket **out);
/* How many octets it took or read, which may be fewer; recv: 0 at the end of the peer's stream. */
ssize_t siw_sim_tcp_send(struct siw_sim_socket *socket, const void *octets, size_t length,
			 uint64_t until);
ssize_t siw_sim_tcp_recv(struct siw_sim_socket *socket, void *to, size_t size, uint64_t until);
/* The peer reads the end of the stream after what was sent: 0 or -ENOTCONN. */
int siw_sim_tcp_shutdown(struct siw_sim_socket *socket);

void siw_sim_socket_local(struct siw_sim_socket *socket, struct siw_addr *out);
/* Of TCP: 0 or -ENOTCONN. */
int siw_sim_socket_peer(struct siw_sim_socket *socket, struct siw_addr *out);
/* reset: a TCP connection is reset, and what is unsent is dropped. */
void siw_sim_socket_close(struct siw_sim_socket *socket, int reset);

/* cffi: end */

#pragma GCC visibility pop

#endif
