/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * <siwarp/siw_ext.h> - what siwarp offers beyond OF verbs: functions that have no namesake in
 * libibverbs, and the types that only they use. Conventions are those of <siwarp/siw.h>, which this
 * header includes.
 *
 * Reliable datagrams (SIW_QPT_RD), Write-Records (SIW_WR_RDMA_WRITE_RECORD), shared sockets,
 * personas and error policies are members of structs and numbers of enums in <siwarp/siw.h>: the
 * calls that take those have their namesakes.
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

/* Opens the device that has this address (its port is ignored), or ENODEV. A wildcard opens lo. */
struct siw_context *siw_open_device_by_addr(const struct siw_addr *addr);
/*
 * Closes the device with whatever children it has. What completed reaches the peers, as when the
 * process exits: within setting linger_ms. Threads that wait for its events return -ESTALE, and so
 * does every later call on the device or a child, also to destroy or to acknowledge it. Other
 * threads may post and poll meanwhile, but not make or destroy children. Some hundred octets a
 * child stay allocated, so that late calls find out; siw_close_device leaves nothing. -ESTALE: it
 * was closed.
 */
int siw_close_device_forced(struct siw_context *context);

/* ---- refusals -------------------------------------------------------------------------------- */

/*
 * Why the last call of this thread was refused, that is returned NULL or a negative number: the
 * rule, the value, the limit and what to do, in one line. For functions of <siwarp/siw.h>,
 * <siwarp/siw_ext.h> and <siwarp/cm.h>; call it before the thread calls another of them. The text
 * is valid until this thread calls siw_reason again. "" after a call that was not refused; but
 * calls that post, poll or return a number (as siw_cq_capacity) do not clear the reason of the call
 * before.
 */
const char *siw_reason(void);
/*
 * The same as a word, for instance CQ_SIZE, for programs: it stays the same when a text is
 * reworded.
 */
const char *siw_reason_name(void);
/*
 * For libraries on top of this one that notice by themselves that a thread used an object that was
 * destroyed: records that as the reason (DESTROYED) and returns -EINVAL.
 */
int siw_reason_destroyed(void);

/* ---- capture --------------------------------------------------------------------------------- */

/*
 * From now on writes what this process sends and receives to a pcapng file; no root is needed. %p
 * in the path is the PID. Ethernet, IP, TCP and UDP headers are made up; the comment of a dropped
 * datagram says why. A forked child has a file of its own, with -PID before the suffix.
 * SIWARP_CAPTURE=FILE does the same when the first device is opened.
 *
 * Connections made before the capture are written without their start. When the file cannot grow,
 * or has SIWARP_CAPTURE_MB million octets, it ends after a whole packet, with a line on stderr.
 *
 * 0; -EBUSY: a capture is on; -ESPIPE: no regular file; or an error of open() or write().
 */
int siw_capture_start(const char *path);
/* Ends the capture, if one is on. */
void siw_capture_stop(void);

/* ---- faults ---------------------------------------------------------------------------------- */

/*
 * A plan of what goes wrong on the way between this process's queue pairs and their peers from now
 * on: of datagrams loss, bursts, duplication, reordering, corruption, delay, jitter, rate,
 * blackout; of streams delay, jitter, rate, blackout, reset, short reads and writes, corruption. As
 * "loss=1%,burst=5,delay=0.1ms; rx:rate=50Mbit,peer=10.0.0.0/8,seed=7": `siwarp wan --help` has the
 * language. It is seeded: the same plan does the same to the same sequence of packets, for each
 * socket and direction separately. It replaces the plan before, and packets that one delayed are
 * released. SIWARP_FAULTS=PLAN does the same when the first device is opened, which fails with
 * EINVAL if the plan is wrong. 0; -EINVAL: the plan is wrong, and nothing changed;
 * siw_faults_error() says where and why.
 */
int siw_faults_set(const char *plan);
/* Ends the plan, if one is set. */
void siw_faults_clear(void);
/* What was wrong with the plan of this thread's last call that failed, in one line; "". */
const char *siw_faults_error(void);
/*
 * Writes the plan that is set as text for siw_faults_set(), "" if none is, of at most size octets
 * with its NUL; returns the length of the whole text.
 */
size_t siw_faults_get(char *plan, size_t size);

/* ---- memory of one queue pair ---------------------------------------------------------------- */

/*
 * As siw_reg_mr, in the QP's protection domain; but only the QP's peer may access the region, in
 * every connection that the QP will have. Another peer that tries is sent a Terminate. Local use,
 * as an lkey, is not limited to the QP, which may be destroyed before the region.
 *
 * With SIW_ACCESS_REMOTE_INVALIDATE that peer may invalidate the region by a Send with Invalidate.
 * When the receive completes (SIW_WC_WITH_INV), both keys are invalid and no peer accesses the
 * memory any more; siw_dereg_mr is still needed. If a Read of the region by that peer still has to
 * be responded to, its connection is reset instead. A Send with Invalidate of an STag without that
 * right, or of another QP, changes nothing, and the peer is sent a Terminate. This end can
 * invalidate the region in the same way, by SIW_WR_LOCAL_INV on that QP.
 */
struct siw_mr *siw_reg_mr_qp(struct siw_qp *qp, void *addr, size_t length, int access);

/* ---- completion queues, address handles ------------------------------------------------------ */

/*
 * The number of completions in the queue, or -errno. Unlike siw_poll_cq on an empty queue it makes
 * no progress, and the device's thread goes on with that at once. For programs that sleep in an
 * event loop of their own.
 */
int siw_cq_pending(struct siw_cq *cq);
/*
 * As siw_poll_cq; sources[i] is the source address of the message of wc[i] (family 0: no datagram's
 * receive).
 */
int siw_poll_cq_from(struct siw_cq *cq, int num_entries, struct siw_wc *wc,
		     struct siw_addr *sources);
/*
 * The same, and dests[i] is the address of this end that it came to, or the multicast group, with
 * the port (family 0: not known, as of a Write-Record). An address handle of siw_create_ah_from
 * with it answers from there. Either array may be NULL.
 */
int siw_poll_cq_between(struct siw_cq *cq, int num_entries, struct siw_wc *wc,
			struct siw_addr *sources, struct siw_addr *dests);
/*
 * The same, and instances[i] is the instance of an RD message's source: a number that each RD QP
 * draws when it is made. Another one from the same address is another QP, mostly of another
 * process. 0: no RD receive, or the peer tells none. Each array but wc may be NULL.
 */
int siw_poll_cq_instances(struct siw_cq *cq, int num_entries, struct siw_wc *wc,
			  struct siw_addr *sources, struct siw_addr *dests, uint64_t *instances);
/*
 * As siw_create_ah; messages leave by source, an address of the device (its port is ignored; family
 * 0: as siw_create_ah). EINVAL also: the device has no such address, or dest is of another family.
 * To post by it, a UD QP must have every_addr or be bound to that address: else siw_post_send is
 * EINVAL. An RD QP sends from where it is bound, whatever source is.
 */
struct siw_ah *siw_create_ah_from(struct siw_pd *pd, const struct siw_addr *dest,
				  const struct siw_addr *source);
int siw_query_ah(struct siw_ah *ah, struct siw_addr *dest);
/*
 * SIW_AH_ROOM octets at the handle's own address, zero at first, for a struct of the caller's. A
 * library that has handles of a layout of its own lays them there, and can cast lists of requests
 * instead of copying them. siwarp never reads them. EINVAL if ah is NULL.
 */
#define SIW_AH_ROOM 64
void *siw_ah_room(struct siw_ah *ah);

/* ---- queue pairs ----------------------------------------------------------------------------- */

/* Setting persona: enum siw_persona; what SIW_PERSONA_AUTO stands for, and IWARP if it is AUTO. */
int siw_persona_setting(void);

/*
 * The attributes (set of enum siw_qp_attr_mask) that siw_modify_qp takes on the step of such a QP
 * from one state to another, or on none when to is -1; -EINVAL where the table has no such step.
 */
int siw_qp_step_attrs(int qp_type, int from, int to);
/*
 * UD, UC: where the QP is bound, and UC's peer once it is given. RC: its end of the connection;
 * peer may be NULL. -ENOTCONN otherwise.
 */
int siw_qp_addr(struct siw_qp *qp, struct siw_addr *local, struct siw_addr *peer);
/*
 * UD: the source addresses of datagrams that were dropped because no receive was posted, those with
 * most drops first. Writes up to max to out; returns how many are known, at most 32. -EINVAL: no UD
 * QP.
 */
int siw_query_drops(struct siw_qp *qp, struct siw_source_drops *out, int max);

/*
 * RD: the peers with whom a message waits for a receive, here or there (its receiver tells). Writes
 * up to max to out; returns how many it wrote. -EINVAL: no RD QP.
 */
int siw_query_waits(struct siw_qp *qp, struct siw_rd_wait *out, int max);
/*
 * RD: takes the peers that were met as another instance (siw_poll_cq_instances) than before, each
 * once; SIW_EVENT_PEER_RESTARTED says that there are some. Writes up to max to out; returns how
 * many it wrote. Requests that were posted for the instance before, that is until the meeting,
 * complete with SIW_WC_WR_FLUSH_ERR; with setting rd_follow those that were not begun go to the new
 * one, as they do where a pair ends and begins again without another instance. Forgotten with the
 * peer's record (setting rd_peers). -EINVAL: no RD QP.
 */
int siw_poll_restarts(struct siw_qp *qp, struct siw_rd_restart *out, int max);
/*
 * RD: gives a peer up. It is told (a BYE); the first request to it that was begun completes with
 * SIW_WC_RETRY_EXC_ERR and the rest with SIW_WC_WR_FLUSH_ERR, at a later poll. A next request meets
 * it anew. For servers whose send queue peers fill that take nothing. Returns 1, or 0: nothing is
 * in progress with it. -EINVAL: no RD QP.
 */
int siw_end_peer(struct siw_qp *qp, const struct siw_addr *peer);

/*
 * siw_post_send that posts all requests of the list or none: when one is refused, or finds no room
 * behind those before it, *bad_wr is that one and nothing was posted. Each is checked twice.
 */
int siw_post_send_all(struct siw_qp *qp, struct siw_send_wr *wr, struct siw_send_wr **bad_wr);

/* ---- error queue ----------------------------------------------------------------------------- */

enum siw_err_origin {
	SIW_ERR_FOUND = 1,    /* this end found it in a message that source sent */
	SIW_ERR_REPORTED = 2, /* source found it in a message that this end sent there */
};

/* An error of a datagram queue pair. */
struct siw_err_entry {
	int origin;	  /* enum siw_err_origin */
	uint32_t src_qpn; /* source's QPN */
	struct siw_addr source;
	uint64_t wr_id;	  /* REPORTED: of the send request */
	uint32_t msn;	  /* of the wrong message; of a Write-Record its id */
	uint32_t seg_len; /* octets of its segment, header included */
	uint8_t layer;	  /* the three numbers of a Terminate (RFC 5040 section 4.8) */
	uint8_t type;
	uint8_t code;
	uint8_t header_len; /* octets used in header */
	uint8_t header[20]; /* its DDP header, as it was on the wire */
};

/*
 * UD: takes up to num_entries errors, oldest first: their count, 0 if there are none, or -errno.
 * -EINVAL: no UD QP. If there are none, it makes progress as siw_poll_cq does. Errors stay when the
 * QP is reset. A QP stores err_queue (a setting) of them, half for each origin. Those that come
 * while their half is full are dropped (counter err_lost), since the first is mostly the cause of
 * the others.
 *
 * An error that this end finds stops a QP of policy ERROR. One exception: a Write-Record to memory
 * that it may not access is not reported to its sender, who would learn which keys exist.
 *
 * An error that a peer reports changes no state. It is accepted only if it is about one of the last
 * err_window (a setting) messages or Write-Records, if that was sent to this peer with the Q_Key
 * that the report has, and once per message.
 */
int siw_poll_err(struct siw_qp *qp, int num_entries, struct siw_err_entry *entries);

/* ---- Write-Records --------------------------------------------------------------------------- */

/* A Write-Record, as siw_query_record returns it. */
struct siw_record {
	struct siw_addr source;
	uint32_t src_qp;
	uint32_t id;	 /* the source's own number of it */
	uint64_t addr;	 /* where it was written: of its first octet */
	uint32_t rkey;	 /* ... and under which key */
	uint32_t length; /* octets of the whole message */
	uint32_t valid;	 /* octets that came */
};
/* Octets [start, end) of a message, from its first one on. */
struct siw_record_range {
	uint32_t start;
	uint32_t end;
};
/*
 * The Write-Record whose completion had this wr_id. Writes up to max ranges of octets that came, in
 * order, no two adjacent; returns how many there are, at most 32: further ones are left out. record
 * may be NULL. Octets outside of the ranges may have been written, too. -ENOENT: it is not stored
 * any more, as max_write_records / 2 came after it; -EINVAL: no UD or RD QP.
 */
int siw_query_record(struct siw_qp *qp, uint64_t wr_id, struct siw_record *record,
		     struct siw_record_range *ranges, int max);

/* ---- the library itself ---------------------------------------------------------------------- */

const char *siw_version(void); /* "MAJOR.MINOR.PATCH" */

/* cffi: end */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
