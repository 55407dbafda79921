/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * lab/mpi/mpi_channel.h - a channel that carries messages between ranks as an MPI library would:
 * over UD only, over RC only, or over both: UD first, and RC for peers to which many frames are
 * sent, up to a limit of connections.
 *
 * A message is split into frames of up to SIW_CHANNEL_PAYLOAD octets. At most SIW_CHANNEL_WINDOW
 * unacknowledged frames are in flight to a peer. Acknowledgements count frames; acknowledgements
 * are piggybacked on frames of the other direction, and sent separately if there are no such
 * frames. Over RC, acknowledgements are credits. Over UD, a frame that is not acknowledged in time
 * is retransmitted together with all later frames, and a receiver accepts frames only in order. A
 * pair switches to RC when the connection is established and all frames sent over UD are
 * acknowledged, and never switches back.
 *
 * Memory is limited: frames to send are allocated from one pool for all peers, receives of UD from
 * one pool, and a connection has two windows of receives: one for frames, and one for
 * acknowledgements, each of which confirms at least one frame.
 *
 * No wait is unlimited: the program ends with an error if a peer acknowledges nothing for
 * patience_ms, or if a connection fails.
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
	uint64_t size;	/* length of the longest message, in octets */
	uint32_t limit; /* maximum number of connections of a rank; 0: UD only */
	/*
	 * number of frames over UD to a peer before a connection is requested; if it is 0 and limit
	 * is not, UD is not used, and message_channel_connect_all_peers() connects to every peer
	 */
	uint32_t threshold;
	uint32_t patience_ms;
	uint32_t spins; /* polls without result before the rank sleeps */
	/*
	 * Called with each piece of a message, in order: length is the number of octets of the
	 * piece; left is the number of octets of the message from the beginning of the piece.
	 */
	void (*deliver)(void *arg, uint32_t from, const char *data, uint32_t length, uint64_t left);
	void *arg;
};

enum siw_channel_rc { CHANNEL_RC_NONE, CHANNEL_RC_CONNECTING, CHANNEL_RC_UP };

struct siw_channel_peer {
	uint32_t rank;
	/* numbers of frames to the peer: the next frame, and the first unacknowledged frame */
	uint32_t next_seq, acked;
	/* numbers of frames from the peer: the next frame, and the last acknowledgement sent */
	uint32_t expected, told;
	uint32_t first, last; /* list of unacknowledged frames to the peer, oldest first */
	uint64_t left;	      /* remaining octets of the incomplete message from the peer */
	uint64_t news_ns;     /* time since which the peer has acknowledged nothing */
	uint64_t sent_ns;     /* time of the last send of an unacknowledged frame */
	uint64_t rto_ns;
	uint32_t by_ud;	 /* number of frames sent to the peer over UD */
	uint32_t try_at; /* a connection is requested when by_ud reaches this number */
	bool owed;	 /* the peer waits for an acknowledgement */
	bool again;	 /* the last acknowledgement to the peer may have been lost */
	struct siw_ah *ah;
	enum siw_channel_rc rc;
	bool over_rc; /* no further frame to the peer is sent over UD */
	/* frames from the peer arrived over RC: the acknowledgement must be sent over RC, too */
	bool from_rc;
	struct siw_cm_id *id;
	struct siw_qp *qp;
	struct siw_mr *mr;
	char *slots;
};

/* A frame to send; the octets of the frame are in the pool. */
struct siw_channel_frame {
	uint32_t next;	 /* next frame of the same peer, or next free frame */
	uint32_t posted; /* number of posts of the frame without a completion */
	uint32_t length; /* length of the frame in octets, including the header */
	uint32_t to;
	bool acked;
};

struct siw_channel_stats {
	uint64_t by_ud, by_rc; /* frames sent, without retransmissions */
	uint64_t again;	       /* frames retransmitted */
	uint64_t strange;      /* received frames that are not valid frames of a peer */
	uint32_t connections;
	uint32_t refused; /* connection requests rejected because the peer had reached the limit */
};

struct siw_channel {
	struct siw_channel_plan plan;
	struct siw_channel_peer *peers;
	struct siw_channel_stats sums;
	struct siw_context *context;
	struct siw_pd *pd;
	struct siw_comp_channel *events;
	struct siw_cq *send_cq, *recv_cq;
	struct siw_qp *ud; /* the UD queue pair; NULL: there is none */
	struct siw_mr *mr; /* region of the frame pool, followed by the UD receive buffers */
	char *pool, *ud_slots;
	size_t stride; /* size of a frame and of a receive buffer, in octets */
	struct siw_channel_frame *frames;
	uint32_t free; /* index of the first free frame */
	uint32_t *owed;
	uint32_t n_owed;
	struct siw_cm_channel *cm;
	struct siw_cm_id *listener;
	const uint16_t *cm_ports;
	uint32_t slots_used; /* number of connections that are established or in progress */
	uint32_t empty;	     /* number of consecutive polls without result */
	uint32_t turns;
};

/* Header of a frame; header and payload are one message of UD or RC. */
struct siw_channel_head {
	uint32_t magic;
	uint16_t from, to;
	uint32_t seq;	 /* number of the frame, from 0; in a separate acknowledgement: 0 */
	uint32_t ack;	 /* number of the next frame that the sender of this frame expects */
	uint32_t length; /* octets of payload; 0: a separate acknowledgement */
	uint32_t unused;
	uint64_t left; /* remaining octets of the message, including this payload */
};
_Static_assert(sizeof(struct siw_channel_head) == 32, "both sides run the same program");

/*
 * ---- mpi_channel.c. All functions exit with an error message if an operation fails.
 *
 * Opens a channel on the loopback device; the other ranks need *ud_port and *cm_port.
 */
void message_channel_open(struct siw_channel *c, const struct siw_channel_plan *plan,
			  uint16_t *ud_port, uint16_t *cm_port);
/* Sets the ports of all ranks; the arrays must stay valid. Afterwards messages can be sent. */
void message_channel_store_ports_of_peers(struct siw_channel *c, const uint16_t *ud_ports,
					  const uint16_t *cm_ports);
/* Sends a message of at least 1 octet to a rank; returns when the octets have been copied. */
void message_channel_send_message(struct siw_channel *c, uint32_t to, const char *data,
				  uint64_t size);
/* Handles received frames, acknowledges, retransmits; sleeps if there is nothing to do. */
void message_channel_make_progress(struct siw_channel *c);
/*
 * Returns whether each peer has acknowledged all frames, no acknowledgement to a peer is pending,
 * and no connection is in progress.
 */
bool message_channel_is_idle(const struct siw_channel *c);
/* Posts the receive with the number slot: of UD (peer NULL) or of the connection to a peer. */
void message_channel_post_recv(struct siw_channel *c, struct siw_channel_peer *peer, uint32_t slot);
/*
 * Returns whether frames to the peer use RC. They do as soon as the peer is connected and has
 * acknowledged all frames sent over UD, and from then on.
 */
bool message_channel_switch_to_rc(struct siw_channel_peer *peer);

/* ---- mpi_channel_rc.c */

void message_channel_listen(struct siw_channel *c, uint16_t *port);
/* Requests a connection to a peer, unless this rank has its maximum of connections. */
void message_channel_start_connecting_to_peer(struct siw_channel *c, struct siw_channel_peer *peer);
/* Connects to every peer, and waits until all connections are established. */
void message_channel_connect_all_peers(struct siw_channel *c);
/* Handles pending connection events; waits up to timeout_ms for the first event. */
void message_channel_handle_cm_events(struct siw_channel *c, int timeout_ms);

#endif
