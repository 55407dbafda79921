/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * lab/mpi/mpi_channel.h - a channel that carries messages between ranks as an MPI would: over UD
 * alone, over RC alone, or over both: UD first, and RC for those peers that are sent much, until a
 * limit of connections is reached.
 *
 * A message is cut into frames of up to SIW_CHANNEL_PAYLOAD octets. A peer is sent at most
 * SIW_CHANNEL_WINDOW frames that it has not acknowledged. Acknowledgements count frames; they ride
 * on frames of the other direction, and go alone where there are none. Over RC they are credits.
 * Over UD a frame that is not acknowledged in time is sent again, with all behind it, and a
 * receiver takes frames in their order alone. A pair changes to RC when the connection is there and
 * all that was sent over UD is acknowledged, and never changes back.
 *
 * Memory has bounds: frames to send are of one pool for all peers, receives of UD are of one pool,
 * and a connection has two windows of receives: one for frames, one for acknowledgements, of which
 * each confirms one frame at the least.
 *
 * Nothing waits for ever: a peer that acknowledges nothing for patience_ms ends the program, as does
 * a connection that breaks.
 */
#ifndef SIW_BENCH_CHANNEL_H
#define SIW_BENCH_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

#include <siwarp/cm.h>
#include <siwarp/siw_ext.h>

#define SIW_CHANNEL_PAYLOAD 4096u
#define SIW_CHANNEL_WINDOW  16u
#define SIW_CHANNEL_NONE    UINT32_MAX

struct siw_channel_plan {
	uint32_t rank, ranks;
	uint64_t size;	    /* octets of the longest message */
	uint32_t limit;	    /* connections that a rank has at most; 0: UD alone */
	uint32_t threshold; /* frames over UD to a peer before a connection is wanted; */
			    /* 0 with a limit: no UD at all, siw_channel_connect_all */
	uint32_t patience_ms;
	uint32_t spins; /* polls in vain before it sleeps */
	/* A piece of a message: left octets of it, of which length are here, in their order. */
	void (*deliver)(void *arg, uint32_t from, const char *data, uint32_t length, uint64_t left);
	void *arg;
};

enum siw_channel_rc { CHANNEL_RC_NONE, CHANNEL_RC_CONNECTING, CHANNEL_RC_UP };

struct siw_channel_peer {
	uint32_t rank;
	uint32_t next_seq, acked; /* of frames to it: those below acked it has */
	uint32_t expected, told;  /* of frames from it: the next, and what it was told of that */
	uint32_t first, last;	  /* frames to it that are not acknowledged, oldest first */
	uint64_t left;		  /* octets that the message under way from it still has */
	uint64_t news_ns;	  /* since when it has acknowledged nothing */
	uint64_t sent_ns;	  /* when it was last sent something that is not acknowledged */
	uint64_t rto_ns;
	uint32_t by_ud;	 /* frames */
	uint32_t try_at; /* value of by_ud at which a connection is wanted */
	bool owed;	 /* it waits for an acknowledgement ... */
	bool again;	 /* ... which it may have missed */
	struct siw_ah *ah;
	enum siw_channel_rc rc;
	bool over_rc; /* no frame to it goes over UD any more */
	bool from_rc; /* frames of its came over RC: an acknowledgement of these must not get lost */
	struct siw_cm_id *id;
	struct siw_qp *qp;
	struct siw_mr *mr;
	char *slots;
};

/* A frame to send; its octets are in the pool. */
struct siw_channel_frame {
	uint32_t next;	 /* of its peer, or of the free ones */
	uint32_t posted; /* posts of it without a completion */
	uint32_t length; /* with its head */
	uint32_t to;
	bool acked;
};

struct siw_channel_sums {
	uint64_t by_ud, by_rc; /* frames sent, for the first time */
	uint64_t again;	       /* frames sent again */
	uint64_t strange;      /* frames that came and are no frames of a peer's */
	uint32_t connections;
	uint32_t refused; /* connections that a peer had no room for */
};

struct siw_channel {
	struct siw_channel_plan plan;
	struct siw_channel_peer *peers;
	struct siw_channel_sums sums;
	struct siw_context *context;
	struct siw_pd *pd;
	struct siw_comp_channel *events;
	struct siw_cq *send_cq, *recv_cq;
	struct siw_qp *ud; /* NULL: there is none */
	struct siw_mr *mr; /* the pool's frames, then the receives of UD */
	char *pool, *ud_slots;
	size_t stride; /* octets of a frame and of a receive */
	struct siw_channel_frame *frames;
	uint32_t free; /* the first one */
	uint32_t *owed;
	uint32_t n_owed;
	struct siw_cm_channel *cm;
	struct siw_cm_id *listener;
	const uint16_t *cm_ports;
	uint32_t slots_used; /* connections that are there or under way */
	uint32_t empty;	     /* polls in vain, one after the other */
	uint32_t turns;
};

/* What the head of a frame says; head and octets are one message of UD or RC. */
struct siw_channel_head {
	uint32_t magic;
	uint16_t from, to;
	uint32_t seq;	 /* of the frame, from 0; of an acknowledgement alone: 0 */
	uint32_t ack;	 /* the next frame that the sender of this one expects */
	uint32_t length; /* octets that follow; 0: an acknowledgement alone */
	uint32_t unused;
	uint64_t left; /* octets of the message, from these on */
};
_Static_assert(sizeof(struct siw_channel_head) == 32, "both ends are one program");

/*
 * ---- mpi_channel.c. All die with a reason where something fails.
 *
 * Opens one on the loopback device; *ud_port and *cm_port are what the others must know of it.
 */
void siw_channel_open(struct siw_channel *c, const struct siw_channel_plan *plan, uint16_t *ud_port,
		      uint16_t *cm_port);
/* Everybody's ports, which stay where they are. From now on messages can be sent. */
void siw_channel_meet(struct siw_channel *c, const uint16_t *ud_ports, const uint16_t *cm_ports);
/* Sends size octets, 1 at the least; returns when they are copied. */
void siw_channel_send(struct siw_channel *c, uint32_t to, const char *data, uint64_t size);
/* Takes what came, acknowledges, sends again what needs it; sleeps when there is nothing to do. */
void siw_channel_progress(struct siw_channel *c);
/* Whether each peer has what it was sent, and no connection is under way. */
bool siw_channel_settled(const struct siw_channel *c);
/* Posts a receive of UD (peer NULL) or of a connection. */
void siw_channel_post_recv(struct siw_channel *c, struct siw_channel_peer *peer, uint32_t slot);
/* Whether a connection is there and all that went over UD is acknowledged: RC from now on. */
bool siw_channel_over_rc(struct siw_channel_peer *peer);

/* ---- mpi_channel_rc.c */

void siw_channel_listen(struct siw_channel *c, uint16_t *port);
/* Wants a connection to a peer, if there is room for one more. */
void siw_channel_connect(struct siw_channel *c, struct siw_channel_peer *peer);
/* Connects to every peer, and waits until all are there. */
void siw_channel_connect_all(struct siw_channel *c);
/* Takes events of connections that wait, for up to timeout_ms. */
void siw_channel_take_events(struct siw_channel *c, int timeout_ms);

#endif
