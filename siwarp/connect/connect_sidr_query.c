/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The querying end of spec/cm-udp.md. Each query has its own socket, and is retransmitted until an
 * answer arrives or the time-out expires.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/capture.h"
#include "base/clock.h"
#include "base/siphash.h"
#include "connect/connect_impl.h"
#include "connect/connect_sidr.h"
#include "connect/connect_sidr_wire.h"

#define MS	      1000000ull
#define FIRST_WAIT_MS 100
#define LAST_WAIT_MS  1000
/*
 * Number of cookies that are returned at once. If a peer sends more, further ones are returned with
 * the next scheduled retransmission.
 */
#define COOKIES 3
/*
 * Number of queries for which ICMP must report an unreachable port before the report is believed.
 */
#define REFUSALS 2
/*
 * ICMP reports are not believed earlier, because programs often send a query while the peer is
 * about to listen.
 */
#define PATIENCE_MS 500

struct siw_sidr_query {
	struct siw_io_handler handler; /* must be first */
	struct siw_reporter *reporter;
	struct siw_llp_sock *sock; /* NULL: the query has ended */
	struct siw_addr dest, from;
	struct siw_sidr_frame question;
	struct siw_timed timed;
	uint64_t begun_ns, due_ns, deadline_ns;
	uint32_t wait_ms;
	int cookies; /* number of cookies received */
	int refusals;
	/* ICMP has refused the last query sent; another refusal counts only after another query */
	bool refused;
};

static struct siw_context *ctx_of(const struct siw_sidr_query *ask)
{
	return ask->reporter->user.ctx;
}

static void sidr_query_stop(struct siw_sidr_query *ask)
{
	if (!ask->sock)
		return;
	siw_device_timed_del(ctx_of(ask), &ask->timed);
	siw_llp_close(ask->sock);
	ask->sock = NULL;
}

static void sidr_query_report(struct siw_sidr_query *ask, int kind, int status,
			      const struct siw_sidr_frame *frame)
{
	struct siw_conn_event event = { .kind = kind, .status = status };

	if (frame) {
		event.told = frame->status;
		event.qpn = frame->qpn;
		event.qkey = frame->qkey;
		event.addr = frame->addr;
		event.params.rev = 1;
		event.params.pdata_len = frame->data_len;
		memcpy(event.params.pdata, frame->data, frame->data_len);
	}
	/*
	 * If there is no memory for the event, the answer counts as lost, and the next
	 * retransmission triggers another one.
	 */
	if (siw_reporter_report(ask->reporter, &event) == 0)
		sidr_query_stop(ask);
}

/* Sends the query: 0, or the -errno with which the kernel refused to send it. */
static int sidr_query_send(struct siw_sidr_query *ask)
{
	uint8_t octets[SIW_SIDR_FRAME];
	struct iovec iov = { octets, sizeof(octets) };
	int err;

	siw_sidr_build(&ask->question, octets);
	siw_count(SIW_COUNTER_sidr_questions, 1);
	ask->refused = false;
	err = siw_llp_udp_send(ask->sock, &ask->dest, &iov, 1);
	/* The socket is full, or ICMP refused an earlier query: the query counts as lost. */
	return err == -EAGAIN || err == -ECONNREFUSED ? 0 : err;
}

static void sidr_query_schedule(struct siw_sidr_query *ask, uint64_t now_ns)
{
	ask->due_ns = now_ns + ask->wait_ms * MS;
	if (ask->due_ns > ask->deadline_ns)
		ask->due_ns = ask->deadline_ns;
	ask->wait_ms = ask->wait_ms * 2 < LAST_WAIT_MS ? ask->wait_ms * 2 : LAST_WAIT_MS;
	siw_device_timed_at(ctx_of(ask), &ask->timed, ask->due_ns);
}

static bool sidr_query_is_refused(const struct siw_sidr_query *ask)
{
	return ask->refused && ask->refusals >= REFUSALS;
}

/* Reports the same event as for a refusal from a closed listener. */
static void sidr_query_report_refused(struct siw_sidr_query *ask)
{
	static const struct siw_sidr_frame nobody = { .status = SIW_SIDR_NO_SERVICE };

	sidr_query_report(ask, SIW_CONN_REJECTED, -ECONNREFUSED, &nobody);
}

static void sidr_query_tick(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_sidr_query *ask = siw_container(timed, struct siw_sidr_query, timed);

	if (now_ns < ask->due_ns)
		return;
	sidr_query_schedule(ask, now_ns);
	if (now_ns >= ask->deadline_ns) {
		if (sidr_query_is_refused(ask))
			sidr_query_report_refused(ask);
		else
			sidr_query_report(ask, SIW_CONN_FAILED, -ETIMEDOUT, NULL);
		return;
	}
	siw_count(SIW_COUNTER_sidr_repeats, 1);
	/*
	 * An error may be caused by an ICMP message, which an attacker can forge, so the query
	 * counts as lost.
	 */
	sidr_query_send(ask);
}

static void sidr_query_on_cookie(struct siw_sidr_query *ask, const struct siw_sidr_frame *frame)
{
	if (ask->question.cookie == frame->cookie)
		return;
	ask->question.cookie = frame->cookie;
	ask->refusals = 0;
	if (ask->cookies++ < COOKIES)
		sidr_query_send(ask);
}

/*
 * Sets the queue pair's address to the one that was queried. Only if a loopback address was
 * queried, which stands for a device with other addresses, the address is taken from the answer.
 * false: the answer has another address, and is dropped.
 */
static bool sidr_query_set_addr(const struct siw_sidr_query *ask, struct siw_sidr_frame *frame)
{
	if (!siw_addr_is_loopback(&ask->dest)) {
		if (!siw_addr_same_host(&frame->addr, &ask->dest))
			return false;
		frame->addr = ask->dest;
	}
	frame->addr.port_be = 0;
	return true;
}

static void sidr_query_on_frame(struct siw_sidr_query *ask, const struct siw_addr *from,
				struct siw_sidr_frame *frame)
{
	if (!siw_addr_same(from, &ask->dest) || frame->id != ask->question.id ||
	    frame->type == SIW_SIDR_QUERY) {
		siw_drop(SIW_COUNTER_drop_sidr_id);
		return;
	}
	if (frame->type == SIW_SIDR_COOKIE)
		sidr_query_on_cookie(ask, frame);
	else if (frame->type == SIW_SIDR_REFUSAL)
		sidr_query_report(ask, SIW_CONN_REJECTED, -ECONNREFUSED, frame);
	else if (sidr_query_set_addr(ask, frame))
		sidr_query_report(ask, SIW_CONN_ANSWERED, 0, frame);
	else
		siw_drop(SIW_COUNTER_drop_sidr_field);
}

/*
 * Handles an ICMP port unreachable message. It counts only if it quotes the query's 64-bit id,
 * which an attacker that cannot see the query has to guess, and only once per transmission of the
 * query.
 */
static void sidr_query_on_icmp(struct siw_sidr_query *ask, const struct siw_addr *dest,
			       const uint8_t *quoted, size_t len)
{
	if (!siw_addr_same(dest, &ask->dest) ||
	    siw_sidr_quoted_id(quoted, len) != ask->question.id) {
		/* Not siw_drop(), since a capture contains only datagrams. */
		siw_count(SIW_COUNTER_drop_sidr_id, 1);
		return;
	}
	if (ask->refused)
		return;
	ask->refused = true;
	ask->refusals++;
	if (siw_llp_port_clock(ctx_of(ask)->port) >= ask->begun_ns + PATIENCE_MS * MS &&
	    sidr_query_is_refused(ask))
		sidr_query_report_refused(ask);
}

static void sidr_query_read_icmp(struct siw_sidr_query *ask)
{
	int max = (int)siw_settings()->budget;

	for (int n = 0; n < max && ask->sock; n++) {
		uint8_t quoted[SIW_SIDR_QUOTED];
		struct siw_addr dest;
		ssize_t len = siw_llp_udp_refused(ask->sock, &dest, quoted, sizeof(quoted));

		if (len < 0)
			break;
		if (len > 0)
			sidr_query_on_icmp(ask, &dest, quoted, (size_t)len);
	}
}

static int sidr_query_serve(struct siw_io_handler *self)
{
	struct siw_sidr_query *ask = siw_container(self, struct siw_sidr_query, handler);
	int n, max = (int)siw_settings()->budget;

	for (n = 0; n < max && ask->sock; n++) {
		uint8_t *room = siw_llp_port_room(ctx_of(ask)->port);
		struct siw_sidr_frame frame;
		struct siw_addr from;
		ssize_t len = siw_llp_udp_recv(ask->sock, &from, room, SIW_LLP_ROOM);

		if (len < 0)
			break;
		if (siw_sidr_parse(room, (size_t)len, &frame))
			sidr_query_on_frame(ask, &from, &frame);
	}
	sidr_query_read_icmp(ask);
	return n;
}

/* Random, so that an attacker that cannot see the query cannot answer it; never 0. */
static uint64_t sidr_new_id(void)
{
	struct siw_sipkey key;

	siw_siphash_key(&key);
	return key.k[0] | 1;
}

/* Progress lock held. */
static int sidr_query_begin(struct siw_sidr_query *ask, const struct siw_addr *source,
			    int timeout_ms)
{
	uint64_t now = siw_now_ns();
	int err = siw_llp_udp_open(ctx_of(ask)->port, source, &ask->handler, &ask->sock);

	if (err)
		return err;
	siw_llp_udp_report_refusals(ask->sock, ask->dest.family);
	err = siw_llp_local(ask->sock, &ask->from);
	if (!err)
		err = sidr_query_send(ask);
	if (err) {
		siw_llp_close(ask->sock);
		return err;
	}
	if (timeout_ms <= 0)
		timeout_ms = (int)siw_settings()->sidr_timeout_ms;
	ask->begun_ns = now;
	ask->deadline_ns = now + (uint64_t)timeout_ms * MS;
	ask->wait_ms = FIRST_WAIT_MS;
	sidr_query_schedule(ask, now);
	return 0;
}

/* The device's first address of dest's family, link-local if dest is. Progress lock held. */
static int sidr_find_source(const struct siw_context *ctx, const struct siw_addr *dest,
			    struct siw_addr *source)
{
	for (uint32_t i = 0; i < ctx->now.n_addrs; i++) {
		const struct siw_addr *own = &ctx->now.addrs[i];

		/*
		 * A link-local address cannot be reached from an address of wider scope, nor the
		 * reverse.
		 */
		if (own->family != dest->family ||
		    siw_addr_is_link_local(own) != siw_addr_is_link_local(dest))
			continue;
		*source = *own;
		source->port_be = 0;
		return 0;
	}
	return -EADDRNOTAVAIL;
}

int siw_sidr_query(struct siw_reporter *reporter, const struct siw_addr *dest,
		   const struct siw_addr *source, const struct siw_sidr_data *say, int timeout_ms,
		   struct siw_sidr_query **out, struct siw_addr *own)
{
	struct siw_sidr_query *ask = calloc(1, sizeof(*ask));
	struct siw_context *ctx = reporter->user.ctx;
	struct siw_addr from = *source;
	int err = 0;

	if (!ask)
		return -ENOMEM;
	ask->handler.serve = sidr_query_serve;
	ask->reporter = reporter;
	ask->dest = *dest;
	ask->timed.tick = sidr_query_tick;
	siw_link_init(&ask->timed.link);
	ask->question = (struct siw_sidr_frame){
		.type = SIW_SIDR_QUERY,
		.id = sidr_new_id(),
		.data_len = say->data_len,
	};
	if (say->data_len)
		memcpy(ask->question.data, say->data, say->data_len);
	siw_lock(&ctx->progress);
	if (!from.family)
		err = sidr_find_source(ctx, dest, &from);
	if (!err)
		err = sidr_query_begin(ask, &from, timeout_ms);
	/*
	 * Set under the lock, because another thread may take the query's first event and use *out.
	 */
	if (!err) {
		*out = ask;
		*own = ask->from;
	}
	siw_unlock(&ctx->progress);
	if (err)
		free(ask);
	return err;
}

void siw_sidr_query_end(struct siw_sidr_query *ask)
{
	struct siw_context *ctx = ctx_of(ask);

	siw_lock(&ctx->progress);
	sidr_query_stop(ask);
	siw_unlock(&ctx->progress);
	free(ask);
}
