/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Stubs of the reliable datagram functions that ddp and rdmap call, for the harnesses over
 * fuzz_llp.c, which open no RD endpoint: the stubs are linked, and never called. fuzz_rd.c uses the
 * real code.
 */
#include <stdlib.h>

#define NEVER(name)      \
	void name(void); \
	void name(void)  \
	{                \
		abort(); \
	}

NEVER(siw_rd_total_accepted_segments)
NEVER(siw_rd_is_send_queue_full)
NEVER(siw_rd_set_response_expected)
NEVER(siw_rd_flush)
NEVER(siw_rd_segments_ever_queued)
NEVER(siw_rd_mulpdu)
NEVER(siw_rd_pause_delivery)
NEVER(siw_rd_get_or_create_peer)
NEVER(siw_rd_peer_addr)
NEVER(siw_rd_peer_ird)
NEVER(siw_rd_recv)
NEVER(siw_rd_end_peer_incarnation)
NEVER(siw_rd_resume_delivery)
NEVER(siw_rd_peer_upper_data)
NEVER(siw_rd_set_upper_layer_object)
NEVER(siw_rd_sock)
NEVER(siw_rd_mark_segment_accepted)
NEVER(siw_rd_tx)
NEVER(siw_rd_upper_layer_object)
