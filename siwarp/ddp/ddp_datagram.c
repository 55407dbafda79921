/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_datagram.c - DDP on plain UDP datagrams, for UD queue pairs. Each message is one untagged
 * segment. The segment and its CRC32C make one datagram, without MPA.
 *
 *   0                 18                       len-4      len
 *  +-----------------+------------------------+----------+
 *  | untagged header | payload                | CRC32C   |   least significant octet first, as MPA
 *  +-----------------+------------------------+----------+
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/capture.h"
#include "base/crc32c.h"
#include "base/os.h"
#include "base/pieces.h"
#include "ddp/ddp_dgram_impl.h"

#define CRC_LEN	 SIW_DDP_DGRAM_CRC
#define OVERHEAD (SIW_DDP_UNTAGGED + CRC_LEN)
/*
 * The longest payload that is copied into one buffer. Copy and CRC are done in one pass, and the
 * socket is passed a single iovec. Longer payloads are sent without copying.
 */
#define COPY_MAX 4096

/* ---- endpoints ------------------------------------------------------------------------------- */

int siw_ddp_dgram_open(struct siw_llp_poller *poller, struct siw_mem *mem,
		       struct siw_llp_sock *sock, bool crc, struct siw_ddp_dgram **out)
{
	struct siw_ddp_dgram *dgram;
	int r;

	if (posix_memalign((void **)&dgram, 64, sizeof(*dgram)))
		return -ENOMEM;
	memset(dgram, 0, sizeof(*dgram));
	r = siw_llp_local_addr(sock, &dgram->local);
	if (r) {
		free(dgram);
		return r;
	}
	dgram->mem = mem;
	dgram->poller = poller;
	dgram->datagram = siw_llp_poller_rx_buffer(poller);
	dgram->sock = sock;
	siw_ddp_dgram_set_rx_sock(dgram, sock, &dgram->local);
	dgram->crc = crc;
	dgram->msn = dgram->error_msn = siw_initial_sequence(1); /* RFC5041-4.3-09 */
	dgram->batch_max = OVERHEAD + COPY_MAX;
	/*
	 * UDP's length field has 16 bits; over IPv4 the limit of 65535 octets also covers the IP
	 * header.
	 */
	dgram->max = (dgram->local.family == AF_INET6 ? 65527 : 65507) - OVERHEAD;
	*out = dgram;
	return 0;
}

void siw_ddp_dgram_close(struct siw_ddp_dgram *dgram)
{
	free(dgram);
}

void siw_ddp_dgram_set_rx_sock(struct siw_ddp_dgram *dgram, struct siw_llp_sock *sock,
			       const struct siw_addr *at)
{
	dgram->rx_sock = sock;
	dgram->at = at;
}

void siw_ddp_dgram_set_tx_sock(struct siw_ddp_dgram *dgram, struct siw_llp_sock *sock)
{
	dgram->sock = sock;
}

const struct siw_addr *siw_ddp_dgram_get_rx_dest_addr(const struct siw_ddp_dgram *dgram)
{
	return dgram->at;
}

struct siw_ddp_pace *siw_ddp_dgram_get_pace(struct siw_ddp_dgram *dgram)
{
	return &dgram->pace;
}

uint32_t siw_ddp_dgram_max_payload(const struct siw_ddp_dgram *dgram)
{
	return dgram->max;
}

/*
 * Appends the payload and the CRC to the datagram at out, whose header is already written. Returns
 * the datagram's length, or 0 if the payload's memory is not mapped.
 */
static size_t dgram_append_payload(const struct siw_ddp_dgram *dgram, uint8_t *out,
				   const struct iovec *iov, int n)
{
	uint32_t crc = dgram->crc ? siw_crc32c(0, out, SIW_DDP_UNTAGGED) : 0;
	uint8_t *at = siw_iov_gather(out + SIW_DDP_UNTAGGED, dgram->crc ? &crc : NULL, iov, n);

	if (!at)
		return 0;
	siw_crc32c_put(at, crc);
	return (size_t)(at - out) + CRC_LEN;
}

static int dgram_send_copied(struct siw_ddp_dgram *dgram, uint8_t *buf, const struct siw_addr *dest,
			     const struct iovec *iov, int n)
{
	struct iovec one = { buf, dgram_append_payload(dgram, buf, iov, n) };

	return one.iov_len ? siw_llp_udp_send(dgram->sock, dest, &one, 1) : -EFAULT;
}

/* Sends a datagram without copying its payload. */
static int dgram_send_gathered(struct siw_ddp_dgram *dgram, uint8_t *head,
			       const struct siw_addr *dest, const struct iovec *iov, int n)
{
	struct iovec all[SIW_MEM_MAX_SGE + 3];
	uint8_t tail[CRC_LEN];

	all[0] = (struct iovec){ head, SIW_DDP_UNTAGGED };
	memcpy(all + 1, iov, (size_t)n * sizeof(*iov));
	if (siw_ddp_close_datagram(all, n, tail, dgram->crc))
		return -EFAULT;
	return siw_llp_udp_send(dgram->sock, dest, all, n + 2);
}

static inline uint64_t dgram_payload_length(const struct siw_ddp_dgram_msg *msg)
{
	return msg->head_len + msg->length;
}

/* Resolves the memory of a message's payload. Returns the number of iovecs, or -EACCES. */
static inline int dgram_resolve_payload(const struct siw_ddp_dgram *dgram,
					const struct siw_ddp_dgram_msg *msg,
					struct iovec iov[SIW_MEM_MAX_SGE + 1])
{
	int n, head = msg->head_len != 0;

	if (__builtin_expect(head, 0))
		iov[0] = (struct iovec){ (void *)msg->head, msg->head_len };
	n = siw_mem_sgl_resolve(dgram->mem, msg->sgl, msg->nsge, msg->internal, msg->pd, false, 0,
				msg->length, iov + head, SIW_MEM_MAX_SGE);
	return n < 0 ? n : head + n;
}

int siw_ddp_dgram_tx(struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_msg *msg)
{
	/*
	 * The buffer is on the stack rather than in the endpoint, because a process may have
	 * thousands of endpoints.
	 */
	_Alignas(64) uint8_t buf[OVERHEAD + COPY_MAX];
	struct iovec iov[SIW_MEM_MAX_SGE + 1];
	uint64_t payload = dgram_payload_length(msg);
	int n, r;

	if (payload > dgram->max)
		return -EMSGSIZE;
	if (!siw_ddp_pace_allowance(&dgram->pace))
		return -EAGAIN;
	n = dgram_resolve_payload(dgram, msg, iov);
	if (n < 0)
		return n;
	siw_ddp_put_untagged(buf, true, msg->ulp_octet, msg->ulp_word, msg->qn, dgram->msn, 0);
	r = payload <= COPY_MAX ? dgram_send_copied(dgram, buf, msg->dest, iov, n)
				: dgram_send_gathered(dgram, buf, msg->dest, iov, n);
	if (r)
		return r;
	dgram->msn++; /* RFC5041-4.3-08, but MSNs are counted per endpoint instead of per stream */
	siw_ddp_pace_consume(&dgram->pace, payload + OVERHEAD);
	return 0;
}

uint32_t siw_ddp_dgram_next_msn(const struct siw_ddp_dgram *dgram)
{
	return dgram->msn;
}

int siw_ddp_dgram_send_error_message(struct siw_ddp_dgram *dgram,
				     const struct siw_ddp_dgram_error *e)
{
	struct iovec payload = { (void *)e->payload, e->length };
	uint8_t buf[OVERHEAD + SIW_DDP_MAX_ERROR];
	int r;

	siw_ddp_put_untagged(buf, true, e->ulp_octet, e->ulp_word, e->qn, dgram->error_msn, 0);
	r = dgram_send_copied(dgram, buf, e->dest, &payload, 1);
	if (!r)
		dgram->error_msn++;
	return r;
}

/* ---- batches: datagrams to one destination in one system call -------------------------------- */

#define BATCH_MAX    64 /* maximum datagrams in one call: UDP_MAX_SEGMENTS of older kernels */
#define BATCH_OCTETS 65507

/*
 * Returns how many of the n messages, from the first on, fit into one batch of at most room octets.
 */
static int dgram_count_messages_fitting_batch(const struct siw_ddp_dgram *dgram,
					      const struct siw_ddp_dgram_msg *msgs, int n,
					      uint64_t room)
{
	uint64_t most = room < BATCH_OCTETS ? room : BATCH_OCTETS;
	uint64_t size = dgram_payload_length(&msgs[0]) + OVERHEAD, sum = size;
	int i;

	if (size > dgram->batch_max)
		return 1;
	for (i = 1; i < n && i < BATCH_MAX; i++) {
		uint64_t next = dgram_payload_length(&msgs[i]) + OVERHEAD;

		sum += next;
		if (next > size || sum > most || !siw_addr_same(msgs[0].dest, msgs[i].dest))
			return i;
		/* only the last datagram of a batch may be shorter than the others */
		if (next < size)
			return i + 1;
	}
	return i;
}

/*
 * Builds up to n datagrams contiguously. Returns the number of datagrams built: fewer than n if the
 * key or the memory of the next message is invalid.
 */
static int dgram_build_batch(struct siw_ddp_dgram *dgram, uint8_t *batch,
			     const struct siw_ddp_dgram_msg *msgs, int n, size_t *octets)
{
	struct iovec iov[SIW_MEM_MAX_SGE + 1];
	uint8_t *at = batch;
	int i;

	for (i = 0; i < n; i++) {
		const struct siw_ddp_dgram_msg *m = &msgs[i];
		int pieces = dgram_resolve_payload(dgram, m, iov);
		size_t size;

		if (pieces < 0)
			break;
		siw_ddp_put_untagged(at, true, m->ulp_octet, m->ulp_word, m->qn,
				     dgram->msn + (uint32_t)i, 0);
		size = dgram_append_payload(dgram, at, iov, pieces);
		/*
		 * a message that failed is sent separately later, and the separate send returns the
		 * error
		 */
		if (!size)
			break;
		at += size;
	}
	*octets = (size_t)(at - batch);
	return i;
}

/*
 * Sends n messages as one batch. Returns the number of messages sent, 0 if the caller has to send
 * the messages one by one, or -errno.
 */
static int dgram_send_batch(struct siw_ddp_dgram *dgram, uint8_t *batch,
			    const struct siw_ddp_dgram_msg *msgs, int n)
{
	uint32_t size = (uint32_t)dgram_payload_length(&msgs[0]) + OVERHEAD;
	size_t octets;
	int r;

	n = dgram_build_batch(dgram, batch, msgs, n, &octets);
	if (n < 2)
		return 0;
	r = siw_llp_udp_send_batch(dgram->sock, msgs[0].dest, batch, octets, (uint16_t)size);
	if (r == -EOPNOTSUPP)
		dgram->batch_max = size - 1;
	if (r == -EOPNOTSUPP || r == -ECONNREFUSED)
		return 0;
	if (r)
		return r;
	dgram->msn += (uint32_t)n;
	siw_ddp_pace_consume(&dgram->pace, octets);
	return n;
}

int siw_ddp_dgram_tx_some(struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_msg *msgs, int n)
{
	uint64_t room = siw_ddp_pace_allowance(&dgram->pace);
	uint8_t *batch;
	int r = 0;

	if (!room)
		return -EAGAIN;
	n = dgram_count_messages_fitting_batch(dgram, msgs, n, room);
	batch = n > 1 ? siw_llp_batch_buffer_acquire(dgram->poller) : NULL;
	if (batch) {
		r = dgram_send_batch(dgram, batch, msgs, n);
		siw_llp_batch_buffer_return(dgram->poller, batch);
	}
	if (r)
		return r;
	r = siw_ddp_dgram_tx(dgram, &msgs[0]);
	return r ? r : 1;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Whether a received datagram has the LLP header of Write-Record, followed by a tagged segment. */
static __attribute__((noinline)) bool dgram_is_write_record(const uint8_t *buf, size_t len)
{
	return len >= SIW_DDP_RECORD_OVERHEAD && buf[0] == siw_dgram_first(SIW_DGRAM_RECORD) &&
	       (buf[SIW_DGRAM_LEN] & (SIW_DDP_T | SIW_DDP_DV_MASK)) == (SIW_DDP_T | SIW_DDP_DV);
}

/*
 * Parses the tagged segment of a Write-Record, and adds the Q_Key, the queue pairs' indexes and the
 * PSN from the LLP header.
 */
static __attribute__((noinline)) void parse_write_record(const uint8_t *buf, uint32_t len,
							 struct siw_ddp_seg *seg)
{
	struct siw_dgram_wire head;

	memcpy(&head, buf, sizeof(head));
	siw_ddp_parse(buf + SIW_DGRAM_LEN, len - SIW_DGRAM_LEN - CRC_LEN, seg);
	seg->ulp_word = be32toh(head.qkey);
	seg->qn = (uint32_t)head.dest_index << 8 | (uint32_t)head.source_index << 16;
	seg->msn = be32toh(head.psn);
}

/*
 * Checks length, CRC and version of the received datagram. Counts an invalid datagram as dropped.
 */
static bool dgram_is_valid(struct siw_ddp_dgram *dgram, const uint8_t *buf, size_t len)
{
	if (len < OVERHEAD || len > SIW_LLP_ROOM)
		return siw_drop(SIW_COUNTER_drop_short);
	if (dgram->crc && !siw_crc32c_ends(buf, len))
		return siw_drop(SIW_COUNTER_drop_crc);
	if ((buf[0] & SIW_DDP_DV_MASK) != SIW_DDP_DV && !dgram_is_write_record(buf, len))
		return siw_drop(SIW_COUNTER_drop_version);
	return true;
}

bool siw_ddp_dgram_continue_or_requeue_rx(struct siw_ddp_dgram *dgram, int tries)
{
	if (tries < SIW_DDP_TRIES || siw_llp_poller_has_more_datagrams(dgram->poller))
		return true;
	siw_llp_sock_resume(dgram->rx_sock);
	return false;
}

int siw_ddp_dgram_rx(struct siw_ddp_dgram *dgram, struct siw_ddp_seg *seg, struct siw_addr *source)
{
	int tries;

	for (tries = 0; siw_ddp_dgram_continue_or_requeue_rx(dgram, tries); tries++) {
		ssize_t len =
			siw_llp_udp_recv_in_poller_buffer(dgram->rx_sock, source, &dgram->datagram);
		const uint8_t *buf = dgram->datagram;

		if (len < 0)
			return 0;
		if (!dgram_is_valid(dgram, buf, (size_t)len))
			continue;
		if (__builtin_expect(siw_dgram_is(buf[0]), 0)) {
			parse_write_record(buf, (uint32_t)len, seg);
			return 1;
		}
		if (buf[0] & SIW_DDP_T) {
			/* a tagged segment without an LLP header has no Q_Key to check */
			siw_drop(SIW_COUNTER_drop_header);
			continue;
		}
		siw_ddp_parse(buf, (uint32_t)len - CRC_LEN, seg);
		dgram->rx_payload = seg->payload;
		return 1;
	}
	return 0;
}

bool siw_ddp_dgram_crc_valid(const struct siw_ddp_dgram *group, const struct siw_ddp_dgram *member)
{
	if (!member->crc || siw_crc32c_ends(group->datagram, OVERHEAD + group->rx_payload))
		return true;
	return siw_drop(SIW_COUNTER_drop_crc);
}

const uint8_t *siw_ddp_dgram_get_rx_payload(const struct siw_ddp_dgram *dgram)
{
	const uint8_t *buf = dgram->datagram;

	return buf + (siw_dgram_is(buf[0]) ? SIW_DGRAM_LEN + SIW_DDP_TAGGED : SIW_DDP_UNTAGGED);
}

/*
 * Writes the GRH of the received datagram, and then its payload, to the memory of the iovecs.
 * Returns 0 or -EFAULT.
 */
static int scatter_grh_and_payload(const struct siw_ddp_dgram *dgram, const struct siw_addr *source,
				   struct iovec *iov, int n, const uint8_t *from)
{
	uint8_t grh[SIW_DDP_GRH], *at = grh;
	int i = 0;

	siw_ddp_grh_put(grh, source, dgram->at, dgram->rx_payload + OVERHEAD);
	while (at < grh + sizeof(grh)) {
		size_t left = (size_t)(grh + sizeof(grh) - at);
		size_t part = iov[i].iov_len < left ? iov[i].iov_len : left;

		if (siw_guard_write(iov[i].iov_base, at, part))
			return -EFAULT;
		at += part;
		iov[i].iov_base = (uint8_t *)iov[i].iov_base + part;
		iov[i].iov_len -= part;
		i += !iov[i].iov_len;
	}
	return siw_iov_scatter(iov + i, n - i, from);
}

/*
 * Places the received message into a buffer of the queue with these elements, whose total length is
 * `space`. See siw_ddp_dgram_place.
 */
static inline int place_in_buffer(const struct siw_ddp_dgram *dgram,
				  const struct siw_mem_buffer_queue *queue,
				  const struct siw_sge *sgl, int nsge, uint64_t space,
				  uint32_t head, const struct siw_addr *grh_from,
				  struct siw_ddp_delivery *delivery)
{
	const uint8_t *from = dgram->datagram + SIW_DDP_UNTAGGED + head;
	uint32_t length = dgram->rx_payload - head;
	uint32_t whole = length + (grh_from ? SIW_DDP_GRH : 0);
	struct iovec iov[SIW_MEM_MAX_SGE];
	int n;

	delivery->length = length;
	if (whole > space) {
		siw_drop(SIW_COUNTER_drop_too_long);
		return -EMSGSIZE;
	}
	n = siw_mem_sgl_resolve(dgram->mem, sgl, nsge, queue->internal, queue->pd, true, 0, whole,
				iov, SIW_MEM_MAX_SGE);
	if (n < 0 || (grh_from ? scatter_grh_and_payload(dgram, grh_from, iov, n, from)
			       : siw_iov_scatter(iov, n, from)))
		return -EACCES;
	return 1;
}

static __attribute__((noinline)) int
place_in_buffer_of_shared_queue(const struct siw_ddp_dgram *dgram,
				struct siw_mem_buffer_queue *queue, uint32_t head,
				const struct siw_addr *grh_from, struct siw_ddp_delivery *delivery)
{
	struct siw_mem_taken buf;

	if (!siw_mem_buffer_queue_take(queue, &buf)) {
		siw_drop(SIW_COUNTER_drop_no_buffer);
		return -ENOBUFS;
	}
	delivery->user_data = buf.user_data;
	return place_in_buffer(dgram, queue, buf.sgl, buf.nsge, buf.length, head, grh_from,
			       delivery);
}

int siw_ddp_dgram_place(struct siw_ddp_dgram *dgram, struct siw_mem_buffer_queue *queue,
			uint32_t head, const struct siw_addr *grh_from,
			struct siw_ddp_delivery *delivery)
{
	const struct siw_mem_buffer *buf;
	int r;

	if (__builtin_expect(queue->shared, 0))
		return place_in_buffer_of_shared_queue(dgram, queue, head, grh_from, delivery);
	/* Only this thread removes buffers, so the buffer need not be copied. */
	buf = siw_mem_buffer_queue_peek(queue);
	if (!buf) {
		siw_drop(SIW_COUNTER_drop_no_buffer);
		return -ENOBUFS;
	}
	delivery->user_data = buf->user_data;
	r = place_in_buffer(dgram, queue, buf->sgl, buf->nsge, buf->length, head, grh_from,
			    delivery);
	siw_mem_queue_pop(queue);
	return r;
}
