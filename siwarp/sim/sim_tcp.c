/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* sim/sim_tcp.c - TCP is not simulated yet: nothing listens or connects (EOPNOTSUPP). */
#include "sim/sim_impl.h"

int siw_llp_tcp_keep(struct siw_addr *local)
{
	return sim_keep(SIM_LISTENER, local);
}

int siw_llp_tcp_listen(struct siw_llp_port *port, const struct siw_addr *local, int backlog,
		       struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	(void)port, (void)local, (void)backlog, (void)handler, (void)out;
	return -EOPNOTSUPP;
}

int siw_llp_tcp_connect(struct siw_llp_port *port, const struct siw_addr *dest,
			const struct siw_addr *source, struct siw_io_handler *handler,
			struct siw_llp_sock **out)
{
	(void)port, (void)dest, (void)source, (void)handler, (void)out;
	return -EOPNOTSUPP;
}

int siw_llp_tcp_connect_itself(struct siw_llp_port *port, const struct siw_addr *local,
			       struct siw_io_handler *handler, struct siw_llp_sock **out)
{
	(void)port, (void)local, (void)handler, (void)out;
	return -EOPNOTSUPP;
}

int siw_llp_tcp_accept(struct siw_llp_sock *listener, struct siw_io_handler *handler,
		       struct siw_llp_sock **out)
{
	(void)listener, (void)handler, (void)out;
	return -EAGAIN;
}

int siw_llp_tcp_connected(struct siw_llp_sock *sock)
{
	(void)sock;
	return -EOPNOTSUPP;
}

void siw_llp_tcp_tos(struct siw_llp_sock *sock, int tos)
{
	(void)sock, (void)tos;
}

ssize_t siw_llp_tcp_sendv(struct siw_llp_sock *sock, const struct iovec *iov, int n)
{
	(void)sock, (void)iov, (void)n;
	return -EOPNOTSUPP;
}

ssize_t siw_llp_tcp_recvv(struct siw_llp_sock *sock, const struct iovec *iov, int n)
{
	(void)sock, (void)iov, (void)n;
	return -EOPNOTSUPP;
}

int siw_llp_tcp_emss(struct siw_llp_sock *sock)
{
	(void)sock;
	return -EOPNOTSUPP;
}

bool siw_llp_tcp_gone(struct siw_llp_sock *sock)
{
	(void)sock;
	return true;
}

int siw_llp_tcp_shutdown(struct siw_llp_sock *sock)
{
	(void)sock;
	return -EOPNOTSUPP;
}

void siw_llp_tcp_abort(struct siw_llp_sock *sock)
{
	(void)sock;
}

int siw_llp_peer(struct siw_llp_sock *sock, struct siw_addr *out)
{
	(void)sock, (void)out;
	return -ENOTCONN;
}

void siw_llp_close(struct siw_llp_sock *sock)
{
	if (!sock)
		return;
	sim_sock_fini(sock);
	free(sock);
}

void siw_llp_want_write(struct siw_llp_sock *sock, bool want)
{
	sock->want_write = want;
	if (want) /* there is always room */
		siw_llp_sock_ready(sock);
}
