/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Resolution of UD queue pairs over UDP (spec/cm-udp.md): queries of this end, and the ports that
 * answer.
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
#include "qp/qp_sockets.h"

/* ==== queries ================================================================================= */

/*
 * The querying end of spec/cm-udp.md. Each query has its own socket, and is retransmitted until an
 * answer arrives or the time-out expires.
 */

#define MS	      1000000ull
#define FIRST_WAIT_MS 100
#define LAST_WAIT_MS  1000
/*
 * Number of cookies that are returned immediately. If a peer sends more, further cookies are
 * returned with the next scheduled retransmission.
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
	struct siw_io_handler handler; /* must be the first member of the struct */
	struct siw_reporter *reporter;
	struct siw_llp_sock *sock; /* NULL: the query has ended */
	struct siw_addr dest, from;
	struct siw_sidr_frame question;
	struct siw_timed timed;
	uint64_t begun_ns, due_ns, deadline_ns;
	uint32_t wait_ms;
	int cookies; /* number of cookies received */
	int refusals;
	/* an ICMP error for the query sent last was counted; the next one counts after a resend */
	bool refused;
};

static struct siw_context *device_of_sidr_query(const struct siw_sidr_query *ask)
{
	return ask->reporter->user.ctx;
}

static void sidr_query_stop(struct siw_sidr_query *ask)
{
	if (!ask->sock)
		return;
	siw_device_timer_cancel(&device_of_sidr_query(ask)->lane0, &ask->timed);
	siw_llp_close(ask->sock);
	ask->sock = NULL;
}

static void sidr_query_report_event(struct siw_sidr_query *ask, int kind, int status,
				    const struct siw_sidr_frame *frame)
{
	struct siw_conn_event event = { .kind = kind, .status = status };

	if (frame) {
		event.number = frame->status;
		event.qpn = frame->qpn;
		event.qkey = frame->qkey;
		event.addr = frame->addr;
		event.params.rev = 1;
		event.params.pdata_len = frame->data_len;
		memcpy(event.params.pdata, frame->data, frame->data_len);
	}
	/*
	 * If there is no memory for the event, the answer counts as lost, and the next
	 * retransmission triggers another answer.
	 */
	if (siw_reporter_queue_event(ask->reporter, &event) == 0)
		sidr_query_stop(ask);
}

/* Sends the query. Returns 0, or the -errno with which the kernel refused to send it. */
static int sidr_query_send(struct siw_sidr_query *ask)
{
	uint8_t octets[SIW_SIDR_FRAME];
	struct iovec iov = { octets, sizeof(octets) };
	int err;

	siw_sidr_build_frame(&ask->question, octets);
	ask->refused = false;
	err = siw_llp_udp_send(ask->sock, &ask->dest, &iov, 1);
	/*
	 * If the socket's send buffer is full, or ICMP refused an earlier query, this query counts
	 * as lost.
	 */
	return err == -EAGAIN || err == -ECONNREFUSED ? 0 : err;
}

static void sidr_query_schedule_retransmission(struct siw_sidr_query *ask, uint64_t now_ns)
{
	ask->due_ns = now_ns + ask->wait_ms * MS;
	if (ask->due_ns > ask->deadline_ns)
		ask->due_ns = ask->deadline_ns;
	ask->wait_ms = ask->wait_ms * 2 < LAST_WAIT_MS ? ask->wait_ms * 2 : LAST_WAIT_MS;
	siw_device_timer_start_at(&device_of_sidr_query(ask)->lane0, &ask->timed, ask->due_ns);
}

static bool sidr_query_is_refused(const struct siw_sidr_query *ask)
{
	return ask->refused && ask->refusals >= REFUSALS;
}

/* Reports the same event as for a refusal from a closed listener. */
static void sidr_query_report_refused(struct siw_sidr_query *ask)
{
	static const struct siw_sidr_frame nobody = { .status = SIW_SIDR_NO_SERVICE };

	sidr_query_report_event(ask, SIW_CONN_REJECTED, -ECONNREFUSED, &nobody);
}

static void sidr_query_handle_timer(struct siw_timed *timed, uint64_t now_ns)
{
	struct siw_sidr_query *ask = siw_container(timed, struct siw_sidr_query, timed);

	if (now_ns < ask->due_ns)
		return;
	sidr_query_schedule_retransmission(ask, now_ns);
	if (now_ns >= ask->deadline_ns) {
		if (sidr_query_is_refused(ask))
			sidr_query_report_refused(ask);
		else
			sidr_query_report_event(ask, SIW_CONN_FAILED, -ETIMEDOUT, NULL);
		return;
	}
	siw_count(SIW_COUNTER_sidr_retries, 1);
	/*
	 * An error may be caused by an ICMP message, which an attacker can forge, so the query
	 * counts as lost.
	 */
	sidr_query_send(ask);
}

static void sidr_query_process_received_cookie(struct siw_sidr_query *ask,
					       const struct siw_sidr_frame *frame)
{
	if (ask->question.cookie == frame->cookie)
		return;
	ask->question.cookie = frame->cookie;
	ask->refusals = 0;
	if (ask->cookies++ < COOKIES)
		sidr_query_send(ask);
}

/*
 * Sets the queue pair's address to the address that was queried. Only if a loopback address was
 * queried, which stands for a device with other addresses, the address is copied from the answer.
 * Returns false if the answer has another address, and is dropped.
 */
static bool sidr_answer_set_qp_addr(const struct siw_sidr_query *ask, struct siw_sidr_frame *frame)
{
	if (!siw_addr_is_loopback(&ask->dest)) {
		if (!siw_addr_same_host(&frame->addr, &ask->dest))
			return false;
		frame->addr = ask->dest;
	}
	frame->addr.port_be = 0;
	return true;
}

static void sidr_query_handle_frame(struct siw_sidr_query *ask, const struct siw_addr *from,
				    struct siw_sidr_frame *frame)
{
	if (!siw_addr_same(from, &ask->dest) || frame->id != ask->question.id ||
	    frame->type == SIW_SIDR_QUERY) {
		siw_drop(SIW_COUNTER_drop_sidr_id);
		return;
	}
	if (frame->type == SIW_SIDR_COOKIE)
		sidr_query_process_received_cookie(ask, frame);
	else if (frame->type == SIW_SIDR_REFUSAL)
		sidr_query_report_event(ask, SIW_CONN_REJECTED, -ECONNREFUSED, frame);
	else if (sidr_answer_set_qp_addr(ask, frame))
		sidr_query_report_event(ask, SIW_CONN_ANSWERED, 0, frame);
	else
		siw_drop(SIW_COUNTER_drop_sidr_field);
}

/*
 * Handles an ICMP port unreachable message. The message counts only if it quotes the query's 64-bit
 * id, which an attacker that cannot see the query has to guess, and only once per transmission of
 * the query.
 */
static void sidr_query_handle_icmp_error(struct siw_sidr_query *ask, const struct siw_addr *dest,
					 const uint8_t *quoted, size_t len)
{
	if (!siw_addr_same(dest, &ask->dest) ||
	    siw_sidr_query_id_of_icmp_quote(quoted, len) != ask->question.id) {
		/*
		 * siw_drop() is not used, since a capture contains only datagrams, and this is an
		 * ICMP message.
		 */
		siw_count(SIW_COUNTER_drop_sidr_id, 1);
		return;
	}
	if (ask->refused)
		return;
	ask->refused = true;
	ask->refusals++;
	if (siw_llp_poller_recent_time_ns(device_of_sidr_query(ask)->lane0.poller) >=
		    ask->begun_ns + PATIENCE_MS * MS &&
	    sidr_query_is_refused(ask))
		sidr_query_report_refused(ask);
}

static void sidr_query_read_icmp(struct siw_sidr_query *ask)
{
	int max = (int)siw_settings()->budget;

	for (int n = 0; n < max && ask->sock; n++) {
		uint8_t quoted[SIW_SIDR_QUOTED];
		struct siw_addr dest;
		ssize_t len = siw_llp_udp_read_refusal(ask->sock, &dest, quoted, sizeof(quoted));

		if (len < 0)
			break;
		if (len > 0)
			sidr_query_handle_icmp_error(ask, &dest, quoted, (size_t)len);
	}
}

static int sidr_query_handle_socket_event(struct siw_io_handler *self)
{
	struct siw_sidr_query *ask = siw_container(self, struct siw_sidr_query, handler);
	int n, max = (int)siw_settings()->budget;

	for (n = 0; n < max && ask->sock; n++) {
		uint8_t *room = siw_llp_poller_rx_buffer(device_of_sidr_query(ask)->lane0.poller);
		struct siw_sidr_frame frame;
		struct siw_addr from;
		ssize_t len = siw_llp_udp_recv(ask->sock, &from, room, SIW_LLP_ROOM);

		if (len < 0)
			break;
		if (siw_sidr_parse_frame(room, (size_t)len, &frame))
			sidr_query_handle_frame(ask, &from, &frame);
	}
	sidr_query_read_icmp(ask);
	return n;
}

/*
 * Returns a random id for a query, so that an attacker that cannot see the query cannot answer it;
 * never 0.
 */
static uint64_t sidr_new_id(void)
{
	struct siw_sipkey key;

	siw_siphash_make_key(&key);
	return key.k[0] | 1;
}

/* Opens the socket of a query and sends the query. Called with the lock of lane 0 held. */
static int sidr_query_open_and_send(struct siw_sidr_query *ask, const struct siw_addr *source,
				    int timeout_ms)
{
	uint64_t now = siw_now_ns();
	int err = siw_llp_udp_open(device_of_sidr_query(ask)->lane0.poller, source, &ask->handler,
				   &ask->sock);

	if (err)
		return err;
	siw_llp_udp_enable_refusal_reports(ask->sock, ask->dest.family);
	err = siw_llp_local_addr(ask->sock, &ask->from);
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
	sidr_query_schedule_retransmission(ask, now);
	return 0;
}

/* Finds the device's first address of dest's family, link-local if dest is. */
static int sidr_find_source_addr(struct siw_context *ctx, const struct siw_addr *dest,
				 struct siw_addr *source)
{
	struct siw_device_info now;

	siw_device_get_current_info(ctx, &now);
	for (uint32_t i = 0; i < now.n_addrs; i++) {
		const struct siw_addr *own = &now.addrs[i];

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
	ask->handler.serve = sidr_query_handle_socket_event;
	ask->reporter = reporter;
	ask->dest = *dest;
	ask->timed.tick = sidr_query_handle_timer;
	siw_link_init(&ask->timed.link);
	ask->question = (struct siw_sidr_frame){
		.type = SIW_SIDR_QUERY,
		.id = sidr_new_id(),
		.data_len = say->data_len,
	};
	if (say->data_len)
		memcpy(ask->question.data, say->data, say->data_len);
	if (!from.family)
		err = sidr_find_source_addr(ctx, dest, &from);
	siw_lock(&ctx->lane0.lock);
	if (!err)
		err = sidr_query_open_and_send(ask, &from, timeout_ms);
	/*
	 * *out is set under the lock, because another thread may read the query's first event and
	 * use *out.
	 */
	if (!err) {
		*out = ask;
		*own = ask->from;
	}
	siw_unlock(&ctx->lane0.lock);
	if (err)
		free(ask);
	return err;
}

void siw_sidr_end_query(struct siw_sidr_query *ask)
{
	struct siw_context *ctx = device_of_sidr_query(ask);

	siw_lock(&ctx->lane0.lock);
	sidr_query_stop(ask);
	siw_unlock(&ctx->lane0.lock);
	free(ask);
}

/* ==== ports =================================================================================== */

/*
 * The answering end of spec/cm-udp.md. A query is in stage PENDING until the program reads its
 * event, then in stage TAKEN until the program answers. The answer is kept for a while, because it
 * may be lost and the query repeated. The number of pending queries is limited in total and per
 * source (connect_admission.h), and that of kept answers by the setting max_startups. When several
 * queries are pending, a source has to prove with a cookie that it receives at its address.
 *
 * Only one event of a port is in the program's queue at a time. When the event is read, the next
 * query is chosen: sources take turns, queries with a cookie come first, and a query that is no
 * longer repeated is dropped.
 */

#define BUCKETS 1024
/* cookies are required from this many pending queries on, or from half of their limit */
#define PRESSED 16
/*
 * A peer repeats its query at least once a second; a query that was not repeated for this long is
 * dropped.
 */
#define REPEAT_NS 3500000000ull
#define TIDY_NS	  10000000ull /* interval of the searches for expired queries */
/* a cookie expires after this time at the earliest, and after twice this time at the latest */
#define COOKIE_NS 4000000000ull
/*
 * Number of times that a kept answer is sent again when its port closes, because repeated queries
 * will find no listener.
 */
#define LAST_WORDS 2
#define LAST_NS	   1000000000ull /* maximum age of an answer that is sent again */

enum stage {
	PENDING,  /* the query waits until the program reads its event */
	TAKEN,	  /* the program has read the event and not answered yet */
	ANSWERED, /* the answer is kept for repeated queries */
	STAGES,
};

/* Queries without and with a valid cookie are queued separately. */
enum kind {
	WITHOUT_COOKIE,
	WITH_COOKIE,
	KINDS,
};

struct siw_sidr_request {
	struct siw_link in_stage, in_bucket;
	/* linked only while the query is in stage PENDING */
	struct siw_link in_source, in_by_arrival;
	struct siw_sidr_port *port;
	enum stage stage;
	struct siw_addr from;
	uint64_t id;
	uint32_t source; /* index of the query's source in the port's admission table */
	enum kind kind;
	uint64_t since_ns;	   /* time at which the query entered its current stage */
	uint64_t last_received_ns; /* time at which the query was last received */
	union {
		struct { /* PENDING */
			uint8_t len, octets[SIW_SIDR_DATA];
		} data;
		uint8_t answer[SIW_SIDR_FRAME]; /* ANSWERED */
	};
};

/* The pending queries of a source. All members are zero until the first query. */
struct sidr_source {
	struct siw_link questions[KINDS]; /* oldest first */
	/*
	 * links in the port's lists `turns`; not linked while the source has no query of that kind
	 */
	struct siw_link in_turn[KINDS];
	/* value of the port's `turn` when a query of the source was last offered to the program */
	uint64_t last_turn;
};

/* The ports of a siw_sidr_listen() at every address of the device, chained by next_addr. */
struct siw_sidr_ports {
	struct siw_every_addr every; /* must be the first member of the struct */
	struct siw_reporter *reporter;
	struct siw_sidr_port *first, *last;
};

struct siw_sidr_port {
	struct siw_io_handler handler; /* must be the first member of the struct */
	struct siw_context *ctx;
	/* NULL: the port is closed, and is freed when all queries in stage TAKEN are answered */
	struct siw_reporter *reporter;
	struct siw_llp_sock *sock;
	struct siw_addr addr;
	struct siw_sidr_port *next_addr; /* the port at the device's next address, or NULL */
	/* in the first of a set of ports at every address of the device: the set; otherwise NULL */
	struct siw_sidr_ports *set;
	struct siw_admission *admission;
	struct siw_sipkey key;
	uint32_t n_answered;
	uint64_t tidied_ns;
	struct siw_sidr_request *offered; /* the query whose event is in the queue, or NULL */
	uint64_t turn;			  /* number of queries offered to the program so far */
	struct sidr_source sources[SIW_SOURCES + 1];
	/* for each kind of query: list of the sources that have such queries, lowest last_turn first */
	struct siw_link turns[KINDS];
	struct siw_link by_arrival;	/* list of pending queries, lowest last_received_ns first */
	struct siw_link stages[STAGES]; /* for each stage: list of its queries, oldest first */
	struct siw_link buckets[BUCKETS];
};

#define NO_SLOT UINT64_MAX

/*
 * Returns a keyed hash of the query, which a peer cannot compute. slot: a time slot for a cookie,
 * NO_SLOT for the hash table.
 */
static uint64_t sidr_hash_query(const struct siw_sidr_port *port, const struct siw_addr *from,
				uint64_t id, uint64_t slot)
{
	struct {
		uint8_t gid[16];
		uint64_t id, slot;
		uint32_t scope, number;
	} in = { .id = id, .slot = slot, .scope = from->scope, .number = siw_addr_port(from) };

	_Static_assert(sizeof(in) == 40, "no uninitialized octets");
	siw_addr_to_gid(from, in.gid);
	return siw_siphash(&port->key, &in, sizeof(in));
}

static struct siw_link *sidr_request_hash_bucket(struct siw_sidr_port *port,
						 const struct siw_addr *from, uint64_t id)
{
	return &port->buckets[sidr_hash_query(port, from, id, NO_SLOT) % BUCKETS];
}

static struct siw_sidr_request *sidr_port_find_request(struct siw_sidr_port *port,
						       const struct siw_addr *from, uint64_t id)
{
	struct siw_link *bucket = sidr_request_hash_bucket(port, from, id);

	for (struct siw_link *l = bucket->next; l != bucket; l = l->next) {
		struct siw_sidr_request *request =
			siw_container(l, struct siw_sidr_request, in_bucket);

		if (request->id == id && siw_addr_same(&request->from, from))
			return request;
	}
	return NULL;
}

/*
 * Sends a frame. If the socket's send buffer is full, the frame counts as lost, and the peer
 * repeats its query.
 */
static void sidr_port_send_frame(struct siw_sidr_port *port, const struct siw_addr *to,
				 uint8_t octets[SIW_SIDR_FRAME])
{
	struct iovec iov = { octets, SIW_SIDR_FRAME };

	if (siw_llp_udp_send(port->sock, to, &iov, 1))
		siw_count(SIW_COUNTER_send_errors, 1);
}

static void sidr_port_send_refusal(struct siw_sidr_port *port, const struct siw_addr *to,
				   uint64_t id, int status)
{
	struct siw_sidr_frame frame = {
		.type = SIW_SIDR_REFUSAL,
		.status = (uint8_t)status,
		.id = id,
	};
	uint8_t octets[SIW_SIDR_FRAME];

	siw_sidr_build_frame(&frame, octets);
	siw_count(SIW_COUNTER_sidr_responses, 1);
	sidr_port_send_frame(port, to, octets);
}

/* ---- requests -------------------------------------------------------------------------------- */

/*
 * Moves the source to its position in the list `turns`, which is ordered by last_turn, or removes
 * the source from the list if it has no query of this kind.
 */
static void sidr_source_reorder_in_round_robin(struct siw_sidr_port *port,
					       struct sidr_source *source, enum kind kind)
{
	struct siw_link *link = &source->in_turn[kind], *at = &port->turns[kind];

	siw_link_del(link);
	if (siw_link_empty(&source->questions[kind]))
		return;
	/*
	 * Most sources are inserted at the end of the list. A source that had its last turn long
	 * ago is inserted before the sources with a later last turn.
	 */
	while (at->prev != &port->turns[kind] &&
	       siw_container(at->prev, struct sidr_source, in_turn[kind])->last_turn >
		       source->last_turn)
		at = at->prev;
	siw_link_add(at, link);
}

static void sidr_request_enqueue(struct siw_sidr_request *request)
{
	struct siw_sidr_port *port = request->port;
	struct sidr_source *source = &port->sources[request->source];
	bool first;

	if (!source->questions[0].next)
		for (int i = 0; i < KINDS; i++) {
			siw_link_init(&source->questions[i]);
			siw_link_init(&source->in_turn[i]);
		}
	first = siw_link_empty(&source->questions[request->kind]);
	siw_link_add(&source->questions[request->kind], &request->in_source);
	if (first)
		sidr_source_reorder_in_round_robin(port, source, request->kind);
}

static void sidr_request_dequeue(struct siw_sidr_request *request)
{
	struct sidr_source *source = &request->port->sources[request->source];

	siw_link_del(&request->in_source);
	if (siw_link_empty(&source->questions[request->kind]))
		siw_link_del(&source->in_turn[request->kind]);
}

static void sidr_request_set_stage(struct siw_sidr_request *request, enum stage stage)
{
	struct siw_sidr_port *port = request->port;

	if (request->stage == PENDING) {
		siw_admission_move_count(port->admission, request->source, SIW_ADMISSION_REQUEST,
					 SIW_ADMISSION_NOWHERE);
		sidr_request_dequeue(request);
		siw_link_del(&request->in_by_arrival);
	}
	port->n_answered -= request->stage == ANSWERED;
	siw_link_del(&request->in_stage);
	request->stage = stage;
	if (stage == STAGES)
		return;
	port->n_answered += stage == ANSWERED;
	request->since_ns = siw_llp_poller_recent_time_ns(port->ctx->lane0.poller);
	siw_link_add(&port->stages[stage], &request->in_stage);
}

static void sidr_request_free(struct siw_sidr_request *request)
{
	struct siw_sidr_port *port = request->port;

	if (port->offered == request) {
		siw_reporter_drop_sidr_events(port->reporter, request);
		port->offered = NULL;
	}
	sidr_request_set_stage(request, STAGES);
	siw_link_del(&request->in_bucket);
	free(request);
}

static struct siw_sidr_request *sidr_oldest_request_in_stage(struct siw_sidr_port *port,
							     enum stage stage)
{
	struct siw_link *list = &port->stages[stage];

	return siw_link_empty(list) ? NULL
				    : siw_container(list->next, struct siw_sidr_request, in_stage);
}

/* Drops queries that are no longer repeated, and the oldest answers beyond the limit. */
static void sidr_port_drop_expired_requests(struct siw_sidr_port *port)
{
	uint64_t now = siw_llp_poller_recent_time_ns(port->ctx->lane0.poller);
	uint64_t most = (uint64_t)siw_settings()->sidr_timeout_ms * 1000000;
	uint64_t repeat = most < REPEAT_NS ? most : REPEAT_NS;
	struct siw_sidr_request *request;

	port->tidied_ns = now;
	while ((request = sidr_oldest_request_in_stage(port, PENDING)) &&
	       request->since_ns + most < now)
		sidr_request_free(request);
	while (!siw_link_empty(&port->by_arrival)) {
		request = siw_container(port->by_arrival.next, struct siw_sidr_request,
					in_by_arrival);
		if (request->last_received_ns + repeat >= now)
			break;
		sidr_request_free(request);
	}
	while ((request = sidr_oldest_request_in_stage(port, ANSWERED)) &&
	       (request->since_ns + most < now ||
		port->n_answered > (uint32_t)siw_settings()->max_startups))
		sidr_request_free(request);
}

/* Returns the cookie for a query: never 0, which means no cookie. */
static uint64_t make_sidr_cookie(const struct siw_sidr_port *port, const struct siw_addr *from,
				 uint64_t id, uint64_t slot)
{
	return sidr_hash_query(port, from, id, slot) | 1;
}

static uint64_t cookie_time_slot(uint64_t now_ns)
{
	return now_ns / COOKIE_NS;
}

/* Returns whether the query has a valid cookie, which proves its source address. */
static bool sidr_has_valid_cookie(const struct siw_sidr_port *port, const struct siw_addr *from,
				  const struct siw_sidr_frame *question)
{
	uint64_t slot = cookie_time_slot(siw_llp_poller_recent_time_ns(port->ctx->lane0.poller));

	return question->cookie &&
	       (question->cookie == make_sidr_cookie(port, from, question->id, slot) ||
		question->cookie == make_sidr_cookie(port, from, question->id, slot - 1));
}

/*
 * Does the same as sidr_has_valid_cookie(); if there is no valid cookie, sends a cookie to the
 * source.
 */
static bool sidr_check_cookie_or_send_one(struct siw_sidr_port *port, const struct siw_addr *from,
					  const struct siw_sidr_frame *question)
{
	uint64_t slot = cookie_time_slot(siw_llp_poller_recent_time_ns(port->ctx->lane0.poller));
	struct siw_sidr_frame frame = { .type = SIW_SIDR_COOKIE, .id = question->id };
	uint8_t octets[SIW_SIDR_FRAME];

	if (sidr_has_valid_cookie(port, from, question))
		return true;
	if (question->cookie)
		siw_drop(SIW_COUNTER_drop_sidr_cookie);
	frame.cookie = make_sidr_cookie(port, from, question->id, slot);
	siw_sidr_build_frame(&frame, octets);
	siw_count(SIW_COUNTER_sidr_cookies, 1);
	sidr_port_send_frame(port, from, octets);
	return false;
}

static bool sidr_needs_cookies(const struct siw_admission *admission)
{
	uint32_t half = (admission->max.requests + 1) / 2;

	return admission->all.requests >= (half < PRESSED ? half : PRESSED);
}

/*
 * Chooses the next pending query: queries with a cookie first; within each kind, sources take
 * turns. Returns NULL if there is no query.
 */
static struct siw_sidr_request *sidr_port_choose_received_query(struct siw_sidr_port *port)
{
	for (int kind = KINDS - 1; kind >= 0; kind--) {
		struct siw_link *turns = &port->turns[kind];
		struct sidr_source *source;

		if (siw_link_empty(turns))
			continue;
		source = siw_container(turns->next, struct sidr_source, in_turn[kind]);
		return siw_container(source->questions[kind].next, struct siw_sidr_request,
				     in_source);
	}
	return NULL;
}

static void sidr_port_queue_next_request_event(struct siw_sidr_port *port);

/* Called when the program has read the query's event. */
static void sidr_request_note_event_was_read(struct siw_sidr_request *request)
{
	struct siw_sidr_port *port = request->port;

	port->offered = NULL;
	sidr_request_set_stage(request, TAKEN);
	sidr_port_queue_next_request_event(port);
}

/* Queues an event for the next query, unless an event is in the queue already. */
static void sidr_port_queue_next_request_event(struct siw_sidr_port *port)
{
	struct siw_conn_event event = { .kind = SIW_CONN_ASKED,
					.on_taken = sidr_request_note_event_was_read };
	struct siw_sidr_request *next;
	struct sidr_source *source;

	sidr_port_drop_expired_requests(port);
	if (!port->reporter || port->offered)
		return;
	next = sidr_port_choose_received_query(port);
	if (!next)
		return;
	event.sidr_request = next;
	event.params.rev = 1;
	event.params.pdata_len = next->data.len;
	memcpy(event.params.pdata, next->data.octets, next->data.len);
	if (siw_reporter_queue_event(port->reporter, &event)) {
		sidr_request_free(next);
		siw_drop(SIW_COUNTER_drop_sidr_full);
		return;
	}
	port->offered = next;
	source = &port->sources[next->source];
	source->last_turn = ++port->turn;
	for (int kind = 0; kind < KINDS; kind++)
		sidr_source_reorder_in_round_robin(port, source, kind);
}

static void sidr_port_queue_query_if_room(struct siw_sidr_port *port, const struct siw_addr *from,
					  const struct siw_sidr_frame *question)
{
	uint32_t source = siw_admission_source_index_of_addr(port->admission, from);
	struct siw_sidr_request *request;

	if (!siw_admission_source_has_room(port->admission, source)) {
		siw_drop(SIW_COUNTER_drop_sidr_share);
		return;
	}
	request = siw_admission_has_room(port->admission) ? calloc(1, sizeof(*request)) : NULL;
	if (!request) {
		siw_drop(SIW_COUNTER_drop_sidr_full);
		return;
	}
	request->port = port;
	request->from = *from;
	request->id = question->id;
	request->source = source;
	request->kind = sidr_has_valid_cookie(port, from, question) ? WITH_COOKIE : WITHOUT_COOKIE;
	request->since_ns = request->last_received_ns =
		siw_llp_poller_recent_time_ns(port->ctx->lane0.poller);
	request->data.len = (uint8_t)question->data_len;
	memcpy(request->data.octets, question->data, question->data_len);
	siw_link_add(&port->stages[PENDING], &request->in_stage);
	siw_link_add(&port->by_arrival, &request->in_by_arrival);
	sidr_request_enqueue(request);
	siw_link_add(sidr_request_hash_bucket(port, from, question->id), &request->in_bucket);
	siw_admission_move_count(port->admission, source, SIW_ADMISSION_NOWHERE,
				 SIW_ADMISSION_REQUEST);
	sidr_port_queue_next_request_event(port);
}

/*
 * Handles a repetition of a pending query. If the repetition has a valid cookie, the query moves
 * before the queries without a cookie.
 */
static void sidr_requeue_pending_query(struct siw_sidr_request *request,
				       const struct siw_sidr_frame *question)
{
	struct siw_sidr_port *port = request->port;

	request->last_received_ns = siw_llp_poller_recent_time_ns(port->ctx->lane0.poller);
	siw_link_del(&request->in_by_arrival);
	siw_link_add(&port->by_arrival, &request->in_by_arrival);
	if (request->kind == WITHOUT_COOKIE && sidr_needs_cookies(port->admission) &&
	    sidr_check_cookie_or_send_one(port, &request->from, question)) {
		sidr_request_dequeue(request);
		request->kind = WITH_COOKIE;
		sidr_request_enqueue(request);
	}
}

static void sidr_port_handle_frame(struct siw_sidr_port *port, const struct siw_addr *from,
				   const struct siw_sidr_frame *question)
{
	struct siw_sidr_request *request;

	if (question->type != SIW_SIDR_QUERY) {
		siw_drop(SIW_COUNTER_drop_sidr_id);
		return;
	}
	if (siw_llp_poller_recent_time_ns(port->ctx->lane0.poller) - port->tidied_ns >= TIDY_NS)
		sidr_port_queue_next_request_event(port);
	request = sidr_port_find_request(port, from, question->id);
	if (request && request->stage == ANSWERED) {
		siw_count(SIW_COUNTER_sidr_response_retries, 1);
		sidr_request_set_stage(request,
				       ANSWERED); /* the answer is kept for the full time again */
		sidr_port_send_frame(port, from, request->answer);
	} else if (request && request->stage == PENDING) {
		sidr_requeue_pending_query(request, question);
	} else if (!request && !port->reporter) {
		sidr_port_send_refusal(port, from, question->id, SIW_SIDR_NO_SERVICE);
	} else if (!request && (!sidr_needs_cookies(port->admission) ||
				sidr_check_cookie_or_send_one(port, from, question))) {
		sidr_port_queue_query_if_room(port, from, question);
	}
}

static int sidr_port_handle_socket_event(struct siw_io_handler *self)
{
	struct siw_sidr_port *port = siw_container(self, struct siw_sidr_port, handler);
	uint8_t *room = siw_llp_poller_rx_buffer(port->ctx->lane0.poller);
	int n, max = (int)siw_settings()->budget;

	for (n = 0; n < max; n++) {
		struct siw_sidr_frame frame;
		struct siw_addr from;
		ssize_t len = siw_llp_udp_recv(port->sock, &from, room, SIW_LLP_ROOM);

		if (len < 0)
			break;
		if (siw_sidr_parse_frame(room, (size_t)len, &frame))
			sidr_port_handle_frame(port, &from, &frame);
	}
	return n;
}

/* ---- ports ----------------------------------------------------------------------------------- */

/*
 * Opens a port at which queries arrive. Called with the lock of lane 0 held, like all functions
 * below that do not acquire it themselves.
 */
static int sidr_port_open(struct siw_reporter *reporter, const struct siw_addr *addr,
			  struct siw_sidr_port **out)
{
	struct siw_sidr_port *port = calloc(1, sizeof(*port));
	int err = -ENOMEM;

	if (!port)
		return err;
	port->handler.serve = sidr_port_handle_socket_event;
	port->ctx = reporter->user.ctx;
	port->reporter = reporter;
	siw_link_init(&port->by_arrival);
	for (int i = 0; i < KINDS; i++)
		siw_link_init(&port->turns[i]);
	for (int i = 0; i < STAGES; i++)
		siw_link_init(&port->stages[i]);
	for (int i = 0; i < BUCKETS; i++)
		siw_link_init(&port->buckets[i]);
	siw_siphash_make_key(&port->key);
	port->admission = siw_admission_new();
	if (port->admission)
		err = siw_llp_udp_open(port->ctx->lane0.poller, addr, &port->handler, &port->sock);
	if (err)
		goto failed;
	err = siw_llp_local_addr(port->sock, &port->addr);
	if (err)
		goto close_sock;
	*out = port;
	return 0;

close_sock:
	siw_llp_close(port->sock);
failed:
	free(port->admission);
	free(port);
	return err;
}

static void sidr_port_free(struct siw_sidr_port *port)
{
	siw_llp_close(port->sock);
	free(port->admission);
	free(port);
}

static void sidr_request_resend_answer(struct siw_sidr_port *port, struct siw_sidr_request *request)
{
	for (int i = 0; i < LAST_WORDS; i++)
		sidr_port_send_frame(port, &request->from, request->answer);
}

static void sidr_port_end_requests_and_close(struct siw_sidr_port *port)
{
	uint64_t now = siw_llp_poller_recent_time_ns(port->ctx->lane0.poller);
	struct siw_sidr_request *request;

	while ((request = sidr_oldest_request_in_stage(port, PENDING))) {
		sidr_port_send_refusal(port, &request->from, request->id, SIW_SIDR_NO_SERVICE);
		sidr_request_free(request);
	}
	while ((request = sidr_oldest_request_in_stage(port, ANSWERED))) {
		if (now < request->since_ns + LAST_NS)
			sidr_request_resend_answer(port, request);
		sidr_request_free(request);
	}
	port->reporter = NULL;
	if (!sidr_oldest_request_in_stage(port, TAKEN))
		sidr_port_free(port);
}

static void sidr_ports_close(struct siw_sidr_port *port)
{
	if (port && port->set) {
		siw_every_addr_stop_handling_addr_changes(&port->set->every);
		free(port->set);
		port->set = NULL;
	}
	while (port) {
		struct siw_sidr_port *next = port->next_addr;

		sidr_port_end_requests_and_close(port);
		port = next;
	}
}

static int sidr_add_port_at_addr(struct siw_every_addr *every, struct siw_addr *addr)
{
	struct siw_sidr_ports *l = siw_container(every, struct siw_sidr_ports, every);
	struct siw_sidr_port *port;
	int err = sidr_port_open(l->reporter, addr, &port);

	if (err)
		return err;
	if (l->last)
		l->last->next_addr = port;
	else
		l->first = port;
	l->last = port;
	*addr = port->addr;
	return 0;
}

static void sidr_close_ports_after_error(struct siw_every_addr *every)
{
	struct siw_sidr_ports *l = siw_container(every, struct siw_sidr_ports, every);

	sidr_ports_close(l->first);
	l->first = l->last = NULL;
}

static int sidr_listen_at_every_address(struct siw_reporter *reporter, uint16_t port,
					struct siw_sidr_port **out)
{
	struct siw_sidr_ports *l = calloc(1, sizeof(*l));
	int err;

	if (!l)
		return -ENOMEM;
	*l = (struct siw_sidr_ports){
		.every = { .open = sidr_add_port_at_addr, .undo = sidr_close_ports_after_error },
		.reporter = reporter,
	};
	err = siw_every_addr_open_sockets(&l->every, &reporter->user.ctx->lane0, port);
	if (err) {
		free(l);
		return err;
	}
	l->first->set = l;
	*out = l->first;
	return 0;
}

int siw_sidr_listen(struct siw_reporter *reporter, const struct siw_addr *addr,
		    struct siw_sidr_port **out)
{
	struct siw_context *ctx = reporter->user.ctx;
	int err;

	/*
	 * *out is set under the lock, because another thread may read the port's first event and
	 * use *out.
	 */
	siw_lock(&ctx->lane0.lock);
	err = addr->family ? sidr_port_open(reporter, addr, out)
			   : sidr_listen_at_every_address(reporter, siw_addr_port(addr), out);
	siw_unlock(&ctx->lane0.lock);
	return err;
}

struct siw_addr siw_sidr_port_addr(const struct siw_sidr_port *port)
{
	return port->addr;
}

void siw_sidr_port_close(struct siw_sidr_port *port)
{
	struct siw_context *ctx = port->ctx;

	siw_lock(&ctx->lane0.lock);
	sidr_ports_close(port);
	siw_unlock(&ctx->lane0.lock);
}

/* ---- answers --------------------------------------------------------------------------------- */

void siw_sidr_request_addrs(const struct siw_sidr_request *request, struct siw_addr *local,
			    struct siw_addr *peer)
{
	*local = request->port->addr;
	*peer = request->from;
}

void siw_sidr_answer_or_refuse_request(struct siw_sidr_request *request,
				       const struct siw_sidr_data *say, int status)
{
	struct siw_sidr_port *port = request->port;
	struct siw_context *ctx = port->ctx;
	struct siw_sidr_frame frame = {
		.type = status ? SIW_SIDR_REFUSAL : SIW_SIDR_ANSWER,
		.status = (uint8_t)status,
		.id = request->id,
		.qpn = say->qpn,
		.qkey = say->qkey,
		.addr = say->addr,
		.data_len = say->data_len,
	};

	if (say->data_len)
		memcpy(frame.data, say->data, say->data_len);
	siw_lock(&ctx->lane0.lock);
	siw_sidr_build_frame(&frame, request->answer);
	siw_count(SIW_COUNTER_sidr_responses, 1);
	sidr_port_send_frame(port, &request->from, request->answer);
	if (port->reporter) {
		sidr_request_set_stage(request, ANSWERED);
		sidr_port_drop_expired_requests(port);
	} else {
		sidr_request_resend_answer(port, request);
		sidr_request_free(request);
		if (!sidr_oldest_request_in_stage(port, TAKEN))
			sidr_port_free(port);
	}
	siw_unlock(&ctx->lane0.lock);
}
