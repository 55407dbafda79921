/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpa/mpa_tx.c - sends FPDUs (RFC 5044 section 4.1): they are framed into a batch, which is passed
 * to TCP in as few system calls as possible.
 *
 * The batch is a list of iovecs. Headers, trailers and small pieces of payload are copied into the
 * arena contiguously, so a sequence of small FPDUs becomes one iovec and one send(). Large pieces
 * of payload are not copied; an iovec refers to them. The trailer of an FPDU and the header of the
 * next share an iovec, so a large FPDU uses two. When TCP has accepted the complete batch, its
 * memory is passed to the next stream that sends (mpa_spare.h).
 *
 * With Markers everything is copied: otherwise an FPDU would consist of pieces of 508 octets. Its
 * CRC also covers the Markers, and is fastest over contiguous memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/pieces.h"
#include "base/settings.h"
#include "llp/llp.h"
#include "mpa/mpa_spare.h"
#include "mpa/mpa_stream.h"

/*
 * The size of a batch: large enough that the cost of a system call is spread over many octets, and
 * small enough that octets read by the CRC are still in the core's cache when the kernel copies
 * them. Measured: the throughput with 256 KiB is an eighth higher than with 1 MiB, and much higher
 * than with 64 KiB.
 */
#define BATCH_OCTETS (1u << 18)
#define ARENA_OCTETS (256u << 10)
/* Maximum number of iovecs in one sendmsg (IOV_MAX). */
#define BATCH_IOVS 1024u
/*
 * Pieces of payload up to this size are copied: that is cheaper than an iovec, and small FPDUs
 * share one send().
 */
#define COPY_OCTETS 2048u
/*
 * Up to this FPDU size one CRC over the copied octets is faster than a combined copy and CRC for
 * each piece.
 */
#define PLAIN_CRC_OCTETS 256u
/*
 * The number of flushes between two queries of the segment size, each of which is a system call.
 * The size seldom changes, except on a new connection: Linux limits it to half of the largest TCP
 * window that the peer has advertised so far. So the interval doubles from query to query, up to
 * MULPDU_YOUNG. The interval is MULPDU_OLD once the segment size has reached its limit.
 */
#define MULPDU_YOUNG 64u
#define MULPDU_OLD   1024u
#define MAX_HEAD     64u

/* A batch's memory block: the arena, followed by the iovecs. */
#define BLOCK_OCTETS (ARENA_OCTETS + BATCH_IOVS * sizeof(struct iovec))

static struct siw_mpa_spares blocks;

void siw_mpa_tx_free_pool(void)
{
	siw_mpa_pool_free(&blocks);
}

void siw_mpa_tx_free(struct siw_mpa_tx *tx)
{
	free(tx->arena);
}

size_t siw_mpa_memory_octets_for_tests(const struct siw_mpa_stream *stream)
{
	return (stream->start ? sizeof(*stream->start) : 0) +
	       (stream->tx.arena ? BLOCK_OCTETS : 0) + stream->rx.cap;
}

static int acquire_batch_block(struct siw_mpa_tx *tx)
{
	void *block = siw_mpa_pool_get(&blocks);

	if (!block)
		block = malloc(BLOCK_OCTETS);
	if (!block)
		return -ENOMEM;
	tx->arena = block;
	tx->iov = (void *)(tx->arena + ARENA_OCTETS);
	return 0;
}

static void return_batch_block(struct siw_mpa_tx *tx)
{
	siw_mpa_pool_put(&blocks, tx->arena);
	tx->arena = NULL;
	tx->iov = NULL;
}

static void add_to_batch_iovecs(struct siw_mpa_tx *tx, const void *base, size_t len)
{
	struct iovec *last = &tx->iov[tx->iov_tail - 1];

	if (tx->iov_tail > tx->iov_head && (uint8_t *)last->iov_base + last->iov_len == base) {
		last->iov_len += len;
		return;
	}
	tx->iov[tx->iov_tail++] = (struct iovec){ (void *)base, len };
}

/* Reserves the next len octets of the arena, and adds them to the batch. */
static uint8_t *arena_reserve_octets(struct siw_mpa_tx *tx, size_t len)
{
	uint8_t *at = tx->arena + tx->arena_used;

	tx->arena_used += (uint32_t)len;
	add_to_batch_iovecs(tx, at, len);
	return at;
}

/* The space that an FPDU requires: octets of ULPDU, octets of the arena, iovecs. */
struct need {
	size_t ulpdu, arena;
	uint32_t iovs;
};

static struct need space_needed_for_fpdu(size_t head_len, const struct iovec *payload, int n)
{
	struct need need = { .ulpdu = head_len,
			     .arena = SIW_MPA_LEN_OCTETS + head_len + SIW_MPA_MAX_TRAILER,
			     .iovs = 2 };

	for (int i = 0; i < n; i++) {
		need.ulpdu += payload[i].iov_len;
		if (payload[i].iov_len <= COPY_OCTETS)
			need.arena += payload[i].iov_len;
		else
			/* one iovec for the piece, and one for the copied octets after it */
			need.iovs += 2;
	}
	return need;
}

static bool batch_has_room(const struct siw_mpa_tx *tx, const struct need *need)
{
	return tx->framed - tx->accepted < BATCH_OCTETS &&
	       tx->arena_used + need->arena <= ARENA_OCTETS &&
	       tx->iov_tail + need->iovs <= BATCH_IOVS;
}

/*
 * frame_small_fpdu() and frame_large_fpdu() add an FPDU to the batch. They return 0, or -EFAULT
 * with a part of the FPDU left in the batch.
 */
static int frame_small_fpdu(struct siw_mpa_tx *tx, const void *head, size_t head_len,
			    const struct iovec *payload, int n, uint32_t ulpdu, bool crc)
{
	uint32_t len = siw_mpa_fpdu_len(ulpdu);
	uint8_t *start = arena_reserve_octets(tx, len), *at = start + SIW_MPA_LEN_OCTETS;

	siw_mpa_put_be16(start, ulpdu);
	memcpy(at, head, head_len);
	at += head_len;
	at = siw_iov_gather(at, NULL, payload, n);
	if (!at)
		return -EFAULT;
	memset(at, 0, (size_t)(start + len - at)); /* pad: RFC5044-4.1-02 */
	if (crc) {
		at = start + len - SIW_MPA_CRC_OCTETS;
		siw_crc32c_put(at, siw_crc32c(0, start, (size_t)(at - start)));
	}
	return 0;
}

static int frame_large_fpdu(struct siw_mpa_tx *tx, const void *head, size_t head_len,
			    const struct iovec *payload, int n, uint32_t ulpdu, bool crc_on)
{
	uint8_t *at = arena_reserve_octets(tx, SIW_MPA_LEN_OCTETS + head_len);
	uint32_t crc = 0, pad = siw_mpa_pad(ulpdu);

	siw_mpa_put_be16(at, ulpdu);
	memcpy(at + SIW_MPA_LEN_OCTETS, head, head_len);
	if (crc_on)
		crc = siw_crc32c(0, at, SIW_MPA_LEN_OCTETS + head_len);
	for (int i = 0; i < n; i++) {
		const void *piece = payload[i].iov_base;
		size_t len = payload[i].iov_len;

		if (len > COPY_OCTETS) {
			if (crc_on && siw_guard_crc(&crc, piece, len))
				return -EFAULT;
			add_to_batch_iovecs(tx, piece, len);
		} else if (len) {
			at = arena_reserve_octets(tx, len);
			if (crc_on ? siw_guard_crc_read(&crc, at, piece, len)
				   : siw_guard_read(at, piece, len))
				return -EFAULT;
		}
	}
	at = arena_reserve_octets(tx, pad + SIW_MPA_CRC_OCTETS);
	memset(at, 0, pad + SIW_MPA_CRC_OCTETS);
	if (crc_on)
		siw_crc32c_put(at + pad, siw_crc32c(crc, at, pad));
	return 0;
}

/* The state of the batch before an FPDU was added. */
struct mark {
	uint32_t arena_used, iov_tail;
	size_t last;
};

static struct mark save_batch_state(const struct siw_mpa_tx *tx)
{
	return (struct mark){ tx->arena_used, tx->iov_tail,
			      tx->iov_tail > tx->iov_head ? tx->iov[tx->iov_tail - 1].iov_len : 0 };
}

/* Removes from the batch a partly added FPDU whose payload is not mapped. */
static __attribute__((cold)) int batch_roll_back(struct siw_mpa_tx *tx, const struct mark *mark)
{
	tx->arena_used = mark->arena_used;
	tx->iov_tail = mark->iov_tail;
	if (tx->iov_tail > tx->iov_head)
		tx->iov[tx->iov_tail - 1].iov_len = mark->last;
	return -EFAULT;
}

int64_t siw_mpa_tx_fpdu(struct siw_mpa_stream *stream, const void *head, size_t head_len,
			const struct iovec *payload, int n)
{
	struct siw_mpa_tx *tx = &stream->tx;
	uint8_t crc_mode = atomic_load_explicit(&stream->crc_mode, memory_order_acquire);
	struct need need = space_needed_for_fpdu(head_len, payload, n);
	uint32_t ulpdu = (uint32_t)need.ulpdu, len = siw_mpa_fpdu_len(ulpdu);
	uint32_t at = (uint32_t)tx->framed;
	bool crc = crc_mode == SIW_MPA_CRC_ON;
	struct mark mark;
	int rv;

	if (tx->dead)
		return tx->dead;
	if (crc_mode == SIW_MPA_CRC_UNKNOWN)
		return -ENOTCONN;
	if (head_len > MAX_HEAD || need.ulpdu > SIW_MPA_MAX_MULPDU)
		return -EMSGSIZE;
	if (__builtin_expect(tx->markers, 0)) {
		len = siw_mpa_fpdu_len_with_markers(at, len);
		need = (struct need){ .ulpdu = ulpdu, .arena = len, .iovs = 1 };
	}
	if (!batch_has_room(tx, &need))
		return 0;
	if (!tx->arena && acquire_batch_block(tx))
		return -ENOMEM;
	mark = save_batch_state(tx);
	if (__builtin_expect(tx->markers, 0))
		rv = siw_mpa_write_fpdu_with_markers(arena_reserve_octets(tx, len), at, head,
						     head_len, payload, n, ulpdu, crc);
	else if (ulpdu <= PLAIN_CRC_OCTETS)
		rv = frame_small_fpdu(tx, head, head_len, payload, n, ulpdu, crc);
	else
		rv = frame_large_fpdu(tx, head, head_len, payload, n, ulpdu, crc);
	return rv < 0 ? batch_roll_back(tx, &mark) : (int64_t)(tx->framed += len);
}

/* Removes n octets, which TCP has accepted, from the batch. */
static void batch_remove_accepted(struct siw_mpa_tx *tx, size_t n)
{
	tx->accepted += n;
	if (tx->accepted == tx->framed) {
		tx->iov_head = tx->iov_tail = tx->arena_used = 0;
		return_batch_block(tx);
		return;
	}
	while (n >= tx->iov[tx->iov_head].iov_len)
		n -= tx->iov[tx->iov_head++].iov_len;
	tx->iov[tx->iov_head].iov_base = (uint8_t *)tx->iov[tx->iov_head].iov_base + n;
	tx->iov[tx->iov_head].iov_len -= n;
}

static void set_tx_blocked(struct siw_mpa_stream *stream, bool blocked)
{
	if (stream->tx.blocked != blocked)
		siw_llp_update_want_write(stream->sock, blocked);
	stream->tx.blocked = blocked;
}

int siw_mpa_tx_flush(struct siw_mpa_stream *stream, uint64_t *accepted)
{
	struct siw_mpa_tx *tx = &stream->tx;

	*accepted = tx->accepted;
	if (tx->dead)
		return tx->dead;
	if (tx->accepted == tx->framed)
		return 1;
	if (!siw_mpa_tx_is_open(stream)) /* RFC5044-7.1.2-11 */
		return 0;
	tx->flushes++;
	/* The loop ends, because each iteration sends octets, or returns. */
	while (tx->accepted != tx->framed) {
		ssize_t sent = siw_llp_tcp_sendv(stream->sock, tx->iov + tx->iov_head,
						 (int)(tx->iov_tail - tx->iov_head));

		if (sent == -EAGAIN) {
			set_tx_blocked(stream, true);
			return 0;
		}
		if (sent < 0)
			return tx->dead = (int)sent;
		batch_remove_accepted(tx, (size_t)sent);
		*accepted = tx->accepted;
	}
	set_tx_blocked(stream, false);
	return 1;
}

bool siw_mpa_is_tx_blocked(const struct siw_mpa_stream *stream)
{
	return stream->tx.blocked || !siw_mpa_tx_is_open(stream);
}

uint64_t siw_mpa_octets_accepted_by_tcp(const struct siw_mpa_stream *stream)
{
	return stream->tx.accepted;
}

/*
 * Returns the maximum ULPDU length. RFC5044-4.5-02: length field, ULPDU and CRC fill a segment, and
 * no pad is needed. RFC5044-4.5-01: space is reserved for the largest possible number of Markers.
 */
static uint32_t mulpdu_from_emss(int emss, int64_t limit, bool markers)
{
	int64_t mulpdu = (int64_t)emss - (SIW_MPA_LEN_OCTETS + SIW_MPA_CRC_OCTETS + emss % 4);

	if (markers)
		mulpdu -= SIW_MPA_MARKER_OCTETS *
			  (((int64_t)emss + SIW_MPA_MARKER_SPACING - 1) / SIW_MPA_MARKER_SPACING);
	if (mulpdu > limit)
		mulpdu = limit;
	if (mulpdu > SIW_MPA_MAX_MULPDU)
		mulpdu = SIW_MPA_MAX_MULPDU;
	return mulpdu < SIW_MPA_MIN_MULPDU ? SIW_MPA_MIN_MULPDU : (uint32_t)mulpdu; /* -4.5-06 */
}

static void update_mulpdu_from_tcp_emss(struct siw_mpa_stream *stream)
{
	struct siw_mpa_tx *tx = &stream->tx;
	int64_t limit = siw_settings()->mulpdu;
	int emss = siw_llp_tcp_emss(stream->sock);

	if (emss > 0 || !tx->mulpdu)
		tx->mulpdu = mulpdu_from_emss(emss > 0 ? emss : 0, limit, tx->markers);
	tx->flushes = 0;
	if (tx->mulpdu >= limit)
		tx->mulpdu_age = MULPDU_OLD;
	else if (tx->mulpdu_age < MULPDU_YOUNG)
		tx->mulpdu_age = tx->mulpdu_age ? tx->mulpdu_age * 2 : 1;
	else
		tx->mulpdu_age = MULPDU_YOUNG;
}

size_t siw_mpa_mulpdu(struct siw_mpa_stream *stream)
{
	struct siw_mpa_tx *tx = &stream->tx;

	if (!tx->mulpdu || tx->flushes >= tx->mulpdu_age)
		update_mulpdu_from_tcp_emss(stream);
	return tx->mulpdu;
}
