/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The private data by which two RC queue pairs that connect by GID and QPN know each other, in
 * network order (spec/rc-pairing.md):
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
#include "qp/qp_pair.h"

#define VERSION 1

static const uint8_t magic[4] = { 'S', 'I', 'W', 'P' };

struct frame {
	uint8_t magic[4];
	uint8_t version, rnr_retry;
	uint16_t features;
	uint32_t from_qpn, to_qpn;
	uint8_t from_gid[16], to_gid[16];
};

_Static_assert(sizeof(struct frame) == 48, "as the figure has it");

static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

/* An IPv4 address as an IPv4-mapped one (RFC 4291 section 2.5.5.2). */
static void gid_of(const struct siw_addr *addr, uint8_t gid[16])
{
	if (addr->family == AF_INET6) {
		memcpy(gid, addr->v6, 16);
		return;
	}
	memcpy(gid, mapped, 12);
	memcpy(gid + 12, addr->v4, 4);
}

static struct siw_addr addr_of(const uint8_t gid[16])
{
	struct siw_addr addr = { .family = AF_INET6 };

	if (memcmp(gid, mapped, 12) == 0) {
		addr.family = AF_INET;
		memcpy(addr.v4, gid + 12, 4);
	} else {
		memcpy(addr.v6, gid, 16);
	}
	return addr;
}

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
	gid_of(&hello->from.addr, frame.from_gid);
	gid_of(&hello->to.addr, frame.to_gid);
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
	hello->from = (struct siw_pair_id){ addr_of(frame.from_gid), ntohl(frame.from_qpn) };
	hello->to = (struct siw_pair_id){ addr_of(frame.to_gid), ntohl(frame.to_qpn) };
	return 0;
}

static int compare(const struct siw_pair_id *a, const struct siw_pair_id *b)
{
	uint8_t gid_a[16], gid_b[16];
	int order;

	gid_of(&a->addr, gid_a);
	gid_of(&b->addr, gid_b);
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
