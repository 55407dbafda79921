/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Building and parsing of the frames in connect_sidr_wire.h. */
#include <endian.h>

#include "base/addr.h"
#include "base/capture.h"
#include "base/counters.h"
#include "base/crc32c.h"
#include "connect/connect_sidr_wire.h"

#define VERSION 1
#define MAX_QPN 0xfffffeu

static const uint8_t magic[4] = { 'S', 'I', 'W', 'U' };

struct wire {
	uint8_t magic[4];
	uint8_t version, type, status, data_len;
	uint64_t id, cookie;
	uint32_t qpn, qkey;
	uint8_t gid[16];
	uint8_t data[SIW_SIDR_DATA];
	uint8_t crc[4];
} __attribute__((packed));

_Static_assert(sizeof(struct wire) == SIW_SIDR_FRAME, "the size in the figure");

void siw_sidr_build_frame(const struct siw_sidr_frame *frame, uint8_t out[SIW_SIDR_FRAME])
{
	struct wire wire = {
		.version = VERSION,
		.type = frame->type,
		.status = frame->status,
		.data_len = frame->data_len,
		.id = htobe64(frame->id),
		.cookie = htobe64(frame->cookie),
		.qpn = htonl(frame->qpn),
		.qkey = htonl(frame->qkey),
	};

	memcpy(wire.magic, magic, sizeof(magic));
	if (frame->addr.family)
		siw_addr_to_gid(&frame->addr, wire.gid);
	memcpy(wire.data, frame->data, frame->data_len);
	siw_crc32c_put(wire.crc, siw_crc32c(0, &wire, offsetof(struct wire, crc)));
	memcpy(out, &wire, sizeof(wire));
}

uint64_t siw_sidr_query_id_of_icmp_quote(const uint8_t *in, size_t len)
{
	struct wire wire;

	_Static_assert(offsetof(struct wire, cookie) == SIW_SIDR_QUOTED,
		       "the quoted octets include the id");
	if (len < SIW_SIDR_QUOTED || memcmp(in, magic, sizeof(magic)) != 0)
		return 0;
	memcpy(&wire, in, SIW_SIDR_QUOTED);
	return be64toh(wire.id);
}

/* Returns whether each field has a value that is valid for the frame's type. */
static bool sidr_fields_valid(const struct siw_sidr_frame *frame)
{
	if (!frame->id)
		return false;
	switch (frame->type) {
	case SIW_SIDR_QUERY:
		return frame->data_len <= SIW_SIDR_DATA;
	case SIW_SIDR_ANSWER:
		return frame->data_len <= SIW_SIDR_ANSWER_DATA && frame->qpn &&
		       frame->qpn <= MAX_QPN && !siw_addr_is_group(&frame->addr);
	case SIW_SIDR_REFUSAL:
		return frame->data_len <= SIW_SIDR_ANSWER_DATA && frame->status;
	case SIW_SIDR_COOKIE:
		return frame->cookie && !frame->data_len;
	default:
		return false;
	}
}

bool siw_sidr_parse_frame(const uint8_t *in, size_t len, struct siw_sidr_frame *frame)
{
	struct wire wire;

	if (len != sizeof(wire))
		return siw_drop(SIW_COUNTER_drop_sidr_length);
	if (!siw_crc32c_ends(in, len))
		return siw_drop(SIW_COUNTER_drop_crc);
	memcpy(&wire, in, sizeof(wire));
	if (memcmp(wire.magic, magic, sizeof(magic)) != 0 || wire.version != VERSION)
		return siw_drop(SIW_COUNTER_drop_sidr_version);
	*frame = (struct siw_sidr_frame){
		.type = wire.type,
		.status = wire.status,
		.data_len = wire.data_len,
		.id = be64toh(wire.id),
		.cookie = be64toh(wire.cookie),
		.qpn = ntohl(wire.qpn),
		.qkey = ntohl(wire.qkey),
		.addr = siw_addr_of_gid(wire.gid),
	};
	if (!sidr_fields_valid(frame))
		return siw_drop(SIW_COUNTER_drop_sidr_field);
	memcpy(frame->data, wire.data, frame->data_len);
	return true;
}
