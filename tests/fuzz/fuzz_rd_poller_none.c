/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Stubs of the llp functions that event loops and other queue pair types call: the stubs are linked
 * with fuzz_rd_qp.c, and never called.
 */
#include <stdlib.h>

#define NEVER(name)      \
	void name(void); \
	void name(void)  \
	{                \
		abort(); \
	}

NEVER(siw_llp_sock_note_all_handled)
NEVER(siw_llp_sock_pause)
NEVER(siw_llp_leave_poller)
NEVER(siw_llp_event_loop_fd_open)
NEVER(siw_llp_event_loop_fd_number)
NEVER(siw_llp_event_loop_fd_signal)
NEVER(siw_llp_event_loop_fd_clear)
NEVER(siw_llp_event_loop_fd_set_timer)
NEVER(siw_llp_poller_next_due_ns)
NEVER(siw_llp_add_to_poller)
NEVER(siw_llp_peer_addr)
NEVER(siw_llp_poller_has_more_datagrams)
NEVER(siw_llp_allow_concurrent_sends)
NEVER(siw_llp_source_addr_for_dest)
NEVER(siw_llp_tcp_set_abortive_close)
NEVER(siw_llp_tcp_accept)
NEVER(siw_llp_tcp_connect)
NEVER(siw_llp_tcp_connect_to_itself)
NEVER(siw_llp_tcp_connect_result)
NEVER(siw_llp_tcp_emss)
NEVER(siw_llp_tcp_is_closed)
NEVER(siw_llp_tcp_reserve_port)
NEVER(siw_llp_tcp_listen)
NEVER(siw_llp_tcp_recvv)
NEVER(siw_llp_tcp_sendv)
NEVER(siw_llp_tcp_shutdown)
NEVER(siw_llp_tcp_set_tos)
NEVER(siw_llp_udp_enable_multicast_sending)
NEVER(siw_llp_udp_enable_refusal_reports)
NEVER(siw_llp_udp_open_group_member)
NEVER(siw_llp_udp_reserve_port)
NEVER(siw_llp_udp_recv_in_poller_buffer)
NEVER(siw_llp_udp_path_max_payload)
NEVER(siw_llp_udp_read_refusal)
NEVER(siw_llp_udp_send_batch)
NEVER(siw_llp_udp_send_fragmented)
NEVER(siw_llp_udp_disable_fragmentation)
