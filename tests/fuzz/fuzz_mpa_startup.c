/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Fuzzes start-up frames, in both roles, followed by a few FPDUs. */
#include "fuzz.h"
#include "mpa/mpa.h"

static struct siw_mpa_stream *open_mpa_stream(const struct fuzz_input *in,
					      struct siw_llp_sock **listener)
{
	struct siw_mpa_params params = { .rev = in->flags & FUZZ_OWN ? 1 : 2,
					 .crc = in->flags & FUZZ_CRC,
					 .markers = !!(in->flags & FUZZ_MARKERS) };
	struct siw_mpa_stream *stream;

	if (!(in->flags & FUZZ_INITIATOR)) {
		CHECK(siw_llp_tcp_listen(NULL, &fuzz_addr, 1, NULL, listener) == 0);
		CHECK(siw_mpa_accept_connection(*listener, NULL, &stream) == 0);
		return stream;
	}
	params.enhanced = params.rev == 2;
	params.p2p = params.enhanced && in->flags & FUZZ_REFUSE;
	params.rtr = params.p2p ? 7 : 0;
	CHECK(siw_mpa_connect(NULL, &fuzz_addr, NULL, &params, NULL, &stream) == 0);
	return stream;
}

static void fuzz_mpa_check_params(const struct siw_mpa_params *peer)
{
	CHECK(peer->pdata_len <= 512 && peer->rev <= 2);
	CHECK(peer->ird <= 0x3fff && peer->ord <= 0x3fff && peer->rtr <= 7);
}

/* Returns whether the start-up succeeded, so that FPDUs may follow. */
static bool complete_mpa_startup(struct siw_mpa_stream *stream, const struct fuzz_input *in)
{
	struct siw_mpa_params peer, reply = { .crc = in->flags & FUZZ_CRC, .ird = 1, .ord = 1 };

	for (int idle = 0; idle < 4;) {
		int r = siw_mpa_startup(stream, &peer);

		if (r < 0 || r == SIW_MPA_REJECTED)
			return false;
		if (r == SIW_MPA_STARTING) {
			idle += fuzz_input_exhausted();
			continue;
		}
		fuzz_mpa_check_params(&peer);
		if (r == SIW_MPA_REPLY)
			return true;
		reply.rejected = !!(in->flags & FUZZ_REFUSE);
		reply.markers = !reply.rejected && in->flags & FUZZ_MARKERS;
		reply.rtr = peer.rtr & -peer.rtr;
		r = siw_mpa_send_startup_reply(stream, &reply);
		CHECK(r == 0 || r == -EINVAL);
		return r == 0 && !reply.rejected;
	}
	return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct siw_llp_sock *listener = NULL;
	struct siw_mpa_stream *stream;
	size_t head_len, len;
	const uint8_t *head;
	struct fuzz_input in;
	bool whole;

	if (!fuzz_input_init(data, size, NULL, 0, &in))
		return 0;
	stream = open_mpa_stream(&in, &listener);
	if (complete_mpa_startup(stream, &in))
		for (int i = 0;
		     i < 16 && siw_mpa_rx_fpdu(stream, &head, &head_len, &len, &whole) == 1; i++)
			if (siw_mpa_rx_payload(stream, 0, NULL, 0) != 1)
				break;
	siw_mpa_close(stream, false);
	if (listener)
		siw_llp_close(listener);
	fuzz_input_free(&in);
	return 0;
}
