/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpa/mpa_startup.c - connection start-up (RFC 5044 section 7.1, RFC 6581), driven by a table of
 * (state, event).
 *
 * Each state has an observer, which examines the TCP socket and returns an event. The upper layer
 * triggers the events ACCEPT and REJECT by its reply. The table gives the action for an event and
 * the next state; nothing else changes the state. Time-outs (RFC5044-7.1.2-16, -20) are enforced by
 * the caller.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/counters.h"
#include "llp/llp.h"
#include "mpa/mpa_stream.h"

struct cell {
	uint8_t action, next;
};

/* clang-format off */
#define ROW(state)	   [SIW_MPA_ST_##state]
#define ON(event, act, to) [SIW_MPA_EV_##event] = {SIW_MPA_ACT_##act, SIW_MPA_ST_##to}

/*
 * The table of start-up: the action and the next state for each state and event. Cells that are not
 * listed are ILLEGAL.
 */
static const struct cell table[SIW_MPA_N_STATES][SIW_MPA_N_EVENTS] = {
	ROW(CONNECTING) = {
		ON(CONNECTED, SEND_REQUEST, SENDING_REQUEST),
		ON(ITSELF, GIVE_OWN, FULL),
		ON(LOST, FAIL, FAILED),
	},
	ROW(SENDING_REQUEST) = {
		ON(SENT, WAIT, AWAIT_REPLY),
		ON(LOST, FAIL, FAILED),
	},
	ROW(AWAIT_REPLY) = {
		ON(REPLY, GIVE_REPLY, FULL),
		ON(REPLY_NO, GIVE_REJECT, REJECTED),
		ON(REPLY_OTHER, GIVE_MISMATCH, TERMINATING),
		ON(BAD_FRAME, FAIL, FAILED),
		ON(LOST, FAIL, FAILED),
	},
	ROW(AWAIT_REQUEST) = {
		ON(REQUEST, GIVE_REQUEST, ANSWERING),
		ON(UNABLE, REFUSE, FAILED),
		ON(BAD_FRAME, FAIL, FAILED),
		ON(LOST, FAIL, FAILED),
	},
	ROW(ANSWERING) = {
		ON(ACCEPT, SEND_ACCEPT, ACCEPTING),
		ON(REJECT, SEND_REJECT, REJECTING),
		ON(LOST, FAIL, FAILED),
	},
	ROW(ACCEPTING) = {
		ON(SENT, ENTER_FULL, FULL),
		ON(LOST, FAIL, FAILED),
	},
	ROW(REJECTING) = {
		ON(SENT, WAIT, REJECTED),
		ON(LOST, FAIL, FAILED),
	},
};
/* clang-format on */

int siw_mpa_startup_table_cell_for_tests(int state, int event)
{
	if (state < 0 || state >= SIW_MPA_N_STATES || event < 0 || event >= SIW_MPA_N_EVENTS)
		return -1;
	return table[state][event].action << 8 | table[state][event].next;
}

int siw_mpa_startup_state_for_tests(const struct siw_mpa_stream *stream)
{
	return stream->state;
}

int siw_mpa_store_error(struct siw_mpa_stream *stream, enum siw_mpa_ecode code, int rv)
{
	stream->error = (struct siw_wire_err){ SIW_LAYER_LLP, 0, (uint8_t)code };
	return rv;
}

/* ---- actions: each returns one of enum siw_mpa_startup, or -errno ---------------------------- */

static int action_refuse_illegal_event(struct siw_mpa_stream *stream)
{
	(void)stream;
	return -EINVAL;
}

static int action_wait_in_startup(struct siw_mpa_stream *stream)
{
	(void)stream;
	return SIW_MPA_STARTING;
}

static void build_startup_frame(struct siw_mpa_stream *stream, bool reply)
{
	struct siw_mpa_start *start = stream->start;

	start->out_len = siw_mpa_startup_frame_build(start->out, &start->mine, reply);
	start->out_sent = 0;
}

static int action_send_request(struct siw_mpa_stream *stream)
{
	build_startup_frame(stream, false);
	return SIW_MPA_STARTING;
}

static int action_return_request_event(struct siw_mpa_stream *stream)
{
	(void)stream;
	return SIW_MPA_REQUEST;
}

/*
 * Answers a Request of revision 0 with a rejecting Reply of revision 1 and an orderly close (RFC
 * 5044 annex C.2.1), so that the peer receives the reason.
 */
static int action_send_rejecting_reply_and_fail(struct siw_mpa_stream *stream)
{
	struct siw_mpa_start *start = stream->start;
	const struct siw_mpa_params *peer = &start->peer;

	start->mine = (struct siw_mpa_params){ .rev = 1, .crc = peer->crc, .rejected = 1 };
	build_startup_frame(stream, true);
	siw_count(SIW_COUNTER_rejects, 1);
	siw_mpa_send_startup_frame(
		stream); /* the only attempt: a part that TCP does not accept now is lost */
	stream->rx.dead = -EPROTO;
	return siw_mpa_store_error(stream, SIW_MPA_BAD_FRAME, -EPROTO);
}

/* Sets the use of CRCs and Markers as negotiated by both frames. */
static void set_negotiated_modes(struct siw_mpa_stream *stream)
{
	const struct siw_mpa_start *start = stream->start;
	/* RFC5044-7.1.1-10, -11 */
	uint8_t mode = start->mine.crc || start->peer.crc ? SIW_MPA_CRC_ON : SIW_MPA_CRC_OFF;

	/* RFC5044-7.1.1-06 to -09: an end's M flag applies to what that end receives. */
	stream->tx.markers = start->peer.markers;
	stream->rx.markers = start->mine.markers;
	stream->rx.strict |= start->mine.markers;
	atomic_store_explicit(&stream->crc_mode, mode, memory_order_release);
}

static int action_report_received_reply(struct siw_mpa_stream *stream)
{
	set_negotiated_modes(stream);
	siw_mpa_open_tx(stream);
	return SIW_MPA_REPLY;
}

/*
 * Reports a stream's own parameters as the peer's, for a stream that is its own peer and exchanges
 * no frames.
 */
static int action_report_own_params_as_reply(struct siw_mpa_stream *stream)
{
	stream->start->peer = stream->start->mine;
	return action_report_received_reply(stream);
}

static int action_report_rejection(struct siw_mpa_stream *stream)
{
	stream->rx.dead = -ENOTCONN;
	return SIW_MPA_REJECTED;
}

/*
 * Opens the stream for sending, but not for receiving, because RFC6581-9.2-10 requires a Terminate,
 * which is sent in an FPDU.
 */
static int action_report_rtr_mismatch(struct siw_mpa_stream *stream)
{
	set_negotiated_modes(stream);
	siw_mpa_open_tx(stream);
	stream->rx.dead = -EPROTO;
	return siw_mpa_store_error(stream, SIW_MPA_NO_RTR_MATCH, -EPROTO);
}

static int action_send_accepting_reply(struct siw_mpa_stream *stream)
{
	build_startup_frame(stream, true);
	set_negotiated_modes(stream);
	return SIW_MPA_STARTING;
}

static int action_send_rejecting_reply(struct siw_mpa_stream *stream)
{
	build_startup_frame(stream, true);
	stream->rx.dead = -ENOTCONN;
	return SIW_MPA_STARTING;
}

/*
 * Enters full operation after the Reply was sent. FPDUs must wait for the peer's first FPDU
 * (RFC5044-7.1.2-11), which has rarely arrived by now.
 */
static int startup_enter_full_operation(struct siw_mpa_stream *stream)
{
	if (stream->rx.fpdu_received)
		siw_mpa_open_tx(stream);
	return SIW_MPA_STARTING;
}

static int startup_store_failure(struct siw_mpa_stream *stream)
{
	struct siw_mpa_start *start = stream->start;

	stream->rx.dead = start->lost ? start->lost : -EPROTO;
	return siw_mpa_store_error(stream, start->lost ? SIW_MPA_CLOSED : SIW_MPA_BAD_FRAME,
				   stream->rx.dead);
}

static int (*const actions[])(struct siw_mpa_stream *) = {
	[SIW_MPA_ACT_ILLEGAL] = action_refuse_illegal_event,
	[SIW_MPA_ACT_SEND_REQUEST] = action_send_request,
	[SIW_MPA_ACT_WAIT] = action_wait_in_startup,
	[SIW_MPA_ACT_GIVE_REQUEST] = action_return_request_event,
	[SIW_MPA_ACT_REFUSE] = action_send_rejecting_reply_and_fail,
	[SIW_MPA_ACT_GIVE_REPLY] = action_report_received_reply,
	[SIW_MPA_ACT_GIVE_REJECT] = action_report_rejection,
	[SIW_MPA_ACT_GIVE_MISMATCH] = action_report_rtr_mismatch,
	[SIW_MPA_ACT_SEND_ACCEPT] = action_send_accepting_reply,
	[SIW_MPA_ACT_SEND_REJECT] = action_send_rejecting_reply,
	[SIW_MPA_ACT_ENTER_FULL] = startup_enter_full_operation,
	[SIW_MPA_ACT_FAIL] = startup_store_failure,
	[SIW_MPA_ACT_GIVE_OWN] = action_report_own_params_as_reply,
};

int siw_mpa_startup_transition(struct siw_mpa_stream *stream, enum siw_mpa_event event)
{
	const struct cell *cell = &table[stream->state][event];

	if (cell->action != SIW_MPA_ACT_ILLEGAL)
		stream->state = cell->next;
	return actions[cell->action](stream);
}

/* ---- observers: each returns an event, or NOTHING -------------------------------------------- */

#define NOTHING (-1)

static int note_connection_loss_in_startup(struct siw_mpa_stream *stream, int rv)
{
	stream->start->lost = rv;
	return SIW_MPA_EV_LOST;
}

static int startup_event_of_tcp_connect_result(struct siw_mpa_stream *stream)
{
	int rv = siw_llp_tcp_connect_result(stream->sock);

	if (rv == 0)
		return stream->start->itself ? SIW_MPA_EV_ITSELF : SIW_MPA_EV_CONNECTED;
	return rv == -EAGAIN ? NOTHING : note_connection_loss_in_startup(stream, rv);
}

static int continue_frame_transmission(struct siw_mpa_stream *stream)
{
	struct siw_mpa_start *start = stream->start;

	while (start->out_sent < start->out_len) {
		struct iovec iov = { start->out + start->out_sent,
				     start->out_len - start->out_sent };
		ssize_t n = siw_llp_tcp_sendv(stream->sock, &iov, 1);

		if (n == -EAGAIN)
			return NOTHING;
		if (n < 0)
			return note_connection_loss_in_startup(stream, (int)n);
		start->out_sent += (uint32_t)n;
	}
	siw_llp_update_want_write(stream->sock, false);
	return SIW_MPA_EV_SENT;
}

/*
 * Reads the start-up frame and not one octet more, so that FPDUs after it stay in the socket.
 * Returns 1 if the frame is complete, 0 if octets are missing, -EPROTO if it is invalid, or -errno
 * if TCP failed.
 */
static int read_startup_frame(struct siw_mpa_stream *stream, bool reply)
{
	struct siw_mpa_start *start = stream->start;

	/*
	 * Reading a start-up frame usually takes two iterations, for the header and the private
	 * data; more if TCP delivers single octets.
	 */
	for (uint32_t turn = 0; turn <= SIW_MPA_MAX_FRAME; turn++) {
		int missing = siw_mpa_startup_frame_missing_octets(start->in, start->in_len, reply);
		struct iovec iov = { start->in + start->in_len, (size_t)missing };
		ssize_t n;

		if (missing <= 0)
			return missing ? missing : 1;
		n = siw_llp_tcp_recvv(stream->sock, &iov, 1);
		if (n <= 0)
			return n == 0 ? -ECONNRESET : n == -EAGAIN ? 0 : (int)n;
		start->in_len += (uint32_t)n;
	}
	return 0;
}

static int startup_event_of_request_frame(struct siw_mpa_stream *stream)
{
	struct siw_mpa_params *peer = &stream->start->peer;
	int rv = read_startup_frame(stream, false);

	if (rv == 0)
		return NOTHING;
	if (rv < 0)
		return rv == -EPROTO ? SIW_MPA_EV_BAD_FRAME
				     : note_connection_loss_in_startup(stream, rv);
	if (siw_mpa_startup_frame_parse(stream->start->in, false, peer) < 0 || peer->rev > 2)
		return SIW_MPA_EV_BAD_FRAME; /* RFC5044-7.1.1-16 */
	peer->rejected = 0; /* the R flag has no meaning in a Request (RFC 5044 section 7.1.1) */
	if (peer->rev == 0)
		return SIW_MPA_EV_UNABLE;
	return SIW_MPA_EV_REQUEST;
}

/*
 * Selects the RTR message that this end sends, among those that both ends support. The initiator
 * may select any of them (RFC 6581 section 1.1).
 */
static uint8_t mpa_choose_rtr(uint8_t both)
{
	/*
	 * A Write requires nothing from the peer. A Read requires IRD, and an empty Send may use a
	 * receive buffer.
	 */
	if (both & SIW_MPA_RTR_WRITE)
		return SIW_MPA_RTR_WRITE;
	return both & SIW_MPA_RTR_READ ? SIW_MPA_RTR_READ : both & SIW_MPA_RTR_FPDU;
}

static int check_reply_matches_request(struct siw_mpa_stream *stream)
{
	const struct siw_mpa_params *mine = &stream->start->mine;
	struct siw_mpa_params *peer = &stream->start->peer;

	if (siw_mpa_startup_frame_parse(stream->start->in, true, peer) < 0)
		return SIW_MPA_EV_BAD_FRAME;
	if (peer->rejected)
		return SIW_MPA_EV_REPLY_NO;
	if (peer->rev != mine->rev) /* RFC5044-7.1.1-16 */
		return SIW_MPA_EV_BAD_FRAME;
	if (peer->enhanced != mine->enhanced) /* RFC6581-10-05, -06 */
		return SIW_MPA_EV_BAD_FRAME;
	if (peer->p2p != mine->p2p) /* RFC6581-9.2-04, -13 */
		return SIW_MPA_EV_REPLY_OTHER;
	if (peer->p2p) {
		peer->rtr = mpa_choose_rtr(peer->rtr & mine->rtr);
		if (!peer->rtr) /* RFC6581-9.2-10 */
			return SIW_MPA_EV_REPLY_OTHER;
	}
	return SIW_MPA_EV_REPLY;
}

static int startup_event_of_reply_frame(struct siw_mpa_stream *stream)
{
	int rv = read_startup_frame(stream, true);

	if (rv == 0)
		return NOTHING;
	if (rv < 0)
		return rv == -EPROTO ? SIW_MPA_EV_BAD_FRAME
				     : note_connection_loss_in_startup(stream, rv);
	return check_reply_matches_request(stream);
}

/*
 * Observes a stream while upper layers decide about the Request: checks whether the connection is
 * still up, and stores the octets that the peer sends.
 */
static int startup_observe_while_answering(struct siw_mpa_stream *stream)
{
	int rv = siw_mpa_store_early_octets(stream);

	/* the buffer is full: from now on only the connection's end is reported */
	if (rv == -ENOBUFS)
		siw_llp_sock_pause(stream->sock);
	if (rv > 0 || rv == -EAGAIN || rv == -ENOBUFS)
		return NOTHING;
	return note_connection_loss_in_startup(stream, rv == -ENOTCONN ? -ECONNRESET : rv);
}

static int (*const observers[SIW_MPA_N_STATES])(struct siw_mpa_stream *) = {
	ROW(CONNECTING) = startup_event_of_tcp_connect_result,
	ROW(SENDING_REQUEST) = continue_frame_transmission,
	ROW(AWAIT_REPLY) = startup_event_of_reply_frame,
	ROW(AWAIT_REQUEST) = startup_event_of_request_frame,
	ROW(ANSWERING) = startup_observe_while_answering,
	ROW(ACCEPTING) = continue_frame_transmission,
	ROW(REJECTING) = continue_frame_transmission,
};

/* Frees the start-up state once start-up is complete. */
static void free_startup_state(struct siw_mpa_stream *stream)
{
	if (stream->state < SIW_MPA_ST_FULL)
		return;
	free(stream->start);
	stream->start = NULL;
}

int siw_mpa_startup(struct siw_mpa_stream *stream, struct siw_mpa_params *peer)
{
	int rv = SIW_MPA_STARTING;

	if (!stream->start && stream->state != SIW_MPA_ST_FULL)
		return stream->rx.dead;
	/* The longest path through the states, from CONNECTING to FULL, takes four events. */
	for (int i = 0; i < 4 && rv == SIW_MPA_STARTING && stream->start; i++) {
		int event = observers[stream->state](stream);

		if (event == NOTHING)
			break;
		rv = siw_mpa_startup_transition(stream, (enum siw_mpa_event)event);
		if (rv > 0)
			*peer = stream->start->peer;
		free_startup_state(stream);
	}
	if (stream->shutdown_wanted && !stream->start) {
		stream->shutdown_wanted = false;
		siw_llp_tcp_shutdown(stream->sock);
	}
	return rv;
}

int siw_mpa_send_startup_frame(struct siw_mpa_stream *stream)
{
	struct siw_mpa_params unused;
	int rv;

	if (stream->state != SIW_MPA_ST_ACCEPTING && stream->state != SIW_MPA_ST_REJECTING) {
		/*
		 * After action_send_rejecting_reply_and_fail() the state is FAILED, but the
		 * rejecting Reply may still have to be sent.
		 */
		if (stream->start && stream->start->out_sent < stream->start->out_len)
			continue_frame_transmission(stream);
		return 0;
	}
	rv = siw_mpa_startup(stream, &unused);
	return rv < 0 ? rv : 0;
}

/* ---- calls of the upper layer ---------------------------------------------------------------- */

/*
 * Adapts the Reply to the Request: it has the same revision and format (RFC6581-10-05, -06) and the
 * same connection model (RFC6581-9.2-04, -13), and contains 0x3fff where the Request did
 * (RFC6581-9.1-11, -13). The Reply announces siwarp only to a peer that has announced itself, so
 * that any other initiator sees the reserved bits as zero.
 */
static void adapt_reply_to_request(struct siw_mpa_params *mine, const struct siw_mpa_params *peer)
{
	mine->rev = peer->rev;
	mine->enhanced = peer->enhanced;
	mine->p2p = peer->p2p;
	if (!(peer->features & SIW_MPA_SIWARP))
		mine->features = 0;
	if (!peer->p2p)
		mine->rtr = 0;
	else if (mine->rejected && !mine->rtr)
		mine->rtr = peer->rtr ? peer->rtr : SIW_MPA_RTR_WRITE;
	if (!peer->enhanced)
		mine->ird = mine->ord = 0;
	else if (peer->ord == SIW_MPA_MAX_IRD)
		mine->ird = SIW_MPA_MAX_IRD;
	if (peer->enhanced && peer->ird == SIW_MPA_MAX_IRD)
		mine->ord = SIW_MPA_MAX_IRD;
}

int siw_mpa_send_startup_reply(struct siw_mpa_stream *stream, const struct siw_mpa_params *params)
{
	struct siw_mpa_params mine = *params;
	int rv;

	if (stream->state == SIW_MPA_ST_FAILED)
		return stream->rx.dead;
	if (stream->state != SIW_MPA_ST_ANSWERING)
		return -EINVAL;
	adapt_reply_to_request(&mine, &stream->start->peer);
	if (!siw_mpa_params_are_legal(&mine, true))
		return -EINVAL;
	stream->start->mine = mine;
	rv = siw_mpa_startup_transition(stream,
					mine.rejected ? SIW_MPA_EV_REJECT : SIW_MPA_EV_ACCEPT);
	return rv < 0 ? rv : siw_mpa_send_startup_frame(stream);
}
