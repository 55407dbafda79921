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

/* ---- refusals -------------------------------------------------------------------------------- */

/*
 * Why the last call of this thread was refused (it returned NULL or a negative number), in one
 * line: the rule, the value, the limit, and what to do. Of functions of <siwarp/siw.h>,
 * <siwarp/siw_ext.h> and <siwarp/cm.h>. Ask before the thread calls another of them; the text stays
 * until it asks again. "" after a call that was not refused; but calls which post, poll or only ask
 * for a number (siw_cq_capacity and its like) leave the reason of the call before unless they are
 * refused themselves.
 */
const char *siw_reason(void);
/*
 * The same as a word, as CQ_SIZE, for programs that tell refusals apart: it stays when a text gets
 * better.
 */
const char *siw_reason_name(void);

/* ---- capture --------------------------------------------------------------------------------- */

/*
 * Writes what this process sends and receives to a pcapng file from now on, %p in its path being
 * the PID; no root is needed. Ethernet, IP, TCP and UDP headers are made up, and why a datagram was
 * dropped is its comment. A forked child goes on in a file of its own, with -PID before the suffix.
 * SIWARP_CAPTURE=FILE does the same from the first opening of a device on. A connection that was
 * made before is written without its start, which tools then do not know. When the file cannot
 * grow, or has SIWARP_CAPTURE_MB million octets, it ends there, whole; a line on stderr says so.
 * -EBUSY: a capture is on, -ESPIPE: no regular file, or what open() and write() say.
 */
int siw_capture_start(const char *path);
/* Nothing if no capture is on. */
void siw_capture_stop(void);

/* ---- faults ---------------------------------------------------------------------------------- */

/*
 * A plan of what goes wrong on the way between this process's queue pairs and their peers from now
 * on: of datagrams loss, bursts, duplication, reordering, corruption, delay, jitter, rate,
 * blackout; of streams delay, jitter, rate, blackout, reset, short reads and writes, corruption. As
 * "loss=1%,burst=5,delay=0.1ms; rx:rate=50Mbit,peer=10.0.0.0/8,seed=7": `siwarp wan --help` has the
 * language. Seeded: the same plan does the same to the same sequence of packets. Each socket is, in
 * each direction, a way of its own. It takes the place of the plan before; what that one held comes
 * out. SIWARP_FAULTS=PLAN does the same from the first opening of a device on, which fails with
 * EINVAL if it is none. -EINVAL: it is no plan, and nothing changed; siw_faults_error() says where
 * and why.
 */
int siw_faults_set(const char *plan);
/* Ends it. Nothing if there is none. */
void siw_faults_clear(void);
/* What was wrong with the plan of this thread's last call that failed, in one line; "". */
const char *siw_faults_error(void);
/*
 * The plan that is on, as text that siw_faults_set() takes, "" if none is: its length; cut at size.
 */
size_t siw_faults_get(char *plan, size_t size);

/* ---- memory of one queue pair ---------------------------------------------------------------- */

/*
 * As siw_reg_mr, in the QP's protection domain, but of the peers only that of this QP may use the
 * region, in any connection the QP comes to have; who else tries is terminated. With
 * SIW_ACCESS_REMOTE_INVALIDATE that peer may end it by a Send with Invalidate: when the receive
 * completes (SIW_WC_WITH_INV) both keys are dead and the memory is the program's alone;
 * siw_dereg_mr is due as ever. (A peer whose own Read of the region is still being answered gets a
 * reset instead.) An STag without that right or of another QP stays as it is, and the peer is
 * terminated. This end may end it in the same way, by SIW_WR_LOCAL_INV on that QP. Local use, as an
 * lkey, is not limited to the QP, which may be destroyed first.
 */
struct siw_mr *siw_reg_mr_qp(struct siw_qp *qp, void *addr, size_t length, int access);

/* ---- completion queues, address handles ------------------------------------------------------ */

/*
 * How many completions wait. It only looks: unlike an siw_poll_cq that finds nothing it moves no
 * traffic, and the device's thread goes on with that at once. For who sleeps in an event loop of
 * its own.
 */
int siw_cq_pending(struct siw_cq *cq);
/*
 * As siw_poll_cq; sources[i] is where the message of wc[i] came from (family 0: not a UD receive).
 */
int siw_poll_cq_from(struct siw_cq *cq, int num_entries, struct siw_wc *wc,
		     struct siw_addr *sources);
int siw_query_ah(struct siw_ah *ah, struct siw_addr *dest);

/* ---- queue pairs ----------------------------------------------------------------------------- */

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
 * UD: which source addresses sent what was dropped because no receive was posted, the worst first:
 * the number known (32 at the most), of which max are put into out. -EINVAL: it is no UD QP.
 */
int siw_query_drops(struct siw_qp *qp, struct siw_source_drops *out, int max);

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
	uint32_t msn;	  /* of the message that is complained of; of a Write-Record its id */
	uint32_t seg_len; /* octets of its segment, header included */
	uint8_t layer;	  /* the three numbers of a Terminate (RFC 5040 section 4.8) */
	uint8_t type;
	uint8_t code;
	uint8_t header_len; /* octets used in header */
	uint8_t header[20]; /* its DDP header, as it was on the wire */
};

/*
 * UD: takes up to num_entries errors, oldest first: their count, 0 if there are none, or -errno.
 * -EINVAL: it is no UD QP. An empty one moves the device's traffic, as siw_poll_cq does. They stay
 * over a reset. A QP keeps err_queue (a setting) of them, half for each origin; what comes when
 * that half is full is lost (counter err_lost): the first error is mostly the cause of the others.
 *
 * What is found in a message ends a QP of policy ERROR, but for this: a Write-Record that reaches
 * for memory it may not is not even told to its sender, whom that would teach which keys there are.
 *
 * What a peer reports changes no state, and counts only if it is about one of the last err_window
 * (a setting) messages, or Write-Records, sent, which went there with the Q_Key that the report
 * has; once for each message.
 */
int siw_poll_err(struct siw_qp *qp, int num_entries, struct siw_err_entry *entries);

/* ---- Write-Records --------------------------------------------------------------------------- */

/* What siw_query_record tells of a Write-Record. */
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
 * Of the Write-Record whose completion had this wr_id: how many ranges of it came (32 at the most:
 * what would be one more is left out), of which max are put into ranges, in order; no two touch.
 * record may be NULL. -ENOENT: it is not kept any more: max_write_records / 2 came after it.
 * -EINVAL: it is no UD or RD QP. Outside of the ranges, too, octets of the message may have been
 * written.
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
