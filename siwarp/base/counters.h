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
	X(drop_header, "datagrams dropped: a DDP header no whole message has")                     \
	X(drop_qn, "datagrams dropped: unknown queue number")                                      \
	X(drop_opcode, "datagrams dropped: unknown or unexpected RDMAP opcode")                    \
	X(drop_qkey, "datagrams dropped: wrong Q_Key")                                             \
	X(drop_no_buffer, "datagrams dropped: no receive was posted")                              \
	X(drop_too_long, "datagrams dropped: longer than the posted receive")                      \
	X(drop_rxq_overflow, "datagrams dropped by the kernel: socket buffer full")                \
	X(drop_source, "datagrams dropped: not from a source this queue pair listens to")          \
	X(err_found, "messages of peers on datagrams that broke a rule")                           \
	X(err_sent, "error messages sent about them")                                              \
	X(err_limited, "error messages not sent: the limit to one source or in all")               \
	X(err_unsent, "error messages not sent: no receiver, or the socket refused")               \
	X(err_received, "error messages received about messages sent")                             \
	X(err_stale, "datagrams dropped: errors about nothing sent there lately")                  \
	X(err_malformed, "datagrams dropped: errors that are not laid out as one")                 \
	X(err_lost, "errors lost because a queue pair's error queue was full")                     \
	X(drop_late, "UC datagrams dropped: another came before that was sent later")              \
	X(drop_partial, "datagrams dropped: UC, others of its message are missing")                \
	X(drop_access, "datagrams dropped: Writes to what this end does not grant")                \
	X(uc_missing, "UC datagrams that did not come, by the gaps in their numbers")              \
	X(record_partial, "Write-Records completed with octets missing")                           \
	X(record_early, "Write-Records ended early: too many were in process")                     \
	X(record_full, "datagrams dropped: no room for one more Write-Record")                     \
	X(record_ranges, "datagrams of Write-Records not noted: too many gaps")                    \
	X(send_errors, "sends that the socket refused")                                            \
	X(terminate_tx, "Terminate messages sent")                                                 \
	X(terminate_rx, "Terminate messages received")                                             \
	X(crc_errors, "streams ended by a wrong CRC")                                              \
	X(marker_errors, "streams ended by a Marker that points elsewhere")                        \
	X(connects, "connections made as initiator")                                               \
	X(accepts, "connections made as responder")                                                \
	X(rejects, "connection requests rejected, by either end")                                  \
	X(startups_paused, "times a listener had too many pending to accept")                      \
	X(startups_refused, "connections closed: too many pending, or of one source")              \
	X(startup_timeouts, "MPA start-ups given up because the peer was silent")                  \
	X(startup_strangers, "connections closed: what came first was no MPA Request")             \
	X(addrs_unbound, "addresses that came up where a queue pair's port is not free")           \
	X(pair_retries, "RC by QPN: tries to connect that came to nothing, and another")           \
	X(pair_refused, "RC by QPN: requests rejected: no QP has the number, or it has a peer")    \
	X(pair_addresses, "RC by QPN: requests closed: sent from another address than they say")   \
	X(pair_strangers, "RC by QPN: requests or replies closed: not of siwarp's pairing")        \
	X(sidr_questions, "UD resolution: questions sent")                                         \
	X(sidr_repeats, "UD resolution: of them, sent again since no answer came")                 \
	X(sidr_answers, "UD resolution: questions of peers that were answered or refused")         \
	X(sidr_replays, "UD resolution: answers sent again to who asked again")                    \
	X(sidr_cookies, "UD resolution: questions that have to come again with a cookie")          \
	X(drop_sidr_length, "datagrams dropped: not as long as a frame of UD resolution")          \
	X(drop_sidr_version, "datagrams dropped: UD resolution, other magic or version")           \
	X(drop_sidr_field, "datagrams dropped: UD resolution, a value that its type cannot have")  \
	X(drop_sidr_id, "datagrams dropped: UD resolution, an answer to nothing that was asked")   \
	X(drop_sidr_cookie, "datagrams dropped: UD resolution, a cookie that is wrong or old")     \
	X(drop_sidr_share, "datagrams dropped: UD resolution, too many pending of one source")     \
	X(drop_sidr_full, "datagrams dropped: UD resolution, too many pending, or no memory")      \
	X(confirm_reads, "Reads of nothing sent, to learn what the peer has (roce)")               \
	X(confirm_none, "roce connections that complete as iwarp: no Read is granted")             \
	X(delivery_counts_tx, "delivery counts sent: what this end has of a roce peer's messages") \
	X(delivery_counts_rx, "delivery counts received, in place of confirm_reads (roce)")        \
	X(rnr_unexpected, "Sends that came before a receive was posted, and waited (roce)")        \
	X(rnr_expired, "connections, or RD peers, given up: no receive in time (roce, RD)")        \
	X(cq_overflow, "completions lost because a completion queue was full")                     \
	X(rd_hellos, "handshakes of reliable datagrams: datagrams sent")                           \
	X(rd_ce, "reliable datagrams that came with CE: a queue on the way is growing")            \
	X(rd_acks, "acknowledgements of reliable datagrams sent by themselves")                    \
	X(rd_probes, "probes of reliable datagrams sent")                                          \
	X(rd_retransmits, "reliable datagrams sent again")                                         \
	X(rd_duplicates, "datagrams dropped: reliable ones that were here before")                 \
	X(rd_not_ready, "messages of reliable datagrams that wait for a receive at their peer")    \
	X(rd_gone, "peers of reliable datagrams found gone")                                       \
	X(rd_restarted, "peers of reliable datagrams met as another instance than before")         \
	X(rd_evicted, "idle peers of reliable datagrams forgotten, for new ones")                  \
	X(rd_mtu_lowered, "times a path turned out to take shorter datagrams only")                \
	X(drop_rd_window, "datagrams dropped: reliable ones past the window")                      \
	X(drop_rd_ack, "datagrams dropped: they acknowledge what was not sent")                    \
	X(drop_rd_epoch, "datagrams dropped: of reliable ones, wrong epoch")                       \
	X(drop_rd_hello, "datagrams dropped: handshakes too short or too many")                    \
	X(drop_rd_cookie, "datagrams dropped: a cookie that is wrong, old or used")                \
	X(drop_rd_peers, "datagrams dropped: no room for another reliable peer")                   \
	X(epoll_waits, "calls of epoll_wait")                                                      \
	X(progress_wakeups, "times a progress thread woke up")                                     \
	X(tx_partial, "writes of which the socket took a part")                                    \
	X(tx_eagain, "writes of which the socket took nothing")                                    \
	X(icmp_errors, "errors that ICMP brought to a socket")                                     \
	X(fault_loss, "datagrams dropped: fault plan, loss")                                       \
	X(fault_blackout, "datagrams dropped: fault plan, blackout")                               \
	X(fault_limit, "datagrams dropped: fault plan, no room to hold them")                      \
	X(fault_dup, "datagrams that came twice by a fault plan")                                  \
	X(fault_reorder, "datagrams overtaken by a fault plan")                                    \
	X(fault_corrupt, "bits flipped by a fault plan, in datagrams and streams")                 \
	X(fault_delay, "datagrams and pieces of streams that a fault plan delayed")                \
	X(fault_reset, "connections reset by a fault plan")                                        \
	X(fault_short, "reads and writes of streams cut short by a fault plan")                    \
	X(fault_closed, "datagrams and pieces held by a fault plan when their socket closed")

enum siw_counter {
#define X(name, help) SIW_COUNTER_##name,
	SIW_COUNTERS(X)
#undef X
		SIW_COUNTER_N
};

#define SIW_COUNTERS_MAGIC     "siwcntrs"
#define SIW_COUNTERS_VERSION   1
#define SIW_COUNTERS_NAME_SIZE 32

/* Layout of the file, in host byte order. counters.py must be kept in step. */
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
	/* Allows a reader of another version to display the counters; padded with zeros. */
	char name[SIW_COUNTER_N][SIW_COUNTERS_NAME_SIZE];
};
_Static_assert(__builtin_offsetof(struct siw_counters_page, value) == 64, "counters.py");

/*
 * The page that siw_count() updates. Stored with release order by siw_counters_init() and in a
 * forked child.
 */
extern struct siw_counters_page *_Atomic siw_counters_page;

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
void siw_counters_test_count(int c, uint64_t n);

/* cffi: end */
#pragma GCC visibility pop

#endif
