/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Fuzzes the peer's Terminate Message, and the headers that it quotes. */
#include "fuzz.h"
#include "rdmap/rdmap_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct siw_rdmap_event event = { 0 };
	struct siw_ddp_seg seg;
	/*
	 * The copy is allocated with exactly this size, so that a sanitizer detects an access past
	 * the end.
	 */
	uint8_t *octets = malloc(size ? size : 1);

	CHECK(octets);
	memcpy(octets, data, size);
	siw_rdmap_terminate_parse(octets, size, &event);
	CHECK(event.kind == SIW_RDMAP_TERMINATED);
	CHECK(event.err.layer < 16 && event.err.type < 16);
	if (siw_ddp_parse_quoted_header(octets, size, &seg))
		CHECK(seg.seg_len == size && seg.payload + seg.head_len == size);
	free(octets);
	return 0;
}
