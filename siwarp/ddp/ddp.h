/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp.h - direct data placement (RFC 5041): segments, and their placement into memory. Streams stand on mpa; datagram endpoints stand
 * on llp directly (ddp_datagram.c), with CRC32C at this layer's lower edge. Parts of this contract:
 * ddp_rd.h, streams on reliable datagrams, and ddp_uc.h.
 *
 * What this layer does NOT do: know RDMA operations. The RsvdULP octets pass through it; what a
 * segment may be placed into is granted from above, segment by segment.
 *
 * Locks: rx functions and all others under the progress lock, tx functions of a stream under the
 * QP's send lock.
 */
#ifndef SIW_DDP_H
#define SIW_DDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <siwarp/types.h>

#include "base/err.h"
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
	uint32_t note; /* untagged: the layer above's own, kept with it while it is unexpected */
};

/*
 * Parses a header that is quoted somewhere: false if len octets do not hold it. payload and seg_len
 * are what len gives; nothing is judged.
 */
bool siw_ddp_head_parse(const uint8_t *head, size_t len, struct siw_ddp_seg *seg);

/* A message delivered: all its segments are placed and checked. */
struct siw_ddp_delivery {
	uint64_t user_data; /* untagged: of the buffer */
	uint32_t length;    /* untagged: octets of the message. tagged: of the last segment */
	const uint8_t
		*head; /* siw_ddp_stream_headed: its head, until the next; NULL: it is shorter */
};

/* ---- streams (connected, over MPA) ----------------------------------------------------------- */

/*
 * A stream on an mpa stream that is started up, or is about to be; that stays the caller's, and is closed after this
 * one. -ENOMEM.
 */
int siw_ddp_stream_open(struct siw_mem *mem, struct siw_mpa_stream *mpa,
			struct siw_ddp_stream **out);
void siw_ddp_stream_close(struct siw_ddp_stream *stream);
/* Nobody will place what is unexpected: it is gone, and the rest of the stream need not wait for it. */
void siw_ddp_stream_unpark(struct siw_ddp_stream *stream);
/*
 * Says which queue serves queue number qn (0..3) of this stream; segments to others are an error.
 * MSNs start at 1.
 */
void siw_ddp_stream_queue(struct siw_ddp_stream *stream, uint32_t qn, struct siw_mem_queue *queue);
void siw_ddp_stream_pd(struct siw_ddp_stream *stream, uint32_t pd);
/*
 * on: a first message on queue qn that has no octets needs no buffer and takes none (its delivery's
 * user_data says nothing). It holds until such a message came, or it is taken back.
 */
void siw_ddp_stream_accept_empty_rtr(struct siw_ddp_stream *stream, uint32_t qn, bool on);
/*
 * Messages of queue 0 whose ulp_octet's low four bits are in the set (1 << bits) begin with
 * SIW_DDP_ULP_HEAD octets for the layer above. These are kept apart, go into no buffer and do not count
 * in the delivery's length.
 */
void siw_ddp_stream_headed(struct siw_ddp_stream *stream, uint16_t set);
/*
 * What STags are bound to that this stream alone may use: its own address, unless it is told another
 * (who was told the same is the same to them).
 */
void siw_ddp_stream_bind(struct siw_ddp_stream *stream, const void *identity);
const void *siw_ddp_stream_identity(const struct siw_ddp_stream *stream);
/*
 * Takes away the buffer of a message that was begun and will not be finished, once the stream is
 * over: 1 and its user_data, or 0. Queues that a stream shares with others do not know of such a
 * buffer any more.
 */
int siw_ddp_stream_take(struct siw_ddp_stream *stream, uint32_t qn, uint64_t *user_data);

/*
 * Segments of queue 0 that find no buffer are kept from now on, in at most so many octets of
 * memory, 128 KiB at least; 0: they are an error. deliver_before_end: siw_ddp_rx_before_end.
 */
void siw_ddp_stream_keep_unexpected(struct siw_ddp_stream *stream, uint64_t octets,
				    bool deliver_before_end);

/* A message to send. sgl and prefix must stay until siw_ddp_tx_accepted has passed the message. */
struct siw_ddp_msg {
	bool tagged;
	bool internal; /* sgl is library memory */
	uint8_t ulp_octet;
	uint32_t ulp_word; /* untagged */
	uint32_t qn;	   /* untagged; the MSN is counted here */
	uint32_t stag;	   /* tagged: the peer's */
	uint64_t to;
	const struct siw_sge *sgl;
	int nsge;
	uint64_t length; /* octets of sgl to send, from its start */
	/*
	 * NULL, or octets of the library's to send before those; stays as sgl. untagged: SIW_DDP_ULP_HEAD of
	 * them, once. tagged: SIW_DDP_ULP_TAGGED of them, in every segment, outside of its range of offsets.
	 */
	const uint8_t *head;
	/*
	 * Source region of an RDMA Read Response instead of sgl: local STag, checked for
	 * REMOTE_READ.
	 */
	bool from_stag;
	uint32_t src_stag;
	uint64_t src_to;
};
/*
 * Begins a message: 1 all segments are framed, 0 some are left (siw_ddp_tx_more goes on), -EBUSY
 * one is in the works, -EACCES a key or range is bad (*err as from siw_mem_stag_get) or the memory is
 * not there any more (*err: local catastrophic), -errno the
 * stream is dead. Nothing is flushed here but a batch that is full.
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
/* As siw_mpa_tx_flush. */
bool siw_ddp_tx_blocked(const struct siw_ddp_stream *stream);
int siw_ddp_tx_flush(struct siw_ddp_stream *stream);
/* The MSN of the last message begun on a queue. Send lock. */
uint32_t siw_ddp_tx_msn(const struct siw_ddp_stream *stream, uint32_t qn);
/* Messages begun, and messages all of whose octets TCP took. */
uint64_t siw_ddp_tx_begun(const struct siw_ddp_stream *stream);
uint64_t siw_ddp_tx_accepted(struct siw_ddp_stream *stream);
/*
 * Before a region that the peer may be reading dies: 1 if octets of this STag are framed and not
 * yet taken by TCP, in which case the stream must be aborted (they cannot be recalled); else 0 and
 * no more will be read.
 */
int siw_ddp_tx_revoke(struct siw_ddp_stream *stream, uint32_t stag);

/*
 * Next segment's header: 1, parsed and checked as far as that goes without placing (version, QN,
 * MSN, MO, buffer there, buffer long enough); 2: a zero-length FPDU (no segment at all); 0 nothing
 * yet; -EPROTO or -EBADMSG (siw_ddp_error tells), -ENOTCONN end of stream, -errno. The segment
 * stays until it is placed.
 */
int siw_ddp_rx_head(struct siw_ddp_stream *stream, struct siw_ddp_seg *seg);
/*
 * Places it. right: for a tagged segment, what the STag must grant (REMOTE_WRITE or READ_SINK), or 0:
 * its payload is thrown away. 1:
 * placed, and the message is delivered (*delivery); 2: placed, more segments to come; 3: kept, unexpected;
 * 0: rest of it not here yet, or no room to unexpected it, call again; -EACCES, -EPROTO, -EBADMSG (siw_ddp_error tells; nothing was written if
 * it is about STag, access or bounds), -errno.
 */
int siw_ddp_rx_place(struct siw_ddp_stream *stream, const struct siw_ddp_seg *seg, uint32_t right,
		     struct siw_ddp_delivery *delivery);
struct siw_wire_err siw_ddp_error(const struct siw_ddp_stream *stream);
/*
 * The layer above will not have the segment at the head, for its own reason: it is thrown away. The
 * next siw_ddp_rx_head says -EPROTO with that reason, or what came before it: a wrong CRC makes all
 * else moot.
 */
void siw_ddp_rx_refuse(struct siw_ddp_stream *stream, struct siw_wire_err err);

/*
 * Places the oldest unexpected segment, if its message has a buffer or finds one: 1, 2, as
 * siw_ddp_rx_place; 0 nothing can be placed; -EACCES, -EPROTO. *seg: which it was.
 */
int siw_ddp_rx_place_unexpected(struct siw_ddp_stream *stream, struct siw_ddp_seg *seg,
				struct siw_ddp_delivery *delivery);
/* Octets of memory that hold unexpected segments; 0: there are none. */
uint64_t siw_ddp_rx_unexpected(const struct siw_ddp_stream *stream);
/*
 * The connection ended, or broke, and what came before that still waits for buffers: its end is news
 * when it has them. Only with deliver_before_end.
 */
bool siw_ddp_rx_before_end(const struct siw_ddp_stream *stream);
/* Of a message of queue 0 only a part has come. */
bool siw_ddp_rx_unfinished(const struct siw_ddp_stream *stream);
/* Something is unexpected, and its oldest segment waits for a buffer: which it is. */
bool siw_ddp_rx_starved(const struct siw_ddp_stream *stream, struct siw_ddp_seg *seg);
/* The MSN of queue 0 that came last, perhaps in part, and the one that was delivered last. */
uint32_t siw_ddp_rx_arrived(const struct siw_ddp_stream *stream);
uint32_t siw_ddp_rx_delivered(const struct siw_ddp_stream *stream);

/* ---- datagram endpoints (over UDP) ----------------------------------------------------------- */

/*
 * An endpoint on a UDP socket, which stays the caller's and is closed after it; several may stand on one, and have
 * the same crc: whether CRCs are made and looked at. One on the socket of a multicast group has none: it only receives
 * (siw_ddp_dgram_sound). -ENOMEM, -errno.
 */
int siw_ddp_dgram_open(struct siw_llp_port *port, struct siw_mem *mem, struct siw_llp_sock *sock,
		       bool crc, struct siw_ddp_dgram **out);
void siw_ddp_dgram_close(struct siw_ddp_dgram *dgram);
/* Who calls siw_ddp_dgram_rx stopped short of 0. */
void siw_ddp_dgram_resume(struct siw_ddp_dgram *dgram);
/* Octets of payload that one datagram carries (65507 or, IPv6, 65527, less 18 and 4). */
uint32_t siw_ddp_dgram_max(const struct siw_ddp_dgram *dgram);

/*
 * Sends one untagged segment (L=1, MO=0) as one datagram: 0; -EAGAIN the socket is full; -EACCES a
 * key is bad; -errno. pd and internal as for siw_mem_sgl_resolve. The MSN counts up per endpoint.
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
/* The MSN that the next of these messages will have. Send lock. */
uint32_t siw_ddp_dgram_next_msn(const struct siw_ddp_dgram *dgram);
/*
 * Sends an error message of the library's own, at most SIW_DDP_MAX_ERROR octets. As siw_ddp_dgram_tx,
 * with MSNs of its own, as a queue of its own has. Send lock.
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
 * Sends the first of n messages, and with it those behind that can go in the same system call: to
 * the same destination, of the same size (the last one may be shorter), small. How many UDP took,
 * at least 1; or what siw_ddp_dgram_tx says of the first. A datagram each, as if sent one by one.
 */
int siw_ddp_dgram_tx_some(struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_msg *msgs, int n);
/*
 * Next credible datagram (CRC, lengths, version, untagged: others are dropped and counted): 1 with *seg
 * and *source; 0 nothing more. It stays until the next siw_ddp_dgram_rx of any endpoint. Of those that
 * share a socket any one takes whatever comes next, and places it, into whosever queue.
 * Whether it is a whole message (L=1, MO=0: siw_ddp_dgram_whole) is for the layer above to ask, which
 * knows by the Q_Key whether the sender may be told.
 */
int siw_ddp_dgram_rx(struct siw_ddp_dgram *dgram, struct siw_ddp_seg *seg, struct siw_addr *source);
/*
 * Whether a datagram that came to a group's endpoint is right for this one, which is a member: it looks at no CRC, or the
 * CRC is right. Counts it if not.
 */
bool siw_ddp_dgram_sound(const struct siw_ddp_dgram *group, const struct siw_ddp_dgram *member);
/* Its payload, in the port's buffer. */
const uint8_t *siw_ddp_dgram_payload(const struct siw_ddp_dgram *dgram);
/*
 * Behind the LLP header (type Record) a datagram may bring one tagged segment: *seg has tagged set, and then
 * ulp_word (the Q_Key) and qn (indexes) too, which the LLP header brought.
 *
 * Places its payload but for the first head octets: 0; -EACCES (*err), nothing was written. right: as
 * siw_ddp_rx_place.
 */
int siw_ddp_dgram_place_tagged(struct siw_ddp_dgram *dgram, const struct siw_ddp_seg *seg,
			       uint32_t pd, uint32_t head, uint32_t right,
			       struct siw_wire_err *err);
/* Octets of payload, of those head octets too, that such a datagram to dest brings without fragments. */
int siw_ddp_dgram_tagged_max(const struct siw_ddp_dgram *dgram, const struct siw_addr *dest);
/* Sends such a datagram: octets offset to offset + length of sgl, behind head. As siw_ddp_dgram_tx. */
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
 * Takes the oldest buffer of the queue and fills it with the payload but for its first head octets, which it
 * has: 1 delivered; -ENOBUFS no buffer (dropped and
 * counted); -EMSGSIZE message longer than the buffer (buffer taken: *delivery holds its user_data and
 * the message's length, nothing written); -EACCES a key of the buffer is bad, or its memory is not
 * there any more (buffer taken).
 */
int siw_ddp_dgram_place(struct siw_ddp_dgram *dgram, struct siw_mem_queue *queue, uint32_t head,
			struct siw_ddp_delivery *delivery);

/* cffi: end */

/* One datagram is one whole message (RFC 5041's "invalid MO" if not). */
static inline bool siw_ddp_dgram_whole(const struct siw_ddp_seg *seg)
{
	return seg->last && !seg->mo;
}

#endif
