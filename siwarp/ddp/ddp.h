/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp.h - direct data placement (RFC 5041): segments, and their placement into memory. Streams
 * run over mpa. Datagram endpoints run over llp (ddp_datagram.c), and ddp generates and checks the
 * CRC32C of their datagrams. Two more headers belong to the interface of ddp: ddp_rd.h, streams
 * over reliable datagrams, and ddp_uc.h, unreliable connections.
 *
 * What this layer does NOT do: interpret RDMA operations. The layer passes the RsvdULP octets
 * through, and the upper layer decides for each segment what memory the segment may be placed into.
 *
 * Locks: the tx functions of a stream are called under the QP's send lock, all others under the
 * progress lock.
 */
#ifndef SIW_DDP_H
#define SIW_DDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <siwarp/types.h>

#include "base/err.h"
#include "ddp/ddp_pace.h"
#include "mem/mem.h"

/* cffi: begin */

struct siw_llp_poller;
struct siw_llp_sock;
struct siw_mpa_stream;
struct siw_ddp_stream;
struct siw_ddp_dgram;

#define SIW_DDP_MAX_HEAD   18 /* octets of the longest DDP header, the untagged one */
#define SIW_DDP_ULP_HEAD   8  /* octets for the upper layer before an untagged payload */
#define SIW_DDP_ULP_TAGGED 20 /* octets for the upper layer before a tagged payload */

/* ---- parsed segments ------------------------------------------------------------------------- */

/*
 * A parsed segment header (RFC 5041 section 4). Some members are valid only for tagged or only for
 * untagged segments.
 */
struct siw_ddp_seg {
	bool tagged, last;
	uint8_t ulp_octet;		/* first octet of RsvdULP: RDMAP's control field */
	uint32_t ulp_word;		/* RsvdULP, octets 2 to 5 (untagged only), host order */
	uint32_t stag;			/* tagged */
	uint64_t to;			/* tagged */
	uint32_t qn, msn, mo;		/* untagged */
	uint32_t payload;		/* octets of ULP payload in the segment */
	uint32_t seg_len;		/* octets of the complete segment, with header */
	uint8_t head[SIW_DDP_MAX_HEAD]; /* the received header, to be quoted in a Terminate */
	uint8_t head_len;
	/* untagged: a value of the upper layer, stored with an unexpected segment */
	uint32_t note;
};

/*
 * Parses a DDP segment header that is quoted in an error message. Returns false if the header is
 * longer than len octets. payload and seg_len are computed from len, and no field is checked.
 */
bool siw_ddp_parse_quoted_header(const uint8_t *head, size_t len, struct siw_ddp_seg *seg);

/* A delivered DDP message: all its segments are placed and checked. */
struct siw_ddp_delivery {
	uint64_t user_data; /* untagged: user_data of the buffer */
	/* octets of an untagged message, or of the last segment of a tagged one */
	uint32_t length;
	/*
	 * the octets for the upper layer (siw_ddp_stream_set_opcodes_with_ulp_header), valid until
	 * the next delivery; NULL if the message is shorter
	 */
	const uint8_t *head;
};

/* ---- streams (connected, over MPA) ----------------------------------------------------------- */

/*
 * Opens a DDP stream on an MPA stream, before or after the start-up of the MPA stream. The caller
 * keeps ownership of mpa, and closes the MPA stream after the DDP stream. Returns 0 or -ENOMEM.
 */
int siw_ddp_stream_open(struct siw_mem *mem, struct siw_mpa_stream *mpa,
			struct siw_ddp_stream **out);
void siw_ddp_stream_close(struct siw_ddp_stream *stream);
/*
 * Drops the stored unexpected segments of a stream, and lets the stream process the later segments.
 */
void siw_ddp_stream_drop_unexpected_segments(struct siw_ddp_stream *stream);
/*
 * Sets the queue that provides the buffers for segments of queue number qn (0..3). A segment for a
 * queue number without a queue is an error. MSNs start at 1.
 */
void siw_ddp_stream_set_buffer_queue(struct siw_ddp_stream *stream, uint32_t qn,
				     struct siw_mem_buffer_queue *queue);
void siw_ddp_stream_set_pd(struct siw_ddp_stream *stream, uint32_t pd);
/*
 * Sets whether an empty first message of queue qn is delivered without using a buffer; user_data of
 * the delivery is then undefined. The setting applies to one message.
 */
void siw_ddp_stream_set_accept_empty_rtr(struct siw_ddp_stream *stream, uint32_t qn, bool on);
/*
 * Sets which messages of queue 0 begin with SIW_DDP_ULP_HEAD octets for the upper layer: the
 * messages whose bit 1 << (ulp_octet & 15) is in set. The octets for the upper layer are returned
 * in delivery.head; they are not placed into the buffer, and delivery.length does not count them.
 */
void siw_ddp_stream_set_opcodes_with_ulp_header(struct siw_ddp_stream *stream, uint16_t set);
/*
 * Sets the identity of a stream, which gives the stream access to STags bound to the identity. The
 * default is the stream's address; streams with the same identity may use the same STags.
 */
void siw_ddp_stream_set_stag_identity(struct siw_ddp_stream *stream, const void *identity);
const void *siw_ddp_stream_get_stag_identity(const struct siw_ddp_stream *stream);
/*
 * Removes the buffer of a partially received message of queue qn from the stream, after the stream
 * has ended. Returns 1 and the buffer's user_data, or 0 if no message is partially received. The
 * buffer was removed from its queue when the message's first segment arrived.
 */
int siw_ddp_stream_pop_partial_buffer(struct siw_ddp_stream *stream, uint32_t qn,
				      uint64_t *user_data);

/*
 * Enables storing of segments of queue 0 that arrive without a buffer ("unexpected" segments),
 * until a buffer is posted. octets: the limit of memory for unexpected segments, at least 128 KiB;
 * 0: an unexpected segment is an error. deliver_before_end: see siw_ddp_rx_defer_stream_end.
 */
void siw_ddp_stream_enable_unexpected_segments(struct siw_ddp_stream *stream, uint64_t octets,
					       bool deliver_before_end);

/*
 * The message that a DDP stream sends, returned by siw_ddp_tx_get_msg_to_fill(). sgl and head must
 * stay valid until siw_ddp_tx_accepted_position has reached the message's end.
 */
struct siw_ddp_msg {
	bool tagged;
	bool internal; /* sgl refers to library memory, whose keys are not checked */
	/* the caller sends another message of the stream before it flushes, if possible */
	bool more;
	uint8_t ulp_octet;
	uint32_t ulp_word; /* untagged */
	uint32_t qn;	   /* untagged message: its queue number; DDP assigns the MSN */
	uint32_t stag;	   /* tagged: the peer's STag */
	uint64_t to;
	const struct siw_sge *sgl;
	int nsge;
	uint64_t length; /* octets of sgl to send, from its start */
	/*
	 * NULL, or octets for the peer's upper layer that are sent before sgl, and that must stay
	 * valid as long as sgl. untagged: SIW_DDP_ULP_HEAD octets, once. tagged: SIW_DDP_ULP_TAGGED
	 * octets, in every segment, not counted by its tagged offsets.
	 */
	const uint8_t *head;
	/*
	 * Source region of an RDMA Read Response instead of sgl: local STag, checked for
	 * REMOTE_READ.
	 */
	bool from_stag;
	uint32_t src_stag;
	uint64_t src_to;
	/*
	 * NULL, or the location where the stream position of the message's end is stored when the
	 * message is completely framed; until then the value is UINT64_MAX. The location must stay
	 * valid until then.
	 */
	uint64_t *end;
};
/*
 * Returns the stream's message, which the caller must assign as a whole before siw_ddp_tx(); NULL
 * if another message is in progress. response: on reliable datagrams, return the separate message
 * of the response space (ddp_rd.h).
 */
struct siw_ddp_msg *siw_ddp_tx_get_msg_to_fill(struct siw_ddp_stream *stream, bool response);
/*
 * Begins to send the message in msg, which siw_ddp_tx_get_msg_to_fill() has returned. Returns 1 if
 * all segments are framed; 0 if some segments are left (siw_ddp_tx_continue_msg continues); -EACCES
 * if a key or range is invalid (*err as from siw_mem_stag_acquire) or the memory is no longer
 * mapped (*err: local catastrophic); another -errno if the stream is dead. The function flushes
 * only when a batch is full.
 */
int siw_ddp_tx(struct siw_ddp_stream *stream, struct siw_ddp_msg *msg, struct siw_wire_err *err);
int siw_ddp_tx_continue_msg(struct siw_ddp_stream *stream, struct siw_wire_err *err);
/*
 * Abandons the message in progress after the segments framed so far; the message is never reported
 * as accepted. Returns the number of its octets that are framed.
 */
uint64_t siw_ddp_tx_abandon(struct siw_ddp_stream *stream);
/*
 * Sends a zero-length FPDU, which contains no segment (RFC 6581's RTR) and counts as a message.
 * Returns the same values as siw_ddp_tx.
 */
int siw_ddp_tx_empty_fpdu(struct siw_ddp_stream *stream);
/*
 * Flushes the stream. Returns the result of siw_mpa_tx_flush; *accepted is set to the value of
 * siw_ddp_tx_accepted_position.
 */
int siw_ddp_tx_flush(struct siw_ddp_stream *stream, uint64_t *accepted);
bool siw_ddp_is_tx_blocked(const struct siw_ddp_stream *stream);
/* Whether the stream has a message in progress, which is begun and not completely framed. */
bool siw_ddp_has_tx_message_in_progress(const struct siw_ddp_stream *stream);
/* Returns the MSN of the last message begun on queue number qn. Call under the send lock. */
uint32_t siw_ddp_last_tx_msn(const struct siw_ddp_stream *stream, uint32_t qn);
/*
 * The stream positions up to which the stream's data is framed, and up to which it is accepted. The
 * unit is octets that TCP has accepted, or segments that an RD peer has acknowledged. A message is
 * completely sent when the accepted position has reached the message's end.
 */
uint64_t siw_ddp_tx_framed_position(const struct siw_ddp_stream *stream);
uint64_t siw_ddp_tx_accepted_position(const struct siw_ddp_stream *stream);
/*
 * Checks whether the stream still refers to the region of an STag, before a region that the peer
 * may be reading is deregistered. Returns 1 if octets of the region are framed that TCP has not
 * accepted yet: the stream must then be aborted, because framed octets cannot be recalled. Returns
 * 0 otherwise; no more octets of the region will be read.
 */
int siw_ddp_tx_still_refers_to_stag(struct siw_ddp_stream *stream, uint32_t stag);

/*
 * Returns the header of the next segment of a stream on MPA. The segment stays at the head of the
 * stream until it is placed.
 *   1         *seg; all checks that precede placement have passed (version, QN, MSN, MO, a
 *             buffer, its length)
 *   2         a zero-length FPDU, which contains no segment
 *   0         no segment has arrived yet
 *   -EPROTO, -EBADMSG  the segment is invalid: siw_ddp_last_rx_error
 *   -ENOTCONN the stream ended; any other -errno: the connection failed
 */
int siw_ddp_rx_peek_segment(struct siw_ddp_stream *stream, struct siw_ddp_seg *seg);
/*
 * Returns whether a stream on MPA has already read the next segment completely, so that no system
 * call is needed to receive it. *seg: its header, of which nothing has been checked.
 */
bool siw_ddp_rx_peek_already_read_segment(const struct siw_ddp_stream *stream,
					  struct siw_ddp_seg *seg);
/*
 * Places the segment at the head of the stream. right: the access right that a tagged segment's
 * STag must grant (REMOTE_WRITE or READ_SINK); 0: the payload is discarded.
 *   1         placed, and its message is delivered: *delivery
 *   2         placed; its message has more segments
 *   3         stored: it is unexpected
 *   0         the segment has not arrived completely, or there is no room to store it: call again
 *   -EACCES, -EPROTO, -EBADMSG  siw_ddp_last_rx_error; nothing was written if STag, access or
 *                               bounds are invalid
 *   -errno    the connection failed
 */
int siw_ddp_rx_place(struct siw_ddp_stream *stream, const struct siw_ddp_seg *seg, uint32_t right,
		     struct siw_ddp_delivery *delivery);
/*
 * Returns the error that caused the last -EPROTO, -EBADMSG or -EACCES of a receiving function of
 * the stream.
 */
struct siw_wire_err siw_ddp_last_rx_error(const struct siw_ddp_stream *stream);
/*
 * Refuses the segment at the head of the stream with the upper layer's error err, and discards the
 * segment. siw_ddp_last_rx_error() then returns err, or the CRC error if the CRC is wrong. Returns
 * -EPROTO; -EBADMSG if the CRC is wrong; 0 if the segment has not arrived completely, and
 * siw_ddp_rx_peek_segment returns the error later.
 */
int siw_ddp_rx_refuse_for_upper_layer(struct siw_ddp_stream *stream, struct siw_wire_err err);

/*
 * Places the oldest unexpected segment if there is a buffer for its message, and stores the segment
 * in *seg. Returns 0 if no segment can be placed now; otherwise 1, 2, -EACCES or -EPROTO, with the
 * same meaning as for siw_ddp_rx_place().
 */
int siw_ddp_rx_place_stored_segment(struct siw_ddp_stream *stream, struct siw_ddp_seg *seg,
				    struct siw_ddp_delivery *delivery);
/* Octets of memory used by unexpected segments; 0: no segment is stored. */
uint64_t siw_ddp_rx_unexpected_octets(const struct siw_ddp_stream *stream);
/*
 * Whether deliver_before_end is set, and the connection ended or failed while unexpected segments
 * still wait for buffers. If so, the upper layer reports the end only after the unexpected segments
 * are placed, and the socket is paused, because nothing is left to read.
 */
bool siw_ddp_rx_defer_stream_end(struct siw_ddp_stream *stream);
/* Whether a message of queue 0 of the stream has arrived only in part. */
bool siw_ddp_rx_has_partial_message(const struct siw_ddp_stream *stream);
/*
 * Whether the oldest unexpected segment waits because no buffer is posted; if so, *seg is the
 * segment.
 */
bool siw_ddp_rx_unexpected_segment_awaits_buffer(const struct siw_ddp_stream *stream,
						 struct siw_ddp_seg *seg);
/*
 * The MSN of the newest message of queue 0 of which a segment has arrived, and the MSN of the last
 * message of queue 0 that was delivered.
 */
uint32_t siw_ddp_newest_arrived_msn(const struct siw_ddp_stream *stream);
uint32_t siw_ddp_last_delivered_msn(const struct siw_ddp_stream *stream);

/* ---- datagram endpoints (over UDP) ----------------------------------------------------------- */

/*
 * Opens a datagram endpoint on a UDP socket. The caller keeps ownership of the socket, and closes
 * the socket after the endpoint. crc: whether CRCs are sent and checked; all endpoints of one
 * socket use the same value. An endpoint on a multicast group's socket only receives, and its
 * caller checks the CRC with siw_ddp_dgram_crc_valid(). Returns 0 or -errno.
 */
int siw_ddp_dgram_open(struct siw_llp_poller *poller, struct siw_mem *mem,
		       struct siw_llp_sock *sock, bool crc, struct siw_ddp_dgram **out);
void siw_ddp_dgram_close(struct siw_ddp_dgram *dgram);
/*
 * Returns the maximum payload of one datagram of the endpoint: 65507 octets (IPv6: 65527), less 18
 * for headers and 4 for the CRC.
 */
uint32_t siw_ddp_dgram_max_payload(const struct siw_ddp_dgram *dgram);
/*
 * The rate limit for messages and Write-Records of a datagram endpoint; error messages, which are
 * few, are not limited. A send that exceeds the rate returns -EAGAIN and sets pace->held. Call
 * under the send lock.
 */
struct siw_ddp_pace *siw_ddp_dgram_get_pace(struct siw_ddp_dgram *dgram);

/*
 * Sends one untagged segment (L=1, MO=0) as one datagram. Returns 0; -EAGAIN if the socket is full;
 * -EACCES if an lkey or its range is invalid; another -errno if the send failed. pd and internal:
 * as for siw_mem_sgl_resolve. MSNs are counted per endpoint.
 */
#define SIW_DDP_DGRAM_HEAD 8
struct siw_ddp_dgram_msg {
	const struct siw_addr *dest;
	uint8_t ulp_octet;
	uint8_t head_len;  /* number of octets of head, which precede sgl in the payload */
	uint32_t ulp_word; /* the Q_Key */
	uint32_t qn;
	const struct siw_sge *sgl;
	int nsge;
	bool internal;
	uint32_t pd;
	uint64_t length; /* octets of sgl */
	uint8_t head[SIW_DDP_DGRAM_HEAD];
};
int siw_ddp_dgram_tx(struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_msg *msg);
/* The MSN of the next message that the datagram endpoint sends. Call under the send lock. */
uint32_t siw_ddp_dgram_next_msn(const struct siw_ddp_dgram *dgram);
/*
 * Sends an error message of at most SIW_DDP_MAX_ERROR octets. Returns the same values as
 * siw_ddp_dgram_tx. Error messages have their own queue number, and their own MSNs. Call under the
 * send lock.
 */
#define SIW_DDP_MAX_ERROR 64
struct siw_ddp_dgram_error {
	const struct siw_addr *dest;
	uint8_t ulp_octet;
	uint32_t ulp_word;
	uint32_t qn;
	const void *payload;
	uint32_t length; /* octets */
};
int siw_ddp_dgram_send_error_message(struct siw_ddp_dgram *dgram,
				     const struct siw_ddp_dgram_error *error);
/*
 * Sends the first of n messages, together with as many of the next messages as fit into the same
 * system call: short messages to the same destination and of the same size (the last may be
 * shorter). Each message is a datagram. Returns the number of messages that UDP accepted, at least
 * 1, or the result of siw_ddp_dgram_tx for the first message.
 */
int siw_ddp_dgram_tx_some(struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_msg *msgs, int n);
/*
 * Returns the next datagram of an endpoint. Datagrams with a wrong CRC, length or version, and
 * tagged segments without an LLP header, are dropped and counted. Returns 1 with *seg and *source;
 * 0 if no more datagrams have arrived. The datagram stays valid until the next siw_ddp_dgram_rx of
 * any endpoint. Endpoints that share a socket also return each other's datagrams, and each endpoint
 * can place a datagram into any queue. The upper layer checks siw_ddp_dgram_is_complete (L=1,
 * MO=0), because only the upper layer knows, from the Q_Key, whether the sender may be sent an
 * error.
 */
int siw_ddp_dgram_rx(struct siw_ddp_dgram *dgram, struct siw_ddp_seg *seg, struct siw_addr *source);
/*
 * Whether the caller may receive another datagram from the socket in this turn, after `tries`
 * datagrams that were dropped: a flood of dropped datagrams must not starve other sockets. All
 * datagrams of one receive call must be processed, however. If false is returned, the socket's
 * handler will be called again.
 */
bool siw_ddp_dgram_continue_or_requeue_rx(struct siw_ddp_dgram *dgram, int tries);
/*
 * Whether a datagram received by a multicast group's endpoint is valid for a member of the group:
 * the datagram's CRC is right, or the member checks no CRC. An invalid datagram is counted.
 */
bool siw_ddp_dgram_crc_valid(const struct siw_ddp_dgram *group, const struct siw_ddp_dgram *member);
/*
 * Sets the socket that siw_ddp_dgram_rx receives from, which is bound to *at; the socket and the
 * address must stay valid until the endpoint is closed or another socket is set. The default is the
 * endpoint's own socket.
 */
void siw_ddp_dgram_set_rx_sock(struct siw_ddp_dgram *dgram, struct siw_llp_sock *sock,
			       const struct siw_addr *at);
/*
 * Sets the socket that the endpoint sends on; the default is the socket passed to
 * siw_ddp_dgram_open. Call under the send lock.
 */
void siw_ddp_dgram_set_tx_sock(struct siw_ddp_dgram *dgram, struct siw_llp_sock *sock);
/*
 * Returns the destination address of the received datagram; for a multicast group's endpoint, the
 * group address.
 */
const struct siw_addr *siw_ddp_dgram_get_rx_dest_addr(const struct siw_ddp_dgram *dgram);
/* Returns the payload of the current datagram, in the llp layer's receive buffer. */
const uint8_t *siw_ddp_dgram_get_rx_payload(const struct siw_ddp_dgram *dgram);
/*
 * A datagram whose LLP header has type Record contains one tagged segment. siw_ddp_dgram_rx() then
 * sets tagged in *seg, and stores the Q_Key of the LLP header in ulp_word and its queue pair
 * indexes in qn.
 *
 * Places the payload of the tagged segment of a Record datagram, without the first head octets.
 * Returns 0, or -EACCES with *err if nothing was written. right: as for siw_ddp_rx_place.
 */
int siw_ddp_dgram_place_tagged(struct siw_ddp_dgram *dgram, const struct siw_ddp_seg *seg,
			       uint32_t pd, uint32_t head, uint32_t right,
			       struct siw_wire_err *err);
/*
 * Returns the maximum payload, including the head octets, of a datagram of a Write-Record (LLP type
 * Record) that is sent to dest without fragmentation.
 */
int siw_ddp_dgram_max_tagged_payload(const struct siw_ddp_dgram *dgram,
				     const struct siw_addr *dest);
/*
 * Sends a datagram of type Record, with one tagged segment: head, then length octets of sgl,
 * starting at offset. Returns the same values as siw_ddp_dgram_tx.
 */
#define SIW_DDP_TAGGED_HEAD 24
struct siw_ddp_dgram_tagged {
	const struct siw_addr *dest;
	uint8_t dest_index, source_index;
	uint32_t qkey;
	bool last;
	uint8_t ulp_octet;
	uint32_t stag;
	uint64_t to; /* tagged offset of the first octet after head */
	const void *head;
	uint32_t head_len; /* octets of head, at most SIW_DDP_TAGGED_HEAD */
	const struct siw_sge *sgl;
	int nsge;
	bool internal;
	uint32_t pd;
	uint64_t offset, length;
};
int siw_ddp_dgram_tx_tagged(struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_tagged *msg);
/*
 * Writes the global route header of RoCE v2 (InfiniBand's annex A17): the IP header of a datagram
 * with `octets` octets after its UDP header, built from the addresses. IPv6: the header; IPv4: 20
 * octets of zero, then the header with its checksum. The hop limit or time to live, which a socket
 * does not report, is set to 64; the other fields are 0.
 */
#define SIW_DDP_GRH 40
void siw_ddp_grh_put(uint8_t grh[SIW_DDP_GRH], const struct siw_addr *source,
		     const struct siw_addr *dest, uint32_t octets);
/*
 * Removes the oldest buffer from the queue and places the payload of the current datagram into the
 * buffer, without the first head octets (which the payload must have). grh_from: NULL, or the
 * datagram's source address: the datagram's GRH is then placed before the payload, and the
 * buffer must have room for the GRH and the payload; delivery->length does not count the GRH.
 *   1          delivered: *delivery
 *   -ENOBUFS   there is no buffer: the datagram is dropped and counted
 *   -EMSGSIZE  the message is longer than the buffer, which is used up; nothing is written, and
 *              *delivery has the buffer's user_data and the message's length
 *   -EACCES    an lkey of the buffer is invalid, or its memory is not mapped; the buffer is used up
 */
int siw_ddp_dgram_place(struct siw_ddp_dgram *dgram, struct siw_mem_buffer_queue *queue,
			uint32_t head, const struct siw_addr *grh_from,
			struct siw_ddp_delivery *delivery);

/* cffi: end */

/* Whether the datagram is one complete message; if not, the error of RFC 5041 is an invalid MO. */
static inline bool siw_ddp_dgram_is_complete(const struct siw_ddp_seg *seg)
{
	return seg->last && !seg->mo;
}

#endif
