/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/settings.h - all settings of siwarp, each declared once: a field in C, a SIWARP_ variable in
 * the environment, an option on the command line.
 *
 * Precedence: a call of siw_setting_set, which command-line options use as well; then the
 * environment; then the default. The environment is read once, at the first use of any setting. It
 * is ignored in a program that is setuid, setgid or has file capabilities. A value that is not a
 * number or is out of bounds, and a SIWARP_ variable that is not in the table, cause a line on
 * stderr and are ignored; for a setting of an earlier release the line names its successor.
 */
#ifndef SIW_BASE_SETTINGS_H
#define SIW_BASE_SETTINGS_H

#include <stdatomic.h>
#include <stdint.h>

/* X(field, environment, option, default, min, max, help) */
#define SIW_SETTINGS(X)                                                                           \
	X(progress_thread, "SIWARP_PROGRESS_THREAD", "--progress-thread", 1, 0, 1,                \
	  "1: a progress thread per open device serves traffic while no application polls")       \
	X(nap_us, "SIWARP_NAP_US", "--nap-us", 1000, 50, 100000,                                  \
	  "microseconds the progress thread sleeps while an application polls; four times this "  \
	  "if it has polled for long")                                                            \
	X(lanes, "SIWARP_LANES", "--lanes", 0, 0, 16,                                             \
	  "lanes per device (completion vectors), on which threads make progress in parallel; "   \
	  "0: one for each CPU that the process may use, at most 16")                             \
	X(spin_us, "SIWARP_SPIN_US", "--spin-us", 30, 0, 10000,                                   \
	  "microseconds a wait for a completion event polls before it sleeps")                    \
	X(budget, "SIWARP_BUDGET", "--budget", 64, 1, 4096,                                       \
	  "messages processed per queue pair in a progress round")                                \
	X(hot_sockets, "SIWARP_HOT_SOCKETS", "--hot-sockets", 4, 1, 16,                           \
	  "sockets polled directly, without epoll")                                               \
	X(rcvbuf, "SIWARP_RCVBUF", "--rcvbuf", 8 << 20, 4096, 1 << 30,                            \
	  "octets requested for a UDP socket's receive buffer")                                   \
	X(sndbuf, "SIWARP_SNDBUF", "--sndbuf", 8 << 20, 4096, 1 << 30,                            \
	  "octets requested for a UDP socket's send buffer")                                      \
	X(mcast_port, "SIWARP_MCAST_PORT", "--mcast-port", 62607, 1, 65535,                       \
	  "UDP port of all multicast messages; must be the same for all members")                 \
	X(mcast_ttl, "SIWARP_MCAST_TTL", "--mcast-ttl", 1, 0, 255,                                \
	  "TTL or hop limit of messages to multicast groups; 1: they pass no router")             \
	X(mulpdu, "SIWARP_MULPDU", "--mulpdu", 64768, 128, 64768,                                 \
	  "octets: upper limit of MPA's MULPDU (RFC 5044 section 4.5)")                           \
	X(crc_first, "SIWARP_CRC_FIRST", "--crc-first", 0, 0, 1,                                  \
	  "1: place payload only after its CRC was checked (RFC 5044), at the cost of speed")     \
	X(mpa_timeout_ms, "SIWARP_MPA_TIMEOUT_MS", "--mpa-timeout-ms", 5000, 10, 600000,          \
	  "milliseconds after which an incomplete MPA start-up is aborted")                       \
	X(sidr_timeout_ms, "SIWARP_SIDR_TIMEOUT_MS", "--sidr-timeout-ms", 10000, 100, 600000,     \
	  "milliseconds for which the resolution of a UD queue pair is retried")                  \
	X(max_startups, "SIWARP_MAX_STARTUPS", "--max-startups", 1024, 1, 65535,                  \
	  "connections of one listener in MPA start-up at a time; more wait in the kernel")       \
	X(max_requests, "SIWARP_MAX_REQUESTS", "--max-requests", 1024, 1, 65535,                  \
	  "connection requests of one listener that its program has not retrieved; more "         \
	  "wait in the kernel")                                                                   \
	X(source_share, "SIWARP_SOURCE_SHARE", "--source-share", 0, 0, 100,                       \
	  "percentage of max_startups and max_requests that one source address may use; "         \
	  "connections beyond it are closed; 0: 75, and no limit for loopback")                   \
	X(rc_port_first, "SIWARP_RC_PORT_FIRST", "--rc-port-first", 0, 0, 65535,                  \
	  "first TCP port of RC queue pairs that connect by QPN; 0: any free port")               \
	X(rc_port_last, "SIWARP_RC_PORT_LAST", "--rc-port-last", 65535, 1, 65535,                 \
	  "last TCP port of RC queue pairs that connect by QPN; a port serves 255 queue "         \
	  "pairs of a device and process")                                                        \
	X(linger_ms, "SIWARP_LINGER_MS", "--linger-ms", 2000, 0, 600000,                          \
	  "milliseconds that closing a stream waits for the peer to receive what was sent")       \
	X(persona, "SIWARP_PERSONA", "--persona", 0, 0, 2,                                        \
	  "0 auto, 1 iwarp: RC sends complete when TCP has accepted them, 2 roce: when the "      \
	  "peer has them")                                                                        \
	X(rnr_octets, "SIWARP_RNR_OCTETS", "--rnr-octets", 1 << 20, 128 << 10, 1 << 30,           \
	  "octets of Sends without a posted receive that a roce queue pair stores")               \
	X(error_policy, "SIWARP_ERROR_POLICY", "--error-policy", 0, 0, 2,                         \
	  "0 auto, 1 error: an invalid datagram message ends the QP, 2 message: it is only "      \
	  "recorded")                                                                             \
	X(qkey, "SIWARP_QKEY", "--qkey", 0, 0, 0x7fffffff,                                        \
	  "Python: default Q_Key of UD and RD queue pairs; 0: a random one")                      \
	X(err_queue, "SIWARP_ERR_QUEUE", "--err-queue", 32, 2, 65536,                             \
	  "maximum errors that a datagram queue pair stores until they are polled")               \
	X(err_window, "SIWARP_ERR_WINDOW", "--err-window", 256, 1, 65536,                         \
	  "number of last sent messages for which error reports of peers are accepted")           \
	X(err_rate, "SIWARP_ERR_RATE", "--err-rate", 1000, 0, 1000000,                            \
	  "error messages that a device sends per second, and maximum burst")                     \
	X(err_source_rate, "SIWARP_ERR_SOURCE_RATE", "--err-source-rate", 20, 0, 1000000,         \
	  "error messages per second to one source address, and maximum burst")                   \
	X(peer_timeout_ms, "SIWARP_PEER_TIMEOUT_MS", "--peer-timeout-ms", 10000, 100, 600000,     \
	  "milliseconds of silence after which an RD peer that owes a response is lost")          \
	X(rd_handshake_timeout_ms, "SIWARP_RD_HANDSHAKE_TIMEOUT_MS", "--rd-handshake-timeout-ms", \
	  60000, 100, 600000,                                                                     \
	  "milliseconds within which an RD peer on another machine must answer the first "        \
	  "message")                                                                              \
	X(rd_peers, "SIWARP_RD_PEERS", "--rd-peers", 65536, 1, 1 << 24,                           \
	  "peer records that one RD queue pair stores")                                           \
	X(rd_window, "SIWARP_RD_WINDOW", "--rd-window", 4 << 20, 65536, 65535 << 10,              \
	  "octets that one RD peer may have in flight to a queue pair")                           \
	X(rd_total_window, "SIWARP_RD_TOTAL_WINDOW", "--rd-total-window", 64 << 20, 1 << 20,      \
	  1ll << 40,                                                                              \
	  "octets in flight to or from all peers of an RD queue pair, in each direction")         \
	X(rd_idle_ms, "SIWARP_RD_IDLE_MS", "--rd-idle-ms", 30000, 10, 86400000,                   \
	  "milliseconds without traffic after which an RD peer record may be evicted")            \
	X(rd_max_datagram, "SIWARP_RD_MAX_DATAGRAM", "--rd-max-datagram", 0, 0, 65507,            \
	  "octets of the longest RD datagram; 0: what the path MTU allows")                       \
	X(rd_follow_restart, "SIWARP_RD_FOLLOW_RESTART", "--rd-follow-restart", 0, 0, 1,          \
	  "1: requests that wait for an RD peer are also sent to a process that replaces "        \
	  "the peer")                                                                             \
	X(rd_cc, "SIWARP_RD_CC", "--rd-cc", 0, 0, 2,                                              \
	  "RD's congestion control: 0 auto (bbr), 1 bbr (version 3), 2 cubic")                    \
	X(batching, "SIWARP_BATCHING", "--batching", 0, 0, 2,                                     \
	  "batching of posted requests: 0 auto (dense traffic only), 1 never, 2 always")          \
	X(uc_breaker, "SIWARP_UC_BREAKER", "--uc-breaker", 1, 0, 2,                               \
	  "UC circuit breaker: receivers report losses, and a sender with heavy losses "          \
	  "slows down: 0 never, 1 to other machines, 2 always")                                   \
	X(record_reorder_us, "SIWARP_RECORD_REORDER_US", "--record-reorder-us", 2000, 0, 1000000, \
	  "microseconds that a Write-Record waits for reordered segments after its last "         \
	  "segment")                                                                              \
	X(record_timeout_ms, "SIWARP_RECORD_TIMEOUT_MS", "--record-timeout-ms", 100, 1, 60000,    \
	  "milliseconds of silence after which a Write-Record ends")                              \
	X(crc, "SIWARP_CRC", "--crc", 1, 0, 1,                                                    \
	  "1: request CRC32C on connections and use it on datagrams")                             \
	X(markers, "SIWARP_MARKERS", "--markers", 0, 0, 1,                                        \
	  "1: request Markers from peers (RFC 5044 section 4.3); they reduce throughput")         \
	X(delivery_counts, "SIWARP_DELIVERY_COUNTS", "--delivery-counts", 1, 0, 1,                \
	  "0: persona roce uses RDMA Reads as acknowledgements even if the peer is siwarp")       \
	X(mpa_announce, "SIWARP_MPA_ANNOUNCE", "--mpa-announce", 1, 0, 1,                         \
	  "0: siwarp does not announce itself in reserved bits of MPA start-up frames")           \
	X(capture_mb, "SIWARP_CAPTURE_MB", "--capture-mb", 0, 0, 1 << 20,                         \
	  "millions of octets at which a capture file ends; 0: no limit")                         \
	X(log, "SIWARP_LOG", "--log", 0, 0, 4,                                                    \
	  "0 off, 1 error, 2 warn, 3 info, 4 debug; by name too, and per layer: "                 \
	  "warn,mpa=debug")

struct siw_settings {
#define X(field, ...) _Atomic int64_t field;
	SIW_SETTINGS(X)
#undef X
	/* factor of siw_settings_scale_pauses_for_tests(), which is not a setting */
	_Atomic int64_t pauses;
};

/*
 * Returns the current values. Most are read when an object is created, so siw_setting_set() must be
 * called before that. A device's progress thread reads some of them again, so a field may change at
 * any time.
 */
const struct siw_settings *siw_settings(void);

/*
 * Returns the value of the environment variable with this name, which need not be a setting. All C
 * code reads the environment through this function. NULL: the variable is not set, or the program
 * runs with more privileges than the user who started it (AT_SECURE).
 */
const char *siw_trusted_getenv(const char *name);

/* Exported from the library, because the Python package calls these functions. */
#pragma GCC visibility push(default)
/* cffi: begin */

int siw_settings_count(void);

/*
 * Properties of the setting with index i, 0 <= i < siw_settings_count(), in table order; otherwise
 * NULL or -1.
 */
const char *siw_setting_name(int i);
const char *siw_setting_env(int i);
const char *siw_setting_option(int i);
const char *siw_setting_help(int i);
int64_t siw_setting_default(int i);
int64_t siw_setting_min(int i);
int64_t siw_setting_max(int i);
int64_t siw_setting_value(int i);

/*
 * Sets the setting whose field has this name. -ENOENT: no such setting; -ERANGE: out of bounds,
 * nothing changed.
 */
int siw_setting_set(const char *name, int64_t value);

/*
 * Sets a setting like siw_setting_set, from text in the syntax of the environment and the command
 * line: a decimal number; for "persona", "error_policy", "rd_cc" and "batching" also the name of a
 * value; for "log" also the syntax of siw_trace_parse_levels(). -EINVAL: the text is none of these.
 */
int siw_setting_set_text(const char *name, const char *text);

/*
 * Returns the replacement for a setting of an earlier release: a phrase for a line on stderr, such
 * as "use SIWARP_BATCHING". variable: the former environment variable. NULL: there was no such
 * variable.
 */
const char *siw_settings_advice_for_former_name(const char *variable);

/*
 * For tests of real time on slow machines: multiplies the pauses after which posts are no longer
 * batched (qp/qp_sq.c) and one-sided messages no longer wake the watchdog threads
 * (device/device_watchdog.c). 1: the pauses of normal operation.
 */
void siw_settings_scale_pauses_for_tests(int64_t factor);

/*
 * Returns the value of SIWARP_CAPTURE, the path of a capture file (base/capture.h); NULL if the
 * variable is unset or empty. The variable is not in the table of settings, because its value is
 * text and is read from the environment only.
 */
const char *siw_setting_get_capture_path(void);
/*
 * Returns the value of SIWARP_FAULTS, a fault plan (base/faults.h); NULL if the variable is unset
 * or empty.
 */
const char *siw_setting_get_fault_plan(void);

/* cffi: end */
#pragma GCC visibility pop

#endif
