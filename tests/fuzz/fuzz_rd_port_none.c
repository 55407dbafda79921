/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Stubs of the llp functions that other queue pair types call: the stubs are linked with
 * fuzz_rd_qp.c, and never called.
 */
#include <stdlib.h>

#define NEVER(name)      \
	void name(void); \
	void name(void)  \
	{                \
		abort(); \
	}

NEVER(siw_llp_pause)
NEVER(siw_llp_peer)
NEVER(siw_llp_port_more)
NEVER(siw_llp_shared)
NEVER(siw_llp_source_for)
NEVER(siw_llp_tcp_abort)
NEVER(siw_llp_tcp_accept)
NEVER(siw_llp_tcp_connect)
NEVER(siw_llp_tcp_connect_itself)
NEVER(siw_llp_tcp_connected)
NEVER(siw_llp_tcp_emss)
NEVER(siw_llp_tcp_is_closed)
NEVER(siw_llp_tcp_reserve)
NEVER(siw_llp_tcp_listen)
NEVER(siw_llp_tcp_recvv)
NEVER(siw_llp_tcp_sendv)
NEVER(siw_llp_tcp_shutdown)
NEVER(siw_llp_tcp_tos)
NEVER(siw_llp_udp_group_sender)
NEVER(siw_llp_udp_report_refusals)
NEVER(siw_llp_udp_join)
NEVER(siw_llp_udp_reserve)
NEVER(siw_llp_udp_next)
NEVER(siw_llp_udp_path)
NEVER(siw_llp_udp_refused)
NEVER(siw_llp_udp_send_batch)
NEVER(siw_llp_udp_send_fragmented)
NEVER(siw_llp_udp_dont_fragment)
