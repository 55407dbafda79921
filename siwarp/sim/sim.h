/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sim/sim.h - a deterministic simulator, in which the unchanged layers above llp run on a simulated
 * network and a virtual clock. libsiwarp-sim is libsiwarp with this folder instead of llp.
 *
 * A world consists of hosts, links between them, a clock, tasks and one seed. Devices are opened
 * at the hosts' addresses by the ordinary calls (siw_open_device_by_addr). The same seed produces
 * the same run in any process, regardless of the load of the machine.
 *
 * Time. While a world is open, this library's clocks (base/clock.h, and the C library's clocks for
 * code that is linked into this library) stand still while code runs. When no work is left at the
 * current instant, the clock advances to the next delivery, timer or deadline.
 *
 * Tasks. A task is a thread of the program that takes part in the world. Exactly one task runs at
 * a time; all others are blocked inside a call of this library. The thread that opens the world is
 * task 0. Scheduling points are all blocking calls (siw_get_cq_event and similar calls, sleeps, and
 * the functions below that are documented as scheduling points) and all polls without a result. At
 * a scheduling point the seed selects the next to run among the tasks that are ready and the
 * devices that have work. A task runs again 1 us after a poll without a result; the pause doubles
 * with each further empty poll, up to 1 ms, and ends early if an event occurs. Devices have no
 * threads: the scheduler makes the progress rounds of each lane of a device, except while a task
 * waits on the lane or has just polled the lane. With the setting progress_thread=0 the scheduler
 * makes no progress rounds.
 *
 * Between scheduling points a task may call any function. A thread that is not a task must not make
 * blocking or polling calls while a world is open: such a call prints a line on stderr and aborts
 * the process.
 *
 * TCP. Segments are subject to the links' fault plans, like datagrams: a lost segment is
 * retransmitted, and the data after the lost segment waits. The seed decides where a stream is
 * split into segments and how many octets one call moves. As with Linux's defaults, a connection
 * whose peer does not answer ends after 924.6 s (ETIMEDOUT), and a connect attempt after 127 s.
 * corrupt= causes damage that TCP's checksum does not detect. reset= and short= apply to each
 * connection.
 *
 * Rates. Packets that are queued for the sender's interface, or for a link whose plan has a rate,
 * occupy the socket's send buffer (setting sndbuf). A full send buffer refuses datagrams (-EAGAIN)
 * until half of it is free.
 *
 * Results: functions of type int return 0 or a value, or -errno. Times are in nanoseconds.
 * Functions must be called by the running task, unless marked "any thread".
 */
#ifndef SIW_SIM_H
#define SIW_SIM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <siwarp/types.h>

struct siw_context;

#pragma GCC visibility push(default)

/* cffi: begin */

/* ---- world ----------------------------------------------------------------------------------- */

/*
 * Opens a world. A process has at most one world at a time, and any number of worlds in succession.
 * faults: the fault plan (base/faults.h) of every link without a plan of its own; NULL or "":
 * packets arrive immediately and in order. -EBUSY: a world is already open; -EINVAL: the plan is
 * invalid, and siw_sim_error_text() returns the reason; -ENOMEM.
 */
int siw_sim_open(uint64_t seed, const char *faults);
/*
 * on != 0: later message sequence numbers and RD epochs (the first packet sequence numbers of RD
 * connections) begin just below 2^32, so that the numbers wrap early. 0: the numbers begin as on a
 * real machine. Both ends of a connection must begin in the same way, so call this function before
 * devices are opened. The program's own protocol code (plain sockets below) must then begin with
 * MSN SIW_SIM_NEAR_WRAP.
 */
void siw_sim_set_sequence_near_wrap(int on);
#define SIW_SIM_NEAR_WRAP 0xfffffff0u
/*
 * Closes the world; task 0 only, after all devices are closed. -EBUSY: a device is open, or a task
 * has not ended; -ENOENT: no world is open.
 */
int siw_sim_close_world(void);
/* Returns whether a world is open. Any thread. */
int siw_sim_is_world_open(void);
/* Returns the reason why the last call with a fault plan returned -EINVAL. */
const char *siw_sim_error_text(void);

/* Returns the time since the world was opened, in ns. Any thread. */
uint64_t siw_sim_now(void);
/*
 * siw_sim_now() plus SIW_SIM_MONOTONIC is CLOCK_MONOTONIC; plus SIW_SIM_REALTIME, CLOCK_REALTIME.
 */
#define SIW_SIM_MONOTONIC 1000000000000ull
/* 2020-01-01T00:00:00Z, the time at which a world begins */
#define SIW_SIM_REALTIME 1577836800000000000ull
/* Returns a random number that is derived from the seed. */
uint64_t siw_sim_random(void);

/*
 * Returns a hash of all network events so far: each datagram, segment and connection that was sent,
 * delivered, lost or refused, with its time, addresses and length. The hash includes the LLP header
 * of a datagram, but not the octets after the header, because tagged offsets are addresses in this
 * process.
 */
uint64_t siw_sim_trace_hash(void);

struct siw_sim_stats {
	uint64_t sent, delivered;  /* datagrams sent; datagrams delivered to a socket */
	uint64_t lost, duplicated; /* packets lost or duplicated by plans, partitions and crashes */
	/* packets to a port without a socket, which are answered by ICMP or a reset */
	uint64_t refused;
	/* datagrams dropped for lack of buffer space; connections beyond a backlog */
	uint64_t overflowed;
	uint64_t connections,
		/* TCP: connections established; segments sent, including retransmissions */
		segments;
	uint64_t rounds;   /* progress rounds of devices that the scheduler made */
	uint64_t switches; /* switches from one task to another */
	uint64_t instants; /* number of times that the clock advanced */
	uint64_t
		/* allocations that siw_sim_set_allocation_failure_rate made fail */
		allocations_failed;
};
void siw_sim_stats(struct siw_sim_stats *out);

/*
 * Returns the number of memory blocks that this library has allocated from the C library and not
 * freed. Some blocks are kept for the next world, so two values are comparable only if the same
 * world had run before the first value was read. Any thread.
 */
int64_t siw_sim_allocated_blocks(void);
/*
 * Returns the number of destroyed objects of an open device whose memory is kept for later objects.
 * This memory remains allocated if the device is closed by force. Any thread.
 */
uint32_t siw_sim_count_freelist_objects(struct siw_context *ctx);
/* A memory, and the offsets of n blocks in it. */
struct siw_sim_blocks {
	const void *memory;
	const uint32_t *offsets;
	uint32_t n;
};
/*
 * Compares each block of n memories with the `size` octets at `expected`. Returns the index of the
 * first memory with a block that differs, or -1. For programs that check after each step that the
 * guards between their buffers are intact.
 */
int siw_sim_find_changed_memory(const struct siw_sim_blocks *memories, int n, const void *expected,
				size_t size);
/*
 * Makes of_million of 1,000,000 later allocations of this library fail; the seed decides which
 * allocations fail. 0, the initial value: no allocation fails. Allocations of the simulated
 * network, clock and sockets always succeed. -ENOENT: no world is open; -EINVAL: of_million is too
 * large.
 */
int siw_sim_set_allocation_failure_rate(uint32_t of_million);

/* ---- hosts ----------------------------------------------------------------------------------- */

/*
 * Adds a host with one interface, named "sim0", "sim1" and so on after the host's number. The
 * interface has the given addresses (their ports are ignored) and MTU (0: 1500). Returns the
 * number of the host, counted from 0. -EINVAL: no address, more than 16 addresses, or an address
 * that is not unicast; -EADDRINUSE: another host has one of the addresses; -ENOMEM.
 */
int siw_sim_host_add(const struct siw_addr *addrs, int n, uint32_t mtu);
/*
 * Ends all processes of the host, as SIGKILL does; the host's kernel keeps running. UDP ports are
 * closed, and datagrams to them are answered by ICMP. TCP connections are closed as by close():
 * data already written is still sent, followed by a FIN; if received octets are unread, a reset is
 * sent instead. Packets in flight arrive. Handles of the host's devices report ESTALE. No device
 * can be opened on the host until siw_sim_host_restart. A second call has no effect. The call is a
 * scheduling point, because the crash wakes the tasks that wait on the host's devices. -ENOENT: no
 * such host.
 */
int siw_sim_host_crash(int host);
/* Allows devices to be opened on a crashed host again. */
int siw_sim_host_restart(int host);
/*
 * Sets the link state of the host's interface, as ip link set does. The host's devices get a port
 * event.
 */
int siw_sim_set_host_link_state(int host, int up);

/*
 * Replaces the fault plan of the host's interface, which applies to all packets of the host
 * regardless of their other end. tx: clauses apply to packets that the host sends, before the
 * link's plan; rx: clauses apply to packets that the host receives, after the link's plan. All
 * senders share a rate in this plan. NULL, the initial value: no plan. dup=, reorder=, reset= and
 * short= are valid for links only. -EINVAL: invalid plan; -ENOENT: no such host.
 */
int siw_sim_set_host_fault_plan(int host, const char *faults);

/* ---- links between two hosts, or from a host to itself ------------------------ */

/*
 * Replaces the fault plan of the link between two hosts. tx: clauses of the plan apply to packets
 * from a to b, rx: clauses to packets from b to a, all other clauses to both directions. NULL: the
 * world's plan applies. Packets in flight are not affected. -EINVAL: invalid plan; -ENOENT: no such
 * host.
 */
int siw_sim_set_link_fault_plan(int a, int b, const char *faults);
/*
 * Replaces the fault plan of the world. tx: clauses apply to packets from the earlier added host of
 * a link.
 */
int siw_sim_set_fault_plan(const char *faults);
/*
 * Starts (cut != 0) or ends (0) a partition: all packets from a to b are lost, including those in
 * flight.
 */
int siw_sim_set_path_cut(int a, int b, int cut);
/*
 * Makes the host mutate of_1000 of 1,000 datagrams that it sends later, for tests of a malicious
 * peer: a few octets change, or the datagram is truncated, and its CRC is recomputed. -ENOENT: no
 * such host; -EINVAL: of_1000 is out of range.
 */
int siw_sim_set_datagram_mutation_rate(int host, int of_1000);
/*
 * Sets the MTU of the path between a and b; 0: the MTU of their interfaces applies. Larger packets
 * that must not be fragmented are lost; if reports_icmp is set, ICMP reports each loss to the
 * sending host.
 */
int siw_sim_set_path_mtu(int a, int b, uint32_t mtu, int reports_icmp);

/* ---- tasks ----------------------------------------------------------------------------------- */

/*
 * Task creation has three steps: a running task calls siw_sim_task_new (which returns the number
 * of the new task, or -ENOMEM) and starts a thread; the new thread calls siw_sim_task_wait_first_turn, which
 * returns when the scheduler first picks the task. siw_sim_task_end must be the thread's last
 * call.
 */
int siw_sim_task_new(void);
void siw_sim_task_wait_first_turn(int task);
void siw_sim_task_end(void);
/* Discards a task whose thread could not be started. */
void siw_sim_task_destroy(int task);
/* Returns the calling thread's task number; -1: the thread is not a task. Any thread. */
int siw_sim_current_task_number(void);
/* Returns whether the task has ended. */
int siw_sim_has_task_ended(int task);

/*
 * Scheduling points. siw_sim_yield lets other tasks run first, at the same instant.
 * siw_sim_sleep_until returns exactly at the time `at` (of siw_sim_now), or immediately if `at` has
 * passed.
 */
void siw_sim_yield(void);
void siw_sim_sleep_until(uint64_t at);
/*
 * Runs all tasks and devices that can run at the current time, then advances the clock once, to
 * `until` at most. Returns 1, or 0 when the time is `until`. -EDEADLK: until is UINT64_MAX and no
 * event will ever occur.
 */
int siw_sim_step_world(uint64_t until);
/*
 * Runs the world up to `until`, or to the end of the instant at which a task calls
 * siw_sim_stop_world_run, without a switch to the caller at each instant. Returns 1 when stopped,
 * also if siw_sim_stop_world_run was called before siw_sim_run_world; 0 when the time is `until`,
 * where work of that instant may be left;
 * -EDEADLK as siw_sim_step_world.
 */
int siw_sim_run_world(uint64_t until);
void siw_sim_stop_world_run(void);
/*
 * siw_sim_park blocks until siw_sim_unpark is called for the task (returns 1), or until the time
 * `until` (returns 0). siw_sim_park returns immediately if the task was unparked before. Any task
 * may be unparked.
 */
int siw_sim_park(uint64_t until);
void siw_sim_unpark(int task);
/*
 * Blocks until at least one of n descriptors is readable, the task is unparked, or the time is
 * `until`. The descriptors must have been created by siw_llp_event_fd_open, as those of completion
 * channels, asynchronous events and connection events are. Sets ready[i] to 1 for each readable
 * descriptor. Returns the number of readable descriptors, which is 0 on time-out and after an
 * unpark; -EBADF: a descriptor is not of this world.
 */
int siw_sim_poll_fds(const int *fds, int n, uint64_t until, uint8_t *ready);
/*
 * Event descriptors for siw_sim_poll_fds() that only the program sets. siw_sim_event_fd_open
 * returns a descriptor, or -errno. A descriptor is readable from siw_sim_event_fd_set until
 * siw_sim_event_fd_clear.
 */
int siw_sim_event_fd_open(void);
/* Returns whether siw_sim_poll_fds() accepts the descriptor. */
int siw_sim_is_event_fd(int fd);
void siw_sim_event_fd_set(int fd);
void siw_sim_event_fd_clear(int fd);
void siw_sim_event_fd_close(int fd);
/*
 * A set of event descriptors, for waits whose cost does not grow with the number of descriptors.
 * siw_sim_fd_set_open returns NULL if no world is open. A descriptor leaves the set when the
 * descriptor is closed. The set must be closed before the world.
 */
struct siw_sim_set;
struct siw_sim_set *siw_sim_fd_set_open(void);
void siw_sim_fd_set_close(struct siw_sim_set *set);
/* Adds a descriptor, if it is not in the set. Returns 0; -EBADF: not a descriptor of this world. */
int siw_sim_fd_set_add(struct siw_sim_set *set, int fd);
void siw_sim_fd_set_del(struct siw_sim_set *set, int fd);
/*
 * Waits as siw_sim_poll_fds does. Writes up to max descriptors: first the descriptors that have
 * been closed, each once, then the readable descriptors in the order in which they became readable.
 * Returns the number of descriptors written.
 */
int siw_sim_wait_on_fd_set(struct siw_sim_set *set, uint64_t until, int *ready, int max);

/* ---- plain sockets, for a peer whose protocol the program implements ------------------------- */

/*
 * A UDP or TCP socket at an address of a host, without a device. Functions with the parameter
 * `until` block up to that time (of siw_sim_now), then return -EAGAIN. If `until` is not in the
 * future the functions do not block, but a call without a result is an empty poll and lets time
 * pass. After a crash of the host every function returns -ESTALE (for TCP connections:
 * -ECONNRESET).
 */
struct siw_sim_socket;

/* Opens a UDP socket. Port 0: a free port is chosen. Returns 0, -EADDRINUSE or -EADDRNOTAVAIL. */
int siw_sim_udp_open(const struct siw_addr *local, struct siw_sim_socket **out);
/*
 * Sends one datagram with the ECN code point ecn (0 to 3). Returns 0, -EMSGSIZE, -EAFNOSUPPORT or
 * -ENETUNREACH.
 */
int siw_sim_udp_send(struct siw_sim_socket *socket, const struct siw_addr *dest, const void *octets,
		     size_t length, int ecn);
/*
 * Receives one datagram and returns its length; a length above size means that the datagram was
 * truncated. *ecn: the datagram's ECN code point.
 */
ssize_t siw_sim_udp_recv(struct siw_sim_socket *socket, struct siw_addr *source, void *to,
			 size_t size, uint64_t until, int *ecn);

int siw_sim_tcp_listen(const struct siw_addr *local, int backlog, struct siw_sim_socket **out);
int siw_sim_tcp_accept(struct siw_sim_socket *listener, uint64_t until,
		       struct siw_sim_socket **out);
/*
 * Connects by TCP. local: the source address. Returns 0, -EAGAIN, or the error of the connect,
 * such as -ECONNREFUSED.
 */
int siw_sim_tcp_connect(const struct siw_addr *local, const struct siw_addr *dest, uint64_t until,
			struct siw_sim_socket **out);
/*
 * Send and receive octets of a TCP connection. Both functions return the number of octets accepted
 * or read, which may be less than requested; recv returns 0 at the end of the peer's stream.
 */
ssize_t siw_sim_tcp_send(struct siw_sim_socket *socket, const void *octets, size_t length,
			 uint64_t until);
ssize_t siw_sim_tcp_recv(struct siw_sim_socket *socket, void *to, size_t size, uint64_t until);
/*
 * Ends the sending direction of a TCP connection: the peer reads all data sent, then the end of the
 * stream. Returns 0 or -ENOTCONN.
 */
int siw_sim_tcp_shutdown(struct siw_sim_socket *socket);

void siw_sim_socket_local_addr(struct siw_sim_socket *socket, struct siw_addr *out);
/* Stores the peer's address of a TCP connection. Returns 0 or -ENOTCONN. */
int siw_sim_socket_peer_addr(struct siw_sim_socket *socket, struct siw_addr *out);
/* Closes a socket. With reset, a TCP connection is reset and its unsent data is dropped. */
void siw_sim_socket_close(struct siw_sim_socket *socket, int reset);

/* cffi: end */

#pragma GCC visibility pop

#endif
