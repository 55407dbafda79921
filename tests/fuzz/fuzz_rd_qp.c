/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Two RD queue pairs with the complete RDMAP, DDP and reliable datagram layers, and an attacker on
 * the path between them. The attacker knows both epochs, so it changes datagrams in flight and
 * forges datagrams of either end, with a correct CRC.
 *
 *   octet 0  PASSIVE 1: the attacker is passive, and the network only loses, duplicates and delays
 *            datagrams; RECORDS 2: Write-Records are accepted; FEW 4: few receives are posted
 *   then     steps: one octet selects the step, one or more octets are its parameters
 *
 * Invariants for every input: each request and each receive completes exactly once; no octet
 * outside the granted memory changes; memory and peer records stay within their limits, and the
 * accounting is consistent; apart from data and timer-driven repetitions, an established peer is
 * sent at most one datagram for each of its datagrams. If the attacker is passive, messages arrive
 * complete, exactly once and in order, and every request completes.
 */
#include <arpa/inet.h>

#include "base/crc32c.h"
#include "ddp/ddp_impl.h"
#include "fuzz_rd.h"
#include "qp/qp_objects.h"
#include <siwarp/siw.h>

enum { PASSIVE = 1, RECORDS = 2, FEW = 4 };
enum { QPS = 2, STEPS = 300, QKEY = 0x11223344, DEPTH = 16, WRS = 1024 };
/*
 * Layout of an end's memory: receive buffers, destination of Reads, memory granted to the peer, and
 * source of sends. Only the first three may change.
 */
enum { RECV_AT = 0, READ_AT = 4096, GRANTED_AT = 8192, SEND_AT = 12288, MEM = 16384, SLOT = 256 };
enum { PER_TIMER = 2 };
#define MS 1000000ull

struct input {
	const uint8_t *at, *end;
};

static struct {
	struct siw_context *ctx;
	struct siw_pd *pd;
	struct siw_cq *cq;
	struct siw_qp *qp;
	struct siw_mr *own, *granted;
	struct siw_ah *to;
	uint8_t *mem;
	/* numbers of posted and completed work requests, including receives */
	uint32_t posted, done;
	uint8_t state[WRS]; /* state of each work request, by wr_id: 1 posted, 2 complete */
	uint32_t next_send, next_recv;
	/* heard: datagrams received and timers expired; answers: datagrams sent other than data */
	uint32_t heard, answers;
} ends[QPS];

static uint8_t flags;
static bool lied, upset;

static uint32_t next_input_byte(struct input *in)
{
	return in->at < in->end ? *in->at++ : 0;
}

/* ---- the queue pairs ------------------------------------------------------------------------- */

static bool fuzz_qp_knows_peer(int end, int place)
{
	(void)end;
	return place < QPS; /* this program simulates no unknown senders, as fuzz_rd.c does */
}

static void move_qp_to_rts(int i)
{
	static const int states[] = { SIW_QPS_INIT, SIW_QPS_RTR, SIW_QPS_RTS };

	for (int s = 0; s < 3; s++) {
		struct siw_qp_attr attr = { .qp_state = states[s], .qkey = QKEY };

		CHECK(!siw_modify_qp(ends[i].qp, &attr, SIW_QP_STATE | (s ? 0 : SIW_QP_QKEY)));
	}
}

static void open_endpoint_with_qp(int i)
{
	struct siw_device **list = siw_get_device_list(NULL);
	struct siw_addr peer = fuzz_addr_from_index(!i);
	struct siw_qp_init_attr attr = {
		.cap = { DEPTH, DEPTH, 2, 2, 64 },
		.qp_type = SIW_QPT_RD,
		.sq_sig_all = 1,
		.addr = fuzz_addr_from_index(i),
		.max_write_records = flags & RECORDS ? 4 : 0,
		.peer_timeout_ms = 2000,
	};

	CHECK(list && list[0]);
	memset(&ends[i], 0, sizeof(ends[i]));
	ends[i].ctx = siw_open_device(list[0]);
	siw_free_device_list(list);
	CHECK(ends[i].ctx);
	ends[i].pd = siw_alloc_pd(ends[i].ctx);
	ends[i].cq = siw_create_cq(ends[i].ctx, 128, NULL, NULL, 0);
	ends[i].mem = calloc(1, MEM);
	CHECK(ends[i].mem && ends[i].pd && ends[i].cq);
	ends[i].own = siw_reg_mr(ends[i].pd, ends[i].mem, MEM, SIW_ACCESS_LOCAL_WRITE);
	ends[i].granted = siw_reg_mr(ends[i].pd, ends[i].mem + GRANTED_AT, SEND_AT - GRANTED_AT,
				     SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_REMOTE_WRITE |
					     SIW_ACCESS_REMOTE_READ | SIW_ACCESS_REMOTE_ATOMIC);
	ends[i].to = siw_create_ah(ends[i].pd, &peer);
	attr.send_cq = attr.recv_cq = ends[i].cq;
	ends[i].qp = siw_create_qp(ends[i].pd, &attr);
	CHECK(ends[i].own && ends[i].granted && ends[i].to && ends[i].qp);
	for (int at = SEND_AT; at < MEM; at++)
		ends[i].mem[at] = (uint8_t)(at * 7 + i);
	move_qp_to_rts(i);
}

static void close_endpoint(int i)
{
	CHECK(!siw_destroy_qp(ends[i].qp) && !siw_destroy_ah(ends[i].to));
	CHECK(!siw_dereg_mr(ends[i].own) && !siw_dereg_mr(ends[i].granted));
	CHECK(!siw_destroy_cq(ends[i].cq) && !siw_dealloc_pd(ends[i].pd));
	CHECK(!siw_close_device(ends[i].ctx));
	/* The source of sends, and the gaps between the memory areas, must not have changed. */
	for (int at = SEND_AT; at < MEM; at++)
		CHECK(ends[i].mem[at] == (uint8_t)(at * 7 + i));
	free(ends[i].mem);
}

/* ---- completions ----------------------------------------------------------------------------- */

/* Checks a message, which consists of a number and octets that are computed from the number. */
static void check_message(int i, const struct siw_wc *wc)
{
	const uint8_t *octets = ends[i].mem + RECV_AT + wc->wr_id % DEPTH * SLOT;
	uint32_t number;

	if (lied || upset || wc->opcode != SIW_WC_RECV || wc->byte_len < 4)
		return;
	memcpy(&number, octets, 4);
	CHECK(number >= ends[i].next_recv);
	ends[i].next_recv = number + 1;
	for (uint32_t at = 4; at < wc->byte_len; at++)
		CHECK(octets[at] == (uint8_t)(number * 3 + at));
}

static void poll_completions_of_endpoint(int i)
{
	struct siw_wc wc[8];
	int n;

	while ((n = siw_poll_cq(ends[i].cq, 8, wc)) > 0)
		for (int k = 0; k < n; k++) {
			if (wc[k].opcode == SIW_WC_RECV_WRITE_RECORD)
				continue;
			CHECK(wc[k].wr_id < WRS && ends[i].state[wc[k].wr_id] == 1);
			ends[i].state[wc[k].wr_id] = 2;
			ends[i].done++;
			if (!wc[k].status && (wc[k].opcode & SIW_WC_RECV))
				check_message(i, &wc[k]);
		}
	CHECK(n == 0);
}

/* ---- work requests --------------------------------------------------------------------------- */

static void post_recv(int i, uint32_t len)
{
	struct siw_sge sge = { 0, len % (SLOT + 1), ends[i].own->lkey };
	struct siw_recv_wr wr = { .wr_id = ends[i].posted, .sg_list = &sge, .num_sge = 1 };

	if (ends[i].posted == WRS)
		return;
	/*
	 * At most DEPTH receives are outstanding, so no other receive uses this slot until this one
	 * completes.
	 */
	sge.addr = (uintptr_t)(ends[i].mem + RECV_AT + wr.wr_id % DEPTH * SLOT);
	if (siw_post_recv(ends[i].qp, &wr, NULL))
		return;
	ends[i].state[ends[i].posted++] = 1;
	ends[i].heard++; /* a receive may trigger one datagram to a waiting sender */
}

static void write_numbered_message(uint8_t *to, uint32_t number, uint32_t len)
{
	for (uint32_t at = 0; at < len; at++)
		to[at] = (uint8_t)(number * 3 + at);
	if (len >= 4)
		memcpy(to, &number, 4);
}

static const int opcodes[] = { SIW_WR_SEND,
			       SIW_WR_SEND,
			       SIW_WR_SEND_WITH_IMM,
			       SIW_WR_RDMA_WRITE,
			       SIW_WR_RDMA_WRITE_WITH_IMM,
			       SIW_WR_RDMA_READ,
			       SIW_WR_ATOMIC_FETCH_AND_ADD,
			       SIW_WR_ATOMIC_CMP_AND_SWP,
			       SIW_WR_RDMA_WRITE_RECORD,
			       SIW_WR_SEND_WITH_INV };
enum { OPCODES = sizeof(opcodes) / sizeof(opcodes[0]) };

/*
 * Returns an address in the peer's memory. For most values of `how` it is valid; for 224 and above
 * it is misaligned or outside the granted memory.
 */
static uint64_t choose_remote_memory_address(int i, uint32_t how)
{
	uint64_t base = (uintptr_t)(ends[!i].mem + GRANTED_AT);

	return how < 224 ? base + how % 32 * 8 : base + (uint64_t)(int64_t)(int8_t)how * 40 + 4;
}

static void set_remote_address_of_request(int i, struct siw_send_wr *wr, uint32_t how)
{
	uint32_t rkey = how == 255 ? ends[!i].own->rkey : ends[!i].granted->rkey;

	if (wr->opcode == SIW_WR_ATOMIC_FETCH_AND_ADD || wr->opcode == SIW_WR_ATOMIC_CMP_AND_SWP) {
		wr->wr.atomic.remote_addr = choose_remote_memory_address(i, how);
		wr->wr.atomic.rkey = rkey;
		wr->wr.atomic.compare_add = how;
	} else if (wr->opcode != SIW_WR_SEND) {
		wr->wr.rdma.remote_addr = choose_remote_memory_address(i, how);
		wr->wr.rdma.rkey = rkey;
	}
	wr->rd.ah = ends[i].to;
	wr->rd.remote_qpn = ntohs(fuzz_addr_from_index(!i).port_be);
}

static void post_send(int i, uint32_t kind, uint32_t size, uint32_t how)
{
	/* Source of inline data, which is outside the end's memory and valid until the run ends. */
	static uint8_t inline_octets[64];
	struct siw_sge sge = { (uintptr_t)ends[i].mem, 0, ends[i].own->lkey };
	struct siw_send_wr wr = {
		.wr_id = ends[i].posted,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcodes[kind % OPCODES],
		.imm_data = how,
	};
	bool sends = wr.opcode == SIW_WR_SEND || wr.opcode == SIW_WR_SEND_WITH_IMM;

	if (ends[i].posted == WRS)
		return;
	sge.length = size < 128 ? size % 64 : size * 16;
	if (wr.opcode == SIW_WR_RDMA_READ) {
		sge.addr = (uintptr_t)(ends[i].mem + READ_AT);
	} else if (wr.opcode == SIW_WR_ATOMIC_FETCH_AND_ADD ||
		   wr.opcode == SIW_WR_ATOMIC_CMP_AND_SWP) {
		sge.addr = (uintptr_t)(ends[i].mem + READ_AT);
		sge.length = 8;
	} else if (sge.length <= sizeof(inline_octets)) {
		write_numbered_message(inline_octets, ends[i].next_send, sge.length);
		sge.addr = (uintptr_t)inline_octets;
		wr.send_flags = SIW_SEND_INLINE;
	} else {
		sge.addr = (uintptr_t)(ends[i].mem + SEND_AT);
		sends = false;
		lied |= wr.opcode == SIW_WR_SEND || wr.opcode == SIW_WR_SEND_WITH_IMM;
	}
	wr.send_flags |= how & 1 ? SIW_SEND_SOLICITED : 0;
	set_remote_address_of_request(i, &wr, how);
	if (siw_post_send(ends[i].qp, &wr, NULL))
		return;
	ends[i].state[ends[i].posted++] = 1;
	ends[i].next_send += sends;
}

/* ---- the attacker ---------------------------------------------------------------------------- */

static struct siw_rd *rd_endpoint_of_qp(int i)
{
	return siw_rd_qp_of(siw_base_qp_of(ends[i].qp))->endpoint;
}

static struct siw_rd_peer *fuzz_qp_find_peer(int i)
{
	struct siw_addr addr = fuzz_addr_from_index(!i);

	return rd_endpoint_of_qp(i) ? siw_rd_peer_find(rd_endpoint_of_qp(i), &addr) : NULL;
}

static void fuzz_qp_write_crc(uint8_t *octets, uint32_t len)
{
	uint32_t crc = htole32(siw_crc32c(0, octets, len - SIW_DGRAM_CRC_LEN));

	memcpy(octets + len - SIW_DGRAM_CRC_LEN, &crc, sizeof(crc));
}

/* Changes up to eight octets of a datagram in flight. */
static void fuzz_qp_modify_datagram_in_flight(uint32_t which, struct input *in)
{
	struct fuzz_datagram *d;
	uint32_t at = next_input_byte(in), n = next_input_byte(in) % 8 + 1;

	if (which >= net.n_in_flight)
		return;
	d = net.in_flight[which];
	for (uint32_t k = 0; k < n && at + k + SIW_DGRAM_CRC_LEN < d->len; k++)
		d->octets[at + k] = (uint8_t)next_input_byte(in);
	fuzz_qp_write_crc(d->octets, d->len);
	lied = true;
}

static uint32_t put_big_endian(uint8_t *to, uint64_t number, uint32_t octets)
{
	for (uint32_t k = 0; k < octets; k++)
		to[k] = (uint8_t)(number >> 8 * (octets - 1 - k));
	return octets;
}

static uint64_t address_in_granted_memory(int i, uint32_t how)
{
	return (uintptr_t)(ends[i].mem + GRANTED_AT) + (uint64_t)(int64_t)(int8_t)how * 8;
}

static uint32_t next_msn_from_peer(const struct siw_rd_peer *peer, uint32_t qn)
{
	const struct siw_ddp_stream *stream = siw_rd_upper_layer_object(peer);

	return stream ? stream->rx.q[qn % SIW_DDP_QUEUES].msn : 1;
}

/*
 * Builds a segment for end i that is valid except for the fields that come from the input. Returns
 * its length in octets.
 */
static uint32_t build_forged_ddp_segment(int i, const struct siw_rd_peer *peer, uint8_t *to,
					 struct input *in)
{
	uint32_t kind = next_input_byte(in), opcode = next_input_byte(in),
		 how = next_input_byte(in), n = 0;
	uint32_t rkey = kind & 0x40 ? next_input_byte(in) : ends[i].granted->rkey;
	uint32_t qn = opcode == 1 ? 1 : kind >> 2 & 3;

	if (kind & 1) { /* a tagged segment */
		n += put_big_endian(to, 0x81 | (kind & 2 ? 0x40 : 0), 1);
		n += put_big_endian(to + n, 0x40 | opcode % 16, 1);
		n += put_big_endian(to + n, rkey, 4);
		n += put_big_endian(to + n, address_in_granted_memory(i, how), 8);
	} else {
		n += put_big_endian(to, 0x01 | (kind & 2 ? 0x40 : 0), 1);
		n += put_big_endian(to + n, 0x40 | opcode % 16, 1);
		n += put_big_endian(to + n, kind & 0x80 ? rkey : 0, 4);
		n += put_big_endian(to + n, qn, 4);
		n += put_big_endian(to + n,
				    next_msn_from_peer(peer, qn) + (how & 0x80 ? how & 3 : 0), 4);
		n += put_big_endian(to + n, how & 0x40 ? next_input_byte(in) : 0, 4);
	}
	if (kind & 0x10) { /* a Read Request, or another message of that length */
		n += put_big_endian(to + n, ends[!i].granted->rkey, 4);
		n += put_big_endian(to + n, address_in_granted_memory(!i, next_input_byte(in)), 8);
		n += put_big_endian(to + n, next_input_byte(in) * 16, 4);
		n += put_big_endian(to + n, ends[i].granted->rkey, 4);
		n += put_big_endian(to + n, address_in_granted_memory(i, next_input_byte(in)), 8);
	}
	for (uint32_t more = next_input_byte(in) % 96; more; more--)
		to[n++] = (uint8_t)next_input_byte(in);
	return n;
}

static uint32_t build_ack_body(uint8_t *to, struct input *in)
{
	uint32_t ranges = next_input_byte(in) % 6, n = 0;

	n += put_big_endian(to, next_input_byte(in), 4);
	n += put_big_endian(to + n, next_input_byte(in), 1);
	n += put_big_endian(to + n, ranges, 1);
	n += put_big_endian(to + n, ranges ? next_input_byte(in) % 2 : 0, 1);
	n += put_big_endian(to + n, 0, 1);
	for (; ranges; ranges--) {
		n += put_big_endian(to + n, next_input_byte(in), 2);
		n += put_big_endian(to + n, next_input_byte(in), 2);
	}
	return n;
}

/* Sends a forged datagram to end i with the address of the other end. */
static void fuzz_qp_send_forged_datagram(int i, struct input *in)
{
	const struct siw_rd_peer *peer = fuzz_qp_find_peer(i);
	uint32_t what = next_input_byte(in), space = what >> 7, type = what % 8, len = 0;
	const struct siw_rd_seq *seq;
	struct {
		struct siw_rd_wire wire;
		uint8_t rest[512];
	} d = { 0 };

	if (!peer || !peer->peer_epoch)
		return;
	seq = &peer->seq[space];
	type = type > 6 ? SIW_DGRAM_RD_DATA : SIW_DGRAM_RD_DATA + type;
	d.wire.llp.type = siw_dgram_first(type);
	d.wire.llp.qkey = htonl(QKEY);
	d.wire.source_epoch = htonl(peer->peer_epoch);
	d.wire.dest_epoch = htonl(peer->epoch);
	d.wire.llp.psn =
		htonl(peer->peer_epoch + (uint32_t)seq->rcv + (what & 8 ? next_input_byte(in) : 0));
	for (int s = 0; s < SIW_RD_SPACES; s++) {
		d.wire.acknowledged[s] = htonl(peer->epoch + (uint32_t)peer->seq[s].una +
					       (what & 16 ? next_input_byte(in) % 20 : 0));
		d.wire.credit[s] = htons((uint16_t)(what & 32 ? next_input_byte(in) : 64));
	}
	d.wire.ird = (uint8_t)(what & 64 ? next_input_byte(in) : 4);
	d.wire.flags = (uint8_t)(space * SIW_RD_RESPONSE);
	if (type == SIW_DGRAM_RD_DATA) {
		len = build_forged_ddp_segment(i, peer, d.rest, in);
	} else {
		d.wire.flags = (uint8_t)next_input_byte(in);
		len = type == SIW_DGRAM_RD_ACK ? build_ack_body(d.rest, in) : next_input_byte(in);
	}
	fuzz_qp_write_crc((uint8_t *)&d, SIW_RD_OVERHEAD + len);
	fuzz_net_send_datagram(!i, i, &d, SIW_RD_OVERHEAD + len);
	lied = true;
}

/* ---- accounting ------------------------------------------------------------------------------ */

static uint64_t fuzz_qp_count_buffer_octets(const struct siw_rd *rd, bool sent)
{
	uint64_t room = 0;

	for (struct siw_link *l = rd->lru.next; l != &rd->lru; l = l->next) {
		const struct siw_rd_peer *peer = siw_container(l, struct siw_rd_peer, lru);

		for (int s = 0; s < SIW_RD_SPACES; s++) {
			const struct siw_rd_seq *seq = &peer->seq[s];
			const struct siw_rd_rx *rx = seq->rx;

			for (uint64_t k = seq->una; sent && seq->tx && k < seq->nxt; k++)
				room += siw_rd_size_class_octets(
					seq->tx->slot[k & seq->tx->mask].class);
			if (sent || !rx)
				continue;
			room += sizeof(*rx) + (rx->mask + 1) * sizeof(rx->slot[0]);
			for (uint32_t k = 0; k <= rx->mask; k++)
				if (rx->slot[k].buf)
					room += siw_rd_size_class_octets(rx->slot[k].class);
		}
	}
	return room;
}

static void fuzz_qp_check_accounting(int i)
{
	const struct siw_rd *rd = rd_endpoint_of_qp(i);

	CHECK(ends[i].done <= ends[i].posted);
	if (!rd)
		return;
	CHECK(fuzz_qp_count_buffer_octets(rd, true) == rd->tx_octets &&
	      fuzz_qp_count_buffer_octets(rd, false) == rd->rx_octets);
	CHECK(rd->rx_octets <= rd->rx_limit);
}

/*
 * Makes one progress round of end i. Checks that the end sends data as its window allows, at most
 * one other datagram for each datagram that it received, and the datagrams that its timers repeat.
 */
static void fuzz_qp_make_progress(int i)
{
	uint32_t before = net.kept;

	ends[i].heard += net.end[i].n - net.end[i].at;
	if (net.end[i].sock && atomic_load(&net.end[i].sock->due_ns) <= net.now)
		ends[i].heard += PER_TIMER;
	poll_completions_of_endpoint(i);
	for (uint32_t k = before; k < net.kept && net.kept - before < PAST; k++)
		ends[i].answers += net.past[k % PAST].octets[0] >> 4 != SIW_DGRAM_RD_DATA;
	CHECK(ends[i].answers <= ends[i].heard);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void deliver_datagrams_in_flight(void)
{
	while (fuzz_net_deliver_datagram(0))
		;
	for (int i = 0; i < QPS; i++)
		fuzz_qp_make_progress(i);
}

static void fuzz_qp_reset_endpoint(int i)
{
	struct siw_qp_attr attr = { .qp_state = SIW_QPS_ERR };

	upset = true;
	CHECK(!siw_modify_qp(ends[i].qp, &attr, SIW_QP_STATE));
	post_send(i, 0, 8, 0); /* posted in the error state, so the request is flushed */
	poll_completions_of_endpoint(i);
	CHECK(ends[i].done == ends[i].posted);
	attr.qp_state = SIW_QPS_RESET;
	CHECK(!siw_modify_qp(ends[i].qp, &attr, SIW_QP_STATE));
	net.end[i].n = net.end[i].at = 0;
	move_qp_to_rts(i);
}

/*
 * Queries the senders that wait for a receive, and checks that at most `room` entries are written.
 */
static void query_waiting_peers(int i, int room)
{
	struct siw_rd_wait waits[4] = { 0 };
	int n = siw_query_waits(ends[i].qp, waits, room);

	CHECK(n >= 0 && n <= room);
	for (int k = n; k < 4; k++)
		CHECK(!waits[k].peer.family);
}

static void run_input_step(struct input *in)
{
	uint32_t what = next_input_byte(in) % 16, how = next_input_byte(in);
	int a = (int)how & 1;

	switch (what) {
	case 0:
	case 1:
	case 2:
		post_send(a, how >> 1, next_input_byte(in), next_input_byte(in));
		break;
	case 3:
		for (int n = flags & FEW ? 1 : 4; n; n--)
			post_recv(a, SLOT - (how >> 1) % 64);
		break;
	case 4:
	case 5:
		fuzz_net_deliver_datagram(how < 128 ? 0 : how % 16);
		break;
	case 6:
		fuzz_net_drop_datagram(how % 16);
		break;
	case 7:
		fuzz_net_replay_datagram(how);
		break;
	case 8:
		net.now += 1ull << how % 32;
		upset |= how % 32 > 29;
		break;
	case 9:
		fuzz_qp_make_progress(a);
		break;
	case 10:
	case 11:
		if (!(flags & PASSIVE))
			fuzz_qp_modify_datagram_in_flight(how % 16, in);
		break;
	case 12:
	case 13:
		if (!(flags & PASSIVE))
			fuzz_qp_send_forged_datagram(a, in);
		break;
	case 14:
		for (uint32_t n = how % 8; n < 8; n++) {
			deliver_datagrams_in_flight();
			net.now += 100000;
		}
		break;
	default:
		if (how > 240)
			fuzz_qp_reset_endpoint(a);
		else
			query_waiting_peers(a, how % 4);
	}
}

static bool are_all_requests_complete(void)
{
	return ends[0].done == ends[0].posted && ends[1].done == ends[1].posted;
}

/* Returns whether a datagram can be delivered or received, or a timer of a socket has expired. */
static bool can_progress_be_made(void)
{
	bool due = net.n_in_flight > 0;

	for (int i = 0; i < QPS; i++) {
		struct siw_llp_sock *sock = net.end[i].sock;

		due |= net.end[i].up || net.end[i].at < net.end[i].n;
		due |= sock && atomic_load(&sock->due_ns) <= net.now;
	}
	return due;
}

/*
 * Posts receives for all messages that may still arrive; then, if nothing was forged, checks that
 * every request completes.
 */
static void finish_run_and_check_completions(void)
{
	for (int n = 0; n < 4000 && (n < 20 || !are_all_requests_complete());) {
		for (int i = 0; i < QPS && n % 10 == 0 && n < 2000; i++)
			post_recv(i, SLOT);
		deliver_datagrams_in_flight();
		do
			net.now += 5 * MS;
		while (++n % 10 && !can_progress_be_made());
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data + 1, data + size };
	struct siw_qp_attr attr = { .qp_state = SIW_QPS_ERR };

	if (size < 2)
		return 0;
	CHECK(!siw_setting_set("rd_max_datagram", 1400) && !siw_setting_set("progress_thread", 0) &&
	      !siw_setting_set("rd_total_window", 1 << 20));
	flags = data[0];
	lied = upset = false;
	fuzz_net_reset();
	net.reseed = true;
	net.knows = fuzz_qp_knows_peer;
	for (int i = 0; i < QPS; i++)
		open_endpoint_with_qp(i);
	for (int n = 0; n < STEPS && in.at < in.end; n++) {
		run_input_step(&in);
		for (int i = 0; i < QPS && n % 4 == 0; i++)
			fuzz_qp_check_accounting(i);
	}
	finish_run_and_check_completions();
	for (int i = 0; i < QPS; i++) {
		fuzz_qp_check_accounting(i);
		CHECK(!siw_modify_qp(ends[i].qp, &attr, SIW_QP_STATE));
		poll_completions_of_endpoint(i);
		CHECK(ends[i].done == ends[i].posted);
	}
	for (int i = 0; i < QPS; i++)
		close_endpoint(i);
	return 0;
}
