/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* mpa/mpa_stream.c - listeners and streams: made, asked, closed. */
#include <errno.h>
#include <stdlib.h>

#include "base/settings.h"
#include "llp/llp.h"
#include "mpa/mpa_stream.h"

struct siw_mpa_listener {
	struct siw_llp_sock *sock;
};

int siw_mpa_listen(struct siw_llp_port *port, const struct siw_addr *local, int backlog,
		   void *token, struct siw_mpa_listener **out)
{
	struct siw_mpa_listener *listener = calloc(1, sizeof(*listener));
	int rv;

	if (!listener)
		return -ENOMEM;
	rv = siw_llp_tcp_listen(port, local, backlog, token, &listener->sock);
	if (rv < 0) {
		free(listener);
		return rv;
	}
	*out = listener;
	return 0;
}

int siw_mpa_listener_addr(struct siw_mpa_listener *listener, struct siw_addr *out)
{
	return siw_llp_local(listener->sock, out);
}

void siw_mpa_listener_hold(struct siw_mpa_listener *listener, bool hold)
{
	if (hold)
		siw_llp_hold(listener->sock);
	else
		siw_llp_again(listener->sock);
}

void siw_mpa_listener_close(struct siw_mpa_listener *listener)
{
	if (!listener)
		return;
	siw_llp_close(listener->sock);
	free(listener);
}

static struct siw_mpa_stream *stream_new(enum siw_mpa_state state)
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
	stream->rx.strict = siw_settings()->strict != 0;
	return stream;
}

static void stream_free(struct siw_mpa_stream *stream)
{
	siw_mpa_tx_free(&stream->tx);
	siw_mpa_rx_free(&stream->rx);
	free(stream->start);
	free(stream);
}

int siw_mpa_accept(struct siw_mpa_listener *listener, void *token, struct siw_mpa_stream **out)
{
	struct siw_mpa_stream *stream = stream_new(SIW_MPA_ST_AWAIT_REQUEST);
	int rv;

	if (!stream)
		return -ENOMEM;
	rv = siw_llp_tcp_accept(listener->sock, token, &stream->sock);
	if (rv < 0) {
		stream_free(stream);
		return rv;
	}
	*out = stream;
	return 0;
}

int siw_mpa_connect(struct siw_llp_port *port, const struct siw_addr *dest,
		    const struct siw_addr *source, const struct siw_mpa_params *params, void *token,
		    struct siw_mpa_stream **out)
{
	struct siw_mpa_stream *stream;
	int rv;

	if (!siw_mpa_params_legal(params, false))
		return -EINVAL;
	stream = stream_new(SIW_MPA_ST_CONNECTING);
	if (!stream)
		return -ENOMEM;
	stream->start->mine = *params;
	rv = siw_llp_tcp_connect(port, dest, source, token, &stream->sock);
	if (rv < 0) {
		stream_free(stream);
		return rv;
	}
	*out = stream;
	return 0;
}

struct siw_wire_err siw_mpa_error(const struct siw_mpa_stream *stream)
{
	return stream->error;
}

void siw_mpa_test_set_position(struct siw_mpa_stream *stream, uint32_t octets)
{
	stream->tx.pos_in = stream->tx.pos_out = octets;
	stream->rx.at = octets;
}

int siw_mpa_addrs(struct siw_mpa_stream *stream, struct siw_addr *local, struct siw_addr *peer)
{
	int rv = local ? siw_llp_local(stream->sock, local) : 0;

	return rv < 0 || !peer ? rv : siw_llp_peer(stream->sock, peer);
}

void siw_mpa_set_token(struct siw_mpa_stream *stream, void *token)
{
	siw_llp_set_token(stream->sock, token);
}

void siw_mpa_again(struct siw_mpa_stream *stream)
{
	siw_llp_again(stream->sock);
}

bool siw_mpa_gone(struct siw_mpa_stream *stream)
{
	return siw_llp_tcp_gone(stream->sock);
}

bool siw_mpa_staged(const struct siw_mpa_stream *stream)
{
	return stream->rx.pos != stream->rx.end;
}

void siw_mpa_hold(struct siw_mpa_stream *stream)
{
	siw_llp_hold(stream->sock);
}

bool siw_mpa_crc_on(const struct siw_mpa_stream *stream)
{
	return __atomic_load_n(&stream->crc_mode, __ATOMIC_ACQUIRE) == SIW_MPA_CRC_ON;
}

int siw_mpa_shutdown(struct siw_mpa_stream *stream)
{
	if (stream->state == SIW_MPA_ST_ACCEPTING || stream->state == SIW_MPA_ST_REJECTING) {
		stream->shutdown_wanted = true; /* behind the Reply */
		return 0;
	}
	return siw_llp_tcp_shutdown(stream->sock);
}

void siw_mpa_close(struct siw_mpa_stream *stream, bool abort)
{
	if (!stream)
		return;
	if (abort)
		siw_llp_tcp_abort(stream->sock);
	siw_llp_close(stream->sock);
	stream_free(stream);
}
