// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A small verbs program for the guest, on the guest's own libibverbs and librdmacm. A client can
 * access siw's memory through it even if siw cannot issue Reads itself (the passive side of MPA
 * revision 1, whose ORD is 0), which is not possible with "rping -s". The program serves one
 * connection after another.
 *
 * Each Send from the client is a command, answered by exactly one Send:
 *   'A'                 -> addr u64, rkey u32, size u32 of the memory, big endian
 *   'E' octets...       -> the same message back
 *   'M' length u32 (BE) -> the first `length` octets of the memory
 */
#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define MEMORY	(1 << 20)
#define MESSAGE (1 << 17)
#define DEPTH	4
#define IRD	8

static char *memory, *outgoings, *incoming;

struct advertisement {
	uint64_t addr;
	uint32_t rkey, size;
} __attribute__((packed));

/*
 * Returns the length of the reply and sets *reply to its address, or returns -1 for an unknown
 * command.
 *
 * Consecutive replies use different buffers: siw answers a Read of length 0 with octets of the last
 * message it sent, read from that message's buffer, and sends a wrong CRC if they change meanwhile.
 */
static int echo_build_reply(struct ibv_mr *memory_mr, const char *message, uint32_t length,
			    char **reply)
{
	static unsigned int turn;
	char *outgoing = outgoings + (size_t)(turn++ % DEPTH) * MESSAGE;
	struct advertisement adv;
	uint32_t wanted;

	*reply = outgoing;
	if (length == 1 && message[0] == 'A') {
		adv.addr = htobe64((uint64_t)(uintptr_t)memory);
		adv.rkey = htobe32(memory_mr->rkey);
		adv.size = htobe32(MEMORY);
		memcpy(outgoing, &adv, sizeof(adv));
		return sizeof(adv);
	}
	if (length >= 1 && message[0] == 'E') {
		memcpy(outgoing, message, length);
		return (int)length;
	}
	if (length == 5 && message[0] == 'M') {
		memcpy(&wanted, message + 1, 4);
		wanted = be32toh(wanted);
		if (wanted > MESSAGE)
			return -1;
		memcpy(outgoing, memory, wanted);
		return (int)wanted;
	}
	return -1;
}

static void echo_serve_connection(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = { .responder_resources = IRD, .initiator_depth = 0 };
	struct ibv_mr *memory_mr, *out_mr, *in_mr;
	struct ibv_wc wc;
	char *reply, *slot;
	int i, length;

	memory_mr = ibv_reg_mr(id->pd, memory, MEMORY,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				       IBV_ACCESS_REMOTE_READ);
	out_mr = rdma_reg_msgs(id, outgoings, (size_t)MESSAGE * DEPTH);
	in_mr = rdma_reg_msgs(id, incoming, (size_t)MESSAGE * DEPTH);
	if (!memory_mr || !out_mr || !in_mr) {
		perror("register");
		goto out;
	}
	for (i = 0; i < DEPTH; i++) {
		slot = incoming + (size_t)i * MESSAGE;
		if (rdma_post_recv(id, slot, slot, MESSAGE, in_mr)) {
			perror("rdma_post_recv");
			goto out;
		}
	}
	if (rdma_accept(id, &param)) {
		perror("rdma_accept");
		goto out;
	}
	/* The loop ends with the connection, whose receives are then flushed with an error status. */
	while (rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS) {
		slot = (char *)(uintptr_t)wc.wr_id;
		length = echo_build_reply(memory_mr, slot, wc.byte_len, &reply);
		if (length < 0) {
			fprintf(stderr, "bad command of %u octets\n", wc.byte_len);
			break;
		}
		if (rdma_post_recv(id, slot, slot, MESSAGE, in_mr) ||
		    rdma_post_send(id, NULL, reply, (size_t)length, out_mr, 0) ||
		    rdma_get_send_comp(id, &wc) != 1 || wc.status != IBV_WC_SUCCESS)
			break;
	}
	printf("connection ended: %s\n", ibv_wc_status_str(wc.status));
	rdma_disconnect(id);
out:
	if (memory_mr)
		rdma_dereg_mr(memory_mr);
	if (out_mr)
		rdma_dereg_mr(out_mr);
	if (in_mr)
		rdma_dereg_mr(in_mr);
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH,
			 .max_recv_wr = DEPTH + 1,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *listener, *id;
	struct rdma_addrinfo *info;

	setlinebuf(stdout);
	memory = calloc(1, MEMORY);
	outgoings = calloc(DEPTH, MESSAGE);
	incoming = calloc(DEPTH, MESSAGE);
	if (argc != 2 || !memory || !outgoings || !incoming) {
		fprintf(stderr, "usage: interop-echo PORT\n");
		return 1;
	}
	if (rdma_getaddrinfo(NULL, argv[1], &hints, &info) ||
	    rdma_create_ep(&listener, info, NULL, &attr) || rdma_listen(listener, 8)) {
		perror("listen");
		return 1;
	}
	while (!rdma_get_request(listener, &id)) {
		echo_serve_connection(id);
		rdma_destroy_ep(id);
	}
	perror("rdma_get_request");
	return 1;
}
