/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fuzzes frames of UD resolution (spec/cm-udp.md). If bit 0 of the first octet is set, the harness
 * inserts the correct CRC, which a fuzzer does not find by itself.
 */
#include "base/crc32c.h"
#include "fuzz.h"
#include "connect/connect_sidr_wire.h"

static void fuzz_sidr_check_frame(const struct siw_sidr_frame *frame)
{
	uint8_t again[SIW_SIDR_FRAME];
	struct siw_sidr_frame same;

	CHECK(frame->id && frame->type >= SIW_SIDR_QUERY && frame->type <= SIW_SIDR_COOKIE);
	CHECK(frame->data_len <= SIW_SIDR_DATA);
	CHECK(frame->type == SIW_SIDR_QUERY || frame->data_len <= SIW_SIDR_ANSWER_DATA);
	CHECK(frame->type != SIW_SIDR_ANSWER || (frame->qpn && frame->qpn < 0xffffff));
	siw_sidr_build_frame(frame, again);
	CHECK(siw_sidr_parse_frame(again, sizeof(again), &same));
	CHECK(same.id == frame->id && same.cookie == frame->cookie && same.qpn == frame->qpn);
	CHECK(same.data_len == frame->data_len &&
	      memcmp(same.data, frame->data, frame->data_len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct siw_sidr_frame frame;
	uint8_t *octets;

	if (!size)
		return 0;
	/*
	 * The copy is allocated with exactly this size, so that a sanitizer detects an access past
	 * the end.
	 */
	octets = malloc(size - 1 ? size - 1 : 1);
	CHECK(octets);
	memcpy(octets, data + 1, size - 1);
	if (data[0] & 1 && size - 1 == SIW_SIDR_FRAME)
		siw_crc32c_put(octets + SIW_SIDR_FRAME - 4,
			       siw_crc32c(0, octets, SIW_SIDR_FRAME - 4));
	CHECK(size - 1 >= SIW_SIDR_QUOTED || !siw_sidr_query_id_of_icmp_quote(octets, size - 1));
	if (siw_sidr_parse_frame(octets, size - 1, &frame)) {
		CHECK(size - 1 == SIW_SIDR_FRAME);
		CHECK(siw_sidr_query_id_of_icmp_quote(octets, SIW_SIDR_QUOTED) == frame.id);
		fuzz_sidr_check_frame(&frame);
	}
	free(octets);
	return 0;
}
