/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ddp/ddp_datagram.c - the lower edge on datagrams: one untagged segment and its CRC32C are one
 * UDP datagram (datagram-iWARP; no MPA). Also the port, since nobody else here knows llp.
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
#include "base/guard.h"
#include "base/list.h"
#include "ddp/ddp_dgram_impl.h"

#define CRC_LEN	 SIW_DDP_DGRAM_CRC
#define OVERHEAD (SIW_DDP_UNTAGGED + CRC_LEN)
/*
 * Up to here a message is copied into one buffer: one pass makes copy and CRC, one iovec goes down.
 */
#define COPY_MAX 4096

/* ---- port ------------------------------------------------------------------------------------ */

int siw_ddp_port_open(struct siw_ddp_port **out)
{
	struct siw_ddp_port *port = calloc(1, sizeof(*port));
	int r = -ENOMEM;

	if (!port)
		return r;
	port->dgram_buf = malloc(SIW_DDP_DGRAM_BUF);
	if (!port->dgram_buf)
		goto free_port;
	r = siw_stag_table_init(&port->stags);
	if (r)
		goto free_buf;
	r = siw_llp_port_open(&port->llp);
	if (r)
		goto free_table;
	*out = port;
	return 0;

free_table:
	siw_stag_table_fini(&port->stags);
free_buf:
	free(port->dgram_buf);
free_port:
	free(port);
	return r;
}

void siw_ddp_port_close(struct siw_ddp_port *port)
{
	siw_llp_port_close(port->llp);
	siw_stag_table_fini(&port->stags);
	free(port->train);
	free(port->dgram_buf);
	free(port);
}

int siw_ddp_port_poll(struct siw_ddp_port *port, void **tokens, int n)
{
	return siw_llp_port_poll(port->llp, tokens, n);
}

uint64_t siw_ddp_port_clock(const struct siw_ddp_port *port)
{
	return siw_llp_port_clock(port->llp);
}

int siw_ddp_port_arm(struct siw_ddp_port *port)
{
	return siw_llp_port_arm(port->llp);
}

void siw_ddp_port_disarm(struct siw_ddp_port *port)
{
	siw_llp_port_disarm(port->llp);
}

bool siw_ddp_port_armed(const struct siw_ddp_port *port)
{
	return siw_llp_port_armed(port->llp);
}

void siw_ddp_port_wake(struct siw_ddp_port *port)
{
	siw_llp_port_wake(port->llp);
}

/* The same values one layer up; the layout is the same, so that handing down is free. */
_Static_assert(sizeof(struct siw_ddp_waitset) == sizeof(struct siw_llp_waitset) &&
		       offsetof(struct siw_ddp_waitset, fds) ==
			       offsetof(struct siw_llp_waitset, fds) &&
		       offsetof(struct siw_ddp_waitset, out) ==
			       offsetof(struct siw_llp_waitset, out),
	       "siw_llp_waitset");
_Static_assert(sizeof(struct siw_ddp_interface) == sizeof(struct siw_llp_interface) &&
		       offsetof(struct siw_ddp_interface, mtu) ==
			       offsetof(struct siw_llp_interface, mtu) &&
		       offsetof(struct siw_ddp_interface, n_addrs) ==
			       offsetof(struct siw_llp_interface, n_addrs) &&
		       offsetof(struct siw_ddp_interface, addrs) ==
			       offsetof(struct siw_llp_interface, addrs),
	       "siw_llp_interface");

void siw_ddp_waitset_fill(struct siw_ddp_port *port, struct siw_ddp_waitset *set)
{
	siw_llp_waitset_fill(port->llp, (struct siw_llp_waitset *)set);
}

int siw_ddp_wait(const struct siw_ddp_waitset *set, int extra_fd, int64_t timeout_us)
{
	return siw_llp_wait((const struct siw_llp_waitset *)set, extra_fd, timeout_us);
}

int siw_ddp_event_open(void)
{
	return siw_llp_event_open();
}

void siw_ddp_event_set(int fd)
{
	siw_llp_event_set(fd);
}

void siw_ddp_event_clear(int fd)
{
	siw_llp_event_clear(fd);
}

void siw_ddp_event_close(int fd)
{
	siw_llp_event_close(fd);
}

int siw_ddp_interfaces(struct siw_ddp_interface *out, int max)
{
	return siw_llp_interfaces((struct siw_llp_interface *)out, max);
}

int siw_ddp_watch_open(struct siw_ddp_port *port, const char *name, void *token,
		       struct siw_ddp_watch **out)
{
	return siw_llp_watch_open(port->llp, name, token, (struct siw_llp_watch **)out);
}

int siw_ddp_watch_read(struct siw_ddp_watch *watch)
{
	return siw_llp_watch_read((struct siw_llp_watch *)watch);
}

void siw_ddp_watch_close(struct siw_ddp_watch *watch)
{
	siw_llp_watch_close((struct siw_llp_watch *)watch);
}

/* ---- endpoints ------------------------------------------------------------------------------- */

int siw_ddp_dgram_open(struct siw_ddp_port *port, const struct siw_ddp_dgram_attr *attr,
		       struct siw_ddp_dgram **out)
{
	struct siw_ddp_dgram *dgram;
	struct siw_addr local;
	int r;

	if (posix_memalign((void **)&dgram, 64, sizeof(*dgram)))
		return -ENOMEM;
	memset(dgram, 0, sizeof(*dgram));
	dgram->port = port;
	dgram->crc = !attr->no_crc;
	dgram->msn = dgram->error_msn = 1; /* RFC5041-4.3-09 */
	dgram->train_max = OVERHEAD + COPY_MAX;
	siw_link_init(&dgram->sharers);
	if (attr->share) {
		dgram->sock = attr->share->sock;
		dgram->crc = attr->share->crc;
		dgram->max = attr->share->max;
		siw_link_add(&attr->share->sharers, &dgram->sharers);
		siw_llp_shared(dgram->sock);
		*out = dgram;
		return 0;
	}
	if (attr->group_netdev)
		r = siw_llp_udp_join(port->llp, &attr->local, attr->group_netdev, attr->token,
				     &dgram->sock);
	else if (attr->fd >= 0)
		r = siw_llp_udp_adopt(port->llp, attr->fd, attr->token, &dgram->sock);
	else
		r = siw_llp_udp_open(port->llp, &attr->local, attr->token, &dgram->sock);
	if (r)
		goto free_dgram;
	r = siw_llp_local(dgram->sock, &local);
	if (r)
		goto close_sock;
	/* A 16-bit length that over IPv4 covers the IP header too. */
	dgram->max = (local.family == AF_INET6 ? 65527 : 65507) - OVERHEAD;
	*out = dgram;
	return 0;

close_sock:
	siw_llp_close(dgram->sock);
free_dgram:
	free(dgram);
	return r;
}

void siw_ddp_dgram_close(struct siw_ddp_dgram *dgram)
{
	if (siw_link_alone(&dgram->sharers))
		siw_llp_close(dgram->sock);
	siw_link_del(&dgram->sharers);
	free(dgram);
}

void siw_ddp_dgram_set_token(struct siw_ddp_dgram *dgram, void *token)
{
	siw_llp_set_token(dgram->sock, token);
}

int siw_ddp_dgram_addr(struct siw_ddp_dgram *dgram, struct siw_addr *out)
{
	return siw_llp_local(dgram->sock, out);
}

void siw_ddp_dgram_again(struct siw_ddp_dgram *dgram)
{
	siw_llp_again(dgram->sock);
}

uint32_t siw_ddp_dgram_max(const struct siw_ddp_dgram *dgram)
{
	return dgram->max;
}

/* Header (already there), payload and CRC at out: their octets; 0: the payload is not there. */
static size_t fill(const struct siw_ddp_dgram *dgram, uint8_t *out, const struct iovec *iov, int n)
{
	uint8_t *at = out + SIW_DDP_UNTAGGED;
	uint32_t crc = 0;
	int i;

	if (dgram->crc)
		crc = siw_crc32c(0, out, SIW_DDP_UNTAGGED);
	for (i = 0; i < n; at += iov[i++].iov_len) {
		if (dgram->crc ? siw_guard_crc_read(&crc, at, iov[i].iov_base, iov[i].iov_len)
			       : siw_guard_read(at, iov[i].iov_base, iov[i].iov_len))
			return 0;
	}
	siw_ddp_put_crc(at, crc);
	return (size_t)(at - out) + CRC_LEN;
}

static int send_copied(struct siw_ddp_dgram *dgram, uint8_t *buf, const struct siw_addr *dest,
		       const struct iovec *iov, int n)
{
	struct iovec one = { buf, fill(dgram, buf, iov, n) };

	return one.iov_len ? siw_llp_udp_send(dgram->sock, dest, &one, 1) : -EFAULT;
}

/* The payload from where it lies. */
static int send_gathered(struct siw_ddp_dgram *dgram, uint8_t *head, const struct siw_addr *dest,
			 const struct iovec *iov, int n)
{
	struct iovec all[SIW_DDP_MAX_SGE + 3];
	uint8_t tail[CRC_LEN];
	uint32_t crc = 0;

	all[0] = (struct iovec){ head, SIW_DDP_UNTAGGED };
	memcpy(all + 1, iov, (size_t)n * sizeof(*iov));
	if (dgram->crc) {
		crc = siw_crc32c(0, head, SIW_DDP_UNTAGGED);
		for (int i = 0; i < n; i++)
			if (siw_guard_crc(&crc, iov[i].iov_base, iov[i].iov_len))
				return -EFAULT;
	}
	siw_ddp_put_crc(tail, crc);
	all[n + 1] = (struct iovec){ tail, CRC_LEN };
	return siw_llp_udp_send(dgram->sock, dest, all, n + 2);
}

static inline uint64_t payload_of(const struct siw_ddp_dgram_msg *msg)
{
	return msg->head_len + msg->length;
}

/* Where the payload is: how many pieces, or -EACCES. */
static inline int resolve(const struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_msg *msg,
			  struct iovec iov[SIW_DDP_MAX_SGE + 1])
{
	int n, head = msg->head_len != 0;

	if (__builtin_expect(head, 0))
		iov[0] = (struct iovec){ (void *)msg->head, msg->head_len };
	n = siw_ddp_sgl_resolve(dgram->port, msg->sgl, msg->nsge, msg->internal, msg->pd, false, 0,
				msg->length, iov + head, SIW_DDP_MAX_SGE);
	return n < 0 ? n : head + n;
}

int siw_ddp_dgram_tx(struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_msg *msg)
{
	/* Not the endpoint's: there may be thousands. */
	_Alignas(64) uint8_t buf[OVERHEAD + COPY_MAX];
	struct iovec iov[SIW_DDP_MAX_SGE + 1];
	uint64_t payload = payload_of(msg);
	int n, r;

	if (payload > dgram->max)
		return -EMSGSIZE;
	n = resolve(dgram, msg, iov);
	if (n < 0)
		return n;
	siw_ddp_put_untagged(buf, true, msg->ulp_octet, msg->ulp_word, msg->qn, dgram->msn, 0);
	r = payload <= COPY_MAX ? send_copied(dgram, buf, msg->dest, iov, n)
				: send_gathered(dgram, buf, msg->dest, iov, n);
	if (r)
		return r;
	dgram->msn++; /* RFC5041-4.3-08, here per endpoint and not per stream */
	return 0;
}

uint32_t siw_ddp_dgram_next_msn(const struct siw_ddp_dgram *dgram)
{
	return dgram->msn;
}

int siw_ddp_dgram_tx_error(struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_error *e)
{
	struct iovec payload = { (void *)e->payload, e->length };
	uint8_t buf[OVERHEAD + SIW_DDP_MAX_ERROR];
	int r;

	siw_ddp_put_untagged(buf, true, e->ulp_octet, e->ulp_word, e->qn, dgram->error_msn, 0);
	r = send_copied(dgram, buf, e->dest, &payload, 1);
	if (!r)
		dgram->error_msn++;
	return r;
}

/* ---- trains: what goes the same way goes together --------------------------------------------- */

#define TRAIN_CARS   64 /* datagrams that one call may carry (UDP_MAX_SEGMENTS of older kernels) */
#define TRAIN_OCTETS 65507

/* How many of the messages, from the first on, one train could carry. */
static int train_length(const struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_msg *msgs,
			int n)
{
	uint64_t size = payload_of(&msgs[0]) + OVERHEAD, sum = size;
	int i;

	if (size > dgram->train_max)
		return 1;
	for (i = 1; i < n && i < TRAIN_CARS; i++) {
		uint64_t next = payload_of(&msgs[i]) + OVERHEAD;

		sum += next;
		if (next > size || sum > TRAIN_OCTETS || !siw_addr_same(msgs[0].dest, msgs[i].dest))
			return i;
		if (next < size) /* only the last one may be shorter */
			return i + 1;
	}
	return i;
}

/* Builds up to n datagrams one behind the other: how many; fewer where a key or memory is bad. */
static int build_train(struct siw_ddp_dgram *dgram, uint8_t *train,
		       const struct siw_ddp_dgram_msg *msgs, int n, size_t *octets)
{
	struct iovec iov[SIW_DDP_MAX_SGE + 1];
	uint8_t *at = train;
	int i;

	for (i = 0; i < n; i++) {
		const struct siw_ddp_dgram_msg *m = &msgs[i];
		int pieces = resolve(dgram, m, iov);
		size_t size;

		if (pieces < 0)
			break;
		siw_ddp_put_untagged(at, true, m->ulp_octet, m->ulp_word, m->qn,
				     dgram->msn + (uint32_t)i, 0);
		size = fill(dgram, at, iov, pieces);
		if (!size) /* sent by itself it gets its error */
			break;
		at += size;
	}
	*octets = (size_t)(at - train);
	return i;
}

/* n messages as one train: how many went; 0: one by one, please; -errno. */
static int send_train(struct siw_ddp_dgram *dgram, uint8_t *train,
		      const struct siw_ddp_dgram_msg *msgs, int n)
{
	uint32_t size = (uint32_t)payload_of(&msgs[0]) + OVERHEAD;
	size_t octets;
	int r;

	n = build_train(dgram, train, msgs, n, &octets);
	if (n < 2)
		return 0;
	r = siw_llp_udp_send_train(dgram->sock, msgs[0].dest, train, octets, (uint16_t)size);
	if (r == -EOPNOTSUPP)
		dgram->train_max = size - 1;
	if (r == -EOPNOTSUPP || r == -ECONNREFUSED)
		return 0;
	dgram->msn += r ? 0 : (uint32_t)n;
	return r ? r : n;
}

/*
 * Where trains are made: one is kept for the port, since there may be thousands of endpoints. Who sends
 * while another thread does makes one for himself. Pairs with give_train(): what was written there is.
 */
static uint8_t *take_train(struct siw_ddp_port *port)
{
	uint8_t *train = atomic_exchange_explicit(&port->train, NULL, memory_order_acquire);

	return train ? train : malloc(TRAIN_OCTETS);
}

static void give_train(struct siw_ddp_port *port, uint8_t *train)
{
	free(atomic_exchange_explicit(&port->train, train, memory_order_acq_rel));
}

int siw_ddp_dgram_tx_some(struct siw_ddp_dgram *dgram, const struct siw_ddp_dgram_msg *msgs, int n)
{
	uint8_t *train;
	int r = 0;

	n = train_length(dgram, msgs, n);
	train = n > 1 ? take_train(dgram->port) : NULL;
	if (train) {
		r = send_train(dgram, train, msgs, n);
		give_train(dgram->port, train);
	}
	if (r)
		return r;
	r = siw_ddp_dgram_tx(dgram, &msgs[0]);
	return r ? r : 1;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Whether it has the LLP header and, behind that, a tagged segment. */
static __attribute__((noinline)) bool is_record(const uint8_t *buf, size_t len)
{
	return len >= SIW_DDP_RECORD_OVERHEAD && buf[0] == siw_dgram_first(SIW_DGRAM_RECORD) &&
	       (buf[SIW_DGRAM_LEN] & (SIW_DDP_T | SIW_DDP_DV_MASK)) == (SIW_DDP_T | SIW_DDP_DV);
}

/* Its segment, with what the LLP header says of it. */
static __attribute__((noinline)) void parse_record(const uint8_t *buf, uint32_t len,
						   struct siw_ddp_seg *seg)
{
	struct siw_dgram_wire head;

	memcpy(&head, buf, sizeof(head));
	siw_ddp_parse(buf + SIW_DGRAM_LEN, len - SIW_DGRAM_LEN - CRC_LEN, seg);
	seg->ulp_word = be32toh(head.qkey);
	seg->qn = (uint32_t)head.dest_index << 8 | (uint32_t)head.source_index << 16;
	seg->msn = be32toh(head.psn);
}

/* Whether the datagram in the buffer may be acted upon at all; counts it if not. */
static bool credible(struct siw_ddp_dgram *dgram, const uint8_t *buf, size_t len)
{
	uint32_t crc;

	if (len < OVERHEAD || len > SIW_DDP_DGRAM_BUF) {
		siw_drop(SIW_COUNTER_drop_short);
		return false;
	}
	memcpy(&crc, buf + len - CRC_LEN, CRC_LEN);
	if (dgram->crc && siw_crc32c(0, buf, len - CRC_LEN) != le32toh(crc)) {
		siw_drop(SIW_COUNTER_drop_crc);
		return false;
	}
	if ((buf[0] & SIW_DDP_DV_MASK) != SIW_DDP_DV && !is_record(buf, len)) {
		siw_drop(SIW_COUNTER_drop_version);
		return false;
	}
	return true;
}

int siw_ddp_dgram_rx(struct siw_ddp_dgram *dgram, struct siw_ddp_seg *seg, struct siw_addr *source)
{
	uint8_t *buf = dgram->port->dgram_buf;
	int tries;

	for (tries = 0; tries < 64; tries++) {
		ssize_t len = siw_llp_udp_recv(dgram->sock, source, buf, SIW_DDP_DGRAM_BUF);

		if (len < 0)
			return 0;
		if (!credible(dgram, buf, (size_t)len))
			continue;
		if (__builtin_expect(siw_dgram_is(buf[0]), 0)) {
			parse_record(buf, (uint32_t)len, seg);
			return 1;
		}
		if (buf[0] & SIW_DDP_T) { /* it has no Q_Key, so nobody vouches for it */
			siw_drop(SIW_COUNTER_drop_header);
			continue;
		}
		siw_ddp_parse(buf, (uint32_t)len - CRC_LEN, seg);
		dgram->rx_payload = seg->payload;
		return 1;
	}
	/* A flood of rubbish must not keep the others waiting. */
	siw_llp_again(dgram->sock);
	return 0;
}

bool siw_ddp_dgram_sound(const struct siw_ddp_dgram *group, const struct siw_ddp_dgram *member)
{
	const uint8_t *buf = group->port->dgram_buf;
	size_t len = SIW_DDP_UNTAGGED + group->rx_payload;
	uint32_t crc;

	memcpy(&crc, buf + len, CRC_LEN);
	if (!member->crc || siw_crc32c(0, buf, len) == le32toh(crc))
		return true;
	siw_drop(SIW_COUNTER_drop_crc);
	return false;
}

int siw_ddp_dgram_group_sender(struct siw_ddp_dgram *dgram, const char *netdev, int ttl)
{
	return siw_llp_udp_group_sender(dgram->sock, netdev, ttl);
}

const uint8_t *siw_ddp_dgram_payload(const struct siw_ddp_dgram *dgram)
{
	const uint8_t *buf = dgram->port->dgram_buf;

	return buf + (siw_dgram_is(buf[0]) ? SIW_DGRAM_LEN + SIW_DDP_TAGGED : SIW_DDP_UNTAGGED);
}

int siw_ddp_dgram_place(struct siw_ddp_dgram *dgram, struct siw_ddp_queue *queue, uint32_t head,
			struct siw_ddp_delivery *delivery)
{
	const struct siw_ddp_buffer *buf = siw_ddp_queue_peek(queue);
	const uint8_t *from = dgram->port->dgram_buf + SIW_DDP_UNTAGGED + head;
	uint32_t length = dgram->rx_payload - head;
	struct iovec iov[SIW_DDP_MAX_SGE];
	int i, n, r = 1;

	if (!buf) {
		siw_drop(SIW_COUNTER_drop_no_buffer);
		return -ENOBUFS;
	}
	delivery->cookie = buf->cookie;
	delivery->length = length;
	if (length > buf->length) {
		siw_drop(SIW_COUNTER_drop_too_long);
		r = -EMSGSIZE;
		goto out;
	}
	n = siw_ddp_sgl_resolve(dgram->port, buf->sgl, buf->nsge, queue->internal, queue->pd, true,
				0, length, iov, SIW_DDP_MAX_SGE);
	if (n < 0) {
		r = -EACCES;
		goto out;
	}
	for (i = 0; i < n && r == 1; from += iov[i++].iov_len)
		if (siw_guard_write(iov[i].iov_base, from, iov[i].iov_len))
			r = -EACCES;
out:
	siw_ddp_queue_pop(queue);
	return r;
}
