/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp.h - direct data placement (RFC 5041): segments, the STag table, untagged queues, and the
 * only code that writes into registered memory. Streams stand on mpa; datagram endpoints stand
 * on llp directly (ddp_datagram.c), with CRC32C at this layer's lower edge. Parts of this contract:
 * ddp_rd.h, streams on reliable datagrams, and ddp_uc.h.
 *
 * What this layer does NOT do: know RDMA operations. The RsvdULP octets pass through it; what a
 * segment may be placed into is granted from above, segment by segment.
 *
 * Locks: rx functions and all others under the progress lock, tx functions of a stream under the
 * QP's send lock. Any thread: the STag table, and siw_ddp_queue_post (one poster at a time per
 * queue).
 */
#ifndef SIW_DDP_H
#define SIW_DDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <siwarp/types.h>

#include "base/err.h"
#include "base/mpa_params.h"

/* cffi: begin */

struct siw_ddp_port;
struct siw_ddp_listener;
struct siw_ddp_stream;
struct siw_ddp_dgram;
struct siw_ddp_queue;

#define SIW_DDP_MAX_SGE	   16
#define SIW_DDP_MAX_HEAD   18 /* the untagged header, the longer one */
#define SIW_DDP_ULP_HEAD   8  /* octets of siw_ddp_stream_headed */
#define SIW_DDP_ULP_TAGGED 20 /* ... and of siw_ddp_rd_headed */

/* ---- port ------------------------------------------------------------------------------------ */

int siw_ddp_port_open(struct siw_ddp_port **out);
void siw_ddp_port_close(struct siw_ddp_port *port);

/* The crank, handed down to llp: as the functions of the same name in llp.h. */
struct siw_ddp_waitset {
	int n;
	int fds[20];
	bool out[20];
	void *port; /* this and the rest: llp's */
	uint32_t changes;
	uint64_t due_ns;
};
int siw_ddp_port_poll(struct siw_ddp_port *port, void **tokens, int n);
uint64_t siw_ddp_port_clock(const struct siw_ddp_port *port);
int siw_ddp_port_arm(struct siw_ddp_port *port);
void siw_ddp_port_disarm(struct siw_ddp_port *port);
bool siw_ddp_port_armed(const struct siw_ddp_port *port);
void siw_ddp_port_wake(struct siw_ddp_port *port);
void siw_ddp_waitset_fill(struct siw_ddp_port *port, struct siw_ddp_waitset *set);
int siw_ddp_wait(const struct siw_ddp_waitset *set, int extra_fd, int64_t timeout_us);
int siw_ddp_event_open(void);
void siw_ddp_event_set(int fd);
void siw_ddp_event_clear(int fd);
void siw_ddp_event_close(int fd);

struct siw_ddp_interface {
	char name[16];
	uint32_t mtu; /* octets */
	uint32_t up;
	uint32_t n_addrs;
	struct siw_addr addrs[16]; /* IPv4 first; port 0 */
};
int siw_ddp_interfaces(struct siw_ddp_interface *out, int max);

struct siw_ddp_watch;
enum siw_ddp_watch_news {
	SIW_DDP_WATCH_UP = 1,
	SIW_DDP_WATCH_DOWN,
	SIW_DDP_WATCH_ADDRS,
	SIW_DDP_WATCH_LOST,
};
int siw_ddp_watch_open(struct siw_ddp_port *port, const char *name, void *token,
		       struct siw_ddp_watch **out);
int siw_ddp_watch_read(struct siw_ddp_watch *watch);
void siw_ddp_watch_close(struct siw_ddp_watch *watch);

/* ---- STags ----------------------------------------------------------------------------------- */

/* What a region may be used for: those of enum siw_access_flags by their values there, and our own. */
enum siw_ddp_right {
	SIW_DDP_LOCAL_WRITE = 1,
	SIW_DDP_REMOTE_WRITE = 2,
	SIW_DDP_REMOTE_READ = 4,
	SIW_DDP_REMOTE_ATOMIC = 8,
	SIW_DDP_LOCAL_READ = 1 << 28, /* every region has it */
	SIW_DDP_READ_SINK = 1 << 29,  /* where one RDMA Read's response goes, and nothing else */
	SIW_DDP_REMOTE_INVALIDATE = 1 << 30,
};

/*
 * Memory under an STag: either length octets at addr, with tagged offsets from to_base on; or (sgl
 * != NULL) a scatter list of nsge local elements, tagged offsets from 0 on, which must stay until
 * the STag is freed.
 */
struct siw_ddp_region {
	uint8_t *addr;
	uint64_t length;
	uint64_t to_base;
	const struct siw_sge *sgl;
	int nsge;
	uint32_t rights;    /* set of enum siw_ddp_right */
	uint32_t pd;	    /* protection domain number */
	const void *stream; /* NULL, or the identity of the one siw_ddp_stream that may use it */
};

/*
 * Gives the region an STag: unpredictable (a keyed permutation of index and generation), never 0.
 * -ENOMEM at 1,048,576 regions. Any thread; so is every function of this part.
 */
int siw_ddp_stag_alloc(struct siw_ddp_port *port, const struct siw_ddp_region *region,
		       uint32_t *stag);
/*
 * The STag is dead at once; returns when nobody is between siw_ddp_stag_get and _put on it. -ENOENT
 * if it was dead (one that was only invalidated is freed by this). The caller does not hold a reference itself.
 */
int siw_ddp_stag_free(struct siw_ddp_port *port, uint32_t stag);
/*
 * Reserves an STag for memory to be bound later: dead, and nobody else's before siw_ddp_stag_free.
 * window: one that has the same upper 24 bits at each binding and an octet of its owner's choice below.
 * -ENOMEM.
 */
int siw_ddp_stag_reserve(struct siw_ddp_port *port, bool window, uint32_t *stag);
/*
 * Brings a reserved or an invalidated STag to life, for this memory; a window under any of its 256.
 * -EBUSY it lives; -ENOENT it is not reserved. Not while the same is bound or freed by another thread.
 */
int siw_ddp_stag_bind(struct siw_ddp_port *port, uint32_t stag,
		      const struct siw_ddp_region *region);
/* Whether it names memory now. */
bool siw_ddp_stag_alive(struct siw_ddp_port *port, uint32_t stag);
/*
 * Checks STag, protection domain or stream, rights and bounds [to, to+len), in this order, and
 * resolves to at most max iovecs: their count, with a reference held until siw_ddp_stag_put (0 for
 * len 0: nothing is checked, since RFC 5041 allows any STag, and nothing is held); or -EACCES with
 * *err as DDP names it (RFC 5041 section 7: invalid STag, not of this stream, bounds, TO wrap; a
 * missing right is given as RDMAP's access violation). max 0: only checks; 1 (or more) all the
 * same.
 */
int siw_ddp_stag_get(struct siw_ddp_port *port, uint32_t stag, uint32_t pd, const void *stream,
		     uint32_t right, uint64_t to, uint64_t len, struct iovec *iov, int max,
		     struct siw_wire_err *err);
void siw_ddp_stag_put(struct siw_ddp_port *port, uint32_t stag);
/*
 * Whether the peer of this stream may invalidate the STag: it lives, is bound to that stream (being of
 * its domain is not enough) and has SIW_DDP_REMOTE_INVALIDATE.
 */
bool siw_ddp_stag_may_invalidate(struct siw_ddp_port *port, uint32_t stag, const void *stream);
/*
 * Does so: 0, or -EACCES if it may not. As siw_ddp_stag_free, but that the STag is given to nobody
 * else before siw_ddp_stag_free: its owner does not know yet that it is dead.
 */
int siw_ddp_stag_invalidate(struct siw_ddp_port *port, uint32_t stag, const void *stream);
/*
 * Resolves local scatter/gather elements, octets [offset, offset+len) of them, for reading (write =
 * false) or writing. internal: the addresses are the library's own, no key is looked at. Count of
 * iovecs or -EACCES (a key is wrong) or -EMSGSIZE (list shorter than that). References are not
 * kept: hold what must stay.
 */
int siw_ddp_sgl_resolve(struct siw_ddp_port *port, const struct siw_sge *sgl, int nsge,
			bool internal, uint32_t pd, bool write, uint64_t offset, uint64_t len,
			struct iovec *iov, int max);

/* As siw_ddp_sgl_resolve for all of the list, and puts octets there: 0, -EACCES, -EMSGSIZE, -EFAULT. */
int siw_ddp_sgl_write(struct siw_ddp_port *port, const struct siw_sge *sgl, int nsge, uint32_t pd,
		      const void *octets, uint64_t len);

/* Operations on 64 bits of a region (RFC 7306 section 5.1), as values in host order. */
enum siw_ddp_atomic_kind {
	SIW_DDP_FETCH_ADD = 0,
	SIW_DDP_CMP_SWAP = 2,
};
struct siw_ddp_atomic {
	uint32_t kind; /* enum siw_ddp_atomic_kind: the code on the wire */
	uint64_t data; /* what to add, or what to swap in */
	uint64_t mask; /* adding: each field's top bit; swapping: the bits to swap */
	uint64_t compare;
	uint64_t compare_mask;
};
/*
 * Checks as siw_ddp_stag_get does, SIW_DDP_REMOTE_ATOMIC the right; then whether the place lies on an
 * 8-octet boundary of memory; and does it, in one step for every thread and CPU of the machine, in its octet
 * order: 0 and *before, what was there, or -EACCES and *err with the memory untouched (misaligned:
 * RDMAP's catastrophic error of the stream, RFC 7306 section 8.2; memory that is not there any more:
 * local catastrophic). op NULL: only checks.
 */
int siw_ddp_atomic(struct siw_ddp_port *port, uint32_t stag, uint32_t pd, const void *stream,
		   uint64_t to, const struct siw_ddp_atomic *op, uint64_t *before,
		   struct siw_wire_err *err);

/* ---- untagged queues ------------------------------------------------------------------------- */

/* A ring of posted buffers; several endpoints of one port may share it. */
struct siw_ddp_queue_attr {
	uint32_t depth;	  /* buffers, rounded up to a power of two */
	uint32_t max_sge; /* per buffer, at most SIW_DDP_MAX_SGE */
	uint32_t pd;
	bool internal; /* library memory: keys are not looked at */
};
int siw_ddp_queue_create(struct siw_ddp_port *port, const struct siw_ddp_queue_attr *attr,
			 struct siw_ddp_queue **out);
void siw_ddp_queue_destroy(struct siw_ddp_queue *queue);
/* -ENOMEM full, -EINVAL too many elements. */
int siw_ddp_queue_post(struct siw_ddp_queue *queue, uint64_t cookie, const struct siw_sge *sgl,
		       int nsge);
/* Takes the oldest buffer away unfilled, for a flush: 1 and its cookie, or 0. Progress lock. */
int siw_ddp_queue_take(struct siw_ddp_queue *queue, uint64_t *cookie);
/* Buffers that are posted and not taken. Any thread. */
uint32_t siw_ddp_queue_used(const struct siw_ddp_queue *queue);

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
	uint32_t note; /* untagged: the layer above's own, kept with it while it is parked */
};

/*
 * Parses a header that is quoted somewhere: false if len octets do not hold it. payload and seg_len
 * are what len gives; nothing is judged.
 */
bool siw_ddp_head_parse(const uint8_t *head, size_t len, struct siw_ddp_seg *seg);

/* A message delivered: all its segments are placed and checked. */
struct siw_ddp_delivery {
	uint64_t cookie; /* untagged: of the buffer */
	uint32_t length; /* untagged: octets of the message. tagged: of the last segment */
	const uint8_t
		*head; /* siw_ddp_stream_headed: its head, until the next; NULL: it is shorter */
};

/* ---- streams (connected, over MPA) ----------------------------------------------------------- */

/* Start-up: as the functions of the same name in mpa.h, handed down. */
int siw_ddp_listen(struct siw_ddp_port *port, const struct siw_addr *local, int backlog,
		   void *token, struct siw_ddp_listener **out);
int siw_ddp_listener_addr(struct siw_ddp_listener *listener, struct siw_addr *out);
void siw_ddp_listener_hold(struct siw_ddp_listener *listener, bool hold);
void siw_ddp_listener_close(struct siw_ddp_listener *listener);
int siw_ddp_accept(struct siw_ddp_listener *listener, void *token, struct siw_ddp_stream **out);
int siw_ddp_connect(struct siw_ddp_port *port, const struct siw_addr *dest,
		    const struct siw_addr *source, const struct siw_mpa_params *params, void *token,
		    struct siw_ddp_stream **out);
int siw_ddp_startup(struct siw_ddp_stream *stream, struct siw_mpa_params *peer);
int siw_ddp_reply(struct siw_ddp_stream *stream, const struct siw_mpa_params *params);
int siw_ddp_addrs(struct siw_ddp_stream *stream, struct siw_addr *local, struct siw_addr *peer);
void siw_ddp_set_token(struct siw_ddp_stream *stream, void *token);
void siw_ddp_again(struct siw_ddp_stream *stream);
bool siw_ddp_staged(const struct siw_ddp_stream *stream);
void siw_ddp_hold(struct siw_ddp_stream *stream);
bool siw_ddp_crc_on(const struct siw_ddp_stream *stream);
int siw_ddp_shutdown(struct siw_ddp_stream *stream);
int siw_ddp_drain(struct siw_ddp_stream *stream);
void siw_ddp_close(struct siw_ddp_stream *stream, bool abort);

struct siw_ddp_port *siw_ddp_stream_port(const struct siw_ddp_stream *stream);
/*
 * Says which queue serves queue number qn (0..3) of this stream; segments to others are an error.
 * MSNs start at 1.
 */
void siw_ddp_stream_queue(struct siw_ddp_stream *stream, uint32_t qn, struct siw_ddp_queue *queue);
void siw_ddp_stream_pd(struct siw_ddp_stream *stream, uint32_t pd);
/*
 * on: a first message on queue qn that has no octets needs no buffer and takes none (its delivery's
 * cookie says nothing). It holds until such a message came, or it is taken back.
 */
void siw_ddp_stream_spare(struct siw_ddp_stream *stream, uint32_t qn, bool on);
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
 * over: 1 and its cookie, or 0. Queues that a stream shares with others do not know of such a
 * buffer any more.
 */
int siw_ddp_stream_take(struct siw_ddp_stream *stream, uint32_t qn, uint64_t *cookie);

/*
 * Segments of queue 0 that find no buffer are parked from now on, in at most so many octets of
 * memory, 128 KiB at least; 0: they are an error.
 */
void siw_ddp_stream_park(struct siw_ddp_stream *stream, uint64_t octets);

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
 * one is in the works, -EACCES a key or range is bad (*err as from siw_ddp_stag_get) or the memory is
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
 * placed, and the message is delivered (*delivery); 2: placed, more segments to come; 3: parked;
 * 0: rest of it not here yet, or no room to park it, call again; -EACCES, -EPROTO, -EBADMSG (siw_ddp_error tells; nothing was written if
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
 * Places the oldest parked segment, if its message has a buffer or finds one: 1, 2, as
 * siw_ddp_rx_place; 0 nothing can be placed; -EACCES, -EPROTO. *seg: which it was.
 */
int siw_ddp_rx_unpark(struct siw_ddp_stream *stream, struct siw_ddp_seg *seg,
		      struct siw_ddp_delivery *delivery);
/* Octets of memory that hold what is parked; 0: nothing is. */
uint64_t siw_ddp_rx_parked(const struct siw_ddp_stream *stream);
/* ... and the oldest segment waits for a buffer: which it is. */
bool siw_ddp_rx_starved(const struct siw_ddp_stream *stream, struct siw_ddp_seg *seg);
/* The MSN of queue 0 that came last, perhaps in part, and the one that was delivered last. */
uint32_t siw_ddp_rx_arrived(const struct siw_ddp_stream *stream);
uint32_t siw_ddp_rx_delivered(const struct siw_ddp_stream *stream);

/* ---- datagram endpoints (over UDP) ----------------------------------------------------------- */

struct siw_ddp_dgram_attr {
	struct siw_addr local; /* used when fd is -1; its family must be given */
	int fd;		       /* a bound UDP socket of the user's, or -1 */
	bool no_crc;
	struct siw_ddp_dgram *share; /* whose socket to use, and its CRC; NULL: one of its own */
	void *token;		     /* not looked at with share: a socket has one */
	/*
	 * NULL, or: local is a multicast group's, and this is the interface where it is joined. Such an
	 * endpoint only receives, and does not look at the CRC: siw_ddp_dgram_sound.
	 */
	const char *group_netdev;
};
int siw_ddp_dgram_open(struct siw_ddp_port *port, const struct siw_ddp_dgram_attr *attr,
		       struct siw_ddp_dgram **out);
/* The socket goes with the last endpoint that shares it. */
void siw_ddp_dgram_close(struct siw_ddp_dgram *dgram);
/* What the poller hands out for its socket. */
void siw_ddp_dgram_set_token(struct siw_ddp_dgram *dgram, void *token);
int siw_ddp_dgram_addr(struct siw_ddp_dgram *dgram, struct siw_addr *out);
void siw_ddp_dgram_again(struct siw_ddp_dgram *dgram);
/* Octets of payload that one datagram carries (65507 or, IPv6, 65527, less 18 and 4). */
uint32_t siw_ddp_dgram_max(const struct siw_ddp_dgram *dgram);

/*
 * Sends one untagged segment (L=1, MO=0) as one datagram: 0; -EAGAIN the socket is full; -EACCES a
 * key is bad; -errno. pd and internal as for siw_ddp_sgl_resolve. The MSN counts up per endpoint.
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
/* As siw_llp_udp_group_sender. */
int siw_ddp_dgram_group_sender(struct siw_ddp_dgram *dgram, const char *netdev, int ttl);
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
 * counted); -EMSGSIZE message longer than the buffer (buffer taken: *delivery holds its cookie and
 * the message's length, nothing written); -EACCES a key of the buffer is bad, or its memory is not
 * there any more (buffer taken).
 */
int siw_ddp_dgram_place(struct siw_ddp_dgram *dgram, struct siw_ddp_queue *queue, uint32_t head,
			struct siw_ddp_delivery *delivery);

/* cffi: end */

/* One datagram is one whole message (RFC 5041's "invalid MO" if not). */
static inline bool siw_ddp_dgram_whole(const struct siw_ddp_seg *seg)
{
	return seg->last && !seg->mo;
}

#endif
