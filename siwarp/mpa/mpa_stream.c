/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* mpa/mpa_stream.c - opens and closes streams, and returns their properties. */
#include <errno.h>
#include <stdlib.h>

#include "base/settings.h"
#include "base/trim.h"
#include "llp/llp.h"
#include "mpa/mpa_stream.h"

/*
 * The number of streams, by which siw_trim_free_memory notices that many connections have ended,
 * each of which has freed buffers, and structs in all layers.
 */
static struct siw_trim_group streams;

static struct siw_mpa_stream *mpa_stream_new(enum siw_mpa_state state)
{
	struct siw_mpa_stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	stream->start = calloc(1, sizeof(*stream->start));
	if (!stream->start) {
		free(stream);
		return NULL;
	}
	stream->state = (uint8_t)state;
	stream->rx.strict = siw_settings()->crc_first != 0;
	siw_trim_group_note_added(&streams);
	return stream;
}

static void mpa_stream_free(struct siw_mpa_stream *stream)
{
	siw_mpa_tx_free(&stream->tx);
	siw_mpa_rx_free(&stream->rx);
	free(stream->start);
	free(stream);
	if (siw_trim_group_note_removed(&streams)) {
		siw_mpa_tx_free_pool();
		siw_mpa_rx_free_pools();
	}
}

int siw_mpa_accept_connection(struct siw_llp_sock *listener, struct siw_io_handler *handler,
			      struct siw_mpa_stream **out)
{
	struct siw_mpa_stream *stream = mpa_stream_new(SIW_MPA_ST_AWAIT_REQUEST);
	int rv;

	if (!stream)
		return -ENOMEM;
	rv = siw_llp_tcp_accept(listener, handler, &stream->sock);
	if (rv < 0) {
		mpa_stream_free(stream);
		return rv;
	}
	*out = stream;
	return 0;
}

/* Allocates a stream in initiator mode, without a socket. Returns 0, -EINVAL or -ENOMEM. */
static int stream_new_initiator(const struct siw_mpa_params *params, struct siw_mpa_stream **out)
{
	if (!siw_mpa_params_are_legal(params, false))
		return -EINVAL;
	*out = mpa_stream_new(SIW_MPA_ST_CONNECTING);
	if (!*out)
		return -ENOMEM;
	(*out)->start->mine = *params;
	return 0;
}

int siw_mpa_connect(struct siw_llp_poller *poller, const struct siw_addr *dest,
		    const struct siw_addr *source, const struct siw_mpa_params *params,
		    struct siw_io_handler *handler, struct siw_mpa_stream **out)
{
	struct siw_mpa_stream *stream;
	int rv = stream_new_initiator(params, &stream);

	if (rv < 0)
		return rv;
	rv = siw_llp_tcp_connect(poller, dest, source, handler, &stream->sock);
	if (rv < 0)
		mpa_stream_free(stream);
	else
		*out = stream;
	return rv;
}

int siw_mpa_connect_to_itself(struct siw_llp_poller *poller, const struct siw_addr *local,
			      const struct siw_mpa_params *params, struct siw_io_handler *handler,
			      struct siw_mpa_stream **out)
{
	struct siw_mpa_stream *stream;
	int rv = stream_new_initiator(params, &stream);

	if (rv < 0)
		return rv;
	stream->start->itself = true;
	rv = siw_llp_tcp_connect_to_itself(poller, local, handler, &stream->sock);
	if (rv < 0)
		mpa_stream_free(stream);
	else
		*out = stream;
	return rv;
}

struct siw_wire_err siw_mpa_get_error(const struct siw_mpa_stream *stream)
{
	return stream->error;
}

void siw_mpa_set_position_for_tests(struct siw_mpa_stream *stream, uint32_t octets)
{
	stream->tx.framed = stream->tx.accepted = octets;
	stream->rx.at = octets;
}

int siw_mpa_addrs(struct siw_mpa_stream *stream, struct siw_addr *local, struct siw_addr *peer)
{
	int rv = local ? siw_llp_local_addr(stream->sock, local) : 0;

	return rv < 0 || !peer ? rv : siw_llp_peer_addr(stream->sock, peer);
}

struct siw_llp_sock *siw_mpa_sock(const struct siw_mpa_stream *stream)
{
	return stream->sock;
}

bool siw_mpa_has_unconsumed_octets(const struct siw_mpa_stream *stream)
{
	return stream->rx.pos != stream->rx.end;
}

bool siw_mpa_is_crc_on(const struct siw_mpa_stream *stream)
{
	return atomic_load_explicit(&stream->crc_mode, memory_order_acquire) == SIW_MPA_CRC_ON;
}

int siw_mpa_shutdown(struct siw_mpa_stream *stream)
{
	if (stream->state == SIW_MPA_ST_ACCEPTING || stream->state == SIW_MPA_ST_REJECTING) {
		/* siw_mpa_startup() shuts down after the Reply is sent */
		stream->shutdown_wanted = true;
		return 0;
	}
	return siw_llp_tcp_shutdown(stream->sock);
}

void siw_mpa_close(struct siw_mpa_stream *stream, bool abort)
{
	if (!stream)
		return;
	if (abort)
		siw_llp_tcp_set_abortive_close(stream->sock);
	siw_llp_close(stream->sock);
	mpa_stream_free(stream);
}
