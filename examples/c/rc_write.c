/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rc_write: an RDMA Write into another process, over a connected queue pair.
 *
 *   cc rc_write.c $(siwarp config --cflags --libs) -o rc_write
 *   ./rc_write                  prints its port, waits for one client, prints the text written
 *   ./rc_write 127.0.0.1 PORT TEXT
 *
 * The server sends address and STag of its memory in the private data of its reply. The client
 * writes, then sends an empty message: when the message has arrived, all earlier Writes have
 * arrived too.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <siwarp/cm.h>
#include <siwarp/siw_ext.h>

enum { SIZE = 4096 };

struct offer {
	uint64_t addr; /* both processes are on one machine here: the octet order is the same */
	uint32_t rkey;
	uint32_t length;
};

static char memory[SIZE];

static struct siw_context *context;
static struct siw_pd *pd;
static struct siw_comp_channel *completions;
static struct siw_cq *cq;
static struct siw_qp *qp;
static struct siw_mr *mr;
static struct siw_cm_channel *events;

static void exit_unless(int good, const char *what)
{
	if (good)
		return;
	/* siw_reason() names the rule that a call violated, and the remedy. */
	fprintf(stderr, "%s: %s: %s\n", what, strerror(errno), siw_reason());
	exit(1);
}

/* Check the result of a function that returns a negative errno value on failure. */
static void exit_on_error(int result, const char *what)
{
	errno = -result;
	exit_unless(result >= 0, what);
}

static void create_objects(void)
{
	struct siw_addr loopback;
	struct siw_qp_init_attr init = {
		.qp_type = SIW_QPT_RC,
		.cap = { .max_send_wr = 2, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	exit_on_error(siw_addr_parse("127.0.0.1", 0, &loopback), "siw_addr_parse");
	exit_unless((context = siw_open_device_by_addr(&loopback)) != NULL,
		    "siw_open_device_by_addr");
	exit_unless((pd = siw_alloc_pd(context)) != NULL, "siw_alloc_pd");
	exit_unless((mr = siw_reg_mr(pd, memory, SIZE,
				     SIW_ACCESS_LOCAL_WRITE | SIW_ACCESS_REMOTE_WRITE)) != NULL,
		    "siw_reg_mr");
	exit_unless((completions = siw_create_comp_channel(context)) != NULL,
		    "siw_create_comp_channel");
	exit_unless((cq = siw_create_cq(context, 8, NULL, completions, 0)) != NULL,
		    "siw_create_cq");
	init.send_cq = init.recv_cq = cq;
	exit_unless((qp = siw_create_qp(pd, &init)) != NULL, "siw_create_qp");
	exit_unless((events = siw_cm_create_channel(context)) != NULL, "siw_cm_create_channel");
}

static void destroy_objects(void)
{
	siw_destroy_qp(qp);
	siw_cm_destroy_channel(events);
	siw_destroy_cq(cq);
	siw_destroy_comp_channel(completions);
	siw_dereg_mr(mr);
	siw_dealloc_pd(pd);
	exit_on_error(siw_close_device(context), "siw_close_device");
}

static void wait_for_cm_event(struct siw_cm_event *event, int type)
{
	exit_on_error(siw_cm_get_event(events, event, 30000), "siw_cm_get_event");
	if (event->event == type)
		return;
	fprintf(stderr, "%s: %s\n", siw_cm_event_str(event->event), strerror(-event->status));
	exit(1);
}

/* Wait for the next completion, sleeping on the completion channel. */
static void wait_for_completion(struct siw_wc *wc)
{
	struct siw_cq *which;
	int n;

	while ((n = siw_poll_cq(cq, 1, wc)) == 0) {
		exit_on_error(siw_req_notify_cq(cq, 0), "siw_req_notify_cq");
		if ((n = siw_poll_cq(cq, 1, wc)) != 0)
			break;
		exit_on_error(siw_get_cq_event(completions, &which, NULL, 30000),
			      "siw_get_cq_event");
		siw_ack_cq_events(which, 1);
	}
	exit_on_error(n, "siw_poll_cq");
	if (wc->status == SIW_WC_SUCCESS)
		return;
	fprintf(stderr, "completion: %s\n", siw_wc_status_str(wc->status));
	exit(1);
}

static void run_server(void)
{
	struct siw_cm_id *listener = siw_cm_create_id(events, NULL), *id;
	struct siw_recv_wr recv = { .wr_id = 1 }, *bad;
	struct siw_cm_event event;
	struct siw_addr addr;
	struct siw_wc wc;
	struct offer offer = { .addr = (uintptr_t)memory, .rkey = mr->rkey, .length = SIZE };
	char text[64];

	exit_unless(listener != NULL, "siw_cm_create_id");
	exit_on_error(siw_addr_parse("127.0.0.1", 0, &addr), "siw_addr_parse");
	exit_on_error(siw_cm_listen(listener, &addr, 1), "siw_cm_listen");
	exit_on_error(siw_cm_addr(listener, &addr, NULL), "siw_cm_addr");
	printf("%s\n", siw_addr_format(&addr, text, sizeof(text)));
	fflush(stdout);

	wait_for_cm_event(&event, SIW_CM_CONNECT_REQUEST);
	id = event.id;
	exit_on_error(siw_cm_bind_qp(id, qp), "siw_cm_bind_qp");
	exit_on_error(siw_post_recv(qp, &recv, &bad), "siw_post_recv");
	exit_on_error(siw_cm_accept(id,
				    &(struct siw_cm_param){ .private_data = &offer,
							    .private_data_len = sizeof(offer) }),
		      "siw_cm_accept");
	wait_for_cm_event(&event, SIW_CM_ESTABLISHED);
	wait_for_completion(&wc);
	printf("%.*s\n", SIZE, memory);
	siw_cm_destroy_id(id);
	siw_cm_destroy_id(listener);
}

static void write_text_to_server(const char *host, const char *port, const char *text)
{
	struct siw_cm_id *id = siw_cm_create_id(events, NULL);
	struct siw_addr dest;
	struct siw_cm_event event;
	struct siw_sge sge = { (uintptr_t)memory, (uint32_t)strlen(text) + 1, mr->lkey };
	struct siw_send_wr done = { .wr_id = 2,
				    .opcode = SIW_WR_SEND,
				    .send_flags = SIW_SEND_SIGNALED };
	struct siw_send_wr write = {
		.wr_id = 1,
		.opcode = SIW_WR_RDMA_WRITE,
		.sg_list = &sge,
		.num_sge = 1,
		.next = &done,
	};
	struct siw_send_wr *bad;
	struct offer offer;
	struct siw_wc wc;

	exit_unless(id != NULL, "siw_cm_create_id");
	exit_on_error(siw_addr_parse(host, (uint16_t)atoi(port), &dest), host);
	exit_on_error(siw_cm_bind_qp(id, qp), "siw_cm_bind_qp");
	exit_on_error(siw_cm_connect(id, &dest, NULL, NULL), "siw_cm_connect");
	wait_for_cm_event(&event, SIW_CM_ESTABLISHED);
	if (event.private_data_len < sizeof(offer)) {
		fprintf(stderr, "the server offers no memory\n");
		exit(1);
	}
	memcpy(&offer, event.private_data, sizeof(offer));
	if (sge.length > offer.length) {
		fprintf(stderr, "the server accepts at most %u octets\n", offer.length);
		exit(1);
	}
	snprintf(memory, SIZE, "%s", text);
	write.wr.rdma.remote_addr = offer.addr;
	write.wr.rdma.rkey = offer.rkey;
	exit_on_error(siw_post_send(qp, &write, &bad), "siw_post_send");
	wait_for_completion(&wc);
	exit_on_error(siw_cm_disconnect(id), "siw_cm_disconnect");
	siw_cm_destroy_id(id);
}

int main(int argc, char **argv)
{
	if (argc != 1 && argc != 4) {
		fprintf(stderr, "usage: %s [ADDR PORT TEXT]\n", argv[0]);
		return 2;
	}
	if (argc == 4 && strlen(argv[3]) >= SIZE) {
		fprintf(stderr, "the text may have at most %d octets\n", SIZE - 1);
		return 2;
	}
	create_objects();
	if (argc == 4)
		write_text_to_server(argv[1], argv[2], argv[3]);
	else
		run_server();
	destroy_objects();
	return 0;
}
