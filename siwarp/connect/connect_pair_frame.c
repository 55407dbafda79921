/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The private data by which two RC queue pairs that connect by GID and QPN identify each other, in
 * network byte order (spec/rc-pairing.md):
 *
 *    0                   1                   2                   3
 *    0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                        "SIWP" (magic)                         |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |    version    |   rnr_retry   |           features            |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                       the sender's QPN                        |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                      the receiver's QPN                       |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                 the sender's GID (16 octets)                  |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 *   |                the receiver's GID (16 octets)                 |
 *   +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
 */
#include <errno.h>

#include "base/addr.h"
#include "connect/connect_pair.h"

#define VERSION 1

static const uint8_t magic[4] = { 'S', 'I', 'W', 'P' };

struct frame {
	uint8_t magic[4];
	uint8_t version, rnr_retry;
	uint16_t features;
	uint32_t from_qpn, to_qpn;
	uint8_t from_gid[16], to_gid[16];
};

_Static_assert(sizeof(struct frame) == 48, "the size in the figure");

uint16_t siw_pair_hello_build(uint8_t *out, const struct siw_pair_hello *hello)
{
	struct frame frame = {
		.version = VERSION,
		.rnr_retry = hello->rnr_retry,
		.features = htons((uint16_t)hello->features),
		.from_qpn = htonl(hello->from.qpn),
		.to_qpn = htonl(hello->to.qpn),
	};

	memcpy(frame.magic, magic, sizeof(magic));
	siw_addr_to_gid(&hello->from.addr, frame.from_gid);
	siw_addr_to_gid(&hello->to.addr, frame.to_gid);
	memcpy(out, &frame, sizeof(frame));
	return sizeof(frame);
}

int siw_pair_hello_parse(const uint8_t *in, size_t len, struct siw_pair_hello *hello)
{
	struct frame frame;

	if (len != sizeof(frame))
		return -EPROTO;
	memcpy(&frame, in, sizeof(frame));
	if (memcmp(frame.magic, magic, sizeof(magic)) || frame.version != VERSION)
		return -EPROTO;
	hello->features = ntohs(frame.features);
	hello->rnr_retry = frame.rnr_retry;
	hello->from =
		(struct siw_pair_id){ siw_addr_of_gid(frame.from_gid), ntohl(frame.from_qpn) };
	hello->to = (struct siw_pair_id){ siw_addr_of_gid(frame.to_gid), ntohl(frame.to_qpn) };
	return 0;
}

static int compare(const struct siw_pair_id *a, const struct siw_pair_id *b)
{
	uint8_t gid_a[16], gid_b[16];
	int order;

	siw_addr_to_gid(&a->addr, gid_a);
	siw_addr_to_gid(&b->addr, gid_b);
	order = memcmp(gid_a, gid_b, sizeof(gid_a));
	return order ? order : (a->qpn > b->qpn) - (a->qpn < b->qpn);
}

bool siw_pair_same(const struct siw_pair_id *a, const struct siw_pair_id *b)
{
	return compare(a, b) == 0;
}

bool siw_pair_before(const struct siw_pair_id *a, const struct siw_pair_id *b)
{
	return compare(a, b) < 0;
}
