/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpa/mpa_stream.h - what the files of this layer share, for them alone (and, between the
 * cffi marks, for their tests).
 */
#ifndef SIW_MPA_STREAM_H
#define SIW_MPA_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/err.h"
#include "base/mpa_params.h"
#include "mpa/mpa.h"
#include "mpa/mpa_wire.h"

struct siw_llp_sock;

/* cffi: begin */

/* Where a stream is; only siw_mpa_step (mpa_startup.c) writes it, by its table. */
enum siw_mpa_state {
	SIW_MPA_ST_CONNECTING = 0,	/* initiator: TCP's handshake is under way */
	SIW_MPA_ST_SENDING_REQUEST = 1, /* initiator: TCP has not taken all of the Request */
	SIW_MPA_ST_AWAIT_REPLY = 2,	/* initiator */
	SIW_MPA_ST_AWAIT_REQUEST = 3,	/* responder */
	SIW_MPA_ST_ANSWERING = 4,	/* responder: the layers above have the Request */
	SIW_MPA_ST_ACCEPTING = 5,	/* responder: TCP has not taken all of the Reply */
	SIW_MPA_ST_REJECTING = 6,	/* responder: the same with R=1 */
	SIW_MPA_ST_FULL = 7,		/* full operation */
	SIW_MPA_ST_TERMINATING = 8,	/* initiator: may say why it will not go on, no more */
	SIW_MPA_ST_REJECTED = 9,	/* over, by R=1, at either end */
	SIW_MPA_ST_FAILED = 10,		/* over, by an error */
	SIW_MPA_N_STATES = 11,
};

enum siw_mpa_event {
	SIW_MPA_EV_CONNECTED = 0,   /* TCP is connected */
	SIW_MPA_EV_SENT = 1,	    /* TCP took the last octet of our frame */
	SIW_MPA_EV_REQUEST = 2,	    /* a Request that may be accepted or rejected */
	SIW_MPA_EV_UNABLE = 3,	    /* a well-formed Request for what we cannot do */
	SIW_MPA_EV_REPLY = 4,	    /* a Reply with R=0 that fits our Request */
	SIW_MPA_EV_REPLY_NO = 5,    /* a Reply with R=1 */
	SIW_MPA_EV_REPLY_OTHER = 6, /* a Reply with R=0 for another connection model or RTR */
	SIW_MPA_EV_BAD_FRAME = 7,   /* what came is no frame for us */
	SIW_MPA_EV_LOST = 8,	    /* TCP is gone */
	SIW_MPA_EV_ACCEPT = 9,	    /* from above */
	SIW_MPA_EV_REJECT = 10,	    /* from above */
	SIW_MPA_N_EVENTS = 11,
};

enum siw_mpa_action {
	SIW_MPA_ACT_ILLEGAL = 0, /* cannot happen here: -EINVAL, the state stays */
	SIW_MPA_ACT_SEND_REQUEST = 1,
	SIW_MPA_ACT_WAIT = 2,
	SIW_MPA_ACT_GIVE_REQUEST = 3,
	SIW_MPA_ACT_REFUSE = 4, /* rejects by itself, and fails */
	SIW_MPA_ACT_GIVE_REPLY = 5,
	SIW_MPA_ACT_GIVE_REJECT = 6,
	SIW_MPA_ACT_GIVE_MISMATCH = 7,
	SIW_MPA_ACT_SEND_ACCEPT = 8,
	SIW_MPA_ACT_SEND_REJECT = 9,
	SIW_MPA_ACT_ENTER_FULL = 10,
	SIW_MPA_ACT_FAIL = 11,
};

/* For tests: the table's cell as action << 8 | next state, or -1 outside the table. */
int siw_mpa_test_cell(int state, int event);

/* For tests: the stream's state. */
int siw_mpa_test_state(const struct siw_mpa_stream *stream);

/* For tests: octets of memory that the stream holds beside its own struct. */
size_t siw_mpa_test_memory(const struct siw_mpa_stream *stream);

/* For tests: as if so many octets (a multiple of 512) had gone both ways already. */
void siw_mpa_test_set_position(struct siw_mpa_stream *stream, uint32_t octets);

/* cffi: end */

enum siw_mpa_crc_mode {
	SIW_MPA_CRC_UNKNOWN = 0, /* start-up is not over */
	SIW_MPA_CRC_OFF = 1,
	SIW_MPA_CRC_ON = 2,
};

/* Freed when start-up is over. */
struct siw_mpa_start {
	struct siw_mpa_params mine; /* initiator: our Request. responder: our Reply */
	struct siw_mpa_params peer;
	int lost; /* -errno behind SIW_MPA_EV_LOST */
	uint32_t in_len;
	uint32_t out_len, out_sent;
	uint8_t in[SIW_MPA_MAX_FRAME];
	uint8_t out[SIW_MPA_MAX_FRAME];
};

/* Under the send lock. */
struct siw_mpa_tx {
	uint8_t *arena; /* headers, trailers and small payloads; filled from 0 after each reset */
	struct iovec *iov;
	uint32_t arena_used;
	uint32_t iov_head, iov_tail;
	uint64_t framed, accepted; /* octets of the stream; what is between the two is the batch */
	uint32_t mulpdu;	   /* 0: not asked yet */
	uint32_t mulpdu_age;	   /* flushes between two askings */
	uint32_t flushes;	   /* since the last */
	bool blocked;		   /* TCP's buffer was full */
	bool markers;		   /* the peer asked for them; stored before crc_mode is */
	int dead;		   /* -errno */
};

/* Under the progress lock. */
struct siw_mpa_rx {
	uint8_t *buf; /* staging: octets [pos, end) came and are not consumed */
	uint32_t cap, pos, end;
	uint32_t ulpdu_len; /* of the FPDU at the head, if have */
	uint32_t done;	    /* of its ULPDU octets, those consumed; if placing */
	uint32_t crc;	    /* over what is consumed; if placing */
	uint32_t at;	    /* with markers: position of what is behind the FPDU at the head */
	uint32_t gap;	    /* ... octets of that from pos on to the next Marker, if have */
	uint32_t left;	    /* ... and to its end */
	bool have;	    /* rx_fpdu gave it up */
	bool whole;	    /* it is in staging, CRC checked */
	bool placing;	    /* rx_payload has begun and returned 0 */
	bool bulk;	    /* the last FPDU was large */
	bool dry;	    /* the last read got less than it asked for */
	bool strict;
	bool markers;	  /* we asked for them; then strict is set, too */
	bool heard;	  /* a valid FPDU came */
	int dead;	  /* -errno, once an error was given up (RFC5044-8-07) */
	uint64_t dropped; /* octets that siw_mpa_drain threw away */
};

struct siw_mpa_stream {
	struct siw_llp_sock *sock;
	struct siw_mpa_start *start; /* NULL once start-up is over */
	uint8_t state;		     /* enum siw_mpa_state */
	bool shutdown_wanted;	     /* siw_mpa_shutdown came before the Reply was out */
	struct siw_wire_err error;
	/*
	 * The two that the tx side reads without the progress lock. crc_mode: stored with
	 * release by start-up, loaded with acquire in mpa_tx.c. tx_open: 1 once FPDUs may
	 * go out; the same pairing.
	 */
	_Atomic uint8_t crc_mode;
	_Atomic uint8_t tx_open;
	struct siw_mpa_tx tx;
	struct siw_mpa_rx rx;
};

/* Does an event's step by the table: one of enum siw_mpa_startup, or -errno. */
int siw_mpa_step(struct siw_mpa_stream *stream, enum siw_mpa_event event);
/*
 * Gives TCP what is left of our start-up frame. 0, or -errno: the connection broke.
 */
int siw_mpa_pump(struct siw_mpa_stream *stream);
int siw_mpa_fail(struct siw_mpa_stream *stream, enum siw_mpa_ecode code, int rv);

/* mpa_frame.c: frames from and to values. */
bool siw_mpa_params_legal(const struct siw_mpa_params *params, bool reply);
uint32_t siw_mpa_frame_build(uint8_t *frame, const struct siw_mpa_params *params, bool reply);
/*
 * Octets that are missing of the frame of which these len came; -EPROTO: no frame begins so.
 */
int siw_mpa_frame_missing(const uint8_t *frame, uint32_t len, bool reply);
/* Parses a whole frame: 0 or -EPROTO. */
int siw_mpa_frame_parse(const uint8_t *frame, struct siw_mpa_params *out);

/*
 * mpa_marker.c: writes an FPDU with its Markers, siw_mpa_marked_len octets, for position at of the
 * stream. 0; -EFAULT: the payload's memory is gone.
 */
int siw_mpa_marked_put(uint8_t *to, uint32_t at, const void *head, size_t head_len,
		       const struct iovec *payload, int n, uint32_t ulpdu, bool crc);
/* Whether all Markers of an FPDU of marked_len octets point to its first octet (RFC5044-8-01). */
bool siw_mpa_markers_agree(const uint8_t *octets, uint32_t at, uint32_t marked_len);

/* mpa_tx.c, mpa_rx.c */
void siw_mpa_tx_free(struct siw_mpa_tx *tx);
void siw_mpa_rx_free(struct siw_mpa_rx *rx);
/*
 * Reads what came before start-up is over, up to a few KiB. Octets read (> 0); -EAGAIN; -ENOBUFS:
 * there are that many; -ENOMEM; -ENOTCONN; -errno.
 */
int siw_mpa_rx_early(struct siw_mpa_stream *stream);

static inline bool siw_mpa_tx_is_open(const struct siw_mpa_stream *stream)
{
	return atomic_load_explicit(&stream->tx_open, memory_order_acquire);
}

static inline void siw_mpa_open_tx(struct siw_mpa_stream *stream)
{
	atomic_store_explicit(&stream->tx_open, 1, memory_order_release);
}

#endif
