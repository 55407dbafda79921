/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * lab/mpi/mpi_channel.h - a channel that carries messages between ranks as an MPI library does:
 * over UD only, over RC only, or over both. With both, UD is used first, and RC for peers with much
 * traffic, up to a limit of connections.
 *
 * A message is split into frames of up to SIW_CHANNEL_PAYLOAD octets. At most SIW_CHANNEL_WINDOW
 * unacknowledged frames are in flight to a peer. Acknowledgements count frames; they are carried in
 * frames of the other direction, or sent separately if there are none. Over RC they are credits.
 * Over UD a frame that is not acknowledged in time is retransmitted with all later ones, and a
 * receiver accepts frames only in order. A pair changes to RC when the connection is established
 * and all frames sent over UD are acknowledged, and never changes back.
 *
 * Memory is bounded: all peers share one pool of frames to send and one pool of UD receives, and a
 * connection has two windows of receives: one for frames, and one for acknowledgements, each of
 * which confirms at least one frame.
 *
 * No wait is unlimited: the program ends if a peer acknowledges nothing for patience_ms, or if a
 * connection breaks.
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
	uint32_t limit;	    /* maximum connections of a rank; 0: UD only */
	uint32_t threshold; /* frames over UD to a peer before a connection is requested; */
			    /* 0 with a limit: no UD, siw_channel_connect_all */
	uint32_t patience_ms;
	uint32_t spins; /* polls without a completion before a sleep */
	/*
	 * Receives a piece of a message: length octets at data, in order; left is the number of
	 * octets of the message from data on.
	 */
	void (*deliver)(void *arg, uint32_t from, const char *data, uint32_t length, uint64_t left);
	void *arg;
};

enum siw_channel_rc { CHANNEL_RC_NONE, CHANNEL_RC_CONNECTING, CHANNEL_RC_UP };

struct siw_channel_peer {
	uint32_t rank;
	uint32_t next_seq, acked; /* next frame to the peer; frames below acked are acknowledged */
	uint32_t expected, told;  /* next frame from the peer; value last acknowledged to it */
	uint32_t first, last;	  /* unacknowledged frames to the peer, oldest first */
	uint64_t left;		  /* octets missing of the message being received from the peer */
	uint64_t news_ns;	  /* time of the last new acknowledgement */
	uint64_t sent_ns;	  /* time of the last send that is not acknowledged */
	uint64_t rto_ns;
	uint32_t by_ud;	 /* frames sent over UD */
	uint32_t try_at; /* value of by_ud at which a connection is requested */
	bool owed;	 /* the peer waits for an acknowledgement */
	bool again;	 /* the awaited acknowledgement may repeat a lost one */
	struct siw_ah *ah;
	enum siw_channel_rc rc;
	bool over_rc; /* all further frames to the peer use RC */
	bool from_rc; /* frames arrived over RC: their acknowledgement must not be lost */
	struct siw_cm_id *id;
	struct siw_qp *qp;
	struct siw_mr *mr;
	char *slots;
};

/* A frame to send; its octets are in the pool. */
struct siw_channel_frame {
	uint32_t next;	 /* next frame in the peer's list, or in the free list */
	uint32_t posted; /* posts of the frame that are not complete */
	uint32_t length; /* octets, including the head */
	uint32_t to;
	bool acked;
};

struct siw_channel_sums {
	uint64_t by_ud, by_rc; /* frames sent, without retransmissions */
	uint64_t again;	       /* retransmitted frames */
	uint64_t strange;      /* received frames that are invalid */
	uint32_t connections;
	uint32_t refused; /* connections that a peer rejected for lack of room */
};

struct siw_channel {
	struct siw_channel_plan plan;
	struct siw_channel_peer *peers;
	struct siw_channel_sums sums;
	struct siw_context *context;
	struct siw_pd *pd;
	struct siw_comp_channel *events;
	struct siw_cq *send_cq, *recv_cq;
	struct siw_qp *ud; /* NULL: no UD queue pair */
	struct siw_mr *mr; /* region with the pool's frames, then the UD receives */
	char *pool, *ud_slots;
	size_t stride; /* octets per frame and per receive */
	struct siw_channel_frame *frames;
	uint32_t free; /* first free frame */
	uint32_t *owed;
	uint32_t n_owed;
	struct siw_cm_channel *cm;
	struct siw_cm_id *listener;
	const uint16_t *cm_ports;
	uint32_t slots_used; /* connections, established or being set up */
	uint32_t empty;	     /* consecutive polls without a completion */
	uint32_t turns;
};

/* Head of a frame; head and payload are one message of UD or RC. */
struct siw_channel_head {
	uint32_t magic;
	uint16_t from, to;
	uint32_t seq;	 /* number of the frame, from 0; 0 in a separate acknowledgement */
	uint32_t ack;	 /* acknowledgement: the next frame that this sender expects */
	uint32_t length; /* octets of payload; 0: a separate acknowledgement */
	uint32_t unused;
	uint64_t left; /* octets of the message from this payload on */
};
_Static_assert(sizeof(struct siw_channel_head) == 32, "both ends are one program");

/*
 * ---- mpi_channel.c. All functions die with a reason on failure.
 *
 * Open a channel on the loopback device; *ud_port and *cm_port must be passed to the other ranks.
 */
void siw_channel_open(struct siw_channel *c, const struct siw_channel_plan *plan, uint16_t *ud_port,
		      uint16_t *cm_port);
/* Set all ranks' ports; the arrays must stay valid. Messages can be sent from now on. */
void siw_channel_meet(struct siw_channel *c, const uint16_t *ud_ports, const uint16_t *cm_ports);
/* Send size octets, at least 1; returns when they are copied. */
void siw_channel_send(struct siw_channel *c, uint32_t to, const char *data, uint64_t size);
/* Receive, acknowledge, and retransmit where necessary; sleeps if there is no work. */
void siw_channel_progress(struct siw_channel *c);
/* Whether all frames are acknowledged, and no connection is being set up. */
bool siw_channel_settled(const struct siw_channel *c);
/* Post a receive of UD (peer NULL) or of a connection. */
void siw_channel_post_recv(struct siw_channel *c, struct siw_channel_peer *peer, uint32_t slot);
/* Whether RC is used from now on: the connection exists, and all UD frames are acknowledged. */
bool siw_channel_over_rc(struct siw_channel_peer *peer);

/* ---- mpi_channel_rc.c */

void siw_channel_listen(struct siw_channel *c, uint16_t *port);
/* Request a connection to a peer, if the limit permits one more. */
void siw_channel_connect(struct siw_channel *c, struct siw_channel_peer *peer);
/* Connect to every peer, and wait until all connections are established. */
void siw_channel_connect_all(struct siw_channel *c);
/* Process pending connection events, waiting up to timeout_ms for them. */
void siw_channel_take_events(struct siw_channel *c, int timeout_ms);

#endif
