/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpa/mpa_marker.c - inserts Markers into an FPDU that is sent, and checks the Markers of a
 * received FPDU (RFC 5044 sections 4.2, 4.3). These functions take octets and stream positions;
 * mpa_tx.c and mpa_rx.c own the buffers.
 */
#include <errno.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/guard.h"
#include "mpa/mpa_stream.h"

/*
 * The position in the send buffer and in the stream at which the next octet of an FPDU is written.
 */
struct cursor {
	uint8_t *to;
	/* stream positions of the next octet (at) and of the FPDU's length field (first) */
	uint32_t at, first;
};

static void write_marker(struct cursor *c, uint32_t fpduptr)
{
	struct siw_mpa_marker *marker = (struct siw_mpa_marker *)c->to;

	siw_mpa_put_be16(marker->reserved, 0);
	siw_mpa_put_be16(marker->fpduptr, fpduptr);
	c->to += sizeof(*marker);
	c->at += sizeof(*marker);
}

/* RFC5044-4.3-03, -08. FPDUPTR is also correct when stream positions wrap (RFC5044-4.3-04). */
static void write_marker_if_due(struct cursor *c)
{
	if (!siw_mpa_octets_to_marker(c->at))
		write_marker(c, c->at - c->first);
}

/* Copies len octets with Markers between them. Returns 0, or -EFAULT if from is not mapped. */
static int copy_with_markers(struct cursor *c, const uint8_t *from, size_t len)
{
	while (len) {
		uint32_t now;

		write_marker_if_due(c);
		now = siw_mpa_octets_to_marker(c->at);
		if (!now)
			now = SIW_MPA_MARKER_SPACING;
		if (now > len)
			now = (uint32_t)len;
		if (siw_guard_read(c->to, from, now))
			return -EFAULT;
		from += now;
		c->to += now;
		c->at += now;
		len -= now;
	}
	return 0;
}

int siw_mpa_write_fpdu_with_markers(uint8_t *to, uint32_t at, const void *head, size_t head_len,
				    const struct iovec *payload, int n, uint32_t ulpdu, bool crc)
{
	static const uint8_t zeros[SIW_MPA_CRC_OCTETS];
	uint8_t length[SIW_MPA_LEN_OCTETS];
	struct cursor c = { .to = to, .at = at };

	if (!siw_mpa_octets_to_marker(at)) /* RFC5044-4.3-09 */
		write_marker(&c, 0);
	c.first = c.at;
	siw_mpa_put_be16(length, ulpdu);
	memcpy(c.to, length, sizeof(length));
	c.to += sizeof(length);
	c.at += sizeof(length);
	copy_with_markers(&c, head, head_len);
	for (int i = 0; i < n; i++)
		if (copy_with_markers(&c, payload[i].iov_base, payload[i].iov_len))
			return -EFAULT;
	copy_with_markers(&c, zeros, siw_mpa_pad(ulpdu));
	write_marker_if_due(&c);
	if (crc) /* the CRC covers the Markers (RFC5044-4.4-11) */
		siw_crc32c_put(c.to, siw_crc32c(0, to, (size_t)(c.to - to)));
	else
		memcpy(c.to, zeros, SIW_MPA_CRC_OCTETS);
	return 0;
}

bool siw_mpa_markers_valid(const uint8_t *octets, uint32_t at, uint32_t marked_len)
{
	uint32_t i = siw_mpa_octets_to_marker(at), first = i ? 0 : SIW_MPA_MARKER_OCTETS;

	for (; i < marked_len; i += SIW_MPA_MARKER_SPACING) {
		const struct siw_mpa_marker *marker = (const struct siw_mpa_marker *)(octets + i);
		uint32_t want = i < first ? 0 : i - first;

		if ((siw_mpa_be16(marker->fpduptr) & SIW_MPA_PTR_MASK) != want)
			return false;
	}
	return true;
}
