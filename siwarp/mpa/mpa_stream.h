/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpa/mpa_stream.h - declarations shared by the files of this layer. The part between the cffi
 * comments is also used by the tests of this layer.
 */
#ifndef SIW_MPA_STREAM_H
#define SIW_MPA_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/err.h"
#include "mpa/mpa_params.h"
#include "mpa/mpa.h"
#include "mpa/mpa_wire.h"

struct siw_llp_sock;

/* cffi: begin */

/*
 * The state of a stream; changed only by siw_mpa_startup_transition (mpa_startup.c), according to
 * its table.
 */
enum siw_mpa_state {
	SIW_MPA_ST_CONNECTING = 0,	/* initiator: TCP is connecting */
	SIW_MPA_ST_SENDING_REQUEST = 1, /* initiator: TCP has not accepted all of the Request */
	SIW_MPA_ST_AWAIT_REPLY = 2,	/* initiator: waits for the Reply */
	SIW_MPA_ST_AWAIT_REQUEST = 3,	/* responder: waits for the Request */
	SIW_MPA_ST_ANSWERING = 4,	/* responder: upper layers decide about the Request */
	SIW_MPA_ST_ACCEPTING = 5,	/* responder: TCP has not accepted all of the Reply */
	/* responder: TCP has not accepted all of a Reply with R=1 */
	SIW_MPA_ST_REJECTING = 6,
	SIW_MPA_ST_FULL = 7,	    /* full operation */
	SIW_MPA_ST_TERMINATING = 8, /* initiator: may send a Terminate, and nothing else */
	SIW_MPA_ST_REJECTED = 9,    /* ended by a Reply with R=1, sent by either end */
	SIW_MPA_ST_FAILED = 10,	    /* ended by an error */
	SIW_MPA_N_STATES = 11,
};

enum siw_mpa_event {
	SIW_MPA_EV_CONNECTED = 0, /* TCP is connected */
	SIW_MPA_EV_SENT = 1,	  /* TCP accepted all of this end's start-up frame */
	SIW_MPA_EV_REQUEST = 2,	  /* a Request that may be accepted or rejected */
	/* a well-formed Request that asks for something siwarp does not support */
	SIW_MPA_EV_UNABLE = 3,
	SIW_MPA_EV_REPLY = 4,	    /* a Reply with R=0 that matches this end's Request */
	SIW_MPA_EV_REPLY_NO = 5,    /* a Reply with R=1 */
	SIW_MPA_EV_REPLY_OTHER = 6, /* a Reply with R=0 for another connection model or RTR */
	SIW_MPA_EV_BAD_FRAME = 7,   /* an invalid start-up frame was received */
	SIW_MPA_EV_LOST = 8,	    /* TCP failed or ended */
	SIW_MPA_EV_ACCEPT = 9,	    /* the upper layer has accepted the connection */
	SIW_MPA_EV_REJECT = 10,	    /* the upper layer has rejected the connection */
	SIW_MPA_EV_ITSELF = 11,	    /* TCP is connected, and the stream is its own peer */
	SIW_MPA_N_EVENTS = 12,
};

enum siw_mpa_action {
	/* the event must not happen in this state: -EINVAL, the state is unchanged */
	SIW_MPA_ACT_ILLEGAL = 0,
	SIW_MPA_ACT_SEND_REQUEST = 1,
	SIW_MPA_ACT_WAIT = 2,
	SIW_MPA_ACT_GIVE_REQUEST = 3,
	SIW_MPA_ACT_REFUSE = 4, /* sends a rejecting Reply, and ends in an error */
	SIW_MPA_ACT_GIVE_REPLY = 5,
	SIW_MPA_ACT_GIVE_REJECT = 6,
	SIW_MPA_ACT_GIVE_MISMATCH = 7,
	SIW_MPA_ACT_SEND_ACCEPT = 8,
	SIW_MPA_ACT_SEND_REJECT = 9,
	SIW_MPA_ACT_ENTER_FULL = 10,
	SIW_MPA_ACT_FAIL = 11,
	SIW_MPA_ACT_GIVE_OWN = 12,
};

/*
 * For tests: returns the cell of the start-up table as action << 8 | next state, or -1 outside the
 * table.
 */
int siw_mpa_startup_table_cell_for_tests(int state, int event);

/* For tests: returns the stream's start-up state. */
int siw_mpa_startup_state_for_tests(const struct siw_mpa_stream *stream);

/* For tests: returns the octets of memory that the stream holds in addition to its own struct. */
size_t siw_mpa_memory_octets_for_tests(const struct siw_mpa_stream *stream);

/*
 * For tests: changes the state of the stream as if this many octets (a multiple of 512) had been
 * sent and received already.
 */
void siw_mpa_set_position_for_tests(struct siw_mpa_stream *stream, uint32_t octets);

/* cffi: end */

enum siw_mpa_crc_mode {
	SIW_MPA_CRC_UNKNOWN = 0, /* start-up is not complete */
	SIW_MPA_CRC_OFF = 1,
	SIW_MPA_CRC_ON = 2,
};

/* The state of a stream during start-up, freed when start-up is complete. */
struct siw_mpa_start {
	struct siw_mpa_params mine; /* initiator: the Request sent; responder: the Reply sent */
	struct siw_mpa_params peer;
	int lost;    /* the -errno that caused event SIW_MPA_EV_LOST */
	bool itself; /* see siw_mpa_connect_to_itself */
	uint32_t in_len;
	uint32_t out_len, out_sent;
	uint8_t in[SIW_MPA_MAX_FRAME];
	uint8_t out[SIW_MPA_MAX_FRAME];
};

/* The sending side of a stream, protected by the send lock. */
struct siw_mpa_tx {
	/*
	 * arena: headers, trailers and small payloads of the batch; filled from its beginning when
	 * a new batch begins. arena and iov are NULL while the batch is empty.
	 */
	uint8_t *arena;
	struct iovec *iov;
	uint32_t arena_used;
	uint32_t iov_head, iov_tail;
	/* stream positions in octets; the octets between the two are the batch */
	uint64_t framed, accepted;
	uint32_t mulpdu;     /* maximum length of a ULPDU; 0: not queried yet */
	uint32_t mulpdu_age; /* number of flushes between two queries of the segment size */
	uint32_t flushes;    /* number of flushes since the last query of the segment size */
	bool blocked;	     /* TCP's buffer was full */
	bool markers;	     /* the peer requested Markers; stored before crc_mode is */
	int dead;	     /* -errno */
};

/* The receiving side of a stream, protected by the progress lock. */
struct siw_mpa_rx {
	/*
	 * Staging buffer: the octets [pos, end) are received and not consumed; may be NULL if there
	 * are no such octets.
	 */
	uint8_t *buf;
	uint32_t cap, pos, end;
	uint32_t ulpdu_len; /* if have is set: ULPDU length of the FPDU at the head of the stream */
	uint32_t done;	    /* if placing is set: octets of the FPDU's ULPDU that are consumed */
	uint32_t crc;	    /* if placing is set: CRC of the consumed octets */
	/* with markers: stream position after the FPDU at the head of the stream */
	uint32_t at;
	uint32_t gap;  /* with markers, if have: octets from pos to the next Marker */
	uint32_t left; /* with markers, if have: octets from pos to the FPDU's end */
	bool have;     /* siw_mpa_rx_fpdu has reported the FPDU */
	bool whole;    /* the FPDU is completely staged and its CRC is checked */
	bool placing;  /* siw_mpa_rx_payload has returned 0 for the FPDU */
	bool bulk;     /* the last FPDU was large */
	bool dry;      /* the last read returned fewer octets than requested */
	bool strict;
	bool markers;	    /* this end requested Markers; strict is then set, too */
	bool fpdu_received; /* a valid FPDU has arrived */
	int dead;	    /* the -errno of each call after an error (RFC5044-8-07) */
	uint64_t dropped;   /* octets that siw_mpa_read_and_discard dropped */
};

struct siw_mpa_stream {
	struct siw_llp_sock *sock;
	struct siw_mpa_start *start; /* NULL when start-up is complete */
	uint8_t state;		     /* enum siw_mpa_state */
	bool shutdown_wanted;	     /* siw_mpa_shutdown was called before the Reply was sent */
	struct siw_wire_err error;
	/*
	 * The tx side reads crc_mode and tx_open without the progress lock. crc_mode: stored by
	 * start-up with release order, loaded by mpa_tx.c with acquire order. tx_open: 1 once FPDUs
	 * may be sent; stored and loaded in the same way.
	 */
	_Atomic uint8_t crc_mode;
	_Atomic uint8_t tx_open;
	struct siw_mpa_tx tx;
	struct siw_mpa_rx rx;
};

/* Executes the table's transition for an event. Returns one of enum siw_mpa_startup, or -errno. */
int siw_mpa_startup_transition(struct siw_mpa_stream *stream, enum siw_mpa_event event);
/* Sends the rest of this end's start-up frame. Returns 0, or -errno if the connection failed. */
int siw_mpa_send_startup_frame(struct siw_mpa_stream *stream);
int siw_mpa_store_error(struct siw_mpa_stream *stream, enum siw_mpa_ecode code, int rv);

/* mpa_frame.c: functions that convert start-up frames to and from values. */
bool siw_mpa_params_are_legal(const struct siw_mpa_params *params, bool reply);
uint32_t siw_mpa_startup_frame_build(uint8_t *frame, const struct siw_mpa_params *params,
				     bool reply);
/*
 * Returns how many octets are missing from a start-up frame of which len have arrived; -EPROTO: the
 * octets are not a frame.
 */
int siw_mpa_startup_frame_missing_octets(const uint8_t *frame, uint32_t len, bool reply);
/* Parses a complete start-up frame. Returns 0 or -EPROTO. */
int siw_mpa_startup_frame_parse(const uint8_t *frame, bool reply, struct siw_mpa_params *out);

/*
 * mpa_marker.c: writes an FPDU with its Markers, siw_mpa_fpdu_len_with_markers octets, for stream
 * position `at`. Returns 0, or -EFAULT if the payload is not mapped.
 */
int siw_mpa_write_fpdu_with_markers(uint8_t *to, uint32_t at, const void *head, size_t head_len,
				    const struct iovec *payload, int n, uint32_t ulpdu, bool crc);
/*
 * Returns whether all Markers of an FPDU of marked_len octets point to its first octet
 * (RFC5044-8-01).
 */
bool siw_mpa_markers_valid(const uint8_t *octets, uint32_t at, uint32_t marked_len);

/* functions of mpa_tx.c and mpa_rx.c */
void siw_mpa_tx_free(struct siw_mpa_tx *tx);
void siw_mpa_rx_free(struct siw_mpa_rx *rx);
/* Free the memory blocks in the pools, which no stream uses now (mpa_spare.h). Any thread. */
void siw_mpa_tx_free_pool(void);
void siw_mpa_rx_free_pools(void);
/*
 * Reads the octets that the peer sends before start-up is complete, up to EARLY_OCTETS. Returns the
 * number of octets read (> 0); -EAGAIN; -ENOBUFS if that many are already stored; -ENOMEM;
 * -ENOTCONN; -errno.
 */
int siw_mpa_store_early_octets(struct siw_mpa_stream *stream);

static inline bool siw_mpa_tx_is_open(const struct siw_mpa_stream *stream)
{
	return atomic_load_explicit(&stream->tx_open, memory_order_acquire);
}

static inline void siw_mpa_open_tx(struct siw_mpa_stream *stream)
{
	atomic_store_explicit(&stream->tx_open, 1, memory_order_release);
}

#endif
