/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * <siwarp/siw_ext.h> - extensions of siwarp beyond verbs: functions without a counterpart in
 * libibverbs, and the types that only these functions use. The conventions are those of
 * <siwarp/siw.h>, which this header includes.
 *
 * Reliable datagrams (SIW_QPT_RD), Write-Records (SIW_WR_RDMA_WRITE_RECORD), shared sockets,
 * personas and error policies are declared in <siwarp/siw.h> as struct members and enum values,
 * because they are used by functions that have a libibverbs counterpart.
 */
#ifndef SIWARP_SIW_EXT_H
#define SIWARP_SIW_EXT_H

#include <siwarp/siw.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* cffi: begin */

/* ---- devices --------------------------------------------------------------------------------- */

/*
 * Opens the device with address addr (whose port is ignored). The wildcard address opens lo.
 * ENODEV: no device has the address.
 */
struct siw_context *siw_open_device_by_addr(const struct siw_addr *addr);
/*
 * Sets *source to the address of this host, with port 0, from which the system would send to dest
 * (whose port is ignored): siw_open_device_by_addr() opens the device of that address. ENETUNREACH:
 * no route leads to dest.
 */
int siw_source_address(const struct siw_addr *dest, struct siw_addr *source);
/*
 * Closes the device together with all its children. Data of completed requests still reaches the
 * peers, within setting linger_ms, as at the exit of the process. Threads that wait for events of
 * the device return -ESTALE, and so does every later call on the device or on one of its children,
 * including calls that destroy or acknowledge. During the call other threads may post and poll, but
 * not create or destroy children. Several hundred octets per child stay allocated so that late
 * calls can be detected; siw_close_device leaves nothing allocated. -ESTALE: the device is already
 * closed.
 */
int siw_close_device_forced(struct siw_context *context);

/* ---- refusals -------------------------------------------------------------------------------- */

/*
 * Returns why the last call of this thread was refused, that is, returned NULL or a negative
 * number. The text is one line that names the rule, the value, the limit and the remedy. Refusals
 * of all functions of <siwarp/siw.h>, <siwarp/siw_ext.h> and <siwarp/cm.h> have a reason; call
 * siw_reason before the thread calls another of these functions. The text stays valid until the
 * same thread calls siw_reason again. Returns "" after a call that was not refused. Exception:
 * functions that post, poll or return a number (such as siw_cq_capacity) do not clear the reason of
 * an earlier call.
 */
const char *siw_reason(void);
/*
 * Returns the reason of siw_reason as a symbolic name, such as CQ_SIZE, for use by programs. Names
 * remain stable when texts are reworded.
 */
const char *siw_reason_name(void);
/*
 * Records the reason DESTROYED for the calling thread and returns -EINVAL, for libraries on top of
 * siwarp that detect the use of a destroyed object themselves.
 */
int siw_reason_destroyed(void);
/*
 * For libraries on top of siwarp that refuse a call themselves: records text as the reason of this
 * thread's call. siw_reason returns text, of which 511 octets are kept, and siw_reason_name returns
 * LIBRARY. NULL: clears the reason of an earlier call.
 */
void siw_reason_record(const char *text);
/*
 * For libraries on top of siwarp: writes a line about a refused call to the log, if layer verbs
 * logs warnings (setting log). call: the function that the program called, or NULL; err: positive
 * errno value; reason: a text as siw_reason returns it, or NULL.
 */
void siw_log_refused_call(const char *call, int err, const char *reason);

/* ---- capture --------------------------------------------------------------------------------- */

/*
 * Starts to write all packets that this process sends and receives to a pcapng file. No root
 * privileges are needed. %p in path is replaced by the PID. The Ethernet, IP, TCP and UDP headers
 * are synthesized; the packet comment of a dropped datagram gives the reason. A forked child writes
 * a separate file, with -PID inserted before the suffix. Environment variable SIWARP_CAPTURE=FILE
 * has the same effect when the first device is opened.
 *
 * Connections that existed before the capture are recorded without their handshake. If the file
 * cannot grow, or reaches SIWARP_CAPTURE_MB million octets, the capture ends after a complete
 * packet and a line is written to stderr.
 *
 * Returns 0; -EBUSY: a capture is already running; -ESPIPE: path is not a regular file; or an error
 * of open(2) or write(2).
 */
int siw_capture_start(const char *path);
/* Ends the running capture, if any. */
void siw_capture_stop(void);

/* ---- faults ---------------------------------------------------------------------------------- */

/*
 * Sets a plan of faults to inject between the queue pairs of this process and their peers. Faults
 * of datagrams: loss, bursts, duplication, reordering, corruption, ECN marks, delay, jitter, rate,
 * blackout. Faults of streams: delay, jitter, rate, blackout, reset, short reads and writes,
 * corruption. Example: "loss=1%,burst=5,delay=0.1ms; rx:rate=50Mbit,peer=10.0.0.0/8,seed=7";
 * `siwarp wan --help` describes the syntax.
 *
 * Faults are drawn from a seeded generator: for each socket and direction separately, the same plan
 * treats the same sequence of packets in the same way. A new plan replaces the previous plan and
 * releases the packets that it delayed. Environment variable SIWARP_FAULTS=PLAN has the same effect
 * when the first device is opened; an invalid plan makes that call fail with EINVAL.
 *
 * Returns 0; -EINVAL: the plan is invalid, and nothing has changed; siw_faults_error() returns the
 * position and the cause.
 */
int siw_faults_set(const char *plan);
/* Removes the current fault plan, if any. */
void siw_faults_clear(void);
/* Returns one line about the error in the plan of this thread's last failed call, or "". */
const char *siw_faults_error(void);
/*
 * Writes the current plan, in the syntax of siw_faults_set(), to plan: at most size octets
 * including the terminating NUL, and "" if no plan is set. Returns the length of the complete text
 * in octets.
 */
size_t siw_faults_get(char *plan, size_t size);

/* ---- memory of one queue pair ---------------------------------------------------------------- */

/*
 * Registers memory like siw_reg_mr, in the QP's protection domain, but only the QP's peer may
 * access the region, in every connection of the QP. Any other peer that tries to access it receives
 * a Terminate. Local use with the lkey is not limited to the QP. The QP may be destroyed before the
 * region.
 *
 * With SIW_ACCESS_REMOTE_INVALIDATE the peer may invalidate the region by a Send with Invalidate.
 * When the receive of the Send completes (SIW_WC_WITH_INV), both keys are invalid and no peer
 * accesses the memory any more; siw_dereg_mr is still required. If a response to a Read of the
 * region by the peer is still outstanding when the Send arrives, the connection is reset instead. A
 * Send with Invalidate for an STag without this access right, or for an STag of another QP, has no
 * effect except that its sender receives a Terminate. The local program can invalidate the region
 * by SIW_WR_LOCAL_INV on the same QP.
 */
struct siw_mr *siw_reg_mr_qp(struct siw_qp *qp, void *addr, size_t length, int access);

/* ---- completion queues, address handles ------------------------------------------------------ */

/*
 * Returns the number of completions in the CQ, or -errno. Unlike siw_poll_cq on an empty CQ,
 * siw_cq_pending makes no progress on traffic; instead the device's progress thread resumes
 * immediately. Intended for programs that wait in their own event loop.
 */
int siw_cq_pending(struct siw_cq *cq);
/*
 * Returns a descriptor with which a program's event loop waits for completions of the CQ, for
 * poll(2) and similar calls. After siw_poll_cq_and_arm has armed the CQ, the descriptor is readable
 * when that function should be called again: the sockets of the CQ's lane have work, a timer is
 * due, or another thread has queued a completion. Do not read from the descriptor or close it;
 * siw_destroy_cq and siw_close_device_forced close it, and do not end a sleep on it. The CQ needs
 * no channel. From this call on, messages of the CQ's lane arrive in the loop's thread. If the loop
 * does not poll, the device's progress thread makes the progress, at most 4 ms later. If the
 * setting progress_thread is off, there is no such thread, and nothing arrives until the loop polls
 * again.
 * Errors: ENOMEM, EMFILE.
 */
int siw_cq_wait_fd(struct siw_cq *cq);
/*
 * Makes progress on the CQ's lane, and polls the CQ like siw_poll_cq_instances. If it returns fewer
 * than num_entries completions, the CQ is armed: the descriptor of siw_cq_wait_fd, which must have
 * been called before, becomes readable when there may be more. Otherwise the CQ may contain more
 * completions, and the caller calls again before it sleeps. -EINVAL, -ESTALE, -EOVERFLOW.
 */
int siw_poll_cq_and_arm(struct siw_cq *cq, int num_entries, struct siw_wc *wc,
			struct siw_addr *sources, struct siw_addr *dests, uint64_t *instances);
/*
 * Polls a CQ like siw_poll_cq, and sets sources[i] to the source address of the message that wc[i]
 * completes (family 0: wc[i] is not a datagram receive).
 */
int siw_poll_cq_from(struct siw_cq *cq, int num_entries, struct siw_wc *wc,
		     struct siw_addr *sources);
/*
 * Polls a CQ like siw_poll_cq_from, and sets dests[i] to the local address and port, or the
 * multicast group, to which the message was sent (family 0: not known, for example for a
 * Write-Record). A reply through an address handle of siw_create_ah_from with source dests[i]
 * leaves from the same address. sources and dests may be NULL.
 */
int siw_poll_cq_between(struct siw_cq *cq, int num_entries, struct siw_wc *wc,
			struct siw_addr *sources, struct siw_addr *dests);
/*
 * Polls a CQ like siw_poll_cq_between, and sets instances[i] to the instance of an RD message's
 * source, which is a random number that each RD QP chooses when it is created. A changed instance
 * at an unchanged address means another QP, usually of a restarted process. 0: wc[i] is not an RD
 * receive, or the peer reports no instance. Every array except wc may be NULL.
 */
int siw_poll_cq_instances(struct siw_cq *cq, int num_entries, struct siw_wc *wc,
			  struct siw_addr *sources, struct siw_addr *dests, uint64_t *instances);
/*
 * Polls a CQ like siw_poll_cq_instances, and if the CQ is empty, waits up to timeout_ms
 * milliseconds for a completion (-1: without limit; 0: without waiting). The waiting thread makes
 * progress and sleeps as in siw_get_cq_event, but the CQ is not armed, raises no event, and needs
 * no channel. Returns the number of completions, 0 only if num_entries is 0; -EAGAIN when the time
 * has elapsed; -EINTR after a signal; or another -errno, as siw_poll_cq_instances. siw_destroy_cq
 * in another thread ends the wait with -EINVAL.
 */
int siw_wait_cq(struct siw_cq *cq, int num_entries, struct siw_wc *wc, struct siw_addr *sources,
		struct siw_addr *dests, uint64_t *instances, int timeout_ms);
/*
 * Creates an address handle like siw_create_ah, with which messages leave from source, an address
 * of the device (the port is ignored; family 0: as siw_create_ah). Additional causes of EINVAL: the
 * device does not have the address, or dest is of another address family. A UD QP that posts with
 * the handle must have every_addr or be bound to source; otherwise siw_post_send returns -EINVAL.
 * An RD QP always sends from its bound address and ignores source.
 */
struct siw_ah *siw_create_ah_from(struct siw_pd *pd, const struct siw_addr *dest,
				  const struct siw_addr *source);
/* Writes the destination address of the handle to *dest. */
int siw_query_ah(struct siw_ah *ah, struct siw_addr *dest);
/* Octets of caller-owned memory in an address handle. */
#define SIW_AH_ROOM 64
/*
 * Returns SIW_AH_ROOM octets of caller-owned memory, initially zero, at the same address as the
 * handle. A library with its own layout of address handles can store its handles in this memory,
 * and can then cast lists of work requests instead of copying them. siwarp never reads this memory.
 * EINVAL: ah is NULL.
 */
void *siw_ah_room(struct siw_ah *ah);

/* ---- queue pairs ----------------------------------------------------------------------------- */

/*
 * Returns setting persona (enum siw_persona), which SIW_PERSONA_AUTO selects; IWARP if the setting
 * is AUTO.
 */
int siw_persona_setting(void);

/*
 * Returns the attributes (a set of enum siw_qp_attr_mask) that siw_modify_qp accepts for a QP of
 * type qp_type on the transition from one state to another. With to = -1, returns the attributes
 * that are accepted without a change of state. -EINVAL: the transition does not exist.
 */
int siw_qp_step_attrs(int qp_type, int from, int to);
/*
 * UD, UC: writes the bound address to *local. UC: also writes the address of the peer, once it has
 * been set, to *peer. RC: writes both addresses of the connection. peer may be NULL. -ENOTCONN: the
 * address is not known yet.
 */
int siw_qp_addr(struct siw_qp *qp, struct siw_addr *local, struct siw_addr *peer);
/*
 * UD: lists the source addresses whose datagrams were dropped because no receive was posted, in
 * descending order of drops. Writes up to max entries to out; returns the number of known sources,
 * at most 32. -EINVAL: not a UD QP.
 */
int siw_query_drops(struct siw_qp *qp, struct siw_source_drops *out, int max);

/*
 * RD: lists the peers with a message that waits for a receive, either at this end or at the peer,
 * which reports the waiting message to the sender. Writes up to max entries to out; returns the
 * number written. -EINVAL: not an RD QP.
 */
int siw_query_waits(struct siw_qp *qp, struct siw_rd_wait *out, int max);
/*
 * RD: returns each peer that has restarted as another instance (see siw_poll_cq_instances) once.
 * SIW_EVENT_PEER_RESTARTED reports that there are such peers. Writes up to max entries to out;
 * returns the number written. Requests posted for the previous instance, that is, before the new
 * instance was detected, complete with SIW_WC_WR_FLUSH_ERR. With setting rd_follow_restart,
 * requests that were not started are sent to the new instance instead, as is always the case when
 * an association is set up again with the same instance. An unread entry is lost when the record of
 * the peer is evicted (setting rd_peers). -EINVAL: not an RD QP.
 */
int siw_poll_restarts(struct siw_qp *qp, struct siw_rd_restart *out, int max);
/*
 * RD: ends the association with a peer. The peer is notified by a BYE. At a later poll, the first
 * request to the peer that was started completes with SIW_WC_RETRY_EXC_ERR and all others with
 * SIW_WC_WR_FLUSH_ERR. A later request sets up a new association. Intended for servers whose send
 * queue is filled by requests to peers that accept nothing. Returns 1, or 0 if nothing is in
 * progress with the peer. -EINVAL: not an RD QP.
 */
int siw_end_peer(struct siw_qp *qp, const struct siw_addr *peer);

/*
 * Posts either all send requests of a list or none, otherwise like siw_post_send. If a request is
 * refused, or the queue has no space for it after the earlier requests of the list, *bad_wr points
 * to that request and no request has been posted. Each request is checked twice, which costs time.
 */
int siw_post_send_all(struct siw_qp *qp, struct siw_send_wr *wr, struct siw_send_wr **bad_wr);

/*
 * RC, UC: posts one signaled Send with inline data. The data, at most max_inline_data octets, is
 * copied and needs no memory region. Returns 1: the Send has completed successfully, and no
 * completion is queued; or 0: the CQ will report its completion with wr_id, because the Send waits
 * for the connection or has failed, or because earlier requests or completions of the send queue
 * are left.
 * Otherwise -errno as siw_post_send; -EINVAL also for other QP types.
 */
int siw_send_inline(struct siw_qp *qp, uint64_t wr_id, const void *data, uint32_t length);

/* ---- arrays of work requests ----------------------------------------------------------------- */

/*
 * A send request of at most one scatter/gather element, without pointers, so that languages other
 * than C can create arrays of requests. The members are those of struct siw_send_wr and struct
 * siw_sge.
 */
struct siw_array_send_wr {
	uint64_t wr_id;
	uint64_t addr;	      /* address of the scatter/gather element */
	uint64_t remote_addr; /* Writes, Reads and atomics: address in the peer's memory */
	uint64_t compare_add; /* atomics */
	uint64_t swap;	      /* ATOMIC_CMP_AND_SWP */
	uint32_t length;      /* octets of the scatter/gather element; 0: the request has none */
	uint32_t lkey;	      /* local key of the scatter/gather element */
	uint32_t rkey;	      /* Writes, Reads and atomics: key of the peer's memory */
	/* immediate data; with the opcodes that invalidate an STag: its rkey */
	uint32_t imm_data;
	uint32_t opcode;
	uint32_t send_flags;
	uint32_t ah; /* index of the peer's address handle in the array of address handles */
	uint32_t remote_qpn; /* 0: qpn of the address handle */
	uint32_t remote_qkey;
	uint32_t reserved; /* ignored */
};

/* An address handle of an array, and the remote QPN of requests whose remote_qpn is 0. */
struct siw_array_ah {
	struct siw_ah *ah;
	uint32_t qpn;
};

/* A receive of at most one scatter/gather element, without pointers. */
struct siw_array_recv_wr {
	uint64_t wr_id;
	uint64_t addr;
	uint32_t length; /* octets of the element; 0: the receive has none */
	uint32_t lkey;
};

/*
 * Posts n send requests, in order, up to the first request that is refused, like siw_post_send. The
 * array need not be aligned, and another thread may change it during the call: each request is
 * copied before it is checked. ahs has n_ahs entries; NULL: the requests have no address handles
 * (RC, UC). posted receives the number of posted requests, which is the index of the refused
 * request if the call fails. Requests that another thread posts during the call may be between
 * those of the array.
 *
 * Additional causes of -EINVAL: opcode is BIND_MW or a masked atomic; SIW_SEND_INLINE, because
 * no key limits the memory from which inline data is read; ah is not below n_ahs.
 */
int siw_post_send_array(struct siw_qp *qp, const struct siw_array_send_wr *wrs, size_t n,
			const struct siw_array_ah *ahs, size_t n_ahs, size_t *posted);
/* Posts n receives like siw_post_recv; the array is used as by siw_post_send_array. */
int siw_post_recv_array(struct siw_qp *qp, const struct siw_array_recv_wr *wrs, size_t n,
			size_t *posted);
/* Posts n receives to an SRQ like siw_post_srq_recv, otherwise like siw_post_recv_array. */
int siw_post_srq_recv_array(struct siw_srq *srq, const struct siw_array_recv_wr *wrs, size_t n,
			    size_t *posted);

/* ---- error queue ----------------------------------------------------------------------------- */

enum siw_err_origin {
	SIW_ERR_FOUND = 1,    /* detected by this end, in a message from source */
	SIW_ERR_REPORTED = 2, /* detected by source, in a message from this end */
};

/* An error of a datagram queue pair, as siw_poll_err returns it. */
struct siw_err_entry {
	int origin;	  /* enum siw_err_origin */
	uint32_t src_qpn; /* QPN of the source */
	struct siw_addr source;
	uint64_t wr_id;	  /* REPORTED: wr_id of the send request */
	uint32_t msn;	  /* MSN of the message in error, or id of a Write-Record */
	uint32_t seg_len; /* octets of the segment in error, including its header */
	uint8_t layer;	  /* layer, type and code as in a Terminate (RFC 5040 section 4.8) */
	uint8_t type;
	uint8_t code;
	uint8_t header_len; /* number of valid octets in header */
	uint8_t header[20]; /* DDP header of the segment, in wire format */
};

/*
 * UD: removes up to num_entries errors from the QP's error queue, oldest first. Returns the number
 * of errors, 0 if the queue is empty, or -errno. -EINVAL: not a UD QP. If the queue is empty, the
 * call makes progress on traffic as siw_poll_cq does. A reset of the QP keeps the errors. The
 * capacity of the queue is setting err_queue, half of it for each origin. Errors that arrive while
 * their half is full are dropped (counter err_lost), because the first error is usually the cause
 * of the others.
 *
 * An error detected at this end stops a QP of policy ERROR. Exception: a Write-Record without
 * access rights to its target memory is not reported to its sender, because the report would reveal
 * which keys exist.
 *
 * An error that a peer reports does not change the state of the QP. The report is accepted only if
 * it refers to one of the last messages or Write-Records (setting err_window), if that message was
 * sent to this peer with the Q_Key that the report carries, and only once per message.
 */
int siw_poll_err(struct siw_qp *qp, int num_entries, struct siw_err_entry *entries);

/* ---- Write-Records --------------------------------------------------------------------------- */

/* Description of a Write-Record, as returned by siw_query_record. */
struct siw_record {
	struct siw_addr source;
	uint32_t src_qp;
	uint32_t id;	 /* number that the source gave to the Write-Record */
	uint64_t addr;	 /* target address of the first octet */
	uint32_t rkey;	 /* key of the target region */
	uint32_t length; /* length of the complete message in octets */
	uint32_t valid;	 /* number of octets that arrived */
};
/* A range of octets of a message: offsets start (included) to end (excluded) */
struct siw_record_range {
	uint32_t start;
	uint32_t end;
};
/*
 * Returns the state of the Write-Record whose completion had the given wr_id. Writes up to max
 * ranges of octets that arrived, in ascending order and never adjacent; returns the total number of
 * ranges, at most 32 (further ranges are not recorded). record may be NULL. Octets outside the
 * ranges may have been written as well. -ENOENT: the Write-Record is no longer stored, because
 * max_write_records / 2 later Write-Records have completed; -EINVAL: not a UD or RD QP.
 */
int siw_query_record(struct siw_qp *qp, uint64_t wr_id, struct siw_record *record,
		     struct siw_record_range *ranges, int max);

/* ---- the library itself ---------------------------------------------------------------------- */

const char *siw_version(void); /* returns "MAJOR.MINOR.PATCH" */

/* cffi: end */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
