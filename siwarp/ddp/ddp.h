/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp.h - direct data placement (RFC 5041): segments, and their placement into memory. Streams
 * stand on mpa. Datagram endpoints stand on llp (ddp_datagram.c), and this layer adds and checks
 * their CRC32C. Two more headers belong to this contract: ddp_rd.h, streams on reliable datagrams,
 * and ddp_uc.h, unreliable connections.
 *
 * What this layer does NOT do: know RDMA operations. It passes the RsvdULP octets through, and the
 * layer above says for each segment what memory it may be placed into.
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

struct siw_llp_port;
struct siw_llp_sock;
struct siw_mpa_stream;
struct siw_ddp_stream;
struct siw_ddp_dgram;

#define SIW_DDP_MAX_HEAD   18 /* the untagged header, the longer one */
#define SIW_DDP_ULP_HEAD   8  /* octets of siw_ddp_stream_headed */
#define SIW_DDP_ULP_TAGGED 20 /* ... and of siw_ddp_rd_headed */

/* ---- segments, as values --------------------------------------------------------------------- */

/* A parsed segment header (RFC 5041 section 4). Which members hold depends on tagged. */
struct siw_ddp_seg {
	bool tagged, last;
	uint8_t ulp_octet;		/* RsvdULP, first octet: RDMAP's control field */
	uint32_t ulp_word;		/* RsvdULP, the other four (untagged only), host order */
	uint32_t stag;			/* tagged */
	uint64_t to;			/* tagged */
	uint32_t qn, msn, mo;		/* untagged */
	uint32_t payload;		/* octets of ULP payload in this segment */
	uint32_t seg_len;		/* octets of the whole segment, header included */
	uint8_t head[SIW_DDP_MAX_HEAD]; /* the header as it came, for a Terminate to quote */
	uint8_t head_len;
	/* untagged: a word of the layer above, stored while the segment is unexpected */
	uint32_t note;
};

/*
 * Parses a segment header that an error message quotes. false: len octets are too few for it.
 * payload and seg_len are computed from len, and no field is checked.
 */
bool siw_ddp_head_parse(const uint8_t *head, size_t len, struct siw_ddp_seg *seg);

/* A message delivered: all its segments are placed and checked. */
struct siw_ddp_delivery {
	uint64_t user_data; /* untagged: of the buffer */
	uint32_t length;    /* untagged: octets of the message. tagged: of the last segment */
	/*
	 * siw_ddp_stream_headed: its first octets, valid until the next delivery; NULL: it has
	 * fewer
	 */
	const uint8_t *head;
};

/* ---- streams (connected, over MPA) ----------------------------------------------------------- */

/*
 * Opens a DDP stream on an MPA stream, before or after that one's start-up. The caller still owns
 * mpa, and closes it after this stream. 0 or -ENOMEM.
 */
int siw_ddp_stream_open(struct siw_mem *mem, struct siw_mpa_stream *mpa,
			struct siw_ddp_stream **out);
void siw_ddp_stream_close(struct siw_ddp_stream *stream);
/*
 * Drops the unexpected segments, which get no buffers any more, and lets the stream go on behind
 * them.
 */
void siw_ddp_stream_drop_unexpected(struct siw_ddp_stream *stream);
/*
 * Sets the queue whose buffers segments of queue number qn (0..3) go into. A segment for a queue
 * number that has none is an error. MSNs start at 1.
 */
void siw_ddp_stream_queue(struct siw_ddp_stream *stream, uint32_t qn, struct siw_mem_queue *queue);
void siw_ddp_stream_pd(struct siw_ddp_stream *stream, uint32_t pd);
/*
 * Sets whether queue qn's first message, if it is empty, is delivered without a buffer; its
 * delivery's user_data then means nothing. It applies to one such message.
 */
void siw_ddp_stream_accept_empty_rtr(struct siw_ddp_stream *stream, uint32_t qn, bool on);
/*
 * Sets which messages of queue 0 begin with SIW_DDP_ULP_HEAD octets for the layer above: those with
 * bit 1 << (ulp_octet & 15) in set. These octets come in delivery.head. They go into no buffer, and
 * delivery.length does not count them.
 */
void siw_ddp_stream_headed(struct siw_ddp_stream *stream, uint16_t set);
/*
 * Sets the identity by which this stream may use STags that are bound to one stream. It is the
 * stream's address unless set; streams with the same identity may use the same STags.
 */
void siw_ddp_stream_bind(struct siw_ddp_stream *stream, const void *identity);
const void *siw_ddp_stream_identity(const struct siw_ddp_stream *stream);
/*
 * Once the stream is over: returns the buffer of a message of which only a part came. 1 and the
 * buffer's user_data, or 0. The queue gave that buffer up when the message began.
 */
int siw_ddp_stream_take(struct siw_ddp_stream *stream, uint32_t qn, uint64_t *user_data);

/*
 * From now on segments of queue 0 that find no buffer are stored ("unexpected") until there is one,
 * in at most so many octets of memory, at least 128 KiB. 0: such a segment is an error.
 * deliver_before_end: see siw_ddp_rx_before_end.
 */
void siw_ddp_stream_keep_unexpected(struct siw_ddp_stream *stream, uint64_t octets,
				    bool deliver_before_end);

/* A message to send. sgl and head must stay until siw_ddp_tx_accepted has come to its end. */
struct siw_ddp_msg {
	bool tagged;
	bool internal; /* sgl is library memory */
	/* On reliable datagrams it goes in the space of responses: see ddp_rd.h. */
	bool response;
	uint8_t ulp_octet;
	uint32_t ulp_word; /* untagged */
	uint32_t qn;	   /* untagged; the MSN is counted here */
	uint32_t stag;	   /* tagged: the peer's */
	uint64_t to;
	const struct siw_sge *sgl;
	int nsge;
	uint64_t length; /* octets of sgl to send, from its start */
	/*
	 * NULL, or octets of the library's to send before those; stays as sgl. untagged:
	 * SIW_DDP_ULP_HEAD of them, once. tagged: SIW_DDP_ULP_TAGGED of them, in every segment,
	 * outside of its range of offsets.
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
	 * NULL, or where its end goes when it is wholly framed; UINT64_MAX until then. Stays so
	 * long.
	 */
	uint64_t *end;
};
/*
 * Begins a message: 1 all segments are framed, 0 some are left (siw_ddp_tx_more goes on), -EBUSY
 * one is in the works, -EACCES a key or range is bad (*err as from siw_mem_stag_get) or the memory
 * is not there any more (*err: local catastrophic), -errno the stream is dead. Nothing is flushed
 * here but a batch that is full.
 */
int siw_ddp_tx(struct siw_ddp_stream *stream, const struct siw_ddp_msg *msg,
	       struct siw_wire_err *err);
int siw_ddp_tx_more(struct siw_ddp_stream *stream, struct siw_wire_err *err);
/*
 * Gives up the message in the works behind the segments framed so far; it never counts as accepted.
 * Octets of it that are framed.
 */
uint64_t siw_ddp_tx_abandon(struct siw_ddp_stream *stream);
/*
 * A zero-length FPDU, which is no segment at all (RFC 6581's RTR); counts as a message. As
 * siw_ddp_tx.
 */
int siw_ddp_tx_empty(struct siw_ddp_stream *stream);
/* As siw_mpa_tx_flush; *accepted as siw_ddp_tx_accepted. */
int siw_ddp_tx_flush(struct siw_ddp_stream *stream, uint64_t *accepted);
bool siw_ddp_tx_blocked(const struct siw_ddp_stream *stream);
/* A message is in the works: begun, and not wholly framed. */
bool siw_ddp_tx_active(const struct siw_ddp_stream *stream);
/* The MSN of the last message begun on a queue. Send lock. */
uint32_t siw_ddp_tx_msn(const struct siw_ddp_stream *stream, uint32_t qn);
/*
 * How far the stream is framed, and how far it is accepted: octets that TCP took, or segments that
 * a peer of reliable datagrams has. A message is out when accepted has come to its end.
 */
uint64_t siw_ddp_tx_framed(const struct siw_ddp_stream *stream);
uint64_t siw_ddp_tx_accepted(const struct siw_ddp_stream *stream);
/*
 * Before a region that the peer may be reading dies: 1 if octets of this STag are framed and not
 * yet taken by TCP, in which case the stream must be aborted (they cannot be recalled); else 0 and
 * no more will be read.
 */
int siw_ddp_tx_revoke(struct siw_ddp_stream *stream, uint32_t stag);

/*
 * Gives the next segment's header. The segment stays at the head of the stream until it is placed.
 *   1         *seg: checked for what needs no placement (version, QN, MSN, MO, a buffer, its
 *             length)
 *   2         a zero-length FPDU, which is no segment
 *   0         nothing has come yet
 *   -EPROTO, -EBADMSG  the segment is wrong: siw_ddp_error
 *   -ENOTCONN the stream ended; any other -errno: the connection broke
 */
int siw_ddp_rx_head(struct siw_ddp_stream *stream, struct siw_ddp_seg *seg);
/*
 * Places the segment at the head. right: what a tagged segment's STag must grant (REMOTE_WRITE or
 * READ_SINK); 0: its payload is thrown away.
 *   1         placed, and its message is delivered: *delivery
 *   2         placed; its message has more segments
 *   3         stored: it is unexpected
 *   0         its rest has not come, or there is no room to store it: call again
 *   -EACCES, -EPROTO, -EBADMSG  siw_ddp_error; nothing was written if STag, access or bounds are
 *                               wrong
 *   -errno    the connection broke
 */
int siw_ddp_rx_place(struct siw_ddp_stream *stream, const struct siw_ddp_seg *seg, uint32_t right,
		     struct siw_ddp_delivery *delivery);
/* The error behind the last -EPROTO, -EBADMSG or -EACCES. */
struct siw_wire_err siw_ddp_error(const struct siw_ddp_stream *stream);
/*
 * Refuses the segment at the head for the layer above's reason err, and throws it away. The next
 * siw_ddp_rx_head returns -EPROTO with that reason, or the CRC's error if the CRC is wrong.
 */
void siw_ddp_rx_refuse(struct siw_ddp_stream *stream, struct siw_wire_err err);

/*
 * Places the oldest unexpected segment, *seg, if there is a buffer for its message. 1, 2, -EACCES,
 * -EPROTO: as siw_ddp_rx_place; 0: nothing can be placed now.
 */
int siw_ddp_rx_place_unexpected(struct siw_ddp_stream *stream, struct siw_ddp_seg *seg,
				struct siw_ddp_delivery *delivery);
/* Octets of memory that unexpected segments take; 0: there are none. */
uint64_t siw_ddp_rx_unexpected(const struct siw_ddp_stream *stream);
/*
 * With deliver_before_end: whether the connection ended or broke while unexpected segments still
 * wait for buffers. The layer above reports the end only once they are placed. If so, the socket is
 * paused, as there is nothing left to read.
 */
bool siw_ddp_rx_before_end(struct siw_ddp_stream *stream);
/* Whether only a part of a message of queue 0 has come. */
bool siw_ddp_rx_unfinished(const struct siw_ddp_stream *stream);
/* Whether the oldest unexpected segment, *seg, waits for a buffer that is not posted. */
bool siw_ddp_rx_starved(const struct siw_ddp_stream *stream, struct siw_ddp_seg *seg);
/* Queue 0: the MSN of the last message of which something came, and of the last one delivered. */
uint32_t siw_ddp_rx_arrived(const struct siw_ddp_stream *stream);
uint32_t siw_ddp_rx_delivered(const struct siw_ddp_stream *stream);

/* ---- datagram endpoints (over UDP) ----------------------------------------------------------- */

/*
 * Opens an endpoint on a UDP socket. The caller still owns the socket, and closes it after the
 * endpoint. crc: whether CRCs are sent and checked; all endpoints of one socket agree on it. An
 * endpoint on a multicast group's socket only receives, and checks no CRC itself
 * (siw_ddp_dgram_sound). 0, -ENOMEM, -errno.
 */
int siw_ddp_dgram_open(struct siw_llp_port *port, struct siw_mem *mem, struct siw_llp_sock *sock,
		       bool crc, struct siw_ddp_dgram **out);
void siw_ddp_dgram_close(struct siw_ddp_dgram *dgram);
/*
 * The longest payload of one datagram: 65507 octets (IPv6: 65527), less 18 for headers and 4 for
 * the CRC.
 */
uint32_t siw_ddp_dgram_max(const struct siw_ddp_dgram *dgram);
/*
 * The limit of the rate of its messages and Write-Records, not of error messages, which are few. A
 * send that is to wait returns -EAGAIN, and its pace is held. Send lock.
 */
struct siw_ddp_pace *siw_ddp_dgram_pace(struct siw_ddp_dgram *dgram);

/*
 * Sends one untagged segment (L=1, MO=0) as one datagram. 0; -EAGAIN: the socket is full; -EACCES:
 * an lkey or its range is bad; -errno of the send. pd and internal: as for siw_mem_sgl_resolve.
 * Each endpoint counts MSNs of its own.
 */
#define SIW_DDP_DGRAM_HEAD 8
struct siw_ddp_dgram_msg {
	const struct siw_addr *dest;
	uint8_t ulp_octet;
	uint8_t head_len;  /* octets of head, which the payload begins with */
	uint32_t ulp_word; /* the Q_Key */
	uint32_t qn;
	const struct siw_sge *sgl;
	int nsge;
	bool internal;
	uint32_t pd;
	uint64_t length; /* of sgl */
	uint8_t head[SIW_DDP_DGRAM_HEAD];
};
int siw_ddp_dgram_tx(struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_msg *msg);
/* The MSN of the next message. Send lock. */
uint32_t siw_ddp_dgram_next_msn(const struct siw_ddp_dgram *dgram);
/*
 * Sends an error message of at most SIW_DDP_MAX_ERROR octets: returns as siw_ddp_dgram_tx. Error
 * messages have a queue number, and so MSNs, of their own. Send lock.
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
int siw_ddp_dgram_tx_error(struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_error *error);
/*
 * Sends the first of n messages, and with it those behind it that can go in the same system call:
 * small ones to the same destination and of the same size (the last may be shorter). Each is a
 * datagram of its own. Returns how many UDP took, at least 1, or what siw_ddp_dgram_tx returns for
 * the first.
 */
int siw_ddp_dgram_tx_some(struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_msg *msgs, int n);
/*
 * Gives the next datagram whose CRC, lengths and version are right and which is untagged; others
 * are dropped and counted. 1: *seg and *source; 0: no more came. It stays until the next
 * siw_ddp_dgram_rx of any endpoint. Endpoints that share a socket give each other's datagrams, too,
 * and any of them can place one into any queue. The layer above checks siw_ddp_dgram_whole (L=1,
 * MO=0), as it knows from the Q_Key whether the sender may be sent an error.
 */
int siw_ddp_dgram_rx(struct siw_ddp_dgram *dgram, struct siw_ddp_seg *seg, struct siw_addr *source);
/*
 * Whether the caller may take another datagram in this turn, after so many that gave it nothing:
 * a flood of those must not starve other sockets. But all that came with one receive must be taken.
 * false: the handler is called again.
 */
bool siw_ddp_dgram_goes_on(struct siw_ddp_dgram *dgram, int tries);
/*
 * Whether a datagram that came to a multicast group's endpoint is good for this member: its CRC is
 * right, or the member checks none. A bad one is counted.
 */
bool siw_ddp_dgram_sound(const struct siw_ddp_dgram *group, const struct siw_ddp_dgram *member);
/*
 * From now on siw_ddp_dgram_rx receives from this socket, which is bound to *at; both must stay
 * until the endpoint is closed or told otherwise. At first it is the endpoint's own.
 */
void siw_ddp_dgram_receive_at(struct siw_ddp_dgram *dgram, struct siw_llp_sock *sock,
			      const struct siw_addr *at);
/*
 * From now on it sends on this socket: at first on the one that it was opened on. Send lock.
 */
void siw_ddp_dgram_send_by(struct siw_ddp_dgram *dgram, struct siw_llp_sock *sock);
/* The address that the datagram at hand came to; of a multicast group's endpoint, the group. */
const struct siw_addr *siw_ddp_dgram_at(const struct siw_ddp_dgram *dgram);
/* The payload of the datagram at hand, in the port's buffer. */
const uint8_t *siw_ddp_dgram_payload(const struct siw_ddp_dgram *dgram);
/*
 * Behind an LLP header of type Record a datagram has one tagged segment. *seg then has tagged set,
 * and in ulp_word the Q_Key and in qn the indexes that the LLP header gives.
 *
 * Places such a segment's payload, without its first head octets. 0; -EACCES: *err, nothing was
 * written. right: as for siw_ddp_rx_place.
 */
int siw_ddp_dgram_place_tagged(struct siw_ddp_dgram *dgram, const struct siw_ddp_seg *seg,
			       uint32_t pd, uint32_t head, uint32_t right,
			       struct siw_wire_err *err);
/* The longest payload, head octets included, of such a datagram to dest that is not fragmented. */
int siw_ddp_dgram_tagged_max(const struct siw_ddp_dgram *dgram, const struct siw_addr *dest);
/*
 * Sends such a datagram: head, then length octets of sgl from offset on. Returns as
 * siw_ddp_dgram_tx.
 */
#define SIW_DDP_TAGGED_HEAD 24
struct siw_ddp_dgram_tagged {
	const struct siw_addr *dest;
	uint8_t dest_index, source_index;
	uint32_t qkey;
	bool last;
	uint8_t ulp_octet;
	uint32_t stag;
	uint64_t to; /* of the first octet behind head */
	const void *head;
	uint32_t head_len; /* at most SIW_DDP_TAGGED_HEAD */
	const struct siw_sge *sgl;
	int nsge;
	bool internal;
	uint32_t pd;
	uint64_t offset, length;
};
int siw_ddp_dgram_tx_tagged(struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_tagged *msg);
/*
 * The global route header of RoCE v2 (InfiniBand's annex A17): the IP header of a datagram with so
 * many octets behind its UDP header, made from its addresses. IPv6: the header; IPv4: 20 octets of
 * zero, then the header with its checksum. What a socket does not tell, hop limit or time to live,
 * is 64; the other fields are 0.
 */
#define SIW_DDP_GRH 40
void siw_ddp_grh_put(uint8_t grh[SIW_DDP_GRH], const struct siw_addr *source,
		     const struct siw_addr *dest, uint32_t octets);
/*
 * Takes the queue's oldest buffer and places the payload there, without its first head octets
 * (which it must have). grh_from: NULL; or the datagram's source: its GRH is placed in front, for
 * which the buffer must have room, too; delivery->length does not count it.
 *   1          delivered: *delivery
 *   -ENOBUFS   there is no buffer: the datagram is dropped and counted
 *   -EMSGSIZE  the message is longer than the buffer, which is taken; nothing is written, and
 *              *delivery has the buffer's user_data and the message's length
 *   -EACCES    an lkey of the buffer is bad, or its memory is gone; the buffer is taken
 */
int siw_ddp_dgram_place(struct siw_ddp_dgram *dgram, struct siw_mem_queue *queue, uint32_t head,
			const struct siw_addr *grh_from, struct siw_ddp_delivery *delivery);

/* cffi: end */

/* Whether the datagram is one whole message; if not, RFC 5041 calls it an invalid MO. */
static inline bool siw_ddp_dgram_whole(const struct siw_ddp_seg *seg)
{
	return seg->last && !seg->mo;
}

#endif
