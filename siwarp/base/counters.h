/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/counters.h - event and error counters of this process, which another process of the same
 * user can read (`siwarp counters PID`, siwarp/base/counters.py).
 *
 * The counters live in a page mapped from the file <dir>/<pid>, where <dir> is
 * $XDG_RUNTIME_DIR/siwarp or else /tmp/siwarp-<uid>. <dir> is used only if it has mode 0700,
 * belongs to the user and is not a symbolic link; the file has mode 0600. If no file can be
 * created, and in a process that has not opened a device (including a forked child), the counters
 * are kept in private memory.
 */
#ifndef SIW_BASE_COUNTERS_H
#define SIW_BASE_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

/* X(name, help) */
#define SIW_COUNTERS(X)                                                                            \
	X(tx_msgs, "messages sent")                                                                \
	X(rx_msgs, "messages received")                                                            \
	X(tx_octets, "payload octets sent")                                                        \
	X(rx_octets, "payload octets received")                                                    \
	X(drop_short, "datagrams dropped: shorter than the headers and the CRC")                   \
	X(drop_crc, "datagrams dropped: wrong CRC")                                                \
	X(drop_version, "datagrams dropped: unknown DDP or RDMAP version")                         \
	X(drop_header, "datagrams dropped: a DDP header that no complete message has")             \
	X(drop_qn, "datagrams dropped: unknown queue number")                                      \
	X(drop_opcode, "datagrams dropped: unknown or unexpected RDMAP opcode")                    \
	X(drop_qkey, "datagrams dropped: wrong Q_Key")                                             \
	X(drop_no_buffer, "datagrams dropped: no receive was posted")                              \
	X(drop_too_long, "datagrams dropped: longer than the posted receive")                      \
	X(drop_rxq_overflow, "datagrams dropped by the kernel: socket buffer full")                \
	X(drop_source, "datagrams dropped: from a source that the queue pair does not accept")     \
	X(err_found, "invalid messages received on datagram queue pairs")                          \
	X(err_sent, "error messages sent")                                                         \
	X(err_limited, "error messages not sent: rate limit reached, per source or in total")      \
	X(err_unsent, "error messages not sent: no receiver, or the socket refused")               \
	X(err_received, "error messages received about sent messages")                             \
	X(err_stale, "datagrams dropped: error messages about no recently sent message")           \
	X(err_malformed, "datagrams dropped: malformed error messages")                            \
	X(err_lost, "errors lost because a queue pair's error queue was full")                     \
	X(drop_late, "UC datagrams dropped: a later one arrived before")                           \
	X(drop_partial, "datagrams dropped: UC, other parts of the message are missing")           \
	X(drop_access, "datagrams dropped: Writes to memory without access rights")                \
	X(uc_missing, "UC datagrams lost, according to gaps in their numbers")                     \
	X(record_partial, "Write-Records completed with octets missing")                           \
	X(record_early, "Write-Records ended early: too many were in progress")                    \
	X(record_full, "datagrams dropped: no room for another Write-Record")                      \
	X(record_ranges, "datagrams of Write-Records not recorded: too many gaps")                 \
	X(send_errors, "sends that the socket refused")                                            \
	X(terminate_tx, "Terminate messages sent")                                                 \
	X(terminate_rx, "Terminate messages received")                                             \
	X(crc_errors, "streams ended by a wrong CRC")                                              \
	X(connects, "connections made as initiator")                                               \
	X(accepts, "connections made as responder")                                                \
	X(rejects, "connection requests rejected, by either end")                                  \
	X(startups_paused, "times a listener stopped accepting: too many connections pending")     \
	X(startups_refused, "connections closed: too many pending, in total or of one source")     \
	X(startup_timeouts, "MPA start-ups aborted because the peer was silent")                   \
	X(startup_strangers, "connections closed: the first frame was not an MPA Request")         \
	X(addrs_unbound, "new addresses not bound: the port is in use there")                      \
	X(pair_retries, "RC by QPN: failed connection attempts that were retried")                 \
	X(pair_refused, "RC by QPN: requests rejected: unknown QPN, or the QP has a peer")         \
	X(pair_addresses, "RC by QPN: requests closed: source address is not the stated one")      \
	X(pair_strangers, "RC by QPN: requests and replies closed: not siwarp's pairing protocol") \
	X(sidr_retries, "UD resolution: queries retransmitted")                                    \
	X(sidr_responses, "UD resolution: queries of peers answered or rejected")                  \
	X(sidr_response_retries, "UD resolution: responses retransmitted to repeated queries")     \
	X(sidr_cookies, "UD resolution: queries that must be repeated with a cookie")              \
	X(drop_sidr_length, "datagrams dropped: UD resolution, wrong frame length")                \
	X(drop_sidr_version, "datagrams dropped: UD resolution, wrong magic or version")           \
	X(drop_sidr_field, "datagrams dropped: UD resolution, a value invalid for the type")       \
	X(drop_sidr_id, "datagrams dropped: UD resolution, a response to no pending query")        \
	X(drop_sidr_cookie, "datagrams dropped: UD resolution, wrong or expired cookie")           \
	X(drop_sidr_share, "datagrams dropped: UD resolution, too many pending of one source")     \
	X(drop_sidr_full, "datagrams dropped: UD resolution, too many pending, or no memory")      \
	X(confirm_reads, "zero-length Reads sent as acknowledgement requests (roce)")              \
	X(confirm_none, "roce connections that complete as iwarp: the peer allows no Read")        \
	X(delivery_counts_tx, "delivery counts sent to roce peers")                                \
	X(delivery_counts_rx, "delivery counts received, instead of confirm_reads (roce)")         \
	X(rnr_unexpected, "Sends that arrived before a receive was posted and waited (roce)")      \
	X(rnr_expired, "connections or RD peers ended: no receive in time (roce, RD)")             \
	X(cq_overflow, "completions lost because a completion queue was full")                     \
	X(rd_ce, "reliable datagrams received with CE: congestion on the path")                    \
	X(rd_acks, "reliable datagrams: pure acknowledgements sent")                               \
	X(rd_probes, "reliable datagrams: probes sent")                                            \
	X(rd_retransmits, "reliable datagrams retransmitted")                                      \
	X(rd_duplicates, "datagrams dropped: reliable datagrams received before")                  \
	X(rd_not_ready, "reliable datagrams: messages that wait for a receive at the peer")        \
	X(rd_gone, "reliable datagrams: peers declared lost")                                      \
	X(rd_restarted, "reliable datagrams: peers that came back as another instance")            \
	X(rd_evicted, "reliable datagrams: idle peer records evicted for new peers")               \
	X(rd_mtu_lowered, "reliable datagrams: times the path MTU was lowered")                    \
	X(drop_rd_window, "datagrams dropped: reliable datagrams beyond the window")               \
	X(drop_rd_ack, "datagrams dropped: acknowledgement of data not sent")                      \
	X(drop_rd_epoch, "datagrams dropped: reliable datagrams of a wrong epoch")                 \
	X(drop_rd_hello, "datagrams dropped: handshakes that are too short or too many")           \
	X(drop_rd_cookie, "datagrams dropped: wrong, expired or reused cookie")                    \
	X(drop_rd_peers, "datagrams dropped: no room for another reliable peer")                   \
	X(epoll_waits, "calls of epoll_wait")                                                      \
	X(tx_eagain, "writes refused by a full socket")                                            \
	X(icmp_errors, "ICMP errors reported to a socket")                                         \
	X(fault_loss, "datagrams dropped: fault plan, loss")                                       \
	X(fault_blackout, "datagrams dropped: fault plan, blackout")                               \
	X(fault_limit, "datagrams dropped: fault plan, limit reached")                             \
	X(fault_dup, "datagrams duplicated by a fault plan")                                       \
	X(fault_reorder, "datagrams reordered by a fault plan")                                    \
	X(fault_corrupt, "bits flipped by a fault plan, in datagrams and streams")                 \
	X(fault_delay, "datagrams and pieces of streams delayed by a fault plan")                  \
	X(fault_reset, "connections reset by a fault plan")                                        \
	X(fault_short, "reads and writes of streams shortened by a fault plan")                    \
	X(fault_closed, "datagrams and pieces held by a fault plan when the socket closed")

enum siw_counter {
#define X(name, help) SIW_COUNTER_##name,
	SIW_COUNTERS(X)
#undef X
		SIW_COUNTER_N
};

#define SIW_COUNTERS_MAGIC     "siwcntrs"
#define SIW_COUNTERS_VERSION   1
#define SIW_COUNTERS_NAME_SIZE 32

/*
 * Layout of the counters file, in host byte order. siwarp/base/counters.py must describe the same
 * layout.
 */
struct siw_counters_page {
	_Atomic uint64_t magic; /* the octets SIW_COUNTERS_MAGIC */
	uint32_t version;
	uint32_t count; /* number of elements in value */
	uint32_t pid;
	uint32_t zero;
	uint64_t start_ticks; /* start of the process as in /proc/<pid>/stat; 0: unknown */
	uint64_t opened_ns;   /* CLOCK_REALTIME at the creation of the page, ns */
	uint64_t unused[3];
	_Atomic uint64_t value[SIW_COUNTER_N];
	/*
	 * The names of the counters, padded with zeros, with which a reader of another version can
	 * display the counters.
	 */
	char name[SIW_COUNTER_N][SIW_COUNTERS_NAME_SIZE];
};
_Static_assert(__builtin_offsetof(struct siw_counters_page, value) == 64, "counters.py");

/*
 * The page of memory whose counters siw_count() increases. The pointer is stored with release order
 * by siw_counters_init() and, for the page of its own that a forked child gets, in the child.
 */
extern struct siw_counters_page *_Atomic siw_counters_page;
/*
 * Number of descriptors with which event loops of the program wait for completions
 * (siw_cq_wait_fd). If there are any, sent messages are counted immediately, because an event loop
 * may sleep forever after it has sent a message.
 */
extern _Atomic uint32_t siw_counters_event_loops;

static inline void siw_count(enum siw_counter c, uint64_t n)
{
	struct siw_counters_page *p =
		atomic_load_explicit(&siw_counters_page, memory_order_acquire);

	atomic_fetch_add_explicit(&p->value[c], n, memory_order_relaxed);
}

/* Exported from the library, because the Python package calls these functions. */
#pragma GCC visibility push(default)
/* cffi: begin */

/*
 * Creates the page, once per process; called when a device is opened. Cannot fail: without a file,
 * private memory is used.
 */
void siw_counters_init(void);

int siw_counters_count(void);

/* Value, name and description of counter c, 0 <= c < siw_counters_count(); otherwise 0 or NULL. */
uint64_t siw_counter_get(int c);
const char *siw_counter_name(int c);
const char *siw_counter_help(int c);

/* Path of the counters file, or NULL if there is none. */
const char *siw_counters_path(void);

/* For tests: calls siw_count() from Python. */
void siw_counters_add_for_tests(int c, uint64_t n);

/* cffi: end */
#pragma GCC visibility pop

#endif
