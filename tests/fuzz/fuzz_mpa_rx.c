/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Fuzzes FPDUs after a valid start-up, which are placed into buffers of exactly their size. */
#include "fuzz.h"
#include "mpa/mpa.h"

/* Result of reading the octets of each header; prevents the compiler from removing the reads. */
static unsigned int use;

static int fuzz_mpa_place_payload(struct siw_mpa_stream *stream, size_t skip, size_t len,
				  uint8_t pieces)
{
	uint8_t *memory = malloc(len + 1);
	struct iovec iov[3];
	size_t at = 0;
	int n = 0, r = 0;

	CHECK(memory);
	for (; n < 1 + pieces % 3; n++) {
		size_t now = n == pieces % 3 ? len - at : (len - at) / 2;

		iov[n] = (struct iovec){ memory + at, now };
		at += now;
	}
	for (int idle = 0; !r && idle < 4;) {
		r = pieces % 5 ? siw_mpa_rx_payload(stream, skip, iov, n)
			       : siw_mpa_rx_payload(stream, skip, NULL, 0);
		idle += !r && fuzz_input_exhausted();
	}
	free(memory);
	return r;
}

static int receive_one_fpdu(struct siw_mpa_stream *stream, uint8_t how)
{
	size_t head_len, len, skip;
	const uint8_t *head;
	bool whole;
	int r = siw_mpa_rx_fpdu(stream, &head, &head_len, &len, &whole);

	if (r != 1)
		return r;
	CHECK(len <= 65535 && head_len <= len && head_len >= (len < 64 ? len : 64));
	for (size_t i = 0; i < head_len; i++)
		use += head[i];
	skip = head_len < 18 ? head_len : how & 64 ? 14 : 18;
	return fuzz_mpa_place_payload(stream, skip, len - skip, (uint8_t)(use ^ how));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct siw_mpa_params peer, reply = { .ird = 1, .ord = 1 };
	struct siw_llp_sock *listener;
	struct siw_mpa_stream *stream;
	struct fuzz_input in;
	uint8_t request[64];
	size_t n = size ? fuzz_build_mpa_request(request, data[0]) : 0;

	if (!fuzz_input_init(data, size, request, n, &in))
		return 0;
	reply.markers = !!(in.flags & FUZZ_MARKERS);
	CHECK(siw_llp_tcp_listen(NULL, &fuzz_addr, 1, NULL, &listener) == 0);
	CHECK(siw_mpa_accept_connection(listener, NULL, &stream) == 0);
	CHECK(siw_mpa_startup(stream, &peer) == SIW_MPA_REQUEST);
	CHECK(siw_mpa_send_startup_reply(stream, &reply) == 0);
	for (int idle = 0; idle < 4;) {
		int r = receive_one_fpdu(stream, in.flags);

		if (r < 0)
			break;
		idle += !r && fuzz_input_exhausted();
	}
	siw_mpa_close(stream, false);
	siw_llp_close(listener);
	fuzz_input_free(&in);
	return 0;
}
