/*
 * The program under test: a server of librdmacm that returns each message in capital letters.
 *
 *	upper ADDRESS
 *
 * It prints its port, serves one connection, and ends with the status 0 when the peer disconnects.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <arpa/inet.h>
#include <rdma/rdma_verbs.h>

#define SIZE 4096

static void exit_on_error(int failed, const char *what)
{
	if (failed) {
		perror(what);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	static char in[SIZE], out[SIZE];
	struct rdma_cm_id *listener, *id;
	struct rdma_addrinfo *info;
	struct ibv_mr *in_mr, *out_mr;
	struct ibv_wc wc;

	if (argc != 2) {
		fprintf(stderr, "usage: upper ADDRESS\n");
		return 2;
	}
	exit_on_error(rdma_getaddrinfo(argv[1], "0", &hints, &info), "rdma_getaddrinfo");
	exit_on_error(rdma_create_ep(&listener, info, NULL, &attr), "rdma_create_ep");
	exit_on_error(rdma_listen(listener, 1), "rdma_listen");
	printf("%d\n", ntohs(rdma_get_src_port(listener)));
	fflush(stdout);
	exit_on_error(rdma_get_request(listener, &id), "rdma_get_request");
	exit_on_error(!(in_mr = rdma_reg_msgs(id, in, SIZE)), "rdma_reg_msgs");
	exit_on_error(!(out_mr = rdma_reg_msgs(id, out, SIZE)), "rdma_reg_msgs");
	exit_on_error(rdma_post_recv(id, NULL, in, SIZE, in_mr), "rdma_post_recv");
	exit_on_error(rdma_accept(id, NULL), "rdma_accept");
	for (;;) {
		exit_on_error(rdma_get_recv_comp(id, &wc) <= 0, "rdma_get_recv_comp");
		if (wc.status != IBV_WC_SUCCESS)
			break;
		for (unsigned int i = 0; i < wc.byte_len; i++)
			out[i] = toupper((unsigned char)in[i]);
		unsigned int length = wc.byte_len;
		exit_on_error(rdma_post_recv(id, NULL, in, SIZE, in_mr), "rdma_post_recv");
		exit_on_error(rdma_post_send(id, NULL, out, length, out_mr, 0), "rdma_post_send");
		exit_on_error(rdma_get_send_comp(id, &wc) <= 0, "rdma_get_send_comp");
	}
	if (wc.status != IBV_WC_WR_FLUSH_ERR) {
		fprintf(stderr, "upper: %s\n", ibv_wc_status_str(wc.status));
		return 1;
	}
	rdma_disconnect(id);
	rdma_dereg_mr(in_mr);
	rdma_dereg_mr(out_mr);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	rdma_freeaddrinfo(info);
	return 0;
}
