/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpa/mpa_rx.c - receives FPDUs (RFC 5044 sections 4.4, 6). FPDUs are located by their length
 * fields; the CRC of each is checked.
 *
 * Small FPDUs are read many at a time into a staging buffer, checked there, and then copied to
 * their destination. Of a large FPDU the first octets are staged, and the rest is read directly to
 * its destination. That read also stages a few octets after the payload: the trailer and the next
 * header. A direct read never covers the payload of two FPDUs, because only the header determines
 * the destination of the second one.
 *
 * A direct read places payload before its CRC is checked, which deviates from RFC5044-6-01. The
 * setting crc_first avoids this. In both cases an FPDU is reported as received only after the
 * check.
 *
 * With Markers every FPDU is completely staged, its CRC and its Markers are checked, and the
 * payload between them is copied to its destination.
 *
 * When nothing is staged, the staging buffer is passed to the next stream that receives
 * (mpa_spare.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/counters.h"
#include "base/crc32c.h"
#include "base/settings.h"
#include "base/guard.h"
#include "llp/llp.h"
#include "mpa/mpa_spare.h"
#include "mpa/mpa_stream.h"

#define STAGING_OCTETS (64u << 10)
/*
 * The largest FPDU has 2 + 65535 + 3 + 4 octets; a buffer of this size holds nearly two such FPDUs.
 */
#define STRICT_OCTETS (128u << 10)
/* FPDUs up to this size are staged completely and checked before they are placed. */
#define WHOLE_OCTETS 8192u
/*
 * During a bulk transfer, the read at an FPDU's end stages at most this many octets, because staged
 * octets are copied twice.
 */
#define BULK_OCTETS 4096u
#define HEAD_OCTETS 64u
/*
 * A peer may keep sending while siw_mpa_read_and_discard discards octets; siw_mpa_read_and_discard
 * stops after this many octets.
 */
#define DRAIN_OCTETS (256u << 20)
/*
 * Octets that a peer sends before it has received the Reply are stored up to this size; the rest
 * stays in TCP's receive buffer.
 */
#define EARLY_OCTETS 4096u
#define DEST_IOVS    64

/* Pools of staging buffers: of STAGING_OCTETS each, and of STRICT_OCTETS each. */
static struct siw_mpa_spares stagings[2];

void siw_mpa_rx_free_pools(void)
{
	siw_mpa_pool_free(&stagings[0]);
	siw_mpa_pool_free(&stagings[1]);
}

void siw_mpa_rx_free(struct siw_mpa_rx *rx)
{
	free(rx->buf);
}

/*
 * Relaxed order suffices: start-up stores crc_mode under the progress lock, which the caller holds.
 */
static bool is_crc_on(const struct siw_mpa_stream *stream)
{
	return atomic_load_explicit(&stream->crc_mode, memory_order_relaxed) == SIW_MPA_CRC_ON;
}

static uint32_t staged_octets(const struct siw_mpa_rx *rx)
{
	return rx->end - rx->pos;
}

static int end_rx_with_error(struct siw_mpa_stream *stream, enum siw_mpa_ecode code, int rv)
{
	stream->rx.dead = rv;
	return siw_mpa_store_error(stream, code, rv);
}

/*
 * Allocates the staging buffer of a stream that has none, or enlarges it after Markers were
 * negotiated.
 */
static bool staging_allocate_or_enlarge(struct siw_mpa_rx *rx, uint32_t cap)
{
	uint8_t *buf = rx->buf ? NULL : siw_mpa_pool_get(&stagings[cap == STRICT_OCTETS]);

	if (!buf)
		buf = realloc(rx->buf, cap);
	if (!buf)
		return false;
	rx->buf = buf;
	rx->cap = cap;
	return true;
}

/* Returns the staging buffer to the pool when nothing is staged and nothing has arrived. */
static void staging_return_to_pool(struct siw_mpa_rx *rx)
{
	if (!rx->buf)
		return;
	siw_mpa_pool_put(&stagings[rx->cap == STRICT_OCTETS], rx->buf);
	rx->buf = NULL;
	rx->cap = rx->pos = rx->end = 0;
}

/*
 * Makes room in the staging buffer for at least `want` octets after the staged ones. There is
 * always room for the rest of one FPDU.
 */
static int staging_make_room(struct siw_mpa_rx *rx, uint32_t want)
{
	uint32_t cap = rx->strict ? STRICT_OCTETS : STAGING_OCTETS;

	if (rx->cap < cap && !staging_allocate_or_enlarge(rx, cap))
		return -ENOMEM;
	if (rx->pos == rx->end) {
		rx->pos = rx->end = 0;
	} else if (rx->cap - rx->end < want) {
		memmove(rx->buf, rx->buf + rx->pos, staged_octets(rx));
		rx->end -= rx->pos;
		rx->pos = 0;
	}
	return rx->cap > rx->end ? 0 : -ENOBUFS;
}

/*
 * Reads once into the staging buffer, up to limit octets. Sets rx->dry if the socket has no more
 * octets.
 */
static int staging_read_from_socket(struct siw_mpa_stream *stream, uint32_t want, uint32_t limit)
{
	struct siw_mpa_rx *rx = &stream->rx;
	int rv = staging_make_room(rx, want);
	struct iovec iov;
	ssize_t n;

	if (rv < 0)
		return rv;
	iov.iov_base = rx->buf + rx->end;
	iov.iov_len = rx->cap - rx->end < limit ? rx->cap - rx->end : limit;
	n = siw_llp_tcp_recvv(stream->sock, &iov, 1);
	if (n <= 0)
		return n == 0 ? -ENOTCONN : (int)n;
	rx->end += (uint32_t)n;
	rx->dry = (size_t)n < iov.iov_len;
	return (int)n;
}

int siw_mpa_store_early_octets(struct siw_mpa_stream *stream)
{
	uint32_t here = staged_octets(&stream->rx);

	return here < EARLY_OCTETS ? staging_read_from_socket(stream, 1, EARLY_OCTETS - here)
				   : -ENOBUFS;
}

/*
 * Converts the error of a read: returns 0 if there was nothing to read. middle: the read was within
 * an FPDU, so that the end of the stream is an error.
 */
static int convert_read_error(struct siw_mpa_stream *stream, int rv, bool middle)
{
	if (rv == -EAGAIN)
		return 0;
	if (rv == -ENOTCONN && middle)
		rv = -ECONNRESET;
	return end_rx_with_error(
		stream, rv == -EFAULT || rv == -ENOMEM ? SIW_MPA_CATASTROPHIC : SIW_MPA_CLOSED, rv);
}

/*
 * Returns whether the last read returned all octets that the socket had, all of which are handled
 * now. Then the caller returns 0 without another read, which would find nothing.
 */
static bool consume_socket_empty_flag(struct siw_mpa_stream *stream)
{
	bool dry = stream->rx.dry;

	stream->rx.dry = false;
	if (dry)
		siw_llp_sock_note_all_handled(stream->sock);
	return dry;
}

/*
 * Called when a valid FPDU has arrived. From now on a responder may send (RFC5044-7.1.2-11), as
 * soon as its Reply is sent.
 */
static void note_valid_fpdu(struct siw_mpa_stream *stream)
{
	stream->rx.fpdu_received = true;
	if (!siw_mpa_tx_is_open(stream) && !stream->start)
		siw_mpa_open_tx(stream);
}

static bool is_fpdu_crc_valid(struct siw_mpa_stream *stream, uint32_t crc, const uint8_t *trailer)
{
	if (!is_crc_on(stream)) /* RFC5044-4.1-03 */
		return true;
	if (crc == siw_crc32c_get(trailer))
		return true;
	siw_count(SIW_COUNTER_crc_errors, 1);
	return false;
}

/* ---- locating the next FPDU ------------------------------------------------------------------ */

/* Returns the octets of a Marker directly before the next FPDU, or 0 if there is none. */
static uint32_t leading_marker_octets(const struct siw_mpa_rx *rx)
{
	return siw_mpa_octets_to_marker(rx->at) ? 0 : SIW_MPA_MARKER_OCTETS;
}

static uint32_t octets_to_stage_with_markers(const struct siw_mpa_rx *rx)
{
	uint32_t head = leading_marker_octets(rx) + SIW_MPA_LEN_OCTETS;

	if (staged_octets(rx) < head)
		return head;
	return siw_mpa_fpdu_len_with_markers(
		rx->at,
		siw_mpa_fpdu_len(siw_mpa_be16(rx->buf + rx->pos + head - SIW_MPA_LEN_OCTETS)));
}

/* Returns the octets that must be staged before the header of the next FPDU is reported. */
static uint32_t octets_to_stage(const struct siw_mpa_rx *rx)
{
	uint32_t len;

	if (rx->markers)
		return octets_to_stage_with_markers(rx);
	if (staged_octets(rx) < SIW_MPA_LEN_OCTETS)
		return SIW_MPA_LEN_OCTETS;
	len = siw_mpa_fpdu_len(siw_mpa_be16(rx->buf + rx->pos));
	if (rx->strict || len <= WHOLE_OCTETS)
		return len;
	return SIW_MPA_LEN_OCTETS + HEAD_OCTETS;
}

static int stage_fpdu_head(struct siw_mpa_stream *stream)
{
	struct siw_mpa_rx *rx = &stream->rx;

	/* The loop ends, because each iteration reads octets of this FPDU, or returns. */
	for (;;) {
		uint32_t want = octets_to_stage(rx);
		int rv;

		if (staged_octets(rx) >= want)
			return 1;
		if (consume_socket_empty_flag(stream))
			return 0;
		rv = staging_read_from_socket(stream, want - staged_octets(rx),
					      rx->bulk && !rx->strict ? BULK_OCTETS
								      : STRICT_OCTETS);
		if (rv < 0)
			return convert_read_error(stream, rv, staged_octets(rx) > 0);
	}
}

static int check_whole_fpdu(struct siw_mpa_stream *stream, uint32_t len)
{
	struct siw_mpa_rx *rx = &stream->rx;
	const uint8_t *at = rx->buf + rx->pos;
	uint32_t crc = 0, covered = len - SIW_MPA_CRC_OCTETS;

	if (is_crc_on(stream))
		crc = siw_crc32c(0, at, covered);
	if (!is_fpdu_crc_valid(stream, crc, at + covered))
		return end_rx_with_error(stream, SIW_MPA_CRC, -EBADMSG);
	note_valid_fpdu(stream);
	return 1;
}

static int stage_received_fpdu_without_markers(struct siw_mpa_stream *stream)
{
	struct siw_mpa_rx *rx = &stream->rx;
	int rv = stage_fpdu_head(stream);
	uint32_t len;

	if (rv <= 0)
		return rv;
	rx->ulpdu_len = siw_mpa_be16(rx->buf + rx->pos);
	len = siw_mpa_fpdu_len(rx->ulpdu_len);
	rx->bulk = len > WHOLE_OCTETS;
	rx->whole = staged_octets(rx) >= len;
	return rx->whole ? check_whole_fpdu(stream, len) : 1;
}

/*
 * Called when an FPDU with Markers is complete and its checks have passed. Skips a Marker before
 * the FPDU. If a Marker lies within the header, moves the octets before the Marker so that they
 * directly precede the octets after it, and the header is contiguous.
 */
static void skip_markers_of_fpdu(struct siw_mpa_rx *rx, uint32_t marked_len)
{
	uint32_t lead = leading_marker_octets(rx), gap = siw_mpa_octets_to_marker(rx->at + lead);

	rx->pos += lead;
	rx->left = marked_len - lead;
	rx->gap = gap;
	if (gap < SIW_MPA_LEN_OCTETS + HEAD_OCTETS && gap < rx->left) {
		memmove(rx->buf + rx->pos + SIW_MPA_MARKER_OCTETS, rx->buf + rx->pos, gap);
		rx->pos += SIW_MPA_MARKER_OCTETS;
		rx->left -= SIW_MPA_MARKER_OCTETS;
		rx->gap += SIW_MPA_MARKER_APART;
	}
	rx->at += marked_len;
}

static __attribute__((noinline)) int stage_received_fpdu_with_markers(struct siw_mpa_stream *stream)
{
	struct siw_mpa_rx *rx = &stream->rx;
	int rv = stage_fpdu_head(stream);
	uint32_t len;

	if (rv <= 0)
		return rv;
	len = octets_to_stage_with_markers(rx);
	rx->ulpdu_len = siw_mpa_be16(rx->buf + rx->pos + leading_marker_octets(rx));
	rv = check_whole_fpdu(stream, len);
	if (rv < 0)
		return rv;
	if (!siw_mpa_markers_valid(rx->buf + rx->pos, rx->at, len))
		return end_rx_with_error(stream, SIW_MPA_MARKER, -EPROTO);
	rx->whole = true;
	skip_markers_of_fpdu(rx, len);
	return 1;
}

int siw_mpa_rx_fpdu(struct siw_mpa_stream *stream, const uint8_t **head, size_t *head_len,
		    size_t *ulpdu_len, bool *whole)
{
	struct siw_mpa_rx *rx = &stream->rx;
	uint32_t here;
	int rv;

	if (rx->dead)
		return rx->dead;
	if (stream->start) { /* start-up is in progress, or the Reply is not sent completely */
		rv = siw_mpa_send_startup_frame(stream);
		if (rv < 0)
			return rv;
		if (stream->state < SIW_MPA_ST_ACCEPTING)
			return -EINVAL;
	}
	if (rx->placing)
		return -EBUSY;
	if (!rx->have) {
		rv = rx->markers ? stage_received_fpdu_with_markers(stream)
				 : stage_received_fpdu_without_markers(stream);
		if (!rv && !staged_octets(rx))
			staging_return_to_pool(rx);
		if (rv <= 0)
			return rv;
		rx->have = true;
	}
	here = (rx->markers && rx->gap < rx->left ? rx->gap : staged_octets(rx)) -
	       SIW_MPA_LEN_OCTETS;
	*head = rx->buf + rx->pos + SIW_MPA_LEN_OCTETS;
	*head_len = here < rx->ulpdu_len ? here : rx->ulpdu_len;
	*ulpdu_len = rx->ulpdu_len;
	*whole = rx->whole;
	return 1;
}

bool siw_mpa_rx_peek_already_read_fpdu(const struct siw_mpa_stream *stream, const uint8_t **ulpdu,
				       size_t *ulpdu_len)
{
	const struct siw_mpa_rx *rx = &stream->rx;
	uint32_t len;

	if (rx->have || rx->dead || rx->markers || staged_octets(rx) < SIW_MPA_LEN_OCTETS)
		return false;
	len = siw_mpa_be16(rx->buf + rx->pos);
	*ulpdu = rx->buf + rx->pos + SIW_MPA_LEN_OCTETS;
	*ulpdu_len = len;
	return staged_octets(rx) >= siw_mpa_fpdu_len(len);
}

/* ---- placing the payload --------------------------------------------------------------------- */

/*
 * Copies len octets to dest, starting at dest's octet `at`, and adds them to *crc unless crc is
 * NULL. Without dest the octets are dropped. Returns 0 or -EFAULT.
 */
static int scatter_with_crc(const struct iovec *dest, int n, size_t at, const uint8_t *src,
			    size_t len, uint32_t *crc)
{
	if (n == 0 && crc)
		*crc = siw_crc32c(*crc, src, len);
	for (int i = 0; i < n && len; i++) {
		size_t room = dest[i].iov_len, now;
		uint8_t *to = (uint8_t *)dest[i].iov_base + at;

		if (at >= room) {
			at -= room;
			continue;
		}
		now = room - at < len ? room - at : len;
		if (crc ? siw_guard_crc_write(crc, to, src, now) : siw_guard_write(to, src, now))
			return -EFAULT;
		src += now;
		len -= now;
		at = 0;
	}
	return 0;
}

/*
 * Stores in out the part of dest that follows its first `at` octets. Returns the number of iovecs;
 * *len is set to their total length in octets.
 */
static int remaining_dest_iovecs(const struct iovec *dest, int n, size_t at, struct iovec *out,
				 int max, size_t *len)
{
	int used = 0;

	*len = 0;
	for (int i = 0; i < n && used < max; i++) {
		if (at >= dest[i].iov_len) {
			at -= dest[i].iov_len;
			continue;
		}
		out[used] =
			(struct iovec){ (uint8_t *)dest[i].iov_base + at, dest[i].iov_len - at };
		*len += out[used++].iov_len;
		at = 0;
	}
	return used;
}

static int finish_received_fpdu(struct siw_mpa_rx *rx, uint32_t consumed)
{
	rx->pos += consumed;
	rx->have = rx->whole = rx->placing = false;
	return 1;
}

/* Begins an FPDU that is only partly staged: adds the FPDU's header to the CRC. */
static void begin_partly_received_fpdu(struct siw_mpa_stream *stream, size_t skip)
{
	struct siw_mpa_rx *rx = &stream->rx;
	uint32_t head = SIW_MPA_LEN_OCTETS + (uint32_t)skip;

	rx->crc = 0;
	if (is_crc_on(stream))
		rx->crc = siw_crc32c(0, rx->buf + rx->pos, head);
	rx->pos += head;
	rx->done = (uint32_t)skip;
	rx->placing = true;
}

/* Copies staged payload to the payload's destination. Returns 0 or -EFAULT. */
static int place_staged_payload(struct siw_mpa_stream *stream, size_t skip,
				const struct iovec *dest, int n)
{
	struct siw_mpa_rx *rx = &stream->rx;
	uint32_t now = rx->ulpdu_len - rx->done;

	if (now > staged_octets(rx))
		now = staged_octets(rx);
	if (!now)
		return 0;
	if (scatter_with_crc(dest, n, rx->done - skip, rx->buf + rx->pos, now,
			     is_crc_on(stream) ? &rx->crc : NULL))
		return -EFAULT;
	rx->pos += now;
	rx->done += now;
	return 0;
}

/*
 * Reads the rest of the payload to its destination and the octets after it into staging, in one
 * system call. The CRC is computed immediately, while the octets are in the cache. Returns the
 * octets read, or an error as staging_read_from_socket() does.
 */
static int read_payload_to_dest(struct siw_mpa_stream *stream, size_t skip,
				const struct iovec *dest, int n)
{
	struct siw_mpa_rx *rx = &stream->rx;
	struct iovec iov[DEST_IOVS + 1];
	uint32_t rest = rx->ulpdu_len - rx->done;
	size_t direct, asked;
	int used = remaining_dest_iovecs(dest, n, rx->done - skip, iov, DEST_IOVS, &direct);
	ssize_t got;

	/* No staged octets are left: place_staged_payload() has copied all that have arrived. */
	rx->pos = rx->end = 0;
	asked = direct;
	if (direct == rest) {
		/*
		 * if direct < rest, dest has more than DEST_IOVS pieces left, and another read
		 * follows
		 */
		iov[used++] = (struct iovec){ rx->buf, BULK_OCTETS };
		asked += BULK_OCTETS;
	}
	got = siw_llp_tcp_recvv(stream->sock, iov, used);
	if (got <= 0)
		return got == 0 ? -ENOTCONN : (int)got;
	rx->dry = (size_t)got < asked;
	if ((size_t)got > direct)
		rx->end = (uint32_t)((size_t)got - direct);
	else
		direct = (size_t)got;
	if (is_crc_on(stream)) {
		size_t left = direct;

		for (int i = 0; left; i++) {
			size_t now = iov[i].iov_len < left ? iov[i].iov_len : left;

			/*
			 * The destination memory was mapped when the kernel wrote it, but may be
			 * unmapped by now.
			 */
			if (siw_guard_crc(&rx->crc, iov[i].iov_base, now))
				return -EFAULT;
			left -= now;
		}
	}
	rx->done += (uint32_t)direct;
	return (int)got;
}

/*
 * Checks the CRC once all payload is placed. Returns 1, 0 if pad and CRC have not arrived, or
 * -EBADMSG.
 */
static int check_fpdu_trailer(struct siw_mpa_stream *stream)
{
	struct siw_mpa_rx *rx = &stream->rx;
	uint32_t pad = siw_mpa_pad(rx->ulpdu_len), len = pad + SIW_MPA_CRC_OCTETS;
	const uint8_t *at = rx->buf + rx->pos;

	if (staged_octets(rx) < len)
		return 0;
	if (is_crc_on(stream))
		rx->crc = siw_crc32c(rx->crc, at, pad);
	if (!is_fpdu_crc_valid(stream, rx->crc, at + pad))
		return end_rx_with_error(stream, SIW_MPA_CRC, -EBADMSG);
	note_valid_fpdu(stream);
	return finish_received_fpdu(rx, len);
}

static bool dest_has_length(const struct iovec *dest, int n, size_t want)
{
	size_t have = 0;

	if (n == 0)
		return dest == NULL || want == 0;
	for (int i = 0; i < n; i++)
		have += dest[i].iov_len;
	return have == want;
}

static int place_payload_of_staged_fpdu(struct siw_mpa_stream *stream, size_t skip,
					const struct iovec *dest, int n)
{
	struct siw_mpa_rx *rx = &stream->rx;
	const uint8_t *at = rx->buf + rx->pos + SIW_MPA_LEN_OCTETS + skip;

	if (scatter_with_crc(dest, n, 0, at, rx->ulpdu_len - skip, NULL))
		return end_rx_with_error(stream, SIW_MPA_CATASTROPHIC, -EFAULT);
	return finish_received_fpdu(rx, siw_mpa_fpdu_len(rx->ulpdu_len));
}

/* Places the payload of an FPDU with Markers; otherwise like place_payload_of_staged_fpdu(). */
static __attribute__((noinline)) int place_payload_with_markers(struct siw_mpa_stream *stream,
								size_t skip,
								const struct iovec *dest, int n)
{
	struct siw_mpa_rx *rx = &stream->rx;
	const uint8_t *from = rx->buf + rx->pos;
	uint32_t gap = rx->gap, off = SIW_MPA_LEN_OCTETS + (uint32_t)skip;
	uint32_t len = rx->ulpdu_len - (uint32_t)skip, done = 0;

	while (off > gap) {
		from += gap + SIW_MPA_MARKER_OCTETS;
		off -= gap;
		gap = SIW_MPA_MARKER_APART;
	}
	from += off;
	gap -= off;
	while (done < len) {
		uint32_t now = len - done < gap ? len - done : gap;

		if (scatter_with_crc(dest, n, done, from, now, NULL))
			return end_rx_with_error(stream, SIW_MPA_CATASTROPHIC, -EFAULT);
		done += now;
		from += now + SIW_MPA_MARKER_OCTETS;
		gap = SIW_MPA_MARKER_APART;
	}
	return finish_received_fpdu(rx, rx->left);
}

int siw_mpa_rx_payload(struct siw_mpa_stream *stream, size_t skip, const struct iovec *dest, int n)
{
	struct siw_mpa_rx *rx = &stream->rx;

	if (rx->dead)
		return rx->dead;
	if (!rx->have || skip > rx->ulpdu_len || !dest_has_length(dest, n, rx->ulpdu_len - skip))
		return -EINVAL;
	if (rx->whole)
		return rx->markers ? place_payload_with_markers(stream, skip, dest, n)
				   : place_payload_of_staged_fpdu(stream, skip, dest, n);
	if (!rx->placing) {
		if (SIW_MPA_LEN_OCTETS + skip > staged_octets(rx))
			return -EINVAL;
		begin_partly_received_fpdu(stream, skip);
	}
	/* The loop ends, because each iteration consumes octets of this FPDU, or returns. */
	for (;;) {
		int rv;

		if (place_staged_payload(stream, skip, dest, n))
			return end_rx_with_error(stream, SIW_MPA_CATASTROPHIC, -EFAULT);
		if (rx->done == rx->ulpdu_len) {
			rv = check_fpdu_trailer(stream);
			if (rv)
				return rv;
		}
		if (consume_socket_empty_flag(stream))
			return 0;
		if (rx->done < rx->ulpdu_len && n > 0)
			rv = read_payload_to_dest(stream, skip, dest, n);
		else
			rv = staging_read_from_socket(stream, SIW_MPA_MAX_TRAILER, BULK_OCTETS);
		if (rv < 0)
			return convert_read_error(stream, rv, true);
	}
}

/* ---- draining the stream --------------------------------------------------------------------- */

int siw_mpa_read_and_discard(struct siw_mpa_stream *stream)
{
	struct siw_mpa_rx *rx = &stream->rx;

	if (stream->start)
		siw_mpa_send_startup_frame(stream);
	rx->have = rx->whole = rx->placing = false;
	/*
	 * The number of reads is bounded, to give other sockets a turn. The handler of a socket
	 * that still has octets is called again.
	 */
	for (int i = 0; i < 64; i++) {
		int rv;

		rx->pos = rx->end = 0;
		rv = staging_read_from_socket(stream, 1, STAGING_OCTETS);
		if (rv < 0)
			return rv == -EAGAIN ? 0 : 1;
		rx->dropped += (uint32_t)rv;
		if (rx->dropped > DRAIN_OCTETS)
			return -EMSGSIZE;
	}
	return 0;
}
